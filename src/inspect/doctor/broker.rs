//! The broker: how far one gets with it, what it is, what this user may do there, and whether its exchanges and queues
//! are as they must be.

use std::collections::BTreeSet;
use std::time::Duration;

use regex_lite::Regex;

use super::{Answer, Area, Facts, Finding, limited, size, some, word};
use crate::broker::Broker;
use crate::broker::rabbit::certificates::{Certificate, Soon};
use crate::broker::rabbit::examine::{self, Negotiated, Node, Permissions, Place, Reached, Told, Untold, Withheld};
use crate::broker::rabbit::users::Role;
use crate::broker::rabbit::{RabbitBroker, Weight, check};
use crate::broker::topology::{Names, Topology};
use crate::clock::Time;
use crate::config::{BrokerUrl, Config, Secret};
use crate::inspect::broker::Asked;

/// A node with less free disk than this above its limit may raise the alarm any day.
const LITTLE_DISK: u64 = 1 << 30;
/// A node that has used so much of what it may have, in percent, has little left.
const MUCH: u64 = 90;
/// Channels of a connection that a worker needs beside one for each queue.
const OWN_CHANNELS: usize = 16;
/// Longer heartbeats leave a dead peer unnoticed for so many seconds, twice.
const SLOW_HEARTBEAT: u16 = 120;
/// Before, quorum queues have no time to live.
const OLDEST: (u32, u32) = (3, 10);
/// The newest that was tested.
const NEWEST: (u32, u32) = (4, 3);
/// What the rungs need: dead-lettering at least once, and times to live on quorum queues.
const FEATURES: [&str; 2] = ["quorum_queue", "stream_queue"];

/// What is known of RabbitMQ.
#[derive(Clone, Debug)]
pub struct BrokerFacts {
    /// Where it is, and who we are to it.
    pub place: Answer<Place>,
    /// How far one gets.
    pub reached: Answer<Reached>,
    /// The certificates that were met on the way.
    pub certificates: Vec<Certificate>,
    /// What the management API tells; nothing where none is configured.
    pub told: Option<Answer<Result<Told, Untold>>>,
    /// What differs from the topology, or why that is not known.
    pub topology: Answer<Vec<check::Finding>>,
    /// How full queues are.
    pub asked: Asked,
}

/// Asks.
pub(super) async fn gather(config: &Config, within: Duration) -> Option<BrokerFacts> {
    let BrokerUrl::Amqp(url) = &config.broker.url else { return None };
    let (place, management) = (Place::of(url.expose()), config.broker.management.clone());
    let tls = config.broker.tls.clone();
    let told = async {
        let (management, place, tls) = (management?, place.clone().ok()?, tls.clone());
        let told = async move { examine::ask(management.expose(), &place.vhost, &place.user, &tls).await };
        Some(limited(within, told).await)
    };
    let (to, by) = (url.clone(), tls.clone());
    let reached = limited(within, async move { examine::reach(to.expose(), &by).await });
    let topology = limited(within, differences(config.clone()));
    let asked = limited(within, depths(config.clone()));
    let (told, reached, topology, asked) = tokio::join!(told, reached, topology, asked);
    let topology = topology.and_then(|topology| topology);
    let (reached, certificates) = match reached {
        Ok((reached, certificates)) => (Ok(reached), certificates),
        Err(why) => (Err(why), Vec::new()),
    };
    Some(BrokerFacts { place, reached, certificates, told, topology, asked: asked.unwrap_or_else(Asked::Away) })
}

async fn differences(config: Config) -> Answer<Vec<check::Finding>> {
    let broker = RabbitBroker::open(&config.broker).await.map_err(|error| error.to_string())?;
    let found = broker.check(&config.topology(), config.broker.management.as_ref().map(Secret::expose)).await;
    broker.close().await;
    found.map_err(|error| error.to_string())
}

async fn depths(config: Config) -> Asked {
    match RabbitBroker::open(&config.broker).await {
        Ok(broker) => {
            let asked = Asked::ask(&config, &broker).await;
            broker.close().await;
            asked
        }
        Err(error) => Asked::Away(error.to_string()),
    }
}

/// What is wrong with the broker.
pub(super) fn judge(facts: &Facts, config: &Config) -> Vec<Finding> {
    let Some(broker) = &facts.broker else {
        let words = "embedded: it is in the worker's process, and keeps nothing";
        return vec![Finding::good(Area::Broker, "broker", words)];
    };
    let place = match &broker.place {
        Ok(place) => place,
        Err(why) => {
            return vec![Finding::bad(Area::Broker, "connection", why, "no worker starts", "correct broker.url")];
        }
    };
    let topology = config.topology();
    let needs = Needs::of(&topology, config.broker.declare);
    let mut all = connection(&broker.reached, place, &topology, &needs);
    all.extend(certificates(&broker.certificates, facts.now));
    let is_in = matches!(broker.reached, Ok(Reached::In(_)));
    all.extend(management(broker.told.as_ref(), place, &topology, &needs));
    all.extend(declared(&broker.topology, is_in, &topology));
    all.extend(leftovers(&broker.asked, is_in, &topology.names));
    all
}

fn connection(reached: &Answer<Reached>, place: &Place, topology: &Topology, needs: &Needs) -> Vec<Finding> {
    let what = "connection";
    let Place { host, port, vhost, user, encrypted } = place;
    let stops = "no worker starts, and nothing can be enrolled or published; those that run wait until it is back";
    let start = format!(
        "see that RabbitMQ runs (`rabbitmq-diagnostics check_port_connectivity`), that broker.url has the right host and \
         port, and that no firewall is between: `nc -vz {host} {port}`"
    );
    let bad = |seen: String, fix: &str| vec![Finding::bad(Area::Broker, what, seen, stops, fix)];
    match reached {
        Err(why) => bad(format!("{host}:{port}: {why}"), &start),
        Ok(Reached::NoAnswer(why)) => bad(format!("{host}:{port} cannot be reached: {why}"), &start),
        Ok(Reached::NoFiles(why)) => bad(why.clone(), "correct broker.tls, or the files that it names"),
        Ok(Reached::NoHandshake(why)) => bad(
            format!("{host}:{port} does not speak TLS: {why}"),
            "use the port on which RabbitMQ listens for TLS (usually 5671), or amqp:// in place of amqps://",
        ),
        Ok(Reached::NoTls(error)) => bad(format!("TLS with {host}:{port} fails: {error}"), tls_fix(error)),
        Ok(Reached::Refused { code, words }) => {
            let seen = format!("{host}:{port} answers, and refuses: {words}");
            match code {
                Some(403) => bad(
                    seen,
                    &format!(
                        "correct user and password in broker.url (or ROUNDELAY__BROKER__URL), or set the password: \
                         `rabbitmqctl change_password {} …`; the user guest may log in only from the broker's own \
                         machine",
                        word(user)
                    ),
                ),
                Some(530) if words.contains("not found") => bad(
                    seen,
                    &format!("`rabbitmqctl add_vhost {}`, or correct the virtual host in broker.url", word(vhost)),
                ),
                Some(530) => bad(
                    seen,
                    &format!(
                        "let the user into the virtual host: `rabbitmqctl set_permissions -p {} {} {}`",
                        word(vhost),
                        word(user),
                        needs.command()
                    ),
                ),
                _ => bad(
                    seen,
                    &match encrypted {
                        true => "see RabbitMQ's log; it may be no AMQP that listens there".to_owned(),
                        false => {
                            "see RabbitMQ's log; it may be no AMQP that listens there, or only with TLS: then use \
                                  amqps://"
                                .to_owned()
                        }
                    },
                ),
            }
        }
        Ok(Reached::In(agreed)) => {
            let tls = if *encrypted { ", with TLS" } else { "" };
            let seen = format!("{user} is in the virtual host {vhost} on {host}:{port}{tls}");
            let mut all = vec![Finding::good(Area::Broker, what, seen)];
            all.extend(negotiated(agreed, topology));
            all
        }
    }
}

fn tls_fix(error: &rustls::Error) -> &'static str {
    use rustls::CertificateError as Bad;
    match error {
        rustls::Error::InvalidCertificate(Bad::UnknownIssuer) => {
            "name the file of the authority that has signed the broker's certificate in broker.tls.ca; or let this machine \
             trust it: copy it to /usr/local/share/ca-certificates, `update-ca-certificates`"
        }
        rustls::Error::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            "use in broker.url a name that is in the broker's certificate, or give the broker one with this name"
        }
        rustls::Error::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => {
            "renew the broker's certificate; see that this machine's clock is right"
        }
        rustls::Error::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. }) => {
            "see that this machine's clock is right"
        }
        rustls::Error::InvalidMessage(_) => {
            "what answers is no TLS: use the port on which RabbitMQ listens for TLS (usually 5671), or amqp:// in place of \
             amqps://"
        }
        _ => "`openssl s_client -connect HOST:PORT` shows the broker's side of it; TLS 1.2 or 1.3 is needed",
    }
}

fn negotiated(agreed: &Negotiated, topology: &Topology) -> Vec<Finding> {
    let Negotiated { heartbeat, frame_max, channel_max } = *agreed;
    let what = "heartbeat";
    let fix = "set heartbeat in rabbitmq.conf to some seconds, or add ?heartbeat=10 to broker.url";
    let mut all = vec![match heartbeat {
        0 => Finding::bad(
            Area::Broker,
            what,
            "there is none",
            "a connection that was cut without a word is never noticed, by neither side: its messages are stuck",
            fix,
        ),
        1..=SLOW_HEARTBEAT => {
            Finding::good(Area::Broker, what, format!("every {heartbeat} s, in frames of up to {frame_max} bytes"))
        }
        _ => Finding::warning(
            Area::Broker,
            what,
            format!("every {heartbeat} s"),
            format!("a dead connection is noticed after {} s", 2 * u32::from(heartbeat)),
            fix,
        ),
    }];
    let needed = topology.queues.iter().filter(|queue| queue.ttl().is_none()).count() + OWN_CHANNELS;
    if channel_max != 0 && usize::from(channel_max) < needed {
        all.push(Finding::bad(
            Area::Broker,
            "channels",
            format!("a connection may have {channel_max}, and a worker of all queues needs up to {needed}"),
            "a worker cannot consume all of its queues",
            format!("set channel_max = {needed} or more in rabbitmq.conf"),
        ));
    }
    all
}

/// Certificates that end soon, and those that do not.
fn certificates(all: &[Certificate], now: Time) -> Vec<Finding> {
    let finding = |certificate: &Certificate| {
        let Certificate { whose, ends } = certificate;
        let what = "certificates";
        let follows =
            "from then on no connection to the broker succeeds; those that are open go on until they are lost";
        let fix = "renew it, and put certificate and key in their places: workers read them when they next connect";
        match certificate.soon(now) {
            None => Finding::good(Area::Broker, what, format!("{whose} ends at {ends}")),
            Some(Soon::Month) => Finding::warning(Area::Broker, what, format!("{whose} ends at {ends}"), follows, fix),
            Some(Soon::Week) => Finding::bad(Area::Broker, what, format!("{whose} ends at {ends}"), follows, fix),
            Some(Soon::Over) => Finding::bad(Area::Broker, what, format!("{whose} has ended at {ends}"), follows, fix),
        }
    };
    all.iter().map(finding).collect()
}

/// What a worker's user must be allowed.
struct Needs(Permissions);

impl Needs {
    fn of(topology: &Topology, declares: bool) -> Self {
        if !declares {
            return Self(Role::Worker.permissions(topology));
        }
        let (jobs, suffix) = (topology.names.jobs(), ".jobs");
        let prefix = jobs.strip_suffix(suffix).unwrap_or(&jobs);
        let own = format!("{prefix}.");
        let others = topology.queues.iter().map(|queue| queue.name.as_str()).filter(|name| !name.starts_with(&own));
        let others = others.map(|name| format!("|{}", regex_lite::escape(name)));
        let pattern = format!("^({}\\..*{})$", regex_lite::escape(prefix), others.collect::<String>());
        Self(Permissions { configure: pattern.clone(), write: pattern.clone(), read: pattern })
    }

    /// The arguments of `rabbitmqctl set_permissions` after the user's name: all that a worker needs, and no more.
    fn command(&self) -> String {
        let Permissions { configure, write, read } = &self.0;
        format!("'{configure}' '{write}' '{read}'")
    }
}

fn management(
    told: Option<&Answer<Result<Told, Untold>>>,
    place: &Place,
    topology: &Topology,
    needs: &Needs,
) -> Vec<Finding> {
    let what = "management API";
    let without = "policies, arguments, permissions, alarms and the broker's version are not looked at";
    let told = match told {
        None => {
            return vec![Finding::unknown(
                Area::Broker,
                what,
                format!("broker.management is not set, so {without}"),
                "set broker.management to the base URL of the management API, such as http://user:password@host:15672, \
                 and `rabbitmq-plugins enable rabbitmq_management`",
            )];
        }
        Some(Err(why)) => Err(Untold::NoAnswer(why.clone())),
        Some(Ok(told)) => told.clone(),
    };
    let told = match told {
        Ok(told) => told,
        Err(Untold::NoAnswer(why)) => {
            return vec![Finding::bad(
                Area::Broker,
                what,
                why,
                without,
                "`rabbitmq-plugins enable rabbitmq_management` on the broker; see that broker.management has the right \
                 host and port (usually 15672), and http or https as it is configured there",
            )];
        }
        Err(Untold::Refused(user)) => {
            return vec![Finding::bad(
                Area::Broker,
                what,
                format!("it refuses the user `{user}`: another password, or no tag that lets it in"),
                without,
                format!(
                    "correct user and password in broker.management, or `rabbitmqctl set_user_tags {} monitoring`",
                    word(user)
                ),
            )];
        }
    };
    let mut all = vec![Finding::good(Area::Broker, what, format!("answers the user {}", told.user))];
    all.push(version(&told.version));
    all.extend(features(&told));
    all.extend(nodes(&told));
    all.extend(permissions(&told, place, topology, needs));
    all
}

fn version(text: &str) -> Finding {
    let what = "RabbitMQ";
    let mut numbers = text.split('.').map(|part| part.parse::<u32>().ok());
    let (Some(Some(major)), Some(Some(minor))) = (numbers.next(), numbers.next()) else {
        return Finding::unknown(
            Area::Broker,
            what,
            format!("its version is `{text}`"),
            "`rabbitmqctl version` tells it",
        );
    };
    let seen = format!("version {text}");
    match (major, minor) {
        older if older < OLDEST => Finding::bad(
            Area::Broker,
            what,
            format!("{seen} is too old"),
            "messages on quorum queues have no time to live before 3.10, so nothing that sleeps wakes",
            "upgrade to RabbitMQ 3.10 or later, best to the newest 4.x",
        ),
        newer if newer > NEWEST => Finding::warning(
            Area::Broker,
            what,
            format!("{seen} is newer than any that was tested"),
            "it may behave otherwise than the engine knows it",
            "see CHANGELOG for a newer Roundelay; try it elsewhere first",
        ),
        (3, _) => Finding::good(
            Area::Broker,
            what,
            format!("{seen}; supported, though RabbitMQ itself gives it no more updates"),
        ),
        _ => Finding::good(Area::Broker, what, seen),
    }
}

fn features(told: &Told) -> Option<Finding> {
    let features = told.features.as_ref().ok()?;
    let off = features.iter().filter(|flag| FEATURES.contains(&flag.name.as_str()) && flag.state != "enabled");
    let off: Vec<&str> = off.map(|flag| flag.name.as_str()).collect();
    (!off.is_empty()).then(|| {
        Finding::bad(
            Area::Broker,
            "feature flags",
            format!("{} are not enabled", some(&off)),
            "quorum queues, or their dead-lettering at least once, do not work: jobs may be lost when they wake",
            "`rabbitmqctl enable_feature_flag all`",
        )
    })
}

fn nodes(told: &Told) -> Vec<Finding> {
    let tag = format!(
        "`rabbitmqctl set_user_tags {} monitoring`; `rabbitmq-diagnostics status` tells it, too",
        word(&told.user)
    );
    let what = "alarms";
    let blocked = "publishing waits: chains run, and their successors are sent only when it is over";
    let nodes = match (&told.nodes, told.alarm) {
        (Ok(nodes), _) => nodes,
        (Err(_), Some(true)) => {
            let seen = "one is in force: the broker is short of memory or disk";
            let fix = "free memory or disk on the broker's nodes; `rabbitmq-diagnostics alarms` names them";
            return vec![Finding::bad(Area::Broker, what, seen, blocked, fix)];
        }
        (Err(withheld), alarm) => {
            let none = if alarm == Some(false) { "no alarm is in force; " } else { "" };
            let why = match withheld {
                Withheld::Forbidden => format!("the user {} may not see the nodes", told.user),
                Withheld::Failed(why) => why.clone(),
            };
            return vec![Finding::unknown(Area::Broker, "disk and memory of the broker", format!("{none}{why}"), tag)];
        }
    };
    let mut all = Vec::new();
    for node in nodes {
        let Node { name, .. } = node;
        if !node.running {
            all.push(Finding::bad(
                Area::Broker,
                "nodes",
                format!("{name} does not run"),
                "with most of a queue's nodes gone, nothing goes in or out of it",
                "start it again, or `rabbitmqctl forget_cluster_node` if it is gone for good",
            ));
            continue;
        }
        if node.mem_alarm {
            let seen = format!("{name} is short of memory");
            let fix = "give it more memory, raise vm_memory_high_watermark, or let what waits in queues be worked off";
            all.push(Finding::bad(Area::Broker, what, seen, blocked, fix));
        }
        if node.disk_free_alarm {
            let seen = format!("{name} is short of disk");
            let fix = "free disk in its data folder (`rabbitmq-diagnostics status` names it), or lower disk_free_limit";
            all.push(Finding::bad(Area::Broker, what, seen, blocked, fix));
        }
        if !node.partitions.is_empty() {
            all.push(Finding::bad(
                Area::Broker,
                "nodes",
                format!("{name} has lost sight of {}", some(&node.partitions)),
                "the cluster is partitioned: what each side says may differ",
                "mend the network between the nodes, then restart those of the smaller side",
            ));
        }
        all.extend(resources(node));
    }
    if all.iter().all(|finding| finding.what != what) {
        all.push(Finding::good(Area::Broker, what, "none is in force"));
    }
    all
}

fn resources(node: &Node) -> Vec<Finding> {
    let mut all = Vec::new();
    if let (Some(free), Some(limit)) = (node.disk_free, node.disk_free_limit) {
        let seen = format!("{} has {} free, and stops publishers below {}", node.name, size(free), size(limit));
        let what = "disk of the broker";
        all.push(match free < limit.saturating_add(LITTLE_DISK) {
            true => Finding::warning(
                Area::Broker,
                what,
                seen,
                "when it is below, nothing can be published",
                "free disk in its data folder: `rabbitmq-diagnostics status` names it",
            ),
            false => Finding::good(Area::Broker, what, seen),
        });
        // Quorum queues write all they hold to disk.
        if limit < LITTLE_DISK / 16 {
            all.push(Finding::warning(
                Area::Broker,
                "disk limit of the broker",
                format!("{} stops publishers only below {}", node.name, size(limit)),
                "quorum queues may fill what is left before that, and the node ends",
                "set disk_free_limit.absolute = 2GB in rabbitmq.conf, or more",
            ));
        }
    }
    let much = |used: Option<u64>, most: Option<u64>| {
        let (used, most) = (used?, most.filter(|most| *most > 0)?);
        (used.saturating_mul(100) > most.saturating_mul(MUCH)).then_some((used, most))
    };
    if let Some((used, most)) = much(node.mem_used, node.mem_limit) {
        all.push(Finding::warning(
            Area::Broker,
            "memory of the broker",
            format!("{} uses {} of {}", node.name, size(used), size(most)),
            "above that, nothing can be published",
            "give it more memory, or raise vm_memory_high_watermark",
        ));
    }
    if let Some((used, most)) = much(node.fd_used, node.fd_total) {
        all.push(Finding::warning(
            Area::Broker,
            "open files of the broker",
            format!("{} uses {used} of {most}", node.name),
            "beyond that, it accepts no connections",
            "raise its limit: LimitNOFILE in its systemd unit",
        ));
    }
    all
}

/// Whether a permission of RabbitMQ's covers a name; nothing when the pattern has something that only PCRE knows.
fn covers(pattern: &str, name: &str) -> Option<bool> {
    // An empty pattern stands for none, and one without anchors matches anywhere in the name.
    let pattern = if pattern.is_empty() { "^$" } else { pattern };
    Some(Regex::new(pattern).ok()?.is_match(name))
}

fn permissions(told: &Told, place: &Place, topology: &Topology, needs: &Needs) -> Vec<Finding> {
    let what = "permissions";
    let Place { vhost, user, .. } = place;
    let grant = format!("`rabbitmqctl set_permissions -p {} {} {}`", word(vhost), word(user), needs.command());
    let follows = "a worker does that, and is refused where it may not";
    let permissions = match &told.permissions {
        Ok(Some(permissions)) => permissions,
        Ok(None) => {
            let seen = format!("{user} has none in the virtual host {vhost}");
            return vec![Finding::bad(Area::Broker, what, seen, follows, grant)];
        }
        Err(withheld) => {
            let why = match withheld {
                Withheld::Forbidden => {
                    format!("the user {} of the management API may not see those of others", told.user)
                }
                Withheld::Failed(why) => why.clone(),
            };
            let fix = format!(
                "`rabbitmqctl list_user_permissions {}` tells them; for the virtual host {vhost} they must cover what \
                 {grant} grants. With the tag administrator, this can see them",
                word(user)
            );
            return vec![Finding::unknown(Area::Broker, what, why, fix)];
        }
    };
    let Permissions { configure, write, read } = permissions;
    let names: BTreeSet<&str> = (topology.exchanges.iter().map(|exchange| exchange.name.as_str()))
        .chain(topology.queues.iter().map(|queue| queue.name.as_str()))
        .collect();
    let mut all = Vec::new();
    let verbs =
        [("configure", configure, &needs.0.configure), ("write", write, &needs.0.write), ("read", read, &needs.0.read)];
    for (verb, pattern, needed) in verbs {
        let lacking: Option<Vec<&str>> = names
            .iter()
            .filter(|name| covers(needed, name) == Some(true))
            .filter_map(|name| match covers(pattern, name) {
                Some(true) => None,
                Some(false) => Some(Some(*name)),
                None => Some(None),
            })
            .collect();
        match lacking {
            None => all.push(Finding::unknown(
                Area::Broker,
                what,
                format!("what `{pattern}` lets {user} {verb} cannot be worked out here"),
                format!("write it without look-around and back-references, for example {grant}"),
            )),
            Some(lacking) if !lacking.is_empty() => all.push(Finding::bad(
                Area::Broker,
                what,
                format!("{user} may not {verb} {} (only `{pattern}`)", some(&lacking)),
                follows,
                grant.clone(),
            )),
            Some(_) => {}
        }
    }
    if all.is_empty() {
        let seen = format!("{user} may do all that a worker does with the {} names in {vhost}", names.len());
        all.push(Finding::good(Area::Broker, what, seen));
    }
    all
}

fn declared(found: &Answer<Vec<check::Finding>>, is_in: bool, topology: &Topology) -> Vec<Finding> {
    let what = "topology";
    let found = match found {
        Ok(found) => found,
        Err(why) => {
            let fix = match is_in {
                true => "`roundelay topology check` takes the time that it takes",
                false => "mend the connection first",
            };
            return vec![Finding::unknown(Area::Broker, what, why, fix)];
        }
    };
    let (total, mut missing, mut surplus, mut all) =
        (topology.exchanges.len() + topology.queues.len() + topology.bindings.len(), Vec::new(), 0, Vec::new());
    for difference in found {
        let check::Finding { weight, what: of, expected, found, mend } = difference;
        match weight {
            Weight::Wrong if found == "missing" => missing.push(of.as_str()),
            Weight::Wrong => {
                let follows = format!("must be: {expected}");
                all.push(Finding::bad(Area::Broker, of, found, follows, mend));
            }
            Weight::Unknown => all.push(Finding::unknown(Area::Broker, of, found, mend)),
            Weight::Note => surplus += 1,
        }
    }
    if !missing.is_empty() {
        all.push(Finding::bad(
            Area::Broker,
            what,
            format!("{} of {total} exchanges, queues and bindings are missing: {}", missing.len(), some(&missing)),
            "jobs for them are returned or led to the queue for what is unrouted; what slept on them is sent again from the \
             ledger, except for one-off jobs",
            "`roundelay topology apply`; a worker that starts declares them, too, unless broker.declare is false",
        ));
    }
    if all.iter().all(|finding| finding.result != super::Grade::Bad) {
        let more = match surplus {
            0 => String::new(),
            more => format!("; {more} rungs are left over from another configuration, which is no harm"),
        };
        all.push(Finding::good(Area::Broker, what, format!("{} queues are there{more}", topology.queues.len())));
    }
    all
}

/// Queues that should be empty.
fn leftovers(asked: &Asked, is_in: bool, names: &Names) -> Vec<Finding> {
    let quarantine = "the header roundelay-reason of each says why: `roundelay serve` shows them; mend the cause, then send \
                      them again there";
    let unrouted = "add the queues that they are for (their routing keys) to the configuration, `roundelay topology apply`, \
                    then move them in the management UI";
    let table = [
        (names.quarantine(), "cannot be used, and nobody runs them", quarantine),
        (names.unrouted(), "are for queues that do not exist", unrouted),
    ];
    let mut all = Vec::new();
    for (queue, words, fix) in table {
        match asked.depth(&queue).map(|depth| depth.ready) {
            Some(0) => all.push(Finding::good(Area::Broker, queue, "empty")),
            Some(ready) => {
                let follows =
                    "one-off jobs among them do not run until somebody sees to it; chains go on by themselves";
                all.push(Finding::warning(Area::Broker, queue, format!("{ready} messages {words}"), follows, fix));
            }
            // Without the queue, that it is missing is told; without the broker, that it is away.
            None if is_in && matches!(asked, Asked::Away(_)) => {
                let why = asked.error().unwrap_or_default();
                all.push(Finding::unknown(Area::Broker, queue, why, "try again; `roundelay status` asks for it, too"));
            }
            None => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::Grade;
    use super::super::tests::{about, have_fixes};
    use super::*;
    use crate::broker::Depth;
    use crate::broker::rabbit::certificates::Whose;
    use crate::broker::rabbit::examine::Feature;
    use crate::ladder::Ladder;

    fn needs() -> Needs {
        Needs::of(&topology(), true)
    }

    fn topology() -> Topology {
        Topology::new(Names::new("r"), ["sync-a", "w.b"], &Ladder::new([]))
    }

    fn place() -> Place {
        Place { host: "h".into(), port: 5_672, vhost: "v".into(), user: "ann".into(), encrypted: false }
    }

    fn told() -> Told {
        let node = Node {
            name: "rabbit@h".into(),
            running: true,
            disk_free: Some(9 << 30),
            disk_free_limit: Some(1 << 30),
            mem_used: Some(1),
            mem_limit: Some(2),
            ..Node::default()
        };
        let all = || ".*".to_owned();
        Told {
            user: "ops".into(),
            version: "4.1.2".into(),
            clock: None,
            nodes: Ok(vec![node]),
            alarm: None,
            permissions: Ok(Some(Permissions { configure: all(), write: all(), read: all() })),
            features: Ok(vec![Feature { name: "stream_queue".into(), state: "enabled".into() }]),
        }
    }

    #[test]
    fn each_step_of_getting_in_has_its_own_fix() {
        let refused = |code, words: &str| Reached::Refused { code, words: words.into() };
        let certificate = |error| Reached::NoTls(rustls::Error::InvalidCertificate(error));
        let table = [
            (Ok(Reached::NoAnswer("Connection refused".into())), "nc -vz h 5672"),
            (Err("no answer within 5s".into()), "no firewall"),
            (Ok(Reached::NoHandshake("eof".into())), "in place of amqps://"),
            (Ok(Reached::NoFiles("ca.pem cannot be read".into())), "correct broker.tls"),
            (Ok(certificate(rustls::CertificateError::UnknownIssuer)), "update-ca-certificates"),
            (Ok(certificate(rustls::CertificateError::NotValidForName)), "a name that is in the broker's certificate"),
            (Ok(certificate(rustls::CertificateError::Expired)), "renew the broker's certificate"),
            (Ok(refused(Some(403), "ACCESS_REFUSED")), "change_password ann"),
            (Ok(refused(Some(530), "NOT_ALLOWED - vhost v not found")), "add_vhost v"),
            (Ok(refused(Some(530), "NOT_ALLOWED - access to vhost 'v' refused")), "set_permissions -p v ann"),
            (Ok(refused(None, "eof")), "RabbitMQ's log"),
        ];
        for (reached, fix) in table {
            let findings = connection(&reached, &place(), &topology(), &needs());
            assert_eq!((findings.len(), findings[0].result), (1, Grade::Bad), "{reached:?}");
            assert!(findings[0].fix.contains(fix), "{reached:?}: {}", findings[0].fix);
        }
    }

    #[test]
    fn a_table_of_what_was_agreed_on() {
        let agreed = |heartbeat, channel_max| {
            let findings = negotiated(&Negotiated { heartbeat, frame_max: 131_072, channel_max }, &topology());
            have_fixes(&findings);
            findings.into_iter().map(|finding| (finding.what, finding.result)).collect::<Vec<_>>()
        };
        let heartbeat = |grade| ("heartbeat".to_owned(), grade);
        assert_eq!(agreed(10, 2_047), [heartbeat(Grade::Good)]);
        assert_eq!(agreed(0, 0), [heartbeat(Grade::Bad)]);
        assert_eq!(agreed(580, 0), [heartbeat(Grade::Warning)]);
        assert_eq!(agreed(10, 8), [heartbeat(Grade::Good), ("channels".to_owned(), Grade::Bad)]);
    }

    #[test]
    fn a_table_of_versions() {
        for (text, grade) in [
            ("3.8.34", Grade::Bad),
            ("3.10.8", Grade::Good),
            ("3.13.7", Grade::Good),
            ("4.0.0", Grade::Good),
            ("4.3.1", Grade::Good),
            ("4.4.0-rc.1", Grade::Warning),
            ("5.0.0", Grade::Warning),
            ("main", Grade::Unknown),
        ] {
            assert_eq!(version(text).result, grade, "{text}");
        }
    }

    #[test]
    fn a_table_of_permissions() {
        let own = r"^(r\..*|sync-a|w\.b)$";
        assert!(needs().command().starts_with(r"'^(r\..*|sync\-a|w\.b)$' '^("), "{}", needs().command());
        let all = [".*", ".*", ".*"];
        /// Patterns to configure, write and read, and what is found.
        type Row<'a> = ([&'a str; 3], &'a [(Grade, &'a str)]);
        let table: [Row<'_>; 7] = [
            (all, &[(Grade::Good, "ann may do all that a worker does")]),
            ([own, own, own], &[(Grade::Good, "ann may")]),
            // Without anchors a pattern matches anywhere.
            (["r|w|sync", ".*", ""], &[(Grade::Bad, "may not read r.chores")]),
            (["^$", ".*", ".*"], &[(Grade::Bad, "may not configure r.chores, r.delay.100s, r.delay.105s and")]),
            ([r"^r\.", ".*", ".*"], &[(Grade::Bad, "may not configure sync-a, w.b (only")]),
            (["", "", ".*"], &[(Grade::Bad, "may not configure"), (Grade::Bad, "may not write")]),
            (["(?!x).*", ".*", ".*"], &[(Grade::Unknown, "cannot be worked out here")]),
        ];
        for ([configure, write, read], expected) in table {
            let [configure, write, read] = [configure, write, read].map(str::to_owned);
            let told = Told { permissions: Ok(Some(Permissions { configure, write, read })), ..told() };
            let findings = permissions(&told, &place(), &topology(), &needs());
            have_fixes(&findings);
            assert_eq!(findings.len(), expected.len(), "{findings:#?}");
            for (finding, (grade, seen)) in findings.iter().zip(expected) {
                assert_eq!(finding.result, *grade, "{finding:?}");
                assert!(finding.seen.contains(seen), "{finding:?}");
            }
        }
        for (answer, grade) in [(Ok(None), Grade::Bad), (Err(Withheld::Forbidden), Grade::Unknown)] {
            let findings = permissions(&Told { permissions: answer, ..told() }, &place(), &topology(), &needs());
            assert_eq!((findings.len(), findings[0].result), (1, grade));
            assert!(findings[0].fix.contains("set_permissions -p v ann"), "{findings:?}");
        }
    }

    #[test]
    fn a_worker_that_declares_nothing_needs_less() {
        let Permissions { configure, write, read } = Role::Worker.permissions(&topology());
        let told = Told { permissions: Ok(Some(Permissions { configure, write, read })), ..told() };
        for (declares, grade) in [(false, Grade::Good), (true, Grade::Bad)] {
            let findings = permissions(&told, &place(), &topology(), &Needs::of(&topology(), declares));
            have_fixes(&findings);
            assert_eq!(findings[0].result, grade, "{findings:?}");
        }
        let nothing = Permissions { configure: "^$".into(), write: "^$".into(), read: "^$".into() };
        let told = Told { permissions: Ok(Some(nothing)), ..told };
        let findings = permissions(&told, &place(), &topology(), &Needs::of(&topology(), false));
        let seen: Vec<&str> = findings.iter().map(|finding| finding.seen.as_str()).collect();
        assert_eq!(seen.len(), 2, "{seen:?}");
        assert!(seen[0].starts_with("ann may not write r.delay.") && seen[1].starts_with("ann may not read r.chores"));
    }

    #[test]
    fn a_certificate_that_ends_is_told_in_time() {
        let (now, day) = (Time::from_millis(1_000), Duration::from_secs(86_400));
        let table = [(31, Grade::Good), (29, Grade::Warning), (6, Grade::Bad)];
        for (days, grade) in table {
            let findings = certificates(&[Certificate { whose: Whose::Broker, ends: now + day * days }], now);
            have_fixes(&findings);
            assert_eq!((findings.len(), findings[0].result), (1, grade), "{findings:?}");
        }
        let over = certificates(&[Certificate { whose: Whose::Own, ends: now }], now);
        assert!(over[0].seen.contains("has ended"), "{over:?}");
    }

    #[test]
    fn a_table_of_what_the_management_api_tells() {
        type Change = fn(&mut Told);
        fn node(told: &mut Told) -> &mut Node {
            &mut told.nodes.as_mut().unwrap()[0]
        }
        let table: [(Change, &str, Grade, &str); 11] = [
            (|t| node(t).running = false, "nodes", Grade::Bad, "start it again"),
            (|t| node(t).mem_alarm = true, "alarms", Grade::Bad, "vm_memory_high_watermark"),
            (|t| node(t).disk_free_alarm = true, "alarms", Grade::Bad, "free disk"),
            (|t| node(t).partitions = vec!["rabbit@i".into()], "nodes", Grade::Bad, "mend the network"),
            (|t| node(t).disk_free = Some(3 << 29), "disk of the broker", Grade::Warning, "free disk"),
            (
                |t| node(t).disk_free_limit = Some(50_000_000),
                "disk limit of the broker",
                Grade::Warning,
                "disk_free_limit",
            ),
            (|t| node(t).mem_used = Some(2), "memory of the broker", Grade::Warning, "more memory"),
            (
                |t| (node(t).fd_used, node(t).fd_total) = (Some(99), Some(100)),
                "open files of the broker",
                Grade::Warning,
                "LimitNOFILE",
            ),
            (
                |t| (t.nodes, t.alarm) = (Err(Withheld::Forbidden), Some(true)),
                "alarms",
                Grade::Bad,
                "rabbitmq-diagnostics alarms",
            ),
            (
                |t| (t.nodes, t.alarm) = (Err(Withheld::Forbidden), Some(false)),
                "disk and memory of the broker",
                Grade::Unknown,
                "set_user_tags ops monitoring",
            ),
            (
                |t| t.features = Ok(vec![Feature { name: "stream_queue".into(), state: "disabled".into() }]),
                "feature flags",
                Grade::Bad,
                "enable_feature_flag",
            ),
        ];
        let different = |told: Told| -> Vec<Finding> {
            let findings = management(Some(&Ok(Ok(told))), &place(), &topology(), &needs());
            have_fixes(&findings);
            findings.into_iter().filter(|finding| finding.result != Grade::Good).collect()
        };
        assert_eq!(different(told()), []);
        for (n, (change, what, grade, fix)) in table.into_iter().enumerate() {
            let mut told = told();
            change(&mut told);
            let findings = different(told);
            assert_eq!(findings.len(), 1, "{n}: {findings:#?}");
            assert_eq!((findings[0].what.as_str(), findings[0].result), (what, grade), "{n}");
            assert!(findings[0].fix.contains(fix), "{n}: {}", findings[0].fix);
        }
        let whole = [
            (None, Grade::Unknown, "set broker.management"),
            (Some(Err("no answer within 5s".into())), Grade::Bad, "rabbitmq-plugins enable"),
            (Some(Ok(Err(Untold::NoAnswer("refused".into())))), Grade::Bad, "rabbitmq-plugins enable"),
            (Some(Ok(Err(Untold::Refused("ops".into())))), Grade::Bad, "set_user_tags ops"),
        ];
        for (answer, grade, fix) in whole {
            let findings = management(answer.as_ref(), &place(), &topology(), &needs());
            assert_eq!((findings.len(), findings[0].result), (1, grade));
            assert!(findings[0].fix.contains(fix), "{findings:?}");
        }
    }

    #[test]
    fn what_is_missing_is_one_finding_and_what_differs_one_each() {
        let finding = |weight, what: &str, found: &str| check::Finding {
            weight,
            what: what.into(),
            expected: "present".into(),
            found: found.into(),
            mend: "mend it".into(),
        };
        let judged = |found: Vec<check::Finding>| {
            let findings = declared(&Ok(found), true, &topology());
            have_fixes(&findings);
            findings
        };
        assert_eq!(about(&judged(vec![]), "topology").result, Grade::Good);
        let surplus = judged(vec![finding(Weight::Note, "rung `r.delay.7s`", "present")]);
        assert!(about(&surplus, "topology").seen.contains("1 rungs are left over"));
        let gone =
            ["queue `a`", "queue `b`", "queue `c`", "queue `d`"].map(|name| finding(Weight::Wrong, name, "missing"));
        let findings = judged(gone.into());
        assert_eq!((findings.len(), findings[0].result), (1, Grade::Bad));
        assert!(findings[0].seen.starts_with("4 of") && findings[0].seen.contains("and 1 more"), "{findings:?}");
        let findings = judged(vec![
            finding(Weight::Wrong, "policy `all` sets `max-length` on `work`", "1"),
            finding(Weight::Unknown, "policies", "not checked"),
        ]);
        let grades: Vec<Grade> = findings.iter().map(|finding| finding.result).collect();
        assert_eq!(grades, [Grade::Bad, Grade::Unknown]);
        assert_eq!(declared(&Err("away".into()), false, &topology())[0].result, Grade::Unknown);
    }

    #[test]
    fn queues_that_should_be_empty_are_told_when_they_are_not() {
        let names = Names::new("r");
        let depths = |ready| {
            let depth = Ok(Depth { ready, consumers: 0 });
            Asked::Depths(BTreeMap::from([(names.quarantine(), depth.clone()), (names.unrouted(), depth)]))
        };
        for (asked, grade) in
            [(depths(0), Grade::Good), (depths(3), Grade::Warning), (Asked::Away("x".into()), Grade::Unknown)]
        {
            let findings = leftovers(&asked, true, &names);
            have_fixes(&findings);
            assert_eq!(findings.len(), 2);
            assert!(findings.iter().all(|finding| finding.result == grade), "{findings:?}");
        }
        assert_eq!(leftovers(&Asked::Away("x".into()), false, &names), [], "that it is away is told once");
    }
}
