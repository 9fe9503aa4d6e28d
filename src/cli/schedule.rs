//! `roundelay schedule`

use std::time::Duration;

use anyhow::{Error, anyhow, bail};
use clap::Args;
use roundelay::calendar::At;
use roundelay::clock::parse_duration;
use roundelay::config::OwnSchedule;
use roundelay::engine::Connections;
use roundelay::engine::moves::{Mover, Replanned};
use roundelay::ledger::{ChainState, Filter, Which};
use roundelay::schedule::{Rhythm, Schedule};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::progress::waiting;
use super::steer::ledger;
use super::{ConfigFile, screen};

/// Between two looks at a chain that runs.
const LOOK: Duration = Duration::from_millis(200);

/// Gives a chain a schedule of its own, or its kind's again, at once.
///
///   roundelay schedule sync app-17 5m
///   roundelay schedule sync app-17 '0 3 * * *'
///   roundelay schedule sync app-17 '{"cron":"0 3 * * *","zone":"Europe/Berlin"}'
///   roundelay schedule sync app-17 '{"every":"1h","from":"nominal","jitter":"2m"}'
///   roundelay schedule sync app-17 --default
///
/// The next tick moves to where the new schedule has it, counted from the last run: no old long delay is
/// waited out. What is overdue by it comes at once. A run that has begun ends first; it is waited for.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct ScheduleCommand {
    #[command(flatten)]
    config: ConfigFile,
    /// The kind.
    kind: String,
    /// The entity.
    key: String,
    /// An interval, a cron expression, or a JSON object with the words of the kind's settings.
    #[arg(value_name = "EVERY|CRON|JSON", required_unless_present = "default")]
    schedule: Option<String>,
    /// The schedule of the kind again.
    #[arg(long, conflicts_with = "schedule")]
    default: bool,
    /// How long to wait for the end of a run.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "30s")]
    wait: Duration,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl ScheduleCommand {
    pub async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let (kind, key) = (&self.kind, &self.key);
        let settings = config.kind(kind).map_err(Error::msg)?;
        let Some(recurrence) = &settings.recurrence else {
            bail!("kinds.{kind} has none of `every`, `cron` and `at`, so it has no chains");
        };
        let of_kind = &recurrence.schedule;
        let own = self.schedule.as_deref().map(OwnSchedule::from_words).transpose().map_err(|error| anyhow!(error))?;
        let schedule = match &own {
            Some(own) => recurrence.with_own(own).map_err(|error| anyhow!(error))?,
            None => of_kind.clone(),
        };
        let now = ledger(&config).await?.now();
        if matches!(schedule.rhythm, Rhythm::At(at) if at <= now) {
            bail!("`{schedule}` has gone by");
        }
        let connections = Connections::open(&config).await?;
        let ledger = connections.ledger.clone();
        if !ledger.set_schedule(kind.clone(), key.clone(), own.as_ref().map(OwnSchedule::text)).await? {
            bail!("there is no chain {kind} {key} that has not ended; `roundelay enroll` begins chains");
        }
        let waits = waiting(&format!("waiting until {kind} {key} can be moved"));
        let moved = self.follow(&connections, &Mover::new(&config, &connections), of_kind).await;
        connections.broker.close().await;
        drop(waits);
        self.report(&schedule, &moved?)
    }

    /// Moves the next tick, once it can be. Answers what came of that, in words, and when it is due.
    async fn follow(&self, connections: &Connections, mover: &Mover, of_kind: &Schedule) -> anyhow::Result<Followed> {
        let which = Which { kind: Some(self.kind.clone()), key: Some(self.key.clone()), ..Which::default() };
        let give_up = Instant::now() + self.wait;
        loop {
            let filter = Filter { which: which.clone(), condition: None };
            let Some(chain) = connections.ledger.list(filter, None, 1).await?.pop() else {
                bail!("there is no chain {} {} any more", self.kind, self.key);
            };
            let calendar = connections.ledger.calendar();
            let due = At::of(chain.hint.due, &calendar);
            let replanned = mover.replan(std::slice::from_ref(&chain), of_kind, false).await?;
            let words = match replanned.first() {
                Some(Replanned::Runs | Replanned::Changed) if Instant::now() < give_up => {
                    sleep(LOOK).await;
                    continue;
                }
                Some(Replanned::Runs | Replanned::Changed) => {
                    return Ok(Followed { due: None, words: "it still runs".into() });
                }
                Some(Replanned::Moved(due)) => {
                    let due = At::of(*due, &calendar);
                    let paused = chain.state == ChainState::Paused;
                    let words = if paused { " once it is resumed (it is paused)" } else { "" };
                    return Ok(Followed { due: Some(due), words: format!("its next tick comes at {due}{words}") });
                }
                Some(Replanned::Underway) => {
                    format!("its tick has begun and is tried again at {due}, and the next one follows the schedule")
                }
                Some(Replanned::Over) => "it has no occurrence any more".into(),
                Some(Replanned::Stays) | None => format!("its next tick comes at {due}, as before"),
            };
            return Ok(Followed { due: Some(due), words });
        }
    }

    fn report(&self, schedule: &Schedule, followed: &Followed) -> anyhow::Result<()> {
        let (Self { kind, key, .. }, Followed { due, words }) = (self, followed);
        if due.is_none() {
            bail!(
                "{kind} {key} has its schedule ({schedule}), but {words}, and would sleep by the old one once more: \
                 say this again when it has ended, or with a longer --wait"
            );
        }
        if self.json {
            screen::json(&json!({ "schedule": schedule.to_string(), "own": !self.default, "due": due }))?;
        } else {
            let whose = if self.default { "its kind's" } else { "its own" };
            out!("{kind} {key}: {schedule} ({whose}); {words}");
        }
        Ok(())
    }
}

/// What came of moving the next tick; without a due time it could not be.
struct Followed {
    due: Option<At>,
    words: String,
}
