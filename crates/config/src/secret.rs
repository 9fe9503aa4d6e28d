//! Secrets: how they are kept, shown, and brought in from files and from the environment.
//!
//! A setting that may hold one ([`is_secret`]) is text, or a table that says where the text is:
//! `{ file = "PATH" }` or `{ env = "NAME" }`. What the table names is put in its place before anything
//! else looks at the setting, so all rules for the text hold for it, too.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use roundelay_model::secret::Secret;
use serde_json::Value;
use zeroize::Zeroizing;

/// A larger file is no secret, but a wrong path.
const MAX_FILE: u64 = 64 << 10;

/// The settings that may be secret; `*` stands for any one name.
const SECRETS: [&[&str]; 17] = [
    &["broker", "url"],
    &["broker", "username"],
    &["broker", "password"],
    &["broker", "management"],
    &["ledger", "url"],
    &["ledger", "username"],
    &["ledger", "password"],
    &["kinds", "*", "handler", "http", "url"],
    &["kinds", "*", "roster", "http"],
    &["kinds", "*", "roster", "sql", "url"],
    &["calendars", "*", "sql", "url"],
    &["kinds", "*", "handler", "http", "sign"],
    &["tracing", "otlp"],
    // One of several; only the configuration names them.
    &["kinds", "*", "handler", "http", "sign", "*"],
    // Names that are the user's own: a variable that ends in `_FILE` may be one of them.
    &["kinds", "*", "handler", "http", "headers", "*"],
    &["tracing", "headers", "*"],
    &["encryption", "keys", "*"],
];
/// The variables of a program that handles jobs: the user's own names, too.
const ENVIRONMENT: &[&str] = &["kinds", "*", "handler", "exec", "env", "*"];

/// Whether a setting may be secret.
pub fn is_secret(path: &[String]) -> bool {
    SECRETS.iter().chain([&ENVIRONMENT]).any(|pattern| pattern.len() == path.len() && begins(pattern, path))
}

/// Whether it is one that a variable which ends in `_FILE` may set.
pub fn takes_a_file(path: &[String]) -> bool {
    let fixed = |pattern: &&&[&str]| pattern.last() != Some(&"*");
    SECRETS.iter().filter(fixed).any(|pattern| pattern.len() == path.len() && begins(pattern, path))
}

/// Whether it is one, or may contain one.
pub fn may_contain_secrets(path: &[String]) -> bool {
    SECRETS.iter().chain([&ENVIRONMENT]).any(|pattern| begins(pattern, path))
}

/// Whether a pattern's first parts are this path.
fn begins(pattern: &[&str], path: &[String]) -> bool {
    path.len() <= pattern.len() && pattern.iter().zip(path).all(|(part, name)| *part == "*" || *part == name.as_str())
}

/// Where secrets are fetched from.
pub struct Outside<'a> {
    /// The environment.
    pub variables: &'a BTreeMap<String, String>,
    /// Reads a file.
    pub file: &'a dyn Fn(&Path) -> Result<String, String>,
}

/// A setting of which something is wrong, and what.
type Wrong = (Vec<String>, String);

/// Puts the text of secrets in place of the tables that say where it is. Returns the text of each secret that
/// there is then, and what is wrong.
pub fn fetch(tree: &mut Value, outside: &Outside<'_>) -> (BTreeMap<Vec<String>, Secret>, Vec<Wrong>) {
    let (mut fetched, mut wrong) = (BTreeMap::new(), Vec::new());
    walk(tree, &mut Vec::new(), outside, &mut fetched, &mut wrong);
    (fetched, wrong)
}

fn walk(
    value: &mut Value,
    path: &mut Vec<String>,
    outside: &Outside<'_>,
    fetched: &mut BTreeMap<Vec<String>, Secret>,
    wrong: &mut Vec<Wrong>,
) {
    for (number, value) in value.as_array_mut().into_iter().flatten().enumerate() {
        path.push(number.to_string());
        walk(value, path, outside, fetched, wrong);
        path.pop();
    }
    let Some(table) = value.as_object_mut() else {
        let text = match value {
            Value::String(text) => Some(Secret::new(text.as_str())),
            // A password can look like one.
            Value::Number(number) => Some(Secret::new(number.to_string())),
            _ => None,
        };
        if let Some(text) = text.filter(|_| is_secret(path)) {
            fetched.insert(path.clone(), text);
        }
        return;
    };
    if !is_secret(path) {
        for (name, value) in table {
            path.push(name.clone());
            walk(value, path, outside, fetched, wrong);
            path.pop();
        }
        return;
    }
    let mut entries = table.iter();
    let text = match (entries.next(), entries.next()) {
        (Some((key, Value::String(place))), None) if key == "file" => (outside.file)(Path::new(place)),
        (Some((key, Value::String(name))), None) if key == "env" => match outside.variables.get(name) {
            Some(text) if !text.is_empty() => Ok(text.clone()),
            Some(_) => Err(format!("the environment variable {name} is empty")),
            None => Err(format!("there is no environment variable {name}")),
        },
        _ => Err("write the text itself, { file = \"PATH\" } or { env = \"NAME\" }".into()),
    };
    match text {
        Ok(text) => {
            fetched.insert(path.clone(), Secret::new(&*text));
            *value = Value::String(text);
        }
        Err(why) => wrong.push((path.clone(), why)),
    }
}

/// The text of a file that holds a secret, without the newline at its end.
///
/// # Errors
/// Says what is wrong with which file, and nothing of what it holds.
pub fn read(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let cannot = |error: std::io::Error| format!("the file {shown} cannot be read: {error}");
    // To open a named pipe would wait for a writer.
    let is = std::fs::metadata(path).map_err(cannot)?;
    if !is.is_file() {
        return Err(format!("{shown} is not a file"));
    }
    let file = std::fs::File::open(path).map_err(cannot)?;
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(format!("the file {shown} has more than {} KiB, which is no secret", MAX_FILE >> 10));
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| format!("the file {shown} is not UTF-8 text"))?;
    let text = text.strip_suffix('\n').map_or(text, |text| text.strip_suffix('\r').unwrap_or(text));
    if text.is_empty() {
        return Err(format!("the file {shown} is empty"));
    }
    if is.permissions().mode() & 0o004 != 0 {
        tracing::warn!(file = %shown, "every user of this machine may read this file, which holds a secret; `chmod o-r` it");
    }
    Ok(text.to_owned())
}

/// A larger file is no calendar.
const MAX_TEXT: u64 = 16 << 20;

/// The text of a file that is no secret.
pub fn text(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let cannot = |error: std::io::Error| format!("the file {shown} cannot be read: {error}");
    let is = std::fs::metadata(path).map_err(cannot)?;
    if !is.is_file() {
        return Err(format!("{shown} is not a file"));
    }
    if is.len() > MAX_TEXT {
        return Err(format!("the file {shown} has more than {} MiB", MAX_TEXT >> 20));
    }
    let bytes = std::fs::read(path).map_err(cannot)?;
    String::from_utf8(bytes).map_err(|_| format!("the file {shown} is not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roster::RosterSource;
    use crate::settings::{Config, HandlerSettings};
    use roundelay_broker::BrokerUrl;
    use roundelay_ledger::LedgerUrl;
    use roundelay_model::secret::Secret;

    #[test]
    fn what_is_shown_has_no_credentials() {
        let table = [
            ("amqp://u:canary@h:5672/%2f", "amqp://h:5672/%2f"),
            ("amqp://h?auth=canary", "amqp://h"),
            ("https://canary@h/x.csv?token=canary#canary", "https://h/x.csv"),
            ("postgres://u:canary@h/db?password=canary&sslmode=require", "postgres://h/db?sslmode=require"),
            ("postgres://u:canary@h/db?sslmode=require", "postgres://h/db?sslmode=require"),
            ("canary", "…"),
            ("embedded:canary", "…"),
        ];
        for (text, shown) in table {
            assert_eq!(Secret::new(text).to_string(), shown);
            assert_eq!(format!("{:?}", Secret::new(text)), format!("Secret({shown})"));
        }
    }

    #[test]
    fn user_and_password_go_into_the_url() {
        let table = [
            ("amqp://h/v", Some("u"), Some("p@ss/w:rd%"), "amqp://u:p%40ss%2Fw%3Ard%25@h/v"),
            ("amqp://old:older@h/v", Some("u"), Some("p"), "amqp://u:p@h/v"),
            ("amqp://old:older@h/v", None, Some("p"), "amqp://old:p@h/v"),
            ("amqp://old:older@h/v", Some("u"), None, "amqp://u:older@h/v"),
            ("amqp://h", Some("u"), None, "amqp://u@h"),
            ("postgres://a,b:5433/db?x=@", Some("u"), Some("p"), "postgres://u:p@a,b:5433/db?x=@"),
            ("amqp://u:p@h", None, None, "amqp://u:p@h"),
            ("embedded", Some("u"), Some("p"), "embedded"),
        ];
        for (url, user, password, expected) in table {
            let (user, password) = (user.map(Secret::new), password.map(Secret::new));
            let whole = Secret::new(url).with_login(user.as_ref(), password.as_ref());
            assert_eq!(whole.expose(), expected);
        }
    }

    #[test]
    fn files_that_hold_no_secret_are_named_and_not_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let told = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            read(&path).map_err(|why| why.replace(folder.path().to_str().unwrap(), ""))
        };
        for (bytes, text) in [
            (&b"canary"[..], "canary"),
            (b"canary\n", "canary"),
            (b"canary\r\n", "canary"),
            (b" canary \n\n", " canary \n"),
        ] {
            assert_eq!(told(bytes).as_deref(), Ok(text));
        }
        let large = vec![b'x'; MAX_FILE as usize + 1];
        for (bytes, words) in [
            (&b""[..], "the file /secret is empty"),
            (b"\n", "the file /secret is empty"),
            (b"canary\xff", "the file /secret is not UTF-8 text"),
            (&large, "the file /secret has more than 64 KiB"),
        ] {
            let why = told(bytes).unwrap_err();
            assert!(why.contains(words) && !why.contains("canary"), "{why}");
        }
        assert!(told(&large[1..]).is_ok());
        assert!(read(folder.path()).unwrap_err().ends_with("is not a file"));
        let absent = read(&folder.path().join("absent")).unwrap_err();
        assert!(absent.contains("/absent cannot be read: No such file"), "{absent}");
    }

    const TEXT: &str = r#"
        [broker]
        url = { file = "/s/broker" }
        username = { file = "/s/user" }
        password = { env = "BROKER_PASSWORD" }
        management = "http://h:15672"
        [ledger]
        url = { env = "LEDGER" }
        [encryption]
        seal = "new"
        keys = { new = { file = "/s/key" }, old = { env = "OLD_KEY" } }
        [kinds.a]
        every = "1h"
        roster.sql = { url = { file = "/s/roster" }, query = "SELECT 1" }
        handler.http = { url = { file = "/s/url" }, headers = { Authorization = { file = "/s/token" } } }
        [kinds.b]
        every = "1h"
        roster.http = { file = "/s/roster-http" }
        handler.exec = { argv = ["/bin/true"], env = { TOKEN = { env = "TOKEN" } } }
    "#;

    const KEY: &str = "Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYQ==";

    fn files(path: &Path) -> Result<String, String> {
        match path.to_str().unwrap() {
            "/s/broker" => Ok("amqp://h/v".into()),
            "/s/other" => Ok("amqp://other/v".into()),
            "/s/user" => Ok("us:er".into()),
            "/s/roster" => Ok("postgres://u:canary@h/r".into()),
            "/s/roster-http" => Ok("https://u:canary@h/x.csv?token=canary".into()),
            "/s/url" => Ok("http://u:canary@h/{{ key }}?token=canary".into()),
            "/s/key" => Ok(KEY.into()),
            "/s/token" => Ok("Bearer canary://x".into()),
            other => Err(format!("the file {other} cannot be read")),
        }
    }

    fn load(text: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
        let given = [
            ("BROKER_PASSWORD", "canary@/"),
            ("LEDGER", "postgres://u:canary@h/db"),
            ("TOKEN", "canary"),
            ("OLD_KEY", KEY),
        ];
        let variables = given.iter().chain(variables).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Config::read(text, "r.toml", variables, &files, &files).map_err(|error| error.to_string())
    }

    #[test]
    fn secrets_come_from_files_and_from_the_environment() {
        let config = load(TEXT, &[]).unwrap();
        let BrokerUrl::Amqp(url) = &config.broker.url else { panic!("{:?}", config.broker) };
        assert_eq!(url.expose(), "amqp://us%3Aer:canary%40%2F@h/v");
        let management = config.broker.management.as_ref().unwrap().expose();
        assert_eq!(management, "http://us%3Aer:canary%40%2F@h:15672", "the same user, unless the URL names one");
        assert_eq!(config.ledger.url, LedgerUrl::Postgres("postgres://u:canary@h/db".into()));
        let HandlerSettings::Http(http) = &config.kinds["a"].handler else { panic!("not http") };
        assert_eq!(http.url.expose(), "http://u:canary@h/{{ key }}?token=canary");
        assert_eq!(http.headers["Authorization"].expose(), "Bearer canary://x");
        let HandlerSettings::Exec(exec) = &config.kinds["b"].handler else { panic!("not exec") };
        assert_eq!(exec.env["TOKEN"].expose(), "canary");
        let RosterSource::Http { url, .. } = &config.kinds["b"].roster.as_ref().unwrap().source else {
            panic!("not http")
        };
        assert_eq!(url.expose(), "https://u:canary@h/x.csv?token=canary");

        assert_eq!((config.encryption.seal(), config.encryption.names().count()), (Some("new"), 2));

        let debug = format!("{config:?}");
        assert!(!debug.contains("Y2FuYX") && !config.shown.contains("Y2FuYX"), "{debug}");
        assert!(!debug.contains("canary") && !config.shown.contains("canary"), "{debug}");
        // What is shown says nothing of files, and a simulation can read it.
        let again = Config::parse(&config.shown, "r.toml", []).unwrap();
        assert!(config.shown.contains("amqp://h/v") && !config.shown.contains("/s/"), "{}", config.shown);
        assert_eq!(again.kinds.len(), 2);
    }

    #[test]
    fn what_the_environment_sets_over_a_file_is_shown_and_can_be_read_again() {
        for (name, value, shown) in [
            ("ROUNDELAY__BROKER__URL", "amqp://u:canary@other/v", "amqp://other/v"),
            ("ROUNDELAY__BROKER__PASSWORD", "8023", "password = \"…\""),
            ("ROUNDELAY__LEDGER__URL", "postgres://u:canary@other/db", "postgres://other/db"),
            ("ROUNDELAY__KINDS__A__ROSTER__SQL", "{ url = 'sqlite:///other', query = 'SELECT 2' }", "sqlite:///other"),
            ("ROUNDELAY__KINDS__A__HANDLER__HTTP__HEADERS__AUTHORIZATION", "canary", "Authorization = \"…\""),
        ] {
            let config = load(TEXT, &[(name, value)]).unwrap();
            assert!(config.shown.contains(shown) && !config.shown.contains("/s/"), "{name}: {}", config.shown);
            assert!(!config.shown.contains("canary") && !config.shown.contains("8023"), "{name}: {}", config.shown);
            let again = Config::parse(&config.shown, "r.toml", []);
            assert!(again.is_ok(), "{name}: {again:?} {}", config.shown);
        }
    }

    #[test]
    fn variables_name_files_too() {
        let url = |config: Config| match config.broker.url {
            BrokerUrl::Amqp(url) => url.expose().to_owned(),
            BrokerUrl::Embedded => "embedded".into(),
        };
        let plain = "[kinds.b]\nhandler.exec = { argv = [\"/bin/true\"] }\n";
        let variable = "ROUNDELAY__BROKER__URL_FILE";
        assert_eq!(url(load(plain, &[(variable, "/s/broker")]).unwrap()), "amqp://h/v");
        assert_eq!(
            url(load(plain, &[("roundelay__x", ""), (variable, "")]).unwrap()),
            "embedded",
            "empty sets nothing"
        );
        // Over whatever the file says, with a table or without.
        assert!(url(load(TEXT, &[(variable, "/s/other")]).unwrap()).ends_with("@other/v"));
        let inline = [("ROUNDELAY__BROKER__URL", "{ file = '/s/other' }")];
        assert!(url(load(TEXT, &inline).unwrap()).ends_with("@other/v"));
        let env = [("ROUNDELAY__BROKER__URL", "{ env = 'X' }"), ("X", "amqp://x")];
        assert!(url(load(TEXT, &env).unwrap()).ends_with("@x"), "not merged with the file's table");
        // Under names that are the user's own it is a name like any other.
        let config = load(plain, &[("ROUNDELAY__KINDS__B__HANDLER__EXEC__ENV__KEY_FILE", "/s/x")]).unwrap();
        let HandlerSettings::Exec(exec) = &config.kinds["b"].handler else { panic!("not exec") };
        assert_eq!(exec.env["KEY_FILE"].expose(), "/s/x");
    }

    #[test]
    fn what_is_wrong_with_a_secret_names_the_setting_and_not_the_secret() {
        type Variables = &'static [(&'static str, &'static str)];
        let table: [(&str, Variables, &str); 11] = [
            ("[broker]\nurl = { file = '/absent' }", &[], "r.toml:2: broker.url: the file /absent cannot be read"),
            ("[broker]\nurl = { env = 'NO' }", &[], "r.toml:2: broker.url: there is no environment variable NO"),
            ("[broker]\nurl = { env = 'E' }", &[("E", "")], "broker.url: the environment variable E is empty"),
            ("[broker]\nurl = { file = '/s/broker', env = 'X' }", &[], "write the text itself, { file"),
            ("[broker]\nurl = { fil = '/s/broker' }", &[], "r.toml:2: broker.url: write the text itself, { file"),
            ("[broker]\nurl = { file = '/s/token' }", &[], "broker.url: `…` is none of embedded"),
            ("[broker]\npassword = 8_023", &[], "r.toml:2: broker.password: invalid type: integer `…`"),
            ("[kinds.k.handler.http]\nurl = 'http://h/'\nheaders = 'canary'", &[], "headers: invalid type: string"),
            ("[kinds.k]\nqueue = { file = '/s/user' }", &[], "r.toml:2: kinds.k.queue: invalid type: map"),
            (
                "",
                &[("ROUNDELAY__BROKER__URL_FILE", "/absent")],
                "the file /absent cannot be read (set by the environment variable ROUNDELAY__BROKER__URL_FILE)",
            ),
            (
                "",
                &[("ROUNDELAY__BROKER__URL_FILE", "/s/broker"), ("ROUNDELAY__BROKER__URL", "amqp://u:canary@h")],
                "ROUNDELAY__BROKER__URL and ROUNDELAY__BROKER__URL_FILE both set it",
            ),
        ];
        for (text, variables, words) in table {
            let message = load(text, variables).unwrap_err();
            assert!(message.contains(words), "{text} {variables:?}: {message}");
            assert!(
                !message.contains("canary") && !message.contains("8_023") && !message.contains("8023"),
                "{message}"
            );
        }
        // All of them at once, and no more than is wrong.
        let message = load("[broker]\nurl = { file = '/a' }\n[ledger]\nurl = { file = '/b' }", &[]).unwrap_err();
        assert_eq!(message.lines().count(), 2, "{message}");
        // A text that a caller sends, to simulate it say, must not make the program read a file.
        let error = Config::parse("[broker]\nurl = { file = '/etc/passwd' }", "r.toml", []).unwrap_err().to_string();
        assert!(error.contains("broker.url: no file is read here"), "{error}");
    }
}
