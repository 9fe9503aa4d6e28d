//! What has failed, as people and policies see it: a part of an entity, the whole of it, or members of a batch.

use serde::Serialize;

use crate::clock::Time;

/// A batch that has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Members in all.
    pub total: i64,
    /// Those that did not work.
    pub failed: i64,
}

/// A part of a run that failed, or the whole of it: kept as a [`Failure`] of its entity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedItem {
    /// Names the part within the entity; empty only for the whole.
    pub item: String,
    /// What went wrong.
    pub reason: String,
    /// The name of that reason, if it has one: see [`crate::policy`].
    pub code: Option<String>,
    /// When it may be fed back; never without it. The engine fills it in.
    pub next_retry_at: Option<Time>,
    /// The engine never tries it again by itself. The engine fills this in.
    pub permanent: bool,
}

impl FailedItem {
    /// What went wrong with `item`; whether and when it is tried again is left to the kind's settings.
    pub fn new(item: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { item: item.into(), reason: reason.into(), ..Self::default() }
    }

    /// Something that a run has asked for and does not get. It is kept for people: no run can be fed with it.
    pub fn refused(item: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { code: Some(REFUSED.into()), ..Self::new(item, reason) }
    }
}

/// The code of what [`FailedItem::refused`] makes.
pub const REFUSED: &str = "refused";

/// A failure for a person to look at.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Failure {
    /// Which handler.
    pub kind: String,
    /// Which entity.
    pub key: String,
    /// Which part of the entity; empty when the whole of it failed.
    pub item: String,
    /// What the handler said.
    pub reason: String,
    /// The name of that reason, if it has one.
    pub code: Option<String>,
    /// How often it has failed for good since the first time.
    pub times: i64,
    /// How often it has been tried, as the maximum of its reason counts; an operator sets it back to zero.
    pub attempts: i64,
    /// The first time.
    pub first_at: Time,
    /// The last time.
    pub last_at: Time,
    /// When reconcile looks at it again, if it does. Its reason's backoff may say later then.
    pub next_retry_at: Option<Time>,
    /// It is never tried again by itself. With an empty `item`: the entity is unavailable.
    pub permanent: bool,
    /// The id of the job that is under way for it.
    pub fed: Option<String>,
    /// The whole of the entity has worked since. The failure is kept until it is dropped.
    pub recovered: bool,
}

/// What a run for a part came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemEnd {
    /// It worked: the failure is forgotten.
    Worked,
    /// It has failed once more.
    Failed(FailedItem),
}
