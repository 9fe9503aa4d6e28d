//! A queue: what waits, who consumes, and what is out unsettled.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::consumer::{Flow, Tag};
use super::node::Outbox;
use super::settings::Settings;
use crate::broker::Delivery;
use crate::broker::topology::Argument;

/// A message on a queue.
#[derive(Clone)]
pub(super) struct Stored {
    pub(super) body: Bytes,
    pub(super) routing_key: Arc<str>,
    /// How often it was delivered and came back.
    pub(super) returns: u32,
    /// How often it has been dead-lettered.
    pub(super) deaths: usize,
    /// When its time on this queue is over.
    pub(super) expires: Option<Instant>,
}

/// A queue.
#[derive(Default)]
pub(super) struct Queue {
    /// As declared.
    pub(super) arguments: Vec<(&'static str, Argument)>,
    /// As they work.
    pub(super) settings: Settings,
    /// What came back. It goes before all else, in the order in which it came back.
    pub(super) returned: VecDeque<Stored>,
    /// What has not been delivered yet.
    pub(super) ready: VecDeque<Stored>,
    pub(super) consumers: Vec<Attached>,
    /// Whose turn it is.
    turn: usize,
}

/// One consumer, as the broker sees it.
pub(super) struct Attached {
    pub(super) flow: Arc<Flow>,
    pub(super) deliver: mpsc::Sender<Delivery>,
    pub(super) prefetch: usize,
    /// Gets nothing more, and is there until what it has is settled.
    pub(super) cancelled: bool,
    /// Grows with every delivery; the delivery tag.
    pub(super) next: u64,
    pub(super) unsettled: BTreeMap<u64, Stored>,
}

impl Queue {
    pub(super) fn new(arguments: Vec<(&'static str, Argument)>) -> Self {
        Self { settings: Settings::of(&arguments), arguments, ..Self::default() }
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.returned.len() + self.ready.len()
    }

    /// What waits, first the next.
    pub(super) fn all_waiting(&self) -> impl Iterator<Item = &Stored> {
        self.returned.iter().chain(&self.ready)
    }

    fn pop(&mut self) -> Option<Stored> {
        self.returned.pop_front().or_else(|| self.ready.pop_front())
    }

    /// Hands messages to consumers that have room, in turn.
    pub(super) fn flush(&mut self, outbox: &mut Outbox<'_>) {
        outbox.bury(self.consumers.extract_if(.., |consumer| consumer.cancelled && consumer.unsettled.is_empty()));
        let mut full = 0;
        while full < self.consumers.len() && self.waiting() > 0 {
            if self.turn >= self.consumers.len() {
                self.turn = 0;
            }
            let consumer = &mut self.consumers[self.turn];
            self.turn += 1;
            let Some(permit) = consumer.room() else {
                full += 1;
                continue;
            };
            let Some(message) = self.returned.pop_front().or_else(|| self.ready.pop_front()) else { return };
            consumer.take(message, permit, outbox);
            full = 0;
        }
    }

    /// Takes away the consumers of a connection that is gone, and gives back what they had
    /// unsettled, consumer by consumer. Whether there were any.
    pub(super) fn detach(&mut self, line: u64, outbox: &mut Outbox<'_>) -> bool {
        let gone: Vec<_> = self.consumers.extract_if(.., |consumer| consumer.flow.line.number == line).collect();
        let any = !gone.is_empty();
        outbox.bury(gone.into_iter().map(|mut consumer| {
            consumer.flow.lose_channel();
            for (_, message) in std::mem::take(&mut consumer.unsettled) {
                self.give_back(message);
            }
            consumer
        }));
        any
    }

    /// Puts back what was delivered.
    pub(super) fn give_back(&mut self, message: Stored) {
        self.returned.push_back(Stored { returns: message.returns + 1, ..message });
    }

    /// Takes away everything that waits.
    pub(super) fn empty(&mut self) -> Vec<Stored> {
        std::iter::from_fn(|| self.pop()).collect()
    }

    /// The `nth` of those that wait, and where it is.
    pub(super) fn nth(&mut self, nth: usize) -> Option<(&mut VecDeque<Stored>, usize)> {
        let returned = self.returned.len();
        if nth < returned {
            Some((&mut self.returned, nth))
        } else if nth - returned < self.ready.len() {
            Some((&mut self.ready, nth - returned))
        } else {
            None
        }
    }
}

impl Attached {
    /// A place for one more delivery.
    fn room(&self) -> Option<mpsc::OwnedPermit<Delivery>> {
        if self.cancelled || self.unsettled.len() >= self.prefetch {
            return None;
        }
        self.deliver.clone().try_reserve_owned().ok()
    }

    fn take(&mut self, message: Stored, permit: mpsc::OwnedPermit<Delivery>, outbox: &mut Outbox<'_>) {
        let tag = self.next;
        self.next += 1;
        let settle = Tag::new(tag, self.flow.clone(), outbox.node().clone());
        let (body, queue) = (message.body.clone(), self.flow.queue.clone());
        let delivery = Delivery::new(body, queue, message.returns > 0, message.deaths, Box::new(settle));
        outbox.add(permit, delivery);
        self.unsettled.insert(tag, message);
    }
}
