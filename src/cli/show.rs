//! `roundelay show`

use anyhow::{Error, bail};
use clap::Args;
use roundelay::Config;
use roundelay::clock::{Entropy, Time};
use roundelay::config::OwnSchedule;
use roundelay::ledger::{AttemptRecord, ChainState, ChainView, Failure, Ledger, RunningJob};
use roundelay::monitor::stuck;
use roundelay::monitor::throttled::Throttled;
use roundelay::progress::Progress;
use roundelay::schedule::{Balance, Ran, Schedule, Setting, phase};
use serde_json::{Value, json};

use super::ConfigFile;
use super::failed::then;
use super::list::{of_kind, rough, word};
use super::status::Asked;
use super::steer::ledger;

/// Occurrences shown after the next one.
const AHEAD: usize = 3;
/// Bytes of what a run has handed on, and of the payload, that are shown to people.
const SHOWN: usize = 400;

/// Shows one chain: what it is doing and why, what is next, how its last runs ended.
#[derive(Args)]
pub struct Show {
    #[command(flatten)]
    config: ConfigFile,
    /// The kind.
    kind: String,
    /// The entity.
    key: String,
    /// So many of its last attempts.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    last: u32,
    /// Print a JSON object, with nothing cut.
    #[arg(long)]
    json: bool,
}

impl Show {
    pub async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let ledger = ledger(&config).await?;
        let (kind, key) = (&self.kind, &self.key);
        let chains = ledger.chains(kind.clone(), key.clone()).await?;
        let failures = ledger.failures_of(kind.clone(), key.clone()).await?;
        let running = ledger.running(kind.clone(), key.clone()).await?;
        if chains.is_empty() && failures.is_empty() && running.is_empty() {
            config.kind(kind).map_err(Error::msg)?;
            bail!(
                "there is no chain {kind} {key}, and no one-off job of it that runs and has reported; `roundelay list --kind {kind}` shows which there are"
            );
        }
        let broker = if chains.is_empty() { None } else { Some(Asked::ask(&config).await) };
        let now = ledger.now();
        let mut shown = Vec::new();
        for chain in chains {
            let attempts = ledger.history(chain.fence, self.last.max(1)).await?;
            let owner = match &chain.owner {
                Some(owner) => ledger.owner(owner.clone()).await?,
                None => ChainState::Active,
            };
            let worker = attempts.first().map(|attempt| attempt.worker.as_str());
            let waiting = broker.as_ref().map_or(stuck::Waiting::Embedded, |broker| broker.waiting(&chain.hint.queue));
            let throttle = throttle(&chain, &config, &*ledger).await?;
            let mut why = stuck::doing(&chain, worker, owner, &config, waiting, throttle.as_deref(), now);
            let unavailable = unavailable(&chain, &failures);
            if let Some(reason) = &unavailable {
                why = format!("its entity is unavailable: {reason}; {why}");
            }
            // Of the attempt that runs, if one does.
            let progress = attempts.first().filter(|_| chain.lease_until > now).and_then(|last| last.progress.clone());
            let attempts = attempts.into_iter().take(self.last as usize).collect();
            let (schedule, next) = ahead(&chain, &config);
            shown.push(Shown { chain, owner, why, unavailable, progress, attempts, schedule, next });
        }
        let (once, rotation): (Vec<_>, Vec<_>) = shown.into_iter().partition(|shown| shown.chain.once);
        if self.json {
            let one = |shown: Option<&Shown>| shown.map(Shown::json);
            let mut told = json!({ "chain": one(rotation.first()), "single": one(once.first()), "failures": failures });
            told["running"] = running.iter().map(running_job).collect();
            told["now"] = json!(now);
            out!("{told}");
            return Ok(());
        }
        for shown in &rotation {
            shown.print(now);
        }
        // One that has ended is of the past, as soon as there is a rotation to look at.
        for shown in once.iter().filter(|one| rotation.is_empty() || one.chain.state != ChainState::Retired) {
            out!("one run more, beside it:");
            shown.print(now);
        }
        for job in &running {
            out!("one-off job {} on {}, attempt {}, by {}:", job.id, job.queue, job.attempt, job.worker);
            line("running", &format!("{}, {} ago", job.progress, rough(now.since(job.progress.at))));
            line("started", &when(job.started, now));
        }
        print_failures(&failures, &config, now);
        Ok(())
    }
}

/// Why the throttle of a chain's queue does not let it start.
async fn throttle(chain: &ChainView, config: &Config, ledger: &dyn Ledger) -> anyhow::Result<Option<String>> {
    let ChainView { hint, owner, payload, .. } = chain;
    let name = config.queues.get(&hint.queue).and_then(|queue| queue.throttle.as_ref());
    let Some((name, settings)) = name.and_then(|name| Some((name, config.throttles.get(name)?))) else {
        return Ok(None);
    };
    let key = settings.key.as_ref().map(|path| {
        let payload = serde_json::from_str(payload).unwrap_or(Value::Null);
        path.of_parts(&hint.kind, &hint.key, owner.as_deref(), &payload)
    });
    Ok(Throttled::look_at(name, settings, key, ledger).await?.in_the_way(None))
}

/// The reason of the run that ended a chain, and of none before, if it said that the entity is unavailable.
fn unavailable(chain: &ChainView, failures: &[Failure]) -> Option<String> {
    let of_its_end = |failure: &&Failure| {
        failure.item.is_empty() && failure.permanent && failure.last_at == chain.last_finish && !chain.once
    };
    let failure = failures.iter().find(of_its_end).filter(|_| chain.state == ChainState::Retired)?;
    let code = failure.code.as_ref().map_or_else(String::new, |code| format!("{code}: "));
    Some(format!("{code}{}", failure.reason))
}

/// The schedule of a chain in words, and its occurrences after the next tick if runs took no time. Without
/// jitter, which nobody knows before.
fn ahead(chain: &ChainView, config: &Config) -> (Option<String>, Vec<Time>) {
    let Some(of_kind) = of_kind(config, &chain.hint.kind).filter(|_| !chain.once) else {
        return (None, Vec::new());
    };
    let (schedule, words) = match &chain.schedule {
        None => {
            let words = format!("{of_kind}, as its kind");
            (of_kind, words)
        }
        Some(own) => match OwnSchedule::parse(own).and_then(|own| own.apply(&of_kind)) {
            Ok(own) => (own.clone(), format!("{own}, its own")),
            Err(error) => {
                let words = format!("{of_kind}, as its kind; its own cannot be used: {error}");
                (of_kind, words)
            }
        },
    };
    let schedule = Schedule { jitter: std::time::Duration::ZERO, ..schedule };
    let (balance, dice) = (Balance::default(), Entropy::seeded(0));
    let place = if schedule.spread_phase { phase(&chain.hint.kind, &chain.hint.key) } else { 0.0 };
    let setting = Setting { phase: place, balance: &balance, dice: &dice };
    let mut ran = Ran { nominal: chain.nominal, started: chain.hint.due, finished: chain.hint.due };
    let mut next = Vec::new();
    while next.len() < AHEAD
        && let Some(occurrence) = schedule.next(ran, setting)
    {
        next.push(occurrence.due);
        ran = Ran { nominal: occurrence.nominal, started: occurrence.due, finished: occurrence.due };
    }
    (Some(words), next)
}

struct Shown {
    chain: ChainView,
    /// What was said of its owner as a whole.
    owner: ChainState,
    why: String,
    /// Why its entity is unavailable, if a run has said so and ended it.
    unavailable: Option<String>,
    /// How far the run has come that goes on.
    progress: Option<Progress>,
    attempts: Vec<AttemptRecord>,
    schedule: Option<String>,
    next: Vec<Time>,
}

impl Shown {
    fn json(&self) -> Value {
        let ChainView { hint, state, nominal, lease_until, sent, looks, watch_at, once, owner, .. } = &self.chain;
        let ChainView { carry, last_start, last_finish, batch, payload, schedule, depth, .. } = &self.chain;
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|_| json!(text));
        let attempts: Vec<Value> = self.attempts.iter().map(attempt).collect();
        json!({
            "kind": hint.kind, "key": hint.key, "queue": hint.queue, "epoch": hint.epoch, "tick": hint.tick,
            "attempt": hint.attempt, "due": hint.due, "nominal": nominal, "state": word(*state), "once": once,
            "why": self.why, "unavailable": self.unavailable, "progress": self.progress, "depth": depth,
            "owner": owner, "owner_state": owner.as_ref().map(|_| word(self.owner)),
            "schedule": self.schedule, "own_schedule": schedule.as_deref().map(value), "next": self.next,
            "lease_until": known(*lease_until), "sent": sent, "looks": looks, "watch_at": watch_at,
            "last_start": known(*last_start), "last_finish": known(*last_finish),
            "carry": carry.as_deref().map(value), "payload": value(payload),
            "batch": (batch.1 > 0).then(|| json!({ "open": batch.0, "total": batch.1 })),
            "attempts": attempts,
        })
    }

    fn print(&self, now: Time) {
        let ChainView { hint, state, owner, nominal, carry, payload, batch, .. } = &self.chain;
        out!("{} {} on {}: {}", hint.kind, hint.key, hint.queue, word(*state));
        line("why", &self.why);
        if let Some(progress) = &self.progress {
            line("running", &format!("{progress}, {} ago", rough(now.since(progress.at))));
        }
        if let Some(owner) = owner {
            let state = if self.owner == ChainState::Active { "" } else { word(self.owner) };
            line("owner", &format!("{owner} {state}"));
        }
        if let Some(schedule) = &self.schedule {
            line("schedule", schedule);
        }
        if *state != ChainState::Retired {
            let tick = format!("tick {}, attempt {}, due at {}", hint.tick, hint.attempt, when(hint.due, now));
            let nominal = if *nominal == hint.due { String::new() } else { format!(", nominally at {nominal}") };
            line("next", &format!("{tick}{nominal}"));
            let next: Vec<String> = self.next.iter().map(Time::to_string).collect();
            if !next.is_empty() {
                line("then about", &next.join(", "));
            }
        }
        if self.chain.depth > 0 {
            let runs = if self.chain.depth == 1 {
                "a run".into()
            } else {
                format!("{} runs, one after the other,", self.chain.depth)
            };
            line("discovered", &format!("{runs} led to it"));
        }
        for (name, time) in [("last start", self.chain.last_start), ("last end", self.chain.last_finish)] {
            line(name, &known(time).map_or_else(|| "never".into(), |time| when(time, now)));
        }
        if batch.1 > 0 {
            line("batch", &format!("{} of {} jobs have ended", batch.1 - batch.0, batch.1));
        }
        if let Some(carry) = carry {
            line("handed on", &cut(carry));
        }
        if payload != "null" {
            line("payload", &cut(payload));
        }
        for (n, attempt) in self.attempts.iter().enumerate() {
            line(if n == 0 { "attempts" } else { "" }, &in_words(attempt));
        }
    }
}

fn running_job(job: &RunningJob) -> Value {
    let RunningJob { id, worker, kind, key, queue, attempt, started, progress } = job;
    json!({
        "id": id, "worker": worker, "kind": kind, "key": key, "queue": queue, "attempt": attempt, "started": started,
        "progress": progress,
    })
}

fn line(name: &str, text: &str) {
    out!("  {name:<11} {}", text.trim_end());
}

fn known(time: Time) -> Option<Time> {
    Some(time).filter(|time| *time != Time::default())
}

/// A time, and how far away it is.
fn when(time: Time, now: Time) -> String {
    if time > now {
        format!("{time} (in {})", rough(time.since(now)))
    } else {
        format!("{time} ({} ago)", rough(now.since(time)))
    }
}

fn cut(text: &str) -> String {
    if text.len() <= SHOWN {
        return text.into();
    }
    format!("{}… ({} bytes; --json shows all)", &text[..text.floor_char_boundary(SHOWN)], text.len())
}

fn attempt(record: &AttemptRecord) -> Value {
    let AttemptRecord { fence, epoch, tick, attempt, worker, due, started, finished, .. } = record;
    let AttemptRecord { verdict, reason, overlapped, misfired, progress, .. } = record;
    json!({
        "fence": fence, "epoch": epoch, "tick": tick, "attempt": attempt, "worker": worker, "due": due,
        "started": started, "finished": finished, "verdict": verdict, "reason": reason, "overlapped": overlapped,
        "misfired": misfired, "progress": progress,
    })
}

fn in_words(record: &AttemptRecord) -> String {
    let AttemptRecord { tick, attempt, worker, due, started, finished, verdict, reason, .. } = record;
    let verdict = verdict.as_deref().unwrap_or("has not ended");
    let took = finished.map_or(String::new(), |end| format!(" after {} ms", end.since(*started).as_millis()));
    let late = started.since(*due);
    let late = if late.as_secs() > 0 { format!(", {} late", rough(late)) } else { String::new() };
    let reason = reason.as_deref().map_or(String::new(), |reason| format!(": {reason}"));
    let mut left_out = String::new();
    for (count, why) in [(record.overlapped, "the run took so long"), (record.misfired, "nothing could start")] {
        if count > 0 {
            left_out.push_str(&format!("; {count} left out because {why}"));
        }
    }
    let progress = record.progress.as_ref().map_or(String::new(), |progress| format!(", at {progress}"));
    format!("{started} tick {tick}.{attempt} {verdict}{took}{progress}{late} on {worker}{reason}{left_out}")
}

fn print_failures(failures: &[Failure], config: &Config, now: Time) {
    for (n, failure) in failures.iter().enumerate() {
        let Failure { item, reason, code, times, last_at, .. } = failure;
        let part = if item.is_empty() { String::new() } else { format!("{item}: ") };
        let code = code.as_ref().map_or_else(String::new, |code| format!("{code}: "));
        let then = match then(failure, config, now) {
            then if then == "-" => String::new(),
            then => format!("; {then}"),
        };
        line(if n == 0 { "failures" } else { "" }, &format!("{last_at} (×{times}) {part}{code}{reason}{then}"));
    }
}
