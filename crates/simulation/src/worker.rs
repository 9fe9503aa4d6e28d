//! A worker in a simulation: the real engine, which can be killed at any point and frozen.

use std::collections::BTreeMap;
use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use roundelay_engine::life::{Point, Probe};
use roundelay_ledger::Hint;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::plan::Blow;

/// A simulated process: one run of a worker, from its start to its end.
pub struct Process {
    /// Which worker.
    pub worker: usize,
    /// Which run of it.
    pub run: usize,
    dead: AtomicBool,
    frozen: AtomicBool,
    /// When it last went on after it had stood still.
    thawed: Mutex<Option<Instant>>,
    /// Until then it cannot reach the ledger.
    without_ledger: Mutex<Option<Instant>>,
    /// Tasks to wake when it goes on.
    asleep: Mutex<Vec<Waker>>,
}

impl Process {
    /// A process that runs.
    pub fn new(worker: usize, run: usize) -> Arc<Self> {
        let (dead, frozen) = (AtomicBool::new(false), AtomicBool::new(false));
        let (thawed, without_ledger, asleep) = Default::default();
        Arc::new(Self { worker, run, dead, frozen, thawed, without_ledger, asleep })
    }

    /// From now on nothing that it does has an effect.
    pub fn kill(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    /// As SIGSTOP does.
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::Relaxed);
    }

    /// As SIGCONT does.
    pub fn thaw(&self) {
        self.frozen.store(false, Ordering::Relaxed);
        *self.thawed.lock() = Some(Instant::now());
        let asleep = std::mem::take(&mut *self.asleep.lock());
        asleep.into_iter().for_each(Waker::wake);
    }

    /// The worker cannot reach the ledger for `length`.
    pub fn lose_ledger(&self, length: Duration) {
        let mut until = self.without_ledger.lock();
        *until = (*until).max(Some(Instant::now() + length));
    }

    /// Whether it can reach the ledger, if that is there.
    pub fn has_ledger(&self) -> bool {
        self.without_ledger.lock().is_none_or(|until| until <= Instant::now())
    }

    /// Whether it can do anything now.
    pub fn is_alive(&self) -> bool {
        !self.dead.load(Ordering::Relaxed)
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.is_alive() && !self.frozen.load(Ordering::Relaxed)
    }

    /// Whether it runs, and can have noticed what went on while it stood still.
    pub fn is_awake(&self) -> bool {
        let thawed = *self.thawed.lock();
        self.is_running() && thawed != Some(Instant::now())
    }

    /// Whether it stood still at any time from `since` on.
    pub fn stood_still(&self, since: Instant) -> bool {
        let thawed = *self.thawed.lock();
        !self.is_running() || thawed.is_some_and(|thawed| thawed >= since)
    }

    /// Goes on, unless the process is dead: then nothing ever does.
    pub async fn live(&self) {
        if !self.is_alive() {
            pending::<()>().await;
        }
    }

    /// `task` as the process's own: it stands still while the process does.
    pub fn hold(self: &Arc<Self>, mut task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        let process = self.clone();
        Box::pin(poll_fn(move |context| {
            if process.is_running() {
                return task.as_mut().poll(context);
            }
            process.asleep.lock().push(context.waker().clone());
            Poll::Pending
        }))
    }
}

/// Crash points: how often each was reached, and at which something is to befall a worker.
#[derive(Default)]
pub struct Traps {
    armed: Mutex<Vec<Trap>>,
    reached: Mutex<BTreeMap<Point, u64>>,
    sprung: Mutex<BTreeMap<(Point, Blow), u64>>,
}

struct Trap {
    point: Point,
    blow: Blow,
    /// Counts down to the blow.
    left: usize,
    /// The number of the fault.
    fault: usize,
}

impl Traps {
    /// This befalls the worker that comes to `point` for the `nth` time from now on.
    pub fn arm(&self, fault: usize, (point, blow): (Point, Blow), nth: usize) {
        self.lock().push(Trap { point, blow, left: nth.max(1), fault });
    }

    /// Nothing befalls any worker any more.
    pub fn disarm(&self) {
        self.lock().clear();
    }

    /// How often what befell a worker at each point.
    pub fn sprung(&self) -> BTreeMap<(Point, Blow), u64> {
        self.sprung.lock().clone()
    }

    /// How often each point was reached.
    pub fn reached(&self) -> BTreeMap<Point, u64> {
        self.reached.lock().clone()
    }

    /// What befalls the worker that comes to `point` now, and the number of the fault.
    fn step_on(&self, point: Point) -> Option<(Blow, usize)> {
        *self.reached.lock().entry(point).or_default() += 1;
        let mut armed = self.lock();
        let mut found = None;
        for (n, trap) in armed.iter_mut().enumerate().filter(|(_, trap)| trap.point == point) {
            trap.left -= 1;
            if trap.left == 0 {
                found = Some(n);
                break;
            }
        }
        let trap = armed.remove(found?);
        *self.sprung.lock().entry((point, trap.blow)).or_default() += 1;
        Some((trap.blow, trap.fault))
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Vec<Trap>> {
        self.armed.lock()
    }
}

/// Something has befallen a worker at a crash point.
pub struct Struck {
    /// Which worker.
    pub worker: usize,
    /// Which run of it.
    pub run: usize,
    /// By which fault; `None` when the worker has ended by itself.
    pub fault: Option<usize>,
    /// With the claim of this message.
    pub claim: Option<Hint>,
}

/// Watches one process.
pub struct Watcher {
    /// Which.
    pub process: Arc<Process>,
    /// The traps of all.
    pub traps: Arc<Traps>,
    /// Told of what has befallen it, to see to what follows.
    pub struck: mpsc::UnboundedSender<Struck>,
}

impl Probe for Watcher {
    fn reached(&self, point: Point) -> BoxFuture<'static, ()> {
        if !self.process.is_alive() {
            return Box::pin(pending());
        }
        let Some((blow, fault)) = self.traps.step_on(point) else { return Box::pin(std::future::ready(())) };
        let Process { worker, run, .. } = *self.process;
        let _ = self.struck.send(Struck { worker, run, fault: Some(fault), claim: None });
        if blow == Blow::Kill {
            self.process.kill();
            return Box::pin(pending());
        }
        // The process stands still until the world has seen to it.
        self.process.freeze();
        Box::pin(yield_now())
    }

    fn hold(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        self.process.hold(task)
    }
}
