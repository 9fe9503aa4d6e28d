//! Progress of a command, on standard error, and only on a terminal.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, WeakProgressBar};
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::screen::visible;

/// A wait that is shorter is not announced.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time between two frames of an animation.
const BEAT: Duration = Duration::from_millis(250);

/// The bar that is drawn at the moment.
static DRAWN: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

/// A bar of `steps` steps, in the form of `template`.
pub fn bar(steps: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(steps), target()).with_style(style(template));
    remember(&bar);
    bar
}

/// Names what the command waits for when that takes longer than a second, until this is dropped.
pub struct Waiting {
    bar: ProgressBar,
    _show: Option<AbortOnDropHandle<()>>,
}

/// Begins to wait for `what`, as in `pausing 12,000 chains`.
pub fn waiting(what: &str) -> Waiting {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    let bar = bar.with_style(style("{spinner} {elapsed} {wide_msg}")).with_message(visible(what).into_owned());
    let show = std::io::stderr().is_terminal().then(|| {
        let bar = bar.clone();
        AbortOnDropHandle::new(tokio::spawn(async move {
            sleep(PATIENCE).await;
            bar.set_draw_target(target());
            remember(&bar);
            bar.enable_steady_tick(BEAT);
        }))
    });
    Waiting { bar, _show: show }
}

impl Waiting {
    /// The command waits for another thing now.
    pub fn now(&self, what: &str) {
        self.bar.set_message(visible(what).into_owned());
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Writes to the terminal without the bar in the way.
pub fn aside<R>(write: impl FnOnce() -> R) -> R {
    let drawn = DRAWN.lock().as_ref().and_then(WeakProgressBar::upgrade);
    match drawn {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Standard error for the log, without the bar in the way.
pub struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        aside(|| std::io::stderr().write(bytes))
    }

    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        aside(|| std::io::stderr().write_all(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

fn target() -> ProgressDrawTarget {
    if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn remember(bar: &ProgressBar) {
    *DRAWN.lock() = Some(bar.downgrade());
}
