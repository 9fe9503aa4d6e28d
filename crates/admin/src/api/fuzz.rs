//! Arbitrary requests, through the gate to every endpoint, on a ledger in memory and the embedded broker.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, header};
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use roundelay_config::Config;
use roundelay_ledger::LedgerUrl;
use roundelay_ledger::sqlite::SqliteLedger;
use roundelay_model::clock::{Clock, Entropy};
use roundelay_model::scope::Scope;
use roundelay_net::listen::Peer;
use tokio::runtime::Runtime;
use tokio_util::task::TaskTracker;

use super::actor::Authenticator;
use super::auth::Gate;
use super::endpoints::routes_and_rules;
use super::origin::Site;
use super::server::router;
use crate::api::state::Api;

const CONFIG: &str = r#"
    broker.url = "embedded"
    [queues.work]
    throttle = "slow"
    [throttles.slow]
    allow = 5
    per = "60s"
    [kinds.sync]
    queue = "work"
    every = "10m"
    handler.exec.argv = ["/bin/true"]
"#;
/// After this many requests the server is made anew, so that the data which requests leave behind stays small.
const LIVES: u32 = 500;

struct Desk {
    runtime: Runtime,
    service: TowerToHyperService<Router>,
    lives: u32,
}

impl Desk {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let service = runtime.block_on(async {
            let config = Config::parse(CONFIG, "roundelay.toml", []).expect("it is right");
            let entropy = Entropy::seeded(1);
            let ledger = SqliteLedger::open(&LedgerUrl::Memory, Clock::System, &entropy).expect("there is memory");
            let ledger = Arc::new(ledger);
            let connections = tokio::sync::OnceCell::new();
            let api = Arc::new(Api::new(config, ledger.clone(), ledger, Clock::System, entropy, connections));
            let (routes, rules) = routes_and_rules();
            let address = Ipv4Addr::LOCALHOST.into();
            let site = Site { hosts: Default::default(), address, secure: false, behind_proxy: false };
            // Every request has the right to do everything, so that every endpoint is reached.
            let authenticator = Authenticator::new(Scope::Admin);
            let patience = Duration::from_secs(30);
            let gate = Gate { api, rules, site, authenticator, patience, tasks: TaskTracker::new() };
            TowerToHyperService::new(router(routes, gate))
        });
        Self { runtime, service, lives: LIVES }
    }
}

/// A request as text: method and path on the first line, then headers, an empty line, and the body.
///
/// No request is answered with 500, and a refusal is always JSON.
pub fn request(data: &[u8]) {
    thread_local!(static DESK: RefCell<Desk> = RefCell::new(Desk::new()));
    let split = data.windows(2).position(|two| two == b"\n\n");
    let (head, body) = split.map_or((data, &[][..]), |at| (&data[..at], &data[at + 2..]));
    let Ok(head) = std::str::from_utf8(head) else { return };
    let mut lines = head.lines();
    let Some((method, path)) = lines.next().and_then(|line| line.split_once(' ')) else { return };
    let Ok(method) = Method::from_bytes(method.as_bytes()) else { return };
    // A simulation has no bound on its time that a fuzzer could wait for.
    if method == Method::POST && path.contains("simulations") {
        return;
    }
    let mut request = Request::builder().method(method).uri(path).extension(Peer(Ipv4Addr::LOCALHOST.into()));
    let headers: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(": ")).collect();
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        request = request.header(header::HOST, "localhost");
    }
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let Ok(request) = request.body(Body::from(body.to_vec())) else { return };
    DESK.with_borrow_mut(|desk| {
        if desk.lives == 0 {
            *desk = Desk::new();
        }
        desk.lives -= 1;
        desk.runtime.block_on(async {
            let Ok(response) = desk.service.call(request).await;
            let status = response.status();
            assert_ne!(status.as_u16(), 500, "{head:?}");
            let sort = response.headers().get(header::CONTENT_TYPE).and_then(|sort| sort.to_str().ok());
            let sort = sort.unwrap_or_default().to_owned();
            // This answer never ends.
            if sort.starts_with("text/event-stream") {
                return;
            }
            let Ok(body) = response.into_body().collect().await else { return };
            if status.is_client_error() && !body.to_bytes().is_empty() {
                assert!(sort.starts_with("application/problem+json"), "{head:?} {status} {sort}");
            }
        });
    });
}
