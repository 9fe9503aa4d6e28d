//! The job's identity in request headers, for receivers that look at it before they read the body
//! (proxies, logs, idempotency layers).

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use roundelay_model::job::Job;

use crate::span::HandlerSpan;

static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
static ID: HeaderName = HeaderName::from_static("roundelay-id");
static KIND: HeaderName = HeaderName::from_static("roundelay-kind");
static KEY: HeaderName = HeaderName::from_static("roundelay-key");
static EPOCH: HeaderName = HeaderName::from_static("roundelay-epoch");
static TICK: HeaderName = HeaderName::from_static("roundelay-tick");
static FENCE: HeaderName = HeaderName::from_static("roundelay-fence");
static ATTEMPT: HeaderName = HeaderName::from_static("roundelay-attempt");
static NOMINAL: HeaderName = HeaderName::from_static("roundelay-nominal");
static DEADLINE: HeaderName = HeaderName::from_static("roundelay-deadline");
static SEED: HeaderName = HeaderName::from_static("roundelay-seed");
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// What is not a visible ASCII character, and the percent sign itself, so that every value can be
/// decoded, whether it needed encoding or not.
const HIDDEN: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// Whether the engine sets `name` itself, or it would break the framing of the call.
pub fn reserved(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("roundelay-")
        || matches!(
            name,
            "idempotency-key" | "traceparent" | "tracestate" | "connection" | "content-length" | "transfer-encoding"
        )
}

/// Adds what identifies `job`, and the span of its run.
pub fn identify(headers: &mut HeaderMap, job: &Job, run: &HandlerSpan) {
    let id = visible(&job.id);
    headers.insert(&IDEMPOTENCY_KEY, id.clone());
    headers.insert(&ID, id);
    headers.insert(&KIND, visible(&job.kind));
    headers.insert(&KEY, visible(&job.key));
    if let Some(tick) = job.tick {
        headers.insert(&EPOCH, tick.epoch.get().into());
        headers.insert(&TICK, tick.tick.get().into());
        headers.insert(&FENCE, tick.fence.get().into());
    }
    headers.insert(&ATTEMPT, job.attempt.into());
    headers.insert(&NOMINAL, visible(&job.nominal.to_string()));
    headers.insert(&DEADLINE, visible(&job.deadline.to_string()));
    headers.insert(&SEED, job.seed.into());
    if let Some(parent) = run.traceparent() {
        headers.insert(&TRACEPARENT, visible(&parent));
    }
    // It was read from a header, and has nothing in it that cannot stand in one.
    if let Some(state) = run.tracestate().and_then(|state| HeaderValue::from_str(state).ok()) {
        headers.insert(&TRACESTATE, state);
    }
}

fn visible(text: &str) -> HeaderValue {
    let value = if text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'%') {
        HeaderValue::from_str(text)
    } else {
        HeaderValue::from_str(&utf8_percent_encode(text, HIDDEN).to_string())
    };
    value.expect("what is not visible ASCII has been encoded")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_visible_and_decode_to_themselves() {
        let table = [
            ("npm/@types/node", "npm/@types/node"),
            ("npm/@types/ñode", "npm/@types/%C3%B1ode"),
            ("a b\tc", "a%20b%09c"),
            ("100%", "100%25"),
            ("%41", "%2541"),
            ("\u{0}\u{7f}\r\nX: y", "%00%7F%0D%0AX:%20y"),
            ("", ""),
        ];
        for (text, encoded) in table {
            let value = visible(text);
            assert_eq!(value.to_str().unwrap(), encoded);
            assert_eq!(percent_encoding::percent_decode_str(encoded).decode_utf8().unwrap(), text);
        }
    }
}
