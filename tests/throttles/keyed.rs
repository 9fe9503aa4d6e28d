//! A limit for each channel, many channels, and each wants more than its limit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use crate::fleet::{Chains, Fleet, Ledger, watch};
use crate::support::receiver::Reply;
use crate::support::windows::{Limit, quantile};
use crate::{Shown, Task};

const LIMIT: Limit = Limit { allow: 1, per: Duration::from_secs(1) };
/// Each is due half a second after its end.
const CHAINS_OF_EACH: usize = 3;
const WORKERS: usize = 3;
/// Channels do not all begin at the same moment.
const SPREAD: &str = "15s";

pub(super) async fn run(task: Task) -> anyhow::Result<Shown> {
    let text = "[throttles.channel]\nallow = 1\nper = \"1s\"\nkey = \"payload.channel\"\n\
                [queues.work]\nthrottle = \"channel\"\nconcurrency = 256\nprefetch = 256\n\
                [kinds.post]\nqueue = \"work\"\nevery = \"500ms\"\ntimeout = \"10s\"\n";
    let script = Arc::new(|_: &_| Reply::ok(Duration::from_millis(20)));
    let row = |n: usize| (format!("chain-{n}"), format!("channel-{}", n % task.channels));
    let chains =
        Chains { kind: "post", rows: (0..task.channels * CHAINS_OF_EACH).map(row).collect(), spread: Some(SPREAD) };
    let fleet = Fleet::start(Ledger::Postgres, WORKERS, (text, &["post"]), script, &[chains]).await?;
    fleet.consumed_by("work", WORKERS).await?;
    sleep(Duration::from_secs(20)).await;
    let from = fleet.receiver.now();
    sleep(task.length * 2 / 5).await;
    let (to, stall) = (fleet.receiver.now(), fleet.receiver.stall());
    let (calls, stuck) = fleet.end().await;

    let mut channels: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    calls.iter().for_each(|call| channels.entry(&call.channel).or_default().push(call.at));
    let watched: Vec<_> = channels.values().map(|starts| watch(starts, LIMIT, (from, to))).collect();
    let over: usize = watched.iter().map(|one| one.ruling.over.len()).sum();
    let used: Vec<f64> = watched.iter().map(|one| one.used).collect();
    let nearest = watched.iter().filter_map(|one| one.ruling.nearest).fold(f64::INFINITY, f64::min);
    let mean = used.iter().sum::<f64>() / used.len().max(1) as f64;
    let (least, p50) = (quantile(&used, 0.0).unwrap_or_default(), quantile(&used, 0.5).unwrap_or_default());
    let passed = stuck == 0 && over == 0 && channels.len() == task.channels;
    let line = format!(
        "{} calls on {} channels, {over} windows over, nearest {nearest:.1} ms; used {:.1} % of each in the mean, \
         {:.1} % (p50), {:.1} % at least",
        calls.len(),
        channels.len(),
        mean * 100.0,
        p50 * 100.0,
        least * 100.0
    );
    let figures = json!({
        "workers": WORKERS, "channels": channels.len(), "calls": calls.len(), "windows_over": over,
        "nearest_ms": nearest, "used": { "mean": mean, "p50": p50, "least": least },
        "receiver_stall_ms": stall.as_millis(), "stuck_workers": stuck,
    });
    Ok(Shown { passed, line, figures })
}
