//! `cargo xtask engines`: one command with the engines of the tests around it, for whoever works on one
//! test.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use super::{Engine, Engines};
use crate::command::line;
use crate::test::{MustWork, Outcome};

#[derive(Debug, clap::Args)]
pub(crate) struct EnginesOptions {
    /// For example `cargo test -p belljar --test engine smoke::`
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<String>,
}

pub(crate) fn main(options: &EnginesOptions) -> Result<ExitCode> {
    let (program, arguments) = options.command.split_first().context("no command was given")?;
    let mut must_work = MustWork::asked_for();
    let mut engines = None;
    if let Outcome::NotChecked(why) = super::step(&Engine::ALL, &must_work, &mut engines)? {
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
