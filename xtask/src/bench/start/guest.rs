//! The same starts in the virtual machine with a stock kernel and cgroup v2. It is emulated: only its ratios mean
//! something.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result};

use super::{MIN_ROUNDS, QUICK_ROUNDS};
use crate::artifacts;
use crate::guest::{self, GuestFile};
use crate::{command, host};

const LIMIT: Duration = Duration::from_secs(30 * 60);
/// Between what is for people and what is for programs.
const JSON_FOLLOWS: &str = "JSON follows";

/// Boots, measures with this same program, and prints what it found.
pub(super) fn run(rounds: usize, json: Option<&Path>) -> Result<ExitCode> {
    let built = artifacts::build_measuring()?;
    let bwrap = host::require_program("bwrap", "bubblewrap")?;
    let mut files = vec![GuestFile { source: built.xtask, target: "guest/xtask".into() }];
    files.extend(libraries(&bwrap)?.into_iter().chain([bwrap]).map(at_its_place));
    let how_often =
        if rounds == QUICK_ROUNDS { "--quick".to_owned() } else { format!("--rounds {rounds}") };
    let script = format!(
        "/guest/xtask bench start --belljar /usr/bin/belljar {how_often} --json /run/found && \
         echo '{JSON_FOLLOWS}' && cat /run/found"
    );
    let output = guest::output_of(&built.belljar, &files, &["sh", "-c", &script], LIMIT)?;
    let (text, found) = output.split_once(JSON_FOLLOWS).context("the guest measured nothing")?;
    println!("in the guest, which is emulated: compare ratios only\n{}", text.trim_end());
    if let Some(path) = json {
        fs::write(path, found.trim_start())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn at_its_place(source: PathBuf) -> GuestFile {
    let target = source.strip_prefix("/").unwrap_or(&source).to_owned();
    GuestFile { source, target }
}

/// What a program is linked with, the loader included.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    Ok(libraries_in(&command::read(Command::new("ldd").arg(program))?))
}

/// Lines `NAME => PATH (ADDRESS)`, and `PATH (ADDRESS)` of the loader.
fn libraries_in(text: &str) -> Vec<PathBuf> {
    let path =
        |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    text.lines().filter_map(path).collect()
}

const _: () =
    assert!(QUICK_ROUNDS < MIN_ROUNDS as usize, "a number of rounds says which was asked for");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_the_paths_that_ldd_prints() {
        let text = "\tlinux-vdso.so.1 (0x7f)\n\tlibc.so.6 => /lib/libc.so.6 (0x7f)\n\t/lib64/ld.so.2 (0x7f)\n";
        assert_eq!(libraries_in(text), [PathBuf::from("/lib/libc.so.6"), "/lib64/ld.so.2".into()]);
    }
}
