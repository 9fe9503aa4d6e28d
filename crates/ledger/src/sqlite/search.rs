//! What screens ask for, in SQL.

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::ids::Fence;
use rusqlite::{OptionalExtension, params};
use wildmatch::WildMatch;

use super::SqliteLedger;
use super::failed::{FITS, RECOVERED};
use super::orders::which_of;
use super::reports::{ATTEMPT, LISTED, attempt, listed, waits_for_twin};
use super::store::{Result, Store, time};
use crate::chain::ChainState;
use crate::decide::KeepJob;
use crate::error::LedgerError;
use crate::failed::FailureFilter;
use crate::look::{Condition, Cursor, ListFilter, Listed, sqlite_glob};
use crate::orders::ChainFilter;
use crate::reports::AttemptRecord;
use crate::search::{Found, NamedAttempt, QuarantinedMessage, ReasonCount, RunFilter, Search};

/// How many names can be read in their order at the cost of fetching one chain.
const FETCH: u32 = 8;
/// An owner with at most this many chains is searched by the owners' index.
const MAX_OWNER_INDEX: u32 = 10_000;

impl Store {
    fn search(
        &self,
        filter: &ListFilter,
        after: Option<Cursor>,
        now: Time,
        limit: u32,
        effort: u32,
    ) -> Result<Found<Listed, Cursor>> {
        if self.is_narrow(filter)? {
            let found = self.list_by(&which_of(&filter.which), filter, after, now, limit)?;
            let last = found.last().map(|last| (last.hint.kind.clone(), last.hint.key.clone()));
            return Ok(Found::new(found, limit, false, last));
        }
        let names = "SELECT epoch, kind, key FROM chains
                     WHERE (kind, key) > (?1, ?2) AND kind <= ?3 AND once = 0 AND parent = 0 ORDER BY kind, key";
        let row = format!(
            "SELECT {LISTED} FROM chains_now AS chains WHERE epoch = ?1
                 AND (?2 IS NULL OR owner = ?2) AND (?3 IS NULL OR queue = ?3) AND (?4 IS NULL OR state = ?4)
                 AND (NOT ?5 OR holder IN (SELECT session FROM sessions))
                 AND (?6 IS NULL OR (state = 0 AND due < ?6 AND holder NOT IN (SELECT session FROM sessions) AND batch_open = 0 AND NOT {waits}))",
            waits = waits_for_twin!("?7")
        );
        let ChainFilter { key, owner, like, queue, late_before, .. } = &filter.which;
        let like = like.as_deref().map(WildMatch::new);
        let (late_before, now) = (late_before.map(Time::as_millis), now.as_millis());
        let ((after_kind, after_key), last_kind) = filter.range(after);
        let (state, running) = filter.bounds();
        let (mut names, mut row) = (self.connection.prepare_cached(names)?, self.connection.prepare_cached(&row)?);
        let mut names = names.query(params![after_kind, after_key, last_kind])?;
        // Names cost little, and chains more.
        let mut left = i64::from(effort) * i64::from(FETCH);
        let (mut found, mut last, mut stopped) = (Vec::new(), None::<Cursor>, false);
        while let Some(name) = names.next()? {
            let (kind, of) = (name.get_ref(1)?.as_str()?, name.get_ref(2)?.as_str()?);
            left -= 1;
            if key.as_ref().is_none_or(|key| key == of) && like.as_ref().is_none_or(|like| like.matches(of)) {
                left -= i64::from(FETCH);
                let parameters = params![name.get::<_, i64>(0)?, owner, queue, state, running, late_before, now];
                found.extend(row.query_row(parameters, listed).optional()?);
            }
            stopped = left <= 0;
            if stopped || found.len() >= limit as usize {
                last = Some((kind.to_owned(), of.to_owned()));
                break;
            }
        }
        Ok(Found::new(found, limit, stopped, last))
    }

    /// Whether an index leads to what is looked for, and to little else.
    fn is_narrow(&self, filter: &ListFilter) -> Result<bool> {
        if let Some(Condition::State(state)) = filter.condition
            && state != ChainState::Active
        {
            return Ok(true);
        }
        let (Some(_), Some(_)) = (&filter.which.kind, &filter.which.key) else {
            let Some(owner) = &filter.which.owner else { return Ok(false) };
            let few = "SELECT count(*) <= ?2 FROM
                           (SELECT 1 FROM chains WHERE owner = ?1 AND once = 0 AND parent = 0 LIMIT ?2 + 1)";
            return self.connection.prepare_cached(few)?.query_row(params![owner, MAX_OWNER_INDEX], |row| row.get(0));
        };
        Ok(true)
    }

    fn histories(&self, fences: &[Fence], limit: u32) -> Result<Vec<Vec<AttemptRecord>>> {
        fences.iter().map(|fence| self.history(*fence, limit)).collect()
    }

    fn runs(
        &self,
        filter: &RunFilter,
        before: Option<Fence>,
        limit: u32,
        effort: u32,
    ) -> Result<Found<NamedAttempt, Fence>> {
        let sql = format!(
            "SELECT {ATTEMPT}, (SELECT kind FROM chains c WHERE c.epoch = a.epoch),
                    (SELECT key FROM chains c WHERE c.epoch = a.epoch)
             FROM attempts a WHERE fence < ?1 ORDER BY fence DESC"
        );
        let RunFilter { verdict, kind } = filter;
        let mut select = self.connection.prepare_cached(&sql)?;
        let mut rows = select.query([before.map_or(i64::MAX, Fence::get)])?;
        let (mut looked, mut found, mut last) = (0, Vec::new(), None);
        while let Some(row) = rows.next()? {
            looked += 1;
            last = Some(Fence(row.get(0)?));
            // Only what fits is read whole.
            let fits = verdict.is_none() || row.get_ref(VERDICT)?.as_str_or_null()? == verdict.as_deref();
            let fits = fits && (kind.is_none() || row.get_ref(AFTER_ATTEMPT)?.as_str_or_null()? == kind.as_deref());
            if fits {
                let name = row.get::<_, Option<String>>(AFTER_ATTEMPT)?.zip(row.get(AFTER_ATTEMPT + 1)?);
                found.push(NamedAttempt { record: attempt(row)?, name });
            }
            if looked >= effort || found.len() >= limit as usize {
                break;
            }
        }
        Ok(Found::new(found, limit, looked >= effort, last))
    }

    fn reasons(&self, filter: &FailureFilter) -> Result<Vec<ReasonCount>> {
        // With max(), SQLite takes the other columns of a group from the row that has it.
        let sql = format!(
            "SELECT f.kind, f.code, f.permanent, count(*) FILTER (WHERE f.item <> ''), count(*) FILTER (WHERE f.item = ''),
                    max(f.last_at), f.reason, count(*) FILTER (WHERE {RECOVERED})
             FROM failures f WHERE {FITS}
             GROUP BY f.kind, f.code, f.permanent,
                      iif(f.code IS NULL, substr(substr(f.reason, 1, instr(f.reason || ':', ':') - 1), 1, 60), NULL)
             ORDER BY count(*) DESC, f.kind, f.code, f.permanent, max(f.last_at)"
        );
        let FailureFilter { kind, key, like, owner, item, code, permanent, recovered } = filter;
        let like = like.as_deref().map(sqlite_glob);
        let mut select = self.connection.prepare_cached(&sql)?;
        let rows = select.query_map(params![kind, key, like, owner, item, code, permanent, recovered], |row| {
            let count = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
            Ok(ReasonCount {
                kind: row.get(0)?,
                code: row.get(1)?,
                permanent: row.get(2)?,
                parts: count(3)?,
                wholes: count(4)?,
                last_at: time(row, 5)?,
                example: row.get(6)?,
                recovered: count(7)?,
            })
        })?;
        rows.collect()
    }

    fn quarantined(&self, before: Option<i64>, limit: u32) -> Result<Vec<QuarantinedMessage>> {
        let sql = "SELECT number, at, source, reason, body FROM quarantine WHERE number < ?1
                   ORDER BY number DESC LIMIT ?2";
        let mut select = self.connection.prepare_cached(sql)?;
        let rows = select.query_map(params![before.unwrap_or(i64::MAX), limit], |row| {
            Ok(QuarantinedMessage {
                number: row.get(0)?,
                at: time(row, 1)?,
                from: row.get(2)?,
                reason: row.get(3)?,
                body: row.get(4)?,
            })
        })?;
        rows.collect()
    }

    fn forget_quarantined(&mut self, numbers: &[i64]) -> Result<u64> {
        let mut delete = self.connection.prepare_cached("DELETE FROM quarantine WHERE number = ?1")?;
        numbers.iter().try_fold(0, |count, number| Ok(count + delete.execute([number])? as u64))
    }
}

/// Where [`ATTEMPT`] has the verdict, and how many columns it has.
const VERDICT: usize = 8;
const AFTER_ATTEMPT: usize = 13;

#[async_trait]
impl Search for SqliteLedger {
    async fn search(
        &self,
        filter: ListFilter,
        after: Option<Cursor>,
        limit: u32,
        effort: u32,
    ) -> Result<Found<Listed, Cursor>, LedgerError> {
        let now = self.clock.now();
        self.read(move |store| store.search(&filter, after, now, limit, effort)).await
    }

    async fn histories(&self, fences: Vec<Fence>, limit: u32) -> Result<Vec<Vec<AttemptRecord>>, LedgerError> {
        self.read(move |store| store.histories(&fences, limit)).await
    }

    async fn runs(
        &self,
        filter: RunFilter,
        before: Option<Fence>,
        limit: u32,
        effort: u32,
    ) -> Result<Found<NamedAttempt, Fence>, LedgerError> {
        self.read(move |store| store.runs(&filter, before, limit, effort)).await
    }

    async fn reasons(&self, filter: FailureFilter) -> Result<Vec<ReasonCount>, LedgerError> {
        self.read(move |store| store.reasons(&filter)).await
    }

    async fn quarantined(&self, before: Option<i64>, limit: u32) -> Result<Vec<QuarantinedMessage>, LedgerError> {
        self.read(move |store| store.quarantined(before, limit)).await
    }

    async fn retry_quarantined(&self, number: i64, id: String, body: Vec<u8>) -> Result<bool, LedgerError> {
        let (clock, keep) = (self.clock.clone(), KeepJob { id, body });
        let retry = move |store: &mut Store| {
            let there = store.forget_quarantined(&[number])? > 0;
            if there {
                store.carry_out(&keep, clock.now())?;
            }
            Ok(there)
        };
        self.writer.write(retry).await
    }

    async fn forget_quarantined(&self, numbers: Vec<i64>) -> Result<u64, LedgerError> {
        self.writer.write(move |store| store.forget_quarantined(&numbers)).await
    }
}
