//! The truth about chains: the verbs, and the words they share.
//!
//! Messages are replaceable hints; what the ledger says counts. Each verb is one transaction.
//! [`judge`] decides about a claim purely, so that every ledger decides alike.
//!
//! - [`sqlite`]: a file on this machine, written by one thread with group commit.

pub mod sqlite;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;

use crate::clock::Time;
use crate::job::{ChainRef, Envelope, VERSION};
use crate::outcome::{Next, Verdict};

/// What a chain is doing, as the ledger stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainState {
    /// It ticks.
    Active = 0,
    /// An operator has stopped it; it keeps its place.
    Paused = 1,
    /// It has ended.
    Retired = 2,
    /// Its messages are ahead of the ledger; a person must decide.
    Quarantined = 3,
}

impl ChainState {
    /// The state stored as `number`.
    pub fn from_number(number: i64) -> Self {
        match number {
            0 => Self::Active,
            1 => Self::Paused,
            2 => Self::Retired,
            _ => Self::Quarantined,
        }
    }
}

/// A chain to begin.
#[derive(Clone, Debug)]
pub struct NewChain {
    /// Which handler.
    pub kind: String,
    /// Which entity.
    pub key: String,
    /// Its platform queue.
    pub queue: String,
    /// What the handler gets, as JSON text.
    pub payload: String,
    /// When its first tick is due.
    pub due: Time,
    /// When catch-up looks after it, if its first message has not been marked as sent by then.
    pub watch_at: Time,
}

/// What became of a [`NewChain`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enrolled {
    /// It begins; this is its first message.
    Created(Hint),
    /// It was there already, and its payload and queue are the same.
    Unchanged,
    /// It was there already; payload or queue have been brought up to date.
    Updated,
    /// It has ended before, and stays so.
    Retired,
}

/// What a chain's message says: that an attempt of a tick is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Which handler.
    pub kind: String,
    /// Which entity.
    pub key: String,
    /// The platform queue.
    pub queue: String,
    /// The chain's incarnation.
    pub epoch: i64,
    /// The occurrence, from 1.
    pub tick: i64,
    /// The try, from 1.
    pub attempt: u32,
    /// When.
    pub due: Time,
}

impl Hint {
    /// The message, as the engine of `ledger` writes it.
    pub fn envelope(&self, ledger: &str) -> Envelope {
        Envelope {
            v: VERSION,
            kind: self.kind.clone(),
            key: self.key.clone(),
            queue: Some(self.queue.clone()),
            due: Some(self.due),
            attempt: self.attempt,
            id: None,
            payload: serde_json::Value::Null,
            chain: Some(ChainRef { ledger: ledger.into(), epoch: self.epoch, tick: self.tick }),
        }
    }

    /// What to mark as sent once the message is confirmed.
    pub fn sent(&self) -> Sent {
        Sent { epoch: self.epoch, tick: self.tick, attempt: self.attempt, due: self.due }
    }
}

/// Names the message that was confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The chain's incarnation.
    pub epoch: i64,
    /// The occurrence.
    pub tick: i64,
    /// The try.
    pub attempt: u32,
    /// When it is due.
    pub due: Time,
}

/// A worker asks to run an attempt.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// What the message says.
    pub hint: Hint,
    /// Who asks.
    pub worker: Arc<str>,
    /// For how long the claim holds.
    pub lease: Duration,
}

/// The answer to a [`ClaimRequest`].
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    /// Run it.
    Granted(Grant),
    /// Somebody runs it, until then at the latest.
    Held {
        /// When the lease ends.
        until: Time,
    },
    /// It is due later than the message says; this is the message that counts.
    Early(Hint),
    /// The chain is past this. When the message that follows is not known to have been sent, here
    /// it is, to be sent before this one is acknowledged.
    Stale(Option<Hint>),
    /// The chain does not tick (retired, paused, quarantined, or gone).
    Idle,
    /// The message is ahead of the ledger.
    Future,
    /// The epoch is that of another chain.
    Other {
        /// Its kind.
        kind: String,
        /// Its key.
        key: String,
    },
}

/// Leave to run one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// Names this claim; the finish succeeds only while it is the chain's last.
    pub fence: i64,
    /// When the tick was first due.
    pub nominal: Time,
    /// When this attempt was due.
    pub due: Time,
    /// When it was claimed, by the ledger's clock.
    pub at: Time,
    /// What the handler gets, as JSON text.
    pub payload: String,
}

/// What a run ended as, to be written if its fence still holds.
#[derive(Clone, Debug)]
pub struct FinishRequest {
    /// The chain's incarnation.
    pub epoch: i64,
    /// The occurrence that ran.
    pub tick: i64,
    /// The try that ran.
    pub attempt: u32,
    /// The claim.
    pub fence: i64,
    /// When it ended.
    pub at: Time,
    /// What follows.
    pub next: Next,
    /// What to call it.
    pub verdict: Verdict,
    /// Why, unless it worked.
    pub reason: Option<String>,
    /// How long after the next due time catch-up looks after the chain.
    pub slack: Duration,
}

/// The answer to a [`FinishRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// Written. The message to send, unless the chain has stopped ticking.
    Applied(Option<Hint>),
    /// Another claim came between; nothing of this run counts.
    Fenced,
}

/// A chain that catch-up should look after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// Its current message.
    pub hint: Hint,
    /// Whether that message is known to have been sent.
    pub sent: bool,
    /// When that message was to arrive on its queue. Unlike `hint.due` it moves when catch-up
    /// sends it again, spread over its window.
    pub expected: Time,
    /// When it was to be looked after.
    pub watch_at: Time,
    /// How often catch-up has sent this message already.
    pub looks: u32,
    /// The end of its lease; zero when it has none.
    pub lease_until: Time,
}

/// Catch-up's note on a chain: when to look again. Refused when somebody else was faster.
#[derive(Clone, Copy, Debug)]
pub struct LookAgain {
    /// The chain's incarnation.
    pub epoch: i64,
    /// What [`Overdue::watch_at`] was.
    pub from: Time,
    /// What it becomes.
    pub to: Time,
    /// What [`Overdue::looks`] becomes.
    pub looks: u32,
    /// What [`Overdue::expected`] becomes, when the message is sent again.
    pub expected: Option<Time>,
}

/// A one-off job that the ledger keeps, because the broker does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptJob {
    /// Grows with every job.
    pub number: i64,
    /// The message body.
    pub body: Vec<u8>,
}

/// A failure for a person to look at.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Failure {
    /// Which handler.
    pub kind: String,
    /// Which entity.
    pub key: String,
    /// What the handler said.
    pub reason: String,
    /// How often the entity has failed for good since the first time.
    pub times: i64,
    /// The last time.
    pub last_at: Time,
}

/// Figures for `roundelay status`.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct Census {
    /// Chains that tick, by queue.
    pub queues: Vec<QueueCensus>,
    /// Chains that an operator has stopped.
    pub paused: i64,
    /// Chains that have ended.
    pub retired: i64,
    /// Chains whose messages were ahead of the ledger.
    pub quarantined: i64,
    /// Entities with a kept failure.
    pub failures: i64,
    /// Messages kept in the ledger because they could not be used.
    pub quarantined_messages: i64,
    /// One-off jobs kept in the ledger.
    pub kept_jobs: i64,
    /// When the longest overdue chain was due.
    pub oldest_due: Option<Time>,
}

/// The active chains of one queue.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct QueueCensus {
    /// The platform queue.
    pub queue: String,
    /// Due in the future.
    pub sleeping: i64,
    /// Being run.
    pub running: i64,
    /// Due, and not being run.
    pub due: i64,
    /// Of these, due for longer than the slack.
    pub overdue: i64,
    /// With a successor not known to have been sent.
    pub unsent: i64,
}

/// What went wrong with the ledger; phrased to follow "failed to …: ".
#[derive(Clone, Debug, thiserror::Error)]
pub enum LedgerError {
    /// It cannot be opened.
    #[error("cannot open the ledger {path}: {reason}")]
    Open {
        /// The file.
        path: String,
        /// What SQLite or the system says.
        reason: String,
    },
    /// A statement failed.
    #[error("the ledger says: {0}")]
    Statement(String),
    /// The engine is stopping.
    #[error("the ledger is closed")]
    Closed,
}

/// Keeps the truth.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// Names this ledger; chains' messages carry it.
    fn id(&self) -> &str;

    /// The time that decides dues and leases.
    fn now(&self) -> Time;

    /// Begins chains that do not exist yet, and brings payload and queue of the others up to date.
    /// One answer for each, in order.
    ///
    /// # Errors
    /// When nothing of it was written.
    async fn enroll(&self, chains: Vec<NewChain>) -> Result<Vec<Enrolled>, LedgerError>;

    /// Notes that messages were confirmed, and (with `slack`) moves catch-up's look to after
    /// their due time.
    ///
    /// # Errors
    /// When nothing of it was written.
    async fn enrolled_sent(&self, sent: Vec<Sent>, slack: Duration) -> Result<(), LedgerError>;

    /// Asks to run an attempt.
    ///
    /// # Errors
    /// When the ledger cannot be written; then nothing was granted.
    async fn claim(&self, request: ClaimRequest) -> Result<Claim, LedgerError>;

    /// Writes the end of a run.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn finish(&self, request: FinishRequest) -> Result<Finish, LedgerError>;

    /// Notes that a message was confirmed; need not be durable at once, since a lost note costs
    /// one surplus message.
    fn mark_sent(&self, sent: Sent);

    /// Writes what was noted and is not written yet. A worker asks for it when it stops.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn flush(&self) -> Result<(), LedgerError>;

    /// The chains of this queue and these kinds to look after at `now`, longest overdue first.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn overdue(
        &self,
        queue: String,
        kinds: Vec<String>,
        now: Time,
        limit: u32,
    ) -> Result<Vec<Overdue>, LedgerError>;

    /// Writes when to look again; answers, for each, whether nobody else was faster.
    ///
    /// # Errors
    /// When nothing of it was written.
    async fn look_again(&self, looks: Vec<LookAgain>) -> Result<Vec<bool>, LedgerError>;

    /// Current messages of active chains of these queues and kinds with epochs above `after`, in
    /// their order.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn messages(
        &self,
        queues: Vec<String>,
        kinds: Vec<String>,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Hint>, LedgerError>;

    /// Keeps a failed one-off job's reason.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn record_failure(&self, kind: String, key: String, reason: String, at: Time) -> Result<(), LedgerError>;

    /// The kept failures, latest first.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn failures(&self, limit: u32) -> Result<Vec<Failure>, LedgerError>;

    /// Keeps a message that cannot be used, where the broker keeps none.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn quarantine(&self, from: String, reason: String, body: Vec<u8>, at: Time) -> Result<(), LedgerError>;

    /// Keeps a one-off job under its id, in place of an earlier attempt, until it is forgotten.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn keep_job(&self, id: String, body: Vec<u8>) -> Result<(), LedgerError>;

    /// Kept jobs with numbers above `after`.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn kept_jobs(&self, after: i64, limit: u32) -> Result<Vec<KeptJob>, LedgerError>;

    /// Forgets a kept job that has ended.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn forget_job(&self, id: String) -> Result<(), LedgerError>;

    /// Deletes records of attempts that ended before `before`, looking at the `limit` oldest;
    /// returns how many.
    ///
    /// # Errors
    /// When nothing was deleted.
    async fn prune(&self, before: Time, limit: u32) -> Result<usize, LedgerError>;

    /// Counts chains.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn census(&self, slack: Duration) -> Result<Census, LedgerError>;
}

/// A chain as a claim finds it.
#[derive(Clone, Debug)]
pub struct ChainRow {
    /// Its current message.
    pub hint: Hint,
    /// What it is doing.
    pub state: ChainState,
    /// When the tick was first due.
    pub nominal: Time,
    /// The end of its lease; zero when it has none.
    pub lease_until: Time,
    /// Whether the current message is known to have been sent.
    pub sent: bool,
}

/// What a claim comes to, short of granting it.
#[derive(Clone, Debug, PartialEq)]
pub enum Judgement {
    /// Grant it.
    Grant,
    /// Answer this.
    Answer(Claim),
}

/// Decides about a claim (pure). `row` is the chain with the requested epoch, `newest_epoch` the
/// largest epoch that this ledger ever gave.
pub fn judge(row: Option<&ChainRow>, newest_epoch: i64, request: &ClaimRequest, now: Time) -> Judgement {
    let answer = Judgement::Answer;
    let asked = &request.hint;
    let Some(row) = row else {
        return answer(if asked.epoch > newest_epoch { Claim::Future } else { Claim::Idle });
    };
    if (&asked.kind, &asked.key) != (&row.hint.kind, &row.hint.key) {
        return answer(Claim::Other { kind: row.hint.kind.clone(), key: row.hint.key.clone() });
    }
    if row.state != ChainState::Active {
        return answer(Claim::Idle);
    }
    let unsent = || (!row.sent).then(|| row.hint.clone());
    let (place, current) = ((asked.tick, asked.attempt), (row.hint.tick, row.hint.attempt));
    if place > current {
        return answer(Claim::Future);
    }
    if place < current {
        return answer(Claim::Stale(unsent()));
    }
    if row.lease_until > now {
        return answer(Claim::Held { until: row.lease_until });
    }
    if row.hint.due > now {
        // The same attempt was put off since this message was sent, and has another message of
        // its own; or this is that message, a little early.
        return answer(if asked.due < row.hint.due && row.sent {
            Claim::Stale(None)
        } else {
            Claim::Early(row.hint.clone())
        });
    }
    Judgement::Grant
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> ChainRow {
        let hint = Hint {
            kind: "k".into(),
            key: "x".into(),
            queue: "q".into(),
            epoch: 5,
            tick: 3,
            attempt: 2,
            due: Time::from_millis(1_000),
        };
        ChainRow {
            hint,
            state: ChainState::Active,
            nominal: Time::from_millis(900),
            lease_until: Time::from_millis(0),
            sent: true,
        }
    }

    fn ask(tick: i64, attempt: u32) -> ClaimRequest {
        let hint = Hint { tick, attempt, ..row().hint };
        ClaimRequest { hint, worker: "w".into(), lease: Duration::from_secs(1) }
    }

    #[test]
    fn a_table_of_claims() {
        let now = Time::from_millis(1_000);
        let hint = row().hint;
        let changed = |change: fn(&mut ChainRow)| {
            let mut row = row();
            change(&mut row);
            row
        };
        let answer = Judgement::Answer;
        let table = [
            ("current", row(), ask(3, 2), Judgement::Grant),
            ("older tick", row(), ask(2, 9), answer(Claim::Stale(None))),
            ("older attempt", row(), ask(3, 1), answer(Claim::Stale(None))),
            (
                "older, successor unsent",
                changed(|r| r.sent = false),
                ask(2, 1),
                answer(Claim::Stale(Some(hint.clone()))),
            ),
            ("newer tick", row(), ask(4, 1), answer(Claim::Future)),
            ("newer attempt", row(), ask(3, 3), answer(Claim::Future)),
            ("unsent but current", changed(|r| r.sent = false), ask(3, 2), Judgement::Grant),
            ("paused", changed(|r| r.state = ChainState::Paused), ask(3, 2), answer(Claim::Idle)),
            ("retired", changed(|r| r.state = ChainState::Retired), ask(2, 2), answer(Claim::Idle)),
            (
                "held",
                changed(|r| r.lease_until = Time::from_millis(1_001)),
                ask(3, 2),
                answer(Claim::Held { until: Time::from_millis(1_001) }),
            ),
            ("lease over", changed(|r| r.lease_until = Time::from_millis(1_000)), ask(3, 2), Judgement::Grant),
            (
                "put off since",
                changed(|r| r.hint.due = Time::from_millis(1_500)),
                ask(3, 2),
                answer(Claim::Stale(None)),
            ),
        ];
        for (label, row, request, expected) in table {
            assert_eq!(judge(Some(&row), 9, &request, now), expected, "{label}");
        }
        let mut stranger = ask(3, 2);
        stranger.hint.key = "y".into();
        let other = Claim::Other { kind: "k".into(), key: "x".into() };
        assert_eq!(judge(Some(&row()), 9, &stranger, now), answer(other), "another chain's epoch");
        let mut early = ask(3, 2);
        early.hint.due = Time::from_millis(1_500);
        let later = changed(|r| r.hint.due = Time::from_millis(1_500));
        assert_eq!(
            judge(Some(&later), 9, &early, now),
            answer(Claim::Early(later.hint.clone())),
            "its own message, early"
        );
        assert_eq!(judge(None, 4, &ask(1, 1), now), answer(Claim::Future), "an epoch never given");
        assert_eq!(judge(None, 5, &ask(1, 1), now), answer(Claim::Idle), "an epoch that is gone");
    }
}
