//! Raw settings → checked settings, in one step.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use minijinja::ErrorKind::{UnknownFilter, UnknownFunction, UnknownTest};
use roundelay_broker::{BrokerSettings, BrokerUrl, rabbit};
use roundelay_handler::http::{HttpError, HttpSettings};
use roundelay_handler::{Compare, http};
use roundelay_ledger::{LedgerUrl, postgres};
use roundelay_model::egress::Reach;
use roundelay_model::job::check_name;
use roundelay_model::ladder::Ladder;
use roundelay_model::lanes::MAX_LANES;
use roundelay_model::outcome::RetryPolicy;
use roundelay_model::schedule::calendar::Book;
use roundelay_model::secret::Secret;
use roundelay_model::topology::Names;
use roundelay_net::tls::{BrokerTls, TlsSettings};

use super::raw::{self, Raw};
use super::{api, calendars, encryption, exec, fair, fresh, model, reasons, recurrence, roster, throttle, tracing};
use crate::problems::{MAX_TIMEOUT, Problems, TEN_YEARS, check_backoff, known, listen_address};
use crate::settings::{
    CatchUpSettings, Config, HandlerSettings, INTERNAL, KindSettings, LedgerSettings, QueueSettings, SpawnSettings,
    Takeover, Unique, WorkerSettings,
};

/// RabbitMQ closes the channel of a consumer that keeps a message for 30 minutes; a one-off job, which is nothing but
/// its message, must be over before that. It may have waited for its slot for five of them.
pub const MAX_HELD: Duration = Duration::from_secs(24 * 60);
/// So much a run may ask for at most, whatever its kind allows: all of it is one transaction.
const MAX_SPAWNED: usize = 10_000;
/// More rungs than this are no longer cheap for the broker while nothing happens.
const MAX_RUNGS: usize = 1_000;
/// The longest name that AMQP carries, in bytes.
const MAX_QUEUE: usize = 255;

impl From<Problems> for Vec<(String, String)> {
    fn from(problems: Problems) -> Self {
        problems.0
    }
}

/// Checks everything and says everything that is wrong. `file` reads the text of a file that the configuration names.
pub fn check(raw: Raw, file: &dyn Fn(&Path) -> Result<String, String>) -> Result<Config, Vec<(String, String)>> {
    let mut problems = Problems::none();
    let zero = Duration::ZERO;

    let queues = raw.queues.into_iter().map(|(name, queue)| {
        let path = ["queues", &name];
        if let Err(error) = check_name("name", &name) {
            problems.add(&path, error.to_string());
        }
        if Names::new(&raw.broker.prefix).is_own(&name) {
            problems.add(&path, format!("names that begin with `{}.` are the engine's own", raw.broker.prefix));
        }
        if name.starts_with("amq.") {
            problems.add(&path, "names that begin with `amq.` are RabbitMQ's own");
        }
        if name.len() > MAX_QUEUE {
            problems.add(&path, format!("the name has {} bytes; AMQP allows {MAX_QUEUE}", name.len()));
        }
        problems.range(&["queues", &name, "concurrency"], queue.concurrency, 1, 10_000);
        problems.range(&["queues", &name, "lanes"], queue.lanes, 1, MAX_LANES);
        let longest = Names::new(&raw.broker.prefix).lane(&name, queue.lanes.saturating_sub(1)).len();
        if queue.lanes > 1 && longest > MAX_QUEUE {
            problems.add(
                &["queues", &name, "lanes"],
                format!("with the prefix, the name of a lane has {longest} bytes; AMQP allows {MAX_QUEUE}"),
            );
        }
        let double = u16::try_from(queue.concurrency.saturating_mul(2)).unwrap_or(u16::MAX);
        let prefetch = queue.prefetch.unwrap_or(double.max(1));
        if prefetch == 0 {
            problems.add(&["queues", &name, "prefetch"], "0 would mean no limit at all; at least 1");
        }
        if let Some(throttle) = &queue.throttle {
            known(&mut problems, &["queues", &name, "throttle"], throttle, "throttles", raw.throttles.keys());
        }
        let shared = fair::of_queue(&mut problems, &name, &queue, &raw.throttles);
        let settings = QueueSettings {
            concurrency: queue.concurrency,
            prefetch,
            priority: queue.priority,
            lanes: queue.lanes.max(1),
            throttle: queue.throttle,
            fair: shared,
            most: queue.most,
        };
        (name, settings)
    });
    let queues: std::collections::BTreeMap<_, _> = queues.collect();

    let programs = exec::allowed(&mut problems, raw.exec);
    let mut named = Vec::new();
    let reasons = reasons::check(&mut problems, &["reasons"], raw.reasons, &mut named);
    let calendars = calendars::check(&mut problems, raw.calendars, file);
    let book = calendars::book(&calendars, &Default::default());
    let mut kinds = std::collections::BTreeMap::new();
    let names: Vec<String> = raw.kinds.keys().cloned().collect();
    for (name, mut kind) in raw.kinds {
        let reconcile = kind.reconcile.take();
        let mut checked =
            check_kind(&mut problems, &name, kind, &queues, (&reasons, &book), programs.as_ref(), &mut named);
        let recurs = checked.recurrence.is_some();
        checked.reconcile = reasons::reconcile(&mut problems, &name, reconcile, names.iter(), recurs);
        kinds.insert(name, checked);
    }

    let throttles = throttle::check(&mut problems, raw.throttles);
    let tenants = fair::tenants(&mut problems, raw.tenants);
    for (name, kind) in &kinds {
        throttle::check_cost(&mut problems, name, kind, &queues, &throttles);
        fresh::check_budget(&mut problems, (name, kind), &kinds, &queues, &throttles);
    }

    if raw.broker.prefix.is_empty() || raw.broker.prefix.len() > 100 || !raw.broker.prefix.chars().all(plain) {
        problems.add(&["broker", "prefix"], "1 to 100 letters, digits, `-`, `_` or `.`");
    }
    if raw.broker.prefix == "amq" || raw.broker.prefix.starts_with("amq.") {
        problems.add(&["broker", "prefix"], "names that begin with `amq.` are RabbitMQ's own");
    }
    problems.range(&["worker", "grace"], raw.worker.grace.0, zero, MAX_HELD);
    let listen = raw.worker.listen.as_deref().map(listen_address).transpose();
    let listen = listen.unwrap_or_else(|message| {
        problems.add(&["worker", "listen"], message);
        None
    });
    let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3_600));
    problems.range(&["worker", "lease"], raw.worker.lease.0, second * 3, hour);
    problems.range(&["catch_up", "every"], raw.catch_up.every.0, second, hour);
    problems.range(&["catch_up", "slack"], raw.catch_up.slack.0, second, hour);
    problems.range(&["catch_up", "spread"], raw.catch_up.spread.0, zero, hour);
    problems.range(&["ledger", "history"], raw.ledger.history.0, zero, TEN_YEARS);
    if let Some(archive) = &raw.ledger.archive {
        problems.range(&["ledger", "archive"], archive.0, second, TEN_YEARS);
        if archive.0 <= raw.ledger.history.0 {
            problems.add(&["ledger", "archive"], "must be longer than `history`, after which records come there");
        }
    }
    let raw::Broker { url, username, password, prefix, management, declare, delays, bulk_rate, tls } = raw.broker;
    problems.range(&["broker", "bulk_rate"], bulk_rate, 1_000, 1_000_000);
    let bulk_rate = NonZeroU32::new(bulk_rate).unwrap_or(NonZeroU32::MIN);
    let url = url.with_login(username.as_ref(), password.as_ref());
    // Its user is mostly the broker's, too; a URL that names one means another.
    let management = management.map(|url| match url::Url::parse(url.expose()) {
        Ok(parsed) if parsed.username().is_empty() => url.with_login(username.as_ref(), password.as_ref()),
        _ => url,
    });
    let tls = broker_tls(&mut problems, tls, url.expose(), management.as_ref().map(Secret::expose));
    let broker = broker_url(&mut problems, url);
    if matches!(broker, BrokerUrl::Embedded) && !declare {
        problems.add(&["broker", "declare"], "the embedded broker begins empty, so its worker has to declare; set broker.url to an amqp:// URL, or leave this out");
    }
    let raw::Ledger { url, username, password, history, archive, synchronous } = raw.ledger;
    let ledger = ledger_url(&mut problems, url.with_login(username.as_ref(), password.as_ref()), &broker);
    if synchronous && !matches!(ledger, LedgerUrl::Postgres(_)) {
        let reason = "a SQLite file has no standby; leave this out, or set ledger.url to a postgres:// URL";
        problems.add(&["ledger", "synchronous"], reason);
    }
    let (history, archive) = (history.0, archive.map(|archive| archive.0));
    let web = |url: &str| url::Url::parse(url).is_ok_and(|url| ["http", "https"].contains(&url.scheme()));
    if management.as_ref().is_some_and(|url| !web(url.expose())) {
        problems.add(
            &["broker", "management"],
            "the base URL of the management API, such as http://user:password@host:15672",
        );
    }

    if raw.worker.callback.as_ref().is_some_and(|url| !web(url)) {
        problems
            .add(&["worker", "callback"], "the base URL by which handlers reach `listen`, such as http://host:9464");
    }

    let hosts = api::hosts(&mut problems, "worker", &raw.worker.hosts);
    let api = api::check(&mut problems, raw.api);
    let tracing = tracing::check(&mut problems, raw.tracing);
    let encryption = encryption::check(&mut problems, raw.encryption);

    let ladder = Ladder::new(named);
    if ladder.rungs().len() > MAX_RUNGS {
        let message = format!(
            "these kinds name so many durations that {} delay queues follow; at most {MAX_RUNGS} are sensible: let kinds share intervals and backoffs",
            ladder.rungs().len()
        );
        problems.add(&["kinds"], message);
    }

    if !problems.0.is_empty() {
        return Err(problems.0);
    }
    Ok(Config {
        broker: BrokerSettings { url: broker, prefix, management, declare, delays: delays.into(), bulk_rate, tls },
        ledger: LedgerSettings { url: ledger, history, archive, synchronous },
        worker: WorkerSettings {
            grace: raw.worker.grace.0,
            lease: raw.worker.lease.0,
            listen,
            callback: raw.worker.callback.map(|url| url.trim_end_matches('/').to_owned()),
            hosts,
        },
        api,
        catch_up: CatchUpSettings {
            every: raw.catch_up.every.0,
            slack: raw.catch_up.slack.0,
            spread: raw.catch_up.spread.0,
        },
        tracing,
        encryption: encryption.into(),
        queues,
        throttles,
        tenants,
        calendars,
        kinds,
        ladder,
        shown: String::new(),
    })
}

fn plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.".contains(c)
}

fn check_kind(
    problems: &mut Problems,
    name: &str,
    mut kind: raw::Kind,
    queues: &std::collections::BTreeMap<String, QueueSettings>,
    (reasons, book): (&std::collections::BTreeMap<String, reasons::Stated>, &Arc<Book>),
    allow: Option<&Vec<PathBuf>>,
    named: &mut Vec<Duration>,
) -> KindSettings {
    let at = |key: &'static str| ["kinds", name, key];
    if let Err(error) = check_name("name", name) {
        problems.add(&["kinds", name], error.to_string());
    }
    if name.starts_with(INTERNAL) {
        problems.add(&["kinds", name], format!("names that begin with `{INTERNAL}` are the engine's own"));
    }
    let ms = Duration::from_millis(1);
    problems.range(&at("timeout"), kind.timeout.0, ms, MAX_TIMEOUT);
    problems.range(&["kinds", name, "spawn", "most"], kind.spawn.most, 0, MAX_SPAWNED);
    problems.range(&at("cost"), kind.cost, 1, throttle::MAX_ALLOWED);
    if let Some(queue) = &kind.queue {
        if ["{{", "{%", "{#"].iter().any(|mark| queue.contains(mark)) {
            template(problems, &at("queue"), queue);
        } else {
            known(problems, &at("queue"), queue, "queues", queues.keys());
        }
    }
    // A kind that names no queue, or a template for it, can be on any.
    let named_queue = kind.queue.as_ref().and_then(|queue| queues.get(queue));
    let lanes = named_queue.map_or_else(|| queues.values().map(|q| q.lanes).max(), |queue| Some(queue.lanes));
    if kind.priority >= lanes.unwrap_or(1).max(1) && kind.priority > 0 {
        let needed = u16::from(kind.priority) + 1;
        let whose = if named_queue.is_some() { "its queue has" } else { "any queue has" };
        problems.add(
            &at("priority"),
            format!(
                "{} is more than {whose} lanes for: with `lanes = {needed}` under [queues.…] a queue tells the \
                 priorities from 0 to {} apart",
                kind.priority, kind.priority
            ),
        );
    }
    if let Some(key) = &kind.roster.key {
        template(problems, &["kinds", name, "roster", "key"], key);
    }
    let raw::Roster { queue, priority, owner, schedule, .. } = &kind.roster;
    for (setting, text) in [("queue", queue), ("priority", priority), ("owner", owner), ("schedule", schedule)] {
        if let Some(text) = text {
            template(problems, &["kinds", name, "roster", setting], text);
        }
    }
    let unique = match (kind.unique_for, kind.unique_until) {
        (None, None) => None,
        (None, Some(_)) => {
            problems.add(&at("unique_until"), "goes with `unique_for`");
            None
        }
        (Some(window), until) => {
            problems.range(&at("unique_for"), window.0, ms, TEN_YEARS);
            Some(Unique { window: window.0, until: until.unwrap_or_default() })
        }
    };
    let http = matches!(kind.handler, raw::Handler::Http(_));
    let recurrence = recurrence::check(problems, name, (&kind.take_recurrence(), http), book, named);
    let raw::Roster { key: roster_key, queue: roster_queue, priority: roster_priority, .. } = kind.roster.clone();
    let raw::Roster { owner: roster_owner, schedule: roster_schedule, .. } = kind.roster.clone();
    if kind.roster.keys.is_some() && kind.queue.is_none() {
        problems.add(&["kinds", name, "roster", "keys"], "says no queue; set `queue` beside it");
    }
    let roster = roster::check(problems, name, kind.roster, recurrence.is_some());
    let retry = check_retry(problems, name, kind.retry, named);
    let of_kind = reasons::OfKind { reasons: kind.reasons, on_status: kind.on_status, on_exit: kind.on_exit };
    let policies = reasons::of_kind(problems, name, reasons, of_kind, &retry, named);
    let mut handler = check_handler(problems, name, kind.handler, allow);
    if let Some(fresh) = recurrence.as_ref().and_then(|recurrence| recurrence.fresh.as_ref()) {
        handler.compare_by(fresh.compare);
    }
    KindSettings {
        handler,
        queue: kind.queue,
        priority: kind.priority,
        timeout: kind.timeout.0,
        cost: kind.cost,
        takeover: match kind.takeover {
            raw::Takeover::LeaseExpiry => Takeover::LeaseExpiry,
            raw::Takeover::Redelivery => Takeover::Redelivery,
        },
        retry,
        policies,
        reconcile: None,
        recurrence,
        if_running: kind.if_running,
        unique,
        spawn: SpawnSettings { most: kind.spawn.most, depth: kind.spawn.depth },
        roster_key,
        roster_queue,
        roster_priority,
        roster_owner,
        roster_schedule,
        roster,
        model: model::check(kind.model, |key, message| problems.add(&["kinds", name, "model", key], message)),
    }
}

/// The settings of a kind of the engine's own: like those of a table that says no more than this.
pub fn internal_kind(every: Duration, timeout: Duration) -> KindSettings {
    let kind = raw::Kind {
        every: Some(raw::HumanDuration(every)),
        timeout: raw::HumanDuration(timeout),
        ..raw::Kind::default()
    };
    // Neither the name nor the durations can be wrong, and no rung is asked for: what the engine
    // does for itself climbs those that there are.
    let (queues, reasons, book) = Default::default();
    check_kind(&mut Problems(Vec::new()), INTERNAL, kind, &queues, (&reasons, &book), None, &mut Vec::new())
}

fn check_handler(
    problems: &mut Problems,
    name: &str,
    handler: raw::Handler,
    allow: Option<&Vec<PathBuf>>,
) -> HandlerSettings {
    match handler {
        raw::Handler::Rust => HandlerSettings::Rust,
        raw::Handler::Http(http) => {
            let path = ["kinds", name, "handler", "http", "url"];
            let allow = Reach::new(&http.allow).unwrap_or_else(|message| {
                problems.add(&["kinds", name, "handler", "http", "allow"], message);
                Reach::default()
            });
            let settings = HttpSettings {
                url: http.url,
                headers: http.headers,
                sign: http.sign.0,
                allow,
                compare: Compare::default(),
            };
            if !["http://", "https://"].iter().any(|scheme| settings.url.expose().starts_with(scheme)) {
                problems.add(&path, format!("`{}` does not begin with http:// or https://", settings.shown_url()));
            } else if let Err(error) = http::check(&settings) {
                match &error {
                    HttpError::Header { name: header, why } => {
                        problems.add(&["kinds", name, "handler", "http", "headers", header], why.clone());
                    }
                    HttpError::Sign(why) => problems.add(&["kinds", name, "handler", "http", "sign"], why.clone()),
                    _ => problems.add(&path, error.to_string()),
                }
            }
            HandlerSettings::Http(settings)
        }
        raw::Handler::Exec(settings) => HandlerSettings::Exec(exec::check(problems, name, settings, allow)),
    }
}

fn check_retry(problems: &mut Problems, name: &str, retry: raw::Retry, named: &mut Vec<Duration>) -> RetryPolicy {
    problems.range(&["kinds", name, "retry", "attempts"], retry.attempts, 1, 1_000);
    let path = ["kinds", name, "retry", "backoff"];
    if matches!(&retry.backoff, raw::Backoff::List(waits) if waits.is_empty() && retry.attempts > 1) {
        problems.add(&path, "is empty; name at least one wait");
    }
    RetryPolicy { attempts: retry.attempts, backoff: check_backoff(problems, &path, retry.backoff, named) }
}

/// A template must compile, and use no filter, function or test that there is not: compiling alone
/// lets those pass.
pub(super) fn template(problems: &mut Problems, path: &[&str], text: &str) {
    let mut templates = minijinja::Environment::new();
    templates.set_undefined_behavior(minijinja::UndefinedBehavior::Chainable);
    let tried = templates.template_from_str(text).map(|template| template.render(minijinja::context! {}));
    let error = match tried {
        Err(error) => error,
        Ok(Err(error)) if matches!(error.kind(), UnknownFilter | UnknownFunction | UnknownTest) => error,
        Ok(_) => return,
    };
    problems.add(path, format!("not a valid template: {error}"));
}

/// How a URL of PostgreSQL begins.
const POSTGRES: [&str; 2] = ["postgres://", "postgresql://"];

fn broker_url(problems: &mut Problems, url: Secret) -> BrokerUrl {
    if url.expose() == "embedded" {
        return BrokerUrl::Embedded;
    }
    if !["amqp://", "amqps://"].iter().any(|scheme| url.expose().starts_with(scheme)) {
        problems.add(&["broker", "url"], format!("`{url}` is none of embedded, amqp://… and amqps://…"));
    } else if let Err(reason) = rabbit::check_url(url.expose()) {
        problems.add(&["broker", "url"], reason);
    }
    BrokerUrl::Amqp(url)
}

/// `url` and `management` say whether there is any TLS that the files could be for.
fn broker_tls(problems: &mut Problems, tls: raw::BrokerTls, url: &str, management: Option<&str>) -> BrokerTls {
    let given = [("ca", &tls.ca), ("certificate", &tls.certificate), ("key", &tls.key)];
    let encrypted = url.starts_with("amqps://") || management.is_some_and(|url| url.starts_with("https://"));
    for (name, _) in given.iter().filter(|(_, file)| file.is_some() && !encrypted) {
        problems.add(
            &["broker", "tls", name],
            "is for amqps:// and https://, and neither broker.url nor broker.management begins with that",
        );
    }
    let own = match (tls.certificate, tls.key) {
        (Some(certificate), Some(key)) => Some(TlsSettings { certificate: certificate.into(), key: key.into() }),
        (None, None) => None,
        (Some(_), None) => {
            problems.add(&["broker", "tls", "certificate"], "needs its private key: set broker.tls.key");
            None
        }
        (None, Some(_)) => {
            problems.add(&["broker", "tls", "key"], "needs its certificate: set broker.tls.certificate");
            None
        }
    };
    if own.is_none() && rabbit::logs_in_by_certificate(url) {
        problems.add(
            &["broker", "url"],
            "auth_mechanism=external is a login with a certificate: set broker.tls.certificate and broker.tls.key",
        );
    }
    BrokerTls { ca: tls.ca.map(PathBuf::from), own }
}

fn ledger_url(problems: &mut Problems, url: Secret, broker: &BrokerUrl) -> LedgerUrl {
    if POSTGRES.iter().any(|scheme| url.expose().starts_with(scheme)) {
        if let Err(reason) = postgres::check_url(url.expose()) {
            problems.add(&["ledger", "url"], reason);
        }
        if matches!(broker, BrokerUrl::Embedded) {
            let reason = "the embedded broker is for one worker on one machine, whose ledger is a SQLite file; \
                          with PostgreSQL, set broker.url to an amqp:// URL";
            problems.add(&["ledger", "url"], reason);
        }
        return LedgerUrl::Postgres(url);
    }
    match url.expose().strip_prefix("sqlite://") {
        Some(":memory:") => LedgerUrl::Memory,
        Some(path) if !path.is_empty() => LedgerUrl::Sqlite(path.into()),
        _ => {
            problems.add(&["ledger", "url"], format!("`{url}` is neither sqlite://PATH nor postgres://…"));
            LedgerUrl::Memory
        }
    }
}
