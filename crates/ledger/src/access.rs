//! The verbs of the API: tokens, the audit, and requests with an idempotency key.
//!
//! - *Tokens* say who a caller is and what the caller may do. Of a token only its hash is kept.
//! - The *audit* has an entry for each change that a caller asks for. The entry is written before the change is made.
//! - *Requests* with an idempotency key are carried out once, however often they come.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::scope::Scope;

use crate::error::LedgerError;

/// For how long the answer to a request with a key is kept.
pub const REQUESTS_KEPT: Duration = Duration::from_secs(24 * 3_600);
/// For how long entries of the audit are kept.
pub const AUDIT_KEPT: Duration = Duration::from_secs(366 * 86_400);
/// The shortest time between two writes of a token's last use.
pub const USE_NOTED_EVERY: Duration = Duration::from_secs(60);
/// The most tokens that can exist.
pub const MAX_TOKENS: u32 = 1_000;

/// A SHA-256 hash.
pub type Hash = [u8; 32];

/// A token to create.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// The token's name; unique.
    pub name: String,
    /// The hash of the secret that the token's holder shows.
    pub hash: Hash,
    /// What its holder may do.
    pub scope: Scope,
    /// When the token expires. From then on it is not valid.
    pub expires: Option<Time>,
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The token's number: unique, never reused.
    pub id: i64,
    /// The token's name.
    pub name: String,
    /// What its holder may do.
    pub scope: Scope,
    /// When the token was created.
    pub created: Time,
    /// When the token expires. From then on it is not valid.
    pub expires: Option<Time>,
    /// When the token was last used, to the minute.
    pub last_used: Option<Time>,
}

impl Token {
    /// Whether the token has not expired at `now`.
    pub fn is_valid(&self, now: Time) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }
}

/// The answer to [`Access::create_token`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenCreated {
    /// The token was created.
    Created(Token),
    /// Another token has that name.
    NameTaken,
    /// There are [`MAX_TOKENS`] tokens already.
    TooMany,
}

/// A change that a caller asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAuditEntry {
    /// Who asks.
    pub actor: String,
    /// What the caller may do.
    pub scope: Scope,
    /// Method and path, with the names of the path's parameters in place of their values.
    pub action: String,
    /// The values of the path's parameters.
    pub target: String,
    /// The request's body or parameters, as JSON.
    pub detail: String,
    /// The HTTP status of the answer; absent while it is not known.
    pub status: Option<u16>,
}

/// A change that a caller has asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// The entry's number; later entries have higher numbers.
    pub number: i64,
    /// When the change was asked for.
    pub at: Time,
    /// The change. A `status` that is absent long afterwards means that the server ended meanwhile, and that the
    /// outcome is not known.
    pub entry: NewAuditEntry,
}

/// A request with an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedRequest {
    /// Who has sent the request.
    pub actor: String,
    /// The idempotency key.
    pub key: String,
    /// The hash of method, path and body. A key that comes with another request is refused.
    pub fingerprint: Hash,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The body's content type.
    pub content_type: String,
    /// The body; absent when it was not to be kept.
    pub body: Option<Vec<u8>>,
}

/// The answer to [`Access::begin_request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The request may run; its lease has this number.
    New(i64),
    /// The request runs already.
    Running,
    /// The key was used for another request.
    Other,
    /// The request was answered before.
    Answered(KeptAnswer),
}

/// Keeps the API's tokens, audit and requests.
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

    /// Deletes a token; answers whether there was one of that name.
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

    /// Writes the outcome of an audited change, with another detail if one is given.
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

    /// Extends the lease of a request that runs; answers whether the lease still held.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn renew_request(&self, held: i64, lease: Duration) -> Result<bool, LedgerError>;

    /// Keeps the answer to a request for [`REQUESTS_KEPT`] from its beginning; without one the request may be
    /// made again. Does nothing when another server has taken the request over.
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
