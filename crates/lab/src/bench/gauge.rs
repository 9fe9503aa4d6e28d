//! The resource use of this process, and of the machine.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

pub(super) use roundelay_engine::telemetry::process::{cpu_seconds, resident};

/// CPU seconds by name of thread, if the system reports them (only Linux does).
pub(super) fn cpu_of_threads() -> BTreeMap<String, f64> {
    let mut seconds = BTreeMap::new();
    for thread in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |name| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        let nanos = read("schedstat").split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok());
        *seconds.entry(read("comm").trim().to_owned()).or_default() += nanos.unwrap_or_default() / 1e9;
    }
    seconds
}

/// How busy the machine has been since it was started: jiffies at work, and all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Machine {
    busy: f64,
    all: f64,
}

impl Machine {
    /// The values until now; `None` if the system does not report them (only Linux does).
    pub(super) fn now() -> Option<Self> {
        Self::read(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn read(stat: &str) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let columns: Vec<f64> = line.split_whitespace().map_while(|column| column.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are included in the first two.
        let all: f64 = columns.iter().take(8).sum();
        Some(Self { busy: all - columns.get(3)? - columns.get(4)?, all })
    }

    /// CPU seconds on all cores since `before`, which was `seconds` ago.
    pub(super) fn since(self, before: Self, seconds: f64) -> f64 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (self.busy - before.busy) / (self.all - before.all).max(1.0) * cores as f64 * seconds
    }
}

/// Bytes of disk that the files in a folder use, and those in folders within it. A file that is removed during the
/// count is not counted.
pub(super) fn disk_usage(folder: &Path) -> io::Result<u64> {
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let used = match entry.metadata() {
            Ok(about) if about.is_dir() => disk_usage(&entry.path()),
            Ok(about) => Ok(about.blocks() * 512),
            Err(error) => Err(error),
        };
        bytes += match used {
            Err(error) if gone(&error) => 0,
            used => used?,
        };
    }
    Ok(bytes)
}

/// Mebibytes, with one digit after the point.
pub(super) fn mib(bytes: u64) -> f64 {
    (bytes as f64 / 1_048_576.0 * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_disk_that_files_take_is_counted_with_those_in_folders_within() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        let write = |name: &str| {
            let mut file = fs::File::create(folder.path().join(name)).unwrap();
            file.write_all(&vec![1; 1_000_000]).unwrap();
            // The file system allocates the blocks only then.
            file.sync_all().unwrap();
        };
        assert!(disk_usage(folder.path()).unwrap() < 500_000);
        write("one");
        let one = disk_usage(folder.path()).unwrap();
        assert!((900_000..=1_600_000).contains(&one), "{one}");
        write("a/b/two");
        let two = disk_usage(folder.path()).unwrap();
        assert!((1_800_000..=3_200_000).contains(&two), "{two}");
        assert!(disk_usage(&folder.path().join("nowhere")).is_err());
    }

    #[test]
    fn the_time_of_the_machine_is_read_from_what_linux_says() {
        let read = |text| Machine::read(text).unwrap();
        let before = read("cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 1 2 3\n");
        assert_eq!(before, Machine { busy: 20.0, all: 100.0 });
        let after = read("cpu  50 10 20 80 20 5 5 10 99 99\n");
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        // 80 of 100 were at work.
        assert!((after.since(before, 2.0) - 1.6 * cores).abs() < 1e-9);
        assert_eq!(Machine::read("intr 1 2 3\n"), None);
    }
}
