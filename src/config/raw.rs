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

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Raw {
    /// What carries messages.
    pub broker: Broker,
    /// What holds the truth about chains.
    pub ledger: Ledger,
    /// How a worker stops, and where it answers.
    pub worker: Worker,
    /// The admin API and the dashboard.
    pub api: Api,
    /// How overdue chains are found, and sent again.
    pub catch_up: CatchUp,
    /// Which programs exec handlers may start.
    pub exec: Programs,
    /// Traces, for a collector of OpenTelemetry's.
    pub tracing: Tracing,
    /// Keys that payloads are sealed with while they lie in the ledger and in queues.
    pub encryption: Encryption,
    /// One table for each platform queue.
    pub queues: BTreeMap<String, Queue>,
    /// One table for each limit on starts.
    pub throttles: BTreeMap<String, Throttle>,
    /// One table for each reason that work fails for: what follows, for all kinds.
    pub reasons: BTreeMap<String, Reason>,
    /// One table for each kind of job.
    pub kinds: BTreeMap<String, Kind>,
}

/// What carries messages: RabbitMQ, or a broker inside the worker.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Broker {
    /// `embedded` runs a broker inside the worker: for development, and for one worker on one machine. For RabbitMQ
    /// `amqp://user:password@host:5672/vhost`, or `amqps://` for TLS. The virtual host `/` is written `%2f`, or left
    /// out.
    pub url: Secret,
    /// The user, in place of the URL's, as it stands. `management` takes it too unless its URL names a user. The
    /// embedded broker does not look at it.
    pub username: Option<Secret>,
    /// Likewise the password.
    pub password: Option<Secret>,
    /// What the engine's own exchanges and queues begin with: 1 to 100 letters, digits, `-`, `_` and `.`. Change it
    /// when two deployments share a virtual host.
    #[cfg_attr(test, schemars(length(min = 1, max = 100)))]
    pub prefix: String,
    /// The base URL of RabbitMQ's management API, with a user that has the tag `management`. With it a worker refuses
    /// to start while a policy would lose or delay jobs, and `roundelay topology check` sees arguments and policies.
    pub management: Option<Secret>,
    /// Whether workers, and whoever enrolls, declare what is missing on RabbitMQ. With `false` they need no permission
    /// to, and refuse to start where something is missing: `roundelay topology apply`, or an import, has declared it
    /// before.
    pub declare: bool,
    /// How the broker and its management API are known over TLS, and we to them.
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

/// How the broker and its management API are known over TLS, and we to them: PEM files, read anew for each connection.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct BrokerTls {
    /// The authorities to trust, in place of the system's.
    pub ca: Option<String>,
    /// Our own certificate, with those that it was signed with, where the broker asks for one. To log in with it, and
    /// without a password, add `?auth_mechanism=external` to the URL.
    pub certificate: Option<String>,
    /// Its private key.
    pub key: Option<String>,
}

/// What holds the truth about chains.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Ledger {
    /// A SQLite file, `sqlite://PATH`, which all workers and commands on one machine open, on its own disk; or a
    /// PostgreSQL database, `postgres://user:password@host:5432/database`, which workers on many machines share.
    /// `sqlite://:memory:` is gone with the process.
    pub url: Secret,
    /// The user, in place of that of a `postgres://` URL, as it stands.
    pub username: Option<Secret>,
    /// Likewise the password.
    pub password: Option<Secret>,
    /// How long the records of attempts that have ended are kept.
    #[cfg_attr(test, schemars(extend("x-least" = "0s", "x-most" = "3660days")))]
    pub history: Text,
    /// How old they may become in an archive, a table of its own to which they move when they are older than
    /// `history`. It has to be longer than that. Without it they are deleted.
    #[cfg_attr(test, schemars(extend("x-least" = "1s", "x-most" = "3660days")))]
    pub archive: Option<Text>,
}

impl Default for Ledger {
    fn default() -> Self {
        let url = "sqlite://roundelay.db".into();
        Self { url, username: None, password: None, history: secs(7 * 86_400), archive: None }
    }
}

/// How a worker stops, and where it answers.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Worker {
    /// How long running jobs may go on after SIGTERM. What is not done by then is put off, and runs again. Keep it
    /// below the time that your supervisor waits before it kills.
    #[cfg_attr(test, schemars(extend("x-least" = "0s", "x-most" = "24m")))]
    pub grace: Text,
    /// How long a claim holds without a heartbeat. A worker renews its claims three times in this time. One that was
    /// killed loses them when it is over, and then another runs the same ticks.
    #[cfg_attr(test, schemars(extend("x-least" = "3s", "x-most" = "1h")))]
    pub lease: Text,
    /// Address and port where the worker answers `/metrics`, `/healthz` and `/readyz`, to whoever reaches it. Each
    /// worker on a machine needs a port of its own. Without it nothing listens.
    pub listen: Option<String>,
    /// What handlers reach `listen` by, as a URL: each job then says where its run can report how far it has come. By
    /// default it is the address in `listen`; where that is `0.0.0.0`, there is none.
    pub callback: Option<String>,
}

impl Default for Worker {
    fn default() -> Self {
        Self { grace: secs(30), lease: secs(30), listen: None, callback: None }
    }
}

/// The admin API and the dashboard, of `roundelay serve` or inside a worker.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Api {
    /// What this installation is called where people see it.
    #[cfg_attr(test, schemars(length(min = 1, max = 100)))]
    pub name: String,
    /// Address and port where it answers. Without it `roundelay serve` takes `127.0.0.1:15680`, and workers do not
    /// answer. On an address that other machines reach there must be a token, and TLS here or at a proxy.
    pub listen: Option<String>,
    /// By which names it is called, beside `localhost`, `127.0.0.1` and `[::1]`: without scheme and port. Requests for
    /// other names are refused.
    pub hosts: Vec<String>,
    /// What those without a token may do. Without it they may look (`read`) on `127.0.0.1` and `[::1]` if there is no
    /// proxy. Elsewhere it is `none`, and can be nothing else.
    pub anonymous: Option<crate::ledger::Scope>,
    /// Where TLS ends here.
    pub tls: Option<Tls>,
    /// Whether a proxy before it does TLS. Then a token is always needed. A request that shows traces of a proxy is
    /// refused while this is `false`. It does not go with `tls`.
    pub behind_proxy: bool,
    /// How long a client may take for the headers of a request, and be silent between two of them. Three times as long
    /// it may take for a body, and to take what it is answered.
    #[cfg_attr(test, schemars(extend("x-least" = "100ms", "x-most" = "5m")))]
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

/// Where TLS ends in this process: files in PEM format, read once, at the start.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The certificate, with those that it was signed with.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

/// How chains are found whose messages were lost, and sent again.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct CatchUp {
    /// How often overdue chains are looked for.
    #[cfg_attr(test, schemars(extend("x-least" = "1s", "x-most" = "1h")))]
    pub every: Text,
    /// How long after its due time a chain is looked at, whose message is lost, or waits its turn.
    #[cfg_attr(test, schemars(extend("x-least" = "1s", "x-most" = "1h")))]
    pub slack: Text,
    /// When many chains are overdue at once, their messages are spread over up to this long.
    #[cfg_attr(test, schemars(extend("x-least" = "0s", "x-most" = "1h")))]
    pub spread: Text,
}

impl Default for CatchUp {
    fn default() -> Self {
        Self { every: secs(15), slack: secs(30), spread: secs(30) }
    }
}

/// Which programs may run.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Programs {
    /// Programs, and folders of such, by absolute path. Symbolic links are followed first. A run of any other fails.
    /// Without it, any may be started.
    pub allow: Option<Vec<String>>,
}

/// Traces of what becomes of jobs, for a collector of OpenTelemetry's. What is not said here is taken from
/// `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_TRACES_SAMPLER_ARG` and `OTEL_SERVICE_NAME`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Tracing {
    /// The base URL of a collector that speaks OTLP over HTTP, in protobuf; traces go to `/v1/traces` below it. Empty,
    /// it stays off whatever the environment says. Without it nothing is recorded.
    #[cfg_attr(test, schemars(with = "Option<Secret>"))]
    pub otlp: Option<String>,
    /// Request headers for it, such as a token.
    #[cfg_attr(test, schemars(with = "Option<BTreeMap<String, Secret>>"))]
    pub headers: Option<BTreeMap<String, String>>,
    /// The share of ticks, and of jobs that nobody else traces, that are recorded. All workers choose the same.
    #[cfg_attr(test, schemars(range(min = 0.0, max = 1.0), extend("default" = 0.01)))]
    pub sample: Option<f64>,
    /// Whether traces tell keys, and the ids of one-off jobs, which their publishers choose.
    pub keys: bool,
    /// What workers are called.
    #[cfg_attr(test, schemars(length(min = 1, max = 100), extend("default" = "roundelay")))]
    pub service: Option<String>,
}

impl Default for Tracing {
    fn default() -> Self {
        Self { otlp: None, headers: None, sample: None, keys: true, service: None }
    }
}

/// Keys that payloads are sealed with while they lie in the ledger and in queues.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Encryption {
    /// The key that new texts are sealed with: a name under `keys`. Empty, new ones are plain; what is sealed is opened
    /// all the same.
    pub seal: Option<String>,
    /// Keys by name: 64 random bytes each, in Base64 (`openssl rand -base64 64`), for AES-256-SIV. Keep a key here as long
    /// as anything may be sealed with it: without it, that waits.
    pub keys: BTreeMap<String, Secret>,
}

/// A platform queue: a queue on the broker, of this name, that holds what is due.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Queue {
    /// How many of its jobs one worker runs at the same time.
    #[cfg_attr(test, schemars(range(min = 1, max = 10_000)))]
    pub concurrency: usize,
    /// How many of its messages one worker holds, running ones included. Without it, twice `concurrency`. Keep it
    /// small on a queue with a slow throttle, or one worker holds what another could run.
    #[cfg_attr(test, schemars(range(min = 1, max = 65_535)))]
    pub prefetch: Option<u16>,
    /// Among queues that share a throttle, the one with the higher number gets the next slot.
    pub priority: i32,
    /// How many of the kinds' priorities this queue tells apart. So many queues stand behind it on the broker, each
    /// with its own `prefetch`.
    #[cfg_attr(test, schemars(range(min = 1, max = 10)))]
    pub lanes: u8,
    /// Which of `[throttles]` paces the starts of this queue. Queues may share one. Without one nothing does.
    pub throttle: Option<String>,
}

impl Default for Queue {
    fn default() -> Self {
        Self { concurrency: 16, prefetch: None, priority: 0, lanes: 1, throttle: None }
    }
}

/// A limit on starts, which all workers keep to together.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Throttle {
    /// At most this many starts in any stretch of time of the length `per`, evenly paced.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000)))]
    pub allow: u32,
    /// How long that stretch of time is.
    #[cfg_attr(test, schemars(extend("x-least" = "1ms", "x-most" = "366days")))]
    pub per: Text,
    /// How many starts may follow each other at once after a pause, up to `allow`.
    #[serde(default = "one")]
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub burst: u32,
    /// Who counts.
    #[serde(default = "fleet")]
    pub scope: super::Scope,
    /// A limit for each value of this part of a job, instead of one for all: `payload.FIELD`, `key`, `kind` or `owner`.
    pub key: Option<String>,
    /// Further windows that hold at the same time. They are not paced, so the first may use them up early.
    #[serde(default)]
    pub also: Vec<Window>,
    /// Whoever waits longer for a slot is put off, with no attempt charged. Without it `5m`, and `2s` with `key`,
    /// since those who wait hold up others that could start.
    #[cfg_attr(test, schemars(extend("x-least" = "1ms", "x-most" = "5m")))]
    pub block: Option<Text>,
    /// Which headers of an HTTP handler's answers say how many calls remain of a budget, and when there are more of
    /// them.
    pub budget: Option<Budget>,
    /// Which header of an HTTP handler's answers says for how many starts the call counts.
    pub cost_header: Option<String>,
    /// After so many failures with no success between them, by any worker, nothing starts for a while; then one start
    /// at a time tries. Without it nothing is counted.
    pub breaker: Option<Breaker>,
}

/// What remains of a budget of calls, as headers of an HTTP handler's answers say it.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// The header that says how many calls remain.
    pub remaining: String,
    /// The header that says when there are more: in seconds, as seconds since 1970, or as a date.
    pub reset: String,
    /// With so many or more remaining calls nothing is slowed; with fewer, they are spread over the time until there
    /// are more. Without it they are always spread.
    pub slow_below: Option<u32>,
}

/// When an upstream that fails is left alone.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Breaker {
    /// How many failures with no success between them.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000)))]
    pub failures: u32,
    /// How long nothing starts then. Each try that fails doubles it.
    #[serde(default = "half_a_minute")]
    #[cfg_attr(test, schemars(extend("x-least" = "1s", "x-most" = "1day")))]
    pub wait: Text,
    /// How long it becomes at most; not shorter than `wait`.
    #[serde(default = "ten_minutes")]
    #[cfg_attr(test, schemars(extend("x-most" = "1day")))]
    pub longest: Text,
}

fn half_a_minute() -> Text {
    secs(30)
}

fn ten_minutes() -> Text {
    secs(600)
}

/// A further window of a throttle.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// At most this many starts in any stretch of time of the length `per`.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000)))]
    pub allow: u32,
    /// How long that stretch of time is.
    #[cfg_attr(test, schemars(extend("x-least" = "1ms", "x-most" = "366days")))]
    pub per: Text,
}

fn one() -> u32 {
    1
}

fn fleet() -> super::Scope {
    super::Scope::Fleet
}

/// A kind of job: what runs it, when it recurs, and what follows when it fails.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Kind {
    /// What runs the jobs: a URL, a program, or, when neither is named, a handler that a Rust program of yours
    /// registers under the kind's name.
    pub handler: Handler,
    /// The platform queue. It may be a template over the columns of a roster, or over the payload. Without it, a
    /// roster needs a column `queue`.
    pub queue: Option<String>,
    /// On a queue with `lanes`, jobs of a higher priority go first; less than the number of lanes.
    #[cfg_attr(test, schemars(range(min = 0, max = 9)))]
    pub priority: u8,
    /// How long a run may take. One that takes longer is ended and tried again.
    #[cfg_attr(test, schemars(extend("x-least" = "1ms", "x-most" = "24m")))]
    pub timeout: Text,
    /// For how many starts of its queue's throttle a run counts.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000)))]
    pub cost: u32,
    /// When a tick may be taken over from a worker that runs it.
    pub takeover: Takeover,
    /// What follows a failed attempt, unless a reason says otherwise.
    pub retry: Retry,
    /// Reasons of this kind alone, which go before those of all kinds.
    pub reasons: BTreeMap<String, Reason>,
    /// Which HTTP statuses, from 300 to 599, mean which reason. An answer that decides by itself goes before them.
    pub on_status: BTreeMap<String, String>,
    /// Which exit codes of programs, from 1 to 255, mean which reason.
    pub on_exit: BTreeMap<String, String>,
    /// How parts that runs report as failed are fed back. Without it they are only kept.
    pub reconcile: Option<Reconcile>,
    // When, and whether. Spelled out here since `flatten` would let unknown fields pass.
    /// How long from one run to the next. Without this, `cron` or `at` the kind has no chains, and only runs as single
    /// jobs.
    #[cfg_attr(test, schemars(extend("x-least" = "1ms", "x-most" = "3660days")))]
    pub every: Option<Text>,
    /// What the interval `every` is counted from.
    #[cfg_attr(test, schemars(extend("default" = "finish")))]
    pub from: Option<From>,
    /// When by the calendar: minute, hour, day of month, month, day of week, with seconds in front if wanted, or
    /// `@hourly` and its like.
    pub cron: Option<String>,
    /// The time zone of `cron`, by its name in the IANA database.
    #[cfg_attr(test, schemars(extend("default" = "UTC")))]
    pub zone: Option<String>,
    /// Once, at this moment, such as `2030-01-01T03:00:00Z`.
    pub at: Option<String>,
    /// Each occurrence lies up to so much before or after its time, so that chains spread out, and never past the next
    /// one. Smaller than `every`. Without it there is none.
    pub jitter: Option<Text>,
    /// How the chains of a kind lie between two occurrences of `cron`, or of `every` with `from = "nominal"`. Without
    /// it all come at the same time.
    pub phase: Option<Phase>,
    /// What becomes of occurrences whose time comes while the chain still runs. Counted from the finish there are none.
    #[cfg_attr(test, schemars(extend("default" = "skip")))]
    pub overlap: Option<Overlap>,
    /// What becomes of occurrences that nothing could start, as in an outage or a backlog.
    #[cfg_attr(test, schemars(extend("default" = "coalesce")))]
    pub misfire: Option<Misfire>,
    /// Only those not later than this. Without it there is no bound; with `misfire = "skip"` it is one minute.
    pub misfire_window: Option<Text>,
    /// They are spread over so long, so that nothing bursts. Without it there is no spread.
    pub misfire_spread: Option<Text>,
    /// Two starts may lie closer together than `every` by this, and no more: a tick that comes sooner is dropped. With
    /// `from = "start"` or `"nominal"`.
    pub tolerance: Option<Text>,
    /// Between the end of a run and the next start, at least; a tick that comes sooner is skipped.
    pub cooldown: Option<Text>,
    /// How long a run may take before it has to make room: a duration, or a share of the interval such as `50%`. It
    /// sees its deadline, a program gets SIGTERM then. That is no failure, and no retry.
    pub time_box: Option<String>,
    /// So long after that it is aborted.
    #[cfg_attr(test, schemars(extend("default" = "5s")))]
    pub time_box_grace: Option<Text>,
    /// Within these, a run may say itself when the next one is due. Without it, from a second to 30 days.
    pub next_in: Option<Within>,
    /// There is at most one one-off job of each key at a time: another that comes within so long is dropped.
    #[cfg_attr(test, schemars(extend("x-least" = "1ms", "x-most" = "3660days")))]
    pub unique_for: Option<Text>,
    /// Until when. It goes with `unique_for`.
    #[cfg_attr(test, schemars(extend("default" = "finish")))]
    pub unique_until: Option<UniqueUntil>,
    /// How much runs of this kind may ask for.
    pub spawn: Spawn,
    /// Which entities the kind has chains for.
    pub roster: Roster,
    /// What `roundelay simulate` takes this kind's handler for. Workers do not look at it.
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
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

/// How chains lie between two occurrences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Every chain has a place of its own, always the same.
    Spread,
}

/// What becomes of occurrences whose time comes while the chain runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Overlap {
    /// They are left out.
    #[default]
    Skip,
    /// One of them runs right afterwards.
    BufferOne,
    /// The run is ended for the next.
    CancelOther,
}

/// What becomes of occurrences that nothing could start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum Misfire {
    /// None of them runs.
    Skip,
    /// One runs for all of them.
    #[default]
    Coalesce,
    /// Each of them runs.
    All,
}

/// Until when a one-off job is the only one of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum UniqueUntil {
    /// Only until the first starts.
    Start,
    /// Until the first has ended.
    #[default]
    Finish,
}

/// Within what a run may say when the next tick is due.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Within {
    /// Not sooner than this; above zero.
    pub min: Text,
    /// Not later than this, and not below `min`.
    #[cfg_attr(test, schemars(extend("x-most" = "30days")))]
    pub max: Text,
    /// Whether the `Cache-Control` or `Expires` of an HTTP answer says so, too.
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

/// How much runs of this kind may ask for. What is more is left out, and kept as a failed part of the run.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Spawn {
    /// So many jobs and chains, together.
    #[cfg_attr(test, schemars(range(min = 0, max = 10_000)))]
    pub most: usize,
    /// A run to which so many runs have led, each asked for by the one before, may ask for none.
    pub depth: u32,
}

impl Default for Spawn {
    fn default() -> Self {
        Self { most: 1_000, depth: 8 }
    }
}

/// When a tick may be taken over from a worker that runs it.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Takeover {
    /// When its lease is over.
    #[default]
    LeaseExpiry,
    /// Also as soon as RabbitMQ delivers its message again, which it does at once when the worker's connection is
    /// gone. If only the connection broke, the run before may still go on beside the new one.
    Redelivery,
}

/// What runs jobs.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum Handler {
    /// A handler that a Rust program of yours registers under the kind's name.
    #[default]
    Rust,
    /// POST to a URL.
    Http(Http),
    /// Start a program.
    Exec(Exec),
}

/// A handler that is a URL, to which each job is POSTed.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Http {
    /// Where the job is POSTed to. It may be a template over `kind`, `key`, `queue` and `payload`, and begins with
    /// `http://` or `https://`.
    pub url: Secret,
    /// Further request headers.
    #[serde(default)]
    pub headers: BTreeMap<String, Secret>,
    /// What calls are signed with, by the Standard Webhooks specification: `whsec_` and 24 to 64 random bytes in
    /// base64. With a list each signs, so that receivers can change from one to the next. Without it calls are not
    /// signed.
    #[serde(default)]
    pub sign: Secrets,
    /// Where calls may lead besides public addresses: addresses, networks, and names of hosts. An address or
    /// `localhost` that stands in `url` itself needs no entry.
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

/// A handler that is a program, which is started for each job.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// The program, by its absolute path, and its arguments. There is no shell.
    pub argv: Vec<String>,
    /// The environment that the program gets besides `ROUNDELAY_…`; nothing is inherited.
    #[serde(default)]
    pub env: BTreeMap<String, Secret>,
    /// The folder that it runs in. Without it, the worker's own.
    pub cwd: Option<String>,
    /// What the program may use. What is not said is not limited.
    #[serde(default)]
    pub limits: Limits,
}

/// What a program of a kind may use.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Memory that each of its processes may ask for, at least `1MiB`: a whole number of `KiB`, `MiB` or `GiB`.
    #[cfg_attr(test, schemars(regex(pattern = r"^\d+ *(KiB|MiB|GiB)$")))]
    pub memory: Option<String>,
    /// CPU time that each of its processes may take, in whole seconds.
    #[cfg_attr(test, schemars(extend("x-least" = "1s", "x-most" = "1day")))]
    pub cpu: Option<Text>,
    /// Files that each of its processes may have open at the same time.
    #[cfg_attr(test, schemars(range(min = 4, max = 1_048_576)))]
    pub files: Option<u64>,
    /// Processes and threads that the worker's user may have when the program starts another.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_048_576)))]
    pub processes: Option<u64>,
}

/// What follows a failed attempt, unless a reason says otherwise.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Retry {
    /// How many attempts a tick or job gets in all, the first included. When the last has failed it is kept as failed,
    /// and a chain goes on with its next tick.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000)))]
    pub attempts: u32,
    /// The waits before further attempts: a list, of which the last repeats, or a table by which they grow.
    pub backoff: Backoff,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 3, backoff: Backoff::Exponential(Exponential::default()) }
    }
}

/// Waits between attempts.
#[derive(Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[cfg_attr(test, serde(untagged))]
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

/// Waits that grow: base × factor^(n − 1) after the n-th attempt, at most `max`, give or take a share.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Exponential {
    /// The first wait.
    pub base: Text,
    /// How many times as long each wait is as the one before.
    #[cfg_attr(test, schemars(range(min = 1.0, max = 100.0)))]
    pub factor: f64,
    /// The longest wait; not shorter than `base`.
    #[cfg_attr(test, schemars(extend("x-most" = "3660days")))]
    pub max: Text,
    /// A wait is so much longer or shorter, by chance: a share of it.
    #[cfg_attr(test, schemars(range(min = 0.0, max = 1.0)))]
    pub jitter: f64,
}

impl Default for Exponential {
    fn default() -> Self {
        Self { base: secs(10), factor: 2.0, max: secs(600), jitter: 0.2 }
    }
}

/// What follows from a reason.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// What follows.
    pub policy: Policy,
    /// With `retry`: how many attempts in all. Without it, as many as the kind's own `retry` has.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000)))]
    pub attempts: Option<u32>,
    /// With `retry`: the waits between them. Without it, those of the kind's own `retry`.
    pub backoff: Option<Backoff>,
    /// With `snooze`, which needs it: how long, at least. What an upstream asks for (`Retry-After`) may be longer.
    #[cfg_attr(test, schemars(extend("x-least" = "100ms", "x-most" = "30days")))]
    pub after: Option<Text>,
}

/// What follows from a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Again.
    Retry,
    /// Permanent for this tick, job or part.
    Fail,
    /// Permanent for the entity: its chain ends, and it is shown as unavailable.
    Retire,
    /// Again later, with no attempt charged.
    Snooze,
}

/// How failed parts of runs are fed back.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Reconcile {
    /// How often is looked for parts that are due. They run once more as jobs on their chain's queue, under the same
    /// throttle.
    #[cfg_attr(test, schemars(extend("x-least" = "1s", "x-most" = "3660days")))]
    pub every: Text,
    /// The kind of these jobs. Without it, the chain's own.
    pub kind: Option<String>,
}

/// Which entities a kind has chains for, and how these are called.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Roster {
    /// A template that makes the key from the columns. Without it, the column `key`.
    pub key: Option<String>,
    /// Likewise the owner, with whom all chains can be paused, resumed and retired.
    pub owner: Option<String>,
    /// Likewise a schedule of the chain's own in place of the kind's: an interval, a cron expression, or a JSON object.
    pub schedule: Option<String>,
    /// A file that lists the entities, `.csv` or `.ndjson`, for workers to read from time to time. At most one of
    /// `file`, `http` and `sql` is possible.
    pub file: Option<String>,
    /// A URL that lists them: CSV or NDJSON by the answer's `Content-Type`, else by the extension. Redirects are not
    /// followed.
    pub http: Option<Secret>,
    /// Where `http` may lead besides public addresses, as in `handler.http.allow`.
    pub allow: Vec<String>,
    /// A query that lists them.
    pub sql: Option<Sql>,
    /// How long after one reading the next begins.
    #[cfg_attr(test, schemars(extend("default" = "30m", "x-least" = "1s", "x-most" = "3660days")))]
    pub sync: Option<Text>,
    /// Whether the chains end of entities that are no longer listed. The list must have all entities of the kind then.
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub prune: Option<bool>,
}

/// A query, whose columns become the entity's fields.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Sql {
    /// The database: `sqlite://PATH` or `postgres://…`.
    pub url: Secret,
    /// One SELECT.
    pub query: String,
}

/// What `simulate` takes a kind's handler for.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    /// How many chains there are. `--chains` and `--roster` go over it.
    #[cfg_attr(test, schemars(range(min = 0, max = 100_000_000)))]
    pub chains: Option<u64>,
    /// How long a run takes: always the same, or a distribution. At most an hour.
    pub duration: Length,
    /// The share of attempts that fail. They are retried by the kind's policy.
    #[cfg_attr(test, schemars(range(min = 0.0, max = 1.0)))]
    pub fail: f64,
    /// When it is otherwise.
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

/// A log-normal distribution of lengths.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub(super) struct Quantiles {
    /// Half of the runs take at most so long.
    pub(super) p50: Text,
    /// 99 of 100 runs take at most so long.
    pub(super) p99: Text,
}

/// A time in which a modelled upstream is slow, or fails more.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Slow {
    /// From so long after the start of the simulation.
    pub from: Text,
    /// Until so long after it, exclusive.
    pub to: Text,
    /// Runs that begin meanwhile take so many times as long.
    #[serde(default = "unchanged")]
    #[cfg_attr(test, schemars(range(min = 0.0, max = 100_000.0)))]
    pub factor: f64,
    /// The share of them that fails. Without it, no other than usual.
    #[cfg_attr(test, schemars(range(min = 0.0, max = 1.0)))]
    pub fail: Option<f64>,
}

fn unchanged() -> f64 {
    1.0
}
