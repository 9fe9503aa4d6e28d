//! Lists of entities: CSV or NDJSON, a row at a time.
//!
//! A bad row is an error with its line number, and the next row is read all the same. [`source`]
//! reads the list that a kind names in its configuration, and [`Sync`] makes a kind's chains follow
//! a list.

pub mod source;
pub mod sync;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};

use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use roundelay_config::{Config, Format, KindSettings, OwnSchedule};
use roundelay_model::lanes::MAX_LANES;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::enroll::{Entity, Rules};
pub use sync::{Report, Sync, SyncError, Wishes, from_source};

/// One row, by column.
pub type Row = Map<String, Value>;

/// A row that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    /// Its line in the file, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
    /// The row as far as it could be read.
    pub text: String,
}

/// A row with its line number, or why it cannot be used.
pub type Line = Result<(u64, Row), BadRow>;

/// The rows of a roster.
pub type Rows<'r> = Box<dyn Iterator<Item = Line> + 'r>;

/// Reads a roster row by row; a row that cannot be read does not stop the next.
///
/// # Errors
/// When the header of a CSV roster cannot be read.
pub fn rows<'r>(format: Format, from: impl Read + 'r) -> Result<Rows<'r>, String> {
    match format {
        Format::Csv => csv_rows(from),
        Format::Ndjson => Ok(ndjson_rows(from)),
    }
}

fn csv_rows<'r>(from: impl Read + 'r) -> Result<Rows<'r>, String> {
    // Rows of any length and in any encoding are read, so that the rejects hold what the row said.
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::Headers).flexible(true).from_reader(from);
    let header = reader.headers().map_err(|error| format!("the header line cannot be read: {error}"))?.clone();
    if header.iter().all(str::is_empty) {
        return Err("the roster is empty; its first line names the columns".into());
    }
    Ok(Box::new(reader.into_byte_records().map(move |record| {
        let record = record.map_err(|error| BadRow {
            line: error.position().map_or(0, csv::Position::line),
            reason: error.to_string(),
            text: String::new(),
        })?;
        let line = record.position().map_or(0, csv::Position::line);
        let bad = |reason: String| BadRow { line, reason, text: as_line(&record) };
        if record.len() != header.len() {
            return Err(bad(format!("{} columns, where the header has {}", record.len(), header.len())));
        }
        let cells = header.iter().zip(record.iter()).map(|(name, value)| match std::str::from_utf8(value) {
            Ok(value) => Ok((name.to_owned(), Value::from(value))),
            Err(_) => Err(bad(format!("the column `{name}` is not UTF-8"))),
        });
        Ok((line, cells.collect::<Result<_, _>>()?))
    })))
}

/// The record as a line of CSV.
fn as_line(record: &csv::ByteRecord) -> String {
    let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
    // Neither can fail: the writer writes to memory.
    let _ = writer.write_byte_record(record);
    let line = writer.into_inner().unwrap_or_default();
    String::from_utf8_lossy(&line).trim_end().to_owned()
}

fn ndjson_rows<'r>(from: impl Read + 'r) -> Rows<'r> {
    let lines = BufReader::new(from).split(b'\n').enumerate();
    Box::new(lines.filter_map(|(n, bytes)| {
        let line = n as u64 + 1;
        let bad = |reason: String, text: String| BadRow { line, reason, text };
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => return Some(Err(bad(error.to_string(), String::new()))),
        };
        let text = String::from_utf8_lossy(&bytes);
        if text.trim().is_empty() {
            return None;
        }
        Some(match serde_json::from_str(&text) {
            Ok(Value::Object(row)) => Ok((line, row)),
            Ok(_) => Err(bad("not a JSON object".into(), text.into_owned())),
            Err(error) => Err(bad(format!("not JSON: {error}"), text.into_owned())),
        })
    }))
}

/// Turns rows into entities, by the templates of a kind.
pub struct Shape<'c> {
    config: &'c Config,
    rules: Rules,
    /// Of what each row must have.
    templates: Environment<'c>,
    /// Of what a row may leave to its kind: a column that is not there gives nothing.
    optional: Environment<'c>,
    /// Whether rows can have different queues.
    several_queues: bool,
}

impl<'c> Shape<'c> {
    /// The shape of `kind`'s rosters: its key is `roster.key`, or the column `key`; its queue is
    /// `roster.queue`, if that gives one, else `queue`, or the column `queue`.
    ///
    /// # Errors
    /// When a template is not valid.
    pub fn new(config: &'c Config, kind: &'c KindSettings) -> Result<Self, String> {
        let (mut templates, mut optional) = (Environment::new(), Environment::new());
        templates.set_undefined_behavior(UndefinedBehavior::Strict);
        let key = kind.roster_key.as_deref().unwrap_or("{{ key }}");
        let queue = kind.queue.as_deref().unwrap_or("{{ queue }}");
        let owner = kind.roster_owner.as_deref().unwrap_or_default();
        let schedule = kind.roster_schedule.as_deref().unwrap_or_default();
        let wrong = |name: &str, error| format!("the template of `{name}`: {error}");
        for (name, text) in [("key", key), ("queue", queue), ("owner", owner), ("schedule", schedule)] {
            templates.add_template(name, text).map_err(|error| wrong(name, error))?;
        }
        // As in a column of SQL, null is what is not there.
        optional.set_formatter(|out, state, value| match value.is_none() {
            true => Ok(()),
            false => minijinja::escape_formatter(out, state, value),
        });
        let own_queue = kind.roster_queue.as_deref().unwrap_or_default();
        let priority = kind.roster_priority.as_deref().unwrap_or_default();
        for (name, text) in [("queue", own_queue), ("priority", priority)] {
            optional.add_template(name, text).map_err(|error| wrong(name, error))?;
        }
        let several_queues = kind.roster_queue.is_some() || !config.queues.contains_key(queue);
        Ok(Self { config, rules: Rules::new(config, kind), templates, optional, several_queues })
    }

    /// The entity of a row. Its payload is the whole row.
    ///
    /// # Errors
    /// Why the row cannot be used.
    pub fn entity(&self, row: Row) -> Result<Entity, String> {
        let key = self.render("key", &row)?;
        let queue = match self.optional("queue", &row)? {
            Some(queue) => queue,
            None => self.render("queue", &row)?,
        };
        let not_a_number =
            |text: String| format!("its priority `{text}` is no whole number from 0 to {}", MAX_LANES - 1);
        let priority = self.optional("priority", &row)?;
        let priority = priority.map(|text| text.parse().map_err(|_| not_a_number(text))).transpose()?;
        let owner = Some(self.render("owner", &row)?).filter(|owner| !owner.is_empty());
        let schedule = self.render("schedule", &row)?;
        let own = Some(schedule.trim()).filter(|text| !text.is_empty()).map(OwnSchedule::from_words).transpose()?;
        let payload = Value::Object(row).to_string();
        let entity =
            Entity { key, queue, priority, payload, owner, schedule: own.map(|own| own.text()), first_due: None };
        self.rules.check(&entity)?;
        Ok(entity)
    }

    /// What a row's own template gives, if it gives anything.
    fn optional(&self, name: &str, row: &Row) -> Result<Option<String>, String> {
        let text = Self::rendered(&self.optional, name, row)?;
        Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty()))
    }

    fn render(&self, name: &str, row: &Row) -> Result<String, String> {
        Self::rendered(&self.templates, name, row)
    }

    fn rendered(templates: &Environment<'_>, name: &str, row: &Row) -> Result<String, String> {
        let template = templates.get_template(name).map_err(|error| error.to_string())?;
        template.render(Serde(row)).map_err(|error| {
            let columns: Vec<&str> = row.keys().map(String::as_str).collect();
            format!(
                "its {name} cannot be made by `{}` from the columns {}: {error}",
                template.source(),
                columns.join(", ")
            )
        })
    }
}

/// Sees to it that a key has one queue within a source: two rows of one key would be one chain, which the
/// later row takes to its queue.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// By the key's digest, which is shorter than most keys, and of which no two are the same by chance: the line,
    /// and the number of the queue among those of the configuration.
    seen: HashMap<[u8; 16], (u64, usize)>,
}

impl Places {
    /// Notes the entity of the row in this line.
    ///
    /// # Errors
    /// When an earlier row gives its key to another queue.
    pub(crate) fn take(&mut self, shape: &Shape<'_>, line: u64, entity: &Entity) -> Result<(), String> {
        if !shape.several_queues {
            return Ok(());
        }
        let queues = || shape.config.queues.keys();
        let queue = queues().position(|queue| *queue == entity.queue).unwrap_or_default();
        let digest = Sha256::digest(entity.key.as_bytes());
        let mut short = [0; 16];
        short.copy_from_slice(&digest[..16]);
        let (first, there) = *self.seen.entry(short).or_insert((line, queue));
        if there == queue {
            return Ok(());
        }
        let there = queues().nth(there).map_or("another", String::as_str);
        Err(format!(
            "its key `{}` is also that of line {first}, on the queue `{there}`, and this row's queue is `{}`: one key is \
             one chain. Name in roster.key what tells the two apart",
            entity.key, entity.queue
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roundelay_config::Format;
    use std::path::Path;

    const CONFIG: &str = r#"
        [queues.sync-npm]
        [kinds.sync]
        queue = "sync-{{ platform }}"
        every = "10s"
        roster.key = "{{ platform }}/{{ name }}"
    "#;

    fn entities(format: Format, text: &str) -> Vec<Result<Entity, (u64, String)>> {
        let config = Config::parse(CONFIG, "test", []).unwrap();
        let shape = Shape::new(&config, &config.kinds["sync"]).unwrap();
        rows(format, text.as_bytes())
            .unwrap()
            .map(|row| match row {
                Ok((line, row)) => shape.entity(row).map_err(|reason| (line, reason)),
                Err(bad) => Err((bad.line, bad.reason)),
            })
            .collect()
    }

    #[test]
    fn good_rows_go_in_and_bad_ones_say_where_and_why() {
        let csv = "platform,name,version\nnpm,@types/node,1\nnpm\npypi,six,2\nnpm,,3\nnpm,ms,\"2\n1\"\nnpm,last,4\n";
        let got = entities(Format::Csv, csv);
        assert_eq!(got[0].as_ref().unwrap().key, "npm/@types/node");
        assert_eq!(got[1].as_ref().unwrap_err(), &(3, "1 columns, where the header has 3".to_owned()));
        assert_eq!(got[2].as_ref().unwrap_err().0, 4);
        assert!(got[2].as_ref().unwrap_err().1.contains("there is no [queues.sync-pypi]"));
        assert_eq!(got[3].as_ref().unwrap().key, "npm/", "an empty cell is the roster's own business");
        assert_eq!(got[5].as_ref().unwrap().payload, r#"{"name":"last","platform":"npm","version":"4"}"#);
    }

    #[test]
    fn a_row_without_a_queue_has_its_kinds() {
        let config = "[queues.default]\n[queues.fast]\n[kinds.sync]\nqueue = \"default\"\nevery = \"10s\"\n\
                      roster.queue = \"{{ queue }}\"\n";
        let queues = |config: &str, roster: &str| -> Vec<Result<String, String>> {
            let config = Config::parse(config, "test", []).unwrap();
            let shape = Shape::new(&config, &config.kinds["sync"]).unwrap();
            let rows = rows(Format::Ndjson, roster.as_bytes()).unwrap();
            rows.map(|row| shape.entity(row.unwrap().1).map(|entity| entity.queue)).collect()
        };
        let roster = "{\"key\":\"a\",\"queue\":\"fast\"}\n{\"key\":\"b\",\"queue\":\"\"}\n{\"key\":\"c\"}\n\
                      {\"key\":\"d\",\"queue\":null}\n{\"key\":\"e\",\"queue\":\"slow\"}\n";
        let got = queues(config, roster);
        let good: Vec<&str> = got[..4].iter().map(|queue| queue.as_deref().unwrap()).collect();
        assert_eq!(good, ["fast", "default", "default", "default"]);
        assert!(got[4].as_ref().unwrap_err().contains("there is no [queues.slow]"), "{got:?}");
        // A kind that has none either says so.
        let none = config.replace("queue = \"default\"\n", "");
        let why = queues(&none, "{\"key\":\"c\"}\n").remove(0).unwrap_err();
        assert!(why.contains("its queue cannot be made by `{{ queue }}`"), "{why}");
    }

    #[test]
    fn a_row_s_priority_is_its_class_and_its_kinds_without_one() {
        let config = "[queues.work]\nlanes = 3\n[kinds.sync]\nqueue = \"work\"\nevery = \"10s\"\n\
                      roster.priority = \"{% if class == 'tracked' %}2{% else %}{{ class }}{% endif %}\"\n";
        let config = Config::parse(config, "test", []).unwrap();
        let shape = Shape::new(&config, &config.kinds["sync"]).unwrap();
        let roster = "key,class\na,tracked\nb,\nc,0\nd,3\ne,-1\nf,urgent\ng,300\n";
        let rows = rows(Format::Csv, roster.as_bytes()).unwrap();
        let got: Vec<_> = rows.map(|row| shape.entity(row.unwrap().1).map(|entity| entity.priority)).collect();
        assert_eq!(got[..3], [Ok(Some(2)), Ok(None), Ok(Some(0))]);
        for (n, words) in [
            (3, "priority 3 is more than queues.work.lanes = 3 allows; the highest is 2"),
            (4, "its priority `-1` is no whole number from 0 to 9"),
            (5, "`urgent` is no whole number"),
            (6, "`300` is no whole number"),
        ] {
            let why = got[n].as_ref().unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn a_key_has_one_queue_within_a_source() {
        let config = Config::parse(&format!("{CONFIG}\n[queues.sync-pypi]\n"), "test", []).unwrap();
        let shape = Shape::new(&config, &config.kinds["sync"]).unwrap();
        let entity = |key: &str, queue: &str| Entity::new(key, queue, "null");
        let mut places = Places::default();
        assert_eq!(places.take(&shape, 2, &entity("a", "sync-npm")), Ok(()));
        assert_eq!(places.take(&shape, 3, &entity("b", "sync-pypi")), Ok(()));
        assert_eq!(places.take(&shape, 4, &entity("a", "sync-npm")), Ok(()), "twice the same");
        let why = places.take(&shape, 5, &entity("a", "sync-pypi")).unwrap_err();
        assert!(why.contains("`a` is also that of line 2, on the queue `sync-npm`") && why.contains("`sync-pypi`"));
    }

    #[test]
    fn a_row_that_cannot_be_read_is_kept_as_it_was() {
        let csv: &[u8] = b"platform,name\nnpm\nnpm,a\xffb\nnpm,\"x,\"\"y\"\"\",1\nnpm,ms\n";
        let got: Vec<_> = rows(Format::Csv, csv).unwrap().collect();
        let bad: Vec<_> = got.iter().filter_map(|row| row.as_ref().err()).collect();
        let told: Vec<_> = bad.iter().map(|bad| (bad.line, bad.text.as_str())).collect();
        assert_eq!(told, [(2, "npm"), (3, "npm,a\u{fffd}b"), (4, "npm,\"x,\"\"y\"\"\",1")]);
        assert_eq!(bad[1].reason, "the column `name` is not UTF-8");
        assert!(got[3].is_ok());
    }

    #[test]
    fn ndjson_reads_the_same() {
        let text = "{\"platform\":\"npm\",\"name\":\"ms\",\"n\":1}\n\n[1]\n{oops\n{\"platform\":\"npm\"}\n";
        let got = entities(Format::Ndjson, text);
        assert_eq!(got.len(), 4);
        assert_eq!(got[0].as_ref().unwrap().key, "npm/ms");
        assert_eq!(got[1].as_ref().unwrap_err(), &(3, "not a JSON object".to_owned()));
        assert_eq!(got[2].as_ref().unwrap_err().0, 4);
        let (line, reason) = got[3].as_ref().unwrap_err();
        assert!(*line == 5 && reason.contains("key") && reason.contains("platform"), "{reason}");
    }

    #[test]
    fn an_empty_roster_is_an_error() {
        assert!(rows(Format::Csv, "".as_bytes()).is_err());
        assert!(Format::of(Path::new("x.xlsx")).is_err());
    }
}
