//! The numbers that name chains, occurrences and claims: a type for each, so that one is not taken for another.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub i64);

        impl $name {
            /// The bare number, as SQL and other programs have it.
            #[must_use]
            pub const fn get(self) -> i64 {
                self.0
            }
        }

        // A bare number can stand beside one of these, as in `tick > 2`; two of different types cannot.
        impl PartialEq<i64> for $name {
            fn eq(&self, other: &i64) -> bool {
                self.0 == *other
            }
        }

        impl PartialOrd<i64> for $name {
            fn partial_cmp(&self, other: &i64) -> Option<Ordering> {
                self.0.partial_cmp(other)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

number! {
    /// One incarnation of a chain. The ledger gives the number, above zero, when the chain begins, and a new one when
    /// the chain begins anew. It is unique in the ledger and never used again; a later incarnation has a higher number.
    Epoch
}

number! {
    /// One occurrence of a chain, counted from 1 within an [`Epoch`]. The engine takes the next number when an
    /// occurrence is over; the attempts of an occurrence share its number.
    TickNo
}

number! {
    /// One claim of an attempt. The ledger gives the number when a worker claims the attempt, and a later claim has a
    /// higher number. A run's end is written only while its claim is the chain's last.
    Fence
}

impl Epoch {
    /// In place of an epoch where there is none: of a chain that is no member of a batch, the parent.
    pub const NONE: Self = Self(0);

    /// Whether there is none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

impl TickNo {
    /// In place of a tick where there is none: the last one that has started, of a chain that has not run.
    pub const NONE: Self = Self(0);
    /// The first one of an incarnation.
    pub const FIRST: Self = Self(1);

    /// The one after this.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Fence {
    /// In place of a claim where there is none: of a chain that no worker has claimed. Below every claim.
    pub const NONE: Self = Self(0);
}
