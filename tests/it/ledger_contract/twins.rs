//! The two rows of a chain: its rotation and its manual run, which see each other.

use roundelay::ids::{Epoch, Fence, TickNo};
use roundelay::ledger::{EFFORT, ListFilter};

use super::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn of(if_running: IfRunning) -> Manual {
    Manual { if_running, force: false }
}

async fn is_held(ledger: &dyn Ledger, hint: &Hint) -> bool {
    matches!(ledger.claim(ask(ledger, hint, LEASE).await).await.unwrap(), Claim::Waits { .. })
}

async fn over(ledger: &dyn Ledger, run: &Hint, fence: Fence) {
    let done = end(run, fence, ledger.now(), Next::End, Verdict::Done);
    assert_eq!(ledger.finish(done).await.unwrap(), applied(None));
}

/// Whichever of the two runs, the other waits for it, in the first tick and in those that follow.
async fn wait_for_each_other(ledger: &dyn Ledger, rotation: Hint, run: Hint) {
    let mut rotation = rotation;
    let mut run = run;
    for tick_of in 1..=2 {
        let manual_grant = granted(ledger, &run, LEASE).await;
        assert!(is_held(ledger, &rotation).await, "tick {tick_of}: the rotation starts while the manual run runs");
        over(ledger, &run, manual_grant.fence).await;
        let grant = granted(ledger, &rotation, LEASE).await;
        run = manual(ledger, &rotation.key, of(IfRunning::After)).await;
        assert!(is_held(ledger, &run).await, "tick {tick_of}: the manual run starts while the rotation runs");
        rotation = finished(ledger, &rotation, grant.fence, tick(ledger.now())).await;
    }
}

#[tokio::test]
async fn a_single_tick_beside_the_rotation_is_refused_while_there_is_one() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let rotation = begun(ledger, "a").await;
        let extra = NewChain { once: true, payload: "[7]".into(), ..chain("a", ledger.now()) };
        let Enrolled::Created(first) = ledger.enroll(vec![extra.clone()]).await.unwrap().remove(0) else { panic!() };
        assert_eq!(ledger.enroll(vec![extra.clone()]).await.unwrap(), [Enrolled::Unchanged], "one is pending");
        let grant = granted(ledger, &first, LEASE).await;
        assert_eq!((grant.once, grant.payload.as_str()), (true, "[7]"));
        let held = ledger.claim(ask(ledger, &rotation, LEASE).await).await.unwrap();
        assert!(
            matches!(held, Claim::Waits { until } if until <= ledger.now() + SECOND),
            "the rotation waits: {held:?}"
        );
        let done = end(&first, grant.fence, ledger.now(), Next::End, Verdict::Done);
        assert_eq!(ledger.finish(done).await.unwrap(), applied(None));
        let states: Vec<_> = ledger.chains("sync".into(), "a".into()).await.unwrap();
        assert_eq!(
            states.iter().map(|c| (c.once, c.state)).collect::<Vec<_>>(),
            [(false, ChainState::Active), (true, ChainState::Retired)]
        );
        assert_eq!(ledger.census(SLACK).await.unwrap().retired, 0, "the chain has not ended");
        let Enrolled::Created(second) = ledger.enroll(vec![extra.clone()]).await.unwrap().remove(0) else { panic!() };
        assert_eq!((second.epoch, second.tick), (first.epoch, TickNo(2)), "its record goes on");
        assert_eq!(ledger.claim(ask(ledger, &first, LEASE).await).await.unwrap(), Claim::Stale(Some(second.clone())));
        let grant = granted(ledger, &second, LEASE).await;
        let records = ledger.history(grant.fence, 10).await.unwrap();
        assert_eq!(
            records.iter().map(|record| (record.epoch, record.tick)).collect::<Vec<_>>(),
            [(first.epoch, TickNo(2)), (first.epoch, TickNo(1))]
        );
        // One that was left in the middle is not gone on from.
        ledger.order_chains(which("a"), ChainOrder::Retire).await.unwrap();
        let Enrolled::Created(third) = ledger.enroll(vec![extra]).await.unwrap().remove(0) else { panic!() };
        assert!(third.epoch > second.epoch && third.tick == 1, "{third:?}");
        assert_eq!(ledger.claim(ask(ledger, &second, LEASE).await).await.unwrap(), Claim::Idle);
        granted(ledger, &third, LEASE).await;
    }
}

#[tokio::test]
async fn a_manual_run_is_a_run_of_its_chain() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let rotation = begun(ledger, "a").await;
        let grant = granted(ledger, &rotation, LEASE).await;
        let cooldown = Duration::from_secs(3_600);
        let guard = Guard { cooldown, ..Guard::default() };
        let ask = async |hint: &Hint| ClaimRequest { guard: guard.clone(), ..ask(ledger, hint, LEASE).await };
        let of = |if_running, force| Manual { if_running, force };
        // While the rotation runs: refused, afterwards, or beside it.
        let refused = manual(ledger, "a", Manual::default()).await;
        let Claim::Granted(no) = ledger.claim(ask(&refused).await).await.unwrap() else { panic!() };
        assert_eq!(no.refused, Some(Refusal::Running));
        let skipped = end(&refused, no.fence, ledger.now(), Next::End, Verdict::Skipped);
        assert_eq!(ledger.finish(FinishRequest { ran: false, ..skipped }).await.unwrap(), applied(None));
        let beside = manual(ledger, "a", of(IfRunning::Beside, true)).await;
        let Claim::Granted(yes) = ledger.claim(ask(&beside).await).await.unwrap() else { panic!() };
        assert_eq!((yes.refused, yes.once), (None, true));
        let done = |hint: &Hint, fence| end(hint, fence, ledger.now(), Next::End, Verdict::Done);
        assert_eq!(ledger.finish(done(&beside, yes.fence)).await.unwrap(), applied(None));
        let after = manual(ledger, "a", of(IfRunning::After, false)).await;
        assert!(
            matches!(ledger.claim(ask(&after).await).await.unwrap(), Claim::Waits { .. }),
            "it waits for the rotation"
        );
        let due = ledger.now();
        let next = FinishRequest {
            carry: Some("\"page 2\"".into()),
            ..end(&rotation, grant.fence, due, Next::Tick { nominal: due, due }, Verdict::Done)
        };
        let Finish::Applied(messages) = ledger.finish(next).await.unwrap() else { panic!() };
        let rotation = messages[0].clone();
        let Claim::Waits { until } = ledger.claim(ask(&after).await).await.unwrap() else {
            panic!("and for the cooldown")
        };
        assert!(until > due + cooldown / 2, "{until}");
        ledger.order_chains(which("a"), ChainOrder::Retire).await.unwrap();
        let revived = NewChain { revive: true, ..chain("a", ledger.now()) };
        ledger.enroll(vec![revived]).await.unwrap();
        drop(rotation);
        // What one hands on, the other gets; and both are counted.
        let view = async || ledger.chains("sync".into(), "a".into()).await.unwrap().remove(0);
        let run = manual(ledger, "a", Manual::default()).await;
        let Claim::Granted(grant) = ledger.claim(ask(&run).await).await.unwrap() else { panic!() };
        let handed_on = FinishRequest { carry: Some("\"page 3\"".into()), ..done(&run, grant.fence) };
        assert_eq!(ledger.finish(handed_on).await.unwrap(), applied(None));
        let rotation = view().await;
        assert_eq!((rotation.carry.as_deref(), rotation.last_start), (Some("\"page 3\""), grant.at));
        assert!(rotation.last_finish >= grant.at, "{rotation:?}");
        let Claim::Granted(refused) = ledger.claim(ask(&rotation.hint).await).await.unwrap() else { panic!() };
        assert!(matches!(refused.refused, Some(Refusal::Cooldown { .. })), "the rotation counts it: {refused:?}");
        let again = manual(ledger, "a", of(IfRunning::Refuse, true)).await;
        assert_eq!((again.epoch, again.tick), (run.epoch, run.tick.next()));
        // What a manual run finds out about its entity holds for the chain.
        let due = ledger.now();
        let skipped = end(&rotation.hint, refused.fence, due, Next::Tick { nominal: due, due }, Verdict::Skipped);
        ledger.finish(FinishRequest { ran: false, ..skipped }).await.unwrap();
        let Claim::Granted(grant) = ledger.claim(ask(&again).await).await.unwrap() else { panic!() };
        assert_eq!((grant.refused, grant.carry.as_deref()), (None, Some("\"page 3\"")));
        let gone = end(&again, grant.fence, ledger.now(), Next::End, Verdict::Retired);
        ledger.finish(FinishRequest { reason: Some("no such app".into()), ..gone }).await.unwrap();
        assert_eq!(view().await.state, ChainState::Retired);
    }
}

#[tokio::test]
async fn a_rotation_that_begins_while_a_manual_run_runs_alone_waits_for_it() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let alone = manual(ledger, "a", Manual::default()).await;
        let grant = granted(ledger, &alone, LEASE).await;
        let rotation = begun(ledger, "a").await;
        let waits = ledger.claim(ask(ledger, &rotation, LEASE).await).await.unwrap();
        assert!(matches!(waits, Claim::Waits { .. }), "{waits:?}");
        let done = end(&alone, grant.fence, ledger.now(), Next::End, Verdict::Done);
        assert_eq!(ledger.finish(done).await.unwrap(), applied(None));
        granted(ledger, &rotation, LEASE).await;
    }
}

#[tokio::test]
async fn a_rotation_and_a_manual_run_that_begin_in_one_transaction_wait_for_each_other() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        for (key, manual_first) in [("a", false), ("b", true)] {
            let mut both = vec![chain(key, ledger.now()), NewChain { once: true, ..chain(key, ledger.now()) }];
            if manual_first {
                both.reverse();
            }
            let begun = ledger.enroll(both).await.unwrap();
            let [Enrolled::Created(first), Enrolled::Created(second)] = &begun[..] else { panic!("{begun:?}") };
            let (rotation, run) = if manual_first { (second, first) } else { (first, second) };
            wait_for_each_other(ledger, rotation.clone(), run.clone()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_and_a_manual_run_that_two_workers_begin_at_once_wait_for_each_other() {
    for opened in shared().await {
        let other = opened.again().await;
        for n in 0..10 {
            let key = n.to_string();
            let (rotation, run) = tokio::join!(begun(&*opened.ledger, &key), manual(&*other, &key, Manual::default()));
            wait_for_each_other(&*opened.ledger, rotation, run).await;
        }
    }
}

/// Also where the rotation runs in its first tick before the manual run is claimed.
#[tokio::test]
async fn a_manual_run_that_begins_with_a_rotation_is_refused_while_that_runs() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let both = vec![NewChain { once: true, ..chain("a", ledger.now()) }, chain("a", ledger.now())];
        let begun = ledger.enroll(both).await.unwrap();
        let [Enrolled::Created(run), Enrolled::Created(rotation)] = &begun[..] else { panic!("{begun:?}") };
        granted(ledger, rotation, LEASE).await;
        assert_eq!(granted(ledger, run, LEASE).await.refused, Some(Refusal::Running));
    }
}

#[tokio::test]
async fn a_manual_run_that_has_not_started_ends_with_its_chain() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let gone = async |rotation: &Hint, fence| {
            let retire = end(rotation, fence, ledger.now(), Next::End, Verdict::Retired);
            assert_eq!(ledger.finish(retire).await.unwrap(), applied(None));
        };
        // It waits for the rotation, which finds out that the entity is gone.
        let rotation = begun(ledger, "a").await;
        let grant = granted(ledger, &rotation, LEASE).await;
        let run = manual(ledger, "a", Manual { if_running: IfRunning::After, force: true }).await;
        assert!(is_held(ledger, &run).await);
        gone(&rotation, grant.fence).await;
        let refused = granted(ledger, &run, LEASE).await;
        assert_eq!(refused.refused, Some(Refusal::Ended));
        // A worker that dies before it has written that leaves nothing that could start.
        let over = ClaimRequest { takeover: true, ..ask(ledger, &run, LEASE).await };
        let Claim::Granted(again) = ledger.claim(over).await.unwrap() else { panic!("it hangs") };
        assert_eq!(again.refused, Some(Refusal::Ended));
        let skipped = end(&run, again.fence, ledger.now(), Next::End, Verdict::Skipped);
        assert_eq!(ledger.finish(FinishRequest { ran: false, ..skipped }).await.unwrap(), applied(None));
        let records = ledger.attempts(refused.fence, 10).await.unwrap();
        assert_eq!(records.iter().map(|record| record.verdict.as_deref()).collect::<Vec<_>>(), [Some("skipped")]);
        let states = ledger.chains("sync".into(), "a".into()).await.unwrap();
        assert!(states.iter().all(|chain| chain.state == ChainState::Retired), "{states:?}");
        let later = ledger.now() + HOUR;
        assert_eq!(
            ledger.overdue("work".into(), recurring("sync"), later, None, 10).await.unwrap(),
            [],
            "nothing is left"
        );

        // What has started goes on: another attempt, and a run that is taken over.
        for (key, dies) in [("b", false), ("c", true)] {
            let rotation = begun(ledger, key).await;
            let grant = granted(ledger, &rotation, LEASE).await;
            let mut run = manual(ledger, key, of(IfRunning::Beside)).await;
            let first = granted(ledger, &run, if dies { Duration::ZERO } else { LEASE }).await;
            if !dies {
                let due = ledger.now();
                let retry = Next::Attempt { attempt: 2, due };
                run = written(ledger, end(&run, first.fence, due, retry, Verdict::Retried)).await;
            }
            gone(&rotation, grant.fence).await;
            let second = granted(ledger, &run, LEASE).await;
            assert_eq!((second.refused, second.lost), (None, dies), "{key}");
        }
        // And one of an entity that has no chain waits for none.
        let alone = manual(ledger, "d", Manual::default()).await;
        assert_eq!(granted(ledger, &alone, LEASE).await.refused, None);
    }
}

#[tokio::test]
async fn a_chain_that_waits_for_its_other_row_is_not_overdue() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        let begun = async |key: &str, ago| match ledger.enroll(vec![chain(key, now - ago)]).await.unwrap().remove(0) {
            Enrolled::Created(hint) => hint,
            other => panic!("{other:?}"),
        };
        let late = async || -> BTreeSet<Epoch> {
            let late = ledger.late(ledger.now() + SLACK, Vec::new(), 100).await.unwrap();
            late.iter().map(|late| late.hint.epoch).collect()
        };
        let counted = async || {
            let census = ledger.census(Duration::ZERO).await.unwrap();
            let queue = census.queues.iter().find(|queue| queue.queue == "work").unwrap();
            (queue.due, queue.overdue, census.oldest_due())
        };
        let lost = begun("lost", HOUR).await;
        let waits = begun("waits", HOUR * 2).await;
        let run = manual(ledger, "waits", Manual::default()).await;
        assert_eq!(late().await, [lost.epoch, waits.epoch, run.epoch].into(), "as yet they wait for a worker");
        let grant = granted(ledger, &run, LEASE).await;
        assert!(is_held(ledger, &waits).await);
        assert_eq!(late().await, [lost.epoch].into());
        assert_eq!(counted().await, (2, 1, Some(lost.due)));
        // Lists and orders go by the same.
        let which = ChainFilter { late_before: Some(ledger.now()), ..ChainFilter::default() };
        let filter = ListFilter { which: which.clone(), condition: None };
        let listed = ledger.list(filter.clone(), None, 10).await.unwrap();
        assert_eq!(listed.iter().map(|chain| chain.hint.epoch).collect::<Vec<_>>(), [lost.epoch]);
        let found = ledger.search(filter, None, 10, EFFORT).await.unwrap().found;
        assert_eq!(found.iter().map(|chain| chain.hint.epoch).collect::<Vec<_>>(), [lost.epoch]);
        assert_eq!(ledger.matching(which.clone(), ChainOrder::Pause).await.unwrap(), 1);
        assert_eq!(ledger.order_chains(which.clone(), ChainOrder::Pause).await.unwrap(), 1);
        assert_eq!(
            ledger
                .order_chains(ChainFilter { key: Some("lost".into()), ..ChainFilter::default() }, ChainOrder::Resume)
                .await
                .unwrap(),
            1
        );
        // When the run has ended it waits for nothing any more.
        over(ledger, &run, grant.fence).await;
        assert_eq!(late().await, [lost.epoch, waits.epoch].into());
        assert_eq!(counted().await, (2, 2, Some(waits.due)));
        // Nor does it wait for a run beside which it may start.
        let both = begun("both", HOUR).await;
        let beside = manual(ledger, "both", of(IfRunning::Beside)).await;
        granted(ledger, &beside, LEASE).await;
        assert_eq!(late().await, [lost.epoch, waits.epoch, both.epoch].into());

        // A manual run waits for the end of the rotation, and then for that of the cooldown.
        let grant = granted(ledger, &waits, LEASE).await;
        let after = manual(ledger, "waits", of(IfRunning::After)).await;
        assert!(is_held(ledger, &after).await);
        assert_eq!(late().await, [lost.epoch, both.epoch].into());
        finished(ledger, &waits, grant.fence, tick(ledger.now() + HOUR)).await;
        let cooling =
            ClaimRequest { guard: Guard { cooldown: HOUR, ..Guard::default() }, ..ask(ledger, &after, LEASE).await };
        let Claim::Waits { until } = ledger.claim(cooling).await.unwrap() else { panic!("it does not wait") };
        assert!(until > ledger.now() + HOUR / 2, "{until}");
        assert_eq!(late().await, [lost.epoch, both.epoch].into());
        assert_eq!(counted().await.1, 2);
        // Catch-up knows when its message comes.
        let looked = async |at| {
            let overdue = ledger.overdue("work".into(), recurring("sync"), at, None, 100).await.unwrap();
            overdue.into_iter().find(|chain| chain.hint.epoch == after.epoch).map(|chain| chain.expected)
        };
        assert_eq!((looked(until).await, looked(until + SLACK).await), (None, Some(until)));
    }
}

/// What runs between a copy of the ledger and its restore, the copy does not know of: after `RecoverAll` no manual run
/// has an epoch and tick that another may have had.
#[tokio::test]
async fn manual_runs_do_not_go_on_in_their_epoch_after_a_restore() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        begun(ledger, "a").await;
        let run = manual(ledger, "a", of(IfRunning::Beside)).await;
        over(ledger, &run, granted(ledger, &run, LEASE).await.fence).await;
        assert_eq!(ledger.order_chains(which("b"), ChainOrder::RecoverAll).await.unwrap(), 0, "of another chain");
        let second = manual(ledger, "a", of(IfRunning::Beside)).await;
        assert_eq!((second.epoch, second.tick), (run.epoch, run.tick.next()));
        over(ledger, &second, granted(ledger, &second, LEASE).await.fence).await;

        assert_eq!(ledger.order_chains(which("a"), ChainOrder::RecoverAll).await.unwrap(), 1, "the rotation");
        let lost = Hint { tick: second.tick.next(), ..second.clone() };
        assert_eq!(ledger.claim(ask(ledger, &lost, LEASE).await).await.unwrap(), Claim::Idle, "it has ended");
        let anew = manual(ledger, "a", of(IfRunning::Beside)).await;
        assert!(anew.epoch > second.epoch, "{anew:?}");
        assert_eq!((anew.tick, anew.attempt), (TickNo(1), 1));
        for tick in second.tick.get() + 1..second.tick.get() + 3 {
            let lost = Hint { tick: TickNo(tick), ..second.clone() };
            let answer = ledger.claim(ask(ledger, &lost, LEASE).await).await.unwrap();
            assert_eq!(answer, Claim::Idle, "the old time is over");
        }
        over(ledger, &anew, granted(ledger, &anew, LEASE).await.fence).await;
        // From there on they go on as before.
        let next = manual(ledger, "a", of(IfRunning::Beside)).await;
        assert_eq!((next.epoch, next.tick), (anew.epoch, anew.tick.next()));
    }
}
