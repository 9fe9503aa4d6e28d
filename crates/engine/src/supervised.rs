//! The tasks that an engine cannot do without: when one ends before its time, that is noticed, by its name.

use std::collections::HashMap;
use std::time::Duration;

use tokio::task::{Id, JoinSet};
use tokio::time::timeout;

/// Tasks by their names. They end when this value is dropped.
#[derive(Default)]
pub(super) struct SupervisedTasks {
    tasks: JoinSet<()>,
    /// What each is.
    names: HashMap<Id, String>,
}

impl SupervisedTasks {
    /// Begins one.
    pub fn spawn(&mut self, name: impl Into<String>, task: impl Future<Output = ()> + Send + 'static) {
        let id = self.tasks.spawn(task).id();
        self.names.insert(id, name.into());
    }

    /// Waits until one ends, and says which, and that it panicked if it did; for ever when there is none.
    pub async fn one_ended(&mut self) -> String {
        let (id, why) = match self.tasks.join_next_with_id().await {
            Some(Ok((id, ()))) => (id, "it came to an end".to_owned()),
            Some(Err(error)) => (error.id(), error.to_string()),
            None => std::future::pending().await,
        };
        format!("{}: {why}", self.names.get(&id).map_or("a task", String::as_str))
    }

    /// Waits until all have ended. A task that has not after `limit` is named in the log and aborted, so that it cannot
    /// keep the worker from stopping. The end of the task is not waited for, since a task that blocks its thread has
    /// none.
    pub async fn all_ended(&mut self, limit: Duration) {
        let ended = async {
            while let Some(ended) = self.tasks.join_next_with_id().await {
                self.names.remove(&ended.map_or_else(|error| error.id(), |(id, ())| id));
            }
        };
        if timeout(limit, ended).await.is_err() {
            for task in self.names.values() {
                tracing::warn!(task, after = ?limit, "a task of the worker did not stop; the worker stops without it");
            }
            self.tasks.abort_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn supervised_task_that_ends_is_named() {
        let mut parts = SupervisedTasks::default();
        let none = timeout(Duration::from_secs(1), parts.one_ended()).await;
        assert!(none.is_err(), "nothing ends where there is nothing");
        parts.spawn("one", std::future::pending());
        parts.spawn("two", async {});
        assert_eq!(parts.one_ended().await, "two: it came to an end");
        parts.spawn("three", async { panic!("by chance") });
        let why = parts.one_ended().await;
        assert!(why.starts_with("three: ") && why.contains("by chance"), "{why}");
    }

    #[tokio::test(start_paused = true)]
    async fn supervised_task_that_does_not_stop_is_aborted() {
        let (kept, dropped) = tokio::sync::oneshot::channel::<()>();
        let (mut parts, begun) = (SupervisedTasks::default(), Instant::now());
        parts.spawn("stops", tokio::time::sleep(Duration::from_secs(2)));
        parts.spawn("does not", async move {
            let _kept = kept;
            std::future::pending().await
        });
        parts.all_ended(Duration::from_secs(5)).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(5));
        assert!(dropped.await.is_err(), "what it held is dropped");
        parts.spawn("stops", tokio::time::sleep(Duration::from_secs(2)));
        parts.all_ended(Duration::from_secs(5)).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(7), "nothing is waited for that has ended");
    }
}
