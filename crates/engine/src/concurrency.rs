//! How many jobs of a queue run at the same time. The lanes of a queue share the limit.
//!
//! A higher lane has the next place, and a lower one its least share, as with the slots of a throttle. A job that
//! has a place and only waits for a slot makes way for a higher lane, or else a worker with little room would
//! hold what is urgent up behind what is not.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use roundelay_model::pacing::slots::MIN_SHARE_DIVISOR;
use tokio::sync::oneshot;

/// The places of a queue.
pub struct ConcurrencyLimit {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Below zero while more are taken than there are places, since there were more.
    free: isize,
    places: isize,
    /// Who waits for a place, by lane; who came first is first. Some may have gone.
    waiting: BTreeMap<u8, VecDeque<oneshot::Sender<RunPlace>>>,
    /// Places that went to higher lanes while a job of this lane waited.
    passed: BTreeMap<u8, u32>,
    /// The last place went to a lower lane than the highest that waited.
    lower: bool,
    /// Who has a place and would make way, the lowest lane first.
    idle: BTreeMap<(u8, u64), oneshot::Sender<()>>,
    /// How many ever were.
    idlers: u64,
}

/// A place, given back when it is dropped.
pub struct RunPlace {
    room: Arc<ConcurrencyLimit>,
    lane: u8,
    /// It was had as a lane's least share, and is not given up.
    owed: bool,
}

impl ConcurrencyLimit {
    /// At most `places` run at the same time.
    pub fn new(places: usize) -> Arc<Self> {
        let places = counted(places);
        Arc::new(Self { inner: Mutex::new(Inner { free: places, places, ..Inner::default() }) })
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

    /// Waits for a place. A wait that is given up costs none.
    pub async fn enter(self: &Arc<Self>, lane: u8) -> RunPlace {
        let place = {
            let mut inner = self.inner();
            if inner.free > 0 {
                inner.free -= 1;
                return RunPlace { room: self.clone(), lane, owed: false };
            }
            let (sender, place) = oneshot::channel();
            inner.waiting.entry(lane).or_default().push_back(sender);
            if inner.idle.first_key_value().is_some_and(|((of, _), _)| *of < lane)
                && let Some((_, idle)) = inner.idle.pop_first()
            {
                // A job that has begun meanwhile does not listen any more.
                let _ = idle.send(());
            }
            place
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
            let Some((lane, owed)) = inner.turn() else { return };
            let Some(waiter) = inner.waiting.get_mut(&lane).and_then(VecDeque::pop_front) else { return };
            inner.free -= 1;
            drop(inner);
            // A waiter that has gone meanwhile drops the place, and so gives it back.
            drop(waiter.send(RunPlace { room: self.clone(), lane, owed }));
        }
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
        self.waiting.retain(|_, line| {
            while line.front().is_some_and(oneshot::Sender::is_closed) {
                line.pop_front();
            }
            !line.is_empty()
        });
        let (highest, _) = self.waiting.last_key_value().filter(|_| self.free > 0)?;
        let highest = *highest;
        self.passed.retain(|lane, _| self.waiting.contains_key(lane));
        let passed = |lane: &u8| self.passed.get(lane).copied().unwrap_or_default();
        let due = self.waiting.keys().filter(|lane| passed(lane) + 1 >= MIN_SHARE_DIVISOR && !self.lower);
        let lane = due.max_by_key(|lane| passed(lane)).copied().unwrap_or(highest);
        self.lower = lane < highest;
        for of in self.waiting.range(..lane).map(|(of, _)| *of) {
            *self.passed.entry(of).or_default() += 1;
        }
        self.passed.remove(&lane);
        Some((lane, self.lower))
    }
}

impl RunPlace {
    /// Waits until a job of a higher lane needs the place. Only for jobs that have not begun.
    pub async fn wanted(&self) {
        if self.owed {
            return std::future::pending().await;
        }
        let (key, asked) = {
            let mut inner = self.room.inner();
            let mut higher = inner.waiting.range(self.lane + 1..).flat_map(|(_, line)| line);
            if higher.any(|waiter| !waiter.is_closed()) {
                return;
            }
            let (sender, asked) = oneshot::channel();
            inner.idlers += 1;
            let key = (self.lane, inner.idlers);
            inner.idle.insert(key, sender);
            (key, asked)
        };
        let _idle = Idle { room: &self.room, key };
        let _ = asked.await;
    }
}

impl Drop for RunPlace {
    fn drop(&mut self) {
        self.room.inner().free += 1;
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
        self.room.inner().idle.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn higher_lane_has_the_next_place_and_a_lower_one_its_share() {
        let room = ConcurrencyLimit::new(1);
        let mut held = room.enter(0).await;
        let mut waiting: Vec<_> = [0, 1, 2].map(|lane| (lane, Box::pin(room.enter(lane)))).into();
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
            waiting[n].1 = Box::pin(room.enter(lane));
            assert!(waiting[n].1.as_mut().now_or_never().is_none());
        }
        drop(held);
        // Two lower ones never follow each other, so that the one may have to wait for the other.
        let (most, least) = (800 / MIN_SHARE_DIVISOR, 800 / (MIN_SHARE_DIVISOR + 1) - 2);
        assert!(got[2] >= 800 - 2 * most && got[1] >= least && got[0] >= least, "{got:?}");
    }

    #[tokio::test]
    async fn idle_job_makes_way_for_a_higher_lane_and_a_wait_given_up_costs_no_place() {
        let room = ConcurrencyLimit::new(2);
        let (low, other) = (room.enter(0).await, room.enter(1).await);
        let mut makes_way = Box::pin(low.wanted());
        assert!(makes_way.as_mut().now_or_never().is_none());
        assert!(Box::pin(room.enter(0)).now_or_never().is_none(), "not for its like, and this one has gone");
        assert!(makes_way.as_mut().now_or_never().is_none());
        let mut high = Box::pin(room.enter(2));
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
        let room = ConcurrencyLimit::new(3);
        let mut taken = vec![room.enter(0).await, room.enter(0).await, room.enter(0).await];
        room.resize(1);
        let mut next = Box::pin(room.enter(0));
        for _ in 0..2 {
            taken.pop();
            assert!(next.as_mut().now_or_never().is_none(), "one is allowed, and runs");
        }
        let mut another = Box::pin(room.enter(0));
        room.resize(2);
        let first = next.now_or_never().unwrap();
        assert!(another.as_mut().now_or_never().is_none());
        taken.pop();
        drop((another.now_or_never().unwrap(), first));
        assert_eq!(room.inner().free, 2);
    }
}
