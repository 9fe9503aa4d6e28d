//! Verbs on tokens of the API: create and revoke.

use std::time::Duration;

use roundelay_ledger::Ledger;
use roundelay_ledger::access::{Hash, MAX_TOKENS, NewToken, Token, TokenCreated};
use roundelay_model::clock::secret;
use roundelay_model::scope::Scope;
use roundelay_model::wall_clock::{At, WallClock};
use serde::Serialize;
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::{OperateError, Result};

/// The beginning of every token, by which people and scanners for leaked secrets recognise one.
const PREFIX: &str = "rl_";
/// The hexadecimal digits after the prefix: 256 bits.
const DIGITS: usize = 64;
/// The longest name of a token, in characters.
const MAX_NAME_CHARS: usize = 64;
/// The name of a client without a token.
pub const ANONYMOUS: &str = "anonymous";

/// A token, without its secret.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Token)]
pub struct TokenView {
    /// The id of the token: unique, never reused.
    pub id: i64,
    /// The name of the token.
    pub name: String,
    /// What the token allows.
    pub scope: Scope,
    /// When the token was created.
    pub created: At,
    /// When the token expires; null: never.
    pub expires: Option<At>,
    /// When the token was last used, to a minute; null: never.
    pub last_used: Option<At>,
}

impl TokenView {
    fn of(token: Token, wall_clock: &WallClock) -> Self {
        let at = |time| At::of(time, wall_clock);
        let Token { id, name, scope, created, expires, last_used } = token;
        let (expires, last_used) = (expires.map(at), last_used.map(at));
        Self { id, name, scope, created: at(created), expires, last_used }
    }
}

/// A new token.
#[derive(Serialize, ToSchema)]
pub struct TokenMade {
    /// The secret that clients show. Only this answer has it.
    #[schema(example = "rl_…")]
    pub secret: String,
    /// The token without its secret.
    pub token: TokenView,
}

/// What the ledger keeps of a token; nothing when the text cannot be a token.
pub fn hash(token: &str) -> Option<Hash> {
    let digits = token.strip_prefix(PREFIX)?;
    let plain = digits.len() == DIGITS && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    plain.then(|| Sha256::digest(token.as_bytes()).into())
}

/// A new secret.
fn fresh() -> String {
    secret().iter().fold(PREFIX.to_owned(), |token, byte| token + &format!("{byte:02x}"))
}

fn check_name(name: &str) -> std::result::Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > MAX_NAME_CHARS || !name.chars().all(plain) || name == ANONYMOUS {
        return Err(format!(
            "a token's name has 1 to {MAX_NAME_CHARS} letters (without accents), digits, `-`, `_` or `.`, and is not \
             `{ANONYMOUS}`"
        ));
    }
    Ok(())
}

/// All tokens, by name.
///
/// # Errors
/// When the ledger does not answer.
pub async fn list(ledger: &dyn Ledger) -> Result<Vec<TokenView>> {
    let (tokens, wall_clock) = (ledger.tokens().await?, ledger.wall_clock());
    Ok(tokens.into_iter().map(|token| TokenView::of(token, &wall_clock)).collect())
}

/// Creates a token in the ledger, valid for `lasts`, or without end.
///
/// # Errors
/// When the name is invalid or in use, there are too many tokens, or the ledger does not answer.
pub async fn create(ledger: &dyn Ledger, name: &str, scope: Scope, lasts: Option<Duration>) -> Result<TokenMade> {
    check_name(name).map_err(OperateError::Bad)?;
    if scope == Scope::None {
        return Err(OperateError::Bad("a token with the scope `none` would be worth nothing".into()));
    }
    let secret = fresh();
    let hash = hash(&secret).expect("a new token has the form of a token");
    let expires = lasts.map(|lasts| ledger.now() + lasts);
    match ledger.create_token(NewToken { name: name.to_owned(), hash, scope, expires }).await? {
        TokenCreated::Created(token) => Ok(TokenMade { secret, token: TokenView::of(token, &ledger.wall_clock()) }),
        TokenCreated::NameTaken => Err(OperateError::Refused(format!(
            "there is a token {name} already; revoke it first, or choose another name"
        ))),
        TokenCreated::TooMany => {
            Err(OperateError::Refused(format!("there are {MAX_TOKENS} tokens, and more cannot be; revoke some")))
        }
    }
}

/// Revokes a token: from now on the token is not valid. Answers a sentence for people.
///
/// # Errors
/// When there is no such token, or the ledger does not answer.
pub async fn revoke(ledger: &dyn Ledger, name: &str) -> Result<String> {
    match ledger.revoke_token(name.to_owned()).await? {
        true => Ok(format!("revoked the token {name}")),
        false => Err(OperateError::Unknown(format!(
            "there is no token {name}; `roundelay token list` has those that there are"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_256_bits_and_known_by_its_hash() {
        let (one, other) = (fresh(), fresh());
        assert_ne!(one, other);
        assert_eq!(one.len(), 3 + 64);
        assert!(hash(&one).is_some() && hash(&one) != hash(&other));
        let bare = &one[3..];
        for odd in
            ["", "rl_", bare, &one[..66], &format!("{one}0"), &one.to_uppercase(), &format!("rl_{}", "ü".repeat(32))]
        {
            assert_eq!(hash(odd), None, "{odd}");
        }
    }

    #[test]
    fn names_of_tokens_fit_into_a_log_line() {
        for (name, fine) in [
            ("ci", true),
            ("grafana-eu.1_b", true),
            ("", false),
            ("two words", false),
            ("a\r\nset-cookie: b", false),
            ("zürich", false),
            ("anonymous", false),
            ("anonymous@127.0.0.1", false),
            (&"a".repeat(65), false),
        ] {
            assert_eq!(check_name(name).is_ok(), fine, "{name:?}");
        }
    }
}
