//! Verbs on failures: retry parts, forget failures.

use std::fmt;

use roundelay_config::Config;
use roundelay_ledger::{FailureFilter, Ledger};

use super::Result;
use crate::inspect::failures::reconciles;
use crate::inspect::format::grouped;

/// How many failures match a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matching {
    /// Parts of entities: those that can be retried.
    pub parts: u64,
    /// Whole entities.
    pub wholes: u64,
}

impl Matching {
    /// How many failures can be forgotten.
    pub const fn all(self) -> u64 {
        self.parts + self.wholes
    }
}

/// Counts failures.
///
/// # Errors
/// When the ledger does not answer.
pub async fn count(ledger: &dyn Ledger, filter: FailureFilter) -> Result<Matching> {
    let (parts, wholes) = ledger.count_failed(filter).await?;
    Ok(Matching { parts, wholes })
}

/// `1 part`, `2 whole entities`.
pub fn plural(count: u64, what: &str) -> String {
    match (count, what) {
        (1, what) => format!("1 {what}"),
        (count, "whole entity") => format!("{} whole entities", grouped(count)),
        (count, what) => format!("{} {what}s", grouped(count)),
    }
}

/// Parts that are due now.
#[derive(Clone, Debug)]
pub struct Retried {
    /// How many parts.
    pub parts: u64,
    wholes: u64,
    /// The kind of the filter, if nothing feeds its failed parts back.
    unfed: Option<String>,
}

impl fmt::Display for Retried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} due now", plural(self.parts, "part"))?;
        if self.wholes > 0 {
            write!(
                f,
                "; {} left as they are: `roundelay run KIND KEY` runs one now, and `roundelay enroll --revive` begins \
                 ended chains anew",
                plural(self.wholes, "whole entity")
            )?;
        }
        match &self.unfed {
            Some(kind) => write!(f, "; nothing feeds them back: there is no `reconcile` in [kinds.{kind}]"),
            None => Ok(()),
        }
    }
}

/// Makes failed parts due now, with their attempts counted from 0 again; this includes permanent failures. Whole
/// entities stay as they are.
///
/// # Errors
/// When the ledger does not answer.
pub async fn retry(config: &Config, ledger: &dyn Ledger, filter: FailureFilter, matching: Matching) -> Result<Retried> {
    let unfed = filter.kind.clone().filter(|kind| !reconciles(config, kind));
    Ok(Retried { parts: ledger.retry_failed(filter).await?, wholes: matching.wholes, unfed })
}

/// How many failures are forgotten.
#[derive(Clone, Copy, Debug)]
pub struct Dropped(pub u64);

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} forgotten", plural(self.0, "failure"))
    }
}

/// Forgets failures. Runs that have begun end as usual; a part that fails again is kept again.
///
/// # Errors
/// When the ledger does not answer.
pub async fn drop(ledger: &dyn Ledger, filter: FailureFilter) -> Result<Dropped> {
    Ok(Dropped(ledger.drop_failed(filter).await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_retried_says_what_was_not() {
        let retried =
            |parts, wholes, unfed: Option<&str>| Retried { parts, wholes, unfed: unfed.map(str::to_owned) }.to_string();
        assert_eq!(retried(1, 0, None), "1 part due now");
        let words = retried(1_200, 1, None);
        assert!(words.starts_with("1,200 parts due now; 1 whole entity left as they are: `roundelay run"), "{words}");
        let words = retried(2, 2, Some("sync"));
        assert!(words.contains("; 2 whole entities left"), "{words}");
        assert!(words.ends_with("; nothing feeds them back: there is no `reconcile` in [kinds.sync]"), "{words}");
        assert_eq!(Dropped(3).to_string(), "3 failures forgotten");
    }
}
