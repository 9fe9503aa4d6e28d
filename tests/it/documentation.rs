//! The documentation as a book: every page is in it, and every link leads somewhere.

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
