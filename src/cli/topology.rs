//! stub
use clap::{Args, Subcommand};
/// stub
#[derive(Args)]
pub struct Topology {
    #[command(subcommand)]
    command: Command,
}
#[derive(Subcommand)]
enum Command {
    /// apply
    Apply,
}
impl Topology {
    pub async fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Apply => Ok(()),
        }
    }
}
