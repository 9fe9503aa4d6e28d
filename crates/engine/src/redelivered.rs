//! One-off jobs that are delivered again: which of them run, and beside what.

use std::time::Duration;

use roundelay_broker::Delivery;
use roundelay_config::KindSettings;
use roundelay_model::deaths::{Again, SET_ASIDE};
use roundelay_model::job::{BadMessage, Envelope};
use roundelay_model::outcome::{Outcome, Verdict};
use roundelay_model::reason::{Class, Reason};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep};

use crate::core::Core;
use crate::permit::MAX_WAITING;
use crate::queue::QueueRun;
use crate::reconcile;
use crate::settlement::Settlement;
use crate::suspects::Kept;

/// How often a job looks whether it may run now.
const LOOK: Duration = Duration::from_millis(500);

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

impl Released {
    /// The handler has ended, so that others may run.
    pub(super) fn let_others_run(&mut self) {
        self._kept = Kept::Nothing;
    }
}

impl Core {
    /// Waits until a one-off job may run beside what runs in this worker; or else what becomes of it. `named`: its
    /// message has an id.
    pub(super) async fn released(
        &self,
        kind: &KindSettings,
        (envelope, named): (&Envelope, bool),
        queue: &QueueRun,
        delivery: &Delivery,
    ) -> Result<Released, Settlement> {
        let id = envelope.id.as_deref().filter(|_| named);
        let again = delivery.redelivered || self.suspects.was_found(id);
        if !again {
            return Ok(Released { name: None, _kept: Kept::Nothing });
        }
        let (name, since) = (name(envelope, named, delivery), Instant::now());
        while delivery.is_alive() && since.elapsed() < MAX_WAITING {
            let Some(session) = self.session(queue).await else { break };
            let hands = || self.ledger.hands(name.clone(), session);
            let Some(hands) = self.ledger.retry_until_stopped("ask who had a job in hand", hands).await else { break };
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
                () = self.stop.put_back(queue) => break,
            }
        }
        Err(Settlement::Requeue)
    }

    /// The session that goes on; `None` when the message is to come again.
    async fn session(&self, queue: &QueueRun) -> Option<i64> {
        tokio::select! {
            biased;
            term = self.vitals.term() => Some(term.session()),
            () = self.stop.put_back(queue) => None,
        }
    }

    /// Notes that a job that was in hand before is so again; answers whether the ledger knows.
    pub(super) async fn taken_in_hand(&self, job: &Released, queue: &QueueRun) -> bool {
        let Some(name) = &job.name else { return true };
        let Some(session) = self.session(queue).await else { return false };
        let note = || self.ledger.take_in_hand(name.clone(), session);
        self.ledger.retry_until_stopped("note that a job is in hand", note).await.is_some()
    }

    /// Its run has come to an end here, so no worker has died over it; answers whether the ledger knows.
    pub(super) async fn out_of_hand(&self, job: &Released) -> bool {
        let Some(name) = &job.name else { return true };
        self.ledger
            .retry_until_stopped("note that a job is out of hand", || self.ledger.out_of_hand(name.clone()))
            .await
            .is_some()
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
    ) -> Settlement {
        if let Some(id) = envelope.id.as_deref().filter(|id| reconcile::is_part(id)) {
            return self.set_part_aside(kind, envelope, queue, (id, &name)).await;
        }
        self.observing.set_aside(envelope, queue, "look at it, and send it again from quarantine");
        if let Some(id) = envelope.id.as_deref()
            && !self.unique.end_place(kind, envelope, id, Verdict::Failed).await
        {
            return Settlement::Requeue;
        }
        let settlement = self.publishing.quarantine(delivery, &BadMessage::Deaths(SET_ASIDE)).await;
        // A worker that dies before it acknowledges the message leaves it to the next worker, which must not run it.
        // Where the ledger keeps jobs, it has forgotten this one; sent again it has the same name.
        if matches!(settlement, Settlement::Ack) && !self.publishing.dispatch.broker.keeps_messages() {
            let _ = self
                .ledger
                .retry_until_stopped("note that a job is out of hand", || self.ledger.out_of_hand(name.clone()))
                .await;
        }
        settlement
    }

    /// A part that is fed back is nothing to send again: it is given up in its row.
    async fn set_part_aside(
        &self,
        kind: &KindSettings,
        envelope: &Envelope,
        queue: &QueueRun,
        (id, name): (&str, &str),
    ) -> Settlement {
        let failure = match self.publishing.hold_part(envelope, queue, (id, Duration::ZERO)).await {
            Ok(failure) => failure,
            Err(settlement) => return settlement,
        };
        self.observing.set_aside(envelope, queue, "it is given up; `roundelay failed retry` tries it again");
        let mut outcome = Outcome::Retire { reason: Reason::new(Class::Lost, SET_ASIDE) };
        let at = self.ledger.now();
        if let Some(end) = self.catalog.settle_part(&failure, kind, &mut outcome, at)
            && !self.publishing.end_part(id, &end, at).await
        {
            return Settlement::Requeue;
        }
        let _ = self
            .ledger
            .retry_until_stopped("note that a job is out of hand", || self.ledger.out_of_hand(name.to_owned()))
            .await;
        self.publishing.forget(id).await
    }
}
