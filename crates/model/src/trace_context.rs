//! Which span something belongs to, as it travels: [W3C Trace Context](https://www.w3.org/TR/trace-context/).

use std::sync::Arc;

use crate::clock::Time;

/// The longest `tracestate` that is passed on, in bytes: as much as the standard asks for.
const MAX_STATE: usize = 512;
/// The trace is recorded.
const SAMPLED: u8 = 1;
/// The flags that are defined: sampled, and that the trace's id is random.
const KNOWN: u8 = 3;

/// A span, as those below it know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The trace.
    pub trace: u128,
    /// The span, within the trace.
    pub span: u64,
    /// What is said of the trace: see [`Context::sampled`].
    pub flags: u8,
    /// What others who took part in the trace pass on.
    pub state: Option<Arc<str>>,
}

/// What a message carries of the span that has sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    /// The span.
    pub context: Context,
    /// When it was sent. Foreign programs do not say.
    pub published: Option<Time>,
}

impl Context {
    /// Reads the headers `traceparent` and `tracestate`. Nothing when the first is not of the standard's form: what
    /// follows is then a trace of its own.
    pub fn parse(parent: &str, state: Option<&str>) -> Option<Self> {
        let parent = parent.trim();
        let mut parts = parent.splitn(5, '-');
        let version = hex(parts.next()?, 2)?;
        let (trace, span, flags) = (hex(parts.next()?, 32)?, hex(parts.next()?, 16)?, hex(parts.next()?, 2)?);
        // Later versions may have more parts.
        let of_the_form = match version {
            0 => parts.next().is_none(),
            255 => false,
            _ => true,
        };
        if !of_the_form || trace == 0 || span == 0 {
            return None;
        }
        let fits = |state: &&str| {
            !state.is_empty() && state.len() <= MAX_STATE && state.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        };
        Some(Self {
            trace,
            span: u64::try_from(span).ok()?,
            flags: u8::try_from(flags).ok()? & KNOWN,
            state: state.map(str::trim).filter(fits).map(Into::into),
        })
    }

    /// The header `traceparent`.
    pub fn traceparent(&self) -> String {
        format!("00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }

    /// Whether the trace is recorded.
    pub fn sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }
}

/// So many digits, in small letters.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let plain = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    u128::from_str_radix(text, 16).ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    #[test]
    fn a_table_of_traceparents() {
        let known = |flags| Some((0x0af7651916cd43dd8448eb211c80319c, 0xb7ad6b7169203331, flags));
        let table = [
            (format!("00-{TRACE}-b7ad6b7169203331-01"), known(1)),
            (format!(" 00-{TRACE}-b7ad6b7169203331-00 "), known(0)),
            (format!("00-{TRACE}-b7ad6b7169203331-ff"), known(3)),
            (format!("cc-{TRACE}-b7ad6b7169203331-01-what-comes"), known(1)),
            (format!("00-{TRACE}-b7ad6b7169203331-01-what"), None),
            (format!("ff-{TRACE}-b7ad6b7169203331-01"), None),
            (format!("00-{TRACE}-b7ad6b7169203331"), None),
            (format!("00-{TRACE}-b7ad6b716920333-01"), None),
            (format!("00-{TRACE}-+7ad6b7169203331-01"), None),
            (format!("00-{}-b7ad6b7169203331-01", TRACE.to_uppercase()), None),
            (format!("00-{TRACE}-{}-01", "0".repeat(16)), None),
            (format!("00-{}-b7ad6b7169203331-01", "0".repeat(32)), None),
            (String::new(), None),
            ("é".repeat(30), None),
        ];
        for (text, expected) in table {
            let read = Context::parse(&text, None);
            assert_eq!(read.as_ref().map(|c| (c.trace, c.span, c.flags)), expected, "{text}");
            if let Some(context) = read {
                assert_eq!(Context::parse(&context.traceparent(), None), Some(context), "{text}");
            }
        }
    }

    #[test]
    fn a_table_of_tracestates() {
        let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
        let (longest, longer) = ("x".repeat(512), "x".repeat(513));
        let table = [
            (Some("a=1,b=2"), Some("a=1,b=2")),
            (Some(" a=1 "), Some("a=1")),
            (Some(&longest), Some(&*longest)),
            (Some(&longer), None),
            (Some("a=\r\nX: y"), None),
            (Some("a=ñ"), None),
            (Some(""), None),
            (None, None),
        ];
        for (state, expected) in table {
            let read = Context::parse(&parent, state).expect("the parent is right");
            assert_eq!(read.state.as_deref(), expected, "{state:?}");
        }
    }
}
