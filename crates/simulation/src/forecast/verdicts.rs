//! How attempts ended, as the workers count them: the one place where that is read.
//!
//! What `/metrics` shows is what counts, so every verdict and every reason that the engine ever
//! learns to give is here without a further word.

use std::collections::BTreeMap;

/// The families that count ends, each with the verdict of those that have no label for it.
const FAMILIES: [(&str, Option<&str>); 2] =
    [("roundelay_attempts_total", None), ("roundelay_left_out_total", Some("skipped"))];

/// Counts by verdict and reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdicts(BTreeMap<(String, String), u64>);

impl Verdicts {
    /// Those of every kind, from what a worker's `/metrics` would show.
    pub fn read(metrics: &str, into: &mut BTreeMap<String, Verdicts>) {
        for line in metrics.lines() {
            let Some((name, rest)) = line.split_once('{') else { continue };
            let Some((_, fixed)) = FAMILIES.iter().find(|(family, _)| *family == name) else { continue };
            let Some((labels, count)) = rest.rsplit_once("} ") else { continue };
            let labels = labels_of(labels);
            let label = |wanted: &str| labels.get(wanted).cloned().unwrap_or_default();
            let (Ok(count @ 1..), verdict) = (count.parse::<u64>(), fixed.map_or_else(|| label("verdict"), Into::into))
            else {
                continue;
            };
            *into.entry(label("kind")).or_default().0.entry((verdict, label("reason"))).or_default() += count;
        }
    }

    /// How many have this verdict.
    pub fn count(&self, verdict: &str) -> u64 {
        self.0.iter().filter(|((found, _), _)| found == verdict).map(|(_, count)| count).sum()
    }

    /// Those that did not just work: `verdict: reason`, and how many.
    pub fn reasons(&self) -> BTreeMap<String, u64> {
        let told = self.0.iter().filter(|((verdict, _), _)| verdict != "done");
        told.map(|((verdict, reason), count)| (format!("{verdict}: {reason}"), *count)).collect()
    }
}

/// `a="b",c="d"`, with the escapes of Prometheus' text format.
fn labels_of(text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut rest = text.chars();
    loop {
        let name: String = rest.by_ref().take_while(|c| *c != '=').filter(|c| *c != ',').collect();
        if name.is_empty() || rest.next() != Some('"') {
            return labels;
        }
        let mut value = String::new();
        while let Some(c) = rest.next() {
            match c {
                '"' => break,
                '\\' => match rest.next() {
                    Some('n') => value.push('\n'),
                    Some(other) => value.push(other),
                    None => break,
                },
                other => value.push(other),
            }
        }
        labels.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roundelay_engine::telemetry::Telemetry;
    use roundelay_model::outcome::{LeftOut, Verdict};
    use roundelay_model::reason::Class;

    #[test]
    fn what_workers_count_is_read_back() {
        let telemetry = Telemetry::default();
        let odd = "an \"odd\" \\ kind, {yes}";
        for kind in ["sync", odd] {
            let figures = telemetry.kind(kind);
            figures.ended(Verdict::Done, None, true);
            figures.ended(Verdict::Retried, Some(Class::Http429), true);
            figures.ended(Verdict::Retried, Some(Class::Timeout), true);
            figures.left_out(LeftOut { overlapped: 3, ..LeftOut::default() });
        }
        let mut verdicts = BTreeMap::new();
        Verdicts::read(&telemetry.render(), &mut verdicts);
        assert_eq!(verdicts.keys().collect::<Vec<_>>(), [odd, "sync"]);
        let sync = &verdicts["sync"];
        assert_eq!((sync.count("done"), sync.count("retried"), sync.count("skipped")), (1, 2, 3));
        let reasons = sync.reasons();
        let reasons: Vec<(&str, u64)> = reasons.iter().map(|(reason, n)| (reason.as_str(), *n)).collect();
        assert_eq!(reasons, [("retried: http_429", 1), ("retried: timeout", 1), ("skipped: overlap", 3)]);
        assert_eq!(verdicts[odd].count("done"), 1);
    }
}
