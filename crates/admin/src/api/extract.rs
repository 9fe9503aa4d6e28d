//! What endpoints read from a request; a part that cannot be read is answered as a [`Problem`].

use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use bytes::Bytes;
use roundelay_config::at_time;
use roundelay_model::clock::{Time, parse_duration};
use roundelay_model::wall_clock::WallClock;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::problem::{Problem, Result};

/// A JSON object as the body.
#[derive(Clone, Debug)]
pub struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        let body =
            Bytes::from_request(request, state).await.map_err(|error| Problem::bad_request(error.body_text()))?;
        read(&body).map(Self)
    }
}

/// A JSON object as the body, or no body, which means an empty object.
#[derive(Clone, Copy, Debug)]
pub struct OptionalBody<T>(pub T);

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for OptionalBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        let body =
            Bytes::from_request(request, state).await.map_err(|error| Problem::bad_request(error.body_text()))?;
        if body.is_empty() { Ok(Self(T::default())) } else { read(&body).map(Self) }
    }
}

/// No body, or an empty object.
#[derive(Clone, Copy, Debug)]
pub struct NoBody;

impl<S: Send + Sync> FromRequest<S> for NoBody {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct NoFields {}
        let body =
            Bytes::from_request(request, state).await.map_err(|error| Problem::bad_request(error.body_text()))?;
        if !body.is_empty() {
            read::<NoFields>(&body)?;
        }
        Ok(Self)
    }
}

/// Reads an object (pure).
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    // Derived structs also read arrays, as their fields in order.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::bad_request("the body is not a JSON object"));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        match error.classify() {
            serde_json::error::Category::Data if path == "." => Problem::unprocessable(error.to_string()),
            serde_json::error::Category::Data => Problem::unprocessable(format!("{path}: {error}")),
            _ => Problem::bad_request(format!("the body is not JSON: {error}")),
        }
    })?;
    json.end().map_err(|error| Problem::bad_request(format!("the body is not JSON: {error}")))?;
    Ok(read)
}

/// A field of a filter for a change. A field that is given but empty is a mistake, such as a variable that was never
/// set, and must not mean everything.
///
/// # Errors
/// When the field is empty.
pub fn given(field: &str, text: Option<String>) -> Result<Option<String>> {
    match text {
        Some(text) if text.is_empty() => {
            Err(Problem::unprocessable(format!("filter.{field}: it is empty; leave it out, or say which are meant")))
        }
        text => Ok(text),
    }
}

/// A duration in a body, such as `30m`.
///
/// # Errors
/// When the text is not a duration.
pub fn duration(field: &str, text: &str) -> Result<Duration> {
    parse_duration(text).map_err(|why| Problem::unprocessable(format!("{field}: {why}")))
}

/// A time in a query, as the ledger has it. The text is in RFC 3339, in milliseconds since 1970, or a duration such as
/// `2h`, which is counted back from `now`, the ledger's time.
///
/// # Errors
/// When the text is none of these.
pub fn moment(field: &str, text: &str, now: Time, wall_clock: &WallClock) -> Result<Time> {
    let wall = text.parse().map(Time::from_millis).ok().or_else(|| at_time(text).ok());
    let back = || parse_duration(text).ok().map(|back| now - back);
    wall.map(|wall| wall_clock.steady(wall)).or_else(back).ok_or_else(|| {
        Problem::bad_request(format!(
            "{field}={text}: this is no time; write \"2027-01-01T03:00:00Z\", milliseconds since 1970, or \"2h\" for \
             two hours ago; a `+` in an address is written %2B"
        ))
    })
}

/// The query string.
#[derive(Clone, Debug)]
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let query = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        query.map(|query| Self(query.0)).map_err(|error| Problem::bad_request(error.body_text()))
    }
}

/// The parameters of the path, percent-decoded.
#[derive(Clone, Debug)]
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        path.map(|path| Self(path.0)).map_err(|error| Problem::bad_request(error.body_text()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        inner: Inner,
        #[serde(default)]
        any: Value,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        count: u32,
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let read = |body: &str| read::<Outer>(body.as_bytes());
        let outer = read(r#" {"inner": {"count": 7}, "any": [1]}"#).unwrap();
        assert_eq!((outer.inner.count, outer.any), (7, serde_json::json!([1])));
        let deep = format!(r#"{{"inner": {{"count": 7}}, "any": {}{}}}"#, "[".repeat(200), "]".repeat(200));
        let table = [
            ("", 400, "not a JSON object"),
            ("[7]", 400, "not a JSON object"),
            ("null", 400, "not a JSON object"),
            (r#"{"inner": "#, 400, "EOF"),
            (r#"{"inner": {"count": 7}} {}"#, 400, "trailing"),
            (&deep, 400, "recursion limit"),
            (r#"{"inner": {"count": "7"}}"#, 422, "inner.count: invalid type: string \"7\""),
            (r#"{"inner": {"count": -1}}"#, 422, "inner.count: invalid value"),
            (r#"{"inner": {"count": 7, "cuont": 8}}"#, 422, "inner.cuont: unknown field `cuont`"),
            (r#"{}"#, 422, "missing field `inner`"),
        ];
        for (body, status, words) in table {
            let problem = read(body).unwrap_err();
            assert!(problem.status == status && problem.detail.contains(words), "{body}: {problem:?}");
        }
    }

    #[test]
    fn a_table_of_times_in_queries() {
        // The wall clock is an hour ahead of the ledger's time.
        let wall_clock = WallClock::default().set(Time::from_millis(0), 3_600_000);
        let now = Time::from_millis(10_000_000);
        let table = [
            ("1970-01-01T02:00:00Z", Some(3_600_000)),
            ("1970-01-01T04:00:00.250+02:00", Some(3_600_250)),
            ("7200000", Some(3_600_000)),
            ("0", Some(-3_600_000)),
            ("1h 30m", Some(4_600_000)),
            ("250ms", Some(9_999_750)),
            ("1970-01-01", None),
            ("1970-01-01T04:00:00 02:00", None),
            ("yesterday", None),
            ("-1h", None),
        ];
        for (text, expected) in table {
            let read = moment("since", text, now, &wall_clock);
            assert_eq!(read.as_ref().ok().map(|time| time.as_millis()), expected, "{text}: {read:?}");
        }
        let problem = moment("since", "yesterday", now, &wall_clock).unwrap_err();
        assert_eq!(problem.status, 400);
        assert!(problem.detail.starts_with("since=yesterday: this is no time; write"), "{problem:?}");
    }

    #[tokio::test]
    async fn where_nothing_is_expected_nothing_else_is_taken() {
        let table = [("", 200), ("{}", 200), (" {} ", 200), ("[]", 400), ("\0", 400), (r#"{"why": "x"}"#, 422)];
        for (body, status) in table {
            let taken = NoBody::from_request(Request::new(body.into()), &()).await;
            assert_eq!(taken.map_or_else(|no| no.status, |_| 200), status, "{body:?}");
        }
    }
}
