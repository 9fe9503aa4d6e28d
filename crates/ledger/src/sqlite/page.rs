//! Carrying out a verb: loading the rows that it wants into a [`Page`], letting it decide, and writing what has come of
//! it.

use std::ops::Range;

use roundelay_model::clock::Time;
use roundelay_model::guard::Manual;
use roundelay_model::ids::{Epoch, Fence, TickNo};
use roundelay_model::outcome::LeftOut;
use rusqlite::{Error, OptionalExtension, Row, ToSql, params};

use super::store::{AFTER_HINT, Result, Store, hint, holder, time};
use crate::chain::ChainState;
use crate::decide::grant::ChainRow;
use crate::decide::{Begun, Decide, Ended, Failed, Held, Inserted, Job, Page, Wanted};

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

/// The columns of a chain as [`loaded`] reads them, from `chains c` and `hot_chains h`: those that are read often, then
/// payload, carry, and what has been learned.
macro_rules! select_row {
    ($holder:expr, $payload:literal, $which:literal) => {
        concat!(
            "SELECT c.epoch, c.kind, c.key, c.queue, c.tick, c.attempt, c.due, c.parent, c.priority, c.state, c.nominal, ",
            $holder,
            ", coalesce(h.holder, c.holder), coalesce(h.sent, c.sent), c.once, coalesce(h.started_tick, c.started_tick),
                    coalesce(h.last_start, c.last_start), c.last_finish, c.batch_open, c.schedule, c.manual, c.beside,
                    coalesce(h.fence, c.fence), c.watch_at, c.looks, c.expected, c.batch_total, c.batch_failed, c.owner,
                    c.depth, h.epoch IS NOT NULL, ",
            $payload,
            " FROM chains c LEFT JOIN hot_chains h ON h.epoch = c.epoch WHERE ",
            $which
        )
    };
}
/// Who has claimed it: 0 for none, 1 for a session that goes on, 2 for one that is over.
macro_rules! holder {
    () => {
        "CASE WHEN coalesce(h.holder, c.holder) = 0 THEN 0
              WHEN coalesce(h.holder, c.holder) IN (SELECT session FROM sessions) THEN 1 ELSE 2 END"
    };
}
/// For an end, it does not matter whether the holder's session goes on; to look would cost a tenth of a claim.
const BY_EPOCH: &str = select_row!("coalesce(h.holder, c.holder) <> 0", "'', NULL, NULL", "c.epoch = ?1");
const BY_EPOCH_WITH_PAYLOAD: &str = select_row!(holder!(), "c.payload, c.carry, c.learned", "c.epoch = ?1");
const BY_NAME: &str =
    select_row!(holder!(), "c.payload, c.carry, c.learned", "c.kind = ?1 AND c.key = ?2 AND c.parent = 0");

/// Everything of a chain that a run moves; ?1 is the epoch under which it was found.
macro_rules! cold {
    () => {
        "state = ?2, tick = ?3, attempt = ?4, nominal = ?5, due = ?6, expected = ?7, watch_at = ?8, looks = ?9,
         last_finish = ?10, batch_total = ?11, batch_open = ?12, batch_failed = ?13, beside = ?14,
         carry = iif(?15, ?16, carry), learned = iif(?17, ?18, learned)"
    };
}
const MOVE_COLD: &str = concat!("UPDATE chains SET ", cold!(), " WHERE epoch = ?1");
const MOVE: &str = concat!(
    "UPDATE chains SET ",
    cold!(),
    ", fence = ?19, holder = ?20, sent = ?21, started_tick = ?22, last_start = ?23 WHERE epoch = ?1"
);
const RENAME: &str = "
    UPDATE chains SET epoch = ?2, queue = ?3, payload = ?4, owner = ?5, schedule = ?6, depth = ?7, priority = ?8, manual = ?9
    WHERE epoch = ?1";
const INSERT: &str = "
    INSERT INTO chains (epoch, kind, key, once, parent, queue, nominal, due, expected, watch_at, payload, owner, schedule,
                        depth, priority, manual, beside)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)";
const BEGIN_ATTEMPT: &str = "
    INSERT INTO attempts (fence, epoch, tick, attempt, previous, worker, due, started)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
const END_ATTEMPT: &str = "
    UPDATE attempts SET finished = ?2, verdict = ?3, reason = ?4, overlapped = ?5, misfired = ?6,
                        excluded = ?7, progress = coalesce(?8, progress)
    WHERE fence = ?1 AND (finished IS NULL OR (verdict = 'lost' AND reason IS NULL AND NOT ?9))";
/// A part that failed permanently stays so, whatever is reported later; for a whole entity the last report counts.
/// While a job is under way for a part, that job is waited for.
const FAILURE: &str = "
    INSERT INTO failures (kind, key, item, reason, times, first_at, last_at, code, attempts, next_retry_at, permanent)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?5, ?9, ?10)
    ON CONFLICT (kind, key, item) DO UPDATE
    SET reason = excluded.reason, times = times + excluded.times, last_at = excluded.last_at, code = excluded.code,
        attempts = attempts + excluded.attempts, permanent = excluded.permanent OR (permanent AND item <> ''),
        next_retry_at = CASE WHEN excluded.permanent OR (permanent AND item <> '') THEN NULL
                             WHEN fed IS NOT NULL THEN next_retry_at ELSE excluded.next_retry_at END";
const QUARANTINE: &str = "INSERT INTO quarantine (at, source, reason, body) VALUES (?1, ?2, ?3, ?4)";
const FORGET_JOB: &str = "DELETE FROM jobs WHERE id = ?1";
const ADD_JOB: &str = "INSERT INTO jobs (id, body, kept_at) VALUES (?1, ?2, ?3) ON CONFLICT (id) DO NOTHING";
const PUT_JOB: &str = "
    INSERT INTO jobs (id, body, kept_at) VALUES (?1, ?2, ?3)
    ON CONFLICT (id) DO UPDATE SET body = excluded.body, kept_at = excluded.kept_at";

/// The columns of a chain for which a row of `hot_chains` stands while there is one.
#[derive(Clone, Copy, PartialEq)]
struct Hot {
    fence: Fence,
    session: i64,
    sent: bool,
    started: (TickNo, Time),
}

impl Hot {
    fn of(row: &Held) -> Self {
        let chain = &row.chain;
        Self {
            fence: row.fence,
            session: chain.session,
            sent: chain.sent,
            started: (chain.started_tick, chain.last_start),
        }
    }
}

/// The other columns that a run moves.
#[derive(Clone, Copy, PartialEq)]
struct Cold {
    state: ChainState,
    tick: TickNo,
    attempt: u32,
    times: [Time; 5],
    looks: u32,
    batch: [i64; 3],
    beside: bool,
}

impl Cold {
    fn of(row: &Held) -> Self {
        let chain = &row.chain;
        Self {
            state: chain.state,
            tick: chain.hint.tick,
            attempt: chain.hint.attempt,
            times: [chain.nominal, chain.hint.due, row.expected, row.watch_at, chain.last_finish],
            looks: row.looks,
            batch: [row.batch_total, chain.batch_open, row.batch_failed],
            beside: chain.beside,
        }
    }
}

/// A chain as it was loaded.
struct Before {
    found_as: Epoch,
    /// It has a row in `hot_chains`.
    is_hot: bool,
    hot: Hot,
    cold: Cold,
}

fn loaded(row: &Row<'_>) -> Result<(Held, bool)> {
    let at = |column: usize| AFTER_HINT + column;
    let hint = hint(row)?;
    let held = Held {
        found_as: hint.epoch,
        chain: ChainRow {
            hint,
            state: ChainState::from_number(row.get(at(0))?),
            nominal: time(row, at(1))?,
            holder: holder(row, at(2))?,
            session: row.get(at(3))?,
            deaths: 0,
            sent: row.get(at(4))?,
            once: row.get(at(5))?,
            started_tick: TickNo(row.get(at(6))?),
            last_start: time(row, at(7))?,
            last_finish: time(row, at(8))?,
            batch_open: row.get(at(9))?,
            schedule: row.get(at(10))?,
            manual: Manual::from_number(row.get(at(11))?),
            beside: row.get(at(12))?,
        },
        fence: Fence(row.get(at(13))?),
        watch_at: time(row, at(14))?,
        looks: row.get(at(15))?,
        expected: time(row, at(16))?,
        batch_total: row.get(at(17))?,
        batch_failed: row.get(at(18))?,
        owner: row.get(at(19))?,
        depth: row.get(at(20))?,
        payload: row.get(at(22))?,
        carry: row.get(at(23))?,
        learned: row.get(at(24))?,
        moved: false,
        renamed: false,
        carries: false,
        learns: false,
    };
    Ok((held, row.get(at(21))?))
}

/// What has been loaded for a verb.
#[derive(Default)]
struct Loaded {
    page: Page,
    before: Vec<Before>,
}

impl Loaded {
    fn add(&mut self, (row, is_hot): (Held, bool)) {
        let found_as = row.found_as;
        if self.before.iter().all(|before| before.found_as != found_as) {
            self.before.push(Before { found_as, is_hot, hot: Hot::of(&row), cold: Cold::of(&row) });
        }
        self.page.add(row);
    }
}

/// What a verb is carried out with. Its memory serves the next verb: a claim or an end would else ask for memory a dozen
/// times, which took a tenth of this thread's time.
#[derive(Default)]
pub(super) struct Scratch {
    wanted: Wanted,
    further: Wanted,
    loaded: Loaded,
}

/// A verb about more chains gives its memory back.
const FEW: usize = 64;

impl Scratch {
    fn clear(&mut self) {
        if self.loaded.before.len() > FEW || self.loaded.page.writes.inserted.len() > FEW {
            *self = Self::default();
            return;
        }
        self.wanted.clear();
        self.further.clear();
        self.loaded.page.clear();
        self.loaded.before.clear();
    }
}

/// The highest numbers that are taken, while a transaction knows them.
#[derive(Clone, Copy, Default)]
pub(super) struct LastNumbers {
    fence: Option<i64>,
    epoch: Option<i64>,
}

impl Store {
    /// Carries out a verb, by the time `now`.
    pub(super) fn carry_out<V: Decide>(&mut self, verb: &V, now: Time) -> Result<V::Answer> {
        // Where the verb fails, or panics, a new one takes its place.
        let mut scratch = std::mem::take(&mut self.scratch);
        let answer = self.carry_out_with(verb, now, &mut scratch)?;
        scratch.clear();
        self.scratch = scratch;
        Ok(answer)
    }

    fn carry_out_with<V: Decide>(&mut self, verb: &V, now: Time, scratch: &mut Scratch) -> Result<V::Answer> {
        let Scratch { wanted, further, loaded } = scratch;
        verb.wants(wanted);
        self.load(wanted, loaded)?;
        verb.wants_further(&mut loaded.page, further);
        self.load(further, loaded)?;
        let Loaded { page, before } = loaded;
        for fence in page.left_over(&wanted.taken_over) {
            let deaths = self.connection.prepare_cached(DEATHS)?.query_row([fence.get()], |row| row.get(0))?;
            page.count_deaths(fence, deaths);
        }
        let fences = self.next_fences(wanted.fences)?;
        let epochs = self.next_epochs(wanted.new_epochs)?;
        page.begin(now, fences, epochs);
        let answer = verb.decide(page);
        if page.overdrawn() {
            let why = "a verb has taken more fences or epochs than it asked for, which is a bug; nothing was written";
            return Err(Error::ToSqlConversionFailure(why.into()));
        }
        self.write(page, before)?;
        Ok(answer)
    }

    fn load(&self, wanted: &Wanted, loaded: &mut Loaded) -> Result<()> {
        for (epoch, with_payload) in wanted.epochs.iter() {
            let sql = if *with_payload { BY_EPOCH_WITH_PAYLOAD } else { BY_EPOCH };
            let row = self.connection.prepare_cached(sql)?.query_row([epoch.get()], self::loaded).optional()?;
            row.into_iter().for_each(|row| loaded.add(row));
        }
        for (kind, key) in &wanted.names {
            let mut select = self.connection.prepare_cached(BY_NAME)?;
            for row in select.query_map([kind, key], self::loaded)? {
                loaded.add(row?);
            }
        }
        Ok(())
    }

    /// The next numbers, which are taken by writing them.
    fn next_fences(&mut self, many: i64) -> Result<Range<i64>> {
        if many == 0 {
            return Ok(0..0);
        }
        let last = self.last_number("attempts", self.last_numbers.fence)?;
        self.last_numbers.fence = Some(last);
        Ok(last + 1..last + 1 + many)
    }

    fn next_epochs(&mut self, many: i64) -> Result<Range<i64>> {
        if many == 0 {
            return Ok(0..0);
        }
        let last = self.last_number("chains", self.last_numbers.epoch)?;
        self.last_numbers.epoch = Some(last);
        Ok(last + 1..last + 1 + many)
    }

    fn last_number(&self, table: &str, known: Option<i64>) -> Result<i64> {
        // Between two transactions another process may take numbers.
        if let Some(known) = known.filter(|_| !self.connection.is_autocommit()) {
            return Ok(known);
        }
        let last = "SELECT seq FROM sqlite_sequence WHERE name = ?1";
        self.connection.prepare_cached(last)?.query_row([table], |row| row.get(0))
    }

    fn write(&mut self, page: &Page, before: &[Before]) -> Result<()> {
        page.writes.over.iter().try_for_each(|epoch| self.drop_members(*epoch))?;
        for (row, before) in page.rows().iter().zip(before) {
            if row.moved || row.leaves_more() {
                self.write_moved(row, before)?;
            }
            if row.renamed {
                self.write_renamed(row)?;
            }
        }
        page.writes.inserted.iter().try_for_each(|(name, new)| self.write_inserted(name, new))?;
        page.writes.begun.iter().try_for_each(|begun| self.write_begun(begun))?;
        page.writes.ended.iter().try_for_each(|(fence, ended)| self.write_ended(fence, ended))?;
        page.writes.failures.iter().try_for_each(|(place, failed)| self.write_failed(place, failed))?;
        for quarantined in &page.writes.quarantined {
            let values = params![quarantined.at.as_millis(), quarantined.from, quarantined.reason, quarantined.body];
            self.connection.prepare_cached(QUARANTINE)?.execute(values)?;
        }
        page.writes.jobs.iter().try_for_each(|(id, job)| self.write_job(id, job))
    }

    /// Writes what has changed of a chain: into its own row, into its row in `hot_chains`, or both (see
    /// [`super::hot`]).
    fn write_moved(&mut self, row: &Held, before: &Before) -> Result<()> {
        let (hot, cold) = (Hot::of(row), Cold::of(row));
        let (found_as, chain) = (before.found_as, &row.chain);
        let moves = hot != before.hot;
        // From its claim until its successor has been sent.
        let is_hot = hot.session != 0
            || (!hot.sent
                && before.hot.session != 0
                && chain.hint.epoch == found_as
                && chain.state == ChainState::Active);
        // Beside a row of `hot_chains`, the chain's own row has no holder.
        let holds_itself = !before.is_hot && before.hot.session != 0;
        // When the successor has been sent, the row of `hot_chains` is deleted, and the chain's own row stands.
        let stands_soon = !is_hot || hot.session == 0;
        if cold != before.cold || row.leaves_more() || (moves && (stands_soon || holds_itself)) {
            let [nominal, due, expected, watch_at, last_finish] = cold.times.map(Time::as_millis);
            let [total, open, failed] = cold.batch;
            // What a row of `hot_chains` stands for is written as it is once the successor has been sent.
            let (holder, sent) = if is_hot { (0, true) } else { (hot.session, hot.sent) };
            let (tick, start) = (hot.started.0.get(), hot.started.1.as_millis());
            let values: [&dyn ToSql; 23] = [
                &found_as.get(),
                &(cold.state as i64),
                &cold.tick.get(),
                &cold.attempt,
                &nominal,
                &due,
                &expected,
                &watch_at,
                &cold.looks,
                &last_finish,
                &total,
                &open,
                &failed,
                &cold.beside,
                &row.carries,
                &row.carry,
                &row.learns,
                &row.learned,
                &hot.fence.get(),
                &holder,
                &sent,
                &tick,
                &start,
            ];
            match moves {
                true => self.connection.prepare_cached(MOVE)?.execute(&values[..])?,
                false => self.connection.prepare_cached(MOVE_COLD)?.execute(&values[..18])?,
            };
        }
        match (moves, is_hot) {
            (true, true) => self.heat(found_as, hot.fence, hot.session, hot.sent, hot.started),
            (true, false) if before.is_hot => {
                let cool = "DELETE FROM hot_chains WHERE epoch = ?1";
                self.connection.prepare_cached(cool)?.execute([found_as.get()]).map(drop)
            }
            _ => Ok(()),
        }
    }

    fn write_renamed(&mut self, row: &Held) -> Result<()> {
        let chain = &row.chain;
        let epoch = chain.hint.epoch;
        self.connection.prepare_cached(RENAME)?.execute(params![
            row.found_as.get(),
            epoch.get(),
            chain.hint.queue,
            row.payload,
            row.owner,
            chain.schedule,
            row.depth,
            chain.hint.priority,
            chain.manual.number()
        ])?;
        if epoch == row.found_as {
            return Ok(());
        }
        self.took_epoch(epoch);
        // Only an insertion takes the number by itself.
        let take = "UPDATE sqlite_sequence SET seq = max(seq, ?1) WHERE name = 'chains'";
        self.connection.prepare_cached(take)?.execute([epoch.get()]).map(drop)
    }

    fn write_inserted(
        &mut self,
        (kind, key, once, parent): &(String, String, bool, Epoch),
        new: &Inserted,
    ) -> Result<()> {
        self.took_epoch(new.epoch);
        let values = params![
            new.epoch.get(),
            kind,
            key,
            once,
            parent.get(),
            new.queue,
            new.nominal.as_millis(),
            new.due.as_millis(),
            new.watch_at.as_millis(),
            new.payload,
            new.owner,
            new.schedule,
            new.depth,
            new.priority,
            new.manual.number(),
            new.beside
        ];
        self.connection.prepare_cached(INSERT)?.execute(values).map(drop)
    }

    fn write_begun(&mut self, begun: &Begun) -> Result<()> {
        self.last_numbers.fence = self.last_numbers.fence.max(Some(begun.fence.get()));
        let values = params![
            begun.fence.get(),
            begun.epoch.get(),
            begun.tick.get(),
            begun.attempt,
            begun.previous.get(),
            begun.worker,
            begun.due.as_millis(),
            begun.at.as_millis()
        ];
        self.connection.prepare_cached(BEGIN_ATTEMPT)?.execute(values).map(drop)
    }

    fn write_ended(&mut self, fence: Fence, ended: &Ended) -> Result<()> {
        let LeftOut { overlapped, misfired, excluded, hindrance: _ } = ended.left_out;
        let values = params![
            fence.get(),
            ended.at.as_millis(),
            ended.verdict,
            ended.reason,
            overlapped,
            misfired,
            excluded,
            ended.progress,
            ended.only_if_open
        ];
        self.connection.prepare_cached(END_ATTEMPT)?.execute(values).map(drop)
    }

    fn write_failed(&mut self, (kind, key, item): &(String, String, String), failed: &Failed) -> Result<()> {
        let next = failed.last.next_retry_at.filter(|_| !failed.permanent).map(Time::as_millis);
        let (first, last) = (failed.first_at.as_millis(), failed.last_at.as_millis());
        let Failed { last: told, times, permanent, .. } = failed;
        let values = params![kind, key, item, told.reason, times, first, last, told.code, next, permanent];
        self.connection.prepare_cached(FAILURE)?.execute(values).map(drop)
    }

    fn write_job(&mut self, id: &str, job: &Job) -> Result<()> {
        if matches!(job, Job::Forget | Job::Anew(..)) {
            self.connection.prepare_cached(FORGET_JOB)?.execute([id])?;
        }
        let (sql, body, at) = match job {
            Job::Forget => return Ok(()),
            Job::Put(body, at) => (PUT_JOB, body, at),
            Job::Add(body, at) | Job::Anew(body, at) => (ADD_JOB, body, at),
        };
        self.connection.prepare_cached(sql)?.execute(params![id, body, at.as_millis()]).map(drop)
    }

    fn took_epoch(&mut self, epoch: Epoch) {
        self.last_numbers.epoch = self.last_numbers.epoch.max(Some(epoch.get()));
    }
}
