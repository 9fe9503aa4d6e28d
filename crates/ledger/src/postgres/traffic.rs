//! The traffic of this process since it opened the ledger, and the size of the whole schema.

use async_trait::async_trait;

use super::PostgresLedger;
use super::connect::words;
use crate::error::LedgerError;
use crate::traffic::{Measured, Size, Traffic};

const SIZE: &str = "
    SELECT (SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::int8 FROM pg_class
            WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace),
           pg_total_relation_size('throttles'), (SELECT count(*) FROM throttles)";

#[async_trait]
impl Measured for PostgresLedger {
    fn traffic(&self) -> Traffic {
        self.counters.traffic()
    }

    async fn size(&self) -> Result<Size, LedgerError> {
        let rows = self.reader.query(SIZE, &[]).await?;
        let row = rows.first().ok_or_else(|| LedgerError::Statement("it has not said its size".into()))?;
        let column = |n: usize| row.try_get::<_, i64>(n).map(|n| u64::try_from(n).unwrap_or(0));
        let size = || Ok(Size { bytes: column(0)?, throttle_bytes: column(1)?, throttles: column(2)? });
        size().map_err(|error: tokio_postgres::Error| LedgerError::Statement(words(&error)))
    }
}
