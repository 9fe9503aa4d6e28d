//! Sabotage of the protocol, one line each, to see that the simulation notices.
//!
//! A sabotage exists only in the build of the unit tests; everywhere else `mutant!(…)` is `false`.
//! A mutant that the simulation lets live shows that a check is missing.

use std::cell::Cell;

macro_rules! mutants {
    ($(#[doc = $words:literal] $name:ident,)*) => {
        /// What is sabotaged.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutant {
            $(#[doc = $words] $name,)*
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &[Mutant] = &[$(Mutant::$name,)*];

            /// What it does.
            pub fn words(self) -> &'static str {
                match self {
                    $(Mutant::$name => $words.trim_ascii(),)*
                }
            }
        }
    };
}

mutants! {
    /// A message is acknowledged before its successor is confirmed.
    AckBeforeConfirm,
    /// A message is acknowledged although its successor could not be sent.
    AckUnsent,
    /// Publishes are not mandatory.
    NoMandatory,
    /// A manual run starts although the rotation of its chain runs.
    ManualOverlaps,
    /// A rotation starts although a manual run of its chain runs.
    RotationOverlaps,
    /// A manual run starts within the cooldown of its chain.
    ManualIgnoresCooldown,
    /// The rotation does not count manual runs.
    ManualNotCounted,
    /// A publish whose confirmation did not come counts as confirmed.
    UnknownIsConfirmed,
    /// A publish that the broker refused counts as confirmed.
    RefusedIsConfirmed,
    /// A stale message is acknowledged, whatever became of its successor.
    StaleJustAck,
    /// The successor is noted as sent before it is.
    NotedBeforeSent,
    /// A message that finds its tick held is dropped.
    HeldIsDropped,
    /// A claim whose answer was lost is made again while another message of the chain makes its own.
    ClaimsCross,
    /// What workers have died over runs again and again.
    DeathsNotCounted,
    /// What two workers have died over runs beside other such runs.
    SuspectsTogether,
    /// While the broker is away no chain runs.
    BeatStops,
    /// What an outage has left unsent waits for catch-up.
    UnsentForgotten,
    /// A start does not wait for its throttle.
    ThrottleIgnored,
    /// A slot is used however late.
    SlotUsedLate,
    /// Throttles believe a ledger's clock that was set.
    ClockBelieved,
    /// The last gate of a worker counts each start for two.
    GateCountsTwice,
    /// What had not started when the worker stops is acknowledged.
    StopAcknowledges,
    /// A worker takes jobs from a queue that is closed.
    ClosedIgnored,
    /// A worker that is to drain takes jobs.
    DrainIgnored,
    /// A queue that is opened again stays closed.
    OpenIgnored,
    /// As many run as are configured, however many were ordered.
    ConcurrencyIgnored,
    /// A worker reads what operators have ordered when it starts, and never again.
    OrdersUnread,
    /// What had not started when its queue is closed is acknowledged.
    ClosedAcknowledges,
    /// A message with a further hop to go is dropped.
    RearmDrops,
    /// A message that cannot be used is dropped.
    QuarantineDrops,
    /// A one-off job's next attempt is not sent.
    RetryIsDropped,
    /// A one-off job that failed leaves no record.
    FailureIsDropped,
    /// A finish that the ledger did not answer is not tried again.
    FinishGivesUp,
    /// A chain whose successor is not known to have been sent is not shown as late.
    UnsentNotLate,
    /// Leases are not renewed.
    LeaseNotRenewed,
    /// A claim whose answer was lost, and that nobody made again, is kept.
    KeptForGood,
    /// A claim that waits for its turn is made for the session of before.
    SessionBeforeTurn,
    /// A worker goes on with a session that it could not keep up.
    LapsedGoesOn,
    /// A worker is taken for dead after a third of its lease.
    SilenceTooShort,
    /// A run goes on when its lease is lost.
    LostLeaseIgnored,
    /// A redelivered message takes the tick over, whatever its kind says.
    TakeoverAlways,
    /// A claim does not look at the lease.
    ClaimIgnoresLease,
    /// A claim does not look at whether the chain ticks.
    ClaimIgnoresState,
    /// A claim does not look at the due time.
    ClaimEarly,
    /// A claim does not look at the tick.
    ClaimIgnoresTick,
    /// A claim leaves no record.
    ClaimUnrecorded,
    /// A claim keeps the fence of the one before.
    FenceReused,
    /// The record of a holder that never finished stays open.
    LostNotMarked,
    /// A tick starts however close it is to the one before.
    ToleranceIgnored,
    /// A run that has to make room for the next occurrence goes on.
    OverlapNotEnded,
    /// A unique job runs though another has its place.
    PlaceIgnored,
    /// A unique job never gives its place up.
    PlaceKept,
    /// A one-off job starts though its owner is paused.
    OwnerIgnored,
    /// A job runs once for each time that its message was sent again from quarantine.
    RetriedTwice,
    /// A tick does not wait for its batch.
    BatchNotAwaited,
    /// The end of a member of a batch is not counted.
    MemberNotCounted,
    /// A finish is written whatever its fence.
    FinishWithoutFence,
    /// A finish does not move the tick on.
    FinishStays,
    /// A finish lets a paused chain go on.
    FinishUnpauses,
    /// A chain that begins anew keeps its epoch.
    EpochReused,
    /// Epochs and fences go on from where an older copy of the ledger was.
    SequencesGoBack,
    /// A roster that is enrolled again lets chains that have ended begin anew.
    EnrollRevives,
    /// Jobs that a run asks for are sent, and not kept first.
    SpawnedNotKept,
    /// Jobs that a run asks for are forgotten before they are sent.
    SpawnedForgottenFirst,
    /// Chains that a run has discovered do not begin.
    DiscoveredDropped,
    /// What a crash left in the outbox stays there.
    OutboxNotEmptied,
    /// A payload is enrolled in the clear where they are sealed.
    PayloadInTheClear,
    /// Catch-up sends nothing.
    CatchUpSleeps,
    /// Catch-up sends the tick that comes next.
    CatchUpAdvances,
    /// Catch-up sends again without noting that it did.
    CatchUpFloods,
}

thread_local! {
    static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Whether `mutant` is what is sabotaged on this thread.
pub fn is(mutant: Mutant) -> bool {
    ACTIVE.get() == Some(mutant)
}

/// Sabotages what `f` does, on this thread.
pub fn with<T>(mutant: Option<Mutant>, f: impl FnOnce() -> T) -> T {
    ACTIVE.set(mutant);
    let result = f();
    ACTIVE.set(None);
    result
}
