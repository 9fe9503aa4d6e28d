//! The documentation as a book: every page is in it, every link leads somewhere, and every test that it names is there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All Markdown files below `folder`.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(pages(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found
}

/// The targets of Markdown links and pictures outside of code.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut code = false;
    for line in text.lines() {
        code ^= line.trim_start().starts_with("```");
        if code {
            continue;
        }
        // What is between backticks is code, too.
        let words: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        let after = words.split("](").skip(1);
        found.extend(after.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())));
    }
    found
}

/// What GitHub and mdBook make of headings: lower case, no punctuation, hyphens for spaces.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut code = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        code ^= line.trim_start().starts_with("```");
        if let Some(heading) = line.strip_prefix('#').filter(|_| !code) {
            let heading = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            found.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
        }
    }
    found
}

#[test]
fn every_link_leads_somewhere() {
    let mut all = pages(&root().join("docs"));
    all.extend(["README.md", "CHANGELOG.md"].map(|name| root().join(name)));
    all.extend(pages(&root().join("examples")));
    let (mut wrong, mut looked_at) = (Vec::new(), 0);
    for page in &all {
        let text = std::fs::read_to_string(page).unwrap();
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            looked_at += 1;
            let (path, anchor) = link.split_once('#').map_or((&*link, None), |(path, anchor)| (path, Some(anchor)));
            let target = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            let there = match std::fs::read_to_string(&target) {
                Ok(text) => anchor.is_none_or(|anchor| anchors(&text).contains(anchor)),
                Err(_) => target.exists() && anchor.is_none(),
            };
            if !there {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(looked_at > 100, "only {looked_at} links were found");
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
}

#[test]
fn every_page_is_in_the_book() {
    let docs = root().join("docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let named: BTreeSet<PathBuf> = links(&summary).into_iter().map(|link| docs.join(link)).collect();
    let pages: BTreeSet<PathBuf> = pages(&docs).into_iter().filter(|page| !page.ends_with("SUMMARY.md")).collect();
    assert_eq!(named, pages);
}

/// All Rust files below `folder`.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let rust = files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    rust.chain(folders.iter().flat_map(|folder| sources(folder))).collect()
}

/// What a file is called as a module: its crate, and its path below that crate's `src`, or its path below `tests/it`.
fn module(file: &Path) -> String {
    let root = root();
    let path = file.strip_prefix(root.join("crates")).or_else(|_| file.strip_prefix(root.join("tests/it"))).unwrap();
    let path = path.with_extension("");
    let path = if path.ends_with("mod") || path.ends_with("lib") { path.parent().unwrap() } else { &path };
    let parts = path.iter().map(|part| part.to_str().unwrap()).filter(|part| *part != "src");
    parts.collect::<Vec<_>>().join("::")
}

/// Whether `text` has a function of this name.
fn defines(text: &str, name: &str) -> bool {
    text.contains(&format!("fn {name}(")) || text.contains(&format!("fn {name}<"))
}

#[test]
fn every_shape_of_the_api_has_a_name_of_its_own() {
    // The document keeps one of two shapes with the same name, and is then wrong about the other.
    let (mut seen, mut twice) = (BTreeSet::new(), Vec::new());
    for file in sources(&root().join("crates")) {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut after_derive = false;
        for line in text.lines() {
            after_derive |= line.starts_with("#[derive(") && line.contains("ToSchema");
            let Some(name) = ["pub struct ", "pub enum "].iter().find_map(|kind| line.strip_prefix(kind)) else {
                continue;
            };
            let name = name.split(|c: char| !c.is_alphanumeric()).next().unwrap().to_owned();
            if std::mem::take(&mut after_derive) && !seen.insert(name.clone()) {
                twice.push(format!("{name} in {}", module(&file)));
            }
        }
    }
    assert!(seen.len() > 90, "only {} shapes were found", seen.len());
    assert!(twice.is_empty(), "shapes with a name that another has: {twice:?}");
}

#[test]
fn every_test_of_the_reference_systems_is_there() {
    let files = [sources(&root().join("crates")), sources(&root().join("tests/it"))].concat();
    let modules: Vec<(String, String)> =
        files.iter().map(|file| (module(file), std::fs::read_to_string(file).unwrap())).collect();
    let page = std::fs::read_to_string(root().join("docs/reference-systems.md")).unwrap();
    let (mut absent, mut looked_at) = (Vec::new(), 0);
    for name in page.split('`').skip(1).step_by(2) {
        // What is no path of a module is a setting, a command or a file.
        let Some((path, test)) = name.rsplit_once("::").filter(|_| !name.contains([' ', '/', '='])) else { continue };
        looked_at += 1;
        // Unit tests stand in a module `tests` of their file, as `schedule::tests::…`.
        let path = path.strip_suffix("::tests").unwrap_or(path);
        // Tests that both ledgers or brokers pass are listed below the folder's own name.
        let below = format!("{path}::");
        let there = modules.iter().filter(|(module, _)| module == path || module.starts_with(&below));
        let found = there.clone().any(|(_, text)| if test == "*" { text.contains("fn ") } else { defines(text, test) });
        if !found {
            absent.push(name);
        }
    }
    assert!(looked_at > 60, "only {looked_at} names of tests were found");
    assert!(
        absent.is_empty(),
        "tests that docs/reference-systems.md names and that are not there:\n{}",
        absent.join("\n")
    );
}
