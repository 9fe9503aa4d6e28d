//! `roundelay top` in a real terminal, mostly of 80×24, by tmux: what it shows, and what keys order, seen in the ledger.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::commands::{ok, refused, told};
use crate::harness::{Ground, SOON, until, worker};

/// A terminal of its own, on a tmux server of its own that ends with it.
struct Terminal {
    /// The server's socket.
    socket: String,
}

impl Terminal {
    /// One in which a shell runs, whose prompt is `$ `.
    fn start(ground: &Ground) -> Self {
        let this = Self { socket: ground.path("tmux").to_str().unwrap().to_owned() };
        this.tmux(&["new-session", "-d", "-x", "80", "-y", "24", "env", "PS1=$ ", "NO_COLOR=1", "USER=ann", "sh"]);
        this
    }

    fn run(&self, arguments: &[&str]) -> Output {
        // The user's own tmux configuration does not count, nor a tmux that the test runs in.
        let mut tmux = Command::new("tmux");
        tmux.args(["-f", "/dev/null", "-u", "-S", &self.socket]).args(arguments);
        tmux.env_remove("TMUX").env("TERM", "xterm-256color").output().expect("tmux is installed")
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "tmux {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Presses keys, by tmux's names.
    fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    fn type_in(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
    }

    /// What is on the screen.
    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// What is on the screen as soon as it has all these words.
    async fn shows(&self, words: &[&str]) -> String {
        let deadline = Instant::now() + SOON;
        loop {
            let screen = self.screen();
            // Where a line breaks depends on how long names are.
            let text = screen.split_whitespace().collect::<Vec<_>>().join(" ");
            if words.iter().all(|words| text.contains(words)) {
                return screen;
            }
            assert!(Instant::now() < deadline, "it never had all of {words:?}:\n{screen}");
            sleep(Duration::from_millis(50)).await; // Between two looks.
        }
    }

    /// The process of the program that runs in the shell.
    fn process(&self) -> Pid {
        let shell = self.tmux(&["display-message", "-p", "#{pane_pid}"]);
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", shell.trim())).unwrap();
        Pid::from_raw(children.trim().parse().unwrap())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The server is only this test's, so nothing else ends with it.
        self.run(&["kill-server"]);
    }
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_roundelay");

/// With `#` in place of every digit, and spaces in a row as one: figures and their widths change with each look.
fn masked(screen: &str) -> Vec<String> {
    let line = |line: &str| {
        let line: String = line.chars().map(|sign| if sign.is_ascii_digit() { '#' } else { sign }).collect();
        let words: Vec<&str> = line.split_whitespace().collect();
        words.join(" ")
    };
    screen.lines().map(line).collect()
}

fn config(ground: &Ground) -> std::path::PathBuf {
    ground.config_file(
        r#"
catch_up.slack = "1s"
[queues.work]
concurrency = 4
[queues.held]
throttle = "upstream"
[throttles.upstream]
allow = 5
per = "1h"
[kinds.sync]
queue = "{{ queue }}"
every = "1h"
roster.key = "{{ key }}"
handler.exec = { argv = ["/bin/sh", "-c", "true"], env = { PATH = "/usr/bin:/bin" } }
"#,
    )
}

async fn enroll(ground: &Ground, config: &Path, rows: &str) {
    let roster = ground.path("roster.csv");
    std::fs::write(&roster, format!("key,queue\n{rows}")).unwrap();
    ok("enroll", config, &["--kind", "sync", "--spread", "0s", roster.to_str().unwrap()]).await;
}

async fn everything_is_shown_and_steered(ground: Ground) {
    let config = config(&ground);
    enroll(&ground, &config, "a,work\n").await;
    let _worker = worker(&config);
    let workers = async || told("workers list", &config, &[]).await["workers"].clone();
    until("the worker is heard of", async || workers().await.as_array().unwrap().len() == 1).await;
    let name = workers().await[0]["worker"].as_str().unwrap().to_owned();

    let terminal = Terminal::start(&ground);
    let settings = terminal_settings(&terminal, &ground).await;
    terminal.type_in(&format!(
        "{PROGRAM} top --config {} --every 200ms 2>{}",
        config.display(),
        ground.path("log").display()
    ));
    terminal.press(&["Enter"]);
    let shown =
        terminal.shows(&["[1 Overview]", "1 working", "Nothing is wrong, as far as the engine can tell."]).await;
    let shown = masked(&shown);
    assert_eq!(shown[0], "[# Overview] # Queues # Throttles # Late # Workers # Log ##:##:## UTC", "{shown:#?}");
    assert_eq!(shown[2], "sleeping due for a slot running LATE FAILING", "{shown:#?}");
    assert_eq!(shown[23], "q quit ? help #-# or Tab screens ↑↓ scroll what is wrong", "{shown:#?}");

    // A larger terminal has more at once, and the small one is as it was.
    terminal.tmux(&["resize-window", "-x", "200", "-y", "60"]);
    terminal.shows(&["[1 Overview]", "p99 late", "3 queues", "1 throttle", "What is wrong", "1 worker", &name]).await;
    terminal.tmux(&["resize-window", "-x", "80", "-y", "24"]);
    terminal.shows(&["LATE FAILING"]).await;
    assert!(!terminal.screen().contains("p99 late"), "{}", terminal.screen());

    // The user of the terminal pauses a queue, with a reason, and only after a yes.
    terminal.press(&["2"]);
    let shown = masked(&terminal.shows(&["[2 Queues]", "roundelay.chores"]).await);
    assert_eq!(shown[2], "queue state due late ready cons. in/s out/s running", "{shown:#?}");
    assert!(shown[3].starts_with(">held open "), "{shown:#?}");
    terminal.press(&["Down", "p"]);
    terminal.shows(&["Pause the queue work. Why?"]).await;
    terminal.type_in("they are down");
    terminal.press(&["Enter"]);
    terminal.shows(&["Pause the queue work: they are down?", "y gives the order"]).await;
    let queue = async |place: usize| told("queue list", &config, &[]).await["queues"][place].clone();
    let work = || async {
        let (first, second) = (queue(0).await, queue(1).await);
        if first["queue"] == "work" { first } else { second }
    };
    assert_eq!(work().await["paused"], json!(null), "nobody has said yes");
    terminal.press(&["y"]);
    terminal.shows(&["work is paused: workers take nothing more", "PAUSED"]).await;
    let paused = work().await["paused"].clone();
    assert_eq!(paused["why"], "they are down");
    assert!(paused["by"].as_str().unwrap().starts_with("ann@"), "{paused}");

    let obeys = async || {
        let queues = workers().await[0]["queues"].clone();
        queues.as_array().unwrap().iter().any(|queue| queue["queue"] == "work" && queue["paused"] == json!(true))
    };
    until("the worker obeys", obeys).await;

    // What is due there is held, and not late; and the chain says why.
    enroll(&ground, &config, "b,work\n").await;
    terminal.press(&["4"]);
    terminal.shows(&["[4 Late]", "longest first"]).await;
    // Held chains come after those that are late.
    terminal.press(&["f"]);
    terminal.shows(&["held chains, by name: 1", "sync", "held"]).await;
    terminal.press(&["Enter"]);
    terminal.shows(&["sync b", "the queue work is paused by ann@", "they are down"]).await;
    terminal.press(&["Escape"]);
    terminal.shows(&["held chains"]).await;

    // A throttle is held.
    terminal.press(&["3"]);
    terminal.shows(&["[3 Throttles]", ">upstream", "open"]).await;
    terminal.press(&["h"]);
    terminal.type_in("30m");
    terminal.press(&["Enter"]);
    terminal.shows(&["Hold the throttle upstream for 30m. Why?"]).await;
    terminal.type_in("a rest");
    terminal.press(&["Enter", "y"]);
    terminal.shows(&["upstream: nothing starts until", "HELD"]).await;
    let hold = told("throttle show", &config, &["upstream"]).await["hold"].clone();
    assert_eq!(hold["why"], "a rest", "{hold}");

    // The worker is drained, and obeys.
    terminal.press(&["5"]);
    terminal.shows(&["[5 Workers]", &name, "working"]).await;
    terminal.press(&["d"]);
    terminal.type_in("a new kernel");
    terminal.press(&["Enter", "y"]);
    terminal.shows(&["takes nothing more within two seconds", "DRAINED"]).await;
    assert_eq!(workers().await[0]["state"], "drained");

    // What has run is in the log.
    terminal.press(&["6"]);
    terminal.shows(&["sync a 1.1 done"]).await;
    // It ends by a signal, and leaves the terminal as it was.
    kill(terminal.process(), Signal::SIGTERM).unwrap();
    until("the shell is back", async || terminal.screen().trim_end().ends_with('$')).await;
    assert!(!terminal.screen().contains("[6 Log]"), "{}", terminal.screen());
    assert_eq!(terminal_settings(&terminal, &ground).await, settings);
    let log = std::fs::read_to_string(ground.path("log")).unwrap();
    assert!(!log.contains("panicked"), "{log}");
}

/// How the terminal is set, as `stty` has it.
async fn terminal_settings(terminal: &Terminal, ground: &Ground) -> String {
    let file = ground.path("stty");
    let _ = std::fs::remove_file(&file);
    terminal.type_in(&format!("clear; stty -g > {0}.new; mv {0}.new {0}", file.display()));
    terminal.press(&["Enter"]);
    until("stty answers", async || file.exists()).await;
    std::fs::read_to_string(file).unwrap()
}

#[tokio::test]
async fn everything_is_shown_and_steered_on_rabbitmq_and_sqlite() {
    everything_is_shown_and_steered(Ground::rabbit().await).await;
}

#[tokio::test]
async fn everything_is_shown_and_steered_on_rabbitmq_and_postgres() {
    everything_is_shown_and_steered(Ground::rabbit_and_postgres().await).await;
}

#[tokio::test]
async fn top_without_a_terminal_names_the_command_that_needs_none() {
    let ground = Ground::embedded();
    let config = config(&ground);
    refused("top", &config, &[], &["standard output is no terminal", "`roundelay status`"]).await;
}

/// A ledger that is away is no reason to see nothing; and a signal ends it at any time.
#[tokio::test]
async fn a_ledger_that_is_away_is_said_and_any_signal_gives_the_terminal_back() {
    let ground = Ground::embedded();
    let config = ground.path("away.toml");
    // Nothing listens on the port for discarding.
    let text =
        "broker.url = \"amqp://127.0.0.1:9\"\nledger.url = \"postgres://nobody@127.0.0.1:9/none\"\n[queues.work]\n";
    std::fs::write(&config, text).unwrap();
    let terminal = Terminal::start(&ground);
    let settings = terminal_settings(&terminal, &ground).await;
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        terminal.type_in(&format!("{PROGRAM} top --config {}", config.display()));
        terminal.press(&["Enter"]);
        terminal.shows(&["nothing is known yet: the ledger cannot be asked since", "Nothing is known yet."]).await;
        // It goes on listening.
        terminal.press(&["?"]);
        terminal.shows(&["Orders ask first"]).await;
        kill(terminal.process(), signal).unwrap();
        until("the shell is back", async || terminal.screen().trim_end().ends_with('$')).await;
        assert_eq!(terminal_settings(&terminal, &ground).await, settings, "{signal}");
    }
    terminal.type_in(&format!("{PROGRAM} top --config {}", config.display()));
    terminal.press(&["Enter"]);
    terminal.shows(&["Nothing is known yet."]).await;
    terminal.press(&["q"]);
    until("the shell is back", async || terminal.screen().trim_end().ends_with('$')).await;
    assert_eq!(terminal_settings(&terminal, &ground).await, settings);
}
