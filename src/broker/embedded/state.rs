//! What the node knows: exchanges, queues and connections. All of it is kept in order, so that
//! the same calls always have the same consequences.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::connection::Line;
use super::consumer::Flow;
use super::node::Outbox;
use super::queue::{Attached, Queue, Stored};
use super::settings::text;
use crate::broker::topology::{Exchange, ExchangeKind, Topology};
use crate::broker::{BrokerError, Delivery, Depth};

/// The node's state.
pub(super) struct State {
    pub(super) running: bool,
    exchanges: BTreeMap<String, Routes>,
    pub(super) queues: BTreeMap<String, Queue>,
    /// Queues by when their first message expires. There may be one too many, never one missing.
    expiries: BTreeSet<(Instant, String)>,
    /// Connections that are neither closed nor dead.
    pub(super) lines: BTreeMap<u64, Arc<Line>>,
    /// The last number given to a connection or a consumer.
    number: u64,
}

struct Routes {
    exchange: Exchange,
    /// (routing key, queue)
    bindings: Vec<(String, String)>,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Routed {
    /// A queue has it.
    Taken,
    /// There is no queue for it.
    Nowhere,
    /// There is no such exchange.
    NoExchange,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            running: true,
            exchanges: BTreeMap::new(),
            queues: BTreeMap::new(),
            expiries: BTreeSet::new(),
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
    pub(super) fn apply(&mut self, topology: &Topology) -> Result<(), BrokerError> {
        let mut differences = Vec::new();
        for exchange in &topology.exchanges {
            let routes = Routes { exchange: exchange.clone(), bindings: Vec::new() };
            let known = self.exchanges.entry(exchange.name.clone()).or_insert(routes);
            if known.exchange != *exchange {
                differences.push(format!("exchange `{}` exists with other properties", exchange.name));
            }
        }
        for queue in &topology.queues {
            let known = self.queues.entry(queue.name.clone()).or_insert_with(|| Queue::new(queue.arguments.clone()));
            if known.arguments != queue.arguments {
                differences.push(format!("queue `{}` exists with other properties", queue.name));
            }
        }
        for binding in &topology.bindings {
            let Some(routes) = self.exchanges.get_mut(&binding.exchange) else { continue };
            let pair = (binding.key.clone(), binding.queue.clone());
            if !routes.bindings.contains(&pair) {
                routes.bindings.push(pair);
            }
        }
        if differences.is_empty() { Ok(()) } else { Err(BrokerError::Topology(differences.join("\n"))) }
    }

    /// Deletes a queue with everything on it and every binding to it. Whether there was one.
    pub(super) fn delete_queue(&mut self, name: &str, outbox: &mut Outbox<'_>) -> bool {
        let Some(queue) = self.queues.remove(name) else { return false };
        for routes in self.exchanges.values_mut() {
            routes.bindings.retain(|(_, queue)| queue != name);
        }
        queue.consumers.iter().for_each(|consumer| consumer.flow.end());
        outbox.bury(queue.consumers);
        true
    }

    /// Deletes an exchange and its bindings. Whether there was one.
    pub(super) fn delete_exchange(&mut self, name: &str) -> bool {
        self.exchanges.remove(name).is_some()
    }

    // ---- Messages ----

    /// Routes a message.
    pub(super) fn route(&mut self, exchange: &str, message: Stored, outbox: &mut Outbox<'_>) -> Routed {
        let Some(routes) = self.exchanges.get(exchange) else { return Routed::NoExchange };
        let matches = |key: &str| routes.exchange.kind == ExchangeKind::Fanout || key == &*message.routing_key;
        if let Some((_, name)) = routes.bindings.iter().find(|(key, _)| matches(key)) {
            let Some(queue) = self.queues.get_mut(name) else { return Routed::Nowhere };
            Self::enqueue(&mut self.expiries, name, queue, message, outbox);
            return Routed::Taken;
        }
        let Some(alternate) = text(&routes.exchange.arguments, "alternate-exchange") else { return Routed::Nowhere };
        let alternate = alternate.to_owned();
        match self.route(&alternate, message, outbox) {
            Routed::NoExchange => Routed::Nowhere,
            routed => routed,
        }
    }

    fn enqueue(
        expiries: &mut BTreeSet<(Instant, String)>,
        name: &str,
        queue: &mut Queue,
        mut message: Stored,
        outbox: &mut Outbox<'_>,
    ) {
        if let Some(ttl) = queue.settings.ttl {
            let expires = Instant::now() + ttl;
            message.expires = Some(expires);
            if queue.ready.is_empty() {
                expiries.insert((expires, name.to_owned()));
            }
        }
        queue.ready.push_back(message);
        queue.flush(outbox);
    }

    /// When the next message expires; nothing while the node is stopped.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        if self.running { self.expiries.first().map(|(at, _)| *at) } else { None }
    }

    /// Sees to it that the first message of a queue, whatever became of those before it, is looked
    /// at when it expires.
    pub(super) fn watch(&mut self, name: &str) {
        let first = self.queues.get(name).and_then(|queue| queue.ready.front());
        if let Some(expires) = first.and_then(|message| message.expires) {
            self.expiries.insert((expires, name.to_owned()));
        }
    }

    /// Dead-letters what has been on its rung for the rung's time. Only the first of a queue is
    /// ever looked at, as RabbitMQ does it.
    pub(super) fn expire(&mut self, now: Instant, outbox: &mut Outbox<'_>) {
        while self.next_expiry().is_some_and(|at| at <= now) {
            let Some((_, name)) = self.expiries.pop_first() else { return };
            let Some(queue) = self.queues.get_mut(&name) else { continue };
            let over = |message: &&Stored| message.expires.is_some_and(|expires| expires <= now);
            let slept = queue.ready.iter().take_while(over).count();
            let expired: Vec<Stored> = queue.ready.drain(..slept).collect();
            let then = queue.settings.dead_letter.clone();
            self.watch(&name);
            let Some(then) = then else { continue };
            for message in expired {
                let deaths = message.deaths + 1;
                self.route(&then, Stored { expires: None, returns: 0, deaths, ..message }, outbox);
            }
        }
    }

    // ---- Consumers ----

    /// Lets `flow` consume its queue. Whether there is such a queue.
    pub(super) fn attach(
        &mut self,
        flow: Arc<Flow>,
        deliver: mpsc::Sender<Delivery>,
        prefetch: u16,
        outbox: &mut Outbox<'_>,
    ) -> bool {
        let Some(queue) = self.queues.get_mut(&*flow.queue) else { return false };
        queue.consumers.push(Attached {
            flow,
            deliver,
            prefetch: usize::from(prefetch.max(1)),
            cancelled: false,
            next: 0,
            unsettled: BTreeMap::new(),
        });
        queue.flush(outbox);
        true
    }

    /// Delivers no more to `flow`; what it has can still be settled.
    pub(super) fn cancel(&mut self, flow: &Flow, outbox: &mut Outbox<'_>) {
        let Some(queue) = self.queues.get_mut(&*flow.queue) else { return };
        for consumer in queue.consumers.iter_mut().filter(|consumer| consumer.flow.number == flow.number) {
            consumer.cancelled = true;
        }
        queue.flush(outbox);
    }

    /// Settles a delivery. Nothing happens to one that is not out any more; but its consumer may
    /// have room now.
    pub(super) fn settle(&mut self, flow: &Flow, tag: u64, requeue: bool, outbox: &mut Outbox<'_>) {
        let Some(queue) = self.queues.get_mut(&*flow.queue) else { return };
        let consumer = queue.consumers.iter_mut().find(|consumer| consumer.flow.number == flow.number);
        let message = consumer.and_then(|consumer| consumer.unsettled.remove(&tag));
        if let Some(message) = message.filter(|_| requeue) {
            queue.give_back(message);
        }
        queue.flush(outbox);
    }

    /// Gives back everything that the connection `line` has unsettled, and takes its consumers
    /// away.
    pub(super) fn detach(&mut self, line: u64, outbox: &mut Outbox<'_>) {
        let mut touched = Vec::new();
        for (name, queue) in &mut self.queues {
            if queue.detach(line, outbox) {
                touched.push(name.clone());
            }
        }
        for name in touched {
            if let Some(queue) = self.queues.get_mut(&name) {
                queue.flush(outbox);
            }
        }
    }

    pub(super) fn depth(&self, queue: &str) -> Result<Depth, BrokerError> {
        let found = self.queues.get(queue).ok_or_else(|| no_queue(queue))?;
        let consumers = found.consumers.iter().filter(|consumer| !consumer.cancelled).count();
        Ok(Depth { ready: found.waiting() as u64, consumers: consumers as u64 })
    }
}

pub(super) fn no_queue(queue: &str) -> BrokerError {
    BrokerError::Other(format!("there is no queue `{queue}`"))
}
