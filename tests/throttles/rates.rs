//! Two throttles, each with more to do than it allows, while workers are killed and frozen: no window holds too
//! many, and the limits are used.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::fleet::{Chains, Fleet, Ledger, times, watch};
use crate::strikes::strike;
use crate::support::receiver::Reply;
use crate::support::windows::Limit;
use crate::{Shown, Task};

const MINUTE: Duration = Duration::from_secs(60);
/// Each kind, whose queue and throttle have its name too, and how many starts a minute it may have.
const RATES: [(&str, usize); 2] = [("slower", 24), ("faster", 37)];
/// Each is due again a second after its end, so there are always some that wait.
const CHAINS: usize = 60;
/// Of each limit so much must be used.
const LEAST: f64 = 0.95;

pub(super) async fn run(ledger: Ledger, workers: usize, task: Task) -> anyhow::Result<Shown> {
    let table = |(name, allow): &(&str, usize)| {
        format!(
            "[throttles.{name}]\nallow = {allow}\nper = \"60s\"\n\
             [queues.{name}]\nthrottle = \"{name}\"\nconcurrency = 4\nprefetch = 4\n\
             [kinds.{name}]\nqueue = \"{name}\"\nevery = \"1s\"\ntimeout = \"10s\"\n"
        )
    };
    let text = format!(
        "catch_up = {{ every = \"1s\", slack = \"30s\", spread = \"2s\" }}\n{}",
        RATES.iter().map(table).collect::<String>()
    );
    let script = Arc::new(|_: &_| Reply::ok(Duration::from_millis(50)));
    let chains = RATES.map(|(name, _)| Chains::of(name, CHAINS));
    let kinds = RATES.map(|(name, _)| name);
    let fleet = Fleet::start(ledger, workers, (&text, &kinds), script, &chains).await?;
    for (name, _) in RATES {
        fleet.consumed_by(name, workers).await?;
        fleet.until("the first call", |receiver| receiver.count(|call| call.kind == name) > 0).await?;
    }
    let began = fleet.receiver.now();
    let strikes = strike(&fleet, task.seed, task.length).await;
    let (over, stall) = (began + task.length, fleet.receiver.stall());
    let (calls, stuck) = fleet.end().await;

    let (mut passed, mut line, mut rows) = (stuck == 0, String::new(), json!({}));
    for (name, allow) in RATES {
        let starts = times(&calls, |call| call.kind == name);
        // From a start on, so that none is counted by chance.
        let from = starts.iter().copied().find(|at| *at >= began).unwrap_or(began);
        let watched = watch(&starts, Limit { allow, per: MINUTE }, (from, over));
        passed &= watched.ruling.over.is_empty() && watched.used >= LEAST;
        line += &format!(
            "{allow}/min: {} starts, {} windows over, {:.1} % used; ",
            watched.ruling.starts,
            watched.ruling.over.len(),
            watched.used * 100.0
        );
        rows[format!("{allow}/min")] = watched.figures();
    }
    line += &format!("{}", strikes.figures());
    let figures = json!({
        "workers": workers, "limits": rows, "strikes": strikes.figures(), "stuck_workers": stuck,
        "receiver_stall_ms": stall.as_millis(),
    });
    Ok(Shown { passed, line, figures })
}
