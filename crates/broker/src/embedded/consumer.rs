//! A consumer's two sides: the task that keeps it flowing, as the client for RabbitMQ does, and
//! the deliveries that find their way back.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::backoff::ExponentialBackoff;
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;

use super::connection::{Line, Standing};
use super::node::{Node, Outbox};
use super::state::State;
use crate::{Delivery, Settle};

/// The waits between attempts to consume a queue that is not there: the longest that the client for
/// RabbitMQ would make of them.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// A consumer as long as nothing interrupts it; afterwards there is another one.
pub(super) struct Flow {
    /// Which consumer on the node.
    pub(super) number: u64,
    /// The connection it belongs to.
    pub(super) line: Arc<Line>,
    pub(super) queue: Arc<str>,
    /// Whether its channel is open, so that deliveries can be settled. It stays open when only the
    /// queue has gone.
    pub(super) open: AtomicBool,
    /// Whether nothing arrives any more, and the broker has not said so.
    haunted: AtomicBool,
    /// Deliveries that have not been settled.
    in_hand: AtomicUsize,
    /// Tells the task that something of this has changed.
    ended: Notify,
}

impl Flow {
    fn new(number: u64, line: Arc<Line>, queue: Arc<str>) -> Self {
        Self {
            number,
            line,
            queue,
            open: AtomicBool::new(true),
            haunted: AtomicBool::new(false),
            in_hand: AtomicUsize::new(0),
            ended: Notify::new(),
        }
    }

    /// The queue has gone, so nothing more comes.
    pub(super) fn end(&self) {
        self.ended.notify_one();
    }

    /// Nothing arrives any more. That looks like an empty queue.
    pub(super) fn haunt(&self) {
        self.haunted.store(true, Ordering::Relaxed);
        self.end();
    }

    /// The connection is lost: nothing more comes, and nothing can be settled.
    pub(super) fn lose_channel(&self) {
        self.open.store(false, Ordering::Relaxed);
        self.end();
    }
}

/// The task behind a [`Consumer`](crate::Consumer).
pub(super) struct Tap {
    pub(super) node: Weak<Node>,
    pub(super) line: Arc<Line>,
    pub(super) queue: Arc<str>,
    pub(super) prefetch: u16,
    pub(super) deliver: mpsc::Sender<Delivery>,
    pub(super) cancelled: mpsc::Receiver<()>,
    /// See [`Patience::silence`](crate::rabbit::Patience::silence).
    pub(super) silence: Duration,
}

impl Tap {
    pub(super) async fn run(mut self, mut flow: Arc<Flow>) {
        loop {
            tokio::select! {
                biased;
                _ = self.cancelled.recv() => return self.cancel(&flow),
                () = flow.ended.notified() => {}
            }
            while flow.haunted.swap(false, Ordering::Relaxed) && flow.open.load(Ordering::Relaxed) {
                if !self.see_through(&flow).await {
                    return self.cancel(&flow);
                }
            }
            // When the connection is up, the queue has gone.
            let patiently = flow.open.load(Ordering::Relaxed);
            let Some(fresh) = self.reopen(patiently).await else { return };
            flow = fresh;
        }
    }

    fn cancel(&self, flow: &Flow) {
        if let Some(node) = self.node.upgrade() {
            node.change(|state, outbox| state.cancel(flow, outbox));
        }
    }

    /// Gives up a consumer to which nothing comes, once it has been silent for as long as the client for RabbitMQ waits
    /// and has no unsettled deliveries. Answers whether the consumer is still wanted.
    async fn see_through(&mut self, flow: &Flow) -> bool {
        loop {
            tokio::select! {
                biased;
                _ = self.cancelled.recv() => return false,
                // Its connection was cut meanwhile, or its queue deleted once more.
                () = flow.ended.notified() => return true,
                () = sleep(self.silence) => {}
            }
            if flow.in_hand.load(Ordering::Relaxed) == 0 {
                let Some(node) = self.node.upgrade() else { return false };
                node.change(|state, outbox| state.detach(|other| other.number == flow.number, outbox));
                return true;
            }
        }
    }

    /// Attaches to the queue as soon as it and the connection are there.
    pub(super) fn open(&self, node: &Arc<Node>) -> Option<Arc<Flow>> {
        node.change(|state, outbox| state.consume(&self.line, &self.queue, self.deliver.clone(), self.prefetch, outbox))
    }

    /// Tries until the queue can be consumed again; nothing once the connection has been closed or
    /// the consumer cancelled.
    async fn reopen(&mut self, mut patiently: bool) -> Option<Arc<Flow>> {
        let mut backoff = ExponentialBackoff::new(FIRST_PAUSE, MAX_PAUSE);
        loop {
            if patiently {
                tokio::select! {
                    biased;
                    _ = self.cancelled.recv() => return None,
                    () = sleep(backoff.next_pause()) => {}
                }
            }
            tokio::select! {
                biased;
                _ = self.cancelled.recv() => return None,
                standing = self.line.settled() => match standing {
                    Standing::Up => {}
                    // A dead process sees no end of its consumers.
                    Standing::Dead => {
                        self.cancelled.recv().await;
                        return None;
                    }
                    Standing::Away | Standing::Closed => return None,
                },
            }
            if let Some(flow) = self.open(&self.node.upgrade()?) {
                return Some(flow);
            }
            patiently = true;
        }
    }
}

impl State {
    /// Attaches a new consumer to a queue, if there is one.
    pub(super) fn consume(
        &mut self,
        line: &Arc<Line>,
        queue: &str,
        deliver: mpsc::Sender<Delivery>,
        prefetch: u16,
        outbox: &mut Outbox<'_>,
    ) -> Option<Arc<Flow>> {
        let flow = Arc::new(Flow::new(self.number(), line.clone(), queue.into()));
        self.attach(flow.clone(), deliver, prefetch, outbox).then_some(flow)
    }
}

/// A delivery's way back.
pub(super) struct Tag {
    tag: u64,
    flow: Arc<Flow>,
    /// Taken once the delivery is settled.
    node: Option<Arc<Node>>,
}

impl Tag {
    pub(super) fn new(tag: u64, flow: Arc<Flow>, node: Arc<Node>) -> Self {
        flow.in_hand.fetch_add(1, Ordering::Relaxed);
        Self { tag, flow, node: Some(node) }
    }

    fn settle(&mut self, requeue: bool) {
        let Some(node) = self.node.take() else { return };
        self.flow.in_hand.fetch_sub(1, Ordering::Relaxed);
        node.change(|state, outbox| state.settle(&self.flow, self.tag, requeue, outbox));
    }
}

/// A delivery that was not settled goes back to its queue, as when a connection dies.
impl Drop for Tag {
    fn drop(&mut self) {
        self.settle(true);
    }
}

#[async_trait]
impl Settle for Tag {
    fn is_alive(&self) -> bool {
        self.flow.open.load(Ordering::Relaxed)
    }

    async fn ack(mut self: Box<Self>) {
        self.flow.line.unless_dead().await;
        self.settle(false);
    }

    async fn requeue(mut self: Box<Self>) {
        self.flow.line.unless_dead().await;
        self.settle(true);
    }
}
