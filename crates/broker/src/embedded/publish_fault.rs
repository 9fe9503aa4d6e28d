//! What a test or a simulation does to a publish, and holds back.

use std::time::Duration;

use bytes::Bytes;
use roundelay_model::clock::Time;
use tokio::time::Instant;

/// What goes wrong with a publish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PublishFault {
    /// Nothing.
    #[default]
    None,
    /// The queue has it, but the confirmation is lost: [`PublishError::Unknown`], at once.
    ///
    /// [`PublishError::Unknown`]: crate::PublishError::Unknown
    UnknownButKept,
    /// The message and hence its confirmation are lost: [`PublishError::Unknown`], at once.
    ///
    /// [`PublishError::Unknown`]: crate::PublishError::Unknown
    UnknownAndLost,
    /// The broker refuses it: [`PublishError::Refused`].
    ///
    /// [`PublishError::Refused`]: crate::PublishError::Refused
    Refused,
    /// The broker has no queue for it: [`PublishError::Unroutable`]; or, when that is not asked for
    /// ([`EmbeddedConnection::mandatory`]), confirmed and gone.
    ///
    /// [`PublishError::Unroutable`]: crate::PublishError::Unroutable
    /// [`EmbeddedConnection::mandatory`]: super::EmbeddedConnection::mandatory
    Returned,
    /// It is there twice, and confirmed.
    Twice,
    /// The queue has it at once, and the confirmation takes so long. It is
    /// [`PublishError::Unknown`] when the connection is lost meanwhile, and when it takes longer
    /// than [`Patience::confirmation`].
    ///
    /// [`PublishError::Unknown`]: crate::PublishError::Unknown
    /// [`Patience::confirmation`]: crate::rabbit::Patience::confirmation
    Slow(Duration),
}

/// A message on the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The queue.
    pub queue: String,
    /// The body as published.
    pub body: Bytes,
    /// What becomes of it.
    pub state: HeldState,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldState {
    /// It waits to be delivered.
    Ready,
    /// It has been delivered, and waits to be settled.
    Unsettled,
    /// Its time on the queue is over, and where that leads does not take it.
    Dying,
    /// It sleeps on a rung until then.
    OnRung {
        /// When its time is over.
        until: Instant,
    },
    /// It sleeps on its queue until then.
    Asleep {
        /// By the broker's clock.
        until: Time,
    },
}
