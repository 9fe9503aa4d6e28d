//! A worker with a handler of its own, for the kind `sync`: without HTTP.
//!
//!     cargo run --example worker -- roundelay.toml
//!
//! Needs parking_lot, roundelay, tokio and tokio-util.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use roundelay::{Config, Context, Job, Outcome};
use tokio_util::sync::CancellationToken;

/// A job may run again: its worker may die after the work and before the record. Store this together with the effect,
/// in the same transaction; here it is lost with the process.
#[derive(Default)]
struct Marks {
    done: BTreeSet<String>,
    asked: BTreeSet<String>,
}

fn sync(job: &Job, marks: &Mutex<Marks>) -> Outcome {
    let mut marks = marks.lock();
    if marks.done.contains(&job.id) {
        return Outcome::Done;
    }
    if !job.payload["name"].is_string() {
        // A retry would not help.
        return Outcome::fail("the payload has no name");
    }
    // A payload with "busy" stands for an upstream that is busy at the first call.
    if job.payload["busy"] == true && marks.asked.insert(job.id.clone()) {
        return Outcome::Snooze { wait: Duration::from_secs(1), reason: "the upstream is busy".into() };
    }
    println!("synced {} {}", job.key, job.id);
    marks.done.insert(job.id.clone());
    Outcome::Done
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "roundelay.toml".into());
    let config = Config::load(file.as_ref())?;
    let (shutdown, marks) = (CancellationToken::new(), Arc::new(Mutex::new(Marks::default())));
    let stop = shutdown.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            stop.cancel();
        }
    });
    let handler = move |job: Job, _: Context| {
        let marks = marks.clone();
        async move { sync(&job, &marks) }
    };
    roundelay::worker(config).handler("sync", handler).run(shutdown).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use roundelay::Entity;
    use roundelay::testing::Simulation;

    use super::*;

    /// The real engine runs the handler, in virtual time.
    #[test]
    fn a_busy_upstream_is_asked_again_after_a_second() -> Result<(), Box<dyn Error>> {
        let config = "[queues.work]\n[kinds.sync]\nqueue = 'work'\nevery = '10m'";
        let marks = Arc::new(Mutex::new(Marks::default()));
        let handler = move |job: Job, _: Context| {
            let marks = marks.clone();
            async move { sync(&job, &marks) }
        };
        let report = Simulation::new(Config::parse(config, "the test's configuration", [])?)
            .handler("sync", handler)
            .chain("sync", Entity::new("npm/ms", "work", r#"{"name":"ms","busy":true}"#))
            .run(Duration::from_secs(2 * 3600))?;
        let mut runs = report.runs_of("sync", "npm/ms");
        let mut ticks = 0;
        while let (Some(busy), Some(done)) = (runs.next(), runs.next()) {
            assert!(matches!(busy.ended, Some((_, Outcome::Snooze { .. }))), "{report}");
            assert!(matches!(done.ended, Some((_, Outcome::Done))), "{report}");
            let waited = done.at - busy.at;
            assert!(waited >= Duration::from_secs(1) && waited < Duration::from_secs(2), "{waited:?}: {report}");
            ticks += 1;
        }
        assert!(ticks >= 11, "{report}");
        Ok(())
    }
}
