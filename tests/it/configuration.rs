//! The configuration: what is wrong is told with its place, and the documented file is true.

use roundelay::Config;

const EXAMPLE: &str = include_str!("../../roundelay.example.toml");

fn parse(text: &str, environment: &[(&str, &str)]) -> Result<Config, String> {
    let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::parse(text, "my.toml", environment).map_err(|error| error.to_string())
}

fn shown(text: &str) -> String {
    format!("{:?}", parse(text, &[]).unwrap_or_else(|error| panic!("{error}")))
}

// ---- The example ----

/// The example with its optional settings switched on.
fn everything() -> String {
    let optional = |line: &str| {
        let name = line.strip_prefix('#')?.split(" = ").next()?;
        name.chars().all(|c| c.is_ascii_lowercase() || "._".contains(c)).then(|| line[1..].to_owned())
    };
    EXAMPLE.lines().map(|line| optional(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

#[test]
fn the_example_states_true_defaults() {
    let (all, lines) = (shown(EXAMPLE), EXAMPLE.lines().collect::<Vec<_>>());
    let mut stated = 0;
    for (n, line) in lines.iter().enumerate() {
        if line.starts_with(|c: char| c.is_ascii_lowercase()) && !line.ends_with("# no default") {
            let without: String =
                lines.iter().enumerate().filter(|(m, _)| *m != n).map(|(_, l)| format!("{l}\n")).collect();
            assert_eq!(shown(&without), all, "line {}: {line}", n + 1);
            stated += 1;
        }
    }
    assert!(stated > 10, "only {stated} defaults were found in the example");
}

#[test]
fn the_example_has_every_setting() {
    let everything = everything();
    assert_ne!(shown(&everything), shown(EXAMPLE), "the optional settings are switched on");
    let example: toml::Table = everything.parse().unwrap();
    let tables = [
        "",
        "broker",
        "ledger",
        "worker",
        "catch_up",
        "throttles.app-store",
        "queues.sync-ios",
        "kinds.sync-app",
        "kinds.sync-app.retry",
        "kinds.sync-app.roster",
        "kinds.sync-app.handler.http",
        "kinds.report.handler.exec",
    ];
    for path in tables {
        let mut table = &example;
        for part in path.split('.').filter(|part| !part.is_empty()) {
            table = table[part].as_table().unwrap();
        }
        // The engine itself says which settings it knows there.
        let header = if path.is_empty() { String::new() } else { format!("[{path}]\n") };
        let error = parse(&format!("{header}unheard-of = true"), &[]).unwrap_err();
        let known = error.split("known here: ").nth(1).unwrap_or_else(|| panic!("{error}"));
        for name in known.lines().next().unwrap().split(", ") {
            assert!(table.contains_key(name), "the example does not have {path}.{name}");
        }
    }
}

#[test]
fn the_example_configuration_of_compose_is_right() {
    shown(include_str!("../../deploy/compose/roundelay.toml"));
}

// ---- Errors ----

const FILE: &str = r#"[queues.Work-A]
[queues."work.b"]
concurrency = 3
[throttles.api]
allow = 5
per = "1m"
[kinds.sync]
queue = "Work-A"
"#;

#[test]
fn what_is_wrong_is_told_with_line_key_and_remedy() {
    let add = |text: &str| format!("{FILE}{text}");
    let table = [
        (add("evry = \"5m\""), "my.toml:9: kinds.sync.evry: unknown key `evry`; did you mean `every`?"),
        (add("every = \"5 parsecs\""), "my.toml:9: kinds.sync.every: `5 parsecs` is not a duration"),
        (
            add("every = 5"),
            "my.toml:9: kinds.sync.every: invalid type: integer `5`, expected a string; a duration is text",
        ),
        (add("jitter = \"1s\""), "my.toml:9: kinds.sync.jitter: there is no `every` to jitter"),
        (add("every = \"1m\"\njitter = \"2m\""), "my.toml:10: kinds.sync.jitter: must be smaller than `every`"),
        (add("timeout = \"1h\""), "my.toml:9: kinds.sync.timeout: 3600s is out of range"),
        (
            add("retry.backoff = [\"1s\", 2]"),
            "my.toml:9: kinds.sync.retry.backoff: invalid type: integer `2`, expected a string; a duration is text",
        ),
        (add("retry.backoff = [\"1s\", \"soon\"]"), "my.toml:9: kinds.sync.retry.backoff: `soon` is not a duration"),
        (add("retry.backoff = \"1s\""), "my.toml:9: kinds.sync.retry.backoff: must be a list of waits such as"),
        (
            add("retry.backoff.bse = \"1s\""),
            "my.toml:9: kinds.sync.retry.backoff: unknown key `bse`; did you mean `base`?",
        ),
        (add("retry.attempts = 0"), "my.toml:9: kinds.sync.retry.attempts: 0 is out of range"),
        (add("handler.http.url = \"ftp://x\""), "my.toml:9: kinds.sync.handler.http.url: "),
        (
            add("handler.http.url = \"http://x/{{ key\""),
            "my.toml:9: kinds.sync.handler.http.url: `url` is not a valid template",
        ),
        (
            add("handler.http.url = \"http://x/{{ key | shout }}\""),
            "my.toml:9: kinds.sync.handler.http.url: `url` is not a valid template",
        ),
        (
            add("handler.http.url = \"http://x\"\nhandler.http.headers.\"host-\u{e4}\" = \"x\""),
            "handler.http.headers.host-\u{e4}: header `host-\u{e4}`",
        ),
        (
            add("handler.http.url = \"http://x\"\nhandler.http.headers.roundelay-id = \"x\""),
            "handler.http.headers.roundelay-id: header `roundelay-id`",
        ),
        (add("handler.exec.argv = []"), "my.toml:9: kinds.sync.handler.exec.argv: needs at least the program"),
        (add("handler.exec.argv = [\"ls\"]"), "`ls` is not an absolute path"),
        (add("roster.key = \"{{ a\""), "my.toml:9: kinds.sync.roster.key: not a valid template"),
        (
            FILE.replace("\"Work-A\"", "\"work-A\""),
            "my.toml:8: kinds.sync.queue: there is no [queues.work-A]; did you mean `Work-A`?",
        ),
        (
            FILE.replace("concurrency = 3", "throttle = \"apis\""),
            "my.toml:3: queues.work.b.throttle: there is no [throttles.apis]; did you mean `api`?",
        ),
        (FILE.replace("concurrency = 3", "prefetch = 0"), "my.toml:3: queues.work.b.prefetch: 0 would mean no limit"),
        (FILE.replace("allow = 5", ""), "my.toml:4: throttles.api: missing field `allow`"),
        ("[broker]\nurl = \"rabbit://user:secret@host\"".into(), "my.toml:2: broker.url: `rabbit://host` is none of"),
        ("[broker]\nprefix = \"a b\"".into(), "my.toml:2: broker.prefix: 1 to 100 letters"),
        ("[ledger]\nurl = \"roundelay.db\"".into(), "my.toml:2: ledger.url: "),
        ("[queue.x]".into(), "my.toml:1: queue: unknown key `queue`; did you mean `queues`?"),
        ("broker = ".into(), "my.toml:1: not valid TOML"),
        ("\n\n[queues\n".into(), "my.toml:3: not valid TOML"),
    ];
    for (text, told) in table {
        let error = parse(&text, &[]).map(|_| String::new()).unwrap_or_else(|error| error);
        assert!(error.contains(told), "expected {told}\n     got {error}");
        assert!(!error.contains("secret"), "{error}");
    }
}

#[test]
fn everything_impossible_is_told_at_once() {
    let text =
        "[worker]\ngrace = \"2h\"\n[catch_up]\nevery = \"1ms\"\n[queues.q]\nconcurrency = 0\nthrottle = \"none\"\n";
    let error = parse(text, &[]).unwrap_err();
    let places: Vec<&str> = error.lines().map(|line| line.split(": ").next().unwrap()).collect();
    for line in [2, 4, 6, 7] {
        assert!(places.contains(&format!("my.toml:{line}").as_str()), "{error}");
    }
}

#[test]
fn variables_go_over_the_file_and_are_named_when_wrong() {
    let good: [(&str, &str, &str); 7] = [
        ("ROUNDELAY__QUEUES__WORK_A__CONCURRENCY", "9", "concurrency: 9, prefetch: 18"),
        ("ROUNDELAY__QUEUES__work-a__concurrency", "9", "concurrency: 9, prefetch: 18"),
        ("ROUNDELAY__KINDS__SYNC__RETRY__BACKOFF", "[\"7s\"]", "List([7s])"),
        ("ROUNDELAY__KINDS__SYNC__EVERY", "90s", "interval: 90s"),
        ("ROUNDELAY__KINDS__SYNC__EVERY", "\"90s\"", "interval: 90s"),
        ("ROUNDELAY__BROKER__URL", "amqp://user:a__b=c%23d@host/v", "Amqp(Secret(amqp://host/v"),
        ("ROUNDELAY__THROTTLES__API__PER", "5m", "per: 300s"),
    ];
    for (name, value, part) in good {
        let config = parse(FILE, &[(name, value)]).unwrap_or_else(|error| panic!("{name}={value}: {error}"));
        let config = format!("{config:?}");
        assert!(config.contains(part), "{name}={value} gave {config}");
    }
    let bad = [
        (
            "ROUNDELAY__QUEUES__WORK_A__CONCURENCY",
            "9",
            ": queues.Work-A.concurency: unknown key `concurency`; did you mean",
        ),
        ("ROUNDELAY__QUEUES__WORK_A__CONCURRENCY", "0", ": queues.Work-A.concurrency: 0 is out of range"),
        ("ROUNDELAY__QUEUES__WORK_A__CONCURRENCY", "", ": queues.Work-A.concurrency: invalid type"),
        ("ROUNDELAY__QUEUE__WORK_A__PRIORITY", "1", ": queue: unknown key `queue`; did you mean `queues`?"),
        ("ROUNDELAY__BROKER__URL", "", ": broker.url: "),
        ("ROUNDELAY__KINDS__SYNC__EVERY", "5", ": kinds.sync.every: "),
        ("ROUNDELAY__THROTTLES__NEW__ALLOW", "5", ": throttles.new: missing field `per`"),
    ];
    for (name, value, told) in bad {
        let error = parse(FILE, &[("UNRELATED", "x"), (name, value)]).unwrap_err();
        assert!(error.starts_with(&format!("{name}{told}")), "{name}={value} gave {error}");
    }
    assert!(parse(FILE, &[("ROUNDELAY_CONFIG", "x"), ("ROUNDELAY_LOG", "debug")]).is_ok());
}

#[test]
fn what_is_secret_is_not_shown() {
    let text = "broker.url = \"amqp://user:secret@host\"\nbroker.management = \"http://user:secret@host:15672\"
        [queues.q]\n[kinds.k]\nqueue = \"q\"
        handler.http = { url = \"http://user:secret@host/\", headers = { authorization = \"Bearer secret\" } }";
    let config = shown(text);
    assert!(config.contains("authorization") && !config.contains("secret"), "{config}");
}
