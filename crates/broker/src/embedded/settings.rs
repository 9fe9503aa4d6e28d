//! What a queue's arguments and the policy on it come to (pure).

use std::time::Duration;

use roundelay_model::topology::Argument;
use serde_json::{Map, Value};

use crate::embedded::profile::Profile;

/// The definition of a policy.
pub(super) type Definition = Map<String, Value>;

/// RabbitMQ 4's delivery limit where nothing else is said.
const DELIVERY_LIMIT: u64 = 20;

/// How a queue works.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    /// How long a message may wait.
    pub(super) ttl: Option<Duration>,
    /// How often a message may come back before it is dead-lettered.
    pub(super) delivery_limit: Option<u64>,
    /// Whether that counts what is put back, besides what comes back because its channel has gone.
    pub(super) requeues_count: bool,
    /// Whether what is put back goes behind all else where there is no limit: 3.10 and 4.0 could not shorten
    /// its log behind a message that is put back for ever.
    pub(super) requeues_to_tail: bool,
    /// What becomes of what has waited too long or come back too often.
    pub(super) dead_letter: DeadLetter,
    /// How long the queue may be without a consumer before it is deleted.
    pub(super) expires: Option<Duration>,
}

/// What becomes of messages that a queue gives up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum DeadLetter {
    /// They are dropped.
    #[default]
    Nowhere,
    /// They go to this exchange, and are lost where that has no queue for them.
    AtMostOnce(String),
    /// They go to this exchange, and are kept until that has a queue for them.
    AtLeastOnce(String),
}

impl Settings {
    /// What these arguments and this policy come to: the shorter of two times; the policy's overflow
    /// before the argument's, but the arguments of dead-lettering before the policy's.
    pub(super) fn new(profile: Profile, arguments: &[(&'static str, Argument)], policy: Option<&Definition>) -> Self {
        let number = |name: &str| policy.and_then(|policy| policy.get(name)?.as_i64());
        let text = |name: &str| policy.and_then(|policy| policy.get(name)?.as_str());
        let shortest = |argument: &str, policy: &str| {
            let both = [argument_number(arguments, argument), number(policy)];
            let shortest = both.into_iter().flatten().min();
            shortest.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
        };
        let overflow = text("overflow").or_else(|| argument_text(arguments, "x-overflow"));
        let strategy = argument_text(arguments, "x-dead-letter-strategy").or_else(|| text("dead-letter-strategy"));
        let exchange = argument_text(arguments, "x-dead-letter-exchange").or_else(|| text("dead-letter-exchange"));
        let dead_letter = match exchange.map(str::to_owned) {
            None => DeadLetter::Nowhere,
            Some(exchange) if strategy == Some("at-least-once") && overflow == Some("reject-publish") => {
                DeadLetter::AtLeastOnce(exchange)
            }
            Some(exchange) => DeadLetter::AtMostOnce(exchange),
        };
        let limits = [argument_number(arguments, "x-delivery-limit"), number("delivery-limit")];
        let limits = || limits.into_iter().flatten();
        let limit = if limits().any(|limit| limit < 0) { limits().max() } else { limits().min() };
        Self {
            ttl: shortest("x-message-ttl", "message-ttl"),
            // A negative one lifts the limit. RabbitMQ 3.10 does not take it.
            delivery_limit: match (limit, profile) {
                (Some(limit), _) => u64::try_from(limit).ok(),
                (None, Profile::Rabbit310) => None,
                (None, _) => Some(DELIVERY_LIMIT),
            },
            requeues_count: profile < Profile::Rabbit4,
            requeues_to_tail: profile < Profile::Rabbit4,
            dead_letter,
            expires: shortest("x-expires", "expires"),
        }
    }
}

/// The text of an argument.
pub(super) fn argument_text<'a>(arguments: &'a [(&'static str, Argument)], wanted: &str) -> Option<&'a str> {
    arguments.iter().find_map(|(name, value)| match value {
        Argument::Text(text) if *name == wanted => Some(text.as_str()),
        _ => None,
    })
}

/// The number of an argument.
fn argument_number(arguments: &[(&'static str, Argument)], wanted: &str) -> Option<i64> {
    arguments.iter().find_map(|(name, value)| match value {
        Argument::Number(number) if *name == wanted => Some(*number),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use roundelay_model::ladder::Ladder;
    use roundelay_model::topology::{Names, Topology};

    fn settings(profile: Profile, queue: &str, policy: Value) -> Settings {
        let topology = Topology::new(Names::new("r"), ["work"], &Ladder::new([Duration::from_secs(7)]));
        let queue = topology.queues.iter().find(|found| found.name == queue).unwrap();
        Settings::new(profile, &queue.arguments, policy.as_object())
    }

    #[test]
    fn arguments_and_policies_come_together_as_rabbitmq_does_it() {
        let jobs = || "r.jobs".to_owned();
        let rung = |policy| settings(Profile::Rabbit4, "r.delay.7s", policy);
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(7));
        let plain = rung(json!(null));
        assert_eq!((plain.ttl, plain.delivery_limit, plain.expires), (Some(long), Some(20), None));
        assert_eq!(plain.dead_letter, DeadLetter::AtLeastOnce(jobs()));
        assert_eq!(settings(Profile::Rabbit310, "r.delay.7s", json!(null)).delivery_limit, None);
        assert_eq!(rung(json!({ "message-ttl": 1_000 })).ttl, Some(short));
        assert_eq!(rung(json!({ "message-ttl": 9_000 })).ttl, Some(long));
        assert_eq!(rung(json!({ "expires": 1_000 })).expires, Some(short));
        assert_eq!(rung(json!({ "overflow": "drop-head" })).dead_letter, DeadLetter::AtMostOnce(jobs()));
        for argument in [json!({ "dead-letter-strategy": "at-most-once" }), json!({ "dead-letter-exchange": "x" })] {
            assert_eq!(rung(argument).dead_letter, DeadLetter::AtLeastOnce(jobs()));
        }

        let work = |policy| settings(Profile::Rabbit4, "work", policy);
        assert_eq!(work(json!(null)).delivery_limit, Some(1_000_000_000));
        assert_eq!(work(json!({ "delivery-limit": 5 })).delivery_limit, Some(5));
        assert_eq!(rung(json!({ "delivery-limit": -1 })).delivery_limit, None);
        assert_eq!(work(json!({ "message-ttl": 1_000 })).ttl, Some(short));
        assert_eq!(work(json!(null)).dead_letter, DeadLetter::Nowhere);
        assert_eq!(work(json!({ "dead-letter-exchange": "x" })).dead_letter, DeadLetter::AtMostOnce("x".into()));
    }
}
