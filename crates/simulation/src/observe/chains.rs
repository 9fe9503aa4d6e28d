//! Chains: what the ledger has granted, finished, given up and looked for again, held against what is noted of each
//! (I1, I7, I8, I9, schedule, cron, batch).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use roundelay_broker::embedded::EmbeddedBroker;
use roundelay_engine::life::Point;
use roundelay_ledger::{ClaimId, ClaimRequest, Finish, FinishRequest, Grant, LookAgain};
use roundelay_model::clock::Time;
use roundelay_model::deaths::{DEATHS_TO_QUARANTINE, SUSPECTED};
use roundelay_model::guard::IfRunning;
use roundelay_model::ids::{Epoch, TickNo};
use roundelay_model::job::Envelope;
use roundelay_model::outcome::Next;
use tokio::time::Instant;

use super::{Late, Lease, Lossless, Model, Name, Observer};
use crate::worker::Process;
use crate::world::workload::{COOLDOWN, PACED, if_running};

/// For this time after a claim it may be unknown that the claim's holder has ended.
const KNOWN: Duration = Duration::from_secs(60);

/// The epochs of the chains that have a message in this broker, delivered or not.
fn chains_in(broker: &EmbeddedBroker) -> BTreeSet<Epoch> {
    broker.census().iter().filter_map(|held| Some(Envelope::decode(&held.body).ok()?.chain?.epoch)).collect()
}

impl Observer {
    /// The ledger has granted a claim.
    pub fn granted(&self, process: &Arc<Process>, request: &ClaimRequest, grant: &Grant) {
        let at = self.start.elapsed();
        let hint = &request.hint;
        let may_lack = self.lossless.as_ref().filter(|_| self.traps.reached().contains_key(&Point::HandedOut));
        let handed_out = may_lack.is_some_and(|lossless| !chains_in(&lossless.broker).contains(&hint.epoch));
        let mut name = Name { kind: hint.kind.clone(), key: hint.key.clone(), once: grant.once };
        if !hint.parent.is_none() {
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
        // Whatever this worker dies of, no more than one suspect is there to be blamed.
        let beside = |(other, model): (&Name, &Model)| {
            let lease = model.lease.as_ref()?;
            let touched = lease.prepared > 0 && request.prepared > 0;
            let suspects = touched && lease.prepared.max(request.prepared) >= SUSPECTED;
            (*other != name && lease.session == request.session && suspects).then(|| other.clone())
        };
        if let Some(other) = state.chains.iter().find_map(beside).filter(|_| grant.refused.is_none()) {
            let deaths = request.prepared;
            wrong.push((
                "deaths",
                format!("{name}: after {deaths} deaths it runs beside {other}, which was there, too"),
            ));
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
        // One whose answer was lost may be made again, by the session that it was made for.
        let again = |lease: &Lease| request.again && lease.session == request.session;
        let other = model.lease.clone().filter(|lease| lease.epoch == hint.epoch && !request.takeover && !again(lease));
        if let Some(lease) = other.filter(|lease| !state.over.contains(&lease.session)) {
            let Lease { fence, session, .. } = lease;
            wrong.push(("I1", format!("{name}: claimed, though fence {fence} is of session {session}, which goes on")));
        }
        let free = grant.refused.is_some() || grant.batch.is_some() || !hint.parent.is_none();
        if !free && if_running(&hint.key) != IfRunning::Beside {
            let other = Name { once: !name.once, ..name.clone() };
            if let Some(lease) = state.chains.get(&other).and_then(|other| other.lease.as_ref())
                && !state.over.contains(&lease.session)
            {
                wrong.push(("I1", format!("{name}: starts, though {other} runs, by fence {}", lease.fence)));
            }
        }
        // A tick that has been claimed before is not held up any more, also if it was before the clock was set.
        // So does one that an older copy of the ledger has begun anew.
        let begins = tick != hint.tick || (epoch != hint.epoch && !state.restored);
        // That need not be the last one that was seen here: the copy may know that an earlier one has started.
        let copied = state.restored && epoch != hint.epoch;
        let started = copied && state.begun.contains(&(name.clone(), hint.tick));
        if !free
            && begins
            && !started
            && hint.kind == "long"
            && let Some(end) = state.last_end.get(&(hint.kind.clone(), hint.key.clone()))
            && grant.at.since(*end) < COOLDOWN
        {
            wrong.push(("cooldown", format!("{name}: starts {:?} after the run before", grant.at.since(*end))));
        }
        if hint.kind == "timed" && !grant.once && begins && !state.occurrences.insert((hint.epoch, grant.nominal)) {
            wrong.push(("cron", format!("{name}: the occurrence of {} comes twice", grant.nominal)));
        }
        if grant.refused.is_none() {
            state.begun.insert((name.clone(), hint.tick));
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
        let (epoch, fence, session, process) = (hint.epoch, grant.fence, request.session, process.clone());
        let (prepared, since) = (request.prepared, Instant::now());
        state.may_start.insert(fence, grant.at);
        let model = state.chains.entry(name.clone()).or_default();
        model.lease = Some(Lease { epoch, fence, session, process, since, prepared });
        model.due = Some(grant.due).filter(|_| hint.parent.is_none());
        state.epochs.insert(hint.epoch, name.clone());
        let left = state.handed_out.remove(&hint.epoch).unwrap_or_default().saturating_sub(1).max(u8::from(handed_out));
        if left > 0 {
            state.handed_out.insert(hint.epoch, left);
        }
        state.left.remove(&hint.epoch);
        if !grant.once {
            let (late, queue) = (grant.at.since(grant.due), hint.queue.clone());
            state.claims.push(Late { at: Instant::now(), late, name, queue });
        }
        wrong.into_iter().for_each(|(invariant, what)| state.violated(at, invariant, what));
    }

    /// A session has begun, which goes on as long as its process can show that it lives.
    pub fn session_began(&self, session: i64, process: &Arc<Process>) {
        self.lock().sessions.insert(session, process.clone());
    }

    /// A session is over: its end is written to the ledger.
    pub fn session_ended(&self, session: i64) {
        self.lock().over.insert(session);
    }

    /// A worker has heard that its session has begun, for which it had asked then.
    pub fn kept_up(&self, session: i64, asked: Instant, lease: Duration) {
        self.lock().kept.insert(session, (asked, lease));
    }

    /// A worker has heard that its session goes on, for which it had asked then.
    pub fn renewed(&self, session: i64, asked: Instant) {
        if let Some((kept, _)) = self.lock().kept.get_mut(&session) {
            *kept = asked;
        }
    }

    /// A worker asks for a claim. It must not for a session that others may have ended.
    pub fn asks(&self, process: &Process, session: i64) {
        let at = self.start.elapsed();
        let mut state = self.lock();
        let Some((asked, lease)) = state.kept.get(&session).copied() else { return };
        let silent = asked.elapsed();
        if silent >= lease {
            let what = format!("worker {} claims for a session that it has not kept up for {silent:?}", process.worker);
            state.violated(at, "lease", what);
        }
    }

    /// A worker has ended another's session. It must not while that counts on it.
    pub fn taken_for_dead(&self, session: i64, by: &Process) {
        let at = self.start.elapsed();
        let mut state = self.lock();
        state.over.insert(session);
        let (Some(other), Some((asked, lease))) = (state.sessions.get(&session), state.kept.get(&session)) else {
            return;
        };
        let silent = asked.elapsed();
        if other.is_alive() && silent < *lease {
            let what = format!("worker {} ends the session of {}, silent for {silent:?}", by.worker, other.worker);
            state.violated(at, "lease", what);
        }
    }

    /// Whether a process can see that the one of a session has ended: those of the first two workers are on one
    /// machine.
    pub fn is_gone(&self, session: i64, seen_by: &Process) -> bool {
        const TOGETHER: usize = 2;
        let state = self.lock();
        let other = state.sessions.get(&session);
        seen_by.worker < TOGETHER && other.is_some_and(|other| other.worker < TOGETHER && !other.is_alive())
    }

    /// Claims are given up whose runs no worker has in hand.
    pub fn gave_up(&self, claims: &[ClaimId]) {
        let mut state = self.lock();
        for claim in claims {
            let Some(name) = state.epochs.get(&claim.epoch).cloned() else { continue };
            if let Some(model) = state.chains.get_mut(&name)
                && model.lease.as_ref().is_some_and(|lease| lease.fence == claim.fence)
            {
                model.lease = None;
                state.left.insert(claim.epoch);
            }
        }
    }

    /// A worker has died over this tick.
    pub fn died_over(&self, (kind, key): (&str, &str), epoch: Epoch, tick: TickNo) {
        let at = self.start.elapsed();
        let mut state = self.lock();
        state.note(at, || format!("a worker dies over {kind} {key} {epoch}-{tick}"));
        let deaths = state.deaths.entry((epoch, tick)).or_default();
        *deaths += 1;
        let deaths = *deaths;
        // What an operator has paused and resumed meanwhile runs once more.
        if deaths > DEATHS_TO_QUARANTINE + u32::from(self.touched.contains(key)) {
            state.violated(at, "deaths", format!("{kind} {key}: {deaths} workers have died over tick {tick} in a row"));
        }
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
        if *finish == Finish::Fenced {
            // The chain has begun anew, or another worker has claimed it, while this run went on. Now the run is over, so
            // a manual run may start.
            let model = state.chains.entry(name).or_default();
            model.lease.take_if(|lease| lease.fence == fence);
            return;
        }
        // A worker that got no answer to its write asks again, and gets the same answer.
        if !state.written.insert(fence) {
            return;
        }
        state.deaths.remove(&(epoch, tick));
        if request.ran && request.parent.is_none() {
            state.last_end.insert((name.kind.clone(), name.key.clone()), request.at);
        }
        let model = state.chains.entry(name.clone()).or_default();
        // Members are judged by what waits for them, since they end with it.
        let waits = matches!(request.next, Next::End | Next::Gather) || !request.parent.is_none();
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

    /// An operator is about to let a chain go on that was set aside.
    pub fn recovered(&self, kind: &str, key: &str) {
        let name = Name { kind: kind.into(), key: key.into(), once: false };
        self.lock().chains.entry(name).or_default().due = None;
    }

    /// From now on chains may have no message: the broker is away, and they run from the ledger.
    pub fn runs_without_messages(&self) {
        self.lock().without_messages = true;
    }

    /// Catch-up sends messages again. If only the engine can lose messages, all of them must be there.
    pub fn looked(&self, looks: &[LookAgain], mine: &[bool]) {
        let Some(Lossless { broker, stopped }) = &self.lossless else { return };
        let mine = looks.iter().zip(mine).filter(|(_, mine)| **mine);
        let (sent, others): (Vec<&LookAgain>, Vec<&LookAgain>) =
            mine.map(|(look, _)| look).partition(|look| look.expected.is_some());
        // It may be handed out: through the claim that follows, and until the next one.
        self.lock().handed_out.extend(others.iter().map(|look| (look.epoch, 2)));
        let epochs: Vec<Epoch> = sent.iter().map(|look| look.epoch).collect();
        if epochs.is_empty() {
            return;
        }
        let there = chains_in(broker);
        let at = self.start.elapsed();
        let mut state = self.lock();
        if state.without_messages {
            return;
        }
        for epoch in epochs.into_iter().filter(|epoch| !there.contains(epoch)) {
            // What ran from the ledger had no message, and its worker may have died before it sent the next one.
            if state.handed_out.contains_key(&epoch) {
                continue;
            }
            // What has waited for a batch is sent by the last of its members, or else by catch-up.
            if state.batches.contains_key(&epoch) {
                continue;
            }
            let name = state.epochs.get(&epoch).cloned();
            let Some(name) = name.filter(|name| !name.once && !stopped.contains(&name.key)) else { continue };
            // What says again that a tick is due that runs is dropped; when that run is cut off, it is sent again.
            let lease = state.chains.get(&name).and_then(|model| model.lease.as_ref());
            let is_over = |lease: &Lease| state.over.contains(&lease.session) || !lease.process.is_alive();
            if state.left.contains(&epoch) || lease.is_some_and(is_over) {
                continue;
            }
            state.violated(at, "I9", format!("{name}: its message is gone, and only the engine can have lost it"));
        }
    }

    /// Chains that were due before `before`, and that no living process holds. Those that operators
    /// stop are left out: an order takes effect some time before it has been carried out.
    pub fn stuck(&self, before: Time) -> Vec<Name> {
        let state = self.lock();
        // That a holder has just ended cannot be known yet.
        let held = |model: &Model| {
            model.lease.as_ref().is_some_and(|lease| lease.process.is_alive() || lease.since.elapsed() < KNOWN)
        };
        let stuck = |name: &Name, model: &Model| {
            let due = model.due.filter(|_| !model.retired);
            // While workers die over another chain, it may be claimed late and lose its worker at once.
            let claimed = model.start.is_some_and(|(_, _, at)| at >= before);
            due.is_some_and(|due| due < before) && !claimed && !held(model) && !self.touched.contains(&name.key)
        };
        state.chains.iter().filter(|(name, model)| stuck(name, model)).map(|(name, _)| name.clone()).collect()
    }

    /// How late the claims since then were.
    pub fn claims(&self, since: Instant) -> Vec<Late> {
        let state = self.lock();
        state.claims.iter().filter(|claim| claim.at >= since).cloned().collect()
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
