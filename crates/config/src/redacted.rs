//! A configuration as people may see it: without what may be secret (pure).

use std::collections::BTreeMap;

use roundelay_model::secret::{HIDDEN, Secret};
use toml::{Table, Value};

use super::secret::{is_secret, takes_a_file};

/// The same configuration with `…` in place of what may be secret, and without comments. Of a secret that `text`
/// has elsewhere, what may be shown stands in its place: so it can be read again, for a simulation, without
/// that place. `fetched` are the secrets that are in force, and `files` the texts of files by their names. Nothing when
/// `text` is not TOML.
pub(super) fn shown(
    text: &str,
    fetched: &BTreeMap<Vec<String>, Secret>,
    files: &BTreeMap<String, String>,
) -> Option<String> {
    let mut table: Table = text.parse().ok()?;
    // Keys have a form, too, and a reader of the redacted text has nothing to open with them.
    table.remove(KEYS);
    let mut path = Vec::new();
    for (key, value) in &mut table {
        path.push(key.clone());
        hide(&mut path, value, fetched);
        path.pop();
    }
    let calendars = table.get_mut("calendars").and_then(Value::as_table_mut);
    for calendar in calendars.into_iter().flat_map(|calendars| calendars.iter_mut().map(|(_, calendar)| calendar)) {
        if let Some(Value::String(ics)) = calendar.get_mut("ics")
            && let Some(text) = files.get(ics)
        {
            ics.clone_from(text);
        }
    }
    toml::to_string(&table).ok()
}

/// What cannot be hidden and read again, and its table: a secret to sign with has a form.
const LEFT_OUT: (&str, &str) = ("http", "sign");
/// The table of keys, which cannot be hidden and read again either.
const KEYS: &str = "encryption";

fn hide(path: &mut Vec<String>, value: &mut Value, fetched: &BTreeMap<Vec<String>, Secret>) {
    if value.is_table()
        && let Some(secret) = fetched.get(path)
    {
        *value = Value::String(secret.expose().into());
    }
    let argument = path.last().is_some_and(|key| key == "argv");
    match value {
        // Empty, it is none, and can be read again.
        Value::String(text) if text.is_empty() => {}
        Value::String(text) if is_secret(path) && !(is_for_a_url(path) && is_url(text)) => *text = HIDDEN.into(),
        Value::String(text) => *text = without_secrets(text),
        // Of a command the program, and not what it is given.
        Value::Array(words) if argument => {
            words.iter_mut().skip(1).for_each(|word| *word = Value::String(HIDDEN.into()));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| hide(path, value, fetched)),
        Value::Table(table) => {
            if path.last().is_some_and(|key| key == LEFT_OUT.0) {
                table.remove(LEFT_OUT.1);
            }
            for (key, value) in table {
                path.push(key.clone());
                hide(path, value, fetched);
                path.pop();
            }
        }
        // A number can be a password.
        other if is_secret(path) => *other = Value::String(HIDDEN.into()),
        _ => {}
    }
}

/// Whether the setting is for a URL, of which all but the credentials is shown.
fn is_for_a_url(path: &[String]) -> bool {
    takes_a_file(path) && !path.last().is_some_and(|key| key == "username" || key == "password")
}

/// Whether it is a URL, or what may stand in place of one.
fn is_url(text: &str) -> bool {
    text.contains("://") || text == "embedded"
}

/// A URL without user name, password and query; every other text as it is.
fn without_secrets(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let path = path.split(['?', '#']).next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Config;

    #[test]
    fn nothing_secret_is_shown_and_what_is_shown_can_be_read_again() {
        let text = r#"
            # a comment with canary-0
            [broker]
            url = "amqp://user:canary-1@rabbit:5672/%2f?auth=canary-2"
            management = "https://ops:canary-3@rabbit:15671"
            password = "canary-12://x"
            [tracing]
            otlp = ""
            [encryption]
            seal = "k"
            keys.k = "canary-13"
            [ledger]
            url = "postgres://user:canary-4@db/roundelay?password=canary-5"
            [queues.work]
            [kinds.sync]
            every = "10m"
            queue = "work"
            [kinds.sync.handler.http]
            url = "https://canary-6@api.example/{{ key }}/x?token=canary-7"
            headers = { Authorization = "Bearer canary-8" }
            sign = "whsec_canary-11"
            [kinds.job.handler.exec]
            argv = ["/usr/bin/job", "--password=canary-10"]
            env = { TOKEN = "canary-9" }
        "#;
        let shown = shown(text, &BTreeMap::new(), &BTreeMap::new()).unwrap();
        assert!(!shown.contains("canary"), "{shown}");
        assert!(
            shown.contains("rabbit:5672/%2f") && shown.contains("/usr/bin/job") && shown.contains("10m"),
            "{shown}"
        );
        let again = Config::parse(&shown, "r.toml", []).unwrap();
        assert_eq!(again.kinds.keys().collect::<Vec<_>>(), ["job", "sync"]);
        assert_eq!(super::shown("[broken", &BTreeMap::new(), &BTreeMap::new()), None);
    }
}
