//! Re-creates messages that were lost.
//!
//! Every chain has a time at which to look after it: some slack after it is due. A chain that has
//! been claimed by then is left alone; of the others it must be told whether the message is lost
//! or just waits its turn. Messages enter a platform queue when they are due, so once the queue
//! has delivered something that was due later, or is empty, the message is lost and sent again:
//! the same identity, so that a wrong guess costs one surplus message and never a second rotation.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio_util::sync::CancellationToken;

use super::Core;
use crate::broker::Depth;
use crate::clock::Time;
use crate::job::Envelope;
use crate::ledger::{Hint, LedgerError, LookAgain, Overdue};
use crate::schedule::spread;
use crate::telemetry::Count;

/// Chains looked after in one sweep.
const PER_SWEEP: u32 = 5_000;
/// Chains read at a time while all messages are re-created.
const PER_PAGE: u32 = 1_000;
/// Publishes in flight.
const IN_FLIGHT: usize = 128;
/// A broker that keeps nothing gets what other programs put in the ledger this often.
const LISTEN: Duration = Duration::from_secs(1);
/// Small backlogs are not stretched over the whole window: this much of it for each chain.
const SHARE: Duration = Duration::from_millis(5);
/// The longest pause between two looks at the same chain.
const LONGEST_LOOK: Duration = Duration::from_secs(3_600);
/// A chain whose kind is not configured is looked at this often, in case it is again.
const UNCONFIGURED: Duration = Duration::from_secs(300);
/// Records of attempts deleted at a time, few enough that no claim waits long behind it.
const PER_PRUNE: u32 = 1_000;

/// Sweeps until `shutdown`.
pub async fn run(core: Arc<Core>, shutdown: CancellationToken) {
    let keeps = core.dispatch.broker.keeps_messages();
    let work = async {
        if !keeps {
            report("re-create the messages of all chains", re_create(&core).await);
        }
        // Nobody else sets it.
        let _ = core.ready.set(());
        let mut jobs_up_to = 0;
        let every = if keeps { core.catch_up.every } else { core.catch_up.every.min(LISTEN) };
        // The first look waits a moment, so that what the queues hold can show itself.
        let mut pause = LISTEN;
        loop {
            tokio::time::sleep(pause).await;
            pause = every;
            report("catch up", sweep(&core).await);
            if !keeps {
                report("take up kept jobs", take_up_jobs(&core, &mut jobs_up_to).await);
            }
            report("prune the history", prune(&core).await);
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

fn report<E: std::fmt::Display>(what: &str, result: Result<(), E>) {
    if let Err(error) = result {
        tracing::warn!(%error, "failed to {what}; the next sweep tries again");
    }
}

/// Deletes what is older than the history to be kept.
async fn prune(core: &Core) -> Result<(), LedgerError> {
    let before = core.ledger.now() - core.history;
    while core.ledger.prune(before, PER_PRUNE).await? > 0 {}
    Ok(())
}

/// What catch-up does about a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// Nothing for now; look again then.
    Wait { until: Time },
    /// Send its message, and look again some slack after it can have arrived.
    Send { due: Time, look_at: Time },
}

/// Decides about a chain (pure). `depth` and `frontier` are its queue's, `held` whether this
/// worker has its message in hand, and `offset` its place in the spread.
fn plan(
    chain: &Overdue,
    depth: Depth,
    frontier: Time,
    held: bool,
    now: Time,
    slack: Duration,
    offset: Duration,
) -> Plan {
    if chain.lease_until > now {
        return Plan::Wait { until: chain.lease_until + slack };
    }
    let waits_its_turn = chain.sent && depth.ready > 0 && frontier < chain.watch_at;
    if held || waits_its_turn {
        return Plan::Wait { until: now + slack };
    }
    let due = chain.hint.due.max(now + offset);
    let patience = slack.saturating_mul(1 << chain.looks.min(16)).min(LONGEST_LOOK.max(slack));
    Plan::Send { due, look_at: due + patience }
}

/// One look at all chains whose time has come.
async fn sweep(core: &Core) -> Result<(), String> {
    let now = core.ledger.now();
    let queues: Vec<String> = core.queues.keys().cloned().collect();
    let overdue = core.ledger.overdue(queues, now, PER_SWEEP).await.map_err(|error| error.to_string())?;
    if overdue.is_empty() {
        return Ok(());
    }
    let mut depths: HashMap<&str, Option<Depth>> = HashMap::new();
    for chain in &overdue {
        let queue = chain.hint.queue.as_str();
        if !depths.contains_key(queue) {
            let depth = core.dispatch.broker.depth(queue).await;
            // A queue that somebody has deleted must not keep the others from being looked after.
            let told = |error: &_| tracing::warn!(queue, %error, "catch-up cannot look at a queue; it looks again");
            depths.insert(queue, depth.inspect_err(told).ok());
        }
    }
    let window = core.catch_up.spread.min(SHARE * overdue.len() as u32);
    let plans: Vec<Plan> = (overdue.iter().enumerate())
        .map(|(n, chain)| {
            if !core.kinds.contains_key(&chain.hint.kind) {
                // Its message would only be quarantined, again and again.
                return Plan::Wait { until: now + UNCONFIGURED };
            }
            let queue = &chain.hint.queue;
            let Some(depth) = depths.get(queue.as_str()).copied().flatten() else {
                return Plan::Wait { until: now + core.catch_up.slack };
            };
            let frontier = core.queues.get(queue).map_or(now, |queue| queue.frontier());
            let offset = spread(n, overdue.len(), window);
            plan(chain, depth, frontier, core.holds(chain.hint.epoch), now, core.catch_up.slack, offset)
        })
        .collect();
    let looks = overdue.iter().zip(&plans).map(|(chain, plan)| {
        let (to, looks) = match plan {
            Plan::Wait { until } => (*until, chain.looks),
            Plan::Send { look_at, .. } => (*look_at, chain.looks + 1),
        };
        LookAgain { epoch: chain.hint.epoch, from: chain.watch_at, to, looks }
    });
    // Of several workers that look at the same chain, the one that writes first sends.
    let mine = core.ledger.look_again(looks.collect()).await.map_err(|error| error.to_string())?;
    let sends = overdue.into_iter().zip(plans).zip(mine).filter_map(|((chain, plan), mine)| match plan {
        Plan::Send { due, .. } if mine => Some((chain.hint, due)),
        _ => None,
    });
    let sends: Vec<(Hint, Time)> = sends.collect();
    if !sends.is_empty() {
        tracing::info!(chains = sends.len(), over = ?window, "sending messages again for chains that are overdue");
    }
    send_all(core, sends).await;
    Ok(())
}

/// Publishes messages for chains, each due at the given time.
async fn send_all(core: &Core, sends: Vec<(Hint, Time)>) {
    stream::iter(sends)
        .for_each_concurrent(IN_FLIGHT, |(hint, due)| async move {
            let envelope = Envelope { due: Some(due), ..hint.envelope(core.ledger.id()) };
            match core.dispatch.send(&envelope, &hint.queue, core.dispatch.clock.now()).await {
                Ok(()) => {
                    core.telemetry.count(Count::Resent);
                    core.ledger.mark_sent(hint.sent());
                }
                Err(error) => tracing::warn!(
                    kind = hint.kind, key = hint.key, epoch = hint.epoch, tick = hint.tick, %error,
                    "catch-up could not send a message; it is looked after again"
                ),
            }
        })
        .await;
}

/// Sends the messages of all chains, for a broker that begins empty: those due by now spread over
/// the window, the others for their own time.
async fn re_create(core: &Core) -> Result<(), String> {
    let census = core.ledger.census(Duration::ZERO).await.map_err(|error| error.to_string())?;
    let overdue: i64 = census.queues.iter().map(|queue| queue.due + queue.running).sum();
    let overdue = usize::try_from(overdue).unwrap_or(0);
    let window = core.catch_up.spread.min(SHARE.saturating_mul(u32::try_from(overdue).unwrap_or(u32::MAX)));
    let queues: Vec<String> = core.queues.keys().cloned().collect();
    let (start, mut after, mut nth, mut total) = (core.ledger.now(), 0, 0, 0);
    loop {
        let page = core.ledger.messages(queues.clone(), after, PER_PAGE).await.map_err(|error| error.to_string())?;
        let Some(last) = page.last() else { break };
        after = last.epoch;
        total += page.len();
        let configured = page.into_iter().filter(|hint| core.kinds.contains_key(&hint.kind));
        let sends = configured.map(|hint| {
            let due = hint.due;
            if due > start {
                return (hint, due);
            }
            nth += 1;
            (hint, start + spread(nth - 1, overdue, window))
        });
        send_all(core, sends.collect()).await;
    }
    if total > 0 {
        tracing::info!(chains = total, overdue, over = ?window, "re-created the messages of all chains");
    }
    Ok(())
}

/// Publishes one-off jobs that other programs have put in the ledger, or that an earlier run left.
async fn take_up_jobs(core: &Core, up_to: &mut i64) -> Result<(), String> {
    loop {
        let jobs = core.ledger.kept_jobs(*up_to, PER_PAGE).await.map_err(|error| error.to_string())?;
        if jobs.is_empty() {
            return Ok(());
        }
        for job in jobs {
            let sent = match Envelope::decode(&job.body) {
                Ok(envelope) => {
                    let queue = envelope.queue.clone().unwrap_or_default();
                    core.dispatch.send(&envelope, &queue, core.dispatch.clock.now()).await
                }
                Err(bad) => {
                    tracing::error!(number = job.number, %bad, "a job kept in the ledger cannot be read");
                    Ok(())
                }
            };
            if let Err(error) = sent {
                tracing::error!(number = job.number, %error, "a job kept in the ledger cannot be sent");
            }
            *up_to = job.number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(secs: i64) -> Time {
        Time::from_millis(secs * 1_000)
    }

    fn chain(sent: bool, watch_at: i64, looks: u32, lease_until: i64) -> Overdue {
        let hint =
            Hint { kind: "k".into(), key: "x".into(), queue: "q".into(), epoch: 1, tick: 1, attempt: 1, due: at(100) };
        Overdue { hint, sent, watch_at: at(watch_at), looks, lease_until: at(lease_until) }
    }

    #[test]
    fn a_table_of_plans() {
        let slack = Duration::from_secs(30);
        let send = |due, look_at| Plan::Send { due: at(due), look_at: at(look_at) };
        let wait = |until| Plan::Wait { until: at(until) };
        let empty = Depth::default();
        let full = Depth { ready: 5, consumers: 1 };
        let table = [
            ("queue empty: lost", chain(true, 130, 0, 0), empty, at(0), false, send(203, 233)),
            ("queue past it: lost", chain(true, 130, 0, 0), full, at(130), false, send(203, 233)),
            ("queue not there yet: waits its turn", chain(true, 130, 0, 0), full, at(129), false, wait(230)),
            ("never sent: sent whatever the queue holds", chain(false, 130, 0, 0), full, at(0), false, send(203, 233)),
            ("in hand", chain(true, 130, 0, 0), empty, at(0), true, wait(230)),
            ("being run", chain(true, 130, 0, 250), empty, at(0), false, wait(280)),
            ("lease over", chain(true, 130, 0, 199), empty, at(0), false, send(203, 233)),
            ("sent again before: more patience", chain(true, 130, 2, 0), empty, at(0), false, send(203, 323)),
            ("patience has an end", chain(true, 130, 60, 0), empty, at(0), false, send(203, 3_803)),
        ];
        for (label, chain, depth, frontier, held, expected) in table {
            let plan = plan(&chain, depth, frontier, held, at(200), slack, Duration::from_secs(3));
            assert_eq!(plan, expected, "{label}");
        }
    }

    #[test]
    fn what_is_not_due_yet_is_sent_for_its_time() {
        let mut chain = chain(false, 50, 0, 0);
        chain.hint.due = at(900);
        let plan = plan(&chain, Depth::default(), at(0), false, at(200), Duration::from_secs(30), Duration::ZERO);
        assert_eq!(plan, Plan::Send { due: at(900), look_at: at(930) });
    }
}
