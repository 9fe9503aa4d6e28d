//! `roundelay check`

use clap::Args;
use roundelay::clock::short_duration;
use roundelay::config::{BrokerUrl, HandlerSettings, LedgerUrl};
use serde_json::json;

use super::ConfigFile;

/// Says whether the configuration is right, and what it amounts to.
///
/// Everything that is wrong is listed at once, with file, line and key: first unknown keys and
/// values of the wrong sort, and once there are none, values that are impossible. Nothing is
/// connected to. Exit code 1 when something is wrong.
#[derive(Args)]
pub struct Check {
    #[command(flatten)]
    config: ConfigFile,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Check {
    pub fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let broker = match &config.broker.url {
            BrokerUrl::Embedded => "embedded".to_owned(),
            BrokerUrl::Amqp(url) => url.to_string(),
        };
        let ledger = match &config.ledger.url {
            LedgerUrl::Memory => "sqlite://:memory:".to_owned(),
            LedgerUrl::Sqlite(path) => format!("sqlite://{}", path.display()),
        };
        let topology = config.topology();
        if self.json {
            let report = json!({
                "ok": true, "broker": broker, "ledger": ledger,
                "queues": config.queues.keys().collect::<Vec<_>>(),
                "kinds": config.kinds.keys().collect::<Vec<_>>(),
                "rungs": config.ladder.rungs().len(), "broker_queues": topology.queues.len(),
            });
            println!("{report}");
            return Ok(());
        }
        println!("{} is right.", self.config.config.display());
        println!(
            "broker  {broker}, {} queues of which {} are rungs",
            topology.queues.len(),
            config.ladder.rungs().len()
        );
        println!("ledger  {ledger}, history kept for {}", short_duration(config.ledger.history));
        for (name, queue) in &config.queues {
            let throttle = queue.throttle.as_ref().and_then(|name| config.throttles.get_key_value(name));
            let throttle = throttle.map_or(String::new(), |(name, t)| {
                format!(", throttle {name}: {} per {}", t.allow, short_duration(t.per))
            });
            println!("queue   {name}: concurrency {}, prefetch {}{throttle}", queue.concurrency, queue.prefetch);
        }
        for (name, kind) in &config.kinds {
            let handler = match &kind.handler {
                HandlerSettings::Rust => "a Rust handler (to be registered by the program)".to_owned(),
                HandlerSettings::Http(http) => format!("POST {}", http.url),
                HandlerSettings::Exec(exec) => exec.argv.join(" "),
            };
            let every = kind.every.map_or("on demand".to_owned(), |every| {
                let jitter = if every.jitter.is_zero() {
                    String::new()
                } else {
                    format!(" ± {}", short_duration(every.jitter))
                };
                format!("every {}{jitter}", short_duration(every.interval))
            });
            println!("kind    {name}: {every}, {handler}, at most {} attempts", kind.retry.attempts);
        }
        Ok(())
    }
}
