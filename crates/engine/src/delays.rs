//! Finds out how messages sleep on the broker, and follows when that changes.
//!
//! A broker may let a message sleep on its own queue until its time ("natively": RabbitMQ from 4.4 on), or the engine
//! sends the message over rungs. `broker.delays` says which; `auto` asks the broker by a [`probe`] when the topology is
//! declared, whenever a connection is new, and once a minute. The ledger remembers what was found, so that one worker
//! probes for all, and programs that only publish need not.
//!
//! A broker may stop letting messages sleep while a worker runs: a node was rolled back, a policy was set. Then messages
//! come at once. The first message that comes early ends the native way: that message goes back over rungs, and so do
//! all that follow. So no message goes in circles. The native way is tried again after ten minutes.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use roundelay_broker::{Broker, BrokerError, Delays, Delivery, Destination, Message, Way, probe};
use roundelay_config::Config;
use roundelay_ledger::{Ledger, LedgerError};
use roundelay_model::clock::{Entropy, Time};
use roundelay_model::ladder::IN_PROCESS;
use roundelay_model::spread::HotRungs;
use roundelay_model::topology::Topology;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::connections::Connections;
use crate::life::Point;
use crate::publishing::Publishing;
use crate::queue::QueueRun;
use crate::settlement::Settlement;
use crate::telemetry::Count;
use crate::topology_guard::{self, Found};

/// How often the broker is probed, by one worker for all.
const EVERY: Duration = Duration::from_secs(60);
/// How often it is looked whether a connection is new.
const LOOK: Duration = Duration::from_secs(1);
/// So long the native way is not taken after a message has come early.
const AFTER_EARLY: Duration = Duration::from_secs(600);
/// So long a worker may take to probe before others do.
const PROBE_WITHIN: Duration = Duration::from_secs(20);
/// How often it is looked whether the worker that probes has done so.
const WAIT: Duration = Duration::from_millis(50);
/// So many messages a second go to the end of a queue at most, for each worker.
pub(crate) const BEHIND: NonZeroU32 = NonZeroU32::new(200).expect("a rate");
/// What a program that only publishes has read of the ledger holds so long.
const KNOWN_FOR: Duration = Duration::from_secs(10);

/// How the messages of a configuration sleep.
pub(crate) struct Sleepers {
    broker: Arc<dyn Broker>,
    ledger: Arc<dyn Ledger>,
    entropy: Entropy,
    /// With rungs,
    ladder: Topology,
    /// and without.
    native: Topology,
    /// A message has come early.
    early: AtomicBool,
    woken: Notify,
}

impl Sleepers {
    pub(crate) fn new(config: &Config, connections: &Connections) -> Self {
        Self {
            broker: connections.broker.clone(),
            ledger: connections.ledger.clone(),
            entropy: connections.entropy.clone(),
            ladder: config.ladder_topology(),
            native: config.native_topology(),
            early: AtomicBool::new(false),
            woken: Notify::new(),
        }
    }

    /// Declares the topology that the broker needs, and answers with it.
    ///
    /// # Errors
    /// When the broker refuses, or `broker.delays` is `native` and it does not let messages sleep.
    pub(crate) async fn declare(&self) -> Result<Topology, BrokerError> {
        let way = match (self.broker.sleeping().setting, self.broker.parks()) {
            (Delays::Ladder, _) | (Delays::Auto, Some(false)) => Way::Ladder,
            (_, Some(true)) => Way::Native { ahead: 0 },
            (Delays::Native, _) => self.probed().await?.ok_or_else(|| {
                BrokerError::Topology(
                    "broker.delays is `native`, and this broker does not let messages sleep on their queues (RabbitMQ \
                     does from 4.4 on, once all nodes of the cluster have it); use `auto` or `ladder`"
                        .into(),
                )
            })?,
            // Rungs work on every broker. So a worker whose user may not probe, or that lacks the probe's queue and may
            // not declare it, uses rungs; and declaring those below names all that is missing.
            (Delays::Auto, None) => match self.probed().await {
                Ok(way) => way.unwrap_or(Way::Ladder),
                Err(error) => {
                    tracing::debug!(%error, "it is not known whether messages can sleep on their queues");
                    Way::Ladder
                }
            },
        };
        let topology = self.topology(way);
        self.broker.apply(topology).await?;
        self.broker.sleeping().set(way, None);
        Ok(match way {
            Way::Ladder => self.declare_siblings().await.unwrap_or_else(|| topology.clone()),
            Way::Native { .. } => topology.clone(),
        })
    }

    /// Declares the siblings of rungs that were hot, and uses them. A worker works without them, too: where they cannot be
    /// had now, that is tried again once a minute.
    async fn declare_siblings(&self) -> Option<Topology> {
        let hot = topology_guard::hot_rungs(&*self.ledger).await.ok().filter(|hot| !hot.is_empty())?;
        let wider = self.ladder_with(&hot);
        match self.broker.apply(&wider).await {
            Ok(()) => {
                self.broker.sleeping().set_hot_rungs(hot);
                Some(wider)
            }
            Err(error) => {
                tracing::warn!(%error, "delay queues that take the load of hot ones could not be declared");
                None
            }
        }
    }

    /// How messages sleep, if natively, by a probe of the last minute or a new one.
    async fn probed(&self) -> Result<Option<Way>, BrokerError> {
        self.broker.apply(&self.native).await?;
        let way = self.find(self.ledger.now() - EVERY).await?;
        Ok(Some(way).filter(|way| *way != Way::Ladder))
    }

    fn topology(&self, way: Way) -> &Topology {
        match way {
            Way::Ladder => &self.ladder,
            Way::Native { .. } => &self.native,
        }
    }

    /// All rungs, with the siblings of these.
    pub(crate) fn ladder_with(&self, hot: &HotRungs) -> Topology {
        self.ladder.clone().with_siblings(hot)
    }

    /// How messages sleep by a probe that is not older than `since`: another worker's, or our own.
    async fn find(&self, since: Time) -> Result<Way, BrokerError> {
        loop {
            let now = self.ledger.now();
            let found = topology_guard::found(&*self.ledger).await.map_err(of_ledger)?;
            if let Some(found) = found.filter(|found| found.counts(since, now)) {
                return Ok(found.way());
            }
            if !topology_guard::may_probe(&*self.ledger, now, PROBE_WITHIN).await.map_err(of_ledger)? {
                sleep(WAIT).await;
                continue;
            }
            let known = found.map_or(0, |found| found.ahead);
            let clock = self.ledger.clone();
            let probed =
                probe(&*self.broker, &self.native.names, &self.entropy.token(), known, move || clock.now()).await;
            let result = match &probed {
                Ok(ahead) => Some(Found::probed(*ahead, self.ledger.now())),
                // Others may probe at once, and what was known stays.
                Err(_) => found,
            };
            topology_guard::note_found(&*self.ledger, result).await.map_err(of_ledger)?;
            return probed.map(|ahead| ahead.map_or(Way::Ladder, |ahead| Way::Native { ahead }));
        }
    }
}

fn of_ledger(error: LedgerError) -> BrokerError {
    BrokerError::Other(format!("the ledger: {error}"))
}

impl Found {
    fn probed(ahead: Option<i64>, at: Time) -> Self {
        Self { native: ahead.is_some(), ahead: ahead.unwrap_or_default(), at: at.as_millis(), early: false }
    }

    pub(crate) fn way(self) -> Way {
        if self.native { Way::Native { ahead: self.ahead } } else { Way::Ladder }
    }

    /// Whether it is not to be probed anew.
    fn counts(self, since: Time, now: Time) -> bool {
        let at = Time::from_millis(self.at);
        let since = if self.early { since - AFTER_EARLY } else { since };
        // A time ahead of the clock is of a ledger that was restored since.
        since <= at && at <= now
    }
}

/// How messages sleep, for a program that may know only what the ledger does. Where that knows nothing either, no worker
/// has been there, or all of them use rungs.
pub(crate) async fn way(broker: &dyn Broker, ledger: &dyn Ledger) -> Way {
    if let Some(way) = broker.sleeping().way() {
        return way;
    }
    let way = match (broker.parks(), topology_guard::found(ledger).await) {
        (Some(true), _) => Way::Native { ahead: 0 },
        (None, Ok(Some(found))) => found.way(),
        _ => Way::Ladder,
    };
    broker.sleeping().set(way, Some(KNOWN_FOR));
    way
}

/// Declares what a configuration needs on its broker, and finds out how messages sleep there.
///
/// # Errors
/// When the broker refuses.
pub async fn declare(config: &Config, connections: &Connections) -> Result<Topology, BrokerError> {
    Sleepers::new(config, connections).declare().await
}

impl Publishing {
    /// A message is here that was to sleep until then, by the broker's clock.
    pub(crate) fn arrived(&self, until: Time) {
        let sleeping = self.dispatch.broker.sleeping();
        let Some(Way::Native { ahead }) = sleeping.way() else { return };
        let early = until.as_millis() - self.ledger.now().as_millis() - ahead;
        if early <= IN_PROCESS.as_millis() as i64 {
            return;
        }
        self.telemetry.count(Count::Early);
        sleeping.set(Way::Ladder, None);
        if !self.sleepers.early.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                early_ms = early,
                "a message has come before its time: the broker lets messages sleep no more, or its clock was set; \
                 messages sleep on rungs from now on"
            );
        }
        self.sleepers.woken.notify_one();
    }

    /// Sends a message that has woken to the end of its queue, where more may wait; `None` if its turn is now.
    ///
    /// What wakes goes ahead of what waits on its queue. Where chains ask for more than the queue allows, each place and
    /// slot that becomes free is taken by something that has just woken, and what is behind would never have its turn:
    /// a job that was published without a time, a chain that catch-up has sent again. So while as many messages are
    /// here as the broker gives at once, what wakes goes to the end of the queue, where all come in the order in which
    /// they came, as from rungs. Of a queue so busy that this would cost much, no more than [`BEHIND`] a second do; then
    /// what is behind gets as many of its turns.
    pub(crate) async fn to_the_end(&self, queue: &QueueRun, delivery: &Delivery) -> Option<Settlement> {
        let (until, now) = (delivery.asleep_until?, self.ledger.now());
        let Some(Way::Native { ahead }) = self.dispatch.broker.sleeping().way() else { return None };
        // What comes early shows that the broker lets messages sleep no more. What comes again keeps its turn, and is
        // known by that it does.
        let early = until.as_millis() - now.as_millis() - ahead > IN_PROCESS.as_millis() as i64;
        if early || delivery.redelivered || delivery.unreadable.is_some() || !delivery.is_alive() {
            return None;
        }
        let broker = &self.dispatch.broker;
        if !queue.is_full() || broker.unavailable().is_some() || self.outage.lasts() || !queue.behind.passes() {
            return None;
        }
        // The body stays as it is; only the order to sleep goes.
        let id = delivery.id.as_deref().map_or_else(|| self.entropy.token(), Into::into);
        let (body, trace) = (delivery.body.clone(), delivery.trace.clone());
        let message = Message { to: Destination::Queue(queue.source.clone()), id, body, trace };
        if let Err(error) = broker.publish(message).await {
            tracing::debug!(queue = queue.source, %error, "a message that has woken stays ahead of its queue");
            return None;
        }
        queue.sent_to_the_end(now);
        self.telemetry.count(Count::GaveWay);
        self.life.reached(Point::PutOff).await;
        Some(Settlement::Ack)
    }
}

/// Follows how messages sleep, until `shutdown`.
pub(crate) async fn follow(publishing: Arc<Publishing>, shutdown: CancellationToken) {
    let (broker, sleepers) = (&publishing.dispatch.broker, &publishing.sleepers);
    let work = async {
        if broker.sleeping().setting == Delays::Ladder || broker.parks().is_some() {
            std::future::pending::<()>().await;
        }
        publishing.declared.wait().await;
        let (mut losses, mut next) = (broker.losses(), Instant::now() + EVERY);
        loop {
            tell(&publishing);
            tokio::select! {
                () = sleepers.woken.notified() => {}
                () = sleep(LOOK) => {}
            }
            if sleepers.early.load(Ordering::Relaxed) {
                match end_native(&publishing).await {
                    Ok(()) => sleepers.early.store(false, Ordering::Relaxed),
                    Err(error) => {
                        if publishing.telemetry.notices.begins("rungs that could not be declared") {
                            tracing::error!(
                                %error,
                                "messages have to sleep on rungs, and these are not there; trying again until they are"
                            );
                        }
                    }
                }
                continue;
            }
            let (seen, lost) = (broker.losses(), broker.losses() != losses);
            if !lost && Instant::now() < next || broker.unavailable().is_some() {
                continue;
            }
            let since = publishing.ledger.now() - if lost { LOOK * 2 } else { EVERY };
            match sleepers.find(since).await {
                Ok(way) => match take(&publishing, way).await {
                    Ok(()) => (losses, next) = (seen, Instant::now() + EVERY),
                    Err(error) => tracing::warn!(%error, "failed to declare the topology; trying again"),
                },
                Err(error) => {
                    tracing::debug!(%error, "failed to probe how messages sleep on the broker; trying again");
                }
            }
        }
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

/// A message has come early: rungs are declared, and all workers are told.
async fn end_native(publishing: &Publishing) -> Result<(), BrokerError> {
    take(publishing, Way::Ladder).await?;
    let found = Found { native: false, ahead: 0, at: publishing.ledger.now().as_millis(), early: true };
    // Workers that are not told find out by themselves.
    if let Err(error) = topology_guard::note_found(&*publishing.ledger, Some(found)).await {
        tracing::debug!(%error, "failed to note that a message has come early");
    }
    Ok(())
}

/// Sends messages to sleep like this from now on.
async fn take(publishing: &Publishing, way: Way) -> Result<(), BrokerError> {
    let (broker, sleepers) = (&publishing.dispatch.broker, &publishing.sleepers);
    let native = |way| matches!(way, Some(Way::Native { .. }));
    let changes = native(broker.sleeping().way()) != native(Some(way));
    if changes {
        let native = native(Some(way));
        tracing::info!(native, "messages sleep in another way from now on; what sleeps already wakes from where it is");
    }
    let early = sleepers.early.load(Ordering::Relaxed);
    // After a message that came early the way is this one already, and the rungs may not be there.
    if changes || early {
        broker.apply(sleepers.topology(way)).await?;
    }
    if !early || way == Way::Ladder {
        broker.sleeping().set(way, None);
    }
    Ok(())
}

/// Sets the gauges.
fn tell(publishing: &Publishing) {
    let way = publishing.dispatch.broker.sleeping().way();
    publishing.telemetry.delays(match way {
        Some(Way::Native { ahead }) => Some(ahead),
        Some(Way::Ladder) | None => None,
    });
}

#[cfg(test)]
mod tests {
    use roundelay_broker::Settle;
    use roundelay_broker::embedded::{EmbeddedBroker, Profile, PublishFault};
    use roundelay_ledger::LedgerUrl;
    use roundelay_ledger::sqlite::SqliteLedger;
    use roundelay_model::clock::Clock;
    use roundelay_model::topology::Names;

    use super::*;
    use crate::builder::Engine;
    use crate::core::Core;
    use crate::trace::Tracer;

    #[test]
    fn a_probe_counts_while_it_is_new_and_what_came_early_for_longer() {
        let at = |secs: i64| Time::from_millis(secs * 1_000);
        let (now, since) = (at(10_000), at(9_940));
        let table = [
            ("of this minute", 9_940, false, true),
            ("older", 9_939, false, false),
            ("just now", 10_000, false, true),
            ("of a ledger that was restored since", 10_001, false, false),
            ("early ten minutes ago", 9_340, true, true),
            ("early before that", 9_339, true, false),
            ("early in a ledger that was restored since", 10_001, true, false),
        ];
        for (label, secs, early, counts) in table {
            let found = Found { native: false, ahead: 0, at: at(secs).as_millis(), early };
            assert_eq!(found.counts(since, now), counts, "{label}");
        }
    }

    #[test]
    fn what_a_probe_has_found_is_how_messages_sleep() {
        let found = |ahead| Found::probed(ahead, Time::from_millis(7)).way();
        assert_eq!([found(None), found(Some(-3))], [Way::Ladder, Way::Native { ahead: -3 }]);
    }

    /// What becomes of a delivery is of no interest here.
    struct Connection {
        lives: bool,
    }

    #[async_trait::async_trait]
    impl Settle for Connection {
        fn is_alive(&self) -> bool {
            self.lives
        }
        async fn ack(self: Box<Self>) {}
        async fn requeue(self: Box<Self>) {}
    }

    /// How far the broker's clock is ahead, in milliseconds.
    const AHEAD: i64 = 7_000;

    /// A worker whose queue `q` takes two messages at once, and its broker, on which messages sleep natively.
    async fn worker() -> (Core, EmbeddedBroker) {
        let text = "broker.url = \"embedded\"\nledger.url = \"sqlite://:memory:\"\n[queues.q]\nprefetch = 2\n";
        let config = Config::parse(text, "a test", []).unwrap();
        let (clock, entropy) = (Clock::starting_at(Time::from_millis(1_700_000_000_000)), Entropy::seeded(1));
        let ledger = SqliteLedger::open(&LedgerUrl::Memory, clock.clone(), &entropy).unwrap();
        let node = EmbeddedBroker::with_profile(Names::new(&config.broker.prefix), Profile::Rabbit44);
        node.goes_by(clock.clone());
        node.set_clock(AHEAD);
        node.apply(&config.native_topology()).await.unwrap();
        let broker = node.connect();
        broker.sleeping().set(Way::Native { ahead: AHEAD }, None);
        let connections = Connections { broker: Arc::new(broker), ledger: Arc::new(ledger), clock, entropy };
        let mut engine = Engine::new(config).without_chores();
        let core = engine.core(connections, CancellationToken::new(), None, "w", Tracer::default()).unwrap();
        (core, node)
    }

    /// A delivery of `q` that was to sleep until so many milliseconds from now, by the ledger's clock.
    fn woken(core: &Core, early: i64, redelivered: bool, lives: bool) -> Delivery {
        let until = Time::from_millis(core.ledger.now().as_millis() + AHEAD + early);
        let delivery = Delivery::new("{}".into(), "q".into(), redelivered, 0, Box::new(Connection { lives }));
        delivery.asleep_until(Some(until))
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_woken_goes_to_the_end_of_a_full_queue() {
        let in_time = IN_PROCESS.as_millis() as i64;
        let table = [
            ("woken", true, in_time, (false, true), None, true),
            ("where there is room", false, in_time, (false, true), None, false),
            ("early", true, in_time + 1, (false, true), None, false),
            ("that comes again", true, in_time, (true, true), None, false),
            ("of a connection that is gone", true, in_time, (false, false), None, false),
            ("that the broker does not take", true, in_time, (false, true), Some(PublishFault::Refused), false),
        ];
        for (label, full, early, (redelivered, lives), fault, goes) in table {
            let (core, node) = worker().await;
            let queue = &core.queues["q"][0];
            let _held: Vec<_> = (0..2).filter(|_| full).map(|_| queue.holds()).collect();
            if let Some(fault) = fault {
                node.on_publish(move |_| fault);
            }
            let delivery = woken(&core, early, redelivered, lives);
            let settlement = core.publishing.to_the_end(queue, &delivery).await;
            assert_eq!(settlement.is_some_and(|settlement| matches!(settlement, Settlement::Ack)), goes, "{label}");
            assert_eq!(node.census().len(), usize::from(goes), "{label}");
            if goes {
                let sent = node.consume("q", 1).await.unwrap().next().await.unwrap();
                assert_eq!((&*sent.body, sent.asleep_until), (&b"{}"[..], None), "{label}: it goes there once");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_go_to_the_end_in_a_second_than_may() {
        let (core, _node) = worker().await;
        let queue = &core.queues["q"][0];
        let _held = [queue.holds(), queue.holds()];
        let (begun, mut went) = (Instant::now(), 0);
        while begun.elapsed() < Duration::from_secs(1) {
            let settlement = core.publishing.to_the_end(queue, &woken(&core, 0, false, true)).await;
            went += usize::from(settlement.is_some());
            sleep(Duration::from_millis(1)).await;
        }
        let most = BEHIND.get() as usize;
        assert!((most..most * 11 / 10).contains(&went), "{went} in a second");
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_early_by_the_brokers_clock_ends_native_delays() {
        let in_time = IN_PROCESS.as_millis() as i64;
        for (early, ends) in [(-AHEAD, false), (0, false), (in_time, false), (in_time + 1, true), (60_000, true)] {
            let (core, _node) = worker().await;
            core.publishing.arrived(woken(&core, early, false, true).asleep_until.unwrap());
            let sleeping = core.publishing.dispatch.broker.sleeping();
            assert_eq!(sleeping.way() == Some(Way::Ladder), ends, "{early} ms early");
            assert_eq!(core.publishing.telemetry.get(Count::Early), u64::from(ends), "{early} ms early");
        }
    }
}
