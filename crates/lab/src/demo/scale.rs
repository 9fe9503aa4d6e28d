//! A configuration with scaled durations (pure): a demo takes half a minute, and its system a day.

use std::time::Duration;

use roundelay_model::clock::{parse_duration, short_duration};
use toml::{Table, Value};

/// The sections whose durations are scaled. Those of worker, ledger and broker are real.
const SECTIONS: [&str; 3] = ["kinds", "throttles", "reasons"];
/// Keys whose text may look like a duration and is none, or must not be scaled.
const ELSEWHERE: [&str; 3] = ["handler", "model", "roster"];

/// `text` with each duration of kinds, throttles and reasons replaced by the answer of `change`, which gets the path of
/// the key: `["kinds", "sync-app", "retry", "backoff"]`. Other values stay.
///
/// # Errors
/// When the text is not TOML.
pub fn scaled(text: &str, mut change: impl FnMut(&[&str], Duration) -> Duration) -> Result<String, String> {
    let mut table: Table = text.parse().map_err(|error| format!("not TOML: {error}"))?;
    for section in SECTIONS {
        if let Some(value) = table.get_mut(section) {
            walk(&mut vec![section], value, &mut change);
        }
    }
    Ok(table.to_string())
}

fn walk<'v>(path: &mut Vec<&'v str>, value: &'v mut Value, change: &mut impl FnMut(&[&str], Duration) -> Duration) {
    match value {
        Value::String(text) => {
            // A budget of calls is a number of them in a time.
            let (calls, length) = text.split_once('/').map_or(("", text.as_str()), |(calls, length)| (calls, length));
            if let (true, Ok(length)) = (calls.chars().all(|digit| digit.is_ascii_digit()), parse_duration(length)) {
                let length = short_duration(change(path, length).max(Duration::from_millis(1)));
                *text = if calls.is_empty() { length } else { format!("{calls}/{length}") };
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| walk(&mut path.clone(), value, change)),
        Value::Table(values) => {
            for (key, value) in values.iter_mut().filter(|(key, _)| !ELSEWHERE.contains(&key.as_str())) {
                path.push(key);
                walk(&mut path.clone(), value, change);
                path.pop();
            }
        }
        _ => {}
    }
}

/// `length` divided by a whole number, at least `least`.
pub fn shorter(length: Duration, by: u32, least: Duration) -> Duration {
    // Rounded up to milliseconds: a duration in whole milliseconds must not become zero.
    let millis = length.as_millis().div_ceil(u128::from(by.max(1)));
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)).max(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_change_and_nothing_else() {
        let text = r#"
            worker.grace = "30s"
            [queues.q]
            throttle = "5m"
            [throttles.t]
            allow = 5
            per = "1m"
            [kinds.k]
            queue = "q"
            every = "1d"
            time_box = "50%"
            cron = "5 * * * *"
            retry = { attempts = 3, backoff = ["30s", "60s"] }
            fresh = { budget = "8/1m", also = ["throttle:5/1m"], min = "6h", max = "4d" }
            roster.schedule = "5m"
            handler.http.url = "http://127.0.0.1:8000/1m"
            [reasons.r]
            backoff = { base = "15m", factor = 2.0, max = "6h" }
        "#;
        let mut places = Vec::new();
        let found = scaled(text, |path, length| {
            places.push(path.join("."));
            shorter(length, 60, Duration::from_secs(1))
        });
        let found: Table = found.unwrap().parse().unwrap();
        let expected = text
            .replace("per = \"1m\"", "per = \"1s\"")
            .replace("every = \"1d\"", "every = \"24m\"")
            .replace("[\"30s\", \"60s\"]", "[\"1s\", \"1s\"]")
            .replace("budget = \"8/1m\"", "budget = \"8/1s\"")
            .replace("min = \"6h\", max = \"4d\"", "min = \"6m\", max = \"96m\"")
            .replace("base = \"15m\"", "base = \"15s\"")
            .replace("max = \"6h\"", "max = \"6m\"");
        assert_eq!(found, expected.parse::<Table>().unwrap());
        places.sort();
        places.dedup();
        let expected = [
            "kinds.k.every",
            "kinds.k.fresh.budget",
            "kinds.k.fresh.max",
            "kinds.k.fresh.min",
            "kinds.k.retry.backoff",
            "reasons.r.backoff.base",
            "reasons.r.backoff.max",
            "throttles.t.per",
        ];
        assert_eq!(places, expected);
    }

    #[test]
    fn nothing_becomes_nothing() {
        let (ms, zero) = (Duration::from_millis, Duration::ZERO);
        for (length, by, least, expected) in [
            (60_000, 500, zero, 120),
            (1, 500, zero, 1),
            (1_001, 500, zero, 3),
            (50_000, 500, ms(2_000), 2_000),
            (7, 0, zero, 7),
        ] {
            assert_eq!(shorter(ms(length), by, least), ms(expected), "{length} by {by}");
        }
    }
}
