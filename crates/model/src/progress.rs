//! How far a run has come, in its own words (pure).
//!
//! A handler reports as often as it likes: a Rust handler by `Context::progress`, a program by lines on
//! its standard output, and a handler that was called over HTTP by a POST to the URL in the job.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::clock::Time;
use crate::reason::excerpt;

/// The longest name of a phase, in characters; the rest is cut off.
const MAX_PHASE: usize = 100;
/// The largest report of another program, in bytes.
pub const MAX_REPORT: usize = 4 * 1024;

/// How far a run had come when it last said so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What it is at; empty when it has not said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// How much of it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    /// Out of how much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// When it said so.
    pub at: Time,
}

impl Progress {
    /// As the ledger keeps it.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what the ledger has kept.
    pub fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// `listings 3/12`
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.phase)?;
        let space = if self.phase.is_empty() { "" } else { " " };
        match (self.done, self.total) {
            (Some(done), Some(total)) => write!(f, "{space}{done}/{total}"),
            (Some(done), None) => write!(f, "{space}{done}"),
            (None, Some(total)) => write!(f, "{space}?/{total}"),
            (None, None) => Ok(()),
        }
    }
}

/// What a run reports. Whatever it leaves out of a phase that goes on stays as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Report {
    /// What it is at now; absent, the same as before.
    #[serde(default)]
    pub phase: Option<String>,
    /// How much of the phase is done.
    #[serde(default)]
    pub done: Option<u64>,
    /// Out of how much.
    #[serde(default)]
    pub total: Option<u64>,
}

impl Report {
    /// Reads what another program has written: a JSON object with one of `phase`, `done` and `total`
    /// at least. Other fields are ignored.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn read(text: &[u8]) -> Result<Self, String> {
        if text.len() > MAX_REPORT {
            return Err(format!("it has {} bytes; at most {MAX_REPORT} are read", text.len()));
        }
        let wrong = |why: &dyn fmt::Display| {
            format!("it is no object such as {{\"phase\":\"listings\",\"done\":3,\"total\":12}}: {why}")
        };
        if text.trim_ascii().first() != Some(&b'{') {
            return Err(wrong(&"it does not begin with a brace"));
        }
        let report: Self = serde_json::from_slice(text).map_err(|error| wrong(&error))?;
        if report == Self::default() {
            return Err(wrong(&"it says nothing"));
        }
        Ok(report)
    }

    /// Where a run stands that has reported this after `before`.
    pub fn after(self, before: Option<&Progress>, at: Time) -> Progress {
        let phase = self.phase.map(|phase| excerpt(phase.as_bytes(), MAX_PHASE));
        let same = before.filter(|before| phase.as_ref().is_none_or(|phase| *phase == before.phase));
        Progress {
            done: self.done.or_else(|| same?.done),
            total: self.total.or_else(|| same?.total),
            phase: phase.or_else(|| Some(same?.phase.clone())).unwrap_or_default(),
            at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(phase: &str, done: Option<u64>, total: Option<u64>) -> Progress {
        Progress { phase: phase.into(), done, total, at: Time::from_millis(7) }
    }

    #[test]
    fn what_a_report_makes_of_where_a_run_stood() {
        let listings = progress("listings", Some(3), Some(12));
        let table = [
            (None, r#"{"phase":"identity"}"#, progress("identity", None, None)),
            (None, r#"{"done":3}"#, progress("", Some(3), None)),
            (None, r#"{"phase":"listings","done":3,"total":12,"more":[]}"#, listings.clone()),
            (Some(&listings), r#"{"done":4}"#, progress("listings", Some(4), Some(12))),
            (Some(&listings), r#"{"phase":"listings","done":4}"#, progress("listings", Some(4), Some(12))),
            (Some(&listings), r#"{"phase":"metrics"}"#, progress("metrics", None, None)),
            (Some(&listings), r#" {"phase":null,"total":13} "#, progress("listings", Some(3), Some(13))),
            (None, "{\"phase\":\"a\\nb\"}", progress("a b", None, None)),
        ];
        for (before, text, after) in table {
            let report = Report::read(text.as_bytes()).unwrap();
            assert_eq!(report.after(before, Time::from_millis(7)), after, "{text}");
        }
    }

    #[test]
    fn what_is_no_report() {
        for text in ["", "listings", "[3,12]", "{}", "{\"phase\":3}", "{\"done\":-1}", "{\"done\":1.5}", "{\"done\":1"]
        {
            let why = Report::read(text.as_bytes()).unwrap_err();
            assert!(why.starts_with("it is no object such as {\"phase\""), "{text}: {why}");
        }
        let long = format!("{{\"phase\":\"{}\"}}", "x".repeat(MAX_REPORT));
        assert!(Report::read(long.as_bytes()).unwrap_err().ends_with("at most 4096 are read"));
        let long = Report { phase: Some("x".repeat(3_000)), ..Report::default() };
        assert_eq!(long.after(None, Time::default()).phase.chars().count(), MAX_PHASE + 1, "and an ellipsis");
    }

    #[test]
    fn in_words_and_back_from_the_ledger() {
        let table = [
            (progress("listings", Some(3), Some(12)), "listings 3/12"),
            (progress("listings", Some(3), None), "listings 3"),
            (progress("", Some(3), Some(12)), "3/12"),
            (progress("finalize", None, None), "finalize"),
            (progress("listings", None, Some(12)), "listings ?/12"),
        ];
        for (progress, words) in table {
            assert_eq!(progress.to_string(), words);
            assert_eq!(Progress::read(&progress.text()), Some(progress));
        }
    }
}
