//! `roundelay completions` and `roundelay man`: scripts for shells and manual pages.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, CommandFactory, ValueHint};
use clap_complete::Shell;
use serde_json::json;

use super::{Cli, screen};

/// Prints a script that lets a shell complete commands, options and files.
///
///   source <(roundelay completions bash)                                        for this shell
///   roundelay completions bash > ~/.local/share/bash-completion/completions/roundelay
///   roundelay completions zsh > ~/.zfunc/_roundelay                             with ~/.zfunc in fpath
///   roundelay completions fish > ~/.config/fish/completions/roundelay.fish
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Completions {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub fn run(self) -> anyhow::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "roundelay", &mut script);
        screen::exact(format_args!("{}", String::from_utf8(script)?.trim_end()));
        Ok(())
    }
}

/// Writes manual pages, one for each command: `man -l FOLDER/roundelay-worker.1`.
#[derive(Args)]
pub struct Man {
    /// The folder to write to; it is created if it does not exist.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    output: PathBuf,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Man {
    pub fn run(self) -> anyhow::Result<()> {
        let failed = || format!("failed to write manual pages to {}", self.output.display());
        std::fs::create_dir_all(&self.output).with_context(failed)?;
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        let mut pages = Vec::new();
        write_pages(&command, &self.output, &mut pages).with_context(failed)?;
        if self.json {
            let pages: Vec<String> = pages.iter().map(|page| page.display().to_string()).collect();
            return screen::json(&json!({ "pages": pages }));
        }
        out!("{} pages in {}", pages.len(), self.output.display());
        Ok(())
    }
}

fn write_pages(command: &clap::Command, folder: &Path, pages: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below, folder, pages)?;
    }
    pages.push(clap_mangen::Man::new(command.clone()).generate_to(folder)?);
    Ok(())
}
