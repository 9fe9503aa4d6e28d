//! The places of unique jobs: at most one of a kind and key at a time.

use roundelay_config::{KindSettings, Unique, UniqueUntil};
use roundelay_ledger::{ChainState, ChainView};
use roundelay_model::job::{ChainRef, Envelope, run_id};
use roundelay_model::outcome::Verdict;
use roundelay_model::reason::{Class, Reason};

use crate::life::{Life, Point};
use crate::patient::PatientLedger;

pub(crate) struct UniquePlaces {
    pub(crate) ledger: PatientLedger,
    pub(crate) life: Life,
}

impl UniquePlaces {
    /// Gives up the place of what has ended as this, where its kind does not keep it longer. Answers whether the ledger
    /// knows.
    pub(crate) async fn end_place(&self, kind: &KindSettings, envelope: &Envelope, id: &str, end: Verdict) -> bool {
        let ends = |unique: Unique| match unique.until {
            UniqueUntil::Start => false,
            UniqueUntil::Finish => true,
            // Who asks again after a failure has not had it yet.
            UniqueUntil::Window => end != Verdict::Done,
        };
        if !kind.unique.is_some_and(ends) {
            return true;
        }
        let given = self.give_place(envelope, id).await;
        if given {
            self.life.reached(Point::PlaceGivenAfter).await;
        }
        given
    }

    /// Takes the place of a manual run as the only one of its kind and key; answers why not, if another has it. `lost`:
    /// another worker has begun this attempt before.
    pub(crate) async fn place_of_manual(
        &self,
        kind: &KindSettings,
        envelope: &Envelope,
        id: &str,
        lost: bool,
    ) -> Option<Reason> {
        let unique = kind.unique?;
        if unique.until == UniqueUntil::Start && (envelope.attempt > 1 || lost) {
            // The run has started, and so given its place up.
            return None;
        }
        let taken = self.place_taken(unique, envelope, id).await?;
        if taken.is_none() && unique.until == UniqueUntil::Start {
            self.give_place(envelope, id).await;
        }
        taken
    }

    /// Why a job cannot have its place, `Some(None)` when it has it, and `None` when the ledger could not be reached.
    pub(crate) async fn place_taken(&self, unique: Unique, envelope: &Envelope, id: &str) -> Option<Option<Reason>> {
        let reserve = || {
            let (kind, key) = (envelope.kind.clone(), envelope.key.clone());
            self.ledger.reserve(kind, key, id.to_owned(), unique.window)
        };
        let mut holder = self.ledger.retry_until_stopped("reserve a place", reserve).await?;
        if holder != id && unique.until == UniqueUntil::Finish && self.has_ended(&holder, envelope).await? {
            // The worker died between the run's end and giving its place up.
            let release = || self.ledger.release(envelope.kind.clone(), envelope.key.clone(), holder.clone());
            self.ledger.retry_until_stopped("give up the place of a run that has ended", release).await?;
            holder = self.ledger.retry_until_stopped("reserve a place", reserve).await?;
        }
        if holder == id {
            return Some(None);
        }
        let why = match unique.until {
            UniqueUntil::Window => "has come within `unique_for`",
            UniqueUntil::Finish | UniqueUntil::Start => "has not ended",
        };
        let reason = format!("unique: the job {holder} of the same key {why}");
        Some(Some(Reason::new(Class::Unique, reason)))
    }

    /// Whether a place is that of a manual run which has ended; `None` when the ledger could not be reached.
    pub(crate) async fn has_ended(&self, holder: &str, envelope: &Envelope) -> Option<bool> {
        let ledger = self.ledger.id();
        if ChainRef::epoch_and_tick(ledger, holder).is_none() {
            return Some(false);
        }
        let chains = || self.ledger.chains(envelope.kind.clone(), envelope.key.clone());
        let chains = self.ledger.retry_until_stopped("look at a manual run", chains).await?;
        let is_it = |chain: &&ChainView| chain.once && run_id(ledger, chain.hint.epoch, chain.hint.tick) == holder;
        Some(!chains.iter().find(is_it).is_some_and(|chain| chain.state != ChainState::Retired))
    }

    /// Whether the ledger knows now that another job may have the place.
    pub(crate) async fn give_place(&self, envelope: &Envelope, id: &str) -> bool {
        let release = || self.ledger.release(envelope.kind.clone(), envelope.key.clone(), id.to_owned());
        self.ledger.retry_until_stopped("give a place up", release).await.is_some()
    }
}
