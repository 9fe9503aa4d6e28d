//! The chains whose messages this worker has in hand.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use roundelay_model::ids::Epoch;

/// Epochs of chains whose messages this worker holds, with how many of them.
#[derive(Default)]
pub(crate) struct Hands(Mutex<HashMap<Epoch, Held>>);

/// Notes, while it lives, that a message of this chain is in this worker's hand.
pub(crate) struct InHand<'a> {
    pub(crate) hands: &'a Hands,
    pub(crate) epoch: Epoch,
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
}

/// The messages of one chain in this worker's hand.
#[derive(Default)]
pub(crate) struct Held {
    pub(crate) messages: u32,
    /// Held while one of them asks for its claim: a claim whose answer was lost may be made again only while no other
    /// message can have claimed the tick.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
}

impl Hands {
    pub(crate) fn take(&self, epoch: Epoch) -> InHand<'_> {
        let mut held = self.0.lock();
        let held = held.entry(epoch).or_default();
        held.messages += 1;
        InHand { hands: self, epoch, turn: held.turn.clone() }
    }

    /// How many messages of this chain are in this worker's hand.
    pub(crate) fn count(&self, epoch: Epoch) -> u32 {
        let held = self.0.lock();
        held.get(&epoch).map_or(0, |held| held.messages)
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        let mut held = self.hands.0.lock();
        if let Some(of_chain) = held.get_mut(&self.epoch) {
            of_chain.messages -= 1;
            if of_chain.messages == 0 {
                held.remove(&self.epoch);
            }
        }
    }
}
