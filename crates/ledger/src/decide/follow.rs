//! What a consumer does once the ledger has answered its claim, or the finish of its run (pure).
//!
//! A message may be acknowledged only when nothing is lost with it: another message of its chain is confirmed, the
//! ledger's answer says that the message tells nothing new, or the message is kept in quarantine.

use roundelay_model::clock::Time;
use roundelay_model::ids::Epoch;
use roundelay_model::job::BadMessage;

use crate::chain::Hint;
use crate::claim::{Claim, Grant};
use crate::finish::Finish;

/// What a consumer does with a message whose claim is answered.
#[derive(Debug, PartialEq)]
pub enum AfterClaim {
    /// Run the attempt, or finish it at once where the grant refuses the run. Then [`after_finish`] says what follows.
    Run(Grant),
    /// Publish this message, which counts now and may never have been sent, and note that it is sent. Then acknowledge.
    Send(Hint),
    /// Acknowledge.
    Acknowledge,
    /// Publish the message again, due at this time; after a short wait where there is none. Then acknowledge.
    Postpone(Option<Time>),
    /// Publish this message in place of the claimed one, for its own due time. Then acknowledge.
    Replace(Hint),
    /// Put the message in quarantine, for this reason. Then acknowledge.
    Quarantine(BadMessage),
}

/// What a consumer does after the answer to its claim for `asked`.
pub fn after_claim(answer: Claim, asked: &Hint) -> AfterClaim {
    match answer {
        Claim::Granted(grant) => AfterClaim::Run(grant),
        // The worker that should have sent it is not known any more.
        Claim::Stale(Some(successor)) => AfterClaim::Send(successor),
        Claim::Stale(None) | Claim::Runs | Claim::SetAside | Claim::Idle => AfterClaim::Acknowledge,
        Claim::Waits { until } => AfterClaim::Postpone(Some(until)),
        Claim::Suspected(_) => AfterClaim::Postpone(None),
        Claim::Early(current) => AfterClaim::Replace(current),
        Claim::NoSchedule => AfterClaim::Quarantine(BadMessage::NoChains(asked.kind.clone())),
        Claim::Future => AfterClaim::Quarantine(BadMessage::Future { epoch: asked.epoch, tick: asked.tick }),
        Claim::Other { kind, key } => AfterClaim::Quarantine(BadMessage::OtherChain { epoch: asked.epoch, kind, key }),
    }
}

/// What a consumer does with the message of a run that has ended.
#[derive(Debug, PartialEq, Eq)]
pub enum AfterFinish {
    /// Publish these messages. The message of the run is acknowledged once `own`, the one that follows it, is
    /// confirmed; at once where there is none. Catch-up sends those of `others` that cannot be sent.
    Send {
        /// The chain's next message.
        own: Option<Hint>,
        /// Those of other chains.
        others: Vec<Hint>,
    },
    /// Acknowledge: the chain is past this run, and another claim answers for its messages.
    Acknowledge,
    /// Give the message back to the broker: it is not known whether the end of the run is written.
    Requeue,
}

/// What a consumer does after the answer to the finish of a run of the chain with this epoch; `None` when there is no
/// answer.
pub fn after_finish(answer: Option<Finish>, epoch: Epoch) -> AfterFinish {
    match answer {
        Some(Finish::Applied(messages)) => {
            let (own, others): (Vec<Hint>, Vec<Hint>) = messages.into_iter().partition(|hint| hint.epoch == epoch);
            AfterFinish::Send { own: own.into_iter().next(), others }
        }
        Some(Finish::Fenced) => AfterFinish::Acknowledge,
        None => AfterFinish::Requeue,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use roundelay_model::ids::{Fence, TickNo};

    use super::*;

    fn hint(epoch: i64, tick: i64) -> Hint {
        Hint {
            kind: "sync".into(),
            key: "7".into(),
            queue: "work".into(),
            epoch: Epoch(epoch),
            tick: TickNo(tick),
            attempt: 1,
            due: Time::from_millis(1_000),
            parent: Epoch::NONE,
            priority: None,
        }
    }

    fn grant() -> Grant {
        Grant {
            fence: Fence(3),
            last_start: Time::default(),
            nominal: Time::default(),
            due: Time::default(),
            at: Time::default(),
            payload: String::new(),
            once: false,
            lost: false,
            refused: None,
            carry: None,
            learned: None,
            owner: None,
            schedule: None,
            batch: None,
            depth: 0,
        }
    }

    #[test]
    fn each_answer_to_a_claim_has_one_consequence() {
        let asked = hint(4, 9);
        let until = Time::from_millis(5_000) + Duration::from_secs(1);
        let (kind, key) = (String::from("report"), String::from("8"));
        let table = [
            (Claim::Granted(grant()), AfterClaim::Run(grant())),
            (Claim::Stale(Some(hint(4, 10))), AfterClaim::Send(hint(4, 10))),
            (Claim::Stale(None), AfterClaim::Acknowledge),
            (Claim::Runs, AfterClaim::Acknowledge),
            (Claim::SetAside, AfterClaim::Acknowledge),
            (Claim::Idle, AfterClaim::Acknowledge),
            (Claim::Waits { until }, AfterClaim::Postpone(Some(until))),
            (Claim::Suspected(2), AfterClaim::Postpone(None)),
            (Claim::Early(hint(4, 9)), AfterClaim::Replace(hint(4, 9))),
            (Claim::NoSchedule, AfterClaim::Quarantine(BadMessage::NoChains("sync".into()))),
            (Claim::Future, AfterClaim::Quarantine(BadMessage::Future { epoch: Epoch(4), tick: TickNo(9) })),
            (
                Claim::Other { kind: kind.clone(), key: key.clone() },
                AfterClaim::Quarantine(BadMessage::OtherChain { epoch: Epoch(4), kind, key }),
            ),
        ];
        for (answer, expected) in table {
            assert_eq!(after_claim(answer.clone(), &asked), expected, "{answer:?}");
        }
    }

    #[test]
    fn the_message_of_a_finished_run_hangs_on_its_own_successor_only() {
        let table = [
            (Some(Finish::Applied(vec![])), AfterFinish::Send { own: None, others: vec![] }),
            (Some(Finish::Applied(vec![hint(4, 10)])), AfterFinish::Send { own: Some(hint(4, 10)), others: vec![] }),
            (
                Some(Finish::Applied(vec![hint(5, 1), hint(4, 10), hint(6, 1)])),
                AfterFinish::Send { own: Some(hint(4, 10)), others: vec![hint(5, 1), hint(6, 1)] },
            ),
            (Some(Finish::Applied(vec![hint(5, 1)])), AfterFinish::Send { own: None, others: vec![hint(5, 1)] }),
            (Some(Finish::Fenced), AfterFinish::Acknowledge),
            (None, AfterFinish::Requeue),
        ];
        for (answer, expected) in table {
            assert_eq!(after_finish(answer.clone(), Epoch(4)), expected, "{answer:?}");
        }
    }
}
