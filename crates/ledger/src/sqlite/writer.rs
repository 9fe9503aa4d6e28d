//! One thread that writes, with group commit.
//!
//! All verbs that have come while the last commit was on its way to the disk become one transaction, so that under load
//! many verbs share one `fsync`, and a single verb waits for no other. An answer is given only after the commit that
//! covers it. Notes, which have no waiting caller, are written with the next verb.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::disk;
use super::page::LastNumbers;
use super::schema;
use super::store::Store;
use crate::error::LedgerError;

/// The most verbs that share one commit: a bound for how long the first of them waits.
const MAX_WRITES_PER_COMMIT: usize = 512;
/// For each verb of the last commit the next begins this much later, and no more than that.
const LINGER: Duration = Duration::from_micros(100);
const MAX_LINGER: Duration = Duration::from_millis(2);
/// Where ticks are late, `MAX_LINGER` grows to a twentieth of the lateness, up to this many times itself.
const MAX_LINGER_FACTOR: u32 = 4;
/// A writer that waits for more verbs goes on when none has come for this long.
const LOOK: Duration = Duration::from_millis(1);
/// A group of this many verbs waits for no more; where ticks are late, of twice as many.
const ENOUGH: usize = 64;
/// The most verbs that may wait; further callers are held up until there is room.
const QUEUE: usize = 8_192;

/// A note is written within this time when no verb comes that takes it along.
const NOTE_WITHIN: Duration = Duration::from_millis(50);

/// A verb waiting to be written. It may be tried twice: once in a group, and once more alone when
/// another member of the group has spoilt that transaction.
pub trait WriteOp: Send {
    fn attempt(&mut self, store: &mut Store) -> rusqlite::Result<()>;
    fn answer(self: Box<Self>, committed: Result<(), LedgerError>);
}

struct Pending<T, F> {
    verb: F,
    result: Option<T>,
    reply: oneshot::Sender<Result<T, LedgerError>>,
}

impl<T, F> WriteOp for Pending<T, F>
where
    T: Send,
    F: FnMut(&mut Store) -> rusqlite::Result<T> + Send,
{
    fn attempt(&mut self, store: &mut Store) -> rusqlite::Result<()> {
        self.result = Some((self.verb)(store)?);
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), LedgerError>) {
        let Self { result, reply, .. } = *self;
        // The receiver is gone when the caller was dropped; what was written stays written.
        let _ = reply.send(committed.and_then(|()| result.ok_or(LedgerError::Closed)));
    }
}

/// A verb that does nothing, to make a group that takes the notes along.
struct Nothing;

impl WriteOp for Nothing {
    fn attempt(&mut self, _store: &mut Store) -> rusqlite::Result<()> {
        Ok(())
    }

    fn answer(self: Box<Self>, _committed: Result<(), LedgerError>) {}
}

/// Verbs without a waiting caller.
type Notes = Arc<Mutex<Vec<Box<dyn WriteOp>>>>;

/// How late the tick was that was claimed last, in milliseconds.
#[derive(Clone, Default)]
pub struct Lateness(Arc<AtomicU64>);

impl Lateness {
    /// A tick is claimed so long after it was due.
    pub fn of_claim(&self, late: Duration) {
        self.0.store(u64::try_from(late.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// Where verbs are written.
pub enum Writer {
    /// On a thread of its own, in groups.
    Thread(WriterThread),
    /// On the caller's, each alone: for a ledger in memory, and for simulation, where virtual time
    /// would run on while another thread works.
    Inline(Arc<Mutex<Store>>),
    /// Nowhere: the ledger is only looked at.
    Nowhere,
}

/// The thread that writes. Dropped, it waits until everything asked for is written and the file is closed: who closes a
/// file last has SQLite copy the log into it, and a program that ends earlier would leave that undone.
pub struct WriterThread {
    /// None while it is dropped.
    sender: Option<mpsc::Sender<Box<dyn WriteOp>>>,
    notes: Notes,
    thread: Option<thread::JoinHandle<()>>,
}

impl WriterThread {
    fn sender(&self) -> Result<&mpsc::Sender<Box<dyn WriteOp>>, LedgerError> {
        self.sender.as_ref().ok_or(LedgerError::Closed)
    }
}

impl Drop for WriterThread {
    fn drop(&mut self) {
        drop(self.sender.take());
        if let Some(thread) = self.thread.take() {
            // A verb that panics is caught, and its caller told.
            let _ = thread.join();
        }
    }
}

impl Writer {
    /// Starts the thread. It ends when the writer is dropped and everything asked for is written.
    pub fn spawn(store: Store, late: Lateness) -> std::io::Result<Self> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let notes = Notes::default();
        let theirs = notes.clone();
        let run = move || write_groups(store, receiver, &theirs, &late);
        let thread = Some(thread::Builder::new().name("ledger".into()).spawn(run)?);
        Ok(Self::Thread(WriterThread { sender: Some(sender), notes, thread }))
    }

    /// Writes one verb and waits until it is committed.
    pub async fn write<T, F>(&self, mut verb: F) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        F: FnMut(&mut Store) -> rusqlite::Result<T> + Send + 'static,
    {
        match self {
            Self::Inline(store) => {
                let mut store = store.lock();
                in_transaction(&mut store, |store| verb(store))
            }
            Self::Thread(thread) => {
                let (reply, answer) = oneshot::channel();
                let pending = Box::new(Pending { verb, result: None, reply });
                thread.sender()?.send(pending).await.map_err(|_| LedgerError::Closed)?;
                answer.await.map_err(|_| LedgerError::Closed)?
            }
            Self::Nowhere => Err(LedgerError::Statement("it was opened to be looked at only".into())),
        }
    }

    /// Writes one verb some time soon and does not wait. Left out when there is no room, so only
    /// for what may be lost.
    pub fn write_later<F>(&self, mut verb: F)
    where
        F: FnMut(&mut Store) -> rusqlite::Result<()> + Send + 'static,
    {
        match self {
            Self::Inline(store) => {
                let mut store = store.lock();
                if let Err(error) = in_transaction(&mut store, |store| verb(store)) {
                    tracing::warn!(%error, "a note in the ledger was lost");
                }
            }
            Self::Thread(thread) => {
                let Ok(sender) = thread.sender() else { return };
                let (reply, _) = oneshot::channel();
                let mut notes = thread.notes.lock();
                if notes.len() < QUEUE {
                    notes.push(Box::new(Pending { verb, result: None, reply }));
                }
                if notes.len() == 1 {
                    // Only while the writer is still held; no caller waits for this.
                    let sender = sender.downgrade();
                    tokio::spawn(async move {
                        tokio::time::sleep(NOTE_WITHIN).await;
                        if let Some(sender) = sender.upgrade() {
                            let _ = sender.try_send(Box::new(Nothing));
                        }
                    });
                }
            }
            Self::Nowhere => {}
        }
    }
}

fn write_groups(mut store: Store, mut receiver: mpsc::Receiver<Box<dyn WriteOp>>, notes: &Notes, late: &Lateness) {
    let mut group: Vec<Box<dyn WriteOp>> = Vec::with_capacity(MAX_WRITES_PER_COMMIT);
    let mut before = (Instant::now(), 0);
    while receiver.blocking_recv_many(&mut group, MAX_WRITES_PER_COMMIT) > 0 {
        let (ended, verbs) = before;
        let mut company = true;
        while company {
            let left = linger(verbs, group.len(), late.get()).saturating_sub(ended.elapsed());
            if left.is_zero() {
                break;
            }
            #[allow(clippy::disallowed_methods)] // This thread is no task.
            thread::sleep(left.min(LOOK));
            let waited = group.len();
            while group.len() < MAX_WRITES_PER_COMMIT
                && let Ok(verb) = receiver.try_recv()
            {
                group.push(verb);
            }
            company = group.len() > waited;
        }
        before.1 = group.len();
        // First, since what they tell happened first.
        let mut told = std::mem::take(&mut *notes.lock());
        told.append(&mut group);
        group = told;
        let mut begun = false;
        let together = in_transaction(&mut store, |store| {
            begun = true;
            group.iter_mut().try_for_each(|verb| verb.attempt(store))
        });
        match together {
            Ok(()) => group.drain(..).for_each(|verb| verb.answer(Ok(()))),
            // One of them failed, and the others' transaction with it. So each is written by itself.
            Err(_) if begun => group.drain(..).for_each(|mut verb| {
                let alone = in_transaction(&mut store, |store| verb.attempt(store));
                verb.answer(alone);
            }),
            // The transaction could not even begin. To try each verb by itself would take as long again for each.
            Err(error) => group.drain(..).for_each(|verb| verb.answer(Err(error.clone()))),
        }
        before.0 = Instant::now();
    }
}

/// How long after the last commit the next begins, when so many verbs were in that one, and so many wait by now (pure).
/// The busier the ledger is, the longer it is worth to wait for more verbs: most of the cost of a commit does not
/// depend on how many share it. A single verb waits for no other, and where enough verbs have come no more are waited
/// for. Where ticks are `late` anyway there is more work than can be done, and a low cost for each counts: then the
/// wait may be a twentieth of that lateness, within bounds.
fn linger(last: usize, waiting: usize, late: Duration) -> Duration {
    let patience = u32::try_from((late / 20).as_millis() / MAX_LINGER.as_millis()).unwrap_or(u32::MAX);
    let patience = patience.clamp(1, MAX_LINGER_FACTOR);
    // No more than that: all jobs that a worker runs may wait already, and then no more verbs come.
    if waiting >= ENOUGH * patience.min(2) as usize || last <= 1 {
        return Duration::ZERO;
    }
    (LINGER * u32::try_from(last).unwrap_or(u32::MAX)).min(MAX_LINGER * patience)
}

fn in_transaction<T>(
    store: &mut Store,
    work: impl FnOnce(&mut Store) -> rusqlite::Result<T>,
) -> Result<T, LedgerError> {
    let run = |store: &mut Store| {
        // What an earlier failure left open would make every later transaction fail.
        if !store.connection.is_autocommit() {
            store.connection.execute_batch("ROLLBACK")?;
        }
        store.slots = false;
        store.last_numbers = LastNumbers::default();
        // IMMEDIATE takes the write lock at once: a transaction that reads first and then writes
        // could find that another process has written between, and fail.
        store.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        // Whatever ends it, the lock is given back: a newer program may be waiting for it.
        match schema::still_ours(&store.connection).and_then(|()| work(store)).and_then(|value| {
            store.connection.prepare_cached("COMMIT")?.execute([])?;
            Ok(value)
        }) {
            Ok(value) => {
                store.counters.wrote(store.slots);
                Ok(value)
            }
            Err(error) => {
                let _ = store.connection.execute_batch("ROLLBACK");
                Err(error)
            }
        }
    };
    // A verb that panics fails alone, and not the ledger with it.
    match catch_unwind(AssertUnwindSafe(|| run(store))) {
        Ok(done) => done.map_err(|error: rusqlite::Error| disk::failed(&store.connection, &error)),
        Err(_) => Err(LedgerError::Statement("a verb panicked; this is a bug in the engine".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_verb_waits_for_no_other_and_many_wait_for_more() {
        let in_time = [(0, 1, 0), (1, 1, 0), (1, 63, 0), (2, 1, 200), (15, 3, 1_500), (20, 1, 2_000), (500, 63, 2_000)];
        let (little, much) = (Duration::from_millis(79), Duration::from_secs(3));
        for (last, waiting, micros) in in_time {
            for late in [Duration::ZERO, little] {
                assert_eq!(linger(last, waiting, late), Duration::from_micros(micros), "{last} before, {waiting} now");
            }
        }
        assert_eq!(linger(500, ENOUGH, little), Duration::ZERO);
        // Late by 120 ms: three times as long, and for twice as many.
        assert_eq!(linger(500, 127, Duration::from_millis(120)), Duration::from_millis(6));
        assert_eq!(linger(500, 128, Duration::from_millis(120)), Duration::ZERO);
        assert_eq!(linger(1, 1, much), Duration::ZERO);
        assert_eq!(linger(30, 1, much), Duration::from_millis(3));
        assert_eq!(linger(500, 127, much), Duration::from_millis(8));
        assert_eq!(linger(500, 128, Duration::MAX), Duration::ZERO);
    }
}
