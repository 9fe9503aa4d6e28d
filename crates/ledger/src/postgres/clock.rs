//! The ledger's time by the server's clock: see [`Followed`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use roundelay_model::clock::{Reading, Seen, Time, instant};
use roundelay_model::wall_clock::{Stretch, WallClock};
use tokio::time::Instant;
use tokio_postgres::{Client, Error, Row};

use super::PostgresLedger;
use super::connect::words;
use super::standby::KeptTime;
use crate::clock::LedgerClock;
use crate::error::LedgerError;

/// A reading: what the server's clock shows, and how far that has been set in all.
pub(super) const READ: &str =
    "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::int8, set_by, version FROM ledger_clock";
/// Of several workers that notice at once, the first writes.
const CORRECT: &str = "
    WITH told AS (UPDATE ledger_clock SET set_by = $1, version = version + 1 WHERE version = $2 RETURNING set_by),
         old AS (DELETE FROM clock_sets
                 WHERE since < (SELECT since FROM clock_sets ORDER BY since DESC OFFSET 31 LIMIT 1))
    INSERT INTO clock_sets (since, ahead) SELECT $3, set_by / 1000 FROM told";
/// Notes the time, so that a worker that opens the ledger later does not begin before it.
const SEEN: &str = "UPDATE ledger_clock SET seen = greatest(seen, $1)";
const LAST: &str = "SELECT seen FROM ledger_clock";
/// How often the time is noted, in milliseconds.
const SEEN_EVERY: i64 = 10_000;
/// What workers of a primary have told of the time is seen at a standby this much later, at most, in microseconds: they
/// tell it once a second, and as often it is looked at.
const TOLD_LATE: i64 = 5_000_000;
const SETS: &str = "SELECT since, ahead FROM clock_sets ORDER BY since";

/// The reading that a row of [`READ`] is.
pub(super) fn seen(row: &Row, asked: Instant) -> Result<Seen, Error> {
    Ok(Seen { server: row.try_get(0)?, set: row.try_get(1)?, version: row.try_get(2)?, asked, answered: instant() })
}

/// Writes how far the server's clock has been set, if a reading has shown that.
pub(super) async fn correct(client: &Client, seen: &Seen, reading: Reading) -> Result<(), Error> {
    let Some(set) = reading.correction else { return Ok(()) };
    client.execute(CORRECT, &[&set, &seen.version, &reading.time().as_millis()]).await.map(drop)
}

/// What the ledger remembers of the server's clock, and a first reading of it.
///
/// Without `writes` (a program that only looks), a server's clock that was set back while no worker ran is not noted.
pub(super) async fn first(client: &Client, writes: bool, kept: Option<KeptTime>) -> Result<(Seen, WallClock), Error> {
    let rows = client.query(SETS, &[]).await?;
    let stretches =
        rows.iter().map(|row| Ok(Stretch { since: Time::from_millis(row.try_get(0)?), ahead: row.try_get(1)? }));
    let mut wall_clock = WallClock::new(stretches.collect::<Result<_, Error>>()?);
    let asked = instant();
    let row = client.query_one(READ, &[]).await?;
    let mut first = seen(&row, asked)?;
    let last: i64 = client.query_one(LAST, &[]).await?.try_get(0)?;
    let shows = first.server - first.set;
    let goes_on = goes_on(shows, last, kept.map(|kept| kept.at(asked)));
    if goes_on != shows {
        let (set, since) = (first.server - goes_on, goes_on.div_euclid(1_000));
        if writes {
            client.execute(CORRECT, &[&set, &first.version, &since]).await?;
        }
        (first.set, first.version) = (set, first.version + 1);
        wall_clock = wall_clock.set(Time::from_millis(since), set.div_euclid(1_000));
    }
    Ok((first, wall_clock))
}

/// From where the time goes on when the ledger is opened (pure), in microseconds: `shows` by the server's clock, `last`
/// noted before, and `kept` by a program that has waited for the server and knows how much time has passed.
///
/// Time never goes back. If the server's clock was set back while no worker ran, or this is another server whose clock
/// is behind, it goes on from what is known. That this clock is ahead only `kept` can show.
fn goes_on(shows: i64, last: i64, kept: Option<i64>) -> i64 {
    let least = kept.map_or(last, |kept| last.max(kept));
    let beyond = kept.is_some_and(|kept| shows > kept + TOLD_LATE);
    if shows < least || beyond { least } else { shows }
}

impl PostgresLedger {
    /// Reads the server's clock.
    pub(super) async fn read(&self) -> Result<(), LedgerError> {
        let failed = |error: Error| LedgerError::Statement(words(&error));
        let asked = instant();
        let rows = self.reader.query(READ, &[]).await?;
        let row = rows.first().ok_or_else(|| LedgerError::Statement("the table ledger_clock is empty".into()))?;
        let seen = seen(row, asked).map_err(failed)?;
        let reading = self.clock.read(seen);
        self.clock.looked(asked);
        let noted = self.noted.load(Ordering::Relaxed);
        if reading.time().as_millis() >= noted + SEEN_EVERY {
            self.reader.execute(SEEN, &[&reading.micros]).await?;
            self.noted.store(reading.time().as_millis(), Ordering::Relaxed);
        }
        match reading.correction {
            Some(set) => {
                let since = reading.time().as_millis();
                self.reader.execute(CORRECT, &[&set, &seen.version, &since]).await.map(drop)
            }
            None => Ok(()),
        }
    }
}

#[async_trait]
impl LedgerClock for PostgresLedger {
    fn id(&self) -> &str {
        &self.id
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn wall_clock(&self) -> Arc<WallClock> {
        self.clock().wall_clock()
    }

    async fn read_clock(&self) -> Result<(), LedgerError> {
        self.read().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000;

    #[test]
    fn a_table_of_clocks_and_where_the_time_goes_on() {
        // What the server's clock shows, what was noted before, what is known, and where the time goes on.
        let table = [
            (100 * S, 90 * S, None, 100 * S),
            // The clock was set back, or is another server's.
            (80 * S, 90 * S, None, 90 * S),
            // Without a witness the rest passes for elapsed time.
            (3_700 * S, 90 * S, None, 3_700 * S),
            (3_700 * S, 90 * S, Some(101 * S), 101 * S),
            (80 * S, 90 * S, Some(101 * S), 101 * S),
            // Telling takes a moment.
            (103 * S, 90 * S, Some(101 * S), 103 * S),
            (101 * S + TOLD_LATE, 90 * S, Some(101 * S), 101 * S + TOLD_LATE),
            (100 * S, 90 * S, Some(101 * S), 101 * S),
        ];
        for (n, (shows, last, kept, expected)) in table.into_iter().enumerate() {
            assert_eq!(goes_on(shows, last, kept), expected, "row {n}");
        }
    }
}
