//! Where the engine seals what users have given to it, and where it opens that again.
//!
//! ```text
//!  enroll, discover, batch ─▶ sealed ─▶ ledger ─▶ claim ─▶ opened ─▶ handler ─▶ carry ─▶ sealed ─▶ ledger
//!  publish, outbox, retry  ─▶ sealed ─▶ queue, outbox ─▶ delivery ─▶ opened ─▶ handler
//!  what cannot be used     ─▶ sealed ─▶ quarantine ─▶ sent again, or shown: opened
//! ```
//!
//! In this process envelopes are plain. They are sealed when they are written as bytes, and opened where a
//! [`Job`](roundelay_model::job::Job) is made of them, or a person looks at them; in between, a sealed one is handed on
//! as it is. Messages of other publishers arrive plain, and are sealed with whatever of them the engine writes.
//!
//! What does not open is put off: it costs no attempt and holds nothing up, and it runs when there is a key for it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::RwLock;
use roundelay_config::Config;
use roundelay_ledger::{Ledger, LedgerError, StoredText, TextColumn, TextReplacement};
use roundelay_model::clock::Time;
use roundelay_model::encryption::{AssociatedData, Field, Form, Keyring, Unopened, form, has_the_form, is_sealed};
use roundelay_model::job::{Envelope, Sealed};
use serde_json::Value;

/// What does not open is looked at again after this long,
const MIN_WAIT: Duration = Duration::from_secs(1);
/// and later after as long again as it has waited by then, up to this.
const MAX_WAIT: Duration = Duration::from_secs(5 * 60);
/// Texts looked at in one go. Each may have a megabyte.
const PER_PAGE: u32 = 100;
/// The largest body that is sealed in quarantine, in bytes; a job has a quarter of that at most.
const MAX_SEALED: usize = 8 << 20;

/// The keys of a running engine, which may be replaced.
#[derive(Clone, Debug)]
pub struct Sealing(Arc<RwLock<Arc<Keyring>>>);

impl Sealing {
    /// Those of a configuration.
    pub fn new(config: &Config) -> Self {
        Self(Arc::new(RwLock::new(config.encryption.clone())))
    }

    /// Those that count now.
    pub fn keys(&self) -> Arc<Keyring> {
        self.0.read().clone()
    }

    /// From now on these count.
    pub(super) fn take_over(&self, keys: Arc<Keyring>) {
        *self.0.write() = keys;
    }
}

/// How long what could not be opened since `since` is left alone (pure).
pub(crate) fn wait(since: Time, now: Time) -> Duration {
    now.since(since).clamp(MIN_WAIT, MAX_WAIT)
}

fn place_of(envelope: &Envelope) -> AssociatedData<'_> {
    AssociatedData::new(Field::Job, &envelope.kind, &envelope.key)
}

/// An envelope as it is to be written: with its payload sealed, if anything is.
pub fn sealed<'e>(keys: &Keyring, envelope: &'e Envelope) -> Cow<'e, Envelope> {
    // An order lies in no queue for long, and is taken as it is.
    if keys.seal().is_none() || envelope.payload.is_null() || envelope.order().is_some() {
        return Cow::Borrowed(envelope);
    }
    // The handler of a chain gets what the ledger has: the payload in its message is never read.
    let chained = envelope.chain.is_some();
    let text = (!chained).then(|| keys.sealed(place_of(envelope), envelope.payload.to_string()));
    // Field by field, so that the payload is not copied first.
    Cow::Owned(Envelope {
        v: envelope.v,
        kind: envelope.kind.clone(),
        key: envelope.key.clone(),
        queue: envelope.queue.clone(),
        due: envelope.due,
        clock: envelope.clock,
        attempt: envelope.attempt,
        id: envelope.id.clone(),
        payload: Value::Null,
        sealed: text.map(|text| Sealed { text, since: None }),
        owner: envelope.owner.clone(),
        depth: envelope.depth,
        retries: envelope.retries.clone(),
        chain: envelope.chain.clone(),
        enroll: None,
        retire: None,
        run: None,
        trace: envelope.trace.clone(),
        tenant: envelope.tenant.clone(),
        from_backlog: envelope.from_backlog,
    })
}

/// The message body of an envelope, sealed in the same way.
pub fn encode(keys: &Keyring, envelope: &Envelope) -> Vec<u8> {
    sealed(keys, envelope).encode()
}

/// Opens an envelope that came sealed; one that did not stays as it is.
///
/// # Errors
/// [`Unopened`]; then it stays as it is, too.
pub fn open(keys: &Keyring, envelope: &mut Envelope) -> Result<(), Unopened> {
    let Some(Sealed { text, .. }) = &envelope.sealed else { return Ok(()) };
    let payload = json(&keys.opened(place_of(envelope), text)?)?;
    (envelope.payload, envelope.sealed) = (payload, None);
    Ok(())
}

/// Refuses the payload of a job, or of an order, that is plain where that is not taken: any program that can publish,
/// or write the ledger, may have put it there. A chain's message has none that counts.
///
/// # Errors
/// [`Unopened::Plain`].
pub(super) fn check(keys: &Keyring, envelope: &Envelope) -> Result<(), Unopened> {
    let plain = envelope.chain.is_none() && envelope.sealed.is_none() && !envelope.payload.is_null();
    if keys.is_strict() && plain { Err(Unopened::Plain) } else { Ok(()) }
}

/// What was sealed was JSON.
fn json(text: &str) -> Result<Value, Unopened> {
    serde_json::from_str(text).map_err(|_| Unopened::Damaged)
}

/// A message that cannot be used, as it is to lie in quarantine: a job with its payload sealed, or all of it when it is
/// no job, or too large for one.
pub(super) fn set_aside(keys: &Keyring, body: &Bytes) -> Bytes {
    // Sealed, a body is a third larger: what is no job by far might be more then than RabbitMQ takes (16 MiB since
    // 4.0), and a message that cannot be set aside would come again and again.
    if keys.seal().is_none() || has_the_form(body) || body.len() > MAX_SEALED {
        return body.clone();
    }
    match Envelope::decode(body) {
        Ok(envelope) if envelope.payload.is_null() => body.clone(),
        Ok(envelope) if envelope.order().is_none() => encode(keys, &envelope).into(),
        _ => keys.sealed_message(body).map_or_else(|| body.clone(), Bytes::from),
    }
}

/// A message body, opened if it is sealed as a whole.
///
/// # Errors
/// [`Unopened`].
pub fn whole<'b>(keys: &Keyring, body: &'b [u8]) -> Result<Cow<'b, [u8]>, Unopened> {
    match is_sealed(body) {
        true => keys.opened_bytes(AssociatedData::MESSAGE, body).map(Cow::Owned),
        false => Ok(Cow::Borrowed(body)),
    }
}

/// A message body for a person: opened as far as it can be.
pub fn shown<'b>(keys: &Keyring, body: &'b [u8]) -> Cow<'b, [u8]> {
    let Ok(body) = whole(keys, body) else { return Cow::Borrowed(body) };
    let Ok(mut envelope) = Envelope::decode(&body) else { return body };
    match envelope.sealed.is_some() && open(keys, &mut envelope).is_ok() {
        true => Cow::Owned(envelope.encode()),
        false => body,
    }
}

/// What the handler of a chain gets, as the ledger keeps it, and the other forms in which it may have kept it.
pub(super) fn payload(keys: &Keyring, (kind, key): (&str, &str), text: String) -> (String, Vec<String>) {
    let place = AssociatedData::new(Field::Payload, kind, key);
    let others = keys.other_forms(place, &text);
    (keys.sealed(place, text), others)
}

/// Texts of one sort and form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many there are.
    pub texts: u64,
    /// How many of them do not open here.
    pub unopened: u64,
}

/// What lies in a ledger: how much of it is plain, and how much is sealed with which key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// By where they lie, and the name of the key; without one they are plain.
    pub counts: BTreeMap<(TextColumn, Option<String>), Count>,
    /// How many were written anew.
    pub written: u64,
}

/// What to do with texts that are not as new ones would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only to count them.
    Look,
    /// To write them anew as those are written now, unless another process has just changed them.
    Rewrite,
}

/// Counts the texts of a ledger, and opens them to see whether they do; at most `most` of each sort. What is written
/// anew is counted as it is then. `progress` is told of each page how many texts it had.
///
/// # Errors
/// When the ledger cannot be read, or written.
pub async fn take_stock(
    ledger: &dyn Ledger,
    keys: &Keyring,
    mode: Mode,
    most: u64,
    mut progress: impl FnMut(u64),
) -> Result<Inventory, LedgerError> {
    // Who writes them anew takes them for good, as they are.
    let keys = &keys.clone().strict(keys.is_strict() && mode == Mode::Look);
    let mut inventory = Inventory::default();
    for shelf in TextColumn::ALL {
        let (mut after, mut seen) = (0, 0);
        while seen < most {
            let page = ledger.stored_texts(shelf, after, PER_PAGE).await?;
            let Some(last) = page.last() else { break };
            after = last.number;
            seen += page.len() as u64;
            progress(page.len() as u64);
            let mut changes = Vec::new();
            for content in page {
                let stated = state(keys, shelf, content);
                let Some(Stated { number, was, name, anew }) = stated else { continue };
                let opens = anew.is_ok();
                if let Some(anew) = anew.ok().flatten().filter(|_| mode == Mode::Rewrite) {
                    changes.push((name, TextReplacement { number, was, now: anew }));
                    continue;
                }
                let count = inventory.counts.entry((shelf, name)).or_default();
                count.texts += 1;
                count.unopened += u64::from(!opens);
            }
            if changes.is_empty() {
                continue;
            }
            let (names, changes): (Vec<_>, Vec<_>) = changes.into_iter().unzip();
            let done = ledger.replace_texts(shelf, changes).await?;
            for (name, done) in names.into_iter().zip(done) {
                inventory.written += u64::from(done);
                // A text that another process has changed meanwhile is as that process writes it, and is counted as it
                // was.
                let name = if done { keys.seal().map(Into::into) } else { name };
                inventory.counts.entry((shelf, name)).or_default().texts += 1;
            }
        }
    }
    Ok(inventory)
}

/// A text, and how it is.
struct Stated {
    number: i64,
    was: Vec<u8>,
    /// The key that it is sealed with.
    name: Option<String>,
    /// How it would be written now, if otherwise; or it does not open.
    anew: Result<Option<Vec<u8>>, Unopened>,
}

/// Looks at a text (pure); nothing when it says nothing.
fn state(keys: &Keyring, shelf: TextColumn, content: StoredText) -> Option<Stated> {
    let StoredText { number, kind, key, text: was } = content;
    let (name, anew) = match shelf {
        TextColumn::Payloads | TextColumn::Carries => {
            let field = if shelf == TextColumn::Payloads { Field::Payload } else { Field::Carry };
            let (place, text) = (AssociatedData::new(field, &kind, &key), String::from_utf8_lossy(&was));
            let anew = keys.opened(place, &text).map(|plain| keys.sealed(place, plain.into_owned()).into_bytes());
            (named(&text), anew)
        }
        TextColumn::Jobs | TextColumn::Quarantine => match (is_sealed(&was), Envelope::decode(&was)) {
            (true, _) => {
                let plain = whole(keys, &was).map(Cow::into_owned);
                let anew = plain.map(|plain| set_aside(keys, &plain.into()).to_vec());
                (named(&String::from_utf8_lossy(&was)), anew)
            }
            (false, Ok(envelope)) if envelope.sealed.is_none() && envelope.payload.is_null() => return None,
            (false, Ok(mut envelope)) => {
                let name = envelope.sealed.as_ref().and_then(|sealed| named(&sealed.text));
                let since = envelope.sealed.as_ref().and_then(|sealed| sealed.since);
                let opened = check(keys, &envelope).and_then(|()| open(keys, &mut envelope));
                let anew = opened.map(|()| {
                    let mut anew = sealed(keys, &envelope).into_owned();
                    if let Some(sealed) = &mut anew.sealed {
                        sealed.since = since;
                    }
                    anew.encode()
                });
                (name, anew)
            }
            // A worker of another version may know what it is.
            (false, Err(_)) if shelf == TextColumn::Jobs => (None, Ok(was.clone())),
            (false, Err(_)) => (None, Ok(set_aside(keys, &Bytes::copy_from_slice(&was)).to_vec())),
        },
    };
    // One that is sealed with the key that seals need not be written anew, however it is spelled.
    let as_new = name.as_deref() == keys.seal();
    let anew = anew.map(|anew| (!as_new && anew != was).then_some(anew));
    Some(Stated { number, was, name, anew })
}

fn named(text: &str) -> Option<String> {
    match form(text) {
        Form::Sealed(name) => Some(name.to_owned()),
        // It says that it is sealed, and not how.
        Form::Plain if is_sealed(text.as_bytes()) => Some(String::new()),
        Form::Plain => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KEYS: [&str; 2] = [
        "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQ==",
        "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAg==",
    ];

    fn ring(text: &str) -> Keyring {
        let text = text.replace("KEY1", KEYS[0]).replace("KEY2", KEYS[1]);
        let config = Config::parse(&format!("[encryption]\n{text}"), "r.toml", []);
        Keyring::clone(&config.unwrap_or_else(|error| panic!("{error}")).encryption)
    }

    fn one() -> Keyring {
        ring("seal = 'one'\nkeys = { one = 'KEY1' }")
    }

    fn job() -> Envelope {
        let due = Some(Time::from_millis(7));
        let payload = json!({ "secret": "canary" });
        Envelope { due, owner: Some("ann".into()), depth: 2, ..Envelope::job("sync", "app", payload, "id".into()) }
    }

    #[test]
    fn an_envelope_is_sealed_and_opened_and_nothing_else_of_it_changes() {
        let (keys, job) = (one(), job());
        let body = encode(&keys, &job);
        assert!(!String::from_utf8_lossy(&body).contains("canary"));
        assert_eq!(encode(&keys, &job), body, "to publish again gives the same message");
        let mut read = Envelope::decode(&body).unwrap();
        assert_eq!((read.message_id(), &read.payload), (job.message_id(), &Value::Null));
        assert_eq!(encode(&keys, &read), body, "one that is sealed goes on as it is");
        let mut moved = Envelope { key: "other".into(), ..read.clone() };
        assert_eq!(open(&keys, &mut moved), Err(Unopened::Forged("one".into())));
        assert_eq!(open(&Keyring::default(), &mut read), Err(Unopened::NoKey("one".into())));
        assert_eq!(encode(&keys, &read), body, "and is as it was");
        open(&keys, &mut read).unwrap();
        assert_eq!(read, job);
        // Without a key that seals nothing is copied.
        assert!(matches!(sealed(&Keyring::default(), &job), Cow::Borrowed(_)));
        let empty = Envelope { payload: Value::Null, ..job };
        assert!(matches!(sealed(&keys, &empty), Cow::Borrowed(_)));
    }

    #[test]
    fn a_message_of_a_chain_has_nothing_to_seal() {
        let chain = r#"{"v":1,"kind":"k","key":"x","payload":"canary","chain":{"ledger":"l","epoch":1,"tick":1}}"#;
        let hint = Envelope::decode(chain.as_bytes()).unwrap();
        let read = Envelope::decode(&encode(&one(), &hint)).unwrap();
        assert_eq!(read, Envelope { payload: Value::Null, ..hint });
    }

    #[test]
    fn bodies_too_large_for_a_job_are_quarantined_unsealed() {
        let body = Bytes::from(vec![b'x'; MAX_SEALED + 1]);
        assert_eq!(set_aside(&one(), &body), body);
    }

    #[test]
    fn what_another_version_has_kept_stays_as_it_is() {
        let text = br#"{"v":1,"kind":"k","key":"x","news":"canary"}"#.to_vec();
        let content = || StoredText { number: 1, kind: String::new(), key: String::new(), text: text.clone() };
        assert_eq!(state(&one(), TextColumn::Jobs, content()).unwrap().anew, Ok(None));
        assert!(state(&one(), TextColumn::Quarantine, content()).unwrap().anew.unwrap().is_some());
    }

    #[test]
    fn quarantined_bodies_are_sealed() {
        let keys = one();
        let hint = br#"{"v":1,"kind":"k","key":"x","chain":{"ledger":"l","epoch":1,"tick":1}}"#;
        let large = format!("\"{}\"", "canary".repeat(200_000));
        for (body, shows) in [
            (job().encode(), true),
            (hint.to_vec(), true),
            (b"{canary".to_vec(), false),
            (b"\xffcanary".to_vec(), false),
            (large.into_bytes(), false),
            // It says that it is sealed, and is not.
            (b"sealed:1:{canary}:AAAAAAAAAAAAAAAAAAAAAAAA".to_vec(), false),
            (b"sealed:1:one:canary".to_vec(), false),
        ] {
            let body = Bytes::from(body);
            let lies = set_aside(&keys, &body);
            assert!(!lies.windows(6).any(|window| window == b"canary"));
            assert_eq!(Envelope::decode(&lies).is_ok(), shows);
            assert_eq!(set_aside(&keys, &lies), lies, "once is enough");
            assert_eq!(self::shown(&keys, &lies), &body[..], "and whoever may look sees what it was");
            assert_eq!(self::shown(&Keyring::default(), &lies), &lies[..]);
            assert_eq!(set_aside(&Keyring::default(), &body), body);
        }
    }

    #[test]
    fn unopened_payload_waits_twice_as_long_each_time() {
        let at = Time::from_millis;
        for (millis, secs) in [(-5, 1), (0, 1), (900, 1), (2_000, 2), (60_000, 60), (300_000, 300), (9_000_000, 300)] {
            assert_eq!(wait(at(1_000_000), at(1_000_000 + millis)), Duration::from_secs(secs), "{millis}");
        }
    }

    #[test]
    fn texts_are_sealed_anew_as_they_would_be_now() {
        let (one, both) = (one(), ring("seal = 'two'\nkeys = { one = 'KEY1', two = 'KEY2' }"));
        let (two, off) = (ring("seal = 'two'\nkeys = { two = 'KEY2' }"), ring("keys = { one = 'KEY1', two = 'KEY2' }"));
        let text = |text: &[u8]| StoredText { number: 1, kind: "sync".into(), key: "app".into(), text: text.to_vec() };
        let place = AssociatedData::new(Field::Payload, "sync", "app");
        let payload = |keys: &Keyring| keys.sealed(place, "[1]".into()).into_bytes();
        let put_off = |keys: &Keyring| {
            let mut envelope = sealed(keys, &job()).into_owned();
            envelope.sealed.as_mut().unwrap().since = Some(Time::from_millis(9));
            envelope.encode()
        };
        let whole = |keys: &Keyring| keys.sealed_message(b"{x").unwrap();
        let table = [
            (TextColumn::Payloads, b"[1]".to_vec(), payload(&one), payload(&two)),
            (TextColumn::Jobs, job().encode(), encode(&one, &job()), encode(&two, &job())),
            (TextColumn::Quarantine, b"{x".to_vec(), whole(&one), whole(&two)),
        ];
        for (shelf, plain, in_one, in_two) in table {
            let anew = |keys: &Keyring, was: &[u8]| {
                let Stated { name, anew, .. } = state(keys, shelf, text(was)).unwrap();
                (name, anew)
            };
            let named = |name: &str| Some(name.to_owned());
            assert_eq!(anew(&both, &plain), (None, Ok(Some(in_two.clone()))), "{shelf:?}");
            assert_eq!(anew(&both, &in_one), (named("one"), Ok(Some(in_two.clone()))), "{shelf:?}");
            assert_eq!(anew(&both, &in_two), (named("two"), Ok(None)), "{shelf:?}");
            assert_eq!(anew(&off, &in_two), (named("two"), Ok(Some(plain.clone()))), "{shelf:?}");
            assert_eq!(anew(&off, &plain), (None, Ok(None)), "{shelf:?}");
            assert_eq!(anew(&two, &in_one), (named("one"), Err(Unopened::NoKey("one".into()))), "{shelf:?}");
        }
        let again = state(&both, TextColumn::Jobs, text(&put_off(&one))).unwrap();
        assert_eq!(again.anew, Ok(Some(put_off(&two))), "since when it waits is still known");
        // What says nothing does not count, and what was moved here does not open.
        let empty = Envelope { payload: Value::Null, ..job() };
        assert!(state(&both, TextColumn::Jobs, text(&empty.encode())).is_none());
        let moved = state(&one, TextColumn::Carries, text(&payload(&one))).unwrap();
        assert_eq!(moved.anew, Err(Unopened::Forged("one".into())));
        let newer = state(&one, TextColumn::Payloads, text(b"sealed:2:one:AAAA")).unwrap();
        assert_eq!((newer.name, newer.anew), (Some(String::new()), Err(Unopened::Damaged)));
    }
}
