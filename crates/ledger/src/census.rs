//! Counts of chains, for `roundelay status`.

use std::collections::BTreeMap;
use std::time::Duration;

use roundelay_model::clock::Time;
use serde::Serialize;

use crate::chain::Holder;

/// Figures for `roundelay status`.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct Census {
    /// Chains that tick, by queue.
    pub queues: Vec<QueueCensus>,
    /// Chains that an operator has stopped.
    pub paused: i64,
    /// Chains that have ended; single ticks beside a chain are not counted.
    pub retired: i64,
    /// Of these, chains that a run has ended because their entities are unavailable.
    pub unavailable: i64,
    /// Chains whose messages were ahead of the ledger.
    pub quarantined: i64,
    /// Entities with a kept failure, and parts of entities.
    pub failures: i64,
    /// Of these, entities that have worked since.
    pub recovered: i64,
    /// Messages kept in the ledger because they could not be used.
    pub quarantined_messages: i64,
    /// One-off jobs kept in the ledger.
    pub kept_jobs: i64,
    /// How many messages of fair queues wait for their tenant's turn, by the broker's queue.
    pub backlog: BTreeMap<String, i64>,
}

/// The active chains of one queue.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct QueueCensus {
    /// The platform queue.
    pub queue: String,
    /// Due in the future.
    pub sleeping: i64,
    /// Being run.
    pub running: i64,
    /// Due, and not being run.
    pub due: i64,
    /// Of these, due for longer than the slack, and those that have overslept, but for those that are held, and those
    /// that wait for the other row of their chain: the rotation for a manual run, or that for the rotation or for the
    /// cooldown.
    pub overdue: i64,
    /// Of the due ones, those that an operator lets not start: none, or all.
    pub held: i64,
    /// Of these, those whose due times lie further ahead than their schedules can explain, as far as they were looked
    /// at.
    pub overslept: i64,
    /// With a successor not known to have been sent.
    pub unsent: i64,
    /// Waiting for the end of their batch.
    pub waiting: i64,
    /// How many rotations there are of each kind.
    pub kinds: BTreeMap<String, i64>,
    /// When the longest due chain was due, of those that do not run and do not wait for the other row of their chain.
    #[serde(skip)]
    pub oldest_due: Option<Time>,
}

impl Census {
    /// Counts a chain as overdue `since` then that was counted as sleeping: its due time means nothing.
    pub fn overslept(&mut self, queue: &str, since: Time) {
        let Some(queue) = self.queues.iter_mut().find(|of| of.queue == queue) else { return };
        queue.sleeping = (queue.sleeping - 1).max(0);
        (queue.due, queue.overdue, queue.overslept) = (queue.due + 1, queue.overdue + 1, queue.overslept + 1);
        queue.older(since);
    }

    /// An operator lets nothing of a queue start: what is due there is held, and not overdue.
    pub fn hold(&mut self, queue: &str) {
        let Some(queue) = self.queues.iter_mut().find(|of| of.queue == queue) else { return };
        (queue.held, queue.overdue, queue.overslept) = (queue.due, 0, 0);
    }

    /// When the longest due chain was due, on queues that no operator holds.
    pub fn oldest_due(&self) -> Option<Time> {
        self.queues.iter().filter(|queue| queue.held == 0).filter_map(|queue| queue.oldest_due).min()
    }
}

impl QueueCensus {
    /// Counts an active chain. `waits` says that the chain waits for its other row: then it is due, and nothing is
    /// wrong.
    pub fn count(&mut self, holder: Holder, due: Time, sent: bool, waits: bool, now: Time, slack: Duration) {
        if holder.runs() {
            self.running += 1;
            return;
        }
        *(if due > now { &mut self.sleeping } else { &mut self.due }) += 1;
        if due <= now && !waits {
            self.older(due);
        }
        self.overdue += i64::from(due + slack <= now && !waits);
        self.unsent += i64::from(!sent);
    }

    /// Counts a rotation of this kind.
    pub fn rotation(&mut self, kind: &str) {
        match self.kinds.get_mut(kind) {
            Some(count) => *count += 1,
            None => drop(self.kinds.insert(kind.to_owned(), 1)),
        }
    }

    /// Adds the counts of further chains of the same queue.
    #[cfg(feature = "postgres")]
    pub(crate) fn add(&mut self, other: Self) {
        let Self { sleeping, running, due, overdue, held, overslept, unsent, waiting, kinds, oldest_due, .. } = other;
        self.sleeping += sleeping;
        self.running += running;
        self.due += due;
        self.overdue += overdue;
        self.held += held;
        self.overslept += overslept;
        self.unsent += unsent;
        self.waiting += waiting;
        self.kinds.extend(kinds);
        if let Some(due) = oldest_due {
            self.older(due);
        }
    }

    fn older(&mut self, due: Time) {
        self.oldest_due = Some(self.oldest_due.map_or(due, |oldest| oldest.min(due)));
    }
}
