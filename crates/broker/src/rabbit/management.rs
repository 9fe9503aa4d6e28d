//! What RabbitMQ's management API says about a virtual host.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use reqwest::{Client, Response};
use roundelay_model::topology::Topology;
use roundelay_net::tls;
use roundelay_net::tls::BrokerTls;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::sleep;
use url::Url;

use super::check::{SeenExchange, SeenQueue, Snapshot};
use super::connection::install_tls_provider;
use crate::Rates;

/// How long one request may take.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// Before 4.0 the operator policies of a queue come only with its statistics, some seconds after
/// its creation. So often, a second apart, they are waited for.
const LOOKS: u32 = 15;

/// Where a management API is, and what is asked about.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    /// Its base URL, with credentials.
    pub(super) url: &'a str,
    /// The virtual host.
    pub(super) vhost: &'a str,
    /// How it is known where the URL begins with https.
    pub(super) tls: &'a BrokerTls,
}

/// Everything in the virtual host that [`compare`](super::check::compare) looks at, or why that cannot be had, without
/// the password.
pub(super) async fn snapshot(place: &Place<'_>, topology: &Topology) -> Result<Snapshot, String> {
    let api = Api::new(place)?;
    let exchanges: Vec<ExchangeRow> = api.list("exchanges", "name,type,durable,arguments").await?;
    let bindings: Vec<BindingRow> = api.list("bindings", "").await?;
    let policies = api.policies("policies").await;
    let operator_policies = api.policies("operator-policies").await;
    let queues = api.queues(topology, &policies, &operator_policies).await?;
    Ok(Snapshot {
        vhost: place.vhost.into(),
        exchanges: exchanges.into_iter().map(ExchangeRow::seen).collect(),
        queues: queues.into_iter().map(QueueRow::seen).collect(),
        bindings: bindings
            .into_iter()
            .filter(|row| row.destination_type == "queue")
            .map(|row| (row.source, row.destination, row.routing_key))
            .collect(),
        policies: policies.unwrap_or_default(),
        operator_policies: operator_policies.unwrap_or_default(),
    })
}

/// How many bytes of memory all nodes of the broker take, or why that cannot be had, without the password.
///
/// # Errors
/// When the management API at `url` cannot be asked.
pub async fn memory_of_nodes(url: &str, tls: &BrokerTls) -> Result<u64, String> {
    #[derive(Deserialize)]
    struct NodeRow {
        #[serde(default)]
        mem_used: u64,
    }
    let nodes: Vec<NodeRow> = Api::new(&Place { url, vhost: "", tls })?.get("nodes", "name,mem_used").await?;
    Ok(nodes.iter().map(|node| node.mem_used).sum())
}

/// How many messages come and go in a second, and how many sleep, by queue. A queue without recent statistics has none.
pub(super) async fn rates(place: &Place<'_>) -> Result<BTreeMap<String, Rates>, String> {
    #[derive(Default, Deserialize)]
    struct Details {
        #[serde(default)]
        rate: f64,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Stats {
        publish_details: Details,
        deliver_get_details: Details,
    }
    #[derive(Deserialize)]
    struct Row {
        name: String,
        #[serde(default)]
        message_stats: Stats,
        /// From RabbitMQ 4.4 on.
        #[serde(default)]
        messages_delayed: u64,
    }
    const COLUMNS: &str =
        "name,messages_delayed,message_stats.publish_details.rate,message_stats.deliver_get_details.rate";
    let rows: Vec<Row> = Api::new(place)?.list("queues", COLUMNS).await?;
    let rates = rows.into_iter().map(|Row { name, message_stats, messages_delayed }| {
        let Stats { publish_details, deliver_get_details } = message_stats;
        let (published, delivered) = (publish_details.rate, deliver_get_details.rate);
        (name, Rates { published, delivered, asleep: messages_delayed })
    });
    Ok(rates.collect())
}

/// Definitions of policies by name.
type Policies = BTreeMap<String, Map<String, Value>>;

pub(super) struct Api {
    client: Client,
    base: Url,
    user: String,
    password: Option<String>,
    vhost: String,
}

impl Api {
    pub(super) fn new(place: &Place<'_>) -> Result<Self, String> {
        install_tls_provider();
        let mut base = Url::parse(place.url).map_err(|error| format!("the management URL is not a URL: {error}"))?;
        if !base.has_host() {
            return Err("the management URL names no host".into());
        }
        // The credentials go into a header, and out of everything that could be shown.
        let plain = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let (user, password) = (plain(base.username()), base.password().map(plain));
        let _ = base.set_username("");
        let _ = base.set_password(None);
        // The broker is reached directly, so its API is too.
        let mut client = Client::builder().timeout(REQUEST_WITHIN).no_proxy();
        if base.scheme() == "https" && *place.tls != BrokerTls::default() {
            client = client.tls_backend_preconfigured(tls::client(place.tls)?);
        }
        let client = client.build().map_err(|error| error.to_string())?;
        let vhost = utf8_percent_encode(place.vhost, NON_ALPHANUMERIC).to_string();
        Ok(Self { client, base, user, password, vhost })
    }

    /// A list of the virtual host's things of one sort, with these columns, or all.
    async fn list<T: DeserializeOwned>(&self, sort: &str, columns: &str) -> Result<Vec<T>, String> {
        self.get(&format!("{sort}/{}", self.vhost), columns).await
    }

    /// What there is below `api/`, with these columns, or all.
    async fn get<T: DeserializeOwned>(&self, what: &str, columns: &str) -> Result<T, String> {
        let response = self.request(what, columns).await?;
        match response.status().as_u16() {
            200 => response.json().await.map_err(|error| self.unanswered(error)),
            401 => Err(format!(
                "the management API at {} refuses user `{}` (wrong password, or the user lacks the tag `management`)",
                self.base, self.user
            )),
            404 => Err(format!("the management API at {} knows no virtual host of that name", self.base)),
            status => Err(format!("the management API at {} answers {status} to {}", self.base, response.url().path())),
        }
    }

    /// The answer to that, whatever it is; or why there is none.
    pub(super) async fn request(&self, what: &str, columns: &str) -> Result<Response, String> {
        let path = format!("{}/api/{what}", self.base.path().trim_end_matches('/'));
        let mut url = self.base.clone();
        url.set_path(&path);
        if !columns.is_empty() {
            url.set_query(Some(columns).map(|columns| format!("columns={columns}")).as_deref());
        }
        let request = self.client.get(url).basic_auth(&self.user, self.password.as_ref());
        request.send().await.map_err(|error| self.unanswered(error))
    }

    /// Why there is no answer, without the credentials.
    pub(super) fn unanswered(&self, error: reqwest::Error) -> String {
        format!("the management API at {} cannot be asked: {}", self.base, root_cause(&error.without_url()))
    }

    /// The user at the management API.
    pub(super) fn user(&self) -> &str {
        &self.user
    }

    /// The virtual host, as it stands in a path.
    pub(super) fn vhost(&self) -> &str {
        &self.vhost
    }

    /// The queues with the policies in force on them.
    async fn queues(
        &self,
        topology: &Topology,
        policies: &Result<Policies, String>,
        operator_policies: &Result<Policies, String>,
    ) -> Result<Vec<QueueRow>, String> {
        const COLUMNS: &str = "name,durable,arguments,policy,operator_policy,effective_policy_definition";
        let ours: BTreeSet<_> = topology.queues.iter().map(|queue| queue.name.as_str()).collect();
        let known = |rows: &[QueueRow]| {
            let ours = |row: &&QueueRow| ours.contains(row.name.as_str());
            rows.iter().filter(ours).all(|row| row.effective_policy_definition.is_some())
        };
        // Without statistics everything is current, and from 4.0 on it is complete.
        let mut rows: Vec<QueueRow> = self.list("queues", &format!("{COLUMNS}&disable_stats=true")).await?;
        if known(&rows) {
            return Ok(rows);
        }
        // Before, the policy is named at least. Where there are no operator policies, that is all.
        if let (Ok(policies), Ok(operator_policies)) = (policies, operator_policies)
            && operator_policies.is_empty()
        {
            for row in &mut rows {
                let policy = row.policy.as_ref().and_then(|name| policies.get(name));
                row.effective_policy_definition = Some(Object(policy.cloned().unwrap_or_default()));
            }
            return Ok(rows);
        }
        for look in 0..LOOKS {
            if look > 0 {
                sleep(Duration::from_secs(1)).await;
            }
            rows = self.list("queues", COLUMNS).await?;
            if known(&rows) {
                break;
            }
        }
        Ok(rows)
    }

    /// The definitions of policies. Not everyone who may see queues may see these.
    async fn policies(&self, sort: &str) -> Result<Policies, String> {
        let rows: Vec<PolicyRow> = self.list(sort, "").await?;
        Ok(rows.into_iter().map(|row| (row.name, row.definition.0)).collect())
    }
}

/// The innermost reason, such as "Connection refused".
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// An object that RabbitMQ, in some versions, writes as `[]` when it is empty.
#[derive(Default)]
struct Object(Map<String, Value>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Object(object) => Ok(Self(object)),
            _ => Ok(Self::default()),
        }
    }
}

#[derive(Deserialize)]
struct ExchangeRow {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    durable: bool,
    #[serde(default)]
    arguments: Object,
}

impl ExchangeRow {
    fn seen(self) -> (String, SeenExchange) {
        (self.name, SeenExchange { kind: self.kind, durable: self.durable, arguments: self.arguments.0 })
    }
}

#[derive(Deserialize)]
struct QueueRow {
    name: String,
    durable: bool,
    #[serde(default)]
    arguments: Object,
    policy: Option<String>,
    operator_policy: Option<String>,
    effective_policy_definition: Option<Object>,
}

impl QueueRow {
    fn seen(self) -> (String, SeenQueue) {
        // No policy is written as null, or as an empty name.
        let named = |name: Option<String>| name.filter(|name| !name.is_empty());
        let seen = SeenQueue {
            durable: self.durable,
            arguments: self.arguments.0,
            policy: named(self.policy),
            operator_policy: named(self.operator_policy),
            effective_policy: self.effective_policy_definition.map(|definition| definition.0),
        };
        (self.name, seen)
    }
}

#[derive(Deserialize)]
struct BindingRow {
    source: String,
    destination: String,
    destination_type: String,
    routing_key: String,
}

#[derive(Deserialize)]
struct PolicyRow {
    name: String,
    definition: Object,
}
