//! Chains and jobs from one end to the other, on the embedded broker and on RabbitMQ.

use std::time::Duration;

use roundelay::Outcome;
use roundelay::broker::{Destination, Message};
use roundelay::clock::Time;
use roundelay::ids::{Epoch, TickNo};
use roundelay::job::Envelope;
use roundelay::telemetry::Count;
use serde_json::json;

use crate::harness::{Ground, Watched, on_all, on_ladder, until};

const CONFIG: &str = r#"
[queues.work]
[queues.side]
[kinds.sync]
every = "150ms"
queue = "work"
timeout = "20s"
retry = { attempts = 3, backoff = ["50ms", "100ms"] }
"#;

const EVERY: Duration = Duration::from_millis(150);

on_all!(a_chain_ticks_on_and_is_never_early);
on_all!(retries_follow_the_backoff_and_the_chain_goes_on_after_the_last);
on_all!(a_permanent_failure_is_kept_and_not_retried);
on_all!(a_snooze_charges_no_attempt);
on_all!(a_retired_chain_ends);
on_all!(a_panic_and_a_deadline_are_retried);
on_all!(surplus_messages_run_nothing_twice);
on_all!(one_off_jobs_run_retry_and_end);
on_all!(an_orderly_stop_finishes_what_runs_and_leaves_nothing_behind);
on_all!(a_stop_beyond_the_grace_puts_the_job_off);
on_all!(a_long_delay_takes_several_hops_and_arrives_on_time);
on_all!(an_older_message_sends_the_unsent_successor);
on_all!(a_kind_that_loses_its_interval_keeps_its_chains);
on_all!(a_message_with_another_chains_epoch_runs_nothing);
on_all!(an_engine_that_is_dropped_stops);

#[tokio::test]
async fn handlers_and_queues_that_the_configuration_lacks_are_reported() {
    let ground = Ground::embedded();
    let engine = || {
        let sync = |_: roundelay::Job, _: roundelay::Context| async { Outcome::Done };
        roundelay::Engine::new(ground.config(CONFIG)).handler("sync", sync)
    };
    let refused = async |engine: roundelay::Engine| engine.run(Default::default()).await.unwrap_err().to_string();
    let told =
        refused(engine().handler("snyc", |_: roundelay::Job, _: roundelay::Context| async { Outcome::Done })).await;
    assert!(told.contains("there is no [kinds.snyc]; the configuration has sync"), "{told}");
    let told = refused(engine().queues(vec!["wrok".into()])).await;
    assert!(told.contains("there is no [queues.wrok]; the configuration has side, work"), "{told}");
}

mod run {
    use super::*;

    pub async fn a_chain_ticks_on_and_is_never_early(ground: Ground) {
        let mut engine = Watched::start(&ground, CONFIG).await;
        engine.enroll("npm/@types/Node.js", "work").await;
        let mut finished = None;
        for tick in 1..=4 {
            let run = engine.next().await;
            assert_eq!((run.tick(), run.job.attempt, run.job.key.as_str()), (tick, 1, "npm/@types/Node.js"));
            assert_eq!(run.job.payload, json!({ "of": "npm/@types/Node.js" }));
            assert!(run.at >= run.job.nominal, "early: {} before {}", run.at, run.job.nominal);
            if let Some(finished) = finished {
                assert!(run.at.since(finished) >= EVERY, "tick {tick} came after {:?}", run.at.since(finished));
            }
            finished = Some(engine.ledger().now());
            run.end(Outcome::Done);
        }
        engine.stop().await;
    }

    pub async fn retries_follow_the_backoff_and_the_chain_goes_on_after_the_last(ground: Ground) {
        let mut engine = Watched::start(&ground, CONFIG).await;
        engine.enroll("x", "work").await;
        let mut seed = None;
        for attempt in 1..=3 {
            let run = engine.next().await;
            assert_eq!((run.tick(), run.job.attempt), (1, attempt));
            assert_eq!(*seed.get_or_insert(run.job.seed), run.job.seed, "the same dice on every attempt");
            run.end(Outcome::retry("flaky"));
        }
        let run = engine.next().await;
        assert_eq!((run.tick(), run.job.attempt), (2, 1), "the chain goes on");
        assert_ne!(seed, Some(run.job.seed));
        let failures = engine.ledger().failures(10).await.unwrap();
        assert_eq!((failures[0].key.as_str(), failures[0].reason.as_str()), ("x", "flaky"));
        run.end(Outcome::Done);
        engine.stop().await;
    }

    pub async fn a_permanent_failure_is_kept_and_not_retried(ground: Ground) {
        let mut engine = Watched::start(&ground, CONFIG).await;
        engine.enroll("x", "work").await;
        engine.next().await.end(Outcome::fail("HTTP 404"));
        let run = engine.next().await;
        assert_eq!((run.tick(), run.job.attempt), (2, 1));
        let failures = engine.ledger().failures(10).await.unwrap();
        assert_eq!((failures.len(), failures[0].reason.as_str(), failures[0].times), (1, "HTTP 404", 1));
        assert_eq!(engine.telemetry.get(Count::Retried), 0);
        run.end(Outcome::Done);
        engine.stop().await;
    }

    pub async fn a_snooze_charges_no_attempt(ground: Ground) {
        let mut engine = Watched::start(&ground, CONFIG).await;
        engine.enroll("x", "work").await;
        let wait = Duration::from_millis(333);
        for _ in 0..5 {
            let run = engine.next().await;
            assert_eq!((run.tick(), run.job.attempt), (1, 1));
            let before = engine.ledger().now();
            run.end(Outcome::Snooze { reason: "429".into(), wait });
            let again = engine.next().await;
            assert!(again.at.since(before) >= wait, "again after {:?}", again.at.since(before));
            again.end(Outcome::Snooze { reason: "429".into(), wait: Duration::from_millis(1) });
        }
        let run = engine.next().await;
        assert_eq!((run.tick(), run.job.attempt), (1, 1), "ten snoozes later");
        run.end(Outcome::Done);
        engine.stop().await;
    }

    pub async fn a_retired_chain_ends(ground: Ground) {
        let mut engine = Watched::start(&ground, CONFIG).await;
        engine.enroll("x", "work").await;
        engine.next().await.end(Outcome::Retire { reason: "gone".into() });
        engine.nothing_for(EVERY * 4).await;
        let census = engine.ledger().census(Duration::ZERO).await.unwrap();
        assert_eq!((census.retired, census.queues.len()), (1, 0));
        engine.stop().await;
    }

    pub async fn a_panic_and_a_deadline_are_retried(ground: Ground) {
        let text = CONFIG.replace("timeout = \"20s\"", "timeout = \"300ms\"");
        let config = ground.config(&text);
        let connections = roundelay::engine::Connections::open(&config).await.unwrap();
        let (seen, mut runs) = tokio::sync::mpsc::unbounded_channel();
        let engine = roundelay::Engine::new(config.clone()).connections(connections.clone());
        let engine = engine.handler("sync", move |job: roundelay::Job, _: roundelay::Context| {
            seen.send((job.tick.unwrap().tick.get(), job.attempt)).unwrap();
            async move {
                match job.attempt {
                    1 => panic!("attempt {}", job.attempt),
                    2 => std::future::pending().await,
                    _ => Outcome::Done,
                }
            }
        });
        let (stop, ready) = (tokio_util::sync::CancellationToken::new(), engine.ready());
        let engine = tokio::spawn(engine.run(stop.clone()));
        ready.wait().await;
        let mut enroller =
            roundelay::engine::enroll::Enroller::new(&config, connections, "sync", Some(Duration::ZERO), true).unwrap();
        let entity = roundelay::engine::enroll::Entity::new("x", "work", "{}");
        enroller.enroll(vec![entity]).await.unwrap();
        for expected in [(1, 1), (1, 2), (1, 3), (2, 1)] {
            assert_eq!(tokio::time::timeout(crate::harness::SOON, runs.recv()).await.unwrap(), Some(expected));
        }
        stop.cancel();
        engine.await.unwrap().unwrap();
    }

    /// `every` is taken out of the configuration, and put in again.
    pub async fn a_kind_that_loses_its_interval_keeps_its_chains(ground: Ground) {
        let catch_up = "catch_up = { every = \"1s\", slack = \"1s\", spread = \"0s\" }\n";
        let config = format!("{catch_up}{CONFIG}");
        let mut engine = Watched::start(&ground, &config).await;
        engine.enroll("x", "work").await;
        engine.next().await.end(Outcome::Done);
        until("it ended", || async { engine.telemetry.get(Count::Done) == 1 }).await;
        engine.stop().await;

        let mut without = Watched::start(&ground, &config.replace("every = \"150ms\"\n", "")).await;
        if without.broker().keeps_messages() {
            until("its message is set aside", || async { without.telemetry.get(Count::Quarantined) == 1 }).await;
        }
        without.nothing_for(Duration::from_secs(3)).await;
        without.stop().await;

        let mut again = Watched::start(&ground, &config).await;
        let run = again.next().await;
        assert_eq!(run.tick(), 2, "it goes on where it was");
        run.end(Outcome::Done);
        again.stop().await;
    }

    pub async fn a_message_with_another_chains_epoch_runs_nothing(ground: Ground) {
        let mut engine = Watched::start(&ground, CONFIG).await;
        engine.enroll("x", "work").await;
        let run = engine.next().await;
        let epoch = run.job.tick.unwrap().epoch;
        run.end(Outcome::Snooze { reason: "wait".into(), wait: Duration::from_secs(3_600) });
        until("it sleeps", || async { engine.telemetry.get(Count::Snoozed) == 1 }).await;
        let mut forged = Envelope::job("sync", "y", json!(null), String::new());
        (forged.id, forged.due) = (None, Some(Time::from_millis(1)));
        forged.chain = Some(roundelay::job::ChainRef {
            ledger: engine.ledger().id().into(),
            epoch,
            tick: TickNo(1),
            parent: Epoch::NONE,
            priority: None,
        });
        engine.broker().publish(Message::new(Destination::Queue("work".into()), &forged)).await.unwrap();
        until("it is set aside", || async { engine.telemetry.get(Count::Quarantined) == 1 }).await;
        assert_eq!(engine.telemetry.get(Count::Started), 1);
        engine.stop().await;
    }

    pub async fn an_engine_that_is_dropped_stops(ground: Ground) {
        let config = ground.config(&CONFIG.replace("every = \"150ms\"\n", ""));
        let connections = roundelay::engine::Connections::open(&config).await.unwrap();
        let broker = connections.broker.clone();
        let engine = roundelay::Engine::new(config).connections(connections);
        let engine = engine.handler("sync", |_: roundelay::Job, _: roundelay::Context| async { Outcome::Done });
        let ready = engine.ready();
        tokio::select! {
            ended = engine.run(tokio_util::sync::CancellationToken::new()) => panic!("it ended: {ended:?}"),
            _ = ready.wait() => {}
        }
        until("nobody consumes", || async { broker.depth("work").await.unwrap().consumers == 0 }).await;
    }

    pub async fn surplus_messages_run_nothing_twice(ground: Ground) {
        let mut engine = Watched::start(&ground, CONFIG).await;
        engine.enroll("x", "work").await;
        let run = engine.next().await;
        let chain = run.job.tick.unwrap();
        let (broker, ledger) = (engine.broker(), engine.ledger().id().to_owned());
        let surplus = |tick, attempt| {
            let mut envelope = Envelope::job("sync", "x", json!(null), String::new());
            (envelope.id, envelope.attempt, envelope.due) = (None, attempt, Some(Time::from_millis(1)));
            envelope.chain = Some(roundelay::job::ChainRef {
                ledger: ledger.clone(),
                epoch: chain.epoch,
                tick: TickNo(tick),
                parent: Epoch::NONE,
                priority: None,
            });
            Message::new(Destination::Queue("work".into()), &envelope)
        };
        // The same message while the tick runs is put off until the lease is over; the same after
        // it has ended is stale. Neither runs anything.
        for _ in 0..20 {
            broker.publish(surplus(1, 1)).await.unwrap();
        }
        until("they were looked at", || async { engine.telemetry.get(Count::Idle) >= 20 }).await;
        run.end(Outcome::Done);
        let second = engine.next().await;
        assert_eq!(second.tick(), 2);
        for _ in 0..20 {
            engine.broker().publish(surplus(1, 1)).await.unwrap();
        }
        until("they were stale", || async { engine.telemetry.get(Count::Stale) >= 20 }).await;
        assert_eq!(engine.telemetry.get(Count::Started), 2);
        second.end(Outcome::Done);
        assert_eq!(engine.next().await.tick(), 3);
        engine.stop().await;
    }

    pub async fn one_off_jobs_run_retry_and_end(ground: Ground) {
        let mut engine = Watched::start(&ground, CONFIG).await;
        let job = Envelope::job("sync", "manual", json!({ "n": 1 }), "job-1".into());
        engine.broker().publish(Message::new(Destination::Queue("side".into()), &job)).await.unwrap();
        for attempt in 1..=3 {
            let run = engine.next().await;
            assert_eq!((run.job.id.as_str(), run.job.attempt, run.job.tick), ("job-1", attempt, None));
            assert_eq!((run.job.queue.as_str(), &run.job.payload), ("side", &json!({ "n": 1 })));
            run.end(Outcome::retry("busy"));
        }
        until("its failure is kept", || async { engine.ledger().failures(1).await.unwrap().len() == 1 }).await;
        engine.nothing_for(Duration::from_millis(300)).await;
        engine.stop().await;
    }

    pub async fn an_orderly_stop_finishes_what_runs_and_leaves_nothing_behind(ground: Ground) {
        let config = CONFIG.replace("[queues.work]", "[queues.work]\nconcurrency = 1\nprefetch = 5");
        let mut engine = Watched::start(&ground, &config).await;
        for n in 0..10 {
            let job = Envelope::job("sync", &n.to_string(), json!(null), format!("job-{n}"));
            engine.broker().publish(Message::new(Destination::Queue("work".into()), &job)).await.unwrap();
        }
        let run = engine.next().await;
        engine.begin_stop();
        let first = run.job.key.clone();
        run.end(Outcome::Done);
        let done = engine.telemetry.clone();
        let broker = engine.connections.broker.clone();
        engine.stop().await;
        assert_eq!(done.get(Count::Done), 1, "only {first} ran");
        if !broker.keeps_messages() {
            assert_eq!(broker.depth("work").await.unwrap().ready, 9);
            return;
        }
        // Another worker gets all the others.
        let mut second = Watched::start(&ground, &config).await;
        let mut keys = std::collections::BTreeSet::new();
        for _ in 0..9 {
            let run = second.next().await;
            keys.insert(run.job.key.clone());
            run.end(Outcome::Done);
        }
        assert!(keys.len() == 9 && !keys.contains(&first), "{keys:?}");
        second.stop().await;
    }

    pub async fn a_stop_beyond_the_grace_puts_the_job_off(ground: Ground) {
        let config = format!("worker.grace = \"100ms\"\n{CONFIG}");
        let mut engine = Watched::start(&ground, &config).await;
        engine.enroll("x", "work").await;
        let stuck = engine.next().await;
        engine.stop().await;
        drop(stuck);
        let mut second = Watched::start(&ground, &config).await;
        let run = second.next().await;
        assert_eq!((run.tick(), run.job.attempt), (1, 1), "again, with no attempt charged");
        run.end(Outcome::Done);
        assert_eq!(second.next().await.tick(), 2);
        second.stop().await;
    }

    pub async fn a_long_delay_takes_several_hops_and_arrives_on_time(ground: Ground) {
        let mut engine = Watched::start(&ground, &on_ladder(CONFIG)).await;
        let dispatch = roundelay::engine::Dispatch::new(&engine.config, &engine.connections);
        let mut job = Envelope::job("sync", "later", json!(null), "job".into());
        let now = engine.ledger().now();
        // 5 s, 200 ms, and the rest in process.
        let due = now + Duration::from_millis(5_387);
        (job.due, job.queue) = (Some(due), Some("work".into()));
        dispatch.send(&job, "work", now).await.unwrap();
        let run = engine.next().await;
        assert!(run.at >= due, "early: {} before {due}", run.at);
        assert!(engine.telemetry.get(Count::Rearmed) >= 2, "it was sent on twice");
        run.end(Outcome::Done);
        engine.stop().await;
    }

    pub async fn an_older_message_sends_the_unsent_successor(ground: Ground) {
        use roundelay::guard::Guard;
        use roundelay::ledger::{Claim, ClaimRequest, Finish, FinishRequest};
        use roundelay::outcome::{Next, Verdict};
        let mut engine = Watched::start(&ground, CONFIG).await;
        engine.enroll("x", "work").await;
        let run = engine.next().await;
        let chain = run.job.tick.unwrap();
        run.end(Outcome::Retire { reason: "to make room".into() });
        until("it ended", || async { engine.telemetry.get(Count::Retired) == 1 }).await;
        // Another worker claims and finishes the first tick of y, and dies before it publishes.
        let ledger = engine.connections.ledger.clone();
        let new = roundelay::ledger::NewChain {
            kind: "sync".into(),
            key: "y".into(),
            queue: "work".into(),
            payload: "{}".into(),
            priority: None,
            nominal: ledger.now(),
            due: ledger.now(),
            watch_at: ledger.now() + Duration::from_secs(3_600),
            revive: false,
            once: false,
            manual: Default::default(),
            owner: None,
            schedule: None,
            keep_schedule: false,
            only_new: false,
            forms: Vec::new(),
            depth: 0,
        };
        let enrolled = ledger.enroll(vec![new]).await.unwrap().remove(0);
        let roundelay::ledger::Enrolled::Created(hint) = enrolled else { panic!("{enrolled:?}") };
        let epoch = hint.epoch;
        assert!(epoch > chain.epoch);
        let claim = ClaimRequest {
            hint: hint.clone(),
            worker: "another".into(),
            session: 7,
            again: false,
            takeover: false,
            guard: Guard::default(),
            recurs: true,
            prepared: 0,
            ahead: Duration::ZERO,
        };
        let Claim::Granted(grant) = ledger.claim(claim).await.unwrap() else { panic!("not granted") };
        let finish = FinishRequest {
            epoch,
            tick: TickNo(1),
            attempt: 1,
            fence: grant.fence,
            at: ledger.now(),
            next: Next::Tick { nominal: ledger.now(), due: ledger.now() },
            verdict: Verdict::Done,
            reason: None,
            code: None,
            slack: Duration::from_secs(3_600),
            spawned: Vec::new(),
            failed: Vec::new(),
            ran: true,
            left_out: Default::default(),
            carry: None,
            learned: None,
            parent: Epoch::NONE,
            from_batch: false,
            members: Vec::new(),
            chains: Vec::new(),
            progress: None,
        };
        assert!(matches!(ledger.finish(finish).await.unwrap(), Finish::Applied(hints) if hints.len() == 1));
        // The broker delivers the first tick again: stale, but it has to send what follows.
        let message = Message::new(Destination::Queue("work".into()), &hint.envelope(ledger.id()));
        engine.broker().publish(message).await.unwrap();
        let run = engine.next().await;
        assert_eq!((run.job.key.as_str(), run.tick()), ("y", 2));
        run.end(Outcome::Done);
        engine.stop().await;
    }
}
