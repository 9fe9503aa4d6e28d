//! Which mutant is switched on. A crate of the copy, which every sabotaged crate of it depends on.

use std::cell::Cell;

thread_local! {
    static ACTIVE: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Whether `mutant` is switched on, on this thread.
#[inline]
pub fn is(mutant: &str) -> bool {
    ACTIVE.get() == Some(mutant)
}

/// Does `f` with `mutant` switched on, on this thread.
pub fn with<T>(mutant: &'static str, f: impl FnOnce() -> T) -> T {
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            ACTIVE.set(None);
        }
    }
    ACTIVE.set(Some(mutant));
    let _off = Off;
    f()
}
