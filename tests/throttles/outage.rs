//! One of two platforms does not answer for a while: what is due on the other is called as soon as ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use crate::fleet::{Chains, Fleet, Ledger};
use crate::support::receiver::Reply;
use crate::support::windows::quantile;
use crate::{Shown, Task};

/// The kinds, with queues and throttles of their names.
const KINDS: [&str; 2] = ["sound", "ailing"];
/// Each is due ten seconds after its end: ten a second of each kind, half of what the throttles allow.
const CHAINS: usize = 100;
const WORKERS: usize = 3;
/// The platform answers no call for this time.
const SILENT: Duration = Duration::from_secs(3_600);
/// What counts as noise: the slowest percent may be by so much slower than the worse of before and after.
const NOISE: (f64, f64) = (1.5, 50.0);

pub(super) async fn run(task: Task) -> anyhow::Result<Shown> {
    let table = |name: &str| {
        format!(
            "[throttles.{name}]\nallow = 20\nper = \"1s\"\n\
             [queues.{name}]\nthrottle = \"{name}\"\nconcurrency = 16\n\
             [kinds.{name}]\nqueue = \"{name}\"\nevery = \"10s\"\njitter = \"1s\"\ntimeout = \"5s\"\n"
        )
    };
    let text: String = KINDS.map(table).concat();
    let down = Arc::new(AtomicBool::new(false));
    let is_down = down.clone();
    let script = Arc::new(move |call: &crate::support::receiver::Call| {
        match call.kind == KINDS[1] && is_down.load(Ordering::Relaxed) {
            true => Reply::ok(SILENT),
            false => Reply::ok(Duration::from_millis(50)),
        }
    });
    let chains = KINDS.map(|kind| Chains::of(kind, CHAINS));
    let fleet = Fleet::start(Ledger::Postgres, WORKERS, (&text, &KINDS), script, &chains).await?;
    for kind in KINDS {
        fleet.consumed_by(kind, WORKERS).await?;
        // First ticks, begun before there were workers, do not count.
        fleet.until("chains have come round", |receiver| receiver.count(|call| call.kind == kind) > 3 * CHAINS).await?;
    }
    let (length, mut marks) = (task.length * 2 / 5, vec![fleet.receiver.now()]);
    for ailing in [false, true, false] {
        down.store(ailing, Ordering::Relaxed);
        sleep(length).await;
        marks.push(fleet.receiver.now());
    }
    let (calls, stuck) = fleet.end().await;

    let late = |kind: &str, n: usize| -> Vec<f64> {
        let within = calls.iter().filter(|call| call.kind == kind && call.at > marks[n] && call.at <= marks[n + 1]);
        within.map(|call| call.late as f64).collect()
    };
    let phases: Vec<Vec<f64>> = (0..3).map(|n| late(KINDS[0], n)).collect();
    let p99: Vec<f64> = phases.iter().map(|phase| quantile(phase, 0.99).unwrap_or(f64::INFINITY)).collect();
    let p50: Vec<f64> = phases.iter().map(|phase| quantile(phase, 0.5).unwrap_or(f64::INFINITY)).collect();
    let may_be = p99[0].max(p99[2]) * NOISE.0 + NOISE.1;
    let passed = stuck == 0 && p99[1] <= may_be && phases[1].len() * 10 >= phases[0].len() * 9;
    let others: Vec<usize> = (0..3).map(|n| late(KINDS[1], n).len()).collect();
    let line = format!(
        "lateness on the sound platform before, during and after: p50 {p50:?} ms, p99 {p99:?} ms; {:?} calls there, {others:?} on the other",
        phases.iter().map(Vec::len).collect::<Vec<_>>()
    );
    let figures = json!({
        "workers": WORKERS, "seconds_each": length.as_secs(), "p50_ms": p50, "p99_ms": p99, "may_be_ms": may_be,
        "calls": phases.iter().map(Vec::len).collect::<Vec<_>>(), "calls_of_the_other": others, "stuck_workers": stuck,
    });
    Ok(Shown { passed, line, figures })
}
