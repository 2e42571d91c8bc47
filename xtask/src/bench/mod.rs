//! `cargo xtask bench start`: what a start costs, beside what peers and the bare kernel calls cost
//! on the same machine in the same minutes. Ratios, since milliseconds are a machine's own.
//! `cargo xtask bench record` is in [`record`], `cargo xtask bench engines` in [`containers`], `cargo xtask bench
//! egress` in [`egress`], `cargo xtask bench workspace` in [`workspace`], `cargo xtask bench loop` in [`agent_loop`].

mod agent_loop;
mod containers;
mod egress;
mod engines;
mod identity;
mod memory;
mod outcome;
mod peer;
mod record;
mod repeated;
mod rounds;
mod table;
mod workspace;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};

use self::identity::Identity;
use self::rounds::Measured;
use crate::artifacts::{self, Measuring, Profile};
use crate::command;
use crate::scratch::Scratch;
use crate::test::TestUser;

/// The fewest starts whose tenth percentile is meaningful.
const FEWEST_ROUNDS: usize = 100;

struct Options {
    rounds: usize,
    json: Option<PathBuf>,
}

fn parse(words: &[String]) -> Result<Options> {
    let mut words = words.iter();
    if words.next().map(String::as_str) != Some("start") {
        bail!(
            "usage: cargo xtask bench start|record|engines|egress|workspace|loop; `cargo xtask help` lists their options"
        );
    }
    let mut options = Options { rounds: FEWEST_ROUNDS, json: None };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--rounds" => {
                let number = words.next().context("--rounds needs a number")?;
                options.rounds = number.parse().context("--rounds needs a number")?;
                ensure!(
                    options.rounds >= FEWEST_ROUNDS,
                    "--rounds must be at least {FEWEST_ROUNDS}"
                );
            }
            "--json" => options.json = words.next().map(PathBuf::from),
            unknown => bail!("`cargo xtask bench start` has no option `{unknown}`"),
        }
    }
    Ok(options)
}

pub(crate) fn main(words: &[String]) -> Result<ExitCode> {
    match words.split_first() {
        Some((word, rest)) if word == "record" => return record::main(rest),
        Some((word, rest)) if word == "engines" => return containers::main(rest),
        Some((word, rest)) if word == "egress" => return egress::main(rest),
        Some((word, rest)) if word == "workspace" => return workspace::main(rest),
        Some((word, rest)) if word == "loop" => return agent_loop::main(rest),
        _ => {}
    }
    let options = parse(words)?;
    let built = artifacts::build_belljar(Profile::Release)?;
    let scratch = Scratch::on_disk("bench")?;
    let belljar = scratch.copy_executable(&built)?;
    let identities = identities(scratch.path())?;

    let mut cases = Vec::new();
    for identity in &identities {
        cases.extend(peer::cases(identity, &belljar));
    }
    let engines = engines::found(scratch.path(), &identities[0]);
    cases.extend(engines.cases());
    let measured = rounds::measure(cases, options.rounds)?;
    drop(engines);

    let mut memory = Vec::new();
    for identity in &identities {
        match memory::of_pid1(identity, &belljar) {
            Ok(found) => memory.push(found),
            Err(error) => eprintln!("PID 1's memory as {}: {error:#}", identity.name),
        }
    }
    print!("{}", table::text(&measured, &memory, options.rounds));
    if let Some(path) = &options.json {
        fs::write(path, table::json(&measured, &memory, options.rounds)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(if measured.iter().any(failed_ours) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The executable to measure; with it, this process is the one that measures.
const BELLJAR: &str = "--belljar";

/// To an optimised build of this program, which calls the library in its own process.
fn hand_over(
    built: &Measuring,
    which: &str,
    words: &[String],
    variables: &[(String, String)],
) -> Result<ExitCode> {
    let mut measuring = Command::new(&built.xtask);
    measuring.args(["bench", which]).args(words).arg(BELLJAR).arg(&built.belljar);
    measuring.envs(variables.iter().cloned());
    let status = measuring
        .status()
        .with_context(|| format!("cannot start `{}`", command::line(&measuring)))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn failed_ours(measured: &Measured) -> bool {
    measured.times.is_err() && measured.name.starts_with("belljar")
}

/// Ourselves, and the ordinary user that the tests made, where there is one.
fn identities(scratch: &Path) -> Result<Vec<Identity>> {
    let mut identities = vec![Identity::ourselves(scratch)?];
    if crate::host::is_root() {
        match TestUser::find()? {
            Some(user) => identities.push(Identity::other(scratch, &user)?),
            None => eprintln!("no rootless rows: `cargo xtask test` makes the user for them"),
        }
    }
    Ok(identities)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn too_few_rounds_are_refused() {
        assert_eq!(parse(&words("start --rounds 150")).unwrap().rounds, 150);
        assert!(parse(&words("start --rounds 10")).is_err());
        assert!(parse(&words("stop")).is_err());
    }
}
