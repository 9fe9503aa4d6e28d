//! Verbs on unusable messages: send them to their queues again, or forget them.

use std::collections::HashMap;

use roundelay_config::Config;
use roundelay_engine::Connections;
use roundelay_engine::replay::{Again, keep_again, send_again};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Result;

/// How many messages of the broker's quarantine are read at a time: they are fetched and put back.
const MAX_FETCHED: usize = 1_000;
/// How many rows of the ledger are read at a time.
const ROWS: u32 = 500;

/// What to do with unusable messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum QuarantineAction {
    /// The messages are sent to the queues from which they came: useful after a mistake in the configuration. A message
    /// that still cannot be used comes back. A job runs for one retry of its message only, also when one retry was
    /// interrupted.
    Retry,
    /// The messages are forgotten.
    Drop,
}

/// Which messages: those that match every field that is given.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QuarantineFilter {
    /// Messages whose reason contains this text; empty: messages without a reason.
    pub reason: Option<String>,
    /// Messages from this queue; empty: messages whose queue is unknown.
    pub from: Option<String>,
}

impl QuarantineFilter {
    /// An empty field stands for messages that have nothing there, and never for all of them.
    fn fits(&self, from: &str, reason: &str) -> bool {
        let said = |wanted: &String| if wanted.is_empty() { reason.is_empty() } else { reason.contains(wanted) };
        self.reason.as_ref().is_none_or(said) && self.from.as_ref().is_none_or(|wanted| from == wanted)
    }
}

/// Sends unusable messages to their queues again, or forgets them: all that match a filter. Of the broker's messages,
/// the first 1,000 are read. Answers how many match, and how many are gone if they were not only counted.
///
/// # Errors
/// When broker or ledger are unavailable.
pub async fn act(
    config: &Config,
    connections: &Connections,
    action: QuarantineAction,
    filter: &QuarantineFilter,
    dry_run: bool,
) -> Result<(u64, Option<u64>)> {
    // If one message cannot be sent, the others cannot be sent either.
    let (mut matching, mut changed, mut away) = (0, 0, false);
    // A message that was put there twice has the same result as the first copy.
    let mut gone_before = HashMap::new();
    let queue = config.topology().names.quarantine();
    for shelved in connections.broker.peek(&queue, MAX_FETCHED).await? {
        if !filter.fits(&shelved.from, &shelved.reason) {
            shelved.put_back().await;
            continue;
        }
        if let Some(gone) = gone_before.get(&shelved.id).filter(|_| !shelved.id.is_empty()) {
            if *gone {
                shelved.forget().await
            } else {
                shelved.put_back().await
            }
            continue;
        }
        matching += 1;
        let gone = match (dry_run, action) {
            (true, _) => false,
            (false, QuarantineAction::Drop) => true,
            (false, QuarantineAction::Retry) if away => false,
            (false, QuarantineAction::Retry) => {
                let sent = send_again(config, connections, &shelved).await;
                away = sent == Again::Away;
                sent == Again::Sent
            }
        };
        changed += u64::from(gone);
        gone_before.insert(shelved.id.clone(), gone);
        if gone { shelved.forget().await } else { shelved.put_back().await }
    }
    let mut before = None;
    loop {
        let page = connections.ledger.quarantined(before, ROWS).await?;
        let Some(last) = page.last() else { break };
        before = Some(last.number);
        let mut dropped = Vec::new();
        for message in page.into_iter().filter(|message| filter.fits(&message.from, &message.reason)) {
            matching += 1;
            match (dry_run, action) {
                (true, _) => {}
                (false, QuarantineAction::Drop) => dropped.push(message.number),
                (false, QuarantineAction::Retry) if away => {}
                (false, QuarantineAction::Retry) => {
                    let sent = keep_again(config, connections, message).await;
                    away = sent == Again::Away;
                    changed += u64::from(sent == Again::Sent);
                }
            }
        }
        changed += connections.ledger.forget_quarantined(dropped).await?;
    }
    Ok((matching, (!dry_run).then_some(changed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_field_stands_for_what_says_nothing() {
        let said = |text: &str| Some(text.to_owned());
        let table = [
            (None, None, true),
            (said("no envelope"), None, true),
            (said("envelope"), said("work"), true),
            (said(""), None, false),
            (None, said(""), false),
            (None, said("wor"), false),
        ];
        for (reason, from, fits) in table {
            let filter = QuarantineFilter { reason, from };
            assert_eq!(filter.fits("work", "it is no envelope"), fits, "{filter:?}");
        }
        assert!(QuarantineFilter { reason: said(""), from: said("") }.fits("", ""));
    }
}
