//! Entities that a run discovers become chains.

use std::collections::BTreeMap;
use std::time::Duration;

use roundelay::Outcome;
use roundelay::ledger::{ChainFilter, ChainOrder, ChainView};
use roundelay::outcome::{Discovered, NewJob, Yield};
use serde_json::json;

use crate::harness::{Ground, Watched, on_all, until};

/// `sync` is what discovers, `app` what is discovered.
const CONFIG: &str = r#"
[catch_up]
every = "1s"
slack = "1s"
[queues.work]
[queues.apps]
[kinds.sync]
every = "200ms"
queue = "work"
timeout = "5m"
spawn = { most = 4, depth = 2 }
[kinds.app]
every = "1h"
queue = "apps"
timeout = "5m"
spawn = { most = 4, depth = 2 }
[kinds.once]
queue = "apps"
timeout = "5m"
spawn = { most = 4, depth = 2 }
"#;

on_all!(entities_that_a_run_discovers_become_chains);
on_all!(generations_and_numbers_are_bounded);

fn app(key: &str) -> Discovered {
    // At once, so that the test need not wait for an hour's place.
    let (kind, key, spread) = ("app".into(), key.to_owned(), Some(Duration::ZERO));
    Discovered { payload: json!({ "of": key }), kind, key, spread, ..Discovered::default() }
}

fn job(key: &str) -> NewJob {
    NewJob { kind: "once".into(), key: key.into(), ..NewJob::default() }
}

fn asks(jobs: Vec<NewJob>, chains: Vec<Discovered>) -> Outcome {
    Outcome::DoneWith(Yield { jobs, chains, ..Yield::default() })
}

async fn chain(engine: &Watched, key: &str) -> Option<ChainView> {
    engine.ledger().chains("app".into(), key.into()).await.unwrap().pop()
}

/// The reasons of the failed parts of an entity, by item.
async fn parts(engine: &Watched, kind: &str, key: &str) -> BTreeMap<String, String> {
    let failures = engine.ledger().failures_of(kind.into(), key.into()).await.unwrap();
    failures.into_iter().map(|failure| (failure.item, failure.reason)).collect()
}

mod run {
    use super::*;

    pub async fn entities_that_a_run_discovers_become_chains(ground: Ground) {
        let mut engine = Watched::start(&ground, CONFIG).await;
        engine.enroll("charts", "work").await;
        let found = || {
            let whole = Discovered {
                queue: Some("work".into()),
                owner: Some("ann".into()),
                schedule: Some("2h".into()),
                ..app("b")
            };
            let later = Discovered { spread: None, ..app("later") };
            asks(Vec::new(), vec![app("a"), whole, later])
        };
        engine.next().await.end(found());
        let mut seen = BTreeMap::new();
        while seen.len() < 2 {
            let run = engine.next().await;
            match run.job.kind.as_str() {
                // The next run of the charts finds the same.
                "sync" => run.end(found()),
                _ => {
                    assert_eq!((run.tick(), &run.job.payload), (1, &json!({ "of": run.job.key })));
                    let place = (run.job.queue.clone(), run.job.owner.clone());
                    assert_eq!(seen.insert(run.job.key.clone(), place), None, "each runs once");
                    run.end(Outcome::Done);
                }
            }
        }
        assert_eq!(seen["a"], ("apps".into(), None));
        assert_eq!(seen["b"], ("work".into(), Some("ann".into())));
        // Its first tick is somewhere in its hour, and the runs that found it again have not moved it.
        let first = chain(&engine, "later").await.expect("it began");
        let mut runs = 0;
        while runs < 3 {
            let run = engine.next().await;
            assert_eq!(run.job.kind, "sync", "{}", run.job.key);
            runs += 1;
            run.end(found());
        }
        let later = chain(&engine, "later").await.expect("it is there");
        assert_eq!((later.hint.due, later.hint.epoch), (first.hint.due, first.hint.epoch));
        assert!(later.hint.due < engine.ledger().now() + Duration::from_secs(3_600));
        until("its message is known to have been sent", async || chain(&engine, "later").await.unwrap().sent).await;
        // Two hours of its own, and not the hour of its kind.
        until("b has ended", async || chain(&engine, "b").await.unwrap().hint.tick == 2).await;
        let b = chain(&engine, "b").await.unwrap();
        assert!(b.hint.due >= b.last_finish + Duration::from_secs(7_200), "{b:?}");
        // One that has ended stays so, however often it is found.
        let which = ChainFilter { kind: Some("app".into()), key: Some("a".into()), ..ChainFilter::default() };
        assert_eq!(engine.ledger().order_chains(which, ChainOrder::Retire).await.unwrap(), 1);
        for _ in 0..2 {
            let run = engine.next().await;
            assert_eq!(run.job.kind, "sync", "{}", run.job.key);
            run.end(found());
        }
        let run = engine.next().await;
        assert_eq!(chain(&engine, "a").await.unwrap().state, roundelay::ledger::ChainState::Retired);
        // What no worker could run becomes a failed part, and the rest goes on.
        let nobody = Discovered { kind: "nobody".into(), ..app("c") };
        let never = Discovered { kind: "once".into(), ..app("d") };
        let wrong = Discovered { schedule: Some("now and then".into()), ..app("e") };
        run.end(asks(Vec::new(), vec![nobody, never, wrong, app("f")]));
        let f = loop {
            let run = engine.next().await;
            if run.job.kind == "app" {
                break run;
            }
            run.end(Outcome::Done);
        };
        assert_eq!(f.job.key, "f");
        f.end(Outcome::Done);
        let parts = parts(&engine, "sync", "charts").await;
        let expected = [
            (
                "chain app e",
                "`now and then` is no schedule; write an interval such as \"5m\", a cron expression, or a JSON object",
            ),
            ("chain nobody c", "there is no [kinds.nobody] in the configuration"),
            ("chain once d", "kinds.once has none of `every`, `cron` and `at`, so it has no chains"),
        ];
        assert_eq!(parts, expected.map(|(item, reason)| (item.to_owned(), reason.to_owned())).into());
        engine.stop().await;
    }

    pub async fn generations_and_numbers_are_bounded(ground: Ground) {
        let mut engine = Watched::start(&ground, CONFIG).await;
        engine.enroll("charts", "work").await;
        let charts = engine.next().await;
        // Six, and four are allowed: jobs first.
        let names: Vec<String> = (1..=5).map(|n| n.to_string()).collect();
        charts.end(asks(vec![job("j")], names.iter().map(|name| app(name)).collect()));
        let mut keys = Vec::new();
        let mut first = None;
        let mut once = None;
        while keys.len() < 4 {
            let run = engine.next().await;
            if run.job.kind == "sync" {
                run.end(Outcome::Done);
                continue;
            }
            keys.push(run.job.key.clone());
            match run.job.key.as_str() {
                "1" => first = Some(run),
                "j" => once = Some(run),
                _ => run.end(Outcome::Done),
            }
        }
        keys.sort();
        assert_eq!(keys, ["1", "2", "3", "j"]);
        let left = "it asks for 6 jobs and chains, and kinds.sync.spawn.most is 4: 2 are left out, the first is app 4";
        assert_eq!(parts(&engine, "sync", "charts").await["spawn"], left);
        // The second generation: by a chain, and by a job that has failed once before.
        let deeper = async |engine: &mut Watched| loop {
            let run = engine.next().await;
            if run.job.kind != "sync" {
                break run;
            }
            run.end(Outcome::Done);
        };
        first.expect("it ran").end(asks(vec![job("second")], Vec::new()));
        let run = deeper(&mut engine).await;
        assert_eq!(run.job.key, "second");
        run.end(Outcome::Snooze { reason: "not now".into(), wait: Duration::from_millis(200) });
        let run = deeper(&mut engine).await;
        assert_eq!(run.job.key, "second");
        run.end(asks(vec![job("third")], vec![app("third")]));
        once.expect("it ran").end(asks(Vec::new(), vec![app("of a job")]));
        let run = deeper(&mut engine).await;
        assert_eq!(run.job.key, "of a job", "and nothing of the third generation");
        assert_eq!(chain(&engine, "of a job").await.unwrap().depth, 2);
        run.end(asks(Vec::new(), vec![app("third")]));
        let bound = |kind: &str, all: usize, first: &str| {
            format!(
                "2 runs have led to it, and kinds.{kind}.spawn.depth is 2: what it asks for ({all}) is left out, \
                 the first is {first}"
            )
        };
        until("both are told", async || {
            let (job, chain) = (parts(&engine, "once", "second").await, parts(&engine, "app", "of a job").await);
            job.get("spawn") == Some(&bound("once", 2, "once third"))
                && chain.get("spawn") == Some(&bound("app", 1, "app third"))
        })
        .await;
        assert!(chain(&engine, "third").await.is_none());
        engine.stop().await;
    }
}
