//! Where the time of a cycle goes: a clock that stands beside every delivery's life.
//!
//! The engine says when it comes to a point of a tick's life, as it does to simulations. Each tick is one task, so
//! the time between two points of the same task is the time of the stage between them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use serde::Serialize;
use tokio::task;
use tokio::time::Instant;

use crate::engine::life::{Point, Probe};

/// What a cycle's time goes into, in milliseconds, in the mean. They follow one another and add up, from when a
/// tick is due until its message is acknowledged; what `finish` and `publish` take passes while the
/// next tick's delay has begun.
#[derive(Clone, Copy, Debug, Default, Serialize, PartialEq)]
pub struct Stages {
    /// From the due time until the message is in the worker: the broker, the way here, and rounding to milliseconds.
    pub delivery: f64,
    /// Reading the message, waiting for room and slot, and the claim in the ledger.
    pub claim: f64,
    /// The handler.
    pub run: f64,
    /// The decision, and the finish in the ledger.
    pub finish: f64,
    /// The successor on its way, until it is confirmed.
    pub publish: f64,
    /// Until the acknowledgement is handed over.
    pub acknowledge: f64,
}

/// Clocks ticks.
#[derive(Clone, Default)]
pub(super) struct Clock(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    ticks: HashMap<task::Id, Instant>,
    spent: [Duration; 5],
    count: u32,
}

impl Clock {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what has been so far.
    pub(super) fn reset(&self) {
        *self.inner() = Inner::default();
    }

    /// The stages, of ticks that were late by so many milliseconds in the mean when their handlers began.
    pub(super) fn stages(&self, late_ms: f64) -> Stages {
        let inner = self.inner();
        let mean = |stage: usize| inner.spent[stage].as_secs_f64() * 1_000.0 / f64::from(inner.count.max(1));
        let round = |ms: f64| (ms * 1_000.0).round() / 1_000.0;
        Stages {
            delivery: round(late_ms - mean(0)),
            claim: round(mean(0)),
            run: round(mean(1)),
            finish: round(mean(2)),
            publish: round(mean(3)),
            acknowledge: round(mean(4)),
        }
    }

    fn note(&self, point: Point) {
        let stage = match point {
            Point::Delivered => None,
            Point::Claimed => Some(0),
            Point::Handled => Some(1),
            Point::Finished => Some(2),
            Point::SuccessorSent => Some(3),
            Point::Settled => Some(4),
            _ => return,
        };
        let Some(id) = task::try_id() else { return };
        let (now, mut inner) = (Instant::now(), self.inner());
        let Some(stage) = stage else {
            inner.ticks.insert(id, now);
            return;
        };
        // Whoever had begun before the clock was reset does not count.
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
        let life = async |steps: [u64; 5]| {
            let points = [Point::Claimed, Point::Handled, Point::Finished, Point::SuccessorSent, Point::Settled];
            clock.note(Point::Delivered);
            for (step, point) in steps.into_iter().zip(points) {
                advance(ms(step)).await;
                clock.note(Point::Permitted);
                clock.note(point);
            }
        };
        // One that had begun before does not count.
        clock.note(Point::Delivered);
        clock.reset();
        clock.note(Point::Claimed);
        life([1, 2, 3, 4, 5]).await;
        life([3, 2, 1, 0, 7]).await;
        let stages = clock.stages(10.0);
        let expected = Stages { delivery: 8.0, claim: 2.0, run: 2.0, finish: 2.0, publish: 2.0, acknowledge: 6.0 };
        assert_eq!(stages, expected);
    }
}
