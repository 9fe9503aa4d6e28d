//! The mutants (`tests/run --mutants`) apply to the sources as they are, and the proof tells of each.

use std::fs;
use std::path::Path;

#[path = "../mutants/edits.rs"]
mod edits;
#[path = "../mutants/table.rs"]
#[allow(dead_code, reason = "the program writes it")]
mod table;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_mutant_applies_to_the_sources() {
    let mutants = edits::mutants(&root().join("tests/mutants")).unwrap();
    assert!(mutants.len() >= 70, "only {}", mutants.len());
    if let Err(error) = edits::sabotaged(root(), &mutants) {
        panic!("{error}");
    }
}

/// The table is generated, and nothing is left out of it.
#[test]
fn the_proof_tells_of_every_mutant() {
    let rows = table::read(&fs::read_to_string(root().join("docs/proof.md")).unwrap()).unwrap();
    let told: Vec<&str> = rows.iter().map(|row| &*row.does).collect();
    let mutants = edits::mutants(&root().join("tests/mutants")).unwrap();
    let does: Vec<&str> = mutants.iter().map(|mutant| &*mutant.does).collect();
    assert_eq!(told, does, "write the table anew: tests/run --mutants --write");
}

/// The explorer has no batches, cooldowns, rosters, nor three deaths.
const UNEXPLORED: [&str; 5] =
    ["BatchNotAwaited", "EnrollRevives", "ManualIgnoresCooldown", "ManualNotCounted", "MemberNotCounted"];

#[test]
fn the_explorer_has_to_notice_each_mutant_of_the_decisions() {
    let mutants = edits::mutants(&root().join("tests/mutants")).unwrap();
    let pure = ["crates/ledger/src/decide/", "crates/model/src/pacing/"];
    for mutant in &mutants {
        let decides = mutant.edits.iter().any(|edit| pure.iter().any(|folder| edit.file.starts_with(folder)));
        let expected = decides && !UNEXPLORED.contains(&&*mutant.name);
        assert!(mutant.explored.is_some() || !expected, "{} needs `explored`", mutant.name);
        assert!(mutant.explored.is_some() || !mutant.unseeded, "{} is noticed by nothing", mutant.name);
    }
    assert!(mutants.iter().filter(|mutant| mutant.explored.is_some()).count() >= 23);
}

/// The mutants of a file with this text, and what they make of `a.rs`, which is "one two two three four".
fn made(listed: &str) -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.rs"), "one two two three four").unwrap();
    fs::write(folder.path().join("some.toml"), listed).unwrap();
    let mutants = edits::mutants(folder.path()).map_err(|error| format!("{error:#}"))?;
    let mut made = edits::sabotaged(folder.path(), &mutants).map_err(|error| format!("{error:#}"))?;
    Ok(made.remove("a.rs").unwrap())
}

fn mutant(name: &str, edits: &[(&str, &str, &str)]) -> String {
    let edit = |(file, find, replace): &(&str, &str, &str)| {
        format!("[[mutant.edits]]\nfile = '{file}'\nfind = '{find}'\nreplace = '{replace}'\n")
    };
    let edits: String = edits.iter().map(edit).collect();
    format!("[[mutant]]\nname = '{name}'\ndoes = 'It does.'\n{edits}")
}

#[test]
fn an_edit_that_does_not_apply_once_is_told() {
    let (a, b) = (r#"sabotage::is("A")"#, r#"sabotage::is("B")"#);
    let both = mutant("A", &[("a.rs", "four", a), ("a.rs", "one", "1")]) + &mutant("B", &[("a.rs", "three", b)]);
    assert_eq!(made(&both).unwrap(), format!("1 two two {b} {a}"));
    for (listed, expected) in [
        (mutant("A", &[("a.rs", "two", a)]), "A: in a.rs this text occurs 2 times, not once:\ntwo"),
        (mutant("A", &[("a.rs", "five", a)]), "A: in a.rs this text occurs 0 times, not once:\nfive"),
        (mutant("A", &[("b.rs", "one", a)]), "A: cannot read b.rs: No such file"),
        (mutant("A", &[("a.rs", "one", "1")]), r#"A: no edit asks for sabotage::is("A")"#),
        (mutant("A", &[("a.rs", "one", a), ("a.rs", "four", b)]), r#"A: an edit asks for sabotage::is("B")"#),
        (
            mutant("A", &[("a.rs", "one two", a)]) + &mutant("B", &[("a.rs", "two two", b)]),
            "B: in a.rs this text overlaps with an edit of A:\ntwo two",
        ),
        ("[[mutant]]\nname = 'A'".into(), "missing field"),
    ] {
        let error = made(&listed).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
