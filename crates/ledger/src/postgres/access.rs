//! The API's tokens, audit and requests, in SQL: single statements, each a
//! transaction by itself.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::scope::Scope;
use tokio_postgres::{Error, Row};

use super::PostgresLedger;
use super::connect::words;
use crate::access::{
    AUDIT_KEPT, Access, AuditEntry, Begun, Hash, KeptAnswer, KeyedRequest, MAX_TOKENS, NewAuditEntry, NewToken,
    REQUESTS_KEPT, Token, TokenCreated, USE_NOTED_EVERY,
};
use crate::error::LedgerError;

/// The ledger's time in milliseconds.
macro_rules! now {
    () => {
        "ledger_millis()"
    };
}

/// The columns that [`token`] reads, in its order.
macro_rules! token_columns {
    () => {
        "id, name, scope, created, expires, last_used"
    };
}

const CREATE_TOKEN: &str = concat!(
    "INSERT INTO tokens (name, hash, scope, created, expires) SELECT $1::text, $2::bytea, $3::text, ",
    now!(),
    ", $4::int8 WHERE (SELECT count(*) FROM tokens) < $5 ON CONFLICT (name) DO NOTHING RETURNING ",
    token_columns!()
);
const TOKEN: &str = concat!("SELECT ", token_columns!(), " FROM tokens WHERE hash = $1");
const TOKENS: &str = concat!("SELECT ", token_columns!(), " FROM tokens ORDER BY name");
const TOKEN_USED: &str = concat!(
    "UPDATE tokens SET last_used = ",
    now!(),
    " WHERE id = $1 AND (last_used IS NULL OR last_used <= ",
    now!(),
    " - $2)"
);
const BEGIN_AUDIT: &str = concat!(
    "INSERT INTO audit (at, actor, scope, action, target, detail, status) VALUES (",
    now!(),
    ", $1, $2, $3, $4, $5, $6) RETURNING number"
);
const END_AUDIT: &str = "UPDATE audit SET status = $2, detail = coalesce($3, detail) WHERE number = $1";
const AUDIT: &str = "SELECT number, at, actor, scope, action, target, detail, status FROM audit
                     WHERE number < $1 ORDER BY number DESC LIMIT $2";
/// Takes the place of what is too old, or whose holder is dead. With a new number, the server that held the request
/// before cannot end it any more.
const BEGIN_REQUEST: &str = concat!(
    "WITH now AS MATERIALIZED (SELECT ",
    now!(),
    " AS ms)
     INSERT INTO requests AS r (actor, key, fingerprint, began, lease_until)
     SELECT $1::text, $2::text, $3::bytea, ms, ms + $4::int8 FROM now
     ON CONFLICT (actor, key) DO UPDATE
     SET number = excluded.number, fingerprint = excluded.fingerprint, began = excluded.began,
         lease_until = excluded.lease_until, status = NULL, content_type = NULL, body = NULL
     WHERE r.began <= excluded.began - $5::int8
        OR (r.status IS NULL AND r.lease_until <= excluded.began AND r.fingerprint = excluded.fingerprint)
     RETURNING number"
);
const REQUEST: &str = "SELECT fingerprint, status, content_type, body FROM requests WHERE actor = $1 AND key = $2";
const RENEW_REQUEST: &str =
    concat!("UPDATE requests SET lease_until = ", now!(), " + $2 WHERE number = $1 AND status IS NULL");
const END_REQUEST: &str = "UPDATE requests SET status = $2, content_type = $3, body = $4 WHERE number = $1";
const FORGET_REQUEST: &str = "DELETE FROM requests WHERE number = $1";
const FORGET_REQUESTS: &str = concat!(
    "WITH old AS MATERIALIZED (SELECT number FROM requests WHERE began <= ",
    now!(),
    " - $1 ORDER BY began LIMIT $2 FOR UPDATE SKIP LOCKED)
     DELETE FROM requests WHERE number IN (SELECT number FROM old)"
);
/// They are written about in the order of their numbers, so only the oldest are looked at.
const FORGET_AUDIT: &str = concat!(
    "DELETE FROM audit WHERE number IN (SELECT number FROM audit ORDER BY number LIMIT $2) AND at <= ",
    now!(),
    " - $1"
);

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A scope as it is kept. What another version has written and this one does not know allows nothing.
fn scope(row: &Row, column: usize) -> Result<Scope, Error> {
    Ok(row.try_get::<_, &str>(column)?.parse().unwrap_or(Scope::None))
}

fn optional_time(row: &Row, column: usize) -> Result<Option<Time>, Error> {
    Ok(row.try_get::<_, Option<i64>>(column)?.map(Time::from_millis))
}

/// A status as HTTP has them.
fn status(row: &Row, column: usize) -> Result<Option<u16>, Error> {
    Ok(row.try_get::<_, Option<i64>>(column)?.map(|status| u16::try_from(status).unwrap_or_default()))
}

fn token(row: &Row) -> Result<Token, Error> {
    Ok(Token {
        id: row.try_get(0)?,
        name: row.try_get(1)?,
        scope: scope(row, 2)?,
        created: Time::from_millis(row.try_get(3)?),
        expires: optional_time(row, 4)?,
        last_used: optional_time(row, 5)?,
    })
}

fn entry(row: &Row) -> Result<AuditEntry, Error> {
    let entry = NewAuditEntry {
        actor: row.try_get(2)?,
        scope: scope(row, 3)?,
        action: row.try_get(4)?,
        target: row.try_get(5)?,
        detail: row.try_get(6)?,
        status: status(row, 7)?,
    };
    Ok(AuditEntry { number: row.try_get(0)?, at: Time::from_millis(row.try_get(1)?), entry })
}

/// What is kept of a request that cannot begin.
fn found(row: &Row, fingerprint: &Hash) -> Result<Begun, Error> {
    if row.try_get::<_, &[u8]>(0)? != fingerprint {
        return Ok(Begun::Other);
    }
    Ok(match status(row, 1)? {
        None => Begun::Running,
        Some(status) => Begun::Answered(KeptAnswer {
            status,
            content_type: row.try_get::<_, Option<String>>(2)?.unwrap_or_default(),
            body: row.try_get(3)?,
        }),
    })
}

fn told(error: Error) -> LedgerError {
    LedgerError::Statement(words(&error))
}

impl PostgresLedger {
    async fn forget(&self, delete: &'static str, kept: Duration, limit: u32) -> Result<usize, LedgerError> {
        let forgotten = self.reader.execute(delete, &[&millis(kept), &i64::from(limit)]).await?;
        Ok(usize::try_from(forgotten).unwrap_or(usize::MAX))
    }
}

#[async_trait]
impl Access for PostgresLedger {
    async fn create_token(&self, new: NewToken) -> Result<TokenCreated, LedgerError> {
        let NewToken { name, hash, scope, expires } = new;
        let expires = expires.map(Time::as_millis);
        let (bytes, most) = (hash.as_slice(), i64::from(MAX_TOKENS));
        let rows = self.reader.query(CREATE_TOKEN, &[&name, &bytes, &scope.name(), &expires, &most]).await?;
        if let Some(row) = rows.first() {
            return token(row).map(TokenCreated::Created).map_err(told);
        }
        // A query whose connection was lost is sent again, and then the name is taken by this very token.
        if let Some(there) = self.token(hash).await? {
            return Ok(TokenCreated::Created(there));
        }
        let names = self.tokens().await?;
        let taken = names.iter().any(|token| token.name == name);
        Ok(if taken { TokenCreated::NameTaken } else { TokenCreated::TooMany })
    }

    async fn token(&self, hash: Hash) -> Result<Option<Token>, LedgerError> {
        let rows = self.reader.query(TOKEN, &[&hash.as_slice()]).await?;
        rows.first().map(token).transpose().map_err(told)
    }

    async fn tokens(&self) -> Result<Vec<Token>, LedgerError> {
        self.reader.query(TOKENS, &[]).await?.iter().map(token).collect::<Result<_, _>>().map_err(told)
    }

    async fn revoke_token(&self, name: String) -> Result<bool, LedgerError> {
        Ok(self.reader.execute("DELETE FROM tokens WHERE name = $1", &[&name]).await? > 0)
    }

    async fn token_used(&self, id: i64) -> Result<(), LedgerError> {
        self.reader.execute(TOKEN_USED, &[&id, &millis(USE_NOTED_EVERY)]).await.map(drop)
    }

    async fn begin_audit(&self, entry: NewAuditEntry) -> Result<i64, LedgerError> {
        let NewAuditEntry { actor, scope, action, target, detail, status } = entry;
        let status = status.map(i64::from);
        let rows = self.reader.query(BEGIN_AUDIT, &[&actor, &scope.name(), &action, &target, &detail, &status]).await?;
        let row = rows.first().ok_or_else(|| LedgerError::Statement("the server returned no number".into()))?;
        row.try_get(0).map_err(told)
    }

    async fn end_audit(&self, number: i64, status: u16, detail: Option<String>) -> Result<(), LedgerError> {
        self.reader.execute(END_AUDIT, &[&number, &i64::from(status), &detail]).await.map(drop)
    }

    async fn audit(&self, before: Option<i64>, limit: u32) -> Result<Vec<AuditEntry>, LedgerError> {
        let rows = self.reader.query(AUDIT, &[&before.unwrap_or(i64::MAX), &i64::from(limit)]).await?;
        rows.iter().map(entry).collect::<Result<_, _>>().map_err(told)
    }

    async fn begin_request(&self, request: KeyedRequest, lease: Duration) -> Result<Begun, LedgerError> {
        let KeyedRequest { actor, key, fingerprint } = request;
        let bytes = fingerprint.as_slice();
        loop {
            let begin = self
                .reader
                .query(BEGIN_REQUEST, &[&actor, &key, &bytes, &millis(lease), &millis(REQUESTS_KEPT)])
                .await?;
            if let Some(row) = begin.first() {
                return row.try_get(0).map(Begun::New).map_err(told);
            }
            let there = self.reader.query(REQUEST, &[&actor, &key]).await?;
            // Unless it was forgotten between the two.
            if let Some(row) = there.first() {
                return found(row, &fingerprint).map_err(told);
            }
        }
    }

    async fn renew_request(&self, held: i64, lease: Duration) -> Result<bool, LedgerError> {
        Ok(self.reader.execute(RENEW_REQUEST, &[&held, &millis(lease)]).await? > 0)
    }

    async fn end_request(&self, held: i64, answer: Option<KeptAnswer>) -> Result<(), LedgerError> {
        let ended = match answer {
            None => self.reader.execute(FORGET_REQUEST, &[&held]).await,
            Some(KeptAnswer { status, content_type, body }) => {
                self.reader.execute(END_REQUEST, &[&held, &i64::from(status), &content_type, &body]).await
            }
        };
        ended.map(drop)
    }

    async fn forget_access(&self, limit: u32) -> Result<usize, LedgerError> {
        let requests = self.forget(FORGET_REQUESTS, REQUESTS_KEPT, limit).await?;
        Ok(requests + self.forget(FORGET_AUDIT, AUDIT_KEPT, limit).await?)
    }
}
