//! What a ledger keeps, and for how long: records, jobs, notes and its own numbers; and how its file is opened.

use super::*;

#[tokio::test]
async fn old_attempts_are_pruned_and_young_or_running_ones_are_kept() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (done, running) = (begun(ledger, "done").await, begun(ledger, "running").await);
        let day = Duration::from_secs(86_400);
        // The unfinished attempt is the older one: it must not keep the others from being pruned.
        granted(ledger, &running, LEASE).await;
        let mut hint = done;
        for _ in 0..5 {
            let grant = granted(ledger, &hint, LEASE).await;
            hint = finished(ledger, &hint, grant.fence, tick(ledger.now())).await;
        }
        let now = ledger.now();
        assert_eq!(ledger.prune(now - day, 100).await.unwrap(), 0);
        assert_eq!(ledger.prune(now + LEASE, 3).await.unwrap(), 2, "of the three oldest, one runs");
        assert_eq!(ledger.prune(now + LEASE, 100).await.unwrap(), 3);
        assert_eq!(ledger.prune(now + LEASE, 100).await.unwrap(), 0);
        assert_eq!(ledger.prune(now + day + LEASE, 100).await.unwrap(), 1, "cut off a day ago");
        assert_eq!(granted(ledger, &hint, LEASE).await.due, hint.due, "the chain goes on");
    }
}

#[tokio::test]
async fn old_attempts_go_to_the_archive_and_from_there_when_they_are_too_old_for_it() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let mut hint = begun(ledger, "done").await;
        for _ in 0..3 {
            let grant = granted(ledger, &hint, LEASE).await;
            hint = finished(ledger, &hint, grant.fence, tick(ledger.now())).await;
        }
        let now = ledger.now();
        assert_eq!(ledger.archive(now - LEASE, 100).await.unwrap(), 0, "all are young");
        assert_eq!(ledger.archive(now + LEASE, 2).await.unwrap(), 2);
        assert_eq!(ledger.attempts(Fence::NONE, 10).await.unwrap().len(), 1);
        assert_eq!(ledger.archive(now + LEASE, 100).await.unwrap(), 1);
        assert_eq!(ledger.archive(now + LEASE, 100).await.unwrap(), 0);
        assert_eq!(ledger.attempts(Fence::NONE, 10).await.unwrap(), []);
        assert_eq!(ledger.expire(now - LEASE, 100).await.unwrap(), 0, "there they may be older");
        assert_eq!(ledger.expire(now + LEASE, 2).await.unwrap(), 2);
        assert_eq!(ledger.expire(now + LEASE, 100).await.unwrap(), 1, "none was lost on the way");
        assert_eq!(ledger.expire(now + LEASE, 100).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn jobs_are_kept_until_they_are_forgotten() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let keep = |id: &str, body: &[u8]| ledger.keep_job(id.to_owned(), body.to_vec());
        keep("a", b"1").await.unwrap();
        keep("b", b"2").await.unwrap();
        keep("a", b"3").await.unwrap();
        let kept = ledger.kept_jobs(0, 10).await.unwrap();
        assert_eq!(kept.iter().map(|job| job.body.as_slice()).collect::<Vec<_>>(), [b"3", b"2"]);
        assert_eq!(ledger.kept_jobs(kept[0].number, 10).await.unwrap().len(), 1);
        ledger.forget_jobs(vec!["a".into()]).await.unwrap();
        assert_eq!(ledger.kept_jobs(0, 10).await.unwrap().len(), 1);
        ledger.quarantine("work".into(), "not JSON".into(), b"{".to_vec(), None, ledger.now()).await.unwrap();
        let census = ledger.census(SLACK).await.unwrap();
        assert_eq!((census.kept_jobs, census.quarantined_messages), (1, 1));
    }
}

#[tokio::test]
async fn of_several_workers_one_takes_a_kept_job_to_send_it() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let bodies =
            |jobs: Vec<roundelay::ledger::KeptJob>| -> Vec<u8> { jobs.iter().map(|job| job.body[0]).collect() };
        for (id, body) in [("a", b"1"), ("b", b"2"), ("c", b"3")] {
            ledger.keep_job(id.into(), body.to_vec()).await.unwrap();
        }
        let newest = async || ledger.kept_jobs(0, 10).await.unwrap().iter().map(|job| job.kept_at).max().unwrap();
        let kept = newest().await;
        until("the ledger's time goes on", async || ledger.now() > kept + Duration::from_millis(50)).await;
        assert_eq!(bodies(ledger.take_jobs(0, kept - SLACK, 10).await.unwrap()), b"", "their runs may still send them");
        let first = ledger.take_jobs(0, kept, 2).await.unwrap();
        let after = first.last().unwrap().number;
        assert_eq!(bodies(first), b"12", "as many as were asked for");
        assert_eq!(bodies(ledger.take_jobs(0, kept, 10).await.unwrap()), b"3", "the job that is not taken yet");
        assert_eq!(bodies(ledger.take_jobs(0, kept, 10).await.unwrap()), b"");
        assert_eq!(bodies(ledger.kept_jobs(0, 10).await.unwrap()), b"123", "they are kept until they are forgotten");
        let taken = newest().await;
        assert_eq!(bodies(ledger.take_jobs(after, taken, 10).await.unwrap()), b"3", "its taker may have died");
    }
}

#[tokio::test]
async fn workers_agree_on_one_topology() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        assert_eq!(ledger.topology().await.unwrap(), None);
        assert!(ledger.set_topology(None, "a".into()).await.unwrap());
        assert!(!ledger.set_topology(None, "b".into()).await.unwrap(), "somebody was faster");
        assert!(ledger.set_topology(Some("a".into()), "b".into()).await.unwrap());
        assert_eq!(ledger.topology().await.unwrap().as_deref(), Some("b"));
    }
}

/// An older copy of the ledger gives no number again that was given since the copy was made.
#[tokio::test]
async fn epochs_and_fences_never_go_back_even_when_an_older_ledger_is_restored() {
    let opened = in_file().await;
    let path = opened.path();
    let hint = begun(&*opened.ledger, "a").await;
    let copy = path.with_extension("copy");
    rusqlite::Connection::open(path).unwrap().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    let newest = begun(&*opened.ledger, "b").await.epoch;
    let fence = granted(&*opened.ledger, &hint, LEASE).await.fence;
    let restored = SqliteLedger::open(&LedgerUrl::Sqlite(copy), Clock::System, &Entropy::from_os()).unwrap();
    assert!(begun(&restored, "c").await.epoch > newest);
    assert!(granted(&restored, &hint, LEASE).await.fence > fence);
}

#[tokio::test]
async fn committed_data_is_there_for_the_next_process_that_opens_the_ledger() {
    for opened in shared().await {
        let hint = begun(&*opened.ledger, "a").await;
        let grant = granted(&*opened.ledger, &hint, LEASE).await;
        let next = finished(&*opened.ledger, &hint, grant.fence, tick(grant.at)).await;
        let other = opened.again().await;
        assert_eq!(other.id(), opened.ledger.id());
        assert_eq!(other.messages(vec!["work".into()], recurring("sync"), Epoch::NONE, 10).await.unwrap(), [next]);
    }
}

#[tokio::test]
async fn notes_are_written_soon_and_at_once_when_asked() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (a, b) = (begun(ledger, "a").await, begun(ledger, "b").await);
        let unsent = async || ledger.census(SLACK).await.unwrap().queues[0].unsent;
        assert_eq!(unsent().await, 2);
        ledger.mark_sent(a.sent());
        ledger.flush().await.unwrap();
        assert_eq!(unsent().await, 1);
        ledger.mark_sent(b.sent());
        until("nobody has to ask", async || unsent().await == 0).await;
    }
}

/// While another process keeps the file locked, all callers wait for one busy timeout together, not one after the
/// other.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_file_is_an_error_for_all_at_once_and_then_goes_on() {
    let opened = in_file().await;
    let path = opened.path();
    let hint = begun(&*opened.ledger, "a").await;
    let other = rusqlite::Connection::open(path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let began = tokio::time::Instant::now();
    let request = ask(&*opened.ledger, &hint, Duration::ZERO).await;
    let claims = (0..8).map(|_| opened.ledger.claim(request.clone()));
    for claim in futures_util::future::join_all(claims).await {
        assert!(matches!(&claim, Err(LedgerError::Statement(said)) if said.contains("locked")), "{claim:?}");
    }
    // At worst the first waits alone and the other seven together: two patiences of ten seconds,
    // where one after the other would take eighty.
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    other.execute_batch("ROLLBACK").unwrap();
    granted(&*opened.ledger, &hint, LEASE).await;
}

#[tokio::test]
async fn a_ledger_that_cannot_be_opened_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let open = |path: std::path::PathBuf| {
        let opened = SqliteLedger::open(&LedgerUrl::Sqlite(path), Clock::System, &Entropy::from_os());
        opened.err().expect("it cannot be opened").to_string()
    };
    let absent = open(folder.path().join("no/such/ledger.db"));
    assert!(absent.contains("does not exist; create it"), "{absent}");
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "not a database, but long enough to be looked at as one").unwrap();
    let foreign = open(text);
    assert!(foreign.contains("notes.txt") && foreign.contains("not a database"), "{foreign}");
    let newer = in_file().await;
    let path = newer.path();
    rusqlite::Connection::open(path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let refused = open(path.to_owned());
    assert!(refused.contains("format is version 99") && refused.contains("a newer one"), "{refused}");
}
