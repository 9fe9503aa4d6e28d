//! How messages sleep: on their own queues, or on rungs (pure).

use roundelay_broker::Delays;
use roundelay_model::clock::Time;
use roundelay_model::wall_clock::WallClock;

use crate::inspect::delays::Known;
use crate::inspect::doctor::finding::{Area, Finding, span};

/// Clocks that differ by more milliseconds than this are likely to be set, in one step.
const APART: i64 = 5_000;

/// What follows from the setting, and from what workers have found. Nothing while they have found nothing.
pub(super) fn delays(setting: Delays, known: &Known, wall_clock: &WallClock) -> Option<Finding> {
    const WHAT: &str = "delays";
    let hot = match known.hot_rungs.len() {
        0 => String::new(),
        hot => format!("; {} more take the load of {hot} hot ones", known.hot_rungs.siblings().count()),
    };
    let on_rungs = |why: &str| Some(Finding::good(Area::Broker, WHAT, format!("on rungs{why}{hot}")));
    if setting == Delays::Ladder {
        return on_rungs(", as broker.delays says");
    }
    let found = known.found?;
    if found.early {
        let seen = format!(
            "a message came before its time at {}: all messages sleep on rungs since then",
            wall_clock.wall(Time::from_millis(found.at))
        );
        return Some(Finding::warning(
            Area::Broker,
            WHAT,
            seen,
            "nothing runs too early: a message that comes early goes back to sleep on a rung. But rungs carry less, as each \
             message passes several queues",
            "see that all nodes of the cluster have the same version, 4.4 or later, that no policy takes the queues, and that \
             no node's clock was set. Ten minutes after the message, workers try again whether messages sleep on their \
             queues; if you want rungs, set broker.delays to `ladder`",
        ));
    }
    if !found.native {
        return match setting {
            Delays::Native => Some(Finding::bad(
                Area::Broker,
                WHAT,
                "this broker does not let messages sleep on their queues, and broker.delays is `native`",
                "a worker that starts is refused; those that run use rungs",
                "upgrade all nodes of the cluster to RabbitMQ 4.4, or set broker.delays to `auto`",
            )),
            _ => on_rungs(": this broker does not let messages sleep on their queues; RabbitMQ does from 4.4 on"),
        };
    }
    // The wall clock may have been set since the ledger's time began, and the broker's is only to agree with that.
    let ahead = found.ahead.saturating_sub(wall_clock.ahead());
    let stands = match ahead {
        0 => "shows the ledger's time".to_owned(),
        1.. => format!("is {} ahead of the ledger's", span(ahead)),
        _ => format!("is {} behind the ledger's", span(ahead)),
    };
    let seen = format!("messages sleep on their queues; the broker's clock {stands}");
    match ahead.abs() > APART {
        false => Some(Finding::good(Area::Broker, WHAT, seen)),
        true => Some(Finding::warning(
            Area::Broker,
            WHAT,
            seen,
            "nothing is early or late by that, since workers reckon with it. But if its clock is set right in one step, what \
             sleeps wakes so much earlier or later; what comes early sleeps on over rungs",
            "keep the clocks of the broker's nodes right, and let them be slewed: chrony without makestep",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use roundelay_engine::topology_guard::Found;
    use roundelay_model::spread::HotRungs;

    use super::*;
    use crate::inspect::delays::Known;
    use crate::inspect::doctor::finding::Grade;
    use crate::inspect::doctor::tests::have_fixes;

    #[test]
    fn a_table_of_what_workers_have_found() {
        let found = |native, ahead, early| Some(Found { native, ahead, at: 1_700_000_000_000, early });
        let (even, set) = (WallClock::default(), WallClock::default().set(Time::from_millis(1_000), 3_600_000));
        let table = [
            (Delays::Auto, None, &even, None),
            (Delays::Native, None, &even, None),
            (Delays::Ladder, None, &even, Some((Grade::Good, "as broker.delays says"))),
            (Delays::Ladder, found(true, 9_000, true), &even, Some((Grade::Good, "as broker.delays says"))),
            (Delays::Auto, found(true, 0, false), &even, Some((Grade::Good, "shows the ledger's time"))),
            (Delays::Auto, found(true, 3, false), &even, Some((Grade::Good, "clock is 3ms ahead"))),
            (Delays::Native, found(true, -5_000, false), &even, Some((Grade::Good, "clock is 5s behind"))),
            (Delays::Auto, found(true, -5_001, false), &even, Some((Grade::Warning, "clock is 5s 1ms behind"))),
            (Delays::Auto, found(true, 61_000, false), &even, Some((Grade::Warning, "clock is 1m 1s ahead"))),
            // The wall clock was set by an hour since, and the broker's shows the same.
            (Delays::Auto, found(true, 3_600_000, false), &set, Some((Grade::Good, "shows the ledger's time"))),
            (Delays::Auto, found(true, 0, false), &set, Some((Grade::Warning, "clock is 1h behind"))),
            (Delays::Auto, found(false, 0, false), &even, Some((Grade::Good, "RabbitMQ does from 4.4 on"))),
            (Delays::Native, found(false, 0, false), &even, Some((Grade::Bad, "is `native`"))),
            (Delays::Auto, found(false, 0, true), &even, Some((Grade::Warning, "at 2023-11-14T22:13:20"))),
            (Delays::Native, found(false, 0, true), &even, Some((Grade::Warning, "sleep on rungs since then"))),
        ];
        for (setting, found, wall_clock, expected) in table {
            let finding = delays(setting, &Known { found, hot_rungs: HotRungs::default() }, wall_clock);
            assert_eq!(finding.as_ref().map(|of| of.result), expected.map(|(grade, _)| grade), "{setting:?} {found:?}");
            if let (Some(finding), Some((_, words))) = (&finding, expected) {
                assert!(finding.seen.contains(words), "{words}: {}", finding.seen);
            }
            have_fixes(finding.as_slice());
        }
    }

    #[test]
    fn hot_rungs_are_counted() {
        let hot_rungs = HotRungs::default().with(Duration::from_secs(60)).unwrap();
        let finding = delays(Delays::Ladder, &Known { found: None, hot_rungs }, &WallClock::default()).unwrap();
        assert_eq!(finding.seen, "on rungs, as broker.delays says; 8 more take the load of 1 hot ones");
    }
}
