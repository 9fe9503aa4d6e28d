//! The record of an upstream: all calls, or the newest ones, since an upstream without a worker may run for days.

use std::collections::{BTreeSet, VecDeque};

use roundelay_model::clock::Time;
use serde_json::Value;

/// How many calls an upstream without a worker keeps: a busy one's of hours, in some dozens of megabytes.
pub const ALONE: usize = 100_000;

/// Keeps all items, or only the newest of them.
#[derive(Debug)]
pub struct Newest<T> {
    most: Option<usize>,
    items: VecDeque<T>,
    left_out: u64,
}

impl<T> Default for Newest<T> {
    fn default() -> Self {
        Self::new(None)
    }
}

impl<T> Newest<T> {
    /// Keeps at most `most` items; with `None`, all.
    pub fn new(most: Option<usize>) -> Self {
        Self { most, items: VecDeque::new(), left_out: 0 }
    }

    /// Adds an item; answers its ticket, with which [`Self::get_mut`] finds it as long as it is kept.
    pub fn push(&mut self, item: T) -> u64 {
        self.items.push_back(item);
        if self.most.is_some_and(|most| self.items.len() > most) {
            self.items.pop_front();
            self.left_out += 1;
        }
        (self.left_out + self.items.len() as u64).saturating_sub(1)
    }

    /// The item with this ticket; `None` when it is not kept any more.
    pub fn get_mut(&mut self, ticket: u64) -> Option<&mut T> {
        let place = ticket.checked_sub(self.left_out)?;
        self.items.get_mut(usize::try_from(place).ok()?)
    }

    /// The kept items, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        self.items.iter()
    }

    /// How many items are not kept any more.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

impl<T: Clone> Newest<T> {
    /// A copy of the kept items, the oldest first.
    pub fn snapshot(&self) -> Vec<T> {
        self.items.iter().cloned().collect()
    }
}

/// How many of these keys had come before.
pub fn repeated<K: Ord>(keys: impl Iterator<Item = K>) -> u64 {
    let mut seen = BTreeSet::new();
    keys.map(|key| u64::from(!seen.insert(key))).sum()
}

/// Adds to `figures` how many items of a record are missing, if any are, and when the oldest kept one was.
pub fn tell_left_out(figures: &mut Value, left_out: u64, oldest: Option<Time>) {
    if left_out > 0 {
        figures["left_out"] = left_out.into();
        figures["judged_from"] = oldest.map(|oldest| oldest.to_string()).into();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_oldest_is_left_out_and_tickets_stay() {
        for (most, kept, left_out) in [(None, &[10, 11, 12, 13][..], 0), (Some(2), &[12, 13], 2), (Some(0), &[], 4)] {
            let mut newest = Newest::new(most);
            let tickets: Vec<u64> = (10..14).map(|item| newest.push(item)).collect();
            assert_eq!(newest.snapshot(), kept, "{most:?}");
            assert_eq!(newest.left_out(), left_out, "{most:?}");
            for (ticket, item) in tickets.iter().zip(10..14) {
                let found = newest.get_mut(*ticket).map(|item| *item);
                assert_eq!(found, kept.contains(&item).then_some(item), "{item} of {most:?}");
            }
        }
    }

    #[test]
    fn what_comes_again_is_counted() {
        assert_eq!(repeated([1, 2, 1, 3, 1].iter()), 2);
        assert_eq!(repeated([1, 2, 3].iter()), 0);
    }

    #[test]
    fn what_was_left_out_is_told() {
        let told = |left_out| {
            let mut figures = json!({ "calls": 3 });
            tell_left_out(&mut figures, left_out, Some(Time::from_millis(1_800_000_000_000)));
            figures
        };
        assert_eq!(told(0), json!({ "calls": 3 }));
        assert_eq!(told(7), json!({ "calls": 3, "left_out": 7, "judged_from": "2027-01-15T08:00:00.000Z" }));
    }
}
