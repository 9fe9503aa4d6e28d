//! For how long an HTTP answer stays fresh (pure): RFC 9111, sections 4.2.1 and 5.2.2.1. What its
//! upstream will not have changed before then need not be asked for sooner.

use std::time::{Duration, UNIX_EPOCH};

/// The headers of an answer that say how long it stays fresh.
#[derive(Clone, Copy, Debug, Default)]
pub struct Freshness<'a> {
    /// `Cache-Control`
    pub cache_control: Option<&'a str>,
    /// `Age`
    pub age: Option<&'a str>,
    /// `Expires`
    pub expires: Option<&'a str>,
    /// `Date`
    pub date: Option<&'a str>,
}

impl Freshness<'_> {
    /// From the time of the answer on; `None` when it says nothing, or must not be kept at all. A
    /// `max-age` goes before `Expires`, and a shared cache's `s-maxage` is none of our business.
    pub fn lifetime(&self) -> Option<Duration> {
        let directives = || self.cache_control.unwrap_or_default().split(',').map(str::trim);
        if directives().any(|word| word.eq_ignore_ascii_case("no-store") || word.eq_ignore_ascii_case("no-cache")) {
            return None;
        }
        let max_age = directives().find_map(|word| {
            let (name, value) = word.split_once('=')?;
            name.trim().eq_ignore_ascii_case("max-age").then(|| seconds(value.trim().trim_matches('"')))?
        });
        let lifetime = match max_age {
            Some(max_age) => max_age,
            None => date(self.expires?)?.saturating_sub(date(self.date?)?),
        };
        // It may have been in a cache on the way here for a while.
        let age = self.age.and_then(|age| seconds(age.trim())).unwrap_or_default();
        Some(lifetime.saturating_sub(age))
    }
}

fn seconds(text: &str) -> Option<Duration> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| Duration::from_secs(text.parse().unwrap_or(u64::from(u32::MAX))))
}

fn date(text: &str) -> Option<Duration> {
    httpdate::parse_http_date(text.trim()).ok()?.duration_since(UNIX_EPOCH).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_lifetimes() {
        let date = Some("Sun, 06 Nov 1994 08:49:37 GMT");
        let later = Some("Sun, 06 Nov 1994 08:54:37 GMT");
        let earlier = Some("Sun, 06 Nov 1994 08:00:00 GMT");
        let table = [
            (None, None, None, None, None),
            (Some("max-age=300"), None, None, None, Some(300)),
            (Some("public, Max-Age = \"300\" , immutable"), None, None, None, Some(300)),
            (Some("max-age=300"), Some("100"), None, None, Some(200)),
            (Some("max-age=300"), Some("900"), None, None, Some(0)),
            (Some("max-age=60"), None, later, date, Some(60)),
            (Some("s-maxage=60"), None, later, date, Some(300)),
            (None, None, later, date, Some(300)),
            (None, Some("10"), later, date, Some(290)),
            (None, None, earlier, date, Some(0)),
            (None, None, later, None, None),
            (None, None, Some("0"), date, None),
            (Some("no-store"), None, later, date, None),
            (Some("no-cache, max-age=300"), None, None, None, None),
            (Some("max-age=soon"), None, later, date, Some(300)),
            (Some("max-age=99999999999999999999999"), None, None, None, Some(u64::from(u32::MAX))),
        ];
        for (cache_control, age, expires, date, expected) in table {
            let headers = Freshness { cache_control, age, expires, date };
            assert_eq!(headers.lifetime().map(|lifetime| lifetime.as_secs()), expected, "{headers:?}");
        }
    }
}
