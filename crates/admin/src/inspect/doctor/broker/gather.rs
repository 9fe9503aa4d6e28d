//! Asks the broker, over AMQP and its management API, each with a time limit.

use std::time::Duration;

use roundelay_broker::rabbit::examine::Place;
use roundelay_broker::rabbit::{RabbitBroker, check, examine};
use roundelay_broker::{Broker, BrokerUrl};
use roundelay_config::Config;
use roundelay_model::topology::Topology;

use super::BrokerFacts;
use crate::inspect::broker::BrokerStatus;
use crate::inspect::delays::{self, Known};
use crate::inspect::doctor::finding::{Gathered, limited};

/// The facts about RabbitMQ; nothing if the broker is embedded in the worker's process.
pub async fn gather(config: &Config, within: Duration) -> Option<BrokerFacts> {
    let BrokerUrl::Amqp(url) = &config.broker.url else { return None };
    let (place, management) = (Place::of(url.expose()), config.broker.management.clone());
    let tls = config.broker.tls.clone();
    let told = async {
        let (management, place, tls) = (management?, place.clone().ok()?, tls.clone());
        let told = async move { examine::ask(management.expose(), &place.vhost, &place.user, &tls).await };
        Some(limited(within, told).await)
    };
    let (to, by) = (url.clone(), tls.clone());
    let reached = limited(within, async move { examine::reach(to.expose(), &by).await });
    // Which topology is the right one, the ledger knows.
    let topology = async {
        let (to_ask, to_compare) = (config.clone(), config.clone());
        let known = limited(within, async move { Known::of(&to_ask).await }).await.unwrap_or_default();
        (known.clone(), limited(within, differences(to_compare, known)).await)
    };
    let asked = limited(within, depths(config.clone()));
    let (told, reached, (known, differences), asked) = tokio::join!(told, reached, topology, asked);
    let (topology, differences) = match differences.and_then(|differences| differences) {
        Ok((topology, differences)) => (topology, Ok(differences)),
        Err(why) => (delays::topology(config, &known), Err(why)),
    };
    let (reached, certificates) = match reached {
        Ok((reached, certificates)) => (Ok(reached), certificates),
        Err(why) => (Err(why), Vec::new()),
    };
    let asked = asked.unwrap_or_else(BrokerStatus::Away);
    Some(BrokerFacts { place, reached, certificates, told, known, topology, differences, asked })
}

async fn differences(config: Config, known: Known) -> Gathered<(Topology, Vec<check::Finding>)> {
    let broker = RabbitBroker::open(&config.broker).await.map_err(|error| error.to_string())?;
    let differences = delays::differences(&config, &broker, &known).await;
    broker.close().await;
    differences.map_err(|error| error.to_string())
}

async fn depths(config: Config) -> BrokerStatus {
    match RabbitBroker::open(&config.broker).await {
        Ok(broker) => {
            let asked = BrokerStatus::ask(&config, &broker).await;
            broker.close().await;
            asked
        }
        Err(error) => BrokerStatus::Away(error.to_string()),
    }
}
