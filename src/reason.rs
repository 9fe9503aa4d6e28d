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
}

impl Reason {
    /// A reason of this class, in these words.
    pub fn new(class: Class, text: impl Into<String>) -> Self {
        Self { class, text: text.into() }
    }
}

/// Reasons are the same when they say the same: the class only sorts them.
impl PartialEq for Reason {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
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
    /// A program ended with an exit code other than 0.
    Exit = "exit",
    /// A program was killed by a signal.
    Signal = "signal",
    /// A handler panicked.
    Panic = "panic",
    /// There is no handler for the kind here.
    NoHandler = "no_handler",
    /// The leave to start was over before the start.
    Slot = "slot",
    /// It came too soon after another start.
    Tolerance = "tolerance",
    /// It came too soon after the end of the run before.
    Cooldown = "cooldown",
    /// It came too late.
    Misfire = "misfire",
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
    /// Somebody else had claimed the tick meanwhile.
    Fenced = "fenced",
    /// The run never ended: its lease ran out.
    Lost = "lost",
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
