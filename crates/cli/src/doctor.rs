//! `roundelay doctor`

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use roundelay_admin::inspect::doctor::{Area, Finding, Grade, examine};
use roundelay_config::Config;
use roundelay_model::clock::{Clock, Time, parse_duration};
use serde_json::{Value, json};

use super::progress::waiting;
use super::screen::{self, Tint};
use super::{ConfigFile, check};

/// Checks everything that the system depends on, and says how to mend what is wrong.
///
/// Checks the configuration, this machine, clocks, ledger, broker, chains, workers and the API, all at the same time,
/// and reports each as good, as a warning, as wrong with the consequence and the fix, or as unknown and why. Nothing is
/// changed anywhere; ledgers are opened for reading, and not migrated. Run it on a worker's machine, as the worker's
/// user. Exit code 1 when something is wrong.
#[derive(Args)]
pub struct Doctor {
    #[command(flatten)]
    config: ConfigFile,
    /// Accept kinds without a handler: a program of your own registers them.
    #[arg(long)]
    rust_handlers: bool,
    /// How long each part may take to answer.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "5s")]
    within: Duration,
    /// Check the whole file of a SQLite ledger for damage, also when it is large. Best on a copy, or with the workers
    /// stopped: during the check, its write-ahead log grows.
    #[arg(long)]
    thorough: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub async fn run(self) -> anyhow::Result<()> {
        let (mut findings, config) = self.configuration();
        if let Some(config) = config {
            let waits = waiting("examining");
            findings.extend(examine(&config, self.within, self.thorough).await);
            drop(waits);
        }
        let count = Count::of(&findings);
        if self.json {
            screen::json(&report(&findings, count, Clock::System.now()))?;
        } else {
            print(&findings, count);
        }
        match count.bad {
            0 => Ok(()),
            1 => bail!("one thing is wrong"),
            bad => bail!("{bad} things are wrong"),
        }
    }

    /// The findings of `roundelay check`, and the configuration if it can be used at all.
    fn configuration(&self) -> (Vec<Finding>, Option<Config>) {
        let (area, file) = (Area::Configuration, self.config.config.display().to_string());
        let stops = "no worker starts, and no command works";
        match Config::load(&self.config.config) {
            Ok(config) => {
                let runnable = check::runnable(&config, &file, self.rust_handlers);
                let finding = match runnable {
                    Ok(()) => Finding::good(area, "file", format!("{file} is right")),
                    Err(why) => Finding::bad(area, "file", why.to_string(), "no worker starts", "as it says"),
                };
                (vec![finding], Some(config))
            }
            Err(error) => {
                let problem = |problem: &roundelay_config::Problem| {
                    let line = problem.line.map_or_else(String::new, |line| format!(":{line}"));
                    let what = if problem.key.is_empty() { "file" } else { &problem.key };
                    let fix = format!("as it says, in {file}{line}; a variable ROUNDELAY__… goes over the file");
                    Finding::bad(area, what, problem.message.clone(), stops, fix)
                };
                let mut findings: Vec<Finding> = error.problems.iter().map(problem).collect();
                let why = "without a configuration nobody knows where it is";
                let rest = "machine, clocks, ledger, broker, chains, API";
                findings.push(Finding::unknown(area, rest, why, "mend the configuration, then run this again"));
                (findings, None)
            }
        }
    }
}

/// How many findings there are of each sort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    good: usize,
    warning: usize,
    bad: usize,
    unknown: usize,
}

impl Count {
    fn of(findings: &[Finding]) -> Self {
        let count = |grade| findings.iter().filter(|finding| finding.result == grade).count();
        Self {
            good: count(Grade::Good),
            warning: count(Grade::Warning),
            bad: count(Grade::Bad),
            unknown: count(Grade::Unknown),
        }
    }
}

fn report(findings: &[Finding], count: Count, at: Time) -> Value {
    let Count { good, warning, bad, unknown } = count;
    json!({
        "ok": bad == 0,
        "version": env!("CARGO_PKG_VERSION"),
        "at": at,
        "counts": { "good": good, "warning": warning, "bad": bad, "unknown": unknown },
        "findings": findings,
    })
}

/// The findings for people.
fn print(findings: &[Finding], count: Count) {
    let mut area = None;
    for finding in findings {
        if area != Some(finding.area) {
            if area.is_some() {
                out!("");
            }
            screen::tinted(Tint::Heading, format_args!("{}", title(finding.area)));
            area = Some(finding.area);
        }
        let (word, tint) = match finding.result {
            Grade::Good => ("good", None),
            Grade::Warning => ("warning", Some(Tint::Notable)),
            Grade::Bad => ("wrong", Some(Tint::Wrong)),
            Grade::Unknown => ("unknown", Some(Tint::Notable)),
        };
        let words = format!("  {word:<9}{}: {}", finding.what, finding.seen);
        match tint {
            Some(tint) => screen::tinted(tint, format_args!("{words}")),
            None => out!("{words}"),
        }
        for (label, words) in [("follows", &finding.follows), ("fix", &finding.fix)] {
            if !words.is_empty() {
                screen::field(label, words);
            }
        }
    }
    let Count { good, warning, bad, unknown } = count;
    let warnings = if warning == 1 { "1 warning".to_owned() } else { format!("{warning} warnings") };
    out!("");
    out!("{bad} wrong, {warnings}, {unknown} unknown, {good} good");
}

fn title(area: Area) -> &'static str {
    match area {
        Area::Configuration => "Configuration",
        Area::Machine => "This machine",
        Area::Clock => "Clocks",
        Area::Ledger => "Ledger",
        Area::Broker => "Broker",
        Area::Chains => "Chains and workers",
        Area::Api => "API",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_counted_and_told() {
        let findings = [
            Finding::bad(Area::Ledger, "ledger", "it is away", "nothing runs", "start it"),
            Finding::unknown(Area::Broker, "permissions", "not to be seen", "grant it"),
        ];
        let count = Count::of(&findings);
        assert_eq!(count, Count { bad: 1, unknown: 1, ..Count::default() });
        let report = report(&findings, count, Time::from_millis(7));
        assert_eq!(
            (&report["ok"], &report["at"], &report["findings"][0]["result"]),
            (&json!(false), &json!(7), &json!("bad"))
        );
    }
}
