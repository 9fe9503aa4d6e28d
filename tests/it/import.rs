//! What other schedulers run, by `roundelay import`: that a worker would run it at the same times.
//!
//! The samples are what the real programs have printed, but for Laravel's, which follows the source of its command.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use roundelay::Config;
use roundelay::clock::Time;
use roundelay::config::{OwnSchedule, RosterSource};
use roundelay::schedule::{Rhythm, Schedule};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::foreign_clients::provided;
use crate::harness::{Ground, roundelay, until, worker};

/// From here on, occurrences are compared.
const FROM: &str = "2026-01-15T00:00:00Z";

/// A file of `tests/it/imports`.
pub fn sample(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/imports")).join(name)
}

/// Imports a sample into the ground's folder, and has it checked; what it said as JSON.
async fn import(ground: &Ground, source: &str, file: &str, rest: &[&str]) -> (PathBuf, Value) {
    let (file, output) = (sample(file), ground.path("roundelay.toml"));
    let mut arguments = vec!["import", source, file.to_str().unwrap(), "--json", "--output", output.to_str().unwrap()];
    arguments.extend(rest);
    let said = roundelay(&arguments).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    let check = roundelay(&["check", "--config", output.to_str().unwrap()]).await;
    assert_eq!(check.code, Some(0), "{check:?}");
    (output, said.json())
}

/// The chains that a worker would begin, by the line of the kind's comment or else the key, with their schedules.
fn chains(config: &Path) -> BTreeMap<String, Schedule> {
    let text = std::fs::read_to_string(config).unwrap();
    let config = Config::load(config).unwrap();
    let mut chains = BTreeMap::new();
    for (name, kind) in &config.kinds {
        let before = text.split(&format!("[kinds.{name}]")).next().unwrap();
        let place = before.trim_end().lines().last().unwrap().trim_start_matches("# ").split(": ").next().unwrap();
        let schedule = &kind.recurrence.as_ref().unwrap().schedule;
        let rows: Vec<Value> = match kind.roster.as_ref().map(|roster| &roster.source) {
            Some(RosterSource::Keys(keys)) => keys.iter().map(|key| json!({ "key": key })).collect(),
            Some(RosterSource::File(file)) => {
                let text = std::fs::read_to_string(file).unwrap();
                text.lines().map(|row| serde_json::from_str(row).unwrap()).collect()
            }
            other => panic!("{name} has no roster: {other:?}"),
        };
        for row in rows {
            let own = row["schedule"].as_str().map(|own| OwnSchedule::parse(own).unwrap().apply(schedule).unwrap());
            let key = row["key"].as_str().unwrap();
            let name = if matches!(key, "crontab" | "laravel") { place } else { key };
            assert_eq!(chains.insert(name.to_owned(), own.unwrap_or_else(|| schedule.clone())), None, "{name}");
        }
    }
    chains
}

/// Asserts that chains come when `command` says, which knows the source by other means; how many it knows.
async fn come_alike(chains: &BTreeMap<String, Schedule>, mut command: Command) -> usize {
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected: BTreeMap<String, Vec<i64>> = serde_json::from_slice(&output.stdout).unwrap();
    let from = roundelay::config::at_time(FROM).unwrap();
    for (name, expected) in &expected {
        let Some(Schedule { rhythm: Rhythm::Cron(cron), .. }) = chains.get(name) else {
            panic!("{name} is not among {chains:?}");
        };
        let next = |at: &Time| cron.after(*at);
        let found = std::iter::successors(cron.after(from), next).take(expected.len());
        let found: Vec<i64> = found.map(|at| at.as_millis() / 1_000).collect();
        assert_eq!(&found, expected, "{name}: {cron}");
    }
    expected.len()
}

fn python(arguments: &[&Path]) -> Command {
    let mut command = Command::new(provided("ROUNDELAY_TEST_PYTHON"));
    command.arg(sample("occurrences.py")).args(arguments);
    command
}

/// The places of entries that were left out.
fn left_out(said: &Value) -> Vec<&str> {
    let notes = said["notes"].as_array().unwrap().iter();
    let left: Vec<_> =
        notes.filter(|note| note["weight"] == "left-out").map(|note| note["place"].as_str().unwrap()).collect();
    assert_eq!(left.len(), said["left_out"].as_u64().unwrap() as usize);
    left
}

#[tokio::test]
async fn a_crontab_comes_when_cron_would_run_it() {
    let ground = Ground::embedded();
    let (config, said) = import(&ground, "crontab", "crontab", &[]).await;
    let chains = chains(&config);
    assert_eq!(come_alike(&chains, python(&[Path::new("crontab"), &sample("crontab")])).await, chains.len());
    assert_eq!((said["carried"].as_u64(), left_out(&said)), (Some(9), vec!["line 16", "line 17"]));
}

#[tokio::test]
async fn laravels_schedule_comes_when_laravel_would_run_it() {
    let ground = Ground::embedded();
    let (config, said) = import(&ground, "laravel", "laravel.json", &["--application", "/srv/app"]).await;
    let chains = chains(&config);
    let mut php = Command::new("php");
    php.args([sample("occurrences.php"), sample("laravel.json")]);
    // All but the one that repeats within a minute, of which that parser knows nothing. Where clocks change it leaves
    // out a day when it is asked for many at once, as Laravel never does; so the sample's zone is one where they do
    // not.
    assert_eq!(come_alike(&chains, php).await, chains.len() - 1);
    assert_eq!(chains["entry 10"].to_string(), "cron */10 * * * * * Asia/Tokyo");
    assert_eq!((said["carried"].as_u64(), left_out(&said)), (Some(10), vec!["entry 11"]));
}

#[tokio::test]
async fn celerys_schedule_comes_when_beat_would_send_it() {
    let ground = Ground::embedded();
    let (config, said) = import(&ground, "celery", "celery.json", &[]).await;
    let chains = chains(&config);
    let crontabs = come_alike(&chains, python(&[Path::new("celery"), &sample("")])).await;
    let every = |name: &str| chains[name].to_string();
    assert_eq!(every("poll"), "every 30s from start");
    assert_eq!(every("often"), "every 60500ms from start");
    assert_eq!(every("prune"), "every 6h from start");
    assert_eq!((crontabs, chains.len()), (5, 8));
    assert_eq!((said["carried"].as_u64(), left_out(&said).len()), (Some(8), 0));
}

#[tokio::test]
async fn the_line_that_dumps_a_beat_schedule_does_what_the_guide_says() {
    let guide = include_str!("../../docs/migrate/celery.md");
    let line = guide.lines().find(|line| line.starts_with("python -c '")).unwrap();
    let code = line.split('\'').nth(1).unwrap();
    let output = Command::new(provided("ROUNDELAY_TEST_PYTHON"))
        .args(["-c", code])
        .current_dir(sample(""))
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let dump: Value = serde_json::from_slice(&output.stdout).unwrap();
    let recorded = std::fs::read_to_string(sample("celery.json")).unwrap();
    assert_eq!(dump, serde_json::from_str::<Value>(&recorded).unwrap());
}

#[tokio::test]
async fn dumps_of_django_celery_beat_are_read() {
    let ground = Ground::embedded();
    let (config, said) = import(&ground, "celery", "django.json", &[]).await;
    let found: Vec<String> = chains(&config).iter().map(|(key, schedule)| format!("{key}: {schedule}")).collect();
    let expected = [
        "friday the 13th: cron 0 4,16 13 * +5 America/New_York",
        "launch: at 2099-01-01T03:00:00.000Z",
        "poll: every 10m from start",
    ];
    assert_eq!(found, expected);
    assert_eq!(left_out(&said), ["lamp", "off"]);
}

#[tokio::test]
async fn bullmqs_schedulers_come_when_bullmq_would_start_them() {
    let ground = Ground::embedded();
    let (config, said) = import(&ground, "bullmq", "bullmq.json", &[]).await;
    let chains = chains(&config);
    let mut node = Command::new("node");
    node.args([sample("occurrences.js"), sample("bullmq.json")]);
    node.env("NODE_PATH", provided("ROUNDELAY_TEST_NODE_PATH").join("node_modules"));
    assert_eq!(come_alike(&chains, node).await, chains.len() - 1);
    assert_eq!(chains["fast"].to_string(), "every 10s from nominal");
    assert_eq!((said["carried"].as_u64(), left_out(&said)), (Some(5), vec!["later"]));
}

#[tokio::test]
async fn a_worker_runs_what_a_crontab_said() {
    let ground = Ground::embedded();
    let (source, config) = (ground.path("crontab"), ground.path("import/roundelay.toml"));
    std::fs::create_dir(ground.path("import")).unwrap();
    let ran = ground.path("ran");
    let line =
        format!("GREETING='hello there'\n* * * * * cat > {0}; echo \"$GREETING\" >> {0}%input%more\n", ran.display());
    std::fs::write(&source, line).unwrap();
    let arguments = ["import", "crontab", source.to_str().unwrap(), "--output", config.to_str().unwrap()];
    let said = roundelay(&arguments).await;
    assert!(said.ok && said.stdout.contains("1 carried over, 0 left out"), "{said:?}");
    // What is there is kept.
    let again = roundelay(&arguments).await;
    assert!(again.code == Some(1) && again.stderr.contains("exists already"), "{again:?}");
    let ledger = format!("\n[ledger]\nurl = \"sqlite://{}\"\n", ground.path("ledger.db").display());
    let text = std::fs::read_to_string(&config).unwrap() + &ledger;
    std::fs::write(&config, text.replace("\"* * * * *\"", "\"* * * * * *\"")).unwrap();
    let mut worker = worker(&config);
    let read = || std::fs::read_to_string(&ran).unwrap_or_default();
    until("the command has run", || {
        let there = read() == "input\nmore\nhello there\n";
        async move { there }
    })
    .await;
    worker.kill().await.unwrap();
}

#[tokio::test]
async fn an_import_that_can_carry_nothing_over_says_so_and_writes_nothing() {
    let ground = Ground::embedded();
    let (source, config) = (ground.path("crontab"), ground.path("roundelay.toml"));
    std::fs::write(&source, "@reboot true\nnonsense\n").unwrap();
    let arguments = ["import", "crontab", source.to_str().unwrap(), "--output", config.to_str().unwrap()];
    let said = roundelay(&arguments).await;
    assert!(said.code == Some(1) && said.stdout.is_empty(), "{said:?}");
    for words in ["left out  line 1: @reboot true", "left out  line 2: nonsense", "nothing could be carried over"] {
        assert!(said.stderr.contains(words), "{words}: {said:?}");
    }
    assert!(!config.exists());
}
