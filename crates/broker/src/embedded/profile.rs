//! Which RabbitMQ the embedded broker behaves like.

/// Whose behaviour it has, where versions differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile {
    /// RabbitMQ 3.10:
    ///
    /// - There is no delivery limit but what a queue's arguments say, and whatever comes back counts.
    ///   Without a limit, what is put back goes behind all else.
    /// - A consumer of a queue that is deleted and at once declared again is not told. Messages are
    ///   given to it, and do not arrive. It mends itself after
    ///   [`Patience::silence`](crate::rabbit::Patience::silence).
    /// - What messages say of having been dead-lettered is believed: such a message does not go on
    ///   to a queue on which, as it says, it has been before, and blocks its rung as any that is
    ///   stuck.
    /// - Purging a rung leaves what is stuck on it.
    Rabbit310,
    /// RabbitMQ 4.0: the delivery limit and the consumers of later versions, and what is put back or purged as before.
    Rabbit40,
    /// RabbitMQ 4.3: the delivery limit is 20 where nothing else is said, and only what comes back
    /// because its channel has gone counts. Consumers of a deleted queue are told. Nothing is
    /// believed. Purging a rung purges what is stuck on it.
    #[default]
    Rabbit4,
    /// RabbitMQ 4.4: as 4.3, and a message that says until when it is to sleep
    /// ([`Destination::Asleep`](crate::Destination::Asleep)) sleeps on its queue. What wakes goes before what waits.
    Rabbit44,
}

impl Profile {
    /// Whether messages sleep on their queues.
    pub fn parks(self) -> bool {
        self >= Self::Rabbit44
    }
}
