//! What the screen knows, and what becomes of it with each key and each answer (pure).
//!
//! Nothing is reckoned here: figures and words are those of [`roundelay_admin::inspect`]. What cannot be asked any more
//! stays as it was, with the time since when.

use std::sync::Arc;
use std::time::Duration;

use roundelay_admin::inspect::board::Facts;
use roundelay_admin::inspect::broker::Asked;
use roundelay_admin::inspect::chain::{AttemptReport, Entity};
use roundelay_admin::inspect::overview::{Overview, overview, queues};
use roundelay_admin::inspect::queues::QueueReport;
use roundelay_admin::inspect::throttles::ThrottleReport;
use roundelay_admin::inspect::workers::WorkerReport;
use roundelay_config::Config;
use roundelay_ledger::Census;
use roundelay_model::clock::Time;

use super::order::{Answered, Deed, Order, Question};

/// For how long it is shown what became of an order.
const SHOWN: Duration = Duration::from_secs(15);
/// Rows that a page key goes over.
const PAGE: usize = 10;
/// The shortest time without an answer of the ledger that is worth a word.
const SLOW: Duration = Duration::from_secs(6);
/// Likewise of the broker, which is asked every five seconds.
const BROKER_SLOW: Duration = Duration::from_secs(15);

/// A key, as far as one means anything here.
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
    /// To the one before.
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
    /// Deletes what was typed last.
    Backspace,
    /// Ends at once, whatever is asked: Ctrl-C.
    Interrupt,
    /// Draws anew what something else has drawn over: Ctrl-L.
    Redraw,
}

/// A screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screen {
    /// All in figures, and what is wrong.
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
    /// All of them, in the order of their keys.
    pub const ALL: [Self; 6] = [Self::Overview, Self::Queues, Self::Throttles, Self::Chains, Self::Workers, Self::Log];

    /// What its tab says.
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
    /// Those that are overdue, and those in quarantine; those that wait longest first.
    Late,
    /// Those that an operator has paused.
    Paused,
    /// Those that run.
    Running,
    /// All.
    All,
}

impl Show {
    const fn next(self) -> Self {
        match self {
            Self::Late => Self::Paused,
            Self::Paused => Self::Running,
            Self::Running => Self::All,
            Self::All => Self::Late,
        }
    }
}

/// Which runs are shown.
pub const VERDICTS: [Option<&str>; 4] = [None, Some("failed"), Some("retried"), Some("lost")];

/// What has to be asked for beside the board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Nothing.
    Nothing,
    /// All throttles.
    Throttles,
    /// A page of chains.
    Chains(Show),
    /// One chain, by kind and key.
    Chain(String, String),
    /// The latest runs with such a verdict.
    Runs(Option<&'static str>),
}

/// A chain among others.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Which handler.
    pub kind: String,
    /// Which entity.
    pub key: String,
    /// Its platform queue.
    pub queue: String,
    /// What it is doing, in a word.
    pub doing: &'static str,
    /// When it is due, or was.
    pub due: Time,
    /// How late it is, if it is due and does not run.
    pub late: Option<Duration>,
}

/// What was answered.
#[derive(Clone, Debug)]
pub enum Answer {
    /// All throttles.
    Throttles(Vec<ThrottleReport>),
    /// Chains, and whether there are more.
    Chains(Vec<Row>, bool),
    /// One chain.
    Chain(Box<Entity>),
    /// Runs, latest first.
    Runs(Vec<AttemptReport>),
}

/// What comes in.
#[derive(Clone, Debug)]
pub enum Input {
    /// A key was pressed.
    Key(Key),
    /// Time goes by.
    Tick,
    /// The terminal has another size.
    Resized,
    /// What is known of everything.
    Facts(Arc<Facts>),
    /// The ledger cannot be opened.
    NoLedger(String),
    /// What was wanted, or why it cannot be asked for.
    Answer(Wanted, Result<Answer, String>),
    /// What became of an order, in words.
    Given(Result<String, String>),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Ask for this from now on, and for nothing else.
    Ask(Wanted),
    /// Give this order.
    Give(Order),
    /// Draw all of the screen anew.
    Redraw,
    /// End.
    Quit,
}

/// Something that was answered, and may not be any more.
#[derive(Clone, Debug)]
pub struct Known<T> {
    /// The last answer, and when it came.
    pub last: Option<(T, Time)>,
    /// Since when there is none, and why.
    pub away: Option<(Time, String)>,
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self { last: None, away: None }
    }
}

impl<T> Known<T> {
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

/// What was made of the board's facts.
#[derive(Clone, Debug)]
pub struct Board {
    /// How everything is.
    pub overview: Overview,
    /// The queues, with what the broker has last told of them.
    pub queues: Vec<QueueReport>,
    /// The workers.
    pub workers: Vec<WorkerReport>,
}

/// The row that is chosen: by its name, since rows come and go above it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Its place.
    pub at: usize,
    name: Option<String>,
}

impl Cursor {
    /// Goes with the row of its name, or stays at its place when that has gone.
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

/// What the screen knows.
#[derive(Clone, Debug)]
pub struct State {
    /// The workers' configuration.
    pub config: Arc<Config>,
    /// Nothing can be ordered.
    pub read_only: bool,
    /// How often it is asked.
    pub every: Duration,
    /// The time, by the ledger's clock as far as that is known.
    pub now: Time,
    /// By how many milliseconds the ledger's clock is ahead of this machine's.
    ahead: i64,
    /// Since when it runs.
    pub begun: Time,
    /// What is shown.
    pub screen: Screen,
    /// The keys are shown in its place.
    pub help: bool,
    /// Which chains.
    pub show: Show,
    /// Which runs: a place in [`VERDICTS`].
    pub verdict: usize,
    /// The log stands still.
    pub paused: bool,
    /// The rows that are chosen, by screen.
    pub cursors: [Cursor; 6],
    /// Lines that are scrolled over, where there is nothing to choose.
    pub scroll: usize,
    /// The chain that is looked at, by kind and key.
    pub open: Option<(String, String)>,
    /// What is known of everything, by the ledger's answers.
    pub board: Known<Board>,
    /// What the broker has said.
    pub broker: Known<Asked>,
    /// The throttles.
    pub throttles: Known<Vec<ThrottleReport>>,
    /// The chains, and whether there are more.
    pub chains: Known<(Vec<Row>, bool)>,
    /// The chain that is looked at.
    pub chain: Known<Box<Entity>>,
    /// The runs.
    pub runs: Known<Vec<AttemptReport>>,
    /// What is asked.
    pub question: Option<Question>,
    /// Orders of which it is not known what became of them.
    pub giving: usize,
    /// What became of the last one, and when.
    pub said: Option<(Time, Result<String, String>)>,
}

impl State {
    /// Nothing is known yet, at `now` by this machine's clock.
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
            board: Known::default(),
            broker: Known::default(),
            throttles: Known::default(),
            chains: Known::default(),
            chain: Known::default(),
            runs: Known::default(),
            question: None,
            giving: 0,
            said: None,
        }
    }

    /// What has to be asked for.
    pub fn wanted(&self) -> Wanted {
        match (&self.open, self.screen) {
            (Some((kind, key)), _) => Wanted::Chain(kind.clone(), key.clone()),
            (None, Screen::Throttles) => Wanted::Throttles,
            (None, Screen::Chains) => Wanted::Chains(self.show),
            (None, Screen::Log) if !self.paused => Wanted::Runs(VERDICTS[self.verdict]),
            _ => Wanted::Nothing,
        }
    }

    /// For how long the ledger has said nothing, if that is too long.
    pub fn slow(&self) -> Option<Duration> {
        let heard = self.board.last.as_ref().map_or(self.begun, |(_, heard)| *heard);
        let silent = self.now.since(heard);
        (silent > SLOW.max(self.every * 3)).then_some(silent)
    }

    /// For how long the broker has said nothing, if that is too long.
    pub fn broker_slow(&self) -> Option<Duration> {
        let silent = self.now.since(self.broker.last.as_ref()?.1);
        (silent > BROKER_SLOW.max(self.every * 3)).then_some(silent)
    }

    /// The chosen row of the screen.
    pub fn cursor(&self) -> usize {
        self.cursors[self.screen as usize].at
    }

    /// The names of the screen's rows.
    fn names(&self) -> Vec<String> {
        let of_chain = |kind: &str, key: &str| format!("{kind}\n{key}");
        let board = self.board.value();
        match self.screen {
            Screen::Overview => Vec::new(),
            Screen::Queues => board.iter().flat_map(|of| &of.queues).map(|queue| queue.queue.clone()).collect(),
            Screen::Throttles => self.throttles.value().into_iter().flatten().map(|of| of.name.clone()).collect(),
            Screen::Chains => {
                let chains = self.chains.value().into_iter().flat_map(|(rows, _)| rows);
                chains.map(|row| of_chain(&row.kind, &row.key)).collect()
            }
            Screen::Workers => board.iter().flat_map(|of| &of.workers).map(|of| of.worker.clone()).collect(),
            Screen::Log => self.runs.value().into_iter().flatten().map(|run| run.fence.to_string()).collect(),
        }
    }

    fn follow(&mut self) {
        let names = self.names();
        // Who looks at the newest run wants to see the next.
        let live = self.screen == Screen::Log && !self.paused && self.cursor() == 0;
        let cursor = &mut self.cursors[self.screen as usize];
        if live { cursor.go(0, &names) } else { cursor.follow(&names) }
    }

    /// The chain that an order is for: the one that is looked at, else the chosen one.
    fn chain_meant(&self) -> Option<(String, String)> {
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

    /// What a letter orders here, of what is chosen.
    fn deed(&self, letter: char) -> Option<Deed> {
        let board = self.board.value();
        if self.open.is_some() || self.screen == Screen::Chains {
            let (kind, key) = self.chain_meant()?;
            return match letter {
                'p' => Some(Deed::PauseChain(kind, key)),
                'r' => Some(Deed::ResumeChain(kind, key)),
                'a' => Some(Deed::Advance(kind, key)),
                _ => None,
            };
        }
        match (self.screen, letter) {
            (Screen::Queues, 'p') => Some(Deed::PauseQueue(board?.queues.get(self.cursor())?.queue.clone())),
            (Screen::Queues, 'r') => Some(Deed::ResumeQueue(board?.queues.get(self.cursor())?.queue.clone())),
            (Screen::Throttles, 'h') => Some(Deed::Hold(self.throttles.value()?.get(self.cursor())?.name.clone())),
            (Screen::Throttles, 'r') => Some(Deed::Release(self.throttles.value()?.get(self.cursor())?.name.clone())),
            (Screen::Workers, 'd') => Some(Deed::Drain(board?.workers.get(self.cursor())?.worker.clone())),
            (Screen::Workers, 'r') => Some(Deed::ResumeWorker(board?.workers.get(self.cursor())?.worker.clone())),
            _ => None,
        }
    }
}

/// What becomes of the state with what comes in at `clock`, by this machine's clock, and what is to be done.
pub fn update(mut state: State, clock: Time, input: Input) -> (State, Vec<Effect>) {
    let wanted = state.wanted();
    let mut effects = Vec::new();
    state.now = Time::from_millis(clock.as_millis().saturating_add(state.ahead));
    match input {
        Input::Key(key) => effects.extend(press(&mut state, key)),
        Input::Tick | Input::Resized => {}
        Input::Facts(facts) => learn(&mut state, clock, &facts),
        Input::NoLedger(why) => state.board.take(Err(why), state.now),
        Input::Answer(asked, answer) if asked == wanted => take(&mut state, answer),
        // It was asked for before something else was wanted.
        Input::Answer(..) => {}
        Input::Given(became) => {
            state.giving = state.giving.saturating_sub(1);
            state.said = Some((state.now, became));
        }
    }
    if state.said.as_ref().is_some_and(|(at, said)| said.is_ok() && state.now.since(*at) > SHOWN) {
        state.said = None;
    }
    if state.wanted() != wanted {
        effects.push(Effect::Ask(state.wanted()));
    }
    (state, effects)
}

/// Takes up what is known of everything.
fn learn(state: &mut State, clock: Time, facts: &Facts) {
    if let Some(why) = &facts.ledger_why {
        state.board.take(Err(why.clone()), state.now);
    } else if facts.now != Time::default() {
        let before = state.board.value().map(|board| board.overview.now.shown());
        if before != Some(facts.now) {
            state.ahead = facts.now.as_millis().saturating_sub(clock.as_millis());
            state.now = facts.now;
        }
    } else {
        return;
    }
    match &facts.asked {
        Asked::Away(why) => state.broker.take(Err(why.clone()), state.now),
        // Before the broker was asked for the first time.
        Asked::Depths(depths) if depths.is_empty() => {}
        asked => state.broker.take(Ok(asked.clone()), facts.asked_at.unwrap_or(state.now)),
    }
    // What the broker has last said stands until it says something else.
    let last = state.broker.value().cloned().unwrap_or_else(|| facts.asked.clone());
    let heard = state.board.last.as_ref().map(|(_, heard)| *heard);
    let at = if facts.ledger_why.is_some() { heard } else { Some(facts.now) };
    let Some(at) = at else { return };
    let empty = Census::default();
    let census = facts.census.as_ref().map_or(&empty, |(census, _)| census);
    let with_last = Facts { asked: last, ..facts.clone() };
    let board = Board {
        overview: overview(facts, &state.config),
        queues: queues(&with_last, census, &state.config),
        workers: facts
            .workers
            .iter()
            .map(|worker| WorkerReport::new(worker.clone(), facts.now, &facts.calendar))
            .collect(),
    };
    state.board.last = Some((board, at));
    if facts.ledger_why.is_none() {
        state.board.away = None;
    }
    state.follow();
}

/// Takes up what was wanted.
fn take(state: &mut State, answer: Result<Answer, String>) {
    let now = state.now;
    match (answer, state.wanted()) {
        (Ok(Answer::Throttles(all)), _) => state.throttles.take(Ok(all), now),
        (Ok(Answer::Chains(rows, more)), _) => state.chains.take(Ok((rows, more)), now),
        (Ok(Answer::Chain(chain)), _) => state.chain.take(Ok(chain), now),
        (Ok(Answer::Runs(runs)), _) => state.runs.take(Ok(runs), now),
        (Err(why), Wanted::Throttles) => state.throttles.take(Err(why), now),
        (Err(why), Wanted::Chains(_)) => state.chains.take(Err(why), now),
        (Err(why), Wanted::Chain(..)) => state.chain.take(Err(why), now),
        (Err(why), Wanted::Runs(_)) => state.runs.take(Err(why), now),
        (Err(_), Wanted::Nothing) => {}
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
            Answered::Meant(order) => {
                state.giving += 1;
                state.said = None;
                return Some(Effect::Give(order));
            }
        }
        return None;
    }
    state.said = None;
    if state.help {
        // Any key leads back, and those that lead elsewhere go there.
        state.help = false;
        if matches!(key, Key::Esc | Key::Enter | Key::Char('?' | 'q')) {
            return None;
        }
    }
    match key {
        Key::Char('?') => state.help = true,
        // An order that is being given has its answer within seconds; whoever cannot wait interrupts.
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
        // There is no end of what is only scrolled.
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
    /// Whether there is something to choose.
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
    (state.open, state.chain, state.scroll) = (None, Known::default(), 0);
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

/// Opens the chosen chain.
fn look(state: &mut State) {
    if state.open.is_none()
        && let Some(chain) = state.chain_meant()
    {
        (state.open, state.chain, state.scroll) = (Some(chain), Known::default(), 0);
    }
}

/// Shows others.
fn filter(state: &mut State) {
    match state.screen {
        Screen::Chains => {
            state.show = state.show.next();
            state.chains = Known::default();
        }
        Screen::Log => {
            state.verdict = (state.verdict + 1) % VERDICTS.len();
            (state.runs, state.paused) = (Known::default(), false);
        }
        _ => return,
    }
    state.cursors[state.screen as usize] = Cursor::default();
}

/// Asks whether what a letter means is meant.
fn order(state: &mut State, letter: char) {
    let Some(deed) = state.deed(letter) else { return };
    if state.read_only {
        let words = format!("{}: not with --read-only", deed.words());
        state.said = Some((state.now, Err(words)));
    } else {
        state.question = Some(Question::new(deed));
    }
}
