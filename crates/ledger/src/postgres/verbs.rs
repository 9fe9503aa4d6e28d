//! The verbs that write, as decisions on a [`Page`] (pure). [`super::lane`] decides when they run, and when their
//! answers are given.

use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::deaths::UNHEARD;
use roundelay_model::failure::{Batch, FailedItem};
use roundelay_model::guard::Manual;
use roundelay_model::ids::{Epoch, TickNo};
use roundelay_model::outcome::{Next, Verdict};
use roundelay_model::progress::Progress;

use super::page::{Begun, Ended, Held, Inserted, Job, Page, Quarantined, Wanted};
use crate::catch_up::LookAgain;
use crate::chain::{ChainState, Hint, Sent};
use crate::claim::{Claim, ClaimRequest, Grant};
use crate::decide_claim::{ChainRow, ClaimDecision, decide_claim};
use crate::enroll::{Enrolled, NewChain};
use crate::finish::{Finish, FinishRequest, Member};
use crate::jobs::SpawnedJob;

/// Something to decide and write. It may be decided more than once, each time on another page,
/// when a transaction has to be tried again.
pub(super) trait Decide: Send {
    /// The verb's answer.
    type Answer: Send;

    /// Adds what the verb needs to `wanted`.
    fn wants(&self, wanted: &mut Wanted);

    /// Adds what else the verb needs, once the locked rows are known.
    fn wants_further(&self, _page: &mut Page, _wanted: &mut Wanted) {}

    /// Decides, and changes the page.
    fn decide(&self, page: &mut Page) -> Self::Answer;
}

/// Also the other row of the chain, where there may be one.
fn wants_twin(page: &mut Page, epoch: Epoch, wanted: &mut Wanted) {
    if let Some(held) = page.epoch(epoch).filter(|held| held.chain.has_twin()) {
        wanted.names.insert((held.chain.hint.kind.clone(), held.chain.hint.key.clone()));
    }
}

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
            // A retired chain waits for no batch.
            let members = if held.chain.state == ChainState::Retired { 0 } else { self.members.len() };
            let members = i64::try_from(members).unwrap_or(i64::MAX);
            (held.batch_total, held.chain.batch_open, held.batch_failed) = (members, members, 0);
            (held.expected, held.watch_at, held.looks) = (due, self.watch_at(), 0);
            held.moved = true;
            (held.chain.clone(), held.owner.clone())
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
        if page.writes.ended.get(&self.fence).is_none_or(|there| there.verdict == "lost" && there.reason.is_none()) {
            page.writes.ended.insert(self.fence, ended);
        }
        let Some((chain, owner)) = written else { return Finish::Fenced };
        if chain.once {
            count_for_rotation(page, self, &chain);
        }
        let ChainRow { hint, state, .. } = chain;
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

/// A manual run is a run of its chain: the rotation counts it, takes what it hands on, and ends when it says so.
fn count_for_rotation(page: &mut Page, finish: &FinishRequest, manual: &ChainRow) {
    let Some(rotation) = page.twin(manual) else { return };
    if finish.ran {
        rotation.chain.last_start = rotation.chain.last_start.max(manual.last_start);
        rotation.chain.last_finish = rotation.chain.last_finish.max(finish.at);
    }
    if finish.carry.is_some() {
        (rotation.carry, rotation.carries) = (finish.carry.clone(), true);
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

/// Keeps what a run asks for; answers the first messages of the chains among it that are new.
fn accept(
    page: &mut Page,
    (kind, key): (&str, &str),
    spawned: &[SpawnedJob],
    chains: &[NewChain],
    failed: &[FailedItem],
    at: Time,
) -> Vec<Hint> {
    for job in spawned {
        page.job(&job.id, Job::Add(job.body.clone(), at));
    }
    for part in failed {
        page.failed(kind, key, part, at);
    }
    let begun = chains.iter().filter_map(|chain| match enroll(page, chain) {
        Enrolled::Created(hint) => Some(hint),
        _ => None,
    });
    begun.collect()
}

/// [`crate::Protocol::enroll`]
pub(super) struct Enroll(pub(super) Vec<NewChain>);

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

fn enroll(page: &mut Page, chain: &NewChain) -> Enrolled {
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

/// [`crate::Protocol::mark_sent`], and with `slack` [`crate::Protocol::enrolled_sent`]
pub(super) struct MarkSent {
    pub(super) sent: Vec<Sent>,
    pub(super) slack: Option<Duration>,
}

impl Decide for MarkSent {
    type Answer = ();

    fn wants(&self, wanted: &mut Wanted) {
        self.sent.iter().for_each(|sent| wanted.epoch(sent.epoch, false));
    }

    fn decide(&self, page: &mut Page) {
        for sent in &self.sent {
            let Some(held) = page.epoch(sent.epoch).filter(|held| held.is_at(sent)) else { continue };
            held.moved |= !held.chain.sent;
            held.chain.sent = true;
            if let Some(slack) = self.slack {
                held.watch_at = sent.due + slack;
                held.moved = true;
            }
        }
    }
}

/// [`crate::CatchUp::look_again`]
pub(super) struct Look(pub(super) Vec<LookAgain>);

impl Decide for Look {
    type Answer = Vec<bool>;

    fn wants(&self, wanted: &mut Wanted) {
        self.0.iter().for_each(|look| wanted.epoch(look.epoch, false));
    }

    fn decide(&self, page: &mut Page) -> Vec<bool> {
        let mut write = |look: &LookAgain| match page.epoch(look.epoch) {
            Some(held) if held.watch_at == look.from => {
                (held.watch_at, held.looks) = (look.to, look.looks);
                held.expected = look.expected.unwrap_or(held.expected);
                held.moved = true;
                true
            }
            _ => false,
        };
        self.0.iter().map(&mut write).collect()
    }
}

/// [`crate::Failures::record_failure`]
pub(super) struct RecordFailure {
    pub(super) kind: String,
    pub(super) key: String,
    pub(super) failed: FailedItem,
    pub(super) at: Time,
}

impl Decide for RecordFailure {
    type Answer = ();

    fn wants(&self, _: &mut Wanted) {}

    fn decide(&self, page: &mut Page) {
        page.failed(&self.kind, &self.key, &self.failed, self.at);
    }
}

/// [`crate::Jobs::accept`]
pub(super) struct Accept {
    pub(super) kind: String,
    pub(super) key: String,
    pub(super) spawned: Vec<SpawnedJob>,
    pub(super) chains: Vec<NewChain>,
    pub(super) failed: Vec<FailedItem>,
}

impl Decide for Accept {
    type Answer = Vec<Hint>;

    fn wants(&self, wanted: &mut Wanted) {
        wanted.new_epochs += i64::try_from(self.chains.len()).unwrap_or(i64::MAX);
        wanted.names.extend(self.chains.iter().map(|chain| (chain.kind.clone(), chain.key.clone())));
    }

    fn decide(&self, page: &mut Page) -> Vec<Hint> {
        accept(page, (&self.kind, &self.key), &self.spawned, &self.chains, &self.failed, page.now)
    }
}

impl Decide for Quarantined {
    type Answer = ();

    fn wants(&self, _: &mut Wanted) {}

    fn decide(&self, page: &mut Page) {
        page.writes.quarantined.push(self.clone());
        self.job.iter().for_each(|id| page.job(id, Job::Forget));
    }
}

/// [`crate::Jobs::keep_job`]
pub(super) struct KeepJob {
    pub(super) id: String,
    pub(super) body: Vec<u8>,
}

impl Decide for KeepJob {
    type Answer = ();

    fn wants(&self, _: &mut Wanted) {}

    fn decide(&self, page: &mut Page) {
        page.job(&self.id, Job::Put(self.body.clone(), page.now));
    }
}

/// [`crate::Jobs::forget_jobs`]
pub(super) struct ForgetJobs(pub(super) Vec<String>);

impl Decide for ForgetJobs {
    type Answer = ();

    fn wants(&self, _: &mut Wanted) {}

    fn decide(&self, page: &mut Page) {
        self.0.iter().for_each(|id| page.job(id, Job::Forget));
    }
}

/// Writes nothing itself: its caller waits for the commit that covers the notes before it.
pub(super) struct Flush;

impl Decide for Flush {
    type Answer = ();

    fn wants(&self, _: &mut Wanted) {}

    fn decide(&self, _: &mut Page) {}
}
