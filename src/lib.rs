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
//! This crate is what you embed, and the program. The layers are crates of their own under `crates`; Cargo lets each
//! use only those below it:
//!
//! | Crate | What it holds |
//! |---|---|
//! | `roundelay-cli` | the commands |
//! | `roundelay-lab` | benchmarks and demos |
//! | `roundelay-admin` | looking at chains and ordering what they do: inspect, operate, API, dashboard, import |
//! | `roundelay-simulation` | the engine under faults, and a configuration's forecast, in virtual time |
//! | `roundelay-engine` | a job's life from delivery to acknowledgement, catch-up, throttles, rosters, metrics, traces |
//! | `roundelay-config` | file and environment become checked settings |
//! | `roundelay-ledger`, `roundelay-broker`, `roundelay-handler` | the record of all chains; what carries messages; what runs jobs |
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
//! # Test your handlers
//!
//! The module [`testing`] runs them in the real engine, in virtual time and from a seed, with faults on request: waits
//! cost nothing, and the same seed gives the same run.
//!
//! # Features
//!
//! | Feature | What it brings | By default |
//! |---|---|---|
//! | `program` | the program `roundelay` with its commands, benchmarks and demos; all features below | yes |
//! | `api` | the HTTP API and the dashboard in a [`worker`]; also `postgres` and `rabbitmq` | yes |
//! | `postgres` | ledgers, and lists of entities, in PostgreSQL | yes |
//! | `rabbitmq` | the broker RabbitMQ | yes |
//! | `testing` | the module `testing` | yes |
//!
//! A program that embeds the engine takes what it needs. Without any feature that is the engine with a ledger in a
//! SQLite file and the embedded broker:
//!
//! ```toml
//! [dependencies]
//! roundelay = { version = "0.1", default-features = false, features = ["rabbitmq"] }
//!
//! [dev-dependencies]
//! roundelay = { version = "0.1", default-features = false, features = ["testing"] }
//! ```
//!
//! A configuration that names what was left out is refused when the engine connects, with an error that names the
//! feature.
//!
//! # What is stable
//!
//! Each item on this page, with what it is made of. Errors may get further variants. [`Outcome`] is a closed set, which
//! the message format and the handlers in other languages share, so a `match` on it needs no arm for what may come.
//!
//! The message format, the contract of handlers, operations and the architecture are documented in
//! the folder `docs` of the repository.

#![warn(missing_docs)]

mod internal;

use roundelay_engine::monitor::Monitor;

#[doc(hidden)]
pub use internal::*;

/// An engine that hosts what `roundelay worker` hosts: health and metrics at `worker.listen`, and with the feature
/// `api` the HTTP API and the dashboard at `api.listen`.
///
/// Without that feature, a configuration with `api.listen` is refused by [`Engine::run`].
pub fn worker(config: Config) -> Engine {
    let engine = Engine::new(config).companion(Monitor::default());
    #[cfg(feature = "api")]
    let engine = engine.companion(roundelay_admin::api::HostedApi::default());
    engine
}

// The engine, and the types to make it.

/// The settings of a worker, from a file or from text.
///
/// ```
/// use roundelay::Config;
///
/// let config = Config::parse("[queues.work]\n[kinds.sync]\nqueue = \"work\"\nevery = \"5m\"\n", "roundelay.toml",
/// [])?; assert_eq!(config.kind_names().collect::<Vec<_>>(), ["sync"]);
///
/// // The error lists everything that is wrong, with file, line and key.
/// let error = Config::parse("[queues.work]\nconcurency = 4\n", "roundelay.toml", []).unwrap_err();
/// assert!(error.to_string().contains("roundelay.toml:2: queues.work.concurency: unknown key"));
/// # Ok::<(), roundelay::ConfigError>(())
/// ```
pub use roundelay_config::Config;
pub use roundelay_config::{ConfigError, Problem};
/// A worker of your own program: it runs the jobs of a configuration.
///
/// A whole worker, on the embedded broker, which runs one chain until that ends:
///
/// ```
/// use roundelay::{Config, Connections, Context, Engine, Enroller, Entity, Job, Outcome};
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
/// // Runs that have begun may finish.
/// shutdown.cancel();
/// running.await??;
/// # Ok(())
/// # }
/// ```
pub use roundelay_engine::Engine;
pub use roundelay_engine::{Connections, StartError};

// What programs give to the engine: chains and jobs.

pub use roundelay_engine::enroll::{EnrollError, Enroller, Entity, Tally};
/// Publishes one-off jobs, which run once, outside any chain.
///
/// ```no_run
/// use roundelay::{Config, Connections, NewJob, Publisher};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::load("roundelay.toml".as_ref())?;
/// let connections = Connections::open(&config).await?;
/// let job = NewJob { kind: "resize".into(), key: "photo/17".into(), payload: "large".into(), ..NewJob::default() };
/// let published = Publisher::new(&config, connections).publish(job).await?;
/// println!("{} is safe", published.id);
/// # Ok(())
/// # }
/// ```
pub use roundelay_engine::publish::Publisher;
pub use roundelay_engine::publish::{PublicationError, Published};

// What handlers get and answer.

pub use roundelay_handler::{Context, Handler, HandlerSpan, PermitError};
pub use roundelay_model::clock::Time;
pub use roundelay_model::failure::FailedItem;
pub use roundelay_model::ids::{Epoch, Fence, TickNo};
pub use roundelay_model::job::{Job, Tick};
/// What a handler answers.
///
/// ```
/// use std::time::Duration;
/// use roundelay::{Job, Outcome, Reason};
///
/// fn came_to(status: u16, job: &Job) -> Outcome {
///     match status {
///         200 => Outcome::Done,
///         404 => Outcome::Retire { reason: format!("{} is gone", job.key).into() },
///         429 => Outcome::Snooze { reason: Reason::from("too many").coded("rate_limited"), wait:
///         Duration::from_secs(30) }, _ => Outcome::retry(format!("HTTP {status}")),
///     }
/// }
/// assert_eq!(Outcome::fail("no").reason().map(ToString::to_string).as_deref(), Some("no"));
/// ```
pub use roundelay_model::outcome::Outcome;
pub use roundelay_model::outcome::{Change, Discovered, NewJob, Yield};
pub use roundelay_model::reason::{Class, Mark, Reason};

// Why broker and ledger cannot be used: parts of the errors above.

pub use roundelay_broker::{BrokerError, PublishError};
pub use roundelay_ledger::LedgerError;

#[cfg(feature = "testing")]
/// Tests of your handlers, in the real engine and in virtual time.
///
/// ```
/// use std::time::Duration;
///
/// use roundelay::testing::{Fault, Simulation};
/// use roundelay::{Config, Context, Entity, Job, Outcome};
///
/// /// The shop is closed at the first attempt of each tick.
/// async fn sync(job: Job, _: Context) -> Outcome {
///     tokio::time::sleep(Duration::from_secs(2)).await;
///     if job.attempt == 1 { Outcome::retry("the shop is closed") } else { Outcome::Done }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = "
/// [queues.work]
/// [kinds.sync]
/// queue = 'work'
/// every = '5m'
/// retry = { attempts = 3, backoff = ['30s'] }
/// ";
/// let minute = Duration::from_secs(60);
/// let test = |seed| {
///     Simulation::new(Config::parse(config, "roundelay.toml", [])?)
///         .seed(seed)
///         .workers(2)
///         .handler("sync", sync)
///         .chain("sync", Entity::new("shop/7", "work", "{}"))
///         .fault(10 * minute, Fault::Crash { worker: 0, away: minute })
///         .fault(20 * minute, Fault::BrokerAway(minute))
///         .run(40 * minute)
///         .map_err(Box::<dyn std::error::Error>::from)
/// };
/// let report = test(1)?;
/// let done = report.runs_of("sync", "shop/7").filter(|run| matches!(run.ended, Some((_, Outcome::Done)))).count();
/// assert!((5..=8).contains(&done), "every five minutes, but for what went wrong:\n{report}");
/// // The same seed gives the same runs.
/// assert_eq!(test(1)?.to_string(), report.to_string());
/// # Ok(())
/// # }
/// ```
pub use roundelay_simulation::testing;

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
