//! How the ledger stores a throttle. Ledgers have such rows: the one-letter names and their meanings must stay,
//! whatever the fields are called here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::breaker::Circuit;
use super::holds::Holds;
use super::pace::Pace;
use super::{Micros, State, Waiting, is_default};

/// A [`State`] in JSON: see its parts for what the fields mean.
#[derive(Serialize, Deserialize)]
pub(super) struct Row {
    #[serde(rename = "t", default)]
    seen: Micros,
    #[serde(rename = "d", default)]
    interval: f64,
    #[serde(rename = "n", default)]
    tat: f64,
    #[serde(rename = "q", default)]
    unslowed_tat: f64,
    #[serde(rename = "c", default, skip_serializing_if = "BTreeMap::is_empty")]
    counted: BTreeMap<u64, Vec<(Micros, u32)>>,
    #[serde(rename = "w", default, skip_serializing_if = "BTreeMap::is_empty")]
    waiting: BTreeMap<i32, Waiting>,
    #[serde(rename = "l", default, skip_serializing_if = "is_default")]
    last_went_lower: bool,
    #[serde(rename = "h", default, skip_serializing_if = "is_default")]
    held_until: Micros,
    #[serde(rename = "y", default, skip_serializing_if = "is_default")]
    why: String,
    #[serde(rename = "g", default, skip_serializing_if = "is_default")]
    slow_start_until: Micros,
    #[serde(rename = "p", default, skip_serializing_if = "is_default")]
    tripped: bool,
    #[serde(rename = "x", default, skip_serializing_if = "is_default")]
    failures: u32,
    #[serde(rename = "r", default, skip_serializing_if = "is_default")]
    failed_probes: u32,
    #[serde(rename = "b", default, skip_serializing_if = "is_default")]
    budget: (f64, Micros),
    #[serde(rename = "o", default, skip_serializing_if = "is_default")]
    released: i64,
    #[serde(rename = "a", default, skip_serializing_if = "is_default")]
    as_ordered: (Micros, Micros),
    #[serde(rename = "e", default, skip_serializing_if = "is_default")]
    costly_at: Micros,
}

impl From<Row> for State {
    fn from(row: Row) -> Self {
        let Row {
            seen,
            interval,
            tat,
            unslowed_tat,
            counted,
            waiting,
            last_went_lower,
            tripped,
            failures,
            failed_probes,
            ..
        } = row;
        let Row { held_until, why, slow_start_until, budget, released, as_ordered, costly_at, .. } = row;
        Self {
            seen,
            waiting,
            last_went_lower,
            pace: Pace { interval, tat, unslowed_tat, counted, costly_at },
            holds: Holds { held_until, why, slow_start_until, budget, released, ordered: 0, as_ordered },
            circuit: Circuit { tripped, failures, failed_probes },
        }
    }
}

impl From<State> for Row {
    fn from(state: State) -> Self {
        let State { seen, waiting, last_went_lower, pace, holds, circuit } = state;
        let Pace { interval, tat, unslowed_tat, counted, costly_at } = pace;
        // `ordered` is not stored: each request brings the operator's orders along.
        let Holds { held_until, why, slow_start_until, budget, released, ordered: _, as_ordered } = holds;
        let Circuit { tripped, failures, failed_probes } = circuit;
        Self {
            seen,
            interval,
            tat,
            unslowed_tat,
            counted,
            waiting,
            last_went_lower,
            held_until,
            why,
            slow_start_until,
            tripped,
            failures,
            failed_probes,
            budget,
            released,
            as_ordered,
            costly_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that ledgers have from before the state had parts.
    #[test]
    fn row_of_an_older_version_is_read_and_written_unchanged() {
        let rows = [
            r#"{"t":0,"d":0.0,"n":0.0,"q":0.0}"#,
            r#"{"t":1700000000000000,"d":12200000.5,"n":1700000012200000.0,"q":1700000012200000.0,"c":{"60000":[[1700000000000000,1]]}}"#,
            r#"{"t":1700000000000000,"d":12200000.0,"n":1700000036600000.0,"q":1700000012200000.0,"c":{"60000":[[1700000000000000,1],[1700000003750000,2]],"86400000":[[1700000100000000,7]]},"w":{"-3":{"until":1700000000250000,"passed":0},"5":{"until":1700000000250000,"passed":2,"large":[3,1700000000300000],"less":true}},"l":true,"h":1700000020000000,"y":"HTTP 429","g":1700000080000000,"p":true,"x":4,"r":2,"b":[30000000.0,9223372036854775807],"o":1700000000000001,"a":[1700000030000000,-5000000]}"#,
            r#"{"t":1700000000000000,"d":12200000.0,"n":1700000024400000.0,"q":1700000024400000.0,"e":1700000000000000}"#,
        ];
        for row in rows {
            let state: State = serde_json::from_str(row).unwrap();
            assert_eq!(serde_json::to_string(&state).unwrap(), row);
        }
        assert_eq!(serde_json::from_str::<State>("{}").unwrap(), State::default(), "what is not there is as at first");
    }
}
