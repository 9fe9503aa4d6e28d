//! The claim: a worker asks the ledger whether a tick is its own to run.

use std::sync::Arc;

use roundelay_broker::Delivery;
use roundelay_ledger::{Claim, ClaimRequest, Hint, LedgerError};
use roundelay_model::deaths;
use roundelay_model::pacing::fair::Tenant;
use roundelay_model::waits::Waits;
use tokio::time::Instant;

use crate::core::Core;
use crate::in_hand::InHand;
use crate::life::Point;
use crate::patient::{FIRST_PAUSE, LEDGER_PAUSE};
use crate::permit::Permit;
use crate::queue::QueueRun;
use crate::suspects::{Asking, Kept};
use crate::trace::Run;
use crate::vitals::Term;

/// The answer to a claim, and the session for which it was made.
pub(super) struct Answered {
    pub(super) permit: Permit,
    pub(super) claim: Claim,
    pub(super) term: Arc<Term>,
    /// What must not run beside it is kept away.
    pub(super) _kept: Option<Kept>,
}

impl Core {
    /// Leave to start, and then the claim. While the ledger does not answer nothing is consumed
    /// any more: deliveries are held, and those beyond the prefetch stay with the broker. `None`
    /// when the message is to come again.
    pub(super) async fn claim(
        &self,
        queue: &QueueRun,
        delivery: &Delivery,
        in_hand: &InHand<'_>,
        (request, tenant): (ClaimRequest, &Tenant),
        trace: &Run,
    ) -> Option<Answered> {
        let (mut pause, mut again) = (FIRST_PAUSE, false);
        // A claim whose answer was lost is made again as what it was.
        let (mut asking, mut prepared) = (Asking::new(&self.suspects, request.hint.epoch), 0);
        let mut waited = Waits::default();
        let may_be_stale = queue.throttle.is_some() && (delivery.redelivered || self.publishing.outage.leaves_stale());
        if may_be_stale && self.is_past(&request.hint).await {
            return self.claim_stale(queue, delivery, in_hand, (request, tenant)).await;
        }
        loop {
            let waiting = trace.begin();
            let (kind, due) = (&request.hint.kind, Some(request.hint.due));
            let mut permit = self.permit(queue, kind, due, tenant, (delivery, true)).await?;
            waited = permit.waits.and(waited);
            permit.waits = waited;
            self.observing.life.reached(Point::Permitted).await;
            if self.catalog.kind(&request.hint.kind).is_some_and(|kind| kind.follows_the_wall()) {
                tokio::select! {
                    biased;
                    () = self.stop.put_back(queue) => return None,
                    () = self.wall.is_followed() => {}
                }
            }
            let permitted = trace.begin();
            let turn = in_hand.turn.lock().await;
            let (term, answer) = loop {
                // While this worker cannot show that it lives, it claims nothing: also when its turn, or the answer
                // before, has taken longer than its lease.
                // An order to close the queue that was read meanwhile counts first.
                let term = tokio::select! {
                    biased;
                    () = self.stop.put_back(queue) => return None,
                    term = self.vitals.term() => term,
                };
                let again_alone = again && self.in_hand.count(in_hand.epoch) == 1;
                let session = term.session();
                let request = ClaimRequest { session, again: again_alone, prepared, ..request.clone() };
                again = true;
                let asked = Instant::now();
                let answer = self.ledger.claim(request).await;
                if answer.is_ok() {
                    self.claim_time.took(asked.elapsed());
                }
                let Ok(Claim::Suspected(deaths)) = answer else { break (term, answer) };
                drop(asking.kept.take());
                match deaths::company(deaths).and_then(|company| self.suspects.keep(company)) {
                    Some(guard) => (asking.kept, prepared) = (Some(guard), deaths),
                    // It comes again later, and others start meanwhile.
                    None => break (term, answer),
                }
            };
            drop(turn);
            let error = match answer {
                Ok(claim) => {
                    self.ledger.comeback.answered();
                    trace.spent("permit", (waiting, permitted), || queue.paced_by());
                    trace.ended("claim", permitted);
                    return Some(Answered { permit, claim, term, _kept: asking.kept.take() });
                }
                Err(LedgerError::Closed) => return None,
                Err(error) => error,
            };
            asking.lost = Some(term);
            // A slot is for now. Kept until the ledger is back, they would all start at once.
            drop(permit);
            if self.observing.telemetry.notices.begins("claims that the ledger does not take") {
                tracing::warn!(%error, "failed to claim; trying again until the ledger answers");
            }
            tokio::select! {
                biased;
                () = self.ledger.comeback.wait(pause) => {}
                () = self.stop.put_back(queue) => return None,
            }
            pause = (pause * 2).min(LEDGER_PAUSE);
        }
    }

    /// Whether the ledger is past this tick or attempt, as far as it tells at once. After an outage, messages come for
    /// most chains that run has gone past, and each would take a slot along and hand it back, until that was too old.
    async fn is_past(&self, hint: &Hint) -> bool {
        if !hint.parent.is_none() {
            return false;
        }
        let Ok(chains) = self.ledger.chains(hint.kind.clone(), hint.key.clone()).await else { return false };
        let chain = chains.into_iter().find(|chain| chain.hint.epoch == hint.epoch);
        chain.is_some_and(|chain| (chain.hint.tick, chain.hint.attempt) > (hint.tick, hint.attempt))
    }

    /// The claim of what the ledger is past, which needs no leave to start: a chain never goes back.
    async fn claim_stale(
        &self,
        queue: &QueueRun,
        delivery: &Delivery,
        in_hand: &InHand<'_>,
        (request, tenant): (ClaimRequest, &Tenant),
    ) -> Option<Answered> {
        let (kind, due) = (request.hint.kind.clone(), request.hint.due);
        let turn = in_hand.turn.lock().await;
        let term = tokio::select! {
            biased;
            () = self.stop.put_back(queue) => return None,
            term = self.vitals.term() => term,
        };
        let claim = self.ledger.claim(ClaimRequest { session: term.session(), ..request }).await.ok()?;
        drop(turn);
        let permit = match &claim {
            // What is waited for after the claim has not delayed it.
            Claim::Granted(_) => {
                let permit = self.permit(queue, &kind, Some(due), tenant, (delivery, true)).await?;
                Permit { waits: Waits::default(), ..permit }
            }
            _ => Permit { slot: None, blocked: None, waits: Waits::default(), _room: None, _seat: None },
        };
        Some(Answered { permit, claim, term, _kept: None })
    }
}
