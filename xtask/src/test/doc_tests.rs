//! Runs the tests in the documentation: as the caller, and where that is root also as an ordinary user, since they
//! start real sandboxes.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{CHECK_LIMIT, Outcome};
use crate::scratch::Scratch;
use crate::{command, host};

pub(super) fn step(environment: &[(String, String)]) -> Result<Outcome> {
    let place = Scratch::new("doc")?;
    run(environment, &place.path().join("home"), None)?;
    let value =
        |name: &str| environment.iter().find(|(key, _)| key == name).map(|(_, value)| value);
    if let Some((uid, gid)) = value("BELLJAR_TEST_UID").zip(value("BELLJAR_TEST_GID")) {
        let runner = write_runner(place.path(), uid, gid)?;
        run(environment, &place.path().join("home"), Some(&runner))?;
    }
    Ok(Outcome::Passed)
}

/// Their records are nobody's, so they have a home of their own.
fn run(environment: &[(String, String)], home: &Path, runner: Option<&Path>) -> Result<()> {
    let mut cargo = host::cargo()?;
    cargo.args(["test", "--doc", "--workspace"]).envs(environment.iter().cloned());
    cargo.env("BELLJAR_HOME", home);
    if let Some(runner) = runner {
        for arch in ["X86_64", "AARCH64"] {
            cargo.env(format!("CARGO_TARGET_{arch}_UNKNOWN_LINUX_GNU_RUNNER"), runner);
        }
    }
    command::check(&mut cargo, CHECK_LIMIT)
}

/// A script that copies a program to where the user can read it, and runs it as that user.
fn write_runner(place: &Path, uid: &str, gid: &str) -> Result<PathBuf> {
    let runner = place.join("as-user");
    let shown = place.display();
    let script = format!(
        "#!/bin/sh\nset -e\n\
         place=$(mktemp -d '{shown}/user-XXXXXX')\n\
         mkdir \"$place/work\" \"$place/tmp\"\n\
         cp \"$1\" \"$place/program\"\n\
         shift\n\
         chmod 755 \"$place\" \"$place/program\"\n\
         chown -R {uid}:{gid} \"$place\"\n\
         cd \"$place/work\"\n\
         export HOME=\"$place\" BELLJAR_HOME=\"$place/home\" TMPDIR=\"$place/tmp\"\n\
         exec setpriv --reuid={uid} --regid={gid} --clear-groups \"$place/program\" \"$@\"\n"
    );
    let all = std::fs::Permissions::from_mode(0o755);
    std::fs::write(&runner, script).with_context(|| format!("write {}", runner.display()))?;
    std::fs::set_permissions(&runner, all)?;
    Ok(runner)
}
