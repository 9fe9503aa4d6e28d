//! A game's missions, each with a tick every minute or so, which is six seconds here, and a worker that is killed.

mod game;
pub mod judge;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use parking_lot::Mutex;
use roundelay_config::{Config, Format};
use roundelay_engine::roster::rows;
use roundelay_engine::{Connections, StartError};
use roundelay_model::clock::{Time, short_duration};
use tokio::time::{Instant, sleep};
use toml::Table;

use super::newest::{ALONE, tell_left_out};
use super::scale::{scaled, shorter};
use super::stage::{Judged, Language, Shown, Stage, System};
use game::Game;
use judge::{Record, forked, judge};

/// The factor by which times are shorter: a minute is six seconds.
const BY: u32 = 10;
const MINUTE: Duration = Duration::from_secs(60);
/// The shortest timeout of a run: a call takes real time, however short the other times are.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The lease on a tick is ten times as short, too. Its holder renews it, also on a busy machine.
const LEASE: &str = "3s";
/// When a worker is killed, as a share of the demo.
const KILLED: f64 = 0.4;
/// Of this many missions, one is over before the others.
const SHORT: usize = 30;
/// How long after the end the last ticks may still come.
const SETTLE: Duration = Duration::from_secs(10);

/// The game and the record of the demo.
#[derive(Default)]
pub struct Missions {
    alone: bool,
    missions: Vec<String>,
    game: Option<Arc<Game>>,
    killed: Mutex<Option<Time>>,
}

impl Missions {
    /// A new game.
    pub fn new() -> Self {
        Self::default()
    }

    /// The record, and how many earlier calls are not kept any more.
    fn record(&self, stage: &Stage) -> (Record, u64) {
        let (calls, left_out) = self.game.as_ref().map(|game| game.calls()).unwrap_or_default();
        let shown = stage.shown();
        // The upstream's worker may have missions that had ended before, or a roster of its own.
        let missions: BTreeSet<String> = match shown {
            Shown::Alone => calls.iter().filter_map(|call| call.mission.clone()).collect(),
            Shown::Whole | Shown::Ended => self.missions.iter().cloned().collect(),
        };
        let killed = *self.killed.lock();
        let minute = if self.alone { MINUTE } else { shorter(MINUTE, BY, Duration::ZERO) };
        let oldest = calls.first().filter(|_| left_out > 0);
        let from = oldest.map_or(stage.from, |call| call.began);
        (Record { calls, missions, killed, shown, minute, from, to: stage.to }, left_out)
    }
}

#[async_trait]
impl System for Missions {
    fn name(&self) -> &'static str {
        "missions"
    }

    fn files(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("roundelay.toml", include_str!("../../../examples/missions/roundelay.toml")),
            ("missions.csv", include_str!("../../../examples/missions/missions.csv")),
            ("channels.csv", include_str!("../../../examples/missions/channels.csv")),
            ("handler.js", include_str!("../../../examples/missions/handler.js")),
        ]
    }

    fn language(&self) -> Language {
        Language::Node
    }

    fn told(&self) -> String {
        format!(
            "A minute is {}: intervals, jitter and the lock on a tick are {BY} times as short; one message per second and \
             channel is as ever, and no run has less than {}. Two workers play, and one of them is killed.",
            short_duration(shorter(MINUTE, BY, Duration::ZERO)),
            short_duration(TIMEOUT),
        )
    }

    fn alone(&mut self) {
        self.alone = true;
    }

    fn configuration(&self, text: &str) -> Result<String, String> {
        if self.alone {
            return Ok(text.to_owned());
        }
        let text = scaled(text, |path, length| match path {
            [.., "timeout"] => shorter(length, BY, TIMEOUT),
            ["throttles", ..] => length,
            _ => shorter(length, BY, Duration::ZERO),
        })?;
        let mut table: Table = text.parse().map_err(|error| format!("not TOML: {error}"))?;
        let worker = table.entry("worker").or_insert_with(|| Table::new().into());
        if let Some(worker) = worker.as_table_mut() {
            worker.insert("lease".into(), LEASE.into());
        }
        Ok(table.to_string())
    }

    fn prepare(&mut self, config: &mut Config, connections: &Connections) -> Result<(), String> {
        let roster = self.files().iter().find(|(name, _)| *name == "missions.csv").map_or("", |(_, text)| text);
        let mission =
            |row: roundelay_engine::roster::Row| row.get("mission").and_then(|cell| cell.as_str()).map(str::to_owned);
        self.missions = rows(Format::Csv, roster.as_bytes())?.flatten().filter_map(|(_, row)| mission(row)).collect();
        let short = self.missions.iter().step_by(SHORT).cloned().collect();
        self.game = Some(Game::new(config, connections, short, self.alone.then_some(ALONE)));
        Ok(())
    }

    fn has_second(&self) -> bool {
        true
    }

    fn upstream(&self) -> Router {
        self.game.clone().map(Game::router).unwrap_or_default()
    }

    async fn plays(&self, stage: &Stage) -> Result<(), StartError> {
        stage.at(KILLED).await;
        let killed = stage.kill().await?;
        *self.killed.lock() = killed;
        stage.at(1.0).await;
        // On a busy machine the last ticks may be late; a bounded wait is enough for them.
        let by = Instant::now() + SETTLE;
        let settled = || {
            let (violations, figures) = judge(&self.record(stage).0);
            violations.is_empty() && figures.missions == self.missions.len()
        };
        while Instant::now() < by && !stage.is_ended() && !settled() {
            sleep(Duration::from_millis(500)).await;
        }
        Ok(())
    }

    async fn judged(&self, stage: &Stage) -> Result<Judged, StartError> {
        let (record, left_out) = self.record(stage);
        let (violations, figures) = judge(&record);
        let mut figures = serde_json::to_value(&figures).unwrap_or_default();
        tell_left_out(&mut figures, left_out, record.calls.first().map(|call| call.began));
        Ok(Judged { forked: forked(&record), violations, figures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_is_six_seconds_and_a_channel_s_second_is_one() {
        let missions = Missions::new();
        let text = missions.configuration(missions.files()[0].1).unwrap();
        let config = Config::parse(&text, "missions", []).unwrap();
        let schedule = |kind: &str| config.kinds[kind].recurrence.as_ref().unwrap().schedule.to_string();
        assert_eq!(schedule("mission"), "every 6s ± 1500ms");
        assert_eq!(schedule("flush-channel"), "every 12s ± 3s");
        assert_eq!(schedule("end-missions"), "every 3s");
        assert_eq!(config.kinds["mission"].timeout, TIMEOUT);
        let window = config.throttles["channel"].limits.window;
        assert_eq!((window.allow, window.per), (1, Duration::from_millis(1_100)));
        assert_eq!(config.worker.lease, Duration::from_secs(3));
    }

    #[test]
    fn an_upstream_alone_has_the_system_s_own_times() {
        let mut missions = Missions::new();
        missions.alone();
        let text = missions.files()[0].1;
        assert_eq!(missions.configuration(text).unwrap(), text);
    }
}
