//! The real program's commands on a configuration, in few words.

use std::path::Path;

use serde_json::Value;

use crate::harness::{Output, roundelay};

/// `roundelay VERB… --config FILE REST…`
pub async fn run(verb: &str, config: &Path, rest: &[&str]) -> Output {
    let mut arguments: Vec<&str> = verb.split(' ').collect();
    arguments.extend(["--config", config.to_str().unwrap()]);
    arguments.extend(rest);
    roundelay(&arguments).await
}

/// What a command prints, which works.
pub async fn ok(verb: &str, config: &Path, rest: &[&str]) -> String {
    let output = run(verb, config, rest).await;
    assert!(output.code == Some(0), "{verb} {rest:?}: {output:?}");
    output.stdout
}

/// The JSON object that a command prints.
pub async fn told(verb: &str, config: &Path, rest: &[&str]) -> Value {
    let output = run(verb, config, &[rest, &["--json"]].concat()).await;
    assert!(output.code == Some(0), "{verb} {rest:?}: {output:?}");
    output.json()
}

/// Asserts that a command fails with exit code 1 and says all of `words`.
pub async fn refused(verb: &str, config: &Path, rest: &[&str], words: &[&str]) {
    let output = run(verb, config, rest).await;
    assert_eq!(output.code, Some(1), "{verb} {rest:?}: {output:?}");
    for words in words {
        assert!(output.stderr.contains(words), "no `{words}` in {}", output.stderr);
    }
}
