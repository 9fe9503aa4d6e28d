//! What the doctor has gathered.

use roundelay_model::clock::Time;

use crate::inspect::doctor::api::ApiFacts;
use crate::inspect::doctor::broker::BrokerFacts;
use crate::inspect::doctor::chains::ChainFacts;
use crate::inspect::doctor::finding::Answer;
use crate::inspect::doctor::ledger::LedgerFacts;
use crate::inspect::doctor::machine::MachineFacts;

/// All that is known.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The time by this machine's clock.
    pub now: Time,
    /// This machine.
    pub machine: Answer<MachineFacts>,
    /// The broker; nothing where it is in the worker's process.
    pub broker: Option<BrokerFacts>,
    /// The ledger.
    pub ledger: LedgerFacts,
    /// What is in the ledger.
    pub chains: Answer<ChainFacts>,
    /// Where the API is to answer; nothing where none is configured.
    pub api: Option<Answer<ApiFacts>>,
}
