//! What only a ledger on a server can do wrong: many workers at once, and connections that end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use roundelay::clock::{Entropy, Time};
use roundelay::failure::FailedItem;
use roundelay::guard::Guard;
use roundelay::ids::{Epoch, Fence, TickNo};
use roundelay::ledger::postgres::PostgresLedger;
use roundelay::ledger::postgres::examine::look;
use roundelay::ledger::{
    CatchUp, ChainFilter, ChainOrder, ChainOrders, ChainState, Claim, ClaimId, ClaimRequest, Enrolled, Failures,
    Finish, FinishRequest, Hint, History, Jobs, Kinds, Ledger, LedgerClock, LedgerError, ListFilter, LookAgain,
    Measured, NewChain, OWNERS_EFFORT, Protocol, Reports, Sessions, Slots,
};
use roundelay::outcome::{Next, Verdict};
use roundelay::pacing::SlotRequest;
use roundelay::pacing::slots::{Limits, StartRequest, Window};
use roundelay::secret::Secret;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::IsolationLevel;
use tokio_util::sync::CancellationToken;

use crate::chaos_parts::proxy::{Link, Mode};
use crate::harness::{SLACK, SOON, Schema, chain, until};

const LEASE: Duration = Duration::from_secs(60);

async fn open(url: &str) -> Result<Arc<PostgresLedger>, LedgerError> {
    PostgresLedger::open(&Secret::new(url), &Entropy::from_os()).await.map(Arc::new)
}

/// Begins chains that are due.
async fn begun(ledger: &dyn Ledger, keys: impl Iterator<Item = String>) -> Vec<Hint> {
    let now = ledger.now();
    let enrolled = ledger.enroll(keys.map(|key| chain(&key, now)).collect()).await.unwrap();
    let hint = |enrolled| match enrolled {
        Enrolled::Created(hint) => hint,
        other => panic!("it was there: {other:?}"),
    };
    enrolled.into_iter().map(hint).collect()
}

fn ask(hint: &Hint, worker: &str) -> ClaimRequest {
    ClaimRequest {
        hint: hint.clone(),
        worker: worker.into(),
        session: 7,
        again: false,
        takeover: false,
        guard: Guard::default(),
        recurs: true,
        prepared: 2,
        ahead: Duration::ZERO,
    }
}

/// The kind of these tests.
fn recurring() -> Kinds {
    Kinds { all: vec!["sync".into()], recurring: vec!["sync".into()] }
}

fn done(hint: &Hint, fence: Fence, at: Time) -> FinishRequest {
    FinishRequest {
        epoch: hint.epoch,
        tick: hint.tick,
        attempt: hint.attempt,
        fence,
        at,
        next: Next::Tick { nominal: at, due: at },
        verdict: Verdict::Done,
        reason: None,
        code: None,
        slack: SLACK,
        spawned: Vec::new(),
        failed: Vec::new(),
        ran: true,
        left_out: Default::default(),
        carry: None,
        learned: None,
        parent: hint.parent,
        from_batch: false,
        members: Vec::new(),
        chains: Vec::new(),
        progress: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_workers_may_start_at_once_on_an_empty_database() {
    let schema = Schema::new().await;
    let opened = join_all((0..10).map(|_| open(&schema.url))).await;
    let ledgers: Vec<_> = opened.into_iter().map(Result::unwrap).collect();
    let ids: BTreeSet<&str> = ledgers.iter().map(|ledger| ledger.id()).collect();
    assert_eq!(ids.len(), 1, "one ledger: {ids:?}");
    // All of them enroll the same roster, each in an order of its own.
    let enrolls = ledgers.iter().enumerate().map(|(n, ledger)| async move {
        let now = ledger.now();
        let mut chains: Vec<NewChain> = (0..100).map(|key| chain(&format!("{key}"), now)).collect();
        chains.rotate_left(n * 10);
        ledger.enroll(chains).await.unwrap()
    });
    let answers = join_all(enrolls).await.concat();
    let created = answers.iter().filter(|answer| matches!(answer, Enrolled::Created(_))).count();
    let unchanged = answers.iter().filter(|answer| **answer == Enrolled::Unchanged).count();
    assert_eq!((created, unchanged), (100, 900));
    assert_eq!(ledgers[3].census(SLACK).await.unwrap().queues[0].due, 100);
}

/// Claims, finishes, notes, looks and enrollments of two workers on the same chains, all
/// at once: nothing is granted twice and nothing fails.
#[tokio::test(flavor = "multi_thread")]
async fn two_concurrent_workers_grant_every_tick_once() {
    const CHAINS: usize = 200;
    const TICKS: i64 = 5;
    let schema = Schema::new().await;
    let workers = [open(&schema.url).await.unwrap(), open(&schema.url).await.unwrap()];
    let hints = begun(&*workers[0], (0..CHAINS).map(|n| n.to_string())).await;
    let mut runs = JoinSet::new();
    for (w, worker) in workers.iter().enumerate() {
        let session = worker.begin_session(w.to_string(), LEASE).await.unwrap();
        let mut mine = hints.clone();
        mine.rotate_left(w * CHAINS / 2);
        for mut hint in mine {
            let worker = worker.clone();
            runs.spawn(async move {
                let mut granted = Vec::new();
                while hint.tick <= TICKS {
                    match worker.claim(ClaimRequest { session, ..ask(&hint, &w.to_string()) }).await.unwrap() {
                        Claim::Granted(grant) => {
                            granted.push((hint.epoch, hint.tick, grant.fence));
                            let claim = ClaimId { epoch: hint.epoch, fence: grant.fence };
                            assert_eq!(worker.hold(vec![claim]).await.unwrap(), [true]);
                            let finish = worker.finish(done(&hint, grant.fence, grant.at)).await.unwrap();
                            let Finish::Applied(mut sent) = finish else { panic!("{finish:?}") };
                            let next = sent.remove(0);
                            worker.mark_sent(next.sent());
                            hint = next;
                        }
                        Claim::Stale(_) => hint.tick = hint.tick.next(),
                        Claim::Runs => tokio::task::yield_now().await,
                        other => panic!("{other:?}"),
                    }
                }
                granted
            });
        }
        // Beside them what concerns many chains at once.
        let worker = worker.clone();
        runs.spawn(async move {
            for _ in 0..20 {
                let now = worker.now();
                worker.enroll((0..CHAINS).rev().map(|n| chain(&n.to_string(), now)).collect()).await.unwrap();
                let overdue = worker.overdue("work".into(), recurring(), now + LEASE, None, 1_000).await.unwrap();
                let look = |chain: &roundelay::ledger::Overdue| LookAgain {
                    epoch: chain.hint.epoch,
                    from: chain.watch_at,
                    to: chain.watch_at,
                    looks: 1,
                    expected: None,
                };
                worker.look_again(overdue.iter().map(look).collect()).await.unwrap();
            }
            Vec::new()
        });
    }
    let granted = timeout(SOON, runs.join_all()).await.unwrap().concat();
    assert_eq!(granted.len(), CHAINS * TICKS as usize, "every tick of every chain");
    let ticks: BTreeSet<(Epoch, TickNo)> = granted.iter().map(|(epoch, tick, _)| (*epoch, *tick)).collect();
    assert_eq!(ticks.len(), granted.len(), "none twice");
    let mut by_chain: BTreeMap<Epoch, Vec<(TickNo, Fence)>> = BTreeMap::new();
    granted.iter().for_each(|(epoch, tick, fence)| by_chain.entry(*epoch).or_default().push((*tick, *fence)));
    for ticks in by_chain.values_mut() {
        ticks.sort_unstable();
        assert!(ticks.windows(2).all(|pair| pair[0].1 < pair[1].1), "fences rise: {ticks:?}");
    }
}

/// A statement that waits for a row sees the row as it is then, but the sessions as they were before it waited.
#[tokio::test]
async fn a_session_that_began_while_a_claim_waited_for_the_chain_is_seen_by_that_claim() {
    let schema = Schema::new().await;
    let ledger = open(&schema.url).await.unwrap();
    let hint = begun(&*ledger, ["x".to_owned()].into_iter()).await.remove(0);
    let early = ledger.begin_session("early".into(), LEASE).await.unwrap();
    let mut raw = schema.raw().await;
    let other = raw.transaction().await.unwrap();
    other.execute("SELECT FROM chains WHERE epoch = $1 FOR UPDATE", &[&hint.epoch.get()]).await.unwrap();
    let claim = tokio::spawn({
        let (ledger, hint) = (ledger.clone(), hint.clone());
        async move { ledger.claim(ClaimRequest { session: early, ..ask(&hint, "early") }).await.unwrap() }
    });
    let waits =
        "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid)))";
    until("the claim waits", async || other.query_one(waits, &[]).await.unwrap().get(0)).await;
    let late = ledger.begin_session("late".into(), LEASE).await.unwrap();
    other.execute("UPDATE chains SET holder = $2 WHERE epoch = $1", &[&hint.epoch.get(), &late]).await.unwrap();
    other.commit().await.unwrap();
    assert_eq!(claim.await.unwrap(), Claim::Runs, "the chain is held by a session that goes on");
}

/// A manual run of a chain, due now.
async fn manual(ledger: &dyn Ledger, key: &str) -> Hint {
    let run = NewChain { once: true, ..chain(key, ledger.now()) };
    match ledger.enroll(vec![run]).await.unwrap().remove(0) {
        Enrolled::Created(hint) => hint,
        other => panic!("{other:?}"),
    }
}

/// Their transactions can run beside each other, and then neither sees the other's row.
#[tokio::test]
async fn a_rotation_and_a_manual_run_that_did_not_see_each_other_begin_meet_when_they_are_claimed() {
    let schema = Schema::new().await;
    let ledger = open(&schema.url).await.unwrap();
    let raw = schema.raw().await;
    let untold = async || raw.batch_execute("UPDATE chains SET beside = false").await.unwrap();
    let told = async |key: &str| -> bool {
        let sql = "SELECT beside FROM chains WHERE key = $1 AND NOT once";
        raw.query_one(sql, &[&key]).await.unwrap().get(0)
    };
    let session = ledger.begin_session("w".into(), LEASE).await.unwrap();
    let claim = async |hint: &Hint| ledger.claim(ClaimRequest { session, ..ask(hint, "w") }).await.unwrap();
    let granted = async |hint: &Hint| match claim(hint).await {
        Claim::Granted(grant) if grant.refused.is_none() => grant.fence,
        other => panic!("{hint:?}: {other:?}"),
    };
    let over = async |run: &Hint, fence| {
        let over = FinishRequest { next: Next::End, ..done(run, fence, ledger.now()) };
        assert_eq!(ledger.finish(over).await.unwrap(), Finish::Applied(Vec::new()));
    };
    // The rotation has ticked before the manual run is claimed.
    let first = begun(&*ledger, ["a".to_owned()].into_iter()).await.remove(0);
    let fence = granted(&first).await;
    let run = manual(&*ledger, "a").await;
    let Finish::Applied(mut next) = ledger.finish(done(&first, fence, ledger.now())).await.unwrap() else { panic!() };
    let second = next.remove(0);
    untold().await;
    let fence = granted(&run).await;
    assert!(told("a").await, "by the manual run's claim");
    assert!(matches!(claim(&second).await, Claim::Waits { .. }), "the rotation starts while the manual run runs");
    over(&run, fence).await;
    assert!(!told("a").await, "it is over");
    granted(&second).await;

    // The manual run runs before the rotation is there to be told.
    let run = manual(&*ledger, "b").await;
    let fence = granted(&run).await;
    let rotation = begun(&*ledger, ["b".to_owned()].into_iter()).await.remove(0);
    untold().await;
    assert!(matches!(claim(&rotation).await, Claim::Waits { .. }), "the rotation starts while the manual run runs");
    assert!(told("b").await, "by its own claim");
    over(&run, fence).await;
    assert!(!told("b").await, "it is over");
    granted(&rotation).await;

    // A chain without a manual run is told of none.
    let alone = begun(&*ledger, ["c".to_owned()].into_iter()).await.remove(0);
    granted(&alone).await;
    assert!(!told("c").await);
}

/// A program ends many chains at once, by a message for each.
#[tokio::test(flavor = "multi_thread")]
async fn very_many_orders_at_once_open_few_connections() {
    const CHAINS: usize = 64;
    let schema = Schema::new().await;
    let ledger = open(&schema.url).await.unwrap();
    begun(&*ledger, (0..CHAINS).map(|n| n.to_string())).await;
    let raw = schema.raw().await;
    let open = async || -> i64 {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
        raw.query_one(sql, &[&schema.name]).await.unwrap().get(0)
    };
    let before = open().await;
    let mut orders = JoinSet::new();
    for n in 0..CHAINS {
        let ledger = ledger.clone();
        orders.spawn(async move {
            let one = ChainFilter { kind: Some("sync".into()), key: Some(n.to_string()), ..ChainFilter::default() };
            ledger.order_chains(one, ChainOrder::Retire).await.unwrap()
        });
    }
    let orders = tokio::spawn(timeout(SOON, orders.join_all()));
    let mut most = 0;
    while !orders.is_finished() {
        most = most.max(open().await - before);
    }
    assert_eq!(orders.await.unwrap().expect("they are carried out"), [1; CHAINS]);
    // One that has been closed may be seen for a moment longer.
    assert!(most < 16, "{most} more connections than before");
}

/// Asks until it is answered, as the engine does.
async fn insist<T, F: Future<Output = Result<T, LedgerError>>>(ask: impl Fn() -> F) -> T {
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_the_server_ends_under_load_double_nothing_and_come_back() {
    const CHAINS: usize = 50;
    const BLOWS: usize = 6;
    /// Finishes between two blows.
    const BETWEEN: usize = 100;
    let schema = Schema::new().await;
    let ledger = open(&schema.url).await.unwrap();
    let hints = begun(&*ledger, (0..CHAINS).map(|n| n.to_string())).await;
    let (finished, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let mut runs = JoinSet::new();
    for mut hint in hints {
        let (ledger, finished, stop) = (ledger.clone(), finished.clone(), stop.clone());
        runs.spawn(async move {
            while !stop.is_cancelled() {
                // A grant that was never heard of is taken over, as a worker does that knows itself.
                let request = ClaimRequest { takeover: true, ..ask(&hint, "w") };
                match insist(|| ledger.claim(request.clone())).await {
                    Claim::Granted(grant) => {
                        let end = done(&hint, grant.fence, grant.at);
                        match insist(|| ledger.finish(end.clone())).await {
                            Finish::Applied(mut sent) if sent.len() == 1 => hint = sent.remove(0),
                            // Written before, and the answer was lost for good.
                            Finish::Fenced => {}
                            Finish::Applied(other) => panic!("it ticks: {other:?}"),
                        }
                        finished.fetch_add(1, Ordering::Relaxed);
                    }
                    Claim::Stale(Some(next)) => hint = next,
                    other => panic!("{other:?}"),
                }
            }
            hint.tick.get() - 1
        });
    }
    for _ in 0..BLOWS {
        let enough = finished.load(Ordering::Relaxed) + BETWEEN;
        until("it goes on", async || finished.load(Ordering::Relaxed) >= enough).await;
        // It may be connecting just now.
        until("the blow hits something", async || schema.kill().await > 0).await;
    }
    stop.cancel();
    let ticks: i64 = timeout(SOON, runs.join_all()).await.expect("it recovers").into_iter().sum();
    let raw = schema.raw().await;
    let doubled = "SELECT count(*) FROM (SELECT epoch, tick FROM attempts WHERE verdict = 'done'
                   GROUP BY epoch, tick HAVING count(*) > 1) AS twice";
    assert_eq!(raw.query_one(doubled, &[]).await.unwrap().get::<_, i64>(0), 0, "no tick finished twice");
    let all = "SELECT count(*) FROM attempts WHERE verdict = 'done'";
    let all: i64 = raw.query_one(all, &[]).await.unwrap().get(0);
    assert_eq!(all, ticks, "every tick finished");
    let next = ledger.messages(vec!["work".into()], recurring(), Epoch::NONE, 1).await.unwrap().remove(0);
    assert!(matches!(ledger.claim(ask(&next, "w")).await.unwrap(), Claim::Granted(_)), "it goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verb_that_cannot_be_written_fails_alone() {
    let schema = Schema::new().await;
    let ledger = open(&schema.url).await.unwrap();
    let hints = begun(&*ledger, (0..20).map(|n| n.to_string())).await;
    // PostgreSQL's text takes no NUL. The engine's checks let none through to here but in reasons.
    let bad = NewChain { payload: "\"\0\"".into(), ..chain("bad", ledger.now()) };
    let good = (0..20).map(|n| ledger.enroll(vec![chain(&format!("good-{n}"), ledger.now())]));
    let (refused, good) = tokio::join!(ledger.enroll(vec![bad]), join_all(good));
    assert!(matches!(refused, Err(LedgerError::Statement(_))), "{refused:?}");
    assert!(good.iter().all(|answer| matches!(answer.as_deref(), Ok([Enrolled::Created(_)]))), "{good:?}");
    ledger.record_failure("sync".into(), "0".into(), FailedItem::new("", "a\0b"), ledger.now()).await.unwrap();
    assert_eq!(ledger.failures(1).await.unwrap()[0].reason, "a\u{fffd}b");

    // Another client keeps a row locked, for example by hand.
    let mut locked = schema.raw().await;
    let transaction = locked.transaction().await.unwrap();
    transaction.execute("SELECT 1 FROM chains WHERE epoch = $1 FOR UPDATE", &[&hints[7].epoch.get()]).await.unwrap();
    let claims = timeout(SOON, join_all(hints.iter().map(|hint| ledger.claim(ask(hint, "w"))))).await.unwrap();
    for (n, claim) in claims.iter().enumerate() {
        match claim {
            Err(LedgerError::Statement(why)) if n == 7 => assert!(why.contains("lock"), "{why}"),
            Ok(Claim::Granted(_)) if n != 7 => {}
            other => panic!("{n}: {other:?}"),
        }
    }
    transaction.rollback().await.unwrap();
    assert!(matches!(ledger.claim(ask(&hints[7], "w")).await.unwrap(), Claim::Granted(_)));
}

/// A program that runs on while a newer one brings the tables up to date does not know what it would write.
#[tokio::test]
async fn a_program_whose_tables_a_newer_one_has_brought_up_to_date_writes_no_chain() {
    let schema = Schema::new().await;
    let ledger = open(&schema.url).await.unwrap();
    let hints = begun(&*ledger, ["a".to_owned()].into_iter()).await;
    let raw = schema.raw().await;
    let version = "UPDATE meta SET value = (value::int + $1::int)::text WHERE name = 'ledger_version'";
    raw.execute(version, &[&1]).await.unwrap();
    let refused = ledger.claim(ask(&hints[0], "w")).await.unwrap_err().to_string();
    assert!(refused.contains("a newer program") && refused.contains("stop this one"), "{refused}");
    assert!(ledger.enroll(vec![chain("b", ledger.now())]).await.is_err());
    assert!(open(&schema.url).await.is_err());
    raw.execute(version, &[&-1]).await.unwrap();
    assert!(matches!(ledger.claim(ask(&hints[0], "w")).await.unwrap(), Claim::Granted(_)));
}

/// An older copy of the database gives no number again that was given since the copy was made.
#[tokio::test]
async fn epochs_and_fences_never_go_back_when_an_older_copy_is_restored() {
    let schema = Schema::new().await;
    let ledger = open(&schema.url).await.unwrap();
    let raw = schema.raw().await;
    let numbers = "SELECT (SELECT last_value FROM epochs), (SELECT last_value FROM fences)";
    let row = raw.query_one(numbers, &[]).await.unwrap();
    let copy: (i64, i64) = (row.get(0), row.get(1));
    let hint = begun(&*ledger, ["a".to_owned()].into_iter()).await.remove(0);
    let Claim::Granted(grant) = ledger.claim(ask(&hint, "w")).await.unwrap() else { panic!("not granted") };
    assert!(hint.epoch > copy.0 && grant.fence > copy.1 && grant.fence < 1 << 53);
    // As in a copy that is a day old.
    let day = 86_400_000_000_i64;
    let (epochs, fences) = (copy.0 - day, copy.1 - day);
    raw.execute("SELECT setval('epochs', $1), setval('fences', $2)", &[&epochs, &fences]).await.unwrap();
    raw.batch_execute("TRUNCATE chains, attempts").await.unwrap();
    let check = async |ledger: &dyn Ledger, key: &str| {
        let anew = begun(ledger, [key.to_owned()].into_iter()).await.remove(0);
        let Claim::Granted(second) = ledger.claim(ask(&anew, "w")).await.unwrap() else { panic!("not granted") };
        assert!(anew.epoch > hint.epoch && second.fence > grant.fence, "{anew:?} {second:?}");
    };
    check(&*open(&schema.url).await.unwrap(), "b").await;
    // A worker that had been connected before gets a new connection, as it does by a restore.
    raw.execute("SELECT setval('epochs', $1), setval('fences', $2)", &[&epochs, &fences]).await.unwrap();
    assert!(schema.kill().await >= 3);
    until("it is connected again", async || ledger.flush().await.is_ok()).await;
    check(&*ledger, "c").await;
}

#[tokio::test]
async fn a_database_that_cannot_be_used_is_told_in_words_without_the_password() {
    let refused = async |url: &str| open(url).await.err().expect("it cannot be opened").to_string();
    let schema = Schema::new().await;
    drop(open(&schema.url).await.unwrap());
    let raw = schema.raw().await;
    raw.batch_execute("UPDATE meta SET value = '99' WHERE name = 'ledger_version'").await.unwrap();
    let newer = refused(&schema.url).await;
    assert!(newer.contains("format is version 99") && newer.contains("a newer one"), "{newer}");
    raw.batch_execute("DROP TABLE meta; CREATE TABLE meta (something int)").await.unwrap();
    let foreign = refused(&schema.url).await;
    assert!(foreign.contains("is not a ledger's: give the ledger a database of its own"), "{foreign}");
    raw.batch_execute("DROP TABLE meta").await.unwrap();
    let occupied = refused(&schema.url).await;
    assert!(occupied.contains("already exists"), "{occupied}");
    let absent = refused(&schema.url.replace(&schema.name, "there_is_none")).await;
    assert!(absent.contains("create the one that search_path names"), "{absent}");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let nobody = refused(&format!("postgres://u:geheim@127.0.0.1:{port}/d?password=geheim")).await;
    assert!(nobody.contains(&format!("postgres://127.0.0.1:{port}/d")) && nobody.contains("refused"), "{nobody}");
    assert!(!nobody.contains("geheim"), "{nobody}");
    let plain = refused(&schema.url.replace('?', "?sslmode=verify-full&sslrootcert=/no/such/file&")).await;
    assert!(plain.contains("sslrootcert /no/such/file"), "{plain}");
}

/// What lies between a worker and its server.
struct Wire {
    at: SocketAddr,
    state: watch::Sender<Passing>,
    /// Connections whose commit went through and whose answer did not.
    swallowed: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Passing {
    /// Everything.
    All,
    /// Nothing, and neither side gets an error.
    Nothing,
    /// What is asked, and no answers.
    NoAnswers,
    /// All but the answer to a commit; then the connection is cut.
    NoAnswerToACommit,
}

impl Wire {
    async fn new(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (state, watched) = watch::channel(Passing::All);
        let wire = Self { at: listener.local_addr().unwrap(), state, swallowed: Arc::default() };
        let swallowed = wire.swallowed.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (watched, swallowed) = (watched.clone(), swallowed.clone());
                tokio::spawn(
                    async move { pass(near, TcpStream::connect(to).await.unwrap(), watched, swallowed).await },
                );
            }
        });
        wire
    }
}

async fn pass(near: TcpStream, far: TcpStream, mut watched: watch::Receiver<Passing>, swallowed: Arc<Notify>) {
    let ((mut from_near, mut to_near), (mut from_far, mut to_far)) = (near.into_split(), far.into_split());
    let (mut asked, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
    loop {
        tokio::select! {
            Ok(n) = from_near.read(&mut asked) => {
                if n == 0 || watched.wait_for(|state| *state != Passing::Nothing).await.is_err() {
                    return;
                }
                let state = *watched.borrow();
                if to_far.write_all(&asked[..n]).await.is_err() {
                    return;
                }
                let commits = asked[..n].windows(7).any(|window| window == b"COMMIT\0");
                if state == Passing::NoAnswerToACommit && commits {
                    // The server has it and answers, and then the connection is no more.
                    let _ = from_far.read(&mut answered).await;
                    swallowed.notify_one();
                    return;
                }
            }
            Ok(n) = from_far.read(&mut answered) => {
                let passes = |state: &Passing| !matches!(state, Passing::Nothing | Passing::NoAnswers);
                if n == 0 || watched.wait_for(passes).await.is_err() {
                    return;
                }
                if to_near.write_all(&answered[..n]).await.is_err() {
                    return;
                }
            }
            else => return,
        }
    }
}

/// The URL of a schema, by a wire that the test can cut.
async fn wired(schema: &Schema) -> (Wire, String) {
    let mut url = url::Url::parse(&schema.url).unwrap();
    let (host, port) = (url.host_str().unwrap().to_owned(), url.port().unwrap_or(5432));
    let to = tokio::net::lookup_host((host, port)).await.unwrap().next().unwrap();
    let wire = Wire::new(to).await;
    url.set_host(Some("127.0.0.1")).unwrap();
    url.set_port(Some(wire.at.port())).unwrap();
    (wire, url.to_string())
}

/// The server may choose a plan that looks for the jobs once more for each job, and each time finds others that are not
/// taken yet.
#[tokio::test]
async fn no_more_jobs_are_taken_than_asked_for_whatever_the_plan() {
    let schema = Schema::new().await;
    let ways = ["hashjoin", "mergejoin", "seqscan", "hashagg", "sort", "material", "bitmapscan"];
    let off: String = ways.iter().map(|way| format!("%20-cenable_{way}%3Doff")).collect();
    let ledger = open(&format!("{}{off}", schema.url)).await.unwrap();
    for id in 0..5 {
        ledger.keep_job(id.to_string(), b"{}".to_vec()).await.unwrap();
    }
    let taken = ledger.take_jobs(0, ledger.now() + LEASE, 2).await.unwrap();
    let numbers: Vec<i64> = taken.iter().map(|job| job.number).collect();
    let first: Vec<i64> = ledger.kept_jobs(0, 2).await.unwrap().iter().map(|job| job.number).collect();
    assert_eq!(numbers, first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_found_out_about() {
    let schema = Schema::new().await;
    let (wire, url) = wired(&schema).await;
    let ledger = open(&url).await.unwrap();
    let hint = begun(&*ledger, ["a".to_owned()].into_iter()).await.remove(0);
    wire.state.send(Passing::NoAnswerToACommit).unwrap();
    let claim = tokio::spawn({
        let (ledger, request) = (ledger.clone(), ask(&hint, "w"));
        async move { ledger.claim(request).await }
    });
    wire.swallowed.notified().await;
    wire.state.send(Passing::All).unwrap();
    let Ok(Claim::Granted(grant)) = claim.await.unwrap() else { panic!("it was granted, and says otherwise") };
    let records = ledger.attempts(Fence::NONE, 10).await.unwrap();
    assert_eq!(records.iter().map(|record| record.fence).collect::<Vec<_>>(), [grant.fence], "once");
    let finish = ledger.finish(done(&hint, grant.fence, grant.at)).await.unwrap();
    assert!(matches!(finish, Finish::Applied(sent) if sent.len() == 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_cut_off_with_chains_locked_soon_keeps_no_other_waiting() {
    let schema = Schema::new().await;
    let (wire, url) = wired(&schema).await;
    let (cut_off, other) = (open(&url).await.unwrap(), open(&schema.url).await.unwrap());
    let hints = begun(&*other, ["a".to_owned(), "b".to_owned()].into_iter()).await;
    wire.state.send(Passing::NoAnswers).unwrap();
    let unheard = tokio::spawn({
        let request = ask(&hints[0], "cut off");
        async move { cut_off.claim(request).await }
    });
    let raw = schema.raw().await;
    let free = async || raw.query("SELECT epoch FROM chains FOR UPDATE SKIP LOCKED", &[]).await.unwrap().len();
    until("the chain is locked", async || free().await == 1).await;
    let asked = Instant::now();
    // The claims of one group: a claim whose chain is not locked has to wait, too.
    let claims = join_all(hints.iter().map(|hint| other.claim(ask(hint, "other")))).await;
    let granted = claims.iter().filter(|claim| matches!(claim, Ok(Claim::Granted(_)))).count();
    assert_eq!(granted, 2, "{claims:?}");
    assert!(asked.elapsed() < Duration::from_secs(3), "after {:?}", asked.elapsed());
    unheard.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_is_an_error_within_bounds_and_then_it_goes_on() {
    let schema = Schema::new().await;
    let (wire, url) = wired(&schema).await;
    let ledger = open(&url).await.unwrap();
    let hint = begun(&*ledger, ["a".to_owned()].into_iter()).await.remove(0);
    wire.state.send(Passing::Nothing).unwrap();
    let claims = join_all((0..20).map(|_| ledger.claim(ask(&hint, "w"))));
    let verbs = async { tokio::join!(claims, ledger.enroll(vec![chain("b", Time::default())]), ledger.census(SLACK)) };
    let (claims, enroll, census) = timeout(SOON * 2, verbs).await.expect("an answer within bounds");
    assert!(
        claims.iter().all(Result::is_err) && enroll.is_err() && census.is_err(),
        "{claims:?} {enroll:?} {census:?}"
    );
    wire.state.send(Passing::All).unwrap();
    until("it answers again", async || ledger.flush().await.is_ok()).await;
    until("it can be read again", async || ledger.census(SLACK).await.is_ok()).await;
    assert!(matches!(ledger.claim(ask(&hint, "w")).await.unwrap(), Claim::Granted(_)), "nothing was granted unheard");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_on_which_a_caller_gave_up_is_not_asked_again() {
    let schema = Schema::new().await;
    let mut url = url::Url::parse(&schema.url).unwrap();
    let link = Link::open(url.socket_addrs(|| Some(5432)).unwrap()).await.unwrap();
    url.set_host(Some("127.0.0.1")).unwrap();
    url.set_port(Some(link.port)).unwrap();
    let ledger = open(url.as_str()).await.unwrap();
    let session = ledger.begin_session("w".into(), LEASE).await.unwrap();
    // A worker gives up sooner than the ledger does, or its lease would end.
    let beat = async || timeout(Duration::from_secs(2), ledger.beat(session, Vec::new())).await;
    // Connections carry nothing any more, and neither side gets an error.
    link.set(Mode::HalfOpen);
    assert!(beat().await.is_err(), "nothing answers");
    // New ones work.
    link.set(Mode::Open);
    for _ in 0..10 {
        if let Ok(heard) = beat().await {
            assert!(heard.unwrap().alive);
            return;
        }
    }
    panic!("the dead connection was asked each time");
}

/// A schema whose clock can be set: before that of the server it finds one of its own, which is so far ahead.
async fn with_clock() -> (Schema, String) {
    let schema = Schema::new().await;
    let own = "CREATE TABLE own_clock (ahead interval NOT NULL);
               INSERT INTO own_clock VALUES ('0');
               CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
                   'SELECT pg_catalog.clock_timestamp() + ahead FROM own_clock'";
    schema.raw().await.batch_execute(own).await.unwrap();
    let url = format!("{}%2Cpg_catalog", schema.url);
    (schema, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_servers_clock_that_is_set_moves_no_ledger() {
    let (schema, url) = with_clock().await;
    let (ledger, other) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    let raw = schema.raw().await;
    let settled = async || {
        for _ in 0..3 {
            ledger.read_clock().await.unwrap();
            other.read_clock().await.unwrap();
        }
    };
    settled().await;
    let far = |one: Time, other: Time| (one.as_millis() - other.as_millis()).abs();
    let hint = begun(&*ledger, std::iter::once("a".to_owned())).await.remove(0);
    assert_eq!(ledger.slots(vec![slot_of(1)]).await.unwrap()[0].answer.slots.len(), 1);
    let mut ahead = 0;
    for (n, hours) in [1, -1, 24, -24, -1, 1].into_iter().enumerate() {
        ahead += hours;
        let before = ledger.now();
        raw.execute("UPDATE own_clock SET ahead = make_interval(hours => $1)", &[&ahead]).await.unwrap();
        // Whichever verb first comes across it decides by the right time, and corrects what is remembered.
        if n % 2 == 0 {
            let Claim::Granted(grant) = ledger.claim(ask(&hint, "w")).await.unwrap() else { panic!("{hours}") };
            assert!(far(grant.at, before) < 5_000, "{hours}: {} and {before}", grant.at);
            let again = FinishRequest { next: Next::Snooze { due: grant.at }, ..done(&hint, grant.fence, grant.at) };
            assert!(matches!(ledger.finish(again).await.unwrap(), Finish::Applied(_)));
        } else {
            let told = ledger.slots(vec![slot_of(1)]).await.unwrap().remove(0);
            assert!((told.now / 1_000 - before.as_millis()).abs() < 5_000, "{hours}: {told:?}");
        }
        assert!(
            (ledger.wall_clock().ahead() - i64::from(ahead) * 3_600_000).abs() < 5_000,
            "{:?}",
            ledger.wall_clock()
        );
        // The others have it from the ledger.
        settled().await;
        assert_eq!(other.wall_clock().ahead(), ledger.wall_clock().ahead());
        assert!(far(other.now(), ledger.now()) < 500 && far(other.now(), before) < 10_000, "{hours}");
    }
    let sets: i64 = raw.query_one("SELECT count(*) FROM clock_sets", &[]).await.unwrap().get(0);
    assert_eq!(sets, 6, "each is remembered once");
    // The clock is set while no worker is there: the time that the ledger has shown does not go back.
    let last = ledger.now();
    raw.execute("UPDATE ledger_clock SET seen = $1", &[&(last.as_millis() * 1_000)]).await.unwrap();
    drop((ledger, other));
    raw.execute("UPDATE own_clock SET ahead = make_interval(hours => -48)", &[]).await.unwrap();
    let late = open(&url).await.unwrap();
    late.read_clock().await.unwrap();
    assert!(late.now() >= last && far(late.now(), last) < 10_000, "{} and {last}", late.now());
    assert!((late.wall_clock().ahead() + 48 * 3_600_000).abs() < 20_000, "{:?}", late.wall_clock());
}

/// Has `body` done whenever slots are written.
async fn when_slots_are_written(schema: &Schema, body: &str) {
    let sql = format!(
        "CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NULL; END $$;
         CREATE TRIGGER meddle AFTER UPDATE ON throttles FOR EACH STATEMENT EXECUTE FUNCTION meddle();"
    );
    schema.raw().await.batch_execute(&sql).await.unwrap();
}

fn slot_of(key: usize) -> SlotRequest {
    let window = Window { allow: 1, per: Duration::from_secs(1) };
    SlotRequest {
        throttle: "upstream".into(),
        key: key.to_string(),
        limits: Arc::new(Limits { window, burst: 1, also: Vec::new() }),
        feedback: Vec::new(),
        requests: vec![StartRequest { priority: 0, cost: 1, probe: false }],
        ahead: 0,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_wait_for_slots_of_a_slow_ledger_wait_for_few_transactions() {
    const KEYS: usize = 200;
    const TIMES: usize = 3;
    let schema = Schema::new().await;
    let ledger = open(&schema.url).await.unwrap();
    when_slots_are_written(&schema, "PERFORM pg_sleep(0.02);").await;
    let before = ledger.traffic();
    join_all((0..KEYS).map(|key| {
        let ledger = ledger.clone();
        async move {
            for _ in 0..TIMES {
                ledger.slots(vec![slot_of(key)]).await.unwrap();
            }
        }
    }))
    .await;
    let transactions = ledger.traffic().since(before).slots as usize;
    assert!(transactions < KEYS / 4, "{transactions} transactions for {KEYS} keys, {TIMES} times each");
}

#[tokio::test]
async fn the_server_compiles_no_statements_to_hand_out_slots() {
    let schema = Schema::new().await;
    let ledger = open(&schema.url).await.unwrap();
    when_slots_are_written(&schema, "ASSERT current_setting('jit') = 'off', 'it compiles';").await;
    let answers = ledger.slots(vec![slot_of(1)]).await.unwrap();
    assert_eq!(answers[0].answer.slots.len(), 1);
}

/// What a worker asks all the time, and screens page by page, goes by indexes: the server has counted no row that it
/// read by going through a table from end to end.
#[tokio::test(flavor = "multi_thread")]
async fn frequent_queries_read_no_table_from_end_to_end() {
    type Asked<'a> = Box<dyn Fn(Arc<PostgresLedger>) -> BoxFuture<'a, ()> + 'a>;
    const CHAINS: usize = 20_000;
    let schema = Schema::new().await;
    let ledger = open(&schema.url).await.unwrap();
    let due = ledger.now() + Duration::from_secs(3_600);
    let of = |n: usize| NewChain { owner: Some(format!("owner-{:02}", n / 1_000)), ..chain(&format!("{n:05}"), due) };
    let all: Vec<NewChain> = (1..CHAINS).map(of).collect();
    for some in all.chunks(1_000) {
        ledger.enroll(some.to_vec()).await.unwrap();
    }
    let hint = begun(&*ledger, ["now".to_owned()].into_iter()).await.remove(0);
    drop(ledger);
    let raw = schema.raw().await;
    raw.batch_execute("VACUUM ANALYZE").await.unwrap();
    // A session's counts are known once it has ended.
    let read = async || {
        let open = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
        until("the ledger's sessions have ended", || async {
            raw.query_one(open, &[&schema.name]).await.unwrap().get::<_, i64>(0) == 0
        })
        .await;
        let counted = "SELECT sum(seq_tup_read)::int8, sum(idx_scan)::int8 FROM pg_stat_user_tables
                       WHERE schemaname = $1 AND relname IN ('chains', 'attempts')";
        let row = raw.query_one(counted, &[&schema.name]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    let claimed = hint.clone();
    let table: [(&str, Asked<'_>); 10] = [
        ("opening", Box::new(|_| async {}.boxed())),
        (
            "a tick",
            Box::new(move |ledger| {
                let hint = claimed.clone();
                async move {
                    let now = ledger.now();
                    let Claim::Granted(grant) = ledger.claim(ask(&hint, "w")).await.unwrap() else { panic!("granted") };
                    let claim = ClaimId { epoch: hint.epoch, fence: grant.fence };
                    assert_eq!(ledger.hold(vec![claim]).await.unwrap(), [true]);
                    assert!(matches!(ledger.finish(done(&hint, grant.fence, now)).await.unwrap(), Finish::Applied(_)));
                }
                .boxed()
            }),
        ),
        (
            "a sweep",
            Box::new(|ledger| {
                async move {
                    let now = ledger.now() + Duration::from_secs(60);
                    assert_eq!(ledger.overdue("work".into(), recurring(), now, None, 1_000).await.unwrap().len(), 1);
                    ledger.end_left(1_000).await.unwrap();
                    assert!(ledger.kept_jobs(0, 1_000).await.unwrap().is_empty());
                }
                .boxed()
            }),
        ),
        (
            "an enrollment",
            Box::new(move |ledger| {
                async move {
                    let same = ledger.enroll((1..500).map(of).collect()).await.unwrap();
                    assert_eq!(same.len(), 499);
                }
                .boxed()
            }),
        ),
        (
            "a chain's page",
            Box::new(|ledger| {
                async move { assert_eq!(ledger.chains("sync".into(), "00007".into()).await.unwrap().len(), 1) }.boxed()
            }),
        ),
        (
            "a page of chains",
            Box::new(|ledger| {
                async move {
                    let place = Some(("sync".to_owned(), "10000".to_owned()));
                    assert_eq!(ledger.list(ListFilter::default(), place, 500).await.unwrap().len(), 500);
                }
                .boxed()
            }),
        ),
        (
            // Of few with many chains each.
            "a page of owners",
            Box::new(|ledger| {
                async move {
                    let late = ledger.now() + Duration::from_secs(7_200);
                    let owners = ledger.owners("owner-03".into(), 2, late, Vec::new(), OWNERS_EFFORT).await.unwrap();
                    let told: Vec<(i64, i64, bool)> =
                        owners.iter().map(|of| (of.active, of.late, of.late_complete)).collect();
                    assert_eq!(told, [(1_000, 1_000, true); 2]);
                    let some = ledger.owners("owner-03".into(), 2, late, Vec::new(), 100).await.unwrap();
                    assert!(some.iter().all(|of| (of.late, of.late_complete) == (50, false)), "{some:?}");
                }
                .boxed()
            }),
        ),
        (
            "an owner's chains",
            Box::new(|ledger| {
                async move {
                    let which = ChainFilter { owner: Some("owner-10".into()), ..ChainFilter::default() };
                    assert_eq!(ledger.matching(which, ChainOrder::Pause).await.unwrap(), 1_000);
                }
                .boxed()
            }),
        ),
        (
            "the end of a chain",
            Box::new(|ledger| {
                async move {
                    let which =
                        ChainFilter { kind: Some("sync".into()), key: Some("00009".into()), ..ChainFilter::default() };
                    assert_eq!(ledger.order_chains(which, ChainOrder::Retire).await.unwrap(), 1);
                }
                .boxed()
            }),
        ),
        (
            "an owner",
            Box::new(|ledger| {
                async move { assert_eq!(ledger.owner("owner-10".into()).await.unwrap(), ChainState::Active) }.boxed()
            }),
        ),
    ];
    for (label, asks) in table {
        let before = read().await;
        let ledger = open(&schema.url).await.unwrap();
        asks(ledger.clone()).await;
        drop(ledger);
        let (rows, by_index) = read().await;
        // A table of a few rows, such as that of attempts here, is best read as a whole.
        let rows = rows - before.0;
        assert!(rows < 100, "{label} has read {rows} rows from end to end");
        assert!(["opening", "an owner"].contains(&label) || by_index > before.1, "{label}: by no index");
    }
}

#[tokio::test]
async fn a_transaction_that_stays_open_is_seen_with_its_age() {
    let schema = Schema::new().await;
    let mut client = schema.raw().await;
    let keeps = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).start().await.unwrap();
    keeps.execute("SELECT 1", &[]).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let seen = look(&Secret::new(&schema.url)).await.unwrap();
    // Other tests have short transactions on the same server.
    assert!(seen.oldest_transaction.is_some_and(|age| age >= 1), "{seen:?}");
}

/// The address leads to this machine, and is none of loopback's.
#[tokio::test]
async fn a_server_on_another_machine_must_prove_its_identity_unless_the_url_says_otherwise() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://u:canary@0.0.0.0:{}/d", listener.local_addr().unwrap().port());
    // Who stands in the way says that there is no TLS, and listens.
    let (heard, mut told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let heard = heard.clone();
            tokio::spawn(async move {
                let (mut asked, mut all) = ([0; 8], Vec::new());
                stream.read_exact(&mut asked).await.unwrap();
                if asked == [0, 0, 0, 8, 4, 210, 22, 47] {
                    stream.write_all(b"N").await.unwrap();
                }
                let _ = timeout(Duration::from_secs(1), stream.read_to_end(&mut all)).await;
                let _ = heard.send(String::from_utf8_lossy(&all).into_owned());
            });
        }
    });
    let refused = |url: String| async move { open(&url).await.map(drop).unwrap_err().to_string() };
    let alone = refused(url.clone()).await;
    for words in ["server does not support TLS", "verify-full", "sslrootcert=FILE", "sslmode=disable"] {
        assert!(alone.contains(words) && !alone.contains("canary"), "{words}: {alone}");
    }
    assert_eq!(told.recv().await.unwrap(), "", "it is not told who wants what");
    refused(format!("{url}?sslmode=prefer")).await;
    assert!(told.recv().await.unwrap().contains("user"), "whoever wants that has said so");
}
