//! The ledger as a worker in a simulation sees it: the real one, with latency and faults in
//! between. The observer gets every commit, even when the answer to the caller is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use roundelay_ledger::access::{
    AuditEntry, Begun, Hash, KeptAnswer, KeyedRequest, NewAuditEntry, NewToken, Token, TokenCreated,
};
use roundelay_ledger::*;
use roundelay_model::calendar::Calendar;
use roundelay_model::clock::Time;
use roundelay_model::deaths::Hands;
use roundelay_model::failure::{FailedItem, Failure, ItemEnd};
use roundelay_model::fleet::{FleetOrder, FleetOrders, Presence, Subject, ThroughputSample};
use roundelay_model::ids::{Epoch, Fence};
use roundelay_model::pacing::orders::{Orders, ThrottleOrder};
use roundelay_model::pacing::{SlotRequest, SlotResponse};
use roundelay_model::progress::Progress;
use tokio::time::{Instant, sleep};

use super::astray::{Claims, Fate, OVERTAKEN, STUCK};
use super::observe::Observer;
use super::worker::Process;
use super::world::Weather;

/// One process's way to the ledger.
pub struct SimulatedLedger {
    /// The real one.
    pub inner: Arc<dyn Ledger>,
    /// What goes wrong.
    pub weather: Arc<Weather>,
    /// Who is told.
    pub observer: Arc<Observer>,
    /// Of these some go astray.
    pub claims: Arc<Claims>,
    /// Whose it is.
    pub process: Arc<Process>,
}

impl SimulatedLedger {
    /// The way to the ledger and back.
    async fn through<T>(
        &self,
        writes: bool,
        verb: impl Future<Output = Result<T, LedgerError>>,
    ) -> Result<T, LedgerError> {
        self.travel().await;
        if self.weather.ledger_down() || !self.process.has_ledger() {
            return Err(LedgerError::Statement("it is away".into()));
        }
        let answer = verb.await;
        self.travel().await;
        if !self.process.has_ledger() || writes && answer.is_ok() && self.weather.hide_answer() {
            return Err(LedgerError::Statement("the connection broke, who knows when".into()));
        }
        answer
    }

    async fn travel(&self) {
        let latency = self.weather.latency();
        if !latency.is_zero() {
            sleep(latency).await;
        }
        self.process.live().await;
    }
}

#[async_trait]
impl Rosters for SimulatedLedger {
    async fn enlisted(&self, kind: String, after: String, limit: u32) -> Result<Vec<Enlisted>, LedgerError> {
        self.through(false, self.inner.enlisted(kind, after, limit)).await
    }

    async fn depart(&self, epochs: Vec<Epoch>) -> Result<u64, LedgerError> {
        self.through(true, self.inner.depart(epochs)).await
    }

    async fn departed(&self, kind: String, keys: Vec<String>) -> Result<Vec<String>, LedgerError> {
        self.through(false, self.inner.departed(kind, keys)).await
    }
}

#[async_trait]
impl Slots for SimulatedLedger {
    async fn slots(&self, requests: Vec<SlotRequest>) -> Result<Vec<SlotResponse>, LedgerError> {
        let verb = async {
            // As PostgreSQL's does, which a worker asks for the time with each of these.
            self.inner.read_clock().await?;
            self.inner.slots(requests).await
        };
        self.through(true, verb).await
    }

    async fn throttles(&self, limit: u32) -> Result<Vec<ThrottleRow>, LedgerError> {
        self.through(false, self.inner.throttles(limit)).await
    }

    async fn throttle(&self, name: String, key: Option<String>, limit: u32) -> Result<Vec<ThrottleRow>, LedgerError> {
        self.through(false, self.inner.throttle(name, key, limit)).await
    }

    async fn throttle_orders(&self) -> Result<BTreeMap<String, Orders>, LedgerError> {
        self.through(false, self.inner.throttle_orders()).await
    }

    async fn order_throttle(&self, name: String, order: ThrottleOrder, by: String) -> Result<Orders, LedgerError> {
        self.through(true, self.inner.order_throttle(name, order, by)).await
    }

    async fn forget_idle(&self, limit: u32) -> Result<usize, LedgerError> {
        self.through(true, self.inner.forget_idle(limit)).await
    }
}

#[async_trait]
impl Sessions for SimulatedLedger {
    async fn begin_session(&self, worker: String, lease: Duration) -> Result<i64, LedgerError> {
        let verb = async {
            let session = self.inner.begin_session(worker, lease).await?;
            self.observer.session_began(session, &self.process);
            Ok(session)
        };
        let asked = Instant::now();
        let session = self.through(true, verb).await?;
        self.observer.kept_up(session, asked, lease);
        Ok(session)
    }

    async fn beat(&self, session: i64, dead: Vec<(i64, i64)>) -> Result<Beat, LedgerError> {
        let verb = async {
            let mut beat = self.inner.beat(session, dead).await?;
            beat.ended.iter().for_each(|ended| self.observer.taken_for_dead(*ended, &self.process));
            for other in &mut beat.others {
                other.gone = self.observer.is_gone(other.session, &self.process);
            }
            Ok(beat)
        };
        let asked = Instant::now();
        let beat = self.through(true, verb).await?;
        if beat.alive {
            self.observer.renewed(session, asked);
        }
        Ok(beat)
    }

    async fn end_session(&self, session: i64) -> Result<(), LedgerError> {
        let verb = async {
            self.inner.end_session(session).await?;
            self.observer.session_ended(session);
            Ok(())
        };
        self.through(true, verb).await
    }

    async fn hold(&self, claims: Vec<ClaimId>) -> Result<Vec<bool>, LedgerError> {
        self.through(false, self.inner.hold(claims)).await
    }

    async fn give_up(&self, session: i64, claims: Vec<ClaimId>) -> Result<(), LedgerError> {
        let verb = async {
            self.inner.give_up(session, claims.clone()).await?;
            self.observer.gave_up(&claims);
            Ok(())
        };
        self.through(true, verb).await
    }

    async fn orphans(
        &self,
        queue: String,
        kinds: Kinds,
        left: OrphanFilter,
        limit: u32,
    ) -> Result<Vec<Overdue>, LedgerError> {
        self.through(false, self.inner.orphans(queue, kinds, left, limit)).await
    }
}

#[async_trait]
impl Fleet for SimulatedLedger {
    async fn attend(&self, presence: Presence, pulses: Vec<ThroughputSample>) -> Result<(), LedgerError> {
        self.observer.attends(&self.process, &presence.worker);
        self.through(true, self.inner.attend(presence, pulses)).await
    }

    async fn leave(&self, worker: String) -> Result<(), LedgerError> {
        self.through(true, self.inner.leave(worker)).await
    }

    async fn workers(&self) -> Result<Vec<SeenWorker>, LedgerError> {
        self.through(false, self.inner.workers()).await
    }

    async fn pulses(&self, since: Time) -> Result<Vec<ThroughputSample>, LedgerError> {
        self.through(false, self.inner.pulses(since)).await
    }

    async fn fleet_orders(&self) -> Result<BTreeMap<Subject, FleetOrders>, LedgerError> {
        let orders = self.through(false, self.inner.fleet_orders()).await?;
        self.observer.learned(&self.process, &orders);
        Ok(orders)
    }

    async fn order_fleet(&self, subject: Subject, order: FleetOrder, by: String) -> Result<FleetOrders, LedgerError> {
        self.through(true, self.inner.order_fleet(subject, order, by)).await
    }
}

#[async_trait]
impl Search for SimulatedLedger {
    async fn search(
        &self,
        filter: ListFilter,
        after: Option<Cursor>,
        limit: u32,
        effort: u32,
    ) -> Result<Found<Listed, Cursor>, LedgerError> {
        self.through(false, self.inner.search(filter, after, limit, effort)).await
    }

    async fn histories(&self, fences: Vec<Fence>, limit: u32) -> Result<Vec<Vec<AttemptRecord>>, LedgerError> {
        self.through(false, self.inner.histories(fences, limit)).await
    }

    async fn runs(
        &self,
        filter: RunFilter,
        before: Option<Fence>,
        limit: u32,
        effort: u32,
    ) -> Result<Found<NamedAttempt, Fence>, LedgerError> {
        self.through(false, self.inner.runs(filter, before, limit, effort)).await
    }

    async fn reasons(&self, filter: FailureFilter) -> Result<Vec<ReasonCount>, LedgerError> {
        self.through(false, self.inner.reasons(filter)).await
    }

    async fn quarantined(&self, before: Option<i64>, limit: u32) -> Result<Vec<QuarantinedMessage>, LedgerError> {
        self.through(false, self.inner.quarantined(before, limit)).await
    }

    async fn forget_quarantined(&self, numbers: Vec<i64>) -> Result<u64, LedgerError> {
        self.through(true, self.inner.forget_quarantined(numbers)).await
    }

    async fn retry_quarantined(&self, number: i64, id: String, body: Vec<u8>) -> Result<bool, LedgerError> {
        self.through(true, self.inner.retry_quarantined(number, id, body)).await
    }

    async fn advance_all(&self, which: ChainFilter, limit: u32, slack: Duration) -> Result<Vec<Hint>, LedgerError> {
        self.through(true, self.inner.advance_all(which, limit, slack)).await
    }
}

#[async_trait]
impl StoredTexts for SimulatedLedger {
    async fn stored_texts(&self, of: TextColumn, after: i64, limit: u32) -> Result<Vec<StoredText>, LedgerError> {
        self.through(false, self.inner.stored_texts(of, after, limit)).await
    }

    async fn replace_texts(&self, of: TextColumn, changes: Vec<TextReplacement>) -> Result<Vec<bool>, LedgerError> {
        self.through(true, self.inner.replace_texts(of, changes)).await
    }
}

#[async_trait]
impl Measured for SimulatedLedger {
    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }

    async fn size(&self) -> Result<Size, LedgerError> {
        self.through(false, self.inner.size()).await
    }
}

#[async_trait]
impl History for SimulatedLedger {
    async fn end_left(&self, limit: u32) -> Result<(), LedgerError> {
        self.through(true, self.inner.end_left(limit)).await
    }

    async fn left_with(&self, session: i64, limit: u32) -> Result<Vec<ClaimId>, LedgerError> {
        self.through(false, self.inner.left_with(session, limit)).await
    }

    async fn archive(&self, before: Time, limit: u32) -> Result<usize, LedgerError> {
        self.through(true, self.inner.archive(before, limit)).await
    }

    async fn expire(&self, before: Time, limit: u32) -> Result<usize, LedgerError> {
        self.through(true, self.inner.expire(before, limit)).await
    }
}

#[async_trait]
impl Access for SimulatedLedger {
    async fn create_token(&self, token: NewToken) -> Result<TokenCreated, LedgerError> {
        self.through(true, self.inner.create_token(token)).await
    }

    async fn token(&self, hash: Hash) -> Result<Option<Token>, LedgerError> {
        self.through(false, self.inner.token(hash)).await
    }

    async fn tokens(&self) -> Result<Vec<Token>, LedgerError> {
        self.through(false, self.inner.tokens()).await
    }

    async fn revoke_token(&self, name: String) -> Result<bool, LedgerError> {
        self.through(true, self.inner.revoke_token(name)).await
    }

    async fn token_used(&self, id: i64) -> Result<(), LedgerError> {
        self.through(true, self.inner.token_used(id)).await
    }

    async fn begin_audit(&self, entry: NewAuditEntry) -> Result<i64, LedgerError> {
        self.through(true, self.inner.begin_audit(entry)).await
    }

    async fn end_audit(&self, number: i64, status: u16, detail: Option<String>) -> Result<(), LedgerError> {
        self.through(true, self.inner.end_audit(number, status, detail)).await
    }

    async fn audit(&self, before: Option<i64>, limit: u32) -> Result<Vec<AuditEntry>, LedgerError> {
        self.through(false, self.inner.audit(before, limit)).await
    }

    async fn begin_request(&self, request: KeyedRequest, lease: Duration) -> Result<Begun, LedgerError> {
        self.through(true, self.inner.begin_request(request, lease)).await
    }

    async fn renew_request(&self, held: i64, lease: Duration) -> Result<bool, LedgerError> {
        self.through(true, self.inner.renew_request(held, lease)).await
    }

    async fn end_request(&self, held: i64, answer: Option<KeptAnswer>) -> Result<(), LedgerError> {
        self.through(true, self.inner.end_request(held, answer)).await
    }

    async fn forget_access(&self, limit: u32) -> Result<usize, LedgerError> {
        self.through(true, self.inner.forget_access(limit)).await
    }
}

#[async_trait]
impl Running for SimulatedLedger {
    async fn note_running(
        &self,
        worker: String,
        jobs: Vec<RunningJob>,
        ended: Vec<String>,
        hold: Duration,
    ) -> Result<(), LedgerError> {
        self.through(true, self.inner.note_running(worker, jobs, ended, hold)).await
    }

    async fn hands(&self, job: String, session: i64) -> Result<Hands, LedgerError> {
        self.through(false, self.inner.hands(job, session)).await
    }

    async fn take_in_hand(&self, job: String, session: i64) -> Result<(), LedgerError> {
        self.through(true, self.inner.take_in_hand(job, session)).await
    }

    async fn out_of_hand(&self, job: String) -> Result<(), LedgerError> {
        self.through(true, self.inner.out_of_hand(job)).await
    }

    async fn running(&self, kind: String, key: String) -> Result<Vec<RunningJob>, LedgerError> {
        self.through(false, self.inner.running(kind, key)).await
    }
}

#[async_trait]
impl Failures for SimulatedLedger {
    async fn failed(
        &self,
        filter: FailureFilter,
        after: Option<FailureCursor>,
        limit: u32,
    ) -> Result<Vec<Failure>, LedgerError> {
        self.through(false, self.inner.failed(filter, after, limit)).await
    }

    async fn count_failed(&self, filter: FailureFilter) -> Result<(u64, u64), LedgerError> {
        self.through(false, self.inner.count_failed(filter)).await
    }

    async fn retry_failed(&self, filter: FailureFilter) -> Result<u64, LedgerError> {
        self.through(true, self.inner.retry_failed(filter)).await
    }

    async fn drop_failed(&self, filter: FailureFilter) -> Result<u64, LedgerError> {
        self.through(true, self.inner.drop_failed(filter)).await
    }

    async fn due_items(&self, kind: String, limit: u32) -> Result<Vec<DueItem>, LedgerError> {
        self.through(false, self.inner.due_items(kind, limit)).await
    }

    async fn plan_items(&self, planned: Vec<PlannedItem>) -> Result<Vec<bool>, LedgerError> {
        self.through(true, self.inner.plan_items(planned)).await
    }

    async fn hold_item(&self, id: String, length: Duration) -> Result<Hold, LedgerError> {
        self.through(true, self.inner.hold_item(id, length)).await
    }

    async fn put_off_item(&self, id: String, until: Time) -> Result<(), LedgerError> {
        self.through(true, self.inner.put_off_item(id, until)).await
    }

    async fn end_item(&self, id: String, end: ItemEnd, at: Time) -> Result<(), LedgerError> {
        self.through(true, self.inner.end_item(id, end, at)).await
    }
}

#[async_trait]
impl Ledger for SimulatedLedger {
    fn id(&self) -> &str {
        self.inner.id()
    }

    fn now(&self) -> Time {
        self.inner.now()
    }

    fn calendar(&self) -> Arc<Calendar> {
        self.inner.calendar()
    }

    async fn read_clock(&self) -> Result<(), LedgerError> {
        self.through(false, self.inner.read_clock()).await
    }

    async fn enroll(&self, chains: Vec<NewChain>) -> Result<Vec<Enrolled>, LedgerError> {
        self.through(true, self.inner.enroll(chains)).await
    }

    async fn enrolled_sent(&self, sent: Vec<Sent>, slack: Duration) -> Result<(), LedgerError> {
        self.through(true, self.inner.enrolled_sent(sent, slack)).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claim, LedgerError> {
        let forbidden = self.observer.forbidden(&self.process, &request.hint.queue);
        let verb = async {
            let claim = self.inner.claim(request.clone()).await?;
            if let Claim::Granted(grant) = &claim {
                self.observer.granted(&self.process, &request, grant);
                if let Some(why) = &forbidden {
                    self.observer
                        .violated("I8", format!("{} {}: claimed, though {why}", request.hint.kind, request.hint.key));
                }
            }
            Ok(claim)
        };
        self.observer.asks(&self.process, request.session);
        match self.claims.fate(&self.process, &request) {
            Fate::Arrives => self.through(true, verb).await,
            Fate::Lost => Err(LedgerError::Statement("the connection broke before".into())),
            Fate::Overtaken { fault } => {
                self.claims.tell(&self.process, &request, fault);
                sleep(OVERTAKEN).await;
                self.through(true, verb).await
            }
            Fate::Stuck { fault } => {
                self.claims.tell(&self.process, &request, fault);
                sleep(STUCK).await;
                self.process.live().await;
                Err(LedgerError::Statement("the connection broke before".into()))
            }
            Fate::Unheard { fault } => {
                self.through(true, verb).await?;
                self.claims.tell(&self.process, &request, fault);
                Err(LedgerError::Statement("the connection broke after".into()))
            }
        }
    }

    async fn finish(&self, request: FinishRequest) -> Result<Finish, LedgerError> {
        let verb = async {
            let finish = self.inner.finish(request.clone()).await?;
            self.observer.finished(&request, &finish);
            Ok(finish)
        };
        self.through(true, verb).await
    }

    fn mark_sent(&self, sent: Sent) {
        if self.process.is_alive() && !self.weather.ledger_down() {
            self.inner.mark_sent(sent);
        }
    }

    async fn flush(&self) -> Result<(), LedgerError> {
        self.through(true, self.inner.flush()).await
    }

    async fn overdue(
        &self,
        queue: String,
        kinds: Kinds,
        now: Time,
        session: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Overdue>, LedgerError> {
        self.through(false, self.inner.overdue(queue, kinds, now, session, limit)).await
    }

    async fn look_again(&self, looks: Vec<LookAgain>) -> Result<Vec<bool>, LedgerError> {
        let verb = async {
            let mine = self.inner.look_again(looks.clone()).await?;
            self.observer.looked(&looks, &mine);
            Ok(mine)
        };
        self.through(true, verb).await
    }

    async fn messages(
        &self,
        queues: Vec<String>,
        kinds: Kinds,
        after: Epoch,
        limit: u32,
    ) -> Result<Vec<Hint>, LedgerError> {
        self.through(false, self.inner.messages(queues, kinds, after, limit)).await
    }

    async fn record_failure(&self, kind: String, key: String, failed: FailedItem, at: Time) -> Result<(), LedgerError> {
        self.through(true, self.inner.record_failure(kind, key, failed, at)).await
    }

    async fn failures(&self, limit: u32) -> Result<Vec<Failure>, LedgerError> {
        self.through(false, self.inner.failures(limit)).await
    }

    async fn quarantine(
        &self,
        from: String,
        reason: String,
        body: Vec<u8>,
        job: Option<String>,
        at: Time,
    ) -> Result<(), LedgerError> {
        self.through(true, self.inner.quarantine(from, reason, body, job, at)).await
    }

    async fn keep_job(&self, id: String, body: Vec<u8>) -> Result<(), LedgerError> {
        self.through(true, self.inner.keep_job(id, body)).await
    }

    async fn kept_jobs(&self, after: i64, limit: u32) -> Result<Vec<KeptJob>, LedgerError> {
        self.through(false, self.inner.kept_jobs(after, limit)).await
    }

    async fn take_jobs(&self, after: i64, before: Time, limit: u32) -> Result<Vec<KeptJob>, LedgerError> {
        self.through(true, self.inner.take_jobs(after, before, limit)).await
    }

    async fn accept(
        &self,
        kind: String,
        key: String,
        spawned: Vec<SpawnedJob>,
        chains: Vec<NewChain>,
        failed: Vec<FailedItem>,
    ) -> Result<Vec<Hint>, LedgerError> {
        let verb = async {
            let begun = self.inner.accept(kind, key, spawned.clone(), chains, failed).await?;
            self.observer.accepted(&spawned);
            Ok(begun)
        };
        self.through(true, verb).await
    }

    async fn note_progress(&self, runs: Vec<(Fence, Progress)>) -> Result<(), LedgerError> {
        self.through(true, self.inner.note_progress(runs)).await
    }

    async fn forget_jobs(&self, ids: Vec<String>) -> Result<(), LedgerError> {
        self.through(true, self.inner.forget_jobs(ids)).await
    }

    async fn owner(&self, owner: String) -> Result<ChainState, LedgerError> {
        self.through(false, self.inner.owner(owner)).await
    }

    async fn reserve(&self, kind: String, key: String, id: String, window: Duration) -> Result<String, LedgerError> {
        let verb = async {
            let holder = self.inner.reserve(kind.clone(), key.clone(), id.clone(), window).await?;
            self.observer.reserved((kind, key), &id, &holder, (self.inner.now(), window));
            Ok(holder)
        };
        self.through(true, verb).await
    }

    async fn release(&self, kind: String, key: String, id: String) -> Result<(), LedgerError> {
        let verb = async {
            self.inner.release(kind.clone(), key.clone(), id.clone()).await?;
            self.observer.released((kind, key), &id);
            Ok(())
        };
        self.through(true, verb).await
    }

    async fn advance(&self, kind: String, key: String, slack: Duration) -> Result<Option<Hint>, LedgerError> {
        self.through(true, self.inner.advance(kind, key, slack)).await
    }

    async fn set_schedule(&self, kind: String, key: String, schedule: Option<String>) -> Result<bool, LedgerError> {
        self.through(true, self.inner.set_schedule(kind, key, schedule)).await
    }

    async fn reschedule(&self, moves: Vec<Move>) -> Result<Vec<Option<Hint>>, LedgerError> {
        self.through(true, self.inner.reschedule(moves)).await
    }

    async fn matching(&self, which: ChainFilter, order: ChainOrder) -> Result<u64, LedgerError> {
        self.through(false, self.inner.matching(which, order)).await
    }

    async fn list(&self, filter: ListFilter, after: Option<Cursor>, limit: u32) -> Result<Vec<Listed>, LedgerError> {
        self.through(false, self.inner.list(filter, after, limit)).await
    }

    async fn owners(&self, after: String, limit: u32) -> Result<Vec<OwnerCensus>, LedgerError> {
        self.through(false, self.inner.owners(after, limit)).await
    }

    async fn history(&self, fence: Fence, limit: u32) -> Result<Vec<AttemptRecord>, LedgerError> {
        self.through(false, self.inner.history(fence, limit)).await
    }

    async fn failures_of(&self, kind: String, key: String) -> Result<Vec<Failure>, LedgerError> {
        self.through(false, self.inner.failures_of(kind, key)).await
    }

    async fn order_chains(&self, which: ChainFilter, order: ChainOrder) -> Result<u64, LedgerError> {
        let ended = match (&order, &which.kind, &which.key) {
            (ChainOrder::Retire, Some(kind), Some(key)) => Some((kind.clone(), key.clone())),
            _ => None,
        };
        let changed = self.through(true, self.inner.order_chains(which, order)).await?;
        if let Some((kind, key)) = ended {
            self.observer.retired(&kind, &key);
        }
        Ok(changed)
    }

    async fn chains(&self, kind: String, key: String) -> Result<Vec<ChainView>, LedgerError> {
        self.through(false, self.inner.chains(kind, key)).await
    }

    async fn furthest(&self, queue: String, limit: u32) -> Result<Vec<Listed>, LedgerError> {
        self.through(false, self.inner.furthest(queue, limit)).await
    }

    async fn late(&self, before: Time, limit: u32) -> Result<Vec<LateChain>, LedgerError> {
        self.through(false, self.inner.late(before, limit)).await
    }

    async fn attempts(&self, after: Fence, limit: u32) -> Result<Vec<AttemptRecord>, LedgerError> {
        self.through(false, self.inner.attempts(after, limit)).await
    }

    async fn topology(&self) -> Result<Option<String>, LedgerError> {
        self.through(false, self.inner.topology()).await
    }

    async fn set_topology(&self, current: Option<String>, next: String) -> Result<bool, LedgerError> {
        self.through(true, self.inner.set_topology(current, next)).await
    }

    async fn prune(&self, before: Time, limit: u32) -> Result<usize, LedgerError> {
        self.through(true, self.inner.prune(before, limit)).await
    }

    async fn census(&self, slack: Duration) -> Result<Census, LedgerError> {
        self.through(false, self.inner.census(slack)).await
    }
}
