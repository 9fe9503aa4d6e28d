//! The `roundelay` program. Each command is a file in [`cli`].

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
