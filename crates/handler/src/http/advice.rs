//! What an HTTP answer says to the throttle that its call was made under (pure).

use std::sync::Arc;
use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::job::Job;
use roundelay_model::outcome::MAX_WAIT;
use roundelay_model::pacing::ThrottleSettings;

use super::status::{DEFAULT_SNOOZE, Reply, retry_after, status};
use crate::context::Advice;
use crate::{answer, not_followed};

/// A larger number of seconds is a time since 1970: it would be more than thirty years.
const A_TIME: u64 = 1_000_000_000;
/// A larger one yet counts milliseconds.
const A_TIME_IN_MILLIS: u64 = 100_000_000_000;

/// What the answer to `job`'s call says, if anything: `throttle` in its body first, then what its status and
/// its headers say.
pub fn of<'a>(
    reply: &Reply<'_>,
    header: &dyn Fn(&str) -> Option<&'a str>,
    (job, throttle): (&Job, Option<Arc<ThrottleSettings>>),
    now: Time,
) -> Option<Advice> {
    let settings = throttle?;
    let said = answer::advice(reply.body).unwrap_or_else(|why| not_followed(job, &why)).unwrap_or_default();
    let (hold, why) = match hold(reply, now) {
        Some((wait, why)) => (Some(wait), Some(why)),
        None => (None, None),
    };
    let (budget, cost) = by_headers(&settings, header, now);
    let advice = Advice {
        why: said.why.or(why.filter(|_| said.hold.is_none())),
        hold: said.hold.or(hold),
        budget: said.budget.or(budget),
        cost: said.cost.or(cost),
    };
    (advice != Advice::default()).then_some(advice)
}

/// A 429, and a 503 that names a time, are about all calls, and not about this one.
fn hold(reply: &Reply<'_>, now: Time) -> Option<(Duration, String)> {
    let after = reply.retry_after.and_then(|value| retry_after(value, now));
    let wait = match (reply.status.as_u16(), after) {
        (429, after) => after.unwrap_or(DEFAULT_SNOOZE),
        (503, Some(after)) => after,
        _ => return None,
    };
    let said = reply.retry_after.map(|value| format!(", Retry-After: {value}")).unwrap_or_default();
    let why = format!("{}{said}", status(reply.status));
    Some((wait, roundelay_model::reason::excerpt(why.as_bytes(), answer::EXCERPT)))
}

fn by_headers<'a>(
    settings: &ThrottleSettings,
    header: &dyn Fn(&str) -> Option<&'a str>,
    now: Time,
) -> (Option<(u32, Duration)>, Option<u32>) {
    let budget = settings.budget.as_ref().and_then(|budget| {
        let remaining = number(header(&budget.remaining)?)?;
        Some((remaining, reset(header(&budget.reset)?, now)?))
    });
    let cost = settings.cost_header.as_ref().and_then(|name| number(header(name)?));
    (budget, cost)
}

/// A whole number; of a fraction, what is before the point, and nothing below zero.
fn number(text: &str) -> Option<u32> {
    let number: f64 = text.trim().parse().ok().filter(|number: &f64| number.is_finite())?;
    Some(number.clamp(0.0, f64::from(u32::MAX)) as u32)
}

/// How long from `now` until the time that a header names: in seconds from now, as seconds or milliseconds
/// since 1970, or as a date.
fn reset(text: &str, now: Time) -> Option<Duration> {
    let since_1970 = |time: Duration| Some((Time::default() + time).since(now).min(MAX_WAIT));
    match text.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0) {
        None => retry_after(text, now),
        Some(millis) if millis > A_TIME_IN_MILLIS as f64 => since_1970(Duration::try_from_secs_f64(millis / 1e3).ok()?),
        Some(seconds) if seconds > A_TIME as f64 => since_1970(Duration::try_from_secs_f64(seconds).ok()?),
        Some(seconds) => Some(Duration::try_from_secs_f64(seconds).ok()?.min(MAX_WAIT)),
    }
}

#[cfg(test)]
mod tests {
    use reqwest::StatusCode;

    use super::*;

    /// Sunday, 6 November 1994, 08:49:37 UTC.
    const NOW: Time = Time::from_millis(784_111_777_000);

    #[test]
    fn a_table_of_holds() {
        let table = [
            (429, None, Some((5, "HTTP 429 Too Many Requests"))),
            (429, Some("20"), Some((20, "HTTP 429 Too Many Requests, Retry-After: 20"))),
            (
                429,
                Some("Sun, 06 Nov 1994 08:50:37 GMT"),
                Some((60, "HTTP 429 Too Many Requests, Retry-After: Sun, 06 Nov 1994 08:50:37 GMT")),
            ),
            (503, Some("7"), Some((7, "HTTP 503 Service Unavailable, Retry-After: 7"))),
            (503, None, None),
            (503, Some("soon"), None),
            (500, Some("7"), None),
            (200, Some("7"), None),
        ];
        for (code, retry_after, expected) in table {
            let reply = Reply { status: StatusCode::from_u16(code).unwrap(), retry_after, location: None, body: b"" };
            let expected = expected.map(|(secs, why)| (Duration::from_secs(secs), why.to_owned()));
            assert_eq!(hold(&reply, NOW), expected, "{code} {retry_after:?}");
        }
    }

    #[test]
    fn a_table_of_resets_and_numbers() {
        let table = [
            ("30", Some(30.0)),
            (" 1.5 ", Some(1.5)),
            ("0", Some(0.0)),
            ("1784111787", Some(30.0 * 86_400.0)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60.0)),
            ("-1", None),
            ("soon", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(reset(text, NOW), expected.map(Duration::from_secs_f64), "{text}");
        }
        let later = Time::from_millis(1_784_111_777_000);
        assert_eq!(reset("1784111787", later), Some(Duration::from_secs(10)));
        assert_eq!(reset("1784111787000", later), Some(Duration::from_secs(10)));
        assert_eq!(["7", "7.9", "-3", "many", ""].map(number), [Some(7), Some(7), Some(0), None, None]);
    }
}
