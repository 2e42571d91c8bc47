//! Taking a stage away: at its end, after a signal, after a kill, and what a dead one left.
//!
//! A process of its own waits for the end of ours, which the kernel tells by closing a pipe; it is in a session of
//! its own, so that what ends us by the terminal does not end it. Should that be killed as well, the next stage
//! finds a directory that nobody has locked.

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::StageError;
use crate::probe::PROBE;

/// What the names of all stages begin with.
pub(super) const PREFIX: &str = "belljar-prove-";
/// Beside the directory, since it is held until that is gone.
const LOCK: &str = ".lock";
/// The runs of a stage that was killed may take a moment to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer paths are not looked at; what is in them goes without that.
const LONGEST: usize = 3000;

#[derive(Debug)]
pub(super) struct Sweeper {
    root: PathBuf,
    process: Child,
    /// Its end is the word to begin.
    hold: Option<ChildStdin>,
}

impl Sweeper {
    pub(super) fn start(belljar: &Path, root: &Path) -> Result<Self, StageError> {
        let mut command = Command::new(belljar);
        command.args([PROBE, SWEEP]).arg(root).env_clear();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let failed = || StageError::io("start what takes the stage away");
        let mut process = command.spawn().map_err(failed())?;
        let hold = process.stdin.take();
        // Before it has left our session, a signal to us would end it too.
        let mut word = [0; 1];
        let ready = process.stdout.take().map(|mut out| out.read_exact(&mut word));
        ready.unwrap_or(Ok(())).map_err(failed())?;
        Ok(Self { root: root.to_owned(), process, hold })
    }

    pub(super) fn finish(&mut self) {
        drop(self.hold.take());
        let _ = self.process.wait(); // it is our child, and ends within its patience
        if self.root.exists() {
            remove(&self.root); // it was killed
        }
    }
}

/// The probe that is a sweeper.
pub(crate) const SWEEP: &str = "sweep";

/// Waits for the end of whoever started it, then takes a directory away.
pub(crate) fn sweep(root: &Path) -> i32 {
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
        let stage = base.join(name.strip_suffix(LOCK).unwrap_or(&name));
        // One that is just being made has no lock yet, and is not old.
        let is_new = |path: &Path| {
            let changed = fs::symlink_metadata(path).and_then(|found| found.modified());
            changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < Duration::from_secs(10)))
        };
        if is_new(&stage) && !lock_of(&stage).exists() {
            continue;
        }
        if let Ok(_lock) = locked(&stage) {
            remove(&stage);
            let _ = fs::remove_file(lock_of(&stage)); // the next stage looks again
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
            if is_directory && entry.path().as_os_str().len() < LONGEST {
                left.push(entry.path());
            }
        }
    }
}
