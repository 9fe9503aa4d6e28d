//! Which chains there are: so many on certain queues, or those of a roster.

use std::collections::BTreeMap;

use wildmatch::WildMatch;

use crate::config::{Config, KindSettings};
use crate::engine::enroll::Entity;

/// The chains of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Population {
    /// So many, dealt out to these queues in turn.
    Counted {
        /// How many.
        chains: u64,
        /// The queues, at least one.
        queues: Vec<String>,
    },
    /// These.
    Listed(Vec<Entity>),
}

impl Population {
    /// So many chains of a kind, on the queues that it may name.
    ///
    /// # Errors
    /// Says what the configuration lacks.
    pub fn counted(config: &Config, kind: &str, chains: u64) -> Result<Self, String> {
        let settings = config.kind(kind)?;
        recurs(kind, settings)?;
        let queues = queues(config, settings);
        if queues.is_empty() {
            let queue = settings.queue.as_deref().unwrap_or("any");
            return Err(format!(
                "kinds.{kind}: the configuration has no queue like `{queue}`, so nobody knows where its chains are; \
                 add one under [queues], or give --roster {kind}=FILE"
            ));
        }
        Ok(Self::Counted { chains, queues })
    }

    /// These chains of a kind.
    ///
    /// # Errors
    /// When the kind has none.
    pub fn listed(config: &Config, kind: &str, entities: Vec<Entity>) -> Result<Self, String> {
        recurs(kind, config.kind(kind)?)?;
        Ok(Self::Listed(entities))
    }

    /// How many chains there are.
    pub fn chains(&self) -> u64 {
        match self {
            Self::Counted { chains, .. } => *chains,
            Self::Listed(entities) => entities.len() as u64,
        }
    }

    /// How many of them are on each queue.
    pub fn by_queue(&self) -> BTreeMap<String, u64> {
        let mut by_queue = BTreeMap::new();
        match self {
            Self::Counted { chains, queues } => {
                let (all, count) = (chains, queues.len() as u64);
                for (n, queue) in (0..).zip(queues) {
                    *by_queue.entry(queue.clone()).or_default() += all / count + u64::from(n < all % count);
                }
            }
            Self::Listed(entities) => {
                entities.iter().for_each(|entity| *by_queue.entry(entity.queue.clone()).or_default() += 1);
            }
        }
        by_queue
    }

    /// All of them, in batches of at most `size`.
    pub(super) fn batches(self, size: usize) -> Box<dyn Iterator<Item = Vec<Entity>> + Send> {
        match self {
            Self::Counted { chains, queues } => {
                let one = move |n: u64| Entity {
                    key: n.to_string(),
                    queue: queues[(n % queues.len() as u64) as usize].clone(),
                    priority: None,
                    payload: "null".into(),
                    owner: None,
                    schedule: None,
                    first_due: None,
                };
                let mut next = 0;
                Box::new(std::iter::from_fn(move || {
                    let first = next;
                    next = chains.min(next + size as u64);
                    (first < next).then(|| (first..next).map(&one).collect())
                }))
            }
            Self::Listed(entities) => {
                let mut rest = entities.into_iter();
                Box::new(std::iter::from_fn(move || {
                    let batch: Vec<Entity> = rest.by_ref().take(size).collect();
                    (!batch.is_empty()).then_some(batch)
                }))
            }
        }
    }
}

fn recurs(kind: &str, settings: &KindSettings) -> Result<(), String> {
    match settings.recurrence {
        Some(_) => Ok(()),
        None => Err(format!("kinds.{kind} has none of `every`, `cron` and `at`, so it has no chains to simulate")),
    }
}

/// The queues that a kind may name. What a template takes from a roster may be anything.
fn queues(config: &Config, kind: &KindSettings) -> Vec<String> {
    let pattern = WildMatch::new(&kind.queue.as_deref().map_or("*".into(), pattern));
    config.queues.keys().filter(|queue| pattern.matches(queue)).cloned().collect()
}

/// A template with every part that is made from a row as `*`.
fn pattern(template: &str) -> String {
    let (mut text, mut rest) = (String::new(), template);
    while let Some((before, after)) = rest.split_once('{') {
        let Some(end) = after.find(['{', '%', '#']).and_then(|_| after.find("}")) else { break };
        text += before;
        text.push('*');
        rest = after[end..].trim_start_matches('}');
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let text = r#"
            [queues.sync-ios]
            [queues.sync-android]
            [queues.other]
            [kinds.sync]
            queue = "sync-{{ platform }}"
            every = "10s"
            [kinds.plain]
            queue = "other"
            every = "10s"
            [kinds.free]
            every = "10s"
            [kinds.lost]
            queue = "nowhere-{{ x }}"
            every = "10s"
            [kinds.single]
        "#;
        Config::parse(text, "test", []).unwrap()
    }

    #[test]
    fn chains_are_dealt_out_to_the_queues_that_a_kind_may_name() {
        let config = config();
        let table = [
            ("sync", vec![("sync-android", 3), ("sync-ios", 2)]),
            ("plain", vec![("other", 5)]),
            ("free", vec![("other", 2), ("sync-android", 2), ("sync-ios", 1)]),
        ];
        for (kind, expected) in table {
            let population = Population::counted(&config, kind, 5).unwrap();
            let by_queue = population.by_queue();
            let by_queue: Vec<(&str, u64)> = by_queue.iter().map(|(queue, n)| (queue.as_str(), *n)).collect();
            assert_eq!(by_queue, expected, "{kind}");
            let mut dealt = BTreeMap::new();
            let batches: Vec<_> = population.batches(2).collect();
            assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
            batches.into_iter().flatten().for_each(|entity| *dealt.entry(entity.queue).or_default() += 1);
            assert_eq!(dealt.into_iter().collect::<Vec<(String, u64)>>().len(), by_queue.len());
        }
        assert!(Population::counted(&config, "lost", 5).unwrap_err().contains("--roster lost=FILE"));
        assert!(Population::counted(&config, "single", 5).unwrap_err().contains("none of `every`"));
    }

    #[test]
    fn what_a_template_takes_from_a_row_may_be_anything() {
        let table = [
            ("plain", "plain"),
            ("sync-{{ platform }}", "sync-*"),
            ("{{ a }}-x-{{ b | lower }}", "*-x-*"),
            ("{% if a %}x{% endif %}", "*x*"),
        ];
        for (template, expected) in table {
            assert_eq!(pattern(template), expected);
        }
    }
}
