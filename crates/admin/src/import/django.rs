//! The output of `manage.py dumpdata django_celery_beat`: rows of its tables. The rows of periodic tasks refer to rows
//! of schedules.

use std::collections::BTreeMap;

use roundelay_config::at_time;
use roundelay_model::clock::Time;
use serde::Deserialize;
use serde_json::Value;

use super::celery::{cleanup, expires, interval, payload, settings, solar};
use super::{Call, Import, Recurs, Weight, Wishes, by_cron};
use crate::import::cron::Dialect;

#[derive(Deserialize)]
struct Record {
    model: String,
    #[serde(default)]
    pk: Value,
    fields: Value,
}

#[derive(Deserialize)]
struct Crontab {
    minute: String,
    hour: String,
    day_of_week: String,
    day_of_month: String,
    month_of_year: String,
    #[serde(default)]
    timezone: Option<String>,
}

#[derive(Deserialize)]
struct Interval {
    every: f64,
    period: String,
}

#[derive(Deserialize)]
struct Clocked {
    clocked_time: String,
}

#[derive(Deserialize)]
struct Task {
    name: String,
    task: String,
    #[serde(default)]
    interval: Value,
    #[serde(default)]
    crontab: Value,
    #[serde(default)]
    solar: Value,
    #[serde(default)]
    clocked: Value,
    #[serde(default)]
    args: String,
    #[serde(default)]
    kwargs: String,
    #[serde(default)]
    queue: Option<String>,
    #[serde(default)]
    exchange: Option<String>,
    #[serde(default)]
    routing_key: Option<String>,
    #[serde(default)]
    headers: Option<String>,
    #[serde(default)]
    priority: Option<u32>,
    #[serde(default)]
    expires: Option<String>,
    #[serde(default)]
    expire_seconds: Option<u32>,
    #[serde(default)]
    one_off: bool,
    #[serde(default)]
    start_time: Option<String>,
    enabled: bool,
}

/// Why an entry is left out, and what to do.
type LeftOut = (String, &'static str);

/// Reads the rows into calls, and adds a note for every other row.
///
/// # Errors
/// When the text is no such dump.
pub(super) fn read(
    import: &mut Import,
    calls: &mut Vec<Call>,
    source: &str,
    now: Time,
    wishes: &Wishes,
) -> Result<(), String> {
    let records: Vec<Record> =
        serde_json::from_str(source).map_err(|error| format!("not what dumpdata prints: {error}"))?;
    let ours = |record: &Record| record.model.strip_prefix("django_celery_beat.").map(str::to_owned);
    let mut schedules: BTreeMap<(String, String), Value> = BTreeMap::new();
    for record in &records {
        if let Some(model) = ours(record) {
            schedules.insert((model, record.pk.to_string()), record.fields.clone());
        }
    }
    for record in records {
        // Schedules are read with the tasks that refer to them; `periodictasks` stores when the table has changed.
        match ours(&record).as_deref() {
            Some("periodictask") => {}
            Some("crontabschedule" | "intervalschedule" | "solarschedule" | "clockedschedule" | "periodictasks") => {
                continue;
            }
            _ => {
                let why = "it is of another application";
                let advice = "nothing; dump django_celery_beat alone to be rid of this line";
                import.note(Weight::Note, &record.model, "", why, advice);
                continue;
            }
        }
        let written = record.fields.to_string();
        let name = record.fields["name"].as_str().map_or_else(|| format!("pk {}", record.pk), str::to_owned);
        let call = serde_json::from_value::<Task>(record.fields)
            .map_err(|error| {
                (format!("it is not as django_celery_beat writes it: {error}"), "mend it, and dump it again")
            })
            .and_then(|task| call(import, task, &schedules, now, wishes));
        match call {
            Ok(call) => calls.push(call),
            Err((why, advice)) => import.note(Weight::LeftOut, &name, &written, why, advice),
        }
    }
    Ok(())
}

fn call(
    import: &mut Import,
    task: Task,
    schedules: &BTreeMap<(String, String), Value>,
    now: Time,
    wishes: &Wishes,
) -> Result<Call, LeftOut> {
    if !task.enabled {
        return Err(("it is not enabled".into(), "enable it and dump again, if it is wanted"));
    }
    if task.task == "celery.backend_cleanup" {
        return Err(cleanup());
    }
    let later = |time: &Option<String>| time.as_deref().and_then(|time| at_time(time).ok()).filter(|at| *at > now);
    if let Some(start) = later(&task.start_time) {
        return Err((format!("it begins only at {start}"), "dump and import it again then"));
    }
    let recurs = recurs(&task, schedules, wishes)?;
    match &recurs {
        Recurs::At(at) if at_time(at).is_ok_and(|at| at <= now) => {
            return Err((format!("its time, {at}, is past"), "nothing, if it has run"));
        }
        Recurs::At(_) => {}
        _ if task.one_off => {
            return Err((
                "it is to run once, at the next time of its schedule".into(),
                "publish it: `roundelay publish KIND KEY --delay …`",
            ));
        }
        _ => {}
    }
    let mut differs =
        |entry: String, why: &str, advice: &str| import.note(Weight::Differs, &task.name, &entry, why, advice);
    if let Some(expires) = &task.expires {
        if later(&task.expires).is_none() {
            return Err((format!("it has expired at {expires}"), "nothing"));
        }
        let why = "a chain has no end of its own";
        differs(format!("expires = {expires}"), why, "retire it then: `roundelay retire KIND KEY`");
    }
    let filled = |text: &Option<String>| text.as_deref().is_some_and(|text| !matches!(text, "" | "{}"));
    let options = [
        ("exchange", filled(&task.exchange)),
        ("routing_key", filled(&task.routing_key)),
        ("headers", filled(&task.headers)),
        ("priority", task.priority.is_some()),
    ];
    for (option, _) in options.into_iter().filter(|(_, given)| *given) {
        let why = "this option is for Celery's messages, and is not carried over";
        differs(option.into(), why, "see whether the service needs it");
    }
    let json = |text: &str, empty: &str| serde_json::from_str::<Value>(if text.is_empty() { empty } else { text });
    let not_json = |what: &str, error: serde_json::Error| {
        (format!("its {what} are no JSON: {error}"), "mend them, and dump again")
    };
    let args = json(&task.args, "[]").map_err(|error| not_json("args", error))?;
    let kwargs = json(&task.kwargs, "{}").map_err(|error| not_json("kwargs", error))?;
    let mut settings = settings();
    if let Some(seconds) = task.expire_seconds.filter(|seconds| *seconds > 0) {
        expires(&mut settings, f64::from(seconds));
    }
    let queue = task.queue.as_deref().filter(|queue| !queue.is_empty());
    let queue = queue.map_or(wishes.queue.clone(), |queue| format!("{}-{queue}", wishes.queue));
    Ok(Call { task: task.task, name: task.name, recurs, queue, settings, payload: payload(args, kwargs) })
}

fn recurs(task: &Task, schedules: &BTreeMap<(String, String), Value>, wishes: &Wishes) -> Result<Recurs, LeftOut> {
    let again = "dump all of django_celery_beat, and import it again";
    let find = |model: &str, pk: &Value| {
        let fields = schedules.get(&(model.to_owned(), pk.to_string()));
        fields.cloned().ok_or_else(|| (format!("its {model} {pk} is not in the dump"), again))
    };
    let unread = |error: serde_json::Error| (format!("its schedule cannot be read: {error}"), again);
    if !task.crontab.is_null() {
        let at: Crontab = serde_json::from_value(find("crontabschedule", &task.crontab)?).map_err(unread)?;
        let fields = [&at.minute, &at.hour, &at.day_of_month, &at.month_of_year, &at.day_of_week];
        // django-celery-beat allows spaces after commas.
        let fields: Vec<String> = fields.iter().map(|field| field.replace(' ', "")).collect();
        let zone = at.timezone.or_else(|| wishes.zone.clone()).unwrap_or_else(|| "UTC".into());
        let recurs = by_cron(&fields.join(" "), Dialect::Celery, &zone);
        return recurs.map_err(|why| (why, "write its kind by hand"));
    }
    if !task.interval.is_null() {
        let every: Interval = serde_json::from_value(find("intervalschedule", &task.interval)?).map_err(unread)?;
        let unit = match every.period.as_str() {
            "days" => 86_400e6,
            "hours" => 3_600e6,
            "minutes" => 60e6,
            "seconds" => 1e6,
            "microseconds" => 1.0,
            other => return Err((format!("its period is `{other}`"), "write its kind by hand")),
        };
        return interval(every.every * unit);
    }
    if !task.clocked.is_null() {
        let at: Clocked = serde_json::from_value(find("clockedschedule", &task.clocked)?).map_err(unread)?;
        let recurs = Recurs::At(at.clocked_time);
        return recurs.check().map(|()| recurs).map_err(|why| (why, "write its kind by hand"));
    }
    if !task.solar.is_null() {
        return Err(solar());
    }
    Err(("it has no schedule".into(), "give it one, and dump again"))
}

#[cfg(test)]
mod tests {
    use super::super::celery;
    use super::super::tests::chains;
    use super::*;

    /// The output of django-celery-beat 2.9.
    const DUMP: &str = r#"[
{"model": "auth.user", "pk": 1, "fields": {}},
{"model": "django_celery_beat.crontabschedule", "pk": 1, "fields": {"minute": "0", "hour": "4, 16", "day_of_month": "13", "month_of_year": "*", "day_of_week": "5", "timezone": "America/New_York"}},
{"model": "django_celery_beat.intervalschedule", "pk": 1, "fields": {"every": 10, "period": "minutes"}},
{"model": "django_celery_beat.solarschedule", "pk": 1, "fields": {"event": "sunset", "latitude": "52.0", "longitude": "13.0"}},
{"model": "django_celery_beat.clockedschedule", "pk": 1, "fields": {"clocked_time": "2030-01-01T03:00:00Z"}},
{"model": "django_celery_beat.clockedschedule", "pk": 2, "fields": {"clocked_time": "2020-01-01T03:00:00Z"}},
{"model": "django_celery_beat.periodictasks", "pk": 1, "fields": {"last_update": "2026-01-01T00:00:00Z"}},
{"model": "django_celery_beat.periodictask", "pk": 1, "fields": {"name": "friday 13th", "task": "app.scare", "crontab": 1, "args": "[1]", "kwargs": "{\"a\": 2}", "queue": null, "headers": "{}", "enabled": true}},
{"model": "django_celery_beat.periodictask", "pk": 2, "fields": {"name": "poll", "task": "app.poll", "interval": 1, "args": "[]", "kwargs": "{}", "queue": "io", "expire_seconds": 60, "expires": "2031-01-01T00:00:00Z", "priority": 4, "enabled": true}},
{"model": "django_celery_beat.periodictask", "pk": 3, "fields": {"name": "launch", "task": "app.launch", "clocked": 1, "one_off": true, "enabled": true}},
{"model": "django_celery_beat.periodictask", "pk": 4, "fields": {"name": "lamp", "task": "app.lamp", "solar": 1, "enabled": true}},
{"model": "django_celery_beat.periodictask", "pk": 5, "fields": {"name": "off", "task": "app.poll", "interval": 1, "enabled": false}},
{"model": "django_celery_beat.periodictask", "pk": 6, "fields": {"name": "past", "task": "app.launch", "clocked": 2, "one_off": true, "enabled": true}},
{"model": "django_celery_beat.periodictask", "pk": 7, "fields": {"name": "once", "task": "app.poll", "interval": 1, "one_off": true, "enabled": true}},
{"model": "django_celery_beat.periodictask", "pk": 8, "fields": {"name": "lost", "task": "app.poll", "interval": 9, "enabled": true}},
{"model": "django_celery_beat.periodictask", "pk": 9, "fields": {"name": "over", "task": "app.poll", "interval": 1, "expires": "2021-01-01T00:00:00Z", "enabled": true}},
{"model": "django_celery_beat.periodictask", "pk": 10, "fields": {"name": "soon", "task": "app.poll", "interval": 1, "start_time": "2031-01-01T00:00:00Z", "enabled": true}},
{"model": "django_celery_beat.periodictask", "pk": 11, "fields": {"name": "python", "task": "app.poll", "interval": 1, "args": "[None]", "enabled": true}}
]"#;

    #[test]
    fn every_task_is_in_the_result_or_in_the_report() {
        let wishes = Wishes { zone: None, queue: "beat".into(), handler_url: "http://127.0.0.1:8000/".into() };
        let import = celery::import(DUMP, at_time("2026-01-01T00:00:00Z").unwrap(), &wishes).unwrap();
        let found: Vec<String> =
            chains(&import).iter().map(|(kind, key, when, _)| format!("{kind} {key}: {when}")).collect();
        assert_eq!(
            found,
            [
                "app.scare friday 13th: cron 0 4,16 13 * +5 America/New_York",
                "app.poll poll: every 10m from start",
                "app.launch launch: at 2030-01-01T03:00:00.000Z",
            ]
        );
        let left = import.notes.iter().filter(|note| note.weight == Weight::LeftOut);
        let left: Vec<_> = left.map(|note| (note.place.as_deref().unwrap(), note.why.as_str())).collect();
        for (n, (name, why)) in [
            ("lamp", "by the sun"),
            ("off", "not enabled"),
            ("past", "is past"),
            ("once", "to run once"),
            ("lost", "intervalschedule 9 is not in the dump"),
            ("over", "expired"),
            ("soon", "begins only at"),
            ("python", "args are no JSON"),
        ]
        .into_iter()
        .enumerate()
        {
            assert!(left[n].0 == name && left[n].1.contains(why), "{name}: {:?}", left[n]);
        }
        assert_eq!((import.carried, left.len()), (3, 8));
        let said: Vec<String> = import.notes.iter().map(|note| format!("{:?} {:?}", note.place, note.entry)).collect();
        assert!(
            said.iter().any(|said| said.contains("priority"))
                && said.iter().any(|said| said.contains("expires = 2031"))
        );
        assert!(said.iter().any(|said| said.contains("auth.user")), "{said:?}");
    }
}
