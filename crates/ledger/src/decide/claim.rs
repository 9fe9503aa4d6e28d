//! A claim: may this worker run this attempt?

use roundelay_model::deaths::UNHEARD;
use roundelay_model::failure::Batch;
use roundelay_model::ids::TickNo;

use super::grant::{ChainRow, ClaimDecision, decide_claim, starts_at};
use super::page::{Begun, Page, Wanted};
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
        let newest = |page: &mut Page| page.newest_place(&asked.kind, &asked.key).filter(|_| asked.parent.is_none());
        let found = page.place(asked.epoch).or_else(|| newest(page));
        let twin = found.filter(|at| page.at(*at).chain.has_twin()).and_then(|at| page.twin_place(at));
        if let (Some(found), Some(twin)) = (found, twin)
            && let Some(rotation) = page.at(found).chain.untold(&page.at(twin).chain)
            && let Some(rotation) = page.epoch(rotation)
        {
            (rotation.chain.beside, rotation.moved) = (true, true);
        }
        let chain = |at: Option<usize>| at.map(|at| &page.at(at).chain);
        // All that follows counts from when the run may start.
        let at = chain(found).map_or(now, |chain| starts_at(chain.hint.due, self.ahead, now));
        let refused = match decide_claim(chain(found), chain(twin), self, at) {
            ClaimDecision::Grant(refused) => refused,
            ClaimDecision::Answer(answer) => {
                self.put_away(&answer, found, page);
                return answer;
            }
        };
        let Some(found) = found else { return Claim::Idle };
        let fence = page.take_fence();
        let held = page.at(found);
        let (previous, due, lost) = (held.fence, held.chain.hint.due, held.is_held());
        // A manual run has the schedule of its rotation, and goes on from what that hands on and has learned.
        let of_rotation = twin.map(|at| page.at(at)).filter(|_| held.chain.once).unwrap_or(held);
        let batch = Batch { total: held.batch_total, failed: held.batch_failed };
        let grant = Grant {
            fence,
            last_start: held.chain.last_start,
            nominal: held.chain.nominal,
            due,
            at,
            payload: held.payload.clone(),
            once: held.chain.once,
            lost,
            refused,
            carry: of_rotation.carry.clone(),
            learned: of_rotation.learned.clone(),
            owner: held.owner.clone(),
            schedule: of_rotation.chain.schedule.clone(),
            batch: Some(batch).filter(|batch| batch.total > 0),
            depth: held.depth,
        };
        if lost {
            // The holder never finished, and is gone; or never got the answer.
            let unheard = (self.again && held.chain.session == self.session).then_some(UNHEARD);
            page.lost(previous, unheard);
        }
        page.writes.begun.push(Begun {
            fence,
            epoch: asked.epoch,
            tick: asked.tick,
            attempt: asked.attempt,
            previous,
            worker: self.worker.clone(),
            due,
            at,
        });
        let held = page.at_mut(found);
        held.fence = fence;
        if lost {
            (held.looks, held.watch_at) = (0, held.watch_at.min(ChainRow::watched_after_death(at)));
        }
        held.hold(self.session);
        // A message that is claimed has been sent, whether or not the note of that has come.
        held.chain.sent = true;
        if grant.refused.is_none() && held.batch_total == 0 {
            (held.chain.started_tick, held.chain.last_start) = (held.chain.hint.tick, at);
        }
        held.moved = true;
        Claim::Granted(grant)
    }
}

impl ClaimRequest {
    /// Writes what follows from a claim that is not granted. `found` is the place of its chain.
    fn put_away(&self, answer: &Claim, found: Option<usize>, page: &mut Page) {
        if let Some((comes, watch_at)) = ChainRow::put_off(answer)
            && let Some(held) = page.epoch(self.hint.epoch)
        {
            (held.expected, held.watch_at) = (held.expected.max(comes), held.watch_at.max(watch_at));
            held.moved = true;
        }
        if let (Claim::Future, Some(found)) = (answer, found) {
            let held = page.at_mut(found);
            if held.chain.state != ChainState::Retired {
                held.become_state(ChainState::Quarantined);
            }
        }
        if *answer == Claim::SetAside {
            page.set_aside(self.hint.epoch);
        }
    }
}
