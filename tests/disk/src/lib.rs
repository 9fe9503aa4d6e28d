//! A disk below SQLite, for tests: it loses what was not synced when its machine loses power, runs full, and fails.
//!
//! A [`Disk`] is a folder. SQLite's accesses to files there go through a layer of ours (`vfs.rs`) to the real files,
//! so that everything works as ever; beside that, the disk keeps what would be on a real disk if power failed: for
//! each file its content at the last sync, and what was written since. Files elsewhere are none of its business.
//!
//! What it takes a disk for, as SQLite does: a sector of 512 bytes is written whole or not at all; sectors that were
//! not synced are written in any order, or not; a file that was created or deleted may not be so after a power
//! failure until the folder was synced. SQLite's layer for Unix syncs the folder at the first sync of a log or
//! journal that it has created, and after a deletion where it is asked to. When a sync fails, what was to be synced
//! may be lost for good, though programs still read it: so does Linux.

mod vfs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// What a disk writes whole or not at all, in bytes.
const SECTOR: usize = 512;

/// What can go wrong while a disk is asked. Nothing does by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The bytes that all files together may have; beyond that the disk is full.
    pub room: Option<u64>,
    /// The share of reads, writes and syncs that fail, from 0 to 1.
    pub reads: f64,
    /// See `reads`.
    pub writes: f64,
    /// See `reads`.
    pub syncs: f64,
    /// Syncs do nothing, and say that they have. No test of a ledger can pass on such a disk.
    pub lies: bool,
}

/// The files of a disk by their names, as they are after a power failure.
#[derive(Clone, Debug)]
pub struct Image {
    /// What the test had told the disk last: see [`Disk::tell`].
    pub told: usize,
    /// What was about to happen.
    pub during: Access,
    /// The files.
    pub files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Image {
    /// Writes the files into a folder.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        self.files.iter().try_for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes))
    }
}

/// What SQLite asks of a disk: what power failures interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// A write into the database.
    Database,
    /// A write into its write-ahead log, or into a journal.
    Log,
    /// A sync.
    Sync,
    /// A file is cut off.
    Truncate,
    /// A file is deleted.
    Delete,
}

enum Change {
    Write { at: usize, bytes: Vec<u8> },
    Truncate(usize),
}

/// A file, whatever names it has.
#[derive(Default)]
struct Inode {
    durable: Vec<u8>,
    /// Since the last sync, in order.
    changes: Vec<Change>,
    /// Its length as programs see it.
    length: usize,
}

impl Inode {
    fn synced(&mut self) {
        for change in std::mem::take(&mut self.changes) {
            change.apply(&mut self.durable, || true);
        }
    }

    /// Its content after a power failure.
    fn after(&self, random: &mut StdRng) -> Vec<u8> {
        // None of the changes, all, those until somewhere with a part of the last, or each sector with some likelihood.
        let (sort, until, some) =
            (random.random_range(0..4), random.random_range(0..=self.changes.len()), random.random());
        let mut content = self.durable.clone();
        for (nth, change) in self.changes.iter().enumerate() {
            let likelihood = match sort {
                0 => 0.0,
                1 => 1.0,
                2 if nth == until => 0.5,
                2 => f64::from(nth < until),
                _ => some,
            };
            change.apply(&mut content, || random.random_bool(likelihood));
        }
        content
    }
}

impl Change {
    /// Applies the change, but only those of its sectors that are chosen.
    fn apply(&self, content: &mut Vec<u8>, mut chosen: impl FnMut() -> bool) {
        match self {
            Change::Truncate(length) => {
                if chosen() {
                    content.truncate(*length);
                }
            }
            Change::Write { at, bytes } => {
                let mut begin = 0;
                while begin < bytes.len() {
                    let sector = (at + begin) / SECTOR;
                    let end = ((sector + 1) * SECTOR - at).min(bytes.len());
                    if chosen() {
                        content.resize(content.len().max(at + end), 0);
                        content[at + begin..at + end].copy_from_slice(&bytes[begin..end]);
                    }
                    begin = end;
                }
            }
        }
    }
}

/// What is known of a disk.
struct State {
    folder: PathBuf,
    inodes: Vec<Inode>,
    /// The folder as programs see it: inodes by name.
    names: BTreeMap<PathBuf, usize>,
    /// The folder as it was when it was synced last.
    durable: BTreeMap<PathBuf, usize>,
    faults: Faults,
    told: usize,
    random: StdRng,
    /// The share of accesses that are interrupted by a power failure.
    interrupted: f64,
    images: Vec<Image>,
    /// How many accesses have failed.
    failed: u64,
}

impl State {
    /// An access begins: power may fail now, which changes nothing for the process that goes on.
    fn begins(&mut self, access: Access) {
        if self.random.random_bool(self.interrupted) {
            let image = self.after_power_failure(access);
            self.images.push(image);
        }
    }

    fn after_power_failure(&mut self, during: Access) -> Image {
        let mut files = BTreeMap::new();
        let names: BTreeSet<PathBuf> = self.names.keys().chain(self.durable.keys()).cloned().collect();
        for name in names {
            let views = [&self.names, &self.durable];
            if let Some(inode) = views[self.random.random_range(0..2)].get(&name) {
                files.insert(name, self.inodes[*inode].after(&mut self.random));
            }
        }
        Image { told: self.told, during, files }
    }

    fn fails(&mut self, share: f64) -> bool {
        let fails = self.random.random_bool(share);
        self.failed += u64::from(fails);
        fails
    }

    /// Whether there is no room for a file to grow to this length.
    fn is_full(&mut self, inode: usize, length: usize) -> bool {
        let Some(room) = self.faults.room else { return false };
        let growth = length.saturating_sub(self.inodes[inode].length);
        let used: usize = self.names.values().map(|inode| self.inodes[*inode].length).sum();
        let full = growth > 0 && (used + growth) as u64 > room;
        self.failed += u64::from(full);
        full
    }

    /// The file of this name. One that is seen for the first time and not new was there before the test began.
    fn opened(&mut self, name: &Path, is_new: bool) -> usize {
        if let Some(inode) = self.names.get(name) {
            return *inode;
        }
        let durable = std::fs::read(self.folder.join(name)).unwrap_or_default();
        let length = durable.len();
        self.inodes.push(Inode { durable, changes: Vec::new(), length });
        let inode = self.inodes.len() - 1;
        self.names.insert(name.to_owned(), inode);
        if !is_new {
            self.durable.insert(name.to_owned(), inode);
        }
        inode
    }

    /// The file is synced. After a failure what was to be synced is lost to power failures, but for what had been
    /// written already.
    fn synced(&mut self, inode: usize, fails: bool) {
        if self.faults.lies {
            return;
        }
        if !fails {
            return self.inodes[inode].synced();
        }
        let durable = self.inodes[inode].after(&mut self.random);
        self.inodes[inode].durable = durable;
        self.inodes[inode].changes.clear();
    }

    fn folder_synced(&mut self) {
        if !self.faults.lies {
            self.durable.clone_from(&self.names);
        }
    }
}

/// A folder whose disk fails as a test wants. Ends with the test.
pub struct Disk(Arc<Mutex<State>>);

impl Disk {
    /// All files of `folder` that SQLite opens from now on are on this disk. `seed` decides what a power failure
    /// leaves, and which accesses fail.
    pub fn at(folder: &Path, seed: u64) -> Self {
        let folder = folder.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let state = State {
            folder: folder.clone(),
            inodes: Vec::new(),
            names: BTreeMap::new(),
            durable: BTreeMap::new(),
            faults: Faults::default(),
            told: 0,
            random: StdRng::seed_from_u64(seed),
            interrupted: 0.0,
            images: Vec::new(),
            failed: 0,
        };
        let state = Arc::new(Mutex::new(state));
        vfs::watch(folder, state.clone());
        Self(state)
    }

    /// What fails from now on.
    pub fn set(&self, faults: Faults) {
        self.0.lock().faults = faults;
    }

    /// Before this share of accesses, from now on, the disk keeps what a power failure would leave.
    pub fn interrupt(&self, share: f64) {
        self.0.lock().interrupted = share;
    }

    /// Images have this number from now on: so a test knows what was done before them.
    pub fn tell(&self, number: usize) {
        self.0.lock().told = number;
    }

    /// The images since this was asked last.
    pub fn images(&self) -> Vec<Image> {
        std::mem::take(&mut self.0.lock().images)
    }

    /// How many accesses have failed.
    pub fn failed(&self) -> u64 {
        self.0.lock().failed
    }

    /// How many files SQLite has open. One that is open twice counts twice.
    pub fn open_files(&self) -> usize {
        // Beside the files, this and the list of all disks know the state.
        Arc::strong_count(&self.0) - 2
    }

    /// The bytes of all files.
    pub fn used(&self) -> u64 {
        let state = self.0.lock();
        state.names.values().map(|inode| state.inodes[*inode].length as u64).sum()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        vfs::forget(&self.0.lock().folder);
    }
}
