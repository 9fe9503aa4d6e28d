//! Why a chain does not run, above all one that is due (pure).
//!
//! Only the ledger, the configuration and the broker are asked, and no worker: the one that could
//! tell may be what is stuck.

use std::time::Duration;

use roundelay_broker::Depth;
use roundelay_config::{Config, is_internal, schedule_of};
use roundelay_ledger::{AttemptRecord, ChainState, ChainView, Holder, LateChain};
use roundelay_model::clock::Time;
use roundelay_model::deaths::CLASS;
use roundelay_model::schedule::{Asleep, phase};
use roundelay_model::wall_clock::{At, WallClock};

use crate::overslept::{schedules, since};

/// A look at a chain is late, and not just about to happen, after this many sweeps without it.
const SWEEPS: u32 = 3;

/// What is wrong with a chain that sleeps for longer than it may.
pub const OVERSLEPT: &str = "it is late: its due time lies further ahead than its schedule can explain";

/// Why it does not run, for a person.
pub fn overslept(due: Time, begun: bool, wall_clock: &WallClock) -> String {
    let then = if begun { "workers bring it forward" } else { "workers move it" };
    format!("{OVERSLEPT} ({}): {then} within a minute", At::of(due, wall_clock))
}

/// What is known of the broker.
#[derive(Clone, Copy, Debug)]
pub enum Waiting<'a> {
    /// It keeps nothing that can be asked for from here: it is in the worker's process.
    Embedded,
    /// It does not answer, because of this.
    Away(&'a str),
    /// It does not tell about the chain's queue, because of this.
    Unknown(&'a str),
    /// How many messages and consumers are on the chain's queue.
    Depth(Depth),
}

/// What a chain is doing, or why it does nothing, for a person. `last` is its last attempt; `owner` is what was
/// said of its owner as a whole; `throttle` is why its queue's throttle lets nothing start.
pub fn doing(
    chain: &ChainView,
    last: Option<&AttemptRecord>,
    owner: ChainState,
    config: &Config,
    broker: Waiting<'_>,
    throttle: Option<&str>,
    (now, wall_clock): (Time, &WallClock),
) -> String {
    let ChainView { hint, state, holder, batch: (open, total), .. } = chain;
    let late = || LateChain {
        hint: hint.clone(),
        state: *state,
        sent: chain.sent,
        looks: chain.looks,
        watch_at: chain.watch_at,
        holder: *holder,
        worker: last.map(|last| last.worker.clone()),
        reason: last.filter(|last| last.verdict.as_deref() == Some("lost")).and_then(|last| last.reason.clone()),
    };
    let of_owner = chain.owner.as_deref().unwrap_or_default();
    match (state, owner) {
        (ChainState::Paused, ChainState::Paused) => {
            return format!("its owner is paused; `roundelay resume --owner {of_owner}` lets all of hers go on");
        }
        (ChainState::Retired, ChainState::Retired) => return format!("it has ended, as all of its owner, {of_owner}"),
        (ChainState::Active, _) if !holder.runs() && *open > 0 => {
            return format!("it waits for its batch: {open} of {total} jobs have not ended");
        }
        (ChainState::Active, _) if !holder.runs() && hint.due > now => {
            if since(chain, &schedules(config), (now, wall_clock)).is_some() {
                return overslept(hint.due, chain.started_tick >= hint.tick || hint.attempt > 1, wall_clock);
            }
            let until = format!("{} ({} from now)", At::of(hint.due, wall_clock), rough(hint.due.since(now)));
            if let Some(left) = left_alone(&late(), config).filter(|_| !chain.once) {
                return format!("it sleeps until {until}, and then {left}");
            }
            // It may have been put off for want of a slot.
            let throttle = throttle.map_or_else(String::new, |throttle| format!("; now {throttle}"));
            if let Some(calendars) = by_calendars(chain, config, (now, wall_clock)) {
                return format!("it sleeps until {until}{throttle}; {calendars}");
            }
            return if hint.attempt > 1 {
                format!("its last attempt did not work; it is tried again at {until}{throttle}")
            } else {
                format!("it sleeps until {until}{throttle}")
            };
        }
        _ => {}
    }
    why(&late(), config, broker, throttle, now)
}

/// Why a tick that has not started comes no sooner, where calendars are the reason.
fn by_calendars(chain: &ChainView, config: &Config, (now, wall_clock): (Time, &WallClock)) -> Option<String> {
    let ChainView { hint, nominal, last_start, last_finish, .. } = chain;
    if chain.once || hint.attempt > 1 || chain.started_tick >= hint.tick {
        return None;
    }
    let schedule = schedule_of((&hint.kind, chain.schedule.as_deref()), config)?;
    let asleep = Asleep { nominal: *nominal, due: hint.due, last_start: *last_start, last_finish: *last_finish };
    schedule.because(asleep, now, phase(&hint.kind, &hint.key), wall_clock)
}

fn rough(span: Duration) -> String {
    humantime::format_duration(Duration::from_secs(span.as_secs())).to_string()
}

/// Why `chain`, which is due, does not run, for a person. What keeps it for certain comes first;
/// without any such thing, where its message is likely to be.
pub fn why(chain: &LateChain, config: &Config, broker: Waiting<'_>, throttle: Option<&str>, now: Time) -> String {
    match chain.state {
        ChainState::Active => {}
        ChainState::Paused => return "it is paused; `roundelay resume` lets it go on".into(),
        ChainState::Retired => return "it has ended".into(),
        ChainState::Quarantined => {
            if let Some(why) = chain.reason.as_ref().filter(|why| why.starts_with(CLASS)) {
                return format!("it is set aside: {why}; `roundelay recover` lets it go on");
            }
            return "it is quarantined: a message of it was ahead of the ledger, so an older copy of the ledger was restored; `roundelay recover` lets it go on"
                .into();
        }
    }
    if chain.holder.runs() {
        let worker = chain.worker.as_deref().unwrap_or("a worker");
        return format!("it runs on {worker}");
    }
    if let Some(left) = left_alone(chain, config) {
        return left;
    }
    let mut told: Vec<String> = throttle.map(str::to_owned).into_iter().collect();
    if chain.holder == Holder::Gone {
        let worker = chain.worker.as_deref().unwrap_or("a worker");
        told.push(format!("its last run, on {worker}, never ended: that worker is gone"));
    }
    match broker {
        Waiting::Away(_) => told.push("the broker does not answer".into()),
        Waiting::Unknown(reason) => {
            told.push(format!("{reason} (if it does not exist, `roundelay topology apply` declares it)"));
        }
        Waiting::Depth(Depth { consumers: 0, ready }) => {
            told.push(format!("no worker consumes its queue, where {ready} messages wait"));
        }
        Waiting::Depth(_) | Waiting::Embedded => {}
    }
    told.push(message(chain, broker));
    told.push(next_look(chain, config.catch_up.every, now));
    told.join("; ")
}

/// Why workers with this configuration would not touch it.
fn left_alone(chain: &LateChain, config: &Config) -> Option<String> {
    let (kind, queue) = (&chain.hint.kind, &chain.hint.queue);
    if is_internal(kind) {
        return None;
    }
    match config.kinds.get(kind) {
        None => {
            return Some(format!(
                "its kind is not in this configuration: workers with it leave the chain alone; add [kinds.{kind}]"
            ));
        }
        Some(settings) if settings.recurrence.is_none() => {
            return Some(format!(
                "its kind has no schedule in this configuration: workers with it leave the chain alone; set kinds.{kind}.every \
                 or kinds.{kind}.cron"
            ));
        }
        Some(_) => {}
    }
    (!config.queues.contains_key(queue)).then(|| {
        format!(
            "its queue is not in this configuration: workers with it do not consume it; add [queues.{queue}], or \
             enroll the chain on another queue"
        )
    })
}

/// Where its message is likely to be.
fn message(chain: &LateChain, broker: Waiting<'_>) -> String {
    let times = match chain.looks {
        0 => String::new(),
        1 => ", and once more by catch-up".into(),
        looks => format!(", and {looks} times more by catch-up"),
    };
    match (chain.sent, chain.looks, broker) {
        (false, 0, _) => "its message is not known to have been sent".into(),
        (false, 1, _) => "its message is not known to have been sent, though catch-up has tried once".into(),
        (false, looks, _) => {
            format!("its message is not known to have been sent, though catch-up has tried {looks} times")
        }
        (true, _, Waiting::Depth(Depth { ready: 0, .. })) => {
            format!("its message was sent{times}, and none waits on its queue: it is in a worker's hand, or lost")
        }
        (true, _, Waiting::Depth(Depth { ready, .. })) => {
            format!("its message was sent{times}, and may be among the {ready} that wait on its queue")
        }
        (true, ..) => format!("its message was sent{times}"),
    }
}

/// When catch-up looks, or that it does not.
fn next_look(chain: &LateChain, every: Duration, now: Time) -> String {
    if chain.watch_at + every * SWEEPS < now {
        format!("catch-up was to look at {} and has not: no worker for its queue runs, or it is stuck", chain.watch_at)
    } else {
        format!("catch-up looks next at {}", chain.watch_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roundelay_ledger::Hint;
    use roundelay_model::deaths::SET_ASIDE;
    use roundelay_model::ids::{Epoch, Fence, TickNo};

    const fn at(secs: i64) -> Time {
        Time::from_millis(secs * 1_000)
    }

    fn chain() -> LateChain {
        let hint = Hint {
            kind: "sync".into(),
            key: "x".into(),
            queue: "work".into(),
            epoch: Epoch(1),
            tick: TickNo(3),
            attempt: 1,
            due: at(100),
            parent: Epoch::NONE,
            priority: None,
        };
        let (sent, looks, watch_at, holder) = (true, 0, at(1_010), Holder::None);
        LateChain { hint, state: ChainState::Active, sent, looks, watch_at, holder, worker: None, reason: None }
    }

    fn lost() -> AttemptRecord {
        AttemptRecord {
            fence: Fence(7),
            epoch: Epoch(1),
            tick: TickNo(3),
            attempt: 1,
            worker: String::new(),
            due: at(100),
            started: at(100),
            finished: Some(at(200)),
            verdict: Some("lost".into()),
            reason: Some(SET_ASIDE.into()),
            overlapped: 0,
            misfired: 0,
            excluded: 0,
            progress: None,
        }
    }

    #[test]
    fn chain_state_as_it_is_shown() {
        let config = "[queues.work]\n[kinds.sync]\nevery = \"1m\"\n[kinds.report]\n";
        let config = Config::parse(config, "r.toml", []).unwrap();
        let view = |change: fn(&mut ChainView)| {
            let LateChain { hint, state, sent, looks, watch_at, holder, .. } = chain();
            let mut view = ChainView {
                hint,
                state,
                payload: "null".into(),
                nominal: at(100),
                holder,
                fence: Fence(7),
                sent,
                looks,
                watch_at,
                once: false,
                owner: Some("ann".into()),
                schedule: None,
                carry: None,
                learned: None,
                last_start: at(40),
                last_finish: at(40),
                started_tick: TickNo(2),
                batch: (0, 0),
                depth: 0,
            };
            change(&mut view);
            view
        };
        let table = [
            (
                view(|c| (c.hint.due, c.nominal) = (at(1_065), at(1_065))),
                ChainState::Active,
                "it sleeps until 1970-01-01T00:17:45.000Z (1m 5s from",
            ),
            (
                view(|c| c.hint.due = at(100_000)),
                ChainState::Active,
                "it is late: its due time lies further ahead than its schedule can explain (1970-01-02T03:46:40.000Z): workers move",
            ),
            (
                view(|c| (c.hint.due, c.hint.attempt) = (at(1_065), 2)),
                ChainState::Active,
                "its last attempt did not work; it is tried again at 1970-01-01T00:17:45.000Z (1m 5s from now)",
            ),
            (
                view(|c| (c.hint.due, c.hint.kind) = (at(1_065), "old".into())),
                ChainState::Active,
                "it sleeps until 1970-01-01T00:17:45.000Z (1m 5s from now), and then its kind is not in this",
            ),
            (view(|c| c.holder = Holder::Alive), ChainState::Active, "it runs on w-1"),
            (view(|c| c.batch = (3, 10)), ChainState::Active, "it waits for its batch: 3 of 10 jobs have not ended"),
            (view(|c| c.state = ChainState::Paused), ChainState::Active, "it is paused; `roundelay resume` lets it"),
            (
                view(|c| c.state = ChainState::Paused),
                ChainState::Paused,
                "its owner is paused; `roundelay resume --owner ann` lets all of hers go on",
            ),
            (view(|c| c.state = ChainState::Retired), ChainState::Retired, "it has ended, as all of its owner, ann"),
            (view(|c| c.state = ChainState::Quarantined), ChainState::Active, "it is set aside: deaths: three workers"),
            (view(|_| ()), ChainState::Active, "the broker does not answer; its message was sent; catch-up looks next"),
        ];
        for (chain, owner, beginning) in table {
            let time = (at(1_000), &WallClock::default());
            let last = AttemptRecord { worker: "w-1".into(), ..lost() };
            let told = doing(&chain, Some(&last), owner, &config, Waiting::Away("refused"), None, time);
            assert!(told.starts_with(beginning), "`{told}` should begin with `{beginning}`");
        }
    }

    #[test]
    fn stuck_chain_has_a_reason() {
        let config = "[queues.work]\n[kinds.sync]\nevery = \"1m\"\n[kinds.report]\n";
        let config = Config::parse(config, "r.toml", []).unwrap();
        let with = |change: fn(&mut LateChain)| {
            let mut chain = chain();
            change(&mut chain);
            chain
        };
        let full = Waiting::Depth(Depth { ready: 7, consumers: 2 });
        let empty = Waiting::Depth(Depth { ready: 0, consumers: 2 });
        let idle = Waiting::Depth(Depth { ready: 7, consumers: 0 });
        let table = [
            (with(|c| c.state = ChainState::Paused), full, "it is paused"),
            (with(|c| c.state = ChainState::Retired), full, "it has ended"),
            (with(|c| c.state = ChainState::Quarantined), full, "it is quarantined: a message of it was ahead"),
            (with(|c| (c.holder, c.worker) = (Holder::Alive, Some("w-1".into()))), full, "it runs on w-1"),
            (with(|c| c.hint.kind = "old".into()), full, "its kind is not in this configuration"),
            (with(|c| c.hint.kind = "report".into()), full, "its kind has no schedule in this configuration"),
            (
                with(|c| {
                    (c.hint.kind, c.hint.queue) = ("roundelay.roster".into(), "roundelay.chores".into());
                }),
                idle,
                "no worker consumes its queue, where 7 messages wait",
            ),
            (with(|c| c.hint.queue = "gone".into()), Waiting::Embedded, "its queue is not in this configuration"),
            (
                with(|c| (c.holder, c.worker) = (Holder::Gone, Some("w-1".into()))),
                empty,
                "its last run, on w-1, never ended: that worker is gone; its message was sent, and none waits on its queue: it is in a worker's hand, or lost; catch-up looks next at \
                 1970-01-01T00:16:50.000Z",
            ),
            (
                chain(),
                Waiting::Away("refused"),
                "the broker does not answer; its message was sent; catch-up looks next",
            ),
            (
                chain(),
                Waiting::Unknown("NOT_FOUND"),
                "NOT_FOUND (if it does not exist, `roundelay topology apply` declares",
            ),
            (chain(), idle, "no worker consumes its queue, where 7 messages wait; its message was sent, and may be"),
            (chain(), full, "its message was sent, and may be among the 7 that wait on its queue; catch-up looks next"),
            (chain(), Waiting::Embedded, "its message was sent; catch-up looks next at 1970-01-01T00:16:50.000Z"),
            (with(|c| c.looks = 1), full, "its message was sent, and once more by catch-up, and may be among"),
            (with(|c| c.looks = 4), empty, "its message was sent, and 4 times more by catch-up, and none waits"),
            (with(|c| c.sent = false), empty, "its message is not known to have been sent; catch-up looks next"),
            (
                with(|c| (c.sent, c.looks) = (false, 3)),
                empty,
                "its message is not known to have been sent, though catch-up has tried 3 times; catch-up",
            ),
            (
                with(|c| c.watch_at = at(954)),
                full,
                "its message was sent, and may be among the 7 that wait on its queue; catch-up was to look at \
                 1970-01-01T00:15:54.000Z and has not: no worker for its queue runs, or it is stuck",
            ),
            (with(|c| c.watch_at = at(955)), Waiting::Embedded, "its message was sent; catch-up looks next at"),
        ];
        for (chain, broker, beginning) in table {
            let told = why(&chain, &config, broker, None, at(1_000));
            assert!(told.starts_with(beginning), "`{told}` should begin with `{beginning}`");
        }
    }

    #[test]
    fn a_throttle_that_lets_nothing_start_is_named_first() {
        let config = "[queues.work]\n[kinds.sync]\nevery = \"1m\"\n";
        let config = Config::parse(config, "r.toml", []).unwrap();
        let throttle = Some("the throttle ios is held until tomorrow: they are down");
        let told = why(&chain(), &config, Waiting::Embedded, throttle, at(1_000));
        assert!(
            told.starts_with("the throttle ios is held until tomorrow: they are down; its message was sent"),
            "{told}"
        );
        // What runs has its slot, and what is paused waits for none.
        let mut running = chain();
        running.holder = Holder::Alive;
        assert!(why(&running, &config, Waiting::Embedded, throttle, at(1_000)).starts_with("it runs on"));
        running.state = ChainState::Paused;
        assert!(why(&running, &config, Waiting::Embedded, throttle, at(1_000)).starts_with("it is paused"));
    }
}
