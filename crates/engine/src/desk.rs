//! The desk: takes what a worker's runs report, and writes it to the ledger.
//!
//! A [`Desk`], one in each worker, keeps the last report of each run and writes what is new to the ledger from time to
//! time, all runs together; the end of a run takes its last report along. A report renews no lease and fails no run,
//! and one that is lost is no harm.
//!
//! A one-off job has no record that its progress could be kept with. Of those that report, the desk keeps a row in the
//! ledger while they run; the rows of a worker that has died are soon forgotten.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use roundelay_handler::Reports;
use roundelay_ledger::{Ledger, LedgerError, RunningJob};
use roundelay_model::clock;
use roundelay_model::ids::Fence;
use roundelay_model::progress::{Progress, Report};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// What was reported is written this often at most.
const EVERY: Duration = Duration::from_secs(1);
/// The row of a one-off job is forgotten when its worker has not renewed it for this long.
const HOLD: Duration = Duration::from_secs(60);
/// How often the worker renews such a row at least.
const AGAIN: Duration = Duration::from_secs(20);

/// Takes the reports of a worker's runs.
pub struct Desk {
    ledger: Arc<dyn Ledger>,
    worker: String,
    /// What the URLs that reports can be POSTed to begin with; absent when nothing listens.
    base: Option<String>,
    state: Mutex<State>,
    news: Notify,
}

#[derive(Default)]
struct State {
    /// Runs that go on, and where they stand: by their fences, or, of one-off jobs, by numbers below zero.
    runs: HashMap<i64, Option<Progress>>,
    /// What is known of one-off jobs that run.
    jobs: HashMap<i64, RunningJob>,
    /// The one-off jobs of which the ledger knows, or may know.
    noted: BTreeSet<i64>,
    /// The ids of those of them that have ended.
    ended: Vec<String>,
    /// The number of the last one.
    last: i64,
    /// What the ledger does not know yet.
    fresh: BTreeMap<i64, Progress>,
    /// What stands at the end of the URLs.
    tokens: HashMap<String, i64>,
}

impl Desk {
    /// A desk that writes to `ledger`. Reports are also taken at URLs that begin with `base`.
    pub fn new(ledger: Arc<dyn Ledger>, worker: &str, base: Option<String>) -> Arc<Self> {
        let (worker, state) = (worker.to_owned(), Mutex::default());
        Arc::new(Self { ledger, worker, base, state, news: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// A run of a one-off job begins.
    pub fn open_job(self: &Arc<Self>, job: RunningJob) -> Open {
        let number = {
            let mut state = self.state();
            state.last -= 1;
            let number = state.last;
            state.jobs.insert(number, job);
            number
        };
        self.begin(number)
    }

    /// A run begins that has this claim.
    pub fn open(self: &Arc<Self>, fence: Fence) -> Open {
        self.begin(fence.get())
    }

    fn begin(self: &Arc<Self>, number: i64) -> Open {
        // 128 bits that cannot be guessed, whatever else is known of this process.
        let token = self
            .base
            .as_ref()
            .map(|_| clock::secret()[..16].iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        let mut state = self.state();
        state.runs.insert(number, None);
        if let Some(token) = &token {
            state.tokens.insert(token.clone(), number);
        }
        drop(state);
        Open { desk: self.clone(), number, token }
    }

    fn take(&self, number: i64, report: Report) {
        let now = self.ledger.now();
        let mut state = self.state();
        let Some(run) = state.runs.get_mut(&number) else { return };
        let progress = report.after(run.as_ref(), now);
        *run = Some(progress.clone());
        state.fresh.insert(number, progress);
        drop(state);
        self.news.notify_one();
    }

    /// Whether a run goes on that has this token in its URL.
    pub fn knows(&self, token: &str) -> bool {
        self.state().tokens.contains_key(token)
    }

    /// Takes a report that came to the URL with this token; answers whether its run goes on.
    pub fn take_by_token(&self, token: &str, report: Report) -> bool {
        let number = self.state().tokens.get(token).copied();
        if let Some(number) = number {
            self.take(number, report);
        }
        number.is_some()
    }

    /// Writes what is new, for ever.
    pub async fn keep_writing(self: Arc<Self>) {
        loop {
            // While the ledger knows of one-off jobs, it must hear that they go on.
            let known = !self.state().noted.is_empty();
            if known {
                let _ = timeout(AGAIN, self.news.notified()).await;
            } else {
                self.news.notified().await;
            }
            self.write().await;
            sleep(EVERY).await;
        }
    }

    /// Writes what is new, once.
    pub async fn write(&self) {
        let (fresh, jobs, ended) = {
            let mut state = self.state();
            let mut of_jobs = std::mem::take(&mut state.fresh);
            let fresh = of_jobs.split_off(&0);
            state.noted.extend(of_jobs.into_keys());
            (fresh, state.noted_jobs(), std::mem::take(&mut state.ended))
        };
        let told = fresh.iter().map(|(fence, progress)| (Fence(*fence), progress.clone())).collect();
        let runs = async { if fresh.is_empty() { Ok(()) } else { self.ledger.note_progress(told).await } };
        if let Err(error) = runs.await {
            self.not_written(&error);
            let mut state = self.state();
            let State { runs, fresh: since, .. } = &mut *state;
            for (fence, progress) in fresh.into_iter().filter(|(fence, _)| runs.contains_key(fence)) {
                since.entry(fence).or_insert(progress);
            }
        }
        if jobs.is_empty() && ended.is_empty() {
            return;
        }
        // All that run, so that what was not written is with the next.
        if let Err(error) = self.ledger.note_running(self.worker.clone(), jobs, ended.clone(), HOLD).await {
            self.not_written(&error);
            self.state().ended.extend(ended);
        }
    }

    fn not_written(&self, error: &LedgerError) {
        tracing::debug!(%error, "the progress of runs was not written; it is with the next report");
        self.news.notify_one();
    }
}

impl State {
    /// The one-off jobs of which the ledger is to know, as they stand.
    fn noted_jobs(&self) -> Vec<RunningJob> {
        let stands = |number: &i64| {
            let progress = self.runs.get(number)?.clone()?;
            Some(RunningJob { progress, ..self.jobs.get(number)?.clone() })
        };
        self.noted.iter().filter_map(stands).collect()
    }
}

/// A run that goes on. When this is dropped, nothing more is taken for it.
pub struct Open {
    desk: Arc<Desk>,
    number: i64,
    token: Option<String>,
}

impl Open {
    /// What the run reports to.
    pub fn reporter(&self) -> Arc<dyn Reports> {
        let url =
            self.token.as_ref().zip(self.desk.base.as_ref()).map(|(token, base)| format!("{base}/progress/{token}"));
        Arc::new(Reporter { desk: self.desk.clone(), number: self.number, url })
    }

    /// Ends it; answers where it stood.
    pub fn end(self) -> Option<Progress> {
        self.desk.state().runs.get(&self.number).cloned().flatten()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut state = self.desk.state();
        state.runs.remove(&self.number);
        state.fresh.remove(&self.number);
        if let Some(token) = &self.token {
            state.tokens.remove(token);
        }
        let job = state.jobs.remove(&self.number);
        if let Some(job) = job.filter(|_| state.noted.remove(&self.number)) {
            state.ended.push(job.id);
            drop(state);
            self.desk.news.notify_one();
        }
    }
}

struct Reporter {
    desk: Arc<Desk>,
    number: i64,
    url: Option<String>,
}

impl Reports for Reporter {
    fn report(&self, report: Report) {
        self.desk.take(self.number, report);
    }

    fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roundelay_ledger::LedgerUrl;
    use roundelay_ledger::sqlite::SqliteLedger;
    use roundelay_model::clock::{Clock, Entropy, Time};

    #[test]
    fn a_report_counts_for_its_run_and_only_while_it_runs() {
        let entropy = Entropy::seeded(1);
        let ledger =
            SqliteLedger::open(&LedgerUrl::Memory, Clock::starting_at(Time::from_millis(7)), &entropy).unwrap();
        let base = || Some("http://here".to_owned());
        let ledger: Arc<dyn Ledger> = Arc::new(ledger);
        // Nothing that two workers have in common makes the URLs, such as a seed.
        let twin = Desk::new(ledger.clone(), "w", base());
        let desk = Desk::new(ledger, "w", base());
        assert_ne!(twin.open(Fence(1)).reporter().url(), desk.open(Fence(1)).reporter().url());
        let (one, other) = (desk.open(Fence(1)), desk.open(Fence(2)));
        let (reporter, theirs) = (one.reporter(), other.reporter());
        let token = |reporter: &Arc<dyn Reports>| {
            reporter.url().unwrap().strip_prefix("http://here/progress/").unwrap().to_owned()
        };
        assert_ne!(token(&reporter), token(&theirs));
        assert_eq!(token(&reporter).len(), 32);
        let said = |done| Report { phase: Some("a".into()), done: Some(done), total: None };
        reporter.report(said(1));
        assert!(desk.take_by_token(&token(&reporter), said(2)));
        assert!(!desk.take_by_token("guessed", said(3)));
        assert_eq!(other.end(), None);
        assert_eq!(one.end().map(|progress| progress.done), Some(Some(2)));
        reporter.report(said(4));
        assert!(!desk.take_by_token(&token(&reporter), said(5)));
        assert!(desk.state().fresh.is_empty() && desk.state().runs.is_empty() && desk.state().tokens.is_empty());
    }
}
