//! The disk is full for a while, or answers with errors.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use faulty_disk::{Disk, Faults};
use roundelay::Outcome;
use roundelay::clock::{Clock, Entropy};
use roundelay::guard::Guard;
use roundelay::ledger::sqlite::SqliteLedger;
use roundelay::ledger::{
    Claim, ClaimRequest, Enrolled, Finish, Jobs, LedgerError, LedgerUrl, Protocol, Reports, Sessions,
};
use roundelay::outcome::{Next, Verdict};
use rusqlite::Connection;

use super::{NOW, end, open};
use crate::harness::{Ground, Run, SLACK, Watched, chain, number};

/// The disk has no room for what comes from now on.
fn full(disk: &Disk) -> Faults {
    Faults { room: Some(disk.used()), ..Faults::default() }
}

async fn keep(ledger: &SqliteLedger, id: &str) -> Result<(), LedgerError> {
    ledger.keep_job(id.into(), id.as_bytes().to_vec()).await
}

async fn kept(ledger: &SqliteLedger) -> BTreeSet<String> {
    let kept = ledger.kept_jobs(0, 100_000).await.unwrap();
    kept.into_iter().map(|job| String::from_utf8(job.body).unwrap()).collect()
}

#[tokio::test]
async fn verbs_on_a_full_disk_say_so_and_work_again_once_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::at(folder.path(), 1);
    let ledger = open(folder.path()).unwrap();
    let session = ledger.begin_session("w".into(), SLACK).await.unwrap();
    let Enrolled::Created(hint) = ledger.enroll(vec![chain("a", NOW)]).await.unwrap().remove(0) else { panic!() };
    let request = ClaimRequest {
        hint: hint.clone(),
        worker: "w".into(),
        session,
        again: false,
        takeover: false,
        guard: Guard::default(),
        recurs: true,
        prepared: 9,
        ahead: Duration::ZERO,
    };
    let Claim::Granted(grant) = ledger.claim(request.clone()).await.unwrap() else { panic!() };
    let Enrolled::Created(other) = ledger.enroll(vec![chain("c", NOW)]).await.unwrap().remove(0) else { panic!() };
    let request = ClaimRequest { hint: other, ..request };
    let finish = end(&hint, grant.fence, Next::Tick { nominal: NOW, due: NOW }, Verdict::Done);
    keep(&ledger, "before").await.unwrap();
    let before = ledger.chains("sync".into(), "a".into()).await.unwrap();

    disk.set(full(&disk));
    let place = folder.path().canonicalize().unwrap().join("ledger.db");
    for _ in 0..3 {
        let answers = [
            keep(&ledger, "meanwhile").await,
            ledger.enroll(vec![chain("b", NOW)]).await.map(drop),
            ledger.claim(request.clone()).await.map(drop),
            ledger.finish(finish.clone()).await.map(drop),
            ledger.begin_session("v".into(), SLACK).await.map(drop),
        ];
        for answer in answers {
            let said = answer.unwrap_err().to_string();
            assert!(said.contains(&format!("the disk of {} is full", place.display())), "{said}");
            assert!(said.contains("make room") && said.contains("go on by themselves"), "{said}");
        }
        // Notes that nobody waits for are dropped: they do not pile up.
        for _ in 0..20_000 {
            ledger.mark_sent(hint.sent());
        }
    }
    // What is in the log cannot go into the file, and stays where it is.
    let beside = Connection::open(&place).unwrap();
    let checkpoint = "PRAGMA wal_checkpoint(RESTART)";
    beside.query_row(checkpoint, [], |_| Ok(())).unwrap_err();
    // A command that is started now says it, too. The one that runs goes on reading.
    let url = LedgerUrl::Sqlite(place.clone());
    let refused = SqliteLedger::open(&url, Clock::System, &Entropy::seeded(1)).map(drop).unwrap_err().to_string();
    assert!(refused.contains("is full") && refused.contains("ledger.db"), "{refused}");
    assert_eq!(ledger.chains("sync".into(), "a".into()).await.unwrap(), before);
    assert!(disk.failed() > 0);

    disk.set(Faults::default());
    assert!(matches!(ledger.finish(finish).await.unwrap(), Finish::Applied(_)));
    keep(&ledger, "after").await.unwrap();
    assert!(ledger.chains("sync".into(), "b".into()).await.unwrap().is_empty());
    beside.query_row(checkpoint, [], |_| Ok(())).unwrap();
    drop((ledger, beside));
    assert_eq!(kept(&open(folder.path()).unwrap()).await, ["after", "before"].map(String::from).into());
}

/// Each tick runs once and in order: what has ended while the disk was full is written when there is room.
#[tokio::test]
async fn chains_of_a_worker_wait_while_the_disk_is_full_and_then_go_on() {
    let ground = Ground::embedded();
    let disk = Disk::at(ground.folder.path(), 1);
    let config = "catch_up = { every = \"1s\", slack = \"3s\", spread = \"1s\" }\n[queues.work]\nconcurrency = 50\n\
                  [kinds.sync]\nevery = \"300ms\"\nqueue = \"work\"\ntimeout = \"60s\"\n";
    let mut engine = Watched::start(&ground, config).await;
    for n in 0..10 {
        engine.enroll(&format!("chain-{n}"), "work").await;
    }
    let mut last: BTreeMap<String, i64> = BTreeMap::new();
    let mut check = |run: Run| {
        let before = last.insert(run.job.key.clone(), run.tick()).unwrap_or(0);
        assert_eq!(run.tick(), before + 1, "{}", run.job.key);
        run.end(Outcome::Done);
    };
    for _ in 0..30 {
        check(engine.next().await);
    }
    disk.set(full(&disk));
    // What runs ends, and cannot be written: nothing follows.
    let mut ended = 0;
    while let Some(run) = engine.within(Duration::from_secs(1)).await {
        check(run);
        ended += 1;
    }
    let failed = disk.failed();
    assert!(ended <= 10 && failed > 0, "{ended} runs have begun, {failed} writes have failed");
    disk.set(Faults::default());
    for _ in 0..30 {
        check(engine.next().await);
    }
    engine.stop_with(|run| run.end(Outcome::Done)).await;
}

/// Also after a sync that has failed, when Linux has thrown away what was to be synced: no later answer relies on it.
#[tokio::test]
async fn what_was_answered_outlives_a_disk_that_fails_and_then_loses_power() {
    let (first, cases) = (number("ROUNDELAY_SEED", 1), number("ROUNDELAY_CASES", 6));
    println!("ROUNDELAY_SEED={first} ROUNDELAY_CASES={cases}");
    let (mut refused, mut judged) = (0, 0);
    for seed in first..first + cases {
        let random = Entropy::seeded(seed);
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::at(folder.path(), seed);
        let ledger = open(folder.path()).unwrap();
        let beside = Connection::open(folder.path().join("ledger.db")).unwrap();
        disk.set(Faults { reads: 0.03, writes: 0.03, syncs: 0.3, ..Faults::default() });
        disk.interrupt(0.05);
        let (mut answered, mut asked) = (vec![BTreeSet::new()], Vec::new());
        for n in 0..80 {
            let id = format!("job-{n}");
            let mut told = answered.last().cloned().unwrap();
            asked.push(id.clone());
            match keep(&ledger, &id).await {
                Ok(()) => drop(told.insert(id)),
                Err(error) => {
                    let said = error.to_string();
                    assert!(said.contains("the disk of ") && said.contains("ledger.db fails"), "{said}");
                    refused += 1;
                }
            }
            if random.below(10) == 0 {
                let _ = beside.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()));
            }
            answered.push(told);
            disk.tell(answered.len() - 1);
        }
        for image in disk.images() {
            let folder = tempfile::tempdir().unwrap();
            image.write(folder.path()).unwrap();
            let place = || format!("ROUNDELAY_SEED={seed}, after verb {}, {:?}", image.told, image.during);
            let there = open(folder.path()).unwrap_or_else(|error| panic!("{}: {error}", place()));
            let there = kept(&there).await;
            let lost: Vec<_> = answered[image.told].difference(&there).collect();
            assert!(lost.is_empty(), "{}: {lost:?} are lost", place());
            let beside = Connection::open(folder.path().join("ledger.db")).unwrap();
            let check: String = beside.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
            assert_eq!(check, "ok", "{}", place());
            judged += 1;
        }
        // Once the disk works, so does the ledger.
        disk.set(Faults::default());
        keep(&ledger, "after").await.unwrap();
        assert!(answered.last().unwrap().is_subset(&kept(&ledger).await));
    }
    println!("{refused} verbs were refused, {judged} failures of power judged");
    assert!(refused > 5 * cases && judged > 10 * cases);
}
