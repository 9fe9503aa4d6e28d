//! The state of the screen, and how each key and each answer changes it (pure).
//!
//! Nothing is computed here: figures and words are those of [`roundelay_admin::inspect`]. Data that cannot be read any
//! more stays on the screen, with the time since when it is old.

use std::sync::Arc;
use std::time::Duration;

use roundelay_admin::inspect::broker::BrokerStatus;
use roundelay_admin::inspect::chain::{AttemptReport, Entity};
use roundelay_admin::inspect::overview::{Overview, overview, queues};
use roundelay_admin::inspect::queues::QueueReport;
use roundelay_admin::inspect::status_cache::{Facts, ThrottledNow};
use roundelay_admin::inspect::throttles::ThrottleReport;
use roundelay_admin::inspect::workers::WorkerReport;
use roundelay_config::Config;
use roundelay_ledger::Census;
use roundelay_model::clock::Time;
use roundelay_model::pacing::slots::Window;

use super::order::{Action, Answered, Order, Question};

/// How long the result of an order stays on the screen.
const SHOWN: Duration = Duration::from_secs(15);
/// How many rows a page key moves.
const PAGE: usize = 10;
/// If the ledger has not answered for this long, the screen says so.
const SLOW: Duration = Duration::from_secs(6);
/// If the broker, which is asked every five seconds, has not answered for this long, the screen says so.
const BROKER_SLOW: Duration = Duration::from_secs(15);

/// A key that has a meaning here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A letter, a digit or a sign.
    Char(char),
    /// Enter.
    Enter,
    /// Escape.
    Esc,
    /// To the next screen.
    Tab,
    /// To the screen before.
    BackTab,
    /// One row up.
    Up,
    /// One row down.
    Down,
    /// Many rows up.
    PageUp,
    /// Many rows down.
    PageDown,
    /// To the first row.
    Home,
    /// To the last row.
    End,
    /// Deletes the last typed letter.
    Backspace,
    /// Ends the program at once, also while a question is open: Ctrl-C.
    Interrupt,
    /// Draws the screen again, after other output has drawn over it: Ctrl-L.
    Redraw,
}

/// A screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screen {
    /// All chains in figures, and what is wrong.
    Overview,
    /// The platform queues.
    Queues,
    /// The throttles.
    Throttles,
    /// Chains that are late, or others.
    Chains,
    /// The workers.
    Workers,
    /// The latest runs.
    Log,
}

impl Screen {
    /// All screens, in the order of their keys.
    pub const ALL: [Self; 6] = [Self::Overview, Self::Queues, Self::Throttles, Self::Chains, Self::Workers, Self::Log];

    /// The name on the tab.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Queues => "Queues",
            Self::Throttles => "Throttles",
            Self::Chains => "Late",
            Self::Workers => "Workers",
            Self::Log => "Log",
        }
    }

    fn moved(self, by: usize) -> Self {
        Self::ALL[(self as usize + by) % Self::ALL.len()]
    }
}

/// Which chains are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Overdue and quarantined chains; those that wait longest first.
    Late,
    /// Chains that are due on queues of which operators let nothing start.
    Held,
    /// Chains that an operator has paused.
    Paused,
    /// Chains that run.
    Running,
    /// All chains.
    All,
}

impl Show {
    const fn next(self) -> Self {
        match self {
            Self::Late => Self::Held,
            Self::Held => Self::Paused,
            Self::Paused => Self::Running,
            Self::Running => Self::All,
            Self::All => Self::Late,
        }
    }
}

/// The filters of runs by verdict.
pub const VERDICTS: [Option<&str>; 4] = [None, Some("failed"), Some("retried"), Some("lost")];

/// The data that the screen needs in addition to the status cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// Nothing.
    Nothing,
    /// All throttles.
    Throttles,
    /// A page of chains.
    Chains(Show),
    /// One chain, by kind and key.
    Chain(String, String),
    /// The latest runs with this verdict.
    Runs(Option<&'static str>),
}

/// A chain in a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The kind, which names the handler.
    pub kind: String,
    /// The key of the entity.
    pub key: String,
    pub queue: String,
    /// What the chain is doing, in a word.
    pub doing: &'static str,
    /// When the tick is due, or was.
    pub due: Time,
    /// How late the tick is, if it is due and does not run.
    pub late: Option<Duration>,
}

/// The answer to a query.
#[derive(Clone, Debug)]
pub enum QueryAnswer {
    /// All throttles.
    Throttles(Vec<ThrottleReport>),
    /// Chains, and whether there are more.
    Chains(Vec<Row>, bool),
    /// One chain.
    Chain(Box<Entity>),
    /// Runs, latest first.
    Runs(Vec<AttemptReport>),
}

/// An input to the screen.
#[derive(Clone, Debug)]
pub enum Input {
    /// A key was pressed.
    Key(Key),
    /// A second has passed.
    Tick,
    /// The terminal has another size.
    Resized,
    /// New facts of the status cache.
    Facts(Arc<Facts>),
    /// The ledger cannot be opened.
    NoLedger(String),
    /// The answer to a query, or why there is none.
    QueryAnswer(Query, Result<QueryAnswer, String>),
    /// The result of an order, in words.
    Given(Result<String, String>),
}

/// An effect for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Run this query from now on, and no other.
    Ask(Query),
    /// Give this order.
    Give(Order),
    /// Draw all of the screen again.
    Redraw,
    /// End the program.
    Quit,
}

/// Data that may be old.
#[derive(Clone, Debug)]
pub struct LastAnswer<T> {
    /// The last answer, and when it came.
    pub last: Option<(T, Time)>,
    /// Since when there is no answer, and why.
    pub away: Option<(Time, String)>,
}

impl<T> Default for LastAnswer<T> {
    fn default() -> Self {
        Self { last: None, away: None }
    }
}

impl<T> LastAnswer<T> {
    fn take(&mut self, answer: Result<T, String>, now: Time) {
        match answer {
            Ok(answer) => *self = Self { last: Some((answer, now)), away: None },
            Err(why) => {
                let since = self.away.as_ref().map_or(now, |(since, _)| *since);
                self.away = Some((since, why));
            }
        }
    }

    /// The last answer.
    pub fn value(&self) -> Option<&T> {
        self.last.as_ref().map(|(value, _)| value)
    }
}

/// The reports made from the status cache's facts.
#[derive(Clone, Debug)]
pub struct Reports {
    /// The state of the whole system.
    pub overview: Overview,
    /// The queues, with the broker's last answer about them.
    pub queues: Vec<QueueReport>,
    /// The workers.
    pub workers: Vec<WorkerReport>,
    /// The throttles, as far as the status cache knows them.
    pub throttles: Vec<ThrottleFacts>,
}

/// What the status cache knows of a throttle.
#[derive(Clone, Debug)]
pub struct ThrottleFacts {
    pub name: String,
    /// Whether an operator has ordered a hold.
    pub held: bool,
    /// Starts per second on its queues, as workers have last reported.
    pub starts_per_second: f64,
    /// The window that paces.
    pub window: Option<Window>,
    /// How many jobs wait for a slot.
    pub waiting: i64,
    /// Why starts wait for it; empty if none does.
    pub why: String,
}

impl ThrottleFacts {
    fn all(facts: &Facts, queues: &[QueueReport], config: &Config) -> Vec<Self> {
        let one = |of: &ThrottledNow| {
            let paced = queues.iter().filter(|queue| queue.throttle.as_ref() == Some(&of.name));
            let configured = config.throttles.get(&of.name).map(|settings| settings.limits.window);
            Self {
                name: of.name.clone(),
                held: facts.holds.of_throttle(&of.name).is_some(),
                starts_per_second: paced.map(|queue| queue.starts_per_second).sum(),
                window: of.limits.as_ref().map(|limits| limits.window).or(configured),
                waiting: facts.waiting.get(&of.name).copied().unwrap_or(0),
                why: of.words.clone(),
            }
        };
        facts.throttled.iter().map(one).collect()
    }
}

/// The selected row: remembered by its name, since rows above it come and go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The index of the row.
    pub at: usize,
    name: Option<String>,
}

impl Cursor {
    /// Stays with the row of its name, or at its index when that row has gone.
    fn follow(&mut self, names: &[String]) {
        let found = self.name.as_ref().and_then(|name| names.iter().position(|other| other == name));
        self.at = found.unwrap_or(self.at).min(names.len().saturating_sub(1));
        self.name = names.get(self.at).cloned();
    }

    fn go(&mut self, to: usize, names: &[String]) {
        self.at = to.min(names.len().saturating_sub(1));
        self.name = names.get(self.at).cloned();
    }
}

/// The state of the screen.
#[derive(Clone, Debug)]
pub struct State {
    pub config: Arc<Config>,
    /// Whether no order can be given.
    pub read_only: bool,
    /// How often the ledger is asked.
    pub every: Duration,
    /// The time, by the ledger's clock if that is known.
    pub now: Time,
    /// By how many milliseconds the ledger's clock is ahead of this machine's.
    ahead: i64,
    /// When the program started.
    pub begun: Time,
    /// The screen that is shown.
    pub screen: Screen,
    /// Whether the help is shown in its place.
    pub help: bool,
    /// Which chains are shown.
    pub show: Show,
    /// Which runs are shown: an index in [`VERDICTS`].
    pub verdict: usize,
    /// Whether the log stands still.
    pub paused: bool,
    /// The selected rows, by screen.
    pub cursors: [Cursor; 6],
    /// How many lines are scrolled over, on screens without a selection.
    pub scroll: usize,
    /// The open chain, by kind and key.
    pub open: Option<(String, String)>,
    /// The reports.
    pub reports: LastAnswer<Reports>,
    /// What the broker has answered.
    pub broker: LastAnswer<BrokerStatus>,
    pub throttles: LastAnswer<Vec<ThrottleReport>>,
    /// The chains, and whether there are more.
    pub chains: LastAnswer<(Vec<Row>, bool)>,
    /// The open chain.
    pub chain: LastAnswer<Box<Entity>>,
    pub runs: LastAnswer<Vec<AttemptReport>>,
    /// The open question.
    pub question: Option<Question>,
    /// How many orders have no result yet.
    pub giving: usize,
    /// The result of the last order, and when it came.
    pub said: Option<(Time, Result<String, String>)>,
}

impl State {
    /// A state without data, at `now` by this machine's clock.
    pub fn new(config: Arc<Config>, read_only: bool, every: Duration, now: Time) -> Self {
        Self {
            config,
            read_only,
            every,
            now,
            ahead: 0,
            begun: now,
            screen: Screen::Overview,
            help: false,
            show: Show::Late,
            verdict: 0,
            paused: false,
            cursors: Default::default(),
            scroll: 0,
            open: None,
            reports: LastAnswer::default(),
            broker: LastAnswer::default(),
            throttles: LastAnswer::default(),
            chains: LastAnswer::default(),
            chain: LastAnswer::default(),
            runs: LastAnswer::default(),
            question: None,
            giving: 0,
            said: None,
        }
    }

    /// The query that the screen needs.
    pub fn query(&self) -> Query {
        match (&self.open, self.screen) {
            (Some((kind, key)), _) => Query::Chain(kind.clone(), key.clone()),
            (None, Screen::Throttles) => Query::Throttles,
            (None, Screen::Chains) => Query::Chains(self.show),
            (None, Screen::Log) if !self.paused => Query::Runs(VERDICTS[self.verdict]),
            _ => Query::Nothing,
        }
    }

    /// How long the ledger has not answered, if that is too long.
    pub fn slow(&self) -> Option<Duration> {
        let heard = self.reports.last.as_ref().map_or(self.begun, |(_, heard)| *heard);
        let silent = self.now.since(heard);
        (silent > SLOW.max(self.every * 3)).then_some(silent)
    }

    /// How long the broker has not answered, if that is too long.
    pub fn broker_slow(&self) -> Option<Duration> {
        let silent = self.now.since(self.broker.last.as_ref()?.1);
        (silent > BROKER_SLOW.max(self.every * 3)).then_some(silent)
    }

    /// The index of the selected row.
    pub fn cursor(&self) -> usize {
        self.cursors[self.screen as usize].at
    }

    /// The names of the screen's rows.
    fn names(&self) -> Vec<String> {
        let of_chain = |kind: &str, key: &str| format!("{kind}\n{key}");
        let reports = self.reports.value();
        match self.screen {
            Screen::Overview => Vec::new(),
            Screen::Queues => reports.iter().flat_map(|of| &of.queues).map(|queue| queue.queue.clone()).collect(),
            Screen::Throttles => self.throttles.value().into_iter().flatten().map(|of| of.name.clone()).collect(),
            Screen::Chains => {
                let chains = self.chains.value().into_iter().flat_map(|(rows, _)| rows);
                chains.map(|row| of_chain(&row.kind, &row.key)).collect()
            }
            Screen::Workers => reports.iter().flat_map(|of| &of.workers).map(|of| of.worker.clone()).collect(),
            Screen::Log => self.runs.value().into_iter().flatten().map(|run| run.fence.to_string()).collect(),
        }
    }

    fn follow(&mut self) {
        let names = self.names();
        // At the newest run, the cursor stays at the top when a newer one comes.
        let live = self.screen == Screen::Log && !self.paused && self.cursor() == 0;
        let cursor = &mut self.cursors[self.screen as usize];
        if live { cursor.go(0, &names) } else { cursor.follow(&names) }
    }

    /// The chain that an order is for: the open one, else the selected one.
    fn target_chain(&self) -> Option<(String, String)> {
        if self.open.is_some() {
            return self.open.clone();
        }
        match self.screen {
            Screen::Chains => {
                let row = self.chains.value()?.0.get(self.cursor())?;
                Some((row.kind.clone(), row.key.clone()))
            }
            Screen::Log => {
                let run = self.runs.value()?.get(self.cursor())?;
                Some((run.kind.clone()?, run.key.clone()?))
            }
            _ => None,
        }
    }

    /// The action of a letter on the selected row.
    fn action(&self, letter: char) -> Option<Action> {
        let reports = self.reports.value();
        if self.open.is_some() || self.screen == Screen::Chains {
            let (kind, key) = self.target_chain()?;
            return match letter {
                'p' => Some(Action::PauseChain(kind, key)),
                'r' => Some(Action::ResumeChain(kind, key)),
                'a' => Some(Action::Advance(kind, key)),
                _ => None,
            };
        }
        match (self.screen, letter) {
            (Screen::Queues, 'p') => Some(Action::PauseQueue(reports?.queues.get(self.cursor())?.queue.clone())),
            (Screen::Queues, 'r') => Some(Action::ResumeQueue(reports?.queues.get(self.cursor())?.queue.clone())),
            (Screen::Throttles, 'h') => Some(Action::Hold(self.throttles.value()?.get(self.cursor())?.name.clone())),
            (Screen::Throttles, 'r') => Some(Action::Release(self.throttles.value()?.get(self.cursor())?.name.clone())),
            (Screen::Workers, 'd') => Some(Action::Drain(reports?.workers.get(self.cursor())?.worker.clone())),
            (Screen::Workers, 'r') => Some(Action::ResumeWorker(reports?.workers.get(self.cursor())?.worker.clone())),
            _ => None,
        }
    }
}

/// Updates the state with an input at `clock`, by this machine's clock. Answers the new state and the effects.
pub fn update(mut state: State, clock: Time, input: Input) -> (State, Vec<Effect>) {
    let query = state.query();
    let mut effects = Vec::new();
    state.now = Time::from_millis(clock.as_millis().saturating_add(state.ahead));
    match input {
        Input::Key(key) => effects.extend(press(&mut state, key)),
        Input::Tick | Input::Resized => {}
        Input::Facts(facts) => learn(&mut state, clock, &facts),
        Input::NoLedger(why) => state.reports.take(Err(why), state.now),
        Input::QueryAnswer(asked, answer) if asked == query => take(&mut state, answer),
        // The answer to an earlier query.
        Input::QueryAnswer(..) => {}
        Input::Given(became) => {
            state.giving = state.giving.saturating_sub(1);
            state.said = Some((state.now, became));
        }
    }
    if state.said.as_ref().is_some_and(|(at, said)| said.is_ok() && state.now.since(*at) > SHOWN) {
        state.said = None;
    }
    if state.query() != query {
        effects.push(Effect::Ask(state.query()));
    }
    (state, effects)
}

/// Takes new facts of the status cache.
fn learn(state: &mut State, clock: Time, facts: &Facts) {
    if let Some(why) = &facts.ledger_why {
        state.reports.take(Err(why.clone()), state.now);
    } else if facts.now != Time::default() {
        let before = state.reports.value().map(|reports| reports.overview.now.shown());
        if before != Some(facts.now) {
            state.ahead = facts.now.as_millis().saturating_sub(clock.as_millis());
            state.now = facts.now;
        }
    } else {
        return;
    }
    match &facts.asked {
        BrokerStatus::Away(why) => state.broker.take(Err(why.clone()), state.now),
        // The broker has not been asked yet.
        BrokerStatus::Depths(depths) if depths.is_empty() => {}
        asked => state.broker.take(Ok(asked.clone()), facts.asked_at.unwrap_or(state.now)),
    }
    // The broker's last answer stays until there is another.
    let last = state.broker.value().cloned().unwrap_or_else(|| facts.asked.clone());
    let heard = state.reports.last.as_ref().map(|(_, heard)| *heard);
    let at = if facts.ledger_why.is_some() { heard } else { Some(facts.now) };
    let Some(at) = at else { return };
    let empty = Census::default();
    let census = facts.census.as_ref().map_or(&empty, |(census, _)| census);
    let with_last = Facts { asked: last, ..facts.clone() };
    let queues = queues(&with_last, census, &state.config);
    let reports = Reports {
        overview: overview(facts, &state.config),
        throttles: ThrottleFacts::all(facts, &queues, &state.config),
        queues,
        workers: facts
            .workers
            .iter()
            .map(|worker| WorkerReport::new(worker.clone(), facts.now, &facts.wall_clock))
            .collect(),
    };
    state.reports.last = Some((reports, at));
    if facts.ledger_why.is_none() {
        state.reports.away = None;
    }
    state.follow();
}

/// Takes the answer to a query.
fn take(state: &mut State, answer: Result<QueryAnswer, String>) {
    let now = state.now;
    match (answer, state.query()) {
        (Ok(QueryAnswer::Throttles(all)), _) => state.throttles.take(Ok(all), now),
        (Ok(QueryAnswer::Chains(rows, more)), _) => state.chains.take(Ok((rows, more)), now),
        (Ok(QueryAnswer::Chain(chain)), _) => state.chain.take(Ok(chain), now),
        (Ok(QueryAnswer::Runs(runs)), _) => state.runs.take(Ok(runs), now),
        (Err(why), Query::Throttles) => state.throttles.take(Err(why), now),
        (Err(why), Query::Chains(_)) => state.chains.take(Err(why), now),
        (Err(why), Query::Chain(..)) => state.chain.take(Err(why), now),
        (Err(why), Query::Runs(_)) => state.runs.take(Err(why), now),
        (Err(_), Query::Nothing) => {}
    }
    state.follow();
}

fn press(state: &mut State, key: Key) -> Option<Effect> {
    match key {
        Key::Interrupt => return Some(Effect::Quit),
        Key::Redraw => return Some(Effect::Redraw),
        _ => {}
    }
    if let Some(question) = state.question.take() {
        match question.press(key) {
            Answered::Open(question) => state.question = Some(question),
            Answered::Dropped => {}
            Answered::Confirmed(order) => {
                state.giving += 1;
                state.said = None;
                return Some(Effect::Give(order));
            }
        }
        return None;
    }
    state.said = None;
    if state.help {
        // Any key closes the help; a key of another screen also opens that screen.
        state.help = false;
        if matches!(key, Key::Esc | Key::Enter | Key::Char('?' | 'q')) {
            return None;
        }
    }
    match key {
        Key::Char('?') => state.help = true,
        // An order that is being given has its result within seconds; Ctrl-C does not wait for it.
        Key::Char('q') if state.open.is_none() && state.giving > 0 => {}
        Key::Char('q') if state.open.is_none() => return Some(Effect::Quit),
        Key::Char('q') | Key::Esc | Key::Backspace => close(state),
        Key::Char(digit @ '1'..='6') => go(state, Screen::ALL[digit as usize - '1' as usize]),
        Key::Tab => go(state, state.screen.moved(1)),
        Key::BackTab => go(state, state.screen.moved(Screen::ALL.len() - 1)),
        Key::Up | Key::Char('k') => step(state, |at| at.saturating_sub(1)),
        Key::Down | Key::Char('j') => step(state, |at| at.saturating_add(1)),
        Key::PageUp => step(state, |at| at.saturating_sub(PAGE)),
        Key::PageDown => step(state, |at| at.saturating_add(PAGE)),
        Key::Home => step(state, |_| 0),
        // A text that is only scrolled has no last row.
        Key::End if state.is_list() => step(state, |_| usize::MAX),
        Key::Enter => look(state),
        Key::Char('f') if state.open.is_none() => filter(state),
        Key::Char(' ') if state.open.is_none() && state.screen == Screen::Log => state.paused = !state.paused,
        Key::Char(letter) => order(state, letter),
        _ => {}
    }
    None
}

impl State {
    /// Whether the screen has rows to select.
    pub fn is_list(&self) -> bool {
        self.open.is_none() && self.screen != Screen::Overview
    }
}

fn go(state: &mut State, screen: Screen) {
    close(state);
    (state.screen, state.scroll) = (screen, 0);
    state.follow();
}

fn close(state: &mut State) {
    (state.open, state.chain, state.scroll) = (None, LastAnswer::default(), 0);
}

fn step(state: &mut State, to: impl Fn(usize) -> usize) {
    if state.is_list() {
        let names = state.names();
        let cursor = &mut state.cursors[state.screen as usize];
        cursor.go(to(cursor.at), &names);
    } else {
        state.scroll = to(state.scroll);
    }
}

/// Opens the selected chain.
fn look(state: &mut State) {
    if state.open.is_none()
        && let Some(chain) = state.target_chain()
    {
        (state.open, state.chain, state.scroll) = (Some(chain), LastAnswer::default(), 0);
    }
}

/// Switches the filter.
fn filter(state: &mut State) {
    match state.screen {
        Screen::Chains => {
            state.show = state.show.next();
            state.chains = LastAnswer::default();
        }
        Screen::Log => {
            state.verdict = (state.verdict + 1) % VERDICTS.len();
            (state.runs, state.paused) = (LastAnswer::default(), false);
        }
        _ => return,
    }
    state.cursors[state.screen as usize] = Cursor::default();
}

/// Opens the question for the action of a letter.
fn order(state: &mut State, letter: char) {
    let Some(action) = state.action(letter) else { return };
    if state.read_only {
        let words = format!("{}: not with --read-only", action.words());
        state.said = Some((state.now, Err(words)));
    } else {
        state.question = Some(Question::new(action));
    }
}
