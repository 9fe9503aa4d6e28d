//! What a new configuration comes to in a worker that runs (pure): what the worker can take over at once, and what
//! waits for its next start.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roundelay_broker::BrokerUrl;
use roundelay_handler::exec::ExecSettings;
use roundelay_handler::http::HttpSettings;
use roundelay_model::pacing::ThrottleSettings;
use roundelay_model::pacing::fair::Configured;
use roundelay_model::schedule::{Exclusions, Rhythm};

use crate::recurrence::Recurrence;
use crate::settings::{Config, HandlerSettings, KindSettings, QueueSettings};

/// What a new configuration comes to.
#[derive(Debug)]
pub struct Change {
    /// The settings of kinds from now on.
    pub kinds: BTreeMap<String, KindSettings>,
    /// Kinds of which something has changed.
    pub changed: Vec<String>,
    /// Kinds whose chains come at other times.
    pub moved: BTreeSet<String>,
    /// Throttles that allow something else, or another way.
    pub throttles: BTreeMap<String, ThrottleSettings>,
    /// The shares of tenants, if they are others.
    pub shares: Option<Configured>,
    /// A calendar is another.
    pub calendars: bool,
    /// There are other keys, or another one seals.
    pub keys: bool,
    /// What stays as it was until the worker is started again.
    pub fixed: Vec<String>,
}

/// Compares two configurations (pure).
pub fn compare(old: &Config, new: &Config) -> Change {
    let mut change = Change {
        kinds: BTreeMap::new(),
        changed: Vec::new(),
        moved: BTreeSet::new(),
        throttles: BTreeMap::new(),
        shares: (old.shares() != new.shares()).then(|| new.shares()),
        calendars: old.calendars != new.calendars,
        keys: old.encryption != new.encryption,
        fixed: Vec::new(),
    };
    let same_broker = match (&old.broker.url, &new.broker.url) {
        (BrokerUrl::Amqp(old), BrokerUrl::Amqp(new)) => old == new,
        (old, new) => said(old) == said(new),
    };
    for (name, same) in [
        (
            "[broker]",
            same_broker && old.broker.management == new.broker.management && said(&old.broker) == said(&new.broker),
        ),
        ("[ledger]", old.ledger.url == new.ledger.url && said(&old.ledger) == said(&new.ledger)),
        ("[worker]", said(&old.worker) == said(&new.worker)),
        ("[api]", said(&old.api) == said(&new.api)),
        ("[catch_up]", said(&old.catch_up) == said(&new.catch_up)),
        ("[tracing]", old.tracing == new.tracing),
        ("[queues]", of_queues(old) == of_queues(new)),
    ] {
        if !same {
            change.fixed.push(name.into());
        }
    }
    for (name, is) in &new.throttles {
        match old.throttles.get(name) {
            None => change.fixed.push(format!("[throttles.{name}], which is new")),
            Some(was) => {
                if was.fair != is.fair {
                    change.fixed.push(format!("throttles.{name}.fair"));
                }
                let is = ThrottleSettings { fair: was.fair.clone(), ..is.clone() };
                if *was != is {
                    change.throttles.insert(name.clone(), is);
                }
            }
        }
    }
    for (name, was) in &old.kinds {
        let Some(is) = new.kinds.get(name) else {
            change.fixed.push(format!("[kinds.{name}], which is gone"));
            change.kinds.insert(name.clone(), was.clone());
            continue;
        };
        let mut is = is.clone();
        let by_headers = |kind: &KindSettings| kind.recurrence.as_ref().is_some_and(|r| r.freshness);
        if was.handler != is.handler {
            let differs = of_handler(name, &was.handler, &is.handler);
            // What holds for all programs is told once.
            let new: Vec<String> = differs.into_iter().filter(|setting| !change.fixed.contains(setting)).collect();
            change.fixed.extend(new);
        }
        if by_headers(was) != by_headers(&is) {
            change.fixed.push(format!("kinds.{name}.next_in.from_headers"));
        }
        if was.roster != is.roster {
            change.fixed.push(format!("kinds.{name}.roster"));
        }
        if was.priority != is.priority {
            change.fixed.push(format!("kinds.{name}.priority"));
        }
        if was.reconcile != is.reconcile {
            change.fixed.push(format!("kinds.{name}.reconcile"));
        }
        (is.handler, is.roster) = (was.handler.clone(), was.roster.clone());
        is.reconcile.clone_from(&was.reconcile);
        is.priority = was.priority;
        if said(was) != said(&is) {
            change.changed.push(name.clone());
        }
        if let Some(now) = when(&is.recurrence)
            && when(&was.recurrence) != Some(now)
        {
            change.moved.insert(name.clone());
        }
        change.kinds.insert(name.clone(), is);
    }
    for name in new.kinds.keys().filter(|name| !old.kinds.contains_key(*name)) {
        change.fixed.push(format!("[kinds.{name}], which is new"));
    }
    change
}

/// The settings of a kind's handler that are not what they were.
fn of_handler(kind: &str, was: &HandlerSettings, is: &HandlerSettings) -> Vec<String> {
    let (allow, other) = match (was, is) {
        (HandlerSettings::Exec(was), HandlerSettings::Exec(is)) => {
            let other = ExecSettings { allow: is.allow.clone(), ..was.clone() } != *is;
            ((was.allow != is.allow).then(|| "exec.allow".to_owned()), other)
        }
        (HandlerSettings::Http(was), HandlerSettings::Http(is)) => {
            let other = HttpSettings { allow: is.allow.clone(), ..was.clone() } != *is;
            ((was.allow != is.allow).then(|| format!("kinds.{kind}.handler.http.allow")), other)
        }
        _ => (None, true),
    };
    allow.into_iter().chain(other.then(|| format!("kinds.{kind}.handler"))).collect()
}

/// What stays as it was of the queues. By which part of a job they are fair goes with messages and with chains.
fn of_queues(config: &Config) -> String {
    let fixed =
        |(name, queue): (&String, &QueueSettings)| (name.clone(), QueueSettings { most: None, ..queue.clone() });
    said(&config.queues.iter().map(fixed).collect::<BTreeMap<_, _>>())
}

/// What a change comes to: taken over at once, or (false) only with a restart; nothing when all is as it was.
#[cfg(test)]
pub fn comes_to(old: &Config, new: &Config) -> Option<bool> {
    let Change { changed, throttles, shares, fixed, calendars, keys, .. } = compare(old, new);
    let same =
        fixed.is_empty() && changed.is_empty() && throttles.is_empty() && shares.is_none() && !calendars && !keys;
    (!same).then_some(fixed.is_empty())
}

/// Settings as they show themselves, for those that cannot be compared.
fn said(settings: &impl std::fmt::Debug) -> String {
    format!("{settings:?}")
}

/// The settings of a schedule that say when a sleeping chain wakes.
fn when(recurrence: &Option<Recurrence>) -> Option<(&Rhythm, Duration, bool, &Exclusions)> {
    let schedule = &recurrence.as_ref()?.schedule;
    Some((&schedule.rhythm, schedule.jitter, schedule.spread_phase, &schedule.excluded))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        [queues.work]
        [throttles.slow]
        allow = 5
        per = "1m"
        [kinds.sync]
        every = "1h"
        handler.exec.argv = ["/bin/true"]
        [kinds.report]
        cron = "@daily"
        handler.exec.argv = ["/bin/true"]
        [kinds.single]
        handler.exec.argv = ["/bin/true"]
    "#;

    fn config(text: &str) -> Config {
        Config::parse(text, "r.toml", []).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_throttle_allows_something_else_from_now_on() {
        let change = compare(&config(TEXT), &config(&TEXT.replace("allow = 5", "allow = 6")));
        assert_eq!(change.throttles["slow"].limits.window.allow, 6);
        assert!(change.fixed.is_empty() && change.changed.is_empty());
    }

    #[test]
    fn the_shares_of_tenants_are_others_from_now_on() {
        let fair = TEXT.replace("[queues.work]", "[queues.work]\nfair = 'owner'\n[tenants.acme]\nmost = 3");
        let heavy = fair.replace("most = 3", "most = 3\nweight = 5");
        let most = fair.replace("fair = 'owner'", "fair = 'owner'\nmost = 7");
        for (text, most, weight) in [(heavy, None, 5), (most, Some(7), 1)] {
            let change = compare(&config(&fair), &config(&text));
            let shares = change.shares.unwrap();
            assert_eq!((shares.queues.get("work").copied(), shares.tenants["acme"].weight), (most, weight));
            assert!(change.fixed.is_empty());
        }
        assert_eq!(compare(&config(&fair), &config(TEXT)).fixed, ["[queues]"], "of what it is fair waits");
        let throttle = TEXT.replace("allow = 5", "allow = 6\nfair = 'owner'");
        let change = compare(&config(TEXT), &config(&throttle));
        assert_eq!(change.fixed, ["throttles.slow.fair"]);
        assert_eq!((change.throttles["slow"].limits.window.allow, &change.throttles["slow"].fair), (6, &None));
    }

    #[test]
    fn what_handlers_may_reach_is_named_itself() {
        let http = format!("{TEXT}[kinds.call]\nhandler.http = {{ url = \"http://h/\", allow = [\"h\"] }}\n");
        for (from, to, fixed) in [
            ("[queues.work]", "[exec]\nallow = [\"/bin\"]\n[queues.work]", &["exec.allow"][..]),
            (
                "handler.exec.argv = [\"/bin/true\"]\n        [kinds.report]",
                "handler.exec.argv = [\"/bin/false\"]\n        [exec]\nallow = [\"/bin\"]\n[kinds.report]",
                &["exec.allow", "kinds.sync.handler"],
            ),
            ("[\"h\"]", "[\"h\", \"i\"]", &["kinds.call.handler.http.allow"]),
            ("http://h/", "http://h/x", &["kinds.call.handler"]),
            (
                "url = \"http://h/\", allow = [\"h\"]",
                "url = \"http://h/x\"",
                &["kinds.call.handler.http.allow", "kinds.call.handler"],
            ),
        ] {
            let text = http.replace(from, to);
            assert_ne!(text, http, "{from}");
            let mut named = compare(&config(&http), &config(&text)).fixed;
            named.sort_by_key(|setting| fixed.iter().position(|expected| expected == setting));
            assert_eq!(named, fixed, "{from} → {to}");
        }
    }

    #[test]
    fn keys_change_at_once() {
        let key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQ==";
        let with = |seal: &str| config(&format!("{TEXT}[encryption]\nseal = '{seal}'\nkeys = {{ a = '{key}' }}\n"));
        for (old, new, changes) in [
            (config(TEXT), with(""), true),
            (with(""), with("a"), true),
            (with("a"), config(TEXT), true),
            (with("a"), with("a"), false),
        ] {
            let change = compare(&old, &new);
            assert_eq!((change.keys, change.fixed.len()), (changes, 0));
        }
    }

    #[test]
    fn a_table_of_changes() {
        type Names = &'static [&'static str];
        let table: [(&str, &str, Names, Names, Names); 13] = [
            ("", "", &[], &[], &[]),
            ("every = \"1h\"", "every = \"5m\"", &["sync"], &["sync"], &[]),
            ("every = \"1h\"", "every = \"1h\"\ncooldown = \"1m\"", &["sync"], &[], &[]),
            ("every = \"1h\"", "every = \"1h\"\ntimeout = \"1m\"", &["sync"], &[], &[]),
            ("cron = \"@daily\"", "", &["report"], &[], &[]),
            ("[kinds.single]", "[kinds.single]\nevery = \"1m\"", &["single"], &["single"], &[]),
            ("[throttles.slow]", "[throttles.fast]", &[], &[], &["[throttles.fast], which is new"]),
            ("[queues.work]", "[queues.work]\n[queues.more]", &[], &[], &["[queues]"]),
            ("[queues.work]", "[queues.work]\n[tracing]\nheaders.a = \"b\"", &[], &[], &["[tracing]"]),
            (
                "[kinds.single]\n        handler.exec.argv = [\"/bin/true\"]",
                "[kinds.single]\n        handler.exec.argv = [\"/bin/false\"]",
                &[],
                &[],
                &["kinds.single.handler"],
            ),
            // What is not shown counts, too.
            (
                "handler.exec.argv = [\"/bin/true\"]\n        [kinds.report]",
                "handler.exec = { argv = [\"/bin/true\"], env = { TOKEN = \"other\" } }\n        [kinds.report]",
                &[],
                &[],
                &["kinds.sync.handler"],
            ),
            ("[queues.work]", "[broker]\nmanagement = \"http://u:other@h\"\n[queues.work]", &[], &[], &["[broker]"]),
            (
                "[kinds.single]",
                "[kinds.other]",
                &[],
                &[],
                &["[kinds.single], which is gone", "[kinds.other], which is new"],
            ),
        ];
        let old = config(TEXT);
        for (from, to, changed, moved, fixed) in table {
            let text = if from.is_empty() { TEXT.to_owned() } else { TEXT.replace(from, to) };
            assert!(from.is_empty() || text != TEXT, "{from}");
            let change = compare(&old, &config(&text));
            let label = format!("{from} → {to}");
            assert_eq!(change.changed, changed, "{label}");
            assert_eq!(change.moved.iter().map(String::as_str).collect::<Vec<_>>(), moved, "{label}");
            assert_eq!(change.fixed, fixed, "{label}");
            assert!(change.throttles.is_empty(), "{label}");
            assert!(change.kinds.keys().eq(old.kinds.keys()), "{label}: this worker has handlers for these alone");
        }
    }
}
