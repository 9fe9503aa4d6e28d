//! How much the file has to do, and holds.

use async_trait::async_trait;

use super::SqliteLedger;
use super::store::{Result, Store};
use crate::error::LedgerError;
use crate::traffic::{Measured, Size, Traffic};

#[async_trait]
impl Measured for SqliteLedger {
    fn traffic(&self) -> Traffic {
        self.counters.traffic()
    }

    async fn size(&self) -> Result<Size, LedgerError> {
        self.read(Store::size).await
    }
}

impl Store {
    fn size(&self) -> Result<Size> {
        let one = |sql: &str| self.connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        let bytes = one("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")?;
        let throttle_bytes = one("SELECT coalesce(sum(pgsize), 0) FROM dbstat WHERE name LIKE 'throttles%'")?;
        let throttles = one("SELECT count(*) FROM throttles")?;
        let whole = |n: i64| u64::try_from(n).unwrap_or(0);
        Ok(Size { bytes: whole(bytes), throttle_bytes: whole(throttle_bytes), throttles: whole(throttles) })
    }
}
