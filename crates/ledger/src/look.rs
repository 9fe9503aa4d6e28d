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
}

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
