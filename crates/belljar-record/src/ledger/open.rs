//! Opens and creates the database.

use std::io;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;

use super::{Ledger, LedgerError};
use crate::home::Home;

/// The version of the schema that this build writes.
pub(super) const VERSION: i64 = 1;

/// How long a writer waits for the others.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// The write-ahead log is folded into the database when it is longer than this. Not much, since the
/// first process to open the ledger reads the whole log again; not nothing, since it costs three waits
/// for the disk.
const LONG_LOG: u64 = 256 << 10;

/// With less room than this the ledger is not touched. SQLite shares an index between processes by a mapped
/// file, and a page of it that the disk has no room for would end the process by a signal.
const ROOM: u64 = 128 << 10;

/// Version n is reached by the n-th step.
const STEPS: &[&str] = &["
CREATE TABLE runs (
    id TEXT PRIMARY KEY NOT NULL,
    name TEXT,
    backend TEXT NOT NULL,
    state TEXT NOT NULL,
    command TEXT NOT NULL,
    workspace BLOB,
    created_ms INTEGER NOT NULL,
    stopped_ms INTEGER,
    reason TEXT,
    exit TEXT,
    usage TEXT NOT NULL,
    sandbox INTEGER NOT NULL,
    anchor TEXT,
    origin TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX runs_by_name ON runs (name, state, id);
CREATE INDEX sandboxes_by_name ON runs (name, id) WHERE sandbox = 1 AND state = 'stopped';
"];

pub(super) fn open(home: &Home) -> Result<Ledger, LedgerError> {
    let path = home.ledger_path();
    let failed = |error| classify(&path, error);
    check_room(home).map_err(|error| LedgerError::Open { path: path.clone(), error })?;
    let connection = match connect(&path) {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::CannotOpen) => {
            make_file(&path).map_err(|error| LedgerError::Open { path: path.clone(), error })?;
            connect(&path)
        }
        connected => connected,
    };
    let mut connection = connection.map_err(failed)?;
    match version(&connection).map_err(failed)? {
        VERSION => {}
        found if found > VERSION => {
            return Err(LedgerError::Newer { path, found, known: VERSION });
        }
        _ => {
            // Two processes cannot both turn the same file to a write-ahead log: one would get the error that
            // it is locked, without waiting.
            let _lock =
                home.lock().map_err(|error| LedgerError::Open { path: path.clone(), error })?;
            migrate(&mut connection).map_err(failed)?;
        }
    }
    Ok(Ledger { connection, path })
}

/// For listings. Where it cannot be written now, what is there is read without changing anything; `None`: there is
/// no ledger, and none can be made.
pub(super) fn open_to_read(home: &Home) -> Result<Option<Ledger>, LedgerError> {
    let path = home.ledger_path();
    match open(home) {
        Err(error) if error.is_no_space() => {}
        opened => return opened.map(Some),
    }
    if std::fs::symlink_metadata(&path).is_err() {
        return Ok(None);
    }
    let readable = |connection: Connection| version(&connection).map(|_| connection);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(&path, flags).and_then(readable).or_else(|_| {
        // Without the write-ahead log, which cannot be shared without room: rows that are only there are read from
        // the run's own records.
        let flags = flags | OpenFlags::SQLITE_OPEN_URI;
        Connection::open_with_flags(immutable(&path), flags).and_then(readable)
    });
    match connection {
        // Not even made when the disk became full.
        Ok(connection) if version(&connection).is_ok_and(|found| found != VERSION) => Ok(None),
        Ok(connection) => Ok(Some(Ledger { connection, path })),
        Err(error) => Err(classify(&path, error)),
    }
}

/// The file as a URI with `immutable`: no process writes it.
fn immutable(path: &Path) -> String {
    let mut uri = "file:".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => {
                uri.push(char::from(*byte));
            }
            other => uri.push_str(&format!("%{other:02x}")),
        }
    }
    uri + "?immutable=1"
}

fn check_room(home: &Home) -> io::Result<()> {
    let found = rustix::fs::statvfs(home.path())?;
    if found.f_bavail.saturating_mul(found.f_frsize) < ROOM {
        return Err(Errno::NOSPC.into());
    }
    Ok(())
}

/// An empty file, whose mode the write-ahead log and the shared memory take over. Made without being
/// opened: closing it would drop the locks that another thread has on it through SQLite. In one step, so
/// that a process that is killed leaves no draft.
fn make_file(path: &Path) -> io::Result<()> {
    let mode = Mode::from_raw_mode(0o600);
    match rustix::fs::mknodat(CWD, path, FileType::RegularFile, mode, 0) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Neither at every close nor by itself: most processes open the ledger for one row. SQLite's own way
    // would let the log grow, as only the next write through the same connection begins it anew.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    // `synchronous` is FULL by itself.
    Ok(connection)
}

/// Folds the log into the database where it has grown long. Where others are at work this is left to one of
/// them: nothing depends on it.
pub(super) fn fold_long_log(connection: &Connection, path: &Path) -> rusqlite::Result<()> {
    let mut log = path.to_owned().into_os_string();
    log.push("-wal");
    if std::fs::metadata(log).is_ok_and(|log| log.len() > LONG_LOG) {
        connection.busy_timeout(Duration::ZERO)?;
        let folded = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        connection.busy_timeout(BUSY_TIMEOUT)?;
        match folded {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {}
            folded => folded?,
        }
    }
    Ok(())
}

fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// The caller holds the home's lock.
fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have done it meanwhile.
    let from = usize::try_from(version(&transaction)?).unwrap_or(0);
    for step in STEPS.iter().skip(from) {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()
}

/// What went wrong, by what can be done about it.
pub(super) fn classify(path: &Path, error: rusqlite::Error) -> LedgerError {
    use rusqlite::Error::{
        FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, SqlInputError,
        SqliteFailure, Utf8Error,
    };
    let path = path.to_owned();
    match &error {
        // A value that no belljar wrote, or a table that is not there.
        FromSqlConversionFailure(..)
        | IntegralValueOutOfRange(..)
        | InvalidColumnType(..)
        | Utf8Error(..)
        | SqlInputError { .. } => LedgerError::Corrupt { path, error },
        SqliteFailure(code, _)
            if matches!(
                code.code,
                ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt | ErrorCode::Unknown
            ) =>
        {
            LedgerError::Corrupt { path, error }
        }
        _ => LedgerError::Sqlite { path, error },
    }
}
