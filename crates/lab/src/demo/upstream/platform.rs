//! One platform: its packages, its rate limit, its counts.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

const WINDOW: Duration = Duration::from_secs(1);

/// The packages and the limit of a platform.
#[derive(Clone, Debug, Default)]
pub struct PlatformSettings {
    /// How many calls the platform allows in any one second.
    pub allow: usize,
    /// Its packages: name → version.
    pub packages: HashMap<Box<str>, Box<str>>,
}

/// The record of a platform so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlatformStats {
    /// Calls answered with a version.
    pub ok: u64,
    /// Calls answered with 404.
    pub not_found: u64,
    /// Calls refused by the rate limit, with 429.
    pub too_many: u64,
    /// Calls answered with 500.
    pub broken: u64,
    /// Calls that the rate limit let pass, in the last second.
    pub last_second: usize,
    /// The most calls that the rate limit let pass in any one second.
    pub busiest_second: usize,
}

#[derive(Debug)]
pub struct Platform {
    settings: PlatformSettings,
    window: Mutex<Window>,
    ok: AtomicU64,
    not_found: AtomicU64,
    too_many: AtomicU64,
    broken: AtomicU64,
}

/// An exact window: it remembers every call of the last second, and so admits `allow` in any window.
#[derive(Debug, Default)]
struct Window {
    admitted: VecDeque<Instant>,
    busiest: usize,
}

impl Window {
    fn admit(&mut self, allow: usize, now: Instant) -> bool {
        self.forget(now);
        if self.admitted.len() >= allow {
            return false;
        }
        self.admitted.push_back(now);
        self.busiest = self.busiest.max(self.admitted.len());
        true
    }

    fn forget(&mut self, now: Instant) {
        while self.admitted.front().is_some_and(|first| now.saturating_duration_since(*first) >= WINDOW) {
            self.admitted.pop_front();
        }
    }
}

impl Platform {
    pub fn new(settings: PlatformSettings) -> Self {
        Self {
            settings,
            window: Mutex::default(),
            ok: AtomicU64::default(),
            not_found: AtomicU64::default(),
            too_many: AtomicU64::default(),
            broken: AtomicU64::default(),
        }
    }

    /// Whether the rate limit admits a call; counts a refused one.
    pub fn admit(&self) -> bool {
        let admitted = {
            let mut window = self.window.lock();
            // The time is read under the lock, or the times in the window would not be in order.
            window.admit(self.settings.allow, Instant::now())
        };
        if !admitted {
            self.count(StatusCode::TOO_MANY_REQUESTS);
        }
        admitted
    }

    pub fn version(&self, name: &str) -> Option<&str> {
        self.settings.packages.get(name).map(AsRef::as_ref)
    }

    pub fn count(&self, status: StatusCode) {
        let counter = match status {
            StatusCode::OK => &self.ok,
            StatusCode::NOT_FOUND => &self.not_found,
            StatusCode::TOO_MANY_REQUESTS => &self.too_many,
            _ => &self.broken,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub fn stats(&self) -> PlatformStats {
        let mut window = self.window.lock();
        window.forget(Instant::now());
        PlatformStats {
            ok: self.ok.load(Ordering::Relaxed),
            not_found: self.not_found.load(Ordering::Relaxed),
            too_many: self.too_many.load(Ordering::Relaxed),
            broken: self.broken.load(Ordering::Relaxed),
            last_second: window.admitted.len(),
            busiest_second: window.busiest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_second_ever_holds_more_than_allowed() {
        let (start, mut window) = (Instant::now(), Window::default());
        let mut try_at = |millis| window.admit(3, start + Duration::from_millis(millis));
        let table = [
            (0, true),
            (500, true),
            (900, true),
            (999, false),
            (1_000, true),
            (1_001, false),
            (1_499, false),
            (1_500, true),
            (1_899, false),
            (1_900, true),
            (1_900, false),
            (9_000, true),
        ];
        for (millis, admitted) in table {
            assert_eq!(try_at(millis), admitted, "at {millis} ms");
        }
        assert_eq!(window.busiest, 3);
        assert!(!Window::default().admit(0, start), "nothing allowed");
    }
}
