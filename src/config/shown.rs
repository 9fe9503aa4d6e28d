//! A configuration as people may see it: without what may be secret (pure).

use toml::{Table, Value};

/// What stands in place of a value that may be secret.
const HIDDEN: &str = "…";
/// Tables whose values may be secret, whatever they are called.
const SECRET_TABLES: [&str; 2] = ["headers", "env"];

/// The same configuration with `…` in place of what may be secret, and without comments. It can be read again, for a
/// simulation. Nothing when `text` is not TOML.
pub(super) fn shown(text: &str) -> Option<String> {
    let mut table: Table = text.parse().ok()?;
    table.iter_mut().for_each(|(key, value)| hide(key, value, false));
    toml::to_string(&table).ok()
}

/// What cannot be hidden and read again, and its table: a secret to sign with has a form.
const LEFT_OUT: (&str, &str) = ("http", "sign");

fn hide(key: &str, value: &mut Value, secret: bool) {
    let secret = secret || SECRET_TABLES.contains(&key);
    match value {
        Value::String(text) if secret => *text = HIDDEN.into(),
        Value::String(text) => *text = without_secrets(text),
        // Of a command the program, and not what it is given.
        Value::Array(words) if key == "argv" => words.iter_mut().skip(1).for_each(|word| hide("", word, true)),
        Value::Array(values) => values.iter_mut().for_each(|value| hide("", value, secret)),
        Value::Table(table) => {
            if key == LEFT_OUT.0 {
                table.remove(LEFT_OUT.1);
            }
            table.iter_mut().for_each(|(key, value)| hide(key, value, secret));
        }
        _ => {}
    }
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
    use crate::config::Config;

    #[test]
    fn nothing_secret_is_shown_and_what_is_shown_can_be_read_again() {
        let text = r#"
            # a comment with canary-0
            [broker]
            url = "amqp://user:canary-1@rabbit:5672/%2f?auth=canary-2"
            management = "https://ops:canary-3@rabbit:15671"
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
        let shown = shown(text).unwrap();
        assert!(!shown.contains("canary"), "{shown}");
        assert!(
            shown.contains("rabbit:5672/%2f") && shown.contains("/usr/bin/job") && shown.contains("10m"),
            "{shown}"
        );
        let again = Config::parse(&shown, "r.toml", []).unwrap();
        assert_eq!(again.kinds.keys().collect::<Vec<_>>(), ["job", "sync"]);
        assert_eq!(super::shown("[broken"), None);
    }
}
