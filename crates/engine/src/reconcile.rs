//! Parts that failed within a run that worked, fed back.
//!
//! ```text
//! a run reports a part as failed ─▶ its row waits ─▶ due? ─▶ a job in the outbox, named in the row
//!                                       ▲                              │
//!                                       └── failed: once more ── holds the row, runs, ends ──▶ worked: forgotten
//! ```
//!
//! The job is an ordinary one-off job on the queue of the part's chain, so it is under the same
//! throttle. It gets one attempt: whether there is another, and when, is in the row, so that a maximum
//! holds however the attempts came about. One job at a time runs for a part: see
//! [`roundelay_ledger::Failures`].

use std::time::Duration;

use roundelay_config::{Config, KindSettings};
use roundelay_ledger::{DueItem, Hold, LedgerError, Plan, PlannedItem, SpawnedJob};
use roundelay_model::clock::Time;
use roundelay_model::encryption::{AssociatedData, Field};
use roundelay_model::failure::{Failure, ItemEnd};
use roundelay_model::job::{Envelope, MAX_PAYLOAD};
use roundelay_model::outcome::{Outcome, RetryPolicy};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::catalog::Catalog;
use crate::connections::Connections;
use crate::publishing::Publishing;
use crate::queue::QueueRun;
use crate::sealing;
use crate::settlement::Settlement;
use crate::trace::Run;

/// What the ids of these jobs begin with.
const ID: &str = "roundelay.part-";
/// How long a job is waited for before it is sent once more; it may have been lost, or wait its turn.
const PATIENCE: Duration = Duration::from_secs(3_600);
/// A run holds its part for this much longer than it may take, so that it is not taken for dead too early.
const RESERVE: Duration = Duration::from_secs(60);
/// One whose chain's payload does not open is looked at again after this long.
const SEALED: Duration = Duration::from_secs(60);
/// Parts looked at together.
const PARTS: u32 = 200;

/// Whether a job with this id is for a failed part.
pub(super) fn is_part(id: &str) -> bool {
    id.starts_with(ID)
}

/// The id of the next job for a failed part: the same for the same failure, whichever worker plans it.
fn id_of(ledger: &str, failure: &Failure) -> String {
    let Failure { kind, key, item, times, first_at, .. } = failure;
    let text = format!("{ledger}\0{kind}\0{key}\0{item}\0{times}\0{}", first_at.as_millis());
    let digest: String = Sha256::digest(text).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{ID}{digest}")
}

/// What the job for a part gets: what its chain gets, and the part's name.
fn payload_for(chain: &str, item: &str) -> Value {
    let mut payload = match serde_json::from_str(chain) {
        Ok(Value::Object(payload)) => payload,
        Ok(Value::Null) | Err(_) => Map::new(),
        Ok(other) => [("payload".to_owned(), other)].into_iter().collect(),
    };
    payload.insert("item".into(), item.into());
    Value::Object(payload)
}

/// What becomes of a part that is due, as far as its job can be made (pure).
///
/// # Errors
/// Why there can be no job for it.
fn plan(config: &Config, settings: &KindSettings, ledger: &str, due: &DueItem, now: Time) -> Result<Plan, String> {
    let DueItem { failure, queue, payload, owner, depth } = due;
    match settings.policies.plan(&settings.retry, failure) {
        None => return Ok(Plan::GiveUp),
        Some(at) if at > now && failure.fed.is_none() => return Ok(Plan::Wait(at)),
        Some(_) => {}
    }
    if !config.queues.contains_key(queue) {
        return Err(format!("there is no [queues.{queue}] in the configuration"));
    }
    let kind = settings.reconcile.as_ref().and_then(|reconcile| reconcile.kind.as_ref()).unwrap_or(&failure.kind);
    let place = AssociatedData::new(Field::Payload, &failure.kind, &failure.key);
    let payload = match config.encryption.opened(place, payload) {
        Ok(payload) => payload_for(&payload, &failure.item),
        Err(why) => {
            let Failure { kind, key, item, .. } = failure;
            tracing::warn!(kind, key, item, "the payload of its chain {why}; the part is looked at again soon");
            return Ok(Plan::Wait(now + SEALED));
        }
    };
    let size = payload.to_string().len();
    if size > MAX_PAYLOAD {
        return Err(format!("its payload has {size} bytes; at most {MAX_PAYLOAD} are possible"));
    }
    // One that is under way keeps its name: whichever of its messages comes first runs, and the others are dropped.
    let id = failure.fed.clone().unwrap_or_else(|| id_of(ledger, failure));
    let envelope = Envelope {
        queue: Some(queue.clone()),
        owner: owner.clone(),
        depth: *depth,
        ..Envelope::job(kind, &failure.key, payload, id.clone())
    };
    // By the engine's own reader: what is accepted here is not refused there.
    Envelope::decode(&envelope.encode()).map_err(|bad| bad.to_string())?;
    let body = sealing::encode(&config.encryption, &envelope);
    Ok(Plan::Feed { job: SpawnedJob { id, body }, until: now + PATIENCE })
}

/// Feeds back what is due of a kind, until nothing is or `until` has come; answers how many jobs there are
/// now in the outbox for catch-up, or the caller, to send.
///
/// # Errors
/// When the ledger could not be reached.
pub(super) async fn feed(
    config: &Config,
    settings: &KindSettings,
    (connections, kind): (&Connections, &str),
    until: Time,
) -> Result<Vec<SpawnedJob>, LedgerError> {
    let ledger = &connections.ledger;
    let mut fed = Vec::new();
    while ledger.now() < until {
        let now = ledger.now();
        let due = ledger.due_items(kind.into(), PARTS).await?;
        let full = due.len() == PARTS as usize;
        let planned = due.iter().map(|due| {
            let Failure { kind, key, item, next_retry_at, .. } = &due.failure;
            let plan = plan(config, settings, ledger.id(), due, now).unwrap_or_else(|why| {
                tracing::warn!(kind, key, item, why, "a failed part cannot be fed back; it is looked at again later");
                Plan::Wait(now + PATIENCE)
            });
            let seen = next_retry_at.unwrap_or(now);
            PlannedItem { kind: kind.clone(), key: key.clone(), item: item.clone(), seen, plan }
        });
        let planned: Vec<PlannedItem> = planned.collect();
        let done = ledger.plan_items(planned.clone()).await?;
        // What was not done was done by another worker, and is due no more.
        fed.extend(planned.into_iter().zip(done).filter(|(_, done)| *done).filter_map(|(item, _)| match item.plan {
            Plan::Feed { job, .. } => Some(job),
            Plan::Wait(_) | Plan::GiveUp => None,
        }));
        if !full {
            break;
        }
    }
    Ok(fed)
}

impl Publishing {
    /// Takes the part that a job is for, just before it runs. What becomes of the job when it may not.
    pub(super) async fn hold_part(
        &self,
        envelope: &Envelope,
        queue: &QueueRun,
        (id, length): (&str, Duration),
    ) -> Result<Failure, Settlement> {
        let hold = || self.ledger.hold_item(id.to_owned(), length + RESERVE);
        match self.ledger.retry_until_stopped("take a failed part", hold).await {
            None => Err(Settlement::Requeue),
            Some(Hold::Taken(failure)) => Ok(*failure),
            Some(Hold::Held(until)) => {
                let later = envelope.clone().due_at(until);
                Err(self.send_job(&later, &queue.name, self.ledger.now(), &Run::default()).await)
            }
            Some(Hold::Gone) => {
                tracing::debug!(kind = envelope.kind, key = envelope.key, id, "no failed part waits for this job");
                Err(self.forget(id).await)
            }
        }
    }

    /// Writes how the run for a part ended. Whether that is safe.
    pub(super) async fn end_part(&self, id: &str, end: &ItemEnd, at: Time) -> bool {
        let write = || self.ledger.end_item(id.to_owned(), end.clone(), at);
        self.ledger.retry_until_stopped("write what became of a failed part", write).await.is_some()
    }

    /// Gives a part up until its job comes again, due at `due`. Whether that is safe.
    pub(super) async fn postpone_part(&self, id: &str, due: Time) -> bool {
        let write = || self.ledger.put_off_item(id.to_owned(), due + PATIENCE);
        self.ledger.retry_until_stopped("put a failed part off", write).await.is_some()
    }
}

impl Catalog {
    /// What a run for a failed part comes to, by the settings of the part's kind. `None` when it is only put off.
    pub(super) fn settle_part(
        &self,
        failure: &Failure,
        of_job: &KindSettings,
        outcome: &mut Outcome,
        at: Time,
    ) -> Option<ItemEnd> {
        let own = self.kind(&failure.kind);
        let settings = own.as_deref().unwrap_or(of_job);
        settings.policies.settle(failure, outcome, &settings.retry, at)
    }
}

/// Which try of the part it is.
pub(super) fn attempt(failure: &Failure) -> u32 {
    u32::try_from(failure.attempts.saturating_add(1)).unwrap_or(u32::MAX)
}

/// For a job that is one attempt: a failure is its end.
pub(super) fn once() -> RetryPolicy {
    RetryPolicy { attempts: 1, backoff: roundelay_model::outcome::Backoff::List(Vec::new()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const CONFIG: &str = r#"
        [queues.work]
        [reasons.busy]
        policy = "retry"
        attempts = 3
        backoff = ["10s", "60s"]
        [kinds.sync]
        every = "1h"
        reconcile = { every = "1m" }
        [kinds.other]
        every = "1h"
        reconcile = { every = "1m", kind = "mend" }
        [kinds.mend]
    "#;

    fn at(secs: i64) -> Time {
        Time::from_millis(secs * 1_000)
    }

    fn due(kind: &str) -> DueItem {
        let failure = Failure {
            kind: kind.into(),
            key: "app".into(),
            item: "us".into(),
            reason: "no".into(),
            code: Some("busy".into()),
            times: 1,
            attempts: 1,
            first_at: at(1_000),
            last_at: at(1_000),
            next_retry_at: Some(at(1_010)),
            permanent: false,
            fed: None,
            recovered: false,
        };
        let payload = r#"{"platform":"ios"}"#.into();
        DueItem { failure, queue: "work".into(), payload, owner: Some("o".into()), depth: 3 }
    }

    fn planned(due: &DueItem, now: Time) -> Result<Plan, String> {
        let config = Config::parse(CONFIG, "r.toml", []).unwrap();
        plan(&config, config.kind(&due.failure.kind).unwrap(), "ledger", due, now)
    }

    fn fed(due: &DueItem, now: Time) -> (Envelope, Time) {
        match planned(due, now) {
            Ok(Plan::Feed { job, until }) => (Envelope::decode(&job.body).unwrap(), until),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_due_part_becomes_a_job_on_the_queue_of_its_chain() {
        let (job, until) = fed(&due("sync"), at(1_010));
        assert_eq!((job.kind.as_str(), job.key.as_str(), job.queue.as_deref()), ("sync", "app", Some("work")));
        assert_eq!((job.payload, job.owner.as_deref()), (json!({ "platform": "ios", "item": "us" }), Some("o")));
        assert_eq!(job.depth, 3, "as deep as its chain, or feeding parts back would lift the bound of its kind");
        assert_eq!((until, is_part(job.id.as_deref().unwrap())), (at(1_010) + PATIENCE, true));
        assert_eq!(fed(&due("other"), at(1_010)).0.kind, "mend");
    }

    #[test]
    fn a_part_waits_for_the_backoff_of_its_reason_and_is_given_up_at_its_maximum() {
        let with = |change: fn(&mut Failure)| {
            let mut due = due("sync");
            change(&mut due.failure);
            due
        };
        let second = with(|failure| failure.attempts = 2);
        assert_eq!(planned(&second, at(1_010)), Ok(Plan::Wait(at(1_060))));
        assert!(matches!(planned(&second, at(1_060)), Ok(Plan::Feed { .. })));
        assert_eq!(planned(&with(|failure| failure.attempts = 3), at(9_000)), Ok(Plan::GiveUp));
        let unknown = DueItem { queue: "gone".into(), ..due("sync") };
        assert!(planned(&unknown, at(1_010)).unwrap_err().contains("[queues.gone]"));
    }

    #[test]
    fn the_same_failure_has_the_same_job_and_the_next_one_another() {
        let id = |due: &DueItem| fed(due, at(9_000)).0.id.unwrap();
        let (first, mut next, mut elsewhere) = (due("sync"), due("sync"), due("sync"));
        assert_eq!(id(&first), id(&first));
        next.failure.times = 2;
        elsewhere.failure.item = "jp".into();
        assert_ne!(id(&first), id(&next));
        assert_ne!(id(&first), id(&elsewhere));
        // While one is under way it is the one that is sent again.
        next.failure.fed = Some(id(&first));
        assert_eq!(id(&next), id(&first));
    }

    #[test]
    fn the_part_s_name_is_put_into_any_payload() {
        let table = [
            (r#"{"a":1}"#, json!({ "a": 1, "item": "us" })),
            ("null", json!({ "item": "us" })),
            ("[1]", json!({ "payload": [1], "item": "us" })),
            (r#"{"item":"x"}"#, json!({ "item": "us" })),
        ];
        for (payload, expected) in table {
            assert_eq!(payload_for(payload, "us"), expected, "{payload}");
        }
    }
}
