//! Looks at the world from outside while it goes on, and judges it in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use roundelay_broker::embedded::HeldState;
use roundelay_broker::{Broker, Way};
use roundelay_config::Config;
use roundelay_engine::sealing;
use roundelay_engine::sealing::{Mode, take_stock};
use roundelay_engine::telemetry::Count;
use roundelay_ledger::{ChainState, ChainView, Failures, Jobs, KeptJob, LateChain, LedgerClock, LedgerError, Reports};
use roundelay_model::clock::Time;
use roundelay_model::deaths::CLASS;
use roundelay_model::encryption::is_sealed;
use roundelay_model::ids::Fence;
use roundelay_model::job::Envelope;
use tokio::time::Instant;

use super::workload::{CHAINS, MAX_SLEEP, is_owned};
use super::{CALM, LOOK, OUTAGE, World};
use crate::observe::Late;
use crate::plan::{Astray, Fault, Plan};
use crate::rare::Rare;

/// By then a chain that is due must have been claimed, once nothing goes wrong any more: R of I2.
const RECOVERY: Duration = Duration::from_secs(60);
/// From here on the calm is steady: everything is on time, with one message for each chain.
pub(super) const STEADY: Duration = Duration::from_secs(150);
/// How late a run may start then, though unusable messages come in, beside what it waits for a slot.
const ON_TIME: Duration = Duration::from_secs(3);
/// How long operators go on releasing the jobs that are quarantined after deaths of workers.
pub(super) const MENDING: Duration = Duration::from_secs(80);
/// A chain that has been stuck for this time must be shown.
const SHOWN: Duration = Duration::from_secs(60);
/// Within this time a worker reads what operators have ordered.
const READ: Duration = Duration::from_secs(4);
/// No storm may bring about this number of messages of one chain.
const MAX_MESSAGES: usize = 8;

impl World {
    /// Looks at the world from outside, every few seconds.
    pub(super) async fn look(&mut self) {
        let now = self.ledger.now();
        for live in self.workers.iter().filter_map(|worker| worker.live.as_ref()) {
            if matches!(live.connection.sleeping().way(), Some(Way::Native { .. })) {
                self.observer.reached(Rare::SleepsNatively);
            }
            for (count, rare) in [(Count::Early, Rare::CameEarly), (Count::GaveWay, Rare::GaveWay)] {
                if live.telemetry.get(count) > 0 {
                    self.observer.reached(rare);
                }
            }
        }
        let mut census = self.broker.census();
        // Where a person looks, nothing moves.
        let kept = [self.names.quarantine(), self.names.unrouted()];
        census.retain(|held| !kept.contains(&held.queue));
        let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
        for held in &census {
            if let Some(Envelope { kind, key, .. }) = hint(&held.body, self.ledger.id()) {
                *counts.entry((kind, key)).or_default() += 1;
            }
        }
        counts.values().for_each(|count| *self.messages.entry(*count).or_default() += 1);
        let most = MAX_MESSAGES + self.doubled;
        for ((kind, key), count) in counts.iter().filter(|(_, count)| **count > most) {
            self.observer.violated("I9", format!("{kind} {key} has {count} messages"));
        }
        self.observer.look_for_overlaps();
        let slack = self.config.catch_up.slack;
        let (late, figures) =
            match tokio::try_join!(self.ledger.late(now, Vec::new(), 1_000), self.ledger.census(slack)) {
                Ok(seen) => seen,
                Err(error) => return self.observer.violated("world", format!("cannot look: {error}")),
            };
        // What `status` lists and the metrics count, against what the observer knows by itself.
        let stuck = self.observer.stuck(now - slack - SHOWN);
        for name in &stuck {
            if !late.iter().any(|chain| (&chain.hint.kind, &chain.hint.key) == (&name.kind, &name.key)) {
                self.observer.violated("I11", format!("{name} is stuck, and nobody is shown that"));
            }
        }
        let overdue: i64 = figures.queues.iter().map(|queue| queue.overdue).sum();
        if overdue + figures.quarantined < stuck.len() as i64 {
            let what = format!("{} chains are stuck, and {overdue} are counted as overdue", stuck.len());
            self.observer.violated("I11", what);
        }
        self.look_for_long_sleep(now).await;
        let Some(healed) = self.healed else { return };
        for live in self.workers.iter().filter_map(|worker| worker.live.as_ref()) {
            let read = self.observer.last_read(&live.process);
            if let Some(ago) = read.filter(|ago| *ago > READ && healed.elapsed() > READ * 2) {
                let what = format!("worker {} last read what was ordered {ago:?} ago", live.process.worker);
                self.observer.violated("I8", what);
            }
        }
        for chain in &late {
            let (kind, key) = (&chain.hint.kind, &chain.hint.key);
            let mended = died_over(chain) && healed.elapsed() < MENDING;
            if chain.state == ChainState::Quarantined && !mended {
                self.observer
                    .violated("I7", format!("{kind} {key} is quarantined, and nobody restored a ledger since"));
            }
            let since = now.since(chain.hint.due.max(self.healed_at));
            if since > slack + RECOVERY {
                let what = format!("{kind} {key} is due since {since:?}, and nobody claims it: {chain:?}");
                self.observer.violated("I2", what);
            }
        }
        if healed.elapsed() < STEADY {
            return;
        }
        if healed.elapsed() + LOOK >= CALM {
            let found = self.observer.discovered(healed + STEADY);
            for (kind, key) in &found {
                let chains = self.ledger.chains(kind.clone(), key.clone()).await.unwrap_or_default();
                if chains.is_empty() {
                    self.observer.violated("I4", format!("{kind} {key} was discovered, and has not begun"));
                }
            }
            let found = found.iter().map(|(kind, key)| (kind.as_str(), key.as_str()));
            for (kind, key) in CHAINS.iter().map(|(kind, _, key)| (*kind, *key)).chain(found) {
                let chains = self.ledger.chains(kind.into(), key.into()).await.unwrap_or_default();
                let ticks = chains.iter().any(|chain| !chain.once && chain.state == ChainState::Active);
                if ticks && !self.observer.has_finished(kind, key, healed) {
                    self.observer.violated("I2", format!("{kind} {key}: no tick has ended since nothing goes wrong"));
                }
            }
        }
        if healed.elapsed() >= CALM {
            // The ledger runs chains that have no message.
            return;
        }
        for (kind, _, key) in CHAINS {
            let chains = match self.ledger.chains(kind.into(), key.into()).await {
                Ok(chains) => chains,
                Err(error) => return self.observer.violated("world", format!("cannot look: {error}")),
            };
            let active = chains.iter().filter(|chain| chain.state == ChainState::Active && chain.batch.0 == 0).count();
            let waiting = census.iter().filter(|held| {
                held.state != HeldState::Unsettled
                    && hint(&held.body, self.ledger.id()).is_some_and(|hint| hint.kind == kind && hint.key == key)
            });
            let waiting = waiting.count();
            let all = counts.get(&(kind.into(), key.into())).copied().unwrap_or_default();
            // When the last member of a batch has ended, the message of what has waited for it is on its
            // way, and no other stands for it.
            let on_its_way = |chain: &ChainView| {
                !chain.sent && chain.hint.due <= now && now.since(chain.hint.due) < Duration::from_secs(1)
            };
            let there = active - usize::from(kind == "wide" && chains.iter().any(on_its_way)).min(active);
            if waiting > active || all < there {
                let what = format!("{kind} {key}: {waiting} messages wait, of {all}, for {active} that tick");
                self.observer.violated("I9", what);
            }
        }
    }

    /// Whether a chain sleeps for longer than its schedule can explain: a clock that was set is no reason.
    async fn look_for_long_sleep(&self, now: Time) {
        for (kind, _, key) in CHAINS {
            let chains = self.ledger.chains(kind.into(), key.into()).await.unwrap_or_default();
            // What follows the wall clock is moved when a worker has noticed that the clock was set.
            let settled = kind != "timed" || self.healed.is_some_and(|healed| healed.elapsed() > RECOVERY);
            let sleeps = chains.iter().filter(|chain| chain.state == ChainState::Active && !chain.once && settled);
            for chain in sleeps.filter(|chain| chain.hint.due > now + MAX_SLEEP) {
                let what = format!("{kind} {key} sleeps for {:?} from now", chain.hint.due.since(now));
                self.observer.violated("sleep", what);
            }
        }
    }

    /// What must be true at the end.
    pub(super) async fn judge(&mut self) {
        if let Some(healed) = self.healed {
            let starts = self.starts();
            for claim in self.observer.claims(healed + STEADY) {
                if claim.late > may_be_late(&self.config, &claim, &starts) {
                    let Late { late, name, queue, .. } = claim;
                    let what = format!("{name} starts {late:?} late on {queue}, though nothing is wrong any more");
                    self.observer.violated("I10", what);
                }
            }
        }
        self.judge_starts();
        for (kind, key) in self.replay.entities() {
            self.replay.compare(&self.ledger.chains(kind, key).await.unwrap_or_default());
        }
        for id in &self.mended {
            let times = self.observer.ends(id);
            if times > 1 {
                let what =
                    format!("the job {id} came to an end {times} times: operators died over it who sent it again");
                self.observer.violated("I6", what);
            }
        }
        let quarantine = self.names.quarantine();
        let census = self.broker.census();
        let aside: BTreeSet<Vec<u8>> =
            census.iter().filter(|held| held.queue == quarantine).map(|held| self.as_published(&held.body)).collect();
        let poison = self.poison.lock().clone();
        // A worker cannot set aside a message that was published while its queue was away.
        let unrouted: BTreeSet<Vec<u8>> = census
            .iter()
            .filter(|held| held.queue == self.names.unrouted())
            .map(|held| self.as_published(&held.body))
            .collect();
        for body in poison.difference(&aside).filter(|body| !unrouted.contains(*body)) {
            self.observer.violated("I10", format!("never set aside: {}", String::from_utf8_lossy(body)));
        }
        let restored = self.generation.load(Ordering::Relaxed) > 0;
        let perhaps = self.perhaps.lock().clone();
        for body in aside.difference(&poison).filter(|body| !perhaps.contains(*body)) {
            let ours = Envelope::decode(body).is_ok_and(|envelope| self.config.kinds.contains_key(&envelope.kind));
            if ours && !restored && Envelope::decode(body).is_ok_and(|e| e.queue.as_deref() != Some("nowhere")) {
                self.observer.violated("I4", format!("a good message is set aside: {}", String::from_utf8_lossy(body)));
            }
        }
        let found: BTreeSet<String> = unrouted.iter().filter_map(|body| Envelope::decode(body).ok()?.id).collect();
        for id in
            self.observer.lost_jobs(Instant::now() - OUTAGE - RECOVERY).into_iter().filter(|id| !found.contains(id))
        {
            self.observer.violated("I4", format!("the job {id} was accepted, and never came to an end"));
        }
        self.judge_orders(&found).await;
        let kept = self.ledger.failures(10_000).await.unwrap_or_default();
        for (kind, key) in self.observer.failed_jobs(Instant::now() - RECOVERY) {
            if !restored && !kept.iter().any(|failure| failure.kind == kind && failure.key == key) {
                self.observer.violated("I4", format!("the failure of {kind} {key} is not kept"));
            }
        }
        if let Err(error) = self.judge_what_lies_sealed().await {
            self.observer.violated("world", format!("cannot take stock: {error}"));
        }
        if let Err(error) = self.judge_records(restored).await {
            self.observer.violated("world", format!("cannot read the records: {error}"));
        }
    }

    /// Whether chains are as messages have ordered. Orders that lie unrouted could not be carried out.
    async fn judge_orders(&self, unrouted: &BTreeSet<String>) {
        let (orders, gone) = {
            let ordered = self.ordered.lock();
            let begun = ordered.begun.iter().map(|key| (key.clone(), ChainState::Active));
            let ended = ordered.ended.iter().map(|key| (key.clone(), ChainState::Retired));
            (begun.chain(ended).collect::<Vec<_>>(), ordered.gone.clone())
        };
        for (key, expected) in orders {
            if gone.contains(&key) || unrouted.contains(&key) {
                continue;
            }
            let chains = self.ledger.chains("asked".into(), key.clone()).await.unwrap_or_default();
            let state = chains.iter().find(|chain| !chain.once).map(|chain| chain.state);
            if state != Some(expected) {
                let what = format!("it was ordered that asked {key} is {expected:?}, and it is {state:?}");
                self.observer.violated("I4", what);
            }
        }
    }

    /// A message as its publisher wrote it, in whatever form it lies in quarantine.
    pub(super) fn as_published(&self, body: &[u8]) -> Vec<u8> {
        as_published(&sealing::shown(&self.config.encryption, body))
    }

    /// Where payloads are sealed, none lies in the clear, and all open.
    pub(super) async fn judge_what_lies_sealed(&self) -> Result<(), LedgerError> {
        let keys = &self.config.encryption;
        if keys.seal().is_none() {
            return Ok(());
        }
        for held in self.broker.census().iter().filter(|held| held.queue == self.names.quarantine()) {
            let in_the_clear = match Envelope::decode(&held.body) {
                // The simulation itself put some messages there (`set_aside`); they stay as they were published.
                Ok(envelope) => !envelope.payload.is_null() && !envelope.id.is_some_and(|id| id.starts_with("aside-")),
                Err(_) => !is_sealed(&held.body),
            };
            if in_the_clear {
                let body = String::from_utf8_lossy(&held.body);
                self.observer.violated("sealed", format!("set aside in the clear: {body}"));
            }
        }
        let stock = take_stock(&*self.ledger, keys, Mode::Look, u64::MAX, |_| {}).await?;
        for ((shelf, key), count) in stock.counts {
            if key.is_none() || count.unopened > 0 {
                self.observer.violated("sealed", format!("{shelf:?} sealed with {key:?}: {count:?}"));
            }
        }
        Ok(())
    }

    /// When runs started under each throttle, of all processes, in order.
    fn starts(&self) -> BTreeMap<&str, Vec<Instant>> {
        let mut starts: BTreeMap<&str, Vec<Instant>> = BTreeMap::new();
        for ((queue, ..), of_process) in self.observer.starts() {
            let throttle = self.config.queues.get(&queue).and_then(|queue| queue.throttle.as_deref());
            if let Some(throttle) = throttle {
                starts.entry(throttle).or_default().extend(of_process);
            }
        }
        starts.values_mut().for_each(|starts| starts.sort_unstable());
        starts
    }

    /// Whether all processes together have started no more than a throttle allows, in no window of its
    /// length, and no worker's own gate has refused one. A ledger that was restored does not know what it had
    /// handed out since.
    fn judge_starts(&self) {
        if self.generation.load(Ordering::Relaxed) > 0 {
            return;
        }
        let refused: u64 = self.slots.iter().map(|counts| counts.refused.get()).sum();
        if refused > 0 {
            self.observer.violated("gate", format!("workers' own gates have refused {refused} starts that had slots"));
        }
        for (name, starts) in self.starts() {
            let Some(throttle) = self.config.throttles.get(name) else { continue };
            for window in throttle.limits.windows() {
                let allowed = window.allow as usize;
                let crowded = starts.windows(allowed + 1).find(|starts| starts[allowed] - starts[0] < window.per);
                if let Some(starts) = crowded {
                    let within = starts[allowed] - starts[0];
                    let what = format!("{} starts under {name} within {within:?}", allowed + 1);
                    self.observer.violated("I3", what);
                }
            }
        }
    }

    async fn judge_records(&self, restored: bool) -> Result<(), LedgerError> {
        let (mut after, mut known) = (Fence::NONE, BTreeSet::new());
        let now = self.ledger.now();
        loop {
            let page = self.ledger.attempts(after, 1_000).await?;
            let Some(last) = page.last() else { break };
            after = last.fence;
            for record in page {
                known.insert(record.fence);
                // Those of the last moments may run.
                let old = now.since(record.started) > Duration::from_secs(75);
                if record.verdict.is_none() && old {
                    self.observer.violated("I5", format!("an attempt has no end: {record:?}"));
                }
            }
        }
        if !restored {
            for fence in self.observer.fences().difference(&known) {
                self.observer.violated("I5", format!("a handler ran with fence {fence}, of which there is no record"));
            }
        }
        let left = self.ledger.kept_jobs(0, 100).await?;
        let id = |job: &KeptJob| Envelope::decode(&job.body).ok().and_then(|envelope| envelope.id);
        // A worker that takes a job to send it moves its time.
        let accepted =
            |job: &KeptJob| id(job).is_some_and(|id| self.observer.accepted_by(&id, Instant::now() - OUTAGE));
        for job in left.iter().filter(|job| now.since(job.kept_at) > RECOVERY || accepted(job)) {
            self.observer
                .violated("I4", format!("a job is left in the outbox: {}", String::from_utf8_lossy(&job.body)));
        }
        Ok(())
    }
}

/// Whether a chain was set aside since workers have died over it.
pub(super) fn died_over(chain: &LateChain) -> bool {
    chain.state == ChainState::Quarantined && chain.reason.as_ref().is_some_and(|why| why.starts_with(CLASS))
}

/// How late a claim may be in the steady calm. Where its queue has a throttle the claim is made once its slot is had:
/// that may take the throttle's longest window, and the spacing of slots for each start of others since the tick was
/// due, as of one-off jobs that have waited for the broker. It counts where the message waits, and not where its chain
/// began: chains get other queues. Also a tick that only gathers its batch waits like this, since nothing but its claim
/// says that it runs no handler.
fn may_be_late(config: &Config, claim: &Late, starts: &BTreeMap<&str, Vec<Instant>>) -> Duration {
    let named = config.queues.get(&claim.queue).and_then(|queue| queue.throttle.as_deref());
    let Some((name, throttle)) = named.and_then(|name| Some((name, config.throttles.get(name)?))) else {
        return ON_TIME;
    };
    let meanwhile = claim.at.checked_sub(claim.late).unwrap_or(claim.at)..claim.at;
    let others = starts.get(name).map_or(0, |starts| starts.iter().filter(|start| meanwhile.contains(start)).count());
    ON_TIME + throttle.limits.longest_window() + throttle.limits.spacing() * u32::try_from(others).unwrap_or(u32::MAX)
}

/// Whether no message is lost in this plan but by the engine's own doing. Then catch-up never has
/// to send what is not there, however often workers crash.
pub(super) fn is_lossless(plan: &Plan) -> bool {
    !plan.faults.iter().any(|planned| {
        use Fault::*;
        matches!(planned.fault, Purge { .. } | Lose { .. } | DeleteQueue { .. } | Restore { .. } | Clock { .. })
            // Meanwhile chains run from the ledger, and their successors are unsent.
            || matches!(planned.fault, BrokerDown { .. } | Claim { how: Astray::Unheard, .. })
            || matches!(planned.fault, Strike { blow, .. } | StrikeAt { blow, .. } if blow.takes_broker())
    })
}

/// Chains that an operator stops, begins anew, or runs by hand.
pub(super) fn touched(plan: &Plan) -> BTreeSet<String> {
    let manual = plan.faults.iter().filter_map(|planned| match planned.fault {
        Fault::RunOnce { chain } => Some(CHAINS[chain].2.into()),
        _ => None,
    });
    manual.chain(stopped(plan)).collect()
}

/// Chains whose messages an operator takes away or leaves to catch-up.
pub(super) fn stopped(plan: &Plan) -> BTreeSet<String> {
    let chains = plan.faults.iter().flat_map(|planned| match planned.fault {
        Fault::Pause { chain, .. } | Fault::Retire { chain, .. } => vec![CHAINS[chain].2.into()],
        Fault::PauseOwner { .. } => {
            CHAINS.iter().filter(|(.., key)| is_owned(key)).map(|(.., key)| (*key).into()).collect()
        }
        _ => Vec::new(),
    });
    chains.collect()
}

/// A message without what was added when it was sent again from quarantine.
fn as_published(body: &[u8]) -> Vec<u8> {
    match Envelope::decode(body) {
        Ok(envelope) if !envelope.retries.is_empty() => Envelope { retries: Vec::new(), ..envelope }.encode(),
        _ => body.to_vec(),
    }
}

/// The message, if it is that of one of this ledger's chains.
fn hint(body: &[u8], ledger: &str) -> Option<Envelope> {
    let envelope = Envelope::decode(body).ok()?;
    envelope.chain.as_ref().is_some_and(|chain| chain.ledger == ledger).then_some(envelope)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Name;
    use crate::worker::Process;
    use roundelay_ledger::{ClaimRequest, Finish, FinishRequest, Grant, Hint};
    use roundelay_model::clock::Time;
    use roundelay_model::guard::Guard;
    use roundelay_model::ids::{Epoch, TickNo};
    use roundelay_model::outcome::{Next, Verdict};

    /// A claim of the chain `wide n` from this queue, so late.
    fn claim(queue: &str, late: Duration) -> (ClaimRequest, Grant) {
        let due = Time::from_millis(1_800_000_400_000);
        let hint = Hint {
            kind: "wide".into(),
            key: "n".into(),
            queue: queue.into(),
            epoch: Epoch(1),
            tick: TickNo(1),
            attempt: 1,
            due,
            parent: Epoch::NONE,
            priority: None,
        };
        let (worker, guard) = ("w".into(), Guard::default());
        let request = ClaimRequest {
            hint,
            worker,
            session: 1,
            again: false,
            takeover: false,
            guard,
            recurs: true,
            prepared: 0,
            ahead: Duration::ZERO,
        };
        let grant = Grant {
            fence: Fence(1),
            last_start: due,
            nominal: due,
            due,
            at: due + late,
            payload: "{}".into(),
            once: false,
            lost: false,
            refused: None,
            carry: None,
            learned: None,
            owner: None,
            schedule: None,
            batch: None,
            depth: 0,
        };
        (request, grant)
    }

    /// The end of the run that was claimed so.
    fn end((ClaimRequest { hint, .. }, grant): &(ClaimRequest, Grant)) -> FinishRequest {
        FinishRequest {
            epoch: hint.epoch,
            tick: hint.tick,
            attempt: hint.attempt,
            fence: grant.fence,
            at: grant.at,
            next: Next::Tick { nominal: grant.at, due: grant.at },
            verdict: Verdict::Done,
            reason: None,
            code: None,
            slack: Duration::ZERO,
            spawned: Vec::new(),
            failed: Vec::new(),
            ran: true,
            left_out: Default::default(),
            carry: None,
            learned: None,
            parent: hint.parent,
            from_batch: false,
            members: Vec::new(),
            chains: Vec::new(),
            progress: None,
        }
    }

    /// Also where the end of the rotation's run was fenced, since the chain had begun anew meanwhile.
    #[tokio::test(start_paused = true)]
    async fn a_manual_run_may_start_once_the_run_of_the_rotation_is_over() {
        for (finish, violated) in
            [(None, true), (Some(Finish::Applied(Vec::new())), false), (Some(Finish::Fenced), false)]
        {
            let observer = World::new(1, &Plan { faults: Vec::new() }, false).unwrap().observer;
            let (process, claimed) = (Process::new(0, 1), claim("gamma", Duration::ZERO));
            observer.granted(&process, &claimed.0, &claimed.1);
            finish.iter().for_each(|finish| observer.finished(&end(&claimed), finish));
            let (mut request, mut grant) = claimed;
            (request.hint.epoch, grant.fence, grant.once) = (Epoch(2), Fence(2), true);
            observer.granted(&process, &request, &grant);
            let violations = observer.violations();
            assert_eq!(!violations.is_empty(), violated, "{finish:?}: {violations:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_may_be_late_by_the_window_of_the_queue_that_it_comes_from() {
        // The chain begins on `gamma`, which has no throttle; `alpha` allows ten in ten seconds.
        for (queue, seconds, too_late) in
            [("gamma", 3, false), ("gamma", 4, true), ("beta", 4, true), ("alpha", 13, false), ("alpha", 14, true)]
        {
            let mut world = World::new(1, &Plan { faults: Vec::new() }, false).unwrap();
            world.healed = Some(Instant::now());
            tokio::time::advance(STEADY).await;
            let (request, grant) = claim(queue, Duration::from_secs(seconds));
            world.observer.granted(&Process::new(0, 1), &request, &grant);
            world.judge().await;
            let violations = world.observer.violations();
            let late = violations.iter().any(|violation| violation.invariant == "I10");
            assert_eq!(late, too_late, "{queue}, {seconds} s: {violations:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn starts_of_others_explain_why_a_claim_is_late() {
        let world = World::new(1, &Plan { faults: Vec::new() }, false).unwrap();
        let (at, late) = (Instant::now() + Duration::from_secs(60), Duration::from_secs(20));
        let name = Name { kind: "quick".into(), key: "a".into(), once: false };
        // Starts while it waited, and before. Slots of `alpha` are 1.03125 s apart.
        for (queue, meanwhile, before, seconds) in
            [("gamma", 10, 0, 3.0), ("alpha", 0, 10, 13.0), ("alpha", 9, 0, 22.28125), ("alpha", 20, 9, 33.625)]
        {
            let claim = Late { at, late, name: name.clone(), queue: queue.into() };
            let starts = [vec![at - late * 2; before], vec![at - late / 2; meanwhile]].concat();
            let may = may_be_late(&world.config, &claim, &BTreeMap::from([("upstream", starts)]));
            assert_eq!(may, Duration::from_secs_f64(seconds), "{queue}, {meanwhile}");
        }
    }
}
