//! Carries the faults out, one at a time, and has the log say what was broken and when it was
//! whole again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use parking_lot::Mutex;
use reqwest::Method;
use roundelay::broker::rabbit::RabbitBroker;
use roundelay::clock::Entropy;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::faults::Fault;
use super::ground::{Ground, NODES};
use super::load;
use super::log::{Entry, Writer};
use super::proxy::{Link, Mode};
use super::receiver::Seen;
use super::workers::Links;
use crate::support::workers::{Seat, Workers};

/// The platform queues that may suffer. That of one-off jobs may not.
const QUEUES: [&str; 3] = ["quick", "eager", "long"];
/// Where every chain of the kind `quick` sleeps.
const RUNG: &str = "roundelay.delay.4975ms";
/// How long what was deleted stays away before an operator declares it again.
const UNNOTICED: Duration = Duration::from_secs(3);

/// Everything that can be broken, and what is needed to do so.
pub struct Stage {
    pub ground: Ground,
    pub workers: Workers,
    /// Theirs, in the same order.
    pub links: Vec<Links>,
    pub log: Writer,
    pub seen: Seen,
    pub config: PathBuf,
    /// Past the links that are broken: to whichever node lives.
    pub broker_url: String,
    pub publisher: Arc<RabbitBroker>,
    /// Decides what is struck that concerns everybody, one thing after the other.
    pub entropy: Entropy,
    /// Decides which workers are struck. It is another stream, since who is at work is a matter of
    /// moments, and would leave nothing of the seed to the rest.
    pub luck: Entropy,
    pub quiet: bool,
    pub numbers: AtomicUsize,
    pub counts: Mutex<BTreeMap<Fault, usize>>,
    pub poisoned: AtomicUsize,
    pub began: Instant,
}

fn between(entropy: &Entropy, low: u64, high: u64) -> Duration {
    entropy.between(Duration::from_millis(low), Duration::from_millis(high))
}

fn one_of<T: Copy>(entropy: &Entropy, things: &[T]) -> T {
    things[entropy.below(things.len())]
}

impl Stage {
    fn broke(&self, fault: Fault, target: &str) -> usize {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.say(&format!("{} {target}", fault.name()));
        self.log.write(Entry::Broke { number, fault: fault.name().into(), target: target.into() });
        *self.counts.lock().entry(fault).or_default() += 1;
        number
    }

    /// Prints a line for a person who watches, unless `quiet` is set.
    pub fn say(&self, what: &str) {
        if !self.quiet {
            println!("{:7.1} s  {what}", self.began.elapsed().as_secs_f64());
        }
    }

    fn healed(&self, number: usize) {
        self.log.write(Entry::Healed { number });
    }

    /// How often a fault has happened so far.
    pub fn count(&self, fault: Fault) -> usize {
        self.counts.lock().get(&fault).copied().unwrap_or(0)
    }

    /// Does it to a worker that is at work; does nothing if there is none.
    pub async fn strike(&self, fault: Fault) {
        let at_work = |seat: &&Arc<Seat>| seat.awake().is_some_and(|worker| self.seen.has_called(&worker));
        let ready: Vec<&Arc<Seat>> = self.workers.seats.iter().filter(at_work).collect();
        if ready.is_empty() {
            return;
        }
        let seat = one_of(&self.luck, &ready);
        let mut number = None;
        if fault == Fault::WorkerKilled {
            self.workers.kill(seat, |worker| number = Some(self.broke(fault, worker)));
        } else {
            // Some wake up with their leases, some without, and some when the broker has given
            // them up.
            let lease = load::LEASE.as_millis() as u64;
            let (low, high) =
                one_of(&self.luck, &[(500, lease - 1_000), (lease, 2 * lease), (lease, 2 * lease), (25_000, 30_000)]);
            self.workers
                .freeze(seat, between(&self.luck, low, high), |worker| number = Some(self.broke(fault, worker)))
                .await;
        }
        number.into_iter().for_each(|number| self.healed(number));
    }

    /// Breaks something that concerns everybody, and mends it.
    pub async fn strike_all(&self, fault: Fault) -> anyhow::Result<()> {
        self.carry_out(fault).await.with_context(|| format!("the fault \"{}\" could not be carried out", fault.name()))
    }

    async fn carry_out(&self, fault: Fault) -> anyhow::Result<()> {
        match fault {
            Fault::WorkerKilled | Fault::WorkerFrozen => self.strike(fault).await,
            Fault::NodeKilled => self.kill_node(fault, self.entropy.below(NODES) + 1, "").await?,
            Fault::LeaderKilled => {
                let queue = one_of(&self.entropy, &["quick", "eager", "long", load::ONCE, RUNG]);
                let shown = self.ground.queue(queue).await?;
                let leader = shown["leader"].as_str().context("a quorum queue has a leader")?;
                let node = self.ground.nodes.iter().find(|node| node.name == leader).context("the leader is ours")?;
                self.kill_node(fault, node.number, queue).await?;
            }
            Fault::ClusterRestarted => {
                let verb = one_of(&self.entropy, &["stop", "kill"]);
                let number = self.broke(fault, verb);
                self.ground.cluster(verb).await?;
                self.ground.cluster("start").await?;
                self.healed(number);
            }
            Fault::MemberRemoved => {
                let node = self.entropy.below(NODES) + 1;
                let number = self.broke(fault, &node.to_string());
                self.ground.replace_node(node).await?;
                self.healed(number);
                self.all_members(&self.ground.nodes[node - 1].name).await?;
            }
            Fault::LedgerKilled | Fault::LedgerAway => {
                let number = self.broke(fault, "");
                self.ground.end_database().await?;
                let away =
                    if fault == Fault::LedgerAway { Duration::from_secs(30) } else { between(&self.entropy, 0, 3_000) };
                sleep(away).await;
                self.ground.start_database().await?;
                self.healed(number);
            }
            Fault::LedgerFailover | Fault::LedgerSwitchover => {
                let number = self.broke(fault, &self.ground.database().to_string());
                let verb = if fault == Fault::LedgerFailover { "kill" } else { "stop" };
                let old = self.ground.fail_over(verb).await?;
                let new = self.ground.database();
                self.links.iter().for_each(|links| links.ledger.lead_to(vec![new]));
                self.healed(number);
                // The next fault waits until the ledger has a standby again: without one the next failover would have
                // nowhere to go.
                self.ground.bring_back(old).await?;
            }
            Fault::BrokerCut | Fault::BrokerOneWay | Fault::BrokerHalfOpen => {
                self.break_links(fault, self.links.iter().map(|links| &links.broker).collect()).await;
            }
            Fault::LedgerCut | Fault::LedgerOneWay | Fault::LedgerHalfOpen => {
                self.break_links(fault, self.links.iter().map(|links| &links.ledger).collect()).await;
            }
            Fault::OneWorkerCut => {
                let links = &self.links[self.entropy.below(self.links.len())];
                self.break_links(fault, vec![&links.broker, &links.ledger]).await;
            }
            Fault::Slow => {
                self.break_links(fault, self.links.iter().flat_map(|links| [&links.broker, &links.ledger]).collect())
                    .await;
            }
            Fault::MemoryAlarm => {
                self.alarm(
                    fault,
                    ["set_vm_memory_high_watermark", "absolute", "1MB"],
                    ["set_vm_memory_high_watermark", "0.6"],
                )
                .await?;
            }
            Fault::DiskAlarm => {
                self.alarm(fault, ["set_disk_free_limit", "1000000GB"], ["set_disk_free_limit", "50MB"]).await?;
            }
            Fault::RungPurged => self.purge(fault, RUNG).await?,
            Fault::QueuePurged => self.purge(fault, one_of(&self.entropy, &QUEUES)).await?,
            Fault::QueueDeleted => self.delete(fault, "queues/%2F/", one_of(&self.entropy, &QUEUES)).await?,
            Fault::RungDeleted => self.delete(fault, "queues/%2F/", RUNG).await?,
            Fault::ExchangeDeleted => {
                self.delete(fault, "exchanges/%2F/", one_of(&self.entropy, &["roundelay.jobs", RUNG])).await?
            }
            Fault::BindingDeleted => {
                let queue = one_of(&self.entropy, &QUEUES);
                self.delete(fault, "bindings/%2F/e/roundelay.jobs/q/", &format!("{queue}/{queue}")).await?;
            }
            Fault::PolicyTtl => {
                self.policy(fault, json!({ "pattern": "^roundelay[.]delay[.]", "definition": { "message-ttl": 300 } }))
                    .await?;
            }
            Fault::PolicyLength => {
                let pattern = format!("^({})$", QUEUES.join("|"));
                self.policy(fault, json!({ "pattern": pattern, "definition": { "max-length": 1 } })).await?;
            }
            Fault::Poison => {
                let queue = one_of(&self.entropy, &QUEUES);
                let number = self.broke(fault, queue);
                let confirmed = load::poison(&self.publisher, queue, 500).await;
                self.poisoned.fetch_add(confirmed, Ordering::Relaxed);
                self.healed(number);
            }
        }
        Ok(())
    }

    async fn kill_node(&self, fault: Fault, node: usize, why: &str) -> anyhow::Result<()> {
        let number = self.broke(fault, format!("{node} {why}").trim_end());
        self.ground.node("kill", node).await?;
        sleep(between(&self.entropy, 1_000, 4_000)).await;
        self.ground.node("start", node).await?;
        self.healed(number);
        Ok(())
    }

    /// Waits until every platform queue has a member on this node: what replaces a member and leaves queues without it
    /// has done half of its work.
    async fn all_members(&self, node: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        for queue in [&QUEUES[..], &[load::ONCE, RUNG]].concat() {
            loop {
                let members = self.ground.queue(queue).await?["members"].clone();
                if members.as_array().is_some_and(|members| members.iter().any(|member| member == node)) {
                    break;
                }
                ensure!(Instant::now() < deadline, "the queue {queue} has no member on {node}: {members}");
                sleep(Duration::from_millis(500)).await;
            }
        }
        Ok(())
    }

    async fn break_links(&self, fault: Fault, links: Vec<&Link>) {
        let hole = |from_client, from_server| Mode::Hole { from_client, from_server };
        let ways: &[Mode] = match fault {
            Fault::BrokerOneWay | Fault::LedgerOneWay => &[hole(true, false), hole(false, true)],
            Fault::BrokerHalfOpen | Fault::LedgerHalfOpen => &[Mode::HalfOpen],
            Fault::Slow => &[Mode::Slow(Duration::from_millis(100))],
            _ => &[Mode::Cut, hole(true, true)],
        };
        let way = one_of(&self.entropy, ways);
        let number = self.broke(fault, &format!("{way:?}"));
        links.iter().for_each(|link| link.set(way));
        sleep(if way == Mode::HalfOpen { Duration::from_millis(500) } else { between(&self.entropy, 2_000, 10_000) })
            .await;
        links.iter().for_each(|link| link.set(Mode::Open));
        self.healed(number);
    }

    async fn alarm<const A: usize, const B: usize>(
        &self,
        fault: Fault,
        raise: [&str; A],
        clear: [&str; B],
    ) -> anyhow::Result<()> {
        let node = self.entropy.below(NODES) + 1;
        let number = self.broke(fault, &node.to_string());
        self.ground.ctl(node, &raise).await?;
        sleep(between(&self.entropy, 3_000, 8_000)).await;
        self.ground.ctl(node, &clear).await?;
        self.healed(number);
        Ok(())
    }

    async fn purge(&self, fault: Fault, queue: &str) -> anyhow::Result<()> {
        let number = self.broke(fault, queue);
        self.insist(Method::DELETE, &format!("queues/%2F/{queue}/contents"), &json!(null)).await?;
        self.healed(number);
        Ok(())
    }

    /// Deletes it, and has an operator notice after a while. Workers that start meanwhile declare
    /// it, too.
    async fn delete(&self, fault: Fault, path: &str, name: &str) -> anyhow::Result<()> {
        let number = self.broke(fault, name);
        self.insist(Method::DELETE, &format!("{path}{name}"), &json!(null)).await?;
        sleep(UNNOTICED).await;
        load::roundelay(&self.config, &self.broker_url, &self.ground.ledger_url(), &["topology", "apply"]).await?;
        // What came while an exchange was there and its bindings were not.
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Err(error) = load::send_back_unrouted(&self.broker_url).await {
            ensure!(Instant::now() < deadline, "{error:#}");
            sleep(Duration::from_millis(500)).await;
        }
        self.healed(number);
        Ok(())
    }

    async fn policy(&self, fault: Fault, mut policy: Value) -> anyhow::Result<()> {
        policy["apply-to"] = json!("queues");
        let number = self.broke(fault, &policy["pattern"].to_string());
        self.insist(Method::PUT, "policies/%2F/chaos", &policy).await?;
        sleep(between(&self.entropy, 3_000, 6_000)).await;
        self.insist(Method::DELETE, "policies/%2F/chaos", &json!(null)).await?;
        self.healed(number);
        Ok(())
    }

    /// Asks the management API until it agrees: after other faults it may not be itself yet.
    async fn insist(&self, method: Method, path: &str, body: &Value) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let answer = self.ground.api(method.clone(), path, body).await;
            match &answer {
                Ok((status, _)) if status.is_success() => return Ok(()),
                _ => ensure!(Instant::now() < deadline, "{method} {path}: {answer:?}"),
            }
            sleep(Duration::from_millis(500)).await;
        }
    }
}
