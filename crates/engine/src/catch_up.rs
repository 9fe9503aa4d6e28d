//! Re-creates messages that were lost.
//!
//! Every chain has a time at which to look after it: some slack after it is due. A chain that has
//! been claimed by then is left alone; of the others it must be told whether the message is lost
//! or just waits its turn. Messages enter a platform queue when they are due, so once the queue
//! has delivered something that was due well after it, or is empty, the message is lost and sent
//! again: the same identity, so that a wrong guess costs one surplus message and never a second
//! rotation.
//!
//! Many at once are spread over a window, so that the service that handlers call is not flooded. More than
//! one look holds make a wave: look follows look at an even rate, which the workers share.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use parking_lot::Mutex;
use roundelay_broker::{Depth, PublishError};
use roundelay_config::CatchUpSettings;
use roundelay_ledger::{ClaimId, Hint, Holder, LedgerError, LookAgain, OrphanFilter, Overdue, QueueCensus};
use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, TickNo};
use roundelay_model::job::Envelope;
use roundelay_model::schedule::spread;
use tokio::sync::SetOnce;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::catalog::Catalog;
use crate::hand_out;
use crate::in_hand::Hands;
use crate::left_behind::LeftBehind;
use crate::life::Point;
use crate::observing::Observing;
use crate::patient::PatientLedger;
use crate::publishing::Publishing;
use crate::queue::QueueRun;
use crate::queue::Queues;
use crate::resend::{Pages, counted};
use crate::suspects::Suspects;
use crate::telemetry::Count;
use crate::trace::Run;
use crate::vitals::Vitals;

/// What the task needs of the worker.
#[derive(Clone)]
pub(crate) struct Needs {
    pub(crate) ledger: PatientLedger,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) queues: Arc<Queues>,
    pub(crate) publishing: Arc<Publishing>,
    pub(crate) observing: Arc<Observing>,
    pub(crate) in_hand: Arc<Hands>,
    pub(crate) vitals: Arc<Vitals>,
    pub(crate) left: Arc<LeftBehind>,
    pub(crate) suspects: Arc<Suspects>,
    pub(crate) catch_up: CatchUpSettings,
    pub(crate) ready: Arc<SetOnce<()>>,
    pub(crate) late: hand_out::Needs,
}

/// Chains of a queue looked after at a time.
const PER_LOOK: u32 = 1_000;
/// Jobs of the outbox read at a time.
const PER_PAGE: u32 = 1_000;
/// After this many failed publishes the others of a look are not tried: the broker is away.
const MAX_FAILURES: usize = 16;
/// Publishes in flight.
const IN_FLIGHT: usize = 128;
/// A broker that keeps nothing gets what other programs put in the ledger this often.
const LISTEN: Duration = Duration::from_secs(1);
/// Small backlogs are not stretched over the whole window: this much of it for each chain.
pub(crate) const SHARE: Duration = Duration::from_millis(5);
/// What a worker had begun that is gone is sent again within this, however much it is:
const ADOPTED_WITHIN: Duration = Duration::from_millis(500);
/// what it may have had in hand besides, if that is late by this;
const IN_HAND: Duration = Duration::from_secs(1);
/// at once, and once more after this, for claims that were on their way when it ended.
const ADOPTED_AGAIN: Duration = Duration::from_secs(3);
/// A worker that is silent and has not ended goes on to be given messages, above all those between hops, until the
/// broker has missed its heartbeats: this often the others look which chains are late,
const SILENT_EVERY: Duration = Duration::from_secs(1);
/// and for this long.
const SILENT_FOR: Duration = Duration::from_secs(30);
/// What was sent again so lately, and has not been claimed, is left alone: else each worker would send a message of its
/// own.
const SENT_AGAIN: Duration = Duration::from_secs(5);
/// What the ledger or the broker did not answer is asked again after this.
const ADOPTED_LATER: Duration = Duration::from_secs(1);
/// After an outage it is looked this often which messages are unsent,
const UNSENT_EVERY: Duration = Duration::from_secs(1);
/// and those are sent that were due this long ago: what a finish has to send itself, it has sent by then.
const UNSENT_AFTER: Duration = Duration::from_millis(500);
/// The longest pause between two looks at a chain whose message was sent again.
const MAX_LOOK: Duration = Duration::from_secs(3_600);
/// Between two looks at a chain whose message waits its turn, at most: this long for each message that waits. What lies
/// in a short queue may be gone in no time, and then a message of it that was lost would be missed for as long as the
/// queue seemed to need; and to look often at what is in a long one costs much.
const TURN: Duration = Duration::from_millis(30);
/// But no less than this,
const MIN_TURN: Duration = Duration::from_secs(30);
/// and no more.
const MAX_TURN: Duration = Duration::from_secs(600);

/// Sweeps until `shutdown`.
pub async fn run(needs: Needs, tasks: TaskTracker, shutdown: CancellationToken) {
    let keeps = needs.publishing.dispatch.broker.keeps_messages();
    let work = async {
        if !keeps {
            report(&needs, "clear the backlog of fair queues", needs.ledger.clear_backlog().await);
            report(&needs, "re-create the messages of all chains", re_create(&needs).await);
        }
        // No other task sets it.
        let _ = needs.ready.set(());
        let mut jobs_up_to = 0;
        let every = if keeps { needs.catch_up.every } else { needs.catch_up.every.min(LISTEN) };
        // The first round waits a moment, so that what the queues hold can show itself.
        let mut round = Instant::now() + LISTEN;
        let mut waves: BTreeMap<&str, Wave> = BTreeMap::new();
        let mut adoptions = Adoptions::default();
        let mut unsent = Instant::now();
        loop {
            let next = waves.values().map(|wave| wave.next).fold(round, Instant::min);
            let next = adoptions.at.iter().copied().fold(next, Instant::min);
            let next = if needs.publishing.outage.has_unsent(needs.ledger.now()) { next.min(unsent) } else { next };
            tokio::select! {
                biased;
                () = sleep_until(next) => {}
                () = needs.publishing.jobs_kept.notified() => {
                    report(&needs, "take up kept jobs", take_up_jobs(&needs, &mut jobs_up_to).await);
                    continue;
                }
                () = needs.left.orphaned.notified() => {
                    adoptions.asked(Instant::now(), needs.left.silent.swap(false, Ordering::Relaxed) && keeps);
                    continue;
                }
            }
            let at = Instant::now();
            if adoptions.take(at) {
                let (silent, mut failed, mut waits) = (adoptions.silent(at), false, false);
                for (queue, lanes) in &*needs.queues {
                    let adopted = adopt(&needs, queue, lanes, silent, &tasks).await;
                    (failed, waits) = (failed || adopted.is_err(), waits || adopted == Ok(true));
                    report(&needs, &format!("take over what was left on the queue {queue}"), adopted);
                }
                if failed {
                    adoptions.failed(Instant::now());
                } else if waits {
                    adoptions.waits(Instant::now());
                }
            }
            if unsent <= at {
                unsent = at + UNSENT_EVERY;
                if needs.publishing.outage.has_unsent(needs.ledger.now()) && !needs.publishing.outage.lasts() {
                    for queue in needs.queues.keys() {
                        let sent = send_unsent(&needs, queue).await;
                        report(&needs, &format!("send what is unsent on the queue {queue}"), sent);
                    }
                }
            }
            let at = Instant::now();
            let is_round = at >= round;
            for (queue, lanes) in &*needs.queues {
                let wave = waves.get(queue.as_str()).copied();
                if wave.map_or(!is_round, |wave| wave.next > at) {
                    continue;
                }
                let looked = look(&needs, queue, lanes, wave.map(|wave| wave.share)).await;
                match looked {
                    Ok(Some(wave)) => waves.insert(queue, wave),
                    Ok(None) | Err(_) => waves.remove(queue.as_str()),
                };
                report(&needs, &format!("catch up on the queue {queue}"), looked);
            }
            if !is_round {
                continue;
            }
            round = at + every;
            if keeps && !needs.publishing.outage.lasts() {
                report(&needs, "empty the outbox", empty_outbox(&needs).await);
            } else if !keeps {
                report(&needs, "take up kept jobs", take_up_jobs(&needs, &mut jobs_up_to).await);
            }
            report(&needs, "end what was left unfinished", needs.ledger.end_left(PER_LOOK).await);
            report(&needs, "give up claims on chains that do not tick", give_up_at_rest(&needs).await);
        }
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

/// When to take over what is left of workers that are gone (pure).
#[derive(Debug, Default)]
struct Adoptions {
    at: Vec<Instant>,
    /// Until then the broker may give messages to a worker that is silent, or keep what is due: it has just come back.
    silent_until: Option<Instant>,
}

impl Adoptions {
    /// A worker is gone, or silent; or the broker was.
    fn asked(&mut self, now: Instant, silent: bool) {
        self.at.extend([now, now + ADOPTED_AGAIN]);
        if silent {
            let times = |nth: u32| (now + SILENT_EVERY * nth).min(now + SILENT_FOR);
            self.at.extend((1..=SILENT_FOR.as_secs() as u32 / SILENT_EVERY.as_secs() as u32).map(times));
            self.silent_until = Some(now + SILENT_FOR);
        }
    }

    /// Whether what is late may be in the hands of a silent worker, or still with the broker.
    fn silent(&self, now: Instant) -> bool {
        self.silent_until.is_some_and(|until| now <= until)
    }

    /// Whether it is to be done now, once for all that asked for it.
    fn take(&mut self, now: Instant) -> bool {
        let before = self.at.len();
        self.at.retain(|adoption| *adoption > now);
        self.at.len() < before
    }

    /// It was not done: sweeps would come to it only after slack.
    fn failed(&mut self, now: Instant) {
        self.at.push(now + ADOPTED_LATER);
    }

    /// Something was left alone because it was sent so lately.
    fn waits(&mut self, now: Instant) {
        if self.at.is_empty() {
            self.at.push(now + SENT_AGAIN);
        }
    }
}

fn report<T, E: std::fmt::Display>(needs: &Needs, what: &str, result: Result<T, E>) {
    if let Err(error) = result
        && needs.observing.telemetry.notices.begins(&format!("failing to {what}"))
    {
        tracing::warn!(%error, "failed to {what}; the next sweep tries again");
    }
}

/// What catch-up does about a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing for now; look again then.
    Wait {
        /// When.
        until: Time,
    },
    /// Send its message, and look again some slack after it can have arrived.
    Send {
        /// When the message is due.
        due: Time,
        /// When catch-up looks again.
        look_at: Time,
    },
}

/// Decides about a chain (pure). `depth` and `frontier` (how far it has come, if anything is known
/// of that) are its lane's, `held` whether this worker has its message in hand, and `offset` its
/// place in the spread.
pub fn plan(
    chain: &Overdue,
    depth: Depth,
    frontier: Option<Time>,
    held: bool,
    now: Time,
    slack: Duration,
    offset: Duration,
) -> Plan {
    if chain.holder.runs() || held {
        return Plan::Wait { until: now + slack };
    }
    // Where the queue must have come before the message counts as lost. Looking moves `watch_at`
    // and not this, so a queue that lags behind for ever hides nothing for ever.
    let past = chain.expected + slack;
    // The message of one whose holder is gone has been delivered, wherever the queue has come.
    let delivered = chain.holder == Holder::Gone;
    if chain.sent && !delivered && depth.ready > 0 && frontier.is_none_or(|frontier| frontier < past) {
        // A backlog that stays as long as it is takes this long to get there. Where nothing came in for a while, or
        // the queue was closed, it is there much sooner.
        let distance = frontier.map_or(slack, |frontier| past.since(frontier));
        return Plan::Wait { until: now + distance.clamp(slack, longest_turn(depth).max(slack)) };
    }
    let due = chain.hint.due.max(now + offset);
    let patience = slack.saturating_mul(1 << chain.looks.min(16)).min(MAX_LOOK.max(slack));
    Plan::Send { due, look_at: due + patience }
}

/// How long a chain is left alone, at most, whose message waits in a queue of this depth (pure).
fn longest_turn(depth: Depth) -> Duration {
    TURN.saturating_mul(u32::try_from(depth.ready).unwrap_or(u32::MAX)).clamp(MIN_TURN, MAX_TURN)
}

/// A queue has more to send again than one look holds.
#[derive(Clone, Copy, Debug)]
struct Wave {
    /// From one chain to the next, over all workers.
    share: Duration,
    /// When this worker looks again.
    next: Instant,
}

/// From one chain to the next, when `chains` of them are spread over at most `spread` (pure).
fn share_of(chains: usize, spread: Duration) -> Duration {
    SHARE.min(spread / u32::try_from(chains.max(1)).unwrap_or(u32::MAX))
}

/// Looks at the chains of a queue whose time has come, those that are overdue longest. `share` is that of the
/// wave of which this look is a part. Answers how the wave goes on.
async fn look(
    needs: &Needs,
    queue: &str,
    lanes: &[Arc<QueueRun>],
    share: Option<Duration>,
) -> Result<Option<Wave>, String> {
    let (now, slack, begun) = (needs.ledger.now(), needs.catch_up.slack, Instant::now());
    let session = needs.vitals.session();
    let overdue = needs.ledger.overdue(queue.to_owned(), needs.catalog.names(), now, session, PER_LOOK).await;
    let mut overdue = overdue.map_err(|error| error.to_string())?;
    if overdue.is_empty() {
        return Ok(None);
    }
    needs.observing.life.reached(Point::OverdueRead).await;
    give_up(needs, session, &mut overdue).await.map_err(|error| error.to_string())?;
    if needs.publishing.outage.lasts() {
        // What is due runs from the ledger.
        return Ok(None);
    }
    let full = overdue.len() == PER_LOOK as usize;
    let come = come(needs, lanes).await?;
    let planned = |n: usize, offset: Duration| {
        let chain = &overdue[n];
        let (depth, frontier) = of_lane(needs, queue, chain, &come);
        plan(chain, depth, frontier, needs.in_hand.count(chain.hint.epoch) > 0, now, slack, offset)
    };
    let share = match share {
        Some(share) => share,
        // Chains that are not lost but wait in a long queue need no counting, which goes through all chains.
        None if full && (0..overdue.len()).any(|n| matches!(planned(n, Duration::ZERO), Plan::Send { .. })) => {
            share_of(overdue_of(needs, queue).await.max(overdue.len()), needs.catch_up.spread)
        }
        None => share_of(overdue.len(), needs.catch_up.spread),
    };
    // What one look does not hold, all workers send at the same time.
    let workers = come.iter().map(|(depth, _)| depth.consumers).max().filter(|_| full).unwrap_or(1).max(1);
    let turn = share.saturating_mul(u32::try_from(workers).unwrap_or(u32::MAX));
    let window = turn.saturating_mul(overdue.len() as u32);
    let plans: Vec<Plan> = (0..overdue.len()).map(|n| planned(n, spread(n, overdue.len(), window))).collect();
    let sent = send_planned(needs, queue, now, overdue, plans, window).await?;
    Ok(match sent {
        // Another worker was faster with all of these, and there are more: this one is a part of the wave, too.
        Sent::NothingMine { wanted } => (full && wanted).then(|| Wave { share, next: Instant::now() }),
        Sent::All => full.then_some(Wave { share, next: begun + window }),
    })
}

/// What became of plans.
enum Sent {
    /// Others were faster with all of those that were to be sent, if there were any.
    NothingMine {
        /// Whether there were.
        wanted: bool,
    },
    /// Everything that was this worker's to send.
    All,
}

/// Writes what is planned, and sends what this worker was the first to write.
async fn send_planned(
    needs: &Needs,
    queue: &str,
    now: Time,
    overdue: Vec<Overdue>,
    plans: Vec<Plan>,
    window: Duration,
) -> Result<Sent, String> {
    let slack = needs.catch_up.slack;
    let looks: Vec<LookAgain> = (overdue.iter().zip(&plans))
        .map(|(chain, plan)| {
            let (to, looks, expected) = match *plan {
                Plan::Wait { until } => (until, chain.looks, None),
                Plan::Send { due, look_at } => (look_at, chain.looks + 1, Some(due)),
            };
            LookAgain { epoch: chain.hint.epoch, from: chain.watch_at, to, looks, expected }
        })
        .collect();
    // Of several workers that look at the same chain, the one that writes first sends.
    let mine = needs.ledger.look_again(looks.clone()).await.map_err(|error| error.to_string())?;
    needs.observing.life.reached(Point::LookNoted).await;
    let sends: Vec<(Hint, Time)> = (overdue.iter().zip(&plans).zip(mine))
        .filter_map(|((chain, plan), mine)| match plan {
            Plan::Send { due, .. } if mine => Some((chain.hint.clone(), *due)),
            _ => None,
        })
        .collect();
    if sends.is_empty() {
        let wanted = plans.iter().any(|plan| matches!(plan, Plan::Send { .. }));
        return Ok(Sent::NothingMine { wanted });
    }
    // Where none of them has run yet, as after `enroll`, nothing is wrong.
    let first = overdue.iter().all(|chain| chain.hint.tick == TickNo(1) && chain.hint.attempt == 1);
    let cause = match first {
        true => format!("chains of the queue {queue} that are due for the first time; their messages are sent"),
        false => format!("chains of the queue {queue} that are overdue; their messages are sent again"),
    };
    if needs.observing.telemetry.notices.begins_with(&cause, sends.len()) {
        let chains = sends.len();
        match first {
            true => tracing::info!(queue, chains, over = ?window, "sending the messages of chains that are due"),
            false => {
                tracing::info!(queue, chains, over = ?window, "sending messages again for chains that are overdue")
            }
        }
    }
    let unsent = send_all(needs, sends).await;
    if unsent.is_empty() {
        return Ok(Sent::All);
    }
    // What could not be sent is looked at soon, and as if this look had not been.
    let again = (overdue.iter().zip(looks)).filter(|(chain, _)| unsent.contains(&chain.hint.epoch));
    let again = again.map(|(chain, look)| LookAgain { from: look.to, to: now + slack, looks: chain.looks, ..look });
    needs.ledger.look_again(again.collect()).await.map_err(|error| error.to_string())?;
    Err(format!("{} messages could not be sent", unsent.len()))
}

/// Chains that this worker is said to run, though it does not: a claim whose answer was lost, and that no worker made
/// again. No other worker can know that.
async fn give_up(needs: &Needs, session: Option<i64>, overdue: &mut [Overdue]) -> Result<(), LedgerError> {
    let Some(session) = session else { return Ok(()) };
    // A task that works on a chain has its message in hand, from before the claim until after the finish.
    let left =
        |chain: &Overdue| chain.holder.runs() && chain.claim.0 == session && needs.in_hand.count(chain.hint.epoch) == 0;
    let claims = overdue.iter().filter(|chain| left(chain));
    let claims: Vec<ClaimId> = claims.map(|chain| ClaimId { epoch: chain.hint.epoch, fence: chain.claim.1 }).collect();
    if claims.is_empty() {
        return Ok(());
    }
    needs.ledger.give_up(session, claims.clone()).await?;
    needs.suspects.given_up(claims.iter().map(|claim| claim.epoch));
    for chain in overdue.iter_mut().filter(|chain| claims.iter().any(|claim| claim.epoch == chain.hint.epoch)) {
        chain.holder = Holder::Gone;
    }
    Ok(())
}

/// Gives up claims of this worker that it does not run, on chains that no catch-up looks at: paused or retired since.
async fn give_up_at_rest(needs: &Needs) -> Result<(), LedgerError> {
    let Some(session) = needs.vitals.session() else { return Ok(()) };
    let mut claims = needs.ledger.left_with(session, PER_LOOK).await?;
    claims.retain(|claim| needs.in_hand.count(claim.epoch) == 0);
    if claims.is_empty() {
        return Ok(());
    }
    needs.ledger.give_up(session, claims.clone()).await?;
    needs.suspects.given_up(claims.iter().map(|claim| claim.epoch));
    Ok(())
}

/// Sends the messages of chains whose holders are gone, and, where one of these was `silent`, of those whose messages
/// it may have in hand: a worker that stands still keeps what the broker has given it, and may be given what is sent,
/// so then this worker runs those for which it has room straight from the ledger. What has been late for longer is left
/// to the sweeps, which spread it. Answers whether something was left for a later look.
async fn adopt(
    needs: &Needs,
    queue: &str,
    lanes: &[Arc<QueueRun>],
    silent: bool,
    tasks: &TaskTracker,
) -> Result<bool, String> {
    // Where it is closed, those for whom it is not do so.
    if needs.publishing.outage.lasts() || !lanes.iter().any(|lane| lane.flow().open) {
        return Ok(false);
    }
    let (now, slack) = (needs.ledger.now(), needs.catch_up.slack);
    let late = if silent { now - IN_HAND } else { Time::default() };
    let left = OrphanFilter { until: now + slack, late, unsent: Time::default() };
    let orphans = needs.ledger.orphans(queue.to_owned(), needs.catalog.names(), left, PER_LOOK).await;
    let mut orphans = orphans.map_err(|error| error.to_string())?;
    let oldest = now - needs.vitals.length() * 3;
    let was_sent_again = |chain: &Overdue| chain.looks > 0 && chain.expected + SENT_AGAIN > now;
    let waits = orphans.iter().any(|chain| chain.holder == Holder::Gone && was_sent_again(chain));
    orphans.retain(|chain| !was_sent_again(chain) && (chain.holder == Holder::Gone || chain.hint.due > oldest));
    if orphans.is_empty() {
        return Ok(waits);
    }
    needs.observing.life.reached(Point::OrphansRead).await;
    let come = come(needs, lanes).await?;
    let planned = |chain: Overdue| {
        let (depth, frontier) = of_lane(needs, queue, &chain, &come);
        let held = needs.in_hand.count(chain.hint.epoch) > 0;
        let plan = plan(&chain, depth, frontier, held, now, IN_HAND, Duration::ZERO);
        matches!(plan, Plan::Send { .. }).then_some(chain)
    };
    let mut orphans: Vec<Overdue> = orphans.into_iter().filter_map(planned).collect();
    if silent {
        orphans =
            hand_out::take_late(&needs.late, queue, lanes, orphans, tasks).await.map_err(|error| error.to_string())?;
    }
    let most = if silent { needs.catch_up.spread } else { ADOPTED_WITHIN };
    let window = SHARE.saturating_mul(orphans.len() as u32).min(most);
    let send = |n: usize| {
        let due = now + spread(n, orphans.len(), window);
        Plan::Send { due, look_at: due + slack }
    };
    let plans = (0..orphans.len()).map(send).collect();
    send_planned(needs, queue, now, orphans, plans, window).await.map(|_| waits)
}

/// Sends what this worker has left unsent, and what others have, as it falls due: the broker was away.
async fn send_unsent(needs: &Needs, queue: &str) -> Result<(), String> {
    loop {
        let (now, slack) = (needs.ledger.now(), needs.catch_up.slack);
        let left = OrphanFilter { until: now + slack, late: Time::default(), unsent: now - UNSENT_AFTER };
        let left = needs.ledger.orphans(queue.to_owned(), needs.catalog.names(), left, PER_LOOK).await;
        let mut left = left.map_err(|error| error.to_string())?;
        let full = left.len() == PER_LOOK as usize;
        left.retain(|chain| !chain.sent && needs.in_hand.count(chain.hint.epoch) == 0);
        if left.is_empty() {
            return Ok(());
        }
        // By then it is noted that they are sent.
        let plans = left.iter().map(|chain| Plan::Send { due: chain.hint.due, look_at: now + slack + ADOPTED_AGAIN });
        let plans = plans.collect();
        send_planned(needs, queue, now, left, plans, Duration::ZERO).await?;
        if !full {
            return Ok(());
        }
    }
}

/// How much waits in each lane, and how far it has come.
async fn come(needs: &Needs, lanes: &[Arc<QueueRun>]) -> Result<Vec<(Depth, Option<Time>)>, String> {
    let mut come = Vec::with_capacity(lanes.len());
    for lane in lanes {
        let depth = needs.publishing.dispatch.broker.depth(&lane.source).await.map_err(|error| error.to_string())?;
        come.push((depth, lane.frontier()));
    }
    Ok(come)
}

/// That of the lane on which a chain's message comes.
fn of_lane(needs: &Needs, queue: &str, chain: &Overdue, come: &[(Depth, Option<Time>)]) -> (Depth, Option<Time>) {
    let lane = needs.publishing.dispatch.lanes.lane(queue, &chain.hint.kind, chain.hint.priority);
    come.get(usize::from(lane)).copied().unwrap_or_default()
}

/// How many chains of a queue are overdue.
async fn overdue_of(needs: &Needs, queue: &str) -> usize {
    let of_queue = |of: &QueueCensus| if of.queue == queue { of.overdue } else { 0 };
    counted(&*needs.ledger, needs.catch_up.slack, of_queue).await
}

/// Publishes messages for chains, each due at the given time. Returns the epochs of those that
/// could not be sent.
async fn send_all(needs: &Needs, sends: Vec<(Hint, Time)>) -> HashSet<Epoch> {
    let (unsent, failures) = (Mutex::new(HashSet::new()), AtomicUsize::new(0));
    let pace = needs.publishing.dispatch.pace.clone();
    pace.over(sends)
        .for_each_concurrent(IN_FLIGHT, |(hint, due)| {
            let (unsent, failures) = (&unsent, &failures);
            async move {
                let envelope = Envelope { due: Some(due), ..hint.envelope(needs.ledger.id()) };
                let sent = if failures.load(Ordering::Relaxed) < MAX_FAILURES {
                    needs.publishing.dispatch.send(&envelope, &hint.queue, needs.ledger.now()).await
                } else {
                    Err(PublishError::Unknown("not tried, since others have failed".into()))
                };
                match sent {
                    Ok(()) => {
                        needs.observing.life.reached(Point::Resent).await;
                        needs.observing.telemetry.count(Count::Resent);
                        needs.ledger.mark_sent(hint.sent());
                    }
                    Err(error) => {
                        failures.fetch_add(1, Ordering::Relaxed);
                        if needs.observing.telemetry.notices.begins("messages that catch-up could not send") {
                            tracing::warn!(
                                kind = hint.kind, key = hint.key, epoch = hint.epoch.get(), tick = hint.tick.get(),
                                %error,
                                "catch-up could not send a message; it is looked after again"
                            );
                        }
                        unsent.lock().insert(hint.epoch);
                    }
                }
            }
        })
        .await;
    unsent.into_inner()
}

/// Sends the messages of all chains, for a broker that begins empty: those due by now spread over
/// the window, the others for their own time.
async fn re_create(needs: &Needs) -> Result<(), String> {
    let queues: Vec<String> = needs.queues.keys().cloned().collect();
    let share = (SHARE, needs.catch_up.spread);
    let mut pages = Pages::new(&*needs.ledger, queues, needs.catalog.names(), share).await;
    while let Some(sends) = pages.next().await.map_err(|error| error.to_string())? {
        send_all(needs, sends).await;
    }
    let Pages { total, overdue, window, .. } = pages;
    if total > 0 {
        tracing::info!(chains = total, overdue, over = ?window, "re-created the messages of all chains");
    }
    Ok(())
}

/// Sends jobs that a run asked for and that a crash, or an outage, left in the ledger.
async fn empty_outbox(needs: &Needs) -> Result<(), String> {
    let (mut after, left_before) = (0, needs.ledger.now() - needs.catch_up.slack);
    loop {
        let jobs = needs.ledger.take_jobs(after, left_before, PER_PAGE).await.map_err(|error| error.to_string())?;
        let Some(last) = jobs.last() else { return Ok(()) };
        after = last.number;
        needs.observing.life.reached(Point::OutboxTaken).await;
        let mut envelopes = Vec::new();
        for job in &jobs {
            envelopes.extend(needs.publishing.kept(job).await);
        }
        needs.publishing.send_spawned(envelopes, &Run::default()).await;
    }
}

/// Publishes one-off jobs that other programs have put in the ledger, or that an earlier run left.
async fn take_up_jobs(needs: &Needs, up_to: &mut i64) -> Result<(), String> {
    let first = *up_to == 0;
    loop {
        let jobs = needs.ledger.kept_jobs(*up_to, PER_PAGE).await.map_err(|error| error.to_string())?;
        if jobs.is_empty() {
            return Ok(());
        }
        for job in jobs {
            let sent = match needs.publishing.kept(&job).await {
                Some(envelope) => {
                    if let Some(id) = envelope.id.as_deref().filter(|_| first) {
                        needs.suspects.found(id);
                    }
                    let queue = envelope.queue.clone().unwrap_or_default();
                    needs.publishing.dispatch.send(&envelope, &queue, needs.ledger.now()).await
                }
                None => Ok(()),
            };
            if let Err(error) = sent {
                return Err(format!("the job with number {} in the ledger: {error}", job.number));
            }
            *up_to = job.number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roundelay_model::ids::Fence;

    const fn at(secs: i64) -> Time {
        Time::from_millis(secs * 1_000)
    }

    fn chain(sent: bool, watch_at: i64, looks: u32, holder: Holder) -> Overdue {
        let hint = Hint {
            kind: "k".into(),
            key: "x".into(),
            queue: "q".into(),
            epoch: Epoch(1),
            tick: TickNo(1),
            attempt: 1,
            due: at(100),
            parent: Epoch::NONE,
            priority: None,
        };
        Overdue { hint, sent, expected: at(100), watch_at: at(watch_at), looks, holder, claim: (0, Fence::NONE) }
    }

    #[test]
    fn what_could_not_be_taken_over_is_taken_over_later() {
        let begin = Instant::now();
        let at = |secs: f64| begin + Duration::from_secs_f64(secs);
        let mut adoptions = Adoptions::default();
        assert!(!adoptions.take(begin), "nobody is gone");
        adoptions.asked(begin, false);
        adoptions.asked(begin, false);
        assert!(adoptions.take(begin) && !adoptions.take(begin), "once for both");
        assert!(!adoptions.take(at(2.9)) && adoptions.take(at(3.0)), "and once more");
        adoptions.failed(at(3.2));
        assert!(!adoptions.take(at(4.1)) && adoptions.take(at(4.2)), "again, since it failed");
        assert!(!adoptions.take(at(600.0)));
    }

    #[test]
    fn adoptions_repeat_while_a_silent_worker_may_get_messages() {
        let begin = Instant::now();
        let at = |secs: u64| begin + Duration::from_secs(secs);
        let mut adoptions = Adoptions::default();
        adoptions.asked(begin, true);
        let looks: Vec<u64> = (0..60).filter(|secs| adoptions.take(at(*secs))).collect();
        assert_eq!(looks, (0..=30).collect::<Vec<u64>>());
        assert!(adoptions.silent(at(30)) && !adoptions.silent(at(31)));
        adoptions.asked(at(100), false);
        assert!(adoptions.take(at(100)) && !adoptions.silent(at(100)), "it has ended, and holds nothing");
    }

    #[test]
    fn plan_of_an_overdue_chain() {
        let slack = Duration::from_secs(30);
        let send = |due, look_at| Plan::Send { due: at(due), look_at: at(look_at) };
        let wait = |until| Plan::Wait { until: at(until) };
        let empty = Depth::default();
        let (full, deep) = (Depth { ready: 5, consumers: 1 }, Depth { ready: 4_000, consumers: 1 });
        let deepest = Depth { ready: 1_000_000, consumers: 1 };
        let table = [
            ("queue empty: lost", chain(true, 130, 0, Holder::None), empty, at(0), false, send(203, 233)),
            ("queue past it: lost", chain(true, 130, 0, Holder::None), full, at(130), false, send(203, 233)),
            ("queue not there yet: waits its turn", chain(true, 130, 0, Holder::None), full, at(129), false, wait(230)),
            (
                "looked at before: the same yardstick",
                chain(true, 190, 0, Holder::None),
                full,
                at(130),
                false,
                send(203, 233),
            ),
            (
                "far behind: looks when it may be there",
                chain(true, 190, 0, Holder::None),
                deep,
                at(30),
                false,
                wait(300),
            ),
            (
                "farther than its depth allows for",
                chain(true, 190, 0, Holder::None),
                deep,
                at(-9_000),
                false,
                wait(320),
            ),
            ("very far behind", chain(true, 190, 0, Holder::None), deepest, at(-9_000), false, wait(800)),
            (
                "far behind with next to nothing in it: looks soon",
                chain(true, 190, 0, Holder::None),
                full,
                at(30),
                false,
                wait(230),
            ),
            (
                "never sent: sent whatever the queue holds",
                chain(false, 130, 0, Holder::None),
                full,
                at(0),
                false,
                send(203, 233),
            ),
            ("in hand", chain(true, 130, 0, Holder::None), empty, at(0), true, wait(230)),
            ("being run", chain(true, 130, 0, Holder::Alive), empty, at(0), false, wait(230)),
            (
                "its holder is gone: sent whatever the queue holds",
                chain(true, 130, 0, Holder::Gone),
                full,
                at(0),
                false,
                send(203, 233),
            ),
            (
                "sent again before: more patience",
                chain(true, 130, 2, Holder::None),
                empty,
                at(0),
                false,
                send(203, 323),
            ),
            ("patience has an end", chain(true, 130, 60, Holder::None), empty, at(0), false, send(203, 3_803)),
        ];
        for (label, chain, depth, frontier, held, expected) in table {
            let plan = plan(&chain, depth, Some(frontier), held, at(200), slack, Duration::from_secs(3));
            assert_eq!(plan, expected, "{label}");
        }
        let unknown = plan(&chain(true, 130, 0, Holder::None), full, None, false, at(200), slack, Duration::ZERO);
        assert_eq!(unknown, wait(230), "nothing is known of the queue yet");
    }

    #[test]
    fn share_of_the_spread_is_bounded_by_the_window() {
        let (ms, us) = (Duration::from_millis, Duration::from_micros);
        let table = [
            (0, ms(30_000), ms(5)),
            (1, ms(30_000), ms(5)),
            (6_000, ms(30_000), ms(5)),
            (6_001, ms(30_000), Duration::from_nanos(4_999_166)),
            (1_000_000, ms(30_000), us(30)),
            (1_000_000, Duration::ZERO, Duration::ZERO),
        ];
        for (chains, spread, share) in table {
            assert_eq!(share_of(chains, spread), share, "{chains} over {spread:?}");
        }
    }

    #[test]
    fn what_is_not_due_yet_is_sent_for_its_time() {
        let mut chain = chain(false, 50, 0, Holder::None);
        chain.hint.due = at(900);
        let plan = plan(&chain, Depth::default(), Some(at(0)), false, at(200), Duration::from_secs(30), Duration::ZERO);
        assert_eq!(plan, Plan::Send { due: at(900), look_at: at(930) });
    }
}
