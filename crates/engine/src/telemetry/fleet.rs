//! The workers of a ledger, and the queues that they take from, as they and their operators have said it there.

use std::collections::BTreeMap;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use roundelay_ledger::SeenWorker;
use roundelay_model::clock::Time;
use roundelay_model::fleet::{FleetOrders, Subject, WorkerState};

use super::families::{ByQueue, Seconds};

/// What workers do, and that they say nothing any more.
const STATES: [&str; 5] = ["working", "draining", "drained", "stopping", "silent"];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByWorkerState {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByPaced {
    queue: String,
    throttle: String,
}

/// The metrics of the fleet.
#[derive(Debug, Default)]
pub(super) struct FleetFamilies {
    workers: Family<ByWorkerState, Gauge>,
    consumers: Family<ByQueue, Gauge>,
    places: Family<ByQueue, Gauge>,
    paused: Family<ByQueue, Seconds>,
    paced: Family<ByPaced, Gauge>,
}

impl FleetFamilies {
    pub fn register(to: &mut Registry) -> Self {
        let families = Self::default();
        to.register("workers", "Workers that have not ended, by what they do", families.workers.clone());
        to.register("queue_workers", "Workers that take from the queue", families.consumers.clone());
        to.register("queue_places", "Jobs of it that they run at the same time at most", families.places.clone());
        to.register("queue_paused_seconds", "How long an operator has paused it", families.paused.clone());
        to.register("queue_info", "Which throttle paces the queue", families.paced.clone());
        families
    }

    /// Counts over the queues of the configuration, each with its throttle.
    pub fn set(
        &self,
        queues: &BTreeMap<String, Option<String>>,
        workers: &[SeenWorker],
        orders: &BTreeMap<Subject, FleetOrders>,
        now: Time,
    ) {
        let state = |worker: &SeenWorker| match worker.presence.state {
            _ if worker.is_silent(now) => "silent",
            WorkerState::Working => "working",
            WorkerState::Draining => "draining",
            WorkerState::Drained => "drained",
            WorkerState::Stopping => "stopping",
        };
        for name in STATES {
            let count = workers.iter().filter(|worker| state(worker) == name).count();
            self.workers.get_or_create(&ByWorkerState { state: name }).set(count as i64);
        }
        let heard: Vec<_> = workers.iter().filter(|worker| !worker.is_silent(now)).collect();
        for (queue, throttle) in queues {
            let label = ByQueue { queue: queue.clone() };
            let open =
                heard.iter().flat_map(|worker| &worker.presence.queues).filter(|of| of.queue == *queue && of.open);
            let (workers, places) = open.fold((0, 0), |(workers, places), of| (workers + 1, places + of.concurrency));
            let closed = orders.get(&Subject::Queue(queue.clone())).and_then(|said| said.closed.as_ref());
            self.consumers.get_or_create(&label).set(workers);
            self.places.get_or_create(&label).set(i64::try_from(places).unwrap_or(i64::MAX));
            // Never 0 while it is paused, in its first moment either.
            let paused = closed.map_or(0.0, |closed| now.since(closed.at).as_secs_f64().max(0.001));
            self.paused.get_or_create(&label).set(paused);
            let throttle = throttle.clone().unwrap_or_default();
            self.paced.get_or_create(&ByPaced { queue: queue.clone(), throttle }).set(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Telemetry;
    use roundelay_model::fleet::Lateness;
    use roundelay_model::fleet::{FleetOrder, Presence, QueuePresence};

    fn worker(name: &str, seen: i64, state: WorkerState, queues: &[(&str, bool)]) -> SeenWorker {
        let queue = |(queue, open): &(&str, bool)| QueuePresence {
            queue: (*queue).into(),
            concurrency: 16,
            running: 0,
            waiting: 0,
            open: *open,
            starts_per_second: 0.0,
            late_ms: Lateness::default(),
        };
        let presence = Presence {
            worker: name.into(),
            host: "h".into(),
            pid: 1,
            version: "1".into(),
            started: Time::from_millis(0),
            state,
            queues: queues.iter().map(queue).collect(),
            kinds: Vec::new(),
            leases: 0,
            oldest: Vec::new(),
        };
        SeenWorker { presence, seen: Time::from_millis(seen) }
    }

    #[test]
    fn who_is_silent_or_has_closed_a_queue_does_not_take_from_it() {
        let telemetry = Telemetry::default();
        let queues = [("a".to_owned(), Some("pace".to_owned())), ("b".to_owned(), None)].into();
        let mut closed = FleetOrders::default();
        closed.add(FleetOrder::Close { why: "w".into() }, "ann", Time::from_millis(40_000));
        let orders = [(Subject::Queue("b".into()), closed)].into();
        let workers = [
            worker("1", 90_000, WorkerState::Working, &[("a", true), ("b", false)]),
            worker("2", 99_000, WorkerState::Draining, &[("a", false)]),
            worker("3", 60_000, WorkerState::Working, &[("a", true), ("b", true)]),
        ];
        telemetry.fleet(&queues, &workers, &orders, Time::from_millis(100_000));
        let text = telemetry.render();
        for line in [
            "roundelay_workers{state=\"working\"} 1",
            "roundelay_workers{state=\"draining\"} 1",
            "roundelay_workers{state=\"silent\"} 1",
            "roundelay_workers{state=\"drained\"} 0",
            "roundelay_queue_workers{queue=\"a\"} 1",
            "roundelay_queue_places{queue=\"a\"} 16",
            "roundelay_queue_workers{queue=\"b\"} 0",
            "roundelay_queue_paused_seconds{queue=\"a\"} 0.0",
            "roundelay_queue_paused_seconds{queue=\"b\"} 60.0",
            "roundelay_queue_info{queue=\"a\",throttle=\"pace\"} 1",
            "roundelay_queue_info{queue=\"b\",throttle=\"\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "no `{line}` in {text}");
        }
    }
}
