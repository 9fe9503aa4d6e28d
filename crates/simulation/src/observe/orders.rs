//! What operators order of queues, workers and owners, when each process has read it, and whether it keeps to it
//! (I8).

use std::collections::BTreeMap;
use std::time::Duration;

use roundelay_model::fleet::{FleetOrders, Subject};
use tokio::time::Instant;

use super::{Observer, State};
use crate::worker::Process;

/// How long the answer about an owner may be on its way back, and a little more.
pub(super) const ANSWER: Duration = Duration::from_secs(4);

/// How long a run that has a place may still last: the longest timeout, and the ledger's outages before it.
const PLACES: Duration = Duration::from_secs(75);

impl Observer {
    /// An order to pause everything of the owner has been carried out, or one to let it go on is about to be.
    pub fn owner_paused(&self, paused: bool) {
        self.lock().owner_paused = paused.then(Instant::now);
    }

    /// A process says by which name it is known in the ledger.
    pub fn attends(&self, process: &Process, name: &str) {
        let mut state = self.lock();
        state.learned.entry((process.worker, process.run)).or_default().name = Some(name.into());
    }

    /// The name of a process in the ledger, once it has said it.
    pub fn name_of(&self, process: &Process) -> Option<String> {
        self.lock().learned.get(&(process.worker, process.run))?.name.clone()
    }

    /// A process has read what operators have ordered.
    pub fn learned(&self, process: &Process, orders: &BTreeMap<Subject, FleetOrders>) {
        let now = Instant::now();
        let mut state = self.lock();
        let learned = state.learned.entry((process.worker, process.run)).or_default();
        learned.read = Some(now);
        let (mut closed, mut places) = (BTreeMap::new(), BTreeMap::new());
        for (subject, orders) in orders {
            let queue = match subject {
                Subject::Queue(queue) => Some(queue.clone()),
                Subject::Worker(name) if learned.name.as_ref() == Some(name) => None,
                Subject::Worker(_) | Subject::Tenant(_) => continue,
            };
            if orders.closed.is_some() {
                let since = learned.closed.get(&queue).copied().unwrap_or(now);
                closed.insert(queue.clone(), since);
            }
            if let (Some(queue), Some(ordered)) = (queue, &orders.concurrency) {
                let known = learned.places.get(&queue).filter(|(places, _)| *places == ordered.places);
                places.insert(queue, (ordered.places, known.map_or(now, |(_, since)| *since)));
            }
        }
        (learned.closed, learned.places) = (closed, places);
    }

    /// Why a process must not claim from a queue now, if it knows that. What it has read this very moment it may have
    /// read too late.
    pub fn forbidden(&self, process: &Process, queue: &str) -> Option<String> {
        let state = self.lock();
        let closed = &state.learned.get(&(process.worker, process.run))?.closed;
        let since =
            |subject: Option<String>| closed.get(&subject).map(Instant::elapsed).filter(|since| !since.is_zero());
        let closed = since(Some(queue.into())).map(|since| format!("{queue} is closed, as it knows since {since:?}"));
        closed.or_else(|| since(None).map(|since| format!("its worker is to drain, as it knows since {since:?}")))
    }

    /// How long ago a process last read what operators have ordered.
    pub fn last_read(&self, process: &Process) -> Option<Duration> {
        Some(self.lock().learned.get(&(process.worker, process.run))?.read?.elapsed())
    }
}

impl State {
    /// One more of a queue's runs starts in a process, which may be one too many. A job that had a place when the
    /// concurrency was changed may use the place.
    pub(super) fn starts_in(&mut self, at: Duration, place: &(String, usize, usize), process: &Process) {
        let running = self.busy.entry(place.clone()).or_default();
        *running += 1;
        let (running, (queue, worker, run)) = (*running, place);
        let Some((places, since)) = self.learned.get(&(*worker, *run)).and_then(|learned| learned.places.get(queue))
        else {
            return;
        };
        if running > *places && since.elapsed() > PLACES && !process.stood_still(*since) {
            let what = format!(
                "{running} run from {queue} on worker {worker}, and {places} were ordered {:?} ago",
                since.elapsed()
            );
            self.violated(at, "I8", what);
        }
    }
}
