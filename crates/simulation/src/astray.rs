//! Claims that go astray: what befalls one together with something else at the same moment. Dice that roll the two
//! apart come to it too seldom.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use roundelay_ledger::ClaimRequest;
use roundelay_model::ids::Epoch;
use tokio::sync::mpsc;

use super::plan::Astray;
use super::worker::{Process, Struck};

/// How long a claim is on its way that another message of its chain overtakes.
pub const OVERTAKEN: Duration = Duration::from_millis(300);

/// How long a claim is on its way that is stuck, and its worker has lost the ledger: longer than a lease.
pub const STUCK: Duration = Duration::from_secs(11);

/// The claims of all workers.
pub struct Claims {
    struck: mpsc::UnboundedSender<Struck>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What befalls which claim from now on, by which fault.
    armed: Vec<(Astray, usize, usize)>,
    /// Claims that did not reach the ledger, by worker, run and epoch: by which fault.
    lost: BTreeMap<(usize, usize, Epoch), usize>,
}

/// What befalls a claim.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing.
    Arrives,
    /// It does not reach the ledger.
    Lost,
    /// It is on its way for long, and the message comes again meanwhile.
    Overtaken {
        /// By which fault.
        fault: usize,
    },
    /// It is on its way for longer than a lease, and does not reach the ledger.
    Stuck {
        /// By which fault.
        fault: usize,
    },
    /// It is written, and its answer is lost.
    Unheard {
        /// By which fault.
        fault: usize,
    },
}

impl Claims {
    /// Whatever befalls a worker is told.
    pub fn new(struck: mpsc::UnboundedSender<Struck>) -> Self {
        Self { struck, state: Mutex::default() }
    }

    /// This befalls the `nth` claim from now on.
    pub fn arm(&self, fault: usize, how: Astray, nth: usize) {
        self.lock().armed.push((how, nth.max(1), fault));
    }

    /// Nothing befalls any claim any more.
    pub fn disarm(&self) {
        *self.lock() = State::default();
    }

    /// What befalls this claim.
    pub fn fate(&self, process: &Process, request: &ClaimRequest) -> Fate {
        let mut state = self.lock();
        let place = (process.worker, process.run, request.hint.epoch);
        if request.again
            && let Some(fault) = state.lost.remove(&place)
        {
            return Fate::Overtaken { fault };
        }
        state.armed.iter_mut().for_each(|(_, left, _)| *left -= 1);
        let Some(n) = state.armed.iter().position(|(_, left, _)| *left == 0) else { return Fate::Arrives };
        let (how, _, fault) = state.armed.remove(n);
        match how {
            Astray::Overtaken => {
                state.lost.insert(place, fault);
                Fate::Lost
            }
            Astray::Stuck => Fate::Stuck { fault },
            Astray::Unheard => Fate::Unheard { fault },
        }
    }

    /// Tells what has befallen a worker with this claim, to see to what follows.
    pub fn tell(&self, process: &Process, request: &ClaimRequest, fault: usize) {
        let Process { worker, run, .. } = *process;
        let _ = self.struck.send(Struck { worker, run, fault: Some(fault), claim: Some(request.hint.clone()) });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
