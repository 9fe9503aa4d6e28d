//! Enrolment: the chain to begin, and the answer.

use roundelay_model::clock::Time;
use roundelay_model::guard::Manual;

use crate::chain::Hint;

/// A chain to begin.
#[derive(Clone, Debug)]
pub struct NewChain {
    /// Which handler.
    pub kind: String,
    /// Which entity.
    pub key: String,
    /// Its platform queue.
    pub queue: String,
    /// The priority of its messages, in place of its kind's.
    pub priority: Option<u8>,
    /// What the handler gets, as JSON text, or sealed: see [`roundelay_model::encryption`].
    pub payload: String,
    /// Other forms of the same payload: a chain that has one of these has this payload, and keeps it as it is.
    pub forms: Vec<String>,
    /// When its first tick is nominally due: by the wall clock, where its schedule follows that.
    pub nominal: Time,
    /// When its first tick is due.
    pub due: Time,
    /// When catch-up looks after it, if its first message has not been marked as sent by then.
    pub watch_at: Time,
    /// A chain that has ended begins anew, with a new epoch.
    pub revive: bool,
    /// A manual run of the chain of this name: one tick, and then the end. There is at most one at a time: while it
    /// has not ended, another is answered with [`Enrolled::Unchanged`]. The next has the same epoch, and the next tick.
    pub once: bool,
    /// How the manual run was asked for.
    pub manual: Manual,
    /// Who the chain belongs to.
    pub owner: Option<String>,
    /// Its own schedule, in place of its kind's: see `OwnSchedule`.
    pub schedule: Option<String>,
    /// A chain that is there keeps its schedule, which an operator may have given to it.
    pub keep_schedule: bool,
    /// A chain that is there stays as it is, whatever this says.
    pub only_new: bool,
    /// How many runs have led to it, each of which was asked for by the one before: zero for a chain that no run has
    /// asked for.
    pub depth: u32,
}

impl NewChain {
    /// Whether a chain with this queue, priority, payload, owner and schedule is as this asks for.
    pub fn is_like(
        &self,
        (queue, priority): (&str, Option<u8>),
        payload: &str,
        owner: Option<&str>,
        schedule: Option<&str>,
    ) -> bool {
        (self.queue.as_str(), self.priority) == (queue, priority)
            && (self.payload == payload || self.forms.iter().any(|form| form == payload))
            && self.owner.as_deref() == owner
            && !self.reschedules(schedule)
    }

    /// Whether a chain with this schedule gets another.
    pub fn reschedules(&self, schedule: Option<&str>) -> bool {
        !self.keep_schedule && self.schedule.as_deref() != schedule
    }
}

/// What became of a [`NewChain`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enrolled {
    /// It begins, or begins anew; this is its first message.
    Created(Hint),
    /// It was there already, and is as it should be.
    Unchanged,
    /// It was there already, and has been brought up to date.
    Updated {
        /// It has another schedule now, and sleeps by the one before.
        rescheduled: bool,
    },
    /// It has ended before, and stays so.
    Retired,
}
