//! Slots for all workers.

use roundelay::pacing::orders::ThrottleOrder;
use roundelay::pacing::slots::{Feedback, Limits, StartRequest, Window};
use roundelay::pacing::{SlotRequest, SlotResponse};

use super::*;

/// A request for `slots` slots.
fn request(key: &str, per: Duration, slots: usize) -> SlotRequest {
    let limits = Arc::new(Limits { window: Window { allow: 10, per }, burst: 1, also: Vec::new() });
    let requests = vec![StartRequest { priority: 0, cost: 1, probe: false }; slots];
    let (throttle, key) = ("upstream".into(), key.into());
    SlotRequest { throttle, key, limits, feedback: Vec::new(), requests, ahead: 0 }
}

/// From now on this process knows the ledger's clock for long.
async fn settled(ledger: &dyn Ledger) {
    for _ in 0..3 {
        ledger.read_clock().await.unwrap();
    }
}

async fn ask(ledger: &dyn Ledger, request: SlotRequest) -> SlotResponse {
    settled(ledger).await;
    ledger.slots(vec![request]).await.unwrap().remove(0)
}

#[tokio::test]
async fn a_slot_is_handed_out_once_to_one_of_many_workers() {
    for opened in shared().await {
        let hour = Duration::from_secs(3_600);
        let mut workers = JoinSet::new();
        for _ in 0..6 {
            let ledger = opened.again().await;
            workers.spawn(async move {
                let mut got = 0;
                settled(&*ledger).await;
                for _ in 0..5 {
                    let requests = ["a", "b", "a"].map(|key| request(key, hour, 2)).into();
                    let answers = ledger.slots(requests).await.unwrap();
                    got += answers.iter().map(|answer| answer.answer.slots.len()).sum::<usize>();
                    assert!(answers.iter().all(|answer| answer.answer.again.is_some()));
                }
                got
            });
        }
        // One for each key: the next ones open six minutes later.
        assert_eq!(workers.join_all().await.iter().sum::<usize>(), 2);
        let rows = opened.ledger.throttles(10).await.unwrap();
        assert_eq!(rows.iter().map(|row| &*row.key).collect::<Vec<_>>(), ["a", "b"]);
        assert!(rows.iter().all(|row| row.keys == 2));
        assert_eq!(opened.ledger.throttles(1).await.unwrap().len(), 1);
        let of = |name: &str, key: Option<&str>| opened.ledger.throttle(name.into(), key.map(Into::into), 10);
        assert_eq!(of("upstream", None).await.unwrap().len(), 2);
        assert_eq!(of("upstream", Some("b")).await.unwrap(), rows[1..]);
        assert_eq!((of("upstream", Some("c")).await.unwrap(), of("other", None).await.unwrap()), (vec![], vec![]));
    }
}

#[tokio::test]
async fn a_hold_holds_for_all_and_refilled_keys_are_forgotten() {
    for opened in shared().await {
        let (ledger, other) = (&*opened.ledger, opened.again().await);
        let moment = Duration::from_millis(1);
        let first = ask(ledger, request("a", moment, 1)).await;
        let feedback = vec![Feedback::Hold { until: 3_600_000_000, why: "a ban".into() }];
        let told = ask(ledger, SlotRequest { feedback, ..request("a", moment, 0) }).await;
        // From when it was told.
        let until = told.now + 3_600_000_000;
        let held = ask(&*other, request("a", moment, 1)).await;
        assert_eq!((held.answer.slots.len(), held.answer.again, held.answer.held_until), (0, Some(until), Some(until)));
        assert!(held.now >= first.now);
        assert_eq!(ask(&*other, request("b", moment, 1)).await.answer.slots.len(), 1);
        until_forgotten(ledger).await;
        let rows = ledger.throttles(10).await.unwrap();
        assert_eq!(rows.iter().map(|row| (&*row.key, row.state.held())).collect::<Vec<_>>(), [("a", (until, "a ban"))]);
    }
}

/// One row is as good as new within a moment.
async fn until_forgotten(ledger: &dyn Ledger) {
    until("one was forgotten", async || ledger.forget_idle(10).await.unwrap() == 1).await;
}

#[tokio::test]
async fn an_operators_order_holds_from_the_next_slot_on_for_all_workers_and_keys() {
    for opened in shared().await {
        let (ledger, other) = (&*opened.ledger, opened.again().await);
        let hour = Duration::from_secs(3_600);
        let order = async |order: ThrottleOrder| {
            ledger.order_throttle("upstream".into(), order, "ann@ops".into()).await.unwrap()
        };
        let open = async |key: &str| ask(&*other, request(key, hour, 9)).await;
        assert_eq!(ledger.throttle_orders().await.unwrap(), Default::default());
        let first = open("a").await;
        assert_eq!((first.answer.slots.len(), first.orders), (1, 0));

        // The order holds for keys that have had no request yet, too.
        let why = "they are down".to_owned();
        let held = order(ThrottleOrder::Hold { span: Duration::from_secs(600), why }).await;
        let hold = held.hold.clone().unwrap();
        assert_eq!((&*hold.why, &*hold.by, hold.until), ("they are down", "ann@ops", hold.at + 600_000_000));
        assert!((hold.at - first.now) < 60_000_000 && hold.at >= first.now - 1_000, "by the ledger's clock");
        for key in ["a", "b", "new"] {
            let answer = open(key).await;
            assert_eq!((answer.answer.slots.len(), answer.orders), (0, held.version), "{key}");
            assert!(answer.answer.again >= Some(hold.until), "{key}");
        }
        assert_eq!(other.throttle_orders().await.unwrap()["upstream"], held);

        // Another throttle has nothing to do with it, and neither has what is only heard.
        let others = SlotRequest { throttle: "another".into(), ..request("", hour, 1) };
        assert_eq!(ask(&*other, others).await.answer.slots.len(), 1);
        let feedback = vec![Feedback::Hold { until: 1_200_000_000, why: "ban".into() }];
        ask(&*other, SlotRequest { feedback, ..request("b", hour, 0) }).await;

        // Released: what an upstream has asked for as well.
        order(ThrottleOrder::Release).await;
        assert_eq!(open("b").await.answer.slots.len(), 1);

        // Limits: all of what is allowed may come back to back.
        let window = Window { allow: 4, per: Duration::from_secs(600) };
        let set = order(ThrottleOrder::Limits { window, burst: 4 }).await;
        let answer = open("c").await;
        assert_eq!((answer.limits.window, answer.orders), (window, set.version));
        assert!(set.version > held.version);
        let reset = order(ThrottleOrder::Reset).await;
        let answer = open("d").await;
        assert_eq!((answer.answer.slots.len(), answer.limits.window.allow), (1, 10));
        assert!(reset.limits.is_none() && reset.version > set.version);
    }
}

/// Slots that are being handed out while an order is given: each is covered by the order, or was there before.
#[tokio::test]
async fn no_slot_is_handed_out_against_an_order_that_was_given() {
    for opened in shared().await {
        let ledger = opened.ledger.clone();
        let moment = Duration::from_millis(1);
        let mut workers = JoinSet::new();
        let held = Arc::new(std::sync::atomic::AtomicBool::new(false));
        for n in 0..4 {
            let (worker, held) = (opened.again().await, held.clone());
            workers.spawn(async move {
                let key = format!("{}", n % 2);
                loop {
                    let after = held.load(std::sync::atomic::Ordering::SeqCst);
                    let answer = ask(&*worker, request(&key, moment, 1)).await;
                    if after {
                        return answer.answer.slots.len();
                    }
                }
            });
        }
        let both = async || ledger.throttle("upstream".into(), None, 10).await.unwrap().len() == 2;
        until("both keys are in use", both).await;
        let order = ThrottleOrder::Hold { span: Duration::from_secs(600), why: String::new() };
        ledger.order_throttle("upstream".into(), order, "ann".into()).await.unwrap();
        held.store(true, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(workers.join_all().await, [0; 4]);
    }
}
