//! The permissions that a worker's user needs, and those it has (pure).

use std::collections::BTreeSet;

use regex_lite::Regex;
use roundelay_broker::rabbit::examine::{Permissions, Place, Told, Withheld};
use roundelay_broker::rabbit::users::Role;
use roundelay_model::topology::Topology;

use crate::inspect::doctor::finding::{Area, Finding, some, word};

/// The permissions that a worker's user needs.
pub(super) struct Needs(Permissions);

impl Needs {
    /// For a worker that declares missing queues, or for one that does not.
    pub(super) fn of(topology: &Topology, declares: bool) -> Self {
        if !declares {
            return Self(Role::Worker.permissions(topology));
        }
        let (jobs, suffix) = (topology.names.jobs(), ".jobs");
        let prefix = jobs.strip_suffix(suffix).unwrap_or(&jobs);
        let own = format!("{prefix}.");
        let others = topology.queues.iter().map(|queue| queue.name.as_str()).filter(|name| !name.starts_with(&own));
        let others = others.map(|name| format!("|{}", regex_lite::escape(name)));
        let pattern = format!("^({}\\..*{})$", regex_lite::escape(prefix), others.collect::<String>());
        Self(Permissions { configure: pattern.clone(), write: pattern.clone(), read: pattern })
    }

    /// The arguments of `rabbitmqctl set_permissions` after the user's name: all that a worker needs, and no more.
    pub(super) fn command(&self) -> String {
        let Permissions { configure, write, read } = &self.0;
        format!("'{configure}' '{write}' '{read}'")
    }
}

/// Whether a permission pattern of RabbitMQ covers a name; nothing when the pattern has syntax that only PCRE knows.
fn covers(pattern: &str, name: &str) -> Option<bool> {
    // An empty pattern matches nothing, and a pattern without anchors matches anywhere in the name.
    let pattern = if pattern.is_empty() { "^$" } else { pattern };
    Some(Regex::new(pattern).ok()?.is_match(name))
}

/// The permissions that the user of `place` needs and lacks.
pub(super) fn permissions(told: &Told, place: &Place, topology: &Topology, needs: &Needs) -> Vec<Finding> {
    let what = "permissions";
    let Place { vhost, user, .. } = place;
    let grant = format!("`rabbitmqctl set_permissions -p {} {} {}`", word(vhost), word(user), needs.command());
    let follows = "a worker does that, and is refused where it may not";
    let permissions = match &told.permissions {
        Ok(Some(permissions)) => permissions,
        Ok(None) => {
            let seen = format!("{user} has none in the virtual host {vhost}");
            return vec![Finding::bad(Area::Broker, what, seen, follows, grant)];
        }
        Err(withheld) => {
            let why = match withheld {
                Withheld::Forbidden => {
                    format!("the user {} of the management API may not see those of others", told.user)
                }
                Withheld::Failed(why) => why.clone(),
            };
            let fix = format!(
                "`rabbitmqctl list_user_permissions {}` tells them; for the virtual host {vhost} they must cover what \
                 {grant} grants. With the tag administrator, this can see them",
                word(user)
            );
            return vec![Finding::unknown(Area::Broker, what, why, fix)];
        }
    };
    let Permissions { configure, write, read } = permissions;
    let names: BTreeSet<&str> = (topology.exchanges.iter().map(|exchange| exchange.name.as_str()))
        .chain(topology.queues.iter().map(|queue| queue.name.as_str()))
        .collect();
    let mut all = Vec::new();
    let verbs =
        [("configure", configure, &needs.0.configure), ("write", write, &needs.0.write), ("read", read, &needs.0.read)];
    for (verb, pattern, needed) in verbs {
        let lacking: Option<Vec<&str>> = names
            .iter()
            .filter(|name| covers(needed, name) == Some(true))
            .filter_map(|name| match covers(pattern, name) {
                Some(true) => None,
                Some(false) => Some(Some(*name)),
                None => Some(None),
            })
            .collect();
        match lacking {
            None => all.push(Finding::unknown(
                Area::Broker,
                what,
                format!("what `{pattern}` lets {user} {verb} cannot be worked out here"),
                format!("write it without look-around and back-references, for example {grant}"),
            )),
            Some(lacking) if !lacking.is_empty() => all.push(Finding::bad(
                Area::Broker,
                what,
                format!("{user} may not {verb} {} (only `{pattern}`)", some(&lacking)),
                follows,
                grant.clone(),
            )),
            Some(_) => {}
        }
    }
    if all.is_empty() {
        let seen = format!("{user} may do all that a worker does with the {} names in {vhost}", names.len());
        all.push(Finding::good(Area::Broker, what, seen));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::tests::{needs, place, told, topology};
    use super::*;
    use crate::inspect::doctor::finding::Grade;
    use crate::inspect::doctor::tests::have_fixes;

    #[test]
    fn a_table_of_permissions() {
        let own = r"^(r\..*|sync-a|w\.b)$";
        assert!(needs().command().starts_with(r"'^(r\..*|sync\-a|w\.b)$' '^("), "{}", needs().command());
        let all = [".*", ".*", ".*"];
        /// Patterns to configure, write and read, and the expected findings.
        type Row<'a> = ([&'a str; 3], &'a [(Grade, &'a str)]);
        let table: [Row<'_>; 7] = [
            (all, &[(Grade::Good, "ann may do all that a worker does")]),
            ([own, own, own], &[(Grade::Good, "ann may")]),
            // Without anchors a pattern matches anywhere.
            (["r|w|sync", ".*", ""], &[(Grade::Bad, "may not read r.chores")]),
            (["^$", ".*", ".*"], &[(Grade::Bad, "may not configure r.chores, r.delay.100s, r.delay.105s and")]),
            ([r"^r\.", ".*", ".*"], &[(Grade::Bad, "may not configure sync-a, w.b (only")]),
            (["", "", ".*"], &[(Grade::Bad, "may not configure"), (Grade::Bad, "may not write")]),
            (["(?!x).*", ".*", ".*"], &[(Grade::Unknown, "cannot be worked out here")]),
        ];
        for ([configure, write, read], expected) in table {
            let [configure, write, read] = [configure, write, read].map(str::to_owned);
            let told = Told { permissions: Ok(Some(Permissions { configure, write, read })), ..told() };
            let findings = permissions(&told, &place(), &topology(), &needs());
            have_fixes(&findings);
            assert_eq!(findings.len(), expected.len(), "{findings:#?}");
            for (finding, (grade, seen)) in findings.iter().zip(expected) {
                assert_eq!(finding.result, *grade, "{finding:?}");
                assert!(finding.seen.contains(seen), "{finding:?}");
            }
        }
        for (answer, grade) in [(Ok(None), Grade::Bad), (Err(Withheld::Forbidden), Grade::Unknown)] {
            let findings = permissions(&Told { permissions: answer, ..told() }, &place(), &topology(), &needs());
            assert_eq!((findings.len(), findings[0].result), (1, grade));
            assert!(findings[0].fix.contains("set_permissions -p v ann"), "{findings:?}");
        }
    }

    #[test]
    fn a_worker_that_declares_nothing_needs_less() {
        let Permissions { configure, write, read } = Role::Worker.permissions(&topology());
        let told = Told { permissions: Ok(Some(Permissions { configure, write, read })), ..told() };
        for (declares, grade) in [(false, Grade::Good), (true, Grade::Bad)] {
            let findings = permissions(&told, &place(), &topology(), &Needs::of(&topology(), declares));
            have_fixes(&findings);
            assert_eq!(findings[0].result, grade, "{findings:?}");
        }
        let nothing = Permissions { configure: "^$".into(), write: "^$".into(), read: "^$".into() };
        let told = Told { permissions: Ok(Some(nothing)), ..told };
        let findings = permissions(&told, &place(), &topology(), &Needs::of(&topology(), false));
        let seen: Vec<&str> = findings.iter().map(|finding| finding.seen.as_str()).collect();
        assert_eq!(seen.len(), 2, "{seen:?}");
        assert!(seen[0].starts_with("ann may not write r.delay.") && seen[1].starts_with("ann may not read r.chores"));
    }
}
