//! The `roundelay` program. Each command is a file in `crates/cli`.

/// A cycle allocates some seventy times, and with glibc's allocator that took a quarter of the engine's processor time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    roundelay_cli::main()
}
