//! The broker goes away and comes back, under a running worker.

use std::collections::BTreeMap;
use std::time::Duration;

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::Method;
use roundelay::broker::{Destination, Message};
use roundelay::engine::{Connections, StartError};
use roundelay::job::Envelope;
use roundelay::telemetry::Count;
use roundelay::{Config, Outcome};
use serde_json::json;

use crate::harness::{Ground, Run, Schema, Vhost, Watched, until};
use crate::node::Node;

const CONFIG: &str = r#"
catch_up = { every = "1s", slack = "3s", spread = "1s" }
[queues.work]
concurrency = 50
[kinds.sync]
every = "500ms"
queue = "work"
timeout = "60s"
"#;

#[tokio::test]
async fn a_worker_outlives_a_broker_that_stops_and_one_that_is_killed() {
    let mut ground = Ground::embedded();
    let node = Node::start(ground.folder.path(), &[]).await;
    ground.vhost = Some(Vhost::existing("%2f", node.env("AMQP_URL"), node.env("RABBITMQ_MANAGEMENT_URL")));
    let mut engine = Watched::start(&ground, CONFIG).await;
    let chains = 40;
    for n in 0..chains {
        engine.enroll(&format!("chain-{n}"), "work").await;
    }
    let mut last = BTreeMap::new();
    for verb in ["stop", "kill"] {
        let mut runs = Vec::new();
        // Every chain is running when the broker goes; the runs end while it is away, so that
        // their finishes are written and their successors are not.
        while runs.len() < chains {
            let run = engine.next().await;
            check(&mut last, &run.job.key, run.tick());
            runs.push(run);
        }
        node.call(verb, &[]).await;
        let before = engine.telemetry.get(Count::HandedOut);
        runs.into_iter().for_each(|run| run.end(Outcome::Done));
        until("chains run from the ledger", || async { engine.telemetry.get(Count::HandedOut) > before }).await;
        node.call("start", &[]).await;
        // Each chain ticks on, twice.
        let mut went_on = BTreeMap::new();
        while went_on.len() < chains || went_on.values().any(|ticks| *ticks < 2) {
            let run = engine.next().await;
            check(&mut last, &run.job.key, run.tick());
            *went_on.entry(run.job.key.clone()).or_insert(0) += 1;
            run.end(Outcome::Done);
        }
    }
    engine.stop().await;
}

/// Messages are hints, and the ledger knows which chains are due: while the broker is away both workers run them from
/// there, and a one-off job waits.
#[tokio::test]
async fn chains_run_from_the_ledger_while_the_broker_is_away() {
    let (mut sqlite, mut postgres) = (Ground::embedded(), Ground::embedded());
    let node = Node::start(sqlite.folder.path(), &[]).await;
    postgres.schema = Some(Schema::new().await);
    for ground in [&mut sqlite, &mut postgres] {
        // A topology of its own for each.
        let vhost = Vhost::existing("%2f", node.env("AMQP_URL"), node.env("RABBITMQ_MANAGEMENT_URL"));
        let config = match ground.schema {
            None => format!("broker.prefix = \"one\"\n{}", CONFIG.replace("work", "work-one")),
            Some(_) => format!("broker.prefix = \"other\"\n{}", CONFIG.replace("work", "work-other")),
        };
        let queue = if ground.schema.is_none() { "work-one" } else { "work-other" };
        ground.vhost = Some(vhost);
        let mut workers = [Watched::start(ground, &config).await, Watched::start(ground, &config).await];
        let chains = 30;
        for n in 0..chains {
            workers[0].enroll(&format!("chain-{n}"), queue).await;
        }
        let mut last = BTreeMap::new();
        runs_each(&mut workers, chains, 2, &mut last).await;
        let late = Envelope::job("sync", "job", json!(null), "job".into());
        let rung = Destination::Rung { rung: Duration::from_millis(500), then: queue.into() };
        node.call("kill", &[]).await;
        runs_each(&mut workers, chains, 4, &mut last).await;
        rounds_until("both workers run chains from the ledger", &mut workers, chains, &mut last, |workers, _| {
            workers.iter().all(|worker| worker.telemetry.get(Count::HandedOut) > 0)
        })
        .await;
        // One that begins now goes on in the same way. Nothing is enrolled anew, and no message comes.
        let [one, other] = workers;
        let ends = |run: Run| {
            check(&mut last, &run.job.key, run.tick());
            run.end(Outcome::Done);
        };
        other.stop_with(ends).await;
        let mut workers = [one, Watched::start(ground, &config).await];
        assert!(workers[1].broker().unavailable().is_some());
        rounds_until(
            "the worker that began without the broker runs chains",
            &mut workers,
            chains,
            &mut last,
            |workers, _| workers[1].telemetry.get(Count::HandedOut) > 0,
        )
        .await;
        assert!(workers[0].broker().publish(Message::new(rung.clone(), &late)).await.is_err(), "the broker is there");
        node.call("start", &[]).await;
        until("the broker takes messages", || async {
            workers[0].broker().publish(Message::new(rung.clone(), &late)).await.is_ok()
        })
        .await;
        until("both workers have the broker back", || async {
            workers.iter().all(|w| w.broker().unavailable().is_none())
        })
        .await;
        rounds_until("the job came", &mut workers, chains, &mut last, |_, last| last.contains_key("job")).await;
        // But for chains that are late, which this machine may make them: not all of a round then.
        let mut before = u64::MAX;
        rounds_until("the chains' messages come from the broker", &mut workers, chains, &mut last, |workers, _| {
            let now = workers.iter().map(|worker| worker.telemetry.get(Count::HandedOut)).sum::<u64>();
            let few = now.saturating_sub(before) < chains as u64 && before <= now;
            before = now;
            few
        })
        .await;
        for worker in workers {
            worker.stop_with(|run| run.end(Outcome::Done)).await;
        }
    }
}

/// As RabbitMQ does for some seconds after it was killed: it answers, and its delay queues pass nothing on. Here they
/// cannot, since the way to the platform queue is taken from them.
#[tokio::test]
async fn chains_go_on_while_a_broker_that_is_back_keeps_what_is_due() {
    let mut ground = Ground::embedded();
    let node = Node::start(ground.folder.path(), &[]).await;
    ground.vhost = Some(Vhost::existing("%2f", node.env("AMQP_URL"), node.env("RABBITMQ_MANAGEMENT_URL")));
    // Sweeps would come to it after the test.
    let config = CONFIG.replace("slack = \"3s\"", "slack = \"1h\"");
    let mut engine = Watched::start(&ground, &config).await;
    let chains = 20;
    let mut last = BTreeMap::new();
    for n in 0..chains {
        engine.enroll(&format!("chain-{n}"), "work").await;
    }
    let mut rounds = async |engine: &mut Watched, rounds: usize| {
        for _ in 0..chains * rounds {
            let run = engine.next().await;
            check(&mut last, &run.job.key, run.tick());
            run.end(Outcome::Done);
        }
    };
    rounds(&mut engine, 1).await;
    node.call("kill", &[]).await;
    until("the ledger is in charge", || async { engine.telemetry.get(Count::HandedOut) > 0 }).await;
    node.call("start", &[]).await;
    let binding = format!("bindings/{0}/e/roundelay.jobs/q/work/work", ground.vhost.as_ref().unwrap().name);
    ground.vhost.as_ref().unwrap().call(Method::DELETE, &binding, json!(null)).await;
    // Those that were under way end meanwhile, and wait to be looked at.
    until("the broker is back", || async { engine.broker().unavailable().is_none() }).await;
    rounds(&mut engine, 6).await;
    engine.stop_with(|run| run.end(Outcome::Done)).await;
}

/// Nothing tells that it does so but that it does not answer: heartbeats are a minute apart.
#[tokio::test]
async fn chains_run_from_the_ledger_while_the_broker_stands_still() {
    let mut ground = Ground::embedded();
    let node = Node::start(ground.folder.path(), &[]).await;
    let amqp = format!("{}?heartbeat=60", node.env("AMQP_URL"));
    ground.vhost = Some(Vhost::existing("%2f", amqp, node.env("RABBITMQ_MANAGEMENT_URL")));
    let mut workers = [Watched::start(&ground, CONFIG).await, Watched::start(&ground, CONFIG).await];
    let chains = 30;
    for n in 0..chains {
        workers[0].enroll(&format!("chain-{n}"), "work").await;
    }
    let mut last = BTreeMap::new();
    runs_each(&mut workers, chains, 2, &mut last).await;
    let broker = Pid::from_raw(node.env("RABBITMQ_PID").parse().unwrap());
    kill(broker, Signal::SIGSTOP).unwrap();
    runs_each(&mut workers, chains, 4, &mut last).await;
    assert!(workers.iter().all(|worker| worker.broker().unavailable().is_some()));
    kill(broker, Signal::SIGCONT).unwrap();
    until("the broker answers", || async { workers.iter().all(|w| w.broker().unavailable().is_none()) }).await;
    runs_each(&mut workers, chains, 4, &mut last).await;
    for worker in workers {
        worker.stop_with(|run| run.end(Outcome::Done)).await;
    }
}

/// A broker that is away is retried. A wrong address, and a broker that refuses, are errors that a person must mend.
#[tokio::test]
async fn only_a_worker_whose_ledger_knows_chains_begins_without_the_broker() {
    let mut ground = Ground::rabbit().await;
    let engine = Watched::start(&ground, CONFIG).await;
    engine.enroll("chain", "work").await;
    engine.stop_with(|run| run.end(Outcome::Done)).await;

    let address = url::Url::parse(&ground.vhost.as_ref().unwrap().amqp).unwrap();
    let (mut wrong_password, mut nobody) = (address.clone(), address);
    wrong_password.set_password(Some("wrong")).unwrap();
    // Nothing answers at this port.
    nobody.set_port(Some(1)).unwrap();
    let elsewhere = format!("ledger.url = \"sqlite://{}\"", ground.path("other.db").display());
    let mut begins = async |amqp: &url::Url, ledger: Option<&str>| {
        ground.vhost.as_mut().unwrap().amqp = amqp.to_string();
        let mut text = ground.config_text(CONFIG);
        if let Some(ledger) = ledger {
            text = text
                .lines()
                .filter(|line| !line.starts_with("ledger.url"))
                .fold(ledger.to_owned(), |all, line| all + "\n" + line);
        }
        let config = Config::parse(&text, "the test's configuration", []).unwrap();
        Connections::of_worker(&config).await.map(|connections| connections.broker.unavailable().is_some())
    };
    assert!(begins(&nobody, None).await.unwrap(), "it has found a broker at port 1");
    for (amqp, ledger, expected) in
        [(&wrong_password, None, "ACCESS_REFUSED"), (&nobody, Some(&*elsewhere), "Connection refused")]
    {
        let error = begins(amqp, ledger).await.unwrap_err();
        assert!(matches!(error, StartError::Broker(_)) && error.to_string().contains(expected), "{error}");
    }
}

/// As it would not have begun had the broker been there.
#[tokio::test]
async fn a_worker_that_began_without_the_broker_ends_when_its_topology_is_refused() {
    let mut ground = Ground::embedded();
    let node = Node::start(ground.folder.path(), &[]).await;
    ground.vhost = Some(Vhost::existing("%2f", node.env("AMQP_URL"), node.env("RABBITMQ_MANAGEMENT_URL")));
    let engine = Watched::start(&ground, CONFIG).await;
    engine.enroll("chain", "work").await;
    engine.stop_with(|run| run.end(Outcome::Done)).await;
    let vhost = ground.vhost.as_ref().unwrap();
    vhost.delete_queue("work").await;
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    vhost.raw().await.queue_declare("work".into(), durable, FieldTable::default()).await.unwrap();
    node.call("stop", &[]).await;

    let mut engine = Watched::start(&ground, CONFIG).await;
    engine.next().await.end(Outcome::Done);
    node.call("start", &[]).await;
    let ended = engine.ended().await;
    let Err(StartError::Broken(why)) = ended else { panic!("{ended:?}") };
    assert!(why.contains("declaring the topology"), "{why}");
}

/// Lets every chain run `times` times more, on whichever worker, each run ending at once.
async fn runs_each(workers: &mut [Watched; 2], chains: usize, times: i64, last: &mut BTreeMap<String, i64>) {
    let ends: BTreeMap<String, i64> = (0..chains)
        .map(|n| format!("chain-{n}"))
        .map(|key| (key.clone(), last.get(&key).unwrap_or(&0) + times))
        .collect();
    while ends.iter().any(|(key, end)| last.get(key).unwrap_or(&0) < end) {
        let [one, other] = &mut *workers;
        let run = tokio::select! {
            run = one.next() => run,
            run = other.next() => run,
        };
        match run.job.tick {
            Some(_) => check(last, &run.job.key, run.tick()),
            None => drop(last.insert(run.job.key.clone(), 1)),
        }
        run.end(Outcome::Done);
    }
}

/// Lets each chain tick twice more, until `what` holds of the workers and of the last ticks.
async fn rounds_until(
    label: &str,
    workers: &mut [Watched; 2],
    chains: usize,
    last: &mut BTreeMap<String, i64>,
    mut what: impl FnMut(&[Watched; 2], &BTreeMap<String, i64>) -> bool,
) {
    let mut rounds = 0;
    while !what(workers, last) {
        rounds += 1;
        assert!(rounds <= 30, "it did not come to this in 60 ticks of each chain: {label}");
        runs_each(workers, chains, 2, last).await;
    }
}

/// Each tick runs once and in order: nothing is lost, nothing doubled.
fn check(last: &mut BTreeMap<String, i64>, key: &str, tick: i64) {
    let before = last.insert(key.to_owned(), tick).unwrap_or(0);
    assert_eq!(tick, before + 1, "{key}: tick {tick} after {before}");
}

/// What a worker holds and has not begun comes again on the new connection. It must not run a
/// second time from the old one.
#[tokio::test]
async fn a_job_that_waits_in_a_worker_when_its_connection_dies_runs_once() {
    let ground = Ground::rabbit().await;
    let config = "[queues.work]\nconcurrency = 1\nprefetch = 6\n[kinds.sync]\nqueue = \"work\"\n";
    let mut engine = Watched::start(&ground, config).await;
    for n in 0..6 {
        let job = Envelope::job("sync", &n.to_string(), json!(null), format!("job-{n}"));
        engine.broker().publish(Message::new(Destination::Queue("work".into()), &job)).await.unwrap();
    }
    let running = engine.next().await;
    // All six have been delivered, five of them wait behind the one that runs.
    until("all are in the worker", || async { engine.broker().depth("work").await.unwrap().ready == 0 }).await;
    ground.vhost.as_ref().unwrap().kill(&["roundelay consume"]).await;
    until("it consumes again", || async {
        engine.broker().depth("work").await.is_ok_and(|depth| depth.consumers == 1 && depth.ready == 0)
    })
    .await;
    let interrupted = running.job.key.clone();
    running.end(Outcome::Done);
    let mut runs = BTreeMap::from([(interrupted.clone(), 1)]);
    for _ in 0..6 {
        let run = engine.next().await;
        *runs.entry(run.job.key.clone()).or_insert(0) += 1;
        run.end(Outcome::Done);
    }
    engine.nothing_for(Duration::from_secs(1)).await;
    assert_eq!(runs.remove(&interrupted), Some(2), "it ran when the connection died: at least once");
    assert!(runs.len() == 5 && runs.values().all(|times| *times == 1), "{runs:?}");
    engine.stop().await;
}
