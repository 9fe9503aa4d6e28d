use std::time::Duration;

use super::*;

/// The whole message about a configuration that must not be accepted.
fn refused(text: &str, environment: &[(&str, &str)]) -> String {
    match load(text, environment) {
        Ok(_) => panic!("accepted: {text} {environment:?}"),
        Err(error) => error.to_string(),
    }
}

fn load(text: &str, environment: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::parse(text, "r.toml", environment)
}

const SMALL: &str = r#"
[queues.sync-ios]
[queues."Charts.EU 1"]
throttle = "t"
[throttles.t]
allow = 5
per = "60s"
[kinds.sync]
queue = "sync-ios"
handler.http = { url = "http://h/", headers = { X-Token = "file" } }
[kinds.report]
handler.exec = { argv = ["/bin/true"], env = { LANG = "C" } }
retry.attempts = 2
"#;

#[test]
fn the_environment_goes_over_the_file() {
    let environment = [
        ("ROUNDELAY__QUEUES__SYNC_IOS__CONCURRENCY", "5"),
        ("ROUNDELAY__QUEUES__CHARTS_EU_1__PRIORITY", "-3"),
        ("ROUNDELAY__throttles__T__Per", "90s"),
        ("ROUNDELAY__BROKER__PREFIX", "2024"),
        ("ROUNDELAY__CATCH_UP__EVERY", "20s"),
        ("ROUNDELAY__KINDS__REPORT__HANDLER__EXEC__ARGV", r#"["/bin/echo", "a b"]"#),
        ("ROUNDELAY__KINDS__REPORT__HANDLER__EXEC__ENV__PATH", "/bin"),
        ("ROUNDELAY__KINDS__REPORT__HANDLER__EXEC__ENV__LANG", r#""""#),
        ("ROUNDELAY__KINDS__REPORT__RETRY__BACKOFF", r#"["1s", "2s"]"#),
        ("ROUNDELAY__KINDS__REPORT__RETRY__ATTEMPTS", "9"),
        ("ROUNDELAY__KINDS__SYNC__HANDLER__HTTP__HEADERS__X_TOKEN", "true"),
        ("ROUNDELAY__KINDS__SYNC__HANDLER__HTTP__HEADERS__X_OTHER", "1_000"),
        ("ROUNDELAY__KINDS__SYNC__RETRY__BACKOFF__BASE", "3s"),
        // An empty variable sets nothing, and one with a single underscore is not Roundelay's.
        ("ROUNDELAY__BROKER__MANAGEMENT", ""),
        ("ROUNDELAY_LOG", "debug"),
    ];
    let config = load(SMALL, &environment).unwrap();
    assert_eq!(config.queues["sync-ios"].concurrency, 5);
    assert_eq!(config.queues["Charts.EU 1"].priority, -3);
    assert_eq!(config.throttles["t"].limits.window.per, Duration::from_secs(90));
    assert_eq!(config.broker.prefix, "2024", "text, though it looks like a number");
    assert_eq!(config.catch_up.every, Duration::from_secs(20));
    assert!(config.broker.management.is_none());
    let HandlerSettings::Exec(exec) = &config.kinds["report"].handler else { panic!("not exec") };
    assert_eq!(exec.argv, ["/bin/echo", "a b"]);
    assert_eq!((exec.env["PATH"].expose(), exec.env["LANG"].expose()), ("/bin", ""));
    assert_eq!(config.kinds["report"].retry.attempts, 9);
    let HandlerSettings::Http(http) = &config.kinds["sync"].handler else { panic!("not http") };
    assert_eq!((http.headers["X-Token"].expose(), http.headers["x-other"].expose()), ("true", "1_000"));
    assert_eq!(http.headers.len(), 2);
    let base = match &config.kinds["sync"].retry.backoff {
        roundelay_model::outcome::Backoff::Exponential { base, .. } => *base,
        other => panic!("{other:?}"),
    };
    assert_eq!(base, Duration::from_secs(3));
}

#[test]
fn a_variable_that_is_wrong_is_named() {
    let table = [
        ("ROUNDELAY__BROKER__ULR", "amqp://h", "broker.ulr: unknown key `ulr`; did you mean `url`?"),
        ("ROUNDELAY__BROKR__URL", "amqp://h", "unknown key `brokr`; did you mean `broker`?"),
        ("ROUNDELAY__QUEUES__SYNC_ISO__PRIORITY", "1", "called `sync_iso`; did you mean `sync-ios`?"),
        ("ROUNDELAY__QUEUES__OTHER__PRIORITY", "1", "add it to the file"),
        ("ROUNDELAY__KINDS__SYNC__TIMEOUT", "30", "`30` is not a duration"),
        ("ROUNDELAY__QUEUES__SYNC_IOS__CONCURRENCY", "many", "queues.sync-ios.concurrency: invalid type"),
        ("ROUNDELAY__QUEUES__SYNC_IOS__CONCURRENCY", "0", "queues.sync-ios.concurrency: 0 is out of range"),
        ("ROUNDELAY__QUEUES__SYNC_IOS", "x", "queues.sync-ios: invalid type"),
        ("ROUNDELAY__BROKER__URL", "amqp://u:secret@h?heartbeat=x", "broker.url: not an AMQP URL"),
        ("ROUNDELAY__KINDS__REPORT__HANDLER__EXEC__ARGV", "/bin/true", "expected a sequence"),
        ("ROUNDELAY__KINDS__REPORT__RETRY__ATTEMPTS", "true", "kinds.report.retry.attempts: invalid type"),
        ("ROUNDELAY__", "x", "unknown key ``"),
        ("ROUNDELAY__BROKER", "amqp://u:secret@h/v", "broker: invalid type: string \"amqp://h/v\""),
    ];
    for (name, value, part) in table {
        let message = refused(SMALL, &[(name, value)]);
        assert!(message.contains(part), "{name} gave {message}");
        assert!(message.ends_with(&format!("(set by the environment variable {name})")), "{message}");
        assert!(message.starts_with("r.toml: "), "it is on no line of the file: {message}");
        assert!(!message.contains("secret"), "{message}");
    }
    let both = "[queues.a-b]\n[queues.'a.b']\n";
    let message = refused(both, &[("ROUNDELAY__QUEUES__A_B__PRIORITY", "1")]);
    assert!(message.contains("stands for both `a-b` and `a.b`"), "{message}");
    assert!(load("[queues.a-b]\n[queues.a_b]\n", &[("ROUNDELAY__QUEUES__A_B__PRIORITY", "1")]).is_ok(), "one exactly");
}

#[test]
fn what_is_wrong_in_the_file_is_told_with_its_line() {
    let table = [
        ("a = ", "r.toml:1: not valid TOML"),
        ("[queues.x]\n\n[queues.x]\n", "r.toml:3: not valid TOML"),
        ("broker = \"amqp://u:secret@h\"\n", "r.toml:1: broker: invalid type: string \"amqp://h\""),
        ("[broker]\nulr = 1\n", "r.toml:2: broker.ulr: unknown key `ulr`; did you mean `url`?"),
        ("[queues.x]\nconcurrency = \"5\"\n", "r.toml:2: queues.x.concurrency: invalid type"),
        ("[broker]\ndeclare = false\n", "r.toml:2: broker.declare: the embedded broker begins empty"),
        ("[broker]\nurl = \"amqp://h\"\ntls.ca = \"ca\"\n", "r.toml:3: broker.tls.ca: is for amqps:// and https://"),
        (
            "[broker]\nurl = \"amqps://h\"\ntls.certificate = \"c\"\n",
            "r.toml:3: broker.tls.certificate: needs its private key: set broker.tls.key",
        ),
        ("[broker]\nurl = \"amqps://h\"\ntls.key = \"k\"\n", "r.toml:3: broker.tls.key: needs its certificate"),
        (
            "[broker]\nurl = \"amqps://h?auth_mechanism=external\"\n",
            "r.toml:2: broker.url: auth_mechanism=external is a login with a certificate",
        ),
        ("[throttles.t]\nallow = 5\n", "r.toml:1: throttles.t: missing field `per`"),
        ("[throttles.t]\nallow = 5\nper = 60\n", "r.toml:3: throttles.t.per: invalid type: integer `60`"),
        ("[throttles.t]\nallow = 0\nper = \"1s\"\n", "r.toml:2: throttles.t.allow: 0 is out of range"),
        ("[queues.x]\nthrottle = \"t\"\n[throttles.u]\nallow = 5\nper = \"1s\"\n", "did you mean `u`?"),
        ("[queues.x]\nfair = \"payload\"\n", "r.toml:2: queues.x.fair: `payload` is no part of a job"),
        (
            "[queues.x]\nmost = 3\n",
            "r.toml:2: queues.x.most: limits the jobs of one tenant, and this queue knows no tenants",
        ),
        ("[queues.x]\nfair = \"owner\"\nmost = 0\n", "r.toml:3: queues.x.most: 0 is out of range"),
        (
            "[throttles.t]\nallow = 5\nper = \"1s\"\nkey = \"kind\"\nfair = \"owner\"\n",
            "r.toml:5: throttles.t.fair: shares one limit between tenants, and with `key` each value has a limit of its own",
        ),
        (
            "[queues.x]\nthrottle = \"t\"\nfair = \"kind\"\n[throttles.t]\nallow = 5\nper = \"1s\"\nfair = \"owner\"\n",
            "r.toml:3: queues.x.fair: is `kind`, and that of [throttles.t] is `owner`; places and slots are shared between",
        ),
        ("[tenants.a]\nweight = 0\n", "r.toml:2: tenants.a.weight: 0 is out of range"),
        ("[kinds.k]\nqueue = \"x\"\n", "r.toml:2: kinds.k.queue: there is no [queues.x]"),
        ("[reasons.r]\nattempts = 3\n", "r.toml:1: reasons.r: missing field `policy`"),
        (
            "[reasons.r]\npolicy = \"never\"\n",
            "r.toml:2: reasons.r.policy: unknown key `never`; known here: retry, fail, retire, snooze",
        ),
        (
            "[reasons.r]\npolicy = \"fail\"\nattempts = 3\n",
            "r.toml:3: reasons.r.attempts: goes with policy = \"retry\"",
        ),
        ("[reasons.r]\npolicy = \"retry\"\nattempts = 0\n", "r.toml:3: reasons.r.attempts: 0 is out of range"),
        ("[reasons.r]\npolicy = \"retry\"\nbackoff = []\n", "r.toml:3: reasons.r.backoff: is empty; name at least one"),
        (
            "[reasons.r]\npolicy = \"retry\"\nafter = \"1m\"\n",
            "r.toml:3: reasons.r.after: goes with policy = \"snooze\"",
        ),
        ("[reasons.r]\npolicy = \"snooze\"\n", "r.toml:1: reasons.r: policy = \"snooze\" needs an `after`"),
        ("[reasons.r]\npolicy = \"snooze\"\nafter = \"0s\"\n", "r.toml:3: reasons.r.after: 0ns is out of range"),
        (
            "[kinds.k.reasons.r]\npolicy = \"retire\"\nbackoff = [\"1s\"]\n",
            "r.toml:3: kinds.k.reasons.r.backoff: goes with",
        ),
        (
            "[reasons.empty]\npolicy = \"fail\"\n[kinds.k]\non_status = { 404 = \"emty\" }\n",
            "r.toml:4: kinds.k.on_status.404: there is no [reasons.emty]; did you mean `empty`?",
        ),
        (
            "[reasons.r]\npolicy = \"fail\"\n[kinds.k]\non_status = { 200 = \"r\" }\n",
            "r.toml:4: kinds.k.on_status.200: `200` is no HTTP status from 300 to 599",
        ),
        (
            "[reasons.r]\npolicy = \"fail\"\n[kinds.k]\non_exit = { 0 = \"r\" }\n",
            "r.toml:4: kinds.k.on_exit.0: `0` is no exit code from 1 to 255",
        ),
        ("[kinds.k]\nreconcile = { every = \"1m\" }\n", "r.toml:2: kinds.k.reconcile: goes with a schedule"),
        (
            "[kinds.k]\nevery = \"1s\"\nreconcile = { every = \"1ms\" }\n",
            "r.toml:3: kinds.k.reconcile.every: 1ms is out of range",
        ),
        (
            "[kinds.k]\nevery = \"1s\"\nreconcile = { every = \"1m\", kind = \"j\" }\n",
            "r.toml:3: kinds.k.reconcile.kind: there is no [kinds.j]",
        ),
        ("[kinds.k]\nqueue = \"{{ x | lower }}\"\n", "r.toml:2: kinds.k.queue: not a valid template"),
        ("[kinds.k]\nqueue = \"{% if %}\"\n", "r.toml:2: kinds.k.queue: not a valid template"),
        ("[kinds.k]\nroster.key = \"{{ x\"\n", "r.toml:2: kinds.k.roster.key: not a valid template"),
        ("[kinds.k]\nroster.queue = \"{{ x\"\n", "r.toml:2: kinds.k.roster.queue: not a valid template"),
        (
            "[kinds.k]\nevery = \"1s\"\nroster.fil = \"x.csv\"\n",
            "r.toml:3: kinds.k.roster.fil: unknown key `fil`; did you",
        ),
        (
            "[kinds.k]\nevery = \"1s\"\nroster.file = \"x.xls\"\n",
            "r.toml:3: kinds.k.roster.file: x.xls: a roster's name",
        ),
        ("[kinds.k]\nroster.file = \"x.csv\"\n", "r.toml:2: kinds.k.roster: the kind has no chains to begin"),
        ("[kinds.k]\nevery = \"1s\"\nroster.prune = true\n", "r.toml:3: kinds.k.roster.prune: there is no source"),
        (
            "[kinds.k]\nevery = \"1s\"\nroster = { file = \"x.csv\", http = \"http://h/\" }\n",
            "r.toml:3: kinds.k.roster: names several sources",
        ),
        (
            "[queues.q]\n[kinds.k]\nqueue = \"q\"\nevery = \"1s\"\nroster = { keys = [\"-\"], file = \"x.csv\" }\n",
            "r.toml:5: kinds.k.roster: names several sources; keep one of `keys`, `file`",
        ),
        ("[kinds.k]\nevery = \"1s\"\nroster.keys = [\"-\"]\n", "r.toml:3: kinds.k.roster.keys: says no queue"),
        ("[kinds.k]\nevery = \"1s\"\nroster.keys = []\n", "kinds.k.roster.keys: is empty; name at least one key"),
        ("[kinds.k]\nevery = \"1s\"\nroster.keys = [\"\"]\n", "kinds.k.roster.keys: `key` is empty"),
        ("[kinds.k]\nevery = \"1s\"\nroster.keys = [\"a\", \"a\"]\n", "kinds.k.roster.keys: has `a` twice"),
        ("[kinds.k]\nroster.keys = [\"-\"]\n", "r.toml:2: kinds.k.roster: the kind has no chains to begin"),
        ("[kinds.k]\nevery = \"1s\"\nroster.http = \"ftp://u:secret@h/\"\n", "roster.http: `ftp://h/` is no http://"),
        (
            "[kinds.k]\nevery = \"1s\"\nroster = { file = \"x.csv\", sync = \"1ms\" }\n",
            "r.toml:3: kinds.k.roster.sync: 1ms is out of range",
        ),
        (
            "[kinds.k]\nevery = \"1s\"\nroster.sql = { url = \"sqlite://x\" }\n",
            "kinds.k.roster.sql: missing field `query`",
        ),
        (
            "[kinds.k]\nevery = \"1s\"\nroster.sql = { url = \"mysql://u:secret@h/\", query = \"SELECT 1\" }\n",
            "kinds.k.roster.sql.url: `mysql://h/` is neither sqlite://PATH nor postgres://…",
        ),
        ("[kinds.\"roundelay.roster\"]\n", "names that begin with `roundelay.` are the engine's own"),
        (
            "[calendars.c]\n",
            "r.toml:1: calendars.c: names nothing; set `dates`, `weekdays`, `ics`, `sql` or `hours` in it",
        ),
        (
            "[calendars.c]\ndates = [\"25.12.\"]\n",
            "r.toml:2: calendars.c.dates: `25.12.` is no day; write \"2026-12-25\"",
        ),
        ("[calendars.c]\nweekdays = \"mo-fr\"\n", "r.toml:2: calendars.c.weekdays: `mo-fr` are no days of the week"),
        (
            "[calendars.c]\nhours = [\"9-17\"]\n",
            "r.toml:2: calendars.c.hours: `9-17` are no hours; write \"09:00-17:00\"",
        ),
        (
            "[calendars.c]\nhours = \"9:00-17:00\"\nzone = \"Berlin\"\n",
            "r.toml:3: calendars.c.zone: `Berlin` is not a time zone",
        ),
        ("[calendars.c]\nics = \"x.ics\"\n", "r.toml:2: calendars.c.ics: no file is read here, not even x.ics"),
        (
            "[calendars.c]\nics = \"BEGIN:VCALENDAR\\nBEGIN:VEVENT\\nDTSTART:soon\"\n",
            "r.toml:2: calendars.c.ics: line 3: `soon` is neither a date",
        ),
        (
            "[calendars.c]\ndates = [\"12-25\"]\nexcept = \"holidays\"\n",
            "r.toml:3: calendars.c.except: there is no [calendars.holidays]; add",
        ),
        (
            "[calendars.c]\ndates = [\"12-25\"]\nexcept = \"d\"\n[calendars.d]\nhours = \"9:00-17:00\"\nexcept = [\"c\"]\n",
            "r.toml:3: calendars.c.except: goes in a circle: c, without d, without c",
        ),
        (
            "[calendars.c.sql]\nurl = \"mysql://u:secret@h/\"\nquery = \"\"\n",
            "calendars.c.sql.url: `mysql://h/` is neither sqlite://PATH nor postgres://…",
        ),
        (
            "[calendars.c.sql]\nurl = \"sqlite://x\"\nquery = \";\"\n",
            "calendars.c.sql.query: is empty; write one SELECT",
        ),
        ("[kinds.k]\nquiet = \"22:00-06:00\"\n", "r.toml:2: kinds.k.quiet: goes with a schedule"),
        ("[kinds.k]\nevery = \"1m\"\nquiet = \"22-6\"\n", "r.toml:3: kinds.k.quiet: `22-6` are no hours"),
        (
            "[kinds.k]\nevery = \"1m\"\nonly = \"ofice\"\n[calendars.office]\nweekdays = \"mon-fri\"\n",
            "kinds.k.only: there is no [calendars.ofice]; did you mean `office`?",
        ),
        (
            "[kinds.k]\nevery = \"1m\"\nzone = \"UTC\"\n",
            "r.toml:3: kinds.k.zone: goes with `cron`, `quiet`, `except` or `only`",
        ),
        (
            "[kinds.k]\nevery = \"1m\"\nquiet = \"22:00-06:00\"\nzone = \"Berlin\"\n",
            "r.toml:4: kinds.k.zone: `Berlin` is not a time zone",
        ),
        ("[kinds.k]\nevery = \"1m\"\nquiet = \"22:00-06:00\"\nwhen_excluded = \"later\"\n", "kinds.k.when_excluded: "),
        ("[ledger]\nhistory = \"7d\"\narchive = \"1d\"\n", "r.toml:3: ledger.archive: must be longer than `history`"),
        ("[kinds.k]\njitter = \"1s\"\n", "r.toml:2: kinds.k.jitter: goes with a schedule"),
        ("[kinds.k]\nevery = \"1s\"\njitter = \"1s\"\n", "r.toml:3: kinds.k.jitter: must be smaller"),
        ("[kinds.k.retry]\nbackoff = { factor = nan }\n", "kinds.k.retry.backoff: "),
        ("[kinds.k.retry]\nbackoff = [\"1s\", 2]\n", "r.toml:2: kinds.k.retry.backoff: invalid type: integer `2`"),
        ("[kinds.k.retry]\nbackoff = [\"1s\", \"soon\"]\n", "kinds.k.retry.backoff: `soon` is not a duration"),
        ("[kinds.k.retry]\nbackoff = \"1s\"\n", "kinds.k.retry.backoff: must be a list of waits such as"),
        ("[kinds.k.retry]\nbackoff.bse = \"1s\"\n", "kinds.k.retry.backoff: unknown key `bse`; did you mean `base`?"),
        ("[kinds.k.retry]\nbackoff = { base = \"5s\", max = \"1s\" }\n", "backoff.max: 1s is out of range"),
        ("[kinds.k.handler.http]\n", "r.toml:1: kinds.k.handler.http: missing field `url`"),
        ("[kinds.k.handler.htp]\nurl = \"\"\n", "did you mean `http`?"),
        // What a worker would refuse at its start.
        ("[kinds.k.handler.http]\nurl = \"http://\"\n", "r.toml:2: kinds.k.handler.http.url: `url`: not a URL"),
        ("[kinds.k.handler.http]\nurl = \"http://h:99999/\"\n", "kinds.k.handler.http.url: `url`: not a URL"),
        ("[kinds.k.handler.http]\nurl = \"ftp://u:secret@h/\"\n", "`ftp://…@h/` does not begin with http"),
        ("[kinds.k.handler.http]\nurl = \"http://h/{{ key | upper }}\"\n", "url: `url` is not a valid template"),
        ("[kinds.k.handler.http]\nurl = \"http://h/{{ key\"\n", "url: `url` is not a valid template"),
        (
            "[kinds.k.handler.http]\nurl = \"http://h/\"\n[kinds.k.handler.http.headers]\n\"a b\" = \"x\"\n",
            "r.toml:4: kinds.k.handler.http.headers.a b: is not a header name",
        ),
        (
            "[kinds.k.handler.http]\nurl = \"http://h/\"\nheaders.Roundelay-Key = \"x\"\n",
            "r.toml:3: kinds.k.handler.http.headers.Roundelay-Key: is set by the engine",
        ),
        (
            "[kinds.k.handler.http]\nurl = \"http://h/\"\nheaders.A = \"secret\\n\"\n",
            "r.toml:3: kinds.k.handler.http.headers.A: has a value with control characters",
        ),
        ("[kinds.k]\nevery = \"1m\"\ncron = \"* * * * *\"\n", "kinds.k.every: only one of `every`, `cron` and `at`"),
        ("[kinds.k]\ncron = \"daily\"\n", "r.toml:2: kinds.k.cron: `daily` is not a cron expression"),
        ("[kinds.k]\ncron = \"@daily\"\nzone = \"Mars\"\n", "r.toml:3: kinds.k.zone: `Mars` is not a time zone"),
        ("[kinds.k]\nat = \"tomorrow\"\n", "r.toml:2: kinds.k.at: `tomorrow` is not a time; write"),
        ("[kinds.k]\nfrom = \"start\"\n", "r.toml:2: kinds.k.from: goes with `every`"),
        (
            "[kinds.k]\nevery = \"1m\"\nfrom = \"end\"\n",
            "kinds.k.from: unknown key `end`; known here: finish, start, nominal",
        ),
        ("[kinds.k]\nevery = \"1m\"\noverlap = \"skip\"\n", "kinds.k.overlap: counted from the finish, runs never"),
        ("[kinds.k]\nevery = \"1m\"\ntolerance = \"5s\"\n", "kinds.k.tolerance: goes with `every` and `from"),
        ("[kinds.k]\nevery = \"1m\"\nphase = \"spread\"\n", "kinds.k.phase: goes with `cron`, or with `from"),
        (
            "[kinds.k]\nevery = \"1m\"\nfrom = \"start\"\ntolerance = \"1m\"\n",
            "kinds.k.tolerance: must be smaller than `every`",
        ),
        ("[kinds.k]\nevery = \"1m\"\ntime_box = \"2m\"\n", "kinds.k.time_box: is longer than `every`"),
        ("[kinds.k]\nevery = \"1m\"\ntime_box = \"0%\"\n", "kinds.k.time_box: `0%` is out of range"),
        ("[kinds.k]\nevery = \"1m\"\nnext_in = { min = \"2m\", max = \"1m\" }\n", "kinds.k.next_in: needs a `min`"),
        (
            "[kinds.k]\nevery = \"1m\"\nfrom = \"nominal\"\noverlap = \"allow\"\ncooldown = \"5s\"\n",
            "kinds.k.cooldown: does not go with `overlap = \"allow\"`",
        ),
        ("[kinds.k]\nunique_until = \"start\"\n", "kinds.k.unique_until: goes with `unique_for`"),
        ("[kinds.k]\ncooldown = \"1m\"\n", "kinds.k.cooldown: goes with a schedule"),
        ("[queues.q]\nlanes = 0\n", "r.toml:2: queues.q.lanes: 0 is out of range; from 1 to 10"),
        ("[queues.q]\nlanes = 2\n[kinds.k]\npriority = 2\n", "kinds.k.priority: 2 is more than any queue has lanes"),
        (
            "[queues.q]\n[queues.r]\nlanes = 9\n[kinds.k]\nqueue = \"q\"\npriority = 1\n",
            "r.toml:6: kinds.k.priority: 1 is more than its queue has lanes for: with `lanes = 2`",
        ),
        ("[kinds.k.handler.exec]\nargv = []\n", "r.toml:2: kinds.k.handler.exec.argv: needs at least the program"),
        ("[kinds.k.handler.exec]\nargv = [\"true\"]\n", "`true` is not an absolute path"),
        ("[broker]\nurl = \"amqp://u:secret@h:port\"\n", "r.toml:2: broker.url: not an AMQP URL"),
        ("[broker]\nurl = \"http://u:secret@h\"\n", "r.toml:2: broker.url: `http://h/` is none of"),
        ("[broker]\nprefix = \"amq\"\n", "r.toml:2: broker.prefix: names that begin with `amq.`"),
        ("[broker]\nmanagement = \"http://\"\n", "r.toml:2: broker.management: the base URL"),
        ("[worker]\ncallback = \"host:9464\"\n", "r.toml:2: worker.callback: the base URL by which handlers reach"),
        ("[kinds.k]\nspawn.most = 10001\n", "r.toml:2: kinds.k.spawn.most: 10001 is out of range; from 0 to 10000"),
        (
            "[kinds.k]\nspawn = { dept = 1 }\n",
            "r.toml:2: kinds.k.spawn.dept: unknown key `dept`; did you mean `depth`?",
        ),
        ("[queues.'amq.x']\n", "r.toml:1: queues.amq.x: names that begin with `amq.`"),
        ("[queues.'roundelay.x']\n", "queues.roundelay.x: names that begin with `roundelay.`"),
        ("[worker]\nlisten = \":9464\"\n", "r.toml:2: worker.listen: `:9464` is not an address and a port; write"),
        ("[worker]\nlisten = 9464\n", "r.toml:2: worker.listen: invalid type: integer `9464`"),
        (
            "[ledger]\nurl = \"mysql://u:secret@h/\"\n",
            "r.toml:2: ledger.url: `mysql://h/` is neither sqlite://PATH nor",
        ),
        ("[ledger]\nurl = \"postgres://u:secret@h/\"\n", "r.toml:2: ledger.url: the embedded broker is for one worker"),
        (
            "[ledger]\nurl = \"postgres://u:secret@h/d?sslmode=maybe\"\n",
            "r.toml:2: ledger.url: sslmode `maybe` is none of",
        ),
        ("[ledger]\nurl = \"postgres://u:secret@h/d?pool=5\"\n", "r.toml:2: ledger.url: not a PostgreSQL URL"),
        ("[ledger]\nurl = \"postgres:///d?user=u&password=secret\"\n", "it names no host"),
        ("[ledger]\nsynchronous = true\n", "r.toml:2: ledger.synchronous: a SQLite file has no standby"),
    ];
    for (text, part) in table {
        let message = refused(text, &[]);
        assert!(message.contains(part), "{text}\ngave {message}");
        assert!(!message.contains("secret"), "{message}");
    }
    let long = refused(&format!("[queues.{}]\n", "q".repeat(256)), &[]);
    assert!(long.contains("256 bytes; AMQP allows 255"), "{long}");
    let two = refused("[worker]\ngrace = \"1h\"\n[catch_up]\nevery = \"0s\"\n", &[]);
    assert_eq!(two.lines().count(), 2, "everything at once: {two}");
    let three =
        refused("[worker]\ngraze = \"1h\"\n[queues.a]\nconcurrency = \"x\"\n[queues.b]\npriority = \"y\"\n", &[]);
    let lines: Vec<&str> = three.lines().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(lines, ["r.toml:2", "r.toml:4", "r.toml:6"], "everything at once: {three}");
}

#[test]
fn files_that_cannot_be_read_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.toml");
    let message = || Config::load(&path).unwrap_err().to_string();
    assert!(message().contains("start from roundelay.example.toml"), "{}", message());
    std::fs::write(&path, b"[queues.x]\n# caf\xe9\n").unwrap();
    assert!(message().ends_with("r.toml:2: is not UTF-8; save it as UTF-8"), "{}", message());
    std::fs::write(&path, "\u{feff}[queues.x]\r\nconcurrency = 3\r\n").unwrap();
    assert_eq!(Config::load(&path).unwrap().queues["x"].concurrency, 3, "a byte order mark and CRLF do no harm");
    assert!(Config::load(folder.path()).unwrap_err().to_string().contains("cannot be read"));
}

#[test]
fn names_keep_their_spelling() {
    let config = load("[queues.Sync-IOS]\n[queues.'a.b']\n[queues.'b[0]']\n[kinds.K]\nqueue = 'a.b'\n", &[]).unwrap();
    assert_eq!(config.queues.keys().collect::<Vec<_>>(), ["Sync-IOS", "a.b", "b[0]"]);
    assert_eq!(config.kinds["K"].queue.as_deref(), Some("a.b"));
}

#[test]
fn a_kind_s_reasons_go_before_those_of_all_kinds_and_fill_in_its_retries() {
    use roundelay_model::outcome::{Backoff, RetryPolicy};
    use roundelay_model::policy::Policy;
    let text = r#"
        [reasons.busy]
        policy = "retry"
        attempts = 9
        [reasons.empty]
        policy = "fail"
        [reasons.limited]
        policy = "snooze"
        after = "1m"
        [kinds.a]
        every = "1h"
        retry = { attempts = 2, backoff = ["5s"] }
        on_status = { 404 = "empty", 429 = "limited" }
        on_exit = { 3 = "gone" }
        reconcile = { every = "15m", kind = "b" }
        [kinds.a.reasons]
        empty = { policy = "retry", backoff = ["7s"] }
        gone = { policy = "retire" }
        [kinds.b]
    "#;
    let config = load(text, &[("ROUNDELAY__REASONS__LIMITED__AFTER", "2m")]).unwrap();
    let retry = |attempts, wait| {
        Policy::Retry(RetryPolicy { attempts, backoff: Backoff::List(vec![Duration::from_secs(wait)]) })
    };
    let a = &config.kinds["a"].policies;
    assert_eq!(a.reasons["busy"], retry(9, 5));
    assert_eq!((&a.reasons["empty"], &a.reasons["gone"]), (&retry(2, 7), &Policy::Retire));
    assert_eq!(a.reasons["limited"], Policy::Snooze(Duration::from_secs(120)), "the environment goes over it");
    assert_eq!((a.on_status[&404].as_str(), a.on_exit[&3].as_str()), ("empty", "gone"));
    let reconcile = Reconcile { every: Duration::from_secs(900), kind: Some("b".into()) };
    assert_eq!(config.kinds["a"].reconcile, Some(reconcile));
    let b = &config.kinds["b"];
    assert_eq!((b.policies.reasons["empty"].clone(), b.policies.reasons.len()), (Policy::Fail, 3));
    assert_eq!(b.reconcile, None);
}

#[test]
fn debug_output_has_no_secrets() {
    let text = r#"
        broker = { url = "amqp://u:secret@h/%2f", management = "http://u:secret@h" }
        [kinds.a]
        handler.http = { url = "http://u:secret@h/{{ key }}", headers = { Authorization = "Bearer secret" }, sign = "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0" }
        [kinds.b]
        handler.exec = { argv = ["/bin/true"], env = { TOKEN = "secret" } }
    "#;
    let shown = format!("{:?}", load(text, &[]).unwrap());
    assert!(!shown.contains("secret") && !shown.contains("c2VjcmV0"), "{shown}");
    assert!(shown.contains("Authorization") && shown.contains("http://…@h/{{ key }}"), "{shown}");
}

const EXAMPLE: &str = include_str!("../../../roundelay.example.toml");

/// The example with its settings in force: only those that stand at their default, or all.
pub(super) fn uncommented(examples_too: bool) -> String {
    let setting = |line: &&str| {
        let Some((key, _)) = line.strip_prefix("# ").and_then(|line| line.split_once(" = ")) else { return false };
        key.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c == '.')
    };
    let mut before = "";
    let mut text = String::new();
    for line in EXAMPLE.lines() {
        let line = match line.strip_prefix("# ") {
            Some(bare) if setting(&line) && (examples_too || !before.contains("xample:")) => bare,
            _ => line,
        };
        text += line;
        text.push('\n');
        before = line;
    }
    text
}

#[test]
fn a_secret_may_come_from_a_variable_of_opentelemetry() {
    let text = "[tracing]\nheaders = { Authorization = { env = \"OTEL_TOKEN\" } }\n";
    let config = Config::parse(text, "r.toml", [("OTEL_TOKEN".to_owned(), "Bearer x".to_owned())]).unwrap();
    assert_eq!(config.tracing.headers["Authorization"].expose(), "Bearer x");
    let wrong = Config::parse("[tracing]\notlp = \"http://c/?key=1\"\n", "r.toml", []).unwrap_err().to_string();
    assert!(wrong.contains("tracing.otlp: has a query"), "{wrong}");
}

#[test]
fn the_example_loads_and_states_the_defaults() {
    let shown = |text: &str| match Config::parse(text, "roundelay.example.toml", []) {
        Ok(config) => format!("{:#?}", Config { shown: String::new(), ..config }),
        Err(error) => panic!("{error}"),
    };
    let (real, stated) = (shown(EXAMPLE), shown(&uncommented(false)));
    let other = real.lines().zip(stated.lines()).find(|(real, stated)| real != stated);
    assert_eq!(other, None, "the default in the code, and what the example states");
    assert_eq!(real.lines().count(), stated.lines().count());
    shown(&uncommented(true));
}

#[test]
fn the_configuration_of_compose_is_right() {
    load(include_str!("../../../deploy/compose/roundelay.toml"), &[]).unwrap();
}
