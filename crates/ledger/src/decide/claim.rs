//! A claim: may this worker run this attempt?

use roundelay_model::deaths::UNHEARD;
use roundelay_model::failure::Batch;
use roundelay_model::ids::TickNo;

use super::grant::{ChainRow, ClaimDecision, decide_claim};
use super::page::{Begun, Held, Page, Wanted};
use super::{Decide, wants_twin};
use crate::chain::ChainState;
use crate::claim::{Claim, ClaimRequest, Grant};

impl ClaimRequest {
    fn is_of_a_first_tick(&self) -> bool {
        self.hint.parent.is_none() && self.hint.tick == TickNo::FIRST
    }
}

impl Decide for ClaimRequest {
    type Answer = Claim;

    fn wants(&self, wanted: &mut Wanted) {
        wanted.epoch(self.hint.epoch, true);
        wanted.fences += 1;
        if self.takeover {
            wanted.taken_over.insert(self.hint.epoch);
        }
        // In a first tick the other row is looked for whatever the chain's own says, so it costs no further round trip.
        if self.is_of_a_first_tick() {
            wanted.names.insert((self.hint.kind.clone(), self.hint.key.clone()));
        }
    }

    fn wants_further(&self, page: &mut Page, wanted: &mut Wanted) {
        if self.is_of_a_first_tick() {
            return;
        }
        // Seldom: the chain has begun anew since, or this is an older copy of the ledger.
        if self.hint.parent.is_none() && page.epoch(self.hint.epoch).is_none() {
            wanted.names.insert((self.hint.kind.clone(), self.hint.key.clone()));
        }
        wants_twin(page, self.hint.epoch, wanted);
    }

    fn decide(&self, page: &mut Page) -> Claim {
        let (asked, now) = (&self.hint, page.now);
        let found = match page.epoch(asked.epoch) {
            Some(held) => Some(held.clone()),
            None if !asked.parent.is_none() => None,
            None => page.newest_named(&asked.kind, &asked.key).cloned(),
        };
        let twin = found.as_ref().filter(|held| held.chain.has_twin()).and_then(|held| page.twin(&held.chain).cloned());
        let rows = (found.as_ref().map(|held| &held.chain), twin.as_ref().map(|held| &held.chain));
        let untold = rows.0.zip(rows.1).and_then(|(chain, twin)| chain.untold(twin));
        if let Some(rotation) = untold.and_then(|rotation| page.epoch(rotation)) {
            (rotation.chain.beside, rotation.moved) = (true, true);
        }
        let refused = match decide_claim(rows.0, rows.1, self, now) {
            ClaimDecision::Grant(refused) => refused,
            ClaimDecision::Answer(answer) => {
                if let Some((comes, watch_at)) = ChainRow::put_off(&answer)
                    && let Some(held) = page.epoch(asked.epoch)
                {
                    (held.expected, held.watch_at) = (held.expected.max(comes), held.watch_at.max(watch_at));
                    held.moved = true;
                }
                if let (Claim::Future, Some(found)) = (&answer, found)
                    && found.chain.state != ChainState::Retired
                    && let Some(held) = page.epoch(found.chain.hint.epoch)
                {
                    held.become_state(ChainState::Quarantined);
                }
                if answer == Claim::SetAside {
                    page.set_aside(asked.epoch);
                }
                return answer;
            }
        };
        let Some(found) = found else { return Claim::Idle };
        let fence = page.take_fence();
        let lost = found.is_held();
        if lost {
            // The holder never finished, and is gone; or never got the answer.
            let unheard = (self.again && found.chain.session == self.session).then_some(UNHEARD);
            page.lost(found.fence, unheard);
        }
        page.writes.begun.push(Begun {
            fence,
            epoch: asked.epoch,
            tick: asked.tick,
            attempt: asked.attempt,
            previous: found.fence,
            worker: self.worker.clone(),
            due: found.chain.hint.due,
        });
        if let Some(held) = page.epoch(asked.epoch) {
            held.fence = fence;
            if lost {
                (held.looks, held.watch_at) = (0, held.watch_at.min(ChainRow::watched_after_death(now)));
            }
            held.hold(self.session);
            // A message that is claimed has been sent, whether or not the note of that has come.
            held.chain.sent = true;
            if refused.is_none() && held.batch_total == 0 {
                (held.chain.started_tick, held.chain.last_start) = (held.chain.hint.tick, now);
            }
            held.moved = true;
        }
        let Held { mut chain, payload, owner, mut carry, depth, batch_total: total, batch_failed: failed, .. } = found;
        if let Some(rotation) = twin.filter(|_| chain.once) {
            (chain.schedule, carry) = (rotation.chain.schedule, rotation.carry);
        }
        let batch = Some(Batch { total, failed }).filter(|batch| batch.total > 0);
        let (nominal, due, once) = (chain.nominal, chain.hint.due, chain.once);
        let grant = Grant {
            fence,
            last_start: chain.last_start,
            nominal,
            due,
            at: now,
            payload,
            once,
            lost,
            refused,
            carry,
            owner,
            schedule: chain.schedule,
            batch,
            depth,
        };
        Claim::Granted(grant)
    }
}
