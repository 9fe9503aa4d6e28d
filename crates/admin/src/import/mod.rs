//! Imports the schedules of other schedulers as a configuration of Roundelay (pure).
//!
//! Each source is text that its scheduler prints. The result is an [`Import`]: kinds with their schedules and handlers,
//! rosters that list the chains, and notes. Every entry of the source is in a kind or in a note that says why not.

pub mod bullmq;
pub mod celery;
mod cron;
pub mod crontab;
mod django;
pub mod laravel;

use std::collections::BTreeMap;
use std::time::Duration;

use roundelay_config::OwnSchedule;
use roundelay_engine::roster::Row;
use roundelay_model::clock::short_duration;
use roundelay_model::schedule::Cron;
use serde::Serialize;
use serde_json::json;
use toml::Value as Toml;

pub use cron::{Dialect, translate};

/// The longest timeout: a run without a limit in the source gets this one.
const MAX_TIMEOUT: &str = "24h";
/// The longest name of a kind that is made from a command, in characters.
const MAX_KIND_CHARS: usize = 40;

/// The result of an import.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Import {
    pub queues: Vec<String>,
    /// The kinds, in the order of the source.
    pub kinds: Vec<Kind>,
    /// The rosters, by the name of their file.
    pub rosters: BTreeMap<String, Vec<Row>>,
    /// The notes for the user.
    pub notes: Vec<Note>,
    /// How many entries became chains.
    pub carried: usize,
}

/// A kind, as it is written into the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    pub name: String,
    /// The entries of the source, a line each.
    pub source: Vec<String>,
    /// Its settings, by their dotted keys.
    pub settings: Vec<(&'static str, Toml)>,
    /// The list of its chains.
    pub roster: Roster,
}

/// The list of a kind's chains.
#[derive(Clone, Debug, PartialEq)]
pub enum Roster {
    /// In the configuration itself: the chains have nothing but their keys.
    Keys(Vec<String>),
    /// In a file of this name.
    File(String),
}

/// How much a note matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weight {
    /// This entry is not in the result.
    LeftOut,
    /// This entry is in the result, and something about it differs.
    Differs,
    /// About the source as a whole.
    Note,
}

/// Something that could not be imported, or differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    pub weight: Weight,
    /// Where it is: a line, or the name of an entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// The entry, as the source has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<String>,
    /// What is the case, and why.
    pub why: String,
    /// What to do.
    #[serde(rename = "do")]
    pub advice: String,
}

/// What the user says about an import.
#[derive(Clone, Debug)]
pub struct Wishes {
    /// The time zone of entries that name none; UTC when this is empty, too.
    pub zone: Option<String>,
    /// The platform queue of all kinds.
    pub queue: String,
    /// The URL to which jobs of kinds that call a service are POSTed, as in `handler.http.url`.
    pub handler_url: String,
}

/// When an entry recurs.
#[derive(Clone, Debug, PartialEq)]
enum Recurs {
    /// By a cron expression, in a time zone.
    Cron(String, String),
    /// At a fixed rate (`nominal`), or this long after the start of the run before.
    Every(Duration, &'static str),
    /// Once, at this time.
    At(String),
}

impl Recurs {
    /// As settings of a kind.
    fn settings(&self) -> Vec<(&'static str, Toml)> {
        match self {
            Self::Cron(cron, zone) => vec![("cron", text(cron)), ("zone", text(zone))],
            Self::Every(every, from) => vec![("every", text(&short_duration(*every))), ("from", text(from))],
            Self::At(at) => vec![("at", text(at))],
        }
    }

    /// As a chain's own schedule.
    fn own(&self) -> String {
        let own = match self {
            Self::Cron(cron, zone) => json!({ "cron": cron, "zone": zone }),
            Self::Every(every, from) => json!({ "every": short_duration(*every), "from": from }),
            Self::At(at) => json!({ "at": at }),
        };
        own.to_string()
    }

    /// Whether Roundelay can follow it.
    fn check(&self) -> Result<(), String> {
        OwnSchedule::parse(&self.own()).map(|_| ())
    }
}

/// A cron expression of another scheduler, in a time zone, if Roundelay can follow it.
fn by_cron(expression: &str, dialect: Dialect, zone: &str) -> Result<Recurs, String> {
    let cron = translate(expression, dialect)?;
    Cron::parse(&cron, Some(zone))?;
    Ok(Recurs::Cron(cron, zone.to_owned()))
}

/// An entry that calls a service: the entries of one task are chains of one kind.
struct Call {
    /// The task that is called: the kind.
    task: String,
    /// The name of the entry: the key.
    name: String,
    recurs: Recurs,
    queue: String,
    /// Additional settings of the kind, which separate the kinds of one task.
    settings: Vec<(&'static str, Toml)>,
    /// The payload, beside `key` and `schedule`.
    payload: Row,
}

impl Import {
    fn note(&mut self, weight: Weight, place: &str, entry: &str, why: impl Into<String>, advice: &str) {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let (why, advice) = (why.into(), advice.to_owned());
        self.notes.push(Note { weight, place: some(place), entry: some(entry), why, advice });
    }

    /// Adds notes about the source as a whole: why, and what to do.
    fn general(&mut self, notes: impl IntoIterator<Item = (&'static str, &'static str)>) {
        for (why, advice) in notes {
            self.note(Weight::Note, "", "", why, advice);
        }
    }

    fn queue(&mut self, name: &str) {
        if !self.queues.iter().any(|known| known == name) {
            self.queues.push(name.to_owned());
        }
    }

    /// A name that no kind has yet: `wanted`, or `wanted` with a number.
    fn free_name(&self, wanted: &str) -> String {
        let taken = |name: &str| self.kinds.iter().any(|kind| kind.name == name);
        let numbered = (2..).map(|n| format!("{wanted}-{n}"));
        std::iter::once(wanted.to_owned()).chain(numbered).find(|name| !taken(name)).unwrap_or_default()
    }

    /// Adds a kind that starts a program, with the one chain `key` that all such kinds of a source have.
    fn add_program(&mut self, name: &str, source: String, key: &str, settings: Vec<(&'static str, Toml)>) {
        let (name, roster) = (self.free_name(name), Roster::Keys(vec![key.to_owned()]));
        self.kinds.push(Kind { name, source: vec![source], settings, roster });
        self.carried += 1;
    }

    /// Adds kinds for calls of a service, with a chain for each call.
    fn add_calls(&mut self, calls: Vec<Call>, wishes: &Wishes) {
        let mut kinds: Vec<Vec<Call>> = Vec::new();
        for call in calls {
            let alike = |kind: &&mut Vec<Call>| {
                let first = &kind[0];
                first.task == call.task && first.queue == call.queue && first.settings == call.settings
            };
            match kinds.iter_mut().find(alike) {
                Some(kind) => kind.push(call),
                None => kinds.push(vec![call]),
            }
        }
        for calls in kinds {
            let first = &calls[0];
            self.queue(&first.queue);
            let name = self.free_name(&first.task);
            let mut settings = vec![("queue", text(&first.queue))];
            settings.extend(first.recurs.settings());
            settings.extend(first.settings.iter().cloned());
            let several = calls.iter().any(|call| call.recurs != first.recurs);
            if several {
                settings.push(("roster.schedule", text("{{ schedule }}")));
            }
            settings.push(("handler.http.url", text(&wishes.handler_url)));
            let source = calls.iter().map(|call| call.name.clone()).collect();
            self.carried += calls.len();
            let rows = calls.into_iter().map(|call| {
                let mut row = Row::from_iter([("key".to_owned(), call.name.into())]);
                if several {
                    row.insert("schedule".into(), call.recurs.own().into());
                }
                row.extend(call.payload);
                row
            });
            let roster = self.list(&name, rows.collect());
            self.kinds.push(Kind { name, source, settings, roster });
        }
    }

    /// Lists the chains of a kind: in a file, unless they have nothing but keys.
    fn list(&mut self, kind: &str, rows: Vec<Row>) -> Roster {
        let key = |row: &Row| Some(row.get("key")?.as_str()?.to_owned()).filter(|_| row.len() == 1);
        if let Some(keys) = rows.iter().map(key).collect() {
            return Roster::Keys(keys);
        }
        let slug = slug(kind);
        let files = (2..).map(|n| format!("{slug}-{n}.ndjson"));
        let mut files = std::iter::once(format!("{slug}.ndjson")).chain(files);
        let file = files.find(|file| !self.rosters.contains_key(file)).unwrap_or_default();
        self.rosters.insert(file.clone(), rows);
        Roster::File(file)
    }

    /// How many entries of the source are not in the result.
    pub fn left_out(&self) -> usize {
        self.notes.iter().filter(|note| note.weight == Weight::LeftOut).count()
    }

    /// The configuration, with its rosters in `folder`.
    pub fn configuration(&self, folder: &str) -> String {
        let mut out = String::from(
            "# Made by `roundelay import`. Without [broker] and [ledger] the broker is embedded, and the ledger is\n\
             # roundelay.db in the folder of the worker.\n",
        );
        for queue in &self.queues {
            out += &format!("\n[queues.{}]\n", word(queue));
        }
        for kind in &self.kinds {
            out.push('\n');
            for line in &kind.source {
                // A comment ends at the end of the line.
                out += &format!("# {}\n", line.replace(char::is_control, " "));
            }
            out += &format!("[kinds.{}]\n", word(&kind.name));
            for (key, value) in &kind.settings {
                out += &format!("{key} = {value}\n");
            }
            out += &match &kind.roster {
                Roster::Keys(keys) => format!("roster.keys = {}\n", list(keys.iter().map(String::as_str))),
                Roster::File(file) => format!("roster.file = {}\n", text(&format!("{folder}/{file}"))),
            };
        }
        out
    }

    /// The roster of this name, as NDJSON.
    pub fn roster(&self, file: &str) -> String {
        let rows = self.rosters.get(file).into_iter().flatten();
        rows.map(|row| format!("{}\n", serde_json::Value::Object(row.clone()))).collect()
    }
}

fn text(text: &str) -> Toml {
    Toml::String(text.to_owned())
}

fn list<'t>(words: impl IntoIterator<Item = &'t str>) -> Toml {
    Toml::Array(words.into_iter().map(text).collect())
}

/// A part of a key in TOML.
fn word(name: &str) -> String {
    let bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if bare { name.to_owned() } else { text(name).to_string() }
}

/// A short name from a command: its words without folders, in small letters with dashes.
fn slug(command: &str) -> String {
    let words = command.split_whitespace().map(|word| word.rsplit('/').next().unwrap_or(word));
    let letters = words.collect::<Vec<_>>().join("-").to_lowercase();
    let parts = letters.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
    let mut name = String::new();
    for part in parts {
        if !name.is_empty() && name.len() + 1 + part.len() > MAX_KIND_CHARS {
            break;
        }
        if !name.is_empty() {
            name.push('-');
        }
        name.extend(part.chars().take(MAX_KIND_CHARS));
    }
    if name.is_empty() { "job".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roundelay_config::Config;
    use roundelay_config::Format;
    use roundelay_engine::roster::{Shape, rows};

    /// The chains that a worker would begin: kind, key, schedule and payload.
    pub fn chains(import: &Import) -> Vec<(String, String, String, String)> {
        let config = Config::parse(&import.configuration("rosters"), "import.toml", []).unwrap();
        let mut chains = Vec::new();
        for kind in &import.kinds {
            let settings = &config.kinds[&kind.name];
            let shape = Shape::new(&config, settings).unwrap();
            let text = match &kind.roster {
                Roster::Keys(keys) => keys.iter().map(|key| format!("{}\n", json!({ "key": key }))).collect(),
                Roster::File(file) => import.roster(file),
            };
            for row in rows(Format::Ndjson, text.as_bytes()).unwrap() {
                let entity = shape.entity(row.unwrap().1).unwrap();
                let schedule = &settings.recurrence.as_ref().unwrap().schedule;
                let schedule = match &entity.schedule {
                    Some(own) => OwnSchedule::parse(own).unwrap().apply(schedule).unwrap(),
                    None => schedule.clone(),
                };
                chains.push((kind.name.clone(), entity.key.clone(), schedule.to_string(), entity.payload.clone()));
            }
        }
        chains
    }

    #[test]
    fn names_are_short_and_say_what_runs() {
        for (command, name) in [
            ("/usr/local/bin/backup.sh --full", "backup-sh-full"),
            ("cd /srv/app && php artisan schedule:run >> /dev/null 2>&1", "cd-app-php-artisan-schedule-run-null-2-1"),
            ("§", "job"),
            ("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
        ] {
            assert_eq!(slug(command), name);
        }
    }
}
