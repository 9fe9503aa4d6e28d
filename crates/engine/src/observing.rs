//! What a worker counts, logs and traces of its runs.

use std::collections::HashMap;
use std::sync::Arc;

use roundelay_broker::Delivery;
use roundelay_model::deaths::SET_ASIDE;
use roundelay_model::ids::Fence;
use roundelay_model::job::{ChainRef, Envelope};
use roundelay_model::outcome::{Decision, Verdict};
use roundelay_model::reason::{Class, Reason};

use crate::desk::Desk;
use crate::life::{Life, Point};
use crate::queue::QueueRun;
use crate::settlement::Settlement;
use crate::telemetry::figures::KindFigures;
use crate::telemetry::{Count, Telemetry};
use crate::trace::{Run, Tracer};

pub(crate) struct Observing {
    pub(crate) telemetry: Arc<Telemetry>,
    /// By kind.
    pub(crate) figures: HashMap<String, KindFigures>,
    /// Records what becomes of deliveries.
    pub(crate) tracer: Tracer,
    /// Takes what runs report.
    pub(crate) desk: Arc<Desk>,
    pub(crate) life: Life,
}

impl Observing {
    pub(crate) fn figures(&self, kind: &str) -> Option<&KindFigures> {
        self.figures.get(kind)
    }

    /// Settles a delivery with the broker.
    pub(crate) async fn settle(&self, delivery: Delivery, settlement: Settlement) {
        match settlement {
            Settlement::Ack => delivery.ack().await,
            Settlement::Requeue => {
                self.telemetry.count(Count::Requeued);
                delivery.requeue().await;
            }
        }
        self.life.reached(Point::Settled).await;
    }

    /// Counts how an attempt ended, and logs it unless it worked, as one of its cause. `claim` is the
    /// chain's tick and its fence, `fenced` whether another worker had claimed it meanwhile, so that
    /// nothing of it counts.
    pub(crate) fn note(
        &self,
        envelope: &Envelope,
        queue: &QueueRun,
        claim: Option<(&ChainRef, Fence)>,
        decision: &Decision,
        fenced: bool,
        trace: &Run,
    ) {
        let figures = self.figures(&envelope.kind);
        let class = decision.reason.as_ref().map(|reason| reason.class);
        if fenced {
            self.telemetry.count(Count::Fenced);
            figures.inspect(|figures| figures.fenced());
        } else {
            self.telemetry.verdict(decision.verdict);
            figures.inspect(|figures| {
                figures.ended(decision.verdict, class, claim.is_some());
                figures.left_out(decision.left_out);
            });
        }
        match fenced {
            false => {
                let failed = matches!(decision.verdict, Verdict::Failed | Verdict::Retried);
                trace.verdict(decision.verdict.as_str(), class, failed);
            }
            true => trace.verdict("fenced", Some(Class::Fenced), true),
        }
        let (word, class, reason) = match (&decision.reason, fenced) {
            (None, false) => return,
            (Some(reason), false) => (decision.verdict.as_str(), reason.class, reason.text.as_str()),
            (_, true) => {
                ("fenced", Class::Fenced, "another session has claimed the chain meanwhile; nothing of this run counts")
            }
        };
        // Each of them is in the ledger, with its reason.
        let cause = format!("runs of {} that end as {word}: {}", envelope.kind, class.as_str());
        if !self.telemetry.notices.begins(&cause) {
            return;
        }
        tracing::info!(
            kind = envelope.kind,
            key = envelope.key,
            queue = &*queue.name,
            epoch = claim.map(|(chain, _)| chain.epoch.get()),
            tick = claim.map(|(chain, _)| chain.tick.get()),
            id = envelope.id,
            attempt = envelope.attempt,
            fence = claim.map(|(_, fence)| fence.get()),
            class = class.as_str(),
            code = decision.reason.as_ref().and_then(Reason::code),
            reason,
            "{word}"
        );
    }

    /// Counts and logs that a run is set aside since workers have died over it.
    pub(crate) fn set_aside(&self, envelope: &Envelope, queue: &QueueRun, then: &str) {
        self.telemetry.count(Count::SetAside);
        if self.telemetry.notices.begins("runs that workers have died over") {
            tracing::error!(
                kind = envelope.kind,
                key = envelope.key,
                id = envelope.id,
                queue = &*queue.name,
                reason = SET_ASIDE,
                "set aside; {then}"
            );
        }
    }

    /// Counts and logs that a job does not run.
    pub(crate) fn says_no(&self, envelope: &Envelope, queue: &QueueRun, verdict: Verdict, reason: Reason, trace: &Run) {
        let decision = Decision::end(verdict, reason);
        self.note(envelope, queue, None, &decision, false, trace);
    }
}
