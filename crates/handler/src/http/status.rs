//! An HTTP answer → an outcome (pure).

use std::time::{Duration, UNIX_EPOCH};

use reqwest::StatusCode;
use roundelay_model::clock::Time;
use roundelay_model::outcome::{MAX_WAIT, Outcome};
use roundelay_model::reason::{Class, Mark, Reason};
use url::Url;

use crate::answer;
use crate::answer::EXCERPT;

/// How long a 429 that names no time puts the job off.
pub(super) const DEFAULT_SNOOZE: Duration = Duration::from_secs(5);
/// No answer puts a job off for less: an upstream that wants to be left alone says so in seconds.
const MIN_SNOOZE: Duration = Duration::from_secs(1);

/// The parts of an HTTP answer that count.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    /// The status.
    pub status: StatusCode,
    /// The header `Retry-After`.
    pub retry_after: Option<&'a str>,
    /// The header `Location`.
    pub location: Option<&'a str>,
    /// The body, or as much of it as was read.
    pub body: &'a [u8],
}

/// The outcome of a job whose call was answered with `reply` at the time `now`. A body that
/// decides goes before the status.
pub fn outcome_of(reply: &Reply<'_>, now: Time) -> Outcome {
    if let Some(outcome) = answer::decided(reply.body) {
        return outcome;
    }
    if reply.status.is_success() {
        return Outcome::Done;
    }
    let after = reply.retry_after.and_then(|value| retry_after(value, now));
    match (reply.status.as_u16(), after) {
        (429, after) => snooze(reply, after.unwrap_or(DEFAULT_SNOOZE)),
        (503, Some(after)) => snooze(reply, after),
        (408 | 425 | 500..=599, after) => Outcome::Retry { reason: reason(reply), after },
        (300..=399, _) => Outcome::fail(marked(Reason::new(class(reply.status), redirect(reply)), reply)),
        _ => Outcome::fail(reason(reply)),
    }
}

fn snooze(reply: &Reply<'_>, wait: Duration) -> Outcome {
    Outcome::Snooze { reason: reason(reply), wait: wait.max(MIN_SNOOZE) }
}

/// How long from `now` until the time that `value` names, in seconds or as an HTTP date; zero when
/// that has passed, `None` when it is neither.
pub(super) fn retry_after(value: &str, now: Time) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // More seconds than a number holds are still many seconds.
        let seconds = value.parse().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds).min(MAX_WAIT));
    }
    let date = httpdate::parse_http_date(value).ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some((Time::default() + date).since(now).min(MAX_WAIT))
}

fn reason(reply: &Reply<'_>) -> Reason {
    let body = roundelay_model::reason::excerpt(reply.body, EXCERPT);
    let colon = if body.is_empty() { "" } else { ": " };
    marked(Reason::new(class(reply.status), format!("{}{colon}{body}", status(reply.status))), reply)
}

/// Known by its status, to which the kind's settings may give a name.
fn marked(reason: Reason, reply: &Reply<'_>) -> Reason {
    reason.marked(Mark::Status(reply.status.as_u16()))
}

fn class(status: StatusCode) -> Class {
    match status.as_u16() {
        300..=399 => Class::Http3xx,
        429 => Class::Http429,
        400..=499 => Class::Http4xx,
        500..=599 => Class::Http5xx,
        _ => Class::HttpOther,
    }
}

fn redirect(reply: &Reply<'_>) -> String {
    let to = reply.location.map(|to| format!(": Location {}", place(to))).unwrap_or_default();
    format!("{}: redirects are not followed{to}", status(reply.status))
}

pub(super) fn status(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(name) => format!("HTTP {} {name}", status.as_u16()),
        None => format!("HTTP {}", status.as_u16()),
    }
}

/// `location` without what may be secret in it: credentials, query, fragment.
fn place(location: &str) -> String {
    match Url::parse(location) {
        Ok(mut url) => {
            let _ = url.set_username("");
            let _ = url.set_password(None);
            url.set_query(None);
            url.set_fragment(None);
            roundelay_model::reason::excerpt(url.as_str().as_bytes(), EXCERPT)
        }
        // `//user:password@host/` is relative, so that it has no scheme to parse it by.
        Err(_) if location.contains('@') => "…".into(),
        Err(_) => {
            let end = location.find(['?', '#']).unwrap_or(location.len());
            roundelay_model::reason::excerpt(&location.as_bytes()[..end], EXCERPT)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sunday, 6 November 1994, 08:49:37 UTC.
    const NOW: Time = Time::from_millis(784_111_777_000);

    fn reply<'a>(status: u16, retry_after: impl Into<Option<&'a str>>, body: &'a str) -> Reply<'a> {
        let status = StatusCode::from_u16(status).unwrap();
        Reply { status, retry_after: retry_after.into(), location: None, body: body.as_bytes() }
    }

    fn outcome<'a>(status: u16, retry_after: impl Into<Option<&'a str>>, body: &'a str) -> Outcome {
        outcome_of(&reply(status, retry_after, body), NOW)
    }

    fn retry(reason: &str, after: Option<u64>) -> Outcome {
        Outcome::Retry { reason: reason.into(), after: after.map(Duration::from_secs) }
    }

    fn snooze(reason: &str, wait: u64) -> Outcome {
        Outcome::Snooze { reason: reason.into(), wait: Duration::from_secs(wait) }
    }

    #[test]
    fn a_table_of_statuses() {
        let table = [
            (200, None, "", Outcome::Done),
            (200, None, "fine", Outcome::Done),
            (200, None, r#"{"name":"left-pad"}"#, Outcome::Done),
            (204, None, "", Outcome::Done),
            (299, None, "", Outcome::Done),
            (301, None, "", Outcome::fail("HTTP 301 Moved Permanently: redirects are not followed")),
            (304, None, "", Outcome::fail("HTTP 304 Not Modified: redirects are not followed")),
            (400, None, "no such field", Outcome::fail("HTTP 400 Bad Request: no such field")),
            (401, None, "", Outcome::fail("HTTP 401 Unauthorized")),
            (404, Some("10"), "", Outcome::fail("HTTP 404 Not Found")),
            (408, None, "", retry("HTTP 408 Request Timeout", None)),
            (410, None, "", Outcome::fail("HTTP 410 Gone")),
            (425, Some("2"), "", retry("HTTP 425 Too Early", Some(2))),
            (429, None, "", snooze("HTTP 429 Too Many Requests", 5)),
            (429, Some("soon"), "", snooze("HTTP 429 Too Many Requests", 5)),
            (429, Some("20"), "slow down", snooze("HTTP 429 Too Many Requests: slow down", 20)),
            (429, Some("0"), "", snooze("HTTP 429 Too Many Requests", 1)),
            (499, None, "", Outcome::fail("HTTP 499")),
            (500, None, "oops\nline 2", retry("HTTP 500 Internal Server Error: oops line 2", None)),
            (500, Some("7"), "", retry("HTTP 500 Internal Server Error", Some(7))),
            (501, None, "", retry("HTTP 501 Not Implemented", None)),
            (502, None, "", retry("HTTP 502 Bad Gateway", None)),
            (503, None, "", retry("HTTP 503 Service Unavailable", None)),
            (503, Some("whenever"), "", retry("HTTP 503 Service Unavailable", None)),
            (503, Some("9"), "", snooze("HTTP 503 Service Unavailable", 9)),
            (504, None, "", retry("HTTP 504 Gateway Timeout", None)),
            (599, None, "", retry("HTTP 599", None)),
            (999, None, "", Outcome::fail("HTTP 999")),
        ];
        for (status, retry_after, body, expected) in table {
            assert_eq!(outcome(status, retry_after, body), expected, "{status} {retry_after:?} {body}");
        }
    }

    #[test]
    fn retry_after_takes_seconds_and_dates() {
        let wait = |value| retry_after(value, NOW).map(|wait| wait.as_secs());
        let table = [
            ("0", Some(0)),
            (" 3 ", Some(3)),
            ("99999999999999999999999999", Some(MAX_WAIT.as_secs())),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Sunday, 06-Nov-94 08:49:47 GMT", Some(10)),
            ("Sun Nov  6 08:49:38 1994", Some(1)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(MAX_WAIT.as_secs())),
            ("", None),
            ("-1", None),
            ("+5", None),
            ("1.5", None),
            ("5s", None),
        ];
        for (value, expected) in table {
            assert_eq!(wait(value), expected, "{value:?}");
        }
        assert_eq!(
            outcome(429, "Sun, 06 Nov 1994 08:00:00 GMT", ""),
            snooze("HTTP 429 Too Many Requests", 1),
            "a date that has passed"
        );
        assert_eq!(outcome(503, "Sun, 06 Nov 1994 08:50:37 GMT", ""), snooze("HTTP 503 Service Unavailable", 60));
    }

    #[test]
    fn the_body_decides_for_any_status() {
        for status in [200, 302, 404, 410, 429, 500, 503] {
            assert_eq!(
                outcome(status, "20", r#"{"outcome":"retire","reason":"gone"}"#),
                Outcome::Retire { reason: "gone".into() }
            );
            assert_eq!(outcome(status, None, r#"{"outcome":"done"}"#), Outcome::Done);
            assert!(matches!(outcome(status, None, r#"{"outcome":"maybe"}"#), Outcome::Fail { .. }));
        }
    }

    #[test]
    fn a_redirect_names_its_target_without_secrets() {
        let table = [
            ("/login?token=secret", "/login"),
            ("https://user:secret@example.org/a?token=secret#secret", "https://example.org/a"),
            ("//user:secret@example.org/", "…"),
        ];
        for (location, shown) in table {
            let reply = Reply { location: Some(location), ..reply(302, None, "") };
            let expected = format!("HTTP 302 Found: redirects are not followed: Location {shown}");
            assert_eq!(outcome_of(&reply, NOW), Outcome::fail(expected));
        }
    }

    #[test]
    fn a_long_body_is_cut_in_the_reason() {
        let Outcome::Fail { reason } = outcome(400, None, &"é".repeat(300)) else { panic!("not a failure") };
        assert_eq!(reason.text, format!("HTTP 400 Bad Request: {}…", "é".repeat(200)));
    }

    #[test]
    fn a_status_has_a_class() {
        let table = [
            (304, Class::Http3xx),
            (404, Class::Http4xx),
            (408, Class::Http4xx),
            (429, Class::Http429),
            (500, Class::Http5xx),
            (503, Class::Http5xx),
            (999, Class::HttpOther),
        ];
        for (status, expected) in table {
            let outcome = outcome(status, "9", "");
            let reason = outcome.reason().unwrap_or_else(|| panic!("{status} gave {outcome:?}"));
            assert_eq!((reason.class, &reason.mark), (expected, &Mark::Status(status)), "{status}");
        }
    }
}
