//! What operators ask about many chains, and how chains are moved in time.

use roundelay::ids::{Epoch, Fence, TickNo};
use roundelay::ledger::{Condition, Cursor, ListFilter, Listed, Move, OwnerCensus};

use super::*;

fn keys(page: &[Listed]) -> Vec<&str> {
    page.iter().map(|chain| chain.hint.key.as_str()).collect()
}

fn like(pattern: &str) -> ChainFilter {
    ChainFilter { like: Some(pattern.into()), ..ChainFilter::default() }
}

async fn list(ledger: &dyn Ledger, which: ChainFilter, condition: Option<Condition>) -> Vec<Listed> {
    ledger.list(ListFilter { which, condition }, None, 100).await.unwrap()
}

#[tokio::test]
async fn rotations_are_listed_in_the_order_of_their_names_page_by_page() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        let other = |key: &str| NewChain { kind: "charts".into(), ..chain(key, now) };
        let once = NewChain { once: true, ..chain("b", now) };
        let chains = ["é", "b", "a", "Z"].map(|key| chain(key, now));
        ledger.enroll([&chains[..], &[other("y"), other("x"), once]].concat()).await.unwrap();
        let (mut seen, mut after) = (Vec::new(), None::<Cursor>);
        loop {
            let page = ledger.list(ListFilter::default(), after, 2).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some((last.hint.kind.clone(), last.hint.key.clone()));
            seen.extend(page.into_iter().map(|chain| format!("{} {}", chain.hint.kind, chain.hint.key)));
        }
        assert_eq!(seen, ["charts x", "charts y", "sync Z", "sync a", "sync b", "sync é"], "by their bytes");
        let sync = ChainFilter { kind: Some("sync".into()), ..ChainFilter::default() };
        let page =
            ledger.list(ListFilter { which: sync, condition: None }, Some(("charts".into(), "x".into())), 2).await;
        assert_eq!(keys(&page.unwrap()), ["Z", "a"], "a place before the kind");
    }
}

#[tokio::test]
async fn chains_are_found_by_pattern_owner_and_what_they_are_doing() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        let later = now + LEASE;
        let owned = |key: &str| NewChain { owner: Some("red".into()), ..chain(key, later) };
        let rest = ["eu_1", "euX1", "EU_2", "eu%", "eu[1]", r"eu\1"].map(|key| chain(key, later));
        ledger.enroll([&[chain("late", now - LEASE), owned("eu_7")], &rest[..]].concat()).await.unwrap();
        let table: [(&str, &[&str]); 7] = [
            ("eu_?", &["eu_1", "eu_7"]),
            ("eu?1", &["euX1", r"eu\1", "eu_1"]),
            ("eu%*", &["eu%"]),
            ("eu[1]", &["eu[1]"]),
            (r"eu\*", &[r"eu\1"]),
            ("EU*", &["EU_2"]),
            ("eu", &[]),
        ];
        for (pattern, expected) in table {
            assert_eq!(keys(&list(ledger, like(pattern), None).await), expected, "{pattern}");
            let count = ledger.matching(like(pattern), ChainOrder::Pause).await.unwrap();
            assert_eq!(count, expected.len() as u64, "{pattern}");
        }
        let red = ChainFilter { owner: Some("red".into()), ..ChainFilter::default() };
        assert_eq!(keys(&list(ledger, red.clone(), None).await), ["eu_7"]);
        let late = ChainFilter { late_before: Some(now), ..ChainFilter::default() };
        assert_eq!(keys(&list(ledger, late.clone(), None).await), ["late"]);
        assert_eq!(ledger.matching(late.clone(), ChainOrder::Pause).await.unwrap(), 1);
        let elsewhere = ChainFilter { queue: Some("elsewhere".into()), ..ChainFilter::default() };
        assert_eq!(keys(&list(ledger, elsewhere.clone(), None).await), [""; 0]);
        assert_eq!(ledger.order_chains(elsewhere, ChainOrder::Pause).await.unwrap(), 0);
        let here = ChainFilter { queue: Some("work".into()), ..like("late") };
        assert_eq!(ledger.matching(here.clone(), ChainOrder::Pause).await.unwrap(), 1);
        let hint = list(ledger, late.clone(), None).await.remove(0).hint;
        granted(ledger, &hint, LEASE).await;
        assert_eq!(keys(&list(ledger, ChainFilter::default(), Some(Condition::Running)).await), ["late"]);
        assert_eq!(keys(&list(ledger, late.clone(), None).await), [""; 0], "it runs");
        assert_eq!(ledger.matching(late.clone(), ChainOrder::Pause).await.unwrap(), 0);
        assert_eq!(ledger.order_chains(late, ChainOrder::Pause).await.unwrap(), 0);
        assert_eq!(ledger.order_chains(like("eu_?"), ChainOrder::Pause).await.unwrap(), 2);
        let paused = Some(Condition::State(ChainState::Paused));
        assert_eq!(keys(&list(ledger, ChainFilter::default(), paused).await), ["eu_1", "eu_7"]);
        assert_eq!(ledger.matching(like("eu*"), ChainOrder::Resume).await.unwrap(), 2);
        assert_eq!(ledger.matching(like("eu*"), ChainOrder::Retire).await.unwrap(), 6);
        let resting = ChainFilter { state: Some(ChainState::Paused), ..like("eu*") };
        assert_eq!(ledger.matching(resting.clone(), ChainOrder::Retire).await.unwrap(), 2);
        assert_eq!(ledger.matching(resting.clone(), ChainOrder::Pause).await.unwrap(), 0);
        assert_eq!(ledger.order_chains(resting, ChainOrder::Pause).await.unwrap(), 0);
        assert_eq!(ledger.owner("red".into()).await.unwrap(), ChainState::Active, "a pattern is no word on owners");
        let of_red = ChainFilter { like: Some("eu*".into()), ..red };
        assert_eq!(ledger.order_chains(of_red, ChainOrder::Retire).await.unwrap(), 1);
        assert_eq!(ledger.owner("red".into()).await.unwrap(), ChainState::Active, "nor is a part of what is hers");
    }
}

#[tokio::test]
async fn owners_are_counted_also_those_of_whom_only_a_word_is_known() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let owned = |key: &str, owner: &str| NewChain { owner: Some(owner.into()), ..chain(key, ledger.now()) };
        let once = NewChain { once: true, ..owned("a", "red") };
        ledger.enroll(vec![owned("a", "red"), owned("b", "red"), owned("c", "blue"), once]).await.unwrap();
        ledger.order_chains(which("a"), ChainOrder::Pause).await.unwrap();
        let nobody = ChainFilter { owner: Some("gone".into()), ..ChainFilter::default() };
        ledger.order_chains(nobody, ChainOrder::Retire).await.unwrap();
        let census = |owner: &str, state, active, paused| OwnerCensus {
            owner: owner.into(),
            state,
            active,
            paused,
            retired: 0,
            quarantined: 0,
        };
        use ChainState::{Active, Retired};
        let all = [census("blue", Active, 1, 0), census("gone", Retired, 0, 0), census("red", Active, 1, 1)];
        assert_eq!(ledger.owners(String::new(), 10).await.unwrap(), all);
        assert_eq!(ledger.owners("blue".into(), 1).await.unwrap(), all[1..2]);
    }
}

#[tokio::test]
async fn a_chains_history_leads_back_from_its_last_attempt() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (mut hint, mut fences) = (begun(ledger, "a").await, Vec::new());
        let mut other = begun(ledger, "b").await;
        for _ in 0..3 {
            for (hint, fences) in [(&mut hint, Some(&mut fences)), (&mut other, None)] {
                let fence = granted(ledger, hint, LEASE).await.fence;
                *hint = finished(ledger, hint, fence, tick(ledger.now())).await;
                fences.into_iter().for_each(|fences| fences.push(fence));
            }
        }
        let walked = async |limit| {
            let last = ledger.chains("sync".into(), "a".into()).await.unwrap()[0].fence;
            let records = ledger.history(last, limit).await.unwrap();
            records.iter().map(|record| (record.tick, record.fence)).collect::<Vec<_>>()
        };
        assert_eq!(walked(10).await, [(TickNo(3), fences[2]), (TickNo(2), fences[1]), (TickNo(1), fences[0])]);
        assert_eq!(walked(2).await, [(TickNo(3), fences[2]), (TickNo(2), fences[1])]);
        assert_eq!(ledger.history(Fence::NONE, 5).await.unwrap(), []);
    }
}

#[tokio::test]
async fn failures_of_one_entity_are_told_by_themselves() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        for key in ["a", "b", "a"] {
            ledger.record_failure("sync".into(), key.into(), FailedItem::new("", "no"), ledger.now()).await.unwrap();
        }
        let failures = ledger.failures_of("sync".into(), "a".into()).await.unwrap();
        assert_eq!((failures.len(), failures[0].times), (1, 2));
        assert_eq!(ledger.failures_of("sync".into(), "c".into()).await.unwrap(), []);
    }
}

#[tokio::test]
async fn a_tick_is_moved_only_while_it_is_the_one_that_was_seen_and_has_not_started() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        let (far, near) = (now + LEASE * 10, now + LEASE);
        let to = |hint: &Hint, from: Time, due: Time| Move {
            epoch: hint.epoch,
            tick: hint.tick,
            from,
            nominal: due,
            due,
            watch_at: due + SLACK,
        };
        let one = async |m: Move| ledger.reschedule(vec![m]).await.unwrap().remove(0);
        let due = begun(ledger, "due").await;
        let later = Hint { due: near, ..due.clone() };
        assert_eq!(one(to(&due, due.due, near)).await, Some(later), "a tick that is due by a clock that was wrong");
        let runs = begun(ledger, "runs").await;
        granted(ledger, &runs, LEASE).await;
        assert_eq!(one(to(&runs, runs.due, near)).await, None, "it runs");
        let tried = begun(ledger, "tried").await;
        let fence = granted(ledger, &tried, LEASE).await.fence;
        let retry = end(&tried, fence, now, Next::Snooze { due: far }, Verdict::Snoozed);
        let tried = written(ledger, retry).await;
        assert_eq!(one(to(&tried, far, near)).await, None, "it has started, and was put off");

        let Enrolled::Created(a) = ledger.enroll(vec![chain("a", far)]).await.unwrap().remove(0) else { panic!() };
        let Enrolled::Created(b) = ledger.enroll(vec![chain("b", far)]).await.unwrap().remove(0) else { panic!() };
        ledger.order_chains(which("b"), ChainOrder::Pause).await.unwrap();
        // Of the two, in any order, beside one that is not known.
        let unknown = Move { epoch: Epoch(a.epoch.get() + 1_000_000), ..to(&a, far, near) };
        let moved = ledger.reschedule(vec![to(&b, far, near), unknown, to(&a, far, near)]).await.unwrap();
        let is = |hint: &Hint| Some(Hint { due: near, ..hint.clone() });
        assert_eq!(moved, [is(&b), None, is(&a)]);
        assert_eq!(one(to(&a, far, near)).await, None, "somebody was faster");
        let view = ledger.chains("sync".into(), "a".into()).await.unwrap().remove(0);
        let place = (view.hint.due, view.nominal, view.sent, view.watch_at, view.looks);
        assert_eq!(place, (near, near, false, near + SLACK, 0));
        // Later again; the message of the time before is early, and then one that is not needed.
        let later = one(to(&a, near, far)).await.unwrap();
        let early = ledger.claim(ask(ledger, &Hint { due: near, ..a.clone() }, LEASE).await).await.unwrap();
        assert_eq!(early, Claim::Early(later.clone()));
        ledger.mark_sent(later.sent());
        ledger.flush().await.unwrap();
        assert_eq!(ledger.claim(ask(ledger, &Hint { due: near, ..a }, LEASE).await).await.unwrap(), Claim::Stale(None));
    }
}

#[tokio::test]
async fn a_rotation_gets_a_schedule_and_loses_it() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let own = r#"{"every":"5m"}"#;
        let set = async |key: &str, own: Option<&str>| {
            ledger.set_schedule("sync".into(), key.into(), own.map(String::from)).await.unwrap()
        };
        let hint = begun(ledger, "a").await;
        ledger.enroll(vec![NewChain { once: true, ..chain("a", ledger.now()) }]).await.unwrap();
        assert!(set("a", Some(own)).await);
        assert_eq!(granted(ledger, &hint, LEASE).await.schedule.as_deref(), Some(own));
        let chains = ledger.chains("sync".into(), "a".into()).await.unwrap();
        assert_eq!(chains.iter().map(|chain| chain.schedule.as_deref()).collect::<Vec<_>>(), [Some(own), None]);
        assert!(set("a", None).await);
        assert_eq!(ledger.chains("sync".into(), "a".into()).await.unwrap()[0].schedule, None);
        assert!(!set("nobody", None).await);
        ledger.order_chains(which("a"), ChainOrder::Retire).await.unwrap();
        assert!(!set("a", Some(own)).await, "it has ended");
    }
}
