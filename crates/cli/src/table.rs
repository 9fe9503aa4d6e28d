//! Tables that fit the terminal.

use super::screen::{Tint, beginning, colourful, columns, end, exact, line, tinted, visible, width};

/// The columns between two columns of the table.
const GAP: usize = 2;
/// Shortened texts have at least this many columns.
const MIN_COLUMNS: usize = 10;
/// If nothing is shortened, a longer text pushes the rest of its row aside, so that one text does not widen the whole
/// table.
const MAX_UNCUT: usize = 60;

/// A column, by its content.
pub struct Column {
    title: &'static str,
    shape: Shape,
    spare: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Shortened in the middle, since similar names differ at both ends.
    Name,
    /// Shortened at its end.
    Text,
    /// Never shortened.
    Word,
    /// Never shortened, and aligned right.
    Number,
}

impl Column {
    /// Names and keys.
    pub const fn name(title: &'static str) -> Self {
        Self { title, shape: Shape::Name, spare: false }
    }

    /// Texts that are read from the left.
    pub const fn text(title: &'static str) -> Self {
        Self { title, shape: Shape::Text, spare: false }
    }

    /// Texts that are always short.
    pub const fn word(title: &'static str) -> Self {
        Self { title, shape: Shape::Word, spare: false }
    }

    /// Figures.
    pub const fn number(title: &'static str) -> Self {
        Self { title, shape: Shape::Number, spare: false }
    }

    /// Left out first if there is no room, the last such column before the others.
    pub const fn spare(self) -> Self {
        Self { spare: true, ..self }
    }

    fn shrinks(&self) -> bool {
        matches!(self.shape, Shape::Name | Shape::Text)
    }
}

/// The content of a row and a column.
pub struct Cell {
    text: String,
    tint: Option<Tint>,
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: visible(text.as_ref()).into_owned(), tint: None }
    }
}

impl Cell {
    /// In this colour, if `so`.
    pub fn tinted_if(self, so: bool, tint: Tint) -> Self {
        Self { tint: so.then_some(tint).or(self.tint), ..self }
    }
}

/// A table with a heading.
pub struct Table<const N: usize> {
    columns: [Column; N],
    rows: Vec<Row<N>>,
}

struct Row<const N: usize> {
    cells: [Cell; N],
    notes: Vec<String>,
}

impl<const N: usize> Table<N> {
    pub const fn new(columns: [Column; N]) -> Self {
        Self { columns, rows: Vec::new() }
    }

    pub fn row(&mut self, cells: [Cell; N]) {
        self.rows.push(Row { cells, notes: Vec::new() });
    }

    /// A line below the last row.
    pub fn note(&mut self, words: String) {
        if let Some(row) = self.rows.last_mut() {
            row.notes.push(words);
        }
    }

    /// Prints it, as wide as standard output allows.
    pub fn print(&self) {
        let room = columns();
        let layout = Layout::new(self, room);
        let colours = colourful(&std::io::stdout());
        exact(format_args!("{}", self.heading(&layout, colours)));
        for row in &self.rows {
            exact(format_args!("{}", self.line(row, &layout, colours)));
            row.notes.iter().for_each(|note| tinted(Tint::Notable, format_args!("  {note}")));
        }
        if !layout.left_out.is_empty() {
            let titles = layout.left_out.join(", ");
            line(format_args!("no room for {titles}: a wider terminal shows more, --json all"));
        }
    }

    fn heading(&self, layout: &Layout, colours: bool) -> String {
        let titles = self.columns.iter().map(|column| (column.title, Some(Tint::Heading)));
        self.join(titles, layout, colours)
    }

    fn line(&self, row: &Row<N>, layout: &Layout, colours: bool) -> String {
        self.join(row.cells.iter().map(|cell| (cell.text.as_str(), cell.tint)), layout, colours)
    }

    fn join<'c>(&self, cells: impl Iterator<Item = (&'c str, Option<Tint>)>, layout: &Layout, colours: bool) -> String {
        let (mut line, mut owed) = (String::new(), 0);
        for ((column, wide), (text, tint)) in self.columns.iter().zip(&layout.widths).zip(cells) {
            let Some(wide) = *wide else { continue };
            let text = if layout.bounded { shortened(text, wide, column.shape) } else { text.to_owned() };
            let pad = wide.saturating_sub(width(&text));
            let (before, after) = if column.shape == Shape::Number { (pad, 0) } else { (0, pad) };
            line.extend(std::iter::repeat_n(' ', owed + before));
            match tint.filter(|_| colours) {
                Some(tint) => line.push_str(&tint.dye(&text)),
                None => line.push_str(&text),
            }
            // Nothing follows the last cell, so it needs no spaces behind it.
            owed = after + GAP;
        }
        line
    }
}

/// The widths of the columns.
struct Layout {
    /// `None` for columns that are left out.
    widths: Vec<Option<usize>>,
    bounded: bool,
    left_out: Vec<&'static str>,
}

impl Layout {
    fn new<const N: usize>(table: &Table<N>, room: Option<usize>) -> Self {
        let natural = |n: usize| {
            let cells = table.rows.iter().map(|row| width(&row.cells[n].text));
            cells.chain([width(table.columns[n].title)]).max().unwrap_or(0)
        };
        let natural: Vec<usize> = (0..N).map(natural).collect();
        let Some(room) = room else {
            let capped =
                |(n, wide): (usize, usize)| Some(if table.columns[n].shrinks() { wide.min(MAX_UNCUT) } else { wide });
            let widths = natural.into_iter().enumerate().map(capped).collect();
            return Self { widths, bounded: false, left_out: Vec::new() };
        };
        let mut widths: Vec<Option<usize>> = natural.iter().map(|wide| Some((*wide).min(room))).collect();
        let mut left_out = Vec::new();
        let least = |n: usize| width(table.columns[n].title).max(MIN_COLUMNS);
        shrink(&mut widths, room, |n| table.columns[n].shrinks().then(|| least(n)));
        while total(&widths) > room {
            let spare = (0..N).rev().find(|n| table.columns[*n].spare && widths[*n].is_some());
            let Some(n) = spare else { break };
            widths[n] = None;
            left_out.insert(0, table.columns[n].title);
        }
        // The width that became free goes to the columns that were shortened.
        for n in (0..N).filter(|n| table.columns[*n].shrinks()) {
            if let Some(wide) = &mut widths[n] {
                *wide = natural[n].min(room);
            }
        }
        shrink(&mut widths, room, |n| table.columns[n].shrinks().then(|| least(n)));
        // A terminal that is narrower than the narrowest table.
        shrink(&mut widths, room, |n| table.columns[n].shrinks().then_some(1));
        shrink(&mut widths, room, |_| Some(1));
        Self { widths, bounded: true, left_out }
    }
}

/// The columns that a line takes.
fn total(widths: &[Option<usize>]) -> usize {
    let shown = widths.iter().flatten().count();
    widths.iter().flatten().sum::<usize>() + GAP * shown.saturating_sub(1)
}

/// Takes from the widest column, one after the other, until all fits or every column has its least.
fn shrink(widths: &mut [Option<usize>], room: usize, least: impl Fn(usize) -> Option<usize>) {
    while total(widths) > room {
        let gives = |n: &usize| widths[*n].is_some_and(|wide| least(*n).is_some_and(|least| wide > least));
        let Some(widest) = (0..widths.len()).filter(gives).max_by_key(|n| widths[*n]) else { return };
        widths[widest] = widths[widest].map(|wide| wide - 1);
    }
}

/// `text` in at most `wide` columns.
fn shortened(text: &str, wide: usize, shape: Shape) -> String {
    if width(text) <= wide {
        return text.to_owned();
    }
    let kept = wide.saturating_sub(1);
    match shape {
        Shape::Name => {
            let first = beginning(text, kept.div_ceil(2));
            format!("{first}…{}", end(text, kept - width(first)))
        }
        _ => format!("{}…", beginning(text, kept)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines<const N: usize>(table: &Table<N>, room: Option<usize>) -> Vec<String> {
        let layout = Layout::new(table, room);
        let rows = table.rows.iter().map(|row| table.line(row, &layout, false));
        [table.heading(&layout, false)].into_iter().chain(rows).collect()
    }

    fn chains() -> Table<4> {
        let columns = [Column::name("key"), Column::word("state"), Column::number("runs"), Column::text("why")];
        let mut table = Table::new(columns);
        table.row(["eu/app-17".into(), "late".into(), "1,204".into(), "nobody consumes its queue".into()]);
        table.row([format!("eu/{}/end", "x".repeat(80)).into(), "sleeps".into(), "7".into(), "-".into()]);
        table.row(["日本語のとても長い名前/いちばん".into(), "due".into(), "0".into(), "\x1b[31m\n".into()]);
        table
    }

    #[test]
    fn without_bounds_all_is_whole() {
        let lines = lines(&chains(), None);
        assert!(lines[0].starts_with("key    ") && lines[0].ends_with("  state    runs  why"), "{lines:#?}");
        assert!(lines[2].contains(&"x".repeat(80)) && lines[2].ends_with("  sleeps      7  -"), "{lines:#?}");
        assert!(lines[3].ends_with(r"\u{1b}[31m\n"), "{lines:#?}");
    }

    #[test]
    fn in_a_terminal_each_line_fits_and_shows_both_ends_of_names() {
        for room in [20, 40, 47, 60, 80, 200] {
            let lines = lines(&chains(), Some(room));
            assert!(lines.iter().all(|line| width(line) <= room), "{room}: {lines:#?}");
        }
        let lines = lines(&chains(), Some(60));
        assert!(lines[2].starts_with("eu/xxx") && lines[2].contains("xxx/end  sleeps      7  -"), "{lines:#?}");
        assert!(
            lines[1].starts_with("eu/app-17  ") && lines[1].contains(" late    1,204  nobody consumes"),
            "{lines:#?}"
        );
        assert!(lines[3].contains('…') && lines[3].starts_with("日本語"), "{lines:#?}");
    }

    #[test]
    fn what_is_spare_goes_before_anything_is_cut_to_pieces() {
        let columns = [
            Column::name("queue"),
            Column::number("due"),
            Column::number("workers").spare(),
            Column::number("starts").spare(),
        ];
        let mut table = Table::new(columns);
        table.row(["a-queue-with-a-long-name".into(), "1".into(), "2".into(), "3".into()]);
        let layout = Layout::new(&table, Some(26));
        assert_eq!(layout.left_out, ["starts"]);
        assert_eq!(lines(&table, Some(26)), ["queue         due  workers", "a-queu…-name    1        2"]);
        assert!(Layout::new(&table, Some(80)).left_out.is_empty());
    }

    #[test]
    fn colours_take_no_room() {
        let mut table = Table::new([Column::word("state"), Column::number("n")]);
        table.row([Cell::from("late").tinted_if(true, Tint::Notable), Cell::from("5").tinted_if(false, Tint::Wrong)]);
        let layout = Layout::new(&table, Some(80));
        assert_eq!(table.heading(&layout, true), "\x1b[1mstate\x1b[0m  \x1b[1mn\x1b[0m");
        assert_eq!(table.line(&table.rows[0], &layout, true), "\x1b[33mlate\x1b[0m   5");
    }
}
