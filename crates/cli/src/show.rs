//! `roundelay show`: one chain, what it does and why, what is next, and how its last runs ended.

use anyhow::{Error, bail};
use clap::Args;
use roundelay_admin::inspect::broker::BrokerStatus;
use roundelay_admin::inspect::chain::{AttemptReport, ChainReport, look};
use roundelay_admin::inspect::failures::FailureReport;
use roundelay_admin::inspect::format::rough;
use roundelay_model::clock::Time;
use roundelay_model::wall_clock::At;
use serde_json::Value;

use super::ConfigFile;
use super::progress::waiting;
use super::screen::{self, Tint, field, tinted};
use super::steer::ledger;

/// How many occurrences after the next one are shown in text.
const AHEAD: usize = 3;
/// How many bytes of carry and of payload are shown in text.
const MAX_BYTES: usize = 400;

/// Shows one chain: what it is doing and why, what is next, how its last runs ended.
#[derive(Args)]
pub struct Show {
    #[command(flatten)]
    config: ConfigFile,
    /// The kind of the chain.
    kind: String,
    /// The key of the entity.
    key: String,
    /// How many of the last attempts to show.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
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
        let waits = waiting("asking ledger and broker");
        // For an unknown entity, there is no queue to ask the broker about.
        let known = !ledger.chains(kind.clone(), key.clone()).await?.is_empty();
        let asked = if known { BrokerStatus::once(&config).await } else { BrokerStatus::Embedded };
        let entity = look(kind, key, self.last, &config, &*ledger, &asked).await?;
        drop(waits);
        if entity.is_unknown() {
            config.kind(kind).map_err(Error::msg)?;
            bail!(
                "there is no chain {kind} {key}, no failure of it, and no one-off job of it that has reported and runs; `roundelay list --kind {kind}` lists the chains"
            );
        }
        if self.json {
            return screen::json(&entity);
        }
        let now = entity.now.shown();
        if let Some(chain) = &entity.chain {
            print(chain, now);
        }
        // The attempts of a manual run that has ended are listed with those of the chain.
        if let Some(single) = entity.single.iter().find(|one| entity.chain.is_none() || one.state != "retired") {
            out!("its manual run:");
            print(single, now);
        }
        for job in &entity.running {
            out!("one-off job {} on {}, attempt {}, by {}:", job.id, job.queue, job.attempt, job.worker);
            field("running", &format!("{}, {} ago", job.progress, rough(now.since(job.progress.at.shown()))));
            field("started", &when(job.started, now));
        }
        print_failures(&entity.failures);
        Ok(())
    }
}

fn print(chain: &ChainReport, now: Time) {
    let ChainReport { kind, key, queue, state, due, nominal, .. } = chain;
    let title = format!("{kind} {key} on {queue}: {state}");
    tinted(if *state == "quarantined" { Tint::Wrong } else { Tint::Heading }, format_args!("{title}"));
    field("why", &chain.why);
    if let Some(progress) = &chain.progress {
        field("running", &format!("{progress}, {} ago", rough(now.since(progress.at.shown()))));
    }
    if let Some(owner) = &chain.owner {
        let state = chain.owner_state.filter(|state| *state != "active").unwrap_or_default();
        field("owner", &format!("{owner} {state}"));
    }
    if let Some(schedule) = &chain.schedule {
        field("schedule", schedule);
    }
    if *state != "retired" {
        let tick = format!("{}, attempt {}, due at {}", chain.tick, chain.attempt, when(*due, now));
        let nominal = if nominal == due { String::new() } else { format!(", scheduled for {nominal}") };
        field("tick", &format!("{tick}{nominal}"));
        let next: Vec<String> = chain.next.iter().take(AHEAD).map(At::to_string).collect();
        if !next.is_empty() {
            field("next about", &next.join(", "));
        }
    }
    match chain.depth {
        0 => {}
        1 => field("discovered", "by a run"),
        runs => field("discovered", &format!("by a run, at depth {runs}")),
    }
    for (name, time) in [("last start", chain.last_start), ("last end", chain.last_finish)] {
        field(name, &time.map_or_else(|| "never".into(), |time| when(time, now)));
    }
    if let Some(batch) = chain.batch {
        field("batch", &format!("{} of {} jobs have ended", batch.total - batch.open, batch.total));
    }
    if let Some(carry) = &chain.carry {
        field("carry", &cut(&carry.to_string()));
    }
    if chain.payload != Value::Null {
        field("payload", &cut(&chain.payload.to_string()));
    }
    for (n, attempt) in chain.attempts.iter().enumerate() {
        field(if n == 0 { "attempts" } else { "" }, &describe(attempt));
    }
}

/// A time, and its distance from now.
fn when(at: At, now: Time) -> String {
    let time = at.shown();
    if time > now {
        format!("{time} (in {})", rough(time.since(now)))
    } else {
        format!("{time} ({} ago)", rough(now.since(time)))
    }
}

fn cut(text: &str) -> String {
    if text.len() <= MAX_BYTES {
        return text.into();
    }
    format!("{}… ({} bytes; --json shows all)", &text[..text.floor_char_boundary(MAX_BYTES)], text.len())
}

fn describe(attempt: &AttemptReport) -> String {
    let AttemptReport { tick, attempt: nth, worker, due, started, finished, verdict, reason, .. } = attempt;
    let verdict = verdict.as_deref().unwrap_or("has not ended");
    let took =
        finished.map_or(String::new(), |end| format!(" after {} ms", end.shown().since(started.shown()).as_millis()));
    let late = started.shown().since(due.shown());
    let late = if late.as_secs() > 0 { format!(", {} late", rough(late)) } else { String::new() };
    let reason = reason.as_deref().map_or(String::new(), |reason| format!(": {reason}"));
    let mut left_out = String::new();
    let AttemptReport { overlapped, misfired, excluded, .. } = *attempt;
    let reasons =
        [(overlapped, "the run took too long"), (misfired, "nothing could start"), (excluded, "by calendars")];
    for (count, why) in reasons {
        if count > 0 {
            left_out.push_str(&format!("; {count} occurrences left out: {why}"));
        }
    }
    let progress = attempt.progress.as_ref().map_or(String::new(), |progress| format!(", at {progress}"));
    let tick = if attempt.manual { format!("manual run {tick}") } else { format!("tick {tick}") };
    format!("{started} {tick}, attempt {nth}: {verdict}{took}{progress}{late} on {worker}{reason}{left_out}")
}

fn print_failures(failures: &[FailureReport]) {
    for (n, failure) in failures.iter().enumerate() {
        let FailureReport { item, reason, code, times, last_at, then, .. } = failure;
        let part = if item.is_empty() { String::new() } else { format!("{item}: ") };
        let code = code.as_ref().map_or_else(String::new, |code| format!("{code}: "));
        field(if n == 0 { "failures" } else { "" }, &format!("{last_at} (×{times}) {part}{code}{reason}; {then}"));
    }
}
