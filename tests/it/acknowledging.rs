//! What acknowledging deliveries looks like on the wire to a real RabbitMQ.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use parking_lot::Mutex;
use roundelay::broker::rabbit::RabbitBroker;
use roundelay::broker::{Broker, Consumer, Delivery, Destination, Message};
use roundelay::ladder::Ladder;
use roundelay::topology::{Names, Topology};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use crate::harness::{SOON, Vhost};

/// Between two looks at what has come.
const LOOK: Duration = Duration::from_millis(20);

/// What a `basic.ack` of the client said: the delivery's number, and whether it stands for all before it.
type Ack = (u64, bool);

/// Reads AMQP 0-9-1 as the specification frames it (2.3.5): type, channel, size, payload, 0xCE.
#[derive(Default)]
struct Frames(Vec<u8>);

impl Frames {
    fn acks(&mut self, bytes: &[u8]) -> Vec<Ack> {
        self.0.extend_from_slice(bytes);
        let mut acks = Vec::new();
        if self.0.starts_with(b"AMQP") {
            if self.0.len() < 8 {
                return acks;
            }
            self.0.drain(..8);
        }
        while self.0.len() >= 7 {
            let size = u32::from_be_bytes(self.0[3..7].try_into().unwrap()) as usize;
            if self.0.len() < size + 8 {
                break;
            }
            let frame: Vec<u8> = self.0.drain(..size + 8).collect();
            assert_eq!(frame[size + 7], 0xCE, "the end of a frame");
            // A method frame (1) with class 60 and method 80, then the number and the bit `multiple`.
            if frame[0] == 1 && frame[7..11] == [0, 60, 0, 80] {
                acks.push((u64::from_be_bytes(frame[11..19].try_into().unwrap()), frame[19] & 1 == 1));
            }
        }
        acks
    }
}

/// A way to the broker on which all acknowledgements are noted.
async fn tapped(amqp: &str) -> (String, Arc<Mutex<Vec<Ack>>>) {
    let mut url = url::Url::parse(amqp).unwrap();
    let broker = (url.host_str().unwrap().to_owned(), url.port().unwrap_or(5672));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    url.set_port(Some(listener.local_addr().unwrap().port())).unwrap();
    let noted = Arc::new(Mutex::new(Vec::new()));
    let notes = noted.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect((broker.0.as_str(), broker.1)).await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move {
                let _ = copy(&mut from_server, &mut to_client).await;
            });
            let notes = notes.clone();
            tokio::spawn(async move {
                let (mut frames, mut buffer) = (Frames::default(), vec![0; 65_536]);
                while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
                    notes.lock().extend(frames.acks(&buffer[..length]));
                    if to_server.write_all(&buffer[..length]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    (url.to_string(), noted)
}

async fn deliveries(broker: &RabbitBroker, consumer: &mut Consumer, count: usize) -> Vec<Delivery> {
    for n in 0..count {
        let (id, body) = (n.to_string(), n.to_string().into());
        broker.publish(Message { to: Destination::Queue("work".into()), id, body, trace: None }).await.unwrap();
    }
    let mut deliveries = Vec::with_capacity(count);
    while deliveries.len() < count {
        deliveries.push(timeout(SOON, consumer.next()).await.expect("a delivery in time").expect("a delivery"));
    }
    deliveries
}

fn topology() -> Topology {
    Topology::new(Names::new("r"), ["work"], &Ladder::new(Vec::new()))
}

/// One thread, so that what is said together is said before anything is written.
#[tokio::test]
async fn deliveries_that_end_together_are_acknowledged_with_one_frame() {
    let vhost = Vhost::new().await;
    let (amqp, acks) = tapped(&vhost.amqp).await;
    let broker = RabbitBroker::connect(&amqp, Names::new("r")).await.unwrap();
    broker.apply(&topology()).await.unwrap();
    let mut consumer = broker.consume("work", 50).await.unwrap();
    let together = deliveries(&broker, &mut consumer, 20).await;
    join_all(together.into_iter().map(Delivery::ack)).await;

    // The third of five is still in hand: none stands for it but its own.
    let mut five = deliveries(&broker, &mut consumer, 5).await;
    let third = five.remove(2);
    join_all(five.into_iter().map(Delivery::ack)).await;
    timeout(SOON, async {
        while acks.lock().len() < 4 {
            sleep(LOOK).await;
        }
    })
    .await
    .expect("they are written in time");
    third.ack().await;
    broker.close().await;
    assert_eq!(left(&vhost).await, 0);
    assert_eq!(*acks.lock(), [(20, true), (22, true), (24, false), (25, false), (23, false)]);
}

/// What was handed over is written before the connection closes, however much it is. Whether the broker still
/// acts on all of it is the broker's affair: the channel of a quorum queue keeps back what exceeds 32 commands
/// that its log has not confirmed, and forgets it when it closes. Those are delivered again.
#[tokio::test]
async fn closing_writes_all_acknowledgements_that_were_handed_over() {
    let vhost = Vhost::new().await;
    let (amqp, acks) = tapped(&vhost.amqp).await;
    let broker = RabbitBroker::connect(&amqp, Names::new("r")).await.unwrap();
    broker.apply(&topology()).await.unwrap();
    let mut consumer = broker.consume("work", 300).await.unwrap();
    let mut odd = deliveries(&broker, &mut consumer, 300).await;
    // Every other one stays in hand, so that none stands for another.
    let even: Vec<Delivery> = (0..150).map(|n| odd.remove(n)).collect();
    join_all(odd.into_iter().map(Delivery::ack)).await;
    broker.close().await;
    drop(even);
    let expected: Vec<Ack> = (1..=150).map(|n| (2 * n, false)).collect();
    assert_eq!(*acks.lock(), expected);
}

/// How many messages the queue holds once it has no consumer any more.
async fn left(vhost: &Vhost) -> u32 {
    let raw = vhost.raw().await;
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let begin = Instant::now();
    loop {
        let queue = raw.queue_declare("work".into(), passive, FieldTable::default()).await.unwrap();
        if queue.consumer_count() == 0 {
            return queue.message_count();
        }
        assert!(begin.elapsed() < SOON, "somebody still consumes");
        sleep(LOOK).await;
    }
}
