//! What is wrong with the disk, or with what is on it: in words for an operator, and in the write-ahead log.

use std::fs::File;
use std::io::{BufReader, Read, Result};
use std::path::Path;

use rusqlite::{Connection, Error, ErrorCode, ffi};

use crate::error::LedgerError;

/// What SQLite says of the file at `path`. Where its disk is the cause, also what follows and what to do.
pub(super) fn words(path: &str, error: &Error) -> String {
    let folder = Path::new(path).parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = folder.display();
    let damaged = || {
        format!(
            "{path} is damaged ({error}). Stop the workers, look with `roundelay doctor --thorough`, and restore a \
             backup: docs/operations.md, \"A damaged ledger\""
        )
    };
    match error {
        // The program reads no column as what it did not write there.
        Error::InvalidColumnType(..)
        | Error::IntegralValueOutOfRange(..)
        | Error::FromSqlConversionFailure(..)
        | Error::Utf8Error(..) => damaged(),
        Error::SqliteFailure(failure, _) => match failure.code {
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => damaged(),
            _ if is_full(failure) => format!(
                "the disk of {path} is full. Nothing that was answered is lost; make room (`df -h {folder}`), and \
                 workers go on by themselves"
            ),
            ErrorCode::SystemIoFailure => format!(
                "the disk of {path} fails ({error}; SQLite's code {code}), or is full. Nothing that was answered is \
                 lost; see `dmesg` and `df -h {folder}`. Once the disk works, workers go on by themselves",
                code = failure.extended_code
            ),
            _ => error.to_string(),
        },
        _ => error.to_string(),
    }
}

/// Also where the index of the log, which is shared memory in a file, has no room.
fn is_full(failure: &ffi::Error) -> bool {
    failure.code == ErrorCode::DiskFull || failure.extended_code == ffi::SQLITE_IOERR_SHMSIZE
}

/// The error of a statement.
pub(super) fn failed(connection: &Connection, error: &Error) -> LedgerError {
    LedgerError::Statement(words(connection.path().unwrap_or_default(), error))
}

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

fn number(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// SQLite's checksum, which goes on from the one before.
fn checksum(big_endian: bool, bytes: &[u8], mut sums: (u32, u32)) -> (u32, u32) {
    for pair in bytes.chunks_exact(8) {
        let word = |at| if big_endian { number(pair, at) } else { number(pair, at).swap_bytes() };
        sums.0 = sums.0.wrapping_add(word(0)).wrapping_add(sums.1);
        sums.1 = sums.1.wrapping_add(word(4)).wrapping_add(sums.0);
    }
    sums
}

fn filled(log: &mut impl Read, bytes: &mut [u8]) -> Result<bool> {
    match log.read_exact(bytes) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}

/// The place in a write-ahead log from which on transactions would be lost that were answered, in bytes.
///
/// SQLite takes the first frame whose checksum is wrong for the end of the log, and says nothing: a failure of power
/// leaves such a frame, too. But it leaves no later transaction, since the next one begins only when the one before
/// has been synced. So a frame behind the wrong one that goes on from the end of a transaction, by checksum, shows
/// damage. Of the last transaction in the log nothing shows it.
fn lost_from(mut log: impl Read) -> Result<Option<u64>> {
    let mut header = [0; HEADER];
    if !filled(&mut log, &mut header)? {
        return Ok(None);
    }
    let (magic, page) = (number(&header, 0), number(&header, 8) as usize);
    let big_endian = magic & 1 == 1;
    let salts = &header[16..24];
    let mut sums = (number(&header, 24), number(&header, 28));
    let is_page = page.is_power_of_two() && (512..=65_536).contains(&page);
    if magic | 1 != 0x377f_0683 || !is_page || checksum(big_endian, &header[..24], (0, 0)) != sums {
        // It is synced before the first frame is written.
        return Ok(filled(&mut log, &mut [0; FRAME_HEADER])?.then_some(0));
    }
    let mut frame = vec![0; FRAME_HEADER + page];
    let (mut at, mut first_wrong, mut ended) = (HEADER as u64, None, false);
    while filled(&mut log, &mut frame)? {
        let (head, content) = frame.split_at(FRAME_HEADER);
        let ours = &head[8..16] == salts;
        let stored = (number(head, 16), number(head, 20));
        let goes_on = ours && checksum(big_endian, content, checksum(big_endian, &head[..8], sums)) == stored;
        match first_wrong {
            None if !goes_on => first_wrong = Some(at),
            Some(_) if goes_on && ended => return Ok(first_wrong),
            _ => {}
        }
        ended = ours && number(head, 4) != 0;
        sums = stored;
        at += frame.len() as u64;
    }
    Ok(None)
}

/// See [`lost_from`]. A process that writes meanwhile seems to leave damage at the place where it is just then, but not
/// at the same place twice.
pub(super) fn damaged_log(log: &Path) -> Result<Option<u64>> {
    let look = || match File::open(log) {
        Ok(file) => lost_from(BufReader::with_capacity(1 << 20, file)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    Ok(look()?.filter(|place| look().is_ok_and(|again| again == Some(*place))))
}

/// The finding about a damaged log.
pub(super) fn log_words(log: &Path, place: u64) -> String {
    format!(
        "{} is damaged from byte {place} on: what was written after that would be lost. Stop the workers, and keep \
         the files; docs/operations.md, \"A damaged ledger\", says how to go on",
        log.display()
    )
}
