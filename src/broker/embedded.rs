//! RabbitMQ's behaviour, as far as the engine uses it, inside this process.
//!
//! It has the same exchanges, queues, times to live, dead-lettering, prefetch, redelivery and
//! returns, so the same engine runs on it; contract tests hold it against the real thing. Time is
//! tokio's, so with a paused clock it runs in virtual time. Nothing is kept when it is dropped.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::topology::{Argument, Exchange, ExchangeKind, Names, Topology};
use super::{Broker, BrokerError, Consumer, Delivery, Depth, Destination, Message, PublishError, Settle};

/// The broker; clones are the same one.
#[derive(Clone)]
pub struct EmbeddedBroker {
    names: Names,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Wakes the task that takes messages off rungs, when an earlier one has come.
    earlier: Arc<Notify>,
}

#[derive(Default)]
struct State {
    exchanges: HashMap<String, Routes>,
    queues: HashMap<String, Queue>,
    /// Rungs by when their first message expires.
    expiries: BTreeSet<(Instant, String)>,
}

struct Routes {
    exchange: Exchange,
    /// (routing key, queue)
    bindings: Vec<(String, String)>,
}

#[derive(Default)]
struct Queue {
    rung: Option<Rung>,
    ready: VecDeque<Stored>,
    consumers: Vec<Attached>,
    turn: usize,
}

struct Rung {
    ttl: Duration,
    then: String,
}

#[derive(Clone)]
struct Stored {
    body: Bytes,
    routing_key: Arc<str>,
    redelivered: bool,
    deaths: usize,
    expires: Option<Instant>,
}

/// One consumer, as the broker sees it.
struct Attached {
    number: u64,
    queue: Arc<str>,
    deliver: mpsc::Sender<Delivery>,
    prefetch: usize,
    cancelled: bool,
    /// Grows with every delivery; the delivery tag.
    next: u64,
    unsettled: BTreeMap<u64, Stored>,
}

/// Deliveries to hand over once the lock is released: a consumer that has gone drops them, and a
/// dropped delivery takes the lock to go back to its queue.
struct Outbox<'a> {
    shared: &'a Arc<Shared>,
    deliveries: Vec<(mpsc::OwnedPermit<Delivery>, Delivery)>,
}

impl EmbeddedBroker {
    /// An empty broker. Must be called inside a tokio runtime, which runs its clock.
    pub fn new(names: Names) -> Self {
        let shared = Arc::new(Shared { state: Mutex::default(), earlier: Arc::default() });
        tokio::spawn(take_off_rungs(Arc::downgrade(&shared)));
        Self { names, shared }
    }

    /// Takes the messages of a queue that wait to be delivered, as an operator might who purges it.
    pub fn drain(&self, queue: &str) -> Vec<Bytes> {
        let mut state = self.shared.lock();
        let messages = state.queues.get_mut(queue).map(|queue| std::mem::take(&mut queue.ready));
        messages.into_iter().flatten().map(|message| message.body).collect()
    }

    /// Exchange and routing key.
    fn address(&self, to: &Destination) -> (String, Arc<str>) {
        match to {
            Destination::Queue(queue) => (self.names.jobs(), queue.as_str().into()),
            Destination::Rung { rung, then } => (self.names.rung(*rung), then.as_str().into()),
            Destination::Quarantine { .. } => (self.names.jobs(), self.names.quarantine().into()),
        }
    }
}

/// Moves what has slept long enough from its rung to where it leads.
async fn take_off_rungs(broker: Weak<Shared>) {
    loop {
        let Some(shared) = broker.upgrade() else { return };
        let first = shared.change(|state, outbox| {
            state.expire(Instant::now(), outbox);
            state.expiries.first().map(|(at, _)| *at)
        });
        // The broker lives as long as somebody holds it, which this task does not while it waits;
        // an hourly look ends it when nobody does.
        let at = first.unwrap_or_else(|| Instant::now() + Duration::from_secs(3_600));
        let earlier = shared.earlier.clone();
        drop(shared);
        tokio::select! {
            () = tokio::time::sleep_until(at) => {}
            () = earlier.notified() => {}
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, then hands over the deliveries that follow from it.
    fn change<T>(self: &Arc<Self>, f: impl FnOnce(&mut State, &mut Outbox<'_>) -> T) -> T {
        let mut outbox = Outbox { shared: self, deliveries: Vec::new() };
        let (result, earlier) = {
            let mut state = self.lock();
            let before = state.expiries.first().map(|(at, _)| *at);
            let result = f(&mut state, &mut outbox);
            let after = state.expiries.first().map(|(at, _)| *at);
            (result, after.is_some_and(|after| before.is_none_or(|before| after < before)))
        };
        for (permit, delivery) in outbox.deliveries {
            permit.send(delivery);
        }
        if earlier {
            self.earlier.notify_one();
        }
        result
    }
}

impl State {
    /// Routes a message; whether a queue took it.
    fn route(&mut self, exchange: &str, message: Stored, outbox: &mut Outbox<'_>) -> bool {
        let Some(routes) = self.exchanges.get(exchange) else { return false };
        let matches = |key: &str| routes.exchange.kind == ExchangeKind::Fanout || key == &*message.routing_key;
        if let Some((_, queue)) = routes.bindings.iter().find(|(key, _)| matches(key)) {
            let queue = queue.clone();
            return self.enqueue(&queue, message, outbox);
        }
        let alternate = routes.exchange.arguments.iter().find_map(|(name, value)| match value {
            Argument::Text(text) if *name == "alternate-exchange" => Some(text.clone()),
            _ => None,
        });
        alternate.is_some_and(|alternate| self.route(&alternate, message, outbox))
    }

    fn enqueue(&mut self, name: &str, mut message: Stored, outbox: &mut Outbox<'_>) -> bool {
        let Some(queue) = self.queues.get_mut(name) else { return false };
        if let Some(rung) = &queue.rung {
            let expires = Instant::now() + rung.ttl;
            message.expires = Some(expires);
            if queue.ready.is_empty() {
                self.expiries.insert((expires, name.to_owned()));
            }
        }
        queue.ready.push_back(message);
        queue.flush(outbox);
        true
    }

    /// Dead-letters what has been on its rung for the rung's time.
    fn expire(&mut self, now: Instant, outbox: &mut Outbox<'_>) {
        while self.expiries.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, name)) = self.expiries.pop_first() else { return };
            let Some(queue) = self.queues.get_mut(&name) else { continue };
            let Some(rung) = &queue.rung else { continue };
            let then = rung.then.clone();
            let over = |message: &Stored| message.expires.is_none_or(|expires| expires <= now);
            let slept = queue.ready.iter().take_while(|message| over(message)).count();
            let expired: Vec<Stored> = queue.ready.drain(..slept).collect();
            if let Some(expires) = queue.ready.front().and_then(|message| message.expires) {
                self.expiries.insert((expires, name));
            }
            for message in expired {
                let deaths = message.deaths + 1;
                self.route(&then, Stored { expires: None, deaths, ..message }, outbox);
            }
        }
    }
}

impl Queue {
    /// Hands messages to consumers that have room, in turn.
    fn flush(&mut self, outbox: &mut Outbox<'_>) {
        self.consumers.retain(|consumer| !consumer.cancelled || !consumer.unsettled.is_empty());
        let mut full = 0;
        while full < self.consumers.len() {
            let Some(message) = self.ready.pop_front() else { return };
            self.turn = (self.turn + 1) % self.consumers.len();
            match self.consumers[self.turn].take(message, outbox) {
                Ok(()) => full = 0,
                Err(message) => {
                    self.ready.push_front(message);
                    full += 1;
                }
            }
        }
    }
}

impl Attached {
    fn take(&mut self, message: Stored, outbox: &mut Outbox<'_>) -> Result<(), Stored> {
        if self.cancelled || self.unsettled.len() >= self.prefetch {
            return Err(message);
        }
        let Ok(permit) = self.deliver.clone().try_reserve_owned() else { return Err(message) };
        let tag = self.next;
        self.next += 1;
        let settle = Tag { tag, consumer: self.number, queue: self.queue.clone(), shared: Some(outbox.shared.clone()) };
        let (body, queue) = (message.body.clone(), self.queue.clone());
        let delivery = Delivery::new(body, queue, message.redelivered, message.deaths, Box::new(settle));
        outbox.deliveries.push((permit, delivery));
        self.unsettled.insert(tag, message);
        Ok(())
    }
}

/// A delivery's way back.
struct Tag {
    tag: u64,
    consumer: u64,
    queue: Arc<str>,
    /// Taken once the delivery is settled.
    shared: Option<Arc<Shared>>,
}

impl Tag {
    fn settle(&mut self, requeue: bool) {
        let Some(shared) = self.shared.take() else { return };
        shared.change(|state, outbox| {
            let Some(queue) = state.queues.get_mut(&*self.queue) else { return };
            let consumer = queue.consumers.iter_mut().find(|consumer| consumer.number == self.consumer);
            let message = consumer.and_then(|consumer| consumer.unsettled.remove(&self.tag));
            if let Some(message) = message.filter(|_| requeue) {
                queue.ready.push_front(Stored { redelivered: true, ..message });
            }
            queue.flush(outbox);
        });
    }
}

/// What nobody settled goes back to its queue, as it does when a connection dies.
impl Drop for Tag {
    fn drop(&mut self) {
        self.settle(true);
    }
}

#[async_trait]
impl Settle for Tag {
    fn is_alive(&self) -> bool {
        true
    }

    async fn ack(mut self: Box<Self>) {
        self.settle(false);
    }

    async fn requeue(mut self: Box<Self>) {
        self.settle(true);
    }
}

#[async_trait]
impl Broker for EmbeddedBroker {
    fn keeps_messages(&self) -> bool {
        false
    }

    async fn apply(&self, topology: &Topology) -> Result<(), BrokerError> {
        let mut state = self.shared.lock();
        for exchange in &topology.exchanges {
            let routes = Routes { exchange: exchange.clone(), bindings: Vec::new() };
            let known = state.exchanges.entry(exchange.name.clone()).or_insert(routes);
            if known.exchange != *exchange {
                return Err(BrokerError::Topology(format!("exchange {} has other properties", exchange.name)));
            }
        }
        for queue in &topology.queues {
            let then = queue.arguments.iter().find_map(|(name, value)| match value {
                Argument::Text(text) if *name == "x-dead-letter-exchange" => Some(text.clone()),
                _ => None,
            });
            let rung = queue.ttl().zip(then).map(|(ttl, then)| Rung { ttl, then });
            state.queues.entry(queue.name.clone()).or_insert_with(|| Queue { rung, ..Queue::default() });
        }
        for binding in &topology.bindings {
            let Some(routes) = state.exchanges.get_mut(&binding.exchange) else { continue };
            let pair = (binding.key.clone(), binding.queue.clone());
            if !routes.bindings.contains(&pair) {
                routes.bindings.push(pair);
            }
        }
        Ok(())
    }

    async fn remove(&self, topology: &Topology) -> Result<(), BrokerError> {
        let removed: Vec<Option<Queue>> = {
            let mut state = self.shared.lock();
            topology.exchanges.iter().for_each(|exchange| drop(state.exchanges.remove(&exchange.name)));
            topology.queues.iter().map(|queue| state.queues.remove(&queue.name)).collect()
        };
        // Outside the lock: consumers' deliveries find their queue gone.
        drop(removed);
        Ok(())
    }

    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        let (exchange, routing_key) = self.address(&message.to);
        let stored = Stored { body: message.body, routing_key, redelivered: false, deaths: 0, expires: None };
        let routed = self.shared.change(|state, outbox| state.route(&exchange, stored, outbox));
        if routed { Ok(()) } else { Err(PublishError::Unroutable(exchange)) }
    }

    async fn consume(&self, queue: &str, prefetch: u16) -> Result<Consumer, BrokerError> {
        let (consumer, deliver, mut cancelled) = Consumer::channel(prefetch);
        let name: Arc<str> = queue.into();
        let number = self.shared.change(|state, outbox| {
            let Some(found) = state.queues.get_mut(queue) else {
                return Err(BrokerError::Other(format!("there is no queue {queue}")));
            };
            let number = found.consumers.iter().map(|consumer| consumer.number + 1).max().unwrap_or(0);
            found.consumers.push(Attached {
                number,
                queue: name.clone(),
                deliver,
                prefetch: usize::from(prefetch.max(1)),
                cancelled: false,
                next: 0,
                unsettled: BTreeMap::new(),
            });
            found.flush(outbox);
            Ok(number)
        })?;
        let shared = Arc::downgrade(&self.shared);
        tokio::spawn(async move {
            cancelled.recv().await;
            let Some(shared) = shared.upgrade() else { return };
            shared.change(|state, outbox| {
                let Some(queue) = state.queues.get_mut(&*name) else { return };
                for consumer in queue.consumers.iter_mut().filter(|consumer| consumer.number == number) {
                    consumer.cancelled = true;
                }
                queue.flush(outbox);
            });
        });
        Ok(consumer)
    }

    async fn depth(&self, queue: &str) -> Result<Depth, BrokerError> {
        let state = self.shared.lock();
        let found = state.queues.get(queue);
        let found = found.ok_or_else(|| BrokerError::Other(format!("there is no queue {queue}")))?;
        let consumers = found.consumers.iter().filter(|consumer| !consumer.cancelled).count();
        Ok(Depth { ready: found.ready.len() as u64, consumers: consumers as u64 })
    }

    async fn close(&self) {}
}
