//! What happens at its time: faults, what mends them, and in the end the calm.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use roundelay_broker::embedded::Profile;
use roundelay_broker::{Broker, Destination, Message};
use roundelay_ledger::{ChainFilter, ChainOrder, Hint, LedgerClock, Reports};
use roundelay_model::deaths::CLASS;
use roundelay_model::fleet::{FleetOrder, Subject};
use roundelay_model::job::Envelope;
use tokio::time::Instant;

use super::checks::{MENDING, STEADY, died_over};
use super::operators::{MENDED, UNKNOWN};
use super::workload::{CHAIN_COUNT, CHAINS, PLATFORM, VARIANTS, WORKERS};
use super::{CALM, Event, LOOK, OUTAGE, Ordered, World};
use crate::ledger::carry_out;
use crate::plan::{Blow, Fault, Planned, STORM};

/// So many jobs lie in quarantine when nothing goes wrong any more.
const MENDED_LATE: usize = 3;
/// Copies of the ledger, for a restore, are made this often.
const COPIES: Duration = Duration::from_secs(10);

impl World {
    pub(super) async fn happen(&mut self, event: Event) {
        match event {
            Event::Fault(n) if self.healed.is_none() => {
                let planned = self.plan.faults[n];
                self.faults += 1;
                self.observer.note(|| format!("FAULT {n}: {}", planned.fault));
                self.fault(n, planned).await;
            }
            Event::Fault(_) => {}
            Event::Start { worker } => self.start(worker),
            Event::Thaw(process) => process.thaw(),
            Event::BrokerUp => self.broker.start(),
            Event::BrokerTakes => self.full.store(false, Ordering::Relaxed),
            Event::LedgerUp => {
                let _ = self.fault_state.down.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
            }
            Event::LedgerFast => self.fault_state.slow.store(0, Ordering::Relaxed),
            Event::Declare => {
                // The operator tries again while the broker is away.
                let topology = match self.broker.parks() {
                    Some(true) => self.config.native_topology(),
                    _ => self.config.ladder_topology(),
                };
                if self.broker.apply(&topology).await.is_err() {
                    self.after(Duration::from_secs(2), Event::Declare);
                }
            }
            Event::Resume { chain } => self.order(chain, ChainOrder::Resume),
            Event::ResumeOwner => self.order_owner(ChainOrder::Resume),
            Event::Revive { chain } => self.enroll(chain, 0, true),
            Event::Configure { chain, variant } => self.enroll(chain, variant, false),
            Event::Order { subject, order } => self.order_fleet(subject, order),
            Event::Retry { reasons, dies } => self.retry(reasons, dies),
            Event::ChangeKeys => self.change_keys().await,
            Event::Mended => self.mended = self.set_aside(MENDED_LATE),
            Event::Publish => {
                self.publish();
                self.publish_unique();
                if self.healed.is_none() && self.dice.below(2) == 0 {
                    self.order_chain();
                }
                if self.healed.is_none_or(|healed| healed.elapsed() < CALM / 2) {
                    let pause = Duration::from_millis(2_000 + self.dice.below(9_000) as u64);
                    self.after(pause, Event::Publish);
                }
            }
            Event::Copy => {
                if let Ok(copy) = self.ledger.copy(&self.dice) {
                    let known = (self.replay.copy(), self.observer.places());
                    self.copies.push((Instant::now(), Arc::new(copy), known));
                }
                if self.healed.is_none() {
                    self.after(COPIES, Event::Copy);
                }
            }
            Event::Look => {
                self.look().await;
                self.after(LOOK, Event::Look);
            }
            Event::Heal => self.heal().await,
            Event::Outage => {
                self.observer.note(|| "the broker is away".into());
                self.observer.runs_without_messages();
                self.broker.stop();
                self.after(OUTAGE, Event::BrokerUp);
            }
            Event::Mend { again } => self.mend(again).await,
            Event::Poison => (0..3).for_each(|queue| self.poison(["alpha", "beta", "gamma"][queue].into(), 20)),
        }
    }

    async fn fault(&mut self, n: usize, planned: Planned) {
        self.doubled += planned.fault.doubled();
        match planned.fault {
            Fault::Strike { worker, blow, length } => self.strike(worker, blow, length),
            Fault::StrikeAt { point, nth, blow, .. } => self.traps.arm(n, (point, blow), nth),
            Fault::Restart { worker } => {
                if let Some(live) = &self.workers[worker].live {
                    live.stop.cancel();
                }
            }
            Fault::BrokerDown { length } => {
                self.broker.stop();
                self.after(length, Event::BrokerUp);
            }
            Fault::BrokerFull { length } => {
                self.full.store(true, Ordering::Relaxed);
                self.after(length, Event::BrokerTakes);
            }
            Fault::LedgerDown { length } => {
                self.fault_state.down.fetch_add(1, Ordering::Relaxed);
                self.after(length, Event::LedgerUp);
            }
            Fault::LedgerUnknown { writes } => {
                self.fault_state.hidden.fetch_add(writes, Ordering::Relaxed);
            }
            Fault::Claim { how, nth, .. } => self.claims.arm(n, how, nth),
            Fault::LedgerSlow { length, latency } => {
                self.fault_state.slow.store(latency.as_millis() as u64, Ordering::Relaxed);
                self.after(length, Event::LedgerFast);
            }
            Fault::Publish { how, count } => {
                let mut wrong = self.wrong.lock();
                wrong.extend(std::iter::repeat_n(how, count));
            }
            Fault::Purge { queue } => {
                if let Some(queue) = self.queue(queue) {
                    self.broker.drain(&queue).iter().for_each(|body| self.thrown_away(body));
                }
            }
            Fault::Lose { queue } => {
                if let Some(body) = self.queue(queue).and_then(|queue| self.broker.lose(&queue, 0)) {
                    self.thrown_away(&body);
                }
            }
            Fault::Duplicate { queue } => {
                if let Some(queue) = self.queue(queue) {
                    self.broker.duplicate(&queue, 0);
                }
            }
            Fault::Reorder { queue } => {
                if let Some(queue) = self.queue(queue) {
                    self.broker.reorder(&queue, self.seed);
                }
            }
            Fault::DeleteQueue { queue, away } => {
                if let Some(queue) = self.queue(queue) {
                    for held in self.broker.census().iter().filter(|held| held.queue == queue) {
                        self.thrown_away(&held.body);
                    }
                    self.broker.delete_queue(&queue);
                    self.after(away, Event::Declare);
                }
            }
            Fault::Clock { millis } => {
                self.clock.set_forward(millis);
            }
            Fault::BrokerClock { millis } => self.broker.set_clock(millis),
            Fault::BrokerVersion { parks } => {
                self.broker.become_like(if parks { Profile::Rabbit44 } else { Profile::Rabbit4 });
            }
            Fault::Poison { queue, count } => {
                let queue = ["alpha", "beta", "gamma"][queue % 3];
                self.poison(queue.into(), count);
            }
            Fault::Pause { chain, length } => {
                self.order(chain, ChainOrder::Pause);
                self.after(length, Event::Resume { chain });
            }
            Fault::PauseOwner { length } => {
                self.order_owner(ChainOrder::Pause);
                self.after(length, Event::ResumeOwner);
            }
            Fault::Retire { chain, length } => {
                self.order(chain, ChainOrder::Retire);
                // Its roster is enrolled once more meanwhile, which must not bring it back.
                self.after(length / 2, Event::Configure { chain, variant: 0 });
                self.after(length, Event::Revive { chain });
            }
            Fault::Configure { chain } => self.enroll(chain, self.dice.below(VARIANTS), false),
            Fault::RunOnce { chain } => self.run_once(chain),
            Fault::CloseQueue { queue, length } => {
                let subject = Subject::Queue(PLATFORM[queue].into());
                self.order_fleet(subject.clone(), FleetOrder::Close { why: "their upstream is down".into() });
                self.after(length, Event::Order { subject, order: FleetOrder::Open });
            }
            Fault::Concurrency { queue, places, length } => {
                let subject = Subject::Queue(PLATFORM[queue].into());
                self.order_fleet(subject.clone(), FleetOrder::Concurrency(Some(places)));
                self.after(length, Event::Order { subject, order: FleetOrder::Concurrency(None) });
            }
            Fault::Drain { worker, length, ends } => self.drain(worker, length, ends),
            Fault::Retry { jobs, dies } => {
                self.set_aside(jobs);
                self.after(Duration::from_secs(3), Event::Retry { reasons: &[MENDED, UNKNOWN], dies });
                if dies {
                    self.after(Duration::from_secs(9), Event::Retry { reasons: &[MENDED, UNKNOWN], dies: false });
                }
            }
            Fault::Deadly { chain } => {
                let mut deadly = self.deadly.lock();
                deadly.insert(CHAINS[chain].2.to_owned());
            }
            Fault::Restore { age } => self.restore(age).await,
        }
    }

    /// Something befalls a worker. In the calm nothing does, and what began before is over.
    pub(super) fn strike(&mut self, worker: usize, blow: Blow, length: Duration) {
        let length = length.min((self.begun + STORM).saturating_duration_since(Instant::now()));
        if blow == Blow::Kill {
            self.kill(worker);
            return self.after(length, Event::Start { worker });
        }
        let Some(live) = &self.workers[worker].live else { return };
        let process = live.process.clone();
        if blow.takes_broker() {
            live.connection.cut(length);
        }
        if blow.takes_ledger() {
            process.lose_ledger(length);
        }
        if blow == Blow::Freeze {
            process.freeze();
            self.after(length, Event::Thaw(process));
        } else {
            process.thaw();
        }
    }

    /// The message comes again, to each worker.
    pub(super) fn send_to_each(&self, hint: &Hint) {
        let (connection, body) = (self.connect(), hint.envelope(self.ledger.id()).encode());
        let queue = hint.queue.clone();
        tokio::spawn(async move {
            for n in 0..WORKERS {
                let (to, body) = (Destination::Queue(queue.clone()), body.clone().into());
                let _ = connection.publish(Message { to, id: format!("again-{n}"), body, trace: None }).await;
            }
        });
    }

    /// A queue that holds messages, for a fault that names the `n`-th; not where a person looks.
    fn queue(&self, n: usize) -> Option<String> {
        let kept = [self.names.quarantine(), self.names.unrouted()];
        let held: BTreeSet<String> = self.broker.census().into_iter().map(|held| held.queue).collect();
        let held: Vec<String> = held.into_iter().filter(|queue| !kept.contains(queue)).collect();
        (!held.is_empty()).then(|| held[n % held.len()].clone())
    }

    fn thrown_away(&self, body: &[u8]) {
        self.observer.thrown_away(body);
        if let Ok(order) = Envelope::decode(body)
            && order.order().is_some()
        {
            self.ordered.lock().gone.insert(order.key);
        }
        if let Some(body) = self.poison.lock().take(&self.as_published(body)) {
            // A copy of it may have been set aside before.
            self.perhaps.lock().insert(body);
        }
    }

    async fn heal(&mut self) {
        self.observer.note(|| "HEALED".into());
        self.healed = Some(Instant::now());
        self.calm.store(true, Ordering::Relaxed);
        self.traps.disarm();
        self.claims.disarm();
        self.broker.start();
        self.full.store(false, Ordering::Relaxed);
        self.fault_state.down.store(0, Ordering::Relaxed);
        self.fault_state.slow.store(0, Ordering::Relaxed);
        self.fault_state.hidden.store(0, Ordering::Relaxed);
        self.wrong.lock().clear();
        self.workers.iter().filter_map(|worker| worker.live.as_ref()).for_each(|live| live.process.thaw());
        self.happen_now(Event::Declare).await;
        // What was to be mended later is mended now.
        let events = std::mem::take(&mut self.events);
        for (key, event) in events {
            match event {
                Event::Resume { .. } | Event::ResumeOwner | Event::Revive { .. } | Event::Start { .. } => {
                    self.happen_now(event).await;
                }
                Event::Look | Event::Publish => drop(self.events.insert(key, event)),
                _ => {}
            }
        }
        (0..WORKERS).for_each(|worker| self.start(worker));
        self.take_orders_back(Duration::ZERO);
        self.healed_at = self.ledger.now();
        // What workers have died over is set aside when it is claimed next.
        self.deadly.lock().clear();
        self.after(Duration::ZERO, Event::Mend { again: 7 });
        self.after(CALM, Event::Outage);
        self.after(STEADY, Event::Poison);
        // Two in a row die over it, and the third does not.
        self.after(STEADY, Event::Mended);
        for (secs, dies) in [(3, true), (6, true), (9, false)] {
            self.after(STEADY + Duration::from_secs(secs), Event::Retry { reasons: &[MENDED], dies });
        }
    }

    /// An operator lets go on what was set aside since workers have died over it.
    async fn mend(&mut self, again: u32) {
        let late = self.ledger.late(self.ledger.now(), Vec::new(), 1_000).await.unwrap_or_default();
        for Hint { kind, key, .. } in late.into_iter().filter(died_over).map(|chain| chain.hint) {
            self.observer.note(|| format!("operator: recovers {kind} {key}"));
            // It is due anew.
            self.observer.recovered(&kind, &key);
            let which = ChainFilter { kind: Some(kind), key: Some(key), ..ChainFilter::default() };
            if let Err(error) = carry_out(&*self.ledger, &self.replay, which, ChainOrder::Recover).await {
                self.observer.violated("world", format!("what was set aside cannot be recovered: {error}"));
            }
        }
        self.retry(&[CLASS], false);
        if again > 0 {
            self.after(MENDING / 8, Event::Mend { again: again - 1 });
        }
    }

    /// What was ordered of queues and of the workers that live is not, any more.
    fn take_orders_back(&mut self, after: Duration) {
        let queues = PLATFORM.map(|queue| Subject::Queue(queue.into()));
        let names = self.workers.iter().filter_map(|worker| self.observer.name_of(&worker.live.as_ref()?.process));
        let subjects: Vec<Subject> = names.map(Subject::Worker).chain(queues).collect();
        for subject in subjects {
            for order in [FleetOrder::Open, FleetOrder::Concurrency(None)] {
                self.after(after, Event::Order { subject: subject.clone(), order });
            }
        }
    }

    async fn happen_now(&mut self, event: Event) {
        Box::pin(self.happen(event)).await;
    }

    async fn restore(&mut self, age: Duration) {
        let wanted = Instant::now() - age;
        let Some((_, copy, known)) = self.copies.iter().rev().find(|(at, ..)| *at <= wanted).or(self.copies.first())
        else {
            return;
        };
        // New numbers go on from the clock. An operator sees to it that it is right; one that was set
        // back since the ledger was last opened is not.
        if self.ledger.now() < self.opened_at {
            return self.observer.note(|| "operator: nothing is restored while the clock is behind".into());
        }
        self.opened_at = self.ledger.now();
        let Ok(restored) = copy.copy(&self.dice) else { return };
        let (known, places) = known.clone();
        (0..WORKERS).for_each(|worker| self.kill(worker));
        self.copies.retain(|(at, ..)| *at <= wanted);
        self.generation.fetch_add(1, Ordering::Relaxed);
        *self.ordered.lock() = Ordered::default();
        self.ledger = Arc::new(restored);
        self.observer.restored(places);
        self.replay = self.replay.restored(&known);
        let all = ChainFilter::default();
        if let Err(error) = carry_out(&*self.ledger, &self.replay, all, ChainOrder::RecoverAll).await {
            self.observer.violated("world", format!("the restored ledger cannot be recovered: {error}"));
        }
        // What was paused or retired since the copy is not, and the other way round.
        let resume: Vec<Event> =
            (0..CHAIN_COUNT).flat_map(|chain| [Event::Resume { chain }, Event::Revive { chain }]).collect();
        let resume = resume.into_iter().chain([Event::ResumeOwner]);
        resume.for_each(|event| self.after(Duration::from_secs(20), event));
        self.take_orders_back(Duration::from_secs(20));
        (0..WORKERS).for_each(|worker| self.after(Duration::from_secs(1), Event::Start { worker }));
    }
}
