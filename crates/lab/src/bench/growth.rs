//! What the cost of a cycle depends on: the same measurement with more of one thing, row by row.

use super::chains::{Load, Settings};

/// What there is more of in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Chains that sleep beside those that run.
    Asleep,
    /// Workers, and raw loops.
    Workers,
    /// Bytes of each chain's payload.
    Payload,
    /// Owners, among whom the chains are divided.
    Owners,
    /// Kinds, among which the chains are divided.
    Kinds,
}

impl What {
    /// All of it, in the order of the table.
    pub const ALL: [Self; 5] = [Self::Asleep, Self::Workers, Self::Payload, Self::Owners, Self::Kinds];

    /// Its name in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Asleep => "chains asleep",
            Self::Workers => "workers",
            Self::Payload => "bytes of payload",
            Self::Owners => "owners",
            Self::Kinds => "kinds",
        }
    }

    /// The settings of a row: those of `base` with `count` of it (pure).
    pub fn row(self, base: &Settings, count: usize) -> Settings {
        let Settings { load, workers, .. } = base.clone();
        let (load, workers) = match self {
            Self::Asleep => (Load { asleep: count, ..load }, workers),
            Self::Workers => (load, count.max(1)),
            Self::Payload => (Load { payload: count, ..load }, workers),
            Self::Owners => (Load { owners: count, ..load }, workers),
            Self::Kinds => (Load { kinds: count.max(1), ..load }, workers),
        };
        Settings { load, workers, ..base.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_row_has_more_of_one_thing_and_else_what_all_have() {
        let base = Settings {
            broker: "embedded".into(),
            ledger: "sqlite://x".into(),
            workers: 2,
            chains: 10,
            rate: 0,
            delay: Duration::from_secs(1),
            length: Duration::from_secs(1),
            turns: 1,
            concurrency: 8,
            delays: "auto".into(),
            load: Load { payload: 7, ..Load::default() },
            allocations: None,
        };
        let rows = What::ALL.map(|what| {
            let row = what.row(&base, 3);
            (row.load.asleep, row.workers, row.load.payload, row.load.owners, row.load.kinds, row.chains)
        });
        let expected =
            [(3, 2, 7, 0, 1, 10), (0, 3, 7, 0, 1, 10), (0, 2, 3, 0, 1, 10), (0, 2, 7, 3, 1, 10), (0, 2, 7, 0, 3, 10)];
        assert_eq!(rows, expected);
    }
}
