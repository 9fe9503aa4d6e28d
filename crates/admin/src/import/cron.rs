//! Translates cron expressions of other schedulers into Roundelay's.
//!
//! They look alike and do not mean the same: cron and BullMQ run when the day of the month *or* the day of the week
//! matches, Celery when both do, and cron treats a field that begins with `*` as no restriction. So each field is read
//! by its scheduler's own rules into the set of its values, and written as croner reads it.

use std::fmt::Write as _;

/// The scheduler of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Vixie's cron, as Debian and cronie have it.
    Vixie,
    /// `dragonmantank/cron-expression`, which Laravel uses.
    Laravel,
    /// Celery's `crontab`.
    Celery,
    /// `cron-parser`, which BullMQ uses.
    CronParser,
}

/// One of the fields.
struct Spec {
    name: &'static str,
    least: u8,
    most: u8,
    /// Names for the values from `least` on.
    names: &'static [&'static str],
}

const SECOND: Spec = Spec { name: "second", least: 0, most: 59, names: &[] };
const MINUTE: Spec = Spec { name: "minute", least: 0, most: 59, names: &[] };
const HOUR: Spec = Spec { name: "hour", least: 0, most: 23, names: &[] };
const DAY: Spec = Spec { name: "day of the month", least: 1, most: 31, names: &[] };
const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const MONTH: Spec = Spec { name: "month", least: 1, most: 12, names: &MONTHS };
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
/// 7 is Sunday again, except for Celery.
const WEEKDAY: Spec = Spec { name: "day of the week", least: 0, most: 7, names: &WEEKDAYS };

/// A field as croner reads it.
struct Field {
    text: String,
    /// Whether the source treats it as no restriction, so that the other day field decides alone.
    star: bool,
    /// Whether it has every value.
    full: bool,
}

/// The expression as Roundelay reads it: five fields, or six with seconds in front.
///
/// # Errors
/// The part of the expression that cannot be translated.
pub fn translate(text: &str, dialect: Dialect) -> Result<String, String> {
    let text = text.trim();
    if text.starts_with('@') {
        return nickname(text, dialect);
    }
    let parts: Vec<&str> = text.split_whitespace().collect();
    let (second, parts) = match (dialect, parts.as_slice()) {
        (_, [minute, hour, day, month, weekday]) => (None, [minute, hour, day, month, weekday]),
        (Dialect::CronParser, [second, minute, hour, day, month, weekday]) => {
            (Some(second), [minute, hour, day, month, weekday])
        }
        _ => return Err(format!("`{text}` has {} fields, and five are needed", parts.len())),
    };
    let second = second.map(|part| field(part, &SECOND, dialect)).transpose()?;
    let minute = field(parts[0], &MINUTE, dialect)?;
    let hour = field(parts[1], &HOUR, dialect)?;
    let day = field(parts[2], &DAY, dialect)?;
    let month = field(parts[3], &MONTH, dialect)?;
    let weekday = field(parts[4], &WEEKDAY, dialect)?;
    let both = match dialect {
        Dialect::Celery => true,
        Dialect::Vixie => day.star || weekday.star,
        Dialect::Laravel | Dialect::CronParser => false,
    };
    // If both fields must match, a full field restricts nothing. If one is enough, a full field always matches.
    let say = |field: &Field| if field.full && (both || field.star) { "*".to_owned() } else { field.text.clone() };
    let (day, weekday) = (say(&day), say(&weekday));
    let and = if both && day != "*" && weekday != "*" { "+" } else { "" };
    let seconds = second.map(|second| second.text).filter(|second| second != "0");
    let seconds = seconds.map_or(String::new(), |second| format!("{second} "));
    Ok(format!("{seconds}{} {} {day} {} {and}{weekday}", minute.text, hour.text, month.text))
}

fn nickname(text: &str, dialect: Dialect) -> Result<String, String> {
    let expression = match text.to_ascii_lowercase().as_str() {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" => "0 0 * * *",
        "@midnight" if dialect != Dialect::CronParser => "0 0 * * *",
        "@hourly" => "0 * * * *",
        "@minutely" if dialect == Dialect::CronParser => "* * * * *",
        "@secondly" if dialect == Dialect::CronParser => "* * * * * *",
        "@weekdays" if dialect == Dialect::CronParser => "0 0 * * 1-5",
        "@weekends" if dialect == Dialect::CronParser => "0 0 * * 0,6",
        _ => return Err(format!("`{text}` is no time that recurs")),
    };
    Ok(expression.into())
}

fn field(part: &str, spec: &Spec, dialect: Dialect) -> Result<Field, String> {
    let wrong = |why: String| format!("{}: `{part}` {why}", spec.name);
    let question = part == "?" && matches!(dialect, Dialect::Laravel | Dialect::CronParser);
    if part == "*" || question {
        return Ok(Field { text: "*".into(), star: true, full: true });
    }
    if let Some(text) = special(part, spec, dialect) {
        return Ok(Field { text, star: false, full: false });
    }
    let (mut values, mut plain) = (0_u64, true);
    for item in part.split(',') {
        let (range, step) = match item.split_once('/') {
            None => (item, None),
            Some((range, step)) => match step.parse::<u8>() {
                Ok(step) if step > 0 => (range, Some(step)),
                _ => return Err(wrong(format!("has the step `{step}`, which is no number above 0"))),
            },
        };
        let last = if spec.most == 7 && dialect == Dialect::Celery { 6 } else { spec.most };
        if dialect == Dialect::Laravel && step.is_some_and(|step| step > last) {
            return Err(wrong("has a step beyond its field, which Laravel takes for another time".into()));
        }
        let (from, to) = match range.split_once('-') {
            _ if range == "*" => (spec.least, last),
            Some((from, to)) => {
                (number(from, spec, dialect).map_err(&wrong)?, number(to, spec, dialect).map_err(&wrong)?)
            }
            None if step.is_some() && dialect == Dialect::CronParser => {
                (number(range, spec, dialect).map_err(&wrong)?, last)
            }
            None if step.is_some() => return Err(wrong("has a step after a number; write a range before it".into())),
            None => {
                let one = number(range, spec, dialect).map_err(&wrong)?;
                (one, one)
            }
        };
        let written = (from, to);
        let (from, to) = match dialect {
            // Sunday at either end of a range.
            Dialect::Laravel if spec.most == 7 && from == 7 && to < 7 => (0, to),
            Dialect::Laravel if spec.most == 7 && to == 0 && from > 0 => (from, 7),
            _ => (from, to),
        };
        let run: Vec<u8> = match from <= to {
            true => (from..=to).collect(),
            false if dialect == Dialect::Celery => (from..=last).chain(spec.least..=to).collect(),
            false => return Err(wrong(format!("has the range {range}, which runs backwards"))),
        };
        run.iter().step_by(usize::from(step.unwrap_or(1))).for_each(|value| {
            values |= 1 << if spec.most == 7 && *value == 7 { 0 } else { *value };
        });
        let digits = |end: &str| end.bytes().all(|byte| byte.is_ascii_digit());
        plain &= (range == "*" || range.split('-').all(digits)) && written == (from, to) && from <= to;
        plain &= step.unwrap_or(1) <= last;
        // Sunday as 7, and a step after a number, have another meaning in croner.
        plain &= !(spec.most == 7 && range.contains('7'));
        plain &= step.is_none() || range == "*" || range.contains('-');
    }
    let last = if spec.most == 7 { 6 } else { spec.most };
    let full = (spec.least..=last).all(|value| values & 1 << value != 0);
    let star = dialect == Dialect::Vixie && part.starts_with('*');
    let text = if plain { part.to_owned() } else { listed(values, spec.least, last) };
    Ok(Field { text, star, full })
}

/// Parts that are not a set of numbers and have the same meaning in croner: the last day, the working day nearest to
/// one, the last or the n-th of a weekday.
fn special(part: &str, spec: &Spec, dialect: Dialect) -> Option<String> {
    if !matches!(dialect, Dialect::Laravel | Dialect::CronParser) {
        return None;
    }
    let within = |text: &str, most: u8| number(text, spec, dialect).ok().filter(|value| *value <= most);
    if spec.name == DAY.name {
        if part == "L" {
            return Some("L".into());
        }
        let day = part.strip_suffix('W').filter(|_| dialect == Dialect::Laravel)?;
        return within(day, 31).map(|day| format!("{day}W"));
    }
    if spec.name != WEEKDAY.name {
        return None;
    }
    if let Some(day) = part.strip_suffix('L') {
        return within(day, 7).map(|day| format!("{}#L", day % 7));
    }
    let (day, nth) = part.split_once('#')?;
    let nth = nth.parse::<u8>().ok().filter(|nth| (1..=5).contains(nth))?;
    within(day, 7).map(|day| format!("{}#{nth}", day % 7))
}

fn number(text: &str, spec: &Spec, dialect: Dialect) -> Result<u8, String> {
    let lower = text.to_ascii_lowercase();
    // Celery reads only the first three letters of `monday`.
    let name = if dialect == Dialect::Celery { lower.get(..3).unwrap_or(&lower) } else { &lower };
    if let Some(place) = spec.names.iter().position(|known| *known == name) {
        return Ok(spec.least + place as u8);
    }
    let most = if spec.most == 7 && dialect == Dialect::Celery { 6 } else { spec.most };
    match text.parse::<u8>() {
        Ok(value) if (spec.least..=most).contains(&value) && text.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok(value)
        }
        Ok(value) => Err(format!("has {value}; from {} to {most} is possible", spec.least)),
        Err(_) => Err(format!("has `{text}`, which is no number or name there")),
    }
}

/// The values as a list of ranges.
fn listed(values: u64, least: u8, most: u8) -> String {
    let (mut text, mut value) = (String::new(), least);
    while value <= most {
        if values & 1 << value == 0 {
            value += 1;
            continue;
        }
        let end = (value..=most).take_while(|next| values & 1 << next != 0).last().unwrap_or(value);
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to memory does not fail.
        let _ = match end - value {
            0 => write!(text, "{comma}{value}"),
            _ => write!(text, "{comma}{value}-{end}"),
        };
        value = end + 1;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::Dialect::{self, Celery, CronParser, Laravel, Vixie};
    use super::*;
    use roundelay_model::schedule::Cron;

    #[test]
    fn a_table_of_expressions() {
        let table: [(Dialect, &str, &str); 29] = [
            (Vixie, "5 */4 * * *", "5 */4 * * *"),
            (Vixie, "0 0 1,15 * 5", "0 0 1,15 * 5"),
            // A field that begins with a star does not restrict alone, so that both must match.
            (Vixie, "0 0 */2 * 1", "0 0 */2 * +1"),
            (Vixie, "0 0 1-7 * */2", "0 0 1-7 * +*/2"),
            (Vixie, "0 0 */1 * 1", "0 0 * * 1"),
            (Vixie, "0 0 1-31 * 1", "0 0 1-31 * 1"),
            (Vixie, "0 12 * jan-mar MON,Fri", "0 12 * 1-3 1,5"),
            (Vixie, "0 12 * * 5-7", "0 12 * * 0,5-6"),
            (Vixie, "0 12 * * 7", "0 12 * * 0"),
            (Vixie, "*/90 3 * * *", "0 3 * * *"),
            (Vixie, "@weekly", "0 0 * * 0"),
            (Laravel, "0 0 */2 * 1", "0 0 */2 * 1"),
            (Laravel, "0 0 L * *", "0 0 L * *"),
            (Laravel, "0 0 15W * ?", "0 0 15W * *"),
            (Laravel, "0 0 * * FRI#2", "0 0 * * 5#2"),
            (Laravel, "0 0 * * 5L", "0 0 * * 5#L"),
            (Laravel, "0 0 * * 5-0", "0 0 * * 0,5-6"),
            (Celery, "0 0 13 * 5", "0 0 13 * +5"),
            (Celery, "0 0 1-31 * 5", "0 0 * * 5"),
            (Celery, "0 22-2 * * *", "0 0-2,22-23 * * *"),
            (Celery, "0 0 * * sat-monday", "0 0 * * 0-1,6"),
            (Celery, "*/7,3 0 * * *", "*/7,3 0 * * *"),
            (CronParser, "0 0 13 * 5", "0 0 13 * 5"),
            (CronParser, "5/15 * * * *", "5,20,35,50 * * * *"),
            (CronParser, "*/10 * * * * *", "*/10 * * * * *"),
            (CronParser, "0 30 4 ? * MON-FRI", "30 4 * * 1-5"),
            (CronParser, "0 0 * * 5/1", "0 0 * * 0,5-6"),
            (CronParser, "0 0 * * 1#3", "0 0 * * 1#3"),
            (CronParser, "@weekdays", "0 0 * * 1-5"),
        ];
        for (dialect, text, expected) in table {
            let cron = translate(text, dialect);
            assert_eq!(cron.as_deref(), Ok(expected), "{dialect:?} {text}");
            Cron::parse(expected, None).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_carried_over_says_why() {
        for (dialect, text, part) in [
            (Vixie, "@reboot", "no time that recurs"),
            (Vixie, "0 0 L * *", "`L` has `L`, which is no number or name there"),
            (Vixie, "* * * *", "has 4 fields"),
            (Vixie, "61 * * * *", "minute: `61` has 61; from 0 to 59"),
            (Vixie, "5/15 * * * *", "a step after a number"),
            (Vixie, "50-10 * * * *", "runs backwards"),
            (Vixie, "*/0 * * * *", "no number above 0"),
            (Vixie, "0~59 * * * *", "no number or name"),
            (Vixie, "+5 * * * *", "minute"),
            (Laravel, "*/90 * * * *", "beyond its field"),
            (Celery, "0 0 * * 7", "from 0 to 6"),
            (CronParser, "H * * * *", "`H`, which is no number"),
            (CronParser, "*/5", "has 1 fields"),
        ] {
            let error = translate(text, dialect).unwrap_err();
            assert!(error.contains(part), "{dialect:?} {text}: {error}");
        }
    }
}
