//! Verbs on throttles while workers run: hold, release, set limits, reset limits.

use std::time::Duration;

use roundelay_config::check_limits;
use roundelay_engine::throttle::throttled::time;
use roundelay_model::pacing::orders::{MAX_ORDER_SPAN, Orders, ThrottleOrder};
use roundelay_model::pacing::slots::Window;
use roundelay_model::pacing::{ThrottleScope, ThrottleSettings};
use roundelay_model::wall_clock::At;

use super::{OperateError, Operator, Ordered, Result, bad, reason};
use crate::inspect::throttles::look;

/// Limits in place of the configured ones. A field that is left out keeps the value in force; a burst that would exceed
/// `allow` becomes `allow`.
#[derive(Clone, Copy, Debug)]
pub struct NewLimits {
    /// How many starts each window allows.
    pub allow: u32,
    /// The length of the window.
    pub per: Option<Duration>,
    /// How many starts may follow each other at once after a pause.
    pub burst: Option<u32>,
}

/// Sets limits in place of the configured ones. Additional windows (`also`) stay as configured.
///
/// # Errors
/// When there is no such throttle, the limits allow no start, or the ledger does not answer.
pub async fn set(operator: &Operator<'_>, name: &str, limits: NewLimits) -> Result<Ordered<Orders>> {
    let settings = settings(operator, name)?;
    let before = operator.ledger.throttle_orders().await?.remove(name).unwrap_or_default();
    let in_force = before.limits(&settings.limits);
    let window = Window { allow: limits.allow, per: limits.per.unwrap_or(in_force.window.per) };
    let burst = limits.burst.unwrap_or(in_force.burst.min(limits.allow));
    check_limits(name, window, burst, &operator.config).map_err(OperateError::Bad)?;
    let orders = order(operator, name, ThrottleOrder::Limits { window, burst }).await?;
    let when = match settings.scope {
        ThrottleScope::Worker => "each worker knows of it within two seconds",
        ThrottleScope::Fleet => "it holds for all workers from the next slot on, until `roundelay throttle reset`",
    };
    Ok(Ordered { words: format!("{name}: {}; {when}", in_words(settings, &orders)), orders })
}

/// Restores the configured limits.
///
/// # Errors
/// When there is no such throttle, or the ledger does not answer.
pub async fn reset(operator: &Operator<'_>, name: &str) -> Result<Ordered<Orders>> {
    let settings = settings(operator, name)?;
    let orders = order(operator, name, ThrottleOrder::Reset).await?;
    Ok(Ordered { words: format!("{name}: {}", in_words(settings, &orders)), orders })
}

/// Holds a throttle: nothing starts for a while. What runs finishes.
///
/// # Errors
/// When there is no such throttle, the reason is empty, the time is out of range, or the ledger does not answer.
pub async fn hold(operator: &Operator<'_>, name: &str, span: Duration, why: &str) -> Result<Ordered<Orders>> {
    settings(operator, name)?;
    let why = reason(why).map_err(|wrong| bad("why", wrong))?.to_owned();
    check_span(span).map_err(|wrong| bad("for", wrong))?;
    let orders = order(operator, name, ThrottleOrder::Hold { span, why }).await?;
    let until = At::of(time(orders.held_until()), &operator.ledger.wall_clock());
    Ok(Ordered { words: format!("{name}: nothing starts until {until}; what runs finishes"), orders })
}

/// Whether a throttle can be held for this time.
///
/// # Errors
/// The bounds of the time.
pub fn check_span(span: Duration) -> std::result::Result<(), &'static str> {
    if span < Duration::from_millis(1) || span > MAX_ORDER_SPAN { Err("from 1ms to 366d is possible") } else { Ok(()) }
}

/// Ends a hold, of an operator or of an upstream. The throttle reopens with a slow start.
///
/// # Errors
/// When there is no such throttle, or the ledger does not answer.
pub async fn release(operator: &Operator<'_>, name: &str) -> Result<Ordered<Orders>> {
    settings(operator, name)?;
    let orders = order(operator, name, ThrottleOrder::Release).await?;
    let now = look(name, None, &operator.config, operator.ledger).await?;
    let words = format!("{name}: released; {}", now.in_the_way.unwrap_or_else(|| "it is open".into()));
    Ok(Ordered { words, orders })
}

/// The limits in force, and the configured ones where they differ (pure).
pub fn in_words(settings: &ThrottleSettings, orders: &Orders) -> String {
    match &orders.limits {
        None => format!("{}, as configured", settings.limits),
        Some(_) => format!("{}, in place of the configured {}", orders.limits(&settings.limits), settings.limits),
    }
}

fn settings<'a>(operator: &'a Operator<'_>, name: &str) -> Result<&'a ThrottleSettings> {
    operator.config.throttle(name).map_err(OperateError::Unknown)
}

async fn order(operator: &Operator<'_>, name: &str, order: ThrottleOrder) -> Result<Orders> {
    Ok(operator.ledger.order_throttle(name.to_owned(), order, operator.by.clone()).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_how_long_a_throttle_can_be_held() {
        let day = Duration::from_secs(86_400);
        let table = [
            (Duration::ZERO, false),
            (Duration::from_micros(999), false),
            (Duration::from_millis(1), true),
            (366 * day, true),
            (366 * day + Duration::from_millis(1), false),
        ];
        for (span, fine) in table {
            assert_eq!(check_span(span).is_ok(), fine, "{span:?}");
        }
    }
}
