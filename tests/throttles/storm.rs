//! Everything at once: workers are killed and frozen, PostgreSQL is killed and comes back after some seconds, and so
//! does the broker. No window holds too many, and the limits are used in the time in which a worker and the ledger are
//! up. The time without the broker is not taken off.

use std::sync::Arc;
use std::time::Duration;

use roundelay::clock::Entropy;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use crate::fleet::{Chains, Fleet, Ledger, times};
use crate::services::Service;
use crate::strikes::strike;
use crate::support::ground::{Ground, Schema, Vhost};
use crate::support::receiver::Reply;
use crate::support::windows::{Limit, judge, up, used_in};
use crate::{Shown, Task};

/// Each kind, whose queue and throttle have its name too, and its limit.
const LIMITS: [(&str, Limit, &str); 2] = [
    ("slower", Limit { allow: 37, per: Duration::from_secs(60) }, "60s"),
    ("faster", Limit { allow: 5, per: Duration::from_secs(1) }, "1s"),
];
const WORKERS: usize = 3;
/// Each is due again a second after its end, so there are always some that wait.
const CHAINS: usize = 60;
/// How long a run takes.
const WORK: Duration = Duration::from_millis(100);
/// Of each limit so much must be used.
const LEAST: f64 = 0.95;
/// How long a service runs until it is killed, and then is not started, in milliseconds. A broker's start takes some
/// seconds, too.
const SERVER: [(u64, u64); 2] = [(15_000, 25_000), (1_500, 4_000)];
const BROKER: [(u64, u64); 2] = [(18_000, 30_000), (5_000, 7_000)];
/// Longer pauses between starts are told of, by the distance that starts have.
const GAP: u32 = 3;

type Span = (Duration, Duration);

pub(super) async fn run(ledger: Ledger, task: Task) -> anyhow::Result<Shown> {
    let services = tempfile::tempdir()?;
    let broker = Service::start("rabbitmq", &services, &["--version", "4.3"]).await?;
    let server = match ledger {
        Ledger::Postgres => Some(Service::start("postgres", &services, &[]).await?),
        Ledger::Sqlite => None,
    };
    let url = server.as_ref().map(|server| server.env("DATABASE_URL")).transpose()?;
    let ground = Ground {
        vhost: Some(Vhost::existing("%2f", broker.env("AMQP_URL")?, broker.env("RABBITMQ_MANAGEMENT_URL")?)),
        schema: url.clone().map(Schema::existing),
        folder: tempfile::tempdir()?,
    };
    let table = |(name, limit, per): &(&str, Limit, &str)| {
        format!(
            "[throttles.{name}]\nallow = {}\nper = \"{per}\"\n\
             [queues.{name}]\nthrottle = \"{name}\"\nconcurrency = 4\nprefetch = 4\n\
             [kinds.{name}]\nqueue = \"{name}\"\nevery = \"1s\"\ntimeout = \"10s\"\n",
            limit.allow
        )
    };
    let text = format!(
        "catch_up = {{ every = \"1s\", slack = \"30s\", spread = \"2s\" }}\n{}",
        LIMITS.iter().map(table).collect::<String>()
    );
    let script = Arc::new(|_: &_| Reply::ok(WORK));
    let kinds = LIMITS.map(|(name, ..)| name);
    let chains = kinds.map(|name| Chains::of(name, CHAINS));
    let fleet = Fleet::on(ground, WORKERS, (&text, &kinds), script, &chains).await?;
    for name in kinds {
        fleet.consumed_by(name, WORKERS).await?;
        fleet.until("the first call", |receiver| receiver.count(|call| call.kind == name) > 0).await?;
    }
    // A throttle that is new begins with what it may have had before.
    sleep(Duration::from_secs(2)).await;
    let (began, until) = (fleet.receiver.now(), Instant::now() + task.length);
    let dice = Entropy::seeded(task.seed);
    let down = async {
        let Some((server, url)) = server.as_ref().zip(url.as_deref()) else { return Ok(Vec::new()) };
        bring_down(server, &dice, SERVER, until, &fleet, async || answers(url).await).await
    };
    let away = bring_down(&broker, &dice, BROKER, until, &fleet, async || ());
    let (strikes, down, away) = tokio::join!(strike(&fleet, task.seed, task.length), down, away);
    let (down, away) = (down?, away?);
    let (over, stall, idle) = (began + task.length, fleet.receiver.stall(), fleet.idle());
    let (calls, stuck) = fleet.end().await;
    let out: Vec<Span> = down.iter().chain(&idle).copied().collect();

    let (mut passed, mut line, mut rows) = (stuck == 0, String::new(), json!({}));
    for (name, limit, per) in LIMITS {
        let starts = times(&calls, |call| call.kind == name);
        // From a start on, so that none is counted by chance.
        let from = starts.iter().copied().find(|at| *at >= began).unwrap_or(began);
        let (ruling, used) = (judge(&starts, limit), used_in(&starts, limit, (from, over), &out));
        passed &= ruling.over.is_empty() && used >= LEAST;
        let label = format!("{} in {per}", limit.allow);
        line += &format!(
            "{label}: {} starts, {} windows over, {:.1} % used; ",
            ruling.starts,
            ruling.over.len(),
            used * 100.0
        );
        rows[label] = json!({
            "starts": ruling.starts, "windows_over": ruling.over.len(), "nearest_ms": ruling.nearest.map(f64::round),
            "used": (used * 1_000.0).round() / 1_000.0, "pauses_ms": pauses(&starts, limit, (from, over)),
        });
    }
    let seconds = |spans: &[Span]| (task.length - up((began, over), spans)).as_secs_f64();
    line += &format!(
        "{}, ledger killed {} times ({:.1} s down), broker {} ({:.1} s)",
        strikes.figures(),
        down.len(),
        seconds(&down),
        away.len(),
        seconds(&away)
    );
    let figures = json!({
        "workers": WORKERS, "limits": rows, "strikes": strikes.figures(), "struck_ms": strikes.when(),
        "ledger_down_ms": millis(&down), "broker_away_ms": millis(&away), "no_worker_ms": millis(&idle),
        "began_ms": began.as_millis(), "stuck_workers": stuck, "receiver_stall_ms": stall.as_millis(),
    });
    Ok(Shown { passed, line, figures })
}

/// Kills a service now and then and starts it again, until then; answers when it was away, until it `answers`.
async fn bring_down(
    service: &Service,
    dice: &Entropy,
    [between, away]: [(u64, u64); 2],
    until: Instant,
    fleet: &Fleet,
    answers: impl AsyncFn(),
) -> anyhow::Result<Vec<Span>> {
    let millis = |(low, high): (u64, u64)| dice.between(Duration::from_millis(low), Duration::from_millis(high));
    let mut spans = Vec::new();
    loop {
        let (pause, away) = (millis(between), millis(away));
        if Instant::now() + pause >= until {
            sleep_until(until).await;
            return Ok(spans);
        }
        sleep(pause).await;
        // The script takes its time before it kills, and the ledger is up until then.
        let dies = async {
            if let Ok(url) = service.env("DATABASE_URL")
                && let Ok((_client, connection)) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await
            {
                let _ = connection.await;
            }
            fleet.receiver.now()
        };
        let (killed, from) = tokio::join!(service.call("kill", &[]), dies);
        killed?;
        sleep(away).await;
        let back = async {
            answers().await;
            fleet.receiver.now()
        };
        let (started, back) = tokio::join!(service.call("start", &[]), back);
        started?;
        // What has nothing to ask is back when its start is done.
        let is_server = service.env("DATABASE_URL").is_ok();
        spans.push((from, if is_server { back } else { fleet.receiver.now() }));
    }
}

/// Returns when the server answers.
async fn answers(url: &str) {
    loop {
        if let Ok((client, connection)) = tokio_postgres::connect(url, tokio_postgres::NoTls).await {
            let task = tokio::spawn(connection);
            let answered = client.simple_query("SELECT 1").await.is_ok();
            task.abort();
            if answered {
                return;
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// When starts were farther apart than usual, and by how much.
fn pauses(starts: &[Duration], limit: Limit, (from, to): Span) -> Vec<Value> {
    let usual = limit.per / limit.allow as u32;
    let pairs = starts.iter().zip(starts.iter().skip(1)).filter(|(at, _)| **at >= from && **at < to);
    let long = pairs.filter(|(at, next)| **next - **at > usual * GAP);
    long.map(|(at, next)| json!([at.as_millis(), (*next - *at).as_millis()])).collect()
}

fn millis(spans: &[Span]) -> Vec<Value> {
    spans.iter().map(|(from, to)| json!([from.as_millis(), to.as_millis()])).collect()
}
