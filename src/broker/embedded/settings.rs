//! What a queue's arguments come to (pure).

use std::time::Duration;

use crate::broker::topology::Argument;

/// How a queue works.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    /// How long a message may wait.
    pub(super) ttl: Option<Duration>,
    /// The exchange to which goes what has waited so long; without one it is dropped.
    pub(super) dead_letter: Option<String>,
}

impl Settings {
    /// The settings that these arguments ask for.
    pub(super) fn of(arguments: &[(&'static str, Argument)]) -> Self {
        Self {
            ttl: number(arguments, "x-message-ttl").map(Duration::from_millis),
            dead_letter: text(arguments, "x-dead-letter-exchange").map(str::to_owned),
        }
    }
}

/// The text of an argument.
pub(super) fn text<'a>(arguments: &'a [(&'static str, Argument)], wanted: &str) -> Option<&'a str> {
    arguments.iter().find_map(|(name, value)| match value {
        Argument::Text(text) if *name == wanted => Some(text.as_str()),
        _ => None,
    })
}

/// The number of an argument, when it is not negative.
pub(super) fn number(arguments: &[(&'static str, Argument)], wanted: &str) -> Option<u64> {
    arguments.iter().find_map(|(name, value)| match value {
        Argument::Number(number) if *name == wanted => u64::try_from(*number).ok(),
        _ => None,
    })
}
