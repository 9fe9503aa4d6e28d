//! A queue: what waits, who consumes, and what is out unsettled.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use roundelay_model::clock::Time;
use roundelay_model::topology::Argument;
use roundelay_model::trace_context::Carried;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::consumer::{Flow, Tag};
use super::dead_lettering::Dying;
use super::node::Outbox;
use super::settings::Settings;
use crate::{Delivery, Destination, Message};

/// What a message in quarantine says of itself, beside its body.
pub(super) struct Label {
    pub(super) id: String,
    pub(super) from: String,
    pub(super) reason: String,
}

/// A message on a queue.
#[derive(Clone)]
pub(super) struct Stored {
    pub(super) body: Bytes,
    pub(super) trace: Option<Box<Carried>>,
    pub(super) routing_key: Arc<str>,
    /// Whether it was delivered before and came back.
    pub(super) redelivered: bool,
    /// How often it came back as far as the delivery limit counts that.
    pub(super) returns: u64,
    /// Where it has been dead-lettered, and how often.
    pub(super) deaths: Vec<(Arc<str>, usize)>,
    /// When its time on this queue is over.
    pub(super) expires: Option<Instant>,
    /// Until when it is to sleep on a queue, where the broker knows that.
    pub(super) asleep_until: Option<Time>,
    /// Only in quarantine.
    pub(super) label: Option<Arc<Label>>,
}

impl Stored {
    /// A message that has just been published.
    pub(super) fn new(message: Message, routing_key: Arc<str>) -> Self {
        let Message { body, trace, to, .. } = message;
        let asleep_until = match to {
            Destination::Asleep { until, .. } => Some(until),
            _ => None,
        };
        Self {
            body,
            trace,
            routing_key,
            redelivered: false,
            returns: 0,
            deaths: Vec::new(),
            expires: None,
            asleep_until,
            label: None,
        }
    }

    /// How often it has been dead-lettered.
    fn times_dead(&self) -> usize {
        self.deaths.iter().map(|(_, count)| count).fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// Why messages come back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Return {
    /// They were put back.
    Requeued,
    /// Their channel has gone.
    Lost,
}

/// A queue.
pub(super) struct Queue {
    pub(super) name: Arc<str>,
    /// As declared.
    pub(super) arguments: Vec<(&'static str, Argument)>,
    /// The settings that the arguments and the policies come to.
    pub(super) settings: Settings,
    /// When it last had a consumer, or was declared.
    pub(super) used: Instant,
    /// What came back. It goes before all else, in the order in which it came back.
    pub(super) returned: VecDeque<Stored>,
    /// What has not been delivered yet.
    pub(super) ready: VecDeque<Stored>,
    /// When the time of the message that came last is over, on a rung.
    pub(super) handed_on: Option<Instant>,
    /// What sleeps, by the time until when, and by the order in which it came.
    asleep: BTreeMap<(Time, u64), Stored>,
    /// Grows with every message that is put to sleep.
    put_asleep: u64,
    /// What is on its way out.
    pub(super) dying: Dying,
    pub(super) consumers: Vec<Attached>,
    /// The index of the consumer whose turn it is.
    turn: usize,
}

/// One consumer, as the broker sees it.
pub(super) struct Attached {
    pub(super) flow: Arc<Flow>,
    /// `None` once the consumer is cancelled: then it stays until its deliveries are settled.
    pub(super) deliver: Option<mpsc::Sender<Delivery>>,
    pub(super) prefetch: usize,
    /// What it is given does not arrive: see [`Profile::Rabbit310`](super::Profile::Rabbit310).
    pub(super) ghost: bool,
    /// Grows with every delivery; the delivery tag.
    pub(super) next: u64,
    pub(super) unsettled: BTreeMap<u64, Stored>,
}

impl Queue {
    pub(super) fn new(name: &str, arguments: Vec<(&'static str, Argument)>, settings: Settings) -> Self {
        Self {
            name: name.into(),
            arguments,
            settings,
            used: Instant::now(),
            returned: VecDeque::new(),
            ready: VecDeque::new(),
            handed_on: None,
            asleep: BTreeMap::new(),
            put_asleep: 0,
            dying: Dying::default(),
            consumers: Vec::new(),
            turn: 0,
        }
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.returned.len() + self.ready.len()
    }

    /// What waits, first the next.
    pub(super) fn all_waiting(&self) -> impl Iterator<Item = &Stored> {
        self.returned.iter().chain(&self.ready)
    }

    /// What sleeps, and until when; first what wakes first.
    pub(super) fn all_asleep(&self) -> impl Iterator<Item = (Time, &Stored)> {
        self.asleep.iter().map(|((until, _), message)| (*until, message))
    }

    /// What waits or sleeps.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Stored> {
        self.returned.iter_mut().chain(&mut self.ready).chain(self.asleep.values_mut())
    }

    /// Lets a message sleep.
    pub(super) fn put_asleep(&mut self, until: Time, message: Stored) {
        self.put_asleep += 1;
        self.asleep.insert((until, self.put_asleep), message);
    }

    /// Wakes what has slept until `now`: it goes before what waits.
    pub(super) fn wake(&mut self, now: Time) {
        while let Some(first) = self.asleep.first_entry().filter(|first| first.key().0 <= now) {
            self.returned.push_back(first.remove());
        }
    }

    /// Takes away the `nth` of those that sleep.
    pub(super) fn take_asleep(&mut self, nth: usize) -> Option<Stored> {
        let key = *self.asleep.keys().nth(nth)?;
        self.asleep.remove(&key)
    }

    fn pop(&mut self) -> Option<Stored> {
        self.returned.pop_front().or_else(|| self.ready.pop_front())
    }

    /// Hands messages to consumers that have room, in turn.
    pub(super) fn flush(&mut self, outbox: &mut Outbox<'_>) {
        let before = self.consumers.len();
        outbox.bury(
            self.consumers.extract_if(.., |consumer| consumer.deliver.is_none() && consumer.unsettled.is_empty()),
        );
        if self.consumers.len() < before {
            self.used = Instant::now();
        }
        let mut full = 0;
        while full < self.consumers.len() && self.waiting() > 0 {
            if self.turn >= self.consumers.len() {
                self.turn = 0;
            }
            let consumer = &mut self.consumers[self.turn];
            self.turn += 1;
            let Some(place) = consumer.room() else {
                full += 1;
                continue;
            };
            let Some(message) = self.returned.pop_front().or_else(|| self.ready.pop_front()) else { return };
            consumer.take(message, place, outbox);
            full = 0;
        }
    }

    /// Takes away the consumers for which `gone` holds, whose channels have been closed, and gives back what they had
    /// unsettled, consumer by consumer. Answers with what has thereby come back too often, and whether there were any.
    pub(super) fn detach(&mut self, gone: impl Fn(&Flow) -> bool, outbox: &mut Outbox<'_>) -> (Vec<Stored>, bool) {
        let gone: Vec<_> = self.consumers.extract_if(.., |consumer| gone(&consumer.flow)).collect();
        let (any, mut dead) = (!gone.is_empty(), Vec::new());
        for mut consumer in gone {
            consumer.flow.lose_channel();
            for (_, message) in std::mem::take(&mut consumer.unsettled) {
                dead.extend(self.give_back(message, Return::Lost));
            }
            outbox.bury([consumer]);
            self.used = Instant::now();
        }
        (dead, any)
    }

    /// Puts back what was delivered, unless that happened too often: then it is returned.
    #[must_use]
    pub(super) fn give_back(&mut self, mut message: Stored, why: Return) -> Option<Stored> {
        let settings = &self.settings;
        message.redelivered = true;
        message.returns += u64::from(why == Return::Lost || settings.requeues_count);
        match settings.delivery_limit {
            Some(limit) if message.returns > limit => return Some(message),
            None if why == Return::Requeued && settings.requeues_to_tail => self.ready.push_back(message),
            _ => self.returned.push_back(message),
        }
        None
    }

    /// Takes away what has waited too long. Only the first one is ever looked at, so one that
    /// expires later keeps those behind it.
    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<Stored> {
        let over = |message: &&Stored| message.expires.is_some_and(|expires| expires <= now);
        let mut expired = Vec::new();
        for place in [&mut self.returned, &mut self.ready] {
            let count = place.iter().take_while(over).count();
            expired.extend(place.drain(..count));
        }
        expired
    }

    /// When the queue is deleted if no consumer comes before.
    pub(super) fn unused_until(&self) -> Option<Instant> {
        self.settings.expires.filter(|_| self.consumers.is_empty()).map(|expires| self.used + expires)
    }

    /// Takes away everything that waits or sleeps.
    pub(super) fn empty(&mut self) -> Vec<Stored> {
        let waiting: Vec<Stored> = std::iter::from_fn(|| self.pop()).collect();
        waiting.into_iter().chain(std::mem::take(&mut self.asleep).into_values()).collect()
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
    /// A place for one more delivery. A ghost's deliveries need none.
    fn room(&self) -> Option<Option<mpsc::OwnedPermit<Delivery>>> {
        let deliver = self.deliver.as_ref().filter(|_| self.unsettled.len() < self.prefetch)?;
        if self.ghost {
            return Some(None);
        }
        deliver.clone().try_reserve_owned().ok().map(Some)
    }

    fn take(&mut self, message: Stored, place: Option<mpsc::OwnedPermit<Delivery>>, outbox: &mut Outbox<'_>) {
        let tag = self.next;
        self.next += 1;
        if let Some(place) = place {
            let settle = Tag::new(tag, self.flow.clone(), outbox.node().clone());
            let (body, queue) = (message.body.clone(), self.flow.queue.clone());
            let delivery = Delivery::new(body, queue, message.redelivered, message.times_dead(), Box::new(settle));
            outbox.add(place, delivery.traced(message.trace.clone()).asleep_until(message.asleep_until));
        }
        self.unsettled.insert(tag, message);
    }
}
