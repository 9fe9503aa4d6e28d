//! One of the two ledgers of the differential test: what its answers have said so far, and all that can be read of it,
//! told in words that are the same for both.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use roundelay::clock::Time;
use roundelay::guard::Guard;
use roundelay::ids::{Epoch, Fence, TickNo};
use roundelay::ledger::{
    ClaimRequest, FinishRequest, Hint, Kinds, Ledger, LedgerError, ListFilter, NewChain, OWNERS_EFFORT, Sent,
};

use super::LEASE;
use crate::harness::SLACK;

/// Time passes in these steps, and times count by this grid: both ledgers take real time for a sequence. No bound in a
/// ledger, and none that a verb has here, is near a multiple of a step, so none decides by what a verb took.
pub const GRID: Duration = Duration::from_secs(24);

/// What has been asked for last, to be asked again.
#[derive(Clone)]
pub enum Asked {
    Enroll(Vec<NewChain>),
    Claim(ClaimRequest),
    Finish(FinishRequest),
}

/// One of the two ledgers, with what its runs have seen so far.
pub struct Side {
    pub ledger: Arc<dyn Ledger>,
    /// A little before the sequence began.
    pub begin: Time,
    pub session: i64,
    pub asked: Option<Asked>,
    pub seen: Seen,
    /// Epochs and fences that the ledger has given, by the order in which they were seen.
    pub numbers: HashMap<(char, String), usize>,
}

/// What the answers have said. An answer that was lost says nothing.
#[derive(Clone, Default)]
pub struct Seen {
    pub hints: Vec<Hint>,
    /// Claims that were granted, and whether a batch had been waited for.
    pub granted: Vec<(Hint, Fence, bool)>,
    pub sent: Vec<Sent>,
    /// The first messages of chains.
    pub created: Vec<Sent>,
}

impl Side {
    pub async fn new(ledger: Arc<dyn Ledger>, begin: Time) -> Self {
        let session = ledger.begin_session("w".into(), LEASE).await.unwrap();
        Self { ledger, begin, session, asked: None, seen: Seen::default(), numbers: HashMap::new() }
    }

    /// A text with numbers that the ledger has given replaced by their order, and times by their distance from the
    /// beginning in steps of the grid.
    pub fn told(&mut self, text: &str) -> String {
        let mut told = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
            let (before, digits) = rest.split_at(at);
            let length = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
            let (number, after) = digits.split_at(length);
            told.push_str(before);
            match length {
                13 => {
                    let passed = number.parse::<i64>().unwrap() - self.begin.as_millis();
                    write!(told, "T{:+}", passed.div_euclid(millis(GRID))).unwrap();
                }
                14.. => match told.trim_end_matches(": ").rsplit(|c: char| !c.is_alphabetic()).next() {
                    Some(what @ ("epoch" | "parent" | "fence")) => {
                        let sort = if what == "fence" { 'f' } else { 'e' };
                        let next = self.numbers.len();
                        let known = self.numbers.entry((sort, number.to_owned())).or_insert(next);
                        write!(told, "{sort}#{known}").unwrap();
                    }
                    _ => told.push('#'),
                },
                _ => told.push_str(number),
            }
            rest = after;
        }
        told.push_str(rest);
        told
    }

    pub async fn messages(&self) -> Result<Vec<Hint>, LedgerError> {
        let queues = vec!["work".into(), "other".into()];
        self.ledger.messages(queues, kinds(), Epoch::NONE, 100).await
    }

    /// What tells a chain from others: name, message, and the number by which its epoch is told.
    pub fn place(&self, hint: &Hint) -> (String, String, Time, TickNo, u32, Option<usize>) {
        let told = self.numbers.get(&('e', hint.epoch.to_string())).copied();
        (hint.kind.clone(), hint.key.clone(), hint.due, hint.tick, hint.attempt, told)
    }

    pub fn granted(&self, stale: bool) -> Option<&(Hint, Fence, bool)> {
        self.seen.granted.len().checked_sub(if stale { 2 } else { 1 }).map(|n| &self.seen.granted[n])
    }

    pub fn sent(&self, before: usize) -> Option<Sent> {
        self.seen.sent.len().checked_sub(1 + before).map(|n| self.seen.sent[n])
    }

    pub fn request(&self, hint: Hint) -> ClaimRequest {
        ClaimRequest {
            hint,
            worker: "w".into(),
            session: self.session,
            again: false,
            takeover: false,
            guard: Guard::default(),
            recurs: true,
            prepared: 9,
            ahead: Duration::ZERO,
        }
    }

    /// The last point of the grid: both ledgers give the same numbers of steps, however long they take.
    pub fn now(&self) -> Time {
        let (passed, grid) = (self.ledger.now().since(self.begin).as_millis(), GRID.as_millis());
        self.begin + Duration::from_millis(u64::try_from(passed / grid * grid).unwrap())
    }

    /// What can be read of chains, messages, runs, jobs and failures.
    pub async fn state(&mut self) -> Result<String, LedgerError> {
        let ledger = self.ledger.clone();
        let later = self.now() + Duration::from_secs(1_000);
        let of = |kind: &str, key: &str| ledger.chains(kind.into(), key.into());
        // All at once, so that the answers come by one round trip.
        let chains = async { tokio::try_join!(of("sync", "a"), of("sync", "b"), of("sync", "c")) };
        let found = async { tokio::try_join!(of("sync", "found"), of("part", "1"), of("part", "2")) };
        let (chains, found, mut messages, mut overdue, mut late) = tokio::try_join!(
            chains,
            found,
            self.messages(),
            ledger.overdue("work".into(), kinds(), later, None, 100),
            ledger.late(later, Vec::new(), 100),
        )?;
        let (list, owners, census, attempts, kept, failures, due) = tokio::try_join!(
            ledger.list(ListFilter::default(), None, 100),
            ledger.owners(String::new(), 100, later, Vec::new(), OWNERS_EFFORT),
            ledger.census(SLACK),
            ledger.attempts(Fence::NONE, 1_000),
            ledger.kept_jobs(0, 100),
            ledger.failures(100),
            ledger.due_items("sync".into(), 100),
        )?;
        // This names the epochs, in the order of keys.
        let chains = [chains.0, chains.1, chains.2, found.0, found.1, found.2].concat();
        let chains = self.told(&lines(&chains));
        // Which of several chains gets its new epoch first is open, and so is the order of those that are late, or due,
        // alike.
        messages.sort_by_key(|hint| self.place(hint));
        overdue.sort_by_key(|overdue| self.place(&overdue.hint));
        late.sort_by_key(|late| self.place(&late.hint));
        let jobs: Vec<_> = kept.into_iter().map(|job| (job.body, job.kept_at)).collect();
        let mut due: Vec<_> = due.into_iter().map(|due| due.failure).collect();
        due.sort_by_key(|due| (due.next_retry_at, due.key.clone(), due.item.clone()));
        let parts = [
            lines(&messages),
            lines(&overdue),
            lines(&late),
            lines(&list),
            lines(&owners),
            format!("{census:#?}\n"),
            lines(&attempts),
            lines(&jobs),
            lines(&failures),
            lines(&due),
        ];
        let text = parts.join("---\n");
        Ok(chains + &self.told(&text))
    }
}

/// A line for each.
fn lines<T: std::fmt::Debug>(all: &[T]) -> String {
    all.iter().fold(String::new(), |mut text, one| {
        writeln!(text, "{one:?}").unwrap();
        text
    })
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap()
}

fn kinds() -> Kinds {
    let all = vec![String::from("sync"), String::from("part")];
    Kinds { recurring: all.clone(), all }
}
