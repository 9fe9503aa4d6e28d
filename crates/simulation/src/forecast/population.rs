//! Which chains there are: a given number on certain queues, or those of a roster.

use std::collections::BTreeMap;

use roundelay_config::{Config, KindSettings};
use roundelay_engine::enroll::Entity;
use roundelay_model::pacing::key::KeyPath;
use wildmatch::WildMatch;

/// The part of a modelled payload that says what the entity is worth.
const WEIGHT: &str = "weight";

/// The chains of a kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Population {
    /// A number of chains, dealt out to these queues in turn.
    Counted {
        /// How many.
        chains: u64,
        /// The queues, at least one.
        queues: Vec<String>,
        /// The parts of a job that the throttles of these queues have a limit for: each chain has its own.
        keys: Vec<KeyPath>,
        /// What they are worth falls as in Zipf's law.
        zipf: bool,
        /// Whose they are: owners, and the ends of their shares.
        owners: Vec<(String, f64)>,
    },
    /// These.
    Listed(Vec<Entity>),
}

impl Population {
    /// A number of chains of a kind, on the queues that the kind may name.
    ///
    /// # Errors
    /// Says what the configuration lacks.
    pub fn counted(config: &Config, kind: &str, chains: u64) -> Result<Self, String> {
        let settings = config.kind(kind)?;
        recurs(kind, settings)?;
        let queues = queues(config, settings);
        if queues.is_empty() {
            let queue = settings.queue.as_deref().unwrap_or("any");
            return Err(format!(
                "kinds.{kind}: the configuration has no queue like `{queue}`, so nobody knows where its chains are; \
                 add one under [queues], or give --roster {kind}=FILE"
            ));
        }
        let throttles = queues.iter().filter_map(|queue| config.throttles.get(config.queues[queue].throttle.as_ref()?));
        let keys = throttles.filter_map(|throttle| throttle.key.clone()).collect();
        let (zipf, owners) = (settings.model.zipf, settings.model.owners.clone());
        Ok(Self::Counted { chains, queues, keys, zipf, owners })
    }

    /// These chains of a kind.
    ///
    /// # Errors
    /// When the kind has none.
    pub fn listed(config: &Config, kind: &str, entities: Vec<Entity>) -> Result<Self, String> {
        recurs(kind, config.kind(kind)?)?;
        Ok(Self::Listed(entities))
    }

    /// How many chains there are.
    pub fn chains(&self) -> u64 {
        match self {
            Self::Counted { chains, .. } => *chains,
            Self::Listed(entities) => entities.len() as u64,
        }
    }

    /// A template for what an entity of this kind is worth.
    pub(super) fn weight(&self, kind: &KindSettings) -> Option<String> {
        match self {
            Self::Counted { zipf, .. } => zipf.then(|| format!("{{{{ {WEIGHT} }}}}")),
            Self::Listed(_) => kind.fresh()?.weight.clone(),
        }
    }

    /// Parts of their payloads that are taken to be each one's own, since a throttle has a limit for each value.
    pub fn assumed_keys(&self) -> Vec<String> {
        let Self::Counted { keys, .. } = self else { return Vec::new() };
        let mut keys: Vec<String> =
            keys.iter().map(KeyPath::to_string).filter(|key| key.starts_with("payload.")).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// How many of them are on each queue.
    pub fn by_queue(&self) -> BTreeMap<String, u64> {
        let mut by_queue = BTreeMap::new();
        match self {
            Self::Counted { chains, queues, .. } => {
                let (all, count) = (chains, queues.len() as u64);
                for (n, queue) in (0..).zip(queues) {
                    *by_queue.entry(queue.clone()).or_default() += all / count + u64::from(n < all % count);
                }
            }
            Self::Listed(entities) => {
                entities.iter().for_each(|entity| *by_queue.entry(entity.queue.clone()).or_default() += 1);
            }
        }
        by_queue
    }

    /// All of them, in batches of at most `size`.
    pub(super) fn batches(self, size: usize) -> Box<dyn Iterator<Item = Vec<Entity>> + Send> {
        match self {
            Self::Counted { chains, queues, keys, zipf, owners } => {
                let payload = move |n: u64| {
                    let mut payload = serde_json::Value::Null;
                    keys.iter().for_each(|key| key.write(&mut payload, &n.to_string()));
                    if zipf {
                        payload[WEIGHT] = (1.0 / (n + 1) as f64).into();
                    }
                    payload.to_string()
                };
                let one = move |n: u64| Entity {
                    key: n.to_string(),
                    queue: queues[(n % queues.len() as u64) as usize].clone(),
                    priority: None,
                    payload: payload(n),
                    owner: owner_of(&owners, n),
                    schedule: None,
                    first_due: None,
                };
                let mut next = 0;
                Box::new(std::iter::from_fn(move || {
                    let first = next;
                    next = chains.min(next + size as u64);
                    (first < next).then(|| (first..next).map(&one).collect())
                }))
            }
            Self::Listed(entities) => {
                let mut rest = entities.into_iter();
                Box::new(std::iter::from_fn(move || {
                    let batch: Vec<Entity> = rest.by_ref().take(size).collect();
                    (!batch.is_empty()).then_some(batch)
                }))
            }
        }
    }
}

/// The owner of the chain with this number: whichever stretch of chains one looks at, each owner has its share of them.
fn owner_of(owners: &[(String, f64)], n: u64) -> Option<String> {
    /// The golden ratio: its multiples, without their whole parts, lie evenly between 0 and 1.
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    let at = (n as f64 * GOLDEN).fract();
    let of = owners.iter().find(|(_, end)| at < *end).or(owners.last());
    of.map(|(owner, _)| owner.clone())
}

fn recurs(kind: &str, settings: &KindSettings) -> Result<(), String> {
    match settings.recurrence {
        Some(_) => Ok(()),
        None => Err(format!("kinds.{kind} has none of `every`, `cron` and `at`, so it has no chains to simulate")),
    }
}

/// The queues that a kind may name. What a template takes from a roster may be anything.
fn queues(config: &Config, kind: &KindSettings) -> Vec<String> {
    let pattern = WildMatch::new(&kind.queue.as_deref().map_or("*".into(), pattern));
    config.queues.keys().filter(|queue| pattern.matches(queue)).cloned().collect()
}

/// A template with every part that is made from a row as `*`.
fn pattern(template: &str) -> String {
    let (mut text, mut rest) = (String::new(), template);
    while let Some((before, after)) = rest.split_once('{') {
        let Some(end) = after.find(['{', '%', '#']).and_then(|_| after.find("}")) else { break };
        text += before;
        text.push('*');
        rest = after[end..].trim_start_matches('}');
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let text = r#"
            [queues.sync-ios]
            [queues.sync-android]
            [queues.other]
            [kinds.sync]
            queue = "sync-{{ platform }}"
            every = "10s"
            [kinds.plain]
            queue = "other"
            every = "10s"
            [kinds.free]
            every = "10s"
            [kinds.lost]
            queue = "nowhere-{{ x }}"
            every = "10s"
            [kinds.single]
        "#;
        Config::parse(text, "test", []).unwrap()
    }

    #[test]
    fn chains_are_dealt_out_to_the_queues_that_a_kind_may_name() {
        let config = config();
        let table = [
            ("sync", vec![("sync-android", 3), ("sync-ios", 2)]),
            ("plain", vec![("other", 5)]),
            ("free", vec![("other", 2), ("sync-android", 2), ("sync-ios", 1)]),
        ];
        for (kind, expected) in table {
            let population = Population::counted(&config, kind, 5).unwrap();
            let by_queue = population.by_queue();
            let by_queue: Vec<(&str, u64)> = by_queue.iter().map(|(queue, n)| (queue.as_str(), *n)).collect();
            assert_eq!(by_queue, expected, "{kind}");
            let mut dealt = BTreeMap::new();
            let batches: Vec<_> = population.batches(2).collect();
            assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
            batches.into_iter().flatten().for_each(|entity| *dealt.entry(entity.queue).or_default() += 1);
            assert_eq!(dealt.into_iter().collect::<Vec<(String, u64)>>().len(), by_queue.len());
        }
        assert!(Population::counted(&config, "lost", 5).unwrap_err().contains("--roster lost=FILE"));
        assert!(Population::counted(&config, "single", 5).unwrap_err().contains("none of `every`"));
    }

    #[test]
    fn each_chain_has_a_limit_of_its_own_where_a_throttle_has_keys() {
        let text = r#"
            [throttles.channel]
            allow = 1
            per = "1s"
            key = "payload.channel"
            [queues.work]
            throttle = "channel"
            [kinds.sync]
            queue = "work"
            every = "10s"
        "#;
        let population = Population::counted(&Config::parse(text, "test", []).unwrap(), "sync", 3).unwrap();
        assert_eq!(population.assumed_keys(), ["payload.channel"]);
        let payloads: Vec<String> = population.batches(2).flatten().map(|entity| entity.payload).collect();
        assert_eq!(payloads, [r#"{"channel":"0"}"#, r#"{"channel":"1"}"#, r#"{"channel":"2"}"#]);
    }

    #[test]
    fn weights_fall_as_in_zipfs_law() {
        let text = "[queues.q]\n[kinds.sync]\nqueue = \"q\"\nmodel.weights = \"zipf\"\nfresh = { budget = \"9/1h\", min = \"1m\", max = \"1h\" }";
        let config = Config::parse(text, "test", []).unwrap();
        let population = Population::counted(&config, "sync", 4).unwrap();
        let weight = population.weight(&config.kinds["sync"]).unwrap();
        let worth = |entity: Entity| {
            let payload = serde_json::from_str(&entity.payload).unwrap();
            roundelay_config::weight_of(Some(&weight), &payload).unwrap()
        };
        assert_eq!(population.batches(9).flatten().map(worth).collect::<Vec<_>>(), [1.0, 0.5, 1.0 / 3.0, 0.25]);
    }

    #[test]
    fn owners_have_their_shares_of_every_stretch_of_chains() {
        let text = "[queues.q]\n[kinds.sync]\nqueue = \"q\"\nevery = \"1m\"\nmodel.owners = { a = 9, b = 2, c = 1 }";
        let population = Population::counted(&Config::parse(text, "test", []).unwrap(), "sync", 1_200).unwrap();
        let owners: Vec<String> = population.batches(100).flatten().map(|entity| entity.owner.unwrap()).collect();
        for stretch in owners.chunks(120) {
            for (owner, share) in [("a", 90), ("b", 20), ("c", 10)] {
                let has = stretch.iter().filter(|other| *other == owner).count() as i64;
                assert!((has - share).abs() <= 2, "{owner} has {has} of {share}");
            }
        }
    }

    #[test]
    fn what_a_template_takes_from_a_row_may_be_anything() {
        let table = [
            ("plain", "plain"),
            ("sync-{{ platform }}", "sync-*"),
            ("{{ a }}-x-{{ b | lower }}", "*-x-*"),
            ("{% if a %}x{% endif %}", "*x*"),
        ];
        for (template, expected) in table {
            assert_eq!(pattern(template), expected);
        }
    }
}
