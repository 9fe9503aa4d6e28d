//! The pauses between attempts to reach something that does not answer (pure).
//!
//! Retries of jobs have settings of their own: [`crate::outcome::Backoff`].

use std::time::Duration;

/// Pauses that double, from a first one up to a longest one.
#[derive(Clone, Copy, Debug)]
pub struct ExponentialBackoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl ExponentialBackoff {
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// The pause before the next attempt. The pause after it is twice as long.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }

    /// An attempt has succeeded: the next pause is the first one again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_again() {
        let mut backoff = ExponentialBackoff::new(Duration::from_millis(100), Duration::from_millis(500));
        let mut pauses = |n| (0..n).map(|_| backoff.next_pause().as_millis()).collect::<Vec<_>>();
        assert_eq!(pauses(5), [100, 200, 400, 500, 500]);
        backoff.reset();
        assert_eq!(backoff.next_pause(), Duration::from_millis(100));
    }
}
