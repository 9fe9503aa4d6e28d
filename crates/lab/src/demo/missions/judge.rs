//! Judges the play of the missions by the game's record (pure).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roundelay_model::clock::{Time, short_duration};
use serde::Serialize;

use crate::demo::stage::Shown;

/// The tolerance for times, which are whole milliseconds and come from two programs.
const ROUNDING: Duration = Duration::from_millis(5);
/// After a message, a channel takes none for this long.
const APART: Duration = Duration::from_secs(1);
const SECOND: Duration = Duration::from_secs(1);
/// By how much two messages may be closer by the times at which they came. A throttle counts starts, and on a busy
/// machine one call takes longer than the next.
const WAY: Duration = Duration::from_millis(500);
/// The most that the busiest second may have, in per cent of the average. If all ticks were due together it would have
/// hundreds; chance alone makes some 130 of fifty a second, and one time in a hundred 150.
const FLAT: u64 = 160;
/// A tick that is due in these last seconds may not have come yet.
const LATE: Duration = Duration::from_secs(2);
/// By how much later a tick may come on a busy machine.
const BUSY: Duration = Duration::from_secs(5);

/// A call, as the game has recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The mission; none for the flush of a channel.
    pub mission: Option<String>,
    /// The channel that gets a message.
    pub channel: String,
    /// The epoch of the chain, and the tick.
    pub run: (i64, i64),
    /// The fence of the claim.
    pub fence: i64,
    /// The nominal start of the tick.
    pub nominal: Time,
    /// When the run began, by its deadline. The time of the call on its way is not the scheduler's fault.
    pub started: Time,
    /// When the call came.
    pub began: Time,
    /// When the call was answered, or the caller disconnected.
    pub ended: Option<Time>,
    /// Whether the call was answered.
    pub answered: bool,
    /// The result of the encounter.
    pub result: String,
    /// Whether the answer said that the mission is over.
    pub over: bool,
}

/// The input of the judge.
#[derive(Clone, Debug)]
pub struct Record {
    /// The calls, in the order in which they came.
    pub calls: Vec<Call>,
    /// All missions of the roster.
    pub missions: BTreeSet<String>,
    /// When a worker was killed.
    pub killed: Option<Time>,
    /// How much of the demo the record covers.
    pub shown: Shown,
    /// The length of a minute of the game.
    pub minute: Duration,
    /// When all chains had begun.
    pub from: Time,
    /// When the demo was over.
    pub to: Time,
}

impl Record {
    /// The lease on a tick is half a minute: no other worker takes the tick before.
    fn lease(&self) -> Duration {
        self.minute / 2
    }

    /// The longest time between two ticks of a mission: a minute, with a jitter of a quarter, and the lease, if its
    /// worker was killed.
    fn silence(&self) -> Duration {
        self.minute + self.minute / 4 + self.lease() + BUSY
    }
}

/// The figures of a demo.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Missions that were played.
    pub missions: usize,
    /// Missions whose handler was told that they are over.
    pub over: usize,
    /// Ticks that were resolved.
    pub resolved: usize,
    /// Ticks that another worker resolved again after the first was killed (a part of `resolved`).
    pub repeated: usize,
    /// Messages on channels.
    pub messages: usize,
    /// The shortest time between two messages of a channel, by the starts of their runs.
    pub closest_ms: u64,
    /// The shortest time between two messages of a channel, by the times at which they came.
    pub closest_came_ms: u64,
    /// Ticks that were due per second, on average.
    pub due_per_second: u64,
    /// The busiest second, in per cent of the average, by the times at which ticks were due.
    pub busiest_due_percent: u64,
    /// The busiest second, in per cent of the average, by the times at which ticks came, which shows how busy this
    /// machine was.
    pub busiest_came_percent: u64,
}

/// The rules that were broken, in sentences, and the figures.
pub fn judge(record: &Record) -> (Vec<String>, Figures) {
    let mut judge = Judge { record, said: Vec::new(), figures: Figures::default() };
    judge.flat();
    judge.channels();
    judge.ticks();
    judge.ends();
    if record.shown == Shown::Whole && record.killed.is_none() {
        judge.said.push("No worker was killed.".into());
    }
    (judge.said, judge.figures)
}

/// Calls that came again without a need: no worker was killed meanwhile, and the first call had an answer. A game
/// without a worker does not know of kills, but it knows that a tick is taken over only when its lease has ended.
pub fn forked(record: &Record) -> u64 {
    let mut first = BTreeMap::<_, &Call>::new();
    let mut forked = 0;
    for call in &record.calls {
        let Some(first) = first.get(&call.run).copied() else {
            first.insert(call.run, call);
            continue;
        };
        let killed = match record.shown {
            Shown::Alone => call.started + ROUNDING >= first.started + record.lease(),
            Shown::Whole | Shown::Ended => {
                record.killed.is_some_and(|at| first.started <= at && first.ended.is_none_or(|end| end + SECOND > at))
            }
        };
        if call.fence == first.fence || (first.answered && !killed) {
            forked += 1;
        }
    }
    forked
}

struct Judge<'a> {
    record: &'a Record,
    said: Vec<String>,
    figures: Figures,
}

impl<'a> Judge<'a> {
    /// Rule: no second has many more due ticks than the others.
    fn flat(&mut self) {
        let Record { from, to, .. } = *self.record;
        let seconds = to.since(from + LATE).as_secs() as usize;
        // Whole seconds: from the beginning to before the end.
        let mut due = vec![0_u64; seconds];
        let mut came = due.clone();
        let mut seen = BTreeSet::new();
        // A tick that was due before the beginning belongs to no second.
        let place = |time: Time| if time < from { usize::MAX } else { time.since(from).as_secs() as usize };
        for call in self.record.calls.iter().filter(|call| call.mission.is_some()) {
            if let Some(count) = came.get_mut(place(call.began)) {
                *count += 1;
            }
            // A retried tick was due once.
            if seen.insert(call.run)
                && let Some(count) = due.get_mut(place(call.nominal))
            {
                *count += 1;
            }
        }
        let percent = |counts: &[u64]| {
            let (all, most) = (counts.iter().sum::<u64>(), counts.iter().max().copied().unwrap_or_default());
            (most * counts.len() as u64 * 100).checked_div(all).unwrap_or_default()
        };
        self.figures.due_per_second = due.iter().sum::<u64>().checked_div(seconds as u64).unwrap_or_default();
        self.figures.busiest_due_percent = percent(&due);
        self.figures.busiest_came_percent = percent(&came);
        // With a few ticks per second, over hours, some seconds are busy by chance.
        if self.figures.busiest_due_percent > FLAT && self.record.shown != Shown::Alone {
            let (second, most) = due.iter().enumerate().max_by_key(|(_, count)| **count).unwrap_or((0, &0));
            self.said.push(format!(
                "In second {second}, {most} ticks were due, which is {} % of the {} of a second on average.",
                self.figures.busiest_due_percent, self.figures.due_per_second
            ));
        }
    }

    /// Rule: no channel has more than one message in a second, from missions and flushes together.
    fn channels(&mut self) {
        let started = self.closest("had two messages", |call| call.started, ROUNDING);
        let came = self.closest("got two messages", |call| call.began, WAY);
        self.figures.messages = self.record.calls.len();
        self.figures.closest_ms = started.as_millis() as u64;
        self.figures.closest_came_ms = came.as_millis() as u64;
    }

    /// The shortest time between two messages of a channel; reports the ones that are closer than allowed by more than
    /// `less`.
    fn closest(&mut self, had: &str, time: impl Fn(&Call) -> Time, less: Duration) -> Duration {
        let mut channels = BTreeMap::<&str, Vec<Time>>::new();
        for call in &self.record.calls {
            channels.entry(&call.channel).or_default().push(time(call));
        }
        let mut closest = None::<Duration>;
        for (channel, mut times) in channels {
            times.sort();
            for pair in times.windows(2) {
                let gap = pair[1].since(pair[0]);
                closest = Some(closest.map_or(gap, |closest| closest.min(gap)));
                if gap + less < APART {
                    let (gap, apart) = (short_duration(gap), short_duration(APART));
                    self.said.push(format!("{channel} {had} within {gap}; it takes one in {apart}."));
                }
            }
        }
        closest.unwrap_or_default()
    }

    /// Rule: every tick is resolved, and always to the same result.
    fn ticks(&mut self) {
        let of_mission = |mission: &'a String| {
            let calls = self.record.calls.iter();
            calls.filter(move |call| call.mission.as_ref() == Some(mission))
        };
        for mission in &self.record.missions {
            let mut results = BTreeMap::<(i64, i64), BTreeSet<&str>>::new();
            let mut answers = BTreeMap::<(i64, i64), usize>::new();
            for call in of_mission(mission) {
                results.entry(call.run).or_default().insert(&call.result);
                *answers.entry(call.run).or_default() += usize::from(call.answered);
            }
            self.goes_on(mission, of_mission(mission));
            let Some((last, _)) = results.last_key_value() else { continue };
            self.figures.missions += 1;
            for (run, results) in results.iter().filter(|(_, results)| results.len() > 1) {
                let results: Vec<&str> = results.iter().copied().collect();
                self.said.push(format!("Tick {} of {mission} was resolved to {}.", run.1, results.join(" and to ")));
            }
            // A game without a worker does not know the time before the first tick of its record, nor all of that tick.
            let first = results.keys().find(|run| run.0 == last.0).map_or(last.1, |run| run.1);
            let from = if self.record.shown == Shown::Alone { first + 1 } else { 1 };
            for tick in from..last.1 {
                if answers.get(&(last.0, tick)).is_none_or(|answers| *answers == 0) {
                    self.said.push(format!("Tick {tick} of {mission} was never resolved, and tick {} came.", last.1));
                }
            }
            self.figures.resolved += answers.values().filter(|answers| **answers > 0).count();
            self.figures.repeated += answers.values().filter(|answers| **answers > 1).count();
        }
    }

    /// Rule: a mission has one tick after the other until it is over. A mission of another worker may have been paused.
    fn goes_on(&mut self, mission: &str, calls: impl Iterator<Item = &'a Call>) {
        let Record { from, to, shown, .. } = *self.record;
        let calls: Vec<&Call> = calls.collect();
        let last = calls.iter().map(|call| call.began).max();
        let silent = to.since(last.unwrap_or(from));
        let over = calls.iter().any(|call| call.over && call.answered);
        if shown == Shown::Alone || over || silent <= self.record.silence() {
            return;
        }
        self.said.push(match last {
            None => format!("{mission} was never played."),
            Some(_) => format!(
                "{mission} was not played in the last {} s, and is not over; it has a tick every {}.",
                silent.as_secs(),
                short_duration(self.record.minute)
            ),
        });
    }

    /// Rule: a mission that is over has no further tick.
    fn ends(&mut self) {
        let mut over = BTreeMap::<(&str, i64), i64>::new();
        for call in &self.record.calls {
            let Some(mission) = &call.mission else { continue };
            let of = (mission.as_str(), call.run.0);
            if let Some(tick) = over.get(&of).filter(|tick| call.run.1 > **tick) {
                self.said.push(format!("{mission} was over with tick {tick}, and had tick {}.", call.run.1));
            }
            if call.over && call.answered {
                over.entry(of).or_insert(call.run.1);
            }
        }
        self.figures.over = over.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_millis(1_800_000_000_000) + Duration::from_millis(millis)
    }

    fn call(mission: u64, tick: i64, due: u64) -> Call {
        Call {
            mission: Some(format!("mission-{mission}")),
            channel: format!("channel-{}", mission % 30),
            run: (mission as i64, tick),
            fence: mission as i64 * 100 + tick,
            nominal: at(due),
            started: at(due + 2),
            began: at(due + 10),
            ended: Some(at(due + 100)),
            answered: true,
            result: format!("{mission}/{tick}"),
            over: false,
        }
    }

    /// Sixty missions, two on each channel, each every six seconds, ten a second; a worker was killed in the middle,
    /// and its tick was repeated.
    fn perfect() -> Record {
        let missions = 1..=60;
        let mut calls: Vec<Call> = (0..4_u64)
            .flat_map(|tick| missions.clone().map(move |m| call(m, tick as i64 + 1, tick * 6_000 + (m - 1) * 100)))
            .collect();
        // The first tick of mission 31 had begun at 3.0 s.
        let repeated = calls.iter().find(|call| call.run == (31, 1)).cloned().unwrap();
        let later = Duration::from_millis(2_000);
        let (started, began) = (repeated.started + later, repeated.began + later);
        calls.push(Call { fence: 9_999, started, began, ended: Some(began + SECOND), ..repeated });
        calls.sort_by_key(|call| call.began);
        let missions = missions.map(|mission| format!("mission-{mission}")).collect();
        Record {
            calls,
            missions,
            killed: Some(at(3_050)),
            shown: Shown::Whole,
            minute: Duration::from_secs(6),
            from: at(0),
            to: at(24_000),
        }
    }

    fn violations(change: impl FnOnce(&mut Record)) -> Vec<String> {
        let mut record = perfect();
        change(&mut record);
        judge(&record).0
    }

    #[test]
    fn missions_that_are_played_as_they_should_break_nothing() {
        let (said, figures) = judge(&perfect());
        assert_eq!(said, [""; 0]);
        let expected = Figures {
            missions: 60,
            over: 0,
            resolved: 240,
            repeated: 1,
            messages: 241,
            closest_ms: 1_000,
            closest_came_ms: 1_000,
            due_per_second: 10,
            busiest_due_percent: 100,
            busiest_came_percent: 109,
        };
        assert_eq!(figures, expected);
        assert_eq!(forked(&perfect()), 0, "the repeated tick was that of the worker that was killed");
    }

    #[test]
    fn ticks_that_are_due_together() {
        let found = violations(|record| {
            for call in record.calls.iter_mut().filter(|call| call.run.1 == 2) {
                call.nominal = at(6_000);
            }
        });
        assert_eq!(found, ["In second 6, 60 ticks were due, which is 600 % of the 10 of a second on average."]);
    }

    #[test]
    fn two_messages_of_a_channel_within_a_second() {
        // Missions 1 and 31 share a channel; the second tick of 31 is at 9.0 s, and a flush follows.
        let flush = |started: u64, came: u64| {
            violations(move |record| {
                let tick = record.calls.iter().find(|call| call.run == (31, 2)).unwrap();
                let (started, began) =
                    (tick.started + Duration::from_millis(started), tick.began + Duration::from_millis(came));
                let flush = Call {
                    mission: None,
                    run: (99, 1),
                    fence: 1,
                    started,
                    began,
                    result: String::new(),
                    ..tick.clone()
                };
                record.calls.push(flush);
            })
        };
        assert_eq!(flush(1_000, 1_000), [""; 0]);
        assert_eq!(flush(960, 960), ["channel-1 had two messages within 960ms; it takes one in 1s."]);
        // A burst whose deadlines deny it.
        assert_eq!(flush(1_000, 500), [""; 0], "the first was on its way for longer");
        assert_eq!(flush(1_000, 499), ["channel-1 got two messages within 499ms; it takes one in 1s."]);
    }

    #[test]
    fn a_tick_with_two_results_and_one_with_none() {
        let two = violations(|record| {
            let again = record.calls.iter_mut().find(|call| call.fence == 9_999).unwrap();
            again.result = "lost".into();
        });
        assert_eq!(two, ["Tick 1 of mission-31 was resolved to 31/1 and to lost."]);
        let none = violations(|record| record.calls.retain(|call| call.run != (7, 2)));
        assert_eq!(none, ["Tick 2 of mission-7 was never resolved, and tick 4 came."]);
        let unanswered = violations(|record| {
            record.calls.iter_mut().filter(|call| call.run == (7, 3)).for_each(|call| call.answered = false);
        });
        assert_eq!(unanswered, ["Tick 3 of mission-7 was never resolved, and tick 4 came."]);
        let never = violations(|record| record.calls.retain(|call| call.run.0 != 7));
        assert_eq!(never, ["mission-7 was never played."]);
    }

    #[test]
    fn a_mission_that_goes_on_after_its_end() {
        let over = |tick: i64| {
            violations(|record| {
                record.calls.iter_mut().filter(|call| call.run == (7, tick)).for_each(|call| call.over = true);
            })
        };
        assert_eq!(over(4), [""; 0]);
        assert_eq!(over(3), ["mission-7 was over with tick 3, and had tick 4."]);
    }

    #[test]
    fn a_mission_that_stops() {
        let stops = |change: &dyn Fn(&mut Record)| {
            violations(|record| {
                record.calls.retain(|call| call.run.0 != 7 || call.run.1 == 1);
                change(record);
            })
        };
        let said = "mission-7 was not played in the last 23 s, and is not over; it has a tick every 6s.";
        assert_eq!(stops(&|_| {}), [said]);
        assert_eq!(stops(&|record| record.to = at(16_000)), [""; 0], "its tick may still come");
        let over = |record: &mut Record| {
            record.calls.iter_mut().filter(|call| call.run.0 == 7).for_each(|call| call.over = true)
        };
        assert_eq!(stops(&over), [""; 0]);
        assert_eq!(stops(&|record| record.shown = Shown::Alone), [""; 0], "it may have been paused");
    }

    #[test]
    fn no_worker_was_killed() {
        let none = |shown: Shown| violations(|record| (record.killed, record.shown) = (None, shown));
        assert_eq!(none(Shown::Whole), ["No worker was killed."]);
        assert_eq!(none(Shown::Ended), [""; 0], "the demo was ended before");
        assert_eq!(none(Shown::Alone), [""; 0], "no worker is known");
    }

    /// A record of days has only the end; and with a few ticks per second some second has many.
    #[test]
    fn a_game_that_is_alone_judges_what_it_has_seen() {
        let alone = |change: &dyn Fn(&mut Record)| {
            violations(|record| {
                record.shown = Shown::Alone;
                change(record);
            })
        };
        let late = |record: &mut Record| {
            record.calls.retain(|call| call.run.1 > 1);
            record.calls.iter_mut().filter(|call| call.run.1 == 2).for_each(|call| call.answered = false);
        };
        assert_eq!(alone(&late), [""; 0], "what was before is not known");
        let together = |record: &mut Record| record.calls.iter_mut().for_each(|call| call.nominal = at(6_000));
        assert_eq!(alone(&together), [""; 0]);
        let hole = |record: &mut Record| record.calls.retain(|call| call.run != (7, 3));
        assert_eq!(alone(&hole), ["Tick 3 of mission-7 was never resolved, and tick 4 came."]);
    }

    #[test]
    fn a_tick_twice_is_a_fork_unless_its_worker_was_killed() {
        let forks = |change: &dyn Fn(&mut Record)| {
            let mut record = perfect();
            change(&mut record);
            forked(&record)
        };
        let again = |record: &mut Record, fence: i64| {
            let first = record.calls.iter().find(|call| call.run == (7, 2)).cloned().unwrap();
            record.calls.push(Call { fence, ..first });
        };
        assert_eq!(forks(&|record| again(record, 702)), 1, "one claim calls once");
        assert_eq!(forks(&|record| again(record, 9_998)), 1, "it was answered, and nobody was killed then");
        assert_eq!(forks(&|record| record.killed = Some(at(15_000))), 1);
        let unanswered = |record: &mut Record| {
            record.calls.iter_mut().filter(|call| call.run == (7, 2)).for_each(|call| call.answered = false);
            again(record, 9_998);
        };
        assert_eq!(forks(&unanswered), 0, "one without an answer is tried again");
        // A game without a worker has not seen the kill: a lease of half a minute, here three seconds, must have ended.
        let after = |millis: u64| {
            forks(&|record: &mut Record| {
                record.shown = Shown::Alone;
                let again = record.calls.iter().position(|call| call.fence == 9_999).unwrap();
                let first = record.calls.iter().find(|call| call.run == (31, 1)).unwrap().started;
                record.calls[again].started = first + Duration::from_millis(millis);
            })
        };
        assert_eq!((after(2_000), after(3_000)), (1, 0));
    }
}
