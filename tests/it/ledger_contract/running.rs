//! What runs: chains, which hang on their workers' sessions, and one-off jobs, which report.

use roundelay::ids::Fence;
use roundelay::ledger::{EFFORT, Member, OpenRun, RunSource, RunningJob};
use roundelay::progress::Progress;

use super::*;

fn job(id: &str, worker: &str, phase: &str) -> RunningJob {
    let at = Time::from_millis(1_790_000_000_123);
    RunningJob {
        id: id.into(),
        worker: worker.into(),
        kind: "sync".into(),
        key: "ios/7".into(),
        queue: "work".into(),
        attempt: 2,
        started: at,
        progress: Progress { phase: phase.into(), done: Some(3), total: None, at },
    }
}

async fn running(ledger: &dyn Ledger) -> Vec<RunningJob> {
    ledger.running("sync".into(), "ios/7".into()).await.unwrap()
}

#[tokio::test]
async fn a_running_job_is_seen_as_long_as_its_worker_speaks_of_it() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let note = async |worker: &str, jobs: &[RunningJob], ended: &[&str], hold: Duration| {
            let ended = ended.iter().map(ToString::to_string).collect();
            ledger.note_running(worker.into(), jobs.to_vec(), ended, hold).await.unwrap();
        };
        let (mine, theirs) = (job("1", "a", "identity"), job("1", "b", "listings \u{0} \"ü\""));
        note("a", &[mine, job("2", "a", "metrics")], &[], LEASE).await;
        note("b", std::slice::from_ref(&theirs), &[], LEASE).await;
        let later = job("1", "a", "finalize");
        note("a", std::slice::from_ref(&later), &["2"], LEASE).await;
        assert_eq!(running(ledger).await, [later.clone(), theirs.clone()], "each worker has its own, as it said last");
        assert_eq!(ledger.running("sync".into(), "ios/8".into()).await.unwrap(), []);
        note("b", &[], &["1", "7"], LEASE).await;
        assert_eq!(running(ledger).await, std::slice::from_ref(&later), "the end of one is no end of the other");
        // The run is not renewed any more.
        note("a", &[later], &[], Duration::ZERO).await;
        assert_eq!(running(ledger).await, []);
        note("b", &[theirs], &[], LEASE).await;
        assert_eq!(running(ledger).await.len(), 1);
    }
}

#[tokio::test]
async fn what_a_worker_runs_is_found_by_its_oldest_claims_and_among_the_last_attempts() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let claim = async |key: &str, worker: &str| {
            let hint = begun(ledger, key).await;
            let request = ClaimRequest { worker: worker.into(), ..ask(ledger, &hint, LEASE).await };
            let Claim::Granted(grant) = ledger.claim(request).await.unwrap() else { panic!("not granted") };
            (hint, grant.fence)
        };
        let (_, first) = claim("first", "mine").await;
        let (_, second) = claim("second", "mine").await;
        let (over, ended) = claim("over", "mine").await;
        let (_, theirs) = claim("theirs", "other").await;
        claim("last", "mine").await;
        finished(ledger, &over, ended, tick(ledger.now() + LEASE)).await;
        let open = async |fences: &[Fence], limit, effort| {
            let found = ledger.open_runs("mine".into(), fences.to_vec(), limit, effort).await.unwrap();
            found.into_iter().map(|run| (run.key, run.source)).collect::<Vec<_>>()
        };
        let of = |keys: &[&str]| keys.iter().map(|key| ((*key).to_owned(), RunSource::Chain)).collect::<Vec<_>>();
        assert_eq!(open(&[], 9, EFFORT).await, of(&["first", "second", "last"]));
        assert_eq!(open(&[], 2, EFFORT).await, of(&["first", "second"]));
        assert_eq!(open(&[], 9, 1).await, of(&["last"]));
        // What has ended since the worker named it, or is another's, is not run by it.
        assert_eq!(open(&[first, ended, theirs], 9, 0).await, of(&["first"]));
        assert_eq!(open(&[second, first], 9, EFFORT).await, of(&["first", "second", "last"]), "each once");

        // A job that reports is among them; a job of a batch is told apart.
        let job = RunningJob { started: ledger.now() - LEASE, ..job("1", "mine", "listings") };
        ledger.note_running("mine".into(), vec![job.clone()], Vec::new(), LEASE).await.unwrap();
        let found = ledger.open_runs("mine".into(), vec![first], 9, 0).await.unwrap();
        assert_eq!(found[0], OpenRun::from(job));
        assert_eq!((found[1].key.as_str(), found.len()), ("first", 2));
        let (parent, fence) = claim("parent", "mine").await;
        let member = Member {
            kind: "part".into(),
            key: "1".into(),
            queue: "work".into(),
            payload: "{}".into(),
            due: ledger.now(),
            depth: 0,
        };
        let gather = end(&parent, fence, ledger.now(), Next::Gather, Verdict::FannedOut);
        let member = written(ledger, FinishRequest { members: vec![member], ..gather }).await;
        let request = ClaimRequest { worker: "mine".into(), ..ask(ledger, &member, LEASE).await };
        assert!(matches!(ledger.claim(request).await.unwrap(), Claim::Granted(_)));
        assert_eq!(open(&[], 9, 1).await[1], ("1".to_owned(), RunSource::Batch));
    }
}

#[tokio::test]
async fn only_its_own_session_is_told_of_a_chain_that_runs_for_long() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (runs, waits) = (begun(ledger, "runs").await, begun(ledger, "waits").await);
        let [mine, other] = [session(ledger, LEASE).await, session(ledger, LEASE).await];
        let overdue = async |session: Option<i64>| {
            let then = ledger.now() + SLACK + LEASE;
            let found = ledger.overdue("work".into(), recurring("sync"), then, session, 10).await.unwrap();
            found.into_iter().map(|chain| (chain.hint.epoch, chain.claim)).collect::<BTreeSet<_>>()
        };
        let both = BTreeSet::from([(runs.epoch, (0, Fence::NONE)), (waits.epoch, (0, Fence::NONE))]);
        assert_eq!(overdue(None).await, both);
        assert_eq!(overdue(Some(other)).await, both);

        let request = ClaimRequest { session: mine, ..ask(ledger, &runs, Duration::ZERO).await };
        let Claim::Granted(grant) = ledger.claim(request).await.unwrap() else { panic!("not granted") };
        let waiting = BTreeSet::from([(waits.epoch, (0, Fence::NONE))]);
        assert_eq!(overdue(None).await, waiting);
        assert_eq!(overdue(Some(other)).await, waiting);
        let with_mine = BTreeSet::from([(runs.epoch, (mine, grant.fence)), (waits.epoch, (0, Fence::NONE))]);
        assert_eq!(overdue(Some(mine)).await, with_mine, "it may be a claim whose answer was lost");

        ledger.end_session(mine).await.unwrap();
        assert_eq!(overdue(Some(other)).await, with_mine, "nobody runs it any more");
        assert_eq!(overdue(None).await, with_mine);
    }
}
