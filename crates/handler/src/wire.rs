//! The job as other programs see it: one JSON shape for the body of an HTTP call and for the
//! standard input of a program. `docs/handlers.md` documents it.

use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, Fence, TickNo};
use roundelay_model::job::Job;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// A [`Job`] in its outward shape. Times are milliseconds since the Unix epoch.
#[derive(Debug, Serialize)]
pub struct JobView<'a> {
    id: &'a str,
    kind: &'a str,
    key: &'a str,
    queue: &'a str,
    attempt: u32,
    payload: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    #[serde(skip_serializing_if = "Value::is_null")]
    carry: &'a Value,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    unavailable: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    chain: Option<ChainView>,
    nominal: Time,
    deadline: Time,
    // JavaScript and jq read numbers as doubles, which would lose the seed's lower bits.
    #[serde(serialize_with = "as_text")]
    seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct ChainView {
    epoch: Epoch,
    tick: TickNo,
    fence: Fence,
}

impl<'a> JobView<'a> {
    fn of(job: &'a Job, report_url: Option<&'a str>) -> Self {
        Self {
            id: &job.id,
            kind: &job.kind,
            key: &job.key,
            queue: &job.queue,
            attempt: job.attempt,
            payload: &job.payload,
            owner: job.owner.as_deref(),
            carry: &job.carry,
            unavailable: &job.unavailable,
            chain: job.tick.map(|t| ChainView { epoch: t.epoch, tick: t.tick, fence: t.fence }),
            nominal: job.nominal,
            deadline: job.deadline,
            seed: job.seed,
            progress: report_url,
        }
    }
}

/// `job` as one line of JSON, with the URL at which its run can report.
pub fn encode(job: &Job, report_url: Option<&str>) -> Vec<u8> {
    serde_json::to_vec(&JobView::of(job, report_url)).expect("a job has only string keys, so it is always JSON")
}

fn as_text<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use roundelay_model::job::Tick;
    use serde_json::json;

    #[test]
    fn the_shape_is_the_documented_one() {
        let mut job = Job {
            id: "l-7-3".into(),
            kind: "sync".into(),
            key: "npm/@types/node".into(),
            queue: "sync-npm".into(),
            tick: Some(Tick { epoch: Epoch(7), tick: TickNo(3), fence: Fence(9) }),
            attempt: 2,
            owner: Some("team".into()),
            carry: json!({"page": 7}),
            unavailable: Vec::new(),
            grace: std::time::Duration::ZERO,
            nominal: Time::from_millis(1_790_000_000_000),
            deadline: Time::from_millis(1_790_000_030_000),
            seed: u64::MAX,
            payload: json!({"platform": "npm"}),
        };
        let mut expected = json!({
            "id": "l-7-3", "kind": "sync", "key": "npm/@types/node", "queue": "sync-npm", "attempt": 2,
            "payload": {"platform": "npm"}, "chain": {"epoch": 7, "tick": 3, "fence": 9},
            "owner": "team", "carry": {"page": 7},
            "nominal": 1_790_000_000_000_i64, "deadline": 1_790_000_030_000_i64, "seed": "18446744073709551615",
        });
        assert_eq!(serde_json::from_slice::<Value>(&encode(&job, None)).unwrap(), expected);

        job.tick = None;
        job.payload = Value::Null;
        expected.as_object_mut().unwrap().remove("chain");
        expected["payload"] = Value::Null;
        assert_eq!(
            serde_json::from_slice::<Value>(&encode(&job, None)).unwrap(),
            expected,
            "a one-off job has no chain"
        );
    }
}
