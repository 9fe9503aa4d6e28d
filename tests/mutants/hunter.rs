//! Finds a seed of the simulation that notices each mutant. An example of the copy, which `main.rs` runs.
//!
//! Each line of its input is the name of a mutant, and the seed that is known to notice that one, if there is one. For
//! each it prints a line: the name, the invariant that was violated first, the seed, and how many seeds were tried from
//! the first on; 0 if the known seed noticed it. A mutant that lives has a line with its name only.
//!
//! Where `chains` or `throttles` follows, the explorer must notice it, too, among their states: the invariant, after how
//! many moves, and how many states it took come last. With `only` after that no seed is tried, and `-` stands in place of
//! one.

use std::io::{self, BufRead};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use roundelay_simulation as simulation;
use roundelay_simulation::explore::{Limits, explore_those};
use roundelay_simulation::plan::ENUMERATED;

/// How many seeds are tried for a mutant.
const SEEDS: u64 = 1_000;

/// How many states the explorer looks at, of each of its bounds.
const STATES: u64 = 120_000;

/// The invariant that a seed violates first with this mutant.
fn notices(mutant: &'static str, seed: u64) -> Option<String> {
    // A mutant may make something panic, which could not be overlooked either.
    let run = catch_unwind(AssertUnwindSafe(|| sabotage::with(mutant, || simulation::run(seed, None, false))));
    let invariant = match run {
        Ok(outcomes) => outcomes.violations.first()?.invariant.to_owned(),
        Err(_) => "panic".into(),
    };
    let without = simulation::run(seed, None, false).violations;
    assert_eq!(without, [], "seed {seed} violates this without any mutant, so it proves nothing of {mutant}");
    Some(invariant)
}

/// Dice and enumerated crash points by turns.
fn hunt(mutant: &'static str) -> Option<(String, u64, u64)> {
    let seeds = (0..SEEDS).map(|n| if n % 2 == 0 { ENUMERATED as u64 + n / 2 } else { n / 2 });
    seeds.zip(1..).find_map(|(seed, tried)| Some((notices(mutant, seed)?, seed, tried)))
}

fn find(line: &'static str) -> Option<(String, u64, u64)> {
    let mut words = line.split_whitespace();
    let (mutant, known) = (words.next()?, words.next().and_then(|seed| seed.parse().ok()));
    known.and_then(|seed| Some((notices(mutant, seed)?, seed, 0))).or_else(|| hunt(mutant))
}

/// What the explorer finds with this mutant. It has to run on this thread, where the mutant is switched on.
fn explored(mutant: &'static str, throttles: bool) -> Option<String> {
    let limits = Limits { depth: u32::MAX, states: STATES, threads: 1 };
    let report = sabotage::with(mutant, || explore_those(limits, |name| name.starts_with("a throttle") == throttles));
    let found = report.counterexample?;
    Some(format!(" {} {} {}", found.invariant, found.length, report.states))
}

fn main() {
    let lines: Vec<&'static str> = io::stdin().lock().lines().map(|line| &*line.unwrap().leak()).collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(line) = lines.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mutant = line.split_whitespace().next().unwrap_or_default();
                    let is_explored = |word: &str| line.split_whitespace().skip(1).any(|other| other == word);
                    let by_states = match (is_explored("chains"), is_explored("throttles")) {
                        (false, false) => Some(String::new()),
                        (_, throttles) => explored(mutant, throttles),
                    };
                    let by_seed = if line.ends_with(" only") { None } else { Some(find(line)) };
                    match (by_seed, by_states) {
                        (Some(Some((invariant, seed, tried))), Some(by_states)) => {
                            println!("{mutant} {invariant} {seed} {tried}{by_states}");
                        }
                        (None, Some(by_states)) => {
                            let invariant = by_states.split_whitespace().next().unwrap_or_default();
                            println!("{mutant} {invariant} - 0{by_states}");
                        }
                        _ => println!("{mutant}"),
                    }
                }
            });
        }
    });
}
