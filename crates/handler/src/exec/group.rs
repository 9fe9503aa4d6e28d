//! A program and everything it starts: one process group, which never outlives its job.

use std::io;
use std::process::ExitStatus;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

/// A running program, the leader of its own process group. Dropping it kills the group.
///
/// A group is killed by its number, which is the leader's process id. The system may give that
/// number to another program once the leader has been reaped, so the group is always killed
/// *before* that: [`Group::ended`] only looks, and [`Group::reap`] is the last step.
#[derive(Debug)]
pub struct Group {
    /// `None` once reaped.
    child: Option<Child>,
    id: Pid,
    /// Says that a child of this process, any of them, has ended.
    deaths: Signals,
}

impl Group {
    /// Starts `command` as the leader of a new group.
    pub fn start(mut command: Command) -> io::Result<Self> {
        // First, so that no death is missed.
        let deaths = signal(SignalKind::child())?;
        let child = command.process_group(0).kill_on_drop(true).spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok()).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { child: Some(child), id: Pid::from_raw(id), deaths })
    }

    /// Standard input, output and error, where they are pipes and not taken yet.
    pub fn pipes(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>, Option<ChildStderr>) {
        match &mut self.child {
            Some(child) => (child.stdin.take(), child.stdout.take(), child.stderr.take()),
            None => (None, None, None),
        }
    }

    /// Returns when the leader has ended. It stays a zombie, and its number stays taken.
    #[cfg(any(target_os = "linux", target_os = "freebsd"))]
    pub async fn ended(&mut self) {
        use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
        while let Ok(WaitStatus::StillAlive) = waitid(Id::Pid(self.id), look) {
            if self.deaths.recv().await.is_none() {
                return;
            }
        }
    }

    /// Returns when the leader has ended. Without a way to look at a zombie it is reaped already,
    /// which leaves a tiny chance that its number is taken anew before the group is killed.
    #[cfg(not(any(target_os = "linux", target_os = "freebsd")))]
    pub async fn ended(&mut self) {
        let _ = &self.deaths;
        if let Some(child) = &mut self.child {
            let _ = child.wait().await;
        }
    }

    /// Asks every process of the group to end, with SIGTERM.
    pub fn ask_to_end(&self) {
        if let Err(error) = killpg(self.id, Signal::SIGTERM)
            && !matches!(error, Errno::ESRCH | Errno::EPERM)
        {
            tracing::warn!(group = self.id.as_raw(), %error, "failed to ask a process group to end");
        }
    }

    /// Kills every process of the group. Only of use before [`Group::reap`].
    pub fn kill(&self) {
        match killpg(self.id, Signal::SIGKILL) {
            // macOS says EPERM, and Linux nothing, when the only one left is a zombie.
            Ok(()) | Err(Errno::ESRCH | Errno::EPERM) => {}
            Err(error) => tracing::warn!(group = self.id.as_raw(), %error, "failed to kill a process group"),
        }
    }

    /// Waits for the leader's end and frees its process id.
    pub async fn reap(&mut self) -> io::Result<ExitStatus> {
        let Some(child) = &mut self.child else { return Err(io::ErrorKind::NotFound.into()) };
        let status = child.wait().await?;
        self.child = None;
        Ok(status)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            self.kill();
            // Without a runtime, or with one that is shutting down, tokio's own list of orphans
            // gets it.
            if let Ok(runtime) = Handle::try_current() {
                runtime.spawn(async move { child.wait().await });
            }
        }
    }
}
