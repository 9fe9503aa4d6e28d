//! `roundelay check`

use anyhow::ensure;
use clap::Args;
use roundelay_admin::inspect::doctor::programs;
use roundelay_broker::BrokerUrl;
use roundelay_config::{
    Config, HandlerSettings, KindSettings, Recurrence, RosterDatabase, RosterSource, Unpaced, doubtful_calendars,
    schedule_of_kind, throttles_of, unpaced,
};
use roundelay_handler::http;
use roundelay_ledger::LedgerUrl;
use roundelay_model::clock::{Clock, short_duration};
use roundelay_model::pacing::ThrottleScope;
use roundelay_model::pacing::demand::{Needs, per, shortage};
use roundelay_model::wall_clock::WallClock;
use serde_json::json;

use super::{ConfigFile, screen};

/// Says whether the configuration is right, and what it amounts to.
///
/// Everything that is wrong is listed at once, with file, line and key: whatever `worker` would refuse because of the
/// configuration is refused here. It says, too, what would go wrong on this machine: a program that is not there, a
/// throttle that allows less than chains need. The command connects to nothing.
#[derive(Args)]
pub struct Check {
    #[command(flatten)]
    config: ConfigFile,
    /// Accept kinds without a handler: a program of your own registers them.
    #[arg(long)]
    rust_handlers: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Check {
    pub fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        runnable(&config, &self.config.config.display().to_string(), self.rust_handlers)?;
        let broker = match &config.broker.url {
            BrokerUrl::Embedded => "embedded".to_owned(),
            BrokerUrl::Amqp(url) => url.to_string(),
        };
        let ledger = match &config.ledger.url {
            LedgerUrl::Memory => "sqlite://:memory:".to_owned(),
            LedgerUrl::Postgres(url) => url.to_string(),
            LedgerUrl::Sqlite(path) => format!("sqlite://{}", path.display()),
        };
        let topology = config.topology();
        let rungs = topology.queues.iter().filter(|queue| queue.ttl().is_some()).count();
        let past = unpaced(&config);
        let raw =
            |kind: &KindSettings| matches!(&kind.handler, HandlerSettings::Http(settings) if http::is_raw(settings));
        let raw: Vec<&String> = config.kinds.iter().filter(|(_, kind)| raw(kind)).map(|(name, _)| name).collect();
        let unshared = !config.tenants.is_empty() && !config.is_fair();
        let (programs, (rooms, short)) = (programs(&config), rooms(&config));
        let calendars = doubtful_calendars(&config, Clock::System.now());
        if self.json {
            let each = |Unpaced { queue, upstream, kinds, throttles }: &Unpaced| json!({ "queue": queue, "upstream": upstream, "kinds": kinds, "throttles": throttles });
            let report = json!({
                "ok": true, "broker": broker, "ledger": ledger,
                "queues": config.queues.keys().collect::<Vec<_>>(),
                "kinds": config.kinds.keys().collect::<Vec<_>>(),
                "rungs": rungs, "broker_queues": topology.queues.len(),
                "unpaced": past.iter().map(each).collect::<Vec<_>>(), "raw_urls": raw,
                "programs": programs, "rooms": rooms, "shortages": short, "unshared_tenants": unshared,
                "calendars": calendars,
            });
            return screen::json(&report);
        }
        out!("{} is right.", self.config.config.display());
        out!("broker  {broker}, {} queues of which {rungs} are rungs", topology.queues.len());
        let archive = config.ledger.archive.map(short_duration);
        let archive = archive.map_or(String::new(), |archive| format!(", in the archive for {archive}"));
        out!("ledger  {ledger}, history kept for {}{archive}", short_duration(config.ledger.history));
        for (name, queue) in &config.queues {
            let throttle = queue.throttle.as_ref().and_then(|name| config.throttles.get_key_value(name));
            let throttle = throttle.map_or(String::new(), |(name, t)| {
                let keyed = t.key.as_ref().map_or(String::new(), |key| format!(" for each {key}"));
                let each = if t.scope == ThrottleScope::Worker { " in each worker" } else { "" };
                format!(", throttle {name}: {}{keyed}{each}", t.limits)
            });
            let fair = queue.fair.as_ref().map_or(String::new(), |fair| format!(", shared between tenants by {fair}"));
            let most = queue.most.map_or(String::new(), |most| format!(", at most {most} of one at a time"));
            let shared = format!("{throttle}{fair}{most}");
            out!("queue   {name}: concurrency {}, prefetch {}{shared}", queue.concurrency, queue.prefetch);
        }
        for (name, kind) in &config.kinds {
            let handler = match &kind.handler {
                HandlerSettings::Rust => "a Rust handler, registered by your program".to_owned(),
                HandlerSettings::Http(http) => format!("POST {}", http.shown_url()),
                HandlerSettings::Exec(exec) => exec.argv.join(" "),
            };
            let every = kind.recurrence.as_ref().map_or("on demand".to_owned(), Recurrence::words);
            out!("kind    {name}: {every}, {handler}, at most {} attempts", kind.retry.attempts);
            if let Some(roster) = &kind.roster {
                let source = match &roster.source {
                    RosterSource::Keys(keys) => format!("its keys {}", keys.join(", ")),
                    RosterSource::File(path) => path.display().to_string(),
                    RosterSource::Http { url, .. } => url.to_string(),
                    RosterSource::Sql { database: RosterDatabase::Sqlite(path), .. } => {
                        format!("a query of sqlite://{}", path.display())
                    }
                    RosterSource::Sql { database: RosterDatabase::Postgres(url), .. } => format!("a query of {url}"),
                };
                let prune = if roster.prune { ", and ends what is not in it" } else { "" };
                out!("        follows {source}, read every {}{prune}", short_duration(roster.sync));
            }
        }
        for Unpaced { queue, upstream, kinds, throttles } in &past {
            let (kinds, throttles) = (kinds.join(", "), throttles.join(", "));
            out!(
                "note    queue {queue} has no throttle, and {kinds} on it calls {upstream}, which elsewhere goes by the \
                 throttle {throttles}; if that is not meant, set queues.{queue}.throttle"
            );
        }
        if unshared {
            out!(
                "note    [tenants] gives shares, and no queue or throttle is shared; set `fair`, such as \"owner\", for a queue or \
                 a throttle"
            );
        }
        for words in &rooms {
            out!("room    {words}");
        }
        for finding in &programs {
            out!("note    {}: {}; {}", finding.what, finding.seen, finding.fix);
        }
        for words in short.iter().chain(&calendars) {
            out!("note    {words}");
        }
        for name in raw {
            out!(
                "note    kinds.{name}.handler.http.url has `raw` behind the host: whoever names a key or gives a payload says \
                 which path is called, with which parameters; leave `raw` out where that is not meant"
            );
        }
        Ok(())
    }
}

/// For how many chains throttles have room, where the configuration does not name the chains; and which allow less than
/// those need that the configuration names.
fn rooms(config: &Config) -> (Vec<String>, Vec<String>) {
    let (now, wall_clock) = (Clock::System.now(), WallClock::default());
    let (mut rooms, mut short) = (Vec::new(), Vec::new());
    for (name, throttle) in
        config.throttles.iter().filter(|(_, of)| of.key.is_none() && of.scope == ThrottleScope::Fleet)
    {
        let mut needs = Vec::new();
        for (kind, settings) in &config.kinds {
            if !throttles_of(settings, &config.queues).any(|throttle| throttle == name) {
                continue;
            }
            let Some(every) = schedule_of_kind(config, kind).and_then(|of| of.mean_interval(now, &wall_clock)) else {
                continue;
            };
            let keys = settings.roster.as_ref().map(|roster| &roster.source);
            let chains = if let Some(RosterSource::Keys(keys)) = keys { keys.len() as u64 } else { 0 };
            if chains == 0 {
                let room = (throttle.limits.rate() * every.as_secs_f64() / f64::from(settings.cost)).floor();
                let (allowed, every) = (per(throttle.limits.rate()), short_duration(every));
                rooms.push(format!(
                    "the throttle {name} allows {allowed}: by themselves at most {room} chains of {kind} can keep their schedule of every \
                     {every}"
                ));
            }
            needs.push(Needs { kind: kind.clone(), chains, every, cost: settings.cost });
        }
        short.extend(shortage(&needs, &throttle.limits).map(|short| short.words(name, &needs)));
    }
    (rooms, short)
}

/// Refuses what `worker` would refuse although each setting is right.
pub fn runnable(config: &Config, file: &str, rust_handlers: bool) -> anyhow::Result<()> {
    ensure!(!config.queues.is_empty(), "{file}: there are no [queues.…], so there is nothing to work on");
    let bare = |(name, kind): (&String, &KindSettings)| {
        (kind.handler == HandlerSettings::Rust).then(|| format!("kinds.{name}"))
    };
    let bare: Vec<String> = config.kinds.iter().filter_map(bare).collect();
    ensure!(
        rust_handlers || bare.is_empty(),
        "{file}: no handler for {}; set handler.http.url or handler.exec.argv, or say --rust-handlers when a program of \
         yours registers it",
        bare.join(", ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_worker_would_refuse_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let check = |text: &str, rust_handlers: bool| {
            let path = folder.path().join("r.toml");
            std::fs::write(&path, text).unwrap();
            let check = Check { config: ConfigFile { config: path }, rust_handlers, json: true };
            check.run().map_err(|error| error.to_string())
        };
        let queue = "[queues.q]\n[kinds.k]\n";
        assert!(check("[kinds.k]\n", true).unwrap_err().contains("no [queues"));
        let bare = check(queue, false).unwrap_err();
        assert!(bare.contains("no handler for kinds.k;") && bare.contains("--rust-handlers"), "{bare}");
        check(queue, true).unwrap();
        check(&format!("{queue}handler.exec.argv = ['/bin/true']\n"), false).unwrap();
    }
}
