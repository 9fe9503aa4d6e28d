//! The doctor checks what Roundelay depends on: what is wrong with it, what follows from that, and how to mend it.
//!
//! [`examine`] gathers facts, all at the same time and each with a time limit, so that one hanging part does not delay
//! the others; [`diagnose`] makes findings of them (pure). The doctor changes nothing: it opens ledgers for reading,
//! and rolls back the one write that it tries. A part that could not be checked is reported as unknown, never as good.

mod api;
mod broker;
mod chains;
mod clock;
mod facts;
mod finding;
mod ledger;
mod machine;
mod programs;

use std::time::Duration;

use roundelay_config::Config;
use roundelay_model::clock::Clock;

pub use api::ApiFacts;
pub use broker::BrokerFacts;
pub use chains::ChainFacts;
pub use facts::Facts;
use finding::limited;
pub use finding::{Area, Finding, Grade, word};
pub use ledger::{FileFacts, LedgerFacts, Stat};
pub use machine::{Disk, MachineFacts, Synchronised};
pub use programs::{ProgramFacts, Trouble, programs};

/// Examines everything that `config` names. Each part may take `within`; with `thorough`, the whole of a ledger's file
/// is checked, for as long as that takes.
pub async fn examine(config: &Config, within: Duration, thorough: bool) -> Vec<Finding> {
    diagnose(&gather(config, within, thorough).await, config)
}

async fn gather(config: &Config, within: Duration, thorough: bool) -> Facts {
    let (machine, broker, mut ledger, chains, api) = tokio::join!(
        limited(within, machine::gather(config.clone())),
        broker::gather(config, within),
        ledger::gather(config, within, thorough),
        limited(within, chains::gather(config.clone())),
        api::gather(config, within),
    );
    // This comes after all reads: a write to a file that no other process has open creates a log beside it, and a
    // reader that finds the log prevents its removal.
    ledger.try_to_write(within).await;
    Facts { now: Clock::System.now(), machine, broker, ledger, chains: chains.and_then(|chains| chains), api }
}

/// Makes findings of facts, in the order of areas.
pub fn diagnose(facts: &Facts, config: &Config) -> Vec<Finding> {
    let mut all = machine::diagnose(facts, config);
    all.extend(clock::diagnose(facts));
    all.extend(ledger::diagnose(facts, config.ledger.synchronous));
    all.extend(broker::diagnose(facts, config));
    all.extend(chains::diagnose(facts, config));
    all.extend(api::diagnose(facts, config));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::doctor::finding::Gathered;
    use crate::inspect::doctor::finding::size;
    use crate::inspect::doctor::finding::some;
    use roundelay_model::clock::Time;

    use crate::inspect::doctor::finding::span;

    impl Facts {
        /// Facts in which every question failed.
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

    /// Every finding that is not good says what to do.
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
        let panics: Gathered<()> = limited(within, async { panic!("a test's panic") }).await;
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
