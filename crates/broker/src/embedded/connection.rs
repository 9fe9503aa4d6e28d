//! A connection: what belongs to one client, and is lost with it.
//!
//! It is as patient as the client for RabbitMQ: calls wait a bounded time while the broker is away,
//! publishes that were under way when it went are of unknown fate, and consumers come back by
//! themselves.

use std::fmt;
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use roundelay_model::topology::{Names, Topology};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::consumer::Tap;
use super::node::{Node, Outbox};
use super::queue::{Label, Stored};
use super::state::{NoWay, State, no_queue};
use crate::embedded::profile::Profile;
use crate::embedded::publish_fault::PublishFault;
use crate::rabbit::Patience;
use crate::rabbit::check::refuse_wrong;
use crate::{
    Broker, BrokerError, Consumer, Delays, Depth, Destination, Message, PeekedMessage, PublishError, Sleeping,
};

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Usable.
    Up,
    /// Lost; it comes back.
    Away,
    /// Closed on purpose, for good.
    Closed,
    /// The process behind it was killed.
    Dead,
}

/// A connection, as both sides see it.
pub(super) struct Line {
    pub(super) number: u64,
    inner: Mutex<Inner>,
    /// Wakes all tasks that wait, in the order in which they came.
    changed: Notify,
    /// Whether publishes are mandatory: returned when no queue takes them.
    mandatory: AtomicBool,
}

struct Inner {
    standing: Standing,
    /// The connection does not come back before this.
    away_until: Instant,
    /// How often the connection was lost.
    losses: u64,
}

impl Line {
    fn new(number: u64, standing: Standing) -> Self {
        let inner = Inner { standing, away_until: Instant::now(), losses: 0 };
        Self { number, inner: Mutex::new(inner), changed: Notify::new(), mandatory: AtomicBool::new(true) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(super) fn standing(&self) -> Standing {
        self.lock().standing
    }

    fn losses(&self) -> u64 {
        self.lock().losses
    }

    /// Loses the connection, at least until `until`.
    fn lose(&self, until: Instant) {
        {
            let mut inner = self.lock();
            inner.standing = Standing::Away;
            inner.away_until = inner.away_until.max(until);
            inner.losses += 1;
        }
        self.changed.notify_waiters();
    }

    /// Ends the connection for good.
    fn end(&self, standing: Standing) {
        {
            let mut inner = self.lock();
            inner.standing = standing;
            inner.losses += 1;
        }
        self.changed.notify_waiters();
    }

    /// Makes the connection usable again, unless it is not time yet.
    fn come_back(&self) {
        {
            let mut inner = self.lock();
            if inner.standing != Standing::Away || inner.away_until > Instant::now() {
                return;
            }
            inner.standing = Standing::Up;
        }
        self.changed.notify_waiters();
    }

    /// Waits until `what` holds of the connection.
    async fn until<T>(&self, what: impl Fn(&Inner) -> Option<T>) -> T {
        loop {
            let mut changed = pin!(self.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            if let Some(found) = what(&self.lock()) {
                return found;
            }
            changed.await;
        }
    }

    /// Waits while the connection is away.
    pub(super) async fn settled(&self) -> Standing {
        self.until(|inner| (inner.standing != Standing::Away).then_some(inner.standing)).await
    }

    /// Waits for the connection, for at most `patience`; the error says why it is not there.
    async fn up(&self, patience: Duration) -> Result<(), String> {
        let standing = match self.standing() {
            Standing::Away => timeout(patience, self.settled()).await.unwrap_or(Standing::Away),
            standing => standing,
        };
        match standing {
            Standing::Up => Ok(()),
            Standing::Away => Err("the broker is away".into()),
            Standing::Closed => Err("the connection has been closed".into()),
            Standing::Dead => pending().await,
        }
    }

    /// Returns at once, unless the process is dead: then it never returns.
    pub(super) async fn unless_dead(&self) {
        if self.standing() == Standing::Dead {
            pending().await
        }
    }
}

impl State {
    /// A new connection.
    fn connect(&mut self) -> Arc<Line> {
        let standing = if self.running { Standing::Up } else { Standing::Away };
        let line = Arc::new(Line::new(self.number(), standing));
        self.lines.insert(line.number, line.clone());
        line
    }

    /// Loses a connection.
    fn cut(&mut self, line: &Line, until: Instant, outbox: &mut Outbox<'_>) {
        if self.lines.contains_key(&line.number) {
            line.lose(until);
            self.detach(|flow| flow.line.number == line.number, outbox);
        }
    }

    /// Ends a connection for good.
    fn end(&mut self, line: &Line, standing: Standing, outbox: &mut Outbox<'_>) {
        if self.lines.remove(&line.number).is_some() {
            line.end(standing);
            self.detach(|flow| flow.line.number == line.number, outbox);
        }
    }

    /// Stops the node: every connection is lost.
    pub(super) fn stop(&mut self, outbox: &mut Outbox<'_>) {
        self.running = false;
        self.lines.values().for_each(|line| line.lose(Instant::now()));
        self.detach(|_| true, outbox);
    }

    /// Starts the node again: every connection comes back that was not cut besides.
    pub(super) fn start(&mut self) {
        self.running = true;
        let names: Vec<_> = self.queues.keys().cloned().collect();
        for name in names {
            if let Some(queue) = self.queues.get_mut(&name) {
                queue.dying.hurry();
                // Time without the node is no time without consumers.
                queue.used = Instant::now();
            }
            self.watch(&name);
        }
        self.lines.values().for_each(|line| line.come_back());
    }
}

/// A client's connection to an [`EmbeddedBroker`](super::EmbeddedBroker). Dropping it closes it.
pub struct EmbeddedConnection {
    names: Names,
    node: Arc<Node>,
    line: Arc<Line>,
    patience: Patience,
    sleeping: Sleeping,
}

impl fmt::Debug for EmbeddedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, standing) = (self.line.number, self.line.standing());
        f.debug_struct("EmbeddedConnection").field("number", &number).field("standing", &standing).finish()
    }
}

impl EmbeddedConnection {
    pub(super) fn open(names: Names, node: Arc<Node>, patience: Patience) -> Self {
        let line = node.change(|state, _| state.connect());
        Self { names, node, line, patience, sleeping: Sleeping::default() }
    }

    /// Cuts the connection, as when TCP breaks, for as long as `away`; a second cut meanwhile can
    /// only prolong it.
    ///
    /// Unsettled deliveries go back to the head of their queues, in their old order and marked as redelivered; those
    /// that were taken are not [alive](crate::Delivery::is_alive) any more, and settling them does nothing. Publishes
    /// that wait for their confirmation end as [`PublishError::Unknown`]; new ones wait for the connection, up to
    /// [`Patience::connection`]. Consumers attach again by themselves. Nothing happens to a connection that has ended.
    /// Must be called inside a tokio runtime.
    pub fn cut(&self, away: Duration) {
        let back = Instant::now() + away;
        self.node.change(|state, outbox| state.cut(&self.line, back, outbox));
        let (node, line) = (Arc::downgrade(&self.node), self.line.clone());
        tokio::spawn(async move {
            sleep_until(back).await;
            let Some(node) = node.upgrade() else { return };
            node.change(|state, _| {
                if state.running {
                    line.come_back();
                }
            });
        });
    }

    /// Ends the connection as when its process is killed. Unsettled deliveries go back as after a
    /// [cut](Self::cut); every call that is under way or still comes, settling a delivery included,
    /// is pending for ever. Deliveries that a consumer had buffered can still be taken from it,
    /// and are not alive.
    pub fn die(&self) {
        self.node.change(|state, outbox| state.end(&self.line, Standing::Dead, outbox));
    }

    /// The same, which sends messages to sleep as this says.
    #[must_use]
    pub fn with_delays(mut self, delays: Delays) -> Self {
        self.sleeping = Sleeping::new(delays);
        self
    }

    /// Whether publishes are mandatory, which they are unless this says otherwise. Without, the
    /// broker confirms what no queue takes, and the message is gone.
    pub fn mandatory(&self, mandatory: bool) {
        self.line.mandatory.store(mandatory, Ordering::Relaxed);
    }

    /// Exchange and routing key.
    fn address(&self, to: &Destination) -> (String, Arc<str>) {
        match to {
            Destination::Queue(queue) | Destination::Asleep { queue, .. } => (self.names.jobs(), queue.as_str().into()),
            Destination::Rung { rung, then } => (self.names.rung(*rung), then.as_str().into()),
            Destination::Quarantine { .. } => (self.names.jobs(), self.names.quarantine().into()),
        }
    }

    /// Publishes a message that says of itself that it has been dead-lettered: on these queues, so
    /// often. Clients that copy the headers of what they got do that. RabbitMQ 4 does not believe it.
    ///
    /// # Errors
    /// As [`publish`](Broker::publish).
    pub async fn publish_with_deaths(&self, message: Message, deaths: &[(&str, usize)]) -> Result<(), PublishError> {
        self.line.up(self.patience.connection).await.map_err(PublishError::Unknown)?;
        let (exchange, routing_key) = self.address(&message.to);
        let mut stored = Stored::new(message, routing_key);
        if self.node.lock().profile == Profile::Rabbit310 {
            stored.deaths = deaths.iter().map(|(queue, count)| ((*queue).into(), *count)).collect();
        }
        self.send(&exchange, stored, PublishFault::None).await
    }

    async fn send(&self, exchange: &str, message: Stored, fault: PublishFault) -> Result<(), PublishError> {
        let (losses, routing_key) = (self.line.losses(), message.routing_key.clone());
        let copies = match fault {
            PublishFault::None | PublishFault::Slow(_) | PublishFault::UnknownButKept => 1,
            PublishFault::Twice => 2,
            PublishFault::UnknownAndLost => return Err(unknown("the message was lost")),
            PublishFault::Refused => return Err(PublishError::Refused(routing_key.to_string())),
            PublishFault::Returned => 0,
        };
        let routed = self.node.change(|state, outbox| {
            let queue = state.resolve(exchange, &routing_key)?;
            for _ in 1..copies {
                state.enqueue(&queue, message.clone(), outbox);
            }
            if copies == 0 {
                return Err(NoWay::Nowhere);
            }
            state.enqueue(&queue, message, outbox);
            Ok(())
        });
        match fault {
            PublishFault::Slow(after) => self.confirmation(losses, after).await?,
            PublishFault::UnknownButKept => return Err(unknown("the confirmation was lost")),
            _ => {}
        }
        match routed {
            Ok(()) => Ok(()),
            Err(NoWay::Nowhere) if !self.line.mandatory.load(Ordering::Relaxed) => Ok(()),
            Err(NoWay::Nowhere) => {
                Err(PublishError::Unroutable(format!("`{routing_key}` (through exchange `{exchange}`)")))
            }
            Err(NoWay::NoExchange) => {
                Err(PublishError::Unroutable(format!("`{routing_key}`: there is no exchange `{exchange}`")))
            }
        }
    }

    /// Waits for the connection, for whatever is no publish.
    async fn up(&self) -> Result<(), BrokerError> {
        self.line.up(self.patience.connection).await.map_err(BrokerError::Other)
    }

    /// Waits for a confirmation that takes so long.
    async fn confirmation(&self, losses: u64, after: Duration) -> Result<(), PublishError> {
        let lost = self.line.until(|inner| (inner.losses != losses).then_some(()));
        let verdict = tokio::select! {
            biased;
            () = lost => Err(unknown("the connection was lost")),
            verdict = self.no_longer(sleep(after)) => verdict,
        };
        self.line.unless_dead().await;
        verdict
    }

    /// No publish waits longer for its confirmation than the client for RabbitMQ would.
    async fn no_longer(&self, confirmed: impl Future<Output = ()>) -> Result<(), PublishError> {
        let patience = self.patience.confirmation;
        timeout(patience, confirmed).await.map_err(|_| unknown(&format!("none within {} s", patience.as_secs_f32())))
    }
}

fn unknown(why: &str) -> PublishError {
    PublishError::Unknown(why.into())
}

impl Drop for EmbeddedConnection {
    fn drop(&mut self) {
        self.node.change(|state, outbox| state.end(&self.line, Standing::Closed, outbox));
    }
}

#[async_trait]
impl Broker for EmbeddedConnection {
    /// As long as the node runs, which outlives its connections.
    fn keeps_messages(&self) -> bool {
        true
    }

    fn sleeping(&self) -> &Sleeping {
        &self.sleeping
    }

    fn losses(&self) -> u64 {
        self.line.losses()
    }

    async fn apply(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.up().await?;
        self.node.change(|state, outbox| state.apply(topology, outbox))
    }

    async fn verify(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.up().await?;
        refuse_wrong(topology, &self.node.lock().snapshot())
    }

    async fn remove(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.up().await?;
        self.node.change(|state, outbox| {
            for exchange in &topology.exchanges {
                state.delete_exchange(&exchange.name);
            }
            for queue in &topology.queues {
                state.delete_queue(&queue.name, outbox);
            }
        });
        Ok(())
    }

    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        self.line.up(self.patience.connection).await.map_err(PublishError::Unknown)?;
        let fault = self.node.fault(&message);
        let (exchange, routing_key) = self.address(&message.to);
        let label = match &message.to {
            Destination::Quarantine { from, reason } => {
                Some(Arc::new(Label { id: message.id.clone(), from: from.clone(), reason: reason.clone() }))
            }
            _ => None,
        };
        let stored = Stored { label, ..Stored::new(message, routing_key) };
        self.send(&exchange, stored, fault).await
    }

    async fn consume(&self, queue: &str, prefetch: u16) -> Result<Consumer, BrokerError> {
        self.up().await?;
        let (consumer, deliver, cancelled) = Consumer::channel(prefetch);
        let (node, line) = (Arc::downgrade(&self.node), self.line.clone());
        let tap = Tap { node, line, queue: queue.into(), prefetch, deliver, cancelled, silence: self.patience.silence };
        let flow = tap.open(&self.node).ok_or_else(|| no_queue(queue))?;
        tokio::spawn(tap.run(flow));
        Ok(consumer)
    }

    async fn depth(&self, queue: &str) -> Result<Depth, BrokerError> {
        self.up().await?;
        self.node.lock().depth(queue)
    }

    async fn peek(&self, queue: &str, most: usize) -> Result<Vec<PeekedMessage>, BrokerError> {
        self.up().await?;
        let most = u16::try_from(most).unwrap_or(u16::MAX).max(1);
        let (deliver, mut fetched) = mpsc::channel(most.into());
        // What waits is given out in the order in which it waits, and no other call comes in between.
        let (labels, flow) = self
            .node
            .change(|state, outbox| {
                let waiting = state.queues.get(queue)?;
                let labels: Vec<_> =
                    waiting.all_waiting().take(most.into()).map(|message| message.label.clone()).collect();
                let flow = state.consume(&self.line, queue, deliver, most, outbox)?;
                Some((labels, flow))
            })
            .ok_or_else(|| no_queue(queue))?;
        self.node.change(|state, outbox| state.cancel(&flow, outbox));
        let shelved = labels.into_iter().zip(std::iter::from_fn(|| fetched.try_recv().ok()));
        let shelved = shelved.filter_map(|(label, delivery)| {
            let text = |of: fn(&Label) -> &String| label.as_deref().map(of).cloned().unwrap_or_default();
            let (id, from, reason) = (text(|label| &label.id), text(|label| &label.from), text(|label| &label.reason));
            let body = delivery.body.clone();
            Some(PeekedMessage { id, from, reason, body, settle: delivery.into_settle()? })
        });
        Ok(shelved.collect())
    }

    fn unavailable(&self) -> Option<String> {
        (self.line.standing() == Standing::Away).then(|| "the broker is away".into())
    }

    async fn close(&self) {
        self.line.unless_dead().await;
        self.node.change(|state, outbox| state.end(&self.line, Standing::Closed, outbox));
    }
}
