//! Intervals that follow from how often entities change: learned, weighed, and within a budget.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use roundelay::clock::Time;
use roundelay::encryption::Keyring;
use roundelay::engine::fresh::read;
use roundelay::fresh::Known;
use roundelay::ledger::{FailureFilter, Failures, NewChain, Reports, Slots};
use roundelay::outcome::{Change, Yield};
use roundelay::pacing::orders::ThrottleOrder;
use roundelay::pacing::slots::Window;
use roundelay::{Config, Outcome};
use serde_json::json;

use crate::harness::{Ground, Watched, on_all};
use crate::virtual_time::{MONDAY, World, chain};

const CONFIG: &str = r#"
[throttles.shop]
allow = 60
per = "1m"
[queues.q]
throttle = "shop"
[kinds.app]
queue = "q"
fresh = { budget = "throttle:shop", min = "5s", max = "4h", weight = "{{ stars }}" }
[kinds.other]
queue = "q"
"#;
const CHAINS: usize = 200;
const HOUR: Duration = Duration::from_secs(3_600);

/// How often the entity with this number changes.
fn period(n: usize) -> Duration {
    Duration::from_secs([60, 600, 3_600, 36_000][n % 4])
}

/// What the entity is worth: one in five has ten stars.
fn stars(n: usize) -> u32 {
    if n.is_multiple_of(5) { 10 } else { 1 }
}

fn number(key: &str) -> usize {
    key.parse().unwrap()
}

/// How often the entity has changed until then, each time after its period; their phases differ.
fn changes(n: usize, at: Time) -> u64 {
    let period = period(n).as_millis() as u64;
    (at.as_millis() as u64 + n as u64 * 7_919 * 1_000) / period
}

/// A world whose entities say whether they have changed since they were last asked.
async fn world() -> World {
    world_of(CONFIG).await
}

async fn world_of(config: &str) -> World {
    let mut world = World::new(config, MONDAY);
    let known: Mutex<HashMap<String, u64>> = Mutex::default();
    world.script("app", move |job| {
        let now = changes(number(&job.key), job.nominal);
        let changed = known.lock().insert(job.key.to_string(), now).is_some_and(|before| before != now);
        let change = Some(if changed { Change::Changed } else { Change::Same });
        (Duration::from_millis(200), Outcome::DoneWith(Yield { change, ..Yield::default() }))
    });
    let chains = (0..CHAINS).map(|n| NewChain {
        payload: json!({ "stars": stars(n) }).to_string(),
        ..chain("app", &n.to_string(), "q", MONDAY + Duration::from_secs(n as u64))
    });
    world.chains(chains.collect()).await;
    world
}

/// How often each entity was visited in an hour that begins then.
fn visits(world: &World, hour: u32) -> Vec<usize> {
    let mut visits = vec![0; CHAINS];
    let begin = world.begin + HOUR * hour;
    for seen in world.seen("app") {
        if seen.from >= begin && seen.from < begin + HOUR {
            visits[number(&seen.job.key)] += 1;
        }
    }
    visits
}

/// Their mean over the entities for which this holds.
fn mean(visits: &[usize], of: impl Fn(usize) -> bool) -> f64 {
    let fitting: Vec<usize> = (0..CHAINS).filter(|n| of(*n)).map(|n| visits[n]).collect();
    fitting.iter().sum::<usize>() as f64 / fitting.len() as f64
}

#[tokio::test(start_paused = true)]
async fn calls_go_where_entities_change_and_are_worth_more_and_stay_within_the_budget() {
    let mut world = world().await;
    world.start_with_chores().await;
    world.until(HOUR * 8).await;
    let visits = visits(&world, 7);
    let all: usize = visits.iter().sum();
    assert!((3_240..=3_600).contains(&all), "of 3,600 calls in the last hour {all} were used");
    let (fast, slow) = (mean(&visits, |n| n % 4 == 0), mean(&visits, |n| n % 4 == 3));
    assert!(fast > 3.0 * slow, "what changes each minute {fast}, each ten hours {slow}");
    assert!(visits.iter().all(|visits| *visits > 0), "none is given up: {visits:?}");
    let of = |worth: u32| mean(&visits, |n| n % 4 == 1 && stars(n) == worth);
    assert!(of(10) > 1.5 * of(1), "with ten stars {}, with one {}", of(10), of(1));
    // What was learned is in the ledger.
    for n in (0..CHAINS).filter(|n| n % 4 == 1 || n % 4 == 2) {
        let view = world.ledger.chains("app".into(), n.to_string()).await.unwrap().remove(0);
        let known = Known::from_bytes(&view.learned.expect("it is known")).unwrap();
        let off = known.learned.rate() * period(n).as_secs_f64();
        assert!((0.2..5.0).contains(&off), "{n}: {off} times its rate: {known:?}");
        assert_eq!(known.weight, stars(n) as f32);
    }
    let told = read(&*world.ledger, &Keyring::default(), "throttle:shop").await.unwrap().unwrap();
    assert!((150.0..250.0).contains(&told.kinds["app"].chains), "{told:?}");
    // Each slot may be used a second late, so a window of a minute has 60 in 61 s.
    let slots = 60.0 / 61.0;
    assert!((told.wanted / told.allowed - 1.0).abs() < 0.25 && (told.allowed - slots).abs() < 1e-6, "{told:?}");
    assert!(told.fresh.is_some_and(|fresh| fresh > 0.3 && fresh < 1.0) && told.age.is_some(), "{told:?}");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn calls_of_other_jobs_make_a_call_dearer_and_none_cheaper() {
    let mut world = world().await;
    world.start_with_chores().await;
    world.until(HOUR * 4).await;
    let price = async |world: &World| {
        let told = read(&*world.ledger, &Keyring::default(), "throttle:shop").await.unwrap().unwrap();
        (told.price.unwrap().get(), told)
    };
    let (before, _) = price(&world).await;
    // Every second minute 60 further jobs: half of all calls.
    for minute in 0..120 {
        for n in 0..30 {
            world.publish("q", "other", &format!("{minute}-{n}"), json!(null)).await;
        }
        world.until(HOUR * 4 + Duration::from_secs(60 * (minute + 1))).await;
    }
    let (after, told) = price(&world).await;
    assert!(after > 1.5 * before, "{before}, then {after}");
    assert!((0.4..0.6).contains(&(told.others / told.allowed)), "{told:?}");
    let visits: usize = visits(&world, 5).iter().sum();
    assert!((1_400..=1_900).contains(&visits), "half of 3,600 is left: {visits}");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_an_operator_orders_makes_calls_dearer_until_it_is_reset() {
    let mut world = world().await;
    world.start_with_chores().await;
    world.until(HOUR * 3).await;
    let told = async |world: &World| read(&*world.ledger, &Keyring::default(), "throttle:shop").await.unwrap().unwrap();
    let before = told(&world).await;
    let half = ThrottleOrder::Limits { window: Window { allow: 30, per: Duration::from_secs(60) }, burst: 1 };
    world.ledger.order_throttle("shop".into(), half, "ann".into()).await.unwrap();
    world.until(HOUR * 6).await;
    let during = told(&world).await;
    assert!((during.allowed / before.allowed - 0.5).abs() < 0.02, "{during:?}");
    assert!(during.price.unwrap().get() > 1.3 * before.price.unwrap().get(), "{before:?}, then {during:?}");
    let calls: usize = visits(&world, 5).iter().sum();
    assert!((1_600..=1_800).contains(&calls), "{calls} of 1,800 calls");
    let late = world.ledger.late(world.begin + HOUR * 6 - Duration::from_secs(300), Vec::new(), 50).await.unwrap();
    assert!(late.is_empty(), "what they want fits again: {late:?}");
    world.ledger.order_throttle("shop".into(), ThrottleOrder::Reset, "ann".into()).await.unwrap();
    world.until(HOUR * 10).await;
    let calls: usize = visits(&world, 9).iter().sum();
    assert!(calls > 3_200, "{calls} of 3,600 calls");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_price_intervals_stay_about_what_they_were() {
    let mut world = world().await;
    // No chore, so no price.
    world.start().await;
    world.until(HOUR * 2).await;
    let visits = visits(&world, 1);
    // The geometric mean of the bounds is 268 s, and each visit lies a twentieth of that before or after its time.
    assert!(visits.iter().all(|visits| (6..=27).contains(visits)), "{visits:?}");
    let mean = visits.iter().sum::<usize>() as f64 / CHAINS as f64;
    assert!((11.5..14.5).contains(&mean), "{mean}: {visits:?}");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_longest_interval_that_is_configured_anew_holds_from_the_next_visit_on() {
    let mut world = world().await;
    let (send, configurations) = tokio::sync::mpsc::channel(1);
    world.start_following(configurations).await;
    world.until(HOUR * 6).await;
    let before = visits(&world, 5);
    assert!(before.iter().any(|visits| *visits < 10), "some are visited less than each six minutes: {before:?}");
    let text = format!("ledger.url = \"sqlite://:memory:\"\n{}", CONFIG.replace("max = \"4h\"", "max = \"6m\""));
    send.send(Config::parse(&text, "the test's configuration", []).unwrap()).await.unwrap();
    world.until(HOUR * 9).await;
    let after = visits(&world, 8);
    let all: usize = after.iter().sum();
    assert!(after.iter().all(|visits| *visits >= 9), "each comes at least each six minutes, and some late: {after:?}");
    assert!((3_200..=3_600).contains(&all), "within the budget: {all}");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn of_two_budgets_the_scarcer_one_decides() {
    // The throttle allows 60 a minute, and the other budget 20.
    let text = CONFIG.replace("budget = \"throttle:shop\"", "budget = \"throttle:shop\", also = [\"1200/1h\"]");
    let mut world = world_of(&text).await;
    world.start_with_chores().await;
    world.until(HOUR * 8).await;
    let all: usize = visits(&world, 7).iter().sum();
    assert!((1_100..=1_260).contains(&all), "about 1,200 calls an hour: {all}");
    let told = async |budget| read(&*world.ledger, &Keyring::default(), budget).await.unwrap().unwrap();
    let (throttle, calls) = (told("throttle:shop").await, told("1200/1h").await);
    let (throttle, calls) = (throttle.price.unwrap().get(), calls.price.unwrap().get());
    assert!(throttle < 1e-3 * calls, "what is left over costs nothing: {throttle} and {calls}");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_weight_that_is_none_is_a_failed_part_and_stops_nothing() {
    let mut world = World::new(CONFIG, MONDAY);
    world.chains(vec![NewChain { payload: r#"{"stars":"many"}"#.into(), ..chain("app", "a", "q", MONDAY) }]).await;
    world.start_with_chores().await;
    world.until(HOUR).await;
    assert!(world.seen("app").len() >= 2, "it goes on");
    let failure = world.ledger.failed(FailureFilter::default(), None, 2).await.unwrap().remove(0);
    assert_eq!((failure.key.as_str(), failure.item.as_str()), ("a", "weight"));
    assert!(failure.reason.contains("gives `many`; a number above 0 is possible"), "{failure:?}");
    world.stop().await;
}

#[test]
fn what_cannot_be_is_said() {
    let parsed = |fresh: &str, more: &str| {
        let text = format!(
            "[throttles.shop]\nallow = 6\nper = \"1s\"\n[queues.q]\nthrottle = \"shop\"\n[queues.free]\n[kinds.k]\nqueue = \
             \"q\"\nfresh = {{ {fresh} }}\nhandler.exec.argv = [\"/bin/true\"]\n{more}"
        );
        Config::parse(&text, "r.toml", []).map(drop).map_err(|error| error.to_string()).err().unwrap_or_default()
    };
    let bounds = "min = \"1m\", max = \"1h\"";
    assert_eq!(parsed(&format!("budget = \"throttle:shop\", {bounds}"), ""), "");
    assert_eq!(
        parsed(&format!("budget = \"2000/1h\", {bounds}, objective = \"harmonic\", compare = \"hash\""), ""),
        ""
    );
    let other = "[kinds.l]\nqueue = \"free\"\nhandler.exec.argv = [\"/bin/true\"]\nfresh = { budget = \"BUDGET\", objective = \
                 \"harmonic\", min = \"1m\", max = \"1h\" }\n";
    let keyed = "[throttles.keyed]\nallow = 1\nper = \"1s\"\nkey = \"payload.host\"\n";
    for (fresh, more, says) in [
        (format!("budget = \"throttle:keyed\", {bounds}"), keyed.to_owned(), "its limit is one for each key"),
        (format!("budget = \"5/1h\", also = [\"5/1h\"], {bounds}"), String::new(), "names `5/1h` twice"),
        (format!("budget = \"5/1h\", also = [\"throttle:shpo\"], {bounds}"), String::new(), "did you mean `shop`?"),
        (
            format!("budget = \"throttle:shpo\", {bounds}"),
            String::new(),
            "there is no [throttles.shpo]; did you mean `shop`?",
        ),
        (format!("budget = \"many\", {bounds}"), String::new(), "write \"throttle:NAME\""),
        (format!("budget = \"0/1h\", {bounds}"), String::new(), "is no budget"),
        (format!("budget = \"5/1h\", {bounds}"), "every = \"5m\"\n".into(), "does not go with `fresh`"),
        ("budget = \"5/1h\", min = \"2h\", max = \"1h\"".into(), String::new(), "not above `max`"),
        (format!("budget = \"5/1h\", {bounds}, compare = \"etag\""), String::new(), "goes with an HTTP handler"),
        (
            format!("budget = \"5/1h\", {bounds}, weight = \"{{{{ 1 / (stars | int) }}}}\""),
            String::new(),
            "filter int is unknown",
        ),
        (format!("budget = \"5/1h\", {bounds}"), other.replace("BUDGET", "5/1h"), "a call has one price"),
        (
            format!("budget = \"5/1h\", {bounds}"),
            other.replace("BUDGET", "throttle:shop"),
            "its queue is not under the throttle shop",
        ),
    ] {
        let told = parsed(&fresh, &more);
        assert!(told.contains(says), "{fresh}: {told}");
    }
}

on_all!(what_is_learned_stays_with_the_chain);

/// Entities that are worth what their keys say.
fn sync(budget: &str) -> String {
    let fresh = format!("budget = \"{budget}\", min = \"50ms\", max = \"1s\", weight = \"{{{{ of }}}}\"");
    format!("[queues.q]\n[kinds.sync]\nqueue = \"q\"\nfresh = {{ {fresh} }}\n")
}

/// The entity has changed at every second visit.
fn said(tick: i64) -> Outcome {
    let change = Some(if tick % 2 == 0 { Change::Changed } else { Change::Same });
    Outcome::DoneWith(Yield { change, ..Yield::default() })
}

mod run {
    use super::*;

    pub async fn what_is_learned_stays_with_the_chain(ground: Ground) {
        let mut watched = Watched::start(&ground, &sync("100/1s")).await;
        watched.enroll("4", "q").await;
        let mut before = None;
        for tick in 1..=6 {
            let run = watched.next().await;
            assert_eq!(run.tick(), tick);
            let view = watched.ledger().chains("sync".into(), "4".into()).await.unwrap().remove(0);
            let known = view.learned.as_deref().map(|bytes| Known::from_bytes(bytes).unwrap());
            assert_eq!(known.is_some(), tick > 1, "nothing is known before the first visit: {known:?}");
            let rate = |of: &Known| of.learned.rate();
            if let (Some(before), Some(known)) = (&before, &known) {
                // What the run before has said.
                assert_eq!(rate(known) > rate(before), (tick - 1) % 2 == 0, "{before:?}, then {known:?}");
                assert_eq!(known.weight, 4.0);
                assert!(known.learned.visited > before.learned.visited);
            }
            before = known;
            run.end(said(tick));
        }
        watched.stop_with(|run| run.end(Outcome::Done)).await;
    }
}

/// Prices are made of minutes that are over, so this takes one or two of them.
#[tokio::test]
async fn on_postgres_calls_get_a_price() {
    let ground = Ground::rabbit_and_postgres().await;
    let budget = "120/1m";
    let mut watched = Watched::attended(&ground, &sync(budget)).await;
    for key in ["1", "2", "3"] {
        watched.enroll(key, "q").await;
    }
    let keys = Keyring::default();
    let priced = async {
        loop {
            let run = watched.next().await;
            let tick = run.tick();
            run.end(said(tick));
            let told = read(watched.ledger(), &keys, budget).await.unwrap();
            if let Some(told) = told.filter(|told| told.price.is_some() && told.made > 0.0) {
                return told;
            }
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(200), priced).await.expect("a price within three minutes");
    // The engine may have begun in the middle of the minute.
    assert!(told.allowed == 2.0 && told.made > 0.0 && told.wanted > 0.0, "{told:?}");
    assert!(told.kinds["sync"].chains > 0.0 && told.fresh.is_some() && told.weight > Some(1.0), "{told:?}");
    watched.stop_with(|run| run.end(Outcome::Done)).await;
}
