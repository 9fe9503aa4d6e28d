//! In place of PostgreSQL in a program that was built without the feature `postgres`: its URLs are read, and opening
//! one says what is missing.

use std::sync::Arc;

use roundelay_model::clock::{Clock, Entropy};
use roundelay_model::secret::Secret;

use super::{Ledger, LedgerError};

const LEFT_OUT: &str = "this program was built without PostgreSQL: in Cargo.toml, give the dependency `roundelay` the \
                        feature `postgres`, or name a SQLite file (sqlite://PATH)";

/// Takes every URL: a configuration can be read, and tested, without PostgreSQL.
pub fn check_url(_url: &str) -> Result<(), String> {
    Ok(())
}

/// Refuses.
///
/// # Errors
/// [`LedgerError::Open`], with what to do.
pub async fn open(
    url: &Secret,
    _synchronous: bool,
    _entropy: &Entropy,
) -> Result<(Arc<dyn Ledger>, Clock), LedgerError> {
    Err(LedgerError::Open { path: url.to_string(), reason: LEFT_OUT.into() })
}

/// Refuses.
///
/// # Errors
/// [`LedgerError::Open`], with what to do.
pub async fn open_when_promoted(
    url: &Secret,
    synchronous: bool,
    entropy: &Entropy,
    _waits: impl FnOnce(&str),
) -> Result<(Arc<dyn Ledger>, Clock), LedgerError> {
    open(url, synchronous, entropy).await
}

/// The rows of a query of which there is none.
pub enum Foreign {}

impl Foreign {
    /// Refuses.
    ///
    /// # Errors
    /// What to do.
    pub async fn select(_url: &Secret, _query: &str) -> Result<Self, String> {
        Err(LEFT_OUT.into())
    }

    /// The next row.
    ///
    /// # Errors
    /// None: there is no row.
    pub async fn next(&mut self) -> Result<Option<String>, String> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn opening_says_which_feature_is_missing_and_what_to_do() {
        let url = Secret::new("postgres://someone:hidden@host/base");
        assert_eq!(check_url(url.expose()), Ok(()), "a configuration can be read all the same");
        let Err(error) = open_when_promoted(&url, false, &Entropy::seeded(1), |_| ()).await else {
            panic!("opened without PostgreSQL")
        };
        let error = error.to_string();
        assert!(error.contains("feature `postgres`") && error.contains("sqlite://PATH"), "{error}");
        assert!(!error.contains("hidden"), "{error}");
        assert_eq!(Foreign::select(&url, "SELECT 1").await.err(), Some(LEFT_OUT.into()));
    }
}
