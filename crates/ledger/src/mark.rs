//! Marks by which workers of one machine see that another's process has ended.
//!
//! A mark is a file that a worker keeps locked. The operating system takes the lock away with the process, however that
//! ends, and at once: so a process that gets the lock knows that the worker is gone. A process that stands still keeps
//! its lock. Where the file cannot be seen (another machine, another container), nothing is known. The file holds a
//! number that its worker raises: so the others see that the worker does not stand still.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError, remove_file};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};
use roundelay_model::clock::{Boot, Entropy, Time};

/// A mark that this process keeps.
#[derive(Debug)]
pub struct Mark {
    path: PathBuf,
    boot: String,
    lock: File,
    beat: i64,
}

impl Mark {
    /// Creates a mark and locks it.
    ///
    /// # Errors
    /// When the file cannot be created or locked.
    pub fn leave(path: PathBuf, boot: &Boot) -> io::Result<Self> {
        let lock = OpenOptions::new().write(true).create_new(true).open(&path)?;
        lock.lock()?;
        let path = path.canonicalize()?;
        Ok(Self { path, boot: boot.id.clone(), lock, beat: 0 })
    }

    /// Raises the mark's number: to the ledger's time, or by one.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn beat(&mut self, now: Time) -> io::Result<()> {
        self.beat = now.as_millis().max(self.beat + 1);
        self.lock.rewind()?;
        self.lock.write_all(&self.beat.to_le_bytes())
    }

    /// The mark as the ledger keeps it: the machine's boot and the path.
    pub fn text(&self) -> String {
        format!("{} {}", self.boot, self.path.display())
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let _ = remove_file(&self.path);
    }
}

/// The number in a mark, where the file can be seen.
fn beat_of(text: &str, boot: &Boot) -> Option<i64> {
    let (_, path) = text.split_once(' ').filter(|(its, _)| *its == boot.id)?;
    let mut number = [0; 8];
    File::open(path).ok()?.read_exact(&mut number).ok()?;
    Some(i64::from_le_bytes(number))
}

/// Whether the process that left a mark has certainly ended.
fn is_gone(text: &str, boot: &Boot) -> bool {
    text.split_once(' ').is_some_and(|(its, path)| its == boot.id && unlocked(Path::new(path)))
}

fn unlocked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
    }
}

/// Removes the mark of a process that has ended.
fn sweep(text: &str, boot: &Boot) {
    if is_gone(text, boot)
        && let Some((_, path)) = text.split_once(' ')
    {
        let _ = remove_file(path);
    }
}

/// The marks of a process, by session, in a folder that other workers on the same machine see. Without a folder, the
/// end of a process is not seen at once.
#[derive(Debug)]
pub struct Marks {
    folder: Option<PathBuf>,
    /// What the files' names begin with.
    prefix: String,
    boot: Boot,
    entropy: Entropy,
    kept: Mutex<HashMap<i64, Mark>>,
}

impl Marks {
    /// No marks yet.
    pub fn new(folder: Option<PathBuf>, prefix: String, entropy: &Entropy) -> Self {
        let boot = Boot::current(&entropy.token());
        Self { folder, prefix, boot, entropy: entropy.clone(), kept: Mutex::default() }
    }

    /// In memory that all processes of the machine share, where there is such a folder.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code))]
    pub fn shared(prefix: String, entropy: &Entropy) -> Self {
        let shared = PathBuf::from("/dev/shm");
        Self::new(Some(if shared.is_dir() { shared } else { std::env::temp_dir() }), prefix, entropy)
    }

    /// Creates a mark; answers also with its text for the ledger.
    ///
    /// # Errors
    /// When the file cannot be created or written.
    pub fn leave(&self, now: Time) -> io::Result<Option<(Mark, String)>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let mut mark = Mark::leave(folder.join(format!("{}{}", self.prefix, self.entropy.token())), &self.boot)?;
        mark.beat(now)?;
        let text = mark.text();
        Ok(Some((mark, text)))
    }

    /// Keeps a mark for a session.
    pub fn keep(&self, session: i64, mark: Mark) {
        self.kept().insert(session, mark);
    }

    /// Removes the mark of a session that has ended.
    pub fn forget(&self, session: i64) {
        self.kept().remove(&session);
    }

    /// Raises the number of a session's mark; answers whether there is one.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn beat(&self, session: i64, now: Time) -> io::Result<bool> {
        self.kept().get_mut(&session).map_or(Ok(false), |mark| mark.beat(now).map(|()| true))
    }

    /// See [`beat_of`].
    pub fn beat_of(&self, text: &str) -> Option<i64> {
        beat_of(text, &self.boot)
    }

    /// See [`is_gone`].
    pub fn is_gone(&self, text: &str) -> bool {
        is_gone(text, &self.boot)
    }

    /// See [`sweep`].
    pub fn sweep(&self, text: &str) {
        sweep(text, &self.boot);
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<i64, Mark>> {
        self.kept.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_that_has_certainly_ended_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let boot = Boot::current("this");
        let path = folder.path().join("mark");
        let mut mark = Mark::leave(path.clone(), &boot).unwrap();
        let text = mark.text();
        assert_eq!(beat_of(&text, &boot), None);
        for beat in 1..4 {
            mark.beat(Time::default()).unwrap();
            assert_eq!(beat_of(&text, &boot), Some(beat));
        }
        assert!(!is_gone(&text, &boot), "it is kept");
        assert!(Mark::leave(path.clone(), &boot).is_err(), "and cannot be taken");
        drop(mark);
        assert!(!path.exists() && !is_gone(&text, &boot), "a process whose mark cannot be seen may live elsewhere");
        // What a killed process leaves behind.
        File::create(&path).unwrap();
        assert!(is_gone(&text, &boot));
        for other in ["", "nonsense", &text.replace(&boot.id, "another boot")] {
            assert!(!is_gone(other, &boot), "{other}");
        }
        sweep(&text, &boot);
        assert!(!path.exists());
    }
}
