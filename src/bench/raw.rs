//! The physical limit of a cycle: consume, publish to a rung and see it confirmed, acknowledge.
//! On RabbitMQ it goes straight through the client library, past everything of the engine's.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::chains::{KIND, Meter, QUEUE, Settings};
use crate::broker::embedded::EmbeddedBroker;
use crate::broker::topology::{Names, Topology};
use crate::broker::{Broker, BrokerError, Destination, Message};
use crate::clock::{Clock, Time};
use crate::engine::StartError;
use crate::job::Envelope;
use crate::ladder::Ladder;
use crate::ledger::Hint;

const WORK: &str = "roundelay-bench-raw.work";
const RUNG: &str = "roundelay-bench-raw.rung";

/// Raw loops that go round, one for each worker.
pub enum RawLoop {
    /// Through lapin.
    Amqp(Vec<AmqpLoop>),
    /// Through the embedded broker.
    Embedded(Vec<EmbeddedLoop>),
}

impl RawLoop {
    /// Starts going round with as many messages as there would be chains, spread over the delay.
    pub async fn start(settings: &Settings, chains: usize, meter: Meter) -> Result<Self, StartError> {
        let workers = settings.workers.max(1);
        // The first ones have one more each, if they do not come out even.
        let share = |worker: usize| chains / workers + usize::from(worker < chains % workers);
        if settings.broker == "embedded" {
            let node = embedded_node(settings.delay).await?;
            let mut loops = Vec::new();
            for worker in 0..workers {
                loops.push(EmbeddedLoop::start(&node, settings, share(worker), meter.clone()).await?);
            }
            return Ok(Self::Embedded(loops));
        }
        let mut loops = Vec::new();
        for worker in 0..workers {
            let (first, share) = (worker == 0, share(worker));
            loops.push(AmqpLoop::start(settings, first, share, meter.clone()).await.map_err(broker_error)?);
        }
        Ok(Self::Amqp(loops))
    }

    /// Stops and cleans up.
    pub async fn stop(self) -> Result<(), StartError> {
        match self {
            Self::Amqp(loops) => {
                let mut publish = None;
                for amqp in loops {
                    publish = Some(amqp.stop().await.map_err(broker_error)?);
                }
                // The consumers' connections are gone by now: a queue deleted under a consumer ends it with a
                // cancellation that crosses its own.
                match publish {
                    Some((connection, channel)) => clean_up(connection, channel).await.map_err(broker_error),
                    None => Ok(()),
                }
            }
            Self::Embedded(loops) => {
                for embedded in loops {
                    embedded.stop.cancel();
                    let _ = embedded.task.await;
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

/// A message as large as a chain's.
fn message(number: usize, due: Time) -> Envelope {
    let hint = Hint {
        kind: KIND.into(),
        key: format!("0123456789abcdef-{number}"),
        queue: QUEUE.into(),
        epoch: 1_000_000,
        tick: 1_000,
        attempt: 1,
        due,
        parent: 0,
    };
    hint.envelope("0123456789abcdef")
}

/// When the `n`-th message of `count` is to be put in, so that they begin evenly over the delay.
fn turn(start: Instant, n: usize, count: usize, delay: Duration) -> Instant {
    start + crate::schedule::spread(n, count, delay)
}

/// The loop through lapin, with the same queue arguments as the engine's.
pub struct AmqpLoop {
    connections: [Connection; 2],
    publish: Channel,
    stop: CancellationToken,
    tasks: [JoinHandle<()>; 2],
}

impl AmqpLoop {
    async fn start(settings: &Settings, first: bool, count: usize, meter: Meter) -> Result<Self, lapin::Error> {
        let connect = || Connection::connect(&settings.broker, ConnectionProperties::default());
        let connections = [connect().await?, connect().await?];
        let publish = connections[0].create_channel().await?;
        publish.confirm_select(ConfirmSelectOptions::default()).await?;
        if first {
            declare(&publish, settings.delay).await?;
        }
        let consume = connections[1].create_channel().await?;
        consume.basic_qos(settings.concurrency, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let mut consumer = consume.basic_consume(WORK.into(), "".into(), options, FieldTable::default()).await?;

        let (stop, delay, tracker) = (CancellationToken::new(), settings.delay, TaskTracker::new());
        let (stopping, publisher) = (stop.clone(), publish.clone());
        let going_round = tokio::spawn(async move {
            loop {
                let delivery = tokio::select! {
                    () = stopping.cancelled() => break,
                    delivery = consumer.next() => delivery,
                };
                let Some(Ok(delivery)) = delivery else { break };
                let (publisher, meter) = (publisher.clone(), meter.clone());
                tracker.spawn(async move {
                    let Ok(envelope) = Envelope::decode(&delivery.data) else { return };
                    meter.cycle(envelope.due.unwrap_or_default());
                    let again = Envelope { due: Some(Clock::System.now() + delay), ..envelope };
                    if send(&publisher, &again).await.is_ok() {
                        let _ = delivery.acker.ack(BasicAckOptions::default()).await;
                    }
                });
            }
            tracker.close();
            tracker.wait().await;
        });
        let (stopping, publisher) = (stop.clone(), publish.clone());
        let beginning = tokio::spawn(async move {
            let (start, tracker) = (Instant::now(), TaskTracker::new());
            for n in 0..count {
                tokio::select! {
                    () = stopping.cancelled() => break,
                    () = sleep_until(turn(start, n, count, delay)) => {}
                }
                let publisher = publisher.clone();
                tracker.spawn(async move { send(&publisher, &message(n, Clock::System.now() + delay)).await });
            }
            tracker.close();
            tracker.wait().await;
        });
        Ok(Self { connections, publish, stop, tasks: [going_round, beginning] })
    }

    /// Answers with what it has published by.
    async fn stop(self) -> Result<(Connection, Channel), lapin::Error> {
        self.stop.cancel();
        for task in self.tasks {
            let _ = task.await;
        }
        let [publishing, consuming] = self.connections;
        // Its channel closes itself at the same time, and whichever comes second is refused.
        let _ = consuming.close(200, "done".into()).await;
        Ok((publishing, self.publish))
    }
}

async fn send(channel: &Channel, envelope: &Envelope) -> Result<(), lapin::Error> {
    let properties = BasicProperties::default().with_delivery_mode(2).with_message_id(envelope.message_id().into());
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let body = envelope.encode();
    channel.basic_publish(RUNG.into(), WORK.into(), options, &body, properties).await?.await?;
    Ok(())
}

async fn declare(channel: &Channel, delay: Duration) -> Result<(), lapin::Error> {
    remove(channel).await?;
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(WORK.into(), ExchangeKind::Direct, durable, FieldTable::default()).await?;
    channel.exchange_declare(RUNG.into(), ExchangeKind::Fanout, durable, FieldTable::default()).await?;
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut work = FieldTable::default();
    work.insert("x-queue-type".into(), text("quorum"));
    let mut rung = work.clone();
    rung.insert("x-message-ttl".into(), AMQPValue::LongLongInt(i64::try_from(delay.as_millis()).unwrap_or(i64::MAX)));
    rung.insert("x-dead-letter-exchange".into(), text(WORK));
    rung.insert("x-dead-letter-strategy".into(), text("at-least-once"));
    rung.insert("x-overflow".into(), text("reject-publish"));
    for (queue, arguments) in [(WORK, work), (RUNG, rung)] {
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(queue.into(), durable, arguments).await?;
        let options = QueueBindOptions::default();
        channel.queue_bind(queue.into(), queue.into(), queue.into(), options, FieldTable::default()).await?;
    }
    Ok(())
}

async fn remove(channel: &Channel) -> Result<(), lapin::Error> {
    for name in [WORK, RUNG] {
        channel.queue_delete(name.into(), QueueDeleteOptions::default()).await?;
        channel.exchange_delete(name.into(), ExchangeDeleteOptions::default()).await?;
    }
    Ok(())
}

/// The loop through the embedded broker.
pub struct EmbeddedLoop {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

async fn embedded_node(delay: Duration) -> Result<EmbeddedBroker, BrokerError> {
    let names = Names::new("raw");
    let node = EmbeddedBroker::new(names.clone());
    node.apply(&Topology::new(names, [WORK], &Ladder::new([delay]))).await?;
    Ok(node)
}

impl EmbeddedLoop {
    async fn start(
        node: &EmbeddedBroker,
        settings: &Settings,
        count: usize,
        meter: Meter,
    ) -> Result<Self, BrokerError> {
        let broker = Arc::new(node.connect());
        let mut consumer = broker.consume(WORK, settings.concurrency).await?;
        let (stop, delay) = (CancellationToken::new(), settings.delay);
        let to = Destination::Rung { rung: delay, then: WORK.into() };
        let stopping = stop.clone();
        let task = tokio::spawn(async move {
            let start = Instant::now();
            let (beginner, first) = (broker.clone(), to.clone());
            let beginning = tokio::spawn(async move {
                for n in 0..count {
                    sleep_until(turn(start, n, count, delay)).await;
                    let _ =
                        beginner.publish(Message::new(first.clone(), &message(n, Clock::System.now() + delay))).await;
                }
            });
            loop {
                let delivery = tokio::select! {
                    () = stopping.cancelled() => break,
                    delivery = consumer.next() => delivery,
                };
                let Some(delivery) = delivery else { break };
                let (broker, meter, to) = (broker.clone(), meter.clone(), to.clone());
                tokio::spawn(async move {
                    let Ok(envelope) = Envelope::decode(&delivery.body) else { return };
                    meter.cycle(envelope.due.unwrap_or_default());
                    let again = Envelope { due: Some(Clock::System.now() + delay), ..envelope };
                    if broker.publish(Message::new(to, &again)).await.is_ok() {
                        delivery.ack().await;
                    }
                });
            }
            beginning.abort();
        });
        Ok(Self { stop, task })
    }
}
