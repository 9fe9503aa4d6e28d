//! Tokens, the audit, and requests with keys.

use roundelay::ledger::access::{
    AuditEntry, Begun, Hash, KeptAnswer, KeyedRequest, MAX_TOKENS, NewAuditEntry, NewToken, Token, TokenCreated,
};
use roundelay::scope::Scope;

use super::*;

fn hash(n: u32) -> Hash {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&n.to_le_bytes());
    hash
}

fn token(name: &str, n: u32) -> NewToken {
    NewToken { name: name.into(), hash: hash(n), scope: Scope::Operate, expires: None }
}

async fn created(ledger: &dyn Ledger, new: NewToken) -> Token {
    match ledger.create_token(new).await.unwrap() {
        TokenCreated::Created(token) => token,
        other => panic!("not created: {other:?}"),
    }
}

#[tokio::test]
async fn a_token_is_found_by_its_hash_until_it_is_revoked() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let expires = Some(ledger.now() + LEASE);
        let second = created(ledger, NewToken { expires, scope: Scope::Read, ..token("b", 2) }).await;
        let first = created(ledger, token("a", 1)).await;
        assert_eq!(
            (second.name.as_str(), second.scope, second.expires, second.last_used),
            ("b", Scope::Read, expires, None)
        );
        assert_eq!(ledger.token(hash(2)).await.unwrap().as_ref(), Some(&second));
        assert_eq!(ledger.token(hash(3)).await.unwrap(), None);
        assert_eq!(ledger.tokens().await.unwrap(), [first.clone(), second.clone()], "by name");
        assert_eq!(ledger.create_token(token("a", 4)).await.unwrap(), TokenCreated::NameTaken);
        assert!(ledger.revoke_token("a".into()).await.unwrap());
        assert!(!ledger.revoke_token("a".into()).await.unwrap());
        assert_eq!(ledger.token(hash(1)).await.unwrap(), None);
        // The name is free, and its next holder is another.
        let again = created(ledger, token("a", 5)).await;
        assert!(again.id > first.id, "numbers are not reused");
    }
}

#[tokio::test]
async fn the_last_use_of_a_token_is_written_once_a_minute() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let (used, other) = (created(ledger, token("a", 1)).await, created(ledger, token("b", 2)).await);
        let before = ledger.now();
        ledger.token_used(used.id).await.unwrap();
        let noted = ledger.token(hash(1)).await.unwrap().unwrap().last_used.unwrap();
        assert!(noted >= before);
        // The clock goes on at least so far; a minute it does not, or the test has other worries.
        until("a later time", async || ledger.now() > noted).await;
        ledger.token_used(used.id).await.unwrap();
        assert_eq!(ledger.token(hash(1)).await.unwrap().unwrap().last_used, Some(noted));
        assert_eq!(ledger.token(hash(2)).await.unwrap(), Some(other));
    }
}

#[tokio::test]
async fn the_number_of_tokens_is_bounded() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        for n in 0..MAX_TOKENS {
            created(ledger, token(&format!("t{n}"), n)).await;
        }
        assert_eq!(ledger.create_token(token("more", MAX_TOKENS)).await.unwrap(), TokenCreated::TooMany);
        assert_eq!(ledger.create_token(token("t7", MAX_TOKENS)).await.unwrap(), TokenCreated::NameTaken);
        assert!(ledger.revoke_token("t7".into()).await.unwrap());
        created(ledger, token("more", MAX_TOKENS)).await;
    }
}

fn asked(target: &str) -> NewAuditEntry {
    NewAuditEntry {
        actor: "ci".into(),
        scope: Scope::Admin,
        action: "POST /api/v1/chains/{kind}/{key}/pause".into(),
        target: target.into(),
        detail: "{\"why\":\"ü\\u0000\"}".into(),
        status: None,
    }
}

#[tokio::test]
async fn the_audit_is_read_backwards_page_by_page() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let before = ledger.now();
        let mut numbers = Vec::new();
        for target in ["sync a", "sync b", "sync ü 🦀"] {
            numbers.push(ledger.begin_audit(asked(target)).await.unwrap());
        }
        assert!(numbers.is_sorted_by(|a, b| a < b));
        ledger.end_audit(numbers[0], 200, None).await.unwrap();
        ledger.end_audit(numbers[1], 409, Some("[1]".into())).await.unwrap();
        let page = async |before, limit| ledger.audit(before, limit).await.unwrap();
        let latest: Vec<AuditEntry> = page(None, 2).await;
        assert_eq!(latest.iter().map(|entry| entry.number).collect::<Vec<_>>(), [numbers[2], numbers[1]]);
        assert!(latest[0].at >= before);
        assert_eq!(latest[0].entry, asked("sync ü 🦀"), "how it ended is not known");
        let ended = NewAuditEntry { status: Some(409), detail: "[1]".into(), ..asked("sync b") };
        assert_eq!(latest[1].entry, ended);
        let rest = page(Some(latest[1].number), 2).await;
        assert_eq!(rest.len(), 1);
        assert_eq!(rest[0].entry, NewAuditEntry { status: Some(200), ..asked("sync a") });
        assert_eq!(page(Some(rest[0].number), 2).await, []);
    }
}

fn request(key: &str, n: u32) -> KeyedRequest {
    KeyedRequest { actor: "token 1".into(), key: key.into(), fingerprint: hash(n) }
}

async fn begin(ledger: &dyn Ledger, request: &KeyedRequest, lease: Duration) -> Begun {
    ledger.begin_request(request.clone(), lease).await.unwrap()
}

async fn held(ledger: &dyn Ledger, request: &KeyedRequest, lease: Duration) -> i64 {
    match begin(ledger, request, lease).await {
        Begun::New(number) => number,
        other => panic!("not begun: {other:?}"),
    }
}

fn answer(status: u16) -> KeptAnswer {
    KeptAnswer { status, content_type: "application/json".into(), body: Some(b"{\"a\":\"\xff\0\"}".to_vec()) }
}

#[tokio::test]
async fn a_request_with_a_key_is_done_once() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let asked = request("k", 1);
        let number = held(ledger, &asked, LEASE).await;
        assert_eq!(begin(ledger, &asked, LEASE).await, Begun::Running);
        assert_eq!(begin(ledger, &request("k", 2), LEASE).await, Begun::Other);
        // Another actor's equal key is another key.
        held(ledger, &KeyedRequest { actor: "token 2".into(), ..request("k", 2) }, LEASE).await;
        held(ledger, &request("other", 2), LEASE).await;
        assert!(ledger.renew_request(number, LEASE).await.unwrap());
        ledger.end_request(number, Some(answer(201))).await.unwrap();
        assert_eq!(begin(ledger, &asked, LEASE).await, Begun::Answered(answer(201)));
        assert_eq!(begin(ledger, &request("k", 2), LEASE).await, Begun::Other);
        assert!(!ledger.renew_request(number, LEASE).await.unwrap(), "it has ended");
    }
}

#[tokio::test]
async fn a_failed_request_may_be_made_again_and_an_answer_without_a_body_is_replayed() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let asked = request("k", 1);
        let number = held(ledger, &asked, LEASE).await;
        ledger.end_request(number, None).await.unwrap();
        let number = held(ledger, &asked, LEASE).await;
        let secret = KeptAnswer { body: None, ..answer(201) };
        ledger.end_request(number, Some(secret.clone())).await.unwrap();
        assert_eq!(begin(ledger, &asked, LEASE).await, Begun::Answered(secret));
    }
}

#[tokio::test]
async fn a_request_whose_server_died_is_taken_over_by_one() {
    for opened in all().await {
        let ledger = &*opened.ledger;
        let asked = request("k", 1);
        let dead = held(ledger, &asked, Duration::ZERO).await;
        assert_eq!(begin(ledger, &request("k", 2), LEASE).await, Begun::Other, "not by another request");
        let second = held(ledger, &asked, LEASE).await;
        assert!(second != dead);
        assert_eq!(begin(ledger, &asked, LEASE).await, Begun::Running);
        // The dead one was alive after all. What it says counts no more.
        assert!(!ledger.renew_request(dead, LEASE).await.unwrap());
        ledger.end_request(dead, Some(answer(500))).await.unwrap();
        ledger.end_request(dead, None).await.unwrap();
        assert_eq!(begin(ledger, &asked, LEASE).await, Begun::Running);
        ledger.end_request(second, Some(answer(200))).await.unwrap();
        assert_eq!(begin(ledger, &asked, LEASE).await, Begun::Answered(answer(200)));
    }
}

#[tokio::test]
async fn of_many_that_begin_the_same_request_one_does() {
    for opened in shared().await {
        let ledgers = [opened.ledger.clone(), opened.again().await];
        for round in 0..10 {
            let mut tasks = JoinSet::new();
            for n in 0..8 {
                let (ledger, asked) = (ledgers[n % 2].clone(), request(&format!("k{round}"), 1));
                tasks.spawn(async move { ledger.begin_request(asked, LEASE).await.unwrap() });
            }
            let begun = tasks.join_all().await;
            let new = begun.iter().filter(|begun| matches!(begun, Begun::New(_))).count();
            let running = begun.iter().filter(|begun| **begun == Begun::Running).count();
            assert_eq!((new, running), (1, 7), "{begun:?}");
        }
    }
}

/// Sets back when everything was written.
async fn age(opened: &Opened, by: Duration) {
    let by = i64::try_from(by.as_millis()).unwrap();
    let sql = format!("UPDATE requests SET began = began - {by}; UPDATE audit SET at = at - {by};");
    match &opened._schema {
        Some(schema) => schema.raw().await.batch_execute(&sql).await.unwrap(),
        None => rusqlite::Connection::open(opened.path()).unwrap().execute_batch(&sql).unwrap(),
    }
}

#[tokio::test]
async fn old_entries_are_forgotten_a_part_at_a_time() {
    let (hour, day) = (Duration::from_secs(3_600), Duration::from_secs(86_400));
    for opened in shared().await {
        let ledger = &*opened.ledger;
        for n in 0..5 {
            let number = held(ledger, &request(&format!("k{n}"), 1), LEASE).await;
            ledger.end_request(number, Some(answer(200))).await.unwrap();
            ledger.begin_audit(asked("sync a")).await.unwrap();
        }
        assert_eq!(ledger.forget_access(2).await.unwrap(), 0);
        age(&opened, day - hour).await;
        assert_eq!(ledger.forget_access(2).await.unwrap(), 0);
        assert_eq!(begin(ledger, &request("k0", 1), LEASE).await, Begun::Answered(answer(200)));
        age(&opened, hour).await;
        // Also before it is forgotten it counts no more, not even for another request.
        held(ledger, &request("k0", 2), LEASE).await;
        for expected in [2, 2, 0] {
            assert_eq!(ledger.forget_access(2).await.unwrap(), expected);
        }
        assert_eq!(begin(ledger, &request("k0", 2), LEASE).await, Begun::Running);
        assert_eq!(ledger.audit(None, 10).await.unwrap().len(), 5, "the audit is kept for longer");
        age(&opened, day * 366).await;
        let latest = ledger.begin_audit(asked("sync b")).await.unwrap();
        for expected in [1 + 2, 2, 1, 0] {
            assert_eq!(ledger.forget_access(2).await.unwrap(), expected);
        }
        let left = ledger.audit(None, 10).await.unwrap();
        assert_eq!(left.iter().map(|entry| entry.number).collect::<Vec<_>>(), [latest]);
    }
}
