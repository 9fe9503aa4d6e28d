//! For what a job waited before it started (pure).

use std::time::Duration;

use crate::reason::{Class, Reason};

/// How long a job has waited, and for what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// For other jobs of its tenant to end, because of the tenant's quota.
    pub quota: Duration,
    /// For its tenant's turn: for room on a fair queue, or for a slot of a fair throttle.
    pub turn: Duration,
}

/// Why an occurrence could not start in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hindrance {
    /// Nothing could start the occurrence: no worker ran, say, or there was no room on a queue that is not fair.
    #[default]
    Misfire,
    /// The tenant's quota.
    Quota,
    /// The tenant's turn had not come.
    Turn,
}

impl Waits {
    /// What a start that is `late` is late for: what half of that time and more was waited for.
    pub fn explain(self, late: Duration) -> Hindrance {
        let (longer, hindrance) =
            if self.quota >= self.turn { (self.quota, Hindrance::Quota) } else { (self.turn, Hindrance::Turn) };
        if !late.is_zero() && longer.saturating_mul(2) >= late { hindrance } else { Hindrance::Misfire }
    }

    /// This, and what was waited for before.
    #[must_use]
    pub fn and(self, before: Self) -> Self {
        Self { quota: self.quota.saturating_add(before.quota), turn: self.turn.saturating_add(before.turn) }
    }
}

impl Hindrance {
    /// A reason that says a job was late says for what.
    pub fn of(self, reason: Reason) -> Reason {
        let (class, what) = match self {
            Self::Misfire => return reason,
            Self::Quota => (Class::Quota, "its tenant's quota"),
            Self::Turn => (Class::Turn, "its tenant's turn"),
        };
        Reason { class, text: format!("{}, and the job waited most of that time for {what}", reason.text), ..reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_what_made_a_start_late() {
        let s = Duration::from_secs;
        let table = [
            ("nothing was waited for", (0, 0), 60, Hindrance::Misfire),
            ("in time", (0, 0), 0, Hindrance::Misfire),
            ("a quota, all the time", (60, 0), 60, Hindrance::Quota),
            ("a turn, half of the time", (0, 30), 60, Hindrance::Turn),
            ("a turn, less than half of the time", (0, 29), 60, Hindrance::Misfire),
            ("each less than half of the time", (20, 29), 60, Hindrance::Misfire),
            ("the turn for longer", (10, 40), 60, Hindrance::Turn),
            ("as long as can be said", (0, u64::MAX), 60, Hindrance::Turn),
        ];
        for (label, (quota, turn), late, hindrance) in table {
            let waits = Waits { quota: s(quota), turn: s(turn) };
            assert_eq!(waits.explain(s(late)), hindrance, "{label}");
        }
    }

    #[test]
    fn a_reason_says_what_was_waited_for() {
        let late = || Reason::new(Class::Misfire, "misfire: it was due 3m ago");
        let told = Hindrance::Quota.of(late());
        assert_eq!(
            (told.class, told.text.as_str()),
            (Class::Quota, "misfire: it was due 3m ago, and the job waited most of that time for its tenant's quota")
        );
        assert_eq!(Hindrance::Turn.of(late()).class, Class::Turn);
        assert_eq!(Hindrance::Misfire.of(late()).class, Class::Misfire);
    }
}
