//! The wall clock is set while the worker runs.
//!
//! Nothing that is counted in time notices. What follows the wall clock does: the chains of cron expressions and of `at`
//! that sleep are moved to where the wall clock has them now. Each worker that notices does so, and finds most of it
//! done by the others. Who ends a run has noticed already, or a second later; so there is another look then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use roundelay_config::CatchUpSettings;
use roundelay_ledger::{ChainFilter, Cursor, LedgerError, ListFilter, Listed};
use roundelay_model::schedule::Schedule;
use roundelay_model::wall_clock::{WallClock, set_words};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::catalog::Catalog;
use crate::overslept;
use crate::overslept::PER_QUEUE;
use crate::patient::PatientLedger;
use crate::publishing::Publishing;
use crate::queue::Queues;
use crate::reschedule::{Advance, Change, Replanned, Rescheduler};
use crate::wall::UpToDate;

/// What the task needs of the worker.
#[derive(Clone)]
pub(crate) struct Needs {
    pub(crate) ledger: PatientLedger,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) queues: Arc<Queues>,
    pub(crate) publishing: Arc<Publishing>,
    pub(crate) wall: Arc<UpToDate>,
    pub(crate) catch_up: CatchUpSettings,
}

/// Between two looks whether it was set.
const EVERY: Duration = Duration::from_secs(1);
/// All workers have noticed by then.
const NOTICED: Duration = Duration::from_secs(10);
/// After an error.
const AGAIN: Duration = Duration::from_secs(5);
/// How often chains are looked for that sleep for longer than they may.
const MEND: Duration = Duration::from_secs(30);
/// Chains looked at in one go.
const PER_PAGE: u32 = 1_000;
/// Where few have misfired, they are not spread over the whole window: this much of it for each chain.
const SHARE: Duration = Duration::from_millis(5);

/// Looks whether the wall clock was set, until `shutdown`.
pub async fn run(needs: Needs, shutdown: CancellationToken) {
    let work = async {
        let mut known = needs.ledger.wall_clock();
        let mut mended = Instant::now();
        // Ticks wait for what is noticed from here on: with very many chains a look at all of them takes long.
        needs.wall.up_to.send_replace(known.last_set());
        if !known.stretches().is_empty() {
            // It may have been set while no worker ran.
            follow(&needs).await;
        }
        // When to look again after it was set, and how many chains were moved since.
        let mut again = None::<(Instant, u64)>;
        loop {
            let _ = timeout(EVERY, needs.wall.set.notified()).await;
            if mended.elapsed() >= MEND {
                mended = Instant::now();
                if let Err(error) = mend(&needs).await {
                    tracing::warn!(%error, "failed to look for chains that sleep for too long; trying again");
                }
            }
            let wall_clock = needs.ledger.wall_clock();
            let before = again.map_or(0, |(_, moved)| moved);
            if wall_clock != known {
                tell(&known, &wall_clock);
                known = wall_clock;
                // A clock that is set once more meanwhile is followed at once, too.
                again = Some((Instant::now() + NOTICED, before + follow(&needs).await));
                needs.wall.up_to.send_replace(known.last_set());
            } else if again.is_some_and(|(at, _)| at <= Instant::now()) {
                again = None;
                let moved = before + follow(&needs).await;
                tracing::info!(moved, "sleeping chains of cron expressions and `at` follow the wall clock");
            }
        }
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

/// One line for each time that it was set.
fn tell(known: &WallClock, wall_clock: &WallClock) {
    for (since, by, ahead) in wall_clock.sets().filter(|(since, ..)| known.last_set().is_none_or(|last| *since > last))
    {
        tracing::warn!(
            by_ms = by,
            ahead_ms = ahead,
            at = %wall_clock.wall(since),
            "{}: intervals, backoffs, leases and throttles go on as if it had not been; cron expressions and `at` follow it",
            set_words(by)
        );
    }
}

/// Moves chains that sleep for longer than their schedules can explain: of each queue those that sleep longest.
async fn mend(needs: &Needs) -> Result<(), LedgerError> {
    let mover = Rescheduler::of(&needs.publishing, needs.catch_up.slack);
    for queue in needs.queues.keys() {
        let mut by_kind: BTreeMap<String, Vec<Listed>> = BTreeMap::new();
        for chain in needs.ledger.furthest(queue.clone(), PER_QUEUE).await? {
            by_kind.entry(chain.hint.kind.clone()).or_default().push(chain);
        }
        needs.wall.read().await;
        for (kind, page) in by_kind {
            let schedule = needs.catalog.kind(&kind).and_then(|kind| Some(kind.recurrence.as_ref()?.schedule.clone()));
            let Some(schedule) = schedule else { continue };
            let answers = mover.follow(&page, &schedule, Change::Overslept).await?;
            for (chain, answer) in page.iter().zip(answers) {
                let (now, wall_clock) = (needs.ledger.now(), needs.ledger.wall_clock());
                let since = || overslept::since(chain, &|_| Some(schedule.clone()), (now, &wall_clock));
                let moved = match answer {
                    Replanned::Moved(due) => Some(due),
                    // A tick that was put off keeps its attempt.
                    Replanned::Underway if since().is_some() => {
                        let advanced = mover.advance(&kind, &chain.hint.key).await?;
                        matches!(advanced, Advance::Advanced { .. }).then_some(now)
                    }
                    _ => None,
                };
                if let Some(due) = moved {
                    tracing::warn!(
                        kind,
                        key = chain.hint.key,
                        was = %wall_clock.wall(chain.hint.due),
                        due = %wall_clock.wall(due),
                        "a chain was overdue: its due time lay further ahead than its schedule can explain; it was moved"
                    );
                }
            }
        }
    }
    Ok(())
}

/// Moves the chains of all kinds. What goes wrong is tried again.
async fn follow(needs: &Needs) -> u64 {
    let mut moved = 0;
    for kind in needs.catalog.names().recurring {
        let schedule = needs.catalog.kind(&kind).and_then(|kind| Some(kind.recurrence.as_ref()?.schedule.clone()));
        let Some(schedule) = schedule else { continue };
        moved += loop {
            match follow_kind(needs, &kind, &schedule).await {
                Ok(moved) => break moved,
                Err(error) => {
                    tracing::warn!(kind, %error, "failed to move chains after the wall clock was set; trying again");
                    sleep(AGAIN).await;
                }
            }
        };
    }
    moved
}

/// Answers how many chains this worker has moved.
async fn follow_kind(needs: &Needs, kind: &str, schedule: &Schedule) -> Result<u64, LedgerError> {
    let mover = Rescheduler::of(&needs.publishing, needs.catch_up.slack);
    let (mut moved, mut after) = (0, None::<Cursor>);
    loop {
        let filter =
            ListFilter { which: ChainFilter { kind: Some(kind.into()), ..ChainFilter::default() }, condition: None };
        let page = needs.ledger.list(filter, after, PER_PAGE).await?;
        // Else chains that others have moved since would be moved back, by the clock as it was.
        needs.wall.read().await;
        let sleeping = u32::try_from(page.len()).unwrap_or(PER_PAGE);
        let spread = needs.catch_up.spread.min(SHARE * sleeping);
        let answers = mover.follow(&page, schedule, Change::Clock(spread)).await?;
        moved += answers.iter().filter(|answer| matches!(answer, Replanned::Moved(_))).count() as u64;
        after = page.last().map(|last| (last.hint.kind.clone(), last.hint.key.clone()));
        if page.len() < PER_PAGE as usize {
            return Ok(moved);
        }
    }
}
