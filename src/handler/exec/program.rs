//! Which programs may be started, and within which limits.

use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use crate::config::LimitSettings;

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
    fn what_the_limiter_is_told() {
        let limits = LimitSettings { memory: Some(512 << 20), cpu: Some(30), files: Some(64), processes: Some(7) };
        assert_eq!(
            limiting(&limits),
            ["--as=536870912:536870912", "--cpu=30:35", "--nofile=64:64", "--nproc=7:7", "--"]
        );
        assert_eq!(limiting(&LimitSettings { files: Some(8), ..LimitSettings::default() }), ["--nofile=8:8", "--"]);
    }
}
