//! The main job on one machine: a roster of real packages on two platforms, each package kept fresh by a chain that
//! calls a sample upstream.
//!
//! The report on the engine comes from the upstream, which keeps its own record, and from the ledger, not from the
//! engine that is being judged.

pub mod appstore;
pub mod channels;
pub mod characters;
mod ground;
pub mod missions;
mod newest;
pub mod scale;
mod second;
pub mod stage;
pub mod trading;
pub mod upstream;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use roundelay_config::{ChangeSettings, Config, Format};
use roundelay_engine::enroll::{Enroller, Entity};
use roundelay_engine::roster::{Shape, rows};
use roundelay_engine::telemetry::Count;
use roundelay_engine::{Connections, StartError, delays};
use roundelay_model::clock::short_duration;
use roundelay_model::fresh::{Objective, best_price};
use roundelay_simulation::forecast::changes::by_formula;
use serde::Serialize;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use ground::{Dashboard, Ground};
use stage::{Event, Moment, Report};
use upstream::{PlatformSettings, Upstream, UpstreamSettings};

/// 20,000 packages: `platform,name,version,rank`.
const PACKAGES: &str = include_str!("../../examples/packages.csv");
const KIND: &str = "sync-package";
/// How many entities are enrolled in one transaction.
const BATCH: usize = 1_000;
/// Intervals are learned from a part of the first one to so many times the first one.
const WIDTH: u32 = 20;
/// How much the packages' rates of change differ: the standard deviation of their logarithms.
const SPREAD: f64 = 2.0;
/// The first price comes after more than a minute. A demo of at least this length shows what it brings.
const LEARNS: Duration = Duration::from_secs(180);
/// A chain is dead when it is due for longer than this and no worker runs it.
const SLACK: Duration = Duration::from_secs(5);

/// The settings of the demo.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `embedded` or `amqp://…`.
    pub broker: String,
    /// `sqlite://…` or `postgres://…`; with nothing, a file that is removed at the end.
    pub ledger: Option<String>,
    /// How many entities; the roster is repeated beyond its length.
    pub chains: usize,
    /// The interval of each chain, as long as nothing is known of it, and the mean interval by the budget of calls.
    pub every: Duration,
    /// How long the demo runs.
    pub length: Duration,
    /// Whether the demo serves the dashboard.
    pub dashboard: bool,
}

/// Figures that only this system has.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    /// Attempts per second, after the first spread.
    ticks_per_s: f64,
    /// Ticks that failed for good; the sample upstream answers 404 for one name in a thousand.
    failed: u64,
    /// Attempts that failed and were retried.
    retried: u64,
    /// How long enrolling took, in seconds.
    enroll_s: f64,
    /// The platforms, by the upstream's record.
    platforms: BTreeMap<String, upstream::PlatformStats>,
    /// How fresh what is known of packages was, by the upstream's record.
    #[serde(skip_serializing_if = "Option::is_none")]
    fresh: Option<Fresh>,
}

/// How fresh what is known of packages was in the last third of a demo that is long enough to learn: weighted by rank, as in
/// Zipf's law.
#[derive(Clone, Copy, Debug, Serialize)]
struct Fresh {
    /// For how long it was out of date, over all time, in seconds.
    outdated_s: f64,
    /// What one interval for all comes to by the formulas, with as many calls,
    one_interval_s: f64,
    /// and the best intervals, for one who knows how often each package changes.
    best_s: f64,
    /// The share of time in which it was right.
    right: f64,
}

impl Fresh {
    /// With one call of each package in `every`, in the mean.
    fn judged(settings: &Settings, upstream: &Upstream) -> Option<Self> {
        let every = settings.every.as_secs_f64();
        let (known, packages) = upstream.known((settings.every / WIDTH, settings.every * WIDTH))?;
        let one = by_formula(packages.iter(), |_| every)?;
        let price = best_price(Objective::Age, &packages, packages.len() as f64 / every);
        let best = by_formula(packages.iter(), |package| package.every(Objective::Age, price))?;
        let rounded = |value: f64| (value * 1_000.0).round() / 1_000.0;
        Some(Self {
            outdated_s: rounded(known.age_s),
            one_interval_s: rounded(one.age_s),
            best_s: rounded(best.age_s),
            right: rounded(known.freshness),
        })
    }
}

/// Runs the demo, and reports its events.
///
/// # Errors
/// When something cannot be started.
pub async fn run(
    settings: Settings,
    shutdown: CancellationToken,
    told: impl FnMut(Event<'_>),
) -> Result<Report, StartError> {
    let ground = Ground::new("packages", settings.ledger.as_deref()).await?;
    let mut config = None;
    let report = acts(&settings, &ground, &mut config, shutdown, told).await;
    ground.clear(config.as_ref()).await;
    report
}

/// Runs the demo in an existing folder and ledger. `used` is set to the configuration as soon as it may have left
/// something behind.
async fn acts(
    settings: &Settings,
    ground: &Ground,
    used: &mut Option<Config>,
    shutdown: CancellationToken,
    mut told: impl FnMut(Event<'_>),
) -> Result<Report, StartError> {
    let setup = |error: &dyn std::fmt::Display| StartError::Setup(error.to_string());
    let stop_upstream = CancellationToken::new();
    let allow = allowance(settings);
    let releases = Some(ChangeSettings { every: settings.every, spread: SPREAD, daily: 0.0 });
    let upstream = UpstreamSettings { platforms: platforms(allow), releases, ..UpstreamSettings::default() };
    let entropy = roundelay_model::clock::Entropy::from_os();
    let upstream = Upstream::start(upstream, entropy, stop_upstream.clone()).await.map_err(|e| setup(&e))?;

    let text = configuration(settings, ground.ledger(), upstream.url(), allow);
    let config = Config::parse(&text, "the demo's configuration", []).map_err(|error| setup(&error))?;
    let connections = Connections::open(&config).await?;
    // Messages of an earlier demo belong to a ledger that does not exist any more.
    *used = Some(config.clone());
    connections.broker.remove(&config.topology()).await?;
    let ledger = connections.ledger.clone();

    let engine = roundelay_admin::worker(config.clone()).connections(connections.clone());
    let telemetry = engine.telemetry();
    delays::declare(&config, &connections).await?;
    let stop_engine = CancellationToken::new();
    let ready = engine.ready();
    let mut engine = tokio::spawn(engine.run(stop_engine.clone()));
    tokio::select! {
        () = ready.wait() => {}
        ended = &mut engine => ended.map_err(|error| setup(&error))??,
    }

    let dashboard = match settings.dashboard {
        true => Some(Dashboard::open(&config, &connections).await?),
        false => None,
    };
    if let Some(dashboard) = &dashboard {
        told(Event::Dashboard(dashboard.address));
    }
    let began = Instant::now();
    let enrolled = enroll(&config, connections, settings.chains).await?;
    let enroll_time = began.elapsed();

    // All first ticks are due one interval after the last chain began; the figures start there.
    let (started, spread_over) = (Instant::now(), Instant::now() + settings.every);
    let end = started + settings.length;
    let learns = settings.length >= LEARNS;
    if learns {
        upstream.measure(started + settings.length * 2 / 3, end);
    }
    let (mut counted_from, mut at) = (None, started);
    while at < end && !shutdown.is_cancelled() && !engine.is_finished() {
        at = (at + Duration::from_secs(1)).min(end);
        if counted_from.is_none() && at >= spread_over && spread_over < end {
            tokio::select! { () = sleep_until(spread_over) => {}, () = shutdown.cancelled() => {} }
            telemetry.reset_lateness();
            counted_from = Some((Instant::now(), telemetry.get(Count::Started)));
        }
        tokio::select! { () = sleep_until(at) => {}, () = shutdown.cancelled() => {} }
        let turned_away = upstream.stats().platforms.into_iter();
        let turned_away = turned_away.map(|(name, platform)| (format!("demo-{name}"), platform.too_many)).collect();
        let moment = Moment::now(started.elapsed(), &*ledger, &telemetry, Some(turned_away)).await?;
        told(Event::Moment(&moment));
    }
    let (from, before) = counted_from.unwrap_or((started, 0));
    let fresh = if learns && Instant::now() >= end { Fresh::judged(settings, &upstream) } else { None };
    let per_second = (telemetry.get(Count::Started) - before) as f64 / from.elapsed().as_secs_f64();
    let late_ms = telemetry.lateness();
    let all_were_due = Instant::now() >= spread_over + SLACK;
    let census = ledger.census(SLACK).await?;

    if let Some(dashboard) = dashboard {
        dashboard.close().await;
    }
    stop_engine.cancel();
    engine.await.map_err(|error| setup(&error))??;
    stop_upstream.cancel();
    let seen = upstream.stopped().await.map_err(|error| setup(&error))?;
    let overdue: i64 = census.queues.iter().map(|queue| queue.overdue).sum();
    let unseen = if all_were_due { enrolled.saturating_sub(seen.verdict.entities as u64) } else { 0 };
    let quarantined = telemetry.get(Count::Quarantined);
    let violations = (quarantined > 0)
        .then(|| format!("{quarantined} messages could not be used, and nothing but the demo publishes here."));
    let figures = Figures {
        ticks_per_s: (per_second * 10.0).round() / 10.0,
        failed: telemetry.get(Count::Failed),
        retried: telemetry.get(Count::Retried),
        enroll_s: (enroll_time.as_secs_f64() * 100.0).round() / 100.0,
        platforms: seen.platforms,
        fresh,
    };
    Ok(Report {
        system: "packages",
        chains: enrolled,
        ticks: telemetry.get(Count::Done) + telemetry.get(Count::Failed),
        late_ms,
        forked: seen.verdict.forked(),
        dead: u64::try_from(overdue).unwrap_or(0) + unseen,
        violations: violations.into_iter().collect(),
        figures: serde_json::to_value(&figures).unwrap_or_default(),
    })
}

/// How many calls per second each platform of the upstream allows: twice what the chains need.
fn allowance(settings: &Settings) -> usize {
    let need = settings.chains as f64 / 2.0 / settings.every.as_secs_f64().max(0.001);
    (need * 2.0).ceil().max(5.0) as usize
}

/// The engine's throttle stays a tenth below the upstream's limit, burst included.
fn configuration(settings: &Settings, ledger: &str, upstream: &str, allow: usize) -> String {
    let throttle = (allow as f64 * 0.9).floor().max(1.0) as usize;
    let burst = (throttle / 25).max(1);
    let broker = &settings.broker;
    let (every, min, max) = [settings.every, settings.every / WIDTH, settings.every * WIDTH].map(short_duration).into();
    let chains = settings.chains;
    let mut text = format!(
        r#"
broker.url = "{broker}"
broker.prefix = "roundelay-demo"
ledger.url = "{ledger}"
worker.grace = "15s"
api.name = "demo of packages"

[kinds.{KIND}]
handler.http.url = "{upstream}/{{{{ payload.platform }}}}"
queue = "demo-{{{{ platform }}}}"
fresh = {{ budget = "{chains}/{every}", min = "{min}", max = "{max}", weight = "{{{{ weight }}}}", compare = "hash" }}
timeout = "10s"
retry = {{ attempts = 3, backoff = ["1s", "2s"] }}
roster.key = "{{{{ platform }}}}/{{{{ name }}}}"
"#
    );
    for platform in ["npm", "pypi"] {
        text += &format!(
            "\n[queues.demo-{platform}]\nconcurrency = 256\nthrottle = \"{platform}\"\n\
             \n[throttles.{platform}]\nallow = {throttle}\nper = \"1s\"\nburst = {burst}\nscope = \"worker\"\n"
        );
    }
    text
}

fn platforms(allow: usize) -> BTreeMap<String, PlatformSettings> {
    let mut platforms: BTreeMap<String, PlatformSettings> = BTreeMap::new();
    for row in rows(Format::Csv, PACKAGES.as_bytes()).into_iter().flatten().flatten() {
        let cell = |name: &str| row.1.get(name).and_then(|cell| cell.as_str()).unwrap_or_default().to_owned();
        let platform =
            platforms.entry(cell("platform")).or_insert_with(|| PlatformSettings { allow, packages: HashMap::new() });
        platform.packages.insert(cell("name").into(), cell("version").into());
    }
    platforms
}

/// Enrolls the first `chains` packages; further rounds of the roster get a number in their key.
async fn enroll(config: &Config, connections: Connections, chains: usize) -> Result<u64, StartError> {
    let shape = Shape::new(config, &config.kinds[KIND]).map_err(StartError::Setup)?;
    let mut enroller = Enroller::new(config, connections, KIND, None, true)?;
    let roster: Vec<Entity> = rows(Format::Csv, PACKAGES.as_bytes())
        .map_err(StartError::Setup)?
        .flatten()
        .filter_map(|(_, mut row)| {
            // What a package is worth falls with its rank, as in Zipf's law.
            let rank = row.get("rank").and_then(|rank| rank.as_str()?.parse::<f64>().ok());
            row.insert("weight".into(), (1.0 / rank.unwrap_or(1.0).max(1.0)).into());
            shape.entity(row).ok()
        })
        .collect();
    let rounds = (0..).flat_map(|round| roster.iter().map(move |entity| (round, entity)));
    let entities = rounds.take(chains).map(|(round, entity)| match round {
        0 => entity.clone(),
        _ => Entity { key: format!("{}#{round}", entity.key), ..entity.clone() },
    });
    let entities: Vec<Entity> = entities.collect();
    let mut created = 0;
    for batch in entities.chunks(BATCH) {
        created += enroller.enroll(batch.to_vec()).await?.created;
    }
    Ok(created)
}
