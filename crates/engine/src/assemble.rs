//! Makes the parts of an engine of its configuration.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize};

use parking_lot::RwLock;
use roundelay_config::{HandlerSettings, QueueSettings};
use roundelay_handler::exec::ExecHandler;
use roundelay_handler::http::HttpHandler;
use roundelay_handler::{Handler, http};
use roundelay_model::fleet::{FleetOrders, Flow};
use roundelay_model::pacing::fair::Shares;
use roundelay_model::pacing::key::KeyPath;
use roundelay_model::schedule::Balances;
use roundelay_model::topology::Names;
use tokio::sync::{Notify, SetOnce};
use tokio_util::sync::CancellationToken;

use crate::builder::Engine;
use crate::catalog::Catalog;
use crate::catalog::shared;
use crate::chores::Chores;
use crate::claim_time::ClaimTime;
use crate::concurrency::ConcurrencyLimit;
use crate::connections::Connections;
use crate::core::Core;
use crate::delays::{self, Sleepers};
use crate::desk::Desk;
use crate::dispatch::Dispatch;
use crate::error::StartError;
use crate::fair::lane::FairLane;
use crate::fair::requests::Requests;
use crate::flow_watch::FlowWatch;
use crate::life::Life;
use crate::observing::Observing;
use crate::orders::Orders;
use crate::outage::Outage;
use crate::pace::Pace;
use crate::patient::PatientLedger;
use crate::publishing::Publishing;
use crate::queue::QueueRun;
use crate::stop::Stop;
use crate::throttle::Throttles;
use crate::trace::Tracer;
use crate::unique::UniquePlaces;
use crate::vitals::Vitals;
use crate::wall::UpToDate;

/// Orders of programs that are held beside the engine's own chores.
const ORDERS: u16 = 64;

impl Engine {
    /// `base` is what handlers reach this worker's listener by.
    pub(crate) fn core(
        &mut self,
        connections: Connections,
        stopping: CancellationToken,
        base: Option<String>,
        worker: &str,
        tracer: Tracer,
    ) -> Result<Core, StartError> {
        let (config, clock) = (&self.config, &connections.clock);
        for name in self.handlers.keys() {
            config.kind(name).map_err(|error| StartError::Setup(format!("a handler is registered, but {error}")))?;
        }
        for name in self.queues.iter().flatten() {
            config.queue(name).map_err(|error| StartError::Setup(format!("a queue is to be consumed, but {error}")))?;
        }
        // The same for all HTTP handlers, so that they share connections.
        let clients = http::Clients::default();
        for (name, kind) in &config.kinds {
            if self.handlers.contains_key(name) {
                continue;
            }
            let setup = |error: String| StartError::Setup(format!("kinds.{name}.handler: {error}"));
            let handler: Arc<dyn Handler> = match &kind.handler {
                HandlerSettings::Rust => {
                    return Err(setup(format!(
                        "none is configured; set handler.http.url or handler.exec.argv, or register one with Engine::handler(\"{name}\", …)"
                    )));
                }
                HandlerSettings::Http(http) => {
                    let by_headers = kind.recurrence.as_ref().is_some_and(|recurrence| recurrence.freshness);
                    let handler = HttpHandler::new(http, &clients, clock.clone()).map_err(|e| setup(e.to_string()))?;
                    Arc::new(handler.by_headers(by_headers))
                }
                HandlerSettings::Exec(exec) => {
                    Arc::new(ExecHandler::new(exec, clock.clone()).map_err(|e| setup(e.to_string()))?)
                }
            };
            self.handlers.insert(name.clone(), handler);
        }
        let shares = Arc::new(Shares::new(config.shares()));
        let throttles = Throttles::new(&config.throttles, &connections.ledger, &self.telemetry, &shares, self.gated);
        let vitals = Arc::new(Vitals::new(config.worker.lease));
        let lives = vitals.clone();
        throttles.only_while(move || lives.session().is_some());
        let wanted = |name: &String| self.queues.as_ref().is_none_or(|queues| queues.contains(name));
        let dispatch = Dispatch { telemetry: self.telemetry.clone(), ..Dispatch::new(config, &connections) };
        let queues = config.queues.iter().filter(|(name, _)| wanted(name)).map(|(name, settings)| {
            let room = ConcurrencyLimit::new(settings.concurrency, settings.fair.as_ref().map(|_| shares.clone()));
            let balances = Arc::<Balances>::default();
            // What waits here keeps its place from others, and can be put off only from here.
            let ahead = settings.throttle.as_ref().and_then(|name| config.throttles.get(name)?.ahead());
            let plain = FleetOrders::default();
            let flow = Flow::of(settings.concurrency, settings.prefetch, ahead, &plain, &plain);
            let lane = |(lane, source): (u8, String)| QueueRun {
                name: name.as_str().into(),
                source,
                lane,
                places: settings.concurrency,
                prefetch: settings.prefetch,
                ahead,
                flow_watch: FlowWatch::new(flow),
                priority: settings.rank(lane),
                fair: FairLane::new(settings.fair.clone()),
                room: room.clone(),
                throttle: settings
                    .throttle
                    .as_ref()
                    .and_then(|name| Some((throttles.get(name)?, self.telemetry.throttle(name)))),
                figures: self.telemetry.queue(name),
                handed_out: Arc::default(),
                unsettled: AtomicUsize::new(0),
                sent_behind: AtomicI64::new(0),
                behind: Pace::new(delays::BEHIND),
                frontier: AtomicI64::new(i64::MIN),
                balances: balances.clone(),
            };
            let lanes = (0..).zip(dispatch.lanes.queues(name)).map(lane).map(Arc::new);
            (name.clone(), lanes.collect())
        });
        let mut queues: BTreeMap<String, Vec<Arc<QueueRun>>> = queues.collect();
        let queue = |(name, settings): (&String, &QueueSettings)| (name.clone(), settings.throttle.clone());
        let mut known_queues: BTreeMap<String, Option<String>> = config.queues.iter().map(queue).collect();
        let chores = self.chores.then(|| Arc::new(Chores::new(config, &connections)));
        let mut kinds = self.config.kinds.clone();
        if let Some(chores) = &chores {
            let (name, most) = (chores.queue.clone(), chores.concurrency());
            let prefetch = u16::try_from(most).unwrap_or(u16::MAX).saturating_add(ORDERS);
            let queue = QueueRun {
                name: name.as_str().into(),
                source: name.clone(),
                lane: 0,
                places: most,
                prefetch,
                ahead: None,
                flow_watch: FlowWatch::new(Flow { open: true, places: most, prefetch }),
                priority: 0,
                fair: FairLane::new(None),
                room: ConcurrencyLimit::new(most, None),
                throttle: None,
                figures: self.telemetry.queue(&name),
                handed_out: Arc::default(),
                unsettled: AtomicUsize::new(0),
                sent_behind: AtomicI64::new(0),
                behind: Pace::new(delays::BEHIND),
                frontier: AtomicI64::new(i64::MIN),
                balances: Arc::default(),
            };
            queues.insert(name.clone(), vec![Arc::new(queue)]);
            known_queues.insert(name, None);
            for (name, settings) in Chores::kinds() {
                kinds.insert(name.into(), settings);
                self.handlers.insert(name.into(), chores.clone());
            }
        }
        let life = Life::new(self.probe.take());
        let (entropy, telemetry) = (connections.entropy.clone(), self.telemetry.clone());
        let stop = Stop {
            stopping,
            abort: CancellationToken::new(),
            drained: Arc::default(),
            grace: self.config.worker.grace,
        };
        let ledger = PatientLedger {
            ledger: connections.ledger.clone(),
            comeback: Arc::default(),
            telemetry: telemetry.clone(),
            abort: stop.abort.clone(),
        };
        let observing = Arc::new(Observing {
            figures: kinds.keys().map(|name| (name.clone(), telemetry.kind(name))).collect(),
            tracer,
            desk: Desk::new(connections.ledger.clone(), worker, base),
            telemetry: telemetry.clone(),
            life: life.clone(),
        });
        let publishing = Arc::new(Publishing {
            dispatch,
            names: Names::new(&self.config.broker.prefix),
            sleepers: Sleepers::new(&self.config, &connections),
            declared: SetOnce::new(),
            outage: Outage::default(),
            jobs_kept: Notify::new(),
            ledger: ledger.clone(),
            entropy: entropy.clone(),
            telemetry,
            life: life.clone(),
        });
        let orders = Orders::new(&self.config, &connections, ledger.clone(), observing.clone(), publishing.clone());
        let reads = |queue: &QueueSettings| queue.fair.as_ref().is_some_and(KeyPath::reads_payload);
        let payloads = self.config.queues.values().any(reads);
        let catalog = Arc::new(Catalog {
            kinds: Arc::new(RwLock::new(Arc::new(shared(kinds)))),
            handlers: std::mem::take(&mut self.handlers),
            queues: known_queues,
        });
        Ok(Core {
            worker: worker.into(),
            catalog,
            fair: Requests::new(&ledger, payloads, &life),
            unique: UniquePlaces { ledger: ledger.clone(), life },
            wall: Arc::new(UpToDate::new(ledger.clone())),
            ledger,
            publishing,
            observing,
            stop,
            queues: Arc::new(queues),
            throttles,
            shares,
            catch_up: self.config.catch_up.clone(),
            in_hand: Arc::default(),
            claim_time: ClaimTime::default(),
            vitals,
            left: Arc::default(),
            suspects: Arc::default(),
            chores,
            prices: Arc::default(),
            orders: Arc::new(orders),
            entropy,
            ready: self.ready.clone(),
            attended: Arc::default(),
        })
    }
}
