//! How each verb of the differential test is asked of a ledger, and what its answer says.

use std::time::Duration;

use roundelay::clock::Time;
use roundelay::failure::{FailedItem, ItemEnd};
use roundelay::guard::{Guard, IfRunning, Manual, Refusal};
use roundelay::ids::{Fence, TickNo};
use roundelay::ledger::{
    ChainFilter, Claim, ClaimId, ClaimRequest, Enrolled, FailureFilter, Finish, FinishRequest, Grant, Hint,
    LedgerError, LookAgain, Member, Move, NewChain, Plan, PlannedItem, SpawnedJob,
};
use roundelay::outcome::{LeftOut, Next, Verdict};

use super::differential_side::{Asked, GRID, Side};
use super::differential_verbs::{FailureVerb, JobVerb, Verb};
use super::{LEASE, end};
use crate::harness::{SLACK, chain};

impl Side {
    /// Carries out what may be asked for again.
    async fn ask(&mut self, asked: Asked) -> Result<String, LedgerError> {
        self.asked = Some(asked.clone());
        match asked {
            Asked::Enroll(chains) => {
                let enrolled = self.ledger.enroll(chains).await?;
                let hints = enrolled.iter().filter_map(|enrolled| match enrolled {
                    Enrolled::Created(hint) => Some(hint.sent()),
                    _ => None,
                });
                self.seen.created.extend(hints);
                Ok(format!("{enrolled:?}"))
            }
            Asked::Claim(request) => {
                let mut claim = self.ledger.claim(request.clone()).await?;
                if let Claim::Granted(Grant { refused: Some(Refusal::Cooldown { since, .. }), .. }) = &mut claim {
                    // It counts from a point of the grid, to the moment of the claim.
                    *since = GRID * u32::try_from(since.as_millis() / GRID.as_millis()).unwrap();
                }
                if let Claim::Granted(grant) = &claim {
                    self.seen.granted.push((request.hint.clone(), grant.fence, grant.batch.is_some()));
                }
                Ok(format!("{claim:?}"))
            }
            Asked::Finish(request) => {
                let finish = self.ledger.finish(request).await?;
                if let Finish::Applied(messages) = &finish {
                    self.seen.sent.extend(messages.iter().map(Hint::sent));
                }
                Ok(format!("{finish:?}"))
            }
        }
    }

    /// What a verb asks for that may be asked for again.
    pub async fn asked_by(&mut self, verb: Verb, key: &str) -> Result<Option<Asked>, LedgerError> {
        let now = self.now();
        Ok(match verb {
            Verb::Enroll { once, revive, only_new, other, manual } => {
                let new = NewChain {
                    once,
                    revive,
                    only_new,
                    queue: if other { "other" } else { "work" }.into(),
                    owner: Some(if other { "bob" } else { "ann" }.into()),
                    schedule: other.then(|| "every 5m".into()),
                    priority: other.then_some(3),
                    depth: u32::from(other),
                    manual: Manual {
                        if_running: [IfRunning::Refuse, IfRunning::After, IfRunning::Beside][usize::from(manual % 3)],
                        force: manual % 2 == 0,
                    },
                    ..chain(key, now)
                };
                // Sometimes twice in one call, the second time with another payload.
                let again = NewChain { payload: "{\"n\":2}".into(), ..new.clone() };
                Some(Asked::Enroll(if manual % 4 == 0 { vec![new, again] } else { vec![new] }))
            }
            Verb::Claim { takeover, cooldown, unprepared } => {
                let mut messages = self.messages().await?;
                messages.sort_by_key(|hint| self.place(hint));
                let hint = messages.into_iter().rfind(|hint| hint.key == key || !hint.parent.is_none());
                let Some(hint) = hint.or_else(|| self.seen.hints.last().cloned()) else { return Ok(None) };
                self.seen.hints.push(hint.clone());
                let guard =
                    Guard { cooldown: if cooldown { GRID * 3 / 2 } else { Duration::ZERO }, ..Guard::default() };
                let prepared = if unprepared { 0 } else { 9 };
                Some(Asked::Claim(ClaimRequest { takeover, guard, prepared, ..self.request(hint) }))
            }
            Verb::Finish { next, stale, asks } => {
                let granted = self.granted(stale);
                granted.map(|(hint, fence, batch)| Asked::Finish(finish(hint, *fence, *batch, now, next, asks)))
            }
            Verb::Again => self.asked.clone().map(|asked| match asked {
                Asked::Claim(request) => Asked::Claim(ClaimRequest { again: true, session: self.session, ..request }),
                other => other,
            }),
            _ => None,
        })
    }

    /// Carries out a verb. The text that comes back has all of the ledger's answer.
    pub async fn act(&mut self, verb: Verb, key: &str) -> Result<String, LedgerError> {
        let ledger = self.ledger.clone();
        let now = self.now();
        let key_of = || key.to_owned();
        let one = || ChainFilter { kind: Some("sync".into()), key: Some(key.into()), ..ChainFilter::default() };
        let none = || Ok(String::new());
        match verb {
            Verb::Enroll { .. } | Verb::Claim { .. } | Verb::Finish { .. } | Verb::Again => {
                match self.asked_by(verb, key).await? {
                    Some(asked) => self.ask(asked).await,
                    None => none(),
                }
            }
            Verb::Mark { before } => {
                let Some(sent) = self.sent(before) else { return none() };
                ledger.mark_sent(sent);
                ledger.flush().await.map(|()| String::new())
            }
            Verb::EnrolledSent { stale } => {
                let created = self.seen.created.len().checked_sub(if stale { 2 } else { 1 });
                let Some(sent) = created.map(|n| self.seen.created[n]) else { return none() };
                ledger.enrolled_sent(vec![sent], SLACK).await.map(|()| String::new())
            }
            Verb::GiveUp { stale } => {
                let Some((hint, fence, _)) = self.granted(stale) else { return none() };
                let claim = vec![ClaimId { epoch: hint.epoch, fence: *fence }];
                let held = ledger.hold(claim.clone()).await?;
                ledger.give_up(self.session, claim.clone()).await?;
                Ok(format!("{held:?} {:?}", ledger.hold(claim).await?))
            }
            Verb::Over => {
                // Whatever becomes of it, a worker goes on with another session.
                if ledger.end_session(self.session).await.is_err() {
                    ledger.end_session(self.session).await?;
                }
                self.session = ledger.begin_session("w".into(), LEASE).await?;
                none()
            }
            Verb::Order { order, which } => {
                let which = match which {
                    0 => ChainFilter { owner: Some("ann".into()), ..ChainFilter::default() },
                    1 => ChainFilter { queue: Some("work".into()), ..ChainFilter::default() },
                    _ => one(),
                };
                let matching = ledger.matching(which.clone(), order).await?;
                Ok(format!("{matching} {}", ledger.order_chains(which, order).await?))
            }
            Verb::Advance => Ok(format!("{:?}", ledger.advance("sync".into(), key_of(), SLACK).await?)),
            Verb::AdvanceAll => Ok(format!("{:?}", ledger.advance_all(one(), 2, SLACK).await?)),
            Verb::Reschedule => {
                let to = now + GRID * 3;
                let chains = ledger.chains("sync".into(), key_of()).await?;
                let moves = chains.iter().map(|chain| Move {
                    epoch: chain.hint.epoch,
                    tick: chain.hint.tick,
                    from: chain.hint.due,
                    nominal: to,
                    due: to,
                    watch_at: to + SLACK,
                });
                Ok(format!("{:?}", ledger.reschedule(moves.collect()).await?))
            }
            Verb::Depart => {
                let chains = ledger.chains("sync".into(), key_of()).await?;
                let gone = ledger.depart(chains.iter().map(|chain| chain.hint.epoch).collect()).await?;
                Ok(format!("{gone} {:?}", ledger.departed("sync".into(), vec![key_of()]).await?))
            }
            Verb::LookAgain => {
                let chains = ledger.chains("sync".into(), key_of()).await?;
                let looks = chains.iter().map(|chain| LookAgain {
                    epoch: chain.hint.epoch,
                    from: chain.watch_at,
                    to: now + SLACK,
                    looks: chain.looks + 1,
                    expected: Some(now),
                });
                Ok(format!("{:?}", ledger.look_again(looks.collect()).await?))
            }
            Verb::SetSchedule { known } => {
                let schedule = known.then(|| "every 5m".to_owned());
                Ok(format!("{:?}", ledger.set_schedule("sync".into(), key_of(), schedule).await?))
            }
            Verb::Ahead => {
                let Some(hint) = self.seen.hints.last() else { return none() };
                let hint = Hint { tick: TickNo(hint.tick.get() + 1_000), ..hint.clone() };
                Ok(format!("{:?}", ledger.claim(self.request(hint)).await?))
            }
            Verb::EndLeft => ledger.end_left(10).await.map(|()| String::new()),
            Verb::Job(verb) => self.job(verb, key, now).await,
            Verb::Failure(verb) => self.failure(verb, key, now).await,
            Verb::Cut { .. } | Verb::Pass { .. } | Verb::Reopen => none(),
        }
    }

    async fn job(&mut self, verb: JobVerb, key: &str, now: Time) -> Result<String, LedgerError> {
        let (ledger, id) = (&self.ledger, format!("job-{key}"));
        let (kind, key, body) = (|| String::from("sync"), || key.to_owned(), b"{}".to_vec());
        match verb {
            JobVerb::Keep => ledger.keep_job(id, body).await.map(|()| String::new()),
            JobVerb::Accept => {
                let spawned = vec![SpawnedJob { id, body }];
                let begun = NewChain { depth: 1, ..chain("found", now) };
                let failed = vec![FailedItem::new("part", "HTTP 500")];
                Ok(format!("{:?}", ledger.accept(kind(), key(), spawned, vec![begun], failed).await?))
            }
            JobVerb::Take => {
                let taken = ledger.take_jobs(0, now + GRID, 1).await?;
                Ok(format!("{:?}", taken.iter().map(|job| &job.body).collect::<Vec<_>>()))
            }
            JobVerb::Forget => ledger.forget_jobs(vec![id]).await.map(|()| String::new()),
            JobVerb::Quarantine => {
                ledger.quarantine("work".into(), "bad".into(), body, Some(id), now).await.map(|()| String::new())
            }
            JobVerb::Reserve => Ok(ledger.reserve(kind(), "one".into(), id, GRID * 5 / 2).await?),
            JobVerb::Release => ledger.release(kind(), "one".into(), id).await.map(|()| String::new()),
            JobVerb::TakeInHand => {
                ledger.take_in_hand(id.clone(), self.session).await?;
                Ok(format!("{:?}", ledger.hands(id, 1).await?))
            }
            JobVerb::OutOfHand => {
                ledger.out_of_hand(id.clone()).await?;
                Ok(format!("{:?}", ledger.hands(id, 1).await?))
            }
        }
    }

    async fn failure(&mut self, verb: FailureVerb, key: &str, now: Time) -> Result<String, LedgerError> {
        let ledger = &self.ledger;
        let (kind, key, id) = (|| String::from("sync"), || key.to_owned(), format!("item-{key}"));
        let which = || FailureFilter { kind: Some(kind()), key: Some(key()), ..FailureFilter::default() };
        let plan = async |plan: Plan| {
            let failures = ledger.failures_of(kind(), key()).await?;
            let planned = failures.into_iter().filter_map(|failure| {
                let seen = failure.next_retry_at?;
                let mut plan = plan.clone();
                // A job is for one part.
                if let Plan::Feed { job, .. } = &mut plan
                    && failure.item != "us"
                {
                    job.id = format!("{id}-{}", failure.item);
                }
                Some(PlannedItem { kind: kind(), key: key(), item: failure.item, seen, plan })
            });
            Ok(format!("{:?}", ledger.plan_items(planned.collect()).await?))
        };
        match verb {
            FailureVerb::Record { permanent, whole, coded } => {
                let item = FailedItem {
                    permanent,
                    code: coded.then(|| "rate_limited".into()),
                    next_retry_at: (!permanent && !whole).then_some(now + GRID),
                    ..FailedItem::new(if whole { "" } else { "us" }, "HTTP 404")
                };
                ledger.record_failure(kind(), key(), item, now).await.map(|()| String::new())
            }
            FailureVerb::Retry => Ok(format!("{:?}", ledger.retry_failed(which()).await?)),
            FailureVerb::Drop => Ok(format!("{:?}", ledger.drop_failed(which()).await?)),
            FailureVerb::Wait => plan(Plan::Wait(now + GRID * 2)).await,
            FailureVerb::GiveUp => plan(Plan::GiveUp).await,
            FailureVerb::Feed => {
                let job = SpawnedJob { id: id.clone(), body: b"{}".to_vec() };
                plan(Plan::Feed { job, until: now + GRID * 2 }).await
            }
            FailureVerb::Hold => Ok(format!("{:?}", ledger.hold_item(id, GRID / 2).await?)),
            FailureVerb::PutOff => ledger.put_off_item(id, now + GRID * 2).await.map(|()| String::new()),
            FailureVerb::End { worked } => {
                let end = match worked {
                    true => ItemEnd::Worked,
                    false => {
                        ItemEnd::Failed(FailedItem { next_retry_at: Some(now + GRID), ..FailedItem::new("us", "no") })
                    }
                };
                ledger.end_item(id, end, now).await.map(|()| String::new())
            }
        }
    }
}

fn finish(hint: &Hint, fence: Fence, from_batch: bool, now: Time, next: u8, asks: u8) -> FinishRequest {
    let due = now + GRID;
    let is_member = !hint.parent.is_none();
    let (next, verdict) = match next {
        0 => (Next::End, Verdict::Retired),
        1 => (Next::Attempt { attempt: hint.attempt + 1, due }, Verdict::Retried),
        2 => (Next::Snooze { due: now }, Verdict::Snoozed),
        3 if !is_member => (Next::Gather, Verdict::FannedOut),
        4 if is_member => (Next::End, Verdict::Failed),
        _ if is_member => (Next::End, Verdict::Done),
        4 => (Next::Tick { nominal: due, due }, Verdict::Failed),
        // At the same moment: only the number tells these ticks apart.
        5 | 6 => (Next::Tick { nominal: now, due: now }, Verdict::Done),
        _ => (Next::Tick { nominal: due, due }, Verdict::Done),
    };
    let member = |n: u8| Member {
        kind: "part".into(),
        key: n.to_string(),
        queue: "work".into(),
        payload: "{}".into(),
        due: now,
        depth: 1,
    };
    let asks_for = |bit: u8| asks & bit != 0;
    FinishRequest {
        slack: SLACK,
        ran: !asks_for(1) || verdict == Verdict::Done,
        carry: asks_for(2).then(|| format!("\"carry {asks}\"")),
        learned: asks_for(128).then(|| vec![0, asks, 255]),
        parent: hint.parent,
        from_batch,
        members: if next == Next::Gather { vec![member(1), member(2)] } else { Vec::new() },
        chains: if asks_for(4) { vec![NewChain { depth: 1, ..chain("found", due) }] } else { Vec::new() },
        spawned: if asks_for(8) { vec![SpawnedJob { id: "job-a".into(), body: b"{}".to_vec() }] } else { Vec::new() },
        failed: if asks_for(16) { vec![FailedItem::new("us", "HTTP 503"); 2] } else { Vec::new() },
        left_out: LeftOut {
            overlapped: u32::from(asks / 32 % 2),
            misfired: u32::from(asks / 64 % 2),
            excluded: u32::from(asks / 16 % 2),
            ..LeftOut::default()
        },
        ..end(hint, fence, now, next, verdict)
    }
}
