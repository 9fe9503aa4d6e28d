//! Reads the list that a kind names in its configuration: keys, a file, a URL, or a query.
//!
//! Whatever goes wrong is told for a person, and without the password in a URL. A list that could
//! not be read to its end is an error, so that missing rows are not taken for entities that have left.

use std::fs::File;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Response, StatusCode};
use roundelay_config::{Format, RosterDatabase, RosterSource};
use roundelay_handler::http;
use roundelay_ledger::postgres::Foreign;
use roundelay_model::egress::Reach;
use roundelay_model::secret::Secret;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, InterruptHandle, OpenFlags};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{BadRow, Line, Row, rows};

/// The largest answer that is taken, in bytes.
const MAX_BYTES: usize = 256 << 20;
/// How long a source may be silent.
const SILENCE: Duration = Duration::from_secs(30);
/// How long it may take to read all of it.
const IN_ALL: Duration = Duration::from_secs(10 * 60);

/// Reads all of `source` and hands its rows to `into`; ends early when the receiver is gone.
///
/// # Errors
/// Why it could not be read to its end.
pub async fn read(source: &RosterSource, into: mpsc::Sender<Line>) -> Result<(), String> {
    let all = async {
        match source {
            RosterSource::Keys(keys) => {
                for (line, key) in (1..).zip(keys) {
                    let row = Row::from_iter([("key".to_owned(), key.as_str().into())]);
                    if into.send(Ok((line, row))).await.is_err() {
                        break;
                    }
                }
                Ok(())
            }
            RosterSource::File(path) => {
                blocking({
                    let path = path.clone();
                    move || file(&path, &into)
                })
                .await
            }
            RosterSource::Http { url, allow } => {
                let (format, body) = get(url, allow).await.map_err(|why| format!("GET {url}: {why}"))?;
                let url = url.to_string();
                blocking(move || hand_over(format, Cursor::new(body), &into).map_err(|why| format!("{url}: {why}")))
                    .await
            }
            RosterSource::Sql { database: RosterDatabase::Sqlite(path), query } => {
                sqlite(path, query, into).await.map_err(|why| format!("{}: {why}", path.display()))
            }
            RosterSource::Sql { database: RosterDatabase::Postgres(url), query } => {
                postgres(url, query, &into).await.map_err(|why| format!("{url}: {why}"))
            }
        }
    };
    timeout(IN_ALL, all)
        .await
        .unwrap_or_else(|_| Err(format!("it was not read within {} minutes", IN_ALL.as_secs() / 60)))
}

async fn blocking(work: impl FnOnce() -> Result<(), String> + Send + 'static) -> Result<(), String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(format!("reading it broke off: {error}")))
}

fn hand_over(format: Format, from: impl std::io::Read, into: &mpsc::Sender<Line>) -> Result<(), String> {
    for line in rows(format, from)? {
        if into.blocking_send(line).is_err() {
            break;
        }
    }
    Ok(())
}

/// A file that is written while it is read has not all of its rows.
fn file(path: &Path, into: &mpsc::Sender<Line>) -> Result<(), String> {
    let told = |why: String| format!("{}: {why}", path.display());
    let state = |file: &File| file.metadata().map(|metadata| (metadata.len(), metadata.modified().ok()));
    let format = Format::of(path)?;
    let file = File::open(path).map_err(|error| told(error.to_string()))?;
    let before = state(&file).map_err(|error| told(error.to_string()))?;
    hand_over(format, &file, into).map_err(told)?;
    if before != state(&file).map_err(|error| told(error.to_string()))? {
        return Err(told("it was changed while it was read; write to another file, and rename that".into()));
    }
    Ok(())
}

// ---- A URL ----

async fn get(url: &Secret, allow: &Reach) -> Result<(Format, Vec<u8>), String> {
    let mut response = timeout(SILENCE, http::get(url.expose(), allow)).await.map_err(|_| silent())??;
    let status = response.status();
    if status.is_redirection() {
        return Err(format!("the answer is {status}, and redirects are not followed; name the URL that it leads to"));
    }
    if status != StatusCode::OK {
        return Err(format!("the answer is {status}"));
    }
    let format = format_of(&response)?;
    let large = || format!("the answer is larger than {} MiB", MAX_BYTES >> 20);
    if response.content_length().is_some_and(|length| length > MAX_BYTES as u64) {
        return Err(large());
    }
    let mut body = Vec::new();
    loop {
        let chunk = timeout(SILENCE, response.chunk()).await.map_err(|_| silent())?;
        let Some(chunk) = chunk.map_err(|error| format!("the answer broke off: {}", root(error.without_url())))? else {
            return Ok((format, body));
        };
        if body.len() + chunk.len() > MAX_BYTES {
            return Err(large());
        }
        body.extend_from_slice(&chunk);
    }
}

fn silent() -> String {
    format!("nothing came for {} s", SILENCE.as_secs())
}

/// What went wrong at the bottom of it.
fn root(error: reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = &error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// As the answer says; where it says nothing of use, by the extension in the URL.
fn format_of(response: &Response) -> Result<Format, String> {
    let declared = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let path = response.url().path();
    by_type(declared).or_else(|| Format::of(Path::new(path)).ok()).ok_or_else(|| {
        format!(
            "its Content-Type is `{declared}`, and its path ends neither in .csv nor in .ndjson; answer with text/csv \
             or application/x-ndjson"
        )
    })
}

fn by_type(declared: &str) -> Option<Format> {
    let essence = declared.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.as_str() {
        "text/csv" | "application/csv" => Some(Format::Csv),
        "application/x-ndjson" | "application/ndjson" | "application/jsonl" | "application/x-jsonlines" => {
            Some(Format::Ndjson)
        }
        _ => None,
    }
}

// ---- Queries ----

/// Ends the query when the receiver is gone.
struct Interrupt(InterruptHandle);

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.0.interrupt();
    }
}

async fn sqlite(path: &Path, query: &str, into: mpsc::Sender<Line>) -> Result<(), String> {
    let (path, query) = (PathBuf::from(path), query.to_owned());
    let open = move || {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(SILENCE)?;
        Ok(connection)
    };
    let opened = tokio::task::spawn_blocking(open).await.map_err(|error| error.to_string())?;
    let connection = opened.map_err(|error: rusqlite::Error| error.to_string())?;
    let _interrupt = Interrupt(connection.get_interrupt_handle());
    blocking(move || select(&connection, &query, &into).map_err(|error| error.to_string())).await
}

fn select(connection: &Connection, query: &str, into: &mpsc::Sender<Line>) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(query)?;
    let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
    let mut found = statement.query([])?;
    let mut number = 0;
    while let Some(row) = found.next()? {
        number += 1;
        let cells =
            columns.iter().enumerate().map(|(at, column)| Ok((column.clone(), value(row.get_ref(at)?, column))));
        let cells: Vec<(String, Result<Value, String>)> = cells.collect::<rusqlite::Result<_>>()?;
        let row: Result<Row, String> = cells.into_iter().map(|(name, value)| Ok((name, value?))).collect();
        let line = row.map(|row| (number, row)).map_err(|reason| BadRow { line: number, reason, text: String::new() });
        if into.blocking_send(line).is_err() {
            break;
        }
    }
    Ok(())
}

fn value(value: ValueRef<'_>, column: &str) -> Result<Value, String> {
    Ok(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => number.into(),
        ValueRef::Text(text) => {
            std::str::from_utf8(text).map_err(|_| format!("the column `{column}` is not UTF-8"))?.into()
        }
        ValueRef::Blob(_) => return Err(format!("the column `{column}` is a blob; make it text in the query")),
    })
}

async fn postgres(url: &Secret, query: &str, into: &mpsc::Sender<Line>) -> Result<(), String> {
    let mut found = timeout(SILENCE, Foreign::select(url, query)).await.map_err(|_| silent())??;
    let mut number = 0;
    while let Some(text) = timeout(SILENCE, found.next()).await.map_err(|_| silent())?? {
        number += 1;
        let line = match serde_json::from_str::<Row>(&text) {
            Ok(row) => Ok((number, row)),
            Err(error) => Err(BadRow { line: number, reason: format!("cannot be read: {error}"), text }),
        };
        if into.send(line).await.is_err() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_what_the_answer_says() {
        let table = [
            ("text/csv", Some(Format::Csv)),
            ("Text/CSV; charset=utf-8", Some(Format::Csv)),
            ("application/x-ndjson", Some(Format::Ndjson)),
            ("application/jsonl;x=y", Some(Format::Ndjson)),
            ("text/plain", None),
            ("application/json", None),
            ("", None),
        ];
        for (declared, format) in table {
            assert_eq!(by_type(declared), format, "{declared}");
        }
    }

    #[tokio::test]
    async fn the_columns_of_a_query_become_fields_of_their_types() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("them.db");
        let made = Connection::open(&path).unwrap();
        made.execute_batch(
            "CREATE TABLE t (id, name, share, gone); INSERT INTO t VALUES (7, 'π', 0.5, NULL), (8, x'00', 1, 1)",
        )
        .unwrap();
        let ask = async |query: &str| {
            let database = RosterDatabase::Sqlite(path.clone());
            let (into, mut from) = mpsc::channel(8);
            let ended = read(&RosterSource::Sql { database, query: query.into() }, into).await;
            let mut lines = Vec::new();
            while let Some(line) = from.recv().await {
                lines.push(line);
            }
            (ended, lines)
        };
        let (ended, lines) = ask("SELECT * FROM t").await;
        ended.unwrap();
        let row = serde_json::json!({ "id": 7, "name": "π", "share": 0.5, "gone": null });
        assert_eq!(lines[0].as_ref().map(|(line, row)| (*line, Value::Object(row.clone()))), Ok((1, row)));
        assert!(lines[1].as_ref().unwrap_err().reason.contains("`name` is a blob"), "{lines:?}");
        let (ended, _) = ask("SELECT absent FROM t").await;
        assert!(ended.as_ref().is_err_and(|why| why.contains("them.db: no such column")), "{ended:?}");
        let (ended, _) = ask("DELETE FROM t RETURNING id").await;
        assert!(ended.as_ref().is_err_and(|why| why.contains("readonly")), "it is only read: {ended:?}");
    }
}
