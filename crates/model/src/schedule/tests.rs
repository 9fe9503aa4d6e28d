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
            learns: false,
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

// ---- Calendars ----

use crate::schedule::calendar::{Calendar, Days};

fn quiet(hours: &str, zone: &str, when: WhenExcluded) -> Exclusions {
    let zone = Some(super::calendar::zone(zone).unwrap());
    Exclusions { quiet: vec![hours.parse().unwrap()], zone, when, ..Exclusions::default() }
}

/// Monday to Friday.
fn business_days(when: WhenExcluded) -> Exclusions {
    let days = Days { weekdays: "mon-fri".parse().unwrap(), ..Days::default() };
    let office = Calendar { days: Some(days), ..Calendar::default() };
    let book = [("office".to_owned(), office)].into();
    Exclusions { book: std::sync::Arc::new(book), only: vec!["office".into()], when, ..Exclusions::default() }
}

#[test]
fn a_table_of_what_follows_with_calendars() {
    use WhenExcluded::{Next, Previous, Skip};
    // 1970-01-01 was a Thursday. Hours of UTC, and days.
    let h = |hours: i64| hours * 3_600;
    let night = |when| quiet("22:00-06:00", "UTC", when);
    let with = |schedule: Schedule, excluded: Exclusions| Schedule { excluded, ..schedule };
    let spread = |schedule: Schedule| Schedule { misfire: Misfire { spread: s(600), ..schedule.misfire }, ..schedule };
    let daily = |hour: u32| {
        let rhythm = Rhythm::Cron(Cron::parse(&format!("0 {hour} * * *"), None).unwrap());
        Schedule { rhythm, ..every(1, From::Finish) }
    };
    // Schedule, (nominal, started, finished) → (nominal, overlapped, misfired, excluded).
    let table = [
        (
            "by whole intervals",
            with(every(600, From::Finish), night(Skip)),
            (h(21), h(21), h(22) - 60),
            (h(30) + 540, 0, 0, 48),
        ),
        ("at the end", with(every(600, From::Finish), night(Next)), (h(21), h(21), h(22) - 60), (h(30), 0, 0, 47)),
        (
            "before it",
            with(every(600, From::Finish), night(Previous)),
            (h(21), h(21), h(22) - 300),
            (h(22) - 60, 0, 0, 0),
        ),
        (
            "before it is over",
            with(every(600, From::Finish), night(Previous)),
            (h(21), h(22) - 60, h(22) - 60),
            (h(30) + 540, 0, 0, 48),
        ),
        (
            "a place of its own in the day",
            with(every(86_400, From::Finish), night(Skip)),
            (0, h(23), h(23)),
            (h(56), 0, 0, 0),
        ),
        (
            "a grid",
            with(every(600, From::Nominal), night(Skip)),
            (h(22) - 600, h(22) - 600, h(22) - 590),
            (h(30), 0, 0, 48),
        ),
        (
            "a grid, at the end",
            with(every(600, From::Nominal), night(Next)),
            (h(22) - 600, h(22) - 600, h(22) - 590),
            (h(30), 0, 0, 48),
        ),
        (
            "a grid over an outage",
            with(every(600, From::Nominal), night(Skip)),
            (h(21), h(31), h(31) + 10),
            (h(31) + 600, 0, 12, 48),
        ),
        ("each is excluded", with(daily(23), night(Skip)), (h(23), h(23), h(23) + 1), (h(71), 0, 0, 1)),
        ("the end of the night", with(daily(23), night(Next)), (h(6), h(6), h(6) + 1), (h(30), 0, 0, 0)),
        ("business days", with(daily(9), business_days(Skip)), (h(33), h(33), h(33) + 1), (h(4 * 24 + 9), 0, 0, 2)),
        (
            "the next business day",
            with(daily(9), business_days(Next)),
            (h(33), h(33), h(33) + 1),
            (h(4 * 24 + 9), 0, 0, 2),
        ),
    ];
    for (label, schedule, (nominal, started, finished), expected) in table {
        let next = next(&schedule, ran(nominal, started, finished)).unwrap();
        let found = (next.nominal.as_millis() / 1_000, next.overlapped, next.misfired, next.excluded);
        assert_eq!(found, expected, "{label}");
        assert_eq!(next.due, next.nominal, "{label}");
    }
    // A fleet does not come at the end of the night at once.
    let late = spread(with(daily(23), night(Next)));
    let dues: Vec<Time> = (0..50)
        .map(|n| {
            let (balance, dice, wall_clock) = (Balance::default(), Entropy::seeded(n), WallClock::default());
            let setting = Setting { phase: 0.0, balance: &balance, dice: &dice, wall_clock: &wall_clock };
            late.next(ran(h(6), h(6), h(6) + 1), setting).unwrap().due
        })
        .collect();
    assert!(dues.iter().all(|due| (at(h(30))..at(h(30) + 600)).contains(due)), "{dues:?}");
    assert!(dues.iter().max().unwrap().since(*dues.iter().min().unwrap()) > s(300), "{dues:?}");
}

#[test]
fn what_comes_once_follows_its_calendars() {
    let friday = |hour: i64| at((24 + hour) * 3_600);
    let once = |excluded| Schedule { rhythm: Rhythm::At(friday(23)), excluded, ..every(1, From::Finish) };
    for (when, expected) in [
        (WhenExcluded::Skip, None),
        (WhenExcluded::Next, Some(friday(30))),
        (WhenExcluded::Previous, Some(friday(22) - s(60))),
    ] {
        let schedule = once(quiet("22:00-06:00", "UTC", when));
        let (balance, dice, wall_clock) = (Balance::default(), Entropy::seeded(1), WallClock::default());
        let setting = Setting { phase: 0.0, balance: &balance, dice: &dice, wall_clock: &wall_clock };
        assert_eq!(schedule.first(friday(0), s(0), setting).map(|first| first.due), expected, "{when:?}");
    }
}

#[test]
fn a_chain_that_calendars_leave_nothing_looks_again() {
    let nothing = Exclusions { only: vec!["gone".into()], ..Exclusions::default() };
    for schedule in [every(600, From::Finish), every(600, From::Nominal), every(600, From::Start), cron("5 * * * *")] {
        let schedule = Schedule { excluded: nothing.clone(), ..schedule };
        let (balance, dice, wall_clock) = (Balance::default(), Entropy::seeded(1), WallClock::default());
        let setting = Setting { phase: 0.0, balance: &balance, dice: &dice, wall_clock: &wall_clock };
        let next = schedule.next(ran(300, 300, 310), setting).unwrap();
        assert!((s(86_400)..s(90_000)).contains(&next.due.since(at(310))), "{schedule}: {}", next.due);
        assert!(next.excluded > 20, "{schedule}: {next:?}");
        let first = schedule.first(at(0), s(5), setting).unwrap();
        assert!(first.due.since(at(0)) >= s(86_400), "{schedule}: {first:?}");
        let asleep = Asleep { nominal: next.nominal, due: next.due, last_start: at(300), last_finish: at(310) };
        let why = schedule.because(asleep, at(400), 0.0, &wall_clock).unwrap();
        assert!(why.contains("no occurrence in the next ten years is allowed") && why.contains("looks again"), "{why}");
        assert_eq!(schedule.overslept(asleep, false, at(400), 0.0, &wall_clock), None, "{schedule}");
    }
}

#[test]
fn why_a_chain_sleeps_is_told() {
    let night = quiet("22:00-06:00", "Asia/Tokyo", WhenExcluded::Skip);
    let schedule = Schedule { excluded: night, ..every(600, From::Finish) };
    // 21:58 and 02:13 in Tokyo.
    let (last, now) = (at(12 * 3_600 + 58 * 60), at(17 * 3_600 + 13 * 60));
    let asleep =
        Asleep { nominal: at(21 * 3_600 + 480), due: at(21 * 3_600 + 480), last_start: last, last_finish: last };
    let told = |now| schedule.because(asleep, now, 0.0, &WallClock::default()).unwrap();
    let words = "the quiet hours 22:00-06:00 (Asia/Tokyo)";
    assert_eq!(told(now), format!("the next tick is 06:08: 02:13 is in {words}"));
    assert_eq!(told(last), format!("the next tick is 1970-01-02 06:08: 22:08 is in {words}"));
    assert_eq!(schedule.to_string(), "every 10m, quiet 22:00-06:00 (Asia/Tokyo)");
}

fn any_exclusions() -> impl Strategy<Value = Exclusions> {
    let when = prop_oneof![Just(WhenExcluded::Skip), Just(WhenExcluded::Next), Just(WhenExcluded::Previous)];
    let zone = prop_oneof![Just("Europe/Berlin"), Just("America/New_York"), Just("Asia/Tokyo")];
    let hours = prop_oneof![Just("22:00-06:00"), Just("01:30-02:30"), Just("08:00-20:00"), Just("12:00-12:10")];
    (hours, zone, any::<bool>(), when).prop_map(|(hours, zone, weekdays, when)| {
        let only = if weekdays { business_days(when) } else { Exclusions::default() };
        Exclusions { book: only.book, only: only.only, ..quiet(hours, zone, when) }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// However late and long runs are, wherever the clock changes: nothing is due in excluded time, nothing is due before
    /// the end of the run before, and each occurrence of a grid runs or is counted once.
    #[test]
    fn nothing_is_due_in_excluded_time_and_all_is_counted(
        schedule in any_schedule(),
        finish in any::<bool>(),
        excluded in any_exclusions(),
        phase in 0.0_f64..1.0,
        begin in prop_oneof![Just(1_774_656_000_i64), Just(1_792_800_000), Just(1_920_000_000)],
        ahead in -7_200_000_i64..7_200_000,
        runs in prop::collection::vec((0_u64..40_000, 0_u64..40_000), 1..12),
    ) {
        let rhythm = match (&schedule.rhythm, finish) {
            (Rhythm::Every { interval, .. }, true) => Rhythm::Every { interval: *interval, from: From::Finish },
            (rhythm, _) => rhythm.clone(),
        };
        // A fixed delay has no jitter as long as itself.
        let longest = match &rhythm { Rhythm::Every { interval, .. } => *interval / 2, _ => s(100) };
        let schedule = Schedule { excluded, rhythm, jitter: schedule.jitter.min(longest), ..schedule };
        let (balance, dice) = (Balance::default(), Entropy::seeded(5));
        let wall_clock = WallClock::default().set(at(1_000), ahead);
        let setting = Setting { phase, balance: &balance, dice: &dice, wall_clock: &wall_clock };
        let Some(mut tick) = schedule.first(at(begin), s(60), setting) else { panic!("{schedule}") };
        let comes = !schedule.excluded.excludes(wall_clock.wall(tick.due));
        prop_assume!(comes);
        let (first, mut counted, mut so_far) = (tick.nominal, 0, 1);
        for (late, long) in runs {
            let started = tick.due + s(late);
            let ran = Ran { nominal: tick.nominal, started, finished: started + s(long) };
            let next = schedule.next(ran, setting).unwrap();
            if schedule.misfire.policy != Catch::All && schedule.overlap == Overlap::Skip {
                let wall = wall_clock.wall(next.due);
                prop_assert!(!schedule.excluded.excludes(wall), "{} is excluded: {next:?} after {ran:?}", wall);
            }
            prop_assert!(next.due >= ran.finished, "{next:?} after {ran:?}");
            let asleep = Asleep { nominal: next.nominal, due: next.due, last_start: started, last_finish: ran.finished };
            prop_assert_eq!(schedule.overslept(asleep, false, ran.finished, phase, &wall_clock), None, "{:?}", next);
            counted += u64::from(next.overlapped) + u64::from(next.misfired) + u64::from(next.excluded);
            so_far += 1;
            tick = next;
        }
        let whole = matches!(schedule.rhythm, Rhythm::Every { from: From::Nominal, .. }) && schedule.excluded.when == WhenExcluded::Skip;
        if let (Rhythm::Every { interval, .. }, true, true) = (&schedule.rhythm, whole, schedule.spread_phase) {
            // Where an interval is longer than an allowed stretch, its occurrences are off the grid.
            let on_grid = |time: Time| (time.as_millis() - (interval.as_millis() as f64 * phase) as i64).rem_euclid(interval.as_millis() as i64) == 0;
            if on_grid(first) && on_grid(tick.nominal) && *interval < s(3_000) {
                let all = tick.nominal.since(first).as_millis() / interval.as_millis() + 1;
                prop_assert_eq!(u128::from(counted + so_far), all);
            }
        }
    }

    /// A sleeping chain that is asked again after its schedule has got calendars moves once at most, and never into
    /// excluded time.
    #[test]
    fn what_moves_for_calendars_moves_once(
        schedule in any_schedule(),
        finish in any::<bool>(),
        excluded in any_exclusions(),
        due in 0_u64..200_000,
        share in prop::option::of(0.0_f64..1.0),
    ) {
        let rhythm = match (&schedule.rhythm, finish) {
            (Rhythm::Every { interval, .. }, true) => Rhythm::Every { interval: *interval, from: From::Finish },
            (rhythm, _) => rhythm.clone(),
        };
        let schedule = Schedule { excluded, jitter: Duration::ZERO, spread_phase: false, rhythm, ..schedule };
        let (balance, dice, wall_clock) = (Balance::default(), Entropy::seeded(5), WallClock::default());
        let setting = Setting { phase: 0.0, balance: &balance, dice: &dice, wall_clock: &wall_clock };
        let now = at(1_774_656_000);
        let asleep = Asleep { nominal: now + s(due), due: now + s(due), last_start: now - s(100), last_finish: now - s(50) };
        if let Moved::To { nominal, due } = schedule.moved(asleep, now, share, setting) {
            prop_assert!(due >= now);
            prop_assert!(!schedule.excluded.excludes(due), "{due} is excluded");
            let again = schedule.moved(Asleep { nominal, due, ..asleep }, now, share, setting);
            prop_assert!(again == Moved::Fits || due == now || again == Moved::To { nominal, due }, "{due}, and then {again:?}");
        }
    }
}
