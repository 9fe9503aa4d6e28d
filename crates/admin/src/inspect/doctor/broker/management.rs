//! The management API's answer about the broker: its version, its features and its nodes (pure).

use roundelay_broker::rabbit::examine::{Node, Place, Told, Untold, Withheld};
use roundelay_model::topology::Topology;

use super::permissions::{Needs, permissions};
use crate::inspect::doctor::finding::{Area, Finding, Gathered, size, some, word};

/// A node with less free disk in bytes above its limit may raise the alarm any day.
const LITTLE_DISK: u64 = 1 << 30;
/// A node that has used this share of its limit, in percent, has little left.
const MUCH: u64 = 90;
/// The oldest version that works: before it, quorum queues have no time to live.
const OLDEST: (u32, u32) = (3, 10);
/// The newest version that was tested.
const NEWEST: (u32, u32) = (4, 4);
/// The feature flags that rungs need: dead-lettering at least once, and time to live on quorum queues.
const FEATURES: [&str; 2] = ["quorum_queue", "stream_queue"];

/// Findings from the answer, including those about this user's permissions; or why there is no answer.
pub(super) fn management(
    told: Option<&Gathered<Result<Told, Untold>>>,
    place: &Place,
    topology: &Topology,
    needs: &Needs,
) -> Vec<Finding> {
    let what = "management API";
    let without = "policies, arguments, permissions, alarms and the broker's version are not looked at";
    let told = match told {
        None => {
            return vec![Finding::unknown(
                Area::Broker,
                what,
                format!("broker.management is not set, so {without}"),
                "set broker.management to the base URL of the management API, such as http://user:password@host:15672, \
                 and `rabbitmq-plugins enable rabbitmq_management`",
            )];
        }
        Some(Err(why)) => Err(Untold::NoAnswer(why.clone())),
        Some(Ok(told)) => told.clone(),
    };
    let told = match told {
        Ok(told) => told,
        Err(Untold::NoAnswer(why)) => {
            return vec![Finding::bad(
                Area::Broker,
                what,
                why,
                without,
                "`rabbitmq-plugins enable rabbitmq_management` on the broker; see that broker.management has the right \
                 host and port (usually 15672), and http or https as it is configured there",
            )];
        }
        Err(Untold::Refused(user)) => {
            return vec![Finding::bad(
                Area::Broker,
                what,
                format!("it refuses the user `{user}`: another password, or no tag that lets it in"),
                without,
                format!(
                    "correct user and password in broker.management, or `rabbitmqctl set_user_tags {} monitoring`",
                    word(user)
                ),
            )];
        }
    };
    let mut all = vec![Finding::good(Area::Broker, what, format!("answers the user {}", told.user))];
    all.push(version(&told.version));
    all.extend(features(&told));
    all.extend(nodes(&told));
    all.extend(permissions(&told, place, topology, needs));
    all
}

fn version(text: &str) -> Finding {
    let what = "RabbitMQ";
    let mut numbers = text.split('.').map(|part| part.parse::<u32>().ok());
    let (Some(Some(major)), Some(Some(minor))) = (numbers.next(), numbers.next()) else {
        return Finding::unknown(
            Area::Broker,
            what,
            format!("its version is `{text}`"),
            "`rabbitmqctl version` tells it",
        );
    };
    let seen = format!("version {text}");
    match (major, minor) {
        older if older < OLDEST => Finding::bad(
            Area::Broker,
            what,
            format!("{seen} is too old"),
            "messages on quorum queues have no time to live before 3.10, so nothing that sleeps wakes",
            "upgrade to RabbitMQ 3.10 or later, best to the newest 4.x",
        ),
        newer if newer > NEWEST => Finding::warning(
            Area::Broker,
            what,
            format!("{seen} is newer than any that was tested"),
            "it may behave otherwise than the engine knows it",
            "see CHANGELOG for a newer Roundelay; try it elsewhere first",
        ),
        (3, _) => Finding::good(
            Area::Broker,
            what,
            format!("{seen}; supported, though RabbitMQ itself gives it no more updates"),
        ),
        _ => Finding::good(Area::Broker, what, seen),
    }
}

fn features(told: &Told) -> Option<Finding> {
    let features = told.features.as_ref().ok()?;
    let off = features.iter().filter(|flag| FEATURES.contains(&flag.name.as_str()) && flag.state != "enabled");
    let off: Vec<&str> = off.map(|flag| flag.name.as_str()).collect();
    (!off.is_empty()).then(|| {
        Finding::bad(
            Area::Broker,
            "feature flags",
            format!("{} are not enabled", some(&off)),
            "quorum queues, or their dead-lettering at least once, do not work: jobs may be lost when they wake",
            "`rabbitmqctl enable_feature_flag all`",
        )
    })
}

fn nodes(told: &Told) -> Vec<Finding> {
    let tag = format!(
        "`rabbitmqctl set_user_tags {} monitoring`; `rabbitmq-diagnostics status` tells it, too",
        word(&told.user)
    );
    let what = "alarms";
    let blocked = "publishing waits: chains run, and their successors are sent only when it is over";
    let nodes = match (&told.nodes, told.alarm) {
        (Ok(nodes), _) => nodes,
        (Err(_), Some(true)) => {
            let seen = "one is in force: the broker is short of memory or disk";
            let fix = "free memory or disk on the broker's nodes; `rabbitmq-diagnostics alarms` names them";
            return vec![Finding::bad(Area::Broker, what, seen, blocked, fix)];
        }
        (Err(withheld), alarm) => {
            let none = if alarm == Some(false) { "no alarm is in force; " } else { "" };
            let why = match withheld {
                Withheld::Forbidden => format!("the user {} may not see the nodes", told.user),
                Withheld::Failed(why) => why.clone(),
            };
            return vec![Finding::unknown(Area::Broker, "disk and memory of the broker", format!("{none}{why}"), tag)];
        }
    };
    let mut all = Vec::new();
    for node in nodes {
        let Node { name, .. } = node;
        if !node.running {
            all.push(Finding::bad(
                Area::Broker,
                "nodes",
                format!("{name} does not run"),
                "with most of a queue's nodes gone, nothing goes in or out of it",
                "start it again, or `rabbitmqctl forget_cluster_node` if it is gone for good",
            ));
            continue;
        }
        if node.mem_alarm {
            let seen = format!("{name} is short of memory");
            let fix = "give it more memory, raise vm_memory_high_watermark, or let what waits in queues be worked off";
            all.push(Finding::bad(Area::Broker, what, seen, blocked, fix));
        }
        if node.disk_free_alarm {
            let seen = format!("{name} is short of disk");
            let fix = "free disk in its data folder (`rabbitmq-diagnostics status` names it), or lower disk_free_limit";
            all.push(Finding::bad(Area::Broker, what, seen, blocked, fix));
        }
        if !node.partitions.is_empty() {
            all.push(Finding::bad(
                Area::Broker,
                "nodes",
                format!("{name} has lost sight of {}", some(&node.partitions)),
                "the cluster is partitioned: what each side says may differ",
                "mend the network between the nodes, then restart those of the smaller side",
            ));
        }
        all.extend(resources(node));
    }
    if all.iter().all(|finding| finding.what != what) {
        all.push(Finding::good(Area::Broker, what, "none is in force"));
    }
    all
}

fn resources(node: &Node) -> Vec<Finding> {
    let mut all = Vec::new();
    if let (Some(free), Some(limit)) = (node.disk_free, node.disk_free_limit) {
        let seen = format!("{} has {} free, and stops publishers below {}", node.name, size(free), size(limit));
        let what = "disk of the broker";
        all.push(match free < limit.saturating_add(LITTLE_DISK) {
            true => Finding::warning(
                Area::Broker,
                what,
                seen,
                "when it is below, nothing can be published",
                "free disk in its data folder: `rabbitmq-diagnostics status` names it",
            ),
            false => Finding::good(Area::Broker, what, seen),
        });
        // Quorum queues write all their messages to disk.
        if limit < LITTLE_DISK / 16 {
            all.push(Finding::warning(
                Area::Broker,
                "disk limit of the broker",
                format!("{} stops publishers only below {}", node.name, size(limit)),
                "quorum queues may fill what is left before that, and the node ends",
                "set disk_free_limit.absolute = 2GB in rabbitmq.conf, or more",
            ));
        }
    }
    let much = |used: Option<u64>, most: Option<u64>| {
        let (used, most) = (used?, most.filter(|most| *most > 0)?);
        (used.saturating_mul(100) > most.saturating_mul(MUCH)).then_some((used, most))
    };
    if let Some((used, most)) = much(node.mem_used, node.mem_limit) {
        all.push(Finding::warning(
            Area::Broker,
            "memory of the broker",
            format!("{} uses {} of {}", node.name, size(used), size(most)),
            "above that, nothing can be published",
            "give it more memory, or raise vm_memory_high_watermark",
        ));
    }
    if let Some((used, most)) = much(node.fd_used, node.fd_total) {
        all.push(Finding::warning(
            Area::Broker,
            "open files of the broker",
            format!("{} uses {used} of {most}", node.name),
            "beyond that, it accepts no connections",
            "raise its limit: LimitNOFILE in its systemd unit",
        ));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::tests::{needs, place, told, topology};
    use super::*;
    use crate::inspect::doctor::finding::Grade;
    use crate::inspect::doctor::tests::have_fixes;
    use roundelay_broker::rabbit::examine::Feature;

    #[test]
    fn a_table_of_versions() {
        for (text, grade) in [
            ("3.8.34", Grade::Bad),
            ("3.10.8", Grade::Good),
            ("3.13.7", Grade::Good),
            ("4.0.0", Grade::Good),
            ("4.3.1", Grade::Good),
            ("4.4.0-rc.1", Grade::Good),
            ("4.5.0", Grade::Warning),
            ("5.0.0", Grade::Warning),
            ("main", Grade::Unknown),
        ] {
            assert_eq!(version(text).result, grade, "{text}");
        }
    }

    #[test]
    fn a_table_of_what_the_management_api_tells() {
        type Change = fn(&mut Told);
        fn node(told: &mut Told) -> &mut Node {
            &mut told.nodes.as_mut().unwrap()[0]
        }
        let table: [(Change, &str, Grade, &str); 11] = [
            (|t| node(t).running = false, "nodes", Grade::Bad, "start it again"),
            (|t| node(t).mem_alarm = true, "alarms", Grade::Bad, "vm_memory_high_watermark"),
            (|t| node(t).disk_free_alarm = true, "alarms", Grade::Bad, "free disk"),
            (|t| node(t).partitions = vec!["rabbit@i".into()], "nodes", Grade::Bad, "mend the network"),
            (|t| node(t).disk_free = Some(3 << 29), "disk of the broker", Grade::Warning, "free disk"),
            (
                |t| node(t).disk_free_limit = Some(50_000_000),
                "disk limit of the broker",
                Grade::Warning,
                "disk_free_limit",
            ),
            (|t| node(t).mem_used = Some(2), "memory of the broker", Grade::Warning, "more memory"),
            (
                |t| (node(t).fd_used, node(t).fd_total) = (Some(99), Some(100)),
                "open files of the broker",
                Grade::Warning,
                "LimitNOFILE",
            ),
            (
                |t| (t.nodes, t.alarm) = (Err(Withheld::Forbidden), Some(true)),
                "alarms",
                Grade::Bad,
                "rabbitmq-diagnostics alarms",
            ),
            (
                |t| (t.nodes, t.alarm) = (Err(Withheld::Forbidden), Some(false)),
                "disk and memory of the broker",
                Grade::Unknown,
                "set_user_tags ops monitoring",
            ),
            (
                |t| t.features = Ok(vec![Feature { name: "stream_queue".into(), state: "disabled".into() }]),
                "feature flags",
                Grade::Bad,
                "enable_feature_flag",
            ),
        ];
        let different = |told: Told| -> Vec<Finding> {
            let findings = management(Some(&Ok(Ok(told))), &place(), &topology(), &needs());
            have_fixes(&findings);
            findings.into_iter().filter(|finding| finding.result != Grade::Good).collect()
        };
        assert_eq!(different(told()), []);
        for (n, (change, what, grade, fix)) in table.into_iter().enumerate() {
            let mut told = told();
            change(&mut told);
            let findings = different(told);
            assert_eq!(findings.len(), 1, "{n}: {findings:#?}");
            assert_eq!((findings[0].what.as_str(), findings[0].result), (what, grade), "{n}");
            assert!(findings[0].fix.contains(fix), "{n}: {}", findings[0].fix);
        }
        let whole = [
            (None, Grade::Unknown, "set broker.management"),
            (Some(Err("no answer within 5s".into())), Grade::Bad, "rabbitmq-plugins enable"),
            (Some(Ok(Err(Untold::NoAnswer("refused".into())))), Grade::Bad, "rabbitmq-plugins enable"),
            (Some(Ok(Err(Untold::Refused("ops".into())))), Grade::Bad, "set_user_tags ops"),
        ];
        for (answer, grade, fix) in whole {
            let findings = management(answer.as_ref(), &place(), &topology(), &needs());
            assert_eq!((findings.len(), findings[0].result), (1, grade));
            assert!(findings[0].fix.contains(fix), "{findings:?}");
        }
    }
}
