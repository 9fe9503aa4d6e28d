//! Policies, and what the engine's check of the topology sees of the embedded broker.

use roundelay_model::topology::Argument;
use serde_json::{Map, Value};
use wildmatch::WildMatch;

use super::settings::{Definition, Settings};
use super::state::{Routes, State};
use crate::embedded::broker::EmbeddedBroker;
use crate::rabbit::check::{SeenExchange, SeenQueue, Snapshot, arguments};

/// A policy.
pub(super) struct Policy {
    /// Which queues it is for.
    pattern: WildMatch,
    definition: Definition,
}

impl EmbeddedBroker {
    /// Sets a policy on the queues whose names match `pattern`, in which `*` stands for anything
    /// (RabbitMQ takes a regular expression). `definition` is as in RabbitMQ; of its keys these count:
    /// `message-ttl`, `expires`, `overflow`, `delivery-limit`, `dead-letter-exchange` and
    /// `dead-letter-strategy`. On a queue that several match, the first by name is in force.
    pub fn set_policy(&self, name: &str, pattern: &str, definition: Value) {
        let definition = definition.as_object().cloned().unwrap_or_default();
        let policy = Policy { pattern: WildMatch::new(pattern), definition };
        self.node.change(|state, _| state.change_policy(name, Some(policy)));
    }

    /// Removes a policy.
    pub fn clear_policy(&self, name: &str) {
        self.node.change(|state, _| state.change_policy(name, None));
    }
}

impl State {
    /// The policy in force on a queue.
    fn policy(&self, queue: &str) -> Option<(&String, &Policy)> {
        self.policies.iter().find(|(_, policy)| policy.pattern.matches(queue))
    }

    /// What a queue's arguments and its policy come to.
    pub(super) fn settings(&self, queue: &str, arguments: &[(&'static str, Argument)]) -> Settings {
        Settings::new(self.profile, arguments, self.policy(queue).map(|(_, policy)| &policy.definition))
    }

    /// Puts a policy into force, or out of it. Messages keep the time they were given; what is stuck
    /// on a queue that it is for is tried again.
    fn change_policy(&mut self, name: &str, new: Option<Policy>) {
        let mut patterns: Vec<_> = new.iter().map(|policy| policy.pattern.clone()).collect();
        let old = match new {
            Some(policy) => self.policies.insert(name.to_owned(), policy),
            None => self.policies.remove(name),
        };
        patterns.extend(old.map(|policy| policy.pattern));
        let concerned = |name: &&String| patterns.iter().any(|pattern| pattern.matches(name));
        let names: Vec<_> = self.queues.keys().filter(concerned).cloned().collect();
        for name in names {
            let Some(queue) = self.queues.get(&name) else { continue };
            let settings = self.settings(&name, &queue.arguments);
            if let Some(queue) = self.queues.get_mut(&name) {
                queue.settings = settings;
                queue.dying.hurry();
            }
            self.watch(&name);
        }
    }

    /// What RabbitMQ's management API would say.
    pub(super) fn snapshot(&self) -> Snapshot {
        let exchange = |Routes { exchange, .. }: &Routes| SeenExchange {
            kind: exchange.kind.as_str().into(),
            durable: true,
            arguments: arguments(&exchange.arguments),
        };
        let bindings = self.exchanges.iter().flat_map(|(name, routes)| {
            routes.bindings.iter().map(move |(key, queue)| (name.clone(), queue.to_string(), key.clone()))
        });
        let queues = self.queues.iter().map(|(name, queue)| {
            let policy = self.policy(name);
            let seen = SeenQueue {
                durable: true,
                arguments: arguments(&queue.arguments),
                policy: policy.map(|(name, _)| name.clone()),
                operator_policy: None,
                effective_policy: Some(policy.map_or_else(Map::new, |(_, policy)| policy.definition.clone())),
            };
            (name.clone(), seen)
        });
        Snapshot {
            vhost: "/".into(),
            exchanges: self.exchanges.iter().map(|(name, routes)| (name.clone(), exchange(routes))).collect(),
            queues: queues.collect(),
            bindings: bindings.collect(),
            policies: self.policies.iter().map(|(name, policy)| (name.clone(), policy.definition.clone())).collect(),
            ..Snapshot::default()
        }
    }
}
