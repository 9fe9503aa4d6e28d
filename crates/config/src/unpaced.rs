//! Which queues without a throttle lead to an upstream that has one elsewhere.
//!
//! A limit holds for its queues alone. A new queue, or a kind that moves to one, easily calls the same host past it.

use std::collections::{BTreeMap, BTreeSet};

use crate::settings::{Config, HandlerSettings, KindSettings};

/// A queue without a throttle whose kinds call an upstream that a throttle limits on other queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpaced {
    /// The queue.
    pub queue: String,
    /// Host and port of the upstream, as the kinds' `handler.http.url` has them.
    pub upstream: String,
    /// The kinds of this queue that call it.
    pub kinds: Vec<String>,
    /// The throttles that limit it on other queues.
    pub throttles: Vec<String>,
}

/// All of them, by queue and upstream (pure). A throttle is known to limit an upstream when a kind on one of its queues
/// calls that host. Kinds whose queue the publisher or a column alone says are left out, since they may be on any.
pub fn unpaced(config: &Config) -> Vec<Unpaced> {
    let mut limited: BTreeMap<&str, BTreeSet<&String>> = BTreeMap::new();
    let mut free: BTreeMap<(&String, &str), Vec<&String>> = BTreeMap::new();
    for (name, kind) in &config.kinds {
        let (Some(upstream), Some(template)) = (upstream(kind), &kind.queue) else { continue };
        for (queue, settings) in config.queues.iter().filter(|(queue, _)| may_be(template, queue)) {
            match &settings.throttle {
                Some(throttle) => _ = limited.entry(upstream).or_default().insert(throttle),
                None => free.entry((queue, upstream)).or_default().push(name),
            }
        }
    }
    let told = free.into_iter().filter_map(|((queue, upstream), kinds)| {
        let throttles = limited.get(upstream)?.iter().map(|name| (*name).clone()).collect();
        let kinds = kinds.into_iter().cloned().collect();
        Some(Unpaced { queue: queue.clone(), upstream: upstream.to_owned(), kinds, throttles })
    });
    told.collect()
}

/// Host and port that a kind calls, unless a template says them (pure).
fn upstream(kind: &KindSettings) -> Option<&str> {
    let HandlerSettings::Http(http) = &kind.handler else { return None };
    let (_, rest) = http.url.expose().split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    // User and password are not part of where it leads.
    let host = authority.rsplit('@').next()?;
    (!host.is_empty() && !host.contains('{')).then_some(host)
}

/// Whether a template for a queue can give this name: its literal parts are there, in their order (pure). One without
/// any says nothing about the queue.
fn may_be(template: &str, queue: &str) -> bool {
    let mut literal = vec![String::new()];
    let mut rest = template;
    while let Some(at) = rest.find(['{']) {
        let (before, from) = rest.split_at(at);
        literal.last_mut().into_iter().for_each(|part| part.push_str(before));
        let Some(end) = from.find("}}").or_else(|| from.find("%}")) else { return false };
        literal.push(String::new());
        rest = &from[end + 2..];
    }
    literal.last_mut().into_iter().for_each(|part| part.push_str(rest));
    let [first, between @ .., last] = literal.as_slice() else { return template == queue };
    if literal.iter().all(String::is_empty) {
        return false;
    }
    let Some(mut rest) = queue.strip_prefix(first.as_str()).and_then(|rest| rest.strip_suffix(last.as_str())) else {
        return false;
    };
    between.iter().all(|part| {
        let found = rest.split_once(part.as_str());
        found.is_some_and(|(_, after)| {
            rest = after;
            true
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUES: &str = "[throttles.t]\nallow = 1\nper = '1s'\n[queues.a]\nthrottle = 't'\n[queues.b]\n[queues.c]\n";

    /// queue / upstream / kinds / throttles.
    fn told(kinds: &[(&str, &str, &str)]) -> Vec<String> {
        let kinds = kinds
            .iter()
            .map(|(name, queue, url)| format!("[kinds.{name}]\nqueue = '{queue}'\nhandler.http.url = '{url}'\n"));
        let text = format!("{QUEUES}{}", kinds.collect::<String>());
        let config = Config::parse(&text, "r.toml", []).unwrap_or_else(|error| panic!("{error}"));
        let told = unpaced(&config).into_iter();
        told.map(|u| format!("{} / {} / {} / {}", u.queue, u.upstream, u.kinds.join(" "), u.throttles.join(" ")))
            .collect()
    }

    #[test]
    fn a_kind_that_goes_past_an_upstream_s_throttle_is_told() {
        let paced = ("paced", "a", "https://store.example/apps/{{ key }}");
        for (kinds, expected) in [
            // All is limited, nothing is, or the hosts differ.
            (vec![paced], vec![]),
            (vec![("x", "b", "https://store.example/")], vec![]),
            (vec![paced, ("x", "b", "https://other.example/apps/7")], vec![]),
            (vec![paced, ("x", "b", "https://store.example:8443/apps/7")], vec![]),
            // The same host on a queue without a throttle, whatever the path and the credentials.
            (vec![paced, ("x", "b", "https://store.example")], vec!["b / store.example / x / t"]),
            (vec![paced, ("x", "b", "https://u:p@store.example/?q")], vec!["b / store.example / x / t"]),
            (
                vec![paced, ("x", "b", "https://store.example/1"), ("y", "b", "https://store.example/2")],
                vec!["b / store.example / x y / t"],
            ),
            (
                vec![paced, ("x", "b", "https://store.example/1"), ("y", "c", "https://store.example/2")],
                vec!["b / store.example / x / t", "c / store.example / y / t"],
            ),
            // A host that follows from the job is not known before there is one.
            (vec![paced, ("x", "b", "https://{{ payload.host }}/7")], vec![]),
        ] {
            assert_eq!(told(&kinds), expected, "{kinds:?}");
        }
    }

    #[test]
    fn a_kind_may_be_on_each_queue_that_its_template_can_give() {
        for (template, queue, expected) in [
            ("sync-ios", "sync-ios", true),
            ("sync-ios", "sync-android", false),
            ("sync-{{ platform }}", "sync-ios", true),
            ("sync-{{ platform }}", "charts-ios", false),
            ("sync-{{ platform }}-low", "sync-ios-low", true),
            ("sync-{{ platform }}-low", "sync-ios-high", false),
            ("{{ a }}-x-{{ b }}", "1-x-2", true),
            ("{{ a }}-x-{{ b }}", "1-y-2", false),
            ("{% if a %}fast{% endif %}", "fast", true),
            ("{{ queue }}", "sync-ios", false),
            ("", "sync-ios", false),
        ] {
            assert_eq!(may_be(template, queue), expected, "{template} {queue}");
        }
    }
}
