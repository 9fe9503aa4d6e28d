//! Simulations of a configuration, one run at a time.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use parking_lot::{Mutex, MutexGuard};
use roundelay_config::Config;
use roundelay_model::clock::{Time, parse_duration};
use roundelay_simulation::forecast;
use roundelay_simulation::forecast::population::Population;
use roundelay_simulation::forecast::{Plan, Report};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::subscriber::NoSubscriber;
use utoipa::ToSchema;

use super::extract::{Body, NoBody, Path};
use super::problem::{Problem, Result};
use super::wire::Receipt;
use crate::api::detail::Detail;
use crate::api::state::Api;

/// The longest span that a request may simulate, which takes some minutes. `roundelay simulate` has no such bound.
const MAX_SPAN: Duration = Duration::from_secs(7 * 86_400);
const MAX_CHAINS: u64 = 100_000;
const MAX_WORKERS: u16 = 100;
/// How many results are kept; the oldest is forgotten first.
const KEPT: usize = 10;
/// How many columns the charts have.
const COLUMNS: usize = 288;

/// The simulations that requests have started.
#[derive(Default)]
pub struct Simulations {
    runs: Mutex<Vec<Arc<Run>>>,
    numbers: AtomicU64,
}

impl Simulations {
    fn runs(&self) -> MutexGuard<'_, Vec<Arc<Run>>> {
        self.runs.lock()
    }

    fn find(&self, id: &str) -> Result<Arc<Run>> {
        let found = self.runs().iter().find(|run| run.id == id).cloned();
        found.ok_or_else(|| Problem::not_found(format!("there is no simulation {id}; the last {KEPT} are kept")))
    }
}

struct Run {
    id: String,
    length: Duration,
    /// How much virtual time has passed, in milliseconds.
    passed: AtomicU64,
    cancelled: AtomicBool,
    ended: Mutex<Option<std::result::Result<Value, String>>>,
}

impl Run {
    fn ended(&self) -> MutexGuard<'_, Option<std::result::Result<Value, String>>> {
        self.ended.lock()
    }
}

/// What to simulate.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SimulationRequest {
    /// A configuration; absent or null: the one that is in use.
    toml: Option<String>,
    /// How much virtual time passes, at most 7 days.
    #[serde(rename = "for", default = "a_day")]
    #[schema(example = "24h")]
    span: String,
    /// How many chains a kind has, in place of its model's `chains`.
    #[serde(default)]
    chains: BTreeMap<String, u64>,
    /// How many workers there are, at most 100.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 100)]
    workers: u16,
}

fn a_day() -> String {
    "24h".into()
}

const fn one() -> u16 {
    1
}

/// A simulation that has begun.
#[derive(Serialize, ToSchema)]
pub struct SimulationBegun {
    /// The id of the simulation, for later requests.
    id: String,
}

/// The progress of a simulation, and its result.
#[derive(Serialize, ToSchema)]
pub struct SimulationReport {
    /// `running`, `done` or `failed`.
    state: &'static str,
    /// The part that is done, from 0 to 1.
    progress: f64,
    /// Why the simulation failed; null when it did not.
    why: Option<String>,
    /// The result, as `roundelay simulate --json` prints it, with starts over time as `series`. Each throttle also has
    /// `share`, the part of its limit that was used, and `per_s`, its starts per second.
    #[schema(value_type = Option<Object>)]
    report: Option<Value>,
}

/// Begins to simulate a configuration with modelled handlers, in virtual time. The simulation connects to nothing.
///
/// One simulation runs at a time, of at most 100,000 chains.
#[utoipa::path(post, path = "/simulations", tag = "foresight", request_body = SimulationRequest,
    responses((status = 202, description = "The simulation runs", body = SimulationBegun)))]
pub async fn begin(
    State(api): State<Arc<Api>>,
    Body(wanted): Body<SimulationRequest>,
) -> Result<(StatusCode, Detail, Json<SimulationBegun>)> {
    let detail = Detail(json!({ "for": wanted.span, "chains": wanted.chains, "workers": wanted.workers,
                                "edited": wanted.toml.is_some() }));
    let plan = plan(wanted, &api.config(), api.ledger().now())?;
    let simulations = api.simulations();
    let run = {
        let mut runs = simulations.runs();
        if runs.iter().any(|run| run.ended().is_none()) {
            return Err(Problem::conflict("another simulation runs; wait for it, or delete it"));
        }
        let run = Arc::new(Run {
            id: simulations.numbers.fetch_add(1, Ordering::Relaxed).to_string(),
            length: plan.length,
            passed: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            ended: Mutex::new(None),
        });
        runs.push(run.clone());
        let surplus = runs.len().saturating_sub(KEPT);
        runs.drain(..surplus);
        run
    };
    let id = run.id.clone();
    let rates = plan.config.throttles.iter().map(|(name, of)| (name.clone(), of.limits.rate()));
    let rates: BTreeMap<String, f64> = rates.collect();
    let stopping = api.stopping().clone();
    // The simulation has its own runtime and its own thread. Nothing waits for the thread.
    tokio::task::spawn_blocking(move || {
        let progress = |at: Duration| {
            run.passed.store(u64::try_from(at.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
            !run.cancelled.load(Ordering::Relaxed) && !stopping.is_cancelled()
        };
        // A simulated fault is not a real one, so the log must not have it.
        let simulate = || tracing::subscriber::with_default(NoSubscriber::default(), || forecast::run(plan, progress));
        let came = catch_unwind(AssertUnwindSafe(simulate));
        let came = match came {
            Ok(came) => came.map(|report| to_json(&report, &rates)).map_err(|error| error.to_string()),
            Err(_) => Err("the simulator has a fault, and this has found it".to_owned()),
        };
        *run.ended() = Some(came);
    });
    Ok((StatusCode::ACCEPTED, detail, Json(SimulationBegun { id })))
}

fn plan(wanted: SimulationRequest, current: &Config, now: Time) -> Result<Plan> {
    let SimulationRequest { toml, span, chains, workers } = wanted;
    let config = match toml {
        None => current.clone(),
        Some(text) => {
            Config::parse(&text, "the configuration", []).map_err(|error| Problem::unprocessable(error.to_string()))?
        }
    };
    let length = parse_duration(&span).map_err(|why| Problem::unprocessable(format!("for: {why}")))?;
    if length.is_zero() || length > MAX_SPAN {
        return Err(Problem::unprocessable(
            "for: more than nothing and at most 7d is possible; `roundelay simulate` takes longer ones",
        ));
    }
    if workers == 0 || workers > MAX_WORKERS {
        return Err(Problem::unprocessable(format!("workers: from 1 to {MAX_WORKERS} is possible")));
    }
    let mut assumed = Vec::new();
    let populations = populations(&config, &chains, &mut assumed).map_err(Problem::unprocessable)?;
    let total: u64 = populations.values().map(Population::chains).sum();
    if total > MAX_CHAINS {
        return Err(Problem::unprocessable(format!(
            "chains: {total} chains are more than the {MAX_CHAINS} that are simulated here; `roundelay simulate` takes more"
        )));
    }
    Ok(Plan {
        config,
        populations,
        from: now,
        length,
        seed: 0,
        workers: workers.into(),
        spread: None,
        outages: Vec::new(),
        broker_outages: Vec::new(),
        assumed,
    })
}

/// How many chains each kind has; without the kinds that have none.
fn populations(
    config: &Config,
    asked: &BTreeMap<String, u64>,
    assumed: &mut Vec<String>,
) -> std::result::Result<BTreeMap<String, Population>, String> {
    if let Some(name) = asked.keys().find(|name| !config.kinds.contains_key(*name)) {
        return Err(format!("chains: there is no [kinds.{name}] in the configuration"));
    }
    let mut populations = BTreeMap::new();
    for (name, kind) in &config.kinds {
        let said = asked.get(name).copied().or(kind.model.chains);
        if kind.recurrence.is_none() && !asked.contains_key(name) {
            assumed.push(format!("{name}: it has no chains, only jobs that somebody publishes; these are left out"));
            continue;
        }
        let chains = said.unwrap_or_else(|| {
            assumed.push(format!("{name}: one chain is assumed, since nothing says how many there are"));
            1
        });
        populations.insert(name.clone(), Population::counted(config, name, chains)?);
    }
    match populations.is_empty() {
        true => Err("no kind has chains, so there is nothing to simulate".into()),
        false => Ok(populations),
    }
}

fn to_json(report: &Report, rates: &BTreeMap<String, f64>) -> Value {
    let mut value = json!(report);
    for (name, throttle) in &report.throttles {
        value["throttles"][name]["share"] = json!(throttle.use_percent / 100.0);
        value["throttles"][name]["per_s"] = json!(rates.get(name));
    }
    let (all, kinds) = &report.series;
    let per = all.starts.len().div_ceil(COLUMNS).max(1) as f64 * all.width.as_secs_f64();
    let columns = |series: &forecast::Series| -> Vec<f64> {
        series.columns(COLUMNS).into_iter().map(|(mean, _)| (mean * 1_000.0).round() / 1_000.0).collect()
    };
    let kinds: BTreeMap<&String, Vec<f64>> = kinds.iter().map(|(kind, series)| (kind, columns(series))).collect();
    value["series"] = json!({ "bucket_s": per, "all": columns(all), "kinds": kinds });
    value
}

/// Answers the progress of a simulation, and its result.
#[utoipa::path(get, path = "/simulations/{id}", tag = "foresight",
    params(("id" = String, Path, description = "The simulation's id")),
    responses((status = 200, description = "The progress, and the result", body = SimulationReport)))]
pub async fn show(State(api): State<Arc<Api>>, Path(id): Path<String>) -> Result<Json<SimulationReport>> {
    let run = api.simulations().find(&id)?;
    let passed = Duration::from_millis(run.passed.load(Ordering::Relaxed));
    let ended = run.ended().clone();
    let (state, why, report) = match ended {
        None => ("running", None, None),
        Some(Ok(report)) => ("done", None, Some(report)),
        Some(Err(why)) => ("failed", Some(why), None),
    };
    let progress = if state == "done" { 1.0 } else { passed.as_secs_f64() / run.length.as_secs_f64() };
    Ok(Json(SimulationReport { state, progress, why, report }))
}

/// Ends a simulation and forgets its result.
#[utoipa::path(delete, path = "/simulations/{id}", tag = "foresight",
    params(("id" = String, Path, description = "The simulation's id")),
    responses((status = 200, description = "The simulation is forgotten", body = Receipt)))]
pub async fn forget(State(api): State<Arc<Api>>, Path(id): Path<String>, _: NoBody) -> Result<Json<Receipt>> {
    let run = api.simulations().find(&id)?;
    run.cancelled.store(true, Ordering::Relaxed);
    if run.ended().is_some() {
        api.simulations().runs().retain(|run| run.id != id);
    }
    Ok(Json(Receipt { words: format!("the simulation {id} ends") }))
}
