//! Which runs are kept apart in this worker: see [`roundelay_model::deaths`].
//!
//! A one-off job has no record in the ledger while it runs, and costs none. Only one that is delivered again, so that
//! a worker had it in hand before, is noted there before it runs, and forgotten when that has come to an end.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use roundelay_broker::Delivery;
use roundelay_config::KindSettings;
use roundelay_model::deaths::{Again, Company, SET_ASIDE};
use roundelay_model::job::{BadMessage, Envelope};
use roundelay_model::outcome::{Outcome, Verdict};
use roundelay_model::reason::{Class, Reason};
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::time::{Instant, sleep};

use super::pipeline::{Fate, MOST_WAITING};
use super::reconcile;
use crate::core::Core;
use crate::queue::QueueRun;

/// How often a job looks whether it may run now.
const LOOK: Duration = Duration::from_millis(500);

/// What runs in this worker of what was in hand at deaths of others.
#[derive(Default)]
pub(super) struct Suspects {
    /// A suspect holds it alone.
    touched: Arc<RwLock<()>>,
    /// Jobs that were in the ledger when this worker began, where the broker had gone with the worker before: it may have
    /// died over them. By their ids' hashes, since they may be many.
    found: Mutex<HashSet<u64>>,
}

/// Keeps away what must not run beside something, as long as it lives.
#[allow(dead_code, reason = "they are there to be dropped")]
pub(super) enum Kept {
    Nothing,
    Suspects(OwnedRwLockReadGuard<()>),
    Touched(OwnedRwLockWriteGuard<()>),
}

impl Suspects {
    /// Keeps away what must not run beside a run that may have this company; `None` while some of it runs.
    pub(super) fn keep(&self, company: Company) -> Option<Kept> {
        match company {
            Company::Any => Some(Kept::Nothing),
            Company::NoSuspect => self.touched.clone().try_read_owned().ok().map(Kept::Suspects),
            Company::Clear => self.touched.clone().try_write_owned().ok().map(Kept::Touched),
        }
    }

    /// The job was in the ledger when this worker began.
    pub(super) fn found(&self, id: &str) {
        self.found.lock().insert(hash(id));
    }

    fn was_found(&self, id: Option<&str>) -> bool {
        let found = self.found.lock();
        id.is_some_and(|id| found.contains(&hash(id)))
    }
}

fn hash(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

/// What a job is known by when it is delivered again: its id, or else what the message says, so that jobs which say the
/// same are one. What was sent again from quarantine is known anew.
fn name(envelope: &Envelope, named: bool, delivery: &Delivery) -> String {
    let id = envelope.id.as_ref().filter(|_| named);
    let known = id.map(|id| envelope.retries.last().map_or_else(|| id.clone(), |retry| format!("{id} {}", retry.by)));
    known.unwrap_or_else(|| {
        let digest = Sha256::new().chain_update(&*delivery.queue).chain_update([0]).chain_update(&delivery.body);
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    })
}

/// A job that may run, and as what it is noted in the ledger if a worker had it in hand before.
pub(super) struct Released {
    name: Option<String>,
    _kept: Kept,
}

impl Core {
    /// Waits until a one-off job may run beside what runs in this worker; or else what becomes of it. `named`: its message
    /// has an id.
    pub(super) async fn released(
        &self,
        kind: &KindSettings,
        (envelope, named): (&Envelope, bool),
        queue: &QueueRun,
        delivery: &Delivery,
    ) -> Result<Released, Fate> {
        let id = envelope.id.as_deref().filter(|_| named);
        let again = delivery.redelivered || self.suspects.was_found(id);
        if !again {
            return Ok(Released { name: None, _kept: Kept::Nothing });
        }
        let (name, since) = (name(envelope, named, delivery), Instant::now());
        while delivery.is_alive() && since.elapsed() < MOST_WAITING {
            let Some(session) = self.session(queue).await else { break };
            let hands = || self.ledger.hands(name.clone(), session);
            let Some(hands) = self.insist("ask who had a job in hand", hands).await else { break };
            match hands.again() {
                Again::SetAside => return Err(self.set_job_aside(kind, envelope, queue, delivery, name).await),
                Again::Waits => {}
                Again::Runs(company) => {
                    if let Some(kept) = self.suspects.keep(company) {
                        return Ok(Released { name: Some(name), _kept: kept });
                    }
                }
            }
            tokio::select! {
                biased;
                () = sleep(LOOK) => {}
                () = self.put_back(queue) => break,
            }
        }
        Err(Fate::Requeue)
    }

    /// The session that goes on; `None` when the message had better come again.
    async fn session(&self, queue: &QueueRun) -> Option<i64> {
        tokio::select! {
            biased;
            term = self.vitals.term() => Some(term.session()),
            () = self.put_back(queue) => None,
        }
    }

    /// Notes that a job that was in hand before is so again; answers whether the ledger knows.
    pub(super) async fn taken_in_hand(&self, job: &Released, queue: &QueueRun) -> bool {
        let Some(name) = &job.name else { return true };
        let Some(session) = self.session(queue).await else { return false };
        let note = || self.ledger.take_in_hand(name.clone(), session);
        self.insist("note that a job is in hand", note).await.is_some()
    }

    /// Its run has come to an end here, so no worker has died over it; answers whether the ledger knows.
    pub(super) async fn out_of_hand(&self, job: &Released) -> bool {
        let Some(name) = &job.name else { return true };
        self.insist("note that a job is out of hand", || self.ledger.out_of_hand(name.clone())).await.is_some()
    }

    /// Too many workers have died over a job: it goes where a person finds it, and begins at nothing when it is sent
    /// again from there.
    async fn set_job_aside(
        &self,
        kind: &KindSettings,
        envelope: &Envelope,
        queue: &QueueRun,
        delivery: &Delivery,
        name: String,
    ) -> Fate {
        if let Some(id) = envelope.id.as_deref().filter(|id| reconcile::is_part(id)) {
            return self.set_part_aside(kind, envelope, queue, (id, &name)).await;
        }
        self.set_aside(envelope, queue, "look at it, and send it again from quarantine");
        if let Some(id) = envelope.id.as_deref()
            && !self.end_place(kind, envelope, id, Verdict::Failed).await
        {
            return Fate::Requeue;
        }
        let fate = self.quarantine(delivery, &BadMessage::Deaths(SET_ASIDE)).await;
        // Whoever dies before the message is acknowledged leaves it to the next, which must not run it. Where the ledger
        // keeps jobs, it has forgotten this one; sent again it has the same name.
        if matches!(fate, Fate::Ack) && !self.dispatch.broker.keeps_messages() {
            let _ = self.insist("note that a job is out of hand", || self.ledger.out_of_hand(name.clone())).await;
        }
        fate
    }

    /// A part that is fed back is nothing to send again: it is given up in its row.
    async fn set_part_aside(
        &self,
        kind: &KindSettings,
        envelope: &Envelope,
        queue: &QueueRun,
        (id, name): (&str, &str),
    ) -> Fate {
        let failure = match self.hold_part(envelope, queue, (id, Duration::ZERO)).await {
            Ok(failure) => failure,
            Err(fate) => return fate,
        };
        self.set_aside(envelope, queue, "it is given up; `roundelay failed retry` tries it again");
        let mut outcome = Outcome::Retire { reason: Reason::new(Class::Lost, SET_ASIDE) };
        let at = self.ledger.now();
        if let Some(end) = self.settle_part(&failure, kind, &mut outcome, at)
            && !self.end_part(id, &end, at).await
        {
            return Fate::Requeue;
        }
        let _ = self.insist("note that a job is out of hand", || self.ledger.out_of_hand(name.to_owned())).await;
        self.forget(id).await
    }
}
