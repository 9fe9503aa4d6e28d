//! A trading bot's night, from 23:58 to 04:08, in half a minute: 15 commands by the wall clock.

mod exchanges;
pub mod judge;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use parking_lot::Mutex;
use roundelay_config::{Config, at_time};
use roundelay_engine::enroll::Enroller;
use roundelay_engine::{Connections, StartError};
use roundelay_model::ids::Fence;
use roundelay_model::job::RunNow;
use roundelay_model::schedule::Pace;
use tokio::time::{Instant, sleep};

use super::newest::{ALONE, tell_left_out};
use super::scale::{scaled, shorter};
use super::stage::{Judged, Language, Stage, System};
use exchanges::Exchanges;
use judge::{Entry, Manual, NIGHT, Night, Record, judge, judge_calls};

/// 23:58 in Berlin, on an ordinary night.
const SHOWN: &str = "2026-01-05T22:58:00Z";
/// The shortest timeout of a run: a call takes real time, however fast the wall clock runs.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The wall clock starts when chains have begun. This time is enough for them, if the machine is not too busy.
const LEAD: Duration = Duration::from_secs(3);
/// How long after the night's end the last runs may still come.
const SETTLE: Duration = Duration::from_secs(10);
/// When an operator runs `create-positions`, in minutes of the night: 00:32:10, two minutes and something after its
/// last time and less than one before its next, and half an hour later again, and so on.
const BY_HAND: [f64; 6] = [34.17, 64.17, 94.17, 124.17, 154.17, 184.17];
const POSITIONS: &str = "create-positions";
const ATTEMPTS: u32 = 1_000;

/// The exchanges and the record of the demo.
pub struct Trading {
    speed: NonZeroU32,
    /// How many calls the record keeps; with `None`, all.
    most: Option<usize>,
    exchanges: Option<Arc<Exchanges>>,
    pace: Option<Pace>,
    manual: Mutex<Vec<Manual>>,
}

impl Trading {
    /// A night in `length`.
    pub fn new(length: Duration) -> Self {
        let millis = length.as_millis().max(1);
        let speed = u32::try_from((u128::from(NIGHT) * 60_000).div_ceil(millis)).unwrap_or(u32::MAX);
        let speed = NonZeroU32::new(speed).unwrap_or(NonZeroU32::MIN);
        Self { speed, most: None, exchanges: None, pace: None, manual: Mutex::default() }
    }

    fn night(&self, stage: &Stage) -> Result<Night, StartError> {
        let pace = self.pace.ok_or_else(|| StartError::Setup("the night has not begun".into()))?;
        let end = pace.time_of(pace.shown + Duration::from_secs(NIGHT * 60));
        Ok(Night { pace, from: stage.from.max(pace.origin), to: if stage.is_ended() { stage.from } else { end } })
    }

    /// An operator runs a command, and retries at once if the command runs or has just run.
    async fn by_hand(&self, stage: &Stage) -> Result<(), StartError> {
        let mut enroller = Enroller::new(&stage.config, stage.connections.clone(), POSITIONS, None, true)?;
        for _ in 0..2 {
            let answer = enroller.run_once("-", None, &RunNow::default(), None).await?;
            let refused = answer.why_not(POSITIONS, "-");
            let manual = Manual { command: POSITIONS.into(), key: "-".into(), refused };
            self.manual.lock().push(manual);
        }
        Ok(())
    }

    async fn record(&self, stage: &Stage) -> Result<Record, StartError> {
        let (mut audit, mut after) = (Vec::new(), Fence::NONE);
        loop {
            let page = stage.connections.ledger.attempts(after, ATTEMPTS).await?;
            let Some(last) = page.last() else { break };
            after = last.fence;
            audit.extend(page.into_iter().map(|attempt| Entry {
                run: (attempt.epoch.get(), attempt.tick.get()),
                due: attempt.due,
                finished: attempt.finished,
                verdict: attempt.verdict,
                reason: attempt.reason,
                left_out: attempt.overlapped + attempt.misfired + attempt.excluded,
            }));
        }
        let rotations =
            stage.chains().await?.into_iter().map(|chain| (chain.hint.kind, chain.hint.key, chain.hint.epoch.get()));
        let manual = self.manual.lock().clone();
        let calls = self.exchanges.as_ref().map(|exchanges| exchanges.calls()).unwrap_or_default();
        Ok(Record { calls, audit, rotations: rotations.collect(), manual })
    }
}

#[async_trait]
impl System for Trading {
    fn name(&self) -> &'static str {
        "trading"
    }

    fn files(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("roundelay.toml", include_str!("../../../examples/trading/roundelay.toml")),
            ("handler.php", include_str!("../../../examples/trading/handler.php")),
        ]
    }

    fn language(&self) -> Language {
        Language::Php
    }

    fn told(&self) -> String {
        format!(
            "The wall clock runs from 23:58 to 04:08, {} times as fast as ever, and cooldowns with it. No run has less than \
             2s, since a call takes as long as ever.",
            self.speed
        )
    }

    fn alone(&mut self) {
        self.most = Some(ALONE);
    }

    fn configuration(&self, text: &str) -> Result<String, String> {
        scaled(text, |path, length| match path.last() {
            Some(&"cooldown") => shorter(length, self.speed.get(), Duration::ZERO),
            Some(&"timeout") => shorter(length, self.speed.get(), TIMEOUT),
            _ => length,
        })
    }

    fn prepare(&mut self, config: &mut Config, connections: &Connections) -> Result<(), String> {
        let pace = Pace { origin: connections.clock.now() + LEAD, shown: at_time(SHOWN)?, speed: self.speed };
        config.pace_wall_clock(pace);
        self.pace = Some(pace);
        self.exchanges = Some(Exchanges::new(connections, self.most));
        Ok(())
    }

    fn upstream(&self) -> Router {
        self.exchanges.clone().map(Exchanges::router).unwrap_or_default()
    }

    async fn plays(&self, stage: &Stage) -> Result<(), StartError> {
        let night = self.night(stage)?;
        for minute in BY_HAND {
            stage.until(night.pace.time_of(night.pace.shown + Duration::from_secs_f64(minute * 60.0))).await;
            if stage.connections.clock.now() < night.to {
                self.by_hand(stage).await?;
            }
        }
        stage.until(night.to).await;
        // On a busy machine the last runs of the night may be late; a bounded wait is enough for them.
        let by = Instant::now() + SETTLE;
        while Instant::now() < by && !judge(&night, &self.record(stage).await?).0.is_empty() {
            sleep(Duration::from_millis(500)).await;
        }
        Ok(())
    }

    async fn judged(&self, stage: &Stage) -> Result<Judged, StartError> {
        let night = self.night(stage)?;
        let record = self.record(stage).await?;
        let (violations, figures) = match stage.is_alone() {
            true => judge_calls(&Night { to: stage.to, ..night }, &record),
            false => judge(&night, &record),
        };
        let mut figures = serde_json::to_value(&figures).unwrap_or_default();
        let (left_out, oldest) = self.exchanges.as_ref().map(|exchanges| exchanges.left_out()).unwrap_or_default();
        tell_left_out(&mut figures, left_out, oldest);
        let forked = self.exchanges.as_ref().map_or(0, |exchanges| exchanges.forked());
        Ok(Judged { forked, violations, figures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A night in half a minute: 500 times as fast, and no run has less than two seconds.
    #[test]
    fn the_table_keeps_its_hours_and_its_cooldowns_shrink() {
        let trading = Trading::new(Duration::from_secs(30));
        assert_eq!(trading.speed.get(), 500);
        let text = trading.configuration(trading.files()[0].1).unwrap();
        let config = Config::parse(&text, "trading", []).unwrap();
        let of = |kind: &str| {
            let settings = &config.kinds[kind];
            let recurrence = settings.recurrence.as_ref().unwrap();
            (recurrence.schedule.to_string(), recurrence.cooldown.as_millis(), settings.timeout.as_millis())
        };
        assert_eq!(of("create-positions"), ("cron */3 * * * * Europe/Berlin".into(), 120, 2_000));
        assert_eq!(of("purge-candles"), ("cron 0 3 * * * Europe/Berlin".into(), 7_200, 2_000));
        assert_eq!(of("sync-orders"), ("cron */5 * * * * Europe/Berlin".into(), 0, 2_000));
        let commands = judge::TABLE.iter().map(|command| command.name).chain(["refresh-symbol"]);
        assert_eq!(commands.count(), config.kinds.len());
        assert!(judge::TABLE.iter().all(|command| config.kinds[command.name].roster.is_some()));
        assert_eq!(Trading::new(Duration::from_secs(7)).speed.get(), 2_143);
    }
}
