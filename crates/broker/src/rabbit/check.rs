//! What on a broker differs from the topology (pure), for `roundelay topology check`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roundelay_model::topology::{Argument, Binding, Topology};
use serde_json::{Map, Value};

pub(crate) use super::definitions::arguments;
use super::policies;
use crate::BrokerError;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// Jobs get lost, come early or do not come at all.
    Wrong,
    /// It could not be looked at.
    Unknown,
    /// Worth knowing; nothing breaks.
    Note,
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub weight: Weight,
    /// What differs.
    pub what: String,
    /// How it must be.
    pub expected: String,
    /// How it is.
    pub found: String,
    /// What to do.
    pub mend: String,
}

/// What the management API says about a virtual host.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The virtual host.
    pub vhost: String,
    /// Exchanges by name.
    pub exchanges: BTreeMap<String, SeenExchange>,
    /// Queues by name.
    pub queues: BTreeMap<String, SeenQueue>,
    /// Bindings: exchange, queue, routing key.
    pub bindings: BTreeSet<(String, String, String)>,
    /// Definitions of policies by name, as far as these credentials may see them.
    pub policies: BTreeMap<String, Map<String, Value>>,
    /// The same for operator policies.
    pub operator_policies: BTreeMap<String, Map<String, Value>>,
}

/// An exchange as it is.
#[derive(Clone, Debug, Default)]
pub struct SeenExchange {
    /// `direct`, `fanout`, …
    pub kind: String,
    /// Survives a restart of the broker.
    pub durable: bool,
    /// Declaration arguments.
    pub arguments: Map<String, Value>,
}

/// A queue as it is.
#[derive(Clone, Debug, Default)]
pub struct SeenQueue {
    /// Survives a restart of the broker.
    pub durable: bool,
    /// Declaration arguments.
    pub arguments: Map<String, Value>,
    /// The policy in force.
    pub policy: Option<String>,
    /// The operator policy in force.
    pub operator_policy: Option<String>,
    /// What both together set; nothing where the broker does not say (yet).
    pub effective_policy: Option<Map<String, Value>>,
}

const APPLY: &str = "run `roundelay topology apply`";

/// Every difference: what is wrong before what is only worth knowing.
pub fn compare(topology: &Topology, seen: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for exchange in &topology.exchanges {
        let what = format!("exchange `{}`", exchange.name);
        let Some(found) = seen.exchanges.get(&exchange.name) else {
            findings.push(missing(what));
            continue;
        };
        let mend = replace("exchange", &exchange.name, &seen.vhost);
        let mut differs = |aspect: &str, expected: String, found: String| {
            findings.push(Finding::wrong(format!("{what}: {aspect}"), expected, found, mend.clone()));
        };
        if found.kind != exchange.kind.as_str() {
            differs("type", exchange.kind.as_str().into(), found.kind.clone());
        }
        if !found.durable {
            differs("durability", "durable".into(), "transient".into());
        }
        compare_arguments(&exchange.arguments, &found.arguments, differs);
    }
    for queue in &topology.queues {
        let what = format!("queue `{}`", queue.name);
        let Some(found) = seen.queues.get(&queue.name) else {
            findings.push(missing(what));
            continue;
        };
        let mend = replace("queue", &queue.name, &seen.vhost);
        let mut differs = |aspect: &str, expected: String, found: String| {
            findings.push(Finding::wrong(format!("{what}: {aspect}"), expected, found, mend.clone()));
        };
        if !found.durable {
            differs("durability", "durable".into(), "transient".into());
        }
        compare_arguments(&queue.arguments, &found.arguments, differs);
    }
    for Binding { exchange, queue, key } in &topology.bindings {
        if !seen.bindings.contains(&(exchange.clone(), queue.clone(), key.clone())) {
            findings
                .push(missing(format!("binding of queue `{queue}` to exchange `{exchange}` (routing key `{key}`)")));
        }
    }
    findings.extend(policies::harmful(topology, seen));
    findings.extend(policies::unknown(topology, seen));
    findings.extend(surplus_rungs(topology, seen));
    findings
}

/// Refuses a broker that has something wrong.
pub(crate) fn refuse_wrong(topology: &Topology, seen: &Snapshot) -> Result<(), BrokerError> {
    let wrong = compare(topology, seen).into_iter().filter(|finding| finding.weight == Weight::Wrong);
    let wrong: Vec<String> =
        wrong.map(|f| format!("{}: must be {}, is {}; {}", f.what, f.expected, f.found, f.mend)).collect();
    if wrong.is_empty() { Ok(()) } else { Err(BrokerError::Topology(wrong.join("\n"))) }
}

/// What can be said when only existence could be asked for: what is absent, and that the rest is
/// not known.
pub fn existence_only(absent: &[String], why: &str) -> Vec<Finding> {
    let mut findings: Vec<_> = absent.iter().cloned().map(missing).collect();
    findings.push(Finding {
        weight: Weight::Unknown,
        what: "arguments, bindings and policies".into(),
        expected: "compared through RabbitMQ's management API".into(),
        found: format!("not checked: {why}"),
        mend: "set `broker.management` to the base URL of the management API, such as \
               http://user:password@host:15672 (the plugin `rabbitmq_management` must be enabled, and the user \
               needs the tag `management`, or `policymaker` to see which policy it is)"
            .into(),
    });
    findings
}

impl Finding {
    pub(super) fn wrong(what: String, expected: String, found: String, mend: String) -> Self {
        Self { weight: Weight::Wrong, what, expected, found, mend }
    }
}

fn missing(what: String) -> Finding {
    Finding::wrong(what, "present".into(), "missing".into(), APPLY.into())
}

/// Declaration arguments cannot be changed, only declared anew.
fn replace(sort: &str, name: &str, vhost: &str) -> String {
    match sort {
        "queue" => format!(
            "stop the workers, `rabbitmqctl delete_queue -p '{vhost}' '{name}'`, {APPLY}; chains that slept there are \
             re-sent from the ledger, one-off jobs on it would be lost, so let it run empty first"
        ),
        _ => format!("stop the workers, delete the exchange `{name}` in the management UI, {APPLY}"),
    }
}

fn compare_arguments(
    expected: &[(&'static str, Argument)],
    found: &Map<String, Value>,
    mut differs: impl FnMut(&str, String, String),
) {
    let expected = arguments(expected);
    let names: BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    let shown = |value: Option<&Value>| value.map_or_else(|| "not set".into(), ToString::to_string);
    for name in names {
        let (must, is) = (expected.get(name), found.get(name));
        if must != is {
            differs(&format!("argument `{name}`"), shown(must), shown(is));
        }
    }
}

/// Rungs that the configuration no longer needs. They may still hold jobs, so they stay.
fn surplus_rungs(topology: &Topology, seen: &Snapshot) -> Vec<Finding> {
    let a_rung = topology.names.rung(Duration::ZERO);
    let family = a_rung.strip_suffix("0ms").unwrap_or(&a_rung);
    let known: BTreeSet<_> = topology.queues.iter().map(|queue| queue.name.as_str()).collect();
    let surplus = |name: &&String| name.starts_with(family) && !known.contains(name.as_str());
    let finding = |name: &String| Finding {
        weight: Weight::Note,
        what: format!("rung `{name}`"),
        expected: "not in the configuration any more".into(),
        found: "present".into(),
        mend: format!(
            "nothing has to be done; once it is empty, `rabbitmqctl delete_queue -p '{}' '{name}'` and delete the \
             exchange of the same name",
            seen.vhost
        ),
    };
    seen.queues.keys().filter(surplus).map(finding).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;
    use roundelay_model::ladder::Ladder;
    use roundelay_model::topology::Names;

    pub(in super::super) fn topology() -> Topology {
        Topology::new(Names::new("r"), ["work"], &Ladder::new([]))
    }

    /// A broker that has exactly what it must have.
    pub(in super::super) fn exact(topology: &Topology) -> Snapshot {
        let exchange = |e: &roundelay_model::topology::Exchange| {
            let seen = SeenExchange { kind: e.kind.as_str().into(), durable: true, arguments: arguments(&e.arguments) };
            (e.name.clone(), seen)
        };
        let queue = |q: &roundelay_model::topology::Queue| {
            let (arguments, effective_policy) = (arguments(&q.arguments), Some(Map::new()));
            (q.name.clone(), SeenQueue { durable: true, arguments, effective_policy, ..SeenQueue::default() })
        };
        Snapshot {
            vhost: "/".into(),
            exchanges: topology.exchanges.iter().map(exchange).collect(),
            queues: topology.queues.iter().map(queue).collect(),
            bindings: topology.bindings.iter().map(|b| (b.exchange.clone(), b.queue.clone(), b.key.clone())).collect(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn nothing_is_found_where_nothing_differs() {
        let topology = topology();
        assert_eq!(compare(&topology, &exact(&topology)), []);
    }

    #[test]
    fn each_difference_is_one_finding() {
        type Change = fn(&mut Snapshot);
        let table: [(Change, &str, &str, &str); 11] = [
            (
                |s| s.queues.get_mut("work").unwrap().effective_policy = None,
                "policies on 1 queues, the first of them `work`",
                "known",
                "the broker does not say",
            ),
            (|s| _ = s.queues.remove("work"), "queue `work`", "present", "missing"),
            (|s| _ = s.exchanges.remove("r.jobs"), "exchange `r.jobs`", "present", "missing"),
            (
                |s| _ = s.bindings.remove(&("r.jobs".into(), "work".into(), "work".into())),
                "binding of queue `work` to exchange `r.jobs` (routing key `work`)",
                "present",
                "missing",
            ),
            (
                |s| s.exchanges.get_mut("r.jobs").unwrap().kind = "topic".into(),
                "exchange `r.jobs`: type",
                "direct",
                "topic",
            ),
            (
                |s| s.exchanges.get_mut("r.jobs").unwrap().durable = false,
                "exchange `r.jobs`: durability",
                "durable",
                "transient",
            ),
            (
                |s| _ = s.exchanges.get_mut("r.jobs").unwrap().arguments.remove("alternate-exchange"),
                "exchange `r.jobs`: argument `alternate-exchange`",
                "\"r.unrouted\"",
                "not set",
            ),
            (
                |s| _ = s.queues.get_mut("r.delay.5s").unwrap().arguments.insert("x-message-ttl".into(), json!(4_000)),
                "queue `r.delay.5s`: argument `x-message-ttl`",
                "5000",
                "4000",
            ),
            (
                |s| _ = s.queues.get_mut("work").unwrap().arguments.insert("x-max-length".into(), json!(1)),
                "queue `work`: argument `x-max-length`",
                "not set",
                "1",
            ),
            (|s| s.queues.get_mut("work").unwrap().durable = false, "queue `work`: durability", "durable", "transient"),
            (
                |s| _ = s.queues.insert("r.delay.6s".into(), SeenQueue::default()),
                "rung `r.delay.6s`",
                "not in the configuration any more",
                "present",
            ),
        ];
        let topology = topology();
        for (change, what, expected, found) in table {
            let mut snapshot = exact(&topology);
            change(&mut snapshot);
            let findings = compare(&topology, &snapshot);
            assert_eq!(findings.len(), 1, "{what}: {findings:?}");
            let finding = &findings[0];
            assert_eq!((&*finding.what, &*finding.expected, &*finding.found), (what, expected, found));
            let weight = match what.split(' ').next() {
                Some("rung") => Weight::Note,
                Some("policies") => Weight::Unknown,
                _ => Weight::Wrong,
            };
            assert_eq!(finding.weight, weight);
            assert!(!finding.mend.is_empty());
        }
    }

    #[test]
    fn without_the_management_api_that_is_said() {
        let findings = existence_only(&["queue `work`".into()], "connection refused");
        assert_eq!(findings.len(), 2);
        assert_eq!((findings[0].weight, &*findings[0].what), (Weight::Wrong, "queue `work`"));
        assert_eq!(findings[1].weight, Weight::Unknown);
        assert!(findings[1].found.contains("connection refused"));
        assert!(findings[1].mend.contains("broker.management"));
    }
}
