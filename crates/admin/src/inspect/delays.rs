//! How messages sleep on the broker, as workers have found out, and so what has to exist there. The ledger remembers it.

use std::collections::BTreeSet;
use std::sync::Arc;

use roundelay_broker::rabbit::{RabbitBroker, Weight, check};
use roundelay_broker::{BrokerError, BrokerUrl, Delays};
use roundelay_config::Config;
use roundelay_engine::topology_guard::{self, Found};
use roundelay_ledger::postgres::PostgresLedger;
use roundelay_ledger::sqlite::SqliteLedger;
use roundelay_ledger::{Ledger, LedgerError, LedgerUrl};
use roundelay_model::clock::Clock;
use roundelay_model::secret::Secret;
use roundelay_model::spread::HotRungs;
use roundelay_model::topology::Topology;

/// Opens the configured ledger for reading only, or says why there is none to read. Nothing is created or changed.
pub async fn ledger_to_read(config: &Config) -> Result<Arc<dyn Ledger>, String> {
    let told = |error: LedgerError| error.to_string();
    Ok(match &config.ledger.url {
        LedgerUrl::Memory => return Err("the ledger is in the memory of a process".into()),
        LedgerUrl::Postgres(url) => Arc::new(PostgresLedger::look(url).await.map_err(told)?),
        LedgerUrl::Sqlite(path) if !path.exists() => return Err("there is no ledger yet".into()),
        LedgerUrl::Sqlite(path) => {
            let path = path.clone();
            let opened = tokio::task::spawn_blocking(move || SqliteLedger::look(&path, Clock::System)).await;
            Arc::new(opened.map_err(|failed| failed.to_string())?.map_err(told)?)
        }
    })
}

/// What the ledger knows of how messages sleep.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// What the last probe of the broker has found.
    pub found: Option<Found>,
    /// Which rungs were hot, and so have siblings.
    pub hot_rungs: HotRungs,
}

impl Known {
    /// What this ledger knows.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn by(ledger: &dyn Ledger) -> Result<Self, LedgerError> {
        Ok(Self { found: topology_guard::found(ledger).await?, hot_rungs: topology_guard::hot_rungs(ledger).await? })
    }

    /// What the configured ledger knows; nothing if it cannot be read.
    pub async fn of(config: &Config) -> Self {
        let Ok(ledger) = ledger_to_read(config).await else { return Self::default() };
        Self::by(&*ledger).await.unwrap_or_default()
    }
}

/// Whether messages sleep on their own queues (pure).
pub fn is_native(config: &Config, found: Option<Found>) -> bool {
    match config.broker.delays {
        Delays::Ladder => false,
        // The rungs are used for a while after a message has come early.
        Delays::Native => found.is_none_or(|found| !found.early),
        // The embedded broker has rungs unless it is told otherwise, whatever an earlier broker did.
        Delays::Auto if matches!(config.broker.url, BrokerUrl::Embedded) => false,
        Delays::Auto => found.is_some_and(|found| found.native),
    }
}

/// What has to exist on the broker (pure).
pub fn topology(config: &Config, known: &Known) -> Topology {
    match is_native(config, known.found) {
        true => config.native_topology(),
        false => config.ladder_topology().with_siblings(&known.hot_rungs),
    }
}

/// What has to exist on the broker, and what there differs from that.
///
/// # Errors
/// When the broker cannot be asked.
pub async fn differences(
    config: &Config,
    broker: &RabbitBroker,
    known: &Known,
) -> Result<(Topology, Vec<check::Finding>), BrokerError> {
    let management = config.broker.management.as_ref().map(Secret::expose);
    let (ladder, native) = (config.ladder_topology().with_siblings(&known.hot_rungs), config.native_topology());
    if !is_native(config, known.found) {
        let findings = broker.check(&ladder, management).await?;
        // The ledger does not say yet how messages sleep. If the broker has no rung, messages sleep on their queues, or no
        // worker has started: a worker that needs rungs declares them.
        let unknown = known.found.is_none() && config.broker.delays == Delays::Auto;
        if !(unknown && lacks_all_rungs(&ladder, &findings)) {
            return Ok((ladder, findings));
        }
    }
    let mut findings = broker.check(&native, management).await?;
    // Rungs are not left over: they wait for a broker on which messages sleep on them again.
    let rungs: BTreeSet<String> = rungs(&ladder).map(|rung| format!("rung `{rung}`")).collect();
    findings.retain(|finding| finding.weight != Weight::Note || !rungs.contains(&finding.what));
    Ok((native, findings))
}

fn rungs(topology: &Topology) -> impl Iterator<Item = &str> {
    topology.queues.iter().filter(|queue| queue.ttl().is_some()).map(|queue| queue.name.as_str())
}

/// Whether not one rung is there (pure).
fn lacks_all_rungs(topology: &Topology, findings: &[check::Finding]) -> bool {
    let missing = findings.iter().filter(|finding| finding.weight == Weight::Wrong && finding.found == "missing");
    let missing: BTreeSet<&str> = missing.map(|finding| finding.what.as_str()).collect();
    rungs(topology).all(|rung| missing.contains(format!("queue `{rung}`").as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(&format!("{text}\n[queues.work]"), "r.toml", []).unwrap()
    }

    fn finding(native: bool, early: bool) -> Option<Found> {
        Some(Found { native, ahead: 0, at: 0, early })
    }

    #[test]
    fn the_setting_counts_before_what_was_found() {
        let rabbit = "broker.url = \"amqp://h\"\nbroker.delays = ";
        let table = [
            (format!("{rabbit}\"auto\""), None, false),
            (format!("{rabbit}\"auto\""), finding(true, false), true),
            (format!("{rabbit}\"auto\""), finding(false, false), false),
            (format!("{rabbit}\"auto\""), finding(false, true), false),
            (format!("{rabbit}\"native\""), None, true),
            (format!("{rabbit}\"native\""), finding(false, true), false),
            (format!("{rabbit}\"ladder\""), finding(true, false), false),
            ("broker.url = \"embedded\"".into(), finding(true, false), false),
            ("broker.url = \"embedded\"\nbroker.delays = \"native\"".into(), None, true),
        ];
        for (text, found, native) in table {
            let config = config(&text);
            assert_eq!(is_native(&config, found), native, "{text} {found:?}");
            let known = Known { found, hot_rungs: HotRungs::default() };
            assert_eq!(rungs(&topology(&config, &known)).next().is_none(), native, "{text} {found:?}");
        }
    }

    #[test]
    fn one_rung_that_is_there_shows_that_there_are_rungs() {
        let topology = config("broker.url = \"amqp://h\"").ladder_topology();
        let missing = |name: &str| check::Finding {
            weight: Weight::Wrong,
            what: format!("queue `{name}`"),
            expected: "present".into(),
            found: "missing".into(),
            mend: String::new(),
        };
        let all: Vec<_> = topology.queues.iter().map(|queue| missing(&queue.name)).collect();
        assert!(lacks_all_rungs(&topology, &all));
        let rung = topology.queues.iter().position(|queue| queue.ttl().is_some()).unwrap();
        let but_one: Vec<_> = all.iter().enumerate().filter(|(at, _)| *at != rung).map(|(_, of)| of.clone()).collect();
        assert!(!lacks_all_rungs(&topology, &but_one));
        assert!(!lacks_all_rungs(&topology, &[]));
    }
}
