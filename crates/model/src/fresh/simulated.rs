//! Chains that learn the rates at which their entities change, under a budget, against the best intervals for known rates.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use super::{Budget, Calls, Entity, Known, Objective, Price, Seen, Visits, best_price, expected, interval_at, visited};
use crate::clock::{Entropy, Time};

/// The median time between changes, in seconds: an hour.
const MEDIAN: f64 = 3_600.0;
const BOUNDS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(400 * 3_600));
/// The interval of chains of which nothing is known: four times what the budget has room for.
const MIDDLE: Duration = Duration::from_secs(900);
/// How often the price is set anew, in seconds.
const PRICED_EVERY: f64 = 60.0;

/// A number of the normal distribution (Box and Muller).
fn normal(dice: &Entropy) -> f64 {
    (-2.0 * (1.0 - dice.unit()).ln()).sqrt() * (std::f64::consts::TAU * dice.unit()).cos()
}

/// Rates are lognormal with sigma 2. Weights are equal, or fall as those of Zipf's law and have nothing to do with rates.
fn entities(number: usize, zipf: bool, dice: &Entropy) -> Vec<Entity> {
    let mut weights: Vec<f64> = (1..=number).map(|rank| if zipf { 1.0 / rank as f64 } else { 1.0 }).collect();
    for n in (1..number).rev() {
        weights.swap(n, dice.below(n + 1));
    }
    let of = |weight| Entity { rate: (2.0 * normal(dice)).exp() / MEDIAN, weight, bounds: BOUNDS };
    weights.into_iter().map(of).collect()
}

/// The mean age of what is known, in seconds, and the share of time in which it is right, both by weight.
#[derive(Clone, Copy, Debug)]
struct Quality {
    age: f64,
    fresh: f64,
}

/// What fixed intervals come to, by the formulas.
fn quality(entities: &[Entity], intervals: impl Fn(&Entity) -> f64) -> Quality {
    let (mut age, mut fresh, mut all) = (0.0, 0.0, 0.0);
    for entity in entities {
        let (of_fresh, of_age) = expected(entity.rate, intervals(entity));
        (age, fresh, all) = (age + entity.weight * of_age, fresh + entity.weight * of_fresh, all + entity.weight);
    }
    Quality { age: age / all, fresh: fresh / all }
}

/// The best intervals for known rates.
fn optimum(entities: &[Entity], objective: Objective, budget: f64) -> Quality {
    let price = best_price(objective, entities, budget);
    quality(entities, |entity| entity.every(objective, price))
}

/// A run of chains that learn, under a throttle that lets calls start at the budget's pace.
struct Run {
    entities: Vec<Entity>,
    /// The first of them have a handler that says each time that they have changed.
    always: usize,
    /// By what share rates follow the time of day.
    daily: f64,
    objective: Objective,
    /// Calls for each second.
    calls: f64,
    dice: Entropy,
    known: Vec<Option<Known>>,
    /// When each was visited last, when it changes next after that, and until when what was lost is counted.
    visited: Vec<f64>,
    change: Vec<f64>,
    counted: Vec<f64>,
    /// Which is due when, in milliseconds.
    due: BinaryHeap<Reverse<(i64, usize)>>,
    budget: Budget,
    /// The price that workers have.
    price: Option<Price>,
    visits: Visits,
    now: f64,
    slot: f64,
    /// What was lost by age, and the time in which it was right, by weight.
    lost: (f64, f64),
}

impl Run {
    fn new(entities: &[Entity], objective: Objective, calls: f64, seed: u64) -> Self {
        let dice = Entropy::seeded(seed);
        // As the roster spreads them, over the interval of chains of which nothing is known.
        let due = (0..entities.len()).map(|n| Reverse(((dice.unit() * MIDDLE.as_secs_f64() * 1_000.0) as i64, n)));
        Self {
            entities: entities.to_vec(),
            always: 0,
            daily: 0.0,
            objective,
            calls,
            known: vec![None; entities.len()],
            visited: vec![0.0; entities.len()],
            change: entities.iter().map(|entity| -(1.0 - dice.unit()).ln() / entity.rate).collect(),
            counted: vec![0.0; entities.len()],
            due: due.collect(),
            budget: Budget::default(),
            price: None,
            visits: Visits::default(),
            now: 0.0,
            slot: 0.0,
            lost: (0.0, 0.0),
            dice,
        }
    }

    /// Until that many seconds; answers how many calls there were.
    fn until(&mut self, end: f64) -> u64 {
        let mut calls = 0;
        while let Some(Reverse((due, n))) = self.due.peek().copied() {
            // No slot is earlier than the throttle allows.
            let at = (due as f64 / 1_000.0).max(self.slot);
            if at >= end {
                break;
            }
            self.due.pop();
            self.now = at;
            self.slot = at + 1.0 / self.calls;
            calls += 1;
            self.visit(n);
            if self.now - self.budget.upto.as_millis() as f64 / 1_000.0 >= PRICED_EVERY {
                self.set_price();
            }
        }
        calls
    }

    /// Counts what is lost of an entity until then.
    fn count(&mut self, n: usize, until: f64) {
        let (from, change, weight) = (self.counted[n], self.change[n], self.entities[n].weight);
        let old = |at: f64| (at - change).max(0.0);
        self.lost.0 += weight * (old(until).powi(2) - old(from).powi(2)) / 2.0;
        self.lost.1 += weight * (until.min(change) - from).max(0.0);
        self.counted[n] = until;
    }

    /// Changes have no memory: whenever the last one was, the next one is as far away.
    fn next_change(&self, rate: f64) -> f64 {
        let (mut at, highest) = (self.now, rate * (1.0 + self.daily));
        loop {
            at -= (1.0 - self.dice.unit()).ln() / highest;
            let here = 1.0 + self.daily * (std::f64::consts::TAU * at / 86_400.0).sin();
            // Of the changes at the highest rate those are left out that are too many.
            if self.dice.unit() * (1.0 + self.daily) < here {
                return at;
            }
        }
    }

    /// From now on an entity changes at this rate.
    fn set_rate(&mut self, n: usize, rate: f64) {
        self.count(n, self.now);
        self.entities[n].rate = rate;
        if self.change[n] > self.now {
            self.change[n] = self.next_change(rate);
        }
    }

    /// The mean interval of these by what is known now.
    fn mean_interval(&self, of: std::ops::Range<usize>) -> f64 {
        let every = |n: usize| {
            let known = self.known[n].unwrap();
            self.every(&known, BOUNDS.1).as_secs_f64()
        };
        of.len() as f64 / of.map(|n| 1.0 / every(n)).sum::<f64>()
    }

    /// The interval of a chain by what is known of it.
    fn every(&self, known: &Known, gap: Duration) -> Duration {
        let at = |price: Price| interval_at(price.get(), self.objective, known, gap, BOUNDS);
        self.price.map_or(MIDDLE, at)
    }

    fn visit(&mut self, n: usize) {
        let Entity { rate, weight, .. } = self.entities[n];
        let first = self.known[n].is_none();
        let gap = if first { MIDDLE } else { Duration::from_secs_f64(self.now - self.visited[n]) };
        self.count(n, self.now);
        let changed = self.change[n] < self.now || n < self.always;
        self.change[n] = self.next_change(rate);
        let now = Time::from_millis((self.now * 1_000.0) as i64);
        let seen = if changed { Seen::Changed } else { Seen::Same };
        let known = visited(self.known[n], Some(seen), weight, None, now, self.budget.prior("app", MIDDLE));
        let every = self.every(&known, gap);
        self.visits.visited(gap, every, &known);
        self.known[n] = Some(known);
        self.visited[n] = self.now;
        // As the balancer chooses within the jitter, roughly.
        let due = self.now + every.as_secs_f64() * (0.95 + 0.1 * self.dice.unit());
        self.due.push(Reverse(((due * 1_000.0) as i64, n)));
    }

    /// Workers have a price about a minute after the minute that it was made of.
    fn set_price(&mut self) {
        self.price = self.budget.price;
        let now = Time::from_millis((self.now * 1_000.0) as i64);
        let length = now.since(self.budget.upto);
        let visits = BTreeMap::from([("app".to_owned(), (std::mem::take(&mut self.visits), MIDDLE))]);
        let calls = Calls { allowed: self.calls * length.as_secs_f64(), others: 0.0, held: true };
        self.budget = std::mem::take(&mut self.budget).after(&visits, self.objective, (now, length), calls);
    }

    /// What the time from now until `end` comes to; and the fewest and the most calls of an hour, by the budget.
    fn measured(&mut self, end: f64) -> (Quality, (f64, f64)) {
        let (begin, mut hours) = (self.now, (f64::MAX, 0.0_f64));
        (0..self.entities.len()).for_each(|n| self.count(n, begin));
        self.lost = (0.0, 0.0);
        let mut hour = begin;
        while hour < end {
            let calls = self.until(hour + 3_600.0) as f64 / (3_600.0 * self.calls);
            hours = (hours.0.min(calls), hours.1.max(calls));
            hour += 3_600.0;
        }
        (0..self.entities.len()).for_each(|n| self.count(n, hour));
        let all: f64 = self.entities.iter().map(|entity| entity.weight).sum::<f64>() * (hour - begin);
        (Quality { age: self.lost.0 / all, fresh: self.lost.1 / all }, hours)
    }
}

/// Visits on average, before it is measured and while it is.
const LEARNING: f64 = 20.0;
const MEASURED: f64 = 40.0;

fn compare(number: usize, zipf: bool, objective: Objective, seed: u64) -> (Quality, Quality, Quality, (f64, f64)) {
    let dice = Entropy::seeded(seed);
    let entities = entities(number, zipf, &dice);
    let budget = number as f64 / MEDIAN;
    let uniform = quality(&entities, |_| MEDIAN);
    let best = optimum(&entities, objective, budget);
    let mut run = Run::new(&entities, objective, budget, seed);
    run.until(LEARNING * MEDIAN);
    let (learned, hours) = run.measured((LEARNING + MEASURED) * MEDIAN);
    println!(
        "{number} chains, {}, {objective:?}, seed {seed}: age uniform {:.0} s, learned {:.0}, best {:.0}; \
         fresh {:.3}, {:.3}, {:.3}; calls in an hour {:.3} to {:.3} of the budget",
        if zipf { "Zipf" } else { "equal" },
        uniform.age,
        learned.age,
        best.age,
        uniform.fresh,
        learned.fresh,
        best.fresh,
        hours.0,
        hours.1
    );
    (uniform, learned, best, hours)
}

#[test]
fn what_is_learned_is_about_as_good_as_what_is_known() {
    for (number, zipf, objective, seed) in [
        (400, false, Objective::Age, 1),
        (400, true, Objective::Age, 2),
        (400, true, Objective::Harmonic, 3),
        (20_000, false, Objective::Age, 4),
        (20_000, true, Objective::Age, 5),
        (20_000, true, Objective::Harmonic, 6),
    ] {
        let (uniform, learned, best, hours) = compare(number, zipf, objective, seed);
        assert!(learned.fresh >= 0.97 * best.fresh, "fresh {:.3} of {:.3}", learned.fresh, best.fresh);
        let most = if number > 1_000 { 1.035 } else { 1.08 };
        assert!(learned.age <= most * best.age, "age {:.0} of {:.0}", learned.age, best.age);
        if zipf {
            assert!(
                learned.age <= 0.45 * uniform.age || objective != Objective::Age,
                "age {:.0} of uniform's",
                learned.age
            );
        }
        // Of few chains an hour has few calls, which come as they are due.
        let least = if number > 1_000 { 0.96 } else { 0.9 };
        assert!(hours.0 >= least && hours.1 <= 1.0 + 1.0 / number as f64, "calls in an hour: {hours:?}");
    }
}

#[test]
fn what_changes_too_fast_for_its_weight_is_left_to_its_longest_interval() {
    let (_, learned, best, hours) = compare(400, true, Objective::Freshness, 1);
    assert!(learned.fresh >= 0.94 * best.fresh && hours.1 <= 1.01, "{learned:?}, {best:?}, {hours:?}");
    assert!(learned.age > 3.0 * MEDIAN / 4.0, "which is why it is not the default: {learned:?}");
}

#[test]
fn calls_follow_a_budget_that_is_cut_in_half_and_one_that_doubles() {
    let entities = entities(4_000, true, &Entropy::seeded(8));
    let mut run = Run::new(&entities, Objective::Age, 4_000.0 / MEDIAN, 8);
    run.until(20.0 * MEDIAN);
    let steady = run.budget.price.unwrap().get();
    for (factor, bounds) in [(0.5, (1.5, 8.0)), (2.0, (0.6, 1.6))] {
        run.calls *= factor;
        let begin = run.now;
        // For each ten minutes: what is wanted, by what there is; and the price, by the one before the cut.
        let told: Vec<(f64, f64)> = (1..=36)
            .map(|step| {
                run.until(begin + f64::from(step) * 600.0);
                (run.budget.wanted / run.budget.allowed, run.budget.price.unwrap().get() / steady)
            })
            .collect();
        let last = told.last().unwrap().1;
        let is_steady = 1 + told.iter().rposition(|(_, price)| (price / last - 1.0).abs() > 0.2).unwrap();
        println!(
            "{factor} times the calls: the price is steady after {} minutes, at {last:.2} times the one before",
            is_steady * 10
        );
        assert!(is_steady <= 30, "{told:?}");
        assert!(bounds.0 <= last && last <= bounds.1, "{told:?}");
        // What had been due before came late, and then no more.
        let behind = run.due.peek().map_or(0.0, |Reverse((due, _))| run.now - *due as f64 / 1_000.0);
        assert!(behind < 0.1 * MEDIAN, "{behind} s late");
    }
}

#[test]
fn a_tenth_more_calls_bring_about_what_the_price_says() {
    for (objective, seed) in [(Objective::Age, 1), (Objective::Freshness, 2)] {
        let entities = entities(4_000, true, &Entropy::seeded(seed));
        let calls = 4_000.0 / MEDIAN;
        let mut run = Run::new(&entities, objective, calls, seed);
        run.until(30.0 * MEDIAN);
        let (is, more) = (optimum(&entities, objective, calls), optimum(&entities, objective, 1.1 * calls));
        let brings = if objective == Objective::Age { is.age - more.age } else { more.fresh - is.fresh };
        let told = run.budget.a_tenth_more(objective).unwrap();
        println!("a tenth more calls, {objective:?}: {brings:.4}, told {told:.4}");
        assert!((0.6..1.7).contains(&(told / brings)), "{objective:?}: {told}, not {brings}");
    }
}

/// Chains of which the first hundred are median ones, after they have learned.
fn learned(number: usize, seed: u64) -> Run {
    let mut entities = entities(number, false, &Entropy::seeded(seed));
    entities[..100].iter_mut().for_each(|entity| entity.rate = 1.0 / MEDIAN);
    let mut run = Run::new(&entities, Objective::Age, number as f64 / MEDIAN, seed);
    run.until(LEARNING * MEDIAN);
    run
}

/// After how many hours something holds, and the most calls of an hour by the budget, until then and for an hour more.
fn until(run: &mut Run, most_hours: u32, holds: impl Fn(&Run) -> bool) -> (Option<u32>, f64) {
    let mut most = 0.0_f64;
    let mut found = None;
    for hour in 1..=most_hours {
        let calls = run.until(run.now + 3_600.0) as f64 / (3_600.0 * run.calls);
        most = most.max(calls);
        if found.is_some() {
            break;
        }
        found = holds(run).then_some(hour);
    }
    (found, most)
}

#[test]
fn a_burst_of_changes_is_followed_and_forgotten() {
    let mut run = learned(4_000, 11);
    let before = run.mean_interval(0..100);
    (0..100).for_each(|n| run.set_rate(n, 30.0 / MEDIAN));
    let price = run.budget.price.unwrap().get();
    let (sooner, calls) = until(&mut run, 60, |run| run.mean_interval(0..100) < 0.75 * before);
    let during = run.mean_interval(0..100);
    // No interval can be shorter than that of what changes all the time.
    let shortest = (2.0 * price).sqrt();
    (0..100).for_each(|n| run.set_rate(n, 1.0 / MEDIAN));
    let (later, more) = until(&mut run, 80, |run| run.mean_interval(0..100) > 0.9 * before);
    println!(
        "a hundred of 4,000 change 30 times as often: their mean interval of {before:.0} s is below three quarters after \
         {sooner:?} h, at {during:.0} s (at least {shortest:.0} s), and back after {later:?} h; calls at most {:.3}",
        calls.max(more)
    );
    assert!(sooner.is_some_and(|hours| hours <= 60) && later.is_some_and(|hours| hours <= 50));
    assert!(calls.max(more) <= 1.001);
}

#[test]
fn what_never_changes_again_is_visited_ever_less_often_and_not_given_up() {
    let mut run = learned(4_000, 12);
    let before = run.mean_interval(0..100);
    (0..100).for_each(|n| run.set_rate(n, 1e-15));
    let (twice, calls) = until(&mut run, 100, |run| run.mean_interval(0..100) > 2.0 * before);
    let (five, more) = until(&mut run, 1_000, |run| run.mean_interval(0..100) > 5.0 * before);
    let oldest = (0..100).map(|n| run.now - run.visited[n]).fold(0.0, f64::max);
    println!(
        "a hundred of 4,000 never change again: twice their interval of {before:.0} s after {twice:?} h, five times after \
         {five:?} h more; the longest without a visit {oldest:.0} s; calls at most {:.3}",
        calls.max(more)
    );
    assert!(twice.is_some_and(|hours| hours <= 72) && five.is_some());
    assert!(oldest < 20.0 * before && calls.max(more) <= 1.001);
}

#[test]
fn a_daily_rhythm_costs_little_and_keeps_the_budget() {
    let entities = entities(4_000, true, &Entropy::seeded(13));
    let calls = 4_000.0 / MEDIAN;
    let best = optimum(&entities, Objective::Age, calls);
    for daily in [0.0, 0.5, 1.0] {
        let mut run = Run::new(&entities, Objective::Age, calls, 13);
        run.daily = daily;
        run.until(24.0 * 3_600.0);
        let (learned, hours) = run.measured(96.0 * 3_600.0);
        println!(
            "rates that follow the time of day by {daily}: age {:.3} of the best for steady rates, fresh {:.3}; calls in \
             an hour {:.3} to {:.3} of the budget",
            learned.age / best.age,
            learned.fresh / best.fresh,
            hours.0,
            hours.1
        );
        assert!(
            learned.age <= (1.1 + 0.25 * daily) * best.age && hours.0 > 0.9 && hours.1 <= 1.001,
            "{learned:?} {hours:?}"
        );
    }
}

#[test]
fn handlers_that_always_say_changed_take_no_more_than_what_changes_all_the_time() {
    let entities = entities(4_000, false, &Entropy::seeded(14));
    let calls = 4_000.0 / MEDIAN;
    let mut run = Run::new(&entities, Objective::Age, calls, 14);
    run.always = 400;
    run.until(40.0 * MEDIAN);
    let (liars, honest) = (run.mean_interval(0..400), run.mean_interval(400..4_000));
    let share = 400.0 / liars / (400.0 / liars + 3_600.0 / honest);
    let oldest = (400..4_000).map(|n| run.now - run.visited[n]).fold(0.0, f64::max);
    let shortest = (2.0 * run.budget.price.unwrap().get()).sqrt();
    println!(
        "a tenth of 4,000 always say `changed`: each {liars:.0} s, the others each {honest:.0} s; {:.1} % of all calls; the \
         longest without a visit {oldest:.0} s",
        share * 100.0
    );
    assert!(liars >= 0.99 * shortest && share < 0.3, "{liars} {shortest} {share}");
    assert!(oldest < BOUNDS.1.as_secs_f64(), "none is given up");
}

/// The pure part of what a million chains cost; printed, for machines differ.
#[test]
#[allow(clippy::disallowed_methods)]
fn a_minute_s_prices_cost_as_much_as_its_visits_and_not_as_its_chains() {
    let chains = 1_000_000.0;
    let known = Known {
        learned: super::Learned::begin(super::Prior::of_interval(MIDDLE), Time::from_millis(0)),
        weight: 1.0,
        mark: None,
    };
    let mut budget = Budget::default();
    let mut of = Visits::default();
    // A million chains, each visited once an hour: so many visits in a minute.
    let visits = (chains / 60.0) as u32;
    let begun = std::time::Instant::now();
    for _ in 0..visits {
        let known = visited(
            Some(known),
            Some(Seen::Changed),
            1.0,
            None,
            Time::from_millis(3_600_000),
            budget.prior("app", MIDDLE),
        );
        let every = interval_at(1e6, Objective::Age, &known, Duration::from_secs(3_600), BOUNDS);
        of.visited(Duration::from_secs(3_600), every, &known);
    }
    let by_workers = begun.elapsed();
    let begun = std::time::Instant::now();
    let all = BTreeMap::from([("app".to_owned(), (of, MIDDLE))]);
    let calls = Calls { allowed: f64::from(visits), others: 0.0, held: true };
    let minute = (Time::from_millis(60_000), Duration::from_secs(60));
    budget = budget.after(&all, Objective::Age, minute, calls);
    let by_chore = begun.elapsed();
    println!(
        "{visits} visits in a minute, as of a million chains: {:.1} µs for each in the workers, {by_chore:?} for the price; \
         {} bytes for each chain",
        by_workers.as_secs_f64() * 1e6 / f64::from(visits),
        super::SIZE
    );
    assert!((budget.chains() / chains - 1.0).abs() < 1e-3, "{budget:?}");
}
