//! `[throttles.<name>]`, checked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderName;
use roundelay_model::pacing::key::KeyPath;
use roundelay_model::pacing::slots::{Breaker, Limits, Window};
use roundelay_model::pacing::{BudgetSettings, ThrottleSettings};

use super::{fair, raw};
use crate::problems::Problems;
use crate::settings::{KindSettings, QueueSettings};

/// RabbitMQ takes a message back that is kept for 30 minutes, and a handler may take 24 of them.
const MAX_BLOCKED: Duration = Duration::from_secs(5 * 60);
/// Those who wait for a slot of their key hold up others that could start.
const BLOCKED_WITH_KEY: Duration = Duration::from_secs(2);
/// The largest number of starts in a window.
pub const MAX_ALLOWED: u32 = 1_000_000;
/// The longest window.
const MAX_WINDOW: Duration = Duration::from_secs(366 * 86_400);
/// The longest time that a broken upstream is left alone.
const MAX_BREAK: Duration = Duration::from_secs(86_400);

/// Checks all of them.
pub fn check(
    problems: &mut Problems,
    throttles: BTreeMap<String, raw::Throttle>,
) -> BTreeMap<String, ThrottleSettings> {
    throttles.into_iter().map(|(name, throttle)| (name.clone(), one(problems, &name, throttle))).collect()
}

fn one(problems: &mut Problems, name: &str, throttle: raw::Throttle) -> ThrottleSettings {
    let at = |key: &'static str| ["throttles", name, key];
    let ms = Duration::from_millis(1);
    problems.range(&at("allow"), throttle.allow, 1, MAX_ALLOWED);
    problems.range(&at("burst"), throttle.burst, 1, throttle.allow.max(1));
    problems.range(&at("per"), throttle.per.0, ms, MAX_WINDOW);
    for window in &throttle.also {
        problems.range(&at("also"), window.allow, 1, MAX_ALLOWED);
        problems.range(&at("also"), window.per.0, ms, MAX_WINDOW);
    }
    let least = if throttle.key.is_some() { BLOCKED_WITH_KEY } else { MAX_BLOCKED };
    let block = throttle.block.map_or(least, |block| block.0);
    problems.range(&at("block"), block, ms, MAX_BLOCKED);
    let key = throttle.key.as_deref().map(KeyPath::parse).transpose();
    let key = key.unwrap_or_else(|error| {
        problems.add(&at("key"), error);
        None
    });
    let shared = fair::path(problems, &at("fair"), throttle.fair.as_deref());
    if shared.is_some() && key.is_some() {
        let words = "shares one limit between tenants, and with `key` each value has a limit of its own; leave one of the \
                     two out";
        problems.add(&at("fair"), words);
    }
    let budget = throttle.budget.map(|budget| {
        let mut header = |key: &'static str, text| header(problems, &["throttles", name, "budget", key], text);
        BudgetSettings {
            remaining: header("remaining", budget.remaining),
            reset: header("reset", budget.reset),
            slow_below: budget.slow_below,
        }
    });
    let cost_header = throttle.cost_header.map(|text| header(problems, &at("cost_header"), text));
    let breaker = throttle.breaker.map(|breaker| {
        let at = |key: &'static str| ["throttles", name, "breaker", key];
        problems.range(&at("failures"), breaker.failures, 1, MAX_ALLOWED);
        problems.range(&at("wait"), breaker.wait.0, Duration::from_secs(1), MAX_BREAK);
        problems.range(&at("longest"), breaker.longest.0, breaker.wait.0, MAX_BREAK);
        let (wait, longest) = (breaker.wait.0, breaker.longest.0);
        Breaker { failures: breaker.failures, wait, longest, patience: wait }
    });
    let window = |allow, per| Window { allow, per };
    let limits = Limits {
        window: window(throttle.allow, throttle.per.0),
        burst: throttle.burst,
        also: throttle.also.iter().map(|w| window(w.allow, w.per.0)).collect(),
    };
    ThrottleSettings {
        limits: Arc::new(limits),
        scope: throttle.scope,
        key,
        fair: shared,
        block,
        budget,
        cost_header,
        breaker,
    }
}

fn header(problems: &mut Problems, path: &[&str], text: String) -> String {
    if let Err(error) = HeaderName::try_from(&text) {
        problems.add(path, format!("`{text}` is not a header's name: {error}"));
    }
    text
}

/// The throttles that may pace the runs of a kind.
pub fn throttles_of<'q>(
    kind: &KindSettings,
    queues: &'q BTreeMap<String, QueueSettings>,
) -> impl Iterator<Item = &'q String> {
    let queue = kind.queue.as_deref();
    // Of a template only its beginning is known.
    let begins = queue.and_then(|queue| queue.split("{{").next());
    let possible = move |known: &str| {
        begins.is_some_and(|begins| {
            if begins.len() == queue.map_or(0, str::len) { known == begins } else { known.starts_with(begins) }
        })
    };
    queues.iter().filter(move |(known, _)| possible(known)).filter_map(|(_, queue)| queue.throttle.as_ref())
}

/// A run that costs more than its throttle ever allows at once would never start.
pub fn check_cost(
    problems: &mut Problems,
    name: &str,
    kind: &KindSettings,
    queues: &BTreeMap<String, QueueSettings>,
    throttles: &BTreeMap<String, ThrottleSettings>,
) {
    let tightest = throttles_of(kind, queues)
        .filter_map(|used| Some((used, throttles.get(used)?.limits.max_cost())))
        .min_by_key(|(_, most)| *most);
    if let Some((throttle, most)) = tightest.filter(|(_, most)| *most < kind.cost) {
        let message = format!(
            "a run costs {}, and [throttles.{throttle}] allows {most} in one of its windows, so it could never start",
            kind.cost
        );
        problems.add(&["kinds", name, "cost"], message);
    }
}
/// Refuses limits that the configuration could not have either, or with which runs of the throttle `name` could never
/// start.
///
/// # Errors
/// Says what is possible.
pub fn check_limits(name: &str, window: Window, burst: u32, config: &super::Config) -> Result<(), String> {
    let Window { allow, per } = window;
    if allow == 0 {
        return Err("allow: 0 would let nothing start ever; hold the throttle to stop it for a while".into());
    }
    if allow > MAX_ALLOWED {
        return Err(format!("allow: {allow} is out of range; from 1 to {MAX_ALLOWED} is possible"));
    }
    let whole = per >= Duration::from_millis(1) && per <= MAX_WINDOW && per.subsec_nanos().is_multiple_of(1_000_000);
    if !whole {
        return Err("per: whole milliseconds from 1ms to 366d are possible".into());
    }
    if burst == 0 {
        return Err("burst: 0 is out of range; 1 spreads starts evenly".into());
    }
    if burst > allow {
        return Err(format!("burst: {burst} is more than the window allows, which is {allow}"));
    }
    match config.costliest(name).filter(|(_, cost)| *cost > allow) {
        Some((kind, cost)) => {
            Err(format!("a run of {kind} costs {cost}, and with an allowance of {allow} it could never start"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Config;

    #[test]
    fn limits_that_would_be_no_limits_are_refused() {
        let config = Config::parse("", "r.toml", []).unwrap();
        let check = |allow, per_ms, burst| {
            check_limits("ios", Window { allow, per: Duration::from_millis(per_ms) }, burst, &config)
        };
        let table = [
            (0, 60_000, 1, "would let nothing start ever"),
            (1_000_001, 60_000, 1, "from 1 to 1000000 is possible"),
            (5, 0, 1, "from 1ms to 366d"),
            (5, 366 * 86_400_000 + 1, 1, "from 1ms to 366d"),
            (5, 60_000, 0, "1 spreads starts evenly"),
            (5, 60_000, 6, "burst: 6 is more than the window allows, which is 5"),
        ];
        for (allow, per_ms, burst, words) in table {
            let error = check(allow, per_ms, burst).unwrap_err();
            assert!(error.contains(words), "`{error}` should contain `{words}`");
        }
        assert_eq!(check(5, 60_000, 5), Ok(()));
        assert!(check_limits("ios", Window { allow: 5, per: Duration::from_micros(1_500) }, 5, &config).is_err());
        let text = "[throttles.ios]\nallow = 9\nper = \"1m\"\n[queues.work]\nthrottle = \"ios\"\n[kinds.dear]\nevery = \"1m\"\nqueue = \"work\"\ncost = 8\n";
        let config = Config::parse(text, "r.toml", []).unwrap();
        let error = check_limits("ios", Window { allow: 5, per: Duration::from_secs(60) }, 1, &config).unwrap_err();
        assert!(error.contains("a run of dear costs 8"), "{error}");
    }
}
