//! Sabotages the engine in many ways, and sees that the simulation notices each. `tests/run --mutants` runs it.
//!
//! - `*.toml`: the mutants; [`edits`]: what they make of the sources.
//! - [`tree`]: the copy of the project that has them; `sabotage.rs`: what switches one on there.
//! - `hunter.rs`: the program of the copy that runs the simulation with one mutant after the other.
//! - [`table`]: which seed notices which, in `docs/proof.md`.

mod edits;
mod table;
mod tree;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail, ensure};
use clap::Parser;

use edits::{Explored, Mutant};
use table::Row;

/// Sabotages the engine in many ways, and sees that the simulation notices each.
#[derive(Parser)]
struct Arguments {
    /// Only see that every mutant applies to the sources.
    #[arg(long)]
    check: bool,
    /// Try seeds from the first on, and not first the one that docs/proof.md knows.
    #[arg(long)]
    hunt: bool,
    /// Write the table in docs/proof.md.
    #[arg(long)]
    write: bool,
    /// Only mutants in whose names this is, such as "Claim"; may be given several times.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mutants: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let all = edits::mutants(&root.join("tests/mutants"))?;
    if arguments.check {
        edits::sabotaged(root, &all)?;
        println!("all {} mutants apply", all.len());
        return Ok(());
    }
    let page = root.join("docs/proof.md");
    let text = std::fs::read_to_string(&page).context("cannot read docs/proof.md")?;
    let known = table::read(&text)?;
    let target = target()?;
    let copy = target.join("mutants");
    tree::make(root, &copy, &all)?;

    let picked = |mutant: &&Mutant| arguments.only.iter().any(|only| mutant.name.contains(only));
    let wanted: Vec<&Mutant> = all.iter().filter(|m| arguments.only.is_empty() || picked(m)).collect();
    let first = |mutant: &Mutant| row_of(mutant, &known).filter(|_| !arguments.hunt);
    let seed =
        |mutant: &Mutant| first(mutant).and_then(|row| row.seed).map_or_else(String::new, |seed| seed.to_string());
    let line = |mutant: &&Mutant| {
        let explored = match mutant.explored {
            Some(Explored::Chains) => " chains",
            Some(Explored::Throttles) => " throttles",
            None => "",
        };
        let only = if mutant.unseeded { " only" } else { "" };
        format!("{} {}{explored}{only}\n", mutant.name, seed(mutant))
    };
    let asked: String = wanted.iter().map(line).collect();
    let (mut found, mut alive) = (Vec::new(), Vec::new());
    hunt((&copy, &target), &asked, |line| {
        let mutant = wanted.iter().find(|mutant| line.split(' ').next() == Some(&mutant.name));
        let mutant = mutant.context("it is of no mutant that was asked for")?;
        match noticed(line, mutant) {
            Some(row) => {
                if let [.., invariant, length, states] = line.split(' ').collect::<Vec<_>>()[4..] {
                    println!("{}: {invariant} after {length} moves, among {states} states", mutant.name);
                }
                found.push(told(&mutant.name, row, row_of(mutant, &known)));
            }
            None => {
                println!("{}: LIVES", mutant.name);
                alive.push(mutant.name.clone());
            }
        }
        Ok(())
    })?;
    ensure!(alive.is_empty(), "these mutants live, so a check is missing: {}", alive.join(", "));
    ensure!(found.len() == wanted.len(), "the hunter told of {} of {} mutants", found.len(), wanted.len());
    println!("all {} mutants are noticed", found.len());

    let row = |mutant: &Mutant| row_of(mutant, &found).or_else(|| row_of(mutant, &known)).cloned();
    let written = table::write(&text, &all.iter().filter_map(row).collect::<Vec<_>>())?;
    if written != text && arguments.write {
        std::fs::write(&page, written).context("cannot write docs/proof.md")?;
    } else if written != text {
        println!("docs/proof.md tells something else; --write writes its table anew");
    }
    Ok(())
}

fn row_of<'a>(mutant: &Mutant, rows: &'a [Row]) -> Option<&'a Row> {
    rows.iter().find(|row| row.does == mutant.does)
}

/// What a line of the hunter says of a mutant; `None` if it lives.
fn noticed(line: &str, mutant: &Mutant) -> Option<Row> {
    let mut words = line.split(' ').skip(1);
    let invariant = words.next()?.to_owned();
    Some(Row {
        does: mutant.does.clone(),
        invariant,
        seed: words.next()?.parse().ok(),
        tried: words.next()?.parse().ok()?,
    })
}

/// Prints what noticed a mutant. How many seeds were tried for the known one, its row knows.
fn told(name: &str, row: Row, known: Option<&Row>) -> Row {
    let Row { invariant, tried, .. } = &row;
    let Some(seed) = row.seed else {
        println!("{name}: {invariant} by the explorer");
        return row;
    };
    match known {
        Some(known) if *tried == 0 => {
            println!("{name}: {invariant} by seed {seed}");
            return Row { tried: known.tried, ..row };
        }
        Some(Row { seed: Some(before), .. }) if *before != seed => {
            println!("{name}: {invariant} by seed {seed}, after {tried}; SEED MOVED from {before}");
        }
        _ => println!("{name}: {invariant} by seed {seed}, after {tried}"),
    }
    row
}

/// The folder in which Cargo has built this program, so that what the copy depends on is there already.
fn target() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let target = program.ancestors().nth(3).context("this program is not where Cargo builds tests")?;
    Ok(target.to_owned())
}

/// Builds and runs the hunter of the copy, and hands on each line that it prints.
fn hunt(
    (copy, target): (&Path, &Path),
    input: &str,
    mut each: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // What Cargo has told this program of its own package would have others built anew.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            cargo.env_remove(name);
        }
    }
    cargo.current_dir(copy).args(["run", "--release", "--example", "hunter", "--target-dir"]).arg(target);
    let mut hunter = cargo.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot run cargo")?;
    let (Some(mut stdin), Some(stdout)) = (hunter.stdin.take(), hunter.stdout.take()) else {
        bail!("cargo has no input or no output");
    };
    stdin.write_all(input.as_bytes()).context("the hunter does not take the mutants")?;
    drop(stdin);
    for line in BufReader::new(stdout).lines() {
        let line = line.context("cannot read what the hunter prints")?;
        each(&line).with_context(|| format!("the hunter printed {line:?}"))?;
    }
    let status = hunter.wait().context("cannot wait for the hunter")?;
    ensure!(status.success(), "the hunter ended with {status}");
    Ok(())
}
