//! One-off jobs: what a run asks for is kept until it has been sent.

use roundelay_model::clock::Time;
use roundelay_model::failure::FailedItem;

use super::Decide;
use super::enroll::enroll;
use super::page::{Job, Page, Quarantined, Wanted};
use crate::chain::Hint;
use crate::enroll::{Enrolled, NewChain};
use crate::jobs::SpawnedJob;

/// Keeps what a run asks for; answers the first messages of the chains among it that are new.
pub(super) fn accept(
    page: &mut Page,
    (kind, key): (&str, &str),
    spawned: &[SpawnedJob],
    chains: &[NewChain],
    failed: &[FailedItem],
    at: Time,
) -> Vec<Hint> {
    for job in spawned {
        page.job(&job.id, Job::Add(job.body.clone(), at));
    }
    for part in failed {
        page.failed(kind, key, part, at);
    }
    let begun = chains.iter().filter_map(|chain| match enroll(page, chain) {
        Enrolled::Created(hint) => Some(hint),
        _ => None,
    });
    begun.collect()
}

/// [`crate::Jobs::accept`]
pub(crate) struct Accept {
    pub(crate) kind: String,
    pub(crate) key: String,
    pub(crate) spawned: Vec<SpawnedJob>,
    pub(crate) chains: Vec<NewChain>,
    pub(crate) failed: Vec<FailedItem>,
}

impl Decide for Accept {
    type Answer = Vec<Hint>;

    fn wants(&self, wanted: &mut Wanted) {
        wanted.new_epochs += i64::try_from(self.chains.len()).unwrap_or(i64::MAX);
        wanted.names.extend(self.chains.iter().map(|chain| (chain.kind.clone(), chain.key.clone())));
    }

    fn decide(&self, page: &mut Page) -> Vec<Hint> {
        accept(page, (&self.kind, &self.key), &self.spawned, &self.chains, &self.failed, page.now)
    }
}

impl Decide for Quarantined {
    type Answer = ();

    fn wants(&self, _: &mut Wanted) {}

    fn decide(&self, page: &mut Page) {
        page.writes.quarantined.push(self.clone());
        self.job.iter().for_each(|id| page.job(id, Job::Forget));
    }
}

/// [`crate::Jobs::keep_job`]
pub(crate) struct KeepJob {
    pub(crate) id: String,
    pub(crate) body: Vec<u8>,
}

impl Decide for KeepJob {
    type Answer = ();

    fn wants(&self, _: &mut Wanted) {}

    fn decide(&self, page: &mut Page) {
        page.job(&self.id, Job::Put(self.body.clone(), page.now));
    }
}

/// [`crate::Jobs::forget_jobs`]
pub(crate) struct ForgetJobs(pub(crate) Vec<String>);

impl Decide for ForgetJobs {
    type Answer = ();

    fn wants(&self, _: &mut Wanted) {}

    fn decide(&self, page: &mut Page) {
        self.0.iter().for_each(|id| page.job(id, Job::Forget));
    }
}
