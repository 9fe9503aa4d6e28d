//! What is up, what is not, why, and since when (pure).

use roundelay_model::clock::Time;
use serde::Serialize;

/// Something that is up, or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    name: &'static str,
    /// Why it is not; nothing while it is.
    why: Option<String>,
    /// Since when it is up, or not.
    since: Time,
}

impl Part {
    pub fn up(name: &'static str, since: Time) -> Self {
        Self { name, why: None, since }
    }

    pub fn down(name: &'static str, why: &str, since: Time) -> Self {
        Self { name, why: Some(why.to_owned()), since }
    }

    pub fn is_up(&self) -> bool {
        self.why.is_none()
    }

    /// Notes how it is `now`: `why` it is not up, or nothing. The latest words count, and the time
    /// stays that of the change; answers whether it has changed.
    pub fn note(&mut self, why: Option<String>, now: Time) -> bool {
        let changed = why.is_none() != self.is_up();
        if changed {
            self.since = now;
        }
        self.why = why;
        changed
    }
}

/// The answer to a request, as JSON.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct Report {
    /// Whether all parts are.
    pub ok: bool,
    /// In the order in which they are asked about.
    pub parts: Vec<PartReport>,
}

/// One part of it.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct PartReport {
    part: &'static str,
    ok: bool,
    since: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl Report {
    pub fn new(parts: &[&Part]) -> Self {
        let report = |part: &&Part| PartReport {
            part: part.name,
            ok: part.is_up(),
            since: part.since.to_string(),
            why: part.why.clone(),
        };
        Self { ok: parts.iter().all(|part| part.is_up()), parts: parts.iter().map(report).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(secs: i64) -> Time {
        Time::from_millis(secs * 1_000)
    }

    #[test]
    fn the_time_is_that_of_the_change_and_the_words_are_the_latest() {
        let mut part = Part::up("broker", at(1));
        assert!(!part.note(None, at(2)));
        assert_eq!(part, Part::up("broker", at(1)));
        assert!(part.note(Some("refused".into()), at(3)));
        assert!(!part.note(Some("timed out".into()), at(4)));
        assert_eq!(part, Part::down("broker", "timed out", at(3)));
        assert!(part.note(None, at(5)));
        assert_eq!(part, Part::up("broker", at(5)));
    }

    #[test]
    fn one_part_that_is_not_up_is_enough() {
        let (up, down) = (Part::up("broker", at(1)), Part::down("ledger", "locked", at(2)));
        assert!(Report::new(&[&up]).ok);
        let text = serde_json::to_string(&Report::new(&[&up, &down])).unwrap();
        let expected = r#"{"ok":false,"parts":[{"part":"broker","ok":true,"since":"1970-01-01T00:00:01.000Z"},{"part":"ledger","ok":false,"since":"1970-01-01T00:00:02.000Z","why":"locked"}]}"#;
        assert_eq!(text, expected);
    }
}
