//! stub
use clap::{Args, Subcommand};
/// stub
#[derive(Args)]
pub struct Bench {
    #[command(subcommand)]
    command: Command,
}
#[derive(Subcommand)]
enum Command {
    /// apply
    Chains,
}
impl Bench {
    pub async fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Chains => Ok(()),
        }
    }
}
