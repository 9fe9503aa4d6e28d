//! Policies that must not reach the engine's queues (pure).

use std::collections::BTreeMap;

use roundelay_model::topology::Topology;
use serde_json::{Map, Value};

use super::check::{Finding, SeenQueue, Snapshot, Weight};

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

/// Queues that a policy hits and what it sets on them, by the policy's name and its cure.
type Hits<'a> = BTreeMap<(String, String), Vec<(&'a str, &'a Value)>>;

/// One finding for each policy and setting, however many queues it hits: a catch-all hits all.
pub(super) fn harmful(topology: &Topology, seen: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (key, harm) in HARMFUL {
        let mut hits = Hits::new();
        for name in topology.queues.iter().map(|queue| queue.name.as_str()) {
            let Some(queue) = seen.queues.get(name) else { continue };
            if let Some(value) = queue.effective_policy.as_ref().and_then(|policy| policy.get(key)) {
                hits.entry(culprit(queue, key, seen)).or_default().push((name, value));
            }
        }
        for ((policy, mend), queues) in hits {
            let (first, value) = queues[0];
            let others = match queues.len() - 1 {
                0 => String::new(),
                others => format!(" and {others} more queues"),
            };
            findings.push(Finding::wrong(
                format!("{policy} sets `{key}` on `{first}`{others}"),
                format!("no policy sets `{key}` ({harm})"),
                value.to_string(),
                mend,
            ));
        }
    }
    findings
}

/// Queues on which the broker does not say what policies set.
pub(super) fn unknown(topology: &Topology, seen: &Snapshot) -> Option<Finding> {
    let silent = |name: &&str| seen.queues.get(*name).is_some_and(|queue| queue.effective_policy.is_none());
    let silent: Vec<_> = topology.queues.iter().map(|queue| queue.name.as_str()).filter(silent).collect();
    let first = silent.first()?;
    Some(Finding {
        weight: Weight::Unknown,
        what: format!("policies on {} queues, the first of them `{first}`", silent.len()),
        expected: "known".into(),
        found: "the broker does not say".into(),
        mend: "check again in ten seconds; if it stays so, see whether all nodes run".into(),
    })
}

/// The policy that sets `key`, and how to remove it.
fn culprit(queue: &SeenQueue, key: &str, seen: &Snapshot) -> (String, String) {
    let sets = |policies: &BTreeMap<String, Map<String, Value>>, name: &Option<String>| {
        // A policy whose definition may not be seen may be the one.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::check::compare;
    use super::super::check::tests::{exact, topology};
    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
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

        // With credentials that may not read policies, either may be the one.
        snapshot.policies.clear();
        snapshot.operator_policies.clear();
        let what = &compare(&topology, &snapshot)[0].what;
        assert_eq!(what, "policy `harmless` and operator policy `caps` sets `expires` on `work`");
    }
}
