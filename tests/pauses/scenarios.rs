//! Which faults there are, what they may cost, and in which order they come (pure, by a seed).

use std::time::Duration;

use roundelay::clock::Entropy;

use crate::blows::Blow;

/// Where the ledger is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ledger {
    Sqlite,
    Postgres,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub ledger: Ledger,
    pub kind: Kind,
    /// How long the slowest percent of pauses, and the longest of all, may be at most, in milliseconds.
    pub p99: i64,
    pub most: Option<i64>,
}

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Killed,
    Frozen,
    CutOff,
    Restarted,
    LedgerKilled,
    BrokerKilled,
    BrokerAway,
    ClockSet,
    Together,
}

const fn scenario(name: &'static str, ledger: Ledger, kind: Kind, p99: i64) -> Scenario {
    Scenario { name, ledger, kind, p99, most: None }
}

pub const SCENARIOS: &[Scenario] = &[
    scenario("worker-killed-sqlite", Ledger::Sqlite, Kind::Killed, 2_000),
    scenario("worker-killed-postgres", Ledger::Postgres, Kind::Killed, 2_000),
    scenario("worker-frozen-sqlite", Ledger::Sqlite, Kind::Frozen, 10_000),
    scenario("worker-frozen-postgres", Ledger::Postgres, Kind::Frozen, 10_000),
    scenario("worker-cut-off-postgres", Ledger::Postgres, Kind::CutOff, 10_000),
    scenario("workers-restarted-sqlite", Ledger::Sqlite, Kind::Restarted, 500),
    scenario("workers-restarted-postgres", Ledger::Postgres, Kind::Restarted, 500),
    scenario("postgres-killed", Ledger::Postgres, Kind::LedgerKilled, 2_000),
    scenario("broker-killed-sqlite", Ledger::Sqlite, Kind::BrokerKilled, 5_000),
    scenario("broker-killed-postgres", Ledger::Postgres, Kind::BrokerKilled, 5_000),
    scenario("broker-away-sqlite", Ledger::Sqlite, Kind::BrokerAway, 5_000),
    scenario("broker-away-postgres", Ledger::Postgres, Kind::BrokerAway, 5_000),
    scenario("clock-set-sqlite", Ledger::Sqlite, Kind::ClockSet, 2_000),
    scenario("clock-set-postgres", Ledger::Postgres, Kind::ClockSet, 2_000),
    Scenario { most: Some(25_000), ..scenario("together", Ledger::Postgres, Kind::Together, 12_000) },
];

/// By how many seconds clocks are set.
pub const SETTINGS: [i64; 6] = [7, -7, 3_600, -3_600, 86_400, -86_400];
/// How long the broker is away when it is killed.
const BROKER_AWAY: Duration = Duration::from_secs(10);
/// How often each fault comes when all come together, for each other.
const MIXTURE: [(Kind, usize); 7] = [
    (Kind::Killed, 4),
    (Kind::Frozen, 2),
    (Kind::CutOff, 2),
    (Kind::Restarted, 1),
    (Kind::LedgerKilled, 1),
    (Kind::BrokerKilled, 1),
    (Kind::ClockSet, 2),
];

impl Scenario {
    /// Some runs last longer than a frost.
    pub fn has_long_runs(&self) -> bool {
        matches!(self.kind, Kind::Frozen | Kind::CutOff | Kind::Together)
    }

    /// Workers can be cut off.
    pub fn has_links(&self) -> bool {
        matches!(self.kind, Kind::CutOff | Kind::Together)
    }

    /// The wall clock can be set.
    pub fn has_clock(&self) -> bool {
        matches!(self.kind, Kind::ClockSet | Kind::Together)
    }

    /// For how long the faults go on together.
    pub fn is_by_time(&self) -> bool {
        self.kind == Kind::Together
    }

    /// How often it strikes, where it is not for how long.
    pub fn times(&self, times: usize) -> usize {
        match self.kind {
            Kind::BrokerAway => 1,
            // Each setting, there and back.
            Kind::ClockSet => times.max(2 * SETTINGS.len()),
            _ => times,
        }
    }

    /// What comes as the `n`th, from 0.
    pub fn blow(&self, n: usize, away: Duration, entropy: &Entropy) -> Blow {
        of_kind(self.kind, n, away, entropy)
    }
}

fn of_kind(kind: Kind, n: usize, away: Duration, entropy: &Entropy) -> Blow {
    match kind {
        Kind::Killed => Blow::Kill,
        Kind::Frozen => Blow::Freeze,
        Kind::CutOff => Blow::CutOff,
        Kind::Restarted => Blow::Restart,
        Kind::LedgerKilled => Blow::LedgerKilled,
        Kind::BrokerKilled => Blow::BrokerKilled(BROKER_AWAY),
        Kind::BrokerAway => Blow::BrokerAway(away),
        Kind::ClockSet if n % 2 == 1 => Blow::Clock(0),
        Kind::ClockSet => Blow::Clock(SETTINGS[n / 2 % SETTINGS.len()]),
        Kind::Together => {
            let mut place = entropy.below(MIXTURE.iter().map(|(_, share)| share).sum());
            let chosen = MIXTURE.iter().find(|(_, share)| {
                let here = place < *share;
                place = place.saturating_sub(*share);
                here
            });
            let kind = chosen.map_or(Kind::Killed, |(kind, _)| *kind);
            let back = kind == Kind::ClockSet && entropy.below(2) == 0;
            of_kind(kind, 2 * entropy.below(SETTINGS.len()) + usize::from(back), away, entropy)
        }
    }
}

/// How long after a fault has healed the next one comes.
pub fn pause(blow: Blow, entropy: &Entropy) -> Duration {
    let (low, high) = match blow {
        Blow::Kill | Blow::Restart => (6_000, 9_000),
        Blow::Freeze | Blow::CutOff => (9_000, 12_000),
        Blow::LedgerKilled | Blow::BrokerKilled(_) | Blow::BrokerAway(_) => (10_000, 13_000),
        Blow::Clock(_) => (10_000, 12_000),
    };
    entropy.between(Duration::from_millis(low), Duration::from_millis(high))
}
