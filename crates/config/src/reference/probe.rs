//! What the code does with a setting, found out by changing it.

use std::time::Duration;

use base64::prelude::{BASE64_STANDARD as STANDARD, Engine as _};
use roundelay_model::clock::parse_duration;
use roundelay_model::encryption::KEY_BYTES;
use serde_json::{Value, json};

use super::{ANY, ENTRY, LEAST, MOST, Node, json as read};
use crate::change::comes_to;
use crate::settings::Config;
use crate::tests::uncommented;

/// Configurations in which settings are changed.
pub struct Probe {
    bases: Vec<Value>,
    /// The same, checked.
    checked: Vec<Config>,
}

impl Probe {
    pub fn new() -> Self {
        // All of the example's settings in force, and its defaults alone, which leave room for what excludes others.
        let examples = [true, false].map(|examples_too| read(&uncommented(examples_too)));
        // The embedded broker has no user, and a SQLite file neither; and priorities need lanes.
        let mut servers = examples.clone().map(|mut base| {
            base["broker"]["url"] = "amqps://rabbitmq/v".into();
            base["ledger"]["url"] = "postgres://db/roundelay".into();
            for (_, queue) in base["queues"].as_object_mut().into_iter().flatten() {
                queue["lanes"] = 10.into();
            }
            base
        });
        // A key that seals can be replaced by none, and one that does not can go.
        for (base, seal) in servers.iter_mut().zip(["a", ""]) {
            base["encryption"] = json!({ "seal": seal, "keys": { "a": STANDARD.encode([1; KEY_BYTES]) } });
        }
        // Reasons that leave to the kind's own retries, or to the defaults, what they can.
        let reasons = json!({ "plain": { "policy": "retry" }, "waits": { "policy": "retry", "backoff": {} } });
        servers[1]["reasons"] = reasons.clone();
        servers[1]["kinds"]["report"]["reasons"] = reasons;
        let bases: Vec<Value> = servers.into_iter().chain(examples).collect();
        let checked = bases.iter().map(|base| parse(base).unwrap_or_else(|wrong| panic!("{wrong:?}"))).collect();
        Self { bases, checked }
    }

    /// Whether a worker takes over a change of this setting on SIGHUP. Nothing when no change was found that makes
    /// another configuration.
    pub fn follows(&self, setting: &Node) -> Option<bool> {
        let (name, table) = setting.path.split_last().expect("a setting has a name");
        for (base, old) in self.bases.iter().zip(&self.checked) {
            for place in places(base, table) {
                let at = [place, vec![name.clone()]].concat();
                for value in candidates(setting, found(base, &at)) {
                    let Ok(new) = parse(&with(base, &at, value)) else { continue };
                    let comes_to = comes_to(old, &new);
                    if comes_to.is_some() {
                        return comes_to;
                    }
                }
            }
        }
        None
    }

    /// The configurations that have the table of a setting, each with `value` there; and where that is.
    fn each(&self, setting: &Node, value: Option<&Value>) -> impl Iterator<Item = (Vec<String>, Value)> {
        let (name, table) = setting.path.split_last().expect("a setting has a name");
        self.bases.iter().flat_map(move |base| {
            places(base, table).into_iter().map(move |place| {
                let at = [place, vec![name.clone()]].concat();
                let changed = with(base, &at, value.cloned());
                (at, changed)
            })
        })
    }
}

/// The checked configuration, or the keys of what is wrong and the words.
fn parse(tree: &Value) -> Result<Config, Vec<(String, String)>> {
    let text = toml::to_string(tree).expect("a tree of TOML's own");
    Config::parse(&text, "r.toml", [])
        .map(|config| Config { shown: String::new(), ..config })
        .map_err(|error| error.problems.into_iter().map(|problem| (problem.key, problem.message)).collect())
}

/// Where in `tree` there is what `path` means, each part as it is called there.
pub fn places(tree: &Value, path: &[String]) -> Vec<Vec<String>> {
    let Some((part, rest)) = path.split_first() else { return vec![Vec::new()] };
    let entries: Vec<(String, &Value)> = match (part.as_str(), tree) {
        (ANY, Value::Object(table)) => table.iter().map(|(name, value)| (name.clone(), value)).collect(),
        (ENTRY, Value::Array(list)) => list.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect(),
        (name, Value::Object(table)) => table.get(name).map(|value| (name.to_owned(), value)).into_iter().collect(),
        _ => Vec::new(),
    };
    let below = entries.into_iter().flat_map(|(name, value)| {
        places(value, rest).into_iter().map(move |below| [vec![name.clone()], below].concat())
    });
    below.collect()
}

fn pointer(path: &[String]) -> String {
    path.iter().map(|part| format!("/{}", part.replace('~', "~0").replace('/', "~1"))).collect()
}

fn found<'v>(tree: &'v Value, path: &[String]) -> Option<&'v Value> {
    tree.pointer(&pointer(path))
}

/// `tree` with this value at `path`, or without any.
fn with(tree: &Value, path: &[String], value: Option<Value>) -> Value {
    let mut tree = tree.clone();
    let (name, table) = path.split_last().expect("a setting has a name");
    let table = tree.pointer_mut(&pointer(table)).and_then(Value::as_object_mut).expect("a table is there");
    match value {
        Some(value) => drop(table.insert(name.clone(), value)),
        None => drop(table.remove(name)),
    }
    tree
}

/// What a setting could be in place of what it is: most of it is refused, since it is of other settings' types.
fn candidates(setting: &Node, is: Option<&Value>) -> Vec<Option<Value>> {
    let words = ["oneOf", "enum"].iter().filter_map(|word| setting.schema.get(*word)?.as_array()).flatten();
    let words = words.map(|word| word.get("const").unwrap_or(word).clone());
    let mut all: Vec<Value> = words.filter(Value::is_string).collect();
    match is {
        Some(Value::Bool(is)) => all.push((!is).into()),
        Some(Value::Number(is)) if is.is_u64() => {
            let is = is.as_u64().unwrap_or_default();
            all.extend([(is + 1).into(), is.saturating_sub(1).into()]);
        }
        Some(Value::Number(is)) => {
            let is = is.as_f64().unwrap_or_default();
            all.extend([(is + 0.125).into(), (is / 2.0).into()]);
        }
        Some(Value::String(is)) => {
            if let Ok(is) = parse_duration(is) {
                let other = |by: f64| humantime::format_duration(is.mul_f64(by)).to_string();
                all.extend([other(2.0).into(), other(0.5).into()]);
            }
            all.push(format!("{is}x").into());
        }
        Some(Value::Array(is)) => {
            all.extend((!is.is_empty()).then(|| is[..is.len() - 1].into()));
            for more in ["example.org".into(), "/bin/false".into(), json!({ "from": "1h", "to": "2h", "factor": 2.0 })]
            {
                all.push(is.iter().cloned().chain([more]).collect());
            }
        }
        Some(Value::Object(is)) if !is.is_empty() => all.extend([json!({}), json!(["7s"])]),
        _ => all.extend([
            true.into(),
            1.into(),
            0.5.into(),
            "2m".into(),
            json!([]),
            json!({ "x": "x" }),
            json!({ "x": 0.5 }),
        ]),
    }
    let texts = [
        "amqp://other/v",
        "http://other/x",
        "127.0.0.1:9999",
        "0 0 * * *",
        "2031-01-01T03:00:00Z",
        "40%",
        "2GiB",
        "Asia/Tokyo",
        "payload.other",
        "7/1h",
        "/other.csv",
    ];
    all.extend(texts.map(Value::from));
    all.into_iter().filter(|value| Some(value) != is).map(Some).chain(is.map(|_| None)).collect()
}

/// Of each bound of a setting what is still possible, and what is not any more.
fn bounds(setting: &Node) -> Vec<(Value, Option<Value>)> {
    let ms = Duration::from_millis(1);
    let duration = |key: &str| {
        let text = setting.words(key)?;
        Some(parse_duration(text).unwrap_or_else(|error| panic!("{key} of {:?}: {error}", setting.path)))
    };
    let text = |duration: Duration| Value::from(humantime::format_duration(duration).to_string());
    let least = duration(LEAST).map(|least| (text(least), least.checked_sub(ms).map(text)));
    let most = duration(MOST).map(|most| (text(most), Some(text(most + ms))));
    let mut bounds: Vec<_> = least.into_iter().chain(most).collect();
    for (key, step) in [("minimum", -1_i32), ("maximum", 1)] {
        let Some(bound) = setting.schema.get(key) else { continue };
        let (bound, beyond) = match bound.as_i64().filter(|_| setting.words("type") == Some("integer")) {
            Some(bound) => (bound.into(), (bound + i64::from(step)).into()),
            None => {
                let bound = bound.as_f64().expect("a bound is a number");
                (bound.into(), (bound + f64::from(step) / 1_000.0).into())
            }
        };
        bounds.push((bound, Some(beyond)));
    }
    for (key, step) in [("minLength", -1), ("maxLength", 1)] {
        let Some(bound) = setting.schema.get(key).and_then(Value::as_i64) else { continue };
        let text = |length: i64| Value::from("x".repeat(usize::try_from(length).unwrap_or_default()));
        bounds.push((text(bound), Some(text(bound + step))));
    }
    bounds
}

#[test]
fn the_bounds_that_are_told_are_those_that_hold() {
    let probe = Probe::new();
    let root = Node::root();
    let mut looked_at = 0;
    for setting in root.all() {
        for (bound, beyond) in bounds(setting) {
            // What is wrong with an entry of a list is told of the list.
            let complaints = |(at, tree): (Vec<String>, Value)| {
                let list = setting.path.iter().position(|part| part == ENTRY).unwrap_or(at.len());
                let key = at[..list].join(".");
                let of_it =
                    move |(told, _): &(String, String)| told.starts_with(&key) || key.starts_with(told.as_str());
                let wrong = parse(&tree).err().unwrap_or_default();
                wrong.into_iter().filter(of_it).map(|(_, message)| message).collect::<Vec<_>>()
            };
            let about_bounds = |message: &String| message.contains("possible") || message.contains("invalid");
            let fits = probe.each(setting, Some(&bound)).any(|tried| !complaints(tried).iter().any(about_bounds));
            assert!(fits, "{:?} is said to be possible as {bound}", setting.path);
            if let Some(beyond) = beyond {
                let refused = probe.each(setting, Some(&beyond)).all(|tried| !complaints(tried).is_empty());
                assert!(refused, "{:?} is said to be impossible as {beyond}", setting.path);
            }
            looked_at += 1;
        }
    }
    assert!(looked_at > 60, "only {looked_at} bounds were found");
}

#[test]
fn the_defaults_that_are_told_are_in_force() {
    let probe = Probe::new();
    let root = Node::root();
    let mut wrong = Vec::new();
    for setting in root.all().into_iter().filter(|node| node.is_setting()) {
        let Some(default) = setting.schema.get("default") else { continue };
        let (bare, stated) = (probe.each(setting, None), probe.each(setting, Some(default)));
        let pairs =
            bare.zip(stated).filter_map(|((_, bare), (_, stated))| Some((parse(&bare).ok()?, parse(&stated).ok()?)));
        let same: Vec<bool> = pairs.map(|(bare, stated)| format!("{bare:?}") == format!("{stated:?}")).collect();
        if same.is_empty() || same.contains(&false) {
            wrong.push(format!("{} = {default}, compared {} times", setting.path.join("."), same.len()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
