//! Judges the polls by the record of mailboxes, inboxes and nodes (pure).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roundelay_model::clock::{Time, short_duration};
use serde::Serialize;

/// The tolerance for times, which are whole milliseconds and come from two programs.
const ROUNDING: Duration = Duration::from_millis(5);
/// How long the first call of a run takes to reach the gateway.
const WAY: Duration = Duration::from_millis(250);
/// Of this many starts of a task, one may be closer to another by the gateway's own clock, or be missing: on a busy
/// machine a call takes longer, or its run is over before the call arrives.
const BUSY: usize = 10;
/// In at least this many runs, one of a mailbox that is always full must have been continued by the next.
const ENOUGH: usize = 3;
/// How long a call may take on a busy machine. A longer one is a fault of the time box.
const ON_ITS_WAY: Duration = Duration::from_secs(2);
/// By how many intervals a task may be late: it may wait in a full queue for a while. A task that starves stays late.
const STARVED: u32 = 4;
const STARVED_SLACK: Duration = Duration::from_secs(6);

/// A task of the rosters, with its times as the demo compresses them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The path of its calls: `inbox/@shop`.
    pub path: String,
    /// The channel of the task.
    pub owner: String,
    /// The task's own interval.
    pub interval: Duration,
    /// By how much two starts may lie closer together than the interval.
    pub tolerance: Duration,
    /// Whether the task always has more messages than a run can fetch.
    pub full: bool,
}

impl Task {
    /// Half of the task's own interval.
    fn time_box(&self) -> Duration {
        self.interval / 2
    }

    /// The shortest time from one start to the next.
    fn least(&self) -> Duration {
        self.interval.saturating_sub(self.tolerance)
    }
}

/// The start of a run: its first call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The path of the task.
    pub path: String,
    /// The epoch of the chain, and the tick.
    pub run: (i64, i64),
    /// The attempt at that tick.
    pub attempt: u32,
    /// The nominal start of the run.
    pub nominal: Time,
    /// The deadline of the run.
    pub deadline: Time,
    /// When the call came.
    pub began: Time,
}

/// A message that was fetched, or pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The path of the task.
    pub path: String,
    /// The run: the epoch of the chain, and the tick.
    pub run: (i64, i64),
    /// The deadline of the run.
    pub deadline: Time,
    /// The number of the message, from 1.
    pub number: u64,
    /// When the run asked for the message.
    pub began: Time,
}

/// The input of the judge.
#[derive(Clone, Debug)]
pub struct Record {
    /// All tasks of the rosters.
    pub tasks: Vec<Task>,
    /// The sessions, in the order in which they came.
    pub sessions: Vec<Session>,
    /// The messages that existed, in the order in which they were fetched.
    pub messages: Vec<Message>,
    /// The channel that was deleted, and when the deletion was done.
    pub deleted: Option<(String, Time)>,
    /// When all tasks had begun, or when the record of sessions begins, if that is later.
    pub from: Time,
    /// Whether messages before the first one of the record are missing.
    pub cut: bool,
    /// When the engine was told to stop.
    pub to: Time,
}

/// The figures of a demo.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Tasks that were polled.
    pub tasks: usize,
    /// The runs of these tasks.
    pub runs: usize,
    /// Messages that were fetched or pushed.
    pub messages: usize,
    /// Runs that used up their quota, and were continued by the next.
    pub carried_on: usize,
    /// The shortest time between two starts of a task, in per cent of its interval.
    pub closest_percent: u64,
}

/// The rules that were broken, in sentences, and the figures.
pub fn judge(record: &Record) -> (Vec<String>, Figures) {
    let mut said = Vec::new();
    let mut figures = Figures { messages: record.messages.len(), closest_percent: u64::MAX, ..Figures::default() };
    for task in &record.tasks {
        let mut runs = BTreeSet::new();
        // A retried run counts once.
        let calls: Vec<&Session> = record.sessions.iter().filter(|session| session.path == task.path).collect();
        let sessions: Vec<&Session> = calls.iter().copied().filter(|session| runs.insert(session.run)).collect();
        let messages: Vec<&Message> = record.messages.iter().filter(|message| message.path == task.path).collect();
        figures.tasks += usize::from(!sessions.is_empty());
        figures.runs += sessions.len();
        gaps(task, &sessions, &mut said, &mut figures);
        missed(task, calls, sessions.len(), &mut said);
        boxes(task, &sessions, &messages, &mut said);
        let carried_on = carried(task, &messages, record.cut, &mut said);
        figures.carried_on += carried_on;
        if task.full && sessions.len() >= ENOUGH && carried_on == 0 {
            said.push(format!(
                "{} has more messages than a run can fetch, and none of its {} runs was carried on by the next.",
                task.path,
                sessions.len()
            ));
        }
        starved(record, task, &sessions, &mut said);
    }
    if figures.closest_percent == u64::MAX {
        figures.closest_percent = 0;
    }
    deleted(record, &mut said);
    (said, figures)
}

/// Rule: two starts of a task are never closer than its interval minus the tolerance.
fn gaps(task: &Task, sessions: &[&Session], said: &mut Vec<String>, figures: &mut Figures) {
    // The deadline of a run tells when it began. The time of the call on its way is not the scheduler's fault.
    let starts: Vec<Time> = sessions.iter().map(|session| session.deadline - task.time_box()).collect();
    let is_close = |gap: &Duration| *gap + ROUNDING < task.least();
    let said_before = said.len();
    for gap in distances(starts.clone()) {
        let percent = (gap.as_secs_f64() / task.interval.as_secs_f64() * 100.0) as u64;
        figures.closest_percent = figures.closest_percent.min(percent);
        if is_close(&gap) {
            said.push(format!(
                "{} started {} after its last start; with its interval of {} and a tolerance of {} that is too soon.",
                task.path,
                short_duration(gap),
                short_duration(task.interval),
                short_duration(task.tolerance)
            ));
        }
    }
    // By the gateway's own clock, the run had begun by then, and at most [`WAY`] before the gateway saw its call.
    let seen = starts.iter().zip(sessions).map(|(start, session)| (*start).clamp(session.began - WAY, session.began));
    let close: Vec<Duration> = distances(seen.collect()).into_iter().filter(is_close).collect();
    if said.len() == said_before && is_often(close.len(), sessions.len()) {
        said.push(format!(
            "{} started {} after its last start by the gateway's own clock, and too soon {} times, though not by what its \
             runs say of their starts.",
            task.path,
            short_duration(close.iter().min().copied().unwrap_or_default()),
            close.len()
        ));
    }
}

/// The times between successive times.
fn distances(mut times: Vec<Time>) -> Vec<Duration> {
    times.sort();
    times.windows(2).map(|pair| pair[1].since(pair[0])).collect()
}

/// Whether `count` of `of` are more than a busy machine explains.
fn is_often(count: usize, of: usize) -> bool {
    count > 1 && count * BUSY > of
}

/// Rule: every possible start happens. A tick without a run must have come too soon after the last start.
fn missed(task: &Task, mut calls: Vec<&Session>, runs: usize, said: &mut Vec<String>) {
    // A retry is a start, too.
    calls.sort_by_key(|call| (call.nominal, call.began));
    let (mut missed, mut occurrences) = (Vec::new(), runs);
    for pair in calls.windows(2) {
        let mut at = pair[0].nominal + task.interval;
        while at + ROUNDING < pair[1].nominal {
            occurrences += 1;
            if at >= pair[0].began + task.least() + ROUNDING {
                missed.push(at.since(pair[0].began));
            }
            at = at + task.interval;
        }
    }
    if is_often(missed.len(), occurrences) {
        said.push(format!(
            "{} was not polled at {} of its {occurrences} times, at one of them {} after its last start; with its interval \
             of {} and a tolerance of {} it may start then.",
            task.path,
            missed.len(),
            short_duration(missed.iter().min().copied().unwrap_or_default()),
            short_duration(task.interval),
            short_duration(task.tolerance)
        ));
    }
}

/// Rule: every run has half of the task's own interval, and keeps to it.
fn boxes(task: &Task, sessions: &[&Session], messages: &[&Message], said: &mut Vec<String>) {
    for session in sessions {
        let left = session.deadline.since(session.began);
        if left > task.time_box() + ROUNDING || left + ON_ITS_WAY < task.time_box() {
            said.push(format!(
                "{} had {} for a run; half of its interval is {}.",
                task.path,
                short_duration(left),
                short_duration(task.time_box())
            ));
        }
    }
    for message in messages.iter().filter(|message| message.began > message.deadline + ON_ITS_WAY) {
        said.push(format!(
            "{} went on with message {} when its time box was up since {}.",
            task.path,
            message.number,
            short_duration(message.began.since(message.deadline))
        ));
    }
}

/// Rule: no message comes twice, and none is left out, wherever a run has stopped. Returns how many runs were
/// continued.
fn carried(task: &Task, messages: &[&Message], cut: bool, said: &mut Vec<String>) -> usize {
    let (mut last, mut carried_on): (Option<&Message>, _) = (None, 0);
    for message in messages {
        let first = if cut { message.number } else { 1 };
        let expected = last.map_or(first, |last| last.number + 1);
        if message.number < expected {
            said.push(format!("{} fetched message {} twice.", task.path, message.number));
            continue;
        }
        if message.number > expected {
            said.push(format!("{} skipped message {expected}.", task.path));
        }
        // If there was more to fetch when the run before had to stop, that run stopped shortly before its deadline.
        if let Some(last) = last.filter(|last| last.run != message.run) {
            let quota = task.time_box();
            carried_on += usize::from(last.deadline.since(last.began) < quota / 4);
        }
        last = Some(message);
    }
    carried_on
}

fn starved(record: &Record, task: &Task, sessions: &[&Session], said: &mut Vec<String>) {
    let gone = record.deleted.as_ref().filter(|(owner, _)| *owner == task.owner).map(|(_, at)| *at);
    let end = gone.unwrap_or(record.to);
    let mut times: Vec<Time> = sessions.iter().map(|session| session.began).filter(|at| *at < end).collect();
    times.sort();
    let times: Vec<Time> = std::iter::once(record.from).chain(times).chain([end]).collect();
    let longest = times.windows(2).map(|pair| pair[1].since(pair[0])).max().unwrap_or_default();
    if longest > task.interval * STARVED + STARVED_SLACK {
        said.push(format!(
            "{} was not polled for {}; its interval is {}.",
            task.path,
            short_duration(longest),
            short_duration(task.interval)
        ));
    }
}

/// Rule: no run begins for a channel that is deleted.
fn deleted(record: &Record, said: &mut Vec<String>) {
    let Some((owner, at)) = &record.deleted else { return };
    let mut late: BTreeMap<&str, usize> = BTreeMap::new();
    for task in record.tasks.iter().filter(|task| task.owner == *owner) {
        let after =
            |session: &&Session| session.path == task.path && session.deadline - task.time_box() > *at + ROUNDING;
        *late.entry(&task.path).or_default() += record.sessions.iter().filter(after).count();
    }
    for (path, count) in late.into_iter().filter(|(_, count)| *count > 0) {
        said.push(format!("{path} was called {count} times after its channel {owner} had been deleted."));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_millis(1_800_000_000_000) + Duration::from_millis(millis)
    }

    fn millis(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    const MAILBOX: &str = "pop3/post@shop.example";

    /// A task of 4 s, whose runs take their whole time box to fetch ten messages, and one of 2 s.
    fn perfect() -> Record {
        let task = |path: &str, owner: &str, interval, tolerance| Task {
            path: path.into(),
            owner: owner.into(),
            interval: millis(interval),
            tolerance: millis(tolerance),
            full: path == MAILBOX,
        };
        let tasks = vec![task(MAILBOX, "shop-1", 4_000, 400), task("inbox/@club", "club-2", 2_000, 200)];
        let (mut sessions, mut messages) = (Vec::new(), Vec::new());
        for (epoch, task) in (1..).zip(&tasks) {
            let interval = task.interval.as_millis() as u64;
            for tick in 0..20_000 / interval {
                let start = at(tick * interval);
                let (run, deadline) = ((epoch, tick as i64 + 1), start + task.time_box());
                let (path, began) = (task.path.clone(), start + millis(10));
                sessions.push(Session { path, run, attempt: 1, nominal: start, deadline, began });
                for n in 0..10 {
                    let (number, began) = (tick * 10 + n + 1, start + millis(150 + n * interval / 25));
                    messages.push(Message { path: task.path.clone(), run, deadline, number, began });
                }
            }
        }
        Record { tasks, sessions, messages, deleted: None, from: at(0), cut: false, to: at(20_000) }
    }

    fn violations(change: impl FnOnce(&mut Record)) -> Vec<String> {
        let mut record = perfect();
        change(&mut record);
        judge(&record).0
    }

    #[test]
    fn tasks_that_are_polled_as_they_should_break_nothing() {
        let (said, figures) = judge(&perfect());
        assert_eq!(said, [""; 0]);
        let expected = Figures { tasks: 2, runs: 15, messages: 150, carried_on: 13, closest_percent: 100 };
        assert_eq!(figures, expected);
    }

    #[test]
    fn a_start_within_the_tolerance_and_one_that_comes_too_soon() {
        for (early, said) in [
            (400, ""),
            (
                410,
                "pop3/post@shop.example started 3590ms after its last start; with its interval of 4s and a tolerance of \
                 400ms that is too soon.",
            ),
        ] {
            // The third start; the next one is late then.
            let found = violations(|record| {
                for session in record.sessions.iter_mut().filter(|session| session.run == (1, 3)) {
                    session.deadline = session.deadline - millis(early);
                    session.began = session.began - millis(early);
                }
            });
            assert_eq!(found.join(""), said);
        }
    }

    #[test]
    fn a_start_that_was_long_on_its_way_is_no_early_one() {
        let found = violations(|record| record.sessions[1].began = record.sessions[1].began + millis(1_500));
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn starts_that_are_too_close_by_the_gateways_own_clock() {
        for (late, said) in [
            (400, ""),
            (
                800,
                "inbox/@club started 1440ms after its last start by the gateway's own clock, and too soon 4 times, though \
                 not by what its runs say of their starts.",
            ),
        ] {
            // Every second run of the task, of ten.
            let found = violations(|record| {
                let even = |session: &&mut Session| session.run.0 == 2 && session.run.1 % 2 == 0;
                for session in record.sessions.iter_mut().filter(even) {
                    session.began = session.began + millis(late);
                }
            });
            assert_eq!(found.join(""), said, "{late}");
        }
    }

    /// The inbox has ten starts, 2 s from each other, and a tolerance of 200 ms.
    #[test]
    fn a_start_that_may_happen_and_does_not() {
        let without = |ticks: &'static [i64], late: u64| {
            violations(|record| {
                record.sessions.retain(|session| session.run.0 == 1 || !ticks.contains(&session.run.1));
                for session in record.sessions.iter_mut().filter(|session| session.run.0 == 2) {
                    session.began = session.began + millis(late);
                    session.deadline = session.deadline + millis(late);
                }
            })
        };
        let said = |count: usize, after: u64| {
            format!(
                "inbox/@club was not polled at {count} of its 10 times, at one of them {after}ms after its last start; \
                 with its interval of 2s and a tolerance of 200ms it may start then."
            )
        };
        assert_eq!(without(&[3], 0), [""; 0], "one may be lost on a busy machine");
        assert_eq!(without(&[3, 6], 0), [said(2, 1_990)]);
        assert_eq!(without(&[3, 4], 0), [said(2, 1_990)]);
        assert_eq!(without(&[3, 6], 180), [said(2, 1_810)]);
        assert_eq!(without(&[3, 6], 200), [""; 0], "the start before was late");
        // A retried run has started again.
        let tried_again = violations(|record| {
            record.sessions.retain(|session| session.run.0 == 1 || ![3, 6].contains(&session.run.1));
            let again = |session: &&Session| session.run.0 == 2 && [2, 5].contains(&session.run.1);
            let again: Vec<Session> = record.sessions.iter().filter(again).cloned().collect();
            let later = |session: Session| Session { attempt: 2, began: session.began + millis(1_200), ..session };
            record.sessions.extend(again.into_iter().map(later));
        });
        assert_eq!(tried_again, [""; 0]);
    }

    #[test]
    fn a_full_mailbox_that_is_never_carried_on() {
        let quick = |runs: i64| {
            violations(move |record| {
                record.sessions.retain(|session| session.run.0 == 2 || session.run.1 <= runs);
                record.messages.retain(|message| message.path != MAILBOX || message.run.1 <= runs);
                for message in record.messages.iter_mut().filter(|message| message.path == MAILBOX) {
                    message.began = message.deadline - millis(1_500);
                }
            })
        };
        let said = "pop3/post@shop.example has more messages than a run can fetch, and none of its 3 runs was carried on \
                    by the next.";
        assert_eq!(quick(3), [said]);
        assert_eq!(quick(2), [""; 0], "so few say nothing");
    }

    /// The record of an upstream without a worker holds the newest calls.
    #[test]
    fn a_record_without_its_beginning() {
        let cut = |cut| {
            violations(move |record| {
                record.messages.drain(..25);
                record.cut = cut;
            })
        };
        assert_eq!(cut(true), [""; 0]);
        assert_eq!(cut(false), ["pop3/post@shop.example skipped message 1."]);
    }

    #[test]
    fn a_time_box_of_anything_but_half_its_own_interval() {
        let long = violations(|record| {
            record.sessions.iter_mut().for_each(|session| {
                if session.run == (2, 4) {
                    session.deadline = session.deadline + millis(150);
                }
            })
        });
        assert_eq!(long, ["inbox/@club had 1140ms for a run; half of its interval is 1s."]);
        let short = violations(|record| {
            record.tasks[0].interval = millis(20_000);
            record.tasks[0].tolerance = millis(16_001);
        });
        assert!(short[0].contains("had 1990ms for a run; half of its interval is 10s."), "{short:?}");
        let on_and_on = violations(|record| {
            let last = record.messages.iter_mut().find(|message| message.number == 50).unwrap();
            last.began = last.deadline + millis(2_500);
        });
        assert_eq!(
            on_and_on,
            ["pop3/post@shop.example went on with message 50 when its time box was up since 2500ms."]
        );
    }

    #[test]
    fn a_message_twice_and_one_that_is_skipped() {
        let twice = violations(|record| {
            let n = record.messages.iter().position(|message| message.number == 11).unwrap();
            record.messages.insert(n + 1, record.messages[n - 1].clone());
        });
        assert_eq!(twice, ["pop3/post@shop.example fetched message 10 twice."]);
        let skipped =
            violations(|record| record.messages.retain(|message| message.number != 11 || message.path != MAILBOX));
        assert_eq!(skipped, ["pop3/post@shop.example skipped message 11."]);
    }

    #[test]
    fn a_task_that_starves() {
        let found = violations(|record| {
            record.to = at(37_000);
            record.tasks.truncate(1);
        });
        assert_eq!(found, [""; 0], "four intervals and a few seconds may be a full queue: 21 s is not yet");
        let found = violations(|record| record.sessions.retain(|session| session.run.0 == 1 || session.run.1 < 2));
        assert_eq!(found, ["inbox/@club was not polled for 19990ms; its interval is 2s."]);
    }

    #[test]
    fn a_channel_that_is_gone_and_still_called() {
        let gone = |at| move |record: &mut Record| record.deleted = Some(("club-2".to_owned(), at));
        assert_eq!(
            violations(gone(at(16_500))),
            ["inbox/@club was called 1 times after its channel club-2 had been deleted."],
            "the run of 16 s goes on, that of 18 s begins"
        );
        assert_eq!(violations(gone(at(18_100))), [""; 0]);
    }
}
