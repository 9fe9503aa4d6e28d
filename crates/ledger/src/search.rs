//! The verbs behind screens. Each does a bounded amount of work, however many chains there are: a user waits for a
//! moment only, and workers are not held up.

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
    /// # Errors
    /// When the ledger cannot be read.
    async fn runs(
        &self,
        filter: RunFilter,
        before: Option<Fence>,
        limit: u32,
        effort: u32,
    ) -> Result<Found<NamedAttempt, Fence>, LedgerError>;

    /// How many kept failures have which reason, those with the most first.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn reasons(&self, filter: FailureFilter) -> Result<Vec<ReasonCount>, LedgerError>;

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
}
