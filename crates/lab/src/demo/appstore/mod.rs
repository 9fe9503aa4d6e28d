//! A crawler of two app stores, kept apart by platform: a day and a half in half a minute.

pub mod judge;
mod stores;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use parking_lot::Mutex;
use roundelay_config::{Config, Format, at_time};
use roundelay_engine::enroll::Enroller;
use roundelay_engine::roster::rows;
use roundelay_engine::{Connections, StartError};
use roundelay_model::clock::{Time, short_duration};
use roundelay_model::job::RunNow;
use roundelay_model::schedule::Pace;

use super::newest::{ALONE, tell_left_out};
use super::scale::{scaled, shorter};
use super::stage::{Judged, Language, PREFIX, Stage, System};
use judge::{Call, Limit, Record, SyncRequest, What, judge};
use stores::Stores;

/// How much of the plan a demo covers, a day and a half, and how many of the minutes in which the stores' limits count.
const DAYS: Duration = Duration::from_secs(36 * 3_600);
const MINUTES: Duration = Duration::from_secs(6 * 60);
/// The shortest interval in the demo.
const SECOND: Duration = Duration::from_secs(1);
const STORES: [&str; 2] = ["ios", "android"];
/// The syncs that the stores allow in a minute, by their own rules and not by the configuration that is judged.
const SYNCS: [usize; 2] = [5, 5];
const CHARTS: [usize; 2] = [24, 37];
const EVERY_CHART: Duration = Duration::from_secs(6 * 3_600);
/// The store that goes down, and when, as shares of the demo.
const DOWN: &str = "ios";
const DOWN_FROM: f64 = 0.5;
const DOWN_TO: f64 = 0.7;
/// When a user asks for a sync, as shares of the demo.
const WISHES: [f64; 4] = [0.2, 0.3, 0.4, 0.8];
/// The wall clock begins at midnight, when the chains begin.
const SHOWN: &str = "2026-01-05T00:00:00Z";

/// The stores and the record of the demo.
pub struct Appstore {
    days: NonZeroU32,
    minutes: u32,
    /// How many calls the record keeps; with `None`, all.
    most: Option<usize>,
    stores: Option<Arc<Stores>>,
    listed: Vec<(String, String)>,
    apps: Vec<(String, String)>,
    down: Mutex<Option<(Time, Time)>>,
    wishes: Mutex<Vec<SyncRequest>>,
}

impl Appstore {
    /// The plan of a day and a half, and six of the stores' minutes, in `length`.
    pub fn new(length: Duration) -> Self {
        let times = |shown: Duration| {
            let times = shown.as_millis().div_ceil(length.as_millis().max(1));
            u32::try_from(times).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX)
        };
        Self {
            days: times(DAYS),
            minutes: times(MINUTES).get(),
            most: None,
            stores: None,
            listed: Vec::new(),
            apps: Vec::new(),
            down: Mutex::default(),
            wishes: Mutex::default(),
        }
    }

    fn minute(&self) -> Duration {
        shorter(Duration::from_secs(60), self.minutes, Duration::ZERO)
    }

    fn record(&self, stage: &Stage) -> Record {
        let limits = |allow: [usize; 2]| {
            let limit = |allow| Limit { allow, per: self.minute() };
            STORES.iter().zip(allow).map(|(store, allow)| ((*store).to_owned(), limit(allow))).collect()
        };
        let down = *self.down.lock();
        let (calls, from) = self.kept(stage);
        Record {
            calls,
            syncs: limits(SYNCS),
            charts: limits(CHARTS),
            listed: self.listed.iter().cloned().collect(),
            chart_every: EVERY_CHART / self.days.get(),
            down: down.map(|(from, to)| (DOWN.to_owned(), from, to)),
            wishes: self.wishes.lock().clone(),
            from,
            to: if stage.is_ended() { stage.from } else { stage.to },
        }
    }

    /// The kept calls, and when the record begins. A job with a missing call is not judged: it began before the record.
    fn kept(&self, stage: &Stage) -> (Vec<Call>, Time) {
        let mut calls = self.calls();
        let left_out = self.stores.as_ref().map_or(0, |stores| stores.left_out());
        match calls.first().map(|oldest| oldest.began) {
            Some(from) if left_out > 0 => {
                calls.retain(|call| call.job.started > from);
                (calls, from)
            }
            _ => (calls, stage.from),
        }
    }

    fn calls(&self) -> Vec<Call> {
        self.stores.as_ref().map(|stores| stores.calls()).unwrap_or_default()
    }

    /// A user asks for an app of each store, preferably one that is not available somewhere and was not asked for yet,
    /// because a sync on demand must know such countries.
    async fn wish(&self, stage: &Stage) -> Result<(), StartError> {
        let calls = self.calls();
        for store in STORES {
            let asked = self.wishes.lock().clone();
            let fresh = |app: &&str| !asked.iter().any(|wish| wish.refused.is_none() && wish.app == **app);
            let known = calls.iter().filter(|call| call.store == store && call.status == 404);
            let known = known.map(|call| call.app.as_str());
            let listed = self.apps.iter().filter(|(of, _)| of == store).map(|(_, app)| app.as_str());
            let Some(app) = known.chain(listed).find(fresh) else { continue };
            let refused = on_demand(stage, store, app).await?;
            let wish = SyncRequest { store: store.into(), app: app.into(), at: stage.connections.clock.now(), refused };
            self.wishes.lock().push(wish);
        }
        Ok(())
    }
}

/// Runs the chain of an app on the queue for syncs on demand; answers why the run was refused, if it was.
async fn on_demand(stage: &Stage, store: &str, app: &str) -> Result<Option<String>, StartError> {
    let (key, queue) = (format!("{store}/{app}"), format!("{PREFIX}sync-on-demand-{store}"));
    let mut enroller = Enroller::new(&stage.config, stage.connections.clone(), "sync-app", None, true)?;
    // An app without a chain runs once.
    let payload = serde_json::json!({ "platform": store, "app_id": app, "class": "tracked" });
    let asked = RunNow { queue: Some(queue), ..RunNow::default() };
    let answer = enroller.run_once(&key, Some(&payload), &asked, None).await?;
    Ok(answer.why_not("sync-app", &key))
}

/// The cells of two columns, row by row.
fn cells(text: &str, columns: [&str; 2]) -> Result<Vec<(String, String)>, String> {
    let rows = rows(Format::Csv, text.as_bytes())?.flatten();
    let cell = |row: &roundelay_engine::roster::Row, name: &str| {
        row.get(name).and_then(|cell| cell.as_str()).unwrap_or_default().to_owned()
    };
    Ok(rows.map(|(_, row)| (cell(&row, columns[0]), cell(&row, columns[1]))).collect())
}

#[async_trait]
impl System for Appstore {
    fn name(&self) -> &'static str {
        "appstore"
    }

    fn files(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("roundelay.toml", include_str!("../../../examples/appstore/roundelay.toml")),
            ("apps.csv", include_str!("../../../examples/appstore/apps.csv")),
            ("charts.csv", include_str!("../../../examples/appstore/charts.csv")),
            ("handler.py", include_str!("../../../examples/appstore/handler.py")),
        ]
    }

    fn language(&self) -> Language {
        Language::Python
    }

    fn told(&self) -> String {
        format!(
            "A minute of the stores' limits and of backoffs is {}, and a day of the plan {}; what is looked after every few \
             minutes is so every second.",
            short_duration(self.minute()),
            short_duration(shorter(Duration::from_secs(86_400), self.days.get(), Duration::ZERO)),
        )
    }

    /// A sync that waits for a slot of a store that was down is late by some of its backoffs.
    fn patience(&self) -> Duration {
        self.minute() * 4
    }

    fn alone(&mut self) {
        self.most = Some(ALONE);
    }

    fn configuration(&self, text: &str) -> Result<String, String> {
        scaled(text, |path, length| match path {
            ["kinds", _, "every" | "jitter" | "cooldown"] | ["kinds", _, "fresh", "min" | "max"] => {
                shorter(length, self.days.get(), Duration::ZERO)
            }
            ["kinds", _, "reconcile", ..] | ["reasons", _, "backoff", ..] => shorter(length, self.days.get(), SECOND),
            _ => shorter(length, self.minutes, Duration::ZERO),
        })
    }

    fn prepare(&mut self, config: &mut Config, connections: &Connections) -> Result<(), String> {
        config.pace_wall_clock(Pace { origin: connections.clock.now(), shown: at_time(SHOWN)?, speed: self.days });
        let file = |name: &str| self.files().iter().find(|(file, _)| *file == name).map_or("", |(_, text)| text);
        let (listed, apps) = (file("charts.csv"), file("apps.csv"));
        let charts = rows(Format::Csv, listed.as_bytes())?.flatten().map(|(_, row)| {
            let cell = |name: &str| row.get(name).and_then(|cell| cell.as_str()).unwrap_or_default().to_owned();
            (cell("platform"), format!("{}/{}", cell("country"), cell("chart")))
        });
        self.listed = charts.collect();
        self.apps = cells(apps, ["platform", "app_id"])?;
        self.stores = Some(Stores::new(config, connections, self.most));
        Ok(())
    }

    fn upstream(&self) -> Router {
        self.stores.clone().map(Stores::router).unwrap_or_default()
    }

    async fn plays(&self, stage: &Stage) -> Result<(), StartError> {
        let down = |store| self.stores.iter().for_each(|stores| stores.down(store));
        for share in WISHES.into_iter().filter(|share| *share < DOWN_FROM) {
            stage.at(share).await;
            self.wish(stage).await?;
        }
        stage.at(DOWN_FROM).await;
        down(Some(DOWN));
        let from = stage.connections.clock.now();
        stage.at(DOWN_TO).await;
        down(None);
        *self.down.lock() = Some((from, stage.connections.clock.now()));
        for share in WISHES.into_iter().filter(|share| *share > DOWN_TO) {
            stage.at(share).await;
            self.wish(stage).await?;
        }
        stage.at(1.0).await;
        Ok(())
    }

    async fn judged(&self, stage: &Stage) -> Result<Judged, StartError> {
        let record = self.record(stage);
        let (violations, figures) = judge(&record);
        let mut figures = serde_json::to_value(&figures).unwrap_or_default();
        let new = |call: &&Call| call.app.starts_with("new-") && call.what == What::Phase("identity".into());
        figures["syncs_of_discovered_apps"] = record.calls.iter().filter(new).count().into();
        let left_out = self.stores.as_ref().map_or(0, |stores| stores.left_out());
        tell_left_out(&mut figures, left_out, Some(record.from));
        Ok(Judged { forked: self.stores.as_ref().map_or(0, |stores| stores.forked()), violations, figures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half a minute: five seconds for a minute of the limits, twenty for a day of the plan.
    #[test]
    fn limits_shrink_by_minutes_and_the_plan_by_days() {
        let appstore = Appstore::new(Duration::from_secs(30));
        let text = appstore.configuration(appstore.files()[0].1).unwrap();
        let config = Config::parse(&text, "appstore", []).unwrap();
        let sync = &config.kinds["sync-app"];
        let recurrence = sync.recurrence.as_ref().unwrap();
        let fresh = recurrence.fresh.as_ref().unwrap();
        assert_eq!((fresh.min, fresh.middle(), fresh.max), (SECOND * 5, SECOND * 20, SECOND * 80));
        assert_eq!(fresh.budgets[0].rate(&config.throttles), Some(8.0 / 5.0));
        assert_eq!((recurrence.cooldown, sync.timeout), (Duration::from_millis(834), Duration::from_secs(25)));
        assert_eq!(sync.reconcile.as_ref().unwrap().every, SECOND);
        for (store, charts) in STORES.iter().zip(CHARTS) {
            let window = |name: &str| config.throttles[&format!("{name}-{store}")].limits.window;
            assert_eq!((window("sync").allow, window("sync").per), (5, Duration::from_secs(5)));
            assert_eq!((window("charts").allow as usize, window("charts").per), (charts, Duration::from_secs(5)));
        }
        assert_eq!(Appstore::new(Duration::from_secs(10)).minute(), Duration::from_millis(1_667));
    }
}
