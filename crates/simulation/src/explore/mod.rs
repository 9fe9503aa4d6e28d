//! All states, not seeds.

pub mod chains;
pub mod search;
pub mod state;
mod words;

#[cfg(test)]
mod tests {
    use super::chains::{Chains, sound};
    use super::search::{Limits, search};
    use super::state::Budgets;

    #[test]
    fn try_it() {
        let faults: u8 = std::env::var("F").ok().and_then(|f| f.parse().ok()).unwrap_or(1);
        let depth: u32 = std::env::var("D").ok().and_then(|f| f.parse().ok()).unwrap_or(1_000);
        let orders: u8 = std::env::var("O").ok().and_then(|f| f.parse().ok()).unwrap_or(0);
        let setbacks: u8 = std::env::var("S").ok().and_then(|f| f.parse().ok()).unwrap_or(0);
        let clock: u8 = std::env::var("C").ok().and_then(|f| f.parse().ok()).unwrap_or(0);
        let restores: u8 = std::env::var("R").ok().and_then(|f| f.parse().ok()).unwrap_or(0);
        let two = std::env::var("TWO").is_ok();
        let jobs = std::env::var("JOBS").is_ok();
        let manual = std::env::var("M").ok().map(|m| m.parse().unwrap());
        let budgets = Budgets { faults, clock, orders, setbacks, restores };
        let model = Chains { two, manual, jobs, budgets, ledger: sound };
        let found = search(&model, Limits { depth, states: 60_000_000, threads: 2 });
        eprintln!("{} states, {} moves, depth {}, complete {}, lively {}, {:.1} s", found.states, found.moves, found.depth, found.complete, found.lively, found.seconds);
        if let Some(story) = found.story {
            eprintln!("{} ({} moves): {}", story.broken.invariant, story.length, story.broken.what);
            story.lines.iter().for_each(|line| eprintln!("{line}"));
        }
    }
}
