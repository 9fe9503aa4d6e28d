//! What the runs of each kind came to on this worker, until the ledger has it.

use std::collections::BTreeMap;

use roundelay_model::clock::Time;
use roundelay_model::kind_stats::{KindBucket, KindStats, Step};

/// More buckets than this wait for the ledger no longer: the oldest go first. A hundred kinds need a third of it for an
/// hour.
const MAX_UNTOLD: usize = 20_000;

/// The buckets that have begun or wait to be written.
#[derive(Default)]
pub(crate) struct OwnKindStats(BTreeMap<(Time, Step, String), Bucket>);

#[derive(Default)]
struct Bucket {
    stats: KindStats,
    /// Something has come since it was last written.
    untold: bool,
}

impl OwnKindStats {
    /// Adds what runs of a kind came to just before `now`, counted since then.
    pub(crate) fn add(&mut self, kind: &str, recent: KindStats, since: Time, now: Time) {
        if recent.is_empty() {
            return;
        }
        for step in Step::ALL {
            let bucket = self.0.entry((step.begin(now), step, kind.to_owned())).or_default();
            // What came just before a stretch began is counted as its own.
            let since = Some(since.max(step.begin(now)));
            bucket.stats.add(&KindStats { since, until: Some(now), ..recent.clone() });
            bucket.untold = true;
        }
    }

    /// What the ledger does not have yet.
    pub(crate) fn untold(&self) -> Vec<KindBucket> {
        let untold = self.0.iter().filter(|(_, bucket)| bucket.untold);
        untold
            .map(|((at, step, kind), bucket)| KindBucket {
                step: *step,
                at: *at,
                kind: kind.clone(),
                stats: bucket.stats.clone(),
            })
            .collect()
    }

    /// The ledger has these. They are forgotten once they are over.
    pub(crate) fn told(&mut self, told: &[KindBucket]) {
        for KindBucket { step, at, kind, stats } in told {
            if let Some(bucket) = self.0.get_mut(&(*at, *step, kind.clone())) {
                bucket.untold = bucket.stats != *stats;
            }
        }
    }

    /// Forgets what is over and written, and the oldest of what is too much.
    pub(crate) fn clear(&mut self, now: Time) {
        self.0.retain(|(at, step, _), bucket| bucket.untold || *at == step.begin(now));
        while self.0.len() > MAX_UNTOLD {
            self.0.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(count: u64) -> KindStats {
        KindStats { ends: BTreeMap::from([("done".to_owned(), count)]), ..KindStats::default() }
    }

    #[test]
    fn buckets_are_told_until_they_are_over_and_written() {
        let at = |secs: i64| Time::from_millis(secs * 1_000);
        let mut own = OwnKindStats::default();
        own.add("sync", KindStats::default(), at(0), at(0));
        assert_eq!(own.untold(), [], "nothing has come");
        // The three begin at the same time.
        own.add("sync", done(2), at(3_640), at(3_650));
        let first = own.untold();
        let places: Vec<_> = first.iter().map(|bucket| (bucket.step, bucket.at)).collect();
        assert_eq!(places, Step::ALL.map(|step| (step, step.begin(at(3_650)))));
        // More comes while the ledger writes.
        own.add("sync", done(1), at(3_650), at(3_655));
        own.told(&first);
        assert_eq!(own.untold().len(), 3, "with what has come since");
        let second = own.untold();
        let whole = KindStats { since: Some(at(3_640)), until: Some(at(3_655)), ..done(3) };
        assert!(second.iter().all(|bucket| bucket.stats == whole), "in place of what was written before");
        own.told(&second);
        own.clear(at(3_665));
        assert_eq!((own.untold().len(), own.0.len()), (0, 2), "the minute is over; the others have begun");
        own.add("sync", done(4), at(3_655), at(3_665));
        own.clear(at(7_300));
        assert_eq!(own.0.len(), 3, "not written yet, however long ago they were over");
        for n in 0..MAX_UNTOLD as i64 {
            own.add("sync", done(1), at(0), at(100_000 + 60 * n));
        }
        own.clear(at(0));
        assert_eq!(own.0.len(), MAX_UNTOLD);
        assert!(own.0.keys().all(|(begun, ..)| *begun > at(100_000)), "the oldest have gone");
    }
}
