//! Which exchanges, queues and bindings there are (pure). Declaring, checking and exporting them
//! start from this one description.

use std::time::Duration;

use crate::clock::short_duration;
use crate::ladder::Ladder;
use crate::spread::HotRungs;

/// The names of everything on the broker, from the configured prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    prefix: String,
}

impl Names {
    /// Names that begin with `prefix`.
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    /// The direct exchange in front of the platform queues; the routing key is the queue's name.
    pub fn jobs(&self) -> String {
        format!("{}.jobs", self.prefix)
    }

    /// Exchange and queue of a rung.
    pub fn rung(&self, rung: Duration) -> String {
        format!("{}.delay.{}", self.prefix, short_duration(rung))
    }

    /// A regular expression for the exchanges and queues of all rungs there can be.
    pub fn rungs(&self) -> String {
        format!(r"{}\.delay\.[0-9]+(ms|s|m|h|d)", regex_lite::escape(&self.prefix))
    }

    /// The broker's queue of a lane of a platform queue. The lowest, 0, is the platform queue itself.
    pub fn lane(&self, queue: &str, lane: u8) -> String {
        if lane == 0 { queue.into() } else { format!("{}.lane.{lane}.{queue}", self.prefix) }
    }

    /// Whether a name is of the engine's own, as no platform queue's is.
    pub fn is_own(&self, name: &str) -> bool {
        name.strip_prefix(&self.prefix).is_some_and(|rest| rest.starts_with('.'))
    }

    /// The queue of messages that need a further hop.
    pub fn rearm(&self) -> String {
        format!("{}.rearm", self.prefix)
    }

    /// The queue of the engine's own chains.
    pub fn chores(&self) -> String {
        format!("{}.chores", self.prefix)
    }

    /// The queue on which workers probe whether messages sleep on a queue until their time.
    pub fn probe(&self) -> String {
        format!("{}.probe", self.prefix)
    }

    /// Exchange and queue of messages whose platform queue does not exist.
    pub fn unrouted(&self) -> String {
        format!("{}.unrouted", self.prefix)
    }

    /// The queue of messages that cannot be used.
    pub fn quarantine(&self) -> String {
        format!("{}.quarantine", self.prefix)
    }
}

/// Exchange types in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeKind {
    /// Routes by exact routing key.
    Direct,
    /// Routes everything, whatever its routing key.
    Fanout,
}

impl ExchangeKind {
    /// As AMQP spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            ExchangeKind::Direct => "direct",
            ExchangeKind::Fanout => "fanout",
        }
    }
}

/// The value of a declaration argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// Text.
    Text(String),
    /// A whole number.
    Number(i64),
}

/// A durable exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: ExchangeKind,
    /// Declaration arguments.
    pub arguments: Vec<(&'static str, Argument)>,
}

/// A durable queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Declaration arguments.
    pub arguments: Vec<(&'static str, Argument)>,
}

impl Queue {
    /// The rung's time to live, when the queue is one.
    pub fn ttl(&self) -> Option<Duration> {
        self.arguments.iter().find_map(|(name, value)| match value {
            Argument::Number(ms) if *name == "x-message-ttl" => Some(Duration::from_millis(u64::try_from(*ms).ok()?)),
            _ => None,
        })
    }
}

/// A binding of a queue to an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The exchange.
    pub exchange: String,
    /// The queue.
    pub queue: String,
    /// The routing key; empty for fanout.
    pub key: String,
}

/// Everything that has to exist on the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The names it was made with.
    pub names: Names,
    /// Exchanges, in the order of declaration.
    pub exchanges: Vec<Exchange>,
    /// Queues.
    pub queues: Vec<Queue>,
    /// Bindings.
    pub bindings: Vec<Binding>,
}

impl Topology {
    /// The topology of these platform queues, lanes included, and this ladder.
    pub fn new<Q: Into<String>>(names: Names, platform_queues: impl IntoIterator<Item = Q>, ladder: &Ladder) -> Self {
        Self::with_rungs(names, platform_queues, ladder.rungs())
    }

    /// The topology of these platform queues, lanes included, on a broker where messages sleep on their queue.
    pub fn native<Q: Into<String>>(names: Names, platform_queues: impl IntoIterator<Item = Q>) -> Self {
        Self::with_rungs(names, platform_queues, &[])
    }

    fn with_rungs<Q: Into<String>>(
        names: Names,
        platform_queues: impl IntoIterator<Item = Q>,
        rungs: &[Duration],
    ) -> Self {
        let mut topology = Self { names, exchanges: Vec::new(), queues: Vec::new(), bindings: Vec::new() };
        let names = topology.names.clone();

        // The alternate exchange comes first, since `jobs` refers to it. Without it a message for
        // an absent queue would stay on its rung for ever, and 32 of them would block the rung.
        topology.fanout(names.unrouted());
        topology.queue(names.unrouted(), Vec::new());
        topology.bind(names.unrouted(), names.unrouted(), String::new());

        topology.exchanges.push(Exchange {
            name: names.jobs(),
            kind: ExchangeKind::Direct,
            arguments: vec![("alternate-exchange", Argument::Text(names.unrouted()))],
        });
        let work = platform_queues.into_iter().map(Into::into);
        for queue in work.chain([names.rearm(), names.chores(), names.quarantine(), names.probe()]) {
            topology.queue(queue.clone(), Vec::new());
            topology.bind(names.jobs(), queue.clone(), queue);
        }

        rungs.iter().for_each(|rung| topology.rung(*rung));
        topology
    }

    /// The same with the siblings of hot rungs.
    #[must_use]
    pub fn with_siblings(mut self, hot: &HotRungs) -> Self {
        for rung in hot.siblings() {
            if !self.queues.iter().any(|queue| queue.ttl() == Some(rung)) {
                self.rung(rung);
            }
        }
        self
    }

    fn rung(&mut self, rung: Duration) {
        let (name, jobs) = (self.names.rung(rung), self.names.jobs());
        self.fanout(name.clone());
        self.queue(
            name.clone(),
            vec![
                ("x-message-ttl", Argument::Number(rung.as_millis() as i64)),
                ("x-dead-letter-exchange", Argument::Text(jobs)),
                ("x-dead-letter-strategy", Argument::Text("at-least-once".into())),
                ("x-overflow", Argument::Text("reject-publish".into())),
            ],
        );
        self.bind(name.clone(), name, String::new());
    }

    fn fanout(&mut self, name: String) {
        self.exchanges.push(Exchange { name, kind: ExchangeKind::Fanout, arguments: Vec::new() });
    }

    /// A quorum queue. Where nothing is dead-lettered, messages must never be dropped either: the
    /// delivery limit that RabbitMQ 4 brings (20) would discard a whole prefetched group in a
    /// crash loop, so it is lifted as far as a positive number can (3.10 does not know −1).
    fn queue(&mut self, name: String, extra: Vec<(&'static str, Argument)>) {
        let mut arguments = vec![("x-queue-type", Argument::Text("quorum".into()))];
        if extra.is_empty() {
            arguments.push(("x-delivery-limit", Argument::Number(1_000_000_000)));
        }
        arguments.extend(extra);
        self.queues.push(Queue { name, arguments });
    }

    fn bind(&mut self, exchange: String, queue: String, key: String) {
        self.bindings.push(Binding { exchange, queue, key });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_is_quorum_and_every_rung_leads_to_jobs_at_least_once() {
        let ladder = Ladder::new([Duration::from_secs(7)]);
        let topology = Topology::new(Names::new("r"), ["work"], &ladder);
        let text = |value: &str| Argument::Text(value.into());
        for queue in &topology.queues {
            assert!(queue.arguments.contains(&("x-queue-type", text("quorum"))), "{}", queue.name);
            assert!(topology.bindings.iter().any(|b| b.queue == queue.name), "{} is bound", queue.name);
            assert_eq!(queue.ttl().is_some(), queue.name.starts_with("r.delay."));
        }
        let seven = topology.queues.iter().find(|q| q.name == "r.delay.7s").unwrap();
        assert_eq!(seven.ttl(), Some(Duration::from_secs(7)));
        assert!(seven.arguments.contains(&("x-dead-letter-strategy", text("at-least-once"))));
        assert!(seven.arguments.contains(&("x-dead-letter-exchange", text("r.jobs"))));
        assert!(seven.arguments.contains(&("x-overflow", text("reject-publish"))));
    }

    #[test]
    fn siblings_are_rungs_like_others_and_each_is_there_once() {
        let (rung, next) = (Duration::from_secs(7), Duration::from_millis(7_001));
        let hot = HotRungs::default().with(rung).unwrap();
        let topology = Topology::new(Names::new("r"), ["work"], &Ladder::new([rung, next]));
        let wider = topology.clone().with_siblings(&hot);
        let names = |topology: &Topology| topology.queues.iter().map(|queue| queue.name.clone()).collect::<Vec<_>>();
        let (before, after) = (names(&topology), names(&wider));
        assert_eq!(after[..before.len()], before);
        let more: Vec<String> = (2..=8).map(|ms| format!("r.delay.700{ms}ms")).collect();
        assert_eq!(after[before.len()..], more);
        assert_eq!(wider.bindings.len(), topology.bindings.len() + more.len());
        assert_eq!(topology.clone().with_siblings(&HotRungs::default()), topology);
    }

    #[test]
    fn an_absent_queue_has_somewhere_to_lead() {
        let topology = Topology::new(Names::new("r"), [""; 0], &Ladder::new([]));
        let jobs = topology.exchanges.iter().find(|e| e.name == "r.jobs").unwrap();
        assert_eq!(jobs.arguments, [("alternate-exchange", Argument::Text("r.unrouted".into()))]);
        let before = topology.exchanges.iter().position(|e| e.name == "r.unrouted");
        let after = topology.exchanges.iter().position(|e| e.name == "r.jobs");
        assert!(before < after, "the alternate exchange is declared first");
    }
}
