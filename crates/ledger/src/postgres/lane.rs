//! Lanes: each a connection on which verbs are written in groups.
//!
//! All verbs that have come while a lane's last transaction was on its way become its next one, so that under load
//! hundreds of verbs share two round trips and one flush to disk, and a single verb waits for no other; where many come a
//! group waits a moment for more (`linger`). All verbs of single chains take one lane, so within this worker they keep
//! their order and never wait for each other's locks. A second lane brought nothing: half as many verbs in each group,
//! and as long a wait. Notes, which have no waiting caller, are written with the lane's next group.
//!
//! An answer is given only once the commit that covers it is known. When the connection is lost
//! while a commit is on its way, the server is asked afterwards what became of it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use roundelay_model::backoff::ExponentialBackoff;
use roundelay_model::clock::Followed;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::connect::{Address, Session, Use, words};
use super::group::{self, Committing, Decisions, Failed, Manner, transact};
use crate::chain::Sent;
use crate::decide::{Decide, MarkSent, Page, Wanted};
use crate::error::LedgerError;
use crate::linger::{LOOK, Lateness, linger};
use crate::traffic::Counters;

/// The most verbs that share one transaction: a bound for how long the first of them waits.
const MAX_VERBS_PER_GROUP: usize = 512;
/// The most verbs that may wait in a lane; further callers are held up until there is room.
const QUEUE: usize = 8_192;
/// A note is written within this time when no verb comes that takes it along.
const NOTE_WITHIN: Duration = Duration::from_millis(50);
/// One transaction may take this long, waits for locks included.
const TRANSACTION: Duration = Duration::from_secs(12);
/// A group, with all that is tried for it, may take this long. What has no answer by then gets an
/// error.
const GROUP: Duration = Duration::from_secs(20);
/// How often a transaction is tried that conflicts with others.
const TRIES: u32 = 6;
/// The pauses between attempts to connect: the first, doubled up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_millis(200);
/// For how long the server is asked what became of a commit.
const RESOLVE: Duration = Duration::from_secs(5);

/// A verb, and the caller that waits for its answer.
trait Waiting: Decisions {
    fn answer(self: Box<Self>, committed: Result<(), LedgerError>);

    /// Whether a caller waits.
    fn is_waited_for(&self) -> bool {
        true
    }
}

struct Pending<V: Decide> {
    verb: V,
    answer: Option<V::Answer>,
    reply: oneshot::Sender<Result<V::Answer, LedgerError>>,
}

impl<V: Decide> Decisions for Pending<V> {
    fn wants(&self, wanted: &mut Wanted) {
        self.verb.wants(wanted);
    }

    fn wants_further(&self, page: &mut Page, wanted: &mut Wanted) {
        self.verb.wants_further(page, wanted);
    }

    fn decide(&mut self, page: &mut Page) {
        self.answer = Some(self.verb.decide(page));
    }
}

impl<V: Decide> Waiting for Pending<V> {
    fn answer(self: Box<Self>, committed: Result<(), LedgerError>) {
        let Self { answer, reply, .. } = *self;
        // The receiver is gone when the caller was dropped; what was written stays written.
        let _ = reply.send(committed.and_then(|()| answer.ok_or(LedgerError::Closed)));
    }
}

/// A verb that does nothing, to make a group that writes the notes.
struct Nudge;

impl Decisions for Nudge {
    fn wants(&self, _: &mut Wanted) {}
    fn wants_further(&self, _: &mut Page, _: &mut Wanted) {}
    fn decide(&mut self, _: &mut Page) {}
}

impl Waiting for Nudge {
    fn answer(self: Box<Self>, _: Result<(), LedgerError>) {}
    fn is_waited_for(&self) -> bool {
        false
    }
}

type Notes = Arc<Mutex<Vec<Sent>>>;

/// The way into a lane. The lane ends when the last of these is gone and everything is answered.
pub(super) struct Lane {
    sender: mpsc::Sender<Box<dyn Waiting>>,
    notes: Notes,
}

impl Lane {
    /// Connects and begins to write.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub(super) async fn open(
        address: &Address,
        clock: Arc<Followed>,
        counters: Arc<Counters>,
        late: Lateness,
    ) -> Result<Self, LedgerError> {
        let session = prepared(address).await?;
        let (sender, receiver) = mpsc::channel(QUEUE);
        let notes = Notes::default();
        let lane = Running {
            address: address.clone(),
            clock,
            counters,
            notes: notes.clone(),
            late,
            session: Some(session),
            backoff: ExponentialBackoff::new(FIRST_PAUSE, LAST_PAUSE),
            not_before: Instant::now(),
        };
        tokio::spawn(lane.run(receiver));
        Ok(Self { sender, notes })
    }

    /// A lane on which nothing can be written.
    pub(super) fn closed() -> Self {
        Self { sender: mpsc::channel(1).0, notes: Notes::default() }
    }

    /// Writes one verb and waits until it is committed.
    ///
    /// # Errors
    /// When it is not known to be written.
    pub(super) async fn write<V: Decide + 'static>(&self, verb: V) -> Result<V::Answer, LedgerError>
    where
        V::Answer: 'static,
    {
        let (reply, answer) = oneshot::channel();
        let pending = Box::new(Pending { verb, answer: None, reply });
        self.sender.send(pending).await.map_err(|_| LedgerError::Closed)?;
        answer.await.map_err(|_| LedgerError::Closed)?
    }

    /// Notes that a message was sent, some time soon. Left out when there is no room, since a lost
    /// note costs one surplus message.
    pub(super) fn note(&self, sent: Sent) {
        let mut notes = self.notes.lock();
        if notes.len() >= QUEUE {
            return;
        }
        notes.push(sent);
        if notes.len() == 1 {
            let sender = self.sender.downgrade();
            tokio::spawn(async move {
                sleep(NOTE_WITHIN).await;
                if let Some(sender) = sender.upgrade() {
                    let _ = sender.try_send(Box::new(Nudge));
                }
            });
        }
    }
}

/// Notes first, since what they tell happened first; then verbs, in the order in which they came.
struct Group {
    notes: MarkSent,
    verbs: Vec<Box<dyn Waiting>>,
}

impl Group {
    fn new(notes: Vec<Sent>, verbs: Vec<Box<dyn Waiting>>) -> Self {
        Self { notes: MarkSent { sent: notes, slack: None }, verbs }
    }

    fn answer(self, committed: &Result<(), LedgerError>) {
        self.verbs.into_iter().for_each(|verb| verb.answer(committed.clone()));
    }

    /// Whether the group is a single verb, so that a failure is its own.
    fn is_one(&self) -> bool {
        self.verbs.len() + usize::from(!self.notes.sent.is_empty()) <= 1
    }
}

impl Decisions for Group {
    fn wants(&self, wanted: &mut Wanted) {
        self.notes.wants(wanted);
        self.verbs.iter().for_each(|verb| verb.wants(wanted));
    }

    fn wants_further(&self, page: &mut Page, wanted: &mut Wanted) {
        self.verbs.iter().for_each(|verb| verb.wants_further(page, wanted));
    }

    fn decide(&mut self, page: &mut Page) {
        self.notes.decide(page);
        self.verbs.iter_mut().for_each(|verb| verb.decide(page));
    }
}

/// Why a group has no answers.
enum NotDone {
    /// It might go through if it were tried again.
    Again(String),
    /// It would fail again.
    Failed(String),
    /// It may be written.
    Unknown(String),
    /// The server cannot be reached.
    Away(LedgerError),
}

impl NotDone {
    fn error(self) -> LedgerError {
        match self {
            Self::Again(why) | Self::Failed(why) | Self::Unknown(why) => LedgerError::Statement(why),
            Self::Away(error) => error,
        }
    }
}

/// A lane at work.
struct Running {
    address: Address,
    clock: Arc<Followed>,
    counters: Arc<Counters>,
    notes: Notes,
    late: Lateness,
    session: Option<Session>,
    /// Before the attempt to connect after the next.
    backoff: ExponentialBackoff,
    /// When the next attempt to connect may be made.
    not_before: Instant,
}

impl Running {
    async fn run(mut self, mut receiver: mpsc::Receiver<Box<dyn Waiting>>) {
        let mut verbs = Vec::with_capacity(MAX_VERBS_PER_GROUP);
        let (mut ended, mut last) = (Instant::now(), 0);
        while receiver.recv_many(&mut verbs, MAX_VERBS_PER_GROUP).await > 0 {
            let mut waiting = 0;
            while verbs.len() > waiting {
                // The runtime's timers are no finer.
                if linger(last, verbs.len(), self.late.get()).saturating_sub(ended.elapsed()) < LOOK {
                    break;
                }
                sleep(LOOK).await;
                waiting = verbs.len();
                let room = MAX_VERBS_PER_GROUP.saturating_sub(waiting);
                verbs.extend(std::iter::from_fn(|| receiver.try_recv().ok()).take(room));
            }
            last = verbs.len();
            let notes = std::mem::take(&mut *self.notes.lock());
            let group = Group::new(notes, std::mem::take(&mut verbs));
            if group.notes.sent.is_empty() && !group.verbs.iter().any(|verb| verb.is_waited_for()) {
                continue;
            }
            if let Err(error) = self.write(group).await {
                // The verbs behind would wait as long again for the same error.
                while let Ok(verb) = receiver.try_recv() {
                    verb.answer(Err(error.clone()));
                }
            }
            ended = Instant::now();
        }
    }

    /// Writes a group and answers all of it.
    ///
    /// # Errors
    /// When the server could not be reached, which has been answered too.
    async fn write(&mut self, mut group: Group) -> Result<(), LedgerError> {
        let deadline = Instant::now() + GROUP;
        let manner = Manner { lazy: !group.verbs.iter().any(|verb| verb.is_waited_for()), impatient: false };
        match self.insist(&mut group, manner, deadline).await {
            Ok(()) => group.answer(&Ok(())),
            // One of them failed, and the others' transaction with it. So each is written by itself.
            Err(NotDone::Failed(_) | NotDone::Again(_)) if !group.is_one() => self.each(group, deadline).await,
            Err(NotDone::Away(error)) => {
                self.keep_notes(std::mem::take(&mut group.notes.sent));
                group.answer(&Err(error.clone()));
                return Err(error);
            }
            // Nor is one that may be written carried out again: a claim would find itself. Its caller asks again, and
            // says so.
            Err(failed) => group.answer(&Err(failed.error())),
        }
        Ok(())
    }

    /// Writes each verb of a group by itself. A row that another transaction keeps locked costs each verb that needs it
    /// a moment, and the others nothing.
    async fn each(&mut self, group: Group, deadline: Instant) {
        let Group { notes, verbs } = group;
        let alone = std::iter::once(Group { notes, verbs: Vec::new() })
            .chain(verbs.into_iter().map(|verb| Group::new(Vec::new(), vec![verb])));
        for mut alone in alone {
            let written = if Instant::now() < deadline {
                self.insist(&mut alone, Manner { lazy: false, impatient: true }, deadline).await
            } else {
                Err(NotDone::Failed("it was not reached in time, since others failed before it".into()))
            };
            alone.answer(&written.map_err(NotDone::error));
        }
    }

    /// Tries again while others are in the way, or a connection is lost with nothing written.
    async fn insist(&mut self, group: &mut Group, manner: Manner, deadline: Instant) -> Result<(), NotDone> {
        let mut tries = 1;
        loop {
            match self.attempt(group, manner, deadline).await {
                Err(NotDone::Again(_)) if tries < TRIES && Instant::now() < deadline => tries += 1,
                done => return done,
            }
        }
    }

    async fn attempt(&mut self, group: &mut Group, manner: Manner, deadline: Instant) -> Result<(), NotDone> {
        let clock = self.clock.clone();
        let session = self.session().await.map_err(NotDone::Away)?;
        let until = deadline.min(Instant::now() + TRANSACTION);
        let mut committing = None;
        let why = match timeout_at(until, transact(session, group, &clock, manner, &mut committing)).await {
            Ok(Ok(())) => {
                self.counters.wrote(false);
                return Ok(());
            }
            Ok(Err(Failed::Lost(why))) => why,
            Err(_) => "it has not answered in time".to_owned(),
            Ok(Err(other)) => {
                // What is left open would make the next transaction fail.
                let closed = timeout(RESOLVE, session.client.batch_execute("ROLLBACK")).await;
                if !matches!(closed, Ok(Ok(()))) {
                    self.session = None;
                }
                return Err(match other {
                    Failed::Again(why) => NotDone::Again(why),
                    Failed::Statement(why) | Failed::Lost(why) => NotDone::Failed(why),
                });
            }
        };
        self.session = None;
        tracing::warn!(error = why, "lost a connection to the ledger; reconnecting");
        match committing {
            None => Err(NotDone::Again(format!("the connection was lost, and nothing was written: {why}"))),
            Some(transaction) => self.resolve(&transaction, &why).await,
        }
    }

    /// Asks what became of a transaction whose commit was on its way.
    async fn resolve(&mut self, transaction: &Committing, why: &str) -> Result<(), NotDone> {
        let deadline = Instant::now() + RESOLVE;
        let unknown = format!("the connection was lost, and whether it was written is not known: {why}");
        while Instant::now() < deadline {
            let session = self.session().await.map_err(|_| NotDone::Unknown(unknown.clone()))?;
            let status = match timeout_at(deadline, transaction.fate(session)).await {
                Ok(Ok(status)) => status,
                Ok(Err(error)) => {
                    tracing::debug!(error = words(&error), "failed to ask what became of a commit");
                    self.session = None;
                    continue;
                }
                Err(_) => None,
            };
            match status.as_deref() {
                Some("committed") => return Ok(()),
                Some("aborted") => {
                    return Err(NotDone::Again(format!("the connection was lost, and nothing was written: {why}")));
                }
                // The server has not noticed yet that the connection is gone.
                Some("in progress") => sleep(FIRST_PAUSE).await,
                _ => break,
            }
        }
        // It may be waiting for an answer still.
        self.session = None;
        Err(NotDone::Unknown(unknown))
    }

    /// The connection; a new one when the last was lost.
    async fn session(&mut self) -> Result<&Session, LedgerError> {
        if self.session.as_ref().is_none_or(|session| session.client.is_closed()) {
            self.session = None;
            sleep_until(self.not_before).await;
            let opened = prepared(&self.address).await;
            // Counted from here also when it worked, in case it does not last.
            self.not_before = Instant::now() + self.backoff.next_pause();
            match opened {
                Ok(session) => {
                    self.session = Some(session);
                    self.backoff.reset();
                }
                Err(error) => return Err(error),
            }
        }
        self.session.as_ref().ok_or(LedgerError::Closed)
    }

    /// Notes that could not be written wait for the next group.
    fn keep_notes(&self, mut earlier: Vec<Sent>) {
        let mut notes = self.notes.lock();
        earlier.append(&mut notes);
        earlier.truncate(QUEUE);
        *notes = earlier;
    }
}

/// A connection for writing, with the usual statements prepared.
async fn prepared(address: &Address) -> Result<Session, LedgerError> {
    let session = address.connect(Use::Write).await?;
    let all = join_all(group::PREPARED_STATEMENTS.map(|sql| session.statement(sql)));
    match timeout(RESOLVE, all).await {
        Ok(done) => match done.into_iter().find_map(Result::err) {
            None => Ok(session),
            Some(error) => Err(address.failed(words(&error))),
        },
        Err(_) => Err(address.failed("it does not answer")),
    }
}
