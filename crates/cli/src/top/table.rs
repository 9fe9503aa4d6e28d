//! Rows of cells that fit a width (pure).

use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

use super::text::{beginning, middle, width};

/// A column: its name, its width, and how its text is aligned and shortened.
pub struct Column {
    head: &'static str,
    /// `None` for a column that shares the width which the others leave.
    width: Option<usize>,
    right: bool,
    /// Whether a text that is too long loses its middle, as names do, since they differ at their ends.
    name: bool,
    shown: bool,
}

impl Column {
    /// For words.
    pub const fn words(head: &'static str, width: usize) -> Self {
        Self { head, width: Some(width), right: false, name: false, shown: true }
    }

    /// For numbers.
    pub const fn number(head: &'static str, width: usize) -> Self {
        Self { head, width: Some(width), right: true, name: false, shown: true }
    }

    /// For names, which take the remaining width.
    pub const fn name(head: &'static str) -> Self {
        Self { head, width: None, right: false, name: true, shown: true }
    }

    /// For sentences, which share the remaining width with names.
    pub const fn text(head: &'static str) -> Self {
        Self { head, width: None, right: false, name: false, shown: true }
    }

    /// Leaves the column and its cells out, unless there is room for it.
    pub const fn when(self, shown: bool) -> Self {
        Self { shown, ..self }
    }
}

/// A cell: its text and its style.
pub type Cell = (String, Style);

/// A table with one selected row.
pub struct Table<'a> {
    pub columns: &'a [Column],
    /// The width of the table, in columns of the terminal.
    pub width: usize,
}

impl Table<'_> {
    /// The line of the columns' names.
    pub fn head(&self, style: Style) -> Line<'static> {
        let names = self.columns.iter().map(|column| (column.head.to_owned(), style)).collect();
        self.row(names, None)
    }

    /// A row, with a cell for each column, shown or not; `chosen` has the style if the row is the selected one.
    pub fn row(&self, cells: Vec<Cell>, chosen: Option<Style>) -> Line<'static> {
        let shown = || self.columns.iter().filter(|column| column.shown);
        let fixed: usize = shown().filter_map(|column| column.width).sum();
        let names = shown().filter(|column| column.width.is_none()).count().max(1);
        // A mark before the row, and a space between two columns.
        let left = self.width.saturating_sub(fixed + shown().count());
        let mut spans = vec![Span::raw(if chosen.is_some() { ">" } else { " " })];
        let cells = self.columns.iter().zip(cells).filter(|(column, _)| column.shown);
        for (n, (column, (text, style))) in cells.enumerate() {
            let room = column.width.unwrap_or(left / names);
            let text = if column.name { middle(&text, room) } else { beginning(&text, room) };
            let padding = " ".repeat(room.saturating_sub(width(&text)));
            let text = if column.right { format!("{padding}{text}") } else { format!("{text}{padding}") };
            if n > 0 {
                spans.push(Span::raw(" "));
            }
            spans.push(Span::styled(text, style));
        }
        Line::from(spans).patch_style(chosen.unwrap_or_default())
    }
}

/// As many of the items, of one or more lines each, as fit into `room` lines, the selected one among them; and how many
/// are not shown before and after.
pub fn window(items: Vec<Vec<Line<'static>>>, chosen: usize, room: usize) -> (Vec<Line<'static>>, usize, usize) {
    let heights: Vec<usize> = items.iter().map(Vec::len).collect();
    let mut first = 0;
    while first < chosen && heights.iter().take(chosen + 1).skip(first).sum::<usize>() > room {
        first += 1;
    }
    let mut lines = Vec::new();
    let mut shown = first;
    for item in items.into_iter().skip(first) {
        // An item that is cut would mislead, unless there is room for nothing else.
        if !lines.is_empty() && lines.len() + item.len() > room {
            break;
        }
        lines.extend(item);
        shown += 1;
    }
    lines.truncate(room);
    (lines, first, heights.len() - shown)
}

/// A line that says how many items are not shown.
pub fn more(before: usize, after: usize) -> String {
    match (before, after) {
        (0, 0) => String::new(),
        (0, after) => format!("↓ {after} more"),
        (before, 0) => format!("↑ {before} more"),
        (before, after) => format!("↑ {before} more   ↓ {after} more"),
    }
}

/// Lines side by side: the right ones begin in the column `at`, which the left ones must not reach.
pub fn beside(left: Vec<Line<'static>>, right: Vec<Line<'static>>, at: usize) -> Vec<Line<'static>> {
    // The style of a line would hold for what is put beside it, too.
    let spans = |line: Line<'static>| {
        let style = line.style;
        line.spans.into_iter().map(move |span| Span::styled(span.content, style.patch(span.style)))
    };
    let rows = left.len().max(right.len());
    let (mut left, mut right) = (left.into_iter(), right.into_iter());
    let row = |_| {
        let line = left.next().unwrap_or_default();
        let gap = Span::raw(" ".repeat(at.saturating_sub(line.width())));
        spans(line).chain([gap]).chain(spans(right.next().unwrap_or_default())).collect()
    };
    (0..rows).map(row).collect()
}

/// Divides `room` lines among parts that need so many each: all parts get the same, until they have what they need.
pub fn shares(needs: &[usize], room: usize) -> Vec<usize> {
    let mut given = vec![0; needs.len()];
    for _ in 0..room {
        let wanting = given.iter_mut().zip(needs).filter(|(has, needs)| **has < **needs).map(|(has, _)| has);
        let Some(least) = wanting.min() else { break };
        *least += 1;
    }
    given
}

/// A name and its text. Further lines of the text are indented.
pub fn told(name: &str, text: &str, columns: usize, style: Style) -> Vec<Line<'static>> {
    const NAME: usize = 11;
    let lines = super::text::wrap(text, columns.saturating_sub(NAME + 2));
    let line = |(n, text): (usize, String)| {
        let name = if n == 0 { name } else { "" };
        Line::from(vec![
            Span::styled(format!(" {name:<NAME$} "), Style::new().add_modifier(Modifier::BOLD)),
            Span::styled(text, style),
        ])
    };
    lines.into_iter().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_item_is_always_among_those_that_fit() {
        let items = |heights: &[usize]| {
            heights.iter().enumerate().map(|(n, height)| vec![Line::raw(n.to_string()); *height]).collect::<Vec<_>>()
        };
        /// Heights, the selected index and the room; the expected items, and how many are not shown before and after
        /// them.
        type Case<'a> = (&'a [usize], usize, usize, &'a str, usize, usize);
        let table: [Case<'_>; 6] = [
            (&[1, 1, 1], 0, 5, "012", 0, 0),
            (&[1, 1, 1, 1], 0, 2, "01", 0, 2),
            (&[1, 1, 1, 1], 3, 2, "23", 2, 0),
            (&[2, 2, 2], 1, 3, "11", 1, 1),
            (&[3, 3], 1, 2, "11", 1, 0),
            (&[], 0, 3, "", 0, 0),
        ];
        for (heights, chosen, room, shown, before, after) in table {
            let (lines, first, rest) = window(items(heights), chosen, room);
            let text: String = lines.iter().map(Line::to_string).collect();
            assert_eq!((text.as_str(), first, rest), (shown, before, after), "{heights:?}, {chosen} of {room}");
        }
    }

    #[test]
    fn rows_are_as_wide_as_they_may_be() {
        let columns = [Column::name("key"), Column::words("doing", 6), Column::number("late", 5)];
        let table = Table { columns: &columns, width: 24 };
        assert_eq!(table.head(Style::new()).to_string(), " key        doing   late");
        let cells = |key: &str| [key, "late", "1m 3s"].map(|text| (text.to_owned(), Style::new())).to_vec();
        assert_eq!(table.row(cells("ios/some/app-17"), None).to_string(), " ios/s…p-17 late   1m 3s");
        assert_eq!(table.row(cells("\x1b[1m日本"), Some(Style::new())).to_string(), ">␛[1m日本   late   1m 3s");
        // What a column leaves goes to the names; a sentence loses its end.
        let columns = [Column::name("key"), Column::words("doing", 6).when(false), Column::text("why")];
        let table = Table { columns: &columns, width: 24 };
        assert_eq!(table.head(Style::new()).to_string(), " key         why        ");
        let cells = ["ios/some/app-17", "late", "it sleeps until"].map(|text| (text.to_owned(), Style::new())).to_vec();
        assert_eq!(table.row(cells, None).to_string(), " ios/s…pp-17 it sleeps …");
    }

    #[test]
    fn lines_stand_side_by_side_and_each_keeps_its_style() {
        let (bold, dim) = (Style::new().add_modifier(Modifier::BOLD), Style::new().add_modifier(Modifier::DIM));
        let left = vec![Line::styled("日本", bold), Line::raw("b")];
        let right = vec![Line::raw("1"), Line::styled("2", dim), Line::raw("3")];
        let lines = beside(left, right, 6);
        let text: Vec<String> = lines.iter().map(Line::to_string).collect();
        assert_eq!(text, ["日本  1", "b     2", "      3"]);
        let styles = lines.iter().map(|line| line.spans.iter().map(|span| span.style).collect::<Vec<_>>());
        let plain = Style::new();
        assert_eq!(styles.collect::<Vec<_>>(), [vec![bold, plain, plain], vec![plain, plain, dim], vec![plain, plain]]);
    }

    #[test]
    fn lines_are_divided_evenly_until_a_part_has_what_it_needs() {
        let table: [(&[usize], usize, &[usize]); 5] = [
            (&[3, 4], 20, &[3, 4]),
            (&[3, 9], 8, &[3, 5]),
            (&[9, 9], 7, &[4, 3]),
            (&[0, 2, 9], 5, &[0, 2, 3]),
            (&[], 5, &[]),
        ];
        for (needs, room, given) in table {
            assert_eq!(shares(needs, room), given, "{needs:?} in {room}");
        }
    }
}
