//! Lists of chains, a row each.

use roundelay_config::{Config, INTERNAL, is_internal};
use roundelay_engine::holds::Holds;
use roundelay_engine::overslept;
use roundelay_engine::overslept::{by_name, schedules};
use roundelay_ledger::{
    AttemptRecord, ChainFilter, ChainState, Condition, Cursor, EFFORT, Found, LateCursor, Ledger, LedgerError,
    ListFilter, Listed,
};
use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, TickNo};
use roundelay_model::wall_clock::{At, WallClock};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::format::{doing_of, schedule, shown_nominal, word};

/// How many recent attempts a row has.
const RECENT: u32 = 12;

/// A chain in a list.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChainRow {
    /// The kind, which names the handler.
    pub kind: String,
    /// The key of the entity.
    pub key: String,
    /// The platform queue of the chain.
    pub queue: String,
    /// The incarnation of the chain.
    #[schema(value_type = i64)]
    pub epoch: Epoch,
    /// The number of the tick that is next, or runs.
    #[schema(value_type = i64)]
    pub tick: TickNo,
    /// The attempt at that tick.
    pub attempt: u32,
    /// The owner of the chain.
    pub owner: Option<String>,
    /// active, paused, retired or quarantined.
    pub state: &'static str,
    /// The state, or, for an active chain, the part of it: sleeps, due, late, held, runs or gathers.
    pub doing: &'static str,
    /// When the tick is due, or was.
    pub due: At,
    /// When the tick is nominally due: without jitter and without the delay of retries.
    pub nominal: At,
    /// When a run last started.
    pub last_start: Option<At>,
    /// When a run last ended.
    pub last_finish: Option<At>,
    /// How late the tick is in milliseconds, if it is due or held and does not run.
    pub lag_ms: u64,
    /// The schedule, in words.
    pub schedule: Option<String>,
    /// The chain's own schedule, as it was set.
    #[schema(value_type = Option<Object>)]
    pub own_schedule: Option<Value>,
    /// Why the entity is unavailable, if a run has ended the chain for that.
    pub unavailable: Option<String>,
    /// The batch for whose end the tick waits.
    pub batch: Option<Batch>,
    /// The last attempts, the oldest first.
    pub recent: Vec<Recent>,
}

/// The jobs for whose end a tick waits.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct Batch {
    /// How many have not ended.
    pub open: i64,
    /// How many there are.
    pub total: i64,
}

impl Batch {
    /// From the two counts that the ledger keeps.
    pub fn of((open, total): (i64, i64)) -> Option<Self> {
        (total > 0).then_some(Self { open, total })
    }
}

/// An attempt, in short.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Recent {
    /// How the attempt ended; nothing while it runs.
    pub verdict: Option<String>,
    /// When the attempt started.
    pub started: At,
    /// How long the attempt took, in milliseconds.
    pub took_ms: Option<u64>,
    /// How late the attempt started, in milliseconds.
    pub late_ms: u64,
}

impl Recent {
    fn of(record: AttemptRecord, wall_clock: &WallClock) -> Self {
        let AttemptRecord { verdict, started, finished, due, .. } = record;
        let millis = |to: Time, from: Time| u64::try_from(to.since(from).as_millis()).unwrap_or(u64::MAX);
        let took_ms = finished.map(|end| millis(end, started));
        Self { verdict, started: At::of(started, wall_clock), took_ms, late_ms: millis(started, due) }
    }
}

impl ChainRow {
    /// From a listed chain, without its attempts.
    pub fn new(chain: Listed, config: &Config, holds: &Holds, (now, wall_clock): (Time, &WallClock)) -> Self {
        let overslept = overslept::since(&chain, &schedules(config), (now, wall_clock));
        let doing = doing_of(&chain, config, holds, (now, wall_clock));
        let schedule = schedule(&chain.hint.kind, chain.schedule.as_deref(), config);
        let Listed { hint, state, nominal, owner, schedule: own, last_start, last_finish, batch, unavailable, .. } =
            chain;
        let waits = matches!(doing, "due" | "late" | "held");
        let lag = if waits { now.since(overslept.unwrap_or(hint.due)) } else { Default::default() };
        Self {
            state: word(state),
            doing,
            due: At::of(hint.due, wall_clock),
            nominal: At::wall(shown_nominal((&hint.kind, &hint.key), nominal, own.as_deref(), config, wall_clock)),
            last_start: At::known(last_start, wall_clock),
            last_finish: At::known(last_finish, wall_clock),
            lag_ms: u64::try_from(lag.as_millis()).unwrap_or(u64::MAX),
            schedule,
            own_schedule: own.as_deref().and_then(|own| serde_json::from_str(own).ok()),
            unavailable,
            batch: Batch::of(batch),
            recent: Vec::new(),
            owner,
            kind: hint.kind,
            key: hint.key,
            queue: hint.queue,
            epoch: hint.epoch,
            tick: hint.tick,
            attempt: hint.attempt,
        }
    }
}

/// A search for chains.
#[derive(Clone, Debug, Default)]
pub struct ChainSearch {
    /// Chains of this kind.
    pub kind: Option<String>,
    /// Chains of this owner.
    pub owner: Option<String>,
    /// Chains of this platform queue.
    pub queue: Option<String>,
    /// Chains whose key contains this text, or, if the text has `*` or `?`, matches it as a pattern.
    pub text: Option<String>,
    /// Chains in this state.
    pub state: Option<State>,
    /// Whether the engine's own chains are among them.
    pub own: Own,
}

/// What a list has of the engine's own chains, whose kinds begin with `roundelay.`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum Own {
    /// They are in the list with the others.
    #[default]
    #[serde(rename = "true")]
    Too,
    /// They are left out.
    #[serde(rename = "false")]
    Not,
    /// The list has nothing else.
    #[serde(rename = "only")]
    Only,
}

impl Own {
    /// The queue that the list is about, where `queue` was asked for and the engine's own chains are on `chores`.
    pub fn of(self, queue: Option<String>, chores: &str) -> Option<String> {
        queue.or_else(|| (self == Self::Only).then(|| chores.to_owned()))
    }

    /// The queue that the list leaves out.
    pub fn except(self, chores: String) -> Option<String> {
        (self == Self::Not).then_some(chores)
    }

    /// The queues that the list is about.
    fn queues(self, config: &Config) -> Vec<String> {
        let others = config.queues.keys().filter(|_| self != Self::Only).cloned();
        others.chain((self != Self::Not).then(|| config.topology().names.chores())).collect()
    }
}

/// The state of chains to search for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The chains tick.
    Active,
    /// An operator has paused the chains.
    Paused,
    /// The chains have ended.
    Retired,
    /// Workers died over the chains, or their messages were ahead of the ledger.
    Quarantined,
    /// The chains are due for longer than `catch_up.slack`, and no worker runs them; or they sleep for longer than
    /// their schedules can explain. Held chains are not late.
    Late,
    /// The chains are due, and an operator lets nothing of their queue start.
    Held,
    /// A worker runs the chains.
    Running,
}

impl ChainSearch {
    /// As a filter of the ledger, at `now`.
    pub fn filter(&self, config: &Config, now: Time) -> ListFilter {
        // An empty field of a form is as good as absent.
        let said = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let pattern = |text: String| if text.contains(['*', '?']) { text } else { format!("*{text}*") };
        let which = ChainFilter {
            kind: said(&self.kind),
            key: None,
            owner: said(&self.owner),
            like: said(&self.text).map(pattern),
            queue: self.own.of(said(&self.queue), &config.topology().names.chores()),
            late_before: match self.state {
                Some(State::Late) => Some(now - config.catch_up.slack),
                // What is due is held at once.
                Some(State::Held) => Some(now),
                _ => None,
            },
            state: None,
        };
        let condition = match self.state {
            None | Some(State::Late | State::Held) => None,
            Some(State::Active) => Some(Condition::State(ChainState::Active)),
            Some(State::Paused) => Some(Condition::State(ChainState::Paused)),
            Some(State::Retired) => Some(Condition::State(ChainState::Retired)),
            Some(State::Quarantined) => Some(Condition::State(ChainState::Quarantined)),
            Some(State::Running) => Some(Condition::Running),
        };
        ListFilter { which, condition }
    }
}

impl ChainSearch {
    /// As a filter for a change; nothing if the state is one that cannot be used, because running chains change all the
    /// time.
    pub fn which(&self, config: &Config, now: Time) -> Option<ChainFilter> {
        let ListFilter { which, condition } = self.filter(config, now);
        match condition {
            None => Some(which),
            Some(Condition::State(state)) => Some(ChainFilter { state: Some(state), ..which }),
            Some(Condition::Running) => None,
        }
    }
}

/// Searches for chains: one page, each with its last attempts.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn page(
    sought: &ChainSearch,
    after: Option<Cursor>,
    limit: u32,
    config: &Config,
    ledger: &dyn Ledger,
) -> Result<Found<ChainRow, Cursor>, LedgerError> {
    let (now, wall_clock) = (ledger.now(), ledger.wall_clock());
    let filter = sought.filter(config, now);
    // The ledger's order is that of kinds, so the engine's own chains are all at one place.
    let own = (sought.own == Own::Only && sought.kind.is_none()).then(|| (INTERNAL.to_owned(), String::new()));
    let after = after.max(own);
    let Found { mut found, after: on, complete } = ledger.search(filter.clone(), after.clone(), limit, EFFORT).await?;
    let (mut more, mut complete) = (on, complete);
    found.retain(|chain| sought.own != Own::Not || !is_internal(&chain.hint.kind));
    if sought.own == Own::Only && more.as_ref().is_some_and(|(kind, _)| !is_internal(kind)) {
        (more, complete) = (None, true);
    }
    if matches!(sought.state, Some(State::Late | State::Held)) {
        let slept = overslept::look(ledger, sought.own.queues(config), &schedules(config)).await?;
        let fitting = found.len() + slept.len();
        let mut late = overslept::among(found, slept, &filter, (after.as_ref(), more.as_ref()), fitting, by_name);
        if late.len() > limit as usize {
            // The rows behind the limit come with the next page, which begins after the last row of this one.
            late.truncate(limit as usize);
            more = late.last().map(|(place, _)| place.clone());
            complete = true;
        }
        found = late.into_iter().map(|(_, chain)| chain).collect();
    }
    // Which of the two a chain is follows from orders that the ledger's index does not know.
    let word = match sought.state {
        Some(State::Late) => Some("late"),
        Some(State::Held) => Some("held"),
        _ => None,
    };
    let holds = Holds::look(config, ledger).await?;
    let read = found.len();
    found.retain(|chain| word.is_none_or(|word| doing_of(chain, config, &holds, (now, &wall_clock)) == word));
    complete &= found.len() == read || more.is_none();
    Ok(Found { found: rows(found, config, &holds, ledger, (now, &wall_clock)).await?, after: more, complete })
}

/// Searches for late chains, the longest overdue first: one page, each with its last attempts. The state that is sought
/// does not matter. `counting` is a connection for slow queries: the ledger goes through all chains.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn longest_late(
    sought: &ChainSearch,
    after: Option<LateCursor>,
    limit: u32,
    config: &Config,
    (ledger, counting): (&dyn Ledger, &dyn Ledger),
) -> Result<Found<ChainRow, LateCursor>, LedgerError> {
    let (now, wall_clock) = (ledger.now(), ledger.wall_clock());
    let sought = ChainSearch { state: Some(State::Late), ..sought.clone() };
    let filter = sought.filter(config, now);
    let holds = Holds::look(config, ledger).await?;
    let mut except = holds.queues();
    except.extend(sought.own.except(config.topology().names.chores()));
    let found = counting.longest_late(filter.clone(), except, after, limit).await?;
    let last = found.last().map(|last| overslept::by_lateness(last, last.hint.due));
    let mut more = last.filter(|_| found.len() >= limit as usize);
    let mut slept = overslept::look(ledger, sought.own.queues(config), &schedules(config)).await?;
    slept.retain(|of| holds.get(&of.chain.hint.queue).is_none());
    let fitting = found.len() + slept.len();
    let mut late =
        overslept::among(found, slept, &filter, (after.as_ref(), more.as_ref()), fitting, overslept::by_lateness);
    if late.len() > limit as usize {
        late.truncate(limit as usize);
        more = late.last().map(|(place, _)| *place);
    }
    let found = late.into_iter().map(|(_, chain)| chain).collect();
    Ok(Found { found: rows(found, config, &holds, ledger, (now, &wall_clock)).await?, after: more, complete: true })
}

/// Listed chains as rows, each with its last attempts.
async fn rows(
    chains: Vec<Listed>,
    config: &Config,
    holds: &Holds,
    ledger: &dyn Ledger,
    at: (Time, &WallClock),
) -> Result<Vec<ChainRow>, LedgerError> {
    let histories = ledger.histories(chains.iter().map(|chain| chain.fence).collect(), RECENT).await?;
    let rows = chains.into_iter().zip(histories).map(|(chain, history)| ChainRow {
        recent: history.into_iter().rev().map(|record| Recent::of(record, at.1)).collect(),
        ..ChainRow::new(chain, config, holds, at)
    });
    Ok(rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_a_part_of_the_key_unless_it_is_a_pattern() {
        let config = Config::parse("", "r.toml", []).unwrap();
        let like = |text: &str| {
            let sought = ChainSearch { text: Some(text.into()), kind: Some(String::new()), ..ChainSearch::default() };
            let filter = sought.filter(&config, Time::from_millis(0));
            assert_eq!((filter.which.kind, filter.condition), (None, None), "an empty field says nothing");
            filter.which.like
        };
        assert_eq!(like("app-1").as_deref(), Some("*app-1*"));
        assert_eq!(like("eu/*").as_deref(), Some("eu/*"));
        assert_eq!(like(""), None);
        let late = ChainSearch { state: Some(State::Late), ..ChainSearch::default() };
        let now = Time::from_millis(1_000_000);
        assert_eq!(late.filter(&config, now).which.late_before, Some(now - config.catch_up.slack));
    }
}
