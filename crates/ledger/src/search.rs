//! The verbs behind screens. Each does a bounded amount of work, however many chains there are: a user waits for a
//! moment only, and workers are not held up.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::ids::Fence;
use serde::Serialize;

use crate::error::LedgerError;
use crate::failed::FailureFilter;
use crate::look::{Cursor, ListFilter, Listed};
use crate::reports::AttemptRecord;

/// How many chains, or records of attempts, one search looks at, at most: some tenth of a second of work.
pub const EFFORT: u32 = 25_000;

/// Attempts start in the order of their fences, but for so much: workers' clocks and transactions differ.
const DISORDER: Duration = Duration::from_secs(60);

/// A part of what was searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found<T, P> {
    /// What fits, in its order.
    pub found: Vec<T>,
    /// Where to go on; nothing at the end.
    pub after: Option<P>,
    /// Whether there are as many as were wanted, or no more. Else the search stopped at its limit of work, and there
    /// may be more.
    pub complete: bool,
}

impl<T, P> Found<T, P> {
    /// Of at most `limit` that were wanted: `last` names the place of the last that was looked at, and there may be
    /// something behind it if it `stopped` there.
    pub(super) fn new(found: Vec<T>, limit: u32, stopped: bool, last: Option<P>) -> Self {
        let full = found.len() >= limit as usize;
        Self { found, after: last.filter(|_| full || stopped), complete: full || !stopped }
    }
}

/// Records of attempts to look for: those that fit all that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Those that ended so: a verdict, `lost` or `fenced`.
    pub verdict: Option<String>,
    /// Those of chains of this kind.
    pub kind: Option<String>,
    /// Those of chains with this key.
    pub key: Option<String>,
    /// Those of chains that belong to this owner.
    pub owner: Option<String>,
    /// Those of chains on this platform queue.
    pub queue: Option<String>,
    /// Not those of chains on this queue.
    pub except_queue: Option<String>,
    /// Those whose reason contains this text, in capital or small letters.
    pub text: Option<String>,
    /// Those that started at this time or later.
    pub since: Option<Time>,
    /// Those that started before this time.
    pub until: Option<Time>,
}

impl RunFilter {
    /// After an attempt that started before this time, in the order of the search, there is none that fits.
    pub(super) fn earliest(&self) -> Option<Time> {
        self.since.map(|since| since - DISORDER)
    }

    /// Before an attempt that started at this time or later, in the order of the search, there is none that fits.
    pub(super) fn latest(&self) -> Option<Time> {
        self.until.map(|until| until + DISORDER)
    }
}

/// Finds by bisection where, in the order of their fences, attempts begin to have started at a time or later (pure). It
/// asks for one record at a time: [`Self::asks`] has a fence, and [`Self::told`] takes the record that is there.
#[derive(Debug)]
pub(super) struct Border {
    at: Time,
    /// The latest attempt up to this fence started before `at`, or there is none. Not known at first.
    below: Option<i64>,
    /// The attempt with this fence started at `at` or later. At first the end of what is searched, exclusively.
    from: i64,
    /// How far below `from` it looks next, as long as `below` is not known.
    step: i64,
}

impl Border {
    /// For attempts with fences below `before`.
    pub(super) fn new(at: Time, before: Fence) -> Self {
        Self { at, below: None, from: before.get(), step: 1 }
    }

    /// The latest attempt with this fence or a lower one is to be told. Nothing when the border is found.
    pub(super) fn asks(&self) -> Option<Fence> {
        match self.below {
            // People ask for late times more often than for early ones, and fences leave large gaps.
            None => Some(Fence(self.from.saturating_sub(self.step).max(0))),
            Some(below) if self.from.saturating_sub(below) > 1 => Some(Fence(below + (self.from - below) / 2)),
            Some(_) => None,
        }
    }

    /// Fence and start of the latest attempt up to the fence `asked`, if there is one.
    pub(super) fn told(&mut self, asked: Fence, latest: Option<(Fence, Time)>) {
        match latest {
            Some((fence, started)) if started >= self.at && fence < self.from => {
                (self.from, self.step) = (fence.get(), self.step.saturating_mul(16));
            }
            _ => self.below = Some(asked.get()),
        }
    }

    /// The border from below: the latest attempt up to this fence started before the time, or there is none.
    pub(super) fn below(&self) -> Fence {
        self.below.map_or(Fence::NONE, Fence)
    }

    /// The border from above: the first attempt known to have started at the time or later, or the end.
    pub(super) fn from(&self) -> Fence {
        Fence(self.from)
    }
}

/// The record of an attempt, and the chain's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedAttempt {
    /// The record.
    pub record: AttemptRecord,
    /// Kind and key; nothing when the chain is not there any more, or has begun anew.
    pub name: Option<(String, String)>,
}

/// Kept failures that have the same reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReasonCount {
    /// Of this kind.
    pub kind: String,
    /// The name of the reason, if it has one.
    pub code: Option<String>,
    /// They are never tried again by themselves.
    pub permanent: bool,
    /// How many parts of entities.
    pub parts: u64,
    /// How many whole entities.
    pub wholes: u64,
    /// How many of these have worked since.
    pub recovered: u64,
    /// The last time.
    pub last_at: Time,
    /// What was said of one of them.
    pub example: String,
}

/// A message that cannot be used, kept in the ledger because the broker keeps none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantinedMessage {
    /// Grows with every one.
    pub number: i64,
    /// Since when.
    pub at: Time,
    /// The queue that it came from.
    pub from: String,
    /// Why it cannot be used.
    pub reason: String,
    /// What it was.
    pub body: Vec<u8>,
}

/// Bounded searches.
#[async_trait]
pub trait Search {
    /// Rotations after a place, in the order of kind and key, at most `limit`; at most `effort` of them are looked at.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn search(
        &self,
        filter: ListFilter,
        after: Option<Cursor>,
        limit: u32,
        effort: u32,
    ) -> Result<Found<Listed, Cursor>, LedgerError>;

    /// The records of the attempts with these fences, and of those of the same chains before them: for each fence
    /// those, latest first, at most `limit`.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn histories(&self, fences: Vec<Fence>, limit: u32) -> Result<Vec<Vec<AttemptRecord>>, LedgerError>;

    /// Attempts with fences below `before`, latest first, at most `limit`; at most `effort` records are looked at. The
    /// place is a fence.
    ///
    /// With a time in the filter, only records from about then are looked at. With kind and key, only those of chains
    /// of this name are; what such a chain has from `before` on may be gone through without being counted.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn runs(
        &self,
        filter: RunFilter,
        before: Option<Fence>,
        limit: u32,
        effort: u32,
    ) -> Result<Found<NamedAttempt, Fence>, LedgerError>;

    /// How many kept failures have which reason, those with the most first; at most `limit` reasons.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn reasons(&self, filter: FailureFilter, limit: u32) -> Result<Vec<ReasonCount>, LedgerError>;

    /// Messages in quarantine with numbers below `before`, latest first.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn quarantined(&self, before: Option<i64>, limit: u32) -> Result<Vec<QuarantinedMessage>, LedgerError>;

    /// Forgets messages in quarantine; answers how many there were of these.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn forget_quarantined(&self, numbers: Vec<i64>) -> Result<u64, LedgerError>;

    /// Makes a job of a message in quarantine: keeps the job and forgets the message, both or neither. Answers whether
    /// the message was there; if not, nothing is kept.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn retry_quarantined(&self, number: i64, id: String, body: Vec<u8>) -> Result<bool, LedgerError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_goes_on_where_it_stopped_and_ends_at_the_end() {
        let found = |count: usize, stopped: bool, last: Option<u8>| {
            let Found { after, complete, .. } = Found::new(vec![(); count], 2, stopped, last);
            (after, complete)
        };
        assert_eq!(found(2, true, Some(7)), (Some(7), true), "a full page");
        assert_eq!(found(2, false, Some(7)), (Some(7), true), "full at the very end: the next one is empty");
        assert_eq!(found(1, false, Some(7)), (None, true), "no more");
        assert_eq!(found(1, true, Some(7)), (Some(7), false), "it was too much work");
        assert_eq!(found(0, false, None), (None, true));
    }

    /// What is found of the border at `at` among attempts, as (fence, start in seconds), and how many records it took.
    fn border(attempts: &[(i64, i64)], at: i64, before: i64) -> (i64, i64, usize) {
        let second = |n: i64| Time::from_millis(n * 1_000);
        let (mut border, mut looked) = (Border::new(second(at), Fence(before)), 0);
        while let Some(asked) = border.asks() {
            assert!(asked < before || asked == 0, "{asked}");
            let latest = attempts.iter().rfind(|(fence, _)| asked >= *fence);
            border.told(asked, latest.map(|(fence, started)| (Fence(*fence), second(*started))));
            looked += 1;
        }
        (border.below().get(), border.from().get(), looked)
    }

    #[test]
    fn a_table_of_borders() {
        const END: i64 = i64::MAX;
        let few = [(10, 100), (11, 200), (5_000_000_000_000, 300)];
        let table = [
            ("none at all", &few[..0], 100, END, (END - 1, END)),
            ("all before", &few[..], 301, END, (END - 1, END)),
            ("the last one", &few[..], 300, END, (4_999_999_999_999, 5_000_000_000_000)),
            ("after a gap", &few[..], 201, END, (4_999_999_999_999, 5_000_000_000_000)),
            ("the second", &few[..], 200, END, (10, 11)),
            ("all of them", &few[..], 100, END, (9, 10)),
            ("before all", &few[..], -7, END, (9, 10)),
            ("below a place", &few[..], 201, 5_000_000_000_000, (4_999_999_999_999, 5_000_000_000_000)),
            ("below a place within", &few[..], 150, 11, (10, 11)),
            ("below all", &few[..], 100, 10, (9, 10)),
            ("a place that is none", &few[..], 100, -3, (0, -3)),
        ];
        for (label, attempts, at, before, expected) in table {
            let (below, from, looked) = border(attempts, at, before);
            assert_eq!((below, from), expected, "{label}");
            assert!(looked <= 80, "{label}: {looked}");
        }
        assert_eq!(border(&few, 301, END).2, 1, "what is still to come is known at once");
    }

    #[test]
    fn a_border_leaves_nothing_out_where_attempts_start_somewhat_out_of_order() {
        // One a second, each up to a minute late, with the gap of a restart in the middle.
        let disorder = DISORDER.as_secs() as i64;
        let attempts: Vec<(i64, i64)> = (0..4_000)
            .map(|n| (1_000 + n + if n < 2_000 { 0 } else { 2_000_000_000 }, n + n * 37 % (disorder + 1)))
            .collect();
        for at in (-100..4_200).step_by(7) {
            let filter = |time| RunFilter { since: Some(time), until: Some(time), ..RunFilter::default() };
            let filter = filter(Time::from_millis(at * 1_000));
            let seconds = |time: Option<Time>| time.unwrap().as_millis() / 1_000;
            let (below, _, looked) = border(&attempts, seconds(filter.earliest()), i64::MAX);
            let (_, from, again) = border(&attempts, seconds(filter.latest()), i64::MAX);
            assert!(looked <= 50 && again <= 50, "{at}: {looked} and {again}");
            let since = attempts.iter().filter(|(_, started)| *started >= at);
            assert!(since.clone().all(|(fence, _)| *fence > below), "{at}: since, above {below}");
            let until = attempts.iter().filter(|(_, started)| *started < at);
            assert!(until.clone().all(|(fence, _)| *fence < from), "{at}: until, below {from}");
            // Of the rest, not much more than what the disorder makes is looked at in vain.
            let surplus = attempts.iter().filter(|(fence, _)| *fence > below).count() - since.count();
            assert!(surplus <= 4 * disorder as usize, "{at}: since, {surplus}");
            let surplus = attempts.iter().filter(|(fence, _)| *fence < from).count() - until.count();
            assert!(surplus <= 4 * disorder as usize, "{at}: until, {surplus}");
        }
    }
}
