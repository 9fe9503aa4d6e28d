//! When ticks come and whether they start, in virtual time, on the real engine: rhythms, guards,
//! overlap, misfire, batches, owners, unique jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use roundelay::Outcome;
use roundelay::clock::Time;
use roundelay::engine::enroll::{Enroller, Entity, RunOnce};
use roundelay::job::{Enrolment, Envelope, Retirement, RunNow};
use roundelay::ledger::{ChainFilter, ChainOrder, ChainState, Enrolled, Ledger, ListFilter, NewChain, Search};
use roundelay::outcome::{NewJob, Yield};
use serde_json::{Value, json};

use crate::virtual_time::{MONDAY, World, chain};

const fn s(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const HOUR: Duration = s(3_600);

/// The nominal times and starts of a kind's runs, in seconds from the beginning.
fn starts(world: &World, kind: &str) -> Vec<(u64, u64)> {
    let secs = |at: Time| at.since(world.begin).as_secs();
    world.seen(kind).iter().map(|seen| (secs(seen.job.nominal), secs(seen.from))).collect()
}

/// Each attempt's verdict and what was left out, in order.
async fn verdicts(world: &World) -> Vec<(String, u32, u32)> {
    let of = |attempt: roundelay::ledger::AttemptRecord| {
        (attempt.verdict.unwrap_or_default(), attempt.overlapped, attempt.misfired)
    };
    world.attempts().await.into_iter().map(of).collect()
}

/// A world with one chain `x` of the kind `k`, due after a minute, whose runs take `takes`.
async fn one(settings: &str, takes: impl Fn(u64) -> (Duration, Outcome) + Send + Sync + 'static) -> World {
    let config = format!("[queues.q]\n[kinds.k]\nqueue = \"q\"\ntimeout = \"20m\"\n{settings}\n");
    let mut world = World::new(&config, MONDAY);
    let runs = AtomicU64::new(0);
    world.script("k", move |_| takes(runs.fetch_add(1, Ordering::Relaxed)));
    world.chains(vec![chain("k", "x", "q", MONDAY + s(60))]).await;
    world.start().await;
    world
}

#[tokio::test(start_paused = true)]
async fn an_interval_is_counted_from_finish_start_or_nominal_time() {
    for (from, expected) in [
        ("finish", [(60, 60), (130, 130), (200, 200)]),
        ("start", [(60, 60), (120, 120), (180, 180)]),
        ("nominal", [(60, 60), (120, 120), (180, 180)]),
    ] {
        let mut world = one(&format!("every = \"1m\"\nfrom = \"{from}\""), |_| (s(10), Outcome::Done)).await;
        world.until(s(215)).await;
        assert_eq!(starts(&world, "k"), expected, "from {from}");
        world.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn overlap_skips_buffers_cancels_or_runs_beside() {
    let takes = |n| (if n == 0 { s(150) } else { s(10) }, Outcome::Done);
    for (overlap, expected, left_out) in [
        ("skip", vec![(60, 60), (240, 240)], ("done", 2)),
        ("buffer-one", vec![(60, 60), (180, 210), (240, 240)], ("done", 1)),
        // Cut off at its next occurrence, after 5 s of grace.
        ("cancel-other", vec![(60, 60), (120, 125), (180, 180), (240, 240)], ("cut", 0)),
        ("allow", vec![(60, 60), (120, 120), (180, 180), (240, 240)], ("fanned_out", 0)),
    ] {
        let settings = format!("every = \"1m\"\nfrom = \"nominal\"\noverlap = \"{overlap}\"");
        let mut world = one(&settings, takes).await;
        world.until(s(255)).await;
        assert_eq!(starts(&world, "k"), expected, "{overlap}");
        let (verdict, overlapped, misfired) = verdicts(&world).await.remove(0);
        assert_eq!(((verdict.as_str(), overlapped), misfired), (left_out, 0), "{overlap}");
        world.stop().await;
    }
}

/// The worker is away from 2:10 to 7:10.
#[tokio::test(start_paused = true)]
async fn misfires_are_skipped_coalesced_or_all_made_up_for() {
    for (misfire, expected) in [
        ("misfire = \"skip\"", vec![(60, 60), (120, 120), (480, 480)]),
        ("misfire = \"coalesce\"", vec![(60, 60), (120, 120), (180, 430), (480, 480)]),
        (
            "misfire = \"all\"",
            vec![(60, 60), (120, 120), (180, 430), (240, 430), (300, 430), (360, 430), (420, 430), (480, 480)],
        ),
        ("misfire = \"all\"\nmisfire_window = \"2m\"", vec![(60, 60), (120, 120), (360, 430), (420, 430), (480, 480)]),
    ] {
        let settings = format!("every = \"1m\"\nfrom = \"nominal\"\n{misfire}");
        let mut world = one(&settings, |_| (Duration::ZERO, Outcome::Done)).await;
        world.until(s(130)).await;
        world.stop().await;
        world.until(s(430)).await;
        world.start().await;
        world.until(s(500)).await;
        assert_eq!(starts(&world, "k"), expected, "{misfire}");
        world.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn ticks_that_an_outage_delayed_are_spread_and_none_runs_twice() {
    let config = "[queues.q]\nconcurrency = 500\n[kinds.k]\nqueue = \"q\"\nevery = \"1m\"\njitter = \"15s\"\nmisfire_spread = \"1m\"\n";
    let mut world = World::new(config, MONDAY);
    let due = |n: u64| MONDAY + Duration::from_millis(n * 120);
    world.chains((0..500).map(|n| chain("k", &n.to_string(), "q", due(n))).collect()).await;
    world.start().await;
    world.until(s(120)).await;
    world.stop().await;
    world.until(s(420)).await;
    let before = world.seen("k").len();
    world.start().await;
    world.until(s(540)).await;
    let mut bins = [0; 12];
    for (_, start) in &starts(&world, "k")[before..] {
        bins[((start - 420) / 10) as usize] += 1;
    }
    let mean = bins.iter().sum::<u64>() / 12;
    assert!(mean > 70, "{bins:?}: all go on");
    assert!(bins.iter().all(|bin| *bin < mean * 3 / 2), "{bins:?}: without a burst");
    let late = verdicts(&world).await.iter().filter(|(verdict, ..)| verdict == "snoozed").count();
    assert_eq!(late, 500, "each was put off once");
    world.stop().await;
}

/// The broker is away for half a minute. What is ten seconds late then, a sixtieth of the ten minutes, is
/// put off and spread; what is less late starts at once.
#[tokio::test(start_paused = true)]
async fn ticks_later_than_a_sixtieth_of_the_spread_are_spread_and_no_others() {
    let config = "[queues.q]\nconcurrency = 100\n[kinds.k]\nqueue = \"q\"\nevery = \"1h\"\nmisfire_spread = \"10m\"\n";
    let mut world = World::new(config, MONDAY);
    let chains = (0..120).map(|n| chain("k", &n.to_string(), "q", MONDAY + s(45) + Duration::from_millis(n * 250)));
    world.chains(chains.collect()).await;
    world.start().await;
    world.until(s(43)).await;
    world.broker.stop();
    world.until(s(75)).await;
    world.broker.start();
    world.until(s(76) + s(600)).await;
    let attempts = world.attempts().await;
    let first = attempts.iter().filter(|attempt| attempt.attempt == 1 && attempt.due < MONDAY + s(75));
    let (late, in_time): (Vec<_>, Vec<_>) = first.partition(|attempt| attempt.started.since(attempt.due) > s(10));
    let by = |attempt: &&roundelay::ledger::AttemptRecord| attempt.started.since(attempt.due);
    let (least, most) = (late.iter().map(by).min().unwrap(), in_time.iter().map(by).max().unwrap());
    assert!(most > s(9) && least < s(11), "both sides of the threshold are there: {most:?}, {least:?}");
    assert!(late.len() > 60 && in_time.len() > 20, "{} late, {} not", late.len(), in_time.len());
    for attempt in in_time {
        assert_eq!((attempt.verdict.as_deref(), &attempt.reason), (Some("done"), &None), "{attempt:?}");
    }
    for attempt in &late {
        let reason = attempt.reason.as_deref().unwrap_or_default();
        assert_eq!(attempt.verdict.as_deref(), Some("snoozed"), "{attempt:?}");
        assert!(reason.starts_with("misfire: it was due ") && reason.ends_with("spread over 10m"), "{reason}");
    }
    // Evenly over the ten minutes from the end of the outage on.
    let mut bins = [0; 5];
    let again = attempts.iter().filter(|attempt| attempt.due >= MONDAY + s(75));
    for attempt in again {
        assert_eq!(attempt.verdict.as_deref(), Some("done"), "{attempt:?}");
        bins[(attempt.started.since(MONDAY + s(75)).as_secs() / 121) as usize] += 1;
    }
    let mean = late.len() / 5;
    assert_eq!(bins.iter().sum::<usize>(), late.len(), "each comes once: {bins:?}");
    assert!(bins.iter().all(|bin| bin.abs_diff(mean) <= mean / 4), "{bins:?}: evenly");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_skips_and_says_so() {
    let mut world = one("cron = \"* * * * *\"\ncooldown = \"90s\"", |_| (s(5), Outcome::Done)).await;
    world.until(s(310)).await;
    assert_eq!(starts(&world, "k"), [(60, 60), (180, 180), (300, 300)]);
    let reasons: Vec<_> = world.attempts().await.into_iter().filter_map(|attempt| attempt.reason).collect();
    assert_eq!(reasons, ["cooldown: the last run ended 55s ago, and 90s must go by"; 2]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_run_says_when_the_next_is_due_and_hands_something_on() {
    let next_in = |n| Yield { next_in: Some(s(n)), carry: Some(json!(n)), ..Yield::default() };
    let settings = "every = \"1h\"\nnext_in = { min = \"30s\", max = \"2m\" }";
    let mut world =
        one(settings, move |n| (Duration::ZERO, Outcome::DoneWith(next_in([90, 1, 999][n as usize % 3])))).await;
    world.until(s(310)).await;
    assert_eq!(starts(&world, "k").iter().map(|(_, start)| *start).collect::<Vec<_>>(), [60, 150, 180, 300]);
    let carried: Vec<Value> = world.seen("k").into_iter().map(|seen| seen.job.carry).collect();
    assert_eq!(carried, [Value::Null, json!(90), json!(1), json!(999)]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_carry_that_is_too_large_is_reported_and_the_last_one_stays() {
    let settings = "every = \"1m\"";
    let mut world = one(settings, |n| {
        let carry = if n == 1 { json!("x".repeat(70_000)) } else { json!(n) };
        (Duration::ZERO, Outcome::DoneWith(Yield { carry: Some(carry), ..Yield::default() }))
    })
    .await;
    world.until(s(190)).await;
    let carried: Vec<Value> = world.seen("k").into_iter().map(|seen| seen.job.carry).collect();
    assert_eq!(carried, [Value::Null, json!(0), json!(0)]);
    let failure = world.ledger.failures(1).await.unwrap().remove(0);
    assert!(failure.item == "carry" && failure.reason.contains("70002 bytes"), "{failure:?}");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_chain_with_one_occurrence_ticks_once() {
    let mut world = World::new("[queues.q]\n[kinds.k]\nqueue = \"q\"\nat = \"2026-01-05T03:00:00Z\"\n", MONDAY);
    world.start().await;
    let mut enroller = Enroller::new(&world.config, world.connections.clone(), "k", None, true).unwrap();
    enroller.enroll(vec![Entity::new("x", "q", "{}")]).await.unwrap();
    world.until(HOUR * 24).await;
    assert_eq!(starts(&world, "k"), [(3 * 3_600, 3 * 3_600)]);
    let chain = world.ledger.chains("k".into(), "x".into()).await.unwrap().remove(0);
    assert_eq!(chain.state, ChainState::Retired);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_chain_may_have_a_schedule_of_its_own() {
    let mut world = World::new("[queues.q]\n[kinds.k]\nqueue = \"q\"\nevery = \"1h\"\nfrom = \"nominal\"\n", MONDAY);
    let own = |key: &str, text: &str| NewChain {
        schedule: Some(roundelay::config::OwnSchedule::from_words(text).unwrap().text()),
        ..chain("k", key, "q", MONDAY)
    };
    world.chains(vec![own("fast", "20m"), own("daily", "0 12 * * *"), chain("k", "usual", "q", MONDAY)]).await;
    world.start().await;
    world.until(HOUR * 24 - s(1)).await;
    let count = |key: &str| world.seen("k").iter().filter(|seen| seen.job.key == key).count();
    assert_eq!((count("fast"), count("daily"), count("usual")), (72, 2, 24));
    world.stop().await;
}

/// What begins many chains, or sends their messages again, leaves room for the messages of chains that run.
#[tokio::test(start_paused = true)]
async fn first_messages_and_those_sent_again_keep_to_the_bulk_rate() {
    let text = "broker.bulk_rate = 1000\ncatch_up.spread = \"0s\"\n[queues.q]\nconcurrency = 1000\n\
                [kinds.k]\nqueue = \"q\"\nevery = \"1d\"\n[kinds.other]\nqueue = \"q\"\nevery = \"1d\"\n";
    let world = World::new(text, MONDAY);
    let mut enroller = Enroller::new(&world.config, world.connections.clone(), "other", None, true).unwrap();
    let begun = tokio::time::Instant::now();
    enroller.enroll((0..3_000).map(|n| Entity::new(format!("{n}"), "q", "{}")).collect()).await.unwrap();
    let took = begun.elapsed().as_secs_f64();
    assert!((2.9..3.1).contains(&took), "{took} s");

    // In the ledger alone: catch-up sends them, since the broker of this worker begins empty.
    let mut world = World::new(text, MONDAY);
    world.chains((0..3_000).map(|n| chain("k", &n.to_string(), "q", MONDAY)).collect()).await;
    world.start().await;
    world.until(s(20)).await;
    let mut starts: Vec<Time> = world.seen("k").into_iter().map(|seen| seen.from).collect();
    starts.sort();
    assert_eq!(starts.len(), 3_000);
    let took = starts[2_999].since(starts[0]).as_secs_f64();
    assert!((2.8..3.1).contains(&took), "{took} s");
    // A second's worth, and a twentieth of that at once.
    assert!(starts.windows(1_052).all(|window| window[1_051].since(window[0]) >= s(1)));
    world.stop().await;
}

// ---- Batches ----

const BATCH: &str = r#"
[queues.q]
[queues.endpoints]
[kinds.character]
queue = "q"
every = "5m"
[kinds.endpoint]
queue = "endpoints"
timeout = "1m"
retry = { attempts = 2, backoff = ["7s"] }
"#;

fn endpoints(count: usize) -> Outcome {
    let job = |n: usize| NewJob {
        kind: "endpoint".into(),
        key: format!("42/{n}"),
        payload: json!({ "n": n }),
        ..NewJob::default()
    };
    Outcome::DoneWith(Yield { batch: (0..count).map(job).collect(), ..Yield::default() })
}

/// A cycle is over when all endpoints have ended, whether they worked or not, and the next one comes
/// five minutes after that.
#[tokio::test(start_paused = true)]
async fn a_cycle_is_over_when_all_its_endpoints_are() {
    let mut world = World::new(BATCH, MONDAY);
    world.script("character", |_| (s(1), endpoints(5)));
    world.script("endpoint", |job| match job.payload["n"].as_u64() {
        Some(3) => (s(2), Outcome::retry("always")),
        Some(n) => (s(10 * n), Outcome::Done),
        None => unreachable!(),
    });
    world.chains(vec![chain("character", "42", "q", MONDAY)]).await;
    world.start().await;
    world.until(s(400)).await;
    // 1 s, then the longest endpoint: 40 s; then five minutes.
    assert_eq!(starts(&world, "character"), [(0, 0), (341, 341)]);
    assert_eq!(world.seen("endpoint").len(), 12, "four that work and one that is tried twice, two times");
    let ids: std::collections::BTreeSet<_> = world.seen("endpoint").into_iter().map(|seen| seen.job.id).collect();
    assert_eq!(ids.len(), 10, "an id of its own for each, the same on every attempt");
    let gathered: Vec<_> =
        world.attempts().await.into_iter().filter_map(|a| a.reason).filter(|r| r.contains("batch")).collect();
    assert_eq!(gathered[0], "batch of 5: 4 done, 1 failed");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cycle_outlives_a_worker_that_stops_in_the_midst_of_it() {
    let mut world = World::new(BATCH, MONDAY);
    world.script("character", |_| (s(1), endpoints(200)));
    world.script("endpoint", |_| (s(10), Outcome::Done));
    world.chains(vec![chain("character", "42", "q", MONDAY)]).await;
    world.start().await;
    world.until(s(25)).await;
    world.stop().await;
    world.until(s(60)).await;
    world.start().await;
    world.until(s(700)).await;
    let keys: std::collections::BTreeSet<_> = world.seen("endpoint").into_iter().map(|seen| seen.job.key).collect();
    assert_eq!(keys.len(), 200);
    let done = verdicts(&world).await.iter().filter(|(verdict, ..)| verdict == "fanned_out").count();
    assert_eq!((starts(&world, "character").len(), done), (2, 2));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_with_jobs_that_cannot_run_reports_them_and_the_rest_goes_on() {
    let mut world = World::new(BATCH, MONDAY);
    world.script("character", |_| {
        let job = |kind: &str, key: &str| NewJob { kind: kind.into(), key: key.into(), ..NewJob::default() };
        let batch = vec![job("endpoint", "a"), job("endpoint", "a"), job("nobody", "b")];
        (s(1), Outcome::DoneWith(Yield { batch, ..Yield::default() }))
    });
    world.chains(vec![chain("character", "42", "q", MONDAY)]).await;
    world.start().await;
    world.until(s(20)).await;
    assert_eq!(world.seen("endpoint").len(), 1);
    let mut failed: Vec<_> = world.ledger.failures(9).await.unwrap().into_iter().map(|f| (f.item, f.reason)).collect();
    failed.sort();
    assert_eq!(failed[0], ("batch endpoint a".into(), "it is in the batch twice".into()));
    assert_eq!(failed[1].0, "batch nobody b");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn only_a_tick_waits_for_a_batch() {
    let mut world = World::new(BATCH, MONDAY);
    world.script("endpoint", |_| (s(1), endpoints(2)));
    world.start().await;
    world.publish("endpoints", "endpoint", "x", Value::Null).await;
    world.until(s(20)).await;
    assert_eq!(world.seen("endpoint").len(), 1);
    let failure = world.ledger.failures(1).await.unwrap().remove(0);
    assert_eq!(failure.reason, "only a tick of a chain can wait for a batch");
    world.stop().await;
}

// ---- Owners and unique jobs ----

const OWNED: &str = r#"
[queues.q]
concurrency = 1
[kinds.k]
queue = "q"
every = "1m"
unique_for = "1h"
"#;

fn of(owner: &str) -> ChainFilter {
    ChainFilter { owner: Some(owner.into()), ..ChainFilter::default() }
}

#[tokio::test(start_paused = true)]
async fn jobs_that_wait_in_a_queue_go_with_their_owner() {
    let mut world = World::new(OWNED, MONDAY);
    world.script("k", |_| (s(5), Outcome::Done));
    let owned = NewChain { owner: Some("channel".into()), ..chain("k", "poll", "q", MONDAY) };
    world.chains(vec![owned]).await;
    world.start().await;
    world.until(s(1)).await;
    // They wait for the one that runs.
    for key in ["a", "b"] {
        let job = Envelope { owner: Some("channel".into()), ..Envelope::job("k", key, Value::Null, key.into()) };
        world.keep("q", job).await;
    }
    world.keep("q", Envelope::job("k", "c", Value::Null, "c".into())).await;
    world.ledger.order_chains(of("channel"), ChainOrder::Pause).await.unwrap();
    world.until(s(20)).await;
    let ran = |world: &World| world.seen("k").into_iter().map(|seen| seen.job.key).collect::<Vec<_>>();
    assert_eq!(ran(&world), ["poll", "c"]);
    world.ledger.order_chains(of("channel"), ChainOrder::Resume).await.unwrap();
    world.until(s(50)).await;
    assert_eq!(ran(&world)[2..].iter().filter(|key| ["a", "b"].contains(&key.as_str())).count(), 2);
    world.ledger.order_chains(of("channel"), ChainOrder::Retire).await.unwrap();
    let job = Envelope { owner: Some("channel".into()), ..Envelope::job("k", "d", Value::Null, "d".into()) };
    world.keep("q", job).await;
    world.until(s(600)).await;
    let after = ran(&world);
    assert!(!after.contains(&"d".to_owned()), "{after:?}");
    let polls = after.iter().filter(|key| *key == "poll").count();
    world.until(HOUR).await;
    assert_eq!(ran(&world).iter().filter(|key| *key == "poll").count(), polls, "its chain has ended");
    world.stop().await;
}

/// It was asked for its owner before, and waits for room while she is paused.
#[tokio::test(start_paused = true)]
async fn a_job_that_waits_for_room_does_not_start_when_its_owner_is_paused_meanwhile() {
    for (order, runs) in [(ChainOrder::Pause, 2), (ChainOrder::Retire, 1)] {
        let mut world = World::new(OWNED, MONDAY);
        world.script("k", |_| (s(20), Outcome::Done));
        world.start().await;
        let job = |key: &str| Envelope::job("k", key, Value::Null, format!("id of {key}"));
        world.keep("q", job("busy")).await;
        world.until(s(1)).await;
        world.keep("q", Envelope { owner: Some("me".into()), ..job("a") }).await;
        world.until(s(10)).await;
        world.ledger.order_chains(of("me"), order).await.unwrap();
        world.until(s(40)).await;
        assert_eq!(starts(&world, "k").len(), 1, "{order:?}: there is room from 21 s on");
        world.ledger.order_chains(of("me"), ChainOrder::Resume).await.unwrap();
        world.until(s(75)).await;
        assert_eq!(starts(&world, "k").len(), runs, "{order:?}");
        // Neither who has ended nor who is gone has left a place behind.
        let holder = world.ledger.reserve("k".into(), "a".into(), "another".into(), HOUR).await.unwrap();
        assert_eq!(holder, "another", "{order:?}");
        world.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_inherit_their_owner() {
    let config = "[queues.q]\n[kinds.k]\nqueue = \"q\"\nevery = \"1h\"\n[kinds.part]\nqueue = \"q\"\n";
    let mut world = World::new(config, MONDAY);
    world.script("k", |_| {
        let job = |key: &str| NewJob { kind: "part".into(), key: key.into(), ..NewJob::default() };
        (s(1), Outcome::DoneWith(Yield { jobs: vec![job("spawned")], batch: vec![job("member")], ..Yield::default() }))
    });
    world.chains(vec![NewChain { owner: Some("me".into()), ..chain("k", "x", "q", MONDAY) }]).await;
    world.start().await;
    world.until(s(10)).await;
    let mut owners: Vec<_> = world.seen("part").into_iter().map(|seen| (seen.job.key, seen.job.owner)).collect();
    owners.sort();
    assert_eq!(owners, [("member".into(), Some("me".to_owned())), ("spawned".into(), Some("me".to_owned()))]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_unique_job_is_the_only_one_of_its_key_until_it_has_ended_or_started() {
    let table = [("finish", vec![0, 0, 40]), ("start", vec![0, 0, 10, 40]), ("window", vec![0, 0])];
    for (until, expected) in table {
        let config = OWNED.replace("concurrency = 1", "concurrency = 3") + &format!("unique_until = \"{until}\"\n");
        let mut world = World::new(&config, MONDAY);
        world.script("k", |_| (s(20), Outcome::Done));
        world.start().await;
        for (at, key, id) in [(0, "a", "1"), (0, "b", "2"), (10, "a", "3"), (40, "a", "4")] {
            world.until(s(at)).await;
            world.publish_envelope("q", &Envelope::job("k", key, Value::Null, id.into())).await;
        }
        world.until(s(70)).await;
        assert_eq!(starts(&world, "k").into_iter().map(|(_, start)| start).collect::<Vec<_>>(), expected, "{until}");
        world.stop().await;
    }
}

/// Ten clicks in the hour are one run; a run that has failed for good is none.
#[tokio::test(start_paused = true)]
async fn a_unique_job_has_its_place_for_the_whole_window_unless_it_fails() {
    let mut world = World::new(&(OWNED.to_owned() + "unique_until = \"window\"\nretry.attempts = 1\n"), MONDAY);
    world.script("k", |job| (s(1), if job.id == "bad" { Outcome::fail("no") } else { Outcome::Done }));
    world.start().await;
    for (at, id) in [(0, "bad"), (10, "first"), (20, "within"), (3_600, "still within"), (3_620, "after")] {
        world.until(s(at)).await;
        world.publish_envelope("q", &Envelope::job("k", "a", Value::Null, id.into())).await;
    }
    world.until(s(3_700)).await;
    let ran: Vec<_> = world.seen("k").into_iter().map(|seen| seen.job.id).collect();
    assert_eq!(ran, ["bad", "first", "after"]);
    world.stop().await;
}

/// A manual run has the place like a one-off job: neither runs beside the other, and a place is given up as
/// `unique_until` says.
#[tokio::test(start_paused = true)]
async fn a_manual_run_and_a_one_off_job_of_a_unique_kind_are_not_both_there() {
    // The manual run begins at 0 and takes 20 s; jobs come at 10 s and at 40 s.
    let table = [("finish", vec![0, 40]), ("start", vec![0, 10, 40]), ("window", vec![0])];
    for (until, expected) in table {
        let config = OWNED.replace("concurrency = 1", "concurrency = 3") + &format!("unique_until = \"{until}\"\n");
        let mut world = World::new(&config, MONDAY);
        world.script("k", |_| (s(20), Outcome::Done));
        world.start().await;
        let mut enroller = Enroller::new(&world.config, world.connections.clone(), "k", None, true).unwrap();
        let asked = RunNow { queue: Some("q".into()), ..RunNow::default() };
        assert_eq!(enroller.run_once("a", Some(&json!({})), &asked, None).await.unwrap(), RunOnce::Accepted);
        for (at, id) in [(10, "1"), (40, "2")] {
            world.until(s(at)).await;
            world.publish_envelope("q", &Envelope::job("k", "a", Value::Null, id.into())).await;
        }
        world.until(s(70)).await;
        assert_eq!(starts(&world, "k").into_iter().map(|(_, start)| start).collect::<Vec<_>>(), expected, "{until}");
        world.stop().await;
    }
}

/// A manual run that has given its place up goes on with its second attempt, though a job has the place by then.
#[tokio::test(start_paused = true)]
async fn a_manual_run_that_is_tried_again_needs_no_place_when_it_has_given_its_own_up() {
    let config = "[queues.free]\n".to_owned()
        + OWNED
        + "unique_until = \"start\"\nretry = { attempts = 2, backoff = [\"10s\"] }\n";
    let mut world = World::new(&config, MONDAY);
    let first = AtomicBool::new(true);
    world.script("k", move |job| match job.tick.is_some() && first.swap(false, Ordering::Relaxed) {
        true => (s(1), Outcome::retry("not yet")),
        false => (s(20), Outcome::Done),
    });
    world.start().await;
    let mut enroller = Enroller::new(&world.config, world.connections.clone(), "k", None, true).unwrap();
    let asked = RunNow { queue: Some("free".into()), ..RunNow::default() };
    assert_eq!(enroller.run_once("a", Some(&json!({})), &asked, None).await.unwrap(), RunOnce::Accepted);
    // The first job runs from 5 s to 25 s, and the second has the place until there is room for it.
    for (at, id) in [(5, "1"), (6, "2")] {
        world.until(s(at)).await;
        world.publish_envelope("q", &Envelope::job("k", "a", Value::Null, id.into())).await;
    }
    world.until(s(100)).await;
    let attempts: Vec<u32> =
        world.seen("k").iter().filter(|seen| seen.job.tick.is_some()).map(|seen| seen.job.attempt).collect();
    assert_eq!(attempts, [1, 2]);
    world.stop().await;
}

/// The worker died after the run's end and before the place was given up.
#[tokio::test(start_paused = true)]
async fn the_place_of_a_manual_run_that_has_ended_keeps_no_job_away() {
    let mut world = World::new(OWNED, MONDAY);
    world.start().await;
    let mut enroller = Enroller::new(&world.config, world.connections.clone(), "k", None, true).unwrap();
    let asked = RunNow { queue: Some("q".into()), ..RunNow::default() };
    assert_eq!(enroller.run_once("a", Some(&json!({})), &asked, None).await.unwrap(), RunOnce::Accepted);
    world.until(s(5)).await;
    let id = world.seen("k")[0].job.id.clone();
    let hour = Duration::from_secs(3_600);
    assert_eq!(world.ledger.reserve("k".into(), "a".into(), id.clone(), hour).await.unwrap(), id);
    world.publish_envelope("q", &Envelope::job("k", "a", Value::Null, "after".into())).await;
    world.until(s(10)).await;
    assert_eq!(world.seen("k").len(), 2);
    world.stop().await;
}

/// Who waited for a slot in vain has not run, and so no cooldown keeps a person from asking for a run.
#[tokio::test(start_paused = true)]
async fn a_tick_that_had_no_slot_is_no_run_for_the_cooldown() {
    let config = "[queues.q]\nthrottle = \"t\"\n[queues.free]\n[throttles.t]\nallow = 1\nper = \"10m\"\nblock = \"5s\"\n\
                  [kinds.k]\nqueue = \"q\"\nevery = \"1d\"\ncooldown = \"1h\"\n";
    let mut world = World::new(config, MONDAY);
    world.chains(vec![chain("k", "first", "q", MONDAY), chain("k", "waits", "q", MONDAY + s(3))]).await;
    world.start().await;
    world.until(s(60)).await;
    assert_eq!(starts(&world, "k").len(), 1, "the other has no slot");
    let mut enroller = Enroller::new(&world.config, world.connections.clone(), "k", None, true).unwrap();
    let asked = RunNow { queue: Some("free".into()), ..RunNow::default() };
    assert_eq!(enroller.run_once("waits", None, &asked, None).await.unwrap(), RunOnce::Accepted);
    world.until(s(70)).await;
    assert_eq!(starts(&world, "k").len(), 2);
    // What has run counts.
    let came = enroller.run_once("first", None, &asked, None).await.unwrap();
    assert!(matches!(came, RunOnce::Cooldown(_)), "{came:?}");
    world.stop().await;
}

/// The worker that had the order died when the ledger had the new schedule and the next tick was not moved yet.
#[tokio::test(start_paused = true)]
async fn an_order_that_is_given_again_moves_a_tick_that_was_not_moved_yet() {
    let mut world = World::new("[queues.q]\n[kinds.k]\nqueue = \"q\"\nevery = \"1d\"\n", MONDAY);
    world.chains(vec![chain("k", "a", "q", MONDAY + s(60_000))]).await;
    world.start().await;
    let own = r#"{"every":"1m"}"#;
    let mut again = chain("k", "a", "q", MONDAY);
    again.schedule = Some(own.into());
    assert_eq!(world.ledger.enroll(vec![again]).await.unwrap(), [Enrolled::Updated { rescheduled: true }]);
    let enrolment = Enrolment { schedule: Some(serde_json::from_str(own).unwrap()), ..Enrolment::default() };
    let order = Envelope { enroll: Some(enrolment), ..Envelope::job("k", "a", json!({}), "again".into()) };
    world.publish_envelope("q", &order).await;
    world.until(s(200)).await;
    assert!(starts(&world, "k").len() >= 2, "{:?}", starts(&world, "k"));
    world.stop().await;
}

/// The engine's own chains are no order's to end.
#[tokio::test(start_paused = true)]
async fn a_message_that_retires_a_chain_of_the_engine_is_quarantined() {
    let mut world = World::new("[queues.q]\n", MONDAY);
    world.start_with_chores().await;
    let chores = world.ledger.list(ListFilter::default(), None, 10).await.unwrap();
    let own = chores.iter().find(|listed| listed.hint.kind.starts_with("roundelay.")).expect("a chore").hint.clone();
    let order =
        Envelope { retire: Some(Retirement {}), ..Envelope::job(&own.kind, &own.key, Value::Null, "bad".into()) };
    world.publish_envelope("q", &order).await;
    world.until(s(30)).await;
    let now = world.ledger.chains(own.kind.clone(), own.key.clone()).await.unwrap();
    assert!(now.iter().all(|chain| chain.state == ChainState::Active), "{now:?}");
    let kept = world.ledger.quarantined(None, 10).await.unwrap();
    assert!(kept[0].reason.contains("a kind of the engine's own"), "{kept:?}");
    world.stop().await;
}

// ---- The same rule on a fleet ----

/// Cycles spread out by themselves while the upstream is slow, and no burst follows when it is quick
/// again: the next cycle is counted from the end of the one before.
#[tokio::test(start_paused = true)]
async fn cycles_spread_out_under_load_and_do_not_burst_afterwards() {
    let config = "[queues.q]\nconcurrency = 20\n[kinds.k]\nqueue = \"q\"\nevery = \"5m\"\n";
    let mut world = World::new(config, MONDAY);
    let slow = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let now = slow.clone();
    world.script("k", move |_| (if now.load(Ordering::Relaxed) { s(20) } else { s(1) }, Outcome::Done));
    let due = |n: u64| MONDAY + s(n);
    world.chains((0..300).map(|n| chain("k", &n.to_string(), "q", due(n))).collect()).await;
    world.start().await;
    world.until(s(900)).await;
    slow.store(true, Ordering::Relaxed);
    world.until(s(1_800)).await;
    slow.store(false, Ordering::Relaxed);
    world.until(s(4_200)).await;
    // By the minute: before, about 60; afterwards, never more than the load that it had.
    let mut minutes = vec![0_u32; 70];
    for (_, start) in starts(&world, "k") {
        minutes[(start / 60).min(69) as usize] += 1;
    }
    let (before, after) = (&minutes[6..15], &minutes[31..70]);
    let most = |minutes: &[u32]| *minutes.iter().max().unwrap();
    assert!(most(before) <= 61, "{minutes:?}");
    assert!(most(after) <= 75, "no burst: {minutes:?}");
    assert!(minutes[16..30].iter().all(|count| *count >= 40), "and no standstill: {minutes:?}");
    world.stop().await;
}
