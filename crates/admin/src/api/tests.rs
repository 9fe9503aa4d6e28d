//! The path of a request through door and gate, with endpoints that fail or hang in ways that real endpoints must not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use axum::routing::{get, post};
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use roundelay_config::Config;
use roundelay_ledger::LedgerUrl;
use roundelay_ledger::sqlite::SqliteLedger;
use roundelay_model::clock::{Clock, Entropy};
use roundelay_model::scope::Scope;
use roundelay_net::listen::Peer;
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use super::actor::Authenticator;
use super::auth::Gate;
use super::origin::Site;
use super::problem::Problem;
use super::server::router;
use crate::api::actor::Actor;
use crate::api::rules::{Needs, Rules};
use crate::api::state::Api;

/// A router for `routes`. The gate knows those in `rules`.
struct Way {
    api: Arc<Api>,
    service: TowerToHyperService<Router>,
}

impl Way {
    fn new(routes: Router<Arc<Api>>, rules: &[(Method, &str, Scope)]) -> Self {
        let config = Config::parse("", "r.toml", []).unwrap();
        let entropy = Entropy::seeded(1);
        let ledger = Arc::new(SqliteLedger::open(&LedgerUrl::Memory, Clock::System, &entropy).unwrap());
        let api =
            Arc::new(Api::new(config, ledger.clone(), ledger, Clock::System, entropy, tokio::sync::OnceCell::new()));
        let mut known = Rules::default();
        for (method, path, scope) in rules {
            known.add(path, method.clone(), Needs::scope(*scope));
        }
        let site = Site {
            hosts: std::collections::BTreeSet::new(),
            address: std::net::Ipv4Addr::LOCALHOST.into(),
            secure: false,
            behind_proxy: false,
        };
        let gate = Gate {
            api: api.clone(),
            rules: known,
            site,
            authenticator: Authenticator::new(Scope::Operate),
            patience: Duration::from_secs(30),
            tasks: TaskTracker::new(),
        };
        Self { api, service: TowerToHyperService::new(router(routes, gate)) }
    }

    async fn ask(&self, method: Method, path: &str) -> (StatusCode, Value) {
        let (status, _, body) = self.ask_with(method, path, None).await;
        (status, body)
    }

    async fn ask_with(&self, method: Method, path: &str, key: Option<&str>) -> (StatusCode, bool, Value) {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .extension(Peer(std::net::Ipv4Addr::LOCALHOST.into()));
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let response = self.service.call(request.body(Body::from("{}")).unwrap()).await.unwrap();
        assert!(response.headers().contains_key("content-security-policy"), "{path}: {response:?}");
        let (status, replayed) = (response.status(), response.headers().contains_key("idempotent-replayed"));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, replayed, serde_json::from_slice(&body).unwrap_or_default())
    }

    /// The statuses in the audit, latest first.
    async fn audited(&self) -> Vec<Option<u16>> {
        self.api.ledger().audit(None, 10).await.unwrap().into_iter().map(|entry| entry.entry.status).collect()
    }
}

#[tokio::test]
async fn an_endpoint_that_is_in_no_table_is_not_reached() {
    let routes = Router::new()
        .route("/api/v1/forgotten", get(async || "open").post(async || "open"))
        .route("/api/v1/half", get(async || "fine").post(async || "open"));
    let way = Way::new(routes, &[(Method::GET, "/api/v1/half", Scope::Read)]);
    for (method, path, status) in [
        (Method::GET, "/api/v1/forgotten", 404),
        (Method::POST, "/api/v1/forgotten", 404),
        (Method::POST, "/api/v1/half", 405),
        (Method::GET, "/api/v1/half", 200),
        (Method::HEAD, "/api/v1/half", 200),
    ] {
        assert_eq!(way.ask(method.clone(), path).await.0.as_u16(), status, "{method} {path}");
    }
}

#[tokio::test]
async fn an_endpoint_beside_the_gate_has_no_actor() {
    let actor = async |actor: Actor| actor.name().to_owned();
    let way = Way::new(Router::new().route("/api/v1/who", get(actor)), &[(Method::GET, "/api/v1/who", Scope::Read)]);
    assert_eq!(way.ask(Method::GET, "/api/v1/who").await.0, 200);
    let request = Request::builder().uri("/").body(()).unwrap();
    let refused =
        <Actor as axum::extract::FromRequestParts<()>>::from_request_parts(&mut request.into_parts().0, &()).await;
    assert_eq!(refused.unwrap_err().status, 500);
}

fn panics() -> &'static str {
    panic!("as this test wants it")
}

#[tokio::test]
async fn a_panic_ends_one_request_and_is_known_of() {
    let routes = Router::new().route("/api/v1/bad", get(async || panics()).post(async || panics()));
    let rules = [(Method::GET, "/api/v1/bad", Scope::Read), (Method::POST, "/api/v1/bad", Scope::Operate)];
    let way = Way::new(routes, &rules);
    for method in [Method::GET, Method::POST] {
        let (status, body) = way.ask(method, "/api/v1/bad").await;
        assert_eq!((status.as_u16(), body["type"].as_str()), (500, Some("about:blank#broken")), "{body}");
    }
    assert_eq!(way.audited().await, [Some(500)]);
}

#[tokio::test]
async fn what_failed_through_no_fault_of_the_request_is_done_again() {
    let times = Arc::new(AtomicUsize::new(0));
    let count = times.clone();
    let endpoint = async move || match count.fetch_add(1, Ordering::Relaxed) {
        0 => Err(Problem::away_because("it is away")),
        _ => Ok("\"done\""),
    };
    let routes = Router::new().route("/api/v1/do", post(endpoint));
    let way = Way::new(routes, &[(Method::POST, "/api/v1/do", Scope::Operate)]);
    let mut answers = Vec::new();
    for _ in 0..3 {
        let (status, replayed, _) = way.ask_with(Method::POST, "/api/v1/do", Some("k")).await;
        answers.push((status.as_u16(), replayed));
    }
    assert_eq!(answers, [(503, false), (200, false), (200, true)]);
    assert_eq!(times.load(Ordering::Relaxed), 2);
    assert_eq!(way.audited().await, [Some(200), Some(503)], "what is repeated is no change");
}

#[tokio::test]
async fn what_is_asked_twice_at_once_is_done_once_also_when_the_client_leaves() {
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (theirs, wait) = (begun.clone(), go.clone());
    let endpoint = async move || {
        theirs.notify_one();
        wait.notified().await;
        "\"done\""
    };
    let routes = Router::new().route("/api/v1/do", post(endpoint));
    let way = Arc::new(Way::new(routes, &[(Method::POST, "/api/v1/do", Scope::Operate)]));
    let first = tokio::spawn({
        let way = way.clone();
        async move { way.ask_with(Method::POST, "/api/v1/do", Some("k")).await }
    });
    begun.notified().await;
    assert_eq!(way.audited().await, [None], "it is known of before it is done");
    let (status, _, body) = way.ask_with(Method::POST, "/api/v1/do", Some("k")).await;
    assert_eq!(status, 409);
    assert!(body["detail"].as_str().unwrap().contains("is being worked on"), "{body}");
    // The client disconnects.
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    go.notify_one();
    while way.audited().await != [Some(200)] {
        tokio::task::yield_now().await;
    }
    loop {
        // The answer is kept although the client has left.
        let (status, replayed, body) = way.ask_with(Method::POST, "/api/v1/do", Some("k")).await;
        if status == 200 {
            assert_eq!((replayed, body.as_str()), (true, Some("done")));
            break;
        }
        assert_eq!(status, 409);
        tokio::task::yield_now().await;
    }
}
