//! Starts an engine, and stops it.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use roundelay_broker::BrokerUrl;
use roundelay_config::{Config, TracingSettings};
use roundelay_ledger::LedgerUrl;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::builder::Engine;
use crate::connections::{Connections, knows_chains};
use crate::consume::work;
use crate::core::Core;
use crate::error::StartError;
use crate::life::Point;
use crate::pipeline::process_taken;
use crate::supervised::SupervisedTasks;
use crate::trace::{Export, Tracer};
use crate::{
    calendars, catch_up, companion, delays, fair, follow_wall, fresh, hand_out, heartbeat, presence, rearm, reload,
    spread, topology_guard,
};

impl Engine {
    /// Runs until `shutdown` is cancelled, then stops taking, lets what runs finish within the
    /// configured grace, and returns with nothing left unsettled.
    ///
    /// # Errors
    /// [`StartError`] when it cannot begin. Once it runs, a broker or a ledger that goes away is
    /// waited for; only [`StartError::Broken`] ends it, in good order.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), StartError> {
        let mut companions = std::mem::take(&mut self.companions);
        companion::check(&companions, &self.config)?;
        // Before an address is taken: that another worker has it is only what follows.
        let keeps_messages = match &self.connections {
            Some(connections) => connections.broker.keeps_messages(),
            None => !matches!(self.config.broker.url, BrokerUrl::Embedded),
        };
        let _alone = if keeps_messages { None } else { alone(&self.config)? };
        for companion in &mut companions {
            companion.bind(&self.config).await?;
        }
        let connections = match self.connections.take() {
            Some(connections) => connections,
            // A ledger's standby is waited for as long as it takes; what else there is to wait for ends soon by itself.
            None => tokio::select! {
                connected = Connections::of_worker(&self.config) => connected?,
                () = async { shutdown.cancelled().await; tokio::time::sleep(OPENING).await } => return Ok(()),
            },
        };
        let stop = shutdown.child_token();
        let fresh = self.configurations.take();
        // Before a tick is claimed: calendars say whether it may start.
        let days = calendars::read(&self.config, &*connections.ledger).await?;
        self.config.take_days(&days);
        let config = self.config.clone();
        let base = companions.iter().find_map(|companion| companion.callback());
        let worker = format!("{}-{}", std::process::id(), connections.entropy.token());
        let (tracer, export) = self.tracer(&connections, &worker)?;
        let core = Arc::new(self.core(connections.clone(), stop.clone(), base, &worker, tracer)?);
        // Also when this future is dropped: nothing runs on that could not be stopped.
        let _all_end_with_us = core.observing.life.guard();
        // What lasts as long as the engine, what ends when it stops, and what then has time to come to an end.
        let (mut lasting, mut parts, mut answering) =
            (SupervisedTasks::default(), SupervisedTasks::default(), SupervisedTasks::default());
        let handle = core.companion_handle(self.config.clone(), connections);
        for (name, task) in companions.iter_mut().flat_map(|companion| companion.watch(&handle)) {
            lasting.spawn(name, core.observing.life.bind(task));
        }
        topology_guard::check(&*core.ledger, &self.config, core.publishing.dispatch.broker.keeps_messages()).await?;
        let away = core.publishing.dispatch.broker.unavailable();
        let without = match away {
            Some(_) => knows_chains(&*core.ledger, &self.config).await?,
            None => false,
        };
        if without {
            let why = away.unwrap_or_default();
            tracing::warn!(why, "this worker begins without the broker: chains run from the ledger, one-off jobs wait");
        } else {
            core.publishing.declare().await?;
        }
        if let Some(chores) = &core.chores {
            chores.begin().await?;
        }
        for companion in &mut companions {
            for (name, task) in companion.serve(&handle).await? {
                answering.spawn(name, core.observing.life.bind(task));
            }
        }
        let companions = Arc::new(companions);
        core.observing.life.reached(Point::Declared).await;
        let (attends, beats) = (presence::Needs::from(&*core), heartbeat::Needs::from(&*core));
        // All are there before one begins, so that a start that fails leaves nothing running.
        presence::obey(&attends, &core.ledger.fleet_orders().await?);
        let keeper = heartbeat::begin(&beats).await?;
        let mut consumers = Vec::new();
        for queue in core.queues.values().flatten() {
            let flow = queue.flow();
            let consumer = match flow.open && !without {
                true => Some(core.publishing.dispatch.broker.consume(&queue.source, queue.reach(flow)).await?),
                false => None,
            };
            consumers.push((queue.clone(), flow, consumer));
        }
        let hops = core.publishing.names.rearm();
        let rearm = match without {
            true => None,
            false => Some(core.publishing.dispatch.broker.consume(&hops, rearm::PREFETCH).await?),
        };
        topology_guard::note_sealing(&*core.ledger, self.config.encryption.seal().is_some()).await?;
        let tasks = TaskTracker::new();
        for (queue, flow, consumer) in consumers {
            let name = format!("deliveries of the queue {}", queue.source);
            parts.spawn(
                name,
                core.observing.life.bind(work(core.clone(), queue, flow, consumer, tasks.clone(), stop.clone())),
            );
        }
        for queue in core.queues.values().flatten() {
            let name = format!("the backlog of the queue {}", queue.source);
            let its = core.clone();
            let live: fair::Live =
                Arc::new(move |queue, delivery, hand| Box::pin(process_taken(its.clone(), queue, delivery, hand)));
            let taking = fair::run(core.clone(), queue.clone(), live, tasks.clone(), stop.clone());
            parts.spawn(name, core.observing.life.bind(taking));
        }
        let rearm = rearm::work(core.clone(), rearm, tasks.clone(), stop.clone());
        parts.spawn("deliveries between hops", core.observing.life.bind(rearm));
        if without {
            let declaring = hand_out::declare_late(core.publishing.clone(), stop.clone());
            parts.spawn("declaring the topology", core.observing.life.bind(declaring));
        }
        let sleeping = delays::follow(core.publishing.clone(), stop.clone());
        parts.spawn("following how messages sleep", core.observing.life.bind(sleeping));
        let spreading = spread::follow(core.publishing.clone(), stop.clone());
        parts.spawn("giving hot rungs siblings", core.observing.life.bind(spreading));
        let (catalog, keys) = (core.catalog.clone(), core.publishing.keys());
        let budgets = move || fresh::budgets(catalog.kinds.read().values().map(|kind| &**kind));
        let telemetry = core.observing.telemetry.clone();
        let ledger = core.ledger.ledger.clone();
        let prices = core.prices.clone().follow(ledger, keys, budgets, telemetry, stop.clone());
        parts.spawn("following what calls cost", core.observing.life.bind(prices));
        let outage = hand_out::run((&core).into(), tasks.clone(), stop.clone());
        parts.spawn("running from the ledger", core.observing.life.bind(outage));
        parts.spawn("catch-up", core.observing.life.bind(catch_up::run((&core).into(), tasks.clone(), stop.clone())));
        if fresh.is_some() || calendars::by_sql(&config).next().is_some() {
            let reload = reload::run((&*core).into(), companions.clone(), (config, days), fresh, stop.clone());
            parts.spawn("following the configuration", core.observing.life.bind(reload));
        }
        parts.spawn(
            "following the wall clock",
            core.observing.life.bind(follow_wall::run((&*core).into(), stop.clone())),
        );
        // What runs keeps its lease until it has ended, also while the worker stops.
        lasting.spawn("heartbeats", core.observing.life.bind(keeper.keep(beats.clone())));
        lasting.spawn("writing of progress", core.observing.life.bind(core.observing.desk.clone().keep_writing()));
        lasting.spawn("reading the ledger's clock", core.observing.life.bind(read_clock(core.clone())));
        let mut attending = SupervisedTasks::default();
        if self.attends {
            attending.spawn("reading what operators order", core.observing.life.bind(presence::run(attends.clone())));
        }
        let queues: Vec<&str> = core.queues.keys().map(String::as_str).collect();
        tracing::info!(worker = %core.worker, ?queues, "working");

        let broken = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            which = lasting.one_ended() => Some(which),
            which = attending.one_ended() => Some(which),
            which = parts.one_ended() => Some(which),
            which = answering.one_ended() => Some(which),
        };
        if let Some(why) = &broken {
            companions.iter().for_each(|companion| companion.broken(why));
        }
        stop.cancel();
        tracing::info!(grace = ?core.stop.grace, running = tasks.len(), "stopping: finishing what runs");
        core.observing.life.reached(Point::Stopping).await;
        parts.all_ended(PARTS_STOP).await;
        tasks.close();
        if !have_ended(&tasks, core.stop.grace).await {
            tracing::warn!(running = tasks.len(), "the grace is over: the rest is put off and runs again elsewhere");
            core.stop.abort.cancel();
            let _ = tokio::time::timeout(ABORT, tasks.wait()).await;
        }
        fair::end(&core).await;
        answering.all_ended(PARTS_STOP).await;
        // One-off jobs that have ended go on nowhere.
        core.observing.desk.write().await;
        drop(attending);
        if self.attends {
            presence::leave(&attends).await;
        }
        heartbeat::end(&beats).await;
        core.publishing.dispatch.broker.close().await;
        if let Err(error) = core.ledger.flush().await {
            tracing::debug!(%error, "failed to flush the ledger; some messages will be sent twice");
        }
        export.finish().await;
        tracing::info!("stopped");
        broken.map_or(Ok(()), |why| Err(StartError::Broken(why)))
    }

    /// What the configuration wants recorded. Simulated time means nothing to a collector.
    fn tracer(&self, connections: &Connections, worker: &str) -> Result<(Tracer, Export), StartError> {
        let settings = match connections.clock.is_virtual() {
            true => &TracingSettings { otlp: None, ..self.config.tracing.clone() },
            false => &self.config.tracing,
        };
        let system = if connections.broker.keeps_messages() { "rabbitmq" } else { "roundelay" };
        Tracer::start(settings, (worker, system), &connections.entropy, &self.telemetry)
            .map_err(|error| StartError::Setup(format!("tracing: {error}")))
    }
}

/// Reads the ledger's clock once a second.
async fn read_clock(core: Arc<Core>) {
    loop {
        if let Err(error) = core.ledger.read_clock().await {
            tracing::debug!(%error, "the ledger's clock cannot be read");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Sees to it that no other worker with an embedded broker runs on the same ledger file: each would
/// re-create all messages, and run the jobs that are kept there. Holds as long as the file is open.
fn alone(config: &Config) -> Result<Option<File>, StartError> {
    let LedgerUrl::Sqlite(ledger) = &config.ledger.url else { return Ok(None) };
    let path = ledger.with_added_extension("lock");
    let setup = |what: String| StartError::Setup(format!("{}: {what}", path.display()));
    let file = match File::create(&path) {
        Ok(file) => file,
        // To open the ledger says better what is missing.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(setup(error.to_string())),
    };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::Error(error)) => Err(setup(error.to_string())),
        Err(TryLockError::WouldBlock) => Err(setup(
            "another worker runs on this ledger; with the embedded broker there can be one, with RabbitMQ any number"
                .into(),
        )),
    }
}

/// How long a worker that is told to stop may still be connecting.
const OPENING: Duration = Duration::from_secs(5);
/// How long what takes messages, and what answers over HTTP, may take to stop.
const PARTS_STOP: Duration = Duration::from_secs(5);
/// How long aborted jobs may take to put themselves off.
const ABORT: Duration = Duration::from_secs(10);

/// How often a worker that stops says how much still runs.
const TELL: Duration = Duration::from_secs(5);

/// Waits until `tasks` have ended, for no longer than `grace`, and says meanwhile how many are left. Whether they have.
async fn have_ended(tasks: &TaskTracker, grace: Duration) -> bool {
    let mut left = grace;
    loop {
        let span = left.min(TELL);
        if tokio::time::timeout(span, tasks.wait()).await.is_ok() {
            return true;
        }
        left -= span;
        if left.is_zero() {
            return false;
        }
        tracing::info!(running = tasks.len(), ?left, "still stopping");
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stop_waits_for_runs_until_they_end_or_the_grace_is_over() {
        let seconds = Duration::from_secs;
        let table = [(0, 12, 0, false), (8, 12, 8, false), (12, 8, 8, true), (20, 12, 12, true), (10, 10, 10, false)];
        for (grace, runs, waited, ended) in table {
            let tasks = TaskTracker::new();
            // The one that ends at the very end of the grace is not waited for any longer.
            tasks.spawn(sleep(seconds(runs) + Duration::from_millis(1)));
            tasks.close();
            let begun = Instant::now();
            assert_eq!(have_ended(&tasks, seconds(grace)).await, ended, "{grace} {runs}");
            assert_eq!(begun.elapsed().as_secs(), waited, "{grace} {runs}");
        }
    }
}
