//! Clocks: which of them differ, and whether that matters.
//!
//! Due times and leases follow the ledger's steady time, which no change of a clock moves. The wall clock, which is
//! PostgreSQL's, or with SQLite this machine's, is for cron expressions and `at`. Rungs delay by the broker's clock,
//! for which only a step counts. Logs, certificates and times from an upstream follow this machine's clock.

use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::wall_clock::{WallClock, set_words};

use super::ledger::LedgerFacts;
use super::machine::Synchronised;
use crate::inspect::doctor::facts::Facts;
use crate::inspect::doctor::finding::{Area, Finding, span};

/// Two synchronised clocks differ by less, in milliseconds.
const APART: i64 = 2_000;
/// With this difference, in milliseconds, a comparison of times has no meaning.
const FAR_APART: i64 = 60_000;
/// A step of the clock within this time is a warning.
const LATELY: Duration = Duration::from_secs(24 * 3_600);
/// The management API gives whole seconds, and reads its clock once in a second; in milliseconds.
const COARSE: i64 = 2_000;

/// By how much `other` is ahead of this machine's clock at least, in milliseconds: negative when it is behind, zero
/// when both may be the same. `other` was read between `before` and `after`, with this `resolution` in milliseconds.
fn ahead(before: Time, other: Time, after: Time, resolution: i64) -> i64 {
    let (before, other, after) = (before.as_millis(), other.as_millis(), after.as_millis());
    if other > after {
        other - after
    } else if other + resolution < before {
        other + resolution - before
    } else {
        0
    }
}

fn words(ahead: i64) -> String {
    match ahead {
        0 => "the same, as far as can be told".into(),
        1.. => format!("ahead of this machine's by {}", span(ahead)),
        _ => format!("behind this machine's by {}", span(ahead)),
    }
}

/// Whether the wall clock was set recently, by how much, and when.
fn of_sets(now: Time, wall_clock: &WallClock) -> Finding {
    let what = "settings of the wall clock";
    let Some((since, by, ahead)) = wall_clock.sets().next_back() else {
        return Finding::good(Area::Clock, what, "it has not been set since the ledger is there");
    };
    let often = match wall_clock.sets().count() {
        1 => "once".into(),
        count => format!("{count} times"),
    };
    let stands = match ahead {
        0 => "shows the ledger's time again".into(),
        1.. => format!("is {} ahead of the ledger's steady time", span(ahead)),
        _ => format!("is {} behind the ledger's steady time", span(-ahead)),
    };
    let words = set_words(by);
    let seen =
        format!("{words} at {}, has been set {often} as far as is remembered, and {stands}", wall_clock.wall(since));
    match now.since(since) < LATELY && by.abs() >= APART {
        true => Finding::warning(
            Area::Clock,
            what,
            seen,
            "intervals, backoffs, leases and throttles go on as if it had not been; occurrences of cron expressions and `at` \
             that it was set across have misfired, and those that come twice run once",
            "see that the clock is right now, and keep it so: `timedatectl set-ntp true`, or chrony; nothing else is to be \
             done",
        ),
        false => Finding::good(Area::Clock, what, seen),
    }
}

/// What is wrong with clocks.
pub(super) fn diagnose(facts: &Facts) -> Vec<Finding> {
    const SET: &str = "set this machine's clock and keep it right: `timedatectl set-ntp true`, or chrony";
    let mut all = Vec::new();
    let what = "this machine's clock";
    all.push(match facts.machine.as_ref().map(|machine| machine.synchronised) {
        Ok(Synchronised::Yes) => Finding::good(Area::Clock, what, "kept right by systemd-timesyncd"),
        Ok(Synchronised::NotYet) => Finding::warning(
            Area::Clock,
            what,
            "systemd-timesyncd runs and has not set it",
            "it may drift, and jump when it is set",
            "`timedatectl timesync-status` tells why; see that its servers can be reached",
        ),
        Ok(Synchronised::Unknown) | Err(_) => Finding::unknown(
            Area::Clock,
            what,
            "whether anybody keeps it right is not to be seen here",
            "`timedatectl`, `chronyc tracking` or the machine's host tells it",
        ),
    });
    let ledger = match &facts.ledger {
        LedgerFacts::Server(Ok(server)) => {
            let reading = &server.clock;
            let apart = ahead(reading.before, reading.told, reading.after, 1);
            let (what, seen) = ("PostgreSQL's clock", words(apart));
            let follows = "cron expressions and `at` go by PostgreSQL's clock; but logs and what an upstream says of \
                           times go by this machine's";
            all.push(match apart.abs() {
                FAR_APART.. => Finding::bad(Area::Clock, what, seen, follows, SET),
                APART.. => Finding::warning(Area::Clock, what, seen, follows, SET),
                _ => Finding::good(Area::Clock, what, seen),
            });
            let highest = server.ledger.as_ref().and_then(|ledger| ledger.highest);
            // PostgreSQL's clock as the server read it, independent of this machine.
            Some((reading.told, highest, "PostgreSQL's clock"))
        }
        LedgerFacts::File(file) => {
            let seen = file.seen.as_ref().and_then(|seen| seen.as_ref().ok());
            Some((facts.now, seen.and_then(|seen| seen.as_ref().ok()?.highest), "this machine's clock"))
        }
        LedgerFacts::Server(Err(_)) | LedgerFacts::Memory => None,
    };
    if let Some((now, Some(highest), whose)) = ledger {
        // The ledger's numbers begin at the ledger's own time, if that is known.
        let now = facts.chains.as_ref().map_or(now, |chains| chains.now);
        // A ledger that was just opened has given out a few numbers above its opening time.
        let back = highest / 1_000 - now.as_millis();
        let what = "time of the ledger";
        all.push(match back {
            APART.. => Finding::warning(
                Area::Clock,
                what,
                format!("{whose} is {} behind the time at which the ledger was last opened", span(back)),
                "it was set back, or was wrong then: that holds nothing up, but cron expressions and `at` follow it",
                format!("set the clock right; after a restore, read on epochs in docs/operations.md ({SET})"),
            ),
            _ => Finding::good(Area::Clock, what, "it has never been opened later than now"),
        });
    }
    if let Ok(chains) = &facts.chains {
        all.push(of_sets(chains.now, &chains.wall_clock));
    }
    let told = facts.broker.as_ref().map(|broker| broker.told.as_ref());
    if let Some(Some(Ok(Ok(told)))) = told
        && let Some((before, date, after)) = told.clock
    {
        let apart = ahead(before, date, after, COARSE);
        let (what, seen) = ("the broker's clock", words(apart));
        all.push(match apart.abs() {
            APART.. => Finding::warning(
                Area::Clock,
                what,
                seen,
                "that is no harm by itself; but if its clock is set right in one step, what sleeps on rungs wakes so much \
                 earlier or later, and catch-up has to mend it",
                "keep the clocks of the broker's nodes right, and let them be slewed: chrony without makestep",
            ),
            _ => Finding::good(Area::Clock, what, seen),
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::tests::{about, have_fixes};
    use super::*;
    use crate::inspect::doctor::finding::Grade;
    use roundelay_ledger::sqlite::examine::SeenFile;

    const fn at(millis: i64) -> Time {
        Time::from_millis(millis)
    }

    #[test]
    fn a_table_of_readings() {
        let table = [
            ((1_000, 1_005, 1_010), 1, 0),
            ((1_000, 1_010, 1_010), 1, 0),
            ((1_000, 4_010, 1_010), 1, 3_000),
            ((5_000, 1_000, 5_010), 1, -3_999),
            // A date of whole seconds is up to two seconds old.
            ((5_900, 4_000, 5_950), COARSE, 0),
            ((5_900, 3_000, 5_950), COARSE, -900),
            ((5_900, 7_000, 5_950), COARSE, 1_050),
        ];
        for ((before, told, after), resolution, apart) in table {
            assert_eq!(ahead(at(before), at(told), at(after), resolution), apart, "{before} {told} {after}");
        }
        assert_eq!(words(-3_999), "behind this machine's by 3s 999ms");
    }

    #[test]
    fn a_clock_that_has_gone_back_is_found_by_the_numbers_of_the_ledger() {
        let mut facts = Facts::nothing();
        let now = facts.now.as_millis();
        let mut with = |highest| {
            let seen = SeenFile { version: 1, known: 1, is_ledger: true, highest };
            facts.ledger = LedgerFacts::file_of(seen);
            diagnose(&facts)
        };
        assert_eq!(about(&with(Some(now * 1_000)), "time of the ledger").result, Grade::Good);
        let findings = with(Some((now + 3_600_000) * 1_000));
        let finding = about(&findings, "time of the ledger");
        assert_eq!(finding.result, Grade::Warning);
        assert!(finding.seen.contains("1h behind"), "{finding:?}");
        have_fixes(&findings);
        assert!(with(None).iter().all(|finding| finding.what != "time of the ledger"));
    }

    #[test]
    fn a_table_of_settings_of_the_wall_clock() {
        let day = 24 * 3_600_000;
        let set =
            |sets: &[(i64, i64)]| sets.iter().fold(WallClock::default(), |all, (at_, ahead)| all.set(at(*at_), *ahead));
        let table = [
            (WallClock::default(), Grade::Good, "has not been set"),
            (set(&[(5_000, -7_200_000)]), Grade::Warning, "set back by 2h"),
            (set(&[(5_000, -7_200_000)]), Grade::Warning, "2h behind the ledger's steady time"),
            (set(&[(5_000, 7_200_000), (6_000, 0)]), Grade::Warning, "set 2 times as far as is remembered, and shows"),
            (set(&[(5_000, 1_500)]), Grade::Good, "forward by 1s 500ms"),
        ];
        for (wall_clock, grade, words) in table {
            let finding = of_sets(at(10_000), &wall_clock);
            assert_eq!(finding.result, grade, "{words}");
            assert!(finding.seen.contains(words), "{words}: {}", finding.seen);
            have_fixes(&[finding]);
            assert_eq!(of_sets(at(10_000 + day), &wall_clock).result, Grade::Good, "{words}, long ago");
        }
    }
}
