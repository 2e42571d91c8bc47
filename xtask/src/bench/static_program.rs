//! A static program that does nothing: what starting and reaping any process costs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command;

pub(crate) const NOTHING: &str = "a static program that does nothing";
pub(crate) const ABOUT_NOTHING: &str = "the program that does nothing: `fn main() {}`, linked as belljar is, static and at a fixed address";

const COMPILE_LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn build(directory: &Path) -> Result<PathBuf> {
    let (source, program) = (directory.join("nothing.rs"), directory.join("nothing"));
    fs::write(&source, "fn main() {}\n").context("cannot write a program")?;
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition=2024", "-O", "-C", "panic=abort", "-C", "strip=symbols"]);
    rustc.args(["-C", "target-feature=+crt-static", "-C", "relocation-model=static"]);
    rustc.arg("-o").arg(&program).arg(&source);
    command::check(&mut rustc, COMPILE_LIMIT)?;
    Ok(program)
}
