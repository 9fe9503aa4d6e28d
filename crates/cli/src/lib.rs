//! Commands, one file each.
//!
//! A command parses its arguments, calls `inspect`, `operate` or the engine, and prints the answer. `top` is the screen
//! of `roundelay top`.
//!
//! Layer: the highest, below the program.

/// Prints a line on standard output, as `println!` does. `println!` panics when the reader has gone (`roundelay status
/// | head -1`); here the program ends then.
macro_rules! out {
    ($($words:tt)*) => {
        $crate::screen::line(format_args!($($words)*))
    };
}

mod audited;
mod bench;
mod check;
mod confirm;
mod demo;
mod doctor;
mod encryption;
mod enroll;
mod failed;
mod fleet;
mod forecast;
mod health;
mod import;
mod list;
mod manual;
mod progress;
mod promote;
mod publish;
mod schedule;
mod screen;
mod serve;
mod show;
mod simulate;
mod status;
mod steer;
mod table;
mod tenant;
mod throttle;
mod token;
mod top;
mod topology;
mod worker;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use roundelay_admin::inspect::format::grouped;
use roundelay_config::Config;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Keeps very many things fresh: chains of jobs that publish their own delayed successors over
/// stock RabbitMQ.
#[derive(Parser)]
#[command(
    name = "roundelay",
    version,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "\
Start here:
  roundelay demo                                 20,000 chains on this machine, no broker needed
  roundelay check  --config roundelay.toml       is my configuration right?
  roundelay doctor --config roundelay.toml       are broker, ledger and this machine fit for it?
  roundelay enroll --config roundelay.toml --kind KIND ROSTER.csv
  roundelay worker --config roundelay.toml       run what is due

Logging goes to standard error; ROUNDELAY_LOG=debug shows more, ROUNDELAY_LOG_FORMAT=json is for
machines. Most commands have --json: one JSON object on standard output, and nothing else; errors are
text on standard error, with exit code 1."
)]
struct Cli {
    /// The format of the log; ROUNDELAY_LOG_FORMAT sets it too.
    #[arg(long, global = true, value_enum, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Demo),
    Worker(worker::Worker),
    Enroll(enroll::Enroll),
    Publish(publish::Publish),
    Run(steer::Run),
    Advance(steer::Advance),
    Schedule(schedule::ScheduleCommand),
    Pause(steer::Pause),
    Resume(steer::Resume),
    Retire(steer::Retire),
    Recover(steer::Recover),
    Promote(promote::Promote),
    Status(status::Status),
    List(list::List),
    Show(show::Show),
    Failed(failed::Failed),
    Throttle(throttle::Throttle),
    Queue(fleet::Queue),
    Tenant(tenant::Tenant),
    Workers(fleet::Workers),
    Serve(serve::Serve),
    Top(top::Top),
    Token(token::TokenCommand),
    Check(check::Check),
    Import(import::ImportCommand),
    Doctor(doctor::Doctor),
    Encryption(encryption::Encryption),
    Health(health::Health),
    Topology(topology::Topology),
    Bench(bench::Bench),
    Simulate(simulate::Simulate),
    Completions(manual::Completions),
    Man(manual::Man),
}

/// The format of the log.
#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    /// Lines for people.
    Text,
    /// A JSON object on each line, with the fields beside time, level and message.
    Json,
}

impl LogFormat {
    /// The command line's choice, else the environment's. An empty variable is as good as absent.
    fn choose(flag: Option<Self>) -> Result<Self, String> {
        let variable = std::env::var(LOG_FORMAT).unwrap_or_default();
        match flag {
            Some(format) => Ok(format),
            None if variable.is_empty() => Ok(Self::Text),
            None => Self::from_str(&variable, true)
                .map_err(|_| format!("{LOG_FORMAT} is `{variable}`; it may be text or json")),
        }
    }
}

/// The variable that sets the format.
const LOG_FORMAT: &str = "ROUNDELAY_LOG_FORMAT";

/// The path of the configuration.
#[derive(Args)]
struct ConfigFile {
    /// The configuration file; ROUNDELAY__… variables override it.
    #[arg(long, value_name = "FILE", env = "ROUNDELAY_CONFIG", default_value = "roundelay.toml")]
    config: PathBuf,
}

impl ConfigFile {
    fn load(&self) -> anyhow::Result<Config> {
        Ok(Config::load(&self.config)?)
    }
}

/// The stack of each thread that runs jobs, in bytes. A message's headers may be nested as deep as a frame has room
/// for, some 20,000 levels, and they are dropped here, by recursion: in an optimised build that takes about the usual 2
/// MiB, and in others several times as much. Unused stack costs nothing.
const STACK: usize = if cfg!(debug_assertions) { 128 << 20 } else { 16 << 20 };

/// If this variable is set to any value, the process can be dumped and traced.
const DUMPABLE: &str = "ROUNDELAY_DUMPABLE";

/// Keeps the memory of this process, which has passwords, out of core files, and unreadable for other processes of the
/// same user. Programs that it starts are not affected, except by the limit, which they may raise again.
fn keep_to_itself() {
    if std::env::var_os(DUMPABLE).is_some_and(|said| !said.is_empty()) {
        return;
    }
    let hard = getrlimit(Resource::RLIMIT_CORE).map(|(_, hard)| hard);
    let told = hard.and_then(|hard| setrlimit(Resource::RLIMIT_CORE, 0, hard));
    // The limit does not apply to dumps that the system pipes to a program.
    #[cfg(target_os = "linux")]
    let told = told.and(nix::sys::prctl::set_dumpable(false));
    if let Err(error) = told {
        tracing::warn!(%error, "failed to forbid core dumps; one would hold passwords");
    }
}

/// Runs the command line.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let level = match cli.command {
        // These commands draw on the same screen.
        Command::Demo(_) | Command::Bench(_) => "warn",
        // A simulated fault is not a real one.
        Command::Simulate(_) => "off",
        _ => "info",
    };
    // The client library reports every orderly close as an error; the engine's own lines say what matters.
    // ROUNDELAY_LOG shows them if it names lapin.
    let wanted = std::env::var("ROUNDELAY_LOG").unwrap_or_else(|_| level.into());
    // A log line would stand in the middle of the screen; in a file it does no harm.
    let on_screen = matches!(cli.command, Command::Top(_)) && std::io::stderr().is_terminal();
    let wanted = if on_screen { "off".into() } else { wanted };
    let filter = if wanted.contains("lapin") { wanted.clone() } else { format!("{wanted},lapin=off") };
    // A word alone is a level. The parser would take it for a target, so that a typing error would silence everything
    // else.
    let understood = |part: &&str| part.contains('=') || part.parse::<LevelFilter>().is_ok();
    let filter = match (filter.split(',').find(|part| !understood(part)), filter.parse::<Targets>()) {
        (None, Ok(filter)) => filter,
        (bad, _) => {
            screen::error(&format!(
                "ROUNDELAY_LOG={wanted} cannot be used{}: give a level (off, error, warn, info, debug, trace), \
                 or some like roundelay_engine=debug, with commas between",
                bad.map(|bad| format!(" ({bad:?} is no level)")).unwrap_or_default()
            ));
            return ExitCode::FAILURE;
        }
    };
    // Below DEBUG it logs every frame, with the passwords in it.
    let discreet = Targets::new().with_default(LevelFilter::TRACE).with_target("lapin", LevelFilter::DEBUG);
    let log = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_writer(|| progress::Log);
    match LogFormat::choose(cli.log_format) {
        Ok(LogFormat::Text) => {
            log.with_ansi(screen::colourful(&std::io::stderr())).finish().with(filter).with(discreet).init();
        }
        Ok(LogFormat::Json) => log.json().flatten_event(true).finish().with(filter).with(discreet).init(),
        Err(error) => {
            screen::error(&error);
            return ExitCode::FAILURE;
        }
    }
    if let Command::Worker(_) = cli.command {
        worker::with_deep_stacks();
    }
    // Not earlier, since the program starts itself again there.
    keep_to_itself();
    // Set explicitly, because a worker's environment asks for much deeper stacks, which only lapin needs.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_stack_size(STACK).build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            screen::error(&format!("failed to start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        match cli.command {
            Command::Demo(demo) => demo.run().await,
            Command::Worker(worker) => worker.run().await,
            Command::Enroll(enroll) => enroll.run().await,
            Command::Publish(publish) => publish.run().await,
            Command::Run(run) => run.run().await,
            Command::Advance(advance) => advance.run().await,
            Command::Schedule(schedule) => schedule.run().await,
            Command::Pause(pause) => pause.run().await,
            Command::Resume(resume) => resume.run().await,
            Command::Retire(retire) => retire.run().await,
            Command::Recover(recover) => recover.run().await,
            Command::Promote(promote) => promote.run().await,
            Command::Status(status) => status.run().await,
            Command::List(list) => list.run().await,
            Command::Show(show) => show.run().await,
            Command::Failed(failed) => failed.run().await,
            Command::Throttle(throttle) => throttle.run().await,
            Command::Queue(queue) => queue.run().await,
            Command::Tenant(tenant) => tenant.run().await,
            Command::Workers(workers) => workers.run().await,
            Command::Serve(serve) => serve.run().await,
            Command::Top(top) => top.run().await,
            Command::Token(token) => token.run().await,
            Command::Check(check) => check.run(),
            Command::Import(import) => import.run(),
            Command::Doctor(doctor) => doctor.run().await,
            Command::Encryption(encryption) => encryption.run().await,
            Command::Health(health) => health.run().await,
            Command::Topology(topology) => topology.run().await,
            Command::Bench(bench) => bench.run().await,
            // The simulation has runtimes of its own.
            Command::Simulate(simulate) => tokio::task::block_in_place(|| simulate.run()),
            Command::Completions(completions) => completions.run(),
            Command::Man(man) => man.run(),
        }
    });
    // A running SQLite statement must not delay the end.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            screen::error(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// A token that SIGTERM or SIGINT cancels. A second signal ends the process at once.
fn shutdown_on_signal() -> anyhow::Result<CancellationToken> {
    shutdown_on(&[SignalKind::terminate(), SignalKind::interrupt()], || ())
}

/// A token that one of these signals cancels. A second signal ends the process at once, after `last`.
fn shutdown_on(kinds: &[SignalKind], last: fn()) -> anyhow::Result<CancellationToken> {
    let shutdown = CancellationToken::new();
    for kind in kinds {
        let (mut signals, token) = (signal(*kind)?, shutdown.clone());
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                if token.is_cancelled() {
                    last();
                    tracing::warn!("second signal: ending at once");
                    std::process::exit(130);
                }
                token.cancel();
            }
        });
    }
    Ok(shutdown)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    /// Commands without `--json`, and why.
    const NO_JSON: [(&str, &str); 4] = [
        ("completions", "prints a script for a shell"),
        ("serve", "prints nothing but its log, and the document of --openapi, which is JSON"),
        ("top", "draws on a terminal; `status` and `serve` have the same for programs"),
        ("worker", "prints nothing but its log, which ROUNDELAY_LOG_FORMAT=json makes JSON"),
    ];

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }

    #[test]
    fn every_command_speaks_json_or_has_a_reason_not_to() {
        fn leaves(command: &clap::Command, path: &str, found: &mut Vec<(String, bool)>) {
            for below in command.get_subcommands() {
                let path = format!("{path} {}", below.get_name()).trim_start().to_owned();
                if below.has_subcommands() {
                    leaves(below, &path, found);
                } else {
                    found.push((path, below.get_arguments().any(|argument| argument.get_long() == Some("json"))));
                }
            }
        }
        let mut found = Vec::new();
        leaves(&super::Cli::command(), "", &mut found);
        assert!(found.len() > 40, "{found:?}");
        let mute: Vec<&str> = found.iter().filter(|(_, json)| !json).map(|(path, _)| path.as_str()).collect();
        let mut excused: Vec<&str> = NO_JSON.iter().map(|(path, _)| *path).collect();
        excused.sort_by_key(|path| mute.iter().position(|mute| mute == path));
        assert_eq!(mute, excused, "give it --json, or a reason");
    }
}
