//! A program and the children that stay in its process group. The group is killed when its job ends.

use std::io;
use std::process::ExitStatus;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};

/// A running program, the leader of its own process group. To drop it before [`Group::reap`] kills the group.
///
/// A group is signalled by its id, which is the leader's process id. Once the leader has been reaped, the system may
/// give that id to another program. So a caller kills the group *before* that: [`Group::ended`] only looks, and
/// [`Group::reap`] is the last step.
#[derive(Debug)]
pub struct Group {
    /// `None` once reaped.
    child: Option<Child>,
    id: Pid,
    /// SIGCHLD: a child of this process, any of them, has ended.
    child_signals: SignalStream,
}

impl Group {
    /// Starts `command` as the leader of a new group.
    pub fn start(mut command: Command) -> io::Result<Self> {
        // First, so that no end is missed.
        let child_signals = signal(SignalKind::child())?;
        let child = command.process_group(0).kill_on_drop(true).spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok()).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { child: Some(child), id: Pid::from_raw(id), child_signals })
    }

    /// Standard input, output and error, where they are pipes and not taken yet.
    pub fn pipes(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>, Option<ChildStderr>) {
        match &mut self.child {
            Some(child) => (child.stdin.take(), child.stdout.take(), child.stderr.take()),
            None => (None, None, None),
        }
    }

    /// Returns when the leader has ended, or when its state cannot be read. The leader is not reaped: it stays a
    /// zombie, so its process id is not used again.
    #[cfg(any(target_os = "linux", target_os = "freebsd"))]
    pub async fn ended(&mut self) {
        use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
        while let Ok(WaitStatus::StillAlive) = waitid(Id::Pid(self.id), flags) {
            if self.child_signals.recv().await.is_none() {
                return;
            }
        }
    }

    /// Returns when the leader has ended. This platform has no `waitid` that leaves a zombie, so the leader is reaped
    /// here; there is a tiny chance that its id is used again before the group is killed.
    #[cfg(not(any(target_os = "linux", target_os = "freebsd")))]
    pub async fn ended(&mut self) {
        let _ = &self.child_signals;
        if let Some(child) = &mut self.child {
            let _ = child.wait().await;
        }
    }

    /// Asks every process of the group to end, with SIGTERM. Not after [`Group::reap`]: by then the id may be that of
    /// another group.
    pub fn ask_to_end(&self) {
        if let Err(error) = killpg(self.id, Signal::SIGTERM)
            && !matches!(error, Errno::ESRCH | Errno::EPERM)
        {
            tracing::warn!(group = self.id.as_raw(), %error, "failed to ask a process group to end");
        }
    }

    /// Kills every process of the group. Not after [`Group::reap`]: by then the id may be that of another group.
    pub fn kill(&self) {
        match killpg(self.id, Signal::SIGKILL) {
            // macOS says EPERM, and Linux nothing, when the only one left is a zombie.
            Ok(()) | Err(Errno::ESRCH | Errno::EPERM) => {}
            Err(error) => tracing::warn!(group = self.id.as_raw(), %error, "failed to kill a process group"),
        }
    }

    /// Waits for the leader's end and frees its process id. The rest of the group is not killed: see [`Group::kill`].
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
            // Reaped in the background. Without a runtime, the dropped child goes to tokio's queue of orphans.
            if let Ok(runtime) = Handle::try_current() {
                runtime.spawn(async move { child.wait().await });
            }
        }
    }
}
