//! The end of a run, and what follows from it.

use roundelay_model::clock::Time;
use roundelay_model::guard::Manual;
use roundelay_model::ids::TickNo;
use roundelay_model::outcome::{Next, Verdict};
use roundelay_model::progress::Progress;

use super::jobs::accept;
use super::page::{Ended, Held, Inserted, Page, Wanted};
use super::{Decide, wants_twin};
use crate::chain::{ChainState, Hint};
use crate::finish::{Finish, FinishRequest, Member};

impl Decide for FinishRequest {
    type Answer = Finish;

    fn wants(&self, wanted: &mut Wanted) {
        wanted.epoch(self.epoch, false);
        if !self.parent.is_none() {
            wanted.epoch(self.parent, false);
        }
        wanted.new_epochs += i64::try_from(self.members.len() + self.chains.len()).unwrap_or(i64::MAX);
        wanted.names.extend(self.chains.iter().map(|chain| (chain.kind.clone(), chain.key.clone())));
    }

    fn wants_further(&self, page: &mut Page, wanted: &mut Wanted) {
        if page.epoch(self.epoch).is_some_and(|held| held.chain.once) {
            wants_twin(page, self.epoch, wanted);
        }
    }

    fn decide(&self, page: &mut Page) -> Finish {
        let (tick, attempt, due) = self.place();
        let left = |held: &&mut Held| held.fence == self.fence && !held.is_held();
        let before = page.epoch(self.epoch).filter(left).and_then(|held| self.written_before(&held.chain));
        if let Some(answer) = before {
            return answer;
        }
        let holds = |held: &&mut Held| held.fence == self.fence && held.is_held();
        let written = page.epoch(self.epoch).filter(holds).map(|held| {
            // `nominal` stays with a tick through its attempts and moves with the next one. A
            // finish ends nothing but its own run, so a chain paused meanwhile stays paused.
            held.chain.nominal = self.nominal().unwrap_or(held.chain.nominal);
            if self.next == Next::End {
                held.chain.state = ChainState::Retired;
            }
            let hint = &mut held.chain.hint;
            (hint.tick, hint.attempt, hint.due) = (tick, attempt, due);
            held.release();
            held.chain.sent = self.next == Next::Gather;
            if self.ran {
                held.chain.last_finish = self.at;
            }
            if self.carry.is_some() {
                (held.carry, held.carries) = (self.carry.clone(), true);
            }
            // A member is gone with its batch.
            if self.learned.is_some() && self.parent.is_none() {
                (held.learned, held.learns) = (self.learned.clone(), true);
            }
            // A retired chain waits for no batch.
            let members = if held.chain.state == ChainState::Retired { 0 } else { self.members.len() };
            let members = i64::try_from(members).unwrap_or(i64::MAX);
            (held.batch_total, held.chain.batch_open, held.batch_failed) = (members, members, 0);
            (held.expected, held.watch_at, held.looks) = (due, self.watch_at(), 0);
            held.moved = true;
            let chain = &held.chain;
            (chain.hint.clone(), chain.state, chain.once.then_some(chain.last_start), held.owner.clone())
        });
        let verdict = if written.is_some() { self.verdict.as_str() } else { "fenced" };
        let ended = Ended {
            at: self.at,
            verdict,
            reason: self.reason.clone(),
            left_out: self.left_out,
            progress: self.progress.as_ref().map(Progress::text),
            only_if_open: false,
        };
        // An end that is written stays: a finish whose answer was lost may be asked again when the chain has moved on.
        if page.writes.ended.get(self.fence).is_none_or(|there| there.verdict == "lost" && there.reason.is_none()) {
            page.writes.ended.insert(self.fence, ended);
        }
        let Some((hint, state, manual_start, owner)) = written else { return Finish::Fenced };
        if let Some(start) = manual_start.filter(|_| hint.parent.is_none()) {
            count_for_rotation(page, self, &hint, start);
        }
        if let Some(whole) = self.failure() {
            page.failed(&hint.kind, &hint.key, &whole, self.at);
        }
        let mut messages = accept(page, (&hint.kind, &hint.key), &self.spawned, &self.chains, &self.failed, self.at);
        if self.from_batch {
            page.writes.over.push(self.epoch);
        }
        if state != ChainState::Retired {
            messages.extend(begin_members(page, owner.as_deref(), self));
        }
        messages.extend(ended_member(page, self));
        messages.extend((state == ChainState::Active && self.next != Next::Gather).then_some(hint));
        Finish::Applied(messages)
    }
}

/// A manual run is a run of its chain: the rotation counts it, takes what it hands on and has learned, and ends when it
/// says so. `start` is when the run started.
fn count_for_rotation(page: &mut Page, finish: &FinishRequest, manual: &Hint, start: Time) {
    let Some(rotation) = page.named(&manual.kind, &manual.key, false) else { return };
    if finish.ran {
        rotation.chain.last_start = rotation.chain.last_start.max(start);
        rotation.chain.last_finish = rotation.chain.last_finish.max(finish.at);
    }
    if finish.carry.is_some() {
        (rotation.carry, rotation.carries) = (finish.carry.clone(), true);
    }
    if finish.learned.is_some() {
        (rotation.learned, rotation.learns) = (finish.learned.clone(), true);
    }
    rotation.chain.beside &= finish.next != Next::End;
    rotation.moved = true;
    if finish.verdict == Verdict::Retired {
        rotation.chain.state = ChainState::Retired;
        // The members of its batch are not wanted any more. A run of one cannot be finished.
        (rotation.batch_total, rotation.chain.batch_open) = (0, 0);
        let epoch = rotation.chain.hint.epoch;
        page.writes.over.push(epoch);
    }
}

/// Begins what the tick waits for.
fn begin_members(page: &mut Page, owner: Option<&str>, finish: &FinishRequest) -> Vec<Hint> {
    let mut hints = Vec::with_capacity(finish.members.len());
    for Member { kind, key, queue, payload, due, depth } in &finish.members {
        let epoch = page.take_epoch();
        let member = Inserted {
            epoch,
            queue: queue.clone(),
            priority: None,
            nominal: *due,
            due: *due,
            watch_at: *due + finish.slack,
            payload: payload.clone(),
            owner: owner.map(Into::into),
            schedule: None,
            depth: *depth,
            manual: Manual::default(),
            beside: false,
        };
        page.writes.inserted.insert((kind.clone(), key.clone(), true, finish.epoch), member);
        hints.push(Hint {
            kind: kind.clone(),
            key: key.clone(),
            queue: queue.clone(),
            epoch,
            tick: TickNo::FIRST,
            attempt: 1,
            due: *due,
            parent: finish.epoch,
            priority: None,
        });
    }
    hints
}

/// A member of a batch that has ended is counted; after the last one, its chain is due.
fn ended_member(page: &mut Page, finish: &FinishRequest) -> Option<Hint> {
    if finish.parent.is_none() || finish.next != Next::End {
        return None;
    }
    let held = page.epoch(finish.parent).filter(|held| held.chain.batch_open > 0)?;
    held.chain.batch_open -= 1;
    held.batch_failed += i64::from(finish.counts_as_failed());
    held.moved = true;
    if held.chain.batch_open > 0 {
        return None;
    }
    held.chain.hint.due = finish.at;
    held.chain.sent = false;
    (held.expected, held.watch_at) = (finish.at, finish.at + finish.slack);
    (held.chain.state == ChainState::Active).then(|| held.chain.hint.clone())
}
