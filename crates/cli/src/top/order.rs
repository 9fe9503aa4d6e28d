//! The orders that can be given from the screen, and the question that comes before an order (pure).

use std::time::Duration;

use roundelay_admin::operate::reason;
use roundelay_admin::operate::throttle::check_span;
use roundelay_admin::operate::worker::DRAINED;
use roundelay_model::clock::{parse_duration, short_duration};

use super::state::Key;
use super::text::visible;

/// The longest text that can be typed, in characters.
const MAX_TYPED_CHARS: usize = 500;

/// An action on a queue, throttle, worker or chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Workers take no more jobs from a queue.
    PauseQueue(String),
    /// Workers take jobs from a queue again.
    ResumeQueue(String),
    /// A throttle lets nothing start for a while.
    Hold(String),
    /// A throttle lets jobs start again.
    Release(String),
    /// A worker takes no more jobs.
    Drain(String),
    /// A worker takes jobs again.
    ResumeWorker(String),
    /// A chain, by kind and key, stops ticking.
    PauseChain(String, String),
    /// A chain, by kind and key, ticks again.
    ResumeChain(String, String),
    /// The next tick of a chain, by kind and key, comes now.
    Advance(String, String),
}

/// A field of an order that the user types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Span,
    Why,
    /// Why; this may be left out.
    WhyPerhaps,
}

impl Action {
    fn fields(&self) -> &'static [Field] {
        match self {
            Self::PauseQueue(_) => &[Field::Why],
            Self::Hold(_) => &[Field::Span, Field::Why],
            Self::Drain(_) => &[Field::WhyPerhaps],
            _ => &[],
        }
    }

    /// The command that does the same, and what it is about.
    pub fn command(&self) -> (&'static str, String) {
        match self {
            Self::PauseQueue(queue) => ("queue pause", queue.clone()),
            Self::ResumeQueue(queue) => ("queue resume", queue.clone()),
            Self::Hold(throttle) => ("throttle hold", throttle.clone()),
            Self::Release(throttle) => ("throttle release", throttle.clone()),
            Self::Drain(worker) => ("workers drain", worker.clone()),
            Self::ResumeWorker(worker) => ("workers resume", worker.clone()),
            Self::PauseChain(kind, key) => ("pause", format!("{kind} {key}")),
            Self::ResumeChain(kind, key) => ("resume", format!("{kind} {key}")),
            Self::Advance(kind, key) => ("advance", format!("{kind} {key}")),
        }
    }

    /// The action in words.
    pub fn words(&self) -> String {
        match self {
            Self::PauseQueue(queue) => format!("Pause the queue {queue}"),
            Self::ResumeQueue(queue) => format!("Resume the queue {queue}"),
            Self::Hold(throttle) => format!("Hold the throttle {throttle}"),
            Self::Release(throttle) => format!("Release the throttle {throttle}"),
            Self::Drain(worker) => format!("Drain the worker {worker}"),
            Self::ResumeWorker(worker) => format!("Resume the worker {worker}"),
            Self::PauseChain(kind, key) => format!("Pause the chain {kind} {key}"),
            Self::ResumeChain(kind, key) => format!("Resume the chain {kind} {key}"),
            Self::Advance(kind, key) => format!("Bring the next tick of {kind} {key} forward to now"),
        }
    }
}

/// A confirmed action with its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub action: Action,
    /// For how long; zero if the action has no such field.
    pub span: Duration,
    /// Why; empty if the action has no such field.
    pub why: String,
}

/// The question before an order: its fields, and then a confirmation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    order: Order,
    /// The index of the field that is asked for; after the last field, the confirmation.
    at: usize,
    typed: String,
    /// Why the typed text is refused.
    typing_error: Option<String>,
}

/// The result of a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Answered {
    /// The question is still open.
    Open(Question),
    /// The user has cancelled.
    Dropped,
    /// The user has confirmed.
    Confirmed(Order),
}

impl Question {
    /// The question about an action.
    pub fn new(action: Action) -> Self {
        let order = Order { action, span: Duration::ZERO, why: String::new() };
        Self { order, at: 0, typed: String::new(), typing_error: None }
    }

    fn field(&self) -> Option<Field> {
        self.order.action.fields().get(self.at).copied()
    }

    /// The text of the question.
    pub fn asks(&self) -> String {
        let words = self.order.action.words();
        let asks = match self.field() {
            Some(Field::Span) => format!("{words}. For how long (30m)?"),
            Some(Field::Why) => format!("{words}{}. Why?", self.so_far()),
            Some(Field::WhyPerhaps) => format!("{words}. Why ({DRAINED})?"),
            None => format!("{words}{}?", self.so_far()),
        };
        match &self.typing_error {
            Some(typing_error) => format!("{asks} ({typing_error})"),
            None => asks,
        }
    }

    fn so_far(&self) -> String {
        let Order { span, why, .. } = &self.order;
        let span = if span.is_zero() { String::new() } else { format!(" for {}", short_duration(*span)) };
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        format!("{span}{why}")
    }

    /// The typed text; nothing while the question is yes or no.
    pub fn typed(&self) -> Option<&str> {
        self.field().map(|_| self.typed.as_str())
    }

    /// Takes a key.
    pub fn press(mut self, key: Key) -> Answered {
        match (key, self.field()) {
            (Key::Esc, _) => return Answered::Dropped,
            (Key::Char('y' | 'Y'), None) => return Answered::Confirmed(self.order),
            (Key::Char('n' | 'N'), None) => return Answered::Dropped,
            (_, None) => {}
            (Key::Char(letter), Some(_)) if self.typed.len() < MAX_TYPED_CHARS => self.typed.push(letter),
            (Key::Backspace, Some(_)) => {
                self.typed.pop();
            }
            (Key::Enter, Some(field)) => match self.take(field) {
                Ok(()) => (self.at, self.typed, self.typing_error) = (self.at + 1, String::new(), None),
                Err(typing_error) => self.typing_error = Some(typing_error),
            },
            _ => {}
        }
        Answered::Open(self)
    }

    /// The typed text follows the same rules as the command's argument of the same name.
    fn take(&mut self, field: Field) -> Result<(), String> {
        let typed = visible(self.typed.trim());
        match field {
            Field::Span => {
                let span = parse_duration(&typed).map_err(|_| "write for example 30m, 2h or 90s".to_owned())?;
                check_span(span)?;
                self.order.span = span;
            }
            Field::Why => self.order.why = reason(&typed)?.into(),
            Field::WhyPerhaps => self.order.why = reason(&typed).unwrap_or(DRAINED).into(),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types keys one after the other: `⏎` is Enter, `⎋` is Escape, `⌫` is Backspace.
    fn type_in(action: &Action, keys: &str) -> Answered {
        let mut question = Question::new(action.clone());
        for letter in keys.chars() {
            let key = match letter {
                '⏎' => Key::Enter,
                '⎋' => Key::Esc,
                '⌫' => Key::Backspace,
                letter => Key::Char(letter),
            };
            match question.press(key) {
                Answered::Open(next) => question = next,
                answered => return answered,
            }
        }
        Answered::Open(question)
    }

    #[test]
    fn an_order_is_given_only_with_all_that_it_needs_and_a_yes() {
        let (pause, hold) = (Action::PauseQueue("work".into()), Action::Hold("ios".into()));
        let (drain, advance) = (Action::Drain("w-1".into()), Action::Advance("sync".into(), "a".into()));
        let meant = |action: &Action, secs, why: &str| {
            Some(Order { action: action.clone(), span: Duration::from_secs(secs), why: why.into() })
        };
        let table = [
            (&pause, "they are down⏎y", meant(&pause, 0, "they are down")),
            (&pause, "they are down⏎n", None),
            (&pause, "they are down⏎⎋", None),
            (&pause, "x⎋", None),
            (&pause, "  ⏎⌫⌫yes⏎y", meant(&pause, 0, "yes")),
            (&hold, "30m⏎they are down⏎y", meant(&hold, 1_800, "they are down")),
            (&hold, "soon⏎⌫⌫⌫⌫90s⏎x⏎Y", meant(&hold, 90, "x")),
            (&drain, "⏎y", meant(&drain, 0, DRAINED)),
            (&drain, "a new kernel⏎y", meant(&drain, 0, "a new kernel")),
            (&advance, "y", meant(&advance, 0, "")),
            (&advance, "n", None),
        ];
        for (action, keys, order) in table {
            let expected = order.map_or(Answered::Dropped, Answered::Confirmed);
            assert_eq!(type_in(action, keys), expected, "{keys}");
        }
        // Only a yes confirms.
        for (action, keys) in [(&pause, "y⏎"), (&pause, "⏎y⏎"), (&advance, "x ⏎⏎"), (&hold, "y⏎y"), (&hold, "0s⏎y")]
        {
            assert!(matches!(type_in(action, keys), Answered::Open(_)), "{keys}");
        }
    }

    #[test]
    fn questions_say_what_they_are_about() {
        let hold = Action::Hold("ios".into());
        let asks = |keys: &str| match type_in(&hold, keys) {
            Answered::Open(question) => (question.asks(), question.typed().map(str::to_owned)),
            answered => panic!("{answered:?}"),
        };
        let typed = |text: &str| Some(text.to_owned());
        assert_eq!(asks("30"), ("Hold the throttle ios. For how long (30m)?".into(), typed("30")));
        assert_eq!(asks("400d⏎").0, "Hold the throttle ios. For how long (30m)? (from 1ms to 366d is possible)");
        assert_eq!(asks("90s⏎"), ("Hold the throttle ios for 90s. Why?".into(), typed("")));
        let typing_error =
            "Hold the throttle ios for 90s. Why? (it needs a word for those who wonder why nothing runs)";
        assert_eq!(asks("90s⏎ ⏎").0, typing_error);
        assert_eq!(asks("90s⏎down\x1b⏎"), ("Hold the throttle ios for 90s: down␛?".into(), None));
    }
}
