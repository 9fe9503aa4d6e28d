//! The reference of all settings, made from the shapes in `raw`: a page of the book, and a JSON Schema for editors.
//!
//! Only tests make it, so the program carries none of it. Both files are checked in, and a test holds them to the code.
//! What the shapes cannot say by themselves (bounds that `check` knows, defaults that it fills in) stands beside them
//! as attributes, and `probe` holds these to what `check` does.

mod page;
mod probe;
mod shapes;

use std::path::Path;

use roundelay_model::clock::parse_duration;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::raw::Raw;
use super::secret::is_secret;
use super::tests::uncommented;

/// The least and the most of a duration, which JSON Schema has no words for.
const LEAST: &str = "x-least";
const MOST: &str = "x-most";
/// Stands in a path for the entries of a list.
const ENTRY: &str = "[]";
/// Stands in a path for the entries of a table whose names are the user's own.
const ANY: &str = "*";

/// The JSON Schema of the file, of which `null`, which TOML does not have, is no part.
fn schema() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<Raw>().to_value();
    without_null(&mut schema);
    schema["title"] = "Configuration of Roundelay".into();
    schema["description"] =
        "Every setting of roundelay.toml. docs/configuration.md has the rules that hold for all of them. \
        What depends on several settings together, only `roundelay check` knows."
            .into();
    schema
}

fn without_null(schema: &mut Value) {
    let null = serde_json::json!({ "type": "null" });
    match schema {
        Value::Array(schemas) => schemas.iter_mut().for_each(without_null),
        Value::Object(schema) => {
            if let Some(default) = schema.get_mut("default") {
                stated(default);
                if default.is_null() {
                    schema.remove("default");
                }
            }
            // Of the width of numbers the bounds say enough.
            let ours = |format: &Value| format.as_str().is_some_and(|format| format.starts_with("x-"));
            if schema.get("format").is_some_and(|format| !ours(format)) {
                schema.remove("format");
            }
            if let Some(Value::Array(types)) = schema.get_mut("type") {
                types.retain(|of| of != "null");
                if let [one] = types.as_slice() {
                    let one = one.clone();
                    schema.insert("type".into(), one);
                }
            }
            if let Some(Value::Array(choices)) = schema.get_mut("anyOf") {
                choices.retain(|choice| *choice != null);
                if let [one] = choices.as_slice() {
                    let Value::Object(one) = one.clone() else { panic!("{one} is no schema") };
                    schema.remove("anyOf");
                    schema.extend(one);
                }
            }
            for (key, value) in schema.iter_mut() {
                if !["default", "const", "enum"].contains(&key.as_str()) {
                    without_null(value);
                }
            }
        }
        _ => {}
    }
}

/// Leaves of a default what it states.
fn stated(default: &mut Value) {
    if let Value::Object(table) = default {
        table.values_mut().for_each(stated);
        table.retain(|_, value| !value.is_null());
    }
}

/// A setting, or a table of such.
#[derive(Clone, Debug)]
struct Node {
    /// Where it stands, with [`ANY`] and [`ENTRY`] for what is the user's own.
    path: Vec<String>,
    /// Its schema, with what it refers to in place.
    schema: Map<String, Value>,
    /// Whether its table has to have it.
    required: bool,
    /// What stands below it.
    below: Vec<Node>,
}

impl Node {
    /// The whole tree.
    fn root() -> Self {
        let schema = schema();
        Self::new(&schema, Vec::new(), &schema, false)
    }

    fn new(root: &Value, path: Vec<String>, schema: &Value, required: bool) -> Self {
        let schema = resolved(root, schema);
        let mut below = Vec::new();
        if !is_secret(&path) {
            let choices = ["anyOf", "oneOf"].iter().filter_map(|word| schema.get(*word)?.as_array()).flatten();
            let shapes = choices.map(|choice| resolved(root, choice)).chain([schema.clone()]);
            for shape in shapes {
                let needs = |name: &str| {
                    let list = shape.get("required").and_then(Value::as_array);
                    list.is_some_and(|list| list.iter().any(|needed| needed == name))
                };
                let named = shape.get("properties").and_then(Value::as_object).into_iter().flatten();
                let named = named.map(|(name, schema)| (name.as_str(), schema, needs(name)));
                let any = shape.get("additionalProperties").filter(|schema| schema.is_object());
                let entries = shape.get("items").into_iter().map(|schema| (ENTRY, schema, false));
                for (name, schema, required) in named.chain(any.map(|schema| (ANY, schema, false))).chain(entries) {
                    let path = path.iter().cloned().chain([name.to_owned()]).collect();
                    below.push(Self::new(root, path, schema, required));
                }
            }
        }
        Self { path, schema, required, below }
    }

    /// It, and all that stands below it.
    fn all(&self) -> Vec<&Self> {
        [self].into_iter().chain(self.below.iter().flat_map(Self::all)).collect()
    }

    /// Whether it is a table of settings and can be nothing else.
    fn is_table(&self) -> bool {
        self.schema.contains_key("properties")
    }

    /// Whether it is a setting that has a value of its own.
    fn is_setting(&self) -> bool {
        let last = self.path.last().map_or("", String::as_str);
        let tables =
            self.below.iter().any(|below| below.path.last().is_some_and(|name| name == ANY) && below.is_table());
        ![ANY, ENTRY, ""].contains(&last) && !self.is_table() && !tables
    }

    fn words(&self, key: &str) -> Option<&str> {
        self.schema.get(key).and_then(Value::as_str)
    }
}

/// A schema with what it refers to in place; what stands beside the reference goes before.
fn resolved(root: &Value, schema: &Value) -> Map<String, Value> {
    let schema = schema.as_object().unwrap_or_else(|| panic!("{schema} is no schema"));
    let Some(target) = schema.get("$ref").and_then(Value::as_str) else { return schema.clone() };
    let target = target.strip_prefix('#').and_then(|at| root.pointer(at)).unwrap_or_else(|| panic!("no {target}"));
    let mut merged = resolved(root, target);
    merged.extend(schema.clone().into_iter().filter(|(key, _)| key != "$ref"));
    merged
}

/// TOML as what a schema looks at.
fn json(text: &str) -> Value {
    let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("{error}"));
    serde_json::to_value(table).unwrap()
}

#[test]
fn what_is_checked_in_is_what_the_code_says() {
    let mut schema = serde_json::to_string_pretty(&schema()).unwrap();
    schema.push('\n');
    let made = [("configuration.schema.json", schema), ("configuration-reference.md", page::page(&Node::root()))];
    for (name, text) in made {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        if std::env::var_os("ROUNDELAY_REFRESH").is_some() {
            std::fs::write(&file, &text).unwrap();
        }
        let there = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(there == text, "docs/{name} is old: ROUNDELAY_REFRESH=1 cargo test -p roundelay-config reference");
    }
}

#[test]
fn the_configurations_that_are_checked_in_fit_the_schema() {
    let schema = schema();
    assert!(jsonschema::meta::is_valid(&schema), "it is a schema");
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let tutorial = include_str!("../../../../docs/tutorial.md");
    let begin = "```toml file=roundelay.toml\n";
    let tutorial: Vec<&str> =
        tutorial.split(begin).skip(1).map(|rest| rest.split_once("```").expect("it ends").0).collect();
    assert!(!tutorial.is_empty(), "the tutorial has a configuration");
    let example = include_str!("../../../../roundelay.example.toml");
    let (stated, all) = (uncommented(false), uncommented(true));
    let compose = include_str!("../../../../deploy/compose/roundelay.toml");
    for text in [example, &stated, &all, compose].into_iter().chain(tutorial) {
        let wrong: Vec<String> =
            validator.iter_errors(&json(text)).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(wrong.is_empty(), "{wrong:#?}\n{text}");
    }
    for (text, fits) in [
        ("", true),
        ("[kinds.a]\nevery = \"1h 30m\"\nretry.backoff = [\"1s\"]", true),
        ("[kinds.a]\nretry.backoff = \"1s\"", false),
        ("[kinds.a]\nevery = 5", false),
        ("[kinds.a]\nevery = \"5 parsecs\"", false),
        ("[kinds.a]\neverry = \"5m\"", false),
        ("[kinds.a]\nfrom = \"begin\"", false),
        ("[kinds.a]\nhandler.http = {}", false),
        ("[kinds.a]\nhandler.http.url = { file = \"/a\" }", true),
        ("[kinds.a]\nhandler.http.url = { fil = \"/a\" }", false),
        ("[kinds.a]\nhandler.http = { url = \"http://h\", sign = { env = \"KEY\" } }", true),
        ("[kinds.a]\nhandler.http = { url = \"http://h\", sign = [\"a\", { env = \"KEY\" }] }", true),
        ("[queues.a]\nconcurrency = 0", false),
        ("[queues.a]\nthrottle = { file = \"/a\" }", false),
        ("[throttles.a]\nallow = 1", false),
        ("[tracing]\nsample = 1.1", false),
    ] {
        assert_eq!(validator.is_valid(&json(text)), fits, "{text}");
    }
}

#[test]
fn the_example_has_every_setting() {
    let all = json(&uncommented(true));
    let root = Node::root();
    let settings: Vec<&Node> = root.all().into_iter().filter(|node| node.is_setting()).collect();
    assert!(settings.len() > 100, "only {} settings were found", settings.len());
    let absent: Vec<String> = settings
        .iter()
        .filter(|node| probe::places(&all, &node.path).is_empty())
        .map(|node| node.path.join("."))
        .collect();
    assert!(absent.is_empty(), "roundelay.example.toml does not have {absent:#?}");
    for node in &settings {
        assert!(node.words("description").is_some_and(|words| words.ends_with('.')), "{:?} has no words", node.path);
    }
}

#[test]
fn what_may_be_secret_is_what_the_list_of_secrets_has() {
    let secret = serde_json::json!({ "$ref": "#/$defs/Secret" });
    let schema = schema();
    let shape = resolved(&schema, &secret);
    for node in Node::root().all() {
        let mut of = node.schema.clone();
        of.insert("description".into(), shape["description"].clone());
        let (typed, listed) = (of.get("anyOf") == shape.get("anyOf"), is_secret(&node.path));
        // A list of secrets may be a secret itself, as one is.
        let several = of.get("anyOf").and_then(|choices| choices.get(0)) == Some(&secret);
        assert_eq!(typed || several, listed, "{:?}: its type, and SECRETS in secret.rs", node.path);
    }
}

#[test]
fn the_pattern_of_durations_takes_what_is_one() {
    let schema = serde_json::to_value(schemars::schema_for!(super::raw::HumanDuration)).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    for text in [
        "30s",
        "0s",
        "0",
        "250ms",
        "1h 30m",
        "1h30m",
        " 5 m ",
        "1.5h",
        "7days",
        "1M",
        "1w",
        "2years",
        "3µs",
        "",
        "5",
        "s",
        "5 parsecs",
        "-5s",
        "1h 30",
        "1,5h",
        "5S",
        ".5s",
        "5.s",
        "5m!",
    ] {
        assert_eq!(validator.is_valid(&text.into()), parse_duration(text).is_ok(), "`{text}`");
    }
}
