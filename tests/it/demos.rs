//! The demos of channels, trading and app stores: the real program on each broker, and what they say when their
//! configuration breaks a rule.

use serde_json::{Value, json};

use crate::harness::{Ground, roundelay, roundelay_with};

async fn demo(arguments: &[&str]) -> Value {
    let output = roundelay(&[&["demo"], arguments, &["--json"]].concat()).await;
    assert!(output.ok, "{output:?}");
    output.json()
}

/// What a demo finds broken when these variables change its configuration.
async fn broken(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let output = roundelay_with(variables, &[&["demo"], arguments, &["--json"]].concat()).await;
    assert!(!output.ok, "a rule was broken, and the command did not fail: {output:?}");
    let report = output.json();
    report["violations"].as_array().unwrap().iter().map(|said| said.as_str().unwrap()).collect::<Vec<_>>().join("\n")
}

fn channels_are_polled(report: &Value) {
    assert_eq!(report["violations"], json!([]), "{report}");
    assert_eq!((&report["forked"], &report["dead"]), (&json!(0), &json!(0)), "{report}");
    // 30 tasks, of which the deleted channel had four: its mailbox, of ten minutes, may not have had its turn by then.
    assert_eq!(report["chains"], json!(26), "{report}");
    assert!(report["figures"]["tasks"].as_u64() >= Some(29), "{report}");
    assert!(report["figures"]["runs"].as_u64().unwrap() > 100, "{report}");
    let names: Vec<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
    let all = ["chains", "dead", "figures", "forked", "late_ms", "system", "ticks", "violations"];
    assert!(all.iter().all(|name| names.contains(name)) && names.len() == all.len(), "{names:?}");
}

#[tokio::test]
async fn channels_keep_their_rules() {
    channels_are_polled(&demo(&["channels", "--for", "10s"]).await);
}

#[tokio::test]
async fn channels_keep_their_rules_on_rabbitmq_and_postgres() {
    let ground = Ground::rabbit_and_postgres().await;
    let (broker, ledger) = (ground.broker_url(), ground.ledger_url());
    let report = demo(&["channels", "--for", "10s", "--broker", &broker, "--ledger", &ledger]).await;
    channels_are_polled(&report);
}

fn trading_goes_by_its_table(report: &Value) {
    assert_eq!(report["violations"], json!([]), "{report}");
    assert_eq!((&report["chains"], &report["forked"], &report["dead"]), (&json!(17), &json!(0), &json!(0)), "{report}");
    // Two were asked for at once each time, and of these the second is refused.
    let figures = &report["figures"];
    assert!(figures["manual"].as_u64() >= Some(3) && figures["refused"].as_u64() >= Some(3), "{report}");
    assert!(figures["called"]["store-balances"].as_u64() > Some(100), "{report}");
}

#[tokio::test]
async fn trading_keeps_its_rules() {
    trading_goes_by_its_table(&demo(&["trading", "--for", "20s"]).await);
}

#[tokio::test]
async fn trading_keeps_its_rules_on_rabbitmq_and_postgres() {
    let ground = Ground::rabbit_and_postgres().await;
    let (broker, ledger) = (ground.broker_url(), ground.ledger_url());
    trading_goes_by_its_table(&demo(&["trading", "--for", "20s", "--broker", &broker, "--ledger", &ledger]).await);
}

fn stores_are_kept_to(report: &Value) {
    assert_eq!(report["violations"], json!([]), "{report}");
    assert_eq!((&report["forked"], &report["dead"]), (&json!(0), &json!(0)), "{report}");
    let figures = &report["figures"];
    assert!(figures["unavailable"].as_u64() > Some(10) && figures["on_demand"].as_u64() > Some(3), "{report}");
    assert!(figures["syncs"]["ios"].as_u64() > Some(15) && figures["syncs"]["android"].as_u64() > Some(15), "{report}");
}

#[tokio::test]
async fn appstore_keeps_its_rules() {
    stores_are_kept_to(&demo(&["appstore", "--for", "15s"]).await);
}

#[tokio::test]
async fn appstore_keeps_its_rules_on_rabbitmq_and_postgres() {
    let ground = Ground::rabbit_and_postgres().await;
    let (broker, ledger) = (ground.broker_url(), ground.ledger_url());
    stores_are_kept_to(&demo(&["appstore", "--for", "15s", "--broker", &broker, "--ledger", &ledger]).await);
}

#[tokio::test]
async fn a_refresh_beside_an_update_is_told() {
    let variables = [("ROUNDELAY__KINDS__UPDATE_CHARACTER__IF_RUNNING", "beside")];
    let said = broken(&["characters", "--for", "15s"], &variables).await;
    assert!(said.contains("before the one before it had ended"), "{said}");
}

#[tokio::test]
async fn a_time_box_of_another_share_is_told() {
    let said = broken(&["channels", "--for", "8s"], &[("ROUNDELAY__KINDS__POLL_SOCIAL_INBOX__TIME_BOX", "90%")]).await;
    assert!(said.contains("half of its interval is"), "{said}");
}

#[tokio::test]
async fn a_tolerance_that_drops_too_much_is_told() {
    let said =
        broken(&["channels", "--for", "10s"], &[("ROUNDELAY__KINDS__POLL_SOCIAL_INBOX__TOLERANCE", "1ms")]).await;
    assert!(said.contains("was not polled at") && said.contains("it may start then"), "{said}");
}

#[tokio::test]
async fn tasks_that_do_not_belong_to_their_channel_are_told() {
    let variables = [("ROUNDELAY__KINDS__POLL_SOCIAL_INBOX__ROSTER__OWNER", "all")];
    let said = broken(&["channels", "--for", "8s"], &variables).await;
    assert!(said.contains("after its channel radio-3 had been deleted"), "{said}");
}

#[tokio::test]
async fn a_table_with_another_cadence_is_told() {
    let variables = [("ROUNDELAY__KINDS__FETCH_KLINES_1H__CRON", "6 * * * *")];
    let said = broken(&["trading", "--for", "10s"], &variables).await;
    assert!(said.contains("fetch-klines-1h - was not called for"), "{said}");
    assert!(said.contains("neither the table nor an operator asked for"), "{said}");
}

#[tokio::test]
async fn a_cooldown_above_the_tables_is_told() {
    let variables = [("ROUNDELAY__KINDS__CREATE_POSITIONS__COOLDOWN", "20s")];
    let said = broken(&["trading", "--for", "10s"], &variables).await;
    assert!(said.contains("create-positions - was not called for"), "{said}");
    assert!(said.contains("neither ran then nor had ended within its cooldown"), "{said}");
}

#[tokio::test]
async fn a_throttle_above_what_a_store_takes_is_told() {
    let variables = [("ROUNDELAY__THROTTLES__SYNC_ANDROID__ALLOW", "15")];
    let said = broken(&["appstore", "--for", "10s"], &variables).await;
    assert!(said.contains("android was asked for") && said.contains("syncs within"), "{said}");
    assert!(!said.contains("ios was asked for 15 syncs"), "{said}");
}

#[tokio::test]
async fn charts_that_both_stores_share_are_told() {
    let variables = [("ROUNDELAY__KINDS__CHART_SNAPSHOT__ROSTER__KEY", "{{ country }}/{{ chart }}")];
    let output = roundelay_with(&variables, &["demo", "appstore", "--for", "10s", "--json"]).await;
    // The roster says so before anything runs: two rows of one key and different queues.
    assert!(!output.ok && output.stderr.contains("a row of the roster of chart-snapshot cannot be used"), "{output:?}");
}

#[tokio::test]
async fn options_of_packages_are_refused_elsewhere() {
    for option in [["--chains", "10"], ["--every", "1s"]] {
        let output = roundelay(&[&["demo", "channels"], option.as_slice()].concat()).await;
        assert!(!output.ok && output.stderr.contains("is for the demo of packages"), "{output:?}");
    }
}
