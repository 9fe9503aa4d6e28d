//! What is wrong with a configuration.

use std::fmt::{self, Write as _};

/// Something wrong in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// Where, counted from 1; absent when the value comes from the environment or is missing.
    pub line: Option<usize>,
    /// The dotted key.
    pub key: String,
    /// What is wrong and what to do.
    pub message: String,
}

/// A configuration that cannot be used: every problem in it, a line each.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigError {
    /// The file.
    pub file: String,
    /// At least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, problem) in self.problems.iter().enumerate() {
            if n > 0 {
                writeln!(f)?;
            }
            f.write_str(&self.file)?;
            if let Some(line) = problem.line {
                write!(f, ":{line}")?;
            }
            // What it says of the file's own text must not steer a terminal.
            for text in [&problem.key, &problem.message].into_iter().filter(|text| !text.is_empty()) {
                f.write_str(": ")?;
                text.chars().try_for_each(|c| match c {
                    c if c.is_control() && c != '\n' => write!(f, "{}", c.escape_default()),
                    c => f.write_char(c),
                })?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
