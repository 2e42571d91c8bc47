//! Writes the log of a run's background processes to `runs/<id>/debug.log`, up to a bound.
//!
//! A supervisor in the background has no terminal, and the proxy's standard error is read only when it fails. Each line
//! is one write to the file: the launcher clones processes, so there is no thread and no buffer that could be cloned
//! with it. Which lines there are is decided by the subscriber of the executable.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use rustix::fs::{FlockOperation, OFlags, flock, fstat};

/// Its name in the directory of a run.
pub const FILE: &str = "debug.log";
/// Of the file, whoever writes to it.
pub const MAX_BYTES: u64 = 8 << 20;
/// Longer lines are cut.
const MAX_LINE: usize = 8 << 10;
/// Below the bound: here writers take turns, so that the last line is the last one. Larger than what two processes can
/// write at the same moment.
const MARGIN: u64 = 64 << 10;
/// Lines of the time before there is a directory.
const MAX_PENDING: usize = 256 << 10;
const CUT: &[u8] = b"the log is cut here: it has reached its bound of 8 MiB\n";

/// Where this process writes its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The subscriber writes to standard error. Processes that this one starts still write to the file.
    Stderr,
    /// The file of the run that this process starts.
    RunDirectory,
    /// Standard output, which is the file already: of a process that may open none.
    Stdout,
}

struct State {
    /// As in `BELLJAR_LOG`.
    setting: Option<String>,
    directory: Option<PathBuf>,
    output: LogOutput,
}

enum LogOutput {
    None,
    /// Until the run has its directory.
    Pending(Vec<u8>),
    File(BoundedLog<File>),
    Stdout(BoundedLog<BorrowedFd<'static>>),
}

static STATE: Mutex<State> =
    Mutex::new(State { setting: None, directory: None, output: LogOutput::None });

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Turns the log on, here and in the processes that this one starts for a run. `setting` is a value of `BELLJAR_LOG`.
pub fn enable(setting: &str, destination: Destination) {
    let mut state = state();
    state.setting = Some(setting.to_owned());
    state.output = match destination {
        Destination::Stderr => LogOutput::None,
        Destination::RunDirectory => LogOutput::Pending(Vec::new()),
        Destination::Stdout => {
            LogOutput::Stdout(BoundedLog::new(rustix::stdio::stdout(), MAX_BYTES))
        }
    };
}

/// The value of `BELLJAR_LOG` for processes that this one starts. It goes into no sandbox.
pub fn setting() -> Option<String> {
    state().setting.clone()
}

/// Writes one line, which ends with a newline. A log that cannot be written stops nothing.
pub fn write_line(line: &[u8]) {
    match &mut state().output {
        LogOutput::None => {}
        LogOutput::Pending(lines) if lines.len() + line.len() <= MAX_PENDING => {
            lines.extend_from_slice(line);
        }
        LogOutput::Pending(_) => {}
        LogOutput::File(log) => log.write_line(line),
        LogOutput::Stdout(log) => log.write_line(line),
    }
}

/// The run has its directory: its file is there from now on, if the log is on.
pub(crate) fn enter(directory: &Path) {
    let mut state = state();
    if state.setting.is_none() {
        return;
    }
    state.directory = Some(directory.to_owned());
    let pending = match &mut state.output {
        LogOutput::None | LogOutput::Stdout(_) => return,
        LogOutput::Pending(lines) => std::mem::take(lines),
        LogOutput::File(_) => Vec::new(), // of another backend's attempt, with a record of its own
    };
    let Ok(file) = open(directory) else { return };
    let mut log = BoundedLog::new(file, MAX_BYTES);
    pending.split_inclusive(|byte| *byte == b'\n').for_each(|line| log.write_line(line));
    state.output = LogOutput::File(log);
}

/// For the proxy of the run that this process starts: the value of `BELLJAR_LOG`, and the file.
pub(crate) fn for_proxy() -> Option<(String, File)> {
    let state = state();
    let (setting, directory) = (state.setting.clone()?, state.directory.as_deref()?);
    Some((setting, open(directory).ok()?))
}

/// Opened anew by each process, since a lock belongs to what was opened.
fn open(directory: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC).bits() as i32;
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600).custom_flags(flags);
    options.open(directory.join(FILE))
}

/// A file of lines that several processes append to, and that never grows beyond a bound.
struct BoundedLog<F> {
    file: F,
    max_bytes: u64,
    is_cut: bool,
}

impl<F: AsFd> BoundedLog<F> {
    fn new(file: F, max_bytes: u64) -> Self {
        Self { file, max_bytes, is_cut: false }
    }

    fn write_line(&mut self, line: &[u8]) {
        if self.is_cut {
            return;
        }
        let mut line = line;
        let cut_line;
        if line.len() > MAX_LINE {
            cut_line = [&line[..MAX_LINE - 5], b" ...\n"].concat();
            line = &cut_line;
        }
        let Some(size) = self.size() else { return };
        if size + line.len() as u64 + MARGIN <= self.max_bytes {
            self.append(line);
            return;
        }
        // Without waiting: the other process may be stopped, or not be what it was.
        if flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            self.write_near_the_bound(line);
            let _ = flock(&self.file, FlockOperation::Unlock); // ends with the process at the latest
        }
    }

    fn write_near_the_bound(&mut self, line: &[u8]) {
        let Some(size) = self.size() else { return };
        let mut tail = [0; CUT.len()];
        let from = size.saturating_sub(CUT.len() as u64);
        let has_tail = matches!(rustix::io::pread(&self.file, &mut tail, from), Ok(length) if length == CUT.len());
        if has_tail && tail == *CUT {
            self.is_cut = true;
        } else if size + (line.len() + CUT.len()) as u64 <= self.max_bytes {
            self.append(line);
        } else {
            self.append(CUT);
            self.is_cut = true;
        }
    }

    fn size(&self) -> Option<u64> {
        fstat(&self.file).ok().map(|about| about.st_size as u64)
    }

    fn append(&self, line: &[u8]) {
        let _ = rustix::io::retry_on_intr(|| rustix::io::write(&self.file, line));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const SMALL: u64 = 80 << 10;

    fn log_in(directory: &Path) -> BoundedLog<File> {
        BoundedLog::new(open(directory).unwrap(), SMALL)
    }

    #[test]
    fn the_file_ends_with_one_line_that_says_so() {
        let temp = tempfile::tempdir().unwrap();
        let mut writers = [log_in(temp.path()), log_in(temp.path())];
        for number in 0..4000 {
            let line = format!("{number} {}\n", "x".repeat(number % 100));
            writers[number % 2].write_line(line.as_bytes());
        }
        let mut late = log_in(temp.path());
        late.write_line(b"late\n");
        let text = std::fs::read_to_string(temp.path().join(FILE)).unwrap();
        assert!(text.len() as u64 <= SMALL, "{}", text.len());
        assert!(text.len() as u64 > SMALL - 1000, "{}", text.len());
        assert!(text.as_bytes().ends_with(CUT));
        assert_eq!(text.matches("the log is cut here").count(), 1);
    }

    #[test]
    fn a_writer_that_holds_the_lock_stops_no_other() {
        let temp = tempfile::tempdir().unwrap();
        let holder = open(temp.path()).unwrap();
        flock(&holder, FlockOperation::LockExclusive).unwrap();
        let mut log = log_in(temp.path());
        for _ in 0..4000 {
            log.write_line(&[b"y".repeat(99).as_slice(), b"\n"].concat());
        }
        let size = std::fs::metadata(temp.path().join(FILE)).unwrap().len();
        assert!(size > 0 && size <= SMALL - MARGIN, "{size}");
    }

    #[test]
    fn it_is_private_follows_no_link_and_cuts_long_lines() {
        let temp = tempfile::tempdir().unwrap();
        let mut log = log_in(temp.path());
        log.write_line(&b"z".repeat(MAX_LINE * 2));
        let file = temp.path().join(FILE);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.len() == MAX_LINE && text.ends_with(" ...\n"));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let other = tempfile::tempdir().unwrap();
        symlink(&file, other.path().join(FILE)).unwrap();
        open(other.path()).unwrap_err();
    }
}
