//! Workers, what they have done, and what was ordered of them and of queues.

use std::collections::BTreeMap;

use roundelay::fleet::{
    FleetOrder, FleetOrders, KEPT, Lateness, Presence, QueuePresence, SECONDS, Subject, ThroughputSample, WorkerState,
};

use roundelay::kind_stats::{KindBucket, KindStats, Step};

use super::*;

fn presence(worker: &str, state: WorkerState) -> Presence {
    Presence {
        worker: worker.into(),
        host: "host \"ü\"".into(),
        pid: 17,
        version: "0.1.0".into(),
        started: Time::from_millis(1_790_000_000_123),
        state,
        queues: vec![QueuePresence {
            queue: "work".into(),
            concurrency: 8,
            running: 3,
            waiting: 1,
            open: true,
            starts_per_second: 12.5,
            late_ms: Lateness { p50: 2.0, p99: 9.0, max: 40.0 },
        }],
        kinds: vec!["sync".into()],
        leases: 3,
        oldest: vec![Fence(7), Fence(i64::MAX)],
    }
}

#[tokio::test]
async fn workers_are_known_by_what_they_last_said_until_they_leave() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let before = ledger.now();
        ledger.attend(presence("b", WorkerState::Working), vec![]).await.unwrap();
        ledger.attend(presence("a", WorkerState::Working), vec![]).await.unwrap();
        ledger.attend(presence("b", WorkerState::Drained), vec![]).await.unwrap();
        let seen = ledger.workers().await.unwrap();
        let said: Vec<Presence> = seen.iter().map(|worker| worker.presence.clone()).collect();
        assert_eq!(said, [presence("a", WorkerState::Working), presence("b", WorkerState::Drained)]);
        assert!(seen.iter().all(|worker| worker.seen >= before && worker.seen <= ledger.now() + SLACK));
        ledger.leave("a".into()).await.unwrap();
        ledger.leave("nobody".into()).await.unwrap();
        assert_eq!(ledger.workers().await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn what_workers_have_done_is_kept_for_an_hour() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let tens = ledger.now().as_millis() / 10_000 * 10_000;
        let pulse = |at: i64, starts: u64| ThroughputSample {
            at: Time::from_millis(at),
            starts: [starts; SECONDS],
            late_ms: Some(Lateness { p50: 1.0, p99: 2.0, max: 3.0 }),
        };
        let old = pulse(tens - KEPT.as_millis() as i64 - 20_000, 9);
        ledger.attend(presence("a", WorkerState::Working), vec![old.clone(), pulse(tens - 20_000, 1)]).await.unwrap();
        // A pulse that is sent twice, because the answer to the first was lost, counts once.
        let again = [pulse(tens - 20_000, 1), pulse(tens - 10_000, 2)];
        ledger.attend(presence("a", WorkerState::Working), again.to_vec()).await.unwrap();
        ledger.attend(presence("b", WorkerState::Working), vec![pulse(tens - 20_000, 4)]).await.unwrap();
        let expected = [pulse(tens - 20_000, 1), pulse(tens - 20_000, 4), pulse(tens - 10_000, 2)];
        assert_eq!(ledger.pulses(old.at).await.unwrap(), expected);
        assert_eq!(ledger.pulses(Time::from_millis(tens - 10_000)).await.unwrap(), expected[2..]);
        // They outlive the worker.
        ledger.leave("b".into()).await.unwrap();
        assert_eq!(ledger.pulses(old.at).await.unwrap().len(), 3);
    }
}

#[tokio::test]
async fn what_runs_of_kinds_came_to_is_the_sum_of_what_workers_wrote_last() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        let bucket = |step: Step, at: Time, kind: &str, done: u64| KindBucket {
            step,
            at: step.begin(at),
            kind: kind.into(),
            stats: KindStats { ends: BTreeMap::from([("done".into(), done)]), ..KindStats::default() },
        };
        let minute = |at, kind: &str, done| bucket(Step::Minute, at, kind, done);
        let before = now - Duration::from_secs(300);
        let note = async |worker: &str, buckets: &[KindBucket]| {
            ledger.note_kinds(worker.into(), buckets.to_vec()).await.unwrap();
        };
        note("a", &[minute(before, "sync", 1), minute(now, "sync", 2), bucket(Step::Hour, now, "sync", 9)]).await;
        // Written again with more, and once more, because the answer was lost.
        let again = [minute(now, "sync", 5), minute(now, "other \"ü\"", 1)];
        note("a", &again).await;
        note("a", &again).await;
        note("b", &[minute(now, "sync", 4)]).await;
        note("b", &[]).await;
        let found = ledger.kinds(Step::Minute, before - Duration::from_secs(60)).await.unwrap();
        assert_eq!(found, [minute(before, "sync", 1), minute(now, "other \"ü\"", 1), minute(now, "sync", 9)]);
        assert_eq!(ledger.kinds(Step::Minute, Step::Minute.begin(now)).await.unwrap(), found[1..]);
        assert_eq!(
            ledger.kinds(Step::Hour, Step::Hour.begin(now)).await.unwrap(),
            [bucket(Step::Hour, now, "sync", 9)]
        );
        // What is older than it is kept is forgotten when more is written, whichever worker wrote it.
        let old = now - Step::Minute.kept() - Duration::from_secs(120);
        note("a", &[minute(old, "sync", 7), bucket(Step::Hour, old, "sync", 7)]).await;
        note("a", &[minute(now, "sync", 6)]).await;
        assert_eq!(ledger.kinds(Step::Minute, old).await.unwrap().len(), 3);
        assert_eq!(ledger.kinds(Step::Hour, Step::Hour.begin(old)).await.unwrap().len(), 2, "kept for nine days");
    }
}

#[tokio::test]
async fn orders_are_known_to_all_until_they_are_taken_back() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (queue, worker) = (Subject::Queue("work".into()), Subject::Worker("a".into()));
        let order = async |subject: &Subject, order: FleetOrder| {
            ledger.order_fleet(subject.clone(), order, "ann@ops".into()).await.unwrap()
        };
        let close = || FleetOrder::Close { why: "they are \"down\"".into() };
        assert_eq!(ledger.fleet_orders().await.unwrap(), BTreeMap::new());
        order(&queue, close()).await;
        let both = order(&queue, FleetOrder::Concurrency(Some(3))).await;
        let said = both.closed.as_ref().map(|said| (&*said.why, &*said.by));
        assert_eq!(said, Some(("they are \"down\"", "ann@ops")));
        let early = ledger.order_fleet(worker.clone(), close(), "ann@ops".into()).await;
        assert!(matches!(early, Err(LedgerError::NoWorker(name)) if name == "a"), "nobody has that name");
        ledger.attend(presence("a", WorkerState::Working), vec![]).await.unwrap();
        let drained = order(&worker, close()).await;
        let known = BTreeMap::from([(queue.clone(), both), (worker.clone(), drained)]);
        assert_eq!(ledger.fleet_orders().await.unwrap(), known);
        order(&queue, FleetOrder::Open).await;
        assert_eq!(order(&queue, FleetOrder::Concurrency(None)).await, FleetOrders::default());
        ledger.attend(presence("a", WorkerState::Drained), vec![]).await.unwrap();
        ledger.leave("a".into()).await.unwrap();
        assert_eq!(ledger.fleet_orders().await.unwrap(), BTreeMap::new(), "nobody will ever have that name again");
        let late = ledger.order_fleet(worker.clone(), close(), "ann@ops".into()).await;
        assert!(matches!(late, Err(LedgerError::NoWorker(_))), "it has just left");
        assert_eq!(ledger.fleet_orders().await.unwrap(), BTreeMap::new(), "nothing stays for ever");
    }
}

#[tokio::test]
async fn orders_given_at_the_same_time_all_hold() {
    for opened in all().await {
        let subject = Subject::Queue("work".into());
        let (one, other) = (opened.ledger.clone(), opened.ledger.clone());
        let (a, b) = (subject.clone(), subject.clone());
        let (a, b) = tokio::join!(
            one.order_fleet(a, FleetOrder::Close { why: "x".into() }, "ann".into()),
            other.order_fleet(b, FleetOrder::Concurrency(Some(2)), "bob".into()),
        );
        a.unwrap();
        b.unwrap();
        let orders = opened.ledger.fleet_orders().await.unwrap().remove(&subject).unwrap();
        assert!(orders.closed.is_some() && orders.concurrency.is_some(), "{orders:?}");
    }
}
