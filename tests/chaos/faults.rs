//! Which faults there are, how many of each, and in which order (pure, by a seed).

use std::time::Duration;

use roundelay::clock::Entropy;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    WorkerKilled,
    WorkerFrozen,
    NodeKilled,
    LeaderKilled,
    ClusterRestarted,
    MemberRemoved,
    LedgerKilled,
    LedgerAway,
    LedgerFailover,
    LedgerSwitchover,
    BrokerCut,
    LedgerCut,
    BrokerOneWay,
    LedgerOneWay,
    BrokerHalfOpen,
    LedgerHalfOpen,
    OneWorkerCut,
    Slow,
    MemoryAlarm,
    DiskAlarm,
    RungPurged,
    QueuePurged,
    QueueDeleted,
    RungDeleted,
    ExchangeDeleted,
    BindingDeleted,
    PolicyTtl,
    PolicyLength,
    Poison,
}

/// Each fault with its name and how often it happens in half an hour.
pub const TABLE: &[(Fault, &str, usize)] = &[
    (Fault::WorkerKilled, "worker killed", 300),
    (Fault::WorkerFrozen, "worker frozen", 60),
    (Fault::NodeKilled, "node killed", 20),
    (Fault::LeaderKilled, "leader killed", 10),
    (Fault::ClusterRestarted, "cluster restarted", 2),
    (Fault::MemberRemoved, "member removed", 2),
    (Fault::LedgerKilled, "ledger killed", 10),
    (Fault::LedgerAway, "ledger away for 30 s", 1),
    (Fault::LedgerFailover, "ledger failover", 10),
    (Fault::LedgerSwitchover, "ledger switchover", 3),
    (Fault::BrokerCut, "broker cut off", 4),
    (Fault::LedgerCut, "ledger cut off", 3),
    (Fault::BrokerOneWay, "broker cut off one way", 4),
    (Fault::LedgerOneWay, "ledger cut off one way", 3),
    (Fault::BrokerHalfOpen, "broker half-open", 2),
    (Fault::LedgerHalfOpen, "ledger half-open", 2),
    (Fault::OneWorkerCut, "one worker cut off", 4),
    (Fault::Slow, "network slow", 2),
    (Fault::MemoryAlarm, "memory alarm", 2),
    (Fault::DiskAlarm, "disk alarm", 2),
    (Fault::RungPurged, "rung purged", 2),
    (Fault::QueuePurged, "queue purged", 2),
    (Fault::QueueDeleted, "queue deleted", 2),
    (Fault::RungDeleted, "rung deleted", 1),
    (Fault::ExchangeDeleted, "exchange deleted", 1),
    (Fault::BindingDeleted, "binding deleted", 1),
    (Fault::PolicyTtl, "policy message-ttl", 1),
    (Fault::PolicyLength, "policy max-length", 1),
    (Fault::Poison, "poison", 3),
];

impl Fault {
    pub fn name(self) -> &'static str {
        TABLE.iter().find(|(fault, ..)| *fault == self).map_or("?", |(_, name, _)| name)
    }

    /// It hits one worker, and happens beside everything else.
    pub fn is_of_a_worker(self) -> bool {
        matches!(self, Fault::WorkerKilled | Fault::WorkerFrozen)
    }
}

/// A fault and when it is to happen, counted from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    pub at: Duration,
    pub fault: Fault,
}

/// Which faults there are to be in a run, and how many of each: its share of half an hour's, and at
/// least one. With `only`, those in whose names one of these texts is.
pub fn wanted(length: Duration, only: &[String]) -> Vec<(Fault, usize)> {
    let share = |count: usize| ((count as f64 * length.as_secs_f64() / 1800.0).round() as usize).max(1);
    let rows = TABLE.iter().filter(|(_, name, _)| only.is_empty() || only.iter().any(|text| name.contains(text)));
    rows.map(|(fault, _, count)| (*fault, share(*count))).collect()
}

/// What happens to single workers, and what happens to everybody. Both are evenly spaced, with a
/// random order and random moments.
pub fn plan(wanted: &[(Fault, usize)], length: Duration, entropy: &Entropy) -> (Vec<Planned>, Vec<Planned>) {
    let faults = |of_a_worker: bool| {
        let rows = wanted.iter().filter(|(fault, _)| fault.is_of_a_worker() == of_a_worker);
        let mut faults: Vec<Fault> = rows.flat_map(|(fault, count)| std::iter::repeat_n(*fault, *count)).collect();
        for last in (1..faults.len()).rev() {
            faults.swap(last, entropy.below(last + 1));
        }
        let share = length / u32::try_from(faults.len().max(1)).unwrap_or(u32::MAX);
        let moment =
            |n: usize| share * u32::try_from(n).unwrap_or(u32::MAX) + entropy.between(Duration::ZERO, share / 2);
        faults.into_iter().enumerate().map(|(n, fault)| Planned { at: moment(n), fault }).collect::<Vec<_>>()
    };
    (faults(true), faults(false))
}
