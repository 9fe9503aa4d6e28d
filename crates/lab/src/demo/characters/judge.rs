//! Judges the updates of the characters by the upstream's record (pure).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roundelay_model::clock::{Time, short_duration};
use serde::Serialize;

use crate::demo::stage::Shown;

/// The tolerance for times, which are whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(5);
/// How late an update may start on a busy machine, unless the upstream is slow. An update that a refresh delays may be
/// later.
const BUSY: Duration = Duration::from_secs(3);
/// The status for a caller when no error is left.
pub const BANNED: u16 = 420;
/// The endpoints of a character.
pub const ENDPOINTS: [&str; 4] = ["assets", "contracts", "skills", "wallet"];

/// A request, as the upstream has recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub character: String,
    pub endpoint: String,
    /// The id of the update's job, and the attempt.
    pub job: (String, u32),
    /// The update: the epoch of its chain, and the tick.
    pub update: (i64, i64),
    /// The nominal start of the update.
    pub nominal: Time,
    /// When the request came.
    pub began: Time,
    /// When the request was answered, or the caller disconnected.
    pub ended: Option<Time>,
    /// The status of the answer; 0 when there was none.
    pub status: u16,
}

/// A refresh that a user asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refresh {
    pub character: String,
    /// When the user asked.
    pub at: Time,
    /// Whether an update ran then, or was due, by the ledger.
    pub running: bool,
    /// Whether the refresh was accepted.
    pub accepted: bool,
    /// When the rotation's next update was due, by the ledger at that moment; `None` while one ran.
    pub next: Option<Time>,
}

/// The input of the judge.
#[derive(Clone, Debug)]
pub struct Record {
    /// The shortest time from the end of an update to the start of the next.
    pub delay: Duration,
    /// The requests, by the upstream.
    pub calls: Vec<Call>,
    /// All characters, with the epochs of their rotations.
    pub rotations: BTreeMap<String, i64>,
    /// The refreshes, by the users who asked.
    pub asks: Vec<Refresh>,
    /// Whether the demo was long enough for refreshes: of characters at rest, and of others.
    pub asked_for: bool,
    /// When the upstream began to be slow, and until when that delayed updates.
    pub slow: Option<(Time, Time)>,
    /// How much of the demo the record covers.
    pub shown: Shown,
    /// When the demo ended.
    pub to: Time,
}

/// The rotations by the requests alone: for each character, the epoch with the most updates. A refresh by hand has one.
pub fn rotations(calls: &[Call]) -> BTreeMap<String, i64> {
    let mut updates = BTreeMap::<&str, BTreeMap<i64, BTreeSet<i64>>>::new();
    for Call { character, update: (epoch, tick), .. } in calls {
        updates.entry(character).or_default().entry(*epoch).or_default().insert(*tick);
    }
    let most = |epochs: BTreeMap<i64, BTreeSet<i64>>| epochs.into_iter().max_by_key(|(_, ticks)| ticks.len());
    let rotation = |(character, epochs): (&str, _)| Some((character.to_owned(), most(epochs)?.0));
    updates.into_iter().filter_map(rotation).collect()
}

/// The figures of a demo.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Characters that were updated.
    pub characters: usize,
    /// Updates by the rotation.
    pub updates: usize,
    /// Updates by hand.
    pub by_hand: usize,
    /// Refreshes that were refused.
    pub refused: usize,
    /// The shortest pause between two updates of a rotation.
    pub shortest_pause_ms: u64,
    /// The longest update, in the slow spell.
    pub longest_update_ms: u64,
    /// Requests.
    pub requests: usize,
    /// Requests that failed (a part of `requests`).
    pub errors: usize,
}

/// An update, with its requests.
struct Batch<'a> {
    update: (i64, i64),
    nominal: Time,
    began: Time,
    ended: Time,
    calls: Vec<&'a Call>,
}

/// The rules that were broken, in sentences, and the figures.
pub fn judge(record: &Record) -> (Vec<String>, Figures) {
    let mut said = Vec::new();
    let errors = record.calls.iter().filter(|call| call.status != 200).count();
    let mut figures =
        Figures { requests: record.calls.len(), errors, shortest_pause_ms: u64::MAX, ..Figures::default() };
    for (character, rotation) in &record.rotations {
        let batches = batches(record, character);
        if batches.is_empty() {
            said.push(format!("{character} was never updated."));
            continue;
        }
        figures.characters += 1;
        overlaps(character, &batches, &mut said);
        let (rotating, by_hand): (Vec<&Batch>, Vec<&Batch>) =
            batches.iter().partition(|batch| batch.update.0 == *rotation);
        figures.updates += rotating.len();
        figures.by_hand += by_hand.len();
        let length = |batch: &Batch| batch.ended.since(batch.began).as_millis() as u64;
        figures.longest_update_ms = batches.iter().map(length).max().unwrap_or_default().max(figures.longest_update_ms);
        pauses(record, character, &batches, &mut said, &mut figures);
        complete(record, character, &batches, &mut said);
        if record.shown != Shown::Alone {
            asked(record, character, &rotating, &by_hand, &mut said);
        }
    }
    asks(record, &mut said);
    figures.refused = record.asks.iter().filter(|ask| !ask.accepted).count();
    if figures.shortest_pause_ms == u64::MAX {
        figures.shortest_pause_ms = 0;
    }
    let banned = record.calls.iter().filter(|call| call.status == BANNED).count();
    if banned > 0 {
        said.push(format!("{banned} requests came when the error limit was used up."));
    }
    (said, figures)
}

/// The updates of a character, in order.
fn batches<'a>(record: &'a Record, character: &str) -> Vec<Batch<'a>> {
    let mut batches = BTreeMap::<(i64, i64), Batch>::new();
    for call in record.calls.iter().filter(|call| call.character == character) {
        let ended = call.ended.unwrap_or(record.to.max(call.began));
        let Call { update, nominal, began, .. } = *call;
        let batch = batches.entry(update).or_insert(Batch { update, nominal, began, ended, calls: Vec::new() });
        (batch.began, batch.ended) = (batch.began.min(began), batch.ended.max(ended));
        batch.calls.push(call);
    }
    let mut batches: Vec<Batch> = batches.into_values().collect();
    batches.sort_by_key(|batch| batch.began);
    batches
}

/// Rule: no two updates of a character run at the same time.
fn overlaps(character: &str, batches: &[Batch], said: &mut Vec<String>) {
    let mut until = Time::from_millis(0);
    for batch in batches {
        if batch.began + ROUNDING < until {
            let early = short_duration(until.since(batch.began));
            said.push(format!("An update of {character} began {early} before the one before it had ended."));
        }
        until = until.max(batch.ended);
    }
}

/// Rule: the time from the end of an update to the next start of its rotation is at least the delay.
fn pauses(record: &Record, character: &str, batches: &[Batch], said: &mut Vec<String>, figures: &mut Figures) {
    let mut ended = BTreeMap::<i64, Time>::new();
    for batch in batches {
        let Some(before) = ended.insert(batch.update.0, batch.ended) else { continue };
        let pause = batch.began.since(before);
        figures.shortest_pause_ms = figures.shortest_pause_ms.min(pause.as_millis() as u64);
        if pause + ROUNDING < record.delay {
            said.push(format!(
                "The next update of {character} began {} after the end of the last one; the delay is {}.",
                short_duration(pause),
                short_duration(record.delay)
            ));
        }
    }
}

/// Rule: an update asks all endpoints before another begins, and each answers once.
fn complete(record: &Record, character: &str, batches: &[Batch], said: &mut Vec<String>) {
    for (n, batch) in batches.iter().enumerate() {
        // An upstream without a ledger may have started, or dropped its oldest records, within the first update.
        let whole = n + 1 < batches.len() && (n > 0 || record.shown != Shown::Alone);
        for endpoint in ENDPOINTS {
            let of = || batch.calls.iter().filter(|call| call.endpoint == endpoint);
            if of().count() == 0 && whole {
                said.push(format!("{endpoint} of {character} was left out of an update."));
            }
            let answered = of().filter(|call| call.status == 200).count();
            if answered > 1 {
                said.push(format!("{endpoint} of {character} was fetched {answered} times in one update."));
            }
        }
    }
}

/// Rule: a refresh is one update, and does not shift the rotation.
fn asked(record: &Record, character: &str, rotating: &[&Batch], by_hand: &[&Batch], said: &mut Vec<String>) {
    let asks = || record.asks.iter().filter(|ask| ask.character == character);
    let accepted = asks().filter(|ask| ask.accepted).count();
    let runs: BTreeSet<(i64, i64)> = by_hand.iter().map(|batch| batch.update).collect();
    if runs.len() != accepted {
        said.push(format!("{character} was refreshed by hand {} times and asked for {accepted} times.", runs.len()));
    }
    for ask in asks() {
        let Some(due) = ask.next else { continue };
        let next = rotating.iter().find(|batch| batch.nominal > ask.at);
        let nominal = next.map_or(due, |next| next.nominal);
        let moved = if nominal > due { nominal.since(due) } else { due.since(nominal) };
        if moved > ROUNDING {
            said.push(format!("A refresh of {character} moved its next update by {}.", short_duration(moved)));
        }
        // Independent of the scheduler's report: when did the next update begin?
        let late = next.map_or(record.to, |next| next.began).since(due);
        let slow = record.slow.is_some_and(|(from, to)| due <= to && from <= due + BUSY);
        if late > BUSY && !slow {
            let late = short_duration(late);
            said.push(match next {
                Some(_) => format!("After a refresh of {character} its next update began {late} late."),
                None => {
                    format!("After a refresh of {character} its next update had not begun {late} after it was due.")
                }
            });
        }
    }
}

/// Rule: users asked for refreshes, those of characters at rest were accepted, and some came while an update ran.
fn asks(record: &Record, said: &mut Vec<String>) {
    if !record.asked_for {
        return;
    }
    let (running, at_rest): (Vec<&Refresh>, Vec<&Refresh>) = record.asks.iter().partition(|ask| ask.running);
    if !at_rest.iter().any(|ask| ask.accepted) {
        said.push(format!("{} refreshes of characters at rest were asked for, and none was accepted.", at_rest.len()));
    }
    if running.is_empty() {
        said.push("No refresh was asked for while an update of its character was running.".into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHRIBBA: &str = "196379789";

    fn at(millis: u64) -> Time {
        Time::from_millis(1_800_000_000_000) + Duration::from_millis(millis)
    }

    fn update(update: (i64, i64), start: u64, length: u64) -> Vec<Call> {
        let call = |(n, endpoint): (u64, &&str)| Call {
            character: CHRIBBA.into(),
            endpoint: (*endpoint).into(),
            job: (format!("{update:?}/{endpoint}"), 1),
            update,
            nominal: at(start),
            began: at(start + 10 + n),
            ended: Some(at(start + length)),
            status: 200,
        };
        (0..).zip(&ENDPOINTS).map(call).collect()
    }

    /// Updates of 500 ms that follow each other after 3 s, and one by hand in a pause.
    fn perfect() -> Record {
        let rotation = (0..5).flat_map(|n| update((1, n + 1), n as u64 * 3_500, 500));
        let ask =
            Refresh { character: CHRIBBA.into(), at: at(4_200), running: false, accepted: true, next: Some(at(7_000)) };
        let refused = Refresh { at: at(7_100), running: true, accepted: false, next: None, ..ask.clone() };
        Record {
            delay: Duration::from_secs(3),
            calls: rotation.chain(update((2, 1), 4_250, 500)).collect(),
            rotations: [(CHRIBBA.to_owned(), 1)].into(),
            asks: vec![ask, refused],
            asked_for: true,
            slow: None,
            shown: Shown::Whole,
            to: at(15_000),
        }
    }

    fn violations(change: impl FnOnce(&mut Record)) -> Vec<String> {
        let mut record = perfect();
        change(&mut record);
        judge(&record).0
    }

    fn shift(record: &mut Record, update: (i64, i64), by: impl Fn(Time) -> Time) {
        for call in record.calls.iter_mut().filter(|call| call.update == update) {
            (call.nominal, call.began) = (by(call.nominal), by(call.began));
            call.ended = call.ended.map(&by);
        }
    }

    #[test]
    fn a_rotation_with_a_refresh_in_a_pause_breaks_nothing() {
        let (said, figures) = judge(&perfect());
        assert_eq!(said, [""; 0]);
        let expected = Figures {
            characters: 1,
            updates: 5,
            by_hand: 1,
            refused: 1,
            shortest_pause_ms: 3_010,
            longest_update_ms: 490,
            requests: 24,
            errors: 0,
        };
        assert_eq!(figures, expected);
    }

    #[test]
    fn two_updates_at_a_time() {
        let doubled = violations(|record| {
            record.calls.extend(update((3, 1), 7_100, 500));
            record.asks[1].accepted = true;
        });
        assert_eq!(doubled, ["An update of 196379789 began 390ms before the one before it had ended."]);
        let open = violations(|record| {
            record.calls.iter_mut().filter(|call| call.update == (1, 4)).for_each(|call| call.ended = None);
        });
        assert!(open[0].contains("before the one before it had ended"), "{open:?}");
    }

    #[test]
    fn a_pause_that_is_too_short() {
        let found = violations(|record| shift(record, (1, 5), |time| time - Duration::from_millis(40)));
        assert_eq!(
            found,
            ["The next update of 196379789 began 2970ms after the end of the last one; the delay is 3s."]
        );
        let long = violations(|record| shift(record, (1, 5), |time| time + Duration::from_millis(500)));
        assert_eq!(long, [""; 0], "a pause may be longer: the queue was full");
    }

    #[test]
    fn an_endpoint_that_is_left_out_or_fetched_twice() {
        let out = violations(|record| record.calls.retain(|call| call.update != (1, 2) || call.endpoint != "wallet"));
        assert_eq!(out, ["wallet of 196379789 was left out of an update."]);
        let last = violations(|record| record.calls.retain(|call| call.update != (1, 5) || call.endpoint != "wallet"));
        assert_eq!(last, [""; 0], "the last update may still go on");
        let twice = violations(|record| record.calls.push(record.calls[0].clone()));
        assert_eq!(twice, ["assets of 196379789 was fetched 2 times in one update."]);
        let again = violations(|record| {
            let failed = Call { status: 502, ..record.calls[0].clone() };
            record.calls.push(failed);
        });
        assert_eq!(again, [""; 0], "one that failed is tried again");
    }

    #[test]
    fn a_refresh_that_never_comes_or_comes_twice_or_goes_on() {
        let never = violations(|record| record.calls.retain(|call| call.update.0 == 1));
        assert_eq!(never, ["196379789 was refreshed by hand 0 times and asked for 1 times."]);
        let on = violations(|record| record.calls.extend(update((2, 2), 11_100, 500)));
        assert!(on.contains(&"196379789 was refreshed by hand 2 times and asked for 1 times.".into()), "{on:?}");
    }

    #[test]
    fn a_refresh_that_moves_the_rotation() {
        // As if the rotation were counted from the end of the refresh.
        let found = violations(|record| {
            for tick in 3..=5 {
                shift(record, (1, tick), |time| time + Duration::from_millis(750));
            }
        });
        assert_eq!(found, ["A refresh of 196379789 moved its next update by 750ms."]);
    }

    #[test]
    fn a_refresh_that_holds_the_rotation_up() {
        // The scheduler reports that it moved nothing.
        let late = |by: u64, slow: Option<(u64, u64)>| {
            violations(|record| {
                record.slow = slow.map(|(from, to)| (at(from), at(to)));
                for tick in 3..=5 {
                    shift(record, (1, tick), |time| time + Duration::from_millis(by));
                }
                record.calls.iter_mut().filter(|call| call.update == (1, 3)).for_each(|call| call.nominal = at(7_000));
            })
        };
        assert_eq!(late(2_980, None), [""; 0], "a machine may be busy");
        assert_eq!(late(3_000, None), ["After a refresh of 196379789 its next update began 3010ms late."]);
        assert_eq!(late(3_000, Some((8_000, 12_000))), [""; 0], "the upstream was slow");
        assert_eq!(
            late(3_000, Some((1_000, 6_000))),
            ["After a refresh of 196379789 its next update began 3010ms late."]
        );
        let never = |to: u64| {
            violations(|record| {
                record.calls.retain(|call| call.update.1 < 3);
                record.to = at(to);
            })
        };
        assert_eq!(never(10_000), [""; 0], "it may still begin");
        let said = "After a refresh of 196379789 its next update had not begun 4s after it was due.";
        assert_eq!(never(11_000), [said]);
    }

    #[test]
    fn refreshes_that_are_never_accepted_or_never_asked_for() {
        let asks = |change: &dyn Fn(&mut Record)| violations(change);
        let refused = |record: &mut Record| {
            record.calls.retain(|call| call.update.0 == 1);
            (record.asks[0].accepted, record.asks[0].next) = (false, None);
        };
        assert_eq!(asks(&refused), ["1 refreshes of characters at rest were asked for, and none was accepted."]);
        let idle = |record: &mut Record| record.asks.truncate(1);
        assert_eq!(asks(&idle), ["No refresh was asked for while an update of its character was running."]);
        let short = |record: &mut Record| {
            refused(record);
            record.asks.clear();
            record.asked_for = false;
        };
        assert_eq!(asks(&short), [""; 0], "the demo was ended before");
    }

    /// Such an upstream knows neither the users' requests nor the time before, and takes the rotations from its own
    /// record.
    #[test]
    fn an_upstream_that_is_alone_judges_what_it_has_seen() {
        let alone = |change: &dyn Fn(&mut Record)| {
            violations(|record| {
                record.calls.retain(|call| call.update != (1, 1) || call.endpoint == "wallet");
                (record.asked_for, record.shown) = (false, Shown::Alone);
                record.asks.clear();
                record.rotations = rotations(&record.calls);
                assert_eq!(record.rotations, [(CHRIBBA.to_owned(), 1)].into());
                change(record);
            })
        };
        assert_eq!(alone(&|_| {}), [""; 0]);
        assert_eq!(
            alone(&|record| record.delay = Duration::from_millis(3_100)),
            ["The next update of 196379789 began 3010ms after the end of the last one; the delay is 3100ms."; 4]
        );
        // The ledger was replaced: both rotations are judged.
        assert_eq!(
            alone(&|record| record.calls.extend([update((3, 1), 18_000, 500), update((3, 2), 19_000, 500)].concat())),
            ["The next update of 196379789 began 510ms after the end of the last one; the delay is 3s."]
        );
    }

    #[test]
    fn an_error_limit_that_is_used_up_and_a_character_that_is_forgotten() {
        let banned = violations(|record| {
            let call = Call { status: BANNED, ..record.calls[0].clone() };
            record.calls.push(call);
        });
        assert_eq!(banned, ["1 requests came when the error limit was used up."]);
        let forgotten = violations(|record| record.rotations.extend([("7".to_owned(), 9)]));
        assert_eq!(forgotten, ["7 was never updated."]);
    }
}
