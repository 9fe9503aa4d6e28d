//! What a throttle is asked, and how it answers on what is remembered and ordered of it (pure).

use std::sync::Arc;

use super::orders::Orders;
use super::slots::{Answer, Ask, Micros, State, Wish};
use crate::pacing::slots::limits::Limits;
use crate::pacing::slots::told::Word;

/// What a throttle is told, and what is asked of it then.
#[derive(Clone, Debug)]
pub struct SlotRequest {
    /// Its name.
    pub throttle: String,
    /// Which of its keys; empty without.
    pub key: String,
    /// What the configuration allows.
    pub limits: Arc<Limits>,
    /// What it is told, with times from now.
    pub heard: Vec<Word>,
    /// Slots are wanted for these.
    pub wishes: Vec<Wish>,
    /// How long answers take: see [`Ask::ahead`].
    pub ahead: Micros,
}

/// What a throttle answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotAnswer {
    /// The ledger's time when it was decided.
    pub now: Micros,
    /// What it says, with times of the ledger.
    pub answer: Answer,
    /// What is allowed: by an operator's word, or else as configured.
    pub limits: Arc<Limits>,
    /// The version of the operator's orders by which it was decided.
    pub orders: i64,
}

/// Serves a request on what is remembered and ordered, at `now` of the ledger (pure). `known_since` is since when the
/// ledger can tell here how much time has passed, if that is not for long: see [`crate::clock::Followed::known_since`].
pub fn serve(
    state: &mut State,
    orders: &Orders,
    request: &SlotRequest,
    now: Micros,
    known_since: Option<Micros>,
) -> SlotAnswer {
    let limits = orders.limits(&request.limits).into_owned();
    let can_tell = known_since.is_none_or(|since| state.is_known_since(since, now));
    let time = if can_tell { state.turn_to(&limits, now) } else { now };
    state.obey(&limits, time, orders);
    for word in &request.heard {
        state.hear(&limits, time, &word.clone().moved(time));
    }
    let (ahead, wishes) = (request.ahead, request.wishes.as_slice());
    let answer = match can_tell {
        true => state.grant(&limits, &Ask { now: time, ahead, wishes }),
        false => state.cannot_tell(time),
    };
    SlotAnswer { now, answer, limits, orders: orders.version }
}
