//! The two brokers, and what an operator, a network or a foreign client does to them.

use std::sync::Arc;
use std::time::Duration;

use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Confirmation};
use reqwest::Method;
use roundelay::broker::embedded::{EmbeddedBroker, EmbeddedConnection, Profile};
use roundelay::broker::rabbit::{Patience, RabbitBroker};
use roundelay::broker::{Broker, Destination, Message};
use roundelay::ladder::Ladder;
use roundelay::secret::Secret;
use roundelay::topology::{Argument, Binding, Names, Queue, Topology};
use serde_json::{Value, json};

use crate::harness::{Vhost, until};

pub const RUNG: Duration = Duration::from_millis(300);
/// A rung on which a message sleeps longer than any test waits.
pub const LONG: Duration = Duration::from_secs(3_600);

/// So patient are the brokers: a consumer to which nothing comes is soon given up.
const PATIENCE: Patience = Patience {
    connection: Duration::from_secs(5),
    confirmation: Duration::from_secs(30),
    silence: Duration::from_secs(2),
    certificate: Duration::from_secs(300),
};

/// A broker with the queues `work` and `other`, and two rungs.
pub struct Stage {
    pub name: &'static str,
    pub broker: Arc<dyn Broker>,
    /// What the other one has to be like.
    pub profile: Profile,
    backstage: Backstage,
}

enum Backstage {
    Embedded(EmbeddedBroker, Arc<EmbeddedConnection>),
    Rabbit(Vhost),
}

pub fn topology(queues: &[&str]) -> Topology {
    let names = Names::new("r");
    let rungs = [RUNG, LONG];
    let wanted = rungs.map(|rung| names.rung(rung));
    let mut topology = Topology::new(names, queues.iter().copied(), &Ladder::new(rungs));
    let keep = |name: &String| !name.starts_with("r.delay.") || wanted.contains(name);
    topology.exchanges.retain(|exchange| keep(&exchange.name));
    topology.queues.retain(|queue| keep(&queue.name));
    topology.bindings.retain(|binding| keep(&binding.queue));
    topology
}

/// Nothing but a quorum queue with these arguments.
pub fn only(queue: &str, arguments: &[(&'static str, i64)]) -> Topology {
    let mut topology = topology(&[]);
    let quorum = ("x-queue-type", Argument::Text("quorum".into()));
    let numbers = arguments.iter().map(|(name, number)| (*name, Argument::Number(*number)));
    let arguments = [quorum].into_iter().chain(numbers).collect();
    topology.queues = vec![Queue { name: queue.into(), arguments }];
    topology.bindings = vec![Binding { exchange: topology.names.jobs(), queue: queue.into(), key: queue.into() }];
    topology
}

/// Both brokers; the embedded one is like the RabbitMQ that is there.
pub async fn brokers() -> [Stage; 2] {
    let vhost = Vhost::new().await;
    let overview = vhost.call(Method::GET, "overview", json!(null)).await;
    let version = overview["rabbitmq_version"].as_str().unwrap().to_owned();
    let profile = match version.as_str() {
        three if three.starts_with("3.") => Profile::Rabbit310,
        four if four.starts_with("4.0.") => Profile::Rabbit40,
        four if four.starts_with("4.4.") => Profile::Rabbit44,
        _ => Profile::Rabbit4,
    };
    let embedded = EmbeddedBroker::with_profile(Names::new("r"), profile);
    let connection = Arc::new(embedded.connect_with(PATIENCE));
    let stages = [
        Stage {
            name: "embedded",
            broker: connection.clone(),
            profile,
            backstage: Backstage::Embedded(embedded, connection),
        },
        Stage { name: "RabbitMQ", broker: rabbit(&vhost).await, profile, backstage: Backstage::Rabbit(vhost) },
    ];
    for stage in &stages {
        stage.broker.apply(&topology(&["work", "other"])).await.unwrap();
    }
    stages
}

async fn rabbit(vhost: &Vhost) -> Arc<dyn Broker> {
    let broker = RabbitBroker::connect_with(&vhost.amqp, Names::new("r"), PATIENCE).await.unwrap();
    Arc::new(broker.with_management(Some(Secret::new(vhost.management.as_str()))))
}

impl Stage {
    /// A further connection.
    pub async fn connect(&self) -> Arc<dyn Broker> {
        match &self.backstage {
            Backstage::Embedded(embedded, _) => Arc::new(embedded.connect_with(PATIENCE)),
            Backstage::Rabbit(vhost) => rabbit(vhost).await,
        }
    }

    /// Cuts the connection; it comes back by itself.
    pub async fn cut(&self) {
        match &self.backstage {
            Backstage::Embedded(_, connection) => connection.cut(Duration::from_millis(200)),
            Backstage::Rabbit(vhost) => vhost.kill(&["roundelay publish", "roundelay consume"]).await,
        }
    }

    pub async fn delete_queue(&self, queue: &str) {
        match &self.backstage {
            Backstage::Embedded(embedded, _) => assert!(embedded.delete_queue(queue)),
            Backstage::Rabbit(vhost) => vhost.delete_queue(queue).await,
        }
    }

    pub async fn delete_exchange(&self, exchange: &str) {
        match &self.backstage {
            Backstage::Embedded(embedded, _) => assert!(embedded.delete_exchange(exchange)),
            Backstage::Rabbit(vhost) => vhost.delete_exchange(exchange).await,
        }
    }

    /// Deletes a platform queue and at once declares it anew.
    pub async fn replace_queue(&self, queue: &str) {
        let topology = topology(&[queue]);
        match &self.backstage {
            Backstage::Embedded(embedded, _) => {
                assert!(embedded.delete_queue(queue));
                self.broker.apply(&topology).await.unwrap();
            }
            Backstage::Rabbit(vhost) => {
                let raw = vhost.raw().await;
                let found = topology.queues.iter().find(|found| found.name == queue).unwrap();
                let mut arguments = FieldTable::default();
                for (name, value) in &found.arguments {
                    let value = match value {
                        Argument::Text(text) => AMQPValue::LongString(text.as_str().into()),
                        Argument::Number(number) => AMQPValue::LongLongInt(*number),
                    };
                    arguments.insert((*name).into(), value);
                }
                let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
                raw.queue_delete(queue.into(), QueueDeleteOptions::default()).await.unwrap();
                raw.queue_declare(queue.into(), durable, arguments).await.unwrap();
                let (options, none) = (QueueBindOptions::default(), FieldTable::default());
                raw.queue_bind(queue.into(), "r.jobs".into(), queue.into(), options, none).await.unwrap();
            }
        }
    }

    pub async fn purge(&self, queue: &str) {
        match &self.backstage {
            Backstage::Embedded(embedded, _) => drop(embedded.purge(queue)),
            Backstage::Rabbit(vhost) => {
                vhost.call(Method::DELETE, &format!("queues/{}/{queue}/contents", vhost.name), json!(null)).await;
            }
        }
    }

    /// Waits until a queue has `expected` messages, those that are unsettled or stuck included.
    pub async fn holds(&self, queue: &str, expected: usize) {
        until(&format!("{}: {queue} holds {expected}", self.name), || async { self.count(queue).await == expected })
            .await;
    }

    async fn count(&self, queue: &str) -> usize {
        match &self.backstage {
            Backstage::Embedded(embedded, _) => {
                embedded.census().into_iter().filter(|held| held.queue == queue).count()
            }
            Backstage::Rabbit(vhost) => {
                let row = vhost.call(Method::GET, &format!("queues/{}/{queue}", vhost.name), json!(null)).await;
                row["messages"].as_u64().unwrap_or(u64::MAX) as usize
            }
        }
    }

    /// Sets a policy on every queue and waits until the broker is refused for it. The words.
    pub async fn set_policy(&self, definition: Value, topology: &Topology) -> String {
        match &self.backstage {
            Backstage::Embedded(embedded, _) => embedded.set_policy("catch-all", "*", definition),
            Backstage::Rabbit(vhost) => {
                let policy = json!({ "pattern": ".*", "definition": definition, "apply-to": "queues" });
                vhost.call(Method::PUT, &format!("policies/{}/catch-all", vhost.name), policy).await;
            }
        }
        let words = parking_lot::Mutex::new(String::new());
        until("the policy is in force", || async {
            let verdict = self.broker.verify(topology).await;
            *words.lock() = verdict.as_ref().err().map(ToString::to_string).unwrap_or_default();
            verdict.is_err()
        })
        .await;
        // Where the virtual host has another name, it is told by that name.
        let words = words.into_inner();
        match &self.backstage {
            Backstage::Embedded(..) => words,
            Backstage::Rabbit(vhost) => words.replace(&format!("'{}'", vhost.name), "'/'"),
        }
    }

    /// Publishes as a client does that copies the headers of what it got: with these deaths, on
    /// queues.
    pub async fn publish_with_deaths(&self, message: Message, deaths: &[(&str, usize)]) {
        match &self.backstage {
            Backstage::Embedded(_, connection) => connection.publish_with_deaths(message, deaths).await.unwrap(),
            Backstage::Rabbit(vhost) => {
                let death = |(queue, count): &(&str, usize)| {
                    let mut entry = FieldTable::default();
                    entry.insert("queue".into(), AMQPValue::LongString((*queue).into()));
                    entry.insert("reason".into(), AMQPValue::LongString("expired".into()));
                    entry.insert("exchange".into(), AMQPValue::LongString("r.jobs".into()));
                    entry.insert("count".into(), AMQPValue::LongLongInt(*count as i64));
                    AMQPValue::FieldTable(entry)
                };
                let mut headers = FieldTable::default();
                let deaths: Vec<_> = deaths.iter().map(death).collect();
                headers.insert("x-death".into(), AMQPValue::FieldArray(deaths.into()));
                publish_raw(vhost, message, BasicProperties::default().with_headers(headers), true).await;
            }
        }
    }

    /// Publishes as a foreign client may: with this as the time until when the message sleeps. Answers whether the
    /// broker is one that foreign clients can reach.
    pub async fn publish_with_delivery_time(&self, message: Message, until: AMQPValue) -> bool {
        let Backstage::Rabbit(vhost) = &self.backstage else { return false };
        let mut headers = FieldTable::default();
        headers.insert("x-opt-delivery-time".into(), until);
        publish_raw(vhost, message, BasicProperties::default().with_headers(headers), true).await;
        true
    }

    /// Publishes without asking to be told when no queue takes it.
    pub async fn publish_unasked(&self, message: Message) {
        match &self.backstage {
            Backstage::Embedded(_, connection) => {
                connection.mandatory(false);
                connection.publish(message).await.unwrap();
                connection.mandatory(true);
            }
            Backstage::Rabbit(vhost) => publish_raw(vhost, message, BasicProperties::default(), false).await,
        }
    }
}

/// Publishes past the client and insists on a confirmation with no return.
async fn publish_raw(vhost: &Vhost, message: Message, mut properties: BasicProperties, mandatory: bool) {
    let raw = vhost.raw().await;
    raw.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let names = Names::new("r");
    let (exchange, key) = match message.to {
        Destination::Queue(queue) => (names.jobs(), queue),
        Destination::Rung { rung, then } => (names.rung(rung), then),
        Destination::Asleep { queue, until } => {
            let mut headers = properties.headers().clone().unwrap_or_default();
            headers.insert("x-opt-delivery-time".into(), AMQPValue::LongLongInt(until.as_millis()));
            properties = properties.with_headers(headers);
            (names.jobs(), queue)
        }
        Destination::Quarantine { .. } => unreachable!("no test needs it"),
    };
    let options = BasicPublishOptions { mandatory, immediate: false };
    let properties = properties.with_delivery_mode(2);
    let sent = raw.basic_publish(exchange.into(), key.into(), options, &message.body, properties).await.unwrap();
    assert_eq!(sent.await.unwrap(), Confirmation::Ack(None));
}
