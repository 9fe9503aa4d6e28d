//! Pacing starts: so many in each window, whoever asks.
//!
//! One [`Throttle`] is shared by all queues that name it. Who waits stands in one line, queues of
//! higher priority first, and the slot goes to whoever is at the front *when it opens*. A slot is
//! for now: whoever does not use it at once hands it on, or it is lost. The arithmetic is
//! governor's; for now each worker counts for itself.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use governor::clock::{Clock as GovernorClock, Reference};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::config::ThrottleSettings;

/// So long after it opened a slot may still be used. Later it would crowd the next ones.
pub const FRESH: Duration = Duration::from_secs(1);

/// All throttles of a configuration, by name.
#[derive(Clone, Default)]
pub struct Throttles(BTreeMap<String, Arc<Throttle>>);

impl Throttles {
    /// Throttles with these settings. Must be called inside a tokio runtime.
    pub fn new(settings: &BTreeMap<String, ThrottleSettings>) -> Self {
        Self(settings.iter().map(|(name, settings)| (name.clone(), Throttle::start(settings))).collect())
    }

    /// The throttle called `name`.
    pub fn get(&self, name: &str) -> Option<Arc<Throttle>> {
        self.0.get(name).cloned()
    }
}

/// A limit on starts.
pub struct Throttle {
    line: Mutex<Line>,
    /// Somebody has come, or handed a slot back.
    change: Notify,
}

#[derive(Default)]
struct Line {
    waiters: BinaryHeap<Waiter>,
    /// How many have ever come; orders equals.
    arrivals: u64,
    /// When the slots opened that were handed back.
    spare: Vec<Instant>,
}

/// Leave to start now. Dropped without being used, it goes to whoever is next.
#[must_use]
pub struct Slot {
    opened: Instant,
    /// Taken once the slot is used.
    throttle: Option<Arc<Throttle>>,
}

impl Slot {
    /// Uses the slot, unless that comes too late.
    pub fn start(mut self) -> bool {
        let fresh = self.opened.elapsed() <= FRESH;
        self.throttle = None;
        fresh
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(throttle) = self.throttle.take() {
            throttle.line().spare.push(self.opened);
            throttle.change.notify_one();
        }
    }
}

struct Waiter {
    /// Highest priority first, then first come, first served.
    rank: (i32, Reverse<u64>),
    slot: oneshot::Sender<Slot>,
}

impl PartialEq for Waiter {
    fn eq(&self, other: &Self) -> bool {
        self.rank == other.rank
    }
}

impl Eq for Waiter {}

impl PartialOrd for Waiter {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiter {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank.cmp(&other.rank)
    }
}

type Limiter = RateLimiter<NotKeyed, InMemoryState, TokioClock, NoOpMiddleware<TokioInstant>>;

impl Throttle {
    fn start(settings: &ThrottleSettings) -> Arc<Self> {
        let throttle = Arc::new(Self { line: Mutex::default(), change: Notify::new() });
        let limiter = RateLimiter::direct_with_clock(quota(settings), TokioClock);
        tokio::spawn(serve(Arc::downgrade(&throttle), limiter));
        throttle
    }

    /// Waits for a slot, ahead of everybody with a lower `priority`. A wait that is given up costs
    /// no slot.
    pub async fn slot(&self, priority: i32) -> Slot {
        let (slot, granted) = oneshot::channel();
        {
            let mut line = self.line();
            line.arrivals += 1;
            let rank = (priority, Reverse(line.arrivals));
            line.waiters.push(Waiter { rank, slot });
        }
        self.change.notify_one();
        // The serving task ends only when this throttle is dropped, which we hold.
        granted.await.unwrap_or(Slot { opened: Instant::now(), throttle: None })
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.line().waiters.len()
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When a slot opened that was handed back and is still good.
    fn spare(&self) -> Option<Instant> {
        let mut line = self.line();
        line.spare.retain(|opened| opened.elapsed() <= FRESH);
        line.spare.pop()
    }

    fn next(&self) -> Option<Waiter> {
        let mut line = self.line();
        loop {
            let waiter = line.waiters.pop()?;
            if !waiter.slot.is_closed() {
                return Some(waiter);
            }
        }
    }
}

/// Hands out slots: first sees that somebody waits, then waits for the slot, then picks who gets it.
async fn serve(throttle: std::sync::Weak<Throttle>, limiter: Limiter) {
    loop {
        let Some(shared) = throttle.upgrade() else { return };
        if shared.waiting() == 0 {
            // Wakes hourly to see whether the throttle is still in use.
            let _ = tokio::time::timeout(Duration::from_secs(3_600), shared.change.notified()).await;
            continue;
        }
        let opened = match shared.spare() {
            Some(opened) => opened,
            None => match limiter.check() {
                Ok(()) => Instant::now(),
                Err(not_yet) => {
                    let wait = tokio::time::sleep(not_yet.wait_time_from(TokioClock.now()));
                    tokio::select! {
                        biased;
                        () = wait => {}
                        () = shared.change.notified() => {}
                    }
                    continue;
                }
            },
        };
        // Whoever has given up meanwhile drops it, and so hands it back.
        if let Some(waiter) = shared.next() {
            let _ = waiter.slot.send(Slot { opened, throttle: Some(shared.clone()) });
        } else {
            shared.line().spare.push(opened);
        }
    }
}

fn quota(settings: &ThrottleSettings) -> Quota {
    let allow = NonZeroU32::new(settings.allow).unwrap_or(NonZeroU32::MIN);
    let burst = NonZeroU32::new(settings.burst).unwrap_or(NonZeroU32::MIN);
    let between = (settings.per / allow.get()).max(Duration::from_nanos(1));
    Quota::with_period(between).unwrap_or_else(|| Quota::per_second(allow)).allow_burst(burst)
}

/// governor on tokio's clock, so that virtual time moves it too.
#[derive(Clone, Copy, Debug)]
struct TokioClock;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TokioInstant(Instant);

impl GovernorClock for TokioClock {
    type Instant = TokioInstant;

    fn now(&self) -> TokioInstant {
        TokioInstant(Instant::now())
    }
}

impl Reference for TokioInstant {
    fn duration_since(&self, earlier: Self) -> Nanos {
        self.0.saturating_duration_since(earlier.0).into()
    }

    fn saturating_sub(&self, duration: Nanos) -> Self {
        TokioInstant(self.0.checked_sub(duration.into()).unwrap_or(self.0))
    }
}

impl std::ops::Add<Nanos> for TokioInstant {
    type Output = Self;

    fn add(self, rhs: Nanos) -> Self {
        TokioInstant(self.0 + Duration::from(rhs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn throttle(allow: u32, per: Duration, burst: u32) -> Arc<Throttle> {
        Throttle::start(&ThrottleSettings { allow, per, burst })
    }

    #[tokio::test(start_paused = true)]
    async fn slots_are_evenly_spaced_after_the_burst() {
        let throttle = throttle(60, Duration::from_secs(60), 3);
        let start = Instant::now();
        let mut at = Vec::new();
        for _ in 0..6 {
            assert!(throttle.slot(0).await.start());
            at.push(start.elapsed().as_secs_f64().round() as u64);
        }
        assert_eq!(at, [0, 0, 0, 1, 2, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn higher_priority_goes_first_and_equals_in_order() {
        let throttle = throttle(1, Duration::from_secs(1), 1);
        throttle.slot(0).await.start();
        let (done, mut order) = tokio::sync::mpsc::unbounded_channel();
        for (name, priority) in [("a", 0), ("b", 0), ("c", 5), ("d", 5)] {
            let (throttle, done) = (throttle.clone(), done.clone());
            tokio::spawn(async move {
                throttle.slot(priority).await.start();
                let _ = done.send(name);
            });
            tokio::task::yield_now().await;
        }
        let mut got = Vec::new();
        for _ in 0..4 {
            got.extend(order.recv().await);
        }
        assert_eq!(got, ["c", "d", "a", "b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_given_up_costs_no_slot() {
        let throttle = throttle(1, Duration::from_secs(10), 1);
        throttle.slot(0).await.start();
        let start = Instant::now();
        let _ = tokio::time::timeout(Duration::from_secs(1), throttle.slot(9)).await;
        throttle.slot(0).await.start();
        assert_eq!(start.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_handed_back_goes_to_the_next_and_one_kept_too_long_to_nobody() {
        let throttle = throttle(1, Duration::from_secs(10), 1);
        let first = throttle.slot(0).await;
        let start = Instant::now();
        let next = tokio::spawn({
            let throttle = throttle.clone();
            async move { throttle.slot(0).await }
        });
        tokio::time::sleep(Duration::from_millis(700)).await;
        drop(first);
        let second = next.await.unwrap();
        assert_eq!(start.elapsed().as_millis(), 700, "at once");
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert!(!second.start(), "its time counts from when it opened");
        let third = throttle.slot(0).await;
        assert_eq!(start.elapsed().as_secs(), 10);
        tokio::time::sleep(FRESH + Duration::from_millis(1)).await;
        drop(third);
        assert!(throttle.slot(0).await.start());
        assert_eq!(start.elapsed().as_secs(), 20, "too old to be handed on");
    }
}
