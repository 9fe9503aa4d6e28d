//! `roundelay topology`

use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use roundelay_admin::inspect;
use roundelay_admin::inspect::doctor::word;
use roundelay_broker::rabbit::examine::{Permissions, Place};
use roundelay_broker::rabbit::users::Role;
use roundelay_broker::rabbit::{Finding, RabbitBroker, Weight, definitions, users};
use roundelay_broker::{Broker, BrokerSettings, BrokerUrl, Way};
use roundelay_config::Config;
use roundelay_engine::{Connections, delays, open_ledger, topology_guard};
use roundelay_ledger::sqlite::SqliteLedger;
use roundelay_ledger::{Ledger, LedgerError, LedgerUrl};
use roundelay_model::clock::{Clock, Entropy};
use serde_json::json;

use super::ConfigFile;
use super::progress::waiting;
use super::screen::{self, Tint, field};

/// Declares, checks and exports the exchanges and queues on RabbitMQ.
#[derive(Args)]
pub struct Topology {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Apply(Apply),
    Check(Check),
    Export(Export),
    Users(Users),
}

/// Declares missing exchanges and queues, and finds out how messages sleep on the broker.
///
/// Rungs are declared only where messages need them; see broker.delays. Workers do all this too when they start. An exchange or queue that exists with other properties is never changed: it is
/// reported, and `check` says how to mend it.
#[derive(Args)]
struct Apply {
    #[command(flatten)]
    config: ConfigFile,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Reports the exact differences on the broker, effective policies included, and how to mend them.
///
/// Arguments and policies are read from the management API, so set broker.management; without it only existence is
/// checked, and the output says so. Exit code 1 when something is wrong.
#[derive(Args)]
struct Check {
    #[command(flatten)]
    config: ConfigFile,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Writes the topology in RabbitMQ's definitions format, for `rabbitmqctl import_definitions`.
///
/// It is for the virtual host of broker.url, which the import creates.
#[derive(Args)]
struct Export {
    #[command(flatten)]
    config: ConfigFile,
    /// Include the users that `topology users` shows, and hashes of their passwords: import it as it is, on a broker
    /// that has none of them.
    ///
    /// The password of `worker` is in the file `worker` of the folder of --passwords, or in the variable
    /// ROUNDELAY_PASSWORD_WORKER; the other users' passwords in files and variables of their names. Only you can read
    /// the file that is written.
    #[arg(long)]
    users: bool,
    /// The folder of the passwords: a file for each user, with the user's name. A newline at the end does not count.
    #[arg(long, value_name = "FOLDER", requires = "users")]
    passwords: Option<PathBuf>,
    /// These users get no password: they log in with a certificate.
    #[arg(long, value_name = "USER,…", value_delimiter = ',', requires = "users")]
    certificates: Vec<Role>,
    /// The file to write; `-` is standard output.
    #[arg(long, value_name = "FILE", default_value = "rabbitmq/definitions.json")]
    output: PathBuf,
    /// Print a JSON object: the file's path, and how much there is. On standard output the topology itself is JSON.
    #[arg(long)]
    json: bool,
}

/// Shows the users that a deployment needs on RabbitMQ, each with exactly the permissions that it needs.
///
/// They follow from this configuration: the prefix, the platform queues, their lanes.
#[derive(Args)]
struct Users {
    #[command(flatten)]
    config: ConfigFile,
    /// Print the commands that create the virtual host and the users, for a shell on the broker's machine.
    #[arg(long, conflicts_with = "json")]
    commands: bool,
    /// Where those commands read the passwords: a file for each user, with the user's name. Without it they ask.
    #[arg(long, value_name = "FOLDER", requires = "commands")]
    passwords: Option<PathBuf>,
    /// Print the virtual host and the permissions in RabbitMQ's definitions format, without the users themselves: for a
    /// broker that gets their passwords in another way, as that of the Compose file does.
    #[arg(long, conflicts_with_all = ["json", "commands"])]
    definitions: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Topology {
    pub async fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Apply(apply) => apply.run().await,
            Command::Check(check) => check.run().await,
            Command::Export(export) => export.run(),
            Command::Users(users) => users.run(),
        }
    }
}

impl Apply {
    async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let waits = waiting(&format!("declaring {} queues", config.topology().queues.len()));
        let broker: Arc<dyn Broker> = Arc::new(connect(&config).await?);
        let entropy = Entropy::from_os();
        let opened = match &config.ledger.url {
            LedgerUrl::Sqlite(path) if !path.exists() => None,
            _ => Some(open_ledger(&config, &entropy).await),
        };
        // Without a ledger the finding is not kept, but the broker can be probed all the same.
        let (ledger, clock, away) = match opened {
            Some(Ok((ledger, clock))) => (ledger, clock, None),
            Some(Err(error)) => in_memory(&entropy, Some(error))?,
            None => in_memory(&entropy, None)?,
        };
        topology_guard::adopt(&*ledger, &config).await?;
        let connections = Connections { broker: broker.clone(), ledger, clock, entropy };
        let topology = delays::declare(&config, &connections).await?;
        let way = broker.sleeping().way();
        if !config.broker.declare {
            // Workers cannot declare the rungs themselves, should the broker let messages sleep no more.
            broker.apply(&config.topology().with_siblings(&broker.sleeping().hot_rungs())).await?;
        }
        broker.close().await;
        if let Some(error) = away {
            return Err(error.into());
        }
        drop(waits);
        let (exchanges, queues) = (topology.exchanges.len(), topology.queues.len());
        let rungs = topology.queues.iter().filter(|queue| queue.ttl().is_some()).count();
        let native = matches!(way, Some(Way::Native { .. }));
        if self.json {
            let delays = if native { "native" } else { "ladder" };
            return screen::json(&json!({ "exchanges": exchanges, "queues": queues, "delays": delays }));
        }
        out!("{exchanges} exchanges and {queues} queues are in place");
        out!("{}", sleep_words(way, rungs));
        Ok(())
    }
}

/// A ledger that is gone with this process, and why the configured one is not used.
type Opened = (Arc<dyn Ledger>, Clock, Option<LedgerError>);

fn in_memory(entropy: &Entropy, away: Option<LedgerError>) -> Result<Opened, LedgerError> {
    let ledger = SqliteLedger::open(&LedgerUrl::Memory, Clock::System, entropy)?;
    let clock = ledger.clock();
    Ok((Arc::new(ledger), clock, away))
}

/// How messages sleep (pure).
fn sleep_words(way: Option<Way>, rungs: usize) -> String {
    let Some(Way::Native { ahead }) = way else { return format!("messages sleep on {rungs} rungs") };
    let clock = match ahead {
        0 => "shows the ledger's time".to_owned(),
        1.. => format!("is {ahead} ms ahead"),
        _ => format!("is {} ms behind", ahead.unsigned_abs()),
    };
    format!("messages sleep on their queues (the broker's clock {clock})")
}

impl Check {
    async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let waits = waiting("looking at the broker");
        let broker = connect(&config).await?;
        let known = inspect::delays::Known::of(&config).await;
        let (_, findings) = inspect::delays::differences(&config, &broker, &known).await?;
        broker.close().await;
        drop(waits);
        let wrong = findings.iter().filter(|finding| finding.weight == Weight::Wrong).count();
        if self.json {
            let rows: Vec<_> = findings.iter().map(row).collect();
            screen::json(&json!({ "ok": wrong == 0, "findings": rows }))?;
        } else {
            findings.iter().for_each(print);
            if wrong == 0 {
                out!("nothing is wrong");
            }
        }
        if wrong > 0 {
            bail!("{wrong} things on the broker are not as they must be");
        }
        Ok(())
    }
}

impl Export {
    fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let (topology, vhost) = (config.topology(), vhost(&config)?);
        let mut all = definitions(&topology, &vhost);
        if self.users {
            let hash = |role: Role| {
                if self.certificates.contains(&role) {
                    return Ok((role, None));
                }
                let password = password(role, self.passwords.as_deref(), |name| std::env::var(name).ok())?;
                let [a, b, c, d, ..] = roundelay_model::clock::secret();
                Ok((role, Some(users::password_hash(&password, [a, b, c, d]))))
            };
            let hashes = Role::ALL.into_iter().map(hash).collect::<anyhow::Result<Vec<_>>>()?;
            all["users"] = users::definitions(&hashes).into();
            all["permissions"] = users::permissions(&topology, &vhost).into();
        }
        let text = serde_json::to_string_pretty(&all)?;
        if self.output.as_os_str() == "-" {
            screen::exact(format_args!("{text}"));
            return Ok(());
        }
        write(&self.output, &(text + "\n"), self.users)
            .with_context(|| format!("failed to write {}", self.output.display()))?;
        if self.json {
            let (exchanges, queues) = (topology.exchanges.len(), topology.queues.len());
            let path = self.output.display().to_string();
            return screen::json(&json!({ "path": path, "exchanges": exchanges, "queues": queues }));
        }
        out!("{}", self.output.display());
        Ok(())
    }
}

impl Users {
    fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let (topology, vhost) = (config.topology(), vhost(&config)?);
        if self.definitions {
            let permissions = users::permissions(&topology, &vhost);
            let all = json!({ "vhosts": [{ "name": vhost }], "permissions": permissions });
            screen::exact(format_args!("{}", serde_json::to_string_pretty(&all)?));
            return Ok(());
        }
        let users = Role::ALL.map(|role| (role, role.permissions(&topology)));
        if self.json {
            let row = |(role, permissions): &(Role, Permissions)| {
                let Permissions { configure, write, read } = permissions;
                json!({ "user": role.name(), "tag": role.tag(), "configure": configure, "write": write, "read": read })
            };
            return screen::json(&json!({ "vhost": vhost, "users": users.iter().map(row).collect::<Vec<_>>() }));
        }
        if self.commands {
            commands(&vhost, &users, self.passwords.as_deref()).iter().for_each(|command| out!("{command}"));
            return Ok(());
        }
        out!("In the virtual host {vhost}:");
        for (role, Permissions { configure, write, read }) in &users {
            out!("");
            out!("{}", role.name());
            for (label, value) in [("configure", configure), ("write", write), ("read", read)] {
                field(label, value);
            }
            if let Some(tag) = role.tag() {
                field("tag", tag);
            }
        }
        Ok(())
    }
}

/// The commands that create the virtual host and the users (pure). Passwords come from standard input, so that they are
/// not in a list of processes.
fn commands(vhost: &str, users: &[(Role, Permissions)], passwords: Option<&Path>) -> Vec<String> {
    let vhost = word(vhost);
    let mut all = vec![format!("rabbitmqctl add_vhost {vhost}")];
    for (role, Permissions { configure, write, read }) in users {
        let (user, patterns) = (role.name(), [configure, write, read].map(word).join(" "));
        let from = passwords.map(|folder| format!(" < {}", word(folder.join(user).display())));
        all.push(format!("rabbitmqctl add_user {user}{}", from.unwrap_or_default()));
        all.extend(role.tag().map(|tag| format!("rabbitmqctl set_user_tags {user} {tag}")));
        all.push(format!("rabbitmqctl set_permissions -p {vhost} {user} {patterns}"));
    }
    all
}

/// The virtual host of the broker's URL.
fn vhost(config: &Config) -> anyhow::Result<String> {
    match &config.broker.url {
        BrokerUrl::Embedded => Ok("/".into()),
        BrokerUrl::Amqp(url) => Place::of(url.expose()).map(|place| place.vhost).map_err(anyhow::Error::msg),
    }
}

/// The password of a user: from the user's file, or else from the variable.
fn password(role: Role, folder: Option<&Path>, variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<String> {
    let name = format!("ROUNDELAY_PASSWORD_{}", role.name().to_uppercase());
    let file = folder.map(|folder| folder.join(role.name())).filter(|file| file.exists());
    let (text, origin) = match file {
        Some(file) => {
            let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            (text, file.display().to_string())
        }
        None => match variable(&name) {
            Some(text) => (text, name),
            None => bail!(
                "there is no password for the user {user}: put it into the file `{user}` of the folder of --passwords, \
                 or into the variable {name}; or say --certificates {user} if it needs none",
                user = role.name()
            ),
        },
    };
    let password = text.trim_end_matches(['\r', '\n']);
    if password.is_empty() {
        bail!("{origin} is empty; RabbitMQ lets nobody in without a password");
    }
    Ok(password.into())
}

/// Writes a file; a `secret` one is readable by its owner only, also if the file existed before.
fn write(path: &Path, text: &str, secret: bool) -> std::io::Result<()> {
    if !secret {
        return std::fs::write(path, text);
    }
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    if file.metadata()?.is_file() {
        file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    }
    file.write_all(text.as_bytes())
}

async fn connect(config: &Config) -> anyhow::Result<RabbitBroker> {
    if matches!(config.broker.url, BrokerUrl::Embedded) {
        bail!("broker.url is `embedded`, whose topology lives and dies with its worker; set it to amqp://…");
    }
    // This command declares, whatever the configuration says for workers.
    Ok(RabbitBroker::open(&BrokerSettings { declare: true, ..config.broker.clone() }).await?)
}

fn print(finding: &Finding) {
    let Finding { weight, what, expected, found, mend } = finding;
    match weight {
        Weight::Wrong => screen::tinted(Tint::Wrong, format_args!("wrong  {what}")),
        Weight::Unknown | Weight::Note => out!("note   {what}"),
    }
    for (label, value) in [("must be", expected), ("is", found), ("mend", mend)] {
        if !value.is_empty() {
            field(label, value);
        }
    }
    out!("");
}

fn row(finding: &Finding) -> serde_json::Value {
    let weight = match finding.weight {
        Weight::Wrong => "wrong",
        Weight::Unknown | Weight::Note => "note",
    };
    json!({ "weight": weight, "what": finding.what, "expected": finding.expected, "found": finding.found, "mend": finding.mend })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_how_messages_sleep() {
        let table = [
            (Some(Way::Ladder), "messages sleep on 7 rungs"),
            (None, "messages sleep on 7 rungs"),
            (Some(Way::Native { ahead: 3 }), "messages sleep on their queues (the broker's clock is 3 ms ahead)"),
            (Some(Way::Native { ahead: -9 }), "messages sleep on their queues (the broker's clock is 9 ms behind)"),
            (
                Some(Way::Native { ahead: 0 }),
                "messages sleep on their queues (the broker's clock shows the ledger's time)",
            ),
        ];
        for (way, words) in table {
            assert_eq!(sleep_words(way, 7), words);
        }
    }

    #[test]
    fn passwords_come_from_files_before_variables_and_are_never_empty() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("worker"), "from a file \r\n").unwrap();
        std::fs::write(folder.path().join("monitor"), "\n").unwrap();
        let variable = |name: &str| match name {
            "ROUNDELAY_PASSWORD_WORKER" | "ROUNDELAY_PASSWORD_TOPOLOGY" => Some("from a variable".to_owned()),
            _ => None,
        };
        let table = [
            (Role::Worker, Ok("from a file ")),
            (Role::Topology, Ok("from a variable")),
            (Role::Monitor, Err("monitor is empty")),
            (Role::Publisher, Err("ROUNDELAY_PASSWORD_PUBLISHER")),
        ];
        for (role, expected) in table {
            let found = password(role, Some(folder.path()), variable);
            match expected {
                Ok(expected) => assert_eq!(found.unwrap(), expected),
                Err(words) => assert!(found.unwrap_err().to_string().contains(words), "{role:?}"),
            }
        }
    }
}
