//! A standby, and what makes it the primary. Nothing here writes before the server is promoted.

use std::time::Duration;

use roundelay_model::clock::{Time, instant};
use roundelay_model::secret::Secret;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::{Client, Error};

use super::connect::{Address, words};

/// How often a server is asked whether something has become of it.
const ASK: Duration = Duration::from_secs(1);
/// The same while a command waits for it.
const ASK_SOON: Duration = Duration::from_millis(100);
/// An answer may take this long.
const ANSWER: Duration = Duration::from_secs(5);
/// How long a server may take to read a setting.
const RELOAD: Duration = Duration::from_secs(10);

const STANDING: &str = "
    SELECT pg_is_in_recovery(), floor(extract(epoch FROM clock_timestamp()) * 1000)::int8,
           floor(extract(epoch FROM pg_last_xact_replay_timestamp()) * 1000)::int8,
           coalesce(pg_wal_lsn_diff(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()), 0)::int8,
           current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication),
           has_function_privilege('pg_promote(boolean, integer)', 'EXECUTE'),
           (SELECT rolsuper FROM pg_roles WHERE rolname = current_user), current_user::text,
           to_regclass('meta') IS NOT NULL AND to_regclass('sessions') IS NOT NULL,
           CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END";
/// In which timeline of the server what follows a promotion was done.
const NOTED: &str = "SELECT value FROM meta WHERE name = 'sent_in_timeline'";
const NOTE: &str = "
    INSERT INTO meta (name, value) VALUES ('sent_in_timeline', substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))
    ON CONFLICT (name) DO UPDATE SET value = excluded.value";
/// Read by way of JSON, since the table of an older format has no column `synchronous`.
const SESSIONS: &str =
    "SELECT worker, coalesce((to_jsonb(s) ->> 'synchronous')::bool, false) FROM sessions s ORDER BY session";
/// The latest time that workers have told, which a beat does once a second.
const TOLD: &str = "
    SELECT pg_is_in_recovery(),
           greatest((SELECT seen FROM ledger_clock), (SELECT max(beat) * 1000 FROM sessions), 0)::int8";
/// Time goes on from the latest that workers have told.
const KEEP_TIME: &str = "UPDATE ledger_clock SET seen = greatest(seen, (SELECT max(beat) * 1000 FROM sessions))";

/// A server, as far as its promotion is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Where it is, without credentials.
    pub address: String,
    /// It is a standby.
    pub in_recovery: bool,
    /// What its clock shows.
    pub clock: Time,
    /// The last commit that it has, by the primary's clock; nothing if there was none since it was started.
    pub last_commit: Option<Time>,
    /// Bytes of the log that it has and has not replayed.
    pub behind: i64,
    /// `synchronous_standby_names`: the standbys for which it waits as a primary.
    pub waits_for: String,
    /// How many standbys follow it now.
    pub followers: i64,
    /// Whether the role may promote it.
    pub may_promote: bool,
    /// Whether the role may change the server's settings.
    pub may_set: bool,
    /// The role.
    pub role: String,
    /// Of a primary, its timeline: each promotion begins another.
    pub timeline: Option<String>,
    /// The timeline in which what follows a promotion was done, as the ledger remembers: see [`Standby::note_timeline`].
    pub noted_timeline: Option<String>,
    /// The sessions of workers in its ledger: the worker, and whether it refuses a server that waits for no standby.
    /// Nothing if there is no ledger.
    pub sessions: Option<Vec<(String, bool)>>,
}

/// A server that is to be promoted. Reads while it is a standby, and goes on when it is a primary.
pub struct Standby {
    address: Address,
    client: Client,
}

impl Standby {
    /// Connects to the server at `url`, whether or not it is a standby.
    ///
    /// # Errors
    /// When it does not answer, in words.
    pub async fn connect(url: &Secret) -> Result<Self, String> {
        let address = Address::new(url)?.for_looking();
        let dialled = timeout(ANSWER, address.dial()).await.map_err(|_| "it does not answer".to_owned())?;
        // The connection's task ends with the client.
        let (client, _) = dialled.map_err(|error| address.words(&error))?;
        Ok(Self { address, client })
    }

    /// What it is.
    ///
    /// # Errors
    /// When it does not answer, in words.
    pub async fn standing(&self) -> Result<Standing, String> {
        let asked = async {
            let row = self.client.query_one(STANDING, &[]).await?;
            let mut noted_timeline = None;
            let sessions = match row.try_get(9)? {
                false => None,
                true => {
                    let noted = self.client.query_opt(NOTED, &[]).await?;
                    noted_timeline = noted.map(|row| row.try_get(0)).transpose()?;
                    let rows = self.client.query(SESSIONS, &[]).await?;
                    let sessions = rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
                    Some(sessions.collect::<Result<_, Error>>()?)
                }
            };
            Ok(Standing {
                address: self.address.shown.clone(),
                in_recovery: row.try_get(0)?,
                clock: Time::from_millis(row.try_get(1)?),
                last_commit: row.try_get::<_, Option<i64>>(2)?.map(Time::from_millis),
                behind: row.try_get(3)?,
                waits_for: row.try_get(4)?,
                followers: row.try_get(5)?,
                may_promote: row.try_get(6)?,
                may_set: row.try_get::<_, Option<bool>>(7)?.unwrap_or(false),
                role: row.try_get(8)?,
                timeline: row.try_get(10)?,
                noted_timeline,
                sessions,
            })
        };
        answered(asked).await
    }

    /// Has the server wait for no standby at its commits, now and after a restart.
    ///
    /// # Errors
    /// In words, also when the server does not take it: something else sets it.
    pub async fn wait_for_none(&self) -> Result<(), String> {
        let set = async {
            self.client.batch_execute("ALTER SYSTEM SET synchronous_standby_names = ''").await?;
            self.client.batch_execute("SELECT pg_reload_conf()").await
        };
        answered(set).await?;
        self.until(RELOAD, "SELECT current_setting('synchronous_standby_names') = ''")
            .await
            .map_err(|why| format!("synchronous_standby_names stays as it is: {why}; look what sets it (pg_settings)"))
    }

    /// Makes the server a primary, and has its time go on from the latest that workers have told.
    ///
    /// # Errors
    /// In words, also when it is not a primary after `within`.
    pub async fn promote(&self, within: Duration) -> Result<(), String> {
        answered(self.client.batch_execute("SELECT pg_promote(false)")).await?;
        self.until(within, "SELECT NOT pg_is_in_recovery()").await?;
        answered(self.client.batch_execute(KEEP_TIME)).await
    }

    /// Notes that what follows a promotion was done.
    ///
    /// # Errors
    /// In words.
    pub async fn note_timeline(&self) -> Result<(), String> {
        answered(self.client.batch_execute(NOTE)).await
    }

    /// Waits until the answer is yes.
    async fn until(&self, within: Duration, sql: &str) -> Result<(), String> {
        let deadline = Instant::now() + within;
        loop {
            let asked = async { self.client.query_one(sql, &[]).await?.try_get::<_, bool>(0) };
            if answered(asked).await? {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(format!("not done after {} s", within.as_secs()));
            }
            sleep(ASK_SOON).await;
        }
    }
}

/// What is asked, within the time that an answer may take.
async fn answered<T>(asked: impl Future<Output = Result<T, Error>>) -> Result<T, String> {
    match timeout(ANSWER, asked).await {
        Ok(answer) => answer.map_err(|error| words(&error)),
        Err(_) => Err("it does not answer".into()),
    }
}

/// What a program that has waited at a standby knows of the ledger's time: at `at` it was `micros`, or up to a few
/// seconds later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptTime {
    at: Instant,
    micros: i64,
}

impl KeptTime {
    /// What the time is at least at `now`, in microseconds.
    pub(super) fn at(self, now: Instant) -> i64 {
        let passed = now.saturating_duration_since(self.at).as_micros();
        self.micros.saturating_add(i64::try_from(passed).unwrap_or(i64::MAX))
    }
}

/// Watches the time that workers of the primary tell, by what the standby has of it (pure).
#[derive(Debug, Default)]
struct Watch {
    last: Option<i64>,
    kept: Option<KeptTime>,
}

impl Watch {
    /// The standby was asked at `asked`, and has `told`. The first look may see what was told long ago.
    fn look(&mut self, asked: Instant, told: i64) {
        if self.last.is_some_and(|last| told > last) {
            self.kept = Some(KeptTime { at: asked, micros: told });
        }
        self.last = Some(told);
    }
}

/// Waits while the server at `url` is a standby. Answers `None` if it is none, or cannot be asked; else, once it is
/// promoted, what is known of the time. `waits` is called when the wait begins.
pub(super) async fn wait(url: &Secret, waits: impl FnOnce(&str)) -> Option<Option<KeptTime>> {
    let mut standby = Standby::connect(url).await.ok();
    let (mut watch, mut waits) = (Watch::default(), Some(waits));
    loop {
        let asked = instant();
        let told = async {
            let row = standby.as_ref()?.client.query_one(TOLD, &[]).await.ok()?;
            Some((row.try_get::<_, bool>(0).ok()?, row.try_get::<_, i64>(1).ok()?))
        };
        match timeout(ANSWER, told).await.ok().flatten() {
            Some((true, told)) => {
                watch.look(asked, told);
                if let (Some(waits), Some(standby)) = (waits.take(), &standby) {
                    waits(&standby.address.shown);
                }
            }
            Some((false, _)) if waits.is_none() => return Some(watch.kept),
            _ if waits.is_some() => return None,
            // It may be on its way to be a primary.
            _ => standby = Standby::connect(url).await.ok(),
        }
        sleep(ASK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_known_once_it_was_seen_to_go_on() {
        let start = Instant::now();
        let mut watch = Watch::default();
        // When it was looked, what the standby had, and the time that is known.
        let table = [(0, 5, None), (1, 5, None), (2, 6, Some((2, 6))), (3, 6, Some((2, 6))), (9, 7, Some((9, 7)))];
        for (at, told, known) in table {
            watch.look(start + Duration::from_secs(at), told);
            let known = known.map(|(at, micros)| KeptTime { at: start + Duration::from_secs(at), micros });
            assert_eq!(watch.kept, known, "{at}");
        }
    }
}
