//! The ground that Roundelay stands on: what is wrong with it, what follows from that, and how to mend it.
//!
//! [`examine`] gathers facts, everything at the same time and each with a limit, so that what hangs holds up nothing
//! else; [`judge`] makes findings of them (pure). Nothing is changed anywhere: ledgers are opened to be looked at, and
//! the one write that is tried is rolled back. What could not be looked at is told as unknown, never as good.

mod api;
mod broker;
mod chains;
mod clock;
mod ledger;
mod machine;
mod programs;

use std::fmt;
use std::future::Future;
use std::time::Duration;

use roundelay_config::Config;
use roundelay_model::clock::{Clock, Time};
use serde::Serialize;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

pub use api::ApiFacts;
pub use broker::BrokerFacts;
pub use chains::ChainFacts;
pub use ledger::{FileFacts, LedgerFacts, Stat};
pub use machine::{Disk, MachineFacts, Synchronised};
pub use programs::{ProgramFacts, Trouble};

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
    /// Chains, queues, workers, and what was ordered of them.
    Chains,
    /// The admin API.
    Api,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// As it should be.
    Good,
    /// It works, and somebody should look at it.
    Warning,
    /// Something does not work, or will not.
    Bad,
    /// It could not be looked at.
    Unknown,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is about.
    pub area: Area,
    /// What was looked at.
    pub what: String,
    /// What came of it.
    pub result: Grade,
    /// What was seen there; of what is unknown, why.
    pub seen: String,
    /// What follows from it; empty where nothing does.
    pub follows: String,
    /// What to do: a command, or a setting; empty where nothing is to be done.
    pub fix: String,
}

impl Finding {
    /// Something that is as it should be.
    pub fn good(area: Area, what: impl Into<String>, seen: impl Into<String>) -> Self {
        let (follows, fix) = Default::default();
        Self { area, what: what.into(), result: Grade::Good, seen: seen.into(), follows, fix }
    }

    /// Something that does not work, or will not.
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

    fn warning(
        area: Area,
        what: impl Into<String>,
        seen: impl Into<String>,
        follows: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { result: Grade::Warning, ..Self::bad(area, what, seen, follows, fix) }
    }

    /// Something that could not be looked at, and why.
    pub fn unknown(area: Area, what: impl Into<String>, why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { result: Grade::Unknown, ..Self::bad(area, what, why, "", fix) }
    }

    /// The same, if it is bad at all, as a warning.
    fn softened(self) -> Self {
        let result = if self.result == Grade::Bad { Grade::Warning } else { self.result };
        Self { result, ..self }
    }
}

/// What was asked for, or why it is not to be had.
pub type Answer<T> = Result<T, String>;

/// All that is known.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The time by this machine's clock.
    pub now: Time,
    /// This machine.
    pub machine: Answer<MachineFacts>,
    /// The broker; nothing where it is in the worker's process.
    pub broker: Option<BrokerFacts>,
    /// The ledger.
    pub ledger: LedgerFacts,
    /// What is in the ledger.
    pub chains: Answer<ChainFacts>,
    /// Where the API is to answer; nothing where none is configured.
    pub api: Option<Answer<ApiFacts>>,
}

/// Examines everything that `config` names. Each part may take `within`; with `thorough`, the whole of a ledger's file
/// is looked through, however long that takes.
pub async fn examine(config: &Config, within: Duration, thorough: bool) -> Vec<Finding> {
    judge(&gather(config, within, thorough).await, config)
}

async fn gather(config: &Config, within: Duration, thorough: bool) -> Facts {
    let (machine, broker, mut ledger, chains, api) = tokio::join!(
        limited(within, machine::gather(config.clone())),
        broker::gather(config, within),
        ledger::gather(config, within, thorough),
        limited(within, chains::gather(config.clone())),
        api::gather(config, within),
    );
    // After all who read: to write to a file that nobody has open takes a log beside it, and whoever only reads, and
    // finds that log, keeps it from going again.
    ledger.try_to_write(within).await;
    Facts { now: Clock::System.now(), machine, broker, ledger, chains: chains.and_then(|chains| chains), api }
}

/// Makes findings of facts, in the order of areas.
pub fn judge(facts: &Facts, config: &Config) -> Vec<Finding> {
    let mut all = machine::judge(facts, config);
    all.extend(clock::judge(facts));
    all.extend(ledger::judge(facts));
    all.extend(broker::judge(facts, config));
    all.extend(chains::judge(facts, config));
    all.extend(api::judge(facts, config));
    all
}

/// Does something that may hang. It runs as a task of its own, so that it does not hold up the clock, either.
async fn limited<T: Send + 'static>(within: Duration, work: impl Future<Output = T> + Send + 'static) -> Answer<T> {
    match timeout(within, AbortOnDropHandle::new(tokio::spawn(work))).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(failed)) => Err(format!("looking at it has failed: {failed}")),
        Err(_) => Err(format!("no answer within {}", humantime::format_duration(within))),
    }
}

/// Does something that may hang in a call of the system or of SQLite.
async fn blocking<T: Send + 'static>(within: Duration, work: impl FnOnce() -> T + Send + 'static) -> Answer<T> {
    let work = tokio::task::spawn_blocking(work);
    limited(within, work).await.and_then(|ended| ended.map_err(|failed| format!("looking at it has failed: {failed}")))
}

/// `first, second, third and 4 more`
fn some<T: AsRef<str>>(all: &[T]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<&str> = all.iter().take(SHOWN).map(AsRef::as_ref).collect();
    let more = all.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

/// `1.5 GiB`
fn size(bytes: u64) -> String {
    let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} bytes"),
    }
}

/// How far away in time something is, for people: `3d 4h`, `12s`, `340ms`.
fn span(millis: i64) -> String {
    let span = Duration::from_millis(millis.unsigned_abs());
    let coarse = match span.as_secs() {
        0..10 => span,
        10..86_400 => Duration::from_secs(span.as_secs()),
        secs => Duration::from_secs(secs / 3_600 * 3_600),
    };
    humantime::format_duration(coarse).to_string()
}

/// A text as one word of a command: as it is, or between quotation marks when a shell would make something else of it.
pub fn word(text: impl fmt::Display) -> String {
    let text = text.to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Facts {
        /// Nothing could be asked.
        pub(super) fn nothing() -> Self {
            let why = || "no answer within 5s".to_owned();
            Self {
                now: Time::from_millis(1_000_000_000),
                machine: Err(why()),
                broker: None,
                ledger: LedgerFacts::Memory,
                chains: Err(why()),
                api: None,
            }
        }
    }

    /// The only finding about `what`.
    pub(super) fn about<'a>(findings: &'a [Finding], what: &str) -> &'a Finding {
        let found: Vec<&Finding> = findings.iter().filter(|finding| finding.what == what).collect();
        assert_eq!(found.len(), 1, "one finding about `{what}` in {findings:#?}");
        found[0]
    }

    /// Whatever is not good says what to do.
    pub(super) fn have_fixes(findings: &[Finding]) {
        for finding in findings {
            assert_eq!(finding.result == Grade::Good, finding.fix.is_empty(), "{finding:?}");
            assert!(!finding.what.is_empty() && !finding.seen.is_empty(), "{finding:?}");
        }
    }

    #[test]
    fn figures_are_for_people() {
        for (bytes, text) in [(0, "0 bytes"), (2_048, "2.0 KiB"), (1_610_612_736, "1.5 GiB"), (3 << 40, "3.0 TiB")] {
            assert_eq!(size(bytes), text);
        }
        for (millis, text) in [(340, "340ms"), (-12_345, "12s"), (90_000_000, "1day 1h"), (2_500, "2s 500ms")] {
            assert_eq!(span(millis), text);
        }
        assert_eq!(some(&["a"]), "a");
        assert_eq!(some(&["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
    }

    #[tokio::test(start_paused = true)]
    async fn what_hangs_or_panics_is_told_and_holds_up_nothing() {
        let within = Duration::from_secs(5);
        let never = limited(within, std::future::pending::<()>()).await;
        assert_eq!(never, Err("no answer within 5s".into()));
        let panics: Answer<()> = limited(within, async { panic!("a test's panic") }).await;
        assert!(panics.unwrap_err().starts_with("looking at it has failed"));
        assert_eq!(limited(within, async { 7 }).await, Ok(7));
    }

    #[test]
    fn a_word_of_a_command_is_one_word() {
        let table = [
            ("eu-1", "eu-1"),
            ("/var/lib/roundelay.db", "/var/lib/roundelay.db"),
            ("", "''"),
            ("two words", "'two words'"),
            ("it's; rm -r /", r"'it'\''s; rm -r /'"),
            ("$(x)", "'$(x)'"),
        ];
        for (text, expected) in table {
            assert_eq!(word(text), expected);
        }
    }
}
