//! What is noted of a chain besides its runs: what was sent, when catch-up looks again, what failed.

use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::failure::FailedItem;

use super::Decide;
use super::page::{Page, Wanted};
use crate::catch_up::LookAgain;
use crate::chain::Sent;

/// [`crate::Protocol::mark_sent`], and with `slack` [`crate::Protocol::enrolled_sent`]
pub(crate) struct MarkSent {
    pub(crate) sent: Vec<Sent>,
    pub(crate) slack: Option<Duration>,
}

impl Decide for MarkSent {
    type Answer = ();

    fn wants(&self, wanted: &mut Wanted) {
        self.sent.iter().for_each(|sent| wanted.epoch(sent.epoch, false));
    }

    fn decide(&self, page: &mut Page) {
        for sent in &self.sent {
            let Some(held) = page.epoch(sent.epoch).filter(|held| held.is_at(sent)) else { continue };
            held.moved |= !held.chain.sent;
            held.chain.sent = true;
            if let Some(slack) = self.slack {
                held.watch_at = sent.due + slack;
                held.moved = true;
            }
        }
    }
}

/// [`crate::CatchUp::look_again`]
pub(crate) struct Look(pub(crate) Vec<LookAgain>);

impl Decide for Look {
    type Answer = Vec<bool>;

    fn wants(&self, wanted: &mut Wanted) {
        self.0.iter().for_each(|look| wanted.epoch(look.epoch, false));
    }

    fn decide(&self, page: &mut Page) -> Vec<bool> {
        let mut write = |look: &LookAgain| match page.epoch(look.epoch) {
            Some(held) if held.watch_at == look.from => {
                (held.watch_at, held.looks) = (look.to, look.looks);
                held.expected = look.expected.unwrap_or(held.expected);
                held.moved = true;
                true
            }
            _ => false,
        };
        self.0.iter().map(&mut write).collect()
    }
}

/// [`crate::Failures::record_failure`]
pub(crate) struct RecordFailure {
    pub(crate) kind: String,
    pub(crate) key: String,
    pub(crate) failed: FailedItem,
    pub(crate) at: Time,
}

impl Decide for RecordFailure {
    type Answer = ();

    fn wants(&self, _: &mut Wanted) {}

    fn decide(&self, page: &mut Page) {
        page.failed(&self.kind, &self.key, &self.failed, self.at);
    }
}

/// Writes nothing itself: its caller waits for the commit that covers the notes before it.
#[cfg(feature = "postgres")]
pub(crate) struct Flush;

#[cfg(feature = "postgres")]
impl Decide for Flush {
    type Answer = ();

    fn wants(&self, _: &mut Wanted) {}

    fn decide(&self, _: &mut Page) {}
}
