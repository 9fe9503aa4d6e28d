//! What a worker sends: successors, jobs, and messages that come again later.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join;
use futures_util::{StreamExt, stream};
use roundelay_broker::BrokerError;
use roundelay_broker::PublishError;
use roundelay_ledger::Hint;
use roundelay_ledger::KeptJob;
use roundelay_model::clock::Entropy;
use roundelay_model::clock::Time;
use roundelay_model::encryption::Keyring;
use roundelay_model::ids::Epoch;
use roundelay_model::job::{BadMessage, Envelope};
use roundelay_model::ladder::Hop;
use roundelay_model::topology::Names;
use tokio::sync::{Notify, SetOnce};
use tokio::time::sleep;

use crate::delays::Sleepers;
use crate::dispatch::{Decided, Dispatch};
use crate::life::{Life, Point};
use crate::outage::Outage;
use crate::patient::PatientLedger;
use crate::sealing::{self, check, set_aside};
use crate::settlement::Settlement;
use crate::telemetry::{Count, Telemetry};
use crate::trace::Run;

/// How long a successor is published again and again before it is left to catch-up.
const PUBLISH_PATIENCE: Duration = Duration::from_secs(60);
/// Messages of one finish published at the same time.
const IN_FLIGHT: usize = 64;

/// The way to the broker, and what the ledger and the outage have to say about it.
pub(crate) struct Publishing {
    pub(crate) dispatch: Dispatch,
    pub(crate) names: Names,
    pub(crate) sleepers: Sleepers,
    /// The topology is there: a worker that began without the broker declares it later.
    pub(crate) declared: SetOnce<()>,
    /// Whether the broker is away, so that the ledger is in charge.
    pub(crate) outage: Outage,
    /// Something was put in the ledger for an embedded broker.
    pub(crate) jobs_kept: Notify,
    pub(crate) ledger: PatientLedger,
    pub(crate) entropy: Entropy,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) life: Life,
}

impl Publishing {
    /// Declares the topology, and refuses a broker on which messages would be lost.
    pub(crate) async fn declare(&self) -> Result<(), BrokerError> {
        let topology = self.sleepers.declare().await?;
        self.dispatch.broker.verify(&topology).await?;
        // No other task sets it.
        let _ = self.declared.set(());
        Ok(())
    }

    /// Those that count now.
    pub fn keys(&self) -> Arc<Keyring> {
        self.dispatch.sealing.keys()
    }

    /// Sends what a finish of the chain with this epoch asks for: the chain's successor, on which hangs whether its
    /// predecessor may be acknowledged, and others: the members of a batch, chains that the run has discovered, and
    /// the chain that has waited for this one. Those that cannot be sent are known to the ledger as unsent.
    pub(crate) async fn send_all(
        &self,
        (own, others): (Option<Hint>, Vec<Hint>),
        epoch: Epoch,
        decided: Decided,
        trace: &Run,
    ) -> Settlement {
        let others = stream::iter(others).map(async |hint| {
            self.publish_successor(&hint, decided.at.into(), trace).await;
            if hint.parent == epoch {
                self.life.reached(Point::MemberSent).await;
            }
        });
        let others = others.buffer_unordered(IN_FLIGHT).collect::<()>();
        let own = async {
            match &own {
                Some(successor) => self.publish_successor(successor, decided, trace).await,
                None => Settlement::Ack,
            }
        };
        join(own, others).await.0
    }

    /// Sends the first messages of chains that a job has discovered. Catch-up sends those that cannot be sent.
    pub(crate) async fn send_first(&self, messages: Vec<Hint>, decided: Time, trace: &Run) {
        let sends = stream::iter(messages).map(async |hint| {
            self.publish_successor(&hint, decided.into(), trace).await;
        });
        sends.buffer_unordered(IN_FLIGHT).collect::<()>().await;
    }

    /// Sends what follows, then it is safe to acknowledge what went before. If it cannot be sent,
    /// the ledger knows it as unsent: the worker that gets the old message again, or catch-up, sends it.
    pub(crate) async fn publish_successor(&self, successor: &Hint, decided: Decided, trace: &Run) -> Settlement {
        let mut envelope = successor.envelope(self.ledger.id());
        let sending = trace.sends(&mut envelope, &successor.queue, || self.ledger.now());
        let sent = tokio::select! {
            biased;
            // The ledger knows that the successor is unsent, and is in charge until the broker is back.
            () = self.outage.begins() => None,
            sent = self.dispatch.publish_with_retry(&envelope, &successor.queue, decided, PUBLISH_PATIENCE) => Some(sent),
        };
        trace.sent(sending, matches!(sent, Some(Ok(()))));
        if !matches!(sent, Some(Ok(()))) {
            self.outage.left_unsent(successor.due);
        }
        let Some(sent) = sent else { return Settlement::Ack };
        match sent {
            Ok(()) => {
                self.life.reached(Point::SuccessorSent).await;
                self.ledger.mark_sent(successor.sent());
                self.life.reached(Point::SuccessorNoted).await;
                Settlement::Ack
            }
            Err(error) => {
                if self.telemetry.notices.begins("successors that could not be sent") {
                    tracing::warn!(
                        kind = successor.kind, key = successor.key, epoch = successor.epoch.get(),
                        tick = successor.tick.get(), %error,
                        "a successor could not be sent; it is sent when its predecessor is delivered again, or by catch-up"
                    );
                }
                Settlement::Requeue
            }
        }
    }

    /// Sees to it that nothing starts early: the last moments are slept here, more goes back to
    /// the ladder. `None` when it is time, or will be after `ahead`.
    pub(crate) async fn wait_until_due(&self, envelope: &Envelope, ahead: Duration, queue: &str) -> Option<Settlement> {
        loop {
            let remaining = envelope.due.map_or(Duration::ZERO, |due| due.since(self.ledger.now() + ahead));
            if remaining.is_zero() {
                return None;
            }
            match self.dispatch.ladder.hop(remaining, Duration::ZERO) {
                Hop::Now { wait } => sleep(wait).await,
                Hop::Last { .. } | Hop::Further { .. } => return Some(self.postpone(envelope, queue).await),
            }
        }
    }

    /// Sends the same message again for its (later) due time.
    pub(crate) async fn postpone(&self, envelope: &Envelope, queue: &str) -> Settlement {
        if self.outage.lasts() && envelope.chain.is_some() {
            // The ledger is in charge, and hands the chain out when that is due.
            return Settlement::Ack;
        }
        self.telemetry.count(Count::Rearmed);
        let now = self.ledger.now();
        let mut envelope = Envelope { queue: Some(queue.to_owned()), ..envelope.clone() };
        if let Some(trace) = &mut envelope.trace {
            // Foreign programs do not say when they have sent it.
            trace.published.get_or_insert(now);
        }
        match self.dispatch.send(&envelope, queue, now).await {
            Ok(()) => {
                self.life.reached(Point::PutOff).await;
                Settlement::Ack
            }
            Err(error) => {
                tracing::debug!(kind = envelope.kind, key = envelope.key, %error, "putting a message off failed");
                // The broker has just failed to take it; a pause keeps this from turning in circles.
                sleep(Duration::from_secs(1)).await;
                Settlement::Requeue
            }
        }
    }

    /// Sends what the ledger has accepted, once. What cannot be sent is left to catch-up.
    pub(crate) async fn send_spawned(&self, envelopes: Vec<Envelope>, trace: &Run) {
        if envelopes.is_empty() {
            return;
        }
        if !self.dispatch.broker.keeps_messages() {
            // There they stay in the ledger until they have run, and the task that takes them from there
            // does so for all of them.
            self.jobs_kept.notify_one();
            return;
        }
        let sent = stream::iter(envelopes).map(|mut envelope| async move {
            let queue = envelope.queue.clone().unwrap_or_default();
            let sending = trace.sends(&mut envelope, &queue, || self.ledger.now());
            let sent = tokio::select! {
                biased;
                // Kept in the outbox until then.
                () = self.outage.begins() => Err(PublishError::Unknown("the broker is away".into())),
                sent = self.dispatch.send(&envelope, &queue, self.ledger.now()) => sent,
            };
            trace.sent(sending, sent.is_ok());
            match sent {
                Ok(()) => envelope.id,
                Err(error) => {
                    let Envelope { kind, key, .. } = &envelope;
                    if self.telemetry.notices.begins("jobs that runs asked for and that could not be sent") {
                        tracing::warn!(kind, key, %error, "a job that a run asked for could not be sent; catch-up sends it");
                    }
                    None
                }
            }
        });
        let sent: Vec<Option<String>> = sent.buffer_unordered(IN_FLIGHT).collect().await;
        self.life.reached(Point::SpawnedSent).await;
        if let Err(error) = self.ledger.forget_jobs(sent.into_iter().flatten().collect()).await {
            tracing::warn!(%error, "failed to take sent jobs out of the outbox; they are sent again");
        }
        self.life.reached(Point::SpawnedForgotten).await;
    }

    pub(crate) async fn send_job(&self, envelope: &Envelope, queue: &str, decided: Time, trace: &Run) -> Settlement {
        let mut envelope = Envelope { queue: Some(queue.to_owned()), ..envelope.clone() };
        if !self.dispatch.broker.keeps_messages() {
            let body = sealing::encode(&self.keys(), &envelope);
            let keep = || self.ledger.keep_job(envelope.id.clone().unwrap_or_default(), body.clone());
            if self.ledger.retry_until_stopped("keep a job", keep).await.is_none() {
                return Settlement::Requeue;
            }
        }
        let sending = trace.sends(&mut envelope, queue, || self.ledger.now());
        let sent = self.dispatch.publish_with_retry(&envelope, queue, decided, PUBLISH_PATIENCE).await;
        trace.sent(sending, sent.is_ok());
        match sent {
            Ok(()) => {
                self.life.reached(Point::JobSentAgain).await;
                Settlement::Ack
            }
            Err(error) => {
                if self.telemetry.notices.begins("jobs that could not be sent again") {
                    tracing::warn!(kind = envelope.kind, key = envelope.key, %error, "a job could not be sent again; its message is kept");
                }
                Settlement::Requeue
            }
        }
    }

    /// Where the broker keeps nothing, the ledger does, and now it need not any more.
    pub(crate) async fn forget(&self, id: &str) -> Settlement {
        if self.dispatch.broker.keeps_messages() {
            return Settlement::Ack;
        }
        match self.ledger.retry_until_stopped("forget a job", || self.ledger.forget_jobs(vec![id.to_owned()])).await {
            Some(()) => Settlement::Ack,
            None => Settlement::Requeue,
        }
    }

    /// A job that is kept in the ledger, to be sent; nothing when it cannot be. One that is plain where that is not
    /// taken is set aside: sent, it would be sealed.
    pub(crate) async fn kept(&self, job: &KeptJob) -> Option<Envelope> {
        let number = job.number;
        let envelope = match Envelope::decode(&job.body) {
            Ok(envelope) => envelope.read_at(&self.ledger.wall_clock()),
            Err(bad) => {
                if self.telemetry.notices.begins("kept jobs that cannot be read") {
                    tracing::error!(number, %bad, "a job kept in the ledger cannot be read");
                }
                return None;
            }
        };
        let Err(why) = check(&self.keys(), &envelope) else { return Some(envelope) };
        let Some(id) = envelope.id.clone() else {
            if self.telemetry.notices.begins("kept jobs that have no id") {
                tracing::error!(number, %why, "a job kept in the ledger has no id, and stays there: its payload cannot be used");
            }
            return None;
        };
        let reason = BadMessage::Sealed(why).to_string();
        if self.telemetry.notices.begins("kept jobs that cannot be used") {
            let Envelope { kind, key, .. } = &envelope;
            tracing::warn!(number, kind, key, reason, "quarantined: it was kept in the ledger");
        }
        self.telemetry.count(Count::Quarantined);
        let body = set_aside(&self.keys(), &Bytes::copy_from_slice(&job.body)).to_vec();
        let from = envelope.queue.unwrap_or_default();
        let now = self.ledger.now();
        if let Err(error) = self.ledger.quarantine(from, reason, body, Some(id), now).await
            && self.telemetry.notices.begins("kept jobs that the quarantine did not take")
        {
            tracing::warn!(number, %error, "the quarantine could not be reached; the job stays where it is");
        }
        None
    }
}
