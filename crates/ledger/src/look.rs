//! What operators ask about many chains, and how chains are moved in time.

use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, Fence, TickNo};

use crate::chain::{ChainState, Hint, Holder};
use crate::orders::ChainFilter;

/// Above every name that a kind or a key can have.
pub const LAST: &str = "\u{10FFFF}";

/// Rotations to list: those that fit all that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListFilter {
    /// By name, owner or pattern.
    pub which: ChainFilter,
    /// By what they are doing.
    pub condition: Option<Condition>,
}

/// What listed rotations are doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// They are in this state.
    State(ChainState),
    /// They are being run.
    Running,
}

/// The place after which a page of rotations begins: kind and key of the last one of the page before.
pub type Cursor = (String, String);

impl ListFilter {
    /// The range of the order by kind and key that this filter covers: the place before its first rotation, and its
    /// last kind. So a page of one kind costs nothing for the kinds before and after it.
    pub fn range(&self, after: Option<Cursor>) -> (Cursor, String) {
        let start = (self.which.kind.clone().unwrap_or_default(), String::new());
        let last = self.which.kind.clone().unwrap_or_else(|| LAST.into());
        (after.map_or_else(|| start.clone(), |after| after.max(start.clone())), last)
    }

    /// The state that is asked for, if one is, and whether the rotations have to be running.
    pub fn bounds(&self) -> (Option<i64>, bool) {
        match self.condition {
            None => (None, false),
            Some(Condition::State(state)) => (Some(state as i64), false),
            Some(Condition::Running) => (Some(ChainState::Active as i64), true),
        }
    }
}

/// A rotation in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its current message.
    pub hint: Hint,
    /// What it is doing.
    pub state: ChainState,
    /// The last claim.
    pub fence: Fence,
    /// When the tick is nominally due.
    pub nominal: Time,
    /// Who has claimed it.
    pub holder: Holder,
    /// See [`super::NewChain::owner`].
    pub owner: Option<String>,
    /// See [`super::NewChain::schedule`].
    pub schedule: Option<String>,
    /// When a run last started; zero when none has.
    pub last_start: Time,
    /// When a run last ended; zero when none has.
    pub last_finish: Time,
    /// The tick of which a run last started.
    pub started_tick: TickNo,
    /// Members of the batch that it waits for: those that have not ended, and all. Zero without one.
    pub batch: (i64, i64),
    /// Why its entity is unavailable, when a run has ended the chain for that: the name of the reason, if it
    /// has one, and its words.
    pub unavailable: Option<String>,
    /// See [`FinishRequest::learned`](crate::FinishRequest::learned).
    pub learned: Option<Vec<u8>>,
}

/// An owner's rotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerCensus {
    /// The owner.
    pub owner: String,
    /// The state that was ordered for the owner as a whole. It also holds for one-off jobs that wait in queues.
    pub state: ChainState,
    /// Those that tick.
    pub active: i64,
    /// Those that an operator has stopped.
    pub paused: i64,
    /// Those that have ended.
    pub retired: i64,
    /// Those whose messages were ahead of the ledger.
    pub quarantined: i64,
    /// Of those that tick, the late ones, as far as they were looked at.
    pub late: i64,
    /// Whether all chains that tick were looked at. If not, there may be more late ones.
    pub late_complete: bool,
    /// Failures of their entities, of the whole or of parts, of which the entities have not recovered; as far as
    /// failures were looked at.
    pub failing: i64,
    /// Whether all failures of the ledger were looked at. Else there may be more.
    pub failing_complete: bool,
}

/// How many active chains a page of owners looks at for a screen, at most, and failures in proportion: some tenth of a
/// second of work.
pub const OWNERS_EFFORT: u32 = 50_000;

/// As many chains are looked at in the time that one failure takes, whose chain is found by its name.
const PER_FAILURE: u32 = 4;

/// How many failures a page of owners looks at, at most, that looks at `effort` chains.
pub(super) fn failures_for(effort: u32) -> u32 {
    effort / PER_FAILURE
}

/// How many chains of each owner are looked at so that those of all are at most `effort`: as many of one as of the
/// other, and what owners with fewer chains leave is for those with more. `chains` are how many each has.
pub(super) fn share(chains: impl Iterator<Item = i64>, effort: u32) -> i64 {
    let mut chains: Vec<i64> = chains.collect();
    chains.sort_unstable();
    let mut left = i64::from(effort);
    for (others, count) in (0..chains.len()).rev().zip(chains) {
        let equal = left / (others as i64 + 1);
        if count > equal {
            return equal;
        }
        left -= count;
    }
    i64::MAX
}

/// The place after which a page of late rotations begins, longest overdue first: when the last one of the page before
/// was due, and its epoch.
pub type LateCursor = (Time, Epoch);

/// The next tick of a rotation comes at another time. Refused unless the tick is still the one that was seen, sleeps,
/// and has not started: so a tick is not moved twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The chain's incarnation.
    pub epoch: Epoch,
    /// The tick that was seen.
    pub tick: TickNo,
    /// When it was due.
    pub from: Time,
    /// When it is nominally due now.
    pub nominal: Time,
    /// When it is due now.
    pub due: Time,
    /// When catch-up looks after it, unless its message is noted as sent.
    pub watch_at: Time,
}

/// `pattern`, with `*` for anything and `?` for one character, as SQLite's GLOB takes it.
pub(super) fn sqlite_glob(pattern: &str) -> String {
    pattern.replace('[', "[[]")
}

/// Whether `text` fits a `pattern`, with `*` for anything and `?` for one character.
pub fn fits_pattern(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    // Where the last star is, and how far what it stands for has come.
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(letter) if *letter == '?' || *letter == text[t] => (p, t) = (p + 1, t + 1),
            _ => match star {
                Some((at, come)) => {
                    star = Some((at, come + 1));
                    (p, t) = (at + 1, come + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|letter| *letter == '*')
}

/// `pattern` as SQL's LIKE takes it.
#[cfg_attr(not(feature = "postgres"), allow(dead_code))]
pub(super) fn sql_like(pattern: &str) -> String {
    let mut like = String::with_capacity(pattern.len() + 8);
    for letter in pattern.chars() {
        match letter {
            '*' => like.push('%'),
            '?' => like.push('_'),
            '%' | '_' | '\\' => like.extend(['\\', letter]),
            _ => like.push(letter),
        }
    }
    like
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stars_and_question_marks_mean_something_in_a_pattern() {
        assert_eq!(sqlite_glob("eu/*[1]?"), "eu/*[[]1]?");
        assert_eq!(sql_like(r"eu/*100%_\?"), r"eu/%100\%\_\\_");
    }

    #[test]
    fn a_table_of_patterns() {
        let table = [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("eu/*", "eu/app-1", true),
            ("eu/*", "us/app-1", false),
            ("*-1", "eu/app-1-1", true),
            ("*a*b*c", "xaxbxbxc", true),
            ("*a*b*c", "xaxcxbx", false),
            ("app-?", "app-1", true),
            ("app-?", "app-", false),
            ("a[1]", "a[1]", true),
            ("é?", "éß", true),
        ];
        for (pattern, text, fits) in table {
            assert_eq!(fits_pattern(pattern, text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn a_table_of_how_many_chains_of_each_owner_are_looked_at() {
        let table: [(&[i64], u32, i64); 7] = [
            (&[], 10, i64::MAX),
            (&[3, 7], 10, i64::MAX),
            (&[3, 8], 10, 7),
            (&[1_000, 2, 1_000, 0], 102, 50),
            (&[1_000_000], 50_000, 50_000),
            (&[5, 5, 5], 2, 0),
            (&[0, 0], 0, i64::MAX),
        ];
        for (chains, effort, expected) in table {
            let each = share(chains.iter().copied(), effort);
            assert_eq!(each, expected, "{chains:?}");
            assert!(chains.iter().map(|count| (*count).min(each)).sum::<i64>() <= i64::from(effort), "{chains:?}");
        }
    }

    #[test]
    fn a_page_begins_after_what_was_shown_and_not_before_its_kind() {
        let place = |kind: &str, key: &str| (kind.to_owned(), key.to_owned());
        let all = ListFilter::default();
        assert_eq!(all.range(None), (place("", ""), LAST.into()));
        assert_eq!(all.range(Some(place("b", "x"))).0, place("b", "x"));
        let sync =
            ListFilter { which: ChainFilter { kind: Some("sync".into()), ..ChainFilter::default() }, condition: None };
        assert_eq!(sync.range(None), (place("sync", ""), "sync".into()));
        assert_eq!(sync.range(Some(place("charts", "x"))).0, place("sync", ""));
        assert_eq!(sync.range(Some(place("sync", "x"))).0, place("sync", "x"));
    }
}
