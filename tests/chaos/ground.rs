//! Where it happens: a RabbitMQ cluster and a PostgreSQL server of this run's own, started by the
//! scripts in deploy/local, which end only what they have started.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::process::Command;

/// How many broker nodes there are; quorum queues then have three members.
pub const NODES: usize = 3;

/// The services.
pub struct Ground {
    folder: PathBuf,
    pub nodes: Vec<Node>,
    /// Where PostgreSQL listens.
    pub database: SocketAddr,
    /// What PostgreSQL's environment has, beside what it always has: NAME=value.
    surroundings: Vec<String>,
    client: reqwest::Client,
}

/// A broker node.
#[derive(Clone, Debug)]
pub struct Node {
    /// From 1.
    pub number: usize,
    /// As the broker calls it.
    pub name: String,
    pub amqp: SocketAddr,
    pub management: SocketAddr,
}

impl Ground {
    /// Starts everything below `folder`.
    pub async fn start(folder: &Path, version: &str) -> anyhow::Result<Self> {
        Self::start_with(folder, version, NODES, Vec::new()).await
    }

    /// Starts everything with this number of broker nodes, and PostgreSQL in these surroundings.
    pub async fn start_with(
        folder: &Path,
        version: &str,
        nodes: usize,
        surroundings: Vec<String>,
    ) -> anyhow::Result<Self> {
        let (rabbit, postgres) = (folder.join("rabbitmq"), folder.join("postgres"));
        let cluster = nodes.to_string();
        let mut arguments = vec!["--version", version];
        if nodes > 1 {
            arguments.extend(["--cluster", &*cluster]);
        }
        let within = within(&surroundings);
        let (started, database) = tokio::join!(
            script("rabbitmq", "start", &rabbit, &arguments),
            script("postgres", "start", &postgres, &within)
        );
        started?;
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build()?;
        let local = |port: &str| -> anyhow::Result<SocketAddr> { Ok(format!("127.0.0.1:{port}").parse()?) };
        let node = |number: usize| -> anyhow::Result<Node> {
            let settings = std::fs::read_to_string(node_folder(&rabbit, number, nodes).join("settings"))?;
            Ok(Node {
                number,
                name: format!("{}@localhost", value(&settings, "name")?),
                amqp: local(value(&settings, "port")?)?,
                management: local(value(&settings, "management_port")?)?,
            })
        };
        let nodes = (1..=nodes).map(node).collect::<Result<_, _>>()?;
        let database = url::Url::parse(value(&database?, "DATABASE_URL")?)?;
        let database = local(&database.port().context("DATABASE_URL has a port")?.to_string())?;
        Ok(Self { folder: folder.to_owned(), nodes, database, surroundings, client })
    }

    /// The database's URL at this port: its own, or that of a link to it.
    pub fn database_url(&self, port: u16) -> String {
        format!("postgres://roundelay:roundelay@127.0.0.1:{port}/roundelay?sslmode=disable")
    }

    /// `start`, `stop` or `kill` a node.
    pub async fn node(&self, verb: &str, number: usize) -> anyhow::Result<()> {
        script("rabbitmq", verb, &self.node_folder(number), &[]).await.map(drop)
    }

    /// Runs the script's `verb` for all nodes.
    pub async fn cluster(&self, verb: &str) -> anyhow::Result<()> {
        script("rabbitmq", verb, &self.folder.join("rabbitmq"), &[]).await.map(drop)
    }

    /// Runs rabbitmqctl on a node.
    pub async fn ctl(&self, number: usize, arguments: &[&str]) -> anyhow::Result<()> {
        script("rabbitmq", "ctl", &self.node_folder(number), arguments).await.map(drop)
    }

    /// Ends PostgreSQL as it ends itself after a crash of one of its processes: at once, without a
    /// checkpoint, so that it recovers when it is started.
    pub async fn end_database(&self) -> anyhow::Result<()> {
        let env = std::fs::read_to_string(self.folder.join("postgres/env"))?;
        let pid = nix::unistd::Pid::from_raw(value(&env, "POSTGRES_PID")?.parse()?);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGQUIT)?;
        // Its record is still there, so the script waits until it is gone and nothing else.
        script("postgres", "stop", &self.folder.join("postgres"), &[]).await.map(drop)
    }

    pub async fn start_database(&self) -> anyhow::Result<()> {
        script("postgres", "start", &self.folder.join("postgres"), &within(&self.surroundings)).await.map(drop)
    }

    fn node_folder(&self, number: usize) -> PathBuf {
        node_folder(&self.folder.join("rabbitmq"), number, self.nodes.len())
    }

    /// Asks the management API of whichever node answers. The status is for the caller to judge.
    pub async fn api(&self, method: Method, path: &str, body: &Value) -> anyhow::Result<(StatusCode, Value)> {
        let mut last = None;
        for node in &self.nodes {
            let url = format!("http://{}/api/{path}", node.management);
            let request = self.client.request(method.clone(), url).basic_auth("guest", Some("guest"));
            let request = if body.is_null() { request } else { request.json(body) };
            match request.send().await {
                Ok(answer) if !answer.status().is_server_error() => {
                    return Ok((answer.status(), answer.json().await.unwrap_or_default()));
                }
                Ok(answer) => last = Some(format!("{}", answer.status())),
                Err(error) => last = Some(error.to_string()),
            }
        }
        bail!("no node answers {method} {path}: {}", last.unwrap_or_default())
    }

    /// A queue as the management API shows it.
    pub async fn queue(&self, name: &str) -> anyhow::Result<Value> {
        let (status, queue) = self.api(Method::GET, &format!("queues/%2F/{name}"), &json!(null)).await?;
        ensure!(status.is_success(), "the queue {name} cannot be seen: {status} {queue}");
        Ok(queue)
    }

    /// How many messages wait in a queue, by an AMQP client: the management API's figures are old.
    pub async fn depth(&self, queue: &str) -> anyhow::Result<u64> {
        let url = format!("amqp://guest:guest@{}/%2f", self.nodes[0].amqp);
        let connection = lapin::Connection::connect(&url, lapin::ConnectionProperties::default()).await?;
        let options = lapin::options::QueueDeclareOptions { passive: true, ..Default::default() };
        let channel = connection.create_channel().await?;
        Ok(channel.queue_declare(queue.into(), options, Default::default()).await?.message_count().into())
    }

    /// Ends everything, whatever state it is in.
    pub async fn end(folder: &Path) {
        for service in ["rabbitmq", "postgres"].into_iter().filter(|name| folder.join(name).join("settings").exists()) {
            if let Err(error) = script(service, "kill", &folder.join(service), &[]).await {
                eprintln!("{service} could not be ended: {error:#}");
            }
        }
    }
}

/// The folder of a node: a node that is alone has no folder of its own.
fn node_folder(rabbit: &Path, number: usize, nodes: usize) -> PathBuf {
    if nodes == 1 { rabbit.to_owned() } else { rabbit.join(number.to_string()) }
}

/// The arguments that start PostgreSQL in these surroundings.
fn within(surroundings: &[String]) -> Vec<&str> {
    surroundings.iter().flat_map(|variable| ["--env", variable]).collect()
}

/// Runs one of the scripts in deploy/local to its end, and answers what it printed.
pub async fn script(service: &str, verb: &str, folder: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/local").join(service);
    let output = Command::new(&path).arg(verb).arg(folder).args(arguments).stdin(Stdio::null()).output().await?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{service} {verb} {}: {complaint}", folder.display());
    Ok(String::from_utf8(output.stdout)?)
}

/// A value from lines of KEY=value.
pub fn value<'a>(lines: &'a str, key: &str) -> anyhow::Result<&'a str> {
    let found = lines.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    found.with_context(|| format!("no {key} in: {lines}"))
}
