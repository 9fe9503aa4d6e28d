//! Draws the state on a screen (pure): the frame of all screens. [`super::screens`] has their content.
//!
//! Colours only stress what words and signs say already.

use ratatui::Frame;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::screens;
use super::state::{Screen, State};
use super::text::{beginning, clock, ending, middle, span, when, whole, width, wrap};

/// The smallest terminal, in columns and rows, in which nothing misleads.
const MIN_TERMINAL: (u16, u16) = (60, 16);
/// The most lines that a question, or the result of an order, takes.
const MAX_SAID_LINES: usize = 4;

/// The styles of the screen.
#[derive(Clone, Copy)]
pub struct Paint {
    pub colours: bool,
}

impl Paint {
    fn coloured(self, colour: Color, otherwise: Modifier) -> Style {
        if self.colours {
            Style::new().fg(colour).add_modifier(otherwise)
        } else {
            Style::new().add_modifier(otherwise)
        }
    }

    /// For a part that does not run, and should.
    pub fn bad(self) -> Style {
        self.coloured(Color::Red, Modifier::BOLD)
    }

    /// For a part that an operator should look at.
    pub fn warn(self) -> Style {
        self.coloured(Color::Yellow, Modifier::BOLD)
    }

    /// For a success.
    pub fn good(self) -> Style {
        self.coloured(Color::Green, Modifier::empty())
    }

    /// For what matters less.
    pub fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// For names of columns and parts.
    pub fn head(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// For the selection.
    pub fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

/// Draws the whole screen.
pub fn draw(state: &State, paint: Paint, frame: &mut Frame<'_>) {
    let area = frame.area();
    let (columns, rows) = (usize::from(area.width), usize::from(area.height));
    if area.width < MIN_TERMINAL.0 || area.height < MIN_TERMINAL.1 {
        let words = format!(
            "This window has {columns}×{rows}; at least {}×{} are needed. q quits.",
            MIN_TERMINAL.0, MIN_TERMINAL.1
        );
        let lines: Vec<Line<'_>> = wrap(&words, columns).into_iter().map(Line::from).collect();
        frame.render_widget(Paragraph::new(lines), area);
        return;
    }
    let mut lines = vec![tabs(state, paint, columns)];
    lines.extend(notices(state, paint, columns));
    let said = said(state, paint, columns);
    let room = rows.saturating_sub(lines.len() + said.len() + 1);
    let mut body =
        if state.help { screens::help(state, paint) } else { screens::body(state, paint, (columns, rows), room) };
    body.truncate(room);
    body.resize_with(room, Line::default);
    lines.extend(body);
    lines.extend(said);
    lines.push(Line::styled(beginning(keys(state), columns), paint.dim()));
    frame.render_widget(Paragraph::new(lines), area);
}

fn tabs(state: &State, paint: Paint, columns: usize) -> Line<'static> {
    let tab = |(n, screen): (usize, Screen)| {
        let (name, chosen) = (format!("{} {}", n + 1, screen.name()), screen == state.screen);
        if chosen { Span::styled(format!("[{name}]"), paint.chosen()) } else { Span::raw(format!(" {name} ")) }
    };
    let mut spans: Vec<Span<'_>> = (0..).zip(Screen::ALL).map(tab).collect();
    let time = state.now.to_string();
    let time = time.get(11..19).unwrap_or_default();
    let right = if state.read_only { format!("READ-ONLY {time}") } else { format!("{time} UTC") };
    let used: usize = spans.iter().map(Span::width).sum();
    let right = if used + width(&right) < columns { right } else { time.to_owned() };
    spans.push(Span::raw(" ".repeat(columns.saturating_sub(used + width(&right)))));
    spans.push(Span::styled(right, paint.dim()));
    Line::from(spans)
}

/// Which source cannot be asked, since when, and the time of the data that is shown.
fn notices(state: &State, paint: Paint, columns: usize) -> Vec<Line<'static>> {
    let mut all = Vec::new();
    let old = |at: Option<roundelay_model::clock::Time>| match at {
        Some(at) => format!("OLD FIGURES, of {}", clock(at, state.now)),
        None => "nothing is known yet".into(),
    };
    let heard = state.reports.last.as_ref().map(|(_, at)| *at);
    match (&state.reports.away, state.slow()) {
        (Some((since, why)), _) => {
            all.push(format!("! {}: the ledger cannot be asked since {}: {why}", old(heard), when(*since, state.now)));
        }
        (None, Some(silent)) => {
            all.push(format!("! {}: the ledger has not answered for {}", old(heard), whole(silent)));
        }
        (None, None) if heard.is_none() => all.push("asking the ledger and the broker …".into()),
        (None, None) => {}
    }
    let told = state.broker.last.as_ref().map(|(_, at)| *at);
    match (&state.broker.away, state.broker_slow()) {
        (Some((since, why)), _) => {
            all.push(format!("! {}: the broker cannot be asked since {}: {why}", old(told), when(*since, state.now)));
        }
        // Without the ledger, the broker is not asked, either.
        (None, Some(silent)) if state.reports.away.is_none() && state.slow().is_none() => {
            all.push(format!("! {}: the broker has not answered for {}", old(told), whole(silent)));
        }
        (None, _) => {}
    }
    if let (None, Some((since, why, at))) = (&state.reports.away, screens::away(state)) {
        all.push(format!("! {}: this screen cannot be asked for since {}: {why}", old(at), when(since, state.now)));
    }
    let lines = all.iter().flat_map(|words| {
        let mut lines = wrap(words, columns);
        // The first lines have the important part.
        if lines.len() > 2 {
            lines.truncate(2);
            if let Some(last) = lines.last_mut() {
                *last = format!("{}…", beginning(last, columns - 1).trim_end_matches('…'));
            }
        }
        lines
    });
    lines.map(|line| Line::styled(line, paint.bad())).collect()
}

/// The question, or the result of the last order.
fn said(state: &State, paint: Paint, columns: usize) -> Vec<Line<'static>> {
    let mut lines: Vec<Line<'_>> = match (&state.question, &state.said) {
        (Some(question), _) => {
            let (asks, style) = (question.asks(), paint.warn());
            match question.typed() {
                Some(typed) => {
                    let mut asks: Vec<String> = wrap(&middle(&asks, columns * 2), columns);
                    let room = columns.saturating_sub(asks.last().map_or(0, |last| width(last) + 2));
                    // The typed text stands beside the question if there is room for some of it.
                    if width(typed) < room || room > 20 {
                        let line = asks.pop().unwrap_or_default();
                        let field = Span::raw(format!(" {}▏", ending(typed, room.saturating_sub(1))));
                        let asked = asks.into_iter().map(|line| Line::styled(line, style));
                        asked.chain([Line::from(vec![Span::styled(line, style), field])]).collect()
                    } else {
                        let field = Line::raw(format!("{}▏", ending(typed, columns - 1)));
                        asks.into_iter().map(|line| Line::styled(line, style)).chain([field]).collect()
                    }
                }
                None => wrap(&asks, columns).into_iter().map(|line| Line::styled(line, style)).collect(),
            }
        }
        (None, _) if state.giving > 0 => vec![Line::styled("The order is being given …", paint.warn())],
        (None, Some((_, Ok(words)))) => {
            wrap(words, columns).into_iter().map(|line| Line::styled(line, paint.good())).collect()
        }
        (None, Some((_, Err(words)))) => wrap(&format!("NOT DONE: {words}"), columns)
            .into_iter()
            .map(|line| Line::styled(line, paint.bad()))
            .collect(),
        (None, None) => vec![Line::default()],
    };
    if lines.len() > MAX_SAID_LINES {
        // The question stands at the end, and its subject at the beginning.
        let rest = lines.split_off(lines.len() - MAX_SAID_LINES / 2);
        lines.truncate(MAX_SAID_LINES / 2 - 1);
        lines.push(Line::raw("…"));
        lines.extend(rest);
    }
    lines
}

/// The keys that work now.
fn keys(state: &State) -> &'static str {
    match &state.question {
        Some(question) if question.typed().is_some() => return "Enter goes on   Esc does nothing",
        Some(_) => return "y gives the order   n or Esc does nothing",
        None => {}
    }
    if state.help {
        return "Esc back";
    }
    match (state.screen, state.open.is_some(), state.read_only) {
        (_, true, false) => "Esc back   ↑↓ scroll   p pause   r resume   a next tick now   ? help",
        (_, true, true) => "Esc back   ↑↓ scroll   ? help",
        (Screen::Overview, ..) => "q quit   ? help   1-6 or Tab screens   ↑↓ scroll what is wrong",
        (Screen::Queues, _, false) => "q quit   ? help   1-6 or Tab screens   ↑↓ choose   p pause   r resume",
        (Screen::Throttles, _, false) => "q quit   ? help   1-6 or Tab screens   ↑↓ choose   h hold   r release",
        (Screen::Workers, _, false) => "q quit   ? help   1-6 or Tab screens   ↑↓ choose   d drain   r resume",
        (Screen::Chains, _, false) => "q quit ? help 1-6 screens ↑↓ choose Enter why f others p pause r resume a now",
        (Screen::Chains, _, true) => "q quit   ? help   1-6 screens   ↑↓ choose   Enter why   f others",
        (Screen::Log, ..) => "q quit  ? help  1-6 screens  ↑↓ choose  Enter chain  Space stop  f failed …",
        (_, _, true) => "q quit   ? help   1-6 or Tab screens   ↑↓ choose",
    }
}

/// A short duration, for columns.
pub fn short(millis: i64) -> String {
    span(std::time::Duration::from_millis(u64::try_from(millis).unwrap_or(0)))
}
