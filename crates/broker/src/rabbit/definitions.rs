//! The topology in RabbitMQ's definitions format, for `rabbitmqctl import_definitions`, a
//! `load_definitions` at boot, or the management UI. No users: those are [`users`](super::users)' business.

use roundelay_model::topology::{Argument, Topology};
use serde_json::{Map, Value, json};

/// Everything in the topology, sorted by name, for that virtual host.
pub fn definitions(topology: &Topology, vhost: &str) -> Value {
    let mut exchanges: Vec<_> = topology.exchanges.iter().collect();
    let mut queues: Vec<_> = topology.queues.iter().collect();
    let mut bindings: Vec<_> = topology.bindings.iter().collect();
    exchanges.sort_by(|a, b| a.name.cmp(&b.name));
    queues.sort_by(|a, b| a.name.cmp(&b.name));
    bindings.sort_by(|a, b| (&a.exchange, &a.queue, &a.key).cmp(&(&b.exchange, &b.queue, &b.key)));

    let exchanges: Vec<_> = exchanges
        .iter()
        .map(|exchange| {
            json!({
                "name": exchange.name,
                "vhost": vhost,
                "type": exchange.kind.as_str(),
                "durable": true,
                "auto_delete": false,
                "internal": false,
                "arguments": arguments(&exchange.arguments),
            })
        })
        .collect();
    let queues: Vec<_> = queues
        .iter()
        .map(|queue| {
            json!({
                "name": queue.name,
                "vhost": vhost,
                "durable": true,
                "auto_delete": false,
                "arguments": arguments(&queue.arguments),
            })
        })
        .collect();
    let bindings: Vec<_> = bindings
        .iter()
        .map(|binding| {
            json!({
                "source": binding.exchange,
                "vhost": vhost,
                "destination": binding.queue,
                "destination_type": "queue",
                "routing_key": binding.key,
                "arguments": {},
            })
        })
        .collect();
    json!({ "vhosts": [{ "name": vhost }], "exchanges": exchanges, "queues": queues, "bindings": bindings })
}

/// Arguments as JSON.
pub(crate) fn arguments(arguments: &[(&'static str, Argument)]) -> Map<String, Value> {
    let value = |argument: &Argument| match argument {
        Argument::Text(text) => json!(text),
        Argument::Number(number) => json!(number),
    };
    arguments.iter().map(|(name, argument)| ((*name).to_owned(), value(argument))).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use roundelay_model::ladder::Ladder;
    use roundelay_model::topology::Names;

    #[test]
    fn the_export_is_stable_and_complete() {
        let ladder = Ladder::new([Duration::from_secs(7)]);
        let one = Topology::new(Names::new("r"), ["b", "a"], &ladder);
        let other = Topology::new(Names::new("r"), ["a", "b"], &ladder);
        assert_eq!(definitions(&one, "v").to_string(), definitions(&other, "v").to_string());
        let export = definitions(&one, "v");
        assert_eq!(export["queues"].as_array().unwrap().len(), one.queues.len());
        assert_eq!(export["exchanges"].as_array().unwrap().len(), one.exchanges.len());
        assert_eq!(export["bindings"].as_array().unwrap().len(), one.bindings.len());
        assert!(export.get("users").is_none());
        assert_eq!(export["vhosts"][0]["name"], "v");
        let seven = export["queues"].as_array().unwrap().iter().find(|q| q["name"] == "r.delay.7s").unwrap();
        assert_eq!(seven["arguments"]["x-message-ttl"], 7_000);
    }
}
