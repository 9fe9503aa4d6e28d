//! The current state of the whole system, kept up to date for its readers.
//!
//! Cheap questions go to the ledger every two seconds, or as often as the caller wants; the broker is asked every five.
//! Counts of chains take at most a twentieth of the time, on a connection of their own, so that no other request waits
//! for them.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use roundelay_broker::{Broker, Rates};
use roundelay_config::Config;
use roundelay_engine::holds::Holds;
use roundelay_engine::overslept;
use roundelay_engine::overslept::schedules;
use roundelay_engine::throttle::throttled::Throttled;
use roundelay_ledger::{Census, Ledger, LedgerError, SeenWorker};
use roundelay_model::clock::Time;
use roundelay_model::fleet::{EVERY, FleetOrders, KEPT, Lateness, Rhythm, SILENT, Subject};
use roundelay_model::kind_stats::{KindBucket, Step};
use roundelay_model::pacing::slots::Limits;
use roundelay_model::wall_clock::WallClock;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::broker::BrokerStatus;
use super::throttles::waiting;

/// How often the ledger is usually asked cheap questions.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The shortest time between two questions to the broker.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// The shortest and the longest pause between two counts of chains; between these, twenty times as long as the count.
const MIN_COUNT_PAUSE: Duration = Duration::from_secs(5);
const MAX_COUNT_PAUSE: Duration = Duration::from_secs(30);
/// How long ledger or broker may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// The current state.
#[derive(Clone, Debug)]
pub struct Facts {
    /// When the ledger was last asked, by its clock.
    pub now: Time,
    /// The relation of the wall clock to that time.
    pub wall_clock: Arc<WallClock>,
    /// The number of chains by queue and state, and when they were counted.
    pub census: Option<(Census, Time)>,
    /// What the runs of each kind came to in each minute of the last hour, read with that count.
    pub kinds: Vec<KindBucket>,
    /// How many messages and consumers the broker's queues have.
    pub asked: BrokerStatus,
    /// When the broker last answered, by the ledger's clock.
    pub asked_at: Option<Time>,
    /// How many messages enter and leave its queues.
    pub rates: BTreeMap<String, Rates>,
    pub workers: Vec<SeenWorker>,
    /// Orders for queues and workers.
    pub orders: BTreeMap<Subject, FleetOrders>,
    /// The queues of which operators let nothing start.
    pub holds: Holds,
    /// Starts over the last hour.
    pub rhythm: Rhythm,
    /// How late starts were in the last seconds, on the worker with the latest ones.
    pub recent_late: Option<Lateness>,
    /// How many jobs wait for slots, by throttle.
    pub waiting: BTreeMap<String, i64>,
    /// What there is to say of each throttle.
    pub throttled: Vec<ThrottledNow>,
    /// Why the ledger does not answer; nothing while it does.
    pub ledger_why: Option<String>,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            now: Time::default(),
            wall_clock: Arc::default(),
            census: None,
            kinds: Vec::new(),
            asked: BrokerStatus::Depths(BTreeMap::new()),
            asked_at: None,
            rates: BTreeMap::new(),
            workers: Vec::new(),
            orders: BTreeMap::new(),
            holds: Holds::default(),
            rhythm: Rhythm::default(),
            recent_late: None,
            waiting: BTreeMap::new(),
            throttled: Vec::new(),
            ledger_why: None,
        }
    }
}

/// How a throttle is.
#[derive(Clone, Debug)]
pub struct ThrottledNow {
    /// Its name.
    pub name: String,
    /// Why starts wait for it; empty if none does.
    pub words: String,
    /// Its upstream or a breaker is in the way; or its limits, and it is not known how much is needed.
    pub in_the_way: bool,
    /// The limits in force, if they are for all workers and all jobs together.
    pub limits: Option<Arc<Limits>>,
}

/// The answers to the cheap questions.
struct CheapFacts {
    now: Time,
    wall_clock: Arc<WallClock>,
    workers: Vec<SeenWorker>,
    orders: BTreeMap<Subject, FleetOrders>,
    holds: Holds,
    rhythm: Rhythm,
    recent_late: Option<Lateness>,
    waiting: BTreeMap<String, i64>,
    throttled: Vec<ThrottledNow>,
}

impl CheapFacts {
    async fn ask(config: &Config, ledger: &dyn Ledger) -> Result<Self, LedgerError> {
        // If no worker runs in this process, nothing else reads the ledger's clock. A ledger that is open for reading
        // only cannot store the reading.
        if let Err(error) = ledger.read_clock().await {
            tracing::debug!(%error, "the ledger's clock cannot be read");
        }
        let (now, wall_clock) = (ledger.now(), ledger.wall_clock());
        let (workers, orders) = (ledger.workers().await?, ledger.fleet_orders().await?);
        let holds = Holds::of(config, &orders, &ledger.throttle_orders().await?, now);
        let pulses = ledger.pulses(now - KEPT).await?;
        let rhythm = Rhythm::of(&pulses, now);
        let recent = pulses.iter().filter(|pulse| pulse.at + EVERY * 3 > now).filter_map(|pulse| pulse.late_ms);
        let recent_late = recent.reduce(|a, b| if a.p99 < b.p99 { b } else { a });
        let heard: Vec<SeenWorker> = workers.iter().filter(|worker| worker.seen + SILENT >= now).cloned().collect();
        let waiting = waiting(&heard, config);
        let throttled = Throttled::look(config.throttles.clone(), ledger).await?;
        let throttled = throttled.iter().map(|of| {
            let count = waiting.get(&of.name).copied().unwrap_or(0);
            let words = of.in_the_way(Some(count));
            let ordered = of.orders.held_until() > of.now;
            ThrottledNow {
                name: of.name.clone(),
                // A limit in use is no trouble. Where the need of the chains is not known, a wait for the limit is told; an
                // operator's hold is told apart.
                in_the_way: words.is_some() && (of.is_in_trouble() || (!of.is_countable() && !ordered)),
                words: words.unwrap_or_default(),
                limits: of.is_countable().then(|| of.limits.clone()),
            }
        });
        let throttled = throttled.collect();
        Ok(Self { now, wall_clock, workers, orders, holds, rhythm, recent_late, waiting, throttled })
    }

    fn put(self, facts: &mut Facts) {
        let Self { now, wall_clock, workers, orders, holds, rhythm, recent_late, waiting, throttled } = self;
        facts.ledger_why = None;
        (facts.now, facts.wall_clock) = (now, wall_clock);
        (facts.workers, facts.orders, facts.holds) = (workers, orders, holds);
        (facts.rhythm, facts.recent_late) = (rhythm, recent_late);
        (facts.waiting, facts.throttled) = (waiting, throttled);
    }
}

/// Keeps the facts up to date.
pub struct StatusCache {
    facts: watch::Sender<Arc<Facts>>,
}

impl Default for StatusCache {
    fn default() -> Self {
        Self { facts: watch::Sender::new(Arc::default()) }
    }
}

impl StatusCache {
    /// The current facts.
    pub fn facts(&self) -> Arc<Facts> {
        self.facts.borrow().clone()
    }

    /// Announces each change.
    pub fn changes(&self) -> watch::Receiver<Arc<Facts>> {
        self.facts.subscribe()
    }

    /// Updates the facts without end, and asks the ledger cheap questions once in `every`. `config` and `broker` are
    /// called each time; `ledger` is for cheap questions, and `counting`, another connection to it, for expensive ones.
    pub async fn keep<B>(
        &self,
        every: Duration,
        config: impl Fn() -> Arc<Config>,
        ledger: &dyn Ledger,
        counting: &dyn Ledger,
        broker: impl Fn() -> B,
    ) where
        B: Future<Output = Result<Arc<dyn Broker>, String>>,
    {
        let quick = async {
            loop {
                let config = config();
                match timeout(PATIENCE, CheapFacts::ask(&config, ledger)).await {
                    Ok(Ok(quick)) => self.change(|facts| quick.put(facts)),
                    Ok(Err(error)) => self.change(|facts| facts.ledger_why = Some(error.to_string())),
                    Err(_) => self.change(|facts| facts.ledger_why = Some("it has not answered in time".into())),
                }
                sleep(every).await;
            }
        };
        let count = async {
            loop {
                let (config, begun) = (config(), Instant::now());
                let of_kind = schedules(&config);
                let counted = async {
                    let holds = Holds::look(&config, counting).await?;
                    let (census, _) = overslept::census(counting, config.catch_up.slack, &of_kind, &holds).await?;
                    let hour = Step::Minute.begin(counting.now() - KEPT);
                    Ok::<_, LedgerError>((census, counting.kinds(Step::Minute, hour).await?))
                };
                match timeout(PATIENCE, counted).await {
                    Ok(Ok((census, kinds))) => {
                        let now = counting.now();
                        self.change(|facts| (facts.census, facts.kinds) = (Some((census, now)), kinds));
                    }
                    Ok(Err(error)) => tracing::debug!(%error, "the chains cannot be counted"),
                    Err(_) => tracing::debug!("the chains cannot be counted in time"),
                }
                sleep((begun.elapsed() * 20).clamp(MIN_COUNT_PAUSE, MAX_COUNT_PAUSE)).await;
            }
        };
        let ask = async {
            loop {
                let config = config();
                let (asked, rates) = match timeout(PATIENCE, broker()).await {
                    Ok(Ok(broker)) => {
                        let asked = timeout(PATIENCE, BrokerStatus::ask(&config, &*broker)).await;
                        let rates = timeout(PATIENCE, broker.rates()).await;
                        (asked.unwrap_or_else(|_| late()), rates.ok().and_then(Result::ok).unwrap_or_default())
                    }
                    Ok(Err(why)) => (BrokerStatus::Away(why), BTreeMap::new()),
                    Err(_) => (late(), BTreeMap::new()),
                };
                let now = ledger.now();
                self.change(|facts| {
                    if asked.error().is_none() {
                        facts.asked_at = Some(now);
                    }
                    (facts.asked, facts.rates) = (asked, rates);
                });
                sleep(ASK_EVERY.max(every)).await;
            }
        };
        tokio::join!(quick, count, ask);
    }

    fn change(&self, change: impl FnOnce(&mut Facts)) {
        self.facts.send_modify(|facts| change(Arc::make_mut(facts)));
    }
}

fn late() -> BrokerStatus {
    BrokerStatus::Away("it has not answered in time".into())
}
