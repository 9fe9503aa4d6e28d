//! The OpenAPI document, made from the endpoints' own descriptions. It is generated in a test only: the program answers
//! the document that is checked in as docs/openapi.json.

use std::path::Path;

use axum::http::{Method, StatusCode};
use roundelay_model::scope::Scope;
use utoipa::openapi::extensions::ExtensionsBuilder;
use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{Object, ObjectBuilder};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi as Document, Ref, RefOr, Required, ResponseBuilder, Type,
};
use utoipa::{OpenApi, PartialSchema, ToSchema};

use super::auth::MAX_KEY_CHARS;
use super::endpoints::{PREFIX, routes_and_rules};
use super::problem::{self, Problem};
use super::{
    audit, chains, configuration, enrolled, failed, jobs, kinds, ladder, openapi, overview, owners, quarantine, queues,
    runs, session, simulations, tenants, throttles, tokens, workers,
};
use crate::api::rules::Needs;

/// The name of the authorization scheme.
const TOKEN: &str = "token";

#[derive(OpenApi)]
#[openapi(paths(
    session::show,
    openapi::show,
    audit::list,
    tokens::list,
    tokens::create,
    tokens::revoke,
    jobs::publish,
    overview::show,
    kinds::list,
    overview::events,
    chains::list,
    chains::act,
    enrolled::put_many,
    enrolled::put,
    enrolled::delete,
    chains::show,
    chains::attempts,
    chains::pause,
    chains::resume,
    chains::retire,
    chains::advance,
    chains::run,
    runs::list,
    owners::list,
    owners::pause,
    owners::resume,
    owners::retire,
    queues::list,
    queues::act,
    queues::pause,
    queues::resume,
    queues::concurrency,
    tenants::list,
    tenants::share,
    tenants::as_configured,
    throttles::list,
    throttles::show,
    throttles::hold,
    throttles::release,
    throttles::set,
    throttles::reset,
    failed::list,
    failed::reasons,
    failed::act,
    quarantine::list,
    quarantine::act,
    ladder::show,
    workers::list,
    workers::runs,
    workers::drain,
    workers::resume,
    configuration::show,
    simulations::begin,
    simulations::show,
    simulations::forget
))]
struct Described;

/// The operations of a path.
fn operations(item: &mut PathItem) -> Vec<(Method, &mut Operation)> {
    let slots = [
        (Method::GET, &mut item.get),
        (Method::PUT, &mut item.put),
        (Method::POST, &mut item.post),
        (Method::DELETE, &mut item.delete),
        (Method::PATCH, &mut item.patch),
        (Method::HEAD, &mut item.head),
        (Method::OPTIONS, &mut item.options),
        (Method::TRACE, &mut item.trace),
    ];
    slots.into_iter().filter_map(|(method, slot)| Some((method, slot.as_mut()?))).collect()
}

/// A unique name for an operation: `post_tokens`, `delete_tokens_name`.
fn name(method: &Method, path: &str) -> String {
    let path = path.strip_prefix(PREFIX).unwrap_or(path).replace(|c: char| !c.is_ascii_alphanumeric(), " ");
    let words = std::iter::once(method.as_str()).chain(path.split_whitespace());
    words.collect::<Vec<&str>>().join("_").to_ascii_lowercase()
}

/// Error answers that any endpoint may give.
const PROBLEMS: [(StatusCode, &str); 11] = [
    (StatusCode::BAD_REQUEST, "The request cannot be read"),
    (StatusCode::UNAUTHORIZED, "No token, or an invalid one"),
    (StatusCode::FORBIDDEN, "The scope is too small, or a page of another site has sent the request"),
    (StatusCode::NOT_FOUND, "Nothing has this name"),
    (StatusCode::REQUEST_TIMEOUT, "The body did not arrive in time"),
    (
        StatusCode::CONFLICT,
        "The state does not allow the change, or a request with the same Idempotency-Key still runs",
    ),
    (StatusCode::PAYLOAD_TOO_LARGE, "The body is too large"),
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, "The body is not JSON"),
    (
        StatusCode::UNPROCESSABLE_ENTITY,
        "The request makes no sense, or its Idempotency-Key was used for another request",
    ),
    (StatusCode::TOO_MANY_REQUESTS, "The client has sent too many requests"),
    (StatusCode::SERVICE_UNAVAILABLE, "Ledger or broker is unavailable"),
];
/// Error answers of requests that change something. Other requests never give them.
const OF_CHANGES: [StatusCode; 5] = [
    StatusCode::REQUEST_TIMEOUT,
    StatusCode::CONFLICT,
    StatusCode::PAYLOAD_TOO_LARGE,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    StatusCode::UNPROCESSABLE_ENTITY,
];

/// The name of an error answer among the document's responses.
fn problem_name(status: StatusCode) -> String {
    status.canonical_reason().unwrap_or_default().replace(' ', "")
}

/// Adds what all endpoints have in common.
fn describe(operation: &mut Operation, method: &Method, needs: Needs) {
    let note = match needs.scope {
        Scope::None => "Needs no scope.".to_owned(),
        scope => format!("Needs the scope `{scope}`."),
    };
    operation.description = Some(match operation.description.take() {
        Some(words) if !words.is_empty() => format!("{words}\n\n{note}"),
        _ => note,
    });
    operation.extensions = Some(ExtensionsBuilder::new().add("x-scope", needs.scope.name()).build());
    // A request may have a token, or none.
    operation.security = Some(vec![SecurityRequirement::new::<_, _, &str>(TOKEN, []), SecurityRequirement::default()]);
    for (status, _) in PROBLEMS {
        if *method != Method::GET || !OF_CHANGES.contains(&status) {
            let response = RefOr::Ref(Ref::from_response_name(problem_name(status)));
            operation.responses.responses.entry(status.as_str().into()).or_insert(response);
        }
    }
    if *method == Method::POST && operation.request_body.is_none() {
        // Without the JSON content type a page of any site could make a browser send the request.
        let nothing = ContentBuilder::new().schema(Some(Object::with_type(Type::Object))).build();
        let body = RequestBodyBuilder::new().description(Some("Nothing, or `{}`")).content("application/json", nothing);
        operation.request_body = Some(RefOr::T(body.required(Some(Required::True)).build()));
    }
    if *method != Method::GET {
        let text = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(MAX_KEY_CHARS));
        let text = text.pattern(Some("^[!-~]+$"));
        let key = ParameterBuilder::new()
            .name("Idempotency-Key")
            .parameter_in(ParameterIn::Header)
            .required(Required::False)
            .description(Some(
                "Any text of up to 128 characters that no other request bears. Sent again with the same key within 24 \
                 hours, a request is not done again: the first answer is repeated, with `Idempotent-Replayed: true`.",
            ))
            .schema(Some(text))
            .build();
        operation.parameters.get_or_insert_default().push(RefOr::T(key));
    }
}

/// The document, as JSON. Every described endpoint is in the table of endpoints, and every endpoint of the table is
/// described.
fn document() -> String {
    let (_, rules) = routes_and_rules();
    let mut document: Document = Described::openapi();
    let mut described = 0;
    document.paths.paths = std::mem::take(&mut document.paths.paths)
        .into_iter()
        .map(|(path, mut item)| {
            let path = format!("{PREFIX}{path}");
            for (method, operation) in operations(&mut item) {
                let needs =
                    rules.find(&method, &path).unwrap_or_else(|_| panic!("{method} {path} is not in the table"));
                operation.operation_id = Some(name(&method, &path));
                describe(operation, &method, needs);
                described += 1;
            }
            (path, item)
        })
        .collect();
    assert_eq!(described, rules.len(), "an endpoint of the table is not described");
    let components = document.components.get_or_insert_default();
    for (status, words) in PROBLEMS {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(Problem::name()))).build();
        let response = ResponseBuilder::new().description(words).content(problem::CONTENT, content).build();
        components.responses.insert(problem_name(status), response.into());
    }
    components.schemas.insert(Problem::name().into(), Problem::schema());
    let scheme = Http::builder().scheme(HttpAuthScheme::Bearer).bearer_format("rl_…").build();
    components.add_security_scheme(TOKEN, SecurityScheme::Http(scheme));
    document.info = InfoBuilder::new()
        .title("Roundelay")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "The admin API. Times are milliseconds since 1970; durations are text in requests (`30m`) and \
             milliseconds in answers. Keys are percent-encoded as parts of a path. docs/api.md has the rules that hold \
             for all of it.",
        ))
        .license(Some(LicenseBuilder::new().name(env!("CARGO_PKG_LICENSE")).build()))
        .build();
    let mut text = document.to_pretty_json().expect("an OpenAPI document is always JSON");
    text.push('\n');
    text
}

#[test]
fn the_document_that_is_checked_in_is_that_of_the_endpoints() {
    let made = document();
    if std::env::var_os("ROUNDELAY_REFRESH").is_some() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
        std::fs::write(file, made).unwrap();
        return;
    }
    assert!(
        super::openapi::DOCUMENT == made,
        "refresh it: ROUNDELAY_REFRESH=1 cargo test -p roundelay-admin the_document_that_is_checked_in"
    );
}
