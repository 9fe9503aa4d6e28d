//! `roundelay doctor`

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use roundelay::Config;
use roundelay::clock::{Clock, Time, parse_duration};
use roundelay::inspect::doctor::{Area, Finding, Grade, examine};
use serde_json::{Value, json};

use super::{ConfigFile, check};

/// How wide lines are.
const WIDTH: usize = 80;
/// Where what was found begins, and where the words of its parts do.
const INDENT: usize = 11;
const PARTS: usize = 20;

/// Examines the ground that everything stands on, and says how to mend what is wrong.
///
/// Looks at the configuration, this machine, clocks, ledger, broker, chains, workers and the API, all at the same
/// time, and says of each: good, a warning, wrong with what follows and the fix, or unknown and why. Nothing is changed
/// anywhere; ledgers are only looked at, and not brought up to date. Run it on a worker's machine, as the worker's user.
/// Exit code 1 when something is wrong.
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
    /// Look through the whole file of a ledger in SQLite for damage, also when it is large.
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
            findings.extend(examine(&config, self.within, self.thorough).await);
        }
        let count = Count::of(&findings);
        if self.json {
            out!("{}", report(&findings, count, Clock::System.now()));
        } else {
            let colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            out!("{}", text(&findings, count, colours).trim_end());
        }
        match count.bad {
            0 => Ok(()),
            1 => bail!("one thing is wrong"),
            bad => bail!("{bad} things are wrong"),
        }
    }

    /// What `roundelay check` would say, and the configuration if it can be used at all.
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
                let problem = |problem: &roundelay::config::Problem| {
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

/// The findings for people, in lines of at most [`WIDTH`] letters.
fn text(findings: &[Finding], count: Count, colours: bool) -> String {
    let mut text = String::new();
    let mut area = None;
    for finding in findings {
        if area != Some(finding.area) {
            let space = if area.is_some() { "\n" } else { "" };
            let _ = writeln!(text, "{space}{}", title(finding.area));
            area = Some(finding.area);
        }
        let (word, colour) = match finding.result {
            Grade::Good => ("good", "32"),
            Grade::Warning => ("warning", "33"),
            Grade::Bad => ("wrong", "31"),
            Grade::Unknown => ("unknown", "36"),
        };
        let word = format!("{word:<9}");
        let word = if colours { format!("\x1b[{colour}m{word}\x1b[0m") } else { word };
        let first = format!("{}: {}", finding.what, finding.seen);
        let _ = writeln!(text, "  {word}{}", wrapped(&first, INDENT));
        for (label, words) in [("follows", &finding.follows), ("fix", &finding.fix)] {
            if !words.is_empty() {
                let _ = writeln!(text, "{:INDENT$}{label:<9}{}", "", wrapped(words, PARTS));
            }
        }
    }
    let Count { good, warning, bad, unknown } = count;
    let warnings = if warning == 1 { "1 warning".to_owned() } else { format!("{warning} warnings") };
    let _ = writeln!(text, "\n{bad} wrong, {warnings}, {unknown} unknown, {good} good");
    text
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

/// Words in lines that begin at column `indent`, the first of them already there. What is longer than a line is broken
/// anywhere.
fn wrapped(words: &str, indent: usize) -> String {
    let room = WIDTH - indent;
    let (mut text, mut used) = (String::new(), 0);
    for word in words.split_whitespace() {
        let mut letters = word.chars().count();
        if used > 0 && used + 1 + letters <= room {
            text.push(' ');
            used += 1;
        } else if used > 0 {
            let _ = write!(text, "\n{:indent$}", "");
            used = 0;
        }
        let mut rest = word;
        while letters > room {
            let end = rest.char_indices().nth(room).map_or(rest.len(), |(at, _)| at);
            let _ = write!(text, "{}\n{:indent$}", &rest[..end], "");
            rest = &rest[end..];
            letters -= room;
        }
        text.push_str(rest);
        used += letters;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wrapped_at_words_and_nothing_is_lost() {
        assert_eq!(wrapped("", 70), "");
        assert_eq!(wrapped("one two three", 70), format!("one two\n{:70}three", ""));
        assert_eq!(wrapped("a 0123456789abc d", 70), format!("a\n{0:70}0123456789\n{0:70}abc d", ""));
        assert_eq!(wrapped("äöüäöüäöüä äöü", 70), format!("äöüäöüäöüä\n{:70}äöü", ""));
        let long = "words of some length that go on and on ".repeat(20);
        for indent in [0, INDENT, PARTS] {
            let lines = wrapped(&long, indent);
            assert!(lines.lines().all(|line| line.chars().count() <= WIDTH), "{lines}");
            assert_eq!(lines.split_whitespace().collect::<Vec<_>>(), long.split_whitespace().collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_is_shown_fits_a_terminal_and_is_said_in_words() {
        let findings = [
            Finding::bad(Area::Ledger, "ledger", "it is away ".repeat(12), "nothing runs ".repeat(9), "start it"),
            Finding::unknown(Area::Broker, "permissions", "not to be seen", "grant ".repeat(20)),
        ];
        let count = Count::of(&findings);
        assert_eq!(count, Count { bad: 1, unknown: 1, ..Count::default() });
        let plain = text(&findings, count, false);
        assert!(plain.lines().all(|line| line.chars().count() <= WIDTH), "{plain}");
        for words in [
            "Ledger\n  wrong    ledger: it is away",
            "           fix      start it",
            "1 wrong, 0 warnings, 1 unknown, 0 good",
        ] {
            assert!(plain.contains(words), "no `{words}` in {plain}");
        }
        assert!(!plain.contains('\x1b'));
        assert!(text(&findings, count, true).contains("\x1b[31mwrong    \x1b[0m"));
        let report = report(&findings, count, Time::from_millis(7));
        assert_eq!(
            (&report["ok"], &report["at"], &report["findings"][0]["result"]),
            (&json!(false), &json!(7), &json!("bad"))
        );
    }
}
