//! The stages of a cycle, measured by a clock beside every delivery.
//!
//! The engine announces each point of a tick's life, as it does to simulations. Each tick is one task, so the time
//! between two points of the same task is the time of the stage between them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use parking_lot::{Mutex, MutexGuard};
use roundelay_engine::life::{Point, Probe};
use serde::Serialize;
use tokio::task;
use tokio::time::Instant;

/// The stages of a cycle, in milliseconds, in the mean. The stages follow one another, so that they add up to the time
/// from when a tick is due until its message is acknowledged. The next tick's delay has begun already during `finish`
/// and `publish`.
#[derive(Clone, Copy, Debug, Default, Serialize, PartialEq)]
pub struct Stages {
    /// From the due time until the message is in the worker; negative when the message came before: see
    /// [`roundelay_model::ladder::AT_THE_DOOR`].
    pub delivery: f64,
    /// Reading the message, waiting until it is due, and for room and slot.
    pub wait: f64,
    pub claim: f64,
    /// The handler.
    pub run: f64,
    /// The decision, and the finish in the ledger.
    pub finish: f64,
    /// Publishing the successor, until it is confirmed.
    pub publish: f64,
    /// Until the acknowledgement is handed over.
    pub acknowledge: f64,
}

/// Measures the stages of ticks.
#[derive(Clone, Default)]
pub(super) struct Clock(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    ticks: HashMap<task::Id, Instant>,
    spent: [Duration; 6],
    count: u32,
    stopped: bool,
}

impl Clock {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }

    /// Forgets the measurements so far.
    pub(super) fn reset(&self) {
        *self.inner() = Inner::default();
    }

    /// Stops the measurement.
    pub(super) fn stop(&self) {
        self.inner().stopped = true;
    }

    /// The stages; `late_ms` is how late the handlers began, in the mean.
    pub(super) fn stages(&self, late_ms: f64) -> Stages {
        let inner = self.inner();
        let mean = |stage: usize| inner.spent[stage].as_secs_f64() * 1_000.0 / f64::from(inner.count.max(1));
        let round = |ms: f64| (ms * 1_000.0).round() / 1_000.0;
        Stages {
            delivery: round(late_ms - mean(0) - mean(1)),
            wait: round(mean(0)),
            claim: round(mean(1)),
            run: round(mean(2)),
            finish: round(mean(3)),
            publish: round(mean(4)),
            acknowledge: round(mean(5)),
        }
    }

    fn note(&self, point: Point) {
        let stage = match point {
            Point::Delivered => None,
            Point::Permitted => Some(0),
            Point::Claimed => Some(1),
            Point::Handled => Some(2),
            Point::Finished => Some(3),
            Point::SuccessorSent => Some(4),
            Point::Settled => Some(5),
            _ => return,
        };
        let Some(id) = task::try_id() else { return };
        let (now, mut inner) = (Instant::now(), self.inner());
        if inner.stopped {
            return;
        }
        let Some(stage) = stage else {
            inner.ticks.insert(id, now);
            return;
        };
        // A tick that had begun before the reset does not count.
        let Some(last) = inner.ticks.insert(id, now) else {
            inner.ticks.remove(&id);
            return;
        };
        inner.spent[stage] += now - last;
        if point == Point::Settled {
            inner.ticks.remove(&id);
            inner.count += 1;
        }
    }
}

impl Probe for Clock {
    fn reached(&self, point: Point) -> BoxFuture<'static, ()> {
        self.note(point);
        ready(()).boxed()
    }

    fn hold(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        task
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_stages_add_up_to_the_life_of_a_tick() {
        let clock = Clock::default();
        let ms = Duration::from_millis;
        let life = |steps: [u64; 6]| {
            let clock = clock.clone();
            task::spawn(async move {
                let first = [Point::Permitted, Point::Claimed, Point::Handled];
                let then = [Point::Finished, Point::SuccessorSent, Point::Settled];
                clock.note(Point::Delivered);
                for (step, point) in steps.into_iter().zip(first.into_iter().chain(then)) {
                    advance(ms(step)).await;
                    clock.note(Point::SuccessorNoted);
                    clock.note(point);
                }
            })
        };
        let begun_before = clock.clone();
        let begun_before = task::spawn(async move {
            begun_before.note(Point::Delivered);
            begun_before.reset();
            begun_before.note(Point::Permitted);
            begun_before.note(Point::Claimed);
        });
        begun_before.await.unwrap();
        life([9, 1, 2, 3, 4, 5]).await.unwrap();
        life([5, 3, 2, 1, 0, 7]).await.unwrap();
        let stages = clock.stages(3.0);
        // The message came six milliseconds before it was due.
        let [delivery, wait, claim, run] = [-6.0, 7.0, 2.0, 2.0];
        assert_eq!(stages, Stages { delivery, wait, claim, run, finish: 2.0, publish: 2.0, acknowledge: 6.0 });
    }
}
