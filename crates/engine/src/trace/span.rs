//! What is told to a collector of one step of a run.

use std::borrow::Cow;

use roundelay_model::trace_context::Context;

/// A step that has ended.
#[derive(Clone, Debug)]
pub struct Span {
    /// Its own place.
    pub context: Context,
    /// The span in the same trace that it is part of; zero when there is none.
    pub parent: u64,
    /// What sort of step it is. There are few, so that it can be searched for.
    pub name: Cow<'static, str>,
    /// Its part in a conversation.
    pub role: Role,
    /// Nanoseconds since 1970.
    pub start: u64,
    /// Nanoseconds since 1970.
    pub end: u64,
    /// What is known of it.
    pub attributes: Vec<Attribute>,
    /// What it follows from, in another trace.
    pub link: Option<Context>,
    /// Whether it has failed.
    pub failed: bool,
}

/// Something that is known of a span, under a name.
pub type Attribute = (&'static str, Value);

/// What an attribute is.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Text.
    Text(Cow<'static, str>),
    /// A number.
    Number(i64),
}

/// A span's part in a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// None.
    Internal,
    /// The span is of a request, and waits for the answer.
    Client,
    /// It sends a message.
    Producer,
    /// It works on a message.
    Consumer,
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}
