//! `docs/message.schema.json` and the engine's own reader agree.

use jsonschema::Validator;
use proptest::prelude::*;
use roundelay::clock::Time;
use roundelay::guard::IfRunning;
use roundelay::ids::{Epoch, TickNo};
use roundelay::job::{ChainRef, Enrolment, Envelope, MAX_KEY, Retirement, Retry, RunNow, Sealed};
use serde_json::{Map, Value, json};

fn schema() -> Validator {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/message.schema.json")).unwrap();
    let schema = serde_json::from_str(&text).unwrap();
    assert!(jsonschema::meta::is_valid(&schema), "the schema itself is a valid one");
    jsonschema::draft202012::new(&schema).unwrap()
}

/// Asserts that schema and reader say the same, and returns it.
fn verdict(schema: &Validator, body: &Value) -> bool {
    let decoded = Envelope::decode(body.to_string().as_bytes());
    assert_eq!(schema.is_valid(body), decoded.is_ok(), "the reader says {decoded:?} to {body}");
    decoded.is_ok()
}

#[test]
fn a_table_of_bodies() {
    let schema = schema();
    let with = |field: &str, value: Value| {
        let mut body = json!({ "v": 1, "kind": "sync", "key": "npm/ms" });
        body[field] = value;
        body
    };
    let without = |field: &str| {
        let mut body = with("id", json!("7"));
        body.as_object_mut().unwrap().remove(field);
        body
    };
    let chain = |ledger: Value, epoch: Value, tick: Value| {
        with("chain", json!({ "ledger": ledger, "epoch": epoch, "tick": tick }))
    };
    let good = [
        with("v", json!(1)),
        without("id"),
        with("kind", json!("x".repeat(MAX_KEY))),
        with("key", json!("@types/ñode π 💡")),
        with("queue", json!("sync-npm")),
        with("queue", json!(null)),
        with("due", json!(1_790_000_000_000_i64)),
        with("due", json!(i64::MIN)),
        with("due", json!(i64::MAX)),
        with("due", json!(null)),
        with("clock", json!(0)),
        with("clock", json!(i64::MIN)),
        with("clock", json!(null)),
        with("attempt", json!(u32::MAX)),
        with("depth", json!(0)),
        with("depth", json!(u32::MAX)),
        with("id", json!(null)),
        with("retries", json!([])),
        with("retries", json!([{ "of": "0f", "by": "a".repeat(64) }])),
        with("payload", json!({ "a": [1, 2.5, null, { "b": "\u{0}" }] })),
        with("payload", json!(null)),
        with("payload", json!("text")),
        with("sealed", json!(null)),
        with("sealed", json!({ "text": "sealed:1:k:AAAA" })),
        with("sealed", json!({ "text": "sealed:1:k:AAAA", "since": 1 })),
        with("chain", json!(null)),
        chain(json!("3f2a"), json!(1), json!(i64::MAX)),
        with("enroll", json!(null)),
        with("enroll", json!({})),
        with("retire", json!({})),
        with("run", json!({})),
        with("run", json!({ "queue": "q", "priority": 9, "if_running": "after", "force": true })),
        with("run", json!({ "queue": null, "priority": null, "if_running": null })),
        with("enroll", json!({ "queue": "q", "priority": 9, "owner": "o", "schedule": "5m", "first_due": 1 })),
        with("enroll", json!({ "queue": null, "priority": null, "owner": null, "schedule": null, "first_due": null })),
        json!({ "v": 1, "kind": "k", "key": "x", "payload": [1], "id": "7", "queue": "q", "enroll": { "schedule": {} } }),
        json!({ "v": 1, "kind": "k", "key": "x", "payload": [1], "retire": null, "owner": "o" }),
        json!({ "v": 1, "kind": "k", "key": "x", "enroll": {}, "attempt": 1, "depth": 0, "due": null, "retire": null }),
    ];
    for body in good {
        assert!(verdict(&schema, &body), "refused: {body}");
    }
    let bad = [
        with("sealed", json!("sealed:1:k:AAAA")),
        with("sealed", json!({ "text": "{}" })),
        with("sealed", json!({ "text": "sealed:1:k:AAAA", "waits": 1 })),
        json!({ "v": 1, "kind": "k", "key": "x", "sealed": { "text": "sealed:1:k:A" }, "payload": 1 }),
        json!([]),
        json!([1, "sync", "npm/ms"]),
        json!("text"),
        json!(null),
        json!({}),
        without("v"),
        without("kind"),
        without("key"),
        with("v", json!(0)),
        with("v", json!(2)),
        with("v", json!(256)),
        with("v", json!("1")),
        with("kind", json!("")),
        with("kind", json!(null)),
        with("kind", json!("x".repeat(MAX_KEY + 1))),
        with("key", json!("")),
        with("key", json!(7)),
        with("key", json!("a\nb")),
        with("key", json!("line end\n")),
        with("key", json!("\u{7f}")),
        with("key", json!("\u{85}")),
        with("queue", json!("")),
        with("due", json!("2026-01-01T00:00:00Z")),
        with("clock", json!(1.5)),
        with("due", json!(1.5)),
        with("due", json!(u64::MAX)),
        with("attempt", json!(0)),
        with("attempt", json!(-1)),
        with("attempt", json!(null)),
        with("attempt", json!(u64::from(u32::MAX) + 1)),
        with("id", json!("")),
        with("id", json!(7)),
        with("paylod", json!(1)),
        with("chain", json!([])),
        with("chain", json!(["l", 1, 1])),
        with("chain", json!({ "ledger": "l", "epoch": 1 })),
        with("chain", json!({ "ledger": "l", "epoch": 1, "tick": 1, "fence": 1 })),
        chain(json!(""), json!(1), json!(1)),
        chain(json!("l"), json!(0), json!(1)),
        chain(json!("l"), json!(1), json!(-1)),
        chain(json!("l"), json!(1), json!(u64::MAX)),
        with("enroll", json!([])),
        with("enroll", json!(true)),
        with("enroll", json!({ "oner": "x" })),
        with("enroll", json!({ "priority": 10 })),
        with("enroll", json!({ "priority": -1 })),
        with("enroll", json!({ "owner": "" })),
        with("enroll", json!({ "queue": 7 })),
        with("enroll", json!({ "schedule": 5 })),
        with("enroll", json!({ "first_due": "soon" })),
        with("retire", json!([])),
        with("run", json!([])),
        with("run", json!({ "if_running": "later" })),
        with("run", json!({ "force": null })),
        json!({ "v": 1, "kind": "k", "key": "x", "run": {}, "retire": {} }),
        json!({ "v": 1, "kind": "k", "key": "x", "run": {}, "due": 1 }),
        json!({ "v": 1, "kind": "k", "key": "x", "run": {}, "clock": 1 }),
        with("retire", json!({ "why": "x" })),
        json!({ "v": 1, "kind": "k", "key": "x", "enroll": {}, "retire": {} }),
        json!({ "v": 1, "kind": "k", "key": "x", "enroll": {}, "due": 1 }),
        json!({ "v": 1, "kind": "k", "key": "x", "enroll": {}, "attempt": 2 }),
        json!({ "v": 1, "kind": "k", "key": "x", "enroll": {}, "depth": 1 }),
        json!({ "v": 1, "kind": "k", "key": "x", "enroll": {}, "owner": "o" }),
        json!({ "v": 1, "kind": "k", "key": "x", "enroll": {}, "chain": { "ledger": "l", "epoch": 1, "tick": 1 } }),
        json!({ "v": 1, "kind": "k", "key": "x", "enroll": {}, "sealed": { "text": "sealed:1:k:A" } }),
        json!({ "v": 1, "kind": "k", "key": "x", "retire": {}, "payload": 1 }),
    ];
    for body in bad {
        assert!(!verdict(&schema, &body), "accepted: {body}");
    }
}

/// Where the schema cannot say what the reader insists on; `docs/messages.md` says it in words.
#[test]
fn the_reader_is_stricter_in_the_documented_points() {
    let schema = schema();
    let bodies = [
        format!(r#"{{"v":1,"kind":"k","key":"{}"}}"#, "é".repeat(MAX_KEY)),
        r#"{"v":1,"kind":"k","key":"x","due":1e3}"#.into(),
        r#"{"v":1.0,"kind":"k","key":"x"}"#.into(),
        r#"{"v":1,"kind":"k","key":"x","key":"x"}"#.into(),
    ];
    for body in bodies {
        assert!(schema.is_valid(&serde_json::from_str(&body).unwrap()), "{body}");
        assert!(Envelope::decode(body.as_bytes()).is_err(), "{body}");
    }
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3i64..4).prop_map(Value::from),
        // Not whole: the schema takes 1.0 for a whole number, which the reader does not.
        (-1e9f64..1e9).prop_filter("whole", |n| n.fract() != 0.0).prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        let object = prop::collection::vec((text(), inner.clone()), 0..4)
            .prop_map(|fields| Value::Object(fields.into_iter().collect()));
        prop_oneof![prop::collection::vec(inner, 0..4).prop_map(Value::Array), object]
    })
}

/// Some of it is a name, some is not. In bytes and in characters it is below the limit, or above.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z/@.-]{1,12}",
        "\\PC{1,100}",
        "[\\x00-\\x1f\\x7f-\\xa0a]{0,3}",
        Just(String::new()),
        (510usize..515).prop_map(|n| "x".repeat(n)),
    ]
}

fn name() -> impl Strategy<Value = String> {
    "[^\\p{Cc}]{1,100}"
}

fn envelope() -> impl Strategy<Value = Envelope> {
    let chain = (name(), 1i64.., 1i64.., prop_oneof![Just(0), 1i64..], prop::option::of(0u8..10)).prop_map(
        |(ledger, epoch, tick, parent, priority)| ChainRef {
            ledger,
            epoch: Epoch(epoch),
            tick: TickNo(tick),
            parent: Epoch(parent),
            priority,
        },
    );
    let retry = ("[0-9a-f]{1,64}", "[0-9a-f]{1,64}").prop_map(|(of, by)| Retry { of, by });
    let some = prop::option::of::<BoxedStrategy<String>>;
    (
        (name(), name(), some(name().boxed()), some(name().boxed()), some(name().boxed())),
        (
            (prop::option::of(any::<i64>()), prop::option::of(any::<i64>())),
            1u32..,
            json_value(),
            prop_oneof![Just(0), any::<u32>()],
            prop::collection::vec(retry, 0..3),
            prop::option::of(chain),
            prop::option::of(("sealed:[^\\p{Cc}]{0,20}", prop::option::of(any::<i64>()))),
        ),
    )
        .prop_map(
            |((kind, key, queue, id, owner), ((due, clock), attempt, payload, depth, retries, chain, sealed))| {
                Envelope {
                    v: 1,
                    kind,
                    key,
                    queue,
                    due: due.map(Time::from_millis),
                    clock,
                    attempt,
                    id,
                    // What is sealed stands in place of the payload, and a hint has neither.
                    payload: if sealed.is_some() && chain.is_none() { Value::Null } else { payload },
                    sealed: sealed
                        .filter(|_| chain.is_none())
                        .map(|(text, since)| Sealed { text, since: since.map(Time::from_millis) }),
                    owner,
                    depth,
                    retries,
                    chain,
                    enroll: None,
                    retire: None,
                    run: None,
                    trace: None,
                    tenant: None,
                    from_backlog: false,
                }
            },
        )
}

/// An envelope, or an order.
fn message() -> impl Strategy<Value = Envelope> {
    let schedule = prop_oneof!["\\PC{0,20}".prop_map(Value::from), Just(json!({ "every": "5m" }))];
    let enroll = (
        prop::option::of(name()),
        prop::option::of(0u8..10),
        prop::option::of(name()),
        prop::option::of(schedule),
        prop::option::of(any::<i64>()),
    );
    let enroll = enroll.prop_map(|(queue, priority, owner, schedule, first_due)| {
        let first_due = first_due.map(Time::from_millis);
        Enrolment { queue, priority, owner, schedule, first_due }
    });
    let ways = prop::sample::select(vec![IfRunning::Refuse, IfRunning::After, IfRunning::Beside]);
    let run = (prop::option::of(name()), prop::option::of(0u8..10), prop::option::of(ways), any::<bool>());
    let run = run.prop_map(|(queue, priority, if_running, force)| RunNow { queue, priority, if_running, force });
    let order = prop_oneof![
        enroll.prop_map(|enroll| (Some(enroll), None)),
        run.prop_map(|run| (None, Some(run))),
        Just((None, None))
    ];
    (envelope(), prop::option::of((order, json_value()))).prop_map(|(envelope, order)| match order {
        None => envelope,
        Some(((enroll, run), payload)) => Envelope {
            retire: (enroll.is_none() && run.is_none()).then_some(Retirement {}),
            payload: if enroll.is_some() || run.is_some() { payload } else { Value::Null },
            enroll,
            run,
            queue: envelope.queue,
            retries: envelope.retries,
            ..Envelope::job(&envelope.kind, &envelope.key, Value::Null, envelope.id.unwrap_or_else(|| "id".into()))
        },
    })
}

/// An envelope's JSON with up to three fields removed, replaced or added, also inside `chain` and
/// orders.
fn nearly() -> impl Strategy<Value = Value> {
    let field = prop::sample::select(vec![
        "v", "kind", "key", "queue", "due", "clock", "attempt", "id", "payload", "sealed", "owner", "depth", "retries",
        "chain", "enroll", "retire", "run", "x",
    ]);
    let inner =
        prop::sample::select(vec!["ledger", "epoch", "tick", "parent", "priority", "queue", "owner", "force", "x"]);
    let change = (field, prop::option::of(inner), prop::option::of(json_value()));
    (message(), prop::collection::vec(change, 0..4)).prop_map(|(envelope, changes)| {
        let mut body: Value = serde_json::from_slice(&envelope.encode()).unwrap();
        for (field, inner, value) in changes {
            let inside =
                ["chain", "enroll", "retire", "run"].into_iter().find(|of| body.get(of).is_some_and(Value::is_object));
            let (object, name): (&mut Map<String, Value>, &str) = match (inner, inside) {
                (Some(inner), Some(of)) => (body[of].as_object_mut().unwrap(), inner),
                _ => (body.as_object_mut().unwrap(), field),
            };
            match value {
                Some(value) => _ = object.insert(name.into(), value),
                None => _ = object.remove(name),
            }
        }
        body
    })
}

#[test]
fn messages_of_the_engine_are_valid_and_read_back() {
    let schema = schema();
    proptest!(|(envelope in message())| {
        let bytes = envelope.encode();
        let body = serde_json::from_slice(&bytes).unwrap();
        prop_assert!(schema.is_valid(&body), "{body}");
        prop_assert_eq!(Envelope::decode(&bytes).unwrap(), envelope);
    });
}

#[test]
fn schema_and_reader_agree_about_nearly_right_messages() {
    let schema = schema();
    proptest!(ProptestConfig::with_cases(2_000), |(body in nearly())| {
        verdict(&schema, &body);
    });
}

#[test]
fn the_documented_example_is_valid() {
    let page = include_str!("../../docs/messages.md");
    let example = page.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(verdict(&schema(), &serde_json::from_str(example).unwrap()));
}
