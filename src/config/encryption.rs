//! `[encryption]`: which keys there are, and which of them seals.

use std::collections::BTreeMap;

use super::check::Problems;
use super::raw;
use super::read::nearest;
use crate::encryption::{Key, Keyring, LONGEST_NAME, may_name_a_key};

pub(super) fn check(problems: &mut Problems, raw: raw::Encryption) -> Keyring {
    let mut keys = BTreeMap::new();
    for (name, text) in &raw.keys {
        let path = ["encryption", "keys", name];
        if !may_name_a_key(name) {
            let message = format!("a name of 1 to {LONGEST_NAME} letters, digits, dashes, underscores and dots");
            problems.add(&path, message);
        }
        match Key::parse(text.expose()) {
            Ok(key) => drop(keys.insert(name.clone(), key)),
            Err(why) => problems.add(&path, why),
        }
    }
    // Empty, as a variable cannot be absent from every file that names it, it says that nothing is sealed.
    let seal = raw.seal.filter(|name| !name.is_empty());
    if let Some(name) = seal.as_ref().filter(|name| !raw.keys.contains_key(*name)) {
        let hint = match nearest(name, raw.keys.keys().map(String::as_str)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("add encryption.keys.{name}"),
        };
        problems.add(&["encryption", "seal"], format!("there is no key of this name; {hint}"));
    }
    let seal = seal.filter(|name| keys.contains_key(name));
    Keyring::new(keys, seal).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

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
        let table = [
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
