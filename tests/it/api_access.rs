//! Who may use the API, from where, how much of it and how often: by the real program, against those who try.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::commands::{ok, refused, run, told};
use crate::harness::{Ground, SOON, until};
use crate::served::{Answer, Served, ask, ask_by, client, read_all, token};

const CONFIG: &str = r#"
[queues.work]
[kinds.sync]
queue = "work"
handler.exec.argv = ["/bin/true"]
"#;

/// A configuration with these settings of the API.
fn config(ground: &Ground, api: &str) -> PathBuf {
    ground.config_file(&format!("{CONFIG}\n[api]\n{api}\n"))
}

const JSON: (&str, &str) = ("content-type", "application/json");

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

fn job(key: &str) -> Value {
    json!({ "kind": "sync", "key": key })
}

/// The endpoints of the document: method, path with something in place of its parameters, and scope.
fn endpoints(document: &Value) -> Vec<(Method, String, String)> {
    let mut endpoints = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let Ok(method) = Method::from_bytes(method.to_uppercase().as_bytes()) else { continue };
            let path = path.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
            let scope = operation["x-scope"].as_str().expect("each endpoint says which scope it needs");
            endpoints.push((method, path.collect::<Vec<_>>().join("/"), scope.to_owned()));
        }
    }
    assert!(endpoints.len() >= 7, "{endpoints:?}");
    endpoints
}

#[tokio::test]
async fn endpoints_refuse_requests_without_a_token_or_with_too_small_a_scope() {
    let ground = Ground::embedded();
    let config = config(&ground, "anonymous = \"none\"");
    let (read, operate) = (token(&config, "r", "read").await, token(&config, "o", "operate").await);
    let served = Served::start(&config).await;
    let reads = bearer(&read);
    let document = ask(&served.base, Method::GET, "/api/v1/openapi.json", &[("authorization", &reads)], None).await;
    let mut open = Vec::new();
    for (method, path, scope) in endpoints(&document.is(200).json()) {
        let with = async |token: Option<&str>| {
            let authorization = token.map(bearer);
            let mut headers = vec![JSON];
            headers.extend(authorization.as_deref().map(|value| ("authorization", value)));
            ask(&served.base, method.clone(), &path, &headers, Some("{}".into())).await
        };
        let (without, smaller) = (
            with(None).await,
            match scope.as_str() {
                "none" | "read" => None,
                "operate" => Some(&read),
                "admin" => Some(&operate),
                other => panic!("{path} has the scope {other}"),
            },
        );
        if scope == "none" {
            open.push((method.clone(), path.clone()));
            assert_eq!(without.is(200).json()["scope"], "none");
            continue;
        }
        let without = without.says(401, &format!("a token with the scope `{scope}`"));
        assert!(without.header("www-authenticate").starts_with("Bearer"), "{method} {path}");
        if let Some(smaller) = smaller {
            with(Some(smaller)).await.says(403, &format!("needs the scope `{scope}`"));
        }
    }
    assert_eq!(open, [(Method::GET, "/api/v1/session".to_owned())]);
    for (path, method) in [("/api/v1/nothing", Method::GET), ("/api/v2/session", Method::GET), ("/api", Method::POST)] {
        ask(&served.base, method, path, &[JSON], None).await.is(404);
    }
    let wrong = ask(&served.base, Method::PUT, "/api/v1/session", &[JSON], None).await.is(405);
    assert_eq!(wrong.header("allow"), "GET, HEAD");
    assert_eq!(served.stop().await, Some(0));
}

// ---- From where ----

#[tokio::test]
async fn a_rebound_host_name_gets_nothing() {
    let ground = Ground::embedded();
    let config = config(&ground, "hosts = [\"Ops.example.org\"]");
    let served = Served::start(&config).await;
    for path in ["/", "/api/v1/session", "/api/v1/audit", "/api/v1/nothing"] {
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "0.0.0.0", "192.0.2.1"] {
            let refused = ask(&served.base, Method::GET, path, &[("host", host)], None).await;
            refused.says(421, "add it to api.hosts");
        }
    }
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:15680", "ops.example.org", "OPS.example.org:8443"] {
        ask(&served.base, Method::GET, "/api/v1/session", &[("host", host)], None).await.is(200);
    }
    let raw = async |head: &str| served.raw(format!("{head}\r\nConnection: close\r\n\r\n").as_bytes()).await;
    for head in [
        "GET /api/v1/session HTTP/1.1",
        "GET /api/v1/session HTTP/1.0",
        "GET /api/v1/session HTTP/1.1\r\nHost:",
        "GET /api/v1/session HTTP/1.1\r\nHost: localhost\r\nHost: evil.example",
        "GET http://evil.example/api/v1/session HTTP/1.1\r\nHost: localhost",
        "GET /api/v1/session HTTP/1.1\r\nHost: user@localhost",
    ] {
        let answer = raw(head).await;
        assert!(answer.starts_with("HTTP/1.1 400") || answer.starts_with("HTTP/1.0 400"), "{head}: {answer}");
    }
    assert!(raw("GET /api/v1/session HTTP/1.1\r\nHost: localhost").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn pages_of_other_sites_change_nothing_even_if_no_token_is_needed() {
    let ground = Ground::embedded();
    let served = Served::start(&config(&ground, "anonymous = \"admin\"")).await;
    let origin = served.base.clone();
    let own: &[(&str, &str)] = &[JSON, ("origin", &origin), ("sec-fetch-site", "same-origin")];
    let table: [(&[(&str, &str)], u16); 13] = [
        // What a form, or a script without leave, can send.
        (&[("content-type", "application/x-www-form-urlencoded")], 415),
        (&[("content-type", "text/plain")], 415),
        (&[("content-type", "multipart/form-data; boundary=x")], 415),
        (&[("content-type", "text/plain;charset=application/json")], 415),
        (&[], 415),
        // What a script with leave could.
        (&[JSON, ("origin", "http://evil.example")], 403),
        (&[JSON, ("origin", "null")], 403),
        (&[JSON, ("origin", "http://localhost:3000")], 403),
        (&[JSON, ("origin", &origin.replace("http:", "https:"))], 403),
        (&[JSON, ("sec-fetch-site", "cross-site")], 403),
        (&[JSON, ("sec-fetch-site", "same-site")], 403),
        (&[JSON, ("origin", &origin), ("sec-fetch-site", "cross-site")], 403),
        (&[("content-type", "text/plain"), ("origin", "http://evil.example")], 403),
    ];
    let body = json!({ "name": "mine", "scope": "admin" }).to_string();
    for (headers, status) in table {
        for (method, path) in [
            (Method::POST, "/api/v1/tokens"),
            (Method::POST, "/api/v1/jobs"),
            (Method::DELETE, "/api/v1/tokens/x"),
            (Method::PUT, "/api/v1/tokens/x"),
            (Method::PATCH, "/api/v1/jobs"),
        ] {
            let answer = ask(&served.base, method.clone(), path, headers, Some(body.clone())).await;
            let unknown = [Method::PUT, Method::PATCH].contains(&method) && status == 415;
            let answer = answer.is(if unknown { 405 } else { status });
            let told: Vec<&str> = answer.headers.keys().map(|name| name.as_str()).collect();
            assert!(!told.iter().any(|name| name.starts_with("access-control")), "{told:?}");
        }
    }
    // A preflight request is refused.
    let asks = [("origin", "http://evil.example"), ("access-control-request-method", "POST")];
    let preflight = ask(&served.base, Method::OPTIONS, "/api/v1/tokens", &asks, None).await.is(403);
    assert_eq!(preflight.header("access-control-allow-origin"), "");
    assert_eq!(served.get("/api/v1/tokens").await.is(200).json(), json!({ "tokens": [] }));
    assert_eq!(served.get("/api/v1/audit").await.json()["entries"], json!([]), "none of them got as far as that");
    // The server's own page may.
    ask(&served.base, Method::POST, "/api/v1/tokens", own, Some(body)).await.is(201);
}

#[tokio::test]
async fn a_client_behind_a_proxy_is_not_taken_for_a_user_of_this_machine() {
    let ground = Ground::embedded();
    let served = Served::start(&config(&ground, "anonymous = \"admin\"")).await;
    let known = [
        "x-forwarded-for",
        "x-forwarded-server",
        "x-forwarded-port",
        "forwarded",
        "via",
        "x-real-ip",
        "x-client-ip",
        "true-client-ip",
        "cf-connecting-ip",
        "x-envoy-external-address",
    ];
    for header in known {
        let answer = ask(&served.base, Method::GET, "/api/v1/audit", &[(header, "6.6.6.6")], None).await;
        answer.says(400, "api.behind_proxy = true");
    }
    // nginx with nothing but `proxy_pass` adds no header, and speaks HTTP/1.0.
    let bare = format!("GET /api/v1/audit HTTP/1.0\r\nHost: {}\r\n\r\n", served.address);
    let answer = served.raw(bare.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.0 400") && answer.contains("api.behind_proxy = true"), "{answer}");
    let ground = Ground::embedded();
    let config = config(&ground, "behind_proxy = true\nhosts = [\"ops.example.org\"]");
    let mine = token(&config, "mine", "operate").await;
    let served = Served::start(&config).await;
    let name = [("host", "ops.example.org"), ("x-forwarded-for", "6.6.6.6, 198.51.100.7")];
    let nobody = ask(&served.base, Method::GET, "/api/v1/session", &name, None).await.is(200);
    assert_eq!(
        (nobody.json()["scope"].as_str(), nobody.header("strict-transport-security")),
        (Some("none"), "max-age=31536000")
    );
    ask(&served.base, Method::GET, "/api/v1/audit", &name, None).await.is(401);
    let answer = served.raw(b"GET /api/v1/session HTTP/1.0\r\nHost: ops.example.org\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    let authorization = bearer(&mine);
    let with = |origin: &'static str| {
        let headers = [name[0], name[1], JSON, ("origin", origin), ("authorization", &authorization)];
        let headers: Vec<(String, String)> = headers.map(|(name, value)| (name.into(), value.into())).into();
        let base = served.base.clone();
        async move {
            let headers: Vec<(&str, &str)> =
                headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            ask(&base, Method::POST, "/api/v1/jobs", &headers, Some(job("a").to_string())).await
        }
    };
    with("http://ops.example.org").await.is(403);
    with("https://ops.example.org").await.is(201);
}

// ---- Who ----

#[tokio::test]
async fn tokens_live_from_their_creation_to_their_end() {
    let ground = Ground::embedded();
    let config = config(&ground, "anonymous = \"none\"");
    let created = told("token create", &config, &["ci", "--scope", "operate", "--expires", "90d"]).await;
    let secret = created["secret"].as_str().unwrap();
    assert!(secret.starts_with("rl_") && secret.len() == 67, "{secret}");
    let shown = &created["token"];
    assert_eq!((&shown["name"], &shown["scope"], &shown["last_used"]), (&json!("ci"), &json!("operate"), &json!(null)));
    let lasts = shown["expires"].as_i64().unwrap() - shown["created"].as_i64().unwrap();
    assert!((lasts - 90 * 86_400_000).abs() < 60_000, "{shown}");
    refused("token create", &config, &["ci", "--scope", "read"], &["a token ci already", "revoke it first"]).await;
    refused("token create", &config, &["two words", "--scope", "read"], &["letters"]).await;
    refused("token create", &config, &["x", "--scope", "none"], &["worth nothing"]).await;
    let slip = run("token create", &config, &["x", "--scope", "root"]).await;
    assert!(slip.code == Some(2) && slip.stderr.contains("none, read, operate and admin"), "{slip:?}");
    refused("token revoke", &config, &["nobody"], &["no token nobody", "token list"]).await;

    let served = Served::start(&config).await.with_token(secret);
    let session = served.get("/api/v1/session").await.is(200).json();
    let expected = json!({
        "actor": "ci", "scope": "operate", "version": env!("CARGO_PKG_VERSION"), "ledger": "sqlite",
        "broker": "embedded", "name": "roundelay",
    });
    assert_eq!(session, expected);
    served.post("/api/v1/jobs", &job("a")).await.is(201);
    served.get("/api/v1/tokens").await.says(403, "needs the scope `admin`, and the token ci has `operate`");
    until("its use is noted", async || told("token list", &config, &[]).await["tokens"][0]["last_used"].is_i64()).await;
    // Nowhere does the ledger have what its holder shows.
    for file in std::fs::read_dir(ground.folder.path()).unwrap() {
        let path = file.unwrap().path();
        if path.to_str().unwrap().contains("ledger.db") {
            let bytes = std::fs::read(&path).unwrap();
            let digits = &secret.as_bytes()[3..];
            assert!(!bytes.windows(digits.len()).any(|window| window == digits), "{}", path.display());
        }
    }
    assert!(ok("token list", &config, &[]).await.contains("ci "));
    ok("token revoke", &config, &["ci"]).await;
    served.get("/api/v1/session").await.says(401, "revoked");
    assert_eq!(told("token list", &config, &[]).await, json!({ "tokens": [] }));
}

#[tokio::test]
async fn tokens_are_managed_with_the_scope_admin_only() {
    let ground = Ground::embedded();
    let config = config(&ground, "anonymous = \"none\"");
    let served = Served::start(&config).await.with_token(&token(&config, "root", "admin").await);
    let made =
        served.post("/api/v1/tokens", &json!({ "name": "ci", "scope": "read", "expires_in": "1h" })).await.is(201);
    let made = made.json();
    let headers = [("authorization", &*bearer(made["secret"].as_str().unwrap()))];
    let session = ask(&served.base, Method::GET, "/api/v1/session", &headers, None).await;
    assert_eq!(session.json()["actor"], "ci");
    served.post("/api/v1/tokens", &json!({ "name": "ci", "scope": "read" })).await.says(409, "another name");
    for (wish, words) in [
        (json!({ "name": "a\r\nset-cookie: b=c", "scope": "read" }), "letters"),
        (json!({ "name": "<script>", "scope": "read" }), "letters"),
        (json!({ "name": "anonymous", "scope": "read" }), "is not `anonymous`"),
        (json!({ "name": "x", "scope": "none" }), "worth nothing"),
        (json!({ "name": "x", "scope": "root" }), "scope: unknown variant `root`"),
        (json!({ "name": "x", "scope": "read", "expires_in": "soon" }), "expires_in: `soon` is not a duration"),
        (json!({ "name": "x", "scope": "read", "expire": "1h" }), "unknown field `expire`"),
        (json!({ "name": 7, "scope": "read" }), "name: invalid type"),
    ] {
        served.post("/api/v1/tokens", &wish).await.says(422, words);
    }
    let listed = served.get("/api/v1/tokens").await.is(200).json();
    let names: Vec<&str> =
        listed["tokens"].as_array().unwrap().iter().map(|token| token["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["ci", "root"]);
    let fields = |token: &Value| token.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(&listed["tokens"][0]), ["created", "expires", "id", "last_used", "name", "scope"], "no more");
    assert_eq!(listed["tokens"][0]["id"], made["token"]["id"]);
    served.delete("/api/v1/tokens/ci").await.is(200);
    served.delete("/api/v1/tokens/ci").await.is(404);
    ask(&served.base, Method::GET, "/api/v1/session", &headers, None).await.is(401);
}

#[tokio::test]
async fn invalid_tokens_are_refused_and_soon_not_checked() {
    let ground = Ground::embedded();
    // A client with a bad token is refused, though clients without a token are admins.
    let config = config(&ground, "anonymous = \"admin\"");
    let good = token(&config, "good", "read").await;
    let mut others = Vec::new();
    for n in 0..5 {
        others.push(token(&config, &format!("other-{n}"), "read").await);
    }
    let gone = token(&config, "gone", "admin").await;
    ok("token revoke", &config, &["gone"]).await;
    let brief = told("token create", &config, &["brief", "--scope", "admin", "--expires", "1ms"]).await;
    let brief = brief["secret"].as_str().unwrap();
    let served = Served::start(&config).await;
    let session = async |authorization: &str| {
        ask(&served.base, Method::GET, "/api/v1/session", &[("authorization", authorization)], None).await
    };
    session(&bearer(&good)).await.is(200);
    let unknown = format!("rl_{}", "0".repeat(64));
    until("it has expired", async || session(&bearer(brief)).await.status == 401).await;
    session(&bearer(brief)).await.says(401, "has expired");
    for token in [&gone, &unknown, &good[3..], &good.to_uppercase(), &format!("{good}0"), "", "' OR 1=1 --"] {
        session(&bearer(token)).await.says(401, "never created, or it was revoked");
    }
    for odd in ["Basic cm9vdDpyb290", good.as_str(), "Bearer"] {
        session(odd).await.is(401);
    }
    let twice = [("authorization", &*bearer(&good)), ("authorization", &*bearer(&gone))];
    ask(&served.base, Method::GET, "/api/v1/session", &twice, None).await.is(400);
    // One token, again and again; then many from one address.
    let mut answers = BTreeSet::new();
    for _ in 0..20 {
        answers.insert(session(&bearer(&unknown)).await.status);
    }
    assert_eq!(answers.into_iter().collect::<Vec<_>>(), [401, 429]);
    for n in 0..40 {
        session(&bearer(&format!("rl_{n:064x}"))).await;
    }
    let limited = session(&bearer(&gone)).await.says(429, "too many tokens");
    assert!((1..=60).contains(&limited.header("retry-after").parse::<u64>().unwrap()), "{limited:?}");
    // Also those that would be worth something, but for one in two seconds; and not one that has shown it.
    let mut answers = Vec::new();
    for other in &others {
        answers.push(session(&bearer(other)).await.status);
    }
    assert!(answers.contains(&429), "{answers:?}");
    session(&bearer(&good)).await.is(200);
    assert_eq!(served.get("/api/v1/session").await.is(200).json()["actor"], "anonymous");
    let audit = served.get("/api/v1/audit").await.json();
    let by_command = |entry: &Value| entry["action"].as_str().unwrap().starts_with("roundelay token ");
    assert!(audit["entries"].as_array().unwrap().iter().all(by_command), "no 401 fills the audit: {audit}");
}

#[tokio::test]
async fn the_server_refuses_other_machines_without_tokens_and_tls() {
    let ground = Ground::embedded();
    let serve = async |api: &str, listen: &str, words: &[&str]| {
        refused("serve", &config(&ground, api), &["--listen", listen], words).await;
    };
    let clear = ["over the network in the clear", "api.tls.certificate", "api.behind_proxy = true"];
    serve("", "0.0.0.0:0", &clear).await;
    serve("", "[::]:0", &clear).await;
    serve("anonymous = \"read\"", "0.0.0.0:0", &["api.anonymous", "for everybody who reaches it", "token create"])
        .await;
    serve("behind_proxy = true", "0.0.0.0:0", &["nobody who may use it", "roundelay token create"]).await;
    serve(
        "tls = { certificate = \"absent.pem\", key = \"absent.pem\" }",
        "127.0.0.1:0",
        &["api.tls", "absent.pem cannot be read"],
    )
    .await;
    // What the file says is refused when it is read.
    for (api, words) in [
        ("anonymous = \"read\"\nbehind_proxy = true", None),
        ("listen = \"0.0.0.0:1\"", Some("api.listen: 0.0.0.0:1 is reached from other machines")),
        (
            "listen = \"0.0.0.0:1\"\nbehind_proxy = true\nanonymous = \"operate\"",
            Some("api.anonymous: `operate` would be"),
        ),
        ("hosts = [\"https://x\"]", Some("api.hosts: `https://x` is not the name of a host")),
        ("anonymous = \"root\"", Some("api.anonymous: unknown key `root`")),
        ("patience = \"1ms\"", Some("api.patience: 1ms is out of range")),
        ("tls = { certificate = \"c\", key = \"k\" }\nbehind_proxy = true", Some("api.behind_proxy: TLS ends")),
        ("name = \"\"", Some("api.name")),
    ] {
        match words {
            Some(words) => refused("check", &config(&ground, api), &[], &[words]).await,
            None => drop(ok("check", &config(&ground, api), &[]).await),
        }
    }
    serve("anonymous = \"read\"\nbehind_proxy = true", "127.0.0.1:0", &["behind a proxy"]).await;
    // A token that has expired gives no access.
    let with_proxy = config(&ground, "behind_proxy = true");
    ok("token create", &with_proxy, &["old", "--scope", "admin", "--expires", "1ms"]).await;
    refused("serve", &with_proxy, &["--listen", "0.0.0.0:0"], &["nobody who may use it"]).await;
    token(&with_proxy, "new", "admin").await;
    let served = Served::start_as(&["serve", "--listen", "0.0.0.0:0"], &with_proxy).await;
    assert_eq!(served.stop().await, Some(0));
}

#[tokio::test]
async fn tls_ends_here_with_a_certificate() {
    let ground = Ground::embedded();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/tls");
    let (certificate, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
    let tls = format!("hosts = [\"ops.example.org\"]\ntls = {{ certificate = {certificate:?}, key = {key:?} }}\n");
    let patient = config(&ground, &tls);
    let mine = token(&patient, "mine", "read").await;
    let mut served = Served::start_as(&["serve", "--listen", "0.0.0.0:0"], &patient).await;
    served.address.set_ip([127, 0, 0, 1].into());
    let root = reqwest::Certificate::from_pem(&std::fs::read(&certificate).unwrap()).unwrap();
    let client = client().tls_certs_only([root]).resolve("ops.example.org", served.address).build().unwrap();
    let base = format!("https://ops.example.org:{}", served.address.port());
    let authorization = bearer(&mine);
    let answer = ask_by(&client, &base, Method::GET, "/api/v1/audit", &[("authorization", &authorization)], None).await;
    assert_eq!(answer.is(200).header("strict-transport-security"), "max-age=31536000");
    ask_by(&client, &base, Method::GET, "/api/v1/audit", &[], None).await.is(401);
    // By a name of loopback, which other servers share, a browser is told nothing for a year.
    let local = format!("https://localhost:{}", served.address.port());
    let answer = ask_by(&client, &local, Method::GET, "/api/v1/session", &[], None).await.is(200);
    assert_eq!(answer.header("strict-transport-security"), "");
    // The server soon stops reading from a client that speaks no TLS, or sends nothing.
    assert!(!served.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.contains("HTTP/1.1"));
    let hasty = config(&ground, &(tls + "patience = \"300ms\""));
    let served = Served::start(&hasty).await;
    assert_eq!(served.raw(b"").await, "");
}

// ---- How much, and how fast ----

#[tokio::test]
async fn bodies_that_are_too_large_are_not_read() {
    let ground = Ground::embedded();
    let served = Served::start(&config(&ground, "anonymous = \"admin\"")).await;
    let head = |path: &str, more: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n{more}\r\n"
        )
    };
    for (path, most) in [("/api/v1/tokens", 64 << 10), ("/api/v1/jobs", 1 << 20)] {
        // Said beforehand: nothing of it is waited for.
        let answer = served.raw(head(path, &format!("Content-Length: {}\r\n", most + 1)).as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("application/problem+json"), "{answer}");
        // Not said, and without an end.
        let mut stream = served.connect("127.0.0.1").await;
        stream.write_all(head(path, "Transfer-Encoding: chunked\r\n").as_bytes()).await.unwrap();
        let chunk = format!("10000\r\n{}\r\n", "7".repeat(0x1_0000));
        for _ in 0..=most / 0x1_0000 {
            let _ = stream.write_all(chunk.as_bytes()).await;
        }
        let answer = read_all(&mut stream).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 413"), "{path}: {answer}");
        let large = "x".repeat(most);
        let body = json!({ "kind": "sync", "key": "a", "payload": large }).to_string();
        served.ask(Method::POST, path, &[JSON], Some(body)).await.says(413, &most.to_string());
    }
    let payload = "x".repeat(900 << 10);
    served.post("/api/v1/jobs", &json!({ "kind": "sync", "key": "a", "payload": payload })).await.is(201);
    // The refused ones are in the audit, without what they brought.
    let audit = served.get("/api/v1/audit").await.json();
    let statuses: BTreeSet<i64> =
        audit["entries"].as_array().unwrap().iter().map(|entry| entry["status"].as_i64().unwrap()).collect();
    assert_eq!(statuses.into_iter().collect::<Vec<_>>(), [201, 413]);
    assert!(audit.to_string().len() < 20_000);
    // Headers have an end, too.
    let answer =
        served.raw(format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(1 << 20)).as_bytes()).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{}", &answer[..100.min(answer.len())]);
}

#[tokio::test]
async fn slow_clients_are_disconnected() {
    let ground = Ground::embedded();
    let served = Served::start(&config(&ground, "anonymous = \"admin\"\npatience = \"300ms\"")).await;
    // Says nothing, or never comes to the end of the headers.
    for begun in ["", "GET / HTTP/1.1\r\nHost: localhost\r\nX: "] {
        let answer = served.raw(begun.as_bytes()).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
    // A letter of a header now and then.
    let mut stream = served.connect("127.0.0.1").await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ").await.unwrap();
    let dribble = async {
        while stream.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await; // It is slow.
        }
    };
    timeout(SOON, dribble).await.expect("it is cut off");
    // Never comes to the end of the body. (Each is tried again when this test itself was too slow.)
    let body =
        "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{";
    until("it is told that it is too slow", async || {
        let answer = served.raw(body.as_bytes()).await;
        answer.starts_with("HTTP/1.1 408") && answer.contains("the body was not there within 900ms")
    })
    .await;
    // Does not ask again: it is answered, and the connection ends.
    until("it is answered", async || {
        served.raw(b"GET /api/v1/session HTTP/1.1\r\nHost: localhost\r\n\r\n").await.starts_with("HTTP/1.1 200")
    })
    .await;
}

#[tokio::test]
async fn one_address_with_all_its_slow_clients_keeps_nobody_else_out() {
    let ground = Ground::embedded();
    // So patient that none of them is cut off while the test runs.
    let served = Served::start(&config(&ground, "patience = \"5m\"")).await;
    let mut slow = Vec::new();
    for _ in 0..64 {
        let mut stream = served.connect("127.0.0.2").await;
        stream.write_all(b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\n").await.unwrap();
        slow.push(stream);
    }
    // It has its share: who comes from there gets the place of the one that has held its own longest.
    let mut one_more = served.connect("127.0.0.2").await;
    one_more.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    assert_eq!(read_all(&mut slow.remove(0)).await, "", "nobody can tell what it wanted");
    until("it is answered", async || {
        let mut begun = [0; 12];
        one_more.peek(&mut begun).await.is_ok() && &begun == b"HTTP/1.1 200"
    })
    .await;
    served.get("/api/v1/session").await.is(200);
    assert_eq!(served.stop().await, Some(0), "nor do they keep it from stopping");
}

// ---- What is said ----

#[tokio::test]
async fn every_answer_keeps_browsers_from_doing_harm_with_it() {
    let ground = Ground::embedded();
    let served = Served::start(&config(&ground, "")).await;
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                  base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";
    let mut ids = BTreeSet::new();
    let answers: Vec<(Answer, u16)> = vec![
        (served.get("/").await, 200),
        (served.get("/api/v1/session").await, 200),
        (served.get("/api/v1/tokens").await, 401),
        (served.get("/nothing").await, 404),
        (served.ask(Method::DELETE, "/", &[JSON], None).await, 405),
        (served.ask(Method::POST, "/api/v1/jobs", &[], None).await, 415),
        (served.ask(Method::GET, "/", &[("host", "evil.example")], None).await, 421),
        (served.get("/api/v1/audit?limit=0").await, 400),
        (served.get("/api/v1/audit?limt=5").await, 400),
        (served.get("/api/v1/audit?after=zz").await, 400),
    ];
    for (answer, status) in answers {
        let answer = answer.is(status);
        assert_eq!(answer.header("content-security-policy"), policy);
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("referrer-policy"), "no-referrer");
        assert_eq!(answer.header("cross-origin-opener-policy"), "same-origin");
        assert_eq!(answer.header("cross-origin-resource-policy"), "same-origin");
        assert!(answer.header("permissions-policy").contains("camera=()"));
        let page = answer.header("content-type").starts_with("text/html");
        assert_eq!(answer.header("cache-control"), if page { "no-cache" } else { "no-store" });
        assert!(ids.insert(answer.header("x-request-id").to_owned()), "each has an id of its own");
        assert_eq!(answer.header("set-cookie"), "");
    }
    let page = served.get("/").await;
    let known = served.ask(Method::GET, "/", &[("if-none-match", page.header("etag"))], None).await;
    assert_eq!((known.status, known.text.as_str()), (304, ""));
    let head = served.ask(Method::HEAD, "/api/v1/session", &[], None).await;
    assert_eq!((head.status, head.text.as_str()), (200, ""));
}

#[tokio::test]
async fn requests_reach_no_other_files() {
    let ground = Ground::embedded();
    let served = Served::start(&config(&ground, "")).await;
    for path in [
        "/../../../../etc/passwd",
        "/..%2f..%2f..%2fetc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/assets/..%5c..%5cetc%5cpasswd",
        "//etc/passwd",
        "/./index.html",
        "/index.html%00.js",
        "/roundelay.toml",
        "/.git/config",
        "/api/v1/../../etc/passwd",
        "/api/v1/tokens/..%2f..%2fetc%2fpasswd",
        "etc/passwd",
        "*",
    ] {
        let answer =
            served.raw(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes()).await;
        let status = answer.get(9..12).unwrap_or_default();
        assert!(["400", "404", "405"].contains(&status) && !answer.contains("root:"), "{path}: {answer}");
    }
}

#[tokio::test]
async fn nonsense_is_refused_with_words() {
    let ground = Ground::embedded();
    let served = Served::start(&config(&ground, "anonymous = \"operate\"")).await;
    let publish = async |body: &str| served.ask(Method::POST, "/api/v1/jobs", &[JSON], Some(body.into())).await;
    let deep = |levels: usize| {
        format!(r#"{{"kind":"sync","key":"a","payload":{}{}}}"#, "[".repeat(levels), "]".repeat(levels))
    };
    publish(&deep(100)).await.is(201);
    publish(&deep(200)).await.says(400, "recursion limit");
    publish(&deep(100_000)).await.says(400, "recursion limit");
    for (body, status, words) in [
        ("", 400, "not a JSON object"),
        ("[]", 400, "not a JSON object"),
        ("{", 400, "not JSON"),
        (r#"{"kind":"sync","key":"a"}{}"#, 400, "not JSON"),
        (r#"{"kind":"sync"}"#, 422, "missing field `key`"),
        (r#"{"kind":"sync","key":"a","dealy":"1m"}"#, 422, "dealy: unknown field `dealy`"),
        (r#"{"kind":"sync","key":["a"]}"#, 422, "key: invalid type"),
        (r#"{"kind":"snyc","key":"a"}"#, 422, "there is no [kinds.snyc]"),
        (r#"{"kind":"sync","key":"a","queue":"wrok"}"#, 422, "there is no [queues.wrok]"),
        (r#"{"kind":"sync","key":"a","delay":"soon"}"#, 422, "delay: `soon` is not a duration"),
        (r#"{"kind":"sync","key":""}"#, 422, "`key` is empty"),
        (r#"{"kind":"sync","key":"a\r\nX: y"}"#, 422, "control character"),
        (r#"{"kind":"sync","key":"\ud800"}"#, 400, "not JSON"),
    ] {
        publish(body).await.says(status, words);
    }
    // What is quoted in an answer breaks out of nothing.
    let quoted = publish(r#"{"kind":"</script>\r\nX-Evil: 1","key":"a"}"#).await.is(422);
    assert_eq!(quoted.header("x-evil"), "");
    let answer = served.raw(b"GET /%0d%0aX-Evil:%201 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 404") && !answer.to_lowercase().contains("\nx-evil"), "{answer}");
}

#[tokio::test]
async fn a_ledger_that_cannot_be_used_is_no_fault_of_the_request() {
    let ground = Ground::embedded();
    let served = Served::start(&config(&ground, "anonymous = \"operate\"")).await;
    let key = [JSON, ("idempotency-key", "k")];
    // A newer program has changed its format: nothing is written to it any more.
    let set = |version: i64| {
        let ledger = rusqlite::Connection::open(ground.path("ledger.db")).unwrap();
        let now: i64 = ledger.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
        ledger.pragma_update(None, "user_version", version).unwrap();
        now
    };
    let version = set(99);
    let answer = served.ask(Method::POST, "/api/v1/jobs", &key, Some(job("a").to_string())).await;
    let answer = answer.says(503, "the ledger cannot be used just now");
    assert_eq!(answer.header("retry-after"), "5");
    // The log says why, under the same id.
    let id = answer.header("x-request-id");
    let said = |line: &Value| line.to_string().contains("a newer program") && line.to_string().contains(id);
    until("the log says why", async || served.log.lock().iter().any(said)).await;
    set(version);
    let answer = served.ask(Method::POST, "/api/v1/jobs", &key, Some(job("a").to_string())).await.is(201);
    assert_eq!(answer.header("idempotent-replayed"), "", "it was not done before");
}

// ---- What is remembered ----

#[tokio::test]
async fn the_same_request_is_done_once() {
    let ground = Ground::embedded();
    let config = config(&ground, "anonymous = \"admin\"");
    let served = Served::start(&config).await;
    let publish = async |key: &str, body: Value| {
        served.ask(Method::POST, "/api/v1/jobs", &[JSON, ("idempotency-key", key)], Some(body.to_string())).await
    };
    let first = publish("one", job("a")).await.is(201);
    assert_eq!(first.header("idempotent-replayed"), "");
    let again = publish("one", job("a")).await.is(201);
    assert_eq!((again.header("idempotent-replayed"), &again.text), ("true", &first.text));
    assert_eq!(again.header("content-type"), "application/json");
    publish("one", job("b")).await.says(422, "used for another request");
    let elsewhere = [JSON, ("idempotency-key", "one")];
    served.ask(Method::POST, "/api/v1/jobs?x", &elsewhere, Some(job("a").to_string())).await.is(422);
    // What was refused is refused again, with the same words.
    let refused = publish("two", job("")).await.is(422);
    let again = publish("two", job("")).await.is(422);
    assert_eq!((again.header("idempotent-replayed"), &again.text), ("true", &refused.text));
    for odd in ["", "a b", &"x".repeat(129)] {
        publish(odd, job("a")).await.says(400, "Idempotency-Key");
    }
    // Another person's key is another key; so is one of another token with the same name.
    let mut ids = BTreeSet::from([first.json()["id"].as_str().unwrap().to_owned()]);
    for _ in 0..2 {
        let authorization = bearer(&token(&config, "ci", "operate").await);
        let headers = [JSON, ("idempotency-key", "one"), ("authorization", &authorization)];
        let theirs =
            ask(&served.base, Method::POST, "/api/v1/jobs", &headers, Some(job("a").to_string())).await.is(201);
        ids.insert(theirs.json()["id"].as_str().unwrap().to_owned());
        ok("token revoke", &config, &["ci"]).await;
    }
    assert_eq!(ids.len(), 3);
    // A server that is started anew remembers.
    assert_eq!(served.stop().await, Some(0));
    let served = Served::start(&config).await;
    let body = Some(job("a").to_string());
    let again = served.ask(Method::POST, "/api/v1/jobs", &[JSON, ("idempotency-key", "one")], body).await.is(201);
    assert_eq!((again.header("idempotent-replayed"), &again.text), ("true", &first.text));
}

#[tokio::test]
async fn the_same_request_at_the_same_time_is_done_once() {
    let ground = Ground::embedded();
    let config = config(&ground, "anonymous = \"operate\"");
    // Two servers on one ledger, as far as that goes.
    let served = [Served::start(&config).await, Served::start(&config).await];
    for round in 0..5 {
        let mut asking = JoinSet::new();
        for n in 0..10 {
            let (base, key) = (served[n % 2].base.clone(), format!("key-{round}"));
            asking.spawn(async move {
                let headers = [JSON, ("idempotency-key", key.as_str())];
                ask(&base, Method::POST, "/api/v1/jobs", &headers, Some(job("a").to_string())).await
            });
        }
        let answers = asking.join_all().await;
        let done =
            answers.iter().filter(|answer| answer.status == 201 && answer.header("idempotent-replayed").is_empty());
        assert_eq!(done.count(), 1, "{answers:?}");
        for answer in answers {
            match answer.status {
                201 => {}
                _ => assert_eq!(answer.says(409, "is being worked on").header("retry-after"), "1"),
            }
        }
    }
    let kept: i64 = rusqlite::Connection::open(ground.path("ledger.db"))
        .unwrap()
        .query_row("SELECT count(*) FROM jobs", [], |row| row.get(0))
        .unwrap();
    assert_eq!(kept, 5, "one job for each key");
}

#[tokio::test]
async fn a_change_goes_on_without_its_client_and_a_secret_is_answered_once() {
    let ground = Ground::embedded();
    let served = Served::start(&config(&ground, "anonymous = \"admin\"")).await;
    let wish = json!({ "name": "ci", "scope": "read" }).to_string();
    let key = [JSON, ("idempotency-key", "one")];
    let secret = served.ask(Method::POST, "/api/v1/tokens", &key, Some(wish.clone())).await.is(201).json();
    served.ask(Method::POST, "/api/v1/tokens", &key, Some(wish)).await.says(409, "was not kept");
    let audit = served.get("/api/v1/audit").await.is(200);
    assert!(!audit.text.contains(secret["secret"].as_str().unwrap()));
    // A client that leaves as soon as it has asked.
    let body = job("left").to_string();
    let mut stream = served.connect("127.0.0.1").await;
    let request = format!(
        "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    drop(stream);
    // It may not have been heard at all; if it was, then there is an end of it.
    until("nothing is half done", async || {
        let audit = served.get("/api/v1/audit").await.json();
        audit["entries"].as_array().unwrap().iter().all(|entry| entry["status"].is_number())
    })
    .await;
}

#[tokio::test]
async fn the_audit_has_what_was_asked_done_or_not() {
    let ground = Ground::embedded();
    let config = config(&ground, "anonymous = \"operate\"");
    let admin = bearer(&token(&config, "root", "admin").await);
    let reader = bearer(&token(&config, "viewer", "read").await);
    let served = Served::start(&config).await;
    let with = async |authorization: &str, method: Method, path: &str, body: Value| {
        let headers = [JSON, ("authorization", authorization)];
        ask(&served.base, method, path, &headers, Some(body.to_string())).await
    };
    let nothing = json!({ "kind": "nothing", "key": "a", "payload": "private" });
    served.post("/api/v1/jobs", &nothing).await.is(422);
    served.post("/api/v1/jobs", &json!({ "kind": "sync", "key": "a", "payload": "private" })).await.is(201);
    with(&reader, Method::POST, "/api/v1/jobs", job("b")).await.is(403);
    with(&admin, Method::DELETE, "/api/v1/tokens/no%0a%C3%BC%20one", json!({})).await.is(404);
    with(&admin, Method::POST, "/api/v1/tokens", json!({ "name": "ci", "scope": "read" })).await.is(201);
    let audit = served.get("/api/v1/audit").await.is(200).json();
    let entries = audit["entries"].as_array().unwrap();
    let numbers: Vec<i64> = entries.iter().map(|entry| entry["number"].as_i64().unwrap()).collect();
    assert!(numbers.is_sorted_by(|a, b| a > b), "latest first");
    let told: Vec<Value> = entries
        .iter()
        // The tokens were made by command; `audit` looks at that.
        .filter(|entry| !entry["action"].as_str().unwrap().starts_with("roundelay token "))
        .map(|entry| json!([entry["actor"], entry["scope"], entry["action"], entry["target"], entry["status"]]))
        .collect();
    let expected = [
        json!(["root", "admin", "POST /api/v1/tokens", "", 201]),
        json!(["root", "admin", "DELETE /api/v1/tokens/{name}", "no\u{fffd}ü one", 404]),
        json!(["viewer", "read", "POST /api/v1/jobs", "", 403]),
        json!(["anonymous@127.0.0.1", "operate", "POST /api/v1/jobs", "", 201]),
        json!(["anonymous@127.0.0.1", "operate", "POST /api/v1/jobs", "", 422]),
    ];
    assert_eq!(told, expected);
    assert_eq!(entries[0]["detail"], json!({ "name": "ci", "scope": "read" }));
    assert!(entries[2]["detail"]["refused"].as_str().unwrap().contains("needs the scope `operate`"));
    assert_eq!(entries[3]["detail"]["key"], "a");
    assert!(!audit.to_string().contains("private"), "a payload is not the audit's business");
    // Page by page it is the same.
    let (mut paged, mut after) = (Vec::new(), None::<String>);
    loop {
        let next = after.map_or(String::new(), |after| format!("&after={after}"));
        let page = served.get(&format!("/api/v1/audit?limit=3{next}")).await.is(200).json();
        paged.extend(page["entries"].as_array().unwrap().clone());
        after = page["after"].as_str().map(str::to_owned);
        if after.is_none() {
            break;
        }
    }
    assert_eq!(&paged, entries);
}

// ---- In a worker ----

#[tokio::test]
async fn a_worker_answers_too_and_runs_what_is_published_there() {
    let ground = Ground::embedded();
    let done = ground.path("done");
    let config = ground.config_file(&format!(
        "[queues.work]\n[kinds.sync]\nqueue = \"work\"\nhandler.exec.argv = [\"/usr/bin/touch\", {done:?}]\n\
         [api]\nlisten = \"127.0.0.1:0\"\nanonymous = \"operate\"\nname = \"Staging\"\n"
    ));
    let served = Served::start_as(&["worker"], &config).await;
    assert_eq!(served.get("/api/v1/session").await.is(200).json()["name"], "Staging");
    let published = served.post("/api/v1/jobs", &job("a")).await.is(201).json();
    assert_eq!((&published["queue"], &published["due"]), (&json!("work"), &json!(null)));
    until("it runs", async || done.exists()).await;
    let later = json!({ "kind": "sync", "key": "a", "delay": "1h" });
    let due = served.post("/api/v1/jobs", &later).await.is(201).json()["due"].as_i64().unwrap();
    assert!(due > 1_700_000_000_000, "{due}");
    assert_eq!(served.stop().await, Some(0));
}

#[tokio::test]
async fn a_job_is_published_over_rabbitmq_and_one_without_a_place_is_not_lost_silently() {
    let ground = Ground::rabbit().await;
    let config = config(&ground, "anonymous = \"operate\"");
    let served = Served::start(&config).await;
    assert_eq!(served.get("/api/v1/session").await.json()["broker"], "rabbitmq");
    served.post("/api/v1/jobs", &job("a")).await.says(503, "roundelay topology apply");
    ok("topology apply", &config, &[]).await;
    // What was found absent is not asked for again for a second.
    until("it is published", async || served.post("/api/v1/jobs", &job("a")).await.status == 201).await;
    let depth = || async {
        let vhost = ground.vhost.as_ref().unwrap();
        vhost
            .raw()
            .await
            .queue_declare(
                "work".into(),
                lapin::options::QueueDeclareOptions { passive: true, ..Default::default() },
                lapin::types::FieldTable::default(),
            )
            .await
            .unwrap()
            .message_count()
    };
    until("it is on the broker", async || depth().await == 1).await;
    assert_eq!(served.stop().await, Some(0));
}
