//! Who holds a tick: claims, the sessions that they hang on, and what a run asks for when it ends.

use roundelay::ledger::{Holder, OrphanFilter};

use super::*;

#[tokio::test]
async fn a_claim_holds_as_long_as_its_session() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (a, b) = (begun(ledger, "a").await, begun(ledger, "b").await);
        let (mine, yours) = (session(ledger, LEASE).await, session(ledger, LEASE).await);
        let of = async |session, hint: &Hint| {
            let request = ClaimRequest { session, ..ask(ledger, hint, Duration::ZERO).await };
            ledger.claim(request).await.unwrap()
        };
        let Claim::Granted(first) = of(mine, &a).await else { panic!("not granted") };
        let Claim::Granted(other) = of(mine, &b).await else { panic!("not granted") };
        assert_eq!((of(yours, &a).await, of(mine, &a).await), (Claim::Runs, Claim::Runs));
        let held = |hint: &Hint, fence| ClaimId { epoch: hint.epoch, fence };
        let claims = vec![held(&a, first.fence), held(&b, first.fence), held(&b, other.fence)];
        assert_eq!(ledger.hold(claims.clone()).await.unwrap(), [true, false, true]);
        // Each says that it lives; a session ends if it was not heard of since, and only then.
        let looked = ledger.beat(yours, Vec::new()).await.unwrap();
        let seen = looked.others.iter().find(|other| other.session == mine).unwrap().clone();
        assert!(looked.alive && !seen.gone && (seen.worker.as_str(), seen.lease) == ("worker-1", LEASE), "{looked:?}");
        assert!(ledger.beat(mine, Vec::new()).await.unwrap().alive);
        let heard = ledger.beat(yours, vec![(mine, seen.beat)]).await.unwrap();
        let again = heard.others.iter().find(|other| other.session == mine).unwrap().clone();
        assert!(heard.ended.is_empty() && again.beat > seen.beat, "{heard:?}");
        let orphans = async || {
            let kinds = Kinds { all: vec!["sync".into()], recurring: vec!["sync".into()] };
            let now = ledger.now();
            let left = OrphanFilter { until: now + SLACK * 2, late: now - SLACK, unsent: Time::default() };
            let orphans = ledger.orphans("work".into(), kinds, left, 10).await.unwrap();
            let mut orphans: Vec<_> =
                orphans.into_iter().map(|chain| (chain.hint.epoch, chain.claim, chain.holder)).collect();
            orphans.sort_by_key(|orphan| orphan.0);
            orphans
        };
        assert_eq!(orphans().await, []);
        assert_eq!(ledger.beat(yours, vec![(mine, again.beat)]).await.unwrap().ended, [mine]);
        assert!(!ledger.beat(mine, Vec::new()).await.unwrap().alive, "it is over for good");
        let left = [(a.epoch, (mine, first.fence), Holder::Gone), (b.epoch, (mine, other.fence), Holder::Gone)];
        assert_eq!(orphans().await, left);
        // The claims have not been taken over yet, so an end still counts. A claim that is taken over is lost to its
        // former holder.
        assert_eq!(ledger.hold(claims.clone()).await.unwrap(), [true, false, true]);
        finished(ledger, &b, other.fence, tick(ledger.now())).await;
        let Claim::Granted(second) = of(yours, &a).await else { panic!("not taken over") };
        assert!(second.lost);
        assert_eq!(ledger.hold(claims).await.unwrap(), [false, false, false]);
        let records = ledger.attempts(Fence(first.fence.get() - 1), 10).await.unwrap();
        assert_eq!(records[0].verdict.as_deref(), Some("lost"));
        // A worker that knows that the holder is dead takes the chain over.
        let over = ClaimRequest { takeover: true, ..ask(ledger, &a, LEASE).await };
        let Claim::Granted(third) = ledger.claim(over).await.unwrap() else { panic!("not taken over") };
        assert_eq!(ledger.hold(vec![held(&a, second.fence), held(&a, third.fence)]).await.unwrap(), [false, true]);
        finished(ledger, &a, third.fence, tick(ledger.now())).await;
        assert_eq!(ledger.hold(vec![held(&a, third.fence)]).await.unwrap(), [false], "finished");
        ledger.end_session(yours).await.unwrap();
        assert!(!ledger.beat(yours, Vec::new()).await.unwrap().alive);
    }
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_made_again_or_given_up() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hint = begun(ledger, "a").await;
        let (mine, yours) = (session(ledger, LEASE).await, session(ledger, LEASE).await);
        let of = async |session, again| {
            let request = ClaimRequest { session, again, ..ask(ledger, &hint, Duration::ZERO).await };
            ledger.claim(request).await.unwrap()
        };
        let Claim::Granted(unheard) = of(mine, false).await else { panic!("not granted") };
        assert_eq!((of(mine, false).await, of(yours, true).await), (Claim::Runs, Claim::Runs));
        let Claim::Granted(again) = of(mine, true).await else { panic!("not granted") };
        assert!(again.fence > unheard.fence && again.lost);
        let held = |fence| vec![ClaimId { epoch: hint.epoch, fence }];
        // Only by who holds it, and only that claim.
        for (session, fence) in [(yours, again.fence), (mine, unheard.fence)] {
            ledger.give_up(session, held(fence)).await.unwrap();
            assert_eq!(ledger.hold(held(again.fence)).await.unwrap(), [true]);
        }
        ledger.give_up(mine, held(again.fence)).await.unwrap();
        assert_eq!(ledger.hold(held(again.fence)).await.unwrap(), [false]);
        let records = ledger.attempts(Fence(unheard.fence.get() - 1), 10).await.unwrap();
        assert_eq!(records.iter().map(|record| record.verdict.as_deref()).collect::<Vec<_>>(), [Some("lost"); 2]);
        assert!(matches!(of(yours, false).await, Claim::Granted(_)));
    }
}

#[tokio::test]
async fn requests_of_a_run_are_accepted_with_its_end_and_not_without() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hint = begun(ledger, "a").await;
        let grant = granted(ledger, &hint, LEASE).await;
        let spawned = || vec![SpawnedJob { id: "s-1".into(), body: b"1".to_vec() }];
        let failed = || vec![FailedItem::new("page 7", "HTTP 404")];
        let next = tick(ledger.now());
        let finish = |fence| FinishRequest {
            spawned: spawned(),
            failed: failed(),
            ..end(&hint, fence, ledger.now(), next, Verdict::Done)
        };
        assert_eq!(ledger.finish(finish(Fence(grant.fence.get() + 1))).await.unwrap(), Finish::Fenced);
        assert!(ledger.kept_jobs(0, 10).await.unwrap().is_empty(), "a fenced run asks for nothing");
        assert!(matches!(ledger.finish(finish(grant.fence)).await.unwrap(), Finish::Applied(_)));
        ledger.accept("sync".into(), "a".into(), spawned(), Vec::new(), failed()).await.unwrap();
        let kept = ledger.kept_jobs(0, 10).await.unwrap();
        assert_eq!(kept.iter().map(|job| job.body.as_slice()).collect::<Vec<_>>(), [b"1"], "once, by its id");
        let failures = ledger.failures(10).await.unwrap();
        assert_eq!(failures.len(), 1);
        let first = &failures[0];
        assert_eq!((first.key.as_str(), first.item.as_str(), first.times), ("a", "page 7", 2));
    }
}

#[tokio::test]
async fn the_record_of_a_holder_that_died_on_a_chain_that_ended_ends_too() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hint = begun(ledger, "a").await;
        granted(ledger, &hint, Duration::ZERO).await;
        ledger.order_chains(which("a"), ChainOrder::Retire).await.unwrap();
        ledger.end_left(10).await.unwrap();
        let records = ledger.attempts(Fence::NONE, 10).await.unwrap();
        assert_eq!(records.iter().map(|r| r.verdict.as_deref()).collect::<Vec<_>>(), [Some("lost")]);
        assert!(records[0].finished.is_some());
    }
}

#[tokio::test]
async fn a_session_is_told_its_claims_on_chains_that_do_not_tick() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (mine, yours) = (session(ledger, LEASE).await, session(ledger, LEASE).await);
        let mut fences = Vec::new();
        for (key, session) in [("ticks", mine), ("paused", mine), ("retired", mine), ("yours", yours)] {
            let hint = begun(ledger, key).await;
            let request = ClaimRequest { session, ..ask(ledger, &hint, Duration::ZERO).await };
            let Claim::Granted(grant) = ledger.claim(request).await.unwrap() else { panic!("not granted") };
            fences.push(grant.fence);
        }
        for (key, order) in
            [("paused", ChainOrder::Pause), ("retired", ChainOrder::Retire), ("yours", ChainOrder::Retire)]
        {
            ledger.order_chains(which(key), order).await.unwrap();
        }
        let left = async |session, limit| {
            let mut left = ledger.left_with(session, limit).await.unwrap();
            left.sort_by_key(|claim| claim.fence);
            left.iter().map(|claim| claim.fence).collect::<Vec<_>>()
        };
        assert_eq!(left(mine, 10).await, fences[1..3]);
        assert_eq!((left(mine, 1).await.len(), left(yours, 10).await), (1, vec![fences[3]]));
        let claims = ledger.left_with(mine, 10).await.unwrap();
        ledger.give_up(mine, claims).await.unwrap();
        assert_eq!(left(mine, 10).await, [0; 0]);
        let records = ledger.attempts(Fence::NONE, 10).await.unwrap();
        let open: Vec<Fence> = records.iter().filter(|record| record.verdict.is_none()).map(|r| r.fence).collect();
        assert_eq!(open, [fences[0], fences[3]]);
    }
}

/// Two workers with the same messages: each tick is granted to one of them.
#[tokio::test(flavor = "multi_thread")]
async fn two_workers_of_one_ledger_share_its_chains() {
    for opened in shared().await {
        let workers = [opened.ledger.clone(), opened.again().await];
        let mut hints = Vec::new();
        for n in 0..50 {
            hints.push(begun(&*opened.ledger, &n.to_string()).await);
        }
        let mut runs = JoinSet::new();
        for hint in hints {
            for worker in workers.clone() {
                let hint = hint.clone();
                runs.spawn(async move {
                    match worker.claim(ask(&*worker, &hint, LEASE).await).await.unwrap() {
                        Claim::Granted(grant) => {
                            let due = grant.at + LEASE;
                            finished(&*worker, &hint, grant.fence, tick(due)).await;
                            Some((hint.epoch, grant.fence))
                        }
                        Claim::Runs | Claim::Stale(_) => None,
                        other => panic!("{other:?}"),
                    }
                });
            }
        }
        let granted: Vec<(Epoch, Fence)> = runs.join_all().await.into_iter().flatten().collect();
        assert_eq!(granted.len(), 50);
        assert_eq!(granted.iter().map(|(epoch, _)| epoch).collect::<BTreeSet<_>>().len(), 50, "each chain once");
        assert_eq!(granted.iter().map(|(_, fence)| fence).collect::<BTreeSet<_>>().len(), 50, "no fence twice");
    }
}
