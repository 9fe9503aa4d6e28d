//! What the integration tests, the chaos test and the throttles' test share.

pub mod ground;
pub mod receiver;
pub mod windows;
pub mod workers;

use std::process::ExitCode;

use serde_json::{Value, json};

/// Runs a test that is a program of its own, and ends with its report, a JSON object with `passed`, on the last line.
pub fn report(name: &str, run: impl Future<Output = anyhow::Result<Value>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    match runtime.block_on(run) {
        Ok(report) => {
            println!("{report}");
            if report["passed"] == json!(true) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
