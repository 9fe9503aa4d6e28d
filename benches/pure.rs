//! The pure arithmetic that every tick goes through: `cargo bench --bench pure`.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use roundelay::clock::{Entropy, Time};
use roundelay::ids::{Epoch, TickNo};
use roundelay::job::Envelope;
use roundelay::ladder::{Ladder, rungs_of_interval};
use roundelay::ledger::Hint;
use roundelay::outcome::{Backoff, Course, Outcome, RetryPolicy, decide};
use roundelay::pacing::slots::{GrantRequest, Limits, StartRequest, State, Window};
use roundelay::schedule::{Balance, Cron, Ran, Rhythm, Schedule, Setting};
use roundelay::wall_clock::WallClock;

const NOW: Time = Time::from_millis(1_800_000_000_000);

const fn s(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn messages(criterion: &mut Criterion) {
    let hint = Hint {
        kind: "sync-app".into(),
        key: "com.example.app".into(),
        queue: "sync-tracked-ios".into(),
        epoch: Epoch(1_800_000_000_123_456),
        tick: TickNo(1_000),
        attempt: 1,
        due: NOW,
        parent: Epoch::NONE,
        priority: None,
    };
    let body = hint.envelope("0123456789abcdef").encode();
    criterion.bench_function("message/decode", |b| b.iter(|| Envelope::decode(black_box(&body)).is_ok()));
    criterion.bench_function("message/encode", |b| b.iter(|| black_box(&hint).envelope("0123456789abcdef").encode()));
}

fn ladder(criterion: &mut Criterion) {
    let ladder =
        Ladder::new([s(30), s(60), s(3_600)].into_iter().flat_map(|every| rungs_of_interval(every, every / 4)));
    let delays = [s(30), Duration::from_millis(61_234), Duration::from_millis(50_000_123)];
    criterion.bench_function("ladder/hop", |b| {
        b.iter(|| delays.map(|delay| ladder.hop(black_box(delay), Duration::from_millis(2))));
    });
    criterion.bench_function("ladder/all hops of 13 h", |b| b.iter(|| ladder.hops(black_box(delays[2]))));
}

/// 10,000 chains every minute. Each asks for its next time in turn.
fn schedules(criterion: &mut Criterion) {
    let cron = Rhythm::Cron(Cron::parse("*/5 * * * *", Some("Europe/Berlin")).expect("a cron expression"));
    let fixed = |jitter| Schedule::fixed_delay(s(60), jitter);
    let table = [
        ("schedule/after the finish", fixed(Duration::ZERO)),
        ("schedule/with jitter", fixed(s(15))),
        ("schedule/cron", Schedule { rhythm: cron, ..fixed(Duration::ZERO) }),
    ];
    for (name, schedule) in table {
        let (balance, dice, mut now) = (Balance::default(), Entropy::seeded(1), NOW);
        criterion.bench_function(name, |b| {
            b.iter(|| {
                now = now + Duration::from_millis(6);
                let ran = Ran { nominal: now, started: now, finished: now };
                schedule.next(
                    ran,
                    Setting { phase: 0.5, balance: &balance, dice: &dice, wall_clock: &WallClock::default() },
                )
            });
        });
    }
}

fn outcomes(criterion: &mut Criterion) {
    let schedule = Schedule::fixed_delay(s(60), Duration::ZERO);
    let (balance, dice, ladder) = (Balance::default(), Entropy::seeded(1), Ladder::new([s(60)]));
    let retry = RetryPolicy { attempts: 3, backoff: Backoff::List(vec![s(1), s(10)]) };
    criterion.bench_function("outcome/decide", |b| {
        b.iter(|| {
            let ran = Ran { nominal: NOW, started: NOW, finished: NOW };
            let setting = Setting { phase: 0.0, balance: &balance, dice: &dice, wall_clock: &WallClock::default() };
            let course = Course { schedule: &schedule, ran, setting, bounds: (Duration::ZERO, Duration::MAX) };
            decide(Some(course), &retry, 1, black_box(Outcome::Done), NOW, &ladder, &dice)
        });
    });
}

/// A request for a tenth of a second's slots of 500 per second, and one for a slot of 5 per minute whose burst counts.
fn slots(criterion: &mut Criterion) {
    let limits = |allow, per, burst| Limits { window: Window { allow, per }, burst, also: Vec::new() };
    let request = StartRequest { priority: 0, cost: 1, probe: false };
    for (name, limits, requests) in
        [("slots/50 of 500 per second", limits(500, s(1), 1), 50), ("slots/1 of 5 per minute", limits(5, s(60), 5), 1)]
    {
        let requests = vec![request; requests];
        criterion.bench_function(name, |b| {
            b.iter_batched(
                || {
                    let mut state = State::default();
                    state.grant(&limits, &GrantRequest { now: 0, ahead: 100_000, requests: &requests });
                    state
                },
                |mut state| state.grant(&limits, &GrantRequest { now: 100_000, ahead: 100_000, requests: &requests }),
                BatchSize::SmallInput,
            );
        });
    }
}

criterion_group!(benches, messages, ladder, schedules, outcomes, slots);
criterion_main!(benches);
