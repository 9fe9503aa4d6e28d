//! What screens ask for, in SQL.

use std::collections::BinaryHeap;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, Fence};
use rusqlite::{OptionalExtension, Row, params};
use wildmatch::WildMatch;

use super::SqliteLedger;
use super::failed::{FITS, RECOVERED};
use super::orders::which_of;
use super::reports::{ATTEMPT, LISTED, attempt, late, listed, waits_for_twin};
use super::store::{Result, Store, time};
use crate::chain::ChainState;
use crate::decide::KeepJob;
use crate::error::LedgerError;
use crate::failed::FailureFilter;
use crate::look::{Condition, Cursor, ListFilter, Listed, sqlite_glob};
use crate::orders::ChainFilter;
use crate::reports::AttemptRecord;
use crate::search::{Border, Found, NamedAttempt, QuarantinedMessage, ReasonCount, RunFilter, Search};

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
                 AND (?6 IS NULL OR {late})",
            late = late!("?6", "?7")
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
        let before = before.unwrap_or(Fence(i64::MAX));
        let mut looking = Looking::new(filter, limit, effort);
        match (&filter.kind, &filter.key) {
            (Some(kind), Some(key)) => self.look_back(kind, key, before, &mut looking)?,
            _ => self.look_through(before, &mut looking)?,
        }
        Ok(Found::new(looking.found, limit, looking.looked >= effort, looking.last))
    }

    /// Looks at the attempts of all chains, latest first.
    fn look_through(&self, before: Fence, looking: &mut Looking<'_>) -> Result<()> {
        let border = |at: Option<Time>| at.map(|at| self.border(at, before)).transpose();
        let after = border(looking.filter.earliest())?.map_or(Fence::NONE, |border| border.below());
        let before = border(looking.filter.latest())?.map_or(before, |border| border.from());
        let sql = format!("SELECT {ATTEMPT}, {NAMED} WHERE fence > ?1 AND fence < ?2 ORDER BY fence DESC");
        let mut select = self.connection.prepare_cached(&sql)?;
        let mut rows = select.query([after.get(), before.get()])?;
        while let Some(row) = rows.next()? {
            if !looking.at(row)? {
                break;
            }
        }
        Ok(())
    }

    /// Looks at the attempts of the chains of one name, latest first: from the last one of each to the one before it.
    fn look_back(&self, kind: &str, key: &str, before: Fence, looking: &mut Looking<'_>) -> Result<()> {
        let place = "SELECT epoch, previous FROM attempts WHERE fence = ?1";
        let read = |row: &Row<'_>| Ok((Epoch(row.get(0)?), Fence(row.get(1)?)));
        let place = self.connection.prepare_cached(place)?.query_row([before.get()], read).optional()?;
        let lasts = "SELECT epoch, fence FROM chains_now WHERE kind = ?1 AND key = ?2";
        let mut lasts = self.connection.prepare_cached(lasts)?;
        let lasts = lasts.query_map([kind, key], read)?.collect::<Result<Vec<_>>>()?;
        // Where a page goes on, its chain has nothing to be gone through again.
        let from = |(epoch, last)| match place {
            Some((of, previous)) if of == epoch => (previous, epoch),
            _ => (last, epoch),
        };
        let mut next: BinaryHeap<(Fence, Epoch)> = lasts.into_iter().map(from).collect();
        let sql = format!("SELECT {ATTEMPT}, {NAMED} WHERE fence = ?1 AND epoch = ?2");
        let mut select = self.connection.prepare_cached(&sql)?;
        while let Some((fence, epoch)) = next.pop() {
            let mut rows = select.query([fence.get(), epoch.get()])?;
            // The history has been deleted from here on, or is that of an earlier incarnation.
            let Some(row) = rows.next()? else { continue };
            if fence < before && !looking.at(row)? {
                break;
            }
            let started = time(row, STARTED)?;
            if looking.filter.earliest().is_none_or(|earliest| started >= earliest) {
                next.push((Fence(row.get(PREVIOUS)?), epoch));
            }
        }
        Ok(())
    }

    fn border(&self, at: Time, before: Fence) -> Result<Border> {
        let latest = "SELECT fence, started FROM attempts WHERE fence <= ?1 ORDER BY fence DESC LIMIT 1";
        let mut latest = self.connection.prepare_cached(latest)?;
        let mut border = Border::new(at, before);
        while let Some(asked) = border.asks() {
            let read = |row: &Row<'_>| Ok((Fence(row.get(0)?), time(row, 1)?));
            border.told(asked, latest.query_row([asked.get()], read).optional()?);
        }
        Ok(border)
    }

    fn reasons(&self, filter: &FailureFilter, limit: u32) -> Result<Vec<ReasonCount>> {
        // With max(), SQLite takes the other columns of a group from the row that has it.
        let sql = format!(
            "SELECT f.kind, f.code, f.permanent, count(*) FILTER (WHERE f.item <> ''), count(*) FILTER (WHERE f.item = ''),
                    max(f.last_at), f.reason, count(*) FILTER (WHERE {RECOVERED})
             FROM failures f WHERE {FITS}
             GROUP BY f.kind, f.code, f.permanent,
                      iif(f.code IS NULL, substr(substr(f.reason, 1, instr(f.reason || ':', ':') - 1), 1, 60), NULL)
             ORDER BY count(*) DESC, f.kind, f.code, f.permanent, max(f.last_at) LIMIT ?9"
        );
        let FailureFilter { kind, key, like, owner, item, code, permanent, recovered } = filter;
        let like = like.as_deref().map(sqlite_glob);
        let mut select = self.connection.prepare_cached(&sql)?;
        let rows =
            select.query_map(params![kind, key, like, owner, item, code, permanent, recovered, limit], |row| {
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

/// What [`Looking::at`] reads after [`ATTEMPT`], and from where.
const NAMED: &str = "kind, key, owner, queue, previous FROM attempts
     LEFT JOIN (SELECT epoch AS incarnation, kind, key, owner, queue FROM chains) ON incarnation = epoch";
// Where these columns are.
const STARTED: usize = 6;
const VERDICT: usize = 8;
const REASON: usize = 9;
const KIND: usize = 14;
const KEY: usize = 15;
const OWNER: usize = 16;
const QUEUE: usize = 17;
const PREVIOUS: usize = 18;

/// A search among attempts, and what it has found so far.
struct Looking<'a> {
    filter: &'a RunFilter,
    /// What a reason is to contain, in small letters.
    text: Option<String>,
    limit: usize,
    effort: u32,
    looked: u32,
    found: Vec<NamedAttempt>,
    last: Option<Fence>,
}

impl<'a> Looking<'a> {
    fn new(filter: &'a RunFilter, limit: u32, effort: u32) -> Self {
        let text = filter.text.as_ref().map(|text| text.to_lowercase());
        Self { filter, text, limit: limit as usize, effort, looked: 0, found: Vec::new(), last: None }
    }

    /// Looks at an attempt; answers whether to go on.
    fn at(&mut self, row: &Row<'_>) -> Result<bool> {
        self.looked += 1;
        self.last = Some(Fence(row.get(0)?));
        // Only what fits is read whole.
        if self.fits(row)? {
            let name = row.get::<_, Option<String>>(KIND)?.zip(row.get(KEY)?);
            self.found.push(NamedAttempt { record: attempt(row)?, name });
        }
        Ok(self.looked < self.effort && self.found.len() < self.limit)
    }

    fn fits(&self, row: &Row<'_>) -> Result<bool> {
        let RunFilter { verdict, kind, key, owner, queue, except_queue, text: _, since, until } = self.filter;
        for (wanted, column) in [(verdict, VERDICT), (kind, KIND), (key, KEY), (owner, OWNER), (queue, QUEUE)] {
            if wanted.is_some() && row.get_ref(column)?.as_str_or_null()? != wanted.as_deref() {
                return Ok(false);
            }
        }
        if except_queue.is_some() && row.get_ref(QUEUE)?.as_str_or_null()? == except_queue.as_deref() {
            return Ok(false);
        }
        let started = time(row, STARTED)?;
        if since.is_some_and(|since| started < since) || until.is_some_and(|until| started >= until) {
            return Ok(false);
        }
        let Some(text) = &self.text else { return Ok(true) };
        let reason = row.get_ref(REASON)?.as_str_or_null()?;
        Ok(reason.is_some_and(|reason| reason.to_lowercase().contains(text)))
    }
}

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

    async fn reasons(&self, filter: FailureFilter, limit: u32) -> Result<Vec<ReasonCount>, LedgerError> {
        self.read(move |store| store.reasons(&filter, limit)).await
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
