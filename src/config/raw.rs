//! The shape of the configuration file, with defaults. `check` turns it into settings.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use super::secret::Secret;
use crate::clock::parse_duration;

/// A duration written as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text(pub Duration);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer).map_err(|error| match error.to_string() {
            missing if missing.starts_with("missing field") => serde::de::Error::custom(missing),
            other => serde::de::Error::custom(format!("{other}; a duration is text such as \"30s\"")),
        })?;
        parse_duration(&text).map(Text).map_err(serde::de::Error::custom)
    }
}

const fn secs(secs: u64) -> Text {
    Text(Duration::from_secs(secs))
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Raw {
    pub broker: Broker,
    pub ledger: Ledger,
    pub worker: Worker,
    pub api: Api,
    pub catch_up: CatchUp,
    pub exec: Programs,
    pub tracing: Tracing,
    pub encryption: Encryption,
    pub queues: BTreeMap<String, Queue>,
    pub throttles: BTreeMap<String, Throttle>,
    pub reasons: BTreeMap<String, Reason>,
    pub kinds: BTreeMap<String, Kind>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Broker {
    pub url: Secret,
    pub username: Option<Secret>,
    pub password: Option<Secret>,
    pub prefix: String,
    pub management: Option<Secret>,
    pub declare: bool,
    pub tls: BrokerTls,
}

impl Default for Broker {
    fn default() -> Self {
        Self {
            url: "embedded".into(),
            username: None,
            password: None,
            prefix: "roundelay".into(),
            management: None,
            declare: true,
            tls: BrokerTls::default(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BrokerTls {
    pub ca: Option<String>,
    pub certificate: Option<String>,
    pub key: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ledger {
    pub url: Secret,
    pub username: Option<Secret>,
    pub password: Option<Secret>,
    pub history: Text,
    pub archive: Option<Text>,
}

impl Default for Ledger {
    fn default() -> Self {
        let url = "sqlite://roundelay.db".into();
        Self { url, username: None, password: None, history: secs(7 * 86_400), archive: None }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Worker {
    pub grace: Text,
    pub lease: Text,
    pub listen: Option<String>,
    pub callback: Option<String>,
}

impl Default for Worker {
    fn default() -> Self {
        Self { grace: secs(30), lease: secs(30), listen: None, callback: None }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Api {
    pub name: String,
    pub listen: Option<String>,
    pub hosts: Vec<String>,
    pub anonymous: Option<crate::ledger::Scope>,
    pub tls: Option<Tls>,
    pub behind_proxy: bool,
    pub patience: Text,
}

impl Default for Api {
    fn default() -> Self {
        Self {
            name: "roundelay".into(),
            listen: None,
            hosts: Vec::new(),
            anonymous: None,
            tls: None,
            behind_proxy: false,
            patience: secs(10),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    pub certificate: String,
    pub key: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CatchUp {
    pub every: Text,
    pub slack: Text,
    pub spread: Text,
}

impl Default for CatchUp {
    fn default() -> Self {
        Self { every: secs(15), slack: secs(30), spread: secs(30) }
    }
}

/// Which programs may run.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Programs {
    pub allow: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tracing {
    pub otlp: Option<String>,
    pub headers: Option<BTreeMap<String, String>>,
    pub sample: Option<f64>,
    pub keys: bool,
    pub service: Option<String>,
}

impl Default for Tracing {
    fn default() -> Self {
        Self { otlp: None, headers: None, sample: None, keys: true, service: None }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Encryption {
    pub seal: Option<String>,
    pub keys: BTreeMap<String, Secret>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Queue {
    pub concurrency: usize,
    pub prefetch: Option<u16>,
    pub priority: i32,
    pub lanes: u8,
    pub throttle: Option<String>,
}

impl Default for Queue {
    fn default() -> Self {
        Self { concurrency: 16, prefetch: None, priority: 0, lanes: 1, throttle: None }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Throttle {
    pub allow: u32,
    pub per: Text,
    #[serde(default = "one")]
    pub burst: u32,
    #[serde(default = "fleet")]
    pub scope: super::Scope,
    pub key: Option<String>,
    #[serde(default)]
    pub also: Vec<Window>,
    pub block: Option<Text>,
    pub budget: Option<Budget>,
    pub cost_header: Option<String>,
    pub breaker: Option<Breaker>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    pub remaining: String,
    pub reset: String,
    pub slow_below: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Breaker {
    pub failures: u32,
    #[serde(default = "half_a_minute")]
    pub wait: Text,
    #[serde(default = "ten_minutes")]
    pub longest: Text,
}

fn half_a_minute() -> Text {
    secs(30)
}

fn ten_minutes() -> Text {
    secs(600)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    pub allow: u32,
    pub per: Text,
}

fn one() -> u32 {
    1
}

fn fleet() -> super::Scope {
    super::Scope::Fleet
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kind {
    pub handler: Handler,
    pub queue: Option<String>,
    pub priority: u8,
    pub timeout: Text,
    pub cost: u32,
    pub takeover: Takeover,
    pub retry: Retry,
    pub reasons: BTreeMap<String, Reason>,
    pub on_status: BTreeMap<String, String>,
    pub on_exit: BTreeMap<String, String>,
    pub reconcile: Option<Reconcile>,
    // When, and whether. Spelled out here since `flatten` would let unknown fields pass.
    pub every: Option<Text>,
    pub from: Option<From>,
    pub cron: Option<String>,
    pub zone: Option<String>,
    pub at: Option<String>,
    pub jitter: Option<Text>,
    pub phase: Option<Phase>,
    pub overlap: Option<Overlap>,
    pub misfire: Option<Misfire>,
    pub misfire_window: Option<Text>,
    pub misfire_spread: Option<Text>,
    pub tolerance: Option<Text>,
    pub cooldown: Option<Text>,
    pub time_box: Option<String>,
    pub time_box_grace: Option<Text>,
    pub next_in: Option<Within>,
    pub unique_for: Option<Text>,
    pub unique_until: Option<UniqueUntil>,
    pub spawn: Spawn,
    pub roster: Roster,
    pub model: Model,
}

/// The part of a kind that says when its chains recur.
#[derive(Debug)]
pub struct Recurrence {
    pub every: Option<Text>,
    pub from: Option<From>,
    pub cron: Option<String>,
    pub zone: Option<String>,
    pub at: Option<String>,
    pub jitter: Option<Text>,
    pub phase: Option<Phase>,
    pub overlap: Option<Overlap>,
    pub misfire: Option<Misfire>,
    pub misfire_window: Option<Text>,
    pub misfire_spread: Option<Text>,
    pub tolerance: Option<Text>,
    pub cooldown: Option<Text>,
    pub time_box: Option<String>,
    pub time_box_grace: Option<Text>,
    pub next_in: Option<Within>,
}

impl Kind {
    /// Takes out what says when.
    pub fn take_recurrence(&mut self) -> Recurrence {
        Recurrence {
            every: self.every.take(),
            from: self.from.take(),
            cron: self.cron.take(),
            zone: self.zone.take(),
            at: self.at.take(),
            jitter: self.jitter.take(),
            phase: self.phase.take(),
            overlap: self.overlap.take(),
            misfire: self.misfire.take(),
            misfire_window: self.misfire_window.take(),
            misfire_spread: self.misfire_spread.take(),
            tolerance: self.tolerance.take(),
            cooldown: self.cooldown.take(),
            time_box: self.time_box.take(),
            time_box_grace: self.time_box_grace.take(),
            next_in: self.next_in.take(),
        }
    }
}

impl Recurrence {
    /// Settings that mean nothing without a schedule, and whether they are given.
    pub fn needs_a_schedule(&self) -> [(&'static str, bool); 9] {
        [
            ("jitter", self.jitter.is_some()),
            ("phase", self.phase.is_some()),
            ("overlap", self.overlap.is_some()),
            ("misfire", self.misfire.is_some()),
            ("misfire_window", self.misfire_window.is_some()),
            ("misfire_spread", self.misfire_spread.is_some()),
            ("tolerance", self.tolerance.is_some()),
            ("cooldown", self.cooldown.is_some()),
            ("time_box", self.time_box.is_some()),
        ]
    }
}

/// What an interval is counted from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum From {
    /// The end of the run before.
    #[default]
    Finish,
    /// Its start.
    Start,
    /// Its nominal time.
    Nominal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    Spread,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overlap {
    #[default]
    Skip,
    BufferOne,
    CancelOther,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Misfire {
    Skip,
    #[default]
    Coalesce,
    All,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UniqueUntil {
    Start,
    #[default]
    Finish,
}

/// Within what a run may say when the next tick is due.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Within {
    pub min: Text,
    pub max: Text,
    #[serde(default)]
    pub from_headers: bool,
}

impl Default for Kind {
    fn default() -> Self {
        Self {
            handler: Handler::default(),
            queue: None,
            priority: 0,
            timeout: secs(30),
            cost: 1,
            takeover: Takeover::default(),
            retry: Retry::default(),
            reasons: BTreeMap::new(),
            on_status: BTreeMap::new(),
            on_exit: BTreeMap::new(),
            reconcile: None,
            every: None,
            from: None,
            cron: None,
            zone: None,
            at: None,
            jitter: None,
            phase: None,
            overlap: None,
            misfire: None,
            misfire_window: None,
            misfire_spread: None,
            tolerance: None,
            cooldown: None,
            time_box: None,
            time_box_grace: None,
            next_in: None,
            unique_for: None,
            unique_until: None,
            spawn: Spawn::default(),
            roster: Roster::default(),
            model: Model::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spawn {
    pub most: usize,
    pub depth: u32,
}

impl Default for Spawn {
    fn default() -> Self {
        Self { most: 1_000, depth: 8 }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Takeover {
    #[default]
    LeaseExpiry,
    Redelivery,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Handler {
    #[default]
    Rust,
    Http(Http),
    Exec(Exec),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    pub url: Secret,
    #[serde(default)]
    pub headers: BTreeMap<String, Secret>,
    #[serde(default)]
    pub sign: Secrets,
    #[serde(default)]
    pub allow: Vec<String>,
}

/// One secret or several.
#[derive(Default)]
pub struct Secrets(pub Vec<Secret>);

/// Not `untagged`, and not serde's own words: those would show a secret that stands in the wrong place.
impl<'de> Deserialize<'de> for Secrets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let words = |value| match value {
            serde_json::Value::String(word) => Some(Secret::new(word)),
            _ => None,
        };
        let secrets = match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::Array(list) => list.into_iter().map(words).collect::<Option<_>>(),
            one => words(one).map(|one| vec![one]),
        };
        secrets.map(Self).ok_or_else(|| serde::de::Error::custom("must be a secret such as \"whsec_…\", or a list"))
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    pub argv: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, Secret>,
    pub cwd: Option<String>,
    #[serde(default)]
    pub limits: Limits,
}

/// What a program of a kind may use.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    pub memory: Option<String>,
    pub cpu: Option<Text>,
    pub files: Option<u64>,
    pub processes: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retry {
    pub attempts: u32,
    pub backoff: Backoff,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 3, backoff: Backoff::Exponential(Exponential::default()) }
    }
}

#[derive(Debug)]
pub enum Backoff {
    List(Vec<Text>),
    Exponential(Exponential),
}

/// Not `untagged`: serde would take a list of two for the first two fields of `Exponential`, and
/// say of a wrong one only that it fits neither.
impl<'de> Deserialize<'de> for Backoff {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let read = match &value {
            serde_json::Value::Array(_) => serde_json::from_value(value).map(Self::List),
            serde_json::Value::Object(_) => serde_json::from_value(value).map(Self::Exponential),
            _ => Err(serde::de::Error::custom(
                "must be a list of waits such as [\"30s\", \"60s\"], or { base, factor, max, jitter }",
            )),
        };
        read.map_err(serde::de::Error::custom)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Exponential {
    pub base: Text,
    pub factor: f64,
    pub max: Text,
    pub jitter: f64,
}

impl Default for Exponential {
    fn default() -> Self {
        Self { base: secs(10), factor: 2.0, max: secs(600), jitter: 0.2 }
    }
}

/// What follows from a reason.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    pub policy: Policy,
    pub attempts: Option<u32>,
    pub backoff: Option<Backoff>,
    pub after: Option<Text>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    Retry,
    Fail,
    Retire,
    Snooze,
}

/// How failed parts of runs are fed back.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reconcile {
    pub every: Text,
    pub kind: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Roster {
    pub key: Option<String>,
    pub owner: Option<String>,
    pub schedule: Option<String>,
    pub file: Option<String>,
    pub http: Option<Secret>,
    pub allow: Vec<String>,
    pub sql: Option<Sql>,
    pub sync: Option<Text>,
    pub prune: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sql {
    pub url: Secret,
    pub query: String,
}

/// What `simulate` takes a kind's handler for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    pub chains: Option<u64>,
    pub duration: Length,
    pub fail: f64,
    pub slow: Vec<Slow>,
}

impl Default for Model {
    fn default() -> Self {
        Self { chains: None, duration: Length { p50: MODEL_RUN, p99: None }, fail: 0.0, slow: Vec::new() }
    }
}

/// How long a modelled run takes where nothing is said.
const MODEL_RUN: Text = Text(Duration::from_millis(200));

/// One length, or a distribution of them.
#[derive(Debug)]
pub struct Length {
    pub p50: Text,
    pub p99: Option<Text>,
}

/// Not `untagged`, for the same reason as [`Backoff`].
impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let read = match &value {
            serde_json::Value::Object(_) => {
                serde_json::from_value(value).map(|Quantiles { p50, p99 }| Self { p50, p99: Some(p99) })
            }
            serde_json::Value::String(_) => serde_json::from_value(value).map(|p50| Self { p50, p99: None }),
            _ => Err(serde::de::Error::custom("must be a duration such as \"200ms\", or { p50, p99 }")),
        };
        read.map_err(serde::de::Error::custom)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quantiles {
    p50: Text,
    p99: Text,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slow {
    pub from: Text,
    pub to: Text,
    #[serde(default = "unchanged")]
    pub factor: f64,
    pub fail: Option<f64>,
}

fn unchanged() -> f64 {
    1.0
}
