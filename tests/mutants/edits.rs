//! The mutants of `tests/mutants/*.toml`, and what they make of the sources.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;

/// A way to sabotage the engine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutant {
    /// What `sabotage::is` is asked for.
    pub name: String,
    /// What it does, in a sentence.
    pub does: String,
    /// `roundelay simulate --explore` must notice it, too.
    #[serde(default)]
    pub explored: Option<Explored>,
    /// Only the explorer must notice it: what it breaks is too rare for seeds.
    #[serde(default)]
    pub unseeded: bool,
    /// What makes it.
    pub edits: Vec<Edit>,
}

/// Which states the explorer looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Explored {
    /// Those of chains.
    Chains,
    /// Those of throttles.
    Throttles,
}

/// A piece of text in a file, and what stands there in the copy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// From the root of the project.
    pub file: String,
    /// Occurs exactly once in the file, and overlaps with that of no other edit.
    find: String,
    replace: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    mutant: Vec<Mutant>,
}

/// The mutants of all files in `folder`, by the files' names and then as they stand there.
///
/// # Errors
/// A file that cannot be read, or is not as it should be.
pub fn mutants(folder: &Path) -> anyhow::Result<Vec<Mutant>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read the folder {}", folder.display()))?;
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let listed: Listed = toml::from_str(&text).with_context(|| format!("in {}", file.display()))?;
        found.extend(listed.mutant);
    }
    Ok(found)
}

/// The files below `root` that `mutants` change, as they are with all of the mutants in them.
///
/// # Errors
/// All edits that do not apply, each with its mutant, its file and its text.
pub fn sabotaged(root: &Path, mutants: &[Mutant]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut wrong: Vec<String> = mutants.iter().flat_map(misnamed).collect();
    let mut of_files: BTreeMap<&str, Vec<(&str, &Edit)>> = BTreeMap::new();
    for (name, edit) in mutants.iter().flat_map(|mutant| mutant.edits.iter().map(|edit| (&*mutant.name, edit))) {
        of_files.entry(&edit.file).or_default().push((name, edit));
    }
    let mut changed = BTreeMap::new();
    for (file, edits) in of_files {
        match std::fs::read_to_string(root.join(file)) {
            Ok(text) => drop(changed.insert(file.to_owned(), edited(&text, &edits, &mut wrong))),
            Err(error) => wrong.extend(edits.iter().map(|(name, _)| format!("{name}: cannot read {file}: {error}"))),
        }
    }
    ensure!(wrong.is_empty(), "mutants that do not apply (tests/mutants/*.toml):\n{}", wrong.join("\n"));
    Ok(changed)
}

/// What is wrong with the names that a mutant asks for.
fn misnamed(mutant: &Mutant) -> Vec<String> {
    let asked = |edit: &Edit| edit.replace.split("sabotage::is(\"").skip(1).map(name_of).collect::<Vec<_>>();
    let asked: Vec<String> = mutant.edits.iter().flat_map(asked).collect();
    let name = &mutant.name;
    if asked.is_empty() {
        return vec![format!("{name}: no edit asks for sabotage::is(\"{name}\")")];
    }
    let others = asked.iter().filter(|asked| *asked != name);
    others.map(|other| format!("{name}: an edit asks for sabotage::is(\"{other}\")")).collect()
}

fn name_of(after: &str) -> String {
    after.chars().take_while(|c| *c != '"').collect()
}

/// `text` with all edits in it; those that do not apply are told in `wrong`.
fn edited(text: &str, edits: &[(&str, &Edit)], wrong: &mut Vec<String>) -> String {
    let mut places = Vec::new();
    for (name, edit) in edits {
        match text.match_indices(&edit.find).map(|(at, _)| at).collect::<Vec<_>>()[..] {
            [at] => places.push((at, *name, *edit)),
            ref found => wrong.push(told(name, edit, &format!("occurs {} times, not once", found.len()))),
        }
    }
    places.sort_by_key(|(at, ..)| *at);
    let (mut made, mut done, mut before) = (String::new(), 0, "");
    for (at, name, edit) in places {
        let Some(between) = text.get(done..at) else {
            wrong.push(told(name, edit, &format!("overlaps with an edit of {before}")));
            continue;
        };
        made += between;
        made += &edit.replace;
        (done, before) = (at + edit.find.len(), name);
    }
    made + &text[done..]
}

fn told(name: &str, edit: &Edit, what: &str) -> String {
    format!("{name}: in {file} this text {what}:\n{find}", file = edit.file, find = edit.find)
}
