//! The parts of the test of pauses that can be wrong without a visible sign: the judge that measures nothing and finds
//! nothing, and the order of the faults.

#[path = "../pauses/verdict.rs"]
#[allow(dead_code, reason = "the test of pauses uses the rest")]
mod verdict;

use std::time::Duration;

use judge::Attempt;
use log::{Call, Did, Entry, Line};
use roundelay::clock::Time;

use crate::chaos_parts::{judge, log};
use crate::support::windows::Limit;
use verdict::{Hit, Taken, Terms, Verdict};

/// A run written by hand: `beat` (1 and 2) is due 2 s after the end of a run, `cron` (3) at even seconds, and `paced`
/// (4) may start twice in ten seconds.
#[derive(Default)]
struct Story {
    log: Vec<Line>,
    attempts: Vec<Attempt>,
    calls: u64,
    faults: usize,
    whole_grid: bool,
}

impl Story {
    fn at(&mut self, at: i64, entry: Entry) -> &mut Self {
        self.log.push(Line { at: Time::from_millis(at), entry });
        self
    }

    /// A call of (epoch, tick) that came to `verdict`, from `from` on; `None` for one that does not end.
    fn call(
        &mut self,
        epoch: i64,
        tick: i64,
        worker: &str,
        from: i64,
        end: Option<(i64, bool)>,
        came_to: &str,
    ) -> &mut Self {
        self.calls += 1;
        let (call, fence) = (self.calls, i64::try_from(self.calls).unwrap());
        let verdict = Some(came_to.to_owned());
        self.attempts.push(Attempt { fence, epoch, tick, due: from, started: from, verdict });
        let seen = Call {
            call,
            worker: worker.into(),
            kind: ["beat", "beat", "cron", "paced"][usize::try_from(epoch - 1).unwrap()].into(),
            key: epoch.to_string(),
            id: format!("{epoch}-{tick}"),
            attempt: 1,
            epoch: Some(epoch),
            tick: Some(tick),
            fence: Some(fence),
            deadline: None,
            nominal: None,
            peer: u16::try_from(call).unwrap(),
            carry: None,
        };
        self.at(from, Entry::Call(seen));
        if let Some((at, answered)) = end {
            self.at(at, Entry::End { call, answered });
        }
        self
    }

    /// One that lasts 100 ms and works.
    fn done(&mut self, epoch: i64, tick: i64, from: i64) -> &mut Self {
        self.call(epoch, tick, "w1-1", from, Some((from + 100, true)), "done")
    }

    /// A tick of the wall clock, of this nominal time.
    fn cron(&mut self, tick: i64, nominal: i64, from: i64) -> &mut Self {
        self.done(3, tick, from);
        let call = self.log.iter_mut().rev().find_map(|line| match &mut line.entry {
            Entry::Call(call) => Some(call),
            _ => None,
        });
        call.unwrap().nominal = Some(Time::from_millis(nominal));
        self
    }

    fn fault(&mut self, fault: &str, target: &str, from: i64, to: i64) -> &mut Self {
        self.faults += 1;
        let number = self.faults;
        self.at(from, Entry::Broke { number, fault: fault.into(), target: target.into() });
        self.at(to, Entry::Healed { number })
    }

    fn judged(&mut self, over: i64) -> Verdict {
        self.at(over, Entry::Over);
        self.log.sort_by_key(|line| line.at);
        let terms = Terms {
            every: [("beat".to_owned(), 2_000)].into(),
            grid: [("cron".to_owned(), 2_000)].into(),
            whole_grid: self.whole_grid,
            limits: [("paced".to_owned(), Limit { allow: 2, per: Duration::from_secs(10) })].into(),
            from_healing: ["ledger killed".to_owned()].into(),
            felt: 15_000,
        };
        verdict::judge(&self.log, &self.attempts, &terms)
    }
}

fn findings(verdict: &Verdict) -> [usize; 4] {
    [&verdict.twice, &verdict.left_out, &verdict.unended, &verdict.over].map(Vec::len)
}

fn pauses(verdict: &Verdict) -> Vec<(usize, i64)> {
    verdict.hits.iter().map(|Hit { number, pause, .. }| (*number, *pause)).collect()
}

#[test]
fn a_run_in_order_pauses_for_what_a_call_comes_late() {
    let mut story = Story::default();
    story.done(1, 1, 1_000).done(1, 2, 3_110).done(1, 3, 5_220).fault("broker killed", "", 3_000, 4_000);
    let verdict = story.judged(6_000);
    assert_eq!(findings(&verdict), [0; 4], "{verdict:?}");
    assert_eq!(pauses(&verdict), [(1, 10)]);
    assert_eq!(verdict.figures(|_| true), verdict::Figures { hits: 1, p50: 10, p99: 10, most: 10 });
}

#[test]
fn a_pause_begins_when_the_chain_is_due_or_its_worker_is_struck() {
    // The call before: until when, whether it was answered and counts, and the worker's fault; when the next call
    // comes.
    let table = [
        ("a call that counts is followed after the interval", (1_100, true), true, None, 5_000, 1_900),
        ("one that was cut off is due at once", (1_100, false), false, None, 2_000, 900),
        ("one whose worker was struck is due from then on", (9_000, true), false, Some("worker frozen"), 8_000, 6_950),
        ("also if it was answered to nobody", (1_040, true), false, Some("worker cut off"), 8_000, 6_960),
        ("of the ledger only what comes after its end counts", (1_100, true), true, Some("ledger killed"), 9_000, 500),
    ];
    for (name, end, counts, fault, next, expected) in table {
        let mut story = Story::default();
        let (came_to, tick) = if counts { ("done", 2) } else { ("lost", 1) };
        story.call(1, 1, "w2-1", 1_000, Some(end), came_to).done(1, tick, next);
        story.fault(fault.unwrap_or("broker killed"), fault.map_or("", |_| "w2-1"), 1_050, 8_500);
        let verdict = story.judged(next + 1_000);
        assert_eq!(pauses(&verdict), [(1, expected)], "{name}");
        assert_eq!(findings(&verdict)[..2], [0, 0], "{name}");
    }
}

#[test]
fn a_chain_that_does_not_come_back_pauses_until_the_end() {
    let verdict = Story::default().done(1, 1, 1_000).fault("broker killed", "", 2_000, 3_000).judged(60_000);
    assert_eq!(pauses(&verdict), [(1, 56_900)]);
}

#[test]
fn a_pause_counts_for_the_faults_in_whose_time_it_falls_and_that_hit_the_chain() {
    let mut story = Story::default();
    story.done(1, 1, 1_000).done(1, 2, 9_100).done(1, 3, 11_300).done(1, 4, 13_500).done(1, 5, 40_000);
    story.fault("broker killed", "", 5_000, 6_000).fault("broker killed", "", 10_000, 11_000);
    story.fault("worker killed", "w2-1", 12_000, 12_000);
    // The last pause is longer, and begins after none of them can be felt any more.
    let mut also = Story::default();
    also.done(1, 1, 1_000).done(1, 2, 30_000).fault("broker killed", "", 2_000, 2_500);
    assert_eq!(pauses(&also.judged(31_000)), [(1, 26_900)]);
    let verdict = story.judged(41_000);
    assert_eq!(pauses(&verdict), [(1, 6_000), (2, 100), (3, 24_400)]);
    // What is due just before the next fault waits for that.
    let mut between = Story::default();
    between.done(1, 1, 1_000).done(1, 2, 3_100).done(1, 3, 17_000);
    between.fault("ledger killed", "", 1_500, 2_000).fault("ledger killed", "", 5_300, 16_000);
    assert_eq!(pauses(&between.judged(18_000)), [(1, 100), (2, 1_000)]);
    let mut aside = Story::default();
    aside.done(1, 1, 1_000).done(1, 2, 3_150).fault("worker killed", "w2-1", 2_000, 2_000);
    assert_eq!(pauses(&aside.judged(4_000)), [], "another worker's chain goes on");
}

#[test]
fn ticks_that_are_left_out_or_come_twice_are_found() {
    let left_out = Story::default().done(1, 1, 1_000).done(1, 3, 3_100).judged(4_000);
    assert_eq!(findings(&left_out), [0, 1, 0, 0], "{left_out:?}");
    let again = |came_to: &str, fault: &str, target: &str| {
        let mut story = Story::default();
        story.call(1, 1, "w1-1", 1_000, Some((1_100, true)), came_to).done(1, 1, 2_000);
        story.fault(fault, target, 1_500, 1_600).judged(3_000).twice.len()
    };
    let table = [
        ("done", "worker frozen", "w1-1", 1),
        ("snoozed", "broker killed", "", 1),
        ("snoozed", "worker frozen", "w2-1", 1),
        ("snoozed", "worker frozen", "w1-1", 0),
        ("snoozed", "ledger killed", "", 0),
        ("lost", "broker killed", "", 0),
        ("fenced", "broker killed", "", 0),
    ];
    for (came_to, fault, target, expected) in table {
        assert_eq!(again(came_to, fault, target), expected, "{came_to}, {fault} {target}");
    }
}

#[test]
fn a_workers_run_must_end_before_others_take_it_over_or_when_the_worker_wakes() {
    let case = |fault: &str, end: i64, other: i64| {
        let mut story = Story::default();
        story.call(1, 1, "w2-1", 1_000, Some((end, false)), "lost").done(1, 1, other);
        story.fault(fault, "w2-1", 2_000, 12_000);
        let verdict = story.judged(30_000);
        (verdict.unended.len(), verdict.taken.iter().map(|Taken { ended, .. }| *ended).collect::<Vec<_>>())
    };
    assert_eq!(case("worker cut off", 7_400, 8_000), (0, vec![Some(600)]));
    assert_eq!(case("worker cut off", 8_500, 8_000), (1, vec![Some(-500)]));
    assert_eq!(case("worker frozen", 12_100, 8_000), (0, vec![Some(100)]));
    assert_eq!(case("worker frozen", 13_100, 8_000), (1, vec![Some(1_100)]));
    assert_eq!(case("broker killed", 13_100, 8_000), (0, vec![]), "nobody takes anything");
}

#[test]
fn a_caller_that_disconnects_over_a_dead_link_has_ended_its_call() {
    let mut story = Story::default();
    story.call(1, 1, "w2-1", 1_000, Some((20_000, false)), "lost").at(7_400, Entry::Left { peer: 1 }).done(1, 1, 8_000);
    let verdict = story.fault("worker cut off", "w2-1", 2_000, 12_000).judged(30_000);
    assert_eq!(verdict.taken, [Taken { fault: "worker cut off".into(), ended: Some(600) }]);
    let rules = judge::Rules {
        slack: 3_000,
        patience: 60_000,
        longest: 180_000,
        redelivery: Default::default(),
        rhythms: Default::default(),
    };
    let ruling = judge::judge(&story.log, &[], &story.attempts, &rules);
    assert_eq!(ruling.forked, Vec::<String>::new(), "it was not in the chain any more");
}

#[test]
fn a_window_that_is_too_full_is_found() {
    let over = |third: i64| {
        let verdict = Story::default().done(4, 1, 1_000).done(4, 2, 2_000).done(4, 3, third).judged(30_000);
        (verdict.over.len(), verdict.used["paced"].1)
    };
    assert_eq!(over(11_000), (0, Some(0.0)));
    assert_eq!(over(10_990), (1, Some(-10.0)));
}

#[test]
fn cron_occurrences_come_once_each_by_the_clock_that_was_set() {
    let day = |set: &[(i64, i64)], calls: &[(i64, i64)], over: i64| {
        let mut story = Story { whole_grid: true, ..Story::default() };
        for (at, ahead) in set {
            story.at(*at, Entry::Set { ahead: *ahead }).fault("clock set", "", *at, *at);
        }
        for (tick, (nominal, from)) in (1..).zip(calls) {
            story.cron(tick, *nominal, *from);
        }
        let verdict = story.judged(over);
        (findings(&verdict), pauses(&verdict).into_iter().map(|(_, pause)| pause).max())
    };
    // Seen from 2 s on, and an hour ahead from 10.5 s on: one misfire, then by the new time.
    let hour = 3_600_000;
    let before = [(2_000, 2_010), (4_000, 4_010), (6_000, 6_010), (8_000, 8_010), (10_000, 10_010)];
    let after = |late: i64| {
        let misfired = (hour + 10_000, 10_500 + late);
        let next = (6..12).map(|n| (hour + 2_000 * n, 2_000 * n + 10));
        [&before[..], &[misfired], &next.collect::<Vec<_>>()].concat()
    };
    let set = [(10_500, hour)];
    assert_eq!(day(&set, &after(900), 24_000), ([0; 4], Some(900)));
    assert_eq!(day(&set, &after(1_400), 24_000), ([0; 4], Some(1_400)), "it comes, and late");
    // A time that the clock showed long after it was set, and that nothing came for.
    let mut gap = after(900);
    gap.remove(9);
    assert_eq!(day(&set, &gap, 24_000).0, [0, 1, 0, 0]);
    // The same time once more.
    let mut double = after(900);
    double.push((hour + 22_000, 22_900));
    assert_eq!(day(&set, &double, 24_000).0, [1, 0, 0, 0]);
    // Set back by seven seconds: what it has shown does not come again.
    let back = [&before[..], &[(12_000, 19_010), (14_000, 21_010), (16_000, 23_010), (18_000, 25_010)]].concat();
    assert_eq!(day(&[(10_500, -7_000)], &back, 26_000), ([0; 4], Some(10)));
    assert_eq!(day(&[(10_500, -7_000)], &[&before[..], &[(10_000, 17_010)]].concat(), 18_000).0, [1, 0, 0, 0]);
    // What is about to start when the clock is set goes by what it showed.
    let late = [&before[..], &[(12_000, 12_010), (14_000, 14_110), (16_000, 23_010), (18_000, 25_010)]].concat();
    assert_eq!(day(&[(11_500, -7_000)], &late, 26_000), ([0; 4], Some(110)));
    // Set back by an hour, it shows what it had shown long before the log.
    assert_eq!(day(&[(10_500, -hour)], &before, 26_000), ([0; 4], None));
    // A time that no clock has shown.
    assert_eq!(day(&[], &[(2_000, 2_010), (4_000, 3_010)], 4_500).0, [1, 0, 0, 0]);
}

#[test]
fn a_worker_that_did_not_end_its_call_after_a_frost_is_told_by_the_same_log() {
    let mut story = Story::default();
    story.at(2_000, Entry::Worker { worker: "w2-1".into(), did: Did::Frozen });
    story.call(1, 1, "w2-1", 1_000, None, "lost").done(1, 1, 8_000);
    let verdict = story.fault("worker frozen", "w2-1", 2_000, 12_000).judged(30_000);
    assert_eq!(verdict.unended.len(), 1, "{verdict:?}");
}
