//! Chooses, within what a jitter allows, the due time at which the fewest are due.
//!
//! Times drawn by chance bunch: of 10,000 chains that tick every 60 s, some second of ten minutes
//! has about 25 % more starts than the mean. A worker knows which due times it has given out, so it
//! can do better than the dice and fill the gaps.
//!
//! Taking the emptiest moment would not do: the far end of the window is always emptier, since
//! fewer runs have ended so far from which a due time could reach it, and the mean interval would
//! grow. So what a moment holds is compared with what it should hold by now. If `λ` is how many
//! fall into a moment in the end, one at the share `x` of a window holds `λ (1 − x)` on average when
//! it comes into question, with a standard deviation of the root of that; the candidate that lies
//! lowest by this measure is taken. What the choice has added to the mean so far counts against
//! going on in that direction, which keeps the mean exact also for fleets so small that most
//! moments hold nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::{Entropy, Time};

/// How finely moments are told apart.
const MOMENT_MS: i64 = 250;
/// How much the lasting deviation from the mean counts, against one standard deviation.
const CORRECTION: f64 = 0.1;
/// How slowly a deviation is forgotten.
const MEMORY: f64 = 0.999;

/// The due times that were given out. A worker has one for each queue.
#[derive(Debug, Default)]
pub struct Balance(Mutex<Given>);

#[derive(Debug, Default)]
struct Given {
    /// How many are due in each moment to come.
    moments: BTreeMap<i64, u32>,
    /// How many fall into a moment, on average over about one window's distance.
    rate: f64,
    last: Time,
    /// The sum of the deviations from the middle of the window, in halves of it.
    drift: f64,
    /// How many places were given out.
    places: u64,
}

impl Balance {
    /// Chooses among `candidates`, delays from `now` within `low..=high`, and notes the choice.
    /// Without candidates, `low`.
    pub fn choose(
        &self,
        now: Time,
        (low, high): (Duration, Duration),
        candidates: &[Duration],
        dice: &Entropy,
    ) -> Duration {
        let width = (high.saturating_sub(low)).as_secs_f64().max(0.001);
        let place = |delay: Duration| (delay.saturating_sub(low).as_secs_f64() / width).clamp(0.0, 1.0);
        let moment = |delay: Duration| (now + delay).as_millis().div_euclid(MOMENT_MS);
        let mut given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        given.observe(now, low + high.saturating_sub(low) / 2);
        let begin = dice.below(candidates.len());
        let mut best: Option<(f64, Duration)> = None;
        for n in 0..candidates.len() {
            let candidate = candidates[(begin + n) % candidates.len()];
            let expected = given.rate * (1.0 - place(candidate));
            let held = f64::from(given.moments.get(&moment(candidate)).copied().unwrap_or_default());
            let surplus = (held - expected) / (expected.sqrt() + 0.3);
            let score = surplus + CORRECTION * given.drift * (2.0 * place(candidate) - 1.0);
            if best.is_none_or(|(least, _)| score < least) {
                best = Some((score, candidate));
            }
        }
        let Some((_, chosen)) = best else { return low };
        *given.moments.entry(moment(chosen)).or_default() += 1;
        given.drift = given.drift * MEMORY + 2.0 * place(chosen) - 1.0;
        chosen
    }
}

impl Balance {
    /// Notes a due time that was given out otherwise.
    pub fn note(&self, due: Time) {
        let mut given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *given.moments.entry(due.as_millis().div_euclid(MOMENT_MS)).or_default() += 1;
    }

    /// A place in a window for one of many that are spread over it at the same time, from 0 up to 1:
    /// steps of the golden ratio, which fill it evenly however many there are.
    pub fn place(&self) -> f64 {
        let mut given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        given.places += 1;
        (given.places as f64 * 0.618_033_988_749_894_9).fract()
    }
}

impl Given {
    /// One more due time is given out at `now`, about `distance` ahead.
    fn observe(&mut self, now: Time, distance: Duration) {
        let distance = (distance.as_millis() as f64).max(MOMENT_MS as f64);
        let since = now.since(self.last).as_millis() as f64;
        self.rate = self.rate * (-since / distance).exp() + MOMENT_MS as f64 / distance;
        self.last = self.last.max(now);
        let past = now.as_millis().div_euclid(MOMENT_MS);
        while let Some(first) = self.moments.first_entry().filter(|first| *first.key() < past) {
            first.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BinaryHeap;

    use super::*;
    use crate::ladder::jitter_rungs;

    /// Ten minutes of `chains` chains every 60 s ± 15 s after five to settle, on `workers` workers:
    /// the highest of the 1 s bins against their mean, and the mean interval.
    fn ten_minutes(chains: usize, workers: usize, choose: impl Fn(usize, Time, &Entropy) -> Duration) -> (f64, f64) {
        let dice = Entropy::seeded(7);
        let second = |secs: u64| Time::from_millis(secs as i64 * 1_000);
        let mut due: BinaryHeap<std::cmp::Reverse<(Time, usize)>> =
            (0..chains).map(|n| std::cmp::Reverse((Time::from_millis((n * 60_000 / chains) as i64), n))).collect();
        let mut bins = [0_u32; 600];
        let (mut sum, mut count) = (0.0, 0.0);
        while let Some(std::cmp::Reverse((at, chain))) = due.pop() {
            if at >= second(900) {
                break;
            }
            let now = at + Duration::from_millis(dice.below(50) as u64);
            let delay = choose(dice.below(workers), now, &dice);
            if at >= second(300) {
                bins[((at.as_millis() - 300_000) / 1_000) as usize] += 1;
                sum += delay.as_secs_f64();
                count += 1.0;
            }
            due.push(std::cmp::Reverse((now + delay, chain)));
        }
        let mean = f64::from(bins.iter().sum::<u32>()) / 600.0;
        (f64::from(*bins.iter().max().unwrap()) / mean, sum / count)
    }

    #[test]
    fn it_is_flatter_than_chance_and_keeps_the_mean() {
        let (every, jitter) = (Duration::from_secs(60), Duration::from_secs(15));
        let (rungs, window) = (jitter_rungs(every, jitter), (every - jitter, every + jitter));
        let (chance, _) = ten_minutes(10_000, 1, |_, _, dice| rungs[dice.below(rungs.len())]);
        for workers in [1, 3] {
            let balances: Vec<Balance> = (0..workers).map(|_| Balance::default()).collect();
            let choose = |worker: usize, now, dice: &Entropy| balances[worker].choose(now, window, &rungs, dice);
            let (peak, mean) = ten_minutes(10_000, workers, choose);
            assert!(peak < 1.05 && peak < chance, "{workers} workers: {peak}, by chance {chance}");
            assert!((mean - 60.0).abs() < 0.1, "{workers} workers: the mean is {mean} s");
        }
        for chains in [1, 10, 100, 1_000] {
            let balance = Balance::default();
            let (_, mean) = ten_minutes(chains, 1, |_, now, dice| balance.choose(now, window, &rungs, dice));
            assert!((mean - 60.0).abs() < 3.0, "{chains} chains: the mean is {mean} s");
        }
    }

    #[test]
    fn what_is_past_is_forgotten() {
        let (balance, dice) = (Balance::default(), Entropy::seeded(1));
        let window = (Duration::from_secs(1), Duration::from_secs(3));
        for n in 0..10_000 {
            let now = Time::from_millis(n * 100);
            balance.choose(now, window, &[window.0, Duration::from_secs(2), window.1], &dice);
        }
        assert!(balance.0.lock().unwrap().moments.len() < 20);
        assert_eq!(balance.choose(Time::default(), window, &[], &dice), window.0);
    }
}
