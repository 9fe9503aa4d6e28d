//! The history of attempts stays within bounds, by chains of the engine's own.

use roundelay::engine::Connections;
use roundelay::ids::Fence;
use roundelay::ledger::Ledger;

use crate::harness::{Ground, until, worker};

const KIND: &str = r#"
[queues.work]
[kinds.sync]
queue = "work"
every = "200ms"
handler.exec.argv = ["/bin/true"]
roster = { file = "LIST", sync = "1h" }
"#;

/// A number out of the ledger, past the engine.
async fn number(ground: &Ground, sql: &str) -> i64 {
    match &ground.schema {
        Some(schema) => schema.raw().await.query_one(sql, &[]).await.unwrap().get(0),
        None => {
            let ledger = rusqlite::Connection::open(ground.path("ledger.db")).unwrap();
            ledger.query_row(sql, [], |row| row.get(0)).unwrap()
        }
    }
}

/// A configuration with a chain that ticks all the time.
fn config(ground: &Ground, settings: &str) -> String {
    let list = ground.path("them.csv");
    std::fs::write(&list, "key\na\n").unwrap();
    format!("{settings}{}", KIND.replace("LIST", list.to_str().unwrap()))
}

/// How often that chore has been done, for as long as it is remembered.
async fn done(ledger: &dyn Ledger, chore: &str) -> usize {
    let chains = ledger.chains("roundelay.history".into(), chore.into()).await.unwrap();
    let Some(chain) = chains.first() else { return 0 };
    let records = ledger.attempts(Fence::NONE, 10_000).await.unwrap();
    let ours = records.iter().filter(|record| record.epoch == chain.hint.epoch);
    ours.filter(|record| record.verdict.as_deref() == Some("done")).count()
}

mod run {
    use super::*;

    pub async fn old_records_move_to_the_archive_and_end_there(ground: Ground) {
        let text = config(&ground, "ledger.history = \"2s\"\nledger.archive = \"6s\"\n");
        let _worker = worker(&ground.config_file(&text));
        let ledger = Connections::ledger(&ground.config(&text)).await.unwrap();
        let archived = "SELECT count(*) FROM attempts_archive WHERE kind = 'sync' AND key = 'a' AND verdict = 'done'";
        until("records of the chain are in the archive", async || number(&ground, archived).await > 5).await;
        let both = "SELECT count(*) FROM attempts JOIN attempts_archive USING (fence)";
        assert_eq!(number(&ground, both).await, 0, "each is in one place");
        let first = number(&ground, "SELECT min(fence) FROM attempts_archive").await;
        let gone = format!("SELECT count(*) FROM attempts_archive WHERE fence = {first}");
        until("the first of them is too old also for the archive", async || number(&ground, &gone).await == 0).await;
        assert!(number(&ground, archived).await > 5, "younger ones are there");
        // What is done about the history is in the history.
        until("both chores are recorded", async || {
            done(&*ledger, "attempts").await > 0 && done(&*ledger, "archive").await > 0
        })
        .await;
        let tick = async || ledger.chains("sync".into(), "a".into()).await.unwrap()[0].hint.tick.get();
        let now = tick().await;
        until("the chain goes on", async || tick().await > now + 2).await;
    }

    pub async fn old_records_are_deleted_without_an_archive(ground: Ground) {
        let text = config(&ground, "ledger.history = \"1s\"\n");
        let _worker = worker(&ground.config_file(&text));
        let ledger = Connections::ledger(&ground.config(&text)).await.unwrap();
        until("there is a record", async || number(&ground, "SELECT count(*) FROM attempts").await > 0).await;
        let first = number(&ground, "SELECT min(fence) FROM attempts").await;
        let there = format!("SELECT count(*) FROM attempts WHERE fence = {first}");
        until("it is gone", async || number(&ground, &there).await == 0).await;
        assert_eq!(number(&ground, "SELECT count(*) FROM attempts_archive").await, 0);
        assert!(ledger.chains("roundelay.history".into(), "archive".into()).await.unwrap().is_empty());
    }
}

crate::harness::on_all!(old_records_move_to_the_archive_and_end_there);
crate::harness::on_all!(old_records_are_deleted_without_an_archive);
