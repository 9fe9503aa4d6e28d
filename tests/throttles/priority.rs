//! Jobs on demand share a throttle with a long backlog, and go first: each waits for one slot. When they come in
//! floods, the backlog gets its least share all the same.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use roundelay::clock::Entropy;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::fleet::{Fleet, Ledger, publish, times, watch};
use crate::support::receiver::Reply;
use crate::support::windows::{Limit, quantile};
use crate::{Shown, Task};

const MINUTE: Duration = Duration::from_secs(60);
/// How many starts a minute the two throttles allow.
const RATES: [usize; 2] = [60, 5];
const BACKLOG: usize = 10_000;
const WORKERS: usize = 3;
/// A job on demand waits no longer than for the next slot and this.
const BEYOND: Duration = Duration::from_millis(100);
/// The backlog gets one slot in this number.
const LEAST_SHARE: usize = 8;

/// How far slots of such a throttle are apart: those of a minute and a second.
fn spacing(allow: usize) -> Duration {
    (MINUTE + Duration::from_secs(1)) / allow as u32
}

pub(super) async fn run(task: Task) -> anyhow::Result<Shown> {
    let table = |allow: &usize| {
        let mut text = format!("[throttles.at{allow}]\nallow = {allow}\nper = \"60s\"\n");
        for (name, priority) in [("tracked", 0), ("demand", 10)] {
            text += &format!(
                "[queues.{name}{allow}]\nthrottle = \"at{allow}\"\npriority = {priority}\nconcurrency = 8\nprefetch = 8\n\
                 [kinds.{name}{allow}]\nqueue = \"{name}{allow}\"\ntimeout = \"10s\"\n"
            );
        }
        text
    };
    let text: String = RATES.iter().map(table).collect();
    let kinds: Vec<String> =
        RATES.iter().flat_map(|allow| ["tracked", "demand"].map(|n| format!("{n}{allow}"))).collect();
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    let script = Arc::new(|_: &_| Reply::ok(Duration::from_millis(20)));
    let fleet = Fleet::start(Ledger::Postgres, WORKERS, (&text, &kinds), script, &[]).await?;
    let publisher = fleet.publisher().await?;
    for allow in RATES {
        let name = format!("tracked{allow}");
        let jobs = stream::iter(0..BACKLOG).map(|n| {
            let (publisher, name) = (&publisher, &name);
            async move { publish(publisher, name, name, &format!("{name}-{n}")).await }
        });
        jobs.buffer_unordered(256).try_collect::<()>().await?;
        fleet.consumed_by(&name, WORKERS).await?;
        fleet.consumed_by(&format!("demand{allow}"), WORKERS).await?;
        fleet.until("the backlog moves", |receiver| receiver.count(|call| call.kind == name) > 0).await?;
    }

    // Now and then one, so far apart that each finds the next slot free.
    let until = Instant::now() + task.length;
    let trickle = |allow: usize| {
        let (fleet, publisher, dice) = (&fleet, &publisher, Entropy::seeded(task.seed + allow as u64));
        async move {
            let (kind, mut sent) = (format!("demand{allow}"), Vec::new());
            loop {
                let apart = spacing(allow);
                sleep(dice.between(apart.mul_f64(1.5), apart * 3)).await;
                if Instant::now() + apart >= until {
                    return anyhow::Ok(sent);
                }
                let id = format!("{kind}-{}", sent.len());
                sent.push((id.clone(), fleet.receiver.now()));
                publish(publisher, &kind, &kind, &id).await?;
            }
        }
    };
    let (fast, slow) = tokio::try_join!(trickle(RATES[0]), trickle(RATES[1]))?;
    sleep(spacing(RATES[1])).await;

    // A flood: more than all slots until the end.
    let (length, allow) = (task.length * 2 / 5, RATES[0]);
    let kind = format!("demand{allow}");
    let many = allow * length.as_secs() as usize / 60 + 2 * allow;
    let flood = stream::iter(0..many).map(|n| {
        let (publisher, kind) = (&publisher, &kind);
        async move { publish(publisher, kind, kind, &format!("flood-{n}")).await }
    });
    flood.buffer_unordered(256).try_collect::<()>().await?;
    let from = fleet.receiver.now() + spacing(allow) * 2;
    sleep(length).await;
    let to = fleet.receiver.now();
    let (calls, stuck) = fleet.end().await;

    let (mut passed, mut line, mut rows) = (stuck == 0, String::new(), json!({}));
    for (allow, sent) in [(RATES[0], fast), (RATES[1], slow)] {
        let kinds = [format!("tracked{allow}"), format!("demand{allow}")];
        let starts = times(&calls, |call| kinds.contains(&call.kind));
        let limit = Limit { allow, per: MINUTE };
        let began = starts.first().copied().unwrap_or_default();
        let watched = watch(&starts, limit, (began, to));
        let wait = |(id, at): &(String, Duration)| {
            let call = calls.iter().find(|call| call.id == *id)?;
            Some((call.at - *at).as_secs_f64() * 1_000.0)
        };
        let waits: Vec<f64> = sent.iter().filter_map(wait).collect();
        let may_be = (spacing(allow) + BEYOND).as_secs_f64() * 1_000.0;
        let (p50, most) = (quantile(&waits, 0.5), quantile(&waits, 1.0));
        let late = waits.iter().filter(|wait| **wait > may_be).count();
        passed &= watched.ruling.over.is_empty() && waits.len() == sent.len() && !waits.is_empty() && late == 0;
        line += &format!(
            "{allow}/min: {} on demand waited {:.0} ms (p50), {:.0} ms at most, may be {may_be:.0}, {} windows over, {:.1} % used; ",
            waits.len(),
            p50.unwrap_or_default(),
            most.unwrap_or_default(),
            watched.ruling.over.len(),
            watched.used * 100.0
        );
        let mut row = watched.figures();
        row["on_demand"] = json!({
            "published": sent.len(), "called": waits.len(), "p50_ms": p50.map(f64::round), "most_ms": most.map(f64::round),
            "may_be_ms": may_be.round(), "later": late,
        });
        rows[format!("{allow}/min")] = row;
    }
    let flooded = |name: &str| {
        let kind = format!("{name}{allow}");
        calls.iter().filter(|call| call.kind == kind && call.at > from && call.at <= to).count()
    };
    let (tracked, demand) = (flooded("tracked"), flooded("demand"));
    // One less where the stretch begins or ends just before its turn.
    passed &= tracked + 1 >= (tracked + demand) / LEAST_SHARE && demand > tracked;
    line += &format!("flooded: {tracked} of {} starts for the backlog", tracked + demand);
    rows["flood"] = json!({ "tracked": tracked, "on_demand": demand });
    let figures = json!({ "workers": WORKERS, "backlog": BACKLOG, "limits": rows, "stuck_workers": stuck });
    Ok(Shown { passed, line, figures })
}
