//! Whether a throttle is why nothing starts, in words for people.
//!
//! What throttles remember and what operators have ordered of them is in the ledger, so no worker
//! is asked. The words are pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use roundelay_ledger::{Ledger, LedgerError};
use roundelay_model::clock::{Time, short_duration};
use roundelay_model::pacing::orders::Orders;
use roundelay_model::pacing::slots::{Limits, Micros, State, View};
use roundelay_model::pacing::{ThrottleScope, ThrottleSettings};
use roundelay_model::wall_clock::{At, WallClock};

/// Keys of one throttle that are looked at: those that are idle last.
const KEYS: u32 = 100;
/// A slot that opens sooner is no wait to speak of.
const SOON: Micros = 1_000_000;

/// How a throttle is.
#[derive(Clone, Debug)]
pub struct Throttled {
    /// Its name.
    pub name: String,
    /// As configured.
    pub settings: ThrottleSettings,
    /// The limits in force.
    pub limits: Arc<Limits>,
    /// What operators have ordered.
    pub orders: Orders,
    /// Its keys that were looked at, those that are idle last first. One that has no keys is its own, with an empty
    /// name, also when nothing is remembered of it.
    pub keys: Vec<(String, View)>,
    /// How many keys are remembered.
    pub remembered: u64,
    /// When it was looked at, in microseconds by the ledger's clock.
    pub now: Micros,
    /// How the wall clock stood to that.
    pub wall_clock: Arc<WallClock>,
}

impl Throttled {
    /// A time of the throttle as the wall clock shows it.
    pub fn at(&self, micros: Micros) -> At {
        At::of(time(micros), &self.wall_clock)
    }

    /// Looks at throttles.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn look(
        throttles: impl IntoIterator<Item = (String, ThrottleSettings)>,
        ledger: &dyn Ledger,
    ) -> Result<Vec<Self>, LedgerError> {
        let orders = ledger.throttle_orders().await?;
        let mut all = Vec::new();
        for (name, settings) in throttles {
            all.push(Self::of_key(name, settings, None, &orders, ledger).await?);
        }
        Ok(all)
    }

    /// Looks at one, and at no other of its keys than `key`, if that is given.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn look_at(
        name: &str,
        settings: &ThrottleSettings,
        key: Option<String>,
        ledger: &dyn Ledger,
    ) -> Result<Self, LedgerError> {
        let orders = ledger.throttle_orders().await?;
        Self::of_key(name.into(), settings.clone(), key, &orders, ledger).await
    }

    async fn of_key(
        name: String,
        settings: ThrottleSettings,
        key: Option<String>,
        orders: &BTreeMap<String, Orders>,
        ledger: &dyn Ledger,
    ) -> Result<Self, LedgerError> {
        let orders = orders.get(&name).cloned().unwrap_or_default();
        // A key that was there before the throttle had any, or the other way round, means nothing now.
        let key = if settings.key.is_none() { Some(String::new()) } else { key };
        let rows = ledger.throttle(name.clone(), key.clone(), KEYS).await?;
        let now = ledger.now().as_millis() * 1_000;
        let limits = orders.limits(&settings.limits).into_owned();
        let remembered = rows.first().map_or(0, |row| row.keys);
        let mut keys: Vec<(String, View)> =
            rows.into_iter().map(|row| (row.key, row.state.view(&limits, now, &orders))).collect();
        if let Some(key) = key.filter(|_| keys.is_empty()) {
            keys.push((key, State::default().view(&limits, now, &orders)));
        }
        Ok(Self { name, settings, limits, orders, keys, remembered, now, wall_clock: ledger.wall_clock() })
    }

    /// Why starts wait for it, if they do, for a person. `waiting` is how many do, if that is known.
    pub fn in_the_way(&self, waiting: Option<i64>) -> Option<String> {
        let name = &self.name;
        let wait = waiting.filter(|count| *count > 0).map_or_else(String::new, |count| format!(", {count} wait"));
        // Known of keys, too, of which nothing is remembered.
        let ordered = State::default().view(&self.limits, self.now, &self.orders);
        if ordered.held.is_some() && self.settings.key.is_some() {
            return self.words(&format!("the throttle {name}"), &ordered).map(|words| words + &wait);
        }
        let mut told: Vec<(&String, &View, String)> = Vec::new();
        for (key, view) in &self.keys {
            let what = match self.settings.key {
                Some(_) => format!("the throttle {name} for `{key}`"),
                None => format!("the throttle {name}"),
            };
            told.extend(self.words(&what, view).map(|words| (key, view, words)));
        }
        let (_, _, words) = told.iter().max_by_key(|(_, view, _)| view.opens)?;
        let others = match told.len() - 1 {
            0 => String::new(),
            1 => "; so it is with 1 key more".into(),
            more => format!("; so it is with {more} keys more"),
        };
        Some(format!("{words}{wait}{others}"))
    }

    fn words(&self, what: &str, view: &View) -> Option<String> {
        let next = format!("the next slot opens {}", self.from_now(view.opens));
        if let Some(held) = &view.held {
            let by = held.by.as_ref().map_or_else(String::new, |by| format!(" (by order of {by})"));
            let until = format!("{} ({})", self.at(held.until), self.from_now(held.until));
            return Some(format!("{what} is held until {until}: {}{by}", held.why));
        }
        if view.tripped {
            return Some(format!("{what} lets one start at a time try whether its upstream works again: {next}"));
        }
        if view.waiting.is_empty() && view.opens <= self.now + SOON {
            return None;
        }
        if let Some((apart, until)) = view.budget {
            let apart = short(apart);
            let until = self.at(until);
            return Some(format!(
                "{what} lets one start every {apart}, so that its upstream's budget lasts until {until}: {next}"
            ));
        }
        let used: Vec<String> = view
            .used
            .iter()
            .map(|(window, used)| format!("{used} of {} in {}", window.allow, short_duration(window.per)))
            .collect();
        let gently = view
            .slow_start_until
            .map_or_else(String::new, |until| format!(", in its slow start after a hold, until {}", self.at(until)));
        Some(format!("{what} is used up ({}){gently}: {next}", used.join(", ")))
    }

    /// Whether its upstream holds it or is short of budget, or a breaker has tripped: neither an operator's order nor its
    /// own limits.
    pub fn is_in_trouble(&self) -> bool {
        let of_upstream = |view: &View| view.held.as_ref().is_some_and(|held| held.by.is_none());
        self.keys.iter().any(|(_, view)| of_upstream(view) || view.tripped || view.budget.is_some())
    }

    /// Whether one limit holds for all its jobs, on all workers: what chains need can then be compared with it.
    pub fn is_countable(&self) -> bool {
        self.settings.key.is_none() && self.is_counted_here()
    }

    /// How far away a time is, in words.
    pub fn from_now(&self, at: Micros) -> String {
        let away = Duration::from_micros(u64::try_from(at - self.now).unwrap_or(0));
        match away.as_secs() {
            0 if away.is_zero() => "now".into(),
            0 => "in less than 1s".into(),
            secs => format!("in {}", humantime::format_duration(Duration::from_secs(secs))),
        }
    }

    /// Whether the ledger knows what starts: else each worker counts for itself, and only orders are known here.
    pub fn is_counted_here(&self) -> bool {
        self.settings.scope == ThrottleScope::Fleet
    }
}

/// For people and for JSON, which count in milliseconds.
pub fn time(micros: Micros) -> Time {
    Time::from_millis(micros.div_euclid(1_000))
}

fn short(span: Duration) -> String {
    short_duration(Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use roundelay_config::Config;
    use roundelay_model::pacing::orders::ThrottleOrder;
    use roundelay_model::pacing::slots::{Breaker, Feedback, GrantRequest, StartRequest};

    const S: Micros = 1_000_000;

    fn throttled(
        change: &str,
        keys: &[&str],
        words: &[Feedback],
        requests: usize,
        orders: &[ThrottleOrder],
    ) -> Throttled {
        let text = format!("[throttles.ios]\nallow = 6\nper = \"1m\"\n{change}");
        let settings = Config::parse(&text, "r.toml", []).unwrap().throttles["ios"].clone();
        let (now, mut all) = (1_000 * S, Orders::default());
        orders.iter().for_each(|order| all.add(order, "ann@ops", now));
        let limits = all.limits(&settings.limits).into_owned();
        let mut state = State::default();
        words.iter().for_each(|word| state.apply(&limits, now, word));
        state.grant(
            &limits,
            &GrantRequest {
                now,
                ahead: 0,
                requests: &vec![StartRequest { priority: 0, cost: 1, probe: false }; requests],
            },
        );
        let view = state.view(&limits, now + S, &all);
        let keys: Vec<(String, View)> = keys.iter().map(|key| ((*key).to_owned(), view.clone())).collect();
        let remembered = keys.len() as u64;
        Throttled {
            name: "ios".into(),
            settings,
            limits,
            orders: all,
            keys,
            remembered,
            now: now + S,
            wall_clock: Arc::default(),
        }
    }

    #[test]
    fn a_table_of_what_is_in_the_way() {
        let until = 1_015 * S;
        let hold = || ThrottleOrder::Hold { span: Duration::from_secs(3_600), why: "they are down".into() };
        let (wait, patience) = (Duration::from_millis(1), Duration::from_secs(60));
        let breaker = Breaker { failures: 1, wait, longest: wait, patience };
        let open = || Feedback::Failed { probe: false, breaker, why: "HTTP 500".into() };
        let asked = |until| Feedback::Hold { until, why: "HTTP 429".into() };
        let budget = || Feedback::Budget { remaining: 4, reset: 1_120 * S, enough: 50 };
        let keyed = "key = \"payload.channel\"";
        let table = [
            (throttled("", &[""], &[], 0, &[]), None),
            (
                throttled("", &[""], &[asked(until)], 1, &[]),
                Some("the throttle ios is held until 1970-01-01T00:16:55.000Z (in 14s): HTTP 429"),
            ),
            (
                throttled("", &[""], &[asked(until)], 1, &[hold()]),
                Some(
                    "the throttle ios is held until 1970-01-01T01:16:40.000Z (in 59m 59s): they are down (by order of \
                     ann@ops), 7 wait",
                ),
            ),
            (
                throttled("", &[""], &[open()], 2, &[]),
                Some(
                    "the throttle ios lets one start at a time try whether its upstream works again: the next slot \
                     opens in 59s, 7 wait",
                ),
            ),
            (
                throttled("", &[""], &[budget()], 2, &[]),
                Some(
                    "the throttle ios lets one start every 30s, so that its upstream's budget lasts until \
                     1970-01-01T00:18:40.000Z: the next slot opens in 28s, 7 wait",
                ),
            ),
            (
                throttled("", &[""], &[], 2, &[]),
                Some("the throttle ios is used up (1 of 6 in 60s): the next slot opens in 8s, 7 wait"),
            ),
            (
                throttled("burst = 3", &[""], &[asked(999 * S)], 2, &[]),
                Some("the throttle ios is used up (1 of 6 in 60s), in its slow start after a hold, until"),
            ),
            (throttled(keyed, &[], &[], 0, &[]), None),
            (throttled(keyed, &[], &[], 0, &[hold()]), Some("the throttle ios is held until ")),
            (
                throttled(keyed, &["c-1", "c-2", "c-3"], &[], 2, &[]),
                Some(
                    "the throttle ios for `c-3` is used up (1 of 6 in 60s): the next slot opens in 8s, 7 wait; so it \
                     is with 2 keys more",
                ),
            ),
        ];
        for (throttled, words) in table {
            match (throttled.in_the_way(Some(7)), words) {
                (None, None) => {}
                (Some(told), Some(words)) => assert!(told.starts_with(words), "`{told}` should begin with `{words}`"),
                (told, words) => panic!("{told:?} in place of {words:?}"),
            }
        }
    }

    #[test]
    fn how_far_away_a_time_is() {
        let throttled = throttled("", &[""], &[], 0, &[]);
        let table = [(-1, "now"), (0, "now"), (S / 2, "in less than 1s"), (9 * S + 1, "in 9s"), (90 * S, "in 1m 30s")];
        for (away, words) in table {
            assert_eq!(throttled.from_now(throttled.now + away), words);
        }
    }
}
