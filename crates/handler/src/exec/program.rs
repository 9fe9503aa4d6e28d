//! Which programs may be started, and within which limits.

use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use crate::exec::settings::LimitSettings;

/// What sets limits before the program begins, so that there is no moment without them: a part of util-linux. A process
/// cannot be given limits while it starts without code that could not be checked for memory safety, and a moment later
/// it may have started others.
pub const LIMITER: &str = "/usr/bin/prlimit";

/// How long after SIGXCPU, at the limit of CPU time, SIGKILL follows: in seconds of CPU time.
const LAST_WORDS: u64 = 5;

/// Why a program is not started.
#[derive(Debug)]
pub enum Unstartable {
    /// It is not on the list: the file that was found.
    NotAllowed(PathBuf),
    /// It cannot be looked at, or not be executed.
    Absent(io::Error),
    /// A limit is above what this process may give: which of `handler.exec.limits`, and the most there is.
    Above(&'static str, u64),
}

/// Whether `program` may be started, if a list says which may: it, or a folder that it is in, has to be on it, after
/// all symbolic links are followed, those of the list too.
///
/// # Errors
/// [`Unstartable`].
pub fn allowed(program: &Path, list: Option<&[PathBuf]>) -> Result<(), Unstartable> {
    let Some(list) = list else { return Ok(()) };
    let found = program.canonicalize().map_err(Unstartable::Absent)?;
    // An entry that is not there allows nothing.
    if list.iter().filter_map(|entry| entry.canonicalize().ok()).any(|entry| found.starts_with(entry)) {
        return Ok(());
    }
    Err(Unstartable::NotAllowed(found))
}

/// Whether it can be executed: the limiter would say so with an exit code that the program may have, too.
///
/// # Errors
/// [`Unstartable::Absent`].
pub fn executable(program: &Path) -> Result<(), Unstartable> {
    access(program, AccessFlags::X_OK).map_err(|error| Unstartable::Absent(error.into()))
}

/// Whether this process may give a program these limits: the limiter would say so with an exit code, too.
///
/// # Errors
/// [`Unstartable::Above`].
pub fn within_ours(limits: &LimitSettings) -> Result<(), Unstartable> {
    // Elsewhere there is no limiter.
    #[cfg(target_os = "linux")]
    if limits.any() && !may_raise() {
        use nix::sys::resource::Resource;
        let ours = [Resource::RLIMIT_AS, Resource::RLIMIT_CPU, Resource::RLIMIT_NOFILE, Resource::RLIMIT_NPROC];
        // One that cannot be asked for bounds nothing here.
        let ours = ours.map(|one| nix::sys::resource::getrlimit(one).map_or(u64::MAX, |(_, hard)| hard));
        if let Some((setting, most)) = above(limits, ours) {
            return Err(Unstartable::Above(setting, most));
        }
    }
    let _ = limits;
    Ok(())
}

/// The first that is above the hard limits of memory, CPU time, files and processes, and how much it may be (pure).
fn above(limits: &LimitSettings, hard: [u64; 4]) -> Option<(&'static str, u64)> {
    let [memory, cpu, files, processes] = hard;
    let wanted = [
        ("memory", limits.memory, memory),
        // What is set is this much more.
        ("cpu", limits.cpu, if cpu == u64::MAX { cpu } else { cpu.saturating_sub(LAST_WORDS) }),
        ("files", limits.files, files),
        ("processes", limits.processes, processes),
    ];
    wanted
        .into_iter()
        .find(|(_, wanted, most)| wanted.is_some_and(|wanted| wanted > *most))
        .map(|(of, _, most)| (of, most))
}

/// Whether this process may give others more than it has itself.
#[cfg(target_os = "linux")]
fn may_raise() -> bool {
    /// CAP_SYS_RESOURCE, as a bit.
    const RAISES: u64 = 1 << 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & RAISES != 0)
}

/// What the limiter is told, before the program and its arguments (pure).
pub fn limiting(limits: &LimitSettings) -> Vec<String> {
    let hard = |name: &str, value: Option<u64>| value.map(|value| format!("--{name}={value}:{value}"));
    let cpu = limits.cpu.map(|seconds| format!("--cpu={seconds}:{}", seconds + LAST_WORDS));
    let all = [hard("as", limits.memory), cpu, hard("nofile", limits.files), hard("nproc", limits.processes)];
    all.into_iter().flatten().chain(["--".to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_before_the_list_is_asked() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        for path in ["bin", "binary", "releases/7"] {
            std::fs::create_dir_all(at(path)).unwrap();
        }
        for path in ["bin/good", "binary/other", "releases/7/run", "outside"] {
            std::fs::write(at(path), "").unwrap();
        }
        symlink(at("outside"), at("bin/escape")).unwrap();
        symlink(at("bin/good"), at("alias")).unwrap();
        symlink(at("releases/7"), at("current")).unwrap();
        let table = [
            ("bin/good", "bin", true),
            ("bin/good", "bin/good", true),
            ("alias", "bin", true),
            ("bin/../bin/good", "bin", true),
            ("releases/7/run", "current", true),
            ("current/run", "current", true),
            ("bin/escape", "bin", false),
            ("bin/../outside", "bin", false),
            ("binary/other", "bin", false),
            ("bin/good", "bin/goo", false),
            ("bin/good", "absent", false),
        ];
        for (program, entry, good) in table {
            let answer = allowed(&at(program), Some(&[at(entry)]));
            assert_eq!(answer.is_ok(), good, "{program} by {entry}: {answer:?}");
        }
        assert!(matches!(allowed(&at("bin/escape"), Some(&[at("bin")])), Err(Unstartable::NotAllowed(found))
            if found == at("outside").canonicalize().unwrap()));
        assert!(matches!(allowed(&at("absent"), Some(&[at("bin")])), Err(Unstartable::Absent(_))));
        assert!(allowed(&at("bin/good"), Some(&[])).is_err(), "an empty list allows nothing");
        assert!(allowed(&at("absent"), None).is_ok(), "without a list nothing is looked at");
        assert!(executable(Path::new("/bin/sh")).is_ok() && executable(&at("absent")).is_err());
    }

    #[test]
    fn limits_above_the_hard_ones_are_named() {
        let all = LimitSettings { memory: Some(512), cpu: Some(30), files: Some(64), processes: Some(7) };
        let table = [
            ([u64::MAX; 4], None),
            ([512, 35, 64, 7], None),
            ([511, 35, 64, 7], Some(("memory", 511))),
            ([512, 34, 64, 7], Some(("cpu", 29))),
            ([512, 3, 64, 7], Some(("cpu", 0))),
            ([512, 35, 63, 6], Some(("files", 63))),
            ([512, 35, 64, 6], Some(("processes", 6))),
        ];
        for (hard, expected) in table {
            assert_eq!(above(&all, hard), expected, "{hard:?}");
        }
        assert_eq!(above(&LimitSettings::default(), [0; 4]), None, "what is not said is not limited");
    }

    #[test]
    fn what_the_limiter_is_told() {
        let limits = LimitSettings { memory: Some(512 << 20), cpu: Some(30), files: Some(64), processes: Some(7) };
        assert_eq!(
            limiting(&limits),
            ["--as=536870912:536870912", "--cpu=30:35", "--nofile=64:64", "--nproc=7:7", "--"]
        );
        assert_eq!(limiting(&LimitSettings { files: Some(8), ..LimitSettings::default() }), ["--nofile=8:8", "--"]);
    }
}
