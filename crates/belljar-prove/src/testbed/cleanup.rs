//! Removes a test bed: at its end, after a signal or a kill, and the leftovers of dead ones.
//!
//! A separate process waits for the end of this one, which closes a pipe. It is in another session, so that a signal
//! from the terminal does not reach it. If it is killed too, the next test bed finds an unlocked directory and removes it.

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::TestBedError;
use crate::probe::PROBE;

/// What the names of all stages begin with.
pub(super) const PREFIX: &str = "belljar-prove-";
/// Beside the directory, since it is held until that is gone.
const LOCK: &str = ".lock";
/// The runs of a stage that was killed may take a moment to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer paths are not looked at; what is in them goes without that.
const MAX_LENGTH: usize = 3000;

#[derive(Debug)]
pub(super) struct CleanupProcess {
    root: PathBuf,
    process: Child,
    /// Closing it starts the cleanup.
    hold: Option<ChildStdin>,
}

impl CleanupProcess {
    pub(super) fn start(belljar: &Path, root: &Path) -> Result<Self, TestBedError> {
        let mut command = Command::new(belljar);
        command.args([PROBE, SWEEP]).arg(root).env_clear();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let failed = || TestBedError::io("start what takes the stage away");
        let mut process = command.spawn().map_err(failed())?;
        let hold = process.stdin.take();
        // Before it has left our session, a signal to us would end it too.
        let mut byte = [0; 1];
        let ready = process.stdout.take().map(|mut out| out.read_exact(&mut byte));
        ready.unwrap_or(Ok(())).map_err(failed())?;
        Ok(Self { root: root.to_owned(), process, hold })
    }

    pub(super) fn finish(&mut self) {
        drop(self.hold.take());
        let _ = self.process.wait(); // a child process that ends within its timeout
        if self.root.exists() {
            remove(&self.root); // it was killed
        }
    }
}

/// The probe that is a sweeper.
pub(crate) const SWEEP: &str = "sweep";

/// Waits for the end of its parent, then removes a directory.
pub(crate) fn cleanup(root: &Path) -> i32 {
    let _ = rustix::process::setsid(); // a leader already is as good
    let Ok(_lock) = locked(root) else { return 1 };
    if rustix::io::write(rustix::stdio::stdout(), b".").is_err() {
        return 1;
    }
    let _ = std::io::stdin().read_to_end(&mut Vec::new()); // its end is all that counts
    let until = Instant::now() + PATIENCE;
    while !remove(root) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(100));
    }
    let _ = fs::remove_file(lock_of(root)); // one that stays is found by the next stage
    i32::from(root.exists())
}

fn lock_of(root: &Path) -> PathBuf {
    let mut name = root.as_os_str().to_owned();
    name.push(LOCK);
    name.into()
}

/// Held as long as the file is open.
fn locked(root: &Path) -> std::io::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).open(lock_of(root))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// What stages of this user left that nobody is going to take away any more.
pub(super) fn leftovers(base: &Path) {
    let own = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_own = entry.metadata().is_ok_and(|found| found.uid() == own);
        if !name.starts_with(PREFIX) || !is_own {
            continue;
        }
        let testbed = base.join(name.strip_suffix(LOCK).unwrap_or(&name));
        // One that is just being made has no lock yet, and is not old.
        let is_new = |path: &Path| {
            let changed = fs::symlink_metadata(path).and_then(|found| found.modified());
            changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < Duration::from_secs(10)))
        };
        if is_new(&testbed) && !lock_of(&testbed).exists() {
            continue;
        }
        if let Ok(_lock) = locked(&testbed) {
            remove(&testbed);
            let _ = fs::remove_file(lock_of(&testbed)); // the next stage looks again
        }
    }
}

/// Whether nothing is left. What a run may have made is there too: directories that not even their owner may enter.
fn remove(root: &Path) -> bool {
    if fs::remove_dir_all(root).is_err() {
        unlock(root);
        let _ = fs::remove_dir_all(root); // whether it worked is looked at below
    }
    fs::symlink_metadata(root).is_err()
}

fn unlock(root: &Path) {
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        let _ = fs::set_permissions(&directory, Permissions::from_mode(0o700)); // not ours to open, then
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_directory && entry.path().as_os_str().len() < MAX_LENGTH {
                left.push(entry.path());
            }
        }
    }
}
