//! A question before many chains are changed.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::bail;

/// Whether to do `what`: when `agreed` beforehand, or when the person at the terminal agrees. Without a terminal the
/// command fails.
pub fn confirmed(what: &str, agreed: bool) -> anyhow::Result<bool> {
    if agreed {
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() {
        bail!("this would {what}; add --yes to do so, or --dry-run only to count");
    }
    eprint!("This will {what}. Go on? [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(is_yes(&answer))
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_yes_is_yes() {
        assert!(["y", "Y\n", " yes \n"].iter().all(|answer| super::is_yes(answer)));
        assert!(["", "\n", "n", "yess", "no", "j"].iter().all(|answer| !super::is_yes(answer)));
    }
}
