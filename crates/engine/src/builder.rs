//! What a program sets up of an engine before it runs.

use std::collections::HashMap;
use std::sync::Arc;

use roundelay_config::Config;
use roundelay_handler::Handler;
use tokio::sync::{SetOnce, mpsc};

use crate::companion::Companion;
use crate::connections::Connections;
use crate::life::Probe;
use crate::telemetry::Telemetry;

/// Runs the jobs of a configuration.
pub struct Engine {
    pub(crate) config: Config,
    pub(crate) connections: Option<Connections>,
    pub(crate) handlers: HashMap<String, Arc<dyn Handler>>,
    pub(crate) queues: Option<Vec<String>>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) ready: Arc<SetOnce<()>>,
    pub(crate) probe: Option<Arc<dyn Probe>>,
    pub(crate) chores: bool,
    pub(crate) attends: bool,
    pub(crate) gated: bool,
    pub(crate) configurations: Option<mpsc::Receiver<Config>>,
    pub(crate) companions: Vec<Box<dyn Companion>>,
}

impl Engine {
    /// An engine for `config`.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            connections: None,
            handlers: HashMap::new(),
            queues: None,
            telemetry: Arc::default(),
            ready: Arc::default(),
            probe: None,
            chores: true,
            attends: true,
            gated: true,
            configurations: None,
            companions: Vec::new(),
        }
    }

    /// Runs jobs of `kind` (a name under `[kinds]`) with `handler`, whatever the configuration says
    /// about its handler.
    #[must_use]
    pub fn handler(mut self, kind: &str, handler: impl Handler + 'static) -> Self {
        self.handlers.insert(kind.into(), Arc::new(handler));
        self
    }

    /// Uses these connections instead of opening those that the configuration names.
    #[must_use]
    pub fn connections(mut self, connections: Connections) -> Self {
        self.connections = Some(connections);
        self
    }

    /// Consumes only these platform queues, which the configuration must have.
    /// Catch-up looks only after the chains of these queues.
    #[must_use]
    pub fn queues(mut self, queues: Vec<String>) -> Self {
        self.queues = Some(queues);
        self
    }

    /// Takes over configurations that are sent here while it runs: kinds' schedules, guards, timeouts and
    /// retries, and the limits of throttles, from now on, and sleeping chains move to where a new schedule has
    /// them. Of what cannot change without a restart (broker, ledger, queues, handlers) the log tells.
    #[must_use]
    pub fn configurations(mut self, fresh: mpsc::Receiver<Config>) -> Self {
        self.configurations = Some(fresh);
        self
    }

    /// Runs `companion` in the worker, beside its queues.
    #[must_use]
    #[doc(hidden)]
    pub fn companion(mut self, companion: impl Companion + 'static) -> Self {
        self.companions.push(Box::new(companion));
        self
    }

    /// Lets `probe` watch the engine from inside, and end it at any point.
    #[must_use]
    #[doc(hidden)]
    pub fn probe(mut self, probe: Arc<dyn Probe>) -> Self {
        self.probe = Some(probe);
        self
    }

    /// Leaves the engine's own chores (rosters, history) to others: for simulations and measurements,
    /// where nothing else is to happen.
    #[must_use]
    #[doc(hidden)]
    pub fn without_chores(mut self) -> Self {
        (self.chores, self.attends) = (false, false);
        self
    }

    /// Says how the worker is, and does what operators order, also [without chores](Self::without_chores).
    #[must_use]
    #[doc(hidden)]
    pub fn attending(mut self) -> Self {
        self.attends = true;
        self
    }

    /// Starts under throttles pass no last gate: only to measure what that costs.
    #[must_use]
    #[doc(hidden)]
    pub fn without_gate(mut self) -> Self {
        self.gated = false;
        self
    }

    /// What the engine has done, also while it runs.
    #[doc(hidden)]
    pub fn telemetry(&self) -> Arc<Telemetry> {
        self.telemetry.clone()
    }

    /// Is set once the engine consumes its queues and, on a broker that begins empty, has
    /// re-created the messages of all chains. Chains enrolled later in this process are sent by
    /// the program that enrolls them.
    pub fn ready(&self) -> Arc<SetOnce<()>> {
        self.ready.clone()
    }
}
