//! What a real ledger has kept, as steps (pure): whether the specification explains its rows.
//!
//! A row says less than a commit. What it leaves open is open here: the rows are in order if *some* course that the
//! specification allows has left them.
//!
//! - Which session made a claim is not recorded: each claim has one of its own.
//! - When a session was over is not recorded: that of a claim that is `lost` or `fenced` ends before the next claim. So
//!   the rows cannot show a claim that was made too early over a holder that was alive; the log of the calls can.
//! - When a `fenced` finish was refused is not recorded: any time after the next claim.
//! - Claims of different chains at the same time have no order: each chain is replayed by itself, in the order of its
//!   fences. What the chains share is that no fence is given twice.
//! - Due times of the next attempt are recorded by its claim only.
//!
//! Rows of a batch, and orders of operators, are not explained: the chaos test has neither.

use std::collections::BTreeMap;
use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, Fence, TickNo};

use super::{Asked, By, Finish, Granted, New, Phase, Refusal, Runs, Sort, State, Step, Then};

/// A record of the table `attempts`.
#[derive(Clone, Debug)]
pub struct Row {
    /// The claim.
    pub fence: Fence,
    /// The chain's incarnation.
    pub epoch: Epoch,
    /// The occurrence.
    pub tick: TickNo,
    /// The try.
    pub attempt: u32,
    /// The claim before it, zero when there was none.
    pub previous: Fence,
    /// When the attempt was due.
    pub due: Time,
    /// When it was claimed.
    pub started: Time,
    /// How it ended; `None` while it has not.
    pub verdict: Option<String>,
    /// Why, unless it worked.
    pub reason: Option<String>,
}

/// A chain as the ledger has it in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// What it is doing.
    pub phase: Phase,
    /// The tick that comes next.
    pub tick: TickNo,
    /// The attempt of that tick.
    pub attempt: u32,
    /// The last claim.
    pub fence: Fence,
}

/// A chain through all of its epochs.
struct Course {
    state: State,
    epoch: Epoch,
    /// Refused finishes whose time is open.
    fenced: Vec<(Epoch, TickNo, u32, Fence)>,
}

/// What the specification does not explain of these rows; nothing when all is in order. `places` are the chains in the
/// end, by their epochs.
pub fn unexplained(rows: &[Row], places: &BTreeMap<Epoch, Place>) -> Vec<String> {
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by_key(|row| row.fence);
    // Each claim's course: by its fence, so that the next claim finds the one before it.
    let mut courses: Vec<Course> = Vec::new();
    let mut of_fence: BTreeMap<Fence, usize> = BTreeMap::new();
    let mut of_epoch: BTreeMap<Epoch, usize> = BTreeMap::new();
    let (mut last, mut wrong) = (Fence::NONE, Vec::new());
    for row in rows {
        let known = of_epoch.get(&row.epoch).or_else(|| of_fence.get(&row.previous)).copied();
        let number = known.unwrap_or_else(|| {
            courses.push(Course { state: State::default(), epoch: Epoch::NONE, fenced: Vec::new() });
            courses.len() - 1
        });
        let course = &mut courses[number];
        course.state.last_fence = last;
        if let Err(refusal) = course.take_row(row) {
            wrong.push(format!("fence {}: {refusal}", row.fence));
        }
        last = last.max(row.fence);
        of_fence.insert(row.fence, number);
        of_epoch.insert(row.epoch, number);
    }
    for (epoch, place) in places {
        let Some(course) = of_epoch.get(epoch).map(|number| &courses[*number]) else { continue };
        let Some(chain) = course.state.chains.get(epoch) else {
            wrong.push(format!("the chain {epoch} is there, and its record leads to {}", course.epoch));
            continue;
        };
        let leads_to = Place { phase: chain.phase, tick: chain.tick, attempt: chain.attempt, fence: chain.fence };
        // A row that was refused above explains nothing of what follows.
        if wrong.is_empty() && leads_to != *place {
            wrong.push(format!("the chain {epoch} is {place:?}, and its record leads to {leads_to:?}"));
        }
    }
    wrong
}

impl Course {
    fn take_row(&mut self, row: &Row) -> Result<(), Refusal> {
        if self.epoch != row.epoch {
            self.begin(row)?;
        }
        let session = row.fence.get();
        let asked = Asked {
            name: ("", ""),
            epoch: row.epoch,
            tick: row.tick,
            attempt: row.attempt,
            due: row.due,
            member: false,
            session,
            again: false,
            takeover: false,
            recurs: true,
            prepared: u32::MAX,
            ahead: Duration::ZERO,
            at: row.started,
        };
        self.state.take(&Step::SessionBegins { session, lease: Default::default(), now: Default::default() })?;
        self.claim(row, &asked)?;
        let over = Step::SessionOver { session, by: By::Sight, now: Default::default() };
        let why = row.reason.as_deref().unwrap_or_default();
        match row.verdict.as_deref() {
            None => Ok(()),
            Some("fenced") => {
                self.fenced.push((row.epoch, row.tick, row.attempt, row.fence));
                self.state.take(&over)
            }
            Some("lost") if why.is_empty() => self.state.take(&over),
            Some("lost") if why.starts_with("deaths: ") => {
                self.state.take(&over)?;
                self.state.take(&Step::SetAside(asked))
            }
            // Its worker never heard of it.
            Some("lost") => self.state.take(&Step::GiveUp { epoch: row.epoch, fence: row.fence, session }),
            Some(verdict) => {
                let then = match verdict {
                    "retried" => Then::Attempt(row.attempt + 1),
                    "snoozed" => Then::Snooze,
                    "retired" => Then::End,
                    _ => Then::Tick,
                };
                // When the next attempt is due is what its claim says, and the answer is not recorded.
                let chain = self.state.chains.get(&row.epoch);
                let sends = then != Then::End && chain.is_some_and(|chain| chain.phase == Phase::Active);
                let place = (row.epoch, row.tick, row.attempt, row.fence);
                self.state.take(&Step::Finish(Finish { then, sends, ..finish(place) }))
            }
        }
    }

    /// The chain begins, or begins anew after the epoch before.
    fn begin(&mut self, row: &Row) -> Result<(), Refusal> {
        if self.epoch.is_none() {
            let new =
                New { name: ("", ""), sort: Sort::Rotation, owner: None, epoch: row.epoch, due: row.due, anew: false };
            self.state.take(&Step::Begin(new))?;
        } else {
            self.state.take(&Step::Recover { old: self.epoch, epoch: row.epoch, due: row.due, all: true })?;
        }
        self.epoch = row.epoch;
        Ok(())
    }

    /// A claim. When it is refused, finishes that came too late may have come before it.
    fn claim(&mut self, row: &Row, asked: &Asked) -> Result<(), Refusal> {
        loop {
            let chain = self.state.chains.get(&row.epoch);
            let lost = chain.is_some_and(|chain| chain.held.is_some());
            // The attempt before, if it came to an end, is followed by one at any time.
            if let Some(chain) = self.state.chains.get_mut(&row.epoch).filter(|_| !lost) {
                chain.due = row.due;
            }
            let granted = Granted {
                fence: row.fence,
                previous: Some(row.previous),
                due: row.due,
                lost,
                total: 0,
                at: row.started,
                runs: Runs::Yes,
            };
            let Err(refusal) = self.state.take(&Step::Claim(*asked, granted)) else { return Ok(()) };
            if self.fenced.is_empty() {
                return Err(refusal);
            }
            let late = finish(self.fenced.remove(0));
            self.state.take(&Step::FinishFenced(late))?;
        }
    }
}

fn finish((epoch, tick, attempt, fence): (Epoch, TickNo, u32, Fence)) -> Finish<'static> {
    Finish {
        epoch,
        tick,
        attempt,
        fence,
        then: Then::Tick,
        due: Time::default(),
        retires: false,
        from_batch: false,
        sends: true,
        sends_parent: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of an attempt that was due when it was claimed.
    fn row(fence: i64, previous: i64, (epoch, tick, attempt): (i64, i64, u32), verdict: &str) -> Row {
        let (verdict, reason) = match verdict.split_once(": ") {
            Some((verdict, reason)) => (verdict, Some(reason.to_owned())),
            None => (verdict, None),
        };
        let at = Time::from_millis(1_000 * tick);
        Row {
            fence: Fence(fence),
            epoch: Epoch(epoch),
            tick: TickNo(tick),
            attempt,
            previous: Fence(previous),
            due: at,
            started: at,
            verdict: (!verdict.is_empty()).then(|| verdict.to_owned()),
            reason,
        }
    }

    fn late(mut row: Row, due: i64) -> Row {
        row.due = Time::from_millis(due);
        row
    }

    #[test]
    fn rows_that_the_specification_explains() {
        let set_aside = "lost: deaths: three workers died";
        let table = [
            (
                "ticks, a retry and a snooze",
                vec![
                    row(1, 0, (7, 1, 1), "done"),
                    row(4, 1, (7, 2, 1), "retried"),
                    row(5, 4, (7, 2, 2), "snoozed"),
                    row(9, 5, (7, 2, 2), "failed"),
                    row(10, 9, (7, 3, 1), ""),
                ],
            ),
            (
                "two chains, of which the later began first",
                vec![row(1, 0, (8, 1, 1), "done"), row(2, 0, (7, 1, 1), "done"), row(3, 1, (8, 2, 1), "done")],
            ),
            (
                "two workers die, and the third run ends",
                vec![row(1, 0, (7, 1, 1), "lost"), row(2, 1, (7, 1, 1), "lost"), row(3, 2, (7, 1, 1), "done")],
            ),
            (
                "a worker wakes up when the tick has run",
                vec![row(1, 0, (7, 1, 1), "fenced"), row(2, 1, (7, 1, 1), "done"), row(3, 2, (7, 2, 1), "done")],
            ),
            (
                "three die, one of which wakes up before the next claim",
                vec![
                    row(1, 0, (7, 1, 1), "fenced"),
                    row(2, 1, (7, 1, 1), "lost"),
                    row(3, 2, (7, 1, 1), "lost"),
                    row(4, 3, (7, 1, 1), "done"),
                ],
            ),
            (
                "three die, and one wakes up when the chain is set aside",
                vec![row(1, 0, (7, 1, 1), "fenced"), row(2, 1, (7, 1, 1), "lost"), row(3, 2, (7, 1, 1), set_aside)],
            ),
            (
                "an answer was lost",
                vec![
                    row(1, 0, (7, 1, 1), "lost: its worker never heard that it had this claim"),
                    row(2, 1, (7, 1, 1), "done"),
                ],
            ),
            ("a chain begins anew", vec![row(1, 0, (7, 1, 1), "lost"), row(2, 1, (9, 1, 1), "done")]),
        ];
        for (label, rows) in table {
            assert_eq!(unexplained(&rows, &BTreeMap::new()), [""; 0], "{label}");
        }
    }

    #[test]
    fn rows_that_it_does_not_explain() {
        let table = [
            ("a fence is given twice", "Claim 13", vec![row(1, 0, (7, 1, 1), "done"), row(1, 0, (8, 1, 1), "done")]),
            ("a tick is finished twice", "Claim 3", vec![row(1, 0, (7, 1, 1), "done"), row(2, 1, (7, 1, 1), "done")]),
            (
                "the claim before is another",
                "Claim 14",
                vec![row(1, 0, (7, 1, 1), "done"), row(2, 1, (7, 2, 1), "done"), row(3, 1, (7, 3, 1), "done")],
            ),
            (
                "a chain was claimed before, and its first row says that it was not",
                "Claim 14",
                vec![row(1, 0, (7, 1, 1), "done"), row(2, 0, (7, 2, 1), "done")],
            ),
            (
                "a tick comes after a later one",
                "Claim 3",
                vec![row(1, 0, (7, 1, 1), "done"), row(2, 1, (7, 2, 1), "done"), row(3, 2, (7, 1, 1), "done")],
            ),
            ("a tick is left out", "Claim 3", vec![row(1, 0, (7, 1, 1), "done"), row(2, 1, (7, 3, 1), "done")]),
            ("an attempt is left out", "Claim 3", vec![row(1, 0, (7, 1, 1), "retried"), row(2, 1, (7, 1, 3), "done")]),
            ("an epoch goes back", "Recover 2", vec![row(1, 0, (9, 1, 1), "done"), row(2, 1, (7, 2, 1), "done")]),
            (
                "it is claimed while its run has no end",
                "Claim 7",
                vec![row(1, 0, (7, 1, 1), ""), row(2, 1, (7, 1, 1), "done")],
            ),
            ("it is claimed before it is due", "Claim 5", vec![late(row(1, 0, (7, 1, 1), "done"), 1_001)]),
            (
                "an attempt that is taken over gets another time",
                "Claim 15",
                vec![row(1, 0, (7, 1, 1), "lost"), late(row(2, 1, (7, 1, 1), "done"), 500)],
            ),
            (
                "it goes on after its end",
                "Claim 2",
                vec![row(1, 0, (7, 1, 1), "retired"), row(2, 1, (7, 2, 1), "done")],
            ),
            (
                "three workers have died, and it runs",
                "Claim 9",
                vec![
                    row(1, 0, (7, 1, 1), "lost"),
                    row(2, 1, (7, 1, 1), "lost"),
                    row(3, 2, (7, 1, 1), "lost"),
                    row(4, 3, (7, 1, 1), "done"),
                ],
            ),
            (
                "it is set aside after two",
                "SetAside 2",
                vec![row(1, 0, (7, 1, 1), "lost"), row(2, 1, (7, 1, 1), "lost: deaths: three workers died")],
            ),
        ];
        for (label, line, rows) in table {
            let wrong = unexplained(&rows, &BTreeMap::new());
            assert!(wrong.first().is_some_and(|wrong| wrong.contains(&format!(": {line}: "))), "{label}: {wrong:?}");
        }
    }

    #[test]
    fn a_chain_is_where_its_record_leads() {
        let rows = [row(1, 0, (7, 1, 1), "done"), row(2, 1, (7, 2, 1), "retried")];
        let place = Place { phase: Phase::Active, tick: TickNo(2), attempt: 2, fence: Fence(2) };
        let judged = |place: Place| unexplained(&rows, &BTreeMap::from([(Epoch(7), place)])).len();
        assert_eq!(judged(place.clone()), 0);
        for other in [
            Place { tick: TickNo(3), ..place.clone() },
            Place { attempt: 1, ..place.clone() },
            Place { fence: Fence(1), ..place.clone() },
            Place { phase: Phase::Quarantined, ..place },
        ] {
            assert_eq!(judged(other.clone()), 1, "{other:?}");
        }
    }
}
