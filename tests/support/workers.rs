//! Worker processes of the ordinary program, which can be killed and frozen. One that ends is started again,
//! as a supervisor would.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// How long the supervisor waits before it starts a worker again; and one that ended as soon as it
/// had been started.
const PAUSE: Duration = Duration::from_millis(500);
const LONG_PAUSE: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(5);

/// What became of a worker process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Did {
    Start,
    /// It is about to be killed.
    Killed,
    /// It is about to be stopped by SIGSTOP.
    Frozen,
    /// It has been woken by SIGCONT.
    Thawed,
}

/// Is told what becomes of which worker, when it does.
pub type Told = Arc<dyn Fn(&str, Did) + Send + Sync>;

/// Environment variables.
pub type Variables = Vec<(String, String)>;

/// A place for a worker: one process after the other.
pub struct Seat {
    /// From 1.
    pub number: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    life: u32,
    pid: Option<Pid>,
    frozen: bool,
    /// What the next life runs, where it is not the program that was built with the test.
    program: Option<PathBuf>,
    /// How the life before ended.
    ended: Option<ExitStatus>,
}

impl Seat {
    fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }

    /// What calls itself so: this seat's process in this life.
    fn name(&self, life: u32) -> String {
        format!("w{}-{life}", self.number)
    }

    /// The process that runs and is not frozen.
    pub fn awake(&self) -> Option<String> {
        let state = self.state();
        state.pid.filter(|_| !state.frozen).map(|_| self.name(state.life))
    }
}

/// How to start workers.
pub struct Plan {
    /// Their configuration. Their logs go beside it.
    pub config: PathBuf,
    /// The kinds whose calls are to say, in the header `x-worker`, which worker they come from.
    pub kinds: Vec<String>,
    /// For each worker, what its environment has beside this process's.
    pub variables: Vec<Variables>,
    /// How long to wait between two of them: twenty at once are too many for a small machine.
    pub apart: Duration,
    /// Where they run.
    pub place: Place,
}

/// Where workers run, and what.
#[derive(Clone, Default)]
pub struct Place {
    /// For each worker the words of a command that runs another where it is to be; none runs it here.
    pub inside: Vec<Vec<String>>,
    /// Their program at first, where it is not the one that was built with the test.
    pub program: Option<PathBuf>,
    /// How many workers have the numbers before theirs.
    pub before: usize,
}

/// All of them.
pub struct Workers {
    pub seats: Vec<Arc<Seat>>,
    told: Told,
    stop: CancellationToken,
    supervisors: Vec<JoinHandle<anyhow::Result<()>>>,
}

impl Workers {
    /// Starts as many workers as the plan has variables for.
    pub async fn start(plan: Plan, told: Told) -> Self {
        let Plan { config, kinds, variables, apart, place } = plan;
        let stop = CancellationToken::new();
        let (mut seats, mut supervisors) = (Vec::new(), Vec::new());
        for (nth, mut variables) in variables.into_iter().enumerate() {
            let number = place.before + nth + 1;
            if nth > 0 {
                sleep(apart).await;
            }
            // Overwritten in each life.
            let headers = kinds.iter().map(|kind| {
                let kind = kind.to_uppercase().replace('-', "_");
                (format!("ROUNDELAY__KINDS__{kind}__HANDLER__HTTP__HEADERS__X_WORKER"), String::new())
            });
            let own = variables.len();
            variables.extend(headers);
            let state = State { program: place.program.clone(), ..State::default() };
            let seat = Arc::new(Seat { number, state: Mutex::new(state) });
            seats.push(seat.clone());
            let inside = place.inside.get(nth).cloned().unwrap_or_default();
            let (config, told, stop) = (config.clone(), told.clone(), stop.clone());
            let life = Life { seat, config, inside, variables, own, told, stop };
            supervisors.push(tokio::spawn(life.supervise()));
        }
        Self { seats, told, stop, supervisors }
    }

    /// Kills the seat's process, if it is awake; answers which it was. `told` is called in between,
    /// when it is certain and has not happened yet.
    pub fn kill(&self, seat: &Seat, told: impl FnOnce(&str)) -> Option<String> {
        let state = seat.state();
        let pid = state.pid.filter(|_| !state.frozen)?;
        let worker = seat.name(state.life);
        told(&worker);
        (self.told)(&worker, Did::Killed);
        kill(pid, Signal::SIGKILL).ok()?;
        Some(worker)
    }

    /// Freezes the seat's process, if it is awake, for `length`; answers which it was.
    pub async fn freeze(&self, seat: &Seat, length: Duration, told: impl FnOnce(&str)) -> Option<String> {
        let (worker, pid) = {
            let mut state = seat.state();
            let pid = state.pid.filter(|_| !state.frozen)?;
            let worker = seat.name(state.life);
            told(&worker);
            (self.told)(&worker, Did::Frozen);
            kill(pid, Signal::SIGSTOP).ok()?;
            state.frozen = true;
            (worker, pid)
        };
        sleep(length).await;
        // A frozen process is not killed, so the id still belongs to this process.
        let _ = kill(pid, Signal::SIGCONT);
        (self.told)(&worker, Did::Thawed);
        seat.state().frozen = false;
        Some(worker)
    }

    /// Has the seat's process end in order, and another one run this program in its place; answers how the first
    /// ended, once the other has been started.
    pub async fn replace(&self, seat: &Seat, program: Option<PathBuf>) -> anyhow::Result<ExitStatus> {
        let life = {
            let mut state = seat.state();
            state.program = program;
            let pid = state.pid.ok_or_else(|| anyhow::anyhow!("worker {} does not run", seat.number))?;
            kill(pid, Signal::SIGTERM)?;
            state.life
        };
        let deadline = Instant::now() + Duration::from_secs(45);
        loop {
            if let Some(ended) = Some(seat.state()).filter(|state| state.life > life).and_then(|state| state.ended) {
                return Ok(ended);
            }
            anyhow::ensure!(Instant::now() < deadline, "w{}-{life} did not stop within 45 s of SIGTERM", seat.number);
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Kills all of them, for good.
    pub async fn abandon(self) {
        for seat in &self.seats {
            self.kill(seat, |_| ());
        }
        self.stop.cancel();
        for supervisor in self.supervisors {
            let _ = supervisor.await;
        }
    }

    /// Has all of them end in order. Answers how many did not.
    pub async fn stop(self) -> usize {
        self.stop.cancel();
        let mut failed = 0;
        for supervisor in self.supervisors {
            match supervisor.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    eprintln!("workers: {error:#}");
                    failed += 1;
                }
                Err(error) => {
                    eprintln!("workers: a supervisor ended: {error}");
                    failed += 1;
                }
            }
        }
        failed
    }
}

/// What a supervisor needs.
struct Life {
    seat: Arc<Seat>,
    config: PathBuf,
    inside: Vec<String>,
    /// The first `own` are the worker's own; the others are set to its name.
    variables: Variables,
    own: usize,
    told: Told,
    stop: CancellationToken,
}

impl Life {
    /// Keeps a worker running until `stop`.
    async fn supervise(mut self) -> anyhow::Result<()> {
        loop {
            let mut child = {
                let mut state = self.seat.state();
                state.life += 1;
                let worker = self.seat.name(state.life);
                self.variables.iter_mut().skip(self.own).for_each(|(_, value)| value.clone_from(&worker));
                let child = self.spawn(state.program.as_deref())?;
                state.pid = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
                (self.told)(&worker, Did::Start);
                child
            };
            let since = Instant::now();
            tokio::select! {
                ended = child.wait() => {
                    // From here on its id may be another's.
                    let mut state = self.seat.state();
                    state.pid = None;
                    state.ended = Some(ended?);
                }
                () = self.stop.cancelled() => {
                    let pid = self.seat.state().pid.take();
                    if let Some(pid) = pid {
                        let _ = kill(pid, Signal::SIGTERM);
                    }
                    let ended = timeout(Duration::from_secs(45), child.wait()).await;
                    let worker = self.seat.name(self.seat.state().life);
                    return match ended {
                        Ok(Ok(status)) if status.success() => Ok(()),
                        Ok(status) => Err(anyhow::anyhow!("{worker} ended with {status:?} when it was asked to stop")),
                        Err(_) => Err(anyhow::anyhow!("{worker} did not stop within 45 s of SIGTERM")),
                    };
                }
            }
            tokio::select! {
                () = sleep(if since.elapsed() < SOON { LONG_PAUSE } else { PAUSE }) => {}
                () = self.stop.cancelled() => return Ok(()),
            }
        }
    }

    fn spawn(&self, program: Option<&Path>) -> anyhow::Result<Child> {
        let log = self.config.with_file_name(format!("w{}.log", self.seat.number));
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        let error = log.try_clone()?;
        let program = program.unwrap_or(Path::new(env!("CARGO_BIN_EXE_roundelay"))).as_os_str();
        let mut words = self.inside.iter().map(OsStr::new).chain([program]);
        // What runs another program is replaced by it, so that its process is the worker's.
        let mut command = Command::new(words.next().expect("the program is among them"));
        command.args(words).args(["worker", "--config"]).arg(&self.config);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        Ok(command.stdin(Stdio::null()).stdout(log).stderr(error).kill_on_drop(true).spawn()?)
    }
}

/// Runs a command of the program to its end.
pub async fn roundelay(variables: &[(&str, &str)], arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(env!("CARGO_BIN_EXE_roundelay"))
        .args(arguments)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "roundelay {}: {complaint}", arguments.join(" "));
    Ok(())
}
