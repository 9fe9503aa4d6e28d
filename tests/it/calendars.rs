//! Calendars on the real engine, in virtual time: of a kind, of a chain, changed while a worker runs, read from a
//! database, and the guard that keeps a late tick from starting.

use std::time::Duration;

use roundelay::Outcome;
use roundelay::clock::Time;
use roundelay::engine::Connections;
use roundelay::ledger::{AttemptRecord, ListFilter, NewChain, Reports};
use roundelay::{Config, Engine};
use tokio::sync::mpsc;

use crate::harness::{Ground, roundelay, until, worker};
use crate::virtual_time::{MONDAY, World, chain};

const fn min(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// When the runs of a kind's chain started, in minutes from the beginning.
fn starts(world: &World, key: &str) -> Vec<u64> {
    let seen = world.seen("k").into_iter().filter(|seen| seen.job.key == key);
    seen.map(|seen| seen.from.since(world.begin).as_secs() / 60).collect()
}

fn config(settings: &str) -> String {
    format!("[queues.q]\n[kinds.k]\nqueue = \"q\"\n{settings}\n")
}

/// A world with one chain `x` of the kind `k`, due after a minute, whose runs take no time.
async fn one(settings: &str) -> World {
    let mut world = World::new(&config(settings), MONDAY);
    world.chains(vec![chain("k", "x", "q", MONDAY + min(1))]).await;
    world.start().await;
    world
}

async fn attempts_of(world: &World, key: &str) -> Vec<AttemptRecord> {
    let epoch = world.ledger.chains("k".into(), key.into()).await.unwrap()[0].hint.epoch;
    world.attempts().await.into_iter().filter(|attempt| attempt.epoch == epoch).collect()
}

#[tokio::test(start_paused = true)]
async fn a_kind_does_not_run_in_its_quiet_hours_and_what_is_left_out_is_counted() {
    for (settings, expected, excluded) in [
        ("every = \"10m\"", vec![1, 11, 21, 91, 101], 6),
        ("every = \"10m\"\nfrom = \"nominal\"", vec![1, 11, 21, 91, 101], 6),
        ("cron = \"*/10 * * * *\"", vec![1, 10, 20, 90, 100], 6),
        ("cron = \"*/10 * * * *\"\nwhen_excluded = \"next\"", vec![1, 10, 20, 90, 100], 6),
        ("cron = \"35 * * * *\"\nwhen_excluded = \"next\"", vec![1, 90, 95], 0),
        // 00:35 comes at 00:29, and 01:35 in its time.
        ("cron = \"35 * * * *\"\nwhen_excluded = \"previous\"", vec![1, 29, 95], 0),
    ] {
        let mut world = one(&format!("quiet = \"00:30-01:30\"\n{settings}")).await;
        world.until(min(105)).await;
        assert_eq!(starts(&world, "x"), expected, "{settings}");
        let left_out: u32 = attempts_of(&world, "x").await.iter().map(|attempt| attempt.excluded).sum();
        assert_eq!(left_out, excluded, "{settings}");
        world.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_chain_has_quiet_hours_of_its_own_in_its_own_zone() {
    let settings = "every = \"20m\"\nquiet = \"00:30-01:30\"\n[calendars.off]\ndates = [\"2026-01-05\"]";
    let mut world = World::new(&config(settings), MONDAY);
    let own = |key: &str, schedule: &str| NewChain {
        schedule: Some(schedule.into()),
        ..chain("k", key, "q", MONDAY + min(1))
    };
    world
        .chains(vec![
            chain("k", "of its kind", "q", MONDAY + min(1)),
            own("none", r#"{"quiet":[]}"#),
            // Midnight UTC is 09:00 in Tokyo.
            own("Tokyo", r#"{"quiet":"09:10-09:50","zone":"Asia/Tokyo"}"#),
            own("another interval", r#"{"every":"30m","quiet":"00:00-01:50"}"#),
            own("a holiday", r#"{"except":"off","quiet":""}"#),
        ])
        .await;
    world.start().await;
    world.until(min(130)).await;
    for (key, expected) in [
        ("of its kind", vec![1, 21, 101, 121]),
        ("none", vec![1, 21, 41, 61, 81, 101, 121]),
        ("Tokyo", vec![1, 61, 81, 101, 121]),
        ("another interval", vec![121]),
        ("a holiday", vec![]),
    ] {
        assert_eq!(starts(&world, key), expected, "{key}");
    }
    let refused = attempts_of(&world, "a holiday").await.remove(0);
    assert_eq!(refused.verdict.as_deref(), Some("skipped"));
    let reason = "calendar: 00:01 is in the calendar `off` (UTC), until 2026-01-06 00:00";
    assert_eq!(refused.reason.as_deref(), Some(reason));
    world.stop().await;
}

/// The worker is away from 0:15 to 0:45.
#[tokio::test(start_paused = true)]
async fn a_late_tick_does_not_start_in_excluded_time() {
    for (when, expected, verdict) in [
        ("skip", vec![1, 11, 95], "skipped"),
        ("next", vec![1, 11, 90, 100], "snoozed"),
        ("previous", vec![1, 11, 95], "skipped"),
    ] {
        let mut world = one(&format!("every = \"10m\"\nquiet = \"00:30-01:30\"\nwhen_excluded = \"{when}\"")).await;
        world.until(min(15)).await;
        world.stop().await;
        world.until(min(45)).await;
        world.start().await;
        world.until(min(104)).await;
        assert_eq!(starts(&world, "x"), expected, "{when}");
        let refused = attempts_of(&world, "x").await.remove(2);
        let reason = "calendar: 00:45 is in the quiet hours 00:30-01:30 (UTC), until 01:30";
        assert_eq!((refused.verdict.as_deref(), refused.reason.as_deref()), (Some(verdict), Some(reason)), "{when}");
        world.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn sleeping_chains_follow_calendars_that_change() {
    let text = |quiet: &str| config(&format!("every = \"40m\"\n{quiet}"));
    let mut world = World::new(&text(""), MONDAY);
    world.chains(vec![chain("k", "x", "q", MONDAY + min(1))]).await;
    let (changes, fresh) = mpsc::channel::<Config>(1);
    world.begin_with(|engine| Engine::without_chores(engine).configurations(fresh)).await;
    let due = async |world: &World| {
        let chain = world.ledger.list(ListFilter::default(), None, 1).await.unwrap().remove(0);
        chain.hint.due.since(world.begin).as_secs() / 60
    };
    let tell = async |text: &str| {
        let text = format!("ledger.url = \"sqlite://:memory:\"\n{text}");
        changes.send(Config::parse(&text, "the test's configuration", []).unwrap()).await.unwrap();
    };
    world.until(min(10)).await;
    assert_eq!(due(&world).await, 41);
    tell(&text("quiet = \"00:30-02:00\"")).await;
    world.until(min(11)).await;
    assert_eq!(due(&world).await, 121, "by whole intervals");
    tell(&text("quiet = \"01:30-02:30\"")).await;
    world.until(min(12)).await;
    assert_eq!(due(&world).await, 41, "it may come sooner again");
    world.until(min(130)).await;
    assert_eq!(starts(&world, "x"), [1, 41, 81]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_days_of_a_calendar_are_read_from_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("off.db");
    let database = rusqlite::Connection::open(&file).unwrap();
    database
        .execute_batch("CREATE TABLE off (day TEXT, why TEXT); INSERT INTO off VALUES ('2026-01-05', 'moving')")
        .unwrap();
    let settings = format!(
        "every = \"10m\"\nexcept = \"off\"\n[calendars.off.sql]\nurl = \"sqlite://{}\"\nquery = \"SELECT * FROM off\"\n\
         every = \"1m\"\n",
        file.display()
    );
    let mut world = World::new(&config(&settings), MONDAY);
    world.chains(vec![chain("k", "x", "q", MONDAY + min(5))]).await;
    world.start_with_chores().await;
    world.until(min(30)).await;
    assert_eq!(starts(&world, "x"), [0; 0], "all of Monday is off");
    let chain = world.ledger.chains("k".into(), "x".into()).await.unwrap().remove(0);
    let tuesday = MONDAY + min(24 * 60);
    assert!((tuesday..tuesday + min(10)).contains(&chain.hint.due), "{}", chain.hint.due);
    database.execute_batch("DELETE FROM off").unwrap();
    world.until(min(60)).await;
    let first = starts(&world, "x")[0];
    assert!((30..43).contains(&first), "the chain is moved when the day is gone: {first}");
    // What cannot be read leaves the days that were read before in force.
    database.execute_batch("INSERT INTO off VALUES ('2026-01-05', '')").unwrap();
    world.until(min(70)).await;
    let before = starts(&world, "x").len();
    database.execute_batch("DROP TABLE off").unwrap();
    world.until(min(120)).await;
    assert_eq!(starts(&world, "x").len(), before);
    let chore = world.ledger.chains("roundelay.calendar".into(), "off".into()).await.unwrap().remove(0);
    let last = world.ledger.history(chore.fence, 3).await.unwrap();
    let reason = last.iter().find_map(|last| last.reason.clone()).unwrap();
    assert!(
        reason.contains("`off` keeps the days that were read before") && reason.contains("no such table"),
        "{reason}"
    );
    world.stop().await;
}

/// A worker that begins takes the days that were read before from the ledger, before a tick is claimed.
#[tokio::test(start_paused = true)]
async fn a_worker_begins_with_the_days_that_were_read_last() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("off.db");
    let database = rusqlite::Connection::open(&file).unwrap();
    database.execute_batch("CREATE TABLE off (day TEXT); INSERT INTO off VALUES ('2026-01-05..2026-01-06')").unwrap();
    let settings = format!(
        "every = \"10m\"\nexcept = \"off\"\n[calendars.off.sql]\nurl = \"sqlite://{}\"\nquery = \"SELECT day FROM off\"\n",
        file.display()
    );
    let mut world = World::new(&config(&settings), MONDAY);
    world.start_with_chores().await;
    world.until(min(2)).await;
    world.stop().await;
    database.execute_batch("DROP TABLE off").unwrap();
    world.chains(vec![chain("k", "x", "q", MONDAY + min(3))]).await;
    world.until(min(5)).await;
    world.start().await;
    world.until(min(30)).await;
    assert_eq!(starts(&world, "x"), [0; 0]);
    let attempt = attempts_of(&world, "x").await.remove(0);
    let reason = "calendar: 00:05 is in the calendar `off` (UTC), until 2026-01-07 00:00";
    assert_eq!(attempt.reason.as_deref(), Some(reason));
    assert_eq!(attempt.excluded, 287, "00:15, 00:25 and so on");
    let chain: Time = world.ledger.chains("k".into(), "x".into()).await.unwrap()[0].hint.due;
    assert_eq!(chain.since(MONDAY).as_secs(), min(2 * 1_440 + 5).as_secs());
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_says_when_it_comes_next_is_heard_within_its_calendars() {
    let mut world = World::new(&config("every = \"10m\"\nquiet = \"00:30-01:30\""), MONDAY);
    world.script("k", |_| {
        let next_in = Some(min(45));
        (Duration::ZERO, Outcome::DoneWith(roundelay::outcome::Yield { next_in, ..Default::default() }))
    });
    world.chains(vec![chain("k", "x", "q", MONDAY + min(1))]).await;
    world.start().await;
    world.until(min(140)).await;
    assert_eq!(starts(&world, "x"), [1, 91, 136], "by whole waits");
    world.stop().await;
}

/// The days come from PostgreSQL to a real worker, and `show` says why the chain waits.
#[tokio::test]
async fn the_days_of_a_calendar_are_read_from_postgres() {
    let ground = Ground::rabbit_and_postgres().await;
    let schema = ground.schema.as_ref().unwrap();
    let off = "CREATE TABLE off (day date, why text);
               INSERT INTO off SELECT (now() AT TIME ZONE 'UTC')::date + n, 'moving' FROM generate_series(0, 2) AS n";
    schema.raw().await.batch_execute(off).await.unwrap();
    let config = ground.config_file(&format!(
        "[queues.work]\n[kinds.sync]\nqueue = \"work\"\nevery = \"1h\"\nexcept = \"off\"\n\
         handler.http.url = \"http://127.0.0.1:9/\"\n[calendars.off.sql]\nurl = '{}'\n\
         query = 'SELECT day::text, why FROM off'\nevery = \"1m\"\n",
        schema.url
    ));
    let ledger = Connections::ledger(&Config::load(&config).unwrap()).await.unwrap();
    let soon = ledger.now() + Duration::from_secs(3_600);
    ledger.enroll(vec![chain("sync", "x", "work", soon)]).await.unwrap();
    let _worker = worker(&config);
    until("the chain is moved behind the days that are off", || async {
        let chain = ledger.chains("sync".into(), "x".into()).await.unwrap().remove(0);
        chain.hint.due > soon + Duration::from_secs(24 * 3_600)
    })
    .await;
    let arguments = ["show", "--config", config.to_str().unwrap(), "sync", "x"];
    let shown = roundelay(&arguments).await;
    assert!(shown.ok && shown.stdout.contains("calendar `off`"), "{shown:?}");
}
