//! Prepares the run's home: the author of commits and, for an agent, directories that it does not create itself and, if
//! the operator allowed it, a copy of its login.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use belljar_spec::RunSpec;
use belljar_spec::manifest::Auth;

use super::{LaunchError, nofollow};
use crate::agent::adapter;
use crate::config::files::{Links, read};
use crate::login::{RunLogin, placeholder_file};

/// Of all files that git reads the weakest but the system's own: a repository's settings win, and so does what a
/// program inside writes with `git config --global`.
const GIT_CONFIG: &str = ".config/git/config";

/// The home may be a checkpoint's, in which another run put what it liked: no link is followed, and what is there
/// already stays.
pub(super) fn prepare_home(
    home: &Path,
    spec: &RunSpec,
    user_home: Option<&Path>,
) -> Result<(), LaunchError> {
    if let Some(identity) = &spec.git_identity {
        write_if_possible(home, Path::new(GIT_CONFIG), identity.config_file().as_bytes());
    }
    let Some(agent) = spec.agent_spec() else { return Ok(()) };
    let preset = adapter(agent.kind).preset();
    for path in &preset.directories {
        // What an agent of before put in its place is of no use to anybody, and would keep the next one from beginning.
        nofollow::clear(home, OsStr::new(path))?;
        nofollow::directory(home, Path::new(path))?;
    }
    if let Some((path, content)) = RunLogin::of(spec).as_ref().and_then(placeholder_file) {
        write_new(home, Path::new(path), content.as_bytes(), 0o600)?;
    }
    if spec.terminal_agent.is_some() {
        let login = preset.terminal_login.filter(|_| agent.auth == Auth::Secret);
        for (path, content) in login.into_iter().chain(preset.terminal_settings) {
            write_new(home, Path::new(path), content.as_bytes(), 0o600)?;
        }
    }
    if agent.auth != Auth::Files {
        return Ok(());
    }
    for path in &preset.login_files {
        let Some(source) = user_home.map(|home| home.join(path)) else { continue };
        let login = read(&source, Links::Follow)
            .map_err(|error| failed(source.clone(), io::Error::other(error)))?;
        if let Some(login) = login {
            write_new(home, Path::new(path), &login.content, 0o400)?;
        }
    }
    Ok(())
}

fn failed(path: PathBuf, error: io::Error) -> LaunchError {
    LaunchError::Record { path, error }
}

/// The author of commits is a convenience: a run of before that left something else in its place, in a home that is
/// used again, does not keep the next one from starting.
fn write_if_possible(home: &Path, path: &Path, content: &[u8]) {
    if let Err(error) = write_new(home, path, content, 0o644) {
        tracing::debug!(%error, path = %path.display(), "not written into the run's home");
    }
}

/// What is there already stays.
fn write_new(home: &Path, path: &Path, content: &[u8], mode: u32) -> Result<(), LaunchError> {
    match nofollow::new_file(home, path, mode)? {
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
        write_new(&home, path, b"first", 0o400).unwrap();
        write_new(&home, path, b"second", 0o400).unwrap();
        let made = home.join(path);
        assert_eq!(std::fs::read(&made).unwrap(), b"first");
        assert_eq!(made.metadata().unwrap().permissions().mode() & 0o777, 0o400);
        let directory_mode = home.join(".claude").metadata().unwrap().permissions().mode();
        assert_eq!(directory_mode & 0o777, 0o700);
        symlink(&outside, home.join(".codex")).unwrap();
        assert!(write_new(&home, Path::new(".codex/auth.json"), b"x", 0o400).is_err());
        assert!(nofollow::directory(&home, Path::new(".codex")).is_err());
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }
}
