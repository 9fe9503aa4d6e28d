//! A page's changes in SQL: one statement for each kind of change, with an array for each column.

use roundelay_model::clock::Time;
use tokio_postgres::types::ToSql;

use crate::decide::{Held, Job, Page};

pub(super) const MOVE: &str = "
    UPDATE chains c
    SET state = u.state, tick = u.tick, attempt = u.attempt, nominal = u.nominal, due = u.due, fence = u.fence,
        holder = u.holder, sent = u.sent, expected = u.expected, watch_at = u.watch_at, looks = u.looks,
        started_tick = u.started_tick, last_start = u.last_start, last_finish = u.last_finish,
        batch_total = u.batch_total, batch_open = u.batch_open, batch_failed = u.batch_failed,
        beside = u.beside
    FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[], $8::int8[],
                $9::bool[], $10::int8[], $11::int8[], $12::int8[], $13::int8[], $14::int8[], $15::int8[],
                $16::int8[], $17::int8[], $18::int8[], $19::bool[])
         AS u (epoch, state, tick, attempt, nominal, due, fence, holder, sent, expected, watch_at, looks,
               started_tick, last_start, last_finish, batch_total, batch_open, batch_failed, beside)
    WHERE c.epoch = u.epoch";
const RENAME: &str = "
    UPDATE chains c
    SET epoch = u.epoch, queue = u.queue, payload = u.payload, owner = u.owner, schedule = u.schedule, depth = u.depth,
        priority = u.priority, manual = u.manual
    FROM unnest($1::int8[], $2::int8[], $3::text[], $4::text[], $5::text[], $6::text[], $7::int8[], $8::int8[],
                $9::int8[])
         AS u (found_as, epoch, queue, payload, owner, schedule, depth, priority, manual)
    WHERE c.epoch = u.found_as";
/// Apart from [`MOVE`], since most runs leave neither of these.
const LEAVE_MORE: &str = "
    UPDATE chains c
    SET carry = CASE WHEN u.carries THEN u.carry ELSE c.carry END,
        learned = CASE WHEN u.learns THEN u.learned ELSE c.learned END
    FROM unnest($1::int8[], $2::bool[], $3::text[], $4::bool[], $5::bytea[])
         AS u (epoch, carries, carry, learns, learned)
    WHERE c.epoch = u.epoch";
const DROP_MEMBERS: &str = "DELETE FROM chains WHERE parent <> 0 AND parent = ANY ($1::int8[])";
/// When another worker has begun one of them meanwhile, this fails, and the group is tried again.
const INSERT: &str = "
    INSERT INTO chains (epoch, kind, key, once, parent, queue, nominal, due, expected, watch_at, payload, owner, schedule,
                        depth, priority, manual, beside)
    SELECT epoch, kind, key, once, parent, queue, nominal, due, due, watch_at, payload, owner, schedule, depth, priority,
           manual, beside
    FROM unnest($1::int8[], $2::text[], $3::text[], $4::bool[], $5::int8[], $6::text[], $7::int8[], $8::int8[],
                $9::text[], $10::text[], $11::text[], $12::int8[], $13::int8[], $14::int8[], $15::bool[], $16::int8[])
         AS u (epoch, kind, key, once, parent, queue, due, watch_at, payload, owner, schedule, depth, priority, manual,
               beside, nominal)";
pub(super) const BEGIN_ATTEMPTS: &str = "
    INSERT INTO attempts (fence, epoch, tick, attempt, previous, worker, due, started)
    SELECT * FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::text[], $7::int8[], $8::int8[])";
pub(super) const END_ATTEMPTS: &str = "
    UPDATE attempts a SET finished = u.finished, verdict = u.verdict, reason = u.reason,
                          overlapped = u.overlapped, misfired = u.misfired, excluded = u.excluded,
                          progress = coalesce(u.progress, a.progress)
    FROM unnest($1::int8[], $2::int8[], $3::text[], $4::text[], $5::bool[], $6::int8[], $7::int8[], $8::int8[], $9::text[])
         AS u (fence, finished, verdict, reason, only_if_open, overlapped, misfired, excluded, progress)
    WHERE a.fence = u.fence AND (a.finished IS NULL OR (a.verdict = 'lost' AND a.reason IS NULL AND NOT u.only_if_open))";
/// A part that failed permanently stays so, whatever is reported later; for a whole entity the last report counts.
/// While a job is under way for a part, that job is waited for.
const FAILURES: &str = "
    INSERT INTO failures (kind, key, item, reason, times, first_at, last_at, code, next_retry_at, permanent, attempts)
    SELECT *, times
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int8[], $6::int8[], $7::int8[], $8::text[],
                $9::int8[], $10::bool[])
         AS u (kind, key, item, reason, times, first_at, last_at, code, next_retry_at, permanent)
    ON CONFLICT (kind, key, item) DO UPDATE
    SET reason = excluded.reason, times = failures.times + excluded.times, last_at = excluded.last_at,
        code = excluded.code, attempts = failures.attempts + excluded.attempts,
        permanent = excluded.permanent OR (failures.permanent AND failures.item <> ''),
        next_retry_at = CASE WHEN excluded.permanent OR (failures.permanent AND failures.item <> '') THEN NULL
                             WHEN failures.fed IS NOT NULL THEN failures.next_retry_at
                             ELSE excluded.next_retry_at END";
const QUARANTINE: &str = "
    INSERT INTO quarantine (at, source, reason, body)
    SELECT * FROM unnest($1::int8[], $2::text[], $3::text[], $4::bytea[])";
/// Numbers of jobs must become visible in their order, or a reader that has read up to one of them would miss lower
/// ones that are committed later. So transactions that write jobs take turns.
const JOBS_IN_TURN: &str = "SELECT pg_advisory_xact_lock(hashtextextended('roundelay jobs ' || current_schema(), 0))";
const FORGET_JOBS: &str = "DELETE FROM jobs WHERE id = ANY ($1::text[])";
const PUT_JOBS: &str = "
    INSERT INTO jobs (id, body, kept_at) SELECT * FROM unnest($1::text[], $2::bytea[], $3::int8[])
    ON CONFLICT (id) DO UPDATE SET body = excluded.body, kept_at = excluded.kept_at";
const ADD_JOBS: &str = "
    INSERT INTO jobs (id, body, kept_at) SELECT * FROM unnest($1::text[], $2::bytea[], $3::int8[])
    ON CONFLICT (id) DO NOTHING";

/// A statement and its parameters.
pub(super) struct Part<'a> {
    pub(super) sql: &'static str,
    pub(super) columns: Vec<Column<'a>>,
}

/// The values of one parameter: an array with an element for each row.
pub(super) type Column<'a> = Box<dyn ToSql + Sync + Send + 'a>;

fn column<'a, R, T: ToSql + Sync + Send + 'a>(rows: &[R], value: impl Fn(&R) -> T) -> Column<'a> {
    Box::new(rows.iter().map(value).collect::<Vec<T>>())
}

/// PostgreSQL's text holds every character but NUL.
fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// The statements that write a page, in their order: records of attempts begin before they end, and
/// jobs come last, since their lock is one for all workers.
pub(super) fn parts(page: &Page) -> Vec<Part<'_>> {
    let mut parts: Vec<Part<'_>> = [
        dropped(page),
        moved(page),
        left_more(page),
        renamed(page),
        inserted(page),
        begun(page),
        ended(page),
        failures(page),
        quarantined(page),
    ]
    .into_iter()
    .flatten()
    .collect();
    jobs(page, &mut parts);
    parts
}

fn moved(page: &Page) -> Option<Part<'_>> {
    let rows: Vec<&Held> = page.rows().iter().filter(|row| row.moved).collect();
    (!rows.is_empty()).then(|| Part {
        sql: MOVE,
        columns: vec![
            column(&rows, |row| row.found_as.get()),
            column(&rows, |row| row.chain.state as i64),
            column(&rows, |row| row.chain.hint.tick.get()),
            column(&rows, |row| i64::from(row.chain.hint.attempt)),
            column(&rows, |row| row.chain.nominal.as_millis()),
            column(&rows, |row| row.chain.hint.due.as_millis()),
            column(&rows, |row| row.fence.get()),
            column(&rows, |row| row.chain.session),
            column(&rows, |row| row.chain.sent),
            column(&rows, |row| row.expected.as_millis()),
            column(&rows, |row| row.watch_at.as_millis()),
            column(&rows, |row| i64::from(row.looks)),
            column(&rows, |row| row.chain.started_tick.get()),
            column(&rows, |row| row.chain.last_start.as_millis()),
            column(&rows, |row| row.chain.last_finish.as_millis()),
            column(&rows, |row| row.batch_total),
            column(&rows, |row| row.chain.batch_open),
            column(&rows, |row| row.batch_failed),
            column(&rows, |row| row.chain.beside),
        ],
    })
}

fn dropped(page: &Page) -> Option<Part<'_>> {
    let over = &page.writes.over;
    (!over.is_empty()).then(|| Part { sql: DROP_MEMBERS, columns: vec![column(over, |epoch| epoch.get())] })
}

fn left_more(page: &Page) -> Option<Part<'_>> {
    let rows: Vec<&Held> = page.rows().iter().filter(|row| row.leaves_more()).collect();
    (!rows.is_empty()).then(|| Part {
        sql: LEAVE_MORE,
        columns: vec![
            column(&rows, |row| row.found_as.get()),
            column(&rows, |row| row.carries),
            column(&rows, |row| row.carry.as_deref()),
            column(&rows, |row| row.learns),
            column(&rows, |row| row.learned.as_deref()),
        ],
    })
}

fn renamed(page: &Page) -> Option<Part<'_>> {
    let rows: Vec<&Held> = page.rows().iter().filter(|row| row.renamed).collect();
    (!rows.is_empty()).then(|| Part {
        sql: RENAME,
        columns: vec![
            column(&rows, |row| row.found_as.get()),
            column(&rows, |row| row.chain.hint.epoch.get()),
            column(&rows, |row| row.chain.hint.queue.as_str()),
            column(&rows, |row| row.payload.as_str()),
            column(&rows, |row| row.owner.as_deref()),
            column(&rows, |row| row.chain.schedule.as_deref()),
            column(&rows, |row| i64::from(row.depth)),
            column(&rows, |row| row.chain.hint.priority.map(i64::from)),
            column(&rows, |row| row.chain.manual.number()),
        ],
    })
}

fn inserted(page: &Page) -> Option<Part<'_>> {
    let rows: Vec<_> = page.writes.inserted.iter().collect();
    (!rows.is_empty()).then(|| Part {
        sql: INSERT,
        columns: vec![
            column(&rows, |(_, new)| new.epoch.get()),
            column(&rows, |((kind, ..), _)| kind.as_str()),
            column(&rows, |((_, key, ..), _)| key.as_str()),
            column(&rows, |((_, _, once, _), _)| *once),
            column(&rows, |((.., parent), _)| parent.get()),
            column(&rows, |(_, new)| new.queue.as_str()),
            column(&rows, |(_, new)| new.due.as_millis()),
            column(&rows, |(_, new)| new.watch_at.as_millis()),
            column(&rows, |(_, new)| new.payload.as_str()),
            column(&rows, |(_, new)| new.owner.as_deref()),
            column(&rows, |(_, new)| new.schedule.as_deref()),
            column(&rows, |(_, new)| i64::from(new.depth)),
            column(&rows, |(_, new)| new.priority.map(i64::from)),
            column(&rows, |(_, new)| new.manual.number()),
            column(&rows, |(_, new)| new.beside),
            column(&rows, |(_, new)| new.nominal.as_millis()),
        ],
    })
}

fn begun(page: &Page) -> Option<Part<'_>> {
    let rows = &page.writes.begun;
    (!rows.is_empty()).then(|| Part {
        sql: BEGIN_ATTEMPTS,
        columns: vec![
            column(rows, |row| row.fence.get()),
            column(rows, |row| row.epoch.get()),
            column(rows, |row| row.tick.get()),
            column(rows, |row| i64::from(row.attempt)),
            column(rows, |row| row.previous.get()),
            column(rows, |row| row.worker.to_string()),
            column(rows, |row| row.due.as_millis()),
            column(rows, |row| row.at.as_millis()),
        ],
    })
}

fn ended(page: &Page) -> Option<Part<'_>> {
    let rows: Vec<_> = page.writes.ended.iter().collect();
    (!rows.is_empty()).then(|| Part {
        sql: END_ATTEMPTS,
        columns: vec![
            column(&rows, |(fence, _)| fence.get()),
            column(&rows, |(_, end)| end.at.as_millis()),
            column(&rows, |(_, end)| end.verdict),
            column(&rows, |(_, end)| end.reason.as_deref().map(text)),
            column(&rows, |(_, end)| end.only_if_open),
            column(&rows, |(_, end)| i64::from(end.left_out.overlapped)),
            column(&rows, |(_, end)| i64::from(end.left_out.misfired)),
            column(&rows, |(_, end)| i64::from(end.left_out.excluded)),
            column(&rows, |(_, end)| end.progress.as_deref()),
        ],
    })
}

fn failures(page: &Page) -> Option<Part<'_>> {
    let rows: Vec<_> = page.writes.failures.iter().collect();
    (!rows.is_empty()).then(|| Part {
        sql: FAILURES,
        columns: vec![
            column(&rows, |((kind, ..), _)| text(kind)),
            column(&rows, |((_, key, _), _)| text(key)),
            column(&rows, |((.., item), _)| text(item)),
            column(&rows, |(_, failed)| text(&failed.last.reason)),
            column(&rows, |(_, failed)| failed.times),
            column(&rows, |(_, failed)| failed.first_at.as_millis()),
            column(&rows, |(_, failed)| failed.last_at.as_millis()),
            column(&rows, |(_, failed)| failed.last.code.as_deref().map(text)),
            column(&rows, |(_, failed)| failed.last.next_retry_at.filter(|_| !failed.permanent).map(Time::as_millis)),
            column(&rows, |(_, failed)| failed.permanent),
        ],
    })
}

fn quarantined(page: &Page) -> Option<Part<'_>> {
    let rows = &page.writes.quarantined;
    (!rows.is_empty()).then(|| Part {
        sql: QUARANTINE,
        columns: vec![
            column(rows, |row| row.at.as_millis()),
            column(rows, |row| text(&row.from)),
            column(rows, |row| text(&row.reason)),
            Box::new(rows.iter().map(|row| row.body.as_slice()).collect::<Vec<_>>()),
        ],
    })
}

fn jobs<'a>(page: &'a Page, parts: &mut Vec<Part<'a>>) {
    if page.writes.jobs.is_empty() {
        return;
    }
    parts.push(Part { sql: JOBS_IN_TURN, columns: Vec::new() });
    let all = || page.writes.jobs.iter();
    let forgotten = all().filter(|(_, job)| matches!(job, Job::Forget | Job::Anew(..))).map(|(id, _)| id.as_str());
    let forgotten: Vec<&str> = forgotten.collect();
    if !forgotten.is_empty() {
        parts.push(Part { sql: FORGET_JOBS, columns: vec![Box::new(forgotten)] });
    }
    let put = all().filter_map(|(id, job)| match job {
        Job::Put(body, at) => Some((id.as_str(), body.as_slice(), at.as_millis())),
        _ => None,
    });
    let added = all().filter_map(|(id, job)| match job {
        Job::Add(body, at) | Job::Anew(body, at) => Some((id.as_str(), body.as_slice(), at.as_millis())),
        _ => None,
    });
    for (sql, rows) in [(PUT_JOBS, put.collect::<Vec<_>>()), (ADD_JOBS, added.collect())] {
        if !rows.is_empty() {
            let columns =
                vec![column(&rows, |(id, ..)| *id), column(&rows, |(_, body, _)| *body), column(&rows, |(.., at)| *at)];
            parts.push(Part { sql, columns });
        }
    }
}
