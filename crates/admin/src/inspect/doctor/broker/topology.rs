//! Whether exchanges and queues are as they must be, and whether the queues that should be empty are empty (pure).

use roundelay_broker::rabbit::{Weight, check};
use roundelay_model::topology::{Names, Topology};

use crate::inspect::broker::BrokerStatus;
use crate::inspect::doctor::finding::{Area, Finding, Gathered, Grade, some};

/// The differences from the topology.
pub(super) fn declared(found: &Gathered<Vec<check::Finding>>, is_in: bool, topology: &Topology) -> Vec<Finding> {
    let what = "topology";
    let found = match found {
        Ok(found) => found,
        Err(why) => {
            let fix = match is_in {
                true => "`roundelay topology check` takes the time that it takes",
                false => "mend the connection first",
            };
            return vec![Finding::unknown(Area::Broker, what, why, fix)];
        }
    };
    let (total, mut missing, mut surplus, mut all) =
        (topology.exchanges.len() + topology.queues.len() + topology.bindings.len(), Vec::new(), 0, Vec::new());
    for difference in found {
        let check::Finding { weight, what: of, expected, found, mend } = difference;
        match weight {
            Weight::Wrong if found == "missing" => missing.push(of.as_str()),
            Weight::Wrong => {
                let follows = format!("must be: {expected}");
                all.push(Finding::bad(Area::Broker, of, found, follows, mend));
            }
            Weight::Unknown => all.push(Finding::unknown(Area::Broker, of, found, mend)),
            Weight::Note => surplus += 1,
        }
    }
    if !missing.is_empty() {
        all.push(Finding::bad(
            Area::Broker,
            what,
            format!("{} of {total} exchanges, queues and bindings are missing: {}", missing.len(), some(&missing)),
            "jobs for them are returned or led to the queue for what is unrouted; what slept on them is sent again from the \
             ledger, except for one-off jobs",
            "`roundelay topology apply`; a worker that starts declares them, too, unless broker.declare is false",
        ));
    }
    if all.iter().all(|finding| finding.result != Grade::Bad) {
        let more = match surplus {
            0 => String::new(),
            more => format!("; {more} rungs are left over from another configuration, which is no harm"),
        };
        all.push(Finding::good(Area::Broker, what, format!("{} queues are there{more}", topology.queues.len())));
    }
    all
}

/// Queues that should be empty.
pub(super) fn leftovers(asked: &BrokerStatus, is_in: bool, names: &Names) -> Vec<Finding> {
    let quarantine = "the header roundelay-reason of each says why: `roundelay serve` shows them; mend the cause, then send \
                      them again there";
    let unrouted = "add the queues that they are for (their routing keys) to the configuration, `roundelay topology apply`, \
                    then move them in the management UI";
    let table = [
        (names.quarantine(), "cannot be used, and nobody runs them", quarantine),
        (names.unrouted(), "are for queues that do not exist", unrouted),
    ];
    let mut all = Vec::new();
    for (queue, words, fix) in table {
        match asked.depth(&queue).map(|depth| depth.ready) {
            Some(0) => all.push(Finding::good(Area::Broker, queue, "empty")),
            Some(ready) => {
                let follows =
                    "one-off jobs among them do not run until somebody sees to it; chains go on by themselves";
                all.push(Finding::warning(Area::Broker, queue, format!("{ready} messages {words}"), follows, fix));
            }
            // A missing queue and an unavailable broker are reported elsewhere.
            None if is_in && matches!(asked, BrokerStatus::Away(_)) => {
                let why = asked.error().unwrap_or_default();
                all.push(Finding::unknown(Area::Broker, queue, why, "try again; `roundelay status` asks for it, too"));
            }
            None => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::tests::topology;
    use super::*;
    use crate::inspect::doctor::tests::{about, have_fixes};
    use roundelay_broker::Depth;

    #[test]
    fn what_is_missing_is_one_finding_and_what_differs_one_each() {
        let finding = |weight, what: &str, found: &str| check::Finding {
            weight,
            what: what.into(),
            expected: "present".into(),
            found: found.into(),
            mend: "mend it".into(),
        };
        let judged = |found: Vec<check::Finding>| {
            let findings = declared(&Ok(found), true, &topology());
            have_fixes(&findings);
            findings
        };
        assert_eq!(about(&judged(vec![]), "topology").result, Grade::Good);
        let surplus = judged(vec![finding(Weight::Note, "rung `r.delay.7s`", "present")]);
        assert!(about(&surplus, "topology").seen.contains("1 rungs are left over"));
        let gone =
            ["queue `a`", "queue `b`", "queue `c`", "queue `d`"].map(|name| finding(Weight::Wrong, name, "missing"));
        let findings = judged(gone.into());
        assert_eq!((findings.len(), findings[0].result), (1, Grade::Bad));
        assert!(findings[0].seen.starts_with("4 of") && findings[0].seen.contains("and 1 more"), "{findings:?}");
        let findings = judged(vec![
            finding(Weight::Wrong, "policy `all` sets `max-length` on `work`", "1"),
            finding(Weight::Unknown, "policies", "not checked"),
        ]);
        let grades: Vec<Grade> = findings.iter().map(|finding| finding.result).collect();
        assert_eq!(grades, [Grade::Bad, Grade::Unknown]);
        assert_eq!(declared(&Err("away".into()), false, &topology())[0].result, Grade::Unknown);
    }

    #[test]
    fn queues_that_should_be_empty_are_told_when_they_are_not() {
        let names = Names::new("r");
        let depths = |ready| {
            let depth = Ok(Depth { ready, consumers: 0 });
            BrokerStatus::Depths(BTreeMap::from([(names.quarantine(), depth.clone()), (names.unrouted(), depth)]))
        };
        for (asked, grade) in
            [(depths(0), Grade::Good), (depths(3), Grade::Warning), (BrokerStatus::Away("x".into()), Grade::Unknown)]
        {
            let findings = leftovers(&asked, true, &names);
            have_fixes(&findings);
            assert_eq!(findings.len(), 2);
            assert!(findings.iter().all(|finding| finding.result == grade), "{findings:?}");
        }
        assert_eq!(leftovers(&BrokerStatus::Away("x".into()), false, &names), [], "that it is away is told once");
    }
}
