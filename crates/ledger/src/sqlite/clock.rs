//! The ledger's time on this machine: see [`Machine`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use roundelay_model::clock::{Boot, Clock, Entropy, Machine, Time};
use roundelay_model::wall_clock::{REMEMBERED, Stretch, WallClock};
use rusqlite::{Connection, TransactionBehavior, params};

use super::SqliteLedger;
use super::store::{Result, Store};
use crate::clock::LedgerClock;
use crate::error::LedgerError;

/// What the ledger remembers of the wall clock.
fn wall_clock(connection: &Connection) -> Result<WallClock> {
    let mut select = connection.prepare_cached("SELECT since, ahead FROM clock_sets ORDER BY since")?;
    let stretch = |row: &rusqlite::Row<'_>| Ok(Stretch { since: Time::from_millis(row.get(0)?), ahead: row.get(1)? });
    let stretches = select.query_map([], stretch)?;
    stretches.collect::<Result<_>>().map(WallClock::new)
}

fn known(connection: &Connection, boot: Boot) -> Result<(Machine, bool)> {
    let select = "SELECT boot, base, seen FROM ledger_clock";
    let (known, base, seen): (String, i64, i64) =
        connection.query_row(select, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let wall_clock = wall_clock(connection)?;
    Ok(match known == boot.id {
        true => (Machine::known(boot, Time::from_millis(base), wall_clock), true),
        false => (Machine::started(boot, Time::from_millis(seen), wall_clock), false),
    })
}

/// The clock of the ledger that is opened, in place of the machine's wall clock.
pub(super) fn open(connection: &mut Connection, clock: Clock, entropy: &Entropy) -> Result<Clock> {
    if !matches!(clock, Clock::System) {
        return Ok(clock);
    }
    let boot = Boot::current(&entropy.token());
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let (machine, is_known) = known(&transaction, boot.clone())?;
    if !is_known {
        let now = machine.now().as_millis();
        let values = params![boot.id, machine.base().as_millis(), now];
        transaction.execute("UPDATE ledger_clock SET boot = ?1, base = ?2, seen = ?3", values)?;
    }
    transaction.commit()?;
    Ok(Clock::Machine(Arc::new(machine)))
}

/// The clock of a ledger that is only looked at: nothing is written to the ledger.
pub(super) fn look(connection: &Connection, clock: Clock) -> Result<Clock> {
    if !matches!(clock, Clock::System) {
        return Ok(clock);
    }
    Ok(Clock::Machine(Arc::new(known(connection, Boot::current("only looks"))?.0)))
}

impl Store {
    /// Notes how the wall clock was set, and the ledger's time.
    fn note_clock(&mut self, set: Option<&WallClock>, now: Time) -> Result<WallClock> {
        if let Some(stretch) = set.and_then(|set| set.stretches().last()) {
            let insert = "INSERT INTO clock_sets (since, ahead) VALUES (?1, ?2)";
            self.connection.execute(insert, params![stretch.since.as_millis(), stretch.ahead])?;
            let forget = "DELETE FROM clock_sets WHERE since < (SELECT since FROM clock_sets ORDER BY since DESC
                                                                LIMIT 1 OFFSET ?1)";
            self.connection.execute(forget, [REMEMBERED as i64 - 1])?;
        }
        let seen = "UPDATE ledger_clock SET seen = max(seen, ?1)";
        self.connection.prepare_cached(seen)?.execute([now.as_millis()])?;
        wall_clock(&self.connection)
    }
}

/// How often the ledger's time is noted in it, in milliseconds. So much time may be lost when a machine starts with a
/// wrong clock.
const NOTE_EVERY: i64 = 10_000;

impl SqliteLedger {
    /// Looks whether the wall clock was set; of several processes that notice, each writes what it has seen, and the
    /// first one written counts for all.
    pub(super) async fn look_at_clock(&self) -> Result<(), LedgerError> {
        let machine = match &self.clock {
            Clock::Machine(machine) => machine,
            Clock::Server(server) => {
                server.read();
                return Ok(());
            }
            _ => return Ok(()),
        };
        let (machine, now) = (machine.clone(), machine.now());
        let noted = self.noted.load(Ordering::Relaxed);
        if machine.was_set().is_none() && now.as_millis() < noted + NOTE_EVERY {
            return Ok(());
        }
        self.noted.store(now.as_millis(), Ordering::Relaxed);
        let note = move |store: &mut Store| {
            // Another process may have noted it since.
            machine.learn(wall_clock(&store.connection)?);
            let noted = store.note_clock(machine.was_set().as_ref(), now)?;
            machine.learn(noted);
            Ok(())
        };
        self.writer.write(note).await
    }
}

#[async_trait]
impl LedgerClock for SqliteLedger {
    fn id(&self) -> &str {
        &self.id
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn wall_clock(&self) -> Arc<WallClock> {
        self.clock.wall_clock()
    }

    async fn read_clock(&self) -> Result<(), LedgerError> {
        self.look_at_clock().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::url::LedgerUrl;

    /// A ledger file, and a second way into it.
    fn open(folder: &tempfile::TempDir) -> (SqliteLedger, Connection) {
        let file = folder.path().join("ledger.db");
        let ledger = SqliteLedger::open(&LedgerUrl::Sqlite(file.clone()), Clock::System, &Entropy::seeded(1)).unwrap();
        (ledger, Connection::open(file).unwrap())
    }

    fn far(one: Time, other: Time) -> i64 {
        (one.as_millis() - other.as_millis()).abs()
    }

    #[tokio::test]
    async fn the_wall_clock_moves_no_ledger_and_is_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let (ledger, beside) = open(&folder);
        assert!(far(ledger.now(), Clock::System.now()) < 100, "a new ledger begins with the wall clock");
        ledger.read_clock().await.unwrap();
        assert_eq!(ledger.wall_clock().stretches(), []);
        // As if the wall clock had been set an hour back since the machine was started.
        beside.execute("UPDATE ledger_clock SET base = base + 3600000", []).unwrap();
        let (second, _) = open(&folder);
        let hour = Duration::from_secs(3_600);
        assert!(far(second.now(), Clock::System.now() + hour) < 100, "time goes on");
        second.read_clock().await.unwrap();
        assert!((second.wall_clock().ahead() + 3_600_000).abs() < 100, "{:?}", second.wall_clock());
        assert!(far(second.wall_clock().wall(second.now()), Clock::System.now()) < 100);
        // Noting it once is enough: other processes read it from the ledger.
        second.read_clock().await.unwrap();
        let (third, _) = open(&folder);
        third.read_clock().await.unwrap();
        assert_eq!((second.wall_clock().sets().count(), third.wall_clock()), (1, second.wall_clock()));
        let looks = SqliteLedger::look(&folder.path().join("ledger.db"), Clock::System).unwrap();
        assert!(far(looks.now(), third.now()) < 100 && looks.wall_clock() == third.wall_clock());
    }

    #[tokio::test]
    async fn time_does_not_go_back_when_the_machine_was_started_with_a_wrong_clock() {
        let folder = tempfile::tempdir().unwrap();
        let (ledger, beside) = open(&folder);
        ledger.read_clock().await.unwrap();
        // Another start of the machine, before which the ledger's time was a day ahead of what the wall clock shows
        // now.
        let day = 86_400_000;
        let seen: i64 = beside.query_row("SELECT seen FROM ledger_clock", [], |row| row.get(0)).unwrap();
        assert!(far(Time::from_millis(seen), ledger.now()) < 1_000);
        beside.execute("UPDATE ledger_clock SET boot = 'another', seen = seen + ?1", [day]).unwrap();
        let (again, _) = open(&folder);
        assert!(far(again.now(), Time::from_millis(seen + day)) < 2_000);
        again.read_clock().await.unwrap();
        assert!((again.wall_clock().ahead() + day).abs() < 2_000, "{:?}", again.wall_clock());
        // And when it was down for a day with a clock that is right, a day has gone by.
        beside.execute("DELETE FROM clock_sets", []).unwrap();
        beside.execute("UPDATE ledger_clock SET boot = 'a third', seen = ?1", [seen - day]).unwrap();
        let (third, _) = open(&folder);
        assert!(far(third.now(), Clock::System.now()) < 100);
    }
}
