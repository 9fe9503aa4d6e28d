//! What a modelled handler does: dice.

use std::time::Duration;

use roundelay_config::{ModelSettings, SlowSpell};
use roundelay_model::clock::Entropy;

/// The standard normal distribution's 99th percentile.
const Z99: f64 = 2.326_347_874_040_841;

/// The distribution of a kind's runs.
pub(super) struct Model {
    settings: ModelSettings,
    /// Of the length's logarithm. Zero: all runs take equally long.
    sigma: f64,
}

impl Model {
    pub fn new(settings: &ModelSettings) -> Self {
        let (p50, p99) = (settings.p50.as_secs_f64(), settings.p99.as_secs_f64());
        let sigma = if p99 > p50 { (p99 / p50).ln() / Z99 } else { 0.0 };
        Self { settings: settings.clone(), sigma }
    }

    /// A run that begins at `at`, counted from the start of the simulation: how long it takes, in whole
    /// milliseconds, and whether it fails.
    pub fn roll(&self, at: Duration, dice: &Entropy) -> (Duration, bool) {
        let spell = self.settings.slow.iter().find(|spell| spell.from <= at && at < spell.to);
        let factor = spell.map_or(1.0, |spell| spell.factor);
        // A length that is always the same costs no dice.
        let exponent = if self.sigma == 0.0 { 0.0 } else { self.sigma * normal(dice) };
        let seconds = self.settings.p50.as_secs_f64() * factor * exponent.exp();
        let length = Duration::from_millis((seconds * 1_000.0).round() as u64);
        let share = spell.and_then(|spell: &SlowSpell| spell.fail).unwrap_or(self.settings.fail);
        (length, share > 0.0 && dice.unit() < share)
    }

    /// The mean length of a run, outside of spells, if none takes longer than `timeout`.
    pub fn mean(&self, timeout: Duration) -> Duration {
        let mean = self.settings.p50.as_secs_f64() * (self.sigma * self.sigma / 2.0).exp();
        Duration::from_secs_f64(mean).min(timeout)
    }

    /// The share of runs that take longer than `timeout`, outside of spells.
    pub fn beyond(&self, timeout: Duration) -> f64 {
        if self.sigma == 0.0 {
            return if self.settings.p50 >= timeout { 1.0 } else { 0.0 };
        }
        1.0 - cumulated((timeout.as_secs_f64() / self.settings.p50.as_secs_f64()).ln() / self.sigma)
    }

    /// The share of attempts that fail, by themselves or for their length.
    pub fn failing(&self, timeout: Duration) -> f64 {
        1.0 - (1.0 - self.settings.fail) * (1.0 - self.beyond(timeout))
    }
}

/// A number of the standard normal distribution (Box and Muller).
pub(super) fn normal(dice: &Entropy) -> f64 {
    // One minus, since the logarithm of zero is none.
    (-2.0 * (1.0 - dice.unit()).ln()).sqrt() * (std::f64::consts::TAU * dice.unit()).cos()
}

/// The standard normal distribution, to seven digits (Abramowitz and Stegun, 26.2.17).
fn cumulated(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let factors = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let sum = factors.iter().rev().fold(0.0, |sum, factor| (sum + factor) * t);
    let tail = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt() * sum;
    if x >= 0.0 { 1.0 - tail } else { tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(p50: u64, p99: u64) -> ModelSettings {
        let ms = Duration::from_millis;
        let spell = SlowSpell { from: ms(1_000), to: ms(2_000), factor: 10.0, fail: Some(1.0) };
        ModelSettings {
            chains: None,
            p50: ms(p50),
            p99: ms(p99),
            fail: 0.0,
            slow: vec![spell],
            change: None,
            zipf: false,
            owners: Vec::new(),
        }
    }

    #[test]
    fn lengths_have_the_quantiles_that_were_asked_for() {
        let (model, dice) = (Model::new(&settings(200, 2_000)), Entropy::seeded(1));
        let mut lengths: Vec<u128> = (0..20_000).map(|_| model.roll(Duration::ZERO, &dice).0.as_millis()).collect();
        lengths.sort_unstable();
        assert!((190..210).contains(&lengths[10_000]) && (1_800..2_200).contains(&lengths[19_800]));
        let mean = lengths.iter().sum::<u128>() as f64 / 20_000.0;
        let expected = model.mean(Duration::from_secs(60)).as_secs_f64() * 1_000.0;
        assert!((mean / expected - 1.0).abs() < 0.05, "{mean} {expected}");
        assert!((model.beyond(Duration::from_secs(2)) - 0.01).abs() < 1e-6);
        assert!((model.beyond(Duration::from_millis(200)) - 0.5).abs() < 1e-6);
    }

    #[test]
    fn a_fixed_length_costs_no_dice_and_a_spell_changes_it_within_its_bounds() {
        let (model, dice) = (Model::new(&settings(200, 200)), Entropy::seeded(1));
        let ms = Duration::from_millis;
        let table = [(0, (200, false)), (999, (200, false)), (1_000, (2_000, true)), (2_000, (200, false))];
        for (at, (length, fails)) in table {
            assert_eq!(model.roll(ms(at), &dice), (ms(length), fails), "at {at} ms");
        }
        assert_eq!(model.beyond(ms(200)), 1.0);
        assert_eq!(model.failing(ms(201)), 0.0);
    }
}
