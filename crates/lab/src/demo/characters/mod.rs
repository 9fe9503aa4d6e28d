//! An online game's characters, each updated five minutes after its last update has ended. In the demo, the minutes are
//! seconds.

mod esi;
pub mod judge;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use parking_lot::Mutex;
use roundelay_config::Config;
use roundelay_engine::enroll::{Enroller, RunOnce};
use roundelay_engine::{Connections, StartError};
use roundelay_ledger::Listed;
use roundelay_model::clock::short_duration;
use roundelay_model::job::RunNow;
use tokio::time::{Instant, sleep};

use super::newest::{ALONE, tell_left_out};
use super::scale::{scaled, shorter};
use super::stage::{Judged, Language, PREFIX, Shown, Stage, System};
use esi::{Esi, FORGIVEN, WINDOW};
use judge::{Record, Refresh, judge, rotations};

/// The factor by which times are shorter: five minutes are three seconds.
const BY: u32 = 100;
/// The time from the end of an update to the next start, by the game's rules and not by the configuration that is
/// judged.
const DELAY: Duration = Duration::from_secs(5 * 60);
/// The shortest timeout of a run: a call takes real time, however short the other times are.
const TIMEOUT: Duration = Duration::from_secs(10);
const KIND: &str = "update-character";
/// When the upstream is slow, and fails, as shares of the demo.
const SLOW: (f64, f64) = (0.3, 0.55);
/// When a user refreshes a character that is being updated, as shares of the demo: most in the slow spell, in which updates
/// take longest, so that also a busy machine begins a second update beside the first one if nothing forbids that.
const WHILE_IT_RUNS: [f64; 4] = [0.37, 0.42, 0.48, 0.9];
/// When a user refreshes a character at rest, as shares of the demo: not when all are late, and in half a minute so
/// that its next update is due before the slow spell, or before the end.
const AT_REST: [f64; 2] = [0.1, 0.8];
/// A demo of at least this length has all these refreshes.
const ENOUGH: Duration = Duration::from_secs(10);
/// A character is at rest if its next update is at least this far away.
const REST: Duration = Duration::from_millis(2_300);
/// How long the demo looks for a character in the state that it needs.
const FOUND: Duration = Duration::from_secs(5);
/// How long after the end the answers to earlier requests may come.
const SETTLE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

/// The characters and the record of the demo.
#[derive(Default)]
pub struct Characters {
    alone: bool,
    esi: Option<Arc<Esi>>,
    asks: Mutex<Vec<Refresh>>,
}

impl Characters {
    /// A new game.
    pub fn new() -> Self {
        Self::default()
    }

    /// A user refreshes a character by hand. A character that is being updated is not updated a second time.
    async fn refresh(&self, stage: &Stage, character: &str) -> Result<(), StartError> {
        let connections = &stage.connections;
        let views = connections.ledger.chains(KIND.into(), character.into()).await?;
        let at = connections.ledger.now();
        let runs = views.iter().any(|view| view.once || view.holder.runs() || view.batch.0 > 0 || view.nominal <= at);
        let next = views.iter().find(|view| !view.once && !runs).map(|view| view.nominal);
        let mut enroller = Enroller::new(&stage.config, connections.clone(), KIND, None, true)?;
        let accepted = enroller.run_once(character, None, &RunNow::default(), None).await? == RunOnce::Accepted;
        let next = next.filter(|_| accepted);
        let ask = Refresh { character: character.into(), at, running: runs, accepted, next };
        self.asks.lock().push(ask);
        Ok(())
    }

    /// Refreshes a character of which the upstream serves a request.
    async fn refresh_one_that_runs(&self, stage: &Stage) -> Result<(), StartError> {
        let by = Instant::now() + FOUND;
        while Instant::now() < by && !stage.is_ended() {
            if let Some(character) = self.esi.as_ref().and_then(|esi| esi.busy()) {
                return self.refresh(stage, &character).await;
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Refreshes the character with the longest rest before its next update.
    async fn refresh_one_at_rest(&self, stage: &Stage) -> Result<(), StartError> {
        let by = Instant::now() + FOUND;
        while Instant::now() < by && !stage.is_ended() {
            let now = stage.connections.ledger.now();
            let chains = stage.chains().await?;
            let rests = |chain: &&Listed| chain.hint.kind == KIND && chain.nominal > now + REST;
            if let Some(chain) = chains.iter().filter(rests).max_by_key(|chain| chain.nominal) {
                return self.refresh(stage, &chain.hint.key).await;
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    async fn ask(&self, stage: &Stage) -> Result<(), StartError> {
        let mut shares: Vec<f64> = WHILE_IT_RUNS.into_iter().chain(AT_REST).collect();
        shares.sort_by(f64::total_cmp);
        shares.dedup();
        for share in shares {
            stage.at(share).await;
            if WHILE_IT_RUNS.contains(&share) {
                self.refresh_one_that_runs(stage).await?;
            }
            if AT_REST.contains(&share) {
                self.refresh_one_at_rest(stage).await?;
            }
        }
        Ok(())
    }

    async fn slow_spell(&self, stage: &Stage) {
        for (share, slow) in [(SLOW.0, true), (SLOW.1, false)] {
            stage.at(share).await;
            self.esi.iter().for_each(|esi| esi.slow(slow));
        }
    }

    /// The record, and how many earlier requests are not kept any more.
    async fn record(&self, stage: &Stage) -> Result<(Record, u64), StartError> {
        let (calls, left_out) = self.esi.as_ref().map(|esi| esi.calls()).unwrap_or_default();
        let shown = stage.shown();
        let rotations: BTreeMap<String, i64> = match shown {
            // The chains are in the ledger of another worker.
            Shown::Alone => rotations(&calls),
            Shown::Whole | Shown::Ended => {
                let chains = stage.chains().await?.into_iter().filter(|chain| chain.hint.kind == KIND);
                chains.map(|chain| (chain.hint.key, chain.hint.epoch.get())).collect()
            }
        };
        let asks = self.asks.lock().clone();
        let asked_for = shown == Shown::Whole && stage.to.since(stage.from) >= ENOUGH;
        let slow = self.esi.as_ref().and_then(|esi| esi.slow_spell());
        // Requests that wait for errors to be forgiven are late for that much longer.
        let slow = slow.map(|(from, to)| (from, to.unwrap_or(stage.to) + WINDOW));
        let delay = if self.alone { DELAY } else { shorter(DELAY, BY, Duration::ZERO) };
        Ok((Record { delay, calls, rotations, asks, asked_for, slow, shown, to: stage.to }, left_out))
    }
}

#[async_trait]
impl System for Characters {
    fn name(&self) -> &'static str {
        "characters"
    }

    fn files(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("roundelay.toml", include_str!("../../../examples/characters/roundelay.toml")),
            ("characters.csv", include_str!("../../../examples/characters/characters.csv")),
            ("handler.php", include_str!("../../../examples/characters/handler.php")),
        ]
    }

    fn language(&self) -> Language {
        Language::Php
    }

    fn told(&self) -> String {
        format!(
            "The five minutes between two updates are {}, and waits between attempts {BY} times as short; 100 requests per \
             second are as ever, and no run has less than {}. For a quarter of the time the upstream is slow and half \
             of the requests fail; it forgives {FORGIVEN} errors in {}.",
            short_duration(DELAY / BY),
            short_duration(TIMEOUT),
            short_duration(WINDOW),
        )
    }

    /// When few errors are left, the requests wait for new ones.
    fn patience(&self) -> Duration {
        WINDOW + TIMEOUT
    }

    fn alone(&mut self) {
        self.alone = true;
    }

    fn configuration(&self, text: &str) -> Result<String, String> {
        if self.alone {
            return Ok(text.to_owned());
        }
        scaled(text, |path, length| match path {
            [.., "timeout"] => shorter(length, BY, TIMEOUT),
            ["throttles", _, "per"] => length,
            // A hold is at least that long.
            ["throttles", ..] => shorter(length, BY, Duration::from_secs(1)),
            _ => shorter(length, BY, Duration::ZERO),
        })
    }

    /// The demo's queues have names of their own.
    fn roster(&self, text: &str) -> Result<String, String> {
        Ok(text.replace(",fast\n", &format!(",{PREFIX}fast\n")))
    }

    fn prepare(&mut self, _: &mut Config, connections: &Connections) -> Result<(), String> {
        self.esi = Some(Esi::new(connections, self.alone.then_some(ALONE)));
        Ok(())
    }

    fn upstream(&self) -> Router {
        self.esi.clone().map(Esi::router).unwrap_or_default()
    }

    async fn plays(&self, stage: &Stage) -> Result<(), StartError> {
        let (asked, ()) = tokio::join!(self.ask(stage), self.slow_spell(stage));
        asked?;
        stage.at(1.0).await;
        // On a busy machine the last refreshes may be late; a bounded wait is enough for them.
        let by = Instant::now() + SETTLE;
        while Instant::now() < by && !stage.is_ended() && !judge(&self.record(stage).await?.0).0.is_empty() {
            sleep(Duration::from_millis(500)).await;
        }
        Ok(())
    }

    async fn judged(&self, stage: &Stage) -> Result<Judged, StartError> {
        let (record, left_out) = self.record(stage).await?;
        let (violations, figures) = judge(&record);
        let mut figures = serde_json::to_value(&figures).unwrap_or_default();
        tell_left_out(&mut figures, left_out, record.calls.first().map(|call| call.began));
        figures["fewest_errors_left"] = self.esi.as_ref().map_or(FORGIVEN, |esi| esi.least_left()).into();
        Ok(Judged { forked: self.esi.as_ref().map_or(0, |esi| esi.forked()), violations, figures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roundelay_config::Format;
    use roundelay_engine::roster::{Shape, rows};

    #[test]
    fn the_delay_shrinks_and_limits_stay() {
        let characters = Characters::new();
        let text = characters.configuration(characters.files()[0].1).unwrap();
        let config = Config::parse(&text, "characters", []).unwrap();
        let update = &config.kinds[KIND];
        assert_eq!(update.recurrence.as_ref().unwrap().schedule.to_string(), "every 3s");
        assert_eq!((update.timeout, config.kinds["fetch-endpoint"].timeout), (TIMEOUT, TIMEOUT));
        let window = config.throttles["esi"].limits.window;
        assert_eq!((window.allow, window.per), (100, Duration::from_secs(1)));
    }

    #[test]
    fn an_upstream_alone_has_the_system_s_own_times() {
        let mut characters = Characters::new();
        characters.alone();
        let text = characters.files()[0].1;
        assert_eq!(characters.configuration(text).unwrap(), text);
    }

    /// Each row has the queue that its column names, or the kind's.
    #[test]
    fn the_roster_s_queues_are_the_demo_s() {
        let characters = Characters::new();
        let config = characters.files()[0].1.replace("[queues.fast]", "[queues.demo-fast]");
        let config = Config::parse(&config, "characters", []).unwrap();
        let roster = characters.roster(characters.files()[1].1).unwrap();
        let shape = Shape::new(&config, &config.kinds[KIND]).unwrap();
        let queues: Vec<String> = rows(Format::Csv, roster.as_bytes())
            .unwrap()
            .flatten()
            .map(|(_, row)| shape.entity(row).unwrap().queue)
            .collect();
        assert_eq!(queues.iter().filter(|queue| *queue == "demo-fast").count(), 5);
        assert_eq!(queues.iter().filter(|queue| *queue == "default").count(), 35);
    }
}
