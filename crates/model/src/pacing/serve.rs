//! One request for slots, as the ledger serves it: feedback first, then the grant (pure).

use std::sync::Arc;

use super::orders::Orders;
use super::slots::{GrantRequest, GrantResponse, Micros, StartRequest, State};
use crate::pacing::slots::feedback::Feedback;
use crate::pacing::slots::limits::Limits;

/// Feedback for a throttle, and the starts that ask for slots then.
#[derive(Clone, Debug)]
pub struct SlotRequest {
    pub throttle: String,
    /// The value of the throttle's key; empty for a throttle without keys.
    pub key: String,
    /// The configured limits.
    pub limits: Arc<Limits>,
    /// Its times are relative to the request: microseconds from now.
    pub feedback: Vec<Feedback>,
    pub requests: Vec<StartRequest>,
    /// How long answers take: see [`GrantRequest::ahead`].
    pub ahead: Micros,
}

/// The answer to a [`SlotRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotResponse {
    /// The ledger's time of the decision.
    pub now: Micros,
    /// Its times are the ledger's.
    pub answer: GrantResponse,
    /// The limits in force: those that an operator has ordered, or the configured ones.
    pub limits: Arc<Limits>,
    /// The version of the operator's orders that were in force.
    pub orders: i64,
}

/// Serves a request at the ledger's time `now` (pure): applies the orders and the feedback, then grants slots.
///
/// `known_since` is the time since which the ledger's reader can tell how much time has passed, if that is not long
/// ago: see [`crate::clock::Followed::known_since`].
pub fn serve(
    state: &mut State,
    orders: &Orders,
    request: &SlotRequest,
    now: Micros,
    known_since: Option<Micros>,
) -> SlotResponse {
    let limits = orders.limits(&request.limits).into_owned();
    let can_tell = known_since.is_none_or(|since| state.is_known_since(since, now));
    let time = if can_tell { state.turn_to(&limits, now) } else { now };
    state.apply_orders(&limits, time, orders);
    for feedback in &request.feedback {
        state.apply(&limits, time, &feedback.clone().moved(time));
    }
    let (ahead, requests) = (request.ahead, request.requests.as_slice());
    let answer = match can_tell {
        true => state.grant(&limits, &GrantRequest { now: time, ahead, requests }),
        false => state.cannot_tell(time),
    };
    SlotResponse { now, answer, limits, orders: orders.version }
}
