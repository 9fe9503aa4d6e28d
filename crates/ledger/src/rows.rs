//! A ledger of a few chains in memory, for programs that look at every state a ledger can come to
//! (`crates/simulation/src/explore/`).
//!
//! The verbs of a tick are decided by `crate::decide`, as in every ledger: what a verb wants is
//! loaded into a page, the verb decides, and the page is written back. Orders, sessions and the looks of catch-up are
//! statements in the other ledgers; here they are the same in a few lines each.

use roundelay_model::clock::Time;
use roundelay_model::guard::Manual;
use roundelay_model::ids::{Epoch, Fence, TickNo};

use crate::catch_up::{LookAgain, Overdue};
use crate::chain::{ChainState, Hint, Holder, Sent};
use crate::claim::{Claim, ClaimId, ClaimRequest};
use crate::decide::grant::ChainRow;
use crate::decide::{Decide, Enroll, ForgetJobs, Held, Job, Look, MarkSent, Page, Wanted};
use crate::enroll::{Enrolled, NewChain};
use crate::finish::{Finish, FinishRequest};
use crate::orders::ChainOrder;

/// The kind of all chains.
pub const KIND: &str = "chain";
/// The platform queue of all chains.
pub const QUEUE: &str = "work";

/// A chain, or a manual run of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Which entity.
    pub key: &'static str,
    /// A manual run.
    pub once: bool,
    /// How the manual run was asked for.
    pub manual: Manual,
    /// The incarnation.
    pub epoch: Epoch,
    /// The occurrence.
    pub tick: TickNo,
    /// The try.
    pub attempt: u32,
    /// When the attempt is due.
    pub due: Time,
    /// What it is doing.
    pub state: ChainState,
    /// The session that has claimed it; zero when none has.
    pub session: i64,
    /// Whether its message is known to have been sent.
    pub sent: bool,
    /// Of a rotation: a manual run may not have ended.
    pub beside: bool,
    /// The tick of which a run last started.
    pub started_tick: TickNo,
    /// When a run last started; zero when none has.
    pub last_start: Time,
    /// When a run last ended; zero when none has.
    pub last_finish: Time,
    /// Its last claim.
    pub fence: Fence,
    /// When catch-up looks after it.
    pub watch_at: Time,
    /// How often catch-up has sent its message.
    pub looks: u32,
    /// When its message was to arrive.
    pub expected: Time,
}

/// How the record of an attempt has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// It has not.
    #[default]
    Open,
    /// Its worker is gone.
    Lost,
    /// The same, for a reason that is no worker's death.
    Excused,
    /// Its finish came too late.
    Fenced,
    /// Its finish was written.
    Finished,
}

/// The record of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The claim.
    pub fence: Fence,
    /// The chain's incarnation.
    pub epoch: Epoch,
    /// The occurrence.
    pub tick: TickNo,
    /// The try.
    pub attempt: u32,
    /// The claim before this one.
    pub previous: Fence,
    /// How it has ended.
    pub end: End,
}

/// The ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Chains and manual runs.
    pub chains: Vec<Chain>,
    /// The sessions that go on.
    pub sessions: Vec<i64>,
    /// Records of attempts: those by which workers' deaths are counted, and those that are open.
    pub attempts: Vec<Attempt>,
    /// Ids of the jobs that are kept.
    pub jobs: Vec<String>,
    /// The fence that the next claim gets.
    pub next_fence: i64,
    /// The epoch that the next chain gets.
    pub next_epoch: i64,
}

impl Rows {
    /// [`crate::Protocol::claim`]
    pub fn claim(&mut self, request: &ClaimRequest, now: Time) -> Claim {
        self.carry_out(request, now)
    }

    /// [`crate::Protocol::finish`]
    pub fn finish(&mut self, request: &FinishRequest, now: Time) -> Finish {
        self.carry_out(request, now)
    }

    /// [`crate::Protocol::enroll`], of one chain.
    pub fn enroll(&mut self, chain: NewChain, now: Time) -> Option<Enrolled> {
        self.carry_out(&Enroll(vec![chain]), now).pop()
    }

    /// [`crate::Protocol::mark_sent`]
    pub fn mark_sent(&mut self, sent: Sent, now: Time) {
        self.carry_out(&MarkSent { sent: vec![sent], slack: None }, now);
    }

    /// [`crate::Protocol::enrolled_sent`]
    pub fn enrolled_sent(&mut self, sent: Sent, slack: std::time::Duration, now: Time) {
        self.carry_out(&MarkSent { sent: vec![sent], slack: Some(slack) }, now);
    }

    /// [`crate::CatchUp::look_again`], of one chain.
    pub fn look_again(&mut self, look: LookAgain, now: Time) -> bool {
        self.carry_out(&Look(vec![look]), now) == [true]
    }

    /// [`crate::Jobs::forget_jobs`]
    pub fn forget_jobs(&mut self, ids: Vec<String>, now: Time) {
        self.carry_out(&ForgetJobs(ids), now);
    }

    /// [`crate::CatchUp::overdue`] and, with `orphans_until`, the part of [`crate::CatchUp::orphans`] whose holders are
    /// gone.
    pub fn overdue(&self, session: i64, now: Time, orphans_until: Option<Time>) -> Vec<Overdue> {
        let mut found: Vec<Overdue> = (self.chains.iter().filter(|chain| chain.state == ChainState::Active))
            .map(|chain| self.as_overdue(chain))
            .filter(|found| match orphans_until {
                Some(until) => found.watch_at <= until && found.holder == Holder::Gone,
                None => found.watch_at <= now && (!found.holder.runs() || found.claim.0 == session),
            })
            .collect();
        found.sort_by_key(|found| found.watch_at);
        found
    }

    /// [`crate::Sessions::begin_session`]; `session` must be new.
    pub fn begin_session(&mut self, session: i64) {
        self.sessions.push(session);
    }

    /// [`crate::Sessions::end_session`]
    pub fn end_session(&mut self, session: i64) {
        self.sessions.retain(|other| *other != session);
    }

    /// [`crate::Sessions::give_up`], of one claim.
    pub fn give_up(&mut self, session: i64, claim: ClaimId) {
        let held =
            |chain: &&mut Chain| (chain.epoch, chain.fence, chain.session) == (claim.epoch, claim.fence, session);
        if let Some(chain) = self.chains.iter_mut().find(held) {
            chain.session = 0;
            self.end(claim.fence, End::Excused, true);
        }
    }

    /// [`crate::ChainOrders::order_chains`], for the chain with this key and its manual run, or for all.
    pub fn order(&mut self, key: Option<&str>, order: ChainOrder, now: Time) {
        let fits = |chain: &Chain| key.is_none_or(|key| key == chain.key);
        let mut recovered = Vec::new();
        for chain in self.chains.iter_mut().filter(|chain| fits(chain)) {
            match (order, chain.state) {
                (ChainOrder::Pause, ChainState::Active) => chain.state = ChainState::Paused,
                (ChainOrder::Resume, ChainState::Paused) => {
                    (chain.state, chain.sent, chain.looks) = (ChainState::Active, false, 0);
                    (chain.expected, chain.watch_at) = (chain.due.max(now), now);
                }
                (ChainOrder::Retire, _) => chain.state = ChainState::Retired,
                (ChainOrder::RecoverAll, ChainState::Retired) if chain.once => chain.started_tick = chain.tick,
                (ChainOrder::RecoverAll, ChainState::Retired) => {}
                (ChainOrder::RecoverAll, _) | (ChainOrder::Recover, ChainState::Quarantined) => {
                    recovered.push(chain.epoch);
                }
                _ => {}
            }
        }
        recovered.sort_unstable();
        for epoch in recovered {
            self.carry_out(&BeginAnew(epoch), now);
        }
    }

    /// The record of an attempt that has no end, though the chain is not held by that claim: there must be none.
    pub fn left_open(&self) -> Option<Fence> {
        let held = |fence: Fence| self.chains.iter().any(|chain| chain.fence == fence && chain.session != 0);
        let open = |attempt: &&Attempt| attempt.end == End::Open && !held(attempt.fence);
        self.attempts.iter().find(open).map(|attempt| attempt.fence)
    }

    /// The records by which the deaths are counted of workers that ran this chain's attempt: the last first.
    pub fn walk(&self, fence: Fence) -> Vec<Attempt> {
        let of = |fence: Fence| self.attempts.iter().find(|attempt| attempt.fence == fence).copied();
        let mut walk: Vec<Attempt> = of(fence).into_iter().collect();
        while let Some(last) = walk.last() {
            let same = |a: &Attempt| (a.epoch, a.tick, a.attempt) == (last.epoch, last.tick, last.attempt);
            let counts = |a: &Attempt| matches!(a.end, End::Lost | End::Excused | End::Fenced);
            match of(last.previous).filter(|before| same(before) && counts(before)) {
                Some(before) => walk.push(before),
                None => break,
            }
        }
        walk
    }

    fn as_overdue(&self, chain: &Chain) -> Overdue {
        Overdue {
            hint: chain.hint(),
            sent: chain.sent,
            expected: chain.expected,
            watch_at: chain.watch_at,
            looks: chain.looks,
            holder: match chain.session {
                0 => Holder::None,
                session if self.sessions.contains(&session) => Holder::Alive,
                _ => Holder::Gone,
            },
            claim: (chain.session, chain.fence),
        }
    }

    fn end(&mut self, fence: Fence, end: End, only_if_open: bool) {
        let may = |end: End| end == End::Open || (end == End::Lost && !only_if_open);
        if let Some(attempt) = self.attempts.iter_mut().find(|attempt| attempt.fence == fence && may(attempt.end)) {
            attempt.end = end;
        }
    }

    fn load(&self, page: &mut Page, wanted: &Wanted) {
        let named = |chain: &Chain| wanted.names.iter().any(|(kind, key)| kind == KIND && key == chain.key);
        let is = |chain: &&Chain| wanted.epochs.get(chain.epoch).is_some() || named(chain);
        let mut chains: Vec<&Chain> = self.chains.iter().filter(is).collect();
        chains.sort_by_key(|chain| chain.epoch);
        chains.into_iter().for_each(|chain| page.add(chain.held()));
    }

    /// As `transact` in `postgres/group.rs` does it.
    fn carry_out<V: Decide>(&mut self, verb: &V, now: Time) -> V::Answer {
        let mut wanted = Wanted::default();
        verb.wants(&mut wanted);
        let mut page = Page::default();
        self.load(&mut page, &wanted);
        let mut further = Wanted::default();
        verb.wants_further(&mut page, &mut further);
        self.load(&mut page, &further);
        page.judge_holders(&self.sessions);
        for fence in page.left_over(&wanted.taken_over) {
            let died = self.walk(fence).iter().filter(|attempt| matches!(attempt.end, End::Open | End::Lost)).count();
            page.count_deaths(fence, u32::try_from(died).unwrap_or(u32::MAX));
        }
        let fences = (self.next_fence..).take(usize::try_from(wanted.fences).unwrap_or_default());
        let epochs = (self.next_epoch..).take(usize::try_from(wanted.new_epochs).unwrap_or_default());
        page.begin(now, fences, epochs);
        let answer = verb.decide(&mut page);
        assert!(!page.overdrawn(), "a verb has taken more fences or epochs than it asked for");
        self.write(page);
        answer
    }

    fn write(&mut self, page: Page) {
        for row in page.rows().iter().filter(|row| row.moved || row.renamed) {
            if let Some(chain) = self.chains.iter_mut().find(|chain| chain.epoch == row.found_as) {
                chain.take(row);
                // Numbers that were taken and not used are lost, as those of PostgreSQL's sequences are.
                self.next_epoch = self.next_epoch.max(chain.epoch.get() + 1);
            }
        }
        for ((_, key, once, _), new) in &page.writes.inserted {
            self.next_epoch = self.next_epoch.max(new.epoch.get() + 1);
            self.chains.push(Chain {
                key: KEYS.into_iter().find(|known| known == key).unwrap_or_default(),
                once: *once,
                manual: new.manual,
                epoch: new.epoch,
                tick: TickNo::FIRST,
                attempt: 1,
                due: new.due,
                state: ChainState::Active,
                session: 0,
                sent: false,
                beside: new.beside,
                started_tick: TickNo::NONE,
                last_start: Time::default(),
                last_finish: Time::default(),
                fence: Fence::NONE,
                watch_at: new.watch_at,
                looks: 0,
                expected: new.due,
            });
        }
        for begun in &page.writes.begun {
            self.next_fence = self.next_fence.max(begun.fence.get() + 1);
            self.attempts.push(Attempt {
                fence: begun.fence,
                epoch: begun.epoch,
                tick: begun.tick,
                attempt: begun.attempt,
                previous: begun.previous,
                end: End::Open,
            });
        }
        for (fence, ended) in page.writes.ended.iter() {
            let end = match (ended.verdict, &ended.reason) {
                ("lost", None) => End::Lost,
                ("lost", Some(_)) => End::Excused,
                ("fenced", _) => End::Fenced,
                _ => End::Finished,
            };
            self.end(fence, end, ended.only_if_open);
        }
        for (id, job) in &page.writes.jobs {
            match job {
                Job::Forget => self.jobs.retain(|kept| kept != id),
                Job::Put(..) | Job::Add(..) | Job::Anew(..) if self.jobs.contains(id) => {}
                Job::Put(..) | Job::Add(..) | Job::Anew(..) => self.jobs.push(id.clone()),
            }
        }
        let counted: Vec<Fence> =
            self.chains.iter().flat_map(|chain| self.walk(chain.fence)).map(|attempt| attempt.fence).collect();
        self.attempts.retain(|attempt| attempt.end == End::Open || counted.contains(&attempt.fence));
    }
}

/// The keys that chains can have.
pub const KEYS: [&str; 2] = ["a", "b"];

impl Chain {
    /// Its current message.
    pub fn hint(&self) -> Hint {
        Hint {
            kind: KIND.into(),
            key: self.key.into(),
            queue: QUEUE.into(),
            epoch: self.epoch,
            tick: self.tick,
            attempt: self.attempt,
            due: self.due,
            parent: Epoch::NONE,
            priority: None,
        }
    }

    fn held(&self) -> Held {
        Held {
            found_as: self.epoch,
            chain: ChainRow {
                hint: self.hint(),
                state: self.state,
                nominal: self.due,
                holder: if self.session == 0 { Holder::None } else { Holder::Alive },
                session: self.session,
                deaths: 0,
                sent: self.sent,
                once: self.once,
                manual: self.manual,
                beside: self.beside,
                started_tick: self.started_tick,
                last_start: self.last_start,
                last_finish: self.last_finish,
                batch_open: 0,
                schedule: None,
            },
            fence: self.fence,
            watch_at: self.watch_at,
            looks: self.looks,
            expected: self.expected,
            batch_total: 0,
            batch_failed: 0,
            owner: None,
            payload: String::new(),
            carry: None,
            learned: None,
            depth: 0,
            moved: false,
            renamed: false,
            carries: false,
            learns: false,
        }
    }

    fn take(&mut self, row: &Held) {
        let (chain, hint) = (&row.chain, &row.chain.hint);
        (self.epoch, self.tick, self.attempt, self.due) = (hint.epoch, hint.tick, hint.attempt, hint.due);
        (self.state, self.session, self.sent) = (chain.state, chain.session, chain.sent);
        (self.manual, self.beside, self.started_tick) = (chain.manual, chain.beside, chain.started_tick);
        (self.last_start, self.last_finish) = (chain.last_start, chain.last_finish);
        (self.fence, self.watch_at, self.looks, self.expected) = (row.fence, row.watch_at, row.looks, row.expected);
    }
}

/// [`ChainOrder::Recover`]
struct BeginAnew(Epoch);

impl Decide for BeginAnew {
    type Answer = ();

    fn wants(&self, wanted: &mut Wanted) {
        wanted.epoch(self.0, false);
        wanted.new_epochs += 1;
    }

    fn decide(&self, page: &mut Page) {
        let (now, epoch) = (page.now, page.take_epoch());
        let Some(held) = page.new_epoch(self.0, epoch) else { return };
        (held.chain.nominal, held.chain.hint.due, held.expected, held.watch_at) = (now, now, now, now);
        if held.chain.state != ChainState::Paused {
            held.chain.state = ChainState::Active;
        }
    }
}
