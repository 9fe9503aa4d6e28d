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
use roundelay_model::clock::Time;
use roundelay_model::deaths::Hands;
use roundelay_model::failure::{FailedItem, Failure, ItemEnd};
use roundelay_model::fleet::{FleetOrder, FleetOrders, Presence, Subject, ThroughputSample};
use roundelay_model::ids::{Epoch, Fence};
use roundelay_model::kind_stats::{KindBucket, Step};
use roundelay_model::pacing::orders::{Orders, ThrottleOrder};
use roundelay_model::pacing::{SlotRequest, SlotResponse};
use roundelay_model::progress::Progress;
use roundelay_model::wall_clock::WallClock;
use tokio::time::{Instant, sleep};

use super::astray::{Claims, Fate, OVERTAKEN, STUCK};
use super::observe::Observer;
use super::replay::Replay;
use super::worker::Process;
use super::world::FaultState;

/// One process's way to the ledger.
pub struct SimulatedLedger {
    /// The ledger that every process shares.
    pub inner: Arc<dyn Ledger>,
    /// The faults of the ledger and of the way to it.
    pub fault_state: Arc<FaultState>,
    /// Sees what was committed, and compares it with the invariants.
    pub observer: Arc<Observer>,
    /// Holds what was committed against the specification.
    pub replay: Arc<Replay>,
    /// Which claims are lost or held up on their way.
    pub claims: Arc<Claims>,
    /// The process whose connection this is.
    pub process: Arc<Process>,
}

impl SimulatedLedger {
    /// The way to the ledger and back, for a verb that only reads.
    async fn read<T>(&self, verb: impl Future<Output = Result<T, LedgerError>>) -> Result<T, LedgerError> {
        self.through(false, verb).await
    }

    /// The way to the ledger and back, for a verb that writes: its answer may be lost after the commit.
    async fn write<T>(&self, verb: impl Future<Output = Result<T, LedgerError>>) -> Result<T, LedgerError> {
        self.through(true, verb).await
    }

    async fn through<T>(
        &self,
        writes: bool,
        verb: impl Future<Output = Result<T, LedgerError>>,
    ) -> Result<T, LedgerError> {
        self.travel().await;
        if self.fault_state.ledger_down() || !self.process.has_ledger() {
            return Err(LedgerError::Statement("it is away".into()));
        }
        let answer = verb.await;
        self.travel().await;
        if !self.process.has_ledger() || writes && answer.is_ok() && self.fault_state.hide_answer() {
            return Err(LedgerError::Statement("the connection broke, who knows when".into()));
        }
        answer
    }

    async fn travel(&self) {
        let latency = self.fault_state.latency();
        if !latency.is_zero() {
            sleep(latency).await;
        }
        self.process.live().await;
    }
}

/// Implements a group of verbs. Those of `impl` go to the real ledger as they are, each by [`SimulatedLedger::read`] or
/// [`SimulatedLedger::write`]; the functions behind it are verbs of which the observer is told, or that go astray.
macro_rules! forward {
    (
        impl $group:ident { $($way:ident $verb:ident($($name:ident: $type:ty),* $(,)?) -> $answer:ty;)* }
        $($others:tt)*
    ) => {
        #[async_trait]
        impl $group for SimulatedLedger {
            $(async fn $verb(&self, $($name: $type),*) -> Result<$answer, LedgerError> {
                self.$way(self.inner.$verb($($name),*)).await
            })*

            $($others)*
        }
    };
}

/// Carries out an order for chains, and tells its replay, with what has become of chains that get new epochs.
///
/// # Errors
/// When it is not carried out.
pub async fn carry_out(
    ledger: &dyn Ledger,
    replay: &Replay,
    which: ChainFilter,
    order: ChainOrder,
) -> Result<u64, LedgerError> {
    let changed = ledger.order_chains(which.clone(), order).await?;
    let mut seen = Vec::new();
    if matches!(order, ChainOrder::Recover | ChainOrder::RecoverAll) {
        for (kind, key) in replay.entities() {
            seen.extend(ledger.chains(kind, key).await?);
        }
    }
    replay.ordered(&which, order, &seen);
    Ok(changed)
}

forward! {
    impl LedgerClock {
        read read_clock() -> ();
    }

    fn id(&self) -> &str {
        self.inner.id()
    }

    fn now(&self) -> Time {
        self.inner.now()
    }

    fn wall_clock(&self) -> Arc<WallClock> {
        self.inner.wall_clock()
    }
}

forward! {
    impl Protocol {
        write flush() -> ();
    }

    async fn enroll(&self, chains: Vec<NewChain>) -> Result<Vec<Enrolled>, LedgerError> {
        let verb = async {
            let enrolled = self.inner.enroll(chains.clone()).await?;
            self.replay.enrolled(&chains, &enrolled);
            Ok(enrolled)
        };
        self.write(verb).await
    }

    async fn enrolled_sent(&self, sent: Vec<Sent>, slack: Duration) -> Result<(), LedgerError> {
        let verb = async {
            self.inner.enrolled_sent(sent.clone(), slack).await?;
            self.replay.marked(&sent);
            Ok(())
        };
        self.write(verb).await
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
            self.replay.claimed(&request, &claim, self.inner.now());
            Ok(claim)
        };
        self.observer.asks(&self.process, request.session);
        match self.claims.fate(&self.process, &request) {
            Fate::Arrives => self.write(verb).await,
            Fate::Lost => Err(LedgerError::Statement("the connection broke before".into())),
            Fate::Overtaken { fault } => {
                self.claims.tell(&self.process, &request, fault);
                sleep(OVERTAKEN).await;
                self.write(verb).await
            }
            Fate::Stuck { fault } => {
                self.claims.tell(&self.process, &request, fault);
                sleep(STUCK).await;
                self.process.live().await;
                Err(LedgerError::Statement("the connection broke before".into()))
            }
            Fate::Unheard { fault } => {
                self.write(verb).await?;
                self.claims.tell(&self.process, &request, fault);
                Err(LedgerError::Statement("the connection broke after".into()))
            }
        }
    }

    async fn finish(&self, request: FinishRequest) -> Result<Finish, LedgerError> {
        let verb = async {
            let finish = self.inner.finish(request.clone()).await?;
            self.observer.finished(&request, &finish);
            self.replay.finishes(&request, &finish);
            Ok(finish)
        };
        self.write(verb).await
    }

    fn mark_sent(&self, sent: Sent) {
        if self.process.is_alive() && !self.fault_state.ledger_down() {
            self.inner.mark_sent(sent);
            self.replay.marked(&[sent]);
        }
    }
}

forward! {
    impl CatchUp {
        read overdue(queue: String, kinds: Kinds, now: Time, session: Option<i64>, limit: u32) -> Vec<Overdue>;
        read orphans(queue: String, kinds: Kinds, left: OrphanFilter, limit: u32) -> Vec<Overdue>;
        read messages(queues: Vec<String>, kinds: Kinds, after: Epoch, limit: u32) -> Vec<Hint>;
        read furthest(queue: String, limit: u32) -> Vec<Listed>;
    }

    async fn look_again(&self, looks: Vec<LookAgain>) -> Result<Vec<bool>, LedgerError> {
        let verb = async {
            let mine = self.inner.look_again(looks.clone()).await?;
            self.observer.looked(&looks, &mine);
            Ok(mine)
        };
        self.write(verb).await
    }
}

forward! {
    impl Sessions {
        read hold(claims: Vec<ClaimId>) -> Vec<bool>;
    }

    async fn begin_session(&self, worker: String, lease: Duration) -> Result<i64, LedgerError> {
        let verb = async {
            let session = self.inner.begin_session(worker, lease).await?;
            self.observer.session_began(session, &self.process);
            self.replay.session_begins(session, lease);
            Ok(session)
        };
        let asked = Instant::now();
        let session = self.write(verb).await?;
        self.observer.kept_up(session, asked, lease);
        Ok(session)
    }

    async fn beat(&self, session: i64, dead: Vec<(i64, i64)>) -> Result<Beat, LedgerError> {
        let verb = async {
            let mut beat = self.inner.beat(session, dead).await?;
            beat.ended.iter().for_each(|ended| self.observer.taken_for_dead(*ended, &self.process));
            self.replay.beats(session, beat.alive, &beat.ended, &self.process);
            for other in &mut beat.others {
                other.gone = self.observer.is_gone(other.session, &self.process);
            }
            Ok(beat)
        };
        let asked = Instant::now();
        let beat = self.write(verb).await?;
        if beat.alive {
            self.observer.renewed(session, asked);
        }
        Ok(beat)
    }

    async fn end_session(&self, session: i64) -> Result<(), LedgerError> {
        let verb = async {
            self.inner.end_session(session).await?;
            self.observer.session_ended(session);
            self.replay.session_over(session);
            Ok(())
        };
        self.write(verb).await
    }

    async fn give_up(&self, session: i64, claims: Vec<ClaimId>) -> Result<(), LedgerError> {
        let verb = async {
            self.inner.give_up(session, claims.clone()).await?;
            self.observer.gave_up(&claims);
            self.replay.let_go(session, &claims);
            Ok(())
        };
        self.write(verb).await
    }
}

forward! {
    impl Backlog {
        write leave_messages(messages: Vec<LeftMessage>) -> ();
        read waiting_tenants(queue: String, after: Option<String>, limit: u32) -> Vec<String>;
        write take_messages(queue: String, session: i64, shares: Vec<(String, u32)>) -> Vec<TakenMessage>;
        write forget_messages(session: i64, numbers: Vec<i64>) -> ();
        write return_messages(session: i64, queue: String, in_hand: Vec<i64>) -> u64;
        write clear_backlog() -> ();
        read backlog(queue: String, after: Option<String>, limit: u32, count: u32) -> Vec<TenantBacklog>;
        write take_seat(seat: Seat, most: u32) -> bool;
        write return_seat(seat: Seat) -> ();
        read ownership(epochs: Vec<i64>, payloads: bool) -> Vec<Option<Ownership>>;
    }
}

forward! {
    impl Jobs {
        write keep_job(id: String, body: Vec<u8>) -> ();
        read kept_jobs(after: i64, limit: u32) -> Vec<KeptJob>;
        write take_jobs(after: i64, before: Time, limit: u32) -> Vec<KeptJob>;
        write forget_jobs(ids: Vec<String>) -> ();
        write quarantine(from: String, reason: String, body: Vec<u8>, job: Option<String>, at: Time) -> ();
        read owner(owner: String) -> ChainState;
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
            let begun = self.inner.accept(kind, key, spawned.clone(), chains.clone(), failed).await?;
            self.observer.accepted(&spawned);
            self.replay.discovers(&chains, &begun);
            Ok(begun)
        };
        self.write(verb).await
    }

    async fn reserve(&self, kind: String, key: String, id: String, window: Duration) -> Result<String, LedgerError> {
        let verb = async {
            let holder = self.inner.reserve(kind.clone(), key.clone(), id.clone(), window).await?;
            self.observer.reserved((kind, key), &id, &holder, (self.inner.now(), window));
            Ok(holder)
        };
        self.write(verb).await
    }

    async fn release(&self, kind: String, key: String, id: String) -> Result<(), LedgerError> {
        let verb = async {
            self.inner.release(kind.clone(), key.clone(), id.clone()).await?;
            self.observer.released((kind, key), &id);
            Ok(())
        };
        self.write(verb).await
    }
}

forward! {
    impl Running {
        write note_running(worker: String, jobs: Vec<RunningJob>, ended: Vec<String>, hold: Duration) -> ();
        read hands(job: String, session: i64) -> Hands;
        write take_in_hand(job: String, session: i64) -> ();
        write out_of_hand(job: String) -> ();
        read running(kind: String, key: String) -> Vec<RunningJob>;
        read open_runs(worker: String, fences: Vec<Fence>, limit: u32, effort: u32) -> Vec<OpenRun>;
        write note_progress(runs: Vec<(Fence, Progress)>) -> ();
    }
}

forward! {
    impl Slots {
        read throttles(limit: u32) -> Vec<ThrottleRow>;
        read throttle(name: String, key: Option<String>, limit: u32) -> Vec<ThrottleRow>;
        read throttle_orders() -> BTreeMap<String, Orders>;
        write order_throttle(name: String, order: ThrottleOrder, by: String) -> Orders;
        write forget_idle(limit: u32) -> usize;
    }

    async fn slots(&self, requests: Vec<SlotRequest>) -> Result<Vec<SlotResponse>, LedgerError> {
        let verb = async {
            // As PostgreSQL's does, which a worker asks for the time with each of these.
            self.inner.read_clock().await?;
            self.inner.slots(requests).await
        };
        self.write(verb).await
    }
}

forward! {
    impl Rosters {
        read enlisted(kind: String, after: String, limit: u32) -> Vec<Enlisted>;
        write depart(epochs: Vec<Epoch>) -> u64;
        read departed(kind: String, keys: Vec<String>) -> Vec<String>;
    }
}

forward! {
    impl Topology {
        read topology() -> Option<String>;
        write set_topology(current: Option<String>, next: String) -> bool;
    }
}

forward! {
    impl History {
        read left_with(session: i64, limit: u32) -> Vec<ClaimId>;
        write archive(before: Time, limit: u32) -> usize;
        write expire(before: Time, limit: u32) -> usize;
        write prune(before: Time, limit: u32) -> usize;
    }

    async fn end_left(&self, limit: u32) -> Result<(), LedgerError> {
        let verb = async {
            self.inner.end_left(limit).await?;
            self.replay.left_ended();
            Ok(())
        };
        self.write(verb).await
    }
}

forward! {
    impl StoredTexts {
        read stored_texts(of: TextColumn, after: i64, limit: u32) -> Vec<StoredText>;
        write replace_texts(of: TextColumn, changes: Vec<TextReplacement>) -> Vec<bool>;
    }
}

forward! {
    impl Failures {
        read failed(filter: FailureFilter, after: Option<FailureCursor>, limit: u32) -> Vec<Failure>;
        read count_failed(filter: FailureFilter) -> (u64, u64);
        write retry_failed(filter: FailureFilter) -> u64;
        write drop_failed(filter: FailureFilter) -> u64;
        read due_items(kind: String, limit: u32) -> Vec<DueItem>;
        write plan_items(planned: Vec<PlannedItem>) -> Vec<bool>;
        write hold_item(id: String, length: Duration) -> Hold;
        write put_off_item(id: String, until: Time) -> ();
        write end_item(id: String, end: ItemEnd, at: Time) -> ();
        write record_failure(kind: String, key: String, failed: FailedItem, at: Time) -> ();
        read failures(limit: u32) -> Vec<Failure>;
        read failures_of(kind: String, key: String) -> Vec<Failure>;
    }
}

forward! {
    impl ChainOrders {
        read matching(which: ChainFilter, order: ChainOrder) -> u64;
        write set_schedule(kind: String, key: String, schedule: Option<String>) -> bool;
    }

    async fn advance(&self, kind: String, key: String, slack: Duration) -> Result<Option<Hint>, LedgerError> {
        let verb = async {
            let hint = self.inner.advance(kind, key, slack).await?;
            self.replay.moved(hint.as_slice(), true);
            Ok(hint)
        };
        self.write(verb).await
    }

    async fn advance_all(&self, which: ChainFilter, limit: u32, slack: Duration) -> Result<Vec<Hint>, LedgerError> {
        let verb = async {
            let hints = self.inner.advance_all(which, limit, slack).await?;
            self.replay.moved(&hints, true);
            Ok(hints)
        };
        self.write(verb).await
    }

    async fn reschedule(&self, moves: Vec<Move>) -> Result<Vec<Option<Hint>>, LedgerError> {
        let verb = async {
            let hints = self.inner.reschedule(moves).await?;
            hints.iter().for_each(|hint| self.replay.moved(hint.as_slice(), false));
            Ok(hints)
        };
        self.write(verb).await
    }

    async fn order_chains(&self, which: ChainFilter, order: ChainOrder) -> Result<u64, LedgerError> {
        let ended = match (&order, &which.kind, &which.key) {
            (ChainOrder::Retire, Some(kind), Some(key)) => Some((kind.clone(), key.clone())),
            _ => None,
        };
        let changed = self.write(carry_out(&*self.inner, &self.replay, which, order)).await?;
        if let Some((kind, key)) = ended {
            self.observer.retired(&kind, &key);
        }
        Ok(changed)
    }
}

forward! {
    impl Fleet {
        write leave(worker: String) -> ();
        read workers() -> Vec<SeenWorker>;
        read pulses(since: Time) -> Vec<ThroughputSample>;
        write note_kinds(worker: String, buckets: Vec<KindBucket>) -> ();
        read kinds(step: Step, since: Time) -> Vec<KindBucket>;
        write order_fleet(subject: Subject, order: FleetOrder, by: String) -> FleetOrders;
    }

    async fn attend(&self, presence: Presence, pulses: Vec<ThroughputSample>) -> Result<(), LedgerError> {
        self.observer.attends(&self.process, &presence.worker);
        self.write(self.inner.attend(presence, pulses)).await
    }

    async fn fleet_orders(&self) -> Result<BTreeMap<Subject, FleetOrders>, LedgerError> {
        let orders = self.read(self.inner.fleet_orders()).await?;
        self.observer.learned(&self.process, &orders);
        Ok(orders)
    }
}

forward! {
    impl Access {
        write create_token(token: NewToken) -> TokenCreated;
        read token(hash: Hash) -> Option<Token>;
        read tokens() -> Vec<Token>;
        write revoke_token(name: String) -> bool;
        write token_used(id: i64) -> ();
        write begin_audit(entry: NewAuditEntry) -> i64;
        write end_audit(number: i64, status: u16, detail: Option<String>) -> ();
        read audit(before: Option<i64>, limit: u32) -> Vec<AuditEntry>;
        write begin_request(request: KeyedRequest, lease: Duration) -> Begun;
        write renew_request(held: i64, lease: Duration) -> bool;
        write end_request(held: i64, answer: Option<KeptAnswer>) -> ();
        write forget_access(limit: u32) -> usize;
    }
}

forward! {
    impl Reports {
        read chains(kind: String, key: String) -> Vec<ChainView>;
        read list(filter: ListFilter, after: Option<Cursor>, limit: u32) -> Vec<Listed>;
        read owners(
            after: String,
            limit: u32,
            before: Time,
            except: Vec<String>,
            effort: u32,
        ) -> Vec<OwnerCensus>;
        read late(before: Time, except: Vec<String>, limit: u32) -> Vec<LateChain>;
        read longest_late(
            filter: ListFilter,
            except: Vec<String>,
            after: Option<LateCursor>,
            limit: u32,
        ) -> Vec<Listed>;
        read census(slack: Duration) -> Census;
        read history(fence: Fence, limit: u32) -> Vec<AttemptRecord>;
        read attempts(after: Fence, limit: u32) -> Vec<AttemptRecord>;
    }
}

forward! {
    impl Search {
        read search(filter: ListFilter, after: Option<Cursor>, limit: u32, effort: u32) -> Found<Listed, Cursor>;
        read histories(fences: Vec<Fence>, limit: u32) -> Vec<Vec<AttemptRecord>>;
        read runs(filter: RunFilter, before: Option<Fence>, limit: u32, effort: u32) -> Found<NamedAttempt, Fence>;
        read reasons(filter: FailureFilter, limit: u32) -> Vec<ReasonCount>;
        read quarantined(before: Option<i64>, limit: u32) -> Vec<QuarantinedMessage>;
        write forget_quarantined(numbers: Vec<i64>) -> u64;
        write retry_quarantined(number: i64, id: String, body: Vec<u8>) -> bool;
    }
}

forward! {
    impl Measured {
        read size() -> Size;
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
}
