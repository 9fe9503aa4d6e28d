//! Headers of messages: in which a trace travels, until when a message sleeps, and which say that the others could not
//! be read.

use lapin::types::{AMQPValue, FieldTable, ShortString};
use roundelay_model::clock::Time;
use roundelay_model::trace_context::{Carried, Context};

use super::sieve;

const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";
/// RabbitMQ 4.4 keeps a message on its quorum queue until then, in milliseconds since 1970. The type has to be `long`:
/// a number of 32 bits and text are ignored.
const DELIVERY_TIME: &str = "x-opt-delivery-time";
/// In milliseconds since 1970. AMQP's own property has seconds.
const PUBLISHED: &str = "roundelay-published";

/// The headers of a message that this span sends.
pub(super) fn write(trace: &Carried) -> FieldTable {
    let mut headers = FieldTable::default();
    let mut put = |name: &str, value| {
        headers.insert(ShortString::from(name), value);
    };
    put(PARENT, AMQPValue::LongString(trace.context.traceparent().into()));
    if let Some(state) = &trace.context.state {
        put(STATE, AMQPValue::LongString(state.as_ref().into()));
    }
    if let Some(published) = trace.published {
        put(PUBLISHED, AMQPValue::LongLongInt(published.as_millis()));
    }
    headers
}

/// Has a message sleep on its queue until then.
pub(super) fn put_asleep(headers: &mut FieldTable, until: Time) {
    headers.insert(DELIVERY_TIME.into(), AMQPValue::LongLongInt(until.as_millis()));
}

/// Until when a message with these headers was to sleep on its queue.
pub(super) fn asleep_until(headers: &FieldTable) -> Option<Time> {
    match headers.inner().get(DELIVERY_TIME)? {
        AMQPValue::LongLongInt(millis) => Some(Time::from_millis(*millis)),
        _ => None,
    }
}

/// The span that has sent a message with these headers. Other headers are not the engine's.
pub(super) fn read(headers: &FieldTable) -> Option<Carried> {
    let context = Context::parse(text(headers, PARENT)?, text(headers, STATE))?;
    let published = match headers.inner().get(PUBLISHED) {
        Some(AMQPValue::LongLongInt(millis)) => Some(Time::from_millis(*millis)),
        _ => None,
    };
    Some(Carried { context, published })
}

/// Why the message's own properties could not be read, where these are in their place.
pub(super) fn unreadable(headers: &FieldTable) -> Option<&str> {
    text(headers, sieve::UNREADABLE)
}

fn text<'a>(headers: &'a FieldTable, name: &str) -> Option<&'a str> {
    match headers.inner().get(name)? {
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok(),
        AMQPValue::ShortString(text) => Some(text.as_str()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_is_written_is_read() {
        for (state, published) in [(None, None), (Some("a=1"), Some(Time::from_millis(-7)))] {
            let context = Context::parse(TRACE, state).expect("it is right");
            let carried = Carried { context, published };
            assert_eq!(read(&write(&carried)), Some(carried));
        }
    }

    #[test]
    fn what_others_write_is_read_as_far_as_it_is_right() {
        let table = [
            (AMQPValue::LongString(TRACE.into()), true),
            (AMQPValue::ShortString(TRACE.into()), true),
            (AMQPValue::LongString("00-1-2-3".into()), false),
            (AMQPValue::LongString(vec![0xff, 0xfe].into()), false),
            (AMQPValue::Boolean(true), false),
        ];
        for (value, right) in table {
            let mut headers = FieldTable::default();
            headers.insert(PUBLISHED.into(), AMQPValue::LongString("now".into()));
            assert_eq!(read(&headers), None);
            headers.insert(PARENT.into(), value.clone());
            let read = read(&headers);
            assert_eq!(read.is_some(), right, "{value:?}");
            assert!(read.is_none_or(|carried| carried.published.is_none()), "it is no number");
        }
    }
}
