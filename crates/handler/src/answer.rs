//! What another program says about its run: a JSON object with `outcome`, in an HTTP response or
//! as the last line of a program's output. `docs/handlers.md` documents it.

use std::time::Duration;

use jiff::Timestamp;
use roundelay_model::clock::{Time, parse_duration};
use roundelay_model::failure::FailedItem;
use roundelay_model::outcome::{Change, Discovered, NewJob, Outcome, Yield};
use roundelay_model::reason::{Class, Reason, excerpt};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::context::Advice;

/// How much of an answer, or of a program's output, is kept, in bytes.
pub const KEPT: usize = 64 * 1024;
/// How many characters of foreign text end up in a reason.
pub const EXCERPT: usize = 200;
/// The longest reason that a handler may give, in characters; the rest is cut off.
const MAX_REASON: usize = 1_000;
/// The longest name of a reason that a handler may give, in characters; the rest is cut off.
const MAX_CODE: usize = 100;

/// The outcome that `text` decides on: `None` when it is not a JSON object with `outcome`, or with
/// what goes with "done" and nothing else, and a failure that says what is wrong when it is one but
/// cannot be followed.
pub fn decided(text: &[u8]) -> Option<Outcome> {
    let text = text.trim_ascii();
    if text.first() != Some(&b'{') {
        return None;
    }
    let outcome = match serde_json::from_slice::<Answer>(text) {
        Ok(answer) => match answer.outcome {
            Some(word) => answer.outcome(word),
            None if answer.means_done(text) => answer.done(),
            None => return None,
        },
        // The fields take any value, so this is a field that stands there twice.
        Err(error) if error.is_data() && has_outcome(text) => Err(error.to_string()),
        Err(_) => return None,
    };
    let unusable = |why| Reason::new(Class::Answer, format!("the handler's answer is not usable: {why}"));
    Some(outcome.unwrap_or_else(|why| Outcome::fail(unusable(why))))
}

/// What `text` says to the throttle that its run started under, if it is a JSON object that has
/// `throttle`.
///
/// # Errors
/// When that cannot be followed, and all of the object was written for us. If it has an outcome,
/// [`decided`] says so, too.
pub fn advice(text: &[u8]) -> Result<Option<Advice>, String> {
    let text = text.trim_ascii();
    if text.first() != Some(&b'{') || !contains(text, b"\"throttle\"") {
        return Ok(None);
    }
    let Ok(answer) = serde_json::from_slice::<Answer>(text) else { return Ok(None) };
    answer.advice().or_else(|why| if all_is_ours(text) { Err(why) } else { Ok(None) })
}

/// Whether the JSON object `text` has no field that is not ours, as the answer of a service that knows nothing of us
/// would.
fn all_is_ours(text: &[u8]) -> bool {
    let known = [
        "outcome",
        "reason",
        "code",
        "after",
        "spawn",
        "chains",
        "failed",
        "batch",
        "carry",
        "next_in",
        "changed",
        "changed_at",
        "throttle",
    ];
    let ours = |name: &String| known.contains(&name.as_str());
    serde_json::from_slice::<serde_json::Map<String, Value>>(text).is_ok_and(|all| all.keys().all(ours))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Borrows the fields unparsed: most answers have none of them, and every call has an answer.
#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow, default)]
    outcome: Option<&'a RawValue>,
    #[serde(borrow, default)]
    reason: Option<&'a RawValue>,
    #[serde(borrow, default)]
    code: Option<&'a RawValue>,
    #[serde(borrow, default)]
    after: Option<&'a RawValue>,
    #[serde(borrow, default)]
    spawn: Option<&'a RawValue>,
    #[serde(borrow, default)]
    chains: Option<&'a RawValue>,
    #[serde(borrow, default)]
    failed: Option<&'a RawValue>,
    #[serde(borrow, default)]
    batch: Option<&'a RawValue>,
    #[serde(borrow, default)]
    carry: Option<&'a RawValue>,
    #[serde(borrow, default)]
    next_in: Option<&'a RawValue>,
    #[serde(borrow, default)]
    changed: Option<&'a RawValue>,
    #[serde(borrow, default)]
    changed_at: Option<&'a RawValue>,
    #[serde(borrow, default)]
    throttle: Option<&'a RawValue>,
}

/// `throttle`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Throttle<'a> {
    #[serde(borrow, default)]
    hold: Option<&'a RawValue>,
    #[serde(default)]
    why: Option<String>,
    #[serde(default)]
    remaining: Option<u32>,
    #[serde(borrow, default)]
    reset: Option<&'a RawValue>,
    #[serde(default)]
    cost: Option<u32>,
}

/// An entry of `spawn` or `batch`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Spawn<'a> {
    kind: String,
    key: String,
    #[serde(default)]
    payload: Value,
    #[serde(default)]
    queue: Option<String>,
    #[serde(default)]
    owner: Option<String>,
    #[serde(borrow, default)]
    after: Option<&'a RawValue>,
}

/// An entry of `chains`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Chain<'a> {
    kind: String,
    key: String,
    #[serde(default)]
    payload: Value,
    #[serde(default)]
    queue: Option<String>,
    #[serde(default)]
    owner: Option<String>,
    /// Text, or an object.
    #[serde(default)]
    schedule: Value,
    #[serde(borrow, default)]
    spread: Option<&'a RawValue>,
}

/// An entry of `failed`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Failed {
    item: String,
    reason: String,
    #[serde(default)]
    code: Option<String>,
}

impl Answer<'_> {
    fn outcome(&self, word: &RawValue) -> Result<Outcome, String> {
        self.advice()?;
        let word = string(word).ok_or_else(|| unknown(word.get()))?;
        let after = self.after.map(duration).transpose()?;
        let reason: Reason = match self.reason {
            None => format!("the handler said \"{word}\" and gave no reason").into(),
            Some(reason) => match string(reason) {
                Some(reason) => excerpt(reason.as_bytes(), MAX_REASON).into(),
                None => return Err(format!("`reason` is {}, not text", shown(reason.get()))),
            },
        };
        let reason = match self.code {
            None => reason,
            Some(code) => match string(code) {
                Some(code) if !code.is_empty() => reason.coded(excerpt(code.as_bytes(), MAX_CODE)),
                _ => return Err(format!("`code` is {}; it is the name of a reason", shown(code.get()))),
            },
        };
        match (word.as_str(), after) {
            (_, _) if word != "done" && self.asks() => {
                let with = "`spawn`, `chains`, `failed`, `batch`, `carry`, `next_in`, `changed` and `changed_at`";
                Err(format!("{with} go with \"done\", not with \"{word}\""))
            }
            ("retry", after) => Ok(Outcome::Retry { reason, after }),
            // No wait would be a loop at full speed that no count of attempts ends.
            ("snooze", None | Some(Duration::ZERO)) => {
                Err("\"snooze\" needs an `after` longer than zero, such as \"30s\" or 30".into())
            }
            ("snooze", Some(wait)) => Ok(Outcome::Snooze { reason, wait }),
            ("done" | "fail" | "retire", Some(_)) => {
                Err(format!("`after` goes with \"retry\" and \"snooze\", not with \"{word}\""))
            }
            ("done", None) => self.done(),
            ("fail", None) => Ok(Outcome::Fail { reason }),
            ("retire", None) => Ok(Outcome::Retire { reason }),
            (other, _) => Err(unknown(&format!("{other:?}"))),
        }
    }
}

impl Answer<'_> {
    fn done(&self) -> Result<Outcome, String> {
        self.advice()?;
        Ok(self.yields()?.map_or(Outcome::Done, Outcome::DoneWith))
    }

    fn advice(&self) -> Result<Option<Advice>, String> {
        let Some(raw) = self.throttle else { return Ok(None) };
        let wrong = |why: &dyn std::fmt::Display| format!("`throttle` is not as documented: {why}");
        let Throttle { hold, why, remaining, reset, cost } =
            serde_json::from_str(raw.get()).map_err(|error| wrong(&error))?;
        let wait = |field: &str, raw: Option<&RawValue>| {
            raw.map(duration).transpose().map_err(|why| wrong(&why.replace("`after`", &format!("`{field}`"))))
        };
        let budget = match (remaining, wait("reset", reset)?) {
            (Some(remaining), Some(reset)) => Some((remaining, reset)),
            (None, None) => None,
            _ => return Err(wrong(&"`remaining` and `reset` go together")),
        };
        let why = why.map(|why| excerpt(why.as_bytes(), EXCERPT));
        Ok(Some(Advice { hold: wait("hold", hold)?, why, budget, cost }))
    }

    /// Whether `text`, which has no `outcome`, was written for us all the same: it asks for something, and
    /// all of it is ours.
    fn means_done(&self, text: &[u8]) -> bool {
        // Other services say `"failed": 3` and `"changed": 3`, too, and mean nothing that is for us; a list is, and so
        // is yes or no.
        let parts = self.failed.is_some_and(|failed| failed.get().starts_with('['));
        let changed = self.changed.is_some_and(|changed| matches!(changed.get(), "true" | "false"));
        let others = [self.spawn, self.chains, self.batch, self.carry, self.next_in, self.changed_at];
        let asks = parts || changed || others.iter().any(Option::is_some);
        let of_outcomes = [self.reason, self.code, self.after].iter().any(Option::is_some);
        asks && !of_outcomes && all_is_ours(text)
    }

    fn yields(&self) -> Result<Option<Yield>, String> {
        if !self.asks() {
            return Ok(None);
        }
        let next_in = match self.next_in.map(duration).transpose().map_err(|why| why.replace("`after`", "`next_in`"))? {
            Some(Duration::ZERO) => return Err("`next_in` must be longer than zero".into()),
            next_in => next_in,
        };
        let carry = self.carry.map(|carry| serde_json::from_str(carry.get()).map_err(|error| error.to_string()));
        let failed = list::<Failed>("failed", self.failed)?.into_iter().map(|failed| FailedItem {
            code: failed.code.filter(|code| !code.is_empty()).map(|code| excerpt(code.as_bytes(), MAX_CODE)),
            ..FailedItem::new(excerpt(failed.item.as_bytes(), EXCERPT), excerpt(failed.reason.as_bytes(), MAX_REASON))
        });
        Ok(Some(Yield {
            jobs: jobs("spawn", self.spawn)?,
            chains: chains(self.chains)?,
            failed: failed.collect(),
            batch: jobs("batch", self.batch)?,
            carry: carry.transpose()?,
            next_in,
            change: self.change()?,
        }))
    }

    /// What it says of whether the entity has changed.
    fn change(&self) -> Result<Option<Change>, String> {
        let changed = self.changed.map(|raw| {
            let wrong = || format!("`changed` is {}; write true or false", shown(raw.get()));
            serde_json::from_str(raw.get()).map_err(|_| wrong())
        });
        let at = self.changed_at.map(time).transpose()?;
        Ok(match (changed.transpose()?, at) {
            (Some(false), _) => Some(Change::Same),
            (_, Some(at)) => Some(Change::ChangedAt(at)),
            (Some(true), None) => Some(Change::Changed),
            (None, None) => None,
        })
    }

    /// Whether it says more than how the run ended.
    fn asks(&self) -> bool {
        let of_runs = [self.spawn, self.chains, self.failed, self.batch, self.carry, self.next_in];
        of_runs.iter().chain(&[self.changed, self.changed_at]).any(Option::is_some)
    }
}

fn jobs(field: &str, raw: Option<&RawValue>) -> Result<Vec<NewJob>, String> {
    let jobs = list::<Spawn<'_>>(field, raw)?.into_iter().map(|job| {
        let delay = job.after.map(duration).transpose().map_err(|why| format!("`{field}`: {why}"))?;
        let Spawn { kind, key, payload, queue, owner, .. } = job;
        if field == "batch" && owner.is_some() {
            return Err("`batch`: its jobs belong to the owner of their chain, and name none".into());
        }
        Ok(NewJob { kind, key, payload, queue, delay: delay.unwrap_or_default(), owner })
    });
    jobs.collect()
}

fn chains(raw: Option<&RawValue>) -> Result<Vec<Discovered>, String> {
    let chains = list::<Chain<'_>>("chains", raw)?.into_iter().map(|chain| {
        let spread = chain.spread.map(duration).transpose();
        let spread = spread.map_err(|why| format!("`chains`: {}", why.replace("`after`", "`spread`")))?;
        let Chain { kind, key, payload, queue, owner, .. } = chain;
        let schedule = match chain.schedule {
            Value::Null => None,
            Value::String(words) => Some(words),
            object @ Value::Object(_) => Some(object.to_string()),
            other => {
                return Err(format!("`chains`: `schedule` is {}, no text and no object", shown(&other.to_string())));
            }
        };
        Ok(Discovered { kind, key, payload, queue, owner, schedule, spread })
    });
    chains.collect()
}

fn list<'a, T: Deserialize<'a>>(field: &str, raw: Option<&'a RawValue>) -> Result<Vec<T>, String> {
    let Some(raw) = raw else { return Ok(Vec::new()) };
    serde_json::from_str::<Option<Vec<T>>>(raw.get())
        .map(Option::unwrap_or_default)
        .map_err(|error| format!("`{field}` is not a list as documented: {error}"))
}

fn unknown(word: &str) -> String {
    format!("`outcome` is {}; known are \"done\", \"retry\", \"fail\", \"snooze\" and \"retire\"", shown(word))
}

fn string(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

fn duration(raw: &RawValue) -> Result<Duration, String> {
    match serde_json::from_str(raw.get()) {
        Ok(Value::String(text)) => parse_duration(&text).map_err(|why| format!("`after`: {why}")),
        Ok(Value::Number(seconds)) => seconds
            .as_f64()
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .ok_or_else(|| format!("`after` is {}; it counts seconds from now", shown(raw.get()))),
        _ => Err(format!("`after` is {}; write \"30s\" or a number of seconds", shown(raw.get()))),
    }
}

fn time(raw: &RawValue) -> Result<Time, String> {
    let read = match serde_json::from_str(raw.get()) {
        Ok(Value::String(text)) => {
            text.trim().parse::<Timestamp>().ok().map(|at| Time::from_millis(at.as_millisecond()))
        }
        Ok(Value::Number(millis)) => millis.as_i64().map(Time::from_millis),
        _ => None,
    };
    let form = "write RFC 3339 with its zone, such as \"2026-09-21T14:13:20Z\", or whole milliseconds since 1970";
    read.ok_or_else(|| format!("`changed_at` is {}; {form}", shown(raw.get())))
}

fn has_outcome(text: &[u8]) -> bool {
    serde_json::from_slice::<Value>(text).is_ok_and(|value| !value["outcome"].is_null())
}

fn shown(raw: &str) -> String {
    excerpt(raw.as_bytes(), 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(text: &str) -> String {
        match decided(text.as_bytes()) {
            Some(Outcome::Fail { reason }) => {
                assert_eq!(
                    reason.class,
                    if reason.text.starts_with("the handler's answer") { Class::Answer } else { Class::Handler }
                );
                reason.text
            }
            other => panic!("{text} gave {other:?}"),
        }
    }

    #[test]
    fn what_decides_nothing() {
        for text in [
            "",
            "ok",
            "{",
            "null",
            "[\"done\"]",
            "\"done\"",
            "{}",
            "{\"name\":\"left-pad\",\"version\":\"1\"}",
            "{\"outcome\":null}",
            "{\"outcome\":\"fail\"",
            "{\"outcome\":\"fail\"} trailing",
            "{\"reason\":1,\"reason\":2}",
            "{\"nested\":{\"outcome\":\"fail\"}}",
            "{\"failed\":3}",
            "{\"batch\":7,\"lot\":\"b\"}",
            "{\"carry\":1,\"reason\":\"r\"}",
            "{\"changed\":3}",
            "{\"changed\":\"yes\"}",
            "{\"changed\":null}",
            "{\"changed\":[]}",
            "{\"changed\":true,\"rows\":3}",
            "{\"changed\":false,\"msg\":\"ok\"}",
            "{\"changed\":true,\"reason\":\"r\"}",
            "{\"changed_at\":\"2026-09-21T14:13:20Z\",\"name\":\"left-pad\"}",
        ] {
            assert_eq!(decided(text.as_bytes()), None, "{text}");
        }
        let implied = Yield { carry: Some(1.into()), ..Yield::default() };
        assert_eq!(decided(b"{\"carry\":1,\"failed\":[]}"), Some(Outcome::DoneWith(implied)));
        let parts = Yield { failed: vec![FailedItem::new("us", "HTTP 404")], ..Yield::default() };
        let only_failed = br#"{"failed":[{"item":"us","reason":"HTTP 404"}]}"#;
        assert_eq!(decided(only_failed), Some(Outcome::DoneWith(parts)), "parts that failed are kept");
        assert!(
            matches!(decided(br#"{"failed":["us"]}"#), Some(Outcome::Fail { .. })),
            "a list that is not as documented is said, and not thrown away"
        );
        assert_eq!(decided(b"{\"outcome\":\"\xff\"}"), None, "not UTF-8, so not JSON");
    }

    #[test]
    fn a_table_of_decisions() {
        let s = Duration::from_secs;
        let retry = |after| Outcome::Retry { reason: "busy".into(), after };
        let said = |change| Outcome::DoneWith(Yield { change: Some(change), ..Yield::default() });
        let at = |millis: i64| Change::ChangedAt(Time::from_millis(1_790_000_000_000 + millis));
        let job = |key: &str, payload, queue: Option<&str>, delay| NewJob {
            kind: "k".into(),
            key: key.into(),
            payload,
            queue: queue.map(Into::into),
            delay: s(delay),
            owner: None,
        };
        let table = [
            (r#"{"outcome":"done"}"#, Outcome::Done),
            (" \n{\"outcome\":\"done\",\"reason\":\"fine\",\"version\":[1,{}]} \r\n", Outcome::Done),
            (r#"{"outcome":"done","after":null,"reason":null}"#, Outcome::Done),
            (r#"{"outcome":"retry","reason":"busy"}"#, retry(None)),
            (r#"{"outcome":"retry","reason":"busy","after":"1m 30s"}"#, retry(Some(s(90)))),
            (r#"{"outcome":"retry","reason":"busy","after":0}"#, retry(Some(s(0)))),
            (r#"{"outcome":"retry","reason":"busy","after":1.5}"#, retry(Some(Duration::from_millis(1_500)))),
            (r#"{"outcome":"retry"}"#, Outcome::retry("the handler said \"retry\" and gave no reason")),
            (r#"{"outcome":"fail","reason":"b\u00e4d\nnews"}"#, Outcome::fail("bäd news")),
            (r#"{"outcome":"snooze","reason":"x","after":30}"#, Outcome::Snooze { reason: "x".into(), wait: s(30) }),
            (
                r#"{"after":"250ms","reason":"x","outcome":"snooze"}"#,
                Outcome::Snooze { reason: "x".into(), wait: Duration::from_millis(250) },
            ),
            (
                r#"{"outcome":"done","batch":[{"kind":"k","key":"x"}],"carry":{"page":7},"next_in":"5m"}"#,
                Outcome::DoneWith(Yield {
                    batch: vec![job("x", Value::Null, None, 0)],
                    carry: Some(serde_json::json!({ "page": 7 })),
                    next_in: Some(s(300)),
                    ..Yield::default()
                }),
            ),
            (
                r#"{"outcome":"done","next_in":90}"#,
                Outcome::DoneWith(Yield { next_in: Some(s(90)), ..Yield::default() }),
            ),
            (
                r#"{"outcome":"done","spawn":[{"kind":"k","key":"x"},{"kind":"k","key":"y","payload":[1],"queue":"q","after":"5s"}],
                    "failed":[{"item":"page 7","reason":"gone"}]}"#,
                Outcome::DoneWith(Yield {
                    jobs: vec![job("x", Value::Null, None, 0), job("y", serde_json::json!([1]), Some("q"), 5)],
                    failed: vec![FailedItem::new("page 7", "gone")],
                    ..Yield::default()
                }),
            ),
            (
                r#"{"outcome":"done","spawn":[{"kind":"k","key":"x","owner":"ann"}],
                    "chains":[{"kind":"c","key":"a"},
                              {"kind":"c","key":"b","payload":7,"queue":"q","owner":"bob","schedule":"5m","spread":"10m"},
                              {"kind":"c","key":"d","schedule":{"cron":"@hourly"},"spread":0}]}"#,
                Outcome::DoneWith(Yield {
                    jobs: vec![NewJob { owner: Some("ann".into()), ..job("x", Value::Null, None, 0) }],
                    chains: vec![
                        Discovered { kind: "c".into(), key: "a".into(), ..Discovered::default() },
                        Discovered {
                            kind: "c".into(),
                            key: "b".into(),
                            payload: 7.into(),
                            queue: Some("q".into()),
                            owner: Some("bob".into()),
                            schedule: Some("5m".into()),
                            spread: Some(s(600)),
                        },
                        Discovered {
                            kind: "c".into(),
                            key: "d".into(),
                            schedule: Some(r#"{"cron":"@hourly"}"#.into()),
                            spread: Some(s(0)),
                            ..Discovered::default()
                        },
                    ],
                    ..Yield::default()
                }),
            ),
            (
                r#"{"outcome":"done","failed":[{"item":"us","reason":"r","code":"empty"},{"item":"jp","reason":"r","code":null}]}"#,
                Outcome::DoneWith(Yield {
                    failed: vec![
                        FailedItem { code: Some("empty".into()), ..FailedItem::new("us", "r") },
                        FailedItem::new("jp", "r"),
                    ],
                    ..Yield::default()
                }),
            ),
            (r#"{"chains":[]}"#, Outcome::DoneWith(Yield::default())),
            (r#"{"changed":true}"#, said(Change::Changed)),
            (r#"{"changed":false}"#, said(Change::Same)),
            (r#"{"outcome":"done","changed":true}"#, said(Change::Changed)),
            (r#"{"outcome":"done","changed":false,"rows":3}"#, said(Change::Same)),
            (r#"{"outcome":"done","changed":null,"changed_at":null}"#, Outcome::Done),
            (r#"{"changed_at":"2026-09-21T14:13:20.123Z"}"#, said(at(123))),
            (r#"{"outcome":"done","changed_at":" 2026-09-21T16:13:20+02:00"}"#, said(at(0))),
            (r#"{"changed_at":1790000000123}"#, said(at(123))),
            (r#"{"outcome":"done","changed_at":-1}"#, said(Change::ChangedAt(Time::from_millis(-1)))),
            (r#"{"changed":true,"changed_at":1790000000001}"#, said(at(1))),
            (r#"{"changed":false,"changed_at":1790000000001}"#, said(Change::Same)),
            (r#"{"changed":true,"throttle":{"hold":"5s"}}"#, said(Change::Changed)),
            (
                r#"{"changed":true,"carry":7}"#,
                Outcome::DoneWith(Yield { carry: Some(7.into()), change: Some(Change::Changed), ..Yield::default() }),
            ),
            (
                r#"{"outcome":"retry","reason":"busy","code":"rate_limited"}"#,
                Outcome::retry(Reason::from("busy").coded("rate_limited")),
            ),
            (r#"{"outcome":"done","spawn":[],"failed":null}"#, Outcome::DoneWith(Yield::default())),
            (r#"{"outcome":"retire","reason":"deleted"}"#, Outcome::Retire { reason: "deleted".into() }),
        ];
        for (text, expected) in table {
            assert_eq!(decided(text.as_bytes()), Some(expected), "{text}");
        }
    }

    #[test]
    fn a_decision_that_cannot_be_followed_says_why() {
        let table = [
            (r#"{"outcome":"ok"}"#, "`outcome` is \"ok\"; known are"),
            (r#"{"outcome":"Done"}"#, "`outcome` is \"Done\"; known are"),
            (r#"{"outcome":true}"#, "`outcome` is true; known are"),
            (r#"{"outcome":"snooze"}"#, "\"snooze\" needs an `after`"),
            (r#"{"outcome":"snooze","after":0}"#, "\"snooze\" needs an `after`"),
            (r#"{"outcome":"snooze","after":"soon"}"#, "`soon` is not a duration"),
            (r#"{"outcome":"retry","after":-1}"#, "`after` is -1; it counts seconds"),
            (r#"{"outcome":"retry","after":1e99}"#, "`after` is 1e99; it counts seconds"),
            (r#"{"outcome":"retry","after":[30]}"#, "`after` is [30]; write"),
            (r#"{"outcome":"done","after":30}"#, "`after` goes with \"retry\" and \"snooze\", not with \"done\""),
            (r#"{"outcome":"retire","after":"30s"}"#, "not with \"retire\""),
            (r#"{"outcome":"fail","reason":5}"#, "`reason` is 5, not text"),
            (r#"{"outcome":"fail","code":5}"#, "`code` is 5; it is the name of a reason"),
            (r#"{"outcome":"fail","code":""}"#, "`code` is \"\"; it is the name"),
            (r#"{"outcome":"retry","spawn":[]}"#, "`changed_at` go with \"done\", not with \"retry\""),
            (r#"{"outcome":"fail","changed":false}"#, "`changed_at` go with \"done\", not with \"fail\""),
            (r#"{"outcome":"snooze","after":5,"changed_at":1}"#, "go with \"done\", not with \"snooze\""),
            (r#"{"outcome":"done","changed":"yes"}"#, "`changed` is \"yes\"; write true or false"),
            (r#"{"outcome":"done","changed":1}"#, "`changed` is 1; write true or false"),
            (r#"{"carry":1,"changed":[true]}"#, "`changed` is [true]; write true or false"),
            (r#"{"changed":3,"changed_at":1}"#, "`changed` is 3; write true or false"),
            (r#"{"changed_at":"yesterday"}"#, "`changed_at` is \"yesterday\"; write RFC 3339 with its zone, such as"),
            (r#"{"outcome":"done","changed_at":"2026-09-21"}"#, "`changed_at` is \"2026-09-21\"; write RFC 3339"),
            (r#"{"outcome":"done","changed_at":1.5}"#, "`changed_at` is 1.5; write RFC 3339"),
            (r#"{"outcome":"done","changed_at":1e99}"#, "or whole milliseconds since 1970"),
            (r#"{"outcome":"done","changed_at":true}"#, "`changed_at` is true; write RFC 3339"),
            (r#"{"changed":false,"changed_at":"soon"}"#, "`changed_at` is \"soon\"; write RFC 3339"),
            (r#"{"outcome":"done","next_in":"0s"}"#, "`next_in` must be longer than zero"),
            (r#"{"outcome":"done","next_in":"soon"}"#, "`next_in`: `soon` is not"),
            (r#"{"outcome":"done","batch":[{"kind":"k"}]}"#, "`batch` is not a list as documented"),
            (r#"{"outcome":"done","spawn":{}}"#, "`spawn` is not a list as documented: invalid type"),
            (r#"{"outcome":"done","spawn":[{"kind":"k"}]}"#, "missing field `key`"),
            (r#"{"outcome":"done","spawn":[{"kind":"k","key":"x","after":"soon"}]}"#, "`spawn`: `after`: `soon`"),
            (r#"{"outcome":"done","failed":[{"item":"x"}]}"#, "missing field `reason`"),
            (r#"{"outcome":"done","outcome":"fail"}"#, "duplicate field `outcome`"),
        ];
        for (text, part) in table {
            let reason = fails(text);
            assert!(reason.contains(part) && reason.starts_with("the handler's answer is not usable: "), "{reason}");
        }
    }

    #[test]
    fn a_word_to_the_throttle_that_means_nothing_is_told_if_it_was_meant_for_us() {
        let table = [
            (r#"{"throttle":{"hold":"soon"}}"#, Err("`throttle` is not as documented")),
            (r#"{"throttle":{"remaining":12}}"#, Err("`remaining` and `reset` go together")),
            (r#"{"throttle":{"remaining":12,"reset":"5s"}}"#, Ok(true)),
            // Of a service that knows nothing of us.
            (r#"{"throttle":"low","items":[]}"#, Ok(false)),
            (r#"{"items":["throttle"]}"#, Ok(false)),
        ];
        for (text, expected) in table {
            match (advice(text.as_bytes()), expected) {
                (Ok(said), Ok(expected)) => assert_eq!(said.is_some(), expected, "{text}"),
                (Err(why), Err(words)) => assert!(why.contains(words), "{text}: {why}"),
                (said, _) => panic!("{text}: {said:?}"),
            }
        }
    }

    #[test]
    fn excerpts_are_short_and_stand_on_one_line() {
        assert_eq!(excerpt(b" one\ttwo\n", 200), "one two");
        assert_eq!(excerpt("äöü".as_bytes(), 3), "äöü");
        assert_eq!(excerpt("äöüß".as_bytes(), 3), "äöü…");
        assert_eq!(excerpt("🦀".repeat(500).as_bytes(), 200), format!("{}…", "🦀".repeat(200)));
        assert_eq!(excerpt(b"\xff\xfe", 3), "\u{fffd}\u{fffd}");
        let long = format!(r#"{{"outcome":"fail","reason":"{}"}}"#, "x".repeat(5_000));
        assert_eq!(fails(&long).chars().count(), MAX_REASON + 1);
    }
}
