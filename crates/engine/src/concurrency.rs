//! How many jobs of a queue run at the same time. The lanes of a queue share the limit.
//!
//! A higher lane has the next place, and a lower one its least share, as with the slots of a throttle. A job that
//! has a place and only waits for a slot makes way for a higher lane, or else a worker with little room would
//! hold what is urgent up behind what is not.
//!
//! Within a lane who came first is first. On a fair queue the tenants of a lane share the time of the places instead, as
//! [`roundelay_model::pacing::fair`] says. There a job that only waits for a slot also makes way for a tenant that has
//! fewer places for its weight, or else a flood could keep all places while it waits. That tenant gets the very place: were
//! it the next one's by turn, that could be the flood again, and the two would make way for each other without end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use roundelay_model::pacing::fair::{FairLine, Shares, Tenant};
use roundelay_model::pacing::slots::MIN_SHARE_DIVISOR;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The places of a queue.
pub struct ConcurrencyLimit {
    inner: Mutex<Inner>,
    /// Where tenants share the places: their weights.
    shares: Option<Arc<Shares>>,
    began: Instant,
}

#[derive(Default)]
struct Inner {
    /// Below zero while more are taken than there are places, since there were more.
    free: isize,
    places: isize,
    /// Who waits for a place, by lane.
    waiting: BTreeMap<u8, Line>,
    /// How many have ever waited in fair lines; orders equals.
    arrivals: u64,
    /// Places that went to higher lanes while a job of this lane waited.
    passed: BTreeMap<u8, u32>,
    /// The last place went to a lower lane than the highest that waited.
    lower: bool,
    /// Who has a place and would make way, the lowest lane first.
    idle: BTreeMap<(u8, u64), Idler>,
    /// How many ever were.
    idlers: u64,
    /// Places of fair lines that are about to be given up: whose they are, and for which tenant.
    leaving: BTreeMap<(u8, u64), (Tenant, Option<Tenant>)>,
}

type Waiter = oneshot::Sender<RunPlace>;

/// Who waits in a lane.
enum Line {
    /// Who came first is first. Some may have gone.
    FirstCome(VecDeque<Waiter>),
    /// By the turns of tenants, equals by their arrival. It is kept while none waits, for the places that are in use.
    Fair(FairLine<u64, Waiter>),
}

impl Line {
    fn is_empty(&self) -> bool {
        match self {
            Self::FirstCome(line) => line.is_empty(),
            Self::Fair(line) => line.is_empty(),
        }
    }

    /// How many wait, without those that have gone.
    fn waiting(&self) -> usize {
        match self {
            Self::FirstCome(line) => line.iter().filter(|waiter| !waiter.is_closed()).count(),
            Self::Fair(line) => line.len(),
        }
    }

    fn fair(&self) -> Option<&FairLine<u64, Waiter>> {
        match self {
            Self::FirstCome(_) => None,
            Self::Fair(line) => Some(line),
        }
    }

    fn fair_mut(&mut self) -> Option<&mut FairLine<u64, Waiter>> {
        match self {
            Self::FirstCome(_) => None,
            Self::Fair(line) => Some(line),
        }
    }
}

/// Who would make way: how it is asked, and for whom it has its place.
struct Idler {
    ask: oneshot::Sender<Option<Tenant>>,
    tenant: Option<Tenant>,
}

/// A place, given back when it is dropped.
pub struct RunPlace {
    room: Arc<ConcurrencyLimit>,
    lane: u8,
    /// It was had as a lane's least share, and is not given up.
    owed: bool,
    /// In a fair line: for whom it is used, and since when.
    used: Option<(Tenant, u64)>,
    /// In a fair line: the tenant for which it is given up.
    promised: Option<Tenant>,
}

impl ConcurrencyLimit {
    /// At most `places` run at the same time. With `shares`, tenants share them.
    pub fn new(places: usize, shares: Option<Arc<Shares>>) -> Arc<Self> {
        let places = counted(places);
        let inner = Mutex::new(Inner { free: places, places, ..Inner::default() });
        Arc::new(Self { inner, shares, began: Instant::now() })
    }

    /// There are `places` from now on. Those that are taken stay so until they are given back.
    pub fn resize(self: &Arc<Self>, places: usize) {
        {
            let mut inner = self.inner();
            let places = counted(places);
            inner.free += places - inner.places;
            inner.places = places;
        }
        self.pass_on();
    }

    /// How many places are free.
    pub fn free(&self) -> usize {
        usize::try_from(self.inner().free).unwrap_or(0)
    }

    /// How many wait for a place.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.inner().waiting.values().map(Line::waiting).sum()
    }

    /// How many of `tenant` wait for a place, if tenants share the places.
    #[cfg(test)]
    pub fn waiting_of(&self, tenant: &str) -> usize {
        self.inner().waiting.values().filter_map(Line::fair).map(|line| line.len_of(tenant)).sum()
    }

    /// Waits for a place, for `tenant` if tenants share the places. A wait that is given up costs none.
    pub async fn enter(self: &Arc<Self>, lane: u8, tenant: &Tenant) -> RunPlace {
        let (place, _waits) = {
            let mut inner = self.inner();
            if inner.free > 0 {
                inner.free -= 1;
                let used = self.shares.as_ref().map(|_| (tenant.clone(), self.now()));
                if let Some((tenant, now)) = &used
                    && let Line::Fair(line) = inner.line(lane, self)
                {
                    line.occupy(tenant, *now);
                }
                return self.place(lane, false, used);
            }
            let (sender, place) = oneshot::channel();
            inner.arrivals += 1;
            let key = inner.arrivals;
            let waits = match inner.line(lane, self) {
                Line::FirstCome(line) => {
                    line.push_back(sender);
                    None
                }
                Line::Fair(line) => {
                    line.join(tenant, key, sender, self.now());
                    Some(Waits { room: self, lane, tenant, key })
                }
            };
            match inner.idle.first_key_value().map(|(key, _)| *key).filter(|(of, _)| *of < lane) {
                Some(lower) => inner.ask(lower, None),
                None => inner.make_room(lane, tenant, self),
            }
            (place, waits)
        };
        match place.await {
            Ok(place) => place,
            // Its senders live as long as the room.
            Err(_) => std::future::pending().await,
        }
    }

    /// Gives free places to those whose turn it is.
    fn pass_on(self: &Arc<Self>) {
        loop {
            let mut inner = self.inner();
            let Some((lane, owed)) = inner.turn() else {
                if inner.free > 0 {
                    inner.waiting.values_mut().filter_map(Line::fair_mut).for_each(FairLine::relax);
                }
                return;
            };
            let next = match inner.waiting.get_mut(&lane) {
                Some(Line::FirstCome(line)) => line.pop_front().map(|waiter| (waiter, None)),
                Some(Line::Fair(line)) => {
                    let now = self.now();
                    line.next(now).and_then(|(tenant, key)| {
                        let waiter = line.take(&tenant, key, now, 0)?;
                        line.occupy(&tenant, now);
                        Some((waiter, Some((tenant, now))))
                    })
                }
                None => None,
            };
            let Some((waiter, used)) = next else { return };
            inner.free -= 1;
            drop(inner);
            // A waiter that has gone meanwhile drops the place, and so gives it back.
            drop(waiter.send(self.place(lane, owed, used)));
        }
    }

    fn place(self: &Arc<Self>, lane: u8, owed: bool, used: Option<(Tenant, u64)>) -> RunPlace {
        RunPlace { room: self.clone(), lane, owed, used, promised: None }
    }

    /// Microseconds since it was made.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

fn counted(places: usize) -> isize {
    isize::try_from(places).unwrap_or(isize::MAX / 2)
}

impl Inner {
    /// The lane that has the next place, and whether that is a lower one's share.
    fn turn(&mut self) -> Option<(u8, bool)> {
        for line in self.waiting.values_mut() {
            if let Line::FirstCome(line) = line {
                while line.front().is_some_and(oneshot::Sender::is_closed) {
                    line.pop_front();
                }
            }
        }
        let waiting = &self.waiting;
        let lanes = || waiting.iter().filter(|(_, line)| !line.is_empty()).map(|(lane, _)| *lane);
        let highest = lanes().next_back().filter(|_| self.free > 0)?;
        self.passed.retain(|lane, _| waiting.get(lane).is_some_and(|line| !line.is_empty()));
        let passed = |lane: &u8| self.passed.get(lane).copied().unwrap_or_default();
        let due = lanes().filter(|lane| passed(lane) + 1 >= MIN_SHARE_DIVISOR && !self.lower);
        let lane = due.max_by_key(passed).unwrap_or(highest);
        self.lower = lane < highest;
        for of in lanes().take_while(|of| *of < lane) {
            *self.passed.entry(of).or_default() += 1;
        }
        self.passed.remove(&lane);
        Some((lane, self.lower))
    }

    fn line(&mut self, lane: u8, room: &ConcurrencyLimit) -> &mut Line {
        self.waiting.entry(lane).or_insert_with(|| match &room.shares {
            None => Line::FirstCome(VecDeque::new()),
            Some(shares) => Line::Fair(FairLine::new(shares.clone())),
        })
    }

    /// Asks a job that only waits for a slot to give its place up: `to` a tenant, or to the next.
    fn ask(&mut self, idle: (u8, u64), to: Option<Tenant>) {
        let Some(Idler { ask, tenant }) = self.idle.remove(&idle) else { return };
        // A job that has begun meanwhile does not listen any more.
        let _ = ask.send(to.clone());
        if let Some(tenant) = tenant {
            self.leaving.insert(idle, (tenant, to));
        }
    }

    /// Asks for the place of a job that only waits for a slot, if `tenant` is next and the place is due to it.
    fn make_room(&mut self, lane: u8, tenant: &Tenant, room: &ConcurrencyLimit) {
        let Some(shares) = &room.shares else { return };
        let idle = self.idle.range((lane, 0)..=(lane, u64::MAX)).filter_map(|(key, idler)| {
            let of = idler.tenant.as_ref()?;
            self.is_due_from(lane, of, tenant, shares).then(|| (self.places_of(lane, of), *key))
        });
        // Of the tenant with the most places, the one that has waited least.
        let Some((_, key)) = idle.max() else { return };
        let next = self.waiting.get(&lane).and_then(|line| line.fair()?.next(room.now()));
        if next.is_some_and(|(next, _)| next == *tenant) {
            self.ask(key, Some(tenant.clone()));
        }
    }

    /// Whether a place of `of` is due to `tenant`: with it, it has no more for its weight than the other without it.
    fn is_due_from(&self, lane: u8, of: &Tenant, tenant: &Tenant, shares: &Shares) -> bool {
        let (has, wants) = (self.places_of(lane, of), self.places_of(lane, tenant) + 1);
        let weights = (u64::from(shares.weight(of)), u64::from(shares.weight(tenant)));
        of != tenant && wants * weights.0 <= has.saturating_sub(1) * weights.1
    }

    /// The places of a tenant in a lane, once those have been given up that are about to be.
    fn places_of(&self, lane: u8, tenant: &Tenant) -> u64 {
        let places = self.waiting.get(&lane).and_then(Line::fair).map_or(0, |line| line.places_of(tenant));
        let leaving = || self.leaving.range((lane, 0)..=(lane, u64::MAX)).map(|(_, leaving)| leaving);
        let comes = leaving().filter(|(_, to)| to.as_ref() == Some(tenant)).count();
        let goes = leaving().filter(|(of, _)| of == tenant).count();
        (places + comes as u64).saturating_sub(goes as u64)
    }
}

/// Waits in a fair line, until it is dropped.
struct Waits<'a> {
    room: &'a ConcurrencyLimit,
    lane: u8,
    tenant: &'a Tenant,
    key: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if let Some(line) = self.room.inner().waiting.get_mut(&self.lane).and_then(Line::fair_mut) {
            line.leave(self.tenant, self.key);
        }
    }
}

impl RunPlace {
    /// Waits until a job of a higher lane, or of a tenant to which it is due, needs the place, which gets it when this is
    /// dropped. Only for jobs that have not begun.
    pub async fn wanted(&mut self) {
        if self.owed {
            return std::future::pending().await;
        }
        let tenant = self.used.as_ref().map(|(tenant, _)| tenant.clone());
        let (key, asked) = {
            let mut inner = self.room.inner();
            if inner.waiting.range(self.lane + 1..).any(|(_, line)| line.waiting() > 0) {
                return;
            }
            let (ask, asked) = oneshot::channel();
            inner.idlers += 1;
            let key = (self.lane, inner.idlers);
            inner.idle.insert(key, Idler { ask, tenant });
            let next = inner.waiting.get(&self.lane).and_then(|line| line.fair()?.next(self.room.now()));
            if let Some((next, _)) = next {
                inner.make_room(self.lane, &next, &self.room);
            }
            (key, asked)
        };
        let _idle = Idle { room: &self.room, key };
        self.promised = asked.await.ok().flatten();
    }
}

impl Drop for RunPlace {
    fn drop(&mut self) {
        let now = self.room.now();
        {
            let mut inner = self.room.inner();
            let line = inner.waiting.get_mut(&self.lane).and_then(Line::fair_mut);
            match (&self.used, self.promised.take(), line) {
                (Some((tenant, began)), Some(to), Some(line)) => {
                    if let Some(waiter) = line.hand_over((tenant, *began), &to, now) {
                        drop(inner);
                        // A waiter that has gone meanwhile drops the place, and so gives it back.
                        drop(waiter.send(self.room.place(self.lane, false, Some((to, now)))));
                        return;
                    }
                }
                (Some((tenant, began)), None, Some(line)) => line.vacate(tenant, *began, now),
                _ => {}
            }
            inner.free += 1;
        }
        self.room.pass_on();
    }
}

/// Would make way, until it is dropped.
struct Idle<'a> {
    room: &'a ConcurrencyLimit,
    key: (u8, u64),
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        let mut inner = self.room.inner();
        inner.idle.remove(&self.key);
        // It gives its place up now, or has begun meanwhile and keeps it.
        inner.leaving.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use futures_util::FutureExt;
    use roundelay_model::clock::Entropy;
    use roundelay_model::pacing::fair::{Configured, ShareSettings};
    use tokio::sync::Semaphore;
    use tokio::time::{sleep, sleep_until};

    use super::*;

    fn fair(places: usize, weights: &[(&str, u32)]) -> Arc<ConcurrencyLimit> {
        let of = |(name, weight): &(&str, u32)| ((*name).to_owned(), ShareSettings { weight: *weight, most: None });
        let tenants = weights.iter().map(of).collect();
        let shares = Shares::new(Configured { tenants, ..Configured::default() });
        ConcurrencyLimit::new(places, Some(Arc::new(shares)))
    }

    #[tokio::test(start_paused = true)]
    async fn tenants_share_the_time_of_places_by_weight_and_a_newcomer_is_next() {
        let room = fair(4, &[("a", 1), ("b", 2), ("c", 5)]);
        let end = Instant::now() + Duration::from_secs(4_000);
        // How long the runs of each are, and how many of them wait or run at a time.
        let tenants = [("a", 7_000, 40), ("b", 1_000, 30), ("c", 200, 20)];
        let had = tenants.map(|_| Arc::<AtomicU64>::default());
        for ((name, ms, jobs), had) in tenants.into_iter().zip(&had) {
            for _ in 0..jobs {
                let (room, had, tenant) = (room.clone(), had.clone(), Tenant::from(name));
                tokio::spawn(async move {
                    while Instant::now() < end {
                        let _place = room.enter(0, &tenant).await;
                        sleep(Duration::from_millis(ms)).await;
                        had.fetch_add(ms, Ordering::Relaxed);
                    }
                });
            }
        }
        sleep(Duration::from_secs(2_000)).await;
        assert_eq!((room.waiting(), room.free()), (86, 0));
        let since = Instant::now();
        let newcomer = Tenant::from("d");
        let place = room.enter(0, &newcomer).await;
        assert!(since.elapsed() <= Duration::from_millis(200), "{:?}: the next place was its", since.elapsed());
        drop(place);
        sleep_until(end).await;
        let had = had.map(|had| had.load(Ordering::Relaxed));
        for (had, weight) in had.iter().zip([1.0, 2.0, 5.0]) {
            let share = *had as f64 / 16_000_000.0;
            assert!((share / (weight / 8.0) - 1.0).abs() < 0.02, "{share} by the weight {weight}");
        }
        sleep(Duration::from_secs(300)).await;
        assert_eq!((room.waiting(), room.free(), room.waiting_of("a")), (0, 4, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn idle_jobs_of_a_flood_make_way_for_another_tenant() {
        let room = fair(4, &[]);
        let (flood, other) = (Tenant::from("flood"), Tenant::from("other"));
        let mut places = Vec::new();
        for _ in 0..4 {
            places.push(room.enter(0, &flood).await);
        }
        let mut more = Box::pin(room.enter(0, &flood));
        assert!(more.as_mut().now_or_never().is_none());
        let mut idle: Vec<_> = places.iter_mut().map(|place| Box::pin(place.wanted())).collect();
        assert!(idle.iter_mut().all(|idle| idle.now_or_never().is_none()), "not for its like");
        let mut waits: Vec<_> = (0..4).map(|_| Box::pin(room.enter(0, &other))).collect();
        assert!(waits.iter_mut().all(|waits| waits.now_or_never().is_none()));
        assert_eq!((room.waiting(), room.waiting_of("other"), room.waiting_of("flood")), (5, 4, 1));
        let asked: Vec<usize> = (0..4).filter(|n| idle[*n].as_mut().now_or_never().is_some()).collect();
        assert_eq!(asked, [2, 3], "each keeps half of the places, and those that have waited longest keep theirs");
        drop(idle);
        places.truncate(2);
        tokio::task::yield_now().await;
        let got: Vec<_> = waits.iter_mut().filter_map(|waits| waits.now_or_never()).collect();
        assert_eq!((got.len(), room.waiting_of("other")), (2, 2));
        drop((got, places, waits, more));
        assert_eq!(room.inner().free, 4);
        assert!(room.inner().leaving.is_empty() && room.inner().idle.is_empty());
    }

    /// Jobs that wait for slots, and have to make way for each other meanwhile.
    #[tokio::test(start_paused = true)]
    async fn no_job_makes_way_for_nothing() {
        for seed in 0..300 {
            let dice = Entropy::seeded(seed);
            let places = 2 + dice.below(3);
            let room = fair(places, &[("b", 2)]);
            let (ways, slots) = (Arc::<AtomicU64>::default(), Arc::new(Semaphore::new(0)));
            let jobs: Vec<_> = (0..40)
                .map(|_| {
                    let (room, ways, slots) = (room.clone(), ways.clone(), slots.clone());
                    let tenant = Tenant::from(["a", "a", "a", "b", "c"][dice.below(5)]);
                    let (comes, runs) = (dice.below(60_000) as u64, dice.below(3_000) as u64);
                    tokio::spawn(async move {
                        sleep(Duration::from_millis(comes)).await;
                        loop {
                            let mut place = room.enter(0, &tenant).await;
                            tokio::select! {
                                biased;
                                slot = slots.acquire() => break slot.unwrap().forget(),
                                () = place.wanted() => {}
                            }
                            let ways = ways.fetch_add(1, Ordering::Relaxed);
                            assert!(ways < 400, "with the seed {seed}, 40 jobs make way without end");
                        }
                        sleep(Duration::from_millis(runs)).await;
                    })
                })
                .collect();
            for _ in 0..jobs.len() {
                slots.add_permits(1);
                sleep(Duration::from_millis(dice.below(4_000) as u64)).await;
            }
            for job in jobs {
                job.await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn higher_lane_has_the_next_place_and_a_lower_one_its_share() {
        let (room, none) = (ConcurrencyLimit::new(1, None), Tenant::default());
        let mut held = room.enter(0, &none).await;
        let mut waiting: Vec<_> = [0, 1, 2].map(|lane| (lane, Box::pin(room.enter(lane, &none)))).into();
        assert!(waiting.iter_mut().all(|(_, place)| place.now_or_never().is_none()));
        let mut got = [0_u32; 3];
        for _ in 0..800 {
            drop(held);
            // A task may poll only so often at a time.
            tokio::task::yield_now().await;
            let (place, n) = waiting
                .iter_mut()
                .enumerate()
                .find_map(|(n, (_, place))| Some((place.now_or_never()?, n)))
                .expect("somebody has it");
            held = place;
            let lane = waiting[n].0;
            got[usize::from(lane)] += 1;
            waiting[n].1 = Box::pin(room.enter(lane, &none));
            assert!(waiting[n].1.as_mut().now_or_never().is_none());
        }
        drop(held);
        // Two lower ones never follow each other, so that the one may have to wait for the other.
        let (most, least) = (800 / MIN_SHARE_DIVISOR, 800 / (MIN_SHARE_DIVISOR + 1) - 2);
        assert!(got[2] >= 800 - 2 * most && got[1] >= least && got[0] >= least, "{got:?}");
    }

    #[tokio::test]
    async fn idle_job_makes_way_for_a_higher_lane_and_a_wait_given_up_costs_no_place() {
        let (room, none) = (ConcurrencyLimit::new(2, None), Tenant::default());
        let (mut low, mut other) = (room.enter(0, &none).await, room.enter(1, &none).await);
        let mut makes_way = Box::pin(low.wanted());
        assert!(makes_way.as_mut().now_or_never().is_none());
        assert!(Box::pin(room.enter(0, &none)).now_or_never().is_none(), "not for its like, and this one has gone");
        assert!(makes_way.as_mut().now_or_never().is_none());
        let mut high = Box::pin(room.enter(2, &none));
        assert!(high.as_mut().now_or_never().is_none());
        assert!(makes_way.as_mut().now_or_never().is_some());
        drop(makes_way);
        assert!(other.wanted().now_or_never().is_some(), "somebody still waits");
        drop(low);
        let high = high.now_or_never().unwrap();
        assert!(other.wanted().now_or_never().is_none());
        drop((high, other));
        assert_eq!(room.inner().free, 2);
    }

    #[tokio::test]
    async fn concurrency_limit_keeps_taken_places_when_lowered_and_admits_waiters_when_raised() {
        let (room, none) = (ConcurrencyLimit::new(3, None), Tenant::default());
        let mut taken = vec![room.enter(0, &none).await, room.enter(0, &none).await, room.enter(0, &none).await];
        room.resize(1);
        let mut next = Box::pin(room.enter(0, &none));
        for _ in 0..2 {
            taken.pop();
            assert!(next.as_mut().now_or_never().is_none(), "one is allowed, and runs");
        }
        let mut another = Box::pin(room.enter(0, &none));
        room.resize(2);
        let first = next.now_or_never().unwrap();
        assert!(another.as_mut().now_or_never().is_none());
        taken.pop();
        drop((another.now_or_never().unwrap(), first));
        assert_eq!(room.inner().free, 2);
    }
}
