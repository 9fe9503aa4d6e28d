//! One thread that writes, with group commit.
//!
//! All verbs that have come while the last commit was on its way to the disk become one transaction, so that under load
//! many verbs share one `fsync`, and a single verb waits for no other. An answer is given only after the commit that
//! covers it. Notes, which have no waiting caller, are written with the next verb.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
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
use crate::linger::{LOOK, Lateness, linger};

/// The most verbs that share one commit: a bound for how long the first of them waits.
const MAX_WRITES_PER_COMMIT: usize = 512;
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
