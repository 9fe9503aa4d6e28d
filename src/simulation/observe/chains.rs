//! Chains: what the ledger has granted, renewed, finished and looked for again, held against what is noted of each
//! (I1, I7, I8, I9, schedule, batch).

use std::collections::BTreeSet;

use tokio::time::Instant;

use super::{Late, Lease, Model, Name, Observer, State};
use crate::clock::Time;
use crate::guard::IfRunning;
use crate::job::Envelope;
use crate::ledger::{ClaimRequest, Finish, FinishRequest, Grant, LookAgain, Renewal};
use crate::outcome::Next;
use crate::simulation::worker::Process;
use crate::simulation::world::{COOLDOWN, PACED, if_running};

impl Observer {
    /// The ledger has granted a claim.
    pub fn granted(&self, process: &Process, request: &ClaimRequest, grant: &Grant) {
        let at = self.start.elapsed();
        let hint = &request.hint;
        let mut name = Name { kind: hint.kind.clone(), key: hint.key.clone(), once: grant.once };
        if hint.parent != 0 {
            // Members of different batches may have the same name.
            name.key = format!("{} of {}", hint.key, hint.parent);
        }
        let mut state = self.lock();
        state.note(at, || {
            let (w, r) = (process.worker, process.run);
            let Grant { fence, .. } = grant;
            format!("worker {w}.{r} claims {name} {}-{}-{} fence {fence}", hint.epoch, hint.tick, hint.attempt)
        });
        let mut wrong = Vec::new();
        if state.finished.contains(&(hint.epoch, hint.tick)) {
            wrong.push(("I1", format!("{name}: tick {} of epoch {} has ended, and is claimed", hint.tick, hint.epoch)));
        }
        if grant.at < grant.due {
            wrong.push(("schedule", format!("{name}: claimed at {}, due at {}", grant.at, grant.due)));
        }
        if let Some((total, ended)) = state.batches.remove(&hint.epoch) {
            if ended < total {
                wrong.push(("batch", format!("{name}: claimed when {ended} of its {total} members have ended")));
            }
            if grant.batch.map(|batch| batch.total) != Some(total as i64) {
                wrong.push(("batch", format!("{name}: has waited for {total}, and is told of {:?}", grant.batch)));
            }
        }
        let model = state.chains.entry(name.clone()).or_default();
        let (before, (epoch, tick, fence)) = (model.start, model.place);
        if grant.fence <= fence || (hint.epoch, hint.tick) < (epoch, tick) {
            let now = (hint.epoch, hint.tick, grant.fence);
            wrong.push(("I7", format!("{name}: from (epoch, tick, fence) {:?} back to {now:?}", model.place)));
        }
        if request.takeover && hint.kind != "steady" {
            wrong.push(("I1", format!("{name}: taken over, though its kind waits for leases")));
        }
        if let Some(lease) = model.lease.as_ref().filter(|lease| lease.holds(hint.epoch, grant.at) && !request.takeover)
        {
            wrong.push(("I1", format!("{name}: claimed, though fence {} holds until {}", lease.fence, lease.until)));
        }
        let free = grant.refused.is_some() || grant.batch.is_some() || hint.parent != 0;
        if !free && if_running(&hint.key) != IfRunning::Beside {
            let other = Name { once: !name.once, ..name.clone() };
            if let Some(lease) = state.chains.get(&other).and_then(|other| other.lease.as_ref())
                && lease.holds(lease.epoch, grant.at)
            {
                let (fence, until) = (lease.fence, lease.until);
                wrong.push(("I1", format!("{name}: starts, though {other} runs: fence {fence} holds until {until}")));
            }
        }
        // A tick that has been claimed before is not held up any more, also if it was before the clock was set.
        let begins = (epoch, tick) != (hint.epoch, hint.tick);
        if !free
            && begins
            && hint.kind == "long"
            && let Some(end) = state.last_end.get(&(hint.kind.clone(), hint.key.clone()))
            && grant.at.since(*end) < COOLDOWN
        {
            wrong.push(("cooldown", format!("{name}: starts {:?} after the run before", grant.at.since(*end))));
        }
        let model = state.chains.entry(name.clone()).or_default();
        if model.stopped {
            wrong.push(("I8", format!("{name}: claimed after it was stopped")));
        }
        let ours = (hint.epoch, hint.tick, grant.at);
        if let Some((epoch, tick, at)) = model.start.replace(ours).filter(|_| name.kind == "paced" && !name.once)
            && grant.refused.is_none()
            && epoch == hint.epoch
            && tick != hint.tick
            && grant.at.since(at) < PACED
        {
            wrong.push(("schedule", format!("{name}: starts {:?} after the tick before", grant.at.since(at))));
        }
        if grant.refused.is_some() {
            model.start = before;
        }
        model.place = (hint.epoch, hint.tick, grant.fence);
        model.lease =
            Some(Lease { epoch: hint.epoch, fence: grant.fence, until: grant.at + request.lease, over: false });
        model.due = Some(grant.due).filter(|_| hint.parent == 0);
        state.epochs.insert(hint.epoch, name.clone());
        if !grant.once {
            let (late, queue) = (grant.at.since(grant.due), hint.queue.clone());
            state.claims.push((Instant::now(), Late { late, name, queue }));
        }
        wrong.into_iter().for_each(|(invariant, what)| state.violated(at, invariant, what));
    }

    /// The ledger has renewed leases.
    pub fn renewed(&self, leases: &[Renewal], kept: &[bool], until: Time) {
        let at = self.start.elapsed();
        let mut state = self.lock();
        let State { chains, epochs, .. } = &mut *state;
        let mut wrong = Vec::new();
        for (renewal, _) in leases.iter().zip(kept).filter(|(_, kept)| **kept) {
            let Some(name) = epochs.get(&renewal.epoch) else { continue };
            match chains.get_mut(name).and_then(|model| model.lease.as_mut()) {
                Some(lease) if lease.fence == renewal.fence => (lease.until, lease.over) = (until, false),
                _ => wrong.push(format!("{name}: fence {} is renewed, and is not the last", renewal.fence)),
            }
        }
        wrong.into_iter().for_each(|what| state.violated(at, "I1", what));
    }

    /// The ledger has answered a finish.
    pub fn finished(&self, request: &FinishRequest, finish: &Finish) {
        let at = self.start.elapsed();
        let mut state = self.lock();
        let name = state.epochs.get(&request.epoch).cloned();
        let Some(name) = name else { return };
        let (epoch, tick, fence) = (request.epoch, request.tick, request.fence);
        state.note(at, || {
            let how = if matches!(finish, Finish::Applied(_)) { request.verdict.as_str() } else { "fenced" };
            format!("{name} {epoch}-{tick} fence {fence} ends: {how}")
        });
        // Whoever was not told that it was written asks again, and is answered the same.
        if *finish == Finish::Fenced || !state.written.insert(fence) {
            return;
        }
        if request.ran && request.parent == 0 {
            state.last_end.insert((name.kind.clone(), name.key.clone()), request.at);
        }
        let model = state.chains.entry(name.clone()).or_default();
        // Members are judged by what waits for them, since they end with it.
        let waits = matches!(request.next, Next::End | Next::Gather) || request.parent != 0;
        model.due = (!waits).then(|| request.place().2);
        if request.next == Next::Gather {
            state.batches.insert(epoch, (request.members.len(), 0));
        }
        if request.next == Next::End
            && let Some((_, ended)) = state.batches.get_mut(&request.parent)
        {
            *ended += 1;
        }
        let model = state.chains.entry(name.clone()).or_default();
        match model.lease.take() {
            Some(lease) if lease.fence == fence => {}
            other => {
                let last = other.map_or("nobody".into(), |lease| format!("fence {}", lease.fence));
                state.violated(at, "I1", format!("{name}: fence {fence} finishes, and {last} holds the chain"));
            }
        }
        if matches!(request.next, Next::Tick { .. } | Next::End) {
            if !state.finished.insert((epoch, tick)) {
                state.violated(at, "I1", format!("{name}: tick {tick} of epoch {epoch} finishes twice"));
            }
            state.ticks += 1;
            state.ended.insert((name.kind, name.key), Instant::now());
        }
        // By what the handler said, and not by what the engine has made of it.
        let asked = state.asked.remove(&fence).unwrap_or_default();
        state.expect(asked);
        for name in state.found.remove(&fence).unwrap_or_default() {
            state.discovered.entry(name).or_insert_with(Instant::now);
        }
    }

    /// An order to stop a chain has been carried out, or one to let it go on is about to be.
    pub fn stopped(&self, kind: &str, key: &str, stopped: bool) {
        let mut state = self.lock();
        // A chain that begins anew knows nothing of its runs before.
        state.last_end.remove(&(kind.to_owned(), key.to_owned()));
        for once in [false, true] {
            let name = Name { kind: kind.into(), key: key.into(), once };
            // A single tick is ended by the order, and a later one is another.
            let model = state.chains.entry(name).or_default();
            model.stopped = stopped && !once;
        }
    }

    /// An order to end a chain for good has been carried out, by whichever worker read it.
    pub fn retired(&self, kind: &str, key: &str) {
        let name = Name { kind: kind.into(), key: key.into(), once: false };
        self.lock().chains.entry(name).or_default().retired = true;
    }

    /// Catch-up sends messages again. If nobody but the engine can lose any, they must be there.
    pub fn looked(&self, looks: &[LookAgain], mine: &[bool]) {
        let Some(broker) = &self.lossless else { return };
        let sent = looks.iter().zip(mine).filter(|(look, mine)| **mine && look.expected.is_some());
        let epochs: Vec<i64> = sent.map(|(look, _)| look.epoch).collect();
        if epochs.is_empty() {
            return;
        }
        let there: BTreeSet<i64> =
            broker.census().iter().filter_map(|held| Some(Envelope::decode(&held.body).ok()?.chain?.epoch)).collect();
        let at = self.start.elapsed();
        let mut state = self.lock();
        for epoch in epochs.into_iter().filter(|epoch| !there.contains(epoch)) {
            // What has waited for a batch is sent by the last of its members, or else by catch-up.
            if state.batches.contains_key(&epoch) {
                continue;
            }
            let name = state.epochs.get(&epoch).cloned();
            let Some(name) = name.filter(|name| !name.once && !self.touched.contains(&name.key)) else { continue };
            state.violated(at, "I9", format!("{name}: its message is gone, and only the engine can have lost it"));
        }
    }

    /// Chains that were due before `before`, and that nobody holds at `now`. Those that operators
    /// stop are left out: an order takes effect some time before it has been carried out.
    pub fn stuck(&self, before: Time, now: Time) -> Vec<Name> {
        let state = self.lock();
        let held = |model: &Model| model.lease.as_ref().is_some_and(|lease| lease.until > now);
        let stuck = |name: &Name, model: &Model| {
            let due = model.due.filter(|_| !model.retired);
            due.is_some_and(|due| due < before) && !held(model) && !self.touched.contains(&name.key)
        };
        state.chains.iter().filter(|(name, model)| stuck(name, model)).map(|(name, _)| name.clone()).collect()
    }

    /// How late the claims after `from` were.
    pub fn late_since(&self, from: Instant) -> Vec<Late> {
        let state = self.lock();
        state.claims.iter().filter(|(at, _)| *at >= from).map(|(_, late)| late.clone()).collect()
    }

    /// Kinds and keys of chains that were discovered before then, by a run whose end is written.
    pub fn discovered(&self, before: Instant) -> Vec<(String, String)> {
        let state = self.lock();
        state.discovered.iter().filter(|(_, at)| **at < before).map(|(name, _)| name.clone()).collect()
    }

    /// Whether a tick of the chain has ended since then.
    pub fn has_finished(&self, kind: &str, key: &str, since: Instant) -> bool {
        self.lock().ended.get(&(kind.into(), key.into())).is_some_and(|at| *at >= since)
    }

    /// Ticks that have ended.
    pub fn ticks(&self) -> u64 {
        self.lock().ticks
    }
}
