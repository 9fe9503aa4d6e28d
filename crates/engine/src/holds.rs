//! What operators have stopped, so that no screen, metric or alert takes it for a fault (pure).
//!
//! There is one judgement ([`Holds`]). The census counts what it holds apart from what is overdue, and lists say `held`
//! where they would else say `late`.

use std::collections::BTreeMap;

use roundelay_config::Config;
use roundelay_ledger::{Ledger, LedgerError};
use roundelay_model::clock::Time;
use roundelay_model::fleet::{FleetOrders, Subject};
use roundelay_model::pacing::orders::Orders;
use roundelay_model::wall_clock::{At, WallClock};

use crate::throttle::throttled::time;

/// An operator's order that lets nothing of a queue start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// What was stopped.
    pub what: Held,
    /// The operator.
    pub by: String,
    /// When the order came, by the ledger's clock.
    pub at: Time,
    /// When it ends by itself; never without it.
    pub until: Option<Time>,
    /// The operator's reason.
    pub why: String,
}

/// What an operator has stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// The platform queue of this name.
    Queue(String),
    /// The throttle of this name, which paces the queue.
    Throttle(String),
}

impl Hold {
    /// Who holds it, since when, until when, why, and the command that ends it, for a person.
    pub fn words(&self, wall_clock: &WallClock) -> String {
        let Self { what, by, at, until, why } = self;
        let (name, command) = match what {
            Held::Queue(name) => (format!("the queue {name} is paused"), format!("roundelay queue resume {name}")),
            Held::Throttle(name) => {
                (format!("the throttle {name} is held"), format!("roundelay throttle release {name}"))
            }
        };
        let at = At::of(*at, wall_clock);
        let until = until.map_or_else(String::new, |until| format!(" until {}", At::of(until, wall_clock)));
        format!("{name} by {by} since {at}{until}: {why} (`{command}` lets it go on)")
    }
}

/// The orders that let nothing start, by queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds(BTreeMap<String, Hold>);

impl Holds {
    /// The queues that are held at `now`: by an order for the queue itself, or for the throttle that paces it. `queues`
    /// are those of the configuration, each with its throttle.
    pub fn new<'a>(
        queues: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
        orders: &BTreeMap<Subject, FleetOrders>,
        throttles: &BTreeMap<String, Orders>,
        now: Time,
    ) -> Self {
        let mut all = BTreeMap::new();
        for (queue, throttle) in queues {
            let Some(name) = throttle else { continue };
            let Some(hold) = throttles.get(name).and_then(|orders| orders.hold.as_ref()) else { continue };
            if time(hold.until) > now {
                let (by, why) = (hold.by.clone(), hold.why.clone());
                let (at, until) = (time(hold.at), Some(time(hold.until)));
                all.insert(queue.to_owned(), Hold { what: Held::Throttle(name.to_owned()), by, at, until, why });
            }
        }
        // A pause goes first: only a person ends it.
        for (subject, orders) in orders {
            if let (Subject::Queue(queue), Some(closed)) = (subject, &orders.closed) {
                let (by, at, why) = (closed.by.clone(), closed.at, closed.why.clone());
                all.insert(queue.clone(), Hold { what: Held::Queue(queue.clone()), by, at, until: None, why });
            }
        }
        Self(all)
    }

    /// Those of a configuration, as the ledger has them now.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn look(config: &Config, ledger: &dyn Ledger) -> Result<Self, LedgerError> {
        let (orders, throttles) = (ledger.fleet_orders().await?, ledger.throttle_orders().await?);
        Ok(Self::of(config, &orders, &throttles, ledger.now()))
    }

    /// Those of a configuration.
    pub fn of(
        config: &Config,
        orders: &BTreeMap<Subject, FleetOrders>,
        throttles: &BTreeMap<String, Orders>,
        now: Time,
    ) -> Self {
        let queues = config.queues.iter().map(|(name, queue)| (name.as_str(), queue.throttle.as_deref()));
        Self::new(queues, orders, throttles, now)
    }

    /// The order that lets nothing of this queue start.
    pub fn get(&self, queue: &str) -> Option<&Hold> {
        self.0.get(queue)
    }

    /// The order that holds this throttle, if the throttle paces a queue.
    pub fn of_throttle(&self, name: &str) -> Option<&Hold> {
        self.0.values().find(|hold| matches!(&hold.what, Held::Throttle(throttle) if throttle == name))
    }

    /// The names of the held queues.
    pub fn queues(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// The held queues, each with its order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Hold)> {
        self.0.iter().map(|(queue, hold)| (queue.as_str(), hold))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use roundelay_model::fleet::FleetOrder;
    use roundelay_model::pacing::orders::ThrottleOrder;

    use super::*;

    #[test]
    fn a_queue_is_held_by_its_own_pause_or_by_its_throttle_s_hold() {
        let now = Time::from_millis(1_000_000);
        let micros = now.as_millis() * 1_000;
        let mut pause = FleetOrders::default();
        pause.add(FleetOrder::Close { why: "deploy".into() }, "ann", now);
        let orders = BTreeMap::from([
            (Subject::Queue("paused".into()), pause.clone()),
            (Subject::Queue("both".into()), pause.clone()),
            // A drained worker holds no queue: others may consume it.
            (Subject::Worker("paced".into()), pause),
        ]);
        let mut ios = Orders::default();
        ios.add(&ThrottleOrder::Hold { span: Duration::from_secs(60), why: "banned".into() }, "bob", micros);
        let mut released = ios.clone();
        released.add(&ThrottleOrder::Release, "bob", micros);
        let throttles = BTreeMap::from([("ios".to_owned(), ios), ("released".to_owned(), released)]);
        let queues = [
            ("paused", None),
            ("both", Some("ios")),
            ("paced", Some("ios")),
            ("open", Some("released")),
            ("free", None),
        ];
        let at = |now| {
            let holds = Holds::new(queues, &orders, &throttles, now);
            holds.iter().map(|(queue, hold)| (queue.to_owned(), hold.by.clone())).collect::<Vec<_>>()
        };
        let by = |queue: &str, by: &str| (queue.to_owned(), by.to_owned());
        assert_eq!(at(now), [by("both", "ann"), by("paced", "bob"), by("paused", "ann")]);
        assert_eq!(at(now + Duration::from_secs(60)), [by("both", "ann"), by("paused", "ann")], "the hold is over");
        let holds = Holds::new(queues, &orders, &throttles, now);
        let words = |queue| holds.get(queue).unwrap().words(&WallClock::default());
        assert_eq!(
            words("paused"),
            "the queue paused is paused by ann since 1970-01-01T00:16:40.000Z: deploy \
             (`roundelay queue resume paused` lets it go on)"
        );
        assert_eq!(
            words("paced"),
            "the throttle ios is held by bob since 1970-01-01T00:16:40.000Z until 1970-01-01T00:17:40.000Z: banned \
             (`roundelay throttle release ios` lets it go on)"
        );
    }
}
