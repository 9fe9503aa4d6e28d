//! What is known of everything at the moment, kept up to date for those who look.
//!
//! What costs little is asked for every two seconds, or as often as whoever keeps it wants; the broker every five.
//! Chains are counted at most a twentieth of the time, on a connection of their own, so that nobody who looks at
//! something else waits for it.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use roundelay_broker::{Broker, Rates};
use roundelay_config::Config;
use roundelay_engine::overslept;
use roundelay_engine::overslept::schedules;
use roundelay_engine::throttle::throttled::Throttled;
use roundelay_ledger::{Census, Ledger, LedgerError, SeenWorker};
use roundelay_model::calendar::Calendar;
use roundelay_model::clock::Time;
use roundelay_model::fleet::{EVERY, FleetOrders, KEPT, Lateness, Rhythm, SILENT, Subject};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::broker::Asked;
use super::throttles::waiting;

/// How often the ledger is usually asked for what costs little.
pub const LOOK: Duration = Duration::from_secs(2);
/// How often the broker is asked at most.
const ASK: Duration = Duration::from_secs(5);
/// How often chains are counted at most, and at least, however long that takes.
const COUNT: Duration = Duration::from_secs(5);
const COUNT_AT_LEAST: Duration = Duration::from_secs(30);
/// How long anybody may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is known.
#[derive(Clone, Debug)]
pub struct Facts {
    /// When the ledger was last asked, by its clock.
    pub now: Time,
    /// How the wall clock stands to that.
    pub calendar: Arc<Calendar>,
    /// The chains, and when they were counted.
    pub census: Option<(Census, Time)>,
    /// How full the broker's queues are.
    pub asked: Asked,
    /// When the broker last told anything, by the ledger's clock.
    pub asked_at: Option<Time>,
    /// How many messages come and go there.
    pub rates: BTreeMap<String, Rates>,
    /// The workers.
    pub workers: Vec<SeenWorker>,
    /// What was ordered of queues and workers.
    pub orders: BTreeMap<Subject, FleetOrders>,
    /// Starts over the last hour.
    pub rhythm: Rhythm,
    /// How late they were in the last seconds, on the worker where that was worst.
    pub recent_late: Option<Lateness>,
    /// How many wait for slots of which throttle.
    pub waiting: BTreeMap<String, i64>,
    /// Throttles that let nothing start, and why.
    pub throttled: Vec<(String, String)>,
    /// Why the ledger does not answer; nothing while it does.
    pub ledger_why: Option<String>,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            now: Time::default(),
            calendar: Arc::default(),
            census: None,
            asked: Asked::Depths(BTreeMap::new()),
            asked_at: None,
            rates: BTreeMap::new(),
            workers: Vec::new(),
            orders: BTreeMap::new(),
            rhythm: Rhythm::default(),
            recent_late: None,
            waiting: BTreeMap::new(),
            throttled: Vec::new(),
            ledger_why: None,
        }
    }
}

/// What the ledger answers quickly.
struct Quick {
    now: Time,
    calendar: Arc<Calendar>,
    workers: Vec<SeenWorker>,
    orders: BTreeMap<Subject, FleetOrders>,
    rhythm: Rhythm,
    recent_late: Option<Lateness>,
    waiting: BTreeMap<String, i64>,
    throttled: Vec<(String, String)>,
}

impl Quick {
    async fn ask(config: &Config, ledger: &dyn Ledger) -> Result<Self, LedgerError> {
        // Where no worker runs in this process, nobody else does. A ledger that is only looked at is told nothing.
        if let Err(error) = ledger.read_clock().await {
            tracing::debug!(%error, "the ledger's clock cannot be read");
        }
        let (now, calendar) = (ledger.now(), ledger.calendar());
        let (workers, orders) = (ledger.workers().await?, ledger.fleet_orders().await?);
        let pulses = ledger.pulses(now - KEPT).await?;
        let rhythm = Rhythm::of(&pulses, now);
        let recent = pulses.iter().filter(|pulse| pulse.at + EVERY * 3 > now).filter_map(|pulse| pulse.late_ms);
        let recent_late = recent.reduce(|a, b| if a.p99 < b.p99 { b } else { a });
        let heard: Vec<SeenWorker> = workers.iter().filter(|worker| worker.seen + SILENT >= now).cloned().collect();
        let waiting = waiting(&heard, config);
        let throttled = Throttled::look(config.throttles.clone(), ledger).await?;
        let throttled = throttled.iter().filter_map(|of| {
            let count = waiting.get(&of.name).copied().unwrap_or(0);
            Some((of.name.clone(), of.in_the_way(Some(count))?))
        });
        let throttled = throttled.collect();
        Ok(Self { now, calendar, workers, orders, rhythm, recent_late, waiting, throttled })
    }

    fn put(self, facts: &mut Facts) {
        let Self { now, calendar, workers, orders, rhythm, recent_late, waiting, throttled } = self;
        facts.ledger_why = None;
        (facts.now, facts.calendar) = (now, calendar);
        (facts.workers, facts.orders) = (workers, orders);
        (facts.rhythm, facts.recent_late) = (rhythm, recent_late);
        (facts.waiting, facts.throttled) = (waiting, throttled);
    }
}

/// Keeps the facts.
pub struct Board {
    facts: watch::Sender<Arc<Facts>>,
}

impl Default for Board {
    fn default() -> Self {
        Self { facts: watch::Sender::new(Arc::default()) }
    }
}

impl Board {
    /// What is known now.
    pub fn facts(&self) -> Arc<Facts> {
        self.facts.borrow().clone()
    }

    /// Tells of each change.
    pub fn changes(&self) -> watch::Receiver<Arc<Facts>> {
        self.facts.subscribe()
    }

    /// Keeps them up to date, for ever, and asks the ledger `every` so often for what costs little. `config` and
    /// `broker` are asked for each time; `ledger` is for what is quick, and `counting` another connection to it, for
    /// what is not.
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
                match timeout(PATIENCE, Quick::ask(&config, ledger)).await {
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
                let counted = overslept::census(counting, config.catch_up.slack, &of_kind);
                match timeout(PATIENCE, counted).await {
                    Ok(Ok((census, _))) => {
                        let now = counting.now();
                        self.change(|facts| facts.census = Some((census, now)));
                    }
                    Ok(Err(error)) => tracing::debug!(%error, "the chains cannot be counted"),
                    Err(_) => tracing::debug!("the chains cannot be counted in time"),
                }
                sleep((begun.elapsed() * 20).clamp(COUNT, COUNT_AT_LEAST)).await;
            }
        };
        let ask = async {
            loop {
                let config = config();
                let (asked, rates) = match timeout(PATIENCE, broker()).await {
                    Ok(Ok(broker)) => {
                        let asked = timeout(PATIENCE, Asked::ask(&config, &*broker)).await;
                        let rates = timeout(PATIENCE, broker.rates()).await;
                        (asked.unwrap_or_else(|_| late()), rates.ok().and_then(Result::ok).unwrap_or_default())
                    }
                    Ok(Err(why)) => (Asked::Away(why), BTreeMap::new()),
                    Err(_) => (late(), BTreeMap::new()),
                };
                let now = ledger.now();
                self.change(|facts| {
                    if asked.error().is_none() {
                        facts.asked_at = Some(now);
                    }
                    (facts.asked, facts.rates) = (asked, rates);
                });
                sleep(ASK.max(every)).await;
            }
        };
        tokio::join!(quick, count, ask);
    }

    fn change(&self, change: impl FnOnce(&mut Facts)) {
        self.facts.send_modify(|facts| change(Arc::make_mut(facts)));
    }
}

fn late() -> Asked {
    Asked::Away("it has not answered in time".into())
}
