//! How flat a fleet's starts are, by the rule that says when: 10,000 missions every minute.
//!
//! `cargo test --test it -- flatness --nocapture` prints the table.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use roundelay::clock::{Entropy, Time};
use roundelay::schedule::{Balance, Cron, Ran, Rhythm, Schedule, Setting, phase};
use roundelay::wall_clock::WallClock;

const MISSIONS: usize = 10_000;

const fn s(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// The highest of the 1 s bins of ten minutes against their mean, after each of `settle`, in seconds. Each
/// start takes a few milliseconds until it has ended.
fn peaks<const N: usize>(
    first: impl Fn(usize) -> Time,
    settle: [usize; N],
    mut next: impl FnMut(usize, Ran) -> Time,
) -> [f64; N] {
    let dice = Entropy::seeded(11);
    let mut due: BinaryHeap<Reverse<(Time, usize)>> = (0..MISSIONS).map(|n| Reverse((first(n), n))).collect();
    let mut bins = vec![0_u32; settle.iter().max().unwrap() + 600];
    while let Some(Reverse((at, mission))) = due.pop() {
        let Some(bin) = bins.get_mut((at.as_millis() / 1_000) as usize) else { break };
        *bin += 1;
        let finished = at + Duration::from_millis(20 + dice.below(60) as u64);
        due.push(Reverse((next(mission, Ran { nominal: at, started: at, finished }), mission)));
    }
    settle.map(|from| {
        let bins = &bins[from..from + 600];
        f64::from(*bins.iter().max().unwrap()) / (f64::from(bins.iter().sum::<u32>()) / 600.0)
    })
}

#[test]
fn the_flatness_of_rules() {
    let dice = Entropy::seeded(5);
    let spread = |n: usize| Time::from_millis((n * 60_000 / MISSIONS) as i64);
    let at_once = |_: usize| Time::from_millis(0);
    let jittered = Schedule::fixed_delay(s(60), s(15));
    let by = |schedule: &Schedule, balance: &Balance, mission: usize, ran: Ran| {
        let phase = phase("mission", &mission.to_string());
        schedule.next(ran, Setting { phase, balance, dice: &dice, wall_clock: &WallClock::default() }).unwrap().due
    };
    let cron = Schedule { rhythm: Rhythm::Cron(Cron::parse("* * * * *", None).unwrap()), ..jittered.clone() };
    let cron = Schedule { jitter: Duration::ZERO, ..cron };
    let phased = Schedule { spread_phase: true, ..cron.clone() };
    let balance = Balance::default;
    // The rule of the reference system: the i-th of a bootstrap comes after random(0..i) × 2 s.
    let staggered: Vec<Time> = (0..MISSIONS).map(|i| Time::from_millis(dice.below(i + 1) as i64 * 2_000)).collect();
    let uniform = |ran: Ran| ran.finished + dice.between(s(45), s(75));
    let fixed = |ran: Ran| ran.finished + s(60);
    let ours = |schedule: &Schedule, first: &dyn Fn(usize) -> Time, settle: [usize; 2]| {
        let balance = balance();
        peaks(first, settle, |mission, ran| by(schedule, &balance, mission, ran))
    };
    let after = [180, 900];
    let [_, cron] = ours(&cron, &at_once, after);
    let [staggered] = peaks(|n| staggered[n], [20_000], |_, ran| fixed(ran));
    let [dice_spread] = peaks(spread, [120], |_, ran| uniform(ran));
    let [dice_early, dice_late] = peaks(at_once, after, |_, ran| uniform(ran));
    let [_, phased] = ours(&phased, &at_once, after);
    let [our_spread, _] = ours(&jittered, &spread, [120, 120]);
    let [our_early, our_late] = ours(&jittered, &at_once, after);
    let table = [
        ("cron, every minute", cron),
        ("random(0..i) × 2 s, then every minute", staggered),
        ("jitter by dice, from a spread start", dice_spread),
        ("jitter by dice, 3 minutes after a cold start", dice_early),
        ("jitter by dice, 15 minutes after a cold start", dice_late),
        ("Roundelay: cron, phases spread", phased),
        ("Roundelay: jitter, from a spread start", our_spread),
        ("Roundelay: jitter, 3 minutes after a cold start", our_early),
        ("Roundelay: jitter, 15 minutes after a cold start", our_late),
    ];
    println!("| 10,000 missions every 60 s | busiest second by the mean |\n|---|---|");
    table.iter().for_each(|(rule, peak)| println!("| {rule} | {peak:.2} |"));
    assert!(cron > 50.0 && staggered > 1.2, "what was there before bursts, or bunches by chance");
    assert!(our_spread < 1.1 && our_spread < dice_spread, "{our_spread} by choice, {dice_spread} by dice");
    assert!(our_early < 1.25 && our_early < dice_early, "{our_early} by choice, {dice_early} by dice");
    assert!(our_late < 1.1 && our_late < dice_late, "{our_late} by choice, {dice_late} by dice");
    assert!(phased < 1.35, "{phased}: as even as a hash");
}
