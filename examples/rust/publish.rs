//! Publishes one job to Roundelay and exits with 0 only when it is safe.
//!
//!     publish EXCHANGE QUEUE ENVELOPE           (the broker: AMQP_URL)
//!
//!     cargo run --example publish -- roundelay.jobs work '{"v":1,"kind":"sync","key":"npm/ms","id":"order-7"}'
//!
//! Needs lapin, serde_json and tokio. The format of ENVELOPE is in docs/messages.md.

use std::error::Error;
use std::process::ExitCode;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use serde_json::Value;

/// Returns when the broker has the job; an error says that it has not, or may not have.
async fn publish(channel: &Channel, exchange: &str, queue: &str, envelope: &Value) -> Result<(), Box<dyn Error>> {
    // A wrong queue name would not be reported: `roundelay.jobs` keeps such messages aside, and a rung reads the name
    // only when its time is over. So ask for the queue first.
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.into(), passive, FieldTable::default()).await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    // Fresh properties for every message. Never copy those of a received message: with old `x-death` headers RabbitMQ
    // takes a delayed job for one in a cycle.
    let mut properties = BasicProperties::default().with_delivery_mode(2).with_content_type("application/json".into());
    if let Some(id) = envelope["id"].as_str() {
        properties = properties.with_message_id(id.into());
    }
    // From RabbitMQ 4.4 on, a job with `due` sleeps on its queue until then; older brokers ignore this. Not for a rung,
    // which has its own time.
    if let Some(due) = envelope["due"].as_i64().filter(|_| exchange == "roundelay.jobs") {
        let mut headers = FieldTable::default();
        headers.insert("x-opt-delivery-time".into(), AMQPValue::LongLongInt(due));
        properties = properties.with_headers(headers);
    }
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let body = serde_json::to_vec(envelope)?;
    match channel.basic_publish(exchange.into(), queue.into(), options, &body, properties).await?.await? {
        Confirmation::Ack(None) => Ok(()),
        Confirmation::Ack(Some(_)) => Err(format!("returned: exchange {exchange} leads to no queue").into()),
        _ => Err("refused by the broker: a queue is full or being deleted".into()),
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [exchange, queue, envelope] = arguments.as_slice() else {
        return Err("usage: publish EXCHANGE QUEUE ENVELOPE".into());
    };
    let envelope = serde_json::from_str(envelope)?;
    let url = std::env::var("AMQP_URL").unwrap_or_else(|_| "amqp://guest:guest@localhost:5672/%2f".into());
    let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    publish(&channel, exchange, queue, &envelope).await?;
    Ok(connection.close(200, "bye".into()).await?)
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Unless the job was returned, the broker may have it anyway. Publish it again with the same `id`, on which
            // handlers are idempotent.
            eprintln!("not published: {error}");
            ExitCode::FAILURE
        }
    }
}
