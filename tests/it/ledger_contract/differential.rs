//! The same verbs, one after the other, on SQLite and on PostgreSQL. After each verb both answers must be the same, and
//! so must all that can be read of the chains, jobs and failures. A verb is asked again, as after an answer that was
//! lost; PostgreSQL's connections are cut, mostly around a commit; time passes.
//!
//! Each sequence has a seed. `ROUNDELAY_SEED` is the first one, which is another each time by itself, and
//! `ROUNDELAY_CASES` how many are tried; without it sequences are tried for 20 seconds.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use roundelay::clock::{Entropy, Time};
use roundelay::failure::{FailedItem, ItemEnd};
use roundelay::guard::{Guard, IfRunning, Manual, Refusal};
use roundelay::ids::{Epoch, Fence, TickNo};
use roundelay::ledger::postgres::PostgresLedger;
use roundelay::ledger::sqlite::SqliteLedger;
use roundelay::ledger::{
    ChainFilter, ChainOrder, Claim, ClaimId, ClaimRequest, Enrolled, FailureFilter, Finish, FinishRequest, Grant, Hint,
    Kinds, Ledger, LedgerError, LedgerUrl, ListFilter, LookAgain, Member, Move, NewChain, Plan, PlannedItem, Sent,
    SpawnedJob,
};
use roundelay::outcome::{Next, Verdict};
use roundelay::secret::Secret;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::cuts::{Cuts, Moment, Struck};
use super::{LEASE, end};
use crate::harness::{SLACK, Schema, chain, number};

/// Time passes in these steps, and times count by this grid: both ledgers take real time for a sequence. No bound in a
/// ledger, and none that a verb has here, is near a multiple of a step, so none decides by what a verb took.
const GRID: Duration = Duration::from_secs(24);
/// A sequence begins so long after a point of the grid: a clock that follows a server's may seem to go back a little.
const EARLY: Duration = Duration::from_millis(500);
/// A sequence ends when it has taken this long. After 5.5 s a time that lies `SLACK` back would count for the next step
/// of the grid, and the last verb takes its time, too.
const LONGEST: Duration = Duration::from_millis(3_500);
/// So long are sequences tried when it is not said how many.
const USUAL: Duration = Duration::from_secs(20);
const KEYS: [&str; 3] = ["a", "b", "c"];
const LONGEST_SEQUENCE: usize = 250;

/// What may become of a verb whose connection is cut.
const OUTCOMES: [&str; 6] = [
    "answered after a commit that did not arrive",
    "answered after an answer that was lost",
    "answered after another cut",
    "an error, and written",
    "an error, and not written",
    "not reached",
];

/// A verb; most are about one chain, or one of its runs.
#[derive(Clone, Copy, Debug)]
enum Verb {
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
    fn name(self) -> String {
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
enum JobVerb {
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
enum FailureVerb {
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
fn sequences() -> impl Strategy<Value = Vec<(Verb, usize)>> {
    let about = prop::sample::select(vec![About::Anything, About::Runs, About::Failures, About::Jobs]);
    (about, 1..=KEYS.len())
        .prop_flat_map(|(about, keys)| prop::collection::vec((verbs(about), 0..keys), 1..LONGEST_SEQUENCE))
}

/// What has been asked for last, to be asked again.
#[derive(Clone)]
enum Asked {
    Enroll(Vec<NewChain>),
    Claim(ClaimRequest),
    Finish(FinishRequest),
}

/// One of the two ledgers, with what its runs have seen so far.
struct Side {
    ledger: Arc<dyn Ledger>,
    /// A little before the sequence began.
    begin: Time,
    session: i64,
    asked: Option<Asked>,
    seen: Seen,
    /// Epochs and fences that the ledger has given, by the order in which they were seen.
    numbers: HashMap<(char, String), usize>,
}

/// What the answers have said. An answer that was lost says nothing.
#[derive(Clone, Default)]
struct Seen {
    hints: Vec<Hint>,
    /// Claims that were granted, and whether a batch had been waited for.
    granted: Vec<(Hint, Fence, bool)>,
    sent: Vec<Sent>,
    /// The first messages of chains.
    created: Vec<Sent>,
}

impl Side {
    async fn new(ledger: Arc<dyn Ledger>, begin: Time) -> Self {
        let session = ledger.begin_session("w".into(), LEASE).await.unwrap();
        Self { ledger, begin, session, asked: None, seen: Seen::default(), numbers: HashMap::new() }
    }

    /// A text with numbers that the ledger has given replaced by their order, and times by their distance from the
    /// beginning in steps of the grid.
    fn told(&mut self, text: &str) -> String {
        let mut told = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
            let (before, digits) = rest.split_at(at);
            let length = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
            let (number, after) = digits.split_at(length);
            told.push_str(before);
            match length {
                13 => {
                    let passed = number.parse::<i64>().unwrap() - self.begin.as_millis();
                    write!(told, "T{:+}", passed.div_euclid(millis(GRID))).unwrap();
                }
                14.. => match told.trim_end_matches(": ").rsplit(|c: char| !c.is_alphabetic()).next() {
                    Some(what @ ("epoch" | "parent" | "fence")) => {
                        let sort = if what == "fence" { 'f' } else { 'e' };
                        let next = self.numbers.len();
                        let known = self.numbers.entry((sort, number.to_owned())).or_insert(next);
                        write!(told, "{sort}#{known}").unwrap();
                    }
                    _ => told.push('#'),
                },
                _ => told.push_str(number),
            }
            rest = after;
        }
        told.push_str(rest);
        told
    }

    async fn messages(&self) -> Result<Vec<Hint>, LedgerError> {
        let queues = vec!["work".into(), "other".into()];
        self.ledger.messages(queues, kinds(), Epoch::NONE, 100).await
    }

    /// What tells a chain from others: name, message, and the number by which its epoch is told.
    fn place(&self, hint: &Hint) -> (String, String, Time, TickNo, u32, Option<usize>) {
        let told = self.numbers.get(&('e', hint.epoch.to_string())).copied();
        (hint.kind.clone(), hint.key.clone(), hint.due, hint.tick, hint.attempt, told)
    }

    fn granted(&self, stale: bool) -> Option<&(Hint, Fence, bool)> {
        self.seen.granted.len().checked_sub(if stale { 2 } else { 1 }).map(|n| &self.seen.granted[n])
    }

    fn sent(&self, before: usize) -> Option<Sent> {
        self.seen.sent.len().checked_sub(1 + before).map(|n| self.seen.sent[n])
    }

    fn request(&self, hint: Hint) -> ClaimRequest {
        ClaimRequest {
            hint,
            worker: "w".into(),
            session: self.session,
            again: false,
            takeover: false,
            guard: Guard::default(),
            recurs: true,
            prepared: 9,
        }
    }

    /// Carries out what may be asked for again.
    async fn ask(&mut self, asked: Asked) -> Result<String, LedgerError> {
        self.asked = Some(asked.clone());
        match asked {
            Asked::Enroll(chains) => {
                let enrolled = self.ledger.enroll(chains).await?;
                let hints = enrolled.iter().filter_map(|enrolled| match enrolled {
                    Enrolled::Created(hint) => Some(hint.sent()),
                    _ => None,
                });
                self.seen.created.extend(hints);
                Ok(format!("{enrolled:?}"))
            }
            Asked::Claim(request) => {
                let mut claim = self.ledger.claim(request.clone()).await?;
                if let Claim::Granted(Grant { refused: Some(Refusal::Cooldown { since, .. }), .. }) = &mut claim {
                    // It counts from a point of the grid, to the moment of the claim.
                    *since = GRID * u32::try_from(since.as_millis() / GRID.as_millis()).unwrap();
                }
                if let Claim::Granted(grant) = &claim {
                    self.seen.granted.push((request.hint.clone(), grant.fence, grant.batch.is_some()));
                }
                Ok(format!("{claim:?}"))
            }
            Asked::Finish(request) => {
                let finish = self.ledger.finish(request).await?;
                if let Finish::Applied(messages) = &finish {
                    self.seen.sent.extend(messages.iter().map(Hint::sent));
                }
                Ok(format!("{finish:?}"))
            }
        }
    }

    /// What a verb asks for that may be asked for again.
    async fn asked_by(&mut self, verb: Verb, key: &str) -> Result<Option<Asked>, LedgerError> {
        let now = self.now();
        Ok(match verb {
            Verb::Enroll { once, revive, only_new, other, manual } => {
                let new = NewChain {
                    once,
                    revive,
                    only_new,
                    queue: if other { "other" } else { "work" }.into(),
                    owner: Some(if other { "bob" } else { "ann" }.into()),
                    schedule: other.then(|| "every 5m".into()),
                    priority: other.then_some(3),
                    depth: u32::from(other),
                    manual: Manual {
                        if_running: [IfRunning::Refuse, IfRunning::After, IfRunning::Beside][usize::from(manual % 3)],
                        force: manual % 2 == 0,
                    },
                    ..chain(key, now)
                };
                // Sometimes twice in one call, the second time with another payload.
                let again = NewChain { payload: "{\"n\":2}".into(), ..new.clone() };
                Some(Asked::Enroll(if manual % 4 == 0 { vec![new, again] } else { vec![new] }))
            }
            Verb::Claim { takeover, cooldown, unprepared } => {
                let mut messages = self.messages().await?;
                messages.sort_by_key(|hint| self.place(hint));
                let hint = messages.into_iter().rfind(|hint| hint.key == key || !hint.parent.is_none());
                let Some(hint) = hint.or_else(|| self.seen.hints.last().cloned()) else { return Ok(None) };
                self.seen.hints.push(hint.clone());
                let guard =
                    Guard { cooldown: if cooldown { GRID * 3 / 2 } else { Duration::ZERO }, ..Guard::default() };
                let prepared = if unprepared { 0 } else { 9 };
                Some(Asked::Claim(ClaimRequest { takeover, guard, prepared, ..self.request(hint) }))
            }
            Verb::Finish { next, stale, asks } => {
                let granted = self.granted(stale);
                granted.map(|(hint, fence, batch)| Asked::Finish(finish(hint, *fence, *batch, now, next, asks)))
            }
            Verb::Again => self.asked.clone().map(|asked| match asked {
                Asked::Claim(request) => Asked::Claim(ClaimRequest { again: true, session: self.session, ..request }),
                other => other,
            }),
            _ => None,
        })
    }

    /// Carries out a verb. The text that comes back has all of the ledger's answer.
    async fn act(&mut self, verb: Verb, key: &str) -> Result<String, LedgerError> {
        let ledger = self.ledger.clone();
        let now = self.now();
        let key_of = || key.to_owned();
        let one = || ChainFilter { kind: Some("sync".into()), key: Some(key.into()), ..ChainFilter::default() };
        let none = || Ok(String::new());
        match verb {
            Verb::Enroll { .. } | Verb::Claim { .. } | Verb::Finish { .. } | Verb::Again => {
                match self.asked_by(verb, key).await? {
                    Some(asked) => self.ask(asked).await,
                    None => none(),
                }
            }
            Verb::Mark { before } => {
                let Some(sent) = self.sent(before) else { return none() };
                ledger.mark_sent(sent);
                ledger.flush().await.map(|()| String::new())
            }
            Verb::EnrolledSent { stale } => {
                let created = self.seen.created.len().checked_sub(if stale { 2 } else { 1 });
                let Some(sent) = created.map(|n| self.seen.created[n]) else { return none() };
                ledger.enrolled_sent(vec![sent], SLACK).await.map(|()| String::new())
            }
            Verb::GiveUp { stale } => {
                let Some((hint, fence, _)) = self.granted(stale) else { return none() };
                let claim = vec![ClaimId { epoch: hint.epoch, fence: *fence }];
                let held = ledger.hold(claim.clone()).await?;
                ledger.give_up(self.session, claim.clone()).await?;
                Ok(format!("{held:?} {:?}", ledger.hold(claim).await?))
            }
            Verb::Over => {
                // Whatever becomes of it, a worker goes on with another session.
                if ledger.end_session(self.session).await.is_err() {
                    ledger.end_session(self.session).await?;
                }
                self.session = ledger.begin_session("w".into(), LEASE).await?;
                none()
            }
            Verb::Order { order, which } => {
                let which = match which {
                    0 => ChainFilter { owner: Some("ann".into()), ..ChainFilter::default() },
                    1 => ChainFilter { queue: Some("work".into()), ..ChainFilter::default() },
                    _ => one(),
                };
                let matching = ledger.matching(which.clone(), order).await?;
                Ok(format!("{matching} {}", ledger.order_chains(which, order).await?))
            }
            Verb::Advance => Ok(format!("{:?}", ledger.advance("sync".into(), key_of(), SLACK).await?)),
            Verb::AdvanceAll => Ok(format!("{:?}", ledger.advance_all(one(), 2, SLACK).await?)),
            Verb::Reschedule => {
                let to = now + GRID * 3;
                let chains = ledger.chains("sync".into(), key_of()).await?;
                let moves = chains.iter().map(|chain| Move {
                    epoch: chain.hint.epoch,
                    tick: chain.hint.tick,
                    from: chain.hint.due,
                    nominal: to,
                    due: to,
                    watch_at: to + SLACK,
                });
                Ok(format!("{:?}", ledger.reschedule(moves.collect()).await?))
            }
            Verb::Depart => {
                let chains = ledger.chains("sync".into(), key_of()).await?;
                let gone = ledger.depart(chains.iter().map(|chain| chain.hint.epoch).collect()).await?;
                Ok(format!("{gone} {:?}", ledger.departed("sync".into(), vec![key_of()]).await?))
            }
            Verb::LookAgain => {
                let chains = ledger.chains("sync".into(), key_of()).await?;
                let looks = chains.iter().map(|chain| LookAgain {
                    epoch: chain.hint.epoch,
                    from: chain.watch_at,
                    to: now + SLACK,
                    looks: chain.looks + 1,
                    expected: Some(now),
                });
                Ok(format!("{:?}", ledger.look_again(looks.collect()).await?))
            }
            Verb::SetSchedule { known } => {
                let schedule = known.then(|| "every 5m".to_owned());
                Ok(format!("{:?}", ledger.set_schedule("sync".into(), key_of(), schedule).await?))
            }
            Verb::Ahead => {
                let Some(hint) = self.seen.hints.last() else { return none() };
                let hint = Hint { tick: TickNo(hint.tick.get() + 1_000), ..hint.clone() };
                Ok(format!("{:?}", ledger.claim(self.request(hint)).await?))
            }
            Verb::EndLeft => ledger.end_left(10).await.map(|()| String::new()),
            Verb::Job(verb) => self.job(verb, key, now).await,
            Verb::Failure(verb) => self.failure(verb, key, now).await,
            Verb::Cut { .. } | Verb::Pass { .. } | Verb::Reopen => none(),
        }
    }

    async fn job(&mut self, verb: JobVerb, key: &str, now: Time) -> Result<String, LedgerError> {
        let (ledger, id) = (&self.ledger, format!("job-{key}"));
        let (kind, key, body) = (|| String::from("sync"), || key.to_owned(), b"{}".to_vec());
        match verb {
            JobVerb::Keep => ledger.keep_job(id, body).await.map(|()| String::new()),
            JobVerb::Accept => {
                let spawned = vec![SpawnedJob { id, body }];
                let begun = NewChain { depth: 1, ..chain("found", now) };
                let failed = vec![FailedItem::new("part", "HTTP 500")];
                Ok(format!("{:?}", ledger.accept(kind(), key(), spawned, vec![begun], failed).await?))
            }
            JobVerb::Take => {
                let taken = ledger.take_jobs(0, now + GRID, 1).await?;
                Ok(format!("{:?}", taken.iter().map(|job| &job.body).collect::<Vec<_>>()))
            }
            JobVerb::Forget => ledger.forget_jobs(vec![id]).await.map(|()| String::new()),
            JobVerb::Quarantine => {
                ledger.quarantine("work".into(), "bad".into(), body, Some(id), now).await.map(|()| String::new())
            }
            JobVerb::Reserve => Ok(ledger.reserve(kind(), "one".into(), id, GRID * 5 / 2).await?),
            JobVerb::Release => ledger.release(kind(), "one".into(), id).await.map(|()| String::new()),
            JobVerb::TakeInHand => {
                ledger.take_in_hand(id.clone(), self.session).await?;
                Ok(format!("{:?}", ledger.hands(id, 1).await?))
            }
            JobVerb::OutOfHand => {
                ledger.out_of_hand(id.clone()).await?;
                Ok(format!("{:?}", ledger.hands(id, 1).await?))
            }
        }
    }

    async fn failure(&mut self, verb: FailureVerb, key: &str, now: Time) -> Result<String, LedgerError> {
        let ledger = &self.ledger;
        let (kind, key, id) = (|| String::from("sync"), || key.to_owned(), format!("item-{key}"));
        let which = || FailureFilter { kind: Some(kind()), key: Some(key()), ..FailureFilter::default() };
        let plan = async |plan: Plan| {
            let failures = ledger.failures_of(kind(), key()).await?;
            let planned = failures.into_iter().filter_map(|failure| {
                let seen = failure.next_retry_at?;
                let mut plan = plan.clone();
                // A job is for one part.
                if let Plan::Feed { job, .. } = &mut plan
                    && failure.item != "us"
                {
                    job.id = format!("{id}-{}", failure.item);
                }
                Some(PlannedItem { kind: kind(), key: key(), item: failure.item, seen, plan })
            });
            Ok(format!("{:?}", ledger.plan_items(planned.collect()).await?))
        };
        match verb {
            FailureVerb::Record { permanent, whole, coded } => {
                let item = FailedItem {
                    permanent,
                    code: coded.then(|| "rate_limited".into()),
                    next_retry_at: (!permanent && !whole).then_some(now + GRID),
                    ..FailedItem::new(if whole { "" } else { "us" }, "HTTP 404")
                };
                ledger.record_failure(kind(), key(), item, now).await.map(|()| String::new())
            }
            FailureVerb::Retry => Ok(format!("{:?}", ledger.retry_failed(which()).await?)),
            FailureVerb::Drop => Ok(format!("{:?}", ledger.drop_failed(which()).await?)),
            FailureVerb::Wait => plan(Plan::Wait(now + GRID * 2)).await,
            FailureVerb::GiveUp => plan(Plan::GiveUp).await,
            FailureVerb::Feed => {
                let job = SpawnedJob { id: id.clone(), body: b"{}".to_vec() };
                plan(Plan::Feed { job, until: now + GRID * 2 }).await
            }
            FailureVerb::Hold => Ok(format!("{:?}", ledger.hold_item(id, GRID / 2).await?)),
            FailureVerb::PutOff => ledger.put_off_item(id, now + GRID * 2).await.map(|()| String::new()),
            FailureVerb::End { worked } => {
                let end = match worked {
                    true => ItemEnd::Worked,
                    false => {
                        ItemEnd::Failed(FailedItem { next_retry_at: Some(now + GRID), ..FailedItem::new("us", "no") })
                    }
                };
                ledger.end_item(id, end, now).await.map(|()| String::new())
            }
        }
    }

    /// The last point of the grid: both ledgers give the same numbers of steps, however long they take.
    fn now(&self) -> Time {
        let (passed, grid) = (self.ledger.now().since(self.begin).as_millis(), GRID.as_millis());
        self.begin + Duration::from_millis(u64::try_from(passed / grid * grid).unwrap())
    }

    /// What can be read of chains, messages, runs, jobs and failures.
    async fn state(&mut self) -> Result<String, LedgerError> {
        let ledger = self.ledger.clone();
        let later = self.now() + Duration::from_secs(1_000);
        let of = |kind: &str, key: &str| ledger.chains(kind.into(), key.into());
        // All at once, so that the answers come by one round trip.
        let chains = async { tokio::try_join!(of("sync", "a"), of("sync", "b"), of("sync", "c")) };
        let found = async { tokio::try_join!(of("sync", "found"), of("part", "1"), of("part", "2")) };
        let (chains, found, mut messages, mut overdue, mut late) = tokio::try_join!(
            chains,
            found,
            self.messages(),
            ledger.overdue("work".into(), kinds(), later, None, 100),
            ledger.late(later, 100),
        )?;
        let (list, owners, census, attempts, kept, failures, due) = tokio::try_join!(
            ledger.list(ListFilter::default(), None, 100),
            ledger.owners(String::new(), 100),
            ledger.census(SLACK),
            ledger.attempts(Fence::NONE, 1_000),
            ledger.kept_jobs(0, 100),
            ledger.failures(100),
            ledger.due_items("sync".into(), 100),
        )?;
        // This names the epochs, in the order of keys.
        let chains = [chains.0, chains.1, chains.2, found.0, found.1, found.2].concat();
        let chains = self.told(&lines(&chains));
        // Which of several chains gets its new epoch first is open, and so is the order of those that are late, or due,
        // alike.
        messages.sort_by_key(|hint| self.place(hint));
        overdue.sort_by_key(|overdue| self.place(&overdue.hint));
        late.sort_by_key(|late| self.place(&late.hint));
        let jobs: Vec<_> = kept.into_iter().map(|job| (job.body, job.kept_at)).collect();
        let mut due: Vec<_> = due.into_iter().map(|due| due.failure).collect();
        due.sort_by_key(|due| (due.next_retry_at, due.key.clone(), due.item.clone()));
        let parts = [
            lines(&messages),
            lines(&overdue),
            lines(&late),
            lines(&list),
            lines(&owners),
            format!("{census:#?}\n"),
            lines(&attempts),
            lines(&jobs),
            lines(&failures),
            lines(&due),
        ];
        let text = parts.join("---\n");
        Ok(chains + &self.told(&text))
    }
}

/// A line for each.
fn lines<T: std::fmt::Debug>(all: &[T]) -> String {
    all.iter().fold(String::new(), |mut text, one| {
        writeln!(text, "{one:?}").unwrap();
        text
    })
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap()
}

fn kinds() -> Kinds {
    let all = vec![String::from("sync"), String::from("part")];
    Kinds { recurring: all.clone(), all }
}

fn finish(hint: &Hint, fence: Fence, from_batch: bool, now: Time, next: u8, asks: u8) -> FinishRequest {
    let due = now + GRID;
    let is_member = !hint.parent.is_none();
    let (next, verdict) = match next {
        0 => (Next::End, Verdict::Retired),
        1 => (Next::Attempt { attempt: hint.attempt + 1, due }, Verdict::Retried),
        2 => (Next::Snooze { due: now }, Verdict::Snoozed),
        3 if !is_member => (Next::Gather, Verdict::FannedOut),
        4 if is_member => (Next::End, Verdict::Failed),
        _ if is_member => (Next::End, Verdict::Done),
        4 => (Next::Tick { nominal: due, due }, Verdict::Failed),
        // At the same moment: only the number tells these ticks apart.
        5 | 6 => (Next::Tick { nominal: now, due: now }, Verdict::Done),
        _ => (Next::Tick { nominal: due, due }, Verdict::Done),
    };
    let member = |n: u8| Member {
        kind: "part".into(),
        key: n.to_string(),
        queue: "work".into(),
        payload: "{}".into(),
        due: now,
        depth: 1,
    };
    let asks_for = |bit: u8| asks & bit != 0;
    FinishRequest {
        slack: SLACK,
        ran: !asks_for(1) || verdict == Verdict::Done,
        carry: asks_for(2).then(|| format!("\"carry {asks}\"")),
        parent: hint.parent,
        from_batch,
        members: if next == Next::Gather { vec![member(1), member(2)] } else { Vec::new() },
        chains: if asks_for(4) { vec![NewChain { depth: 1, ..chain("found", due) }] } else { Vec::new() },
        spawned: if asks_for(8) { vec![SpawnedJob { id: "job-a".into(), body: b"{}".to_vec() }] } else { Vec::new() },
        failed: if asks_for(16) { vec![FailedItem::new("us", "HTTP 503"); 2] } else { Vec::new() },
        left_out: (u32::from(asks / 32 % 2), u32::from(asks / 64 % 2)),
        ..end(hint, fence, now, next, verdict)
    }
}

/// Both ledgers, which go by one clock: PostgreSQL's.
struct Both {
    theirs: Arc<dyn Ledger>,
    ours: Arc<dyn Ledger>,
    /// Ways past the ledgers to their tables.
    beside: tokio_postgres::Client,
    own: rusqlite::Connection,
    /// `UNSEEN` on PostgreSQL.
    unseen: tokio_postgres::Statement,
    /// Statements that empty all tables that sequences write to.
    empty: [String; 2],
    folder: TempDir,
    schema: Schema,
    cuts: Cuts,
    /// The ledger's URL that leads over `cuts`.
    url: Secret,
}

impl Both {
    async fn new() -> Self {
        let schema = Schema::new().await;
        // What is compared needs no disk.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        let (cuts, url) = Cuts::before(&schema).await;
        let (theirs, ours) = Self::opened(&url, &folder).await;
        let beside = schema.raw().await;
        let own = rusqlite::Connection::open(folder.path().join("ledger.db")).unwrap();
        own.busy_timeout(LONGEST).unwrap();
        let kept = |table: &String| !["meta", "ledger_clock", "clock_sets"].contains(&&**table);
        let tables = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() ORDER BY tablename";
        let tables: Vec<String> =
            beside.query(tables, &[]).await.unwrap().iter().map(|row| row.get(0)).filter(kept).collect();
        // Nor does a commit wait for the disk where all tables that it writes to are unlogged.
        let unlogged: String = tables.iter().map(|table| format!("ALTER TABLE {table} SET UNLOGGED;")).collect();
        beside.batch_execute(&unlogged).await.unwrap();
        let unseen = beside.prepare(UNSEEN).await.unwrap();
        let emptied = |tables: Vec<String>| tables.iter().map(|table| format!("DELETE FROM {table};")).collect();
        let their_tables = emptied(tables);
        let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name";
        let tables =
            own.prepare(tables).unwrap().query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        let tables: Vec<String> = tables;
        let our_tables = emptied(tables.into_iter().filter(kept).collect());
        Self { theirs, ours, beside, own, empty: [their_tables, our_tables], folder, schema, cuts, url, unseen }
    }

    async fn opened(url: &Secret, folder: &TempDir) -> (Arc<dyn Ledger>, Arc<dyn Ledger>) {
        let theirs = PostgresLedger::open(url, &Entropy::from_os()).await.unwrap();
        let file = LedgerUrl::Sqlite(folder.path().join("ledger.db"));
        let ours = SqliteLedger::open(&file, theirs.clock(), &Entropy::from_os()).unwrap();
        (Arc::new(theirs), Arc::new(ours))
    }

    async fn reopen(&mut self) {
        (self.theirs, self.ours) = Self::opened(&self.url, &self.folder).await;
    }

    async fn empty(&self) {
        self.own.execute_batch(&format!("BEGIN IMMEDIATE;{}COMMIT", self.empty[1])).unwrap();
        self.beside.batch_execute(&format!("BEGIN;{}COMMIT", self.empty[0])).await.unwrap();
        self.note_time();
    }

    /// Time passes as where another worker has found that the server's clock had been set back for so long.
    async fn pass(&self, time: Duration) {
        let set = "UPDATE ledger_clock SET set_by = set_by - $1, version = version + 1";
        self.beside.execute(set, &[&i64::try_from(time.as_micros()).unwrap()]).await.unwrap();
        self.theirs.read_clock().await.unwrap();
        self.note_time();
    }

    /// SQLite's own clock, which is not used here, notes the time in the file, for a trigger.
    fn note_time(&self) {
        self.own.execute("UPDATE ledger_clock SET seen = ?1", [self.ours.now().as_millis()]).unwrap();
    }

    /// Ends PostgreSQL's connections.
    async fn cut(&self) {
        let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
        self.beside.execute(kill, &[&self.schema.name]).await.unwrap();
    }

    /// All that can be seen of SQLite's ledger.
    async fn our_state(&self, ours: &mut Side) -> String {
        let mut unseen = self.own.prepare_cached(UNSEEN).unwrap();
        let unseen = unseen.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        ours.state().await.unwrap() + &ours.told(&sorted(unseen))
    }

    /// All that can be seen of PostgreSQL's ledger.
    async fn their_state(&self, theirs: &mut Side) -> String {
        let (state, unseen) = tokio::join!(theirs.state(), self.beside.query(&self.unseen, &[]));
        let unseen = unseen.unwrap().iter().map(|row| row.get(0)).collect();
        state.unwrap() + &theirs.told(&sorted(unseen))
    }

    /// Carries out a sequence of verbs on both, from nothing on.
    async fn play(&mut self, verbs: &[(Verb, usize)], count: &RefCell<Count>) -> Result<(), String> {
        self.empty().await;
        let (began, begin) = (Instant::now(), self.ours.now() - EARLY);
        let mut ours = Side::new(self.ours.clone(), begin).await;
        let mut theirs = Side::new(self.theirs.clone(), begin).await;
        let mut seen = [self.our_state(&mut ours).await, self.their_state(&mut theirs).await];
        let mut cut = None;
        for (nth, (verb, key)) in verbs.iter().enumerate() {
            let (verb, key) = (*verb, KEYS[*key]);
            match verb {
                _ if began.elapsed() > LONGEST => break,
                Verb::Cut { at } => cut = Some(at),
                Verb::Pass { steps } => self.pass(GRID * u32::from(steps)).await,
                Verb::Reopen => {
                    self.reopen().await;
                    (ours.ledger, theirs.ledger) = (self.ours.clone(), self.theirs.clone());
                }
                _ => {}
            }
            // What these do needs no connection that could be cut.
            let is_idle = matches!(verb, Verb::Cut { .. } | Verb::Pass { .. } | Verb::Reopen);
            let cut_at = cut.take_if(|_| !is_idle);
            let (answer, struck) = match cut_at {
                Some(Some(moment)) => {
                    self.cuts.arm(moment);
                    let answer = theirs.act(verb, key).await;
                    (answer, self.cuts.disarm())
                }
                Some(None) => (tokio::join!(theirs.act(verb, key), self.cut()).0, Some(Struck::Anything)),
                None => (insisted(&mut theirs, verb, key).await, None),
            };
            let is_error = answer.is_err();
            // A note that could not be written is written some time later.
            let answer = match verb {
                Verb::Mark { .. } if is_error && struck.is_some() => insisted(&mut theirs, verb, key).await,
                _ => answer,
            };
            let place = format!("verb {nth}, {verb:?} of {key}, cut {cut_at:?}");
            let outcome = match (answer, struck) {
                (Ok(answer), _) => {
                    let answers = [ours.act(verb, key).await.unwrap(), answer];
                    let answers = [ours.told(&answers[0]), theirs.told(&answers[1])];
                    if struck.is_none() || !is_asked_twice(verb) {
                        compared(&place, "the answers", &answers)?;
                    }
                    match struck {
                        Some(_) if is_error => OUTCOMES[3],
                        Some(Struck::Uncommitted) => OUTCOMES[0],
                        Some(Struck::Unanswered) => OUTCOMES[1],
                        Some(Struck::Anything) => OUTCOMES[2],
                        None => OUTCOMES[5],
                    }
                }
                (Err(error), None) => return Err(format!("{place}: PostgreSQL says: {error}")),
                // The verb was carried out, or it was not. Its answer is lost.
                (Err(_), Some(_)) => {
                    if self.their_state(&mut theirs).await == seen[1] {
                        // A claim may have failed before, when its message was looked for.
                        let asks =
                            !matches!(verb, Verb::Claim { .. }) || theirs.seen.hints.len() > ours.seen.hints.len();
                        if asks && let Some(asked) = ours.asked_by(verb, key).await.unwrap() {
                            ours.asked = Some(asked);
                        }
                        *count.borrow_mut().outcomes.entry(OUTCOMES[4]).or_default() += 1;
                        continue;
                    }
                    let known = ours.seen.clone();
                    let own = ours.act(verb, key).await.unwrap();
                    ours.told(&own);
                    ours.seen = Seen { hints: std::mem::take(&mut ours.seen.hints), ..known };
                    OUTCOMES[3]
                }
            };
            seen = [self.our_state(&mut ours).await, self.their_state(&mut theirs).await];
            compared(&place, "the states after it", &seen)?;
            let mut count = count.borrow_mut();
            *count.verbs.entry(verb.name()).or_default() += 1;
            if cut_at.is_some() {
                *count.outcomes.entry(outcome).or_default() += 1;
            }
        }
        for side in [ours, theirs] {
            side.ledger.end_session(side.session).await.unwrap();
        }
        Ok(())
    }
}

/// Carries out a verb. For a second after a cut, a ledger may not connect again.
async fn insisted(side: &mut Side, verb: Verb, key: &str) -> Result<String, LedgerError> {
    let (began, hints) = (Instant::now(), side.seen.hints.len());
    loop {
        match side.act(verb, key).await {
            Err(LedgerError::Open { .. }) if began.elapsed() < Duration::from_millis(1_500) => {
                side.seen.hints.truncate(hints);
                sleep(Duration::from_millis(100)).await;
            }
            answer => return answer,
        }
    }
}

/// How often each verb was compared, and how often each of `OUTCOMES` came of a cut.
#[derive(Default)]
struct Count {
    verbs: BTreeMap<String, u64>,
    outcomes: BTreeMap<&'static str, u64>,
}

/// Verbs that PostgreSQL's ledger asks for once more where the connection is lost. If the first was carried out, the
/// second finds nothing left to do, and says so; catch-up sends the message.
fn is_asked_twice(verb: Verb) -> bool {
    matches!(verb, Verb::Advance | Verb::AdvanceAll | Verb::Reschedule | Verb::Failure(FailureVerb::Feed))
}

/// What decides later answers, and is read by no verb.
const UNSEEN: &str = "
    SELECT 'unique ' || kind || ' ' || key || ' ' || id || ' ' || until FROM uniques
    UNION ALL SELECT 'held ' || kind || ' ' || key || ' ' || item || ' ' || held_until FROM failures
    UNION ALL SELECT 'owner ' || owner || ' ' || state || ' ' || at FROM owners
    UNION ALL SELECT 'in hand ' || job || ' ' || at FROM in_hand
    UNION ALL SELECT 'quarantined ' || source || ' ' || reason || ' ' || at FROM quarantine
    UNION ALL SELECT 'chain ' || kind || ' ' || key || ' ' || due || ' ' || expected || ' ' || batch_failed || ' '
                     || manual || ' ' || depth FROM chains";

fn sorted(mut all: Vec<String>) -> String {
    all.sort();
    all.join("\n")
}

/// Compares what is told of SQLite and of PostgreSQL.
fn compared(place: &str, what: &str, [ours, theirs]: &[String; 2]) -> Result<(), String> {
    if ours == theirs {
        return Ok(());
    }
    let mut words = format!("{place}: {what} differ");
    let differ = ours.lines().zip(theirs.lines()).position(|(our, their)| our != their).unwrap_or_default();
    for (name, text) in [("SQLite", ours), ("PostgreSQL", theirs)] {
        let near: Vec<&str> = text.lines().skip(differ.saturating_sub(1)).take(3).collect();
        write!(words, "\n{name}, around line {differ}:\n{}", near.join("\n")).unwrap();
    }
    Err(words)
}

#[test]
fn both_ledgers_answer_the_same_to_the_same_verbs() {
    let first = number("ROUNDELAY_SEED", Entropy::from_os().below(1_000_000) as u64);
    let cases = std::env::var("ROUNDELAY_CASES").is_ok().then(|| number("ROUNDELAY_CASES", 1));
    println!("ROUNDELAY_SEED={first} ROUNDELAY_CASES={}", cases.map_or("(20 s)".to_owned(), |cases| cases.to_string()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let both = RefCell::new(runtime.block_on(Both::new()));
    let sequences = sequences();
    let (count, began, mut seed) = (RefCell::new(Count::default()), Instant::now(), first);
    while cases.map_or(began.elapsed() < USUAL, |cases| seed < first + cases) {
        let config = Config {
            cases: 1,
            rng_seed: RngSeed::Fixed(seed),
            failure_persistence: None,
            max_shrink_iters: 300,
            ..Config::default()
        };
        let found = Cell::new(false);
        let run = TestRunner::new(config).run(&sequences, |verbs| {
            let played = runtime.block_on(both.borrow_mut().play(&verbs, &count));
            played.map_err(|why| {
                // What is left of it when it has been made shorter comes at the end.
                if !found.replace(true) {
                    println!("found by ROUNDELAY_SEED={seed}: {why}");
                }
                TestCaseError::fail(why)
            })
        });
        run.unwrap_or_else(|why| panic!("ROUNDELAY_SEED={seed} ROUNDELAY_CASES=1: {why}"));
        seed += 1;
    }
    let (Count { verbs, outcomes }, sequences) = (count.into_inner(), seed - first);
    let compared: u64 = verbs.values().sum();
    println!("{compared} verbs in {sequences} sequences in {:?}: {verbs:?}", began.elapsed());
    println!("of {} cuts: {outcomes:?}", outcomes.values().sum::<u64>());
    assert!(sequences < 10 || compared >= 10 * sequences, "only {compared} verbs in {sequences} sequences");
    let missed: Vec<_> = OUTCOMES.into_iter().filter(|outcome| !outcomes.contains_key(outcome)).collect();
    assert!(sequences < 100 || missed.is_empty(), "of cuts in {sequences} sequences never came: {missed:?}");
}
