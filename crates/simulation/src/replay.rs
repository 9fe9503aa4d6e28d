//! Each commit of the ledger as a step of the specification ([`crate::spec`]), in the order of the commits.
//!
//! The ledger of a simulation writes on its caller's thread, and the observer is told before any other task goes on: so
//! the order in which it is told is that of the commits. A step that the specification does not allow is a violation,
//! and after the first one there is no more to compare with.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use roundelay_ledger::{
    ChainFilter, ChainOrder, ChainState, ChainView, Claim, ClaimId, ClaimRequest, Enrolled, Finish, FinishRequest,
    Hint, NewChain, Sent,
};
use roundelay_model::clock::Time;
use roundelay_model::guard::{IfRunning, Refusal};
use roundelay_model::ids::Epoch;
use roundelay_model::outcome::{Next, Verdict};

use crate::observe::Observer;
use crate::rare::rare;
use crate::spec::{self, Asked, By, Granted, New, Order, Phase, Runs, Sort, Step, Then, Which, Why};
use crate::worker::Process;

/// One ledger, held against the specification. Who still writes to a ledger that a copy has replaced is held against
/// what that one was.
pub struct Replay {
    observer: Arc<Observer>,
    known: Mutex<Known>,
}

struct Known {
    state: spec::State,
    /// A step was not allowed.
    over: bool,
}

impl Replay {
    /// An empty ledger; the ticks of these kinds are taken over as soon as their message comes again.
    pub fn new(observer: Arc<Observer>, redelivery: BTreeSet<String>) -> Arc<Self> {
        let state = spec::State { redelivery, ..spec::State::default() };
        Arc::new(Self { observer, known: Mutex::new(Known { state, over: false }) })
    }

    /// Where others write to the ledger unseen, nothing is compared.
    pub fn off(observer: Arc<Observer>) -> Arc<Self> {
        Arc::new(Self { observer, known: Mutex::new(Known { state: spec::State::default(), over: true }) })
    }

    /// What is known now, as a copy of the ledger has it.
    pub fn copy(&self) -> spec::Copy {
        self.known.lock().state.copy()
    }

    /// A ledger begins as an older copy of this one.
    pub fn restored(&self, copy: &spec::Copy) -> Arc<Self> {
        let Known { state, over } = &*self.known.lock();
        let restored =
            Self { observer: self.observer.clone(), known: Mutex::new(Known { state: state.clone(), over: *over }) };
        restored.steps(&[Step::Restore(copy)]);
        Arc::new(restored)
    }

    fn steps(&self, steps: &[Step]) {
        self.known.lock().take(&self.observer, steps);
    }

    /// The ledger has answered an enrolment.
    pub fn enrolled(&self, chains: &[NewChain], answers: &[Enrolled]) {
        for (chain, answer) in chains.iter().zip(answers) {
            self.known.lock().take_enrolment(&self.observer, chain, answer);
        }
    }

    /// Chains that a run or a program has discovered, and the messages of those that have begun.
    pub fn discovers(&self, chains: &[NewChain], begun: &[Hint]) {
        self.known.lock().take_discovered(&self.observer, chains, begun);
    }

    /// The ledger has answered a claim, at this time by its clock.
    pub fn claimed(&self, request: &ClaimRequest, claim: &Claim, now: Time) {
        let hint = &request.hint;
        let asked = Asked {
            name: (&hint.kind, &hint.key),
            epoch: hint.epoch,
            tick: hint.tick,
            attempt: hint.attempt,
            due: hint.due,
            member: !hint.parent.is_none(),
            session: request.session,
            again: request.again,
            takeover: request.takeover,
            recurs: request.recurs,
            prepared: request.prepared,
            ahead: request.ahead,
            at: now,
        };
        let refused = |why| Step::ClaimRefused(asked, why);
        let step = match claim {
            Claim::Granted(grant) => {
                let runs = match grant.refused {
                    None => Runs::Yes,
                    Some(Refusal::Deaths) => Runs::Deadly,
                    Some(_) => Runs::Refused,
                };
                let total = grant.batch.map_or(0, |batch| usize::try_from(batch.total).unwrap_or_default());
                let (fence, due, lost, at) = (grant.fence, grant.due, grant.lost, grant.at);
                // By the ledger's clock at the claim, of which a grant tells only if it was not made ahead.
                let asked = Asked { at: now.min(at), ..asked };
                Step::Claim(asked, Granted { fence, previous: None, due, lost, total, at, runs })
            }
            Claim::Runs => refused(Why::Runs),
            Claim::Waits { .. } => refused(Why::Waits),
            Claim::Suspected(deaths) => refused(Why::Suspected(*deaths)),
            Claim::SetAside => Step::SetAside(asked),
            Claim::Early(_) => refused(Why::Early),
            Claim::Stale(message) => {
                refused(Why::Stale(message.as_ref().map(|hint| (hint.tick, hint.attempt, hint.due))))
            }
            Claim::Idle => refused(Why::Idle),
            Claim::NoSchedule => refused(Why::NoSchedule),
            Claim::Future => Step::Ahead(asked),
            Claim::Other { .. } => refused(Why::Other),
        };
        self.steps(&[step]);
    }

    /// The ledger has answered a finish.
    pub fn finishes(&self, request: &FinishRequest, answer: &Finish) {
        self.known.lock().take_finish(&self.observer, request, answer);
    }

    /// Messages are noted as sent.
    pub fn marked(&self, sent: &[Sent]) {
        for Sent { epoch, tick, attempt, due } in sent {
            self.steps(&[Step::MarkSent { epoch: *epoch, tick: *tick, attempt: *attempt, due: *due }]);
        }
    }

    /// A session has given up claims.
    pub fn let_go(&self, session: i64, claims: &[ClaimId]) {
        for ClaimId { epoch, fence } in claims {
            self.steps(&[Step::GiveUp { epoch: *epoch, fence: *fence, session }]);
        }
    }

    /// What sessions that are over have left behind is let go.
    pub fn left_ended(&self) {
        self.steps(&[Step::LetGo]);
    }

    /// A session has begun.
    pub fn session_begins(&self, session: i64, lease: Duration) {
        self.steps(&[Step::SessionBegins { session, lease, now: self.observer.elapsed() }]);
    }

    /// The ledger has answered a beat.
    pub fn beats(&self, session: i64, alive: bool, ended: &[i64], by: &Process) {
        let now = self.observer.elapsed();
        // The beat comes first, and then the sessions that it ends: its own is none of them.
        if alive {
            self.steps(&[Step::SessionHeard { session, now }]);
        }
        for over in ended {
            let by = if self.observer.is_gone(*over, by) { By::Sight } else { By::Silence };
            self.steps(&[Step::SessionOver { session: *over, by, now }]);
        }
    }

    /// A session has ended in good order.
    pub fn session_over(&self, session: i64) {
        self.steps(&[Step::SessionOver { session, by: By::Itself, now: self.observer.elapsed() }]);
    }

    /// An order for chains is carried out; `seen` are the chains with these names afterwards.
    pub fn ordered(&self, which: &ChainFilter, order: ChainOrder, seen: &[ChainView]) {
        let order = match order {
            ChainOrder::Pause => Order::Pause,
            ChainOrder::Resume => Order::Resume,
            ChainOrder::Retire => Order::Retire,
            ChainOrder::Recover | ChainOrder::RecoverAll => {
                return self.known.lock().take_recovery(&self.observer, seen, order == ChainOrder::RecoverAll);
            }
        };
        let which = Which { kind: which.kind.as_deref(), key: which.key.as_deref(), owner: which.owner.as_deref() };
        self.steps(&[Step::Order(order, which)]);
    }

    /// The next ticks of chains are due at another time.
    pub fn moved(&self, hints: &[Hint], forward: bool) {
        for hint in hints {
            self.steps(&[Step::Move { epoch: hint.epoch, due: hint.due, forward }]);
        }
    }

    /// Kinds and keys of all chains.
    pub fn entities(&self) -> Vec<(String, String)> {
        let known = self.known.lock();
        known.state.names.keys().map(|of| (of.kind.clone(), of.key.clone())).collect()
    }

    /// The ledger has chains, which must be where the steps lead.
    pub fn compare(&self, rows: &[ChainView]) {
        let mut known = self.known.lock();
        if known.over {
            return;
        }
        for row in rows {
            let hint = &row.hint;
            let chain = known.state.chains.get(&hint.epoch);
            let theirs = chain.map(|chain| {
                let runs = chain.held.map(|session| known.state.sessions.contains_key(&session));
                let place = (chain.tick, chain.attempt, chain.due, chain.fence, chain.started);
                (place, chain.phase, runs, chain.sent, (chain.open as i64, chain.total as i64))
            });
            let runs = match row.holder {
                roundelay_ledger::Holder::None => None,
                roundelay_ledger::Holder::Alive => Some(true),
                roundelay_ledger::Holder::Gone => Some(false),
            };
            let place = (hint.tick, hint.attempt, hint.due, row.fence, row.started_tick);
            let ours = (place, phase(row.state), runs, row.sent, row.batch);
            if theirs != Some(ours) {
                let Hint { kind, key, epoch, .. } = hint;
                let what = format!("{kind} {key} {epoch} is {ours:?}, and the steps lead to {theirs:?}");
                self.observer.violated("spec", what);
                known.over = true;
                return;
            }
        }
    }
}

fn phase(state: ChainState) -> Phase {
    match state {
        ChainState::Active => Phase::Active,
        ChainState::Paused => Phase::Paused,
        ChainState::Retired => Phase::Retired,
        ChainState::Quarantined => Phase::Quarantined,
    }
}

fn sort(chain: &NewChain) -> Sort {
    if chain.once { Sort::Manual { beside: chain.manual.if_running == IfRunning::Beside } } else { Sort::Rotation }
}

impl Known {
    fn take(&mut self, observer: &Observer, steps: &[Step]) {
        for step in steps {
            if self.over {
                return;
            }
            if let Some(rare) = rare(&self.state, step) {
                observer.reached(rare);
            }
            if let Err(refusal) = self.state.take(step) {
                self.over = true;
                observer.violated("spec", refusal.to_string());
            }
        }
    }

    fn take_enrolment(&mut self, observer: &Observer, chain: &NewChain, answer: &Enrolled) {
        let (name, sort, owner) = ((&*chain.kind, &*chain.key), sort(chain), chain.owner.as_deref());
        let known = |ended, owner| Step::Known { name, manual: chain.once, ended, owner };
        let step = match answer {
            Enrolled::Created(hint) => {
                let new = New { name, sort, owner, epoch: hint.epoch, due: hint.due, anew: chain.revive };
                let known = &self.state;
                if chain.once && known.chains.contains_key(&hint.epoch) {
                    Step::RunAgain(new)
                } else if known.epoch_of(name, sort).is_some() {
                    Step::BeginAnew(new)
                } else {
                    Step::Begin(new)
                }
            }
            Enrolled::Unchanged => known(false, None),
            Enrolled::Updated { .. } => known(false, Some(owner)),
            Enrolled::Retired => known(true, None),
        };
        self.take(observer, &[step]);
    }

    fn take_discovered(&mut self, observer: &Observer, chains: &[NewChain], begun: &[Hint]) {
        for chain in chains {
            let hint = begun.iter().find(|hint| (&hint.kind, &hint.key) == (&chain.kind, &chain.key));
            // What has not begun was there, or had ended: the answer does not say which.
            if let Some(hint) = hint {
                self.take_enrolment(observer, chain, &Enrolled::Created(hint.clone()));
            }
        }
    }

    fn take_finish(&mut self, observer: &Observer, request: &FinishRequest, answer: &Finish) {
        let hints: &[Hint] = if let Finish::Applied(hints) = answer { hints } else { &[] };
        let members: Vec<(Epoch, &str, &str, Time)> = hints
            .iter()
            .filter(|hint| hint.parent == request.epoch)
            .map(|hint| (hint.epoch, &*hint.kind, &*hint.key, hint.due))
            .collect();
        let (then, due) = match request.next {
            Next::Tick { due, .. } => (Then::Tick, due),
            Next::Gather => (Then::Gather(&members), request.at),
            Next::Attempt { attempt, due } => (Then::Attempt(attempt), due),
            Next::Snooze { due } => (Then::Snooze, due),
            Next::End => (Then::End, request.at),
        };
        let finish = spec::Finish {
            epoch: request.epoch,
            tick: request.tick,
            attempt: request.attempt,
            fence: request.fence,
            then,
            due,
            retires: request.verdict == Verdict::Retired,
            from_batch: request.from_batch,
            sends: hints.iter().any(|hint| hint.epoch == request.epoch),
            sends_parent: !request.parent.is_none() && hints.iter().any(|hint| hint.epoch == request.parent),
        };
        let held = self.state.chains.get(&request.epoch).is_some_and(|chain| chain.held.is_some());
        let step = match answer {
            Finish::Fenced => Step::FinishFenced(finish),
            // The specification decides whether that is so.
            Finish::Applied(_) if !held => Step::FinishAgain(finish),
            Finish::Applied(_) => Step::Finish(finish),
        };
        self.take(observer, &[step]);
        if held {
            self.take_discovered(observer, &request.chains, hints);
        }
    }

    /// Chains have new epochs, which are given in the order of the old ones.
    fn take_recovery(&mut self, observer: &Observer, seen: &[ChainView], all: bool) {
        let mut new: Vec<&ChainView> =
            seen.iter().filter(|row| !self.state.chains.contains_key(&row.hint.epoch)).collect();
        new.sort_unstable_by_key(|row| row.hint.epoch);
        for row in new {
            let sort = if row.once { Sort::Manual { beside: false } } else { Sort::Rotation };
            let Hint { kind, key, epoch, due, .. } = &row.hint;
            let old = self.state.epoch_of((kind, key), sort).unwrap_or(Epoch::NONE);
            self.take(observer, &[Step::Recover { old, epoch: *epoch, due: *due, all }]);
        }
    }
}
