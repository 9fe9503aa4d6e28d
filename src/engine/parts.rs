//! The tasks that an engine cannot do without: when one ends before its time, that is noticed, by its name.

use std::collections::HashMap;

use tokio::task::{Id, JoinSet};

/// Some of them. They end when this is dropped.
#[derive(Default)]
pub(super) struct Parts {
    tasks: JoinSet<()>,
    /// What each is.
    names: HashMap<Id, String>,
}

impl Parts {
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

    /// Waits until all have ended.
    pub async fn all_ended(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn whichever_ends_is_named() {
        let mut parts = Parts::default();
        let none = timeout(Duration::from_secs(1), parts.one_ended()).await;
        assert!(none.is_err(), "nothing ends where there is nothing");
        parts.spawn("one", std::future::pending());
        parts.spawn("two", async {});
        assert_eq!(parts.one_ended().await, "two: it came to an end");
        parts.spawn("three", async { panic!("by chance") });
        let why = parts.one_ended().await;
        assert!(why.starts_with("three: ") && why.contains("by chance"), "{why}");
    }
}
