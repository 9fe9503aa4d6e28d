//! `[kinds.<name>.roster]`: where a kind's entities are listed, checked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use roundelay_ledger::postgres;
use roundelay_model::egress::Reach;
use roundelay_model::job::check_name;
use roundelay_model::secret::Secret;

use super::raw;
use crate::problems::{Problems, TEN_YEARS};

/// How often a source is read when nothing is said.
const SYNC: Duration = Duration::from_secs(30 * 60);
/// A source is not asked more often than this.
const MIN_SYNC: Duration = Duration::from_secs(1);

/// How a roster is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated with a header line.
    Csv,
    /// One JSON object per line.
    Ndjson,
}

impl Format {
    /// By the file's extension.
    ///
    /// # Errors
    /// When the extension is neither `csv` nor `ndjson` (or `jsonl`).
    pub fn of(path: &Path) -> Result<Self, String> {
        let extension = path.extension().and_then(|extension| extension.to_str());
        extension
            .and_then(Self::by_extension)
            .ok_or_else(|| format!("{}: a roster's name ends in .csv or .ndjson", path.display()))
    }

    fn by_extension(extension: &str) -> Option<Self> {
        match extension {
            "csv" => Some(Self::Csv),
            "ndjson" | "jsonl" => Some(Self::Ndjson),
            _ => None,
        }
    }
}
/// Where a kind's entities are listed, and how its chains follow the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RosterSettings {
    /// What is read.
    pub source: RosterSource,
    /// How long after one synchronisation the next begins.
    pub sync: Duration,
    /// Whether chains end whose entities have left the list.
    pub prune: bool,
}

/// What a roster is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RosterSource {
    /// These keys, which are in the configuration itself.
    Keys(Vec<String>),
    /// A file, CSV or NDJSON by its extension.
    File(PathBuf),
    /// A URL to GET, CSV or NDJSON by its `Content-Type`, or else by its path's extension.
    Http {
        /// What is asked.
        url: Secret,
        /// Where that may lead besides public addresses.
        allow: Reach,
    },
    /// A query; its columns are the entity's fields.
    Sql {
        /// Of which database.
        database: RosterDatabase,
        /// One SELECT.
        query: String,
    },
}

/// What a query is sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RosterDatabase {
    /// A SQLite file, which is only read.
    Sqlite(PathBuf),
    /// A PostgreSQL server.
    Postgres(Secret),
}

/// The checked source of the kind `name`, if it has one.
pub(super) fn check(problems: &mut Problems, name: &str, raw: raw::Roster, chains: bool) -> Option<RosterSettings> {
    let at = |key: &'static str| ["kinds", name, "roster", key];
    let named = [raw.keys.is_some(), raw.file.is_some(), raw.http.is_some(), raw.sql.is_some()]
        .iter()
        .filter(|there| **there)
        .count();
    let allow = Reach::new(&raw.allow).unwrap_or_else(|message| {
        problems.add(&at("allow"), message);
        Reach::default()
    });
    if !raw.allow.is_empty() && raw.http.is_none() {
        problems.add(&at("allow"), "goes with `http`");
    }
    if named == 0 {
        for (key, there) in [("sync", raw.sync.is_some()), ("prune", raw.prune.is_some())] {
            if there {
                problems.add(&at(key), "there is no source to read: set `keys`, `file`, `http` or `sql` beside it");
            }
        }
        return None;
    }
    if named > 1 {
        problems.add(&["kinds", name, "roster"], "names several sources; keep one of `keys`, `file`, `http` and `sql`");
    }
    if !chains {
        problems.add(
            &["kinds", name, "roster"],
            format!("the kind has no chains to begin; set kinds.{name}.every, or `cron`"),
        );
    }
    let sync = raw.sync.map_or(SYNC, |sync| sync.0);
    problems.range(&at("sync"), sync, MIN_SYNC, TEN_YEARS);
    let source = match (raw.keys, raw.file, raw.http, raw.sql) {
        (Some(keys), ..) => {
            check_keys(problems, &at("keys"), &keys);
            RosterSource::Keys(keys)
        }
        (_, Some(file), ..) => {
            let path = PathBuf::from(file);
            if let Err(reason) = Format::of(&path) {
                problems.add(&at("file"), reason);
            }
            RosterSource::File(path)
        }
        (.., Some(url), _) => {
            let good = url::Url::parse(url.expose())
                .is_ok_and(|url| ["http", "https"].contains(&url.scheme()) && url.has_host());
            if !good {
                problems.add(&at("http"), format!("`{url}` is no http:// or https:// URL"));
            }
            RosterSource::Http { url, allow }
        }
        (.., sql) => {
            let sql = sql?;
            let at = |key: &'static str| ["kinds", name, "roster", "sql", key];
            query(problems, &at("url"), &at("query"), sql.url, &sql.query)
        }
    };
    Some(RosterSettings { source, sync, prune: raw.prune.unwrap_or(false) })
}

/// A query of a database, checked; with the places of the two settings.
pub(super) fn query(
    problems: &mut Problems,
    at_url: &[&str],
    at_query: &[&str],
    url: Secret,
    query: &str,
) -> RosterSource {
    let query = query.trim().trim_end_matches(';').to_owned();
    if query.is_empty() {
        problems.add(at_query, "is empty; write one SELECT");
    }
    RosterSource::Sql { database: database(problems, at_url, url), query }
}

fn check_keys(problems: &mut Problems, path: &[&str], keys: &[String]) {
    if keys.is_empty() {
        problems.add(path, "is empty; name at least one key");
    }
    for (n, key) in keys.iter().enumerate() {
        if let Err(error) = check_name("key", key) {
            problems.add(path, error.to_string());
        }
        if keys[..n].contains(key) {
            problems.add(path, format!("has `{key}` twice"));
        }
    }
}

fn database(problems: &mut Problems, path: &[&str], url: Secret) -> RosterDatabase {
    if let Some(file) = url.expose().strip_prefix("sqlite://").filter(|file| !file.is_empty() && *file != ":memory:") {
        return RosterDatabase::Sqlite(file.into());
    }
    if !["postgres://", "postgresql://"].iter().any(|scheme| url.expose().starts_with(scheme)) {
        problems.add(path, format!("`{url}` is neither sqlite://PATH nor postgres://…"));
    } else if let Err(reason) = postgres::check_url(url.expose()) {
        problems.add(path, reason);
    }
    RosterDatabase::Postgres(url)
}
