//! When the certificates of a connection expire: ours, and the broker's. The log warns in time.

use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use roundelay_model::clock::{Clock, Time};
use roundelay_net::tls;
use roundelay_net::tls::BrokerTls;
use rustls::pki_types::CertificateDer;
use tokio::time::Instant;

const DAY: Duration = Duration::from_secs(86_400);

/// Whose certificate it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// That of `broker.tls.certificate`, as the file is now.
    Own,
    /// The certificate that the broker last showed.
    Broker,
}

impl Whose {
    /// As a label of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Broker => "broker",
        }
    }
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "our own certificate for the broker",
            Self::Broker => "the broker's certificate",
        })
    }
}

/// A certificate, or the first to end of those that it was signed with and that came with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Whose it is.
    pub whose: Whose,
    /// When it expires.
    pub ends: Time,
}

/// How soon a certificate ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Soon {
    /// Within 30 days.
    Month,
    /// Within seven.
    Week,
    /// It has ended.
    Over,
}

impl Certificate {
    /// How soon it ends; nothing when there is time (pure).
    pub fn soon(&self, now: Time) -> Option<Soon> {
        match self.ends {
            ends if ends <= now => Some(Soon::Over),
            ends if ends <= now + DAY * 7 => Some(Soon::Week),
            ends if ends <= now + DAY * 30 => Some(Soon::Month),
            _ => None,
        }
    }
}

/// What is known of the certificates of one broker's connections.
#[derive(Default)]
pub(super) struct Certificates(Mutex<State>);

#[derive(Default)]
struct State {
    own: Option<Time>,
    broker: Option<Time>,
    /// When the broker last showed its own.
    shown: Option<Instant>,
    /// What was logged already: each stage of each certificate is logged once.
    told: Vec<(Certificate, Soon)>,
}

impl Certificates {
    /// Takes note of what the broker has shown.
    pub(super) fn shown(&self, chain: &[CertificateDer<'_>]) {
        let mut state = self.state();
        (state.broker, state.shown) = (tls::ends(chain), Some(Instant::now()));
    }

    /// How long until the broker is to be asked for its own again, which it has last been at `asked`, if what it shows
    /// counts for `every`.
    pub(super) fn wait(&self, asked: Option<Instant>, every: Duration) -> Duration {
        wait(self.state().shown.max(asked).map(|at| at.elapsed()), every)
    }

    /// Reads our own certificate, and logs what expires soon.
    pub(super) fn look(&self, files: &BrokerTls) {
        let own = files.own.as_ref().map(|own| tls::certificates(&own.certificate));
        // A certificate that cannot be read is reported when it is needed.
        if let Some(Ok(own)) = own {
            self.state().own = tls::ends(&own);
        }
        let now = Clock::System.now();
        for certificate in self.known() {
            let Some(soon) = certificate.soon(now) else { continue };
            let mut state = self.state();
            if state.told.contains(&(certificate, soon)) {
                continue;
            }
            state.told.push((certificate, soon));
            drop(state);
            let Certificate { whose, ends } = certificate;
            match soon {
                Soon::Month => tracing::warn!(%ends, "{whose} ends within 30 days; renew it"),
                Soon::Week => tracing::error!(%ends, "{whose} ends within 7 days; renew it, or connections will fail"),
                Soon::Over => tracing::error!(%ends, "{whose} has ended; renew it: no new connection succeeds"),
            }
        }
    }

    /// Those that are known.
    pub(super) fn known(&self) -> Vec<Certificate> {
        let state = self.state();
        let known = [(Whose::Own, state.own), (Whose::Broker, state.broker)];
        known.into_iter().filter_map(|(whose, ends)| Some(Certificate { whose, ends: ends? })).collect()
    }

    /// Whether ours has ended.
    pub(super) fn ours_is_over(&self) -> bool {
        let now = Clock::System.now();
        self.known().iter().any(|known| known.whose == Whose::Own && known.soon(now) == Some(Soon::Over))
    }

    fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.0.lock()
    }
}

/// How long until it is time again for what is done every so often, and was done so long ago (pure).
fn wait(since: Option<Duration>, every: Duration) -> Duration {
    since.map_or(Duration::ZERO, |since| every.saturating_sub(since))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_broker_is_asked_when_it_has_neither_shown_its_certificate_nor_been_asked_for_so_long() {
        let seconds = Duration::from_secs;
        for (since, left) in [(None, 0), (Some(0), 300), (Some(299), 1), (Some(300), 0), (Some(9_000), 0)] {
            assert_eq!(wait(since.map(seconds), seconds(300)), seconds(left), "{since:?}");
        }
    }

    #[test]
    fn a_certificate_ends_in_three_stages() {
        let now = Time::from_millis(1_000);
        let table = [
            (DAY * 31, None),
            (DAY * 30 + Duration::from_millis(1), None),
            (DAY * 30, Some(Soon::Month)),
            (DAY * 7 + Duration::from_millis(1), Some(Soon::Month)),
            (DAY * 7, Some(Soon::Week)),
            (Duration::from_millis(1), Some(Soon::Week)),
            (Duration::ZERO, Some(Soon::Over)),
        ];
        for (left, soon) in table {
            assert_eq!(Certificate { whose: Whose::Own, ends: now + left }.soon(now), soon, "{left:?}");
        }
        assert_eq!(Certificate { whose: Whose::Own, ends: Time::from_millis(5) }.soon(now), Some(Soon::Over));
    }
}
