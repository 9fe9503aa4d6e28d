//! A broker and a database of a scenario's own, which it kills and starts again.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, ensure};
use tempfile::TempDir;
use tokio::process::Command;

/// A service by its script in `deploy/local`. Ended when it is dropped.
pub struct Service {
    script: PathBuf,
    folder: PathBuf,
    /// What `start` has printed.
    env: String,
}

impl Service {
    /// Starts one below `folder`.
    pub async fn start(name: &str, folder: &TempDir, options: &[&str]) -> anyhow::Result<Self> {
        // The service may run as a user of its own.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/local").join(name);
        let mut service = Self { script, folder: folder.path().join(name), env: String::new() };
        service.env = service.call("start", options).await?;
        Ok(service)
    }

    /// A value that `start` has printed.
    pub fn env(&self, name: &str) -> anyhow::Result<String> {
        let found = self.env.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        Ok(found.with_context(|| format!("no {name} in: {}", self.env))?.to_owned())
    }

    /// Does a verb of its script, to the end.
    pub async fn call(&self, verb: &str, options: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.script);
        let output = command.arg(verb).arg(&self.folder).args(options).stdin(Stdio::null()).output().await?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} {verb}: {complaint}", self.script.display());
        Ok(String::from_utf8(output.stdout)?)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = std::process::Command::new(&self.script).arg("kill").arg(&self.folder).output();
    }
}
