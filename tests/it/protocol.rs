//! What holds a chain together: leases and their heartbeat, takeover, jobs that a run asks for, and
//! an operator's word.

use std::time::Duration;

use roundelay::broker::{Destination, Message};
use roundelay::engine::enroll::{Enroller, RunOnce};
use roundelay::engine::{Connections, StartError};
use roundelay::failure::FailedItem;
use roundelay::job::{Envelope, RunNow};
use roundelay::ledger::{ChainFilter, ChainOrder, ChainState, ChainView, LedgerError};
use roundelay::outcome::{NewJob, Yield};
use roundelay::telemetry::Count;
use roundelay::{Config, Engine, Outcome};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::harness::{Ground, Watched, on_all, until};

const CONFIG: &str = r#"
[worker]
lease = "3s"
[catch_up]
every = "1s"
slack = "1s"
[queues.work]
[queues.side]
[kinds.sync]
every = "1h"
queue = "work"
timeout = "5m"
[kinds.other]
queue = "side"
"#;

fn which(key: &str) -> ChainFilter {
    ChainFilter { kind: Some("sync".into()), key: Some(key.into()), ..ChainFilter::default() }
}

on_all!(a_run_longer_than_its_lease_keeps_it);
on_all!(jobs_that_a_run_asks_for_run_once_and_what_failed_is_kept);
on_all!(a_run_beside_the_rotation_leaves_it_alone_and_there_is_one_at_a_time);
on_all!(a_paused_chain_waits_and_goes_on_at_once_when_it_is_resumed);
on_all!(a_chain_that_began_anew_ends_the_run_of_its_former_self);

#[tokio::test]
async fn unique_jobs_that_bring_no_id_are_one_all_the_same() {
    let ground = Ground::rabbit().await;
    let mut engine = Watched::start(&ground, &format!("{CONFIG}unique_for = \"1h\"\n")).await;
    let publish = async || {
        let envelope = Envelope { id: None, ..Envelope::job("other", "x", Value::Null, String::new()) };
        engine.broker().publish(Message::new(Destination::Queue("side".into()), &envelope)).await.unwrap();
    };
    publish().await;
    publish().await;
    until("one is dropped", async || engine.telemetry.get(Count::Dropped) == 1).await;
    let run = engine.next().await;
    assert!(!run.job.id.is_empty());
    run.end(Outcome::Done);
    until("it is done", async || engine.telemetry.get(Count::Done) == 1).await;
    let envelope = Envelope { id: None, ..Envelope::job("other", "x", Value::Null, String::new()) };
    engine.broker().publish(Message::new(Destination::Queue("side".into()), &envelope)).await.unwrap();
    engine.next().await.end(Outcome::Done);
    engine.stop().await;
}

mod run {
    use super::*;

    pub async fn a_run_longer_than_its_lease_keeps_it(ground: Ground) {
        let mut engine = Watched::start(&ground, CONFIG).await;
        engine.enroll("x", "work").await;
        let run = engine.next().await;
        // Without heartbeats the lease would be over by then, and catch-up would send it again.
        let begun = engine.ledger().now();
        until("it has run longer than its lease", async || {
            let chain = engine.ledger().chains("sync".into(), "x".into()).await.unwrap().remove(0);
            assert!(chain.holder.runs());
            engine.ledger().now().since(begun) >= Duration::from_secs(7)
        })
        .await;
        run.end(Outcome::Done);
        until("it is done", async || engine.telemetry.get(Count::Done) == 1).await;
        assert_eq!(engine.telemetry.get(Count::Started), 1, "nobody took it over");
        assert_eq!((engine.telemetry.get(Count::Fenced), engine.telemetry.get(Count::LeaseLost)), (0, 0));
        engine.stop().await;
    }

    pub async fn jobs_that_a_run_asks_for_run_once_and_what_failed_is_kept(ground: Ground) {
        let mut engine = Watched::start(&ground, CONFIG).await;
        engine.enroll("x", "work").await;
        let run = engine.next().await;
        let job = |kind: &str, key: &str, queue: Option<&str>| NewJob {
            kind: kind.into(),
            key: key.into(),
            payload: json!({ "of": key }),
            queue: queue.map(Into::into),
            delay: Duration::ZERO,
            owner: None,
        };
        let parent = run.job.id.clone();
        // Longer than what fits into an index, and not to be compressed.
        let long: String = (1..=300_u64).map(|n| format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
        run.end(Outcome::DoneWith(Yield {
            jobs: vec![
                job("other", "a", None),
                job("other", "b", Some("work")),
                job("nobody", "c", None),
                job("nobody", &long, None),
            ],
            failed: vec![FailedItem::new("page 7", "HTTP 404")],
            ..Yield::default()
        }));
        let mut seen = Vec::new();
        for _ in 0..2 {
            let run = engine.next().await;
            assert_eq!(run.job.payload, json!({ "of": run.job.key }));
            seen.push((run.job.key.clone(), run.job.queue.clone(), run.job.id.clone()));
            run.end(Outcome::Done);
        }
        seen.sort();
        let id = |n: u32| format!("{parent}-{n}");
        assert_eq!(seen, [("a".into(), "side".into(), id(1)), ("b".into(), "work".into(), id(2))]);
        // The outbox is empty in the end, and nothing runs twice.
        until("the outbox is empty", async || engine.ledger().kept_jobs(0, 10).await.unwrap().is_empty()).await;
        let mut failures = engine.ledger().failures(10).await.unwrap();
        failures.sort_by(|a, b| a.item.cmp(&b.item));
        let items: Vec<_> = failures.iter().map(|f| (f.key.as_str(), f.item.as_str())).collect();
        let cut = format!("spawn nobody {}…", &long[..187]);
        assert_eq!(items, [("x", "page 7"), ("x", cut.as_str()), ("x", "spawn nobody c")]);
        assert!(failures[1].reason.contains("no [kinds.nobody]"), "{}", failures[1].reason);
        until("all are done", async || engine.telemetry.get(Count::Done) == 3).await;
        assert_eq!(engine.telemetry.get(Count::Started), 3);
        engine.stop().await;
    }

    pub async fn a_run_beside_the_rotation_leaves_it_alone_and_there_is_one_at_a_time(ground: Ground) {
        let mut engine = Watched::start(&ground, CONFIG).await;
        engine.enroll("x", "work").await;
        let first = engine.next().await;
        let epoch = first.job.tick.unwrap().epoch;
        first.end(Outcome::Done);
        until("it is done", async || engine.telemetry.get(Count::Done) == 1).await;
        let rotation = async || engine.ledger().chains("sync".into(), "x".into()).await.unwrap().remove(0);
        until("its successor is known to be sent", async || rotation().await.sent).await;
        let before = rotation().await;

        let mut enroller = Enroller::new(&engine.config, engine.connections.clone(), "sync", None, true).unwrap();
        assert_eq!(run_once(&mut enroller, "nobody").await.unwrap(), RunOnce::NoChain);
        assert_eq!(run_once(&mut enroller, "x").await.unwrap(), RunOnce::Accepted);
        assert_eq!(run_once(&mut enroller, "x").await.unwrap(), RunOnce::Pending);
        let extra = engine.next().await;
        assert_ne!(extra.job.tick.unwrap().epoch, epoch);
        assert_eq!(extra.job.payload, json!({ "of": "x" }), "the chain's own");
        // It is tried again by the kind's policy, as the same tick.
        assert_eq!(run_once(&mut enroller, "x").await.unwrap(), RunOnce::Pending, "while it runs");
        extra.end(Outcome::Done);
        until("it is done", async || engine.telemetry.get(Count::Done) == 2).await;
        let chains = engine.ledger().chains("sync".into(), "x".into()).await.unwrap();
        assert!(chains[0].last_start > before.last_start && chains[0].last_finish > before.last_finish, "it counts");
        let (last_start, last_finish) = (before.last_start, before.last_finish);
        let counted = ChainView { last_start, last_finish, ..chains[0].clone() };
        assert_eq!(counted, before, "and nothing else of the rotation has moved");
        assert_eq!((chains[1].once, chains[1].state), (true, ChainState::Retired));
        assert_eq!(run_once(&mut enroller, "x").await.unwrap(), RunOnce::Accepted, "the next one");
        engine.next().await.end(Outcome::Done);
        engine.ledger().order_chains(which("x"), ChainOrder::Retire).await.unwrap();
        assert_eq!(run_once(&mut enroller, "x").await.unwrap(), RunOnce::Ended);
        engine.stop().await;
    }

    pub async fn a_paused_chain_waits_and_goes_on_at_once_when_it_is_resumed(ground: Ground) {
        let config = CONFIG.replace("every = \"1h\"", "every = \"1s\"");
        let mut engine = Watched::start(&ground, &config).await;
        engine.enroll("x", "work").await;
        let run = engine.next().await;
        assert_eq!(engine.ledger().order_chains(which("x"), ChainOrder::Pause).await.unwrap(), 1);
        run.end(Outcome::Done);
        until("what ran is done", async || engine.telemetry.get(Count::Done) == 1).await;
        engine.nothing_for(Duration::from_secs(3)).await;
        assert_eq!(engine.ledger().order_chains(which("x"), ChainOrder::Resume).await.unwrap(), 1);
        let run = engine.next().await;
        assert_eq!(run.tick(), 2, "it has kept its place");
        run.end(Outcome::Done);
        engine.next().await.end(Outcome::Done);
        engine.stop().await;
    }

    pub async fn a_chain_that_began_anew_ends_the_run_of_its_former_self(ground: Ground) {
        let mut engine = Watched::start(&ground, CONFIG).await;
        engine.enroll("x", "work").await;
        let former = engine.next().await;
        engine.ledger().order_chains(which("x"), ChainOrder::Retire).await.unwrap();
        let enroller =
            Enroller::new(&engine.config, engine.connections.clone(), "sync", Some(Duration::ZERO), true).unwrap();
        let entity = |payload: Value| roundelay::engine::enroll::Entity::new("x", "side", payload.to_string());
        let mut enroller = enroller.revive(true);
        let tally = enroller.enroll(vec![entity(json!({ "life": 2 }))]).await.unwrap();
        assert_eq!(tally.created, 1);
        let new = engine.next().await;
        assert_eq!((new.tick(), new.job.payload.clone()), (1, json!({ "life": 2 })));
        assert!(new.job.tick.unwrap().epoch > former.job.tick.unwrap().epoch);
        // The heartbeat finds that the lease is gone, and the run of the former life is ended.
        until("it is known", async || engine.telemetry.get(Count::LeaseLost) == 1).await;
        until("it is recorded", async || engine.telemetry.get(Count::Fenced) == 1).await;
        drop(former);
        new.end(Outcome::Done);
        until("the new one is done", async || engine.telemetry.get(Count::Done) == 1).await;
        engine.stop().await;
    }
}

/// One of two workers is gone at once, with everything it holds: the broker delivers its message
/// again, and with `takeover = "redelivery"` the other need not wait for the lease.
#[tokio::test]
async fn a_dead_workers_tick_is_taken_over_at_once_if_its_kind_says_so() {
    let ground = Ground::rabbit().await;
    let text = CONFIG
        .replace("lease = \"3s\"", "lease = \"10m\"")
        .replace("timeout = \"5m\"", "timeout = \"5m\"\ntakeover = \"redelivery\"");
    let config = ground.config(&text);
    let (started, mut first) = tokio::sync::mpsc::unbounded_channel();
    let connections = Connections::open(&config).await.unwrap();
    let engine = Engine::new(config).connections(connections.clone()).handler(
        "sync",
        move |job: roundelay::Job, _: roundelay::Context| {
            let _ = started.send(job.tick.map(|tick| tick.fence));
            std::future::pending::<Outcome>()
        },
    );
    let engine = engine.handler("other", |_: roundelay::Job, _: roundelay::Context| async { Outcome::Done });
    let dying = tokio::spawn(engine.run(CancellationToken::new()));
    let mut survivor = {
        let other = Watched::start(&ground, &text.replace("[queues.work]", "[queues.work]\nconcurrency = 1")).await;
        other.enroll("x", "work").await;
        other
    };
    // Whichever of them gets the tick; if it is the survivor, the broker is asked again.
    let fence = tokio::select! {
        fence = first.recv() => fence.unwrap().unwrap(),
        run = survivor.next() => {
            // It holds its only place with this one, so the next goes to the other worker.
            survivor.enroll("y", "work").await;
            let fence = first.recv().await.unwrap().unwrap();
            run.end(Outcome::Done);
            fence
        }
    };
    dying.abort();
    connections.broker.close().await;
    let run = survivor.next().await;
    assert!(run.job.tick.unwrap().fence > fence, "claimed anew, ten minutes before the lease is over");
    run.end(Outcome::Done);
    survivor.stop().await;
}

/// Two deployments that disagree would lose each other's messages.
#[tokio::test]
async fn a_configuration_that_lacks_queues_of_the_ledger_is_refused() {
    let ground = Ground::rabbit().await;
    Watched::start(&ground, CONFIG).await.stop().await;
    let start = async |text: &str| {
        let config: Config = ground.config(text);
        let (stop, engine) = (CancellationToken::new(), Engine::new(config));
        let never = |_: roundelay::Job, _: roundelay::Context| async { Outcome::Done };
        let engine = engine.handler("sync", never).handler("other", never);
        stop.cancel();
        engine.run(stop).await
    };
    let fewer = CONFIG.replace("[queues.side]", "").replace("queue = \"side\"", "queue = \"work\"");
    match start(&fewer).await {
        Err(StartError::Setup(why)) => {
            assert!(why.contains("lacks the queues: side") && why.contains("roundelay topology apply"), "{why}");
        }
        other => panic!("not refused: {other:?}"),
    }
    let elsewhere = format!("broker.prefix = \"elsewhere\"\n{CONFIG}");
    assert!(start(&elsewhere).await.is_err_and(|e| e.to_string().contains("`elsewhere` here and `roundelay` there")));
    start(&format!("{CONFIG}\n[queues.more]\n")).await.expect("more queues are welcome");
    match start(CONFIG).await {
        Err(StartError::Setup(why)) => assert!(why.contains("lacks the queues: more"), "{why}"),
        other => panic!("not refused: {other:?}"),
    }
}

/// A manual run, as the kind says it.
async fn run_once(enroller: &mut Enroller, key: &str) -> Result<RunOnce, LedgerError> {
    enroller.run_once(key, None, &RunNow::default(), None).await
}
