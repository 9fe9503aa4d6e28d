//! What runs pass on to the next one (pure): a list to which each run appends its fence. The list that a run reads is
//! the one that the run wrote whose end the ledger took last. So an update shows that was lost, or doubled, or that is
//! of a run whose end was not taken.

use std::collections::HashMap;

use super::{Attempt, Carry, Record, told};

/// Lists that a run read and that the run before had not written so; and how many were compared.
pub fn lost_and_doubled(record: &Record, attempts: &[Attempt]) -> (Vec<String>, usize) {
    let mut taken: HashMap<i64, Vec<i64>> = HashMap::new();
    for row in attempts.iter().filter(|row| row.verdict.as_deref() == Some("done")) {
        taken.entry(row.epoch).or_default().push(row.fence);
    }
    let (mut findings, mut compared) = (Vec::new(), 0);
    for (epoch, calls) in record.chains.iter().filter(|(_, calls)| calls.iter().any(|seen| seen.call.carry.is_some())) {
        let mut taken = taken.remove(epoch).unwrap_or_default();
        taken.sort_unstable();
        let read: HashMap<i64, Carry> = calls
            .iter()
            .filter_map(|seen| Some((seen.call.fence?, seen.call.carry.clone().unwrap_or_default())))
            .collect();
        for seen in calls {
            let Some(fence) = seen.call.fence else { continue };
            let before = taken[..taken.partition_point(|taken| *taken < fence)].last();
            let expected = match before {
                None => Carry::default(),
                // A run that the receiver never saw is missed elsewhere.
                Some(before) => match read.get(before) {
                    Some(carry) => carry.with(*before),
                    None => continue,
                },
            };
            compared += 1;
            let carry = &read[&fence];
            if *carry != expected {
                findings.push(told(seen, &format!("it read {carry:?}, and the run before it wrote {expected:?}")));
            }
        }
    }
    (findings, compared)
}
