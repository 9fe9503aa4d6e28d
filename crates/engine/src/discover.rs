//! Chains that a run asks to begin, and how much a run may ask for.
//!
//! They begin in the transaction that ends the run. One that is there already, or has ended, is left
//! as it is, so a run that is repeated, and one that finds the same entities each time, begins each
//! of them once.

use std::time::Duration;

use roundelay_config::{OwnSchedule, SpawnSettings};
use roundelay_ledger::NewChain;
use roundelay_model::clock::{Entropy, Time};
use roundelay_model::encryption::{AssociatedData, Field};
use roundelay_model::failure::FailedItem;
use roundelay_model::job::Envelope;
use roundelay_model::outcome::{Discovered, NewJob, Yield};
use roundelay_model::schedule::{Balance, Schedule, Setting, phase};
use roundelay_model::wall_clock::WallClock;

use crate::catalog::Catalog;
use crate::outbox::Asking;

/// Leaves out of `yields` what a run of this kind may not ask for, and names the first of it, so that
/// people see it. `depth` is how many runs have led to this one.
pub(super) fn bound(yields: &mut Yield, bounds: SpawnSettings, depth: u32, kind: &str) -> Option<FailedItem> {
    let all = yields.jobs.len() + yields.chains.len();
    let allowed = if depth < bounds.depth { bounds.most } else { 0 };
    if all <= allowed {
        return None;
    }
    let (jobs, chains) = (allowed.min(yields.jobs.len()), allowed.saturating_sub(yields.jobs.len()));
    let first = match (yields.jobs.get(jobs), yields.chains.get(chains)) {
        (Some(job), _) => format!("{} {}", job.kind, job.key),
        (None, Some(chain)) => format!("{} {}", chain.kind, chain.key),
        (None, None) => String::new(),
    };
    yields.jobs.truncate(jobs);
    yields.chains.truncate(chains);
    let reason = if depth < bounds.depth {
        format!(
            "it asks for {all} jobs and chains, and kinds.{kind}.spawn.most is {}: {} are left out, the first is {first}",
            bounds.most,
            all - allowed
        )
    } else {
        format!(
            "{depth} runs have led to it, and kinds.{kind}.spawn.depth is {}: what it asks for ({all}) is left out, \
             the first is {first}",
            bounds.depth
        )
    };
    Some(FailedItem::refused("spawn", reason))
}

/// When the first tick of a discovered chain is due, nominally and really: at a place in its window that follows from
/// its name, unless its schedule has a say in it. `None` for a schedule that has no occurrence any more.
fn first_due(
    schedule: &Schedule,
    spread: Option<Duration>,
    name: (&str, &str),
    now: Time,
    wall_clock: &WallClock,
) -> Option<(Time, Time)> {
    let place = phase(name.0, name.1);
    let window = spread.or_else(|| schedule.interval(now, wall_clock)).unwrap_or_default();
    // No dice are rolled for a first tick.
    let (balance, dice) = (Balance::default(), Entropy::seeded(0));
    let setting = Setting { phase: place, balance: &balance, dice: &dice, wall_clock };
    schedule.first(now, window.mul_f64(place), setting).map(|first| (first.nominal, first.due))
}

impl Catalog {
    /// The chain of a discovered entity.
    ///
    /// # Errors
    /// Says why no worker could run it.
    pub(super) fn discovered(&self, asking: &Asking<'_>, found: Discovered) -> Result<NewChain, String> {
        let Discovered { kind, key, payload, queue, owner, schedule, spread } = found;
        let recurrence = self.kind(&kind).and_then(|kind| kind.recurrence.clone());
        let job = NewJob { kind, key, payload, queue, owner, ..NewJob::default() };
        let Envelope { kind, key, queue, payload, owner, .. } =
            self.envelope("chain".into(), asking.queue, job, asking.at)?;
        let of_kind = recurrence
            .ok_or_else(|| format!("kinds.{kind} has none of `every`, `cron` and `at`, so it has no chains"))?;
        let own = schedule.as_deref().map(OwnSchedule::from_words).transpose()?;
        let schedule = match &own {
            Some(own) => of_kind.with_own(own)?,
            None => of_kind.schedule,
        };
        let (nominal, due) = first_due(&schedule, spread, (&kind, &key), asking.at, asking.wall_clock)
            .ok_or_else(|| format!("its schedule ({schedule}) has no occurrence"))?;
        let payload = asking.keys.sealed(AssociatedData::new(Field::Payload, &kind, &key), payload.to_string());
        Ok(NewChain {
            kind,
            key,
            queue: queue.unwrap_or_default(),
            priority: None,
            payload,
            // One that is there stays as it is.
            forms: Vec::new(),
            nominal,
            due,
            watch_at: due + asking.slack,
            revive: false,
            once: false,
            manual: Default::default(),
            owner: owner.or_else(|| asking.owner.map(Into::into)),
            schedule: own.map(|own| own.text()),
            keep_schedule: true,
            only_new: true,
            depth: asking.depth.saturating_add(1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roundelay_model::schedule::Rhythm;

    /// Jobs and chains, named by their numbers.
    fn asks(jobs: usize, chains: usize) -> Yield {
        let job = |n: usize| NewJob { kind: "job".into(), key: n.to_string(), ..NewJob::default() };
        let chain = |n: usize| Discovered { kind: "chain".into(), key: n.to_string(), ..Discovered::default() };
        Yield { jobs: (1..=jobs).map(job).collect(), chains: (1..=chains).map(chain).collect(), ..Yield::default() }
    }

    #[test]
    fn a_table_of_bounds() {
        let bounds = SpawnSettings { most: 5, depth: 2 };
        let most = "it asks for 6 jobs and chains, and kinds.k.spawn.most is 5: 1 are left out, the first is ";
        let depth = "2 runs have led to it, and kinds.k.spawn.depth is 2: what it asks for ";
        let table = [
            (0, 0, 0, (0, 0), None),
            (5, 0, 0, (5, 0), None),
            (2, 3, 1, (2, 3), None),
            (6, 0, 0, (5, 0), Some(format!("{most}job 6"))),
            (4, 2, 1, (4, 1), Some(format!("{most}chain 2"))),
            (5, 1, 1, (5, 0), Some(format!("{most}chain 1"))),
            (0, 6, 1, (0, 5), Some(format!("{most}chain 6"))),
            (0, 0, 2, (0, 0), None),
            (1, 1, 2, (0, 0), Some(format!("{depth}(2) is left out, the first is job 1"))),
            (0, 1, 9, (0, 0), Some(depth.replacen('2', "9", 1) + "(1) is left out, the first is chain 1")),
        ];
        for (jobs, chains, generation, left, reason) in table {
            let mut yields = asks(jobs, chains);
            let failed = bound(&mut yields, bounds, generation, "k");
            let label = format!("{jobs} jobs and {chains} chains of generation {generation}");
            assert_eq!((yields.jobs.len(), yields.chains.len()), left, "{label}");
            assert_eq!(failed, reason.map(|reason| FailedItem::refused("spawn", reason)), "{label}");
        }
    }

    #[test]
    fn first_ticks_are_spread_by_name_and_a_repeated_run_gives_the_same() {
        let (s, now) = (Duration::from_secs, Time::from_millis(1_000_000));
        let hourly = Schedule::fixed_delay(s(3_600), Duration::ZERO);
        let due = |key: &str, spread| first_due(&hourly, spread, ("k", key), now, &WallClock::default()).unwrap().1;
        let mut tenths = [0; 10];
        for n in 0..10_000 {
            let key = n.to_string();
            let first = due(&key, None);
            assert_eq!(first, due(&key, None));
            assert!((now..now + s(3_600)).contains(&first), "{first}");
            tenths[(first.since(now).as_millis() / 360_000) as usize] += 1;
            assert!(due(&key, Some(s(10))) < now + s(10));
        }
        assert!(tenths.iter().all(|count| (850..1_150).contains(count)), "{tenths:?}");
        assert_eq!(due("a", Some(Duration::ZERO)), now, "at once");
        let at = |at| Schedule { rhythm: Rhythm::At(at), ..hourly.clone() };
        let first = first_due(&at(now + s(7)), Some(s(5)), ("k", "a"), now, &WallClock::default());
        assert_eq!(first, Some((now + s(7), now + s(7))), "the wall clock's word");
    }
}
