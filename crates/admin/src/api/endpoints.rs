//! The table of endpoints, each with the scope that it needs, and what follows from it: the routes, and the rules.
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

use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, on};
use roundelay_model::scope::Scope;

use super::{
    audit, chains, configuration, enrolled, failed, jobs, kinds, ladder, openapi, overview, owners, quarantine, queues,
    runs, session, simulations, tenants, throttles, tokens, workers,
};
use crate::api::rules::{Needs, Rules};
use crate::api::state::Api;

/// What all paths begin with.
pub const PREFIX: &str = "/api/v1";

/// Open to every client, also without a token: the answer holds no data, and the request changes nothing.
const OPEN: Needs = Needs::scope(Scope::None);
const READ: Needs = Needs::scope(Scope::Read);
const OPERATE: Needs = Needs::scope(Scope::Operate);
const ADMIN: Needs = Needs::scope(Scope::Admin);

/// All endpoints, each with what it needs.
fn endpoints() -> Endpoints {
    Endpoints::default()
        .add(OPEN, Method::GET, "/session", session::show)
        .add(READ, Method::GET, "/openapi.json", openapi::show)
        .add(READ, Method::GET, "/audit", audit::list)
        .add(ADMIN, Method::GET, "/tokens", tokens::list)
        .add(ADMIN.secret(), Method::POST, "/tokens", tokens::create)
        .add(ADMIN, Method::DELETE, "/tokens/{name}", tokens::revoke)
        .add(OPERATE.large().private(), Method::POST, "/jobs", jobs::publish)
        .add(READ, Method::GET, "/overview", overview::show)
        .add(READ, Method::GET, "/events", overview::events)
        .add(READ, Method::GET, "/kinds", kinds::list)
        .add(READ, Method::GET, "/chains", chains::list)
        .add(OPERATE.large().private(), Method::POST, "/chains", enrolled::put_many)
        .add(OPERATE, Method::POST, "/chains/actions", chains::act)
        .add(READ, Method::GET, "/chains/{kind}/{key}", chains::show)
        .add(OPERATE.large().private(), Method::PUT, "/chains/{kind}/{key}", enrolled::put)
        .add(OPERATE, Method::DELETE, "/chains/{kind}/{key}", enrolled::delete)
        .add(READ, Method::GET, "/chains/{kind}/{key}/attempts", chains::attempts)
        .add(OPERATE, Method::POST, "/chains/{kind}/{key}/pause", chains::pause)
        .add(OPERATE, Method::POST, "/chains/{kind}/{key}/resume", chains::resume)
        .add(OPERATE, Method::POST, "/chains/{kind}/{key}/retire", chains::retire)
        .add(OPERATE, Method::POST, "/chains/{kind}/{key}/advance", chains::advance)
        .add(OPERATE, Method::POST, "/chains/{kind}/{key}/run", chains::run)
        .add(READ, Method::GET, "/runs", runs::list)
        .add(READ, Method::GET, "/owners", owners::list)
        .add(OPERATE, Method::POST, "/owners/{owner}/pause", owners::pause)
        .add(OPERATE, Method::POST, "/owners/{owner}/resume", owners::resume)
        .add(OPERATE, Method::POST, "/owners/{owner}/retire", owners::retire)
        .add(READ, Method::GET, "/queues", queues::list)
        .add(OPERATE, Method::POST, "/queues/actions", queues::act)
        .add(OPERATE, Method::POST, "/queues/{queue}/pause", queues::pause)
        .add(OPERATE, Method::POST, "/queues/{queue}/resume", queues::resume)
        .add(OPERATE, Method::PUT, "/queues/{queue}/concurrency", queues::concurrency)
        .add(READ, Method::GET, "/tenants", tenants::list)
        .add(OPERATE, Method::PUT, "/tenants/{tenant}/share", tenants::share)
        .add(OPERATE, Method::DELETE, "/tenants/{tenant}/share", tenants::as_configured)
        .add(READ, Method::GET, "/throttles", throttles::list)
        .add(READ, Method::GET, "/throttles/{name}", throttles::show)
        .add(OPERATE, Method::POST, "/throttles/{name}/hold", throttles::hold)
        .add(OPERATE, Method::POST, "/throttles/{name}/release", throttles::release)
        .add(OPERATE, Method::PUT, "/throttles/{name}/limits", throttles::set)
        .add(OPERATE, Method::DELETE, "/throttles/{name}/limits", throttles::reset)
        .add(READ, Method::GET, "/failures", failed::list)
        .add(READ, Method::GET, "/failures/reasons", failed::reasons)
        .add(OPERATE, Method::POST, "/failures/actions", failed::act)
        .add(READ, Method::GET, "/quarantine", quarantine::list)
        .add(OPERATE, Method::POST, "/quarantine/actions", quarantine::act)
        .add(READ, Method::GET, "/ladder", ladder::show)
        .add(READ, Method::GET, "/workers", workers::list)
        .add(READ, Method::GET, "/workers/{worker}/runs", workers::runs)
        .add(OPERATE, Method::POST, "/workers/{worker}/drain", workers::drain)
        .add(OPERATE, Method::POST, "/workers/{worker}/resume", workers::resume)
        .add(READ, Method::GET, "/configuration", configuration::show)
        .add(OPERATE.large().private(), Method::POST, "/simulations", simulations::begin)
        .add(READ, Method::GET, "/simulations/{id}", simulations::show)
        .add(OPERATE, Method::DELETE, "/simulations/{id}", simulations::forget)
}

/// Routes, and what each needs.
#[derive(Default)]
struct Endpoints {
    router: Router<Arc<Api>>,
    rules: Rules,
}

impl Endpoints {
    fn add<T: 'static>(mut self, needs: Needs, method: Method, path: &str, handler: impl Handler<T, Arc<Api>>) -> Self {
        let path = format!("{PREFIX}{path}");
        let filter = MethodFilter::try_from(method.clone()).expect("the table has the usual methods");
        self.rules.add(&path, method, needs);
        self.router = self.router.route(&path, on(filter, handler));
        self
    }
}

/// The routes, and what each of them needs.
pub fn routes_and_rules() -> (Router<Arc<Api>>, Rules) {
    let Endpoints { router, rules } = endpoints();
    (router, rules)
}

#[cfg(test)]
mod tests {
    use super::*;

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
