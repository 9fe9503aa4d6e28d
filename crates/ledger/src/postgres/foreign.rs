//! Reads from a PostgreSQL database that is not a ledger.

use std::pin::Pin;

use futures_util::StreamExt;
use roundelay_model::secret::Secret;
use tokio::task::AbortHandle;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::{Client, Error, RowStream};

use super::connect;

/// How long the server works on the query at most.
const SETTINGS: &str =
    "SET default_transaction_read_only = on; SET statement_timeout = '10min'; SET lock_timeout = '10s'";

/// The rows of a query that is under way, each as JSON. Reads as they are taken; closed when dropped.
pub struct Foreign {
    rows: Pin<Box<RowStream>>,
    _client: Client,
    connection: AbortHandle,
}

impl Foreign {
    /// Sends one SELECT to the database at `url`, with the TLS of a ledger. A standby will do.
    ///
    /// # Errors
    /// What the server, or the way to it, says.
    pub async fn select(url: &Secret, query: &str) -> Result<Self, String> {
        let mut route = connect::parse(url.expose())?;
        route.config.target_session_attrs(TargetSessionAttrs::Any);
        let connected = route.config.connect(route.connector()?).await;
        let (client, connection) = connected.map_err(|error| route.words(&error))?;
        let connection = tokio::spawn(async move { drop(connection.await) }).abort_handle();
        // The server knows how its types look in JSON. The line's end closes a comment in the query.
        let sql = format!("SELECT to_json(entity)::text FROM ({query}\n) AS entity");
        let asked = async {
            client.batch_execute(SETTINGS).await?;
            client.query_raw(&sql, std::iter::empty::<&str>()).await
        };
        match asked.await {
            Ok(rows) => Ok(Self { rows: Box::pin(rows), _client: client, connection }),
            Err(error) => {
                connection.abort();
                Err(told(error))
            }
        }
    }

    /// The next row.
    ///
    /// # Errors
    /// When the query has failed, or the connection was lost.
    pub async fn next(&mut self) -> Result<Option<String>, String> {
        let row = self.rows.next().await.transpose().map_err(told)?;
        row.map(|row| row.try_get(0).map_err(told)).transpose()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

fn told(error: Error) -> String {
    connect::words(&error)
}
