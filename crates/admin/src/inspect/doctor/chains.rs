//! The content of the ledger: chains that no worker runs, workers that are silent, queues without a consumer, and
//! forgotten orders.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use roundelay_broker::BrokerUrl;
use roundelay_config::{Config, is_internal};
use roundelay_engine::calendars::{self, CALENDAR, with_days};
use roundelay_engine::holds::Holds;
use roundelay_engine::monitor::stuck;
use roundelay_engine::overslept::{Overslept, schedules};
use roundelay_engine::sealing::{Inventory, Mode, take_stock};
use roundelay_engine::throttle::throttled::Throttled;
use roundelay_engine::{overslept, topology_guard};
use roundelay_ledger::access::Token;
use roundelay_ledger::{
    Census, ChainFilter, ChainState, Condition, LAST, LateChain, Ledger, LedgerError, ListFilter, SeenWorker,
};
use roundelay_model::clock::Time;
use roundelay_model::fleet::{FleetOrders, Subject, host};
use roundelay_model::ids::Fence;
use roundelay_model::pacing::orders::Orders;
use roundelay_model::topology::Names;
use roundelay_model::wall_clock::WallClock;

use super::machine::files_of;
use crate::inspect::broker::BrokerStatus;
use crate::inspect::delays::ledger_to_read;
use crate::inspect::doctor::facts::Facts;
use crate::inspect::doctor::finding::{Area, Finding, Gathered, Grade, some, span, word};
use crate::operate::tenant;

/// How many late chains are read.
const LATE: u32 = 20;
/// How many kinds are read from the ledger.
const KINDS: usize = 1_000;
/// How many texts of each sort are decrypted as a test.
const TEXTS: u64 = 1_000;
/// If a chain is still overdue after this many sweeps of catch-up, catch-up has not helped.
const SWEEPS: u32 = 10;
/// An order that holds something for longer may have been forgotten.
const LONG: Duration = Duration::from_secs(86_400);

/// Facts about chains and workers.
#[derive(Clone, Debug, Default)]
pub struct ChainFacts {
    /// The time by the ledger's clock.
    pub now: Time,
    /// The number of chains by queue and state.
    pub census: Census,
    /// Some late or quarantined chains, the longest overdue first.
    pub late: Vec<LateChain>,
    /// Chains whose due times lie further ahead than their schedules can explain, the longest overdue first.
    pub overslept: Vec<Overslept>,
    /// One active chain of each kind: kind and key.
    pub kinds: Vec<(String, String)>,
    pub workers: Vec<SeenWorker>,
    /// How many files workers on this machine may have open.
    pub limits: Vec<(String, u64)>,
    /// Orders for queues and workers.
    pub orders: BTreeMap<Subject, FleetOrders>,
    /// The queues of which operators let nothing start.
    pub holds: Holds,
    /// Orders for throttles.
    pub throttles: BTreeMap<String, Orders>,
    /// Throttles that let nothing start, and why.
    pub throttled: BTreeMap<String, String>,
    /// The relation of the wall clock to the ledger's time.
    pub wall_clock: Arc<WallClock>,
    /// The settings that the workers have agreed on.
    pub agreed: Option<String>,
    /// The tokens of the API.
    pub tokens: Vec<Token>,
    /// The calendars that are read from a database: the name, whether days were read, and why the last reading failed.
    pub calendars: Vec<(String, bool, Option<String>)>,
    /// How much of the tested texts is plain, and how much encrypted.
    pub stock: Inventory,
}

/// Opens the ledger for reading, and gathers the facts.
pub(super) async fn gather(config: Config) -> Gathered<ChainFacts> {
    let ledger = ledger_to_read(&config).await?;
    let config = with_days(&config, &*ledger).await.map_err(|error| error.to_string())?;
    ask(&config, &*ledger).await.map_err(|error| error.to_string())
}

async fn ask(config: &Config, ledger: &dyn Ledger) -> Result<ChainFacts, LedgerError> {
    let now = ledger.now();
    let workers = ledger.workers().await?;
    let here = host();
    let local = workers.iter().filter(|worker| !worker.is_silent(now) && worker.presence.host == here);
    let limits = local.filter_map(|worker| {
        let limits = std::fs::read_to_string(Path::new("/proc").join(worker.presence.pid.to_string()).join("limits"));
        Some((worker.presence.worker.clone(), files_of(&limits.ok()?)?))
    });
    let limits = limits.collect();
    let throttled = Throttled::look(config.throttles.clone(), ledger).await?;
    let throttled = throttled.iter().filter_map(|of| Some((of.name.clone(), of.in_the_way(None)?)));
    let (orders, throttles) = (ledger.fleet_orders().await?, ledger.throttle_orders().await?);
    let holds = Holds::of(config, &orders, &throttles, now);
    let (census, overslept) = overslept::census(ledger, config.catch_up.slack, &schedules(config), &holds).await?;
    Ok(ChainFacts {
        now,
        wall_clock: ledger.wall_clock(),
        census,
        overslept,
        late: ledger.late(now - config.catch_up.slack, holds.queues(), LATE).await?,
        kinds: kinds(ledger).await?,
        limits,
        orders,
        throttles,
        holds,
        throttled: throttled.collect(),
        agreed: ledger.topology().await?,
        tokens: ledger.tokens().await?,
        calendars: readings(config, ledger).await?,
        stock: take_stock(ledger, &config.encryption, Mode::Look, TEXTS, |_| {}).await?,
        workers,
    })
}

/// The last reading of each calendar that is read from a database.
async fn readings(config: &Config, ledger: &dyn Ledger) -> Result<Vec<(String, bool, Option<String>)>, LedgerError> {
    let mut all = Vec::new();
    for (name, _) in calendars::by_sql(config) {
        let chain = ledger.chains(CALENDAR.into(), name.clone()).await?.into_iter().find(|chain| !chain.once);
        let fence = chain.as_ref().map_or(Fence::NONE, |chain| chain.fence);
        let last = ledger.history(fence, 2).await?.into_iter().find(|last| last.finished.is_some());
        let failed = last.filter(|last| last.verdict.as_deref() != Some("done"));
        let failed = failed.map(|last| last.reason.unwrap_or_else(|| last.verdict.unwrap_or_default()));
        all.push((name.clone(), chain.is_some_and(|chain| chain.carry.is_some()), failed));
    }
    Ok(all)
}

/// The kinds with active chains, each with the key of one chain. One query per kind skips the kind's other chains.
async fn kinds(ledger: &dyn Ledger) -> Result<Vec<(String, String)>, LedgerError> {
    let (mut kinds, mut after) = (Vec::new(), None);
    while kinds.len() < KINDS {
        let condition = Some(Condition::State(ChainState::Active));
        let page = ledger.list(ListFilter { which: ChainFilter::default(), condition }, after, 1).await?;
        let Some(first) = page.into_iter().next() else { break };
        after = Some((first.hint.kind.clone(), LAST.to_owned()));
        kinds.push((first.hint.kind, first.hint.key));
    }
    Ok(kinds)
}

/// What is wrong with chains, workers and queues.
pub(super) fn diagnose(facts: &Facts, config: &Config) -> Vec<Finding> {
    let chains = match &facts.chains {
        Ok(chains) => chains,
        Err(why) => {
            let fix = "see what is found of the ledger, and mend that first";
            return vec![Finding::unknown(Area::Chains, "chains, workers, orders", why, fix)];
        }
    };
    let asked = facts.broker.as_ref().map_or(&BrokerStatus::Embedded, |broker| &broker.asked);
    let mut all = workers(chains);
    all.extend(agreement(chains, config));
    all.extend(strangers(chains, config));
    all.extend(overdue(chains, config, asked));
    all.extend(consumers(chains, config, asked));
    all.extend(held(chains));
    all.extend(encryption(chains, config));
    all.extend(by_calendars(chains));
    if chains.census.quarantined_messages > 0 {
        let follows = "one-off jobs among them do not run until somebody sees to it; chains go on by themselves";
        let fix = "`roundelay serve` shows them with their reasons; mend the cause, then send them again there";
        let seen = format!("{} messages cannot be used", chains.census.quarantined_messages);
        all.push(Finding::warning(Area::Chains, "quarantine", seen, follows, fix));
    }
    all
}

/// Whether the calendars that are read from a database are.
fn by_calendars(chains: &ChainFacts) -> Vec<Finding> {
    let finding = |(name, read, failed): &(String, bool, Option<String>)| {
        let what = format!("calendar {name}");
        let fix = format!("mend what is said there; see `roundelay show {CALENDAR} {}`", word(name));
        match (read, failed) {
            (true, None) => Finding::good(Area::Chains, what, "its days are read"),
            (true, Some(why)) => {
                Finding::warning(Area::Chains, what, why, "the days that were read before stay in force", fix)
            }
            (false, why) => {
                let seen = why.as_deref().unwrap_or("no worker has read its days yet");
                let follows = "it has only the days that the configuration itself names";
                Finding::bad(Area::Chains, what, seen, follows, fix)
            }
        }
    };
    chains.calendars.iter().map(finding).collect()
}

/// Whether encrypted texts can be decrypted, and whether texts that should be encrypted are. Nothing without
/// encryption.
fn encryption(chains: &ChainFacts, config: &Config) -> Vec<Finding> {
    let (what, keys, counts) = ("encryption", &config.encryption, &chains.stock.counts);
    let mut all = Vec::new();
    let mut looked_at = 0;
    let (mut unopened, mut plain) = (BTreeMap::<&str, u64>::new(), 0);
    for ((_, name), count) in counts {
        looked_at += count.texts;
        match name {
            Some(name) if count.unopened > 0 => *unopened.entry(name).or_default() += count.unopened,
            Some(_) => {}
            None => plain += count.texts,
        }
    }
    if !unopened.is_empty() {
        let of_each = unopened.iter().map(|(name, count)| format!("{count} sealed with the key {name}"));
        all.push(Finding::bad(
            Area::Chains,
            what,
            format!(
                "of {looked_at} texts that were looked at do not open here: {}",
                some(&of_each.collect::<Vec<_>>())
            ),
            "the chains and jobs that they belong to wait, and lose no attempt, until a worker can open them",
            "set these keys under encryption.keys, here and for all workers; SIGHUP lets them read it again. \
             `roundelay encryption` looks at everything",
        ));
    }
    if keys.is_strict() && plain > 0 {
        all.push(Finding::bad(
            Area::Chains,
            what,
            format!("of {looked_at} texts that were looked at, {plain} are plain, and encryption.seal requires sealed ones"),
            "the chains and jobs that they belong to wait, or go to quarantine: somebody without a key may have written them",
            "see whether they are yours (`roundelay show KIND KEY`), then `roundelay encryption --reseal`",
        ));
    } else if keys.seal().is_some() && plain > 0 {
        all.push(Finding::warning(
            Area::Chains,
            what,
            format!("of {looked_at} texts that were looked at, {plain} are plain"),
            "whoever can read the ledger, or a copy of it, can read them",
            "`roundelay encryption --reseal`",
        ));
    }
    if all.is_empty() && (keys.names().next().is_some() || counts.keys().any(|(_, name)| name.is_some())) {
        all.push(Finding::good(Area::Chains, what, format!("all {looked_at} texts that were looked at open")));
    }
    all
}

/// The number of active chains, without the engine's own.
fn ticking(chains: &ChainFacts, config: &Config) -> i64 {
    let chores = config.topology().names.chores();
    let queues = chains.census.queues.iter().filter(|queue| queue.queue != chores);
    queues.map(|queue| queue.sleeping + queue.running + queue.due + queue.waiting).sum()
}

fn living(chains: &ChainFacts) -> impl Iterator<Item = &SeenWorker> {
    chains.workers.iter().filter(|worker| !worker.is_silent(chains.now))
}

fn workers(chains: &ChainFacts) -> Vec<Finding> {
    let mut all = Vec::new();
    let (what, alive) = ("workers", living(chains).count());
    let silent: Vec<String> = (chains.workers.iter().filter(|worker| worker.is_silent(chains.now)))
        .map(|worker| {
            let ago = span(chains.now.since(worker.seen).as_millis() as i64);
            format!("{} (process {} on {}, {ago})", worker.presence.worker, worker.presence.pid, worker.presence.host)
        })
        .collect();
    match (alive, silent.is_empty()) {
        (0, true) => all.push(Finding::warning(
            Area::Chains,
            what,
            "none runs",
            "nothing runs until one does",
            "`roundelay worker`, on each machine that is to work",
        )),
        (0, false) => {}
        (alive, _) => all.push(Finding::good(Area::Chains, what, format!("{alive} heard of within 30 s"))),
    }
    if !silent.is_empty() {
        let seen = format!("{} said nothing for long: {}", silent.len(), some(&silent));
        let follows = match alive {
            0 => "nothing runs: no other worker is heard of",
            _ => "what they ran is run by others when its lease has ended; it is less that runs at the same time",
        };
        let fix = "on its machine, `ps -p PID` tells whether it lives. If not, start another, and look at the end of its log \
                   for why it ended; if it does, see whether it reaches the ledger, or was stopped (state T: `kill -CONT \
                   PID`). It is forgotten after an hour";
        let finding = Finding::bad(Area::Chains, "silent workers", seen, follows, fix);
        all.push(if alive > 0 { finding.softened() } else { finding });
    }
    let versions: BTreeSet<&str> = living(chains).map(|worker| worker.presence.version.as_str()).collect();
    let ours = env!("CARGO_PKG_VERSION");
    if versions.iter().any(|version| *version != ours) || versions.len() > 1 {
        let versions: Vec<&str> = versions.into_iter().collect();
        all.push(Finding::warning(
            Area::Chains,
            "versions",
            format!("workers are of version {}, and this program is {ours}", versions.join(" and ")),
            "they may treat the same chain differently",
            "finish the upgrade: SIGTERM to the older ones, then start them anew; CHANGELOG says what goes together",
        ));
    }
    all
}

fn agreement(chains: &ChainFacts, config: &Config) -> Option<Finding> {
    // The embedded broker has no topology that workers could disagree on.
    if matches!(config.broker.url, BrokerUrl::Embedded) {
        return None;
    }
    let difference = topology_guard::disagreement(chains.agreed.as_deref()?, config)?;
    Some(Finding::bad(
        Area::Chains,
        "agreement of workers",
        difference,
        "a worker with this configuration is refused, since the others would not find what it sends",
        "use the configuration that the workers have; or, if this is the right one, `roundelay topology apply` and give it to \
         all workers",
    ))
}

/// Chains of kinds and on queues that the configuration lacks.
fn strangers(chains: &ChainFacts, config: &Config) -> Vec<Finding> {
    let mut all = Vec::new();
    for (kind, key) in chains.kinds.iter().filter(|(kind, _)| !is_internal(kind)) {
        let (seen, fix) = match config.kinds.get(kind) {
            None => (
                format!("{kind} is not in this configuration, and has chains, such as {key}"),
                format!("add [kinds.{kind}] as it was, or end its chains: `roundelay retire {} --all`", word(kind)),
            ),
            Some(settings) if settings.recurrence.is_none() => (
                format!("{kind} has no schedule in this configuration, and has chains, such as {key}"),
                format!(
                    "set kinds.{kind}.every or kinds.{kind}.cron, or end its chains: `roundelay retire {} --all`",
                    word(kind)
                ),
            ),
            Some(_) => continue,
        };
        let follows = "workers with this configuration leave them alone";
        all.push(Finding::bad(Area::Chains, "kinds", seen, follows, fix));
    }
    let names = Names::new(&config.broker.prefix);
    for queue in &chains.census.queues {
        if config.queues.contains_key(&queue.queue) || queue.queue == names.chores() {
            continue;
        }
        let count = queue.sleeping + queue.running + queue.due + queue.waiting;
        let name = &queue.queue;
        all.push(Finding::bad(
            Area::Chains,
            "queues",
            format!("{name} is not in this configuration, and {count} chains are on it"),
            "workers with this configuration do not consume it, and leave them alone",
            format!("add [queues.{name}], or enroll the chains on another queue"),
        ));
    }
    if all.is_empty() {
        let seen = match ticking(chains, config) {
            0 => "there are no chains".to_owned(),
            count => format!("all {count} chains are of kinds and on queues of this configuration"),
        };
        all.push(Finding::good(Area::Chains, "kinds and queues", seen));
    }
    all
}

fn overdue(chains: &ChainFacts, config: &Config, asked: &BrokerStatus) -> Vec<Finding> {
    let (mut all, what) = (Vec::new(), "late chains");
    let Census { queues, quarantined, .. } = &chains.census;
    let count: i64 = queues.iter().map(|queue| queue.overdue).sum();
    let one = |chain: &LateChain| {
        let hint = &chain.hint;
        let throttle = config.queues.get(&hint.queue).and_then(|queue| queue.throttle.as_ref());
        let throttle = throttle.and_then(|name| chains.throttled.get(name)).map(String::as_str);
        let why = stuck::why(chain, config, asked.waiting(&hint.queue), throttle, chains.now);
        format!("{} {}: {why}", hint.kind, hint.key)
    };
    let slept = |Overslept { chain, .. }: &Overslept| {
        let hint = &chain.hint;
        let begun = chain.started_tick >= hint.tick || hint.attempt > 1;
        format!("{} {}: {}", hint.kind, hint.key, stuck::overslept(hint.due, begun, &chains.wall_clock))
    };
    // Two examples, after the number of chains.
    let told = |state| {
        let late = chains.late.iter().filter(|chain| chain.state == state).take(2).map(one);
        let slept = chains.overslept.iter().filter(|_| state == ChainState::Active).take(2).map(slept);
        let some: Vec<String> = late.chain(slept).collect();
        if some.is_empty() { String::new() } else { format!(". {}", some.join(". ")) }
    };
    match chains.census.oldest_due().filter(|_| count > 0) {
        None => all.push(Finding::good(Area::Chains, what, "none")),
        Some(oldest) => {
            let late = chains.now.since(oldest);
            let longest = span(late.as_millis() as i64);
            let seen = format!("{count}, the longest for {longest}{}", told(ChainState::Active));
            let fix = "`roundelay status` shows more of them, and `roundelay show KIND KEY` all about one; with nothing in \
                       their way, start more workers";
            let follows = "what they keep fresh is not";
            let finding = Finding::bad(Area::Chains, what, seen, follows, fix);
            // Until then, catch-up may still help.
            let patience = config.catch_up.slack + config.catch_up.every * SWEEPS + config.catch_up.spread;
            all.push(if late > patience { finding } else { finding.softened() });
        }
    }
    if *quarantined > 0 {
        all.push(Finding::bad(
            Area::Chains,
            "quarantined chains",
            format!("{quarantined}{}", told(ChainState::Quarantined)),
            "they do not tick: workers died over them, or their messages were ahead of the ledger, of which an older copy was restored",
            "mend the handlers or payloads of those that workers died over; `roundelay recover` lets them go on, in a new \
             epoch; read on restores in docs/operations.md first",
        ));
    }
    all
}

/// Queues without a consumer although a worker lives.
fn consumers(chains: &ChainFacts, config: &Config, asked: &BrokerStatus) -> Vec<Finding> {
    let what = "consumers";
    if living(chains).next().is_none() {
        return Vec::new();
    }
    if let Some(why) = asked.error() {
        let fix = "see what is found of the broker, and mend that first";
        return vec![Finding::unknown(Area::Chains, what, why, fix)];
    }
    let names = Names::new(&config.broker.prefix);
    let chores = names.chores();
    let (mut idle, mut stuck) = (Vec::new(), Vec::new());
    for name in config.queues.keys().chain([&chores]) {
        let orders = chains.orders.get(&Subject::Queue(name.clone()));
        if orders.is_some_and(|orders| orders.closed.is_some()) {
            continue;
        }
        let depth = asked.depth(name);
        let takes = |worker: &SeenWorker| worker.presence.queues.iter().any(|queue| queue.queue == *name);
        let consumed = match depth {
            Some(depth) => depth.consumers > 0,
            // A missing queue is reported elsewhere.
            None if matches!(asked, BrokerStatus::Depths(_)) => continue,
            None => living(chains).any(takes) || *name == chores,
        };
        let due = chains.census.queues.iter().find(|queue| queue.queue == *name).map_or(0, |queue| queue.due);
        match (consumed, due > 0 || depth.is_some_and(|depth| depth.ready > 0)) {
            (true, _) => {}
            (false, true) => stuck.push(name.as_str()),
            (false, false) => idle.push(name.as_str()),
        }
    }
    let follows = "what is due there does not run";
    let fix = "start a worker that takes them: `roundelay worker --queues …` limits which; if one says that it does, see its \
               log for why it cannot consume";
    let mut all = Vec::new();
    if !stuck.is_empty() {
        let seen = format!("nobody takes from {}, where something is due", some(&stuck));
        all.push(Finding::bad(Area::Chains, what, seen, follows, fix));
    }
    if !idle.is_empty() {
        let seen = format!("nobody takes from {}", some(&idle));
        all.push(Finding::warning(Area::Chains, what, seen, follows, fix));
    }
    if all.is_empty() {
        all.push(Finding::good(Area::Chains, what, "every queue that is not paused has one"));
    }
    all
}

/// Orders of operators that may have been forgotten.
fn held(chains: &ChainFacts) -> Vec<Finding> {
    let mut all = Vec::new();
    for queue in chains.census.queues.iter().filter(|queue| queue.held > 0) {
        let Some(hold) = chains.holds.get(&queue.queue) else { continue };
        let waits = if queue.held == 1 { "one chain waits".into() } else { format!("{} chains wait", queue.held) };
        let seen = format!("{waits}: {}", hold.words(&chains.wall_clock));
        all.push(Finding::good(Area::Chains, format!("held on {}", queue.queue), seen));
    }
    let mut say = |what: String, at: Time, by: &str, why: &str, follows: &str, fix: String| {
        let for_long = chains.now.since(at);
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        let seen = format!("by {by}, {} ago{why}", span(for_long.as_millis() as i64));
        all.push(match for_long > LONG {
            true => Finding::warning(Area::Chains, what, seen, follows, fix),
            false => Finding::good(Area::Chains, what, seen),
        });
    };
    for (subject, orders) in &chains.orders {
        if let Some(closed) = &orders.closed {
            let (what, follows, fix) = match subject {
                Subject::Queue(name) => (
                    format!("queue {name} is paused"),
                    "nothing of it runs",
                    format!("`roundelay queue resume {}`, if it was forgotten", word(name)),
                ),
                Subject::Worker(name) => (
                    format!("worker {name} is drained"),
                    "it takes nothing",
                    format!("`roundelay workers resume {}`, or stop it, if it was forgotten", word(name)),
                ),
                Subject::Tenant(_) => continue,
            };
            say(what, closed.at, &closed.by, &closed.why, follows, fix);
        }
        if let (Subject::Queue(name), Some(said)) = (subject, &orders.concurrency) {
            let what = format!("queue {name} runs {} in each worker", said.places);
            let fix = format!(
                "`roundelay queue concurrency {}` goes back to the configuration, if it was forgotten",
                word(name)
            );
            say(what, said.at, &said.by, "", "that holds in place of the configuration", fix);
        }
        if let (Subject::Tenant(name), Some(said)) = (subject, &orders.share) {
            let what = format!("{} has another share than is configured", tenant::named(name));
            let order = format!("`roundelay tenant {} --as-configured`", word(name));
            let fix = format!("{order} goes back to the configuration, if it was forgotten");
            say(what, said.at, &said.by, "", "that holds in place of the configuration", fix);
        }
    }
    let micros = chains.now.as_millis() * 1_000;
    for (name, orders) in &chains.throttles {
        if let Some(hold) = orders.hold.as_ref().filter(|hold| hold.until > micros) {
            let what = format!("throttle {name} is held");
            let fix = format!("`roundelay throttle release {}`, if it was forgotten", word(name));
            let at = Time::from_millis(hold.at / 1_000);
            let until = span((hold.until - micros) / 1_000);
            let follows = format!("nothing that it paces starts for another {until}");
            say(what, at, &hold.by, &hold.why, &follows, fix);
        }
        if let Some(limits) = &orders.limits {
            let what = format!("throttle {name} allows {} in {}", limits.allow, span(limits.per_ms as i64));
            let fix = format!(
                "`roundelay throttle reset {}` goes back to the configuration, if it was forgotten",
                word(name)
            );
            let at = Time::from_millis(limits.at / 1_000);
            say(what, at, &limits.by, "", "that holds in place of the configuration", fix);
        }
    }
    if all.iter().all(|finding| finding.result == Grade::Good) {
        all.push(Finding::good(Area::Chains, "orders", "none is older than a day"));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::tests::{about, have_fixes};
    use super::*;
    use roundelay_broker::Depth;
    use roundelay_engine::sealing::Count;
    use roundelay_ledger::Holder;
    use roundelay_ledger::{Hint, QueueCensus, TextColumn};
    use roundelay_model::fleet::Lateness;
    use roundelay_model::fleet::{FleetOrder, Presence, QueuePresence, WorkerState};
    use roundelay_model::ids::{Epoch, TickNo};
    use roundelay_model::pacing::orders::ThrottleOrder;

    const NOW: Time = Time::from_millis(1_000_000_000);

    fn config() -> Config {
        let text = "broker.url = 'amqp://h'\n[queues.work]\n[queues.side]\n[kinds.sync]\nevery = '1m'\n[kinds.once]\n";
        Config::parse(text, "r.toml", []).unwrap()
    }

    fn worker(name: &str, silent_for: i64, version: &str) -> SeenWorker {
        let queue = |name: &str| QueuePresence {
            queue: name.into(),
            concurrency: 1,
            running: 0,
            waiting: 0,
            open: true,
            starts_per_second: 0.0,
            late_ms: Lateness { p50: 0.0, p99: 0.0, max: 0.0 },
        };
        let presence = Presence {
            worker: name.into(),
            host: "h".into(),
            pid: 7,
            version: version.into(),
            started: Time::default(),
            state: WorkerState::Working,
            queues: vec![queue("work"), queue("side")],
            kinds: Vec::new(),
            leases: 0,
            oldest: Vec::new(),
        };
        SeenWorker { presence, seen: Time::from_millis(NOW.as_millis() - silent_for) }
    }

    /// One worker lives, and all chains sleep.
    fn healthy() -> ChainFacts {
        let queue = QueueCensus { queue: "work".into(), sleeping: 3, ..QueueCensus::default() };
        ChainFacts {
            wall_clock: Arc::default(),
            now: NOW,
            census: Census { queues: vec![queue], ..Census::default() },
            kinds: vec![("roundelay.history".into(), "attempts".into()), ("sync".into(), "a".into())],
            workers: vec![worker("w1", 5_000, env!("CARGO_PKG_VERSION"))],
            ..ChainFacts::default()
        }
    }

    fn depths(consumers: u64, ready: u64) -> BrokerStatus {
        let names = ["work", "side", "roundelay.chores"];
        BrokerStatus::Depths(names.map(|name| (name.to_owned(), Ok(Depth { ready, consumers }))).into())
    }

    #[test]
    fn a_table_of_what_lies_sealed() {
        let config = |seal: &str| {
            let key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+Pw==";
            Config::parse(&format!("[encryption]\nseal = '{seal}'\nkeys = {{ a = '{key}' }}\n"), "r.toml", []).unwrap()
        };
        let none = Config::parse("", "r.toml", []).unwrap();
        let count =
            |name: Option<&str>, texts, unopened| ((TextColumn::Jobs, name.map(Into::into)), Count { texts, unopened });
        let table = [
            (&none, vec![], vec![]),
            (&none, vec![count(None, 7, 0)], vec![]),
            (&config(""), vec![count(None, 7, 0)], vec![(Grade::Good, "all 7 texts")]),
            (&config("a"), vec![count(Some("a"), 7, 0)], vec![(Grade::Good, "all 7 texts")]),
            (
                &config("a"),
                vec![count(Some("a"), 7, 0), count(None, 2, 0)],
                vec![(Grade::Warning, "of 9 texts that were looked at, 2 are plain")],
            ),
            (
                &none,
                vec![count(Some("a"), 7, 7), count(Some("b"), 1, 1), count(None, 1, 0)],
                vec![(
                    Grade::Bad,
                    "of 9 texts that were looked at do not open here: 7 sealed with the key a, 1 sealed with the key b",
                )],
            ),
            (
                &config("a"),
                vec![count(Some("a"), 7, 1), count(None, 1, 0)],
                vec![(Grade::Bad, "1 sealed with the key a"), (Grade::Warning, "1 are plain")],
            ),
        ];
        for (config, counts, expected) in table {
            let stock = Inventory { counts: counts.into_iter().collect(), written: 0 };
            let findings = encryption(&ChainFacts { stock, ..ChainFacts::default() }, config);
            have_fixes(&findings);
            assert_eq!(findings.len(), expected.len(), "{findings:?}");
            for (finding, (grade, seen)) in findings.iter().zip(expected) {
                assert!(finding.result == grade && finding.seen.contains(seen), "{finding:?}");
            }
        }
    }

    /// The findings after `change` to healthy facts, without the good ones.
    fn found(change: impl FnOnce(&mut ChainFacts), asked: &BrokerStatus) -> Vec<Finding> {
        let (mut chains, config) = (healthy(), config());
        change(&mut chains);
        let mut all = workers(&chains);
        all.extend(agreement(&chains, &config));
        all.extend(strangers(&chains, &config));
        all.extend(overdue(&chains, &config, asked));
        all.extend(consumers(&chains, &config, asked));
        all.extend(held(&chains));
        have_fixes(&all);
        all.into_iter().filter(|finding| finding.result != Grade::Good).collect()
    }

    #[test]
    fn a_table_of_what_is_in_a_ledger() {
        type Change = fn(&mut ChainFacts);
        let late = |chains: &mut ChainFacts, secs: i64| {
            let due = Time::from_millis(NOW.as_millis() - secs * 1_000);
            chains.census.queues[0].overdue = 1;
            chains.census.queues[0].oldest_due = Some(due);
            let (kind, key, queue) = ("sync".into(), "a".into(), "work".into());
            let hint = Hint {
                kind,
                key,
                queue,
                epoch: Epoch(1),
                tick: TickNo(1),
                attempt: 1,
                due,
                parent: Epoch::NONE,
                priority: None,
            };
            let (state, holder) = (ChainState::Active, Holder::None);
            let chain =
                LateChain { hint, state, sent: true, looks: 0, watch_at: due, holder, worker: None, reason: None };
            chains.late.push(chain);
        };
        let full = depths(1, 0);
        assert_eq!(found(|_| (), &full), []);
        assert_eq!(found(|_| (), &BrokerStatus::Embedded), []);
        let table: [(Change, &str, Grade, &str); 11] = [
            (|c| c.workers.clear(), "workers", Grade::Warning, "`roundelay worker`"),
            (|c| c.workers[0] = worker("w1", 31_000, "1"), "silent workers", Grade::Bad, "`ps -p PID`"),
            (|c| c.workers.push(worker("w2", 31_000, "1")), "silent workers", Grade::Warning, "`ps -p PID`"),
            (|c| c.workers.push(worker("w2", 0, "0.0.9")), "versions", Grade::Warning, "finish the upgrade"),
            (
                |c| c.agreed = Some(r#"{"prefix":"roundelay","queues":["work","more"]}"#.into()),
                "agreement of workers",
                Grade::Bad,
                "`roundelay topology apply`",
            ),
            (|c| c.kinds.push(("old".into(), "k".into())), "kinds", Grade::Bad, "`roundelay retire old --all`"),
            (|c| c.kinds.push(("once".into(), "k".into())), "kinds", Grade::Bad, "set kinds.once.every"),
            (
                |c| c.census.queues.push(QueueCensus { queue: "gone".into(), sleeping: 2, ..QueueCensus::default() }),
                "queues",
                Grade::Bad,
                "add [queues.gone]",
            ),
            (|c| c.census.quarantined = 2, "quarantined chains", Grade::Bad, "`roundelay recover` lets"),
            (
                |c| {
                    let mut orders = FleetOrders::default();
                    orders.add(FleetOrder::Close { why: "down".into() }, "ann", Time::default());
                    c.orders.insert(Subject::Queue("work".into()), orders);
                },
                "queue work is paused",
                Grade::Warning,
                "`roundelay queue resume work`",
            ),
            (
                |c| {
                    let mut orders = Orders::default();
                    let span = Duration::from_secs(30 * 86_400);
                    orders.add(&ThrottleOrder::Hold { span, why: "down".into() }, "ann", 0);
                    c.throttles.insert("ios".into(), orders);
                },
                "throttle ios is held",
                Grade::Warning,
                "`roundelay throttle release ios`",
            ),
        ];
        for (n, (change, what, grade, fix)) in table.into_iter().enumerate() {
            let findings = found(change, &full);
            assert_eq!(findings.len(), 1, "{n}: {findings:#?}");
            assert_eq!((findings[0].what.as_str(), findings[0].result), (what, grade), "{n}: {findings:?}");
            assert!(findings[0].fix.contains(fix), "{n}: {}", findings[0].fix);
        }
        for (secs, grade) in [(60, Grade::Warning), (86_400, Grade::Bad)] {
            let findings = found(|chains| late(chains, secs), &full);
            assert_eq!((findings.len(), findings[0].result), (1, grade), "{findings:?}");
            assert!(findings[0].seen.contains("sync a: its message was sent"), "{findings:?}");
        }
    }

    #[test]
    fn an_order_of_today_was_not_forgotten() {
        let today = Time::from_millis(NOW.as_millis() - 3_600_000);
        let change = |chains: &mut ChainFacts| {
            let mut orders = FleetOrders::default();
            orders.add(FleetOrder::Close { why: "down".into() }, "ann", today);
            orders.add(FleetOrder::Concurrency(Some(3)), "ann", today);
            chains.orders.insert(Subject::Queue("work".into()), orders);
        };
        assert_eq!(found(change, &depths(1, 0)), []);
        let mut chains = healthy();
        change(&mut chains);
        let findings = held(&chains);
        assert_eq!(about(&findings, "queue work is paused").seen, "by ann, 1h ago: down");
    }

    #[test]
    fn queues_without_a_consumer_are_found_while_a_worker_lives() {
        let nobody = found(|_| (), &depths(0, 0));
        assert_eq!((nobody.len(), nobody[0].result), (1, Grade::Warning));
        assert!(nobody[0].seen.contains("side, work, roundelay.chores"), "{nobody:?}");
        let waiting = found(|_| (), &depths(0, 4));
        assert_eq!((waiting.len(), waiting[0].result), (1, Grade::Bad));
        // Without RabbitMQ, workers report which queues they consume.
        let mut idle = worker("w1", 0, env!("CARGO_PKG_VERSION"));
        idle.presence.queues.remove(1);
        let findings = found(|chains| chains.workers[0] = idle, &BrokerStatus::Embedded);
        assert_eq!(findings[0].seen, "nobody takes from side");
        assert_eq!(found(|_| (), &BrokerStatus::Away("refused".into()))[0].result, Grade::Unknown);
        let none = found(|chains| chains.workers.clear(), &depths(0, 4));
        assert!(none.iter().all(|finding| finding.what != "consumers"), "that no worker runs is told: {none:?}");
    }
}
