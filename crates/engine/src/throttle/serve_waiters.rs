//! Serving a wait queue: asking for the slots that the jobs in it need, shortly before the slots open.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use roundelay_model::pacing::slots::{LEAD, Micros, StartRequest};
use roundelay_model::pacing::{SlotRequest, SlotResponse, ThrottleScope};
use tokio::time::{Instant, sleep, sleep_until};

use super::wait_queue::{Rank, WaitQueue};
use super::{ON_THE_WAY, Slot, Throttle};

/// Where this part of the slip is at least this long, a slot is asked for only just before it opens, so that a start of
/// a higher priority that comes meanwhile gets it. A slow answer then makes the start late, and loses nothing.
const UNHURRIED: Duration = Duration::from_millis(100);
/// Of workers that wait for the same slot, the one whose first start is due just now asks for it by up to this
/// much later than one whose first start is overdue for [`OLDEST`]. It is a part of the lead, or far below the slip, so
/// that no slot is lost.
const HESITATION: Duration = Duration::from_millis(25);
/// What is overdue for longer counts as overdue for this long.
const OLDEST: Duration = Duration::from_secs(300);
/// Starts in one request.
const MAX_REQUESTS: usize = 1_024;
/// The shortest planned pause before the next request.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// How often a worker without a session looks whether it has one again: a worker that stood still for longer than its
/// lease begins another session first. Its jobs are the most overdue, so it would get every slot, and could claim
/// nothing.
const CANNOT_CLAIM: Duration = Duration::from_millis(20);
/// The first wait after the ledger has not answered.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// These waits grow to this; of all wait queues one asks sooner, and wakes the others when it is answered (`Comeback`).
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Serves a queue as [`serve_waiters`] does, and begins again after a panic: no other task would, and the jobs in the
/// queue would wait for ever.
pub(super) async fn keep_serving(throttle: Arc<Throttle>, key: String, wait_queue: Arc<WaitQueue>) {
    let name = throttle.name.clone();
    again_after_panics(&name, || serve_waiters(throttle.clone(), key.clone(), wait_queue.clone())).await;
}

/// Runs `serve` until it returns; after a panic again, [`MAX_PAUSE`] later.
async fn again_after_panics<F: Future<Output = ()>>(throttle: &str, serve: impl Fn() -> F) {
    // What the wait queue's lock guards is never half done. Feedback that was taken is lost, as when a worker dies.
    while AssertUnwindSafe(serve()).catch_unwind().await.is_err() {
        tracing::error!(throttle, "serving a wait queue of the throttle panicked; it goes on in {MAX_PAUSE:?}");
        sleep(MAX_PAUSE).await;
    }
}

/// Serves a queue while a job waits in it, or feedback is to be sent.
async fn serve_waiters(throttle: Arc<Throttle>, key: String, wait_queue: Arc<WaitQueue>) {
    let (mut pause, mut planned) = (FIRST_PAUSE, None);
    loop {
        wait_queue.pass_on();
        let told = wait_queue.words();
        let can_claim = throttle.settings().scope == ThrottleScope::Worker || throttle.board.is_able();
        if !can_claim && told.is_empty() {
            sleep(CANNOT_CLAIM).await;
            continue;
        }
        let requests = if can_claim { wait_queue.requests(MAX_REQUESTS) } else { Vec::new() };
        let (ranks, requests): (Vec<Rank>, Vec<StartRequest>) = requests.into_iter().unzip();
        if requests.is_empty() && told.is_empty() {
            if let Some(until) = wait_queue.remembers_until() {
                tokio::select! {
                    biased;
                    () = sleep_until(until) => {}
                    () = wait_queue.urged() => {}
                }
                continue;
            }
            // Locked to the end: no job may join between the check and the end of this task.
            let mut lines = throttle.lines();
            if !wait_queue.close_if_empty() {
                continue;
            }
            // A throttle without keys keeps its wait queue; of many keys that would be too much.
            if !key.is_empty() && !wait_queue.is_needed() {
                lines.remove(&key);
            }
            return;
        }
        let settings = throttle.settings();
        let asked = Instant::now();
        let unhurried = settings.limits.slip() / ON_THE_WAY >= UNHURRIED;
        let ahead = if unhurried { 0 } else { throttle.latency().expected() };
        let request = SlotRequest {
            throttle: throttle.name.clone(),
            key: key.clone(),
            limits: settings.limits.clone(),
            feedback: told.iter().map(|(word, _)| word.clone().moved(-throttle.here())).collect(),
            requests,
            ahead,
        };
        let SlotResponse { now, answer, limits, orders } = match throttle.ask(request, settings.scope).await {
            Ok(answer) => answer,
            Err(error) => {
                wait_queue.keep(told);
                planned = None;
                if throttle.board.notices.begins("requests for slots that the ledger did not answer") {
                    tracing::warn!(throttle = throttle.name, key, %error, "no slots while the ledger does not answer");
                }
                throttle.board.comeback.wait(pause).await;
                pause = (pause * 2).min(MAX_PAUSE);
                continue;
            }
        };
        pause = FIRST_PAUSE;
        throttle.board.comeback.answered();
        let here = Instant::now();
        // What the clock of the slots shows by now: this worker's reading, if it lies between the answer's `now` and
        // that plus the round trip. Else `now`, and slots open late, never early.
        let took = i64::try_from((here - asked).as_micros()).unwrap_or(i64::MAX / 2);
        let shows = match settings.scope {
            ThrottleScope::Fleet => throttle.ledger.now().as_millis() * 1_000,
            ThrottleScope::Worker => throttle.here(),
        };
        let clock = if shows <= now.saturating_add(took) { shows.max(now) } else { now };
        // From when the request was planned: a timer that woke up late counts, too.
        let late = here - asked.min(planned.take().unwrap_or(asked));
        throttle.latency().heard(i64::try_from(late.as_micros()).unwrap_or(i64::MAX));
        wait_queue.learn(here, now, &answer);
        for (_, done) in told {
            // A waiter that has gone needs no answer.
            let _ = done.send(());
        }
        let slip = limits.slip();
        throttle.note((*limits != *settings.limits).then(|| limits.clone()));
        let of_key = Arc::new(key.clone());
        let when = |micros: Micros| {
            let distance = Duration::from_micros(micros.abs_diff(clock));
            if micros >= clock { here + distance } else { here.checked_sub(distance).unwrap_or(here) }
        };
        for (request, opens) in answer.slots {
            let opens = when(opens);
            let rank = ranks.get(request);
            let (cost, besides) = (rank.map_or(1, Rank::cost), rank.is_some_and(Rank::is_of_probe));
            let slot = Slot {
                opens,
                expires: opens + slip - slip / ON_THE_WAY,
                cost,
                probe: answer.probe,
                besides,
                gate: throttle.gate(&limits, cost).map(|gate| (gate, of_key.clone())),
                line: None,
            };
            if settings.fair.is_some() {
                wait_queue.used_until(opens + limits.spacing() * cost);
            }
            throttle.counts.granted.inc();
            wait_queue.give(rank, slot);
        }
        if wait_queue.drop_hopeless() {
            continue;
        }
        if let Some(again) = answer.again {
            let early = if unhurried { LEAD / 10 } else { LEAD / 2 + ahead };
            let overdue = |due| throttle.ledger.now().since(due);
            let hesitates = wait_queue.first().map_or(HESITATION, |(due, newcomer)| match settings.fair {
                None => hesitation(overdue(due)),
                // The next slot is a newcomer's, whichever worker has its job.
                Some(_) if newcomer => Duration::ZERO,
                Some(_) => (HESITATION + hesitation(overdue(due))) / 2,
            });
            let ask = when(again - early) + hesitates;
            let ask = ask.max(here + MIN_PAUSE);
            tokio::select! {
                biased;
                // On a busy machine it is later than that, and slots are had as much later.
                () = sleep_until(ask) => planned = Some(ask),
                () = wait_queue.urged() => {}
                () = throttle.board.changed(&throttle.name, orders) => {}
            }
        }
    }
}

/// How much later than the others a worker asks whose first start is overdue by this much: the older, the sooner. The
/// worker that asks first gets the slot. Without this it would always be the worker nearest to the ledger. By
/// logarithms, since a second counts for more among starts that are due just now.
fn hesitation(overdue: Duration) -> Duration {
    let age = |overdue: Duration| overdue.min(OLDEST).as_secs_f64().ln_1p();
    HESITATION.mul_f64(1.0 - age(overdue) / age(OLDEST))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn the_worker_with_the_most_overdue_start_asks_first() {
        // Milliseconds overdue, and the hesitation in microseconds.
        let table = [(0, 25_000), (100, 24_582), (1_000, 21_964), (10_000, 14_495), (60_000, 7_000), (300_000, 0)];
        let table = table.into_iter().chain([(900_000, 0)]);
        for (overdue, later) in table {
            let hesitates = hesitation(Duration::from_millis(overdue));
            let off = hesitates.abs_diff(Duration::from_micros(later));
            assert!(off < Duration::from_micros(500), "{overdue} ms overdue: {hesitates:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_queue_is_served_on_after_a_panic() {
        let times = AtomicU32::new(0);
        let serve = async || assert!(times.fetch_add(1, Ordering::Relaxed) >= 2, "by chance");
        again_after_panics("ios", serve).await;
        assert_eq!(times.into_inner(), 3);
    }
}
