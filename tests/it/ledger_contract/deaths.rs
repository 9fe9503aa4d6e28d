//! Workers that die over a run, and workers that were taken for dead and come back.

use roundelay::deaths::{Hands, SET_ASIDE};
use roundelay::ids::{Epoch, Fence};

use super::*;

/// A claim with a lease of zero: its worker counts as dead at the next claim.
async fn dies(ledger: &dyn Ledger, hint: &Hint) -> Grant {
    granted(ledger, hint, Duration::ZERO).await
}

async fn asked(ledger: &dyn Ledger, hint: &Hint, prepared: u32) -> Claim {
    let session = session(ledger, LEASE).await;
    ledger.claim(ClaimRequest { prepared, session, ..ask(ledger, hint, Duration::ZERO).await }).await.unwrap()
}

#[tokio::test]
async fn a_tick_that_three_workers_die_over_is_set_aside_and_begins_at_nothing_when_it_is_let_go_on() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (hint, other) = (begun(ledger, "a").await, begun(ledger, "b").await);
        for deaths in 1..=2 {
            dies(ledger, &hint).await;
            assert_eq!(asked(ledger, &hint, 0).await, Claim::Suspected(deaths));
            assert_eq!(asked(ledger, &hint, deaths - 1).await, Claim::Suspected(deaths), "another since");
        }
        dies(ledger, &hint).await;
        dies(ledger, &other).await;
        assert_eq!(asked(ledger, &hint, 9).await, Claim::SetAside);
        assert_eq!(asked(ledger, &hint, 9).await, Claim::Idle, "nobody runs it");
        assert!(matches!(asked(ledger, &other, 1).await, Claim::Granted(_)), "the other goes on");

        let late = ledger.late(ledger.now(), Vec::new(), 9).await.unwrap();
        let late: Vec<_> = late.iter().map(|late| (&*late.hint.key, late.state, late.reason.as_deref())).collect();
        assert_eq!(late, [("a", ChainState::Quarantined, Some(SET_ASIDE))]);
        let failed = ledger.failures_of("sync".into(), "a".into()).await.unwrap();
        assert_eq!(failed[0].reason, SET_ASIDE);
        assert_eq!(ledger.census(SLACK).await.unwrap().quarantined, 1);
        let of_a = |records: Vec<roundelay::ledger::AttemptRecord>| {
            records.into_iter().filter(|record| record.epoch == hint.epoch).collect::<Vec<_>>()
        };
        let records = of_a(ledger.attempts(Fence::NONE, 9).await.unwrap());
        let told: Vec<_> = records.iter().map(|record| (record.verdict.as_deref(), record.reason.as_deref())).collect();
        assert_eq!(told, [(Some("lost"), None), (Some("lost"), None), (Some("lost"), Some(SET_ASIDE))]);
        // The worker that was frozen, and comes back too late.
        let late = end(&hint, records[2].fence, ledger.now(), tick(ledger.now()), Verdict::Done);
        assert_eq!(ledger.finish(late).await.unwrap(), Finish::Fenced);
        let records = of_a(ledger.attempts(Fence::NONE, 9).await.unwrap());
        assert_eq!(records[2].reason.as_deref(), Some(SET_ASIDE), "it stays known why");

        let which = ChainFilter { kind: Some("sync".into()), key: Some("a".into()), ..ChainFilter::default() };
        assert_eq!(ledger.order_chains(which, ChainOrder::Recover).await.unwrap(), 1);
        let anew = ledger.messages(vec!["work".into()], recurring("sync"), Epoch::NONE, 9).await.unwrap();
        let anew = anew.into_iter().find(|hint| hint.key == "a").unwrap();
        assert!(anew.epoch > hint.epoch);
        let Claim::Granted(grant) = asked(ledger, &anew, 0).await else { panic!("it is not let go on") };
        finished(ledger, &anew, grant.fence, tick(ledger.now())).await;
    }
}

#[tokio::test]
async fn only_deaths_in_a_row_count() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        // Something was heard of it in between: it was put off when its worker stopped in order.
        let hint = begun(ledger, "a").await;
        dies(ledger, &hint).await;
        dies(ledger, &hint).await;
        let grant = granted(ledger, &hint, LEASE).await;
        let now = ledger.now();
        let hint = written(ledger, end(&hint, grant.fence, now, Next::Snooze { due: now }, Verdict::Snoozed)).await;
        dies(ledger, &hint).await;
        assert_eq!(asked(ledger, &hint, 0).await, Claim::Suspected(1));

        // One was frozen, and has told its end.
        let hint = begun(ledger, "b").await;
        let frozen = dies(ledger, &hint).await;
        dies(ledger, &hint).await;
        assert_eq!(asked(ledger, &hint, 0).await, Claim::Suspected(2));
        let late = end(&hint, frozen.fence, now, tick(now), Verdict::Done);
        assert_eq!(ledger.finish(late).await.unwrap(), Finish::Fenced);
        assert_eq!(asked(ledger, &hint, 0).await, Claim::Suspected(1));

        // No worker has run the tick: the answer to the claim was lost.
        let hint = begun(ledger, "c").await;
        for _ in 0..3 {
            let session = session(ledger, LEASE).await;
            let request = ClaimRequest { session, ..ask(ledger, &hint, Duration::ZERO).await };
            ledger.claim(request.clone()).await.unwrap();
            let Claim::Granted(grant) = ledger.claim(ClaimRequest { again: true, ..request }).await.unwrap() else {
                panic!("not made again")
            };
            ledger.give_up(session, vec![ClaimId { epoch: hint.epoch, fence: grant.fence }]).await.unwrap();
        }
        dies(ledger, &hint).await;
        assert_eq!(asked(ledger, &hint, 0).await, Claim::Suspected(1));
    }
}

#[tokio::test]
async fn catch_up_finds_a_chain_whose_next_worker_dies_too_however_far_it_has_backed_off() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hint = begun(ledger, "a").await;
        dies(ledger, &hint).await;
        let view = async || ledger.chains("sync".into(), "a".into()).await.unwrap().remove(0);
        let look = LookAgain {
            epoch: hint.epoch,
            from: view().await.watch_at,
            to: ledger.now() + SLACK * 100,
            looks: 7,
            expected: None,
        };
        assert_eq!(ledger.look_again(vec![look]).await.unwrap(), [true]);
        granted(ledger, &hint, LEASE).await;
        let after = view().await;
        assert!(after.watch_at <= ledger.now() + SECOND * 10, "{after:?}");
        assert_eq!(after.looks, 0);
    }
}

#[tokio::test]
async fn a_tick_that_was_taken_over_is_quarantined_only_when_its_last_worker_has_surely_died() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hint = begun(ledger, "a").await;
        let over = async |prepared| {
            let session = session(ledger, LEASE).await;
            let base = ask(ledger, &hint, Duration::ZERO).await;
            (session, ledger.claim(ClaimRequest { takeover: true, prepared, session, ..base }).await.unwrap())
        };
        let (_, first) = over(0).await;
        assert!(matches!(first, Claim::Granted(_)));
        assert_eq!(over(0).await.1, Claim::Suspected(1));
        assert!(matches!(over(1).await.1, Claim::Granted(_)));
        let (last, third) = over(2).await;
        assert!(matches!(third, Claim::Granted(_)));
        assert_eq!(over(2).await.1, Claim::Runs, "it may be that all three run");
        ledger.end_session(last).await.unwrap();
        assert_eq!(over(2).await.1, Claim::SetAside);
    }
}

#[tokio::test]
async fn a_manual_run_that_three_workers_die_over_ends() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let manual = NewChain { once: true, ..chain("a", ledger.now()) };
        let Enrolled::Created(hint) = ledger.enroll(vec![manual]).await.unwrap().remove(0) else {
            panic!("it was there")
        };
        for _ in 0..3 {
            dies(ledger, &hint).await;
        }
        let Claim::Granted(grant) = asked(ledger, &hint, 0).await else { panic!("nobody can end it") };
        assert_eq!(grant.refused, Some(Refusal::Deaths));
    }
}

#[tokio::test]
async fn the_workers_that_had_a_job_are_known() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (mine, other) = (session(ledger, LEASE).await, session(ledger, LEASE).await);
        let hands = async |session| ledger.hands("job".into(), session).await.unwrap();
        assert_eq!(hands(mine).await, Hands::default());
        for session in [mine, mine, other, 7] {
            ledger.take_in_hand("job".into(), session).await.unwrap();
        }
        ledger.take_in_hand("another".into(), 8).await.unwrap();
        assert_eq!(hands(mine).await, Hands { over: 1, open: 1 });
        assert_eq!(hands(3).await, Hands { over: 1, open: 2 });
        ledger.end_session(other).await.unwrap();
        assert_eq!(hands(mine).await, Hands { over: 2, open: 0 });
        ledger.prune(Time::from_millis(1_000), 9).await.unwrap();
        ledger.out_of_hand("job".into()).await.unwrap();
        assert_eq!(hands(mine).await, Hands::default());
        assert_eq!(ledger.hands("another".into(), mine).await.unwrap(), Hands { over: 1, open: 0 });
        ledger.prune(ledger.now() + SECOND, 9).await.unwrap();
        assert_eq!(ledger.hands("another".into(), mine).await.unwrap(), Hands::default(), "it never came again");
    }
}
