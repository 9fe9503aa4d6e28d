//! The example configurations: each is right, and does what it says.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use roundelay::Config;
use roundelay::clock::Time;
use roundelay::engine::enroll::{Enroller, Entity};
use roundelay::guard::IfRunning;
use roundelay::outcome::Backoff;
use roundelay::policy::Policy;
use roundelay::reason::{Class, Mark, Reason};
use roundelay::roster::{Wishes, from_source};

use crate::virtual_time::World;

const EXAMPLES: [(&str, &str); 5] = [
    ("characters", include_str!("../../examples/characters/roundelay.toml")),
    ("missions", include_str!("../../examples/missions/roundelay.toml")),
    ("channels", include_str!("../../examples/channels/roundelay.toml")),
    ("trading", include_str!("../../examples/trading/roundelay.toml")),
    ("appstore", include_str!("../../examples/appstore/roundelay.toml")),
];

#[test]
fn every_example_is_right() {
    for (name, text) in EXAMPLES {
        let config = Config::parse(text, name, []).unwrap_or_else(|error| panic!("{error}"));
        assert!(config.kinds.values().any(|kind| kind.recurrence.is_some()), "{name}");
    }
}

/// What the examples in other languages are run with has the kind and the queue that they name.
#[test]
fn the_examples_of_clients_have_their_configuration() {
    let text = include_str!("../../examples/roundelay.toml");
    let config = Config::parse(text, "roundelay.toml", []).unwrap_or_else(|error| panic!("{error}"));
    assert!(config.queues.contains_key("work"));
    assert_eq!(config.kinds["sync"].queue.as_deref(), Some("work"));
}

/// The app stores' syncs go where apps change, tracked ones first, and leave a fifth of the starts to what users ask for.
#[test]
fn the_app_stores_learn_their_intervals() {
    let config = Config::parse(EXAMPLES[4].1, "appstore", []).unwrap();
    let fresh = config.kinds["sync-app"].fresh().unwrap();
    // Five a minute for each of two stores.
    assert_eq!(fresh.budgets[0].rate(&config.throttles), Some(0.8 * 10.0 / 60.0));
    assert_eq!(fresh.middle(), Duration::from_secs(86_400));
    let weight = |class: &str| fresh.weight_of(&serde_json::json!({ "class": class })).unwrap();
    assert_eq!(["tracked", "competitor", "backlog"].map(weight), [20.0, 4.0, 1.0]);
}

/// The numbers of the app store's limits, and that they can be set from outside.
#[test]
fn the_app_stores_have_their_rates() {
    let text = EXAMPLES[4].1;
    let config = Config::parse(text, "appstore", []).unwrap();
    let queues: Vec<&str> = config.queues.keys().map(String::as_str).collect();
    assert_eq!(
        queues,
        [
            "charts-android",
            "charts-ios",
            "charts-on-demand-android",
            "charts-on-demand-ios",
            "sync-on-demand-android",
            "sync-on-demand-ios",
            "sync-tracked-android",
            "sync-tracked-ios"
        ]
    );
    let window = |config: &Config, name: &str| config.throttles[name].limits.window;
    let rate = |config: &Config, name: &str| (window(config, name).allow, window(config, name).per.as_secs());
    let rates = ["sync-ios", "sync-android", "charts-ios", "charts-android"].map(|name| rate(&config, name));
    assert_eq!(rates, [(5, 60), (5, 60), (24, 60), (37, 60)]);
    for platform in ["ios", "android"] {
        let throttle = |queue: &str| config.queues[&format!("{queue}-{platform}")].throttle.clone();
        assert_eq!(throttle("sync-tracked"), throttle("sync-on-demand"));
    }
    for (name, setting) in [
        ("sync-ios", "SYNC_IOS"),
        ("sync-android", "SYNC_ANDROID"),
        ("charts-ios", "CHARTS_IOS"),
        ("charts-android", "CHARTS_ANDROID"),
    ] {
        let outside = [("ALLOW", "10"), ("PER", "90s")];
        let outside =
            outside.map(|(part, value)| (format!("ROUNDELAY__THROTTLES__{setting}__{part}"), value.to_owned()));
        let config = Config::parse(text, "appstore", outside).unwrap();
        assert_eq!(rate(&config, name), (10, 90));
    }
}

/// How long a sync waits for a slot before it goes back.
const PATIENCE: Duration = Duration::from_secs(300);

/// E2, E5, E6: attempts and their waits, one sync of an app within an hour, patience for a slot, the order.
#[test]
fn the_app_stores_have_their_attempts_and_their_order() {
    let config = Config::parse(EXAMPLES[4].1, "appstore", []).unwrap();
    let secs = |waits: &[u64]| Backoff::List(waits.iter().copied().map(Duration::from_secs).collect());
    for (kind, attempts, waits) in [
        ("sync-app", 3, secs(&[30, 60, 120])),
        ("chart-snapshot", 2, secs(&[60, 300])),
        ("chart-snapshot-on-demand", 3, secs(&[30, 60, 120])),
    ] {
        let retry = &config.kinds[kind].retry;
        assert_eq!((retry.attempts, &retry.backoff), (attempts, &waits), "{kind}");
    }
    let sync = &config.kinds["sync-app"];
    assert_eq!(
        sync.recurrence.as_ref().unwrap().cooldown,
        Duration::from_secs(3_600),
        "who asks within an hour is refused"
    );
    assert_eq!(sync.if_running, IfRunning::Refuse);
    for platform in ["ios", "android"] {
        assert_eq!(config.throttles[&format!("sync-{platform}")].block, PATIENCE);
        let queue = |urgency: &str| &config.queues[&format!("sync-{urgency}-{platform}")];
        let (on_demand, tracked) = (queue("on-demand"), queue("tracked"));
        assert_eq!(tracked.lanes, 3, "tracked, competitor, backlog");
        let ranks: Vec<i32> = [on_demand.rank(0), tracked.rank(2), tracked.rank(1), tracked.rank(0)].into();
        assert!(ranks.windows(2).all(|pair| pair[0] > pair[1]), "{ranks:?}");
        assert_eq!(config.queues[&format!("charts-{platform}")].throttle, Some(format!("charts-{platform}")));
        assert_eq!(config.queues[&format!("charts-on-demand-{platform}")].throttle, None);
    }
    let payload = serde_json::json!({ "platform": "android" });
    assert_eq!(sync.queue_for(&payload).unwrap().unwrap(), "sync-tracked-android");
    let shape = roundelay::roster::Shape::new(&config, sync).unwrap();
    let priority = |class: &str| {
        let row = serde_json::json!({ "platform": "ios", "app_id": "7", "class": class });
        let serde_json::Value::Object(row) = row else { unreachable!() };
        shape.entity(row).unwrap().priority
    };
    assert_eq!(["tracked", "competitor", "backlog"].map(priority), [Some(2), Some(1), Some(0)]);
}

/// What is of both platforms is two chains, on queues of their own.
#[test]
fn the_app_stores_are_apart_everywhere() {
    let config = Config::parse(EXAMPLES[4].1, "appstore", []).unwrap();
    for (name, kind) in &config.kinds {
        let of = |platform: &str| {
            let row = serde_json::json!({ "platform": platform, "app_id": "7", "country": "us", "chart": "top_free" });
            let queue = kind.queue_for(&row).unwrap().unwrap();
            assert!(queue.ends_with(platform) && config.queues.contains_key(&queue), "{name}: {queue}");
            if kind.recurrence.is_none() {
                return platform.to_owned();
            }
            let shape = roundelay::roster::Shape::new(&config, kind).unwrap();
            let serde_json::Value::Object(row) = row else { unreachable!() };
            let entity = shape.entity(row).unwrap();
            assert_eq!(entity.queue, queue, "{name}");
            entity.key
        };
        assert_ne!(of("ios"), of("android"), "{name}");
    }
}

/// A 404 is permanent for a country (E4), and what failed comes back on the app's own queue (E7).
#[test]
fn the_app_stores_have_their_reasons() {
    let config = Config::parse(EXAMPLES[4].1, "appstore", []).unwrap();
    let sync = &config.kinds["sync-app"];
    let reply = Reason::new(Class::Http4xx, "no").marked(Mark::Status(404));
    let empty = sync.policies.code(&reply).unwrap();
    assert_eq!((empty, &sync.policies.reasons[empty]), ("empty_response", &Policy::Fail));
    let now = Time::from_millis(1_000);
    let next = |code, attempts| sync.policies.next_try(Some(code), &sync.retry, attempts, now, 7);
    assert_eq!(next("empty_response", 1), None, "never again");
    assert_eq!(next("rate_limited", 99), Some(now + Duration::from_secs(60)));
    let of_store = (1..=5).map(|attempts| next("store_error", attempts).is_some()).collect::<Vec<_>>();
    assert_eq!(of_store, [true, true, true, true, false], "five attempts of its own, where the kind has three");
    let reconcile = sync.reconcile.as_ref().unwrap();
    assert_eq!((reconcile.every, &reconcile.kind), (Duration::from_secs(900), &None));
}

fn time(text: &str) -> Time {
    Time::from_millis(text.parse::<Timestamp>().unwrap().as_millisecond())
}

/// An example but for its ledger: the world has one in memory.
fn without_ledger(text: &str) -> String {
    let mut table: toml::Table = text.parse().unwrap();
    table.remove("ledger").expect("the example names a ledger");
    table.to_string()
}

/// D6: what a command did is known for 30 days, and lies in the archive after one.
#[test]
fn the_trading_table_keeps_its_audit_for_thirty_days() {
    let ledger = Config::parse(EXAMPLES[3].1, "trading", []).unwrap().ledger;
    let days = |days: u64| Duration::from_secs(days * 86_400);
    assert_eq!((ledger.history, ledger.archive), (days(1), Some(days(30))));
}

/// How often each command started within `[from, from + hours)`.
async fn day_of_trading(from: &str, hours: u64) -> BTreeMap<String, usize> {
    let config = without_ledger(EXAMPLES[3].1);
    // A little before, so that what is due at midnight is among it.
    let lead = Duration::from_secs(30);
    let midnight = time(from);
    let mut world = World::new(&config, midnight - lead);
    for kind in world.config.kinds.keys().cloned().collect::<Vec<_>>() {
        world.script(&kind, |_| (Duration::from_secs(1), roundelay::Outcome::Done));
    }
    world.start().await;
    for (kind, settings) in world.config.kinds.clone() {
        if settings.recurrence.is_some() {
            let wishes = Wishes { own_process: true, ..Wishes::default() };
            let connections = world.connections.clone();
            let bad = |bad| panic!("{kind}: {bad:?}");
            from_source(&world.config, connections, &kind, wishes, bad).await.unwrap();
        }
    }
    let day = Duration::from_secs(3_600 * hours);
    world.until(lead + day + Duration::from_secs(10)).await;
    world.stop().await;
    let mut counts = BTreeMap::new();
    for kind in world.config.kinds.keys() {
        let within = |at: Time| at >= midnight && at < midnight + day;
        let count = world.seen(kind).iter().filter(|seen| within(seen.from)).count();
        counts.insert(kind.clone(), count);
    }
    let other: Vec<_> = world.attempts().await.into_iter().filter(|a| a.verdict.as_deref() != Some("done")).collect();
    assert!(other.is_empty(), "{other:?}");
    counts
}

/// A day of the table, one of 23 hours and one of 25.
#[tokio::test(start_paused = true)]
async fn a_day_of_trading_fires_exactly_as_often_as_the_table_says() {
    for (from, hours) in [("2026-05-31T22:00:00Z", 24), ("2026-03-28T23:00:00Z", 23), ("2026-10-24T22:00:00Z", 25)] {
        let counts = day_of_trading(from, hours).await;
        let hourly = hours as usize;
        let expected = [
            ("recover-stale", hourly * 60),
            ("sync-orders", hourly * 12),
            ("refresh-listen-keys", hourly * 60),
            ("create-positions", hourly * 20),
            ("fetch-klines", hourly * 12),
            ("fetch-klines-1h", hourly),
            ("fetch-klines-4h", 6),
            ("fetch-klines-12h", 2),
            ("store-balances", 3 * hourly * 12),
            ("refresh-exchange-symbols", hourly),
            ("conclude-symbols-direction", hourly),
            ("disable-volatile-tokens", hourly),
            ("purge-candles", 1),
            ("purge-model-logs", 1),
            ("archive-steps", 1),
            ("refresh-symbol", 0),
        ];
        let expected: BTreeMap<String, usize> = expected.map(|(kind, count)| (kind.to_owned(), count)).into();
        assert_eq!(counts, expected, "{hours} hours from {from}");
    }
}

/// C5: each interface is polled at its own interval, counted from its nominal time.
#[tokio::test(start_paused = true)]
async fn the_channels_are_polled_each_at_its_interval() {
    let config = without_ledger(EXAMPLES[2].1);
    let mut world = World::new(&config, time("2026-01-05T00:00:00Z"));
    let minutes = [("poll-social-inbox", 1), ("download-pop3", 5), ("push-qst", 2), ("pull-qst", 2)];
    assert!(world.config.kinds.keys().all(|kind| minutes.iter().any(|(known, _)| known == kind)));
    for (kind, _) in minutes {
        world.script(kind, |_| (Duration::from_secs(3), roundelay::Outcome::Done));
    }
    world.start().await;
    for (kind, _) in minutes {
        let mut enroller =
            Enroller::new(&world.config, world.connections.clone(), kind, Some(Duration::ZERO), true).unwrap();
        enroller.enroll(vec![Entity::new("7", "channels", "{}")]).await.unwrap();
    }
    world.until(Duration::from_secs(3_600)).await;
    world.stop().await;
    for (kind, every) in minutes {
        let starts: Vec<Time> = world.seen(kind).iter().map(|seen| seen.from).collect();
        assert!((60 / every..=60 / every + 1).contains(&starts.len()), "{kind}: {}", starts.len());
        let gaps = starts.windows(2).map(|pair| pair[1].since(pair[0]));
        assert!(gaps.clone().all(|gap| gap == Duration::from_secs(60 * every as u64)), "{kind}: {:?}", gaps.max());
    }
}
