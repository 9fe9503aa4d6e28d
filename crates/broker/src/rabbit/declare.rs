//! Declaring a topology, and asking for its parts, over AMQP.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ErrorKind};
use parking_lot::Mutex;
use roundelay_model::topology::{Argument, Binding, Exchange, ExchangeKind, Queue, Topology};

use super::connection::{in_words, short};
use crate::{BrokerError, Depth};

/// How many channels declare at the same time. The broker creates a quorum queue in several
/// milliseconds, most of which it waits for its disk.
const CHANNELS: usize = 8;

const PRECONDITION_FAILED: u16 = 406;
const NOT_FOUND: u16 = 404;
const ACCESS_REFUSED: u16 = 403;

/// Declares everything. Declaring again what is there already costs the broker one look.
///
/// # Errors
/// [`BrokerError::Topology`] with everything that exists with other properties.
pub(super) async fn apply(connection: &Connection, topology: &Topology) -> Result<(), BrokerError> {
    let steps = [
        topology.exchanges.iter().map(Step::Exchange).collect::<Vec<_>>(),
        topology.queues.iter().map(Step::Queue).collect(),
        topology.bindings.iter().map(Step::Binding).collect(),
    ];
    let mut differences = Vec::new();
    for steps in steps {
        for Answered { step, words, .. } in run(connection, &steps, false, &[PRECONDITION_FAILED]).await? {
            differences.push(format!("{} exists with other properties: {words}", step.name()));
        }
    }
    if differences.is_empty() {
        return Ok(());
    }
    differences.push("`roundelay topology check` shows every difference and how to mend it".into());
    Err(BrokerError::Topology(differences.join("\n")))
}

/// The exchanges and queues that do not exist. On newer brokers a user that may neither declare, write nor read one of
/// them cannot check it; what could not be checked is logged.
pub(super) async fn absent(connection: &Connection, topology: &Topology) -> Result<Vec<String>, BrokerError> {
    let steps: Vec<_> =
        topology.exchanges.iter().map(Step::Exchange).chain(topology.queues.iter().map(Step::Queue)).collect();
    let answered = run(connection, &steps, true, &[NOT_FOUND, ACCESS_REFUSED]).await?;
    let (absent, unseen): (Vec<_>, Vec<_>) = answered.into_iter().partition(|answered| answered.code == NOT_FOUND);
    if let Some(first) = unseen.first() {
        tracing::warn!(
            unseen = unseen.len(),
            first = first.step.name(),
            reason = first.words,
            "this user may not see whether all exchanges and queues are there"
        );
    }
    Ok(absent.into_iter().map(|answered| answered.step.name()).collect())
}

/// Refuses a broker on which others declare, and where something is missing.
///
/// # Errors
/// [`BrokerError::Topology`] with everything that is missing.
pub(super) async fn expect(connection: &Connection, topology: &Topology) -> Result<(), BrokerError> {
    let absent = absent(connection, topology).await?;
    if absent.is_empty() {
        return Ok(());
    }
    Err(BrokerError::Topology(format!(
        "{} of {} exchanges and queues are missing on the broker, and broker.declare is false, so this program does not \
         declare them: {}. The broker's administrator runs `roundelay topology apply` with a user that may declare, or \
         imports what `roundelay topology export` writes",
        absent.len(),
        topology.exchanges.len() + topology.queues.len(),
        absent.join(", ")
    )))
}

/// How full a queue is. Asked on a channel of its own, which the broker closes when there is no
/// such queue.
pub(super) async fn depth(connection: &Connection, queue: &str) -> Result<Depth, BrokerError> {
    let failed =
        |error: lapin::Error| BrokerError::Other(format!("cannot ask for queue `{queue}`: {}", in_words(&error)));
    let channel = connection.create_channel().await.map_err(failed)?;
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let seen = channel.queue_declare(short(queue)?, options, FieldTable::default()).await.map_err(failed)?;
    let _ = channel.close(200, "asked".into()).await;
    Ok(Depth { ready: seen.message_count().into(), consumers: seen.consumer_count().into() })
}

/// One thing to declare.
#[derive(Clone, Copy)]
enum Step<'a> {
    Exchange(&'a Exchange),
    Queue(&'a Queue),
    Binding(&'a Binding),
}

impl Step<'_> {
    fn name(self) -> String {
        match self {
            Step::Exchange(exchange) => format!("exchange `{}`", exchange.name),
            Step::Queue(queue) => format!("queue `{}`", queue.name),
            Step::Binding(binding) => format!("binding of `{}` to `{}`", binding.queue, binding.exchange),
        }
    }

    async fn take(self, channel: &Channel, passive: bool) -> Result<lapin::Result<()>, BrokerError> {
        Ok(match self {
            Step::Exchange(exchange) => {
                let options = ExchangeDeclareOptions { passive, durable: true, ..ExchangeDeclareOptions::default() };
                let kind = match exchange.kind {
                    ExchangeKind::Direct => lapin::ExchangeKind::Direct,
                    ExchangeKind::Fanout => lapin::ExchangeKind::Fanout,
                };
                channel.exchange_declare(short(&exchange.name)?, kind, options, table(&exchange.arguments)).await
            }
            Step::Queue(queue) => {
                let options = QueueDeclareOptions { passive, durable: true, ..QueueDeclareOptions::default() };
                channel.queue_declare(short(&queue.name)?, options, table(&queue.arguments)).await.map(drop)
            }
            Step::Binding(Binding { exchange, queue, key }) => {
                let (options, none) = (QueueBindOptions::default(), FieldTable::default());
                channel.queue_bind(short(queue)?, short(exchange)?, short(key)?, options, none).await
            }
        })
    }
}

fn table(arguments: &[(&'static str, Argument)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        let value = match value {
            Argument::Text(text) => AMQPValue::LongString(text.as_str().into()),
            Argument::Number(number) => AMQPValue::LongLongInt(*number),
        };
        table.insert((*name).into(), value);
    }
    table
}

/// What the broker answered to a step.
struct Answered<'a> {
    index: usize,
    step: Step<'a>,
    code: u16,
    words: String,
}

/// Takes all steps over a few channels, in no particular order, and returns those that the broker
/// answered with one of the `expected` codes. Such an answer closes the channel, so that worker
/// goes on with a new one.
async fn run<'a>(
    connection: &Connection,
    steps: &[Step<'a>],
    passive: bool,
    expected: &[u16],
) -> Result<Vec<Answered<'a>>, BrokerError> {
    let next = AtomicUsize::new(0);
    let answered = Mutex::new(Vec::new());
    let worker = async || {
        let failed = |what: String, error: &lapin::Error| BrokerError::Other(format!("{what}: {}", in_words(error)));
        let fresh = async || connection.create_channel().await.map_err(|e| failed("cannot open a channel".into(), &e));
        let mut channel = fresh().await?;
        while let Some((index, step)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            steps.get(index).map(|step| (index, *step))
        } {
            let Err(error) = step.take(&channel, passive).await? else { continue };
            match error.kind() {
                ErrorKind::ProtocolError(amqp) if expected.contains(&amqp.get_id()) => {
                    let mut answered = answered.lock();
                    answered.push(Answered { index, step, code: amqp.get_id(), words: in_words(&error) });
                }
                _ => return Err(failed(step.name(), &error)),
            }
            channel = fresh().await?;
        }
        let _ = channel.close(200, "declared".into()).await;
        Ok::<_, BrokerError>(())
    };
    let workers = (0..CHANNELS.min(steps.len())).map(|_| worker());
    join_all(workers).await.into_iter().collect::<Result<(), _>>()?;
    let mut answered = answered.into_inner();
    answered.sort_by_key(|answered| answered.index);
    Ok(answered)
}
