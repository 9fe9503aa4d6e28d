//! The page of the book.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::{ANY, ENTRY, LEAST, MOST, Node, probe};
use crate::secret::{is_secret, takes_a_file};

const HEAD: &str = "\
# Configuration reference

Every setting, as the program has it: this page is made from the code. [Configuration](configuration.md) has the rules \
that hold for all of them, and [roundelay.example.toml](../roundelay.example.toml) shows them in a file. \
[configuration.schema.json](configuration.schema.json) is the same for editors: a JSON Schema (2020-12), which those that \
know TOML take from a first line `#:schema PATH`.

Below each name stand its type with its bounds, its default, the environment variable that sets it (`<NAME>` is the name \
of the table, in capitals: [the rules](configuration.md#the-environment)), and whether a worker that gets SIGHUP takes a \
change over or has to be started again. A duration is [text with units](configuration.md#durations). What may be secret \
is text, `{ file = \"PATH\" }` or `{ env = \"NAME\" }`: [Secrets](configuration.md#secrets).
";

/// Whether a change of a setting is taken over on SIGHUP.
type Follows = BTreeMap<Vec<String>, Option<bool>>;

/// The whole of it.
pub fn page(root: &Node) -> String {
    let mut text = HEAD.to_owned();
    let probe = probe::Probe::new();
    let settings = root.all().into_iter().filter(|node| node.is_setting());
    let follows: Follows = settings.map(|setting| (setting.path.clone(), probe.follows(setting))).collect();
    let unknown: Vec<&Vec<String>> = follows.iter().filter(|(_, it)| it.is_none()).map(|(path, _)| path).collect();
    assert!(unknown.is_empty(), "add candidates to probe.rs that make other configurations of {unknown:?}");
    root.below.iter().for_each(|table| section(&mut text, table, &follows));
    text
}

/// As people write a path: `kinds.<name>.throttle`.
fn dotted(path: &[String]) -> String {
    let mut text = String::new();
    for part in path {
        let dot = if text.is_empty() || part == ENTRY { "" } else { "." };
        let part = if part == ANY { "<name>" } else { part };
        let _ = write!(text, "{dot}{part}");
    }
    text
}

/// The tables at and below `node`, each with its settings.
fn section(text: &mut String, node: &Node, follows: &Follows) {
    let settings: Vec<&Node> = node.below.iter().filter(|below| below.is_setting()).collect();
    if !settings.is_empty() {
        let _ = write!(text, "\n## `[{}]`\n", dotted(&node.path));
        if let Some(words) = node.words("description") {
            let _ = write!(text, "\n{}\n", one_line(words));
        }
        settings.iter().for_each(|setting| entry(text, setting, follows));
    }
    for below in &node.below {
        section(text, below, follows);
    }
}

fn entry(text: &mut String, setting: &Node, follows: &Follows) {
    let mut facts = vec![format!("{}{}", kind(setting), bounds(setting))];
    if setting.required {
        facts.push("required".into());
    }
    facts.extend(setting.schema.get("default").map(|default| format!("default `{}`", toml(default))));
    let path = &setting.path;
    if is_secret(path) || setting.below.iter().any(|below| is_secret(&below.path)) {
        facts.push("may be secret".into());
    }
    if !path.iter().any(|part| part == ENTRY) {
        let parts = path.iter().map(|part| if part == ANY { "<NAME>".into() } else { part.to_uppercase() });
        let name = format!("ROUNDELAY__{}", parts.collect::<Vec<_>>().join("__"));
        let file = if takes_a_file(path) { format!(" or `{name}_FILE`") } else { String::new() };
        facts.push(format!("`{name}`{file}"));
    }
    facts.push(if follows.get(path) == Some(&Some(true)) { "taken over on SIGHUP" } else { "needs a restart" }.into());
    let words = setting.words("description").unwrap_or_default();
    let _ = write!(text, "\n### `{}`\n\n{}\n\n{}\n", dotted(path), facts.join(" · "), one_line(words));
    let choices: Vec<String> = choices(setting)
        .filter_map(|(value, words)| Some(format!("- `{}`: {}\n", toml(value), one_line(words?))))
        .collect();
    if !choices.is_empty() {
        let _ = write!(text, "\n{}", choices.concat());
    }
}

/// The words that a setting can be, and what each means.
fn choices(setting: &Node) -> impl Iterator<Item = (&Value, Option<&str>)> {
    let described = setting.schema.get("oneOf").and_then(Value::as_array).into_iter().flatten();
    let described =
        described.filter_map(|choice| Some((choice.get("const")?, choice.get("description").and_then(Value::as_str))));
    let bare = setting.schema.get("enum").and_then(Value::as_array).into_iter().flatten();
    described.chain(bare.map(|value| (value, None)))
}

fn kind(setting: &Node) -> String {
    let words: Vec<String> = choices(setting).map(|(value, _)| format!("`{}`", toml(value))).collect();
    if !words.is_empty() {
        let tables =
            setting.below.iter().filter_map(|below| below.path.last()).map(|name| format!("`{{ {name} = … }}`"));
        return words.into_iter().chain(tables).collect::<Vec<_>>().join(" or ");
    }
    of(&Value::Object(setting.schema.clone()), &setting.path)
}

fn of(schema: &Value, path: &[String]) -> String {
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        return if target.ends_with("/Secret") { "text" } else { "table" }.into();
    }
    if let Some(choices) = schema.get("anyOf").and_then(Value::as_array) {
        if is_secret(path) && !choices.iter().any(|choice| choice.get("items").is_some()) {
            return "text".into();
        }
        return choices.iter().map(|choice| of(choice, &[])).collect::<Vec<_>>().join(", or ");
    }
    match schema.get("type").and_then(Value::as_str).unwrap_or_default() {
        "string" if schema.get("format").is_some_and(|format| format == "x-duration") => "duration".into(),
        "string" => "text".into(),
        "integer" => "whole number".into(),
        "number" => "number".into(),
        "boolean" => "`true` or `false`".into(),
        "array" => format!("list of {}s", of(&schema["items"], &[])).replace("texts", "text"),
        "object" => match schema.get("additionalProperties").filter(|schema| schema.is_object()) {
            Some(values) => format!("table of {}", of(values, &[])),
            None => "table".into(),
        },
        other => panic!("{path:?} is of the type `{other}`, which this page has no word for: {schema}"),
    }
}

fn bounds(setting: &Node) -> String {
    let bound = |numbers: &str, texts: &str| {
        let number = setting.schema.get(numbers).map(number);
        number.or_else(|| setting.schema.get(texts).map(|text| format!("`{text}`")))
    };
    let characters = if setting.schema.contains_key("maxLength") { " characters" } else { "" };
    let least = bound("minimum", LEAST).or_else(|| setting.schema.get("minLength").map(number));
    let most = bound("maximum", MOST).or_else(|| setting.schema.get("maxLength").map(number));
    match (least, most) {
        (Some(least), Some(most)) => format!(" from {least} to {most}{characters}"),
        (Some(least), None) if least == "0" => String::new(),
        (Some(least), None) => format!(" from {least}{characters}"),
        (None, Some(most)) => format!(" up to {most}{characters}"),
        (None, None) => String::new(),
    }
}

/// `10000` as `10,000`.
fn number(value: &Value) -> String {
    let text = value.to_string();
    let whole = text.strip_suffix(".0").unwrap_or(&text);
    if !whole.chars().all(|c| c.is_ascii_digit()) {
        return whole.to_owned();
    }
    let digits = whole.len();
    let comma = |at: usize| at > 0 && (digits - at).is_multiple_of(3);
    whole.char_indices().flat_map(|(at, c)| comma(at).then_some(',').into_iter().chain([c])).collect()
}

/// A value as TOML has it.
fn toml(value: &Value) -> String {
    match value {
        Value::Array(values) => format!("[{}]", values.iter().map(toml).collect::<Vec<_>>().join(", ")),
        Value::Object(table) if table.is_empty() => "{}".into(),
        Value::Object(table) => {
            let entries: Vec<String> = table.iter().map(|(key, value)| format!("{key} = {}", toml(value))).collect();
            format!("{{ {} }}", entries.join(", "))
        }
        other => other.to_string(),
    }
}

fn one_line(words: &str) -> String {
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}
