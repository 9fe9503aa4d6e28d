//! A report for a terminal of 80 columns.

use std::cmp::Reverse;
use std::fmt::Write;
use std::time::Duration;

use roundelay_model::clock::Time;

use super::changes::Quality;
use super::fresh::FreshReport;
use super::report::{Quantiles, Report};
use super::words::{figure, grouped, spoken, spoken_seconds};

/// Columns of the chart.
const COLUMNS: usize = 72;
/// Its lines.
const LINES: usize = 6;
/// Eighths of a line, as blocks.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The longest name that is shown in full.
const NAME: usize = 18;
/// So many tenants of a kind are shown.
const TENANTS: usize = 12;

/// The whole report, without what is to be warned of.
pub fn report(report: &Report) -> String {
    let mut text = String::new();
    // Writing to memory does not fail.
    let _ = write_report(report, &mut text);
    text
}

fn write_report(report: &Report, out: &mut String) -> std::fmt::Result {
    let plural = |n: u64, noun: &str| format!("{} {noun}{}", grouped(n), if n == 1 { "" } else { "s" });
    writeln!(
        out,
        "{} and {} later: {}, {}, seed {}\n",
        report.from,
        spoken(report.length),
        plural(report.chains(), "chain"),
        plural(report.workers as u64, "worker"),
        report.seed
    )?;
    let names = report.kinds.keys().map(|name| name.chars().count()).max().unwrap_or_default().clamp(4, NAME);
    writeln!(
        out,
        "{:<names$} {:>9} {:>11} {:>8} {:>8} {:>8} {:>9}",
        "kind", "chains", "starts", "dropped", "skipped", "failed", "backlog"
    )?;
    for (name, kind) in &report.kinds {
        let counts = [kind.chains, kind.starts, kind.dropped, kind.skipped, kind.failed, kind.backlog].map(grouped);
        let [chains, starts, dropped, skipped, failed, backlog] = &counts;
        let name = short(name);
        writeln!(out, "{name:<names$} {chains:>9} {starts:>11} {dropped:>8} {skipped:>8} {failed:>8} {backlog:>9}")?;
    }
    writeln!(
        out,
        "\n{:<names$} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>6}",
        "kind", "late p50", "p99", "max", "age p50", "p99", "max", "peak"
    )?;
    for (name, kind) in &report.kinds {
        let (late, age) = (three(kind.late_ms, 0.001), three(kind.freshness_s, 1.0));
        let peak = kind.peak_to_mean.map_or("-".into(), figure);
        writeln!(out, "{:<names$} {late} {age} {peak:>6}", short(name))?;
    }
    write_fresh(report, names, out)?;
    write_tenants(report, names, out)?;
    for (name, kind) in &report.kinds {
        for (reason, count) in &kind.reasons {
            writeln!(out, "{:<names$} {:>9} {reason}", short(name), grouped(*count))?;
        }
    }
    writeln!(out, "\n{}", chart(report))?;
    let peak = report.peak_to_mean.map_or("-".into(), figure);
    writeln!(out, "peak to mean {peak}, of all, after the first period of each kind")?;
    write!(out, "backlog {}: chains that are due at the end and do not run", grouped(report.backlog))?;
    for (queue, most) in report.longest_queues.iter().filter(|(_, most)| **most > 0) {
        write!(out, "\n{:>9} messages waited on the queue {queue} at most", grouped(*most))?;
    }
    for (name, throttle) in &report.throttles {
        write!(
            out,
            "\n{:>9} starts under the throttle {name}, {} % of what it allows; at most {} in a window, of {}",
            grouped(throttle.starts),
            figure(throttle.use_percent),
            throttle.most,
            throttle.allow
        )?;
    }
    Ok(())
}

/// How right what is known of entities is, beside what else could be.
fn write_fresh(report: &Report, names: usize, out: &mut String) -> std::fmt::Result {
    let told: Vec<(&String, &FreshReport)> =
        report.kinds.iter().filter_map(|(name, kind)| Some((name, kind.fresh.as_ref()?))).collect();
    if told.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n{:<names$} {:>7} {:>7} {:>7} {:>9} {:>9} {:>9}  calls an hour",
        "kind", "right", "best", "uniform", "outdated", "best", "uniform"
    )?;
    for (name, fresh) in told {
        let right = |of: Option<Quality>| of.map_or("-".into(), |of| format!("{:.3}", of.freshness));
        let age = |of: Option<Quality>| of.map_or("-".into(), |of| spoken_seconds(of.age_s).replace("days", "d"));
        let (learned, best, uniform) = (Some(fresh.learned), fresh.best, fresh.uniform);
        let calls = fresh.calls.map_or("-".into(), |calls| format!("{:.2} to {:.2}", calls.least, calls.most));
        let (right, age) = ([learned, best, uniform].map(right), [learned, best, uniform].map(age));
        writeln!(
            out,
            "{:<names$} {:>7} {:>7} {:>7} {:>9} {:>9} {:>9}  {calls}",
            short(name),
            right[0],
            right[1],
            right[2],
            age[0],
            age[1],
            age[2]
        )?;
        if let Some(uniform) = uniform {
            writeln!(
                out,
                "{:<names$} {} of the right time and {} of the age that one interval for all comes to",
                "",
                figure(fresh.learned.freshness / uniform.freshness),
                figure(fresh.learned.age_s / uniform.age_s)
            )?;
        }
    }
    Ok(())
}

/// How late the jobs of tenants started, those with the most starts.
fn write_tenants(report: &Report, names: usize, out: &mut String) -> std::fmt::Result {
    let shares: Vec<_> = report.kinds.iter().filter(|(_, kind)| !kind.tenants.is_empty()).collect();
    if shares.is_empty() {
        return Ok(());
    }
    let head = ("kind", "tenant", "starts", "late p50", "p99", "max");
    writeln!(out, "\n{:<names$} {:<NAME$} {:>11} {:>8} {:>8} {:>8}", head.0, head.1, head.2, head.3, head.4, head.5)?;
    for (name, kind) in shares {
        let mut tenants: Vec<_> = kind.tenants.iter().collect();
        tenants.sort_by_key(|(_, of)| Reverse(of.starts));
        for (tenant, of) in tenants.iter().take(TENANTS) {
            let tenant = if tenant.is_empty() { "(none)" } else { tenant };
            let (starts, late) = (grouped(of.starts), three(of.late_ms, 0.001));
            writeln!(out, "{:<names$} {:<NAME$} {starts:>11} {late}", short(name), short(tenant))?;
        }
        if let Some(more) = tenants.len().checked_sub(TENANTS).filter(|more| *more > 0) {
            writeln!(out, "{:<names$} and {} more: --json has all", short(name), grouped(more as u64))?;
        }
    }
    Ok(())
}

/// Starts per second over time, as blocks.
fn chart(report: &Report) -> String {
    let columns = report.series.0.columns(COLUMNS);
    let most = columns.iter().map(|(rate, _)| *rate).fold(0.0, f64::max);
    let mut text = format!("starts per second, each column on average; the highest is {}\n", figure(most));
    for line in (0..LINES).rev() {
        let cells = columns.iter().map(|(rate, _)| {
            let eighths = if most > 0.0 { rate / most * (LINES * 8) as f64 } else { 0.0 };
            // What is not nothing is seen.
            let eighths = if *rate > 0.0 { eighths.round().max(1.0) as usize } else { 0 };
            BLOCKS[eighths.saturating_sub(line * 8).min(8)]
        });
        text += cells.collect::<String>().trim_end();
        text.push('\n');
    }
    let (first, last) = (clock(report.begin, report.length), clock(report.begin + report.length, report.length));
    text += &format!("{first}{last:>width$}\n", width = columns.len().saturating_sub(first.len()));
    let highest = columns.iter().map(|(_, peak)| *peak).max().unwrap_or_default();
    text += &format!("the busiest second of each column; the highest is {}\n", grouped(highest));
    let cells = columns.iter().map(|(_, peak)| match highest {
        0 => ' ',
        _ => BLOCKS[(peak * 8).div_ceil(highest) as usize],
    });
    text + cells.collect::<String>().trim_end() + "\n"
}

/// A moment as it stands below a chart of such a length.
pub(super) fn clock(at: Time, length: Duration) -> String {
    let text = at.to_string();
    let part = match length.as_secs() {
        0..=7_200 => text.get(11..19),
        7_201..=172_800 => text.get(11..16),
        _ => text.get(5..16),
    };
    part.unwrap_or(&text).replace('T', " ")
}

fn three(quantiles: Quantiles, seconds: f64) -> String {
    let Quantiles { p50, p99, max } = quantiles;
    [p50, p99, max].map(|value| format!("{:>8}", spoken_seconds(value * seconds).replace("days", "d"))).join(" ")
}

fn short(name: &str) -> String {
    match name.char_indices().nth(NAME) {
        None => name.to_owned(),
        Some(_) => name.chars().take(NAME - 1).chain(['…']).collect(),
    }
}
