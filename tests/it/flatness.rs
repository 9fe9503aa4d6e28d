//! How flat a fleet's starts are, by the rule that says when: 10,000 missions every minute.
//!
//! `cargo test --test it -- flatness --nocapture` prints the table.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use roundelay::clock::{Entropy, Time};
use roundelay::schedule::{Balance, Cron, Ran, Rhythm, Schedule, Setting, phase};

const MISSIONS: usize = 10_000;

const fn s(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// The highest of the 1 s bins of ten minutes against their mean, after `settle`. Each start takes a
/// few milliseconds until it has ended.
fn peak_to_mean(first: impl Fn(usize) -> Time, settle: u64, mut next: impl FnMut(usize, Ran) -> Time) -> f64 {
    let dice = Entropy::seeded(11);
    let (from, to) = (Time::from_millis(settle as i64 * 1_000), Time::from_millis((settle as i64 + 600) * 1_000));
    let mut due: BinaryHeap<Reverse<(Time, usize)>> = (0..MISSIONS).map(|n| Reverse((first(n), n))).collect();
    let mut bins = [0_u32; 600];
    while let Some(Reverse((at, mission))) = due.pop() {
        if at >= to {
            break;
        }
        if at >= from {
            bins[(at.since(from).as_millis() / 1_000) as usize] += 1;
        }
        let finished = at + Duration::from_millis(20 + dice.below(60) as u64);
        due.push(Reverse((next(mission, Ran { nominal: at, started: at, finished }), mission)));
    }
    let mean = f64::from(bins.iter().sum::<u32>()) / 600.0;
    f64::from(*bins.iter().max().unwrap()) / mean
}

#[test]
fn the_flatness_of_rules() {
    let dice = Entropy::seeded(5);
    let spread = |n: usize| Time::from_millis((n * 60_000 / MISSIONS) as i64);
    let at_once = |_: usize| Time::from_millis(0);
    let jittered = Schedule::fixed_delay(s(60), s(15));
    let by = |schedule: &Schedule, balance: &Balance, mission: usize, ran: Ran| {
        let phase = phase("mission", &mission.to_string());
        schedule.next(ran, Setting { phase, balance, dice: &dice }).unwrap().due
    };
    let cron = Schedule { rhythm: Rhythm::Cron(Cron::parse("* * * * *", None).unwrap()), ..jittered.clone() };
    let cron = Schedule { jitter: Duration::ZERO, ..cron };
    let phased = Schedule { spread_phase: true, ..cron.clone() };
    let balance = Balance::default;
    // The rule of the reference system: the i-th of a bootstrap comes after random(0..i) × 2 s.
    let staggered: Vec<Time> = (0..MISSIONS).map(|i| Time::from_millis(dice.below(i + 1) as i64 * 2_000)).collect();
    let uniform = |ran: Ran| ran.finished + dice.between(s(45), s(75));
    let fixed = |ran: Ran| ran.finished + s(60);
    let cold = |schedule: &Schedule| {
        let balance = balance();
        peak_to_mean(at_once, 900, |mission, ran| by(schedule, &balance, mission, ran))
    };
    let from_spread = {
        let balance = balance();
        peak_to_mean(spread, 120, |mission, ran| by(&jittered, &balance, mission, ran))
    };
    let table = [
        ("cron, every minute", cold(&cron)),
        ("random(0..i) × 2 s, then every minute", peak_to_mean(|n| staggered[n], 20_000, |_, ran| fixed(ran))),
        ("jitter by dice, from a spread start", peak_to_mean(spread, 120, |_, ran| uniform(ran))),
        ("jitter by dice, 15 minutes after a cold start", peak_to_mean(at_once, 900, |_, ran| uniform(ran))),
        ("Roundelay: cron, phases spread", cold(&phased)),
        ("Roundelay: jitter, from a spread start", from_spread),
        ("Roundelay: jitter, 15 minutes after a cold start", cold(&jittered)),
    ];
    println!("| 10,000 missions every 60 s | busiest second by the mean |\n|---|---|");
    table.iter().for_each(|(rule, peak)| println!("| {rule} | {peak:.2} |"));
    let [cron, staggered, dice, cold_dice, phased, ours, cold_ours] = table.map(|(_, peak)| peak);
    assert!(cron > 50.0 && staggered > 1.2, "what was there before bursts, or bunches by chance");
    assert!(ours < 1.1 && ours < dice, "{ours} by choice, {dice} by dice");
    assert!(cold_ours < 1.15 && cold_ours < cold_dice, "{cold_ours} by choice, {cold_dice} by dice");
    assert!(phased < 1.35, "{phased}: as even as a hash");
}
