//! The layers are crates, which Cargo keeps apart. Within a crate, files must not import each other in wide circles.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The most files of a crate that may import each other in a circle.
const WIDEST: usize = 8;

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// A file as a module of its crate; the crate's root is empty.
fn module(source: &Path, file: &Path) -> Vec<String> {
    let path = file.strip_prefix(source).unwrap().with_extension("");
    let mut parts: Vec<String> = path.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod" || last == "lib") {
        parts.pop();
    }
    parts
}

/// The paths of a `use`, one for each item.
fn paths(tree: &str, before: &[String], found: &mut Vec<Vec<String>>) {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, c) in tree.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&tree[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&tree[start..]);
    for part in parts.into_iter().map(str::trim).filter(|part| !part.is_empty()) {
        let (path, inner) = part.split_once('{').map_or((part, None), |(path, inner)| (path, Some(inner)));
        let names = path.split(" as ").next().unwrap_or_default().split("::").map(str::trim);
        let all: Vec<String> =
            before.iter().cloned().chain(names.filter(|name| !name.is_empty()).map(str::to_owned)).collect();
        match inner {
            Some(inner) => paths(inner.trim_end().trim_end_matches('}'), &all, found),
            None => found.push(all),
        }
    }
}

/// The modules that a file of production imports.
fn imports(text: &str, own: &[String], all: &BTreeSet<Vec<String>>) -> BTreeSet<Vec<String>> {
    let production = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut found = Vec::new();
    for statement in production.split('\n').enumerate().filter_map(|(n, line)| {
        let line = line.trim_start();
        let is = line.starts_with("use ") || (line.starts_with("pub") && line.contains(" use "));
        is.then(|| production.split('\n').skip(n).collect::<Vec<_>>().join(" "))
    }) {
        let tree = statement.split(';').next().unwrap_or_default();
        paths(tree.split_once("use ").map_or("", |(_, tree)| tree), &[], &mut found);
    }
    let place = |path: Vec<String>| {
        let mut path = path.into_iter().peekable();
        let mut at = match path.peek().map(String::as_str) {
            Some("crate") => {
                path.next();
                Vec::new()
            }
            _ => own.to_vec(),
        };
        while path.peek().is_some_and(|part| part == "super") {
            at.pop();
            path.next();
        }
        at.extend(path.filter(|part| part != "self"));
        // The item's file is the longest module that its path begins with.
        (0..=at.len()).rev().map(|n| at[..n].to_vec()).find(|module| all.contains(module))
    };
    let outside = |path: &Vec<String>| {
        let first = path.first().map(String::as_str).unwrap_or_default();
        let child = [own, &[first.to_owned()]].concat();
        !["crate", "super", "self"].contains(&first) && !all.contains(&child)
    };
    found.into_iter().filter(|path| !outside(path)).filter_map(place).filter(|module| module != own).collect()
}

/// All that can be reached from `from`.
fn reached<'a>(
    from: &'a [String],
    graph: &'a BTreeMap<Vec<String>, BTreeSet<Vec<String>>>,
) -> BTreeSet<&'a Vec<String>> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for to in graph.get(module).into_iter().flatten() {
            if seen.insert(to) {
                next.push(to);
            }
        }
    }
    seen
}

#[test]
fn circles_of_imports_within_a_crate_are_small() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    let (mut wide, mut looked_at) = (Vec::new(), 0);
    for layer in std::fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path()) {
        let (name, source) = (layer.file_name().unwrap().to_str().unwrap().to_owned(), layer.join("src"));
        let mut sources = Vec::new();
        files(&source, &mut sources);
        let all: BTreeSet<Vec<String>> = sources.iter().map(|file| module(&source, file)).collect();
        let graph: BTreeMap<Vec<String>, BTreeSet<Vec<String>>> = sources
            .iter()
            .filter(|file| !file.ends_with("tests.rs"))
            .map(|file| {
                let own = module(&source, file);
                let imported = imports(&std::fs::read_to_string(file).unwrap(), &own, &all);
                (own, imported)
            })
            .collect();
        looked_at += graph.values().map(BTreeSet::len).sum::<usize>();
        let reach: BTreeMap<&Vec<String>, BTreeSet<&Vec<String>>> =
            graph.keys().map(|module| (module, reached(module, &graph))).collect();
        let circle = |module: &Vec<String>| {
            let back = |other: &&&Vec<String>| reach.get(**other).is_some_and(|from| from.contains(module));
            let circle: Vec<String> = reach[module].iter().filter(back).map(|other| other.join("::")).collect();
            (circle.len() > WIDEST).then(|| format!("{name}: {} files: {}", circle.len(), circle.join(", ")))
        };
        wide.extend(graph.keys().find_map(circle));
    }
    assert!(looked_at > 500, "only {looked_at} imports were found");
    assert!(wide.is_empty(), "files import each other in wide circles:\n{}", wide.join("\n"));
}

/// The layers that each layer uses directly, leaving out those that it uses through another.
fn picture() -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for layer in std::fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path()) {
        let manifest = std::fs::read_to_string(layer.join("Cargo.toml")).unwrap();
        let needed = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
        let below = needed.lines().filter_map(|line| line.strip_prefix("roundelay-")?.split(['.', ' ']).next());
        let name = layer.file_name().unwrap().to_str().unwrap().to_owned();
        uses.insert(name, below.map(str::to_owned).collect());
    }
    let all: BTreeMap<String, BTreeSet<String>> = uses.clone();
    fn through(all: &BTreeMap<String, BTreeSet<String>>, from: &str, to: &str) -> bool {
        all[from].contains(to) || all[from].iter().any(|next| through(all, next, to))
    }
    let mut lines = vec!["```mermaid".to_owned(), "graph TD".to_owned()];
    for (name, below) in &uses {
        let direct = below.iter().filter(|to| !below.iter().any(|next| next != *to && through(&all, next, to)));
        lines.extend(direct.map(|to| format!("  {name} --> {to}")));
    }
    lines.push("```".to_owned());
    lines.join("\n") + "\n"
}

/// With ROUNDELAY_REFRESH=1 the page gets the picture.
#[test]
fn the_picture_of_the_layers_is_what_cargo_knows() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/architecture.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once("<!-- layers -->\n").expect("the page has the picture's place");
    let (there, after) = rest.split_once("<!-- /layers -->").expect("the place has an end");
    let picture = picture();
    if std::env::var_os("ROUNDELAY_REFRESH").is_some() {
        std::fs::write(&page, format!("{before}<!-- layers -->\n{picture}<!-- /layers -->{after}")).unwrap();
    } else {
        assert!(there == picture, "it is old: ROUNDELAY_REFRESH=1 cargo test --test it structure\n{picture}");
    }
}

/// The names in backticks in the documents that are paths of this repository, with the document.
fn named_paths(root: &Path) -> Vec<(String, String)> {
    let documents = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let documents = documents.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let mut named = Vec::new();
    for document in documents.chain([root.join("README.md")]) {
        let text = std::fs::read_to_string(&document).unwrap();
        // What stands between backticks is every second part; in blocks of code the rest is between lines.
        for name in text.split('`').skip(1).step_by(2) {
            let top = name.split('/').next().unwrap_or_default();
            let ours = ["crates", "src", "tests", "deploy", "docs", "rabbitmq", "examples", "fuzz"].contains(&top);
            let plain = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "/._-".contains(c));
            if plain && (ours && name.contains('/') || name.ends_with(".rs")) {
                named.push((document.file_name().unwrap().to_str().unwrap().to_owned(), name.to_owned()));
            }
        }
    }
    named
}

#[test]
fn paths_that_documents_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Vec::new();
    for folder in ["crates", "src", "tests", "examples", "fuzz"] {
        files(&root.join(folder), &mut sources);
    }
    let is_source = |name: &str| sources.iter().any(|path| path.ends_with(name));
    let named = named_paths(root);
    assert!(named.len() > 100, "only {} paths were found in the documents", named.len());
    let absent: Vec<_> = named
        .iter()
        .filter(|(_, name)| !(root.join(name).exists() || name.ends_with(".rs") && is_source(name)))
        .collect();
    assert!(absent.is_empty(), "documents name what is not there: {absent:#?}");
}
