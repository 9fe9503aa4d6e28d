//! The programs of exec handlers on this machine: whether they can be started, and whether every user could replace
//! them.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use roundelay_config::{Config, HandlerSettings};
use roundelay_handler::exec::program::{LIMITER, Unstartable, allowed, executable, within_ours};

use crate::inspect::doctor::finding::{Area, Finding, Grade};

/// Write permission for every user.
const BY_OTHERS: u32 = 0o002;
/// In a folder with this bit, only the owner of a file can replace it.
const STICKY: u32 = 0o1000;

/// A problem with the program of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramFacts {
    pub kind: String,
    /// The path of the program, as configured.
    pub program: String,
    pub trouble: Trouble,
}

/// The problems that a program may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The program cannot be started, for this reason.
    Absent(String),
    /// The program is this file, which is not in the list of allowed programs.
    NotAllowed(PathBuf),
    /// Every user of this machine can write this path.
    Open(PathBuf),
    /// The program that sets limits is missing.
    NoLimiter,
    /// This limit is above the highest that a process like this one may give.
    Above(&'static str, u64),
}

/// Checks all programs.
pub(super) fn gather(config: &Config) -> Vec<ProgramFacts> {
    let of_kind = |(kind, settings): (&String, &roundelay_config::KindSettings)| {
        let HandlerSettings::Exec(exec) = &settings.handler else { return None };
        let program = exec.argv.first()?;
        let path = Path::new(program);
        let trouble = match allowed(path, exec.allow.as_deref())
            .and_then(|()| executable(path))
            .and_then(|()| within_ours(&exec.limits))
        {
            Err(Unstartable::Above(setting, most)) => Trouble::Above(setting, most),
            Err(Unstartable::Absent(error)) => Trouble::Absent(error.to_string()),
            Err(Unstartable::NotAllowed(found)) => Trouble::NotAllowed(found),
            Ok(()) if exec.limits.any() && !Path::new(LIMITER).exists() => Trouble::NoLimiter,
            Ok(()) => Trouble::Open(open(path)?),
        };
        Some(ProgramFacts { kind: kind.clone(), program: program.clone(), trouble })
    };
    config.kinds.iter().filter_map(of_kind).collect()
}

/// The first path, of the program and its folders, that every user can write.
fn open(program: &Path) -> Option<PathBuf> {
    let found = program.canonicalize().ok()?;
    let exposed =
        |metadata: Metadata| metadata.mode() & BY_OTHERS != 0 && !(metadata.is_dir() && metadata.mode() & STICKY != 0);
    found.ancestors().find(|path| path.metadata().is_ok_and(exposed)).map(Path::to_owned)
}

/// Looks at the programs of a configuration on this machine: a warning for each that cannot be started, or that others
/// could replace.
pub fn programs(config: &Config) -> Vec<Finding> {
    let facts = gather(config);
    diagnose(&facts, config).into_iter().filter(|finding| finding.result == Grade::Warning).collect()
}

/// What is wrong with them.
pub(super) fn diagnose(facts: &[ProgramFacts], config: &Config) -> Vec<Finding> {
    let count = config.kinds.values().filter(|kind| matches!(kind.handler, HandlerSettings::Exec(_))).count();
    if count > 0 && facts.is_empty() {
        let seen = "all are there, and not everybody can write to them";
        return vec![Finding::good(Area::Machine, "programs of handlers", seen)];
    }
    let finding = |ProgramFacts { kind, program, trouble }: &ProgramFacts| {
        let fails = "its runs fail on this machine";
        let (seen, follows, fix) = match trouble {
            Trouble::Absent(why) => (
                format!("{program}: {why}"),
                fails,
                format!(
                    "put it there and make it executable, or correct kinds.{kind}.handler.exec.argv; without workers \
                         here nothing is wrong"
                ),
            ),
            Trouble::NotAllowed(found) => (
                format!("{program} is {}, which is not in exec.allow", found.display()),
                fails,
                format!("add {} to exec.allow, if it may run", found.display()),
            ),
            Trouble::Open(path) => (
                format!("everybody on this machine can write to {}", path.display()),
                "whoever has an account here can have the worker run what they like",
                format!("chmod o-w '{}'", path.display()),
            ),
            Trouble::NoLimiter => {
                let seen = format!("it has limits, and {LIMITER} is not there, which sets them");
                (seen, fails, "install util-linux".to_owned())
            }
            Trouble::Above(setting, most) => (
                format!("its handler.exec.limits.{setting} is above {most}, the hard limit here"),
                "its runs fail where workers have the same hard limit",
                format!("lower kinds.{kind}.handler.exec.limits.{setting}, or raise the hard limit of workers"),
            ),
        };
        Finding::warning(Area::Machine, format!("program of {kind}"), seen, follows, fix)
    };
    facts.iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::super::tests::{about, have_fixes};
    use super::*;

    #[test]
    fn programs_are_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().canonicalize().unwrap().join(path);
        std::fs::create_dir(at("open")).unwrap();
        for path in ["good", "writable", "open/program", "plain"] {
            std::fs::write(at(path), "#!/bin/sh\n").unwrap();
            set_permissions(at(path), Permissions::from_mode(0o755)).unwrap();
        }
        set_permissions(at("open"), Permissions::from_mode(0o777)).unwrap();
        set_permissions(at("writable"), Permissions::from_mode(0o757)).unwrap();
        set_permissions(at("plain"), Permissions::from_mode(0o644)).unwrap();
        let facts = |programs: &[&str], allow: &str| {
            let kind = |name: &&str| {
                format!("[kinds.{}]\nhandler.exec.argv = ['{}']\n", name.replace('/', "-"), at(name).display())
            };
            let text = format!("{allow}\n[queues.q]\n{}", programs.iter().map(kind).collect::<String>());
            let config = Config::parse(&text, "r.toml", []).unwrap();
            let facts = gather(&config);
            let findings = diagnose(&facts, &config);
            have_fixes(&findings);
            findings
        };
        assert_eq!(about(&facts(&["good"], ""), "programs of handlers").result, Grade::Good);
        assert!(facts(&[], "").is_empty(), "where there are none, nothing is said of them");
        let findings = facts(&["good", "writable", "open/program", "plain", "absent"], "");
        let seen = |what: &str| about(&findings, what).seen.clone();
        assert_eq!(findings.len(), 4, "{findings:?}");
        assert!(seen("program of writable").ends_with(at("writable").to_str().unwrap()), "{findings:?}");
        assert!(seen("program of open-program").ends_with(at("open").to_str().unwrap()), "{findings:?}");
        assert!(
            seen("program of plain").contains("EACCES") || seen("program of plain").contains("denied"),
            "{findings:?}"
        );
        assert!(seen("program of absent").contains("o such file"), "{findings:?}");
        let listed = facts(&["good", "open/program"], &format!("exec.allow = ['{}']", at("open").display()));
        assert!(about(&listed, "program of good").seen.contains("not in exec.allow"), "{listed:?}");
    }
}
