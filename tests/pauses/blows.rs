//! Carries the faults out, one after the other, and has the log say what was broken and when it was whole again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use roundelay::clock::Entropy;
use tokio::time::{Instant, sleep};

use crate::ground::Ground;
use crate::load::Wall;
use crate::log::{Entry, Writer};
use crate::proxy::{Link, Mode};
use crate::receiver::Seen;
use crate::support::workers::{Seat, Workers};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    Kill,
    Freeze,
    CutOff,
    /// All workers in order, one after the other.
    Restart,
    LedgerKilled,
    /// Killed, and back after this time.
    BrokerKilled(Duration),
    BrokerAway(Duration),
    /// The clock is set to this number of seconds ahead of the machine's.
    Clock(i64),
}

/// For how long a worker stands still or is cut off, in milliseconds: longer than its lease, which is 6 s by default,
/// and than chains may pause, so that they come back without it.
const STILL: (u64, u64) = (12_000, 25_000);
/// For how long PostgreSQL is away.
const LEDGER_AWAY: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_secs(60);
/// How long a broker's node takes to start, about.
const STARTS: Duration = Duration::from_secs(6);

impl Blow {
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "worker killed",
            Self::Freeze => "worker frozen",
            Self::CutOff => "worker cut off",
            Self::Restart => "workers restarted",
            Self::LedgerKilled => "PostgreSQL killed",
            Self::BrokerKilled(_) => "broker killed",
            Self::BrokerAway(_) => "broker away",
            Self::Clock(_) => "clock set",
        }
    }

    /// For how long a service is away that all workers need. Each minute of that may make a number of lines of log.
    pub fn outage(self) -> Option<Duration> {
        match self {
            Self::LedgerKilled => Some(LEDGER_AWAY),
            Self::BrokerKilled(length) | Self::BrokerAway(length) => Some(length),
            _ => None,
        }
    }
}

/// A worker's ways to everything, if it has ways that can be cut.
pub struct Links {
    pub broker: Link,
    pub ledger: Link,
    pub handlers: Link,
}

/// Everything that can be broken, and what is needed to do so.
pub struct Stage {
    pub ground: Ground,
    pub workers: Workers,
    pub links: Vec<Links>,
    pub wall: Option<Wall>,
    pub log: Writer,
    pub seen: Seen,
    pub folder: PathBuf,
    pub entropy: Entropy,
    pub numbers: usize,
}

impl Stage {
    fn broke(&mut self, blow: Blow, target: &str) -> usize {
        self.numbers += 1;
        self.log.write(Entry::Broke { number: self.numbers, fault: blow.name().into(), target: target.into() });
        self.numbers
    }

    fn healed(&self, number: usize) {
        self.log.write(Entry::Healed { number });
    }

    /// A worker that is at work, by dice.
    async fn somebody(&self) -> anyhow::Result<Arc<Seat>> {
        let at_work = |seat: &&Arc<Seat>| seat.awake().is_some_and(|worker| self.seen.has_called(&worker));
        let deadline = Instant::now() + SOON;
        loop {
            let ready: Vec<&Arc<Seat>> = self.workers.seats.iter().filter(at_work).collect();
            if ready.len() == self.workers.seats.len() {
                return Ok(ready[self.entropy.below(ready.len())].clone());
            }
            ensure!(Instant::now() < deadline, "{} of {} workers are at work", ready.len(), self.workers.seats.len());
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Breaks it, and mends it.
    pub async fn strike(&mut self, blow: Blow) -> anyhow::Result<()> {
        self.carry_out(blow).await.with_context(|| format!("\"{}\" could not be carried out", blow.name()))
    }

    async fn carry_out(&mut self, blow: Blow) -> anyhow::Result<()> {
        match blow {
            Blow::Kill => {
                let seat = self.somebody().await?;
                let worker = seat.awake().context("it runs")?;
                let number = self.broke(blow, &worker);
                ensure!(self.workers.kill(&seat, |_| ()) == Some(worker), "it had ended");
                self.healed(number);
            }
            Blow::Freeze => {
                let seat = self.somebody().await?;
                let worker = seat.awake().context("it runs")?;
                let number = self.broke(blow, &worker);
                ensure!(self.workers.freeze(&seat, self.still(), |_| ()).await == Some(worker), "it had ended");
                self.healed(number);
            }
            Blow::CutOff => {
                let seat = self.somebody().await?;
                let worker = seat.awake().context("it runs")?;
                let number = self.broke(blow, &worker);
                self.cut(seat.number, Mode::Hole { from_client: true, from_server: true })?;
                sleep(self.still()).await;
                self.cut(seat.number, Mode::Open)?;
                self.healed(number);
            }
            Blow::Restart => {
                let number = self.broke(blow, "");
                for seat in self.workers.seats.clone() {
                    let ended = self.workers.replace(&seat, None).await?;
                    ensure!(ended.success(), "worker {} ended with {ended}", seat.number);
                    let fresh = seat.awake().context("the new worker runs")?;
                    let deadline = Instant::now() + SOON;
                    while !self.seen.has_called(&fresh) {
                        ensure!(Instant::now() < deadline, "{fresh} has called nobody");
                        sleep(Duration::from_millis(20)).await;
                    }
                }
                self.healed(number);
            }
            Blow::LedgerKilled => {
                let number = self.broke(blow, "");
                self.ground.end_database().await?;
                sleep(LEDGER_AWAY).await;
                self.ground.start_database().await?;
                self.healed(number);
            }
            Blow::BrokerKilled(length) | Blow::BrokerAway(length) => {
                let number = self.broke(blow, "");
                self.ground.node("kill", 1).await?;
                sleep(length.saturating_sub(STARTS)).await;
                self.ground.node("start", 1).await?;
                self.healed(number);
            }
            Blow::Clock(ahead) => {
                let number = self.broke(blow, &format!("{ahead:+} s"));
                self.wall.as_ref().context("there is a clock that can be set")?.set(ahead)?;
                self.log.write(Entry::Set { ahead: ahead * 1_000 });
                self.healed(number);
            }
        }
        Ok(())
    }

    fn still(&self) -> Duration {
        self.entropy.between(Duration::from_millis(STILL.0), Duration::from_millis(STILL.1))
    }

    fn cut(&self, number: usize, mode: Mode) -> anyhow::Result<()> {
        let links = self.links.get(number - 1).context("the worker has links")?;
        [&links.broker, &links.ledger, &links.handlers].into_iter().for_each(|link| link.set(mode));
        Ok(())
    }

    /// How many lines each worker has logged so far.
    pub fn lines(&self) -> anyhow::Result<Vec<usize>> {
        let of = |seat: &Arc<Seat>| -> anyhow::Result<usize> {
            let log = std::fs::read(self.folder.join(format!("w{}.log", seat.number)))?;
            Ok(log.iter().filter(|byte| **byte == b'\n').count())
        };
        self.workers.seats.iter().map(of).collect()
    }
}
