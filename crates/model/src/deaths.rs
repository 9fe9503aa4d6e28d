//! What becomes of a run that workers have died over (pure).
//!
//! A handler in the worker's own process, or a payload, may end that process: by deep recursion, or by its use of
//! memory. Afterwards it cannot be told which of the runs in hand it was. So the deaths at which a run was in hand are
//! counted, and the more there are, the less runs beside it: what is set aside in the end has been alone with its last
//! death.

/// What was in hand at so many deaths runs no more.
pub const DEATHS_TO_QUARANTINE: u32 = 3;
/// What was in hand at so many is a suspect.
pub const SUSPECTED: u32 = 2;
/// With this begins every reason that [`SET_ASIDE`] was, in whatever words.
pub const CLASS: &str = "deaths: ";
/// Why what was in hand at [`DEATHS_TO_QUARANTINE`] deaths does not run again.
pub const SET_ASIDE: &str = "deaths: three workers died while they ran it, so its handler or payload may end the process \
     (by deep recursion, or for want of memory)";

/// Why the record of a claim ends as lost although no worker died: the answer did not reach the worker that had asked.
pub const UNHEARD: &str = "its worker never heard that it had this claim";

/// Beside what a run may run in its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// Whatever else runs.
    Any,
    /// No suspect: what was in hand at a death may be what workers die of, and a suspect would be blamed for it.
    NoSuspect,
    /// Nothing that was in hand at a death.
    Clear,
}

/// The company of a run that was in hand at so many deaths; `None` when it does not run again.
pub fn company(deaths: u32) -> Option<Company> {
    match deaths {
        0 => Some(Company::Any),
        DEATHS_TO_QUARANTINE.. => None,
        SUSPECTED.. => Some(Company::Clear),
        _ => Some(Company::NoSuspect),
    }
}

/// In whose hands a one-off job was that has not come to an end there, as far as the ledger knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hands {
    /// Sessions that are over.
    pub over: u32,
    /// Other sessions that go on, as far as is known: their workers may have died all the same.
    pub open: u32,
}

/// What becomes of a one-off job that is delivered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// It runs, beside these.
    Runs(Company),
    /// Too many workers have died over it.
    SetAside,
    /// That may be so: it waits until it is known what became of them.
    Waits,
}

impl Hands {
    /// What becomes of the job. It was in one more worker's hand, before anything was noted; but that may have lost its
    /// connection only, as all workers do at once when the broker goes. So that one says no more than that the job had
    /// better not run beside a suspect.
    pub fn again(self) -> Again {
        match (company(self.over), company(self.over + self.open)) {
            (None, _) => Again::SetAside,
            (_, None) => Again::Waits,
            (_, Some(Company::Any)) => Again::Runs(Company::NoSuspect),
            _ => Again::Runs(Company::Clear),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_deaths() {
        let table =
            [(0, Some(Company::Any)), (1, Some(Company::NoSuspect)), (2, Some(Company::Clear)), (3, None), (9, None)];
        for (deaths, expected) in table {
            assert_eq!(company(deaths), expected, "{deaths}");
        }
        assert!(SET_ASIDE.starts_with(CLASS));
    }

    #[test]
    fn a_table_of_hands() {
        let table = [
            ("nothing is noted of it", (0, 0), Again::Runs(Company::NoSuspect)),
            ("one has died", (1, 0), Again::Runs(Company::Clear)),
            ("one may have died", (0, 1), Again::Runs(Company::Clear)),
            ("two have died", (2, 0), Again::Runs(Company::Clear)),
            ("three may have", (2, 1), Again::Waits),
            ("or more", (1, 3), Again::Waits),
            ("three have", (3, 0), Again::SetAside),
            ("whatever became of others", (3, 1), Again::SetAside),
        ];
        for (label, (over, open), expected) in table {
            assert_eq!(Hands { over, open }.again(), expected, "{label}");
        }
    }
}
