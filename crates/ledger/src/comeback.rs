//! When to ask a ledger again that has not answered.
//!
//! Pauses between attempts grow, so that a ledger that is away for long is not asked by every request all the time. But
//! a request that is in such a pause when the ledger comes back loses the rest of the pause, and slots with it. So of
//! all requests that wait in a worker one asks at short intervals, and the first answer wakes the others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, Notify};
use tokio::time::sleep;

/// The pause between two attempts of the request that asks for all.
const SCOUT: Duration = Duration::from_millis(100);

/// Whether a worker's ledger answers, as its requests have seen.
#[derive(Debug, Default)]
pub struct Comeback {
    away: AtomicBool,
    back: Notify,
    scout: Mutex<()>,
}

impl Comeback {
    /// The ledger has answered: the requests that wait ask now.
    pub fn answered(&self) {
        if self.away.load(Ordering::Relaxed) && self.away.swap(false, Ordering::Relaxed) {
            self.back.notify_waiters();
        }
    }

    /// Waits after an error: for `pause`, or until another request has been answered.
    pub async fn wait(&self, pause: Duration) {
        let back = self.back.notified();
        tokio::pin!(back);
        // From here on no answer is missed.
        back.as_mut().enable();
        self.away.store(true, Ordering::Relaxed);
        let scout = self.scout.try_lock();
        let pause = if scout.is_ok() { pause.min(SCOUT) } else { pause };
        tokio::select! {
            biased;
            () = back => {}
            () = sleep(pause) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(2);

    /// A ledger that is back after so long, and how long each of `many` who ask it took to notice, in milliseconds.
    async fn noticed(away: u64, many: usize) -> Vec<u128> {
        let (comeback, begun) = (Arc::new(Comeback::default()), Instant::now());
        let back = begun + Duration::from_millis(away);
        let ask = |_| {
            let comeback = comeback.clone();
            tokio::spawn(async move {
                let mut asked = 0;
                while Instant::now() < back {
                    asked += 1;
                    comeback.wait(LONG).await;
                }
                comeback.answered();
                (back.elapsed().as_millis(), asked)
            })
        };
        let all: Vec<_> = (0..many).map(ask).collect();
        let mut late = Vec::new();
        let mut attempts = 0;
        for one in all {
            let (noticed, asked) = one.await.unwrap();
            late.push(noticed);
            attempts += asked;
        }
        let few = 2 * (away / SCOUT.as_millis() as u64) + (many as u64) * (2 + away / LONG.as_millis() as u64);
        assert!(attempts <= few, "{attempts} attempts of {many} in {away} ms");
        late
    }

    #[tokio::test(start_paused = true)]
    async fn all_hear_of_it_as_soon_as_one_is_answered_and_few_ask() {
        for (away, many) in [(50, 1), (3_970, 1), (3_970, 500), (60_030, 500)] {
            let late = noticed(away, many).await;
            assert!(late.iter().all(|late| *late <= SCOUT.as_millis()), "{away} ms, {many}: {:?}", late.iter().max());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_answered_before_wakes_nobody() {
        let (comeback, begun) = (Comeback::default(), Instant::now());
        comeback.answered();
        let other = comeback.scout.lock().await;
        comeback.wait(LONG).await;
        assert_eq!(begun.elapsed(), LONG);
        drop(other);
    }
}
