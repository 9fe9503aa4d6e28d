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
//! The modules, in the order in which a job meets them:
//!
//! 1. [`config`]: file and environment become checked settings.
//! 2. [`roster`]: lists of entities to begin chains for; [`engine::enroll`] begins them.
//! 3. [`job`]: what travels: the message, its identity, what a handler gets.
//! 4. [`broker`]: carries messages; RabbitMQ, or one in this process.
//! 5. [`engine`]: a job's life from delivery to acknowledgement, catch-up, start and stop.
//! 6. [`throttle`]: paces starts.
//! 7. [`ledger`]: the truth about chains; SQLite or PostgreSQL.
//! 8. [`handler`]: runs the job: Rust, HTTP, or a program.
//! 9. [`outcome`]: what happened, and for which [`reason`], becomes what follows (pure); a [`policy`] may
//!    say so by the reason.
//! 10. [`schedule`]: when next (pure).
//! 11. [`ladder`]: a delay becomes hops over rungs (pure); [`topology`] names what there is on the broker for that, and
//!     [`lanes`] which of a platform queue's queues a message takes (pure).
//!
//! Beside them, [`clock`] is the only reader of time and randomness, [`calendar`] is how the wall clock stands to the
//! ledger's time (pure), [`encryption`] seals what lies in ledger and
//! queues (pure), [`telemetry`] counts, [`trace`] tells collectors
//! of runs, [`progress`] is
//! how far runs say they have come, [`fleet`] is what workers say of themselves and what was ordered of them,
//! [`monitor`] answers those who ask how a worker is, [`inspect`] those who ask how everything is, [`operate`] is what
//! operators do, [`api`] lets programs do both, [`import`] reads what other schedulers run, and [`demo`] and [`bench`](mod@bench) are behind the commands
//! of those names.
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

pub mod api;
pub mod bench;
pub mod broker;
pub mod calendar;
pub mod clock;
pub mod config;
pub mod deaths;
pub mod demo;
pub mod egress;
pub mod encryption;
pub mod engine;
pub mod failure;
pub mod fleet;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod guard;
pub mod handler;
pub mod import;
pub mod inspect;
pub mod job;
pub mod ladder;
pub mod lanes;
pub mod ledger;
mod listen;
pub mod monitor;
pub mod operate;
pub mod outcome;
pub mod pacing;
pub mod policy;
pub mod progress;
pub mod reason;
pub mod roster;
pub mod schedule;
pub mod scope;
pub mod secret;
pub mod simulation;
pub mod telemetry;
pub mod throttle;
pub mod tls;
pub mod topology;
pub mod trace;
mod web;

pub use config::Config;
pub use engine::Engine;
pub use handler::{Context, Handler};
pub use job::Job;
pub use outcome::Outcome;
pub use reason::Reason;

/// An engine that hosts what `roundelay worker` hosts: health and metrics at `worker.listen`, the API at `api.listen`.
pub fn worker(config: Config) -> Engine {
    Engine::new(config).companion(monitor::Monitor::default()).companion(api::HostedApi::default())
}

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
