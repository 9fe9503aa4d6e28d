//! `[encryption]`: which keys there are, and which of them seals (encrypts what is new).

use std::collections::BTreeMap;

use roundelay_model::encryption::{Key, Keyring, MAX_KEY_NAME, may_name_a_key};
use roundelay_model::secret::Secret;

use super::raw;
use super::read::nearest;
use crate::problems::Problems;

/// As the value of `encryption.seal`, or before its colon: what is not sealed is refused.
const REQUIRE: &str = "require";

/// Checks the table, and makes the keys; what is wrong goes to `problems`.
pub(super) fn check(problems: &mut Problems, raw: raw::Encryption) -> Keyring {
    let mut keys = BTreeMap::new();
    for (name, text) in &raw.keys {
        let path = ["encryption", "keys", name];
        if !may_name_a_key(name) {
            let message =
                format!("the name must have 1 to {MAX_KEY_NAME} ASCII letters, digits, dashes, underscores or dots");
            problems.add(&path, message);
        }
        match Key::parse(text.expose()) {
            Ok(key) => drop(keys.insert(name.clone(), key)),
            Err(why) => problems.add(&path, why),
        }
    }
    // An empty value is as none: a file that takes it from a variable cannot leave the setting out.
    let value = raw.seal.filter(|seal| !seal.is_empty());
    let (seal, strict) = match value.as_deref().map(|value| parse_seal(value, &raw.keys)) {
        None => (None, false),
        Some(Ok((name, strict))) => (Some(name), strict),
        Some(Err(message)) => {
            problems.add(&["encryption", "seal"], message);
            (None, false)
        }
    };
    // A key that could not be read is among the problems, so the keyring is not used.
    let seal = seal.filter(|name| keys.contains_key(name));
    Keyring::new(keys, seal).unwrap_or_default().strict(strict)
}

/// Reads `NAME`, `require` or `require:NAME`: the key that seals, and whether what is not sealed is refused. No key's
/// name has a colon.
fn parse_seal(value: &str, keys: &BTreeMap<String, Secret>) -> Result<(String, bool), String> {
    let (name, strict) = match value.split_once(':') {
        Some((REQUIRE, name)) => (name, true),
        None if value == REQUIRE => match keys.keys().collect::<Vec<_>>().as_slice() {
            [only] if *only != REQUIRE => (only.as_str(), true),
            _ => {
                return Err(
                    "`require` without a name needs exactly one key under encryption.keys, with another name than \
                     `require`; else name the key that seals: \"require:NAME\""
                        .into(),
                );
            }
        },
        _ => (value, false),
    };
    if keys.contains_key(name) {
        return Ok((name.to_owned(), strict));
    }
    let hint = match nearest(name, keys.keys().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None if may_name_a_key(name) => format!("add encryption.keys.{name}"),
        None => "write NAME or require:NAME".into(),
    };
    Err(format!("there is no key `{name}` under encryption.keys; {hint}"))
}

#[cfg(test)]
mod tests {
    use crate::settings::Config;

    const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+Pw==";

    fn load(text: &str) -> Result<Config, String> {
        Config::parse(&text.replace("KEY", KEY), "r.toml", []).map_err(|error| error.to_string())
    }

    #[test]
    fn a_table_of_keys() {
        assert!(load("").unwrap().encryption.seal().is_none());
        let only = load("[encryption]\nkeys.a = 'KEY'\n").unwrap().encryption;
        assert_eq!(
            (only.seal(), only.names().collect::<Vec<_>>()),
            (None, vec!["a"]),
            "what is sealed is opened, and nothing is sealed anew"
        );
        assert!(load("[encryption]\nseal = ''\nkeys.a = 'KEY'\n").unwrap().encryption.seal().is_none());
        assert_eq!(load("[encryption]\nseal = 'a'\nkeys.a = 'KEY'\n").unwrap().encryption.seal(), Some("a"));
        for (text, seal) in [
            ("seal = 'require'\nkeys.a = 'KEY'\n", "a"),
            ("seal = 'require:a'\nkeys.a = 'KEY'\nkeys.b = 'KEY'\n", "a"),
            ("seal = 'require:require'\nkeys.require = 'KEY'\n", "require"),
        ] {
            let ring = load(&format!("[encryption]\n{text}")).unwrap().encryption;
            assert_eq!((ring.seal(), ring.is_strict()), (Some(seal), true), "{text}");
        }
        assert!(!load("[encryption]\nseal = 'a'\nkeys.a = 'KEY'\n").unwrap().encryption.is_strict());
        let table = [
            (
                "[encryption]\nseal = 'require'\n",
                "r.toml:2: encryption.seal: `require` without a name needs exactly one key",
            ),
            (
                "[encryption]\nseal = 'require'\nkeys.a = 'KEY'\nkeys.b = 'KEY'\n",
                "name the key that seals: \"require:NAME\"",
            ),
            ("[encryption]\nseal = 'require'\nkeys.require = 'KEY'\n", "with another name than `require`"),
            ("[encryption]\nseal = 'require:kay'\nkeys.key = 'KEY'\n", "did you mean `key`?"),
            (
                "[encryption]\nseal = 'a'\n",
                "r.toml:2: encryption.seal: there is no key `a` under encryption.keys; add encryption.keys.a",
            ),
            ("[encryption]\nseal = 'requre:a'\nkeys.b = 'KEY'\n", "write NAME or require:NAME"),
            ("[encryption]\nseal = 'kay'\nkeys.key = 'KEY'\n", "did you mean `key`?"),
            ("[encryption]\nkeys.a = 'canary'\n", "r.toml:2: encryption.keys.a: is not base64"),
            ("[encryption]\nkeys.a = 'Y2FuYXJ5'\n", "encryption.keys.a: has 6 bytes"),
            ("[encryption]\nkeys.'a:b' = 'KEY'\n", "encryption.keys.a:b: the name must have 1 to 64 ASCII"),
            ("[encryption]\nsael = 'a'\n", "did you mean `seal`?"),
        ];
        for (text, words) in table {
            let message = load(text).unwrap_err();
            assert!(message.contains(words), "{text}: {message}");
            assert!(!message.contains("canary") && !message.contains("Y2Fu") && !message.contains(KEY), "{message}");
        }
    }
}
