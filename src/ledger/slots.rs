//! The verbs of throttles: who may start when, for all workers.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use super::LedgerError;
use crate::throttle::slots::{Answer, Ask, Expected, Limits, Micros, State, Wish, Word};

/// What a throttle is told, and what is asked of it then.
#[derive(Clone, Debug)]
pub struct SlotRequest {
    /// Its name.
    pub throttle: String,
    /// Which of its keys; empty without.
    pub key: String,
    /// What it allows.
    pub limits: Arc<Limits>,
    /// What it is told.
    pub heard: Vec<Word>,
    /// Slots are wanted for these.
    pub wishes: Vec<Wish>,
    /// What the ledger's clock showed when the asker asked last.
    pub seen: Option<Seen>,
}

/// What the ledger's clock showed, and when that was, by a clock that nobody sets.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Not before.
    pub asked: Instant,
    /// Not after.
    pub answered: Instant,
    /// What it showed.
    pub now: Micros,
    /// [`Answer::frame`] of that time.
    pub frame: Micros,
}

/// Clocks differ by one part of so many.
const RATES: i64 = 1_000;

impl Seen {
    /// What it should show when it is read again, after the one time and before the other.
    fn expected(&self, (after, before): (Instant, Instant)) -> Expected {
        let micros = |length: std::time::Duration| i64::try_from(length.as_micros()).unwrap_or(i64::MAX / 4);
        let least = micros(after.saturating_duration_since(self.answered));
        let most = micros(before.saturating_duration_since(self.asked));
        Expected { least: self.now + least - least / RATES, most: self.now + most + most / RATES, frame: self.frame }
    }
}

/// What a throttle answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotAnswer {
    /// The ledger's clock when it was decided.
    pub now: Micros,
    /// What it says.
    pub answer: Answer,
}

/// What is remembered of a throttle.
#[derive(Clone, Debug, PartialEq)]
pub struct ThrottleRow {
    /// Its name.
    pub throttle: String,
    /// Which of its keys; empty without.
    pub key: String,
    /// What it remembers.
    pub state: State,
}

/// Hands out the slots of throttles, for all workers.
#[async_trait]
pub trait Slots {
    /// Asks throttles, in one transaction; one answer for each request.
    ///
    /// # Errors
    /// When it is not known to be written. Then slots may have been handed out, and nobody has them.
    async fn slots(&self, requests: Vec<SlotRequest>) -> Result<Vec<SlotAnswer>, LedgerError>;

    /// What is remembered of throttles, in the order of their names and keys, at most `limit` of each
    /// name.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn throttles(&self, limit: u32) -> Result<Vec<ThrottleRow>, LedgerError>;

    /// Forgets throttles and keys that are as good as new, at most `limit`; answers how many.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn forget_idle(&self, limit: u32) -> Result<usize, LedgerError>;
}

/// Serves a request on what is remembered (pure). The ledger's clock has shown `now` some time between the two
/// of `read`.
pub fn serve(state: &mut State, request: &SlotRequest, now: Micros, read: (Instant, Instant)) -> SlotAnswer {
    for word in &request.heard {
        state.hear(&request.limits, now, word);
    }
    let expected = request.seen.map(|seen| seen.expected(read));
    let answer = state.grant(&request.limits, &Ask { now, expected, wishes: &request.wishes });
    SlotAnswer { now, answer }
}

/// What a row of the table holds. What cannot be read is taken for a throttle that has just handed
/// out all it had, which is forgotten in time, and never for one that has handed out nothing.
pub(super) fn state(text: &str, request: &SlotRequest, now: Micros) -> State {
    serde_json::from_str(text).unwrap_or_else(|error| {
        tracing::warn!(throttle = request.throttle, key = request.key, %error, "what the ledger remembers of a throttle cannot be read");
        let mut state = State::default();
        let until = now + request.limits.longest().as_micros() as Micros;
        let why = "what was remembered of it could not be read".to_owned();
        state.hear(&request.limits, now, &Word::Hold { until, why });
        state
    })
}

/// As a row of the table holds it.
pub(super) fn text(state: &State) -> String {
    serde_json::to_string(state).unwrap_or_default()
}
