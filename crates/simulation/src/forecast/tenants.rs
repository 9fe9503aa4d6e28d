//! How late the jobs of each tenant of fair queues started.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::ages::{Lengths, Quantiles};

/// A histogram takes a quarter of a megabyte, so of more tenants the later ones are counted together.
const MAX_TENANTS: usize = 100;
/// The tenant of those.
pub(super) const OTHERS: &str = "(others)";

/// What is noted of tenants.
#[derive(Default)]
pub(super) struct Tenants(BTreeMap<String, Lengths>);

/// What became of a tenant's jobs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantReport {
    /// First attempts that were started.
    pub starts: u64,
    /// How late they started, in milliseconds.
    pub late_ms: Quantiles,
}

impl Tenants {
    /// A first attempt of a tenant has started so late.
    pub fn started(&mut self, tenant: String, late: Duration) {
        let tenant = match self.0.len() < MAX_TENANTS || self.0.contains_key(&tenant) {
            true => tenant,
            false => OTHERS.into(),
        };
        self.0.entry(tenant).or_insert_with(Lengths::new).record(late, 1);
    }

    pub fn report(&self) -> BTreeMap<String, TenantReport> {
        let report = |late: &Lengths| TenantReport { starts: late.count(), late_ms: late.quantiles() };
        self.0.iter().map(|(tenant, late)| (tenant.clone(), report(late))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_beyond_the_first_hundred_are_counted_together() {
        let mut tenants = Tenants::default();
        for round in 0..2 {
            (0..103).for_each(|n| tenants.started(n.to_string(), Duration::from_millis(round * 10)));
        }
        let report = tenants.report();
        assert_eq!((report.len(), report[OTHERS].starts, report["7"].starts), (101, 6, 2));
        assert_eq!(report[OTHERS].late_ms, Quantiles { p50: 0.0, p99: 10.0, max: 10.0 });
    }
}
