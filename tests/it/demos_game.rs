//! The demos of the two games, characters and missions: the real program on each broker, and what they say when a rule
//! is broken on purpose.

use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use roundelay::config::Config;
use roundelay::demo::characters::Characters;
use roundelay::demo::missions::Missions;
use roundelay::demo::stage::{Judged, Language, Settings, Stage, System, run};
use roundelay::engine::{Connections, StartError};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::harness::{Ground, roundelay_with};

/// What `roundelay demo` prints with `--json`.
async fn demo(arguments: &[&str]) -> Value {
    demo_with(&[], arguments).await
}

/// The report of a demo with these environment variables.
async fn demo_with(variables: &[(&str, &str)], arguments: &[&str]) -> Value {
    let output = roundelay_with(variables, &[&["demo"], arguments, &["--json"]].concat()).await;
    assert!(output.ok, "{output:?}");
    output.json()
}

fn nothing_is_broken(report: &Value) {
    assert_eq!(report["violations"], json!([]), "{report}");
    assert_eq!((&report["forked"], &report["dead"]), (&json!(0), &json!(0)), "{report}");
    assert!(report["ticks"].as_u64().unwrap() > 200, "{report}");
}

fn characters_are_updated(report: &Value) {
    nothing_is_broken(report);
    assert_eq!((&report["chains"], &report["figures"]["characters"]), (&json!(40), &json!(40)), "{report}");
    let figures = &report["figures"];
    assert!(figures["by_hand"].as_u64() > Some(0) && figures["refused"].as_u64() > Some(0), "{report}");
    assert!(figures["shortest_pause_ms"].as_u64() >= Some(2_995), "{report}");
    assert!(figures["errors"].as_u64() > Some(0), "there was a slow spell: {report}");
}

fn missions_are_played(report: &Value) {
    nothing_is_broken(report);
    assert_eq!((&report["system"], &report["figures"]["missions"]), (&json!("missions"), &json!(300)), "{report}");
    assert!(report["figures"]["closest_ms"].as_u64() >= Some(995), "{report}");
    // 300 missions, 120 channels, and what ends missions; of missions that were over, chains have ended.
    let over = report["figures"]["over"].as_u64().unwrap();
    let chains = report["chains"].as_u64().unwrap();
    assert!((421 - over..=421).contains(&chains), "{report}");
}

#[tokio::test]
async fn characters_keep_their_rules() {
    characters_are_updated(&demo(&["characters", "--for", "10s"]).await);
}

#[tokio::test]
async fn missions_keep_their_rules() {
    missions_are_played(&demo(&["missions", "--for", "10s"]).await);
}

#[tokio::test]
async fn characters_keep_their_rules_on_rabbitmq_and_postgres() {
    let ground = Ground::rabbit_and_postgres().await;
    let (broker, ledger) = (ground.broker_url(), ground.ledger_url());
    let report = demo(&["characters", "--for", "10s", "--broker", &broker, "--ledger", &ledger]).await;
    characters_are_updated(&report);
}

/// The worker that is killed is a process, and does not go to the ledger of an installation on this machine.
#[tokio::test]
async fn missions_keep_their_rules_on_rabbitmq_and_postgres() {
    let ground = Ground::rabbit_and_postgres().await;
    let (broker, ledger) = (ground.broker_url(), ground.ledger_url());
    let elsewhere = [("ROUNDELAY__LEDGER__URL", "sqlite:///nowhere/installation.db")];
    let report = demo_with(&elsewhere, &["missions", "--for", "10s", "--broker", &broker, "--ledger", &ledger]).await;
    missions_are_played(&report);
}

/// A system of which something is not as its owners have it.
struct Broken<S> {
    system: S,
    files: &'static [(&'static str, &'static str)],
    second: bool,
}

/// Changes `system`: text of one of its files becomes another.
fn broken<S: System>(system: S, changes: &[(&str, &str, &str)]) -> Broken<S> {
    let changed = |(name, text): &(&'static str, &'static str)| {
        let mut text = (*text).to_owned();
        for (_, from, to) in changes.iter().filter(|(file, ..)| file == name) {
            assert!(text.contains(from), "{name} has no `{from}`");
            text = text.replace(from, to);
        }
        (*name, &*text.leak())
    };
    let files: Vec<_> = system.files().iter().map(changed).collect();
    let second = system.has_second();
    Broken { system, files: files.leak(), second }
}

#[async_trait]
impl<S: System> System for Broken<S> {
    fn name(&self) -> &'static str {
        self.system.name()
    }

    fn files(&self) -> &'static [(&'static str, &'static str)] {
        self.files
    }

    fn language(&self) -> Language {
        self.system.language()
    }

    fn told(&self) -> String {
        self.system.told()
    }

    fn configuration(&self, text: &str) -> Result<String, String> {
        self.system.configuration(text)
    }

    fn roster(&self, text: &str) -> Result<String, String> {
        self.system.roster(text)
    }

    fn prepare(&mut self, config: &mut Config, connections: &Connections) -> Result<(), String> {
        self.system.prepare(config, connections)
    }

    fn has_second(&self) -> bool {
        self.second
    }

    fn upstream(&self) -> Router {
        self.system.upstream()
    }

    async fn plays(&self, stage: &Stage) -> Result<(), StartError> {
        self.system.plays(stage).await
    }

    async fn judged(&self, stage: &Stage) -> Result<Judged, StartError> {
        self.system.judged(stage).await
    }
}

/// What is said of it.
async fn violations(system: impl System, seconds: u64) -> Vec<String> {
    let ground = Ground::embedded();
    let settings = Settings {
        broker: "embedded".into(),
        ledger: Some(ground.ledger_url()),
        length: Duration::from_secs(seconds),
        dashboard: false,
        environment: Vec::new(),
    };
    let report = run(system, settings, CancellationToken::new(), |_| {}).await.unwrap();
    eprintln!("{} of {:?}: {}", report.system, report.late_ms, report.figures);
    report.violations
}

fn says(violations: &[String], words: &str) {
    assert!(violations.iter().any(|violation| violation.contains(words)), "no `{words}` in {violations:#?}");
}

const FILE: &str = "roundelay.toml";

#[tokio::test]
async fn a_delay_that_is_too_short_and_an_error_limit_that_is_ignored_are_said() {
    let budget =
        "budget = { remaining = \"X-ESI-Error-Limit-Remain\", reset = \"X-ESI-Error-Limit-Reset\", slow_below = 50 }";
    let system = broken(Characters::new(), &[(FILE, "every = \"5m\"", "every = \"2m\""), (FILE, budget, "")]);
    let found = violations(system, 18).await;
    says(&found, "after the end of the last one; the delay is 3s.");
    says(&found, "requests came when the error limit was used up.");
}

/// The endpoints of an update are jobs that nothing waits for.
#[tokio::test]
async fn updates_that_overlap_are_said() {
    let system = broken(Characters::new(), &[("handler.php", "'batch' =>", "'spawn' =>")]);
    says(&violations(system, 14).await, "before the one before it had ended.");
}

/// The ticks of all missions at once, with no limit for a channel, each played twice with dice of its own, also when
/// the mission is over; and no worker is killed.
#[tokio::test]
async fn missions_that_keep_no_rule_are_told_which() {
    let rhythm = "every = \"60s\"\njitter = \"15s\"\nmisfire_spread = \"60s\"";
    let handler = "handler.js";
    let played = "{ outcome: \"retire\", reason: \"the mission is over\" } : { outcome: \"done\" }";
    let twice = "{ outcome: \"done\" } : { outcome: job.attempt < 2 ? \"retry\" : \"done\" }";
    let changes = [
        (FILE, rhythm, "cron = \"*/6 * * * * *\""),
        (FILE, "throttle = \"channel\"\n", ""),
        (handler, "dice(job.seed)", "dice(Math.floor(Math.random() * 2 ** 50))"),
        (handler, played, twice),
    ];
    let system = Broken { second: false, ..broken(Missions::new(), &changes) };
    let found = violations(system, 20).await;
    says(&found, "ticks were due, which is");
    says(&found, "had two messages within");
    says(&found, "was resolved to");
    says(&found, "was over with tick");
    says(&found, "No worker was killed.");
}
