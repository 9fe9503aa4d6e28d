//! `roundelay doctor`, by the real program: healthy grounds pass, and what is really wrong is found with its fix.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::unistd::geteuid;
use reqwest::Method;
use rusqlite::Connection;
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::commands::{ok, run, told};
use crate::harness::{Ground, SOON, Vhost, api, on_all, until};

on_all!(a_healthy_ground_passes);
on_all!(the_doctor_changes_nothing);
on_all!(a_ledger_of_a_newer_program_is_found);

/// A queue, a kind, and time enough on a busy machine.
const WORK: &str = r#"
[queues.work]
[kinds.sync]
every = "1h"
queue = "work"
handler.exec.argv = ["/bin/true"]
"#;
const PATIENT: [&str; 3] = ["--within", "50s", "--json"];
/// A user who owns nothing.
const NOBODY: u32 = 65_534;

struct Report {
    code: Option<i32>,
    report: Value,
    all: String,
}

impl Report {
    async fn of(mut command: Command) -> Self {
        let run = command.stdin(Stdio::null()).kill_on_drop(true).output();
        let output = timeout(SOON, run).await.expect("the command ends").unwrap();
        let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        let report = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("no JSON in {stdout:?}; {stderr}"));
        Self { code: output.status.code(), report, all: stdout + &stderr }
    }

    fn findings(&self) -> &[Value] {
        self.report["findings"].as_array().unwrap()
    }

    /// Whether there is a finding of this sort, of which all this is said.
    fn has(&self, result: &str, what: &str, seen: &str, fix: &str) -> bool {
        let says = |finding: &Value, part: &str, words: &str| finding[part].as_str().unwrap().contains(words);
        self.findings().iter().any(|finding| {
            finding["result"] == result
                && says(finding, "what", what)
                && says(finding, "seen", seen)
                && says(finding, "fix", fix)
        })
    }

    /// Asserts that something is wrong, and how it is said.
    fn found(&self, what: &str, seen: &str, fix: &str) {
        assert!(self.has("bad", what, seen, fix), "no `{what}`, `{seen}`, `{fix}` in {:#}", self.report);
        assert_eq!((self.code, &self.report["ok"]), (Some(1), &json!(false)));
    }
}

fn program(config: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roundelay"));
    command.arg("doctor").arg("--config").arg(config).args(PATIENT);
    command
}

async fn doctor(config: &Path) -> Report {
    Report::of(program(config)).await
}

/// Begins a chain of the kind `sync`, and declares what it needs.
async fn enroll(ground: &Ground, config: &Path) {
    if ground.vhost.is_some() {
        ok("topology apply", config, &[]).await;
    }
    let roster = ground.path("roster.csv");
    std::fs::write(&roster, "key\na\n").unwrap();
    ok("enroll", config, &["--kind", "sync", roster.to_str().unwrap()]).await;
}

/// A worker that has said how it is.
async fn worker(config: &Path) -> Child {
    let worker = crate::harness::worker(config);
    until("the worker is heard of", || async {
        told("workers list", config, &[]).await["workers"].as_array().unwrap().len() == 1
    })
    .await;
    worker
}

/// A port on this machine at which no process listens.
fn closed_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A configuration in which one URL differs.
fn config_with(ground: &Ground, old: &str, new: &str) -> PathBuf {
    let (path, text) = (ground.path("other.toml"), ground.config_text(WORK));
    assert!(text.contains(old), "{old} in {text}");
    std::fs::write(&path, text.replace(old, new)).unwrap();
    path
}

/// A user of the broker, who goes when the test ends, also by a panic.
struct User {
    name: String,
    management: String,
}

impl User {
    async fn new(vhost: &Vhost, password: &str, permissions: Value) -> Self {
        let (name, management) = (format!("{}-user", vhost.name), vhost.management.clone());
        let user = Self { name, management };
        let put = async |path: String, body| vhost.call(Method::PUT, &path, body).await;
        put(format!("users/{}", user.name), json!({ "password": password, "tags": "" })).await;
        put(format!("permissions/{}/{}", vhost.name, user.name), permissions).await;
        user
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let (management, path) = (self.management.clone(), format!("users/{}", self.name));
        let delete = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(api(&management, Method::DELETE, &path, &json!(null)));
        };
        let _ = std::thread::spawn(delete).join();
    }
}

/// The broker's URL with another user and password.
fn url_as(vhost: &Vhost, user: &str, password: &str) -> String {
    let mut url = url::Url::parse(&vhost.amqp).unwrap();
    url.set_username(user).unwrap();
    url.set_password(Some(password)).unwrap();
    url.to_string()
}

mod run {
    use super::*;

    pub async fn a_healthy_ground_passes(ground: Ground) {
        let config = ground.config_file(WORK);
        enroll(&ground, &config).await;
        let mut worker = worker(&config).await;
        // RabbitMQ tells of consumers some time after they came.
        until("it passes with nothing unknown of what it stands on", || async {
            let report = doctor(&config).await;
            let unknown = |finding: &&Value| finding["result"] == "unknown" && finding["area"] != "clock";
            let unknown: Vec<_> = report.findings().iter().filter(unknown).collect();
            assert_eq!(unknown, Vec::<&Value>::new());
            report.code == Some(0) && report.has("good", "consumers", "every queue", "")
        })
        .await;
        let report = doctor(&config).await;
        for (what, seen) in [
            ("file", "is right"),
            ("writing to the ledger", "rolled back"),
            ("ledger's format", "version"),
            ("time of the ledger", "never been opened later"),
            ("workers", "1 heard of"),
            ("open files", "the worker"),
            ("kinds and queues", "all 1 chains"),
        ] {
            assert!(report.has("good", what, seen, ""), "no `{what}`, `{seen}` in {:#}", report.report);
        }
        if ground.vhost.is_some() {
            for what in ["connection", "RabbitMQ", "permissions", "topology", "alarms", "the broker's clock"] {
                assert!(report.has("good", what, "", ""), "no `{what}` in {:#}", report.report);
            }
        }
        if ground.schema.is_some() {
            for what in ["PostgreSQL's clock", "connections left", "autovacuum", "open transactions", "taking writes"] {
                assert!(report.has("good", what, "", ""), "no `{what}` in {:#}", report.report);
            }
        }
        let people = ok("doctor", &config, &["--within", "50s"]).await;
        assert!(
            people.contains("\n  good     ") && people.contains("0 wrong, ") && !people.contains('\x1b'),
            "{people}"
        );
        worker.kill().await.unwrap();
    }

    pub async fn the_doctor_changes_nothing(ground: Ground) {
        let config = ground.config_file(WORK);
        enroll(&ground, &config).await;
        let file = || Connection::open(ground.path("ledger.db")).unwrap();
        // Every other command would raise these.
        match &ground.schema {
            Some(schema) => {
                schema.raw().await.batch_execute("SELECT setval('epochs', 5), setval('fences', 5)").await.unwrap()
            }
            None => file().execute_batch("UPDATE sqlite_sequence SET seq = 5").unwrap(),
        }
        let before = std::fs::read_dir(ground.folder.path()).unwrap().count();
        let report = doctor(&config).await;
        assert_eq!(report.code, Some(0), "{:#}", report.report);
        assert!(report.has("good", "writing to the ledger", "rolled back", ""));
        assert_eq!(std::fs::read_dir(ground.folder.path()).unwrap().count(), before, "no file is left");
        let highest: i64 = match &ground.schema {
            Some(schema) => {
                let sql = "SELECT greatest((SELECT last_value FROM epochs), (SELECT last_value FROM fences))";
                schema.raw().await.query_one(sql, &[]).await.unwrap().get(0)
            }
            None => file().query_row("SELECT max(seq) FROM sqlite_sequence", [], |row| row.get(0)).unwrap(),
        };
        assert_eq!(highest, 5);
    }

    pub async fn a_ledger_of_a_newer_program_is_found(ground: Ground) {
        let config = ground.config_file(WORK);
        enroll(&ground, &config).await;
        match &ground.schema {
            Some(schema) => {
                let newer = "UPDATE meta SET value = '99' WHERE name = 'ledger_version'";
                schema.raw().await.batch_execute(newer).await.unwrap();
            }
            None => {
                let file = Connection::open(ground.path("ledger.db")).unwrap();
                file.pragma_update(None, "user_version", 99).unwrap();
            }
        }
        let report = doctor(&config).await;
        report.found(
            "ledger's format",
            "version 99, and this program knows",
            "use the program that made it, or a newer one",
        );
        assert!(
            report.has("unknown", "chains, workers, orders", "version 99", "mend that first"),
            "{:#}",
            report.report
        );
    }
}

#[tokio::test]
async fn a_topology_that_is_missing_and_a_policy_that_harms_are_found() {
    let ground = Ground::rabbit().await;
    let (config, vhost) = (ground.config_file(WORK), ground.vhost.as_ref().unwrap());
    doctor(&config).await.found("topology", "queues and bindings are missing", "`roundelay topology apply`");
    enroll(&ground, &config).await;
    let report = doctor(&config).await;
    assert!(report.code == Some(0) && report.has("good", "topology", "queues are there", ""), "{:#}", report.report);

    let policy = json!({ "pattern": ".*", "definition": { "max-length": 5 }, "apply-to": "queues" });
    vhost.call(Method::PUT, &format!("policies/{}/cap", vhost.name), policy).await;
    let fix = format!("`rabbitmqctl clear_policy -p '{}' 'cap'`", vhost.name);
    until("the policy is in force", || async { doctor(&config).await.code == Some(1) }).await;
    doctor(&config).await.found("policy `cap` sets `max-length` on", "5", &fix);

    vhost.delete_queue("roundelay.rearm").await;
    doctor(&config).await.found("topology", "queue `roundelay.rearm`", "`roundelay topology apply`");
}

#[tokio::test]
async fn a_refused_login_and_missing_permissions_are_found_and_no_password_is_shown() {
    let ground = Ground::rabbit().await;
    let vhost = ground.vhost.as_ref().unwrap();
    enroll(&ground, &ground.config_file(WORK)).await;
    let (right, wrong) = ("canary-right", "canary-wrong");
    let some = json!({ "configure": "^$", "write": ".*", "read": "^roundelay\\." });
    let user = User::new(vhost, right, some).await;

    let report = doctor(&config_with(&ground, &vhost.amqp, &url_as(vhost, &user.name, wrong))).await;
    report.found("connection", "refuses", &format!("`rabbitmqctl change_password {}", user.name));
    assert!(report.has("unknown", "topology", "", "mend the connection first"), "{:#}", report.report);
    assert!(!report.all.contains("canary"), "{}", report.all);

    let report = doctor(&config_with(&ground, &vhost.amqp, &url_as(vhost, &user.name, right))).await;
    let grant = format!("`rabbitmqctl set_permissions -p {} {} '^(roundelay\\..*|work)$'", vhost.name, user.name);
    report.found("permissions", "may not configure roundelay.chores", &grant);
    report.found("permissions", "may not read work (only", &grant);
    assert!(report.has("good", "connection", "is in the virtual host", ""), "{:#}", report.report);
    assert!(!report.all.contains("canary"), "{}", report.all);

    // The user has no permissions in the virtual host.
    let path = format!("permissions/{}/{}", vhost.name, user.name);
    vhost.call(Method::DELETE, &path, json!(null)).await;
    let report = doctor(&config_with(&ground, &vhost.amqp, &url_as(vhost, &user.name, right))).await;
    report.found("connection", "refuse", &grant);
    report.found("permissions", "has none in the virtual host", &grant);
    let absent = vhost.amqp.replace(&vhost.name, "roundelay-test-absent");
    let report = doctor(&config_with(&ground, &vhost.amqp, &absent)).await;
    report.found("connection", "not found", "`rabbitmqctl add_vhost roundelay-test-absent`");

    // The same user has no tag that lets it ask the management API.
    let mut management = url::Url::parse(&vhost.management).unwrap();
    management.set_username(&user.name).unwrap();
    management.set_password(Some(right)).unwrap();
    let old = format!("broker.management = \"{}\"", vhost.management);
    let report = doctor(&config_with(&ground, &old, &format!("broker.management = \"{management}\""))).await;
    report.found("management API", "refuses the user", &format!("set_user_tags {} monitoring", user.name));
    assert!(!report.all.contains("canary"), "{}", report.all);
    vhost.call(Method::PUT, &format!("users/{}", user.name), json!({ "password": right, "tags": "management" })).await;
    let all = json!({ "configure": ".*", "write": ".*", "read": ".*" });
    vhost.call(Method::PUT, &path, all).await;
    let report = doctor(&ground.path("other.toml")).await;
    assert!(report.has("good", "management API", &user.name, ""), "{:#}", report.report);
    assert!(report.has("unknown", "permissions", "may not see those of others", "list_user_permissions"));
    assert!(report.has("unknown", "disk and memory of the broker", "no alarm is in force", "monitoring"));
}

#[tokio::test]
async fn a_part_that_does_not_answer_is_unknown_and_the_others_are_checked() {
    let ground = Ground::rabbit().await;
    let vhost = ground.vhost.as_ref().unwrap();
    enroll(&ground, &ground.config_file(WORK)).await;
    let port = closed_port();
    let report = doctor(&config_with(&ground, &vhost.amqp, &format!("amqp://127.0.0.1:{port}"))).await;
    report.found("connection", "cannot be reached", &format!("`nc -vz 127.0.0.1 {port}`"));
    assert!(report.has("good", "management API", "answers", "") && report.has("good", "writing to the ledger", "", ""));
    assert!(report.has("unknown", "topology", "", "mend the connection first"), "{:#}", report.report);
    let report = doctor(&config_with(&ground, &vhost.amqp, &vhost.amqp.replace("amqp://", "amqps://"))).await;
    report.found("connection", "TLS", "amqp:// in place of amqps://");

    let old = format!("broker.management = \"{}\"", vhost.management);
    let new = format!("broker.management = \"http://127.0.0.1:{port}\"");
    let report = doctor(&config_with(&ground, &old, &new)).await;
    report.found("management API", "cannot be asked", "`rabbitmq-plugins enable rabbitmq_management`");
    assert!(report.has("unknown", "arguments, bindings and policies", "not checked", "broker.management"));
    let report = doctor(&config_with(&ground, &old, "")).await;
    assert_eq!(report.code, Some(0), "what is not known is not wrong: {:#}", report.report);
    assert!(report.has("unknown", "management API", "is not set", "set broker.management"), "{:#}", report.report);

    let away = format!("postgres://ann:canary@127.0.0.1:{port}/roundelay");
    let report = doctor(&config_with(&ground, &ground.ledger_url(), &away)).await;
    report.found("ledger", "the server cannot be asked", "`pg_isready");
    assert!(!report.all.contains("canary") && report.has("good", "connection", "", ""), "{}", report.all);
}

#[tokio::test]
async fn a_ledger_that_cannot_be_written_is_found() {
    use std::os::unix::fs::PermissionsExt;
    let ground = Ground::embedded();
    let config = ground.config_file(WORK);
    enroll(&ground, &config).await;
    let root = geteuid().is_root();
    // Root may write everything. Where others may not even run the program, they get a copy of it.
    let copy = ground.path("roundelay");
    if root {
        std::fs::copy(env!("CARGO_BIN_EXE_roundelay"), &copy).unwrap();
    }
    let chmod = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    let (file, folder) = (ground.path("ledger.db"), ground.folder.path());
    chmod(&config, 0o444);
    chmod(&file, 0o444);
    chmod(folder, 0o555);
    let run = || {
        let mut command = program(&config);
        if root {
            command = Command::new(&copy);
            command.arg("doctor").arg("--config").arg(&config).args(PATIENT).uid(NOBODY).gid(NOBODY);
        }
        Report::of(command)
    };
    let report = run().await;
    report.found("writing to the ledger", "cannot", "chmod u+rw");
    report.found("ledger's folder", "may not write in", "chmod u+rwx");
    assert!(report.has("good", "ledger's format", "", ""), "it can still be read: {:#}", report.report);
    chmod(folder, 0o777);
    let report = run().await;
    report.found("writing to the ledger", "cannot", "chmod u+rw");
    assert!(report.has("warning", "ledger's folder", "anybody", "chmod o-w"), "{:#}", report.report);
    chmod(folder, 0o755);
}

#[tokio::test]
async fn a_worker_that_was_killed_a_low_limit_of_files_and_a_kind_that_is_gone_are_found() {
    let ground = Ground::embedded();
    let wide = "[queues.work]\nconcurrency = 200\n[kinds.sync]\nevery = \"1h\"\nqueue = \"work\"\n\
                handler.exec.argv = [\"/bin/true\"]\n";
    let config = ground.config_file(wide);
    enroll(&ground, &config).await;
    let mut limited = Command::new("/bin/sh");
    let command = format!("ulimit -n 100; exec \"$0\" doctor --config \"$1\" {}", PATIENT.join(" "));
    limited.arg("-c").arg(command).arg(env!("CARGO_BIN_EXE_roundelay")).arg(&config);
    let report = Report::of(limited).await;
    report.found(
        "open files",
        "this process may have 100, and a worker of all queues needs up to 864",
        "LimitNOFILE=864",
    );

    let mut worker = worker(&config).await;
    let pid = worker.id().unwrap();
    worker.kill().await.unwrap();
    until("it is missed", || async { doctor(&config).await.code == Some(1) }).await;
    let report = doctor(&config).await;
    report.found("silent workers", &format!("process {pid} on"), "`ps -p PID`");

    let other = ground.config_file(&wide.replace("kinds.sync", "kinds.other"));
    let report = doctor(&other).await;
    report.found(
        "kinds",
        "sync is not in this configuration, and has chains, such as a",
        "`roundelay retire sync --all`",
    );
    // That can be done, and is all that there is to do. A slip of the pen is none of that.
    assert_eq!(ok("retire", &other, &["sync", "--all", "--yes"]).await, "1 chain retired\n");
    let report = doctor(&other).await;
    assert!(!report.has("bad", "kinds", "", ""), "{:#}", report.report);
    let slip = run("retire", &other, &["snyc", "--all", "--yes"]).await;
    assert!(slip.code == Some(1) && slip.stderr.contains("snyc"), "{slip:?}");
}

#[tokio::test]
async fn a_wrong_configuration_is_found_and_nothing_else_is_guessed() {
    let ground = Ground::embedded();
    let config = ground.config_file("[queues.work]\nconcurrency = 0\n");
    let report = doctor(&config).await;
    report.found("queues.work.concurrency", "out of range", "roundelay.toml:");
    assert!(report.has("unknown", "ledger, broker", "", "mend the configuration"), "{:#}", report.report);
    let report = doctor(&ground.config_file("[queues.work]\n[kinds.sync]\n")).await;
    report.found("file", "no handler for kinds.sync", "as it says");
}
