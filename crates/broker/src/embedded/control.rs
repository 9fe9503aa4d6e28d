//! What a test or a simulation does to the broker, and what it sees of it.

use std::time::Duration;

use bytes::Bytes;
use roundelay_model::clock::{Clock, Entropy};
use tokio::time::Instant;

use super::state::State;
use crate::Message;
use crate::embedded::broker::EmbeddedBroker;
use crate::embedded::profile::Profile;
use crate::embedded::publish_fault::{Held, HeldState, PublishFault};

impl EmbeddedBroker {
    /// Stops the node, as when it crashes: every connection is [cut](super::EmbeddedConnection::cut)
    /// until [`start`](Self::start). Messages and topology survive, and the time that messages sleep
    /// goes on.
    pub fn stop(&self) {
        self.node.change(|state, outbox| state.stop(outbox));
    }

    /// Starts the node again. Connections come back at once, but for those that were cut for
    /// longer; consumers attach again; what should have woken meanwhile wakes.
    pub fn start(&self) {
        self.node.change(|state, _| state.start());
    }

    /// Takes away what waits on a queue, as an operator's purge does; answers how many messages there were.
    /// What has been delivered stays with its consumer.
    pub fn purge(&self, queue: &str) -> usize {
        self.drain(queue).len()
    }

    /// Takes away what waits on a queue, and answers with the bodies, the next first.
    pub fn drain(&self, queue: &str) -> Vec<Bytes> {
        let mut state = self.node.lock();
        let profile = state.profile;
        let Some(found) = state.queues.get_mut(queue) else { return Vec::new() };
        let mut messages = found.empty();
        // RabbitMQ 4 purges what is on its way out as well.
        if profile >= Profile::Rabbit4 {
            messages.extend(found.dying.all().cloned());
            found.dying.clear();
        }
        messages.into_iter().map(|message| message.body).collect()
    }

    /// Deletes a queue with everything on it. What is then published to it is unroutable, or goes to the alternate
    /// exchange. Its consumers attach again once it has been declared anew. Answers whether there was such a queue.
    pub fn delete_queue(&self, queue: &str) -> bool {
        self.node.change(|state, outbox| state.delete_queue(queue, outbox))
    }

    /// Deletes an exchange with its bindings; answers whether there was such an exchange.
    pub fn delete_exchange(&self, exchange: &str) -> bool {
        self.node.change(|state, _| state.delete_exchange(exchange))
    }

    /// Loses the `nth` of the messages that wait on a queue (0 is the next; behind them come those that sleep), which
    /// RabbitMQ promises not to do. What it was, if there was one.
    pub fn lose(&self, queue: &str, nth: usize) -> Option<Bytes> {
        let mut state = self.node.lock();
        let found = state.queues.get_mut(queue)?;
        let lost = match found.nth(nth) {
            Some((place, nth)) => place.remove(nth)?,
            None => found.take_asleep(nth - found.waiting())?,
        };
        state.watch(queue);
        Some(lost.body)
    }

    /// Puts a second one behind the `nth` of the messages that wait on a queue. What it is, if there
    /// was one.
    pub fn duplicate(&self, queue: &str, nth: usize) -> Option<Bytes> {
        self.node.change(|state, outbox| {
            let found = state.queues.get_mut(queue)?;
            let waiting = found.waiting();
            if nth >= waiting {
                let (until, twin) = found.all_asleep().nth(nth - waiting)?;
                let twin = twin.clone();
                let body = twin.body.clone();
                found.put_asleep(until, twin);
                return Some(body);
            }
            let (place, nth) = found.nth(nth)?;
            let twin = place.get(nth)?.clone();
            let body = twin.body.clone();
            place.insert(nth + 1, twin);
            found.flush(outbox);
            Some(body)
        })
    }

    /// Brings those that wait on a queue into another order, the same for the same `seed`. On a rung
    /// nothing wakes early for it; but what now stands behind one that wakes later waits for that.
    pub fn reorder(&self, queue: &str, seed: u64) {
        let dice = Entropy::seeded(seed);
        let mut state = self.node.lock();
        let Some(found) = state.queues.get_mut(queue) else { return };
        for place in [&mut found.returned, &mut found.ready] {
            for last in (1..place.len()).rev() {
                place.swap(last, dice.below(last + 1));
            }
        }
        state.watch(queue);
    }

    /// Makes rungs slow: each takes so long to hand a message on, one message after the other, as a quorum queue that is
    /// one busy process.
    pub fn slow_rungs(&self, takes: Duration) {
        self.node.change(|state, _| state.rung_takes = takes);
    }

    /// Goes by this clock, which says until when messages sleep on their queues. Without this it is the machine's.
    pub fn goes_by(&self, clock: Clock) {
        self.node.change(|state, _| state.clock = clock);
    }

    /// Behaves like another version from now on, as a cluster does whose nodes were updated or rolled back.
    pub fn become_like(&self, profile: Profile) {
        self.node.change(|state, outbox| state.become_like(profile, outbox));
    }

    /// How far the broker's clock is ahead, in milliseconds: the sum of all that [`Self::set_clock`] did.
    pub fn ahead(&self) -> i64 {
        self.node.lock().ahead
    }

    /// Sets the broker's clock by `millis`: RabbitMQ keeps until when a message sleeps as a time of its clock, which is
    /// another after a restart, or when another node of a cluster leads the queue. What sleeps wakes so much sooner, or
    /// later; on a rung, what comes in afterwards waits behind that.
    pub fn set_clock(&self, millis: i64) {
        let by = Duration::from_millis(millis.unsigned_abs());
        let now = Instant::now();
        let set = |until: Instant| if millis < 0 { until + by } else { until.checked_sub(by).unwrap_or(now) };
        self.node.change(|state, outbox| {
            state.ahead = state.ahead.saturating_add(millis);
            let names: Vec<String> = state.queues.keys().map(ToString::to_string).collect();
            for name in names {
                let Some(queue) = state.queues.get_mut(&*name) else { continue };
                for message in queue.all_mut() {
                    message.expires = message.expires.map(set);
                }
                state.watch(&name);
            }
            if state.running {
                state.tick(now, outbox);
            }
        });
    }

    /// The names of all queues, in order.
    pub fn queues(&self) -> Vec<String> {
        self.node.lock().queues.keys().cloned().collect()
    }

    /// Every message: queue by queue in the order of their names, first what waits, the next first,
    /// then what sleeps, then what is stuck on its way out, then what is unsettled.
    pub fn census(&self) -> Vec<Held> {
        self.node.lock().census()
    }

    /// Lets `f` decide what goes wrong with each publish from now on, once the connection is there.
    /// It must not call this.
    pub fn on_publish(&self, f: impl FnMut(&Message) -> PublishFault + Send + 'static) {
        self.node.set_hook(Some(Box::new(f)));
    }
}

impl State {
    fn census(&self) -> Vec<Held> {
        let mut all = Vec::new();
        for (name, queue) in &self.queues {
            let held = |body: &Bytes, state| Held { queue: name.clone(), body: body.clone(), state };
            for message in queue.all_waiting() {
                let state = message.expires.map_or(HeldState::Ready, |until| HeldState::OnRung { until });
                all.push(held(&message.body, state));
            }
            for (until, message) in queue.all_asleep() {
                all.push(held(&message.body, HeldState::Asleep { until }));
            }
            for message in queue.dying.all() {
                all.push(held(&message.body, HeldState::Dying));
            }
            for message in queue.consumers.iter().flat_map(|consumer| consumer.unsettled.values()) {
                all.push(held(&message.body, HeldState::Unsettled));
            }
        }
        all
    }
}
