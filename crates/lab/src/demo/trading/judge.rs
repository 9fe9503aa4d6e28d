//! The bot's table of 15 commands, and the judgement of the exchanges' record by it (pure).
//!
//! The table is repeated here on purpose: the judge of a configuration must not read that configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roundelay_model::clock::{Time, short_duration};
use roundelay_model::schedule::Pace;
use serde::Serialize;

/// The wall clock at the beginning of the table's night, in minutes after midnight: 23:58.
pub const BEGINS: u64 = 23 * 60 + 58;
/// The length of the night in minutes: until 04:08. Each of the 15 commands is due in it.
pub const NIGHT: u64 = 250;
/// How long after the end of a stuck run, and two of its intervals, the command has to be called again. On a busy
/// machine a run is late by seconds; a blocked one never comes.
const UNSTUCK: Duration = Duration::from_secs(5);
/// The tolerance for times, which are whole milliseconds and come from two programs.
const ROUNDING: Duration = Duration::from_millis(5);
/// By how much a busy machine may delay a call, and the report of a call's end.
const BUSY: Duration = Duration::from_secs(5);
/// Of this many runs, one may be missing for a reason that the exchanges cannot see: on a busy machine a run may be
/// over before its call arrives.
const UNSEEN: usize = 20;
/// In a shorter night, the cooldown of `create-positions` is hardly over before its next run is due: all runs by hand
/// may be refused.
const LONG: Duration = Duration::from_secs(15);

const MINUTE: Duration = Duration::from_secs(60);

/// A line of the table.
pub struct Command {
    pub name: &'static str,
    cadence: Cadence,
    /// The shortest time from the end of a run to the next start, in minutes; `None` when the command is not gated.
    cooldown: Option<u32>,
}

#[derive(Clone, Copy)]
enum Cadence {
    Every { minutes: u64 },
    Hourly { at: u64 },
    EveryHours { hours: u64, at: u64 },
    Daily { hour: u64, minute: u64 },
}

impl Cadence {
    fn fires(self, minute_of_day: u64) -> bool {
        let (hour, minute) = (minute_of_day / 60, minute_of_day % 60);
        match self {
            Cadence::Every { minutes } => minute.is_multiple_of(minutes),
            Cadence::Hourly { at } => minute == at,
            Cadence::EveryHours { hours, at } => hour.is_multiple_of(hours) && minute == at,
            Cadence::Daily { hour: at, minute: on } => (hour, minute) == (at, on),
        }
    }
}

const fn line(name: &'static str, cadence: Cadence, cooldown: Option<u32>) -> Command {
    Command { name, cadence, cooldown }
}

/// The table.
pub const TABLE: [Command; 15] = [
    line("recover-stale", Cadence::Every { minutes: 1 }, None),
    line("sync-orders", Cadence::Every { minutes: 5 }, None),
    line("refresh-listen-keys", Cadence::Every { minutes: 1 }, None),
    line("create-positions", Cadence::Every { minutes: 3 }, Some(1)),
    line("fetch-klines", Cadence::Every { minutes: 5 }, Some(1)),
    line("fetch-klines-1h", Cadence::Hourly { at: 5 }, Some(5)),
    line("fetch-klines-4h", Cadence::EveryHours { hours: 4, at: 5 }, Some(5)),
    line("fetch-klines-12h", Cadence::EveryHours { hours: 12, at: 5 }, Some(5)),
    line("store-balances", Cadence::Every { minutes: 5 }, Some(1)),
    line("refresh-exchange-symbols", Cadence::Hourly { at: 15 }, Some(10)),
    line("conclude-symbols-direction", Cadence::Hourly { at: 30 }, Some(10)),
    line("disable-volatile-tokens", Cadence::Hourly { at: 45 }, Some(10)),
    line("purge-candles", Cadence::Daily { hour: 3, minute: 0 }, Some(60)),
    line("purge-model-logs", Cadence::Daily { hour: 3, minute: 30 }, Some(60)),
    line("archive-steps", Cadence::Daily { hour: 4, minute: 0 }, Some(60)),
];

/// The night, and the part of it in which the chains existed.
#[derive(Clone, Copy, Debug)]
pub struct Night {
    /// The pace of the table's wall clock.
    pub pace: Pace,
    /// When all chains had begun.
    pub from: Time,
    /// When the night was over.
    pub to: Time,
}

impl Night {
    /// The planned times of a command: all of the night, also those before its chain had begun.
    fn occurrences(&self, command: &Command) -> Vec<Time> {
        let minutes = (0..=NIGHT).filter(|minute| command.cadence.fires((BEGINS + minute) % (24 * 60)));
        minutes.map(|minute| self.pace.time_of(self.pace.shown + MINUTE * minute as u32)).collect()
    }

    /// The wall clock's time.
    fn wall(&self, time: Time) -> String {
        let minutes = self.pace.shows(time).since(self.pace.shown).as_secs() / 60 + BEGINS;
        format!("{:02}:{:02}", minutes / 60 % 24, minutes % 60)
    }

    fn scaled(&self, length: Duration) -> Duration {
        length / self.pace.speed.get()
    }
}

/// A call, as the exchanges have recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The command.
    pub command: String,
    /// The key of the entity.
    pub key: String,
    /// The epoch of the chain, and the tick, as the handler named them.
    pub run: (i64, i64),
    /// The nominal start of the run.
    pub nominal: Time,
    /// The deadline of the run.
    pub deadline: Time,
    /// When the call came.
    pub began: Time,
    /// When the call was answered, or the caller disconnected.
    pub ended: Option<Time>,
    /// Whether the call was answered.
    pub answered: bool,
}

impl Call {
    /// When the run was over: a run without an answer at its deadline at the latest.
    fn over(&self) -> Option<Time> {
        self.ended.map(|ended| if self.answered { ended } else { ended.min(self.deadline) })
    }
}

/// An attempt in the ledger's history, which is the audit here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The epoch of the chain, and the tick.
    pub run: (i64, i64),
    /// When the attempt was due.
    pub due: Time,
    /// When the attempt ended.
    pub finished: Option<Time>,
    /// How the attempt ended.
    pub verdict: Option<String>,
    /// Why, unless the attempt worked.
    pub reason: Option<String>,
    /// Ticks after it that were left out, because it still ran or nothing could start.
    pub left_out: u32,
}

/// A run that an operator asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manual {
    /// The command.
    pub command: String,
    /// The key of the entity.
    pub key: String,
    /// Why the run was refused; `None` if it was accepted.
    pub refused: Option<String>,
}

/// The input of the judge.
#[derive(Debug)]
pub struct Record {
    /// The calls, by the exchanges.
    pub calls: Vec<Call>,
    /// The attempts, by the ledger.
    pub audit: Vec<Entry>,
    /// The epochs of the chains, by the ledger: command, key and epoch.
    pub rotations: Vec<(String, String, i64)>,
    /// The runs by hand, by the operators.
    pub manual: Vec<Manual>,
}

/// The figures of a demo.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Planned runs of the table, by command.
    pub expected: BTreeMap<String, usize>,
    /// Planned runs with a call, by command.
    pub called: BTreeMap<String, usize>,
    /// Planned runs without a call for which the audit has a reason, by command.
    pub skipped: BTreeMap<String, usize>,
    /// The audit's reasons, and the number of each.
    pub reasons: BTreeMap<String, usize>,
    /// Runs by hand that were accepted.
    pub manual: usize,
    /// Runs by hand that were refused.
    pub refused: usize,
    /// Runs that got stuck.
    pub stuck: usize,
}

/// The rules that were broken, in sentences, and the figures.
pub fn judge(night: &Night, record: &Record) -> (Vec<String>, Figures) {
    let mut judge = Judge { night, record, said: Vec::new(), figures: Figures::default() };
    let mut extra = Vec::new();
    for (command, key, epoch) in &record.rotations {
        if let Some(line) = TABLE.iter().find(|line| line.name == command) {
            extra.extend(judge.rotation(line, key, *epoch));
        }
    }
    let known: BTreeSet<_> = judge.record.rotations.iter().map(|(command, ..)| command.as_str()).collect();
    for line in TABLE.iter().filter(|line| !known.contains(line.name)) {
        judge.said.push(format!("{} has no chain, so it was never called.", line.name));
    }
    judge.manual(&extra);
    judge.gates();
    judge.stuck();
    judge.audit();
    (judge.said, judge.figures)
}

/// The rules that the exchanges' record shows alone, if no ledger is known: cooldowns kept, and stuck runs.
pub fn judge_calls(night: &Night, record: &Record) -> (Vec<String>, Figures) {
    let mut judge = Judge { night, record, said: Vec::new(), figures: Figures::default() };
    judge.gates();
    judge.stuck();
    for call in &record.calls {
        *judge.figures.called.entry(call.command.clone()).or_default() += 1;
    }
    (judge.said, judge.figures)
}

struct Judge<'a> {
    night: &'a Night,
    record: &'a Record,
    said: Vec<String>,
    figures: Figures,
}

impl<'a> Judge<'a> {
    /// Rule: each planned run is called once, or the audit says why not and the exchanges' record agrees. Returns the
    /// calls that the table does not ask for.
    fn rotation(&mut self, line: &Command, key: &str, epoch: i64) -> Vec<&'a Call> {
        let (night, record) = (self.night, self.record);
        let named = |call: &&Call| call.command == line.name && call.key == key;
        let times: BTreeSet<Time> = night.occurrences(line).into_iter().collect();
        let (mut called, mut extra) = (BTreeMap::<Time, usize>::new(), Vec::new());
        for call in record.calls.iter().filter(named) {
            if call.run.0 == epoch && times.contains(&call.nominal) {
                *called.entry(call.nominal).or_default() += 1;
            } else if call.nominal <= night.to {
                extra.push(call);
            }
        }
        for (time, count) in called.iter().filter(|(_, count)| **count > 1) {
            let wall = night.wall(*time);
            self.said.push(format!("{} {key} was called {count} times for {wall}.", line.name));
        }
        let expected: Vec<Time> = times.iter().copied().filter(|time| (night.from..=night.to).contains(time)).collect();
        let missing: Vec<Time> = expected.iter().copied().filter(|time| !called.contains_key(time)).collect();
        let entries = || record.audit.iter().filter(|entry| entry.run.0 == epoch);
        let mut explained = entries().map(|entry| entry.left_out as usize).sum::<usize>();
        for entry in entries().filter(|entry| entry.verdict.as_deref() != Some("done") && missing.contains(&entry.due))
        {
            if let Some(reason) = &entry.reason {
                explained += 1;
                *self.figures.reasons.entry(without_numbers(reason)).or_default() += 1;
            }
        }
        if missing.len() > explained {
            let first = missing.first().map_or_else(String::new, |time| night.wall(*time));
            self.said.push(format!(
                "{} {key} was not called for {} of its {} times, first for {first}, and the audit says why of {explained}.",
                line.name,
                missing.len(),
                expected.len()
            ));
        } else {
            self.unseen(line, (key, epoch), &missing, expected.len());
        }
        let add = |sums: &mut BTreeMap<String, usize>, n| *sums.entry(line.name.into()).or_default() += n;
        add(&mut self.figures.expected, expected.len());
        add(&mut self.figures.called, expected.len() - missing.len());
        add(&mut self.figures.skipped, missing.len().min(explained));
        extra
    }

    /// A reason of the audit counts only if the exchanges' own record shows it: a cooldown longer than the table's
    /// would give a reason, too.
    fn unseen(&mut self, line: &Command, (key, epoch): (&str, i64), missing: &[Time], of: usize) {
        let mut blocked = self.blocked(line, key);
        let cooldown = self.night.scaled(MINUTE * line.cooldown.unwrap_or_default());
        let waited = self.behind_a_stuck_one(|entry| entry.run.0 == epoch);
        blocked.extend(waited.into_iter().map(|(from, to)| (from, to + cooldown + ROUNDING)));
        let seen = |time: &&Time| blocked.iter().any(|(from, to)| (from..=to).contains(time));
        let unseen: Vec<Time> = missing.iter().filter(|time| !seen(time)).copied().collect();
        let Some(first) = unseen.first().filter(|_| unseen.len() * UNSEEN > of) else { return };
        self.said.push(format!(
            "{} {key} was not called for {} of its {of} times, first for {}, though by the exchanges' record it neither \
             ran then nor had ended within its cooldown.",
            line.name,
            unseen.len(),
            self.night.wall(*first)
        ));
    }

    /// Times of runs, by the audit, that failed before their call reached an exchange, while another call was stuck
    /// there: PHP's server sometimes gives two requests to a process, and the second waits until the first is over. A
    /// call that no exchange has seen is then not the table's fault; the exchanges have seen the stuck one.
    fn behind_a_stuck_one(&self, of: impl Fn(&Entry) -> bool) -> Vec<(Time, Time)> {
        let called: BTreeSet<(i64, i64)> = self.record.calls.iter().map(|call| call.run).collect();
        let stuck = self.record.calls.iter().filter(|call| !call.answered);
        let stuck: Vec<(Time, Option<Time>)> = stuck.map(|call| (call.began, call.over())).collect();
        let failed = |entry: &&Entry| matches!(entry.verdict.as_deref(), Some("failed" | "retried"));
        let waited = self.record.audit.iter().filter(failed).filter(|entry| of(entry) && !called.contains(&entry.run));
        let spans = waited.filter_map(|entry| Some((entry.due, entry.finished?)));
        spans
            .filter(|(due, end)| stuck.iter().any(|(from, to)| from <= end && to.is_none_or(|to| *due <= to)))
            .collect()
    }

    /// Times in which a command could not start, by its calls: from the nominal start of a call, which a busy machine
    /// makes late, to its end, of which a busy machine hears late; and within the table's cooldown after that.
    fn blocked(&self, line: &Command, key: &str) -> Vec<(Time, Time)> {
        let told = |entry: &Entry| Some((entry.run, entry.finished?));
        let told: BTreeMap<(i64, i64), Time> = self.record.audit.iter().filter_map(told).collect();
        let cooldown = self.night.scaled(MINUTE * line.cooldown.unwrap_or_default());
        let calls = self.record.calls.iter().filter(|call| call.command == line.name && call.key == key);
        let blocks = |call: &Call| {
            let from = call.nominal.clamp(call.began - BUSY, call.began);
            let over = call.over().unwrap_or(self.night.to).max(call.began);
            let end = told.get(&call.run).map_or(over, |told| (*told).clamp(over, over + BUSY));
            (from, end + cooldown + ROUNDING)
        };
        calls.map(blocks).collect()
    }

    /// Rule: operators asked for every call that the table does not ask for, each once.
    fn manual(&mut self, extra: &[&Call]) {
        let runs: BTreeSet<_> = extra.iter().map(|call| (&call.command, &call.key, call.run)).collect();
        for (command, key, run) in &runs {
            let times =
                extra.iter().filter(|call| (&call.command, &call.key, call.run) == (*command, *key, *run)).count();
            if times > 1 {
                self.said.push(format!("A run of {command} {key} that was asked for once was called {times} times."));
            }
        }
        let asked: Vec<&Manual> = self.record.manual.iter().filter(|manual| manual.refused.is_none()).collect();
        self.figures.manual = asked.len();
        self.figures.refused = self.record.manual.len() - asked.len();
        let long = self.night.to.since(self.night.pace.origin) >= LONG;
        if let Some(last) = self.record.manual.last().filter(|_| long && asked.is_empty()) {
            self.said.push(format!(
                "All {} runs by hand were refused, so that nothing shows what they do; the last, since {}.",
                self.record.manual.len(),
                last.refused.as_deref().unwrap_or_default()
            ));
        }
        if runs.len() > asked.len() {
            let (command, key, run) =
                runs.iter().next().map_or(("", "", 0), |(c, k, run)| (c.as_str(), k.as_str(), run.1));
            self.said.push(format!(
                "{} runs were called that neither the table nor an operator asked for ({} were asked for); among them \
                 {command} {key}, occurrence {run}.",
                runs.len(),
                asked.len()
            ));
        }
        let table: BTreeSet<i64> = self.record.rotations.iter().map(|(.., epoch)| *epoch).collect();
        let waited = self.behind_a_stuck_one(|entry| !table.contains(&entry.run.0)).len();
        let refused = self.refused_at_its_start(&table);
        if runs.len() + waited + refused < asked.len() {
            self.said.push(format!(
                "{} runs were asked for and accepted, and {} were called.",
                asked.len(),
                runs.len()
            ));
        }
    }

    /// How many accepted runs by hand found, at their start, that a run of the table had just ended, or that it went on:
    /// they are refused then, as the audit says.
    fn refused_at_its_start(&self, table: &BTreeSet<i64>) -> usize {
        let refused = |entry: &&Entry| {
            let gated =
                entry.reason.as_deref().is_some_and(|why| ["cooldown", "running"].iter().any(|of| why.starts_with(of)));
            !table.contains(&entry.run.0) && entry.verdict.as_deref() == Some("skipped") && gated
        };
        self.record.audit.iter().filter(refused).count()
    }

    /// Rule: a gated command is not called while it runs, nor within its cooldown after the end of any run.
    fn gates(&mut self) {
        for line in TABLE.iter().filter(|line| line.cooldown.is_some()) {
            let cooldown = self.night.scaled(MINUTE * line.cooldown.unwrap_or_default());
            let mut keys: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
            for call in self.record.calls.iter().filter(|call| call.command == line.name) {
                keys.entry(&call.key).or_default().push(call);
            }
            for (key, mut calls) in keys {
                calls.sort_by_key(|call| call.began);
                for pair in calls.windows(2) {
                    let [before, next] = pair else { continue };
                    let wall = self.night.wall(next.began);
                    match before.over() {
                        Some(over) if over <= next.began => {
                            let pause = next.began.since(over);
                            if pause + ROUNDING < cooldown {
                                self.said.push(format!(
                                    "{} {key} was called at {wall}, {} after the end of the run before; its cooldown is {}.",
                                    line.name,
                                    short_duration(pause * self.night.pace.speed.get()),
                                    short_duration(MINUTE * line.cooldown.unwrap_or_default()),
                                ));
                            }
                        }
                        _ => self.said.push(format!("{} {key} was called at {wall} while it ran.", line.name)),
                    }
                }
            }
        }
    }

    /// Rule: a stuck run blocks neither its command for ever nor any other command.
    fn stuck(&mut self) {
        for call in self.record.calls.iter().filter(|call| !call.answered && call.ended.is_some()) {
            self.figures.stuck += 1;
            let Some(line) = TABLE.iter().find(|line| line.name == call.command) else { continue };
            let times = self.night.occurrences(line);
            let interval = times.windows(2).map(|pair| pair[1].since(pair[0])).min().unwrap_or_default();
            let by = call.deadline + interval * 2 + UNSTUCK;
            let again =
                |next: &&Call| (&next.command, &next.key) == (&call.command, &call.key) && next.began > call.began;
            let next = self.record.calls.iter().filter(again).map(|next| next.began).min();
            let wall = self.night.wall(call.began);
            if next.map_or(by < self.night.to, |next| next > by) {
                self.said.push(format!("{} {} got stuck at {wall}, and was not called again.", call.command, call.key));
            }
            let meanwhile =
                |other: &&Call| other.command != call.command && (call.began..=call.deadline).contains(&other.began);
            if self.record.calls.iter().filter(meanwhile).count() == 0 {
                self.said.push(format!(
                    "{} got stuck at {wall}, and nothing else was called until it was over.",
                    call.command
                ));
            }
        }
    }

    /// Rule: calls are in the audit, and every run that the audit says is done was called.
    fn audit(&mut self) {
        let audited: BTreeSet<(i64, i64)> = self.record.audit.iter().map(|entry| entry.run).collect();
        let called: BTreeSet<(i64, i64)> = self.record.calls.iter().map(|call| call.run).collect();
        let unknown: Vec<&Call> = self.record.calls.iter().filter(|call| !audited.contains(&call.run)).collect();
        if let Some(first) = unknown.first() {
            self.said.push(format!(
                "{} calls are not in the audit; the first is {} {} at {}.",
                unknown.len(),
                first.command,
                first.key,
                self.night.wall(first.began)
            ));
        }
        // The audit also has the ledger's own chores, and the jobs of batches, which are not in the table.
        let table: BTreeSet<i64> = self.record.rotations.iter().map(|(.., epoch)| *epoch).collect();
        let done = |entry: &&Entry| entry.verdict.as_deref() == Some("done") && table.contains(&entry.run.0);
        let invented = self.record.audit.iter().filter(done).filter(|entry| !called.contains(&entry.run)).count();
        if invented > 0 {
            self.said.push(format!("{invented} runs are done by the audit, and were never called."));
        }
    }
}

/// A reason without its numbers, so that equal reasons are counted together.
fn without_numbers(reason: &str) -> String {
    let words =
        reason.split_whitespace().map(|word| if word.starts_with(|c: char| c.is_ascii_digit()) { "…" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    const ORIGIN: i64 = 1_800_000_000_000;

    fn night() -> Night {
        let pace = Pace {
            origin: Time::from_millis(ORIGIN),
            shown: Time::from_millis(1_767_653_880_000),
            speed: NonZeroU32::new(500).unwrap(),
        };
        Night { pace, from: pace.origin, to: pace.time_of(pace.shown + MINUTE * NIGHT as u32) }
    }

    /// The nominal time of a minute of the night.
    fn minute(n: u64) -> Time {
        Time::from_millis(ORIGIN + 120 * n as i64)
    }

    fn millis(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// A night in which everything followed the table: each run takes 20 ms, and starts 5 ms late.
    fn perfect() -> Record {
        let mut record = Record { calls: Vec::new(), audit: Vec::new(), rotations: Vec::new(), manual: Vec::new() };
        for (epoch, line) in (1..).zip(&TABLE) {
            record.rotations.push((line.name.into(), "-".into(), epoch));
            for (tick, nominal) in (1..).zip(night().occurrences(line)) {
                record.calls.push(call(line.name, (epoch, tick), nominal));
                record.audit.push(entry((epoch, tick), nominal, "done"));
            }
        }
        record
    }

    fn call(command: &str, run: (i64, i64), nominal: Time) -> Call {
        let began = nominal + millis(5);
        Call {
            command: command.into(),
            key: "-".into(),
            run,
            nominal,
            deadline: began + millis(2_000),
            began,
            ended: Some(began + millis(20)),
            answered: true,
        }
    }

    fn entry(run: (i64, i64), due: Time, verdict: &str) -> Entry {
        let finished = Some(due + millis(30));
        Entry { run, due, finished, verdict: Some(verdict.into()), reason: None, left_out: 0 }
    }

    fn violations(change: impl FnOnce(&mut Record)) -> Vec<String> {
        let mut record = perfect();
        change(&mut record);
        judge(&night(), &record).0
    }

    /// `create-positions` is the fourth, at 00:00 (minute 2 of the night) and every third minute.
    fn positions(record: &mut Record, n: usize) -> usize {
        let of = |call: &Call| call.command == "create-positions";
        record.calls.iter().enumerate().filter(|(_, call)| of(call)).nth(n).unwrap().0
    }

    #[test]
    fn a_night_by_the_table_breaks_nothing() {
        let (said, figures) = judge(&night(), &perfect());
        assert_eq!(said, [""; 0]);
        let count = |command: &str| figures.expected[command];
        assert_eq!([count("recover-stale"), count("sync-orders"), count("create-positions")], [251, 50, 83]);
        assert_eq!([count("fetch-klines-1h"), count("fetch-klines-4h"), count("fetch-klines-12h")], [5, 2, 1]);
        assert_eq!([count("purge-candles"), count("purge-model-logs"), count("archive-steps")], [1, 1, 1]);
        assert_eq!(figures.expected, figures.called);
    }

    #[test]
    fn a_call_too_many_and_one_too_few() {
        let twice = violations(|record| record.calls.push(record.calls[0].clone()));
        assert_eq!(twice, ["recover-stale - was called 2 times for 23:58."]);
        let never = violations(|record| {
            let n = positions(record, 1);
            let run = record.calls.remove(n).run;
            record.audit.retain(|entry| entry.run != run);
        });
        assert_eq!(
            never,
            ["create-positions - was not called for 1 of its 83 times, first for 00:03, and the audit says why of 0."]
        );
        let no_chain = violations(|record| {
            record.rotations.retain(|(command, ..)| command != "archive-steps");
            record.calls.retain(|call| call.command != "archive-steps");
            record.audit.retain(|entry| entry.run.0 != 15);
        });
        assert_eq!(no_chain, ["archive-steps has no chain, so it was never called."]);
    }

    /// Removes a call; the audit says that its run was skipped, with this reason.
    fn skip(record: &mut Record, n: usize, reason: &str) {
        let run = record.calls.remove(n).run;
        let entry = record.audit.iter_mut().find(|entry| entry.run == run).unwrap();
        (entry.verdict, entry.reason) = (Some("skipped".into()), Some(reason.into()));
    }

    #[test]
    fn what_the_audit_explains_is_not_missed() {
        let skipped = violations(|record| {
            let n = positions(record, 0);
            record.calls[n].ended = Some(minute(5) - millis(24));
            let n = positions(record, 1);
            skip(record, n, "cooldown: 24 ms ago");
        });
        assert_eq!(skipped, [""; 0]);
        let left_out = violations(|record| {
            let n = positions(record, 0);
            record.calls[n].ended = Some(minute(5) + millis(10));
            let n = positions(record, 1);
            let run = record.calls.remove(n).run;
            record.audit.retain(|entry| entry.run != run);
            record.audit.iter_mut().find(|entry| entry.run == (4, 1)).unwrap().left_out = 1;
        });
        assert_eq!(left_out, [""; 0]);
    }

    /// If an hourly command could not start, its calls show why, or the judge reports it.
    #[test]
    fn what_the_audit_explains_has_to_be_seen() {
        // 00:30 and 01:30 are minutes 32 and 92; the cooldown is ten minutes.
        let between = |change: fn(&mut Call)| {
            violations(move |record| {
                let of = |call: &&Call| call.command == "conclude-symbols-direction";
                let run = record.calls.iter().filter(of).nth(1).unwrap().run;
                let n = record.calls.iter().position(|call| call.run == run).unwrap();
                skip(record, n, "cooldown: 3 s ago");
                let before = record.calls.iter_mut().find(|call| call.run == (run.0, run.1 - 1)).unwrap();
                change(before);
            })
        };
        let unseen = "conclude-symbols-direction - was not called for 1 of its 4 times, first for 01:30, though by the \
                      exchanges' record it neither ran then nor had ended within its cooldown.";
        type Change = fn(&mut Call);
        let table: [(&str, Change, &str); 5] = [
            ("long over", |_| (), unseen),
            ("not quite cool", |call| call.ended = Some(minute(83)), ""),
            ("just cool", |call| call.ended = Some(minute(81)), unseen),
            ("running", |call| call.ended = Some(minute(91)), ""),
            ("never over", |call| (call.ended, call.answered) = (None, false), ""),
        ];
        for (label, change, expected) in table {
            let said = between(change).into_iter().filter(|said| said.contains("01:30")).collect::<Vec<_>>();
            assert_eq!(said.join("\n"), expected, "{label}");
        }
    }

    /// A run that fails before it reaches an exchange is excused only while a call is stuck there.
    #[test]
    fn a_run_behind_a_stuck_call_is_the_servers_fault() {
        let night = |stuck: bool| {
            violations(move |record| {
                // The run for 00:30 waits for a quarter of an hour of the wall clock, so those for 00:31 to 00:44 are
                // left out.
                let gone: Vec<Time> = (32..=46).map(minute).collect();
                record.calls.retain(|call| call.command != "recover-stale" || !gone.contains(&call.nominal));
                record.audit.retain(|entry| entry.run.0 != 1 || !gone[1..].contains(&entry.due));
                let first = record.audit.iter_mut().find(|entry| (entry.run.0, entry.due) == (1, gone[0])).unwrap();
                (first.verdict, first.finished) = (Some("failed".into()), Some(minute(46)));
                (first.reason, first.left_out) = (Some("no answer by the deadline".into()), 14);
                let of = |call: &&mut Call| call.command == "create-positions" && call.nominal == minute(32);
                let other = record.calls.iter_mut().find(of).unwrap();
                if stuck {
                    (other.answered, other.ended) = (false, Some(minute(45)));
                    let passed = |call: &Call| {
                        call.command == "create-positions" && (minute(33)..=minute(47)).contains(&call.nominal)
                    };
                    let runs: Vec<(i64, i64)> =
                        record.calls.iter().filter(|call| passed(call)).map(|call| call.run).collect();
                    record.calls.retain(|call| !passed(call));
                    record.audit.retain(|entry| !runs.contains(&entry.run));
                    record.audit.iter_mut().find(|entry| entry.run == (4, 11)).unwrap().left_out = runs.len() as u32;
                }
            })
        };
        let unseen = "recover-stale - was not called for 15 of its 251 times, first for 00:30, though by the exchanges' \
                      record it neither ran then nor had ended within its cooldown.";
        assert_eq!(night(false), [unseen]);
        assert_eq!(night(true), [""; 0]);
    }

    #[test]
    fn a_late_call_and_a_late_word_of_its_end_are_the_machines_fault() {
        // The call for 00:00 comes at 00:07, and the engine hears of its end at 00:16 only.
        let late = violations(|record| {
            let n = positions(record, 0);
            let call = &mut record.calls[n];
            (call.began, call.ended) = (minute(9), Some(minute(9) + millis(20)));
            let run = call.run;
            let told = record.audit.iter_mut().find(|entry| entry.run == run).unwrap();
            told.finished = Some(minute(18));
            for _ in 0..5 {
                let n = positions(record, 1);
                skip(record, n, "cooldown: 1 ms ago");
            }
        });
        assert_eq!(late, [""; 0]);
    }

    #[test]
    fn a_cooldown_that_is_too_long() {
        let said = violations(|record| {
            // Every fourth is called, as with a cooldown of ten minutes.
            for n in 0..62 {
                let n = positions(record, 1 + n / 3);
                skip(record, n, "cooldown: the last run ended 340ms ago, and 1200ms must go by");
            }
        });
        assert_eq!(
            said,
            [
                "create-positions - was not called for 62 of its 83 times, first for 00:03, though by the exchanges' record \
              it neither ran then nor had ended within its cooldown."
            ]
        );
    }

    #[test]
    fn runs_by_hand_that_are_all_refused() {
        let why = Some("it has just ended".into());
        let refused = Manual { command: "create-positions".into(), key: "-".into(), refused: why };
        let asks = |n: usize| violations(|record| record.manual = vec![refused.clone(); n]);
        assert_eq!(asks(0), [""; 0]);
        assert_eq!(
            asks(2),
            ["All 2 runs by hand were refused, so that nothing shows what they do; the last, since it has just ended."]
        );
        let mut record = perfect();
        record.manual = vec![refused];
        let short = Night { to: night().pace.origin + LONG - millis(1), ..night() };
        let said = judge(&short, &record).0;
        assert!(!said.iter().any(|said| said.contains("by hand")), "{said:?}");
    }

    #[test]
    fn a_run_that_nobody_asked_for_and_one_that_was() {
        let manual = |at: u64| {
            move |record: &mut Record| {
                let time = minute(at) + millis(70);
                record.calls.push(Call { nominal: time, ..call("conclude-symbols-direction", (99, 1), time) });
                record.audit.push(entry((99, 1), time, "done"));
            }
        };
        let wild = violations(manual(115));
        assert_eq!(
            wild,
            ["1 runs were called that neither the table nor an operator asked for (0 were asked for); among them \
              conclude-symbols-direction -, occurrence 1."]
        );
        let asked = Manual { command: "conclude-symbols-direction".into(), key: "-".into(), refused: None };
        let wanted = violations(|record| {
            manual(115)(record);
            record.manual.push(asked.clone());
        });
        assert_eq!(wanted, [""; 0]);
        let lost = violations(|record| record.manual.push(asked.clone()));
        assert_eq!(lost, ["1 runs were asked for and accepted, and 0 were called."]);
        for reason in [
            "cooldown: the last run ended 1s ago, and 10m must go by",
            "running: the rotation of its chain ran, and `if_running` was `refuse`",
        ] {
            let refused = violations(|record| {
                record.manual.push(asked.clone());
                let skipped = entry((99, 1), minute(115), "skipped");
                record.audit.push(Entry { reason: Some(reason.into()), ..skipped });
            });
            assert_eq!(refused, [""; 0], "{reason}");
        }
        // 00:30 is minute 32, and the cooldown ten minutes.
        let hasty = violations(|record| {
            manual(33)(record);
            record.manual.push(asked.clone());
        });
        assert_eq!(
            hasty,
            ["conclude-symbols-direction - was called at 00:31, 85s after the end of the run before; its cooldown \
              is 10m."]
        );
    }

    #[test]
    fn a_gated_command_that_runs_beside_itself() {
        let beside = violations(|record| {
            let n = positions(record, 0);
            record.calls[n].ended = Some(minute(5) + millis(50));
        });
        assert_eq!(beside, ["create-positions - was called at 00:03 while it ran."]);
    }

    #[test]
    fn a_stuck_run_that_blocks() {
        let hang = |record: &mut Record, n: usize| {
            let call = &mut record.calls[n];
            (call.ended, call.answered) = (Some(call.deadline + millis(30)), false);
            call.deadline
        };
        let all = violations(|record| {
            let n = positions(record, 9);
            let (began, deadline) = (record.calls[n].began, hang(record, n));
            let hung = record.calls[n].run;
            record.calls.retain(|call| call.run == hung || !(began..=deadline).contains(&call.began));
            let left: BTreeSet<_> = record.calls.iter().map(|call| call.run).collect();
            record.audit.retain(|entry| left.contains(&entry.run));
            record.audit.iter_mut().for_each(|entry| entry.left_out = 99);
        });
        let said = "create-positions got stuck at 00:27, and nothing else was called until it was over.";
        assert!(all.iter().any(|violation| violation == said), "{all:?}");
        let for_ever = violations(|record| {
            let n = positions(record, 9);
            hang(record, n);
            let hung = record.calls[n].run;
            record.calls.retain(|call| call.run.0 != hung.0 || call.run.1 <= hung.1);
            record.audit.retain(|entry| entry.run.0 != hung.0 || entry.run.1 <= hung.1);
            record.audit.iter_mut().find(|entry| entry.run == hung).unwrap().left_out = 99;
        });
        let said = "create-positions - got stuck at 00:27, and was not called again.";
        assert!(for_ever.iter().any(|violation| violation == said), "{for_ever:?}");
    }

    #[test]
    fn an_audit_that_forgets_or_invents() {
        let forgets = violations(|record| record.audit.retain(|entry| entry.run != (1, 1)));
        assert_eq!(forgets, ["1 calls are not in the audit; the first is recover-stale - at 23:58."]);
        let invents = violations(|record| record.audit.push(entry((1, 999), minute(9), "done")));
        assert_eq!(invents, ["1 runs are done by the audit, and were never called."]);
    }
}
