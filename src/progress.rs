//! How far a run has come, in its own words.
//!
//! A handler reports as often as it likes: a Rust handler by [`crate::Job::progress`], a program by
//! lines on its standard output, and whoever was called over HTTP by a POST to the URL in the job.
//! A [`Desk`], one in each worker, keeps the last report of each run and writes what is new to the
//! ledger from time to time, all runs together; the end of a run takes its last report along. A
//! report renews no lease and fails no run, and one that is lost is no harm.
//!
//! A one-off job has no record that its progress could be kept with. Of those that report, the desk keeps a
//! row in the ledger while they run; the rows of a worker that has died are soon forgotten.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::clock::{self, Time};
use crate::ledger::{Ledger, LedgerError, RunningJob};
use crate::reason::excerpt;

/// What was reported is written this often at most.
const EVERY: Duration = Duration::from_secs(1);
/// The row of a one-off job is forgotten when its worker says nothing of it for so long.
const HOLD: Duration = Duration::from_secs(60);
/// So often the worker says at least that it goes on.
const AGAIN: Duration = Duration::from_secs(20);
/// The longest name of a phase, in characters; the rest is cut off.
const LONGEST_PHASE: usize = 100;
/// The largest report of another program, in bytes.
pub const MAX_REPORT: usize = 4 * 1024;

/// How far a run had come when it last said so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What it is at; empty when it has not said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// How much of it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    /// Out of how much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// When it said so.
    pub at: Time,
}

impl Progress {
    /// As the ledger keeps it.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what the ledger has kept.
    pub fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// `listings 3/12`
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.phase)?;
        let space = if self.phase.is_empty() { "" } else { " " };
        match (self.done, self.total) {
            (Some(done), Some(total)) => write!(f, "{space}{done}/{total}"),
            (Some(done), None) => write!(f, "{space}{done}"),
            (None, Some(total)) => write!(f, "{space}?/{total}"),
            (None, None) => Ok(()),
        }
    }
}

/// What a run reports. Whatever it leaves out of a phase that goes on stays as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Report {
    /// What it is at now; absent, the same as before.
    #[serde(default)]
    pub phase: Option<String>,
    /// How much of the phase is done.
    #[serde(default)]
    pub done: Option<u64>,
    /// Out of how much.
    #[serde(default)]
    pub total: Option<u64>,
}

impl Report {
    /// Reads what another program has written: a JSON object with one of `phase`, `done` and `total`
    /// at least. Other fields are ignored.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn read(text: &[u8]) -> Result<Self, String> {
        if text.len() > MAX_REPORT {
            return Err(format!("it has {} bytes; at most {MAX_REPORT} are read", text.len()));
        }
        let wrong = |why: &dyn fmt::Display| {
            format!("it is no object such as {{\"phase\":\"listings\",\"done\":3,\"total\":12}}: {why}")
        };
        if text.trim_ascii().first() != Some(&b'{') {
            return Err(wrong(&"it does not begin with a brace"));
        }
        let report: Self = serde_json::from_slice(text).map_err(|error| wrong(&error))?;
        if report == Self::default() {
            return Err(wrong(&"it says nothing"));
        }
        Ok(report)
    }

    /// Where a run stands that has reported this after `before`.
    fn after(self, before: Option<&Progress>, at: Time) -> Progress {
        let phase = self.phase.map(|phase| excerpt(phase.as_bytes(), LONGEST_PHASE));
        let same = before.filter(|before| phase.as_ref().is_none_or(|phase| *phase == before.phase));
        Progress {
            done: self.done.or_else(|| same?.done),
            total: self.total.or_else(|| same?.total),
            phase: phase.or_else(|| Some(same?.phase.clone())).unwrap_or_default(),
            at,
        }
    }
}

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
        self.open(number)
    }

    /// A run begins that has this claim.
    pub fn open(self: &Arc<Self>, fence: i64) -> Open {
        // 128 bits that nobody can guess, whatever else he knows of this process.
        let token = self
            .base
            .as_ref()
            .map(|_| clock::secret()[..16].iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        let mut state = self.state();
        state.runs.insert(fence, None);
        if let Some(token) = &token {
            state.tokens.insert(token.clone(), fence);
        }
        drop(state);
        Open { desk: self.clone(), fence, token }
    }

    fn take(&self, fence: i64, report: Report) {
        let now = self.ledger.now();
        let mut state = self.state();
        let Some(run) = state.runs.get_mut(&fence) else { return };
        let progress = report.after(run.as_ref(), now);
        *run = Some(progress.clone());
        state.fresh.insert(fence, progress);
        drop(state);
        self.news.notify_one();
    }

    /// Whether a run goes on that has this token in its URL.
    pub fn knows(&self, token: &str) -> bool {
        self.state().tokens.contains_key(token)
    }

    /// Takes a report that came to the URL with this token; answers whether its run goes on.
    pub fn take_by_token(&self, token: &str, report: Report) -> bool {
        let fence = self.state().tokens.get(token).copied();
        if let Some(fence) = fence {
            self.take(fence, report);
        }
        fence.is_some()
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
        let runs = async {
            if fresh.is_empty() { Ok(()) } else { self.ledger.note_progress(fresh.clone().into_iter().collect()).await }
        };
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
    fence: i64,
    token: Option<String>,
}

impl Open {
    /// What the run reports to.
    pub fn reporter(&self) -> Reporter {
        let url =
            self.token.as_ref().zip(self.desk.base.as_ref()).map(|(token, base)| format!("{base}/progress/{token}"));
        Reporter(Some(Arc::new(Place { desk: self.desk.clone(), fence: self.fence, url })))
    }

    /// Ends it; answers where it stood.
    pub fn end(self) -> Option<Progress> {
        self.desk.state().runs.get(&self.fence).cloned().flatten()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut state = self.desk.state();
        state.runs.remove(&self.fence);
        state.fresh.remove(&self.fence);
        if let Some(token) = &self.token {
            state.tokens.remove(token);
        }
        let job = state.jobs.remove(&self.fence);
        if let Some(job) = job.filter(|_| state.noted.remove(&self.fence)) {
            state.ended.push(job.id);
            drop(state);
            self.desk.news.notify_one();
        }
    }
}

/// Where a run reports how far it has come. The default one goes nowhere.
#[derive(Clone, Default)]
pub struct Reporter(Option<Arc<Place>>);

struct Place {
    desk: Arc<Desk>,
    fence: i64,
    url: Option<String>,
}

impl Reporter {
    /// Takes a report; when the run has ended, it is dropped.
    pub fn report(&self, report: Report) {
        if let Some(place) = &self.0 {
            place.desk.take(place.fence, report);
        }
    }

    /// Where another program can POST reports.
    pub fn url(&self) -> Option<&str> {
        self.0.as_ref()?.url.as_deref()
    }

    /// Whether anybody takes what is reported.
    pub fn is_open(&self) -> bool {
        self.0.is_some()
    }
}

impl fmt::Debug for Reporter {
    /// Without the URL, which lets whoever has it report.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reporter").field(&self.0.as_ref().map(|place| place.fence)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, Entropy};
    use crate::ledger::LedgerUrl;
    use crate::ledger::sqlite::SqliteLedger;

    fn progress(phase: &str, done: Option<u64>, total: Option<u64>) -> Progress {
        Progress { phase: phase.into(), done, total, at: Time::from_millis(7) }
    }

    #[test]
    fn what_a_report_makes_of_where_a_run_stood() {
        let listings = progress("listings", Some(3), Some(12));
        let table = [
            (None, r#"{"phase":"identity"}"#, progress("identity", None, None)),
            (None, r#"{"done":3}"#, progress("", Some(3), None)),
            (None, r#"{"phase":"listings","done":3,"total":12,"more":[]}"#, listings.clone()),
            (Some(&listings), r#"{"done":4}"#, progress("listings", Some(4), Some(12))),
            (Some(&listings), r#"{"phase":"listings","done":4}"#, progress("listings", Some(4), Some(12))),
            (Some(&listings), r#"{"phase":"metrics"}"#, progress("metrics", None, None)),
            (Some(&listings), r#" {"phase":null,"total":13} "#, progress("listings", Some(3), Some(13))),
            (None, "{\"phase\":\"a\\nb\"}", progress("a b", None, None)),
        ];
        for (before, text, after) in table {
            let report = Report::read(text.as_bytes()).unwrap();
            assert_eq!(report.after(before, Time::from_millis(7)), after, "{text}");
        }
    }

    #[test]
    fn what_is_no_report() {
        for text in ["", "listings", "[3,12]", "{}", "{\"phase\":3}", "{\"done\":-1}", "{\"done\":1.5}", "{\"done\":1"]
        {
            let why = Report::read(text.as_bytes()).unwrap_err();
            assert!(why.starts_with("it is no object such as {\"phase\""), "{text}: {why}");
        }
        let long = format!("{{\"phase\":\"{}\"}}", "x".repeat(MAX_REPORT));
        assert!(Report::read(long.as_bytes()).unwrap_err().ends_with("at most 4096 are read"));
        let long = Report { phase: Some("x".repeat(3_000)), ..Report::default() };
        assert_eq!(long.after(None, Time::default()).phase.chars().count(), LONGEST_PHASE + 1, "and an ellipsis");
    }

    #[test]
    fn in_words_and_back_from_the_ledger() {
        let table = [
            (progress("listings", Some(3), Some(12)), "listings 3/12"),
            (progress("listings", Some(3), None), "listings 3"),
            (progress("", Some(3), Some(12)), "3/12"),
            (progress("finalize", None, None), "finalize"),
            (progress("listings", None, Some(12)), "listings ?/12"),
        ];
        for (progress, words) in table {
            assert_eq!(progress.to_string(), words);
            assert_eq!(Progress::read(&progress.text()), Some(progress));
        }
    }

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
        assert_ne!(twin.open(1).reporter().url(), desk.open(1).reporter().url());
        let (one, other) = (desk.open(1), desk.open(2));
        let (reporter, theirs) = (one.reporter(), other.reporter());
        let token =
            |reporter: &Reporter| reporter.url().unwrap().strip_prefix("http://here/progress/").unwrap().to_owned();
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
        Reporter::default().report(said(6));
        assert!(!Reporter::default().is_open() && Reporter::default().url().is_none());
    }
}
