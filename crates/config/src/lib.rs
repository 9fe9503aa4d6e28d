//! File + environment → checked settings.
//!
//! `raw` holds the shape of the file, `read` brings file and environment together and finds
//! the line of what is wrong, `secret` fetches what stands elsewhere, and `check` turns raw settings into these in one
//! step: whatever is impossible is said at once, all of it, with file, line and key.
//!
//! `roundelay.example.toml` documents every setting with its default; a test holds it to this.
//!
//! A job does not pass through it: the engine looks up the settings of the job's kind and queue.
//!
//! Layer: on `ledger`, `broker` and `handler`, whose settings it reads, and which say themselves whether a URL or a
//! template can be used.

mod api;
mod calendars;
pub mod change;
mod check;
mod encryption;
mod error;
mod exec;
mod fair;
mod fresh;
mod load;
mod model;
mod problems;
mod raw;
mod read;
mod reasons;
mod recurrence;
mod redacted;
#[cfg(test)]
mod reference;
mod roster;
mod secret;
mod settings;
#[cfg(test)]
mod tests;
mod throttle;
pub mod tracing;
mod unpaced;

pub use api::{ApiSettings, is_loopback};
pub use calendars::{CalendarSettings, SqlCalendar, doubtful_calendars};
pub use check::{MAX_HELD, internal_kind};
pub use error::{ConfigError, Problem};
pub use fair::MAX_QUOTA;
pub use fresh::{BudgetSettings, Calls, FreshSettings, weight_of};
pub use model::{ChangeSettings, ModelSettings, SlowSpell};
pub use problems::{MAX_TIMEOUT, listen_address};
pub use raw::UniqueUntil;
pub use reasons::Reconcile;
pub use recurrence::{Length, OwnSchedule, Recurrence, TimeBox, at_time};
pub use roster::{Format, RosterDatabase, RosterSettings, RosterSource};
pub use settings::{
    CatchUpSettings, Config, HandlerSettings, INTERNAL, KindSettings, LedgerSettings, QueueSettings, SpawnSettings,
    Takeover, Unique, WorkerSettings, is_internal, schedule_of, schedule_of_kind,
};
pub use throttle::{check_limits, throttles_of};
pub use tracing::TracingSettings;
pub use unpaced::{Unpaced, unpaced};
