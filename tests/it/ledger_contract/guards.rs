//! What guards look at, what a run hands on, owners, places of unique jobs, ticks brought forward.

use roundelay::guard::Refusal;
use roundelay::ids::{Fence, TickNo};
use roundelay::outcome::LeftOut;
use roundelay::schedule::Exclusions;

use super::*;

async fn guarded(ledger: &dyn Ledger, hint: &Hint, guard: Guard) -> ClaimRequest {
    ClaimRequest { guard, ..ask(ledger, hint, LEASE).await }
}

async fn refused(ledger: &dyn Ledger, hint: &Hint, guard: Guard) -> (Grant, Refusal) {
    match ledger.claim(guarded(ledger, hint, guard).await).await.unwrap() {
        Claim::Granted(grant) => {
            let refusal = grant.refused.unwrap_or_else(|| panic!("it may run: {grant:?}"));
            (grant, refusal)
        }
        other => panic!("not granted: {other:?}"),
    }
}

#[tokio::test]
async fn a_guard_is_asked_once_for_each_tick_and_a_refused_one_leaves_the_last_start_alone() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hour = Duration::from_secs(3_600);
        let tolerance = Guard { interval: hour, tolerance: Some(Duration::ZERO), ..Guard::default() };
        let first = begun(ledger, "a").await;
        let grant = match ledger.claim(guarded(ledger, &first, tolerance.clone()).await).await.unwrap() {
            Claim::Granted(grant) if grant.refused.is_none() => grant,
            other => panic!("the first is not too soon after another: {other:?}"),
        };
        let started = grant.at;
        let due = ledger.now();
        let retry = end(&first, grant.fence, due, Next::Attempt { attempt: 2, due }, Verdict::Retried);
        let second = written(ledger, retry).await;
        let Claim::Granted(again) = ledger.claim(guarded(ledger, &second, tolerance.clone()).await).await.unwrap()
        else {
            panic!()
        };
        assert_eq!(again.refused, None, "what has started is tried again whatever guards say");
        let next = finished(ledger, &second, again.fence, tick(ledger.now())).await;
        for _ in 0..2 {
            let (refused, Refusal::TooSoon { since, least }) = refused(ledger, &next, tolerance.clone()).await else {
                panic!("it is too soon")
            };
            assert_eq!((least, refused.last_start >= started), (hour, true));
            assert!(since < hour);
            let snooze = Next::Snooze { due: ledger.now() };
            let request = FinishRequest { ran: false, ..end(&next, refused.fence, due, snooze, Verdict::Snoozed) };
            written(ledger, request).await;
            let chain = ledger.chains("sync".into(), "a".into()).await.unwrap().remove(0);
            assert_eq!(chain.last_start, again.at, "as the last run that was let start has left it");
        }
    }
}

#[tokio::test]
async fn a_cooldown_counts_from_the_end_of_a_run_and_an_interval_of_its_own_goes_before_the_kinds() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hour = Duration::from_secs(3_600);
        let cooldown = Guard { cooldown: hour, ..Guard::default() };
        let hint = begun(ledger, "a").await;
        let grant = granted(ledger, &hint, LEASE).await;
        let next = finished(ledger, &hint, grant.fence, tick(ledger.now())).await;
        let (_, refusal) = refused(ledger, &next, cooldown).await;
        assert!(matches!(refusal, Refusal::Cooldown { least, .. } if least == hour), "{refusal:?}");

        let own = NewChain { schedule: Some(r#"{"every":"1ms"}"#.into()), ..chain("b", ledger.now()) };
        let Enrolled::Created(hint) = ledger.enroll(vec![own]).await.unwrap().remove(0) else { panic!() };
        let grant = granted(ledger, &hint, LEASE).await;
        assert_eq!(grant.schedule.as_deref(), Some(r#"{"every":"1ms"}"#));
        let next = finished(ledger, &hint, grant.fence, tick(ledger.now())).await;
        let tolerance = Guard { interval: hour, tolerance: Some(Duration::from_millis(1)), ..Guard::default() };
        let Claim::Granted(grant) = ledger.claim(guarded(ledger, &next, tolerance).await).await.unwrap() else {
            panic!()
        };
        assert_eq!(grant.refused, None, "its own interval is over");
    }
}

#[tokio::test]
async fn a_calendar_is_asked_by_the_wall_clock_and_a_chains_own_goes_before_the_kinds() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let all_day = Exclusions { quiet: vec!["00:00-24:00".parse().unwrap()], ..Exclusions::default() };
        let quiet = Guard { excluded: all_day, ..Guard::default() };
        let (_, refusal) = refused(ledger, &begun(ledger, "a").await, quiet.clone()).await;
        assert_eq!(refusal, Refusal::Excluded { until: None });
        let own = NewChain { schedule: Some(r#"{"quiet":[]}"#.into()), ..chain("b", ledger.now()) };
        let Enrolled::Created(hint) = ledger.enroll(vec![own]).await.unwrap().remove(0) else { panic!() };
        let Claim::Granted(grant) = ledger.claim(guarded(ledger, &hint, quiet).await).await.unwrap() else { panic!() };
        assert_eq!(grant.refused, None, "it has none of its own");
    }
}

#[tokio::test]
async fn an_enrolment_without_a_schedule_keeps_an_operators_one() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        begun(ledger, "a").await;
        let own = r#"{"every":"5m"}"#;
        assert!(ledger.set_schedule("sync".into(), "a".into(), Some(own.into())).await.unwrap());
        let kept = async || ledger.chains("sync".into(), "a".into()).await.unwrap().remove(0).schedule;
        let silent = || NewChain { keep_schedule: true, ..chain("a", now) };
        assert_eq!(ledger.enroll(vec![silent()]).await.unwrap(), [Enrolled::Unchanged]);
        let moved = NewChain { queue: "other".into(), ..silent() };
        assert_eq!(ledger.enroll(vec![moved]).await.unwrap(), [Enrolled::Updated { rescheduled: false }]);
        assert_eq!(kept().await.as_deref(), Some(own));
        assert_eq!(ledger.enroll(vec![chain("a", now)]).await.unwrap(), [Enrolled::Updated { rescheduled: true }]);
        assert_eq!(kept().await, None);
    }
}

#[tokio::test]
async fn the_carry_stays_until_a_new_one_and_left_out_occurrences_are_recorded() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let mut hint = begun(ledger, "a").await;
        for (carry, found) in
            [(Some("{\"page\":1}"), None), (None, Some("{\"page\":1}")), (Some("2"), Some("{\"page\":1}"))]
        {
            let grant = granted(ledger, &hint, LEASE).await;
            assert_eq!(grant.carry.as_deref(), found);
            let request = FinishRequest {
                carry: carry.map(Into::into),
                left_out: LeftOut { overlapped: 3, misfired: 4, excluded: 5, ..LeftOut::default() },
                ..end(&hint, grant.fence, ledger.now(), tick(ledger.now()), Verdict::Done)
            };
            hint = written(ledger, request).await;
        }
        let chain = ledger.chains("sync".into(), "a".into()).await.unwrap().remove(0);
        assert_eq!(chain.carry.as_deref(), Some("2"));
        let record = ledger.attempts(Fence::NONE, 10).await.unwrap().remove(0);
        assert_eq!((record.overlapped, record.misfired, record.excluded), (3, 4, 5));
    }
}

#[tokio::test]
async fn an_owner_s_word_is_for_its_chains_and_for_its_jobs_that_still_wait() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let of = |owner: &str| ChainFilter { owner: Some(owner.into()), ..ChainFilter::default() };
        let owned = |key: &str, owner: &str| NewChain { owner: Some(owner.into()), ..chain(key, ledger.now()) };
        ledger
            .enroll(vec![owned("a", "red"), owned("b", "red"), owned("c", "blue"), chain("d", ledger.now())])
            .await
            .unwrap();
        assert_eq!(ledger.owner("red".into()).await.unwrap(), ChainState::Active);
        assert_eq!(ledger.order_chains(of("red"), ChainOrder::Pause).await.unwrap(), 2);
        assert_eq!(ledger.owner("red".into()).await.unwrap(), ChainState::Paused);
        assert_eq!(ledger.owner("blue".into()).await.unwrap(), ChainState::Active);
        assert_eq!(ledger.order_chains(of("red"), ChainOrder::Resume).await.unwrap(), 2);
        assert_eq!(ledger.owner("red".into()).await.unwrap(), ChainState::Active);
        assert_eq!(ledger.order_chains(of("red"), ChainOrder::Retire).await.unwrap(), 2);
        assert_eq!(ledger.owner("red".into()).await.unwrap(), ChainState::Retired);
        assert_eq!(ledger.order_chains(of("red"), ChainOrder::Resume).await.unwrap(), 0);
        assert_eq!(ledger.owner("red".into()).await.unwrap(), ChainState::Retired, "gone is gone");
        let states: Vec<ChainState> = join_states(ledger, &["a", "b", "c", "d"]).await;
        use ChainState::{Active, Retired};
        assert_eq!(states, [Retired, Retired, Active, Active]);
    }
}

async fn join_states(ledger: &dyn Ledger, keys: &[&str]) -> Vec<ChainState> {
    let mut states = Vec::new();
    for key in keys {
        states.push(ledger.chains("sync".into(), (*key).into()).await.unwrap()[0].state);
    }
    states
}

#[tokio::test]
async fn one_job_of_a_key_has_the_place_until_it_gives_it_up_or_its_time_is_over() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hour = Duration::from_secs(3_600);
        let reserve = async |key: &str, id: &str, window| {
            ledger.reserve("sync".into(), key.into(), id.into(), window).await.unwrap()
        };
        assert_eq!(reserve("a", "1", hour).await, "1");
        assert_eq!(reserve("a", "1", hour).await, "1", "delivered again");
        assert_eq!(reserve("a", "2", hour).await, "1");
        assert_eq!(reserve("b", "2", hour).await, "2", "another key");
        ledger.release("sync".into(), "a".into(), "2".into()).await.unwrap();
        assert_eq!(reserve("a", "2", hour).await, "1", "only who has it gives it up");
        ledger.release("sync".into(), "a".into(), "1".into()).await.unwrap();
        assert_eq!(reserve("a", "2", Duration::ZERO).await, "2");
        until("the window is over", async || reserve("a", "3", hour).await == "3").await;
    }
}

#[tokio::test]
async fn a_tick_that_is_brought_forward_is_the_same_tick() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let advance = async |key: &str| ledger.advance("sync".into(), key.into(), SLACK).await.unwrap();
        let hint = begun(ledger, "a").await;
        assert_eq!(advance("a").await, None, "it is due");
        let grant = granted(ledger, &hint, LEASE).await;
        assert_eq!(advance("a").await, None, "it runs");
        let due = ledger.now() + LEASE;
        let next = finished(ledger, &hint, grant.fence, tick(due)).await;
        let sooner = advance("a").await.expect("it sleeps");
        assert_eq!((sooner.epoch, sooner.tick, sooner.attempt), (next.epoch, TickNo(2), 1));
        assert!(sooner.due < due);
        let grant = granted(ledger, &sooner, LEASE).await;
        assert_eq!(grant.nominal, due, "its place in the schedule stays");
        let third = finished(ledger, &sooner, grant.fence, tick(due)).await;
        // The message that has slept all the time is of a tick that is past.
        assert_eq!(ledger.claim(ask(ledger, &next, LEASE).await).await.unwrap(), Claim::Stale(Some(third)));
        assert_eq!(advance("unknown").await, None);
    }
}

#[tokio::test]
async fn the_rotation_of_a_kind_without_a_schedule_is_not_claimed_and_its_single_ticks_are() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let hint = begun(ledger, "a").await;
        let request = async |hint: &Hint| ClaimRequest { recurs: false, ..ask(ledger, hint, LEASE).await };
        assert_eq!(ledger.claim(request(&hint).await).await.unwrap(), Claim::NoSchedule);
        let once = NewChain { once: true, ..chain("a", ledger.now()) };
        let Enrolled::Created(once) = ledger.enroll(vec![once]).await.unwrap().remove(0) else { panic!() };
        let claim = request(&once).await;
        let session = Some(claim.session);
        assert!(matches!(ledger.claim(claim).await.unwrap(), Claim::Granted(_)));
        // And catch-up finds just these.
        let kinds = Kinds { all: vec!["sync".into()], recurring: Vec::new() };
        let then = ledger.now() + SLACK + LEASE;
        let found = ledger.overdue("work".into(), kinds, then, session, 10).await.unwrap();
        assert_eq!(found.iter().map(|chain| chain.hint.epoch).collect::<Vec<_>>(), [once.epoch]);
    }
}
