//! Quotas: how many jobs of a tenant run at the same time, over all workers.
//!
//! A job whose tenant has a quota starts with a *seat*, which the ledger gives out and the worker gives back when the run
//! has ended. Seats go with their session, so a worker that has died keeps none. Of the jobs of a tenant that wait for a
//! seat here, one asks the ledger; a run that ends here gives its seat to that one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use roundelay_ledger::Seat as Place;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use crate::life::Life;
use crate::patient::PatientLedger;
use crate::vitals::Vitals;

/// How long after a request for a seat that was in vain the next one follows: a run on another worker may have ended.
const AGAIN: Duration = Duration::from_millis(100);

type QueueAndTenant = (Arc<str>, Arc<str>);

/// The seats that this worker has taken.
pub(super) struct Seats {
    ledger: PatientLedger,
    life: Life,
    /// How many seats were asked for: numbers them.
    given: AtomicI64,
    /// Of each queue and tenant of which a job here has a seat, or waits for one.
    of: Mutex<HashMap<QueueAndTenant, Arc<OfTenant>>>,
}

#[derive(Default)]
struct OfTenant {
    /// Of those that wait, one asks the ledger.
    turn: tokio::sync::Mutex<()>,
    free: Mutex<Free>,
    notify: Notify,
}

#[derive(Default)]
struct Free {
    /// Whether a job waits that would take a seat.
    waits: bool,
    /// A seat for that job, and the quota for which it was given out.
    seat: Option<(Place, u32)>,
}

/// Leave for one more job of a tenant to run, given back when it is dropped.
pub(crate) struct Seat {
    seats: Arc<Seats>,
    of: Arc<OfTenant>,
    place: Place,
    most: u32,
}

impl Seats {
    pub(super) fn new(ledger: PatientLedger, life: Life) -> Arc<Self> {
        Arc::new(Self { ledger, life, given: AtomicI64::new(0), of: Mutex::default() })
    }

    /// Waits for a seat of a tenant whose quota is `most`, which may change meanwhile; nothing when there is none.
    pub(super) async fn take(
        self: &Arc<Self>,
        (queue, tenant): (&Arc<str>, &Arc<str>),
        vitals: &Vitals,
        most: impl Fn() -> Option<u32>,
    ) -> Option<Seat> {
        most()?;
        let of = self.of.lock().entry((queue.clone(), tenant.clone())).or_default().clone();
        let _turn = of.turn.lock().await;
        of.free.lock().waits = true;
        let _waits = Waits { seats: self, place: (queue, tenant), of: &of };
        loop {
            let most = most()?;
            let session = vitals.term().await.session();
            let handed_on = of.free.lock().seat.take();
            let seat = |place| Seat { seats: self.clone(), of: of.clone(), place, most };
            match handed_on {
                Some((place, quota)) if (place.session, quota) == (session, most) => return Some(seat(place)),
                // It was given out for another quota, or is gone with its session.
                Some((place, _)) => self.give_back(place),
                None => {}
            }
            let number = self.given.fetch_add(1, Ordering::Relaxed);
            let place = Place { queue: queue.to_string(), tenant: tenant.to_string(), session, number };
            if self.asks(place.clone(), most).await == Ok(Some(true)) {
                return Some(seat(place));
            }
            // When no run ends here meanwhile, one may have ended on another worker.
            let _ = timeout(AGAIN, of.notify.notified()).await;
        }
    }

    /// Asks the ledger, in a task that outlives the job: what the ledger gives to a job that has gone is given back.
    fn asks(self: &Arc<Self>, place: Place, most: u32) -> oneshot::Receiver<Option<bool>> {
        let (sender, answer) = oneshot::channel();
        let seats = self.clone();
        tokio::spawn(self.life.bind(async move {
            let ask = || seats.ledger.take_seat(place.clone(), most);
            let taken = seats.ledger.retry_until_stopped("take a seat", ask).await;
            if sender.send(taken).is_err() && taken == Some(true) {
                seats.give_back(place);
            }
        }));
        answer
    }

    fn give_back(self: &Arc<Self>, place: Place) {
        let seats = self.clone();
        tokio::spawn(self.life.bind(async move {
            let back = || seats.ledger.return_seat(place.clone());
            // When the worker stops, the seat goes with the session.
            let _ = seats.ledger.retry_until_stopped("give a seat back", back).await;
            seats.forget(&place.queue.into(), &place.tenant.into());
        }));
    }

    /// Forgets a tenant of which no job has a seat or waits for one: then only the map knows it.
    fn forget(&self, queue: &Arc<str>, tenant: &Arc<str>) {
        let (mut of, place) = (self.of.lock(), (queue.clone(), tenant.clone()));
        if of.get(&place).is_some_and(|of| Arc::strong_count(of) == 1) {
            of.remove(&place);
        }
    }
}

/// A job waits for a seat, until this is dropped.
struct Waits<'a> {
    seats: &'a Arc<Seats>,
    place: (&'a Arc<str>, &'a Arc<str>),
    of: &'a OfTenant,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut free = self.of.free.lock();
        free.waits = false;
        if let Some((place, _)) = free.seat.take() {
            self.seats.give_back(place);
        }
        drop(free);
        self.seats.forget(self.place.0, self.place.1);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut free = self.of.free.lock();
        if free.waits && free.seat.is_none() {
            free.seat = Some((self.place.clone(), self.most));
            self.of.notify.notify_one();
        } else {
            self.seats.give_back(self.place.clone());
        }
    }
}
