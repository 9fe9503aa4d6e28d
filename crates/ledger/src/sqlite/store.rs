//! The verbs that write, in SQL. Plain and synchronous: [`super::writer`] calls them, and decides when a transaction
//! commits.

use std::sync::Arc;
use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::deaths::{SET_ASIDE, UNHEARD};
use roundelay_model::failure::{Batch, FailedItem};
use roundelay_model::guard::Manual;
use roundelay_model::ids::{Epoch, Fence, TickNo};
use roundelay_model::outcome::{Next, Verdict};
use roundelay_model::progress::Progress;
pub(super) use rusqlite::Result;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::chain::{ChainState, Hint, Holder, Sent};
use crate::claim::{Claim, ClaimRequest, Grant};
use crate::decide::grant::{ChainRow, ClaimDecision, decide_claim};
use crate::enroll::{Enrolled, NewChain};
use crate::finish::{Finish, FinishRequest, Member};
use crate::traffic::Counters;

/// The columns that [`hint`] reads, in its order.
pub(super) const HINT: &str = "epoch, kind, key, queue, tick, attempt, due, parent, priority";
/// How many columns that are.
pub(super) const AFTER_HINT: usize = 9;

/// An open ledger file.
pub struct Store {
    pub connection: Connection,
    pub counters: Arc<Counters>,
    /// The transaction that is open has handed out slots.
    pub slots: bool,
}

/// How many workers have died over the attempt of a claim, its own among them: back to the last record that is neither
/// `lost` nor `fenced`. The record of a run that was taken for dead and finished after all is `fenced`; a record that
/// is `lost` with a reason is not a death.
const DEATHS: &str = "
    WITH RECURSIVE claims AS (
        SELECT previous, epoch, tick, attempt, verdict, reason, 1 AS nth FROM attempts WHERE fence = ?1
        UNION ALL
        SELECT a.previous, a.epoch, a.tick, a.attempt, a.verdict, a.reason, c.nth + 1
        FROM claims c JOIN attempts a
            ON a.fence = c.previous AND a.epoch = c.epoch AND a.tick = c.tick AND a.attempt = c.attempt
        WHERE a.verdict IN ('lost', 'fenced') AND c.nth < 32)
    SELECT count(*) FROM claims WHERE verdict IS NULL OR (verdict = 'lost' AND reason IS NULL)";

impl Store {
    pub fn new(connection: Connection, counters: Arc<Counters>) -> Self {
        Self { connection, counters, slots: false }
    }
}

/// Who has claimed a chain, as [`holder`] reads it.
pub(super) const HOLDER: &str =
    "CASE WHEN holder = 0 THEN 0 WHEN holder IN (SELECT session FROM sessions) THEN 1 ELSE 2 END";

/// A chain as a claim finds it, with what only this ledger needs.
struct Found {
    chain: ChainRow,
    fence: Fence,
    payload: String,
    owner: Option<String>,
    carry: Option<String>,
    batch: Option<Batch>,
    depth: u32,
}

/// A chain as its holder finishes it.
struct Held {
    hint: Hint,
    state: ChainState,
    once: bool,
    owner: Option<String>,
    /// The tick of which a run last started, and when.
    started: (TickNo, Time),
}

pub(super) fn time(row: &Row<'_>, column: usize) -> Result<Time> {
    row.get(column).map(Time::from_millis)
}

pub(super) fn holder(row: &Row<'_>, column: usize) -> Result<Holder> {
    row.get(column).map(Holder::from_number)
}

pub(super) fn hint(row: &Row<'_>) -> Result<Hint> {
    Ok(Hint {
        epoch: Epoch(row.get(0)?),
        kind: row.get(1)?,
        key: row.get(2)?,
        queue: row.get(3)?,
        tick: TickNo(row.get(4)?),
        attempt: row.get(5)?,
        due: time(row, 6)?,
        parent: Epoch(row.get(7)?),
        priority: row.get(8)?,
    })
}

impl Store {
    pub fn enroll(&mut self, chains: &[NewChain], now: Time) -> Result<Vec<Enrolled>> {
        chains.iter().map(|chain| self.enroll_one(chain, now)).collect()
    }

    fn enroll_one(&mut self, chain: &NewChain, now: Time) -> Result<Enrolled> {
        let sql = "SELECT epoch, state, queue, payload, owner, schedule, priority,
                          holder = 0 AND batch_open = 0 AND started_tick < tick, tick FROM chains
                   WHERE kind = ?1 AND key = ?2 AND once = ?3 AND parent = 0";
        let (owner, schedule) = (chain.owner.as_deref(), chain.schedule.as_deref());
        let found = self
            .connection
            .prepare_cached(sql)?
            .query_row(params![chain.kind, chain.key, chain.once], |row| {
                let text = |column| row.get::<_, Option<String>>(column);
                let same = chain.is_like(
                    (&row.get::<_, String>(2)?, row.get(6)?),
                    &row.get::<_, String>(3)?,
                    text(4)?.as_deref(),
                    text(5)?.as_deref(),
                );
                let rescheduled = chain.reschedules(text(5)?.as_deref());
                let over = row.get::<_, bool>(7)?.then(|| row.get(8).map(TickNo)).transpose()?;
                Ok((Epoch(row.get(0)?), ChainState::from_number(row.get(1)?), same, rescheduled, over))
            })
            .optional()?;
        let (due, watch_at) = (chain.due.as_millis(), chain.watch_at.as_millis());
        let (epoch, tick) = match found {
            None => {
                let insert = "INSERT INTO chains (kind, key, once, queue, nominal, due, expected, watch_at, payload,
                                                  owner, schedule, depth, priority, manual, beside)
                              VALUES (?1, ?2, ?3, ?4, ?13, ?5, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12,
                                      NOT ?3 AND EXISTS (SELECT 1 FROM chains WHERE kind = ?1 AND key = ?2
                                                         AND once = 1 AND parent = 0 AND state <> 2))";
                self.connection.prepare_cached(insert)?.execute(params![
                    chain.kind,
                    chain.key,
                    chain.once,
                    chain.queue,
                    due,
                    watch_at,
                    chain.payload,
                    owner,
                    schedule,
                    chain.depth,
                    chain.priority,
                    chain.manual.number(),
                    chain.nominal.as_millis()
                ])?;
                (Epoch(self.connection.last_insert_rowid()), TickNo::FIRST)
            }
            Some((old, ChainState::Retired, _, _, over)) => {
                if !chain.revive && !chain.once {
                    return Ok(Enrolled::Retired);
                }
                // The manual runs of a chain are ticks of one epoch, so that their records stay its own. Only one that
                // was left in the middle is not gone on from.
                let (epoch, tick) = match over.filter(|_| chain.once) {
                    Some(tick) => (old, tick),
                    None => (self.new_epoch(old, now)?, TickNo::FIRST),
                };
                let revive = "UPDATE chains SET queue = ?2, nominal = ?13, due = ?3, expected = ?3, watch_at = ?4,
                                                payload = ?5, owner = ?6, schedule = ?7, depth = ?8, priority = ?9,
                                                tick = ?10, attempt = 1, sent = 0, looks = 0, manual = ?11, state = 0,
                                                started_tick = iif(?12, started_tick, 0),
                                                last_start = iif(?12, last_start, 0),
                                                last_finish = iif(?12, last_finish, 0), carry = NULL
                              WHERE epoch = ?1";
                self.connection.prepare_cached(revive)?.execute(params![
                    epoch.get(),
                    chain.queue,
                    due,
                    watch_at,
                    chain.payload,
                    owner,
                    schedule,
                    chain.depth,
                    chain.priority,
                    tick.get(),
                    chain.manual.number(),
                    epoch == old,
                    chain.nominal.as_millis()
                ])?;
                (epoch, tick)
            }
            Some(_) if chain.once || chain.only_new => return Ok(Enrolled::Unchanged),
            Some((_, _, true, ..)) => return Ok(Enrolled::Unchanged),
            Some((epoch, _, _, rescheduled, _)) => {
                let update = "UPDATE chains SET queue = ?2, payload = ?3, owner = ?4, priority = ?7,
                                                schedule = CASE WHEN ?6 THEN ?5 ELSE schedule END
                              WHERE epoch = ?1";
                self.connection.prepare_cached(update)?.execute(params![
                    epoch.get(),
                    chain.queue,
                    chain.payload,
                    owner,
                    schedule,
                    rescheduled,
                    chain.priority
                ])?;
                return Ok(Enrolled::Updated { rescheduled });
            }
        };
        if chain.once {
            let beside = "UPDATE chains SET beside = 1 WHERE kind = ?1 AND key = ?2 AND once = 0 AND parent = 0";
            self.connection.prepare_cached(beside)?.execute([&chain.kind, &chain.key])?;
        }
        Ok(Enrolled::Created(Hint {
            kind: chain.kind.clone(),
            key: chain.key.clone(),
            queue: chain.queue.clone(),
            epoch,
            tick,
            attempt: 1,
            due: chain.due,
            parent: Epoch::NONE,
            priority: chain.priority,
        }))
    }

    /// Gives a chain a new epoch, in which it has no message, no holder, and its first attempt
    /// before it. Its holder cannot finish any more, and the record of that attempt ends here.
    pub(super) fn new_epoch(&mut self, old: Epoch, now: Time) -> Result<Epoch> {
        self.fold_hot("SELECT ?1 AS epoch", [old.get()])?;
        self.connection
            .prepare_cached(
                "UPDATE attempts SET finished = ?2, verdict = 'lost' WHERE finished IS NULL
                 AND fence = (SELECT fence FROM chains WHERE epoch = ?1 AND holder <> 0)",
            )?
            .execute(params![old.get(), now.as_millis()])?;
        self.drop_members(old)?;
        let take = "UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'chains' RETURNING seq";
        let epoch: Epoch = self.connection.prepare_cached(take)?.query_row([], |row| row.get(0).map(Epoch))?;
        self.connection
            .prepare_cached(
                "UPDATE chains SET epoch = ?2, attempt = 1, sent = 0, looks = 0, holder = 0,
                                   batch_total = 0, batch_open = 0, batch_failed = 0
                 WHERE epoch = ?1",
            )?
            .execute([old.get(), epoch.get()])?;
        Ok(epoch)
    }

    /// Deletes the members of a chain's batch, which are not wanted any more. A run of one cannot be finished.
    fn drop_members(&mut self, parent: Epoch) -> Result<()> {
        self.fold_hot("SELECT epoch FROM chains WHERE parent = ?1 AND parent <> 0", [parent.get()])?;
        self.connection
            .prepare_cached("DELETE FROM chains WHERE parent = ?1 AND parent <> 0")?
            .execute([parent.get()])?;
        Ok(())
    }

    pub fn enrolled_sent(&mut self, sent: &[Sent], slack: Duration) -> Result<()> {
        let mut update = self.connection.prepare_cached(
            "UPDATE chains SET sent = 1, watch_at = ?5 WHERE epoch = ?1 AND tick = ?2 AND attempt = ?3 AND due = ?4",
        )?;
        for s in sent {
            let watch_at = (s.due + slack).as_millis();
            update.execute(params![s.epoch.get(), s.tick.get(), s.attempt, s.due.as_millis(), watch_at])?;
        }
        Ok(())
    }

    pub fn claim(&mut self, request: &ClaimRequest, now: Time) -> Result<Claim> {
        let asked = &request.hint;
        let mut found = match self.find("epoch = ?1", [asked.epoch.get()])? {
            Some(found) => Some(found),
            None if !asked.parent.is_none() => None,
            // Seldom: the chain has begun anew since, or this is an older copy of the ledger.
            None => {
                let newest = "kind = ?1 AND key = ?2 AND parent = 0 ORDER BY epoch DESC LIMIT 1";
                self.find(newest, [&asked.kind, &asked.key])?
            }
        };
        let is_left = |chain: &ChainRow| chain.holder == Holder::Gone || (chain.holder.runs() && request.takeover);
        if let Some(found) = found.as_mut().filter(|found| is_left(&found.chain)) {
            let deaths = self.connection.prepare_cached(DEATHS)?.query_row([found.fence.get()], |row| row.get(0));
            found.chain.deaths = deaths?;
        }
        let twin = match found.as_ref().map(|found| &found.chain).filter(|chain| chain.has_twin()) {
            Some(ChainRow { hint: Hint { kind, key, .. }, once, .. }) => {
                let other = "kind = ?1 AND key = ?2 AND once <> ?3 AND parent = 0";
                self.find(other, params![kind, key, once])?
            }
            None => None,
        };
        let rows = found.as_ref().zip(twin.as_ref());
        if let Some(rotation) = rows.and_then(|(found, twin)| found.chain.untold(&twin.chain)) {
            self.connection
                .prepare_cached("UPDATE chains SET beside = 1 WHERE epoch = ?1")?
                .execute([rotation.get()])?;
        }
        let refused =
            match decide_claim(found.as_ref().map(|f| &f.chain), twin.as_ref().map(|f| &f.chain), request, now) {
                ClaimDecision::Grant(refused) => refused,
                ClaimDecision::Answer(answer) => {
                    if let (Claim::Future, Some(found)) = (&answer, &found) {
                        self.connection
                            .prepare_cached("UPDATE chains SET state = 3 WHERE epoch = ?1 AND state <> 2")?
                            .execute([found.chain.hint.epoch.get()])?;
                    }
                    if let (Claim::SetAside, Some(found)) = (&answer, &found) {
                        self.set_aside(&found.chain.hint, found.fence, now)?;
                    }
                    if let Some((comes, watch_at)) = ChainRow::put_off(&answer).filter(|_| found.is_some()) {
                        let put_off = "UPDATE chains SET expected = max(expected, ?2), watch_at = max(watch_at, ?3)
                                   WHERE epoch = ?1";
                        let values = [asked.epoch.get(), comes.as_millis(), watch_at.as_millis()];
                        self.connection.prepare_cached(put_off)?.execute(values)?;
                    }
                    return Ok(answer);
                }
            };
        let Some(Found { mut chain, fence: previous, payload, owner, mut carry, batch, depth }) = found else {
            return Ok(Claim::Idle);
        };
        if let Some(rotation) = twin.filter(|_| chain.once) {
            (chain.schedule, carry) = (rotation.chain.schedule, rotation.carry);
        }
        let lost = chain.holder != Holder::None;
        if lost {
            // The holder never finished, and is gone; or never got the answer.
            let unheard = (request.again && chain.session == request.session).then_some(UNHEARD);
            self.connection
                .prepare_cached(
                    "UPDATE attempts SET finished = ?2, verdict = 'lost', reason = ?3
                     WHERE fence = ?1 AND finished IS NULL",
                )?
                .execute(params![previous.get(), now.as_millis(), unheard])?;
        }
        self.connection
            .prepare_cached(
                "INSERT INTO attempts (epoch, tick, attempt, previous, worker, due, started)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?
            .execute(params![
                request.hint.epoch.get(),
                request.hint.tick.get(),
                request.hint.attempt,
                previous.get(),
                request.worker,
                chain.hint.due.as_millis(),
                now.as_millis()
            ])?;
        let fence = Fence(self.connection.last_insert_rowid());
        if lost {
            // What is hot says who holds it now.
            let values = [request.hint.epoch.get(), ChainRow::watched_after_death(now).as_millis()];
            let free = "UPDATE chains SET holder = 0, looks = 0, watch_at = min(watch_at, ?2) WHERE epoch = ?1";
            self.connection.prepare_cached(free)?.execute(values)?;
        }
        let starts = refused.is_none() && batch.is_none();
        let (tick, start) = if starts { (chain.hint.tick, now) } else { (chain.started_tick, chain.last_start) };
        // A message that is claimed has been sent, whether or not the note of that has come.
        self.heat(request.hint.epoch, fence, request.session, true, (tick, start))?;
        Ok(Claim::Granted(Grant {
            fence,
            last_start: chain.last_start,
            nominal: chain.nominal,
            due: chain.hint.due,
            at: now,
            payload,
            once: chain.once,
            lost,
            refused,
            carry,
            owner,
            schedule: chain.schedule,
            batch,
            depth,
        }))
    }

    /// Too many workers have died while they ran a tick: its chain waits for a person.
    fn set_aside(&mut self, hint: &Hint, fence: Fence, now: Time) -> Result<()> {
        self.fold_hot("SELECT ?1 AS epoch", [hint.epoch.get()])?;
        let set_aside = "UPDATE chains SET state = 3, holder = 0 WHERE epoch = ?1";
        self.connection.prepare_cached(set_aside)?.execute([hint.epoch.get()])?;
        let lost = "UPDATE attempts SET finished = ?2, verdict = 'lost', reason = ?3
                    WHERE fence = ?1 AND finished IS NULL";
        self.connection.prepare_cached(lost)?.execute(params![fence.get(), now.as_millis(), SET_ASIDE])?;
        self.record_failure(&hint.kind, &hint.key, &FailedItem::new("", SET_ASIDE.to_owned()), now)
    }

    /// The first chain for which `condition` holds.
    fn find(&self, condition: &str, arguments: impl rusqlite::Params) -> Result<Option<Found>> {
        let sql = format!(
            "SELECT {HINT}, state, nominal, {HOLDER}, sent, once, started_tick, last_start, last_finish, batch_open,
                    fence, payload, owner, schedule, carry, batch_total, batch_failed, depth, manual, beside, holder
             FROM chains_now WHERE {condition}"
        );
        let found = self.connection.prepare_cached(&sql)?.query_row(arguments, |row| {
            let at = |column| AFTER_HINT + column;
            let chain = ChainRow {
                hint: hint(row)?,
                state: ChainState::from_number(row.get(at(0))?),
                nominal: time(row, at(1))?,
                holder: holder(row, at(2))?,
                session: row.get(at(19))?,
                deaths: 0,
                sent: row.get(at(3))?,
                once: row.get(at(4))?,
                started_tick: TickNo(row.get(at(5))?),
                last_start: time(row, at(6))?,
                last_finish: time(row, at(7))?,
                batch_open: row.get(at(8))?,
                schedule: row.get(at(12))?,
                manual: Manual::from_number(row.get(at(17))?),
                beside: row.get(at(18))?,
            };
            let batch = Batch { total: row.get(at(14))?, failed: row.get(at(15))? };
            Ok(Found {
                chain,
                fence: Fence(row.get(at(9))?),
                payload: row.get(at(10))?,
                owner: row.get(at(11))?,
                carry: row.get(at(13))?,
                batch: Some(batch).filter(|batch| batch.total > 0),
                depth: row.get(at(16))?,
            })
        });
        found.optional()
    }

    pub fn finish(&mut self, f: &FinishRequest) -> Result<Finish> {
        let held = self.held(f)?;
        if held.is_none() {
            let left = self.find("epoch = ?1 AND fence = ?2 AND holder = 0", [f.epoch.get(), f.fence.get()])?;
            if let Some(answer) = left.and_then(|found| f.written_before(&found.chain)) {
                return Ok(answer);
            }
        }
        let verdict = if held.is_some() { f.verdict.as_str() } else { "fenced" };
        self.connection
            .prepare_cached(
                "UPDATE attempts SET finished = ?2, verdict = ?3, reason = ?4, overlapped = ?5, misfired = ?6,
                                     progress = coalesce(?7, progress)
                 WHERE fence = ?1 AND (verdict IS NULL OR (verdict = 'lost' AND reason IS NULL))",
            )?
            .execute(params![
                f.fence.get(),
                f.at.as_millis(),
                verdict,
                f.reason,
                f.left_out.0,
                f.left_out.1,
                f.progress.as_ref().map(Progress::text)
            ])?;
        let Some(held) = held else { return Ok(Finish::Fenced) };
        let successor = self.move_on(f, &held)?;
        if held.once && held.hint.parent.is_none() {
            self.count_for_rotation(f, &held)?;
        }
        let Held { hint, owner, state, .. } = held;
        if let Some(whole) = f.failure() {
            self.record_failure(&hint.kind, &hint.key, &whole, f.at)?;
        }
        let mut messages = self.accept((&hint.kind, &hint.key), &f.spawned, &f.chains, &f.failed, f.at)?;
        if f.from_batch {
            self.drop_members(f.epoch)?;
        }
        if state != ChainState::Retired {
            messages.extend(self.begin_members(&hint, owner.as_deref(), f)?);
        }
        messages.extend(self.ended_member(f)?);
        messages.extend(successor);
        Ok(Finish::Applied(messages))
    }

    /// The chain of a finish, if the claim that finishes holds it.
    fn held(&self, f: &FinishRequest) -> Result<Option<Held>> {
        let sql = format!(
            "SELECT {HINT}, state, owner, started_tick, last_start, once FROM chains_now
             WHERE epoch = ?1 AND fence = ?2 AND holder <> 0"
        );
        let held = self.connection.prepare_cached(&sql)?.query_row([f.epoch.get(), f.fence.get()], |row| {
            Ok(Held {
                hint: hint(row)?,
                state: ChainState::from_number(row.get(AFTER_HINT)?),
                owner: row.get(AFTER_HINT + 1)?,
                started: (TickNo(row.get(AFTER_HINT + 2)?), time(row, AFTER_HINT + 3)?),
                once: row.get(AFTER_HINT + 4)?,
            })
        });
        held.optional()
    }

    /// Writes where a finish puts the chain, and releases it. Answers what is to be sent for it.
    fn move_on(&mut self, f: &FinishRequest, held: &Held) -> Result<Option<Hint>> {
        let (tick, attempt, due) = f.place();
        let (retired, waits) = (f.next == Next::End, f.next == Next::Gather);
        // A finish ends nothing but its own run, so a chain paused meanwhile stays paused.
        let state = if retired { ChainState::Retired } else { held.state };
        let sends = state == ChainState::Active && !waits;
        // `nominal` stays with a tick through its attempts and moves with the next one.
        let sql = "UPDATE chains
                   SET tick = ?3, attempt = ?4, due = ?5, nominal = coalesce(?6, nominal), fence = ?2,
                       holder = 0, sent = ?8, expected = ?5, watch_at = ?7, looks = 0, state = ?9,
                       started_tick = ?14, last_start = ?15,
                       last_finish = iif(?10, ?11, last_finish), carry = coalesce(?12, carry),
                       batch_total = ?13, batch_open = ?13, batch_failed = 0
                   WHERE epoch = ?1";
        let nominal = f.nominal().map(Time::as_millis);
        self.connection.prepare_cached(sql)?.execute(params![
            f.epoch.get(),
            f.fence.get(),
            tick.get(),
            attempt,
            due.as_millis(),
            nominal,
            f.watch_at().as_millis(),
            sends || waits,
            state as i64,
            f.ran,
            f.at.as_millis(),
            f.carry,
            // A retired chain waits for no batch.
            if state == ChainState::Retired { 0 } else { f.members.len() as i64 },
            held.started.0.get(),
            held.started.1.as_millis()
        ])?;
        if !sends {
            self.connection.prepare_cached("DELETE FROM hot_chains WHERE epoch = ?1")?.execute([f.epoch.get()])?;
            return Ok(None);
        }
        // What is left to do for this tick is to send the successor, and to note that.
        self.heat(f.epoch, f.fence, 0, false, held.started)?;
        Ok(Some(Hint { tick, attempt, due, ..held.hint.clone() }))
    }

    /// A manual run is a run of its chain: the rotation counts it, takes what it hands on, and ends when it says so.
    fn count_for_rotation(&mut self, f: &FinishRequest, manual: &Held) -> Result<()> {
        let Hint { kind, key, .. } = &manual.hint;
        let rotation = "SELECT epoch FROM chains WHERE kind = ?1 AND key = ?2 AND once = 0 AND parent = 0";
        self.fold_hot(rotation, [kind, key])?;
        let (ended, retired) = (f.next == Next::End, f.verdict == Verdict::Retired);
        if retired {
            // The members of its batch are not wanted any more. A run of one cannot be finished.
            let mut find = self.connection.prepare_cached(rotation)?;
            let epoch = find.query_row([kind, key], |row| row.get(0).map(Epoch)).optional()?;
            drop(find);
            epoch.map_or(Ok(()), |epoch| self.drop_members(epoch))?;
        }
        let count = "UPDATE chains
                     SET last_start = iif(?3, max(last_start, ?4), last_start),
                         last_finish = iif(?3, max(last_finish, ?5), last_finish),
                         carry = coalesce(?6, carry), beside = iif(?7, 0, beside), state = iif(?8, 2, state),
                         batch_open = iif(?8, 0, batch_open), batch_total = iif(?8, 0, batch_total)
                     WHERE kind = ?1 AND key = ?2 AND once = 0 AND parent = 0";
        let (start, end) = (manual.started.1.as_millis(), f.at.as_millis());
        self.connection
            .prepare_cached(count)?
            .execute(params![kind, key, f.ran, start, end, f.carry, ended, retired])?;
        Ok(())
    }

    /// Begins what the tick waits for.
    fn begin_members(&mut self, parent: &Hint, owner: Option<&str>, f: &FinishRequest) -> Result<Vec<Hint>> {
        let insert =
            "INSERT INTO chains (kind, key, once, parent, queue, nominal, due, expected, watch_at, payload, owner, depth)
                      VALUES (?1, ?2, 1, ?3, ?4, ?5, ?5, ?5, ?6, ?7, ?8, ?9)";
        let mut hints = Vec::with_capacity(f.members.len());
        for Member { kind, key, queue, payload, due, depth } in &f.members {
            let watch_at = (*due + f.slack).as_millis();
            self.connection.prepare_cached(insert)?.execute(params![
                kind,
                key,
                parent.epoch.get(),
                queue,
                due.as_millis(),
                watch_at,
                payload,
                owner,
                depth
            ])?;
            hints.push(Hint {
                kind: kind.clone(),
                key: key.clone(),
                queue: queue.clone(),
                epoch: Epoch(self.connection.last_insert_rowid()),
                tick: TickNo::FIRST,
                attempt: 1,
                due: *due,
                parent: parent.epoch,
                priority: None,
            });
        }
        Ok(hints)
    }

    /// A member of a batch that has ended is counted; after the last one, its chain is due.
    fn ended_member(&mut self, f: &FinishRequest) -> Result<Option<Hint>> {
        if f.parent.is_none() || f.next != Next::End {
            return Ok(None);
        }
        let count = format!(
            "UPDATE chains
                     SET batch_open = batch_open - 1, batch_failed = batch_failed + ?2,
                         due = iif(batch_open = 1, ?3, due), expected = iif(batch_open = 1, ?3, expected),
                         watch_at = iif(batch_open = 1, ?4, watch_at), sent = iif(batch_open = 1, 0, sent)
                     WHERE epoch = ?1 AND batch_open > 0
                     RETURNING {HINT}, state, batch_open"
        );
        let (at, watch_at) = (f.at.as_millis(), (f.at + f.slack).as_millis());
        let counted = self
            .connection
            .prepare_cached(&count)?
            .query_row(params![f.parent.get(), f.counts_as_failed(), at, watch_at], |row| {
                let state = ChainState::from_number(row.get(AFTER_HINT)?);
                let due = state == ChainState::Active && row.get::<_, i64>(AFTER_HINT + 1)? == 0;
                Ok(due.then_some(hint(row)?))
            })
            .optional()?;
        Ok(counted.flatten())
    }
}
