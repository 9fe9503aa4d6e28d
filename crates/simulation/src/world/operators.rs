//! Operators, and other programs that publish.

use std::sync::atomic::Ordering;
use std::time::Duration;

use roundelay_broker::{Broker, Destination, Message};
use roundelay_config::Config;
use roundelay_engine::enroll::{Enroller, Entity, RunOnce};
use roundelay_engine::replay::{Again, send_again};
use roundelay_engine::sealing::{Mode, take_stock};
use roundelay_engine::{Connections, Dispatch};
use roundelay_ledger::{ChainFilter, ChainOrder, Ledger, LedgerClock, LedgerError};
use roundelay_model::fleet::{FleetOrder, Subject, WorkerState};
use roundelay_model::job::{Envelope, RunNow};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::World;
use super::workload::{self, CHAINS, OWNER, SECOND_KEY, given_to, if_running, is_owned, payload, published};
use crate::plan::Fault;

/// Why good jobs lie in quarantine, and why others do that may be good once.
pub(super) const MENDED: &str = "this was mended";
pub(super) const UNKNOWN: &str = "unknown";

impl World {
    pub(super) fn operator(&self) -> Connections {
        self.connections(&self.operator).1
    }

    /// Carries out an order, again and again until it is. When one to stop is, the chain is known to
    /// be stopped.
    pub(super) fn order(&self, chain: usize, order: ChainOrder) {
        let (kind, _, key) = CHAINS[chain];
        let which = ChainFilter { kind: Some(kind.into()), key: Some(key.into()), ..ChainFilter::default() };
        let (ledger, observer) = (self.operator().ledger, self.observer.clone());
        let (generation, then) = (self.generation.clone(), self.generation.load(Ordering::Relaxed));
        let turn = self.turns[chain].clone();
        tokio::spawn(async move {
            let _turn = turn.lock().await;
            if order == ChainOrder::Resume {
                observer.stopped(kind, key, false);
            }
            while ledger.order_chains(which.clone(), order).await.is_err() {
                sleep(Duration::from_millis(700)).await;
            }
            observer.note(|| format!("operator: {order:?} {kind} {key} is done"));
            if order != ChainOrder::Resume && generation.load(Ordering::Relaxed) == then {
                observer.stopped(kind, key, true);
            }
        });
    }

    /// Gives an order for all chains of the owner, while no other order is given for them.
    pub(super) fn order_owner(&self, order: ChainOrder) {
        let which = ChainFilter { owner: Some(OWNER.into()), ..ChainFilter::default() };
        let (ledger, observer) = (self.operator().ledger, self.observer.clone());
        let (generation, then) = (self.generation.clone(), self.generation.load(Ordering::Relaxed));
        let turns: Vec<_> = CHAINS
            .iter()
            .zip(&self.turns)
            .filter(|((.., key), _)| is_owned(key))
            .map(|((kind, _, key), turn)| (*kind, *key, turn.clone()))
            .collect();
        tokio::spawn(async move {
            let mut held = Vec::new();
            for (.., turn) in &turns {
                held.push(turn.lock().await);
            }
            let stopped = |stopped: bool| {
                observer.owner_paused(stopped);
                turns.iter().for_each(|(kind, key, _)| observer.stopped(kind, key, stopped));
            };
            if order == ChainOrder::Resume {
                stopped(false);
            }
            while ledger.order_chains(which.clone(), order).await.is_err() {
                sleep(Duration::from_millis(700)).await;
            }
            observer.note(|| format!("operator: {order:?} of all that belongs to {OWNER} is done"));
            if order != ChainOrder::Resume && generation.load(Ordering::Relaxed) == then {
                stopped(true);
            }
        });
    }

    /// An order for a queue or a worker, carried out again and again until it is, one after the other.
    pub(super) fn order_fleet(&self, subject: Subject, order: FleetOrder) {
        let (ledger, observer, turn) = (self.operator().ledger, self.observer.clone(), self.turn.clone());
        tokio::spawn(async move {
            let _turn = turn.lock().await;
            carry_out(&*ledger, &subject, &order).await;
            observer.note(|| format!("operator: {order:?} of {} is done", told(&subject)));
        });
    }

    /// Lets a worker drain. When the worker is drained, or after `length`, it is stopped, or takes jobs again.
    pub(super) fn drain(&self, worker: usize, length: Duration, ends: bool) {
        let Some(live) = &self.workers[worker].live else { return };
        // The worker's name is not known before the worker has reported it.
        let Some(name) = self.observer.name_of(&live.process) else { return };
        let (ledger, observer, stop) = (self.operator().ledger, self.observer.clone(), live.stop.clone());
        let subject = Subject::Worker(name.clone());
        self.order_fleet(subject.clone(), FleetOrder::Close { why: "its machine is to go".into() });
        let turn = self.turn.clone();
        tokio::spawn(async move {
            let waiting = Instant::now();
            while waiting.elapsed() < length {
                sleep(Duration::from_secs(1)).await;
                let Ok(workers) = ledger.workers().await else { continue };
                let mut ours = workers.iter().map(|seen| &seen.presence).filter(|said| said.worker == name);
                if ours.next().is_some_and(|said| said.state == WorkerState::Drained) {
                    observer.note(|| format!("operator: {} has drained", told(&subject)));
                    break;
                }
            }
            if ends {
                return stop.cancel();
            }
            let _turn = turn.lock().await;
            carry_out(&*ledger, &subject, &FleetOrder::Open).await;
        });
    }

    /// Good jobs lie in quarantine, as when their kind was not in the configuration; answers their ids.
    pub(super) fn set_aside(&mut self, jobs: usize) -> Vec<String> {
        let connection = self.connect();
        let ids: Vec<String> = (0..jobs)
            .map(|_| {
                self.published += 1;
                format!("aside-{}", self.published)
            })
            .collect();
        let (observer, names) = (self.observer.clone(), ids.clone());
        tokio::spawn(async move {
            for id in names {
                let body = Envelope::job("job", &id, published(&id), id.clone()).encode().into();
                let to = Destination::Quarantine { from: "gamma".into(), reason: MENDED.into() };
                if connection.publish(Message { to, id: format!("{id}-lay"), body, trace: None }).await.is_ok() {
                    observer.published(&id);
                }
            }
        });
        ids
    }

    /// An operator sends what lies in quarantine for one of these reasons to its queues again. Who dies over it has
    /// sent it, and taken nothing away.
    pub(super) fn retry(&self, reasons: &'static [&'static str], dies: bool) {
        let (connection, connections) = self.connections(&self.operator);
        let (config, observer, quarantine) = (self.config.clone(), self.observer.clone(), self.names.quarantine());
        tokio::spawn(async move {
            let Ok(found) = connection.peek(&quarantine, 1_000).await else { return };
            let (mut sent, mut held) = (0, Vec::new());
            for shelved in found {
                let wanted = reasons.iter().any(|reason| shelved.reason.contains(reason));
                if !wanted || send_again(&config, &connections, &shelved).await != Again::Sent {
                    shelved.put_back().await;
                } else if dies {
                    held.push(shelved);
                } else {
                    shelved.forget().await;
                    sent += 1;
                }
            }
            if dies {
                observer.note(|| format!("operator: dies over {} messages that were sent again", held.len()));
                connection.die();
            } else {
                observer.note(|| format!("operator: {sent} messages were sent again"));
            }
        });
    }

    pub(super) async fn enroll_all(&mut self) {
        for kind in self.config.kinds.keys().filter(|kind| CHAINS.iter().any(|(of, ..)| of == kind)) {
            let entities = CHAINS.iter().filter(|chain| chain.0 == kind);
            let entities = entities.map(|(_, queue, key)| entity(key, queue, 0)).collect();
            let enroller = Enroller::new(&self.config, self.operator(), kind, None, true);
            match enroller {
                Ok(mut enroller) => {
                    if let Err(error) = enroller.enroll(entities).await {
                        self.observer.violated("world", format!("cannot enroll: {error}"));
                    }
                }
                Err(error) => self.observer.violated("world", format!("cannot enroll: {error}")),
            }
        }
    }

    /// Enrolls a chain again, with another queue and payload.
    pub(super) fn enroll(&self, chain: usize, variant: usize, revive: bool) {
        let (kind, queue, key) = CHAINS[chain];
        let queue = if variant == 1 { "alpha" } else { queue };
        let window = Some(Duration::from_secs(5));
        let Ok(enroller) = Enroller::new(&self.config, self.operator(), kind, window, true) else { return };
        let (mut enroller, observer) = (enroller.revive(revive), self.observer.clone());
        let turn = self.turns[chain].clone();
        tokio::spawn(async move {
            let _turn = turn.lock().await;
            if revive {
                observer.stopped(kind, key, false);
            }
            loop {
                match enroller.enroll(vec![entity(key, queue, variant)]).await {
                    Ok(tally) => break observer.note(|| format!("operator: enrolled {kind} {key}: {tally:?}")),
                    Err(_) => sleep(Duration::from_millis(700)).await,
                }
            }
        });
    }

    /// Another key seals from now on, for workers that are started anew; and what lies in the ledger is sealed with
    /// it, while all of them go on.
    pub(super) async fn change_keys(&mut self) {
        if let Err(error) = self.judge_what_lies_sealed().await {
            self.observer.violated("world", format!("cannot take stock: {error}"));
        }
        match Config::parse(&workload::config(Some(SECOND_KEY)), "the simulation's configuration", []) {
            Ok(config) => self.config = config,
            Err(error) => return self.observer.violated("world", format!("the keys cannot be changed: {error}")),
        }
        let (ledger, keys) = (self.operator().ledger, self.config.encryption.clone());
        let observer = self.observer.clone();
        tokio::spawn(async move {
            loop {
                match take_stock(&*ledger, &keys, Mode::Rewrite, u64::MAX, |_| {}).await {
                    Ok(stock) => break observer.note(|| format!("operator: sealed {} texts anew", stock.written)),
                    Err(_) => sleep(Duration::from_millis(700)).await,
                }
            }
        });
    }

    pub(super) fn run_once(&self, chain: usize) {
        let (kind, _, key) = CHAINS[chain];
        let Ok(mut enroller) = Enroller::new(&self.config, self.operator(), kind, None, true) else { return };
        let observer = self.observer.clone();
        let asked = RunNow { if_running: Some(if_running(key)), ..RunNow::default() };
        let deadly = self.plan.faults.iter().any(|planned| matches!(planned.fault, Fault::Deadly { .. }));
        tokio::spawn(async move {
            loop {
                match enroller.run_once(key, None, &asked, None).await {
                    Ok(
                        accepted @ (RunOnce::Accepted
                        | RunOnce::Pending
                        | RunOnce::Ended
                        | RunOnce::Running
                        | RunOnce::Cooldown(_)),
                    ) => {
                        break observer.note(|| format!("operator: run {kind} {key} once: {accepted:?}"));
                    }
                    // Workers have died over it.
                    Ok(RunOnce::Quarantined) if deadly => {
                        break observer.note(|| format!("operator: {kind} {key} is set aside, and is not run once"));
                    }
                    Ok(other) => break observer.violated("I7", format!("{kind} {key} cannot run once: {other:?}")),
                    Err(_) => sleep(Duration::from_millis(700)).await,
                }
            }
        });
    }

    /// Publishes a one-off job. Only a confirmed job counts as accepted.
    pub(super) fn publish(&mut self) {
        self.published += 1;
        let id = format!("job-{}", self.published);
        let queue = ["alpha", "beta"][self.dice.below(2)];
        let mut job = Envelope::job("job", &id, published(&id), id.clone());
        job.queue = Some(queue.into());
        if self.dice.below(2) == 0 {
            job.due = Some(self.ledger.now() + Duration::from_millis(self.dice.below(20_000) as u64));
        }
        self.publish_job(job, id, queue);
    }

    /// Publishes a job of a unique kind. Another job that has not ended may have the same key.
    pub(super) fn publish_unique(&mut self) {
        self.published += 1;
        let id = format!("unique-{}", self.published);
        let (kind, key) = (["sole", "first"][self.dice.below(2)], ["u", "v"][self.dice.below(2)]);
        let mut job = Envelope::job(kind, key, published(&id), id.clone());
        job.queue = Some("gamma".into());
        self.publish_job(job, id, "gamma");
    }

    /// A program begins a chain by a message, or ends one that there is.
    pub(super) fn order_chain(&mut self) {
        self.published += 1;
        let (key, begins) = (format!("asked-{}", self.published), self.dice.below(3) > 0);
        let queue = ["alpha", "beta", "gamma"][self.dice.below(3)];
        let (payload, ordered) = (given_to(&key), self.ordered.clone());
        let order = if begins { json!({ "enroll": {}, "payload": payload }) } else { json!({ "retire": {} }) };
        let mut body = json!({ "v": 1, "kind": "asked", "key": key, "id": key });
        if let (Some(body), Value::Object(order)) = (body.as_object_mut(), order) {
            body.extend(order);
        }
        let Ok(mut enroller) = Enroller::new(&self.config, self.operator(), "asked", None, true) else { return };
        let (connection, observer) = (self.connect(), self.observer.clone());
        let (generation, then) = (self.generation.clone(), self.generation.load(Ordering::Relaxed));
        tokio::spawn(async move {
            let there = || vec![Entity::new(&key, "gamma", payload.to_string())];
            while !begins && enroller.enroll(there()).await.is_err() {
                sleep(Duration::from_millis(700)).await;
            }
            let to = Destination::Queue(queue.into());
            let message = Message { to, id: key.clone(), body: body.to_string().into_bytes().into(), trace: None };
            let confirmed = connection.publish(message).await.is_ok();
            // What a restored ledger has forgotten is not ordered again.
            if confirmed && generation.load(Ordering::Relaxed) == then {
                observer.note(|| format!("a program orders asked {key} by {queue}, begins: {begins}"));
                let mut ordered = ordered.lock();
                if begins {
                    ordered.begun.insert(key)
                } else {
                    ordered.ended.insert(key)
                };
            }
        });
    }

    fn publish_job(&mut self, mut job: Envelope, id: String, queue: &'static str) {
        job.owner = (self.dice.below(3) == 0).then(|| OWNER.into());
        let (connections, observer) = (self.operator(), self.observer.clone());
        let dispatch = Dispatch::new(&self.config, &connections);
        tokio::spawn(async move {
            let now = connections.ledger.now();
            if dispatch.send(&job, queue, now).await.is_ok() {
                observer.published(&id);
            }
        });
    }

    /// Publishes messages that cannot be used.
    pub(super) fn poison(&mut self, queue: String, count: usize) {
        let connection = self.connect();
        let mut bodies = Vec::new();
        for _ in 0..count {
            self.published += 1;
            let n = self.published;
            let bad = |kind: &str, queue: Option<String>| {
                let id = format!("bad-{n}");
                let job = Envelope { queue, ..Envelope::job(kind, &n.to_string(), published(&id), id) };
                String::from_utf8_lossy(&job.encode()).into_owned()
            };
            bodies.push(match self.dice.below(5) {
                0 => format!("not JSON {n}"),
                1 => bad("nobody", None),
                2 => bad("job", Some("nowhere".into())),
                3 => json!({ "v": 1, "kind": "quick", "key": "a", "chain": { "ledger": "other", "epoch": n, "tick": 1 } })
                    .to_string(),
                _ => json!({ "v": 9, "n": n }).to_string(),
            });
        }
        let (poison, perhaps) = (self.poison.clone(), self.perhaps.clone());
        tokio::spawn(async move {
            for body in bodies {
                let message = Message {
                    to: Destination::Queue(queue.clone()),
                    id: body.clone(),
                    body: body.clone().into(),
                    trace: None,
                };
                let known = if connection.publish(message).await.is_ok() { &poison } else { &perhaps };
                known.lock().insert(body.into_bytes());
            }
        });
    }
}

/// A worker's name begins with its process, which differs from run to run; a seed tells the same each time.
fn told(subject: &Subject) -> String {
    subject.to_string().replace(&format!(":{}-", std::process::id()), ":")
}

/// Of a worker that has ended, there is nothing to order.
async fn carry_out(ledger: &dyn Ledger, subject: &Subject, order: &FleetOrder) {
    loop {
        match ledger.order_fleet(subject.clone(), order.clone(), "operator".into()).await {
            Ok(_) | Err(LedgerError::NoWorker(_)) => return,
            Err(_) => sleep(Duration::from_millis(700)).await,
        }
    }
}

fn entity(key: &str, queue: &str, variant: usize) -> Entity {
    let owner = is_owned(key).then(|| OWNER.into());
    Entity { owner, ..Entity::new(key, queue, payload(key, variant).to_string()) }
}
