//! `roundelay serve`

use std::net::SocketAddr;

use clap::Args;
use roundelay_admin::api;
use roundelay_admin::api::{Api, Listener, Server};
use roundelay_config::listen_address;

use super::{ConfigFile, screen, shutdown_on_signal};

/// Serves the admin API and the dashboard, until SIGTERM or SIGINT.
///
/// The default address is 127.0.0.1:15680. There, every user of this machine may look, and a token allows more, by its
/// scope. On other addresses it needs TLS, or a proxy that has TLS, and every request needs a token: see `roundelay
/// token` and docs/api.md. A worker serves the API too, when api.listen is set.
#[derive(Args)]
pub struct Serve {
    #[command(flatten)]
    config: ConfigFile,
    /// The address, in place of api.listen.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen_address)]
    listen: Option<SocketAddr>,
    /// Only print the OpenAPI document that describes the API.
    #[arg(long)]
    openapi: bool,
}

impl Serve {
    pub async fn run(self) -> anyhow::Result<()> {
        if self.openapi {
            screen::exact(format_args!("{}", api::DOCUMENT.trim_end()));
            return Ok(());
        }
        let mut config = self.config.load()?;
        let address = self.listen.or(config.api.listen).unwrap_or(api::DEFAULT_ADDRESS);
        config.api.listen = Some(address);
        let shutdown = shutdown_on_signal()?;
        let listener = Listener::bind(&config.api, address).await?;
        let api = Api::open(config).await?;
        Server::new(listener, api.clone()).await?.run(shutdown.clone()).await;
        api.close().await;
        anyhow::ensure!(shutdown.is_cancelled(), "a part of the API ended by itself; the log says which");
        tracing::info!("stopped");
        Ok(())
    }
}
