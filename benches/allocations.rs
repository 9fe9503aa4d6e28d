//! Allocations of the engine in a cycle, beside the raw loop: `cargo bench --bench allocations`.
//!
//! The broker is the embedded one, or that of AMQP_URL if it is set; the ledger is SQLite.

use std::alloc::System;
use std::time::Duration;

use roundelay::bench::chains::{Load, Settings, run};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn allocations() -> u64 {
    let stats = ALLOCATOR.stats();
    (stats.allocations + stats.reallocations) as u64
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let broker = std::env::var("AMQP_URL").unwrap_or_else(|_| "embedded".into());
    let settings = Settings {
        broker: broker.clone(),
        ledger: format!("sqlite://{}/ledger.db", folder.path().display()),
        workers: 1,
        chains: 0,
        rate: 1_000,
        delay: Duration::from_secs(1),
        length: Duration::from_secs(10),
        turns: 2,
        concurrency: 512,
        delays: "auto".into(),
        load: Load::default(),
        allocations: Some(allocations),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(run(&settings, |_| {}))?;
    let lateness = report.lateness.ok_or("nothing was measured")?;
    let of = |figures: Option<f64>| figures.ok_or("nothing was counted");
    let where_to = if broker == "embedded" { "the embedded broker" } else { "RabbitMQ" };
    println!(
        "allocations for a cycle on {where_to}: engine {}, raw loop {}",
        of(lateness.engine.allocations)?,
        of(lateness.raw.allocations)?
    );
    Ok(())
}
