//! The engine's own life, and how it can be watched and cut off.
//!
//! Everything that an engine spawns ends at once when the engine is dropped, wherever it stands.
//! That is what a crash is, so a simulation can have one by dropping the engine at any [`Point`].

use std::sync::Arc;

use futures_util::future::{BoxFuture, Either};
use tokio_util::sync::{CancellationToken, DropGuard};

/// A place between two awaits at which a crash makes a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Point {
    /// The topology is declared, and nothing is consumed yet.
    Declared,
    /// A message has come, and nothing has been done about it.
    Delivered,
    /// A tick has room and slot, and has not been claimed.
    Permitted,
    /// A tick has been claimed, and its handler has not begun.
    Claimed,
    /// The handler has ended, and its end is not written.
    Handled,
    /// The finish is written, and the successor has not been sent.
    Finished,
    /// The successor is confirmed, and nothing is noted or acknowledged.
    SuccessorSent,
    /// The note that the successor was sent has been made, and nothing is acknowledged.
    SuccessorNoted,
    /// A message has been acknowledged, or put back.
    Settled,
    /// A message was found stale, and what follows it has not been sent.
    Stale,
    /// A message that came too soon has been sent again, and not been acknowledged.
    PutOff,
    /// A message that cannot be used has been set aside, and not been acknowledged.
    SetAside,
    /// A unique job has given its place up before its start, and has not begun.
    PlaceGivenBefore,
    /// A one-off job is about to run.
    JobTaken,
    /// A one-off job has run, and its end is not written.
    JobHandled,
    /// A one-off job's failure is kept, and its message has not been acknowledged.
    FailureKept,
    /// A unique job has given its place up at its end, and its message has not been acknowledged.
    PlaceGivenAfter,
    /// A one-off job's next attempt is sent, and its message has not been acknowledged.
    JobSentAgain,
    /// A member of a batch is sent, and others may not be.
    MemberSent,
    /// Jobs in the outbox are this worker's to send, and none is sent.
    OutboxTaken,
    /// A job that a run asked for is confirmed, and still in the outbox.
    SpawnedSent,
    /// Jobs that a run asked for are sent and taken out of the outbox.
    SpawnedForgotten,
    /// Chains that were asked for by a message are in the ledger, and their first messages have not been sent.
    Enrolled,
    /// What a message has ordered is done, and the message has not been acknowledged.
    Obeyed,
    /// A message has gone on from one hop to the next, and has not been acknowledged.
    Rearmed,
    /// A session has begun in the ledger, and nothing is claimed for it.
    SessionBegun,
    /// The ledger has heard that this worker lives.
    Renewed,
    /// Sessions of workers that are gone are over in the ledger, and nothing of what they have left is looked for.
    OthersEnded,
    /// The session is over in the ledger, and the engine has not ended.
    SessionEnded,
    /// Catch-up has read which chains a worker has left that is gone, and noted nothing.
    OrphansRead,
    /// The broker is away, and a due chain is this worker's to run, which has not begun to.
    HandedOut,
    /// A message that exceeds its tenant's share is in the backlog, and has not been acknowledged.
    Left,
    /// Messages were taken from the backlog, and nothing has been done about them.
    Taken,
    /// Messages that were taken from the backlog are forgotten there.
    Forgotten,
    /// Catch-up has read what is overdue, and noted nothing.
    OverdueRead,
    /// Catch-up has noted when it looks again, and sent nothing.
    LookNoted,
    /// Catch-up has sent a message again, and not noted it.
    Resent,
    /// The engine stops taking, and what runs has not ended.
    Stopping,
}

impl Point {
    /// All of them.
    pub const ALL: [Point; 38] = [
        Point::Declared,
        Point::Delivered,
        Point::Permitted,
        Point::Claimed,
        Point::Handled,
        Point::Finished,
        Point::SuccessorSent,
        Point::SuccessorNoted,
        Point::Settled,
        Point::Stale,
        Point::PutOff,
        Point::SetAside,
        Point::PlaceGivenBefore,
        Point::JobTaken,
        Point::JobHandled,
        Point::FailureKept,
        Point::PlaceGivenAfter,
        Point::JobSentAgain,
        Point::MemberSent,
        Point::OutboxTaken,
        Point::SpawnedSent,
        Point::SpawnedForgotten,
        Point::Enrolled,
        Point::Obeyed,
        Point::Rearmed,
        Point::SessionBegun,
        Point::Renewed,
        Point::OthersEnded,
        Point::SessionEnded,
        Point::OrphansRead,
        Point::HandedOut,
        Point::Left,
        Point::Taken,
        Point::Forgotten,
        Point::OverdueRead,
        Point::LookNoted,
        Point::Resent,
        Point::Stopping,
    ];
}

/// Watches an engine from inside, for simulation.
pub trait Probe: Send + Sync {
    /// The engine has come to `point`, and goes on when the future is ready. An engine that is to
    /// crash here never gets there: it is dropped meanwhile.
    fn reached(&self, point: Point) -> BoxFuture<'static, ()>;

    /// Stands between the runtime and one of the engine's tasks, for example to stop it for a
    /// while as SIGSTOP would.
    fn hold(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()>;
}

/// What all tasks of an engine share.
#[derive(Clone, Default)]
pub(super) struct Life {
    killed: CancellationToken,
    probe: Option<Arc<dyn Probe>>,
}

impl Life {
    pub fn new(probe: Option<Arc<dyn Probe>>) -> Self {
        Self { killed: CancellationToken::new(), probe }
    }

    /// Ends every task when it is dropped.
    pub fn guard(&self) -> DropGuard {
        self.killed.clone().drop_guard()
    }

    /// `task`, as long as the engine lives.
    pub fn bind(&self, task: impl Future<Output = ()> + Send + 'static) -> impl Future<Output = ()> + Send + 'static {
        let killed = self.killed.clone();
        // A delivery's life is a future of 6 KB, and each `async` around it would hold it twice.
        let task = Box::pin(task);
        let task = async move {
            killed.run_until_cancelled_owned(task).await;
        };
        match &self.probe {
            None => Either::Left(task),
            Some(probe) => Either::Right(probe.hold(Box::pin(task))),
        }
    }

    /// Says that the engine has come to `point`.
    pub async fn reached(&self, point: Point) {
        if let Some(probe) = &self.probe {
            probe.reached(point).await;
        }
    }
}
