//! `roundelay schedule`

use std::time::Duration;

use clap::Args;
use roundelay_admin::operate::schedule;
use roundelay_model::clock::parse_duration;
use serde_json::json;

use super::audited::{Order, audited};
use super::fleet::current_user;
use super::progress::waiting;
use super::steer::connections;
use super::{ConfigFile, screen};

/// Gives a chain a schedule of its own, or its kind's again, at once.
///
///   roundelay schedule sync app-17 5m
///   roundelay schedule sync app-17 '0 3 * * *'
///   roundelay schedule sync app-17 '{"cron":"0 3 * * *","zone":"Europe/Berlin"}'
///   roundelay schedule sync app-17 '{"every":"1h","from":"nominal","jitter":"2m"}'
///   roundelay schedule sync app-17 '{"quiet":"22:00-06:00","zone":"Asia/Tokyo"}'
///   roundelay schedule sync app-17 --default
///
/// The next tick moves to where the new schedule has it, counted from the last run: no old long delay is
/// waited out. What is overdue by it comes at once. A run that has begun ends first; it is waited for.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct ScheduleCommand {
    #[command(flatten)]
    config: ConfigFile,
    /// The kind of the chain.
    kind: String,
    /// The key of the entity.
    key: String,
    /// An interval, a cron expression, or a JSON object with the fields of the kind's settings.
    #[arg(value_name = "EVERY|CRON|JSON", required_unless_present = "default")]
    schedule: Option<String>,
    /// Use the kind's schedule again.
    #[arg(long, conflicts_with = "schedule")]
    default: bool,
    /// How long to wait for the end of a run.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "30s")]
    wait: Duration,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl ScheduleCommand {
    pub async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let connections = connections(&config).await?;
        let Self { kind, key, schedule, wait, json, .. } = self;
        let waits = waiting(&format!("waiting until {kind} {key} can be moved"));
        let by = current_user();
        let detail = json!({ "schedule": schedule });
        let order = Order { by: &by, command: "schedule", target: format!("{kind} {key}"), detail };
        let set = schedule::set(&config, &connections, (&kind, &key), schedule.as_deref(), wait);
        let set = audited(&*connections.ledger, order, set).await;
        connections.broker.close().await;
        drop(waits);
        let set = set?;
        screen::told(json, &json!({ "schedule": set.schedule.to_string(), "own": set.own, "due": set.due }), set)
    }
}
