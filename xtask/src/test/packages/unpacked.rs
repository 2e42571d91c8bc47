//! Packages that are unpacked into the target directory instead of being installed, and the commands that
//! start their programs from there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::apt::{Apt, unpack_archives};
use super::plan::UnpackedPackage;

/// Below the target directory.
pub(crate) fn commands(target: &Path) -> PathBuf {
    target.join("packages/bin")
}

/// Downloads and unpacks one package with its dependencies; `programs` are those of it that are used.
pub(super) fn unpack(
    apt: &Apt,
    unpack_only: &UnpackedPackage<'_>,
    programs: &[&str],
    target: &Path,
) -> Result<()> {
    let tree = target.join("packages").join(unpack_only.package);
    let partial = tree.with_extension("partial");
    for old in [&tree, &partial] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
    }
    fs::create_dir_all(&partial).with_context(|| format!("cannot make {}", partial.display()))?;
    let archives: Vec<&str> = unpack_only.archives.iter().map(String::as_str).collect();
    apt.download(&archives, &partial)?;
    unpack_archives(&partial)?;
    // Under its name only when it is whole.
    fs::rename(&partial, &tree).with_context(|| format!("cannot name {}", tree.display()))?;
    for program in programs {
        write_command(&tree, program, &commands(target))?;
    }
    Ok(())
}

/// A script that starts the program with the libraries that were unpacked with it.
fn write_command(tree: &Path, program: &str, directory: &Path) -> Result<()> {
    let places = ["usr/sbin", "usr/bin", "sbin", "bin"].map(|place| tree.join(place).join(program));
    let file = places
        .iter()
        .find(|file| file.is_file())
        .with_context(|| format!("{} has no {program}", tree.display()))?;
    let libraries: Vec<String> =
        library_directories(tree).iter().map(|path| quoted(path)).collect();
    let script = format!(
        "#!/bin/sh\nLD_LIBRARY_PATH={}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\n\
         export LD_LIBRARY_PATH\nexec {} \"$@\"\n",
        libraries.join(":"),
        quoted(file)
    );
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let command = directory.join(program);
    fs::write(&command, script)
        .and_then(|()| fs::set_permissions(&command, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot write {}", command.display()))
}

/// Debian keeps libraries in a directory named for the architecture.
fn library_directories(tree: &Path) -> Vec<PathBuf> {
    let tops = ["usr/lib", "lib"].map(|top| tree.join(top));
    let mut found = Vec::new();
    for top in tops {
        let below = fs::read_dir(&top).into_iter().flatten().flatten().map(|entry| entry.path());
        found.extend(below.filter(|path| path.to_string_lossy().ends_with("-linux-gnu")));
        found.push(top);
    }
    found.retain(|path| path.is_dir());
    found
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command;
    use crate::scratch::Scratch;
    use std::process::Command;

    #[test]
    fn an_unpacked_program_runs_with_its_own_libraries() {
        let scratch = Scratch::new("unpacked-test").unwrap();
        let tree = scratch.path().join("it's a tree");
        fs::create_dir_all(tree.join("usr/lib/x86_64-linux-gnu")).unwrap();
        fs::create_dir_all(tree.join("usr/bin")).unwrap();
        let program = tree.join("usr/bin/tool");
        fs::write(&program, "#!/bin/sh\necho \"$1 $LD_LIBRARY_PATH\"\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let directory = scratch.path().join("bin");
        write_command(&tree, "tool", &directory).unwrap();
        let output = command::read(Command::new(directory.join("tool")).arg("a  b")).unwrap();
        let libraries = tree.join("usr/lib/x86_64-linux-gnu");
        assert!(output.starts_with(&format!("a  b {}:", libraries.display())), "{output}");
        assert!(write_command(&tree, "other", &directory).is_err());
    }
}
