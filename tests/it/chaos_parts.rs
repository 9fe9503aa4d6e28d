//! The parts of the chaos test that can be wrong without a visible sign: the judge that finds
//! nothing, the network that breaks nothing, the plan that leaves something out.

#[path = "../chaos/faults.rs"]
#[allow(dead_code, reason = "the chaos test uses the rest")]
mod faults;
#[path = "../chaos/judge.rs"]
#[allow(dead_code, reason = "the chaos test uses the rest")]
pub mod judge;
#[path = "../chaos/log.rs"]
#[allow(dead_code, reason = "the chaos test uses the rest")]
pub mod log;
#[path = "../chaos/proxy.rs"]
#[allow(dead_code, reason = "the chaos test uses the rest")]
pub mod proxy;

use std::collections::BTreeMap;
use std::time::Duration;

use roundelay::clock::{Entropy, Time};
use roundelay::ledger::ChainState;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::harness::SOON;
use faults::{Fault, TABLE, plan, wanted};
use judge::{Attempt, Chain, Rhythm, Rules, Ruling};
use log::{Call, Carry, Did, Entry, Line};
use proxy::{Link, Mode};

// ---- The judge ----

/// A run written by hand: two chains, `slow` (1), which waits for leases, and `fast` (2), which does not.
#[derive(Default)]
struct Story {
    log: Vec<Line>,
    attempts: Vec<Attempt>,
    calls: u64,
    faults: usize,
}

impl Story {
    fn at(&mut self, at: i64, entry: Entry) -> &mut Self {
        self.log.push(Line { at: Time::from_millis(at), entry });
        self
    }

    /// A call of (epoch, tick) with this fence, due and claimed when it begins, from `at` to `end`.
    fn call(&mut self, epoch: i64, tick: i64, fence: i64, worker: &str, at: i64, end: i64) -> &mut Self {
        self.claim(epoch, tick, fence, at, at, "done").unclaimed(epoch, tick, fence, worker, at, end)
    }

    fn claim(&mut self, epoch: i64, tick: i64, fence: i64, due: i64, started: i64, verdict: &str) -> &mut Self {
        self.attempts.push(Attempt { fence, epoch, tick, due, started, verdict: Some(verdict.into()) });
        self
    }

    fn unclaimed(&mut self, epoch: i64, tick: i64, fence: i64, worker: &str, at: i64, end: i64) -> &mut Self {
        let end_entry = Entry::End { call: self.calls + 1, answered: true };
        self.unanswered(epoch, tick, fence, worker, at).at(end, end_entry)
    }

    fn unanswered(&mut self, epoch: i64, tick: i64, fence: i64, worker: &str, at: i64) -> &mut Self {
        self.calls += 1;
        let call = Call {
            call: self.calls,
            worker: worker.into(),
            kind: if epoch == 1 { "slow" } else { "fast" }.into(),
            key: "k".into(),
            id: format!("{epoch}-{tick}"),
            attempt: 1,
            epoch: Some(epoch),
            tick: Some(tick),
            fence: Some(fence),
            deadline: None,
            nominal: None,
            peer: 0,
            carry: None,
        };
        self.at(at, Entry::Call(call))
    }

    fn last_call(&mut self) -> &mut Call {
        let call = self.log.iter_mut().rev().find_map(|line| match &mut line.entry {
            Entry::Call(call) => Some(call),
            _ => None,
        });
        call.expect("there was a call")
    }

    /// The nominal time of the last call.
    fn meant_for(&mut self, nominal: i64) -> &mut Self {
        self.last_call().nominal = Some(Time::from_millis(nominal));
        self
    }

    /// What the last call has read: the fences of all runs before.
    fn read(&mut self, last: &[i64]) -> &mut Self {
        self.last_call().carry = Some(Carry { count: last.len() as u64, last: last.to_vec() });
        self
    }

    fn worker(&mut self, at: i64, worker: &str, did: Did) -> &mut Self {
        self.at(at, Entry::Worker { worker: worker.into(), did })
    }

    fn fault(&mut self, fault: &str, target: &str, from: i64, to: i64) -> &mut Self {
        let number = self.faults;
        self.faults += 1;
        self.at(from, Entry::Broke { number, fault: fault.into(), target: target.into() })
            .at(to, Entry::Healed { number })
    }

    /// Both chains are due again at `due`, and the log ends at `over`.
    fn judged(&mut self, due: i64, over: i64) -> Ruling {
        self.at(over, Entry::Over);
        self.log.sort_by_key(|line| line.at);
        let (key, state) = ("k".to_owned(), ChainState::Active);
        let chain = |epoch: i64, kind: &str| Chain { epoch, kind: kind.into(), key: key.clone(), state, due };
        let rhythms = [("slow".to_owned(), Rhythm { every: 5_000, jitter: 0 })].into();
        let rules = Rules { redelivery: ["fast".to_owned()].into(), rhythms, ..rules() };
        judge::judge(&self.log, &[chain(1, "slow"), chain(2, "fast")], &self.attempts, &rules)
    }
}

fn findings(ruling: &Ruling) -> [usize; 4] {
    [&ruling.dead, &ruling.forked, &ruling.unrecorded, &ruling.lost].map(Vec::len)
}

#[test]
fn a_run_in_order_has_no_findings() {
    let ruling = Story::default()
        .call(1, 1, 10, "w1-1", 1_000, 1_200)
        .call(2, 1, 11, "w1-1", 1_100, 1_300)
        .call(1, 2, 12, "w2-1", 6_200, 6_400)
        .judged(11_000, 12_000);
    assert_eq!(findings(&ruling), [0; 4], "{ruling:?}");
    assert!(ruling.targets.is_empty() && ruling.carries.is_empty(), "{ruling:?}");
    assert_eq!(ruling.calls, (3, 0));
}

#[test]
fn a_death_is_found_and_an_outage_excuses_no_longer_than_it_lasts() {
    let end = |over: i64, outage: Option<(i64, i64)>| {
        let mut story = Story::default();
        story.call(1, 1, 10, "w1-1", 1_000, 1_200).call(2, 1, 11, "w1-1", 1_000, 1_200);
        if let Some((from, to)) = outage {
            story.fault("ledger killed", "", from, to);
        }
        story.judged(6_000, over).dead.len()
    };
    assert_eq!(end(69_000, None), 0, "it has until slack and patience are over");
    assert_eq!(end(69_001, None), 2, "both chains were due at 6 s");
    assert_eq!(end(69_001, Some((20_000, 30_000))), 0, "the time begins anew when it is whole again");
    assert_eq!(end(93_001, Some((20_000, 30_000))), 2);
    assert_eq!(end(93_001, Some((1_000, 2_000))), 2, "it was whole before they were due");
}

#[test]
fn a_tick_that_has_to_be_called_again_is_late_from_the_end_of_the_last_call() {
    let mut story = Story::default();
    story.call(1, 1, 10, "w1-1", 1_000, 90_000).claim(1, 1, 12, 1_000, 91_000, "done");
    let ruling = story.unclaimed(1, 1, 12, "w2-1", 91_000, 91_100).judged(95_000, 95_000);
    assert_eq!((ruling.dead.len(), ruling.latest), (0, 1_000), "{ruling:?}");
}

#[test]
fn a_chain_that_came_back_too_late_was_dead() {
    let mut story = Story::default();
    story.call(1, 1, 10, "w1-1", 1_000, 1_200).claim(1, 2, 12, 6_000, 70_000, "done");
    let ruling = story.unclaimed(1, 2, 12, "w1-1", 70_000, 70_100).judged(75_000, 75_000);
    assert_eq!(findings(&ruling), [1, 0, 0, 0], "{ruling:?}");
    assert_eq!(ruling.latest, 64_000);
}

#[test]
fn two_that_live_in_one_chain_are_a_fork() {
    let overlap = |epoch: i64, struck: Option<(Did, i64)>| {
        let mut story = Story::default();
        story.call(epoch, 1, 10, "w1-1", 1_000, 5_000).claim(epoch, 1, 11, 1_000, 2_000, "fenced");
        story.unclaimed(epoch, 1, 11, "w2-1", 2_000, 2_500);
        if let Some((did, at)) = struck {
            story.worker(at, "w1-1", did);
        }
        let ruling = story.judged(10_000, 11_000);
        (ruling.forked.len(), ruling.beside)
    };
    assert_eq!(overlap(1, None), (1, 0));
    assert_eq!(overlap(2, None), (0, 1), "its kind does not wait for the lease");
    assert_eq!(overlap(1, Some((Did::Killed, 1_500))), (0, 0));
    assert_eq!(overlap(1, Some((Did::Frozen, 1_500))), (0, 0));
    assert_eq!(overlap(1, Some((Did::Killed, 2_100))), (1, 0), "it lived when the other began");
}

#[test]
fn fences_are_used_once_and_rise() {
    let twice = Story::default()
        .call(1, 1, 10, "w1-1", 1_000, 1_100)
        .unclaimed(1, 1, 10, "w1-1", 2_000, 2_100)
        .judged(5_000, 6_000);
    assert_eq!(findings(&twice), [0, 1, 0, 0], "{twice:?}");

    let back = |frozen: Option<i64>| {
        let mut story = Story::default();
        story.claim(1, 1, 10, 500, 500, "lost").call(1, 1, 11, "w2-1", 1_000, 1_100);
        story.unclaimed(1, 1, 10, "w1-1", 2_000, 2_100);
        if let Some(at) = frozen {
            story.worker(at, "w1-1", Did::Frozen).worker(1_900, "w1-1", Did::Thawed);
        }
        story.judged(5_000, 6_000).forked.len()
    };
    assert_eq!(back(None), 1);
    assert_eq!(back(Some(600)), 0, "it was frozen between its claim and its call");
}

#[test]
fn a_tick_ends_once_and_is_done_by_a_run_that_was_answered() {
    /// Tick, fence and verdict.
    type Row = (i64, i64, &'static str);
    let table: [(&str, &[Row], &[i64]); 7] = [
        ("in order", &[(1, 10, "done"), (2, 11, "retried"), (2, 12, "failed"), (3, 13, "done")], &[10, 12, 13]),
        ("done twice", &[(1, 10, "done"), (1, 11, "done")], &[10, 11]),
        ("failed, and done", &[(1, 10, "failed"), (1, 11, "done")], &[11]),
        ("retired, and done", &[(1, 10, "done"), (1, 11, "retired")], &[10]),
        ("done twice without a call, which are three findings", &[(1, 10, "done"), (1, 11, "done")], &[]),
        ("another was answered", &[(1, 10, "lost"), (1, 11, "done")], &[10]),
        ("answered after the log's end", &[(1, 20, "done")], &[20]),
    ];
    for ((label, rows, answered), expected) in table.into_iter().zip([0, 1, 1, 1, 3, 1, 0]) {
        let mut story = Story::default();
        for (tick, fence, verdict) in rows {
            story.claim(1, *tick, *fence, 0, 0, verdict);
            let (worker, at) = ("w1-1", 1_000 + 10 * fence);
            match answered.contains(fence) {
                true if *fence == 20 => story.unclaimed(1, *tick, *fence, worker, 5_500, 6_100),
                true => story.unclaimed(1, *tick, *fence, worker, at, at + 1),
                false => &mut story,
            };
        }
        let ruling = story.judged(5_000, 6_000);
        assert_eq!((ruling.targets.len(), ruling.forked.len()), (expected, 0), "{label}: {ruling:?}");
    }
}

#[test]
fn every_window_of_a_chain_has_its_run_and_none_has_two() {
    let broken = Some(("ledger killed", 1_100, 3_000));
    let frozen = Some(("frozen", 1_150, 3_000));
    // The first tick is meant for 1,000 and runs until 1,200; its interval is 5,000. Then the tick that comes next, what
    // it is meant for, when it is called, what is broken, and the findings.
    let table = [
        ("in order", 2, 6_200, 6_210, None, 0),
        ("it waits for a worker", 2, 6_200, 60_000, None, 0),
        ("the answer took its time", 2, 8_200, 8_200, None, 0),
        ("two in a window", 2, 5_900, 6_300, None, 1),
        ("called before its window", 2, 6_200, 6_100, None, 1),
        ("the window is late", 2, 8_201, 8_210, None, 1),
        ("the ledger was away", 2, 6_200, 60_000, broken, 0),
        ("it counts from when the ledger came back", 2, 8_201, 8_210, broken, 1),
        ("the worker was frozen before it had the answer", 2, 8_201, 8_210, frozen, 0),
        ("a tick is left out", 3, 6_200, 6_210, None, 1),
    ];
    for (label, tick, nominal, at, wrong, expected) in table {
        let mut story = Story::default();
        story.call(1, 1, 10, "w1-1", 1_000, 1_200).meant_for(1_000);
        story.call(1, tick, 11, "w2-1", at, at + 100).meant_for(nominal);
        match wrong {
            Some(("frozen", from, to)) => story.worker(from, "w1-1", Did::Frozen).worker(to, "w1-1", Did::Thawed),
            Some((fault, from, to)) => story.fault(fault, "", from, to),
            None => &mut story,
        };
        let ruling = story.judged(90_000, 91_000);
        assert_eq!(ruling.targets.len(), expected, "{label}: {:?}", ruling.targets);
    }
}

#[test]
fn a_run_reads_what_the_run_before_it_has_written() {
    let table: [(&str, &str, &[i64], usize); 7] = [
        ("in order", "done", &[10, 11], 0),
        ("an update is lost", "done", &[10], 1),
        ("all of them are lost", "done", &[], 1),
        ("an update is doubled", "done", &[10, 11, 11], 1),
        ("they are in another order", "done", &[11, 10], 1),
        ("the end of the run before was not taken", "lost", &[10], 0),
        ("it was not taken, and what it passed on was", "fenced", &[10, 11], 1),
    ];
    for (label, verdict, read, expected) in table {
        let mut story = Story::default();
        story.call(1, 1, 10, "w1-1", 1_000, 1_100);
        story.claim(1, 2, 11, 6_000, 6_100, verdict).unclaimed(1, 2, 11, "w1-1", 6_100, 6_200).read(&[10]);
        let ruling = story.call(1, 3, 12, "w1-1", 11_200, 11_300).read(read).judged(20_000, 20_001);
        assert_eq!((ruling.carries.len(), ruling.carried), (expected, 3), "{label}: {:?}", ruling.carries);
    }
    let long = (1..=30).fold(Carry::default(), |carry, fence| carry.with(fence));
    assert_eq!((long.count, long.last), (30, (11..=30).collect()), "what is passed on stays small");
}

#[test]
fn a_call_without_an_attempt_and_a_job_without_a_call_are_found() {
    let mut story = Story::default();
    story.unclaimed(1, 1, 10, "w1-1", 1_000, 1_100);
    for id in ["seen", "gone"] {
        story.at(1_000, Entry::Accepted { id: id.into() });
    }
    let seen = Call {
        call: 99,
        worker: "w1-1".into(),
        kind: "once".into(),
        key: "k".into(),
        id: "seen".into(),
        attempt: 1,
        epoch: None,
        tick: None,
        fence: None,
        deadline: None,
        nominal: None,
        peer: 0,
        carry: None,
    };
    let ruling = story.at(1_500, Entry::Call(seen)).judged(5_000, 6_000);
    assert_eq!(findings(&ruling), [0, 0, 1, 1], "{ruling:?}");
    assert!(ruling.lost[0].contains("gone"), "{ruling:?}");
}

#[test]
fn chains_that_were_stopped_or_are_not_there_any_more_are_dead() {
    let mut story = Story::default();
    story.call(1, 1, 10, "w1-1", 1_000, 1_200).call(3, 1, 11, "w1-1", 1_000, 1_200).at(2_000, Entry::Over);
    let chain = |state| Chain { epoch: 1, kind: "slow".into(), key: "k".into(), state, due: 9_000 };
    let dead = |state| judge::judge(&story.log, &[chain(state)], &story.attempts, &rules()).dead;
    assert_eq!(dead(ChainState::Active), ["the chain 3 was called and is not in the ledger"]);
    for state in [ChainState::Paused, ChainState::Retired, ChainState::Quarantined] {
        assert_eq!(dead(state).len(), 2, "{:?}", dead(state));
    }
}

#[test]
fn a_chain_is_rightly_set_aside_after_three_claims_whose_workers_were_struck() {
    // How many claims were given up, how many of them called, how many of the callers were killed meanwhile, how long
    // the others were frozen if they were (their calls are answered after 2 s), and whether the chain was dead.
    let table = [
        (3, 3, 0, None, 1),
        (3, 3, 2, None, 1),
        (3, 3, 3, None, 0),
        (3, 3, 2, Some((500, 9_000)), 0),
        (3, 3, 0, Some((500, 9_000)), 0),
        // An answer that came just before the frost was perhaps not written, an earlier one was.
        (3, 3, 2, Some((2_500, 9_000)), 0),
        (3, 3, 2, Some((4_500, 9_000)), 1),
        // The third worker was killed between its claim and its call, which the ledger alone can tell.
        (3, 2, 2, None, 0),
        (2, 2, 2, None, 1),
    ];
    for (claimed, called, killed, frozen, expected) in table {
        let mut story = Story::default();
        for n in 0..claimed {
            let (at, worker) = (1_000 + 10_000 * n, format!("w1-{n}"));
            let wakes_up = frozen.is_some() && n >= killed;
            story.claim(1, 1, 10 + n, at, at, if wakes_up { "fenced" } else { "lost" });
            match frozen {
                _ if n >= called => {}
                _ if n < killed => {
                    story.unanswered(1, 1, 10 + n, &worker, at).worker(at + 500, &worker, Did::Killed);
                }
                Some((from, to)) => {
                    story.unclaimed(1, 1, 10 + n, &worker, at, at + 2_000);
                    story.worker(at + from, &worker, Did::Frozen).worker(at + to, &worker, Did::Thawed);
                }
                None => drop(story.unanswered(1, 1, 10 + n, &worker, at)),
            }
        }
        story.at(60_000, Entry::Over);
        story.log.sort_by_key(|line| line.at);
        let chain =
            Chain { epoch: 1, kind: "slow".into(), key: "k".into(), state: ChainState::Quarantined, due: 1_000 };
        let ruling = judge::judge(&story.log, &[chain], &story.attempts, &rules());
        let case = format!("{claimed} claimed, {called} called, {killed} killed, frozen {frozen:?}");
        assert_eq!((ruling.dead.len(), ruling.set_aside), (expected, 1 - expected), "{case}: {ruling:?}");
    }
}

fn rules() -> Rules {
    Rules {
        slack: 3_000,
        patience: 60_000,
        longest: 180_000,
        redelivery: Default::default(),
        rhythms: Default::default(),
    }
}

#[test]
fn no_chain_waits_for_ever_because_outages_follow_each_other() {
    let dead = |outages: i64| {
        let mut story = Story::default();
        story.call(1, 1, 10, "w1-1", 1_000, 1_200).call(2, 1, 11, "w1-1", 1_000, 1_200);
        for n in 0..outages {
            story.fault("node killed", "1", 2_000 + n * 20_000, 10_000 + n * 20_000);
        }
        story.judged(6_000, 20_000 * outages).dead.len()
    };
    assert_eq!((dead(8), dead(12)), (0, 2));
}

#[test]
fn recovery_is_told_by_fault_and_by_takeover() {
    // An outage, another frozen worker, or connections that were half-open before and are not given up
    // yet: what it took says nothing about the kill.
    for (meanwhile, target, from, to, at_once) in [
        ("broker cut off", "", 3_000, 4_000, false),
        ("worker frozen", "w3-1", 3_000, 4_000, false),
        ("ledger half-open", "", -18_000, -17_500, true),
    ] {
        let mut story = Story::default();
        for (epoch, first, second, again) in [(1, 10, 12, 7_500), (2, 11, 13, 1_900)] {
            story.call(epoch, 1, first, "w1-1", 1_000, 1_500).claim(epoch, 1, second, 1_000, again, "done");
            story.unclaimed(epoch, 1, second, "w2-1", again, again + 100);
        }
        story.worker(1_500, "w1-1", Did::Killed).fault("worker killed", "w1-1", 1_500, 1_500);
        story.fault(meanwhile, target, from, to);
        let ruling = story.judged(12_000, 13_000);
        let kills = ruling.recoveries.iter().filter(|one| one.fault.starts_with("worker killed"));
        let seen: Vec<_> = kills.map(|one| (one.fault.as_str(), one.slowest, one.disturbed)).collect();
        let expected = [("worker killed, lease", 6_000, true), ("worker killed, redelivery", 400, at_once)];
        assert_eq!(seen, expected, "{meanwhile}");
    }
}

#[test]
fn quantiles_are_nearest_ranks() {
    let values: Vec<i64> = (1..=100).collect();
    assert_eq!(judge::quantile(&values, 0.5), Some(50));
    assert_eq!(judge::quantile(&values, 0.99), Some(99));
    assert_eq!(judge::quantile(&[7], 0.99), Some(7));
    assert_eq!(judge::quantile(&[], 0.5), None);
}

// ---- The plan ----

#[test]
fn a_plan_has_every_fault_often_enough_and_repeats_by_its_seed() {
    for minutes in [1, 3, 30, 60] {
        let length = Duration::from_secs(60 * minutes);
        let wanted = wanted(length, &[]);
        assert_eq!(wanted.len(), TABLE.len());
        let (workers, all) = plan(&wanted, length, &Entropy::seeded(7));
        assert_eq!(plan(&wanted, length, &Entropy::seeded(7)), (workers.clone(), all.clone()));
        assert_ne!(plan(&wanted, length, &Entropy::seeded(8)), (workers.clone(), all.clone()));
        let mut counts: BTreeMap<Fault, usize> = BTreeMap::new();
        for planned in workers.iter().chain(&all) {
            assert!(planned.at < length);
            *counts.entry(planned.fault).or_default() += 1;
        }
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), wanted, "in {minutes} minutes");
        assert!(workers.windows(2).chain(all.windows(2)).all(|pair| pair[0].at <= pair[1].at));
    }
    let only = wanted(Duration::from_secs(1800), &["purged".into()]);
    assert_eq!(only, [(Fault::RungPurged, 2), (Fault::QueuePurged, 2)]);
}

#[test]
fn half_an_hour_has_what_a_release_needs() {
    let sum = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        wanted(Duration::from_secs(1800), &names).iter().map(|(_, count)| count).sum::<usize>()
    };
    assert!(sum(&["worker killed"]) >= 300 && sum(&["worker frozen"]) >= 60);
    assert!(sum(&["node killed", "leader killed"]) >= 30 && sum(&["ledger killed"]) >= 10);
    assert!(sum(&["ledger failover"]) >= 10);
    assert!(sum(&["cut off", "half-open"]) >= 20 && sum(&["purged", "deleted"]) >= 5);
}

// ---- The network ----

/// A link to a server that sends back what it gets, with the connection at the server's end.
async fn linked() -> (Link, TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let link = Link::open(vec![listener.local_addr().unwrap()]).await.unwrap();
    let client = TcpStream::connect(("127.0.0.1", link.port)).await.unwrap();
    let (server, _) = timeout(SOON, listener.accept()).await.expect("the link connects").unwrap();
    (link, client, server)
}

/// What comes next within `patience`: a byte, or the end.
async fn heard(stream: &mut TcpStream, patience: Duration) -> Option<Option<u8>> {
    let mut byte = [0];
    match timeout(patience, stream.read(&mut byte)).await {
        Ok(Ok(1)) => Some(Some(byte[0])),
        Ok(_) => Some(None),
        Err(_) => None,
    }
}

/// Long enough for what would come to come; it bounds what these tests can prove.
const QUIET: Duration = Duration::from_millis(200);

#[tokio::test]
async fn a_hole_swallows_one_direction_and_gives_back_what_it_held() {
    let (link, mut client, mut server) = linked().await;
    link.set(Mode::Hole { from_client: true, from_server: false });
    client.write_all(b"a").await.unwrap();
    server.write_all(b"b").await.unwrap();
    assert_eq!(heard(&mut client, SOON).await, Some(Some(b'b')), "the other direction is open");
    assert_eq!(heard(&mut server, QUIET).await, None);
    link.set(Mode::Open);
    assert_eq!(heard(&mut server, SOON).await, Some(Some(b'a')));
}

#[tokio::test]
async fn a_link_that_leads_elsewhere_takes_new_connections_there_and_keeps_the_old() {
    let (link, mut client, mut server) = linked().await;
    let elsewhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
    link.lead_to(vec![elsewhere.local_addr().unwrap()]);
    let mut newcomer = TcpStream::connect(("127.0.0.1", link.port)).await.unwrap();
    let (mut other, _) = timeout(SOON, elsewhere.accept()).await.expect("the link connects").unwrap();
    newcomer.write_all(b"n").await.unwrap();
    client.write_all(b"c").await.unwrap();
    assert_eq!(heard(&mut other, SOON).await, Some(Some(b'n')));
    assert_eq!(heard(&mut server, SOON).await, Some(Some(b'c')));
}

#[tokio::test]
async fn a_client_that_disconnects_through_a_hole_is_seen_and_its_data_is_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (seen, mut told) = tokio::sync::mpsc::unbounded_channel();
    let witness = std::sync::Arc::new(move |peer| seen.send(peer).unwrap());
    let link = Link::open_watched(vec![listener.local_addr().unwrap()], witness).await.unwrap();
    let mut client = TcpStream::connect(("127.0.0.1", link.port)).await.unwrap();
    let (mut server, peer) = timeout(SOON, listener.accept()).await.expect("the link connects").unwrap();
    let hole = Mode::Hole { from_client: true, from_server: true };
    link.set(hole);
    client.write_all(b"a").await.unwrap();
    assert!(timeout(QUIET, told.recv()).await.is_err(), "it is still there");
    drop(client);
    assert_eq!(timeout(SOON, told.recv()).await.expect("it is seen"), Some(peer.port()));
    link.set(Mode::Open);
    assert_eq!(heard(&mut server, SOON).await, Some(None));
    // Who leaves while the link carries it says so itself.
    let client = TcpStream::connect(("127.0.0.1", link.port)).await.unwrap();
    let (mut server, _) = timeout(SOON, listener.accept()).await.expect("the link connects").unwrap();
    drop(client);
    assert_eq!(heard(&mut server, SOON).await, Some(None));
    assert!(timeout(QUIET, told.recv()).await.is_err());
}

#[tokio::test]
async fn a_cut_ends_connections_and_takes_no_new_ones() {
    let (link, mut client, mut server) = linked().await;
    link.set(Mode::Cut);
    assert_eq!(heard(&mut client, SOON).await, Some(None));
    assert_eq!(heard(&mut server, SOON).await, Some(None));
    let mut another = TcpStream::connect(("127.0.0.1", link.port)).await.unwrap();
    assert_eq!(heard(&mut another, SOON).await, Some(None));
}

#[tokio::test]
async fn a_half_open_connection_ends_for_the_server_and_never_for_the_client() {
    let (link, mut client, mut server) = linked().await;
    link.set(Mode::HalfOpen);
    assert_eq!(heard(&mut server, SOON).await, Some(None));
    client.write_all(b"a").await.unwrap();
    link.set(Mode::Open);
    assert_eq!(heard(&mut client, QUIET).await, None, "nobody tells it");
}
