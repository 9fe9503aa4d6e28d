//! `roundelay tenant`: the shares of tenants, and orders for them.

use anyhow::bail;
use clap::Args;
use roundelay_admin::inspect::tenants::{TenantReport, reports};
use roundelay_admin::operate::tenant;
use roundelay_model::pacing::fair::Quota;
use serde_json::json;

use super::fleet::OrderArgs;
use super::screen::{self, Tint};
use super::steer::ledger;
use super::table::{Cell, Column, Table};

/// Shows the shares that tenants have of fair queues and throttles; changes them, while workers run.
///
///   roundelay tenant                                 those that the configuration or an order names
///   roundelay tenant acme --weight 5 --most 10
///   roundelay tenant acme --most none                as many at the same time as there is room for
///   roundelay tenant acme --as-configured
///
/// A tenant is a value of the field that `fair` names, mostly an owner; '' is the tenant of jobs without one. Orders are
/// kept in the ledger. Every worker knows of them within two seconds, and they hold until they are taken back, also when
/// workers are started again.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Tenant {
    /// The tenant.
    tenant: Option<String>,
    /// Its share in proportion to those of others.
    #[arg(long, value_name = "N", requires = "tenant")]
    weight: Option<u32>,
    /// How many of its jobs run at the same time on a queue, over all workers; `none` for no limit.
    #[arg(long, value_name = "N", requires = "tenant", value_parser = quota)]
    most: Option<Quota>,
    /// Takes back what was ordered.
    #[arg(long, requires = "tenant", conflicts_with_all = ["weight", "most"])]
    as_configured: bool,
    #[command(flatten)]
    said: OrderArgs,
}

fn quota(text: &str) -> Result<Quota, String> {
    match text {
        "none" => Ok(Quota::Unlimited),
        number => number.parse().map(Quota::Most).map_err(|_| "a whole number, or `none`".into()),
    }
}

impl Tenant {
    pub async fn run(self) -> anyhow::Result<()> {
        let Self { tenant, weight, most, as_configured, said } = self;
        let Some(tenant) = tenant else { return list(said).await };
        if as_configured {
            let about = ("tenant as-configured", tenant.as_str(), json!({}));
            return said.order(about, async |operator| tenant::as_configured(operator, &tenant).await).await;
        }
        if weight.is_none() && most.is_none() {
            bail!("say what is to change: --weight, --most or --as-configured; `roundelay tenant` shows the shares");
        }
        let most_said = most.map(|most| match most {
            Quota::Most(most) => json!(most),
            Quota::Unlimited => json!("none"),
        });
        let about = ("tenant share", tenant.as_str(), json!({ "weight": weight, "most": most_said }));
        said.order(about, async |operator| tenant::share(operator, &tenant, weight, most).await).await
    }
}

async fn list(said: OrderArgs) -> anyhow::Result<()> {
    let config = said.config.load()?;
    let ledger = ledger(&config).await?;
    let tenants = reports(&config, &ledger.fleet_orders().await?, &ledger.wall_clock());
    if said.json {
        return screen::json(&json!({ "fair": config.is_fair(), "tenants": tenants }));
    }
    if tenants.is_empty() {
        out!("all tenants have the same share: neither [tenants] nor an order names one");
    } else {
        print(&tenants);
    }
    if !config.is_fair() {
        screen::tinted(Tint::Notable, format_args!("no queue or throttle has `fair`, so nothing is shared"));
    }
    Ok(())
}

fn print(tenants: &[TenantReport]) {
    let mut table = Table::new([Column::name("tenant"), Column::number("weight"), Column::number("at a time")]);
    for of in tenants {
        let most = match of.most {
            Some(most) => most.to_string(),
            None if of.unlimited => "no limit".to_owned(),
            None => "-".to_owned(),
        };
        table.row([Cell::from(tenant::named(&of.tenant)), of.weight.to_string().into(), most.into()]);
        if let Some(ordered) = &of.ordered {
            let most = of.configured.most.map_or(String::new(), |most| format!(", at most {most}"));
            let (by, at) = (&ordered.by, &ordered.at);
            table.note(format!("ordered by {by} since {at}; configured: weight {}{most}", of.configured.weight));
        }
    }
    table.print();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_a_number_or_none() {
        let table = [("7", Ok(Quota::Most(7))), ("none", Ok(Quota::Unlimited)), ("-1", Err(())), ("all", Err(()))];
        for (text, read) in table {
            assert_eq!(quota(text).map_err(drop), read, "{text}");
        }
    }
}
