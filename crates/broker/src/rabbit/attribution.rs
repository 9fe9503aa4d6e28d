//! Which publish a returned message belongs to.
//!
//! The broker sends `basic.return` for an unroutable mandatory message, and then confirms it like
//! any other. lapin queues returns and hands the oldest to *whichever confirmation resolves next*.
//! With several publishes in flight, the return of B can ride on the confirmation of A (A is then a
//! *thief*), and B sees a bare acknowledgement, indistinguishable from success. Message ids put
//! this right, provided that a bare acknowledgement is not believed too early:
//!
//! 1. The broker sends B's return before B's acknowledgement. lapin handles frames in order, in
//!    one thread, and every confirmation takes the oldest waiting return, if there is one. So when
//!    B's confirmation resolves bare, B's return has been taken by a confirmation that resolved
//!    *before*, and whose waker has been called before.
//! 2. All publishes of a channel are futures in one `FuturesUnordered`, which polls in the order of
//!    wakes. The thief was woken before B resolved, so it is in the ready queue when B is first
//!    found resolved, or has been polled already. It may be *behind* B in that queue: B might have
//!    been queued earlier for another reason (freshly pushed, or because its frames were written).
//! 3. Therefore a resolved publish first notes the return that it carries, then goes once more to
//!    the tail of the ready queue ([`one_more_round`]), and only then asks [`Returns::claim`]. By
//!    then the thief has been polled and has noted B's return.
//!
//! A thief cannot know its own fate, since its own return may ride on a later one. It is published
//! once more; the same identity twice is harmless.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use lapin::message::BasicReturnMessage;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// A publish: message id, exchange, routing key. Two publishes of one identity to one place can be
/// in flight at once. They are not told apart: whichever of them is said to be unroutable, it is
/// published again.
pub(super) type Key = (String, String, String);

/// A return that was not claimed within this time concerns a publish that was decided without it.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// From this many returns on, old ones are removed.
const MANY: usize = 1_024;

/// The returns that have been seen on a channel and not yet been attributed.
#[derive(Default)]
pub(super) struct Returns(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    published: u64,
    returned: HashMap<Key, Return>,
}

struct Return {
    times: u32,
    /// Publishes numbered beyond this came later, and it does not concern them.
    last: u64,
    at: Instant,
}

impl Returns {
    /// Numbers a publish; called immediately before it is handed to lapin.
    pub(super) fn next_number(&self) -> u64 {
        let mut seen = self.lock();
        seen.published += 1;
        seen.published
    }

    /// Notes a return, whichever confirmation carried it; answers with the publish that it belongs to.
    pub(super) fn note(&self, message: &BasicReturnMessage) -> Key {
        let delivery = &message.delivery;
        let id = delivery.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default();
        let key = (id, delivery.exchange.to_string(), delivery.routing_key.to_string());
        self.insert(key.clone());
        key
    }

    fn insert(&self, key: Key) {
        let mut seen = self.lock();
        let (last, at) = (seen.published, Instant::now());
        if seen.returned.len() >= MANY {
            seen.returned.retain(|_, seen| at.duration_since(seen.at) < FORGET_AFTER);
        }
        let entry = seen.returned.entry(key).or_insert(Return { times: 0, last, at });
        entry.times += 1;
        (entry.last, entry.at) = (last, at);
    }

    /// Whether the publish with this number was returned.
    pub(super) fn claim(&self, number: u64, key: impl FnOnce() -> Key) -> bool {
        let mut seen = self.lock();
        if seen.returned.is_empty() {
            return false;
        }
        let key = key();
        let Some(entry) = seen.returned.get_mut(&key) else { return false };
        let concerned = number <= entry.last;
        entry.times -= 1;
        if !concerned || entry.times == 0 {
            seen.returned.remove(&key);
        }
        concerned
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock()
    }
}

/// Goes to the tail of the ready queue once. (`tokio::task::yield_now` would do it by way of the
/// scheduler, which takes longer.)
pub(super) fn one_more_round() -> impl Future<Output = ()> {
    let mut seen = false;
    poll_fn(move |cx| {
        if std::mem::replace(&mut seen, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> Key {
        (id.into(), "exchange".into(), "key".into())
    }

    #[test]
    fn a_return_is_claimed_once_by_its_own_publish() {
        let returns = Returns::default();
        let (a, b) = (returns.next_number(), returns.next_number());
        returns.insert(key("b"));
        assert!(!returns.claim(a, || key("a")));
        assert!(returns.claim(b, || key("b")));
        assert!(!returns.claim(b, || key("b")));
    }

    #[test]
    fn the_same_id_elsewhere_is_another_publish() {
        let returns = Returns::default();
        let number = returns.next_number();
        returns.insert(key("a"));
        assert!(!returns.claim(number, || ("a".into(), "other".into(), "key".into())));
    }

    #[test]
    fn twins_claim_one_return_each() {
        let returns = Returns::default();
        let (first, second) = (returns.next_number(), returns.next_number());
        returns.insert(key("a"));
        returns.insert(key("a"));
        assert!(returns.claim(second, || key("a")));
        assert!(returns.claim(first, || key("a")));
        assert!(!returns.claim(first, || key("a")));
    }

    #[test]
    fn an_unclaimed_return_does_not_condemn_a_later_publish() {
        let returns = Returns::default();
        returns.next_number();
        returns.insert(key("a"));
        let later = returns.next_number();
        assert!(!returns.claim(later, || key("a")));
        assert!(!returns.claim(1, || key("a")), "it is gone");
    }
}
