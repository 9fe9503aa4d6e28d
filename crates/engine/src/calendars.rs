//! The days of calendars by SQL: `calendars.NAME.sql`.
//!
//! A chore for each reads its database, and hands on what it has read. So the days are in the ledger, one worker at a time
//! reads them, and when a reading fails, those before stay in force. All programs take them from there. A calendar of
//! which nothing has been read yet has no days but those of the configuration.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use roundelay_config::{Config, SqlCalendar};
use roundelay_ledger::{Ledger, LedgerError};
use roundelay_model::encryption::{AssociatedData, Field};
use roundelay_model::outcome::{Outcome, Yield};
use roundelay_model::schedule::calendar::Days;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::outbox::MAX_CARRY;
use crate::roster::{Line, Row, source};

/// The kind of the chore that reads the days of a calendar; its key is the calendar's name.
pub const CALENDAR: &str = "roundelay.calendar";
/// How often workers look whether other days have been read.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Rows that are read before the first is looked at.
const AT_ONCE: usize = 64;

/// The days that were read of each calendar.
pub type Read = BTreeMap<String, Days>;

/// The calendars of a configuration that are read from a database.
pub fn by_sql(config: &Config) -> impl Iterator<Item = (&String, &SqlCalendar)> {
    config.calendars.iter().filter_map(|(name, calendar)| Some((name, calendar.sql.as_ref()?)))
}

/// The days as they were last read, from the ledger.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn read(config: &Config, ledger: &dyn Ledger) -> Result<Read, LedgerError> {
    let mut all = Read::new();
    for (name, _) in by_sql(config) {
        let chains = ledger.chains(CALENDAR.into(), name.clone()).await?;
        let carry = chains.into_iter().find(|chain| !chain.once).and_then(|chain| chain.carry);
        let texts = carry.and_then(|carry| {
            let opened = config.encryption.opened(AssociatedData::new(Field::Carry, CALENDAR, name), &carry).ok()?;
            serde_json::from_str::<Vec<String>>(&opened).ok()
        });
        if let Some(texts) = texts {
            all.insert(name.clone(), days(&texts).unwrap_or_default());
        }
    }
    Ok(all)
}

/// The configuration with the days that were last read.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn with_days<'c>(config: &'c Config, ledger: &dyn Ledger) -> Result<Cow<'c, Config>, LedgerError> {
    if by_sql(config).next().is_none() {
        return Ok(Cow::Borrowed(config));
    }
    let mut with = config.clone();
    with.take_days(&read(config, ledger).await?);
    Ok(Cow::Owned(with))
}

/// Waits until the ledger has other days than `known`.
pub(crate) async fn changed(config: &Config, ledger: &dyn Ledger, known: &Read) -> Read {
    if by_sql(config).next().is_none() {
        return std::future::pending().await;
    }
    loop {
        sleep(LOOK_EVERY).await;
        match read(config, ledger).await {
            Ok(found) if found != *known => return found,
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "the days of calendars cannot be read"),
        }
    }
}

fn days(texts: &[String]) -> Result<Days, String> {
    let mut days = Days::default();
    texts.iter().try_for_each(|text| days.add(text))?;
    Ok(days)
}

/// One run of the chore of a calendar: `carry` is what the run before has handed on.
pub(crate) async fn follow(config: &Config, name: &str, carry: &Value) -> Outcome {
    let Some((_, sql)) = by_sql(config).find(|(known, _)| *known == name) else {
        return Outcome::Retire { reason: format!("the configuration has no calendars.{name}.sql").into() };
    };
    match texts(sql).await {
        Ok(texts) => {
            let read = Value::from(texts);
            if read != *carry {
                tracing::info!(
                    calendar = name,
                    rows = read.as_array().map_or(0, Vec::len),
                    "the days of a calendar have changed"
                );
            }
            Outcome::DoneWith(Yield { carry: Some(read), ..Yield::default() })
        }
        Err(why) => Outcome::retry(format!("the calendar `{name}` keeps the days that were read before: {why}")),
    }
}

/// The rows of a query, each of them a day.
async fn texts(sql: &SqlCalendar) -> Result<Vec<String>, String> {
    let (into, mut from) = mpsc::channel::<Line>(AT_ONCE);
    let collect = async {
        let (mut texts, mut bytes) = (Vec::new(), 0);
        while let Some(line) = from.recv().await {
            let (number, row) = line.map_err(|bad| format!("row {}: {}", bad.line, bad.reason))?;
            let text = day(&row).map_err(|why| format!("row {number}: {why}"))?;
            // Quotes and a comma.
            bytes += text.len() + 3;
            if bytes > MAX_CARRY - 2 {
                return Err(format!(
                    "its rows have more than {} KiB; name ranges such as 2026-12-24..2026-12-31, or fewer years",
                    MAX_CARRY >> 10
                ));
            }
            texts.push(text);
        }
        Ok(texts)
    };
    let (read, texts) = tokio::join!(source::read(&sql.source, into), collect);
    // Where a row is wrong, reading ends early.
    let mut texts = texts?;
    read?;
    texts.sort();
    texts.dedup();
    Ok(texts)
}

fn day(row: &Row) -> Result<String, String> {
    let columns = || row.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    let value = match row.get("day") {
        Some(value) => value,
        None if row.len() == 1 => row.values().next().unwrap_or(&Value::Null),
        None => return Err(format!("it has the columns {}, and none of them is `day`", columns())),
    };
    let Value::String(text) = value else { return Err(format!("its day is `{value}`; make it text in the query")) };
    Days::default().add(text)?;
    Ok(text.clone())
}
