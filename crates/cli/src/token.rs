//! `roundelay token`

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use roundelay_admin::operate::token;
use roundelay_admin::operate::token::{TokenMade, TokenView};
use roundelay_engine::Connections;
use roundelay_ledger::Ledger;
use roundelay_model::clock::{parse_duration, short_duration};
use roundelay_model::scope::Scope;
use roundelay_model::wall_clock::At;
use serde_json::json;

use super::ConfigFile;
use super::audited::{Order, audited};
use super::fleet::current_user;
use super::progress::waiting;
use super::screen::{self, Tint};
use super::table::{Cell, Column, Table};

/// Creates, lists and revokes tokens for the API.
///
/// A token allows what its scope says: `read` looks, `operate` also changes chains, queues and throttles and publishes
/// jobs, `admin` also creates and revokes tokens.
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

/// Creates a token, and prints it on standard output: only now, since the ledger keeps only a hash.
#[derive(Args)]
struct Create {
    #[command(flatten)]
    config: ConfigFile,
    /// The name of the token, for the audit and `token list`: letters, digits, `-`, `_`, `.`.
    name: String,
    /// What the token allows: read, operate or admin.
    #[arg(long)]
    scope: Scope,
    /// How long the token is valid [default: without end]
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

/// Revokes a token: from now on the token is not valid.
#[derive(Args)]
struct Revoke {
    #[command(flatten)]
    config: ConfigFile,
    /// The name of the token.
    name: String,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
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
        let ledger = open(&self.config).await?;
        let by = current_user();
        let detail = json!({ "scope": self.scope, "expires_in": self.expires.map(short_duration) });
        let order = Order { by: &by, command: "token create", target: self.name.clone(), detail };
        let create = token::create(&*ledger, &self.name, self.scope, self.expires);
        let made = audited(&*ledger, order, create).await?;
        if self.json {
            return screen::json(&made);
        }
        let TokenMade { secret, token: TokenView { name, scope, expires, .. } } = made;
        let until = expires.map_or_else(|| "for ever".into(), |expires| format!("until {expires}"));
        screen::note(format_args!("created the token {name} with the scope {scope}, {until}; it is shown only now:"));
        screen::exact(format_args!("{secret}"));
        Ok(())
    }
}

impl List {
    async fn run(self) -> anyhow::Result<()> {
        let ledger = open(&self.config).await?;
        let tokens = token::list(&*ledger).await?;
        if self.json {
            return screen::json(&json!({ "tokens": tokens }));
        }
        if tokens.is_empty() {
            out!("there are no tokens; `roundelay token create` makes one");
            return Ok(());
        }
        let mut table = Table::new([
            Column::name("name"),
            Column::word("scope"),
            Column::text("created"),
            Column::text("expires"),
            Column::text("last used"),
        ]);
        let now = At::of(ledger.now(), &ledger.wall_clock());
        let shown = |time: Option<At>| time.map_or("never".to_owned(), |time| time.to_string());
        for token in &tokens {
            let over = token.expires.is_some_and(|expires| expires <= now);
            let expires = shown(token.expires) + if over { " (over)" } else { "" };
            table.row([
                Cell::from(&token.name),
                token.scope.name().into(),
                token.created.to_string().into(),
                Cell::from(expires).tinted_if(over, Tint::Notable),
                shown(token.last_used).into(),
            ]);
        }
        table.print();
        Ok(())
    }
}

impl Revoke {
    async fn run(self) -> anyhow::Result<()> {
        let ledger = open(&self.config).await?;
        let by = current_user();
        let order = Order { by: &by, command: "token revoke", target: self.name.clone(), detail: json!({}) };
        let revoked = audited(&*ledger, order, token::revoke(&*ledger, &self.name)).await?;
        screen::told(self.json, &json!({ "revoked": self.name }), revoked)
    }
}

async fn open(config: &ConfigFile) -> anyhow::Result<Arc<dyn Ledger>> {
    let _waits = waiting("opening the ledger");
    Ok(Connections::ledger(&config.load()?).await?)
}
