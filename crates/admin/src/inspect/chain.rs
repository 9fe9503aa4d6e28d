//! Everything about one chain: its state and the reason for it, its next ticks, and how its last runs ended.

use std::time::Duration;

use roundelay_config::{Config, OwnSchedule, schedule_of_kind};
use roundelay_engine::calendars::with_days;
use roundelay_engine::holds::Holds;
use roundelay_engine::monitor::stuck;
use roundelay_engine::overslept;
use roundelay_engine::overslept::schedules;
use roundelay_engine::throttle::throttled::Throttled;
use roundelay_ledger::{AttemptRecord, ChainState, ChainView, Ledger, LedgerError, NamedAttempt, RunningJob};
use roundelay_model::clock::{Entropy, Time};
use roundelay_model::encryption::{AssociatedData, Field};
use roundelay_model::failure::Failure;
use roundelay_model::fresh::Known;
use roundelay_model::ids::{Epoch, Fence, TickNo};
use roundelay_model::schedule::{Balance, Ran, Schedule, Setting, phase};
use roundelay_model::wall_clock::{At, WallClock};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::broker::BrokerStatus;
use super::chains::Batch;
use super::failures::FailureReport;
use super::format::{ProgressReport, doing, or_held, rough, shown_nominal, word};

/// How many occurrences after the next one are reported.
pub const AHEAD: usize = 10;

/// Everything about an entity's chains.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Entity {
    /// When the entity was read, by the ledger's clock.
    pub now: At,
    /// The chain of its rotation.
    pub chain: Option<ChainReport>,
    /// The manual run beside the rotation.
    pub single: Option<ChainReport>,
    /// The failures of the entity, latest first.
    pub failures: Vec<FailureReport>,
    /// One-off jobs of the entity that run and have reported.
    pub running: Vec<RunningReport>,
}

impl Entity {
    /// Whether the ledger has nothing of this entity.
    pub fn is_unknown(&self) -> bool {
        self.chain.is_none() && self.single.is_none() && self.failures.is_empty() && self.running.is_empty()
    }
}

/// Everything about a chain.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChainReport {
    /// The kind, which names the handler.
    pub kind: String,
    /// The key of the entity.
    pub key: String,
    /// The platform queue of the chain.
    pub queue: String,
    /// The chain's own priority on that queue, in place of its kind's.
    pub priority: Option<u8>,
    /// The incarnation of the chain.
    #[schema(value_type = i64)]
    pub epoch: Epoch,
    /// The number of the tick that is next, or runs.
    #[schema(value_type = i64)]
    pub tick: TickNo,
    /// The attempt at that tick.
    pub attempt: u32,
    /// When the tick is due, or was.
    pub due: At,
    /// When the tick is nominally due.
    pub nominal: At,
    /// active, paused, retired or quarantined.
    pub state: &'static str,
    /// The state, or, for an active chain, the part of it: sleeps, due, late, held, runs or gathers.
    pub doing: &'static str,
    /// The chain has one tick beside the rotation, and ends after it.
    pub once: bool,
    /// What the chain is doing, and above all why it does not run.
    pub why: String,
    /// Why the entity is unavailable, if a run has said so and ended the chain.
    pub unavailable: Option<String>,
    /// The progress of the current run.
    pub progress: Option<ProgressReport>,
    /// How many runs have led to this one, each started by the one before.
    pub depth: u32,
    /// The owner of the chain.
    pub owner: Option<String>,
    /// The state that an operator has given the owner as a whole.
    pub owner_state: Option<&'static str>,
    /// The schedule, in words.
    pub schedule: Option<String>,
    /// The chain's own schedule, as it was set.
    #[schema(value_type = Option<Object>)]
    pub own_schedule: Option<Value>,
    /// What is known of the entity's changes, if its interval follows from that.
    pub learned: Option<LearnedReport>,
    /// The occurrences after the next one, if runs took no time; without jitter, which is drawn at run time.
    pub next: Vec<At>,
    /// Whether the broker has confirmed the message of the tick.
    pub sent: bool,
    /// How often catch-up has sent the message.
    pub looks: u32,
    /// When catch-up looks at the chain next.
    pub watch_at: At,
    /// When a run last started.
    pub last_start: Option<At>,
    /// When a run last ended.
    pub last_finish: Option<At>,
    /// Why payload and carry are not shown: they are encrypted, and this program cannot decrypt them.
    pub sealed: Option<String>,
    /// The value that the last run has handed on.
    #[schema(value_type = Option<Value>)]
    pub carry: Option<Value>,
    /// What the handler gets.
    #[schema(value_type = Value)]
    pub payload: Value,
    /// The batch for whose end the tick waits.
    pub batch: Option<Batch>,
    /// The last attempts, latest first.
    pub attempts: Vec<AttemptReport>,
}

/// What visits have taught of an entity, and the interval that follows.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct LearnedReport {
    /// How often the entity changes in a day, about.
    pub changes_per_day: f64,
    /// With a probability of 95 % no less often,
    pub changes_per_day_low: f64,
    /// and no more often.
    pub changes_per_day_high: f64,
    /// What the entity is worth.
    pub weight: f64,
    /// When the last visit ended that says something of changes.
    pub visited: At,
    /// When the entity was last known to have changed.
    pub changed: Option<At>,
    /// How long after the end of the last run the next one comes, in milliseconds; null before the first run.
    pub every_ms: Option<u64>,
    /// Why so long.
    pub why: String,
}

/// The record of an attempt.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AttemptReport {
    /// The fence of the claim; a later claim has a higher number.
    #[schema(value_type = i64)]
    pub fence: Fence,
    /// The incarnation of the chain; manual runs have another.
    #[schema(value_type = i64)]
    pub epoch: Epoch,
    /// Whether the attempt belongs to a manual run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub manual: bool,
    /// The kind of the chain, if the context does not give it; absent when the chain does not exist any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The key of the chain, if the context does not give it; absent when the chain does not exist any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The number of the tick.
    #[schema(value_type = i64)]
    pub tick: TickNo,
    /// The number of the attempt at this tick.
    pub attempt: u32,
    /// The worker that ran it.
    pub worker: String,
    /// When the attempt was due.
    pub due: At,
    /// When the attempt started.
    pub started: At,
    /// When the attempt ended, or was found to have been cut off.
    pub finished: Option<At>,
    /// How the attempt ended: done, retried, failed, snoozed, retired, fanned_out, dropped, skipped, cut, fenced or
    /// lost; nothing while it runs.
    pub verdict: Option<String>,
    /// Why, unless the attempt worked.
    pub reason: Option<String>,
    /// Occurrences that were left out because the chain still ran.
    pub overlapped: u32,
    /// Occurrences that were left out because nothing could start.
    pub misfired: u32,
    /// Occurrences that calendars left out.
    pub excluded: u32,
    /// The last progress that the attempt has reported.
    pub progress: Option<ProgressReport>,
}

impl AttemptReport {
    pub fn of(record: AttemptRecord, wall_clock: &WallClock) -> Self {
        let AttemptRecord { fence, epoch, tick, attempt, worker, due, started, finished, .. } = record;
        let AttemptRecord { verdict, reason, overlapped, misfired, excluded, progress, .. } = record;
        Self {
            fence,
            epoch,
            manual: false,
            kind: None,
            key: None,
            tick,
            attempt,
            worker,
            due: At::of(due, wall_clock),
            started: At::of(started, wall_clock),
            finished: finished.map(|at| At::of(at, wall_clock)),
            verdict,
            reason,
            overlapped,
            misfired,
            excluded,
            progress: progress.map(|progress| ProgressReport::of(progress, wall_clock)),
        }
    }

    /// From a record with the name of its chain.
    pub fn named(NamedAttempt { record, name }: NamedAttempt, wall_clock: &WallClock) -> Self {
        let (kind, key) = name.unzip();
        Self { kind, key, ..Self::of(record, wall_clock) }
    }
}

/// A one-off job that runs and has reported progress.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RunningReport {
    /// The id of the job.
    pub id: String,
    /// The worker that runs the job.
    pub worker: String,
    /// The kind of the job.
    pub kind: String,
    /// The key of the entity.
    pub key: String,
    /// The platform queue from which the job came.
    pub queue: String,
    /// The number of the attempt.
    pub attempt: u32,
    /// When the attempt started.
    pub started: At,
    /// The last progress that the attempt has reported.
    pub progress: ProgressReport,
}

impl RunningReport {
    fn of(job: RunningJob, wall_clock: &WallClock) -> Self {
        let RunningJob { id, worker, kind, key, queue, attempt, started, progress } = job;
        let (started, progress) = (At::of(started, wall_clock), ProgressReport::of(progress, wall_clock));
        Self { id, worker, kind, key, queue, attempt, started, progress }
    }
}

/// Reads an entity, with the last attempts of its chains. `asked` is the broker's answer about their queues.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn look(
    kind: &str,
    key: &str,
    last: u32,
    config: &Config,
    ledger: &dyn Ledger,
    asked: &BrokerStatus,
) -> Result<Entity, LedgerError> {
    let config = &*with_days(config, ledger).await?;
    let chains = ledger.chains(kind.into(), key.into()).await?;
    let failures = ledger.failures_of(kind.into(), key.into()).await?;
    let running = ledger.running(kind.into(), key.into()).await?;
    let (now, wall_clock) = (ledger.now(), ledger.wall_clock());
    let (mut rotation, mut single) = (None, None);
    let all = attempts(ledger, &chains, None, last.max(1)).await?;
    for chain in chains {
        let (place, own) = match chain.once {
            true => {
                let own = all.iter().filter(|attempt| attempt.epoch == chain.hint.epoch).cloned().collect();
                (&mut single, own)
            }
            false => (&mut rotation, all.clone()),
        };
        *place = Some(report(chain, own, &failures, config, ledger, asked).await?);
    }
    if let (Some(rotation), Some(single)) = (&mut rotation, &single) {
        mark_manual(&mut rotation.attempts, single.epoch);
    }
    Ok(Entity {
        now: At::of(now, &wall_clock),
        chain: rotation,
        single,
        failures: failures.into_iter().map(|failure| FailureReport::new(failure, config, now, &wall_clock)).collect(),
        running: running.into_iter().map(|job| RunningReport::of(job, &wall_clock)).collect(),
    })
}

/// How many attempts one query reads.
const PAGE: u32 = 200;

/// The attempts of a chain, including those of its manual runs, latest first: before the one with this fence, or the
/// last ones. `chains` is what the ledger has under the chain's name.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn attempts(
    ledger: &dyn Ledger,
    chains: &[ChainView],
    before: Option<Fence>,
    limit: u32,
) -> Result<Vec<AttemptRecord>, LedgerError> {
    let known = match before {
        Some(before) => ledger.history(before, 1).await?.pop(),
        None => None,
    };
    let mut all = Vec::new();
    for chain in chains {
        let known = known.as_ref().filter(|known| known.epoch == chain.hint.epoch);
        let (mut from, mut skipped, mut found) = (known.map_or(chain.fence, |known| known.fence), 0, Vec::new());
        loop {
            let page = ledger.history(from, limit.max(PAGE)).await?;
            let (read, last) = (page.len(), page.last().map(|last| last.fence));
            found.extend(page.into_iter().skip(skipped).filter(|one| before.is_none_or(|before| one.fence < before)));
            match last {
                Some(last) if found.len() < limit as usize && read as u32 >= limit.max(PAGE) => {
                    // The history leads from an attempt to the one before it, so the last one is read again.
                    (from, skipped) = (last, 1);
                }
                _ => break,
            }
        }
        all.extend(found);
    }
    all.sort_by_key(|attempt| std::cmp::Reverse(attempt.fence));
    all.truncate(limit as usize);
    Ok(all)
}

/// Marks the attempts with this epoch as those of manual runs.
pub fn mark_manual(attempts: &mut [AttemptReport], epoch: Epoch) {
    attempts.iter_mut().for_each(|attempt| attempt.manual = attempt.epoch == epoch);
}

async fn report(
    chain: ChainView,
    attempts: Vec<AttemptRecord>,
    failures: &[Failure],
    config: &Config,
    ledger: &dyn Ledger,
    asked: &BrokerStatus,
) -> Result<ChainReport, LedgerError> {
    // Attempts of the chain's other row may have pushed it out of the last ones.
    let latest = match attempts.iter().find(|attempt| attempt.fence == chain.fence) {
        Some(latest) => Some(latest.clone()),
        None => ledger.history(chain.fence, 1).await?.pop().filter(|last| last.fence == chain.fence),
    };
    let owner_state = match &chain.owner {
        Some(owner) => ledger.owner(owner.clone()).await?,
        None => ChainState::Active,
    };
    let opened = opened(&chain, config);
    let holds = Holds::look(config, ledger).await?;
    let held_back = held_back(&chain, &opened.payload, config, &holds, ledger).await?;
    let now = ledger.now();
    let waiting = asked.waiting(&chain.hint.queue);
    let mut why = stuck::doing(
        &chain,
        latest.as_ref(),
        owner_state,
        config,
        waiting,
        held_back.as_deref(),
        (now, &ledger.wall_clock()),
    );
    let unavailable = unavailable(&chain, failures);
    if let Some(reason) = &unavailable {
        why = format!("its entity is unavailable: {reason}; {why}");
    }
    if let Some(sealed) = opened.sealed.as_ref().filter(|_| chain.state == ChainState::Active) {
        why = format!("{sealed}; {why}");
    }
    // The progress of the attempt that runs, if one does.
    let progress = latest.as_ref().filter(|_| chain.holder.runs()).and_then(|last| last.progress.clone());
    let wall_clock = ledger.wall_clock();
    let (schedule, next) = ahead(&chain, config, &wall_clock);
    let nominal = shown_nominal(
        (&chain.hint.kind, &chain.hint.key),
        chain.nominal,
        chain.schedule.as_deref(),
        config,
        &wall_clock,
    );
    let learned = learned_report(&chain, config, &wall_clock);
    let has_overslept = overslept::since(&chain, &schedules(config), (now, &wall_clock)).is_some();
    let ChainView { hint, state, holder, sent, once, owner, schedule: own, .. } = chain;
    let ChainView { last_start, last_finish, batch, looks, watch_at, depth, .. } = chain;
    let value = |text: String| serde_json::from_str::<Value>(&text).unwrap_or(Value::String(text));
    let doing =
        if has_overslept { "late" } else { doing(state, holder, batch.0, hint.due, config.catch_up.slack, now) };
    Ok(ChainReport {
        doing: or_held(doing, &hint.queue, &holds),
        kind: hint.kind,
        key: hint.key,
        queue: hint.queue,
        priority: hint.priority,
        epoch: hint.epoch,
        tick: hint.tick,
        attempt: hint.attempt,
        due: At::of(hint.due, &wall_clock),
        nominal: At::wall(nominal),
        state: word(state),
        once,
        why,
        unavailable,
        progress: progress.map(|progress| ProgressReport::of(progress, &wall_clock)),
        depth,
        owner_state: owner.as_ref().map(|_| word(owner_state)),
        owner,
        schedule,
        own_schedule: own.map(value),
        learned,
        next: next.into_iter().map(|due| At::of(due, &wall_clock)).collect(),
        sent,
        looks,
        watch_at: At::of(watch_at, &wall_clock),
        last_start: At::known(last_start, &wall_clock),
        last_finish: At::known(last_finish, &wall_clock),
        sealed: opened.sealed,
        carry: opened.carry,
        payload: opened.payload,
        batch: Batch::of(batch),
        attempts: attempts.into_iter().map(|record| AttemptReport::of(record, &wall_clock)).collect(),
    })
}

/// What a chain's handler gets, if it can be decrypted.
struct Opened {
    payload: Value,
    carry: Option<Value>,
    /// The part that cannot be decrypted, and why.
    sealed: Option<String>,
}

fn opened(chain: &ChainView, config: &Config) -> Opened {
    let ChainView { hint, payload, carry, .. } = chain;
    let mut sealed = Vec::new();
    let mut open = |field, what: &str, text: &str| match config
        .encryption
        .opened(AssociatedData::new(field, &hint.kind, &hint.key), text)
    {
        Ok(text) => serde_json::from_str(&text).unwrap_or_else(|_| Value::String(text.into_owned())),
        Err(why) => {
            sealed.push(format!("{what} {why}"));
            Value::Null
        }
    };
    let payload = open(Field::Payload, "its payload", payload);
    let carry = carry.as_ref().map(|carry| open(Field::Carry, "what was handed on", carry));
    Opened { payload, carry, sealed: (!sealed.is_empty()).then(|| sealed.join("; ")) }
}

/// Why nothing of a chain's queue starts: an operator has paused the queue, or its throttle lets nothing through.
async fn held_back(
    chain: &ChainView,
    payload: &Value,
    config: &Config,
    holds: &Holds,
    ledger: &dyn Ledger,
) -> Result<Option<String>, LedgerError> {
    let ChainView { hint, owner, .. } = chain;
    if let Some(hold) = holds.get(&hint.queue) {
        return Ok(Some(hold.words(&ledger.wall_clock())));
    }
    let name = config.queues.get(&hint.queue).and_then(|queue| queue.throttle.as_ref());
    let Some((name, settings)) = name.and_then(|name| Some((name, config.throttles.get(name)?))) else {
        return Ok(None);
    };
    let key = settings.key.as_ref().map(|path| path.of_parts(&hint.kind, &hint.key, owner.as_deref(), payload));
    Ok(Throttled::look_at(name, settings, key, ledger).await?.in_the_way(None))
}

/// The reason of the run that ended the chain, if that run said that the entity is unavailable. Earlier runs do not
/// count.
fn unavailable(chain: &ChainView, failures: &[Failure]) -> Option<String> {
    let of_its_end = |failure: &&Failure| {
        failure.item.is_empty() && failure.permanent && failure.last_at == chain.last_finish && !chain.once
    };
    let failure = failures.iter().find(of_its_end).filter(|_| chain.state == ChainState::Retired)?;
    let code = failure.code.as_ref().map_or_else(String::new, |code| format!("{code}: "));
    Some(format!("{code}{}", failure.reason))
}

/// The schedule of a chain in words, and its occurrences after the next tick if runs took no time. Without jitter,
/// which is drawn at run time.
fn ahead(chain: &ChainView, config: &Config, wall_clock: &WallClock) -> (Option<String>, Vec<Time>) {
    let Some(of_kind) = schedule_of_kind(config, &chain.hint.kind).filter(|_| !chain.once) else {
        return (None, Vec::new());
    };
    let recurrence = config.kinds.get(&chain.hint.kind).and_then(|kind| kind.recurrence.as_ref());
    let leaves_times = |own: &String| OwnSchedule::parse(own).is_ok_and(|own| !own.names_times());
    let learns = chain.schedule.as_ref().is_none_or(leaves_times);
    if let Some(recurrence) = recurrence.filter(|recurrence| recurrence.fresh.is_some() && learns) {
        // What comes after the next tick is decided when that has run.
        return (
            Some(format!("{}: {}", recurrence.words(), learned(chain.learned.as_deref(), wall_clock))),
            Vec::new(),
        );
    }
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
    let schedule = Schedule { jitter: Duration::ZERO, ..schedule };
    let (balance, dice) = (Balance::default(), Entropy::seeded(0));
    let place = if schedule.spread_phase { phase(&chain.hint.kind, &chain.hint.key) } else { 0.0 };
    let setting = Setting { phase: place, balance: &balance, dice: &dice, wall_clock };
    let mut ran = Ran { nominal: chain.nominal, started: chain.hint.due, finished: chain.hint.due };
    let mut next = Vec::new();
    while next.len() < AHEAD
        && let Some(occurrence) = schedule.next(ran, setting)
        // Where calendars allow nothing more, it is one at which the chain looks again.
        && !schedule.excluded.excludes(wall_clock.wall(occurrence.due))
    {
        next.push(occurrence.due);
        ran = Ran { nominal: occurrence.nominal, started: occurrence.due, finished: occurrence.due };
    }
    (Some(words), next)
}

/// What is known of a chain whose interval is learned, and why the interval is as long as it is.
fn learned_report(chain: &ChainView, config: &Config, wall_clock: &WallClock) -> Option<LearnedReport> {
    let fresh = config.kinds.get(&chain.hint.kind)?.fresh().filter(|_| chain.schedule.is_none() && !chain.once)?;
    let Known { learned, weight, .. } = chain.learned.as_deref().and_then(Known::from_bytes)?;
    let (low, high) = learned.bounds();
    let every = (chain.last_finish != Time::default()).then(|| chain.hint.due.since(chain.last_finish));
    // A visit lies up to a twentieth of the interval before or after its time.
    let (nearly_min, nearly_max) = (fresh.min.mul_f64(1.06), fresh.max.mul_f64(0.94));
    let why = match every {
        None => "it has not run yet",
        Some(every) if every <= nearly_min => "`min` allows none that is shorter",
        Some(every) if every >= nearly_max => "`max` allows none that is longer",
        Some(_) => {
            "it follows from the rate, the weight and the price of a call, and grows three times at most at once"
        }
    };
    Some(LearnedReport {
        changes_per_day: learned.rate() * DAY,
        changes_per_day_low: low * DAY,
        changes_per_day_high: high * DAY,
        weight: weight.into(),
        visited: At::of(learned.visited, wall_clock),
        changed: learned.changed.map(|at| At::of(at, wall_clock)),
        every_ms: every.map(|every| u64::try_from(every.as_millis()).unwrap_or(u64::MAX)),
        why: why.into(),
    })
}

/// In seconds.
const DAY: f64 = 86_400.0;

/// What a chain has learned of how often its entity changes, in words.
fn learned(learned: Option<&[u8]>, wall_clock: &WallClock) -> String {
    let Some(Known { learned, weight, .. }) = learned.and_then(Known::from_bytes) else {
        return "nothing is known yet".into();
    };
    let every = |rate: f64| rough(Duration::try_from_secs_f64(1.0 / rate).unwrap_or(Duration::MAX));
    let (low, high) = learned.bounds();
    let last = match learned.changed {
        Some(at) => format!("last at {}", At::of(at, wall_clock)),
        None => "no change seen yet".into(),
    };
    let (about, from, to) = (every(learned.rate()), every(high), every(low));
    format!("the entity changes about every {about} ({from} to {to} with 95 %), {last}, and is worth {weight}")
}

/// Why a tick cannot be brought forward.
pub fn why_not_advanced(chain: &ChainView, (now, wall_clock): (Time, &WallClock)) -> String {
    match chain.state {
        ChainState::Paused => "it is paused; `roundelay resume` lets it go on".into(),
        ChainState::Retired => "it has ended; `roundelay enroll --revive` begins it anew".into(),
        ChainState::Quarantined => "it is quarantined; see `roundelay recover --help`".into(),
        ChainState::Active if chain.holder.runs() => "it runs already".into(),
        ChainState::Active if chain.batch.0 > 0 => {
            let (open, total) = chain.batch;
            format!("it waits for its batch, of which {open} of {total} jobs have not ended")
        }
        ChainState::Active if chain.hint.due <= now => {
            format!(
                "it is due already, since {}; `roundelay show` says why it does not run",
                At::of(chain.hint.due, wall_clock)
            )
        }
        ChainState::Active => "somebody else has just changed it; try again".into(),
    }
}

#[cfg(test)]
mod tests {
    use roundelay_model::fresh::{Seen, visited};

    use super::*;

    #[test]
    fn what_a_chain_has_learned_is_told_in_words() {
        let prior = roundelay_model::fresh::Prior { log_rate: -(300_f64.ln()), precision: 4.0 };
        let at = |secs: i64| Time::from_millis(secs * 1_000);
        let begun = visited(None, None, 2.0, None, at(0), prior);
        let told = |known: &Known| learned(Some(&known.to_bytes()), &WallClock::default());
        assert_eq!(learned(None, &WallClock::default()), "nothing is known yet");
        assert_eq!(learned(Some(b"of another version"), &WallClock::default()), "nothing is known yet");
        assert_eq!(
            told(&begun),
            "the entity changes about every 5m (1m 52s to 13m 19s with 95 %), no change seen yet, and is worth 2"
        );
        let changed = visited(Some(begun), Some(Seen::Changed), 2.0, None, at(60), prior);
        assert!(told(&changed).contains("last at 1970-01-01T00:01:00.000Z"), "{}", told(&changed));
    }
}
