//! Why entities are not enrolled, and why an engine does not start.

use roundelay_broker::BrokerError;
use roundelay_ledger::LedgerError;

/// Why an engine cannot start; phrased to follow "failed to start: ".
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The broker.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// Entities that cannot be enrolled.
    #[error(transparent)]
    Enroll(#[from] EnrollError),
    /// The configuration and the program do not fit together.
    #[error("{0}")]
    Setup(String),
    /// A part of the running engine has ended, which it never should.
    #[error("a part of the engine ended by itself ({0}); the worker stopped in good order and can be started again")]
    Broken(String),
}

/// Why entities were not enrolled; phrased to follow "failed to enroll: ".
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnrollError {
    /// An entity that no worker could run.
    #[error("{key}: {reason}")]
    Entity {
        /// Its key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The kind has no chains.
    #[error("kinds.{0} has none of `every`, `cron` and `at`, so it has no chains")]
    NoSchedule(String),
    /// What workers seal would lie in the clear.
    #[error(
        "the workers of this ledger seal payloads, and this configuration names no key to seal with, so that what it \
         enrolls would lie there in the clear. Give it their [encryption], with `seal`; or if nothing is to be sealed \
         any more, start a worker without `seal` first. Nothing of this batch was enrolled"
    )]
    Unsealed,
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}
