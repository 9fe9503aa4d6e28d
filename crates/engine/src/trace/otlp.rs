//! Spans as a collector reads them: those messages and fields of OTLP 1 that are sent, by their numbers in
//! `opentelemetry/proto/trace/v1/trace.proto` and beside it. A test reads them back with OpenTelemetry's own types.

use prost::{Message, Oneof};
use roundelay_model::trace_context::Context;

use super::span::{Attribute, Role, Span, Value};

/// A batch, encoded. `resource` is what sends it.
pub fn encode(resource: &[Attribute], batch: &[Span]) -> Vec<u8> {
    let scope = Scope { name: "roundelay".into(), version: env!("CARGO_PKG_VERSION").into() };
    let spans = ScopeSpans { scope: Some(scope), spans: batch.iter().map(span).collect() };
    let resource = Resource { attributes: attributes(resource) };
    Request { resource_spans: vec![ResourceSpans { resource: Some(resource), scope_spans: vec![spans] }] }
        .encode_to_vec()
}

/// How many of a batch the collector did not want, and why, as it says in its answer.
pub fn refused(answer: &[u8]) -> (u64, String) {
    let partial = Answer::decode(answer).ok().and_then(|answer| answer.partial_success).unwrap_or_default();
    (u64::try_from(partial.rejected_spans).unwrap_or(0), partial.error_message)
}

fn span(span: &Span) -> SpanMessage {
    let parent = if span.parent == 0 { Vec::new() } else { span.parent.to_be_bytes().to_vec() };
    SpanMessage {
        trace_id: span.context.trace.to_be_bytes().to_vec(),
        span_id: span.context.span.to_be_bytes().to_vec(),
        trace_state: state(&span.context),
        parent_span_id: parent,
        name: span.name.clone().into_owned(),
        kind: match span.role {
            Role::Internal => 1,
            Role::Client => 3,
            Role::Producer => 4,
            Role::Consumer => 5,
        },
        start_time_unix_nano: span.start,
        end_time_unix_nano: span.end,
        attributes: attributes(&span.attributes),
        links: span.link.iter().map(link).collect(),
        // Of those that have not failed nothing is said, as the conventions have it.
        status: span.failed.then_some(Status { code: 2 }),
        flags: span.context.flags.into(),
    }
}

fn link(to: &Context) -> Link {
    Link {
        trace_id: to.trace.to_be_bytes().to_vec(),
        span_id: to.span.to_be_bytes().to_vec(),
        trace_state: state(to),
        flags: to.flags.into(),
    }
}

fn state(context: &Context) -> String {
    context.state.as_deref().unwrap_or_default().to_owned()
}

fn attributes(all: &[Attribute]) -> Vec<KeyValue> {
    let value = |value: &Value| match value {
        Value::Text(text) => Any::Text(text.clone().into_owned()),
        Value::Number(number) => Any::Number(*number),
    };
    let one =
        |(key, it): &Attribute| KeyValue { key: (*key).to_owned(), value: Some(AnyValue { value: Some(value(it)) }) };
    all.iter().map(one).collect()
}

#[derive(Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<SpanMessage>,
}

#[derive(Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Message)]
struct SpanMessage {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "13")]
    links: Vec<Link>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Message)]
struct Link {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    trace_state: String,
    #[prost(fixed32, tag = "6")]
    flags: u32,
}

#[derive(Message)]
struct Status {
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Message)]
struct AnyValue {
    #[prost(oneof = "Any", tags = "1, 3")]
    value: Option<Any>,
}

#[derive(Oneof)]
enum Any {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}

#[derive(Message)]
struct Answer {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_spans: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::{
        ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
    };
    use opentelemetry_proto::tonic::common::v1::any_value;
    use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
    use opentelemetry_proto::tonic::trace::v1::status::StatusCode;

    use super::*;

    #[test]
    fn others_read_what_is_sent() {
        let context = |trace, span| Context { trace, span, flags: 1, state: Some("a=1".into()) };
        let roles = [
            (Role::Internal, SpanKind::Internal),
            (Role::Client, SpanKind::Client),
            (Role::Producer, SpanKind::Producer),
            (Role::Consumer, SpanKind::Consumer),
        ];
        for (role, kind) in roles {
            let sent = Span {
                context: context(7, 8),
                parent: 9,
                name: "claim".into(),
                role,
                start: 1_790_000_000_000_000_001,
                end: 1_790_000_000_000_000_002,
                attributes: vec![("text", "x".into()), ("number", (-5).into())],
                link: Some(context(10, 11)),
                failed: true,
            };
            let plain = Span {
                parent: 0,
                link: None,
                failed: false,
                context: Context { state: None, ..context(7, 12) },
                ..sent.clone()
            };
            let body = encode(&[("service.name", "r".into())], &[sent, plain]);
            let mut read = ExportTraceServiceRequest::decode(&*body).expect("it is OTLP");
            let mut resource = read.resource_spans.pop().expect("there is a resource");
            let name = resource.resource.expect("it is described").attributes;
            assert_eq!(name[0].key, "service.name");
            let scope = resource.scope_spans.pop().expect("there is a scope");
            assert_eq!(scope.scope.expect("it is described").version, env!("CARGO_PKG_VERSION"));
            let [first, second] = &scope.spans[..] else { panic!("{:?}", scope.spans) };
            assert_eq!((&*first.trace_id, &*first.span_id), (&7_u128.to_be_bytes()[..], &8_u64.to_be_bytes()[..]));
            assert_eq!((&*first.parent_span_id, &*first.trace_state), (&9_u64.to_be_bytes()[..], "a=1"));
            assert_eq!((&*first.name, first.kind(), first.flags), ("claim", kind, 1));
            assert_eq!(first.start_time_unix_nano + 1, first.end_time_unix_nano);
            assert_eq!(first.status.as_ref().expect("it failed").code(), StatusCode::Error);
            let values = first.attributes.iter().map(|at| (&*at.key, at.value.clone().and_then(|value| value.value)));
            assert_eq!(
                values.collect::<Vec<_>>(),
                [
                    ("text", Some(any_value::Value::StringValue("x".into()))),
                    ("number", Some(any_value::Value::IntValue(-5)))
                ]
            );
            let link = &first.links[0];
            assert_eq!((&*link.trace_id, &*link.span_id), (&10_u128.to_be_bytes()[..], &11_u64.to_be_bytes()[..]));
            assert_eq!((&*link.trace_state, link.flags), ("a=1", 1));
            assert!(second.parent_span_id.is_empty() && second.links.is_empty() && second.status.is_none());
        }
    }

    #[test]
    fn what_a_collector_refuses_is_read() {
        let partial = ExportTracePartialSuccess { rejected_spans: 3, error_message: "too old".into() };
        let answer = ExportTraceServiceResponse { partial_success: Some(partial) };
        assert_eq!(refused(&answer.encode_to_vec()), (3, "too old".into()));
        for nothing in [&b""[..], b"{}", b"\xff\xff"] {
            assert_eq!(refused(nothing), (0, String::new()), "{nothing:?}");
        }
    }
}
