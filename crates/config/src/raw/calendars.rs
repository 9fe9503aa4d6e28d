//! Sets of days and hours that kinds and chains name: `[calendars]`.

use roundelay_model::schedule::OneOrMany;
use roundelay_model::secret::Secret;
use serde::Deserialize;

use super::duration::{HumanDuration, secs};

/// Days, or certain hours of them. Its days are all that `dates`, `weekdays`, `ics` and `sql` name; with none of them,
/// each day.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Calendar {
    /// Days, such as `2026-12-25`, `2026-12-24..2027-01-01`, or `12-25` for each year.
    pub dates: Vec<String>,
    /// Days of the week, such as `mon-fri` or `mon,wed`.
    pub weekdays: Option<String>,
    /// A file of the format iCalendar, or its text. Events of whole days are days; events with times are those times,
    /// whatever `hours` says.
    pub ics: Option<String>,
    /// A query whose rows are days, written as in `dates`: its only column, or the column `day`.
    pub sql: Option<CalendarSql>,
    /// Which hours of these days, such as `09:00-17:00`, or a list. Hours such as `22:00-06:00` go on past midnight.
    /// Without it, all hours.
    pub hours: Option<OneOrMany>,
    /// The time zone of its days and hours. Without it, that of the kind or chain that names the calendar.
    pub zone: Option<String>,
    /// Calendars that are taken out.
    pub except: Option<OneOrMany>,
}

/// A query whose rows are days.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct CalendarSql {
    /// The database: `sqlite://PATH` or `postgres://…`.
    pub url: Secret,
    /// One SELECT.
    pub query: String,
    /// How long after one reading the next begins.
    #[serde(default = "hour")]
    #[cfg_attr(test, schemars(extend("x-least" = "1s", "x-most" = "3660days")))]
    pub every: HumanDuration,
}

fn hour() -> HumanDuration {
    secs(3_600)
}
