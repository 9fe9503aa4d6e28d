//! A report's starts over time as SVG: kinds stacked, and the busiest second of each column above.

use std::fmt::Write;
use std::time::Duration;

use super::report::Report;
use super::text::clock;
use super::words::figure;

/// The picture, and the plot in it: left, top, width, height.
const SIZE: (f64, f64) = (960.0, 420.0);
const PLOT: (f64, f64, f64, f64) = (64.0, 44.0, 700.0, 320.0);
/// Columns of the plot at most.
const COLUMNS: usize = 360;
/// Colours that people with any sight can tell apart (Okabe and Ito); they repeat.
const COLOURS: [&str; 7] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999933"];
/// Kinds that are named beside the plot.
const NAMED: usize = 16;

/// The picture.
pub fn svg(report: &Report) -> String {
    let mut text = String::new();
    // Writing to memory does not fail.
    let _ = write_svg(report, &mut text);
    text
}

fn write_svg(report: &Report, out: &mut String) -> std::fmt::Result {
    let (left, top, width, height) = PLOT;
    let all = report.series.0.columns(COLUMNS);
    let count = all.len().max(1) as f64;
    let highest = all.iter().map(|(rate, peak)| rate.max(*peak as f64)).fold(0.0, f64::max).max(1e-9);
    let x = |column: usize| left + width * column as f64 / count;
    let y = |rate: f64| top + height * (1.0 - rate / highest);
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">",
        SIZE.0, SIZE.1
    )?;
    writeln!(out, "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>")?;
    let peak = report.peak_to_mean.map_or("-".into(), figure);
    writeln!(
        out,
        "<text x=\"{left}\" y=\"24\" font-size=\"15\">starts per second from {} on; peak to mean {peak}</text>",
        report.from
    )?;
    for n in 0..=4 {
        let rate = highest * f64::from(n) / 4.0;
        let at = y(rate);
        writeln!(out, "<path d=\"M{left} {at:.1}h{width}\" stroke=\"#ddd\"/>")?;
        writeln!(out, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>", left - 6.0, at + 4.0, figure(rate))?;
        let moment = report.begin + report.length * n / 4;
        writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            left + width * f64::from(n) / 4.0,
            top + height + 18.0,
            clock(moment, report.length.max(Duration::from_secs(1)))
        )?;
    }
    let mut below = vec![0.0; all.len()];
    for (n, (name, series)) in report.series.1.iter().enumerate() {
        let above: Vec<f64> =
            series.columns(COLUMNS).iter().zip(&below).map(|((rate, _), below)| below + rate).collect();
        let mut path = String::new();
        for (column, rate) in above.iter().enumerate() {
            let command = if column == 0 { 'M' } else { 'L' };
            write!(path, "{command}{:.1} {:.1}H{:.1}", x(column), y(*rate), x(column + 1))?;
        }
        for (column, rate) in below.iter().enumerate().rev() {
            write!(path, "L{:.1} {:.1}H{:.1}", x(column + 1), y(*rate), x(column))?;
        }
        let colour = COLOURS[n % COLOURS.len()];
        writeln!(out, "<path d=\"{path}Z\" fill=\"{colour}\"/>")?;
        if n < NAMED {
            let (at, side) = (top + 18.0 * n as f64, left + width + 16.0);
            writeln!(out, "<rect x=\"{side}\" y=\"{at}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>")?;
            writeln!(out, "<text x=\"{}\" y=\"{}\">{}</text>", side + 18.0, at + 11.0, escaped(name))?;
        }
        below = above;
    }
    let mut path = String::new();
    for (column, (_, peak)) in all.iter().enumerate() {
        let command = if column == 0 { 'M' } else { 'L' };
        write!(path, "{command}{:.1} {:.1}H{:.1}", x(column), y(*peak as f64), x(column + 1))?;
    }
    writeln!(out, "<path d=\"{path}\" fill=\"none\" stroke=\"#555\" stroke-width=\"0.8\"/>")?;
    writeln!(
        out,
        "<text x=\"{left}\" y=\"{}\" fill=\"#555\">line: the busiest second of each column; areas: the mean, by kind</text>",
        SIZE.1 - 16.0
    )?;
    writeln!(out, "</svg>")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
