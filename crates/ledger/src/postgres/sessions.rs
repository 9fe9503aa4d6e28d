//! Workers' leases, in SQL, on a connection of their own: a long query would keep a worker from saying that it lives.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::deaths::UNHEARD;
use roundelay_model::ids::{Epoch, Fence};
use tokio_postgres::Error;

use super::PostgresLedger;
use super::connect::words;
use crate::claim::ClaimId;
use crate::error::LedgerError;
use crate::sessions::{Beat, Session, Sessions};

const BEGIN: &str = "
    INSERT INTO sessions (session, worker, lease, mark, beat, synchronous)
    VALUES (nextval('fences'), $1, $2, $3, ledger_millis(), $4) RETURNING session";
/// All sessions that went on before this statement; whether the caller's is among them; and which of the dead this
/// statement has ended.
const BEAT: &str = "
    WITH mine AS (UPDATE sessions SET beat = greatest(beat + 1, ledger_millis()) WHERE session = $1
                  RETURNING session),
         dead AS (SELECT * FROM unnest($2::int8[], $3::int8[]) AS u (session, beat)),
         ended AS (DELETE FROM sessions s USING dead WHERE s.session = dead.session AND s.beat = dead.beat
                   RETURNING s.session)
    SELECT session, worker, lease, beat, mark, session IN (SELECT session FROM ended),
           session IN (SELECT session FROM mine)
    FROM sessions";

#[async_trait]
impl Sessions for PostgresLedger {
    async fn begin_session(&self, worker: String, lease: Duration) -> Result<i64, LedgerError> {
        // Without a mark, others wait for the lease.
        let left = self.marks.leave(self.clock.now()).unwrap_or_else(|error| {
            tracing::debug!(%error, "no mark can be left for other workers of this machine");
            None
        });
        let (mark, text) = left.unzip();
        let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
        let text = text.unwrap_or_default();
        let rows = self.pulse.query(BEGIN, &[&worker, &lease, &text, &self.address.synchronous]).await?;
        let row = rows.first().ok_or_else(|| LedgerError::Statement("it has begun no session".into()))?;
        let session = row.try_get(0).map_err(told)?;
        if let Some(mark) = mark {
            self.marks.keep(session, mark);
        }
        Ok(session)
    }

    async fn beat(&self, session: i64, dead: Vec<(i64, i64)>) -> Result<Beat, LedgerError> {
        let (dead, beats): (Vec<i64>, Vec<i64>) = dead.into_iter().unzip();
        let rows = self.pulse.query(BEAT, &[&session, &dead, &beats]).await?;
        let mut beat = Beat::default();
        for row in rows {
            let mark: String = row.try_get(4).map_err(told)?;
            let lease = Duration::from_millis(row.try_get::<_, i64>(2).map_err(told)?.unsigned_abs());
            let other = Session {
                session: row.try_get(0).map_err(told)?,
                worker: row.try_get(1).map_err(told)?,
                lease,
                beat: row.try_get(3).map_err(told)?,
                gone: self.marks.is_gone(&mark),
            };
            match (row.try_get(5).map_err(told)?, row.try_get(6).map_err(told)?) {
                (true, _) => {
                    self.marks.sweep(&mark);
                    beat.ended.push(other.session);
                }
                (false, true) => beat.alive = true,
                (false, false) => beat.others.push(other),
            }
        }
        Ok(beat)
    }

    async fn end_session(&self, session: i64) -> Result<(), LedgerError> {
        self.pulse.execute("DELETE FROM sessions WHERE session = $1", &[&session]).await?;
        self.marks.forget(session);
        Ok(())
    }

    async fn hold(&self, claims: Vec<ClaimId>) -> Result<Vec<bool>, LedgerError> {
        let sql = "SELECT epoch, fence FROM chains
                   JOIN unnest($1::int8[], $2::int8[]) AS u (epoch, fence) USING (epoch, fence) WHERE holder <> 0";
        let (epochs, fences): (Vec<i64>, Vec<i64>) =
            claims.iter().map(|claim| (claim.epoch.get(), claim.fence.get())).unzip();
        let rows = self.pulse.query(sql, &[&epochs, &fences]).await?;
        let held = rows.iter().map(|row| Ok(ClaimId { epoch: Epoch(row.try_get(0)?), fence: Fence(row.try_get(1)?) }));
        let held = held.collect::<Result<Vec<ClaimId>, Error>>().map_err(told)?;
        Ok(claims.iter().map(|claim| held.contains(claim)).collect())
    }

    async fn give_up(&self, session: i64, claims: Vec<ClaimId>) -> Result<(), LedgerError> {
        let sql = "WITH free AS (
                       UPDATE chains c SET holder = 0 FROM unnest($2::int8[], $3::int8[]) AS u (epoch, fence)
                       WHERE c.epoch = u.epoch AND c.fence = u.fence AND c.holder = $1 RETURNING c.fence)
                   UPDATE attempts a SET finished = ledger_millis(), verdict = 'lost', reason = $4
                   FROM free WHERE a.fence = free.fence AND a.finished IS NULL";
        let (epochs, fences): (Vec<i64>, Vec<i64>) =
            claims.iter().map(|claim| (claim.epoch.get(), claim.fence.get())).unzip();
        self.reader.execute(sql, &[&session, &epochs, &fences, &UNHEARD]).await.map(drop)
    }
}

fn told(error: Error) -> LedgerError {
    LedgerError::Statement(words(&error))
}
