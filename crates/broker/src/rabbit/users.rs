//! Who may do what on the broker (pure): five users, each with no more than it needs.
//!
//! RabbitMQ's permissions are regular expressions over names, for three verbs: configure (declare and delete),
//! write (publish to an exchange, bind a queue), read (consume or purge a queue, bind from an exchange). They do not
//! tell an exchange from a queue of the same name, nor one routing key from another.

use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use regex_lite::escape;
use roundelay_model::topology::Topology;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::examine::Permissions;

/// A user's part in the deployment. Users bear the names of their parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Declares and deletes exchanges, queues and bindings.
    Topology,
    /// Only publishes jobs, and asks whether their queues exist.
    Publisher,
    /// Consumes and publishes jobs, and declares nothing.
    Worker,
    /// Asks the management API, which changes nothing.
    Monitor,
    /// A person at RabbitMQ's management UI: gets what is in quarantine or unrouted, and publishes it back.
    Operator,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Topology, Self::Publisher, Self::Worker, Self::Monitor, Self::Operator];

    /// The user's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Topology => "topology",
            Self::Publisher => "publisher",
            Self::Worker => "worker",
            Self::Monitor => "monitor",
            Self::Operator => "operator",
        }
    }

    /// The tag that lets it into the management API, if any does.
    pub fn tag(self) -> Option<&'static str> {
        matches!(self, Self::Monitor | Self::Operator).then_some("monitoring")
    }

    /// What it may do in the virtual host of `topology`.
    pub fn permissions(self, topology: &Topology) -> Permissions {
        let names = &topology.names;
        let [jobs, unrouted] = [names.jobs(), names.unrouted()].map(|name| escape(&name));
        // Rungs come and go with the durations that kinds name; permissions are not to change with them.
        let publishing = vec![jobs.clone(), names.rungs()];
        let queues = topology.queues.iter().filter(|queue| queue.ttl().is_none()).map(|queue| escape(&queue.name));
        let consumed: Vec<String> = queues.collect();
        let exchanges = [publishing.clone(), vec![unrouted.clone()]].concat();
        let (configure, write, read) = match self {
            // It binds queues (write) to exchanges (read); and it names `jobs` and `unrouted` as the places where
            // rungs and `jobs` lead (write), which takes reading what leads there. Whether rungs are needed it finds out
            // by a probe, which is published by `jobs` and consumed.
            Self::Topology => {
                let all = [publishing, consumed].concat();
                (all.clone(), all, [exchanges, vec![escape(&names.probe())]].concat())
            }
            // A message for a queue that does not exist is not returned, so it asks for the queue first, by declaring
            // it passively, which newer brokers grant to those who have any permission on it. Writing to a queue is
            // binding it, and without reading an exchange there is nothing to bind it to.
            Self::Publisher => {
                let queues = topology.queues.iter().map(|queue| queue.name.as_str());
                // Orders go to the queue that every worker consumes.
                let chores = names.chores();
                let queues = queues.filter(|queue| !names.is_own(queue) || *queue == chores);
                (vec![], publishing.into_iter().chain(queues.map(escape)).collect(), vec![])
            }
            // What is unrouted is only counted, which newer brokers grant to those alone who may read, write or
            // declare it.
            Self::Worker => (vec![], publishing, consumed),
            Self::Monitor => (vec![], vec![], vec![]),
            // A user that may read a queue may purge it, so no platform queue is among these. To publish on a queue's
            // page takes the default exchange, which leads to every queue: what goes back goes by `jobs`.
            Self::Operator => (vec![], vec![jobs], vec![escape(&names.quarantine()), unrouted]),
        };
        Permissions { configure: any_of(configure), write: any_of(write), read: any_of(read) }
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|role| role.name() == text)
            .ok_or_else(|| format!("`{text}` is none of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// A pattern for exactly these, which are patterns themselves.
fn any_of(mut patterns: Vec<String>) -> String {
    patterns.sort();
    match patterns.as_slice() {
        [] => "^$".into(),
        [one] => format!("^{one}$"),
        several => format!("^({})$", several.join("|")),
    }
}

/// A password as RabbitMQ keeps it (`rabbit_password_hashing_sha256`): in base64 the salt, and the SHA-256 of salt and
/// password.
pub fn password_hash(password: &str, salt: [u8; 4]) -> String {
    let digest = Sha256::new().chain_update(salt).chain_update(password).finalize();
    BASE64.encode([&salt[..], &digest[..]].concat())
}

/// Users in RabbitMQ's definitions format. One without a hash has no password, and can log in by a certificate alone.
pub fn definitions(users: &[(Role, Option<String>)]) -> Vec<Value> {
    let user = |(role, hash): &(Role, Option<String>)| {
        json!({
            "name": role.name(),
            "password_hash": hash.as_deref().unwrap_or_default(),
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": role.tag().into_iter().collect::<Vec<_>>(),
            "limits": {},
        })
    };
    users.iter().map(user).collect()
}

/// What all users may do in the virtual host, in RabbitMQ's definitions format.
pub fn permissions(topology: &Topology, vhost: &str) -> Vec<Value> {
    let permission = |role: Role| {
        let Permissions { configure, write, read } = role.permissions(topology);
        json!({ "user": role.name(), "vhost": vhost, "configure": configure, "write": write, "read": read })
    };
    Role::ALL.map(permission).into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use regex_lite::Regex;

    use super::*;
    use roundelay_model::ladder::Ladder;
    use roundelay_model::topology::Names;

    fn topology() -> Topology {
        Topology::new(Names::new("r.x"), ["sync-ios", "r.x.lane.1.sync-ios", "w.b"], &Ladder::new([]))
    }

    #[test]
    fn each_user_may_do_what_it_is_for_and_nothing_else() {
        use Role::{Monitor, Operator, Publisher, Topology as Declares, Worker};
        /// What, and who may configure, write and read it.
        type Row<'a> = (&'a str, &'a [Role], &'a [Role], &'a [Role]);
        let table: [Row<'_>; 16] = [
            ("r.x.jobs", &[Declares], &[Declares, Publisher, Worker, Operator], &[Declares]),
            ("r.x.delay.5s", &[Declares], &[Declares, Publisher, Worker], &[Declares]),
            ("r.x.delay.25441ms", &[Declares], &[Declares, Publisher, Worker], &[Declares]),
            ("r.x.unrouted", &[Declares], &[Declares], &[Declares, Worker, Operator]),
            ("r.x.quarantine", &[Declares], &[Declares], &[Worker, Operator]),
            ("r.x.rearm", &[Declares], &[Declares], &[Worker]),
            ("r.x.probe", &[Declares], &[Declares], &[Declares, Worker]),
            ("r.x.chores", &[Declares], &[Declares, Publisher], &[Worker]),
            ("sync-ios", &[Declares], &[Declares, Publisher], &[Worker]),
            ("r.x.lane.1.sync-ios", &[Declares], &[Declares], &[Worker]),
            ("w.b", &[Declares], &[Declares, Publisher], &[Worker]),
            // Dots are no wildcards, patterns hold for whole names, and no user may use the default exchange.
            ("wxb", &[], &[], &[]),
            ("rxx.jobs", &[], &[], &[]),
            ("r.x.jobs2", &[], &[], &[]),
            ("r.x.delay.5s.theirs", &[], &[], &[]),
            ("amq.default", &[], &[], &[]),
        ];
        for role in Role::ALL {
            let Permissions { configure, write, read } = role.permissions(&topology());
            for (name, may_configure, may_write, may_read) in table {
                let patterns = [(&configure, may_configure), (&write, may_write), (&read, may_read)];
                for (pattern, who) in patterns {
                    let may = Regex::new(pattern).unwrap().is_match(name);
                    assert_eq!(may, who.contains(&role), "{role:?} {name} {pattern}");
                }
            }
        }
        assert_eq!(Monitor.permissions(&topology()).read, "^$", "an empty pattern would mean the same, less plainly");
    }

    #[test]
    fn permissions_do_not_change_with_the_durations_that_kinds_name() {
        let more = Ladder::new([Duration::from_millis(1_234), Duration::from_secs(77)]);
        let more = Topology::new(Names::new("r.x"), ["sync-ios", "r.x.lane.1.sync-ios", "w.b"], &more);
        for role in Role::ALL {
            assert_eq!(role.permissions(&topology()), role.permissions(&more));
            for rung in more.queues.iter().filter(|queue| queue.ttl().is_some()) {
                let may = Regex::new(&role.permissions(&more).write).unwrap().is_match(&rung.name);
                assert_eq!(may, !matches!(role, Role::Monitor | Role::Operator), "{role:?} {}", rung.name);
            }
        }
    }

    #[test]
    fn a_password_hash_is_as_rabbitmq_documents_it() {
        // The worked example of RabbitMQ's documentation of passwords: the salt 908DC60A, the password test12.
        let hash = password_hash("test12", [0x90, 0x8D, 0xC6, 0x0A]);
        assert_eq!(hash, "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR");
    }
}
