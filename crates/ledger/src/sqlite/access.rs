//! The API's tokens, its audit log, and its requests with an idempotency key, in SQL.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::scope::Scope;
use rusqlite::{OptionalExtension, Row, params};

use super::SqliteLedger;
use super::store::{Result, Store, time};
use crate::access::{
    AUDIT_KEPT, Access, AuditEntry, Begun, Hash, KeptAnswer, KeyedRequest, MAX_TOKENS, NewAuditEntry, NewToken,
    REQUESTS_KEPT, Token, TokenCreated, USE_NOTED_EVERY,
};
use crate::error::LedgerError;

/// The columns that [`token_from_row`] reads, in its order.
const TOKEN_COLUMNS: &str = "id, name, scope, created, expires, last_used";

/// A scope as it is kept. A name that this version does not know is [`Scope::None`], which allows nothing.
fn scope_from_row(row: &Row<'_>, column: usize) -> Result<Scope> {
    Ok(row.get::<_, String>(column)?.parse().unwrap_or(Scope::None))
}

fn optional_time(row: &Row<'_>, column: usize) -> Result<Option<Time>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(Time::from_millis))
}

fn token_from_row(row: &Row<'_>) -> Result<Token> {
    Ok(Token {
        id: row.get(0)?,
        name: row.get(1)?,
        scope: scope_from_row(row, 2)?,
        created: time(row, 3)?,
        expires: optional_time(row, 4)?,
        last_used: optional_time(row, 5)?,
    })
}

impl Store {
    fn create_token(&mut self, new: &NewToken, now: Time) -> Result<TokenCreated> {
        let count = "SELECT count(*) FROM tokens";
        let count: u32 = self.connection.prepare_cached(count)?.query_row([], |row| row.get(0))?;
        let taken = "SELECT EXISTS (SELECT 1 FROM tokens WHERE name = ?1)";
        if self.connection.prepare_cached(taken)?.query_row([&new.name], |row| row.get(0))? {
            return Ok(TokenCreated::NameTaken);
        }
        if count >= MAX_TOKENS {
            return Ok(TokenCreated::TooMany);
        }
        let insert = format!(
            "INSERT INTO tokens (name, hash, scope, created, expires) VALUES (?1, ?2, ?3, ?4, ?5) RETURNING {TOKEN_COLUMNS}"
        );
        let expires = new.expires.map(Time::as_millis);
        self.connection
            .prepare_cached(&insert)?
            .query_row(params![new.name, new.hash, new.scope.name(), now.as_millis(), expires], token_from_row)
            .map(TokenCreated::Created)
    }

    fn token(&self, hash: &Hash) -> Result<Option<Token>> {
        let select = format!("SELECT {TOKEN_COLUMNS} FROM tokens WHERE hash = ?1");
        self.connection.prepare_cached(&select)?.query_row([hash], token_from_row).optional()
    }

    fn tokens(&self) -> Result<Vec<Token>> {
        let select = format!("SELECT {TOKEN_COLUMNS} FROM tokens ORDER BY name");
        self.connection.prepare_cached(&select)?.query_map([], token_from_row)?.collect()
    }

    fn revoke_token(&mut self, name: &str) -> Result<bool> {
        Ok(self.connection.prepare_cached("DELETE FROM tokens WHERE name = ?1")?.execute([name])? > 0)
    }

    fn token_used(&mut self, id: i64, now: Time) -> Result<()> {
        let update = "UPDATE tokens SET last_used = ?2 WHERE id = ?1 AND (last_used IS NULL OR last_used <= ?3)";
        let before = now - USE_NOTED_EVERY;
        self.connection.prepare_cached(update)?.execute([id, now.as_millis(), before.as_millis()]).map(drop)
    }

    fn begin_audit(&mut self, entry: &NewAuditEntry, now: Time) -> Result<i64> {
        let insert = "INSERT INTO audit (at, actor, scope, action, target, detail, status)
                      VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) RETURNING number";
        let NewAuditEntry { actor, scope, action, target, detail, status } = entry;
        self.connection
            .prepare_cached(insert)?
            .query_row(params![now.as_millis(), actor, scope.name(), action, target, detail, status], |row| row.get(0))
    }

    fn end_audit(&mut self, number: i64, status: u16, detail: Option<&str>) -> Result<()> {
        let update = "UPDATE audit SET status = ?2, detail = coalesce(?3, detail) WHERE number = ?1";
        self.connection.prepare_cached(update)?.execute(params![number, status, detail]).map(drop)
    }

    fn audit(&self, before: i64, limit: u32) -> Result<Vec<AuditEntry>> {
        let select = "SELECT number, at, actor, scope, action, target, detail, status FROM audit
                      WHERE number < ?1 ORDER BY number DESC LIMIT ?2";
        let mut select = self.connection.prepare_cached(select)?;
        let rows = select.query_map(params![before, limit], |row| {
            let entry = NewAuditEntry {
                actor: row.get(2)?,
                scope: scope_from_row(row, 3)?,
                action: row.get(4)?,
                target: row.get(5)?,
                detail: row.get(6)?,
                status: row.get(7)?,
            };
            Ok(AuditEntry { number: row.get(0)?, at: time(row, 1)?, entry })
        })?;
        rows.collect()
    }

    fn begin_request(&mut self, request: &KeyedRequest, now: Time, lease: Duration) -> Result<Begun> {
        let KeyedRequest { actor, key, fingerprint } = request;
        let select = "SELECT fingerprint, began, lease_until, status, content_type, body FROM requests
                      WHERE actor = ?1 AND key = ?2";
        let found = self.connection.prepare_cached(select)?.query_row([actor, key], |row| {
            let answer = match row.get(3)? {
                Some(status) => Some(KeptAnswer { status, content_type: row.get(4)?, body: row.get(5)? }),
                None => None,
            };
            Ok((row.get::<_, Hash>(0)?, time(row, 1)?, time(row, 2)?, answer))
        });
        // The first arm that fits counts: too old, so a new one begins; another request with the same key; answered
        // already; still answered by another server. Else a new one begins: there is none, or its lease is over.
        match found.optional()? {
            Some((_, began, ..)) if began <= now - REQUESTS_KEPT => {}
            Some((stored, ..)) if stored != *fingerprint => return Ok(Begun::Other),
            Some((.., Some(answer))) => return Ok(Begun::Answered(answer)),
            Some((_, _, until, None)) if now < until => return Ok(Begun::Running),
            _ => {}
        }
        // Deleted and inserted, not updated: the number is new, so a late `end_request` of the server before finds no
        // row.
        self.connection.prepare_cached("DELETE FROM requests WHERE actor = ?1 AND key = ?2")?.execute([actor, key])?;
        let insert = "INSERT INTO requests (actor, key, fingerprint, began, lease_until) VALUES (?1, ?2, ?3, ?4, ?5)
                      RETURNING number";
        let until = (now + lease).as_millis();
        self.connection
            .prepare_cached(insert)?
            .query_row(params![actor, key, fingerprint, now.as_millis(), until], |row| row.get(0))
            .map(Begun::New)
    }

    fn renew_request(&mut self, number: i64, until: Time) -> Result<bool> {
        let update = "UPDATE requests SET lease_until = ?2 WHERE number = ?1 AND status IS NULL";
        Ok(self.connection.prepare_cached(update)?.execute([number, until.as_millis()])? > 0)
    }

    fn end_request(&mut self, number: i64, answer: Option<&KeptAnswer>) -> Result<()> {
        let Some(KeptAnswer { status, content_type, body }) = answer else {
            return self
                .connection
                .prepare_cached("DELETE FROM requests WHERE number = ?1")?
                .execute([number])
                .map(drop);
        };
        let update = "UPDATE requests SET status = ?2, content_type = ?3, body = ?4 WHERE number = ?1";
        self.connection.prepare_cached(update)?.execute(params![number, status, content_type, body]).map(drop)
    }

    fn forget_access(&mut self, now: Time, limit: u32) -> Result<usize> {
        let mut forgotten = 0;
        let requests = "DELETE FROM requests WHERE number IN
                            (SELECT number FROM requests WHERE began <= ?1 ORDER BY began LIMIT ?2)";
        // Entries are written in the order of their numbers, and `at` has no index: only the lowest numbers are looked
        // at.
        let audit = "DELETE FROM audit WHERE number IN (SELECT number FROM audit ORDER BY number LIMIT ?2)
                     AND at <= ?1";
        for (delete, kept) in [(requests, REQUESTS_KEPT), (audit, AUDIT_KEPT)] {
            let before = (now - kept).as_millis();
            forgotten += self.connection.prepare_cached(delete)?.execute(params![before, limit])?;
        }
        Ok(forgotten)
    }

    fn any_access_to_forget(&self, now: Time) -> Result<bool> {
        let any = "SELECT EXISTS (SELECT 1 FROM requests WHERE began <= ?1)
                       OR coalesce((SELECT at FROM audit ORDER BY number LIMIT 1) <= ?2, 0)";
        let (requests, audit) = ((now - REQUESTS_KEPT).as_millis(), (now - AUDIT_KEPT).as_millis());
        self.connection.prepare_cached(any)?.query_row([requests, audit], |row| row.get(0))
    }
}

/// Each verb reads the time when it has its turn, not when it was asked for.
#[async_trait]
impl Access for SqliteLedger {
    async fn create_token(&self, token: NewToken) -> Result<TokenCreated, LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.create_token(&token, clock.now())).await
    }

    async fn token(&self, hash: Hash) -> Result<Option<Token>, LedgerError> {
        self.read(move |store| store.token(&hash)).await
    }

    async fn tokens(&self) -> Result<Vec<Token>, LedgerError> {
        self.read(|store| store.tokens()).await
    }

    async fn revoke_token(&self, name: String) -> Result<bool, LedgerError> {
        self.writer.write(move |store| store.revoke_token(&name)).await
    }

    async fn token_used(&self, id: i64) -> Result<(), LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.token_used(id, clock.now())).await
    }

    async fn begin_audit(&self, entry: NewAuditEntry) -> Result<i64, LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.begin_audit(&entry, clock.now())).await
    }

    async fn end_audit(&self, number: i64, status: u16, detail: Option<String>) -> Result<(), LedgerError> {
        self.writer.write(move |store| store.end_audit(number, status, detail.as_deref())).await
    }

    async fn audit(&self, before: Option<i64>, limit: u32) -> Result<Vec<AuditEntry>, LedgerError> {
        self.read(move |store| store.audit(before.unwrap_or(i64::MAX), limit)).await
    }

    async fn begin_request(&self, request: KeyedRequest, lease: Duration) -> Result<Begun, LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.begin_request(&request, clock.now(), lease)).await
    }

    async fn renew_request(&self, number: i64, lease: Duration) -> Result<bool, LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.renew_request(number, clock.now() + lease)).await
    }

    async fn end_request(&self, number: i64, answer: Option<KeptAnswer>) -> Result<(), LedgerError> {
        self.writer.write(move |store| store.end_request(number, answer.as_ref())).await
    }

    async fn forget_access(&self, limit: u32) -> Result<usize, LedgerError> {
        let clock = self.clock.clone();
        let now = clock.now();
        // Mostly there is nothing to forget: then nothing is written, and no other write waits for the lock.
        if !self.read(move |store| store.any_access_to_forget(now)).await? {
            return Ok(0);
        }
        self.writer.write(move |store| store.forget_access(clock.now(), limit)).await
    }
}
