//! The content of each screen, in lines (pure).

use std::time::Duration;

use ratatui::style::Style;
use ratatui::text::{Line, Span};
use roundelay_admin::inspect::chain::{AttemptReport, ChainReport, Entity};
use roundelay_admin::inspect::overview::{Bucket, Level, Overview};
use roundelay_admin::inspect::queues::QueueReport;
use roundelay_admin::inspect::throttles::{ConfiguredLimits, KeyReport, ThrottleReport};
use roundelay_admin::inspect::workers::WorkerReport;
use roundelay_model::clock::{Time, short_duration};
use roundelay_model::wall_clock::At;

use super::draw::{Paint, short};
use super::state::{Query, Reports, Row, Screen, Show, State, ThrottleFacts, VERDICTS};
use super::table::{Cell, Column, Table, beside, more, shares, told, window};
use super::text::{bars, clock, count, middle, millis, rate, used, when, whole, width, wrap};

/// The time that the bars of starts cover, in milliseconds.
const HOUR: i64 = 3_600_000;
/// How many lines the details of the selected row have.
const PANEL: usize = 6;
/// How many keys of a throttle are shown; in a tall terminal.
const KEYS: usize = 4;
const KEYS_OF_TALL: usize = 12;
/// From so many columns on, tables have all their columns, and parts of a screen stand side by side.
const WIDE: usize = 140;
/// How many columns stay empty between them.
const GUTTER: usize = 2;
/// From so many columns on, a table that is one of several on a screen has more than the columns that matter most.
const ROOMY: usize = 90;
/// From so many rows on, the overview has tables, and details are told in full.
const TALL: usize = 45;

/// The content of the screen, in at most `room` lines. `size` is that of the terminal.
pub fn body(state: &State, paint: Paint, size: (usize, usize), room: usize) -> Vec<Line<'static>> {
    let (columns, tall) = (size.0, size.1 >= TALL);
    let view = View { state, paint, columns, room, tall, large: tall || columns >= WIDE };
    match (&state.open, state.screen) {
        (Some((kind, key)), _) => view.chain(kind, key),
        (None, Screen::Overview) => view.overview(),
        (None, Screen::Queues) => view.queues(),
        (None, Screen::Throttles) => view.throttles(),
        (None, Screen::Chains) => view.chains(),
        (None, Screen::Workers) => view.workers(),
        (None, Screen::Log) => view.log(),
    }
}

/// Since when the screen's query has no answer, why, and the time of the data that is shown.
pub fn away(state: &State) -> Option<(Time, String, Option<Time>)> {
    fn of<T>(known: &super::state::LastAnswer<T>) -> Option<(Time, String, Option<Time>)> {
        let (since, why) = known.away.clone()?;
        Some((since, why, known.last.as_ref().map(|(_, at)| *at)))
    }
    match state.query() {
        Query::Throttles => of(&state.throttles),
        Query::Chains(_) => of(&state.chains),
        Query::Chain(..) => of(&state.chain),
        Query::Runs(_) => of(&state.runs),
        Query::Nothing => None,
    }
}

/// The keys, and what the words mean.
pub fn help(state: &State, paint: Paint) -> Vec<Line<'static>> {
    let every = format!("The ledger is asked every {}, the broker every 5s or as rarely.", short_duration(state.every));
    let lines = [
        ("1-6, Tab", "screens: overview, queues, throttles, late chains, workers, log"),
        ("↑ ↓ k j", "choose a row, or scroll; PgUp PgDn Home End go farther"),
        ("Enter", "why the chosen chain does not run, and its last runs; Esc back"),
        ("f", "other chains (late, held, paused, running, all), or runs by outcome"),
        ("Space", "stops the log, and lets it go on"),
        ("p r", "pause and resume the chosen queue or chain"),
        ("h r", "hold and release the chosen throttle"),
        ("d r", "drain and resume the chosen worker"),
        ("a", "brings the next tick of the chosen chain forward to now"),
        ("Ctrl-L", "draws the screen anew"),
        ("q, Ctrl-C", "ends it; nothing else ends with it"),
        ("", ""),
        ("due", "due, and nobody runs it yet"),
        ("late", "due for longer than catch_up.slack"),
        ("for a slot", "jobs in workers' hands that wait for a throttle"),
        ("ready", "messages that wait on the broker; -: not known; ~: as it last said"),
        ("flatness", "the busiest second by the mean one; 1 is flat"),
    ];
    let mut all = vec![Line::styled(" Orders ask first, and need a y. Who gave one, and why, is kept.", paint.head())];
    all.extend(
        lines.map(|(name, words)| {
            Line::from(vec![Span::styled(format!(" {name:<11} "), paint.head()), Span::raw(words)])
        }),
    );
    all.push(Line::raw(format!(" {every}")));
    all
}

#[derive(Clone, Copy)]
struct View<'a> {
    state: &'a State,
    paint: Paint,
    columns: usize,
    room: usize,
    /// Whether the terminal has many rows.
    tall: bool,
    /// Whether the terminal has many rows or many columns.
    large: bool,
}

/// A part of a screen that shares its lines with others: what is always shown of it, and what is left out at the end.
struct Block {
    head: Vec<Line<'static>>,
    rows: Vec<Line<'static>>,
    /// How many rows are scrolled over.
    from: usize,
}

fn plain(text: impl Into<String>) -> Cell {
    (text.into(), Style::new())
}

fn blank() -> Line<'static> {
    Line::default()
}

/// An unknown value is not shown as zero.
fn known<T>(value: Option<T>, shown: impl FnOnce(T) -> String) -> Cell {
    plain(value.map_or_else(|| "-".into(), shown))
}

fn ms(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// The last hour in `parts` parts, with what was counted in each.
fn hour(sets: &[Bucket], now: Time, parts: usize) -> Vec<Vec<&Bucket>> {
    let mut all = vec![Vec::new(); parts];
    let begin = now.as_millis() - HOUR;
    for set in sets {
        let place = ((set.at.shown().as_millis() - begin) * parts as i64).div_euclid(HOUR);
        if let Some(part) = usize::try_from(place).ok().and_then(|place| all.get_mut(place)) {
            part.push(set);
        }
    }
    all
}

/// Starts per second: the average of the known values.
fn starts(sets: Vec<&Bucket>) -> Option<f64> {
    let length: usize = sets.iter().map(|set| set.seconds).sum();
    let starts: u64 = sets.iter().map(|set| set.starts).sum();
    (length > 0).then(|| starts as f64 / length as f64)
}

/// How late starts were: the highest of the known values.
fn lateness(sets: Vec<&Bucket>) -> Option<f64> {
    sets.into_iter().filter_map(|set| set.p99_ms).reduce(f64::max)
}

impl View<'_> {
    /// The same view of a part of the screen with so many columns.
    fn part(&self, columns: usize) -> Self {
        Self { columns, ..*self }
    }

    fn marked(&self, n: usize) -> Option<Style> {
        (n == self.state.cursor()).then(|| self.paint.chosen())
    }

    fn not_yet(&self, what: &str) -> Vec<Line<'static>> {
        vec![blank(), Line::styled(format!(" {what}"), self.paint.dim())]
    }

    /// A list, and below it the details of the selected row.
    fn list(
        &self,
        title: String,
        head: Line<'static>,
        items: Vec<Vec<Line<'static>>>,
        panel: Vec<Line<'static>>,
    ) -> Vec<Line<'static>> {
        let mut panel = panel;
        panel.truncate(PANEL.max(self.room.saturating_sub(items.iter().map(Vec::len).sum::<usize>() + 4)));
        let room = self.room.saturating_sub(2 + panel.len() + usize::from(!panel.is_empty()));
        let (rows, before, after) = window(items, self.state.cursor(), room);
        let more = more(before, after);
        let title = middle(&title, self.columns.saturating_sub(width(&more) + 3));
        let gap = " ".repeat(self.columns.saturating_sub(width(&title) + width(&more) + 2));
        let mut lines = vec![
            Line::from(vec![
                Span::styled(format!(" {title}{gap}"), self.paint.head()),
                Span::styled(more, self.paint.dim()),
            ]),
            head,
        ];
        let filled = rows.len();
        lines.extend(rows);
        if !panel.is_empty() {
            lines.extend((filled..room).map(|_| blank()));
            lines.push(Line::styled("─".repeat(self.columns), self.paint.dim()));
            lines.extend(panel);
        }
        lines
    }

    // ---- Overview ----

    fn overview(&self) -> Vec<Line<'static>> {
        let Some(reports) = self.state.reports.value() else {
            return self.not_yet("Nothing is known yet.");
        };
        let told = &reports.overview;
        let mut lines = vec![blank()];
        lines.extend(self.tiles(told));
        lines.push(blank());
        let room = self.room.saturating_sub(lines.len());
        if self.columns >= WIDE {
            let half = self.columns / 2;
            let (left, right) = (self.part(half - GUTTER), self.part(self.columns - half));
            let above = [left.rhythm(told), left.facts(told)].concat();
            let left = left.stacked(above, vec![left.queue_block(reports), left.throttle_block(reports)], room);
            let below = vec![right.troubles(told), right.worker_block(reports)];
            lines.extend(beside(left, right.stacked(right.delays(told), below, room), half));
        } else {
            let above = [self.rhythm(told), self.facts(told)].concat();
            let mut below = vec![self.troubles(told)];
            if self.tall {
                below.extend([self.queue_block(reports), self.throttle_block(reports), self.worker_block(reports)]);
            }
            lines.extend(self.stacked(above, below, room));
        }
        lines
    }

    /// What is always shown, and blocks below it that share the rest of `room` lines. A block without room for a row
    /// is left out.
    fn stacked(&self, above: Vec<Line<'static>>, blocks: Vec<Block>, room: usize) -> Vec<Line<'static>> {
        let mut lines = above;
        let needs: Vec<usize> = blocks.iter().map(|block| block.head.len() + block.rows.len()).collect();
        let given = shares(&needs, room.saturating_sub(lines.len()));
        for (Block { head, rows, from }, lines_given) in blocks.into_iter().zip(given) {
            if lines_given > head.len() {
                let room = lines_given - head.len();
                lines.extend(head);
                lines.extend(self.scrolled(rows, from, room));
            }
        }
        lines
    }

    fn block(&self, title: String, head: Option<Line<'static>>, rows: Vec<Line<'static>>, from: usize) -> Block {
        let head = [blank(), Line::styled(format!(" {title}"), self.paint.head())].into_iter().chain(head).collect();
        Block { head, rows, from }
    }

    fn tiles(&self, told: &Overview) -> [Line<'static>; 2] {
        let counted = told.counted_at.is_some();
        let (chains, bad, warn) = (&told.chains, self.paint.bad(), self.paint.warn());
        let tile = |name, number: i64, known: bool, style: Style| {
            let style = if number > 0 { style } else { Style::new() };
            (name, if known { count(number, 12) } else { "-".into() }, style)
        };
        let tiles = [
            tile("sleeping", chains.sleeping, counted, Style::new()),
            tile("due", chains.due, counted, Style::new()),
            tile("for a slot", told.waiting_for_slot, true, Style::new()),
            tile("running", chains.running, counted, Style::new()),
            tile("LATE", chains.overdue, counted, bad),
            tile("held", chains.held, counted, Style::new()),
            tile("paused", chains.paused, counted, Style::new()),
            tile("FAILING", told.failures - told.recovered, counted, warn),
        ];
        // Where there is little room, these are told in words below.
        let tiles: Vec<_> =
            tiles.into_iter().filter(|(name, ..)| self.columns >= WIDE || !["held", "paused"].contains(name)).collect();
        let each = (self.columns - 2) / tiles.len();
        let names =
            tiles.iter().map(|(name, ..)| Span::styled(format!("{name:>each$}"), self.paint.dim())).collect::<Vec<_>>();
        let figures = tiles
            .iter()
            .map(|(_, figure, style)| Span::styled(format!("{figure:>each$}"), style.patch(self.paint.head())));
        [Line::from(names), Line::from(figures.collect::<Vec<_>>())]
    }

    fn rhythm(&self, told: &Overview) -> Vec<Line<'static>> {
        self.last_hour(told, "starts/s", Some(told.starts.per_second), starts, rate)
    }

    fn delays(&self, told: &Overview) -> Vec<Line<'static>> {
        self.last_hour(told, "p99 late", told.late_ms.map(|late| late.p99), lateness, millis)
    }

    /// A figure now and in the last hour, as bars.
    fn last_hour(
        &self,
        of: &Overview,
        name: &str,
        now: Option<f64>,
        figure: impl Fn(Vec<&Bucket>) -> Option<f64>,
        say: impl Fn(f64) -> String,
    ) -> Vec<Line<'static>> {
        let parts = hour(&of.starts.hour, of.now.shown(), self.columns.saturating_sub(2).min(360));
        let parts: Vec<Option<f64>> = parts.into_iter().map(figure).collect();
        let highest = parts.iter().flatten().copied().fold(0.0, f64::max);
        let now = now.map_or_else(|| "-".into(), &say);
        let words = format!("{now}, and the last hour, with {} at its highest", say(highest));
        let mut lines = told(name, &words, self.columns, Style::new());
        let rows = match self.room {
            _ if self.tall => 6,
            0..=30 => 2,
            _ => 4,
        };
        lines.extend(bars(&parts, rows).into_iter().map(|row| Line::raw(format!(" {row}"))));
        lines
    }

    fn facts(&self, of: &Overview) -> Vec<Line<'static>> {
        let now = self.state.now;
        let late = of.late_ms.map_or_else(
            || "nothing has started in the last seconds".to_owned(),
            |late| format!("{} (median), {} (p99), {} (worst)", millis(late.p50), millis(late.p99), millis(late.max)),
        );
        let flat = of
            .starts
            .peak_to_mean
            .map_or_else(|| "not known yet, or starts are too rare".into(), |peak| format!("{peak:.1}"));
        let workers = of.workers;
        let mut working = format!("{} working", count(workers.working as i64, 9));
        for (number, word) in [(workers.draining, "draining"), (workers.silent, "SILENT")] {
            if number > 0 {
                working.push_str(&format!(", {} {word}", count(number as i64, 9)));
            }
        }
        let apart = [
            (of.chains.held, "held"),
            (of.chains.paused, "paused"),
            (of.chains.quarantined, "QUARANTINED"),
            (of.chains.gathering, "waiting for a batch"),
            (of.chains.unsent, "unsent"),
            (of.chains.retired, "retired"),
        ];
        let apart = apart.iter().filter(|(number, _)| *number > 0);
        let apart: Vec<String> = apart.map(|(number, word)| format!("{} {word}", count(*number, 9))).collect();
        let counted = of.counted_at.map_or_else(|| "not yet".into(), |at| when(at.shown(), now));
        let chains = if apart.is_empty() {
            format!("counted {counted}")
        } else {
            format!("{}; counted {counted}", apart.join(", "))
        };
        let oldest =
            of.oldest_due.map_or_else(|| "nothing is due".into(), |due| format!("since {}", when(due.shown(), now)));
        let columns = self.columns;
        [("lateness", late), ("flatness", flat), ("oldest due", oldest), ("workers", working), ("chains", chains)]
            .into_iter()
            .flat_map(|(name, text)| told(name, &text, columns, Style::new()))
            .collect()
    }

    fn troubles(&self, of: &Overview) -> Block {
        let title = "What is wrong".to_owned();
        if of.troubles.is_empty() {
            let nothing = Line::styled(" Nothing is wrong, as far as the engine can tell.", self.paint.good());
            return self.block(title, None, vec![nothing], 0);
        }
        let lines = of.troubles.iter().flat_map(|trouble| {
            let (word, style) = match trouble.level {
                Level::Error => ("ERROR", self.paint.bad()),
                Level::Warning => ("warning", self.paint.warn()),
                Level::Held => ("held", Style::new()),
            };
            let lines = wrap(&trouble.what, self.columns.saturating_sub(10));
            lines.into_iter().enumerate().map(move |(n, text)| {
                let word = if n == 0 { word } else { "" };
                Line::from(vec![Span::styled(format!(" {word:<8} "), style), Span::raw(text)])
            })
        });
        self.block(title, None, lines.collect(), self.state.scroll)
    }

    /// As many lines as there is room for, without the first `from` ones if that leaves out any at the end.
    fn scrolled(&self, lines: Vec<Line<'static>>, from: usize, room: usize) -> Vec<Line<'static>> {
        if lines.len() <= room || room == 0 {
            return lines;
        }
        let from = from.min(lines.len() - (room - 1));
        let rest = lines.len() - from - (room - 1);
        let mut shown: Vec<_> = lines.into_iter().skip(from).take(room - 1).collect();
        shown.push(Line::styled(format!(" {}", more_lines(from, rest)), self.paint.dim()));
        shown
    }

    // ---- Queues ----

    fn queues(&self) -> Vec<Line<'static>> {
        let Some(reports) = self.state.reports.value() else {
            return self.not_yet("Nothing is known yet.");
        };
        let columns = self.queue_columns(false);
        let table = Table { columns: &columns, width: self.columns };
        let counted = reports.overview.counted_at.is_some();
        let rows = reports
            .queues
            .iter()
            .enumerate()
            .map(|(n, queue)| vec![table.row(self.queue(queue, counted), self.marked(n))]);
        let panel =
            reports.queues.get(self.state.cursor()).map_or_else(Vec::new, |queue| self.of_queue(queue, reports));
        let title = number_of(reports.queues.len(), "queue");
        self.list(title, table.head(self.paint.dim()), rows.collect(), panel)
    }

    /// The columns of queues; `brief` where the table is one of several on the screen.
    fn queue_columns(&self, brief: bool) -> [Column; 15] {
        let (all, roomy) = (self.columns >= WIDE, self.columns >= ROOMY);
        let (more, messages) = (all || brief, all || !brief);
        [
            Column::name("queue"),
            Column::words("state", 8),
            Column::number("sleeping", 9).when(all),
            Column::number("due", 7),
            Column::number("late", 7),
            Column::number("held", 7).when(more),
            Column::number("oldest", 8).when(all),
            Column::number("ready", 7).when(messages || roomy),
            Column::number("cons.", 5).when(messages),
            Column::number("in/s", 6).when(messages),
            Column::number("out/s", 6).when(messages),
            Column::number("running", 9),
            Column::number("starts/s", 8).when(more),
            Column::number("p99 late", 8).when(more && roomy),
            Column::name("throttle").when(all),
        ]
    }

    fn queue_block(&self, of: &Reports) -> Block {
        let columns = self.queue_columns(true);
        let table = Table { columns: &columns, width: self.columns };
        let counted = of.overview.counted_at.is_some();
        let rows = of.queues.iter().map(|queue| table.row(self.queue(queue, counted), None));
        self.block(number_of(of.queues.len(), "queue"), Some(table.head(self.paint.dim())), rows.collect(), 0)
    }

    fn queue(&self, of: &QueueReport, counted: bool) -> Vec<Cell> {
        let chains = |number: i64| known(counted.then_some(number), |number| count(number, 7));
        // The broker's last answer is marked while the broker is unavailable, since it may be old.
        let old = if self.state.broker.away.is_some() || self.state.broker_slow().is_some() { "~" } else { "" };
        let nobody = of.consumers == Some(0) && (of.due > 0 || of.ready.unwrap_or(0) > 0);
        let state = match (&of.paused, nobody) {
            (Some(_), _) => ("PAUSED".to_owned(), self.paint.warn()),
            (None, true) => ("NO CONS.".to_owned(), self.paint.bad()),
            (None, false) => plain("open"),
        };
        let places = of.concurrency.ordered.unwrap_or(of.concurrency.configured) * of.concurrency.workers;
        let overdue = chains(of.overdue);
        let overdue = if of.overdue > 0 { (overdue.0, self.paint.bad()) } else { overdue };
        vec![
            plain(&of.queue),
            state,
            known(counted.then_some(of.sleeping), |sleeping| count(sleeping, 9)),
            chains(of.due),
            overdue,
            chains(of.held),
            known(of.oldest_due, |due| whole(self.state.now.since(due.shown()))),
            known(of.ready, |ready| format!("{old}{}", count(ready, 6))),
            known(of.consumers, |consumers| format!("{old}{consumers}")),
            known(of.rates, |rates| rate(rates.into)),
            known(of.rates, |rates| rate(rates.out)),
            known(counted.then_some(of.running), |running| format!("{running}/{places}")),
            plain(rate(of.starts_per_second)),
            known(of.late_ms, |late| millis(late.p99)),
            known(of.throttle.as_ref(), Clone::clone),
        ]
    }

    fn of_queue(&self, of: &QueueReport, reports: &Reports) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        let mut say = |name: &str, text: String, style| lines.extend(told(name, &text, self.columns, style));
        say("queue", of.queue.clone(), self.paint.head());
        if let Some(paused) = &of.paused {
            let words = format!("by {}, {}: {}", paused.by, when(paused.at.shown(), self.state.now), paused.why);
            say("PAUSED", words, self.paint.warn());
        }
        let late = of.late_ms.map_or_else(String::new, |late| format!(", late by {} (p99)", millis(late.p99)));
        say(
            "starts",
            format!(
                "{}/s{late}; {} sleep, {} unsent",
                rate(of.starts_per_second),
                count(of.sleeping, 9),
                count(of.unsent, 9)
            ),
            Style::new(),
        );
        let at_once = &of.concurrency;
        let ordered = at_once
            .ordered
            .map_or_else(String::new, |ordered| format!("{ordered} by an operator's order, in place of "));
        let takers =
            if at_once.workers == 1 { "1 worker takes".into() } else { format!("{} workers take", at_once.workers) };
        say("at a time", format!("{ordered}{} in each worker; {takers} from it", at_once.configured), Style::new());
        if let Some(throttle) = &of.throttle {
            say("throttle", throttle.clone(), Style::new());
        }
        if self.large {
            let kinds = of.kinds.iter().map(|(kind, chains)| format!("{kind} ({})", count(*chains, 9)));
            say("kinds", listed(kinds), Style::new());
            let workers = reports.workers.iter().flat_map(|worker| {
                let own = worker.queues.iter().filter(|part| part.queue == of.queue);
                own.map(|part| format!("{} ({} of {})", worker.worker, part.running, part.concurrency))
            });
            say("workers", listed(workers), Style::new());
        }
        lines
    }

    // ---- Throttles ----

    fn throttles(&self) -> Vec<Line<'static>> {
        let Some(all) = self.state.throttles.value() else {
            return self.not_yet("The throttles are being asked for.");
        };
        if all.is_empty() {
            return self.not_yet("The configuration has no throttles.");
        }
        let items = all.iter().enumerate().map(|(n, throttle)| self.throttle(throttle, n));
        let panel = all.get(self.state.cursor()).map_or_else(Vec::new, |throttle| self.of_throttle(throttle));
        let title =
            format!("{}: starts that are used, of those that a window allows", number_of(all.len(), "throttle"));
        self.list(title, blank(), items.collect(), panel)
    }

    fn throttle(&self, of: &ThrottleReport, n: usize) -> Vec<Line<'static>> {
        let held = of.keys.iter().filter(|key| key.held.is_some()).count();
        let used_up = |key: &KeyReport| key.windows.iter().any(|window| window.used >= window.allow);
        let state = match (held, &of.keyed_by, &of.in_the_way) {
            (0, None, _) if of.keys.iter().any(used_up) => ("USED UP".to_owned(), self.paint.warn()),
            (0, _, None) if of.hold.is_none() => plain("open"),
            (0, _, Some(_)) if of.hold.is_none() => ("SLOWED".to_owned(), self.paint.warn()),
            (1.., Some(_), _) if of.hold.is_none() => (format!("{held} KEYS HELD"), self.paint.warn()),
            _ => ("HELD".to_owned(), self.paint.bad()),
        };
        let wide = self.columns >= WIDE;
        let columns = [
            Column::name("throttle"),
            Column::words("", 14),
            Column::number("", 14),
            Column::text("").when(wide),
            Column::text("").when(wide),
        ];
        let table = Table { columns: &columns, width: self.columns };
        let waits = if of.waiting == 1 { "1 waits".into() } else { format!("{} wait", count(of.waiting, 9)) };
        let queues = format!("  {}", listed(of.queues.iter().cloned()));
        let why = of.in_the_way.as_ref().map_or("", |words| without_name(words, &of.name));
        let cells = vec![plain(&of.name), state, plain(waits), plain(queues), plain(why)];
        let mut lines = vec![table.row(cells, self.marked(n))];
        let keys = if self.tall { KEYS_OF_TALL } else { KEYS };
        for key in of.keys.iter().take(keys) {
            lines.extend(self.windows(key, of.keyed_by.is_some()));
        }
        if of.keys.is_empty() || of.scope == "worker" {
            let limits =
                of.ordered.as_ref().map_or((of.configured.allow, of.configured.per_ms), |of| (of.allow, of.per_ms));
            let who =
                if of.scope == "worker" { "each worker counts for itself" } else { "nothing has started under it" };
            lines.push(Line::styled(
                format!("   {} in {}; {who}", limits.0, short_duration(Duration::from_millis(limits.1))),
                self.paint.dim(),
            ));
        }
        let further = of.remembered.saturating_sub(keys.min(of.keys.len()) as u64);
        if of.keyed_by.is_some() && further > 0 {
            let words = format!("   … {} keys more: roundelay throttle show {} KEY", count(further, 9), of.name);
            lines.push(Line::styled(middle(&words, self.columns), self.paint.dim()));
        }
        lines
    }

    /// How much of each window is used, as bars.
    fn windows(&self, key: &KeyReport, named: bool) -> Vec<Line<'static>> {
        let name = if named { format!("{} ", middle(&key.key, 20)) } else { String::new() };
        let name_width = if named { 21 } else { 0 };
        let most = if self.columns >= WIDE { 80 } else { 40 };
        let bar = (self.columns.saturating_sub(name_width + 46)).clamp(10, most);
        let windows = key.windows.iter().enumerate().map(|(n, window)| {
            let style = if window.used >= window.allow { self.paint.warn() } else { Style::new() };
            let name = if n == 0 { name.as_str() } else { "" };
            let pad = " ".repeat(name_width - width(name).min(name_width));
            let of = format!(
                "{} of {} in {}",
                count(window.used, 9),
                count(window.allow, 9),
                short_duration(Duration::from_millis(window.per_ms))
            );
            let held = match (&key.held, n) {
                (Some(held), 0) => format!("  held, {}", self.left(held.until.shown())),
                _ => String::new(),
            };
            Line::from(vec![
                Span::raw(format!("   {name}{pad}")),
                Span::styled(used(window.used, window.allow, bar), style),
                Span::raw(format!(" {of}{held}")),
            ])
        });
        windows.collect()
    }

    fn left(&self, until: Time) -> String {
        format!("{} left", whole(until.since(self.state.now)))
    }

    fn of_throttle(&self, of: &ThrottleReport) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        let mut say = |name: &str, text: String, style| lines.extend(told(name, &text, self.columns, style));
        say("throttle", of.name.clone(), self.paint.head());
        let held = of.hold.iter().chain(of.keys.iter().filter_map(|key| key.held.as_ref())).next();
        if let Some(hold) = held {
            let by = hold.by.as_ref().map_or_else(|| " by its upstream's word".into(), |by| format!(" by {by}"));
            say(
                "HELD",
                format!("until {}{by}: {}", when(hold.until.shown(), self.state.now), hold.why),
                self.paint.bad(),
            );
        }
        match &of.in_the_way {
            Some(why) if held.is_none() => say("in the way", why.clone(), self.paint.warn()),
            Some(_) => {}
            None => say("in the way", "nothing: a slot is open".into(), Style::new()),
        }
        if let Some(ordered) = &of.ordered {
            let limits = format!(
                "{} in {}, burst {}",
                ordered.allow,
                short_duration(Duration::from_millis(ordered.per_ms)),
                ordered.burst
            );
            say(
                "limits",
                format!("{limits}, ordered by {}, {}", ordered.by, when(ordered.at.shown(), self.state.now)),
                Style::new(),
            );
        }
        say("queues", listed(of.queues.iter().cloned()), Style::new());
        if self.large {
            let ConfiguredLimits { allow, per_ms, burst } = &of.configured;
            let per = short_duration(Duration::from_millis(*per_ms));
            say("configured", format!("{allow} in {per}, burst {burst}"), Style::new());
        }
        lines
    }

    fn throttle_block(&self, of: &Reports) -> Block {
        // Beside a sentence, a name has no need of half the room.
        let (roomy, name) = (self.columns >= ROOMY, 20);
        let columns = [
            if roomy { Column::words("throttle", name) } else { Column::name("throttle") },
            Column::words("state", 8),
            Column::number("starts/s", 8),
            Column::number("limit", 12),
            Column::number("wait", 7),
            Column::text("why").when(roomy),
        ];
        let table = Table { columns: &columns, width: self.columns };
        let row = |of: &ThrottleFacts| {
            let state = match (of.held, of.why.is_empty()) {
                (true, _) => ("HELD".to_owned(), self.paint.bad()),
                (false, false) => ("SLOWED".to_owned(), self.paint.warn()),
                (false, true) => plain("open"),
            };
            let limit =
                known(of.window, |window| format!("{} in {}", count(window.allow, 6), short_duration(window.per)));
            let why = without_name(&of.why, &of.name);
            let starts = plain(rate(of.starts_per_second));
            let name = if roomy { middle(&of.name, name) } else { of.name.clone() };
            table.row(vec![plain(name), state, starts, limit, plain(count(of.waiting, 7)), plain(why)], None)
        };
        let rows = of.throttles.iter().map(row).collect();
        self.block(number_of(of.throttles.len(), "throttle"), Some(table.head(self.paint.dim())), rows, 0)
    }

    // ---- Chains ----

    fn chains(&self) -> Vec<Line<'static>> {
        let Some((rows, more)) = self.state.chains.value() else {
            return self.not_yet("The chains are being asked for.");
        };
        let which = match self.state.show {
            Show::Late => "late and quarantined chains, those that wait longest first",
            Show::Held => "held chains, by name",
            Show::Paused => "paused chains, by name",
            Show::Running => "running chains, by name",
            Show::All => "all chains, by name",
        };
        let title = match (rows.len(), more) {
            (0, true) => format!("{which}: none among those that were looked at"),
            (0, false) => format!("{which}: none"),
            (number, true) => format!("{which}: the first {number}"),
            (number, false) => format!("{which}: {number}"),
        };
        // A name is longer than its share on small screens only.
        let names = (self.columns / 6).max(14);
        let columns = [
            Column::words("kind", names),
            Column::name("key"),
            Column::words("queue", names),
            Column::words("does", 11),
            Column::words("due", 11).when(self.columns >= WIDE),
            Column::number("late by", 8),
        ];
        let table = Table { columns: &columns, width: self.columns };
        let rows = rows.iter().enumerate().map(|(n, row)| vec![table.row(self.row(row, names), self.marked(n))]);
        self.list(title, table.head(self.paint.dim()), rows.collect(), Vec::new())
    }

    fn row(&self, of: &Row, names: usize) -> Vec<Cell> {
        let doing = match of.doing {
            "late" => ("LATE".into(), self.paint.bad()),
            "quarantined" => ("QUARANTINED".into(), self.paint.bad()),
            "paused" => ("PAUSED".into(), self.paint.warn()),
            other => plain(other),
        };
        let late = of.late.map_or_else(|| "-".into(), super::text::span);
        let due = clock(of.due, self.state.now);
        let (kind, queue) = (middle(&of.kind, names), middle(&of.queue, names));
        vec![plain(kind), plain(&of.key), plain(queue), doing, plain(due), plain(late)]
    }

    fn chain(&self, kind: &str, key: &str) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        for line in wrap(&format!("{kind} {key}"), self.columns.saturating_sub(1)).into_iter().take(3) {
            lines.push(Line::styled(format!(" {line}"), self.paint.head()));
        }
        let Some(entity) = self.state.chain.value() else {
            lines.extend(self.not_yet("It is being asked for."));
            return lines;
        };
        let room = self.room.saturating_sub(lines.len());
        let single = entity.single.as_ref().filter(|one| entity.chain.is_none() || one.state != "retired");
        match entity.chain.as_ref().or(single) {
            // The runs of the rotation have those of the manual run among them.
            Some(chain) if self.columns >= WIDE => {
                let half = self.columns / 2;
                let (left, right) = (self.part(half - GUTTER), self.part(self.columns - half));
                let about = left.scrolled(left.about(entity, single, false), self.state.scroll, room);
                let runs = right.scrolled(right.runs_of(chain), self.state.scroll, room);
                lines.extend(beside(about, runs, half));
            }
            _ => lines.extend(self.scrolled(self.about(entity, single, true), self.state.scroll, room)),
        }
        lines
    }

    /// All that is known of an entity, with its last runs if these do not stand elsewhere.
    fn about(&self, entity: &Entity, single: Option<&ChainReport>, runs: bool) -> Vec<Line<'static>> {
        let (mut rest, now) = (Vec::new(), self.state.now);
        if entity.is_unknown() {
            rest.extend(self.not_yet("Nothing is known of it, and nothing of it has failed or runs."));
        }
        let of_chain = |of: &ChainReport| {
            let runs = if runs { self.runs_of(of) } else { Vec::new() };
            [self.of_chain(of), runs].concat()
        };
        rest.extend(entity.chain.iter().flat_map(of_chain));
        if let Some(single) = single {
            rest.push(Line::styled(" One run more, beside it:", self.paint.head()));
            rest.extend(of_chain(single));
        }
        for job in &entity.running {
            let words = format!(
                "{} of a one-off job on {}, by {}: {}",
                when(job.started.shown(), now),
                job.queue,
                job.worker,
                job.progress
            );
            rest.extend(told("runs since", &words, self.columns, Style::new()));
        }
        for failure in entity.failures.iter().take(if self.large { 20 } else { 5 }) {
            let part = if failure.item.is_empty() { String::new() } else { format!("{}: ", failure.item) };
            let words = format!(
                "{part}{} (×{}, {}); {}",
                failure.reason,
                failure.times,
                when(failure.last_at.shown(), now),
                failure.then
            );
            rest.extend(told("FAILED", &words, self.columns, self.paint.warn()));
        }
        rest
    }

    fn of_chain(&self, of: &ChainReport) -> Vec<Line<'static>> {
        let now = self.state.now;
        let mut lines = Vec::new();
        let mut say = |name: &str, text: String, style| lines.extend(told(name, &text, self.columns, style));
        let doing = match of.doing {
            "late" | "due" => format!("{}, for {}", of.doing, whole(now.since(of.due.shown()))),
            other => other.to_owned(),
        };
        let style = if of.doing == "late" || of.state == "quarantined" { self.paint.bad() } else { self.paint.head() };
        say("does", format!("{doing}, on the queue {}", of.queue), style);
        say("why", of.why.clone(), Style::new());
        if let Some(progress) = &of.progress {
            say("has come to", format!("{progress}, {}", when(progress.at.shown(), now)), Style::new());
        }
        if of.state != "retired" {
            say(
                "next",
                format!("tick {}, attempt {}, due {}", of.tick, of.attempt, when(of.due.shown(), now)),
                Style::new(),
            );
        }
        if let Some(schedule) = &of.schedule {
            say("schedule", schedule.clone(), Style::new());
        }
        if let Some(owner) = &of.owner {
            let state = of
                .owner_state
                .filter(|state| *state != "active")
                .map_or_else(String::new, |state| format!(", {state}"));
            say("owner", format!("{owner}{state}"), Style::new());
        }
        if self.large {
            let known = |time: Option<At>| time.map_or_else(|| "never".into(), |time| when(time.shown(), now));
            let next = of.next.iter().take(5).map(|due| clock(due.shown(), now));
            say("then", listed(next), Style::new());
            say("started", format!("{}; ended {}", known(of.last_start), known(of.last_finish)), Style::new());
            let sent = if of.sent { "sent" } else { "not known to be on the broker" };
            let again = match of.looks {
                0 => String::new(),
                1 => "; catch-up has sent it once more".into(),
                looks => format!("; catch-up has sent it {looks} times more"),
            };
            say("message", format!("{sent}{again}"), Style::new());
        }
        lines
    }

    /// The last runs of a chain.
    fn runs_of(&self, of: &ChainReport) -> Vec<Line<'static>> {
        let now = self.state.now;
        let mut lines = Vec::new();
        let mut say = |name: &str, text: String, style| lines.extend(told(name, &text, self.columns, style));
        if of.attempts.is_empty() {
            say("last runs", "none is kept".into(), Style::new());
        }
        for (n, attempt) in of.attempts.iter().enumerate() {
            let name = if n == 0 { "last runs" } else { "" };
            let reason = attempt.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
            let words = format!(
                "{} tick {}.{} {}{}, {} late, on {}{reason}",
                clock(attempt.started.shown(), now),
                attempt.tick,
                attempt.attempt,
                outcome(attempt),
                took(attempt).map_or_else(String::new, |took| format!(" after {took}")),
                short(ms(attempt.started.shown().since(attempt.due.shown()))),
                attempt.worker,
            );
            say(name, words, self.stress(attempt));
        }
        lines
    }

    // ---- Workers ----

    fn workers(&self) -> Vec<Line<'static>> {
        let Some(reports) = self.state.reports.value() else {
            return self.not_yet("Nothing is known yet.");
        };
        if reports.workers.is_empty() {
            return self.not_yet("No worker runs on this ledger, or has within the last hour.");
        }
        let columns = self.worker_columns(false);
        let table = Table { columns: &columns, width: self.columns };
        let rows =
            reports.workers.iter().enumerate().map(|(n, worker)| vec![table.row(self.worker(worker), self.marked(n))]);
        let panel = reports.workers.get(self.state.cursor()).map_or_else(Vec::new, |worker| self.of_worker(worker));
        let title = number_of(reports.workers.len(), "worker");
        self.list(title, table.head(self.paint.dim()), rows.collect(), panel)
    }

    /// The columns of workers; `brief` where the table is one of several on the screen.
    fn worker_columns(&self, brief: bool) -> [Column; 11] {
        let (all, roomy) = (self.columns >= WIDE, self.columns >= ROOMY);
        let (more, process) = (all || brief && roomy, all || !brief);
        [
            Column::name("worker"),
            Column::words("state", 8),
            Column::number("heard of", 8),
            Column::number("up", 7).when(process || roomy),
            Column::number("running", 9),
            Column::number("for a slot", 10).when(more),
            Column::number("leases", 6).when(process),
            Column::number("starts/s", 8),
            Column::number("p99 late", 8).when(more),
            Column::words("version", 8).when(process),
            Column::text("queues").when(all),
        ]
    }

    fn worker_block(&self, of: &Reports) -> Block {
        let columns = self.worker_columns(true);
        let table = Table { columns: &columns, width: self.columns };
        let rows = of.workers.iter().map(|worker| table.row(self.worker(worker), None));
        self.block(number_of(of.workers.len(), "worker"), Some(table.head(self.paint.dim())), rows.collect(), 0)
    }

    fn worker(&self, of: &WorkerReport) -> Vec<Cell> {
        let now = self.state.now;
        let state = match of.state {
            "silent" => ("SILENT".into(), self.paint.bad()),
            "working" => plain("working"),
            other => (other.to_uppercase(), self.paint.warn()),
        };
        let running: i64 = of.queues.iter().map(|queue| queue.running).sum();
        let places: usize = of.queues.iter().map(|queue| queue.concurrency).sum();
        vec![
            plain(&of.worker),
            state,
            plain(whole(now.since(of.seen.shown()))),
            plain(whole(now.since(of.started.shown()))),
            plain(format!("{running}/{places}")),
            plain(count(of.waiting, 10)),
            plain(count(of.leases as i64, 6)),
            plain(rate(of.starts_per_second)),
            known(of.late_ms, |late| millis(late.p99)),
            plain(&of.version),
            plain(listed(of.queues.iter().map(|queue| queue.queue.clone()))),
        ]
    }

    fn of_worker(&self, of: &WorkerReport) -> Vec<Line<'static>> {
        let queues = of.queues.iter().map(|queue| {
            let paused = if queue.paused { ", takes nothing" } else { "" };
            format!("{} ({} of {}{paused})", queue.queue, queue.running, queue.concurrency)
        });
        let queues: Vec<String> = queues.collect();
        let who = format!("{}, process {} on {}, version {}", of.worker, of.pid, of.host, of.version);
        let waiting =
            if of.waiting > 0 { format!("; {} wait for a slot", count(of.waiting, 9)) } else { String::new() };
        [
            ("worker", who, self.paint.head()),
            ("queues", format!("{}{waiting}", queues.join(", ")), Style::new()),
            ("kinds", of.kinds.join(", "), Style::new()),
        ]
        .into_iter()
        .flat_map(|(name, text, style)| told(name, &text, self.columns, style))
        .collect()
    }

    // ---- Log ----

    fn log(&self) -> Vec<Line<'static>> {
        let Some(runs) = self.state.runs.value() else {
            return self.not_yet("The latest runs are being asked for.");
        };
        let which = VERDICTS[self.state.verdict]
            .map_or_else(|| "latest runs".into(), |verdict| format!("latest runs that {verdict}"));
        let which = which.replace("that lost", "that were lost");
        let live = if self.state.paused { "STOPPED, Space goes on" } else { "live" };
        let title = if runs.is_empty() {
            format!("{which}: none ({live})")
        } else {
            format!("the {} {which}, newest first ({live})", runs.len())
        };
        let now = self.state.now;
        let time = runs.iter().map(|run| width(&clock(run.started.shown(), now))).max().unwrap_or(8).max(8);
        let columns = [
            Column::words("started", time),
            Column::name("chain"),
            Column::number("tick", 8),
            Column::words("outcome", 10),
            Column::number("took", 7),
            Column::number("late by", 7),
            Column::words("worker", 24).when(self.columns >= WIDE),
            Column::text("reason").when(self.columns >= WIDE),
        ];
        let table = Table { columns: &columns, width: self.columns };
        let rows = runs.iter().enumerate().map(|(n, run)| vec![table.row(self.run(run), self.marked(n))]);
        let panel = runs.get(self.state.cursor()).map_or_else(Vec::new, |run| self.of_run(run));
        self.list(title, table.head(self.paint.dim()), rows.collect(), panel)
    }

    fn run(&self, of: &AttemptReport) -> Vec<Cell> {
        let late = short(ms(of.started.shown().since(of.due.shown())));
        vec![
            plain(clock(of.started.shown(), self.state.now)),
            plain(name(of)),
            plain(format!("{}.{}", of.tick, of.attempt)),
            (outcome(of), self.stress(of)),
            plain(took(of).unwrap_or_else(|| "-".into())),
            plain(late),
            plain(&of.worker),
            plain(of.reason.as_deref().unwrap_or_default()),
        ]
    }

    fn of_run(&self, of: &AttemptReport) -> Vec<Line<'static>> {
        let progress = of.progress.as_ref().map_or_else(String::new, |progress| format!(", at {progress}"));
        let reason = of.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        [
            ("chain", name(of), self.paint.head()),
            ("outcome", format!("{}{progress}{reason}", outcome(of)), self.stress(of)),
            ("worker", of.worker.clone(), Style::new()),
        ]
        .into_iter()
        .flat_map(|(name, text, style)| told(name, &text, self.columns, style))
        .collect()
    }

    fn stress(&self, of: &AttemptReport) -> Style {
        match of.verdict.as_deref() {
            Some("failed" | "lost" | "fenced") => self.paint.bad(),
            Some("retried" | "dropped" | "cut") => self.paint.warn(),
            _ => Style::new(),
        }
    }
}

fn listed(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// What is said of a throttle, beside its name.
fn without_name<'a>(words: &'a str, throttle: &str) -> &'a str {
    words.strip_prefix("the throttle ").and_then(|rest| rest.strip_prefix(throttle)).map_or(words, str::trim_start)
}

fn number_of(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

fn more_lines(before: usize, after: usize) -> String {
    match more(before, after) {
        words if words.is_empty() => words,
        words => format!("{words} lines"),
    }
}

fn name(of: &AttemptReport) -> String {
    match (&of.kind, &of.key) {
        (Some(kind), Some(key)) => format!("{kind} {key}"),
        _ => "a chain that has begun anew since".into(),
    }
}

fn outcome(of: &AttemptReport) -> String {
    of.verdict.clone().unwrap_or_else(|| "runs".into()).replace('_', " ")
}

fn took(of: &AttemptReport) -> Option<String> {
    of.finished.map(|end| short(ms(end.shown().since(of.started.shown()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hour_is_divided_evenly_and_what_is_not_known_is_not_zero() {
        let at = |secs: i64| Time::from_millis(secs * 1_000);
        let bucket = |secs, starts, p99_ms| Bucket { at: At::wall(at(secs)), starts, seconds: 10, p99_ms };
        // Nothing is shown before the hour; of two buckets of a part, starts are averaged, and the later start counts.
        let sets = [
            bucket(10_000 - 3_610, 99, Some(99.0)),
            bucket(10_000 - 1_800, 20, Some(7.0)),
            bucket(10_000 - 1_790, 40, Some(9.0)),
            bucket(9_990, 0, None),
        ];
        let parts = |figure: fn(Vec<&Bucket>) -> Option<f64>| {
            hour(&sets, at(10_000), 4).into_iter().map(figure).collect::<Vec<_>>()
        };
        assert_eq!(parts(starts), [None, None, Some(3.0), Some(0.0)]);
        assert_eq!(parts(lateness), [None, None, Some(9.0), None]);
    }
}
