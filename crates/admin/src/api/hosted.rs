//! The API inside a worker.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt;
use roundelay_config::Config;
use roundelay_engine::StartError;
use roundelay_engine::companion::{Companion, Handle, Task};

use crate::api::server::{Listener, Server};
use crate::api::state::Api;

/// Answers the API at `api.listen`, on the connections of the worker that it runs in.
#[derive(Default)]
pub struct HostedApi {
    listener: Option<Listener>,
    api: Option<Arc<Api>>,
}

#[async_trait]
impl Companion for HostedApi {
    fn setting(&self) -> Option<&'static str> {
        Some("api.listen")
    }

    async fn bind(&mut self, config: &Config) -> Result<(), StartError> {
        if let Some(address) = config.api.listen {
            self.listener = Some(Listener::bind(&config.api, address).await?);
        }
        Ok(())
    }

    async fn serve(&mut self, worker: &Handle) -> Result<Vec<Task>, StartError> {
        let Some(listener) = self.listener.take() else { return Ok(Vec::new()) };
        let api = Api::of_worker(worker.config.clone(), worker.connections.clone()).await?;
        self.api = Some(api.clone());
        let server = Server::new(listener, api).await?;
        Ok(vec![("the API", server.run(worker.stop.clone()).boxed())])
    }

    fn reloaded(&self, config: &Config) {
        if let Some(api) = &self.api {
            api.take_over(config.clone());
        }
    }
}
