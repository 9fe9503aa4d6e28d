//! A tick that waits for the end of many others.

use roundelay::failure::Batch;
use roundelay::ids::{Epoch, Fence, TickNo};
use roundelay::ledger::Member;

use super::*;

fn member(n: usize, due: Time) -> Member {
    let (key, payload) = (format!("part {n}"), format!("{{\"n\":{n}}}"));
    Member { kind: "part".into(), key, queue: "work".into(), payload, due, depth: 0 }
}

/// Begins a chain and lets its first tick fan out; its message, and those of the members.
async fn fanned_out(ledger: &dyn Ledger, key: &str, members: usize) -> (Hint, Vec<Hint>) {
    let hint = begun(ledger, key).await;
    let grant = granted(ledger, &hint, LEASE).await;
    let members = (0..members).map(|n| member(n, ledger.now())).collect();
    let request = FinishRequest { members, ..end(&hint, grant.fence, ledger.now(), Next::Gather, Verdict::FannedOut) };
    let Finish::Applied(hints) = ledger.finish(request).await.unwrap() else { panic!("fenced") };
    assert!(hints.iter().all(|member| (member.parent, member.kind.as_str()) == (hint.epoch, "part")));
    (hint, hints)
}

async fn ended(ledger: &dyn Ledger, member: &Hint, verdict: Verdict) -> Vec<Hint> {
    let grant = granted(ledger, member, LEASE).await;
    match ledger.finish(end(member, grant.fence, ledger.now(), Next::End, verdict)).await.unwrap() {
        Finish::Applied(hints) => hints,
        Finish::Fenced => panic!("fenced"),
    }
}

#[tokio::test]
async fn a_tick_waits_for_all_its_members_and_is_finished_once() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (hint, members) = fanned_out(ledger, "a", 3).await;
        assert_eq!(members.len(), 3);
        assert_eq!(ledger.claim(ask(ledger, &hint, LEASE).await).await.unwrap(), Claim::Idle, "it waits");
        assert_eq!(ended(ledger, &members[1], Verdict::Failed).await, []);
        // One that is tried again has not ended.
        let grant = granted(ledger, &members[0], LEASE).await;
        assert_eq!(grant.payload, "{\"n\":0}");
        let due = ledger.now();
        let again = end(&members[0], grant.fence, due, Next::Attempt { attempt: 2, due }, Verdict::Retried);
        let again = written(ledger, again).await;
        assert_eq!(again.parent, hint.epoch);
        assert_eq!(ended(ledger, &again, Verdict::Done).await, []);
        assert_eq!(ledger.claim(ask(ledger, &hint, LEASE).await).await.unwrap(), Claim::Idle);
        // A worker that got no answer to a member's end asks again, and the member is counted once.
        let grant = granted(ledger, &members[2], LEASE).await;
        let last = end(&members[2], grant.fence, ledger.now(), Next::End, Verdict::Done);
        let Finish::Applied(follows) = ledger.finish(last.clone()).await.unwrap() else { panic!("fenced") };
        assert_eq!(
            follows.iter().map(|hint| (hint.epoch, hint.tick, hint.attempt)).collect::<Vec<_>>(),
            [(hint.epoch, TickNo(1), 1)]
        );
        ledger.finish(last).await.unwrap();
        let grant = granted(ledger, &follows[0], LEASE).await;
        assert_eq!(grant.batch, Some(Batch { total: 3, failed: 1 }));
        let request = FinishRequest { from_batch: true, ..end(&hint, grant.fence, due, tick(due), Verdict::Done) };
        let next = written(ledger, request.clone()).await;
        assert_eq!((next.epoch, next.tick), (hint.epoch, TickNo(2)));
        assert_eq!(ledger.finish(request).await.unwrap(), applied(next.clone()), "exactly once");
        // A message of a member that is gone runs nothing, and is no alarm.
        assert_eq!(ledger.claim(ask(ledger, &members[1], LEASE).await).await.unwrap(), Claim::Idle);
        let grant = granted(ledger, &next, LEASE).await;
        assert_eq!(grant.batch, None);
    }
}

#[tokio::test]
async fn the_same_members_can_be_asked_for_again_and_by_others() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (a, of_a) = fanned_out(ledger, "a", 2).await;
        let (_, of_b) = fanned_out(ledger, "b", 2).await;
        assert!(of_a.iter().all(|member| of_b.iter().all(|other| other.epoch != member.epoch)));
        assert_eq!(ended(ledger, &of_b[0], Verdict::Done).await, [], "another's");
        ended(ledger, &of_a[0], Verdict::Done).await;
        let gather = ended(ledger, &of_a[1], Verdict::Done).await.remove(0);
        let grant = granted(ledger, &gather, LEASE).await;
        let now = ledger.now();
        let request = FinishRequest { from_batch: true, ..end(&a, grant.fence, now, tick(now), Verdict::Done) };
        let next = written(ledger, request).await;
        let grant = granted(ledger, &next, LEASE).await;
        let members = vec![member(0, now), member(1, now)];
        let request = FinishRequest { members, ..end(&next, grant.fence, now, Next::Gather, Verdict::FannedOut) };
        let Finish::Applied(hints) = ledger.finish(request).await.unwrap() else { panic!("fenced") };
        assert!(hints.len() == 2 && hints.iter().all(|hint| hint.epoch > of_b[1].epoch));
    }
}

#[tokio::test]
async fn catch_up_sends_members_and_not_what_waits_for_them_and_the_gathering_when_it_is_unsent() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (hint, members) = fanned_out(ledger, "a", 2).await;
        let kinds = || Kinds { all: vec!["sync".into(), "part".into()], recurring: vec!["sync".into()] };
        let overdue = async |now| {
            let found = ledger.overdue("work".into(), kinds(), now, None, 10).await.unwrap();
            found.into_iter().map(|chain| chain.hint.epoch).collect::<BTreeSet<_>>()
        };
        let late = ledger.now() + SLACK + LEASE;
        assert_eq!(overdue(late).await, members.iter().map(|member| member.epoch).collect());
        let sent = ledger.messages(vec!["work".into()], kinds(), Epoch::NONE, 10).await.unwrap();
        assert_eq!(sent.iter().map(|hint| hint.epoch).collect::<Vec<_>>(), [members[0].epoch, members[1].epoch]);
        let waiting: i64 = ledger.census(SLACK).await.unwrap().queues.iter().map(|queue| queue.waiting).sum();
        assert_eq!(waiting, 1);
        assert!(ledger.late(late, Vec::new(), 10).await.unwrap().iter().all(|late| late.hint.epoch != hint.epoch));
        for member in &members {
            ended(ledger, member, Verdict::Done).await;
        }
        assert_eq!(overdue(late).await, [hint.epoch].into());
    }
}

#[tokio::test]
async fn members_go_with_the_chain_that_waits_for_them() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let which =
            |key: &str| ChainFilter { kind: Some("sync".into()), key: Some(key.into()), ..ChainFilter::default() };
        let part = ChainFilter { kind: Some("part".into()), ..ChainFilter::default() };
        let (_, members) = fanned_out(ledger, "a", 2).await;
        let runs = granted(ledger, &members[0], LEASE).await;
        assert_eq!(ledger.order_chains(part, ChainOrder::Retire).await.unwrap(), 0, "they are no chains of their own");
        assert_eq!(ledger.order_chains(which("a"), ChainOrder::Pause).await.unwrap(), 1);
        let done = end(&members[0], runs.fence, ledger.now(), Next::End, Verdict::Done);
        assert_eq!(ledger.finish(done).await.unwrap(), applied(None), "they go on while it is paused");
        assert_eq!(ledger.order_chains(which("a"), ChainOrder::Retire).await.unwrap(), 1);
        assert_eq!(ledger.claim(ask(ledger, &members[1], LEASE).await).await.unwrap(), Claim::Idle);
        // A new epoch has nothing to do with a batch of the one before.
        let (hint, members) = fanned_out(ledger, "b", 2).await;
        let runs = granted(ledger, &members[0], LEASE).await;
        assert_eq!(ledger.order_chains(which("b"), ChainOrder::RecoverAll).await.unwrap(), 1);
        let verdict =
            async || ledger.attempts(Fence(runs.fence.get() - 1), 1).await.unwrap().remove(0).verdict.unwrap();
        assert_eq!(verdict().await, "lost");
        let done = end(&members[0], runs.fence, ledger.now(), Next::End, Verdict::Done);
        assert_eq!(ledger.finish(done).await.unwrap(), Finish::Fenced);
        assert_eq!(verdict().await, "fenced");
        assert_eq!(ledger.claim(ask(ledger, &members[1], LEASE).await).await.unwrap(), Claim::Idle);
        let chain = ledger.chains("sync".into(), "b".into()).await.unwrap().remove(0);
        assert_eq!((chain.batch, chain.state), ((0, 0), ChainState::Active));
        assert!(chain.hint.epoch > hint.epoch);
    }
}

#[tokio::test]
async fn a_chain_that_has_ended_waits_for_nothing() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let view = async |key: &str| ledger.chains("sync".into(), key.into()).await.unwrap().remove(0);
        // A manual run beside it finds out that its entity is gone.
        let (_, members) = fanned_out(ledger, "a", 2).await;
        let runs = granted(ledger, &members[0], LEASE).await;
        let beside = manual(ledger, "a", Manual { if_running: IfRunning::Beside, force: true }).await;
        let grant = granted(ledger, &beside, LEASE).await;
        let gone = end(&beside, grant.fence, ledger.now(), Next::End, Verdict::Retired);
        assert_eq!(ledger.finish(gone).await.unwrap(), applied(None));
        let chain = view("a").await;
        assert_eq!((chain.batch, chain.state), ((0, 0), ChainState::Retired));
        assert_eq!(ledger.claim(ask(ledger, &members[1], LEASE).await).await.unwrap(), Claim::Idle);
        let done = end(&members[0], runs.fence, ledger.now(), Next::End, Verdict::Done);
        assert_eq!(ledger.finish(done).await.unwrap(), Finish::Fenced);
        // It ends while it runs, and the run fans out.
        let hint = begun(ledger, "b").await;
        let grant = granted(ledger, &hint, LEASE).await;
        assert_eq!(ledger.order_chains(which("b"), ChainOrder::Retire).await.unwrap(), 1);
        let members = vec![member(0, ledger.now())];
        let gather = end(&hint, grant.fence, ledger.now(), Next::Gather, Verdict::FannedOut);
        assert_eq!(ledger.finish(FinishRequest { members, ..gather }).await.unwrap(), applied(None));
        assert_eq!(view("b").await.batch, (0, 0));
        // Another's batch goes on, whatever ends.
        let (other, members) = fanned_out(ledger, "c", 1).await;
        let anew = NewChain { revive: true, ..super::chain("b", ledger.now()) };
        ledger.enroll(vec![anew]).await.unwrap();
        assert_eq!(ledger.order_chains(which("b"), ChainOrder::Retire).await.unwrap(), 1);
        assert_eq!(view("c").await.batch, (1, 1));
        assert_eq!(ended(ledger, &members[0], Verdict::Done).await[0].epoch, other.epoch);
        let kinds = Kinds { all: vec!["sync".into(), "part".into()], recurring: vec!["sync".into()] };
        let left = ledger.messages(vec!["work".into()], kinds, Epoch::NONE, 10).await.unwrap();
        assert_eq!(left.iter().map(|hint| hint.key.as_str()).collect::<Vec<_>>(), ["c"], "no member is left");
    }
}

/// Also when an operator retires the chain, and when it has left its roster: what runs then is recorded as
/// lost at the end of its lease, and not left open for good.
#[tokio::test]
async fn runs_of_members_are_recorded_as_lost_when_their_chain_ends() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (_, others) = fanned_out(ledger, "other", 1).await;
        let others = granted(ledger, &others[0], LEASE).await;
        let record = async |fence: Fence| ledger.attempts(Fence(fence.get() - 1), 1).await.unwrap().remove(0);
        for departs in [false, true] {
            let (hint, members) = fanned_out(ledger, if departs { "left" } else { "retired" }, 3).await;
            let runs = granted(ledger, &members[0], LEASE).await;
            // One that has ended keeps its record as it is.
            let ran = granted(ledger, &members[1], LEASE).await;
            let done = end(&members[1], ran.fence, ledger.now(), Next::End, Verdict::Done);
            assert_eq!(ledger.finish(done).await.unwrap(), applied(None));
            assert_eq!(record(runs.fence).await.verdict, None, "it runs");
            let ended = match departs {
                true => ledger.depart(vec![hint.epoch]).await.unwrap(),
                false => {
                    let which = ChainFilter {
                        kind: Some("sync".into()),
                        key: Some(hint.key.clone()),
                        ..ChainFilter::default()
                    };
                    ledger.order_chains(which, ChainOrder::Retire).await.unwrap()
                }
            };
            assert_eq!(ended, 1);
            let lost = record(runs.fence).await;
            assert_eq!((lost.fence, lost.verdict.as_deref()), (runs.fence, Some("lost")), "departs: {departs}");
            assert!(lost.finished.is_some_and(|finished| finished >= runs.at), "departs: {departs}: {lost:?}");
            assert_eq!(record(ran.fence).await.verdict.as_deref(), Some("done"), "departs: {departs}");
            // A worker that still runs a member comes too late, and the member that had not started does not start.
            let done = end(&members[0], runs.fence, ledger.now(), Next::End, Verdict::Done);
            assert_eq!(ledger.finish(done).await.unwrap(), Finish::Fenced);
            assert_eq!(record(runs.fence).await.verdict.as_deref(), Some("fenced"), "departs: {departs}");
            assert_eq!(ledger.claim(ask(ledger, &members[2], LEASE).await).await.unwrap(), Claim::Idle);
        }
        assert_eq!(record(others.fence).await.verdict, None, "another's batch goes on");
    }
}

/// While a chain is paused the last member of its batch ends: it is gathered when it goes on.
#[tokio::test]
async fn a_batch_that_ends_while_its_chain_is_paused_is_gathered_afterwards() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let which = ChainFilter { kind: Some("sync".into()), key: Some("a".into()), ..ChainFilter::default() };
        let (hint, members) = fanned_out(ledger, "a", 1).await;
        ledger.order_chains(which.clone(), ChainOrder::Pause).await.unwrap();
        assert_eq!(ended(ledger, &members[0], Verdict::Done).await, []);
        ledger.order_chains(which, ChainOrder::Resume).await.unwrap();
        let kinds = recurring("sync");
        let found = ledger.overdue("work".into(), kinds, ledger.now() + LEASE, None, 10).await.unwrap();
        assert_eq!(found.iter().map(|chain| chain.hint.epoch).collect::<Vec<_>>(), [hint.epoch]);
        assert_eq!(granted(ledger, &found[0].hint, LEASE).await.batch, Some(Batch { total: 1, failed: 0 }));
    }
}

#[tokio::test]
async fn thousands_of_members_are_one_batch() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (_, members) = fanned_out(ledger, "a", 3_000).await;
        assert_eq!(members.len(), 3_000);
        let epochs: BTreeSet<Epoch> = members.iter().map(|member| member.epoch).collect();
        assert_eq!(epochs.len(), 3_000);
        let chain = ledger.chains("sync".into(), "a".into()).await.unwrap().remove(0);
        assert_eq!(chain.batch, (3_000, 3_000));
    }
}
