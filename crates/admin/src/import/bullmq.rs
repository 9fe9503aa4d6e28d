//! BullMQ's job schedulers: the answer of `getJobSchedulers()` or `getRepeatableJobs()` of a queue, as JSON. One kind
//! for each name of a job, one chain for each scheduler.

use std::time::Duration;

use roundelay_engine::roster::Row;
use roundelay_model::clock::{Time, short_duration};
use roundelay_model::outcome::MAX_WAIT;
use serde::Deserialize;
use serde_json::Value;
use toml::Value as Toml;

use super::{Call, Import, MAX_TIMEOUT, Recurs, Weight, Wishes, by_cron, list, text};
use crate::import::cron::Dialect;

/// A job scheduler, or a repeatable job of earlier versions.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Scheduler {
    key: String,
    name: String,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    pattern: Option<String>,
    /// Milliseconds; text in earlier versions.
    #[serde(default)]
    every: Value,
    #[serde(default)]
    tz: Option<String>,
    #[serde(default)]
    limit: Option<u64>,
    #[serde(default)]
    iteration_count: Option<u64>,
    #[serde(default)]
    start_date: Option<i64>,
    #[serde(default)]
    end_date: Option<i64>,
    #[serde(default)]
    template: Option<Template>,
}

#[derive(Deserialize)]
struct Template {
    #[serde(default)]
    data: Value,
    #[serde(default)]
    opts: Row,
}

#[derive(Deserialize)]
struct Backoff {
    r#type: String,
    #[serde(default)]
    delay: f64,
}

/// The note about patterns without a time zone.
const DEFAULT_ZONE: (&str, &str) = (
    "patterns without tz are taken as UTC; BullMQ goes by the zone of the machine of its worker",
    "if that is another one, import again with --zone",
);
/// Notes about every import: why, and what to do.
const GENERAL: [(&str, &str); 2] = [
    (
        "BullMQ starts a job although the one before still runs; here a chain never runs twice at once",
        "nothing, unless a scheduler counts on it",
    ),
    (
        "an interval is counted from where a chain begins; BullMQ counts it from 1970, so that 60000 means each full minute",
        "set `cron` in a kind where that matters",
    ),
];

/// Reads the answer, at the time `now`.
///
/// # Errors
/// When the text is not such an answer.
pub fn import(source: &str, now: Time, wishes: &Wishes) -> Result<Import, String> {
    let schedulers: Vec<Value> =
        serde_json::from_str(source).map_err(|error| format!("not a JSON array of job schedulers: {error}"))?;
    let (mut import, mut calls, mut default_zone) = (Import::default(), Vec::new(), false);
    for (n, scheduler) in schedulers.into_iter().enumerate() {
        let written = scheduler.to_string();
        let place = scheduler["key"].as_str().map_or_else(|| format!("entry {}", n + 1), str::to_owned);
        let call = serde_json::from_value::<Scheduler>(scheduler)
            .map_err(|error| {
                (format!("it is not as BullMQ writes it: {error}"), "say which version of BullMQ it is from")
            })
            .and_then(|scheduler| {
                default_zone |= scheduler.pattern.is_some() && scheduler.tz.is_none() && wishes.zone.is_none();
                call(&mut import, scheduler, now, wishes)
            });
        match call {
            Ok(call) => calls.push(call),
            Err((why, advice)) => import.note(Weight::LeftOut, &place, &written, why, advice),
        }
    }
    import.add_calls(calls, wishes);
    if import.carried > 0 {
        import.general(default_zone.then_some(DEFAULT_ZONE).into_iter().chain(GENERAL));
    }
    Ok(import)
}

fn call(import: &mut Import, scheduler: Scheduler, now: Time, wishes: &Wishes) -> Result<Call, (String, &'static str)> {
    let by_hand = "write its kind by hand";
    let every = match &scheduler.every {
        Value::Null => None,
        Value::String(text) if text.is_empty() => None,
        Value::String(text) => Some(text.parse::<f64>().unwrap_or_default()),
        other => Some(other.as_f64().unwrap_or_default()),
    };
    // In a repeatable job, the key's last part is the pattern or the interval.
    let number = scheduler.pattern.as_deref().and_then(|pattern| pattern.parse::<f64>().ok());
    let recurs = match (every.or(number), &scheduler.pattern) {
        (Some(every), _) if every >= 1.0 && every.fract() == 0.0 && every < 1e15 => {
            let recurs = Recurs::Every(Duration::from_millis(every as u64), "nominal");
            recurs.check().map_err(|why| (why, by_hand))?;
            recurs
        }
        (Some(_), _) => return Err((format!("`every` is {}, and not milliseconds", scheduler.every), by_hand)),
        (None, Some(pattern)) => {
            let zone = scheduler.tz.as_deref().or(wishes.zone.as_deref()).unwrap_or("UTC");
            by_cron(pattern, Dialect::CronParser, zone).map_err(|why| (why, by_hand))?
        }
        (None, None) => return Err(("it has neither `every` nor `pattern`".into(), by_hand)),
    };
    if let Some(start) = scheduler.start_date.map(Time::from_millis).filter(|start| *start > now) {
        return Err((format!("it begins only at {start}"), "import it again then"));
    }
    let done = scheduler.iteration_count.unwrap_or_default();
    if scheduler.limit.is_some_and(|limit| done >= limit) {
        return Err((format!("it has run {done} times, which is its limit"), "nothing"));
    }
    let name = &scheduler.key;
    if let Some(limit) = scheduler.limit {
        let advice = "let the handler answer {\"outcome\":\"retire\"} when it has had enough";
        import.note(
            Weight::Differs,
            name,
            &format!("limit = {limit}"),
            format!("{done} are done, and a chain does not count"),
            advice,
        );
    }
    if let Some(end) = scheduler.end_date.map(Time::from_millis) {
        if end <= now {
            return Err((format!("it has ended at {end}"), "nothing"));
        }
        let advice = "retire it then: `roundelay retire KIND KEY`";
        import.note(Weight::Differs, name, &format!("endDate = {end}"), "a chain has no end of its own", advice);
    }
    let (data, opts) = scheduler.template.map_or((Value::Null, Row::new()), |template| (template.data, template.opts));
    let settings = settings(import, name, opts);
    let name = scheduler.id.filter(|id| !id.is_empty()).map_or(scheduler.key, |id| format!("{}:{id}", scheduler.name));
    let payload = Row::from_iter([("data".to_owned(), data)]);
    Ok(Call { task: scheduler.name, name, recurs, queue: wishes.queue.clone(), settings, payload })
}

/// Attempts and their backoff; notes for options that have no setting.
fn settings(import: &mut Import, name: &str, mut opts: Row) -> Vec<(&'static str, Toml)> {
    let attempts = opts.remove("attempts").and_then(|attempts| attempts.as_i64()).map_or(1, |attempts| attempts.max(1));
    let mut settings = vec![("timeout", text(MAX_TIMEOUT)), ("retry.attempts", Toml::Integer(attempts))];
    let wait = |millis: f64| text(&short_duration(Duration::from_millis(millis as u64).min(MAX_WAIT)));
    let given = opts.remove("backoff").unwrap_or_default();
    let backoff = match &given {
        Value::Number(delay) => Some(Backoff { r#type: "fixed".into(), delay: delay.as_f64().unwrap_or_default() }),
        other => serde_json::from_value::<Backoff>(other.clone()).ok(),
    };
    match backoff {
        Some(Backoff { r#type, delay }) if r#type == "exponential" && delay >= 1.0 => {
            let longest = delay * 2_f64.powi(i32::try_from(attempts.min(60)).unwrap_or(60));
            let backoff = [
                ("base", wait(delay)),
                ("factor", Toml::Float(2.0)),
                ("max", wait(longest)),
                ("jitter", Toml::Float(0.0)),
            ];
            let backoff = backoff.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
            settings.push(("retry.backoff", Toml::Table(backoff)));
        }
        Some(Backoff { r#type, delay }) if r#type == "fixed" && delay >= 1.0 => {
            settings.push(("retry.backoff", list([wait(delay).as_str().unwrap_or_default()])));
        }
        // Without a wait, the next attempt comes at once.
        Some(Backoff { delay, .. }) if delay < 1.0 => settings.push(("retry.backoff", list(["1ms"]))),
        None if given.is_null() => settings.push(("retry.backoff", list(["1ms"]))),
        _ => {
            let advice = "set `retry.backoff` of its kind";
            import.note(
                Weight::Differs,
                name,
                &format!("backoff = {given}"),
                "this is a backoff of your own code",
                advice,
            );
        }
    }
    for (option, value) in opts {
        // Roundelay keeps the records of runs for ledger.history.
        if !matches!(option.as_str(), "removeOnComplete" | "removeOnFail" | "repeat" | "jobId" | "delay" | "timestamp")
        {
            let advice = "see whether the service needs it";
            import.note(
                Weight::Differs,
                name,
                &format!("{option} = {value}"),
                "this option is not carried over",
                advice,
            );
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::super::tests::chains;
    use super::*;
    use roundelay_config::at_time;

    /// The answers of `getJobSchedulers()` in BullMQ 6.7, and, for the last two, of `getRepeatableJobs()` in 4.x.
    const ANSWER: &str = r#"[
{"key":"nightly","name":"report","next":1800000000000,"iterationCount":1,"pattern":"0 3 * * *","tz":"Europe/Berlin","template":{"data":{"a":1},"opts":{"attempts":3,"backoff":{"type":"exponential","delay":1000},"removeOnComplete":true,"priority":2}}},
{"key":"fast","name":"poll","next":1800000000000,"iterationCount":2,"every":10000,"offset":0,"limit":5,"endDate":1900000000000,"template":{"opts":{"attempts":2,"backoff":{"type":"fixed","delay":500}}}},
{"key":"seconds","name":"poll","pattern":"*/5 * * * * *"},
{"key":"ended","name":"poll","every":10000,"endDate":1600000000000},
{"key":"enough","name":"poll","every":10000,"limit":5,"iterationCount":5},
{"key":"later","name":"poll","every":10000,"startDate":1900000000000},
{"key":"hashed","name":"poll","pattern":"H 3 * * *"},
{"key":"nothing","name":"poll"},
{"name":"nameless"},
{"key":"mail:daily:::0 9 * * *","name":"mail","id":"daily","endDate":null,"tz":null,"pattern":"0 9 * * *","next":1800000000000},
{"key":"mail::::60000","name":"mail","id":null,"endDate":null,"tz":null,"pattern":"60000","next":1800000000000}
]"#;

    #[test]
    fn every_scheduler_is_in_the_result_or_in_the_report() {
        let wishes = Wishes { zone: None, queue: "bullmq".into(), handler_url: "http://127.0.0.1:8000/".into() };
        let import = import(ANSWER, at_time("2026-01-01T00:00:00Z").unwrap(), &wishes).unwrap();
        let found: Vec<String> =
            chains(&import).iter().map(|(kind, key, when, _)| format!("{kind} {key}: {when}")).collect();
        assert_eq!(
            found,
            [
                "report nightly: cron 0 3 * * * Europe/Berlin",
                "poll fast: every 10s from nominal",
                "poll-2 seconds: cron */5 * * * * * UTC",
                "mail mail:daily: cron 0 9 * * * UTC",
                "mail mail::::60000: every 60s from nominal",
            ]
        );
        let left: Vec<_> = import.notes.iter().filter(|note| note.weight == Weight::LeftOut).collect();
        let places: Vec<_> = left.iter().map(|note| note.place.as_deref().unwrap()).collect();
        assert_eq!(places, ["ended", "enough", "later", "hashed", "nothing", "entry 9"], "{left:?}");
        assert_eq!(import.carried + left.len(), 11);
        let text = import.configuration("rosters");
        assert!(text.contains(r#"retry.backoff = { base = "1s", factor = 2.0, jitter = 0.0, max = "8s" }"#), "{text}");
        assert!(text.contains(r#"retry.backoff = ["500ms"]"#), "{text}");
        let differs: Vec<_> = import.notes.iter().filter(|note| note.weight == Weight::Differs).collect();
        let entries: Vec<_> = differs.iter().map(|note| note.entry.as_deref().unwrap()).collect();
        assert_eq!(entries, ["priority = 2", "limit = 5", "endDate = 2030-03-17T17:46:40.000Z"]);
        assert!(import.notes.iter().any(|note| note.why.contains("without tz")));
    }
}
