//! `roundelay throttle`: the state of throttles, and orders for them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Error, bail};
use clap::{Args, Subcommand};
use roundelay_admin::operate;
use roundelay_admin::operate::throttle::NewLimits;
use roundelay_admin::operate::{Operator, Ordered, throttle};
use roundelay_config::Config;
use roundelay_engine::throttle::throttled::Throttled;
use roundelay_model::clock::{parse_duration, short_duration};
use roundelay_model::pacing::orders::Orders;
use roundelay_model::pacing::slots::{Limits, View, Window};
use serde_json::{Value, json};

use super::audited::{Order, audited};
use super::fleet::current_user;
use super::progress::waiting;
use super::screen::{self, Tint, field};
use super::steer::ledger;
use super::table::{Cell, Column, Table};
use super::{ConfigFile, grouped};

/// How many keys are shown to people.
const KEYS: usize = 20;

/// Shows throttles, changes their limits, holds and releases them, while workers run.
///
///   roundelay throttle list                                    the state of all of them
///   roundelay throttle show ios                                one, with its orders and who gave them
///   roundelay throttle set ios --allow 20 --per 1m             in place of the configured limits
///   roundelay throttle reset ios                               the configured limits again
///   roundelay throttle hold ios --for 30m --why 'they are down'
///   roundelay throttle release ios                             also a hold that an upstream has asked for
///
/// Orders are kept in the ledger. They hold for all workers, and all keys of a throttle, from the next slot
/// on, and until they are taken back: restarts and changes of the configuration leave them as they are.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Throttle {
    #[command(subcommand)]
    word: Word,
}

#[derive(Subcommand)]
enum Word {
    List(List),
    Show(Show),
    Set(Set),
    /// Restores the configured limits.
    Reset(OrderArgs),
    Hold(Hold),
    /// Ends a hold, of an operator or of an upstream.
    ///
    /// The throttle reopens with a slow start. An upstream with failures counts as working until it fails again, and
    /// the rest of its budget is forgotten.
    Release(OrderArgs),
}

/// Lists the throttles of the configuration.
#[derive(Args)]
struct List {
    #[command(flatten)]
    config: ConfigFile,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Shows one throttle.
#[derive(Args)]
struct Show {
    #[command(flatten)]
    config: ConfigFile,
    /// A name under [throttles].
    name: String,
    /// Only this key.
    key: Option<String>,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Which throttle, and who gives the order.
#[derive(Args)]
struct OrderArgs {
    #[command(flatten)]
    config: ConfigFile,
    /// A name under [throttles].
    name: String,
    /// Who gives the order, for people who read it later.
    #[arg(long, value_name = "NAME", default_value_t = current_user())]
    by: String,
    /// Print a JSON object: the throttle as it is after the order.
    #[arg(long)]
    json: bool,
}

/// Sets limits in place of the configured ones.
///
/// An option that is left out keeps the value in force; a burst that would exceed --allow becomes --allow. Additional
/// windows (`also`) stay as configured.
#[derive(Args)]
struct Set {
    #[command(flatten)]
    about: OrderArgs,
    /// How many starts each window allows.
    #[arg(long, value_name = "N")]
    allow: u32,
    /// The length of the window: `1m`, `10s`.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    per: Option<Duration>,
    /// How many starts may follow each other at once after a pause.
    #[arg(long, value_name = "N")]
    burst: Option<u32>,
}

/// Holds a throttle: nothing starts for a while.
///
/// What runs finishes. Another hold replaces it; a hold that an upstream has asked for counts if it is longer.
#[derive(Args)]
struct Hold {
    #[command(flatten)]
    about: OrderArgs,
    /// How long from now: `30m`.
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    span: Duration,
    /// The reason, for people who ask why nothing runs.
    #[arg(long, value_name = "TEXT")]
    why: String,
}

impl Throttle {
    pub async fn run(self) -> anyhow::Result<()> {
        match self.word {
            Word::List(list) => list.run().await,
            Word::Show(show) => show.run().await,
            Word::Set(Set { about, allow, per, burst }) => {
                let limits = NewLimits { allow, per, burst };
                let detail = json!({ "allow": allow, "per": per.map(short_duration), "burst": burst });
                let set = async |operator: &Operator<'_>, name: &str| throttle::set(operator, name, limits).await;
                about.order(("throttle set", detail), set).await
            }
            Word::Reset(about) => about.order(("throttle reset", json!({})), throttle::reset).await,
            Word::Hold(Hold { about, span, why }) => {
                let detail = json!({ "span": short_duration(span), "why": why });
                let hold = async |operator: &Operator<'_>, name: &str| throttle::hold(operator, name, span, &why).await;
                about.order(("throttle hold", detail), hold).await
            }
            Word::Release(about) => about.order(("throttle release", json!({})), throttle::release).await,
        }
    }
}

impl OrderArgs {
    /// Gives an order, and prints its result, or the throttle as it is after the order.
    async fn order(
        self,
        (command, detail): (&str, Value),
        give: impl AsyncFnOnce(&Operator<'_>, &str) -> operate::Result<Ordered<Orders>>,
    ) -> anyhow::Result<()> {
        let config = Arc::new(self.config.load()?);
        let ledger = ledger(&config).await?;
        let waits = waiting("giving the order to the ledger");
        let operator = Operator { config: config.clone(), ledger: &*ledger, by: self.by };
        let order = Order { by: &operator.by, command, target: self.name.clone(), detail };
        let ordered = audited(&*ledger, order, give(&operator, &self.name)).await?;
        drop(waits);
        if self.json {
            let settings = config.throttle(&self.name).map_err(Error::msg)?;
            return screen::json(&described(&Throttled::look_at(&self.name, settings, None, &*ledger).await?, &config));
        }
        out!("{ordered}");
        Ok(())
    }
}

impl List {
    async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let ledger = ledger(&config).await?;
        let all = Throttled::look(config.throttles.clone(), &*ledger).await?;
        if self.json {
            let throttles: Vec<Value> = all.iter().map(|throttled| described(throttled, &config)).collect();
            return screen::json(&json!({ "throttles": throttles }));
        }
        if all.is_empty() {
            out!("the configuration has no throttles");
            return Ok(());
        }
        let mut table = Table::new([
            Column::name("throttle"),
            Column::text("allows"),
            Column::text("used"),
            Column::text("next slot"),
            Column::number("keys").spare(),
            Column::text("waits"),
        ]);
        for throttled in &all {
            let ordered = if throttled.orders.limits.is_some() { " (ordered)" } else { "" };
            let allows = format!("{}{ordered}", throttled.limits);
            // If there are many keys, the one that was used last.
            let (used, next): (String, String) = match throttled.keys.first() {
                _ if !throttled.is_counted_here() => ("-".into(), "-".into()),
                Some((_, view)) => (used(view), throttled.from_now(view.opens)),
                None => ("-".into(), "now".into()),
            };
            let keys = if throttled.settings.key.is_some() { grouped(throttled.remembered) } else { "-".into() };
            let waits = waits(throttled, &config);
            let waits = if waits.is_empty() { "-".into() } else { waits.join(", ") };
            let name = Cell::from(&throttled.name);
            table.row([name, allows.into(), used.into(), next.into(), keys.into(), waits.into()]);
            if let Some(words) = throttled.in_the_way(None) {
                table.note(words);
            }
        }
        table.print();
        Ok(())
    }
}

impl Show {
    async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let settings = config.throttle(&self.name).map_err(Error::msg)?;
        if let (None, Some(key)) = (&settings.key, &self.key) {
            bail!("the throttle {} has no keys, so none called `{key}`", self.name);
        }
        let ledger = ledger(&config).await?;
        let throttled = Throttled::look_at(&self.name, settings, self.key.clone(), &*ledger).await?;
        if self.json {
            return screen::json(&described(&throttled, &config));
        }
        print(&throttled, &config);
        Ok(())
    }
}

fn print(throttled: &Throttled, config: &Config) {
    let Throttled { name, settings, orders, keys, remembered, .. } = throttled;
    screen::tinted(Tint::Heading, format_args!("{name}"));
    field("allows", &throttle::in_words(settings, orders));
    field("burst", &throttled.limits.burst.to_string());
    if let Some(said) = &orders.limits {
        field("ordered", &format!("by {}, at {}", said.by, throttled.at(said.at)));
    }
    if let Some(hold) = orders.hold.as_ref().filter(|hold| hold.until > throttled.now) {
        let until = format!("until {} ({})", throttled.at(hold.until), throttled.from_now(hold.until));
        field("held", &format!("{until} by {}, since {}: {}", hold.by, throttled.at(hold.at), hold.why));
    }
    field("queues", &queues(name, config).join(", "));
    if !throttled.is_counted_here() {
        field("now", "each worker counts for itself; the metrics of workers tell");
        return;
    }
    if let Some(path) = &settings.key {
        field("keys", &format!("one for each {path}; {} remembered", grouped(*remembered)));
    }
    field("now", &throttled.in_the_way(None).unwrap_or_else(|| "it is open".into()));
    for (key, view) in keys.iter().take(KEYS) {
        let label = if settings.key.is_some() { format!("`{key}`: ") } else { String::new() };
        let held = view.held.as_ref().map_or_else(String::new, |held| {
            format!("; held until {} ({}): {}", throttled.at(held.until), throttled.from_now(held.until), held.why)
        });
        let mut also = String::new();
        if view.tripped {
            also.push_str("; one start at a time tries");
        }
        if let Some((apart, until)) = view.budget {
            also.push_str(&format!("; one every {} by its budget, until {}", rounded(apart), throttled.at(until)));
        }
        if let Some(until) = view.slow_start_until {
            also.push_str(&format!("; slow start until {}", throttled.at(until)));
        }
        let next = throttled.from_now(view.opens);
        field("used", &format!("{label}{}; the next slot opens {next}{held}{also}", used(view)));
    }
    if keys.len() > KEYS {
        field("", "there are more; --json shows 100, and `roundelay throttle show NAME KEY` any of them");
    }
    let waits = waits(throttled, config);
    if !waits.is_empty() {
        field("waits", &waits.join(", "));
    }
}

fn rounded(span: Duration) -> String {
    short_duration(Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
}

/// `3 of 5`, for each window.
fn used(view: &View) -> String {
    let used: Vec<String> = view.used.iter().map(|(window, used)| format!("{used} of {}", window.allow)).collect();
    used.join(", ")
}

/// The queues that a throttle paces.
fn queues(name: &str, config: &Config) -> Vec<String> {
    let paced = config.queues.iter().filter(|(_, queue)| queue.throttle.as_deref() == Some(name));
    paced.map(|(queue, _)| queue.clone()).collect()
}

/// The queues that wait, the highest priority first, as far as the ledger knows.
fn waits(throttled: &Throttled, config: &Config) -> Vec<String> {
    let mut priorities: Vec<i32> = throttled.keys.iter().flat_map(|(_, view)| view.waiting.iter().copied()).collect();
    priorities.sort_unstable_by(|a, b| b.cmp(a));
    priorities.dedup();
    let of = |priority: i32| {
        let queues = queues(&throttled.name, config);
        let queues = queues.into_iter().filter(|queue| config.queues[queue].priority == priority);
        let queues: Vec<String> = queues.collect();
        if queues.is_empty() { format!("priority {priority}") } else { queues.join(", ") }
    };
    priorities.into_iter().map(of).collect()
}

/// Everything about a throttle, as JSON.
pub fn described(throttled: &Throttled, config: &Config) -> Value {
    let Throttled { name, settings, limits, orders, remembered, .. } = throttled;
    let ordered = orders.limits.as_ref().map(|said| json!({ "by": said.by, "at": throttled.at(said.at) }));
    let hold = orders.hold.as_ref().filter(|hold| hold.until > throttled.now);
    let hold =
        hold.map(|hold| json!({ "until": throttled.at(hold.until), "why": hold.why, "by": hold.by, "at": throttled.at(hold.at) }));
    let keys: Vec<Value> = throttled.keys.iter().map(|(key, view)| of_key(key, view, throttled)).collect();
    json!({
        "throttle": name, "queues": queues(name, config), "scope": if throttled.is_counted_here() { "fleet" } else { "worker" },
        "key": settings.key.as_ref().map(ToString::to_string), "keys": remembered,
        "limits": in_json(limits), "configured": in_json(&settings.limits), "ordered": ordered, "hold": hold,
        "in_the_way": throttled.in_the_way(None), "waits": waits(throttled, config), "states": keys,
        "now": throttled.at(throttled.now),
    })
}

fn in_json(limits: &Limits) -> Value {
    let window = |window: Window| json!({ "allow": window.allow, "per_ms": window.per.as_millis() as u64 });
    json!({ "windows": limits.windows().map(window).collect::<Vec<_>>(), "burst": limits.burst })
}

fn of_key(key: &str, view: &View, throttled: &Throttled) -> Value {
    let used: Vec<Value> = view
        .used
        .iter()
        .map(|(window, used)| json!({ "used": used, "allow": window.allow, "per_ms": window.per.as_millis() as u64 }))
        .collect();
    let held =
        view.held.as_ref().map(|held| json!({ "until": throttled.at(held.until), "why": held.why, "by": held.by }));
    let budget =
        view.budget.map(|(apart, until)| json!({ "apart_ms": apart.as_millis() as u64, "until": throttled.at(until) }));
    json!({
        "key": key, "windows": used, "opens": throttled.at(view.opens), "held": held, "probing": view.tripped,
        "budget": budget, "gentle_until": view.slow_start_until.map(|until| throttled.at(until)), "waiting": view.waiting,
    })
}
