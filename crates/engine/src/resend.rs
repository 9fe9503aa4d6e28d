//! The messages of all chains, sent again: for a broker that has none of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use roundelay_config::Config;
use roundelay_ledger::{Hint, Kinds, Ledger, LedgerError, QueueCensus};
use roundelay_model::clock::Time;
use roundelay_model::ids::Epoch;
use roundelay_model::schedule::spread;
use roundelay_model::topology::Names;

use crate::chores::Chores;
use crate::connections::Connections;
use crate::dispatch::Dispatch;

/// Chains read at a time.
const PER_PAGE: u32 = 1_000;
/// Publishes in flight.
const IN_FLIGHT: usize = 256;
/// Chains that are due within this come before those that sleep for longer: to go through very many takes minutes.
const SOON: Duration = Duration::from_secs(120);

/// All chains that tick, page by page: those due by now spread over a window, the others for their own time.
pub(crate) struct Pages<'a> {
    ledger: &'a dyn Ledger,
    queues: Vec<String>,
    kinds: Kinds,
    start: Time,
    after: Epoch,
    nth: usize,
    /// How many are due by now,
    pub(crate) overdue: usize,
    /// and over how long they are spread.
    pub(crate) window: Duration,
    /// How many have been read.
    pub(crate) total: usize,
}

impl<'a> Pages<'a> {
    /// Those of these queues and kinds. `share` is the time from one overdue chain to the next, for at most `most` in all.
    pub(crate) async fn new(
        ledger: &'a dyn Ledger,
        queues: Vec<String>,
        kinds: Kinds,
        (share, most): (Duration, Duration),
    ) -> Self {
        let overdue = counted(ledger, Duration::ZERO, |queue| queue.due + queue.running).await;
        let window = most.min(share.saturating_mul(u32::try_from(overdue).unwrap_or(u32::MAX)));
        let (start, after) = (ledger.now(), Epoch::NONE);
        Self { ledger, queues, kinds, start, after, nth: 0, overdue, window, total: 0 }
    }

    /// The next page, each chain with the time for which it is sent; `None` after the last.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<(Hint, Time)>>, LedgerError> {
        let page = self.ledger.messages(self.queues.clone(), self.kinds.clone(), self.after, PER_PAGE).await?;
        let Some(last) = page.last() else { return Ok(None) };
        self.after = last.epoch;
        self.total += page.len();
        let sends = page.into_iter().map(|hint| {
            let due = hint.due;
            if due > self.start {
                return (hint, due);
            }
            self.nth += 1;
            (hint, self.start + spread(self.nth - 1, self.overdue, self.window))
        });
        Ok(Some(sends.collect()))
    }
}

/// How many chains `of` adds up to over all queues, where those are overdue that should have begun `slack` ago. 0 when they
/// cannot be counted: to go through very many takes a busy ledger long. They are sent faster then, not never.
pub(crate) async fn counted(ledger: &dyn Ledger, slack: Duration, of: impl Fn(&QueueCensus) -> i64) -> usize {
    match ledger.census(slack).await {
        Ok(census) => usize::try_from(census.queues.iter().map(of).sum::<i64>()).unwrap_or(0),
        Err(error) => {
            tracing::warn!(%error, "failed to count overdue chains, so they are sent again faster than wanted");
            0
        }
    }
}

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resent {
    /// Messages of chains.
    pub chains: u64,
    /// Those of them that were due.
    pub overdue: u64,
    /// Messages that could not be sent; catch-up of the workers sends them when they are overdue.
    pub unsent: u64,
}

/// Sends the messages of all chains to the broker, at `broker.bulk_rate`; first of those that are due or soon will be.
/// Workers may run meanwhile: a message too many is stale when it arrives.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn resend_all(config: &Config, connections: &Connections) -> Result<Resent, LedgerError> {
    let (ledger, dispatch) = (&*connections.ledger, Dispatch::new(config, connections));
    let internal = || Chores::kinds().into_iter().map(|(name, _)| name.to_owned());
    let recurring = config.kinds.iter().filter(|(_, kind)| kind.recurrence.is_some()).map(|(name, _)| name.clone());
    let kinds = Kinds {
        all: config.kinds.keys().cloned().chain(internal()).collect(),
        recurring: recurring.chain(internal()).collect(),
    };
    let mut queues: Vec<String> = config.queues.keys().cloned().collect();
    queues.push(Names::new(&config.broker.prefix).chores());
    let (sent, overdue, unsent) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let soon = ledger.now() + SOON;
    for first in [true, false] {
        let share = (crate::catch_up::SHARE, config.catch_up.spread);
        let mut pages = Pages::new(ledger, queues.clone(), kinds.clone(), share).await;
        while let Some(mut page) = pages.next().await? {
            page.retain(|(hint, _)| (hint.due <= soon) == first);
            dispatch
                .pace
                .clone()
                .over(page)
                .for_each_concurrent(IN_FLIGHT, async |(hint, due)| {
                    let envelope = hint.envelope(ledger.id()).due_at(due);
                    let count = match dispatch.send(&envelope, &hint.queue, ledger.now()).await {
                        Ok(()) => &sent,
                        Err(error) => {
                            tracing::debug!(kind = hint.kind, key = hint.key, %error, "a message could not be sent");
                            &unsent
                        }
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                    // It was sent for another time than its own.
                    overdue.fetch_add(u64::from(due != hint.due), Ordering::Relaxed);
                })
                .await;
        }
    }
    Ok(Resent { chains: sent.into_inner(), overdue: overdue.into_inner(), unsent: unsent.into_inner() })
}
