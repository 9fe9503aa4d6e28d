//! Sees to it that all workers of a ledger agree on where its messages live.
//!
//! Two deployments that share a ledger and differ in their prefix or their queues would send each
//! other's chains where no worker looks for them. So the ledger remembers prefix and platform queues;
//! a worker with more queues adds them, and one that lacks some, or uses another prefix, is refused.
//! Rungs may differ: every worker declares those that it uses.
//!
//! It also remembers how messages sleep on the broker ([`Found`]), which rungs are hot ([`HotRungs`]), and whether
//! workers seal payloads, so that nothing is enrolled in the clear that is to lie sealed.

use std::collections::BTreeSet;
use std::time::Duration;

use roundelay_config::Config;
use roundelay_ledger::{Ledger, LedgerError};
use roundelay_model::clock::Time;
use roundelay_model::spread::HotRungs;
use serde::{Deserialize, Serialize};

use crate::error::StartError;

/// What the ledger remembers, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Agreed {
    prefix: String,
    queues: BTreeSet<String>,
    /// The last worker that said so seals payloads.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    sealed: bool,
    /// How messages sleep, as the last probe has found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delays: Option<Found>,
    /// A worker probes that, and others wait until this time at most, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    probing: Option<i64>,
    /// Which rungs were hot, and so have siblings.
    #[serde(default, skip_serializing_if = "HotRungs::is_empty")]
    hot_rungs: HotRungs,
}

/// What a probe of the broker has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Whether messages sleep on their own queue.
    pub native: bool,
    /// How far the broker's clock is ahead of the ledger's, in milliseconds.
    pub ahead: i64,
    /// When that was, in milliseconds since 1970.
    pub at: i64,
    /// A message came before its time, so no probe counts for a while.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub early: bool,
}

impl Agreed {
    /// What a configuration says; all else stays as `before`, but that what was found is of the broker with that prefix.
    fn of(config: &Config, before: Option<&Self>) -> Self {
        let (queues, prefix) = (config.broker_queues().into_iter().collect(), config.broker.prefix.clone());
        let same = before.filter(|before| before.prefix == prefix);
        Self {
            prefix,
            queues,
            sealed: before.is_some_and(|before| before.sealed),
            delays: same.and_then(|before| before.delays),
            probing: same.and_then(|before| before.probing),
            hot_rungs: same.map(|before| before.hot_rungs.clone()).unwrap_or_default(),
        }
    }

    /// Nothing of what cannot be read, which is another version's.
    fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    fn text(&self) -> String {
        serde_json::to_string(self).expect("text and lists of text are always JSON")
    }
}

/// What is wrong with `ours` (pure); nothing when it has all of `theirs`.
fn difference(theirs: &Agreed, ours: &Agreed) -> Option<String> {
    if theirs.prefix != ours.prefix {
        return Some(format!("broker.prefix is `{}` here and `{}` there", ours.prefix, theirs.prefix));
    }
    let missing: Vec<&str> = theirs.queues.difference(&ours.queues).map(String::as_str).collect();
    let added: Vec<&str> = ours.queues.difference(&theirs.queues).map(String::as_str).collect();
    match (missing.is_empty(), added.is_empty()) {
        (true, _) => None,
        (false, true) => Some(format!("this configuration lacks the queues: {}", missing.join(", "))),
        (false, false) => Some(format!(
            "this configuration lacks the queues: {}; and it has others: {}",
            missing.join(", "),
            added.join(", ")
        )),
    }
}

/// In what a configuration differs from `agreed`, which a ledger remembers, so that its workers would be refused
/// (pure).
pub fn disagreement(agreed: &str, config: &Config) -> Option<String> {
    difference(&Agreed::read(agreed)?, &Agreed::of(config, None))
}

/// Refuses a configuration with which this worker and the others of the ledger would lose each
/// other's messages. On a broker that keeps nothing there are no others, and no messages.
///
/// # Errors
/// [`StartError::Setup`] with the exact difference.
pub async fn check(ledger: &dyn Ledger, config: &Config, keeps_messages: bool) -> Result<(), StartError> {
    loop {
        let current = ledger.topology().await?;
        let theirs = current.as_deref().and_then(Agreed::read);
        let ours = Agreed::of(config, theirs.as_ref());
        if let Some(difference) = theirs.filter(|_| keeps_messages).and_then(|theirs| difference(&theirs, &ours)) {
            return Err(StartError::Setup(format!(
                "the workers of this ledger have agreed on another topology: {difference}. If this configuration is the \
                 right one, say so with `roundelay topology apply`, and give it to all workers"
            )));
        }
        if current.as_deref() == Some(&ours.text()) || ledger.set_topology(current, ours.text()).await? {
            return Ok(());
        }
    }
}

/// Makes this configuration the one that workers must agree with.
///
/// # Errors
/// When the ledger cannot be written.
pub async fn adopt(ledger: &dyn Ledger, config: &Config) -> Result<(), LedgerError> {
    agree(ledger, |before| Some(Agreed::of(config, before.as_ref()))).await
}

/// A worker says that it seals payloads, or that it does not.
///
/// # Errors
/// When the ledger cannot be written.
pub async fn note_sealing(ledger: &dyn Ledger, sealed: bool) -> Result<(), LedgerError> {
    agree(ledger, |before| Some(Agreed { sealed, ..before? })).await
}

/// Whether the workers of this ledger seal payloads, as the last of them said that was started or read its
/// configuration again.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn is_sealed(ledger: &dyn Ledger) -> Result<bool, LedgerError> {
    Ok(ledger.topology().await?.as_deref().and_then(Agreed::read).is_some_and(|agreed| agreed.sealed))
}

/// How messages sleep, as the last probe has found.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn found(ledger: &dyn Ledger) -> Result<Option<Found>, LedgerError> {
    Ok(ledger.topology().await?.as_deref().and_then(Agreed::read).and_then(|agreed| agreed.delays))
}

/// Whether the caller may probe the broker: no other program does, and none begins before `within` is over or
/// [`note_found`] was called.
///
/// # Errors
/// When the ledger cannot be read or written.
pub(crate) async fn may_probe(ledger: &dyn Ledger, now: Time, within: Duration) -> Result<bool, LedgerError> {
    let current = ledger.topology().await?;
    // Without a topology there are no other workers.
    let Some(agreed) = current.as_deref().and_then(Agreed::read) else { return Ok(true) };
    let (now, until) = (now.as_millis(), (now + within).as_millis());
    if agreed.probing.is_some_and(|busy| now < busy && busy <= until) {
        return Ok(false);
    }
    ledger.set_topology(current, Agreed { probing: Some(until), ..agreed }.text()).await
}

/// Notes what a probe has found.
///
/// # Errors
/// When the ledger cannot be read or written.
pub(crate) async fn note_found(ledger: &dyn Ledger, found: Option<Found>) -> Result<(), LedgerError> {
    agree(ledger, |before| Some(Agreed { delays: found, probing: None, ..before? })).await
}

/// Which rungs were hot, and so have siblings.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn hot_rungs(ledger: &dyn Ledger) -> Result<HotRungs, LedgerError> {
    let agreed = ledger.topology().await?.as_deref().and_then(Agreed::read);
    Ok(agreed.map(|agreed| agreed.hot_rungs).unwrap_or_default())
}

/// Notes that these rungs are hot, beside those of which the ledger knows.
pub(crate) async fn note_hot_rungs(ledger: &dyn Ledger, hot: &HotRungs) -> Result<(), LedgerError> {
    agree(ledger, |before| before.map(|before| Agreed { hot_rungs: before.hot_rungs.and(hot), ..before })).await
}

/// Puts what is `next` in the place of what was agreed before.
async fn agree(ledger: &dyn Ledger, next: impl Fn(Option<Agreed>) -> Option<Agreed>) -> Result<(), LedgerError> {
    loop {
        let current = ledger.topology().await?;
        let Some(ours) = next(current.as_deref().and_then(Agreed::read)) else { return Ok(()) };
        if current.as_deref() == Some(&ours.text()) || ledger.set_topology(current, ours.text()).await? {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_differences() {
        let agreed = |prefix: &str, queues: &[&str]| Agreed {
            prefix: prefix.into(),
            queues: queues.iter().map(ToString::to_string).collect(),
            sealed: false,
            delays: None,
            probing: None,
            hot_rungs: HotRungs::default(),
        };
        let theirs = agreed("r", &["a", "b"]);
        let table = [
            (agreed("r", &["a", "b"]), None),
            (agreed("r", &["a", "b", "c"]), None),
            (agreed("s", &["a", "b"]), Some("broker.prefix is `s` here and `r` there")),
            (agreed("r", &["a"]), Some("this configuration lacks the queues: b")),
            (agreed("r", &["c", "d"]), Some("this configuration lacks the queues: a, b; and it has others: c, d")),
        ];
        for (ours, expected) in table {
            assert_eq!(difference(&theirs, &ours).as_deref(), expected, "{ours:?}");
        }
    }
}
