//! Fair throttles: tenants have turns, in one worker and in several.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::pacing::fair::{Configured, ShareSettings, Shares, Tenant};
use roundelay_model::pacing::key::KeyPath;
use roundelay_model::pacing::{ThrottleScope, ThrottleSettings};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{Instant, sleep, timeout};

use super::tests::{ledger, settings, want};
use super::{Throttle, Throttles, Want};
use crate::telemetry::Telemetry;

const WEIGHTS: [(&str, u32); 3] = [("a", 1), ("b", 2), ("c", 5)];

fn fair(allow: u32, secs: u64, scope: ThrottleScope) -> BTreeMap<String, ThrottleSettings> {
    let fair = Some(KeyPath::parse("owner").unwrap());
    [("t".to_owned(), ThrottleSettings { fair, ..settings(allow, secs, 1, scope) })].into()
}

fn shares() -> Arc<Shares> {
    let tenants = WEIGHTS.map(|(name, weight)| (name.to_owned(), ShareSettings { weight, most: None })).into();
    Arc::new(Shares::new(Configured { tenants, ..Configured::default() }))
}

/// The same throttle in so many workers of one ledger.
fn workers<const N: usize>(settings: &BTreeMap<String, ThrottleSettings>, shares: &Arc<Shares>) -> [Arc<Throttle>; N] {
    let ledger = ledger();
    [(); N].map(|()| Throttles::new(settings, &ledger, &Telemetry::default(), shares, true).get("t").unwrap())
}

fn of(tenant: &str, priority: i32) -> Want {
    Want { tenant: tenant.into(), ..want(priority, 0) }
}

/// So many jobs wait for each of these, and each start is followed by another job. Answers the starts.
fn flood(throttle: &Arc<Throttle>, wants: &[Want], jobs: usize) -> UnboundedReceiver<(Tenant, i32)> {
    let (started, starts) = mpsc::unbounded_channel();
    for want in wants.iter().flat_map(|want| std::iter::repeat_n(want, jobs)) {
        let (throttle, want, started) = (throttle.clone(), want.clone(), started.clone());
        tokio::spawn(async move {
            loop {
                if throttle.slot("", want.clone()).await.start().await
                    && started.send((want.tenant.clone(), want.priority)).is_err()
                {
                    return;
                }
            }
        });
    }
    starts
}

async fn count(starts: &mut UnboundedReceiver<(Tenant, i32)>, many: u32) -> BTreeMap<(String, i32), u32> {
    let mut counts = BTreeMap::new();
    for _ in 0..many {
        let (tenant, priority) = starts.recv().await.unwrap();
        *counts.entry((tenant.to_string(), priority)).or_default() += 1;
    }
    counts
}

#[tokio::test(start_paused = true)]
async fn starts_are_shared_by_weight_and_another_weight_counts_at_once() {
    for scope in [ThrottleScope::Fleet, ThrottleScope::Worker] {
        let shares = shares();
        let [throttle] = workers(&fair(10, 1, scope), &shares);
        let mut starts = flood(&throttle, &WEIGHTS.map(|(name, _)| of(name, 0)), 20);
        count(&mut starts, 16).await;
        let counts = count(&mut starts, 800).await;
        for (name, weight) in WEIGHTS {
            let had = counts[&(name.to_owned(), 0)];
            assert!(had.abs_diff(weight * 100) <= weight * 2, "{counts:?}");
        }
        shares.take_over(Configured::default());
        let counts = count(&mut starts, 600).await;
        assert!(counts.values().all(|had| had.abs_diff(200) <= 4), "{counts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn priority_goes_first_and_within_it_tenants_have_turns() {
    let [throttle] = workers(&fair(10, 1, ThrottleScope::Fleet), &shares());
    let wants = [of("a", 1), of("b", 1), of("a", 0), of("c", 0)];
    let mut starts = flood(&throttle, &wants, 10);
    count(&mut starts, 16).await;
    let counts = count(&mut starts, 960).await;
    let had = |tenant: &str, priority| f64::from(counts[&(tenant.to_owned(), priority)]);
    // The lower priority has its least share, one slot in eight.
    for (had, wanted) in [(had("a", 1), 280.0), (had("b", 1), 560.0), (had("a", 0), 20.0), (had("c", 0), 100.0)] {
        assert!((had - wanted).abs() <= f64::max(2.0, wanted * 0.02), "{counts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn run_that_has_begun_goes_before_other_tenants_and_counts_for_its_own() {
    let [throttle] = workers(&fair(1, 1, ThrottleScope::Fleet), &Arc::default());
    let mut starts = flood(&throttle, &[of("a", 0), of("b", 0)], 20);
    count(&mut starts, 4).await;
    for _ in 0..10 {
        let began = Instant::now();
        while !throttle.slot("", Want { begun: true, ..of("a", 0) }).await.start().await {}
        assert!(began.elapsed() <= Duration::from_millis(1_200), "{:?}", began.elapsed());
    }
    // What was in line before the ten, and ten that b has had less.
    let mut later = Vec::new();
    while let Ok((tenant, _)) = starts.try_recv() {
        later.push(tenant);
    }
    let counts = count(&mut starts, 8).await;
    assert_eq!(counts, BTreeMap::from([(("b".to_owned(), 0), 8)]), "after {later:?}");
}

/// A flood lies in two workers. Whichever of them has the job of another tenant: that starts next.
#[tokio::test(start_paused = true)]
async fn newcomer_has_the_next_slot_of_the_fleet() {
    let spacing = Duration::from_millis(1_000);
    for first in [0, 1] {
        let all: [_; 2] = workers(&fair(60, 60, ThrottleScope::Fleet), &shares());
        let overdue = || Want { due: Time::from_millis(0), ..of("a", 0) };
        let _floods = all.each_ref().map(|throttle| flood(throttle, &[overdue()], 20));
        sleep(Duration::from_secs(10)).await;
        for n in 0..20 {
            let throttle = &all[(first + n) % 2];
            let since = Instant::now();
            // It is due just now.
            let due = throttle.ledger.now();
            let starts = async { while !throttle.slot("", Want { due, ..of("b", 0) }).await.start().await {} };
            // A slot for the flood may have been granted a little before it opens.
            let started = timeout(spacing + Duration::from_millis(250), starts).await;
            assert!(started.is_ok(), "job {n} did not have the next slot, after {:?}", since.elapsed());
            sleep(Duration::from_millis(2_900 + 37 * n as u64)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_tenants_have_had_is_forgotten_when_none_waits() {
    let [throttle] = workers(&fair(10, 1, ThrottleScope::Fleet), &shares());
    let all = (0..300).map(|n| {
        let throttle = throttle.clone();
        tokio::spawn(async move { throttle.slot("", of(&format!("tenant {}", n % 100), 0)).await.start().await })
    });
    futures_util::future::join_all(all).await;
    sleep(Duration::from_secs(1)).await;
    let line = throttle.lines().get("").cloned().unwrap();
    assert!(line.remembers_nothing(), "of tenants without work nothing is kept");
}
