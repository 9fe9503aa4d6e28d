//! The facts that the doctor has gathered.

use roundelay_model::clock::Time;

use crate::inspect::doctor::api::ApiFacts;
use crate::inspect::doctor::broker::BrokerFacts;
use crate::inspect::doctor::chains::ChainFacts;
use crate::inspect::doctor::finding::Gathered;
use crate::inspect::doctor::ledger::LedgerFacts;
use crate::inspect::doctor::machine::MachineFacts;

/// All facts.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The time by this machine's clock.
    pub now: Time,
    pub machine: Gathered<MachineFacts>,
    /// The broker; nothing if it is embedded in the worker's process.
    pub broker: Option<BrokerFacts>,
    pub ledger: LedgerFacts,
    /// The content of the ledger.
    pub chains: Gathered<ChainFacts>,
    /// The address and certificate of the API; nothing if no API is configured.
    pub api: Option<Gathered<ApiFacts>>,
}
