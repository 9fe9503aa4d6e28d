//! Chains that a run discovers, and how far runs say that they have come.

use roundelay::failure::Batch;
use roundelay::ids::{Fence, TickNo};
use roundelay::ledger::{AttemptRecord, Member};
use roundelay::progress::Progress;

use super::*;

/// A chain that a run has discovered.
fn found(key: &str, due: Time) -> NewChain {
    NewChain { only_new: true, depth: 3, owner: Some("ann".into()), ..chain(key, due) }
}

async fn view(ledger: &dyn Ledger, key: &str) -> roundelay::ledger::ChainView {
    ledger.chains("sync".into(), key.into()).await.unwrap().remove(0)
}

#[tokio::test]
async fn discovered_chains_begin_with_the_end_of_the_run_and_not_without() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let charts = begun(ledger, "charts").await;
        let (there, gone) = (begun(ledger, "there").await, begun(ledger, "gone").await);
        ledger.order_chains(which("gone"), ChainOrder::Retire).await.unwrap();
        let before = (view(ledger, "there").await, view(ledger, "gone").await);
        let grant = granted(ledger, &charts, LEASE).await;
        assert_eq!(grant.depth, 0, "nobody's run has led to it");
        let due = ledger.now() + Duration::from_secs(60);
        let finish = |fence| FinishRequest {
            chains: ["new", "there", "gone", "new", "charts"].map(|key| found(key, due)).to_vec(),
            ..end(&charts, fence, due, tick(due), Verdict::Done)
        };
        assert_eq!(ledger.finish(finish(Fence(grant.fence.get() + 1))).await.unwrap(), Finish::Fenced);
        assert!(ledger.chains("sync".into(), "new".into()).await.unwrap().is_empty(), "a fenced run begins nothing");
        let Finish::Applied(messages) = ledger.finish(finish(grant.fence)).await.unwrap() else { panic!("fenced") };
        let keys: Vec<_> = messages.iter().map(|hint| (hint.key.as_str(), hint.tick, hint.due)).collect();
        assert_eq!(keys, [("new", TickNo(1), due), ("charts", TickNo(2), due)]);
        let new = view(ledger, "new").await;
        assert_eq!((new.depth, new.owner.as_deref(), new.sent), (3, Some("ann"), false));
        assert_eq!((new.hint.clone(), new.watch_at), (messages[0].clone(), due + SLACK));
        assert_eq!((view(ledger, "there").await, view(ledger, "gone").await), before, "what was there stays as it was");
        assert_eq!(before.0.hint, there);
        assert!(gone.epoch < new.hint.epoch);
        // Asked again, because the answer was lost, it is as before; catch-up has what was not sent.
        assert!(matches!(ledger.finish(finish(grant.fence)).await.unwrap(), Finish::Applied(own) if own.len() == 1));
        let overdue = ledger.overdue("work".into(), recurring("sync"), due + SLACK * 2, None, 10).await.unwrap();
        assert!(overdue.iter().any(|chain| chain.hint == messages[0] && !chain.sent), "{overdue:?}");
        // A job that is no tick of a chain begins chains in the same way.
        let accept = async || {
            let chains = vec![found("newer", ledger.now()), found("there", due)];
            ledger.accept("job".into(), "j".into(), Vec::new(), chains, Vec::new()).await.unwrap()
        };
        let begun = accept().await;
        assert_eq!(begun.iter().map(|hint| hint.key.as_str()).collect::<Vec<_>>(), ["newer"]);
        assert_eq!(accept().await, [], "once");
        assert_eq!(granted(ledger, &begun[0], LEASE).await.depth, 3);
        // A chain that a person revives belongs to no run any more.
        let anew = NewChain { revive: true, ..chain("newer", ledger.now()) };
        ledger.order_chains(which("newer"), ChainOrder::Retire).await.unwrap();
        ledger.enroll(vec![anew]).await.unwrap();
        assert_eq!(view(ledger, "newer").await.depth, 0);
    }
}

#[tokio::test]
async fn a_batch_has_the_depth_of_its_chain() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let enrolled = ledger.enroll(vec![found("a", ledger.now())]).await.unwrap().remove(0);
        let Enrolled::Created(hint) = enrolled else { panic!("{enrolled:?}") };
        let grant = granted(ledger, &hint, LEASE).await;
        let member = Member {
            kind: "part".into(),
            key: "1".into(),
            queue: "work".into(),
            payload: "{}".into(),
            due: ledger.now(),
            depth: grant.depth,
        };
        let request = FinishRequest {
            members: vec![member],
            ..end(&hint, grant.fence, ledger.now(), Next::Gather, Verdict::FannedOut)
        };
        let Finish::Applied(members) = ledger.finish(request).await.unwrap() else { panic!("fenced") };
        let part = granted(ledger, &members[0], LEASE).await;
        assert_eq!(part.depth, 3);
        let last = end(&members[0], part.fence, ledger.now(), Next::End, Verdict::Done);
        let Finish::Applied(gathered) = ledger.finish(last).await.unwrap() else { panic!("fenced") };
        let grant = granted(ledger, &gathered[0], LEASE).await;
        assert_eq!((grant.depth, grant.batch), (3, Some(Batch { total: 1, failed: 0 })));
    }
}

/// Many runs that end at the same time have found the same entities: each of these gets one chain, and
/// one of the runs its message.
#[tokio::test(flavor = "multi_thread")]
async fn runs_that_discover_the_same_chain_at_the_same_time_begin_it_once() {
    const RUNS: usize = 24;
    const FOUND: usize = 40;
    for opened in shared().await {
        let ledgers = [opened.ledger.clone(), opened.again().await];
        let now = opened.ledger.now();
        let mut tasks = JoinSet::new();
        for n in 0..RUNS {
            let hint = begun(&*opened.ledger, &format!("charts {n}")).await;
            let grant = granted(&*opened.ledger, &hint, LEASE).await;
            let ledger = ledgers[n % 2].clone();
            // Each has them in an order of its own.
            let chains = (0..FOUND).map(|i| found(&format!("app {}", (i * 7 + n * 11) % FOUND), now)).collect();
            let request = FinishRequest { chains, ..end(&hint, grant.fence, now, tick(now), Verdict::Done) };
            tasks.spawn(async move { ledger.finish(request).await });
        }
        let mut messages = Vec::new();
        while let Some(finished) = tasks.join_next().await {
            let Finish::Applied(hints) = finished.unwrap().unwrap() else { panic!("fenced") };
            messages.extend(hints.into_iter().filter(|hint| hint.key.starts_with("app")).map(|hint| hint.key));
        }
        let names: BTreeSet<&String> = messages.iter().collect();
        assert_eq!((messages.len(), names.len()), (FOUND, FOUND), "{messages:?}");
    }
}

fn said(phase: &str, done: u64, at: Time) -> Progress {
    Progress { phase: phase.into(), done: Some(done), total: Some(12), at }
}

async fn record(ledger: &dyn Ledger, fence: Fence) -> AttemptRecord {
    ledger.history(fence, 1).await.unwrap().remove(0)
}

#[tokio::test]
async fn progress_is_kept_with_the_attempt_until_its_end_and_after_it() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (a, b) = (begun(ledger, "a").await, begun(ledger, "b").await);
        let (first, other) = (granted(ledger, &a, LEASE).await.fence, granted(ledger, &b, LEASE).await.fence);
        assert_eq!(record(ledger, first).await.progress, None);
        let at = Time::from_millis(1_790_000_000_123);
        let strange = Progress { phase: "a \u{0} b \"ü\"".into(), done: None, total: None, at };
        let runs = vec![
            (first, said("listings", 3, at)),
            (other, strange.clone()),
            (Fence(other.get() + 1_000_000), strange.clone()),
        ];
        ledger.note_progress(runs).await.unwrap();
        assert_eq!(record(ledger, first).await.progress, Some(said("listings", 3, at)));
        assert_eq!(record(ledger, other).await.progress, Some(strange.clone()));
        ledger.note_progress(vec![(first, said("metrics", 1, at))]).await.unwrap();
        assert_eq!(record(ledger, first).await.progress, Some(said("metrics", 1, at)));
        // The end has the last word, or leaves the one before; what comes later comes too late.
        let due = ledger.now();
        let last =
            FinishRequest { progress: Some(said("finalize", 12, at)), ..end(&a, first, due, tick(due), Verdict::Done) };
        ledger.finish(last).await.unwrap();
        ledger.finish(end(&b, other, due, tick(due), Verdict::Failed)).await.unwrap();
        ledger.note_progress(vec![(first, said("late", 1, at)), (other, said("late", 1, at))]).await.unwrap();
        assert_eq!(record(ledger, first).await.progress, Some(said("finalize", 12, at)));
        assert_eq!(record(ledger, other).await.progress, Some(strange));
        ledger.note_progress(Vec::new()).await.unwrap();
    }
}
