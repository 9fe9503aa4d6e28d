//! Every sabotage of the protocol is noticed.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::mutant::{self, Mutant};

/// So many seeds are enough for each.
const SEEDS: u64 = 1_000;
/// Where the dice begin, behind the enumerated crash points.
const FIRST: u64 = (super::plan::SINGLES + super::plan::PAIRS + super::plan::OTHERS) as u64;

/// What a mutant was caught by.
#[derive(Debug, PartialEq)]
struct Caught {
    invariant: String,
    seeds: u64,
}

fn hunt(mutant: Mutant) -> Option<Caught> {
    for n in 0..SEEDS {
        // Dice and enumerated crash points by turns.
        let seed = if n % 2 == 0 { FIRST + n / 2 } else { n / 2 };
        // A sabotage may well make something panic, which nobody could overlook either.
        let run = catch_unwind(AssertUnwindSafe(|| mutant::with(Some(mutant), || super::run(seed, None, false))));
        let invariant = match run {
            Ok(outcomes) => outcomes.violations.first().map(|violation| violation.invariant.to_owned()),
            Err(_) => Some("panic".into()),
        };
        if let Some(invariant) = invariant {
            let without = super::run(seed, None, false).violations;
            assert_eq!(
                without,
                [],
                "seed {seed} violates this without any sabotage, so it proves nothing of {mutant:?}"
            );
            return Some(Caught { invariant, seeds: n + 1 });
        }
    }
    None
}

/// The table in `docs/proof.md`.
fn table(caught: &BTreeMap<usize, Option<Caught>>) -> String {
    let mut text = String::from("| Sabotage | Violated first | Seeds until then |\n|---|---|---|\n");
    for (n, caught) in caught {
        let Some(caught) = caught else { continue };
        text += &format!("| {} | {} | {} |\n", Mutant::ALL[*n].words(), caught.invariant, caught.seeds);
    }
    text
}

/// Takes minutes, so it has a command of its own: `tests/run --mutants`. With
/// `ROUNDELAY_WRITE_PROOF=1` it writes the table in `docs/proof.md` anew.
#[test]
#[ignore = "takes minutes; tests/run --mutants"]
fn the_simulation_catches_every_mutant() {
    let only = std::env::var("ROUNDELAY_MUTANT").ok();
    let wanted = |mutant: Mutant| only.as_ref().is_none_or(|only| format!("{mutant:?}").contains(only));
    let (next, caught) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let Some(mutant) = Mutant::ALL.get(n).copied() else { return };
                    if wanted(mutant) {
                        let found = hunt(mutant);
                        println!("{mutant:?}: {found:?}");
                        caught.lock().insert(n, found);
                    }
                }
            });
        }
    });
    let caught = caught.into_inner();
    let alive: Vec<Mutant> = caught.iter().filter(|(_, c)| c.is_none()).map(|(n, _)| Mutant::ALL[*n]).collect();
    assert!(alive.is_empty(), "these mutants live, so a check is missing: {alive:?}");
    if std::env::var_os("ROUNDELAY_WRITE_PROOF").is_some() && only.is_none() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/proof.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (before, rest) = text.split_once("<!-- mutants -->\n").unwrap();
        let (_, after) = rest.split_once("<!-- /mutants -->").unwrap();
        let text = format!("{before}<!-- mutants -->\n{}<!-- /mutants -->{after}", table(&caught));
        std::fs::write(path, text).unwrap();
    }
}

/// The table is generated, and nothing is left out of it.
#[test]
fn the_proof_tells_of_every_mutant() {
    let proof = include_str!("../../docs/proof.md");
    let rows: Vec<&str> = proof.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect();
    for mutant in Mutant::ALL {
        let found = rows.iter().filter(|row| **row == mutant.words()).count();
        assert_eq!(found, 1, "{mutant:?}; write the table anew: ROUNDELAY_WRITE_PROOF=1 tests/run --mutants");
    }
}

/// A sample of the campaign, in the ordinary run of the tests.
#[test]
fn some_seeds_violate_nothing_and_repeat_themselves() {
    for seed in [3, 77, 1_182, FIRST, FIRST + 1] {
        let outcomes = super::run(seed, None, false);
        assert_eq!(outcomes.violations, [], "seed {seed}; run: roundelay simulate --faults --seed {seed} --log");
        assert!(outcomes.ticks > 50 && outcomes.faults > 0, "seed {seed}: {outcomes:?}");
        assert_eq!(super::run(seed, None, false).trace, outcomes.trace, "seed {seed} came to another end");
    }
}
