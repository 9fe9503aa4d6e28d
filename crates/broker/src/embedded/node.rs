//! The broker's one node: its state behind a lock, the deliveries that follow from a change, and
//! the task that follows the time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

use super::queue::Attached;
use super::state::State;
use crate::embedded::profile::Profile;
use crate::embedded::publish_fault::PublishFault;
use crate::{Delivery, Message};

/// Decides what goes wrong with a publish.
type Hook = Box<dyn FnMut(&Message) -> PublishFault + Send>;

/// The node.
pub(super) struct Node {
    state: Mutex<State>,
    /// Taken before the state is released, so that deliveries are handed over in the order in which
    /// they were decided on.
    handing_over: Mutex<()>,
    /// Wakes the task that follows the time, when an earlier one has come.
    earlier: Arc<Notify>,
    hook: Mutex<Option<Hook>>,
    /// Whether there is a hook, so that publishes without one need not take its lock.
    hooked: AtomicBool,
}

/// Deliveries to hand over once the lock is released: a consumer that has gone drops them, and a
/// dropped delivery takes the lock to go back to its queue. For the same reason consumers are
/// dropped no sooner.
pub(super) struct Outbox<'a> {
    node: &'a Arc<Node>,
    deliveries: Vec<(mpsc::OwnedPermit<Delivery>, Delivery)>,
    buried: Vec<Attached>,
}

impl<'a> Outbox<'a> {
    pub(super) fn node(&self) -> &'a Arc<Node> {
        self.node
    }

    pub(super) fn add(&mut self, permit: mpsc::OwnedPermit<Delivery>, delivery: Delivery) {
        self.deliveries.push((permit, delivery));
    }

    pub(super) fn bury(&mut self, consumers: impl IntoIterator<Item = Attached>) {
        self.buried.extend(consumers);
    }
}

impl Node {
    /// A node that runs. Needs a tokio runtime, which runs its clock.
    pub(super) fn start(profile: Profile) -> Arc<Self> {
        let node = Arc::new(Self {
            state: Mutex::new(State::new(profile)),
            handing_over: Mutex::default(),
            earlier: Arc::default(),
            hook: Mutex::new(None),
            hooked: AtomicBool::new(false),
        });
        tokio::spawn(follow_time(Arc::downgrade(&node)));
        node
    }

    /// The state, to look at.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Changes the state, then hands over the deliveries that follow from it.
    pub(super) fn change<T>(self: &Arc<Self>, f: impl FnOnce(&mut State, &mut Outbox<'_>) -> T) -> T {
        let mut outbox = Outbox { node: self, deliveries: Vec::new(), buried: Vec::new() };
        let (result, earlier, turn) = {
            let mut state = self.lock();
            let before = state.next_alarm();
            let result = f(&mut state, &mut outbox);
            let after = state.next_alarm();
            let earlier = after.is_some_and(|after| before.is_none_or(|before| after < before));
            let turn = (!outbox.deliveries.is_empty()).then(|| self.handing_over.lock());
            (result, earlier, turn)
        };
        let senders: Vec<_> = outbox.deliveries.into_iter().map(|(place, delivery)| place.send(delivery)).collect();
        // The last sender takes what is in its channel along, and a delivery's way back leads here.
        drop(turn);
        drop(senders);
        if earlier {
            self.earlier.notify_one();
        }
        result
    }

    pub(super) fn set_hook(&self, hook: Option<Hook>) {
        let mut place = self.hook.lock();
        self.hooked.store(hook.is_some(), Ordering::Relaxed);
        *place = hook;
    }

    /// What goes wrong with this publish.
    pub(super) fn fault(&self, message: &Message) -> PublishFault {
        if !self.hooked.load(Ordering::Relaxed) {
            return PublishFault::None;
        }
        let mut hook = self.hook.lock();
        hook.as_mut().map_or(PublishFault::None, |hook| hook(message))
    }
}

/// Does what is due: above all, moves what has slept long enough from its rung to where it leads.
async fn follow_time(node: Weak<Node>) {
    loop {
        let Some(node) = node.upgrade() else { return };
        let first = node.change(|state, outbox| {
            state.tick(Instant::now(), outbox);
            state.next_alarm()
        });
        // The node lives as long as a broker or connection holds it, which this task does not while it waits; an hourly
        // look ends the task when none does.
        let at = first.unwrap_or_else(|| Instant::now() + Duration::from_secs(3_600));
        let earlier = node.earlier.clone();
        drop(node);
        tokio::select! {
            biased;
            () = earlier.notified() => {}
            () = sleep_until(at) => {}
        }
    }
}
