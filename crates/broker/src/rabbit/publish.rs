//! Publishing: one task owns the channel and everything that is in flight on it.
//!
//! Callers hand their message to the task and wait for its verdict, so hundreds can be in flight
//! while each caller sees one plain call. The task lives as long as the broker object and takes a
//! fresh channel whenever the old one is gone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lapin::options::ConfirmSelectOptions;
use lapin::{Channel, Connection, Error, ErrorKind};
use parking_lot::Mutex;
use roundelay_model::topology::Names;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::Patience;
use super::attribution::Returns;
use super::connection::{Line, Link, in_words, up};
use super::publish_once::{Outgoing, PublishResult, Tried, publish_once};
use crate::{Message, PublishError};

/// How many publishes may wait for their confirmation on the channel.
const MAX_IN_FLIGHT: usize = 4_096;
/// How many may wait for their turn.
const MAX_WAITING: usize = 1_024;
/// How often a message is sent within one call, where the first try says nothing about it: it was
/// in flight when another one broke the channel, or its confirmation carried another one's return.
const TRIES: u8 = 4;
/// How long an exchange that was found absent is taken to be. Every publish to an absent exchange
/// closes the channel, and a stream of them would bring publishing to a halt for all.
const ABSENT_FOR: Duration = Duration::from_secs(1);
/// A channel on which nothing has been confirmed for this long, though something was published, is given up: a message
/// that reached RabbitMQ before the leader of its quorum queue was there, as just after a start, keeps all others on
/// the channel waiting. What was in flight goes out once more on the next channel.
const STALL: Duration = Duration::from_secs(5);
/// How often the channel is checked for that.
const LOOK: Duration = Duration::from_secs(1);
/// How long those in flight may take to end once their channel has.
const WIND_UP: Duration = Duration::from_secs(1);

/// Publishes messages, and answers for each.
pub(super) struct Publisher {
    jobs: mpsc::Sender<Outgoing>,
    line: watch::Receiver<Line>,
    blocked: watch::Receiver<bool>,
    names: Names,
    patience: Patience,
    absent: Absent,
    finish: CancellationToken,
    finished: CancellationToken,
}

impl Publisher {
    pub(super) fn start(link: &Link, names: Names, patience: Patience) -> Self {
        let (jobs, waiting) = mpsc::channel(MAX_WAITING);
        let (finish, finished) = (CancellationToken::new(), CancellationToken::new());
        let (line, blocked, absent) = (link.line(), link.blocked(), Absent::default());
        let desk = Desk {
            waiting,
            again: Vec::new(),
            line: line.clone(),
            blocked: blocked.clone(),
            absent: absent.clone(),
            finish: finish.clone(),
            stall: STALL.min(patience.confirmation),
        };
        let ended = finished.clone().drop_guard();
        tokio::spawn(async move {
            desk.run().await;
            drop(ended);
        });
        Self { jobs, line, blocked, names, patience, absent, finish, finished }
    }

    pub(super) async fn publish(&self, message: Message) -> PublishResult {
        // Checked first without waiting: cloning a watch costs more than all else here.
        if !matches!(*self.line.borrow(), Line::Up(_)) {
            up(&mut self.line.clone(), self.patience.connection).await.map_err(PublishError::Unknown)?;
        }
        let (answer, verdict) = oneshot::channel();
        let job = Outgoing::new(&self.names, message, answer)?;
        let fate = async {
            self.jobs.send(job).await.map_err(|_| closed())?;
            verdict.await.unwrap_or_else(|_| Err(PublishError::Unknown("the channel was lost".into())))
        };
        timeout(self.patience.confirmation, fate).await.unwrap_or_else(|_| Err(self.too_late()))
    }

    fn too_late(&self) -> PublishError {
        let seconds = self.patience.confirmation.as_secs_f32();
        let why = if *self.blocked.borrow() { "; the broker accepts no messages at present" } else { "" };
        PublishError::Unknown(format!("none within {seconds} s{why}"))
    }

    /// Forgets which exchanges were absent: the topology has just been applied.
    pub(super) fn topology_applied(&self) {
        self.absent.clear();
    }

    /// Takes no more messages, and waits up to `patience` for those that were taken.
    pub(super) async fn finish(&self, patience: Duration) {
        self.finish.cancel();
        let _ = timeout(patience, self.finished.cancelled()).await;
    }
}

fn closed() -> PublishError {
    PublishError::Unknown("the connection has been closed".into())
}

/// Exchanges that were found absent a moment ago.
#[derive(Clone, Default)]
struct Absent(Arc<Mutex<HashMap<String, Instant>>>);

impl Absent {
    fn add(&self, exchange: &str) {
        self.0.lock().insert(exchange.into(), Instant::now());
    }

    fn has(&self, exchange: &str) -> bool {
        let mut absent = self.0.lock();
        if !absent.is_empty() {
            absent.retain(|_, since| since.elapsed() < ABSENT_FOR);
        }
        absent.contains_key(exchange)
    }

    fn clear(&self) {
        self.0.lock().clear();
    }
}

/// Why a channel is no longer served.
enum End {
    /// Everything has been said, and nothing more comes.
    Finished,
    /// It broke. These were in flight, each with what lapin says.
    Broken(Vec<(Outgoing, Error)>),
}

/// The publishing task.
struct Desk {
    waiting: mpsc::Receiver<Outgoing>,
    /// To be sent again on the next channel.
    again: Vec<Outgoing>,
    line: watch::Receiver<Line>,
    blocked: watch::Receiver<bool>,
    absent: Absent,
    finish: CancellationToken,
    stall: Duration,
}

impl Desk {
    async fn run(mut self) {
        while let Some(connection) = self.connection().await {
            let channel = match open(&connection).await {
                Ok(channel) => channel,
                Err(error) => {
                    debug!(error = %in_words(&error), "failed to open the publishing channel");
                    sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            match self.serve(&channel).await {
                End::Finished => return,
                End::Broken(jobs) => self.judge(jobs, connection.status().connected()),
            }
        }
    }

    /// The connection. When it is lost, publishes that wait for their turn are answered at once: their
    /// callers know better than this queue what is still worth sending when the broker is back.
    async fn connection(&mut self) -> Option<Arc<Connection>> {
        loop {
            match &*self.line.borrow_and_update() {
                Line::Up(connection) if connection.status().connected() => return Some(connection.clone()),
                Line::Closed => return None,
                Line::Up(_) | Line::Away(_) => {}
            }
            let mut stranded = std::mem::take(&mut self.again);
            stranded.extend(std::iter::from_fn(|| self.waiting.try_recv().ok()));
            for job in stranded {
                job.end(Err(PublishError::Unknown("the connection was lost".into())));
            }
            self.line.changed().await.ok()?;
        }
    }

    async fn serve(&mut self, channel: &Channel) -> End {
        let returns = Returns::default();
        let send = |job| publish_once(channel, &returns, job);
        let mut flying: FuturesUnordered<_> = std::mem::take(&mut self.again).into_iter().map(send).collect();
        let mut taken = Vec::new();
        let mut look = interval(LOOK.min(self.stall));
        // Since when nothing has been confirmed, though something is in flight.
        let (mut stalled, mut open) = (Instant::now(), true);
        let mut blocked = *self.blocked.borrow_and_update();
        while open || !flying.is_empty() {
            let room = MAX_IN_FLIGHT.saturating_sub(flying.len());
            if flying.is_empty() {
                stalled = Instant::now();
            }
            tokio::select! {
                biased;
                Some(tried) = flying.next() => match tried {
                    Tried::Told => stalled = Instant::now(),
                    Tried::Again(job) if job.tries < TRIES => flying.push(send(job)),
                    Tried::Again(job) => job.end(Err(PublishError::Unknown("other messages were returned".into()))),
                    Tried::Broken(job, error) => return wind_up(flying, vec![(job, error)]).await,
                },
                count = self.waiting.recv_many(&mut taken, room), if open && room > 0 && !blocked => {
                    open = count > 0;
                    for job in taken.drain(..) {
                        if job.forsaken() {
                            continue; // The caller has given up, and needs no answer.
                        }
                        if self.absent.has(job.exchange.as_str()) {
                            job.exchange_absent();
                        } else {
                            flying.push(send(job));
                        }
                    }
                }
                Ok(()) = self.blocked.changed() => {
                    (blocked, stalled) = (*self.blocked.borrow_and_update(), Instant::now());
                }
                _ = self.line.changed() => return wind_up(flying, Vec::new()).await,
                () = self.finish.cancelled(), if !self.waiting.is_closed() => self.waiting.close(),
                _ = look.tick() => {
                    if !blocked && stalled.elapsed() >= self.stall {
                        let in_flight = flying.len();
                        warn!(in_flight, "the broker has confirmed nothing for {:?}; opening a new channel", self.stall);
                        let _ = timeout(WIND_UP, channel.close(200, "no confirmations".into())).await;
                        return wind_up(flying, Vec::new()).await;
                    }
                }
            }
        }
        End::Finished
    }

    /// Tells those that a broken channel concerns, and keeps the others to be sent again.
    ///
    /// A lost connection concerns all. A channel is closed for one message's sake (mostly for an
    /// exchange that does not exist), and the broker's words name the exchange in quotes.
    fn judge(&mut self, broken: Vec<(Outgoing, Error)>, connected: bool) {
        if !connected {
            for (job, error) in broken {
                job.end(Err(PublishError::Unknown(format!("the connection was lost: {}", in_words(&error)))));
            }
            return;
        }
        let soft = broken.iter().map(|(_, error)| error).find(|error| error.is_amqp_soft_error());
        let words = soft.map_or_else(|| "the channel was closed".into(), in_words);
        let not_found = soft.is_some_and(|e| matches!(e.kind(), ErrorKind::ProtocolError(e) if e.get_id() == 404));
        debug!(reason = %words, in_flight = broken.len(), "the publishing channel was closed");
        for (job, _) in broken {
            let concerned = words.contains(&format!("'{}'", job.exchange));
            if concerned && not_found {
                self.absent.add(job.exchange.as_str());
                job.exchange_absent();
            } else if concerned || job.tries >= TRIES {
                job.end(Err(PublishError::Unknown(words.clone())));
            } else {
                self.again.push(job);
            }
        }
    }
}

/// Collects those that were in flight on a channel that is gone. lapin ends them all at once.
/// Should one not end, it is dropped and with it its answer, which tells the caller that the
/// channel was lost.
async fn wind_up(mut flying: FuturesUnordered<impl Future<Output = Tried>>, mut broken: Vec<(Outgoing, Error)>) -> End {
    let rest = async {
        while let Some(tried) = flying.next().await {
            match tried {
                Tried::Broken(job, error) => broken.push((job, error)),
                Tried::Again(job) => broken.push((job, ErrorKind::FutureCompleted.into())),
                Tried::Told => {}
            }
        }
    };
    let _ = timeout(WIND_UP, rest).await;
    End::Broken(broken)
}

async fn open(connection: &Connection) -> lapin::Result<Channel> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}
