//! The table of mutants in `docs/proof.md`.

use anyhow::Context;

const BEGIN: &str = "<!-- mutants -->\n";
const END: &str = "<!-- /mutants -->";
/// In place of a seed: only the explorer has to notice the mutant.
const NONE: &str = "all states";
const HEAD: &str = "| Sabotage | Violated first | Seed | Seeds until then |\n|---|---|---|---|\n";

/// What a mutant was noticed by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What the mutant does.
    pub does: String,
    /// What was violated first.
    pub invariant: String,
    /// By which seed; none where the explorer alone has to notice the mutant.
    pub seed: Option<u64>,
    /// How many seeds it took to find that one.
    pub tried: u64,
}

impl Row {
    fn read(line: &str) -> Option<Self> {
        let mut cells = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ");
        let (does, invariant) = (cells.next()?.to_owned(), cells.next()?.to_owned());
        let seed = match cells.next()? {
            NONE => None,
            seed => Some(seed.parse().ok()?),
        };
        let tried = if seed.is_some() { cells.next()?.parse().ok()? } else { 0 };
        Some(Self { does, invariant, seed, tried })
    }

    fn written(&self) -> String {
        let (seed, tried) = match self.seed {
            Some(seed) => (seed.to_string(), self.tried.to_string()),
            None => (NONE.into(), "–".into()),
        };
        format!("| {} | {} | {seed} | {tried} |\n", self.does, self.invariant)
    }
}

fn split(page: &str) -> anyhow::Result<(&str, &str, &str)> {
    let parts = page.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?)));
    let (before, (table, after)) = parts.context("docs/proof.md has no <!-- mutants --> … <!-- /mutants -->")?;
    Ok((before, table, after))
}

/// The rows of the table in `page`.
///
/// # Errors
/// There is no table.
pub fn read(page: &str) -> anyhow::Result<Vec<Row>> {
    Ok(split(page)?.1.lines().filter_map(Row::read).collect())
}

/// `page` with these rows in its table.
///
/// # Errors
/// There is no table.
pub fn write(page: &str, rows: &[Row]) -> anyhow::Result<String> {
    let (before, _, after) = split(page)?;
    Ok(format!("{before}{BEGIN}{HEAD}{}{END}{after}", rows.iter().map(Row::written).collect::<String>()))
}
