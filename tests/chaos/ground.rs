//! Where it happens: a RabbitMQ cluster and a PostgreSQL server of this run's own, started by the
//! scripts in deploy/local, which end only what they have started.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::process::Command;

/// How many broker nodes there are; quorum queues then have three members.
pub const NODES: usize = 3;
/// The folders of the PostgreSQL servers. Which of them takes writes changes.
const SERVERS: [&str; 2] = ["postgres", "standby"];

/// The services.
pub struct Ground {
    folder: PathBuf,
    pub nodes: Vec<Node>,
    /// The PostgreSQL servers: one, or a primary with its standby.
    servers: Vec<Server>,
    /// Which of them takes writes.
    primary: AtomicUsize,
    /// What PostgreSQL's environment has, beside what it always has: NAME=value.
    surroundings: Vec<String>,
    client: reqwest::Client,
}

/// A PostgreSQL server.
struct Server {
    folder: PathBuf,
    address: SocketAddr,
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
        let (rabbit, postgres) = (folder.join("rabbitmq"), folder.join(SERVERS[0]));
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
        let servers = vec![Server::started(postgres, &database?)?];
        Ok(Self { folder: folder.to_owned(), nodes, servers, primary: AtomicUsize::new(0), surroundings, client })
    }

    /// Starts a standby, for which PostgreSQL waits at every commit from now on.
    pub async fn start_standby(&mut self) -> anyhow::Result<()> {
        let folder = self.folder.join(SERVERS[1]);
        let started = self.follow(&folder).await?;
        self.servers.push(Server::started(folder, &started)?);
        Ok(())
    }

    /// Has the server in this folder follow the one that takes writes.
    async fn follow(&self, folder: &Path) -> anyhow::Result<String> {
        let primary = self.primary().folder.to_string_lossy();
        script("postgres", "start", folder, &["--standby-of", &primary, "--synchronous"]).await
    }

    fn primary(&self) -> &Server {
        &self.servers[self.primary.load(Ordering::Relaxed)]
    }

    /// Where the PostgreSQL listens that takes writes.
    pub fn database(&self) -> SocketAddr {
        self.primary().address
    }

    /// Ends PostgreSQL by `stop` or `kill`, and has its standby take its place; answers which was ended, for
    /// [`Ground::bring_back`].
    pub async fn fail_over(&self, verb: &str) -> anyhow::Result<usize> {
        ensure!(self.servers.len() == SERVERS.len(), "PostgreSQL has no standby");
        let old = self.primary.load(Ordering::Relaxed);
        let new = 1 - old;
        script("postgres", verb, &self.servers[old].folder, &[]).await?;
        script("postgres", "promote", &self.servers[new].folder, &[]).await?;
        self.primary.store(new, Ordering::Relaxed);
        Ok(old)
    }

    /// Makes a server that was ended the standby of its successor.
    pub async fn bring_back(&self, old: usize) -> anyhow::Result<()> {
        self.follow(&self.servers[old].folder).await.map(drop)
    }

    /// The URL of the database that takes writes, past all links.
    pub fn ledger_url(&self) -> String {
        self.database_url(self.database().port())
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

    /// Has the cluster forget a node, and its queues their members there; then the node joins the cluster anew, and
    /// every quorum queue gets a member there again.
    pub async fn replace_node(&self, number: usize) -> anyhow::Result<()> {
        let (node, other) = (&self.nodes[number - 1], number % self.nodes.len() + 1);
        self.node("stop", number).await?;
        self.ctl(other, &["forget_cluster_node", &node.name]).await?;
        self.node("reset", number).await?;
        self.node("start", number).await?;
        script("rabbitmq", "queues", &self.node_folder(other), &["grow", &node.name, "all"]).await.map(drop)
    }

    /// Ends PostgreSQL as it ends itself after a crash of one of its processes: at once, without a
    /// checkpoint, so that it recovers when it is started.
    pub async fn end_database(&self) -> anyhow::Result<()> {
        let folder = &self.primary().folder;
        let env = std::fs::read_to_string(folder.join("env"))?;
        let pid = nix::unistd::Pid::from_raw(value(&env, "POSTGRES_PID")?.parse()?);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGQUIT)?;
        // Its record is still there, so the script waits until it is gone and nothing else.
        script("postgres", "stop", folder, &[]).await.map(drop)
    }

    pub async fn start_database(&self) -> anyhow::Result<()> {
        script("postgres", "start", &self.primary().folder, &within(&self.surroundings)).await.map(drop)
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
        let services = [("rabbitmq", "rabbitmq"), ("postgres", SERVERS[0]), ("postgres", SERVERS[1])];
        for (service, name) in services.into_iter().filter(|(_, name)| folder.join(name).join("settings").exists()) {
            if let Err(error) = script(service, "kill", &folder.join(name), &[]).await {
                eprintln!("{name} could not be ended: {error:#}");
            }
        }
    }
}

impl Server {
    /// The server in this folder, by what its start has printed.
    fn started(folder: PathBuf, printed: &str) -> anyhow::Result<Self> {
        let url = url::Url::parse(value(printed, "DATABASE_URL")?)?;
        let port = url.port().context("DATABASE_URL has a port")?;
        Ok(Self { folder, address: SocketAddr::from(([127, 0, 0, 1], port)) })
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
