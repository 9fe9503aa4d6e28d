//! What this process takes.

use nix::sys::resource::{UsageWho, getrusage};

/// CPU seconds that this process has taken so far, in user and kernel mode, on all cores.
pub(super) fn cpu_seconds() -> f64 {
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |usage| seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// Bytes of memory that it has resident now; `None` where the system does not say (only Linux does).
pub(super) fn resident() -> Option<u64> {
    resident_in(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn resident_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1_024)
}

/// Mebibytes, with one digit after the point.
pub(super) fn mib(bytes: u64) -> f64 {
    (bytes as f64 / 1_048_576.0 * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_memory_is_read_from_what_linux_says() {
        assert_eq!(resident_in("Name:\tx\nVmRSS:\t   12345 kB\nThreads:\t3\n"), Some(12_345 * 1_024));
        assert_eq!(resident_in("Name:\tx\n"), None);
    }
}
