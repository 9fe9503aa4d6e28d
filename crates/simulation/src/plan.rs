//! What goes wrong in a run, decided before it begins.
//!
//! A plan follows from its seed alone, and every fault in it stands on its own: leaving some out
//! leaves the others as they are, which is how the smallest plan that still fails is found.

use std::fmt;
use std::time::Duration;

use roundelay_engine::life::Point;
use roundelay_model::clock::{Entropy, short_duration};

use crate::world::workload::LONG;

/// How long things go wrong.
pub const STORM: Duration = Duration::from_secs(240);
/// The first fault comes this long after the start.
const LULL: Duration = Duration::from_secs(5);

/// Something that goes wrong, or that an operator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are named, and explained with their variant.
pub enum Fault {
    /// Something befalls a worker, for `length`.
    Strike { worker: usize, blow: Blow, length: Duration },
    /// The same befalls whichever worker comes to `point` for the `nth` time from then on, there.
    StrikeAt { point: Point, nth: usize, blow: Blow, length: Duration },
    /// A worker is told to stop, and another starts.
    Restart { worker: usize },
    /// The broker is away.
    BrokerDown { length: Duration },
    /// The broker takes no message, as when its queues are full.
    BrokerFull { length: Duration },
    /// The ledger is away: nothing is written, and every verb fails.
    LedgerDown { length: Duration },
    /// The next writes are committed, but the caller gets an error.
    LedgerUnknown { writes: usize },
    /// Something befalls the `nth` claim from now on. A connection that is lost with it is so for this long.
    Claim { how: Astray, nth: usize, length: Duration },
    /// The ledger takes long.
    LedgerSlow { length: Duration, latency: Duration },
    /// The next publishes go wrong.
    Publish { how: Wrong, count: usize },
    /// A queue is purged.
    Purge { queue: usize },
    /// A message that sleeps or waits is lost.
    Lose { queue: usize },
    /// A message is there twice.
    Duplicate { queue: usize },
    /// Messages change their order.
    Reorder { queue: usize },
    /// A queue is deleted, and declared again a while later.
    DeleteQueue { queue: usize, away: Duration },
    /// The ledger's clock is set by this number of milliseconds.
    Clock { millis: i64 },
    /// The broker's clock is set by this number of milliseconds, as by a restart, or when another node leads its
    /// queues.
    BrokerClock { millis: i64 },
    /// The broker becomes another version, which lets messages sleep on their queues or does not. Where it does not,
    /// those that sleep wake at once.
    BrokerVersion { parks: bool },
    /// Messages that cannot be used.
    Poison { queue: usize, count: usize },
    /// An operator pauses a chain, and resumes it.
    Pause { chain: usize, length: Duration },
    /// An operator pauses everything that belongs to an owner, and resumes it.
    PauseOwner { length: Duration },
    /// An operator ends a chain, and begins it anew.
    Retire { chain: usize, length: Duration },
    /// An operator changes payload and queue of a chain.
    Configure { chain: usize },
    /// An operator wants a chain to run one time more.
    RunOnce { chain: usize },
    /// An operator closes a queue, and opens it again.
    CloseQueue { queue: usize, length: Duration },
    /// An operator sets a queue's concurrency in each worker, and later back to what is configured.
    Concurrency { queue: usize, places: usize, length: Duration },
    /// An operator lets a worker drain. When the worker is drained, or after `length`, the worker is stopped, or takes
    /// jobs again.
    Drain { worker: usize, length: Duration, ends: bool },
    /// Good jobs lie in quarantine, and an operator sends what is there again; perhaps she dies before she has taken
    /// it away, and another comes.
    Retry { jobs: usize, dies: bool },
    /// Each worker that runs this chain dies over it, until its handler is mended in the end.
    Deadly { chain: usize },
    /// The ledger is replaced by the copy that was made `age` before, the workers start again, and
    /// an operator tells it so.
    Restore { age: Duration },
}

impl Fault {
    /// How many unintended messages this fault can bring about. A message whose confirmation was lost is sent
    /// again, and so is there twice, too.
    pub fn doubled(&self) -> usize {
        match self {
            Self::Publish { how: Wrong::Twice | Wrong::UnknownButKept | Wrong::Slow, count } => *count,
            Self::Duplicate { .. } => 1,
            // Where the clock is set back, messages stay on their rungs for that long, and catch-up sends each again.
            Self::BrokerClock { millis } => usize::try_from(-millis / 1_000).unwrap_or(0),
            // To each worker.
            Self::Claim { how: Astray::Overtaken | Astray::Stuck, .. } => 3,
            // What each of three workers leaves is sent again at once, and once more.
            Self::Deadly { .. } => 6,
            _ => 0,
        }
    }
}

/// What befalls a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blow {
    /// Its process is killed, and starts again.
    Kill,
    /// Its process is stopped by SIGSTOP, and goes on.
    Freeze,
    /// It cannot reach the broker.
    LoseBroker,
    /// It cannot reach the ledger.
    LoseLedger,
    /// It can reach neither.
    LoseBoth,
}

impl Blow {
    /// All of them.
    pub const ALL: [Blow; 5] = [Blow::Kill, Blow::Freeze, Blow::LoseBroker, Blow::LoseLedger, Blow::LoseBoth];

    /// Whether a worker is without the broker meanwhile.
    pub fn takes_broker(self) -> bool {
        matches!(self, Self::LoseBroker | Self::LoseBoth)
    }

    /// Whether a worker is without the ledger meanwhile.
    pub fn takes_ledger(self) -> bool {
        matches!(self, Self::LoseLedger | Self::LoseBoth)
    }

    fn length(self, dice: &Entropy) -> Duration {
        let (shortest, longest) = match self {
            Self::Kill => (100, 25_000),
            Self::Freeze => (1_000, 50_000),
            Self::LoseBroker | Self::LoseLedger | Self::LoseBoth => (0, 25_000),
        };
        dice.between(Duration::from_millis(shortest), Duration::from_millis(longest))
    }
}

/// What befalls a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Astray {
    /// It does not reach the ledger. While it is made again, its message comes to each worker once more, and that
    /// claim is faster.
    Overtaken,
    /// It is on its way until its worker's session has lapsed, and does not reach the ledger. Meanwhile the chain's
    /// message comes to each worker once more, and waits there for its turn.
    Stuck,
    /// It is written. Its answer is lost, and with it the worker's connection to the broker, which delivers the
    /// message to another.
    Unheard,
}

/// How a publish goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The broker has the message, and the publisher gets no answer.
    UnknownButKept,
    /// The broker does not have the message, and the publisher gets no answer.
    UnknownAndLost,
    /// The broker refuses it.
    Refused,
    /// The broker has no queue for it.
    Returned,
    /// It is there twice.
    Twice,
    /// The confirmation takes long.
    Slow,
}

/// A fault and when it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// From the start of the run.
    pub at: Duration,
    /// What.
    pub fault: Fault,
}

/// Everything that goes wrong in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// In the order in which they come.
    pub faults: Vec<Planned>,
}

/// One seed in this number has several manual runs of a chain whose runs are long, so that they meet its rotation.
const MANUAL: usize = 8;
/// One seed in this number has a claim that goes astray in each of the ways.
const ASTRAY: usize = 8;
/// In one seed in this number the broker's clock is set.
const BROKER_CLOCK: usize = 8;
/// In one in this number of seeds with a broker that lets messages sleep on their queues, the broker becomes another
/// version.
const BROKER_VERSION: usize = 6;
/// Seeds in front that have one crash each, at one point after the other.
const SINGLES: usize = Point::ALL.len();
/// Seeds after these that have two crashes each, at every pair of points.
const PAIRS: usize = SINGLES * SINGLES;
/// Seeds after these in each of which something else befalls a worker, at one point after the other.
const OTHERS: usize = SINGLES * (Blow::ALL.len() - 1);
/// How many seeds all of these are; those after them roll dice.
pub const ENUMERATED: usize = SINGLES + PAIRS + OTHERS;

impl Plan {
    /// The plan of `seed`. The first seeds enumerate the crash points, singly and in pairs, and what else befalls a
    /// worker at them; all others roll dice.
    pub fn of(seed: u64, workers: usize, queues: usize, chains: usize) -> Self {
        let dice = Entropy::seeded(seed ^ 0x706c_616e);
        let index = usize::try_from(seed).unwrap_or(usize::MAX);
        let strike = |point: Point, blow: Blow, at: Duration| Planned {
            at,
            fault: Fault::StrikeAt { point, nth: 1 + dice.below(4), blow, length: blow.length(&dice) },
        };
        let further = |count: usize| (0..count).map(|_| roll(&dice, workers, queues, chains)).collect::<Vec<_>>();
        let mut faults = if index < SINGLES {
            let point = Point::ALL[index];
            let mut faults = vec![strike(point, Blow::Kill, LULL)];
            faults.extend(leads_to(point, &dice, workers));
            faults.extend(further(3));
            faults
        } else if index < SINGLES + PAIRS {
            let pair = index - SINGLES;
            let (first, second) = (Point::ALL[pair / SINGLES], Point::ALL[pair % SINGLES]);
            let later = LULL + dice.between(Duration::ZERO, Duration::from_secs(60));
            let mut faults = vec![strike(first, Blow::Kill, LULL), strike(second, Blow::Kill, later)];
            faults.extend(leads_to(first, &dice, workers).chain(leads_to(second, &dice, workers)));
            faults.extend(further(2));
            faults
        } else if index < ENUMERATED {
            let (point, blow) = ((index - SINGLES - PAIRS) % SINGLES, (index - SINGLES - PAIRS) / SINGLES);
            let (point, blow) = (Point::ALL[point], Blow::ALL[1 + blow]);
            let mut faults = vec![strike(point, blow, LULL)];
            faults.extend(leads_to(point, &dice, workers));
            faults.extend(further(3));
            faults
        } else {
            (0..3 + dice.below(14)).map(|_| roll(&dice, workers, queues, chains)).collect()
        };
        // By dice of their own, so that all else goes wrong as it would without them.
        let people = Entropy::seeded(seed ^ 0x6f72_6472);
        faults.extend((0..people.below(4)).map(|_| order(&people, workers)));
        let deaths = Entropy::seeded(seed ^ 0xdead);
        if deaths.below(3) == 0 {
            let at = deaths.between(LULL, STORM / 2);
            faults.push(Planned { at, fault: Fault::Deadly { chain: deaths.below(chains) } });
        }
        let manual = Entropy::seeded(seed ^ 0x3a11);
        if manual.below(MANUAL) == 0 {
            let chain = LONG.start + manual.below(LONG.len());
            let at =
                |n: u32| LULL + Duration::from_secs(40) * n + manual.between(Duration::ZERO, Duration::from_secs(40));
            faults.extend((0..4).map(|n| Planned { at: at(n), fault: Fault::RunOnce { chain } }));
        }
        let astray = Entropy::seeded(seed ^ 0xa57a);
        let how = match astray.below(ASTRAY) {
            0 => Some(Astray::Overtaken),
            1 => Some(Astray::Unheard),
            2 => Some(Astray::Stuck),
            _ => None,
        };
        faults.extend(how.map(|how| {
            let at = astray.between(LULL, STORM - Duration::from_secs(60));
            // While it is away the delivery counts, and its claim is made again.
            let length = astray.between(Duration::ZERO, Duration::from_millis(40));
            Planned { at, fault: Fault::Claim { how, nth: 1 + astray.below(10), length } }
        }));
        let clock = Entropy::seeded(seed ^ 0xc10c);
        if clock.below(BROKER_CLOCK) == 0 {
            let at = clock.between(LULL, STORM - Duration::from_secs(60));
            let size = [2_000, 15_000, 90_000, 3_600_000][clock.below(4)];
            // Back by less: for that long each rung waits, and this is to be over before the calm.
            let millis = if clock.below(2) == 0 { size } else { -size.min(30_000) };
            faults.push(Planned { at, fault: Fault::BrokerClock { millis } });
        }
        let version = Entropy::seeded(seed ^ 0x4400);
        if !seed.is_multiple_of(2) && version.below(BROKER_VERSION) == 0 {
            let at = version.between(LULL, STORM - Duration::from_secs(90));
            let back = at + version.between(Duration::from_secs(1), Duration::from_secs(80));
            faults.push(Planned { at, fault: Fault::BrokerVersion { parks: false } });
            if version.below(2) == 0 {
                faults.push(Planned { at: back, fault: Fault::BrokerVersion { parks: true } });
            }
        }
        faults.sort_by_key(|planned| planned.at);
        Self { faults }
    }

    /// Whether some of its faults double messages.
    pub fn doubles(&self) -> bool {
        self.faults.iter().any(|planned| planned.fault.doubled() > 0)
    }

    /// Only the faults with these numbers.
    pub fn only(&self, numbers: &[usize]) -> Self {
        Self { faults: numbers.iter().filter_map(|n| self.faults.get(*n).copied()).collect() }
    }
}

/// Points that lie off the ordinary way need something that leads there, some times.
fn leads_to(point: Point, dice: &Entropy, workers: usize) -> impl Iterator<Item = Planned> {
    let (worker, queue, secs) = (dice.below(workers), dice.below(3), Duration::from_secs);
    let faults = match point {
        Point::Stopping | Point::Delivered | Point::SessionBegun | Point::SessionEnded => {
            vec![Fault::Restart { worker }]
        }
        Point::SetAside => vec![Fault::Poison { queue, count: 5 }],
        Point::Stale | Point::PutOff => vec![Fault::Duplicate { queue: dice.below(8) }],
        Point::OthersEnded => vec![Fault::Strike { worker, blow: Blow::ALL[dice.below(2)], length: secs(15) }],
        // The second of the platform queues is fair.
        Point::Left | Point::Taken | Point::Forgotten => vec![Fault::CloseQueue { queue: 1, length: secs(12) }],
        Point::HandedOut => vec![Fault::BrokerDown { length: dice.between(secs(3), secs(15)) }],
        Point::OverdueRead | Point::LookNoted | Point::Resent => vec![Fault::Lose { queue: dice.below(8) }],
        _ => Vec::new(),
    };
    let times: Vec<Duration> = (1..=6).map(|n| LULL + secs(25 * n) + dice.between(Duration::ZERO, secs(5))).collect();
    faults.into_iter().flat_map(move |fault| times.clone().into_iter().map(move |at| Planned { at, fault }))
}

fn roll(dice: &Entropy, workers: usize, queues: usize, chains: usize) -> Planned {
    let secs = Duration::from_secs;
    let at = dice.between(LULL, STORM - secs(60));
    let (worker, queue, chain) = (dice.below(workers), dice.below(queues), dice.below(chains));
    let point = Point::ALL[dice.below(Point::ALL.len())];
    let strike = |blow: Blow| Fault::Strike { worker, blow, length: blow.length(dice) };
    let strike_at = |blow: Blow| Fault::StrikeAt { point, nth: 1 + dice.below(20), blow, length: blow.length(dice) };
    let fault = match dice.below(41) {
        0..=2 => strike(Blow::Kill),
        3..=7 => strike_at(Blow::Kill),
        8..=9 => strike_at(Blow::ALL[1 + dice.below(4)]),
        10..=11 => strike(Blow::Freeze),
        12 => Fault::Restart { worker },
        13..=14 => strike(Blow::ALL[2 + dice.below(3)]),
        // Now and then for longer than publishes are tried again.
        15 if dice.below(2) == 0 => Fault::BrokerFull { length: dice.between(secs(1), secs(110)) },
        15..=16 => Fault::BrokerDown { length: dice.between(secs(1), secs(50)) },
        17..=18 => Fault::LedgerDown { length: dice.between(secs(1), secs(50)) },
        19..=20 => Fault::LedgerUnknown { writes: 1 + dice.below(10) },
        21 => Fault::LedgerSlow {
            length: dice.between(secs(5), secs(40)),
            latency: dice.between(Duration::from_millis(50), secs(6)),
        },
        22..=25 => {
            let all = [
                Wrong::UnknownButKept,
                Wrong::UnknownAndLost,
                Wrong::Refused,
                Wrong::Returned,
                Wrong::Twice,
                Wrong::Slow,
            ];
            Fault::Publish { how: all[dice.below(all.len())], count: 1 + dice.below(12) }
        }
        26 => Fault::Purge { queue },
        27..=28 => Fault::Lose { queue },
        29 => Fault::Duplicate { queue },
        30 => Fault::Reorder { queue },
        31 => Fault::DeleteQueue { queue, away: dice.between(secs(1), secs(40)) },
        32 => {
            let size = [2_000, 15_000, 90_000, 3_600_000][dice.below(4)];
            // Back by less: for that long no time of the wall clock is due that has not been.
            Fault::Clock { millis: if dice.below(2) == 0 { size } else { -size.min(20_000) } }
        }
        33 => Fault::Poison { queue, count: 1 + dice.below(30) },
        34 => Fault::Pause { chain, length: dice.between(secs(1), secs(80)) },
        35 => Fault::Retire { chain, length: dice.between(Duration::ZERO, secs(60)) },
        36 => Fault::Configure { chain },
        37..=38 => Fault::RunOnce { chain },
        39 => Fault::PauseOwner { length: dice.between(secs(1), secs(80)) },
        _ => Fault::Restore { age: dice.between(secs(1), secs(100)) },
    };
    Planned { at, fault }
}

/// What an operator orders of queues, workers and the quarantine.
fn order(dice: &Entropy, workers: usize) -> Planned {
    let secs = Duration::from_secs;
    let at = LULL + dice.between(Duration::ZERO, STORM - LULL - secs(5));
    let queue = dice.below(3);
    let fault = match dice.below(4) {
        0 => Fault::CloseQueue { queue, length: dice.between(secs(1), secs(80)) },
        1 => Fault::Concurrency { queue, places: 1 + dice.below(3), length: dice.between(secs(5), STORM) },
        2 => {
            let (worker, length) = (dice.below(workers), dice.between(secs(5), secs(80)));
            Fault::Drain { worker, length, ends: dice.below(2) == 0 }
        }
        _ => Fault::Retry { jobs: 1 + dice.below(4), dies: dice.below(2) == 0 },
    };
    Planned { at, fault }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:>6}  {}", short_duration(self.at), self.fault)
    }
}

impl fmt::Display for Blow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "is killed",
            Self::Freeze => "is frozen",
            Self::LoseBroker => "loses the broker",
            Self::LoseLedger => "loses the ledger",
            Self::LoseBoth => "loses broker and ledger",
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = short_duration;
        match self {
            Self::Strike { worker, blow, length } => write!(f, "worker {worker} {blow} for {}", s(*length)),
            Self::StrikeAt { point, nth, blow, length } => {
                write!(f, "the worker that comes to {point:?} for time {nth} from now {blow} there, for {}", s(*length))
            }
            Self::Restart { worker } => write!(f, "worker {worker} is told to stop, and starts again"),
            Self::BrokerDown { length } => write!(f, "the broker is away for {}", s(*length)),
            Self::BrokerFull { length } => write!(f, "the broker refuses everything for {}", s(*length)),
            Self::LedgerDown { length } => write!(f, "the ledger is away for {}", s(*length)),
            Self::LedgerUnknown { writes } => write!(f, "{writes} writes are committed and reported as failed"),
            Self::Claim { how: Astray::Overtaken, nth, .. } => {
                write!(f, "claim {nth} from now is lost, and overtaken by another of its chain when it is made again")
            }
            Self::Claim { how: Astray::Stuck, nth, .. } => {
                write!(
                    f,
                    "claim {nth} from now is on its way until its worker's session has lapsed, while another waits"
                )
            }
            Self::Claim { how: Astray::Unheard, nth, length } => {
                let length = s(*length);
                write!(f, "the answer to claim {nth} from now is lost, and its worker loses the broker for {length}")
            }
            Self::LedgerSlow { length, latency } => {
                write!(f, "the ledger takes {} for everything, for {}", s(*latency), s(*length))
            }
            Self::Publish { how, count } => write!(f, "{count} publishes go wrong: {how:?}"),
            Self::Purge { queue } => write!(f, "queue {queue} is purged"),
            Self::Lose { queue } => write!(f, "a message of queue {queue} is lost"),
            Self::Duplicate { queue } => write!(f, "a message of queue {queue} is doubled"),
            Self::Reorder { queue } => write!(f, "queue {queue} is reordered"),
            Self::DeleteQueue { queue, away } => write!(f, "queue {queue} is deleted, for {}", s(*away)),
            Self::Clock { millis } => write!(f, "the ledger's clock is set by {millis} ms"),
            Self::BrokerClock { millis } => write!(f, "the broker's clock is set by {millis} ms"),
            Self::BrokerVersion { parks: true } => write!(f, "the broker lets messages sleep on their queues"),
            Self::BrokerVersion { parks: false } => write!(f, "the broker lets messages sleep on their queues no more"),
            Self::Poison { queue, count } => write!(f, "{count} unusable messages on queue {queue}"),
            Self::Pause { chain, length } => write!(f, "chain {chain} is paused for {}", s(*length)),
            Self::PauseOwner { length } => write!(f, "all that belongs to the owner is paused for {}", s(*length)),
            Self::Retire { chain, length } => {
                write!(f, "chain {chain} is retired, and begun anew after {}", s(*length))
            }
            Self::Configure { chain } => write!(f, "chain {chain} gets another queue and payload"),
            Self::RunOnce { chain } => write!(f, "chain {chain} is to run one time more"),
            Self::CloseQueue { queue, length } => write!(f, "platform queue {queue} is closed for {}", s(*length)),
            Self::Concurrency { queue, places, length } => {
                write!(f, "platform queue {queue} has {places} places in each worker, for {}", s(*length))
            }
            Self::Drain { worker, length, ends } => {
                let then = if *ends { "stopped" } else { "taking jobs again" };
                write!(f, "worker {worker} drains, for {} at most, before it is {then}", s(*length))
            }
            Self::Retry { jobs, dies } => {
                let how = if *dies { "by somebody who dies over it" } else { "once" };
                write!(f, "{jobs} good jobs lie in quarantine, and all of it is sent again {how}")
            }
            Self::Deadly { chain } => write!(f, "whoever runs chain {chain} dies over it"),
            Self::Restore { age } => write!(f, "the ledger is replaced by a copy {} old", s(*age)),
        }
    }
}
