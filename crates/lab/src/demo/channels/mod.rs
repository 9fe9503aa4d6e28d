//! A message gateway's channels, each polled at its own interval: a quarter of an hour in half a minute.

mod gateway;
pub mod judge;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use parking_lot::Mutex;
use roundelay_config::{Config, Format, OwnSchedule};
use roundelay_engine::roster::rows;
use roundelay_engine::{Connections, StartError};
use roundelay_ledger::{ChainFilter, ChainOrder};
use roundelay_model::clock::{Time, parse_duration, short_duration};
use roundelay_model::ids::Fence;
use roundelay_model::schedule::Rhythm;
use toml::Table;

use super::newest::{ALONE, tell_left_out};
use super::scale::{scaled, shorter};
use super::stage::{Judged, Language, Stage, System};
use gateway::{FULL, Gateway};
use judge::{Record, Task, judge};

/// How much of the system's time a demo covers.
const SHOWN: Duration = Duration::from_secs(15 * 60);
/// How many runs may run at the same time. The example has room for 200, for a hundred times as many tasks.
const ROOM: i64 = 6;
/// The channel that is deleted half-way: it has an inbox, a mailbox and a node.
const DELETED: &str = "radio-3";
/// When the gateway is slow, as shares of the demo.
const SLOW: (f64, f64) = (0.3, 0.4);
const ATTEMPTS: u32 = 1_000;

/// The kinds, and the paths that their handler calls.
const KINDS: [(&str, &str); 4] =
    [("poll-social-inbox", "inbox"), ("download-pop3", "pop3"), ("push-qst", "qst/push"), ("pull-qst", "qst/pull")];

/// The gateway and the record of the demo.
pub struct Channels {
    by: u32,
    length: Duration,
    /// How many sessions and messages the record keeps; with `None`, all.
    most: Option<usize>,
    tasks: Vec<Task>,
    gateway: Option<Arc<Gateway>>,
    deleted: Mutex<Option<(String, Time)>>,
}

impl Channels {
    /// A quarter of an hour in `length`.
    pub fn new(length: Duration) -> Self {
        let by = SHOWN.as_millis().div_ceil(length.as_millis().max(1));
        let by = u32::try_from(by).unwrap_or(u32::MAX);
        Self { by, length, most: None, tasks: Vec::new(), gateway: None, deleted: Mutex::default() }
    }

    fn record(&self, stage: &Stage) -> Record {
        let (sessions, messages) = self.gateway.as_ref().map(|gateway| gateway.record()).unwrap_or_default();
        let deleted = self.deleted.lock().clone();
        let to = if stage.is_ended() { stage.from } else { stage.to };
        let (cut_sessions, cut_messages) = self.left_out();
        let oldest = sessions.first().filter(|_| cut_sessions > 0).map(|oldest| oldest.began);
        let (from, cut) = (oldest.unwrap_or(stage.from), cut_messages > 0);
        Record { tasks: self.tasks.clone(), sessions, messages, deleted, from, cut, to }
    }

    fn left_out(&self) -> (u64, u64) {
        self.gateway.as_ref().map(|gateway| gateway.left_out()).unwrap_or_default()
    }

    /// The ticks that did not start, by the ledger, and why.
    async fn dropped(&self, stage: &Stage) -> Result<Vec<String>, StartError> {
        let (mut dropped, mut after) = (Vec::new(), Fence::NONE);
        loop {
            let page = stage.connections.ledger.attempts(after, ATTEMPTS).await?;
            let Some(last) = page.last() else { return Ok(dropped) };
            after = last.fence;
            let refused = page.into_iter().filter(|attempt| attempt.verdict.as_deref() == Some("dropped"));
            dropped.extend(refused.filter_map(|attempt| attempt.reason));
        }
    }
}

/// The tasks of a roster. A row without an interval has its kind's.
fn tasks(config: &Config, kind: &str, path: &str, roster: &str) -> Result<Vec<Task>, String> {
    let settings = config.kind(kind)?.recurrence.as_ref().ok_or("a kind without schedule")?;
    let mut tasks = Vec::new();
    for (_, row) in rows(Format::Csv, roster.as_bytes())?.flatten() {
        let cell = |name: &str| row.get(name).and_then(|cell| cell.as_str()).unwrap_or_default().to_owned();
        let own = Some(cell("interval")).filter(|own| !own.is_empty());
        let schedule = match own {
            Some(own) => OwnSchedule::from_words(&own)?.apply(&settings.schedule)?,
            None => settings.schedule.clone(),
        };
        let Rhythm::Every { interval, .. } = schedule.rhythm else { return Err("a task without interval".into()) };
        let path = format!("{path}/{}", cell("id"));
        let full = path == FULL;
        tasks.push(Task { path, owner: cell("channel"), interval, tolerance: Duration::ZERO, full });
    }
    Ok(tasks)
}

/// By how much starts may come early, by the service's rules and not by the configuration that is judged: ten seconds
/// for inboxes, twenty for nodes and thirty for mailboxes.
fn tolerance(path: &str) -> Duration {
    Duration::from_secs(match path.split('/').next() {
        Some("inbox") => 10,
        Some("qst") => 20,
        _ => 30,
    })
}

#[async_trait]
impl System for Channels {
    fn name(&self) -> &'static str {
        "channels"
    }

    fn files(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("roundelay.toml", include_str!("../../../examples/channels/roundelay.toml")),
            ("inboxes.csv", include_str!("../../../examples/channels/inboxes.csv")),
            ("mailboxes.csv", include_str!("../../../examples/channels/mailboxes.csv")),
            ("qst.csv", include_str!("../../../examples/channels/qst.csv")),
            ("handler.py", include_str!("../../../examples/channels/handler.py")),
        ]
    }

    fn language(&self) -> Language {
        Language::Python
    }

    fn told(&self) -> String {
        format!(
            "A minute is {}: intervals and tolerances are {} times as short. There is room for {ROOM} runs at a time, and for \
             a tenth of the time the gateway is slow.",
            short_duration(shorter(Duration::from_secs(60), self.by, Duration::ZERO)),
            self.by
        )
    }

    fn alone(&mut self) {
        self.most = Some(ALONE);
    }

    fn configuration(&self, text: &str) -> Result<String, String> {
        let text = scaled(text, |path, length| match path.last() {
            Some(&"time_box_grace") => length,
            _ => shorter(length, self.by, Duration::ZERO),
        })?;
        let mut table: Table = text.parse().map_err(|error| format!("not TOML: {error}"))?;
        let queues = table.get_mut("queues").and_then(|queues| queues.as_table_mut()).into_iter().flatten();
        for (_, queue) in queues {
            if let Some(queue) = queue.as_table_mut() {
                queue.insert("concurrency".into(), ROOM.into());
            }
        }
        Ok(table.to_string())
    }

    fn roster(&self, text: &str) -> Result<String, String> {
        let mut lines = Vec::new();
        for line in text.lines() {
            let (rest, interval) = line.rsplit_once(',').unwrap_or((line, ""));
            lines.push(match parse_duration(interval) {
                Ok(interval) => format!("{rest},{}\n", short_duration(shorter(interval, self.by, Duration::ZERO))),
                Err(_) => format!("{line}\n"),
            });
        }
        Ok(lines.concat())
    }

    fn prepare(&mut self, config: &mut Config, connections: &Connections) -> Result<(), String> {
        for (kind, path) in KINDS {
            let file = match path.split('/').next() {
                Some("inbox") => "inboxes.csv",
                Some("pop3") => "mailboxes.csv",
                _ => "qst.csv",
            };
            let roster = self.files().iter().find(|(name, _)| *name == file).map_or("", |(_, text)| text);
            self.tasks.extend(tasks(config, kind, path, &self.roster(roster)?)?);
        }
        for task in &mut self.tasks {
            task.tolerance = shorter(tolerance(&task.path), self.by, Duration::ZERO);
        }
        self.gateway = Some(Gateway::new(connections, self.most));
        Ok(())
    }

    fn upstream(&self) -> Router {
        self.gateway.clone().map(Gateway::router).unwrap_or_default()
    }

    async fn plays(&self, stage: &Stage) -> Result<(), StartError> {
        let slow = |is| self.gateway.iter().for_each(|gateway| gateway.slow(is));
        stage.at(SLOW.0).await;
        slow(Some(self.length / 25));
        stage.at(SLOW.1).await;
        slow(None);
        stage.at(0.5).await;
        let which = ChainFilter { owner: Some(DELETED.into()), ..ChainFilter::default() };
        stage.connections.ledger.order_chains(which, ChainOrder::Retire).await?;
        let gone = Some((DELETED.to_owned(), stage.connections.clock.now()));
        *self.deleted.lock() = gone;
        stage.at(1.0).await;
        Ok(())
    }

    async fn judged(&self, stage: &Stage) -> Result<Judged, StartError> {
        let record = self.record(stage);
        let (violations, figures) = judge(&record);
        let dropped = self.dropped(stage).await?;
        let mut figures = serde_json::to_value(&figures).unwrap_or_default();
        figures["dropped"] = dropped.len().into();
        figures["dropped_for_example"] = dropped.into_iter().next().unwrap_or_default().into();
        let (sessions, messages) = self.left_out();
        let oldest =
            record.sessions.first().map(|oldest| oldest.began).max(record.messages.first().map(|oldest| oldest.began));
        tell_left_out(&mut figures, sessions + messages, oldest);
        Ok(Judged { forked: self.gateway.as_ref().map_or(0, |gateway| gateway.forked()), violations, figures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A quarter of an hour in half a minute: thirty times as short.
    #[test]
    fn intervals_and_tolerances_shrink_together() {
        let channels = Channels::new(Duration::from_secs(30));
        let text = channels.configuration(channels.files()[0].1).unwrap();
        let config = Config::parse(&text, "channels", []).unwrap();
        let inbox = config.kinds["poll-social-inbox"].recurrence.as_ref().unwrap();
        assert_eq!(inbox.schedule.to_string(), "every 2s from nominal");
        assert_eq!(inbox.tolerance, Some(Duration::from_millis(334)));
        assert_eq!(config.queues["channels"].concurrency, 6);
        let roster = channels.roster("id,channel,interval\n@shop,shop-1,\n@club,club-2,30s\n").unwrap();
        assert_eq!(roster, "id,channel,interval\n@shop,shop-1,\n@club,club-2,1s\n");
        let tasks = tasks(&config, "poll-social-inbox", "inbox", &roster).unwrap();
        let intervals: Vec<_> = tasks.iter().map(|task| (task.path.as_str(), task.interval.as_secs())).collect();
        assert_eq!(intervals, [("inbox/@shop", 2), ("inbox/@club", 1)]);
        // One owner has a channel of each sort, and loses all of them.
        let files = channels.files().iter().filter(|(name, _)| name.ends_with(".csv"));
        assert!(files.clone().all(|(_, text)| text.contains(DELETED)), "{DELETED}");
    }
}
