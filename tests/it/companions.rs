//! What a program hands to the engine to run beside its queues.

use std::time::Duration;

use futures_util::future::BoxFuture;
use roundelay::engine::StartError;
use roundelay::engine::companion::{Companion, Handle, Task};
use roundelay::{Config, Engine};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Two kinds on the embedded broker; `more` is written after them.
fn config(folder: &tempfile::TempDir, every: &str, more: &str) -> Config {
    let ledger = folder.path().join("roundelay.db");
    let text = format!(
        "ledger.url = \"sqlite://{}\"\n[queues.work]\n[kinds.sync]\nqueue = \"work\"\nevery = \"{every}\"\n{more}",
        ledger.display()
    );
    Config::parse(&text, "roundelay.toml", []).unwrap()
}

#[tokio::test]
async fn a_setting_that_no_companion_answers_to_is_refused_before_the_engine_opens_anything() {
    for (more, setting) in
        [("[worker]\nlisten = \"127.0.0.1:0\"\n", "worker.listen"), ("[api]\nlisten = \"127.0.0.1:0\"\n", "api.listen")]
    {
        let folder = tempfile::tempdir().unwrap();
        let error = Engine::new(config(&folder, "1h", more)).run(CancellationToken::new()).await.unwrap_err();
        let StartError::Setup(why) = &error else { panic!("{error:?}") };
        assert!(why.starts_with(setting) && why.contains("roundelay::worker(config)"), "{why}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "a refused engine has opened its ledger");
    }
}

/// Tells the test what the engine tells it; its task ends when the test says so, which no task of a companion may.
struct Witness {
    told: mpsc::UnboundedSender<String>,
    end: CancellationToken,
}

impl Companion for Witness {
    fn watch(&mut self, _worker: &Handle) -> Vec<Task> {
        let task: BoxFuture<'static, ()> = Box::pin(self.end.clone().cancelled_owned());
        vec![("the witness", task)]
    }

    fn reloaded(&self, config: &Config) {
        let kinds: Vec<String> =
            config.kinds.iter().map(|(name, kind)| format!("{name} {:?}", kind.recurrence)).collect();
        let _ = self.told.send(kinds.join(", "));
    }

    fn broken(&self, why: &str) {
        let _ = self.told.send(format!("broken: {why}"));
    }
}

#[tokio::test]
async fn a_companion_is_told_of_a_new_configuration_and_of_why_the_worker_stops() {
    let folder = tempfile::tempdir().unwrap();
    let (told, mut heard) = mpsc::unbounded_channel();
    let (send, fresh) = mpsc::channel(1);
    let end = CancellationToken::new();
    let engine = Engine::new(config(&folder, "1h", ""))
        .configurations(fresh)
        .companion(Witness { told, end: end.clone() })
        .handler("sync", async |_, _| roundelay::Outcome::Done);
    let ready = engine.ready();
    let running = tokio::spawn(engine.run(CancellationToken::new()));
    ready.wait().await;

    send.send(config(&folder, "2h", "")).await.unwrap();
    let reloaded = within(heard.recv()).await.unwrap();
    assert!(reloaded.contains("sync") && reloaded.contains("7200"), "{reloaded}");

    end.cancel();
    let why = within(heard.recv()).await.unwrap();
    assert!(why.starts_with("broken: ") && why.contains("the witness"), "{why}");
    let error = within(running).await.unwrap().unwrap_err();
    assert!(matches!(&error, StartError::Broken(told) if why.ends_with(told.as_str())), "{error:?}");
}

/// A minute is far more than it takes.
async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what).await.unwrap()
}

#[tokio::test]
async fn a_second_worker_on_an_embedded_broker_says_so_and_not_that_an_address_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let more = format!("handler.exec.argv = [\"/bin/true\"]\n[worker]\nlisten = \"127.0.0.1:{port}\"\n");
    let worker = || roundelay::worker(config(&folder, "1h", &more));
    let (first, stop) = (worker(), CancellationToken::new());
    let ready = first.ready();
    let running = tokio::spawn(first.run(stop.clone()));
    within(ready.wait()).await;
    let error = within(worker().run(CancellationToken::new())).await.unwrap_err().to_string();
    assert!(error.contains("another worker runs on this ledger"), "{error}");
    stop.cancel();
    within(running).await.unwrap().unwrap();
}
