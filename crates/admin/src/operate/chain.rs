//! Verbs on chains: pause, resume, retire, begin anew, bring forward, run one more time.

use std::fmt;

use roundelay_config::Config;
use roundelay_engine::enroll::{Enroller, RunOnce};
use roundelay_engine::reschedule::Rescheduler;
use roundelay_engine::{Connections, reschedule};
use roundelay_ledger::{ChainFilter, ChainOrder, ChainState, Ledger};
use roundelay_model::job::RunNow;
use serde_json::Value;

use super::{OperateError, Result};
use crate::inspect::chain::why_not_advanced;
use crate::inspect::format::{grouped, word};

/// The most ticks that are brought forward at a time: more would only wait in queues for each other.
const MAX_ADVANCED: u32 = 10_000;

/// The filter for one chain.
pub fn one(kind: &str, key: &str) -> ChainFilter {
    ChainFilter { kind: Some(kind.into()), key: Some(key.into()), ..ChainFilter::default() }
}

/// The word for an order, and the word for its result.
pub const fn verb(order: ChainOrder) -> (&'static str, &'static str) {
    match order {
        ChainOrder::Pause => ("pause", "paused"),
        ChainOrder::Resume => ("resume", "resumed"),
        ChainOrder::Retire => ("retire", "retired"),
        ChainOrder::Recover | ChainOrder::RecoverAll => ("recover", "recovered"),
    }
}

/// `1 chain`, `12,000 chains`.
pub fn plural(count: u64) -> String {
    if count == 1 { "1 chain".into() } else { format!("{} chains", grouped(count)) }
}

/// Chains that an order has changed.
#[derive(Clone, Debug)]
pub struct Steered {
    /// How many chains.
    pub count: u64,
    which: ChainFilter,
    order: ChainOrder,
}

impl fmt::Display for Steered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, done) = verb(self.order);
        match (&self.which.kind, &self.which.key, self.order) {
            (Some(kind), Some(key), ChainOrder::Pause) => write!(f, "{kind} {key} is paused; what runs finishes"),
            (Some(kind), Some(key), ChainOrder::Resume) => write!(f, "{kind} {key} goes on"),
            (Some(kind), Some(key), ChainOrder::Retire) => {
                write!(f, "{kind} {key} has ended; `roundelay enroll --revive` begins it anew")
            }
            _ => {
                write!(f, "{} {done}", plural(self.count))?;
                self.which.whole_owner().map_or(Ok(()), |owner| write!(f, ", and so are one-off jobs of {owner}"))
            }
        }
    }
}

/// Changes chains. When it has returned after [`ChainOrder::Pause`] or [`ChainOrder::Retire`], no new run of them
/// begins.
///
/// # Errors
/// When the filter names one chain that cannot be paused, resumed or retired, or the ledger does not answer.
pub async fn steer(config: &Config, ledger: &dyn Ledger, which: ChainFilter, order: ChainOrder) -> Result<Steered> {
    let count = ledger.order_chains(which.clone(), order).await?;
    if let (Some(kind), Some(key), 0) = (&which.kind, &which.key, count) {
        let chains = ledger.chains(kind.clone(), key.clone()).await?;
        let rotation = chains.iter().find(|chain| !chain.once);
        if rotation.is_none() {
            config.kind(kind).map_err(OperateError::Unknown)?;
        }
        let found = rotation.map(|chain| (chain.state, chain.owner.as_deref()));
        why_not_steered((kind, key), found, which.owner.as_deref(), order)?;
    }
    Ok(Steered { count, which, order })
}

/// Why an order for the chain `kind key`, and no chain of other owners than `owner`, changed nothing (pure). `found` is
/// the chain's state and its owner.
fn why_not_steered(
    (kind, key): (&str, &str),
    found: Option<(ChainState, Option<&str>)>,
    owner: Option<&str>,
    order: ChainOrder,
) -> Result<()> {
    let wanted = match order {
        ChainOrder::Pause => "active",
        ChainOrder::Resume => "paused",
        ChainOrder::Retire => "living",
        // A chain that needs no recovery is no error.
        ChainOrder::Recover | ChainOrder::RecoverAll => return Ok(()),
    };
    let (state, of) = found.ok_or_else(|| no_chain(kind, key))?;
    Err(OperateError::Refused(match owner {
        Some(owner) if of != Some(owner) => format!("{kind} {key} does not belong to {owner}"),
        _ => format!("{kind} {key} is not {wanted}: it is {}", word(state)),
    }))
}

fn no_chain(kind: &str, key: &str) -> OperateError {
    OperateError::Unknown(format!("there is no chain {kind} {key}; `roundelay enroll` begins chains"))
}

/// A tick that is due now.
#[derive(Clone, Debug)]
pub struct Advanced {
    name: String,
    /// Whether the broker has the tick's message. If not, a worker's catch-up sends it.
    pub sent: bool,
}

impl fmt::Display for Advanced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let later = if self.sent { "" } else { "; a worker's catch-up sends its message" };
        write!(f, "{} is due now{later}", self.name)
    }
}

/// Brings a chain's next tick forward to now.
///
/// # Errors
/// When there is no such chain, its state does not allow it, or the ledger does not answer.
pub async fn advance(config: &Config, connections: &Connections, kind: &str, key: &str) -> Result<Advanced> {
    config.kind(kind).map_err(OperateError::Unknown)?;
    match Rescheduler::new(config, connections).advance(kind, key).await? {
        reschedule::Advance::Advanced { sent } => Ok(Advanced { name: format!("{kind} {key}"), sent }),
        reschedule::Advance::NoChain => Err(no_chain(kind, key)),
        reschedule::Advance::Refused(chain) => {
            let ledger = &connections.ledger;
            let why = why_not_advanced(&chain, (ledger.now(), &ledger.wall_clock()));
            Err(OperateError::Refused(format!("{kind} {key}: {why}")))
        }
    }
}

/// Brings forward the next ticks of all chains that match, of which there are `matching`. Answers how many were
/// changed.
///
/// # Errors
/// When there are too many, or the ledger does not answer.
pub async fn advance_all(config: &Config, connections: &Connections, which: ChainFilter, matching: u64) -> Result<u64> {
    if matching > u64::from(MAX_ADVANCED) {
        return Err(OperateError::Bad(format!(
            "{matching} chains fit, and at most {MAX_ADVANCED} are brought forward at a time: more would only wait for \
             each other; filter further"
        )));
    }
    Ok(Rescheduler::new(config, connections).advance_all(which, MAX_ADVANCED).await?)
}

/// Runs a chain one more time, now, with `payload` in place of its own. Answers a sentence for people.
///
/// # Errors
/// When there is no such kind or chain, the chain may not run now, the options do not fit, or the ledger does not
/// answer.
pub async fn run(
    config: &Config,
    connections: &Connections,
    (kind, key): (&str, &str),
    payload: Option<&Value>,
    asked: &RunNow,
) -> Result<String> {
    config.kind(kind).map_err(OperateError::Unknown)?;
    let enroller = Enroller::new(config, connections.clone(), kind, None, false);
    let mut enroller = enroller.map_err(|error| OperateError::Unknown(error.to_string()))?;
    let came = enroller.run_once(key, payload, asked, None).await?;
    match (came.why_not(kind, key), came) {
        (None, _) => Ok(format!("{kind} {key} runs one time more")),
        (Some(why), RunOnce::NoChain) => Err(OperateError::Unknown(why)),
        (Some(why), RunOnce::Bad(_)) => Err(OperateError::Bad(why)),
        (Some(why), _) => Err(OperateError::Refused(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_what_orders_say() {
        let (one, kind) = (one("sync", "a"), ChainFilter { kind: Some("sync".into()), ..ChainFilter::default() });
        let owner = ChainFilter { owner: Some("ann".into()), ..ChainFilter::default() };
        let table = [
            (&one, ChainOrder::Pause, 1, "sync a is paused; what runs finishes"),
            (&one, ChainOrder::Resume, 1, "sync a goes on"),
            (&one, ChainOrder::Retire, 1, "sync a has ended; `roundelay enroll --revive` begins it anew"),
            (&one, ChainOrder::Recover, 0, "0 chains recovered"),
            (&kind, ChainOrder::Pause, 12_345, "12,345 chains paused"),
            (&kind, ChainOrder::RecoverAll, 1, "1 chain recovered"),
            (&owner, ChainOrder::Resume, 2, "2 chains resumed, and so are one-off jobs of ann"),
        ];
        for (which, order, count, words) in table {
            assert_eq!(Steered { count, which: which.clone(), order }.to_string(), words);
        }
    }

    #[test]
    fn a_table_of_why_a_chain_was_not_changed() {
        let (active, anns) = (Some((ChainState::Active, None)), Some((ChainState::Active, Some("ann"))));
        let retired = Some((ChainState::Retired, None));
        let table = [
            (None, None, ChainOrder::Pause, "there is no chain sync a; `roundelay enroll` begins chains"),
            (retired, None, ChainOrder::Pause, "sync a is not active: it is retired"),
            (active, None, ChainOrder::Resume, "sync a is not paused: it is active"),
            (retired, None, ChainOrder::Retire, "sync a is not living: it is retired"),
            (anns, Some("bob"), ChainOrder::Pause, "sync a does not belong to bob"),
            (active, Some("bob"), ChainOrder::Pause, "sync a does not belong to bob"),
            (anns, Some("ann"), ChainOrder::Resume, "sync a is not paused: it is active"),
        ];
        for (found, owner, order, words) in table {
            let why = why_not_steered(("sync", "a"), found, owner, order).unwrap_err();
            assert_eq!(why.to_string(), words);
            assert_eq!(matches!(why, OperateError::Unknown(_)), found.is_none(), "{words}");
        }
        assert!(why_not_steered(("sync", "a"), active, None, ChainOrder::Recover).is_ok());
    }

    #[test]
    fn a_tick_that_is_due_says_who_sends_its_message() {
        let due = |sent| Advanced { name: "sync a".into(), sent }.to_string();
        assert_eq!(due(true), "sync a is due now");
        assert_eq!(due(false), "sync a is due now; a worker's catch-up sends its message");
    }
}
