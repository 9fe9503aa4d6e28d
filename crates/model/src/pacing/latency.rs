//! How long the ledger's answers take, estimated from those that have come (pure).

use super::slots::{MAX_AHEAD, Micros};

/// With each answer the estimate fades by one part in this many.
const LATENCY_DECAY: Micros = 32;

/// The estimate for [`super::slots::GrantRequest::ahead`]: slots that open sooner are over when their answer comes.
///
/// The slowest of the last answers counts, but only if the answer next to it was as slow. Between a slot that opens
/// that far ahead and the slot before it there may be room that no start gets, each time a start asks that has just
/// come. So one answer that was slow because this worker stood still, or because it had to connect, must not count: it
/// would cost all workers of the throttle a second in two until it is forgotten.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latency {
    expected: Micros,
    last: Micros,
}

impl Latency {
    /// An answer has come, `took` µs after the request was due.
    pub fn heard(&mut self, took: Micros) {
        let took = took.min(MAX_AHEAD);
        let faded = self.expected - self.expected / LATENCY_DECAY;
        self.expected = faded.max(took.min(self.last));
        self.last = took;
    }

    /// How long the next answer will probably take, in microseconds.
    pub fn expected(&self) -> Micros {
        self.expected
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::slots::{GrantRequest, LEAD, StartRequest, State};
    use super::*;
    use crate::pacing::slots::limits::{Limits, Window};

    #[test]
    fn latency_counts_what_is_slow_twice_and_fades() {
        let table: [(&[Micros], Micros); 6] = [
            (&[], 0),
            (&[150_000], 0),
            (&[150_000, 140_000], 140_000),
            (&[1_000, 13_000_000, 2_000], 2_000),
            (&[400_000, 400_000, 1_000], 387_500),
            (&[9_000_000, 9_000_000], MAX_AHEAD),
        ];
        for (answers, expected) in table {
            let mut latency = Latency::default();
            answers.iter().for_each(|took| latency.heard(*took));
            assert_eq!(latency.expected(), expected, "{answers:?}");
        }
    }

    /// Two workers, of which one has stood still while it asked. It has one start at a time, which runs for a tenth of
    /// a second; the other has always enough.
    #[test]
    fn latency_of_a_worker_that_stood_still_costs_others_nothing() {
        const S: Micros = 1_000_000;
        let begin = 1_790_000_000 * S;
        let limits = Limits { window: Window { allow: 5, per: Duration::from_secs(1) }, burst: 1, also: Vec::new() };
        let (mut state, mut latency) = (State::default(), Latency::default());
        [2_000, 2_000, 13 * S, 2_000].into_iter().for_each(|took| latency.heard(took));
        let request = StartRequest { priority: 0, cost: 1, probe: false };
        let (mut asks, mut had) = ([begin, begin], Vec::new());
        while asks[0].min(asks[1]) < begin + 60 * S {
            let who = usize::from(asks[1] < asks[0]);
            let (ahead, requests) = if who == 0 { (latency.expected(), 1) } else { (0, 4) };
            let now = asks[who];
            let answer = state.grant(&limits, &GrantRequest { now, ahead, requests: &vec![request; requests] });
            had.extend(answer.slots.iter().map(|slot| slot.1));
            if who == 0 {
                latency.heard(2_000);
            }
            let again = answer.again.map_or(now, |again| again - LEAD / 2 - ahead);
            let free = answer.slots.iter().map(|slot| slot.1 + S / 10).max().filter(|_| who == 0);
            asks[who] = free.unwrap_or(again).max(now + 2_000);
        }
        let used = had.iter().filter(|at| **at < begin + 60 * S).count() as f64 / 300.0;
        assert!(used > 0.95, "used to {used:.3}");
    }
}
