//! What a run asks for: jobs and chains.
//!
//! They are written into the ledger together with the end of the run, and sent afterwards. What
//! has been sent is forgotten; what a crash left there is sent by catch-up. So what was accepted is
//! not lost, and what was not accepted is not sent. Chains begin in the same transaction.

use std::time::Duration;

use roundelay_config::SpawnSettings;
use roundelay_handler::answer::EXCERPT;
use roundelay_ledger::{NewChain, SpawnedJob};
use roundelay_model::clock::Time;
use roundelay_model::encryption::Keyring;
use roundelay_model::failure::FailedItem;
use roundelay_model::job::{Envelope, MAX_PAYLOAD};
use roundelay_model::outcome::{NewJob, Yield};
use roundelay_model::reason::excerpt;
use roundelay_model::wall_clock::WallClock;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::catalog::Catalog;
use crate::discover::bound;
use crate::sealing;

/// The largest carry, which a run hands on to the next one, in bytes of compact JSON.
pub const MAX_CARRY: usize = 64 * 1024;
/// From here on a run's id is not continued as it is. Jobs may ask for jobs without end, and an id has
/// at most [`MAX_KEY`](roundelay_model::job::MAX_KEY) bytes.
const MAX_RUN: usize = 200;

/// The id of the `n`-th job, from 1, that a run asks for: the same however often the run is repeated.
/// It is `<run>-<n>`, with the SHA-256 of the run's id in its place once that is long.
fn spawned_id(run: &str, n: usize) -> String {
    if run.len() <= MAX_RUN {
        return format!("{run}-{n}");
    }
    let digest: String = Sha256::digest(run).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{digest}-{n}")
}

/// A run that asks for something.
pub(super) struct Asking<'a> {
    /// Its id.
    pub id: &'a str,
    pub kind: &'a str,
    pub queue: &'a str,
    pub owner: Option<&'a str>,
    /// How many runs have led to it.
    pub depth: u32,
    pub bounds: SpawnSettings,
    /// When it ended.
    pub at: Time,
    pub keys: &'a Keyring,
    /// How the wall clock stands to the ledger's time.
    pub wall_clock: &'a WallClock,
    pub slack: Duration,
}

/// What a run asked for, as the ledger takes it.
#[derive(Default)]
pub(super) struct Asked {
    pub envelopes: Vec<Envelope>,
    pub chains: Vec<NewChain>,
    pub failed: Vec<FailedItem>,
    pub carry: Option<Value>,
}

impl Asked {
    pub fn spawned(&self, keys: &Keyring) -> Vec<SpawnedJob> {
        let job = |envelope: &Envelope| SpawnedJob {
            id: envelope.id.clone().unwrap_or_default(),
            body: sealing::encode(keys, envelope),
        };
        self.envelopes.iter().map(job).collect()
    }
}

impl Catalog {
    /// Messages and chains for what a run asks for. What no worker could run, and what is more than the run
    /// may ask for, becomes a failed part instead, so that people see it and the rest goes on.
    pub(super) fn asked(&self, asking: &Asking<'_>, mut yields: Yield) -> Asked {
        let too_much = bound(&mut yields, asking.bounds, asking.depth, asking.kind);
        let Yield { jobs, chains, failed, carry, .. } = yields;
        let mut asked = Asked { failed, carry, ..Asked::default() };
        asked.failed.extend(too_much);
        for (n, job) in jobs.into_iter().enumerate() {
            let item = format!("spawn {} {}", job.kind, job.key);
            match self.envelope(spawned_id(asking.id, n + 1), asking.queue, job, asking.at) {
                Ok(new) => asked.envelopes.push(Envelope {
                    owner: new.owner.or_else(|| asking.owner.map(Into::into)),
                    depth: asking.depth.saturating_add(1),
                    ..new
                }),
                Err(reason) => asked.failed.push(FailedItem::refused(item, reason)),
            }
        }
        for found in chains {
            let item = format!("chain {} {}", found.kind, found.key);
            match self.discovered(asking, found) {
                Ok(chain) => asked.chains.push(chain),
                Err(reason) => asked.failed.push(FailedItem::refused(item, reason)),
            }
        }
        // They are a handler's words, and part of a key, which PostgreSQL takes up to 2,700 bytes of.
        asked.failed.iter_mut().for_each(|part| part.item = excerpt(part.item.as_bytes(), EXCERPT));
        asked
    }

    pub(super) fn envelope(&self, id: String, queue: &str, job: NewJob, at: Time) -> Result<Envelope, String> {
        let Some(kind) = self.kind(&job.kind) else {
            return Err(format!("there is no [kinds.{}] in the configuration", job.kind));
        };
        let queue = match job.queue {
            Some(queue) => queue,
            None => kind.queue_for(&job.payload)?.unwrap_or_else(|| queue.to_owned()),
        };
        if !self.queues.contains_key(&queue) {
            return Err(format!("there is no [queues.{queue}] in the configuration"));
        }
        let size = if job.payload == Value::Null { 0 } else { job.payload.to_string().len() };
        if size > MAX_PAYLOAD {
            return Err(format!("its payload has {size} bytes; at most {MAX_PAYLOAD} are possible"));
        }
        let envelope =
            Envelope { queue: Some(queue), owner: job.owner, ..Envelope::job(&job.kind, &job.key, job.payload, id) };
        let envelope = if job.delay.is_zero() { envelope } else { envelope.due_at(at + job.delay) };
        // By the engine's own reader: what is accepted here is not refused there.
        Envelope::decode(&envelope.encode()).map_err(|bad| bad.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roundelay_model::job::MAX_KEY;

    #[test]
    fn ids_of_asked_for_jobs_are_stable_unique_and_never_too_long() {
        assert_eq!(spawned_id("ledger-7-1", 2), "ledger-7-1-2");
        let long = "x".repeat(MAX_KEY);
        assert_eq!(spawned_id(&long, 1), spawned_id(&long, 1));
        assert_ne!(spawned_id(&long, 1), spawned_id(&long, 2));
        assert_ne!(spawned_id(&long, 1), spawned_id(&"y".repeat(MAX_KEY), 1));
        let mut id = "job".to_owned();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1_000 {
            id = spawned_id(&id, 1);
            assert!(id.len() <= MAX_KEY && seen.insert(id.clone()), "{id}");
        }
    }
}
