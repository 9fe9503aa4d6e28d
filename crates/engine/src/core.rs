//! The parts of a worker.

use std::sync::Arc;

use parking_lot::Mutex;
use roundelay_config::CatchUpSettings;
use roundelay_config::Config;
use roundelay_model::clock::Entropy;
use roundelay_model::pacing::fair::Shares;
use tokio::sync::SetOnce;
use tokio::time::Instant;

use crate::catalog::Catalog;
use crate::catalog::schedules_of;
use crate::chores::Chores;
use crate::claim_time::ClaimTime;
use crate::companion::Handle;
use crate::connections::Connections;
use crate::fair::requests::Requests;
use crate::fresh::Prices;
use crate::in_hand::Hands;
use crate::left_behind::LeftBehind;
use crate::observing::Observing;
use crate::orders::Orders;
use crate::patient::PatientLedger;
use crate::publishing::Publishing;
use crate::queue::Queues;
use crate::stop::Stop;
use crate::suspects::Suspects;
use crate::throttle::Throttles;
use crate::unique::UniquePlaces;
use crate::vitals::Vitals;
use crate::wall::UpToDate;

/// All parts of a running engine. Its methods are the life of a delivery.
pub(crate) struct Core {
    pub(crate) worker: Arc<str>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) ledger: PatientLedger,
    pub(crate) publishing: Arc<Publishing>,
    pub(crate) observing: Arc<Observing>,
    pub(crate) stop: Stop,
    /// Those consumed here, each with its lanes from the lowest.
    pub(crate) queues: Arc<Queues>,
    pub(crate) throttles: Throttles,
    /// What the fair queues ask of the ledger.
    pub(crate) fair: Requests,
    /// The shares of tenants.
    pub(crate) shares: Arc<Shares>,
    pub(crate) catch_up: CatchUpSettings,
    pub(crate) in_hand: Arc<Hands>,
    pub(crate) claim_time: ClaimTime,
    pub(crate) unique: UniquePlaces,
    pub(crate) vitals: Arc<Vitals>,
    pub(crate) left: Arc<LeftBehind>,
    pub(crate) wall: Arc<UpToDate>,
    /// Keeps apart what was in hand when workers died.
    pub(crate) suspects: Arc<Suspects>,
    /// What this worker does for the engine itself.
    pub(crate) chores: Option<Arc<Chores>>,
    /// What calls cost.
    pub(crate) prices: Arc<Prices>,
    /// What programs order of chains.
    pub(crate) orders: Arc<Orders>,
    pub(crate) entropy: Entropy,
    pub(crate) ready: Arc<SetOnce<()>>,
    /// When it last went round to say how it is, and to read what operators have ordered.
    pub(crate) attended: Arc<Mutex<Option<Instant>>>,
}

impl Core {
    /// What companions get of this worker.
    pub(crate) fn companion_handle(&self, config: Config, connections: Connections) -> Handle {
        // Workers do not tell of the engine's own queue, and operators cannot pause it.
        let own = self.chores.as_ref().map(|chores| &chores.queue);
        let queues = self.catalog.queues.iter().filter(|(name, _)| Some(*name) != own);
        Handle {
            config,
            connections,
            worker: self.worker.clone(),
            telemetry: self.observing.telemetry.clone(),
            throttles: self.throttles.clone(),
            queues: queues.map(|(name, throttle)| (name.clone(), throttle.clone())).collect(),
            slack: self.catch_up.slack,
            schedule_of: Arc::new(schedules_of(self.catalog.kinds.clone())),
            ready: self.ready.clone(),
            stop: self.stop.stopping.clone(),
            desk: self.observing.desk.clone(),
            attended: self.attended.clone(),
        }
    }
}
