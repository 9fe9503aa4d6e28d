//! Kills and freezes workers by a seed, but never the last one that is at work.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use roundelay::clock::Entropy;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::fleet::Fleet;
use crate::support::workers::Seat;

/// How long after one strike the next comes, in milliseconds.
const BETWEEN: (u64, u64) = (4_000, 12_000);
/// How long a freeze lasts, in milliseconds: some end before leases do and some after.
const FREEZES: [(u64, u64); 2] = [(500, 4_000), (8_000, 20_000)];

/// What was done.
#[derive(Default)]
pub struct Strikes {
    kills: usize,
    freezes: usize,
    /// When, and for how long it was frozen.
    when: Vec<(Duration, Option<Duration>)>,
}

impl Strikes {
    /// For the report.
    pub fn figures(&self) -> Value {
        json!({ "killed": self.kills, "frozen": self.freezes })
    }

    /// When they came, in milliseconds, and how long each freeze was.
    pub fn when(&self) -> Vec<Value> {
        let millis = |length: Duration| length.as_millis() as u64;
        self.when.iter().map(|(at, length)| json!([millis(*at), length.map(millis)])).collect()
    }
}

/// Strikes for `length`, and returns when all workers are awake again.
pub async fn strike(fleet: &Fleet, seed: u64, length: Duration) -> Strikes {
    let dice = Entropy::seeded(seed);
    let millis = |(low, high): (u64, u64)| dice.between(Duration::from_millis(low), Duration::from_millis(high));
    let (until, mut strikes, mut frozen) = (Instant::now() + length, Strikes::default(), FuturesUnordered::new());
    loop {
        let pause = sleep(millis(BETWEEN));
        tokio::pin!(pause);
        loop {
            // Who is frozen is woken meanwhile.
            tokio::select! {
                () = &mut pause => break,
                Some(_) = frozen.next() => {}
            }
        }
        if Instant::now() >= until {
            break;
        }
        // Drawn in any case, so that later draws depend only on the seed, not on which workers are at work.
        let (kill, which, length) = (dice.below(2) == 0, dice.unit(), millis(FREEZES[dice.below(2)]));
        let at_work = |seat: &&Arc<Seat>| {
            seat.awake().is_some_and(|worker| fleet.receiver.count(|call| call.worker == worker) > 0)
        };
        let ready: Vec<&Arc<Seat>> = fleet.workers.seats.iter().filter(at_work).collect();
        if ready.len() < 2 {
            continue;
        }
        strikes.when.push((fleet.receiver.now(), (!kill).then_some(length)));
        let seat = ready[(which * ready.len() as f64) as usize % ready.len()];
        if kill {
            strikes.kills += usize::from(fleet.workers.kill(seat, |_| ()).is_some());
        } else {
            strikes.freezes += 1;
            frozen.push(fleet.workers.freeze(seat, length, |_| ()));
        }
    }
    while frozen.next().await.is_some() {}
    strikes
}
