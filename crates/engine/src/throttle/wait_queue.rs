//! Who waits for the slots of one key of a throttle.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use roundelay_model::clock::Time;
use roundelay_model::pacing::fair::{FairLine, Shares, Tenant};
use roundelay_model::pacing::slots::{Feedback, GrantResponse, Micros, StartRequest};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::{Slot, Want};
use crate::telemetry::figures::SlotCounts;

/// What remains of a budget is told no more often.
const BUDGETS_APART: Duration = Duration::from_secs(1);

/// What was heard of failures and budgets is remembered for this long when no job waits.
const NEWS: Duration = Duration::from_secs(600);
/// When the next slot opens, or a hold ends, is believed for this long: an operator may release it, or allow more. A
/// line is kept for it if that is farther away.
const BELIEVED: Duration = Duration::from_secs(5);

/// Those who wait, and slots that were handed back.
pub struct WaitQueue {
    inner: Mutex<Inner>,
    /// The weights of tenants.
    shares: Arc<Shares>,
    /// A waiter has come that cannot wait until the next slot is asked for, or has handed a slot back.
    urgent: Notify,
    counts: SlotCounts,
}

#[derive(Default)]
struct Inner {
    waiting: BTreeMap<Class, FairLine<Place, Waiter>>,
    /// What tenants have had is remembered until then: as long as the last start is worth.
    used_until: Option<Instant>,
    /// How many have ever come; orders equals.
    arrivals: u64,
    /// Slots that were handed back.
    spare: Vec<Slot>,
    /// Whether a task serves the queue.
    attended: bool,
    /// What is to be told, and whom to tell that it was.
    words: Vec<(Feedback, oneshot::Sender<()>)>,
    /// Nothing starts before.
    held_until: Option<Instant>,
    /// No slot of the throttle opens before.
    next: Option<Instant>,
    /// When that was heard, or that it is held.
    heard: Option<Instant>,
    /// There were failures, as was last heard then.
    failing: Option<Instant>,
    /// A budget slows it, as was last heard then.
    slowed: Option<Instant>,
    /// When a budget was told last.
    budget_told: Option<Instant>,
}

/// A job that waits for a slot.
struct Waiter {
    slot: oneshot::Sender<Slot>,
    /// A slot that opens later is none for him.
    until: Option<Instant>,
}

/// Words that are on their way, and whom to tell.
pub type Told = Vec<(Feedback, oneshot::Sender<()>)>;

/// The highest priority first. In each of them, those that ask for one more start of a run that has begun are first: it
/// holds a place of its queue until it ends.
type Class = (Reverse<i32>, Reverse<bool>);

/// A place among those of one class and tenant, the first the smallest: the job that is due first, then the job that came
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    due: Time,
    arrival: u64,
    cost: u32,
    probe: bool,
}

impl Place {
    fn cost(self) -> u32 {
        self.cost
    }
}

/// A place in a queue. Within a class tenants have turns; where nothing is shared, there is one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rank {
    class: Class,
    tenant: Tenant,
    place: Place,
}

impl Rank {
    /// How many starts it counts for.
    pub fn cost(&self) -> u32 {
        self.place.cost
    }

    /// Whether it is part of a start that tries whether the upstream works again.
    pub fn is_of_probe(&self) -> bool {
        self.place.probe
    }

    /// Whether a slot is enough for this waiter, and not another's.
    fn takes(&self, slot: &Slot) -> bool {
        self.place.cost <= slot.cost && self.place.probe >= slot.besides
    }
}

/// A place in a line, and the slot that comes of it.
pub struct Joined {
    /// The place.
    pub rank: Rank,
    /// The slot; gone when none opens in time.
    pub slot: oneshot::Receiver<Slot>,
}

impl WaitQueue {
    /// An empty queue.
    pub fn new(counts: SlotCounts, shares: Arc<Shares>) -> Self {
        Self { inner: Mutex::default(), shares, urgent: Notify::new(), counts }
    }

    /// What becomes of its slots.
    pub fn counts(&self) -> &SlotCounts {
        &self.counts
    }

    /// Joins it, for a slot that opens before `until`. Answers also whether no task serves the queue yet: the caller
    /// sees to that.
    pub fn join(&self, want: Want, until: Option<Instant>) -> (Joined, bool) {
        let (sender, slot) = oneshot::channel();
        let mut inner = self.inner();
        inner.arrivals += 1;
        let Want { priority, begun, tenant, due, cost, probe } = want;
        let class = (Reverse(priority), Reverse(begun));
        let place = Place { due, arrival: inner.arrivals, cost: cost.max(1), probe };
        let urgent =
            probe || inner.first().is_none_or(|first| class < first.class || inner.precedes(class, &tenant, &first));
        let line = inner.waiting.entry(class).or_insert_with(|| FairLine::new(self.shares.clone()));
        line.join(&tenant, place, Waiter { slot: sender, until }, 0);
        let rank = Rank { class, tenant, place };
        let first = !std::mem::replace(&mut inner.attended, true);
        drop(inner);
        if urgent {
            self.urgent.notify_one();
        }
        (Joined { rank, slot }, first)
    }

    /// Leaves it, if the place was not served.
    pub fn leave(&self, rank: &Rank) {
        let mut inner = self.inner();
        let left = inner.waiting.get_mut(&rank.class).and_then(|line| line.leave(&rank.tenant, rank.place));
        let left = left.is_some() && inner.is_empty();
        drop(inner);
        if left {
            // The task that serves the queue has no waiter any more.
            self.urgent.notify_one();
        }
    }

    /// How many starts go before one that comes now.
    pub fn cost_before(&self, want: &Want) -> u64 {
        let inner = self.inner();
        let class = (Reverse(want.priority), Reverse(want.begun));
        let last = Place { due: want.due, arrival: u64::MAX, cost: 0, probe: false };
        let higher = inner.waiting.range(..class).flat_map(|(_, line)| line.keys()).map(|place| u64::from(place.cost));
        let equal = inner.waiting.get(&class).map_or(0, |line| line.cost_before(&want.tenant, last, Place::cost));
        higher.sum::<u64>() + equal
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.inner().waiting.values().map(FairLine::len).sum()
    }

    /// When the first was due, and whether its tenant is a newcomer: it has had nothing that others have not had.
    pub fn first(&self) -> Option<(Time, bool)> {
        let inner = self.inner();
        let first = inner.first()?;
        let line = inner.waiting.get(&first.class)?;
        Some((first.place.due, !line.is_in_debt(&first.tenant)))
    }

    /// Those in front, and what they request for.
    pub fn requests(&self, most: usize) -> Vec<(Rank, StartRequest)> {
        let request = |rank: Rank| {
            let request = StartRequest { priority: rank.class.0.0, cost: rank.place.cost, probe: rank.place.probe };
            (rank, request)
        };
        self.inner().ranks(most).into_iter().map(request).collect()
    }

    /// What tenants have had counts at least until then.
    pub fn used_until(&self, until: Instant) {
        let mut inner = self.inner();
        inner.used_until = inner.used_until.max(Some(until));
    }

    /// Until when to remember what tenants have had, though none waits. It is forgotten when that is over.
    pub fn remembers_until(&self) -> Option<Instant> {
        let mut inner = self.inner();
        let until = inner.used_until.filter(|until| *until > Instant::now());
        if until.is_none() && inner.is_empty() {
            inner.waiting.clear();
        }
        until
    }

    /// Whether nothing is kept of any tenant.
    #[cfg(test)]
    pub fn remembers_nothing(&self) -> bool {
        self.inner().waiting.is_empty()
    }

    /// Gives a slot to the waiter with this rank, or else to the first waiter for which it is enough.
    pub fn give(self: &Arc<Self>, rank: Option<&Rank>, slot: Slot) {
        let waiter = rank.and_then(|rank| self.inner().take(rank));
        match waiter {
            Some(waiter) => self.send(waiter, slot),
            None => self.inner().spare.push(slot),
        }
        self.pass_on();
    }

    /// Takes back a slot that was not used.
    pub fn hand_back(&self, slot: Slot) {
        self.inner().spare.push(slot);
        self.urgent.notify_one();
    }

    /// Gives what was handed back to those in front.
    pub fn pass_on(self: &Arc<Self>) {
        loop {
            let mut inner = self.inner();
            let now = Instant::now();
            let before = inner.spare.len();
            let tried = |slot: &Slot| slot.expires < now && slot.probe && !slot.besides;
            if inner.spare.iter().any(tried) {
                // No other worker would probe before this one's time was over.
                inner.words.push((Feedback::Lost, oneshot::channel().0));
            }
            inner.spare.retain(|slot| slot.expires >= now);
            self.counts.unused.inc_by((before - inner.spare.len()) as u64);
            if inner.spare.is_empty() {
                return;
            }
            let ranks = inner.ranks(usize::MAX);
            let fits = |slot: &Slot| ranks.iter().find(|rank| rank.takes(slot));
            let Some((at, rank)) = inner.spare.iter().enumerate().find_map(|(at, slot)| Some((at, fits(slot)?))) else {
                return;
            };
            let slot = inner.spare.swap_remove(at);
            let Some(waiter) = inner.take(rank) else { return };
            drop(inner);
            self.send(waiter, slot);
        }
    }

    /// A waiter that has gone meanwhile drops the slot, and so hands it back.
    fn send(self: &Arc<Self>, waiter: Waiter, slot: Slot) {
        drop(waiter.slot.send(slot.of(self.clone())));
    }

    /// Sends away those for whom the next slot opens too late. Answers whether no waiter is left.
    pub fn drop_hopeless(&self) -> bool {
        let mut inner = self.inner();
        let next = inner.next;
        let in_time = |waiter: &Waiter| waiter.until.is_none_or(|until| next.is_none_or(|next| next <= until));
        inner.waiting.values_mut().for_each(|line| line.retain(in_time));
        inner.is_empty()
    }

    /// Notes how the throttle stands, by an answer that comes `here`, from when it was `now`.
    pub fn learn(&self, here: Instant, now: Micros, answer: &GrantResponse) {
        let when = |at: Micros| here + Duration::from_micros(at.saturating_sub(now).max(0) as u64);
        let mut inner = self.inner();
        (inner.failing, inner.slowed) = (answer.failing.then_some(here), answer.slowed.then_some(here));
        let held = answer.held_until.map(when);
        (inner.next, inner.heard) = (answer.again.map(when), Some(here));
        // What is still to be told may hold it longer.
        inner.held_until = match inner.words.is_empty() {
            true => held,
            false => inner.held_until.max(held),
        };
    }

    /// Has `word` told, after which the receiver hears of it. Answers also whether no task serves the queue yet.
    pub fn tell(&self, word: Feedback) -> (oneshot::Receiver<()>, bool) {
        let (done, heard) = oneshot::channel();
        let mut inner = self.inner();
        inner.words.push((word, done));
        let first = !std::mem::replace(&mut inner.attended, true);
        drop(inner);
        self.urgent.notify_one();
        (heard, first)
    }

    /// What is to be told.
    pub fn words(&self) -> Told {
        std::mem::take(&mut self.inner().words)
    }

    /// It could not be told.
    pub fn keep(&self, told: Told) {
        let mut inner = self.inner();
        inner.words.splice(0..0, told);
    }

    /// Nothing of this line starts before `until`, in this worker.
    pub fn hold(&self, until: Instant) {
        let mut inner = self.inner();
        (inner.held_until, inner.heard) = (inner.held_until.max(Some(until)), Some(Instant::now()));
        self.counts.held.inc_by(inner.spare.len() as u64);
        inner.spare.clear();
    }

    /// Until when nothing starts, as far as this worker knows.
    pub fn held_until(&self) -> Option<Instant> {
        self.inner().held_until.filter(|until| *until > Instant::now())
    }

    /// Before when no slot opens, as far as this worker has heard just now.
    pub fn opens(&self) -> Option<Instant> {
        self.inner().opens(Instant::now())
    }

    /// Whether a start that works is news.
    pub fn is_failing(&self) -> bool {
        self.inner().failing.is_some()
    }

    /// Whether what remains of a budget is news: when it is scarce or slows already, but not too often, unless
    /// nothing remains.
    pub fn wants_budget(&self, remaining: u32, enough: u32) -> bool {
        let mut inner = self.inner();
        let now = Instant::now();
        let recently = inner.budget_told.is_some_and(|at| now < at + BUDGETS_APART);
        let news = remaining == 0 || !recently && (remaining < enough || inner.slowed.is_some());
        if news {
            inner.budget_told = Some(now);
        }
        news
    }

    /// Ends the service of the queue when no job waits.
    pub fn close_if_empty(&self) -> bool {
        let mut inner = self.inner();
        let empty = inner.is_empty() && inner.words.is_empty();
        inner.attended = !empty;
        empty
    }

    /// Whether anything is known of it that a new one would not know.
    pub fn is_needed(&self) -> bool {
        let inner = self.inner();
        let now = Instant::now();
        let news = |heard: Option<Instant>| heard.is_some_and(|heard| now < heard + NEWS);
        let far = inner.opens(now).is_some_and(|until| until > now + BELIEVED);
        inner.attended || far || news(inner.failing) || news(inner.slowed)
    }

    /// Makes the task that serves the queue ask again at once.
    pub fn hurry(&self) {
        self.urgent.notify_one();
    }

    /// Waits until there is something that cannot wait.
    pub async fn urged(&self) {
        self.urgent.notified().await;
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

impl Inner {
    fn is_empty(&self) -> bool {
        self.waiting.values().all(FairLine::is_empty)
    }

    /// Those in front, in their order.
    fn ranks(&self, most: usize) -> Vec<Rank> {
        let mut ranks = Vec::new();
        for (class, line) in &self.waiting {
            let order = line.order(most - ranks.len(), Place::cost).into_iter();
            ranks.extend(order.map(|(tenant, place)| Rank { class: *class, tenant, place }));
        }
        ranks
    }

    fn first(&self) -> Option<Rank> {
        self.ranks(1).pop()
    }

    /// Whether `tenant` has its turn before `first`, because it is a newcomer and that is none.
    fn precedes(&self, class: Class, tenant: &Tenant, first: &Rank) -> bool {
        let line = self.waiting.get(&class).filter(|_| class == first.class);
        line.is_some_and(|line| line.is_in_debt(&first.tenant) && !line.is_in_debt(tenant))
    }

    /// Takes a waiter out, and charges its tenant.
    fn take(&mut self, rank: &Rank) -> Option<Waiter> {
        let Rank { class, tenant, place } = rank;
        let waiter = self.waiting.get_mut(class)?.take(tenant, *place, 0, place.cost)?;
        let (priority, Reverse(begun)) = *class;
        // What a run that has begun takes counts for its tenant among those that have not, too.
        if begun && let Some(others) = self.waiting.get_mut(&(priority, Reverse(false))) {
            others.charge(tenant, place.cost);
        }
        Some(waiter)
    }

    fn opens(&self, now: Instant) -> Option<Instant> {
        let believed = self.heard.is_some_and(|heard| now < heard + BELIEVED);
        self.next.max(self.held_until).filter(|until| believed && *until > now)
    }
}

impl Drop for WaitQueue {
    /// The queue of a key in which no job waits any more.
    fn drop(&mut self) {
        self.counts.unused.inc_by(self.inner().spare.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn line() -> Arc<WaitQueue> {
        Arc::new(WaitQueue::new(SlotCounts::default(), Arc::default()))
    }

    fn hold() -> Feedback {
        Feedback::Hold { until: 0, why: "ban".into() }
    }

    #[tokio::test(start_paused = true)]
    async fn hold_on_its_way_to_the_ledger_survives_an_older_answer() {
        let line = line();
        let _done = line.tell(hold());
        line.hold(Instant::now() + HOUR);
        line.learn(Instant::now(), 0, &GrantResponse::default());
        assert!(line.held_until().is_some());
        // Another word was told, and while that was on its way, it was held.
        let told = line.words();
        let _done = line.tell(hold());
        line.learn(Instant::now(), 0, &GrantResponse::default());
        assert!(line.held_until().is_some());
        // Once it was told, the answer counts: it may have been released.
        drop((told, line.words()));
        line.learn(Instant::now(), 0, &GrantResponse::default());
        assert_eq!(line.held_until(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn feedback_that_was_not_sent_is_sent_again_in_order() {
        let line = line();
        let failed = Feedback::Spent { cost: 1 };
        let (_first, began) = line.tell(failed.clone());
        assert!(began, "somebody has to serve it");
        let told = line.words();
        let (_second, began) = line.tell(hold());
        assert!(!began);
        line.keep(told);
        let words: Vec<Feedback> = line.words().into_iter().map(|(word, _)| word).collect();
        assert_eq!(words, [failed, hold()]);
    }

    #[tokio::test(start_paused = true)]
    async fn wait_queue_is_kept_for_what_a_new_one_would_not_know() {
        let answers = [
            (GrantResponse::default(), false),
            (GrantResponse { failing: true, ..GrantResponse::default() }, true),
            (GrantResponse { slowed: true, ..GrantResponse::default() }, true),
            (GrantResponse { again: Some(3_600_000_000), ..GrantResponse::default() }, true),
            (GrantResponse { again: Some(1_000_000), ..GrantResponse::default() }, false),
            (GrantResponse { held_until: Some(3_600_000_000), ..GrantResponse::default() }, true),
        ];
        for (answer, needed) in answers {
            let line = line();
            line.learn(Instant::now(), 0, &answer);
            assert_eq!(line.is_needed(), needed, "{answer:?}");
            tokio::time::advance(HOUR).await;
            assert!(!line.is_needed(), "{answer:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slot_handed_back_by_a_probe_lets_no_other_job_start() {
        let line = line();
        let slot = |besides| {
            let opens = Instant::now();
            Slot { opens, expires: opens + HOUR, cost: 1, probe: true, besides, gate: None, line: None }
        };
        let want = |probe| Want { cost: 1, probe, ..Want::default() };
        let mut waits = line.join(want(false), None).0.slot;
        line.give(None, slot(true));
        assert!(waits.try_recv().is_err());
        let mut tries = line.join(want(true), None).0.slot;
        line.pass_on();
        assert!(tries.try_recv().is_ok() && waits.try_recv().is_err());
        line.give(None, slot(false));
        assert!(waits.try_recv().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn probe_slot_without_a_waiter_is_reported_lost() {
        for (probe, lost) in [(true, vec![Feedback::Lost]), (false, vec![])] {
            let line = line();
            let opens = Instant::now();
            line.give(None, Slot { opens, expires: opens, cost: 1, probe, besides: false, gate: None, line: None });
            tokio::time::advance(HOUR).await;
            line.pass_on();
            assert_eq!(line.words().into_iter().map(|(word, _)| word).collect::<Vec<_>>(), lost);
        }
    }
}
