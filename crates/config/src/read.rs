//! Brings file and environment together, and finds the line of what is wrong.

use std::collections::BTreeMap;
use std::path::Path;

use config::{Config as Layers, ConfigError as LayersError, FileFormat, Map, Value, ValueKind};
use roundelay_model::secret::Secret;
use toml::de::{DeTable, DeValue};

use super::raw::Raw;
use super::secret;
use crate::error::{ConfigError, Problem};

/// What the names of environment variables that set something begin with. Two underscores
/// separate the parts of a key; case does not matter, and an underscore also stands for whatever
/// the name of a variable cannot hold (a dash, a dot, a space):
/// `ROUNDELAY__THROTTLES__SYNC_IOS__ALLOW=10` sets `throttles.sync-ios.allow`.
const PREFIX: &str = "ROUNDELAY__";
/// Tables whose entries the file names. The environment changes them and adds none, since a name
/// that is spelled wrong would else be one more queue.
const NAMED: [&str; 5] = ["queues", "throttles", "calendars", "reasons", "kinds"];
/// With this at its end, the name of a variable says where a secret's file is.
const FILE: &str = "_FILE";

/// A configuration text, kept to find lines in, and the variables that go over it.
pub struct Source<'a> {
    text: &'a str,
    file: &'a str,
    variables: Vec<Variable>,
    /// The secrets that are in force, those that stand elsewhere included.
    pub fetched: BTreeMap<Vec<String>, Secret>,
}

/// An environment variable that sets something.
#[derive(Clone, Debug)]
struct Variable {
    name: String,
    /// Which setting, spelled as in the file.
    path: Vec<String>,
    value: Value,
    /// As it stands, for settings that want text whatever it looks like.
    text: String,
}

impl<'a> Source<'a> {
    pub fn new(text: &'a str, file: &'a str) -> Self {
        Self { text, file, variables: Vec::new(), fetched: BTreeMap::new() }
    }

    /// The raw settings; `file` reads those that are in files.
    pub fn read(
        &mut self,
        environment: impl IntoIterator<Item = (String, String)>,
        file: &dyn Fn(&Path) -> Result<String, String>,
    ) -> Result<Raw, ConfigError> {
        let tree = DeTable::parse(self.text).map_err(|error| self.syntax(&error))?;
        let mut problems = Vec::new();
        let outside: BTreeMap<String, String> = environment.into_iter().collect();
        for (name, text) in &outside {
            let Some(key) = name.strip_prefix(PREFIX) else { continue };
            // An empty variable sets nothing: so a compose file can pass on what may not be there.
            if text.is_empty() {
                continue;
            }
            let (name, text) = (name.clone(), text.clone());
            if let Some(path) = in_a_file(key, tree.get_ref()) {
                let place = Map::from([("file".to_owned(), Value::new(Some(&name), text.as_str()))]);
                self.variables.push(Variable { value: Value::new(Some(&name), place), name, path, text });
                continue;
            }
            match spelled(key, tree.get_ref()) {
                Ok(path) => self.variables.push(Variable { value: parse(&text, &name), name, path, text }),
                Err((path, message)) => {
                    let message = format!("{message} (set by the environment variable {name})");
                    problems.push(Problem { line: None, key: path.join("."), message });
                }
            }
        }
        if !problems.is_empty() {
            return Err(ConfigError { file: self.file.into(), problems });
        }
        // The shorter first, so that a part of a table goes over the whole of it.
        self.variables.sort_by(|a, b| (a.path.len(), &a.path, &a.name).cmp(&(b.path.len(), &b.path, &b.name)));
        for pair in self.variables.windows(2).filter(|pair| pair[0].path == pair[1].path) {
            let message = format!("{} and {} both set it; leave out one of them", pair[0].name, pair[1].name);
            problems.push(Problem { line: None, key: pair[0].path.join("."), message });
        }
        let (mut merged, mut told) = (self.merged()?, Vec::<Vec<String>>::new());
        let (fetched, wrong) = secret::fetch(&mut merged, &secret::Outside { variables: &outside, file });
        self.fetched = fetched;
        for (path, why) in wrong {
            problems.push(self.problem(&path, why));
            take_out(&mut merged, &path);
            told.push(path);
        }
        // Reading ends at the first thing that is wrong. It is taken out and the rest read again,
        // so that all of them are told at once.
        loop {
            let error = match serde_path_to_error::deserialize(&merged) {
                Ok(raw) if problems.is_empty() => return Ok(raw),
                Ok(_) => return Err(self.all(problems)),
                Err(error) => error,
            };
            let segments = error.path().iter();
            let known = segments.filter(|segment| !matches!(segment, serde_path_to_error::Segment::Unknown));
            let path: Vec<String> = known.map(ToString::to_string).collect();
            let message = error.into_inner().to_string();
            let message = if secret::may_contain_secrets(&path) { unquoted(&message) } else { message };
            // A token can look like a number. Where text is wanted, it is text.
            let number = |variable: &&mut Variable| {
                variable.path == path && !matches!(variable.value.kind, ValueKind::String(_))
            };
            if message.contains("expected a string")
                && let Some(variable) = self.variables.iter_mut().find(number)
            {
                variable.value = Value::new(Some(&variable.name), variable.text.as_str());
                let text = variable.text.as_str().into();
                if replace(&mut merged, &path, text) {
                    continue;
                }
            }
            // What contains something that was taken out may be wrong only for want of it.
            if !told.iter().any(|told| told.starts_with(&path)) {
                problems.push(self.problem(&path, explain(&message)));
            }
            told.push(path.clone());
            if !take_out(&mut merged, &path) {
                return Err(self.all(problems));
            }
        }
    }

    /// The file with the variables over it. As JSON, since serde_path_to_error then knows the key
    /// of whatever is wrong.
    fn merged(&self) -> Result<serde_json::Value, ConfigError> {
        let mut root = Map::new();
        for variable in &self.variables {
            put(&mut root, &variable.path, variable.value.clone());
        }
        Layers::builder()
            .add_source(config::File::from_str(self.text, FileFormat::Toml))
            .add_source(Overrides(root))
            .build()
            .and_then(Layers::try_deserialize)
            .map_err(|error| self.all(vec![self.problem(&[], error.to_string())]))
            .map(|mut merged| {
                // Tables are merged, and what says where a secret is goes over all that said so before.
                for variable in self.variables.iter().filter(|variable| secret::is_secret(&variable.path)) {
                    if let Ok(value) = variable.value.clone().try_deserialize() {
                        replace(&mut merged, &variable.path, value);
                    }
                }
                merged
            })
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
        let key = path.join(".");
        match self.set_by(path, &message) {
            Some(name) => {
                Problem { line: None, key, message: format!("{message} (set by the environment variable {name})") }
            }
            None => Problem { line: self.line_of(path), key, message },
        }
    }

    /// The variable that set what is wrong at `path`.
    fn set_by(&self, path: &[String], message: &str) -> Option<&str> {
        let unknown = message.strip_prefix(UNKNOWN).and_then(|rest| rest.split('`').next());
        let covers = |variable: &&Variable| match variable.path.strip_prefix(path) {
            // An unknown key is the last part of `path`, or (a variant) the first one below it.
            Some([]) => true,
            Some([below, ..]) => {
                unknown.is_some_and(|unknown| unknown == below || path.last().is_some_and(|last| last == unknown))
            }
            None => path.starts_with(&variable.path),
        };
        self.variables.iter().rev().find(covers).map(|variable| variable.name.as_str())
    }

    fn syntax(&self, error: &toml::de::Error) -> ConfigError {
        let line = error.span().map(|span| self.line_at(span.start));
        let message = format!("not valid TOML: {}", error.message());
        ConfigError { file: self.file.into(), problems: vec![Problem { line, key: String::new(), message }] }
    }

    /// The line of the deepest part of `path` that the file has, unless that is nothing.
    fn line_of(&self, path: &[String]) -> Option<usize> {
        let tree = DeTable::parse(self.text).ok()?;
        let mut table = tree.get_ref();
        let mut found = None;
        for part in path {
            let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref() == part) else { break };
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

/// Puts `value` where `path` leads; whether it leads anywhere.
fn replace(tree: &mut serde_json::Value, path: &[String], value: serde_json::Value) -> bool {
    let found = path.iter().try_fold(tree, |tree, part| tree.get_mut(part));
    found.map(|place| *place = value).is_some()
}

/// How a message about an unknown key begins.
const UNKNOWN: &str = "unknown key `";

/// A message of serde's (`invalid type: string "…", expected …`) without the value in it, but for a URL's.
fn unquoted(message: &str) -> String {
    let Some(rest) = message.strip_prefix("invalid type: ") else { return message.to_owned() };
    let (value, expected) = rest.rsplit_once(", expected ").unwrap_or((rest, "something else"));
    let Some(start) = value.find(['"', '`']) else { return message.to_owned() };
    let (sort, quoted) = value.split_at(start);
    let mark = &quoted[..1];
    let shown = Secret::new(quoted.trim_matches(['"', '`']));
    format!("invalid type: {sort}{mark}{shown}{mark}, expected {expected}")
}

/// Puts serde's words into the user's: above all, an unknown key gets a hint at the nearest known one.
fn explain(message: &str) -> String {
    if let Some((start, _)) = message.split_once(", expected struct ") {
        return discreet(&format!("{start}, expected a table"));
    }
    let mut quoted = message.split('`').skip(1).step_by(2);
    let unknown = ["unknown field", "unknown variant"].iter().any(|start| message.starts_with(start));
    let Some(name) = quoted.next().filter(|_| unknown) else {
        return discreet(message);
    };
    let known: Vec<&str> = quoted.collect();
    match nearest(name, known.iter().copied()) {
        Some(near) => format!("{UNKNOWN}{name}`; did you mean `{near}`?"),
        None => format!("{UNKNOWN}{name}`; known here: {}", known.join(", ")),
    }
}

/// `message`, which may quote a URL in the wrong place, without what stands before an `@` in it.
fn discreet(message: &str) -> String {
    let mut words = message.split("://");
    let mut told = words.next().unwrap_or_default().to_owned();
    for word in words {
        let end = word.find(|c: char| c.is_whitespace() || "/?#\"`".contains(c)).unwrap_or(word.len());
        let host = word[..end].rfind('@').map_or(0, |at| at + 1);
        told = told + "://" + &word[host..];
    }
    told
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

impl config::Source for Overrides {
    fn clone_into_box(&self) -> Box<dyn config::Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, LayersError> {
        Ok(self.0.clone())
    }
}

/// Puts `value` at `path`.
fn put(table: &mut Map<String, Value>, path: &[String], value: Value) {
    let Some((part, rest)) = path.split_first() else { return };
    if rest.is_empty() {
        table.insert(part.clone(), value);
        return;
    }
    let entry = table.entry(part.clone()).or_insert_with(|| Value::new(None, ValueKind::Table(Map::new())));
    if !matches!(entry.kind, ValueKind::Table(_)) {
        *entry = Value::new(None, ValueKind::Table(Map::new()));
    }
    if let ValueKind::Table(inner) = &mut entry.kind {
        put(inner, rest, value);
    }
}

/// The secret of which `key` (the name of a variable, without the prefix) says in which file it is.
fn in_a_file(key: &str, file: &DeTable<'_>) -> Option<Vec<String>> {
    let (bare, end) = key.split_at_checked(key.len().checked_sub(FILE.len())?)?;
    let path = end.eq_ignore_ascii_case(FILE).then(|| spelled(bare, file).ok())??;
    secret::takes_a_file(&path).then_some(path)
}

/// The setting that `key` (the name of a variable, without the prefix) means, each part spelled as
/// the file does where it has it; or what is wrong, with as much of the setting as is known.
fn spelled(key: &str, file: &DeTable<'_>) -> Result<Vec<String>, (Vec<String>, String)> {
    let mut table = Some(file);
    let mut path: Vec<String> = Vec::new();
    for part in key.split("__") {
        let entries = || table.into_iter().flat_map(|table| table.iter());
        let names = || entries().map(|(name, _)| name.get_ref().as_ref());
        let alike: Vec<&str> = names().filter(|name| plain(name) == plain(part)).collect();
        let same = alike.iter().copied().find(|name| name.eq_ignore_ascii_case(part));
        let name = match (same, alike.as_slice()) {
            (Some(name), _) | (None, &[name]) => name.to_owned(),
            (None, [first, second, ..]) => {
                return Err((path, format!("`{part}` stands for both `{first}` and `{second}`; rename one of them")));
            }
            (None, []) => match path.as_slice() {
                [parent] if NAMED.contains(&parent.as_str()) => {
                    let folded: Vec<String> = names().map(plain).collect();
                    let near = nearest(&plain(part), folded.iter().map(String::as_str));
                    let hint = match near.and_then(|near| names().find(|name| plain(name) == near)) {
                        Some(near) => format!("did you mean `{near}`?"),
                        None => "add it to the file: the environment changes such tables, and adds none".into(),
                    };
                    let message = format!("no [{parent}.…] in the file is called `{}`; {hint}", part.to_lowercase());
                    return Err((path, message));
                }
                // Names of variables are the program's own business, and those of headers have dashes.
                [.., exec, env] if exec == "exec" && env == "env" => part.to_owned(),
                [.., table, headers] if ["http", "tracing"].contains(&table.as_str()) && headers == "headers" => {
                    part.to_lowercase().replace('_', "-")
                }
                _ => part.to_lowercase(),
            },
        };
        table =
            entries().find(|(key, _)| key.get_ref() == name.as_str()).and_then(|(_, value)| match value.get_ref() {
                DeValue::Table(inner) => Some(inner),
                _ => None,
            });
        path.push(name);
    }
    Ok(path)
}

/// A name with everything folded that the name of a variable cannot tell apart.
fn plain(name: &str) -> String {
    name.to_lowercase().replace(|c: char| !c.is_alphanumeric(), "_")
}

/// A value as TOML would read it (`5`, `true`, `["30s"]`), else text.
fn parse(text: &str, origin: &str) -> Value {
    let origin = format!("the environment variable {origin}");
    match toml::from_str::<Map<String, Value>>(&format!("value = {text}")) {
        Ok(mut table) if table.len() == 1 => match table.remove("value") {
            Some(value) => Value::new(Some(&origin), value.kind),
            None => Value::new(Some(&origin), text),
        },
        _ => Value::new(Some(&origin), text),
    }
}
