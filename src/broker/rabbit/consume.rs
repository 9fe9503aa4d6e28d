//! Consuming: a task per consumer keeps a queue flowing whatever happens to channels, connections
//! and the queue itself.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tracing::{debug, info, trace, warn};

use super::Patience;
use super::connection::{Backoff, Line, in_words, short, up};
use crate::broker::{BrokerError, Consumer, Delivery, Settle};
use crate::clock::Entropy;

/// How long the broker may take to confirm a cancellation or the closing of a channel.
const CANCEL_WITHIN: Duration = Duration::from_secs(5);

/// Starts to consume. The first attempt tells its failure; later ones are repeated.
pub(super) async fn consume(
    mut line: watch::Receiver<Line>,
    queue: &str,
    prefetch: u16,
    patience: Patience,
    entropy: Entropy,
) -> Result<Consumer, BrokerError> {
    let connection = up(&mut line, patience.connection).await.map_err(BrokerError::Other)?;
    let source = QueueName { name: queue.into(), short: short(queue)? };
    let flow = Flow::open(&connection, &source, prefetch)
        .await
        .map_err(|error| BrokerError::Other(format!("cannot consume queue `{queue}`: {}", in_words(&error))))?;
    let (consumer, deliver, cancelled) = Consumer::channel(prefetch);
    let tap = Tap {
        line,
        queue: source,
        prefetch,
        deliver,
        cancelled,
        backoff: Backoff::new(entropy),
        silence: patience.silence,
    };
    tokio::spawn(tap.run(flow));
    Ok(consumer)
}

/// A queue's name in the two forms that are needed.
struct QueueName {
    name: Arc<str>,
    short: lapin::types::ShortString,
}

/// A channel with a running consumer.
struct Flow {
    connection: Arc<Connection>,
    channel: Channel,
    stream: lapin::Consumer,
    /// Every delivery holds a clone, so the receiver ends when the last one has been settled.
    unsettled: mpsc::UnboundedSender<lapin::Acker>,
    /// Deliveries that were dropped unsettled.
    abandoned: mpsc::UnboundedReceiver<lapin::Acker>,
}

impl Flow {
    /// A channel of its own for each consumer, since prefetch is counted and a refused queue is
    /// punished by channel.
    async fn open(connection: &Arc<Connection>, queue: &QueueName, prefetch: u16) -> lapin::Result<Self> {
        let channel = connection.create_channel().await?;
        channel.basic_qos(prefetch.max(1), BasicQosOptions::default()).await?;
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        let stream = channel.basic_consume(queue.short.clone(), "".into(), options, arguments).await?;
        let (unsettled, abandoned) = mpsc::unbounded_channel();
        Ok(Self { connection: connection.clone(), channel, stream, unsettled, abandoned })
    }

    /// Keeps the channel until everything delivered on it has been settled, so that running jobs
    /// can still acknowledge; then closes it.
    async fn see_out(self) {
        let Self { channel, stream, unsettled, mut abandoned, .. } = self;
        drop((stream, unsettled));
        while let Some(acker) = abandoned.recv().await {
            requeue(&acker).await;
        }
        if channel.status().connected() {
            let _ = timeout(CANCEL_WITHIN, channel.close(200, "all settled".into())).await;
        }
    }
}

/// Why deliveries have ceased to come.
enum Ebb {
    /// The consumer was cancelled or dropped here.
    Cancelled,
    /// The broker stopped it, or is gone.
    Interrupted(String),
    /// Nothing has come for long. Mostly there is nothing; see [`Tap::silence`].
    Silent,
}

/// The task behind a [`Consumer`].
struct Tap {
    line: watch::Receiver<Line>,
    queue: QueueName,
    prefetch: u16,
    deliver: mpsc::Sender<Delivery>,
    cancelled: mpsc::Receiver<()>,
    backoff: Backoff,
    /// A consumer that gets nothing for so long, and has nothing in hand, subscribes anew.
    ///
    /// RabbitMQ 3.10 does not tell the consumers of a quorum queue that is deleted and at once
    /// declared again. It even counts them, and counts messages as delivered to them, but nothing
    /// arrives. From here that looks like an empty queue, and only closing the channel mends it.
    silence: Duration,
}

impl Tap {
    async fn run(mut self, mut flow: Flow) {
        loop {
            let ebb = self.pour(&mut flow).await;
            let on_connection = flow.connection.status().connected();
            match ebb {
                Ebb::Cancelled => {
                    cancel(&mut flow).await;
                    tokio::spawn(flow.see_out());
                    return;
                }
                Ebb::Silent => {
                    trace!(queue = %self.queue.name, "nothing for long; subscribing anew");
                    cancel(&mut flow).await;
                    tokio::spawn(flow.see_out());
                    let Some(fresh) = self.reopen(false).await else { return };
                    flow = fresh;
                    continue;
                }
                // The connection says so itself when it is lost.
                Ebb::Interrupted(reason) if on_connection => {
                    warn!(queue = %self.queue.name, %reason, "the broker stopped the consumer; trying again");
                }
                Ebb::Interrupted(reason) => debug!(queue = %self.queue.name, %reason, "consuming is interrupted"),
            }
            tokio::spawn(flow.see_out());
            let Some(fresh) = self.reopen(on_connection).await else { return };
            flow = fresh;
            info!(queue = %self.queue.name, prefetch = self.prefetch, "consuming again");
        }
    }

    /// Forwards deliveries for as long as they come.
    async fn pour(&mut self, flow: &mut Flow) -> Ebb {
        let mut reason = None;
        let mut look = interval_at(Instant::now() + self.silence, self.silence);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut quiet = true;
        loop {
            tokio::select! {
                biased;
                _ = self.cancelled.recv() => return Ebb::Cancelled,
                Some(acker) = flow.abandoned.recv() => requeue(&acker).await,
                next = flow.stream.next() => match next {
                    Some(Ok(delivery)) => {
                        self.backoff.reset();
                        quiet = false;
                        // Fails when the consumer has gone, and then the delivery is dropped, hence
                        // put back. Waits only while deliveries of an earlier connection fill the
                        // buffer, which holds a whole prefetch.
                        let _ = self.deliver.send(self.received(delivery, flow)).await;
                    }
                    Some(Err(error)) => reason = Some(in_words(&error)),
                    None => {
                        return Ebb::Interrupted(reason.unwrap_or_else(|| "the queue was deleted or has moved".into()));
                    }
                },
                _ = look.tick() => {
                    let in_hand = flow.unsettled.strong_count() - 1;
                    if std::mem::replace(&mut quiet, true) && in_hand == 0 {
                        return Ebb::Silent;
                    }
                }
            }
        }
    }

    fn received(&self, delivery: lapin::message::Delivery, flow: &Flow) -> Delivery {
        let deaths = delivery.properties.headers().as_ref().map_or(0, deaths);
        let settle = Unsettled { acker: Some(delivery.acker), abandoned: flow.unsettled.clone() };
        Delivery::new(delivery.data.into(), self.queue.name.clone(), delivery.redelivered, deaths, Box::new(settle))
    }

    /// Tries until the queue can be consumed again; nothing once the broker has been closed or the
    /// consumer cancelled.
    async fn reopen(&mut self, mut patiently: bool) -> Option<Flow> {
        let mut told = String::new();
        loop {
            if patiently {
                tokio::select! {
                    _ = self.cancelled.recv() => return None,
                    () = self.backoff.wait() => {}
                }
            }
            let connection = tokio::select! {
                _ = self.cancelled.recv() => return None,
                line = self.line.wait_for(|line| !matches!(line, Line::Away(_))) => match &*line.ok()? {
                    Line::Up(connection) => connection.clone(),
                    Line::Away(_) | Line::Closed => return None,
                },
            };
            match Flow::open(&connection, &self.queue, self.prefetch).await {
                Ok(flow) => return Some(flow),
                Err(error) => {
                    let reason = in_words(&error);
                    if connection.status().connected() && told != reason {
                        warn!(queue = %self.queue.name, %reason, "cannot consume; trying again");
                        told = reason;
                    }
                }
            }
            patiently = true;
        }
    }
}

/// Stops the flow on the broker's side, and puts back what has arrived and not been taken.
async fn cancel(flow: &mut Flow) {
    let tag = flow.stream.tag();
    let stop = async {
        if flow.channel.basic_cancel(tag, BasicCancelOptions::default()).await.is_ok() {
            while let Some(Ok(delivery)) = flow.stream.next().await {
                requeue(&delivery.acker).await;
            }
        }
    };
    let _ = timeout(CANCEL_WITHIN, stop).await;
}

async fn requeue(acker: &lapin::Acker) {
    settled("requeue", acker.nack(BasicNackOptions { multiple: false, requeue: true }).await);
}

/// A settlement that fails has no consequence here: the channel is gone, and the broker delivers
/// the message again.
fn settled(verb: &str, result: lapin::Result<bool>) {
    match result {
        Ok(true) => {}
        Ok(false) => debug!(verb, "the channel of a delivery is gone; the broker delivers it again"),
        Err(error) => debug!(verb, error = %in_words(&error), "failed to settle; the broker delivers it again"),
    }
}

/// A delivery that waits to be settled. Dropped unsettled (its worker panicked, say), it is put
/// back, for otherwise it would hold its share of the prefetch as long as the channel lives.
struct Unsettled {
    acker: Option<lapin::Acker>,
    abandoned: mpsc::UnboundedSender<lapin::Acker>,
}

#[async_trait]
impl Settle for Unsettled {
    fn is_alive(&self) -> bool {
        self.acker.as_ref().is_some_and(lapin::Acker::usable)
    }

    /// Returns when lapin has written the acknowledgement; nothing is awaited from the broker.
    async fn ack(mut self: Box<Self>) {
        if let Some(acker) = self.acker.take() {
            settled("ack", acker.ack(BasicAckOptions::default()).await);
        }
    }

    async fn requeue(mut self: Box<Self>) {
        if let Some(acker) = self.acker.take() {
            requeue(&acker).await;
        }
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if let Some(acker) = self.acker.take() {
            let _ = self.abandoned.send(acker);
        }
    }
}

/// How often the message has been dead-lettered. The header has one entry for each queue and
/// reason, with a count; whichever of entries and sum is larger.
fn deaths(headers: &FieldTable) -> usize {
    let Some(AMQPValue::FieldArray(entries)) = headers.inner().get("x-death") else { return 0 };
    let count = |entry: &AMQPValue| match entry {
        AMQPValue::FieldTable(entry) => match entry.inner().get("count") {
            Some(AMQPValue::LongLongInt(count)) => usize::try_from(*count).unwrap_or(0),
            _ => 0,
        },
        _ => 0,
    };
    let sum = entries.as_slice().iter().map(count).fold(0, usize::saturating_add);
    sum.max(entries.as_slice().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deaths_are_the_larger_of_entries_and_counts() {
        let entry = |count: Option<i64>| {
            let mut entry = FieldTable::default();
            if let Some(count) = count {
                entry.insert("count".into(), AMQPValue::LongLongInt(count));
            }
            AMQPValue::FieldTable(entry)
        };
        let table = [
            (vec![], 0),
            (vec![entry(Some(1))], 1),
            (vec![entry(Some(3)), entry(Some(2))], 5),
            (vec![entry(None), entry(None)], 2),
            (vec![entry(Some(-1))], 1),
            (vec![entry(Some(i64::MAX)), entry(Some(i64::MAX)), entry(Some(2))], usize::MAX),
            (vec![AMQPValue::Void], 1),
        ];
        for (entries, expected) in table {
            let mut headers = FieldTable::default();
            headers.insert("x-death".into(), AMQPValue::FieldArray(entries.into()));
            assert_eq!(deaths(&headers), expected);
        }
        let mut forged = FieldTable::default();
        assert_eq!(deaths(&forged), 0);
        forged.insert("x-death".into(), AMQPValue::LongString("often".into()));
        assert_eq!(deaths(&forged), 0);
    }
}
