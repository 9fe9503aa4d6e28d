//! Brings file and environment together, and finds the line of what is wrong.

use config::{Config as Layers, ConfigError as LayersError, FileFormat, Map, Value, ValueKind};
use toml::de::{DeTable, DeValue};

use super::raw::Raw;
use super::{ConfigError, Problem};

/// What the names of environment variables that set something begin with. Two underscores
/// separate the parts of a key; case does not matter, and an underscore also stands for a dash:
/// `ROUNDELAY__THROTTLES__SYNC_IOS__ALLOW=10` sets `throttles.sync-ios.allow`.
const PREFIX: &str = "ROUNDELAY__";

/// A configuration text, kept to find lines in, and which variables were put over it.
pub struct Source<'a> {
    text: &'a str,
    file: &'a str,
    /// Keys set by the environment, with the variable's name.
    variables: Vec<(Vec<String>, String)>,
}

impl<'a> Source<'a> {
    pub fn new(text: &'a str, file: &'a str) -> Self {
        Self { text, file, variables: Vec::new() }
    }

    /// The raw settings.
    pub fn read(&mut self, environment: impl IntoIterator<Item = (String, String)>) -> Result<Raw, ConfigError> {
        let tree = DeTable::parse(self.text).map_err(|error| self.syntax(&error))?;
        let overrides = Overrides::new(environment, tree.get_ref(), &mut self.variables);
        let layers = Layers::builder()
            .add_source(config::File::from_str(self.text, FileFormat::Toml))
            .add_source(overrides)
            .build()
            .map_err(|error| self.all(vec![self.problem(&[], error.to_string())]))?;
        // By way of JSON, since serde_path_to_error then knows the key of whatever is wrong.
        let mut merged: serde_json::Value =
            layers.try_deserialize().map_err(|error| self.all(vec![self.problem(&[], error.to_string())]))?;
        // Reading ends at the first thing that is wrong. It is taken out and the rest read again,
        // so that all of them are told at once.
        let mut problems = Vec::new();
        loop {
            let error = match serde_path_to_error::deserialize(&merged) {
                Ok(raw) if problems.is_empty() => return Ok(raw),
                Ok(_) => return Err(self.all(problems)),
                Err(error) => error,
            };
            let path: Vec<String> = error
                .path()
                .iter()
                .filter(|segment| !matches!(segment, serde_path_to_error::Segment::Unknown))
                .map(ToString::to_string)
                .collect();
            problems.push(self.problem(&path, explain(&error.into_inner().to_string())));
            if !take_out(&mut merged, &path) {
                return Err(self.all(problems));
            }
        }
    }

    /// Problems found later, with their lines.
    pub fn locate(&self, problems: Vec<(String, String)>) -> ConfigError {
        let problems = problems.into_iter().map(|(key, message)| {
            let path: Vec<String> = key.split('\u{1f}').map(str::to_owned).collect();
            self.problem(&path, message)
        });
        self.all(problems.collect())
    }

    /// In the order of the file.
    fn all(&self, mut problems: Vec<Problem>) -> ConfigError {
        problems.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
        ConfigError { file: self.file.into(), problems }
    }

    fn problem(&self, path: &[String], message: String) -> Problem {
        let line = self.line_of(path);
        let variable = self.variables.iter().find(|(set, _)| {
            // A key that only the environment has may be wrong in any of its parts.
            !path.is_empty() && (path.starts_with(set) || (line.is_none() && set.starts_with(path)))
        });
        let variable = variable.map(|(_, name)| name.clone());
        Problem { line: line.filter(|_| variable.is_none()), variable, key: path.join("."), message }
    }

    fn syntax(&self, error: &toml::de::Error) -> ConfigError {
        let line = error.span().map(|span| self.line_at(span.start));
        let message = format!("not valid TOML: {}", error.message());
        ConfigError {
            file: self.file.into(),
            problems: vec![Problem { line, variable: None, key: String::new(), message }],
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

/// Takes out the deepest part of `path` that is a key of a table; whether there was one.
fn take_out(tree: &mut serde_json::Value, path: &[String]) -> bool {
    let Some((part, rest)) = path.split_first() else { return false };
    let Some(table) = tree.as_object_mut() else { return false };
    let Some(value) = table.get_mut(part) else { return false };
    take_out(value, rest) || table.remove(part).is_some()
}

/// Puts serde's words into the user's: above all, an unknown key gets a hint at the nearest known one.
fn explain(message: &str) -> String {
    if let Some((start, _)) = message.split_once(", expected struct ") {
        return format!("{start}, expected a table");
    }
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
    fn new(
        environment: impl IntoIterator<Item = (String, String)>,
        file: &DeTable<'_>,
        variables: &mut Vec<(Vec<String>, String)>,
    ) -> Self {
        let mut root = Map::new();
        for (name, value) in environment {
            let Some(path) = name.strip_prefix(PREFIX) else { continue };
            let origin = format!("the environment variable {name}");
            let path = put(&mut root, Some(file), &path.split("__").collect::<Vec<_>>(), parse(&value, &origin));
            variables.push((path, name));
        }
        Self(root)
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

/// Puts `value` at `path`, spelling each part as the file does where it has it. Returns the path
/// so spelt.
fn put(table: &mut Map<String, Value>, file: Option<&DeTable<'_>>, path: &[&str], value: Value) -> Vec<String> {
    let Some((part, rest)) = path.split_first() else { return Vec::new() };
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let spelled = file.and_then(|f| f.iter().find(|(key, _)| plain(key.get_ref()) == plain(part)));
    let name = spelled.map_or_else(|| part.to_lowercase(), |(key, _)| key.get_ref().to_string());
    let mut spelt = vec![name.clone()];
    if rest.is_empty() {
        table.insert(name, value);
        return spelt;
    }
    let inner = spelled.and_then(|(_, value)| match value.get_ref() {
        DeValue::Table(inner) => Some(inner),
        _ => None,
    });
    let entry = table.entry(name).or_insert_with(|| Value::new(None, ValueKind::Table(Map::new())));
    if let ValueKind::Table(next) = &mut entry.kind {
        spelt.extend(put(next, inner, rest, value));
    }
    spelt
}

/// A value as TOML would read it (`5`, `true`, `["30s"]`), else text.
fn parse(text: &str, origin: &str) -> Value {
    let origin = origin.to_owned();
    match toml::from_str::<Map<String, Value>>(&format!("value = {text}")) {
        Ok(mut table) if table.len() == 1 => match table.remove("value") {
            Some(value) => Value::new(Some(&origin), value.kind),
            None => Value::new(Some(&origin), text),
        },
        _ => Value::new(Some(&origin), text),
    }
}
