//! Chains that sleep for longer than their schedules can explain. They are overdue, though their due times lie ahead.
//!
//! There is one judgement ([`since`], pure). Every screen and metric that shows the state of chains asks it. By the
//! same judgement workers move such chains to an earlier time (`crates/engine/src/follow_wall.rs`). The work is
//! bounded, however many chains there are: of each queue two sorts of chains are judged, those that catch-up looks at
//! last, and those that it should have looked at already although they are due later.

use std::collections::BTreeSet;

use roundelay_config::{Config, OwnSchedule, is_internal, schedule_of_kind};
use roundelay_ledger::{
    Census, ChainState, ChainView, Condition, Cursor, Hint, Holder, LateCursor, Ledger, LedgerError, ListFilter,
    Listed, fits_pattern,
};
use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, TickNo};
use roundelay_model::schedule::{Asleep, Schedule, phase};
use roundelay_model::wall_clock::WallClock;

use crate::holds::Holds;

/// At most this many chains of each of the two sorts are judged in each queue.
pub const PER_QUEUE: u32 = 100;

/// Knows the schedules of kinds.
pub type Schedules<'a> = dyn Fn(&str) -> Option<Schedule> + Send + Sync + 'a;

/// Those of a configuration.
pub fn schedules(config: &Config) -> impl Fn(&str) -> Option<Schedule> + Send + Sync + '_ {
    |kind| schedule_of_kind(config, kind)
}

/// What there is to know of a chain.
#[derive(Clone, Copy, Debug)]
pub struct Sleeper<'a> {
    hint: &'a Hint,
    state: ChainState,
    holder: Holder,
    batch_open: i64,
    asleep: Asleep,
    started_tick: TickNo,
    schedule: Option<&'a str>,
    once: bool,
}

impl<'a> From<&'a Listed> for Sleeper<'a> {
    fn from(chain: &'a Listed) -> Self {
        let Listed { hint, nominal, last_start, last_finish, .. } = chain;
        Self {
            hint,
            state: chain.state,
            holder: chain.holder,
            batch_open: chain.batch.0,
            asleep: Asleep { nominal: *nominal, due: hint.due, last_start: *last_start, last_finish: *last_finish },
            started_tick: chain.started_tick,
            schedule: chain.schedule.as_deref(),
            once: false,
        }
    }
}

impl<'a> From<&'a ChainView> for Sleeper<'a> {
    fn from(chain: &'a ChainView) -> Self {
        let ChainView { hint, nominal, last_start, last_finish, .. } = chain;
        Self {
            hint,
            state: chain.state,
            holder: chain.holder,
            batch_open: chain.batch.0,
            asleep: Asleep { nominal: *nominal, due: hint.due, last_start: *last_start, last_finish: *last_finish },
            started_tick: chain.started_tick,
            schedule: chain.schedule.as_deref(),
            once: chain.once,
        }
    }
}

/// Since when a chain is overdue, or from when on it will be, if it sleeps for longer than its schedule can explain.
/// `None` for manual runs, members of batches, and chains that are not active, run, wait for a batch, or are due.
pub fn since<'a>(
    chain: impl Into<Sleeper<'a>>,
    of_kind: &Schedules<'_>,
    (now, wall_clock): (Time, &WallClock),
) -> Option<Time> {
    let Sleeper { hint, state, holder, batch_open, asleep, started_tick, schedule, once } = chain.into();
    let sleeps = state == ChainState::Active && !holder.runs() && batch_open == 0 && hint.due > now;
    if !sleeps || once || !hint.parent.is_none() {
        return None;
    }
    let of_kind = of_kind(&hint.kind)?;
    // An own schedule that cannot be read does not count, as for workers: the kind's does.
    let own = schedule.and_then(|own| OwnSchedule::parse(own).ok()?.apply(&of_kind).ok());
    if own.is_none() && is_internal(&hint.kind) {
        // For the engine's own chains the kind's schedule is a placeholder.
        return None;
    }
    let begun = started_tick >= hint.tick || hint.attempt > 1;
    own.unwrap_or(of_kind).overslept(asleep, begun, now, phase(&hint.kind, &hint.key), wall_clock)
}

/// One that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overslept {
    /// The chain.
    pub chain: Listed,
    /// When it was meant to be due, at the latest.
    pub since: Time,
}

/// Those of these queues, the longest overdue first.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn look(
    ledger: &dyn Ledger,
    queues: impl IntoIterator<Item = String>,
    of_kind: &Schedules<'_>,
) -> Result<Vec<Overslept>, LedgerError> {
    let mut all = Vec::new();
    for queue in queues {
        let chains = ledger.furthest(queue, PER_QUEUE).await?;
        let at = (ledger.now(), &*ledger.wall_clock());
        all.extend(chains.into_iter().filter_map(|chain| {
            let since = since(&chain, of_kind, at)?;
            Some(Overslept { chain, since })
        }));
    }
    all.sort_by_key(|found| found.since);
    Ok(all)
}

/// Counts the ledger's chains, these among those that are overdue, and those that operators hold apart. Answers with
/// those of queues that no operator holds.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn census(
    ledger: &dyn Ledger,
    slack: std::time::Duration,
    of_kind: &Schedules<'_>,
    holds: &Holds,
) -> Result<(Census, Vec<Overslept>), LedgerError> {
    let mut census = ledger.census(slack).await?;
    let queues: Vec<String> = census.queues.iter().map(|queue| queue.queue.clone()).collect();
    let found = look(ledger, queues, of_kind).await?;
    let now = ledger.now();
    for Overslept { chain, since } in &found {
        census.overslept(&chain.hint.queue, (*since).min(now));
    }
    holds.iter().for_each(|(queue, _)| census.hold(queue));
    let found = found.into_iter().filter(|of| holds.get(&of.chain.hint.queue).is_none()).collect();
    Ok((census, found))
}

/// The place of a late chain in the order of kind and key.
pub fn by_name(chain: &Listed, _: Time) -> Cursor {
    (chain.hint.kind.clone(), chain.hint.key.clone())
}

/// The place of a late chain in the order in which they are late, the longest overdue first.
pub fn by_lateness(chain: &Listed, since: Time) -> LateCursor {
    (since, chain.hint.epoch)
}

/// Puts those that fit into a page of late chains, in their order: after `after`, up to `until`, at most `limit` in
/// all. `place` says where a chain belongs that is overdue since then. Answers each with its place.
pub fn among<P: Ord>(
    page: Vec<Listed>,
    found: Vec<Overslept>,
    filter: &ListFilter,
    (after, until): (Option<&P>, Option<&P>),
    limit: usize,
    place: impl Fn(&Listed, Time) -> P,
) -> Vec<(P, Listed)> {
    let there: BTreeSet<Epoch> = page.iter().map(|chain| chain.hint.epoch).collect();
    let mut all: Vec<(P, Listed)> = page.into_iter().map(|chain| (place(&chain, chain.hint.due), chain)).collect();
    let found =
        found.into_iter().filter(|found| !there.contains(&found.chain.hint.epoch) && fits(&found.chain, filter));
    let found = found.map(|Overslept { chain, since }| (place(&chain, since), chain));
    all.extend(
        found.filter(|(at, _)| after.is_none_or(|after| *at > *after) && until.is_none_or(|until| *at <= *until)),
    );
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    all.truncate(limit);
    all
}

/// Whether a chain is of those that are looked for, whenever it is due.
fn fits(chain: &Listed, filter: &ListFilter) -> bool {
    let is = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|wanted| wanted == found);
    let which = &filter.which;
    is(&which.kind, &chain.hint.kind)
        && is(&which.key, &chain.hint.key)
        && is(&which.queue, &chain.hint.queue)
        && which.owner.as_ref().is_none_or(|owner| chain.owner.as_ref() == Some(owner))
        && which.like.as_ref().is_none_or(|pattern| fits_pattern(pattern, &chain.hint.key))
        && which.state.is_none_or(|state| state == chain.state)
        && filter.condition.is_none_or(|condition| condition == Condition::State(ChainState::Active))
}

#[cfg(test)]
mod tests {
    use super::*;
    use roundelay_ledger::ChainFilter;
    use roundelay_model::ids::Fence;

    const fn at(secs: i64) -> Time {
        Time::from_millis(secs * 1_000)
    }

    /// Ran at 100, and is due at 100,000, though it was meant for 103.
    fn chain(key: &str) -> Listed {
        Listed {
            hint: Hint {
                kind: "sync".into(),
                key: key.into(),
                queue: "work".into(),
                epoch: Epoch(key.len() as i64),
                tick: TickNo(7),
                attempt: 1,
                due: at(100_000),
                parent: Epoch::NONE,
                priority: None,
            },
            state: ChainState::Active,
            fence: Fence(1),
            nominal: at(103),
            holder: Holder::None,
            owner: None,
            schedule: None,
            last_start: at(100),
            last_finish: at(100),
            started_tick: TickNo(6),
            batch: (0, 0),
            unavailable: None,
            learned: None,
        }
    }

    #[test]
    fn overslept_chains_are_found() {
        type Row = (&'static str, fn(&mut Listed), Option<i64>);
        let config = "[queues.work]\n[kinds.sync]\nevery = \"3s\"\n[kinds.report]\n";
        let config = Config::parse(config, "r.toml", []).unwrap();
        let table: [Row; 12] = [
            ("a day ahead", |_| (), Some(103)),
            ("in time", |c| c.hint.due = at(1_005), None),
            ("due", |c| c.hint.due = at(1_000), None),
            ("it runs", |c| c.holder = Holder::Alive, None),
            ("whoever ran it is gone", |c| c.holder = Holder::Gone, Some(103)),
            ("it waits for its batch", |c| c.batch = (1, 2), None),
            ("stopped", |c| c.state = ChainState::Paused, None),
            ("put off by a run", |c| c.started_tick = TickNo(7), None),
            ("tried again", |c| c.hint.attempt = 2, None),
            ("a schedule of its own", |c| c.schedule = Some("{\"every\":\"2d\"}".into()), None),
            ("a kind without a schedule", |c| c.hint.kind = "report".into(), None),
            ("a chore, of which only its own schedule counts", |c| c.hint.kind = "roundelay.roster".into(), None),
        ];
        for (label, change, expected) in table {
            let mut chain = chain("x");
            change(&mut chain);
            let found = since(&chain, &schedules(&config), (at(1_000), &WallClock::default()));
            assert_eq!(found, expected.map(at), "{label}");
        }
    }

    #[test]
    fn overslept_chains_have_their_place_in_a_page() {
        let found = |key: &str| Overslept { chain: chain(key), since: at(103) };
        let keys = |filter: &ListFilter, after: Option<&str>, until: Option<&str>, limit| {
            let place = |key: Option<&str>| key.map(|key| ("sync".to_owned(), key.to_owned()));
            let (after, until) = (place(after), place(until));
            let page = among(
                vec![chain("bb"), chain("dddd")],
                vec![found("ccc"), found("a"), found("eeeee"), found("bb")],
                filter,
                (after.as_ref(), until.as_ref()),
                limit,
                by_name,
            );
            page.into_iter().map(|(_, chain)| chain.hint.key).collect::<Vec<_>>().join(" ")
        };
        let all = ListFilter::default();
        assert_eq!(keys(&all, None, None, 9), "a bb ccc dddd eeeee");
        assert_eq!(keys(&all, Some("a"), Some("dddd"), 9), "bb ccc dddd");
        assert_eq!(keys(&all, None, None, 3), "a bb ccc");
        let like =
            ListFilter { which: ChainFilter { like: Some("*e".into()), ..ChainFilter::default() }, condition: None };
        assert_eq!(keys(&like, None, None, 9), "bb dddd eeeee", "the page itself fits already");
    }

    #[test]
    fn overslept_chains_are_among_the_longest_late_by_when_they_were_meant_to_be_due() {
        let late = |key: &str, due| {
            let mut chain = chain(key);
            chain.hint.due = at(due);
            chain
        };
        let found = |key: &str, since| Overslept { chain: chain(key), since: at(since) };
        let keys = |after: Option<LateCursor>, until: Option<LateCursor>| {
            let page = vec![late("z", 90), late("yy", 110)];
            let slept = vec![found("xxx", 80), found("wwww", 100), found("vvvvv", 120)];
            let all = among(page, slept, &ListFilter::default(), (after.as_ref(), until.as_ref()), 9, by_lateness);
            all.into_iter().map(|(_, chain)| chain.hint.key).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(keys(None, None), "xxx z wwww yy vvvvv");
        let (first, last) = ((at(80), Epoch(3)), (at(110), Epoch(2)));
        assert_eq!(keys(Some(first), Some(last)), "z wwww yy");
    }
}
