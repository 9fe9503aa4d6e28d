//! What holds messages and what holds chains, and the keys with which payloads are sealed in both: `[broker]`,
//! `[ledger]` and `[encryption]`.

use std::collections::BTreeMap;

use roundelay_model::secret::Secret;
use serde::Deserialize;

use super::duration::{HumanDuration, secs};

/// What carries messages: RabbitMQ, or a broker inside the worker.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Broker {
    /// `embedded` runs a broker inside the worker: for development, and for one worker on one machine. For RabbitMQ
    /// `amqp://user:password@host:5672/vhost`, or `amqps://` for TLS. The virtual host `/` is written `%2f`, or left
    /// out.
    pub url: Secret,
    /// The user, in place of the URL's, as it stands. `management` takes it too unless its URL names a user. The
    /// embedded broker does not look at it.
    pub username: Option<Secret>,
    /// The password, in place of the URL's, as it stands.
    pub password: Option<Secret>,
    /// What the engine's own exchanges and queues begin with: 1 to 100 letters, digits, `-`, `_` and `.`. Change it
    /// when two deployments share a virtual host.
    #[cfg_attr(test, schemars(length(min = 1, max = 100)))]
    pub prefix: String,
    /// The base URL of RabbitMQ's management API, with a user that has the tag `management`. With it a worker refuses
    /// to start while a policy would lose or delay jobs, and `roundelay topology check` sees arguments and policies.
    pub management: Option<Secret>,
    /// Whether workers, and programs that enroll, declare what is missing on RabbitMQ. With `false` they need no
    /// permission for that, and refuse to start where something is missing: `roundelay topology apply`, or an import,
    /// has declared it before.
    pub declare: bool,
    /// How messages sleep until they are due. RabbitMQ from 4.4 on lets each sleep on its own queue; on older ones they
    /// sleep on the queues of a ladder. `auto` finds out by trying, when a worker starts or connects again and once a
    /// minute. The embedded broker does as it is told, and has a ladder with `auto`.
    pub delays: Delays,
    /// How many messages in a second one `enroll`, one sync of a roster, or one worker's catch-up publishes at most,
    /// so that the messages of chains that run are not late behind them.
    #[cfg_attr(test, schemars(range(min = 1_000, max = 1_000_000)))]
    pub bulk_rate: u32,
    /// How the broker and its management API are known over TLS, and we to them.
    pub tls: BrokerTls,
}

impl Default for Broker {
    fn default() -> Self {
        Self {
            url: "embedded".into(),
            username: None,
            password: None,
            prefix: "roundelay".into(),
            management: None,
            declare: true,
            delays: Delays::Auto,
            bulk_rate: 20_000,
            tls: BrokerTls::default(),
        }
    }
}

/// How messages sleep until they are due.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum Delays {
    /// On their own queue if the broker lets them, else on the ladder.
    #[default]
    Auto,
    /// On their own queue. A broker that does not let them is refused.
    Native,
    /// On the ladder.
    Ladder,
}

impl From<Delays> for roundelay_broker::Delays {
    fn from(delays: Delays) -> Self {
        match delays {
            Delays::Auto => Self::Auto,
            Delays::Native => Self::Native,
            Delays::Ladder => Self::Ladder,
        }
    }
}

/// How the broker and its management API are known over TLS, and we to them: PEM files, read anew for each connection.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct BrokerTls {
    /// The authorities to trust, in place of the system's.
    pub ca: Option<String>,
    /// Our own certificate, with those that it was signed with, where the broker asks for one. To log in with it, and
    /// without a password, add `?auth_mechanism=external` to the URL.
    pub certificate: Option<String>,
    /// Its private key.
    pub key: Option<String>,
}

/// What holds the truth about chains.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Ledger {
    /// A SQLite file, `sqlite://PATH`, which all workers and commands on one machine open, on its own disk; or a
    /// PostgreSQL database, `postgres://user:password@host:5432/database`, which workers on many machines share.
    /// `sqlite://:memory:` is gone with the process.
    pub url: Secret,
    /// The user, in place of that of a `postgres://` URL, as it stands.
    pub username: Option<Secret>,
    /// The password, in place of the URL's, as it stands.
    pub password: Option<Secret>,
    /// How long the records of attempts that have ended are kept.
    #[cfg_attr(test, schemars(extend("x-least" = "0s", "x-most" = "3660days")))]
    pub history: HumanDuration,
    /// How old they may become in an archive, a table of its own to which they move when they are older than
    /// `history`. It has to be longer than that. Without it they are deleted.
    #[cfg_attr(test, schemars(extend("x-least" = "1s", "x-most" = "3660days")))]
    pub archive: Option<HumanDuration>,
    /// Whether workers and commands refuse a PostgreSQL server that waits for no standby (`synchronous_standby_names`),
    /// when they connect and at each commit. With it a site that was given up starts nothing any more, also where an
    /// operator has its server stop waiting. For the site whose server has a synchronous standby at another:
    /// docs/operations.md, "A site that is lost".
    pub synchronous: bool,
}

impl Default for Ledger {
    fn default() -> Self {
        let url = "sqlite://roundelay.db".into();
        let history = secs(7 * 86_400);
        Self { url, username: None, password: None, history, archive: None, synchronous: false }
    }
}

/// Keys that payloads are sealed with while they lie in the ledger and in queues.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Encryption {
    /// The key that new texts are sealed with: a name under `keys`. Empty, new ones are plain; what is sealed is opened
    /// all the same. `require`, or with several keys `require:NAME`, seals too, and takes nothing that is plain:
    /// chains whose payload is wait for `roundelay encryption --reseal`, and messages whose payload is go to
    /// quarantine.
    pub seal: Option<String>,
    /// Keys by name: 64 random bytes each, in Base64 (`openssl rand -base64 64`), for AES-256-SIV. Keep a key here as
    /// long as anything may be sealed with it: without it, that waits.
    pub keys: BTreeMap<String, Secret>,
}
