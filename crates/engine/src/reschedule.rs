//! Ticks that come at another time than they were to: brought forward by an operator, or moved by a new
//! schedule. First in the ledger, by compare-and-set; then with a message of their own. The message of
//! the time before is on its way still, and means nothing when it arrives.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use roundelay_config::{Config, OwnSchedule};
use roundelay_ledger::{ChainFilter, ChainState, ChainView, Hint, Ledger, LedgerError, ListFilter, Listed, Move};
use roundelay_model::clock::{Entropy, Time};
use roundelay_model::ids::TickNo;
use roundelay_model::schedule::{Asleep, Balance, Moved, Schedule, Setting, phase};
use roundelay_model::wall_clock::WallClock;
use tokio::time::sleep;

use crate::connections::Connections;
use crate::dispatch::Dispatch;
use crate::publishing::Publishing;

/// Messages published at the same time.
const IN_FLIGHT: usize = 128;
/// Messages that are not known to have been sent after this are sent by a worker's catch-up.
const GRACE: Duration = Duration::from_secs(30);
/// Between two looks at chains that run, at first.
const PAUSE: Duration = Duration::from_millis(200);
/// And at last.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Why ticks are moved.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// A schedule is another. What is overdue by that of a fleet is spread over the interval.
    Schedule {
        /// Whether it is a whole fleet's.
        fleet: bool,
    },
    /// The wall clock was set. What it was set across is spread over this time.
    Clock(Duration),
    /// None is known; but some sleep for longer than their schedules can explain.
    Overslept,
}

/// Moves ticks.
pub struct Rescheduler {
    ledger: Arc<dyn Ledger>,
    dispatch: Dispatch,
    entropy: Entropy,
    balance: Balance,
    slack: Duration,
    /// Whether messages published by this process reach workers.
    publishes: bool,
}

/// What became of the wish to bring a tick forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advance {
    /// It is due now. `sent`: so is its message; else a worker's catch-up sends it.
    Advanced {
        /// Whether the broker has confirmed its message.
        sent: bool,
    },
    /// There is no such chain.
    NoChain,
    /// This stands in its way.
    Refused(Box<ChainView>),
}

/// What a schedule means for a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replanned {
    /// Its next tick comes when it should, or is due already.
    Stays,
    /// It runs, under the schedule that it started with.
    Runs,
    /// A tick that has started waits for its retry or its batch; what follows comes by the new schedule.
    Underway,
    /// The schedule has no occurrence any more.
    Over,
    /// Another process was faster; ask again.
    Changed,
    /// Its next tick comes then.
    Moved(Time),
}

impl Rescheduler {
    /// A mover for a command. Where the broker is embedded, workers' catch-up sends the messages.
    pub fn new(config: &Config, connections: &Connections) -> Self {
        Self {
            ledger: connections.ledger.clone(),
            dispatch: Dispatch::new(config, connections),
            entropy: connections.entropy.clone(),
            balance: Balance::default(),
            slack: config.catch_up.slack,
            publishes: connections.broker.keeps_messages(),
        }
    }

    /// A mover for a running worker.
    pub(super) fn of(publishing: &Publishing, slack: Duration) -> Self {
        Self {
            ledger: publishing.ledger.ledger.clone(),
            dispatch: publishing.dispatch.clone(),
            entropy: publishing.entropy.clone(),
            balance: Balance::default(),
            slack,
            publishes: true,
        }
    }

    /// Brings the next tick of a rotation forward to now.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub async fn advance(&self, kind: &str, key: &str) -> Result<Advance, LedgerError> {
        let patience = if self.publishes { GRACE } else { Duration::ZERO };
        if let Some(hint) = self.ledger.advance(kind.into(), key.into(), patience).await? {
            let sent = self.send(vec![hint]).await? == 0;
            return Ok(Advance::Advanced { sent: sent && self.publishes });
        }
        let chains = self.ledger.chains(kind.into(), key.into()).await?;
        let rotation = chains.into_iter().find(|chain| !chain.once);
        Ok(rotation.map_or(Advance::NoChain, |chain| Advance::Refused(Box::new(chain))))
    }

    /// The same for rotations that sleep, at most `limit`; answers how many.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub async fn advance_all(&self, which: ChainFilter, limit: u32) -> Result<u64, LedgerError> {
        let patience = if self.publishes { GRACE } else { Duration::ZERO };
        let hints = self.ledger.advance_all(which, limit, patience).await?;
        let advanced = hints.len() as u64;
        self.send(hints).await?;
        Ok(advanced)
    }

    /// Moves the next ticks of rotations of one kind, whose schedule is `of_kind`, to where their schedules
    /// have them. With `fleet`, what is overdue by them is spread over the interval. One answer for each.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn replan(
        &self,
        page: &[Listed],
        of_kind: &Schedule,
        fleet: bool,
    ) -> Result<Vec<Replanned>, LedgerError> {
        self.follow(page, of_kind, Change::Schedule { fleet }).await
    }

    /// Moves the next ticks of rotations of one kind, whose schedule is `of_kind`, to where they belong after a change.
    /// One answer for each.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub(super) async fn follow(
        &self,
        page: &[Listed],
        of_kind: &Schedule,
        change: Change,
    ) -> Result<Vec<Replanned>, LedgerError> {
        let (now, wall_clock) = (self.ledger.now(), self.ledger.wall_clock());
        let mut moves = Vec::new();
        let mut answers = Vec::with_capacity(page.len());
        for chain in page {
            let answer = self.plan(chain, of_kind, change, (now, &wall_clock));
            if let Replanned::Moved(due) = answer.0 {
                let watch_at = if self.publishes { now + GRACE } else { now };
                let Hint { epoch, tick, due: from, .. } = chain.hint;
                moves.push(Move { epoch, tick, from, nominal: answer.1, due, watch_at });
            }
            answers.push(answer.0);
        }
        if moves.is_empty() {
            return Ok(answers);
        }
        let moved = self.ledger.reschedule(moves).await?;
        let (mut moved, mut hints) = (moved.into_iter(), Vec::new());
        for (chain, answer) in page.iter().zip(&mut answers).filter(|(_, answer)| matches!(answer, Replanned::Moved(_)))
        {
            match moved.next().flatten() {
                // The message of one that is paused is sent when it is resumed.
                Some(hint) if chain.state == ChainState::Active => hints.push(hint),
                Some(_) => {}
                None => *answer = Replanned::Changed,
            }
        }
        self.send(hints).await?;
        Ok(answers)
    }

    /// The same for some chains by their keys, those of them that run as soon as they have ended: they may
    /// have been started under the schedule before, and would sleep by it once more. With a tick, only
    /// while it is that one that runs. Answers how many were moved, and who still ran after `patience`.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub async fn settle(
        &self,
        kind: &str,
        mut waiting: Vec<(String, Option<TickNo>)>,
        of_kind: &Schedule,
        patience: Duration,
    ) -> Result<(u64, Vec<String>), LedgerError> {
        let (mut moved, mut pause, mut waited) = (0, PAUSE, Duration::ZERO);
        loop {
            for (key, tick) in std::mem::take(&mut waiting) {
                let which = ChainFilter { kind: Some(kind.into()), key: Some(key), ..ChainFilter::default() };
                let mut page = self.ledger.list(ListFilter { which, condition: None }, None, 1).await?;
                page.retain(|chain| tick.is_none_or(|tick| chain.hint.tick == tick) || !chain.holder.runs());
                let answers = self.replan(&page, of_kind, true).await?;
                for (chain, answer) in page.into_iter().zip(answers) {
                    match answer {
                        Replanned::Runs | Replanned::Changed => waiting.push((chain.hint.key, Some(chain.hint.tick))),
                        Replanned::Moved(_) => moved += 1,
                        _ => {}
                    }
                }
            }
            if waiting.is_empty() || waited >= patience {
                return Ok((moved, waiting.into_iter().map(|(key, _)| key).collect()));
            }
            sleep(pause).await;
            waited += pause;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    fn plan(
        &self,
        chain: &Listed,
        of_kind: &Schedule,
        change: Change,
        (now, wall_clock): (Time, &WallClock),
    ) -> (Replanned, Time) {
        let Listed { hint, nominal, last_start, last_finish, .. } = chain;
        let stays = |answer| (answer, *nominal);
        if !matches!(chain.state, ChainState::Active | ChainState::Paused) {
            return stays(Replanned::Stays);
        }
        if chain.holder.runs() {
            return stays(Replanned::Runs);
        }
        if chain.batch.0 > 0 || hint.attempt > 1 || chain.started_tick >= hint.tick {
            return stays(Replanned::Underway);
        }
        if hint.due <= now && !matches!(change, Change::Clock(_)) {
            return stays(Replanned::Stays);
        }
        let own = chain.schedule.as_deref().map(|own| OwnSchedule::parse(own).and_then(|own| own.apply(of_kind)));
        let own = own.and_then(Result::ok);
        let schedule = own.as_ref().unwrap_or(of_kind);
        let place = phase(&hint.kind, &hint.key);
        let setting = Setting {
            phase: if schedule.spread_phase { place } else { 0.0 },
            balance: &self.balance,
            dice: &self.entropy,
            wall_clock,
        };
        let asleep = Asleep { nominal: *nominal, due: hint.due, last_start: *last_start, last_finish: *last_finish };
        let moved = match change {
            Change::Schedule { fleet } => schedule.moved(asleep, now, fleet.then_some(place), setting),
            Change::Clock(spread) => {
                let own = schedule.misfire.spread;
                schedule.set(asleep, now, (if own.is_zero() { spread } else { own }, place), setting)
            }
            Change::Overslept if schedule.overslept(asleep, false, now, place, wall_clock).is_none() => Moved::Fits,
            Change::Overslept => match schedule.set(asleep, now, (Duration::ZERO, 0.0), setting) {
                Moved::Fits => schedule.moved(asleep, now, None, setting),
                moved => moved,
            },
        };
        match moved {
            Moved::Fits => stays(Replanned::Stays),
            Moved::Over => stays(Replanned::Over),
            Moved::To { nominal, due } => (Replanned::Moved(due), nominal),
        }
    }

    /// Sends messages, and notes which of them are confirmed. Answers how many are not.
    async fn send(&self, hints: Vec<Hint>) -> Result<u64, LedgerError> {
        if !self.publishes || hints.is_empty() {
            return Ok(0);
        }
        let (dispatch, ledger) = (&self.dispatch, &self.ledger);
        let sent = stream::iter(hints).map(|hint| {
            let envelope = hint.envelope(ledger.id());
            async move {
                let sent = dispatch.send(&envelope, &hint.queue, ledger.now()).await;
                sent.map(|()| hint.sent()).inspect_err(|error| {
                    tracing::warn!(kind = hint.kind, key = hint.key, %error, "the message of a moved tick could not be sent; catch-up sends it");
                })
            }
        });
        let sent: Vec<_> = sent.buffer_unordered(IN_FLIGHT).collect().await;
        let unsent = sent.iter().filter(|sent| sent.is_err()).count() as u64;
        ledger.enrolled_sent(sent.into_iter().flatten().collect(), self.slack).await?;
        Ok(unsent)
    }
}
