//! Where chains live for one test: a virtual host on RabbitMQ and a schema in PostgreSQL (or a file), made for
//! it and gone with it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use reqwest::{Method, StatusCode};
use roundelay::Config;
use roundelay::broker::rabbit::RabbitBroker;
use roundelay::topology::Names;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Whatever takes longer will not happen.
pub const SOON: Duration = Duration::from_secs(60);

// ---- A virtual host for one test ----

/// A virtual host that is deleted with everything in it when the test ends, also by a panic.
pub struct Vhost {
    pub name: String,
    /// AMQP URL that leads to it.
    pub amqp: String,
    pub management: String,
    /// It outlives the test.
    keep: bool,
}

impl Vhost {
    pub async fn new() -> Self {
        let from = |name: &str| {
            std::env::var(name).unwrap_or_else(|_| {
                panic!("{name} is not set: these tests need a real RabbitMQ; start them with tests/run")
            })
        };
        let (amqp, management) = (from("AMQP_URL"), from("RABBITMQ_MANAGEMENT_URL"));
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("roundelay-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut url = url::Url::parse(&amqp).expect("AMQP_URL is a URL");
        url.set_path(&name);
        let user = if url.username().is_empty() { "guest" } else { url.username() }.to_owned();
        let vhost =
            Self { amqp: url.to_string(), name, management: management.trim_end_matches('/').to_owned(), keep: false };
        vhost.call(Method::PUT, &format!("vhosts/{}", vhost.name), json!({})).await;
        let all = json!({ "configure": ".*", "write": ".*", "read": ".*" });
        vhost.call(Method::PUT, &format!("permissions/{}/{user}", vhost.name), all).await;
        vhost
    }

    /// The broker's version, and whether messages can sleep on their queues there.
    pub async fn native_delays(&self) -> (String, bool) {
        let overview = self.call(Method::GET, "overview", json!(null)).await;
        let version = overview["rabbitmq_version"].as_str().unwrap().to_owned();
        let old = ["3.", "4.0.", "4.1.", "4.2.", "4.3."].iter().any(|old| version.starts_with(old));
        (version, !old)
    }

    /// A virtual host that is there already, of a broker that the test ends itself.
    pub fn existing(name: &str, amqp: String, management: String) -> Self {
        Self { name: name.into(), amqp, management, keep: true }
    }

    /// Calls the management API and insists on success.
    pub async fn call(&self, method: Method, path: &str, body: Value) -> Value {
        let (status, answer) = api(&self.management, method.clone(), path, &body).await;
        assert!(status.is_success(), "{method} {path}: {status} {answer}");
        answer
    }

    pub async fn delete_queue(&self, queue: &str) {
        self.call(Method::DELETE, &format!("queues/{}/{queue}", self.name), json!(null)).await;
    }

    pub async fn delete_exchange(&self, exchange: &str) {
        self.call(Method::DELETE, &format!("exchanges/{}/{exchange}", self.name), json!(null)).await;
    }

    /// Closes the connections whose name begins with one of `names`, once the management API
    /// knows them (it learns of connections within five seconds).
    pub async fn kill(&self, names: &[&str]) {
        let mut missing: BTreeSet<_> = names.iter().copied().collect();
        let deadline = Instant::now() + SOON;
        while !missing.is_empty() {
            assert!(Instant::now() < deadline, "the management API never showed connections {missing:?}");
            let rows = self.call(Method::GET, &format!("vhosts/{}/connections", self.name), json!(null)).await;
            for row in rows.as_array().unwrap() {
                let shown = row["client_properties"]["connection_name"].as_str().unwrap_or_default();
                let Some(name) = missing.iter().copied().find(|name| shown.starts_with(name)) else { continue };
                let id = row["name"].as_str().unwrap();
                let id = percent_encoding::utf8_percent_encode(id, percent_encoding::NON_ALPHANUMERIC);
                self.call(Method::DELETE, &format!("connections/{id}"), json!(null)).await;
                missing.remove(name);
            }
            sleep(Duration::from_millis(100)).await; // Between two looks.
        }
    }

    pub async fn connect(&self, prefix: &str) -> RabbitBroker {
        RabbitBroker::connect(&self.amqp, Names::new(prefix)).await.expect("RabbitMQ is there")
    }

    /// A connection past everything that is tested.
    pub async fn raw(&self) -> lapin::Channel {
        let connection = lapin::Connection::connect(&self.amqp, lapin::ConnectionProperties::default()).await.unwrap();
        connection.create_channel().await.unwrap()
    }
}

impl Drop for Vhost {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        let (management, path) = (self.management.clone(), format!("vhosts/{}", self.name));
        let delete = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(api(&management, Method::DELETE, &path, &json!(null)));
        };
        let _ = std::thread::spawn(delete).join();
    }
}

pub async fn api(management: &str, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().timeout(SOON).build().unwrap();
    let request = client.request(method, format!("{management}/api/{path}"));
    let request = if body.is_null() { request } else { request.json(body) };
    let response = request.send().await.expect("RABBITMQ_MANAGEMENT_URL answers");
    let status = response.status();
    (status, response.json().await.unwrap_or_default())
}

// ---- A ledger in PostgreSQL for one test ----

/// A schema that is dropped with everything in it when the test ends, also by a panic.
pub struct Schema {
    pub name: String,
    /// A ledger's URL that leads to it. Its connections bear its name.
    pub url: String,
    database: String,
    /// It outlives the test.
    keep: bool,
}

impl Schema {
    /// That of a server which the test ends itself.
    pub fn existing(url: String) -> Self {
        Self { name: "public".into(), database: url.clone(), url, keep: true }
    }

    pub async fn new() -> Self {
        let database = std::env::var("DATABASE_URL").unwrap_or_else(|_| {
            panic!("DATABASE_URL is not set: these tests need a real PostgreSQL; start them with tests/run")
        });
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("roundelay_test_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let mark = if database.contains('?') { '&' } else { '?' };
        let url = format!("{database}{mark}application_name={name}&options=-csearch_path%3D{name}");
        let schema = Self { name, url, database, keep: false };
        postgres(&schema.database).await.batch_execute(&format!("CREATE SCHEMA {}", schema.name)).await.unwrap();
        schema
    }

    /// A connection past the ledger, into its schema.
    pub async fn raw(&self) -> tokio_postgres::Client {
        let client = postgres(&self.database).await;
        client.batch_execute(&format!("SET search_path = {}", self.name)).await.unwrap();
        client
    }

    /// Ends the ledger's connections on the server, and answers how many there were.
    pub async fn kill(&self) -> i64 {
        let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1";
        postgres(&self.database).await.query_one(kill, &[&self.name]).await.unwrap().get(0)
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        let (database, drop) = (self.database.clone(), format!("DROP SCHEMA {} CASCADE", self.name));
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { postgres(&database).await.batch_execute(&drop).await })
        };
        let _ = std::thread::spawn(run).join();
    }
}

async fn postgres(url: &str) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("DATABASE_URL leads to a PostgreSQL");
    tokio::spawn(connection);
    client
}

// ---- Where a test's chains live: a broker and a ledger of their own ----

/// A broker (embedded, or a virtual host on RabbitMQ) and a ledger (a file, or a schema in
/// PostgreSQL), for one test.
pub struct Ground {
    pub vhost: Option<Vhost>,
    pub schema: Option<Schema>,
    pub folder: TempDir,
}

impl Ground {
    pub fn embedded() -> Self {
        Self { vhost: None, schema: None, folder: tempfile::tempdir().unwrap() }
    }

    pub async fn rabbit() -> Self {
        Self { vhost: Some(Vhost::new().await), schema: None, folder: tempfile::tempdir().unwrap() }
    }

    pub async fn rabbit_and_postgres() -> Self {
        Self { schema: Some(Schema::new().await), ..Self::rabbit().await }
    }

    pub fn ledger_url(&self) -> String {
        let file = || format!("sqlite://{}", self.path("ledger.db").display());
        self.schema.as_ref().map_or_else(file, |schema| schema.url.clone())
    }

    pub fn broker_url(&self) -> String {
        self.vhost.as_ref().map_or_else(|| "embedded".into(), |vhost| vhost.amqp.clone())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A configuration on this ground; `text` has the queues and kinds.
    pub fn config_text(&self, text: &str) -> String {
        let management = self
            .vhost
            .as_ref()
            .map_or_else(String::new, |vhost| format!("broker.management = \"{}\"\n", vhost.management));
        format!("broker.url = \"{}\"\n{management}ledger.url = \"{}\"\n{text}", self.broker_url(), self.ledger_url())
    }

    pub fn config(&self, text: &str) -> Config {
        Config::parse(&self.config_text(text), "the test's configuration", []).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Writes the configuration to a file, for the program to read.
    pub fn config_file(&self, text: &str) -> PathBuf {
        let path = self.path("roundelay.toml");
        std::fs::write(&path, self.config_text(text)).unwrap();
        path
    }
}
