//! The verb on a chain's own schedule: set or remove it, with effect at once.

use std::fmt;
use std::time::Duration;

use roundelay_config::{Config, OwnSchedule};
use roundelay_engine::Connections;
use roundelay_engine::calendars::with_days;
use roundelay_engine::reschedule::{Replanned, Rescheduler};
use roundelay_ledger::{ChainState, ListFilter};
use roundelay_model::schedule::{Rhythm, Schedule};
use roundelay_model::wall_clock::At;
use tokio::time::{Instant, sleep};

use super::chain::one;
use super::{OperateError, Result};

/// The time between two looks at a chain that runs.
const LOOK: Duration = Duration::from_millis(200);

/// A chain whose next tick is due by a new schedule.
#[derive(Clone, Debug)]
pub struct Scheduled {
    name: String,
    /// The new schedule.
    pub schedule: Schedule,
    /// Whether the schedule is the chain's own, and not its kind's.
    pub own: bool,
    /// When the next tick is due, or the next attempt at a tick that has begun.
    pub due: At,
    then: String,
}

impl fmt::Display for Scheduled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, schedule, then, .. } = self;
        let whose = if self.own { "its own" } else { "its kind's" };
        write!(f, "{name}: {schedule} ({whose}); {then}")
    }
}

/// Gives a chain a schedule of its own, in the words of [`OwnSchedule::from_words`], or its kind's schedule again, and
/// moves its next tick to where that schedule has it. A run that has begun ends first; the call waits for it, for a
/// bounded time.
///
/// # Errors
/// When there is no such chain, the schedule is invalid, the run does not end in time, or the ledger does not answer.
pub async fn set(
    config: &Config,
    connections: &Connections,
    (kind, key): (&str, &str),
    words: Option<&str>,
    wait: Duration,
) -> Result<Scheduled> {
    let ledger = &connections.ledger;
    let config = &*with_days(config, &**ledger).await?;
    let settings = config.kind(kind).map_err(OperateError::Unknown)?;
    let Some(recurrence) = &settings.recurrence else {
        let why = format!("kinds.{kind} has none of `every`, `cron` and `at`, so it has no chains");
        return Err(OperateError::Bad(why));
    };
    let own = words.map(OwnSchedule::from_words).transpose().map_err(OperateError::Bad)?;
    let schedule = match &own {
        Some(own) => recurrence.with_own(own).map_err(OperateError::Bad)?,
        None => recurrence.schedule.clone(),
    };
    if matches!(schedule.rhythm, Rhythm::At(at) if at <= ledger.now()) {
        return Err(OperateError::Bad(format!("`{schedule}` has gone by")));
    }
    if !ledger.set_schedule(kind.into(), key.into(), own.as_ref().map(OwnSchedule::text)).await? {
        return Err(OperateError::Unknown(format!(
            "there is no chain {kind} {key} that has not ended; `roundelay enroll` begins chains"
        )));
    }
    let (due, then) = follow(config, connections, (kind, key), &recurrence.schedule, wait).await?.ok_or_else(|| {
        OperateError::Refused(format!(
            "{kind} {key} has its schedule ({schedule}), but it still runs, and would sleep by the old one once more: \
             say this again when it has ended, or with a longer --wait"
        ))
    })?;
    Ok(Scheduled { name: format!("{kind} {key}"), schedule, own: own.is_some(), due, then })
}

/// Moves the next tick, as soon as that is possible. Answers when it is due, and the result in words; nothing when the
/// chain still runs after `wait`.
async fn follow(
    config: &Config,
    connections: &Connections,
    (kind, key): (&str, &str),
    of_kind: &Schedule,
    wait: Duration,
) -> Result<Option<(At, String)>> {
    let mover = Rescheduler::new(config, connections);
    let give_up = Instant::now() + wait;
    loop {
        let filter = ListFilter { which: one(kind, key), condition: None };
        let Some(chain) = connections.ledger.list(filter, None, 1).await?.pop() else {
            return Err(OperateError::Unknown(format!("there is no chain {kind} {key} any more")));
        };
        let wall_clock = connections.ledger.wall_clock();
        let due = At::of(chain.hint.due, &wall_clock);
        let replanned = mover.replan(std::slice::from_ref(&chain), of_kind, false).await?;
        let then = match replanned.first() {
            Some(Replanned::Runs | Replanned::Changed) if Instant::now() < give_up => {
                sleep(LOOK).await;
                continue;
            }
            Some(Replanned::Runs | Replanned::Changed) => return Ok(None),
            Some(Replanned::Moved(due)) => {
                let due = At::of(*due, &wall_clock);
                let paused = chain.state == ChainState::Paused;
                let later = if paused { " once it is resumed (it is paused)" } else { "" };
                return Ok(Some((due, format!("its next tick comes at {due}{later}"))));
            }
            Some(Replanned::Underway) => {
                format!("its tick has begun and is tried again at {due}, and the next one follows the schedule")
            }
            Some(Replanned::Over) => "it has no occurrence any more".into(),
            Some(Replanned::Stays) | None => format!("its next tick comes at {due}, as before"),
        };
        return Ok(Some((due, then)));
    }
}
