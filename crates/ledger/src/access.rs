//! The verbs that the API needs for those who use it: who may, what was done, and what was asked before.
//!
//! - *Tokens* say who somebody is and what they may do. Of the token itself only a hash is kept.
//! - The *audit* has an entry for each change that somebody has asked for, written before it is made.
//! - *Requests* that bear a key of their own are done once, however often they come.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::scope::Scope;

use crate::error::LedgerError;

/// For how long the answer to a request with a key is kept.
pub const REQUESTS_KEPT: Duration = Duration::from_secs(24 * 3_600);
/// For how long entries of the audit are kept.
pub const AUDIT_KEPT: Duration = Duration::from_secs(366 * 86_400);
/// When a token was last used is written no more often than this.
pub const USE_NOTED_EVERY: Duration = Duration::from_secs(60);
/// No more tokens than this can exist.
pub const MAX_TOKENS: u32 = 1_000;

/// A SHA-256.
pub type Hash = [u8; 32];

/// A token that is to exist.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// What it is called; no two have the same name.
    pub name: String,
    /// Of what its holder shows.
    pub hash: Hash,
    /// What its holder may do.
    pub scope: Scope,
    /// From then on it is worth nothing.
    pub expires: Option<Time>,
}

/// A token, without what its holder shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Unique, never reused.
    pub id: i64,
    /// What it is called.
    pub name: String,
    /// What its holder may do.
    pub scope: Scope,
    /// Since when it exists.
    pub created: Time,
    /// From then on it is worth nothing.
    pub expires: Option<Time>,
    /// When it was last used, to a minute.
    pub last_used: Option<Time>,
}

impl Token {
    /// Whether it is worth anything at `now`.
    pub fn is_valid(&self, now: Time) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }
}

/// What came of a wish for a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenCreated {
    /// It exists.
    Created(Token),
    /// Another has that name.
    NameTaken,
    /// There are [`MAX_TOKENS`].
    TooMany,
}

/// A change that somebody asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAuditEntry {
    /// Who.
    pub actor: String,
    /// What they may do.
    pub scope: Scope,
    /// Method and path, with the names of the path's parameters in place of their values.
    pub action: String,
    /// Those values.
    pub target: String,
    /// What was asked, as JSON.
    pub detail: String,
    /// With which HTTP status it was answered; absent while that is not known.
    pub status: Option<u16>,
}

/// A change that somebody has asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its number; later ones have higher numbers.
    pub number: i64,
    /// When it was asked for.
    pub at: Time,
    /// What it was. A `status` that is absent long afterwards says that the server ended meanwhile, and that it
    /// is not known what came of it.
    pub entry: NewAuditEntry,
}

/// A request with a key of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedRequest {
    /// Whose key it is.
    pub actor: String,
    /// The key.
    pub key: String,
    /// Of method, path and body: the same key is for the same request only.
    pub fingerprint: Hash,
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAnswer {
    /// The HTTP status.
    pub status: u16,
    /// Of the body.
    pub content_type: String,
    /// The body; absent when it was not to be kept.
    pub body: Option<Vec<u8>>,
}

/// What a request with a key is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It runs, and is held under this number.
    New(i64),
    /// It runs already.
    Running,
    /// The key was used for another request.
    Other,
    /// It was answered before.
    Answered(KeptAnswer),
}

/// Knows who may use the API, what they have done and what they have asked.
#[async_trait]
pub trait Access {
    /// Creates a token.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn create_token(&self, token: NewToken) -> Result<TokenCreated, LedgerError>;

    /// The token with this hash, valid or not.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn token(&self, hash: Hash) -> Result<Option<Token>, LedgerError>;

    /// All tokens, by name.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn tokens(&self) -> Result<Vec<Token>, LedgerError>;

    /// Deletes a token; whether there was one of that name.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn revoke_token(&self, name: String) -> Result<bool, LedgerError>;

    /// Notes that a token is used now, unless that was noted within [`USE_NOTED_EVERY`].
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn token_used(&self, id: i64) -> Result<(), LedgerError>;

    /// Writes an entry of the audit; answers its number.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn begin_audit(&self, entry: NewAuditEntry) -> Result<i64, LedgerError>;

    /// Writes what came of it, with another detail if one is given.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn end_audit(&self, number: i64, status: u16, detail: Option<String>) -> Result<(), LedgerError>;

    /// Entries of the audit with numbers below `before`, latest first.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn audit(&self, before: Option<i64>, limit: u32) -> Result<Vec<AuditEntry>, LedgerError>;

    /// Begins a request, for `lease` from now, unless it runs or was answered already. One whose lease is over
    /// is taken over: its server has died.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn begin_request(&self, request: KeyedRequest, lease: Duration) -> Result<Begun, LedgerError>;

    /// Extends the lease of a request that runs; whether it is still held.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn renew_request(&self, held: i64, lease: Duration) -> Result<bool, LedgerError>;

    /// Keeps the answer to a request for [`REQUESTS_KEPT`] from its beginning; without one the request may be
    /// made again. Does nothing when somebody else has taken it over.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn end_request(&self, held: i64, answer: Option<KeptAnswer>) -> Result<(), LedgerError>;

    /// Forgets requests and entries of the audit that are too old, `limit` of each at most; answers how many.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn forget_access(&self, limit: u32) -> Result<usize, LedgerError>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use roundelay_model::scope::Scope;

    #[test]
    fn scopes_are_in_order_and_read_as_they_are_written() {
        assert!(Scope::ALL.is_sorted());
        for scope in Scope::ALL {
            assert_eq!(scope.to_string().parse::<Scope>().unwrap(), scope);
            assert_eq!(serde_json::to_string(&scope).unwrap(), format!("\"{scope}\""));
        }
        assert!("root".parse::<Scope>().unwrap_err().contains("none, read, operate and admin"));
    }

    #[test]
    fn a_token_is_worth_nothing_from_the_moment_it_expires() {
        let at = Time::from_millis;
        for (expires, now, valid) in
            [(None, 9, true), (Some(10), 9, true), (Some(10), 10, false), (Some(10), 11, false)]
        {
            let token = Token {
                id: 1,
                name: "ci".into(),
                scope: Scope::Read,
                created: at(0),
                expires: expires.map(at),
                last_used: None,
            };
            assert_eq!(token.is_valid(at(now)), valid, "{expires:?} at {now}");
        }
    }
}
