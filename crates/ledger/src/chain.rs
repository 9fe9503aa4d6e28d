//! A chain: its state, its holder, and the message of its current tick.

use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, TickNo};
use roundelay_model::job::{ChainRef, Envelope, VERSION};

/// What a chain is doing, as the ledger stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainState {
    /// It ticks.
    Active = 0,
    /// An operator has stopped it; it keeps its place.
    Paused = 1,
    /// It has ended.
    Retired = 2,
    /// Its messages are ahead of the ledger; a person must decide.
    Quarantined = 3,
}

impl ChainState {
    /// The state stored as `number`.
    pub fn from_number(number: i64) -> Self {
        match number {
            0 => Self::Active,
            1 => Self::Paused,
            2 => Self::Retired,
            _ => Self::Quarantined,
        }
    }
}

/// Who has claimed a chain, and not finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Holder {
    /// No session.
    #[default]
    None,
    /// A session of a worker that goes on: it runs.
    Alive,
    /// A session that is over: the run never came to its end, and the next claim takes the chain over.
    Gone,
}

impl Holder {
    /// The holder that a query gives as `number`.
    pub(super) fn from_number(number: i64) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Alive,
            _ => Self::Gone,
        }
    }

    /// Whether the chain is being run.
    pub fn runs(self) -> bool {
        self == Self::Alive
    }
}

/// What a chain's message says: that an attempt of a tick is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Which handler.
    pub kind: String,
    /// Which entity.
    pub key: String,
    /// The platform queue.
    pub queue: String,
    /// The chain's incarnation.
    pub epoch: Epoch,
    /// The occurrence, from 1.
    pub tick: TickNo,
    /// The try, from 1.
    pub attempt: u32,
    /// When the attempt is due.
    pub due: Time,
    /// The epoch of the chain whose batch this is a member of; zero when it is none.
    pub parent: Epoch,
    /// See [`NewChain::priority`](crate::NewChain::priority).
    pub priority: Option<u8>,
}

impl Hint {
    /// The message, as the engine of `ledger` writes it.
    pub fn envelope(&self, ledger: &str) -> Envelope {
        Envelope {
            v: VERSION,
            kind: self.kind.clone(),
            key: self.key.clone(),
            queue: Some(self.queue.clone()),
            due: Some(self.due),
            clock: None,
            attempt: self.attempt,
            id: None,
            payload: serde_json::Value::Null,
            sealed: None,
            owner: None,
            depth: 0,
            retries: Vec::new(),
            chain: Some(ChainRef {
                ledger: ledger.into(),
                epoch: self.epoch,
                tick: self.tick,
                parent: self.parent,
                priority: self.priority,
            }),
            enroll: None,
            retire: None,
            run: None,
            trace: None,
            tenant: None,
            from_backlog: false,
        }
    }

    /// What to mark as sent once the message is confirmed.
    pub fn sent(&self) -> Sent {
        Sent { epoch: self.epoch, tick: self.tick, attempt: self.attempt, due: self.due }
    }
}

/// Names the message that was confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The chain's incarnation.
    pub epoch: Epoch,
    /// The occurrence.
    pub tick: TickNo,
    /// The try.
    pub attempt: u32,
    /// When it is due.
    pub due: Time,
}

/// The kinds that a worker handles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// All of them: their single ticks.
    pub all: Vec<String>,
    /// Those with a schedule: also their rotations.
    pub recurring: Vec<String>,
}
