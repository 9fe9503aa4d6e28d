//! The broker: how far a connection gets, its version, the permissions of this user, whether its exchanges and queues are
//! as they must be, and how messages sleep there. `gather` asks; the other modules make findings of the answers (pure).

mod connection;
mod delays;
mod gather;
mod management;
mod permissions;
mod topology;

use roundelay_broker::rabbit::certificates::Certificate;
use roundelay_broker::rabbit::check;
use roundelay_broker::rabbit::examine::{Place, Reached, Told, Untold};
use roundelay_config::Config;
use roundelay_model::topology::Topology;

use crate::inspect::broker::BrokerStatus;
use crate::inspect::delays::Known;
use crate::inspect::doctor::facts::Facts;
use crate::inspect::doctor::finding::{Area, Finding, Gathered};
use connection::{certificates, connection};
use delays::delays;
pub(super) use gather::gather;
use management::management;
use permissions::Needs;
use topology::{declared, leftovers};

/// Facts about RabbitMQ.
#[derive(Clone, Debug)]
pub struct BrokerFacts {
    /// The broker's address, and our user there.
    pub place: Gathered<Place>,
    /// How far a connection gets.
    pub reached: Gathered<Reached>,
    /// The certificates that the connection has seen.
    pub certificates: Vec<Certificate>,
    /// The management API's answer; nothing if none is configured.
    pub told: Option<Gathered<Result<Told, Untold>>>,
    /// What the ledger knows of how messages sleep.
    pub known: Known,
    /// What has to exist.
    pub topology: Topology,
    /// The differences from the topology, or why they are not known.
    pub differences: Gathered<Vec<check::Finding>>,
    /// How many messages and consumers queues have.
    pub asked: BrokerStatus,
}

/// What is wrong with the broker.
pub(super) fn diagnose(facts: &Facts, config: &Config) -> Vec<Finding> {
    let Some(broker) = &facts.broker else {
        let words = "embedded: it is in the worker's process, and keeps nothing";
        return vec![Finding::good(Area::Broker, "broker", words)];
    };
    let place = match &broker.place {
        Ok(place) => place,
        Err(why) => {
            return vec![Finding::bad(Area::Broker, "connection", why, "no worker starts", "correct broker.url")];
        }
    };
    let topology = &broker.topology;
    let needs = Needs::of(topology, config.broker.declare);
    let mut all = connection(&broker.reached, place, topology, &needs);
    all.extend(certificates(&broker.certificates, facts.now));
    let is_in = matches!(broker.reached, Ok(Reached::In(_)));
    all.extend(management(broker.told.as_ref(), place, topology, &needs));
    all.extend(declared(&broker.differences, is_in, topology));
    let wall_clock = facts.chains.as_ref().map(|chains| chains.wall_clock.clone()).unwrap_or_default();
    all.extend(delays(config.broker.delays, &broker.known, &wall_clock));
    all.extend(leftovers(&broker.asked, is_in, &topology.names));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use roundelay_broker::rabbit::examine::{Feature, Node, Permissions};
    use roundelay_model::ladder::Ladder;
    use roundelay_model::topology::Names;

    pub(super) fn needs() -> Needs {
        Needs::of(&topology(), true)
    }

    pub(super) fn topology() -> Topology {
        Topology::new(Names::new("r"), ["sync-a", "w.b"], &Ladder::new([]))
    }

    pub(super) fn place() -> Place {
        Place { host: "h".into(), port: 5_672, vhost: "v".into(), user: "ann".into(), encrypted: false }
    }

    pub(super) fn told() -> Told {
        let node = Node {
            name: "rabbit@h".into(),
            running: true,
            disk_free: Some(9 << 30),
            disk_free_limit: Some(1 << 30),
            mem_used: Some(1),
            mem_limit: Some(2),
            ..Node::default()
        };
        let all = || ".*".to_owned();
        Told {
            user: "ops".into(),
            version: "4.1.2".into(),
            clock: None,
            nodes: Ok(vec![node]),
            alarm: None,
            permissions: Ok(Some(Permissions { configure: all(), write: all(), read: all() })),
            features: Ok(vec![Feature { name: "stream_queue".into(), state: "enabled".into() }]),
        }
    }
}
