//! One job by hand: what `roundelay publish` and the API's `POST /jobs` do.

use std::sync::Arc;
use std::time::Duration;

use roundelay_broker::PublishError;
use roundelay_config::Config;
use roundelay_ledger::LedgerError;
use roundelay_model::clock::Time;
use roundelay_model::job::Envelope;
use roundelay_model::outcome::NewJob;
use serde_json::Value;

use crate::connections::Connections;
use crate::dispatch::Dispatch;
use crate::sealing;

/// A job that is to run once, outside any chain.
#[derive(Clone, Debug)]
pub struct Publication {
    /// Which handler.
    pub kind: String,
    /// Which entity.
    pub key: String,
    /// What the handler gets.
    pub payload: Value,
    /// Not before this time has passed.
    pub delay: Option<Duration>,
    /// The platform queue, in place of the kind's.
    pub queue: Option<String>,
    /// Who it belongs to.
    pub owner: Option<String>,
    /// Its own id, the same on every attempt.
    pub id: String,
}

/// Publishes one-off jobs.
#[derive(Clone)]
pub struct Publisher {
    config: Arc<Config>,
    connections: Connections,
}

impl Publisher {
    /// A publisher for the kinds and queues of `config`.
    pub fn new(config: &Config, connections: Connections) -> Self {
        Self { config: Arc::new(config.clone()), connections }
    }

    /// Publishes a job under a new id. Where the embedded broker keeps no messages, the job goes into the ledger, and
    /// the next start of a worker takes it from there.
    ///
    /// # Errors
    /// [`PublicationError::Invalid`] when no worker could run the job: its kind or queue is not in the configuration,
    /// for example. Else it is not known whether the job is safe; see [`Self::publish_as`].
    pub async fn publish(&self, job: NewJob) -> Result<Published, PublicationError> {
        self.publish_as(self.connections.entropy.token(), job).await
    }

    /// Publishes a job under this id, which handlers see as [`Job::id`](roundelay_model::job::Job::id). After an error
    /// a program publishes the job again under the same id, so that a handler that is idempotent on it does the work
    /// once.
    ///
    /// # Errors
    /// Those of [`Self::publish`].
    pub async fn publish_as(&self, id: impl Into<String>, job: NewJob) -> Result<Published, PublicationError> {
        let NewJob { kind, key, payload, queue, delay, owner } = job;
        let delay = (!delay.is_zero()).then_some(delay);
        let publication = Publication { kind, key, payload, delay, queue, owner, id: id.into() };
        publication.check(&self.config)?.send(&self.config, &self.connections).await
    }
}

/// Why a job was not published; phrased to follow "failed to publish: ".
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublicationError {
    /// There can be no such job.
    #[error("{0}")]
    Invalid(String),
    /// The broker did not confirm it.
    #[error(transparent)]
    Broker(#[from] PublishError),
    /// The ledger could not keep it.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// A job that can be published.
#[derive(Clone, Debug)]
pub struct Checked {
    publication: Publication,
    queue: String,
}

/// A job that is safe: the broker has confirmed it, or the ledger keeps it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Published {
    /// Its id.
    pub id: String,
    /// Which handler.
    pub kind: String,
    /// Which entity.
    pub key: String,
    /// The platform queue.
    pub queue: String,
    /// When it is due, if not at once.
    pub due: Option<Time>,
    /// Who it belongs to.
    pub owner: Option<String>,
}

impl Publication {
    /// Looks whether there can be such a job (pure).
    ///
    /// # Errors
    /// [`PublicationError::Invalid`].
    pub fn check(self, config: &Config) -> Result<Checked, PublicationError> {
        let invalid = PublicationError::Invalid;
        let kind = config.kind(&self.kind).map_err(invalid)?;
        let queue = match (&self.queue, kind.queue_for(&self.payload)) {
            (Some(queue), _) => queue.clone(),
            (None, Ok(Some(queue))) => queue,
            (None, Ok(None)) => {
                return Err(invalid(format!("kinds.{} names no queue; name one for the job", self.kind)));
            }
            (None, Err(why)) => {
                return Err(invalid(format!("{why}; name a queue for the job, or give its fields in the payload")));
            }
        };
        config.queue(&queue).map_err(invalid)?;
        let checked = Checked { publication: self, queue };
        // By the engine's own reader: what is accepted here is not refused there.
        let body = checked.envelope(None).encode();
        Envelope::decode(&body).map_err(|error| invalid(format!("a worker would refuse this job: {error}")))?;
        Ok(checked)
    }
}

impl Checked {
    fn envelope(&self, due: Option<Time>) -> Envelope {
        let Publication { kind, key, payload, owner, id, .. } = &self.publication;
        let mut envelope = Envelope::job(kind, key, payload.clone(), id.clone());
        envelope.queue = Some(self.queue.clone());
        envelope.owner.clone_from(owner);
        match due {
            Some(due) => envelope.due_at(due),
            None => envelope,
        }
    }

    /// Publishes it.
    ///
    /// # Errors
    /// When it is not known to be safe; then the same may be published again.
    pub async fn send(self, config: &Config, connections: &Connections) -> Result<Published, PublicationError> {
        let now = connections.ledger.now();
        let due = self.publication.delay.map(|delay| now + delay);
        let envelope = self.envelope(due);
        if connections.broker.keeps_messages() {
            Dispatch::new(config, connections).send(&envelope, &self.queue, now).await?;
        } else {
            // The embedded broker lives in the worker's process; it takes the job from the ledger.
            let body = sealing::encode(&config.encryption, &envelope);
            connections.ledger.keep_job(self.publication.id.clone(), body).await?;
        }
        let Publication { id, kind, key, owner, .. } = self.publication;
        Ok(Published { id, kind, key, queue: self.queue, due, owner })
    }
}
