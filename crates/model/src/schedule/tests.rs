use proptest::prelude::*;

use super::*;
use crate::ladder::{AT_THE_DOOR, Hop, Ladder, rungs_of_interval};

const fn s(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const fn at(secs: i64) -> Time {
    Time::from_millis(secs * 1_000)
}

fn ran(nominal: i64, started: i64, finished: i64) -> Ran {
    Ran { nominal: at(nominal), started: at(started), finished: at(finished) }
}

/// What follows, with no phase and dice of no interest.
fn next(schedule: &Schedule, ran: Ran) -> Option<Occurrence> {
    schedule.next(
        ran,
        Setting {
            phase: 0.0,
            balance: &Balance::default(),
            dice: &Entropy::seeded(1),
            wall_clock: &WallClock::default(),
        },
    )
}

fn every(interval: u64, from: From) -> Schedule {
    Schedule { rhythm: Rhythm::Every { interval: s(interval), from }, ..Schedule::fixed_delay(s(1), Duration::ZERO) }
}

fn cron(text: &str) -> Schedule {
    let rhythm = Rhythm::Cron(Cron::parse(text, Some("Europe/Berlin")).unwrap());
    Schedule { rhythm, ..Schedule::fixed_delay(s(1), Duration::ZERO) }
}

fn catching(policy: Catch, window: Option<u64>, spread: u64) -> Schedule {
    let misfire = Misfire { policy, window: window.map(s), spread: s(spread) };
    Schedule { misfire, ..every(60, From::Nominal) }
}

fn overlapping(overlap: Overlap, from: From) -> Schedule {
    Schedule { overlap, ..every(60, from) }
}

#[test]
fn a_table_of_what_follows() {
    use Catch::{All, Coalesce, Skip};
    let nominal = || every(60, From::Nominal);
    let start = || every(60, From::Start);
    // Schedule, (nominal, started, finished) → (nominal, due, overlapped, misfired).
    let table = [
        ("from finish", every(60, From::Finish), (0, 5, 20), (80, 80, 0, 0)),
        ("from start", start(), (0, 5, 20), (65, 65, 0, 0)),
        ("from start, too long", start(), (0, 5, 70), (125, 125, 1, 0)),
        ("from start, on the dot", start(), (0, 0, 60), (120, 120, 1, 0)),
        ("from start, buffered", overlapping(Overlap::BufferOne, From::Start), (0, 5, 70), (65, 70, 0, 0)),
        ("from nominal", nominal(), (0, 5, 20), (60, 60, 0, 0)),
        ("from nominal, began early", nominal(), (60, 50, 55), (120, 120, 0, 0)),
        ("from nominal, too long", nominal(), (0, 5, 190), (240, 240, 3, 0)),
        ("from nominal, late", nominal(), (0, 130, 140), (180, 180, 0, 2)),
        ("from nominal, late and too long", nominal(), (0, 130, 200), (240, 240, 1, 2)),
        ("buffer one", overlapping(Overlap::BufferOne, From::Nominal), (0, 5, 190), (180, 190, 2, 0)),
        ("buffer one, in time", overlapping(Overlap::BufferOne, From::Nominal), (0, 5, 50), (60, 60, 0, 0)),
        ("buffer one, late", overlapping(Overlap::BufferOne, From::Nominal), (0, 130, 140), (180, 180, 0, 2)),
        ("cancel other", overlapping(Overlap::CancelOther, From::Nominal), (0, 5, 61), (60, 61, 0, 0)),
        ("coalesce", catching(Coalesce, None, 0), (0, 310, 320), (360, 360, 0, 5)),
        ("skip", catching(Skip, None, 0), (0, 310, 320), (360, 360, 0, 5)),
        ("all", catching(All, None, 0), (0, 310, 320), (60, 320, 0, 0)),
        ("all, spread", catching(All, None, 50), (0, 310, 320), (60, 330, 0, 0)),
        ("all, the last one", catching(All, None, 50), (240, 310, 320), (300, 370, 0, 0)),
        ("all, in time again", catching(All, None, 50), (300, 320, 330), (360, 360, 0, 0)),
        ("all, some are too old", catching(All, Some(130), 0), (0, 310, 320), (240, 320, 0, 3)),
        ("all, all are too old", catching(All, Some(5), 0), (0, 310, 320), (360, 360, 0, 5)),
        ("hourly", cron("5 * * * *"), (300, 300, 310), (3_900, 3_900, 0, 0)),
        ("hourly, late", cron("5 * * * *"), (300, 8_000, 8_010), (11_100, 11_100, 0, 2)),
        ("hourly, too long", cron("5 * * * *"), (300, 300, 8_010), (11_100, 11_100, 2, 0)),
    ];
    for (label, schedule, (nominal, started, finished), expected) in table {
        let next = next(&schedule, ran(nominal, started, finished)).unwrap();
        let expected = Occurrence {
            nominal: at(expected.0),
            due: at(expected.1),
            overlapped: expected.2,
            misfired: expected.3,
            excluded: 0,
        };
        assert_eq!(next, expected, "{label}");
    }
}

#[test]
fn what_comes_once_has_no_next() {
    let once = Schedule { rhythm: Rhythm::At(at(100)), ..every(1, From::Finish) };
    let setting = Setting {
        phase: 0.0,
        balance: &Balance::default(),
        dice: &Entropy::seeded(1),
        wall_clock: &WallClock::default(),
    };
    assert_eq!(once.first(at(5), s(3), setting).map(|first| first.due), Some(at(100)));
    assert_eq!(next(&once, ran(100, 101, 102)), None);
    assert_eq!(next(&once, ran(100, 50, 60)), None, "also when it was brought forward");
}

/// The timelines of a cron service that measures its intervals from the nominal time, keeps what it
/// has missed, and drops what follows another start too closely: minutes and seconds as `mmss`.
#[test]
fn four_timelines() {
    let schedule = catching(Catch::All, None, 0);
    let time = |mmss: i64| mmss / 100 * 60 + mmss % 100;
    let table = [
        // Little congestion.
        ((30, 35, 45), 130),
        // A full queue.
        ((30, 135, 138), 130),
        ((130, 237, 240), 230),
        // Late first, early second: the one at 02:03 is dropped.
        ((130, 203, 203), 230),
        ((230, 256, 257), 330),
        // The quota is used up.
        ((30, 35, 105), 130),
    ];
    for ((nominal, started, finished), expected) in table {
        let next = next(&schedule, ran(time(nominal), time(started), time(finished))).unwrap();
        assert_eq!(next.nominal, at(time(expected)), "after the one of {nominal:04}");
        assert_eq!((next.overlapped, next.misfired), (0, 0), "nothing is left out after the one of {nominal:04}");
    }
}

#[test]
fn a_fixed_delay_with_jitter_takes_one_rung_within_its_window_and_the_mean_holds() {
    for (interval, jitter) in [(60, 15), (120, 60), (5, 2), (3_600, 1_800), (86_400, 43_200)] {
        let schedule = Schedule::fixed_delay(s(interval), s(jitter));
        let ladder = Ladder::new(rungs_of_interval(s(interval), s(jitter)));
        let (balance, dice) = (Balance::default(), Entropy::seeded(42));
        let setting = Setting { phase: 0.0, balance: &balance, dice: &dice, wall_clock: &WallClock::default() };
        let mut now = at(1_000_000);
        let mut sum = Duration::ZERO;
        for _ in 0..2_000 {
            let due = schedule.next(Ran { nominal: now, started: now, finished: now }, setting).unwrap().due;
            let delay = due.since(now);
            assert!((s(interval - jitter)..=s(interval + jitter)).contains(&delay));
            // One hop, and then the door.
            let Hop::Last { rung } = ladder.hop(delay, Duration::ZERO) else { panic!("{delay:?} takes more hops") };
            assert_eq!(delay - rung, AT_THE_DOOR);
            sum += delay;
            now = due;
        }
        let mean = sum.as_secs_f64() / 2_000.0;
        assert!((mean / interval as f64 - 1.0).abs() < 0.03, "{interval} s ± {jitter} s: mean {mean} s");
    }
}

#[test]
fn jitter_on_a_grid_is_symmetric_and_never_adds_up() {
    let schedule = Schedule { jitter: s(15), ..every(60, From::Nominal) };
    let (balance, dice) = (Balance::default(), Entropy::seeded(3));
    let setting = Setting { phase: 0.0, balance: &balance, dice: &dice, wall_clock: &WallClock::default() };
    let (mut tick, mut sum) = (ran(0, 0, 1), 0);
    for n in 1..=1_000 {
        let next = schedule.next(tick, setting).unwrap();
        assert_eq!(next.nominal, at(60 * n), "the grid stays where it is");
        let off = next.due.as_millis() - next.nominal.as_millis();
        assert!(off.abs() <= 15_000, "{off} ms");
        sum += off;
        tick = Ran { nominal: next.nominal, started: next.due, finished: next.due + s(1) };
    }
    assert!((sum / 1_000).abs() < 1_000, "{} ms on average", sum / 1_000);
}

#[test]
fn jitter_never_passes_the_next_nominal_time() {
    let wide = Schedule { jitter: s(3_600), ..cron("* * * * *") };
    let (balance, dice) = (Balance::default(), Entropy::seeded(3));
    for _ in 0..100 {
        let next = wide
            .next(
                ran(0, 0, 1),
                Setting { phase: 0.0, balance: &balance, dice: &dice, wall_clock: &WallClock::default() },
            )
            .unwrap();
        assert!(next.due < at(120) && next.due >= at(1), "{}", next.due);
    }
}

#[test]
fn spread_phases_are_stable_even_and_one_for_each_interval() {
    let fleet = |schedule: &Schedule, now: i64| -> Vec<i64> {
        let balance = Balance::default();
        let first = |n: i64| {
            let phase = phase("k", &n.to_string());
            let setting = Setting {
                phase,
                balance: &balance,
                dice: &Entropy::seeded(n as u64),
                wall_clock: &WallClock::default(),
            };
            schedule.first(at(now), s(0), setting).unwrap().nominal.as_millis()
        };
        (0..1_000).map(first).collect()
    };
    for schedule in [
        Schedule { spread_phase: true, ..every(3_600, From::Nominal) },
        Schedule { spread_phase: true, ..cron("@hourly") },
    ] {
        let firsts = fleet(&schedule, 7_200);
        assert_eq!(firsts, fleet(&schedule, 7_200), "stable");
        let later: Vec<i64> = fleet(&schedule, 7_200 + 3_600).iter().map(|ms| ms - 3_600_000).collect();
        assert_eq!(firsts, later, "the same place in every interval");
        let mut quarters = [0; 4];
        firsts.iter().for_each(|ms| quarters[((ms / 1_000 - 7_200) / 900) as usize] += 1);
        assert!(quarters.iter().all(|count| (200..300).contains(count)), "{schedule}: {quarters:?}");
        // And the grid goes on from there.
        let phase = phase("k", "0");
        let nominal = Time::from_millis(firsts[0]);
        let setting = Setting {
            phase,
            balance: &Balance::default(),
            dice: &Entropy::seeded(1),
            wall_clock: &WallClock::default(),
        };
        let tick = Ran { nominal, started: nominal, finished: nominal + s(1) };
        assert_eq!(schedule.next(tick, setting).unwrap().nominal, nominal + s(3_600), "{schedule}");
    }
}

#[test]
fn a_run_is_cancelled_when_the_next_occurrence_comes() {
    let table = [
        (overlapping(Overlap::CancelOther, From::Nominal), Some(at(60))),
        (overlapping(Overlap::CancelOther, From::Start), Some(at(65))),
        (overlapping(Overlap::Skip, From::Nominal), None),
    ];
    let setting = Setting {
        phase: 0.0,
        balance: &Balance::default(),
        dice: &Entropy::seeded(1),
        wall_clock: &WallClock::default(),
    };
    for (schedule, expected) in table {
        assert_eq!(schedule.cancelled_at(at(0), at(5), setting), expected, "{schedule} {:?}", schedule.overlap);
    }
}

#[test]
fn a_spread_is_even_and_inside_its_window() {
    let table = [(0, 0, 0), (0, 1, 5_000), (0, 2, 2_500), (1, 2, 7_500), (9, 10, 9_500), (99, 10, 9_500)];
    for (n, count, ms) in table {
        assert_eq!(spread(n, count, s(10)).as_millis(), ms, "{n} of {count}");
    }
}

fn any_schedule() -> impl Strategy<Value = Schedule> {
    let every = (1_u64..5_000, prop_oneof![Just(From::Start), Just(From::Nominal)])
        .prop_map(|(interval, from)| Rhythm::Every { interval: s(interval), from });
    let cron = prop_oneof![Just("* * * * *"), Just("*/7 * * * *"), Just("5 */4 * * *"), Just("30 2 * * *")]
        .prop_map(|text| Rhythm::Cron(Cron::parse(text, Some("Europe/Berlin")).unwrap()));
    let overlap = prop_oneof![Just(Overlap::Skip), Just(Overlap::BufferOne), Just(Overlap::CancelOther)];
    let policy = prop_oneof![Just(Catch::Skip), Just(Catch::Coalesce), Just(Catch::All)];
    (prop_oneof![every, cron], 0_u64..100, any::<bool>(), overlap, policy, prop::option::of(0_u64..10_000)).prop_map(
        |(rhythm, jitter, spread_phase, overlap, policy, window)| Schedule {
            rhythm,
            jitter: s(jitter),
            spread_phase,
            overlap,
            misfire: Misfire { policy, window: window.map(s), spread: s(5) },
            excluded: Exclusions::default(),
        },
    )
}

proptest! {
    /// However late and long runs are, the grid goes on: no occurrence comes twice, none is due in
    /// the past, and each that was passed over is counted once.
    #[test]
    fn every_occurrence_runs_or_is_counted(
        schedule in any_schedule(),
        phase in 0.0_f64..1.0,
        runs in prop::collection::vec((0_u64..20_000, 0_u64..20_000), 1..20),
    ) {
        let (balance, dice) = (Balance::default(), Entropy::seeded(5));
        let setting = Setting { phase, balance: &balance, dice: &dice, wall_clock: &WallClock::default() };
        let begin = at(1_774_656_000);
        let mut tick = schedule.first(begin, Duration::ZERO, setting).unwrap();
        let (first, mut counted, mut runs_so_far) = (tick.nominal, 0, 1);
        for (late, long) in runs {
            let started = tick.due + s(late);
            let ran = Ran { nominal: tick.nominal, started, finished: started + s(long) };
            let next = schedule.next(ran, setting).unwrap();
            prop_assert!(next.due >= ran.finished);
            if !matches!(schedule.rhythm, Rhythm::Every { from: From::Start, .. }) {
                prop_assert!(next.nominal > tick.nominal);
            }
            counted += u64::from(next.overlapped) + u64::from(next.misfired);
            runs_so_far += 1;
            tick = next;
        }
        // A grid that moves with each start has no total to compare with, and that of a wall clock is
        // counted elsewhere.
        if let Rhythm::Every { interval, from: From::Nominal } = schedule.rhythm {
            let all = tick.nominal.since(first).as_millis() / interval.as_millis() + 1;
            prop_assert_eq!(u128::from(counted + runs_so_far), all);
        }
    }
}
