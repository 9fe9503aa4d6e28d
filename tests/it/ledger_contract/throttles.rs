//! Slots for all workers.

use roundelay::ledger::{SlotAnswer, SlotRequest};
use roundelay::throttle::slots::{Limits, Window, Wish, Word};

use super::*;

/// So many slots are wanted.
fn request(key: &str, per: Duration, slots: usize) -> SlotRequest {
    let limits = Arc::new(Limits { window: Window { allow: 10, per }, burst: 1, also: Vec::new() });
    let wishes = vec![Wish { priority: 0, cost: 1 }; slots];
    let (throttle, key) = ("upstream".into(), key.into());
    SlotRequest { throttle, key, limits, heard: Vec::new(), wishes, seen: None }
}

async fn ask(ledger: &dyn Ledger, request: SlotRequest) -> SlotAnswer {
    ledger.slots(vec![request]).await.unwrap().remove(0)
}

#[tokio::test]
async fn a_slot_is_handed_out_once_whoever_asks() {
    for opened in shared().await {
        let hour = Duration::from_secs(3_600);
        let mut workers = JoinSet::new();
        for _ in 0..6 {
            let ledger = opened.again().await;
            workers.spawn(async move {
                let mut got = 0;
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
        assert_eq!(opened.ledger.throttles(1).await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_hold_holds_for_all_and_what_is_as_good_as_new_is_forgotten() {
    for opened in shared().await {
        let (ledger, other) = (&*opened.ledger, opened.again().await);
        let moment = Duration::from_millis(1);
        let first = ask(ledger, request("a", moment, 1)).await;
        let until = first.now + 3_600_000_000;
        let heard = vec![Word::Hold { until, why: "a ban".into() }];
        ask(ledger, SlotRequest { heard, ..request("a", moment, 0) }).await;
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
