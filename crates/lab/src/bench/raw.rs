//! The physical limit of a cycle: consume, publish to a rung (or to sleep on its queue) and wait for the confirmation, acknowledge. On RabbitMQ
//! the loop uses the client library directly, without the engine's code.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use roundelay_broker::embedded::{EmbeddedBroker, Profile};
use roundelay_broker::{Broker, BrokerError, Destination, Message};
use roundelay_engine::StartError;
use roundelay_ledger::Hint;
use roundelay_model::clock::{Clock, Time};
use roundelay_model::ids::{Epoch, TickNo};
use roundelay_model::job::Envelope;
use roundelay_model::ladder::Ladder;
use roundelay_model::topology::{Names, Topology};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::chains::{KIND, Meter, QUEUE};

/// The prefix of exchanges and queues.
const WORK: &str = "roundelay-bench-raw.work";
const RUNG: &str = "roundelay-bench-raw.rung";
/// The most queues and the most rungs of a loop. The clean-up after an earlier loop looks for this many.
pub const MAX_SHARDS: usize = 16;

/// The queues and rungs of the loops.
#[derive(Clone, Debug)]
pub struct Course {
    /// `embedded` or `amqp://…`.
    pub broker: String,
    /// How many loops, each with connections of its own.
    pub workers: usize,
    /// How many work queues, at most [`MAX_SHARDS`]. Each message stays on its own.
    pub queues: usize,
    /// The delay over which the first messages are spread.
    pub delay: Duration,
    /// The times to live of the rungs, at least one and at most [`MAX_SHARDS`]: messages use one after the other.
    pub rungs: Vec<Duration>,
    /// Messages sleep on their queue for as long, and no rung is declared.
    pub native: bool,
    /// How many messages a loop processes at the same time, on all queues together.
    pub concurrency: u16,
}

impl Course {
    fn queues(&self) -> usize {
        self.queues.clamp(1, MAX_SHARDS)
    }

    /// The share of each queue's consumer in the concurrency.
    fn prefetch(&self) -> u16 {
        (usize::from(self.concurrency) / self.queues()).max(1).try_into().unwrap_or(u16::MAX)
    }
}

/// A work queue's name, which is also its routing key.
fn work(n: usize) -> String {
    format!("{WORK}-{n}")
}

/// The name of a rung's exchange and queue.
fn rung(n: usize) -> String {
    format!("{RUNG}-{n}")
}

/// Assigns messages to rungs, one after the other.
#[derive(Clone)]
struct Rungs(Arc<(Vec<Duration>, AtomicUsize)>);

impl Rungs {
    fn new(rungs: &[Duration]) -> Self {
        Self(Arc::new((rungs.to_vec(), AtomicUsize::new(0))))
    }

    /// The number of the next rung, and its delay.
    fn next(&self) -> (usize, Duration) {
        let (rungs, next) = &*self.0;
        let n = next.fetch_add(1, Ordering::Relaxed) % rungs.len();
        (n, rungs[n])
    }
}

/// Running loops, one for each worker.
pub enum RawLoop {
    /// Through lapin.
    Amqp(Vec<AmqpLoop>),
    /// Through the embedded broker.
    Embedded(Vec<EmbeddedLoop>),
}

impl RawLoop {
    /// Starts the loops with as many messages as there would be chains, spread over the delay.
    pub async fn start(course: &Course, chains: usize, meter: Meter) -> Result<Self, StartError> {
        let (workers, rungs) = (course.workers.max(1), Rungs::new(&course.rungs));
        // If they cannot be divided evenly, the first workers have one more each.
        let share = |worker: usize| chains / workers + usize::from(worker < chains % workers);
        if course.broker == "embedded" {
            let node = embedded_node(course).await?;
            let mut loops = Vec::new();
            for worker in 0..workers {
                loops.push(EmbeddedLoop::start(&node, course, &rungs, share(worker), &meter).await?);
            }
            return Ok(Self::Embedded(loops));
        }
        let mut loops = Vec::new();
        for worker in 0..workers {
            let (first, share) = (worker == 0, share(worker));
            loops.push(AmqpLoop::start(course, first, &rungs, share, &meter).await.map_err(broker_error)?);
        }
        Ok(Self::Amqp(loops))
    }

    /// Stops the loops and cleans up.
    pub async fn stop(self) -> Result<(), StartError> {
        match self {
            Self::Amqp(loops) => {
                let mut publish = None;
                for amqp in loops {
                    publish = Some(amqp.stop().await.map_err(broker_error)?);
                }
                // The consumers' connections are closed by now: if a queue is deleted under a consumer, the server's
                // cancellation crosses the consumer's own.
                match publish {
                    Some((connection, channel)) => clean_up(connection, channel).await.map_err(broker_error),
                    None => Ok(()),
                }
            }
            Self::Embedded(loops) => {
                for embedded in loops {
                    embedded.stop.cancel();
                    for task in embedded.tasks {
                        let _ = task.await;
                    }
                }
                Ok(())
            }
        }
    }
}

async fn clean_up(connection: Connection, channel: Channel) -> Result<(), lapin::Error> {
    remove(&channel).await?;
    connection.close(200, "done".into()).await
}

fn broker_error(error: lapin::Error) -> StartError {
    BrokerError::Other(format!("the raw loop: {error}")).into()
}

/// A message as large as a chain's. Its due time is set when it is sent.
fn message(number: usize) -> Envelope {
    let hint = Hint {
        kind: KIND.into(),
        key: format!("0123456789abcdef-{number}"),
        queue: QUEUE.into(),
        epoch: Epoch(1_000_000),
        tick: TickNo(1_000),
        attempt: 1,
        due: Time::default(),
        parent: Epoch::NONE,
        priority: None,
    };
    hint.envelope("0123456789abcdef")
}

/// When the `n`-th message of `count` is published first, so that they begin evenly over the delay.
fn turn(start: Instant, n: usize, count: usize, delay: Duration) -> Instant {
    start + roundelay_model::schedule::spread(n, count, delay)
}

/// The loop through lapin, with the same queue arguments as the engine's.
pub struct AmqpLoop {
    connections: [Connection; 2],
    publish: Channel,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl AmqpLoop {
    async fn start(
        course: &Course,
        first: bool,
        rungs: &Rungs,
        count: usize,
        meter: &Meter,
    ) -> Result<Self, lapin::Error> {
        let connect = || Connection::connect(&course.broker, ConnectionProperties::default());
        let connections = [connect().await?, connect().await?];
        let publish = connections[0].create_channel().await?;
        publish.confirm_select(ConfirmSelectOptions::default()).await?;
        if first {
            declare(&publish, course).await?;
        }
        let (stop, delay, queues) = (CancellationToken::new(), course.delay, course.queues());
        let (mut tasks, mut ways) = (Vec::new(), Vec::new());
        for n in 0..queues {
            let way =
                Way { channel: publish.clone(), rungs: rungs.clone(), native: course.native, work: work(n).into() };
            ways.push(way.clone());
            // A channel for each consumer, like the engine: prefetch is counted by channel.
            let consume = connections[1].create_channel().await?;
            consume.basic_qos(course.prefetch(), BasicQosOptions::default()).await?;
            let options = BasicConsumeOptions::default();
            let mut consumer =
                consume.basic_consume(way.work.clone(), "".into(), options, FieldTable::default()).await?;
            let (stopping, meter, tracker) = (stop.clone(), meter.clone(), TaskTracker::new());
            tasks.push(tokio::spawn(async move {
                loop {
                    let delivery = tokio::select! {
                        () = stopping.cancelled() => break,
                        delivery = consumer.next() => delivery,
                    };
                    let Some(Ok(delivery)) = delivery else { break };
                    let (way, meter) = (way.clone(), meter.clone());
                    tracker.spawn(async move {
                        let Ok(envelope) = Envelope::decode(&delivery.data) else { return };
                        meter.cycle(envelope.due.unwrap_or_default());
                        if way.send(envelope).await.is_ok() {
                            let _ = delivery.acker.ack(BasicAckOptions::default()).await;
                        }
                    });
                }
                tracker.close();
                tracker.wait().await;
            }));
        }
        let stopping = stop.clone();
        tasks.push(tokio::spawn(async move {
            let (start, tracker) = (Instant::now(), TaskTracker::new());
            for n in 0..count {
                tokio::select! {
                    () = stopping.cancelled() => break,
                    () = sleep_until(turn(start, n, count, delay)) => {}
                }
                let way = ways[n % queues].clone();
                tracker.spawn(async move { way.send(message(n)).await });
            }
            tracker.close();
            tracker.wait().await;
        }));
        Ok(Self { connections, publish, stop, tasks })
    }

    /// Answers the connection and the channel for publishing.
    async fn stop(self) -> Result<(Connection, Channel), lapin::Error> {
        self.stop.cancel();
        for task in self.tasks {
            let _ = task.await;
        }
        let [publishing, consuming] = self.connections;
        // Its channel closes at the same time, and the second close is refused.
        let _ = consuming.close(200, "done".into()).await;
        Ok((publishing, self.publish))
    }
}

/// The path of messages to a work queue, over the rungs.
#[derive(Clone)]
struct Way {
    channel: Channel,
    rungs: Rungs,
    native: bool,
    work: ShortString,
}

impl Way {
    /// Publishes the message to its rung, due at the end of the rung's delay.
    async fn send(&self, envelope: Envelope) -> Result<(), lapin::Error> {
        let (n, delay) = self.rungs.next();
        let due = Clock::System.now() + delay;
        let envelope = Envelope { due: Some(due), ..envelope };
        let mut properties =
            BasicProperties::default().with_delivery_mode(2).with_message_id(envelope.message_id().into());
        let mut exchange = rung(n);
        if self.native {
            let mut headers = FieldTable::default();
            headers.insert("x-opt-delivery-time".into(), AMQPValue::LongLongInt(due.as_millis()));
            (properties, exchange) = (properties.with_headers(headers), WORK.into());
        }
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let body = envelope.encode();
        self.channel.basic_publish(exchange.into(), self.work.clone(), options, &body, properties).await?.await?;
        Ok(())
    }
}

async fn declare(channel: &Channel, course: &Course) -> Result<(), lapin::Error> {
    remove(channel).await?;
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(WORK.into(), ExchangeKind::Direct, durable, FieldTable::default()).await?;
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut quorum = FieldTable::default();
    quorum.insert("x-queue-type".into(), text("quorum"));
    let mut queues: Vec<_> = (0..course.queues()).map(|n| (work(n), WORK.to_owned(), quorum.clone())).collect();
    for (n, delay) in course.rungs.iter().enumerate().filter(|_| !course.native) {
        channel.exchange_declare(rung(n).into(), ExchangeKind::Fanout, durable, FieldTable::default()).await?;
        let ttl = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
        let mut arguments = quorum.clone();
        arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(ttl));
        arguments.insert("x-dead-letter-exchange".into(), text(WORK));
        arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
        arguments.insert("x-overflow".into(), text("reject-publish"));
        queues.push((rung(n), rung(n), arguments));
    }
    for (queue, exchange, arguments) in queues {
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let queue = ShortString::from(queue);
        channel.queue_declare(queue.clone(), durable, arguments).await?;
        let options = QueueBindOptions::default();
        channel.queue_bind(queue.clone(), exchange.into(), queue, options, FieldTable::default()).await?;
    }
    Ok(())
}

/// Removes the exchanges and queues of this loop, or of an earlier one that was interrupted.
async fn remove(channel: &Channel) -> Result<(), lapin::Error> {
    // Rungs first, so that no message arrives later.
    for n in 0..MAX_SHARDS {
        channel.queue_delete(rung(n).into(), QueueDeleteOptions::default()).await?;
        channel.exchange_delete(rung(n).into(), ExchangeDeleteOptions::default()).await?;
    }
    for n in 0..MAX_SHARDS {
        channel.queue_delete(work(n).into(), QueueDeleteOptions::default()).await?;
    }
    channel.exchange_delete(WORK.into(), ExchangeDeleteOptions::default()).await
}

/// The loop through the embedded broker.
pub struct EmbeddedLoop {
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

async fn embedded_node(course: &Course) -> Result<EmbeddedBroker, BrokerError> {
    let names = Names::new("raw");
    let node =
        EmbeddedBroker::with_profile(names.clone(), if course.native { Profile::Rabbit44 } else { Profile::default() });
    let queues: Vec<String> = (0..course.queues()).map(work).collect();
    let ladder = Ladder::new(course.rungs.iter().copied());
    node.apply(&Topology::new(names, queues.iter().map(String::as_str), &ladder)).await?;
    Ok(node)
}

impl EmbeddedLoop {
    async fn start(
        node: &EmbeddedBroker,
        course: &Course,
        rungs: &Rungs,
        count: usize,
        meter: &Meter,
    ) -> Result<Self, BrokerError> {
        let broker: Arc<dyn Broker> = Arc::new(node.connect());
        let (stop, delay, queues) = (CancellationToken::new(), course.delay, course.queues());
        let native = course.native;
        let again = move |broker: Arc<dyn Broker>, rungs: Rungs, queue: usize, envelope: Envelope| async move {
            let (_, delay) = rungs.next();
            let due = Clock::System.now() + delay;
            let envelope = Envelope { due: Some(due), ..envelope };
            let to = match native {
                true => Destination::Asleep { queue: work(queue), until: due },
                false => Destination::Rung { rung: delay, then: work(queue) },
            };
            broker.publish(Message::new(to, &envelope)).await
        };
        let mut tasks = Vec::new();
        for queue in 0..queues {
            let mut consumer = broker.consume(&work(queue), course.prefetch()).await?;
            let (stopping, broker, rungs, meter) = (stop.clone(), broker.clone(), rungs.clone(), meter.clone());
            tasks.push(tokio::spawn(async move {
                loop {
                    let delivery = tokio::select! {
                        () = stopping.cancelled() => break,
                        delivery = consumer.next() => delivery,
                    };
                    let Some(delivery) = delivery else { break };
                    let (broker, rungs, meter) = (broker.clone(), rungs.clone(), meter.clone());
                    tokio::spawn(async move {
                        let Ok(envelope) = Envelope::decode(&delivery.body) else { return };
                        meter.cycle(envelope.due.unwrap_or_default());
                        if again(broker, rungs, queue, envelope).await.is_ok() {
                            delivery.ack().await;
                        }
                    });
                }
            }));
        }
        let (stopping, rungs) = (stop.clone(), rungs.clone());
        tasks.push(tokio::spawn(async move {
            let start = Instant::now();
            for n in 0..count {
                tokio::select! {
                    () = stopping.cancelled() => break,
                    () = sleep_until(turn(start, n, count, delay)) => {}
                }
                let _ = again(broker.clone(), rungs.clone(), n % queues, message(n)).await;
            }
        }));
        Ok(Self { stop, tasks })
    }
}
