//! A map of few entries that keeps its memory when it is cleared: most verbs concern one chain, and a tree or a hash map
//! would ask for memory anew for each of them.

/// Entries in the order of their keys.
#[derive(Clone, Debug)]
pub(crate) struct SortedMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Copy + Ord, V> SortedMap<K, V> {
    fn place(&self, key: K) -> Result<usize, usize> {
        self.0.binary_search_by_key(&key, |entry| entry.0)
    }

    /// The value of `key`.
    pub(crate) fn get(&self, key: K) -> Option<&V> {
        self.place(key).ok().map(|at| &self.0[at].1)
    }

    /// The value of `key`, which is `value` if there was none.
    pub(crate) fn get_or_insert(&mut self, key: K, value: V) -> &mut V {
        let at = self.place(key).unwrap_or_else(|at| {
            self.0.insert(at, (key, value));
            at
        });
        &mut self.0[at].1
    }

    /// Sets the value of `key`.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        match self.place(key) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (key, value)),
        }
    }

    /// Takes `key` out.
    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        self.place(key).ok().map(|at| self.0.remove(at).1)
    }

    /// The entries, in the order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.0.iter().map(|(key, value)| (*key, value))
    }

    /// Takes all entries out.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0..4_u8, 0..6_i64, any::<u8>()), 0..40)) {
            let (mut map, mut same) = (SortedMap::default(), BTreeMap::new());
            for (step, key, value) in steps {
                match step {
                    0 => prop_assert_eq!(map.remove(key), same.remove(&key)),
                    1 => prop_assert_eq!(map.get_or_insert(key, value), same.entry(key).or_insert(value)),
                    2 => {
                        map.insert(key, value);
                        same.insert(key, value);
                    }
                    _ => prop_assert_eq!(map.get(key), same.get(&key)),
                }
                prop_assert!(map.iter().eq(same.iter().map(|(key, value)| (*key, value))));
            }
        }
    }
}
