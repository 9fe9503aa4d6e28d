//! Sends messages to sleep, and sees them confirmed.

use std::sync::Arc;
use std::time::Duration;

use roundelay_broker::{Broker, Destination, Message, PublishError, Way};
use roundelay_config::Config;
use roundelay_ledger::Ledger;
use roundelay_model::clock::Time;
use roundelay_model::job::Envelope;
use roundelay_model::ladder::{AT_THE_DOOR, Hop, Ladder};
use roundelay_model::lanes::Lanes;
use roundelay_model::spread::HotRungs;
use roundelay_model::topology::Names;
use tokio::time::sleep;

use crate::connections::Connections;
use crate::delays;
use crate::pace::Pace;
use crate::sealing::{self, Sealing};
use crate::spread::Heat;
use crate::telemetry::{Count, Telemetry};

/// A delay decided this long ago may still use the exact rung it was meant for, and be late by
/// that much; after longer the remainder is climbed anew.
const MAX_SLOP: Duration = Duration::from_millis(100);
/// The waits between repeated publishes grow to this.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// When a due time was chosen, and how the message came on whose end it was. A time alone is that of no message.
#[derive(Clone, Copy, Debug)]
pub struct Decided {
    /// When.
    pub at: Time,
    /// The broker handed the message over late, though there was room for it.
    pub handed_late: bool,
}

impl From<Time> for Decided {
    fn from(at: Time) -> Self {
        Self { at, handed_late: false }
    }
}

/// The way out.
#[derive(Clone)]
pub struct Dispatch {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) ladder: Ladder,
    pub(super) lanes: Lanes,
    /// The queue for messages that need a further hop.
    pub(super) rearm: String,
    /// Its clock decides what is due, so it also decides how long a message sleeps. A worker's own
    /// may be ahead of it, and then a message would come too early again and again.
    pub(super) ledger: Arc<dyn Ledger>,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) sealing: Sealing,
    /// What is published in bulk waits for it.
    pub(super) pace: Arc<Pace>,
    /// The load of the rungs.
    pub(crate) heat: Arc<Heat>,
}

impl Dispatch {
    /// The way out to `connections`' broker, on the ladder of `config`.
    pub fn new(config: &Config, connections: &Connections) -> Self {
        Self {
            broker: connections.broker.clone(),
            ladder: config.ladder.clone(),
            lanes: config.lanes(),
            rearm: Names::new(&config.broker.prefix).rearm(),
            ledger: connections.ledger.clone(),
            telemetry: Arc::default(),
            sealing: Sealing::new(config),
            pace: Arc::new(Pace::new(config.broker.bulk_rate)),
            heat: Arc::default(),
        }
    }

    /// Publishes `envelope`, due at its own due time, to its lane of `queue`, once. `decided` is when that time
    /// was chosen: what has passed since may be added to it for the sake of an exact rung.
    ///
    /// # Errors
    /// [`PublishError`], after which the same envelope may be sent again.
    pub async fn send(
        &self,
        envelope: &Envelope,
        queue: &str,
        decided: impl Into<Decided>,
    ) -> Result<(), PublishError> {
        let hops = self.hop(envelope, queue, decided).await?;
        self.telemetry.observe_hops(hops);
        Ok(())
    }

    /// The same for a message that is on its way already. Answers how many hops there are from here on.
    pub(super) async fn hop(
        &self,
        envelope: &Envelope,
        queue: &str,
        decided: impl Into<Decided>,
    ) -> Result<u32, PublishError> {
        let (now, decided) = (self.ledger.now(), decided.into());
        let queue = self.lanes.queue(queue, &envelope.kind, envelope.priority());
        let remaining = envelope.due.map_or(Duration::ZERO, |due| due.since(now));
        let (to, hops) = match delays::way(&*self.broker, &*self.ledger).await {
            Way::Native { ahead } => native(queue, envelope.due.unwrap_or(now), remaining, ahead).await,
            Way::Ladder => self.by_rungs(queue, remaining, now, decided).await,
        };
        let envelope = envelope.travelling(&self.ledger.wall_clock());
        let message = Message::new(to, &sealing::sealed(&self.sealing.keys(), &envelope));
        let sent = self.broker.publish(message).await;
        if let Err(PublishError::Unroutable(_)) = sent
            && !self.broker.sleeping().hot_rungs().is_empty()
        {
            // The siblings of a rung may be gone; the rung itself is always declared.
            self.broker.sleeping().set_hot_rungs(HotRungs::default());
        }
        sent?;
        Ok(hops)
    }

    /// Where to on the ladder, and with how many hops.
    async fn by_rungs(&self, queue: String, remaining: Duration, now: Time, decided: Decided) -> (Destination, u32) {
        let slop = now.since(decided.at).min(MAX_SLOP);
        match self.ladder.hop(remaining, slop) {
            Hop::Now { wait } => {
                if !wait.is_zero() {
                    sleep(wait).await;
                }
                (Destination::Queue(queue), 0)
            }
            Hop::Last { rung } => {
                self.heat.sent(rung, decided.handed_late, now);
                (Destination::Rung { rung: self.broker.sleeping().rung(rung), then: queue }, 1)
            }
            Hop::Further { rung } => {
                let hops = 1 + self.ladder.hops(remaining.saturating_sub(rung));
                (Destination::Rung { rung, then: self.rearm.clone() }, hops)
            }
        }
    }

    /// Publishes `envelope` again and again until it is confirmed or `patience` is over. The same
    /// identity is published each time, so what arrives twice is recognised.
    pub(super) async fn publish_with_retry(
        &self,
        envelope: &Envelope,
        queue: &str,
        decided: impl Into<Decided>,
        patience: Duration,
    ) -> Result<(), PublishError> {
        let decided = decided.into();
        let give_up = self.ledger.now() + patience;
        let mut pause = Duration::from_millis(50);
        loop {
            let Err(error) = self.send(envelope, queue, decided).await else { return Ok(()) };
            if self.ledger.now() >= give_up {
                return Err(error);
            }
            self.telemetry.count(Count::Republished);
            tracing::debug!(kind = envelope.kind, key = envelope.key, %error, "publishing again");
            sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }
}

/// Where to on a broker whose clock is `ahead` by so many milliseconds, and with how many hops. What is next to due is
/// slept here.
async fn native(queue: String, due: Time, remaining: Duration, ahead: i64) -> (Destination, u32) {
    if remaining <= AT_THE_DOOR * 2 {
        sleep(remaining).await;
        return (Destination::Queue(queue), 0);
    }
    let until = Time::from_millis((due - AT_THE_DOOR).as_millis().saturating_add(ahead));
    (Destination::Asleep { queue, until }, 1)
}
