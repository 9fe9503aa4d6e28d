//! What an operator has ordered for a throttle, beside what the configuration says (pure).
//!
//! Orders lie in the ledger, one row for each throttle, and are read with what the throttle
//! remembers. So they are in force for every worker and every key from the next slot on, without
//! messages to the workers. Limits take the place of the configured ones, except for the further windows, which
//! stay as they are. A hold adds to what an upstream has asked for: the later of both counts.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::slots::Micros;
use crate::pacing::slots::limits::{Limits, Window};

/// The longest window and hold.
pub const MAX_ORDER_SPAN: Duration = Duration::from_secs(366 * 86_400);

/// All orders for a throttle that are in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    /// Rises with each order and never goes back; 0 before the first.
    #[serde(default)]
    pub version: i64,
    /// Limits in place of the configured ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<OrderedLimits>,
    /// The last hold; it may be over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<OrderedHold>,
    /// The version of the last release, which ended all holds that were in force then, those that an
    /// upstream had asked for among them.
    #[serde(default)]
    pub released: i64,
}

/// Limits that an operator has ordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderedLimits {
    /// How many starts, at least 1.
    pub allow: u32,
    /// The window's length, at least 1.
    pub per_ms: u64,
    /// How many starts may follow each other at once, from 1 to `allow`.
    pub burst: u32,
    /// The operator.
    pub by: String,
    /// When the order came, by the reader's clock.
    pub at: Micros,
}

/// A hold that an operator has ordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderedHold {
    /// Nothing starts before, by the reader's clock.
    pub until: Micros,
    pub why: String,
    /// The operator.
    pub by: String,
    /// When the order came, by the reader's clock.
    pub at: Micros,
}

/// One order of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThrottleOrder {
    /// These limits take the place of the configured ones.
    Limits {
        /// The window that paces.
        window: Window,
        /// How many may start back to back.
        burst: u32,
    },
    /// The configured limits are in force again.
    Reset,
    /// Nothing starts for `span` from now. This hold replaces the one that was ordered before.
    Hold { span: Duration, why: String },
    /// All holds end, an operator's and an upstream's.
    Release,
}

impl Orders {
    /// Adds an order, which `by` gave at `now`.
    pub fn add(&mut self, order: &ThrottleOrder, by: &str, now: Micros) {
        // A clock that was set back must not make a new order look like an old one.
        self.version = now.max(self.version + 1);
        let by = by.to_owned();
        match order {
            ThrottleOrder::Limits { window, burst } => {
                let per_ms = u64::try_from(window.per.as_millis()).unwrap_or(u64::MAX);
                self.limits = Some(OrderedLimits { allow: window.allow, per_ms, burst: *burst, by, at: now });
            }
            ThrottleOrder::Reset => self.limits = None,
            ThrottleOrder::Hold { span, why } => {
                let until = now.saturating_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX));
                self.hold = Some(OrderedHold { until, why: why.clone(), by, at: now });
            }
            ThrottleOrder::Release => {
                self.released = self.version;
                // The hold has ended now: the slow start counts from this time.
                if let Some(hold) = &mut self.hold {
                    hold.until = hold.until.min(now);
                }
            }
        }
    }

    /// The limits in force: the ordered ones, or `configured`.
    pub fn limits<'a>(&self, configured: &'a Arc<Limits>) -> Cow<'a, Arc<Limits>> {
        let Some(ordered) = &self.limits else { return Cow::Borrowed(configured) };
        let window = Window { allow: ordered.allow.max(1), per: Duration::from_millis(ordered.per_ms.max(1)) };
        let burst = ordered.burst.clamp(1, window.allow);
        Cow::Owned(Arc::new(Limits { window, burst, also: configured.also.clone() }))
    }

    /// Until when an operator's hold lasts; a time in the past if there is none.
    pub fn held_until(&self) -> Micros {
        self.hold.as_ref().map_or(0, |hold| hold.until)
    }

    /// The same by a clock that shows `by` more.
    #[must_use]
    pub fn moved(mut self, by: Micros) -> Self {
        let hold = self.hold.as_mut().map(|hold| [&mut hold.until, &mut hold.at]);
        let limits = self.limits.as_mut().map(|limits| &mut limits.at);
        for at in hold.into_iter().flatten().chain(limits) {
            *at = at.saturating_add(by);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Micros = 1_000_000;

    fn window(allow: u32, secs: u64) -> Window {
        Window { allow, per: Duration::from_secs(secs) }
    }

    #[test]
    fn orders_replace_the_first_window_only() {
        let configured = Arc::new(Limits { window: window(5, 60), burst: 2, also: vec![window(100, 3_600)] });
        let mut orders = Orders::default();
        assert_eq!(orders.limits(&configured).as_ref(), &configured);
        orders.add(&ThrottleOrder::Limits { window: window(20, 10), burst: 4 }, "ann", 7 * S);
        let limits = orders.limits(&configured);
        assert_eq!((limits.window, limits.burst, &limits.also), (window(20, 10), 4, &configured.also));
        let said = orders.limits.as_ref().unwrap();
        assert_eq!((&*said.by, said.at), ("ann", 7 * S));
        orders.add(&ThrottleOrder::Reset, "ann", 8 * S);
        assert_eq!(orders.limits(&configured).as_ref(), &configured);
    }

    #[test]
    fn orders_hold_replaces_the_one_before_and_release_ends_it() {
        let hold = |secs| ThrottleOrder::Hold { span: Duration::from_secs(secs), why: "they are down".into() };
        let mut orders = Orders::default();
        orders.add(&ThrottleOrder::Release, "ann", S);
        assert_eq!((orders.held_until(), orders.released), (0, S));
        orders.add(&hold(600), "ann", 10 * S);
        orders.add(&hold(60), "bob", 20 * S);
        assert_eq!((orders.held_until(), &*orders.hold.as_ref().unwrap().by), (80 * S, "bob"));
        assert_eq!(orders.clone().moved(-20 * S).held_until(), 60 * S);
        orders.add(&ThrottleOrder::Release, "ann", 30 * S);
        assert_eq!((orders.held_until(), orders.released), (30 * S, 30 * S));
        // A hold that is over stays over.
        orders.add(&ThrottleOrder::Release, "ann", 40 * S);
        assert_eq!(orders.held_until(), 30 * S);
    }

    #[test]
    fn orders_versions_rise_whatever_the_clock_does() {
        let mut orders = Orders::default();
        let mut before = 0;
        for now in [5 * S, 5 * S, 3 * S, 9 * S] {
            orders.add(&ThrottleOrder::Reset, "ann", now);
            assert!(orders.version > before);
            before = orders.version;
        }
    }
}
