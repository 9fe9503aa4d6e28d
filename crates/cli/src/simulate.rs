//! `roundelay simulate`

use std::time::Duration;

use anyhow::{bail, ensure};
use clap::Args;
use roundelay_model::clock::parse_duration;
use roundelay_simulation as simulation;
use roundelay_simulation::{Failure, explore, plan_of, throttle};
use serde_json::json;

use super::forecast::Forecast;
use super::progress::{bar, waiting};
use super::{grouped, screen};

/// Runs the real engine in virtual time: on your configuration, or with faults.
///
/// With --config FILE it forecasts what that configuration does to its upstream before it is deployed: how many runs of
/// each kind start, how late, how old data gets, how evenly it is all spread, and whether it can keep up. Handlers are
/// modelled, as [kinds.….model] says.
///
/// With --throttle N/DURATION it checks whether workers that share a limit ever start too much, and how much of it they
/// use, over days in which workers die and freeze, the ledger is unavailable and its clock jumps.
///
/// With --faults it looks for a way to break the engine. Each seed is one run: three workers, a broker and a ledger in
/// memory, a time of faults in which workers are killed between any two steps, frozen and cut off, messages get lost,
/// doubled and reordered, confirmations of publishes and commits get lost, broker and ledger are unavailable, clocks
/// jump and operators give orders; and a calm time in which everything must come to rest. The first seeds kill a worker
/// at every labelled point, singly and then in pairs. A violation is reported with the seed, its plan, the smallest
/// plan that is enough for it, and the command that runs it again.
///
/// With --explore it goes through all states that two workers can come to with a few chains, or with a throttle, and with
/// a few faults, one after the other, and without dice. A violation is reported with the shortest way to it.
#[derive(Args)]
pub struct Simulate {
    /// Inject faults. Without it, only random choices and latencies differ from seed to seed.
    #[arg(long)]
    faults: bool,
    /// How many seeds to run; 100 unless --seed is given.
    #[arg(long)]
    seeds: Option<u64>,
    /// The first seed; alone, the only one.
    #[arg(long)]
    seed: Option<u64>,
    /// Only inject the faults with these numbers, of one seed.
    #[arg(long, value_name = "N,N…", value_delimiter = ',', requires = "seed", conflicts_with = "seeds")]
    only: Option<Vec<usize>>,
    /// Print every event; for one seed.
    #[arg(long, requires = "seed", conflicts_with = "seeds")]
    log: bool,
    /// How many threads run seeds.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
    /// Go through all states within a bound of faults.
    #[arg(long, group = "subject", conflicts_with_all = ["faults", "seeds", "seed", "only", "log"])]
    explore: bool,
    /// With --explore: how many moves a state may be away from the start.
    #[arg(long, value_name = "N", requires = "explore")]
    depth: Option<u32>,
    /// With --explore: after so many states of an exploration it begins no further move; default 1,500,000.
    #[arg(long, value_name = "N", requires = "explore")]
    states: Option<u64>,
    /// Let workers share this throttle, for days, with faults: how many starts, and in what time.
    #[arg(long, value_name = "N/DURATION", value_parser = window, group = "subject", conflicts_with_all = ["faults", "seeds", "only", "log", "threads"])]
    throttle: Option<(u32, Duration)>,
    #[command(flatten)]
    forecast: Forecast,
}

impl Simulate {
    pub fn run(self) -> anyhow::Result<()> {
        if let Some((allow, per)) = self.throttle {
            return self.paced(allow, per);
        }
        if self.explore {
            return self.explored();
        }
        if self.forecast.is_wanted() {
            return self.forecast.run(self.seed.unwrap_or(0), self.json);
        }
        ensure!(
            self.faults || self.seed.is_some() || !self.json,
            "without --faults, --seed, --throttle or --config FILE there is nothing to count; say one of them"
        );
        if let Some(seed) = self.seed.filter(|_| self.only.is_some() || self.log || !self.faults) {
            return self.one(seed);
        }
        let seeds = self.seeds.unwrap_or(if self.seed.is_some() { 1 } else { 100 });
        let progress = bar(seeds, "{bar:40} {pos}/{len} seeds, {eta} left");
        let threads = self.threads();
        let failed = |failure: &Failure| progress.suspend(|| eprintln!("{}", words(failure)));
        let report = simulation::campaign(self.seed.unwrap_or(0), seeds, threads, failed, || progress.inc(1));
        progress.finish_and_clear();
        if self.json {
            screen::json(&report)?;
        } else {
            out!(
                "{} seeds, {} with violations; {} ticks, {} faults, {} of {} crash points, {} of {} blows at them, {:.3} years",
                report.seeds,
                report.violations,
                report.ticks,
                report.faults,
                report.crash_points_hit,
                report.crash_points_total,
                report.blows_hit,
                report.blows_total,
                report.simulated_years
            );
        }
        if report.violations > 0 {
            bail!("{} of {} seeds violated an invariant", report.violations, report.seeds);
        }
        Ok(())
    }

    fn threads(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Goes through all states.
    fn explored(&self) -> anyhow::Result<()> {
        let (depth, states) = (self.depth.unwrap_or(u32::MAX), self.states.unwrap_or(1_500_000));
        let waits = waiting("exploring states");
        let report = explore::explore(explore::Limits { depth, states, threads: self.threads() });
        drop(waits);
        if self.json {
            screen::json(&report)?;
        } else {
            for of in &report.explorations {
                let end = if of.complete { "all of them" } else { "no further" };
                out!("{}", of.bound);
                out!(
                    "  {} states up to {} moves away, {end}; {} moves; from {} a fair run comes to every claim and grant; {:.1} s, {} states/s",
                    of.states,
                    of.depth,
                    of.moves,
                    of.checked_for_liveness,
                    of.seconds,
                    of.states_per_second
                );
            }
            out!("{} states, {} moves, {:.1} s", report.states, report.moves, report.seconds);
        }
        let Some(found) = &report.counterexample else { return Ok(()) };
        if !self.json {
            found.story.iter().for_each(|line| out!("{line}"));
        }
        bail!("{} is violated after {} moves: {}", found.invariant, found.length, found.what)
    }

    /// Simulates a throttle over days.
    fn paced(&self, allow: u32, per: Duration) -> anyhow::Result<()> {
        let workers = usize::from(self.forecast.workers);
        let (length, seed) = (self.forecast.length, self.seed.unwrap_or(0));
        let waits = waiting(&format!("simulating {} starts of a throttle and more", grouped(allow)));
        let report = throttle::run(&throttle::Settings { allow, per, workers, length, seed })?;
        drop(waits);
        if self.json {
            screen::json(&report)?;
        } else {
            let used = report.use_percent.map_or("unknown".into(), |used| format!("{used} %"));
            out!(
                "{} starts by {workers} worker{} in {} days, {} faults: most in a window {}, over {}, refused by workers' own gates {}; use {used} of {} windows without a fault; seed {seed}",
                report.starts,
                if workers == 1 { "" } else { "s" },
                report.days,
                report.faults,
                report.most,
                report.over,
                report.refused,
                report.calm_windows
            );
            report.violations.iter().for_each(|violation| out!("{violation}"));
        }
        let sound = report.over == 0 && report.refused == 0 && report.violations.is_empty();
        ensure!(sound, "seed {seed} violated an invariant");
        Ok(())
    }

    /// Runs one seed, whole or in part, and prints it in full.
    fn one(&self, seed: u64) -> anyhow::Result<()> {
        let none = Vec::new();
        let only = if self.faults { self.only.as_ref() } else { Some(&none) };
        let outcomes = simulation::run(seed, only.map(Vec::as_slice), self.log);
        if self.json {
            let violations: Vec<String> = outcomes.violations.iter().map(ToString::to_string).collect();
            screen::json(&json!({
                "seed": seed, "ticks": outcomes.ticks, "faults": outcomes.faults,
                "trace": format!("{:016x}", outcomes.trace), "violations": violations, "log": outcomes.log,
            }))?;
            ensure!(outcomes.violations.is_empty(), "seed {seed} violated an invariant");
            return Ok(());
        }
        outcomes.log.iter().for_each(|line| out!("{line}"));
        out!("{} ticks, {} faults, trace {:016x}", outcomes.ticks, outcomes.faults, outcomes.trace);
        for violation in &outcomes.violations {
            out!("{violation}");
        }
        ensure!(outcomes.violations.is_empty(), "seed {seed} violated an invariant");
        Ok(())
    }
}

/// Reads `5/1m`.
fn window(text: &str) -> Result<(u32, Duration), String> {
    let wanted = || format!("`{text}` is no limit; write it as 5/1m");
    let (allow, per) = text.split_once('/').ok_or_else(wanted)?;
    let (allow, per) = (allow.parse().map_err(|_| wanted())?, parse_duration(per).map_err(|_| wanted())?);
    if allow == 0 || per < Duration::from_millis(1) { Err(wanted()) } else { Ok((allow, per)) }
}

fn words(failure: &Failure) -> String {
    let mut text = format!("seed {} violated an invariant:\n", failure.seed);
    for violation in failure.violations.iter().take(3) {
        text += &format!("  {violation}\n");
    }
    if failure.violations.len() > 3 {
        text += &format!("  and {} more\n", failure.violations.len() - 3);
    }
    text += "its plan (those marked are enough for it):\n";
    for (n, planned) in plan_of(failure.seed).faults.iter().enumerate() {
        let mark = if failure.smallest.contains(&n) { '*' } else { ' ' };
        text += &format!("  {mark} {n:>2}  {planned}\n");
    }
    let numbers: Vec<String> = failure.smallest.iter().map(ToString::to_string).collect();
    let only = if numbers.is_empty() { String::new() } else { format!(" --only {}", numbers.join(",")) };
    text + &format!("again: roundelay simulate --faults --seed {}{only} --log\n", failure.seed)
}
