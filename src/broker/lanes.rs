//! Which lane of a platform queue the messages of a kind take (pure).
//!
//! A platform queue with lanes is several queues on the broker, one for each priority. What waits in them is
//! ordered by the workers, which consume each lane on its own. The priorities of AMQP would not do: quorum
//! queues ignore them before RabbitMQ 4.0, tell two apart until 4.2, and starve the lower ones from 4.3 on.
//! On a rung they would do harm: only the message that is next by priority is looked at when its time is over,
//! and others oversleep behind it.

use std::collections::BTreeMap;

use super::topology::Names;
use crate::config::Config;

/// More are of no use, and each is a queue on the broker.
pub const MOST_LANES: u8 = 10;

/// The lanes of a configuration.
#[derive(Clone, Debug)]
pub struct Lanes {
    names: Names,
    /// How many each queue has, where there is more than one.
    queues: BTreeMap<String, u8>,
    /// The kinds' priorities, where there is one.
    priorities: BTreeMap<String, u8>,
}

impl Lanes {
    /// Those of `config`.
    pub fn new(config: &Config) -> Self {
        let queues = config.queues.iter().map(|(name, queue)| (name.clone(), queue.lanes));
        let priorities = config.kinds.iter().map(|(name, kind)| (name.clone(), kind.priority));
        Self {
            names: Names::new(&config.broker.prefix),
            queues: queues.filter(|(_, lanes)| *lanes > 1).collect(),
            priorities: priorities.filter(|(_, priority)| *priority > 0).collect(),
        }
    }

    /// How many lanes a platform queue has.
    pub fn count(&self, queue: &str) -> u8 {
        self.queues.get(queue).copied().unwrap_or(1)
    }

    /// The lane for messages of `kind`: that of its priority, or else the highest there is.
    pub fn lane(&self, queue: &str, kind: &str) -> u8 {
        self.priorities.get(kind).copied().unwrap_or_default().min(self.count(queue) - 1)
    }

    /// The broker's queue for messages of `kind`.
    pub fn queue(&self, queue: &str, kind: &str) -> String {
        self.names.lane(queue, self.lane(queue, kind))
    }

    /// The broker's queues behind a platform queue, from the lowest lane.
    pub fn queues(&self, queue: &str) -> impl Iterator<Item = String> {
        (0..self.count(queue)).map(move |lane| self.names.lane(queue, lane))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_lanes() {
        let text =
            "[queues.work]\nlanes = 3\n[queues.other]\n[kinds.a]\npriority = 2\n[kinds.b]\npriority = 1\n[kinds.c]";
        let lanes = Lanes::new(&Config::parse(text, "test", []).unwrap());
        for (queue, kind, expected) in [
            ("work", "a", "roundelay.lane.2.work"),
            ("work", "b", "roundelay.lane.1.work"),
            ("work", "c", "work"),
            ("work", "roundelay.chore", "work"),
            ("other", "a", "other"),
            ("roundelay.chores", "a", "roundelay.chores"),
        ] {
            assert_eq!(lanes.queue(queue, kind), expected, "{kind} on {queue}");
        }
        let all: Vec<String> = lanes.queues("work").collect();
        assert_eq!(all, ["work", "roundelay.lane.1.work", "roundelay.lane.2.work"]);
    }
}
