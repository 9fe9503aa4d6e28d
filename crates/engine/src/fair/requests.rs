//! What the fair queues of a worker ask of the ledger.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use roundelay_ledger::{LeftMessage, Ownership};

use super::gather::Gather;
use super::seats::Seats;
use crate::life::Life;
use crate::patient::PatientLedger;

/// What the lanes of all fair queues of a worker share: their requests to the ledger.
pub(crate) struct Requests {
    pub(super) owners: Arc<Gather<i64, Option<Ownership>>>,
    pub(super) leaves: Arc<Gather<LeftMessage, ()>>,
    pub(super) seats: Arc<Seats>,
}

impl Requests {
    pub(crate) fn new(ledger: &PatientLedger, payloads: bool, life: &Life) -> Self {
        let (reads, writes) = (ledger.clone(), ledger.clone());
        let owners = Gather::new(
            life.clone(),
            Box::new(move |epochs: Vec<i64>| -> BoxFuture<'static, _> {
                let ledger = reads.clone();
                Box::pin(async move {
                    let ask = || ledger.ownership(epochs.clone(), payloads);
                    ledger.retry_until_stopped("ask whose chains are", ask).await
                })
            }),
        );
        let leaves = Gather::new(
            life.clone(),
            Box::new(move |messages: Vec<LeftMessage>| -> BoxFuture<'static, _> {
                let ledger = writes.clone();
                Box::pin(async move {
                    let answers = vec![(); messages.len()];
                    let messages = last_of_each(messages);
                    let leave = || ledger.leave_messages(messages.clone());
                    ledger.retry_until_stopped("leave messages to the backlog", leave).await.map(|()| answers)
                })
            }),
        );
        Self { owners, leaves, seats: Seats::new(ledger.clone(), life.clone()) }
    }
}

/// Of each name the last message.
fn last_of_each(messages: Vec<LeftMessage>) -> Vec<LeftMessage> {
    let mut seen = HashSet::new();
    let mut last: Vec<_> = messages.into_iter().rev().filter(|message| seen.insert(message.name.clone())).collect();
    last.reverse();
    last
}
