//! Chains that are paused, retired, recovered, or begun anew, and entities that left their roster.

use super::*;

#[tokio::test]
async fn a_paused_or_retired_chain_is_not_claimed() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (a, b) = (begun(ledger, "a").await, begun(ledger, "b").await);
        let grant = granted(ledger, &a, LEASE).await;
        assert_eq!(ledger.order_chains(which("a"), ChainOrder::Pause).await.unwrap(), 1);
        assert_eq!(ledger.order_chains(which("a"), ChainOrder::Pause).await.unwrap(), 0, "it was");
        // What ran goes on and counts, and is followed by nothing until the chain is resumed.
        let due = ledger.now();
        let done = end(&a, grant.fence, due, tick(due), Verdict::Done);
        assert_eq!(ledger.finish(done).await.unwrap(), applied(None));
        let second = Hint { tick: TickNo(2), due, ..a.clone() };
        assert_eq!(ledger.claim(ask(ledger, &second, LEASE).await).await.unwrap(), Claim::Idle);
        assert!(
            ledger
                .overdue("work".into(), recurring("sync"), due + SLACK * 2, None, 10)
                .await
                .unwrap()
                .iter()
                .all(|c| c.hint.key == "b")
        );
        assert_eq!(ledger.order_chains(which("a"), ChainOrder::Resume).await.unwrap(), 1);
        let overdue = ledger.overdue("work".into(), recurring("sync"), ledger.now(), None, 10).await.unwrap();
        assert_eq!(overdue.iter().map(|c| (c.hint.clone(), c.sent)).collect::<Vec<_>>(), [(second.clone(), false)]);
        granted(ledger, &second, LEASE).await;

        let everything = ChainFilter { kind: Some("sync".into()), key: None, ..ChainFilter::default() };
        assert_eq!(ledger.order_chains(everything.clone(), ChainOrder::Retire).await.unwrap(), 2);
        assert_eq!(ledger.claim(ask(ledger, &b, LEASE).await).await.unwrap(), Claim::Idle);
        for order in
            [ChainOrder::Resume, ChainOrder::Pause, ChainOrder::Recover, ChainOrder::RecoverAll, ChainOrder::Retire]
        {
            assert_eq!(ledger.order_chains(everything.clone(), order).await.unwrap(), 0, "{order:?}: they have ended");
        }
    }
}

#[tokio::test]
async fn an_order_for_all_chains_leaves_the_engine_s_own_alone() {
    for opened in shared().await {
        let ledger = &*opened.ledger;
        let own = format!("{}history", roundelay::config::INTERNAL);
        begun(ledger, "a").await;
        ledger.enroll(vec![NewChain { kind: own.clone(), ..chain("attempts", ledger.now()) }]).await.unwrap();
        let all = || ChainFilter { like: Some("a*".into()), ..ChainFilter::default() };
        let named = || ChainFilter { kind: Some(own.clone()), ..ChainFilter::default() };
        let ordered = async |which: ChainFilter, order| {
            let matching = ledger.matching(which.clone(), order).await.unwrap();
            assert_eq!(ledger.order_chains(which, order).await.unwrap(), matching, "{order:?}");
            matching
        };
        assert_eq!(ordered(all(), ChainOrder::Pause).await, 1);
        assert_eq!(ordered(named(), ChainOrder::Pause).await, 1, "its kind is named");
        assert_eq!(ordered(all(), ChainOrder::Resume).await, 2);
        assert_eq!(ordered(all(), ChainOrder::Retire).await, 1);
        assert_eq!(
            ordered(all(), ChainOrder::RecoverAll).await,
            1,
            "after an older copy was restored they begin anew, too"
        );
        assert_eq!(ordered(named(), ChainOrder::Retire).await, 1);
    }
}

#[tokio::test]
async fn a_chain_that_begins_anew_has_nothing_to_do_with_what_it_was() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let old = begun(ledger, "a").await;
        let grant = granted(ledger, &old, LEASE).await;
        ledger.order_chains(which("a"), ChainOrder::Retire).await.unwrap();
        let now = ledger.now();
        assert_eq!(ledger.enroll(vec![chain("a", now)]).await.unwrap(), [Enrolled::Retired]);
        let anew = NewChain { revive: true, queue: "other".into(), ..chain("a", now) };
        let Enrolled::Created(new) = ledger.enroll(vec![anew.clone()]).await.unwrap().remove(0) else { panic!() };
        assert!(new.epoch > old.epoch && (new.tick, new.attempt, new.queue.as_str()) == (TickNo(1), 1, "other"));
        assert_eq!(ledger.enroll(vec![anew]).await.unwrap(), [Enrolled::Unchanged], "it lives");
        // The old incarnation's holder and its messages mean nothing any more.
        assert_eq!(ledger.attempts(Fence::NONE, 10).await.unwrap()[0].verdict.as_deref(), Some("lost"));
        let late = end(&old, grant.fence, now, tick(now), Verdict::Done);
        assert_eq!(ledger.finish(late).await.unwrap(), Finish::Fenced);
        assert_eq!(ledger.claim(ask(ledger, &old, LEASE).await).await.unwrap(), Claim::Idle);
        let second = granted(ledger, &new, LEASE).await;
        assert!(second.fence > grant.fence);
    }
}

#[tokio::test]
async fn an_entity_that_left_the_roster_is_remembered_until_it_begins_anew() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let [a, b, c] = [begun(ledger, "a").await, begun(ledger, "b").await, begun(ledger, "c").await];
        let once = NewChain { once: true, ..chain("b", ledger.now()) };
        let Enrolled::Created(extra) = ledger.enroll(vec![once]).await.unwrap().remove(0) else { panic!() };
        ledger.order_chains(which("c"), ChainOrder::Retire).await.unwrap();
        let enlisted = async |after: &str, limit| {
            let found = ledger.enlisted("sync".into(), after.into(), limit).await.unwrap();
            found.into_iter().map(|m| (m.key, m.epoch, m.state)).collect::<Vec<_>>()
        };
        let active = |hint: &Hint| (hint.key.clone(), hint.epoch, ChainState::Active);
        assert_eq!(enlisted("", 2).await, [active(&a), active(&b)], "without the single tick beside b");
        assert_eq!(enlisted("b", 2).await, [("c".to_owned(), c.epoch, ChainState::Retired)]);
        assert_eq!(ledger.enlisted("other".into(), String::new(), 9).await.unwrap(), []);

        assert_eq!(
            ledger.depart(vec![b.epoch, c.epoch, Epoch(c.epoch.get() + 99)]).await.unwrap(),
            1,
            "c had ended before"
        );
        assert_eq!(ledger.claim(ask(ledger, &b, LEASE).await).await.unwrap(), Claim::Idle);
        assert_eq!(ledger.claim(ask(ledger, &extra, LEASE).await).await.unwrap(), Claim::Idle, "nor the single tick");
        let departed = async || {
            let keys = ["a", "b", "c", "x"].map(String::from).into();
            ledger.departed("sync".into(), keys).await.unwrap()
        };
        assert_eq!(departed().await, ["b"]);
        assert_eq!(ledger.depart(vec![b.epoch]).await.unwrap(), 0);
        let revive = || NewChain { revive: true, ..chain("b", ledger.now()) };
        assert!(matches!(ledger.enroll(vec![revive()]).await.unwrap()[..], [Enrolled::Created(_)]));
        assert_eq!(departed().await, [] as [&str; 0]);
        // Ended again, and for another reason: that is not the roster's to undo.
        ledger.order_chains(which("b"), ChainOrder::Retire).await.unwrap();
        assert_eq!(departed().await, [] as [&str; 0]);
    }
}

#[tokio::test]
async fn a_message_from_the_future_quarantines_its_chain_until_it_is_recovered() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (a, b) = (begun(ledger, "a").await, begun(ledger, "b").await);
        let ahead = Hint { tick: TickNo(5), ..a.clone() };
        assert_eq!(ledger.claim(ask(ledger, &ahead, LEASE).await).await.unwrap(), Claim::Future);
        assert_eq!(
            ledger.claim(ask(ledger, &a, LEASE).await).await.unwrap(),
            Claim::Idle,
            "nothing runs until somebody decides"
        );
        assert_eq!(ledger.census(SLACK).await.unwrap().quarantined, 1);
        let late = ledger.late(ledger.now() - SLACK, Vec::new(), 10).await.unwrap();
        assert_eq!(
            late.iter().map(|c| (c.hint.key.as_str(), c.state)).collect::<Vec<_>>(),
            [("a", ChainState::Quarantined)]
        );
        let all = ChainFilter::default();
        assert_eq!(ledger.order_chains(all.clone(), ChainOrder::Recover).await.unwrap(), 1, "b is well");
        let view = ledger.chains("sync".into(), "a".into()).await.unwrap().remove(0);
        assert_eq!((view.state, view.sent), (ChainState::Active, false));
        assert!(view.hint.epoch > b.epoch);
        assert_eq!(ledger.claim(ask(ledger, &ahead, LEASE).await).await.unwrap(), Claim::Idle, "the old time is over");
        granted(ledger, &view.hint, LEASE).await;

        // After a restore that is known of, all of them; who is paused stays so.
        ledger.order_chains(which("a"), ChainOrder::Pause).await.unwrap();
        assert_eq!(ledger.order_chains(all, ChainOrder::RecoverAll).await.unwrap(), 2);
        let state = async |key: &str| ledger.chains("sync".into(), key.into()).await.unwrap().remove(0);
        assert_eq!(state("a").await.state, ChainState::Paused);
        let b_now = state("b").await;
        assert!(b_now.hint.epoch > view.hint.epoch && b_now.state == ChainState::Active);
        assert_eq!(ledger.claim(ask(ledger, &b, LEASE).await).await.unwrap(), Claim::Idle);
        let lost = ledger.attempts(Fence::NONE, 10).await.unwrap();
        assert_eq!(lost[0].verdict.as_deref(), Some("lost"), "it ran while the epoch ended");
        let unknown = Hint { key: "never seen".into(), ..b };
        assert_eq!(
            ledger
                .claim(ask(ledger, &Hint { epoch: Epoch(b_now.hint.epoch.get() + 7), ..unknown }, LEASE).await)
                .await
                .unwrap(),
            Claim::Future
        );
    }
}
