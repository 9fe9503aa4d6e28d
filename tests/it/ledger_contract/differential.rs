//! The same verbs, one after the other, on SQLite and on PostgreSQL. After each verb both answers must be the same, and
//! so must all that can be read of the chains, jobs and failures. A verb is asked again, as after an answer that was
//! lost; PostgreSQL's connections are cut, mostly around a commit; time passes.
//!
//! Each sequence has a seed. `ROUNDELAY_SEED` is the first one, which is another each time by itself, and
//! `ROUNDELAY_CASES` how many are tried; without it sequences are tried for 20 seconds.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use roundelay::clock::Entropy;
use roundelay::ledger::postgres::PostgresLedger;
use roundelay::ledger::sqlite::SqliteLedger;
use roundelay::ledger::{Ledger, LedgerError, LedgerUrl};
use roundelay::secret::Secret;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::cuts::{Cuts, Struck};
use super::differential_side::{GRID, Seen, Side};
use super::differential_verbs::{FailureVerb, KEYS, Verb, sequences};
use crate::harness::{Schema, number};

/// A sequence begins so long after a point of the grid: a clock that follows a server's may seem to go back a little.
const EARLY: Duration = Duration::from_millis(500);
/// A sequence ends when it has taken this long. After 5.5 s a time that lies `SLACK` back would count for the next step
/// of the grid, and the last verb takes its time, too.
const LONGEST: Duration = Duration::from_millis(3_500);
/// So long are sequences tried when it is not said how many.
const USUAL: Duration = Duration::from_secs(20);

/// What may become of a verb whose connection is cut.
const OUTCOMES: [&str; 6] = [
    "answered after a commit that did not arrive",
    "answered after an answer that was lost",
    "answered after another cut",
    "an error, and written",
    "an error, and not written",
    "not reached",
];

/// Both ledgers, which go by one clock: PostgreSQL's.
struct Both {
    theirs: Arc<dyn Ledger>,
    ours: Arc<dyn Ledger>,
    /// Ways past the ledgers to their tables.
    beside: tokio_postgres::Client,
    own: rusqlite::Connection,
    /// `UNSEEN` on PostgreSQL.
    unseen: tokio_postgres::Statement,
    /// Statements that empty all tables that sequences write to.
    empty: [String; 2],
    folder: TempDir,
    schema: Schema,
    cuts: Cuts,
    /// The ledger's URL that leads over `cuts`.
    url: Secret,
}

impl Both {
    async fn new() -> Self {
        let schema = Schema::new().await;
        // What is compared needs no disk.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        let (cuts, url) = Cuts::before(&schema).await;
        let (theirs, ours) = Self::opened(&url, &folder).await;
        let beside = schema.raw().await;
        let own = rusqlite::Connection::open(folder.path().join("ledger.db")).unwrap();
        own.busy_timeout(LONGEST).unwrap();
        let kept = |table: &String| !["meta", "ledger_clock", "clock_sets"].contains(&&**table);
        let tables = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() ORDER BY tablename";
        let tables: Vec<String> =
            beside.query(tables, &[]).await.unwrap().iter().map(|row| row.get(0)).filter(kept).collect();
        // Nor does a commit wait for the disk where all tables that it writes to are unlogged.
        let unlogged: String = tables.iter().map(|table| format!("ALTER TABLE {table} SET UNLOGGED;")).collect();
        beside.batch_execute(&unlogged).await.unwrap();
        let unseen = beside.prepare(UNSEEN).await.unwrap();
        let emptied = |tables: Vec<String>| tables.iter().map(|table| format!("DELETE FROM {table};")).collect();
        let their_tables = emptied(tables);
        let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name";
        let tables =
            own.prepare(tables).unwrap().query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        let tables: Vec<String> = tables;
        let our_tables = emptied(tables.into_iter().filter(kept).collect());
        Self { theirs, ours, beside, own, empty: [their_tables, our_tables], folder, schema, cuts, url, unseen }
    }

    async fn opened(url: &Secret, folder: &TempDir) -> (Arc<dyn Ledger>, Arc<dyn Ledger>) {
        let theirs = PostgresLedger::open(url, &Entropy::from_os()).await.unwrap();
        let file = LedgerUrl::Sqlite(folder.path().join("ledger.db"));
        let ours = SqliteLedger::open(&file, theirs.clock(), &Entropy::from_os()).unwrap();
        (Arc::new(theirs), Arc::new(ours))
    }

    async fn reopen(&mut self) {
        (self.theirs, self.ours) = Self::opened(&self.url, &self.folder).await;
    }

    async fn empty(&self) {
        self.own.execute_batch(&format!("BEGIN IMMEDIATE;{}COMMIT", self.empty[1])).unwrap();
        self.beside.batch_execute(&format!("BEGIN;{}COMMIT", self.empty[0])).await.unwrap();
        self.note_time();
    }

    /// Time passes as where another worker has found that the server's clock had been set back for so long.
    async fn pass(&self, time: Duration) {
        let set = "UPDATE ledger_clock SET set_by = set_by - $1, version = version + 1";
        self.beside.execute(set, &[&i64::try_from(time.as_micros()).unwrap()]).await.unwrap();
        self.theirs.read_clock().await.unwrap();
        self.note_time();
    }

    /// SQLite's own clock, which is not used here, notes the time in the file, for a trigger.
    fn note_time(&self) {
        self.own.execute("UPDATE ledger_clock SET seen = ?1", [self.ours.now().as_millis()]).unwrap();
    }

    /// Ends PostgreSQL's connections.
    async fn cut(&self) {
        let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
        self.beside.execute(kill, &[&self.schema.name]).await.unwrap();
    }

    /// All that can be seen of SQLite's ledger.
    async fn our_state(&self, ours: &mut Side) -> String {
        let mut unseen = self.own.prepare_cached(UNSEEN).unwrap();
        let unseen = unseen.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        ours.state().await.unwrap() + &ours.told(&sorted(unseen))
    }

    /// All that can be seen of PostgreSQL's ledger.
    async fn their_state(&self, theirs: &mut Side) -> String {
        let (state, unseen) = tokio::join!(theirs.state(), self.beside.query(&self.unseen, &[]));
        let unseen = unseen.unwrap().iter().map(|row| row.get(0)).collect();
        state.unwrap() + &theirs.told(&sorted(unseen))
    }

    /// Carries out a sequence of verbs on both, from nothing on.
    async fn play(&mut self, verbs: &[(Verb, usize)], count: &RefCell<Count>) -> Result<(), String> {
        self.empty().await;
        let (began, begin) = (Instant::now(), self.ours.now() - EARLY);
        let mut ours = Side::new(self.ours.clone(), begin).await;
        let mut theirs = Side::new(self.theirs.clone(), begin).await;
        let mut seen = [self.our_state(&mut ours).await, self.their_state(&mut theirs).await];
        let mut cut = None;
        for (nth, (verb, key)) in verbs.iter().enumerate() {
            let (verb, key) = (*verb, KEYS[*key]);
            match verb {
                _ if began.elapsed() > LONGEST => break,
                Verb::Cut { at } => cut = Some(at),
                Verb::Pass { steps } => self.pass(GRID * u32::from(steps)).await,
                Verb::Reopen => {
                    self.reopen().await;
                    (ours.ledger, theirs.ledger) = (self.ours.clone(), self.theirs.clone());
                }
                _ => {}
            }
            // What these do needs no connection that could be cut.
            let is_idle = matches!(verb, Verb::Cut { .. } | Verb::Pass { .. } | Verb::Reopen);
            let cut_at = cut.take_if(|_| !is_idle);
            let (answer, struck) = match cut_at {
                Some(Some(moment)) => {
                    self.cuts.arm(moment);
                    let answer = theirs.act(verb, key).await;
                    (answer, self.cuts.disarm())
                }
                Some(None) => (tokio::join!(theirs.act(verb, key), self.cut()).0, Some(Struck::Anything)),
                None => (insisted(&mut theirs, verb, key).await, None),
            };
            let is_error = answer.is_err();
            // A note that could not be written is written some time later.
            let answer = match verb {
                Verb::Mark { .. } if is_error && struck.is_some() => insisted(&mut theirs, verb, key).await,
                _ => answer,
            };
            let place = format!("verb {nth}, {verb:?} of {key}, cut {cut_at:?}");
            let outcome = match (answer, struck) {
                (Ok(answer), _) => {
                    let answers = [ours.act(verb, key).await.unwrap(), answer];
                    let answers = [ours.told(&answers[0]), theirs.told(&answers[1])];
                    if struck.is_none() || !is_asked_twice(verb) {
                        compared(&place, "the answers", &answers)?;
                    }
                    match struck {
                        Some(_) if is_error => OUTCOMES[3],
                        Some(Struck::Uncommitted) => OUTCOMES[0],
                        Some(Struck::Unanswered) => OUTCOMES[1],
                        Some(Struck::Anything) => OUTCOMES[2],
                        None => OUTCOMES[5],
                    }
                }
                (Err(error), None) => return Err(format!("{place}: PostgreSQL says: {error}")),
                // The verb was carried out, or it was not. Its answer is lost.
                (Err(_), Some(_)) => {
                    if self.their_state(&mut theirs).await == seen[1] {
                        // A claim may have failed before, when its message was looked for.
                        let asks =
                            !matches!(verb, Verb::Claim { .. }) || theirs.seen.hints.len() > ours.seen.hints.len();
                        if asks && let Some(asked) = ours.asked_by(verb, key).await.unwrap() {
                            ours.asked = Some(asked);
                        }
                        *count.borrow_mut().outcomes.entry(OUTCOMES[4]).or_default() += 1;
                        continue;
                    }
                    let known = ours.seen.clone();
                    let own = ours.act(verb, key).await.unwrap();
                    ours.told(&own);
                    ours.seen = Seen { hints: std::mem::take(&mut ours.seen.hints), ..known };
                    OUTCOMES[3]
                }
            };
            seen = [self.our_state(&mut ours).await, self.their_state(&mut theirs).await];
            compared(&place, "the states after it", &seen)?;
            let mut count = count.borrow_mut();
            *count.verbs.entry(verb.name()).or_default() += 1;
            if cut_at.is_some() {
                *count.outcomes.entry(outcome).or_default() += 1;
            }
        }
        for side in [ours, theirs] {
            side.ledger.end_session(side.session).await.unwrap();
        }
        Ok(())
    }
}

/// Carries out a verb. For a second after a cut, a ledger may not connect again.
async fn insisted(side: &mut Side, verb: Verb, key: &str) -> Result<String, LedgerError> {
    let (began, hints) = (Instant::now(), side.seen.hints.len());
    loop {
        match side.act(verb, key).await {
            Err(LedgerError::Open { .. }) if began.elapsed() < Duration::from_millis(1_500) => {
                side.seen.hints.truncate(hints);
                sleep(Duration::from_millis(100)).await;
            }
            answer => return answer,
        }
    }
}

/// How often each verb was compared, and how often each of `OUTCOMES` came of a cut.
#[derive(Default)]
struct Count {
    verbs: BTreeMap<String, u64>,
    outcomes: BTreeMap<&'static str, u64>,
}

/// Verbs that PostgreSQL's ledger asks for once more where the connection is lost. If the first was carried out, the
/// second finds nothing left to do, and says so; catch-up sends the message.
fn is_asked_twice(verb: Verb) -> bool {
    let planned = matches!(verb, Verb::Failure(FailureVerb::Feed | FailureVerb::Wait | FailureVerb::GiveUp));
    planned || matches!(verb, Verb::Advance | Verb::AdvanceAll | Verb::Reschedule)
}

/// What decides later answers, and is read by no verb.
const UNSEEN: &str = "
    SELECT 'unique ' || kind || ' ' || key || ' ' || id || ' ' || until FROM uniques
    UNION ALL SELECT 'held ' || kind || ' ' || key || ' ' || item || ' ' || held_until FROM failures
    UNION ALL SELECT 'owner ' || owner || ' ' || state || ' ' || at FROM owners
    UNION ALL SELECT 'in hand ' || job || ' ' || at FROM in_hand
    UNION ALL SELECT 'quarantined ' || source || ' ' || reason || ' ' || at FROM quarantine
    UNION ALL SELECT 'chain ' || kind || ' ' || key || ' ' || due || ' ' || expected || ' ' || batch_failed || ' '
                     || manual || ' ' || depth FROM chains";

fn sorted(mut all: Vec<String>) -> String {
    all.sort();
    all.join("\n")
}

/// Compares what is told of SQLite and of PostgreSQL.
fn compared(place: &str, what: &str, [ours, theirs]: &[String; 2]) -> Result<(), String> {
    if ours == theirs {
        return Ok(());
    }
    let mut words = format!("{place}: {what} differ");
    let differ = ours.lines().zip(theirs.lines()).position(|(our, their)| our != their).unwrap_or_default();
    for (name, text) in [("SQLite", ours), ("PostgreSQL", theirs)] {
        let near: Vec<&str> = text.lines().skip(differ.saturating_sub(1)).take(3).collect();
        write!(words, "\n{name}, around line {differ}:\n{}", near.join("\n")).unwrap();
    }
    Err(words)
}

#[test]
fn both_ledgers_answer_the_same_to_the_same_verbs() {
    let first = number("ROUNDELAY_SEED", Entropy::from_os().below(1_000_000) as u64);
    let cases = std::env::var("ROUNDELAY_CASES").is_ok().then(|| number("ROUNDELAY_CASES", 1));
    println!("ROUNDELAY_SEED={first} ROUNDELAY_CASES={}", cases.map_or("(20 s)".to_owned(), |cases| cases.to_string()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let both = RefCell::new(runtime.block_on(Both::new()));
    let sequences = sequences();
    let (count, began, mut seed) = (RefCell::new(Count::default()), Instant::now(), first);
    while cases.map_or(began.elapsed() < USUAL, |cases| seed < first + cases) {
        let config = Config {
            cases: 1,
            rng_seed: RngSeed::Fixed(seed),
            failure_persistence: None,
            max_shrink_iters: 300,
            ..Config::default()
        };
        let found = Cell::new(false);
        let run = TestRunner::new(config).run(&sequences, |verbs| {
            let played = runtime.block_on(both.borrow_mut().play(&verbs, &count));
            played.map_err(|why| {
                // What is left of it when it has been made shorter comes at the end.
                if !found.replace(true) {
                    println!("found by ROUNDELAY_SEED={seed}: {why}");
                }
                TestCaseError::fail(why)
            })
        });
        run.unwrap_or_else(|why| panic!("ROUNDELAY_SEED={seed} ROUNDELAY_CASES=1: {why}"));
        seed += 1;
    }
    let (Count { verbs, outcomes }, sequences) = (count.into_inner(), seed - first);
    let compared: u64 = verbs.values().sum();
    println!("{compared} verbs in {sequences} sequences in {:?}: {verbs:?}", began.elapsed());
    println!("of {} cuts: {outcomes:?}", outcomes.values().sum::<u64>());
    assert!(sequences < 10 || compared >= 10 * sequences, "only {compared} verbs in {sequences} sequences");
    let missed: Vec<_> = OUTCOMES.into_iter().filter(|outcome| !outcomes.contains_key(outcome)).collect();
    assert!(sequences < 100 || missed.is_empty(), "of cuts in {sequences} sequences never came: {missed:?}");
}
