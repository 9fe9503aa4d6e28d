//! Why a run did not work: words for a person, and a class for figures.
//!
//! The words are whatever a handler, an upstream or a system says, so there is no end of different
//! ones. What is counted by reason is counted by [`Class`], of which there are few.

use std::fmt;

/// Why a run did not work.
#[derive(Clone, Debug, Eq)]
pub struct Reason {
    /// What sort of thing it was.
    pub class: Class,
    /// What went wrong, for a person.
    pub text: String,
    /// What the kind's settings go by, to say what follows from it.
    pub mark: Mark,
}

/// What a reason is known by: [`crate::policy`] makes a code of it, and of that what follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mark {
    /// Nothing: what follows is what the outcome says.
    #[default]
    None,
    /// The status of an HTTP answer that did not decide.
    Status(u16),
    /// The exit code of a program.
    Exit(i32),
    /// A name that the handler gave it, or that the settings gave to one of the above.
    Code(String),
}

impl Reason {
    /// A reason of this class, in these words.
    pub fn new(class: Class, text: impl Into<String>) -> Self {
        Self { class, text: text.into(), mark: Mark::None }
    }

    /// The same, known by `mark`.
    #[must_use]
    pub fn marked(self, mark: Mark) -> Self {
        Self { mark, ..self }
    }

    /// The same, with a name: one under `[reasons]` in the configuration, or any other.
    #[must_use]
    pub fn coded(self, code: impl Into<String>) -> Self {
        self.marked(Mark::Code(code.into()))
    }

    /// Its name, if it has one.
    pub fn code(&self) -> Option<&str> {
        match &self.mark {
            Mark::Code(code) => Some(code),
            Mark::None | Mark::Status(_) | Mark::Exit(_) => None,
        }
    }
}

/// Reasons are the same when they say the same: the class only sorts them, and the mark is for the
/// settings.
impl PartialEq for Reason {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.code() == other.code()
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The handler's own words.
impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self::new(Class::Handler, text)
    }
}

/// The handler's own words.
impl From<&str> for Reason {
    fn from(text: &str) -> Self {
        Self::new(Class::Handler, text)
    }
}

macro_rules! classes {
    ($($(#[doc = $doc:expr])+ $name:ident = $word:literal,)+) => {
        /// What sort of thing went wrong: a closed set, fit for the label of a metric.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Class {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Class {
            /// Every class.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// As it stands in metrics and logs.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)+
                }
            }
        }
    };
}

classes! {
    /// The handler said so: a Rust handler's word, or an `outcome` in an answer.
    Handler = "handler",
    /// The handler's answer has an `outcome` that cannot be followed.
    Answer = "answer",
    /// The job itself cannot be handed over: its URL cannot be made.
    Job = "job",
    /// It was not done because it was not allowed: a call that would have led to an address that is not public, a
    /// program that is not on the list.
    Refused = "refused",
    /// There was no connection to where the job was to be POSTed.
    Connect = "connect",
    /// A call broke off.
    Transport = "transport",
    /// Not done by its deadline.
    Timeout = "timeout",
    /// An HTTP status from 300 to 399.
    Http3xx = "http_3xx",
    /// HTTP 429.
    Http429 = "http_429",
    /// Another HTTP status from 400 to 499.
    Http4xx = "http_4xx",
    /// An HTTP status from 500 to 599.
    Http5xx = "http_5xx",
    /// Any other HTTP status.
    HttpOther = "http_other",
    /// A program could not be started, or was lost track of.
    Start = "start",
    /// The worker could open no more files, for a connection or a program.
    Files = "files",
    /// A program ended with an exit code other than 0.
    Exit = "exit",
    /// A program was killed by a signal.
    Signal = "signal",
    /// A handler panicked.
    Panic = "panic",
    /// There is no handler for the kind here.
    NoHandler = "no_handler",
    /// Its payload is sealed, and does not open here.
    Sealed = "sealed",
    /// The leave to start was over before the start.
    Slot = "slot",
    /// It came too soon after another start.
    Tolerance = "tolerance",
    /// It came too soon after the end of the run before.
    Cooldown = "cooldown",
    /// The rotation of its chain ran.
    Running = "running",
    /// Its chain had ended.
    Ended = "ended",
    /// It came too late.
    Misfire = "misfire",
    /// It came too late, since it had waited for its tenant's quota.
    Quota = "quota",
    /// It came too late, since it had waited for its tenant's turn.
    Turn = "turn",
    /// It came in time that a calendar excludes.
    Calendar = "calendar",
    /// Its time was up.
    TimeBox = "time_box",
    /// Its batch has ended.
    Batch = "batch",
    /// Another job of its kind and key had the place.
    Unique = "unique",
    /// Its owner is paused or gone.
    Owner = "owner",
    /// The worker stopped.
    Stopped = "stopped",
    /// Another worker had claimed the tick meanwhile.
    Fenced = "fenced",
    /// The run never ended: its lease ran out.
    Lost = "lost",
}

/// At most `most` characters of foreign text, fit for one line of a log.
pub fn excerpt(text: &[u8], most: usize) -> String {
    // A character has at most four bytes: whatever `text` holds, only this much of it is looked at.
    let text = text.trim_ascii();
    let text = String::from_utf8_lossy(&text[..text.len().min(most * 4 + 4)]);
    let mut kept: String = text.chars().take(most).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(most).is_some() {
        kept.push('…');
    }
    kept
}
#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn classes_have_one_word_each_that_needs_no_escaping() {
        let words: BTreeSet<&str> = Class::ALL.iter().map(|class| class.as_str()).collect();
        assert_eq!(words.len(), Class::ALL.len());
        assert!(words.iter().all(|word| word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')), "{words:?}");
        assert!(Class::ALL.iter().enumerate().all(|(n, class)| *class as usize == n), "the place is the number");
    }
}
