//! Operators steer workers through the ledger: queues are closed and opened, widened and narrowed, workers
//! drained, while they run.

use std::time::Duration;

use roundelay::fleet::{FleetOrder, Subject, WorkerState};

use crate::harness::{Watched, on_all, until};

on_all!(a_closed_queue_gives_nothing_out_until_it_is_opened_again);
on_all!(a_queue_that_was_closed_before_the_worker_came_stays_closed);
on_all!(more_run_at_the_same_time_when_that_is_ordered_and_fewer_again);
on_all!(a_drained_worker_finishes_and_takes_nothing_more);

/// One job at a time, so that what waits in the worker is seen to go back.
const CONFIG: &str = r#"
[queues.work]
concurrency = 1
prefetch = 4

[kinds.sync]
every = "1h"
"#;
/// Bounds what a test can prove of something that does not happen. Twice as long as it takes a worker to know of an
/// order.
const QUIET: Duration = Duration::from_secs(4);

fn work() -> Subject {
    Subject::Queue("work".into())
}

fn close() -> FleetOrder {
    FleetOrder::Close { why: "their upstream is down".into() }
}

async fn order(engine: &Watched, subject: Subject, order: FleetOrder) {
    engine.ledger().order_fleet(subject, order, "ann@ops".into()).await.unwrap();
}

/// Waits until the only worker says so of its queue and of itself.
async fn says(engine: &Watched, open: bool, concurrency: usize, state: WorkerState) {
    until(&format!("open {open}, {concurrency} places, {state:?}"), async || {
        let workers = engine.ledger().workers().await.unwrap();
        workers.iter().any(|worker| {
            let queue = worker.presence.queues.iter().find(|queue| queue.queue == "work");
            worker.presence.state == state
                && queue.is_some_and(|queue| (queue.open, queue.concurrency) == (open, concurrency))
        })
    })
    .await;
}

mod run {
    use roundelay::Outcome;

    use super::*;
    use crate::harness::Ground;

    pub async fn a_closed_queue_gives_nothing_out_until_it_is_opened_again(ground: Ground) {
        let mut engine = Watched::attended(&ground, CONFIG).await;
        engine.enroll("a", "work").await;
        let a = engine.next().await;
        // This one is in the worker's hand, and waits for room there.
        engine.enroll("b", "work").await;
        order(&engine, work(), close()).await;
        says(&engine, false, 1, WorkerState::Working).await;
        a.end(Outcome::Done);
        engine.enroll("c", "work").await;
        engine.nothing_for(QUIET).await;
        let orders = engine.ledger().fleet_orders().await.unwrap();
        assert_eq!(orders[&work()].closed.as_ref().unwrap().by, "ann@ops");
        order(&engine, work(), FleetOrder::Open).await;
        let mut keys = Vec::new();
        for _ in 0..2 {
            let run = engine.next().await;
            keys.push(run.job.key.clone());
            run.end(Outcome::Done);
        }
        keys.sort();
        assert_eq!(keys, ["b", "c"]);
        engine.stop().await;
    }

    pub async fn a_queue_that_was_closed_before_the_worker_came_stays_closed(ground: Ground) {
        let first = Watched::attended(&ground, CONFIG).await;
        order(&first, work(), close()).await;
        first.stop().await;
        let mut engine = Watched::attended(&ground, CONFIG).await;
        engine.enroll("a", "work").await;
        engine.nothing_for(QUIET).await;
        order(&engine, work(), FleetOrder::Open).await;
        engine.next().await.end(Outcome::Done);
        engine.stop().await;
    }

    pub async fn more_run_at_the_same_time_when_that_is_ordered_and_fewer_again(ground: Ground) {
        let mut engine = Watched::attended(&ground, CONFIG).await;
        for key in ["a", "b", "c", "d", "e", "f", "g"] {
            engine.enroll(key, "work").await;
        }
        let first = engine.next().await;
        // More than are held by the configuration, so that more have to be fetched.
        order(&engine, work(), FleetOrder::Concurrency(Some(5))).await;
        says(&engine, true, 5, WorkerState::Working).await;
        let mut running = vec![first];
        while running.len() < 5 {
            running.push(engine.next().await);
        }
        order(&engine, work(), FleetOrder::Concurrency(None)).await;
        says(&engine, true, 1, WorkerState::Working).await;
        let last = running.pop().unwrap();
        running.into_iter().for_each(|run| run.end(Outcome::Done));
        engine.nothing_for(QUIET).await;
        last.end(Outcome::Done);
        for _ in 0..2 {
            engine.next().await.end(Outcome::Done);
        }
        engine.stop().await;
    }

    pub async fn a_drained_worker_finishes_and_takes_nothing_more(ground: Ground) {
        let mut engine = Watched::attended(&ground, CONFIG).await;
        engine.enroll("a", "work").await;
        let a = engine.next().await;
        let workers = engine.ledger().workers().await.unwrap();
        let [worker] = &workers[..] else { panic!("one works: {workers:?}") };
        let me = Subject::Worker(worker.presence.worker.clone());
        assert_eq!((worker.presence.pid, &worker.presence.kinds[..]), (std::process::id(), &["sync".to_owned()][..]));
        order(&engine, me.clone(), close()).await;
        says(&engine, false, 1, WorkerState::Draining).await;
        engine.enroll("b", "work").await;
        a.end(Outcome::Done);
        says(&engine, false, 1, WorkerState::Drained).await;
        engine.nothing_for(QUIET).await;
        order(&engine, me, FleetOrder::Open).await;
        engine.next().await.end(Outcome::Done);
        let ledger = engine.connections.ledger.clone();
        engine.stop().await;
        assert_eq!(ledger.workers().await.unwrap(), [], "it has said goodbye");
    }
}
