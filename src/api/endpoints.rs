//! The table of endpoints, each with the scope that it needs, and what follows from it: the routes, and the document
//! that describes them.
//!
//! An endpoint is a small function in a file named after its resource:
//!
//! ```text
//! /// Pauses a queue.
//! #[utoipa::path(post, path = "/queues/{queue}/pause", tag = "queues", params(("queue" = String, Path)),
//!     request_body = Why, responses((status = 200, body = Words)))]
//! pub async fn pause(State(api): State<Arc<Api>>, actor: Actor, Path(queue): Path<String>, Body(why): Body<Why>)
//!     -> Result<Json<Words>> { … }
//! ```
//!
//! It is reached by its line in [`endpoints`], and only so: a route that is not in the table is refused by the gate.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::Router;
use axum::http::{Method, StatusCode};
use utoipa::openapi::extensions::ExtensionsBuilder;
use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn, PathItem, Paths};
use utoipa::openapi::schema::Object;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, Ref, RefOr, Required,
    ResponseBuilder, Schema, Type,
};
use utoipa::{PartialSchema, ToSchema};
use utoipa_axum::router::UtoipaMethodRouter;
use utoipa_axum::routes;

use super::problem::{self, Problem};
use super::{
    Api, audit, chains, configuration, failed, jobs, ladder, openapi, overview, owners, quarantine, queues, runs,
    session, simulations, throttles, tokens, workers,
};
use crate::ledger::Scope;

/// What all paths begin with.
pub const PREFIX: &str = "/api/v1";
/// The largest body that most endpoints take, in bytes.
const SMALL: usize = 64 << 10;
/// The largest that any takes.
pub const LARGE: usize = 1 << 20;
/// The name of the scheme of authorization in the document.
const TOKEN: &str = "token";

/// What an endpoint needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The least scope.
    pub scope: Scope,
    /// The largest body that it takes, in bytes.
    pub body: usize,
    /// Its answer has a secret, which must not be kept.
    pub secret: bool,
    /// Its body is nobody's business: the audit has how long it was, and what the endpoint tells of it.
    pub private: bool,
}

impl Needs {
    pub(super) const fn scope(scope: Scope) -> Self {
        Self { scope, body: SMALL, secret: false, private: false }
    }

    /// It takes bodies of up to [`LARGE`].
    const fn large(self) -> Self {
        Self { body: LARGE, ..self }
    }

    /// The audit has nothing of its body.
    const fn private(self) -> Self {
        Self { private: true, ..self }
    }

    /// Its answer has a secret.
    const fn secret(self) -> Self {
        Self { secret: true, ..self }
    }
}

/// For everybody, also without any right: there is nothing to be seen and nothing to be changed.
const OPEN: Needs = Needs::scope(Scope::None);
const READ: Needs = Needs::scope(Scope::Read);
const OPERATE: Needs = Needs::scope(Scope::Operate);
const ADMIN: Needs = Needs::scope(Scope::Admin);

/// All endpoints, each with what it needs.
fn endpoints() -> Endpoints {
    Endpoints::default()
        .add(OPEN, routes!(session::show))
        .add(READ, routes!(openapi::show))
        .add(READ, routes!(audit::list))
        .add(ADMIN, routes!(tokens::list))
        .add(ADMIN.secret(), routes!(tokens::create))
        .add(ADMIN, routes!(tokens::revoke))
        .add(OPERATE.large().private(), routes!(jobs::publish))
        .add(READ, routes!(overview::show))
        .add(READ, routes!(overview::events))
        .add(READ, routes!(chains::list))
        .add(OPERATE, routes!(chains::act))
        .add(READ, routes!(chains::show))
        .add(READ, routes!(chains::attempts))
        .add(OPERATE, routes!(chains::pause))
        .add(OPERATE, routes!(chains::resume))
        .add(OPERATE, routes!(chains::retire))
        .add(OPERATE, routes!(chains::advance))
        .add(OPERATE, routes!(chains::run))
        .add(READ, routes!(runs::list))
        .add(READ, routes!(owners::list))
        .add(OPERATE, routes!(owners::pause))
        .add(OPERATE, routes!(owners::resume))
        .add(OPERATE, routes!(owners::retire))
        .add(READ, routes!(queues::list))
        .add(OPERATE, routes!(queues::pause))
        .add(OPERATE, routes!(queues::resume))
        .add(OPERATE, routes!(queues::concurrency))
        .add(READ, routes!(throttles::list))
        .add(READ, routes!(throttles::show))
        .add(OPERATE, routes!(throttles::hold))
        .add(OPERATE, routes!(throttles::release))
        .add(OPERATE, routes!(throttles::set))
        .add(OPERATE, routes!(throttles::reset))
        .add(READ, routes!(failed::list))
        .add(READ, routes!(failed::reasons))
        .add(OPERATE, routes!(failed::act))
        .add(READ, routes!(quarantine::list))
        .add(OPERATE, routes!(quarantine::act))
        .add(READ, routes!(ladder::show))
        .add(READ, routes!(workers::list))
        .add(OPERATE, routes!(workers::drain))
        .add(OPERATE, routes!(workers::resume))
        .add(READ, routes!(configuration::show))
        .add(OPERATE.large().private(), routes!(simulations::begin))
        .add(READ, routes!(simulations::show))
        .add(OPERATE, routes!(simulations::forget))
}

/// Routes, what each needs, and how they are described.
#[derive(Default)]
struct Endpoints {
    router: Router<Arc<Api>>,
    rules: Rules,
    paths: Paths,
    schemas: BTreeMap<String, RefOr<Schema>>,
}

impl Endpoints {
    fn add(mut self, needs: Needs, (schemas, paths, methods): UtoipaMethodRouter<Arc<Api>>) -> Self {
        for (name, schema) in schemas {
            let there = self.schemas.entry(name.clone()).or_insert_with(|| schema.clone());
            assert!(*there == schema, "two different schemas are called {name}");
        }
        for (path, mut item) in paths.paths {
            let path = format!("{PREFIX}{path}");
            for (method, operation) in operations(&mut item) {
                self.rules.add(&path, method.clone(), needs);
                operation.operation_id = Some(name(&method, &path));
                describe(operation, &method, needs);
            }
            self.router = self.router.route(&path, methods.clone());
            match self.paths.paths.get_mut(&path) {
                Some(there) => there.merge_operations(item),
                None => drop(self.paths.paths.insert(path, item)),
            }
        }
        self
    }
}

/// What each path and method needs.
#[derive(Clone, Debug, Default)]
pub struct Rules(HashMap<String, HashMap<Method, Needs>>);

impl Rules {
    pub(super) fn add(&mut self, path: &str, method: Method, needs: Needs) {
        let there = self.0.entry(path.to_owned()).or_default().insert(method, needs);
        assert!(there.is_none(), "{path} is in the table twice with one method");
    }

    /// What this method of this path needs, with the names of the path's parameters in place of their values.
    ///
    /// # Errors
    /// When it is not in the table.
    pub fn find(&self, method: &Method, path: &str) -> problem::Result<Needs> {
        let methods = self.0.get(path).ok_or_else(|| Problem::not_found("there is no such path"))?;
        // Where there is GET, there is HEAD.
        let asked = if *method == Method::HEAD { &Method::GET } else { method };
        methods.get(asked).copied().ok_or_else(|| {
            let mut allow: Vec<&str> = methods.keys().map(Method::as_str).collect();
            if methods.contains_key(&Method::GET) {
                allow.push("HEAD");
            }
            allow.sort_unstable();
            Problem::method_not_allowed(allow.join(", "))
        })
    }
}

/// The operations that a path has.
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

/// A name for an operation that no other has: `post_tokens`, `delete_tokens_name`.
fn name(method: &Method, path: &str) -> String {
    let path = path.strip_prefix(PREFIX).unwrap_or(path).replace(|c: char| !c.is_ascii_alphanumeric(), " ");
    let words = std::iter::once(method.as_str()).chain(path.split_whitespace());
    words.collect::<Vec<&str>>().join("_").to_ascii_lowercase()
}

/// What may be answered in place of what was asked for.
const PROBLEMS: [(StatusCode, &str); 11] = [
    (StatusCode::BAD_REQUEST, "The request cannot be read"),
    (StatusCode::UNAUTHORIZED, "No token, or one that is worth nothing"),
    (StatusCode::FORBIDDEN, "The scope is too small, or a page of another site has sent it"),
    (StatusCode::NOT_FOUND, "There is no such thing"),
    (StatusCode::REQUEST_TIMEOUT, "The body was not there in time"),
    (StatusCode::CONFLICT, "It cannot be done as things stand, or the same request is being worked on"),
    (StatusCode::PAYLOAD_TOO_LARGE, "The body is too large"),
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, "The body is not JSON"),
    (StatusCode::UNPROCESSABLE_ENTITY, "It makes no sense, or the Idempotency-Key was used for another request"),
    (StatusCode::TOO_MANY_REQUESTS, "Too much was asked"),
    (StatusCode::SERVICE_UNAVAILABLE, "Ledger or broker is away"),
];
/// Those that a request which changes nothing has no use for.
const OF_CHANGES: [StatusCode; 5] = [
    StatusCode::REQUEST_TIMEOUT,
    StatusCode::CONFLICT,
    StatusCode::PAYLOAD_TOO_LARGE,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    StatusCode::UNPROCESSABLE_ENTITY,
];

/// The name of a problem among the document's responses.
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
    // Both are possible, and the second is none.
    operation.security = Some(vec![SecurityRequirement::new::<_, _, &str>(TOKEN, []), SecurityRequirement::default()]);
    for (status, _) in PROBLEMS {
        if *method != Method::GET || !OF_CHANGES.contains(&status) {
            let response = RefOr::Ref(Ref::from_response_name(problem_name(status)));
            operation.responses.responses.entry(status.as_str().into()).or_insert(response);
        }
    }
    if *method != Method::GET {
        let key = ParameterBuilder::new()
            .name("Idempotency-Key")
            .parameter_in(ParameterIn::Header)
            .required(Required::False)
            .description(Some(
                "Any text of up to 128 characters that no other request bears. Sent again with the same key within 24 \
                 hours, a request is not done again: the first answer is repeated, with `Idempotent-Replayed: true`.",
            ))
            .schema(Some(Object::with_type(Type::String)))
            .build();
        operation.parameters.get_or_insert_default().push(RefOr::T(key));
    }
}

/// The routes, and what each of them needs.
pub fn routes_and_rules() -> (Router<Arc<Api>>, Rules) {
    let Endpoints { router, rules, .. } = endpoints();
    (router, rules)
}

/// The OpenAPI document, as JSON.
pub fn document() -> String {
    let Endpoints { paths, schemas, .. } = endpoints();
    let scheme = SecurityScheme::Http(Http::builder().scheme(HttpAuthScheme::Bearer).bearer_format("rl_…").build());
    let problems = PROBLEMS.map(|(status, words)| {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(Problem::name()))).build();
        let response = ResponseBuilder::new().description(words).content(problem::CONTENT, content).build();
        (problem_name(status), response)
    });
    let components = ComponentsBuilder::new()
        .responses_from_iter(problems)
        .schemas_from_iter(schemas)
        .schema(Problem::name(), Problem::schema())
        .security_scheme(TOKEN, scheme)
        .build();
    let info = InfoBuilder::new()
        .title("Roundelay")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "The admin API. Times are milliseconds since 1970; durations are text in requests (`30m`) and \
             milliseconds in answers. Keys are percent-encoded as parts of a path. docs/api.md has the rules that hold \
             for all of it.",
        ))
        .license(Some(LicenseBuilder::new().name(env!("CARGO_PKG_LICENSE")).build()))
        .build();
    let document: OpenApi = OpenApiBuilder::new().info(info).paths(paths).components(Some(components)).build();
    let mut text = document.to_pretty_json().expect("an OpenAPI document is always JSON");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_that_is_checked_in_is_that_of_the_program() {
        let kept = include_str!("../../docs/openapi.json");
        assert!(kept == document(), "refresh it: cargo run -- serve --openapi > docs/openapi.json");
    }

    #[test]
    fn what_is_not_in_the_table_is_refused() {
        let (_, rules) = routes_and_rules();
        let status = |method: &Method, path: &str| rules.find(method, path).map_or_else(|no| no.status, |_| 200);
        for (method, path, expected) in [
            (Method::GET, "/api/v1/session", 200),
            (Method::HEAD, "/api/v1/session", 200),
            (Method::POST, "/api/v1/session", 405),
            (Method::OPTIONS, "/api/v1/session", 405),
            (Method::HEAD, "/api/v1/jobs", 405),
            (Method::DELETE, "/api/v1/tokens/{name}", 200),
            (Method::GET, "/api/v1/nothing", 404),
        ] {
            assert_eq!(status(&method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn nothing_is_open_but_the_session() {
        let (_, rules) = routes_and_rules();
        let open = rules.0.iter().filter(|(_, methods)| methods.values().any(|needs| needs.scope == Scope::None));
        assert_eq!(open.map(|(path, _)| path.as_str()).collect::<Vec<_>>(), ["/api/v1/session"]);
        let writes = rules.0.iter().flat_map(|(path, methods)| methods.iter().map(move |of| (path, of)));
        for (path, (method, needs)) in writes.filter(|(_, (method, _))| **method != Method::GET) {
            assert!(needs.scope >= Scope::Operate, "{method} {path} changes something");
        }
    }
}
