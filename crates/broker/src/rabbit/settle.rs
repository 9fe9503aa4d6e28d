//! Settling deliveries, many with one frame where that can be.
//!
//! A worker reports what becomes of a delivery and goes on. One task for each channel writes the settlements: those
//! that came while the last frame was on its way are written together. An acknowledgement can stand for all deliveries
//! up to its own, which spares the broker an entry of the queue's log for each of them; those that end out of order,
//! because an earlier one still runs, are acknowledged one by one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use lapin::{Acker, Channel};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use tracing::debug;

use super::connection::in_words;

/// How long the broker may take to confirm the closing of a channel.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// The most deliveries that are settled together.
const MAX_ACKS_TOGETHER: usize = 1_024;

/// What is to become of a delivery.
pub(super) struct Settlement {
    tag: u64,
    acker: Acker,
    fate: Fate,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Acknowledged,
    Requeued,
}

/// The settlements that are not written yet, on all channels.
#[derive(Clone, Default)]
pub(super) struct Backlog(Arc<(AtomicUsize, Notify)>);

impl Backlog {
    /// Waits until all settlements that were reported before are written.
    pub(super) async fn written(&self) {
        let (count, none) = &*self.0;
        loop {
            let mut gone = std::pin::pin!(none.notified());
            gone.as_mut().enable();
            if count.load(Ordering::Acquire) == 0 {
                return;
            }
            gone.await;
        }
    }

    fn add(&self) {
        self.0.0.fetch_add(1, Ordering::Relaxed);
    }

    fn remove(&self, settlements: usize) {
        let (count, none) = &*self.0;
        if count.fetch_sub(settlements, Ordering::Release) == settlements {
            none.notify_waiters();
        }
    }
}

/// Where the settlements of a channel go.
#[derive(Clone)]
pub(super) struct Desk {
    sender: mpsc::UnboundedSender<Settlement>,
    backlog: Backlog,
}

impl Desk {
    /// Starts to write the settlements of a channel. When the last of those who can send one has gone, everything
    /// is written and the channel closed.
    pub(super) fn open(channel: Channel, backlog: Backlog) -> Self {
        let (sender, mut said) = mpsc::unbounded_channel();
        let theirs = backlog.clone();
        tokio::spawn(async move {
            let (mut together, mut settled) = (Vec::new(), Settled::default());
            while said.recv_many(&mut together, MAX_ACKS_TOGETHER).await > 0 {
                write(&mut together, &mut settled).await;
                theirs.remove(together.drain(..).len());
            }
            if channel.status().connected() {
                let _ = timeout(CLOSE_WITHIN, channel.close(200, "all settled".into())).await;
            }
        });
        Self { sender, backlog }
    }

    /// How many deliveries are not settled yet.
    pub(super) fn in_hand(&self) -> usize {
        self.sender.strong_count() - 1
    }
}

/// A delivery that waits to be settled. Dropped unsettled (its worker panicked, say), it is put
/// back, for otherwise it would hold its share of the prefetch as long as the channel lives.
pub(super) struct Unsettled {
    tag: u64,
    acker: Option<Acker>,
    desk: Desk,
}

impl Unsettled {
    /// The delivery with this number on its channel, whose settlements `desk` writes.
    pub(super) fn new(tag: u64, acker: Acker, desk: Desk) -> Self {
        Self { tag, acker: Some(acker), desk }
    }

    fn settle(&mut self, fate: Fate) {
        let Some(acker) = self.acker.take() else { return };
        self.desk.backlog.add();
        if self.desk.sender.send(Settlement { tag: self.tag, acker, fate }).is_err() {
            // The runtime ends, and the broker delivers again what is unsettled then.
            self.desk.backlog.remove(1);
        }
    }
}

#[async_trait::async_trait]
impl crate::Settle for Unsettled {
    fn is_alive(&self) -> bool {
        self.acker.as_ref().is_some_and(Acker::usable)
    }

    /// Does not wait until it is written; closing the broker does.
    async fn ack(mut self: Box<Self>) {
        self.settle(Fate::Acknowledged);
    }

    async fn requeue(mut self: Box<Self>) {
        self.settle(Fate::Requeued);
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        self.settle(Fate::Requeued);
    }
}

/// Writes settlements together.
async fn write(together: &mut [Settlement], settled: &mut Settled) {
    together.sort_unstable_by_key(|one| one.tag);
    let with = |fate| together.iter().filter(move |one| one.fate == fate);
    let frames = settled.acknowledge(&with(Fate::Acknowledged).map(|one| one.tag).collect::<Vec<_>>());
    let mut ackers = with(Fate::Acknowledged);
    // Both are in the order of their numbers.
    let acks = frames.into_iter().filter_map(|(tag, multiple)| Some((ackers.find(|one| one.tag == tag)?, multiple)));
    let acks = acks.map(async |(one, multiple)| said("ack", one.acker.ack(BasicAckOptions { multiple }).await));
    join_all(acks).await;
    join_all(with(Fate::Requeued).map(|one| requeue(&one.acker))).await;
    // Counted only now that they are written: an acknowledgement of more than one must not overtake one of them.
    with(Fate::Requeued).for_each(|one| settled.put_back(one.tag));
}

/// Puts a delivery back at once.
pub(super) async fn requeue(acker: &Acker) {
    said("requeue", acker.nack(BasicNackOptions { multiple: false, requeue: true }).await);
}

/// A settlement that fails has no consequence here: the channel is gone, and the broker delivers
/// the message again.
fn said(verb: &str, result: lapin::Result<bool>) {
    match result {
        Ok(true) => {}
        Ok(false) => debug!(verb, "the channel of a delivery is gone; the broker delivers it again"),
        Err(error) => debug!(verb, error = %in_words(&error), "failed to settle; the broker delivers it again"),
    }
}

/// Which deliveries of a channel have been settled (pure). They are numbered from 1.
#[derive(Debug, Default)]
struct Settled {
    /// All up to this one.
    up_to: u64,
    /// Of those beyond: the first and the last of each that follow one another. While one delivery is open for
    /// long, those behind it become few of these.
    beyond: BTreeMap<u64, u64>,
}

impl Settled {
    /// The frames that acknowledge these deliveries, given in the order of their numbers and written so: whose
    /// number each has, and whether it stands for all before it too. A frame names a delivery that is not settled
    /// yet, since the broker closes the channel for any other.
    fn acknowledge(&mut self, tags: &[u64]) -> Vec<(u64, bool)> {
        tags.iter().for_each(|tag| self.add(*tag));
        self.advance();
        let in_turn = tags.partition_point(|tag| *tag <= self.up_to);
        let (in_turn, others) = tags.split_at(in_turn);
        let first = in_turn.last().map(|last| (*last, in_turn.len() > 1));
        first.into_iter().chain(others.iter().map(|tag| (*tag, false))).collect()
    }

    /// This delivery has been put back.
    fn put_back(&mut self, tag: u64) {
        self.add(tag);
        self.advance();
    }

    fn add(&mut self, tag: u64) {
        let last = self.beyond.remove(&(tag + 1)).unwrap_or(tag);
        match self.beyond.range_mut(..tag).next_back() {
            Some((_, before)) if *before + 1 == tag => *before = last,
            _ => drop(self.beyond.insert(tag, last)),
        }
    }

    fn advance(&mut self) {
        while let Some(first) = self.beyond.first_entry().filter(|first| *first.key() == self.up_to + 1) {
            self.up_to = first.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_ends_in_turn_is_acknowledged_together_and_the_rest_one_by_one() {
        let mut settled = Settled::default();
        let one = |tag| (tag, false);
        let all_up_to = |tag| (tag, true);
        assert_eq!(settled.acknowledge(&[]), []);
        assert_eq!(settled.acknowledge(&[1]), [one(1)]);
        assert_eq!(settled.acknowledge(&[2, 3, 4]), [all_up_to(4)]);
        // 5 still runs.
        assert_eq!(settled.acknowledge(&[6, 7]), [one(6), one(7)]);
        // What it had held up has been acknowledged already.
        assert_eq!(settled.acknowledge(&[5]), [one(5)]);
        assert_eq!(settled.acknowledge(&[8, 9, 11]), [all_up_to(9), one(11)]);
        // 10 goes back to its queue, and does not hold up those behind it.
        settled.put_back(10);
        assert_eq!(settled.acknowledge(&[12, 13]), [all_up_to(13)]);
        // However many end while 14 runs, they are remembered as one, whatever their order.
        for tags in [[15, 16, 19], [17, 22, 23], [18, 20, 21]] {
            assert_eq!(settled.acknowledge(&tags), tags.map(one));
        }
        assert_eq!(settled.beyond, BTreeMap::from([(15, 23)]));
        assert_eq!(settled.acknowledge(&[14, 24]), [all_up_to(24)]);
    }

    /// What the broker does with an acknowledgement.
    fn acknowledged_by(frames: &[(u64, bool)], unsettled: &mut BTreeSet<u64>) -> Vec<u64> {
        let mut done = Vec::new();
        for (tag, multiple) in frames {
            assert!(unsettled.contains(tag), "the broker closes the channel: {tag} is settled");
            let these: Vec<u64> = unsettled.iter().copied().filter(|t| t == tag || (*multiple && t < tag)).collect();
            unsettled.retain(|t| !these.contains(t));
            done.extend(these);
        }
        done
    }

    proptest! {
        /// Whatever the order in which they end, each is acknowledged that was worked, and none that was not.
        #[test]
        fn each_is_settled_as_was_said(
            order in Just((1..=40_u64).collect::<Vec<_>>()).prop_shuffle(),
            cuts in prop::collection::vec(1..6_usize, 40),
            back in prop::collection::btree_set(1..=40_u64, 0..6),
        ) {
            let (mut settled, mut unsettled) = (Settled::default(), (1..=40).collect::<BTreeSet<u64>>());
            let (mut rest, mut frames) = (order.as_slice(), 0);
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                rest = later;
                let (put_back, mut worked): (Vec<u64>, Vec<u64>) = now.iter().partition(|tag| back.contains(tag));
                worked.sort_unstable();
                let written = settled.acknowledge(&worked);
                frames += written.len();
                let done: BTreeSet<u64> = acknowledged_by(&written, &mut unsettled).into_iter().collect();
                prop_assert_eq!(done, worked.into_iter().collect::<BTreeSet<_>>());
                for tag in put_back {
                    unsettled.remove(&tag);
                    settled.put_back(tag);
                }
            }
            prop_assert!(unsettled.is_empty() && rest.is_empty());
            prop_assert_eq!((settled.up_to, settled.beyond.len()), (40, 0));
            prop_assert!(frames <= 40);
        }
    }
}
