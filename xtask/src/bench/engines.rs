//! Docker and Podman, where one answers on this machine. Nothing is started for them, no image is
//! pulled, and an engine on another machine is left alone.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::identity::Identity;
use super::peer::{Case, Then};
use crate::{command, guest, host};

const IMAGE: &str = "belljar-bench:busybox";
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const IMPORT_LIMIT: Duration = Duration::from_secs(60);

/// Takes the image away again when dropped.
pub(crate) struct Engines {
    programs: Vec<PathBuf>,
    identity: Identity,
}

pub(crate) fn found(scratch: &Path, identity: &Identity) -> Engines {
    let mut engines = Engines { programs: Vec::new(), identity: identity.clone() };
    for name in ["docker", "podman"] {
        let Some(program) = host::find_program(name) else {
            eprintln!("no comparison with {name}: it is not installed");
            continue;
        };
        if let Err(error) = prepare(&program, scratch) {
            eprintln!("no comparison with {name}: {error:#}");
            continue;
        }
        engines.programs.push(program);
    }
    engines
}

impl Engines {
    pub(crate) fn cases(&self) -> Vec<Case> {
        let case = |program: &PathBuf| Case {
            name: format!("{} run", program.file_name().unwrap_or_default().display()),
            identity: self.identity.clone(),
            program: "env".into(),
            words: words(program),
            then: Then::Nothing,
        };
        self.programs.iter().map(case).collect()
    }
}

/// The engine's own settings are needed to reach it, and the cases run with a clean environment.
fn words(program: &Path) -> Vec<String> {
    let mut words = Vec::new();
    for name in ["DOCKER_HOST", "CONTAINERS_CONF", "HOME"] {
        if let Ok(value) = std::env::var(name) {
            words.push(format!("{name}={value}"));
        }
    }
    words.push(program.display().to_string());
    words.extend(["run", "--rm", "--network", "none", IMAGE].map(str::to_owned));
    words
}

fn prepare(program: &Path, scratch: &Path) -> Result<()> {
    let host = std::env::var("DOCKER_HOST").unwrap_or_default();
    ensure!(
        host.is_empty() || host.starts_with("unix:"),
        "DOCKER_HOST names an engine that may be on another machine"
    );
    let version = command::succeeds(Command::new(program).arg("info"), ANSWER_LIMIT);
    ensure!(version, "no engine answers within {} s", ANSWER_LIMIT.as_secs());
    let tree = scratch.join("image");
    if !tree.exists() {
        let busybox = guest::busybox(&guest::directory()?)?;
        fs::create_dir_all(tree.join("bin"))
            .and_then(|()| fs::copy(busybox, tree.join("bin/busybox")))
            .and_then(|_| symlink("busybox", tree.join("bin/true")))
            .and_then(|()| symlink("busybox", tree.join("bin/echo")))
            .context("cannot make the image's files")?;
    }
    let mut tar = command::spawn(
        Command::new("tar").arg("-C").arg(&tree).args(["-c", "."]).stdout(Stdio::piped()),
    )?;
    let archive = tar.stdout.take().context("tar has no stdout")?;
    let mut import = Command::new(program);
    import.args(["import", "-", IMAGE]).stdin(archive).stdout(Stdio::null());
    let imported = command::check(&mut import, IMPORT_LIMIT);
    // Its reader is gone by now, so it ends.
    tar.wait().context("cannot wait for tar")?;
    imported
}

/// A container that sleeps, for commands to be run in. Removed when dropped.
pub(crate) struct Container {
    pub(crate) engine: String,
    program: PathBuf,
    id: String,
}

impl Engines {
    pub(crate) fn containers(&self) -> Vec<Container> {
        let start = |program: &PathBuf| {
            let engine = program.file_name().unwrap_or_default().display().to_string();
            let mut run = Command::new(program);
            run.args(["run", "--detach", "--rm", "--network", "none", IMAGE]);
            let started = command::read(run.args(["/bin/busybox", "sleep", "3600"]));
            match started {
                Ok(id) => {
                    Some(Container { engine, program: program.clone(), id: id.trim().into() })
                }
                Err(error) => {
                    eprintln!("no comparison with {engine} exec: {error:#}");
                    None
                }
            }
        };
        self.programs.iter().filter_map(start).collect()
    }
}

impl Container {
    pub(crate) fn exec(&self, argv: &[&str]) -> Command {
        let mut exec = Command::new(&self.program);
        exec.args(["exec", &self.id]).args(argv);
        exec
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let mut remove = Command::new(&self.program);
        if !command::succeeds(remove.args(["rm", "--force", &self.id]), IMPORT_LIMIT) {
            eprintln!("warning: {} keeps the container {}", self.engine, self.id);
        }
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        for program in &self.programs {
            let mut remove = Command::new(program);
            if !command::succeeds(remove.args(["rmi", IMAGE]), IMPORT_LIMIT) {
                eprintln!("warning: {} keeps the image {IMAGE}", program.display());
            }
        }
    }
}
