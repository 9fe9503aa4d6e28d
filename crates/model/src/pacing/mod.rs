//! How starts are paced (pure): limits and their arithmetic, what operators order of them, and what judges them.
//!
//! - [`slots`]: when the next start may happen, by what a throttle remembers.
//! - [`orders`]: what an operator has ordered of a throttle.
//! - [`key`]: which of a throttle's limits a job is under.
//! - [`latency`]: how long a slot is on its way from the ledger.
//! - [`windows`]: how many starts windows of time hold, by the starts alone.

pub mod key;
pub mod latency;
pub mod orders;
mod serve;
mod settings;
pub mod slots;
pub mod windows;

pub use serve::{SlotAnswer, SlotRequest, serve};
pub use settings::{BudgetSettings, ThrottleScope, ThrottleSettings};
