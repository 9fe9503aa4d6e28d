//! What is played: the workers' configuration, the chains, and what their handlers do.

use std::ops::Range;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use roundelay_ledger::Reports;
use roundelay_ledger::sqlite::SqliteLedger;
use roundelay_model::clock::Entropy;
use roundelay_model::encryption::KEY_BYTES;
use roundelay_model::failure::FailedItem;
use roundelay_model::guard::IfRunning;
use roundelay_model::job::Job;
use roundelay_model::outcome::{Discovered, NewJob, Outcome, Yield};
use serde_json::{Value, json};
use tokio::time::sleep;

/// Workers in a run.
pub const WORKERS: usize = 3;
/// Queues that a fault can name; which they are depends on what holds messages then.
pub const QUEUES: usize = 8;

/// The queues of the configuration.
pub(super) const PLATFORM: [&str; 3] = ["alpha", "beta", "gamma"];

/// The workers' configuration, in which the key of this name seals, or none.
pub(super) fn config(seal: Option<&str>) -> String {
    let Some(seal) = seal else { return CONFIG.into() };
    let [first, second] = [1, 2].map(|byte| STANDARD.encode([byte; KEY_BYTES]));
    format!(
        "{CONFIG}[encryption]\nseal = \"{seal}\"\nkeys = {{ {FIRST_KEY} = \"{first}\", {SECOND_KEY} = \"{second}\" }}\n"
    )
}

/// The keys that payloads are sealed with, one after the other.
pub(super) const FIRST_KEY: &str = "first";
pub(super) const SECOND_KEY: &str = "second";

const CONFIG: &str = r#"
broker.url = "amqp://simulated"
ledger.url = "sqlite://:memory:"
[worker]
lease = "9s"
grace = "20s"
[catch_up]
every = "5s"
slack = "10s"
spread = "5s"
[throttles.upstream]
allow = 10
per = "10s"
burst = 5
[queues.alpha]
concurrency = 2
prefetch = 6
throttle = "upstream"
fair = "owner"
[queues.beta]
concurrency = 1
prefetch = 3
fair = "owner"
[queues.gamma]
concurrency = 10
[kinds.quick]
every = "20s"
jitter = "5s"
queue = "alpha"
timeout = "10s"
retry = { attempts = 3, backoff = ["1s", "3s"] }
[kinds.steady]
every = "45s"
queue = "beta"
timeout = "10s"
takeover = "redelivery"
retry = { attempts = 2, backoff = ["2s"] }
[kinds.long]
every = "30s"
cooldown = "4s"
queue = "gamma"
timeout = "60s"
retry = { attempts = 2, backoff = ["7s"] }
[kinds.paced]
every = "20s"
from = "nominal"
tolerance = "2s"
queue = "gamma"
timeout = "10s"
retry = { attempts = 2, backoff = ["2s"] }
[kinds.found]
every = "30s"
queue = "gamma"
timeout = "10s"
retry = { attempts = 2, backoff = ["2s"] }
[kinds.brisk]
every = "20s"
from = "nominal"
overlap = "cancel-other"
queue = "gamma"
timeout = "60s"
retry = { attempts = 2, backoff = ["2s"] }
[kinds.timed]
cron = "* * * * *"
queue = "gamma"
timeout = "10s"
retry = { attempts = 2, backoff = ["2s"] }
[kinds.asked]
every = "30s"
queue = "gamma"
timeout = "10s"
retry = { attempts = 2, backoff = ["2s"] }
[kinds.wide]
every = "40s"
queue = "gamma"
timeout = "10s"
retry = { attempts = 2, backoff = ["2s"] }
[kinds.part]
queue = "beta"
timeout = "10s"
retry = { attempts = 2, backoff = ["2s"] }
[kinds.sole]
queue = "gamma"
timeout = "20s"
unique_for = "30s"
retry = { attempts = 2, backoff = ["2s"] }
[kinds.first]
queue = "gamma"
timeout = "20s"
unique_for = "30s"
unique_until = "start"
retry = { attempts = 2, backoff = ["2s"] }
[kinds.job]
queue = "alpha"
timeout = "10s"
retry = { attempts = 3, backoff = ["1s", "3s"] }
"#;

/// What becomes of a manual run of the chain with this key while its rotation runs: each chain has its way.
pub fn if_running(key: &str) -> IfRunning {
    let ways = [IfRunning::Refuse, IfRunning::After, IfRunning::Beside];
    ways[CHAINS.iter().position(|(_, _, of)| *of == key).unwrap_or_default() % ways.len()]
}

/// That of the kind `long`.
pub const COOLDOWN: Duration = Duration::from_secs(4);

/// The chains of a run, by kind, queue and key.
pub(super) const CHAINS: [(&str, &str, &str); 17] = [
    ("quick", "alpha", "a"),
    ("quick", "alpha", "b"),
    ("quick", "alpha", "c"),
    ("quick", "alpha", "d"),
    ("quick", "alpha", "e"),
    ("steady", "beta", "f"),
    ("steady", "beta", "g"),
    ("steady", "beta", "h"),
    ("steady", "beta", "i"),
    ("long", "gamma", "j"),
    ("long", "gamma", "k"),
    ("long", "gamma", "l"),
    ("paced", "gamma", "m"),
    ("wide", "gamma", "n"),
    ("wide", "gamma", "o"),
    ("brisk", "gamma", "p"),
    ("timed", "gamma", "q"),
];

/// Those of the kind `long`, by their numbers.
pub const LONG: Range<usize> = 9..12;

/// No chain sleeps for longer: the longest interval with its jitter and what is left of the clock's last minute.
pub const MAX_SLEEP: Duration = Duration::from_secs(61);

/// To whom some chains and jobs belong.
pub(super) const OWNER: &str = "guild";

/// Whether the chain of this key belongs to the owner.
pub(super) fn is_owned(key: &str) -> bool {
    ["d", "e", "i", "o"].contains(&key)
}

/// No two starts of ticks of the kind `paced` are closer than this: its interval less its tolerance.
pub const PACED: Duration = Duration::from_secs(18);

/// A tick of the kind `brisk` runs for no longer: until its next occurrence, and the grace after it.
pub const BRISK: Duration = Duration::from_secs(25);

/// Chains that a fault can name.
pub const CHAIN_COUNT: usize = CHAINS.len();

/// How many payloads a chain is given, one after the other.
pub(super) const VARIANTS: usize = 3;

/// What the handler of a chain gets.
pub(super) fn payload(key: &str, variant: usize) -> Value {
    json!({ "key": key, "variant": variant })
}

/// The payload that a run gives to a job, a member of a batch or a chain that the run has discovered, and that a
/// program gives to a chain that the program asks for.
pub(super) fn given_to(key: &str) -> Value {
    json!({ "given to": key })
}

/// What a run hands on to the next one of its chain.
fn handed_on(key: &str) -> Value {
    json!({ "handed on by": key })
}

/// What is published with this id.
pub(super) fn published(id: &str) -> Value {
    json!({ "published as": id })
}

/// Whether a handler gets what was meant for it, in whatever form that has lain in the ledger and in queues.
pub(super) fn has_its_own_payload(job: &Job) -> bool {
    let Job { kind, key, id, .. } = job;
    let meant = match kind.as_str() {
        "part" | "found" | "asked" => job.payload == given_to(key),
        "job" | "sole" | "first" if ["job-", "unique-", "aside-"].iter().any(|by| id.starts_with(by)) => {
            job.payload == published(id)
        }
        "job" => job.payload == given_to(key),
        _ => (0..VARIANTS).any(|variant| job.payload == payload(key, variant)),
    };
    meant && (job.carry.is_null() || job.carry == handed_on(key))
}

/// Whether the job is a single tick, which only the ledger knows.
pub(super) async fn once(ledger: &SqliteLedger, job: &Job) -> bool {
    let Some(tick) = job.tick else { return false };
    let chains = ledger.chains(job.kind.clone(), job.key.clone()).await.unwrap_or_default();
    chains.iter().any(|chain| chain.once && chain.hint.epoch == tick.epoch)
}

/// What a handler does: it takes its time, and then rolls the dice of this run.
pub(super) async fn handle(seed: u64, job: &Job, run: u64) -> Outcome {
    let dice = Entropy::seeded(seed ^ job.seed ^ run << 48);
    let length = match job.kind.as_str() {
        "brisk" => Duration::from_millis(2_000 + dice.below(32_000) as u64),
        "sole" | "first" => Duration::from_millis(1_000 + dice.below(8_000) as u64),
        "long" => Duration::from_millis(4_000 + dice.below(26_000) as u64),
        _ => Duration::from_millis(dice.below(1_200) as u64),
    };
    sleep(length).await;
    let word = dice.below(100);
    if job.kind == "wide" && word < 78 {
        let part = |n: usize| NewJob {
            kind: "part".into(),
            key: format!("{}/{n}", job.key),
            payload: given_to(&format!("{}/{n}", job.key)),
            queue: (n % 2 == 1).then(|| "alpha".into()),
            delay: Duration::from_millis(dice.below(2_000) as u64),
            ..NewJob::default()
        };
        return Outcome::DoneWith(Yield { batch: (0..1 + dice.below(4)).map(part).collect(), ..Yield::default() });
    }
    match word {
        0..78 if job.kind == "paced" => {
            let key = format!("{}/app", job.key);
            let payload = given_to(&key);
            let found = Discovered { kind: "found".into(), key, payload, ..Discovered::default() };
            Outcome::DoneWith(Yield { chains: vec![found], ..Yield::default() })
        }
        0..78 if job.kind == "steady" => {
            Outcome::DoneWith(Yield { carry: Some(handed_on(&job.key)), ..Yield::default() })
        }
        0..78 => Outcome::Done,
        78..86 => Outcome::retry("out of luck"),
        86..90 => Outcome::fail("out of luck for good"),
        90..94 => Outcome::Snooze { reason: "not now".into(), wait: Duration::from_millis(dice.below(5_000) as u64) },
        _ if ["job", "part", "sole", "first"].contains(&job.kind.as_str()) => Outcome::Done,
        _ => {
            let new = |n: usize| NewJob {
                kind: "job".into(),
                key: format!("{}/{n}", job.id),
                payload: given_to(&format!("{}/{n}", job.id)),
                queue: None,
                delay: Duration::from_millis(dice.below(3_000) as u64),
                owner: None,
            };
            let failed = FailedItem::new("page 1", "out of luck");
            Outcome::DoneWith(Yield {
                jobs: (0..1 + dice.below(3)).map(new).collect(),
                failed: vec![failed],
                ..Yield::default()
            })
        }
    }
}
