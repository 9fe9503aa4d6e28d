//! How often to look at what changes now and then, when calls are scarce (pure).
//!
//! Each entity changes at a rate of its own, which is learned from whether visits found it changed ([`Learned`]). A call
//! has one price for the whole budget ([`Budget`]), which rises while the chains of the budget want more calls than it
//! has. From rate, weight and price follows how long until the next visit ([`interval()`]), so that the budget goes where
//! a call brings most. The formulas are those of Cho and Garcia-Molina (TODS 2003) and of Kolobov, Peres, Lu and Horvitz
//! (NeurIPS 2019) for changes that follow a Poisson process.

mod interval;
mod learned;
mod price;
#[cfg(test)]
mod simulated;

pub use interval::{Entity, Objective, best_price, expected, interval};
pub use learned::{Known, Learned, Prior, SIZE, Seen};
pub use price::{Budget, Calls, OfInterval, OfKind, Price, Visits, class_begins, interval_at, visited};
