//! A site that is lost: the second site's PostgreSQL is promoted, and its broker gets the messages of all chains.

use std::fmt;
use std::time::Duration;

use roundelay_config::Config;
use roundelay_engine::Connections;
use roundelay_engine::delays;
use roundelay_engine::resend::{Resent, resend_all};
use roundelay_engine::topology_guard;
use roundelay_ledger::LedgerUrl;
use roundelay_ledger::postgres::standby::{Standby, Standing};
use tokio::time::Instant;

use super::{OperateError, Result};
use crate::inspect::format::{grouped, rough};

/// How long a standby may take to become a primary: it replays what it has first.
const WITHIN: Duration = Duration::from_secs(300);
/// The timeline of a server that was never promoted.
const FIRST_TIMELINE: &str = "00000001";
/// How many workers are named.
const NAMED: usize = 5;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing: the server takes writes, and what follows a promotion was done.
    Done,
    /// The server takes writes; what follows a promotion was not done, or not to its end.
    GoOn,
    /// Everything.
    Promote {
        /// The server would wait for a standby that does not exist: it is to stop that first.
        stop_waiting: bool,
        /// Why it is not known that the other site is fenced, where the promotion was forced.
        unfenced: Option<String>,
    },
}

/// Decides what is to be done (pure). `synchronous` is the setting of this site, and `force` promotes also where it is not
/// known that the other site is fenced.
///
/// # Errors
/// Why nothing is done, and what to do.
pub fn plan(standing: &Standing, synchronous: bool, force: bool) -> std::result::Result<Plan, String> {
    let Some(sessions) = &standing.sessions else {
        return Err(format!("there is no ledger at {}; does ledger.url name this site's copy?", standing.address));
    };
    if !standing.in_recovery {
        let noted = standing.noted_timeline.as_deref().unwrap_or(FIRST_TIMELINE);
        return Ok(if standing.timeline.as_deref() == Some(noted) { Plan::Done } else { Plan::GoOn });
    }
    let role = &standing.role;
    if !standing.may_promote {
        return Err(format!(
            "the role {role} may not promote this server. Promote it as its superuser (SELECT pg_promote()), and run this \
             command again for what follows; or, while a primary runs: GRANT EXECUTE ON FUNCTION pg_promote(boolean, \
             integer) TO {role}"
        ));
    }
    let stop_waiting = !standing.waits_for.trim().is_empty() && standing.followers == 0;
    if stop_waiting && !standing.may_set {
        return Err(format!(
            "once this server is promoted it would wait for a standby that does not exist: synchronous_standby_names is \
             '{}'. As its superuser: ALTER SYSTEM SET synchronous_standby_names = ''; SELECT pg_reload_conf(). Then run \
             this command again",
            standing.waits_for
        ));
    }
    if synchronous && (stop_waiting || standing.waits_for.trim().is_empty()) {
        return Err(
            "ledger.synchronous is set in this configuration, and once this server is promoted it has no standby, so \
             that no worker of this site could work. Take the setting out until the server has a standby of its own"
                .into(),
        );
    }
    match unfenced(sessions) {
        Some(why) if !force => Err(format!(
            "it is not known that the other site is fenced: {why}. See to it that no worker runs there and that none can \
             be started (stop its PostgreSQL, or cut its network for good). Then add --force"
        )),
        unfenced => Ok(Plan::Promote { stop_waiting, unfenced }),
    }
}

/// Why it is not known that the other site is fenced by its own commits (pure), by the sessions of its workers.
fn unfenced(sessions: &[(String, bool)]) -> Option<String> {
    if sessions.is_empty() {
        return Some("the copy knows no worker that was at work there".into());
    }
    let lax: Vec<&str> = sessions.iter().filter(|(_, waits)| !waits).map(|(worker, _)| worker.as_str()).collect();
    let more = if lax.len() > NAMED { ", …" } else { "" };
    let named = lax.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    (!lax.is_empty()).then(|| {
        format!(
            "{} of its {} workers were started without ledger.synchronous ({named}{more}), and go on if its PostgreSQL \
             waits for no standby",
            lax.len(),
            sessions.len()
        )
    })
}

/// What was found and done.
#[derive(Clone, Debug)]
pub struct Promoted {
    /// What was found before.
    pub standing: Standing,
    /// What was decided.
    pub plan: Plan,
    /// How long the promotion took, until the server took writes.
    pub promotion: Option<Duration>,
    /// What was sent to the broker.
    pub resent: Option<Resent>,
}

/// Makes the server of this configuration the primary, declares the topology on its broker, and sends the messages of all
/// chains there. `told` hears of each step when it is done. Asked again, it does what was left undone.
///
/// # Errors
/// When nothing is done, or something is left to do; the text says what.
pub async fn promote(config: &Config, force: bool, mut told: impl FnMut(&str)) -> Result<Promoted> {
    let LedgerUrl::Postgres(url) = &config.ledger.url else {
        return Err(OperateError::Refused("ledger.url names no PostgreSQL, so there is no standby to promote".into()));
    };
    let failed = |why: String| OperateError::Refused(format!("the ledger's server {url}: {why}"));
    let standby = Standby::connect(url).await.map_err(failed)?;
    let standing = standby.standing().await.map_err(failed)?;
    let plan = plan(&standing, config.ledger.synchronous, force).map_err(OperateError::Refused)?;
    let mut promoted = Promoted { standing, plan, promotion: None, resent: None };
    match &promoted.plan {
        Plan::Done => return Ok(promoted),
        Plan::GoOn => told("this server takes writes already; what follows a promotion is done now"),
        Plan::Promote { stop_waiting, unfenced } => {
            told(&found(&promoted.standing));
            match (unfenced, &promoted.standing.sessions) {
                (Some(why), _) => told(&format!("not fenced: {why}; forced")),
                (None, sessions) => told(&format!(
                    "fenced: all {} workers of the other site refuse a server that waits for no standby, and its own \
                     waits for this one",
                    sessions.as_ref().map_or(0, Vec::len)
                )),
            }
            if *stop_waiting {
                standby.wait_for_none().await.map_err(failed)?;
                told("this server waits for no standby any more (synchronous_standby_names)");
            }
            let began = Instant::now();
            standby.promote(WITHIN).await.map_err(failed)?;
            promoted.promotion = Some(began.elapsed());
            told(&format!("promoted in {:.1} s: this site is the one that counts", began.elapsed().as_secs_f64()));
        }
    }
    let again = |error: &dyn fmt::Display| {
        let words = "the server takes writes, and chains run; their messages are not all sent. Run this command again";
        OperateError::Refused(format!("{words}: {error}"))
    };
    let connections = Connections::open(config).await.map_err(|error| again(&error))?;
    topology_guard::adopt(&*connections.ledger, config).await.map_err(|error| again(&error))?;
    delays::declare(config, &connections).await.map_err(|error| again(&error))?;
    told("the topology is declared on this site's broker");
    let began = Instant::now();
    let resent = resend_all(config, &connections).await.map_err(|error| again(&error));
    connections.broker.close().await;
    let resent = resent?;
    standby.note_timeline().await.map_err(|error| again(&error))?;
    told(&format!(
        "messages of {} chains sent in {:.1} s; {} of them were due{}",
        grouped(resent.chains),
        began.elapsed().as_secs_f64(),
        grouped(resent.overdue),
        match resent.unsent {
            0 => String::new(),
            unsent => format!("; {} could not be sent, and workers send them when they are overdue", grouped(unsent)),
        }
    ));
    promoted.resent = Some(resent);
    Ok(promoted)
}

/// What was found, in words (pure).
fn found(standing: &Standing) -> String {
    let last = match standing.last_commit {
        None => "it has replayed no commit since it was started".into(),
        Some(at) if at > standing.clock => format!(
            "its last commit is {} ahead of its own clock: the clocks of the sites differ",
            rough(at.since(standing.clock))
        ),
        Some(at) => format!("its last commit is {} old by its own clock", rough(standing.clock.since(at))),
    };
    let left = match standing.behind {
        0 => "it has replayed all that it has got".into(),
        bytes => format!("{} bytes that it has got are left to replay", grouped(bytes)),
    };
    format!("this server is a standby; {last}, and {left}")
}

#[cfg(test)]
mod tests {
    use roundelay_model::clock::Time;

    use super::*;

    fn standing() -> Standing {
        Standing {
            address: "postgres://b/r".into(),
            in_recovery: true,
            clock: Time::from_millis(100_000),
            last_commit: Some(Time::from_millis(97_000)),
            behind: 0,
            waits_for: String::new(),
            followers: 0,
            may_promote: true,
            may_set: true,
            role: "roundelay".into(),
            timeline: None,
            noted_timeline: None,
            sessions: Some(vec![("17-ab".into(), true), ("18-cd".into(), true)]),
        }
    }

    #[test]
    fn a_table_of_servers_and_what_is_done() {
        let promote = |stop_waiting| Ok(Plan::Promote { stop_waiting, unfenced: None });
        let primary = |seen: &mut Standing, timeline: &str, noted: Option<&str>| {
            (seen.in_recovery, seen.timeline) = (false, Some(timeline.into()));
            seen.noted_timeline = noted.map(Into::into);
        };
        type Change = Box<dyn Fn(&mut Standing)>;
        let table: Vec<(Change, bool, std::result::Result<Plan, &str>)> = vec![
            (Box::new(|_| ()), false, promote(false)),
            (Box::new(move |s| primary(s, "00000001", None)), false, Ok(Plan::Done)),
            (Box::new(move |s| primary(s, "00000002", None)), false, Ok(Plan::GoOn)),
            (Box::new(move |s| primary(s, "00000002", Some("00000002"))), false, Ok(Plan::Done)),
            (Box::new(move |s| primary(s, "00000003", Some("00000002"))), false, Ok(Plan::GoOn)),
            (Box::new(|s| s.sessions = None), false, Err("there is no ledger at postgres://b/r")),
            (Box::new(|s| s.may_promote = false), false, Err("GRANT EXECUTE ON FUNCTION pg_promote")),
            (Box::new(|s| s.waits_for = "c".into()), false, promote(true)),
            (Box::new(|s| (s.waits_for, s.followers) = ("c".into(), 1)), false, promote(false)),
            (Box::new(|s| (s.waits_for, s.followers) = ("c".into(), 1)), true, promote(false)),
            (Box::new(|s| (s.waits_for, s.may_set) = ("c".into(), false)), false, Err("ALTER SYSTEM SET")),
            (Box::new(|s| s.waits_for = "c".into()), true, Err("Take the setting out")),
            (Box::new(|_| ()), true, Err("Take the setting out")),
            (Box::new(|s| s.sessions = Some(Vec::new())), false, Err("knows no worker")),
            (
                Box::new(|s| s.sessions = Some(vec![("1-a".into(), true), ("2-b".into(), false)])),
                false,
                Err("1 of its 2 workers were started without ledger.synchronous (2-b)"),
            ),
        ];
        for (n, (change, synchronous, expected)) in table.into_iter().enumerate() {
            let mut seen = standing();
            change(&mut seen);
            match (plan(&seen, synchronous, false), expected) {
                (Ok(plan), Ok(expected)) => assert_eq!(plan, expected, "row {n}"),
                (Err(why), Err(part)) => assert!(why.contains(part), "row {n}: {why}"),
                (plan, expected) => panic!("row {n}: {plan:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn force_is_for_what_is_not_known_and_nothing_else() {
        let mut lax = standing();
        lax.sessions = Some(vec![("2-b".into(), false)]);
        let Ok(Plan::Promote { unfenced: Some(why), .. }) = plan(&lax, false, true) else { panic!("not forced") };
        assert!(why.contains("2-b"), "{why}");
        lax.may_promote = false;
        assert!(plan(&lax, false, true).is_err(), "no force gives a permission");
    }

    #[test]
    fn the_age_of_the_copy_is_told() {
        let mut seen = standing();
        assert_eq!(
            found(&seen),
            "this server is a standby; its last commit is 3s old by its own clock, and it has replayed all that it has got"
        );
        (seen.last_commit, seen.behind) = (Some(Time::from_millis(3_700_000)), 1_024);
        assert!(found(&seen).contains("is 1h ahead of its own clock"), "{}", found(&seen));
        assert!(found(&seen).contains("1,024 bytes"), "{}", found(&seen));
    }
}
