//! The backlog of fair queues: what waits for its tenant's turn.

use roundelay::ledger::{LeftMessage, Seat, TakenMessage, name_of_chain};

use super::*;

fn left(tenant: &str, name: &str, body: &str) -> LeftMessage {
    LeftMessage { queue: "q".into(), tenant: tenant.into(), name: name.into(), body: body.into() }
}

/// Leaves `a1` to `a5` of the tenant `a`, two of `b`, and one of no tenant.
async fn fill(ledger: &dyn Ledger) {
    let of = |tenant: &str, n: u32| left(tenant, &format!("job {tenant}{n}"), &format!("{tenant}{n}"));
    let messages = (1..=5).map(|n| of("a", n)).chain([of("b", 1), of("", 1), of("b", 2)]).collect();
    ledger.leave_messages(messages).await.unwrap();
}

async fn take(ledger: &dyn Ledger, session: i64, shares: &[(&str, u32)]) -> Vec<TakenMessage> {
    let shares = shares.iter().map(|(tenant, most)| ((*tenant).to_owned(), *most)).collect();
    ledger.take_messages("q".into(), session, shares).await.unwrap()
}

fn bodies(taken: &[TakenMessage]) -> Vec<String> {
    let mut bodies: Vec<_> = taken.iter().map(|taken| String::from_utf8(taken.body.clone()).unwrap()).collect();
    bodies.sort_unstable();
    bodies
}

async fn tenants(ledger: &dyn Ledger, after: Option<&str>, limit: u32) -> Vec<String> {
    ledger.waiting_tenants("q".into(), after.map(Into::into), limit).await.unwrap()
}

#[tokio::test]
async fn each_tenant_has_its_share_taken_those_first_that_have_waited_longest() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let mine = session(ledger, LEASE).await;
        assert_eq!(tenants(ledger, None, 9).await, [""; 0]);
        fill(ledger).await;
        assert_eq!(tenants(ledger, None, 9).await, ["", "a", "b"]);
        assert_eq!(tenants(ledger, None, 2).await, ["", "a"]);
        assert_eq!(tenants(ledger, Some(""), 2).await, ["a", "b"]);
        assert_eq!(tenants(ledger, Some("a"), 2).await, ["b"]);
        assert_eq!(ledger.waiting_tenants("other".into(), None, 9).await.unwrap(), [""; 0]);
        let first = take(ledger, mine, &[("a", 2), ("", 2), ("nobody", 2)]).await;
        assert_eq!(bodies(&first), ["1", "a1", "a2"]);
        assert!(first.iter().all(|taken| taken.takes == 1));
        assert_eq!(tenants(ledger, None, 9).await, ["a", "b"]);
        let others = session(ledger, LEASE).await;
        assert_eq!(bodies(&take(ledger, others, &[("a", 9), ("b", 1)]).await), ["a3", "a4", "a5", "b1"]);
        let counted = ledger.backlog("q".into(), None, 9, 4).await.unwrap();
        let counted: Vec<_> = counted.iter().map(|of| (of.tenant.as_str(), of.messages)).collect();
        assert_eq!(counted, [("", 1), ("a", 4), ("b", 2)]);
    }
}

#[tokio::test]
async fn taken_messages_end_by_their_session_and_wait_again_when_they_are_returned_or_their_session_is_over() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (mine, others) = (session(ledger, LEASE).await, session(ledger, LEASE).await);
        fill(ledger).await;
        let taken = take(ledger, mine, &[("a", 3)]).await;
        let numbers: Vec<i64> = taken.iter().map(|taken| taken.number).collect();
        ledger.forget_messages(others, numbers.clone()).await.unwrap();
        ledger.forget_messages(mine, numbers[..1].to_vec()).await.unwrap();
        assert_eq!(ledger.return_messages(others, "q".into(), Vec::new()).await.unwrap(), 0);
        assert_eq!(ledger.return_messages(mine, "other".into(), Vec::new()).await.unwrap(), 0);
        assert_eq!(ledger.return_messages(mine, "q".into(), numbers[2..].to_vec()).await.unwrap(), 0);
        let again = take(ledger, others, &[("a", 9)]).await;
        let takes: Vec<_> = again.iter().map(|taken| (taken.body.clone(), taken.takes)).collect();
        assert_eq!(takes, [(b"a2".to_vec(), 2), (b"a4".to_vec(), 1), (b"a5".to_vec(), 1)]);
        ledger.end_session(others).await.unwrap();
        let in_hand = vec![again[0].number, numbers[2]];
        assert_eq!(ledger.return_messages(mine, "q".into(), in_hand).await.unwrap(), 3);
        assert_eq!(bodies(&take(ledger, mine, &[("a", 9)]).await), ["a2", "a4", "a5"], "a3 is still taken");
        ledger.clear_backlog().await.unwrap();
        assert_eq!(ledger.backlog("q".into(), None, 9, 9).await.unwrap(), []);
    }
}

#[tokio::test]
async fn of_a_name_the_last_message_waits_and_the_same_again_changes_nothing() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let mine = session(ledger, LEASE).await;
        ledger.leave_messages(vec![left("a", "chain 1", "tick 1")]).await.unwrap();
        let first = take(ledger, mine, &[("a", 1)]).await.remove(0);
        ledger.leave_messages(vec![left("a", "chain 1", "tick 1")]).await.unwrap();
        assert_eq!(tenants(ledger, None, 9).await, [""; 0], "it is taken, and comes again");
        ledger.leave_messages(vec![left("b", "chain 1", "tick 2")]).await.unwrap();
        assert_eq!(tenants(ledger, None, 9).await, ["b"]);
        assert_eq!(bodies(&take(ledger, mine, &[("b", 9)]).await), ["tick 2"]);
        ledger.forget_messages(mine, vec![first.number]).await.unwrap();
        ledger.return_messages(mine, "q".into(), Vec::new()).await.unwrap();
        assert_eq!(bodies(&take(ledger, mine, &[("b", 9)]).await), ["tick 2"], "the first one's end is none of it");
    }
}

#[tokio::test]
async fn a_chain_whose_message_waits_in_the_backlog_is_not_taken_for_lost() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let kinds = Kinds { all: vec!["sync".into()], recurring: vec!["sync".into()] };
        let (waits, lost) = (begun(ledger, "waits").await, begun(ledger, "lost").await);
        let name = name_of_chain(waits.epoch);
        let message = LeftMessage { queue: "q".into(), tenant: "a".into(), name, body: b"{}".to_vec() };
        ledger.leave_messages(vec![message]).await.unwrap();
        let then = ledger.now() + LEASE * 100;
        let overdue = ledger.overdue(waits.queue.clone(), kinds.clone(), then, None, 9).await.unwrap();
        assert_eq!(overdue.iter().map(|chain| chain.hint.epoch).collect::<Vec<_>>(), [lost.epoch]);
        let filter = roundelay::ledger::OrphanFilter { until: then, late: then, unsent: then };
        let orphans = ledger.orphans(waits.queue.clone(), kinds.clone(), filter, 9).await.unwrap();
        assert_eq!(orphans.iter().map(|chain| chain.hint.epoch).collect::<Vec<_>>(), [lost.epoch]);
        // Once a session has claimed it, what becomes of the chain depends on that session.
        let request = ask(ledger, &waits, LEASE).await;
        let session = request.session;
        assert!(matches!(ledger.claim(request).await.unwrap(), Claim::Granted(_)));
        ledger.end_session(session).await.unwrap();
        let orphans = ledger.orphans(waits.queue.clone(), kinds, filter, 9).await.unwrap();
        assert_eq!(orphans.len(), 2);
    }
}

#[tokio::test]
async fn whose_a_chain_is() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let owned = NewChain { owner: Some("red".into()), payload: r#"{"n":1}"#.into(), ..chain("a", ledger.now()) };
        let owned = match ledger.enroll(vec![owned]).await.unwrap().remove(0) {
            Enrolled::Created(hint) => hint.epoch.get(),
            other => panic!("{other:?}"),
        };
        let plain = begun(ledger, "b").await.epoch.get();
        let told = ledger.ownership(vec![plain, 1, owned, plain], true).await.unwrap();
        let owners: Vec<_> = told.iter().map(|of| of.as_ref().map(|of| of.owner.as_deref())).collect();
        assert_eq!(owners, [Some(None), None, Some(Some("red")), Some(None)]);
        assert_eq!(told[2].as_ref().unwrap().payload, r#"{"n":1}"#);
        let told = ledger.ownership(vec![owned], false).await.unwrap().remove(0).unwrap();
        assert_eq!((told.owner.as_deref(), told.payload.as_str()), (Some("red"), ""));
    }
}

fn seat(tenant: &str, session: i64, number: i64) -> Seat {
    Seat { queue: "q".into(), tenant: tenant.into(), session, number }
}

#[tokio::test]
async fn seats_of_a_tenant_are_as_many_as_it_may_have_and_go_with_their_sessions() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (mine, others) = (session(ledger, LEASE).await, session(ledger, LEASE).await);
        let take = async |seat: Seat, most| ledger.take_seat(seat, most).await.unwrap();
        let a = |session, number| seat("a", session, number);
        assert!(!take(a(mine, 1), 0).await);
        assert!(take(a(mine, 1), 3).await && take(a(others, 1), 3).await && take(a(mine, 2), 3).await);
        assert!(!take(a(mine, 3), 3).await && !take(a(others, 2), 3).await);
        assert!(take(a(mine, 2), 3).await, "the same again is the same");
        assert!(take(seat("b", others, 1), 3).await && take(a(others, 3), 4).await, "another tenant, a larger quota");
        ledger.return_seat(a(mine, 2)).await.unwrap();
        ledger.return_seat(a(mine, 2)).await.unwrap();
        assert!(!take(a(others, 4), 3).await && take(a(others, 4), 4).await);
        ledger.end_session(others).await.unwrap();
        assert!(take(a(mine, 5), 2).await && !take(a(mine, 6), 2).await);
        for number in [1, 5] {
            ledger.return_seat(a(mine, number)).await.unwrap();
        }
        assert!(take(a(mine, 7), 1).await && !take(a(mine, 8), 1).await);
    }
}

/// Seats that many workers want at once.
#[tokio::test]
async fn no_more_seats_are_taken_at_once_than_there_are() {
    for opened in all().await {
        let mut takes = JoinSet::new();
        for number in 0..40 {
            let ledger = opened.ledger.clone();
            let session = session(&*ledger, LEASE).await;
            takes.spawn(async move { ledger.take_seat(seat("a", session, number), 7).await.unwrap() });
        }
        assert_eq!(takes.join_all().await.into_iter().filter(|taken| *taken).count(), 7);
    }
}
