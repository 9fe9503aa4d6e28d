//! How starts are paced (pure): rate limits, circuit breakers, budgets, and operators' orders.
//!
//! - [`slots`]: when the next start may happen, by what a throttle remembers. The arithmetic (GCRA) is explained there.
//! - [`orders`]: what an operator has ordered for a throttle.
//! - [`demand`]: whether chains need more starts than a throttle allows.
//! - [`fair`]: a line in which tenants have turns by their weights.
//! - [`key`]: the field of a job by which a throttle has many limits.
//! - [`latency`]: how long a slot is on its way from the ledger.
//! - `serve`: one request for slots. `settings`: what the configuration says of a throttle.
//! - [`windows`]: how many starts windows of time hold, counted from the starts alone: the check of all of the above.

pub mod demand;
pub mod fair;
pub mod key;
pub mod latency;
pub mod orders;
mod serve;
mod settings;
pub mod slots;
pub mod windows;

pub use serve::{SlotRequest, SlotResponse, serve};
pub use settings::{BudgetSettings, ThrottleScope, ThrottleSettings};
