//! A fair queue: what a flood of one tenant does to the others, and the shares of tenants with different weights.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use roundelay::broker::rabbit::RabbitBroker;
use roundelay::broker::{Broker, Destination, Message};
use roundelay::clock::Entropy;
use roundelay::job::Envelope;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::fleet::{Fleet, Ledger};
use crate::support::receiver::{Call, Reply};
use crate::support::windows::quantile;
use crate::{Shown, Task};

const WORKERS: usize = 3;
const PLACES: usize = 8;
/// How long a run takes.
const RUN: Duration = Duration::from_millis(50);
const FLOOD: usize = 100_000;
/// Tenants beside the one that floods, each with a job now and then.
const OTHERS: usize = 99;
/// How far apart the jobs of each are, in the mean.
const APART: Duration = Duration::from_secs(5);
/// A job of another tenant is late by a run, at most, and what the engine itself needs: most are later by less.
const SLOT_AND_RUN: Duration = Duration::from_millis(150);
/// In flight while jobs are published.
const IN_FLIGHT: usize = 256;
const WEIGHTS: [(&str, u32); 3] = [("light", 1), ("middle", 2), ("heavy", 5)];
/// How far a share may be off.
const OFF: f64 = 0.02;

fn config(tenants: &str) -> String {
    format!(
        "{tenants}[queues.work]\nfair = \"owner\"\nconcurrency = {PLACES}\nprefetch = {}\n\
         [kinds.job]\nqueue = \"work\"\ntimeout = \"30s\"\n",
        PLACES * 2
    )
}

async fn publish(broker: &RabbitBroker, owner: &str, id: String) -> anyhow::Result<()> {
    let job = Envelope::job("job", &id, json!(null), id.clone());
    let job = Envelope { owner: Some(owner.to_owned()), ..job };
    broker.publish(Message::new(Destination::Queue("work".into()), &job)).await?;
    Ok(())
}

/// Publishes jobs of the others, now and then one, until `until`; answers when which was sent.
async fn trickle(
    fleet: &Fleet,
    broker: &RabbitBroker,
    name: &str,
    until: Instant,
    dice: Entropy,
) -> anyhow::Result<Vec<(String, Duration)>> {
    let mut sent = Vec::new();
    let apart = APART / OTHERS as u32;
    loop {
        sleep(dice.between(apart / 2, apart * 3 / 2)).await;
        if Instant::now() >= until {
            return Ok(sent);
        }
        let id = format!("{name}-{}", sent.len());
        sent.push((id.clone(), fleet.receiver.now()));
        publish(broker, &format!("other-{}", dice.below(OTHERS)), id).await?;
    }
}

/// How late the jobs came that were sent then, in milliseconds; none for one that did not come.
fn lateness(calls: &BTreeMap<&str, Duration>, sent: &[(String, Duration)]) -> Vec<Option<f64>> {
    let late =
        |(id, at): &(String, Duration)| Some(calls.get(id.as_str())?.saturating_sub(*at).as_secs_f64() * 1_000.0);
    sent.iter().map(late).collect()
}

/// Jobs of 99 tenants, before, while and after another one has 100,000 at once.
pub(super) async fn flood(task: Task) -> anyhow::Result<Shown> {
    let script = Arc::new(|_: &Call| Reply::ok(RUN));
    let fleet = Fleet::start(Ledger::Postgres, WORKERS, (&config(""), &["job"]), script, &[]).await?;
    fleet.consumed_by("work", WORKERS).await?;
    let publisher = fleet.publisher().await?;
    let dice = |n| Entropy::seeded(task.seed + n);
    let (calm, storm) = (task.length / 5, task.length / 2);

    let before = trickle(&fleet, &publisher, "before", Instant::now() + calm, dice(1)).await?;
    let begun = fleet.receiver.now();
    let pour = async {
        let jobs = stream::iter(0..FLOOD).map(|n| publish(&publisher, "flood", format!("flood-{n}")));
        jobs.buffer_unordered(IN_FLIGHT).try_collect::<()>().await?;
        anyhow::Ok(fleet.receiver.now() - begun)
    };
    let during = trickle(&fleet, &publisher, "during", Instant::now() + storm, dice(2));
    let (poured, during) = tokio::try_join!(pour, during)?;
    let flooded = fleet.receiver.count(|call| call.id.starts_with("flood"));
    fleet.operate(&["retire", "--owner", "flood", "--yes"]).await?;
    let after = trickle(&fleet, &publisher, "after", Instant::now() + calm, dice(3)).await?;
    sleep(Duration::from_secs(5)).await;
    let (calls, stuck) = fleet.end().await;

    let at: BTreeMap<&str, Duration> = calls.iter().map(|call| (call.id.as_str(), call.at)).collect();
    let doubled = calls.len() - at.len();
    let (mut passed, mut line, mut rows) = (stuck == 0 && doubled == 0, String::new(), json!({}));
    for (name, sent) in [("before", &before), ("during", &during), ("after", &after)] {
        let late = lateness(&at, sent);
        let came: Vec<f64> = late.iter().copied().flatten().collect();
        let [p50, p99, most] = [0.5, 0.99, 1.0].map(|of| quantile(&came, of).unwrap_or_default());
        passed &= came.len() == sent.len() && p99 <= SLOT_AND_RUN.as_secs_f64() * 1_000.0;
        line += &format!("{name}: {} jobs {p50:.0} ms late (p50), {p99:.0} (p99), {most:.0} at most; ", came.len());
        rows[name] = json!({ "sent": sent.len(), "came": came.len(), "p50_ms": p50.round(), "p99_ms": p99.round(), "most_ms": most.round() });
    }
    passed &= flooded > PLACES;
    line += &format!(
        "{flooded} of the flood ran meanwhile, which was published within {:.0} s; {doubled} ran twice",
        poured.as_secs_f64()
    );
    let figures = json!({ "workers": WORKERS, "flood": FLOOD, "tenants": OTHERS + 1, "lateness": rows,
        "flood_ran": flooded, "published_s": poured.as_secs(), "doubled": doubled, "stuck_workers": stuck });
    Ok(Shown { passed, line, figures })
}

/// Three tenants with weights 1, 2 and 5, each with more jobs than can run, one tenant's behind those of the others.
pub(super) async fn shares(task: Task) -> anyhow::Result<Shown> {
    let tenants: String =
        WEIGHTS.iter().map(|(name, weight)| format!("[tenants.{name}]\nweight = {weight}\n")).collect();
    let script = Arc::new(|_: &Call| Reply::ok(RUN));
    let fleet = Fleet::start(Ledger::Postgres, WORKERS, (&config(&tenants), &["job"]), script, &[]).await?;
    fleet.consumed_by("work", WORKERS).await?;
    let publisher = fleet.publisher().await?;
    // As many as can run in this time, of each.
    let many = (WORKERS * PLACES) * (task.length.as_millis() / RUN.as_millis()) as usize;
    for (name, _) in WEIGHTS {
        let jobs = stream::iter(0..many).map(|n| publish(&publisher, name, format!("{name}-{n}")));
        jobs.buffer_unordered(IN_FLIGHT).try_collect::<()>().await?;
    }
    sleep(Duration::from_secs(2)).await;
    let from = fleet.receiver.now();
    sleep(task.length / 5).await;
    let to = fleet.receiver.now();
    let (calls, stuck) = fleet.end().await;
    let count = |name: &str| {
        calls.iter().filter(|call| call.id.starts_with(name) && (from..to).contains(&call.at)).count() as f64
    };
    let (all, weights): (f64, u32) =
        (WEIGHTS.iter().map(|(name, _)| count(name)).sum(), WEIGHTS.iter().map(|(_, w)| w).sum());
    let (mut passed, mut line, mut rows) = (stuck == 0 && all > 0.0, String::new(), Value::Null);
    for (name, weight) in WEIGHTS {
        let (share, meant) = (count(name) / all, f64::from(weight) / f64::from(weights));
        passed &= (share - meant).abs() <= OFF;
        line += &format!("{name}: {:.1} % of the starts, {:.1} meant; ", share * 100.0, meant * 100.0);
        rows[name] = json!({ "share": share, "meant": meant });
    }
    line += &format!("{all} starts in {:.0} s", (to - from).as_secs_f64());
    Ok(Shown {
        passed,
        line,
        figures: json!({ "workers": WORKERS, "starts": all, "shares": rows, "stuck_workers": stuck }),
    })
}
