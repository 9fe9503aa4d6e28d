//! `roundelay bench keys`

use clap::Args;
use roundelay_lab::bench::keys;
use roundelay_lab::bench::keys::Settings;

use super::{Target, note, steps};
use crate::{grouped, screen};

/// The cost of a throttle with very many keys: memory, space in the ledger, time.
///
/// Each key may start once per second, has one chain, and is used once. Then all keys are forgotten, as a chore of the
/// workers does with keys that are fully refilled.
#[derive(Args)]
pub struct Keys {
    #[command(flatten)]
    place: Target,
    /// How many keys.
    #[arg(long, default_value_t = 100_000)]
    keys: usize,
    /// How many messages are processed at the same time.
    #[arg(long, default_value_t = 512)]
    concurrency: u16,
}

impl Keys {
    pub async fn run(self) -> anyhow::Result<()> {
        let ledger = self.place.ledger()?;
        let settings = Settings {
            broker: self.place.broker,
            ledger: ledger.url.clone(),
            keys: self.keys.max(1),
            concurrency: self.concurrency.max(1),
        };
        let report = keys::run(&settings, note).await?;
        if self.place.json {
            return screen::json(&report);
        }
        let [_, used, after] = report.remembered;
        out!(
            "{} keys used in {} s: {} starts/s, {} ledger transactions, {} of them for slots, CPU {} s",
            grouped(report.keys as i64),
            report.seconds,
            report.starts_per_s,
            grouped(report.transactions as i64),
            grouped(report.slot_transactions as i64),
            report.cpu_s
        );
        out!("before, when used, and when forgotten:");
        if let Some(memory) = &report.resident_mib {
            out!("  memory of the worker      {}", steps(memory));
        }
        out!("  keys in the ledger        {}", steps(&report.throttle_mib));
        out!("  the ledger                {}", steps(&report.ledger_mib));
        out!(
            "{} were remembered, and {} when the idle ones were forgotten, which took {} s",
            grouped(used as i64),
            grouped(after as i64),
            report.forgot_in_s
        );
        Ok(())
    }
}
