//! The directory of a run and its liveness lock.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use belljar_spec::{MountKind, Plan, PlannedMount, RunId, RunState, Source};
use rustix::fs::{FlockOperation, flock};

use super::{LaunchError, nofollow};
use belljar_record::home::Home;
use belljar_record::store::life;

/// Of an empty file that something is mounted over.
const FILE_MODE: u32 = 0o600;

/// `runs/<id>` and `live/<id>`. The lock on the latter says that a supervisor is alive: no pid files.
#[derive(Debug)]
pub(super) struct RunDir {
    pub(super) id: RunId,
    pub(super) directory: PathBuf,
    pub(super) live: PathBuf,
    pub(super) sign: LivenessLock,
}

/// The locked file in `live/`. Its text is for listings; only the lock counts.
#[derive(Debug)]
pub(crate) struct LivenessLock(File);

impl LivenessLock {
    pub(crate) fn set_state(&self, state: RunState) {
        // A listing that is out of date is no reason to end a run.
        let _ = self.0.write_all_at(format!("{state:<9}\n").as_bytes(), 0);
    }

    /// Listings show its end; the process that wrote them tidies up.
    pub(super) fn set_closed(&self) {
        let _ = self.0.write_all_at(format!("{:<9}\n", life::CLOSED).as_bytes(), 0);
    }

    /// The entry is still in `live/`: the home was not removed meanwhile.
    pub(super) fn is_there(&self) -> bool {
        self.0.metadata().is_ok_and(|found| found.nlink() > 0)
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(super) fn share(&self) -> std::io::Result<Self> {
        self.0.try_clone().map(Self)
    }
}

impl RunDir {
    pub(super) fn make(home: &Home) -> Result<Self, LaunchError> {
        let failed = |path: &PathBuf| {
            let path = path.clone();
            move |error| LaunchError::Record { path, error }
        };
        // The lock first: what is made after it is found again.
        let (id, live, lock) = loop {
            let id = new_id();
            let live = home.live_path(&id);
            if let Some(lock) = locked(&live).map_err(failed(&live))? {
                break (id, live, lock);
            }
        };
        let directory = home.run_dir(&id);
        for path in [&directory, &directory.join("home")] {
            DirBuilder::new().mode(0o700).create(path).map_err(failed(path))?;
        }
        let sign = LivenessLock(lock);
        sign.set_state(RunState::Planned);
        crate::debug_log::enter(&directory);
        Ok(Self { id, directory, live, sign })
    }

    pub(super) fn home(&self) -> PathBuf {
        self.directory.join("home")
    }

    /// Places for mounts that go into the run's own home: it is ours, so they can be made. What is in it already may
    /// be of another run's doing, and leads nowhere.
    pub(super) fn make_targets(&self, plan: &Plan) -> Result<(), LaunchError> {
        make_targets(&self.home(), &plan.mounts)
    }

    /// The run is over: its directory stays, the liveness lock goes.
    pub(super) fn close(self) -> Result<(), LaunchError> {
        std::fs::remove_file(&self.live)
            .map_err(|error| LaunchError::Record { path: self.live.clone(), error })
    }

    /// Nothing was started, so nothing is left.
    pub(super) fn discard(self) {
        // What cannot be removed now is found by the next command through `live/`.
        if belljar_tree::remove_all(&self.directory).is_ok() {
            let _ = std::fs::remove_file(&self.live);
        }
    }
}

fn make_targets(home: &Path, mounts: &[PlannedMount]) -> Result<(), LaunchError> {
    let own = mounts
        .iter()
        .find(|mount| matches!(mount.what, MountKind::Bind { source: Source::RunHome, .. }));
    let Some(inside) = own.map(|mount| mount.target.as_path()) else { return Ok(()) };
    for mount in mounts {
        let relative = mount.target.as_path().strip_prefix(inside).ok();
        let Some(relative) = relative.filter(|path| !path.as_os_str().is_empty()) else {
            continue;
        };
        let is_file = match &mount.what {
            MountKind::Bind { source: Source::Path { path }, .. } => path.as_path().is_file(),
            _ => false,
        };
        match is_file {
            true => drop(nofollow::new_file(home, relative, FILE_MODE)?),
            false => drop(nofollow::directory(home, relative)?),
        }
    }
    Ok(())
}

/// A new file that is locked, and still there. Another command that came between its making and its
/// lock has taken it for one that a dead supervisor left: then it is gone, and a new one is due.
fn locked(path: &Path) -> std::io::Result<Option<File>> {
    let file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)?;
    // Waits for such a command, which lets go at once.
    rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
    let here = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        here => here?,
    };
    let ours = file.metadata()?;
    Ok(((here.dev(), here.ino()) == (ours.dev(), ours.ino())).then_some(file))
}

fn new_id() -> RunId {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut random = [0; 8];
    // Without random bytes the clock alone still makes an id; the directory's creation is exclusive.
    let _ = getrandom::fill(&mut random);
    RunId::from_parts(now.as_millis() as u64, u64::from_ne_bytes(random))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use std::os::unix::fs::symlink;

    use belljar_spec::{Access, Presence, Tree};

    use super::*;

    fn bind(target: &str, source: Source) -> PlannedMount {
        let (access, presence, tree) = (Access::ReadOnly, Presence::Required, Tree::User);
        PlannedMount {
            target: target.into(),
            what: MountKind::Bind { source, access, presence, tree },
        }
    }

    #[test]
    fn no_link_in_the_home_leads_a_mounts_place_away() {
        let temp = tempfile::tempdir().unwrap();
        let (home, outside) = (temp.path().join("home"), temp.path().join("outside"));
        let (file, dir) = (temp.path().join("file"), temp.path().join("dir"));
        for directory in [&home, &outside, &dir] {
            std::fs::create_dir(directory).unwrap();
        }
        std::fs::write(&file, "content").unwrap();
        let own = bind("/home/agent", Source::RunHome);
        let of = |path: &Path| Source::Path { path: path.into() };
        let of_file = bind("/home/agent/.cfg/tool/settings", of(&file));
        let of_directory = bind("/home/agent/.cfg/skills", of(&dir));
        let both = [own.clone(), of_file.clone(), of_directory.clone()];
        make_targets(&home, &both).unwrap(); // the control
        make_targets(&home, &both).unwrap();
        assert!(home.join(".cfg/tool/settings").is_file() && home.join(".cfg/skills").is_dir());
        std::fs::remove_dir_all(home.join(".cfg")).unwrap();
        symlink(&outside, home.join(".cfg")).unwrap();
        for mount in [&of_file, &of_directory] {
            let refused = make_targets(&home, &[own.clone(), mount.clone()]).unwrap_err();
            let text = belljar_spec::text::error_chain(&refused);
            assert!(
                text.contains("/home/.cfg ") && text.contains("a link is in the way"),
                "{text}"
            );
        }
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }
}
