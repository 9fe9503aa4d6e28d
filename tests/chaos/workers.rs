//! The workers: processes of the ordinary program, each with links of its own to the services. A
//! worker that ends is started again, as a supervisor would.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::ground::Ground;
use super::log::{Did, Entry, Writer};
use super::proxy::Link;

/// How long the supervisor waits before it starts a worker again; and one that ended as soon as it
/// had been started.
const PAUSE: Duration = Duration::from_millis(500);
const LONG_PAUSE: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(5);

/// A place for a worker: one process after the other.
pub struct Slot {
    /// From 1.
    pub number: usize,
    /// Its way to the broker, and to the ledger.
    pub broker: Link,
    pub ledger: Link,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    life: u32,
    pid: Option<Pid>,
    frozen: bool,
}

impl Slot {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What calls itself so: this slot's process in this life.
    fn name(&self, life: u32) -> String {
        format!("w{}-{life}", self.number)
    }

    /// The process that runs and is not frozen.
    pub fn awake(&self) -> Option<String> {
        let state = self.state();
        state.pid.filter(|_| !state.frozen).map(|_| self.name(state.life))
    }
}

/// All of them.
pub struct Workers {
    pub slots: Vec<Arc<Slot>>,
    log: Writer,
    stop: CancellationToken,
    supervisors: Vec<JoinHandle<anyhow::Result<()>>>,
}

impl Workers {
    /// Starts `count` workers with this configuration. Their logs go beside it.
    pub async fn start(ground: &Ground, config: PathBuf, count: usize, log: Writer) -> anyhow::Result<Self> {
        let stop = CancellationToken::new();
        let (mut slots, mut supervisors) = (Vec::new(), Vec::new());
        for number in 1..=count {
            let broker = Link::open(ground.nodes.iter().map(|node| node.amqp).collect()).await?;
            let ledger = Link::open(vec![ground.database]).await?;
            let urls = [
                ("ROUNDELAY__BROKER__URL", format!("amqp://guest:guest@127.0.0.1:{}/%2f", broker.port)),
                ("ROUNDELAY__LEDGER__URL", ground.database_url(ledger.port)),
            ];
            let slot = Arc::new(Slot { number, broker, ledger, state: Mutex::default() });
            slots.push(slot.clone());
            supervisors.push(tokio::spawn(supervise(slot, config.clone(), urls, log.clone(), stop.clone())));
        }
        Ok(Self { slots, log, stop, supervisors })
    }

    /// Kills the slot's process, if it is awake; answers which it was. `told` is called in between,
    /// when it is certain and has not happened yet.
    pub fn kill(&self, slot: &Slot, told: impl FnOnce(&str)) -> Option<String> {
        let state = slot.state();
        let pid = state.pid.filter(|_| !state.frozen)?;
        let worker = slot.name(state.life);
        told(&worker);
        self.log.write(Entry::Worker { worker: worker.clone(), did: Did::Killed });
        kill(pid, Signal::SIGKILL).ok()?;
        Some(worker)
    }

    /// Freezes the slot's process, if it is awake, for `length`; answers which it was.
    pub async fn freeze(&self, slot: &Slot, length: Duration, told: impl FnOnce(&str)) -> Option<String> {
        let (worker, pid) = {
            let mut state = slot.state();
            let pid = state.pid.filter(|_| !state.frozen)?;
            let worker = slot.name(state.life);
            told(&worker);
            self.log.write(Entry::Worker { worker: worker.clone(), did: Did::Frozen });
            kill(pid, Signal::SIGSTOP).ok()?;
            state.frozen = true;
            (worker, pid)
        };
        sleep(length).await;
        // Nobody kills what is frozen, so it is still this process.
        let _ = kill(pid, Signal::SIGCONT);
        self.log.write(Entry::Worker { worker: worker.clone(), did: Did::Thawed });
        slot.state().frozen = false;
        Some(worker)
    }

    /// Has all of them end in order. Answers how many did not.
    pub async fn stop(self) -> usize {
        self.stop.cancel();
        let mut failed = 0;
        for supervisor in self.supervisors {
            match supervisor.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    eprintln!("chaos: {error:#}");
                    failed += 1;
                }
                Err(error) => {
                    eprintln!("chaos: a supervisor ended: {error}");
                    failed += 1;
                }
            }
        }
        failed
    }
}

/// Keeps a worker running until `stop`.
async fn supervise(
    slot: Arc<Slot>,
    config: PathBuf,
    urls: [(&'static str, String); 2],
    log: Writer,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    loop {
        let mut child = {
            let mut state = slot.state();
            state.life += 1;
            let worker = slot.name(state.life);
            let child = spawn(&config, &urls, &worker)?;
            state.pid = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
            log.write(Entry::Worker { worker, did: Did::Start });
            child
        };
        let since = Instant::now();
        tokio::select! {
            ended = child.wait() => {
                // From here on its id may be another's.
                slot.state().pid = None;
                ended?;
            }
            () = stop.cancelled() => {
                let pid = slot.state().pid.take();
                if let Some(pid) = pid {
                    let _ = kill(pid, Signal::SIGTERM);
                }
                let ended = timeout(Duration::from_secs(45), child.wait()).await;
                let worker = slot.name(slot.state().life);
                return match ended {
                    Ok(Ok(status)) if status.success() => Ok(()),
                    Ok(status) => Err(anyhow::anyhow!("{worker} ended with {status:?} when it was asked to stop")),
                    Err(_) => Err(anyhow::anyhow!("{worker} did not stop within 45 s of SIGTERM")),
                };
            }
        }
        tokio::select! {
            () = sleep(if since.elapsed() < SOON { LONG_PAUSE } else { PAUSE }) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

fn spawn(config: &PathBuf, urls: &[(&'static str, String); 2], worker: &str) -> anyhow::Result<Child> {
    let slot = worker.split('-').next().unwrap_or(worker);
    let log = OpenOptions::new().create(true).append(true).open(config.with_file_name(format!("{slot}.log")))?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_roundelay"));
    command.args(["worker", "--config"]).arg(config);
    for (name, value) in urls {
        command.env(name, value);
    }
    for kind in super::load::KINDS {
        let kind = kind.name.to_uppercase();
        command.env(format!("ROUNDELAY__KINDS__{kind}__HANDLER__HTTP__HEADERS__X_WORKER"), worker);
    }
    let error = log.try_clone()?;
    Ok(command.stdin(Stdio::null()).stdout(log).stderr(error).kill_on_drop(true).spawn()?)
}
