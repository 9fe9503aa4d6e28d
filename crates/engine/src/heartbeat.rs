//! Keeps this worker's session, and looks at those of others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use roundelay_ledger::{ClaimId, LedgerError, Session};
use roundelay_model::clock::instant;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::left_behind::LeftBehind;
use crate::life::Point;
use crate::observing::Observing;
use crate::patient::PatientLedger;
use crate::telemetry::Count;
use crate::vitals::Claimed;
use crate::vitals::Term;
use crate::vitals::Vitals;

/// What the task needs of the worker.
#[derive(Clone)]
pub(crate) struct Needs {
    pub(crate) worker: Arc<str>,
    pub(crate) ledger: PatientLedger,
    pub(crate) vitals: Arc<Vitals>,
    pub(crate) observing: Arc<Observing>,
    pub(crate) left: Arc<LeftBehind>,
}

/// How often a worker says that it lives, and looks at the others.
const PERIOD: Duration = Duration::from_secs(1);
/// Every fifth heartbeat looks whether the worker's claims still hold: an operator may have begun chains anew.
const CLAIMS: u32 = 5;
/// Claims that are looked at in one query.
const PER_LOOK: usize = 1_000;

/// What is known of the other sessions (pure).
///
/// A session is dead when the operating system says that its process has ended, or when the ledger has not heard of it
/// for its lease. Its worker counts that from when it asked, and so from before the beat that is seen here. So it has
/// ended its runs by then, also if this worker stood still itself, or no worker could reach the ledger.
#[derive(Debug, Default)]
struct Others {
    /// Their last beats, and since when these are known.
    seen: BTreeMap<i64, (i64, Instant)>,
    /// Of those that were dead at the last look, the ones whose processes have surely ended.
    gone: BTreeSet<i64>,
}

impl Others {
    /// They were looked at. Answers those that are dead, with their beats.
    fn look(&mut self, (asked, answered): (Instant, Instant), others: &[Session]) -> Vec<(i64, i64)> {
        let before = std::mem::take(&mut self.seen);
        self.gone = others.iter().filter(|other| other.gone).map(|other| other.session).collect();
        let mut dead = Vec::new();
        for other in others {
            let known = before.get(&other.session).filter(|known| known.0 == other.beat);
            let since = known.map_or(answered, |known| known.1);
            self.seen.insert(other.session, (other.beat, since));
            let silent = asked.saturating_duration_since(since) >= other.lease;
            if other.gone || silent {
                dead.push((other.session, other.beat));
            }
        }
        dead
    }

    /// Those that are known.
    fn sessions(&self) -> BTreeSet<i64> {
        self.seen.keys().copied().collect()
    }
}

/// Begins a session, ends those of workers that are known to be dead, and answers with what is to be kept up.
///
/// # Errors
/// When the ledger does not answer.
pub async fn begin(needs: &Needs) -> Result<Heartbeat, LedgerError> {
    let mut keeper = Heartbeat { others: Others::default(), nth: 0, before: Vec::new() };
    keeper.begin(needs).await?;
    keeper.beat(needs).await?;
    Ok(keeper)
}

/// Keeps the lease.
pub struct Heartbeat {
    others: Others,
    nth: u32,
    /// Sessions of this worker that are not kept up any more.
    before: Vec<i64>,
}

impl Heartbeat {
    async fn begin(&mut self, needs: &Needs) -> Result<(), LedgerError> {
        let vitals = &needs.vitals;
        let before = vitals.terms().take();
        if let Some(before) = before {
            // What it still held ends now.
            before.over.cancel();
            self.before.push(before.session);
        }
        let asked = instant();
        let session = needs.ledger.begin_session(needs.worker.to_string(), vitals.length).await?;
        needs.observing.life.reached(Point::SessionBegun).await;
        let term = Term { session, ends: Mutex::new(asked + vitals.length), over: CancellationToken::new() };
        *vitals.terms() = Some(Arc::new(term));
        vitals.begun.notify_waiters();
        Ok(())
    }

    /// Ends the sessions whose runs have all ended, so that other workers need not wait for their leases.
    async fn end_before(&mut self, needs: &Needs) -> Result<(), LedgerError> {
        while let Some(session) = self.before.iter().copied().find(|session| !needs.vitals.runs(*session)) {
            needs.ledger.end_session(session).await?;
            self.before.retain(|before| *before != session);
            // A claim for this session whose answer was lost belongs to no session now.
            needs.left.orphaned.notify_one();
        }
        Ok(())
    }

    /// Says that this worker lives, and ends the sessions of those that do not.
    async fn beat(&mut self, needs: &Needs) -> Result<(), LedgerError> {
        let mut dead = Vec::new();
        self.end_before(needs).await?;
        loop {
            let Some(term) = needs.vitals.current() else {
                if needs.vitals.last().is_some() {
                    needs.observing.telemetry.count(Count::LeaseLost);
                    tracing::warn!(
                        "this worker could not say in time that it lives; what it ran was ended, and runs again"
                    );
                }
                return self.begin(needs).await;
            };
            // That this machine was suspended ends its own lease, and says nothing about others.
            let (asked, looked) = (instant(), Instant::now());
            let beat = needs.ledger.beat(term.session, std::mem::take(&mut dead)).await?;
            needs.observing.life.reached(Point::Renewed).await;
            if !beat.alive {
                needs.observing.telemetry.count(Count::LeaseLost);
                tracing::warn!("others have taken this worker for dead; what it ran was ended, and runs again");
                return self.begin(needs).await;
            }
            needs.vitals.renewed(&term, asked);
            if !beat.ended.is_empty() {
                needs.observing.life.reached(Point::OthersEnded).await;
            }
            // The broker gives to others what one had in hand whose process has ended.
            let gone = |session: &i64| self.others.gone.contains(session);
            if !beat.ended.iter().all(gone) {
                needs.left.silent.store(true, Ordering::Relaxed);
            }
            let before = self.others.sessions();
            dead = self.others.look((looked, Instant::now()), &beat.others);
            for session in &beat.ended {
                tracing::warn!(session, "a worker has ended or stands still; others run what it has left");
            }
            if !beat.ended.is_empty() || !before.is_subset(&self.others.sessions()) {
                needs.left.orphaned.notify_one();
            }
            if dead.is_empty() {
                return Ok(());
            }
        }
    }

    /// Until the engine ends.
    pub async fn keep(mut self, needs: Needs) {
        loop {
            sleep(PERIOD.min(needs.vitals.length / 6)).await;
            match timeout(needs.vitals.length / 3, self.beat(&needs)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "the ledger does not hear that this worker lives"),
                Err(_) => tracing::debug!("the ledger does not hear that this worker lives: it does not answer"),
            }
            self.nth += 1;
            if self.nth.is_multiple_of(CLAIMS) {
                check(&needs).await;
            }
        }
    }
}

/// Ends the runs whose claims hold no more.
async fn check(needs: &Needs) {
    let claims: Vec<Arc<Claimed>> = needs.vitals.claims().values().cloned().collect();
    for claims in claims.chunks(PER_LOOK) {
        let asked = claims.iter().map(|claimed| claimed.claim).collect();
        let Ok(Ok(held)) = timeout(needs.vitals.length / 3, needs.ledger.hold(asked)).await else { return };
        for (claimed, _) in claims.iter().zip(held).filter(|(_, held)| !held) {
            let ClaimId { epoch, fence } = claimed.claim;
            // Otherwise it has just finished, or is about to hear that it has.
            if !claimed.finishes.load(Ordering::Relaxed) && needs.vitals.claims().contains_key(&fence) {
                needs.observing.telemetry.count(Count::LeaseLost);
                if needs.observing.telemetry.notices.begins("claims that were lost") {
                    tracing::warn!(
                        epoch = epoch.get(),
                        fence = fence.get(),
                        "a claim was lost: another worker has the tick, or its chain began anew"
                    );
                }
                claimed.lost.cancel();
            }
        }
    }
}

/// Ends the session in good order.
pub async fn end(needs: &Needs) {
    let Some(term) = needs.vitals.last() else { return };
    match timeout(needs.vitals.length / 3, needs.ledger.end_session(term.session)).await {
        Ok(Ok(())) => needs.observing.life.reached(Point::SessionEnded).await,
        Ok(Err(error)) => tracing::debug!(%error, "the ledger does not hear that this worker ends"),
        Err(_) => tracing::debug!("the ledger does not hear that this worker ends: it does not answer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(session: i64, beat: i64, gone: bool) -> Session {
        Session { session, worker: "w".into(), lease: Duration::from_secs(6), beat, gone }
    }

    #[test]
    fn sessions_are_dead_when_silent_for_their_lease_or_gone() {
        let start = Instant::now();
        let at = |secs: f64| start + Duration::from_secs_f64(secs);
        // When it was looked (asked, answered), the beats of 1 and 2, whether 2 has surely ended, and who is dead.
        type Look = ((f64, f64), (i64, i64), bool, &'static [i64]);
        let tables: [(&str, &[Look]); 5] = [
            (
                "one falls silent, the other lives",
                &[
                    ((0.0, 0.1), (1, 1), false, &[]),
                    ((2.0, 2.1), (1, 2), false, &[]),
                    ((4.0, 4.1), (1, 4), false, &[]),
                    ((6.0, 6.1), (1, 6), false, &[]),
                    ((6.2, 6.3), (1, 6), false, &[1]),
                ],
            ),
            ("its process has ended", &[((0.0, 0.1), (1, 1), true, &[2])]),
            (
                "it is heard of again just in time",
                &[
                    ((0.0, 0.1), (1, 1), false, &[]),
                    ((3.0, 3.0), (1, 2), false, &[]),
                    ((5.9, 5.9), (2, 3), false, &[]),
                    ((8.0, 8.0), (2, 4), false, &[]),
                    ((10.9, 10.9), (2, 5), false, &[]),
                    ((11.9, 11.9), (2, 6), false, &[1]),
                ],
            ),
            (
                "after a gap between looks, a session whose beat has not risen is over, and one whose beat has risen lives",
                &[((0.0, 0.1), (1, 1), false, &[]), ((40.0, 40.1), (1, 2), false, &[1])],
            ),
            (
                "an answer that is long on its way says nothing of that time",
                &[
                    ((0.0, 5.0), (1, 1), false, &[]),
                    ((6.0, 12.0), (1, 1), false, &[]),
                    ((13.0, 13.0), (1, 2), false, &[1]),
                ],
            ),
        ];
        for (label, looks) in tables {
            let mut others = Others::default();
            for (n, ((asked, answered), beats, gone, expected)) in looks.iter().enumerate() {
                let there = [other(1, beats.0, false), other(2, beats.1, *gone)];
                let dead = others.look((at(*asked), at(*answered)), &there);
                let dead: Vec<i64> = dead.into_iter().map(|(session, _)| session).collect();
                assert_eq!(dead, *expected, "{label}, look {n}");
            }
        }
    }
}
