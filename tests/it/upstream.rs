//! What an upstream says binds all workers: that it wants no calls, what remains of its budget, what a
//! call has cost, that it does not work.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use parking_lot::Mutex;
use reqwest::StatusCode;
use roundelay::engine::Connections;
use roundelay::handler::PermitError;
use roundelay::job::Job;
use roundelay::ledger::{Ledger, ThrottleRow};
use roundelay::reason::Reason;
use roundelay::telemetry::Count;
use roundelay::{Config, Context, Outcome};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use crate::harness::{Ground, on_all, until, worker};
use crate::throttling::Virtual;

/// Chains that are always due, under `throttle`.
fn config(throttle: &str) -> String {
    format!(
        "[queues.work]\nconcurrency = 50\nthrottle = \"upstream\"\n[throttles.upstream]\n{throttle}\n\
         [throttles.other]\nallow = 4\nper = \"10s\"\n\
         [kinds.sync]\nevery = \"100ms\"\nqueue = \"work\"\ntimeout = \"60s\"\n\
         retry = {{ attempts = 1000, backoff = [\"1s\"] }}\n"
    )
}

/// When calls were made, since the test began.
#[derive(Clone)]
struct Calls {
    begun: Instant,
    at: Arc<Mutex<Vec<Duration>>>,
}

impl Calls {
    fn new() -> Self {
        Self { begun: Instant::now(), at: Arc::default() }
    }

    /// Notes one; answers how many there were before.
    fn note(&self) -> usize {
        let mut at = self.at.lock();
        at.push(self.begun.elapsed());
        at.len() - 1
    }

    fn between(&self, from: f64, to: f64) -> usize {
        let at = self.at.lock();
        at.iter().filter(|at| (from..to).contains(&at.as_secs_f64())).count()
    }

    /// The most in any stretch of this length.
    fn most(&self, per: Duration) -> usize {
        let at = self.at.lock();
        (0..at.len()).map(|n| at[n..].iter().take_while(|other| **other < at[n] + per).count()).max().unwrap_or(0)
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstreams_hold_holds_all_workers_and_ends_with_a_slow_start() {
    let calls = Calls::new();
    let seen = calls.clone();
    let workers =
        Virtual::fleet(&config("allow = 10\nper = \"1s\"\nburst = 5"), 3, 100, move |_: Job, context: Context| {
            let seen = seen.clone();
            async move {
                if seen.note() != 30 {
                    return Outcome::Done;
                }
                context.hold(Duration::from_secs(20), "HTTP 429").await;
                Outcome::Snooze { reason: "HTTP 429".into(), wait: Duration::from_secs(20) }
            }
        })
        .await;
    sleep(Duration::from_secs(60)).await;
    let told = calls.at.lock()[30].as_secs_f64();
    // What was on its way already may still have come.
    assert_eq!(calls.between(told + 0.2, told + 20.0), 0);
    let (first, later) = (calls.between(told + 20.0, told + 22.0), calls.between(told + 30.0, told + 35.0));
    assert!((4..=10).contains(&first), "{first} in the first two seconds");
    assert!(later >= 45, "{later} in five seconds when it is open again");
    assert_eq!(calls.most(Duration::from_secs(1)), 10);
    assert_eq!(workers.telemetry.get(Count::Retried), 0);
    let rows = workers.connections.ledger.throttles(10).await.unwrap();
    assert_eq!(rows[0].state.held().1, "HTTP 429");
    workers.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_upstream_is_left_alone_and_tried_by_one_start_at_a_time() {
    let calls = Calls::new();
    let seen = calls.clone();
    let throttle = "allow = 4\nper = \"1s\"\nbreaker = { failures = 5, wait = \"20s\", longest = \"40s\" }";
    let workers = Virtual::fleet(&config(throttle), 3, 100, move |_: Job, _: Context| {
        let n = seen.note();
        let broken = (50.0..200.0).contains(&seen.begun.elapsed().as_secs_f64());
        async move {
            match broken {
                true => Outcome::retry("it does not work"),
                // Some entities are refused all the time, by an upstream that works.
                false if n.is_multiple_of(2) => Outcome::fail("HTTP 404"),
                false => Outcome::Done,
            }
        }
    })
    .await;
    sleep(Duration::from_secs(300)).await;
    let all = calls.at.lock().iter().map(Duration::as_secs).collect::<Vec<_>>();
    assert!(calls.between(0.0, 50.0) >= 190, "nothing is held while it works: {all:?}");
    assert!((5..=7).contains(&calls.between(50.0, 60.0)), "{}", calls.between(50.0, 60.0));
    // After 20, 40 and 40 seconds one each.
    assert_eq!(calls.between(60.0, 200.0), 4, "{all:?}");
    assert!(calls.between(250.0, 300.0) >= 190, "{all:?}");
    let rows = workers.connections.ledger.throttles(10).await.unwrap();
    assert!(!rows[0].state.is_tripped());
    workers.stop().await;
}

/// Each run makes a second call, for which it asks.
#[tokio::test(start_paused = true)]
async fn a_run_that_tries_an_upstream_again_may_ask_for_more() {
    // Those that the runs asked for; and these with the starts, which take of the limit too.
    let (calls, all) = (Calls::new(), Calls::new());
    let (seen, taken) = (calls.clone(), all.clone());
    let throttle = "allow = 4\nper = \"1s\"\nbreaker = { failures = 5, wait = \"20s\", longest = \"40s\" }";
    let workers = Virtual::fleet(&config(throttle), 3, 100, move |_: Job, context: Context| {
        let (seen, taken) = (seen.clone(), taken.clone());
        async move {
            taken.note();
            context.permit("upstream", 1).await.unwrap();
            taken.note();
            seen.note();
            match (20.0..60.0).contains(&seen.begun.elapsed().as_secs_f64()) {
                true => Outcome::retry("it does not work"),
                false => Outcome::Done,
            }
        }
    })
    .await;
    sleep(Duration::from_secs(200)).await;
    assert!(calls.between(0.0, 20.0) >= 35, "{}", calls.between(0.0, 20.0));
    // What had begun before, and the one that tries.
    assert!(calls.between(30.0, 60.0) <= 8, "{}", calls.between(30.0, 60.0));
    // The next one that tried had what it asked for, long before the minute that it may take.
    assert!(calls.between(150.0, 200.0) >= 90, "{}", calls.between(150.0, 200.0));
    assert_eq!(all.most(Duration::from_secs(1)), 4);
    workers.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_scarce_budget_lasts_until_there_is_more() {
    let calls = Calls::new();
    let seen = calls.clone();
    let throttle = "allow = 10\nper = \"1s\"\nbudget = { remaining = \"r\", reset = \"t\", slow_below = 50 }";
    let workers = Virtual::fleet(&config(throttle), 3, 100, move |_: Job, context: Context| {
        // An upstream that allows 200 calls a minute, and says so.
        let (n, now) = (seen.note(), seen.begun.elapsed());
        let (this, reset) = (now.as_secs() / 60 * 60, 60 - now.as_secs() % 60);
        let remaining = 200 - seen.between(this as f64, (this + 60) as f64).min(200);
        async move {
            context.budget(remaining as u32, Duration::from_secs(reset)).await;
            if n == 0 { Outcome::retry("once") } else { Outcome::Done }
        }
    })
    .await;
    sleep(Duration::from_secs(180)).await;
    for minute in [0.0, 60.0, 120.0] {
        let (all, quick) = (calls.between(minute, minute + 60.0), calls.between(minute, minute + 12.0));
        // What is on its way when the budget is told is not counted in it.
        assert!((190..=201).contains(&all), "{all} in the minute from {minute}");
        assert!(quick >= 100, "{quick}: it is fast while there is enough");
        assert!(calls.between(minute + 40.0, minute + 59.0) >= 15, "it lasts");
    }
    workers.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_run_may_cost_more_than_one_by_its_kind_and_by_what_it_says() {
    for (cost, said) in [(5, 0), (1, 5)] {
        let calls = Calls::new();
        let seen = calls.clone();
        let text = config("allow = 10\nper = \"1s\"").replace("[kinds.sync]", &format!("[kinds.sync]\ncost = {cost}"));
        let workers = Virtual::fleet(&text, 2, 50, move |_: Job, context: Context| {
            let seen = seen.clone();
            async move {
                seen.note();
                context.spent(said).await;
                Outcome::Done
            }
        })
        .await;
        sleep(Duration::from_secs(60)).await;
        let all = calls.between(0.0, 60.0);
        assert!((112..=121).contains(&all), "{all} runs of 5 each in a minute of 600");
        if cost == 5 {
            assert_eq!(calls.most(Duration::from_secs(1)), 2);
        }
        workers.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_asks_for_more_and_gets_it_when_there_is_room() {
    let calls = Calls::new();
    let seen = calls.clone();
    let workers = Virtual::fleet(&config("allow = 10\nper = \"1s\""), 2, 20, move |_: Job, context: Context| {
        let seen = seen.clone();
        async move {
            assert_eq!(context.permit("nobody", 1).await, Err(PermitError::Unknown("nobody".into())));
            let too_much = context.permit("other", 5).await.unwrap_err();
            assert_eq!(too_much.to_string(), "5 is more than the throttle other allows at once: 4");
            context.permit("other", 2).await.unwrap();
            seen.note();
            Outcome::Done
        }
    })
    .await;
    sleep(Duration::from_secs(100)).await;
    let all = calls.between(0.0, 100.0);
    assert!((19..=20).contains(&all), "{all} of two each where four are allowed in ten seconds");
    assert_eq!(calls.most(Duration::from_secs(10)), 2);
    workers.stop().await;
}

/// Messages of a queue whose upstream is held for hours neither fill the workers nor lose attempts.
#[tokio::test(start_paused = true)]
async fn a_long_hold_postpones_its_waiting_jobs_and_delays_no_others() {
    let calls = Calls::new();
    let seen = calls.clone();
    let text = config("allow = 10\nper = \"1s\"\nblock = \"20s\"") + "[queues.free]\nconcurrency = 2\n";
    let workers = Virtual::fleet(&text, 1, 40, move |job: Job, context: Context| {
        let seen = seen.clone();
        async move {
            if job.queue == "free" {
                seen.note();
            } else {
                context.hold(Duration::from_secs(3 * 3_600), "ban").await;
            }
            Outcome::Done
        }
    })
    .await;
    let config = Config::parse(&text, "the test's configuration", []).unwrap();
    let connections = workers.connections.clone();
    let spread = Some(Duration::ZERO);
    let mut enroller = roundelay::engine::enroll::Enroller::new(&config, connections, "sync", spread, true).unwrap();
    enroller.enroll(vec![roundelay::engine::enroll::Entity::new("free", "free", "{}")]).await.unwrap();
    sleep(Duration::from_secs(90)).await;
    let runs = calls.between(0.0, 90.0);
    assert!(runs > 500, "{runs}");
    assert_eq!(workers.telemetry.get(Count::Retried), 0);
    workers.stop().await;
}

/// An upstream that says of one entity after the other that there is no such thing works.
#[tokio::test(start_paused = true)]
async fn a_reason_whose_policy_counts_no_failure_opens_no_breaker() {
    let calls = Calls::new();
    let seen = calls.clone();
    let throttle = "allow = 10\nper = \"1s\"\nbreaker = { failures = 3, wait = \"60s\" }";
    let text = config(throttle) + "[reasons.empty_response]\npolicy = \"fail\"\n";
    let workers = Virtual::fleet(&text, 1, 20, move |_: Job, _: Context| {
        seen.note();
        async { Outcome::retry(Reason::from("HTTP 404").coded("empty_response")) }
    })
    .await;
    sleep(Duration::from_secs(20)).await;
    let all = calls.between(0.0, 20.0);
    assert!(all > 150, "{all} calls");
    workers.stop().await;
}

/// Of its time a run that waits for its key's slot loses nothing.
#[tokio::test(start_paused = true)]
async fn the_wait_for_the_slot_of_a_key_is_no_part_of_a_runs_time() {
    let calls = Calls::new();
    let seen = calls.clone();
    let throttle = "allow = 1\nper = \"50s\"\nkey = \"kind\"\nblock = \"55s\"";
    let workers = Virtual::fleet(&config(throttle), 1, 2, move |_: Job, _: Context| {
        seen.note();
        async {
            sleep(Duration::from_secs(55)).await;
            Outcome::Done
        }
    })
    .await;
    sleep(Duration::from_secs(600)).await;
    assert!(calls.between(0.0, 600.0) >= 11, "{}", calls.between(0.0, 600.0));
    assert_eq!(workers.telemetry.get(Count::Retried), 0);
    workers.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_stops_waits_for_no_slot_of_a_key() {
    let calls = Calls::new();
    let seen = calls.clone();
    let throttle = "allow = 1\nper = \"4m\"\nkey = \"kind\"\nblock = \"5m\"";
    let workers = Virtual::fleet(&config(throttle), 1, 3, move |_: Job, _: Context| {
        seen.note();
        async { Outcome::Done }
    })
    .await;
    sleep(Duration::from_secs(10)).await;
    let begun = Instant::now();
    workers.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

on_all!(headers_and_bodies_of_answers_reach_the_throttle);

mod run {
    use super::*;

    /// By the real program, called over HTTP.
    pub async fn headers_and_bodies_of_answers_reach_the_throttle(ground: Ground) {
        /// Answers by path, once, and from then on nothing out of the ordinary.
        #[derive(Clone, Default)]
        struct Called(Arc<Mutex<HashMap<String, u32>>>);
        async fn called(
            State(Called(calls)): State<Called>,
            uri: axum::http::Uri,
        ) -> (StatusCode, HeaderMap, &'static str) {
            let first = {
                let mut calls = calls.lock();
                let count = calls.entry(uri.path().to_owned()).or_default();
                *count += 1;
                *count == 1
            };
            let mut headers = HeaderMap::new();
            let mut said = |name: &'static str, value: &'static str| drop(headers.insert(name, value.parse().unwrap()));
            let (status, body) = match uri.path() {
                "/many" if first => {
                    said("retry-after", "3600");
                    (StatusCode::TOO_MANY_REQUESTS, "")
                }
                "/later" if first => {
                    said("retry-after", "Fri, 01 Jan 2100 00:00:00 GMT");
                    (StatusCode::SERVICE_UNAVAILABLE, "")
                }
                "/body" if first => {
                    (StatusCode::OK, "{\"throttle\":{\"hold\":\"1h\",\"why\":\"enough\"},\"outcome\":\"done\"}")
                }
                "/scarce" if first => {
                    said("x-left", "0");
                    said("x-reset", "3600");
                    (StatusCode::OK, "")
                }
                "/costly" if first => {
                    said("x-cost", "100");
                    (StatusCode::OK, "")
                }
                _ => (StatusCode::OK, ""),
            };
            (status, headers, body)
        }
        let calls = Called::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().route("/{path}", post(called)).with_state(calls.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        // Each path is a key of one throttle, so that each is held for itself.
        let text = format!(
            "[queues.work]\nthrottle = \"upstream\"\n[throttles.upstream]\nallow = 100\nper = \"1h\"\nburst = 10\n\
             key = \"key\"\nblock = \"100ms\"\ncost_header = \"X-Cost\"\n\
             budget = {{ remaining = \"X-Left\", reset = \"X-Reset\" }}\n\
             [kinds.sync]\nqueue = \"work\"\nevery = \"1s\"\nhandler.http.url = \"{url}/{{{{ key }}}}\"\n"
        );
        let (file, config) = (ground.config_file(&text), ground.config(&text));
        let ledger = Connections::ledger(&config).await.unwrap();
        let now = ledger.now();
        let paths = ["many", "later", "body", "scarce", "costly", "plain"];
        let chains =
            paths.map(|path| roundelay::ledger::NewChain { watch_at: now, ..crate::harness::chain(path, now) });
        ledger.enroll(chains.into()).await.unwrap();
        let _worker = worker(&file);
        until("the one that nobody holds goes on", async || calls.0.lock().get("/plain") >= Some(&3)).await;
        let held = async |key: &str, why: &str| held(&*ledger, key).await.is_some_and(|held| held.contains(why));
        for (key, why) in [
            ("many", "HTTP 429 Too Many Requests, Retry-After: 3600"),
            ("later", "HTTP 503 Service Unavailable, Retry-After: Fri, 01 Jan 2100"),
            ("body", "enough"),
            ("scarce", "its budget is used up"),
        ] {
            until("it is held", async || held(key, why).await).await;
        }
        assert_eq!(held_of(&*ledger, "plain").await, "");
        let calls = calls.0.lock().clone();
        for path in ["many", "later", "body", "scarce", "costly"] {
            assert_eq!(calls.get(&format!("/{path}")), Some(&1), "{path}: {calls:?}");
        }
        // No attempt was charged for it.
        let output =
            crate::harness::roundelay(&["show", "--config", file.to_str().unwrap(), "sync", "many", "--json"]).await;
        assert_eq!(output.json()["chain"]["attempt"], 1, "{output:?}");
    }

    async fn row(ledger: &dyn Ledger, key: &str) -> Option<ThrottleRow> {
        ledger.throttles(100).await.unwrap().into_iter().find(|row| row.key == key)
    }

    /// Why nothing of this key starts for the next minutes.
    async fn held(ledger: &dyn Ledger, key: &str) -> Option<String> {
        let row = row(ledger, key).await?;
        let (until, why) = row.state.held();
        (until > ledger.now().as_millis() * 1_000 + 600_000_000).then(|| why.to_owned())
    }

    async fn held_of(ledger: &dyn Ledger, key: &str) -> String {
        held(ledger, key).await.unwrap_or_default()
    }
}
