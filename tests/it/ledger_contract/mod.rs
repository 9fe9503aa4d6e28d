//! What every ledger must do, held against each of them. Here: what the other files of this folder share, how chains
//! are enrolled, how their ticks are claimed and finished, and what catch-up finds.

mod access;
mod backlog;
mod batches;
mod claims;
mod cuts;
mod deaths;
mod differential;
mod differential_acts;
mod differential_side;
mod differential_verbs;
mod discovered;
mod failed;
mod fleet;
mod guards;
mod kept;
mod learned;
mod list;
mod orders;
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
    Kinds, Ledger, LedgerError, LedgerUrl, LookAgain, NewChain, SpawnedJob,
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
        ahead: Duration::ZERO,
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
        left_out: Default::default(),
        carry: None,
        learned: None,
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

/// The chain of this key, for an order.
fn which(key: &str) -> ChainFilter {
    ChainFilter { kind: Some("sync".into()), key: Some(key.into()), ..ChainFilter::default() }
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
async fn a_claim_ahead_of_the_due_time_counts_from_the_due_time() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let due = ledger.now() + LEASE;
        let Enrolled::Created(hint) = ledger.enroll(vec![chain("a", due)]).await.unwrap().remove(0) else { panic!() };
        let asked = async |ahead| {
            let request = ClaimRequest { ahead, ..ask(ledger, &hint, LEASE).await };
            ledger.claim(request).await.unwrap()
        };
        assert_eq!(asked(LEASE / 2).await, Claim::Early(hint.clone()), "further ahead than may be claimed");
        let Claim::Granted(grant) = asked(LEASE).await else { panic!("not granted") };
        assert_eq!((grant.at, grant.due), (due, due));
        let record = ledger.attempts(Fence(grant.fence.get() - 1), 1).await.unwrap().remove(0);
        assert_eq!(record.started, due);
        assert_eq!(ledger.chains("sync".into(), "a".into()).await.unwrap()[0].last_start, due);
        assert_eq!(asked(LEASE).await, Claim::Runs, "and it is held from now on");
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
