//! `cargo xtask engines`: one command with the engines of the tests around it, for whoever works on one
//! test.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use super::Engines;
use crate::command::line;
use crate::test::{MustWork, Outcome};

pub(crate) fn main(words: &[String]) -> Result<ExitCode> {
    let words = words.strip_prefix(&["--".to_owned()]).unwrap_or(words);
    let Some((program, arguments)) = words.split_first() else {
        bail!("usage: cargo xtask engines -- COMMAND, for example `cargo test -p belljar engine`");
    };
    let mut must_work = MustWork::asked_for();
    let mut engines = None;
    if let Outcome::NotChecked(why) = super::step(&must_work, &mut engines)? {
        eprintln!("NOT THERE: {why}");
    }
    must_work.add_what_runs(engines.as_ref());
    let mut command = Command::new(program);
    command.args(arguments).envs(must_work.environment());
    command.envs(engines.iter().flat_map(Engines::environment));
    let status = command.status().with_context(|| format!("cannot start `{}`", line(&command)))?;
    if let Some(engines) = engines {
        for container in engines.left()? {
            eprintln!("LEFT BEHIND: {container}");
        }
        engines.end()?;
    }
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
