//! Brings file and environment together, and finds the line of what is wrong.

use config::{Config as Layers, ConfigError as LayersError, FileFormat, Map, Value, ValueKind};
use toml::de::{DeTable, DeValue};

use super::raw::Raw;
use super::{ConfigError, Problem};

/// What the names of environment variables that set something begin with. Two underscores
/// separate the parts of a key; case does not matter, and an underscore also stands for a dash:
/// `ROUNDELAY__THROTTLES__SYNC_IOS__ALLOW=10` sets `throttles.sync-ios.allow`.
const PREFIX: &str = "ROUNDELAY__";

/// Where settings come from, kept to say where a problem is.
pub struct Source<'a> {
    text: &'a str,
    file: &'a str,
    variables: Vec<Variable>,
}

/// An environment variable that sets something, and what.
struct Variable {
    name: String,
    path: Vec<String>,
}

impl<'a> Source<'a> {
    pub fn new(text: &'a str, file: &'a str) -> Self {
        Self { text, file, variables: Vec::new() }
    }

    /// The raw settings.
    pub fn read(&mut self, environment: impl IntoIterator<Item = (String, String)>) -> Result<Raw, ConfigError> {
        let tree = DeTable::parse(self.text).map_err(|error| self.syntax(&error))?;
        let overrides;
        (overrides, self.variables) = Overrides::new(environment, tree.get_ref());
        let layers = Layers::builder()
            .add_source(config::File::from_str(self.text, FileFormat::Toml))
            .add_source(overrides)
            .build()
            .map_err(|error| self.error(Vec::new(), error.to_string()))?;
        // By way of JSON, since serde_path_to_error then knows the key of whatever is wrong.
        let merged: serde_json::Value =
            layers.try_deserialize().map_err(|error| self.error(Vec::new(), error.to_string()))?;
        serde_path_to_error::deserialize(merged).map_err(|error| {
            let path: Vec<String> = error
                .path()
                .iter()
                .filter(|segment| !matches!(segment, serde_path_to_error::Segment::Unknown))
                .map(ToString::to_string)
                .collect();
            self.error(path, explain(&error.into_inner().to_string()))
        })
    }

    /// Problems found later, with their lines.
    pub fn locate(&self, problems: Vec<(String, String)>) -> ConfigError {
        let problems = problems
            .into_iter()
            .flat_map(|(key, message)| {
                let path = key.split('\u{1f}').map(str::to_owned).collect();
                self.error(path, message).problems
            })
            .collect();
        ConfigError { file: self.file.into(), problems }
    }

    fn error(&self, path: Vec<String>, message: String) -> ConfigError {
        let line = self.line_of(&path);
        // What a variable has set, or a table that is there only because of one.
        let set = |variable: &&Variable| {
            path.starts_with(&variable.path) || line.is_none() && variable.path.starts_with(&path)
        };
        let variable = self.variables.iter().find(set).filter(|_| !path.is_empty());
        let variable = variable.map(|variable| variable.name.clone());
        let problem = Problem { variable, line, key: path.join("."), message };
        ConfigError { file: self.file.into(), problems: vec![problem] }
    }

    fn syntax(&self, error: &toml::de::Error) -> ConfigError {
        let line = error.span().map(|span| self.line_at(span.start));
        let message = format!("not valid TOML: {}", error.message());
        ConfigError {
            file: self.file.into(),
            problems: vec![Problem { variable: None, line, key: String::new(), message }],
        }
    }

    /// The line of the deepest part of `path` that the file has, unless that is nothing.
    fn line_of(&self, path: &[String]) -> Option<usize> {
        let tree = DeTable::parse(self.text).ok()?;
        let mut table = tree.get_ref();
        let mut found = None;
        for part in path {
            let (key, value) = table.iter().find(|(key, _)| key.get_ref() == part)?;
            found = Some(self.line_at(key.span().start));
            match value.get_ref() {
                DeValue::Table(inner) => table = inner,
                _ => break,
            }
        }
        found
    }

    fn line_at(&self, offset: usize) -> usize {
        self.text.as_bytes()[..offset.min(self.text.len())].iter().filter(|b| **b == b'\n').count() + 1
    }
}

/// Turns serde's words about an unknown key into a hint at the nearest known one.
fn explain(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let unknown = ["unknown field", "unknown variant"].iter().any(|start| message.starts_with(start));
    let Some(name) = quoted.next().filter(|_| unknown) else {
        return message.to_owned();
    };
    let known: Vec<&str> = quoted.collect();
    match nearest(name, known.iter().copied()) {
        Some(near) => format!("unknown key `{name}`; did you mean `{near}`?"),
        None => format!("unknown key `{name}`; known here: {}", known.join(", ")),
    }
}

/// The one of `known` that `name` was probably meant to be.
pub fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    known
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 4)
        .min()
        .map(|(_, candidate)| candidate)
}

/// The environment's part of the settings.
#[derive(Clone, Debug)]
struct Overrides(Map<String, Value>);

impl Overrides {
    fn new(environment: impl IntoIterator<Item = (String, String)>, file: &DeTable<'_>) -> (Self, Vec<Variable>) {
        let (mut root, mut variables) = (Map::new(), Vec::new());
        for (name, value) in environment {
            let Some(path) = name.strip_prefix(PREFIX) else { continue };
            let path = spelled(Some(file), path.split("__"));
            put(&mut root, &path, parse(&value));
            variables.push(Variable { name, path });
        }
        (Self(root), variables)
    }
}

impl config::Source for Overrides {
    fn clone_into_box(&self) -> Box<dyn config::Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, LayersError> {
        Ok(self.0.clone())
    }
}

/// Each part of a path as the file spells it, where the file has it.
fn spelled<'p>(mut file: Option<&DeTable<'_>>, path: impl Iterator<Item = &'p str>) -> Vec<String> {
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    path.map(|part| {
        let found = file.and_then(|table| table.iter().find(|(key, _)| plain(key.get_ref()) == plain(part)));
        file = found.and_then(|(_, value)| match value.get_ref() {
            DeValue::Table(inner) => Some(inner),
            _ => None,
        });
        found.map_or_else(|| part.to_lowercase(), |(key, _)| key.get_ref().to_string())
    })
    .collect()
}

/// Puts `value` at `path`.
fn put(table: &mut Map<String, Value>, path: &[String], value: Value) {
    let Some((part, rest)) = path.split_first() else { return };
    if rest.is_empty() {
        table.insert(part.clone(), value);
        return;
    }
    let entry = table.entry(part.clone()).or_insert_with(|| Value::new(None, ValueKind::Table(Map::new())));
    if let ValueKind::Table(next) = &mut entry.kind {
        put(next, rest, value);
    }
}

/// A value as TOML would read it (`5`, `true`, `["30s"]`), else text.
fn parse(text: &str) -> Value {
    let parsed = toml::from_str::<Map<String, Value>>(&format!("value = {text}"));
    let one = parsed.ok().filter(|table| table.len() == 1).and_then(|mut table| table.remove("value"));
    one.unwrap_or_else(|| Value::new(None, text))
}
