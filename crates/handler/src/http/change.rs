//! Whether an HTTP answer says that its entity has changed, beside what its body says in words (pure).

use reqwest::StatusCode;
use roundelay_model::clock::Time;
use roundelay_model::outcome::{Change, Outcome};

use super::status::{Reply, outcome_of};
use crate::answer;
use crate::compare::{Compare, mark, saying};

/// The outcome of a job as [`outcome_of`] has it, with what `compare` makes of the answer, whose header `ETag` is
/// `etag`.
pub fn compared(reply: &Reply<'_>, etag: Option<&[u8]>, compare: Compare, now: Time) -> Outcome {
    let change = change(reply, etag, compare);
    // A kind that compares asks for 304. For other kinds 304 is a redirect, which is not followed.
    let unchanged = change.is_some() && reply.status == StatusCode::NOT_MODIFIED;
    let outcome = if unchanged { answer::decided(reply.body).unwrap_or(Outcome::Done) } else { outcome_of(reply, now) };
    saying(outcome, change)
}

/// A status that is no success is about the call, and not about the entity.
fn change(reply: &Reply<'_>, etag: Option<&[u8]>, compare: Compare) -> Option<Change> {
    let (unchanged, success) = (reply.status == StatusCode::NOT_MODIFIED, reply.status.is_success());
    match compare {
        Compare::Word => None,
        _ if unchanged => Some(Change::Same),
        _ if !success => None,
        Compare::Status => Some(Change::Changed),
        Compare::Etag => etag.and_then(tag).map(mark),
        Compare::Hash => Some(mark(reply.body)),
    }
}

/// What an `ETag` names. That it is weak says how much alike two bodies with it are, and does not make it another.
fn tag(etag: &[u8]) -> Option<&[u8]> {
    let etag = etag.trim_ascii();
    let tag = etag.strip_prefix(b"W/").unwrap_or(etag);
    (!tag.is_empty()).then_some(tag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use roundelay_model::outcome::Yield;

    #[test]
    fn a_table_of_answers() {
        use Compare::{Etag, Hash, Status, Word};
        let said = |change| Outcome::DoneWith(Yield { change: Some(change), ..Yield::default() });
        let carrying = |change| Outcome::DoneWith(Yield { change, carry: Some(1.into()), ..Yield::default() });
        let (same, changed) = (said(Change::Same), said(Change::Changed));
        let redirect = Outcome::fail("HTTP 304 Not Modified: redirects are not followed");
        let (tag, weak) = (Some("\"a\""), Some("W/\"a\""));
        let (done, carry, word) = (r#"{"outcome":"done"}"#, r#"{"carry":1}"#, r#"{"changed":false}"#);
        let table = [
            (Word, 200, tag, "text", Outcome::Done),
            (Word, 200, tag, word, same.clone()),
            (Word, 304, tag, "", redirect),
            (Status, 200, tag, "text", changed.clone()),
            (Status, 204, None, "", changed.clone()),
            (Status, 200, None, done, changed),
            (Status, 200, None, carry, carrying(Some(Change::Changed))),
            (Status, 200, None, word, same.clone()),
            (Status, 304, None, "", same.clone()),
            (Status, 302, None, "", Outcome::fail("HTTP 302 Found: redirects are not followed")),
            (Status, 404, None, "", Outcome::fail("HTTP 404 Not Found")),
            (Status, 500, None, "", Outcome::retry("HTTP 500 Internal Server Error")),
            // It is done by its words only, and they say nothing of a change.
            (Status, 404, None, done, Outcome::Done),
            (Etag, 404, tag, done, Outcome::Done),
            (Hash, 404, tag, carry, carrying(None)),
            (Hash, 404, tag, word, same.clone()),
            (Etag, 200, tag, "text", said(mark(b"\"a\""))),
            (Etag, 200, weak, "other", said(mark(b"\"a\""))),
            (Etag, 200, Some(" W/\"b\" "), "", said(mark(b"\"b\""))),
            (Etag, 200, tag, carry, carrying(Some(mark(b"\"a\"")))),
            (Etag, 200, tag, word, same.clone()),
            (Etag, 200, None, "text", Outcome::Done),
            (Etag, 200, Some("W/"), "text", Outcome::Done),
            (Etag, 304, tag, "", same.clone()),
            (Hash, 200, tag, "text", said(mark(b"text"))),
            (Hash, 200, None, "", said(mark(b""))),
            (Hash, 200, None, carry, carrying(Some(mark(carry.as_bytes())))),
            (Hash, 200, None, word, same.clone()),
            (Hash, 304, tag, "", same),
            (Hash, 200, None, r#"{"outcome":"fail","reason":"r"}"#, Outcome::fail("r")),
            (Hash, 304, None, r#"{"outcome":"retry","reason":"r"}"#, Outcome::retry("r")),
        ];
        for (compare, status, etag, body, expected) in table {
            let status = StatusCode::from_u16(status).unwrap();
            let reply = Reply { status, retry_after: None, location: None, body: body.as_bytes() };
            let outcome = compared(&reply, etag.map(str::as_bytes), compare, Time::default());
            assert_eq!(outcome, expected, "{compare:?} {status} {etag:?} {body}");
        }
    }
}
