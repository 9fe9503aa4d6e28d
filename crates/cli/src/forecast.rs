//! `roundelay simulate --config FILE`

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Error, anyhow, ensure};
use clap::Args;
use nix::sys::resource::{UsageWho, getrusage};
use roundelay_config::{Config, Format, KindSettings};
use roundelay_engine::roster::{Shape, rows};
use roundelay_model::clock::{Clock, Time, parse_duration};
use roundelay_simulation::forecast;
use roundelay_simulation::forecast::population::Population;
use roundelay_simulation::forecast::{Plan, Report, svg, text};
use tokio::time::Instant;

use super::grouped;
use super::progress::bar;
use super::screen::{self, Tint};

/// The longest time that can be simulated.
const MAX_LENGTH: Duration = Duration::from_secs(10 * 366 * 86_400);
/// How many chains a kind has by default.
const DEFAULT_CHAINS: u64 = 1;

#[derive(Args)]
#[command(next_help_heading = "What a configuration will do")]
pub struct Forecast {
    /// Simulate this configuration, with modelled handlers ([kinds.….model]) in place of its own. The simulation
    /// connects to nothing.
    #[arg(long, value_name = "FILE", group = "subject", conflicts_with_all = ["faults", "seeds", "only", "log", "threads"])]
    config: Option<PathBuf>,
    /// How much virtual time passes.
    #[arg(long = "for", value_name = "DURATION", default_value = "24h", value_parser = parse_duration, requires = "subject")]
    pub length: Duration,
    /// The start of the virtual time: RFC 3339 in UTC, or a date [default: the next midnight, UTC]
    #[arg(long, value_name = "TIMESTAMP", value_parser = timestamp, requires = "config")]
    from: Option<Time>,
    /// How many chains a kind has, in place of its model's `chains`. May be given for several kinds.
    #[arg(long, value_name = "KIND=N", value_parser = pair::<u64>, requires = "config")]
    chains: Vec<(String, u64)>,
    /// Take a kind's chains from a roster, CSV or NDJSON. May be given for several kinds.
    #[arg(long, value_name = "KIND=FILE", value_parser = pair::<PathBuf>, requires = "config")]
    roster: Vec<(String, PathBuf)>,
    /// How many workers there are.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_000), requires = "subject")]
    pub workers: u16,
    /// Spread the first ticks over this long, in place of each kind's interval; with 0s all are due at once.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, requires = "config")]
    spread: Option<Duration>,
    /// Kill all workers, and start them again: from and to, counted from the beginning, as in 1h..1h5m. May be given
    /// several times.
    #[arg(long, value_name = "FROM..TO", value_parser = span, requires = "config")]
    outage: Vec<Range<Duration>>,
    /// Make the broker unavailable, with its messages kept: from and to, counted from the beginning, as in 1h..1h5m.
    /// May be given several times.
    #[arg(long, value_name = "FROM..TO", value_parser = span, requires = "config")]
    broker_outage: Vec<Range<Duration>>,
    /// Run all once more with one fixed interval in place of what `fresh` learns, with as many calls, and show both.
    #[arg(long, value_name = "WITH", requires = "config")]
    compare: Option<Comparison>,
    /// Write starts over time as a picture.
    #[arg(long, value_name = "FILE", requires = "config")]
    svg: Option<PathBuf>,
}

/// With what a simulation is compared.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Comparison {
    /// One interval for all chains that share a budget.
    Uniform,
}

impl Forecast {
    /// Whether the command line asks for a forecast.
    pub fn is_wanted(&self) -> bool {
        self.config.is_some()
    }

    pub fn run(self, seed: u64, json: bool) -> anyhow::Result<()> {
        let path = self.config.clone().unwrap_or_default();
        let plan = self.plan(Config::load(&path)?, &path, seed)?;
        let (length, begun) = (plan.length, Instant::now());
        let uniform = match self.compare {
            None => None,
            Some(Comparison::Uniform) => Some(plan.uniform().with_context(|| {
                format!(
                    "{}: no kind has both `fresh` and `model.change`, so there is nothing to compare",
                    path.display()
                )
            })?),
        };
        let rounds = 1 + u64::from(uniform.is_some());
        let progress = bar(rounds * length.as_secs(), "{bar:40} {percent}% simulated, {eta} left");
        let simulated = |plan: Plan, before: u64| {
            forecast::run(plan, |at| {
                progress.set_position(before + at.as_secs());
                true
            })
        };
        let mut report = simulated(plan, 0)?;
        if let Some(uniform) = uniform {
            report.compare(&simulated(uniform, length.as_secs())?);
        }
        progress.finish_and_clear();
        if let Some(file) = &self.svg {
            std::fs::write(file, svg::svg(&report))
                .with_context(|| format!("failed to write the picture {}", file.display()))?;
        }
        if json {
            screen::json(&report)?;
        } else {
            show(&report);
        }
        // Not on standard output, which is the same for every run of the same simulation.
        let (took, starts) = (begun.elapsed().as_secs_f64(), report.starts());
        eprintln!(
            "took {took:.1} s, {} starts/s; peak memory {} MiB",
            grouped((starts as f64 / took.max(0.001)) as u64),
            grouped(getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.max_rss()) / 1024)
        );
        Ok(())
    }

    fn plan(&self, config: Config, path: &Path, seed: u64) -> anyhow::Result<Plan> {
        let file = path.display();
        ensure!(!config.queues.is_empty(), "{file}: there are no [queues.…], so there is nothing to simulate");
        ensure!(
            !self.length.is_zero() && self.length <= MAX_LENGTH,
            "--for is more than nothing, and at most ten years"
        );
        let mut assumed = Vec::new();
        let mut populations = BTreeMap::new();
        let asked = self.chains.iter().map(|(kind, _)| kind).chain(self.roster.iter().map(|(kind, _)| kind));
        for kind in asked {
            config.kind(kind).map_err(|error| anyhow!("{file}: {error}"))?;
        }
        for (name, kind) in &config.kinds {
            if let Some(population) = self.population(&config, name, kind, &mut assumed)? {
                populations.insert(name.clone(), population);
            }
        }
        ensure!(!populations.is_empty(), "{file}: no kind has chains, so there is nothing to simulate");
        Ok(Plan {
            config,
            populations,
            from: self.from.unwrap_or_else(next_midnight),
            length: self.length,
            seed,
            workers: self.workers.into(),
            spread: self.spread,
            outages: self.outage.clone(),
            broker_outages: self.broker_outage.clone(),
            assumed,
        })
    }

    /// The chains of a kind, if it can have any.
    fn population(
        &self,
        config: &Config,
        name: &str,
        kind: &KindSettings,
        assumed: &mut Vec<String>,
    ) -> anyhow::Result<Option<Population>> {
        let of_kind = |(found, _): &&(String, u64)| found == name;
        let asked = self.chains.iter().rev().find(of_kind).map(|(_, chains)| *chains);
        if let Some((_, roster)) = self.roster.iter().rev().find(|(found, _)| found == name) {
            ensure!(asked.is_none(), "{name}: --chains and --roster both say which chains there are; give one");
            let entities = read_roster(config, name, kind, roster, assumed)?;
            return Population::listed(config, name, entities).map(Some).map_err(Error::msg);
        }
        let known = asked.or(kind.model.chains);
        if kind.recurrence.is_none() {
            ensure!(
                known.is_none(),
                "kinds.{name} has none of `every`, `cron` and `at`, so it has no chains to simulate"
            );
            assumed.push(format!("{name}: it has no chains, only jobs that somebody publishes; these are left out"));
            return Ok(None);
        }
        let chains = known.unwrap_or_else(|| {
            assumed.push(format!(
                "{name}: one chain is assumed, since nothing says how many there are; set kinds.{name}.model.chains, or \
                 give --chains {name}=N or --roster {name}=FILE"
            ));
            DEFAULT_CHAINS
        });
        let population = Population::counted(config, name, chains).map_err(Error::msg)?;
        for part in population.assumed_keys() {
            assumed.push(format!(
                "{name}: each chain is taken to have a {part} of its own, with a limit of its own; --roster {name}=FILE has \
                 the real ones"
            ));
        }
        let queues = population.by_queue().len();
        if queues > 1 {
            assumed.push(format!(
                "{name}: its chains are dealt out evenly to {queues} queues; --roster {name}=FILE puts each where it is"
            ));
        }
        Ok(Some(population))
    }
}

fn read_roster(
    config: &Config,
    name: &str,
    kind: &KindSettings,
    path: &Path,
    assumed: &mut Vec<String>,
) -> anyhow::Result<Vec<roundelay_engine::enroll::Entity>> {
    let shape = Shape::new(config, kind).map_err(|error| anyhow!("kinds.{name}: {error}"))?;
    let format = Format::of(path).map_err(Error::msg)?;
    let file = File::open(path).with_context(|| format!("failed to read the roster {}", path.display()))?;
    let (mut entities, mut bad, mut first) = (Vec::new(), 0_u64, None);
    for row in rows(format, file).map_err(|error| anyhow!("{}: {error}", path.display()))? {
        let entity = row.map_err(|bad| (bad.line, bad.reason)).and_then(|(line, row)| {
            let mut entity = shape.entity(row).map_err(|reason| (line, reason))?;
            // A modelled handler does not read the payload, but a throttle with keys does, and a template for weights.
            let throttle = config.queues.get(&entity.queue).and_then(|queue| queue.throttle.as_ref());
            if throttle
                .and_then(|throttle| config.throttles.get(throttle))
                .is_none_or(|throttle| throttle.key.is_none())
                && kind.fresh().is_none_or(|fresh| fresh.weight.is_none())
            {
                entity.payload = "null".into();
            }
            Ok(entity)
        });
        match entity {
            Ok(entity) => entities.push(entity),
            Err(wrong) => {
                bad += 1;
                first.get_or_insert(wrong);
            }
        }
    }
    if let Some((line, reason)) = first {
        let (rows, path) = (grouped(bad), path.display());
        assumed.push(format!("{name}: {rows} rows of {path} are left out; the first is line {line}: {reason}"));
    }
    Ok(entities)
}

fn show(report: &Report) {
    text::report(report).lines().for_each(|line| out!("{line}"));
    report.warnings.iter().for_each(|warning| screen::tinted(Tint::Notable, format_args!("! {warning}")));
}

/// The next midnight, UTC.
fn next_midnight() -> Time {
    const DAY: i64 = 86_400_000;
    Time::from_millis((Clock::System.now().as_millis().div_euclid(DAY) + 1) * DAY)
}

/// `2026-03-29T00:00:00Z`, or a date alone for its midnight.
fn timestamp(text: &str) -> Result<Time, String> {
    let parsed = humantime::parse_rfc3339_weak(text)
        .or_else(|error| humantime::parse_rfc3339_weak(&format!("{text}T00:00:00Z")).map_err(|_| error));
    let at = parsed.map_err(|error| {
        format!("{error}; write a time in UTC such as 2026-03-29T00:00:00Z, or a date such as 2026-03-29")
    })?;
    let since = at.duration_since(UNIX_EPOCH).map_err(|_| "it is before 1970".to_owned())?;
    i64::try_from(since.as_millis()).map(Time::from_millis).map_err(|_| "it is too late".into())
}

/// `KIND=VALUE`
fn pair<T: std::str::FromStr>(text: &str) -> Result<(String, T), String>
where
    T::Err: std::fmt::Display,
{
    let (kind, value) =
        text.split_once('=').ok_or_else(|| "write KIND=…, with a kind of the configuration".to_owned())?;
    Ok((kind.to_owned(), value.parse().map_err(|error: T::Err| format!("`{value}`: {error}"))?))
}

/// `FROM..TO`
fn span(text: &str) -> Result<Range<Duration>, String> {
    let (from, to) = text.split_once("..").ok_or_else(|| "write FROM..TO, as in 1h..1h5m".to_owned())?;
    let (from, to) = (parse_duration(from)?, parse_duration(to)?);
    if from < to { Ok(from..to) } else { Err("the end is not after the beginning".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_and_spans_read_as_people_write_them() {
        let midnight = timestamp("2026-03-29T00:00:00Z").unwrap();
        assert_eq!(midnight.to_string(), "2026-03-29T00:00:00.000Z");
        assert_eq!(timestamp("2026-03-29").unwrap(), midnight);
        assert_eq!(timestamp("2026-03-29T00:00:00.5Z").unwrap().since(midnight), Duration::from_millis(500));
        assert!(timestamp("tomorrow").unwrap_err().contains("such as 2026-03-29"));
        assert_eq!(span("1h..1h5m").unwrap(), Duration::from_secs(3_600)..Duration::from_secs(3_900));
        assert!(span("1h").is_err() && span("2h..1h").is_err());
        assert_eq!(pair::<u64>("sync=5").unwrap(), ("sync".into(), 5));
        assert!(pair::<u64>("5").is_err() && pair::<u64>("sync=many").is_err());
        assert_eq!(next_midnight().as_millis() % 86_400_000, 0);
    }
}
