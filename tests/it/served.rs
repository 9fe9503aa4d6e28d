//! A program that answers the API, and clients for it: one that speaks HTTP as usual, and one that sends bytes.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use parking_lot::Mutex;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, StatusCode};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::Child;
use tokio::time::timeout;

use crate::commands;
use crate::harness::{SOON, until};

/// `roundelay serve` (or `worker`), whose log is read.
pub struct Served {
    pub process: Child,
    pub log: Arc<Mutex<Vec<Value>>>,
    /// `http://127.0.0.1:…`
    pub base: String,
    pub address: SocketAddr,
    token: Option<String>,
}

impl Served {
    /// `roundelay serve` on any free port.
    pub async fn start(config: &Path) -> Self {
        Self::start_as(&["serve", "--listen", "127.0.0.1:0"], config).await
    }

    pub async fn start_as(command: &[&str], config: &Path) -> Self {
        let mut process = tokio::process::Command::new(env!("CARGO_BIN_EXE_roundelay"))
            .args(command)
            .arg("--config")
            .arg(config)
            .env("ROUNDELAY_LOG_FORMAT", "json")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let log: Arc<Mutex<Vec<Value>>> = Arc::default();
        let theirs = log.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
                theirs.lock().push(line);
            }
        });
        let base = || log.lock().iter().find_map(|line| line["api"].as_str().map(str::to_owned));
        until("it answers", || {
            let ended = process.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {:?}", log.lock());
            let there = base().is_some();
            async move { there }
        })
        .await;
        let base = base().unwrap();
        let address = base.split_once("://").unwrap().1.parse().unwrap();
        Self { process, log, base, address, token: None }
    }

    /// Everything from now on bears this token.
    pub fn with_token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, &[], None).await
    }

    /// Asks for a change, as a program does.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        let json = [("content-type", "application/json")];
        self.ask(Method::POST, path, &json, Some(body.to_string())).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.ask(Method::DELETE, path, &[("content-type", "application/json")], None).await
    }

    /// Asks with these headers and no others, but for those that are necessary. The token goes with it.
    pub async fn ask(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Option<String>) -> Answer {
        let token = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let token = token.iter().map(|token| ("authorization", token.as_str()));
        let all: Vec<(&str, &str)> = headers.iter().copied().chain(token).collect();
        ask(&self.base, method, path, &all, body).await
    }

    /// Sends bytes and reads what comes back, until the server closes the connection.
    pub async fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect("127.0.0.1").await;
        // The server may stop reading from a client that it refuses early.
        let _ = stream.write_all(bytes).await;
        read_all(&mut stream).await
    }

    /// A connection from this address, which is one of this machine for itself.
    pub async fn connect(&self, from: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// Ends it in good order; its exit code.
    pub async fn stop(mut self) -> Option<i32> {
        let pid = nix::unistd::Pid::from_raw(self.process.id().unwrap().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        timeout(SOON, self.process.wait()).await.expect("it stops").unwrap().code()
    }
}

/// All that comes until the other side closes, in good order or not.
pub async fn read_all(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let _ = timeout(SOON, stream.read_to_end(&mut bytes)).await.expect("the server closes the connection");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What was answered.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The answer, which must have this status; an error is a problem, as all are.
    #[track_caller]
    pub fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        if status >= 400 {
            assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
            let problem = self.json();
            assert_eq!(problem["status"], status, "{self:?}");
            for field in ["type", "title", "detail"] {
                assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "no {field}: {self:?}");
            }
        }
        self
    }

    /// The answer has this status, and its detail has these words.
    #[track_caller]
    pub fn says(self, status: u16, words: &str) -> Self {
        let this = self.is(status);
        let detail = this.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(words), "no `{words}` in: {detail}");
        this
    }
}

pub fn client() -> reqwest::ClientBuilder {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().timeout(SOON)
}

pub async fn ask(base: &str, method: Method, path: &str, headers: &[(&str, &str)], body: Option<String>) -> Answer {
    ask_by(&client().build().unwrap(), base, method, path, headers, body).await
}

pub async fn ask_by(
    client: &reqwest::Client,
    base: &str,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<String>,
) -> Answer {
    let mut request = client.request(method, format!("{base}{path}"));
    for (name, value) in headers {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        request = request.header(HeaderName::from_bytes(name.as_bytes()).unwrap(), value);
    }
    if let Some(body) = body {
        request = request.body(body);
    }
    let response = request.send().await.unwrap();
    let (status, headers): (StatusCode, _) = (response.status(), response.headers().clone());
    Answer { status: status.as_u16(), headers, text: response.text().await.unwrap() }
}

/// A token by the command line.
pub async fn token(config: &Path, name: &str, scope: &str) -> String {
    let printed = commands::ok("token create", config, &[name, "--scope", scope]).await;
    printed.trim().to_owned()
}
