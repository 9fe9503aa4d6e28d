//! The verbs that the differential test asks of both ledgers, and how random sequences of them are made.

use proptest::prelude::*;
use roundelay::ledger::ChainOrder;

use super::cuts::Moment;

pub const KEYS: [&str; 3] = ["a", "b", "c"];
const LONGEST_SEQUENCE: usize = 250;

/// A verb; most are about one chain, or one of its runs.
#[derive(Clone, Copy, Debug)]
pub enum Verb {
    Enroll {
        once: bool,
        revive: bool,
        only_new: bool,
        other: bool,
        manual: u8,
    },
    Claim {
        takeover: bool,
        cooldown: bool,
        unprepared: bool,
    },
    Finish {
        next: u8,
        stale: bool,
        asks: u8,
    },
    /// Of the messages that are told by ends of runs, the last one, or one before it.
    Mark {
        before: usize,
    },
    EnrolledSent {
        stale: bool,
    },
    GiveUp {
        stale: bool,
    },
    /// The worker's session ends, and another begins.
    Over,
    Order {
        order: ChainOrder,
        which: u8,
    },
    Advance,
    AdvanceAll,
    Reschedule,
    Depart,
    LookAgain,
    SetSchedule {
        known: bool,
    },
    /// A message that is ahead of the ledger.
    Ahead,
    EndLeft,
    Job(JobVerb),
    Failure(FailureVerb),
    /// The last claim, end or enrolment is asked for once more: its answer was lost.
    Again,
    /// A connection to PostgreSQL is cut while it carries out the next verb; without a moment, all of them at once.
    Cut {
        at: Option<Moment>,
    },
    /// So many steps of the grid go by.
    Pass {
        steps: u8,
    },
    /// Both ledgers are opened anew.
    Reopen,
}

impl Verb {
    /// What it is, without what it is asked for.
    pub fn name(self) -> String {
        let all = match self {
            Verb::Order { order, .. } => format!("Order {order:?}"),
            Verb::Job(verb) => format!("Job {verb:?}"),
            Verb::Failure(verb) => format!("Failure {verb:?}"),
            verb => format!("{verb:?}"),
        };
        all.split(" {").next().unwrap_or_default().to_owned()
    }
}

#[derive(Clone, Copy, Debug)]
pub enum JobVerb {
    Keep,
    Accept,
    Take,
    Forget,
    Quarantine,
    Reserve,
    Release,
    TakeInHand,
    OutOfHand,
}

#[derive(Clone, Copy, Debug)]
pub enum FailureVerb {
    Record { permanent: bool, whole: bool, coded: bool },
    Retry,
    Drop,
    Wait,
    Feed,
    GiveUp,
    Hold,
    PutOff,
    End { worked: bool },
}

fn job_verbs() -> impl Strategy<Value = Verb> {
    use JobVerb::{Accept, Forget, Keep, OutOfHand, Quarantine, Release, Reserve, Take, TakeInHand};
    let all = vec![Keep, Accept, Take, Forget, Quarantine, Reserve, Release, TakeInHand, OutOfHand];
    prop::sample::select(all).prop_map(Verb::Job)
}

fn failure_verbs() -> impl Strategy<Value = Verb> {
    use FailureVerb::{Drop, End, Feed, GiveUp, Hold, PutOff, Record, Retry, Wait};
    let end = any::<bool>().prop_map(|worked| End { worked });
    let rare = prop::sample::select(vec![Retry, Drop, GiveUp, PutOff]);
    let record = (prop::bool::weighted(0.15), prop::bool::weighted(0.2), any::<bool>());
    let record = record.prop_map(|(permanent, whole, coded)| Record { permanent, whole, coded });
    prop_oneof![6 => record, 3 => Just(Feed), 2 => Just(Hold), 1 => Just(Wait), 2 => end, 3 => rare]
        .prop_map(Verb::Failure)
}

fn cuts() -> impl Strategy<Value = Verb> {
    use Moment::{After, BeforeAnswer, BeforeAnswerAndOn, BeforeCommit};
    let moments = vec![BeforeCommit, BeforeAnswer, BeforeAnswerAndOn];
    let after = (0..600_usize).prop_map(|bytes| Some(After(bytes)));
    prop_oneof![4 => prop::sample::select(moments).prop_map(Some), 2 => after, 1 => Just(None)]
        .prop_map(|at| Verb::Cut { at })
}

/// What a sequence is mostly about. Verbs of one sort follow from each other, and would rarely meet among all others.
#[derive(Clone, Copy, Debug)]
enum About {
    Anything,
    Runs,
    Failures,
    Jobs,
}

fn verbs(about: About) -> impl Strategy<Value = Verb> {
    let orders =
        [ChainOrder::Pause, ChainOrder::Resume, ChainOrder::Retire, ChainOrder::Recover, ChainOrder::RecoverAll];
    let order = (prop::sample::select(orders.to_vec()), 0..4_u8);
    let enroll = any::<(bool, bool, bool, bool, u8)>();
    let mostly_not = || prop::bool::weighted(0.15);
    let stale = || prop::bool::weighted(0.25);
    let [rest, runs, failures, jobs] = match about {
        About::Anything => [1, 1, 4, 4],
        About::Runs => [0, 2, 1, 1],
        About::Failures => [0, 1, 60, 1],
        About::Jobs => [0, 1, 1, 60],
    };
    let rare = prop_oneof![
        3 => order.prop_map(|(order, which)| Verb::Order { order, which }),
        1 => Just(Verb::Advance),
        1 => Just(Verb::AdvanceAll),
        1 => Just(Verb::Reschedule),
        1 => Just(Verb::Depart),
        1 => Just(Verb::LookAgain),
        1 => any::<bool>().prop_map(|known| Verb::SetSchedule { known }),
        1 => Just(Verb::Ahead),
        1 => stale().prop_map(|stale| Verb::EnrolledSent { stale }),
        1 => Just(Verb::EndLeft),
        1 => Just(Verb::Reopen),
    ];
    prop_oneof![
        4 => enroll.prop_map(|(once, revive, only_new, other, manual)| Verb::Enroll { once, revive, only_new, other, manual }),
        9 * runs => (mostly_not(), mostly_not(), any::<bool>())
            .prop_map(|(takeover, cooldown, unprepared)| Verb::Claim { takeover, cooldown, unprepared }),
        9 * runs => (0..9_u8, stale(), any::<u8>()).prop_map(|(next, stale, asks)| Verb::Finish { next, stale, asks }),
        4 * runs => (0..4_usize).prop_map(|before| Verb::Mark { before }),
        2 * runs => stale().prop_map(|stale| Verb::GiveUp { stale }),
        2 * runs => Just(Verb::Over),
        3 + 10 * rest => rare,
        jobs => job_verbs(),
        failures => failure_verbs(),
        4 => Just(Verb::Again),
        3 => cuts(),
        3 => (1..6_u8).prop_map(|steps| Verb::Pass { steps }),
    ]
}

/// Sequences of verbs, each with the place of its key among `KEYS`. The fewer the keys, the more verbs meet.
pub fn sequences() -> impl Strategy<Value = Vec<(Verb, usize)>> {
    let about = prop::sample::select(vec![About::Anything, About::Runs, About::Failures, About::Jobs]);
    (about, 1..=KEYS.len())
        .prop_flat_map(|(about, keys)| prop::collection::vec((verbs(about), 0..keys), 1..LONGEST_SEQUENCE))
}
