//! The process that the engines belong to. It has a session of its own, so that a Ctrl-C for `xtask`
//! reaches neither it nor them, and adopts whatever they leave behind.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, getpid, set_child_subreaper, setsid};
use serde_json::{Value, json};

use super::daemon::Daemon;
use super::docker::Docker;
use super::groups::Groups;
use super::image::Images;
use super::podman::{Owner, Podman};
use super::{Engine, Variables, api, sweep, text};
use crate::scratch::Scratch;

/// The hidden command.
pub(crate) const KEEPER: &str = "__keep-engines";
/// Between two looks for children that have ended.
const PAUSE: Duration = Duration::from_millis(20);

type EngineReport = (Engine, Result<Variables, String>);

/// `xtask __keep-engines BUSYBOX ENGINE…`: starts them, reports in one line what runs, and keeps them until its
/// standard input ends.
pub(crate) fn keep(busybox: &Path, names: &[String]) -> Result<ExitCode> {
    let is_wanted = |engine: &Engine| names.iter().any(|name| name == engine.name());
    let wanted: Vec<Engine> = Engine::ALL.into_iter().filter(is_wanted).collect();
    setsid().context("cannot begin a session")?;
    set_child_subreaper(Some(getpid())).context("cannot adopt what engines leave behind")?;
    let groups = Groups::look();
    let scratch = Scratch::on_disk("engines")?;
    let mut running = RunningEngines { daemons: Vec::new(), sockets: Vec::new() };
    let begun =
        running.start(scratch.path(), busybox, &wanted).and_then(|reports| report(&reports));
    if begun.is_ok() {
        running.wait_for_the_end_of_input();
    }
    let ended = running.end(scratch.path());
    drop(scratch);
    groups.remove_new();
    begun.and(ended).map(|()| ExitCode::SUCCESS)
}

struct RunningEngines {
    daemons: Vec<Pid>,
    sockets: Vec<PathBuf>,
}

impl RunningEngines {
    /// One that does not start does not keep the others from it.
    fn start(
        &mut self,
        directory: &Path,
        busybox: &Path,
        wanted: &[Engine],
    ) -> Result<Vec<EngineReport>> {
        let images = Images::make(directory, busybox)?;
        let needs_docker = |engine: &Engine| matches!(engine, Engine::Docker | Engine::Runsc);
        let docker = match wanted.iter().any(needs_docker) {
            true => self.docker(&directory.join("d"), &images),
            false => Err("it was not requested".to_owned()),
        };
        let docker = || docker.as_ref().map_err(|why| anyhow::anyhow!("no Docker engine: {why}"));
        let mut variables = |engine: Engine| match engine {
            Engine::Docker => docker()?.variables(&images),
            Engine::Runsc => docker()?.runsc_variables(),
            Engine::Podman => self.podman(&directory.join("p"), Owner::Root, &images),
            Engine::PodmanRootless => {
                self.podman(&directory.join("r"), Owner::ordinary()?, &images)
            }
        };
        let mut one =
            |engine: &Engine| (*engine, variables(*engine).map_err(|error| format!("{error:#}")));
        Ok(wanted.iter().map(&mut one).collect())
    }

    fn docker(&mut self, directory: &Path, images: &Images) -> Result<Docker, String> {
        let mut daemons = Vec::new();
        let started = Docker::start(directory, images, &mut daemons);
        self.daemons.extend(daemons.iter().filter_map(Daemon::pid));
        let started = started.map_err(|error| format!("{error:#}"))?;
        self.sockets.push(started.socket.clone());
        Ok(started)
    }

    fn podman(&mut self, directory: &Path, owner: Owner, images: &Images) -> Result<Variables> {
        let mut daemons = Vec::new();
        let started = Podman::start(directory, owner, images, &mut daemons);
        self.daemons.extend(daemons.iter().filter_map(Daemon::pid));
        let podman = started?;
        self.sockets.push(podman.socket.clone());
        podman.variables(images)
    }

    /// From here on no child is waited for by its number, so all of them can be.
    fn wait_for_the_end_of_input(&mut self) {
        let stdin = std::io::stdin();
        let pause = Timespec { tv_sec: 0, tv_nsec: i64::from(PAUSE.subsec_nanos()) };
        loop {
            sweep::reap(&mut self.daemons);
            match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&pause)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                // Nothing writes to it: its writer has ended.
                _ => return,
            }
        }
    }

    fn end(&mut self, directory: &Path) -> Result<()> {
        for socket in &self.sockets {
            // One that does not answer any more is ended all the same.
            for container in api::containers(socket, api::Whose::Everybodys).unwrap_or_default() {
                if let Err(error) = api::remove(socket, &container) {
                    eprintln!("warning: a container stays: {error:#}");
                }
            }
        }
        sweep::end_in_turn(&mut self.daemons);
        let ended = sweep::end_the_rest();
        sweep::unmount_below(directory).and(ended)
    }
}

fn report(reports: &[EngineReport]) -> Result<()> {
    let one = |(engine, reports): &EngineReport| match reports {
        Ok(variables) => json!({ "engine": engine.name(), "variables": variables }),
        Err(why) => json!({ "engine": engine.name(), "why": why }),
    };
    let all: Vec<Value> = reports.iter().map(one).collect();
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", Value::from(all))
        .and_then(|()| out.flush())
        .context("cannot write the report")
}

/// The other end of it.
pub(super) fn read_report(line: &str, wanted: &[Engine]) -> Result<Vec<EngineReport>> {
    let all: Value = serde_json::from_str(line).context("the keeper's report is not JSON")?;
    let one = |engine: &Engine| {
        let named = |one: &&Value| one["engine"] == engine.name();
        let Some(reports) = all.as_array().into_iter().flatten().find(named) else {
            return (*engine, Err("it is not in the report".to_owned()));
        };
        let Some(variables) = reports["variables"].as_array() else {
            return (*engine, Err(text(&reports["why"]).unwrap_or_default()));
        };
        let pair = |pair: &Value| Some((text(&pair[0])?, text(&pair[1])?));
        (*engine, Ok(variables.iter().filter_map(pair).collect()))
    };
    Ok(wanted.iter().map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_it_was_told() {
        let line = r#"[{"engine":"podman","variables":[["A","b"]]},{"engine":"runsc","why":"no"}]"#;
        let reports = read_report(line, &[Engine::Podman, Engine::Runsc, Engine::Docker]).unwrap();
        assert_eq!(reports[0].1, Ok(vec![("A".to_owned(), "b".to_owned())]));
        assert_eq!(reports[1].1, Err("no".to_owned()));
        assert!(reports[2].1.is_err());
    }
}
