//! Roundelay keeps very many things fresh: recurring jobs over stock RabbitMQ.
//!
//! Each entity has a *chain*, named by a kind (which handler) and a key (which entity). A run of
//! the chain is a *tick*. When it has ended, the engine publishes the message of the next tick to
//! a delay queue (a *rung* of the *ladder*), where it sleeps until it is due and then moves to its
//! *platform queue* by itself. Messages are replaceable hints: the *ledger* knows where each chain
//! stands, so a lost message is sent again and a surplus one runs nothing.
//!
//! ```text
//!  configuration ─▶ engine ──────────────────────────────────────────────────┐
//!                                                                            │
//!  platform queue ─▶ decode ─▶ throttle ─▶ claim ─▶ handler ─▶ decide ─▶ finish
//!        ▲                                   │                             │
//!        │                                   └────────── ledger ───────────┤
//!        └───────── rung of the ladder ◀──────── successor, confirmed ─────┘
//! ```
//!
//! This crate is what you embed, and the program. The layers are crates of their own under `crates`; Cargo lets each use
//! only those below it:
//!
//! | Crate | What it holds |
//! |---|---|
//! | `roundelay-cli` | the commands |
//! | `roundelay-lab` | benchmarks and demos |
//! | `roundelay-admin` | looking at chains and ordering what they do: inspect, operate, API, dashboard, import |
//! | `roundelay-simulation` | the engine under faults, and a configuration's forecast, in virtual time |
//! | `roundelay-engine` | a job's life from delivery to acknowledgement, catch-up, throttles, rosters, metrics, traces |
//! | `roundelay-config` | file and environment become checked settings |
//! | `roundelay-ledger`, `roundelay-broker`, `roundelay-handler` | the truth about chains; what carries messages; what runs jobs |
//! | `roundelay-net` | listening and TLS |
//! | `roundelay-model` | what is decided, as pure functions: schedules, retries, pacing, the ladder |
//!
//! # A worker with a handler of its own
//!
//! ```no_run
//! use roundelay::{Config, Context, Job, Outcome};
//! use tokio_util::sync::CancellationToken;
//!
//! async fn sync_app(job: Job, _: Context) -> Outcome {
//!     // Runs again if the worker dies before the end is recorded: make effects idempotent on job.id.
//!     match job.payload["platform"].as_str() {
//!         Some(platform) => println!("{} is due on {platform}, attempt {}", job.key, job.attempt),
//!         None => return Outcome::fail("the payload has no platform"),
//!     }
//!     Outcome::Done
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let config = Config::load("roundelay.toml".as_ref())?;
//!     let shutdown = CancellationToken::new();
//!     let stop = shutdown.clone();
//!     tokio::spawn(async move {
//!         if tokio::signal::ctrl_c().await.is_ok() {
//!             stop.cancel();
//!         }
//!     });
//!     roundelay::worker(config).handler("sync-app", sync_app).run(shutdown).await?;
//!     Ok(())
//! }
//! ```
//!
//! The message format, the contract of handlers, operations and the architecture are documented in
//! the folder `docs` of the repository.

#![warn(missing_docs)]

// Inside: what the program, the tests and the benchmarks reach for. Any version may change all of that.
#[doc(hidden)]
pub use roundelay_model::{
    calendar, clock, deaths, egress, encryption, failure, fleet, guard, job, ladder, lanes, outcome, pacing, policy,
    progress, reason, schedule, scope, secret, topology, trace_context,
};

#[cfg(fuzzing)]
#[doc(hidden)]
pub use roundelay_admin::fuzz;
#[doc(hidden)]
pub use roundelay_admin::{api, import, inspect, operate};
#[doc(hidden)]
pub use roundelay_broker as broker;
#[doc(hidden)]
pub use roundelay_config as config;
#[doc(hidden)]
pub use roundelay_engine as engine;
#[doc(hidden)]
pub use roundelay_engine::{monitor, roster, telemetry, throttle, trace};
#[doc(hidden)]
pub use roundelay_handler as handler;
#[doc(hidden)]
pub use roundelay_lab::{bench, demo};
#[doc(hidden)]
pub use roundelay_ledger as ledger;
#[doc(hidden)]
pub use roundelay_net::tls;
#[doc(hidden)]
pub use roundelay_simulation as simulation;

pub use roundelay_admin::worker;
///
/// ```
/// use roundelay::Config;
///
/// let config = Config::parse("[queues.work]\n[kinds.sync]\nqueue = \"work\"\nevery = \"5m\"\n", "roundelay.toml", [])?;
/// let sync = config.kinds["sync"].recurrence.as_ref().map(|recurrence| recurrence.schedule.to_string());
/// assert_eq!(sync.as_deref(), Some("every 5m"));
///
/// // Everything that is wrong is told, with file, line and key.
/// let error = Config::parse("[queues.work]\nconcurency = 4\n", "roundelay.toml", []).unwrap_err();
/// assert!(error.to_string().contains("roundelay.toml:2: queues.work.concurency: unknown key"));
/// # Ok::<(), roundelay::config::ConfigError>(())
/// ```
pub use roundelay_config::Config;
///
/// A whole worker, on the embedded broker, which runs one chain until that ends:
///
/// ```
/// use roundelay::engine::Connections;
/// use roundelay::engine::enroll::{Enroller, Entity};
/// use roundelay::{Config, Context, Engine, Job, Outcome};
/// use tokio_util::sync::CancellationToken;
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let folder = tempfile::tempdir()?;
/// let ledger = folder.path().join("roundelay.db");
/// let config = format!(
///     r#"
/// ledger.url = "sqlite://{}"
/// [queues.work]
/// [kinds.sync]
/// queue = "work"
/// every = "50ms"
/// "#,
///     ledger.display()
/// );
/// let config = Config::parse(&config, "roundelay.toml", [])?;
///
/// let (shutdown, stop) = (CancellationToken::new(), CancellationToken::new());
/// let ended = stop.clone();
/// let sync = move |job: Job, _: Context| {
///     let ended = ended.clone();
///     async move {
///         match job.tick {
///             Some(at) if at.tick < 3 => Outcome::Done,
///             _ => {
///                 ended.cancel();
///                 Outcome::Retire { reason: "three are enough".into() }
///             }
///         }
///     }
/// };
/// let connections = Connections::open(&config).await?;
/// let engine = Engine::new(config.clone()).handler("sync", sync).connections(connections.clone());
/// let ready = engine.ready();
/// let running = tokio::spawn(engine.run(shutdown.clone()));
/// ready.wait().await;
///
/// let chains = vec![Entity::new("npm/ms", "work", r#"{"name":"ms"}"#)];
/// Enroller::new(&config, connections, "sync", None, true)?.enroll(chains).await?;
///
/// stop.cancelled().await;
/// // What runs is let finish.
/// shutdown.cancel();
/// running.await??;
/// # Ok(())
/// # }
/// ```
pub use roundelay_engine::Engine;
pub use roundelay_handler::{Context, Handler};
pub use roundelay_model::job::Job;
///
/// ```
/// use std::time::Duration;
/// use roundelay::{Job, Outcome, Reason};
///
/// fn came_to(status: u16, job: &Job) -> Outcome {
///     match status {
///         200 => Outcome::Done,
///         404 => Outcome::Retire { reason: format!("{} is gone", job.key).into() },
///         429 => Outcome::Snooze { reason: Reason::from("too many").coded("rate_limited"), wait: Duration::from_secs(30) },
///         _ => Outcome::retry(format!("HTTP {status}")),
///     }
/// }
/// assert_eq!(Outcome::fail("no").reason().map(ToString::to_string).as_deref(), Some("no"));
/// ```
pub use roundelay_model::outcome::Outcome;
pub use roundelay_model::reason::Reason;

#[cfg(test)]
mod tests {
    /// The Rust code of the README is the example above.
    #[test]
    fn the_readme_has_the_same_example() {
        let story = include_str!("lib.rs").lines().filter_map(|line| line.strip_prefix("//!"));
        let story: Vec<&str> = story.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
        let example = story.iter().skip_while(|line| **line != "```no_run").skip(1).take_while(|line| **line != "```");
        let example: Vec<&str> = example.copied().collect();
        let readme: Vec<&str> = include_str!("../README.md").lines().collect();
        let theirs = readme.iter().skip_while(|line| **line != "```rust").skip(1).take_while(|line| **line != "```");
        assert!(!example.is_empty());
        assert_eq!(theirs.copied().collect::<Vec<_>>(), example);
    }
}
