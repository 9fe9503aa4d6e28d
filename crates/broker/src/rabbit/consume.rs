//! Consuming: a task per consumer keeps a queue flowing whatever happens to channels, connections
//! and the queue itself.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection};
use roundelay_model::clock::Entropy;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tracing::{debug, info, trace, warn};

use super::connection::{Backoff, Line, in_words, short, up};
use super::settle::{Backlog, Desk, Unsettled, requeue};
use super::{Patience, headers};
use crate::{BrokerError, Consumer, Delivery};

/// How long the broker may take to confirm a cancellation.
const CANCEL_WITHIN: Duration = Duration::from_secs(5);

/// Starts to consume. The first attempt tells its failure; later ones are repeated. What is not settled yet counts
/// in `backlog`.
pub(super) async fn consume(
    mut line: watch::Receiver<Line>,
    queue: &str,
    prefetch: u16,
    patience: Patience,
    entropy: Entropy,
    backlog: Backlog,
) -> Result<Consumer, BrokerError> {
    let connection = up(&mut line, patience.connection).await.map_err(BrokerError::Other)?;
    let source = QueueName { name: queue.into(), short: short(queue)? };
    let flow = Flow::open(&connection, &source, prefetch, &backlog)
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
        backlog,
    };
    tokio::spawn(tap.run(flow));
    Ok(consumer)
}

/// A queue's name in the two forms that are needed.
struct QueueName {
    name: Arc<str>,
    short: lapin::types::ShortString,
}

/// A channel with a running consumer. When it is dropped the channel stays until everything delivered on it has
/// been settled, so that running jobs can still acknowledge.
struct Flow {
    connection: Arc<Connection>,
    channel: Channel,
    stream: lapin::Consumer,
    /// Every delivery that is not settled holds a clone.
    desk: Desk,
}

impl Flow {
    /// A channel of its own for each consumer, since prefetch is counted and a refused queue is
    /// punished by channel.
    async fn open(
        connection: &Arc<Connection>,
        queue: &QueueName,
        prefetch: u16,
        backlog: &Backlog,
    ) -> lapin::Result<Self> {
        let channel = connection.create_channel().await?;
        channel.basic_qos(prefetch.max(1), BasicQosOptions::default()).await?;
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        let stream = channel.basic_consume(queue.short.clone(), "".into(), options, arguments).await?;
        let desk = Desk::open(channel.clone(), backlog.clone());
        Ok(Self { connection: connection.clone(), channel, stream, desk })
    }
}

/// Why deliveries have stopped.
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
    /// A consumer that gets nothing for this long, and has no unsettled deliveries, subscribes anew.
    ///
    /// RabbitMQ 3.10 does not tell the consumers of a quorum queue that is deleted and at once
    /// declared again. It even counts them, and counts messages as delivered to them, but nothing
    /// arrives. From here that looks like an empty queue, and only closing the channel mends it.
    silence: Duration,
    backlog: Backlog,
}

impl Tap {
    async fn run(mut self, mut flow: Flow) {
        loop {
            let ebb = self.pour(&mut flow).await;
            let on_connection = flow.connection.status().connected();
            match ebb {
                Ebb::Cancelled => {
                    cancel(&mut flow).await;
                    return;
                }
                Ebb::Silent => {
                    trace!(queue = %self.queue.name, "nothing for long; subscribing anew");
                    cancel(&mut flow).await;
                    drop(flow);
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
            drop(flow);
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
                    let in_hand = flow.desk.in_hand();
                    if std::mem::replace(&mut quiet, true) && in_hand == 0 {
                        return Ebb::Silent;
                    }
                }
            }
        }
    }

    fn received(&self, delivery: lapin::message::Delivery, flow: &Flow) -> Delivery {
        let headers = delivery.properties.headers().as_ref();
        let (deaths, trace) = (headers.map_or(0, deaths), headers.and_then(headers::read).map(Box::new));
        let (asleep_until, unreadable) =
            (headers.and_then(headers::asleep_until), headers.and_then(headers::unreadable));
        let settle = Unsettled::new(delivery.delivery_tag, delivery.acker, flow.desk.clone());
        let id = delivery.properties.message_id().as_ref().map(|id| id.as_str());
        Delivery::new(delivery.data.into(), self.queue.name.clone(), delivery.redelivered, deaths, Box::new(settle))
            .named(id)
            .traced(trace)
            .asleep_until(asleep_until)
            .unreadable(unreadable)
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
            // Over a network that is dead the answer does not come before the heartbeats have noticed.
            let opened = tokio::select! {
                _ = self.cancelled.recv() => return None,
                opened = Flow::open(&connection, &self.queue, self.prefetch, &self.backlog) => opened,
            };
            match opened {
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
