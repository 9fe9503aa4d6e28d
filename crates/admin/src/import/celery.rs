//! Celery beat: its `beat_schedule`, dumped as JSON by the line in docs/migrate/celery.md, or what
//! `manage.py dumpdata django_celery_beat` prints. One kind for each task, one chain for each entry.

use std::time::Duration;

use roundelay_engine::roster::Row;
use roundelay_model::clock::{Time, short_duration};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Call, Import, MAX_TIMEOUT, Recurs, Weight, Wishes, by_cron, django, text};
use crate::import::cron::Dialect;

/// The output of the line in the documentation.
#[derive(Deserialize)]
struct Dump {
    #[serde(default)]
    timezone: Option<String>,
    beat_schedule: Map<String, Value>,
}

#[derive(Deserialize)]
struct Entry {
    task: String,
    schedule: Value,
    #[serde(default)]
    args: Value,
    #[serde(default)]
    kwargs: Value,
    #[serde(default)]
    options: Map<String, Value>,
    #[serde(default)]
    relative: bool,
}

/// A task that beat adds by itself if results are kept.
const CLEANUP: &str = "celery.backend_cleanup";

/// Notes about every import: why, and what to do.
const GENERAL: [(&str, &str); 2] = [
    (
        "beat sends a task to a queue and forgets it; here the run is over when the service has answered, and the next \
         waits for it",
        "let a service at handler.http.url do the work, or hand it to Celery (docs/migrate/celery.md has both)",
    ),
    (
        "how often a task is retried (autoretry_for, max_retries) and how long it may take (time_limit) is in its code, \
         and not in the dump: one attempt of up to 24 hours",
        "set `retry` and `timeout` of its kind",
    ),
];

/// Reads either format, at the time `now`.
///
/// # Errors
/// When the text has neither format.
pub fn import(source: &str, now: Time, wishes: &Wishes) -> Result<Import, String> {
    let mut import = Import::default();
    let mut calls = Vec::new();
    if source.trim_start().starts_with('[') {
        django::read(&mut import, &mut calls, source, now, wishes)?;
    } else {
        let dump: Dump = serde_json::from_str(source)
            .map_err(|error| format!("neither a dump of beat_schedule nor of django_celery_beat: {error}"))?;
        let zone = dump.timezone.or_else(|| wishes.zone.clone()).unwrap_or_else(|| "UTC".into());
        for (name, entry) in dump.beat_schedule {
            let written = entry.to_string();
            let call = serde_json::from_value::<Entry>(entry)
                .map_err(|error| (format!("it is not as beat writes it: {error}"), "mend it, and dump it again"))
                .and_then(|entry| call(&mut import, &name, entry, &zone, wishes));
            match call {
                Ok(call) => calls.push(call),
                Err((why, advice)) => import.note(Weight::LeftOut, &name, &written, why, advice),
            }
        }
    }
    import.add_calls(calls, wishes);
    if import.carried > 0 {
        import.general(GENERAL);
    }
    Ok(import)
}

fn call(
    import: &mut Import,
    name: &str,
    entry: Entry,
    zone: &str,
    wishes: &Wishes,
) -> Result<Call, (String, &'static str)> {
    let recurs = recurs(&entry.schedule, zone)?;
    if entry.task == CLEANUP {
        return Err(cleanup());
    }
    if entry.relative {
        let why = "it is relative: beat rounds its times to the interval's unit, as on the full hour";
        import.note(Weight::Differs, name, "", why, "set `cron` in its kind, if it has to be on the hour");
    }
    let args = if entry.args.is_null() { Value::Array(Vec::new()) } else { entry.args };
    let kwargs = if entry.kwargs.is_null() { Value::Object(Map::new()) } else { entry.kwargs };
    let mut settings = settings();
    let mut queue = wishes.queue.clone();
    for (option, value) in &entry.options {
        match (option.as_str(), value.as_str(), value.as_f64()) {
            (_, None, None) if value.is_null() => {}
            ("queue", Some(own), _) => queue = format!("{}-{own}", wishes.queue),
            ("expires", _, Some(seconds)) if (0.001..1e9).contains(&seconds) => expires(&mut settings, seconds),
            _ => import.note(
                Weight::Differs,
                name,
                &format!("{option} = {value}"),
                "this option is for Celery's messages, and is not carried over",
                "see whether the service needs it",
            ),
        }
    }
    Ok(Call { task: entry.task, name: name.to_owned(), recurs, queue, settings, payload: payload(args, kwargs) })
}

/// The settings of every kind that stands for a task.
pub(super) fn settings() -> Vec<(&'static str, toml::Value)> {
    vec![("timeout", text(MAX_TIMEOUT)), ("retry.attempts", toml::Value::Integer(1))]
}

/// A task that has not started after this many seconds does not start.
pub(super) fn expires(settings: &mut Vec<(&'static str, toml::Value)>, seconds: f64) {
    let window = Duration::from_millis((seconds * 1_000.0).round() as u64);
    settings.extend([("misfire", text("skip")), ("misfire_window", text(&short_duration(window)))]);
}

pub(super) fn payload(args: Value, kwargs: Value) -> Row {
    Row::from_iter([("args".to_owned(), args), ("kwargs".to_owned(), kwargs)])
}

pub(super) fn cleanup() -> (String, &'static str) {
    ("beat adds it by itself, to clean Celery's results".into(), "nothing, while beat still runs for Celery's sake")
}

/// An interval of this many microseconds from start to start.
pub(super) fn interval(micros: f64) -> Result<Recurs, (String, &'static str)> {
    let millis = micros / 1_000.0;
    if !(1.0..1e15).contains(&millis) || millis.fract() != 0.0 {
        let why = format!("it is every {micros} microseconds, and an interval is a whole number of milliseconds");
        return Err((why, "write its kind by hand, with another `every`"));
    }
    // Beat counts from the time at which it last sent the task.
    let recurs = Recurs::Every(Duration::from_millis(millis as u64), "start");
    recurs.check().map_err(|why| (why, "write its kind by hand, with another `every`"))?;
    Ok(recurs)
}

fn recurs(schedule: &Value, zone: &str) -> Result<Recurs, (String, &'static str)> {
    if let Some(seconds) = schedule.as_f64() {
        return interval((seconds * 1e6).round());
    }
    let words = schedule.as_str().unwrap_or_default();
    if let Some(fields) = words.strip_prefix("<crontab: ").and_then(|rest| rest.strip_suffix(" (m/h/dM/MY/d)>")) {
        let by_cron = by_cron(&unbracketed(fields), Dialect::Celery, zone);
        return by_cron.map_err(|why| (why, "write its kind by hand"));
    }
    if let Some(arguments) = words.strip_prefix("datetime.timedelta(").and_then(|rest| rest.strip_suffix(')')) {
        let micros = arguments.split(", ").map(|part| {
            let (unit, value) = part.split_once('=')?;
            let unit = match unit {
                "days" => 86_400e6,
                "seconds" => 1e6,
                "microseconds" => 1.0,
                _ => return None,
            };
            Some(unit * value.parse::<f64>().ok()?)
        });
        if let Some(micros) = micros.sum::<Option<f64>>() {
            return interval(micros);
        }
    }
    if words.starts_with("<solar: ") {
        return Err(solar());
    }
    Err((
        format!("its schedule is {schedule}, which is no crontab, number or timedelta"),
        "if it is a class of your own, write its kind by hand",
    ))
}

pub(super) fn solar() -> (String, &'static str) {
    (
        "it goes by the sun, and Roundelay by the clock".into(),
        "add a kind that runs once a day, and let the handler answer `next_in` with the time to the next event",
    )
}

/// The fields of a crontab. Sets and lists in it are written as Python does: `{0, 15}`, `[1, 2]`.
fn unbracketed(fields: &str) -> String {
    let mut inside = false;
    let kept = fields.chars().filter(|c| {
        inside = matches!(c, '{' | '[' | '(') || (inside && !matches!(c, '}' | ']' | ')'));
        !(matches!(c, '{' | '[' | '(' | '}' | ']' | ')' | '\'') || inside && *c == ' ')
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::chains;
    use super::*;

    fn wishes() -> Wishes {
        let url = "http://127.0.0.1:8000/{{ kind }}";
        Wishes { zone: None, queue: "beat".into(), handler_url: url.into() }
    }

    /// The output of Celery 5.7.
    const DUMP: &str = r#"{"timezone": "Europe/Berlin", "beat_schedule": {
"morning": {"task": "app.greet", "schedule": "<crontab: 30 7 * * 1 (m/h/dM/MY/d)>", "args": ["Ann"]},
"quarters": {"task": "app.greet", "schedule": "<crontab: {0, 15} [8, 9] 13 * fri (m/h/dM/MY/d)>", "kwargs": {"loud": true}},
"sync": {"task": "app.sync", "schedule": 30.0, "options": {"queue": "slow", "expires": 20, "priority": 3}},
"delta": {"task": "app.sync", "schedule": "datetime.timedelta(days=1, seconds=1, microseconds=500000)", "relative": true},
"sun": {"task": "app.lamp", "schedule": "<solar: sunset at latitude 52, longitude 13>"},
"own": {"task": "app.x", "schedule": "<proj.Mine object>"},
"tiny": {"task": "app.x", "schedule": 0.0001},
"bad": {"schedule": 5},
"celery.backend_cleanup": {"task": "celery.backend_cleanup", "schedule": "<crontab: 0 4 * * * (m/h/dM/MY/d)>"}
}}"#;

    #[test]
    fn every_entry_is_in_the_result_or_in_the_report() {
        let import = import(DUMP, Time::default(), &wishes()).unwrap();
        let mut found: Vec<String> = chains(&import)
            .iter()
            .map(|(kind, key, when, payload)| format!("{kind} {key}: {when} {payload}"))
            .collect();
        found.sort_unstable();
        let own = |cron: &str| format!(r#""schedule":"{{\"cron\":\"{cron}\",\"zone\":\"Europe/Berlin\"}}""#);
        let expected = [
            format!(
                r#"app.greet morning: cron 30 7 * * 1 Europe/Berlin {{"key":"morning",{},"args":["Ann"],"kwargs":{{}}}}"#,
                own("30 7 * * 1")
            ),
            format!(
                r#"app.greet quarters: cron 0,15 8,9 13 * +5 Europe/Berlin {{"key":"quarters",{},"args":[],"kwargs":{{"loud":true}}}}"#,
                own("0,15 8,9 13 * +5")
            ),
            r#"app.sync delta: every 86401500ms from start {"args":[],"key":"delta","kwargs":{}}"#.into(),
            r#"app.sync-2 sync: every 30s from start {"args":[],"key":"sync","kwargs":{}}"#.into(),
        ];
        let parsed = |text: &String| {
            let (name, payload) = text.split_once(" {").unwrap();
            (name.to_owned(), serde_json::from_str::<Value>(&format!("{{{payload}")).unwrap())
        };
        assert_eq!(found.iter().map(parsed).collect::<Vec<_>>(), expected.iter().map(parsed).collect::<Vec<_>>());
        let mut left: Vec<_> = import.notes.iter().filter(|note| note.weight == Weight::LeftOut).collect();
        left.sort_by_key(|note| note.place.clone());
        let places: Vec<_> = left.iter().map(|note| note.place.as_deref().unwrap()).collect();
        assert_eq!(places, ["bad", "celery.backend_cleanup", "own", "sun", "tiny"]);
        assert!(left[3].why.contains("by the sun"), "{left:?}");
        let differs = |part: &str| import.notes.iter().any(|note| format!("{note:?}").contains(part));
        assert!(differs("priority = 3") && differs("relative"), "{:?}", import.notes);
        let sync = import.kinds.iter().find(|kind| kind.name == "app.sync-2").unwrap();
        assert!(
            sync.settings.contains(&("misfire_window", text("20s")))
                && sync.settings.contains(&("queue", text("beat-slow")))
        );
    }

    #[test]
    fn text_that_is_no_dump_is_refused() {
        let error = import("{}", Time::default(), &wishes()).unwrap_err();
        assert!(error.contains("beat_schedule"), "{error}");
    }
}
