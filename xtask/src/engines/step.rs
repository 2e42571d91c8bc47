//! The engines as a step of the whole test: what must work, and what is only not checked.

use anyhow::{Result, bail};

use super::{Engine, Engines, needs};
use crate::host;
use crate::test::{MustWork, Outcome};

/// Installs what is missing and starts those that can be had. What runs is put into `started`, also where the
/// step fails: one engine less is no reason not to test with the others.
pub(crate) fn step(
    engines: &[Engine],
    must_work: &MustWork,
    started: &mut Option<Engines>,
) -> Result<Outcome> {
    let mut missing: Vec<(Engine, String)> = Vec::new();
    let mut wanted = Vec::new();
    for engine in engines.iter().copied() {
        match possible_here().and_then(|()| needs::ensure(engine)) {
            Ok(()) => wanted.push(engine),
            Err(why) => missing.push((engine, why)),
        }
    }
    if !wanted.is_empty() {
        let engines = Engines::start(&wanted)?;
        missing.extend(engines.missing().map(|(engine, why)| (engine, why.to_owned())));
        let running: Vec<&str> = engines.running().map(Engine::name).collect();
        eprintln!("running: {}", running.join(", "));
        *started = Some(engines);
    }
    if missing.is_empty() {
        return Ok(Outcome::Passed);
    }
    let tell = |(engine, why): &(Engine, String)| format!("{}: {why}", engine.name());
    let all = missing.iter().map(tell).collect::<Vec<_>>().join("; ");
    if missing.iter().any(|(engine, _)| must_work.has(engine.name())) {
        bail!("{all}");
    }
    Ok(Outcome::NotChecked(all))
}

fn possible_here() -> Result<(), String> {
    if !cfg!(target_os = "linux") {
        return Err("private engines are started on Linux only".to_owned());
    }
    if !host::is_root() {
        return Err("not root: no private engine can be started".to_owned());
    }
    if !host::is_debian() {
        return Err(
            "the image's busybox comes from Debian's packages, and apt is not here".to_owned()
        );
    }
    Ok(())
}
