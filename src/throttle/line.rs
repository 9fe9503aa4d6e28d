//! Who waits for the slots of one key of a throttle.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::slots::{Micros, Wish};
use super::{Slot, Want};
use crate::clock::Time;

/// Those who wait, and slots that were handed back.
#[derive(Default)]
pub struct Line {
    inner: Mutex<Inner>,
    /// Somebody has come who cannot wait until the next slot is asked for, or handed a slot back.
    urgent: Notify,
}

#[derive(Default)]
struct Inner {
    waiting: BTreeMap<Rank, oneshot::Sender<Slot>>,
    /// How many have ever come; orders equals.
    arrivals: u64,
    /// Slots that were handed back.
    spare: Vec<Slot>,
    /// Whether somebody serves it.
    attended: bool,
    /// What the ledger's clock showed when it was asked last, when that was, and in which frame.
    clock: Option<(Instant, Micros, Micros)>,
}

/// A place in a line, the first the smallest: the highest priority, then whoever is due first, then whoever
/// came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    priority: Reverse<i32>,
    due: Time,
    arrival: u64,
    cost: u32,
}

impl Rank {
    /// How many starts it counts for.
    pub fn cost(&self) -> u32 {
        self.cost
    }
}

/// A place in a line, and the slot that comes of it.
pub struct Joined {
    /// The place.
    pub rank: Rank,
    /// The slot.
    pub slot: oneshot::Receiver<Slot>,
}

impl Line {
    /// Joins it. Answers also whether nobody serves it yet: the caller sees to that.
    pub fn join(&self, want: Want) -> (Joined, bool) {
        let (sender, slot) = oneshot::channel();
        let mut inner = self.inner();
        inner.arrivals += 1;
        let Want { priority, due, cost } = want;
        let rank = Rank { priority: Reverse(priority), due, arrival: inner.arrivals, cost: cost.max(1) };
        let urgent = inner.waiting.first_key_value().is_none_or(|(first, _)| rank.priority < first.priority);
        inner.waiting.insert(rank, sender);
        let first = !std::mem::replace(&mut inner.attended, true);
        drop(inner);
        if urgent {
            self.urgent.notify_one();
        }
        (Joined { rank, slot }, first)
    }

    /// Leaves it, if the place was not served.
    pub fn leave(&self, rank: &Rank) {
        self.inner().waiting.remove(rank);
    }

    /// How many starts go before one that comes now.
    pub fn cost_before(&self, want: Want) -> u64 {
        let last = Rank { priority: Reverse(want.priority), due: want.due, arrival: u64::MAX, cost: 0 };
        self.inner().waiting.range(..last).map(|(rank, _)| u64::from(rank.cost)).sum()
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.inner().waiting.len()
    }

    /// Those in front, and what they wish for.
    pub fn wishes(&self, most: usize) -> Vec<(Rank, Wish)> {
        let inner = self.inner();
        let wish = |rank: &Rank| (*rank, Wish { priority: rank.priority.0, cost: rank.cost });
        inner.waiting.keys().take(most).map(wish).collect()
    }

    /// Gives a slot to whoever has this place, or else to the first whom it is enough for.
    pub fn give(self: &Arc<Self>, rank: Option<&Rank>, slot: Slot) {
        let waiter = rank.and_then(|rank| self.inner().waiting.remove(rank));
        match waiter {
            Some(waiter) => self.send(waiter, slot),
            None => self.inner().spare.push(slot),
        }
        self.pass_on();
    }

    /// Takes back a slot that was not used.
    pub fn hand_back(&self, slot: Slot) {
        self.inner().spare.push(slot);
        self.urgent.notify_one();
    }

    /// Gives what was handed back to those in front.
    pub fn pass_on(self: &Arc<Self>) {
        loop {
            let mut inner = self.inner();
            let now = Instant::now();
            inner.spare.retain(|slot| slot.expires >= now);
            let fits = |slot: &Slot| inner.waiting.keys().find(|rank| rank.cost <= slot.cost).copied();
            let Some((at, rank)) = inner.spare.iter().enumerate().find_map(|(at, slot)| Some((at, fits(slot)?))) else {
                return;
            };
            let slot = inner.spare.swap_remove(at);
            let Some(waiter) = inner.waiting.remove(&rank) else { return };
            drop(inner);
            self.send(waiter, slot);
        }
    }

    /// Whoever has gone meanwhile drops it, and so hands it back.
    fn send(self: &Arc<Self>, waiter: oneshot::Sender<Slot>, slot: Slot) {
        drop(waiter.send(slot.of(self.clone())));
    }

    /// What the ledger's clock showed when it was asked last.
    pub fn clock(&self) -> Option<(Instant, Micros, Micros)> {
        self.inner().clock
    }

    /// Notes what it showed.
    pub fn set_clock(&self, here: Instant, now: Micros, frame: Micros) {
        self.inner().clock = Some((here, now, frame));
    }

    /// Ends its service when nobody waits.
    pub fn close_if_empty(&self) -> bool {
        let mut inner = self.inner();
        let empty = inner.waiting.is_empty();
        inner.attended = !empty;
        empty
    }

    /// Has whoever serves it ask again at once.
    pub fn hurry(&self) {
        self.urgent.notify_one();
    }

    /// Waits until there is something that cannot wait.
    pub async fn urged(&self) {
        self.urgent.notified().await;
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
