//! What commands print on terminals, into pipes and as JSON, and what shells and `man` are told of them. By the real
//! program, on real pseudo terminals.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::pty::{Winsize, openpty};
use roundelay::Outcome;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;
use unicode_width::UnicodeWidthStr;

use crate::commands::{ok, run, told};
use crate::harness::{Ground, SOON, Watched, roundelay, until};

const WIDE: u16 = 80;
/// What no command prints.
const END: &[u8] = b"\0end\0";

/// What a command prints on a terminal with this number of columns; its standard error, too, when `both`.
async fn on_terminal(columns: u16, variables: &[(&str, &str)], arguments: &[&str], both: bool) -> String {
    let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = openpty(Some(&size), None).unwrap();
    let side = || Stdio::from(terminal.slave.try_clone().unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_roundelay"));
    command
        .args(arguments)
        .env_remove("ROUNDELAY_CONFIG")
        .env_remove("NO_COLOR")
        // Where it runs for a service that builds things, clap takes any terminal for one with colours.
        .env_remove("CI")
        .env_remove("CLICOLOR")
        .env_remove("CLICOLOR_FORCE")
        .env("TERM", "xterm")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(side())
        .stderr(if both { side() } else { Stdio::null() })
        .kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut master = File::from(terminal.master);
    let reader = tokio::task::spawn_blocking(move || {
        let (mut all, mut some) = (Vec::new(), [0; 4096]);
        while !all.ends_with(END) {
            let count = master.read(&mut some).unwrap();
            all.extend(&some[..count]);
        }
        all.truncate(all.len() - END.len());
        String::from_utf8(all).unwrap().replace("\r\n", "\n")
    });
    let status = timeout(SOON, child.wait()).await.map(Result::unwrap);
    // Said by the test, after all that the command has printed: other commands may have inherited this terminal, and
    // would keep it open.
    File::from(terminal.slave).write_all(END).unwrap();
    let shown = reader.await.unwrap();
    let status = status.unwrap_or_else(|_| panic!("{arguments:?} does not end: {shown}"));
    assert!(status.success(), "{arguments:?}: {status}: {shown}");
    shown
}

/// `shown` without the sequences that set colours.
fn plain(shown: &str) -> String {
    ["\x1b[1m", "\x1b[31m", "\x1b[33m", "\x1b[0m"].iter().fold(shown.to_owned(), |text, code| text.replace(code, ""))
}

#[track_caller]
fn fits(shown: &str, columns: u16, what: &str) {
    assert!(!shown.is_empty(), "{what} prints something");
    for line in shown.lines() {
        assert!(line.width() <= columns.into(), "{what}: {} columns: {line}\n{shown}", line.width());
        let steering = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        assert!(!line.contains(steering), "{what}: {line:?}");
    }
}

const QUEUE: &str = "work-for-the-platform-with-the-very-long-name-that-nobody-can-remember";
const THROTTLE: &str = "a-throttle-whose-name-is-longer-than-it-has-any-right-to-be";

/// Keys that are long, wide, and that would turn around what follows them.
fn keys() -> [String; 3] {
    [
        format!("eu/{}/end", "x".repeat(150)),
        format!("アプリ/{}", "とても長い名前".repeat(10)),
        format!("txt.\u{202e}exe/{}", "y".repeat(60)),
    ]
}

const EVIL: &str = "they are \x1b[2J\x1b]0;owned\x07 down\r\nnothing\u{9b}31m to see, and this goes on for much longer than \
                    one line of any terminal has room for, without an end in sight";

#[tokio::test]
async fn everything_fits_the_terminal_and_nothing_steers_it() {
    let ground = Ground::embedded();
    let text = format!(
        r#"
catch_up.slack = "1s"
[queues.{QUEUE}]
throttle = "{THROTTLE}"
[throttles.{THROTTLE}]
allow = 1000
per = "1h"
[kinds.sync]
queue = "{QUEUE}"
every = "1h"
retry.attempts = 1
roster.owner = "{{{{ owner }}}}"
"#
    );
    let mut engine = Watched::attended(&ground, &text).await;
    let config = ground.config_file(&text);
    let [failing, ..] = &keys();
    engine.enroll(failing, QUEUE).await;
    engine.next().await.end(Outcome::fail(EVIL));
    until("the failure is kept", async || {
        !told("failed list", &config, &[]).await["failures"].as_array().unwrap().is_empty()
    })
    .await;
    ok("queue pause", &config, &[QUEUE, "--why", EVIL]).await;
    ok("queue concurrency", &config, &[QUEUE, "3"]).await;
    ok("tenant", &config, &[EVIL, "--weight", "3"]).await;
    ok("throttle hold", &config, &[THROTTLE, "--for", "1h", "--why", EVIL]).await;
    ok("token create", &config, &[&"t".repeat(60), "--scope", "read"]).await;
    let roster = ground.path("roster.ndjson");
    let rows = keys().map(|key| json!({ "key": key, "owner": format!("{key} & sons"), "note": EVIL }).to_string());
    std::fs::write(&roster, rows.join("\n")).unwrap();
    ok("enroll", &config, &["--kind", "sync", "--spread", "0s", roster.to_str().unwrap()]).await;
    until("some are held", async || {
        told("list", &config, &["--state", "held"]).await["chains"].as_array().unwrap().len() >= 2
    })
    .await;

    let commands: [(&str, &[&str]); 16] = [
        ("status", &[]),
        ("list", &[]),
        ("list", &["--owners"]),
        ("queue list", &[]),
        ("tenant", &[]),
        ("workers list", &[]),
        ("failed list", &[]),
        ("failed show", &["sync", failing]),
        ("show", &["sync", failing]),
        ("show", &["sync", &keys()[2]]),
        ("throttle list", &[]),
        ("throttle show", &[THROTTLE]),
        ("token list", &[]),
        ("check", &["--rust-handlers"]),
        ("doctor", &["--rust-handlers"]),
        ("pause", &["--owner", &keys()[1], "--dry-run"]),
    ];
    for (verb, rest) in commands {
        let path = config.to_str().unwrap();
        let arguments: Vec<&str> = verb.split(' ').chain(["--config", path]).chain(rest.iter().copied()).collect();
        for columns in [WIDE, 132, 40] {
            let shown = on_terminal(columns, &[("NO_COLOR", "1")], &arguments, false).await;
            // A program may not make the path of a file shorter, but the name of this test's folder is.
            fits(&shown, columns, verb);
            let coloured = on_terminal(columns, &[], &arguments, false).await;
            fits(&plain(&coloured), columns, verb);
        }
        // Into a pipe all is whole, on one line each, and as plain.
        let piped = run(verb, &config, rest).await;
        fits(&piped.stdout, u16::MAX, verb);
    }
    let status = on_terminal(WIDE, &[], &["status", "--config", config.to_str().unwrap()], false).await;
    assert!(status.starts_with("\x1b[1mqueue\x1b[0m"), "{status}");
    assert!(status.contains("\x1b[31m") && status.contains("\x1b[33m"), "what is wrong stands out: {status}");
    let list = ok("list", &config, &[]).await;
    assert!(list.contains(&format!("  {failing}  ")) && list.contains("とても長い名前とても長い名前"), "{list}");
    assert!(list.contains(r"txt.\u{202e}exe/yyy"), "{list}");
    let list = on_terminal(WIDE, &[], &["list", "--config", config.to_str().unwrap()], false).await;
    assert!(list.contains("eu/x") && list.contains("x/end") && list.contains('…'), "{list}");
    let failed = ok("failed list", &config, &[]).await;
    assert!(failed.contains("without an end in sight"), "the reason is whole: {failed}");
    // How to go on can be copied, from a terminal too: it is one word for a shell, whatever is in it.
    let page = ["list", "--kind", "sync", "--limit", "2", "--config", config.to_str().unwrap()];
    let shown = on_terminal(WIDE, &[], &page, false).await;
    let word = shown.lines().last().unwrap().strip_prefix("there are more: add --after ").unwrap().to_owned();
    let (_, meant, _) = output("bash", &["-c", &format!("printf %s {word}")], &[]);
    let next = told("list", &config, &["--kind", "sync", "--limit", "2"]).await["after"].clone();
    assert_eq!(json!(meant), next, "{shown}");
    assert!(meant.contains('\u{202e}') && !shown.contains('\u{202e}'), "{shown}");
    engine.stop().await;
}

#[tokio::test]
async fn help_and_errors_have_colours_only_where_they_are_wanted() {
    let coloured = on_terminal(WIDE, &[], &["worker", "--help"], true).await;
    assert!(coloured.contains('\x1b'), "{coloured:?}");
    for variables in [[("NO_COLOR", "1")], [("TERM", "dumb")]] {
        let plain = on_terminal(WIDE, &variables, &["worker", "--help"], true).await;
        assert!(!plain.contains('\x1b') && plain.contains("Usage"), "{plain:?}");
        assert!(plain.lines().all(|line| line.width() <= WIDE.into()), "{plain}");
    }
    let piped = roundelay(&["worker", "--help"]).await;
    assert!(!piped.stdout.contains('\x1b'));
    let refused = roundelay(&["check", "--config", "absent\x1b[31m.toml"]).await;
    assert!(refused.code == Some(1) && refused.stderr.starts_with("error: absent\\u{1b}[31m.toml"), "{refused:?}");
}

#[tokio::test]
async fn a_bar_is_drawn_on_a_terminal_alone() {
    let ground = Ground::embedded();
    let config = ground.config_file("[queues.work]\n[kinds.sync]\nqueue = \"work\"\nevery = \"1m\"\n");
    let config = config.to_str().unwrap();
    let arguments = ["simulate", "--config", config, "--for", "10m", "--chains", "sync=100"];
    let drawn = on_terminal(WIDE, &[], &arguments, true).await;
    assert!(drawn.contains("% simulated, "), "{drawn}");
    let piped = roundelay(&arguments).await;
    assert!(piped.ok && !piped.stderr.contains("simulated, ") && !piped.stderr.contains('\x1b'), "{}", piped.stderr);
}

/// Every command with `--json`, and how it is called so that it works. `{…}` are files of the test.
pub const SPOKEN: &[(&str, &[&str])] = &[
    ("check", &[]),
    ("topology apply", &[]),
    ("topology check", &[]),
    ("doctor", &[]),
    ("topology export", &["--output", "{definitions}"]),
    ("topology users", &[]),
    ("enroll", &["--kind", "sync", "{roster}"]),
    ("encryption", &[]),
    ("publish", &["sync", "x"]),
    ("run", &["sync", "a"]),
    ("advance", &["sync", "a"]),
    ("schedule", &["sync", "a", "5m"]),
    ("pause", &["sync", "a"]),
    ("resume", &["sync", "--all", "--yes"]),
    ("retire", &["sync", "c"]),
    ("recover", &["--kind", "sync"]),
    ("status", &[]),
    ("list", &[]),
    ("list", &["--owners"]),
    ("show", &["sync", "a"]),
    ("failed list", &[]),
    ("failed show", &["sync", "a"]),
    ("failed retry", &["--kind", "sync"]),
    ("failed drop", &["--kind", "sync"]),
    ("throttle list", &[]),
    ("throttle show", &["slow"]),
    ("throttle set", &["slow", "--allow", "3"]),
    ("throttle hold", &["slow", "--for", "1m", "--why", "x"]),
    ("throttle release", &["slow"]),
    ("throttle reset", &["slow"]),
    ("queue list", &[]),
    ("queue pause", &["work", "--why", "x"]),
    ("queue resume", &["work"]),
    ("queue concurrency", &["work", "2"]),
    ("tenant", &["acme", "--weight", "5", "--most", "none"]),
    ("workers list", &[]),
    ("token create", &["ci", "--scope", "read"]),
    ("token list", &[]),
    ("token revoke", &["ci"]),
    ("simulate", &["--for", "10m"]),
];

/// Commands that need no configuration.
const ALONE: &[&[&str]] = &[
    &["man", "--output", "{man}"],
    &["import", "crontab", "--zone", "UTC", "{crontab}"],
    &["import", "laravel", "--application", "/srv/app", "{laravel}"],
    &["import", "celery", "--queue", "beat", "{celery}"],
    &["import", "bullmq", "--zone", "UTC", "{bullmq}"],
    &["simulate", "--faults", "--seeds", "1"],
    &["simulate", "--faults", "--seed", "3", "--only", "0", "--log"],
    &["simulate", "--throttle", "5/1m", "--for", "1h"],
    &["bench", "flat", "--chains", "10", "--settle", "2m", "--for", "1m"],
    &["bench", "keys", "--keys", "10"],
    &["demo", "--chains", "10", "--every", "1s", "--for", "1s"],
];

/// Those that need a worker that runs, or measure for long; they print as their siblings do.
const NOT_HERE: [&str; 12] = [
    "health",
    "workers drain",
    "workers resume",
    "bench chains",
    "bench compare",
    "bench growth",
    "bench ladder",
    "bench parked",
    "bench restart",
    "bench shards",
    "bench throttles",
    // It is about PostgreSQL: tests/it/site.rs.
    "promote",
];
/// Those that have no `--json`, which `crates/cli/src/lib.rs` gives reasons for.
const MUTE: [&str; 4] = ["completions", "worker", "serve", "top"];

#[tokio::test]
async fn every_command_says_what_it_has_to_say_as_json() {
    let ground = Ground::rabbit().await;
    let config = ground.config_file(
        r#"
[queues.work]
throttle = "slow"
[throttles.slow]
allow = 5
per = "1s"
[kinds.sync]
queue = "work"
every = "1h"
handler.exec.argv = ["/bin/true"]
"#,
    );
    let roster = ground.path("roster.csv");
    std::fs::write(&roster, "key\na\nb\nc\n").unwrap();
    let paths = [
        ("{roster}", roster),
        ("{definitions}", ground.path("definitions.json")),
        ("{man}", ground.path("man")),
        ("{crontab}", crate::import::sample("crontab")),
        ("{laravel}", crate::import::sample("laravel.json")),
        ("{celery}", crate::import::sample("celery.json")),
        ("{bullmq}", crate::import::sample("bullmq.json")),
    ];
    let at = |argument: &&str| -> String {
        let path = paths.iter().find(|(name, _)| name == argument).map(|(_, path)| path.to_str().unwrap());
        path.unwrap_or(argument).to_owned()
    };
    let mut spoken = BTreeSet::new();
    for (verb, rest) in SPOKEN {
        let rest: Vec<String> = rest.iter().map(at).collect();
        let rest: Vec<&str> = rest.iter().map(String::as_str).chain(["--json"]).collect();
        let output = run(verb, &config, &rest).await;
        assert_eq!(output.code, Some(0), "{verb}: {output:?}");
        only_json(&output.stdout, verb);
        spoken.insert((*verb).to_owned());
    }
    for arguments in ALONE {
        let arguments: Vec<String> = arguments.iter().map(at).chain(["--json".into()]).collect();
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = roundelay(&words).await;
        assert_eq!(output.code, Some(0), "{words:?}: {output:?}");
        only_json(&output.stdout, &words.join(" "));
        spoken.insert(words.iter().take_while(|word| !word.starts_with('-')).copied().collect::<Vec<_>>().join(" "));
    }
    // What is refused leaves standard output empty, and says why in words.
    let refused = run("show", &config, &["sync", "z", "--json"]).await;
    assert!(refused.code == Some(1) && refused.stdout.is_empty(), "{refused:?}");
    assert!(refused.stderr.lines().any(|line| line.starts_with("error: there is no chain sync z")), "{refused:?}");

    // The manual has a page for each command: none was forgotten here.
    let pages = std::fs::read_dir(ground.path("man")).unwrap().map(|page| page.unwrap().file_name());
    let pages: BTreeSet<String> = pages.map(|page| page.to_str().unwrap().trim_end_matches(".1").into()).collect();
    let is_leaf = |page: &&String| !pages.iter().any(|other| other.starts_with(&format!("{page}-")));
    let words = |page: &String| page.trim_start_matches("roundelay-").replace('-', " ");
    let leaves: BTreeSet<String> = pages.iter().filter(is_leaf).map(words).collect();
    let others = NOT_HERE.iter().chain(&MUTE).map(|words| (*words).to_owned());
    assert_eq!(others.chain(spoken).collect::<BTreeSet<String>>(), leaves);
}

/// Asserts that this is one line with an object (or an array) in JSON, and nothing else.
#[track_caller]
fn only_json(stdout: &str, what: &str) {
    let value: Value = serde_json::from_str(stdout).unwrap_or_else(|error| panic!("{what}: {error}: {stdout}"));
    assert!(value.is_object() || value.is_array(), "{what}: {value}");
    assert!(stdout.lines().count() == 1 && stdout.ends_with('\n'), "{what}: {stdout}");
}

fn there_is(program: &str) -> bool {
    std::process::Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

fn output(program: &str, arguments: &[&str], files: &[PathBuf]) -> (bool, String, String) {
    let output = std::process::Command::new(program).args(arguments).args(files).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

async fn script(ground: &Ground, shell: &str) -> PathBuf {
    let script = roundelay(&["completions", shell]).await;
    assert!(script.ok && script.stdout.lines().count() > 100, "{script:?}");
    let path = ground.path(shell);
    std::fs::write(&path, script.stdout).unwrap();
    path
}

#[tokio::test]
async fn shells_complete_commands_options_and_files() {
    let ground = Ground::embedded();
    let bash = script(&ground, "bash").await;
    let (fine, _, complaint) = output("bash", &["-n"], std::slice::from_ref(&bash));
    assert!(fine && complaint.is_empty(), "{complaint}");
    std::fs::write(ground.path("roundelay.toml"), "").unwrap();
    let completed = |words: &str| {
        let commands = format!(
            "source {} && cd {} && COMP_WORDS=({words}) && COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) && \
             _roundelay roundelay \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\" && \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            bash.display(),
            ground.path("").display()
        );
        let (_, stdout, stderr) = output("bash", &["-c", &commands], &[]);
        assert!(stderr.is_empty(), "{stderr}");
        stdout.lines().map(str::to_owned).collect::<Vec<String>>()
    };
    assert_eq!(completed("roundelay wo"), ["worker", "workers"]);
    assert_eq!(completed("roundelay queue pa"), ["pause"]);
    assert_eq!(completed("roundelay throttle set --al"), ["--allow"]);
    assert_eq!(completed("roundelay list --state la"), ["late"]);
    assert_eq!(completed("roundelay status --config roundelay.t"), ["roundelay.toml"]);
    for shell in ["zsh", "fish"] {
        let script = script(&ground, shell).await;
        if there_is(shell) {
            let (fine, _, complaint) = output(shell, &["-n"], &[script]);
            assert!(fine && complaint.is_empty(), "{shell}: {complaint}");
        }
    }
}

#[tokio::test]
async fn manual_pages_are_there_for_every_command_and_man_has_no_complaint() {
    let ground = Ground::embedded();
    let folder = ground.path("man");
    let written = roundelay(&["man", "--output", folder.to_str().unwrap(), "--json"]).await.json();
    let pages: Vec<PathBuf> =
        written["pages"].as_array().unwrap().iter().map(|page| page.as_str().unwrap().into()).collect();
    assert!(pages.len() > 50 && pages.contains(&folder.join("roundelay-throttle-set.1")), "{pages:?}");
    for page in &pages {
        let text = std::fs::read_to_string(page).unwrap();
        assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{}", page.display());
        if there_is("groff") {
            let (fine, shown, complaint) =
                output("groff", &["-k", "-man", "-Tutf8", "-ww"], std::slice::from_ref(page));
            assert!(fine && complaint.is_empty(), "{}: {complaint}", page.display());
            assert!(name(page).split('-').all(|word| shown.contains(word)), "{shown}");
        }
    }
    let file = folder.join("a-file");
    std::fs::write(&file, "").unwrap();
    let refused = roundelay(&["man", "--output", file.to_str().unwrap()]).await;
    assert!(refused.code == Some(1) && refused.stderr.contains("failed to write manual pages to"), "{refused:?}");
}

fn name(page: &Path) -> &str {
    page.file_stem().unwrap().to_str().unwrap()
}
