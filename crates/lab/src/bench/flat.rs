//! How flat a fleet's starts are: the busiest second divided by the mean (peak to mean), in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use roundelay_config::Config;
use roundelay_engine::StartError;
use roundelay_model::clock::{Time, short_duration};
use roundelay_simulation::forecast;
use roundelay_simulation::forecast::Plan;
use roundelay_simulation::forecast::population::Population;
use serde::Serialize;
use tokio::time::Instant;

use super::chains::{KIND, QUEUE};
use super::{ground, round};

/// The beginning of virtual time; any time will do.
const FROM: Time = Time::from_millis(1_800_000_000_000);
/// When the outage begins and ends, in intervals of the chains. It is longer than one, so that all are overdue at its
/// end.
const OUTAGE: std::ops::Range<u32> = 3..5;

/// The settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Chains of the fleet.
    pub chains: u64,
    /// The interval of the chains.
    pub every: Duration,
    /// The jitter of the interval, to either side.
    pub jitter: Duration,
    /// How long the chains run before the measurement begins, after the intervals in which the outage lies.
    pub settle: Duration,
    /// How long is measured, in virtual time.
    pub length: Duration,
    /// How many workers share the chains.
    pub workers: usize,
    /// The seed of all random choices.
    pub seed: u64,
}

/// The figures of one scenario.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Report {
    /// How the chains began, or which fault they had.
    pub scenario: &'static str,
    /// Starts that were measured.
    pub starts: u64,
    /// Starts per second of virtual time, on average.
    pub mean: f64,
    /// Starts in the busiest second.
    pub peak: u64,
    /// `peak` divided by the mean before it was rounded.
    pub peak_to_mean: f64,
    /// Starts per second of real time, including those before the measurement: the speed of the simulation.
    pub starts_per_real_s: f64,
}

/// Measures fleets that begin spread out, that begin all at once, and whose workers were away; reports its progress to
/// `note`.
///
/// # Errors
/// When the engine does not start on such a configuration.
pub fn run(settings: &Settings, note: impl Fn(&str)) -> Result<Vec<Report>, StartError> {
    let Settings { every, .. } = *settings;
    let away = every * OUTAGE.start..every * OUTAGE.end;
    // `None`: over the interval of the chains.
    let scenarios = [
        ("spread over the interval", None, Vec::new()),
        ("all at once", Some(Duration::ZERO), Vec::new()),
        ("spread, and then no worker for two intervals", None, vec![away]),
    ];
    let mut reports = Vec::new();
    for (scenario, spread, outages) in scenarios {
        note(&format!("{} chains, {scenario}", settings.chains));
        let plan = plan(settings, spread, outages)?;
        let (length, begin) = (plan.length, Instant::now());
        let report = forecast::run(plan, |_| true)?;
        let seconds = begin.elapsed().as_secs_f64();
        let (series, _) = &report.series;
        let measured = |columns: &[u64]| columns[first_column(series.width, length, settings.length)..].to_vec();
        let (starts, peaks) = (measured(&series.starts), measured(&series.peaks));
        let (sum, peak) = (starts.iter().sum::<u64>(), peaks.into_iter().max().unwrap_or_default());
        let mean = sum as f64 / (starts.len() as f64 * series.width.as_secs_f64()).max(1.0);
        reports.push(Report {
            scenario,
            starts: sum,
            mean: round(mean),
            peak,
            peak_to_mean: (peak as f64 / mean.max(0.001) * 1_000.0).round() / 1_000.0,
            starts_per_real_s: (report.starts() as f64 / seconds.max(0.001)).round(),
        });
    }
    Ok(reports)
}

/// The first column that lies within the `last` part of `whole`; each column is `width` long.
fn first_column(width: Duration, whole: Duration, last: Duration) -> usize {
    (whole.saturating_sub(last)).as_millis().div_ceil(width.as_millis().max(1)) as usize
}

fn plan(
    settings: &Settings,
    spread: Option<Duration>,
    outages: Vec<std::ops::Range<Duration>>,
) -> Result<Plan, StartError> {
    let config = config(settings)?;
    let population = Population::counted(&config, KIND, settings.chains).map_err(StartError::Setup)?;
    Ok(Plan {
        config,
        populations: BTreeMap::from([(KIND.to_owned(), population)]),
        from: FROM,
        length: settings.every * OUTAGE.end + settings.settle + settings.length,
        seed: settings.seed,
        workers: settings.workers.max(1),
        spread,
        outages,
        broker_outages: Vec::new(),
        assumed: Vec::new(),
    })
}

fn config(settings: &Settings) -> Result<Config, StartError> {
    // So many that no start waits for the queue, up to what one worker can hold.
    let concurrency = settings.chains.clamp(1, 4_096);
    let jitter = match settings.jitter {
        Duration::ZERO => String::new(),
        jitter => format!("jitter = \"{}\"\n", short_duration(jitter)),
    };
    let rest = format!(
        "[queues.{QUEUE}]\nconcurrency = {concurrency}\nprefetch = {concurrency}\n\
         [kinds.{KIND}]\nqueue = \"{QUEUE}\"\nevery = \"{}\"\n{jitter}",
        short_duration(settings.every),
    );
    ground::config("embedded", "sqlite://:memory:", &rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_part_is_measured() {
        let s = Duration::from_secs;
        let table = [((1, 600, 60), 540), ((3, 600, 60), 180), ((7, 600, 60), 78), ((1, 60, 60), 0)];
        for ((width, whole, last), column) in table {
            assert_eq!(first_column(s(width), s(whole), s(last)), column, "{width} {whole} {last}");
        }
    }
}
