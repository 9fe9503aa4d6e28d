//! `roundelay encryption`

use anyhow::bail;
use clap::Args;
use roundelay_engine::sealing::{Inventory, Mode, take_stock};
use roundelay_ledger::TextColumn;
use serde_json::{Value, json};

use super::audited::{Order, audited_with};
use super::fleet::current_user;
use super::progress::waiting;
use super::screen::{self, Tint};
use super::steer::ledger;
use super::table::{Cell, Column, Table};
use super::{ConfigFile, grouped};

/// Says how much of the ledger is encrypted, with which keys, and encrypts it anew.
///
///   roundelay encryption               what is plain, what is encrypted, and whether it can be decrypted
///   roundelay encryption --reseal      encrypts all of it with the key that encryption.seal names
///   roundelay encryption --unseal      makes all of it plain, once encryption.seal names none
///
/// It reads payloads, carries, jobs that are kept and messages in quarantine, and decrypts each of them. Workers
/// may run meanwhile: what they change is left to them. Exit code 1 when something cannot be decrypted.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Encryption {
    #[command(flatten)]
    config: ConfigFile,
    /// Encrypt with encryption.seal all that is plain, or encrypted with another key.
    #[arg(long)]
    reseal: bool,
    /// Make plain all that is encrypted; encryption.seal must name no key any more.
    #[arg(long, conflicts_with = "reseal")]
    unseal: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Encryption {
    pub async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let keys = &config.encryption;
        match keys.seal() {
            None if self.reseal => {
                bail!("encryption.seal names no key to seal with; `--unseal` makes the ledger plain")
            }
            Some(name) if self.unseal => {
                bail!(
                    "encryption.seal is `{name}`, so workers would seal it again; take it out, and let them read that first"
                )
            }
            _ => {}
        }
        let mode = if self.reseal || self.unseal { Mode::Rewrite } else { Mode::Look };
        let ledger = ledger(&config).await?;
        let waits = waiting("looking through the ledger");
        let mut seen = 0;
        let stock = take_stock(&*ledger, keys, mode, u64::MAX, |more| {
            seen += more;
            waits.now(&format!("looking through the ledger: {} texts", grouped(seen)));
        });
        let stock = match mode {
            Mode::Look => stock.await?,
            Mode::Rewrite => {
                let by = current_user();
                let command = if self.reseal { "encryption --reseal" } else { "encryption --unseal" };
                // The name of the key, which is no secret.
                let target = keys.seal().unwrap_or_default().to_owned();
                let order = Order { by: &by, command, target, detail: json!({}) };
                let outcome =
                    |stock: &Inventory| Some(json!({ "written": stock.written, "unopened": unopened(stock) }));
                audited_with(&*ledger, order, stock, outcome).await?
            }
        };
        drop(waits);
        let unopened = unopened(&stock);
        if self.json {
            screen::json(&report(keys.seal(), keys.names(), &stock, mode))?;
        } else {
            print(keys.seal(), &stock, mode);
        }
        if unopened > 0 {
            bail!(
                "{} texts do not open here: give this program, and all workers, the keys that they are sealed with, under encryption.keys{}",
                grouped(unopened),
                if keys.is_strict() { "; plain ones, which encryption.seal refuses, `--reseal` seals" } else { "" }
            );
        }
        Ok(())
    }
}

/// How many texts this program's keys do not open.
fn unopened(stock: &Inventory) -> u64 {
    stock.counts.values().map(|count| count.unopened).sum()
}

fn word(shelf: TextColumn) -> &'static str {
    match shelf {
        TextColumn::Payloads => "payloads",
        TextColumn::Carries => "carries",
        TextColumn::Jobs => "jobs",
        TextColumn::Quarantine => "quarantine",
    }
}

fn report<'k>(seal: Option<&str>, keys: impl Iterator<Item = &'k str>, stock: &Inventory, mode: Mode) -> Value {
    let texts = stock.counts.iter().map(|((shelf, name), count)| {
        json!({ "where": word(*shelf), "key": name, "texts": count.texts, "unopened": count.unopened })
    });
    json!({
        "seal": seal, "keys": keys.collect::<Vec<_>>(), "texts": texts.collect::<Vec<_>>(),
        "written": (mode == Mode::Rewrite).then_some(stock.written),
    })
}

fn print(seal: Option<&str>, stock: &Inventory, mode: Mode) {
    match seal {
        Some(name) => out!("what is new is sealed with the key {}", screen::visible(name)),
        None => out!("what is new is not sealed"),
    }
    if mode == Mode::Rewrite {
        out!("written anew: {}", grouped(stock.written));
    }
    if stock.counts.is_empty() {
        out!("nothing in the ledger could be sealed");
        return;
    }
    let mut table =
        Table::new([Column::word("where"), Column::name("key"), Column::number("texts"), Column::number("unopened")]);
    for ((shelf, name), count) in &stock.counts {
        table.row([
            Cell::from(word(*shelf)),
            Cell::from(name.as_deref().unwrap_or("(plain)")).tinted_if(name.is_none() && seal.is_some(), Tint::Notable),
            grouped(count.texts).into(),
            Cell::from(grouped(count.unopened)).tinted_if(count.unopened > 0, Tint::Wrong),
        ]);
    }
    table.print();
}
