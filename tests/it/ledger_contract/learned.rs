//! What chains learn of how often their entities change, which the ledger only keeps.

use roundelay::ledger::{ListFilter, Member};

use super::*;

/// No text: PostgreSQL's has no NUL, and neither ledger's has bytes that are not UTF-8.
const FIRST: [u8; 3] = [0, 255, 7];
/// As long as it may be.
const SECOND_TIME: [u8; 64] = [200; 64];

fn ends(hint: &Hint, grant: &Grant, next: Next, verdict: Verdict, learned: Option<&[u8]>) -> FinishRequest {
    FinishRequest { learned: learned.map(Into::into), ..end(hint, grant.fence, grant.at, next, verdict) }
}

/// Claims `hint`, of which that must be known, and finishes it with what it has learned; the message that follows.
async fn runs(ledger: &dyn Ledger, hint: &Hint, known: Option<&[u8]>, learned: Option<&[u8]>) -> Hint {
    let grant = granted(ledger, hint, LEASE).await;
    assert_eq!(grant.learned.as_deref(), known);
    written(ledger, ends(hint, &grant, tick(grant.at), Verdict::Done, learned)).await
}

/// What reports and lists say that the rotation has learned.
async fn told(ledger: &dyn Ledger, key: &str) -> Option<Vec<u8>> {
    let view = ledger.chains("sync".into(), key.into()).await.unwrap().remove(0);
    let filter = ListFilter { which: which(key), ..ListFilter::default() };
    let listed = ledger.list(filter, None, 10).await.unwrap().remove(0);
    assert_eq!(view.learned, listed.learned);
    view.learned
}

#[tokio::test]
async fn what_was_learned_comes_with_each_claim_until_a_run_has_learned_more() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hint = begun(ledger, "a").await;
        assert_eq!(told(ledger, "a").await, None);
        let hint = runs(ledger, &hint, None, Some(&FIRST)).await;
        assert_eq!(told(ledger, "a").await.as_deref(), Some(&FIRST[..]));
        let hint = runs(ledger, &hint, Some(&FIRST), None).await;
        let grant = granted(ledger, &hint, LEASE).await;
        let again = Next::Attempt { attempt: 2, due: grant.at };
        let hint = written(ledger, ends(&hint, &grant, again, Verdict::Retried, None)).await;
        let hint = runs(ledger, &hint, Some(&FIRST), Some(&SECOND_TIME)).await;
        assert_eq!(told(ledger, "a").await.as_deref(), Some(&SECOND_TIME[..]));
        runs(ledger, &hint, Some(&SECOND_TIME), None).await;
    }
}

/// What a run leaves to the next: what it has learned, and what it hands on.
type Left<'a> = (Option<&'a [u8]>, Option<&'a str>);

#[tokio::test]
async fn what_was_learned_and_what_is_handed_on_leave_each_other_alone() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let runs = async |hint: Hint, known: Left<'_>, leaves: Left<'_>| {
            let grant = granted(ledger, &hint, LEASE).await;
            assert_eq!((grant.learned.as_deref(), grant.carry.as_deref()), known);
            let request = ends(&hint, &grant, tick(grant.at), Verdict::Done, leaves.0);
            written(ledger, FinishRequest { carry: leaves.1.map(Into::into), ..request }).await
        };
        let (a, b) = (begun(ledger, "a").await, begun(ledger, "b").await);
        let [nothing, learned, carry]: [Left<'_>; 3] = [(None, None), (Some(&FIRST), None), (None, Some("1"))];
        // Both together, so that PostgreSQL's ledger may write them in one statement.
        let (a, b) = tokio::join!(runs(a, nothing, learned), runs(b, nothing, carry));
        let (a, b) = tokio::join!(runs(a, learned, carry), runs(b, carry, learned));
        let both = (learned.0, carry.1);
        tokio::join!(runs(a, both, nothing), runs(b, both, nothing));
    }
}

#[tokio::test]
async fn a_manual_run_learns_for_its_chain() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hint = begun(ledger, "a").await;
        let rotation = runs(ledger, &hint, None, Some(&FIRST)).await;
        for (known, learned) in [(FIRST.as_slice(), None), (&FIRST, Some(SECOND_TIME.as_slice()))] {
            let run = manual(ledger, "a", Manual::default()).await;
            let grant = granted(ledger, &run, LEASE).await;
            assert_eq!((grant.once, grant.learned.as_deref()), (true, Some(known)));
            let over = ends(&run, &grant, Next::End, Verdict::Done, learned);
            assert_eq!(ledger.finish(over).await.unwrap(), applied(None));
            assert_eq!(told(ledger, "a").await.as_deref(), learned.or(Some(known)));
        }
        runs(ledger, &rotation, Some(&SECOND_TIME), None).await;
        // One without a chain has nothing to go on from, whatever the one before it has learned.
        for _ in 0..2 {
            let alone = manual(ledger, "b", Manual::default()).await;
            let grant = granted(ledger, &alone, LEASE).await;
            assert_eq!(grant.learned, None);
            let over = ends(&alone, &grant, Next::End, Verdict::Done, Some(&FIRST));
            assert_eq!(ledger.finish(over).await.unwrap(), applied(None));
        }
    }
}

#[tokio::test]
async fn what_was_learned_outlives_a_recovery_and_no_chain_that_begins_anew() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hint = begun(ledger, "a").await;
        let before = runs(ledger, &hint, None, Some(&FIRST)).await;
        assert_eq!(ledger.order_chains(which("a"), ChainOrder::RecoverAll).await.unwrap(), 1);
        assert_eq!(told(ledger, "a").await.as_deref(), Some(&FIRST[..]));
        let hint = ledger.chains("sync".into(), "a".into()).await.unwrap().remove(0).hint;
        assert!(hint.epoch > before.epoch);
        let hint = runs(ledger, &hint, Some(&FIRST), Some(&SECOND_TIME)).await;
        ledger.order_chains(which("a"), ChainOrder::Retire).await.unwrap();
        assert_eq!(told(ledger, "a").await.as_deref(), Some(&SECOND_TIME[..]));
        let anew = NewChain { revive: true, ..chain("a", ledger.now()) };
        let Enrolled::Created(anew) = ledger.enroll(vec![anew]).await.unwrap().remove(0) else { panic!("it stays") };
        assert!(anew.epoch > hint.epoch);
        assert_eq!(told(ledger, "a").await, None);
        runs(ledger, &anew, None, None).await;
    }
}

#[tokio::test]
async fn the_member_of_a_batch_learns_nothing_and_its_chain_keeps_what_it_has() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hint = begun(ledger, "a").await;
        let hint = runs(ledger, &hint, None, Some(&FIRST)).await;
        let grant = granted(ledger, &hint, LEASE).await;
        let of = |key: &str| Member {
            kind: "part".into(),
            key: key.into(),
            queue: "work".into(),
            payload: "{}".into(),
            due: grant.at,
            depth: 0,
        };
        let gather = ends(&hint, &grant, Next::Gather, Verdict::FannedOut, None);
        let mut member = written(ledger, FinishRequest { members: vec![of("1")], ..gather }).await;
        for attempt in 1..=2 {
            let grant = granted(ledger, &member, LEASE).await;
            assert_eq!((grant.learned.as_ref(), member.attempt), (None, attempt));
            let (next, verdict) = match attempt {
                1 => (Next::Attempt { attempt: 2, due: grant.at }, Verdict::Retried),
                _ => (Next::End, Verdict::Done),
            };
            member = written(ledger, ends(&member, &grant, next, verdict, Some(&SECOND_TIME))).await;
        }
        let over = member;
        assert_eq!(over.epoch, hint.epoch);
        let grant = granted(ledger, &over, LEASE).await;
        assert_eq!(grant.learned.as_deref(), Some(&FIRST[..]));
        let request = ends(&over, &grant, tick(grant.at), Verdict::Done, Some(&SECOND_TIME));
        let next = written(ledger, FinishRequest { from_batch: true, ..request }).await;
        runs(ledger, &next, Some(&SECOND_TIME), None).await;
    }
}
