//! A configuration that changes while the worker runs.
//!
//! What can change is what is looked up whenever a tick is claimed or ended: the settings of kinds. They
//! are replaced as a whole; what runs ends under those that it started with. Where a kind's schedule is
//! another, the chains that sleep are moved to where it has them, so that no old long delay is waited
//! out. Each worker that is told does so, and finds most of it done by the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use roundelay_config::CatchUpSettings;
use roundelay_config::Config;
use roundelay_config::change::{Change, compare};
use roundelay_ledger::{ChainFilter, Cursor, LedgerError, ListFilter, Listed};
use roundelay_model::ids::TickNo;
use roundelay_model::pacing::fair::Shares;
use roundelay_model::schedule::Schedule;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::calendars::{self, Read};
use crate::catalog::Catalog;
use crate::catalog::shared;
use crate::chores::Chores;
use crate::companion::Companion;
use crate::orders::Orders;
use crate::patient::PatientLedger;
use crate::publishing::Publishing;
use crate::reschedule::{Replanned, Rescheduler};
use crate::throttle::Throttles;
use crate::topology_guard;

/// What the task needs of the worker.
#[derive(Clone)]
pub(crate) struct Needs {
    pub(crate) ledger: PatientLedger,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) publishing: Arc<Publishing>,
    pub(crate) catch_up: CatchUpSettings,
    pub(crate) throttles: Throttles,
    pub(crate) shares: Arc<Shares>,
    pub(crate) orders: Arc<Orders>,
    pub(crate) chores: Option<Arc<Chores>>,
}

/// Chains looked at in one go.
const PER_PAGE: u32 = 1_000;
/// After an error.
const AGAIN: Duration = Duration::from_secs(5);

/// Takes over configurations as they come, and the days that are read of calendars, until `shutdown`. The first
/// configuration has those of its days already.
pub async fn run(
    needs: Needs,
    companions: Arc<Vec<Box<dyn Companion>>>,
    (mut current, mut days): (Config, Read),
    mut fresh: Option<mpsc::Receiver<Config>>,
    shutdown: CancellationToken,
) {
    let work = async {
        let mut moving = BTreeSet::new();
        loop {
            let mut next = tokio::select! {
                biased;
                next = next_config(&mut fresh) => next,
                read = calendars::changed(&current, &*needs.ledger, &days) => {
                    days = read;
                    current.clone()
                }
                () = follow(&needs, &moving), if !moving.is_empty() => {
                    moving.clear();
                    continue;
                }
            };
            next.take_days(&days);
            let change = compare(&current, &next);
            moving.extend(change.moved.iter().cloned());
            let calendars = change.calendars;
            current.kinds.clone_from(&change.kinds);
            if change.shares.is_some() {
                current.take_over_shares(&next);
            }
            current.calendars = next.calendars;
            current.throttles.extend(change.throttles.clone());
            current.encryption = next.encryption;
            needs.publishing.dispatch.sealing.take_over(current.encryption.clone());
            take_over(&needs, change);
            needs.orders.take_over(current.clone());
            if let Some(chores) = &needs.chores {
                chores.take_over(current.clone());
                if calendars && let Err(error) = chores.begin().await {
                    tracing::warn!(%error, "failed to begin reading calendars; it is tried again within minutes");
                }
            }
            for companion in &*companions {
                companion.reloaded(&current);
            }
            tell_sealing(&needs, current.encryption.seal().is_some()).await;
        }
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

/// The configuration that was read again. Never without a sender, or when it is gone.
async fn next_config(fresh: &mut Option<mpsc::Receiver<Config>>) -> Config {
    if let Some(fresh) = fresh
        && let Some(next) = fresh.recv().await
    {
        return next;
    }
    std::future::pending().await
}

/// Notes in the ledger whether programs that enroll have to seal.
async fn tell_sealing(needs: &Needs, sealed: bool) {
    if let Err(error) = topology_guard::note_sealing(&*needs.ledger, sealed).await {
        tracing::warn!(%error, sealed, "failed to note in the ledger whether payloads are sealed; SIGHUP tries again");
    }
}

fn take_over(needs: &Needs, change: Change) {
    let Change { kinds, changed, moved, throttles, shares, calendars, keys, fixed } = change;
    let tenants = shares.is_some();
    if let Some(shares) = shares {
        needs.shares.take_over(shares);
    }
    needs.throttles.take_over(&throttles);
    let throttles: Vec<&String> = throttles.keys().collect();
    for setting in &fixed {
        tracing::warn!(
            setting,
            "this has changed in the configuration, and stays as it was until the worker is started again"
        );
    }
    let mut current = needs.catalog.kinds.write();
    // The engine's own kinds stay.
    let mut next = BTreeMap::clone(&current);
    next.extend(shared(kinds));
    *current = Arc::new(next);
    drop(current);
    tracing::info!(?changed, rescheduled = ?moved, ?throttles, tenants, calendars, keys, "the configuration was read again");
}

/// Moves the chains of these kinds to where their schedules have them. What goes wrong is tried again.
async fn follow(needs: &Needs, kinds: &BTreeSet<String>) {
    for kind in kinds {
        let schedule = needs.catalog.kind(kind).and_then(|kind| Some(kind.recurrence.as_ref()?.schedule.clone()));
        let Some(schedule) = schedule else { continue };
        loop {
            match follow_kind(needs, kind, &schedule).await {
                Ok(moved) => {
                    tracing::info!(kind, moved, schedule = %schedule, "sleeping chains follow the new schedule");
                    break;
                }
                Err(error) => {
                    tracing::warn!(kind, %error, "failed to move chains to their new times; trying again");
                    sleep(AGAIN).await;
                }
            }
        }
    }
}

/// Answers how many chains this worker has moved.
async fn follow_kind(needs: &Needs, kind: &str, schedule: &Schedule) -> Result<u64, LedgerError> {
    let mover = Rescheduler::of(&needs.publishing, needs.catch_up.slack);
    let (mut moved, mut after, mut running) = (0, None::<Cursor>, Vec::new());
    loop {
        let filter =
            ListFilter { which: ChainFilter { kind: Some(kind.into()), ..ChainFilter::default() }, condition: None };
        let page = needs.ledger.list(filter, after, PER_PAGE).await?;
        moved += replan(&mover, &page, schedule, &mut running).await?;
        let full = page.len() == PER_PAGE as usize;
        after = page.last().map(|last| (last.hint.kind.clone(), last.hint.key.clone()));
        if !full {
            break;
        }
    }
    // What runs another tick by then was started under the new schedule, or by a worker that is told next.
    Ok(moved + mover.settle(kind, running, schedule, Duration::MAX).await?.0)
}

/// Those that are to be looked at again go to `running`, with their ticks.
async fn replan(
    mover: &Rescheduler,
    page: &[Listed],
    schedule: &Schedule,
    running: &mut Vec<(String, Option<TickNo>)>,
) -> Result<u64, LedgerError> {
    let answers = mover.replan(page, schedule, true).await?;
    let again = page.iter().zip(&answers).filter(|(_, answer)| matches!(answer, Replanned::Runs | Replanned::Changed));
    running.extend(again.map(|(chain, _)| (chain.hint.key.clone(), Some(chain.hint.tick))));
    Ok(answers.iter().filter(|answer| matches!(answer, Replanned::Moved(_))).count() as u64)
}
