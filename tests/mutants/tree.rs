//! A copy of the project with all mutants in it, each of them switched off.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::edits::{self, Mutant};

/// The crate that has the switch, in the copy.
const SWITCH: &str = "sabotage";
const SWITCH_MANIFEST: &str = "[package]\nname = \"sabotage\"\nversion = \"0.0.0\"\nedition = \"2024\"\n";

/// Makes the copy of `root` in `copy`, or brings it up to date: what has not changed stays as it is, so that it is not
/// compiled again.
///
/// # Errors
/// An edit does not apply, or a file cannot be read or written.
pub fn make(root: &Path, copy: &Path, mutants: &[Mutant]) -> anyhow::Result<()> {
    let mut files: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
    for path in sources(root)? {
        let bytes = fs::read(root.join(&path)).with_context(|| format!("cannot read {}", path.display()))?;
        files.insert(path, bytes);
    }
    let sabotaged = edits::sabotaged(root, mutants)?;
    // The hunter is an example of the simulation's package, so that no layer above the simulation is compiled.
    let mut manifests = BTreeSet::from([PathBuf::from("crates/simulation/Cargo.toml")]);
    for (path, text) in sabotaged {
        let path = PathBuf::from(path);
        let above = path.ancestors().skip(1).map(|folder| folder.join("Cargo.toml"));
        manifests.extend(above.into_iter().find(|manifest| files.contains_key(manifest)));
        files.insert(path, text.into_bytes());
    }
    for path in manifests {
        let manifest = files.get_mut(&path).with_context(|| format!("there is no {}", path.display()))?;
        let text = String::from_utf8(manifest.clone()).with_context(|| format!("in {}", path.display()))?;
        let with = format!("[dependencies]\n{SWITCH} = {{ path = {:?} }}\n", copy.join(SWITCH));
        ensure!(text.contains("[dependencies]\n"), "{} has no [dependencies]", path.display());
        *manifest = text.replacen("[dependencies]\n", &with, 1).into_bytes();
    }
    files.insert(Path::new(SWITCH).join("Cargo.toml"), SWITCH_MANIFEST.into());
    files.insert(Path::new(SWITCH).join("src/lib.rs"), include_bytes!("sabotage.rs").into());
    files.insert("crates/simulation/examples/hunter.rs".into(), include_bytes!("hunter.rs").into());
    write(copy, &files)
}

/// The files of the project that Git knows or would add.
fn sources(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listed = git.output().context("cannot run git, which lists the project's files")?;
    ensure!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8(listed.stdout).context("a file's name is not UTF-8")?;
    let mut files = Vec::new();
    for path in listed.split_terminator('\0').map(PathBuf::from) {
        let at = root.join(&path);
        if at.is_dir() {
            // A link to a folder: Git lists only the link.
            let mut below = Vec::new();
            found_below(&at, &mut below)?;
            files.extend(below.iter().filter_map(|file| Some(file.strip_prefix(root).ok()?.to_owned())));
        } else if at.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

fn write(copy: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) -> anyhow::Result<()> {
    let mut old = Vec::new();
    if copy.exists() {
        found_below(copy, &mut old)?;
    }
    for path in old.iter().filter(|path| !path.strip_prefix(copy).is_ok_and(|path| files.contains_key(path))) {
        fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    for (path, bytes) in files {
        let path = copy.join(path);
        if fs::read(&path).is_ok_and(|before| before == *bytes) {
            continue;
        }
        let folder = path.parent().unwrap_or(copy);
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// All files below `folder`.
fn found_below(folder: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read the folder {}", folder.display()))?;
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            found_below(&path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}
