//! What the node knows: exchanges, queues, policies and connections. All of it is kept in order, so
//! that the same calls always have the same consequences.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use roundelay_model::clock::{Clock, Time};
use roundelay_model::topology::{Exchange, ExchangeKind, Topology};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::connection::Line;
use super::consumer::Flow;
use super::node::Outbox;
use super::policy::Policy;
use super::queue::{Attached, Queue, Return, Stored};
use super::settings::{Settings, argument_text};
use crate::embedded::profile::Profile;
use crate::{BrokerError, Delivery, Depth};

/// How long RabbitMQ 3.10 takes to tell consumers that their queue has been deleted. When it is
/// declared again before, it never does.
const NOTICE: Duration = Duration::from_millis(35);

/// The node's state.
pub(super) struct State {
    pub(super) profile: Profile,
    /// By which messages sleep on their queues,
    pub(super) clock: Clock,
    /// and how far it is ahead of what `clock` shows, in milliseconds.
    pub(super) ahead: i64,
    /// So long a rung takes to hand a message on, one after the other.
    pub(super) rung_takes: Duration,
    pub(super) running: bool,
    pub(super) exchanges: BTreeMap<String, Routes>,
    pub(super) queues: BTreeMap<String, Queue>,
    pub(super) policies: BTreeMap<String, Policy>,
    /// When to look at which queue. There may be one too many, never one missing.
    alarms: BTreeSet<(Instant, String)>,
    /// Consumers of deleted queues that do not know it yet, and when they are told.
    leaving: Vec<(Instant, Attached)>,
    /// Connections that are neither closed nor dead.
    pub(super) lines: BTreeMap<u64, Arc<Line>>,
    /// The last number given to a connection or a consumer.
    number: u64,
}

/// An exchange.
pub(super) struct Routes {
    pub(super) exchange: Exchange,
    /// (routing key, queue)
    pub(super) bindings: Vec<(String, Arc<str>)>,
}

/// Why no queue is found for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoWay {
    /// There is no queue for it.
    Nowhere,
    /// There is no such exchange.
    NoExchange,
}

impl State {
    pub(super) fn new(profile: Profile) -> Self {
        Self {
            profile,
            clock: Clock::System,
            ahead: 0,
            rung_takes: Duration::ZERO,
            running: true,
            exchanges: BTreeMap::new(),
            queues: BTreeMap::new(),
            policies: BTreeMap::new(),
            alarms: BTreeSet::new(),
            leaving: Vec::new(),
            lines: BTreeMap::new(),
            number: 0,
        }
    }

    /// A number that nothing had before.
    pub(super) fn number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    // ---- Topology ----

    /// Declares what is not there, and tells what is there with other properties.
    pub(super) fn apply(&mut self, topology: &Topology, outbox: &mut Outbox<'_>) -> Result<(), BrokerError> {
        let mut differences = Vec::new();
        for exchange in &topology.exchanges {
            let routes = Routes { exchange: exchange.clone(), bindings: Vec::new() };
            let known = self.exchanges.entry(exchange.name.clone()).or_insert(routes);
            if known.exchange != *exchange {
                differences.push(format!("exchange `{}` exists with other properties", exchange.name));
            }
        }
        for queue in &topology.queues {
            match self.queues.get_mut(&queue.name) {
                Some(known) if known.arguments != queue.arguments => {
                    differences.push(format!("queue `{}` exists with other properties", queue.name));
                }
                Some(known) => known.used = Instant::now(),
                None => {
                    let settings = self.settings(&queue.name, &queue.arguments);
                    self.queues.insert(queue.name.clone(), Queue::new(&queue.name, queue.arguments.clone(), settings));
                    self.haunt(&queue.name, outbox);
                    self.watch(&queue.name);
                }
            }
        }
        for binding in &topology.bindings {
            let Some(queue) = self.queues.get(&binding.queue) else { continue };
            let pair = (binding.key.clone(), queue.name.clone());
            let Some(routes) = self.exchanges.get_mut(&binding.exchange) else { continue };
            if !routes.bindings.contains(&pair) {
                routes.bindings.push(pair);
            }
        }
        if differences.is_empty() { Ok(()) } else { Err(BrokerError::Topology(differences.join("\n"))) }
    }

    /// Deletes a queue with everything on it and every binding to it; answers whether there was such a queue.
    pub(super) fn delete_queue(&mut self, name: &str, outbox: &mut Outbox<'_>) -> bool {
        let Some(queue) = self.queues.remove(name) else { return false };
        for routes in self.exchanges.values_mut() {
            routes.bindings.retain(|(_, queue)| **queue != *name);
        }
        match self.profile {
            Profile::Rabbit310 => {
                let told = Instant::now() + NOTICE;
                self.leaving.extend(queue.consumers.into_iter().map(|consumer| (told, consumer)));
            }
            _ => {
                queue.consumers.iter().for_each(|consumer| consumer.flow.end());
                outbox.bury(queue.consumers);
            }
        }
        true
    }

    /// Tells consumers that their queue has gone.
    fn tell_leaving(&mut self, now: Instant, outbox: &mut Outbox<'_>) {
        let told = self.leaving.extract_if(.., |(at, _)| *at <= now);
        outbox.bury(told.map(|(_, consumer)| {
            consumer.flow.end();
            consumer
        }));
    }

    /// Attaches to a new queue those that think they still consume the old one.
    fn haunt(&mut self, name: &str, outbox: &mut Outbox<'_>) {
        let ghosts = self.leaving.extract_if(.., |(_, consumer)| *consumer.flow.queue == *name);
        let Some(queue) = self.queues.get_mut(name) else { return };
        for (_, mut consumer) in ghosts {
            if consumer.deliver.is_none() {
                outbox.bury([consumer]);
                continue;
            }
            consumer.ghost = true;
            consumer.unsettled.clear();
            consumer.flow.haunt();
            queue.consumers.push(consumer);
        }
    }

    /// Deletes an exchange and its bindings; answers whether there was such an exchange.
    pub(super) fn delete_exchange(&mut self, name: &str) -> bool {
        self.exchanges.remove(name).is_some()
    }

    // ---- Messages ----

    /// The queue for a message.
    pub(super) fn resolve(&self, exchange: &str, routing_key: &str) -> Result<Arc<str>, NoWay> {
        let routes = self.exchanges.get(exchange).ok_or(NoWay::NoExchange)?;
        let matches = |key: &str| routes.exchange.kind == ExchangeKind::Fanout || key == routing_key;
        if let Some((_, queue)) = routes.bindings.iter().find(|(key, _)| matches(key)) {
            return Ok(queue.clone());
        }
        match argument_text(&routes.exchange.arguments, "alternate-exchange") {
            Some(alternate) => self.resolve(alternate, routing_key).map_err(|_| NoWay::Nowhere),
            None => Err(NoWay::Nowhere),
        }
    }

    /// Puts a message on a queue.
    pub(super) fn enqueue(&mut self, name: &str, mut message: Stored, outbox: &mut Outbox<'_>) {
        let now = message.asleep_until.is_some().then(|| self.time());
        let parks = self.profile.parks();
        let Some(queue) = self.queues.get_mut(name) else { return };
        // Its time on the queue runs while it sleeps; but it sleeps to the end.
        message.expires = queue.settings.ttl.map(|ttl| {
            let over = Instant::now() + ttl;
            let after = queue.handed_on.filter(|_| !self.rung_takes.is_zero()).map(|last| last + self.rung_takes);
            *queue.handed_on.insert(after.map_or(over, |after| over.max(after)))
        });
        if let Some(until) = message.asleep_until.filter(|until| parks && now.is_some_and(|now| now < *until)) {
            let first = queue.all_asleep().next().is_none_or(|(first, _)| until < first);
            queue.put_asleep(until, message);
            if first {
                self.watch(name);
            }
            return;
        }
        if let Some(expires) = message.expires.filter(|_| queue.ready.is_empty()) {
            self.alarms.insert((expires, name.to_owned()));
        }
        queue.ready.push_back(message);
        if !queue.consumers.is_empty() {
            self.serve(name, outbox);
        }
    }

    /// Hands over what a queue has, to consumers that have room.
    fn serve(&mut self, name: &str, outbox: &mut Outbox<'_>) {
        let Some(queue) = self.queues.get_mut(name) else { return };
        let (timed, expires) = (queue.settings.ttl.is_some(), queue.settings.expires.is_some());
        if timed {
            let expired = queue.take_expired(Instant::now());
            self.dead_letter(name, expired, outbox);
        }
        if let Some(queue) = self.queues.get_mut(name) {
            queue.flush(outbox);
        }
        if timed || expires {
            self.watch(name);
        }
    }

    // ---- Time ----

    /// What the broker's clock shows.
    pub(super) fn time(&self) -> Time {
        Time::from_millis(self.clock.now().as_millis().saturating_add(self.ahead))
    }

    /// Behaves like another version from now on. Where that does not know that messages sleep on their queues, those
    /// that do wake.
    pub(super) fn become_like(&mut self, profile: Profile, outbox: &mut Outbox<'_>) {
        self.profile = profile;
        let all: Vec<(String, Settings)> =
            self.queues.iter().map(|(name, queue)| (name.clone(), self.settings(name, &queue.arguments))).collect();
        for (name, settings) in all {
            if let Some(queue) = self.queues.get_mut(&name) {
                queue.settings = settings;
                if !profile.parks() {
                    queue.wake(Time::from_millis(i64::MAX));
                }
            }
            self.serve(&name, outbox);
        }
    }

    /// When there is something to do; never while the node is stopped.
    pub(super) fn next_alarm(&self) -> Option<Instant> {
        let alarm = self.alarms.first().map(|(at, _)| *at);
        let notice = self.leaving.iter().map(|(at, _)| *at).min();
        if self.running { alarm.into_iter().chain(notice).min() } else { None }
    }

    /// Sees to it that a queue is looked at.
    pub(super) fn alarm(&mut self, at: Instant, name: &str) {
        self.alarms.insert((at, name.to_owned()));
    }

    /// Sees to it that a queue is looked at when something will be due on it.
    pub(super) fn watch(&mut self, name: &str) {
        let Some(queue) = self.queues.get(name) else { return };
        let first = |place: &std::collections::VecDeque<Stored>| place.front().and_then(|message| message.expires);
        let wakes = queue.all_asleep().next().map(|(until, _)| Instant::now() + until.since(self.time()));
        let due = [first(&queue.returned), first(&queue.ready), wakes, queue.dying.retry(), queue.unused_until()];
        if let Some(at) = due.into_iter().flatten().min() {
            self.alarm(at, name);
        }
    }

    /// Does everything that is due.
    pub(super) fn tick(&mut self, now: Instant, outbox: &mut Outbox<'_>) {
        if self.running {
            self.tell_leaving(now, outbox);
        }
        while self.running && self.alarms.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, name)) = self.alarms.pop_first() else { return };
            self.look_at(&name, now, outbox);
        }
    }

    // ---- Consumers ----

    /// Lets `flow` consume its queue; answers whether there is such a queue.
    pub(super) fn attach(
        &mut self,
        flow: Arc<Flow>,
        deliver: mpsc::Sender<Delivery>,
        prefetch: u16,
        outbox: &mut Outbox<'_>,
    ) -> bool {
        let name = flow.queue.clone();
        let Some(queue) = self.queues.get_mut(&*name) else { return false };
        queue.consumers.push(Attached {
            flow,
            deliver: Some(deliver),
            prefetch: usize::from(prefetch.max(1)),
            ghost: false,
            next: 0,
            unsettled: BTreeMap::new(),
        });
        self.serve(&name, outbox);
        true
    }

    /// Delivers no more to `flow`; its unsettled deliveries can still be settled.
    pub(super) fn cancel(&mut self, flow: &Flow, outbox: &mut Outbox<'_>) {
        let on_queue = self.queues.get_mut(&*flow.queue).into_iter().flat_map(|queue| &mut queue.consumers);
        let all = on_queue.chain(self.leaving.iter_mut().map(|(_, consumer)| consumer));
        for consumer in all.filter(|consumer| consumer.flow.number == flow.number) {
            consumer.deliver = None;
        }
        self.serve(&flow.queue, outbox);
    }

    /// Settles a delivery. Nothing happens to one that is not out any more; but its consumer may
    /// have room now.
    pub(super) fn settle(&mut self, flow: &Flow, tag: u64, requeue: bool, outbox: &mut Outbox<'_>) {
        let Some(queue) = self.queues.get_mut(&*flow.queue) else { return };
        let consumer = queue.consumers.iter_mut().find(|consumer| consumer.flow.number == flow.number);
        // The deliveries of a ghost never arrived, so no one can settle them.
        let message = consumer.filter(|consumer| !consumer.ghost).and_then(|found| found.unsettled.remove(&tag));
        let dead = message.filter(|_| requeue).and_then(|message| queue.give_back(message, Return::Requeued));
        if let Some(dead) = dead {
            self.dead_letter(&flow.queue, vec![dead], outbox);
        }
        self.serve(&flow.queue, outbox);
    }

    /// Closes the channels for which `gone` holds: their consumers go, and what they have unsettled
    /// goes back. Nothing is handed over before all are gone.
    pub(super) fn detach(&mut self, gone: impl Fn(&Flow) -> bool, outbox: &mut Outbox<'_>) {
        let leaving = self.leaving.extract_if(.., |(_, consumer)| gone(&consumer.flow));
        outbox.bury(leaving.map(|(_, consumer)| {
            consumer.flow.lose_channel();
            consumer
        }));
        let mut touched = Vec::new();
        for (name, queue) in &mut self.queues {
            let (dead, any) = queue.detach(&gone, outbox);
            if any {
                touched.push((name.clone(), dead));
            }
        }
        for (name, dead) in touched {
            self.dead_letter(&name, dead, outbox);
            self.serve(&name, outbox);
        }
    }

    pub(super) fn depth(&self, queue: &str) -> Result<Depth, BrokerError> {
        let found = self.queues.get(queue).ok_or_else(|| no_queue(queue))?;
        let consumers = found.consumers.iter().filter(|consumer| consumer.deliver.is_some()).count();
        Ok(Depth { ready: found.waiting() as u64, consumers: consumers as u64 })
    }
}

pub(super) fn no_queue(queue: &str) -> BrokerError {
    BrokerError::Other(format!("there is no queue `{queue}`"))
}
