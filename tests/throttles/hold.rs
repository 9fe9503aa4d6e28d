//! An upstream says 429 with `Retry-After` once, under full load: no calls come until then, and no burst
//! comes afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use crate::fleet::{Chains, Fleet, Ledger, times, watch};
use crate::support::receiver::Reply;
use crate::support::windows::{Limit, judge};
use crate::{Shown, Task};

const LIMIT: Limit = Limit { allow: 120, per: Duration::from_secs(60) };
const HELD: Duration = Duration::from_secs(20);
/// Calls that were on their way when the upstream said 429 may come in for this time.
const ON_THE_WAY: Duration = Duration::from_millis(250);
/// When it is watched whether they come in a burst afterwards.
const FIRST: Duration = Duration::from_secs(10);
const WORKERS: usize = 3;

pub(super) async fn run(_: Task) -> anyhow::Result<Shown> {
    let text = "[throttles.up]\nallow = 120\nper = \"60s\"\n\
                [queues.up]\nthrottle = \"up\"\nconcurrency = 8\nprefetch = 8\n\
                [kinds.up]\nqueue = \"up\"\nevery = \"1s\"\ntimeout = \"10s\"\n";
    let stop = Arc::new(AtomicBool::new(false));
    let said = stop.clone();
    let script = Arc::new(move |_: &_| match said.swap(false, Ordering::Relaxed) {
        true => Reply { after: Duration::from_millis(20), status: 429, retry_after: Some(HELD.as_secs()) },
        false => Reply::ok(Duration::from_millis(20)),
    });
    let fleet = Fleet::start(Ledger::Postgres, WORKERS, (text, &["up"]), script, &[Chains::of("up", 60)]).await?;
    fleet.consumed_by("up", WORKERS).await?;
    sleep(Duration::from_secs(20)).await;
    stop.store(true, Ordering::Relaxed);
    fleet
        .until("it has said so", |receiver| receiver.count(|call| call.answered.is_some() && call.status == 429) > 0)
        .await?;
    sleep(HELD + LIMIT.per + Duration::from_secs(30)).await;
    let (calls, stuck) = fleet.end().await;

    let starts = times(&calls, |_| true);
    let answered = calls.iter().filter(|call| call.status == 429).find_map(|call| call.answered).unwrap_or_default();
    let (ruling, until) = (judge(&starts, LIMIT), answered + HELD);
    let within = |from: Duration, to: Duration| starts.iter().filter(|at| **at > from && **at <= to).count();
    let on_the_way = within(answered, answered + ON_THE_WAY);
    let held = within(answered + ON_THE_WAY, until);
    let first = within(until, until + FIRST);
    let before = within(answered.saturating_sub(FIRST), answered);
    let began = starts.iter().copied().find(|at| *at > until).map(|at| (at - until).as_secs_f64());
    // As many as ever from when it is over being gentle.
    let back = watch(&starts, LIMIT, (until + LIMIT.per, until + LIMIT.per + Duration::from_secs(25))).used;
    let gently = first > 0 && first * 2 <= before;
    let passed = stuck == 0 && ruling.over.is_empty() && held == 0 && gently && back > 0.9;
    let line = format!(
        "{on_the_way} on their way, {held} calls while held; the first {:.2} s after it, {first} in {} s instead of {before}; \
         {} windows over; a minute later {:.1} % used",
        began.unwrap_or(f64::NAN),
        FIRST.as_secs(),
        ruling.over.len(),
        back * 100.0
    );
    let figures = json!({
        "workers": WORKERS, "starts": starts.len(), "on_the_way": on_the_way, "while_held": held,
        "first_after_s": began, "in_the_first_10_s": first, "in_the_10_s_before": before,
        "windows_over": ruling.over.len(), "used_a_minute_later": back, "stuck_workers": stuck,
    });
    Ok(Shown { passed, line, figures })
}
