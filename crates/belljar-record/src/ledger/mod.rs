//! The ledger: an index over all runs, in SQLite.
//!
//! Nothing is kept here alone but the anchors of the records: every row can be made again from the run's
//! directory. It is opened at the end of every run, so opening reads one page and no more.

mod open;
mod rebuild;
mod row;

use std::path::PathBuf;

use belljar_spec::{RunId, RunState};
use rusqlite::{Connection, OptionalExtension, Params, ToSql, TransactionBehavior};

pub use rebuild::{Rebuilt, rebuild};
pub(crate) use row::work_line;
pub use row::{AnchorRow, LedgerRow, RowOrigin, SandboxKept, agent_line, command_line};

use crate::home::Home;

/// An open ledger. Each process, and each thread, has its own.
#[derive(Debug)]
pub struct Ledger {
    connection: Connection,
    path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error(
        "the ledger {path} is damaged; rebuild it from the records with: belljar reconcile \
         --rebuild-ledger", path = .path.display()
    )]
    Corrupt {
        path: PathBuf,
        #[source]
        error: rusqlite::Error,
    },
    #[error(
        "the ledger {path} has version {found} and this belljar knows {known}: a newer belljar wrote \
         it; use that one, or set BELLJAR_HOME to another directory", path = .path.display()
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error("cannot make or open the ledger {path}; check its permissions and the free disk space", path = .path.display())]
    Open {
        path: PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("cannot read or write the ledger {path}; check its permissions and the free disk space", path = .path.display())]
    Sqlite {
        path: PathBuf,
        #[source]
        error: rusqlite::Error,
    },
}

impl LedgerError {
    /// It cannot be written for want of room, bytes or files.
    pub fn is_no_space(&self) -> bool {
        use rusqlite::ErrorCode::{CannotOpen, DiskFull, ReadOnly, SystemIoFailure};
        match self {
            Self::Open { error, .. } => crate::ballast::is_no_space(error),
            // SQLite does not report why it could not make a file beside the database.
            Self::Sqlite { error, .. } => matches!(
                error.sqlite_error_code(),
                Some(CannotOpen | DiskFull | ReadOnly | SystemIoFailure)
            ),
            Self::Corrupt { .. } | Self::Newer { .. } => false,
        }
    }
}

/// Which names to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ByName {
    #[default]
    Any,
    /// This one, never as a prefix; `None` are the runs without a name.
    Exactly(Option<String>),
}

/// Which states to list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ByState {
    #[default]
    Any,
    Is(RunState),
}

/// What a listing holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub name: ByName,
    pub state: ByState,
}

impl Ledger {
    /// Makes it if it is not there.
    pub fn open(home: &Home) -> Result<Self, LedgerError> {
        open::open(home)
    }

    /// The same for what only reads: works on a full disk too. `None`: there is none, and none can be made.
    pub fn open_to_read(home: &Home) -> Result<Option<Self>, LedgerError> {
        open::open_to_read(home)
    }

    /// Opens it for a change that cannot wait, and gives up the room that is kept for that.
    pub fn write<T>(
        home: &Home,
        mut change: impl FnMut(&mut Self) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let work = || open::open(home).and_then(|mut ledger| change(&mut ledger));
        crate::ballast::or_give_up(home, work, LedgerError::is_no_space)
    }

    /// Writes the row, whether there was one or not. On disk when this returns.
    pub fn upsert(&mut self, row: &LedgerRow) -> Result<(), LedgerError> {
        self.change(|connection| row::write(connection, row, row::IfThere::Replace).map(drop))
    }

    /// Writes those rows that are not there, and returns how many.
    pub fn add_missing(&mut self, rows: &[LedgerRow]) -> Result<usize, LedgerError> {
        self.change(|connection| {
            let added = rows.iter().map(|row| row::write(connection, row, row::IfThere::Keep));
            added.sum::<Result<usize, _>>()
        })
    }

    pub fn get(&self, id: &RunId) -> Result<Option<LedgerRow>, LedgerError> {
        let sql = format!("SELECT {} FROM runs WHERE id = ?1", row::COLUMNS);
        self.read(|connection| {
            connection.prepare(&sql)?.query_row([id.as_str()], row::read).optional()
        })
    }

    /// All of them or none. An id without a row is no error.
    pub fn remove(&mut self, ids: &[RunId]) -> Result<(), LedgerError> {
        if ids.is_empty() {
            return Ok(());
        }
        self.change(|connection| {
            let mut statement = connection.prepare("DELETE FROM runs WHERE id = ?1")?;
            ids.iter().try_for_each(|id| statement.execute([id.as_str()]).map(drop))
        })
    }

    /// Newest first.
    pub fn list(&self, filter: &Filter) -> Result<Vec<LedgerRow>, LedgerError> {
        let mut wanted = Vec::new();
        let mut values: Vec<&dyn ToSql> = Vec::new();
        if let ByName::Exactly(name) = &filter.name {
            values.push(name);
            wanted.push(format!("name IS ?{}", values.len()));
        }
        let state = match filter.state {
            ByState::Any => None,
            ByState::Is(state) => Some(state.name()),
        };
        if state.is_some() {
            values.push(&state);
            wanted.push(format!("state = ?{}", values.len()));
        }
        if wanted.is_empty() {
            wanted.push("1".to_owned());
        }
        let (columns, wanted) = (row::COLUMNS, wanted.join(" AND "));
        let sql = format!("SELECT {columns} FROM runs WHERE {wanted} ORDER BY id DESC");
        self.rows(&sql, values.as_slice(), row::read)
    }

    /// Oldest first.
    pub fn ids(&self) -> Result<Vec<RunId>, LedgerError> {
        self.rows("SELECT id FROM runs ORDER BY id", [], row::id)
    }

    /// The runs of exactly that name, newest first.
    pub fn of_name(&self, name: &Option<String>) -> Result<Vec<LedgerRow>, LedgerError> {
        self.list(&Filter { name: ByName::Exactly(name.clone()), state: ByState::Any })
    }

    /// The stopped runs of exactly that name, but for the newest `keep`. Oldest first.
    pub fn stopped_beyond(
        &self,
        name: &Option<String>,
        keep: u32,
    ) -> Result<Vec<RunId>, LedgerError> {
        let sql = "SELECT id FROM (SELECT id FROM runs WHERE name IS ?1 AND state = 'stopped' \
                   ORDER BY id DESC LIMIT -1 OFFSET ?2) ORDER BY id";
        self.rows(sql, (name, keep), row::id)
    }

    /// Of those, the ones that still have their sandbox. Oldest first.
    pub fn kept_beyond(&self, name: &Option<String>, keep: u32) -> Result<Vec<RunId>, LedgerError> {
        // The newest run that is beyond; what is as old or older, and still kept, has an index of its own.
        let sql = "SELECT id FROM runs WHERE name IS ?1 AND state = 'stopped' AND sandbox = 1 \
                   AND id <= (SELECT id FROM runs WHERE name IS ?1 AND state = 'stopped' \
                   ORDER BY id DESC LIMIT 1 OFFSET ?2) ORDER BY id";
        self.rows(sql, (name, keep), row::id)
    }

    /// The run's `home/` and what belongs to it were removed. An id without a row is no error.
    pub fn set_sandbox_gone(&mut self, id: &RunId) -> Result<(), LedgerError> {
        self.change(|connection| {
            let sql = "UPDATE runs SET sandbox = 0 WHERE id = ?1";
            connection.execute(sql, [id.as_str()]).map(drop)
        })
    }

    fn rows<T>(
        &self,
        sql: &str,
        values: impl Params,
        read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, LedgerError> {
        self.read(|connection| connection.prepare(sql)?.query_map(values, read)?.collect())
    }

    fn read<T>(
        &self,
        ask: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, LedgerError> {
        ask(&self.connection).map_err(|error| self.failed(error))
    }

    /// One transaction that takes the lock for writing at once: one that reads first could not wait
    /// for another writer.
    fn change<T>(
        &mut self,
        change: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, LedgerError> {
        let done = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .and_then(|transaction| {
                let value = change(&transaction)?;
                transaction.commit()?;
                Ok(value)
            })
            .and_then(|value| {
                open::fold_long_log(&self.connection, &self.path)?;
                Ok(value)
            });
        done.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: rusqlite::Error) -> LedgerError {
        open::classify(&self.path, error)
    }
}
