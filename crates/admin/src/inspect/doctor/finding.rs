//! A finding of the doctor, and its words.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use serde::Serialize;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

/// An answer, or why there is none.
pub type Gathered<T> = Result<T, String>;
/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Area {
    /// The configuration's file.
    Configuration,
    /// This machine: its disk and its limits.
    Machine,
    /// Clocks.
    Clock,
    /// The ledger.
    Ledger,
    /// The broker.
    Broker,
    /// Chains, queues, workers, and orders for them.
    Chains,
    /// The admin API.
    Api,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// Without fault.
    Good,
    /// This works, and an operator should look at it.
    Warning,
    /// This does not work, or will not.
    Bad,
    /// This could not be checked.
    Unknown,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is about.
    pub area: Area,
    /// What was looked at.
    pub what: String,
    /// The result of the check.
    pub result: Grade,
    /// What was seen there; if the result is unknown, why.
    pub seen: String,
    /// What follows from it; empty if nothing does.
    pub follows: String,
    /// What to do: a command, or a setting; empty if nothing is to be done.
    pub fix: String,
}

impl Finding {
    /// A finding without fault.
    pub fn good(area: Area, what: impl Into<String>, seen: impl Into<String>) -> Self {
        let (follows, fix) = Default::default();
        Self { area, what: what.into(), result: Grade::Good, seen: seen.into(), follows, fix }
    }

    /// A finding that something does not work, or will not.
    pub fn bad(
        area: Area,
        what: impl Into<String>,
        seen: impl Into<String>,
        follows: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (follows, fix) = (follows.into(), fix.into());
        Self { area, what: what.into(), result: Grade::Bad, seen: seen.into(), follows, fix }
    }

    pub fn warning(
        area: Area,
        what: impl Into<String>,
        seen: impl Into<String>,
        follows: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { result: Grade::Warning, ..Self::bad(area, what, seen, follows, fix) }
    }

    /// A finding that something could not be checked, and why.
    pub fn unknown(area: Area, what: impl Into<String>, why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { result: Grade::Unknown, ..Self::bad(area, what, why, "", fix) }
    }

    /// The same finding, as a warning if it is bad.
    pub fn softened(self) -> Self {
        let result = if self.result == Grade::Bad { Grade::Warning } else { self.result };
        Self { result, ..self }
    }
}

/// Runs an async operation for at most `within`; then it is aborted. It is a task of its own, so that the timer fires
/// even while the operation blocks its thread.
pub async fn limited<T: Send + 'static>(
    within: Duration,
    work: impl Future<Output = T> + Send + 'static,
) -> Gathered<T> {
    match timeout(within, AbortOnDropHandle::new(tokio::spawn(work))).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(failed)) => Err(format!("looking at it has failed: {failed}")),
        Err(_) => Err(format!("no answer within {}", humantime::format_duration(within))),
    }
}

/// Waits for a call of the system or of SQLite for at most `within`. After that the call goes on in its thread, and its
/// answer is lost.
pub async fn blocking<T: Send + 'static>(within: Duration, work: impl FnOnce() -> T + Send + 'static) -> Gathered<T> {
    let work = tokio::task::spawn_blocking(work);
    limited(within, work).await.and_then(|ended| ended.map_err(|failed| format!("looking at it has failed: {failed}")))
}

/// `first, second, third and 4 more`
pub fn some<T: AsRef<str>>(all: &[T]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<&str> = all.iter().take(SHOWN).map(AsRef::as_ref).collect();
    let more = all.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

/// `1.5 GiB`
pub fn size(bytes: u64) -> String {
    let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} bytes"),
    }
}

/// A length of time without its sign: `3days 4h`, `12s`, `340ms`. From 10 s on in whole seconds, from a day on in whole
/// hours.
pub fn span(millis: i64) -> String {
    let span = Duration::from_millis(millis.unsigned_abs());
    let coarse = match span.as_secs() {
        0..10 => span,
        10..86_400 => Duration::from_secs(span.as_secs()),
        secs => Duration::from_secs(secs / 3_600 * 3_600),
    };
    humantime::format_duration(coarse).to_string()
}

/// A text as one word of a shell command: as it is, or in quotes when a shell would interpret it.
pub fn word(text: impl fmt::Display) -> String {
    let text = text.to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}
