//! What every ledger must do, held against each of them.

mod access;
mod batches;
mod cuts;
mod deaths;
mod differential;
mod discovered;
mod failed;
mod fleet;
mod guards;
mod list;
mod running;
mod search;
mod throttles;
mod twins;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use roundelay::clock::{Clock, Entropy, Time};
use roundelay::failure::FailedItem;
use roundelay::guard::{Guard, IfRunning, Manual, Refusal};
use roundelay::ids::{Epoch, Fence, TickNo};
use roundelay::ledger::postgres::PostgresLedger;
use roundelay::ledger::sqlite::SqliteLedger;
use roundelay::ledger::{
    ChainFilter, ChainOrder, ChainState, Claim, ClaimId, ClaimRequest, Enrolled, Finish, FinishRequest, Grant, Hint,
    Holder, Kinds, Ledger, LedgerError, LedgerUrl, LookAgain, NewChain, OrphanFilter, SpawnedJob,
};
use roundelay::outcome::{Next, Verdict};
use roundelay::secret::Secret;
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::harness::{SLACK, Schema, chain, until};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(60);

/// A ledger, and a way to open it a second time as another worker would.
struct Opened {
    ledger: Arc<dyn Ledger>,
    url: LedgerUrl,
    _folder: TempDir,
    /// After the ledger, so that the schema is dropped when the ledger is no longer used.
    _schema: Option<Schema>,
}

impl Opened {
    async fn again(&self) -> Arc<dyn Ledger> {
        open(&self.url).await
    }

    fn path(&self) -> &Path {
        let LedgerUrl::Sqlite(path) = &self.url else { panic!("not a file") };
        path
    }
}

async fn open(url: &LedgerUrl) -> Arc<dyn Ledger> {
    let entropy = Entropy::from_os();
    match url {
        LedgerUrl::Postgres(url) => Arc::new(PostgresLedger::open(url, &entropy).await.unwrap()),
        file => Arc::new(SqliteLedger::open(file, Clock::System, &entropy).unwrap()),
    }
}

async fn in_file() -> Opened {
    let folder = tempfile::tempdir().unwrap();
    let url = LedgerUrl::Sqlite(folder.path().join("ledger.db"));
    Opened { ledger: open(&url).await, url, _folder: folder, _schema: None }
}

async fn in_memory() -> Opened {
    let url = LedgerUrl::Memory;
    Opened { ledger: open(&url).await, url, _folder: tempfile::tempdir().unwrap(), _schema: None }
}

async fn in_postgres() -> Opened {
    let schema = Schema::new().await;
    let url = LedgerUrl::Postgres(Secret::new(&schema.url));
    Opened { ledger: open(&url).await, url, _folder: tempfile::tempdir().unwrap(), _schema: Some(schema) }
}

async fn all() -> [Opened; 3] {
    [in_file().await, in_memory().await, in_postgres().await]
}

/// Those that several workers can share.
async fn shared() -> [Opened; 2] {
    [in_file().await, in_postgres().await]
}

/// Begins a chain that is due.
async fn begun(ledger: &dyn Ledger, key: &str) -> Hint {
    match ledger.enroll(vec![chain(key, ledger.now())]).await.unwrap().remove(0) {
        Enrolled::Created(hint) => hint,
        other => panic!("{key} was there: {other:?}"),
    }
}

/// A session that goes on; or, without a lease, one that was over before it claimed anything.
async fn session(ledger: &dyn Ledger, lease: Duration) -> i64 {
    match lease {
        Duration::ZERO => 7,
        lease => ledger.begin_session("worker-1".into(), lease).await.unwrap(),
    }
}

async fn ask(ledger: &dyn Ledger, hint: &Hint, lease: Duration) -> ClaimRequest {
    ClaimRequest {
        hint: hint.clone(),
        worker: "worker-1".into(),
        session: session(ledger, lease).await,
        again: false,
        takeover: false,
        guard: Guard::default(),
        recurs: true,
        prepared: 2,
    }
}

async fn granted(ledger: &dyn Ledger, hint: &Hint, lease: Duration) -> Grant {
    match ledger.claim(ask(ledger, hint, lease).await).await.unwrap() {
        Claim::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub fn end(hint: &Hint, fence: Fence, at: Time, next: Next, verdict: Verdict) -> FinishRequest {
    FinishRequest {
        epoch: hint.epoch,
        tick: hint.tick,
        attempt: hint.attempt,
        fence,
        at,
        next,
        verdict,
        reason: (verdict != Verdict::Done).then(|| "because".to_owned()),
        code: None,
        slack: SLACK,
        spawned: Vec::new(),
        failed: Vec::new(),
        ran: true,
        left_out: (0, 0),
        carry: None,
        parent: hint.parent,
        from_batch: false,
        members: Vec::new(),
        chains: Vec::new(),
        progress: None,
    }
}

/// A kind that has a schedule.
fn recurring(kind: &str) -> Kinds {
    Kinds { all: vec![kind.into()], recurring: vec![kind.into()] }
}

/// The next tick, at its time.
fn tick(due: Time) -> Next {
    Next::Tick { nominal: due, due }
}

/// What a finish answers that leaves at most one message to send.
fn applied(message: impl Into<Option<Hint>>) -> Finish {
    Finish::Applied(message.into().into_iter().collect())
}

async fn finished(ledger: &dyn Ledger, hint: &Hint, fence: Fence, next: Next) -> Hint {
    written(ledger, end(hint, fence, ledger.now(), next, Verdict::Done)).await
}

/// Finishes; the one message that follows.
async fn written(ledger: &dyn Ledger, request: FinishRequest) -> Hint {
    match ledger.finish(request).await.unwrap() {
        Finish::Applied(mut hints) if hints.len() == 1 => hints.remove(0),
        other => panic!("not applied: {other:?}"),
    }
}

#[tokio::test]
async fn enrolling_again_changes_only_what_is_new() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        let first = begun(ledger, "a").await;
        assert_eq!((first.tick, first.attempt), (TickNo(1), 1));
        let moved = NewChain { queue: "other".into(), payload: "[1]".into(), ..chain("a", now) };
        let answers = ledger.enroll(vec![chain("a", now), moved.clone(), moved, chain("b", now)]).await.unwrap();
        assert_eq!(answers[..3], [Enrolled::Unchanged, Enrolled::Updated { rescheduled: false }, Enrolled::Unchanged]);
        assert!(matches!(&answers[3], Enrolled::Created(hint) if hint.epoch > first.epoch));
        // The message that sleeps names the old queue, and it is still the one that counts.
        let grant = granted(ledger, &first, LEASE).await;
        assert_eq!(grant.payload, "[1]");
        assert_eq!(finished(ledger, &first, grant.fence, tick(now)).await.queue, "other");
    }
}

#[tokio::test]
async fn a_chains_own_priority_is_in_all_its_messages() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        let of = |priority| NewChain { priority, ..chain("a", now) };
        let enrolled = async |priority| ledger.enroll(vec![of(priority)]).await.unwrap().remove(0);
        let Enrolled::Created(first) = enrolled(None).await else { panic!("it was there") };
        assert_eq!(first.priority, None);
        assert_eq!(enrolled(Some(0)).await, Enrolled::Updated { rescheduled: false }, "the lowest is a priority too");
        assert_eq!(enrolled(Some(2)).await, Enrolled::Updated { rescheduled: false });
        assert_eq!(enrolled(Some(2)).await, Enrolled::Unchanged);
        // Both in one transaction.
        let other = |priority| NewChain { priority, ..chain("b", now) };
        let both = ledger.enroll(vec![other(Some(1)), other(Some(2))]).await.unwrap();
        assert_eq!(both[1], Enrolled::Updated { rescheduled: false });

        let view = async |key: &str| ledger.chains("sync".into(), key.into()).await.unwrap().remove(0);
        let is = view("a").await;
        assert_eq!((is.hint.epoch, is.hint.priority), (first.epoch, Some(2)), "it is the same chain");
        assert_eq!(view("b").await.hint.priority, Some(2));
        let grant = granted(ledger, &first, LEASE).await;
        let next = finished(ledger, &first, grant.fence, tick(ledger.now())).await;
        assert_eq!(next.priority, Some(2), "of the successor");
        let stale = ledger.claim(ask(ledger, &first, LEASE).await).await.unwrap();
        assert_eq!(stale, Claim::Stale(Some(next.clone())), "of a successor that is sent again");
        let later = ledger.now() + SLACK * 10;
        let overdue = ledger.overdue("work".into(), recurring("sync"), later, None, 10).await.unwrap();
        assert!(overdue.len() == 2 && overdue.iter().all(|chain| chain.hint.priority == Some(2)), "{overdue:?}");
        let all = ledger.messages(vec!["work".into()], recurring("sync"), Epoch::NONE, 10).await.unwrap();
        assert!(all.len() == 2 && all.iter().all(|hint| hint.priority == Some(2)), "{all:?}");
        let grant = granted(ledger, &next, LEASE).await;
        let retry = Next::Attempt { attempt: 2, due: later };
        let next = written(ledger, end(&next, grant.fence, ledger.now(), retry, Verdict::Retried)).await;
        assert_eq!((next.attempt, next.priority), (2, Some(2)), "of the next attempt");
        let advanced = ledger.advance("sync".into(), "a".into(), SLACK).await.unwrap().unwrap();
        assert_eq!(advanced.priority, Some(2), "of what is sent ahead");

        let which = ChainFilter { kind: Some("sync".into()), key: Some("a".into()), ..ChainFilter::default() };
        ledger.order_chains(which, ChainOrder::Retire).await.unwrap();
        let anew = NewChain { revive: true, ..of(Some(1)) };
        let Enrolled::Created(anew) = ledger.enroll(vec![anew]).await.unwrap().remove(0) else { panic!("it stays") };
        assert_eq!((anew.priority, view("a").await.hint.priority), (Some(1), Some(1)));
        assert!(anew.epoch > first.epoch);
    }
}

#[tokio::test]
async fn a_tick_is_claimed_once_and_finished_once() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hint = begun(ledger, "a").await;
        let grant = granted(ledger, &hint, LEASE).await;
        assert_eq!((grant.nominal, grant.due), (hint.due, hint.due));
        let held = ledger.claim(ask(ledger, &hint, LEASE).await).await.unwrap();
        assert_eq!(held, Claim::Runs);

        let due = ledger.now() + LEASE;
        let next = finished(ledger, &hint, grant.fence, tick(due)).await;
        assert_eq!((next.tick, next.attempt, next.due), (TickNo(2), 1, due));
        let again = end(&hint, grant.fence, due, tick(due), Verdict::Done);
        assert_eq!(ledger.finish(again.clone()).await.unwrap(), applied(next.clone()), "not told before");
        let records = ledger.attempts(Fence(grant.fence.get() - 1), 1).await.unwrap();
        assert_eq!(records[0].verdict.as_deref(), Some("done"));

        // The successor is not known to be sent: a worker that comes late must send it.
        assert_eq!(ledger.claim(ask(ledger, &hint, LEASE).await).await.unwrap(), Claim::Stale(Some(next.clone())));
        ledger.mark_sent(next.sent());
        ledger.flush().await.unwrap();
        assert_eq!(ledger.finish(again).await.unwrap(), applied(None), "and sent since");
        assert_eq!(ledger.claim(ask(ledger, &hint, LEASE).await).await.unwrap(), Claim::Stale(None));
        assert_eq!(ledger.claim(ask(ledger, &next, LEASE).await).await.unwrap(), Claim::Early(next.clone()));
        let ahead = Hint { tick: TickNo(3), ..next.clone() };
        assert_eq!(ledger.claim(ask(ledger, &ahead, LEASE).await).await.unwrap(), Claim::Future);
        let stranger = Hint { key: "b".into(), ..next.clone() };
        let other = Claim::Other { kind: "sync".into(), key: "a".into() };
        assert_eq!(ledger.claim(ask(ledger, &stranger, LEASE).await).await.unwrap(), other);
        let unknown = Hint { epoch: Epoch(next.epoch.get() + 1), ..next };
        assert_eq!(ledger.claim(ask(ledger, &unknown, LEASE).await).await.unwrap(), Claim::Future);
    }
}

#[tokio::test]
async fn a_lease_that_ran_out_is_taken_over_and_its_holder_fenced() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hint = begun(ledger, "a").await;
        let frozen = granted(ledger, &hint, Duration::ZERO).await;
        let second = granted(ledger, &hint, LEASE).await;
        assert!(second.fence > frozen.fence);
        assert_eq!((frozen.lost, second.lost), (false, true), "whether the claim before it was cut off");
        let due = ledger.now();
        let late = end(&hint, frozen.fence, due, tick(due), Verdict::Done);
        assert_eq!(ledger.finish(late).await.unwrap(), Finish::Fenced);
        let records = ledger.attempts(Fence::NONE, 10).await.unwrap();
        assert_eq!(records[0].verdict.as_deref(), Some("fenced"), "it was lost, and has come to an end after all");
        assert_eq!(finished(ledger, &hint, second.fence, tick(due)).await.tick, 2);
    }
}

#[tokio::test]
async fn an_end_that_is_written_stays_when_it_is_told_again_too_late() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hint = begun(ledger, "a").await;
        let grant = granted(ledger, &hint, LEASE).await;
        let due = ledger.now();
        let ended = end(&hint, grant.fence, due, tick(due), Verdict::Done);
        let next = written(ledger, ended.clone()).await;
        // A worker that got no answer asks again, when the chain has moved on.
        granted(ledger, &next, LEASE).await;
        assert_eq!(ledger.finish(ended).await.unwrap(), Finish::Fenced);
        let verdicts: Vec<_> =
            ledger.attempts(Fence::NONE, 10).await.unwrap().into_iter().map(|row| row.verdict).collect();
        assert_eq!(verdicts, [Some("done".to_owned()), None]);
    }
}

#[tokio::test]
async fn attempts_and_snoozes_stay_within_their_tick() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let first = begun(ledger, "a").await;
        let nominal = first.due;
        let grant = granted(ledger, &first, LEASE).await;
        let due = ledger.now();
        let retry = end(&first, grant.fence, due, Next::Attempt { attempt: 2, due }, Verdict::Retried);
        let second = written(ledger, retry).await;
        assert_eq!((second.tick, second.attempt), (TickNo(1), 2));
        let grant = granted(ledger, &second, LEASE).await;
        assert_eq!(grant.nominal, nominal, "an attempt keeps its tick's nominal time");
        let later = due + LEASE;
        let snooze = end(&second, grant.fence, due, Next::Snooze { due: later }, Verdict::Snoozed);
        let snoozed = written(ledger, snooze).await;
        assert_eq!((snoozed.tick, snoozed.attempt, snoozed.due), (TickNo(1), 2, later));
        // The message of before the snooze has the same identity but for its due time.
        assert_eq!(ledger.claim(ask(ledger, &second, LEASE).await).await.unwrap(), Claim::Early(snoozed.clone()));
        ledger.mark_sent(snoozed.sent());
        assert_eq!(ledger.claim(ask(ledger, &second, LEASE).await).await.unwrap(), Claim::Stale(None));
    }
}

#[tokio::test]
async fn a_chain_that_ended_stays_so_and_its_reason_is_kept() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hint = begun(ledger, "a").await;
        let grant = granted(ledger, &hint, LEASE).await;
        let retire = end(&hint, grant.fence, ledger.now(), Next::End, Verdict::Retired);
        assert_eq!(ledger.finish(retire).await.unwrap(), applied(None));
        assert_eq!(ledger.claim(ask(ledger, &hint, LEASE).await).await.unwrap(), Claim::Idle);
        assert_eq!(ledger.enroll(vec![chain("a", ledger.now())]).await.unwrap(), [Enrolled::Retired]);
        let failures = ledger.failures(10).await.unwrap();
        assert_eq!(failures.len(), 1);
        assert_eq!((failures[0].key.as_str(), failures[0].reason.as_str(), failures[0].times), ("a", "because", 1));
        let census = ledger.census(SLACK).await.unwrap();
        assert_eq!((census.retired, census.failures, census.queues.len()), (1, 1, 0));
    }
}

/// Found by `both_ledgers_answer_the_same_to_the_same_verbs`, `ROUNDELAY_SEED=692118`: SQLite did not note that.
#[tokio::test]
async fn a_first_message_that_is_noted_late_is_noted_though_its_chain_has_run() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hint = begun(ledger, "a").await;
        let grant = granted(ledger, &hint, LEASE).await;
        let again = finished(ledger, &hint, grant.fence, Next::Snooze { due: hint.due }).await;
        assert_eq!(again.sent(), hint.sent());
        ledger.enrolled_sent(vec![hint.sent()], SLACK).await.unwrap();
        let chains = ledger.chains("sync".into(), "a".into()).await.unwrap();
        assert_eq!((chains[0].sent, chains[0].watch_at), (true, hint.due + SLACK));
    }
}

#[tokio::test]
async fn catch_up_finds_what_nobody_claimed_and_one_of_several_lookers_wins() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (lost, asleep) = (begun(ledger, "lost").await, begun(ledger, "asleep").await);
        ledger.enrolled_sent(vec![lost.sent(), asleep.sent()], SLACK).await.unwrap();
        let grant = granted(ledger, &asleep, LEASE).await;
        finished(ledger, &asleep, grant.fence, tick(ledger.now() + LEASE)).await;

        let (queues, kinds) = (|| vec!["work".to_owned()], || recurring("sync"));
        let look =
            async |queue: &str, kinds: Kinds, now| ledger.overdue(queue.into(), kinds, now, None, 10).await.unwrap();
        let then = lost.due + SLACK;
        assert_eq!(look("work", kinds(), then - Duration::from_millis(1)).await, []);
        assert_eq!(look("other", kinds(), then).await, []);
        assert_eq!(look("work", recurring("other"), then).await, []);
        let overdue = look("work", kinds(), then).await;
        assert_eq!(overdue.len(), 1);
        assert_eq!((&overdue[0].hint, overdue[0].sent, overdue[0].looks), (&lost, true, 0));
        assert_eq!(overdue[0].expected, lost.due);
        let wait =
            LookAgain { epoch: lost.epoch, from: overdue[0].watch_at, to: then + LEASE, looks: 0, expected: None };
        assert_eq!(ledger.look_again(vec![wait, wait]).await.unwrap(), [true, false]);
        assert_eq!(look("work", kinds(), then).await, []);
        let later = look("work", kinds(), then + LEASE).await;
        assert_eq!(later.iter().find(|chain| chain.hint == lost).unwrap().expected, lost.due, "looking moves nothing");
        let send = LookAgain { from: wait.to, looks: 1, expected: Some(then), ..wait };
        assert_eq!(ledger.look_again(vec![send]).await.unwrap(), [true]);
        let later = look("work", kinds(), then + LEASE).await;
        let sent_again = later.iter().find(|chain| chain.hint == lost).unwrap();
        assert_eq!((sent_again.expected, sent_again.looks), (then, 1));
        let current = ledger.messages(queues(), kinds(), Epoch::NONE, 10).await.unwrap();
        assert_eq!(
            current.iter().map(|hint| (hint.key.as_str(), hint.tick)).collect::<Vec<_>>(),
            [("lost", TickNo(1)), ("asleep", TickNo(2))]
        );
        assert_eq!(ledger.messages(queues(), kinds(), lost.epoch, 10).await.unwrap().len(), 1, "from an epoch on");
        assert_eq!(ledger.messages(queues(), recurring("other"), Epoch::NONE, 10).await.unwrap(), []);
    }
}

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
async fn a_claim_holds_as_long_as_its_session() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (a, b) = (begun(ledger, "a").await, begun(ledger, "b").await);
        let (mine, yours) = (session(ledger, LEASE).await, session(ledger, LEASE).await);
        let of = async |session, hint: &Hint| {
            let request = ClaimRequest { session, ..ask(ledger, hint, Duration::ZERO).await };
            ledger.claim(request).await.unwrap()
        };
        let Claim::Granted(first) = of(mine, &a).await else { panic!("not granted") };
        let Claim::Granted(other) = of(mine, &b).await else { panic!("not granted") };
        assert_eq!((of(yours, &a).await, of(mine, &a).await), (Claim::Runs, Claim::Runs));
        let held = |hint: &Hint, fence| ClaimId { epoch: hint.epoch, fence };
        let claims = vec![held(&a, first.fence), held(&b, first.fence), held(&b, other.fence)];
        assert_eq!(ledger.hold(claims.clone()).await.unwrap(), [true, false, true]);
        // Each says that it lives; a session ends if it was not heard of since, and only then.
        let looked = ledger.beat(yours, Vec::new()).await.unwrap();
        let seen = looked.others.iter().find(|other| other.session == mine).unwrap().clone();
        assert!(looked.alive && !seen.gone && (seen.worker.as_str(), seen.lease) == ("worker-1", LEASE), "{looked:?}");
        assert!(ledger.beat(mine, Vec::new()).await.unwrap().alive);
        let heard = ledger.beat(yours, vec![(mine, seen.beat)]).await.unwrap();
        let again = heard.others.iter().find(|other| other.session == mine).unwrap().clone();
        assert!(heard.ended.is_empty() && again.beat > seen.beat, "{heard:?}");
        let orphans = async || {
            let kinds = Kinds { all: vec!["sync".into()], recurring: vec!["sync".into()] };
            let now = ledger.now();
            let left = OrphanFilter { until: now + SLACK * 2, late: now - SLACK, unsent: Time::default() };
            let orphans = ledger.orphans("work".into(), kinds, left, 10).await.unwrap();
            let mut orphans: Vec<_> =
                orphans.into_iter().map(|chain| (chain.hint.epoch, chain.claim, chain.holder)).collect();
            orphans.sort_by_key(|orphan| orphan.0);
            orphans
        };
        assert_eq!(orphans().await, []);
        assert_eq!(ledger.beat(yours, vec![(mine, again.beat)]).await.unwrap().ended, [mine]);
        assert!(!ledger.beat(mine, Vec::new()).await.unwrap().alive, "it is over for good");
        let left = [(a.epoch, (mine, first.fence), Holder::Gone), (b.epoch, (mine, other.fence), Holder::Gone)];
        assert_eq!(orphans().await, left);
        // The claims have not been taken over yet, so an end still counts. A claim that is taken over is lost to its
        // former holder.
        assert_eq!(ledger.hold(claims.clone()).await.unwrap(), [true, false, true]);
        finished(ledger, &b, other.fence, tick(ledger.now())).await;
        let Claim::Granted(second) = of(yours, &a).await else { panic!("not taken over") };
        assert!(second.lost);
        assert_eq!(ledger.hold(claims).await.unwrap(), [false, false, false]);
        let records = ledger.attempts(Fence(first.fence.get() - 1), 10).await.unwrap();
        assert_eq!(records[0].verdict.as_deref(), Some("lost"));
        // A worker that knows that the holder is dead takes the chain over.
        let over = ClaimRequest { takeover: true, ..ask(ledger, &a, LEASE).await };
        let Claim::Granted(third) = ledger.claim(over).await.unwrap() else { panic!("not taken over") };
        assert_eq!(ledger.hold(vec![held(&a, second.fence), held(&a, third.fence)]).await.unwrap(), [false, true]);
        finished(ledger, &a, third.fence, tick(ledger.now())).await;
        assert_eq!(ledger.hold(vec![held(&a, third.fence)]).await.unwrap(), [false], "finished");
        ledger.end_session(yours).await.unwrap();
        assert!(!ledger.beat(yours, Vec::new()).await.unwrap().alive);
    }
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_made_again_or_given_up() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hint = begun(ledger, "a").await;
        let (mine, yours) = (session(ledger, LEASE).await, session(ledger, LEASE).await);
        let of = async |session, again| {
            let request = ClaimRequest { session, again, ..ask(ledger, &hint, Duration::ZERO).await };
            ledger.claim(request).await.unwrap()
        };
        let Claim::Granted(unheard) = of(mine, false).await else { panic!("not granted") };
        assert_eq!((of(mine, false).await, of(yours, true).await), (Claim::Runs, Claim::Runs));
        let Claim::Granted(again) = of(mine, true).await else { panic!("not granted") };
        assert!(again.fence > unheard.fence && again.lost);
        let held = |fence| vec![ClaimId { epoch: hint.epoch, fence }];
        // Only by who holds it, and only that claim.
        for (session, fence) in [(yours, again.fence), (mine, unheard.fence)] {
            ledger.give_up(session, held(fence)).await.unwrap();
            assert_eq!(ledger.hold(held(again.fence)).await.unwrap(), [true]);
        }
        ledger.give_up(mine, held(again.fence)).await.unwrap();
        assert_eq!(ledger.hold(held(again.fence)).await.unwrap(), [false]);
        let records = ledger.attempts(Fence(unheard.fence.get() - 1), 10).await.unwrap();
        assert_eq!(records.iter().map(|record| record.verdict.as_deref()).collect::<Vec<_>>(), [Some("lost"); 2]);
        assert!(matches!(of(yours, false).await, Claim::Granted(_)));
    }
}

#[tokio::test]
async fn requests_of_a_run_are_accepted_with_its_end_and_not_without() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hint = begun(ledger, "a").await;
        let grant = granted(ledger, &hint, LEASE).await;
        let spawned = || vec![SpawnedJob { id: "s-1".into(), body: b"1".to_vec() }];
        let failed = || vec![FailedItem::new("page 7", "HTTP 404")];
        let next = tick(ledger.now());
        let finish = |fence| FinishRequest {
            spawned: spawned(),
            failed: failed(),
            ..end(&hint, fence, ledger.now(), next, Verdict::Done)
        };
        assert_eq!(ledger.finish(finish(Fence(grant.fence.get() + 1))).await.unwrap(), Finish::Fenced);
        assert!(ledger.kept_jobs(0, 10).await.unwrap().is_empty(), "a fenced run asks for nothing");
        assert!(matches!(ledger.finish(finish(grant.fence)).await.unwrap(), Finish::Applied(_)));
        ledger.accept("sync".into(), "a".into(), spawned(), Vec::new(), failed()).await.unwrap();
        let kept = ledger.kept_jobs(0, 10).await.unwrap();
        assert_eq!(kept.iter().map(|job| job.body.as_slice()).collect::<Vec<_>>(), [b"1"], "once, by its id");
        let failures = ledger.failures(10).await.unwrap();
        assert_eq!(failures.len(), 1);
        let first = &failures[0];
        assert_eq!((first.key.as_str(), first.item.as_str(), first.times), ("a", "page 7", 2));
    }
}

fn which(key: &str) -> ChainFilter {
    ChainFilter { kind: Some("sync".into()), key: Some(key.into()), ..ChainFilter::default() }
}

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

/// A manual run of `key`, due now.
async fn manual(ledger: &dyn Ledger, key: &str, manual: Manual) -> Hint {
    let run = NewChain { once: true, manual, ..chain(key, ledger.now()) };
    match ledger.enroll(vec![run]).await.unwrap().remove(0) {
        Enrolled::Created(hint) => hint,
        other => panic!("{other:?}"),
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
        let ask = async |hint: &Hint| ClaimRequest { guard, ..ask(ledger, hint, LEASE).await };
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
        let late = ledger.late(ledger.now() - SLACK, 10).await.unwrap();
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

#[tokio::test]
async fn the_record_of_a_holder_that_died_on_a_chain_that_ended_ends_too() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hint = begun(ledger, "a").await;
        granted(ledger, &hint, Duration::ZERO).await;
        ledger.order_chains(which("a"), ChainOrder::Retire).await.unwrap();
        ledger.end_left(10).await.unwrap();
        let records = ledger.attempts(Fence::NONE, 10).await.unwrap();
        assert_eq!(records.iter().map(|r| r.verdict.as_deref()).collect::<Vec<_>>(), [Some("lost")]);
        assert!(records[0].finished.is_some());
    }
}

#[tokio::test]
async fn a_session_is_told_its_claims_on_chains_that_do_not_tick() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (mine, yours) = (session(ledger, LEASE).await, session(ledger, LEASE).await);
        let mut fences = Vec::new();
        for (key, session) in [("ticks", mine), ("paused", mine), ("retired", mine), ("yours", yours)] {
            let hint = begun(ledger, key).await;
            let request = ClaimRequest { session, ..ask(ledger, &hint, Duration::ZERO).await };
            let Claim::Granted(grant) = ledger.claim(request).await.unwrap() else { panic!("not granted") };
            fences.push(grant.fence);
        }
        for (key, order) in
            [("paused", ChainOrder::Pause), ("retired", ChainOrder::Retire), ("yours", ChainOrder::Retire)]
        {
            ledger.order_chains(which(key), order).await.unwrap();
        }
        let left = async |session, limit| {
            let mut left = ledger.left_with(session, limit).await.unwrap();
            left.sort_by_key(|claim| claim.fence);
            left.iter().map(|claim| claim.fence).collect::<Vec<_>>()
        };
        assert_eq!(left(mine, 10).await, fences[1..3]);
        assert_eq!((left(mine, 1).await.len(), left(yours, 10).await), (1, vec![fences[3]]));
        let claims = ledger.left_with(mine, 10).await.unwrap();
        ledger.give_up(mine, claims).await.unwrap();
        assert_eq!(left(mine, 10).await, [0; 0]);
        let records = ledger.attempts(Fence::NONE, 10).await.unwrap();
        let open: Vec<Fence> = records.iter().filter(|record| record.verdict.is_none()).map(|r| r.fence).collect();
        assert_eq!(open, [fences[0], fences[3]]);
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

/// Two workers with the same messages: each tick is granted to one of them.
#[tokio::test(flavor = "multi_thread")]
async fn two_workers_of_one_ledger_share_its_chains() {
    for opened in shared().await {
        let workers = [opened.ledger.clone(), opened.again().await];
        let mut hints = Vec::new();
        for n in 0..50 {
            hints.push(begun(&*opened.ledger, &n.to_string()).await);
        }
        let mut runs = JoinSet::new();
        for hint in hints {
            for worker in workers.clone() {
                let hint = hint.clone();
                runs.spawn(async move {
                    match worker.claim(ask(&*worker, &hint, LEASE).await).await.unwrap() {
                        Claim::Granted(grant) => {
                            let due = grant.at + LEASE;
                            finished(&*worker, &hint, grant.fence, tick(due)).await;
                            Some((hint.epoch, grant.fence))
                        }
                        Claim::Runs | Claim::Stale(_) => None,
                        other => panic!("{other:?}"),
                    }
                });
            }
        }
        let granted: Vec<(Epoch, Fence)> = runs.join_all().await.into_iter().flatten().collect();
        assert_eq!(granted.len(), 50);
        assert_eq!(granted.iter().map(|(epoch, _)| epoch).collect::<BTreeSet<_>>().len(), 50, "each chain once");
        assert_eq!(granted.iter().map(|(_, fence)| fence).collect::<BTreeSet<_>>().len(), 50, "no fence twice");
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
