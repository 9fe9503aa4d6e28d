//! The verbs of a tick.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;

use super::PostgresLedger;
use crate::chain::Sent;
use crate::claim::{Claim, ClaimRequest};
use crate::decide::{Enroll, Flush, MarkSent};
use crate::enroll::{Enrolled, NewChain};
use crate::error::LedgerError;
use crate::finish::{Finish, FinishRequest};
use crate::protocol::Protocol;

#[async_trait]
impl Protocol for PostgresLedger {
    async fn enroll(&self, chains: Vec<NewChain>) -> Result<Vec<Enrolled>, LedgerError> {
        self.rest.write(Enroll(chains)).await
    }

    async fn enrolled_sent(&self, sent: Vec<Sent>, slack: Duration) -> Result<(), LedgerError> {
        self.rest.write(MarkSent { sent, slack: Some(slack) }).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claim, LedgerError> {
        self.lane(request.hint.epoch).write(request).await
    }

    async fn finish(&self, request: FinishRequest) -> Result<Finish, LedgerError> {
        self.lane(request.epoch).write(request).await
    }

    fn mark_sent(&self, sent: Sent) {
        self.lane(sent.epoch).note(sent);
    }

    async fn flush(&self) -> Result<(), LedgerError> {
        try_join_all(self.chains.iter().map(|lane| lane.write(Flush))).await.map(drop)
    }
}
