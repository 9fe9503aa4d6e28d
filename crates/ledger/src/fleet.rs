//! The verbs of workers: their reports, and operators' orders for queues and workers.

use std::collections::BTreeMap;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::fleet::{FleetOrder, FleetOrders, Presence, SILENT, Subject, ThroughputSample};
use roundelay_model::kind_stats::{KindBucket, KindStats, Step};

use crate::error::LedgerError;

/// A worker, as it last reported.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenWorker {
    /// What it reported.
    pub presence: Presence,
    /// When it reported, by the ledger's clock.
    pub seen: Time,
}

impl SeenWorker {
    /// Whether the worker has not reported for longer than [`SILENT`].
    pub fn is_silent(&self, now: Time) -> bool {
        self.seen + SILENT < now
    }
}

/// The error for a subject that can get no orders any more.
pub(super) fn gone(subject: Subject) -> LedgerError {
    let (Subject::Queue(name) | Subject::Worker(name) | Subject::Tenant(name)) = subject;
    LedgerError::NoWorker(name)
}

/// Buckets of all workers, from rows in the order of time and kind. What another version has written and this one cannot
/// read is left out.
pub(super) fn of_all_workers(step: Step, rows: impl Iterator<Item = (i64, String, String)>) -> Vec<KindBucket> {
    let mut all: Vec<KindBucket> = Vec::new();
    for (at, kind, said) in rows {
        let Ok(stats) = serde_json::from_str::<KindStats>(&said) else { continue };
        let at = Time::from_millis(at);
        match all.last_mut().filter(|last| (last.at, &last.kind) == (at, &kind)) {
            Some(last) => last.stats.add(&stats),
            None => all.push(KindBucket { step, at, kind, stats }),
        }
    }
    all
}

/// Knows the workers of this ledger.
#[async_trait]
pub trait Fleet {
    /// Writes a worker's report, and what it has done since the report before. Forgets what is older than
    /// [`roundelay_model::fleet::KEPT`].
    ///
    /// # Errors
    /// When it is not known to be written. No decision depends on it.
    async fn attend(&self, presence: Presence, pulses: Vec<ThroughputSample>) -> Result<(), LedgerError>;

    /// Forgets a worker that has ended, and the orders for it.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn leave(&self, worker: String) -> Result<(), LedgerError>;

    /// The workers that have not ended, by their names, those included that have fallen silent.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn workers(&self) -> Result<Vec<SeenWorker>, LedgerError>;

    /// What all workers have done since then.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn pulses(&self, since: Time) -> Result<Vec<ThroughputSample>, LedgerError>;

    /// Writes what the runs of kinds came to on a worker, in place of what the worker has written for the same stretches
    /// before. Forgets what is older than [`roundelay_model::kind_stats::Step::kept`].
    ///
    /// # Errors
    /// When it is not known to be written. To write it again changes nothing.
    async fn note_kinds(&self, worker: String, buckets: Vec<KindBucket>) -> Result<(), LedgerError>;

    /// What the runs of each kind came to on all workers, in the stretches of this length that began then or later, in
    /// their order and by kind.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn kinds(&self, step: Step, since: Time) -> Result<Vec<KindBucket>, LedgerError>;

    /// What operators have ordered, by subject; subjects without orders are absent.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn fleet_orders(&self) -> Result<BTreeMap<Subject, FleetOrders>, LedgerError>;

    /// Adds an order of `by` to what holds for `subject`, and answers with all that holds. Workers know of it
    /// within two seconds.
    ///
    /// # Errors
    /// When it is not known to be written; [`LedgerError::NoWorker`] for a worker that has ended, or was silent for
    /// [`roundelay_model::fleet::KEPT`].
    async fn order_fleet(&self, subject: Subject, order: FleetOrder, by: String) -> Result<FleetOrders, LedgerError>;
}
