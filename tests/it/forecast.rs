//! `roundelay simulate --config`, by the real program: what it counts in virtual time is exact.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Ground, Output, roundelay};

/// One chain of an interval of a minute, whose runs take no time to speak of: with first ticks not
/// spread it starts at 0:00, 1:00, 2:00 and so on, to the millisecond.
const EXACT: &str = r#"
[queues.work]
[kinds.sync]
queue = "work"
every = "59s"
model = { chains = 1, duration = "1s" }
"#;

/// `roundelay simulate --config FILE --from 2026-01-01 REST…`
async fn simulate(config: &Path, rest: &[&str]) -> Output {
    let mut arguments = vec!["simulate", "--config", config.to_str().unwrap()];
    if !rest.contains(&"--from") {
        arguments.extend(["--from", "2026-01-01"]);
    }
    arguments.extend(rest);
    let output = roundelay(&arguments).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    output
}

fn warned(report: &Value, words: &str) -> bool {
    report["warnings"].as_array().unwrap().iter().any(|warning| warning.as_str().unwrap().contains(words))
}

#[tokio::test]
async fn the_counts_are_exact_and_the_end_is_not_part_of_it() {
    let ground = Ground::embedded();
    let config = ground.config_file(EXACT);
    // Starts at 0:00, 1:00 … 9:00 and so on. One at 10:00 would be outside of 10 minutes.
    for (length, starts) in [("10m", 10), ("10m 1ms", 11), ("24h", 1_440)] {
        let report = simulate(&config, &["--for", length, "--spread", "0s", "--json"]).await.json();
        let sync = &report["kinds"]["sync"];
        assert_eq!((&sync["starts"], &sync["failed"]), (&json!(starts), &json!(0)), "{length}: {report}");
        assert_eq!((&sync["dropped"], &sync["skipped"], &sync["backlog"]), (&json!(0), &json!(0), &json!(0)));
        assert_eq!(sync["late_ms"], json!({ "p50": 0.0, "p99": 0.0, "max": 0.0 }), "{length}");
        assert_eq!(sync["freshness_s"]["max"], json!(60.0), "{report}");
        assert_eq!((&report["backlog"], &report["warnings"]), (&json!(0), &json!([])), "{length}");
        assert_eq!(report["from"], "2026-01-01T00:00:00.000Z");
    }
    // One start a minute: the busiest second has one, the mean is a sixtieth of it.
    let report = simulate(&config, &["--for", "60m", "--spread", "0s", "--json"]).await.json();
    assert!((report["peak_to_mean"].as_f64().unwrap() - 60.0).abs() < 0.1, "{report}");
}

#[tokio::test]
async fn cron_and_fixed_rates_count_exactly_and_what_is_left_out_has_its_reason() {
    let ground = Ground::embedded();
    let config = ground.config_file(
        r#"
        [queues.work]
        [kinds.five]
        queue = "work"
        cron = "*/5 * * * *"
        [kinds.four]
        queue = "work"
        cron = "5 */4 * * *"
        [kinds.daily]
        queue = "work"
        cron = "30 2 * * *"
        zone = "Europe/Berlin"
        [kinds.long]
        queue = "work"
        every = "1m"
        from = "nominal"
        timeout = "100s"
        model.duration = "70s"
        [kinds.boxed]
        queue = "work"
        every = "1m"
        from = "nominal"
        time_box = "50%"
        model.duration = "45s"
        "#,
    );
    // 2026-03-29 has 23 hours in Berlin, and no 02:30; the run comes right after the gap.
    let day = ["--for", "24h", "--spread", "0s", "--json", "--from"];
    for date in ["2026-03-29", "2026-10-25"] {
        let report = simulate(&config, &[&day[..], &[date]].concat()).await.json();
        let starts = |kind: &str| report["kinds"][kind]["starts"].as_u64().unwrap();
        assert_eq!((starts("five"), starts("four"), starts("daily")), (288, 6, 1), "{date}: {report}");
        // Each run goes on over the next occurrence, which is left out.
        assert_eq!((starts("long"), &report["kinds"]["long"]["skipped"]), (720, &json!(720)), "{report}");
        assert_eq!(report["kinds"]["long"]["reasons"]["skipped: overlap"], json!(720));
        assert!(report["peak_to_mean"].as_f64().unwrap() > 1.0, "the daily kind does not hide the others: {report}");
        // A run that would go on over its time box ends with it.
        assert_eq!((starts("boxed"), &report["kinds"]["boxed"]["failed"]), (1_440, &json!(0)), "{report}");
        assert!(warned(&report, "720 skipped: overlap"), "{report}");
    }
}

#[tokio::test]
async fn the_same_seed_prints_the_same_and_the_dice_fall_as_the_model_says() {
    let ground = Ground::embedded();
    let config = ground.config_file(
        r#"
        [queues.work]
        [kinds.sync]
        queue = "work"
        every = "10s"
        jitter = "3s"
        retry = { attempts = 2, backoff = ["1s"] }
        [kinds.sync.model]
        chains = 40
        duration = { p50 = "100ms", p99 = "1s" }
        fail = 0.1
        slow = [{ from = "2m", to = "3m", fail = 1.0 }]
        [kinds.job]
        queue = "work"
        "#,
    );
    let picture = ground.path("starts.svg");
    let arguments = ["--for", "5m", "--seed", "7", "--svg", picture.to_str().unwrap()];
    let (first, second) = (simulate(&config, &arguments).await, simulate(&config, &arguments).await);
    assert_eq!(first.stdout, second.stdout);
    assert!(first.stderr.contains("peak memory"), "{}", first.stderr);
    assert!(first.stdout.lines().filter(|line| !line.starts_with('!')).all(|line| line.chars().count() <= 80));
    assert!(first.stdout.contains("40 chains") && first.stdout.contains('█'), "{}", first.stdout);
    let svg = std::fs::read_to_string(&picture).unwrap();
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && svg.contains(">sync</text>"), "{svg}");
    let other = simulate(&config, &["--for", "5m", "--seed", "8"]).await;
    assert_ne!(first.stdout, other.stdout, "another seed, other dice");

    let report = simulate(&config, &["--for", "5m", "--seed", "7", "--json"]).await.json();
    let sync = &report["kinds"]["sync"];
    // For a minute of five everything fails, both attempts of each tick.
    let (starts, failed, retried) =
        (sync["starts"].as_u64().unwrap(), sync["failed"].as_u64().unwrap(), sync["retried"].as_u64().unwrap());
    assert!((1_150..1_600).contains(&starts) && (180..330).contains(&failed), "{report}");
    assert!(retried > failed && sync["freshness_s"]["max"].as_f64().unwrap() > 60.0, "{report}");
    assert_eq!(sync["reasons"]["failed: handler"], sync["failed"]);
    assert!(warned(&report, "job: it has no chains"), "{report}");
}

#[tokio::test]
async fn learned_intervals_are_compared_with_the_best_and_with_one_for_all() {
    let ground = Ground::embedded();
    let config = ground.config_file(
        r#"
        [throttles.shop]
        allow = 1200
        per = "1h"
        [queues.work]
        throttle = "shop"
        [kinds.app]
        queue = "work"
        fresh = { budget = "throttle:shop", min = "5s", max = "10h" }
        model = { chains = 100, change = { rate = "1/5m", spread = 2.0 }, weights = "zipf" }
        [kinds.steady]
        queue = "work"
        every = "1h"
        model = { chains = 10, change = { rate = "2/1h", daily = 0.5 } }
        "#,
    );
    let report = simulate(&config, &["--for", "3h", "--compare", "uniform", "--json"]).await.json();
    let fresh = &report["kinds"]["app"]["fresh"];
    let figure = |of: &str, what: &str| fresh[of][what].as_f64().unwrap_or_else(|| panic!("{of} {what}: {report}"));
    assert!(figure("best", "age_s") < figure("learned", "age_s"), "{fresh}");
    assert!(figure("learned", "age_s") < 0.7 * figure("uniform", "age_s"), "{fresh}");
    assert!(figure("learned", "freshness") > 0.9 * figure("best", "freshness"), "{fresh}");
    assert!(figure("calls", "least") > 0.85 && figure("calls", "most") <= 1.0, "{fresh}");
    // Of a kind with a schedule it says how right it is, by the formula for its interval: (1 - e^-2) / 2 = 0.43.
    let steady = &report["kinds"]["steady"]["fresh"];
    assert!(
        (steady["learned"]["freshness"].as_f64().unwrap() - 0.43).abs() < 0.25 && steady["best"].is_null(),
        "{steady}"
    );
    assert!(report["kinds"]["steady"]["starts"].as_u64().unwrap() > 20, "{report}");
    let nothing = ground.config_file(EXACT);
    let output = roundelay(&["simulate", "--config", nothing.to_str().unwrap(), "--compare", "uniform"]).await;
    assert!(!output.ok && output.stderr.contains("no kind has both `fresh` and `model.change`"), "{output:?}");
    let wrong = "model = { change = { rate = \"often\", spread = 9.0, daily = 2.0 } }";
    let bad = ground.config_file(&EXACT.replace("model = { chains = 1, duration = \"1s\" }", wrong));
    let output = roundelay(&["check", "--rust-handlers", "--config", bad.to_str().unwrap()]).await;
    for words in ["rate: `often` is no rate", "spread: 9 is out of range", "daily: 2 is no share"] {
        assert!(output.stderr.contains(words), "no `{words}` in {}", output.stderr);
    }
}

#[tokio::test]
async fn a_throttle_that_cannot_keep_up_is_forecast_before_and_seen_after() {
    let ground = Ground::embedded();
    let config = ground.config_file(
        r#"
        [throttles.store]
        allow = 5
        per = "60s"
        [queues.work]
        throttle = "store"
        [kinds.sync]
        queue = "work"
        every = "10m"
        "#,
    );
    let report = simulate(&config, &["--for", "1h", "--chains", "sync=100", "--json"]).await.json();
    let sync = &report["kinds"]["sync"];
    assert_eq!((&sync["chains"], &sync["starts"]), (&json!(100), &json!(295)), "five in 61 s: {report}");
    let said =
        "sync: 100 chains every 10 min need 10/min; the throttle `store` allows 5/min: each will run every 20 min";
    assert!(warned(&report, said), "{report}");
    assert!(warned(&report, "295 ticks ran where about 550 were due; each ran every 20.3 min"), "{report}");
    assert!(report["backlog"].as_u64().unwrap() >= 48, "half of all wait, and not those that sleep: {report}");
    assert!(sync["late_ms"]["max"].as_f64().unwrap() > 400_000.0, "{report}");
    // A throttle of each worker's own is enough for two of them.
    let text = std::fs::read_to_string(&config).unwrap().replace("allow = 5", "allow = 5\nscope = \"worker\"");
    std::fs::write(&config, text).unwrap();
    let enough = simulate(&config, &["--for", "1h", "--chains", "sync=100", "--workers", "2", "--json"]).await.json();
    assert_eq!(enough["warnings"], json!([]));
    // Where nothing says how many chains there are, that is said.
    let one = simulate(&config, &["--for", "1h", "--json"]).await.json();
    assert!(warned(&one, "one chain is assumed") && one["kinds"]["sync"]["chains"] == 1, "{one}");
}

#[tokio::test]
async fn chains_come_from_a_roster_and_outlive_workers_and_broker() {
    let ground = Ground::embedded();
    let config = ground.config_file(
        r#"
        [queues.sync-a]
        [queues.sync-b]
        [kinds.sync]
        queue = "sync-{{ platform }}"
        every = "30s"
        model.chains = 5
        "#,
    );
    let roster = ground.path("roster.csv");
    std::fs::write(&roster, "key,platform\nx,a\ny,b\nz,nowhere\n").unwrap();
    let roster = format!("sync={}", roster.display());
    let calm = simulate(&config, &["--for", "10m", "--roster", &roster, "--json"]).await.json();
    assert_eq!(
        (&calm["kinds"]["sync"]["chains"], &calm["longest_queues"]),
        (&json!(2), &json!({ "sync-a": 0, "sync-b": 0 }))
    );
    assert!(warned(&calm, "1 rows of") && warned(&calm, "line 4"), "{calm}");
    let dealt = simulate(&config, &["--for", "10m", "--json"]).await.json();
    assert!(warned(&dealt, "dealt out evenly to 2 queues"), "{dealt}");
    assert_eq!(dealt["kinds"]["sync"]["starts"], json!(5 * 20), "{dealt}");

    let broken = ["--for", "10m", "--outage", "2m..4m", "--broker-outage", "6m..7m", "--json"];
    let broken = simulate(&config, &broken).await.json();
    let sync = &broken["kinds"]["sync"];
    // The workers' two minutes cost four ticks of each; without the broker they run from the ledger.
    assert_eq!((&sync["starts"], &sync["never"]), (&json!(80), &json!(0)), "{broken}");
    let late = sync["late_ms"]["max"].as_f64().unwrap();
    assert!((90_000.0..125_000.0).contains(&late), "they wait for the workers, and then run at once: {broken}");
}

#[tokio::test]
async fn an_impossible_simulation_is_refused_with_words() {
    let ground = Ground::embedded();
    let config = ground.config_file(EXACT);
    let config = config.to_str().unwrap();
    let table: [(&[&str], &str); 6] = [
        (&["simulate", "--config", config, "--chains", "sink=5"], "no [kinds.sink]"),
        (&["simulate", "--config", "absent.toml"], "absent.toml"),
        (&["simulate", "--config", config, "--faults"], "cannot be used with"),
        (&["simulate", "--for", "5m"], "--config"),
        (&["simulate", "--config", config, "--outage", "5m..1m"], "not after the beginning"),
        (&["simulate", "--config", config, "--from", "soon"], "such as 2026-03-29"),
    ];
    for (arguments, words) in table {
        let output = roundelay(arguments).await;
        assert!(!output.ok, "{arguments:?}");
        assert!(output.stderr.contains(words), "{arguments:?}: {}", output.stderr);
    }
    let model =
        "model = { fail = 1.5, duration = { p50 = \"2s\", p99 = \"1s\" }, slow = [{ from = \"2s\", to = \"1s\" }] }";
    let bad = ground.config_file(&EXACT.replace("model = { chains = 1, duration = \"1s\" }", model));
    let output = roundelay(&["check", "--rust-handlers", "--config", bad.to_str().unwrap()]).await;
    for words in ["model.fail: 1.5 is no share", "model.duration: 2s and 1s", "model.slow: 2s is not before 1s"] {
        assert!(output.stderr.contains(words), "no `{words}` in {}", output.stderr);
    }
}

/// Counted chains have a limit each; those of a roster share one where they share its column.
#[tokio::test]
async fn a_throttle_with_keys_is_a_limit_for_each() {
    let ground = Ground::embedded();
    let config = ground.config_file(
        r#"
        [throttles.channel]
        allow = 1
        per = "60s"
        key = "payload.channel"
        [queues.work]
        throttle = "channel"
        [kinds.sync]
        queue = "work"
        every = "61s"
        model = { chains = 3, duration = "1s" }
        "#,
    );
    let starts = |report: &Value| report["kinds"]["sync"]["starts"].as_u64().unwrap();
    let counted = simulate(&config, &["--for", "20m", "--json"]).await.json();
    assert!(warned(&counted, "a payload.channel of its own"), "{counted}");
    assert!((54..=60).contains(&starts(&counted)), "three chains once a minute: {counted}");
    let roster = ground.path("roster.csv");
    std::fs::write(&roster, "key,channel\nx,a\ny,a\nz,b\n").unwrap();
    let roster = format!("sync={}", roster.display());
    let listed = simulate(&config, &["--for", "20m", "--roster", &roster, "--json"]).await.json();
    assert!((34..=40).contains(&starts(&listed)), "two channels, each with one start a minute: {listed}");
    assert!(!warned(&listed, "of its own"), "{listed}");
}

/// Priority first, and within a priority tenants share: of a flood of one owner, others feel little in either class.
#[tokio::test]
async fn owners_share_what_is_left_to_their_priority() {
    let ground = Ground::embedded();
    let config = ground.config_file(
        r#"
        [throttles.up]
        allow = 20
        per = "1m"
        fair = "owner"
        [queues.work]
        throttle = "up"
        lanes = 2
        concurrency = 8
        prefetch = 16
        [kinds.urgent]
        queue = "work"
        priority = 1
        every = "10m"
        model = { chains = 60, owners = { flood = 5, small = 1 } }
        [kinds.plain]
        queue = "work"
        every = "10m"
        model = { chains = 400, owners = { flood = 19, small = 1 } }
        "#,
    );
    let report = simulate(&config, &["--for", "1h", "--json"]).await.json();
    let (urgent, plain) = (&report["kinds"]["urgent"]["tenants"], &report["kinds"]["plain"]["tenants"]);
    let starts = |of: &Value| of["starts"].as_u64().unwrap();
    let late = |of: &Value, which: &str| of["late_ms"][which].as_f64().unwrap() / 60_000.0;
    // All 60 chains of the higher priority run six times an hour, in the slots of their minute.
    assert!((345..=360).contains(&(starts(&urgent["flood"]) + starts(&urgent["small"]))), "{urgent}");
    assert!(late(&urgent["flood"], "max") < 0.1 && late(&urgent["small"], "max") < 0.1, "{urgent}");
    // The others need twice what is left. Those of the small owner run as they should, those of the flood late.
    assert!((110..=120).contains(&starts(&plain["small"])) && late(&plain["small"], "p50") < 0.1, "{plain}");
    assert!(late(&plain["small"], "p99") < 3.0 && late(&plain["flood"], "p50") > 10.0, "{plain}");
}

/// Of two owners one has more to do than its quota, or its share, allows; what does not start in time for that is counted
/// by that.
#[tokio::test]
async fn what_a_quota_or_a_turn_delays_for_too_long_is_counted_by_it() {
    let ground = Ground::embedded();
    let config = |queue: &str, rest: &str, misfire: &str| {
        let kind = format!(
            r#"
            [kinds.sync]
            queue = "work"
            every = "1m"
            from = "nominal"
            {misfire}
            model = {{ chains = 40, duration = "5s", owners = {{ flood = 36, small = 4 }} }}
        "#
        );
        ground.config_file(&format!("[queues.work]\nfair = \"owner\"\nprefetch = 16\n{queue}\n{kind}\n{rest}"))
    };
    // 36 runs of 5 s each minute, one at a time; and 40 runs of 5 s each minute in two places.
    let of_a_quota = ("concurrency = 8", "[tenants.flood]\nmost = 1");
    let of_turns = ("concurrency = 2", "");
    // Late runs do not start, or start late, and the occurrences that go by meanwhile do not run.
    let (skip, coalesce) = ("misfire = \"skip\"\nmisfire_window = \"20s\"", "misfire = \"coalesce\"");
    for ((queue, rest), misfire, reason, other) in [
        (of_a_quota, skip, "quota", "turn"),
        (of_turns, skip, "turn", "quota"),
        (of_a_quota, coalesce, "quota", "turn"),
        (of_turns, coalesce, "turn", "quota"),
    ] {
        let report = simulate(&config(queue, rest, misfire), &["--for", "2h", "--json"]).await.json();
        let sync = &report["kinds"]["sync"];
        let (skipped, misfired) = (format!("skipped: {reason}"), "skipped: misfire");
        let count = |reason: &str| sync["reasons"][reason].as_u64().unwrap_or(0);
        let late = |of: &str| sync["tenants"][of]["late_ms"]["p99"].as_f64().unwrap();
        assert!(count(&skipped) > 500 && count(misfired) * 20 < count(&skipped), "{reason}: {sync}");
        assert_eq!(count(&format!("skipped: {other}")), 0, "{reason}: {sync}");
        assert!(late("small") < 10_000.0 && late("flood") > 15_000.0, "{reason}: {sync}");
    }
}
