//! Prepares the run's home for an agent: directories that it does not create itself and, if the operator allowed it, a
//! copy of its login.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use belljar_spec::RunSpec;
use belljar_spec::manifest::Auth;

use super::{LaunchError, nofollow};
use crate::agent::adapter;
use crate::config::files::{Links, read};

/// The home may be a checkpoint's, in which another run put what it liked: no link is followed, and what is there
/// already stays.
pub(super) fn prepare_agent_home(
    home: &Path,
    spec: &RunSpec,
    user_home: Option<&Path>,
) -> Result<(), LaunchError> {
    let Some(work) = &spec.agent else { return Ok(()) };
    let preset = adapter(work.agent.kind).preset();
    for path in &preset.directories {
        // What an agent of before put in its place is of no use to anybody, and would keep the next one from beginning.
        nofollow::clear(home, OsStr::new(path))?;
        nofollow::directory(home, Path::new(path))?;
    }
    if work.agent.auth != Auth::Files {
        return Ok(());
    }
    for path in &preset.login_files {
        let Some(source) = user_home.map(|home| home.join(path)) else { continue };
        let login = read(&source, Links::Follow)
            .map_err(|error| failed(source.clone(), io::Error::other(error)))?;
        if let Some(login) = login {
            copy(home, Path::new(path), &login.content)?;
        }
    }
    Ok(())
}

fn failed(path: PathBuf, error: io::Error) -> LaunchError {
    LaunchError::Record { path, error }
}

fn copy(home: &Path, path: &Path, content: &[u8]) -> Result<(), LaunchError> {
    match nofollow::new_file(home, path, 0o400)? {
        Some(mut file) => file.write_all(content).map_err(|error| failed(home.join(path), error)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_login_is_copied_once_and_no_link_leads_it_away() {
        let place = tempfile::tempdir().unwrap();
        let (home, outside) = (place.path().join("home"), place.path().join("outside"));
        std::fs::create_dir(&home).unwrap();
        std::fs::create_dir(&outside).unwrap();
        let path = Path::new(".claude/.credentials.json");
        copy(&home, path, b"first").unwrap();
        copy(&home, path, b"second").unwrap();
        let made = home.join(path);
        assert_eq!(std::fs::read(&made).unwrap(), b"first");
        assert_eq!(made.metadata().unwrap().permissions().mode() & 0o777, 0o400);
        let directory_mode = home.join(".claude").metadata().unwrap().permissions().mode();
        assert_eq!(directory_mode & 0o777, 0o700);
        symlink(&outside, home.join(".codex")).unwrap();
        assert!(copy(&home, Path::new(".codex/auth.json"), b"x").is_err());
        assert!(nofollow::directory(&home, Path::new(".codex")).is_err());
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }
}
