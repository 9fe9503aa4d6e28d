//! `[exec]` and `handler.exec`: programs, where they may be, and what they may use.

use std::path::PathBuf;
use std::time::Duration;

use roundelay_handler::Compare;
use roundelay_handler::exec::{ExecSettings, LimitSettings};

use super::raw;
use crate::problems::Problems;

/// A program needs some memory to begin at all.
const MIN_MEMORY: u64 = 1 << 20;
/// Its input, its output, its errors, and the libraries that it loads one after the other.
const MIN_FILES: u64 = 4;
const DAY: Duration = Duration::from_secs(86_400);

/// The checked list of programs, if there is one.
pub(super) fn allowed(problems: &mut Problems, programs: raw::Programs) -> Option<Vec<PathBuf>> {
    let list = programs.allow?;
    for entry in &list {
        if !entry.starts_with('/') {
            let message = format!("`{entry}` is not an absolute path; write that of a program, or of a folder of such");
            problems.add(&["exec", "allow"], message);
        }
    }
    Some(list.into_iter().map(PathBuf::from).collect())
}

/// The checked handler of the kind `name`.
pub(super) fn check(
    problems: &mut Problems,
    name: &str,
    exec: raw::Exec,
    allow: Option<&Vec<PathBuf>>,
) -> ExecSettings {
    let path = ["kinds", name, "handler", "exec", "argv"];
    match exec.argv.first() {
        None => problems.add(&path, "needs at least the program"),
        Some(program) if !program.starts_with('/') => {
            problems.add(&path, format!("`{program}` is not an absolute path; no shell and no PATH look for it"));
        }
        Some(_) => {}
    }
    let limits = limits(problems, name, exec.limits);
    let cwd = exec.cwd.map(PathBuf::from);
    ExecSettings { argv: exec.argv, env: exec.env, cwd, limits, allow: allow.cloned(), compare: Compare::default() }
}

fn limits(problems: &mut Problems, name: &str, limits: raw::Limits) -> LimitSettings {
    let at = |key: &'static str| ["kinds", name, "handler", "exec", "limits", key];
    let memory = limits.memory.and_then(|text| {
        let size = size(&text).filter(|size| *size >= MIN_MEMORY);
        if size.is_none() {
            problems
                .add(&at("memory"), format!("`{text}` is no size from 1MiB on; write such as \"512MiB\" or \"2GiB\""));
        }
        size
    });
    if let Some(cpu) = limits.cpu {
        problems.range(&at("cpu"), cpu.0, Duration::from_secs(1), DAY);
        if cpu.0.subsec_nanos() > 0 {
            problems.add(&at("cpu"), "is counted in whole seconds");
        }
    }
    for (key, value, least) in [("files", limits.files, MIN_FILES), ("processes", limits.processes, 1)] {
        if let Some(value) = value {
            problems.range(&at(key), value, least, 1 << 20);
        }
    }
    LimitSettings {
        memory,
        cpu: limits.cpu.map(|cpu| cpu.0.as_secs()),
        files: limits.files,
        processes: limits.processes,
    }
}

/// Bytes, from a whole number and a unit.
fn size(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let unit = match text[end..].trim_start() {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    // What the system counts in has a sign.
    text[..end].parse::<u64>().ok()?.checked_mul(unit).filter(|size| i64::try_from(*size).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_sizes() {
        let table = [
            ("512MiB", Some(512 << 20)),
            ("2 GiB", Some(2 << 30)),
            ("0KiB", Some(0)),
            ("512", None),
            ("MiB", None),
            ("", None),
            ("1.5GiB", None),
            ("-1GiB", None),
            ("512MB", None),
            ("9000000000GiB", None),
            ("99999999999999999999GiB", None),
        ];
        for (text, expected) in table {
            assert_eq!(size(text), expected, "{text}");
        }
    }
}
