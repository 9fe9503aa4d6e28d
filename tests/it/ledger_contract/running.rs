//! One-off jobs that run and report.

use roundelay::ledger::RunningJob;
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
        // Nobody says any more that it goes on.
        note("a", &[later], &[], Duration::ZERO).await;
        assert_eq!(running(ledger).await, []);
        note("b", &[theirs], &[], LEASE).await;
        assert_eq!(running(ledger).await.len(), 1);
    }
}
