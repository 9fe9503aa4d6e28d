//! Texts of users, sealed while they lie somewhere (pure).
//!
//! What is sealed, by whom and when is said in `crates/engine/src/sealing.rs`; here is how. The cipher is AES-256-SIV
//! (RFC 5297): it authenticates, and it is deterministic. The same text in the same place gives the same bytes, which
//! this engine needs: to publish a job again must give the same message, and an entity that is enrolled again must be
//! known to be as it was. A reader of the ledger learns from it only that two texts of one place are the same.
//!
//! A sealed text is ASCII: `sealed:1:KEY:BASE64`. That is no JSON, and every text that is not sealed is JSON here, so
//! neither can be taken for the other, whatever a publisher writes.
//!
//! Where a text belongs ([`AssociatedData`]) is authenticated with it. So a sealed text that was moved to
//! another chain, or to another field, does not open there.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use aes_siv::KeyInit;
use aes_siv::siv::Aes256Siv;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// What a sealed text begins with; the number is that of the form.
const MARK: &str = "sealed:1:";
/// The bytes of a key: AES-256-SIV has one for the authentication and one for the cipher.
pub const KEY_BYTES: usize = 64;
/// The longest name of a key, in bytes.
pub const MAX_KEY_NAME: usize = 64;
/// The bytes of the synthetic initialisation vector, before what is encrypted.
const VECTOR: usize = 16;
/// What sealing adds to the length of a text at most, apart from a third of it: the synthetic initialisation vector,
/// padding, the mark and the name of the key.
const ADDED: usize = VECTOR * 4 / 3 + 8 + MARK.len() + MAX_KEY_NAME;

/// The longest that a text of so many bytes becomes when it is sealed.
pub const fn longest(text: usize) -> usize {
    text.div_ceil(3) * 4 + ADDED
}

/// Which text of a chain or a job is sealed. The word is authenticated, so it never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// What a chain's handler gets.
    Payload,
    /// What a chain's run hands on to the next.
    Carry,
    /// What a one-off job's handler gets.
    Job,
    /// A message that could not be used, as a whole.
    Message,
}

impl Field {
    const fn word(self) -> &'static str {
        match self {
            Self::Payload => "chain.payload",
            Self::Carry => "chain.carry",
            Self::Job => "job.payload",
            Self::Message => "message",
        }
    }
}

/// Where a text belongs.
#[derive(Clone, Copy, Debug)]
pub struct AssociatedData<'a> {
    field: Field,
    kind: &'a str,
    key: &'a str,
}

impl<'a> AssociatedData<'a> {
    /// A field of the chain, or of the job, of this kind and entity.
    pub const fn new(field: Field, kind: &'a str, key: &'a str) -> Self {
        Self { field, kind, key }
    }

    /// A whole message, whose kind is not known.
    pub const MESSAGE: Self = Self::new(Field::Message, "", "");

    fn parts(&self) -> [&[u8]; 3] {
        [self.field.word(), self.kind, self.key].map(str::as_bytes)
    }
}

/// Why a sealed text was not opened; phrased to follow "its payload ".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unopened {
    /// There is no key of that name here.
    #[error("is sealed with the key `{0}`, which is not under encryption.keys here")]
    NoKey(String),
    /// The key of that name does not open it, or does not open it here.
    #[error(
        "is sealed with the key `{0}`, and that does not open it: the bytes are another key's, or it was moved or changed"
    )]
    Forged(String),
    /// It is not of the form that it says it is.
    #[error("is no sealed text that this engine can read: it was damaged, or a newer engine has written it")]
    Damaged,
    /// It is not sealed, and only what is sealed is taken here.
    #[error(
        "is in the clear, and encryption.seal requires sealed ones: whoever has no key may have written it. Look at it; \
         `roundelay encryption --reseal` seals what lies in the ledger, and the API and `roundelay publish` seal what \
         they are given"
    )]
    Plain,
}

/// The bytes of one key; gone from memory when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Zeroizing<Vec<u8>>);

impl Key {
    /// Reads a key as the configuration has it: base64, in which white space does not count.
    ///
    /// # Errors
    /// Says what is wrong, and nothing of what the text holds.
    pub fn parse(text: &str) -> Result<Self, String> {
        let how = "`openssl rand -base64 64` makes one";
        let dense: Zeroizing<Vec<u8>> =
            Zeroizing::new(text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect());
        let bytes = STANDARD.decode(&*dense).map(Zeroizing::new);
        let bytes = bytes.map_err(|_| format!("is not base64: a key is {KEY_BYTES} random bytes in base64; {how}"))?;
        if bytes.len() != KEY_BYTES {
            return Err(format!("has {} bytes: a key is {KEY_BYTES} random bytes in base64; {how}", bytes.len()));
        }
        Ok(Self(bytes))
    }

    fn cipher(&self) -> Option<Aes256Siv> {
        Aes256Siv::new_from_slice(&self.0).ok()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// The keys of a configuration, and which of them seals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keyring {
    keys: BTreeMap<String, Key>,
    seal: Option<String>,
    /// What is plain is refused.
    strict: bool,
}

/// Whether a text is sealed, and with which key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form<'t> {
    /// It is not.
    Plain,
    /// With the key of this name.
    Sealed(&'t str),
}

/// What form a text has, as it says itself.
pub fn form(text: &str) -> Form<'_> {
    match split(text) {
        Some((name, _)) => Form::Sealed(name),
        None => Form::Plain,
    }
}

/// The name of the key, and what is sealed with it; nothing of what is plain.
fn split(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix(MARK)?.split_once(':').filter(|(name, _)| may_name_a_key(name))
}

/// Whether a key can be called so. Names stand in texts and in the log.
pub fn may_name_a_key(name: &str) -> bool {
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    (1..=MAX_KEY_NAME).contains(&name.len()) && name.bytes().all(plain)
}

/// Whether these bytes say that they are a sealed text, of whatever version.
pub fn is_sealed(bytes: &[u8]) -> bool {
    bytes.starts_with(b"sealed:")
}

/// Whether these bytes have the form of a sealed text of this version: what they say is not to be read in them.
pub fn has_the_form(bytes: &[u8]) -> bool {
    let sealed = std::str::from_utf8(bytes).ok().and_then(split).map(|(_, sealed)| STANDARD.decode(sealed));
    sealed.is_some_and(|sealed| sealed.is_ok_and(|sealed| sealed.len() >= VECTOR))
}

impl Keyring {
    /// These keys, of which the one that is named seals what is new; without a name nothing is sealed any more.
    ///
    /// # Errors
    /// The name, when there is no key of it.
    pub fn new(keys: BTreeMap<String, Key>, seal: Option<String>) -> Result<Self, String> {
        match seal {
            Some(name) if !keys.contains_key(&name) => Err(name),
            seal => Ok(Self { keys, seal, strict: false }),
        }
    }

    /// The same keys, which from now on take nothing that is plain, or again do.
    #[must_use]
    pub fn strict(self, strict: bool) -> Self {
        Self { strict: strict && self.seal.is_some(), ..self }
    }

    /// Whether what is plain is refused.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// The name of the key that seals what is new.
    pub fn seal(&self) -> Option<&str> {
        self.seal.as_deref()
    }

    /// The names of all keys.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }

    /// A text as it is to lie there: sealed, unless nothing is to be, or it says nothing (`null`).
    pub fn sealed(&self, place: AssociatedData<'_>, text: String) -> String {
        match &self.seal {
            Some(name) if text != "null" => self.sealed_with(name, place, text.as_bytes()).unwrap_or(text),
            _ => text,
        }
    }

    /// The forms in which the same text may lie there, but for the one that [`Self::sealed`] makes of it: plain, and
    /// sealed with each of the other keys.
    pub fn other_forms(&self, place: AssociatedData<'_>, text: &str) -> Vec<String> {
        if self.keys.is_empty() || text == "null" {
            return Vec::new();
        }
        let others = self.names().filter(|name| self.seal() != Some(name));
        let mut forms: Vec<String> = others.filter_map(|name| self.sealed_with(name, place, text.as_bytes())).collect();
        // Where it would be refused, what says the same in the clear is not as it should be.
        if self.seal.is_some() && !self.strict {
            forms.push(text.to_owned());
        }
        forms
    }

    fn sealed_with(&self, name: &str, place: AssociatedData<'_>, text: &[u8]) -> Option<String> {
        // It fails for more than 126 parts of a place, or beyond the end of memory.
        let sealed = self.keys.get(name)?.cipher()?.encrypt(place.parts(), text).ok()?;
        let mut form = format!("{MARK}{name}:");
        STANDARD.encode_string(sealed, &mut form);
        Some(form)
    }

    /// The text itself: what is plain is it already, as far as that is taken.
    ///
    /// # Errors
    /// [`Unopened`], with the name of the key that is wanted.
    pub fn opened<'t>(&self, place: AssociatedData<'_>, text: &'t str) -> Result<Cow<'t, str>, Unopened> {
        if !is_sealed(text.as_bytes()) {
            // What says nothing is never sealed.
            return if self.strict && text != "null" { Err(Unopened::Plain) } else { Ok(Cow::Borrowed(text)) };
        }
        let opened = self.opened_bytes(place, text.as_bytes())?;
        String::from_utf8(opened).map(Cow::Owned).map_err(|_| Unopened::Damaged)
    }

    /// Opens bytes that [are sealed](is_sealed).
    ///
    /// # Errors
    /// [`Unopened`].
    pub fn opened_bytes(&self, place: AssociatedData<'_>, sealed: &[u8]) -> Result<Vec<u8>, Unopened> {
        let text = std::str::from_utf8(sealed).map_err(|_| Unopened::Damaged)?;
        let (name, sealed) = split(text).ok_or(Unopened::Damaged)?;
        let key = self.keys.get(name).ok_or_else(|| Unopened::NoKey(name.to_owned()))?;
        let sealed = STANDARD.decode(sealed).map_err(|_| Unopened::Damaged)?;
        let forged = || Unopened::Forged(name.to_owned());
        key.cipher().ok_or_else(forged)?.decrypt(place.parts(), &sealed).map_err(|_| forged())
    }

    /// A message as a whole, sealed; nothing when nothing is to be.
    pub fn sealed_message(&self, body: &[u8]) -> Option<Vec<u8>> {
        self.sealed_with(self.seal()?, AssociatedData::MESSAGE, body).map(String::into_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> Key {
        Key::parse(&STANDARD.encode([byte; KEY_BYTES])).unwrap()
    }

    fn ring(keys: &[(&str, u8)], seal: Option<&str>) -> Keyring {
        let keys = keys.iter().map(|(name, byte)| ((*name).to_owned(), key(*byte))).collect();
        Keyring::new(keys, seal.map(Into::into)).unwrap()
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    const PLACE: AssociatedData<'_> = AssociatedData::new(Field::Payload, "sync", "app");
    const TEXT: &str = r#"{"name":"canary"}"#;

    /// Appendix A of RFC 5297, which has vectors for keys of 256 bits in all: the same code with the smaller cipher.
    #[test]
    fn the_vectors_of_rfc_5297() {
        use aes_siv::siv::Aes128Siv;
        let table = [
            (
                "fffefdfcfbfaf9f8f7f6f5f4f3f2f1f0f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff",
                &["101112131415161718191a1b1c1d1e1f2021222324252627"][..],
                "112233445566778899aabbccddee",
                "85632d07c6e8f37f950acd320a2ecc9340c02b9690c4dc04daef7f6afe5c",
            ),
            (
                "7f7e7d7c7b7a79787776757473727170404142434445464748494a4b4c4d4e4f",
                &[
                    "00112233445566778899aabbccddeeffdeaddadadeaddadaffeeddccbbaa99887766554433221100",
                    "102030405060708090a0",
                    "09f911029d74e35bd84156c5635688c0",
                ],
                "7468697320697320736f6d6520706c61696e7465787420746f20656e6372797074207573696e67205349562d414553",
                "7bdb6e3b432667eb06f4d14bff2fbd0fcb900f2fddbe404326601965c889bf17dba77ceb094fa663b7a3f748ba8af829\
                 ea64ad544a272e9c485b62a3fd5c0d",
            ),
        ];
        for (key, headers, plain, sealed) in table {
            let headers: Vec<Vec<u8>> = headers.iter().map(|header| bytes(header)).collect();
            let mut cipher = Aes128Siv::new_from_slice(&bytes(key)).unwrap();
            assert_eq!(cipher.encrypt(&headers, &bytes(plain)).unwrap(), bytes(sealed));
            assert_eq!(cipher.decrypt(&headers, &bytes(sealed)).unwrap(), bytes(plain));
        }
    }

    /// What lies in ledgers must be read by every later version, so this never changes. OpenSSL's AES-SIV makes the
    /// same.
    #[test]
    fn the_form_of_a_sealed_text_stays() {
        let sealed = ring(&[("k1", 7)], Some("k1")).sealed(PLACE, TEXT.into());
        assert_eq!(sealed, "sealed:1:k1:NHbAFvYa+rE81IdS2o6lrA8CooeOiBKdJXyUkQwe5Bk6");
        assert_eq!(form(&sealed), Form::Sealed("k1"));
        assert_eq!(form(TEXT), Form::Plain);
        assert!(serde_json::from_str::<serde_json::Value>(&sealed).is_err(), "it is never taken for JSON");
    }

    #[test]
    fn the_same_text_gives_the_same_bytes_and_opens_with_its_key_alone() {
        let ring_1 = ring(&[("k1", 1)], Some("k1"));
        let sealed = ring_1.sealed(PLACE, TEXT.into());
        assert!(!sealed.contains("canary") && is_sealed(sealed.as_bytes()), "{sealed}");
        assert_eq!(ring_1.sealed(PLACE, TEXT.into()), sealed);
        assert_eq!(ring_1.opened(PLACE, &sealed).unwrap(), TEXT);
        // Keys that only open do so, too.
        let both = ring(&[("k1", 1), ("k2", 2)], Some("k2"));
        assert_eq!(both.opened(PLACE, &sealed).unwrap(), TEXT);
        assert_ne!(both.sealed(PLACE, TEXT.into()), sealed);
        assert_eq!(ring(&[("k1", 1)], None).opened(PLACE, &sealed).unwrap(), TEXT);
        // Without a key that seals, and of what says nothing, nothing is made.
        assert_eq!(ring(&[("k1", 1)], None).sealed(PLACE, TEXT.into()), TEXT);
        assert_eq!(ring_1.sealed(PLACE, "null".into()), "null");
    }

    #[test]
    fn what_was_moved_forged_or_sealed_by_others_does_not_open() {
        let ring_1 = ring(&[("k1", 1), ("k2", 2)], Some("k1"));
        let sealed = ring_1.sealed(PLACE, TEXT.into());
        let forged = Err(Unopened::Forged("k1".into()));
        for place in [
            AssociatedData::new(Field::Carry, "sync", "app"),
            AssociatedData::new(Field::Job, "sync", "app"),
            AssociatedData::new(Field::Payload, "other", "app"),
            AssociatedData::new(Field::Payload, "sync", "other"),
            // The parts are apart: what ends one cannot begin the next.
            AssociatedData::new(Field::Payload, "synca", "pp"),
            AssociatedData::MESSAGE,
        ] {
            assert_eq!(ring_1.opened(place, &sealed), forged, "{place:?}");
        }
        let mut changed = sealed.clone().into_bytes();
        let at = changed.len() - 8;
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).unwrap();
        let other_name = sealed.replacen(":k1:", ":k2:", 1);
        let foreign = ring(&[("k1", 9)], Some("k1")).sealed(PLACE, TEXT.into());
        let long_name = format!("sealed:1:{}:AAAA", "k".repeat(MAX_KEY_NAME + 1));
        let table = [
            (changed.as_str(), Unopened::Forged("k1".into())),
            (&other_name, Unopened::Forged("k2".into())),
            (&foreign, Unopened::Forged("k1".into())),
            (&sealed[..sealed.len() - 4], Unopened::Forged("k1".into())),
            ("sealed:1:k1:", Unopened::Forged("k1".into())),
            ("sealed:1:k3:AAAA", Unopened::NoKey("k3".into())),
            // No key can have this name, and the error shows no name that is not a key's.
            ("sealed:1::AAAA", Unopened::Damaged),
            ("sealed:1:a key:AAAA", Unopened::Damaged),
            (&long_name, Unopened::Damaged),
            ("sealed:1:k1:&", Unopened::Damaged),
            ("sealed:1:k1", Unopened::Damaged),
            ("sealed:2:k1:AAAA", Unopened::Damaged),
            ("sealed:", Unopened::Damaged),
        ];
        for (text, why) in table {
            assert_eq!(ring_1.opened(PLACE, text), Err(why), "{text}");
        }
        // A publisher's text that looks like it is JSON, and so it is plain, and is sealed like any other.
        for text in [format!("\"{sealed}\""), format!(r#"{{"sealed":"{sealed}"}}"#)] {
            assert_eq!(ring_1.opened(PLACE, &text).unwrap(), text);
            let sealed = ring_1.sealed(PLACE, text.clone());
            assert_eq!(ring_1.opened(PLACE, &sealed).unwrap(), text);
        }
    }

    #[test]
    fn all_forms_of_a_text_are_known() {
        let (k1, k2) = (ring(&[("k1", 1)], Some("k1")), ring(&[("k2", 2)], Some("k2")));
        let in_1 = k1.sealed(PLACE, TEXT.into());
        let both = ring(&[("k1", 1), ("k2", 2)], Some("k2"));
        assert_eq!(both.other_forms(PLACE, TEXT), [in_1.as_str(), TEXT]);
        let off = ring(&[("k1", 1), ("k2", 2)], None);
        assert_eq!(off.other_forms(PLACE, TEXT), [in_1, k2.sealed(PLACE, TEXT.into())]);
        assert!(Keyring::default().other_forms(PLACE, TEXT).is_empty());
        assert!(both.other_forms(PLACE, "null").is_empty());
    }

    #[test]
    fn who_is_strict_takes_nothing_in_the_clear() {
        let strict = ring(&[("k1", 1), ("k2", 2)], Some("k2")).strict(true);
        assert_eq!(strict.opened(PLACE, TEXT), Err(Unopened::Plain));
        assert_eq!(strict.opened(PLACE, "null").unwrap(), "null", "it says nothing");
        let in_1 = ring(&[("k1", 1)], Some("k1")).sealed(PLACE, TEXT.into());
        assert_eq!(strict.opened(PLACE, &in_1).unwrap(), TEXT, "also with a key that seals no more");
        assert_eq!(strict.other_forms(PLACE, TEXT), [in_1]);
        assert_eq!(strict.sealed(PLACE, TEXT.into()), ring(&[("k2", 2)], Some("k2")).sealed(PLACE, TEXT.into()));
        assert_eq!(strict.strict(false).opened(PLACE, TEXT).unwrap(), TEXT);
        assert!(!ring(&[("k1", 1)], None).strict(true).is_strict(), "who seals nothing requires nothing");
    }

    #[test]
    fn a_key_has_its_length_and_is_never_shown() {
        let good = STANDARD.encode([3; KEY_BYTES]);
        let folded = format!("{}\n{} \n", &good[..64], &good[64..]);
        assert_eq!(Key::parse(&folded), Key::parse(&good), "as openssl prints it");
        for (text, words) in [
            (STANDARD.encode([3; 32]), "has 32 bytes"),
            (String::new(), "has 0 bytes"),
            ("canary!".into(), "is not base64"),
        ] {
            let why = Key::parse(&text).unwrap_err();
            assert!(why.contains(words) && !why.contains("canary"), "{why}");
        }
        let shown = format!("{:?}", ring(&[("k1", 1)], Some("k1")));
        assert!(!shown.contains("1, 1") && shown.contains("k1"), "{shown}");
        assert_eq!(Keyring::new(BTreeMap::new(), Some("k1".into())), Err("k1".into()));
    }

    #[test]
    fn the_longest_form_is_known() {
        let name = "n".repeat(MAX_KEY_NAME);
        let ring = ring(&[(&name, 1)], Some(&name));
        for length in [1, 2, 3, 4, 1_000, 1_001, 1_002] {
            let sealed = ring.sealed(PLACE, "x".repeat(length));
            assert!(sealed.len() <= longest(length), "{length}: {}", sealed.len());
        }
    }
}
