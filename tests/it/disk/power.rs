//! Power fails: what was answered is there, nothing is there by half, and no number is given twice.
//!
//! Random verbs are asked of a ledger on a [`Disk`]. Before a share of its accesses, the disk keeps what a failure of
//! power would leave at that moment. Each of these images is opened as a ledger and compared with the answers until
//! then. From one of them the sequence goes on, as after a real failure, and fails again. `ROUNDELAY_SEED` is the
//! first seed, and `ROUNDELAY_CASES` how many are tried.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use faulty_disk::{Access, Disk, Faults, Image};
use futures_util::future::join_all;
use roundelay::clock::Entropy;
use roundelay::failure::FailedItem;
use roundelay::guard::Guard;
use roundelay::ids::{Epoch, Fence};
use roundelay::ledger::sqlite::SqliteLedger;
use roundelay::ledger::{
    ChainFilter, ChainOrder, ChainOrders, ChainState, Claim, ClaimId, ClaimRequest, Enrolled, Failures, Finish,
    FinishRequest, Hint, Jobs, NewChain, Protocol, Reports, Sent, Sessions, SpawnedJob,
};
use roundelay::outcome::{Next, Verdict};
use rusqlite::{Connection, OpenFlags};
use tokio::task::yield_now;

use super::{NOW, dump, end, open};
use crate::harness::{SLACK, chain, number};

const KEYS: [&str; 3] = ["a", "b", "c"];
/// How often power fails in a sequence, and how many verbs are asked before.
const LIVES: usize = 3;
const VERBS: usize = 40;

/// What answers have told of a ledger.
#[derive(Clone, Debug, Default, PartialEq)]
struct Told {
    /// By name: epoch, tick, attempt and state.
    chains: BTreeMap<String, (Epoch, i64, u32, ChainState)>,
    /// Claims, and how those ended that ended.
    attempts: BTreeMap<Fence, Option<String>>,
    jobs: BTreeSet<String>,
    /// What was asked for together with others, each with four things to write.
    together: BTreeSet<String>,
}

/// What a ledger says.
async fn ask(ledger: &SqliteLedger) -> Result<Told, String> {
    let mut told = Told::default();
    for key in KEYS {
        for chain in ledger.chains("sync".into(), key.into()).await.map_err(|error| error.to_string())? {
            let Hint { epoch, tick, attempt, .. } = chain.hint;
            told.chains.insert(key.to_owned(), (epoch, tick.get(), attempt, chain.state));
        }
    }
    for attempt in ledger.attempts(Fence::NONE, 10_000).await.map_err(|error| error.to_string())? {
        told.attempts.insert(attempt.fence, attempt.verdict.filter(|verdict| verdict != "lost"));
    }
    let mut parts: BTreeMap<String, u32> = BTreeMap::new();
    for job in ledger.kept_jobs(0, 10_000).await.map_err(|error| error.to_string())? {
        let id = String::from_utf8(job.body).map_err(|error| error.to_string())?;
        match id.split_once(' ') {
            Some((of, _)) => *parts.entry(of.to_owned()).or_default() += 1,
            None => drop(told.jobs.insert(id)),
        }
    }
    for failure in ledger.failures(10_000).await.map_err(|error| error.to_string())? {
        *parts.entry(failure.key).or_default() += 1;
    }
    for of in parts.keys().cloned().collect::<Vec<_>>() {
        let found = ledger.chains("found".into(), of.clone()).await.map_err(|error| error.to_string())?;
        parts.entry(of).and_modify(|parts| *parts += found.len() as u32);
    }
    parts.retain(|of, _| of.starts_with("together"));
    if let Some(half) = parts.iter().find(|(_, parts)| **parts != 4) {
        return Err(format!("half of what belongs together: {half:?}"));
    }
    told.together = parts.into_keys().collect();
    Ok(told)
}

/// One process's life: a ledger on a disk, until power fails.
struct Life {
    folder: tempfile::TempDir,
    disk: Disk,
    ledger: Option<SqliteLedger>,
    /// Looks at the file beside the ledger.
    beside: Option<Connection>,
    session: i64,
    told: Vec<Told>,
    /// All rows after each verb.
    rows: Vec<String>,
    /// After these several were asked together, and written in any order.
    together: BTreeSet<usize>,
    granted: Vec<(Hint, Fence)>,
    sent: Vec<Sent>,
}

/// All numbers that were ever given.
#[derive(Default)]
struct Given {
    fences: BTreeSet<Fence>,
    epochs: BTreeSet<Epoch>,
}

impl Life {
    async fn begin(before: Option<(&Image, Told)>, faults: Faults, seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut rows = String::new();
        let told = match before {
            Some((image, told)) => {
                image.write(folder.path()).unwrap();
                rows = dump(&Connection::open(folder.path().join("ledger.db")).unwrap()).unwrap();
                told
            }
            None => Told::default(),
        };
        let disk = Disk::at(folder.path(), seed);
        disk.set(faults);
        disk.interrupt(0.06);
        let mut life = Self {
            folder,
            disk,
            ledger: None,
            beside: None,
            session: 0,
            told: vec![told],
            rows: vec![rows],
            together: BTreeSet::new(),
            granted: Vec::new(),
            sent: Vec::new(),
        };
        life.open().await;
        life.answered(|_| ());
        // As after a restart of the machine: whose sessions these were is gone.
        let sessions: Vec<i64> = {
            let mut select = life.beside.as_ref().unwrap().prepare("SELECT session FROM sessions").unwrap();
            select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
        };
        for session in sessions {
            life.ledger().end_session(session).await.unwrap();
            life.answered(|_| ());
        }
        life.session = life.ledger().begin_session("w".into(), SLACK).await.unwrap();
        life.answered(|_| ());
        life
    }

    fn ledger(&self) -> &SqliteLedger {
        self.ledger.as_ref().unwrap()
    }

    async fn open(&mut self) {
        self.ledger = Some(open(self.folder.path()).unwrap());
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        self.beside = Some(Connection::open_with_flags(self.folder.path().join("ledger.db"), flags).unwrap());
    }

    /// The last to close the file is one that may write: so what is in the log goes into the file.
    async fn close(&mut self) {
        self.ledger = None;
        // The writer's thread closes the file when it has ended, some time after this. Two are left: file and log.
        while self.disk.open_files() > 2 {
            yield_now().await;
        }
        self.beside = None;
        assert!(!self.folder.path().join("ledger.db-wal").exists());
    }

    /// A verb was answered, which has told this.
    fn answered(&mut self, tell: impl FnOnce(&mut Told)) {
        let mut told = self.told.last().unwrap().clone();
        tell(&mut told);
        self.told.push(told);
        self.rows.push(dump(self.beside.as_ref().unwrap()).unwrap());
        self.disk.tell(self.told.len() - 1);
    }

    async fn act(&mut self, given: &mut Given, random: &Entropy) {
        let key = KEYS[random.below(KEYS.len())];
        match random.below(26) {
            0..3 => self.enroll(key, given).await,
            3..9 => self.claim(key, given).await,
            9..15 => self.finish(random.below(6)).await,
            15 => {
                let Some(sent) = self.sent.pop() else { return };
                self.ledger().mark_sent(sent);
                self.ledger().flush().await.unwrap();
                self.answered(|_| ());
            }
            16 => {
                let Some((hint, fence)) = self.granted.pop() else { return };
                let claim = vec![ClaimId { epoch: hint.epoch, fence }];
                self.ledger().give_up(self.session, claim).await.unwrap();
                self.answered(|_| ());
            }
            17 => {
                let (order, from, to) = match random.below(2) {
                    0 => (ChainOrder::Pause, ChainState::Active, ChainState::Paused),
                    _ => (ChainOrder::Resume, ChainState::Paused, ChainState::Active),
                };
                let which = ChainFilter { key: Some(key.into()), kind: Some("sync".into()), ..ChainFilter::default() };
                self.ledger().order_chains(which, order).await.unwrap();
                let state = |chain: &mut (_, _, _, ChainState)| chain.3 = if chain.3 == from { to } else { chain.3 };
                self.answered(|told| {
                    told.chains.get_mut(key).map(state);
                });
            }
            18 => {
                let id = format!("job-{}", random.token());
                self.ledger().keep_job(id.clone(), id.clone().into_bytes()).await.unwrap();
                self.answered(|told| {
                    told.jobs.insert(id);
                });
            }
            19 => {
                let Some(id) = self.told.last().unwrap().jobs.first().cloned() else { return };
                self.ledger().forget_jobs(vec![id.clone()]).await.unwrap();
                self.answered(|told| {
                    told.jobs.remove(&id);
                });
            }
            20..22 => {
                let all: Vec<String> =
                    (0..2 + random.below(8)).map(|_| format!("together-{}", random.token())).collect();
                self.together.insert(self.told.len());
                join_all(all.iter().map(|of| self.accept(of))).await;
                self.answered(|told| told.together.extend(all));
            }
            22..24 => {
                // As SQLite does by itself after some time.
                let how = ["PASSIVE", "RESTART", "TRUNCATE"][random.below(3)];
                let checkpoint = format!("PRAGMA wal_checkpoint({how})");
                self.beside.as_ref().unwrap().query_row(&checkpoint, [], |_| Ok(())).unwrap();
                self.answered(|_| ());
            }
            _ => {
                self.close().await;
                self.open().await;
                self.answered(|_| ());
            }
        }
    }

    async fn enroll(&mut self, key: &str, given: &mut Given) {
        let new = NewChain { revive: true, ..chain(key, NOW) };
        let enrolled = self.ledger().enroll(vec![new]).await.unwrap().remove(0);
        let Enrolled::Created(hint) = enrolled else { return self.answered(|_| ()) };
        assert!(given.epochs.insert(hint.epoch), "the epoch of {hint:?} was given before");
        let begun = (hint.epoch, 1, 1, ChainState::Active);
        self.answered(|told| {
            told.chains.insert(key.to_owned(), begun);
        });
    }

    async fn claim(&mut self, key: &str, given: &mut Given) {
        let found = self.ledger().chains("sync".into(), key.into()).await.unwrap();
        let Some(hint) = found.into_iter().next().map(|chain| chain.hint) else { return };
        let request = ClaimRequest {
            hint: hint.clone(),
            worker: "w".into(),
            session: self.session,
            again: false,
            takeover: false,
            guard: Guard::default(),
            recurs: true,
            prepared: 9,
            ahead: Duration::ZERO,
        };
        match self.ledger().claim(request).await.unwrap() {
            Claim::Granted(grant) => {
                assert!(given.fences.insert(grant.fence), "the fence of {grant:?} was given before");
                self.granted.push((hint, grant.fence));
                self.answered(|told| {
                    told.attempts.insert(grant.fence, None);
                });
            }
            Claim::SetAside => {
                let state = |chain: &mut (_, _, _, ChainState)| chain.3 = ChainState::Quarantined;
                self.answered(|told| {
                    told.chains.get_mut(key).map(state);
                });
            }
            _ => self.answered(|_| ()),
        }
    }

    async fn finish(&mut self, next: usize) {
        let Some((hint, fence)) = self.granted.pop() else { return };
        let (tick, attempt) = (hint.tick.get(), hint.attempt);
        let (next, verdict, place) = match next {
            0 => (Next::End, Verdict::Retired, (tick + 1, 1, Some(ChainState::Retired))),
            1 => (Next::Attempt { attempt: attempt + 1, due: NOW }, Verdict::Retried, (tick, attempt + 1, None)),
            _ => (Next::Tick { nominal: NOW, due: NOW }, Verdict::Done, (tick + 1, 1, None)),
        };
        let id = format!("job-of-{fence}");
        let spawned = vec![SpawnedJob { id: id.clone(), body: id.clone().into_bytes() }];
        let request = FinishRequest { spawned, ..end(&hint, fence, next, verdict) };
        match self.ledger().finish(request).await.unwrap() {
            Finish::Applied(messages) => {
                self.sent.extend(messages.iter().map(Hint::sent));
                self.answered(|told| {
                    told.attempts.insert(fence, Some(verdict.as_str().to_owned()));
                    told.jobs.insert(id);
                    let chain = told.chains.get_mut(&hint.key).unwrap();
                    *chain = (hint.epoch, place.0, place.1, place.2.unwrap_or(chain.3));
                });
            }
            Finish::Fenced => self.answered(|told| drop(told.attempts.insert(fence, Some("fenced".into())))),
        }
    }

    async fn accept(&self, of: &str) {
        let job = |n: u8| SpawnedJob { id: format!("{of} {n}"), body: format!("{of} {n}").into_bytes() };
        let found = NewChain { kind: "found".into(), ..chain(of, NOW) };
        let failed = vec![FailedItem::new("part", "because".to_owned())];
        self.ledger().accept("sync".into(), of.into(), vec![job(1), job(2)], vec![found], failed).await.unwrap();
    }

    /// What a ledger opened from an image has lost or made up; or else what it knows.
    async fn judge(&self, image: &Image) -> Result<Told, String> {
        let folder = tempfile::tempdir().unwrap();
        image.write(folder.path()).unwrap();
        let ledger = open(folder.path()).map_err(|error| error.to_string())?;
        let there = ask(&ledger).await?;
        let beside = Connection::open(folder.path().join("ledger.db")).unwrap();
        let check: String = beside.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        if check != "ok" {
            return Err(check);
        }
        let (before, after) = (&self.told[image.told], self.told.get(image.told + 1));
        let after = after.unwrap_or(before);
        let rest = |told: &Told| Told { together: BTreeSet::new(), ..told.clone() };
        let known = rest(&there) == rest(before) || rest(&there) == rest(after);
        if !known || !before.together.is_subset(&there.together) || !there.together.is_subset(&after.together) {
            return Err(format!(
                "the ledger says\n{there:?}, and before the failure it had told\n{before:?}, or\n{after:?}"
            ));
        }
        if !self.together.contains(&(image.told + 1)) && image.told > 0 {
            let rows = dump(&beside).unwrap();
            let whole = self.rows[image.told..].iter().take(2).any(|whole| *whole == rows);
            if !whole {
                return Err(format!("these are the rows of no verb:\n{rows}"));
            }
        }
        Ok(there)
    }
}

/// Which accesses power failures have interrupted, and what they have broken.
#[derive(Debug, Default)]
struct Report {
    interrupted: BTreeMap<Access, u64>,
    broken: Vec<String>,
}

async fn play(seed: u64, faults: Faults, report: &mut Report) {
    let random = Entropy::seeded(seed);
    let mut given = Given::default();
    let mut life = Life::begin(None, faults, random.id()).await;
    for nth in 0..LIVES {
        for _ in 0..VERBS {
            life.act(&mut given, &random).await;
        }
        let images = life.disk.images();
        let mut whole = Vec::new();
        for image in &images {
            *report.interrupted.entry(image.during).or_default() += 1;
            match life.judge(image).await {
                Ok(told) => whole.push((image, told)),
                Err(why) => report.broken.push(format!(
                    "ROUNDELAY_SEED={seed}, life {nth}, after verb {}, {:?}: {why}",
                    image.told, image.during
                )),
            }
        }
        if whole.is_empty() {
            return;
        }
        let (image, told) = whole.swap_remove(random.below(whole.len()));
        // What was given in answers that are lost with the machine may be given again.
        given.fences.retain(|fence| life.told[image.told].attempts.contains_key(fence));
        given.epochs = life.told[image.told].chains.values().map(|chain| chain.0).collect();
        life = Life::begin(Some((image, told)), faults, random.id()).await;
    }
}

#[tokio::test]
async fn what_was_answered_outlives_a_failure_of_power_and_nothing_is_there_by_half() {
    let (first, cases) = (number("ROUNDELAY_SEED", 1), number("ROUNDELAY_CASES", 6));
    println!("ROUNDELAY_SEED={first} ROUNDELAY_CASES={cases}");
    let mut report = Report::default();
    for seed in first..first + cases {
        play(seed, Faults::default(), &mut report).await;
    }
    println!("{:?}", report.interrupted);
    assert!(report.broken.is_empty(), "{} failures, the first: {}", report.broken.len(), report.broken[0]);
    for access in [Access::Database, Access::Log, Access::Sync, Access::Truncate, Access::Delete] {
        assert!(report.interrupted.contains_key(&access), "power never failed during {access:?}: {report:?}");
    }
}

/// The same on a disk that says that it has synced, and has not: the test above would notice what is lost.
#[tokio::test]
async fn what_a_disk_loses_that_does_not_sync_is_noticed() {
    let (lies, mut report) = (Faults { lies: true, ..Faults::default() }, Report::default());
    for seed in 1..4 {
        play(seed, lies, &mut report).await;
    }
    let lost = report.broken.iter().filter(|why| why.contains("before the failure it had told")).count();
    assert!(lost > 0, "nothing was lost: {:?}", report.broken);
}
