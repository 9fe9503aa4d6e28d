//! The verbs of a tick.

use std::time::Duration;

use async_trait::async_trait;

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
        self.late.of_claim(self.clock.now().since(request.hint.due));
        self.chains.write(request).await
    }

    async fn finish(&self, request: FinishRequest) -> Result<Finish, LedgerError> {
        self.chains.write(request).await
    }

    fn mark_sent(&self, sent: Sent) {
        self.chains.note(sent);
    }

    async fn flush(&self) -> Result<(), LedgerError> {
        self.chains.write(Flush).await
    }
}
