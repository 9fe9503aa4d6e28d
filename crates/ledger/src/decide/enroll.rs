//! Chains begin, begin anew, or change their place and payload.

use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, TickNo};

use super::Decide;
use super::page::{Held, Inserted, Page, Wanted};
use crate::chain::{ChainState, Hint};
use crate::enroll::{Enrolled, NewChain};

/// [`crate::Protocol::enroll`]
pub(crate) struct Enroll(pub(crate) Vec<NewChain>);

impl Decide for Enroll {
    type Answer = Vec<Enrolled>;

    fn wants(&self, wanted: &mut Wanted) {
        wanted.names.extend(self.0.iter().map(|chain| (chain.kind.clone(), chain.key.clone())));
        wanted.new_epochs += i64::try_from(self.0.len()).unwrap_or(i64::MAX);
    }

    fn decide(&self, page: &mut Page) -> Vec<Enrolled> {
        self.0.iter().map(|chain| enroll(page, chain)).collect()
    }
}

pub(super) fn enroll(page: &mut Page, chain: &NewChain) -> Enrolled {
    let enrolled = enroll_one(page, chain);
    if chain.once && matches!(enrolled, Enrolled::Created(_)) {
        if let Some(rotation) = page.named(&chain.kind, &chain.key, false) {
            (rotation.chain.beside, rotation.moved) = (true, true);
        } else if let Some(rotation) = page.begins(&chain.kind, &chain.key, false) {
            rotation.beside = true;
        }
    }
    enrolled
}

fn enroll_one(page: &mut Page, chain: &NewChain) -> Enrolled {
    let runs = |manual: &mut Held| manual.chain.state != ChainState::Retired;
    // It may have begun long ago, or in the same group.
    let beside = !chain.once
        && (page.named(&chain.kind, &chain.key, true).is_some_and(runs)
            || page.begins(&chain.kind, &chain.key, true).is_some());
    let found = page.named(&chain.kind, &chain.key, chain.once);
    let created = |epoch, tick| {
        Enrolled::Created(Hint {
            kind: chain.kind.clone(),
            key: chain.key.clone(),
            queue: chain.queue.clone(),
            epoch,
            tick,
            attempt: 1,
            due: chain.due,
            parent: Epoch::NONE,
            priority: chain.priority,
        })
    };
    let Some(held) = found else {
        if let Some(twin) = page.begins(&chain.kind, &chain.key, chain.once) {
            // Twice in one group.
            let same = chain.is_like(
                (&twin.queue, twin.priority),
                &twin.payload,
                twin.owner.as_deref(),
                twin.schedule.as_deref(),
            );
            if chain.once || chain.only_new || same {
                return Enrolled::Unchanged;
            }
            (twin.queue, twin.priority) = (chain.queue.clone(), chain.priority);
            twin.payload.clone_from(&chain.payload);
            twin.owner.clone_from(&chain.owner);
            let rescheduled = chain.reschedules(twin.schedule.as_deref());
            if rescheduled {
                twin.schedule.clone_from(&chain.schedule);
            }
            return Enrolled::Updated { rescheduled };
        }
        let epoch = page.take_epoch();
        let new = Inserted {
            epoch,
            queue: chain.queue.clone(),
            priority: chain.priority,
            nominal: chain.nominal,
            due: chain.due,
            watch_at: chain.watch_at,
            payload: chain.payload.clone(),
            owner: chain.owner.clone(),
            schedule: chain.schedule.clone(),
            depth: chain.depth,
            manual: chain.manual,
            beside,
        };
        page.writes.inserted.insert((chain.kind.clone(), chain.key.clone(), chain.once, Epoch::NONE), new);
        return created(epoch, TickNo::FIRST);
    };
    if held.chain.state == ChainState::Retired {
        if !chain.revive && !chain.once {
            return Enrolled::Retired;
        }
        // The manual runs of a chain are ticks of one epoch, so that their records stay its own. Only one that was left
        // in the middle is not gone on from.
        let is_over = !held.is_held() && held.chain.batch_open == 0 && held.chain.started_tick < held.chain.hint.tick;
        let goes_on = chain.once && is_over;
        let (old, tick) = (held.chain.hint.epoch, if goes_on { held.chain.hint.tick } else { TickNo::FIRST });
        let held = match goes_on {
            true => page.epoch(old),
            false => {
                let epoch = page.take_epoch();
                page.new_epoch(old, epoch)
            }
        };
        let Some(held) = held else { return Enrolled::Retired };
        (held.chain.hint.attempt, held.chain.sent, held.looks) = (1, false, 0);
        (held.moved, held.renamed, held.chain.manual) = (true, true, chain.manual);
        let hint = &mut held.chain.hint;
        (hint.tick, hint.due, hint.queue, hint.priority) = (tick, chain.due, chain.queue.clone(), chain.priority);
        (held.chain.nominal, held.chain.state) = (chain.nominal, ChainState::Active);
        (held.expected, held.watch_at, held.payload) = (chain.due, chain.watch_at, chain.payload.clone());
        (held.owner, held.chain.schedule) = (chain.owner.clone(), chain.schedule.clone());
        held.depth = chain.depth;
        if !goes_on {
            let never = Time::default();
            (held.chain.started_tick, held.chain.last_start, held.chain.last_finish) = (TickNo::NONE, never, never);
        }
        (held.carry, held.carries) = (None, true);
        (held.learned, held.learns) = (None, true);
        let epoch = held.chain.hint.epoch;
        return created(epoch, tick);
    }
    let place = (&*held.chain.hint.queue, held.chain.hint.priority);
    let same = chain.is_like(place, &held.payload, held.owner.as_deref(), held.chain.schedule.as_deref());
    if chain.once || chain.only_new || same {
        return Enrolled::Unchanged;
    }
    (held.chain.hint.queue, held.chain.hint.priority) = (chain.queue.clone(), chain.priority);
    held.payload.clone_from(&chain.payload);
    held.owner.clone_from(&chain.owner);
    let rescheduled = chain.reschedules(held.chain.schedule.as_deref());
    if rescheduled {
        held.chain.schedule.clone_from(&chain.schedule);
    }
    held.renamed = true;
    Enrolled::Updated { rescheduled }
}
