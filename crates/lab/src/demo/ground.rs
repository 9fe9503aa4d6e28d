//! The resources of a demo: a folder, a ledger and queues of its own, which are all removed at the end, and a dashboard
//! while it runs.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use roundelay_admin::api::{Api, Listener, Server};
use roundelay_broker::BrokerUrl;
use roundelay_config::Config;
use roundelay_engine::{Connections, StartError, connect_broker};
use roundelay_ledger::postgres::OwnSchema;
use roundelay_model::clock::{Clock, Entropy};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The folder and the ledger of a demo.
pub struct Ground {
    folder: Folder,
    ledger: String,
    schema: Option<OwnSchema>,
}

impl Ground {
    /// New resources for the demo `name`. In `postgres://…` the ledger gets a schema of its own, unless the URL names
    /// one; `sqlite://…` is used as it is; with nothing it is a file in the folder.
    ///
    /// # Errors
    /// When the folder or the schema cannot be created.
    pub async fn new(name: &str, ledger: Option<&str>) -> Result<Self, StartError> {
        let token = Entropy::from_os().token();
        let folder = Folder::new(&format!("roundelay-demo-{name}-{token}"))?;
        let schema = match ledger {
            Some(url) if url.starts_with("postgres") && !url.contains("options=") => {
                Some(OwnSchema::create(url, &format!("roundelay_demo_{token}")).await?)
            }
            _ => None,
        };
        let ledger = match (&schema, ledger) {
            (Some(schema), _) => schema.url().to_owned(),
            (None, Some(url)) => url.to_owned(),
            (None, None) => format!("sqlite://{}/ledger.db", folder.0.display()),
        };
        Ok(Self { folder, ledger, schema })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// The URL of the ledger.
    pub fn ledger(&self) -> &str {
        &self.ledger
    }

    /// Removes the queues of `config` from a broker that others may use, then the schema and the folder. If something
    /// cannot be removed, a note says so, and the demo does not fail: the next demo removes queues before it begins.
    pub async fn clear(self, config: Option<&Config>) {
        if let Some(config) = config.filter(|config| !matches!(config.broker.url, BrokerUrl::Embedded))
            && let Err(error) = remove_queues(config).await
        {
            tracing::warn!(%error, "the demo's queues are still on the broker");
        }
        if let Some(schema) = self.schema
            && let Err(error) = schema.remove().await
        {
            tracing::warn!(%error, "the demo's schema is still in the database");
        }
    }
}

/// Uses a connection of its own: the engine has closed its one.
async fn remove_queues(config: &Config) -> Result<(), StartError> {
    let broker = connect_broker(config, &Clock::System).await?;
    broker.remove(&config.topology()).await?;
    broker.close().await;
    Ok(())
}

/// A temporary folder that only its user can read, removed with this value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Self, StartError> {
        let path = std::env::temp_dir().join(name);
        // The configuration in it may hold the credentials of a broker and of a ledger.
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| StartError::Setup(format!("cannot make the folder {}: {error}", path.display())))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The dashboard of a running demo, on a free port of 127.0.0.1.
pub struct Dashboard {
    /// The address of the dashboard.
    pub address: SocketAddr,
    stop: CancellationToken,
    server: JoinHandle<()>,
}

impl Dashboard {
    /// Starts the dashboard.
    ///
    /// # Errors
    /// When there is no port to listen on, or the second connection to the ledger cannot be opened.
    pub async fn open(config: &Config, connections: &Connections) -> Result<Self, StartError> {
        let listener = Listener::bind(&config.api, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
        let address = listener.address();
        let api: Arc<Api> = Api::of_worker(config.clone(), connections.clone()).await?;
        let stop = CancellationToken::new();
        let server = Server::new(listener, api).await?.run(stop.clone());
        Ok(Self { address, server: tokio::spawn(server), stop })
    }

    pub async fn close(self) {
        self.stop.cancel();
        let _ = self.server.await;
    }
}
