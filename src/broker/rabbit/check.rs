//! What on a broker differs from the topology (pure), for `roundelay topology check`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Map, Value};

use super::definitions::arguments;
use crate::broker::topology::{Argument, Binding, Topology};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// Jobs get lost, come early or do not come at all.
    Wrong,
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

/// What a policy must not set on the engine's queues, and what happens if it does.
const HARMFUL: [(&str, &str); 9] = [
    ("message-ttl", "the shorter of policy and argument wins, so jobs come early or expire unseen"),
    ("expires", "queues vanish, with every job that sleeps on them"),
    ("overflow", "it overrides the argument, and dead-lettering silently becomes at-most-once"),
    ("max-length", "jobs beyond it are dropped or refused"),
    ("max-length-bytes", "jobs beyond it are dropped or refused"),
    ("dead-letter-exchange", "jobs are led elsewhere, or round in circles"),
    ("dead-letter-routing-key", "jobs that wake arrive on the wrong queue"),
    ("dead-letter-strategy", "at-most-once dead-lettering loses jobs that wake"),
    ("delivery-limit", "the lower of policy and argument wins, and a crash loop discards jobs"),
];

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
    findings.extend(harmful_policies(topology, seen));
    findings.extend(unknown_policies(topology, seen));
    findings.extend(surplus_rungs(topology, seen));
    findings
}

/// What can be said when only existence could be asked for: what is absent, and that the rest is
/// not known.
pub fn existence_only(absent: &[String], why: &str) -> Vec<Finding> {
    let mut findings: Vec<_> = absent.iter().cloned().map(missing).collect();
    findings.push(Finding {
        weight: Weight::Note,
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
    fn wrong(what: String, expected: String, found: String, mend: String) -> Self {
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

/// One finding for each policy and setting, however many queues it hits: a catch-all hits all.
fn harmful_policies(topology: &Topology, seen: &Snapshot) -> Vec<Finding> {
    let mut hits: BTreeMap<(usize, String, String), Vec<(&str, &Value)>> = BTreeMap::new();
    for queue in &topology.queues {
        let Some(found) = seen.queues.get(&queue.name) else { continue };
        for (rank, (key, _)) in HARMFUL.iter().enumerate() {
            if let Some(value) = found.effective_policy.as_ref().and_then(|policy| policy.get(*key)) {
                let (policy, mend) = culprit(found, key, seen);
                hits.entry((rank, policy, mend)).or_default().push((&queue.name, value));
            }
        }
    }
    let finding = |((rank, policy, mend), queues): ((usize, String, String), Vec<(&str, &Value)>)| {
        let (key, harm) = HARMFUL[rank];
        let (first, value) = queues[0];
        let others = if queues.len() > 1 { format!(" and {} more queues", queues.len() - 1) } else { String::new() };
        Finding::wrong(
            format!("{policy} sets `{key}` on `{first}`{others}"),
            format!("no policy sets `{key}` ({harm})"),
            value.to_string(),
            mend,
        )
    };
    hits.into_iter().map(finding).collect()
}

/// Queues on which the broker does not say what policies set.
fn unknown_policies(topology: &Topology, seen: &Snapshot) -> Option<Finding> {
    let silent = |name: &&str| seen.queues.get(*name).is_some_and(|queue| queue.effective_policy.is_none());
    let silent: Vec<_> = topology.queues.iter().map(|queue| queue.name.as_str()).filter(silent).collect();
    let first = silent.first()?;
    Some(Finding {
        weight: Weight::Note,
        what: format!("policies on {} queues, the first of them `{first}`", silent.len()),
        expected: "known".into(),
        found: "the broker does not say".into(),
        mend: "check again in ten seconds; if it stays so, see whether all nodes run".into(),
    })
}

/// Which policy it is that sets `key`, and how to take it away.
fn culprit(queue: &SeenQueue, key: &str, seen: &Snapshot) -> (String, String) {
    let sets = |policies: &BTreeMap<String, Map<String, Value>>, name: &Option<String>| {
        // A policy whose definition may not be seen is under suspicion.
        name.as_ref().filter(|name| policies.get(*name).is_none_or(|definition| definition.contains_key(key))).cloned()
    };
    let policy = sets(&seen.policies, &queue.policy).map(|name| ("policy", "clear_policy", name));
    let operator = sets(&seen.operator_policies, &queue.operator_policy)
        .map(|name| ("operator policy", "clear_operator_policy", name));
    let culprits: Vec<_> = policy.into_iter().chain(operator).collect();
    if culprits.is_empty() {
        return ("a policy".into(), "find it with `rabbitmqctl list_policies` and `list_operator_policies`".into());
    }
    let named: Vec<_> = culprits.iter().map(|(sort, _, name)| format!("{sort} `{name}`")).collect();
    let cleared: Vec<_> =
        culprits.iter().map(|(_, verb, name)| format!("`rabbitmqctl {verb} -p '{}' '{name}'`", seen.vhost)).collect();
    let mend =
        format!("narrow its pattern so that it matches none of the engine's queues, or {}", cleared.join(" and "));
    (named.join(" and "), mend)
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
mod tests {
    use serde_json::json;

    use super::*;
    use crate::broker::topology::Names;
    use crate::ladder::Ladder;

    fn topology() -> Topology {
        Topology::new(Names::new("r"), ["work"], &Ladder::new([]))
    }

    /// A broker that has exactly what it must have.
    fn exact(topology: &Topology) -> Snapshot {
        let exchange = |e: &crate::broker::topology::Exchange| {
            let seen = SeenExchange { kind: e.kind.as_str().into(), durable: true, arguments: arguments(&e.arguments) };
            (e.name.clone(), seen)
        };
        let queue = |q: &crate::broker::topology::Queue| {
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

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
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
            assert_eq!(finding.weight == Weight::Note, what.starts_with("rung") || what.starts_with("policies"));
            assert!(!finding.mend.is_empty());
        }
    }

    #[test]
    fn every_harmful_setting_of_a_policy_is_named_with_the_policy_and_its_cure() {
        let topology = topology();
        for (key, _) in HARMFUL {
            let mut snapshot = exact(&topology);
            snapshot.policies.insert("all".into(), object(json!({ key: 1 })));
            for queue in snapshot.queues.values_mut() {
                queue.policy = Some("all".into());
                queue.effective_policy = Some(object(json!({ key: 1 })));
            }
            let findings = compare(&topology, &snapshot);
            assert_eq!(findings.len(), 1, "one policy, one setting, one finding: {findings:?}");
            assert!(findings[0].what.starts_with(&format!("policy `all` sets `{key}` on ")), "{}", findings[0].what);
            assert!(findings[0].mend.contains("rabbitmqctl clear_policy -p '/' 'all'"), "{}", findings[0].mend);
        }
    }

    #[test]
    fn the_policy_that_sets_it_is_blamed_and_not_the_other() {
        let topology = topology();
        let mut snapshot = exact(&topology);
        snapshot.policies.insert("harmless".into(), object(json!({ "queue-leader-locator": "balanced" })));
        snapshot.operator_policies.insert("caps".into(), object(json!({ "expires": 9 })));
        let work = snapshot.queues.get_mut("work").unwrap();
        work.policy = Some("harmless".into());
        work.operator_policy = Some("caps".into());
        work.effective_policy = Some(object(json!({ "queue-leader-locator": "balanced", "expires": 9 })));
        let findings = compare(&topology, &snapshot);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].what, "operator policy `caps` sets `expires` on `work`");
        assert!(findings[0].mend.contains("clear_operator_policy"));

        // Credentials that may not read policies: both are under suspicion.
        snapshot.policies.clear();
        snapshot.operator_policies.clear();
        let what = &compare(&topology, &snapshot)[0].what;
        assert_eq!(what, "policy `harmless` and operator policy `caps` sets `expires` on `work`");
    }

    #[test]
    fn without_the_management_api_that_is_said() {
        let findings = existence_only(&["queue `work`".into()], "connection refused");
        assert_eq!(findings.len(), 2);
        assert_eq!((findings[0].weight, &*findings[0].what), (Weight::Wrong, "queue `work`"));
        assert_eq!(findings[1].weight, Weight::Note);
        assert!(findings[1].found.contains("connection refused"));
        assert!(findings[1].mend.contains("broker.management"));
    }
}
