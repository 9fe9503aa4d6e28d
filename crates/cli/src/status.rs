//! `roundelay status`

use std::sync::Arc;

use anyhow::ensure;
use clap::Args;
use roundelay_admin::inspect::broker::BrokerStatus;
use roundelay_admin::inspect::budgets::{BudgetReport, budgets};
use roundelay_admin::inspect::failures::then;
use roundelay_admin::inspect::overview::needs;
use roundelay_broker::Depth;
use roundelay_config::Config;
use roundelay_engine::calendars::with_days;
use roundelay_engine::holds::Holds;
use roundelay_engine::monitor::stuck;
use roundelay_engine::overslept::{Overslept, schedules};
use roundelay_engine::throttle::throttled::Throttled;
use roundelay_engine::{Connections, overslept};
use roundelay_ledger::{Census, ChainState, ChainView, Holder, LateChain, Ledger, LedgerError, LedgerUrl, Listed};
use roundelay_model::clock::Time;
use roundelay_model::failure::Failure;
use roundelay_model::pacing::demand::shortage;
use roundelay_model::wall_clock::{At, WallClock};
use serde_json::{Value, json};

use super::progress::waiting;
use super::screen::{self, Tint};
use super::table::{Cell, Column, Table};
use super::throttle::described;
use super::{ConfigFile, grouped};

/// How many kept failures are shown.
const FAILURES: u32 = 10;
/// How many stuck chains are shown.
const STUCK: u32 = 10;

/// Shows how the chains are: sleeping, running, due, late and why, failing.
///
/// The figures come from the ledger and not from workers, which may hang; if the broker can be reached, the messages
/// that wait in its queues are shown beside them.
#[derive(Args)]
pub struct Status {
    #[command(flatten)]
    config: ConfigFile,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Status {
    pub async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        if let LedgerUrl::Sqlite(path) = &config.ledger.url {
            let absent = "a worker or `roundelay enroll` makes it; is ledger.url right?";
            ensure!(path.exists(), "there is no ledger at {}; {absent}", path.display());
        }
        let waits = waiting("asking the ledger");
        let ledger = Connections::ledger(&config).await?;
        let config = with_days(&config, &*ledger).await?;
        let (now, wall_clock, slack) = (ledger.now(), ledger.wall_clock(), config.catch_up.slack);
        let holds = Holds::look(&config, &*ledger).await?;
        let (census, slept) = overslept::census(&*ledger, slack, &schedules(&config), &holds).await?;
        let apart = holds.queues().into_iter().chain([config.topology().names.chores()]).collect();
        let late = ledger.late(now - slack, apart, STUCK).await?;
        let slept = some_overslept(&*ledger, slept).await?;
        let failures = ledger.failures(FAILURES).await?;
        let throttles = Throttled::look(config.throttles.clone(), &*ledger).await?;
        let throttles = Throttles::new(throttles, &census, &config, (now, &wall_clock));
        let budgets = budgets(&config, &*ledger).await?;
        waits.now("asking the broker");
        let broker = BrokerStatus::once(&config).await;
        drop(waits);
        let stuck = late.into_iter().map(|chain| {
            let queue = &chain.hint.queue;
            let why = stuck::why(&chain, &config, broker.waiting(queue), throttles.of(queue, &config), now);
            Stuck { chain, since: None, why }
        });
        let slept = slept.into_iter().map(|(chain, begun, since)| {
            let why = stuck::overslept(chain.hint.due, begun, &wall_clock);
            Stuck { chain, since: Some(since), why }
        });
        let stuck = stuck.chain(slept).collect();
        let without_worker = !ledger.workers().await?.iter().any(|worker| !worker.is_silent(now));
        let report =
            Report { now, wall_clock, census, holds, without_worker, stuck, throttles, budgets, failures, broker };
        if self.json {
            return screen::json(&report.json(&config));
        }
        report.print(&config);
        Ok(())
    }
}

/// Throttles, each with why starts wait for it, and with what chains need beyond its limits, if they do.
struct Throttles(Vec<(Throttled, Option<String>, Option<String>)>);

impl Throttles {
    fn new(all: Vec<Throttled>, census: &Census, config: &Config, at: (Time, &WallClock)) -> Self {
        let told = all.into_iter().map(|throttled| {
            let paced = |queue: &String| {
                config.queues.get(queue).is_some_and(|queue| queue.throttle.as_ref() == Some(&throttled.name))
            };
            let due = census.queues.iter().filter(|queue| paced(&queue.queue)).map(|queue| queue.due).sum();
            let needs = needs(&throttled.name, census, config, at);
            let short = shortage(&needs, &throttled.limits).filter(|_| throttled.is_countable());
            let short = short.map(|short| short.words(&throttled.name, &needs));
            let words = throttled.in_the_way(Some(due));
            (throttled, words, short)
        });
        Self(told.collect())
    }

    /// Why a queue's throttle lets nothing start.
    fn of(&self, queue: &str, config: &Config) -> Option<&str> {
        let name = config.queues.get(queue)?.throttle.as_ref()?;
        self.0.iter().find(|(throttled, ..)| throttled.name == *name)?.1.as_deref()
    }
}

/// Some overslept chains: the chain, whether its tick has begun, and since when it is overdue.
async fn some_overslept(
    ledger: &dyn Ledger,
    found: Vec<Overslept>,
) -> Result<Vec<(LateChain, bool, Time)>, LedgerError> {
    let mut all = Vec::new();
    for Overslept { chain: Listed { hint, started_tick, .. }, since } in found.into_iter().take(STUCK as usize) {
        let views = ledger.chains(hint.kind.clone(), hint.key.clone()).await?;
        // The chain may have moved meanwhile.
        let Some(view) = views.into_iter().find(|view| view.hint == hint) else { continue };
        let ChainView { hint, state, sent, looks, watch_at, holder, .. } = view;
        let begun = started_tick >= hint.tick || hint.attempt > 1;
        all.push((LateChain { hint, state, sent, looks, watch_at, holder, worker: None, reason: None }, begun, since));
    }
    Ok(all)
}

struct Stuck {
    chain: LateChain,
    /// Since when the chain is overdue, if its due time does not show that.
    since: Option<Time>,
    why: String,
}

impl Stuck {
    fn json(&self, wall_clock: &WallClock) -> Value {
        let at = |time: Time| At::of(time, wall_clock);
        let LateChain { hint, state, sent, looks, watch_at, holder, worker, reason: _ } = &self.chain;
        let state = if *state == ChainState::Quarantined { "quarantined" } else { "overdue" };
        json!({
            "kind": hint.kind, "key": hint.key, "queue": hint.queue, "epoch": hint.epoch, "tick": hint.tick,
            "attempt": hint.attempt, "due": at(hint.due), "state": state, "sent": sent, "looks": looks,
            "watch_at": at(*watch_at), "lost": *holder == Holder::Gone, "worker": worker, "overslept_since": self.since.map(at), "why": self.why,
        })
    }
}

/// The content of the output.
struct Report {
    now: Time,
    wall_clock: Arc<WallClock>,
    census: Census,
    holds: Holds,
    /// No worker has reported lately.
    without_worker: bool,
    stuck: Vec<Stuck>,
    throttles: Throttles,
    budgets: Vec<BudgetReport>,
    failures: Vec<Failure>,
    broker: BrokerStatus,
}

impl Report {
    fn json(&self, config: &Config) -> Value {
        let depths = match &self.broker {
            BrokerStatus::Depths(depths) => depths.iter().collect(),
            BrokerStatus::Embedded | BrokerStatus::Away(_) => Vec::new(),
        };
        let depths: serde_json::Map<_, _> = depths
            .into_iter()
            .filter_map(|(queue, depth)| Some((queue, depth.as_ref().ok()?)))
            .map(|(queue, depth)| (queue.clone(), json!({ "ready": depth.ready, "consumers": depth.consumers })))
            .collect();
        let at = |time: Time| At::of(time, &self.wall_clock);
        let mut ledger = json!(self.census);
        ledger["oldest_due"] = json!(self.census.oldest_due().map(at));
        let failures = self.failures.iter().map(|failure| super::failed::row(failure, config, &self.wall_clock));
        let failures: Vec<Value> = failures.collect();
        json!({
            "ledger": ledger,
            "stuck": self.stuck.iter().map(|stuck| stuck.json(&self.wall_clock)).collect::<Vec<_>>(),
            "throttles": self.throttles.0.iter().map(|(throttled, words, short)| {
                let mut told = described(throttled, config);
                told["in_the_way"] = json!(words);
                told["shortage"] = json!(short);
                told
            }).collect::<Vec<_>>(),
            "budgets": self.budgets,
            "broker": depths,
            "broker_error": self.broker.error(),
            "failures": failures,
        })
    }

    fn print(&self, config: &Config) {
        let chores = config.topology().names.chores();
        self.print_queues(&chores);
        if self.without_worker && !self.census.queues.is_empty() {
            screen::tinted(Tint::Wrong, format_args!("no worker runs, so nothing does: `roundelay worker` starts one"));
        }
        for queue in self.census.queues.iter().filter(|queue| queue.held > 0) {
            let Some(hold) = self.holds.get(&queue.queue) else { continue };
            let waits =
                if queue.held == 1 { "one chain waits".into() } else { format!("{} chains wait", grouped(queue.held)) };
            notable(&format!("{}; {waits}", hold.words(&self.wall_clock)));
        }
        for (throttled, words, short) in &self.throttles.0 {
            match words {
                Some(words) if throttled.is_in_trouble() => notable(words),
                // An operator's hold is told above.
                Some(_) if self.holds.of_throttle(&throttled.name).is_some() => {}
                // A limit that is used is what limits are for.
                Some(words) => out!("{words}"),
                None => {}
            }
            short.iter().for_each(|short| notable(short));
        }
        self.budgets.iter().for_each(|budget| out!("{}", budget.words()));
        self.print_stuck(&chores);
        let names = config.topology().names;
        for (queue, meaning) in [
            (names.quarantine(), "messages that cannot be used, each with its reason in its headers"),
            (names.unrouted(), "messages for queues that do not exist"),
        ] {
            if let Some(depth) = self.broker.depth(&queue).filter(|depth| depth.ready > 0) {
                notable(&format!("{queue}: {} {meaning}", grouped(depth.ready)));
            }
        }
        if let Some(error) = self.broker.error() {
            notable(&format!("the broker was not asked: {error}"));
        }
        let failing = self.census.failures - self.census.recovered;
        if failing > 0 {
            let words = match failing {
                1 => "one entity, or a part of one, is failing".into(),
                many => format!("{} entities or parts of them are failing; the latest", grouped(many)),
            };
            screen::tinted(Tint::Wrong, format_args!("{words}:"));
            for failure in self.failures.iter().filter(|failure| !failure.recovered) {
                let Failure { kind, key, item, reason, times, last_at, .. } = failure;
                let part = if item.is_empty() { String::new() } else { format!(", {item}") };
                let code = failure.code.as_ref().map_or_else(String::new, |code| format!("{code}: "));
                let then = match then(failure, config, self.now) {
                    then if then.starts_with("kept") => String::new(),
                    then => format!("; {then}"),
                };
                out!("  {last_at} {kind} {key}{part} (×{times}) {code}{reason}{then}");
            }
        }
    }

    /// Prints the queues, without that of the engine's own chains.
    fn print_queues(&self, chores: &str) {
        let mut table = Table::new([
            Column::name("queue"),
            Column::number("sleeping"),
            Column::number("running"),
            Column::number("due"),
            Column::number("late"),
            Column::number("held"),
            Column::number("unsent").spare(),
            Column::number("waiting"),
            Column::number("consumers").spare(),
        ]);
        for queue in self.census.queues.iter().filter(|queue| queue.queue != chores) {
            // An unknown value is not shown as zero.
            let depth = self.broker.depth(&queue.queue);
            let known = |number: fn(Depth) -> u64| depth.map_or("-".into(), |depth| grouped(number(depth)));
            table.row([
                Cell::from(&queue.queue),
                grouped(queue.sleeping).into(),
                grouped(queue.running).into(),
                grouped(queue.due).into(),
                Cell::from(grouped(queue.overdue)).tinted_if(queue.overdue > 0, Tint::Notable),
                grouped(queue.held).into(),
                grouped(queue.unsent).into(),
                known(|depth| depth.ready).into(),
                known(|depth| depth.consumers).into(),
            ]);
        }
        table.print();
        let further = [
            ("paused", self.census.paused),
            ("retired", self.census.retired),
            ("of these, unavailable by a run's word", self.census.unavailable),
            ("quarantined", self.census.quarantined),
            ("messages quarantined in the ledger", self.census.quarantined_messages),
            ("one-off jobs kept in the ledger", self.census.kept_jobs),
            ("failures of entities that have worked since", self.census.recovered),
        ];
        for (label, count) in further.into_iter().filter(|(_, count)| *count > 0) {
            out!("{label}: {}", grouped(count));
        }
    }

    fn print_stuck(&self, chores: &str) {
        let overdue = |own: bool| -> i64 {
            let queues = self.census.queues.iter().filter(|queue| (queue.queue == chores) == own);
            queues.map(|queue| queue.overdue).sum()
        };
        if overdue(true) > 0 {
            notable(&format!("{} of the engine's own chains are late", grouped(overdue(true))));
        }
        let late = overdue(false);
        if late + self.census.quarantined == 0 {
            if let Some(due) = self.census.oldest_due() {
                out!("the chain that waits longest was due at {}", At::of(due, &self.wall_clock));
            }
            return;
        }
        let words = match (late, self.census.quarantined) {
            (0, 1) => "one chain is quarantined".into(),
            (0, many) => format!("{} chains are quarantined", grouped(many)),
            (1, _) => "one chain is late".into(),
            (many, _) if self.stuck.len() < STUCK as usize => format!("{} chains are late; they are", grouped(many)),
            (many, _) => format!("{} chains are late; those that wait longest are", grouped(many)),
        };
        screen::tinted(Tint::Wrong, format_args!("{words}:"));
        for Stuck { chain: LateChain { hint, .. }, since, why } in
            self.stuck.iter().filter(|stuck| stuck.chain.hint.queue != chores)
        {
            let due = since.unwrap_or(hint.due);
            let for_how_long = std::time::Duration::from_secs(self.now.since(due).as_secs());
            out!(
                "  {} {} on {}, tick {}, attempt {}, {} at {due} ({} ago): {why}",
                hint.kind,
                hint.key,
                hint.queue,
                hint.tick,
                hint.attempt,
                if since.is_some() { "meant to be due" } else { "due" },
                humantime::format_duration(for_how_long)
            );
        }
    }
}

fn notable(words: &str) {
    screen::tinted(Tint::Notable, format_args!("{words}"));
}
