//! `fair`, `most` and `[tenants.<name>]`, checked.

use std::collections::BTreeMap;

use roundelay_model::pacing::fair::{Configured, MAX_WEIGHT, ShareSettings};
use roundelay_model::pacing::key::KeyPath;

use super::raw;
use crate::problems::Problems;
use crate::settings::Config;

/// No more jobs of one tenant run at the same time.
pub const MAX_QUOTA: u32 = 1_000_000;

/// The part of a job that `fair` names.
pub fn path(problems: &mut Problems, at: &[&str], text: Option<&str>) -> Option<KeyPath> {
    let path = text.map(KeyPath::parse).transpose();
    path.unwrap_or_else(|error| {
        problems.add(at, error);
        None
    })
}

/// How tenants share the queue `name`: by its own word, or by that of its throttle.
pub fn of_queue(
    problems: &mut Problems,
    name: &str,
    queue: &raw::Queue,
    throttles: &BTreeMap<String, raw::Throttle>,
) -> Option<KeyPath> {
    let own = path(problems, &["queues", name, "fair"], queue.fair.as_deref());
    let throttle = queue.throttle.as_ref().and_then(|throttle| Some((throttle, throttles.get(throttle)?)));
    let of_throttle = throttle.and_then(|(name, throttle)| Some((name, throttle.fair.as_ref()?)));
    if let (Some(own), Some((throttle, other))) = (&queue.fair, of_throttle)
        && own != other
    {
        let words = format!(
            "is `{own}`, and that of [throttles.{throttle}] is `{other}`; places and slots are shared between the same \
             tenants, so write the same, or leave this out"
        );
        problems.add(&["queues", name, "fair"], words);
    }
    // A mistake of the throttle is told there.
    let fair = own.or_else(|| KeyPath::parse(of_throttle?.1).ok());
    if let Some(most) = queue.most {
        problems.range(&["queues", name, "most"], most, 1, MAX_QUOTA);
        if queue.fair.is_none() && of_throttle.is_none() {
            let words = "limits the jobs of one tenant, and this queue knows no tenants; set `fair`, such as \"owner\"";
            problems.add(&["queues", name, "most"], words);
        }
    }
    fair
}

/// `[tenants]`
pub fn tenants(problems: &mut Problems, tenants: BTreeMap<String, raw::Tenant>) -> BTreeMap<String, ShareSettings> {
    let one = |(name, tenant): (String, raw::Tenant)| {
        problems.range(&["tenants", &name, "weight"], tenant.weight, 1, MAX_WEIGHT);
        if let Some(most) = tenant.most {
            problems.range(&["tenants", &name, "most"], most, 1, MAX_QUOTA);
        }
        (name, ShareSettings { weight: tenant.weight, most: tenant.most })
    };
    tenants.into_iter().map(one).collect()
}

impl Config {
    /// What is configured of the shares of tenants.
    #[doc(hidden)]
    pub fn shares(&self) -> Configured {
        let most = self.queues.iter().filter_map(|(name, queue)| Some((name.clone(), queue.most?)));
        Configured { tenants: self.tenants.clone(), queues: most.collect() }
    }

    /// Takes over the shares of tenants from another configuration.
    #[doc(hidden)]
    pub fn take_over_shares(&mut self, other: &Self) {
        self.tenants.clone_from(&other.tenants);
        for (name, queue) in &mut self.queues {
            queue.most = other.queues.get(name).and_then(|queue| queue.most);
        }
    }

    /// Whether tenants share any queue or throttle.
    #[doc(hidden)]
    pub fn is_fair(&self) -> bool {
        self.queues.values().any(|queue| queue.fair.is_some()) || self.throttles.values().any(|t| t.fair.is_some())
    }
}
