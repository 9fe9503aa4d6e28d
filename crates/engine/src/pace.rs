//! The pace of what is published beside the work of chains, by governor: first messages of chains that begin, messages
//! that catch-up sends again, and those that go to the end of their queue. The broker takes as many as it can, and what
//! running chains publish meanwhile would be late behind them.

use std::num::NonZeroU32;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use governor::clock::Clock as _;
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use roundelay_model::clock::Elapsed;
use tokio::time::sleep;

/// What was not used within a second divided by this is lost: more than a timer is late by, and less than people
/// notice.
const BURSTS: u32 = 20;

/// Limits how many messages pass in a second.
pub struct Pace {
    limiter: RateLimiter<NotKeyed, InMemoryState, Elapsed, NoOpMiddleware<Duration>>,
    clock: Elapsed,
}

impl Pace {
    /// One of `rate` messages in a second.
    pub fn new(rate: NonZeroU32) -> Self {
        let burst = NonZeroU32::new(rate.get() / BURSTS).unwrap_or(NonZeroU32::MIN);
        let (quota, clock) = (Quota::per_second(rate).allow_burst(burst), Elapsed::default());
        Self { limiter: RateLimiter::new(quota, InMemoryState::default(), clock.clone()), clock }
    }

    /// Whether one passes now.
    pub fn passes(&self) -> bool {
        self.limiter.check().is_ok()
    }

    /// The items, each when its turn has come. Only one of them waits at a time.
    pub fn over<T>(&self, items: Vec<T>) -> impl Stream<Item = T> {
        stream::iter(items).then(async |item| {
            while let Err(early) = self.limiter.check() {
                sleep(early.wait_time_from(self.clock.now())).await;
            }
            item
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_rate_is_used_and_no_window_holds_more() {
        for rate in [1_000, 20_000, 1_000_000] {
            let pace = Pace::new(NonZeroU32::new(rate).unwrap());
            let begun = Instant::now();
            // Two at once share it.
            let items = vec![(); 2 * rate as usize];
            let times = || pace.over(items.clone()).map(|()| begun.elapsed()).collect::<Vec<_>>();
            let (one, other) = join(times(), times()).await;
            let mut times = [one, other].concat();
            times.sort();
            let took = times[times.len() - 1].as_secs_f64();
            assert!((3.9..4.01).contains(&took), "{rate} in a second: {took} s for four seconds' worth");
            let most = (rate + rate / BURSTS) as usize;
            for window in times.windows(most + 2) {
                let span = window[most + 1] - window[0];
                assert!(span >= Duration::from_secs(1), "{rate} in a second: {} within {span:?}", most + 2);
            }
        }
    }
}
