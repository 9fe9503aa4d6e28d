//! Fits text into a screen of limited width, and makes it plain text (pure).
//!
//! Keys, reasons and payloads come from other people. Characters in them that would move the cursor, change colours or
//! turn the direction of writing are shown as a sign instead.

use std::time::Duration;

use ratatui::style::Style;
use ratatui::text::Span;
use roundelay_model::clock::Time;

use crate::grouped;
use crate::screen::steers;

/// Replaces characters that control a terminal, or are invisible, by a visible sign.
pub fn visible(text: &str) -> String {
    let sign = |letter: char| match letter {
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(letter)).unwrap_or('\u{fffd}'),
        '\x7f' => '\u{2421}',
        letter if steers(letter) => '\u{fffd}',
        letter => letter,
    };
    text.chars().map(sign).collect()
}

/// How many columns a text takes.
pub fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// The letters of a text as people see them (grapheme clusters).
fn letters(text: &str) -> Vec<String> {
    Span::raw(text).styled_graphemes(Style::default()).map(|letter| letter.symbol.to_owned()).collect()
}

/// As many of the letters as fit into `most` columns.
fn fitting<'a>(letters: impl Iterator<Item = &'a String>, most: usize) -> Vec<&'a str> {
    let mut used = 0;
    let fits = |letter: &&String| {
        used += width(letter);
        used <= most
    };
    letters.take_while(fits).map(String::as_str).collect()
}

/// At most `most` columns: a longer text loses its middle, since keys differ at their ends.
pub fn middle(text: &str, most: usize) -> String {
    let text = visible(text);
    if width(&text) <= most {
        return text;
    }
    let (letters, kept) = (letters(&text), most.saturating_sub(1));
    let head = fitting(letters.iter(), kept.div_ceil(2));
    let mut tail = fitting(letters.iter().rev(), kept / 2);
    tail.reverse();
    if most == 0 { String::new() } else { format!("{}…{}", head.concat(), tail.concat()) }
}

/// At most `most` columns: a longer text loses its end.
pub fn beginning(text: &str, most: usize) -> String {
    let text = visible(text);
    if width(&text) <= most {
        return text;
    }
    if most == 0 { String::new() } else { format!("{}…", fitting(letters(&text).iter(), most - 1).concat()) }
}

/// At most `most` columns: a longer text loses its beginning, as in an input field.
pub fn ending(text: &str, most: usize) -> String {
    let text = visible(text);
    if width(&text) <= most {
        return text;
    }
    let letters = letters(&text);
    let mut tail = fitting(letters.iter().rev(), most.saturating_sub(1));
    tail.reverse();
    if most == 0 { String::new() } else { format!("…{}", tail.concat()) }
}

/// Lines of at most `most` columns, broken between words if possible.
pub fn wrap(text: &str, most: usize) -> Vec<String> {
    let (text, most) = (visible(text), most.max(1));
    let mut lines = vec![String::new()];
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let room = |line: &String| most.saturating_sub(width(line) + usize::from(!line.is_empty()));
        let last = lines.last().map_or(0, room);
        if width(word) > last && lines.last().is_some_and(|line| !line.is_empty()) {
            lines.push(String::new());
        }
        for letter in
            letters(word).iter().enumerate().map(|(n, letter)| if n == 0 { (true, letter) } else { (false, letter) })
        {
            let (first, letter) = letter;
            if lines.last().is_some_and(|line| width(line) + width(letter) > most) {
                lines.push(String::new());
            }
            if let Some(line) = lines.last_mut() {
                if first && !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(letter);
            }
        }
    }
    lines
}

/// A number in at most `most` columns, at least six: never cut, but rounded.
pub fn count(number: impl TryInto<i128>, most: usize) -> String {
    let number: i128 = number.try_into().unwrap_or_default();
    let whole = grouped(number);
    if whole.len() <= most {
        return whole;
    }
    let rounded = |of: i128, unit: &str| format!("{:.1}{unit}", number as f64 / of as f64);
    match number.unsigned_abs() {
        0..1_000_000 => rounded(1_000, "k"),
        1_000_000..1_000_000_000 => rounded(1_000_000, "M"),
        _ => rounded(1_000_000_000, "G"),
    }
}

/// A figure per second, with the digits that matter.
pub fn rate(rate: f64) -> String {
    if rate >= 9_999.5 {
        count(rate as i64, 6)
    } else if rate >= 99.95 {
        format!("{rate:.0}")
    } else if rate > 0.0 && rate < 0.05 {
        "<0.1".into()
    } else {
        format!("{rate:.1}")
    }
}

/// A span in its two largest units: `48m 9s`, `1.2s`, `12ms`.
pub fn span(span: Duration) -> String {
    let millis = span.as_millis();
    if millis < 1_000 {
        return format!("{millis}ms");
    }
    if millis < 10_000 {
        return format!("{}.{}s", millis / 1_000, millis % 1_000 / 100);
    }
    let mut left = millis / 1_000;
    let mut parts = Vec::new();
    for (unit, length) in [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)] {
        let whole = left / length;
        left %= length;
        if whole > 0 {
            parts.push(format!("{whole}{unit}"));
        } else if !parts.is_empty() {
            break;
        }
        if parts.len() == 2 {
            break;
        }
    }
    parts.join(" ")
}

/// Milliseconds with their unit.
pub fn millis(millis: f64) -> String {
    span(Duration::from_millis(millis.clamp(0.0, 1e15) as u64))
}

/// The time of day in UTC; on another day than `now`, the day and the minute.
pub fn clock(at: Time, now: Time) -> String {
    let (at, now) = (at.to_string(), now.to_string());
    match (at.get(..10), at.get(11..19), at.get(5..10), at.get(11..16)) {
        (Some(day), Some(time), ..) if now.get(..10) == Some(day) => time.to_owned(),
        (_, _, Some(day), Some(minute)) => format!("{day} {minute}"),
        _ => at,
    }
}

/// A time, and its distance from now.
pub fn when(at: Time, now: Time) -> String {
    let (from, far) = if at > now { ("in ", at.since(now)) } else { ("", now.since(at)) };
    let ago = if at > now { "" } else { " ago" };
    format!("{} ({from}{}{ago})", clock(at, now), whole(far))
}

/// A span in whole seconds: tenths that change with each refresh are noise.
pub fn whole(far: Duration) -> String {
    if far.as_secs() < 10 { format!("{}s", far.as_secs()) } else { span(far) }
}

/// Values as bars, side by side, over `rows` rows; an unknown value is a dot.
pub fn bars(values: &[Option<f64>], rows: usize) -> Vec<String> {
    const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let highest = values.iter().flatten().copied().fold(0.0, f64::max);
    let level = |value: f64| if highest > 0.0 { (value / highest * 8.0 * rows as f64).ceil() as usize } else { 0 };
    let row = |from_below: usize| {
        let cell = |value: &Option<f64>| match value {
            Some(value) => EIGHTHS[level(*value).saturating_sub(8 * from_below).min(8)],
            None if from_below == 0 => '·',
            None => ' ',
        };
        values.iter().map(cell).collect()
    };
    (0..rows).rev().map(row).collect()
}

/// How much of something is used, as a bar of `columns` columns. Full only when all is used, empty only when nothing
/// is.
pub fn used(used: u32, of: u32, columns: usize) -> String {
    let share = (f64::from(used) / f64::from(of.max(1))).min(1.0);
    let most = if used < of { columns.saturating_sub(1) } else { columns };
    let full = ((share * columns as f64).round() as usize).clamp(usize::from(used > 0), most.max(1));
    let full = if used == 0 { 0 } else { full };
    format!("{}{}", "█".repeat(full), "░".repeat(columns.saturating_sub(full)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        let table = [
            ("plain – ünï", "plain – ünï"),
            ("\x1b[31mred\x1b]0;title\x07", "␛[31mred␛]0;title␇"),
            ("a\r\nb\tc\0\x7f", "a␍␊b␉c␀␡"),
            ("\u{9b}31m\u{85}", "\u{fffd}31m\u{fffd}"),
            ("\u{202e}gnp.exe\u{200b}", "\u{fffd}gnp.exe\u{fffd}"),
        ];
        for (text, shown) in table {
            assert_eq!(visible(text), shown);
            assert_eq!(
                (middle(text, 99), beginning(text, 99), ending(text, 99)),
                (shown.into(), shown.into(), shown.into())
            );
            assert!(wrap(text, 4).concat().chars().all(|letter| !letter.is_control()));
        }
    }

    #[test]
    fn what_is_too_long_is_shortened_where_it_matters_least() {
        let table = [
            ("ios/maps", 8, "ios/maps", "ios/maps", "ios/maps"),
            ("ios/some/app-17", 9, "ios/…p-17", "ios/some…", "…e/app-17"),
            ("ios/some/app-17", 1, "…", "…", "…"),
            ("ios/some/app-17", 0, "", "", ""),
            // A wide letter is not split.
            ("日本語日本語", 6, "日…語", "日本…", "…本語"),
        ];
        for (text, most, in_the_middle, at_the_end, at_the_beginning) in table {
            assert_eq!(middle(text, most), in_the_middle);
            assert_eq!(beginning(text, most), at_the_end);
            assert_eq!(ending(text, most), at_the_beginning);
        }
        assert_eq!(wrap("the broker does not answer", 11), ["the broker", "does not", "answer"]);
        assert_eq!(wrap("in abcdefghijkl now", 5), ["in", "abcde", "fghij", "kl", "now"]);
        assert_eq!(wrap("", 5), [""]);
    }

    #[test]
    fn numbers_are_rounded_and_never_cut() {
        for (number, most, text) in [
            (999_999, 7, "999,999"),
            (1_234_567, 7, "1.2M"),
            (123_456, 6, "123.5k"),
            (98_765_432_100_i64, 7, "98.8G"),
            (-5, 6, "-5"),
        ] {
            assert_eq!(count(number, most), text);
        }
        for (value, text) in [(0.0, "0.0"), (0.01, "<0.1"), (1.25, "1.2"), (250.4, "250"), (123_456.0, "123.5k")] {
            assert_eq!(rate(value), text);
        }
    }

    #[test]
    fn spans_and_times_are_short() {
        let table = [
            (0, "0ms"),
            (1_250, "1.2s"),
            (59_999, "59s"),
            (2_889_000, "48m 9s"),
            (90_061_000, "1d 1h"),
            (3_600_000, "1h"),
        ];
        for (ms, text) in table {
            assert_eq!(span(Duration::from_millis(ms)), text);
        }
        let at = |secs: i64| Time::from_millis(secs * 1_000);
        assert_eq!(clock(at(3_600), at(7_200)), "01:00:00");
        assert_eq!(clock(at(3_600), at(90_000)), "01-01 01:00");
        assert_eq!(when(at(3_600), at(3_664)), "01:00:00 (1m 4s ago)");
        assert_eq!(when(at(3_605), at(3_600)), "01:00:05 (in 5s)");
    }

    #[test]
    fn bars_are_full_only_when_all_is_used() {
        assert_eq!(bars(&[Some(0.0), Some(1.0), None, Some(16.0)], 2), ["   █", " ▁·█"]);
        assert_eq!(bars(&[Some(0.0), None], 1), [" ·"]);
        let table =
            [(0, 5, "░░░░"), (1, 1_000, "█░░░"), (4, 5, "███░"), (999, 1_000, "███░"), (5, 5, "████"), (9, 5, "████")];
        for (n, of, bar) in table {
            assert_eq!(used(n, of, 4), bar, "{n} of {of}");
        }
    }
}
