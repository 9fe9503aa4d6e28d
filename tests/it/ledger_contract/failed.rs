//! What has failed: feeding parts back, one run at a time, and an operator's word on them.

use roundelay::failure::{Failure, ItemEnd};
use roundelay::ledger::{FailureFilter, Hold, ListFilter, Plan, PlannedItem};

use super::*;

/// A part that failed and may be tried again then.
fn part(item: &str, next: Time) -> FailedItem {
    FailedItem { code: Some("busy".into()), next_retry_at: Some(next), ..FailedItem::new(item, "HTTP 503") }
}

fn forever(item: &str) -> FailedItem {
    FailedItem { code: Some("empty".into()), permanent: true, ..FailedItem::new(item, "HTTP 404") }
}

async fn record(ledger: &dyn Ledger, key: &str, failed: FailedItem) {
    ledger.record_failure("sync".into(), key.into(), failed, ledger.now()).await.unwrap();
}

async fn all_failed(ledger: &dyn Ledger) -> Vec<Failure> {
    ledger.failed(FailureFilter::default(), None, 100).await.unwrap()
}

async fn only(ledger: &dyn Ledger) -> Failure {
    let mut all = all_failed(ledger).await;
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

async fn due(ledger: &dyn Ledger) -> Vec<String> {
    ledger.due_items("sync".into(), 10).await.unwrap().into_iter().map(|due| due.failure.item).collect()
}

/// Names the job of the part `us` of `a`, whose `next_retry_at` was `seen`.
async fn feed(ledger: &dyn Ledger, id: &str, seen: Time) -> bool {
    let job = SpawnedJob { id: id.into(), body: b"job".to_vec() };
    plan(ledger, seen, Plan::Feed { job, until: ledger.now() + LEASE }).await
}

async fn plan(ledger: &dyn Ledger, seen: Time, plan: Plan) -> bool {
    let planned = PlannedItem { kind: "sync".into(), key: "a".into(), item: "us".into(), seen, plan };
    ledger.plan_items(vec![planned]).await.unwrap()[0]
}

async fn hold(ledger: &dyn Ledger, id: &str) -> Hold {
    ledger.hold_item(id.into(), LEASE).await.unwrap()
}

fn jobs(kept: Vec<roundelay::ledger::KeptJob>) -> usize {
    kept.len()
}

#[tokio::test]
async fn a_part_that_fails_again_counts_on_and_what_is_permanent_stays_so() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        record(ledger, "a", part("us", now)).await;
        record(ledger, "a", FailedItem { next_retry_at: Some(now + LEASE), ..FailedItem::new("us", "HTTP 500") }).await;
        let failure = only(ledger).await;
        assert_eq!((failure.times, failure.attempts, failure.reason.as_str()), (2, 2, "HTTP 500"));
        assert_eq!((failure.code, failure.next_retry_at, failure.permanent), (None, Some(now + LEASE), false));
        record(ledger, "a", forever("us")).await;
        record(ledger, "a", part("us", now)).await;
        let failure = only(ledger).await;
        assert_eq!((failure.attempts, failure.next_retry_at, failure.permanent), (4, None, true));
        // Two of a run are two, and of a whole entity the last word counts.
        ledger.accept("sync".into(), "b".into(), vec![], vec![], vec![part("x", now), forever("x")]).await.unwrap();
        for permanent in [true, false] {
            record(ledger, "b", FailedItem { permanent, ..FailedItem::new("", "gone") }).await;
        }
        let rest = ledger.failures_of("sync".into(), "b".into()).await.unwrap();
        let told = |item: &str| {
            let failure = rest.iter().find(|failure| failure.item == item).unwrap();
            (failure.attempts, failure.permanent, failure.next_retry_at)
        };
        assert_eq!((told("x"), told("")), ((2, true, None), (2, false, None)));
    }
}

#[tokio::test]
async fn only_due_parts_of_chains_that_tick_are_fed_and_each_once() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        let chains = [("a", Some("red")), ("paused", None)].map(|(key, owner)| NewChain {
            owner: owner.map(Into::into),
            payload: r#"{"p":1}"#.into(),
            ..chain(key, now + LEASE)
        });
        ledger.enroll(chains.to_vec()).await.unwrap();
        assert_eq!(ledger.order_chains(which("paused"), ChainOrder::Pause).await.unwrap(), 1);
        record(ledger, "a", part("us", now)).await;
        record(ledger, "a", part("later", now + LEASE)).await;
        record(ledger, "a", forever("never")).await;
        record(ledger, "a", FailedItem::new("made by the engine", "no queue")).await;
        record(ledger, "a", FailedItem::new("", "the whole")).await;
        record(ledger, "paused", part("us", now)).await;
        record(ledger, "no chain", part("us", now)).await;
        let found = ledger.due_items("sync".into(), 10).await.unwrap();
        assert_eq!(due(ledger).await, ["us"]);
        let of = &found[0];
        assert_eq!((of.queue.as_str(), of.payload.as_str(), of.owner.as_deref()), ("work", r#"{"p":1}"#, Some("red")));
        assert!(ledger.due_items("other".into(), 10).await.unwrap().is_empty());

        // Of two who plan the same, one is faster; the job is accepted with it, or not at all.
        assert!(feed(ledger, "j-1", now).await);
        assert!(!feed(ledger, "j-2", now).await);
        let kept = ledger.kept_jobs(0, 10).await.unwrap();
        assert_eq!((jobs(kept), due(ledger).await.len()), (1, 0));
        // One that was lost is sent once more, under its name.
        let failure = ledger.failures_of("sync".into(), "a".into()).await.unwrap();
        let failure = failure.into_iter().find(|failure| failure.item == "us").unwrap();
        assert_eq!(failure.fed.as_deref(), Some("j-1"));
        let seen = failure.next_retry_at.unwrap();
        assert!(seen > now, "it is waited for");
        assert!(feed(ledger, "j-1", seen).await);
        assert_eq!(jobs(ledger.kept_jobs(0, 10).await.unwrap()), 1);
    }
}

#[tokio::test]
async fn a_plan_moves_a_part_or_gives_it_up() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        begun(ledger, "a").await;
        record(ledger, "a", part("us", now)).await;
        let later = now + LEASE;
        assert!(plan(ledger, now, Plan::Wait(later)).await);
        assert!(!plan(ledger, now, Plan::GiveUp).await, "somebody was faster");
        assert_eq!((only(ledger).await.next_retry_at, due(ledger).await.len()), (Some(later), 0));
        assert!(plan(ledger, later, Plan::GiveUp).await);
        let failure = only(ledger).await;
        assert_eq!((failure.permanent, failure.next_retry_at), (true, None));
        assert!(ledger.kept_jobs(0, 10).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn one_job_at_a_time_holds_a_part_and_its_end_is_written_once() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        begun(ledger, "a").await;
        record(ledger, "a", part("us", now)).await;
        assert_eq!(hold(ledger, "j-1").await, Hold::Gone, "nobody waits for it");
        assert!(feed(ledger, "j-1", now).await);
        assert!(matches!(hold(ledger, "j-1").await, Hold::Taken(failure) if failure.item == "us"));
        assert!(matches!(hold(ledger, "j-1").await, Hold::Held(until) if until > ledger.now()), "the same job again");
        // What is told of it meanwhile does not have it fed a second time.
        record(ledger, "a", part("us", now)).await;
        assert!(due(ledger).await.is_empty());
        ledger.put_off_item("j-1".into(), ledger.now() + LEASE).await.unwrap();
        assert!(matches!(hold(ledger, "j-1").await, Hold::Taken(_)), "it was given up");

        let next = ledger.now();
        let end = ItemEnd::Failed(FailedItem { reason: "still".into(), ..part("us", next) });
        for _ in 0..2 {
            // Asked again, because the answer was lost.
            ledger.end_item("j-1".into(), end.clone(), next).await.unwrap();
        }
        let failure = only(ledger).await;
        assert_eq!((failure.attempts, failure.reason.as_str(), failure.fed), (3, "still", None));
        assert_eq!(hold(ledger, "j-1").await, Hold::Gone, "it has ended");
        assert_eq!(due(ledger).await, ["us"]);

        assert!(feed(ledger, "j-2", next).await);
        assert!(matches!(hold(ledger, "j-2").await, Hold::Taken(_)));
        ledger.end_item("j-1".into(), ItemEnd::Worked, next).await.unwrap();
        assert_eq!(only(ledger).await.attempts, 3, "an earlier job has no say");
        ledger.end_item("j-2".into(), ItemEnd::Worked, next).await.unwrap();
        assert!(all_failed(ledger).await.is_empty());
    }
}

#[tokio::test]
async fn failures_are_listed_page_by_page_retried_and_dropped_by_filter() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        let red = NewChain { owner: Some("red".into()), ..chain("eu/1", now + LEASE) };
        ledger.enroll(vec![red, chain("eu/2", now + LEASE)]).await.unwrap();
        for (key, failed) in [
            ("eu/1", part("us", now + LEASE)),
            ("eu/1", forever("jp")),
            ("eu/1", FailedItem::new("", "the whole")),
            ("eu/2", part("us", now + LEASE)),
            ("x%", forever("us")),
        ] {
            record(ledger, key, failed).await;
        }
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = ledger.failed(FailureFilter::default(), after, 2).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some((last.kind.clone(), last.key.clone(), last.item.clone()));
            seen.extend(page.into_iter().map(|failure| format!("{} {}", failure.key, failure.item)));
        }
        assert_eq!(seen, ["eu/1 ", "eu/1 jp", "eu/1 us", "eu/2 us", "x% us"]);

        let text = |text: &str| Some(text.to_owned());
        let any = FailureFilter::default;
        // Parts, and whole entities.
        let table = [
            (any(), (4, 1)),
            (FailureFilter { kind: text("other"), ..any() }, (0, 0)),
            (FailureFilter { key: text("eu/1"), ..any() }, (2, 1)),
            (FailureFilter { like: text("eu/*"), ..any() }, (3, 1)),
            (FailureFilter { like: text("x%"), ..any() }, (1, 0)),
            (FailureFilter { owner: text("red"), ..any() }, (2, 1)),
            (FailureFilter { item: text("us"), ..any() }, (3, 0)),
            (FailureFilter { code: text("empty"), ..any() }, (2, 0)),
            (FailureFilter { permanent: Some(false), ..any() }, (2, 1)),
            (FailureFilter { permanent: Some(true), like: text("eu/?"), ..any() }, (1, 0)),
        ];
        for (filter, expected) in table {
            assert_eq!(ledger.count_failed(filter.clone()).await.unwrap(), expected, "{filter:?}");
        }

        // An operator's word: due now, with nothing counted, also what was permanent.
        let permanent = FailureFilter { permanent: Some(true), like: text("eu/*"), ..any() };
        assert_eq!(ledger.retry_failed(permanent).await.unwrap(), 1);
        assert_eq!(due(ledger).await, ["jp"]);
        let jp = ledger.failed(FailureFilter { item: text("jp"), ..any() }, None, 9).await.unwrap().remove(0);
        assert_eq!((jp.attempts, jp.permanent), (0, false));
        assert_eq!(ledger.retry_failed(FailureFilter { item: text(""), ..any() }).await.unwrap(), 0, "no part");
        assert_eq!(ledger.drop_failed(FailureFilter { like: text("eu/*"), ..any() }).await.unwrap(), 4);
        assert_eq!(only(ledger).await.key, "x%");

        // What a run has asked for in vain is no part that could be tried again.
        let refused = FailedItem::refused("spawn", "too many");
        ledger.record_failure("sync".into(), "us".into(), refused, ledger.now()).await.unwrap();
        assert_eq!(ledger.retry_failed(FailureFilter { item: text("spawn"), ..any() }).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn an_entity_is_unavailable_from_the_run_that_says_so_until_it_begins_anew() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let list = async || ledger.list(ListFilter::default(), None, 9).await.unwrap().remove(0);
        let hint = begun(ledger, "a").await;
        let grant = granted(ledger, &hint, LEASE).await;
        let retire = end(&hint, grant.fence, ledger.now(), Next::End, Verdict::Retired);
        let retire = FinishRequest { code: Some("gone".into()), ..retire };
        ledger.finish(retire).await.unwrap();
        let failure = only(ledger).await;
        assert_eq!((failure.item.as_str(), failure.code.as_deref(), failure.permanent), ("", Some("gone"), true));
        assert_eq!(list().await.unavailable.as_deref(), Some("gone: because"));
        assert_eq!(ledger.census(SLACK).await.unwrap().unavailable, 1);
        // It begins anew, and an operator ends it: that says nothing of the entity.
        let anew = NewChain { revive: true, ..chain("a", ledger.now() + LEASE) };
        assert!(matches!(ledger.enroll(vec![anew]).await.unwrap()[0], Enrolled::Created(_)));
        assert_eq!(list().await.unavailable, None);
        assert_eq!(ledger.order_chains(which("a"), ChainOrder::Retire).await.unwrap(), 1);
        assert_eq!((list().await.unavailable, ledger.census(SLACK).await.unwrap().unavailable), (None, 0));
    }
}
