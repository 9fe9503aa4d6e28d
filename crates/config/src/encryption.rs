//! `[encryption]`: which keys there are, and which of them seals.

use std::collections::BTreeMap;

use roundelay_model::encryption::{Key, Keyring, MAX_KEY_NAME, may_name_a_key};
use roundelay_model::secret::Secret;

use super::raw;
use super::read::nearest;
use crate::problems::Problems;

/// The word for: what is plain is refused.
const REQUIRE: &str = "require";

pub(super) fn check(problems: &mut Problems, raw: raw::Encryption) -> Keyring {
    let mut keys = BTreeMap::new();
    for (name, text) in &raw.keys {
        let path = ["encryption", "keys", name];
        if !may_name_a_key(name) {
            let message = format!("a name of 1 to {MAX_KEY_NAME} letters, digits, dashes, underscores and dots");
            problems.add(&path, message);
        }
        match Key::parse(text.expose()) {
            Ok(key) => drop(keys.insert(name.clone(), key)),
            Err(why) => problems.add(&path, why),
        }
    }
    // Empty, as a variable cannot be absent from every file that names it, it says that nothing is sealed.
    let said = raw.seal.filter(|seal| !seal.is_empty());
    let (seal, strict) = match said.as_deref().map(|said| sealing(said, &raw.keys)) {
        None => (None, false),
        Some(Ok((name, strict))) => (Some(name), strict),
        Some(Err(message)) => {
            problems.add(&["encryption", "seal"], message);
            (None, false)
        }
    };
    let seal = seal.filter(|name| keys.contains_key(name));
    Keyring::new(keys, seal).unwrap_or_default().strict(strict)
}

/// Which key seals, and whether what is plain is refused. No key's name has a colon.
fn sealing(said: &str, keys: &BTreeMap<String, Secret>) -> Result<(String, bool), String> {
    let (name, strict) = match said.split_once(':') {
        Some((REQUIRE, name)) => (name, true),
        None if said == REQUIRE => match keys.keys().collect::<Vec<_>>().as_slice() {
            [only] if *only != REQUIRE => (only.as_str(), true),
            _ => {
                return Err(
                    "with `require` alone there is one key under encryption.keys, with another name than that; \
                            else say which seals: \"require:NAME\""
                        .into(),
                );
            }
        },
        _ => (said, false),
    };
    if keys.contains_key(name) {
        return Ok((name.to_owned(), strict));
    }
    let hint = match nearest(name, keys.keys().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("add encryption.keys.{name}"),
    };
    Err(format!("there is no key of this name; {hint}"))
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
        assert_eq!((only.seal(), only.names().collect::<Vec<_>>()), (None, vec!["a"]), "it opens, and seals nothing");
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
            ("[encryption]\nseal = 'require'\n", "r.toml:2: encryption.seal: with `require` alone there is one key"),
            ("[encryption]\nseal = 'require'\nkeys.a = 'KEY'\nkeys.b = 'KEY'\n", "say which seals: \"require:NAME\""),
            ("[encryption]\nseal = 'require'\nkeys.require = 'KEY'\n", "with another name than that"),
            ("[encryption]\nseal = 'require:kay'\nkeys.key = 'KEY'\n", "did you mean `key`?"),
            (
                "[encryption]\nseal = 'a'\n",
                "r.toml:2: encryption.seal: there is no key of this name; add encryption.keys.a",
            ),
            ("[encryption]\nseal = 'kay'\nkeys.key = 'KEY'\n", "did you mean `key`?"),
            ("[encryption]\nkeys.a = 'canary'\n", "r.toml:2: encryption.keys.a: is not base64"),
            ("[encryption]\nkeys.a = 'Y2FuYXJ5'\n", "encryption.keys.a: has 6 bytes"),
            ("[encryption]\nkeys.'a:b' = 'KEY'\n", "encryption.keys.a:b: a name of 1 to 64"),
            ("[encryption]\nsael = 'a'\n", "did you mean `seal`?"),
        ];
        for (text, words) in table {
            let message = load(text).unwrap_err();
            assert!(message.contains(words), "{text}: {message}");
            assert!(!message.contains("canary") && !message.contains("Y2Fu") && !message.contains(KEY), "{message}");
        }
    }
}
