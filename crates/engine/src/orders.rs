//! What programs order of chains by messages: that one is to be there, or is to end.
//!
//! An order is done as soon as it comes: it waits for no room and no slot, and takes none. Its message is acknowledged
//! only when the ledger has it, so what the broker has confirmed will be so; one that comes again changes nothing more.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use roundelay_broker::Delivery;
use roundelay_config::{Config, is_internal};
use roundelay_ledger as ledger;
use roundelay_ledger::{ChainFilter, LedgerError};
use roundelay_model::job::{BadMessage, Enrolment, Envelope, Order, RunNow};
use roundelay_model::outcome::Verdict;
use roundelay_model::reason::{Class, Reason};

use crate::connections::Connections;
use crate::enroll::{Asked, Became, Enroller, RunOnce};
use crate::error::EnrollError;
use crate::life::{Life, Point};
use crate::observing::Observing;
use crate::patient::PatientLedger;
use crate::publishing::Publishing;
use crate::queue::QueueRun;
use crate::settlement::Settlement;
use crate::trace::Run;

/// An order that another worker can do, and this one cannot yet, comes again after this.
const ELSEWHERE: Duration = Duration::from_secs(5);

/// What it takes to do them.
pub(super) struct Orders {
    config: RwLock<Arc<Config>>,
    connections: Connections,
    life: Life,
    ledger: PatientLedger,
    observing: Arc<Observing>,
    publishing: Arc<Publishing>,
}

/// Why an order was not done.
enum Undone {
    /// No worker can do it.
    Bad(BadMessage),
    /// Workers seal payloads, and this one does not yet.
    Unsealed,
}

impl Orders {
    pub(super) fn new(
        config: &Config,
        connections: &Connections,
        ledger: PatientLedger,
        observing: Arc<Observing>,
        publishing: Arc<Publishing>,
    ) -> Self {
        let config = RwLock::new(Arc::new(config.clone()));
        let life = observing.life.clone();
        Self { config, connections: connections.clone(), life, ledger, observing, publishing }
    }

    /// The configuration was read again.
    pub(super) fn take_over(&self, config: Config) {
        *self.config.write() = Arc::new(config);
    }

    /// Sees to it that the chain of the envelope's kind and key is there. A chain that has ended begins anew.
    async fn enroll(
        &self,
        envelope: &Envelope,
        enrolment: Enrolment,
        queue: &str,
    ) -> Result<Result<Became, Undone>, LedgerError> {
        let bad = |why: String| Ok(Err(Undone::Bad(BadMessage::Order("enroll", why))));
        let config = self.config.read().clone();
        let kind = &envelope.kind;
        let settings = match config.kind(kind) {
            Ok(settings) => settings,
            Err(why) => return bad(why),
        };
        let arrived_on = config.queues.contains_key(queue).then_some(queue);
        let asked = Asked { key: envelope.key.clone(), payload: envelope.payload.clone(), enrolment };
        let entity = match asked.entity(settings, arrived_on) {
            Ok(entity) => entity,
            Err(why) => return bad(why),
        };
        let enroller = match Enroller::new(&config, self.connections.clone(), kind, None, true) {
            Ok(enroller) => enroller,
            Err(error) => return bad(error.to_string()),
        };
        let mut enroller = enroller.revive(true).by_name().within(self.life.clone());
        match enroller.enroll_each(vec![entity]).await {
            Ok((each, _)) => Ok(Ok(each.first().copied().unwrap_or(Became::Unchanged))),
            Err(EnrollError::Ledger(error)) => Err(error),
            Err(EnrollError::Unsealed) => Ok(Err(Undone::Unsealed)),
            Err(EnrollError::NoSchedule(kind)) => Ok(Err(Undone::Bad(BadMessage::NoChains(kind)))),
            Err(EnrollError::Entity { reason, .. }) => bad(reason),
        }
    }
}

impl Orders {
    /// Runs the chain of the envelope's kind and key once more.
    async fn run(
        &self,
        envelope: &Envelope,
        asked: &RunNow,
        queue: &str,
    ) -> Result<Result<RunOnce, Undone>, LedgerError> {
        let config = self.config.read().clone();
        let arrived_on = config.queues.contains_key(queue).then_some(queue);
        let mut enroller = match Enroller::new(&config, self.connections.clone(), &envelope.kind, None, true) {
            Ok(enroller) => enroller.within(self.life.clone()),
            Err(error) => return Ok(Err(Undone::Bad(BadMessage::Order("run", error.to_string())))),
        };
        match enroller.check_sealing().await {
            Ok(()) => {}
            Err(EnrollError::Ledger(error)) => return Err(error),
            Err(_) => return Ok(Err(Undone::Unsealed)),
        }
        let payload = Some(&envelope.payload).filter(|payload| !payload.is_null());
        enroller.run_once(&envelope.key, payload, asked, arrived_on).await.map(Ok)
    }
}

impl Orders {
    /// A message asks for a manual run. `None` when the ledger could not be reached any more.
    async fn run_now(&self, queue: &QueueRun, envelope: &Envelope, asked: &RunNow) -> Option<Result<(), Undone>> {
        let run = || self.run(envelope, asked, &queue.name);
        Some(match self.ledger.retry_until_stopped("run a chain, as a message asks for", run).await? {
            Err(undone) => Err(undone),
            Ok(came) => {
                let bad = |why| Err(Undone::Bad(BadMessage::Order("run", why)));
                match (came.why_not(&envelope.kind, &envelope.key), &came) {
                    (None, _) => Ok(()),
                    (Some(why), RunOnce::Pending | RunOnce::Running | RunOnce::Cooldown(_)) => {
                        let class = match came {
                            RunOnce::Pending => Class::Unique,
                            RunOnce::Cooldown(_) => Class::Cooldown,
                            _ => Class::Running,
                        };
                        self.observing.says_no(
                            envelope,
                            queue,
                            Verdict::Dropped,
                            Reason::new(class, why),
                            &Run::default(),
                        );
                        Ok(())
                    }
                    (Some(why), _) => bad(why),
                }
            }
        })
    }

    /// The life of an order.
    pub(super) async fn obey(
        &self,
        queue: &QueueRun,
        envelope: &Envelope,
        order: Order,
        delivery: &Delivery,
    ) -> Settlement {
        let done = match order {
            Order::Enroll(enrolment) => {
                let enroll = || self.enroll(envelope, enrolment.clone(), &queue.name);
                self.ledger.retry_until_stopped("enroll what a message asks for", enroll).await
            }
            // Chains of the engine's own begin and end with its workers.
            Order::Retire if is_internal(&envelope.kind) => {
                let why = format!("{} is a kind of the engine's own, whose chains no order ends", envelope.kind);
                Some(Err(Undone::Bad(BadMessage::Order("retire", why))))
            }
            Order::Retire => {
                let one = ChainFilter {
                    kind: Some(envelope.kind.clone()),
                    key: Some(envelope.key.clone()),
                    ..ChainFilter::default()
                };
                let retire = || self.ledger.order_chains(one.clone(), ledger::ChainOrder::Retire);
                let done = self.ledger.retry_until_stopped("end a chain, as a message asks for", retire).await;
                done.map(|changed| Ok(if changed > 0 { Became::Retired } else { Became::Unchanged }))
            }
            Order::Run(asked) => {
                let done = self.run_now(queue, envelope, &asked).await;
                done.map(|done| done.map(|()| Became::Unchanged))
            }
        };
        match done {
            None => Settlement::Requeue,
            Some(Ok(became)) => {
                tracing::info!(kind = envelope.kind, key = envelope.key, ?became, "a message ordered a chain");
                self.life.reached(Point::Obeyed).await;
                match &envelope.id {
                    Some(id) => self.publishing.forget(id).await,
                    None => Settlement::Ack,
                }
            }
            Some(Err(Undone::Bad(bad))) => self.publishing.quarantine(delivery, &bad).await,
            Some(Err(Undone::Unsealed)) => {
                tracing::warn!(kind = envelope.kind, key = envelope.key, "{}", EnrollError::Unsealed);
                tokio::time::sleep(ELSEWHERE).await;
                Settlement::Requeue
            }
        }
    }
}
