//! Which lane of a platform queue the messages of a kind, or of a chain, take (pure).
//!
//! A platform queue with lanes is several queues on the broker, one for each priority. What waits in them is
//! ordered by the workers, which consume each lane on its own. The priorities of AMQP would not do: quorum
//! queues ignore them before RabbitMQ 4.0, tell two apart until 4.2, and starve the lower ones from 4.3 on.
//! On a rung they would do harm: only the message that is next by priority is looked at when its time is over,
//! and others oversleep behind it.

use std::collections::BTreeMap;

use crate::topology::Names;

/// More are of no use, and each is a queue on the broker.
pub const MAX_LANES: u8 = 10;

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
    /// Those of queues, each with how many lanes it has, and of kinds, each with its priority. `prefix` begins the
    /// names of the broker's queues.
    pub fn new<'a>(
        prefix: &str,
        queues: impl IntoIterator<Item = (&'a String, u8)>,
        kinds: impl IntoIterator<Item = (&'a String, u8)>,
    ) -> Self {
        let (queues, kinds) = (queues.into_iter(), kinds.into_iter());
        Self {
            names: Names::new(prefix),
            queues: queues.filter(|(_, lanes)| *lanes > 1).map(|(name, lanes)| (name.clone(), lanes)).collect(),
            priorities: kinds.filter(|(_, priority)| *priority > 0).map(|(name, of)| (name.clone(), of)).collect(),
        }
    }

    /// How many lanes a platform queue has.
    pub fn count(&self, queue: &str) -> u8 {
        self.queues.get(queue).copied().unwrap_or(1)
    }

    /// The lane for messages of `kind`: that of its priority, or else the highest there is. A chain may have a
    /// priority of its `own`.
    pub fn lane(&self, queue: &str, kind: &str, own: Option<u8>) -> u8 {
        let of_kind = || self.priorities.get(kind).copied().unwrap_or_default();
        own.unwrap_or_else(of_kind).min(self.count(queue) - 1)
    }

    /// The broker's queue for messages of `kind`, or of a chain of it with a priority of its `own`.
    pub fn queue(&self, queue: &str, kind: &str, own: Option<u8>) -> String {
        self.names.lane(queue, self.lane(queue, kind, own))
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
        let [work, other, a, b, c] = ["work", "other", "a", "b", "c"].map(str::to_owned);
        let lanes = Lanes::new("roundelay", [(&work, 3), (&other, 1)], [(&a, 2), (&b, 1), (&c, 0)]);
        for (queue, kind, own, expected) in [
            ("work", "a", None, "roundelay.lane.2.work"),
            ("work", "b", None, "roundelay.lane.1.work"),
            ("work", "c", None, "work"),
            ("work", "roundelay.chore", None, "work"),
            ("other", "a", None, "other"),
            ("roundelay.chores", "a", None, "roundelay.chores"),
            ("work", "a", Some(0), "work"),
            ("work", "c", Some(2), "roundelay.lane.2.work"),
            ("work", "c", Some(9), "roundelay.lane.2.work"),
            ("other", "c", Some(2), "other"),
        ] {
            assert_eq!(lanes.queue(queue, kind, own), expected, "{kind} on {queue}, {own:?}");
        }
        let all: Vec<String> = lanes.queues("work").collect();
        assert_eq!(all, ["work", "roundelay.lane.1.work", "roundelay.lane.2.work"]);
    }
}
