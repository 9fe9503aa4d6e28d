//! `[kinds.<name>.model]`: what `roundelay simulate` takes a handler for. Workers do not look at it.

use std::time::Duration;

use super::raw;
use crate::fresh::calls_in;

/// Longer runs than this are no runs: the longest timeout is shorter.
const MAX_RUN: Duration = Duration::from_secs(3_600);
/// More chains than a simulation holds in memory.
const MAX_CHAINS: u64 = 100_000_000;

/// What a handler does, as far as a simulation is concerned.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSettings {
    /// How many chains the kind has; `None` when the configuration does not say.
    pub chains: Option<u64>,
    /// The median length of a run.
    pub p50: Duration,
    /// The length that one run in a hundred reaches. The lengths between are log-normal; equal to
    /// `p50`, all runs take that long.
    pub p99: Duration,
    /// The share of attempts that fail, from 0 to 1. They are retried by the kind's policy.
    pub fail: f64,
    /// When it is otherwise.
    pub slow: Vec<SlowSpell>,
    /// How often entities change; `None` when runs do not say whether theirs has.
    pub change: Option<ChangeSettings>,
    /// What entities are worth falls as in Zipf's law. Otherwise all are worth the same.
    pub zipf: bool,
    /// Whose entities are, and the share of each, up to its end: the last is 1. Empty when entities have no owners.
    pub owners: Vec<(String, f64)>,
}

/// How often entities change: each by a Poisson process with a rate of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChangeSettings {
    /// The mean time between changes, in the median over entities.
    pub every: Duration,
    /// The standard deviation of the natural logarithms of the rates.
    pub spread: f64,
    /// By what share, from 0 to 1, the rate follows the time of day.
    pub daily: f64,
}

/// A time in which the upstream is slow, or fails more.
#[derive(Clone, Debug, PartialEq)]
pub struct SlowSpell {
    /// From so long after the start of the simulation,
    pub from: Duration,
    /// until so long after it, exclusive.
    pub to: Duration,
    /// Runs that begin meanwhile take so many times as long.
    pub factor: f64,
    /// The share of them that fails; `None` for no other than usual.
    pub fail: Option<f64>,
}

/// Checks a model; what is wrong is told with the key below `model`.
pub(super) fn check(raw: raw::Model, mut wrong: impl FnMut(&str, String)) -> ModelSettings {
    let share = |share: f64| (0.0..=1.0).contains(&share);
    let (p50, p99) = (raw.duration.p50.0, raw.duration.p99.map_or(raw.duration.p50.0, |p99| p99.0));
    if p99 < p50 || p99 > MAX_RUN || (p50.is_zero() && !p99.is_zero()) {
        wrong("duration", format!("{p50:?} and {p99:?}: p50 is above zero, p99 not below it and at most an hour"));
    }
    if raw.chains.is_some_and(|chains| chains > MAX_CHAINS) {
        wrong("chains", format!("at most {MAX_CHAINS} are possible"));
    }
    if !share(raw.fail) {
        wrong("fail", format!("{} is no share; from 0.0 (never) to 1.0 (always) is possible", raw.fail));
    }
    let spell = |slow: raw::Slow| {
        let spell = SlowSpell { from: slow.from.0, to: slow.to.0, factor: slow.factor, fail: slow.fail };
        if spell.from >= spell.to {
            wrong("slow", format!("{:?} is not before {:?}", spell.from, spell.to));
        }
        if !(0.0..=100_000.0).contains(&spell.factor) {
            wrong("slow", format!("the factor {} is out of range; from 0 to 100,000 is possible", spell.factor));
        }
        if !spell.fail.is_none_or(share) {
            wrong("slow", "`fail` is a share, from 0.0 to 1.0".into());
        }
        spell
    };
    let slow = raw.slow.into_iter().map(spell).collect();
    let change = raw.change.map(|raw::Change { rate, spread, daily }| {
        let every = calls_in(&rate).map(|(count, per)| per / count);
        if every.is_none() {
            wrong("change", format!("rate: `{rate}` is no rate; write changes and a time, as in \"1/6h\""));
        }
        if !(0.0..=5.0).contains(&spread) {
            wrong("change", format!("spread: {spread} is out of range; from 0 to 5 is possible"));
        }
        if !share(daily) {
            wrong("change", format!("daily: {daily} is no share; from 0.0 to 1.0 is possible"));
        }
        ChangeSettings { every: every.unwrap_or_default(), spread, daily }
    });
    let zipf = raw.weights == raw::Weights::Zipf;
    if let Some((owner, parts)) = raw.owners.iter().find(|(_, parts)| !(parts.is_finite() && **parts > 0.0)) {
        wrong("owners", format!("{owner} has {parts} parts of the entities; a number above 0 is possible"));
    }
    let (all, mut end) = (raw.owners.values().sum::<f64>(), 0.0);
    let share = |(owner, parts): (String, f64)| {
        end += parts / all;
        (owner, end)
    };
    let owners = raw.owners.into_iter().map(share).collect();
    ModelSettings { chains: raw.chains, p50, p99, fail: raw.fail, slow, change, zipf, owners }
}
