//! The layer between SQLite and its own layer for files, by SQLite's interface for that (`sqlite3_vfs`).
//!
//! It becomes the process's default, once, so that a ledger is opened as ever. A file that is on no [`crate::Disk`] is
//! opened by SQLite's layer alone, as if ours were not there.
//!
//! Why the unsafe code is sound: SQLite calls a file's methods only with a file that [`open`] has filled in, and not
//! after `close`. It gives `szOsFile` bytes for a file, aligned to 8: [`File`] is at the beginning, and what SQLite's
//! layer keeps of the file follows.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Once};

use parking_lot::Mutex;
use rusqlite::ffi;
use rusqlite::ffi::{sqlite3_file, sqlite3_int64, sqlite3_io_methods, sqlite3_vfs};

use crate::{Access, Change, State};

static DISKS: Mutex<BTreeMap<PathBuf, Arc<Mutex<State>>>> = Mutex::new(BTreeMap::new());

/// SQLite's own layer.
static REAL: AtomicPtr<sqlite3_vfs> = AtomicPtr::new(std::ptr::null_mut());
static REGISTERED: Once = Once::new();

pub fn watch(folder: PathBuf, state: Arc<Mutex<State>>) {
    REGISTERED.call_once(register);
    DISKS.lock().insert(folder, state);
}

pub fn forget(folder: &Path) {
    DISKS.lock().remove(folder);
}

fn register() {
    // SAFETY: SQLite's layer is registered for as long as the process lives, and so is ours, which is never freed. All
    // that is not ours is a copy of that of SQLite's layer, which asks nothing of a layer but what is copied.
    unsafe {
        let real = ffi::sqlite3_vfs_find(std::ptr::null());
        let ours = Box::leak(Box::new(*real));
        ours.szOsFile += c_int::try_from(size_of::<File>()).expect("a small structure");
        ours.zName = c"faulty-disk".as_ptr();
        ours.pNext = std::ptr::null_mut();
        ours.xOpen = Some(open);
        ours.xDelete = Some(delete);
        REAL.store(real, Ordering::Release);
        assert_eq!(ffi::sqlite3_vfs_register(ours, 1), ffi::SQLITE_OK);
    }
}

/// It is there before ours is registered.
fn real_layer() -> *mut sqlite3_vfs {
    REAL.load(Ordering::Acquire)
}

/// A file on a [`crate::Disk`]. What SQLite's layer keeps of it follows.
#[repr(C, align(8))]
struct File {
    base: sqlite3_file,
    on: *mut On,
}

struct On {
    state: Arc<Mutex<State>>,
    inode: usize,
    access: Access,
    /// The folder is synced with its next sync.
    syncs_folder: bool,
}

/// The disk and the name of a file on it.
unsafe fn on_disk(name: *const c_char) -> Option<(Arc<Mutex<State>>, PathBuf)> {
    if name.is_null() {
        return None;
    }
    // SAFETY: SQLite gives names that end with a zero.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()));
    let state = DISKS.lock().get(path.parent()?).cloned()?;
    Some((state, path.file_name()?.into()))
}

/// What SQLite's layer keeps of the file, and its methods.
unsafe fn real(file: *mut sqlite3_file) -> (*mut sqlite3_file, &'static sqlite3_io_methods) {
    // SAFETY: see the page's first lines. The methods are constants of SQLite's.
    unsafe {
        let real = file.cast::<File>().add(1).cast::<sqlite3_file>();
        (real, &*(*real).pMethods)
    }
}

unsafe fn on<'a>(file: *mut sqlite3_file) -> &'a mut On {
    // SAFETY: `open` has put it there, and SQLite uses a file from one thread at a time.
    unsafe { &mut *(*file.cast::<File>()).on }
}

unsafe extern "C" fn open(
    _: *mut sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: what SQLite gives is given on; see the page's first lines.
    unsafe {
        let open = (*real_layer()).xOpen.expect("SQLite's layer opens files");
        let Some((state, name_there)) = on_disk(name) else { return open(real_layer(), name, file, flags, out) };
        (*file).pMethods = std::ptr::null();
        let mut there = state.lock();
        let is_new = !there.folder.join(&name_there).exists();
        let below = file.cast::<File>().add(1).cast::<sqlite3_file>();
        let rc = open(real_layer(), name, below, flags, out);
        if rc != ffi::SQLITE_OK {
            return rc;
        }
        let inode = there.opened(&name_there, is_new);
        drop(there);
        let is_log = flags & (ffi::SQLITE_OPEN_WAL | ffi::SQLITE_OPEN_MAIN_JOURNAL) != 0;
        let access = if is_log { Access::Log } else { Access::Database };
        let on = Box::new(On { state, inode, access, syncs_folder: is_log && is_new });
        file.cast::<File>().write(File { base: sqlite3_file { pMethods: &raw const METHODS }, on: Box::into_raw(on) });
        ffi::SQLITE_OK
    }
}

unsafe extern "C" fn delete(_: *mut sqlite3_vfs, name: *const c_char, sync_folder: c_int) -> c_int {
    // SAFETY: as for `open`.
    unsafe {
        let delete = (*real_layer()).xDelete.expect("SQLite's layer deletes files");
        let Some((state, name_there)) = on_disk(name) else { return delete(real_layer(), name, sync_folder) };
        let mut state = state.lock();
        state.begins(Access::Delete);
        let rc = delete(real_layer(), name, 0);
        if rc == ffi::SQLITE_OK {
            state.names.remove(&name_there);
            if sync_folder != 0 {
                state.folder_synced();
            }
        }
        rc
    }
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: SQLite does not use the file any more.
    unsafe {
        drop(Box::from_raw(on(file)));
        let (real, methods) = real(file);
        methods.xClose.expect("files are closed")(real)
    }
}

unsafe extern "C" fn read(file: *mut sqlite3_file, into: *mut c_void, bytes: c_int, at: sqlite3_int64) -> c_int {
    // SAFETY: what SQLite gives is given on.
    unsafe {
        let mut state = on(file).state.lock();
        let share = state.faults.reads;
        if state.fails(share) {
            return ffi::SQLITE_IOERR_READ;
        }
        drop(state);
        let (real, methods) = real(file);
        methods.xRead.expect("files are read")(real, into, bytes, at)
    }
}

unsafe extern "C" fn write(file: *mut sqlite3_file, from: *const c_void, bytes: c_int, at: sqlite3_int64) -> c_int {
    // SAFETY: `from` has so many bytes.
    unsafe {
        let on = on(file);
        let from_there = std::slice::from_raw_parts(from.cast::<u8>(), bytes as usize);
        let (begin, end) = (at as usize, at as usize + bytes as usize);
        let mut state = on.state.lock();
        state.begins(on.access);
        let share = state.faults.writes;
        if state.is_full(on.inode, end) {
            return ffi::SQLITE_FULL;
        }
        if state.fails(share) {
            return ffi::SQLITE_IOERR_WRITE;
        }
        let (real, methods) = real(file);
        let rc = methods.xWrite.expect("files are written")(real, from, bytes, at);
        if rc == ffi::SQLITE_OK {
            let inode = &mut state.inodes[on.inode];
            inode.changes.push(Change::Write { at: begin, bytes: from_there.to_vec() });
            inode.length = inode.length.max(end);
        }
        rc
    }
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, length: sqlite3_int64) -> c_int {
    // SAFETY: as for `read`.
    unsafe {
        let on = on(file);
        let mut state = on.state.lock();
        state.begins(Access::Truncate);
        let (real, methods) = real(file);
        let rc = methods.xTruncate.expect("files are cut off")(real, length);
        if rc == ffi::SQLITE_OK {
            let inode = &mut state.inodes[on.inode];
            inode.changes.push(Change::Truncate(length as usize));
            inode.length = length as usize;
        }
        rc
    }
}

/// The real file is not synced: no power fails in truth.
unsafe extern "C" fn sync(file: *mut sqlite3_file, _: c_int) -> c_int {
    // SAFETY: as for `read`.
    unsafe {
        let on = on(file);
        let mut state = on.state.lock();
        state.begins(Access::Sync);
        let share = state.faults.syncs;
        let fails = state.fails(share);
        state.synced(on.inode, fails);
        if fails {
            return ffi::SQLITE_IOERR_FSYNC;
        }
        if std::mem::take(&mut on.syncs_folder) {
            state.folder_synced();
        }
        ffi::SQLITE_OK
    }
}

/// A method that is given on to SQLite's layer.
macro_rules! given_on {
    ($name:ident, $method:ident $(, $argument:ident: $type:ty)*) => {
        given_on!($name, $method => c_int $(, $argument: $type)*);
    };
    ($name:ident, $method:ident => $answer:ty $(, $argument:ident: $type:ty)*) => {
        unsafe extern "C" fn $name(file: *mut sqlite3_file $(, $argument: $type)*) -> $answer {
            // SAFETY: what SQLite gives is given on.
            unsafe {
                let (real, methods) = real(file);
                methods.$method.expect("SQLite's layer for Unix has all methods")(real $(, $argument)*)
            }
        }
    };
}

given_on!(file_size, xFileSize, size: *mut sqlite3_int64);
given_on!(lock, xLock, level: c_int);
given_on!(unlock, xUnlock, level: c_int);
given_on!(check_reserved_lock, xCheckReservedLock, out: *mut c_int);
given_on!(file_control, xFileControl, what: c_int, argument: *mut c_void);
given_on!(sector_size, xSectorSize);
given_on!(device_characteristics, xDeviceCharacteristics);
given_on!(shm_map, xShmMap, region: c_int, size: c_int, extend: c_int, out: *mut *mut c_void);
given_on!(shm_lock, xShmLock, offset: c_int, count: c_int, flags: c_int);
given_on!(shm_unmap, xShmUnmap, delete: c_int);
given_on!(shm_barrier, xShmBarrier => ());

/// Without the methods of version 3, which map files into memory past all this.
static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};
