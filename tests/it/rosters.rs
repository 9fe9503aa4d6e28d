//! Chains that follow a roster: by `roundelay enroll --prune`, and by themselves.

use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect};
use axum::routing::get;
use roundelay::clock::{Entropy, Time};
use roundelay::engine::{Connections, topology_guard};
use roundelay::ids::{Epoch, Fence};
use roundelay::ledger::{ChainFilter, ChainOrder, ChainState, ChainView, Kinds, Ledger};
use serde_json::{Value, json};

use crate::harness::{Ground, Output, roundelay, until, worker};

const KIND: &str = r#"
[queues.work]
[kinds.sync]
queue = "work"
every = "1s"
handler.exec.argv = ["/bin/true"]
"#;

/// Writes a list, as one should: its readers see all of it or the one before.
fn write(path: &Path, text: &str) {
    let next = path.with_extension("next");
    std::fs::write(&next, text).unwrap();
    std::fs::rename(&next, path).unwrap();
}

/// `roundelay enroll --config CONFIG --kind sync REST… --json`
async fn enroll(config: &Path, rest: &[&str]) -> Output {
    let mut arguments = vec!["enroll", "--json", "--kind", "sync", "--config", config.to_str().unwrap()];
    arguments.extend(rest);
    roundelay(&arguments).await
}

/// Its tally: begun, unchanged, updated, ended before and left so, retired now.
async fn tally(config: &Path, rest: &[&str]) -> [u64; 5] {
    let output = enroll(config, rest).await;
    assert!(output.ok, "{output:?}");
    let json = output.json();
    ["created", "unchanged", "updated", "retired", "pruned"].map(|name| json[name].as_u64().unwrap())
}

fn refused(output: Output, words: &[&str]) {
    assert_eq!(output.code, Some(1), "{output:?}");
    for words in words {
        assert!(output.stderr.contains(words), "no `{words}` in {}", output.stderr);
    }
}

async fn chain(ledger: &dyn Ledger, key: &str) -> Option<ChainView> {
    ledger.chains("sync".into(), key.into()).await.unwrap().into_iter().find(|chain| !chain.once)
}

async fn state(ledger: &dyn Ledger, key: &str) -> ChainState {
    chain(ledger, key).await.unwrap_or_else(|| panic!("there is no chain {key}")).state
}

mod run {
    use super::*;

    pub async fn prune_ends_what_left_the_roster_and_only_that(ground: Ground) {
        let config = ground.config_file(KIND);
        let ledger = Connections::ledger(&ground.config(KIND)).await.unwrap();
        let (list, path) = (ground.path("them.csv"), ground.path("them.csv").display().to_string());
        write(&list, "key,name\na,1\nb,2\nc,3\nd,4\n");
        assert_eq!(tally(&config, &[&path]).await, [4, 0, 0, 0, 0]);
        // Ended for another reason than the roster's: that stays so.
        let d = ChainFilter { kind: Some("sync".into()), key: Some("d".into()), ..ChainFilter::default() };
        assert_eq!(ledger.order_chains(d, ChainOrder::Retire).await.unwrap(), 1);

        write(&list, "key,name\na,1\nc,9\nd,4\ne,5\n");
        let dry = enroll(&config, &[&path, "--prune", "--dry-run"]).await.json();
        let figures = json!({ "created": 1, "unchanged": 2, "retired": 1, "pruned": 1, "dry_run": true });
        for (name, value) in figures.as_object().unwrap() {
            assert_eq!(&dry[name], value, "{name} in {dry}");
        }
        assert_eq!((state(&*ledger, "b").await, chain(&*ledger, "e").await), (ChainState::Active, None));
        assert_eq!(tally(&config, &[&path, "--prune"]).await, [1, 1, 1, 1, 1]);
        let before = chain(&*ledger, "b").await.unwrap();
        assert_eq!((before.state, state(&*ledger, "d").await), (ChainState::Retired, ChainState::Retired));
        for key in ["a", "c", "e"] {
            assert_eq!(state(&*ledger, key).await, ChainState::Active, "{key}");
        }

        // Nothing is retired by what is no whole roster.
        write(&list, "key,name\na,1\nc\n");
        let bad = enroll(&config, &[&path, "--prune"]).await;
        assert_eq!(bad.json()["pruned"], 0);
        refused(bad, &["line 3: 1 columns", "and so nothing was retired"]);
        write(&list, "key,name\n");
        refused(enroll(&config, &[&path, "--prune"]).await, &["the roster is empty", "retire sync --all"]);
        refused(enroll(&config, &["absent.csv", "--prune"]).await, &["failed to read the roster"]);
        for key in ["a", "c", "e"] {
            assert_eq!(state(&*ledger, key).await, ChainState::Active, "{key}");
        }

        // Who returns begins anew, and who was retired otherwise does not.
        write(&list, "key,name\na,1\nb,2\nc,9\nd,4\ne,5\n");
        assert_eq!(tally(&config, &[&path]).await, [1, 3, 0, 1, 0]);
        let after = chain(&*ledger, "b").await.unwrap();
        assert!(after.state == ChainState::Active && after.hint.epoch > before.hint.epoch, "{after:?}");
        assert_eq!(state(&*ledger, "d").await, ChainState::Retired);

        write(&list, "key,name\n");
        assert_eq!(tally(&config, &[&path, "--prune", "--allow-empty"]).await, [0, 0, 0, 0, 4]);
        assert_eq!(state(&*ledger, "a").await, ChainState::Retired);
    }

    /// Bootstrap and discovery (A5): no command enrolls anything.
    pub async fn a_worker_follows_the_roster_in_its_configuration(ground: Ground) {
        let list = ground.path("them.csv");
        write(&list, "key,name\na,1\nb,2\n");
        let roster = format!(
            "{KIND}roster = {{ file = \"{}\", sync = \"1s\", prune = true }}\n[catch_up]\nevery = \"1s\"\nslack = \"2s\"\n",
            list.display()
        );
        let config = ground.config_file(&roster);
        let mut workers = vec![worker(&config)];
        if ground.vhost.is_some() {
            workers.push(worker(&config)); // Of two, one at a time does it.
        }
        let ledger = Connections::ledger(&ground.config(&roster)).await.unwrap();
        let ledger = &*ledger;
        let ticked = async |key: &str| chain(ledger, key).await.is_some_and(|chain| chain.hint.tick > 2);
        until("a and b tick", async || ticked("a").await && ticked("b").await).await;
        let a = chain(ledger, "a").await.unwrap();

        write(&list, "key,name\na,1\nb,2\nc,3\n");
        until("c was found, and ticks", async || ticked("c").await).await;

        // A list that cannot be used is a failed run with its reason; it retires nothing, and what is
        // there ticks on.
        write(&list, "key,name\na,1\nb\n");
        let records = async || {
            let chores = ledger.chains("roundelay.roster".into(), "sync".into()).await.unwrap();
            let records = ledger.attempts(Fence::NONE, 10_000).await.unwrap();
            records.into_iter().filter(|record| record.epoch == chores[0].hint.epoch).collect::<Vec<_>>()
        };
        let told = "1 of the roster's rows cannot be used; nothing was retired; the first is line 3: 1 columns";
        until("it is told what is wrong", async || {
            let said = |reason: &Option<String>| reason.as_ref().is_some_and(|reason| reason.starts_with(told));
            records().await.iter().any(|record| record.verdict.as_deref() == Some("retried") && said(&record.reason))
        })
        .await;
        let b = chain(ledger, "b").await.unwrap();
        until("b ticks on", async || chain(ledger, "b").await.unwrap().hint.tick > b.hint.tick.next()).await;
        assert_eq!(state(ledger, "c").await, ChainState::Active);

        write(&list, "key,name\na,1\nc,3\n");
        // The retry of the failed run comes after ten seconds.
        until("b has left", async || state(ledger, "b").await == ChainState::Retired).await;
        write(&list, "key,name\na,1\nb,2\nc,3\n");
        until("b is back", async || state(ledger, "b").await == ChainState::Active).await;
        assert!(chain(ledger, "b").await.unwrap().hint.epoch > b.hint.epoch);

        // All the while a went on with what it was.
        let now = chain(ledger, "a").await.unwrap();
        assert_eq!((now.hint.epoch, now.state), (a.hint.epoch, ChainState::Active));
        // One at a time: no run began before the one before it had ended.
        let runs = records().await;
        assert!(runs.len() >= 5, "{runs:?}");
        for pair in runs.windows(2) {
            assert!(pair[0].finished.is_some_and(|finished| finished <= pair[1].started), "{pair:?}");
        }
    }
}

#[tokio::test]
async fn a_roster_that_would_lie_in_the_clear_waits_until_its_worker_seals() {
    let ground = Ground::embedded();
    let list = ground.path("them.csv");
    write(&list, "key,name\na,1\n");
    let roster = format!("{KIND}roster = {{ file = \"{}\", sync = \"1s\" }}\n", list.display());
    let _worker = worker(&ground.config_file(&roster));
    let ledger = Connections::ledger(&ground.config(&roster)).await.unwrap();
    until("a is enrolled", async || chain(&*ledger, "a").await.is_some()).await;
    // As a worker does that has been given `seal` before this one.
    topology_guard::note_sealing(&*ledger, true).await.unwrap();
    write(&list, "key,name\na,1\nb,2\n");
    until("it waits", async || {
        let chore = ledger.chains("roundelay.roster".into(), "sync".into()).await.unwrap().remove(0);
        let last = ledger.history(chore.fence, 1).await.unwrap().pop();
        last.is_some_and(|last| {
            last.verdict.as_deref() == Some("snoozed")
                && last.reason.is_some_and(|reason| reason.contains("names no key to seal with"))
                && chore.hint.attempt == 1
        })
    })
    .await;
    assert!(chain(&*ledger, "b").await.is_none());
    topology_guard::note_sealing(&*ledger, false).await.unwrap();
    until("b is enrolled", async || chain(&*ledger, "b").await.is_some()).await;
}

#[tokio::test]
async fn a_worker_begins_the_keys_in_its_configuration() {
    let ground = Ground::embedded();
    let text = format!("{KIND}roster.keys = [\"-\", \"eu\"]\n");
    let config = ground.config_file(&text);
    let checked = roundelay(&["check", "--config", config.to_str().unwrap()]).await;
    assert!(checked.ok && checked.stdout.contains("follows its keys -, eu"), "{checked:?}");
    let _worker = worker(&config);
    let ledger = Connections::ledger(&ground.config(&text)).await.unwrap();
    let ticked = async |key: &str| chain(&*ledger, key).await.is_some_and(|chain| chain.hint.tick > 2);
    until("both tick", async || ticked("-").await && ticked("eu").await).await;
    let payload = chain(&*ledger, "-").await.unwrap().payload;
    assert_eq!(serde_json::from_str::<Value>(&payload).unwrap(), json!({ "key": "-" }));
    // By hand it is the same.
    assert_eq!(tally(&config, &[]).await, [0, 2, 0, 0, 0]);
    let fewer = ground.config_file(&text.replace(", \"eu\"]", "]\nroster.prune = true"));
    assert_eq!(tally(&fewer, &[]).await, [0, 1, 0, 0, 1]);
    assert_eq!(state(&*ledger, "eu").await, ChainState::Retired);
}

#[tokio::test]
async fn two_rows_of_one_key_on_two_queues_are_told_with_both_lines() {
    let ground = Ground::embedded();
    let text = KIND.replace("[queues.work]", "[queues.work-ios]\n[queues.work-android]");
    let text = text.replace("queue = \"work\"", "queue = \"work-{{ platform }}\"");
    let (config, list) = (ground.config_file(&text), ground.path("them.csv"));
    let ledger = Connections::ledger(&ground.config(&text)).await.unwrap();
    write(&list, "key,platform\nus,ios\nde,ios\nus,android\nde,ios\n");
    let bad = enroll(&config, &[list.to_str().unwrap()]).await;
    let json = bad.json();
    assert_eq!((&json["created"], &json["rejected"]), (&json!(2), &json!(1)), "{bad:?}");
    refused(bad, &["line 4: its key `us` is also that of line 2, on the queue `work-ios`", "`work-android`"]);
    assert_eq!(chain(&*ledger, "us").await.unwrap().hint.queue, "work-ios");
    // In another source it is the same entity, which has moved.
    write(&list, "key,platform\nus,android\n");
    assert_eq!(tally(&config, &[list.to_str().unwrap()]).await, [0, 0, 1, 0, 0]);
    assert_eq!(chain(&*ledger, "us").await.unwrap().hint.queue, "work-android");
}

#[tokio::test]
async fn a_roster_with_another_schedule_moves_sleeping_chains_and_one_without_a_schedule_moves_none() {
    let ground = Ground::embedded();
    let list = ground.path("them.csv");
    let silent = KIND.replace("1s", "1h");
    let text = format!("{silent}roster.schedule = \"{{{{ when }}}}\"\n");
    let config = ground.config_file(&text);
    let ledger = Connections::ledger(&ground.config(&text)).await.unwrap();
    let ledger = &*ledger;
    let due = async |key: &str| chain(ledger, key).await.unwrap().hint.due;
    write(&list, "key,when\na,0 0 29 2 *\nb,0 0 29 2 *\nc,\n");
    assert_eq!(tally(&config, &[list.to_str().unwrap()]).await, [3, 0, 0, 0, 0]);
    let far = ledger.now() + Duration::from_secs(2 * 3_600);
    let before = [due("a").await, due("b").await, due("c").await];
    // The next 29th of February may be today, once in four years.
    assert!(before[0] == before[1] && before[2] < far, "{before:?}");

    write(&list, "key,when\na,0 0 29 2 *\nb,10m\nc,\n");
    assert_eq!(tally(&config, &[list.to_str().unwrap()]).await, [0, 2, 1, 0, 0]);
    let after = [due("a").await, due("b").await, due("c").await];
    assert!((after[0], after[2]) == (before[0], before[2]) && after[1] < before[1].min(far), "{before:?} {after:?}");

    let text = ground.config_file(&silent);
    let text = text.to_str().unwrap();
    let said = roundelay(&["schedule", "sync", "c", "3h", "--config", text]).await;
    assert!(said.ok, "{said:?}");
    let own = chain(ledger, "c").await.unwrap();
    assert!(own.schedule.is_some());
    assert_eq!(tally(Path::new(text), &[list.to_str().unwrap()]).await, [0, 3, 0, 0, 0]);
    let kept = chain(ledger, "c").await.unwrap();
    assert_eq!((kept.schedule, kept.hint.due), (own.schedule, own.hint.due));
}

crate::harness::on_all!(prune_ends_what_left_the_roster_and_only_that);
crate::harness::on_all!(a_worker_follows_the_roster_in_its_configuration);

// ---- Sources ----

/// Answers lists, good ones and others.
async fn upstream() -> String {
    let csv = async || ([(header::CONTENT_TYPE, "text/csv; charset=utf-8")], "key,name\nhttp,1\n");
    let ndjson = async || ([(header::CONTENT_TYPE, "application/x-ndjson")], "{\"key\":\"ndjson\"}\n");
    let app = Router::new()
        .route("/csv", get(csv))
        .route("/ndjson", get(ndjson))
        .route("/by-name.csv", get(async || "key,name\nnamed,1\n"))
        .route("/unknown", get(async || "key,name\nx,1\n"))
        .route("/silent", get(std::future::pending::<&str>))
        .route("/moved", get(async || Redirect::temporary("/csv")))
        .route("/gone", get(async || (StatusCode::NOT_FOUND, "key\nx\n").into_response()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}")
}

fn database(folder: &Path) -> PathBuf {
    let path = folder.join("them.db");
    let them = rusqlite::Connection::open(&path).unwrap();
    them.execute_batch("CREATE TABLE them (id INTEGER, name TEXT); INSERT INTO them VALUES (7, 'seven'), (8, 'eight')")
        .unwrap();
    path
}

#[tokio::test]
async fn a_roster_comes_from_a_file_a_url_or_a_query() {
    let ground = Ground::rabbit_and_postgres().await;
    let upstream = upstream().await;
    write(&ground.path("them.ndjson"), "{\"key\":\"file\"}\n");
    let them = database(ground.folder.path());
    let schema = ground.schema.as_ref().unwrap();
    let postgres = "CREATE TABLE them (id int8, name text, since timestamptz, tags jsonb);
                    INSERT INTO them VALUES (1, 'π', '2026-03-01 12:00:00Z', '[1, \"b\"]')";
    schema.raw().await.batch_execute(postgres).await.unwrap();

    let first = async |source: &str| {
        let config = ground.config_file(&format!("{KIND}roster = {{ key = \"{{{{ key }}}}\", {source} }}"));
        enroll(&config, &["--rejects", ground.path("rejects").to_str().unwrap()]).await
    };
    let payload = async |key: &str| -> Value {
        let ledger = Connections::ledger(&ground.config(KIND)).await.unwrap();
        serde_json::from_str(&chain(&*ledger, key).await.unwrap().payload).unwrap()
    };
    let good = [
        (format!("file = '{}'", ground.path("them.ndjson").display()), "file", json!({ "key": "file" })),
        (format!("http = '{upstream}/csv'"), "http", json!({ "key": "http", "name": "1" })),
        (format!("http = '{upstream}/ndjson'"), "ndjson", json!({ "key": "ndjson" })),
        (format!("http = '{upstream}/by-name.csv'"), "named", json!({ "key": "named", "name": "1" })),
        (
            format!(
                "sql = {{ url = 'sqlite://{}', query = 'SELECT id AS key, name FROM them WHERE id = 7;' }}",
                them.display()
            ),
            "7",
            json!({ "key": 7, "name": "seven" }),
        ),
        (
            format!("sql = {{ url = '{}', query = 'SELECT id AS key, name, tags FROM them -- all' }}", schema.url),
            "1",
            json!({ "key": 1, "name": "π", "tags": [1, "b"] }),
        ),
    ];
    for (source, key, expected) in good {
        let output = first(&source).await;
        assert!(output.ok && output.json()["created"] == 1, "{source}: {output:?}");
        assert_eq!(payload(key).await, expected, "{source}");
    }

    let url = url::Url::parse(&schema.url).unwrap();
    let password = url.password().map(|password| format!(":{password}@"));
    let bad = [
        ("file = 'absent.csv'".to_owned(), vec!["absent.csv: No such file"]),
        (format!("http = '{upstream}/gone'"), vec!["/gone: the answer is 404 Not Found"]),
        (format!("http = '{upstream}/moved'"), vec!["307", "redirects are not followed"]),
        (format!("http = '{upstream}/unknown'"), vec!["its Content-Type is `text/plain", "text/csv"]),
        ("http = 'http://127.0.0.1:1/x.csv'".into(), vec!["http://127.0.0.1:1/x.csv: ", "refused"]),
        (
            format!("sql = {{ url = 'sqlite://{}', query = 'SELECT x FROM them' }}", them.display()),
            vec!["them.db: no such column: x"],
        ),
        ("sql = { url = 'sqlite://absent.db', query = 'SELECT 1' }".into(), vec!["absent.db: "]),
        (
            format!("sql = {{ url = '{}', query = 'SELECT x FROM them' }}", schema.url),
            vec!["column \"x\" does not exist"],
        ),
        (
            format!("sql = {{ url = '{}', query = 'DELETE FROM them RETURNING id AS key' }}", schema.url),
            vec!["syntax error"],
        ),
        (
            format!("sql = {{ url = 'sqlite://{}', query = 'SELECT name FROM them' }}", them.display()),
            vec!["line 1: its key cannot be made", "2 bad rows"],
        ),
    ];
    for (source, words) in bad {
        let output = first(&format!("{source}, prune = true")).await;
        let shown = password.as_ref().is_some_and(|password| output.stderr.contains(password));
        assert!(!shown, "a password is shown: {}", output.stderr);
        refused(output, &words);
    }
    let ledger = Connections::ledger(&ground.config(KIND)).await.unwrap();
    for key in ["file", "http", "ndjson", "named", "7", "1"] {
        assert_eq!(
            state(&*ledger, key).await,
            ChainState::Active,
            "{key} was retired by a list that could not be read"
        );
    }
    // What a query that is only read may not do has not been done.
    let left: i64 = schema.raw().await.query_one("SELECT count(*) FROM them", &[]).await.unwrap().get(0);
    assert_eq!(left, 1);
}

#[tokio::test]
async fn a_source_that_is_silent_keeps_nothing_else_waiting() {
    let ground = Ground::embedded();
    let list = ground.path("them.csv");
    write(&list, "key\na\n");
    let upstream = upstream().await;
    let text = format!(
        "{KIND}roster = {{ file = \"{}\", sync = \"1s\" }}\n{}roster.http = \"{upstream}/silent\"\n",
        list.display(),
        KIND.replace("[queues.work]\n", "").replace("kinds.sync", "kinds.slow")
    );
    let _worker = worker(&ground.config_file(&text));
    let ledger = Connections::ledger(&ground.config(&text)).await.unwrap();
    let ledger = &*ledger;
    let chore = async |kind: &str, key: &str| ledger.chains(kind.into(), key.into()).await.unwrap().pop();
    until("the source is being asked", async || {
        chore("roundelay.roster", "slow").await.is_some_and(|chain| chain.holder.runs())
    })
    .await;
    write(&list, "key\na\nb\n");
    until("what the other roster brings ticks, and the history was looked after", async || {
        let ticks = async |key: &str| chain(ledger, key).await.is_some_and(|chain| chain.hint.tick > 2);
        let history = chore("roundelay.history", "attempts").await;
        ticks("a").await && ticks("b").await && history.is_some_and(|chain| chain.hint.tick > 1)
    })
    .await;
    assert!(chore("roundelay.roster", "slow").await.unwrap().hint.tick == 1, "and that one still waits");
}

// ---- The first ticks of what is found (A6) ----

/// The highest count of any bin, in relation to the mean over the window.
fn peak_to_mean(due: &[Duration], window: Duration, bins: usize) -> f64 {
    let mut counts = vec![0_u32; bins];
    for due in due {
        let bin = (due.as_secs_f64() / window.as_secs_f64() * bins as f64) as usize;
        counts[bin.min(bins - 1)] += 1;
    }
    f64::from(*counts.iter().max().unwrap()) * bins as f64 / due.len() as f64
}

/// The old rule was a delay of `random(0..i) * 2` seconds for the i-th entity, which piles up at the
/// beginning. Here they are spread evenly over the same window.
#[tokio::test]
async fn chains_of_a_roster_are_spread_flatter_than_random_steps_of_two_seconds() {
    const FOUND: usize = 2_000;
    const BINS: usize = 40;
    let ground = Ground::embedded();
    let list = ground.path("them.csv");
    let rows: Vec<String> = (0..FOUND).map(|n| format!("{n}\n")).collect();
    write(&list, &format!("key\n{}", rows.concat()));
    let window = Duration::from_secs(2 * FOUND as u64);
    let kind = KIND.replace("every = \"1s\"", &format!("every = \"{}s\"", window.as_secs()));
    let text = format!("{kind}roster.file = \"{}\"\n", list.display());
    let output = enroll(&ground.config_file(&text), &[]).await;
    assert!(output.ok && output.json()["created"] == FOUND, "{output:?}");

    let ledger = Connections::ledger(&ground.config(&text)).await.unwrap();
    let kinds = Kinds { all: vec!["sync".into()], recurring: vec!["sync".into()] };
    let hints = ledger.messages(vec!["work".into()], kinds, Epoch::NONE, 2 * FOUND as u32).await.unwrap();
    assert_eq!(hints.len(), FOUND);
    let first = hints.iter().map(|hint| hint.due).min().unwrap_or_else(|| Time::from_millis(0));
    let ours: Vec<Duration> = hints.iter().map(|hint| hint.due.since(first)).collect();
    let dice = Entropy::seeded(7);
    let theirs: Vec<Duration> = (0..FOUND).map(|i| Duration::from_secs(2 * dice.below(i.max(1)) as u64)).collect();
    let (ours, theirs) = (peak_to_mean(&ours, window, BINS), peak_to_mean(&theirs, window, BINS));
    println!(
        "first ticks of {FOUND} entities over {window:?}, {BINS} bins, peak to mean: {ours:.2}; random(0..i) * 2 s: {theirs:.2}"
    );
    assert!(ours < 1.25, "{ours}");
    assert!(theirs > 3.0 && ours < theirs / 2.0, "{ours} against {theirs}");
}
