//! `roundelay token`

use std::time::Duration;

use anyhow::bail;
use clap::{Args, Subcommand};
use roundelay::api::create_token;
use roundelay::clock::{Time, parse_duration};
use roundelay::engine::Connections;
use roundelay::ledger::Scope;
use roundelay::ledger::access::Token;
use serde_json::{Value, json};

use super::ConfigFile;

/// Creates, lists and revokes tokens for the API.
///
/// Whoever shows a token may do what its scope allows: `read` looks, `operate` also changes what chains, queues
/// and throttles do and publishes jobs, `admin` also creates and revokes tokens.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub struct TokenCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Create(Create),
    List(List),
    Revoke(Revoke),
}

/// Creates a token, and prints it on standard output: only now, since the ledger keeps a hash alone.
#[derive(Args)]
struct Create {
    #[command(flatten)]
    config: ConfigFile,
    /// What it is called, where the audit and `token list` name it: letters, digits, `-`, `_`, `.`.
    name: String,
    /// What its holder may do: read, operate or admin.
    #[arg(long)]
    scope: Scope,
    /// After so long it is worth nothing. Never, when nothing is said.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    expires: Option<Duration>,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Lists tokens, by name.
#[derive(Args)]
struct List {
    #[command(flatten)]
    config: ConfigFile,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Revokes a token: from now on it is worth nothing.
#[derive(Args)]
struct Revoke {
    #[command(flatten)]
    config: ConfigFile,
    /// What it is called.
    name: String,
}

impl TokenCommand {
    pub async fn run(self) -> anyhow::Result<()> {
        match self.verb {
            Verb::Create(create) => create.run().await,
            Verb::List(list) => list.run().await,
            Verb::Revoke(revoke) => revoke.run().await,
        }
    }
}

impl Create {
    async fn run(self) -> anyhow::Result<()> {
        let ledger = Connections::ledger(&self.config.load()?).await?;
        let (secret, token) = create_token(&*ledger, &self.name, self.scope, self.expires).await?;
        if self.json {
            out!("{}", json!({ "secret": secret, "token": shown(&token) }));
            return Ok(());
        }
        let until = token.expires.map_or("for ever".to_owned(), |expires| format!("until {expires}"));
        eprintln!("created the token {} with the scope {}, {until}; it is shown only now:", token.name, token.scope);
        out!("{secret}");
        Ok(())
    }
}

impl List {
    async fn run(self) -> anyhow::Result<()> {
        let ledger = Connections::ledger(&self.config.load()?).await?;
        let tokens = ledger.tokens().await?;
        if self.json {
            out!("{}", json!({ "tokens": tokens.iter().map(shown).collect::<Vec<Value>>() }));
            return Ok(());
        }
        let now = ledger.now();
        let width = tokens.iter().map(|token| token.name.len()).max().unwrap_or(0).max(4);
        out!("{:width$}  {:7}  {:24}  {:24}  last used", "name", "scope", "created", "expires");
        for token in &tokens {
            let time = |time: Option<Time>, never: &str| time.map_or(never.to_owned(), |time| time.to_string());
            let over = if token.is_valid(now) { "" } else { " (over)" };
            let (created, used) = (token.created.to_string(), time(token.last_used, "never"));
            let expires = time(token.expires, "never") + over;
            out!("{:width$}  {:7}  {created:24}  {expires:24}  {used}", token.name, token.scope.name());
        }
        Ok(())
    }
}

impl Revoke {
    async fn run(self) -> anyhow::Result<()> {
        let ledger = Connections::ledger(&self.config.load()?).await?;
        if !ledger.revoke_token(self.name.clone()).await? {
            bail!("there is no token {}; `roundelay token list` has those that there are", self.name);
        }
        out!("revoked the token {}", self.name);
        Ok(())
    }
}

fn shown(token: &Token) -> Value {
    let Token { id, name, scope, created, expires, last_used } = token;
    json!({ "id": id, "name": name, "scope": scope, "created": created, "expires": expires, "last_used": last_used })
}
