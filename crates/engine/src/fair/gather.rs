//! Requests that come while another is under way go together.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::life::Life;

/// At most so many go together.
const MOST: usize = 1_000;

/// What carries out requests, and answers each of them; `None` when the worker stops.
type CarryOut<Q, A> = Box<dyn Fn(Vec<Q>) -> BoxFuture<'static, Option<Vec<A>>> + Send + Sync>;

/// Carries out requests, as many at a time as have come meanwhile.
pub(super) struct Gather<Q, A> {
    inner: Mutex<Inner<Q, A>>,
    carry_out: CarryOut<Q, A>,
    life: Life,
}

struct Inner<Q, A> {
    waiting: Vec<(Q, oneshot::Sender<A>)>,
    /// A task serves those that wait.
    served: bool,
}

impl<Q: Send + 'static, A: Send + 'static> Gather<Q, A> {
    pub(super) fn new(life: Life, carry_out: CarryOut<Q, A>) -> Arc<Self> {
        Arc::new(Self { inner: Mutex::new(Inner { waiting: Vec::new(), served: false }), carry_out, life })
    }

    /// Has a request carried out. `None` when the worker stops.
    pub(super) async fn ask(self: &Arc<Self>, request: Q) -> Option<A> {
        let (sender, answer) = oneshot::channel();
        let first = {
            let mut inner = self.inner.lock();
            inner.waiting.push((request, sender));
            !std::mem::replace(&mut inner.served, true)
        };
        if first {
            tokio::spawn(self.life.bind(self.clone().serve()));
        }
        answer.await.ok()
    }

    async fn serve(self: Arc<Self>) {
        loop {
            let batch: Vec<_> = {
                let mut inner = self.inner.lock();
                let count = inner.waiting.len().min(MOST);
                inner.served = count > 0;
                inner.waiting.drain(..count).collect()
            };
            if batch.is_empty() {
                return;
            }
            let (requests, waiting): (Vec<Q>, Vec<oneshot::Sender<A>>) = batch.into_iter().unzip();
            // Without answers, those who wait hear that there is none.
            for (answer, sender) in (self.carry_out)(requests).await.into_iter().flatten().zip(waiting) {
                // One that has gone needs no answer.
                let _ = sender.send(answer);
            }
        }
    }
}
