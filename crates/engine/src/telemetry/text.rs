//! Prometheus' text format, version 0.0.4.
//!
//! The client library writes OpenMetrics, where a counter `x` has samples called `x_total`. The
//! older format is understood by everything that scrapes, and names a counter as its samples are
//! named, which is also how people look for it. The two differ in their comments only.

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;

/// Its content type.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes everything in `registry`.
pub fn render(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to memory does not fail.
    let _ = encode_registry(&mut text, registry);
    classic(&text)
}

/// OpenMetrics, with the comments of the older format.
fn classic(text: &str) -> String {
    let mut classic = String::with_capacity(text.len());
    // The help comes before the type, and the type decides on the name.
    let mut help = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map(|(_, help)| help);
            continue;
        }
        if line.starts_with("# UNIT ") {
            continue;
        }
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let total = if kind == "counter" { "_total" } else { "" };
            if let Some(help) = help.take() {
                classic += &format!("# HELP {name}{total} {help}\n");
            }
            classic += &format!("# TYPE {name}{total} {kind}\n");
            continue;
        }
        classic += line;
        classic.push('\n');
    }
    classic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_named_as_their_samples_are() {
        let open = "# HELP a_b Words of help.\n# TYPE a_b counter\na_b_total{x=\"# TYPE q counter\"} 1\n\
                    # HELP c Seconds.\n# TYPE c gauge\n# UNIT c seconds\nc 2.5\n";
        let expected = "# HELP a_b_total Words of help.\n# TYPE a_b_total counter\na_b_total{x=\"# TYPE q counter\"} 1\n\
                        # HELP c Seconds.\n# TYPE c gauge\nc 2.5\n";
        assert_eq!(classic(open), expected);
    }
}
