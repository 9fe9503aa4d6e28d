//! What operators ask about many chains, and how chains are moved in time.

use roundelay::ids::{Epoch, Fence, TickNo};
use roundelay::ledger::{
    Condition, Cursor, FailureFilter, LateCursor, ListFilter, Listed, Move, OWNERS_EFFORT, OwnerCensus,
};

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
            late: 0,
            late_complete: true,
            failing: 0,
            failing_complete: true,
        };
        use ChainState::{Active, Retired};
        let all = [census("blue", Active, 1, 0), census("gone", Retired, 0, 0), census("red", Active, 1, 1)];
        let owners = async |after: &str, limit| {
            let before = ledger.now() - SLACK;
            ledger.owners(after.into(), limit, before, Vec::new(), OWNERS_EFFORT).await.unwrap()
        };
        assert_eq!(owners("", 10).await, all);
        assert_eq!(owners("blue", 1).await, all[1..2]);
    }
}

#[tokio::test]
async fn what_is_late_of_an_owner_is_counted_as_a_search_finds_it() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        let owned = |key: &str, owner: &str, due| NewChain { owner: Some(owner.into()), ..chain(key, due) };
        let elsewhere = |of: NewChain| NewChain { queue: "elsewhere".into(), ..of };
        let (past, later) = (now - LEASE, now + LEASE);
        let once = NewChain { once: true, ..owned("alone", "red", past) };
        let chains = [
            owned("a", "red", past),
            owned("b", "red", past),
            owned("runs", "red", past),
            owned("paused", "red", past),
            owned("asleep", "red", later),
            elsewhere(owned("other", "red", past)),
            once,
            owned("d", "blue", later),
            owned("nearly", "green", now),
            chain("nobody's", past),
        ];
        ledger.enroll(chains.to_vec()).await.unwrap();
        ledger.order_chains(which("paused"), ChainOrder::Pause).await.unwrap();
        let runs = ledger.chains("sync".into(), "runs".into()).await.unwrap().remove(0).hint;
        granted(ledger, &runs, LEASE).await;

        let before = now - SLACK;
        let told = async |except: &[&str], effort: u32| {
            let except = except.iter().map(ToString::to_string).collect();
            let owners = ledger.owners(String::new(), 10, before, except, effort).await.unwrap();
            owners.into_iter().map(|of| (of.owner, of.late, of.late_complete)).collect::<Vec<_>>()
        };
        let of = |owner: &str, late, complete| (owner.to_owned(), late, complete);
        assert_eq!(told(&[], 7).await, [of("blue", 0, true), of("green", 0, true), of("red", 3, true)]);
        assert_eq!(told(&["elsewhere"], 7).await[2], of("red", 2, true), "held by an operator");
        for (owner, late) in [("blue", 0), ("green", 0), ("red", 3)] {
            let owner = Some(owner.to_owned());
            let late_of = ChainFilter { owner, late_before: Some(before), ..ChainFilter::default() };
            assert_eq!(list(ledger, late_of, None).await.len(), late);
        }

        // Red has five that tick, and the others have one each.
        let little = told(&[], 5).await;
        assert_eq!(little[..2], [of("blue", 0, true), of("green", 0, true)], "those with few are looked at");
        let (_, late, complete) = &little[2];
        assert!(*late <= 3 && !complete, "{little:?}");
        assert_eq!(told(&[], 0).await, [of("blue", 0, false), of("green", 0, false), of("red", 0, false)]);
    }
}

#[tokio::test]
async fn what_fails_of_an_owner_is_counted_until_it_works() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        let owned = |key: &str, owner: &str| NewChain { owner: Some(owner.into()), ..chain(key, now) };
        let beside = NewChain { once: true, ..owned("a", "red") };
        let all = vec![owned("a", "red"), owned("b", "red"), owned("c", "blue"), chain("d", now), beside];
        let hints = ledger.enroll(all).await.unwrap();
        let failed = async |key: &str, item: &str| {
            let failed = FailedItem::new(item, "HTTP 503: busy");
            ledger.record_failure("sync".into(), key.into(), failed, now).await.unwrap();
        };
        for (key, item) in [("a", ""), ("a", "us"), ("a", "de"), ("b", ""), ("d", ""), ("unknown", "")] {
            failed(key, item).await;
        }
        let told = async |effort: u32| {
            let owners = ledger.owners(String::new(), 10, now - SLACK, Vec::new(), effort).await.unwrap();
            owners.into_iter().map(|of| (of.owner, of.failing, of.failing_complete)).collect::<Vec<_>>()
        };
        let counted = async |owner: &str| {
            let owner = Some(owner.to_owned());
            let filter = FailureFilter { owner, recovered: Some(false), ..FailureFilter::default() };
            let (parts, wholes) = ledger.count_failed(filter).await.unwrap();
            parts + wholes
        };
        let of = |owner: &str, failing, complete| (owner.to_owned(), failing, complete);
        assert_eq!(told(24).await, [of("blue", 0, true), of("red", 4, true)]);
        assert_eq!((counted("blue").await, counted("red").await), (0, 4));
        let little = told(23).await;
        assert!(little.iter().all(|(_, _, complete)| !complete) && little[1].1 <= 4, "{little:?}");

        let Enrolled::Created(b) = &hints[1] else { panic!("it was there") };
        let grant = granted(ledger, b, LEASE).await;
        let end = end(b, grant.fence, now + SECOND, tick(now + LEASE), Verdict::Done);
        written(ledger, end).await;
        assert_eq!(told(24).await[1], of("red", 3, true), "the whole of b has worked since");
        assert_eq!(counted("red").await, 3);
    }
}

#[tokio::test]
async fn the_longest_late_come_first_page_by_page() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let now = ledger.now();
        let ago = |key: &str, secs| chain(key, now - SECOND * secs);
        let owned = |of: NewChain| NewChain { owner: Some("red".into()), ..of };
        let elsewhere = |of: NewChain| NewChain { queue: "elsewhere".into(), ..of };
        let once = NewChain { once: true, ..ago("alone", 900) };
        let chains = [
            ago("a", 200),
            owned(ago("b", 400)),
            ago("c", 200),
            elsewhere(owned(ago("d", 300))),
            ago("runs", 500),
            ago("due", 1),
            once,
            chain("asleep", now + LEASE),
        ];
        ledger.enroll(chains.to_vec()).await.unwrap();
        let runs = ledger.chains("sync".into(), "runs".into()).await.unwrap().remove(0).hint;
        granted(ledger, &runs, LEASE).await;
        let found = async |which: ChainFilter, except: &[&str], limit| {
            let which = ChainFilter { late_before: Some(now - SLACK), ..which };
            let except: Vec<String> = except.iter().map(ToString::to_string).collect();
            let (mut seen, mut after) = (Vec::new(), None::<LateCursor>);
            loop {
                let filter = ListFilter { which: which.clone(), condition: None };
                let page = ledger.longest_late(filter, except.clone(), after, limit).await.unwrap();
                assert!(page.len() <= limit as usize);
                let Some(last) = page.last() else { return seen };
                after = Some((last.hint.due, last.hint.epoch));
                seen.extend(page.into_iter().map(|chain| chain.hint.key));
            }
        };
        // Those that were due at the same time come in the order in which they began.
        for limit in [1, 3, 100] {
            assert_eq!(found(ChainFilter::default(), &[], limit).await, ["b", "d", "a", "c"], "{limit}");
        }
        assert_eq!(found(ChainFilter::default(), &["elsewhere"], 100).await, ["b", "a", "c"]);
        let red = ChainFilter { owner: Some("red".into()), ..ChainFilter::default() };
        assert_eq!(found(red.clone(), &[], 1).await, ["b", "d"]);
        assert_eq!(found(ChainFilter { like: Some("?".into()), ..red }, &["elsewhere"], 9).await, ["b"]);
        let sync = |key: &str| ChainFilter { queue: Some("work".into()), ..which(key) };
        assert_eq!(found(sync("a"), &[], 9).await, ["a"]);
        assert_eq!(found(sync("d"), &[], 9).await, [""; 0]);
        let other = ChainFilter { kind: Some("other".into()), ..ChainFilter::default() };
        assert_eq!(found(other, &[], 9).await, [""; 0]);
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
