//! All states, not seeds: a breadth-first search over what two workers, a broker, operators and a ledger can come to.
//!
//! The decisions are those of production. Real are:
//!
//! - claims, finishes, enrolments, the note that a message was sent, and what catch-up notes:
//!   `crates/ledger/src/decide/`, over [`roundelay_ledger::rows`];
//! - what a worker does with a message after the answer to its claim or finish: `crates/ledger/src/decide/follow.rs`;
//! - whether catch-up sends a message again, and when it looks next: `plan` in `crates/engine/src/catch_up.rs`.
//!
//! Modelled, in a few lines each (`chains.rs`), are:
//!
//! - in which order a worker publishes, notes and acknowledges (`publishing.rs`), and that it ends its runs when its
//!   lease is over (`vitals.rs`);
//! - when sessions end (`heartbeat.rs`) and which chains catch-up finds, gives up and takes over (`catch_up.rs`);
//! - orders of operators and the restore of an older copy, which the other ledgers say in SQL;
//! - the broker: a multiset of messages. Catch-up reads and notes in one step; two looks that cross come to no more
//!   than a message that is doubled.
//!
//! A time that is 100 s ahead or more never comes. No rule asks for one here, so a chain that is left alone for longer
//! is one that catch-up does not find.
//!
//! Not modelled are batches, guards and cooldowns, takeovers by redelivery, throttles, and runs from the ledger while
//! the broker is away.
//!
//! There is no bound on ticks and time: `state` says how they are numbered. A bound is how much goes wrong: each
//! exploration has a number of faults, of times that the clock is set, of orders, and of runs that do not work out.
//! Time passes only when no worker, message or operator has a move, unless something is slow, which is a fault.

mod chains;
mod search;
mod state;
mod throttles;
mod words;

use roundelay_model::guard::IfRunning;
use serde::Serialize;

use chains::{Chains, Ledger, sound};
pub use search::Limits;
use search::{Found, Story, search};
use state::Budgets;

/// What all explorations have come to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Each of them, up to the first that found a violation.
    pub explorations: Vec<Exploration>,
    /// All their states together.
    pub states: u64,
    /// All their moves together.
    pub moves: u64,
    /// How long they took, in seconds.
    pub seconds: f64,
    /// The violation, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counterexample: Option<Counterexample>,
}

/// What one exploration has come to.
#[derive(Clone, Debug, Serialize)]
pub struct Exploration {
    /// What was explored, and within what bound.
    pub bound: String,
    /// Different states.
    pub states: u64,
    /// Moves that were made.
    pub moves: u64,
    /// The longest of the shortest paths to a state, in moves.
    pub depth: u32,
    /// Whether all states within the bound were reached.
    pub complete: bool,
    /// States from which a run without further faults was seen to claim every active chain, or to grant every start
    /// that waits.
    pub checked_for_liveness: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// States per second.
    pub states_per_second: f64,
}

/// A shortest way to the violation of an invariant.
#[derive(Clone, Debug, Serialize)]
pub struct Counterexample {
    /// Which, as `docs/proof.md` names it.
    pub invariant: &'static str,
    /// How it is violated.
    pub what: String,
    /// How many moves it takes.
    pub length: usize,
    /// The moves in words, with what each side then knows.
    pub story: Vec<String>,
}

/// What CI explores: its name, and what it is.
fn bounds() -> Vec<(&'static str, Chains)> {
    let none = Budgets { faults: 1, clock: 0, orders: 0, setbacks: 0, restores: 0 };
    let chains = Chains { two: false, manual: None, jobs: false, budgets: none, ledger: sound };
    let with = |budgets| Chains { budgets, ..chains };
    let ordered = with(Budgets { orders: 1, ..none });
    vec![
        ("one chain", with(Budgets { faults: 2, ..none })),
        ("one chain, runs that do not work out", with(Budgets { clock: 1, setbacks: 2, ..none })),
        ("one chain, operators", ordered),
        ("one chain, restored", with(Budgets { restores: 1, ..none })),
        ("one chain whose runs ask for jobs", Chains { jobs: true, ..chains }),
        ("a manual run after the rotation's", Chains { manual: Some(IfRunning::After), ..ordered }),
        ("a manual run in place of none", Chains { manual: Some(IfRunning::Refuse), ..ordered }),
        ("two chains", Chains { two: true, ..chains }),
    ]
}

fn words((name, chains): (&str, &Chains)) -> String {
    let Budgets { faults, clock, orders, setbacks, restores } = chains.budgets;
    format!(
        "{name}: {faults} faults, of these {clock} settings of the clock; {orders} orders, {setbacks} runs that do not work out, {restores} restores"
    )
}

/// Explores what CI explores, until the first violation.
pub fn explore(limits: Limits) -> Report {
    explore_those(limits, |_| true)
}

/// Of what CI explores, those explorations whose names are wanted. The names of all throttles begin with "a throttle".
pub fn explore_those(limits: Limits, wanted: impl Fn(&str) -> bool) -> Report {
    explore_with(limits, sound, wanted)
}

fn explore_with(limits: Limits, ledger: Ledger, wanted: impl Fn(&str) -> bool) -> Report {
    let mut report = Report::default();
    for (name, throttle) in throttles::bounds().into_iter().filter(|(name, _)| wanted(name)) {
        if report.counterexample.is_none() {
            report.add(throttles::words(name, &throttle), search(&throttle, limits));
        }
    }
    for (name, chains) in bounds().into_iter().filter(|(name, _)| wanted(name)) {
        if report.counterexample.is_none() {
            report.add(words((name, &chains)), search(&Chains { ledger, ..chains }, limits));
        }
    }
    report
}

impl Report {
    fn add(&mut self, bound: String, found: Found) {
        let Found { states, moves, depth, complete, lively, seconds, story } = found;
        self.states += states;
        self.moves += moves;
        self.seconds += seconds;
        self.explorations.push(Exploration {
            bound,
            states,
            moves,
            depth,
            complete,
            checked_for_liveness: lively,
            seconds,
            states_per_second: if seconds > 0.0 { (states as f64 / seconds).round() } else { 0.0 },
        });
        self.counterexample = story.map(|Story { broken, length, lines }| {
            let (invariant, what) = (broken.invariant, broken.what);
            Counterexample { invariant, what, length, story: lines }
        });
    }
}

#[cfg(test)]
mod tests {
    use roundelay_ledger::rows::Rows;
    use roundelay_ledger::{Claim, ClaimRequest};

    use super::*;
    use crate::explore::state::NOW;

    const SMALL: Limits = Limits { depth: 1_000, states: 6_000, threads: 1 };

    #[test]
    fn what_is_small_holds_and_comes_to_the_same_with_two_threads() {
        let one = explore(SMALL);
        assert!(one.counterexample.is_none(), "{:?}", one.counterexample);
        let two = explore(Limits { threads: 2, ..SMALL });
        let figures = |report: &Report| -> Vec<(u64, u64, u32, u64)> {
            report.explorations.iter().map(|e| (e.states, e.moves, e.depth, e.checked_for_liveness)).collect()
        };
        assert_eq!(figures(&one), figures(&two));
        assert!(one.explorations.iter().all(|e| e.states > 100 && e.checked_for_liveness > 0), "{one:?}");
    }

    /// All sessions seem to be over.
    fn blind(rows: &mut Rows, request: &ClaimRequest) -> Claim {
        let sessions = std::mem::take(&mut rows.sessions);
        let answer = rows.claim(request, NOW);
        rows.sessions = sessions;
        answer
    }

    /// Grants each claim to a session of no worker.
    fn deaf(rows: &mut Rows, request: &ClaimRequest) -> Claim {
        match rows.claim(request, NOW) {
            Claim::Granted(_) => Claim::Idle,
            answer => answer,
        }
    }

    fn of_chains(name: &str) -> bool {
        !name.starts_with("a throttle")
    }

    #[test]
    fn a_ledger_that_is_blind_to_leases_forks_a_chain() {
        let report = explore_with(Limits { states: 2_000_000, ..SMALL }, blind, of_chains);
        let found = report.counterexample.expect("nothing was noticed");
        assert_eq!(found.invariant, "I1", "{found:?}");
        assert_eq!(found.story.len(), found.length, "{found:?}");
    }

    #[test]
    fn a_ledger_whose_grants_are_not_heard_kills_a_chain() {
        let report = explore_with(Limits { states: 2_000_000, ..SMALL }, deaf, of_chains);
        let found = report.counterexample.expect("nothing was noticed");
        // The first that shows: its message is sent again, though nothing has gone wrong.
        assert_eq!(found.invariant, "I9", "{found:?}");
    }
}
