//! What this process takes of the machine, under the names that Prometheus' own libraries have for it.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The metrics of the process.
#[derive(Debug, Default)]
pub(super) struct Process {
    cpu: Counter<f64, AtomicU64>,
    resident: Gauge,
    files: Gauge,
    most_files: Gauge,
}

impl Process {
    pub fn register(to: &mut Registry) -> Self {
        let process = Self::default();
        to.register("process_cpu_seconds", "CPU time taken, in user and kernel mode", process.cpu.clone());
        to.register("process_resident_memory_bytes", "Memory that is resident", process.resident.clone());
        to.register("process_open_fds", "Files that are open, connections among them", process.files.clone());
        to.register("process_max_fds", "Files that may be open", process.most_files.clone());
        process
    }

    /// Reads all of them. What the system does not say stays as it was.
    pub fn look(&self) {
        self.cpu.inner().store(cpu_seconds().to_bits(), Ordering::Relaxed);
        let set = |gauge: &Gauge, value: Option<u64>| {
            if let Some(value) = value {
                gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
            }
        };
        set(&self.resident, resident());
        // The folder itself is open while it is read.
        set(&self.files, fs::read_dir("/proc/self/fd").ok().map(|files| (files.count() as u64).saturating_sub(1)));
        set(&self.most_files, getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft));
    }
}

/// CPU seconds that this process has taken so far, in user and kernel mode, on all cores.
pub fn cpu_seconds() -> f64 {
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |usage| seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// Bytes of memory that it has resident now; `None` where the system does not say (only Linux does).
pub fn resident() -> Option<u64> {
    resident_in(&fs::read_to_string("/proc/self/status").ok()?)
}

fn resident_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_memory_is_read_from_what_linux_says() {
        assert_eq!(resident_in("Name:\tx\nVmRSS:\t   12345 kB\nThreads:\t3\n"), Some(12_345 * 1_024));
        assert_eq!(resident_in("Name:\tx\n"), None);
    }

    #[test]
    fn a_file_that_is_opened_counts_and_so_does_the_time_that_is_taken() {
        let process = Process::default();
        // Other tests of this process open and close files meanwhile; this number outweighs them.
        let held: Vec<_> = (0..300).map(|_| fs::File::open("/proc/self/status").unwrap()).collect();
        process.look();
        let with = process.files.get();
        assert!(with >= 300 && with <= process.most_files.get(), "{with} of {}", process.most_files.get());
        drop(held);
        process.look();
        assert!(process.files.get() <= with - 100, "{with}, then {}", process.files.get());
        assert!(process.resident.get() > 1_000_000 && process.cpu.get() > 0.0, "{process:?}");
    }
}
