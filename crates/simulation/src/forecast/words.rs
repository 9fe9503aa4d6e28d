//! Figures as people read them.

use std::time::Duration;

/// `1,234,567`
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three digits that mean something, and thousands apart: `0.083`, `5`, `16.7`, `1,240`.
pub(super) fn figure(value: f64) -> String {
    if !value.is_finite() {
        return "∞".into();
    }
    if value >= 99.95 {
        return grouped(value.round() as u64);
    }
    let decimals = match value {
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        v if v >= 0.0005 => 3,
        _ => return "0".into(),
    };
    let text = format!("{value:.decimals$}");
    text.trim_end_matches('0').trim_end_matches('.').into()
}

/// `250 ms`, `1.5 s`, `5 min`, `40 h`, `12 days`.
pub(super) fn spoken(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let (unit, name) = match seconds {
        s if s >= 72.0 * 3_600.0 => (86_400.0, "days"),
        s if s >= 3_600.0 => (3_600.0, "h"),
        s if s >= 60.0 => (60.0, "min"),
        s if s >= 1.0 => (1.0, "s"),
        _ => (0.001, "ms"),
    };
    format!("{} {name}", figure(seconds / unit))
}

/// A duration in words, for a number of seconds.
pub(super) fn spoken_seconds(seconds: f64) -> String {
    spoken(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// Two rates (each in starts per second) in the same unit, in which the smaller is at least one.
pub(super) fn rates(one: f64, other: f64) -> (String, String) {
    let smaller = one.min(other);
    let units = [(1.0, "s"), (60.0, "min"), (3_600.0, "h"), (86_400.0, "day")];
    let (seconds, unit) = units.into_iter().find(|(seconds, _)| smaller * seconds >= 0.9995).unwrap_or(units[3]);
    let rate = |rate: f64| format!("{}/{unit}", figure(rate * seconds));
    (rate(one), rate(other))
}

/// `a`, `a and b`, `a, b and c`.
pub(super) fn list(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_figures_are_short() {
        let table = [(0, "0 ms"), (250, "250 ms"), (1_500, "1.5 s"), (60_000, "1 min"), (3_600_000, "1 h")];
        for (ms, text) in table {
            assert_eq!(spoken(Duration::from_millis(ms)), text);
        }
        assert_eq!((spoken_seconds(144_000.0), spoken_seconds(1_036_800.0)), ("40 h".into(), "12 days".into()));
        let table = [(0.0, "0"), (0.083_3, "0.083"), (0.999_9, "1"), (5.0, "5"), (16.67, "16.7"), (99.97, "100")];
        for (value, text) in table {
            assert_eq!(figure(value), text, "{value}");
        }
        assert_eq!((figure(1_240.4), figure(f64::INFINITY)), ("1,240".into(), "∞".into()));
    }

    #[test]
    fn rates_have_the_unit_that_both_can_be_read_in() {
        assert_eq!(rates(12_000.0 / 3_600.0, 5.0 / 60.0), ("200/min".into(), "5/min".into()));
        assert_eq!(rates(20.0, 2.0), ("20/s".into(), "2/s".into()));
        assert_eq!(rates(0.001, 1.0 / 3_600.0), ("3.6/h".into(), "1/h".into()));
    }
}
