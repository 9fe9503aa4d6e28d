//! The part of a chain that its runs change, apart from the chain while it is hot.
//!
//! A chain is hot from its claim until its successor has been sent. Then a row of `hot_chains` stands for five of
//! its columns, and the chain's own `holder` is 0. Sleeping chains have no such row, so the table is small,
//! and many runs write to the same few pages of it; each chain lies on a page of its own among very many, which
//! is written once in a tick instead of three times. `chains_now` shows every chain as it is.
//!
//! Every other statement that changes one of these columns cools the chains first, and then finds all in one place. Two
//! need not: a chain that waits for its batch is never hot, so the last member's end may write its `sent`; and the note
//! that a chain's first message was sent is of no use any more once the chain has been claimed.

use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, Fence, TickNo};
use rusqlite::params;

use super::store::{Result, Store};
use crate::chain::Sent;

impl Store {
    /// Writes the columns of a chain that a run changes, and makes the chain hot.
    pub(super) fn heat(
        &mut self,
        epoch: Epoch,
        fence: Fence,
        holder: i64,
        sent: bool,
        (tick, start): (TickNo, Time),
    ) -> Result<()> {
        let replace = "REPLACE INTO hot_chains (epoch, fence, holder, sent, started_tick, last_start)
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let values = params![epoch.get(), fence.get(), holder, sent, tick.get(), start.as_millis()];
        self.connection.prepare_cached(replace)?.execute(values)?;
        Ok(())
    }

    /// Writes into those chains among `epochs`, a query with one column, that are hot what `hot_chains` says of
    /// them, so that a statement can change them as they are.
    pub(super) fn fold_hot(&mut self, epochs: &str, arguments: impl rusqlite::Params + Copy) -> Result<()> {
        let hot = format!("(SELECT h.epoch FROM ({epochs}) AS these CROSS JOIN hot_chains h ON h.epoch = these.epoch)");
        let write = format!(
            "UPDATE chains SET (fence, holder, sent, started_tick, last_start) =
                 (SELECT fence, holder, sent, started_tick, last_start FROM hot_chains h
                  WHERE h.epoch = chains.epoch)
             WHERE epoch IN {hot}"
        );
        if self.connection.prepare_cached(&write)?.execute(arguments)? > 0 {
            let delete = format!("DELETE FROM hot_chains WHERE epoch IN {hot}");
            self.connection.prepare_cached(&delete)?.execute(arguments)?;
        }
        Ok(())
    }

    /// Cools all chains.
    pub(super) fn fold_all_hot(&mut self) -> Result<()> {
        self.fold_hot("SELECT epoch FROM hot_chains", [])
    }

    pub fn mark_sent(&mut self, s: Sent) -> Result<()> {
        let place = params![s.epoch.get(), s.tick.get(), s.attempt, s.due.as_millis()];
        let cool = "DELETE FROM hot_chains WHERE epoch = ?1 AND holder = 0 AND sent = 0 AND EXISTS
                        (SELECT 1 FROM chains WHERE epoch = ?1 AND tick = ?2 AND attempt = ?3 AND due = ?4)";
        if self.connection.prepare_cached(cool)?.execute(place)? == 0 {
            let mark = "UPDATE chains SET sent = 1
                        WHERE epoch = ?1 AND tick = ?2 AND attempt = ?3 AND due = ?4 AND sent = 0";
            self.connection.prepare_cached(mark)?.execute(place)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;
    use rusqlite::Connection;

    use super::*;
    use crate::catch_up::LookAgain;
    use crate::chain::{Hint, Kinds};
    use crate::claim::{Claim, ClaimId, ClaimRequest};
    use crate::decide::Enroll;
    use crate::enroll::NewChain;
    use crate::finish::{FinishRequest, Member};
    use crate::look::{ListFilter, Move};
    use crate::orders::{ChainFilter, ChainOrder};
    use crate::reports::ChainView;
    use crate::sqlite::{configure, schema};
    use roundelay_model::clock::Entropy;
    use roundelay_model::guard::Guard;
    use roundelay_model::outcome::{Next, Verdict};

    const BEGIN: Time = Time::from_millis(1_800_000_000_000);
    const SLACK: Duration = Duration::from_secs(30);
    const KEYS: [&str; 3] = ["a", "b", "c"];

    /// A verb on one of the chains.
    #[derive(Clone, Copy, Debug)]
    enum Verb {
        Claim { by: u64 },
        Finish { next: u8, stale: bool },
        Mark { stale: bool },
        GiveUp { stale: bool },
        Over,
        Steer(ChainOrder),
        Advance,
        Reschedule,
        Depart,
        LookAgain,
        SetSchedule { known: bool },
        Ahead,
        Enroll,
        EndLeft,
        Pass { secs: u64 },
    }

    fn verbs() -> impl Strategy<Value = Verb> {
        let order = prop::sample::select(vec![
            ChainOrder::Pause,
            ChainOrder::Resume,
            ChainOrder::Retire,
            ChainOrder::Recover,
            ChainOrder::RecoverAll,
        ]);
        prop_oneof![
            6 => (0..90_u64).prop_map(|by| Verb::Claim { by }),
            6 => (0..6_u8, prop::bool::weighted(0.1)).prop_map(|(next, stale)| Verb::Finish { next, stale }),
            4 => prop::bool::weighted(0.2).prop_map(|stale| Verb::Mark { stale }),
            2 => any::<bool>().prop_map(|stale| Verb::GiveUp { stale }),
            2 => Just(Verb::Over),
            2 => order.prop_map(Verb::Steer),
            1 => Just(Verb::Advance),
            1 => Just(Verb::Reschedule),
            1 => Just(Verb::Depart),
            1 => Just(Verb::LookAgain),
            1 => any::<bool>().prop_map(|known| Verb::SetSchedule { known }),
            1 => Just(Verb::Ahead),
            1 => Just(Verb::Enroll),
            1 => Just(Verb::EndLeft),
            3 => (0..100_u64).prop_map(|secs| Verb::Pass { secs }),
        ]
    }

    fn store() -> Store {
        let mut connection = Connection::open_in_memory().unwrap();
        configure(&connection).unwrap();
        // The same numbers in both.
        schema::migrate(&mut connection, &Entropy::seeded(1), BEGIN).unwrap();
        Store::new(connection, Arc::default())
    }

    fn new_chain(key: &str, now: Time) -> NewChain {
        NewChain {
            kind: "sync".into(),
            key: key.into(),
            queue: "work".into(),
            payload: "{}".into(),
            priority: None,
            nominal: now,
            due: now,
            watch_at: now + SLACK,
            revive: true,
            once: false,
            manual: Default::default(),
            owner: Some("owner".into()),
            schedule: None,
            keep_schedule: false,
            only_new: false,
            forms: Vec::new(),
            depth: 0,
        }
    }

    /// What has been seen of a chain's runs so far.
    #[derive(Default)]
    struct Seen {
        hints: Vec<Hint>,
        /// With whether a batch had been waited for.
        fences: Vec<(Hint, Fence, bool)>,
        sent: Vec<Sent>,
        /// The worker's session.
        session: i64,
    }

    fn finish((hint, fence, from_batch): &(Hint, Fence, bool), now: Time, next: u8) -> FinishRequest {
        let due = now + Duration::from_secs(20);
        let next = match next {
            0 => Next::End,
            1 => Next::Attempt { attempt: hint.attempt + 1, due },
            2 => Next::Snooze { due: now },
            3 if hint.parent.is_none() => Next::Gather,
            _ if !hint.parent.is_none() => Next::End,
            _ => Next::Tick { nominal: due, due },
        };
        let member = |n: u8| Member {
            kind: "part".into(),
            key: n.to_string(),
            queue: "work".into(),
            payload: "{}".into(),
            due: now,
            depth: 0,
        };
        let members = if next == Next::Gather { vec![member(1), member(2)] } else { Vec::new() };
        FinishRequest {
            epoch: hint.epoch,
            tick: hint.tick,
            attempt: hint.attempt,
            fence: *fence,
            at: now,
            next,
            verdict: Verdict::Done,
            reason: None,
            code: None,
            slack: SLACK,
            spawned: Vec::new(),
            failed: Vec::new(),
            ran: true,
            left_out: Default::default(),
            carry: None,
            learned: None,
            parent: hint.parent,
            from_batch: *from_batch,
            members,
            chains: Vec::new(),
            progress: None,
        }
    }

    /// Carries out a verb; answers with all that can be seen of it.
    fn act(store: &mut Store, seen: &mut Seen, verb: Verb, key: &str, now: Time) -> String {
        let which = ChainFilter { kind: Some("sync".into()), key: Some(key.into()), ..ChainFilter::default() };
        let pick = |stale: bool, count: usize| count.checked_sub(if stale { 2 } else { 1 });
        match verb {
            Verb::Claim { by } => {
                // Of the chain, or of one of its members.
                let members = store.messages(&["work".into()], &kinds(), Epoch::NONE, 100).unwrap();
                let hint = members.into_iter().rfind(|hint| hint.key == key || !hint.parent.is_none());
                let Some(hint) = hint.or_else(|| seen.hints.last().cloned()) else { return String::new() };
                let claim = store.carry_out(&request(hint.clone(), by, seen.session), now).unwrap();
                if let Claim::Granted(grant) = &claim {
                    seen.fences.push((hint.clone(), grant.fence, grant.batch.is_some()));
                }
                seen.hints.push(hint);
                format!("{claim:?}")
            }
            Verb::Finish { next, stale } => {
                let Some(n) = pick(stale, seen.fences.len()) else { return String::new() };
                let finished = store.carry_out(&finish(&seen.fences[n], now, next), now).unwrap();
                if let crate::Finish::Applied(messages) = &finished {
                    seen.sent.extend(messages.iter().map(Hint::sent));
                }
                format!("{finished:?}")
            }
            Verb::Mark { stale } => {
                let Some(n) = pick(stale, seen.sent.len()) else { return String::new() };
                store.mark_sent(seen.sent[n]).unwrap();
                String::new()
            }
            Verb::GiveUp { stale } => {
                let Some(n) = pick(stale, seen.fences.len()) else { return String::new() };
                let (hint, fence, _) = &seen.fences[n];
                let claim = [ClaimId { epoch: hint.epoch, fence: *fence }];
                let held = store.hold(&claim).unwrap();
                store.give_up(seen.session, &claim, now).unwrap();
                format!("{held:?} {:?}", store.hold(&claim).unwrap())
            }
            Verb::Over => {
                let ended = store.end_sessions(&[(seen.session, None)]).unwrap();
                seen.session = store.begin_session("w", SLACK, "", now).unwrap();
                format!("{ended:?}")
            }
            Verb::Steer(order) => format!("{:?}", store.order_chains(&which, order, now).unwrap()),
            Verb::Advance => format!("{:?}", store.advance("sync", key, now, SLACK).unwrap()),
            Verb::Reschedule => {
                let chains = store.chains("sync", key).unwrap();
                let to = now + Duration::from_secs(70);
                let one = |hint: &Hint| Move {
                    epoch: hint.epoch,
                    tick: hint.tick,
                    from: hint.due,
                    nominal: to,
                    due: to,
                    watch_at: to + SLACK,
                };
                let moves: Vec<Move> = chains.iter().map(|chain| one(&chain.hint)).collect();
                format!("{:?}", store.reschedule(&moves).unwrap())
            }
            Verb::Depart => {
                let epochs: Vec<Epoch> = store.chains("sync", key).unwrap().iter().map(|c| c.hint.epoch).collect();
                format!("{:?}", store.depart(&epochs).unwrap())
            }
            Verb::LookAgain => {
                let look = |of: &ChainView| LookAgain {
                    epoch: of.hint.epoch,
                    from: of.watch_at,
                    to: now + SLACK,
                    looks: of.looks + 1,
                    expected: Some(now),
                };
                let looks: Vec<LookAgain> = store.chains("sync", key).unwrap().iter().map(look).collect();
                format!("{:?}", store.look_again(&looks).unwrap())
            }
            Verb::SetSchedule { known } => {
                format!("{:?}", store.set_schedule("sync", key, known.then_some("every 5m")).unwrap())
            }
            // A message that is ahead of the ledger: the chain is quarantined, running or not.
            Verb::Ahead => {
                let Some(hint) = seen.hints.last() else { return String::new() };
                let hint = Hint { tick: TickNo(hint.tick.get() + 1_000), ..hint.clone() };
                format!("{:?}", store.carry_out(&request(hint, 61, seen.session), now).unwrap())
            }
            Verb::Enroll => format!("{:?}", store.carry_out(&Enroll(vec![new_chain(key, now)]), now).unwrap()),
            Verb::EndLeft => {
                let any = store.any_left().unwrap();
                store.end_left(now, 10).unwrap();
                format!("{any}")
            }
            Verb::Pass { .. } => String::new(),
        }
    }

    fn request(hint: Hint, by: u64, session: i64) -> ClaimRequest {
        let (takeover, again) = (by.is_multiple_of(5), by.is_multiple_of(7));
        ClaimRequest {
            hint,
            worker: "w".into(),
            session,
            again,
            takeover,
            guard: Guard::default(),
            recurs: true,
            prepared: 9,
            ahead: Duration::ZERO,
        }
    }

    fn kinds() -> Kinds {
        let all = vec![String::from("sync"), String::from("part")];
        Kinds { recurring: all.clone(), all }
    }

    /// All that can be seen of the chains.
    fn state(store: &Store, now: Time) -> String {
        let chains: Vec<_> = KEYS.iter().map(|key| store.chains("sync", key).unwrap()).collect();
        let messages = store.messages(&["work".into()], &kinds(), Epoch::NONE, 100).unwrap();
        let later = now + Duration::from_secs(1_000);
        let overdue = store.overdue("work", &kinds(), later, None, 100).unwrap();
        let late = store.late(later, &[], now, 100).unwrap();
        let listed = store.list(&ListFilter::default(), None, now, 100).unwrap();
        let census = store.census(now, SLACK).unwrap();
        let attempts = store.attempts(Fence::NONE, 1_000).unwrap();
        format!("{chains:#?} {messages:#?} {overdue:#?} {late:#?} {listed:#?} {census:#?} {attempts:#?}")
    }

    proptest! {
        // Each is up to 60 verbs, and after each everything is compared.
        #![proptest_config(ProptestConfig::with_cases(96))]

        /// Whatever verbs come, chains that are hot look the same as chains that are cooled at once.
        #[test]
        fn a_hot_chain_is_a_chain_like_any_other(verbs in prop::collection::vec((verbs(), 0..KEYS.len()), 1..60)) {
            let (mut hot, mut cool) = (store(), store());
            let (mut seen, mut also) = (Seen::default(), Seen::default());
            let mut now = BEGIN;
            seen.session = hot.begin_session("w", SLACK, "", now).unwrap();
            also.session = cool.begin_session("w", SLACK, "", now).unwrap();
            for key in KEYS {
                let chain = Enroll(vec![new_chain(key, now)]);
                prop_assert_eq!(hot.carry_out(&chain, now).unwrap(), cool.carry_out(&chain, now).unwrap());
            }
            for (verb, key) in verbs {
                if let Verb::Pass { secs } = verb {
                    now = now + Duration::from_secs(secs);
                }
                let answers = [
                    act(&mut hot, &mut seen, verb, KEYS[key], now),
                    act(&mut cool, &mut also, verb, KEYS[key], now),
                ];
                cool.fold_all_hot().unwrap();
                prop_assert_eq!(&answers[0], &answers[1], "{:?}", verb);
                prop_assert_eq!(state(&hot, now), state(&cool, now), "after {:?}", verb);
                let apart = "SELECT count(*) FROM hot_chains JOIN chains USING (epoch) WHERE chains.holder <> 0";
                let apart: i64 = hot.connection.query_row(apart, [], |row| row.get(0)).unwrap();
                prop_assert_eq!(apart, 0);
                let orphans = "SELECT count(*) FROM hot_chains WHERE epoch NOT IN (SELECT epoch FROM chains)";
                let orphans: i64 = hot.connection.query_row(orphans, [], |row| row.get(0)).unwrap();
                prop_assert_eq!(orphans, 0);
            }
        }
    }
}
