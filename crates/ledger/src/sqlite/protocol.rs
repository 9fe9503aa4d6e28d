//! The verbs of a tick.

use std::time::Duration;

use async_trait::async_trait;

use super::SqliteLedger;
use crate::chain::Sent;
use crate::claim::{Claim, ClaimRequest};
use crate::decide::Enroll;
use crate::enroll::{Enrolled, NewChain};
use crate::error::LedgerError;
use crate::finish::{Finish, FinishRequest};
use crate::protocol::Protocol;

#[async_trait]
impl Protocol for SqliteLedger {
    async fn enroll(&self, chains: Vec<NewChain>) -> Result<Vec<Enrolled>, LedgerError> {
        let clock = self.clock.clone();
        let enroll = Enroll(chains);
        self.writer.write(move |store| store.carry_out(&enroll, clock.now())).await
    }

    async fn enrolled_sent(&self, sent: Vec<Sent>, slack: Duration) -> Result<(), LedgerError> {
        self.writer.write(move |store| store.enrolled_sent(&sent, slack)).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claim, LedgerError> {
        let clock = self.clock.clone();
        self.late.of_claim(clock.now().since(request.hint.due));
        self.writer.write(move |store| store.carry_out(&request, clock.now())).await
    }

    async fn finish(&self, request: FinishRequest) -> Result<Finish, LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.carry_out(&request, clock.now())).await
    }

    fn mark_sent(&self, sent: Sent) {
        self.writer.write_later(move |store| store.mark_sent(sent));
    }

    async fn flush(&self) -> Result<(), LedgerError> {
        self.writer.write(|_| Ok(())).await
    }
}
