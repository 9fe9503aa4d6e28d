//! What the verbs of a tick come to (pure), the same for every ledger.
//!
//! A ledger carries a verb out in three steps: it loads the rows that the verb wants into a [`Page`], lets the verb
//! decide, which changes the page and gives the answer, and writes the page. What differs between ledgers is SQL. So
//! what the simulation and the mutants prove on SQLite is what PostgreSQL does, too.
//!
//! - [`claim`], with [`grant`]: whether a run may begin. [`finish`]: how a run ends, and what follows.
//! - [`enroll`]: chains begin. [`jobs`]: what is kept of one-off jobs. [`notes`]: what was sent, when to look again,
//!   and what failed.
//! - [`follow`]: what a consumer does once its claim, or the finish of its run, is answered.

mod claim;
mod enroll;
mod finish;
pub(crate) mod follow;
pub(crate) mod grant;
mod jobs;
mod notes;
mod page;
mod sorted;

use roundelay_model::ids::Epoch;

pub(crate) use enroll::Enroll;
pub(crate) use jobs::{Accept, ForgetJobs, KeepJob};
#[cfg(feature = "postgres")]
pub(crate) use notes::Flush;
pub(crate) use notes::{Look, MarkSent, RecordFailure};
pub(crate) use page::{Begun, Ended, Failed, Held, Inserted, Job, Page, Quarantined, Wanted};

/// Something to decide and write. It may be decided more than once, each time on another page,
/// when a transaction has to be tried again.
pub(crate) trait Decide: Send {
    /// The verb's answer.
    type Answer: Send;

    /// Adds what the verb needs to `wanted`.
    fn wants(&self, wanted: &mut Wanted);

    /// Adds what else the verb needs, once the locked rows are known.
    fn wants_further(&self, _page: &mut Page, _wanted: &mut Wanted) {}

    /// Decides, and changes the page.
    fn decide(&self, page: &mut Page) -> Self::Answer;
}

/// Also the other row of the chain, where there may be one.
fn wants_twin(page: &mut Page, epoch: Epoch, wanted: &mut Wanted) {
    if let Some(held) = page.epoch(epoch).filter(|held| held.chain.has_twin()) {
        wanted.names.insert((held.chain.hint.kind.clone(), held.chain.hint.key.clone()));
    }
}
