//! `roundelay top`
//!
//! - `state`: the state, and how each key and answer changes it (pure).
//! - `order`: the orders, and the question that comes before each (pure).
//! - `draw`, `screens`, `table`, `text`: from the state to a screen (pure).
//! - `ask`: runs queries, and gives orders.

mod ask;
mod draw;
mod order;
mod screens;
mod state;
mod table;
#[cfg(test)]
mod tests;
mod text;

use std::io::{IsTerminal, stdout};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, read};
use roundelay_ledger::LedgerUrl;
use roundelay_model::clock::{Clock, parse_duration};
use tokio::signal::unix::SignalKind;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::fleet::current_user;
use super::{ConfigFile, screen, shutdown_on};
use ask::Poller;
use draw::{Paint, draw};
use order::Order;
use state::{Effect, Input, Key, Query, State, update};

/// The longest time between two drawings: ages are shown in seconds.
const TICK: Duration = Duration::from_secs(1);
/// How long tasks may take to end.
const FAREWELL: Duration = Duration::from_secs(2);

/// Shows on a terminal how everything is: what is late, why, what it did; and lets you stop it.
///
/// What is wrong, queues, throttles, late chains and why they do not run, workers, and the latest runs: the data of
/// `roundelay status` and the dashboard, on a terminal of 80×24 or more. Keys pause, hold, drain and bring forward, as
/// the commands do; each asks first. `?` shows all keys. NO_COLOR is respected.
#[derive(Args)]
pub struct Top {
    #[command(flatten)]
    config: ConfigFile,
    /// How often the ledger is asked.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = every)]
    every: Duration,
    /// Only look: no order can be given.
    #[arg(long)]
    read_only: bool,
    /// Who gives orders, for people who read them later.
    #[arg(long, value_name = "NAME", default_value_t = current_user())]
    by: String,
}

fn every(text: &str) -> Result<Duration, String> {
    let every = parse_duration(text)?;
    let possible = Duration::from_millis(200)..=Duration::from_secs(3_600);
    if possible.contains(&every) { Ok(every) } else { Err("from 200ms to 1h is possible".into()) }
}

impl Top {
    pub async fn run(self) -> anyhow::Result<()> {
        let Self { config, every, read_only, by } = self;
        let config = config.load()?;
        ensure!(
            stdout().is_terminal(),
            "standard output is no terminal, and `top` draws on one; `roundelay status` prints how everything is"
        );
        if let LedgerUrl::Sqlite(path) = &config.ledger.url {
            let absent = "a worker or `roundelay enroll` makes it; is ledger.url right?";
            ensure!(path.exists(), "there is no ledger at {}; {absent}", path.display());
        }
        let stop = shutdown_on(
            &[SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()],
            // Also a user who ends the program in a hurry needs a terminal that works.
            ratatui::restore,
        )?;
        let (to, inputs) = mpsc::unbounded_channel();
        let ((query, wants), (give, orders)) = (watch::channel(Query::Nothing), mpsc::unbounded_channel());
        let state = State::new(Arc::new(config.clone()), read_only, every, Clock::System.now());
        let asker = Poller { config, every, query: wants, orders, by, to: to.clone() };
        let stop_asking = CancellationToken::new();
        let mut asker = tokio::spawn(asker.run(stop_asking.clone()));
        // A panic of this thread restores it, too.
        let terminal = ratatui::try_init().context("failed to take over the terminal")?;
        let broken = Broken::watch();
        std::thread::spawn(move || read_keys(&to));
        let dashboard = Dashboard { terminal, state, query, give, paint: Paint { colours: colours() } };
        let shown = dashboard.show(inputs, &stop, &mut asker, &broken).await;
        ratatui::try_restore().context("failed to give the terminal back; `reset` does it")?;
        stop_asking.cancel();
        if !asker.is_finished() {
            let _ = timeout(FAREWELL, asker).await;
        }
        shown
    }
}

fn colours() -> bool {
    screen::colourful(&std::io::stdout())
}

/// The terminal, the state and the tasks behind it.
struct Dashboard {
    terminal: DefaultTerminal,
    state: State,
    query: watch::Sender<Query>,
    give: mpsc::UnboundedSender<Order>,
    paint: Paint,
}

impl Dashboard {
    /// Shows the screen until the user quits.
    async fn show(
        self,
        mut inputs: mpsc::UnboundedReceiver<Input>,
        stop: &CancellationToken,
        asker: &mut JoinHandle<()>,
        broken: &Broken,
    ) -> anyhow::Result<()> {
        let Self { mut terminal, mut state, query, give, paint } = self;
        let mut tick = tokio::time::interval(TICK);
        loop {
            terminal.draw(|frame| draw(&state, paint, frame)).context("failed to draw")?;
            let input = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                () = broken.token.cancelled() => {
                    let told = broken.told.get().map_or("", String::as_str);
                    bail!("a part of the program broke down, which is a bug; please report it: {told}");
                }
                _ = &mut *asker => bail!("a part of the program ended by itself, which is a bug; please report it"),
                input = inputs.recv() => match input {
                    Some(input) => input,
                    None => return Ok(()),
                },
                _ = tick.tick() => Input::Tick,
            };
            let effects;
            (state, effects) = update(state, Clock::System.now(), input);
            for effect in effects {
                match effect {
                    Effect::Quit if state.giving > 0 => {
                        bail!("an order was being given; whether it holds is not known: look at it again")
                    }
                    Effect::Quit => return Ok(()),
                    Effect::Redraw => terminal.clear().context("failed to draw")?,
                    Effect::Ask(wants) => {
                        query.send_replace(wants);
                    }
                    Effect::Give(order) => give.send(order).context("the order could not be given")?,
                }
            }
        }
    }
}

/// Reports a panic in another thread. The report must not write onto the screen, nor give the terminal back while this
/// thread draws.
struct Broken {
    told: Arc<OnceLock<String>>,
    token: CancellationToken,
}

impl Broken {
    fn watch() -> Self {
        let (drawing, restoring) = (std::thread::current().id(), std::panic::take_hook());
        let (told, token) = (Arc::<OnceLock<String>>::default(), CancellationToken::new());
        let this = Self { told: told.clone(), token: token.clone() };
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().id() == drawing {
                restoring(info);
            } else {
                let _ = told.set(info.to_string());
                token.cancel();
            }
        }));
        this
    }
}

/// Sends the pressed keys, from a thread of its own, because reading a key blocks. The thread ends with the program.
fn read_keys(to: &mpsc::UnboundedSender<Input>) {
    // When the terminal has gone, SIGHUP or the next drawing reports it.
    while let Ok(event) = read() {
        let input = match event {
            Event::Key(event) => key(event).map(Input::Key),
            Event::Resize(..) => Some(Input::Resized),
            _ => None,
        };
        if input.is_some_and(|input| to.send(input).is_err()) {
            return;
        }
    }
}

/// The meaning of a key.
fn key(KeyEvent { code, modifiers, kind, .. }: KeyEvent) -> Option<Key> {
    if kind == KeyEventKind::Release {
        return None;
    }
    if modifiers.contains(KeyModifiers::CONTROL) {
        return match code {
            KeyCode::Char('c') => Some(Key::Interrupt),
            KeyCode::Char('l') => Some(Key::Redraw),
            KeyCode::Char('h') => Some(Key::Backspace),
            _ => None,
        };
    }
    if modifiers.contains(KeyModifiers::ALT) {
        return None;
    }
    Some(match code {
        KeyCode::Char(letter) => Key::Char(letter),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Esc,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}
