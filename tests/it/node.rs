//! A RabbitMQ node of a test's own, of the version that the other tests use.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use reqwest::Method;
use serde_json::json;
use tokio::process::Command;

use crate::harness::api;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/local/rabbitmq");

/// Ended when it is dropped.
pub struct Node {
    pub folder: PathBuf,
    /// What the node's `env` says.
    env: String,
}

impl Node {
    /// Starts one in a folder below `folder`, with further options.
    pub async fn start(folder: &Path, options: &[&str]) -> Self {
        let management = std::env::var("RABBITMQ_MANAGEMENT_URL").expect("RABBITMQ_MANAGEMENT_URL: use tests/run");
        let (_, overview) = api(&management, Method::GET, "overview", &json!(null)).await;
        let version = overview["rabbitmq_version"].as_str().expect("the management API tells the version");
        let version = match version {
            old if old.starts_with("3.") => "apt",
            four if four.starts_with("4.0.") => "4.0",
            _ => "4.3",
        };
        let mut node = Self { folder: folder.join("node"), env: String::new() };
        node.env = node.call("start", &[&["--version", version], options].concat()).await;
        node
    }

    /// A value that `start` has printed.
    pub fn env(&self, name: &str) -> String {
        let line = self.env.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
        line.unwrap_or_else(|| panic!("no {name} in {}", self.env)).to_owned()
    }

    /// The port of AMQP.
    pub fn port(&self) -> u16 {
        url::Url::parse(&self.env("AMQP_URL")).unwrap().port().unwrap()
    }

    /// A file of its folder as the node itself sees it: one that is not this machine's package has a root of its own.
    pub fn inside(&self, name: &str) -> String {
        match self.env("RABBITMQ_VERSION").starts_with("3.") {
            true => self.folder.join(name).display().to_string(),
            false => format!("/mnt/{name}"),
        }
    }

    /// Does a command of the script.
    pub async fn call(&self, verb: &str, more: &[&str]) -> String {
        let output =
            Command::new(SCRIPT).arg(verb).arg(&self.folder).args(more).stdin(Stdio::null()).output().await.unwrap();
        assert!(output.status.success(), "{verb} {more:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Has a shell do what an operator would type on the node's machine, where `rabbitmqctl` leads to this node.
    pub async fn shell(&self, commands: &str) {
        let script =
            format!("set -e\nrabbitmqctl() {{ '{SCRIPT}' ctl '{}' -- \"$@\"; }}\n{commands}", self.folder.display());
        let output = Command::new("bash").args(["-c", &script]).stdin(Stdio::null()).output().await.unwrap();
        assert!(output.status.success(), "{commands}: {output:?}");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = std::process::Command::new(SCRIPT).arg("kill").arg(&self.folder).output();
    }
}
