//! How long the ledger's answers take, by those that have come (pure).

use super::slots::{MOST_AHEAD, Micros};

/// With each answer, what is known fades by one part of so many.
const FORGETS: Micros = 32;

/// What a request says as [`super::slots::Ask::ahead`]: slots that open sooner are over when their answer comes.
///
/// The slowest of the last answers counts, but only if the answer next to it was as slow. Between a slot that opens so
/// long ahead and the slot before it there may be room that nobody gets, each time a start asks that has just come. So
/// one answer that was slow because this worker stood still, or because it had to connect, must not count: it would
/// cost all workers of the throttle a second in two until it is forgotten.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latency {
    expected: Micros,
    last: Micros,
}

impl Latency {
    /// An answer has come so long after it was to be asked for.
    pub fn heard(&mut self, took: Micros) {
        let took = took.min(MOST_AHEAD);
        let faded = self.expected - self.expected / FORGETS;
        self.expected = faded.max(took.min(self.last));
        self.last = took;
    }

    /// How long the next answer is to be expected to take.
    pub fn expected(&self) -> Micros {
        self.expected
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::slots::{Ask, LEAD, State, Wish};
    use super::*;
    use crate::pacing::slots::limits::{Limits, Window};

    #[test]
    fn what_is_slow_twice_in_a_row_is_expected_and_fades() {
        let table: [(&[Micros], Micros); 6] = [
            (&[], 0),
            (&[150_000], 0),
            (&[150_000, 140_000], 140_000),
            (&[1_000, 13_000_000, 2_000], 2_000),
            (&[400_000, 400_000, 1_000], 387_500),
            (&[9_000_000, 9_000_000], MOST_AHEAD),
        ];
        for (answers, expected) in table {
            let mut latency = Latency::default();
            answers.iter().for_each(|took| latency.heard(*took));
            assert_eq!(latency.expected(), expected, "{answers:?}");
        }
    }

    /// Two workers, of which one has stood still while it asked. It has one start at a time, which runs for a tenth of a
    /// second; the other has always enough.
    #[test]
    fn a_worker_that_has_stood_still_costs_the_others_nothing() {
        const S: Micros = 1_000_000;
        let begin = 1_790_000_000 * S;
        let limits = Limits { window: Window { allow: 5, per: Duration::from_secs(1) }, burst: 1, also: Vec::new() };
        let (mut state, mut latency) = (State::default(), Latency::default());
        [2_000, 2_000, 13 * S, 2_000].into_iter().for_each(|took| latency.heard(took));
        let wish = Wish { priority: 0, cost: 1, probe: false };
        let (mut asks, mut had) = ([begin, begin], Vec::new());
        while asks[0].min(asks[1]) < begin + 60 * S {
            let who = usize::from(asks[1] < asks[0]);
            let (ahead, wishes) = if who == 0 { (latency.expected(), 1) } else { (0, 4) };
            let now = asks[who];
            let answer = state.grant(&limits, &Ask { now, ahead, wishes: &vec![wish; wishes] });
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
