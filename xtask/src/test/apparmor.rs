//! An AppArmor parser of version 4, which knows the rule `userns`: a package of Debian 13, unpacked into the target
//! directory and kept there, with the C library that it needs. Nothing is installed, and nothing is loaded into the kernel.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use belljar::spec::env;

use super::packages::{Apt, unpack_archives};
use super::report::Outcome;
use crate::scratch::Scratch;
use crate::{debian, host};

const RELEASE: &str = "trixie";
const PACKAGES: [&str; 2] = ["apparmor", "libc6"];

/// Without it, the test of the profile says that it was not checked.
pub(super) fn step(environment: &mut Vec<(String, String)>) -> Result<Outcome> {
    if !host::is_debian() {
        return Ok(Outcome::NotChecked("the parser is a package of Debian's".to_owned()));
    }
    let directory = host::target_directory()?.join("apparmor");
    let parser = match ensure(&directory) {
        Ok(parser) => parser,
        Err(error) => return Ok(Outcome::NotChecked(format!("no AppArmor parser: {error:#}"))),
    };
    environment.push((env::TEST_APPARMOR_PARSER.to_owned(), parser.display().to_string()));
    Ok(Outcome::Passed)
}

fn ensure(directory: &Path) -> Result<PathBuf> {
    let script = directory.join("apparmor_parser");
    if script.exists() {
        return Ok(script);
    }
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let scratch = Scratch::new("apparmor")?;
    let apt = Apt::of_release(scratch.path(), RELEASE, &debian::own_mirror()?)?;
    apt.download(&PACKAGES, directory)?;
    unpack_archives(directory)?;
    let loader = loader(directory)?;
    let libraries = loader.parent().context("a loader lies in a directory")?;
    let place = directory.display();
    let features = format!("{place}/etc/apparmor.d/abi/4.0");
    // Without the machine's settings, and for a kernel of that version, whichever this one is.
    let text = format!(
        "#!/bin/sh\nexec {} --library-path {} {place}/usr/sbin/apparmor_parser --config-file=/dev/null \
         --base {place}/etc/apparmor.d --policy-features {features} --kernel-features {features} \"$@\"\n",
        loader.display(),
        libraries.display()
    );
    fs::write(&script, text)
        .and_then(|()| fs::set_permissions(&script, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot write {}", script.display()))?;
    Ok(script)
}

/// `usr/lib/TUPLE/ld-linux-….so.N`
fn loader(directory: &Path) -> Result<PathBuf> {
    let entries =
        |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path());
    let is_loader = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux"))
    };
    let tuples: Vec<PathBuf> = entries(&directory.join("usr/lib")).collect();
    let found = tuples.iter().flat_map(|tuple| entries(tuple)).find(is_loader);
    found.with_context(|| format!("{} has no loader of the C library", directory.display()))
}
