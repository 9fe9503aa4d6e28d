//! Rare states that a campaign has to come to: what is never reached is not tested, however many seeds violate nothing.

use roundelay_model::ids::Fence;
use serde::Serialize;

use crate::spec::{By, Runs, State, Step, Why};

/// A rare state, as a step of the ledger or a worker shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Rare {
    /// A claim takes a chain over from a session that is over.
    TakenOver,
    /// A claim takes a chain over from a session that goes on, because the kind lets a redelivered message do so.
    TakenOverByRedelivery,
    /// A claim whose answer was lost is made again.
    ClaimMadeAgain,
    /// The answer to a claim was lost, and the claim was not made again: its session gives the claim up.
    ClaimGivenUp,
    /// A message finds that its chain runs.
    FoundRunning,
    /// A rotation and a manual run wait for each other.
    FoundTwinRunning,
    /// A message finds that workers have died over its attempt, and its worker does not let it run beside others.
    FoundSuspected,
    /// A message comes before its attempt is due.
    FoundEarly,
    /// A stale message finds that its successor is not known to be sent.
    FoundUnsent,
    /// A message is ahead of the ledger.
    FoundAhead,
    /// A guard or a cooldown refuses a run.
    Guarded,
    /// Three workers have died over a tick, which is set aside.
    SetAside,
    /// Three workers have died over a manual run or a member of a batch, which ends.
    EndedByDeaths,
    /// The answer to a finish was lost, and the finish is asked for again.
    FinishAskedAgain,
    /// A finish comes after another claim.
    FinishFenced,
    /// The last member of a batch ends, and the chain goes on.
    BatchEnded,
    /// A note that a message was sent comes when the chain has moved on.
    NotedLate,
    /// A chain that has ended begins anew.
    BegunAnew,
    /// A manual run that has ended is asked for again.
    RunAgain,
    /// A worker is taken for dead because it is silent.
    SilentSession,
    /// A worker's process is seen to have ended.
    EndedProcess,
    /// What a session that is over holds of a chain that does not tick is let go.
    LetGo,
    /// An operator lets a chain go on that was set aside.
    Recovered,
    /// A chain goes on after an older copy of the ledger was restored.
    RecoveredAfterRestore,
    /// A time of the wall clock has moved, and a chain with it.
    Moved,
    /// Messages sleep on their queues.
    SleepsNatively,
    /// A message came before it had slept until its time.
    CameEarly,
    /// What has woken goes to the end of its queue.
    GaveWay,
}

impl Rare {
    /// All of them.
    pub const ALL: [Rare; 28] = [
        Rare::TakenOver,
        Rare::TakenOverByRedelivery,
        Rare::ClaimMadeAgain,
        Rare::ClaimGivenUp,
        Rare::FoundRunning,
        Rare::FoundTwinRunning,
        Rare::FoundSuspected,
        Rare::FoundEarly,
        Rare::FoundUnsent,
        Rare::FoundAhead,
        Rare::Guarded,
        Rare::SetAside,
        Rare::EndedByDeaths,
        Rare::FinishAskedAgain,
        Rare::FinishFenced,
        Rare::BatchEnded,
        Rare::NotedLate,
        Rare::BegunAnew,
        Rare::RunAgain,
        Rare::SilentSession,
        Rare::EndedProcess,
        Rare::LetGo,
        Rare::Recovered,
        Rare::RecoveredAfterRestore,
        Rare::Moved,
        Rare::SleepsNatively,
        Rare::CameEarly,
        Rare::GaveWay,
    ];
}

/// What is rare about a step that is about to be taken (pure).
pub(crate) fn rare(state: &State, step: &Step) -> Option<Rare> {
    let is_over = |session: i64| !state.sessions.contains_key(&session);
    Some(match step {
        Step::Claim(_, granted) if granted.runs == Runs::Deadly => Rare::EndedByDeaths,
        Step::Claim(_, granted) if granted.runs == Runs::Refused => Rare::Guarded,
        Step::Claim(asked, _) => match state.chains.get(&asked.epoch)?.held? {
            session if asked.again && session == asked.session => Rare::ClaimMadeAgain,
            session if is_over(session) => Rare::TakenOver,
            _ => Rare::TakenOverByRedelivery,
        },
        Step::ClaimRefused(_, why) => match why {
            Why::Runs => Rare::FoundRunning,
            Why::Waits => Rare::FoundTwinRunning,
            Why::Suspected(_) => Rare::FoundSuspected,
            Why::Early => Rare::FoundEarly,
            Why::Stale(Some(_)) => Rare::FoundUnsent,
            Why::Stale(None) | Why::Idle | Why::NoSchedule | Why::Other => return None,
        },
        Step::SetAside(_) => Rare::SetAside,
        Step::Ahead(_) => Rare::FoundAhead,
        Step::FinishAgain(_) => Rare::FinishAskedAgain,
        Step::FinishFenced(_) => Rare::FinishFenced,
        Step::Finish(finish) if finish.sends_parent => Rare::BatchEnded,
        Step::MarkSent { epoch, tick, attempt, .. } => {
            let chain = state.chains.get(epoch)?;
            (((*tick, *attempt) < (chain.tick, chain.attempt)).then_some(Rare::NotedLate))?
        }
        Step::GiveUp { epoch, fence, session } => {
            let chain = state.chains.get(epoch)?;
            ((chain.fence, chain.held) == (*fence, Some(*session)) && *fence > Fence::NONE)
                .then_some(Rare::ClaimGivenUp)?
        }
        Step::BeginAnew(_) => Rare::BegunAnew,
        Step::RunAgain(_) => Rare::RunAgain,
        Step::SessionOver { by: By::Silence, .. } => Rare::SilentSession,
        Step::SessionOver { by: By::Sight, .. } => Rare::EndedProcess,
        Step::LetGo => state.chains.values().any(|chain| chain.held.is_some_and(is_over)).then_some(Rare::LetGo)?,
        Step::Recover { all, .. } => {
            if *all {
                Rare::RecoveredAfterRestore
            } else {
                Rare::Recovered
            }
        }
        Step::Move { forward: false, .. } => Rare::Moved,
        _ => return None,
    })
}
