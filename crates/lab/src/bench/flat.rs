//! How flat a fleet's starts are: the busiest second beside the mean, in virtual time.

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

/// Any beginning will do.
const FROM: Time = Time::from_millis(1_800_000_000_000);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many chains.
    pub chains: u64,
    /// Their interval.
    pub every: Duration,
    /// Its jitter, to either side.
    pub jitter: Duration,
    /// How long they run before it is measured.
    pub settle: Duration,
    /// How long is measured.
    pub length: Duration,
    /// Workers that share them.
    pub workers: usize,
    /// Decides all dice.
    pub seed: u64,
}

/// One beginning.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Report {
    /// How the chains began, or what befell them.
    pub begun: &'static str,
    /// Starts that were measured.
    pub starts: u64,
    /// In a second, in the mean.
    pub mean: f64,
    /// In the busiest second.
    pub peak: u64,
    /// The second by the first.
    pub peak_to_mean: f64,
    /// Starts per second of real time, the ones before the measurement included: how fast virtual time goes.
    pub virtual_starts_per_s: f64,
}

/// Measures fleets that begin spread out, that begin all at once, and whose workers were away, telling `note`
/// what is going on.
///
/// # Errors
/// When the engine does not start on such a configuration.
pub fn run(settings: &Settings, note: impl Fn(&str)) -> Result<Vec<Report>, StartError> {
    let Settings { every, .. } = *settings;
    // Longer than an interval, so that all are overdue when the workers are back.
    let away = every * 3..every * 5;
    let beginnings = [
        ("spread over the interval", None, Vec::new()),
        ("all at once", Some(Duration::ZERO), Vec::new()),
        ("spread, and then no worker for two intervals", None, vec![away]),
    ];
    let mut reports = Vec::new();
    for (begun, spread, outages) in beginnings {
        note(&format!("{} chains, {begun}", settings.chains));
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
            begun,
            starts: sum,
            mean: round(mean),
            peak,
            peak_to_mean: (peak as f64 / mean.max(0.001) * 1_000.0).round() / 1_000.0,
            virtual_starts_per_s: (report.starts() as f64 / seconds.max(0.001)).round(),
        });
    }
    Ok(reports)
}

/// The first of the columns of a whole length that lies within its last part.
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
        length: settings.every * 5 + settings.settle + settings.length,
        seed: settings.seed,
        workers: settings.workers.max(1),
        spread,
        outages,
        broker_outages: Vec::new(),
        assumed: Vec::new(),
    })
}

fn config(settings: &Settings) -> Result<Config, StartError> {
    // As many as are there would be in work, if they all came at once.
    let room = settings.chains.clamp(1, 4_096);
    let jitter = match settings.jitter {
        Duration::ZERO => String::new(),
        jitter => format!("jitter = \"{}\"\n", short_duration(jitter)),
    };
    let rest = format!(
        "[queues.{QUEUE}]\nconcurrency = {room}\nprefetch = {room}\n\
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
