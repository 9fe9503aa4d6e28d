//! Which entities a kind has chains for: `roster` in `[kinds]`.

use roundelay_model::secret::Secret;
use serde::Deserialize;

use super::duration::HumanDuration;

/// Which entities a kind has chains for, and how these are called.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Roster {
    /// A template that makes the key from the columns. Without it, the column `key`.
    pub key: Option<String>,
    /// A template that makes the platform queue. A row for which it gives nothing, because the column is empty or is
    /// not there, has the queue that the kind's `queue` says.
    pub queue: Option<String>,
    /// A template that makes the priority of a chain's messages, in place of the kind's `priority`. A row for which it
    /// gives nothing has the kind's.
    pub priority: Option<String>,
    /// A template that makes the owner, with whom all chains can be paused, resumed and retired.
    pub owner: Option<String>,
    /// A template that makes a schedule of the chain's own in place of the kind's: an interval, a cron expression, or a
    /// JSON object.
    pub schedule: Option<String>,
    /// The keys of the entities themselves, where they are few and have nothing else to say, such as `["-"]`. At most
    /// one of `keys`, `file`, `http` and `sql` is possible.
    pub keys: Option<Vec<String>>,
    /// A file that lists the entities, `.csv` or `.ndjson`, for workers to read from time to time.
    pub file: Option<String>,
    /// A URL that lists them: CSV or NDJSON by the answer's `Content-Type`, else by the extension. Redirects are not
    /// followed.
    pub http: Option<Secret>,
    /// Where `http` may lead besides public addresses, as in `handler.http.allow`.
    pub allow: Vec<String>,
    /// A query that lists them.
    pub sql: Option<Sql>,
    /// How long after one reading the next begins.
    #[cfg_attr(test, schemars(extend("default" = "30m", "x-least" = "1s", "x-most" = "3660days")))]
    pub sync: Option<HumanDuration>,
    /// Whether the chains end of entities that are no longer listed. The list must have all entities of the kind then.
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub prune: Option<bool>,
}

/// A query, whose columns become the entity's fields.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Sql {
    /// The database: `sqlite://PATH` or `postgres://…`.
    pub url: Secret,
    /// One SELECT.
    pub query: String,
}
