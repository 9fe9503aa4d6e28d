//! `roundelay queue` and `roundelay workers`: the state of queues and workers, and orders for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::{Args, Subcommand};
use roundelay_admin::inspect::broker::BrokerStatus;
use roundelay_admin::inspect::format::rough;
use roundelay_admin::inspect::queues::{QueueFacts, QueueReport};
use roundelay_admin::inspect::workers::WorkerReport;
use roundelay_admin::operate;
use roundelay_admin::operate::{Operator, Ordered, queue, worker};
use roundelay_engine::holds::Holds;
use roundelay_engine::overslept;
use roundelay_engine::overslept::schedules;
use roundelay_model::clock::Time;
use roundelay_model::fleet::host;
use serde::Serialize;
use serde_json::{Value, json};

use super::audited::{Order, audited};
use super::progress::waiting;
use super::screen::{self, Tint};
use super::steer::ledger;
use super::table::{Cell, Column, Table};
use super::{ConfigFile, grouped};

/// Shows queues; pauses them, and changes their concurrency, while workers run.
///
///   roundelay queue list                                        the state of all of them
///   roundelay queue pause sync-ios --why 'they are down'        workers take no more jobs from it
///   roundelay queue resume sync-ios
///   roundelay queue pause --all --why 'incident 7'              nothing starts any more, whatever is due
///   roundelay queue resume --all --why 'incident 7'             those that were paused for this
///   roundelay queue concurrency sync-ios 32                     in each worker; without a number, as configured
///
/// Orders are kept in the ledger. Every worker knows of them within two seconds, and they hold until they are taken
/// back, also when workers are started again. What runs finishes.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Queue {
    #[command(subcommand)]
    word: QueueWord,
}

#[derive(Subcommand)]
enum QueueWord {
    List(ListQueues),
    Pause(PauseQueue),
    Resume(ResumeQueue),
    Concurrency(Concurrency),
}

/// What an order for all queues is about, in the audit.
const ALL: &str = "--all";

/// Lists the queues of the configuration, and queues that only chains name.
#[derive(Args)]
struct ListQueues {
    #[command(flatten)]
    config: ConfigFile,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Who gives an order.
#[derive(Args)]
pub(super) struct OrderArgs {
    #[command(flatten)]
    pub(super) config: ConfigFile,
    /// Who gives the order, for people who read it later.
    #[arg(long, value_name = "NAME", default_value_t = current_user())]
    by: String,
    /// Print a JSON object.
    #[arg(long)]
    pub(super) json: bool,
}

/// Pauses a queue, or all of them: workers take no more jobs from it.
#[derive(Args)]
struct PauseQueue {
    /// A name under [queues].
    #[arg(required_unless_present = "all")]
    queue: Option<String>,
    /// All queues that are not paused.
    #[arg(long, conflicts_with = "queue")]
    all: bool,
    /// The reason, for people who ask why nothing runs.
    #[arg(long, value_name = "TEXT")]
    why: String,
    #[command(flatten)]
    said: OrderArgs,
}

/// Lets workers take jobs again from a queue, or from all paused queues.
#[derive(Args)]
struct ResumeQueue {
    /// A name under [queues].
    #[arg(required_unless_present = "all")]
    queue: Option<String>,
    /// All queues that are paused.
    #[arg(long, conflicts_with = "queue")]
    all: bool,
    /// Of all queues, only those that were paused with this reason.
    #[arg(long, value_name = "TEXT", requires = "all")]
    why: Option<String>,
    #[command(flatten)]
    said: OrderArgs,
}

/// Sets how many jobs of a queue each worker runs at the same time.
#[derive(Args)]
struct Concurrency {
    /// A name under [queues].
    queue: String,
    /// The number of jobs; left out, the configured number.
    #[arg(value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    places: Option<u16>,
    #[command(flatten)]
    said: OrderArgs,
}

/// Shows workers; drains one, so that it can be stopped without interrupting anything.
///
///   roundelay workers list
///   roundelay workers drain 4711-8c1f…        it takes no more jobs, and what runs finishes
///   roundelay workers resume 4711-8c1f…
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Workers {
    #[command(subcommand)]
    word: WorkersWord,
}

#[derive(Subcommand)]
enum WorkersWord {
    List(ListWorkers),
    Drain(Drain),
    Resume(ResumeWorker),
}

/// Lists workers. The list includes those that have fallen silent within the last hour.
#[derive(Args)]
struct ListWorkers {
    #[command(flatten)]
    config: ConfigFile,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Drains a worker: it takes no more jobs.
#[derive(Args)]
struct Drain {
    /// The worker's name, or a beginning of it that fits no other worker.
    worker: String,
    /// The reason, for people who ask why it runs nothing.
    #[arg(long, value_name = "TEXT", default_value = worker::DRAINED)]
    why: String,
    #[command(flatten)]
    said: OrderArgs,
}

/// Lets a worker take jobs again.
#[derive(Args)]
struct ResumeWorker {
    /// The worker's name, or a beginning of it that fits no other worker.
    worker: String,
    #[command(flatten)]
    said: OrderArgs,
}

/// Who gives the order: the user's name, as the system reports it.
pub fn current_user() -> String {
    let name = ["SUDO_USER", "USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    let (name, host) = (name.unwrap_or_else(|| "somebody".into()), host());
    if host.is_empty() { name } else { format!("{name}@{host}") }
}

impl OrderArgs {
    /// Gives an order, and prints its result.
    pub(super) async fn order<O: Serialize>(
        self,
        (command, target, detail): (&str, &str, Value),
        give: impl AsyncFnOnce(&Operator<'_>) -> operate::Result<Ordered<O>>,
    ) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let ledger = ledger(&config).await?;
        let order = Order { by: &self.by, command, target: target.to_owned(), detail };
        let operator = Operator { config: Arc::new(config), ledger: &*ledger, by: self.by.clone() };
        let ordered = audited(&*ledger, order, give(&operator)).await?;
        if self.json {
            return screen::json(&json!({ "orders": ordered.orders }));
        }
        out!("{ordered}");
        Ok(())
    }
}

impl Queue {
    pub async fn run(self) -> anyhow::Result<()> {
        match self.word {
            QueueWord::List(list) => list.run().await,
            QueueWord::Pause(PauseQueue { queue: Some(queue), why, said, .. }) => {
                let about = ("queue pause", queue.as_str(), json!({ "why": why }));
                said.order(about, async |operator| queue::pause(operator, &queue, &why).await).await
            }
            QueueWord::Pause(PauseQueue { queue: None, why, said, .. }) => {
                let about = ("queue pause", ALL, json!({ "why": why }));
                said.order(about, async |operator| queue::pause_all(operator, &why).await).await
            }
            QueueWord::Resume(ResumeQueue { queue: Some(queue), said, .. }) => {
                let about = ("queue resume", queue.as_str(), json!({}));
                said.order(about, async |operator| queue::resume(operator, &queue).await).await
            }
            QueueWord::Resume(ResumeQueue { queue: None, why, said, .. }) => {
                let about = ("queue resume", ALL, json!({ "why": why }));
                said.order(about, async |operator| queue::resume_all(operator, why.as_deref()).await).await
            }
            QueueWord::Concurrency(Concurrency { queue, places, said }) => {
                let places = places.map(usize::from);
                let about = ("queue concurrency", queue.as_str(), json!({ "concurrency": places }));
                said.order(about, async |operator| queue::concurrency(operator, &queue, places).await).await
            }
        }
    }
}

impl ListQueues {
    async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let ledger = ledger(&config).await?;
        let (holds, workers) = (Holds::look(&config, &*ledger).await?, ledger.workers().await?);
        let (census, _) = overslept::census(&*ledger, config.catch_up.slack, &schedules(&config), &holds).await?;
        let waits = waiting("asking the broker");
        let (orders, asked) = (ledger.fleet_orders().await?, BrokerStatus::once(&config).await);
        drop(waits);
        let wall_clock = ledger.wall_clock();
        let known = QueueFacts {
            config: &config,
            census: &census,
            asked: &asked,
            rates: &BTreeMap::new(),
            workers: &workers,
            orders: &orders,
            now: ledger.now(),
            wall_clock: &wall_clock,
        };
        let queues = known.reports();
        if self.json {
            return screen::json(&json!({ "queues": queues, "broker_error": asked.error() }));
        }
        print_queues(&queues);
        if let Some(error) = asked.error() {
            screen::tinted(Tint::Notable, format_args!("the broker was not asked: {error}"));
        }
        Ok(())
    }
}

/// How many jobs of the queue each worker runs at the same time.
fn places(of: &QueueReport) -> String {
    of.concurrency.ordered.unwrap_or(of.concurrency.configured).to_string()
}

fn print_queues(queues: &[QueueReport]) {
    let mut table = Table::new([
        Column::name("queue"),
        Column::number("sleeping"),
        Column::number("due"),
        Column::number("late"),
        Column::number("held"),
        Column::number("waiting"),
        Column::number("running"),
        Column::number("workers").spare(),
        Column::number("at a time"),
        Column::number("starts").spare(),
    ]);
    for of in queues.iter().filter(|of| !of.own) {
        let known = |number: Option<u64>| number.map_or("-".into(), grouped);
        table.row([
            Cell::from(&of.queue),
            grouped(of.sleeping).into(),
            grouped(of.due).into(),
            Cell::from(grouped(of.overdue)).tinted_if(of.overdue > 0, Tint::Notable),
            grouped(of.held).into(),
            known(of.ready).into(),
            grouped(of.running).into(),
            of.concurrency.workers.to_string().into(),
            places(of).into(),
            format!("{:.1}/s", of.starts_per_second).into(),
        ]);
        if of.concurrency.ordered.is_some() {
            table.note(format!("{} at a time are ordered, {} configured", places(of), of.concurrency.configured));
        }
        if let Some(paused) = &of.paused {
            table.note(format!("held by {} since {}: {}", paused.by, paused.at, paused.why));
        }
    }
    table.print();
}

impl Workers {
    pub async fn run(self) -> anyhow::Result<()> {
        match self.word {
            WorkersWord::List(list) => list.run().await,
            WorkersWord::Drain(Drain { worker, why, said }) => {
                let drain = async |operator: &Operator<'_>| {
                    worker::drain(operator, &worker::named(operator.ledger, &worker).await?, &why).await
                };
                said.order(("workers drain", &worker, json!({ "why": why })), drain).await
            }
            WorkersWord::Resume(ResumeWorker { worker, said }) => {
                let resume = async |operator: &Operator<'_>| {
                    worker::resume(operator, &worker::named(operator.ledger, &worker).await?).await
                };
                said.order(("workers resume", &worker, json!({})), resume).await
            }
        }
    }
}

impl ListWorkers {
    async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let ledger = ledger(&config).await?;
        let workers = ledger.workers().await?;
        let (now, wall_clock) = (ledger.now(), ledger.wall_clock());
        let workers: Vec<WorkerReport> =
            workers.into_iter().map(|worker| WorkerReport::new(worker, now, &wall_clock)).collect();
        if self.json {
            return screen::json(&json!({ "workers": workers }));
        }
        if workers.is_empty() {
            out!("no worker runs on this ledger, or has within the last hour");
        }
        workers.iter().for_each(|worker| print_worker(worker, wall_clock.wall(now)));
        Ok(())
    }
}

fn print_worker(worker: &WorkerReport, now: Time) {
    let WorkerReport { worker: name, host, pid, version, state, leases, .. } = worker;
    let (seen, up) = (rough(now.since(worker.seen.shown())), rough(now.since(worker.started.shown())));
    out!("{name}  {state}, heard of {seen} ago");
    out!(
        "  process {pid} on {host}, version {version}, for {up}; {leases} leases, {:.1} starts/s",
        worker.starts_per_second
    );
    for queue in &worker.queues {
        let paused = if queue.paused { ", takes nothing" } else { "" };
        out!("  {}: {} of {} run{paused}", queue.queue, queue.running, queue.concurrency);
    }
}
