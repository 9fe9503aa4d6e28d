//! The state of platform queues: what waits, what runs, what an operator has ordered.

use std::collections::BTreeMap;

use roundelay_broker as broker;
use roundelay_config::Config;
use roundelay_ledger::{Census, SeenWorker};
use roundelay_model::clock::Time;
use roundelay_model::fleet::{Closed, FleetOrders, Lateness, Subject};
use roundelay_model::wall_clock::{At, WallClock};
use serde::Serialize;
use utoipa::ToSchema;

use super::broker::BrokerStatus;
use super::format::Late;

/// The state of a platform queue.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct QueueReport {
    /// The name of the queue.
    pub queue: String,
    /// Whether the queue is that of the engine's own chains.
    pub own: bool,
    /// How many rotations there are of each kind.
    pub kinds: BTreeMap<String, i64>,
    /// How many chains are due in the future.
    pub sleeping: i64,
    /// How many chains are due and do not run.
    pub due: i64,
    /// How many chains run.
    pub running: i64,
    /// How many chains are due for longer than `catch_up.slack`, and nothing holds them (a part of `due`).
    pub overdue: i64,
    /// How many chains are due and do not start because an operator holds the queue or its throttle (a part of `due`).
    pub held: i64,
    /// When the chain that waits longest was due.
    pub oldest_due: Option<At>,
    /// How many chains have a successor that the broker has not confirmed.
    pub unsent: i64,
    /// How many chains wait for the end of their batch.
    pub gathering: i64,
    /// How many messages wait on the broker, without those that sleep there, if that is known.
    pub ready: Option<u64>,
    /// How many messages wait in the ledger for their tenant's turn: those of a fair queue that exceed shares.
    pub backlog: i64,
    /// How many consumers the queue has; for a queue with lanes, those of the lane that has the fewest.
    pub consumers: Option<u64>,
    /// Messages per second, as RabbitMQ counts them.
    pub rates: Option<Rates>,
    /// Starts per second, as workers have last reported.
    pub starts_per_second: f64,
    /// How late starts were, on the worker with the latest ones.
    pub late_ms: Option<Late>,
    /// How many jobs run at the same time.
    pub concurrency: Concurrency,
    /// The pause that an operator has ordered.
    pub paused: Option<Paused>,
    /// The throttle that paces the queue.
    pub throttle: Option<String>,
    /// Among queues that share a throttle, the higher priority goes first.
    pub priority: i32,
    /// The part of a job by which tenants share the queue.
    pub fair: Option<String>,
    /// How many jobs of one tenant run at the same time, over all workers.
    pub most: Option<u32>,
}

/// Messages per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct Rates {
    /// Messages that enter the queue.
    #[serde(rename = "in")]
    pub into: f64,
    /// Messages that leave the queue.
    pub out: f64,
}

/// How many jobs of a queue run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct Concurrency {
    /// The limit in each worker, as configured.
    pub configured: usize,
    /// The limit in each worker that an operator has ordered in place of the configured one.
    pub ordered: Option<usize>,
    /// How many workers consume the queue.
    pub workers: usize,
    /// The share of the fleet's limit that is in use, from 0 to 1; unknown without workers.
    pub utilisation: Option<f64>,
}

/// The pause of a queue.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Paused {
    /// The operator who ordered the pause.
    pub by: String,
    /// When the pause was ordered.
    pub at: At,
    /// The reason of the operator.
    pub why: String,
}

impl Paused {
    fn of(closed: &Closed, wall_clock: &WallClock) -> Self {
        let Closed { why, by, at } = closed.clone();
        Self { by, at: At::of(at, wall_clock), why }
    }
}

/// The facts from which reports are made (pure).
pub struct QueueFacts<'a> {
    /// The workers' configuration.
    pub config: &'a Config,
    /// The number of chains by queue and state.
    pub census: &'a Census,
    /// What the broker has answered.
    pub asked: &'a BrokerStatus,
    /// The message rates, by the broker's queues.
    pub rates: &'a BTreeMap<String, broker::Rates>,
    pub workers: &'a [SeenWorker],
    /// Orders for queues and workers.
    pub orders: &'a BTreeMap<Subject, FleetOrders>,
    /// The time at which workers are checked for silence.
    pub now: Time,
    /// The relation of the wall clock to the ledger's time.
    pub wall_clock: &'a WallClock,
}

impl QueueFacts<'_> {
    /// All queues of the configuration, and queues that only chains name.
    pub fn reports(&self) -> Vec<QueueReport> {
        let mut names: Vec<&str> = self.config.queues.keys().map(String::as_str).collect();
        let others = self.census.queues.iter().map(|queue| queue.queue.as_str());
        names.extend(others.filter(|name| !self.config.queues.contains_key(*name)));
        names.into_iter().map(|name| self.report(name)).collect()
    }

    fn report(&self, name: &str) -> QueueReport {
        let census = self.census.queues.iter().find(|queue| queue.queue == name).cloned().unwrap_or_default();
        let settings = self.config.queues.get(name);
        let orders = self.orders.get(&Subject::Queue(name.into()));
        let heard = self.workers.iter().filter(|worker| !worker.is_silent(self.now));
        let parts = heard.flat_map(|worker| worker.presence.queues.iter().filter(|queue| queue.queue == name));
        let (mut places, mut running, mut workers, mut starts) = (0, 0, 0, 0.0);
        let mut late = None::<Lateness>;
        for part in parts {
            starts += part.starts_per_second;
            running += part.running;
            if part.open {
                workers += 1;
                places += part.concurrency;
            }
            if part.starts_per_second > 0.0 && late.is_none_or(|late| late.p99 < part.late_ms.p99) {
                late = Some(part.late_ms);
            }
        }
        let depth = self.asked.depth(name);
        let lanes = self.config.lanes();
        let rates = lanes.queues(name).filter_map(|lane| self.rates.get(&lane));
        let rates = rates.map(|of| Rates { into: of.published, out: of.delivered });
        let rates = rates.reduce(|a, b| Rates { into: a.into + b.into, out: a.out + b.out });
        QueueReport {
            queue: name.into(),
            own: name == self.config.topology().names.chores(),
            kinds: census.kinds,
            sleeping: census.sleeping,
            due: census.due,
            running: census.running,
            overdue: census.overdue,
            held: census.held,
            oldest_due: census.oldest_due.map(|at| At::of(at, self.wall_clock)),
            unsent: census.unsent,
            gathering: census.waiting,
            ready: depth.map(|depth| depth.ready),
            backlog: lanes.queues(name).filter_map(|lane| self.census.backlog.get(&lane)).sum(),
            consumers: depth.map(|depth| depth.consumers),
            rates,
            starts_per_second: starts,
            late_ms: late.map(Late::from),
            concurrency: Concurrency {
                configured: settings.map_or(0, |settings| settings.concurrency),
                ordered: orders.and_then(|orders| orders.concurrency.as_ref()).map(|said| said.places),
                workers,
                // Two moments: what workers said last, and what the ledger counted last. Never less than is shown to run.
                utilisation: (places > 0).then(|| (running.max(census.running) as f64 / places as f64).min(1.0)),
            },
            paused: orders.and_then(|orders| orders.closed.as_ref()).map(|closed| Paused::of(closed, self.wall_clock)),
            throttle: settings.and_then(|settings| settings.throttle.clone()),
            priority: settings.map_or(0, |settings| settings.priority),
            fair: settings.and_then(|settings| Some(settings.fair.as_ref()?.to_string())),
            most: settings.and_then(|settings| settings.most),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roundelay_ledger::QueueCensus;
    use roundelay_model::fleet::{FleetOrder, Presence, QueuePresence, WorkerState};

    const fn at(secs: i64) -> Time {
        Time::from_millis(secs * 1_000)
    }

    fn worker(seen: i64, queue: &str, running: i64, open: bool, rate: f64, p99: f64) -> SeenWorker {
        let queue = QueuePresence {
            queue: queue.into(),
            concurrency: 4,
            running,
            waiting: 0,
            open,
            starts_per_second: rate,
            late_ms: Lateness { p50: 1.0, p99, max: p99 },
        };
        let presence = Presence {
            worker: format!("{seen}"),
            host: String::new(),
            pid: 1,
            version: String::new(),
            started: at(0),
            state: WorkerState::Working,
            queues: vec![queue],
            kinds: vec![],
            leases: 0,
            oldest: Vec::new(),
        };
        SeenWorker { presence, seen: at(seen) }
    }

    #[test]
    fn a_queue_is_the_sum_of_what_is_known_of_it() {
        let text = "[queues.work]\nconcurrency = 4\npriority = 2\nthrottle = \"ios\"\n[throttles.ios]\nallow = 5\nper = \"1m\"";
        let config = Config::parse(text, "r.toml", []).unwrap();
        let work = QueueCensus { queue: "work".into(), sleeping: 7, due: 2, overdue: 1, ..QueueCensus::default() };
        let gone = QueueCensus { queue: "gone".into(), sleeping: 1, ..QueueCensus::default() };
        let backlog = BTreeMap::from([("work".into(), 12), ("other".into(), 3)]);
        let census = Census { queues: vec![gone, work], backlog, ..Census::default() };
        let mut orders = FleetOrders::default();
        orders.add(FleetOrder::Close { why: "down".into() }, "ann", at(50));
        orders.add(FleetOrder::Concurrency(Some(9)), "ann", at(50));
        // The second worker is silent, and the third consumes nothing at the moment.
        let workers = [
            worker(99, "work", 3, true, 2.5, 8.0),
            worker(10, "work", 4, true, 9.0, 99.0),
            worker(100, "work", 1, false, 0.5, 20.0),
            worker(101, "side", 1, true, 1.0, 1.0),
        ];
        let known = QueueFacts {
            config: &config,
            census: &census,
            asked: &BrokerStatus::Embedded,
            rates: &BTreeMap::from([("work".into(), broker::Rates { published: 1.5, delivered: 2.0, asleep: 7 })]),
            workers: &workers,
            orders: &BTreeMap::from([(Subject::Queue("work".into()), orders)]),
            now: at(100),
            wall_clock: &WallClock::default(),
        };
        let [work, gone] = &known.reports()[..] else { panic!("two queues") };
        assert_eq!((work.queue.as_str(), work.sleeping, work.due, work.overdue), ("work", 7, 2, 1));
        assert_eq!((work.backlog, gone.backlog), (12, 0));
        assert_eq!((work.ready, work.rates), (None, Some(Rates { into: 1.5, out: 2.0 })));
        assert_eq!((work.starts_per_second, work.late_ms.map(|late| late.p99)), (3.0, Some(20.0)));
        let concurrency = Concurrency { configured: 4, ordered: Some(9), workers: 1, utilisation: Some(1.0) };
        assert_eq!(work.concurrency, concurrency);
        let paused = Paused { by: "ann".into(), at: At::wall(at(50)), why: "down".into() };
        assert_eq!((&work.paused, &*work.throttle.clone().unwrap(), work.priority), (&Some(paused), "ios", 2));
        assert_eq!((gone.queue.as_str(), gone.sleeping, gone.concurrency.utilisation), ("gone", 1, None));
    }
}
