//! Reads the author's name and address from the user's own git configuration.
//!
//! git itself is not run, and a repository's configuration is not read. A run may have written the files, where the home
//! directory was mounted: whatever they hold, the result is two short texts.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use belljar_spec::GitIdentity;
use belljar_workspace::git_identity_in;

use super::files::{Links, read};
use super::host;

/// `None` where the user has none. A file that cannot be read is one that does not exist: commits then need a name,
/// and git says so.
pub(super) fn of_user(env: &BTreeMap<OsString, OsString>) -> Option<GitIdentity> {
    let (mut name, mut email) = (None, None);
    for file in files(env) {
        let Ok(Some(found)) = read(&file, Links::Follow) else { continue };
        let (later_name, later_email) = git_identity_in(&found.content);
        name = later_name.or(name);
        email = later_email.or(email);
    }
    GitIdentity::new(name.as_deref(), email.as_deref())
}

/// As git reads them: a later one wins.
fn files(env: &BTreeMap<OsString, OsString>) -> Vec<PathBuf> {
    if let Some(only) = env.get(OsStr::new("GIT_CONFIG_GLOBAL")) {
        let only = Path::new(only);
        return only.is_absolute().then(|| only.to_owned()).into_iter().collect();
    }
    let home = host::user_home(env);
    let config = host::absolute(env, "XDG_CONFIG_HOME");
    let config = config.or_else(|| home.as_ref().map(|home| home.join(".config")));
    let own = home.map(|home| home.join(".gitconfig"));
    config.map(|config| config.join("git/config")).into_iter().chain(own).collect()
}
