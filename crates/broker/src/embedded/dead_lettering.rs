//! The way out of a queue: messages whose time is over, or which came back too often.
//!
//! A rung hands them on at least once: each is kept until its destination has taken it. A bounded number may be under
//! way at once; when as many are stuck, because the exchange or the queue is not there and no alternate exchange
//! either, nothing leaves the rung any more. What is stuck is tried again only every three minutes, even when its way
//! is free by then.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::node::Outbox;
use super::queue::Stored;
use super::settings::DeadLetter;
use super::state::State;
use crate::embedded::profile::Profile;

/// How many messages of a queue may be on their way: RabbitMQ's
/// `dead_letter_worker_consumer_prefetch`.
const IN_FLIGHT: usize = 32;
/// How long RabbitMQ waits before it tries again: `dead_letter_worker_publisher_confirm_timeout`.
const RETRY: Duration = Duration::from_secs(180);

/// What is on its way out of a queue that must not lose it.
#[derive(Default)]
pub(super) struct Dying {
    /// Was not taken, and is kept.
    stuck: Vec<Stored>,
    /// Waits for room among those.
    waiting: VecDeque<Stored>,
    /// When what is stuck is tried again.
    retry: Option<Instant>,
}

impl Dying {
    /// All of it.
    pub(super) fn all(&self) -> impl Iterator<Item = &Stored> {
        self.stuck.iter().chain(&self.waiting)
    }

    /// Drops all of it.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// When to look at it.
    pub(super) fn retry(&self) -> Option<Instant> {
        self.retry
    }

    /// Tries again at once.
    pub(super) fn hurry(&mut self) {
        self.retry = self.retry.map(|_| Instant::now());
    }
}

impl State {
    /// Does what is due on a queue: gives up what has waited too long, tries again what is stuck,
    /// and deletes a queue that no consumer has used for as long as its `expires`.
    pub(super) fn look_at(&mut self, name: &str, now: Instant, outbox: &mut Outbox<'_>) {
        let time = self.time();
        let Some(queue) = self.queues.get_mut(name) else { return };
        if queue.unused_until().is_some_and(|until| until <= now) {
            self.delete_queue(name, outbox);
            return;
        }
        if queue.all_asleep().next().is_some_and(|(until, _)| until <= time) {
            queue.wake(time);
            queue.flush(outbox);
        }
        let expired = queue.take_expired(now);
        if queue.dying.retry.is_some_and(|retry| retry <= now) {
            queue.dying.retry = None;
            let again = std::mem::take(&mut queue.dying.stuck);
            again.into_iter().for_each(|message| self.hand_on(name, message, outbox));
        }
        self.dead_letter(name, expired, outbox);
        self.watch(name);
    }

    /// Gives up messages of a queue.
    pub(super) fn dead_letter(&mut self, name: &str, messages: Vec<Stored>, outbox: &mut Outbox<'_>) {
        for mut message in messages {
            let Some(queue) = self.queues.get_mut(name) else { return };
            match message.deaths.iter_mut().find(|(place, _)| *place == queue.name) {
                Some((_, count)) => *count = count.saturating_add(1),
                None => message.deaths.push((queue.name.clone(), 1)),
            }
            message.expires = None;
            (message.redelivered, message.returns) = (false, 0);
            match &queue.settings.dead_letter {
                DeadLetter::Nowhere => {}
                DeadLetter::AtMostOnce(exchange) => {
                    let exchange = exchange.clone();
                    if let Some(to) = self.way_on(&exchange, &message) {
                        self.enqueue(&to, message, outbox);
                    }
                }
                DeadLetter::AtLeastOnce(_) => queue.dying.waiting.push_back(message),
            }
        }
        while let Some(message) = self.queues.get_mut(name).and_then(|queue| queue.dying.next()) {
            self.hand_on(name, message, outbox);
        }
    }

    /// Hands on what must not be lost, or keeps it.
    fn hand_on(&mut self, name: &str, message: Stored, outbox: &mut Outbox<'_>) {
        let Some(queue) = self.queues.get(name) else { return };
        let way = match &queue.settings.dead_letter {
            DeadLetter::AtLeastOnce(exchange) => self.way_on(exchange, &message),
            // A policy has changed this meanwhile, and RabbitMQ drops the messages that are under way.
            DeadLetter::AtMostOnce(_) | DeadLetter::Nowhere => return,
        };
        if let Some(to) = way {
            self.enqueue(&to, message, outbox);
            return;
        }
        let Some(queue) = self.queues.get_mut(name) else { return };
        queue.dying.stuck.push(message);
        let retry = *queue.dying.retry.get_or_insert_with(|| Instant::now() + RETRY);
        self.alarm(retry, name);
    }

    /// The queue for a message that has died. Before 4.0.1 a message does not go where, as far as
    /// it says, it has died before.
    fn way_on(&self, exchange: &str, message: &Stored) -> Option<Arc<str>> {
        let to = self.resolve(exchange, &message.routing_key).ok()?;
        let cycle = self.profile == Profile::Rabbit310 && message.deaths.iter().any(|(place, _)| *place == to);
        (!cycle).then_some(to)
    }
}

impl Dying {
    /// The next to be handed on, while there is room.
    fn next(&mut self) -> Option<Stored> {
        if self.stuck.len() < IN_FLIGHT { self.waiting.pop_front() } else { None }
    }
}
