//! `roundelay worker`

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::time::Duration;

use anyhow::{bail, ensure};
use clap::Args;
use roundelay_config::{Config, listen_address};
use roundelay_model::clock::parse_duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use wildmatch::WildMatch;

use super::{ConfigFile, shutdown_on_signal};

/// How many configurations may wait until the worker uses them.
const UNREAD: usize = 4;

/// The variable that tells the standard library the stack size of threads that set none.
const STACK_VARIABLE: &str = "RUST_MIN_STACK";
/// Enough for headers nested as deep as a frame of 128 KiB allows (26,000 arrays), with a reserve.
/// Only addresses are reserved; memory is used when such a message comes.
const STACK: &str = if cfg!(debug_assertions) { "536870912" } else { "134217728" };

/// Starts this program again, as the same process, with stacks that no message overflows.
///
/// The client library reads headers by recursion in a thread of its own, whose stack size can only
/// be set by the environment. With the usual 2 MiB a message of a few kilobytes would end the
/// worker, and after it every other one that gets the message.
pub fn with_deep_stacks() {
    let mut arguments = std::env::args_os();
    if std::env::var_os(STACK_VARIABLE).is_some() {
        return;
    }
    if let (Ok(program), Some(name)) = (std::env::current_exe(), arguments.next()) {
        let error = std::process::Command::new(program).arg0(name).args(arguments).env(STACK_VARIABLE, STACK).exec();
        tracing::warn!(%error, "failed to enlarge the stacks; a message with deeply nested headers would end this worker");
    }
}

/// Runs due jobs, until SIGTERM or SIGINT.
///
/// Any number of workers may run on the same queues. On the signal it stops taking messages, lets what runs finish
/// (bounded by the grace), and leaves nothing unacknowledged; a second signal ends it at once, which loses nothing
/// either: what it held is delivered again (programs that it has started run on).
///
/// On SIGHUP it reads its configuration file again. If something in it is wrong, the worker logs that and keeps the old
/// one. Else kinds' schedules, guards, timeouts and retries change at once, and sleeping chains move to where a new
/// schedule has them; the log names what needs a restart.
#[derive(Args)]
pub struct Worker {
    #[command(flatten)]
    config: ConfigFile,
    /// Only these queues; `*` stands for anything: `sync-*-ios,default`.
    #[arg(long, value_name = "GLOB,…", value_delimiter = ',')]
    queues: Vec<String>,
    /// How long running jobs may continue after the signal, in place of worker.grace.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    grace: Option<Duration>,
    /// Where to answer /metrics, /healthz and /readyz, in place of worker.listen. There is no authentication: every
    /// client that reaches the port may read.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen_address)]
    listen: Option<SocketAddr>,
}

impl Worker {
    pub async fn run(self) -> anyhow::Result<()> {
        // This comes first, since a SIGHUP ends a process that does not listen for it.
        let hangups = signal(SignalKind::hangup())?;
        let config = self.load()?;
        let queues = matching(config.queues.keys(), &self.queues)?;
        let shutdown = shutdown_on_signal()?;
        let (send, fresh) = mpsc::channel(UNREAD);
        let engine = roundelay_admin::worker(config).queues(queues).configurations(fresh);
        tokio::select! {
            ended = engine.run(shutdown) => Ok(ended?),
            never = self.read_again(hangups, send) => never,
        }
    }

    /// Reads the configuration at each SIGHUP, without end.
    async fn read_again(&self, mut hangups: Signal, send: mpsc::Sender<Config>) -> anyhow::Result<()> {
        while hangups.recv().await.is_some() {
            match self.load() {
                // While the worker starts or stops, the channel has no reader.
                Ok(config) => drop(send.send(config).await),
                Err(error) => {
                    tracing::error!("the configuration was not read again, and the old one goes on: {error:#}");
                }
            }
        }
        std::future::pending().await
    }

    fn load(&self) -> anyhow::Result<Config> {
        let mut config = self.config.load()?;
        ensure!(
            !config.queues.is_empty(),
            "{}: there are no [queues.…], so there is nothing to work on",
            self.config.config.display()
        );
        if let Some(grace) = self.grace {
            config.worker.grace = grace;
        }
        config.worker.listen = self.listen.or(config.worker.listen);
        Ok(config)
    }
}

/// The queues that match one of the globs; all when there are none.
fn matching<'q>(queues: impl Iterator<Item = &'q String> + Clone, globs: &[String]) -> anyhow::Result<Vec<String>> {
    if globs.is_empty() {
        return Ok(queues.cloned().collect());
    }
    for glob in globs {
        if !queues.clone().any(|queue| WildMatch::new(glob).matches(queue)) {
            let known: Vec<&str> = queues.map(String::as_str).collect();
            bail!("--queues {glob} matches no queue; the configuration has {}", known.join(", "));
        }
    }
    let wanted = |queue: &&String| globs.iter().any(|glob| WildMatch::new(glob).matches(queue));
    Ok(queues.filter(wanted).cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::matching;

    #[test]
    fn globs_choose_queues_and_typos_are_told() {
        let queues: Vec<String> = ["sync-ios", "sync-android", "default"].map(String::from).into();
        let choose =
            |globs: &[&str]| matching(queues.iter(), &globs.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(choose(&[]).unwrap(), queues);
        assert_eq!(choose(&["*-ios", "default"]).unwrap(), ["sync-ios", "default"]);
        assert!(choose(&["chart-*"]).unwrap_err().to_string().contains("chart-* matches no queue"));
    }
}
