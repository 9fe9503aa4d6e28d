//! Bits of the files flip while no process has them open. Either that is found, or it changes no more than the bound
//! that docs/proof.md names: one row, or the last transaction of a log that a crash has left.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use roundelay::clock::Entropy;
use roundelay::failure::FailedItem;
use roundelay::guard::Guard;
use roundelay::ids::{Epoch, Fence};
use roundelay::ledger::sqlite::SqliteLedger;
use roundelay::ledger::sqlite::examine;
use roundelay::ledger::{
    CatchUp, Claim, ClaimRequest, Enrolled, Failures, Jobs, Kinds, LedgerError, ListFilter, NewChain, Protocol,
    Reports, Sessions,
};
use roundelay::outcome::{Next, Verdict};
use rusqlite::Connection;

use super::{NOW, dump, end, open};
use crate::harness::{SLACK, chain, number};

const CHAINS: usize = 60;

fn key(n: usize) -> String {
    format!("app-{n:04}")
}

/// Fills a ledger. Answers what its files hold before the last verb, and after it, while it is open.
async fn filled(folder: &Path) -> (BTreeMap<&'static str, Vec<u8>>, String, String) {
    let ledger = open(folder).unwrap();
    let session = ledger.begin_session("w".into(), SLACK).await.unwrap();
    for n in 0..CHAINS {
        let owner = n.is_multiple_of(3).then(|| format!("owner-{n}"));
        let payload = format!("{{\"n\":{n},\"text\":\"{}\"}}", "words ".repeat(n));
        let new = NewChain { owner, payload, ..chain(&key(n), NOW) };
        let Enrolled::Created(hint) = ledger.enroll(vec![new]).await.unwrap().remove(0) else { panic!() };
        for _ in 0..n % 3 {
            let found = ledger.chains("sync".into(), key(n)).await.unwrap().remove(0);
            let request = ClaimRequest {
                hint: found.hint.clone(),
                worker: "w".into(),
                session,
                again: false,
                takeover: false,
                guard: Guard::default(),
                recurs: true,
                prepared: 9,
                ahead: Duration::ZERO,
            };
            let Claim::Granted(grant) = ledger.claim(request).await.unwrap() else { panic!("{found:?}") };
            let finish = end(&found.hint, grant.fence, Next::Tick { nominal: NOW, due: NOW }, Verdict::Done);
            ledger.finish(finish).await.unwrap();
        }
        let failed = vec![FailedItem::new("part", "because".to_owned())];
        ledger.accept("sync".into(), hint.key, Vec::new(), Vec::new(), failed).await.unwrap();
    }
    let rows = || dump(&Connection::open(folder.join("ledger.db")).unwrap()).unwrap();
    let before = rows();
    ledger.keep_job("last".into(), b"last".to_vec()).await.unwrap();
    let names = ["ledger.db", "ledger.db-wal"];
    (names.map(|name| (name, std::fs::read(folder.join(name)).unwrap())).into(), before, rows())
}

/// What the ledger answers to all kinds of questions.
async fn ask(ledger: &SqliteLedger) -> Result<String, LedgerError> {
    let mut chains = Vec::new();
    for n in 0..CHAINS {
        chains.push(ledger.chains("sync".into(), key(n)).await?);
    }
    let kinds = Kinds { all: vec!["sync".into()], recurring: vec!["sync".into()] };
    let messages = ledger.messages(vec!["work".into()], kinds, Epoch::NONE, 1_000).await?;
    let list = ledger.list(ListFilter::default(), None, 1_000).await?;
    let attempts = ledger.attempts(Fence::NONE, 1_000).await?;
    let (jobs, failures) = (ledger.kept_jobs(0, 1_000).await?, ledger.failures(1_000).await?);
    let census = ledger.census(SLACK).await?;
    Ok(format!("{chains:?} {messages:?} {list:?} {attempts:?} {jobs:?} {failures:?} {census:?}"))
}

/// How many rows are in one dump and not in the other, at most, in either direction.
fn apart(one: &str, other: &str) -> usize {
    let count = |one: &str, other: &str| {
        let mut left: Vec<&str> = other.lines().collect();
        one.lines()
            .filter(|line| left.iter().position(|row| row == line).map(|at| left.swap_remove(at)).is_none())
            .count()
    };
    count(one, other).max(count(other, one))
}

#[derive(Debug, Default)]
struct Report {
    refused: u32,
    unchanged: u32,
    found_by_the_doctor: u32,
    one_row: u32,
    last_transaction: u32,
}

#[tokio::test]
async fn a_rotten_bit_is_found_or_changes_one_row_at_most() {
    let (first, cases) = (number("ROUNDELAY_SEED", 1), number("ROUNDELAY_CASES", 480));
    println!("ROUNDELAY_SEED={first} ROUNDELAY_CASES={cases}");
    let source = tempfile::tempdir().unwrap();
    let (crashed, before, whole) = filled(source.path()).await;
    let closed = tempfile::tempdir().unwrap();
    let file = closed.path().join("ledger.db");
    crashed.iter().for_each(|(name, bytes)| std::fs::write(closed.path().join(name), bytes).unwrap());
    Connection::open(&file).unwrap().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let closed = BTreeMap::from([("ledger.db", std::fs::read(&file).unwrap())]);
    let answers = ask(&open(source.path()).unwrap()).await.unwrap();
    let mut report = Report::default();
    for seed in first..first + cases {
        let random = Entropy::seeded(seed);
        // Every third flip is in the log that a crash has left.
        let in_log = seed % 3 == 0;
        let (mut files, rotten) =
            if in_log { (crashed.clone(), "ledger.db-wal") } else { (closed.clone(), "ledger.db") };
        let bytes = files.get_mut(rotten).unwrap();
        let pages = bytes.len() / 4_096;
        // Half of them where a page says how it is laid out: there a little does much.
        let at = match random.below(2) {
            0 => random.below(bytes.len()),
            _ => (random.below(pages) * 4_096 + random.below(120)).min(bytes.len() - 1),
        };
        bytes[at] ^= 1 << random.below(8);
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, bytes)| std::fs::write(folder.path().join(name), bytes).unwrap());
        let place = format!("ROUNDELAY_SEED={seed}, byte {at} of {rotten}");
        let path = folder.path().join("ledger.db");
        let found = examine::damage(&path);
        let is_found = !matches!(&found, Ok(complaints) if complaints.is_empty());
        let answer = async {
            let ledger = open(folder.path())?;
            ask(&ledger).await
        };
        match answer.await {
            Err(error) => {
                let said = error.to_string();
                let named = said.contains("ledger.db") && said.contains("is damaged") && said.contains("operations.md");
                // A rotten version of the format is taken for another program's. That is refused as well.
                let other_version = said.contains("cannot open the ledger") && said.contains("ledger.db");
                assert!(is_found || named || other_version, "{place}: {said}");
                report.refused += 1;
            }
            Ok(_) if is_found => report.found_by_the_doctor += 1,
            Ok(answer) => {
                let rows = dump(&Connection::open(&path).unwrap()).unwrap();
                match apart(&rows, &whole) {
                    0 if answer == answers => report.unchanged += 1,
                    _ if in_log && rows == before => report.last_transaction += 1,
                    1 => report.one_row += 1,
                    n => panic!("{place}: {n} rows are other ones, and nothing says so: {found:?}"),
                }
            }
        }
    }
    println!("{report:?}");
    assert!(report.refused > 0 && report.found_by_the_doctor > 0, "{report:?}");
    assert!(report.unchanged > 0 && report.one_row > 0, "{report:?}");
}

/// SQLite would take the rest of the log for rubbish, and say nothing.
#[tokio::test]
async fn a_rotten_log_is_no_shorter_log() {
    let source = tempfile::tempdir().unwrap();
    let (files, ..) = filled(source.path()).await;
    let log = &files["ledger.db-wal"];
    let mut refused = 0;
    for seed in 0..30 {
        let random = Entropy::seeded(seed);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        let mut rotten = log.clone();
        // Somewhere before the last transactions.
        let at = random.below(log.len() * 9 / 10);
        rotten[at] ^= 1 << random.below(8);
        std::fs::write(&path, &files["ledger.db"]).unwrap();
        std::fs::write(folder.path().join("ledger.db-wal"), &rotten).unwrap();
        let said = open(folder.path()).map(drop).unwrap_err().to_string();
        assert!(said.contains("ledger.db-wal is damaged from byte") && said.contains("operations.md"), "{at}: {said}");
        let found = examine::damage(&path).unwrap();
        assert!(found.iter().any(|words| words.contains("ledger.db-wal is damaged")), "{at}: {found:?}");
        assert_eq!(std::fs::read(folder.path().join("ledger.db-wal")).unwrap(), rotten, "it is left as it is");
        // As docs/operations.md says: SQLite copies what is before the damage, and forgets the rest.
        let beside = Connection::open(&path).unwrap();
        beside.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        drop(beside);
        match open(folder.path()) {
            Ok(ledger) => drop(ledger.kept_jobs(0, 10).await.unwrap()),
            Err(error) => panic!("{at}: {error}"),
        }
        refused += 1;
    }
    assert_eq!(refused, 30);
}
