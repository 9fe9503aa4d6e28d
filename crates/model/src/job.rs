//! What travels: the envelope, its identity, its limits.
//!
//! The format is documented for other languages in `docs/messages.md`, with a JSON Schema in
//! `docs/message.schema.json` that the tests hold this module against.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::clock::Time;
use crate::encryption::{Unopened, is_sealed, longest};
use crate::guard::IfRunning;
use crate::ids::{Epoch, Fence, TickNo};
use crate::lanes::MAX_LANES;
use crate::trace_context::Carried;
use crate::wall_clock::WallClock;

/// The version of the message format that this engine reads and writes.
pub const VERSION: u8 = 1;
/// The largest message body, in bytes. A larger one is quarantined.
pub const MAX_BYTES: usize = 1 << 20;
/// The largest payload, in bytes of compact JSON. The rest of [`MAX_BYTES`] is for the fields that
/// the engine adds when it sends a job again: a job that was read once can always be read again.
pub const MAX_PAYLOAD: usize = MAX_BYTES - (8 << 10);
/// The largest body whose payload is sealed: what is sealed is longer than what it says.
pub const MAX_SEALED: usize = MAX_BYTES + longest(MAX_PAYLOAD) - MAX_PAYLOAD;
/// The longest key, in bytes.
pub const MAX_KEY: usize = 512;
/// So often a message can have been sent again from quarantine and still say of each time which it was.
pub const MAX_RETRIES: usize = 16;
/// How much is told of what is wrong with a body, in bytes: it may quote the body.
const MAX_WORDS: usize = 300;
/// How often a message may have been dead-lettered before it is taken for one that goes round in
/// circles. The longest delay, ten years, takes some 120 hops, but every hop is published anew
/// and starts with no history.
pub const MAX_DEAD_LETTERED: usize = 16;

/// One message: either a one-off job, complete in itself, or a *hint* that a chain's tick is due,
/// whose payload and truth are in the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// Always [`VERSION`].
    pub v: u8,
    /// Which handler: a name under `[kinds]`.
    pub kind: String,
    /// Which entity.
    pub key: String,
    /// The platform queue to run on. Needed where the routing key is not that queue; absent, it is
    /// the queue that the message arrives on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Not before this time. Absent: at once. As it travels, it is the time of the clock that `clock` says; inside the
    /// engine ([`Envelope::read_at`]) it is the ledger's steady time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Time>,
    /// By how many milliseconds the clock that `due` is of is ahead of the ledger's time. The engine writes 0. Absent,
    /// it is the wall clock, as it is set when the message is looked at; but a chain's hint is always the ledger's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<i64>,
    /// Which try this is, from 1.
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub attempt: u32,
    /// A one-off job's own id, the same on every attempt. Absent, the engine makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What the handler gets. Always absent in a chain's hint.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub payload: Value,
    /// The payload, sealed, in its place. Always absent in a chain's hint; only the engine writes it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "optional_object")]
    pub sealed: Option<Sealed>,
    /// Who the job belongs to. Always absent in a chain's hint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// How many runs have led to this job, each of which was asked for by the one before. Always absent in a
    /// chain's hint.
    #[serde(default, skip_serializing_if = "is_none")]
    pub depth: u32,
    /// The times it was sent again from quarantine, at most [`MAX_RETRIES`]. Always absent in a chain's hint; only
    /// the engine writes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "objects")]
    pub retries: Vec<Retry>,
    /// Present in a chain's hint. Only the engine writes it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "optional_object")]
    pub chain: Option<ChainRef>,
    /// The chain of this kind and key is to be there: an order, and no job.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "optional_object")]
    pub enroll: Option<Enrolment>,
    /// The chain of this kind and key is to end: an order, and no job.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "optional_object")]
    pub retire: Option<Retirement>,
    /// The chain of this kind and key is to run once more, now: an order, and no job.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "optional_object")]
    pub run: Option<RunNow>,
    /// The span that has sent it. It travels in headers, beside the body.
    #[serde(skip)]
    pub trace: Option<Box<Carried>>,
    /// Whose share of a fair queue it takes, once that is known. It does not travel.
    #[serde(skip)]
    pub tenant: Option<Arc<str>>,
    /// It comes from the backlog of a fair queue. That does not travel.
    #[serde(skip)]
    pub from_backlog: bool,
}

/// What a program says of a chain that is to be there, beside kind, key and payload. What it leaves out is as the kind
/// says it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Enrolment {
    /// The platform queue, in place of the kind's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The priority on that queue, in place of the kind's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Who it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// A schedule of its own in place of the kind's: an interval or a cron expression as text, or an object. Absent, a
    /// chain that is there keeps what it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Value>,
    /// When the first tick of a chain that begins is due. Absent, at a place in its interval that follows from its
    /// name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_due: Option<Time>,
}

/// A chain is to end: there is nothing more to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retirement {}

/// How a manual run of a chain is to be. What is left out is as the chain, or its kind, says it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunNow {
    /// The platform queue, in place of the chain's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The priority on that queue, in place of the chain's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// What becomes of it while the rotation runs, in place of the kind's `if_running`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_running: Option<IfRunning>,
    /// The kind's cooldown does not hold for it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// What a message orders of a chain, in place of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// It is to be there, with what the envelope's payload says.
    Enroll(Enrolment),
    /// It is to end.
    Retire,
    /// It is to run once more, with what the envelope's payload says, if anything.
    Run(RunNow),
}

/// Which tick of which chain a hint stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainRef {
    /// The ledger that knows the chain.
    pub ledger: String,
    /// The chain's epoch: unique in that ledger, never reused.
    pub epoch: Epoch,
    /// The occurrence, from 1.
    pub tick: TickNo,
    /// In a message of a member of a batch: the epoch of the chain that waits for it.
    #[serde(default, skip_serializing_if = "Epoch::is_none")]
    pub parent: Epoch,
    /// The chain's own priority, in place of its kind's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
}

/// What the runs of a tick are called: `LEDGER-EPOCH-TICK`, the same for each attempt.
pub fn run_id(ledger: &str, epoch: Epoch, tick: TickNo) -> String {
    format!("{ledger}-{epoch}-{tick}")
}

impl ChainRef {
    /// What its runs are called.
    pub fn run_id(&self) -> String {
        run_id(&self.ledger, self.epoch, self.tick)
    }

    /// The epoch and tick of which `run_id` is the [name](run_id); `None` for what is no tick of this ledger.
    pub fn epoch_and_tick(ledger: &str, run_id: &str) -> Option<(Epoch, TickNo)> {
        let (epoch, tick) = run_id.strip_prefix(ledger)?.strip_prefix('-')?.split_once('-')?;
        Some((Epoch(epoch.parse().ok()?), TickNo(tick.parse().ok()?)))
    }
}

/// A time that a message was sent again from quarantine. Two copies of one message that are not of the same time are
/// one job too many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// Which message lay there: 1 to 64 hexadecimal digits.
    pub of: String,
    /// Which retry it was: 1 to 64 hexadecimal digits.
    pub by: String,
}

/// A payload that cannot be read without the key: see [`crate::encryption`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sealed {
    /// The sealed text of the payload's JSON.
    pub text: String,
    /// Since when no worker that had it could open it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// A JSON object. Derived structs also read arrays, as their fields in order, which the documented
/// format does not have.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

fn optional_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Object<T>>::deserialize(deserializer)?.map(|object| object.0))
}

fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Ok(Vec::<Object<T>>::deserialize(deserializer)?.into_iter().map(|object| object.0).collect())
}

fn first() -> u32 {
    1
}

fn is_none(depth: &u32) -> bool {
    *depth == 0
}

fn is_first(attempt: &u32) -> bool {
    *attempt == 1
}

/// Why a message cannot be used; phrased to follow "quarantined: ".
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadMessage {
    /// The body exceeds [`MAX_BYTES`].
    #[error("the body has {0} bytes; at most {MAX_BYTES} are read")]
    TooLarge(usize),
    /// The payload exceeds [`MAX_PAYLOAD`].
    #[error("the payload has {0} bytes as compact JSON; at most {MAX_PAYLOAD} are read")]
    PayloadTooLarge(usize),
    /// It is sealed as a whole, and does not open here.
    #[error("the message {0}")]
    Sealed(Unopened),
    /// Not JSON of the documented shape, or nested too deeply.
    #[error("the body is not a job envelope: {0}")]
    NotAnEnvelope(String),
    /// A version that this engine does not read.
    #[error("format version {0}; this engine reads version {VERSION}")]
    Version(u64),
    /// `kind`, `key`, `queue`, `id` or `attempt` is out of range.
    #[error("{0}")]
    Field(String),
    /// The AMQP library cannot take it; what is wrong is told by who has looked before.
    #[error("the AMQP properties cannot be read: {0}")]
    Unreadable(String),
    /// The message has been dead-lettered again and again.
    #[error("dead-lettered {0} times; it goes round in circles")]
    DeadLetterLoop(usize),
    /// Too many workers have died over it: see [`crate::deaths`].
    #[error("{0}")]
    Deaths(&'static str),
    /// What it orders cannot be done.
    #[error("`{0}` cannot be done: {1}")]
    Order(&'static str, String),
    /// No such kind in the configuration.
    #[error("unknown kind `{0}`: not under [kinds] in the configuration")]
    UnknownKind(String),
    /// No such queue in the configuration.
    #[error("unknown queue `{0}`: not under [queues] in the configuration")]
    UnknownQueue(String),
    /// A hint for a kind that has no chains.
    #[error(
        "kind `{0}` has no schedule in the configuration, so it has no chains; the chain waits in the ledger until it has"
    )]
    NoChains(String),
    /// The hint names an epoch that belongs to another chain.
    #[error("epoch {epoch} is that of {kind} {key}, not of this message's chain: was an older ledger restored?")]
    OtherChain {
        /// The epoch named in the message.
        epoch: Epoch,
        /// The kind of the chain that has it.
        kind: String,
        /// The key of the chain that has it.
        key: String,
    },
    /// The hint belongs to another deployment.
    #[error("the chain belongs to ledger {theirs}, this one is {ours}: two deployments share a broker and a prefix")]
    OtherLedger {
        /// The ledger named in the message.
        theirs: String,
        /// The ledger of this engine.
        ours: String,
    },
    /// The hint is ahead of the ledger, so the ledger was restored from an older copy.
    #[error("epoch {epoch} tick {tick} is ahead of the ledger: was an older ledger restored?")]
    Future {
        /// The epoch named in the message.
        epoch: Epoch,
        /// The tick named in the message.
        tick: TickNo,
    },
}

impl BadMessage {
    /// In words; where messages lie sealed, without those that may quote the body.
    pub fn told(&self, sealed: bool) -> String {
        match self {
            Self::NotAnEnvelope(_) if sealed => {
                "the body is not a job envelope (what is wrong with it would quote it, and messages are sealed)".into()
            }
            other => other.to_string(),
        }
    }
}

impl Envelope {
    /// A one-off job.
    pub fn job(kind: &str, key: &str, payload: Value, id: String) -> Self {
        Self {
            v: VERSION,
            kind: kind.into(),
            key: key.into(),
            queue: None,
            due: None,
            clock: None,
            attempt: 1,
            id: Some(id),
            payload,
            sealed: None,
            owner: None,
            depth: 0,
            retries: Vec::new(),
            chain: None,
            enroll: None,
            retire: None,
            run: None,
            trace: None,
            tenant: None,
            from_backlog: false,
        }
    }

    /// Reads and checks a message body.
    ///
    /// # Errors
    /// [`BadMessage`], which says what to mend. Kinds and queues are checked by the engine, which
    /// knows the configuration.
    pub fn decode(body: &[u8]) -> Result<Self, BadMessage> {
        let too_large = || BadMessage::TooLarge(body.len());
        if body.len() > MAX_SEALED {
            return Err(too_large());
        }
        let read = serde_json::from_slice::<Object<Self>>(body);
        let may_be_larger = matches!(&read, Ok(Object(Self { sealed: Some(_), .. })));
        if body.len() > MAX_BYTES && !may_be_larger {
            return Err(too_large());
        }
        let Object(envelope) = read.map_err(|error| why_not(body, &error))?;
        if envelope.v != VERSION {
            return Err(BadMessage::Version(envelope.v.into()));
        }
        check_name("kind", &envelope.kind)?;
        check_name("key", &envelope.key)?;
        if let Some(queue) = &envelope.queue {
            check_name("queue", queue)?;
        }
        if let Some(id) = &envelope.id {
            check_name("id", id)?;
        }
        if let Some(owner) = &envelope.owner {
            check_name("owner", owner)?;
        }
        if envelope.attempt == 0 {
            return Err(BadMessage::Field("`attempt` counts from 1".into()));
        }
        if envelope.retries.len() > MAX_RETRIES {
            return Err(BadMessage::Field(format!("`retries` has more than {MAX_RETRIES} entries")));
        }
        let digits =
            |text: &str| (1..=64).contains(&text.len()) && text.bytes().all(|b| b"0123456789abcdef".contains(&b));
        if !envelope.retries.iter().all(|retry| digits(&retry.of) && digits(&retry.by)) {
            return Err(BadMessage::Field("`retries` has what is not 1 to 64 hexadecimal digits".into()));
        }
        if let Some(sealed) = &envelope.sealed {
            if !envelope.payload.is_null() || envelope.chain.is_some() {
                return Err(BadMessage::Field(
                    "`sealed` stands in place of `payload`, and a chain's message has neither".into(),
                ));
            }
            if !is_sealed(sealed.text.as_bytes()) {
                return Err(BadMessage::Field("`sealed.text` is no sealed text".into()));
            }
        }
        if let Some(chain) = &envelope.chain {
            check_name("chain.ledger", &chain.ledger)?;
            if chain.epoch < 1 || chain.tick < 1 || chain.parent < 0 {
                return Err(BadMessage::Field("`chain.epoch`, `chain.tick` and `chain.parent` count from 1".into()));
            }
            check_priority("chain.priority", chain.priority)?;
        }
        envelope.check_order()?;
        // The engine's spelling of a payload can be longer than the sender's: `1e9` becomes
        // `1000000000.0`. It is never eight times as long, so small bodies need no look.
        if body.len() > MAX_BYTES / 8 {
            let size = envelope.payload.to_string().len();
            if size > MAX_PAYLOAD {
                return Err(BadMessage::PayloadTooLarge(size));
            }
        }
        Ok(envelope)
    }

    /// What came in a message, or lay in the ledger, as the engine has it: due by the ledger's time.
    #[must_use]
    pub fn read_at(self, wall_clock: &WallClock) -> Self {
        let by_wall = self.chain.is_none() && self.clock.is_none();
        let ahead = if by_wall { wall_clock.ahead() } else { self.clock.unwrap_or(0) };
        let due = self.due.map(|due| Time::from_millis(due.as_millis().saturating_sub(ahead)));
        let clock = self.clock.and(due).map(|_| 0);
        Self { due, clock, ..self }
    }

    /// The same as it is to travel. What another program wants by the wall clock goes on being that.
    pub fn travelling(&self, wall_clock: &WallClock) -> Cow<'_, Self> {
        let by_wall = self.chain.is_none() && self.clock.is_none() && wall_clock.ahead() != 0;
        match self.due.filter(|_| by_wall) {
            Some(due) => Cow::Owned(Self { due: Some(wall_clock.wall(due)), ..self.clone() }),
            None => Cow::Borrowed(self),
        }
    }

    /// The same, due at `due` of the ledger's time.
    #[must_use]
    pub fn due_at(self, due: Time) -> Self {
        let clock = self.chain.is_none().then_some(0);
        Self { due: Some(due), clock, ..self }
    }

    /// The message body.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an envelope has only string keys, so it is always JSON")
    }

    /// The priority of a chain's message, where it is not its kind's.
    pub fn priority(&self) -> Option<u8> {
        self.chain.as_ref().and_then(|chain| chain.priority)
    }

    /// What the message orders, if it is no job. [`Envelope::decode`] has seen to it that it is one thing alone.
    pub fn order(&self) -> Option<Order> {
        let enroll = self.enroll.clone().map(Order::Enroll);
        let retire = self.retire.map(|Retirement {}| Order::Retire);
        enroll.or(retire).or_else(|| self.run.clone().map(Order::Run))
    }

    /// Checks what stands beside an order.
    fn check_order(&self) -> Result<(), BadMessage> {
        let orders =
            [("enroll", self.enroll.is_some()), ("retire", self.retire.is_some()), ("run", self.run.is_some())];
        let mut given = orders.into_iter().filter(|(_, given)| *given).map(|(name, _)| name);
        let Some(order) = given.next() else { return Ok(()) };
        let beside = [
            ("chain", self.chain.is_some()),
            ("sealed", self.sealed.is_some()),
            ("due", self.due.is_some()),
            ("clock", self.clock.is_some()),
            ("owner", self.owner.is_some()),
            ("attempt", self.attempt != 1),
            ("depth", self.depth != 0),
            ("payload", order == "retire" && !self.payload.is_null()),
        ];
        let beside = given.next().or_else(|| beside.into_iter().find(|(_, is)| *is).map(|(name, _)| name));
        if let Some(beside) = beside {
            return Err(BadMessage::Field(format!("`{beside}` does not go with `{order}`")));
        }
        if let Some(RunNow { queue, priority, .. }) = &self.run {
            if let Some(queue) = queue {
                check_name("run.queue", queue)?;
            }
            check_priority("run.priority", *priority)?;
        }
        let Some(Enrolment { queue, priority, owner, schedule, first_due: _ }) = &self.enroll else { return Ok(()) };
        for (field, name) in [("enroll.queue", queue), ("enroll.owner", owner)] {
            if let Some(name) = name {
                check_name(field, name)?;
            }
        }
        check_priority("enroll.priority", *priority)?;
        match schedule {
            None | Some(Value::Null | Value::String(_) | Value::Object(_)) => Ok(()),
            Some(_) => Err(BadMessage::Field("`enroll.schedule` is neither text nor an object".into())),
        }
    }

    /// The AMQP message id: the same whenever the same attempt is published again.
    pub fn message_id(&self) -> String {
        match (&self.chain, &self.id) {
            (Some(c), _) => format!("{}-{}-{}-{}", c.ledger, c.epoch, c.tick, self.attempt),
            (None, Some(id)) => format!("{id}-{}", self.attempt),
            (None, None) => String::new(),
        }
    }
}

/// A wrong version is told as such even when the rest has another shape too.
fn why_not(body: &[u8], error: &serde_json::Error) -> BadMessage {
    #[derive(Deserialize)]
    struct Versioned {
        v: u64,
    }
    match serde_json::from_slice::<Versioned>(body) {
        Ok(Versioned { v }) if v != u64::from(VERSION) => BadMessage::Version(v),
        _ => {
            let mut words = error.to_string();
            if words.len() > MAX_WORDS {
                words.truncate(words.floor_char_boundary(MAX_WORDS));
                words.push('…');
            }
            BadMessage::NotAnEnvelope(words)
        }
    }
}

/// Checks a kind, key, queue or id: 1 to [`MAX_KEY`] bytes and no control characters.
///
/// # Errors
/// [`BadMessage::Field`].
pub fn check_name(field: &str, value: &str) -> Result<(), BadMessage> {
    if value.is_empty() {
        return Err(BadMessage::Field(format!("`{field}` is empty")));
    }
    if value.len() > MAX_KEY {
        return Err(BadMessage::Field(format!("`{field}` has {} bytes; at most {MAX_KEY} are allowed", value.len())));
    }
    if value.chars().any(char::is_control) {
        return Err(BadMessage::Field(format!("`{field}` has a control character")));
    }
    Ok(())
}

/// Checks a priority: there is a lane for each, at most [`MAX_LANES`].
///
/// # Errors
/// [`BadMessage::Field`].
pub fn check_priority(field: &str, priority: Option<u8>) -> Result<(), BadMessage> {
    match priority.filter(|priority| *priority >= MAX_LANES) {
        Some(priority) => Err(BadMessage::Field(format!("`{field}` is {priority}; the highest is {}", MAX_LANES - 1))),
        None => Ok(()),
    }
}

/// What a handler gets to work on.
#[derive(Clone, Debug)]
pub struct Job {
    /// The same on every attempt, unique among all jobs: `<ledger>-<epoch>-<tick>` for a chain's
    /// tick, the job's own id otherwise. Fit for an idempotency key.
    pub id: String,
    /// Which handler.
    pub kind: String,
    /// Which entity.
    pub key: String,
    /// The platform queue it runs on.
    pub queue: String,
    /// Set when the job is a tick of a chain.
    pub tick: Option<Tick>,
    /// Which try this is, from 1.
    pub attempt: u32,
    /// Who it belongs to.
    pub owner: Option<String>,
    /// What the chain's run before has handed on; null when there is none.
    pub carry: Value,
    /// Parts of the entity that have failed permanently, and are not to be tried: told to ticks of kinds
    /// that feed failed parts back.
    pub unavailable: Vec<String>,
    /// How long after the deadline the run is aborted. A run with a time box should have ended by its
    /// deadline, and one that has not is given this much longer.
    pub grace: Duration,
    /// When this tick was meant to run, by the wall clock.
    pub nominal: Time,
    /// When the handler is stopped, by the wall clock as it is set when the run begins.
    pub deadline: Time,
    /// Derived from kind, key and tick (or id), the same on every attempt: for handlers that roll
    /// dice and must roll the same again. See [`seed`].
    pub seed: u64,
    /// The entity's data.
    pub payload: Value,
}

/// A tick's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// The chain's incarnation.
    pub epoch: Epoch,
    /// The occurrence, from 1.
    pub tick: TickNo,
    /// This attempt's claim; grows with every claim of the chain.
    pub fence: Fence,
}

/// The first eight bytes, big-endian, of SHA-256 over `kind NUL key NUL occurrence`, where the
/// occurrence is the tick in decimal, or a one-off job's id. Other languages can compute it too.
pub fn seed(kind: &str, key: &str, occurrence: &str) -> u64 {
    let mut hash = Sha256::new();
    for part in [kind.as_bytes(), b"\0", key.as_bytes(), b"\0", occurrence.as_bytes()] {
        hash.update(part);
    }
    let digest = hash.finalize();
    digest[..8].iter().fold(0, |seed, byte| seed << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_smallest_job_decodes() {
        let envelope = Envelope::decode(br#"{"v":1,"kind":"sync","key":"npm/@types/node"}"#).unwrap();
        assert_eq!((envelope.attempt, envelope.due, envelope.payload), (1, None, Value::Null));
    }

    /// Bodies that lie in brokers, with each field that a version of the format has. An engine that could not read one
    /// would quarantine a sleeping chain, and one that wrote it otherwise would have an older one beside it do so.
    #[test]
    fn messages_of_an_older_version_are_read_and_written_unchanged() {
        let bodies = [
            r#"{"v":1,"kind":"sync","key":"a","queue":"work","due":1800000000000,"clock":0,"chain":{"ledger":"l","epoch":7,"tick":3}}"#,
            r#"{"v":1,"kind":"sync","key":"a","queue":"work","due":1800000000000,"clock":0,"attempt":2,"chain":{"ledger":"l","epoch":8,"tick":1,"parent":7,"priority":3}}"#,
            // From before engines told by which clock a time is.
            r#"{"v":1,"kind":"sync","key":"a","queue":"work","due":1800000000000,"chain":{"ledger":"l","epoch":7,"tick":3}}"#,
            r#"{"v":1,"kind":"one","key":"b","queue":"work","due":1800000000000,"clock":-3600000,"attempt":4,"id":"1f","payload":{"n":[1,null]},"owner":"ann","depth":2,"retries":[{"of":"a1","by":"b2"}]}"#,
            r#"{"v":1,"kind":"one","key":"b","sealed":{"text":"sealed:1:k:AAAA","since":1800000000000}}"#,
            r#"{"v":1,"kind":"sync","key":"a","payload":{"n":1},"enroll":{"queue":"work","priority":1,"owner":"ann","schedule":"every 5m","first_due":1800000000000}}"#,
            r#"{"v":1,"kind":"sync","key":"a","enroll":{}}"#,
            r#"{"v":1,"kind":"sync","key":"a","retire":{}}"#,
            r#"{"v":1,"kind":"sync","key":"a","run":{"queue":"work","priority":1,"if_running":"refuse","force":true}}"#,
        ];
        for body in bodies {
            let envelope = Envelope::decode(body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"));
            assert_eq!(String::from_utf8(envelope.encode()).unwrap(), body);
        }
    }

    #[test]
    fn what_is_encoded_decodes_to_the_same() {
        let mut hint = Envelope::job("sync", "π", json!({"a": [1, null]}), "x".into());
        assert_eq!(Envelope::decode(&hint.encode()).unwrap(), hint);
        hint.chain = Some(ChainRef {
            ledger: "l".into(),
            epoch: Epoch(7),
            tick: TickNo(3),
            parent: Epoch::NONE,
            priority: None,
        });
        hint.attempt = 2;
        hint.due = Some(Time::from_millis(1_790_000_000_000));
        hint.queue = Some("q".into());
        assert_eq!(Envelope::decode(&hint.encode()).unwrap(), hint);
        assert_eq!(hint.message_id(), "l-7-3-2");
    }

    #[test]
    fn a_due_time_is_read_by_its_own_clock() {
        let wall_clock = WallClock::default().set(Time::from_millis(0), 3_600_000);
        let read = |fields: &str| {
            let body = format!(r#"{{"v":1,"kind":"k","key":"x",{fields}}}"#);
            Envelope::decode(body.as_bytes()).unwrap().read_at(&wall_clock)
        };
        let chain = r#""chain":{"ledger":"l","epoch":1,"tick":1}"#;
        for (fields, due, travels) in [
            // Another program's: the wall clock's, and stays that.
            (String::from(r#""due":3700000"#), 100_000, (3_700_000, None)),
            // The engine's, whatever the wall clock is set to.
            (r#""due":100000,"clock":0"#.into(), 100_000, (100_000, Some(0))),
            (r#""due":100000,"clock":-500"#.into(), 100_500, (100_500, Some(0))),
            (format!(r#""due":100000,{chain}"#), 100_000, (100_000, None)),
            (format!(r#""due":100000,"clock":500,{chain}"#), 99_500, (99_500, Some(0))),
        ] {
            let envelope = read(&fields);
            assert_eq!(envelope.due, Some(Time::from_millis(due)), "{fields}");
            let sent = envelope.travelling(&wall_clock);
            assert_eq!((sent.due, sent.clock), (Some(Time::from_millis(travels.0)), travels.1), "{fields}");
            assert_eq!(sent.into_owned().read_at(&wall_clock), envelope, "{fields}");
        }
        assert_eq!(read(r#""clock":5"#).clock, None, "nothing is due by it");
        let later = read(r#""due":3700000"#).due_at(Time::from_millis(7));
        assert_eq!((later.due, later.clock), (Some(Time::from_millis(7)), Some(0)));
    }

    #[test]
    fn bad_messages_say_what_is_wrong() {
        let deep = format!(r#"{{"v":1,"kind":"k","key":"x","payload":{}{}}}"#, "[".repeat(200), "]".repeat(200));
        let long = format!(r#"{{"v":1,"kind":"k","key":"{}"}}"#, "x".repeat(513));
        let unknown = format!(r#"{{"{}":1}}"#, "u".repeat(10_000));
        let often =
            format!(r#"{{"v":1,"kind":"k","key":"x","retries":[{}]}}"#, [r#"{"of":"a","by":"b"}"#; 17].join(","));
        let table: [(&[u8], &str); 21] = [
            (b"", "EOF"),
            (b"\xff\xfe", "expected value"),
            (b"[]", "not a job envelope"),
            (br#"[1,"k","x"]"#, "expected a JSON object"),
            (br#"{"v":1,"kind":"k","key":"x","chain":["l",1,1]}"#, "expected a JSON object"),
            (br#"{"v":1,"kind":"k","key":"x","chain":{"ledger":"","epoch":1,"tick":1}}"#, "`chain.ledger` is empty"),
            (unknown.as_bytes(), "uuu…"),
            (br#"{"v":1,"kind":"k"}"#, "missing field `key`"),
            (br#"{"v":1,"kind":"k","key":"x","paylod":1}"#, "unknown field `paylod`"),
            (br#"{"v":2,"kind":"k","key":"x","new":1}"#, "version 2"),
            (br#"{"v":1,"kind":"k","key":""}"#, "`key` is empty"),
            (b"{\"v\":1,\"kind\":\"k\",\"key\":\"a\\u0000b\"}", "control character"),
            (br#"{"v":1,"kind":"k","key":"x","attempt":0}"#, "counts from 1"),
            (br#"{"v":1,"kind":"k","key":"x","chain":{"ledger":"l","epoch":0,"tick":1}}"#, "count from 1"),
            (br#"{"v":1,"kind":"k","key":"x"}{"#, "trailing"),
            (often.as_bytes(), "more than 16 entries"),
            (br#"{"v":1,"kind":"k","key":"x","retries":[["a","b"]]}"#, "expected a JSON object"),
            (br#"{"v":1,"kind":"k","key":"x","retries":[{"of":"","by":"b"}]}"#, "hexadecimal"),
            (br#"{"v":1,"kind":"k","key":"x","retries":[{"of":"a","by":"B"}]}"#, "hexadecimal"),
            (deep.as_bytes(), "recursion limit"),
            (long.as_bytes(), "513 bytes"),
        ];
        for (body, part) in table {
            let error = Envelope::decode(body).unwrap_err().to_string();
            assert!(error.contains(part), "{:?} gave {error}", String::from_utf8_lossy(body));
        }
        assert_eq!(Envelope::decode(&vec![b' '; MAX_BYTES + 1]), Err(BadMessage::TooLarge(MAX_BYTES + 1)));
    }

    #[test]
    fn what_is_sealed_may_be_longer_and_stands_alone() {
        let body = |more: &str| format!(r#"{{"v":1,"kind":"k","key":"x",{more}}}"#);
        let sealed = |length: usize| body(&format!(r#""sealed":{{"text":"sealed:1:k:{}"}}"#, "A".repeat(length)));
        assert!(Envelope::decode(sealed(longest(MAX_PAYLOAD) - 20).as_bytes()).is_ok());
        assert!(matches!(Envelope::decode(sealed(MAX_SEALED).as_bytes()), Err(BadMessage::TooLarge(_))));
        for (more, words) in [
            (r#""sealed":{"text":"sealed:1:k:A"},"payload":1"#, "stands in place of `payload`"),
            (
                r#""sealed":{"text":"sealed:1:k:A"},"chain":{"ledger":"l","epoch":1,"tick":1}"#,
                "a chain's message has neither",
            ),
            (r#""sealed":{"text":"{}"}"#, "is no sealed text"),
            (r#""sealed":"sealed:1:k:A""#, "not a job envelope"),
        ] {
            let why = Envelope::decode(body(more).as_bytes()).unwrap_err().to_string();
            assert!(why.contains(words), "{more}: {why}");
        }
        // A body that is too large and no sealed one is told as such, whatever it is.
        let large = format!("{{{}", " ".repeat(MAX_BYTES));
        assert_eq!(Envelope::decode(large.as_bytes()), Err(BadMessage::TooLarge(MAX_BYTES + 1)));
        let quoted = Envelope::decode(br#"{"v":"canary"}"#).unwrap_err();
        assert!(quoted.told(false).contains("canary") && !quoted.told(true).contains("canary"), "{quoted}");
    }

    #[test]
    fn a_payload_is_measured_as_it_is_sent_again() {
        let body = |payload: &str| format!(r#"{{"v":1,"kind":"k","key":"x","payload":{payload}}}"#);
        let text = |n: usize| body(&format!("\"{}\"", "x".repeat(n - 2)));
        let mut largest = Envelope::decode(text(MAX_PAYLOAD).as_bytes()).unwrap();
        assert_eq!(
            Envelope::decode(text(MAX_PAYLOAD + 1).as_bytes()),
            Err(BadMessage::PayloadTooLarge(MAX_PAYLOAD + 1))
        );
        let grows = body(&format!("[1e9{}]", ",1e9".repeat(99_999)));
        assert_eq!(Envelope::decode(grows.as_bytes()), Err(BadMessage::PayloadTooLarge(1_300_001)));
        // With everything that a retry can add it is still read.
        let long = "\"".repeat(MAX_KEY);
        (largest.kind, largest.key, largest.attempt) = (long.clone(), long.clone(), u32::MAX);
        (largest.queue, largest.id, largest.due) =
            (Some(long.clone()), Some(long.clone()), Some(Time::from_millis(i64::MIN)));
        largest.owner = Some(long);
        largest.retries = vec![Retry { of: "a".repeat(64), by: "b".repeat(64) }; MAX_RETRIES];
        assert_eq!(Envelope::decode(&largest.encode()).unwrap(), largest);
    }

    #[test]
    fn a_seed_depends_on_each_part() {
        // printf 'k\0x\0001' | sha256sum
        assert_eq!(seed("k", "x", "1"), seed("k", "x", "1"));
        let others = [seed("k", "x", "2"), seed("k", "y", "1"), seed("l", "x", "1"), seed("kx", "", "1")];
        assert!(others.iter().all(|other| *other != seed("k", "x", "1")));
    }
}
