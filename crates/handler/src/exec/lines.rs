//! Lines of a program's output that say how far it has come.

use roundelay_model::progress::{MAX_REPORT, Report};

use crate::context::Context;

/// What such a line begins with; a JSON object follows.
const MARK: &[u8] = b"roundelay: progress ";

/// Whether this line says how far the program has come, well or not.
pub fn is_report(line: &[u8]) -> bool {
    line.starts_with(MARK)
}

/// Finds these lines in a stream, however it is cut into pieces.
pub struct Lines {
    context: Context,
    /// The beginning of the line that has not ended yet, as long as it can be such a line.
    line: Vec<u8>,
    /// The line cannot be one.
    other: bool,
}

impl Lines {
    pub fn new(context: Context) -> Self {
        Self { context, line: Vec::new(), other: false }
    }

    /// Looks at what comes next.
    pub fn look(&mut self, text: &[u8]) {
        if !self.context.takes_reports() {
            return;
        }
        for piece in text.split_inclusive(|byte| *byte == b'\n') {
            if !self.other {
                let room = (MARK.len() + MAX_REPORT + 2).saturating_sub(self.line.len());
                self.line.extend_from_slice(&piece[..piece.len().min(room)]);
                let start = &self.line[..self.line.len().min(MARK.len())];
                self.other = !MARK.starts_with(start);
            }
            if piece.ends_with(b"\n") {
                self.end();
            } else if self.other {
                self.line.clear();
            }
        }
    }

    /// The line has ended, or the stream has.
    pub fn end(&mut self) {
        if let Some(report) = self.line.strip_prefix(MARK).filter(|_| !self.other) {
            match Report::read(report.trim_ascii()) {
                Ok(report) => self.context.report(report),
                Err(why) => tracing::debug!(why, "a line about progress was left out"),
            }
        }
        self.line.clear();
        self.other = false;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::context::Reports;
    use roundelay_model::clock::Time;
    use roundelay_model::progress::Progress;

    /// Keeps where a run stands, as a worker does.
    #[derive(Default)]
    struct Stands(Mutex<Option<Progress>>);

    impl Reports for Stands {
        fn report(&self, report: Report) {
            let mut stands = self.0.lock();
            let after = report.after(stands.as_ref(), Time::from_millis(7));
            *stands = Some(after);
        }

        fn url(&self) -> Option<&str> {
            None
        }
    }

    /// Where a program stands that has written this, in pieces of `size`.
    fn stands(text: &str, size: usize) -> Option<String> {
        let stands = Arc::new(Stands::default());
        let mut lines = Lines::new(Context::new(stands.clone()));
        text.as_bytes().chunks(size).for_each(|piece| lines.look(piece));
        lines.end();
        let stood = stands.0.lock();
        stood.as_ref().map(ToString::to_string)
    }

    #[test]
    fn a_table_of_outputs() {
        let long = format!("{{\"phase\":\"{}\"}}", "x".repeat(MAX_REPORT));
        let table = [
            (String::new(), None),
            ("working\n{\"phase\":\"a\"}\n".into(), None),
            ("roundelay: progress {\"phase\":\"a\"}\n".into(), Some("a")),
            ("roundelay: progress {\"phase\":\"a\"}".into(), Some("a")),
            ("roundelay: progress {\"phase\":\"a\"}\r\nlog\n".into(), Some("a")),
            ("log\n\nroundelay: progress {\"done\":3,\"total\":12}\nlog".into(), Some("3/12")),
            ("log roundelay: progress {\"phase\":\"a\"}\n".into(), None),
            ("roundelay: progressing\n".into(), None),
            ("roundelay: progress {\"phase\":\"a\"}\nroundelay: progress 7\n".into(), Some("a")),
            (format!("roundelay: progress {{\"phase\":\"a\"}}\nroundelay: progress {long}\n"), Some("a")),
            (format!("{long}\nroundelay: progress {{\"phase\":\"a\"}}\n"), Some("a")),
            (
                "roundelay: progress {\"phase\":\"a\",\"total\":2}\nroundelay: progress {\"done\":1}\n".into(),
                Some("a 1/2"),
            ),
        ];
        for (text, expected) in table {
            for size in [1, 7, 64, 100_000] {
                assert_eq!(stands(&text, size).as_deref(), expected, "{text} in pieces of {size}");
            }
        }
    }
}
