//! Whole screens of 80×24 as text, what larger ones have more, and how keys and answers change the state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};
use roundelay_admin::inspect::broker::BrokerStatus;
use roundelay_admin::inspect::chain::{AttemptReport, ChainReport, Entity};
use roundelay_admin::inspect::status_cache::{Facts, ThrottledNow};
use roundelay_admin::inspect::throttles::{ConfiguredLimits, Hold, KeyReport, ThrottleReport, WindowReport};
use roundelay_broker::{Depth, Rates};
use roundelay_config::Config;
use roundelay_engine::holds::Holds;
use roundelay_ledger::{Census, QueueCensus, SeenWorker};
use roundelay_model::clock::Time;
use roundelay_model::fleet::{
    FleetOrder, FleetOrders, Lateness, Presence, QueuePresence, Rhythm, Subject, WorkerState,
};
use roundelay_model::ids::{Epoch, Fence, TickNo};
use roundelay_model::wall_clock::At;
use serde_json::Value;

use super::draw::{Paint, draw};
use super::order::{Action, Order};
use super::state::{Effect, Input, Key, Query, QueryAnswer, Row, Screen, Show, State, update};

const CONFIG: &str = r#"
[queues.sync-ios]
throttle = "ios"
[queues.sync-android]
[throttles.ios]
allow = 5
per = "1s"
"#;

/// A time this many seconds after 03:12:44 of a night.
const fn at(secs: i64) -> Time {
    Time::from_millis((1_772_334_764 + secs) * 1_000)
}

fn state(read_only: bool) -> State {
    let config = Config::parse(CONFIG, "r.toml", []).unwrap();
    State::new(Arc::new(config), read_only, Duration::from_secs(2), at(0))
}

/// Updates the state with one input; this machine's clock equals the ledger's, at this many seconds.
fn step(state: State, secs: i64, input: Input) -> (State, Vec<Effect>) {
    update(state, at(secs), input)
}

fn pressed(state: State, keys: &[Key]) -> (State, Vec<Effect>) {
    keys.iter().fold((state, Vec::new()), |(state, mut all), key| {
        let now = state.now;
        let (state, effects) = update(state, now, Input::Key(*key));
        all.extend(effects);
        (state, all)
    })
}

fn typed(text: &str) -> Vec<Key> {
    text.chars().map(Key::Char).collect()
}

fn worker(name: &str, seen: i64, state: WorkerState, queue: &str, running: i64) -> SeenWorker {
    let late_ms = Lateness { p50: 2.0, p99: 7.0, max: 15.0 };
    let queue = QueuePresence {
        queue: queue.into(),
        concurrency: 16,
        running,
        waiting: 2,
        open: state == WorkerState::Working,
        starts_per_second: 1.5,
        late_ms,
    };
    let presence = Presence {
        worker: name.into(),
        host: "ops-1".into(),
        pid: 4711,
        version: "0.1.0".into(),
        started: at(-7_400),
        state,
        queues: vec![queue],
        kinds: vec!["sync-app".into()],
        leases: 3,
        oldest: Vec::new(),
    };
    SeenWorker { presence, seen: at(seen) }
}

/// Facts of a night on which something is wrong.
fn facts() -> Facts {
    let queue = |name: &str, sleeping, due, overdue| QueueCensus {
        queue: name.into(),
        sleeping,
        running: 3,
        due,
        overdue,
        oldest_due: (overdue > 0).then_some(at(-164)),
        ..QueueCensus::default()
    };
    let census = Census {
        queues: vec![queue("sync-android", 1_234_567, 0, 0), queue("sync-ios", 12_000, 40, 12)],
        paused: 5,
        retired: 17,
        failures: 2,
        ..Census::default()
    };
    let mut paused = FleetOrders::default();
    paused.add(FleetOrder::Close { why: "they are down\x1b[31m".into() }, "ann@ops", at(-200));
    let depth = |ready, consumers| Ok(Depth { ready, consumers });
    let sets = (0..300).map(|n| (at(-3_004 + n * 10), 10 + n as u64 % 30, Some(7.0)));
    Facts {
        now: at(0),
        wall_clock: Default::default(),
        asked_at: Some(at(-2)),
        census: Some((census, at(-4))),
        kinds: Vec::new(),
        asked: BrokerStatus::Depths(
            [("sync-ios", depth(37, 0)), ("sync-android", depth(0, 2))].map(|(q, d)| (q.into(), d)).into(),
        ),
        rates: BTreeMap::from([("sync-android".into(), Rates { published: 12.5, delivered: 12.25, asleep: 0 })]),
        workers: vec![
            worker("4711-8c1f0a2b3c4d5e6f", -3, WorkerState::Working, "sync-android", 3),
            worker("4712-0a2b3c4d5e6f8c1f", -50, WorkerState::Working, "sync-ios", 0),
            worker("4713-2b3c4d5e6f8c1f0a", -1, WorkerState::Draining, "sync-ios", 1),
        ],
        orders: BTreeMap::from([(Subject::Queue("sync-android".into()), paused)]),
        holds: Holds::default(),
        rhythm: Rhythm { sets: sets.collect(), seconds: Vec::new(), peak_to_mean: Some(1.3), per_second: 2.5 },
        recent_late: Some(Lateness { p50: 2.0, p99: 7.0, max: 15.0 }),
        waiting: BTreeMap::from([("ios".into(), 2)]),
        throttled: vec![ThrottledNow {
            name: "ios".into(),
            words: "the throttle ios lets one start at a time try: the next slot opens in less than 1s, 2 wait".into(),
            in_the_way: true,
            limits: None,
        }],
        ledger_why: None,
    }
}

fn throttles() -> Vec<ThrottleReport> {
    let window = |allow, per_ms, used| WindowReport { allow, per_ms, used };
    let key = |windows, held| KeyReport {
        key: String::new(),
        windows,
        opens: At::wall(at(1)),
        held,
        gentle_until: None,
        probing: false,
        budget: None,
    };
    let hold = Hold { until: At::wall(at(1_200)), why: "they are down".into(), by: Some("ann@ops".into()) };
    let throttle = |name: &str, keys, hold: Option<Hold>, in_the_way: Option<&str>| ThrottleReport {
        name: name.into(),
        scope: "fleet",
        keyed_by: None,
        burst: 1,
        ordered: None,
        configured: ConfiguredLimits { allow: 5, per_ms: 1_000, burst: 1 },
        hold,
        waiting: 2,
        in_the_way: in_the_way.map(str::to_owned),
        shortage: None,
        only_used: false,
        queues: vec!["sync-ios".into()],
        budget_headers: None,
        remembered: 1,
        keys,
    };
    vec![
        throttle(
            "ios",
            vec![key(vec![window(5, 1_000, 5), window(100, 60_000, 52)], None)],
            None,
            Some("the throttle ios is used up (5 of 5 in 1s): the next slot opens in less than 1s, 2 wait"),
        ),
        throttle(
            "play",
            vec![key(vec![window(1_000, 60_000, 0)], Some(hold.clone()))],
            Some(hold),
            Some("the throttle play is held"),
        ),
    ]
}

fn late() -> Vec<Row> {
    let row = |key: &str, secs: i64, doing| Row {
        kind: "sync-app".into(),
        key: key.into(),
        queue: "sync-ios".into(),
        doing,
        due: at(-secs),
        late: Some(Duration::from_secs(secs as u64)),
    };
    let long = "ios/an-application-whose-name-is-so-long-that-it-has-to-lose-its-middle/17";
    vec![row("ios/maps", 164, "late"), row(long, 90_061, "late"), row("ios/\x1b]0;owned\x07", 40, "quarantined")]
}

fn attempt(number: i64, key: &str, verdict: Option<&str>, reason: Option<&str>) -> AttemptReport {
    AttemptReport {
        manual: false,
        fence: Fence(number),
        epoch: Epoch(1),
        kind: Some("sync-app".into()),
        key: Some(key.into()),
        tick: TickNo(number),
        attempt: 1,
        worker: "4711-8c1f0a2b3c4d5e6f".into(),
        due: At::wall(at(-10)),
        started: At::wall(Time::from_millis(at(-10).as_millis() + 7)),
        finished: verdict.map(|_| At::wall(at(-9))),
        verdict: verdict.map(str::to_owned),
        reason: reason.map(str::to_owned),
        overlapped: 0,
        misfired: 0,
        excluded: 0,
        progress: None,
    }
}

fn runs() -> Vec<AttemptReport> {
    vec![
        attempt(9, "ios/maps", None, None),
        attempt(8, "ios/notes", Some("failed"), Some("HTTP 500: \x1b[2Jit broke")),
        attempt(7, "android/notes", Some("done"), None),
    ]
}

fn entity() -> Entity {
    let chain = ChainReport {
        kind: "sync-app".into(),
        key: "ios/maps".into(),
        queue: "sync-ios".into(),
        priority: None,
        epoch: Epoch(1),
        tick: TickNo(10),
        attempt: 1,
        due: At::wall(at(-164)),
        nominal: At::wall(at(-164)),
        state: "active",
        doing: "late",
        once: false,
        why: "no worker consumes its queue, where 37 messages wait; its message was sent, and may be among the 37 \
              that wait on its queue; catch-up looks next at 2026-03-01T03:13:10.000Z"
            .into(),
        unavailable: None,
        progress: None,
        depth: 0,
        owner: Some("channel-9".into()),
        owner_state: Some("active"),
        schedule: Some("every 60m, as its kind".into()),
        own_schedule: None,
        learned: None,
        next: Vec::new(),
        sent: true,
        looks: 0,
        watch_at: At::wall(at(26)),
        last_start: None,
        last_finish: None,
        sealed: None,
        carry: None,
        payload: Value::Null,
        batch: None,
        attempts: vec![
            attempt(9, "ios/maps", Some("failed"), Some("HTTP 503")),
            attempt(8, "ios/maps", Some("done"), None),
        ],
    };
    Entity { now: At::wall(at(0)), chain: Some(chain), single: None, failures: Vec::new(), running: Vec::new() }
}

/// A state with all facts.
fn told(read_only: bool) -> State {
    let (state, _) = step(state(read_only), 0, Input::Facts(Arc::new(facts())));
    state
}

/// A state with a screen open, and the screen's data answered.
fn on(state: State, key: char) -> State {
    let (state, effects) = pressed(state, &[Key::Char(key)]);
    let answer = match effects.as_slice() {
        [Effect::Ask(query @ Query::Throttles)] => Some((query.clone(), QueryAnswer::Throttles(throttles()))),
        [Effect::Ask(query @ Query::Chains(_))] => Some((query.clone(), QueryAnswer::Chains(late(), false))),
        [Effect::Ask(query @ Query::Runs(_))] => Some((query.clone(), QueryAnswer::Runs(runs()))),
        _ => None,
    };
    match answer {
        Some((query, answer)) => step(state, 0, Input::QueryAnswer(query, Ok(answer))).0,
        None => state,
    }
}

fn opened(state: State) -> State {
    let (state, effects) = pressed(state, &[Key::Enter]);
    let [Effect::Ask(query)] = effects.as_slice() else { panic!("{effects:?}") };
    step(state, 0, Input::QueryAnswer(query.clone(), Ok(QueryAnswer::Chain(Box::new(entity()))))).0
}

fn buffer(state: &State, colours: bool, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(state, Paint { colours }, frame)).unwrap();
    terminal.backend().buffer().clone()
}

fn screen(state: &State) -> String {
    screen_of(state, (80, 24))
}

fn screen_of(state: &State, (width, height): (u16, u16)) -> String {
    let buffer = buffer(state, false, width, height);
    let row = |y| {
        let cells = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    (0..buffer.area.height).map(row).collect::<Vec<_>>().join("\n")
}

#[track_caller]
fn assert_screen(state: &State, expected: &str) {
    assert_screen_of(state, (80, 24), expected);
}

#[track_caller]
fn assert_screen_of(state: &State, size: (u16, u16), expected: &str) {
    let shown = screen_of(state, size);
    assert!(!shown.chars().any(|letter| letter.is_control() && letter != '\n'), "{shown:?}");
    assert!(shown == expected.trim_matches('\n'), "\n{shown}\n");
}

#[test]
fn the_overview() {
    assert_screen(&told(false), OVERVIEW);
}

#[test]
fn the_queues() {
    assert_screen(&on(told(false), '2'), QUEUES);
}

#[test]
fn the_throttles() {
    assert_screen(&on(told(false), '3'), THROTTLES);
}

#[test]
fn the_late_chains() {
    assert_screen(&on(told(false), '4'), LATE);
}

#[test]
fn one_chain_and_why_it_does_not_run() {
    assert_screen(&opened(on(told(false), '4')), CHAIN);
}

#[test]
fn the_workers() {
    assert_screen(&on(told(true), '5'), WORKERS);
}

#[test]
fn the_log() {
    let (state, _) = pressed(on(told(false), '6'), &[Key::Down, Key::Char(' ')]);
    assert_screen(&state, LOG);
}

#[test]
fn the_help() {
    assert_screen(&pressed(told(false), &[Key::Char('?')]).0, HELP);
}

#[test]
fn a_tall_terminal_has_tables_below_what_is_wrong() {
    assert_screen_of(&told(false), (80, 48), TALL);
}

/// Spaces in a row count as one: at such widths, lines are mostly spaces.
#[test]
fn a_wide_terminal_has_more_columns_and_tables_side_by_side() {
    let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let large = (200, 60);
    /// The key of a screen (`!`: an open chain), the size of the terminal, and what is within lines.
    type Case = (char, (u16, u16), &'static [&'static str]);
    let table: [Case; 8] = [
        (
            '1',
            large,
            &[
                "sleeping due for a slot running LATE held paused FAILING",
                "its highest p99 late 7ms, and the last hour, with 7ms at its highest",
                "oldest due since 03:10:00 (2m 44s ago) ERROR no worker consumes the queue sync-ios, where 40 chains",
                "2 queues warning 2 entities",
                "queue state due late held ready running starts/s p99 late held the queue sync-android is paused by",
                "sync-ios NO CONS. 40 12 0 37 3/0 1.5 7ms",
                "1 throttle worker state heard of up running for a slot starts/s p99 late",
                "throttle state starts/s limit wait why 4711-8c1f0a2b3c4d5e6f working 3s 2h 3m 3/16 2 1.5 7ms",
                "ios SLOWED 1.5 5 in 1s 2 lets one start at a time try: the ne… 4712-0a2b3c4d5e6f8c1f SILENT 50s",
            ],
        ),
        (
            '1',
            (140, 24),
            &[
                "queue state due late held running starts/s ↓ 6 more lines",
                "sync-ios NO CONS. 40 12 0 3/0 1.5 3 workers",
                "ios SLOWED 1.5 5 in 1s 2 4713-2b3c4d5e6f8c1f0a DRAINING 1s 1/16 1.5",
            ],
        ),
        (
            '2',
            large,
            &[
                "queue state sleeping due late held oldest ready cons. in/s out/s running starts/s p99 late throttle",
                ">sync-android PAUSED 1,234,567 0 0 0 - 0 2 12.5 12.2 3/16 1.5 7ms -",
                "sync-ios NO CONS. 12,000 40 12 0 2m 44s 37 0 - - 3/0 1.5 7ms ios",
                "workers 4711-8c1f0a2b3c4d5e6f (3 of 16)",
            ],
        ),
        (
            '3',
            large,
            &[
                ">ios USED UP 2 wait sync-ios is used up (5 of 5 in 1s): the next slot opens in less…",
                "play HELD 2 wait sync-ios is held",
                "configured 5 in 1s, burst 1",
            ],
        ),
        (
            '4',
            large,
            &[
                "kind key queue does due late by",
                "sync-app ios/an-application-whose-name-is-so-long-that-it-has-to-lose-its-middle/17 sync-ios LATE \
                 02-28 02:11 1d 1h",
            ],
        ),
        (
            '5',
            large,
            &[
                "worker state heard of up running for a slot leases starts/s p99 late version queues",
                ">4711-8c1f0a2b3c4d5e6f working 3s 2h 3m 3/16 2 3 1.5 7ms 0.1.0 sync-android",
            ],
        ),
        (
            '6',
            large,
            &[
                "started chain tick outcome took late by worker reason",
                "03:12:34 sync-app ios/notes 8.1 failed 993ms 7ms 4711-8c1f0a2b3c4d5e6f HTTP 500: ␛[2Jit broke",
            ],
        ),
        (
            '!',
            large,
            &[
                "does late, for 2m 44s, on the queue sync-ios last runs 03:12:34 tick 9.1 failed after 993ms, 7ms \
                 late, on 4711-8c1f0a2b3c4d5e6f: HTTP 503",
                "message sent",
            ],
        ),
    ];
    for (key, size, expected) in table {
        let state = if key == '!' { opened(on(told(false), '4')) } else { on(told(false), key) };
        let shown = screen_of(&state, size);
        let lines: Vec<String> = shown.lines().map(line).collect();
        for wanted in expected {
            assert!(lines.iter().any(|line| line.contains(wanted)), "{wanted}\n{shown}");
        }
    }
}

#[test]
fn blocks_that_have_no_room_are_cut_and_say_so() {
    let one = |n: u32| worker(&format!("{n}-of-many"), -1, WorkerState::Working, "sync-ios", 1);
    let many = Facts { workers: (0..40).map(one).collect(), ..facts() };
    let (state, _) = step(state(false), 0, Input::Facts(Arc::new(many)));
    let shown = screen_of(&state, (140, 24));
    assert!(shown.contains("40 workers") && shown.contains("0-of-many") && shown.contains("more lines"), "{shown}");
    assert!(!shown.contains("39-of-many") && shown.ends_with("scroll what is wrong"), "{shown}");
}

#[test]
fn a_hold_is_asked_about_before_it_is_ordered() {
    let asked = on(told(false), '3');
    let keys = [vec![Key::Down, Key::Char('h')], typed("30m"), vec![Key::Enter], typed("they are down")].concat();
    let (state, effects) = pressed(asked, &keys);
    assert_eq!(effects, []);
    assert_screen(&state, HOLD);
    let (state, effects) = pressed(state, &[Key::Enter, Key::Char('y')]);
    let order =
        Order { action: Action::Hold("play".into()), span: Duration::from_secs(1_800), why: "they are down".into() };
    assert_eq!(effects, [Effect::Give(order)]);
    assert_eq!(state.giving, 1);
    let (state, _) = step(state, 1, Input::Given(Err("the ledger is away".into())));
    assert_eq!(state.giving, 0);
    assert!(screen(&state).contains("NOT DONE: the ledger is away"), "{}", screen(&state));
}

#[test]
fn what_cannot_be_asked_is_said_and_the_last_figures_stay_and_are_marked() {
    let known = on(told(false), '2');
    let away = Facts {
        asked: BrokerStatus::Away("connection refused".into()),
        rates: BTreeMap::new(),
        ledger_why: Some("the server does not answer".into()),
        ..facts()
    };
    let (state, _) = step(known, 10, Input::Facts(Arc::new(away.clone())));
    let (state, _) = step(state, 55, Input::Facts(Arc::new(away)));
    assert_screen(&state, AWAY);
    // And all is well again.
    let back = Facts { now: at(60), asked_at: Some(at(60)), ..facts() };
    let (state, _) = step(state, 60, Input::Facts(Arc::new(back)));
    assert!(!screen(&state).contains('!'), "{}", screen(&state));
    // A broker that answers slowly, and is not known to be unavailable.
    let slow = Facts { now: at(76), asked_at: Some(at(60)), ..facts() };
    let (waiting, _) = step(state.clone(), 76, Input::Facts(Arc::new(slow)));
    let words = "! OLD FIGURES, of 03:13:44: the broker has not answered for 16s";
    assert!(screen(&waiting).contains(words) && screen(&waiting).contains("~37"), "{}", screen(&waiting));
    // The broker need not report that it is unavailable.
    let (state, _) = step(state, 80, Input::Tick);
    assert!(
        screen(&state).contains("! OLD FIGURES, of 03:13:44: the ledger has not answered for 20s"),
        "{}",
        screen(&state)
    );
}

#[test]
fn nothing_is_known_at_first_and_a_ledger_may_be_away_from_the_beginning() {
    assert!(screen(&state(false)).contains("asking the ledger and the broker"), "{}", screen(&state(false)));
    let (state, _) = step(state(false), 1, Input::NoLedger("connection refused".into()));
    let (state, _) = step(state, 9, Input::NoLedger("connection refused".into()));
    let words = "! nothing is known yet: the ledger cannot be asked since 03:12:45 (8s ago):";
    assert!(screen(&state).contains(words), "{}", screen(&state));
}

#[test]
fn without_colours_nothing_is_coloured_and_with_them_only_what_is_stressed_already() {
    let state = on(told(false), '2');
    let (plain, coloured) = (buffer(&state, false, 80, 24), buffer(&state, true, 80, 24));
    for (bare, bright) in plain.content().iter().zip(coloured.content()) {
        assert_eq!((bare.fg, bare.bg), (Color::Reset, Color::Reset));
        assert_eq!((bare.symbol(), bare.modifier), (bright.symbol(), bright.modifier));
    }
    assert!(coloured.content().iter().any(|cell| cell.fg == Color::Red));
    assert!(plain.content().iter().any(|cell| cell.modifier.contains(Modifier::REVERSED)));
}

#[test]
fn it_draws_at_any_size() {
    let states = ['1', '2', '3', '4', '5', '6', '?'].map(|key| on(told(false), key));
    for (width, height) in [(1, 1), (20, 5), (60, 16), (61, 17), (79, 23), (60, 45), (140, 16), (200, 60), (400, 100)] {
        for state in &states {
            let shown = buffer(state, true, width, height);
            let text: String = shown.content().iter().map(|cell| cell.symbol()).collect();
            let small = width < 60 || height < 16;
            assert_eq!(text.contains("Overview"), !small, "{width}×{height}: {text}");
            assert!(!small || width < 20 || text.contains("This window has"), "{width}×{height}: {text}");
        }
    }
}

#[test]
fn a_table_of_keys() {
    let chain = || Query::Chain("sync-app".into(), "ios/maps".into());
    let key = Key::Char;
    /// The screen on which keys are pressed, the keys, and the expected effects.
    type Case = (char, Vec<Key>, Vec<Effect>);
    let table: Vec<Case> = vec![
        ('1', vec![key('q')], vec![Effect::Quit]),
        ('1', vec![Key::Interrupt], vec![Effect::Quit]),
        ('2', vec![key('p'), Key::Interrupt], vec![Effect::Quit]),
        ('1', vec![Key::Redraw], vec![Effect::Redraw]),
        ('1', vec![Key::Tab, Key::Tab], vec![Effect::Ask(Query::Throttles)]),
        ('1', vec![Key::BackTab], vec![Effect::Ask(Query::Runs(None))]),
        ('3', vec![key('1')], vec![Effect::Ask(Query::Nothing)]),
        // A question takes all keys, and only a yes gives an order.
        ('2', vec![key('r'), key('q'), key('3'), Key::Enter, key('n')], vec![]),
        ('2', vec![key('p'), Key::Enter, key('y'), Key::Esc], vec![]),
        ('2', vec![key('r'), key('y')], vec![give(Action::ResumeQueue("sync-android".into()), "")]),
        (
            '2',
            [vec![key('p')], typed("down"), vec![Key::Enter, key('y')]].concat(),
            vec![give(Action::PauseQueue("sync-android".into()), "down")],
        ),
        ('3', vec![key('r'), key('y')], vec![give(Action::Release("ios".into()), "")]),
        (
            '5',
            vec![Key::End, key('d'), Key::Enter, key('y')],
            vec![give(Action::Drain("4713-2b3c4d5e6f8c1f0a".into()), "it is to be drained")],
        ),
        ('5', vec![key('r'), key('y')], vec![give(Action::ResumeWorker("4711-8c1f0a2b3c4d5e6f".into()), "")]),
        ('4', vec![key('a'), key('y')], vec![give(Action::Advance("sync-app".into(), "ios/maps".into()), "")]),
        ('4', vec![key('p'), key('y')], vec![give(Action::PauseChain("sync-app".into(), "ios/maps".into()), "")]),
        ('4', vec![Key::Enter, Key::Esc], vec![Effect::Ask(chain()), Effect::Ask(Query::Chains(Show::Late))]),
        (
            '4',
            vec![Key::Enter, key('r'), key('y')],
            vec![Effect::Ask(chain()), give(Action::ResumeChain("sync-app".into(), "ios/maps".into()), "")],
        ),
        (
            '4',
            vec![key('f'), key('f')],
            vec![Effect::Ask(Query::Chains(Show::Held)), Effect::Ask(Query::Chains(Show::Paused))],
        ),
        ('6', vec![Key::Enter], vec![Effect::Ask(chain())]),
        ('6', vec![key(' '), key(' ')], vec![Effect::Ask(Query::Nothing), Effect::Ask(Query::Runs(None))]),
        ('6', vec![key('f')], vec![Effect::Ask(Query::Runs(Some("failed")))]),
        // A letter has no effect if the screen has nothing that it could be about.
        ('1', vec![key('p'), key('y'), key('h'), key('d'), key('a'), key('f'), key(' '), Key::Enter], vec![]),
        ('6', vec![key('p'), key('a')], vec![]),
        // A key in the help leads back, and does not end the program.
        ('2', vec![key('?'), key('q')], vec![]),
    ];
    for (screen, keys, expected) in table {
        let (_, effects) = pressed(on(told(false), screen), &keys);
        assert_eq!(effects, expected, "{screen}: {keys:?}");
    }
}

fn give(action: Action, why: &str) -> Effect {
    Effect::Give(Order { action, span: Duration::ZERO, why: why.into() })
}

#[test]
fn nothing_is_ordered_when_it_is_only_to_look() {
    for (screen, letters) in [('2', "pr"), ('3', "hr"), ('4', "pra"), ('5', "dr")] {
        for letter in letters.chars() {
            let (state, effects) = pressed(on(told(true), screen), &[Key::Char(letter), Key::Enter, Key::Char('y')]);
            assert!(!effects.iter().any(|effect| matches!(effect, Effect::Give(_))), "{screen} {letter}");
            assert!(state.question.is_none());
        }
        let (state, _) = pressed(on(told(true), screen), &typed(&letters[..1]));
        assert!(super::tests::screen(&state).contains("not with --read-only"));
    }
}

#[test]
fn an_order_is_for_the_row_that_was_chosen_wherever_it_is_by_then() {
    let (state, _) = pressed(on(told(false), '4'), &[Key::Down]);
    // The chain that waited longest runs, so all rows move up by one.
    let (state, _) = step(
        state,
        2,
        Input::QueryAnswer(Query::Chains(Show::Late), Ok(QueryAnswer::Chains(late()[1..].to_vec(), false))),
    );
    assert_eq!(state.cursor(), 0);
    let (state, _) = pressed(state, &[Key::Char('a')]);
    // Between question and answer, the row itself disappears.
    let (state, _) =
        step(state, 4, Input::QueryAnswer(Query::Chains(Show::Late), Ok(QueryAnswer::Chains(Vec::new(), false))));
    let (_, effects) = pressed(state, &[Key::Char('y')]);
    assert_eq!(effects, [give(Action::Advance("sync-app".into(), late()[1].key.clone()), "")]);
}

#[test]
fn an_answer_to_an_earlier_question_is_not_shown() {
    let state = on(told(false), '4');
    let (state, _) = pressed(state, &[Key::Char('f')]);
    let (state, _) =
        step(state, 1, Input::QueryAnswer(Query::Chains(Show::Late), Ok(QueryAnswer::Chains(late(), false))));
    assert!(screen(&state).contains("The chains are being asked for."), "{}", screen(&state));
    let (state, _) = step(state, 1, Input::QueryAnswer(Query::Chains(Show::Held), Err("the ledger is away".into())));
    let words = "nothing is known yet: this screen cannot be asked for since 03:12:45 (0s ago):";
    assert!(screen(&state).contains(words), "{}", screen(&state));
}

#[test]
fn the_log_goes_on_at_its_head_and_stays_where_somebody_reads() {
    let newer = || [vec![attempt(10, "ios/new", Some("done"), None)], runs()].concat();
    let more = || Input::QueryAnswer(Query::Runs(None), Ok(QueryAnswer::Runs(newer())));
    let (state, _) = step(on(told(false), '6'), 2, more());
    assert_eq!(state.cursor(), 0, "it shows the newest");
    let (state, _) = pressed(on(told(false), '6'), &[Key::Down]);
    let (state, _) = step(state, 2, more());
    assert_eq!((state.cursor(), state.screen), (2, Screen::Log), "it stays with the run that was chosen");
}

const OVERVIEW: &str = r#"
[1 Overview] 2 Queues  3 Throttles  4 Late  5 Workers  6 Log        03:12:44 UTC

     sleeping          due   for a slot      running         LATE      FAILING
    1,246,567           40            2            6           12            2

 starts/s    2.5, and the last hour, with 3.8 at its highest
                ▂▄▆█  ▁▃▅▇▆  ▂▄▆█  ▁▃▅▇▆  ▂▄▆█  ▁▃▅▇▆  ▂▄▆█  ▁▃▅▇▆  ▂▄▆█  ▁▃▅▇█
 ············▅▆██████▇█████▆██████▇█████▆██████▇█████▆██████▇█████▆██████▇█████
 lateness    2ms (median), 7ms (p99), 15ms (worst)
 flatness    1.3
 oldest due  since 03:10:00 (2m 44s ago)
 workers     1 working, 1 draining, 1 SILENT
 chains      5 paused, 17 retired; counted 03:12:40 (4s ago)

 What is wrong
 ERROR    no worker consumes the queue sync-ios, where 40 chains are due
 ERROR    12 chains are late, on sync-ios; the longest since
          2026-03-01T03:10:00.000Z, for 2m 44s
 warning  one worker has said nothing for 30 s: dead, frozen, or cut off
 warning  the throttle ios lets one start at a time try: the next slot opens in
          less than 1s, 2 wait
 ↓ 3 more lines

q quit   ? help   1-6 or Tab screens   ↑↓ scroll what is wrong
"#;

const TALL: &str = r#"
[1 Overview] 2 Queues  3 Throttles  4 Late  5 Workers  6 Log        03:12:44 UTC

     sleeping          due   for a slot      running         LATE      FAILING
    1,246,567           40            2            6           12            2

 starts/s    2.5, and the last hour, with 3.8 at its highest
                   ▇     ▃▁     ▇     ▃▁     ▇     ▃▁     ▇     ▃▁     ▇     ▃█
                 ▂██    ▆██   ▂██    ▆██   ▂██    ▆██   ▂██    ▆██   ▂██    ▆██
                ▅███  ▁▇███  ▅███  ▁▇███  ▅███  ▁▇███  ▅███  ▁▇███  ▅███  ▁▇███
              ▁▇█████▄█████▁▇█████▄█████▁▇█████▄█████▁▇█████▄█████▁▇█████▄█████
             ▅█████████████████████████████████████████████████████████████████
 ············██████████████████████████████████████████████████████████████████
 lateness    2ms (median), 7ms (p99), 15ms (worst)
 flatness    1.3
 oldest due  since 03:10:00 (2m 44s ago)
 workers     1 working, 1 draining, 1 SILENT
 chains      5 paused, 17 retired; counted 03:12:40 (4s ago)

 What is wrong
 ERROR    no worker consumes the queue sync-ios, where 40 chains are due
 ERROR    12 chains are late, on sync-ios; the longest since
          2026-03-01T03:10:00.000Z, for 2m 44s
 warning  one worker has said nothing for 30 s: dead, frozen, or cut off
 warning  the throttle ios lets one start at a time try: the next slot opens in
          less than 1s, 2 wait
 warning  2 entities or parts of them are failing
 held     the queue sync-android is paused by ann@ops since
          2026-03-01T03:09:24.000Z: they are down␛[31m

 2 queues
 queue                       state        due    late    held   running starts/s
 sync-android                PAUSED         0       0       0      3/16      1.5
 sync-ios                    NO CONS.      40      12       0       3/0      1.5

 1 throttle
 throttle                                 state    starts/s        limit    wait
 ios                                      SLOWED        1.5      5 in 1s       2

 3 workers
 worker                                     state    heard of   running starts/s
 4711-8c1f0a2b3c4d5e6f                      working        3s      3/16      1.5
 4712-0a2b3c4d5e6f8c1f                      SILENT        50s      0/16      1.5
 4713-2b3c4d5e6f8c1f0a                      DRAINING       1s      1/16      1.5




q quit   ? help   1-6 or Tab screens   ↑↓ scroll what is wrong
"#;

const QUEUES: &str = r#"
 1 Overview [2 Queues] 3 Throttles  4 Late  5 Workers  6 Log        03:12:44 UTC
 2 queues
 queue            state        due    late   ready cons.   in/s  out/s   running
>sync-android     PAUSED         0       0       0     2   12.5   12.2      3/16
 sync-ios         NO CONS.      40      12      37     0      -      -       3/0












────────────────────────────────────────────────────────────────────────────────
 queue       sync-android
 PAUSED      by ann@ops, 03:09:24 (3m 20s ago): they are down␛[31m
 starts      1.5/s, late by 7ms (p99); 1,234,567 sleep, 0 unsent
 at a time   16 in each worker; 1 worker takes from it

q quit   ? help   1-6 or Tab screens   ↑↓ choose   p pause   r resume
"#;

const THROTTLES: &str = r#"
 1 Overview  2 Queues [3 Throttles] 4 Late  5 Workers  6 Log        03:12:44 UTC
 2 throttles: starts that are used, of those that a window allows

>ios                                               USED UP                2 wait
   ██████████████████████████████████ 5 of 5 in 1s
   ██████████████████░░░░░░░░░░░░░░░░ 52 of 100 in 60s
 play                                              HELD                   2 wait
   ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░ 0 of 1,000 in 60s  held, 20m left









────────────────────────────────────────────────────────────────────────────────
 throttle    ios
 in the way  the throttle ios is used up (5 of 5 in 1s): the next slot opens in
             less than 1s, 2 wait
 queues      sync-ios

q quit   ? help   1-6 or Tab screens   ↑↓ choose   h hold   r release
"#;

const LATE: &str = r#"
 1 Overview  2 Queues  3 Throttles [4 Late] 5 Workers  6 Log        03:12:44 UTC
 late and quarantined chains, those that wait longest first: 3
 kind           key                          queue          does         late by
>sync-app       ios/maps                     sync-ios       LATE          2m 44s
 sync-app       ios/an-applica…its-middle/17 sync-ios       LATE           1d 1h
 sync-app       ios/␛]0;owned␇               sync-ios       QUARANTINED      40s

















q quit ? help 1-6 screens ↑↓ choose Enter why f others p pause r resume a now
"#;

const CHAIN: &str = r#"
 1 Overview  2 Queues  3 Throttles [4 Late] 5 Workers  6 Log        03:12:44 UTC
 sync-app ios/maps
 does        late, for 2m 44s, on the queue sync-ios
 why         no worker consumes its queue, where 37 messages wait; its message
             was sent, and may be among the 37 that wait on its queue; catch-up
             looks next at 2026-03-01T03:13:10.000Z
 next        tick 10, attempt 1, due 03:10:00 (2m 44s ago)
 schedule    every 60m, as its kind
 owner       channel-9
 last runs   03:12:34 tick 9.1 failed after 993ms, 7ms late, on
             4711-8c1f0a2b3c4d5e6f: HTTP 503
             03:12:34 tick 8.1 done after 993ms, 7ms late, on
             4711-8c1f0a2b3c4d5e6f










Esc back   ↑↓ scroll   p pause   r resume   a next tick now   ? help
"#;

const WORKERS: &str = r#"
 1 Overview  2 Queues  3 Throttles  4 Late [5 Workers] 6 Log  READ-ONLY 03:12:44
 3 workers
 worker             state    heard of      up   running leases starts/s version
>4711-8c1f…3c4d5e6f working        3s   2h 3m      3/16      3      1.5 0.1.0
 4712-0a2b…5e6f8c1f SILENT        50s   2h 3m      0/16      3      1.5 0.1.0
 4713-2b3c…6f8c1f0a DRAINING       1s   2h 3m      1/16      3      1.5 0.1.0












────────────────────────────────────────────────────────────────────────────────
 worker      4711-8c1f0a2b3c4d5e6f, process 4711 on ops-1, version 0.1.0
 queues      sync-android (3 of 16); 2 wait for a slot
 kinds       sync-app

q quit   ? help   1-6 or Tab screens   ↑↓ choose
"#;

const LOG: &str = r#"
 1 Overview  2 Queues  3 Throttles  4 Late  5 Workers [6 Log]       03:12:44 UTC
 the 3 latest runs, newest first (STOPPED, Space goes on)
 started  chain                                  tick outcome       took late by
 03:12:34 sync-app ios/maps                       9.1 runs             -     7ms
>03:12:34 sync-app ios/notes                      8.1 failed       993ms     7ms
 03:12:34 sync-app android/notes                  7.1 done         993ms     7ms












────────────────────────────────────────────────────────────────────────────────
 chain       sync-app ios/notes
 outcome     failed: HTTP 500: ␛[2Jit broke
 worker      4711-8c1f0a2b3c4d5e6f

q quit  ? help  1-6 screens  ↑↓ choose  Enter chain  Space stop  f failed …
"#;

const HELP: &str = r#"
[1 Overview] 2 Queues  3 Throttles  4 Late  5 Workers  6 Log        03:12:44 UTC
 Orders ask first, and need a y. Who gave one, and why, is kept.
 1-6, Tab    screens: overview, queues, throttles, late chains, workers, log
 ↑ ↓ k j     choose a row, or scroll; PgUp PgDn Home End go farther
 Enter       why the chosen chain does not run, and its last runs; Esc back
 f           other chains (late, held, paused, running, all), or runs by outcome
 Space       stops the log, and lets it go on
 p r         pause and resume the chosen queue or chain
 h r         hold and release the chosen throttle
 d r         drain and resume the chosen worker
 a           brings the next tick of the chosen chain forward to now
 Ctrl-L      draws the screen anew
 q, Ctrl-C   ends it; nothing else ends with it

 due         due, and nobody runs it yet
 late        due for longer than catch_up.slack
 for a slot  jobs in workers' hands that wait for a throttle
 ready       messages that wait on the broker; -: not known; ~: as it last said
 flatness    the busiest second by the mean one; 1 is flat
 The ledger is asked every 2s, the broker every 5s or as rarely.



Esc back
"#;

const HOLD: &str = r#"
 1 Overview  2 Queues [3 Throttles] 4 Late  5 Workers  6 Log        03:12:44 UTC
 2 throttles: starts that are used, of those that a window allows

 ios                                               USED UP                2 wait
   ██████████████████████████████████ 5 of 5 in 1s
   ██████████████████░░░░░░░░░░░░░░░░ 52 of 100 in 60s
>play                                              HELD                   2 wait
   ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░ 0 of 1,000 in 60s  held, 20m left










────────────────────────────────────────────────────────────────────────────────
 throttle    play
 HELD        until 03:32:44 (in 20m) by ann@ops: they are down
 queues      sync-ios
Hold the throttle play for 30m. Why? they are down▏
Enter goes on   Esc does nothing
"#;

const AWAY: &str = r#"
 1 Overview [2 Queues] 3 Throttles  4 Late  5 Workers  6 Log        03:13:39 UTC
! OLD FIGURES, of 03:12:44: the ledger cannot be asked since 03:12:54 (45s ago):
the server does not answer
! OLD FIGURES, of 03:12:42: the broker cannot be asked since 03:12:54 (45s ago):
connection refused
 2 queues
 queue            state        due    late   ready cons.   in/s  out/s   running
>sync-android     PAUSED         0       0      ~0    ~2      -      -      3/16
 sync-ios         NO CONS.      40      12     ~37    ~0      -      -       3/0








────────────────────────────────────────────────────────────────────────────────
 queue       sync-android
 PAUSED      by ann@ops, 03:09:24 (4m 15s ago): they are down␛[31m
 starts      1.5/s, late by 7ms (p99); 1,234,567 sleep, 0 unsent
 at a time   16 in each worker; 1 worker takes from it

q quit   ? help   1-6 or Tab screens   ↑↓ choose   p pause   r resume
"#;
