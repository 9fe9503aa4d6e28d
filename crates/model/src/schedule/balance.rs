//! Chooses, within what a jitter allows, the due time at which the fewest are due.
//!
//! Times drawn by chance bunch: of 10,000 chains that tick every 60 s, some second of ten minutes
//! has about 25 % more starts than the mean. A worker knows which due times it has given out, so it
//! can do better than the dice and fill the gaps.
//!
//! Taking the emptiest moment would not do: the far end of the window is always emptier, since
//! fewer runs have ended so far from which a due time could reach it, and the mean interval would
//! grow. So what a moment holds is compared with what it should hold by now: the mean, less what is
//! still to come. And what is to come is known, for each due time given out is a run that will end
//! about then, and ask for its next one. Those due before `m − low` can all reach the moment `m`,
//! each with the same share of the width of its window. That holds for a steady fleet, where it is
//! the mean times how far the moment lies in the window, and for one that has begun all at once,
//! whose next starts must fill the gap behind them first.
//!
//! What the choice has added to the mean interval so far counts against going on in that direction,
//! which keeps the mean exact also for fleets so small that most moments hold nothing.
//!
//! A window may have several candidates in a moment. The moment is chosen first, and one of its candidates by the dice:
//! what tells moments apart would otherwise always choose the same end of a moment. A moment of which a part lies outside
//! of the window is not chosen, unless all are full, since that would fill the other part alone.
//!
//! All this is for the window that most chains of a kind share. Where each has a window of its own, of a learned interval
//! say, or where a window lies around a time of day, what is to come says nothing of a moment, and counting it for each
//! choice would take long. There the moment is taken that holds least.
//!
//! In a window that is narrower than two moments there is nothing to be flattened, and the dice choose: its candidates are
//! a few milliseconds apart, and are to have equal shares, since they are queues at the broker that share the load.
//! The correction would only go to and fro between the first and the last of them.
//!
//! The candidates are few, since each is a queue at the broker. When thousands of runs end within a
//! moment, all candidates are full, and a place between them is worth the second hop that it costs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{Entropy, Time};

/// How finely moments are told apart.
const MOMENT_MS: i64 = 250;
const MOMENT: Duration = Duration::from_millis(MOMENT_MS as u64);
/// How finely what is to come is, in parts of a window.
const CELLS: usize = 32;
/// What is to come is counted again after this part of a window.
const FRESH: i64 = 128;
/// For a narrow window it is counted again after this part of the time to the window's end, since it is counted that far.
const COUNTED: i64 = 1_024;
/// A window is the usual one when so many more choices were within it than not.
const USUAL: u32 = 10;
/// The usual window stops being that after so many other choices.
const UNUSUAL: u32 = 100;
/// How much the lasting deviation from the mean counts, against one standard deviation.
const CORRECTION: f64 = 0.1;
/// How slowly a deviation is forgotten.
const MEMORY: f64 = 0.999;
/// A moment is full at so many more than its share, and at so many standard deviations above it.
const FULL: (f64, f64) = (2.0, 2.0);
/// Places looked at between candidates that are full.
const DRAWS: usize = 4;

/// The balances of a queue's kinds, each for itself: sums of what is flat are flat, and each kind
/// has its own windows.
#[derive(Debug, Default)]
pub struct Balances(Mutex<BTreeMap<Box<str>, Arc<Balance>>>);

impl Balances {
    /// That of a kind.
    pub fn of(&self, kind: &str) -> Arc<Balance> {
        let mut balances = self.0.lock();
        if let Some(balance) = balances.get(kind) {
            return balance.clone();
        }
        balances.entry(kind.into()).or_default().clone()
    }
}

/// The due times that were given out.
#[derive(Debug, Default)]
pub struct Balance(Mutex<Given>);

#[derive(Debug, Default)]
struct Given {
    /// How many are due in each moment to come.
    moments: BTreeMap<i64, u32>,
    /// The window of most choices, by its bounds in milliseconds: the candidate of Boyer and Moore's majority vote, and
    /// the candidate's votes.
    usual: ((i64, i64), u32),
    /// What was counted last for the usual window.
    ahead: Option<Ahead>,
    /// The sum of the deviations from the middle of the window, in halves of it.
    drift: f64,
    /// How many places were given out.
    places: u64,
}

/// What is to come within a window's width.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    /// When it was counted.
    at: Time,
    /// How many are due before each of the parts of a width begins.
    before: [f64; CELLS + 1],
    /// How many are due per millisecond, on average over what a window can reach.
    rate: f64,
}

/// The best moment so far.
struct Best {
    score: f64,
    moment: i64,
    /// One of the moment's candidates, each with the same chance,
    candidate: Duration,
    /// of so many.
    among: usize,
}

impl Balance {
    /// Chooses among `candidates`, delays from `now` within `low..=high`, or near one of them when
    /// they are full, and notes the choice. Without candidates, `low`.
    pub fn choose(
        &self,
        now: Time,
        (low, high): (Duration, Duration),
        candidates: &[Duration],
        dice: &Entropy,
    ) -> Duration {
        if candidates.is_empty() {
            return low;
        }
        let width = (high.saturating_sub(low)).as_secs_f64().max(0.001);
        let place = |delay: Duration| (delay.saturating_sub(low).as_secs_f64() / width).clamp(0.0, 1.0);
        let mut given = self.0.lock();
        given.forget(now);
        if high.saturating_sub(low) < 2 * MOMENT {
            return given.diced(now, candidates, dice);
        }
        let ahead = given.ahead(now, low, high);
        let held = |candidate: Duration| given.held(now + candidate);
        let share = ahead.map_or_else(
            || candidates.iter().copied().map(held).sum::<f64>() / candidates.len() as f64,
            |ahead| ahead.rate * MOMENT_MS as f64,
        );
        // A moment can be chosen until a window begins behind the moment's beginning.
        let choosable = (width * 1_000.0 - MOMENT_MS as f64).max(1.0);
        let score = |begin: Duration, held: f64| {
            let to_come = ahead.map_or(0.0, |ahead| ahead.before(place(begin)) / choosable * MOMENT_MS as f64);
            let surplus = (held - (share - to_come)) / (share.sqrt() + 0.3);
            surplus + CORRECTION * given.drift * (2.0 * place(begin + MOMENT / 2) - 1.0)
        };
        let first = dice.below(candidates.len());
        let mut best: Option<Best> = None;
        for n in 0..candidates.len() {
            let candidate = candidates[(first + n) % candidates.len()];
            let moment = moment(now + candidate);
            let begin = Time::from_millis(moment * MOMENT_MS);
            if begin < now + low || begin + MOMENT > now + high {
                continue;
            }
            match &mut best {
                Some(best) if best.moment == moment => {
                    best.among += 1;
                    if dice.below(best.among) == 0 {
                        best.candidate = candidate;
                    }
                }
                _ => {
                    let score = score(begin.since(now), held(candidate));
                    if best.as_ref().is_none_or(|best| score < best.score) {
                        best = Some(Best { score, moment, candidate, among: 1 });
                    }
                }
            }
        }
        let Some(Best { candidate: mut chosen, .. }) = best else {
            return given.diced(now, candidates, dice);
        };
        if held(chosen) > share + FULL.0 + FULL.1 * share.sqrt() {
            let gap = (high.saturating_sub(low)) / candidates.len() as u32;
            let (first, last) = (chosen.saturating_sub(gap).max(low), (chosen + gap).min(high));
            let draws = (0..DRAWS).map(|_| dice.between(first, last));
            chosen = draws.min_by(|a, b| held(*a).total_cmp(&held(*b))).unwrap_or(chosen);
        }
        given.note(now + chosen);
        given.drift = given.drift * MEMORY + 2.0 * place(chosen) - 1.0;
        chosen
    }

    /// Notes a due time that was given out otherwise.
    pub fn note(&self, due: Time) {
        self.0.lock().note(due);
    }

    /// A place in a window for one of many that are spread over it at the same time, from 0 up to 1:
    /// steps of the golden ratio, which fill it evenly however many there are.
    pub fn place(&self) -> f64 {
        let mut given = self.0.lock();
        given.places += 1;
        (given.places as f64 * 0.618_033_988_749_894_9).fract()
    }
}

impl Given {
    /// One of the candidates, each with the same chance.
    fn diced(&mut self, now: Time, candidates: &[Duration], dice: &Entropy) -> Duration {
        let chosen = candidates[dice.below(candidates.len())];
        self.note(now + chosen);
        chosen
    }

    fn note(&mut self, due: Time) {
        *self.moments.entry(moment(due)).or_default() += 1;
    }

    /// How many are due in the moment of `due`.
    fn held(&self, due: Time) -> f64 {
        f64::from(self.moments.get(&moment(due)).copied().unwrap_or_default())
    }

    fn forget(&mut self, now: Time) {
        let past = moment(now);
        while let Some(first) = self.moments.first_entry().filter(|first| *first.key() < past) {
            first.remove();
        }
    }

    /// One more choice is within this window. Returns whether most are.
    fn votes_for(&mut self, window: (i64, i64)) -> bool {
        let (usual, votes) = &mut self.usual;
        if *usual == window {
            *votes = (*votes + 1).min(UNUSUAL);
        } else if *votes > 0 {
            *votes -= 1;
        } else {
            (self.usual, self.ahead) = ((window, 1), None);
        }
        self.usual.0 == window && self.usual.1 > USUAL
    }

    /// What is to come, counted at most so often that it costs little beside the choice. Nothing for an unusual window.
    fn ahead(&mut self, now: Time, low: Duration, high: Duration) -> Option<Ahead> {
        let (low, high) = (low.as_millis() as i64, (high.as_millis() as i64).max(1));
        if !self.votes_for((low, high)) {
            return None;
        }
        let width = (high - low).max(1);
        let lasts = (width / FRESH).max((high / COUNTED).min(width / 8));
        let is_fresh = |ahead: &Ahead| ahead.at <= now && now.since(ahead.at).as_millis() as i64 <= lasts;
        if let Some(ahead) = self.ahead.filter(is_fresh) {
            return Some(ahead);
        }
        let mut ahead = Ahead { at: now, before: [0.0; CELLS + 1], rate: 0.0 };
        let mut reach = 0_u64;
        for (moment, count) in self.moments.range(moment(now)..=moment(now + Duration::from_millis(high as u64))) {
            reach += u64::from(*count);
            let distance = (moment * MOMENT_MS + MOMENT_MS / 2 - now.as_millis()).max(0);
            if distance < width {
                ahead.before[(distance * CELLS as i64 / width) as usize + 1] += f64::from(*count);
            }
        }
        (0..CELLS).for_each(|n| ahead.before[n + 1] += ahead.before[n]);
        // By Little's law: each of them waits for the middle of a window on average.
        ahead.rate = reach as f64 * 2.0 / (low + high) as f64;
        self.ahead = Some(ahead);
        Some(ahead)
    }
}

impl Ahead {
    /// How many are due before the place `x` of a width, from 0 to 1.
    fn before(&self, x: f64) -> f64 {
        let cell = (x * CELLS as f64).min(CELLS as f64 - 1e-9);
        let (n, part) = (cell as usize, cell.fract());
        self.before[n] + (self.before[n + 1] - self.before[n]) * part
    }
}

fn moment(due: Time) -> i64 {
    due.as_millis().div_euclid(MOMENT_MS)
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

    /// A minute of `chains` chains after one to settle, each at an interval of its own between these, in milliseconds, give
    /// or take a twentieth: the fullest of the 25 parts of a moment, and the highest of the 1 s bins, both against their
    /// mean; and the mean of delays against intervals. `by_chance` leaves the choice to the dice.
    fn each_its_own(chains: usize, intervals: (u64, u64), by_chance: bool) -> (f64, f64, f64) {
        let (dice, balance) = (Entropy::seeded(7), Balance::default());
        let interval =
            |n: usize| Duration::from_millis(intervals.0 + (n as u64 * 7_919) % (intervals.1 - intervals.0 + 1));
        let mut due: BinaryHeap<std::cmp::Reverse<(Time, usize)>> = (0..chains)
            .map(|n| std::cmp::Reverse((Time::default() + interval(n).mul_f64(n as f64 / chains as f64), n)))
            .collect();
        let (mut parts, mut bins) = ([0_u32; 25], [0_u32; 60]);
        let mut ratio = (0.0, 0.0);
        while let Some(std::cmp::Reverse((at, chain))) = due.pop() {
            let since = at.as_millis() - 60_000;
            if since >= 60_000 {
                break;
            }
            let (now, every) = (at + Duration::from_millis(dice.below(10) as u64), interval(chain));
            let (low, high) = (every - every / 20, every + every / 20);
            let rungs = jitter_rungs(every, every / 20);
            let delay = if by_chance { rungs[dice.below(16)] } else { balance.choose(now, (low, high), &rungs, &dice) };
            if since >= 0 {
                parts[(since % MOMENT_MS / 10) as usize] += 1;
                bins[(since / 1_000) as usize] += 1;
                ratio = (ratio.0 + delay.as_secs_f64() / every.as_secs_f64(), ratio.1 + 1.0);
            }
            due.push(std::cmp::Reverse((now + delay, chain)));
        }
        let peak = |bins: &[u32]| {
            f64::from(*bins.iter().max().unwrap()) * bins.len() as f64 / f64::from(bins.iter().sum::<u32>())
        };
        (peak(&parts), peak(&bins), ratio.0 / ratio.1)
    }

    #[test]
    fn it_is_as_flat_within_a_moment_as_over_moments() {
        for intervals in [(10_000, 10_000), (2_000, 40_000)] {
            let (parts, seconds, ratio) = each_its_own(10_000, intervals, false);
            let (_, by_chance, _) = each_its_own(10_000, intervals, true);
            assert!(parts < 1.5, "every {intervals:?} ms: {parts} within a moment");
            assert!(
                seconds - 1.0 < 0.6 * (by_chance - 1.0),
                "every {intervals:?} ms: {seconds}, by chance {by_chance}"
            );
            assert!((ratio - 1.0).abs() < 0.003, "every {intervals:?} ms: {ratio} of the interval");
        }
    }

    #[test]
    fn in_a_window_narrower_than_a_moment_all_candidates_have_equal_shares() {
        let (every, jitter) = (Duration::from_secs(1), Duration::from_millis(8));
        let (rungs, window) = (jitter_rungs(every, jitter), (every - jitter, every + jitter));
        let (balance, dice) = (Balance::default(), Entropy::seeded(5));
        let (mut counts, mut sum) = (BTreeMap::<Duration, u32>::new(), Duration::ZERO);
        for n in 0..16_000 {
            let chosen = balance.choose(Time::from_millis(n / 4), window, &rungs, &dice);
            *counts.entry(chosen).or_default() += 1;
            sum += chosen;
        }
        // Of the 16 points some fall on the same millisecond.
        let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
        assert_eq!(counts.len(), 13);
        assert!(*least > 800 && *most < 2_200, "{counts:?}");
        assert!((sum / 16_000).abs_diff(every) < Duration::from_millis(1), "{:?}", sum / 16_000);
        assert_eq!(balance.choose(Time::default(), window, &[], &dice), window.0);
    }

    #[test]
    fn what_is_past_is_forgotten() {
        let (balance, dice) = (Balance::default(), Entropy::seeded(1));
        let window = (Duration::from_secs(1), Duration::from_secs(3));
        for n in 0..10_000 {
            let now = Time::from_millis(n * 100);
            balance.choose(now, window, &[window.0, Duration::from_secs(2), window.1], &dice);
        }
        let given = balance.0.lock();
        assert!(given.moments.len() < 20);
        drop(given);
        assert_eq!(balance.choose(Time::default(), window, &[], &dice), window.0);
    }
}
