//! Proof by simulation: the real engine, several workers of it, on the embedded broker and a ledger
//! in memory, in virtual time, with everything going wrong that can.
//!
//! Each seed is a run of its own. It decides the [`plan`] (what goes wrong and when), all latencies
//! and every die that is rolled, so the same seed always comes to the same end. A run is a storm, in
//! which faults come, and then a calm, in which everything must come to rest. An observer sees
//! every commit and every start of a handler, and compares with the invariants of
//! `docs/proof.md`.
//!
//! - [`plan`]: what goes wrong.
//! - `world`: one run. `worker`, `ledger`, `astray`: the engine's processes and what lies between them and the
//!   ledger; the broker's faults are the embedded broker's own.
//! - `observe`: what happened, and whether it may.
//! - [`spec`]: which steps a ledger may take. `replay` holds each commit against it.
//! - [`explore`]: all states within a bound, over the pure decisions.
//! - [`rare`]: states that a campaign has to come to.
//! - [`throttle`]: a throttle that workers share, over days.
//! - [`testing`]: the tests of those who embed the engine. Both stand on `ground`.
//! - [`forecast`]: no faults, but a user's configuration.
//!
//! Layer: on `engine`. A job takes the same way as in production; only time, the network and the ledger's answers are
//! ours.

mod astray;
pub mod explore;
pub mod forecast;
mod ground;
mod ledger;
mod observe;
pub mod plan;
pub mod rare;
mod replay;
pub mod spec;
pub mod testing;
pub mod throttle;
mod worker;
mod world;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use roundelay_engine::life::Point;
use serde::Serialize;

pub use observe::Violation;
use plan::{Blow, Plan};
use rare::Rare;
pub use world::Outcomes;

/// One seed in this number is run twice, to check that both runs come to the same.
const TWICE: u64 = 40;
/// Runs spent at most on making a failing plan smaller.
const SHRINKS: usize = 400;
/// Failures that are made smaller and reported whole; of further ones only the seeds.
const REPORTED: usize = 5;

/// What a campaign of many seeds came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Seeds that were run.
    pub seeds: u64,
    /// Seeds that violated an invariant.
    pub violations: u64,
    /// Ticks that ended.
    pub ticks: u64,
    /// Faults that were injected.
    pub faults: u64,
    /// Crash points at which a worker was killed.
    pub crash_points_hit: usize,
    /// Crash points that there are.
    pub crash_points_total: usize,
    /// At each crash point a worker can be killed, frozen, or cut off from broker, ledger or both. How many of these
    /// blows came about.
    pub blows_hit: usize,
    /// How many such blows there are.
    pub blows_total: usize,
    /// How much time passed in all simulations together.
    pub simulated_years: f64,
    /// Messages of one chain at the same time, at the 99.9th percentile of all looks.
    pub messages_p999: usize,
    /// The same without the seeds in which a fault itself doubles messages.
    pub messages_p999_undoubled: usize,
    /// How often each rare state was reached.
    pub rare: BTreeMap<Rare, u64>,
    /// Rare states that no seed has reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rare_missed: Vec<Rare>,
    /// Crash points at which no worker was killed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub crash_points_missed: Vec<String>,
    /// The seeds that failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed_seeds: Vec<u64>,
}

/// A seed that violated an invariant.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Which.
    pub seed: u64,
    /// Its whole plan.
    pub plan: Plan,
    /// What was violated.
    pub violations: Vec<Violation>,
    /// The numbers of the faults that are enough for it.
    pub smallest: Vec<usize>,
}

/// The plan of a seed.
pub fn plan_of(seed: u64) -> Plan {
    Plan::of(seed, world::WORKERS, world::QUEUES, world::CHAIN_COUNT)
}

/// Runs one seed with some of its faults, or all; with `log`, what happened is kept.
pub fn run(seed: u64, only: Option<&[usize]>, log: bool) -> Outcomes {
    let plan = plan_of(seed);
    let plan = only.map_or_else(|| plan.clone(), |numbers| plan.only(numbers));
    world::play(seed, &plan, log)
}

/// Finds few faults of a failing seed that still violate the same invariant: leaves out one after
/// the other, for as long as that changes something.
pub fn shrink(seed: u64, invariant: &str) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..plan_of(seed).faults.len()).collect();
    let fails = |numbers: &[usize]| run(seed, Some(numbers), false).violations.iter().any(|v| v.invariant == invariant);
    let mut spent = 0;
    loop {
        let before = kept.len();
        for n in (0..kept.len()).rev() {
            let mut fewer = kept.clone();
            fewer.remove(n);
            spent += 1;
            if spent > SHRINKS {
                return kept;
            }
            if fails(&fewer) {
                kept = fewer;
            }
        }
        if kept.len() == before {
            return kept;
        }
    }
}

/// Runs `seeds` seeds from `first` on, on `threads` threads. Each failure is told to `failed` when
/// it has been made smaller, and each seed that is done to `done`.
pub fn campaign(
    first: u64,
    seeds: u64,
    threads: usize,
    failed: impl Fn(&Failure) + Sync,
    done: impl Fn() + Sync,
) -> Report {
    let next = AtomicU64::new(first);
    let total = Mutex::new(Total::default());
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds {
                        return;
                    }
                    let mut outcomes = run(seed, None, false);
                    if seed.is_multiple_of(TWICE) && run(seed, None, false).trace != outcomes.trace {
                        outcomes.violations.push(Violation {
                            invariant: "determinism",
                            at: Duration::ZERO,
                            what: "the same seed came to two different ends".into(),
                        });
                    }
                    let known = total.lock().add(seed, &outcomes);
                    if let (Some(violation), true) = (outcomes.violations.first(), known < REPORTED) {
                        let smallest = shrink(seed, violation.invariant);
                        let plan = plan_of(seed);
                        failed(&Failure { seed, plan, violations: outcomes.violations.clone(), smallest });
                    }
                    done();
                }
            });
        }
    });
    total.into_inner().report(seeds)
}

#[derive(Default)]
struct Total {
    failed: Vec<u64>,
    ticks: u64,
    faults: u64,
    struck_at: BTreeMap<(Point, Blow), u64>,
    rare: BTreeMap<Rare, u64>,
    messages: BTreeMap<usize, u64>,
    messages_undoubled: BTreeMap<usize, u64>,
    length: Duration,
}

impl Total {
    /// Answers how many seeds had failed before.
    fn add(&mut self, seed: u64, outcomes: &Outcomes) -> usize {
        let known = self.failed.len();
        if !outcomes.violations.is_empty() {
            self.failed.push(seed);
        }
        self.ticks += outcomes.ticks;
        self.faults += outcomes.faults;
        self.length += outcomes.length;
        outcomes.struck_at.iter().for_each(|(at, n)| *self.struck_at.entry(*at).or_default() += n);
        outcomes.rare.iter().for_each(|(rare, n)| *self.rare.entry(*rare).or_default() += n);
        let doubles = plan_of(seed).doubles();
        for (count, n) in &outcomes.messages {
            *self.messages.entry(*count).or_default() += n;
            if !doubles {
                *self.messages_undoubled.entry(*count).or_default() += n;
            }
        }
        known
    }

    fn report(mut self, seeds: u64) -> Report {
        self.failed.sort_unstable();
        let missed: Vec<&Point> =
            Point::ALL.iter().filter(|point| !self.struck_at.contains_key(&(**point, Blow::Kill))).collect();
        Report {
            seeds,
            violations: self.failed.len() as u64,
            ticks: self.ticks,
            faults: self.faults,
            crash_points_hit: Point::ALL.len() - missed.len(),
            crash_points_total: Point::ALL.len(),
            blows_hit: self.struck_at.len(),
            blows_total: Point::ALL.len() * Blow::ALL.len(),
            simulated_years: self.length.as_secs_f64() / (365.25 * 86_400.0),
            messages_p999: p999(&self.messages),
            messages_p999_undoubled: p999(&self.messages_undoubled),
            rare_missed: Rare::ALL.into_iter().filter(|rare| !self.rare.contains_key(rare)).collect(),
            rare: self.rare,
            crash_points_missed: missed.iter().map(|point| format!("{point:?}")).collect(),
            failed_seeds: self.failed,
        }
    }
}

/// The 99.9th percentile of counts, each with how often it was seen. Zero if none was.
fn p999(seen: &BTreeMap<usize, u64>) -> usize {
    let mut above = seen.values().sum::<u64>() / 1_000;
    for (count, n) in seen.iter().rev() {
        match above.checked_sub(*n) {
            Some(rest) => above = rest,
            None => return *count,
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample of the campaign, in the ordinary run of the tests.
    #[test]
    fn some_seeds_violate_nothing_and_repeat_themselves() {
        let dice = plan::ENUMERATED as u64;
        for seed in [3, 77, 1_182, dice, dice + 1] {
            let outcomes = run(seed, None, false);
            assert_eq!(outcomes.violations, [], "seed {seed}; run: roundelay simulate --faults --seed {seed} --log");
            assert!(outcomes.ticks > 50 && outcomes.faults > 0, "seed {seed}: {outcomes:?}");
            assert_eq!(run(seed, None, false).trace, outcomes.trace, "seed {seed} came to another end");
        }
    }
}
