//! The steps: for each one function, with its guard first, a line each, and then its effect.
//!
//! The lines are those of `docs/spec/README.md`, word for word. A test compares them, and each refuses a step there.

use std::sync::Arc;
use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, Fence, TickNo};

use super::{
    Asked, By, Chain, Copy, DEATHS_TO_SET_ASIDE, Entity, Finish, Granted, New, Order, Phase, Refusal, Runs, SUSPECTED,
    Session, Sort, State, Step, Then, Which, Why,
};

type Taken = Result<(), Refusal>;

/// A line of a guard.
fn must(holds: bool, line: &'static str, what: impl FnOnce() -> String) -> Taken {
    if holds { Ok(()) } else { Err(Refusal { line, what: what() }) }
}

impl State {
    /// Takes a step, or leaves everything as it is.
    ///
    /// # Errors
    /// The line of the specification that forbids it.
    pub fn take(&mut self, step: &Step) -> Taken {
        match step {
            Step::Begin(new) => self.begin(new),
            Step::BeginAnew(new) => self.begin_anew(new),
            Step::RunAgain(new) => self.run_again(new),
            Step::Known { name, manual, ended, owner } => self.known(*name, *manual, *ended, *owner),
            Step::Claim(asked, granted) => self.claim(asked, granted),
            Step::ClaimRefused(asked, why) => self.claim_refused(asked, *why),
            Step::SetAside(asked) => self.set_aside(asked),
            Step::Ahead(asked) => self.ahead(asked),
            Step::Finish(finish) => self.finish(finish),
            Step::FinishAgain(finish) => self.finish_again(finish),
            Step::FinishFenced(finish) => self.finish_fenced(finish),
            Step::MarkSent { epoch, tick, attempt, due } => self.mark_sent(*epoch, (*tick, *attempt, *due)),
            Step::GiveUp { epoch, fence, session } => self.give_up(*epoch, *fence, *session),
            Step::SessionBegins { session, lease, now } => self.session_begins(*session, *lease, *now),
            Step::SessionHeard { session, now } => self.session_heard(*session, *now),
            Step::SessionOver { session, by, now } => self.session_over(*session, *by, *now),
            Step::LetGo => self.let_go(),
            Step::Order(order, which) => self.order(*order, which),
            Step::Recover { old, epoch, due, all } => self.recover(*old, *epoch, *due, *all),
            Step::Move { epoch, due, forward } => self.move_to(*epoch, *due, *forward),
            Step::Restore(copy) => self.restore(copy),
        }
    }

    // ---- Chains begin ----

    fn begin(&mut self, new: &New) -> Taken {
        let entity = Entity::of(new.name);
        must(new.epoch > self.last_epoch, "Begin 1: the epoch is above every epoch before", || new.told())?;
        must(self.named(&entity, new.sort).is_none(), "Begin 2: no chain has the name", || new.told())?;

        self.insert(new, entity);
        Ok(())
    }

    fn begin_anew(&mut self, new: &New) -> Taken {
        let entity = Entity::of(new.name);
        let old = self.named(&entity, new.sort).filter(|old| self.chains[old].phase == Phase::Retired);
        must(new.epoch > self.last_epoch, "BeginAnew 1: the epoch is above every epoch before", || new.told())?;
        must(old.is_some(), "BeginAnew 2: a chain of the name has ended", || new.told())?;
        must(
            new.anew || new.sort != Sort::Rotation,
            "BeginAnew 3: a rotation begins anew only where that was asked for",
            || new.told(),
        )?;

        let before = old.and_then(|old| self.take_out(old));
        self.insert(new, entity);
        if let (Some(before), Some(chain)) = (before, self.chains.get_mut(&new.epoch)) {
            chain.fence = before.fence;
        }
        Ok(())
    }

    fn run_again(&mut self, new: &New) -> Taken {
        let entity = Entity::of(new.name);
        let of_name = self.named(&entity, new.sort).filter(|_| matches!(new.sort, Sort::Manual { .. }));
        let chain = self.chains.get_mut(&new.epoch).filter(|_| of_name == Some(new.epoch));
        let over = |chain: &&mut Chain| chain.phase == Phase::Retired && chain.held.is_none() && chain.open == 0;
        let chain = chain.filter(over).filter(|chain| chain.started < chain.tick && chain.attempt == 1);
        let Some(chain) = chain else {
            return must(
                false,
                "RunAgain 1: a manual run of the name has ended, and was not left in the middle",
                || new.told(),
            );
        };

        (chain.phase, chain.attempt, chain.sent, chain.due) = (Phase::Active, 1, false, new.due);
        (chain.sort, chain.owner) = (new.sort, new.owner.map(Into::into));
        Ok(())
    }

    fn known(&mut self, name: (&str, &str), manual: bool, ended: bool, owner: Option<Option<&str>>) -> Taken {
        let (entity, told) = (Entity::of(name), || format!("{} {}", name.0, name.1));
        let sort = if manual { Sort::Manual { beside: false } } else { Sort::Rotation };
        let chain = self.named(&entity, sort).and_then(|epoch| self.chains.get_mut(&epoch));
        let has_ended = chain.as_ref().map(|chain| chain.phase == Phase::Retired);
        must(has_ended == Some(ended), "Known 1: the chain is there, and has ended if the answer says so", told)?;

        if let (Some(chain), Some(owner)) = (chain, owner) {
            chain.owner = owner.map(Into::into);
        }
        Ok(())
    }

    // ---- Claims ----

    fn claim(&mut self, asked: &Asked, granted: &Granted) -> Taken {
        let told = || asked.told();
        let chain = self.chains.get(&asked.epoch).filter(|chain| chain.has_name(asked.name));
        let Some(chain) = chain else { return must(false, "Claim 1: the epoch is that of a chain of this name", told) };
        let place = (asked.tick, asked.attempt);
        let deaths = self.deaths(chain, asked);
        let runs = granted.runs == Runs::Yes;
        let once = chain.sort != Sort::Rotation;
        must(chain.phase == Phase::Active, "Claim 2: the chain is active", told)?;
        must(place == (chain.tick, chain.attempt), "Claim 3: tick and attempt are those that come next", told)?;
        must(
            self.ended.get(&asked.epoch).is_none_or(|ended| asked.tick > *ended),
            "Claim 4: the tick has not ended, in this ledger or in one of which it is a copy",
            told,
        )?;
        must(
            chain.due <= asked.at + asked.ahead,
            "Claim 5: the attempt is due, or will be when the worker that claims it has waited as long as it says",
            told,
        )?;
        must(chain.open == 0, "Claim 6: all members of its batch have ended", told)?;
        must(
            self.is_free_for(chain, asked),
            "Claim 7: no session that goes on holds it; or the same session claims again what it never heard of; or \
             the message came again and the kind says that this is enough, unless two workers have died over the \
             attempt",
            told,
        )?;
        must(once || asked.recurs, "Claim 8: a rotation has a schedule", told)?;
        must(
            deaths < DEATHS_TO_SET_ASIDE || once && granted.runs == Runs::Deadly,
            "Claim 9: fewer than three workers have died over the attempt; or it is a single tick, which ends unrun",
            told,
        )?;
        must(
            granted.runs != Runs::Deadly || deaths >= DEATHS_TO_SET_ASIDE,
            "Claim 10: a run that is refused because of deaths has had three",
            told,
        )?;
        must(
            deaths >= DEATHS_TO_SET_ASIDE || deaths <= asked.prepared,
            "Claim 11: the worker is prepared for as many deaths as there were",
            told,
        )?;
        must(
            !runs || !self.meets(chain),
            "Claim 12: the rotation and the manual run of a name do not run at once, unless that was asked for",
            told,
        )?;
        must(granted.fence > self.last_fence, "Claim 13: the fence is above every fence before", told)?;
        must(
            granted.previous.is_none_or(|previous| previous == chain.fence),
            "Claim 14: the claim that is recorded as the one before is the one before",
            told,
        )?;
        must(
            (granted.due, granted.lost, granted.total) == (chain.due, chain.held.is_some(), chain.total),
            "Claim 15: the answer says when the attempt was due, if the claim before was lost, and what it waited for",
            told,
        )?;
        must(
            granted.at == asked.at.max(chain.due),
            "Claim 16: the run may start at the claim, and not before the attempt is due",
            told,
        )?;

        let unheard = asked.again && chain.held == Some(asked.session);
        self.last_fence = granted.fence;
        if let Some(chain) = self.chains.get_mut(&asked.epoch) {
            if chain.held.is_some() && !unheard {
                chain.lost.push(chain.fence);
            }
            (chain.held, chain.fence, chain.sent) = (Some(asked.session), granted.fence, true);
            if runs && chain.total == 0 {
                chain.started = chain.tick;
            }
        }
        Ok(())
    }

    fn claim_refused(&mut self, asked: &Asked, why: Why) -> Taken {
        let told = || asked.told();
        let Some(chain) = self.chains.get(&asked.epoch) else {
            let begun_anew = self.newest(asked.name).is_some_and(|epoch| epoch > asked.epoch);
            let idle = why == Why::Idle && (asked.member || begun_anew);
            return must(
                idle,
                "ClaimRefused 1: a chain that is gone is idle: it has begun anew, or its batch is over",
                told,
            );
        };
        let other = !chain.has_name(asked.name);
        let (place, next) = ((asked.tick, asked.attempt), (chain.tick, chain.attempt));
        match why {
            Why::Other => must(other, "ClaimRefused 2: another's epoch is one of another name", told),
            Why::Idle => must(
                chain.phase != Phase::Active || chain.open > 0,
                "ClaimRefused 3: an idle chain is not active, or waits for its batch",
                told,
            ),
            Why::Stale(message) => {
                let is_next = message.is_none_or(|message| message == (chain.tick, chain.attempt, chain.due));
                let put_off = place == next && chain.due > asked.at && asked.due < chain.due && chain.sent;
                must(place < next || put_off, "ClaimRefused 4: the chain is past a stale message", told)?;
                must(
                    is_next && message.is_some() != chain.sent || put_off,
                    "ClaimRefused 5: with a stale message comes the one that follows, if that is not known to be sent",
                    told,
                )
            }
            Why::Early => must(chain.due > asked.at, "ClaimRefused 6: what comes early is not due", told),
            Why::Runs => must(self.is_held(chain), "ClaimRefused 7: what runs is held by a session that goes on", told),
            Why::Suspected(deaths) => must(
                deaths > asked.prepared && deaths == self.deaths(chain, asked),
                "ClaimRefused 8: so many have died over what is suspected, and the worker is not prepared for that",
                told,
            ),
            // A manual run may also wait for the end of its cooldown, of which the specification knows nothing.
            Why::Waits => must(
                chain.sort != Sort::Rotation || self.meets(chain),
                "ClaimRefused 9: a rotation waits for the manual run of its name only while that runs",
                told,
            ),
            Why::NoSchedule => must(
                !asked.recurs && chain.sort == Sort::Rotation,
                "ClaimRefused 10: what has no schedule is a rotation of a kind without one",
                told,
            ),
        }
    }

    fn set_aside(&mut self, asked: &Asked) -> Taken {
        let told = || asked.told();
        let chain =
            self.chains.get(&asked.epoch).filter(|chain| (chain.tick, chain.attempt) == (asked.tick, asked.attempt));
        let deaths = chain.map_or(0, |chain| self.deaths(chain, asked));
        let rotation = chain.is_some_and(|chain| chain.sort == Sort::Rotation && chain.phase == Phase::Active);
        must(rotation, "SetAside 1: an active rotation is set aside, and with it the attempt that comes next", told)?;
        must(deaths >= DEATHS_TO_SET_ASIDE, "SetAside 2: three workers have died over the attempt", told)?;

        if let Some(chain) = self.chains.get_mut(&asked.epoch) {
            (chain.phase, chain.held) = (Phase::Quarantined, None);
        }
        Ok(())
    }

    fn ahead(&mut self, asked: &Asked) -> Taken {
        let known = self.chains.get(&asked.epoch);
        let ahead = match known {
            Some(chain) => chain.phase != Phase::Retired && (asked.tick, asked.attempt) > (chain.tick, chain.attempt),
            None => !asked.member && self.newest(asked.name).is_none_or(|epoch| epoch < asked.epoch),
        };
        must(ahead, "Ahead 1: the message's epoch is above the chain's, or its tick and attempt are", || asked.told())?;

        let epoch = if known.is_some() { Some(asked.epoch) } else { self.newest(asked.name) };
        let chain = epoch.and_then(|epoch| self.chains.get_mut(&epoch));
        if let Some(chain) = chain.filter(|chain| chain.phase != Phase::Retired) {
            chain.phase = Phase::Quarantined;
        }
        Ok(())
    }

    // ---- Finishes ----

    fn finish(&mut self, f: &Finish) -> Taken {
        let told = || f.told();
        let chain = self.chains.get(&f.epoch).filter(|chain| chain.held.is_some() && chain.fence == f.fence);
        let Some(chain) = chain else {
            return must(false, "Finish 1: the claim is the last of its chain, and was not given up or finished", told);
        };
        let ends = matches!(f.then, Then::Tick | Then::End);
        let members: &[_] = if let Then::Gather(members) = f.then { members } else { &[] };
        let phase = if f.then == Then::End { Phase::Retired } else { chain.phase };
        must(
            (f.tick, f.attempt) == (chain.tick, chain.attempt),
            "Finish 2: tick and attempt are those that ran",
            told,
        )?;
        must(f.then != Then::Tick || chain.sort == Sort::Rotation, "Finish 3: only a rotation has a next tick", told)?;
        must(
            !matches!(f.then, Then::Attempt(attempt) if attempt <= chain.attempt),
            "Finish 4: the next attempt is a later one",
            told,
        )?;
        must(!matches!(f.then, Then::Gather(_)) || !f.from_batch, "Finish 5: a tick waits for a batch once", told)?;
        must(f.from_batch || chain.total == 0, "Finish 6: what has waited for a batch ends with that batch", told)?;
        must(
            members
                .iter()
                .zip([self.last_epoch].into_iter().chain(members.iter().map(|m| m.0)))
                .all(|(m, before)| m.0 > before),
            "Finish 7: the members' epochs are above every epoch before",
            told,
        )?;
        must(
            f.sends == (phase == Phase::Active && !matches!(f.then, Then::Gather(_))),
            "Finish 8: the answer has the chain's next message if the chain is active and does not wait",
            told,
        )?;
        let parent = match chain.sort {
            Sort::Member { parent } if f.then == Then::End => Some(parent),
            _ => None,
        };
        let waits = parent.and_then(|parent| self.chains.get(&parent)).filter(|waits| waits.open == 1);
        must(
            f.sends_parent == waits.is_some_and(|waits| waits.phase == Phase::Active),
            "Finish 9: the answer has the message of the chain that waits if this was the last member",
            told,
        )?;

        if ends {
            self.ended.insert(f.epoch, f.tick);
        }
        // What a chain that has ended meanwhile has begun is not wanted.
        let begun = if phase == Phase::Retired { &[] } else { members };
        let Some(chain) = self.chains.get_mut(&f.epoch) else { return Ok(()) };
        (chain.phase, chain.held, chain.due) = (phase, None, f.due);
        (chain.sent, chain.total, chain.open) = (matches!(f.then, Then::Gather(_)), begun.len(), begun.len());
        chain.lost.clear();
        match f.then {
            Then::Tick | Then::End => (chain.tick, chain.attempt) = (chain.tick.next(), 1),
            Then::Attempt(attempt) => chain.attempt = attempt,
            Then::Snooze | Then::Gather(_) => {}
        }
        let rotation = (f.retires && matches!(chain.sort, Sort::Manual { .. })).then(|| chain.entity.clone());
        if let Some(rotation) = rotation.and_then(|entity| self.named(&entity, Sort::Rotation)) {
            self.retire(rotation);
        }
        if f.from_batch {
            self.drop_members(f.epoch);
        }
        for (epoch, kind, key, due) in begun {
            let sort = Sort::Member { parent: f.epoch };
            let new = New { name: (kind, key), sort, owner: None, epoch: *epoch, due: *due, anew: false };
            self.insert(&new, Entity::of(new.name));
        }
        if let Some(waits) = parent.and_then(|parent| self.chains.get_mut(&parent)).filter(|waits| waits.open > 0) {
            waits.open -= 1;
            if waits.open == 0 {
                (waits.due, waits.sent) = (f.due, false);
            }
        }
        Ok(())
    }

    fn finish_again(&mut self, f: &Finish) -> Taken {
        let chain = self.chains.get(&f.epoch).filter(|chain| chain.fence == f.fence && chain.held.is_none());
        let there = chain.is_some_and(|chain| (chain.tick, chain.attempt, chain.due) == f.leads_to());
        must(
            there,
            "FinishAgain 1: the claim is the last of its chain, and the chain is where the finish puts it",
            || f.told(),
        )
    }

    fn finish_fenced(&mut self, f: &Finish) -> Taken {
        let chain = self.chains.get_mut(&f.epoch);
        let holds = chain.as_ref().is_some_and(|chain| chain.fence == f.fence && chain.held.is_some());
        must(!holds, "FinishFenced 1: another claim came after it, or the chain was taken from it", || f.told())?;

        // A run that comes to its end late was no death.
        if let Some(chain) = chain {
            chain.lost.retain(|lost| *lost != f.fence);
        }
        Ok(())
    }

    // ---- Messages ----

    fn mark_sent(&mut self, epoch: Epoch, (tick, attempt, due): (TickNo, u32, Time)) -> Taken {
        let Some(chain) = self.chains.get_mut(&epoch) else { return Ok(()) };
        must(
            (tick, attempt) <= (chain.tick, chain.attempt),
            "MarkSent 1: no message is sent that is ahead of its chain",
            || format!("{epoch}-{tick}-{attempt}"),
        )?;

        chain.sent |= (tick, attempt, due) == (chain.tick, chain.attempt, chain.due);
        Ok(())
    }

    // ---- Sessions ----

    fn give_up(&mut self, epoch: Epoch, fence: Fence, session: i64) -> Taken {
        must(fence <= self.last_fence, "GiveUp 1: the claim was granted once", || format!("fence {fence} of {epoch}"))?;

        let held = self.chains.get_mut(&epoch).filter(|chain| (chain.fence, chain.held) == (fence, Some(session)));
        if let Some(chain) = held {
            chain.held = None;
        }
        Ok(())
    }

    fn session_begins(&mut self, session: i64, lease: Duration, now: Duration) -> Taken {
        let told = || format!("session {session}");
        must(!self.sessions.contains_key(&session), "SessionBegins 1: no session that goes on has the number", told)?;
        let holds = self.chains.values().any(|chain| chain.held == Some(session));
        must(!holds, "SessionBegins 2: no chain is held by a session of this number", told)?;

        self.sessions.insert(session, Session { lease, heard: now });
        Ok(())
    }

    fn session_heard(&mut self, session: i64, now: Duration) -> Taken {
        let goes_on = self.sessions.get_mut(&session);
        must(goes_on.is_some(), "SessionHeard 1: the session is not over", || format!("session {session}"))?;

        if let Some(heard) = goes_on {
            heard.heard = now;
        }
        Ok(())
    }

    fn session_over(&mut self, session: i64, by: By, now: Duration) -> Taken {
        let silent = self.sessions.get(&session).is_none_or(|one| now.saturating_sub(one.heard) >= one.lease);
        must(
            silent || by != By::Silence,
            "SessionOver 1: who is taken for dead has not been heard of for a lease",
            || format!("session {session}"),
        )?;

        self.sessions.remove(&session);
        Ok(())
    }

    fn let_go(&mut self) -> Taken {
        for chain in self.chains.values_mut().filter(|chain| chain.phase != Phase::Active) {
            if chain.held.is_some_and(|session| !self.sessions.contains_key(&session)) {
                chain.lost.push(chain.fence);
                chain.held = None;
            }
        }
        Ok(())
    }

    // ---- Operators ----

    fn order(&mut self, order: Order, which: &Which) -> Taken {
        let fits = |(_, chain): &(&Epoch, &Chain)| {
            let Entity { kind, key } = &*chain.entity;
            !matches!(chain.sort, Sort::Member { .. })
                && which.kind.is_none_or(|it| it == kind)
                && which.key.is_none_or(|it| it == key)
                && which.owner.is_none_or(|it| chain.owner.as_deref() == Some(it))
        };
        let epochs: Vec<Epoch> = self.chains.iter().filter(fits).map(|(epoch, _)| *epoch).collect();
        for epoch in epochs {
            let Some(chain) = self.chains.get_mut(&epoch) else { continue };
            match (order, chain.phase) {
                (Order::Pause, Phase::Active) => chain.phase = Phase::Paused,
                (Order::Resume, Phase::Paused) => {
                    (chain.phase, chain.sent) = (Phase::Active, chain.sent && chain.open > 0);
                }
                (Order::Retire, _) => self.retire(epoch),
                _ => {}
            }
        }
        Ok(())
    }

    fn recover(&mut self, old: Epoch, epoch: Epoch, due: Time, all: bool) -> Taken {
        let told = || format!("{old}, which becomes {epoch}");
        let chain = self.chains.get(&old).filter(|chain| !matches!(chain.sort, Sort::Member { .. }));
        let wrong = |chain: &Chain| {
            if all { chain.phase != Phase::Retired } else { chain.phase == Phase::Quarantined }
        };
        must(
            chain.is_some_and(wrong),
            "Recover 1: the chain is quarantined; or an older copy was restored, and it has not ended",
            told,
        )?;
        must(epoch > self.last_epoch, "Recover 2: the epoch is above every epoch before", told)?;

        let Some(mut chain) = self.take_out(old) else { return Ok(()) };
        if chain.phase != Phase::Paused {
            chain.phase = Phase::Active;
        }
        (chain.attempt, chain.due, chain.held, chain.sent) = (1, due, None, false);
        (chain.total, chain.open) = (0, 0);
        chain.lost.clear();
        self.put_in(epoch, chain);
        Ok(())
    }

    fn move_to(&mut self, epoch: Epoch, due: Time, forward: bool) -> Taken {
        let told = || format!("{epoch}");
        let chain = self.chains.get(&epoch).filter(|chain| chain.sort == Sort::Rotation);
        let Some(chain) = chain else { return must(false, "Move 1: it is a rotation", told) };
        let sleeps = !self.is_held(chain) && chain.open == 0;
        let phase = chain.phase == Phase::Active || chain.phase == Phase::Paused && !forward;
        must(phase, "Move 2: the chain is active; or it is paused, and its schedule has changed", told)?;
        must(sleeps, "Move 3: no session that goes on holds it, and it waits for no batch", told)?;
        must(!forward || due < chain.due, "Move 4: what an operator brings forward comes earlier", told)?;
        must(
            forward || (chain.attempt == 1 && chain.started < chain.tick),
            "Move 5: a tick that has started keeps its time when the schedule changes",
            told,
        )?;

        if let Some(chain) = self.chains.get_mut(&epoch) {
            (chain.due, chain.sent) = (due, false);
        }
        Ok(())
    }

    fn restore(&mut self, copy: &Copy) -> Taken {
        // Which numbers were given, and which ticks have ended, is so in whatever copy.
        let Copy { chains, names, sessions } = copy.clone();
        (self.chains, self.names, self.sessions) = (chains, names, sessions);
        // The copy may not know of later ticks in the epoch of a manual run: the next one begins an epoch of its own.
        for chain in self.chains.values_mut() {
            if chain.phase == Phase::Retired && matches!(chain.sort, Sort::Manual { .. }) && chain.started < chain.tick
            {
                chain.started = chain.tick;
            }
        }
        Ok(())
    }

    // ---- What the lines say ----

    /// A session that goes on holds the chain.
    fn is_held(&self, chain: &Chain) -> bool {
        chain.held.is_some_and(|session| self.sessions.contains_key(&session))
    }

    /// How many workers have died over the attempt, its holder among them, as the claim counts them: not where the
    /// holder may live, unless the tick is to be taken from it.
    fn deaths(&self, chain: &Chain, asked: &Asked) -> u32 {
        let unheard = asked.again && chain.held == Some(asked.session);
        let gone = chain.held.is_some() && (!self.is_held(chain) || asked.takeover);
        let before = u32::try_from(chain.lost.len()).unwrap_or(u32::MAX);
        if gone && !unheard { before + 1 } else { 0 }
    }

    fn is_free_for(&self, chain: &Chain, asked: &Asked) -> bool {
        let unheard = asked.again && chain.held == Some(asked.session);
        let early =
            asked.takeover && self.redelivery.contains(&chain.entity.kind) && self.deaths(chain, asked) <= SUSPECTED;
        !self.is_held(chain) || unheard || early
    }

    /// The rotation and the manual run of a name are to run one after the other, and the other one of them runs.
    fn meets(&self, chain: &Chain) -> bool {
        let other = match chain.sort {
            Sort::Rotation => Sort::Manual { beside: false },
            Sort::Manual { .. } => Sort::Rotation,
            Sort::Member { .. } => return false,
        };
        let Some(twin) = self.named(&chain.entity, other).and_then(|epoch| self.chains.get(&epoch)) else {
            return false;
        };
        let beside = [chain.sort, twin.sort].contains(&Sort::Manual { beside: true });
        !beside && (self.is_held(twin) || twin.open > 0)
    }

    /// The epoch that a name has now.
    fn named(&self, entity: &Entity, sort: Sort) -> Option<Epoch> {
        self.names.get(entity).and_then(|epochs| epochs[sort.place()?])
    }

    /// The higher one of a name's epochs.
    fn newest(&self, (kind, key): (&str, &str)) -> Option<Epoch> {
        self.names.get(&*Entity::of((kind, key))).and_then(|epochs| epochs.iter().flatten().max().copied())
    }

    // ---- What the effects have in common ----

    fn insert(&mut self, new: &New, entity: Arc<Entity>) {
        let chain = Chain {
            entity,
            sort: new.sort,
            owner: new.owner.map(Into::into),
            phase: Phase::Active,
            tick: TickNo::FIRST,
            attempt: 1,
            due: new.due,
            held: None,
            fence: Fence::NONE,
            sent: false,
            started: TickNo::NONE,
            lost: Vec::new(),
            total: 0,
            open: 0,
        };
        self.put_in(new.epoch, chain);
    }

    fn put_in(&mut self, epoch: Epoch, chain: Chain) {
        if let Some(place) = chain.sort.place() {
            self.names.entry(chain.entity.clone()).or_default()[place] = Some(epoch);
        }
        self.last_epoch = epoch;
        self.chains.insert(epoch, chain);
    }

    /// Takes a chain out of its epoch. What it waits for is gone.
    fn take_out(&mut self, epoch: Epoch) -> Option<Chain> {
        self.drop_members(epoch);
        self.chains.remove(&epoch)
    }

    fn drop_members(&mut self, of: Epoch) {
        self.chains.retain(|_, chain| chain.sort != Sort::Member { parent: of });
    }

    fn retire(&mut self, epoch: Epoch) {
        self.drop_members(epoch);
        if let Some(chain) = self.chains.get_mut(&epoch) {
            (chain.phase, chain.total, chain.open) = (Phase::Retired, 0, 0);
        }
    }

    /// The epoch that a name has now.
    pub fn epoch_of(&self, name: (&str, &str), sort: Sort) -> Option<Epoch> {
        self.named(&Entity::of(name), sort)
    }

    /// A copy, as a backup takes it.
    pub fn copy(&self) -> Copy {
        Copy { chains: self.chains.clone(), names: self.names.clone(), sessions: self.sessions.clone() }
    }
}

impl Sort {
    /// Where the name has its epoch: a member of a batch has none.
    fn place(self) -> Option<usize> {
        match self {
            Self::Rotation => Some(0),
            Self::Manual { .. } => Some(1),
            Self::Member { .. } => None,
        }
    }
}

impl Entity {
    fn of((kind, key): (&str, &str)) -> Arc<Self> {
        Arc::new(Self { kind: kind.into(), key: key.into() })
    }
}

impl Chain {
    fn has_name(&self, (kind, key): (&str, &str)) -> bool {
        self.entity.kind == kind && self.entity.key == key
    }
}

impl New<'_> {
    fn told(&self) -> String {
        format!("{} {}, epoch {}", self.name.0, self.name.1, self.epoch)
    }
}

impl Asked<'_> {
    fn told(&self) -> String {
        let Asked { name: (kind, key), epoch, tick, attempt, session, .. } = self;
        format!("{kind} {key} {epoch}-{tick}-{attempt}, claimed for session {session}")
    }
}

impl Finish<'_> {
    /// Where the chain stands afterwards: tick, attempt, due.
    fn leads_to(&self) -> (TickNo, u32, Time) {
        match self.then {
            Then::Tick | Then::End => (self.tick.next(), 1, self.due),
            Then::Attempt(attempt) => (self.tick, attempt, self.due),
            Then::Snooze | Then::Gather(_) => (self.tick, self.attempt, self.due),
        }
    }

    fn told(&self) -> String {
        format!("{}-{}-{}, fence {}", self.epoch, self.tick, self.attempt, self.fence)
    }
}
