//! What `exec` is compared with, besides engines: namespaces that stand, and a new bubblewrap sandbox.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::bench::identity::Identity;
use crate::bench::rounds::Case;
use crate::bench::start::cases::{FLOOR, Start};
use crate::{command, host, processes};

const APPEAR_LIMIT: Duration = Duration::from_secs(5);

pub(super) fn new_bwrap(identity: &Identity) -> Option<Case<'static>> {
    let nowhere = Path::new("");
    let Some((program, words)) = Start::Bwrap.line(identity, nowhere) else {
        eprintln!("no comparison with bubblewrap: `bwrap` is not there");
        return None;
    };
    Some(Case::sandbox("bwrap, a new sandbox", identity, program, words))
}

pub(super) fn nsenter() -> Option<Case<'static>> {
    let case = neighbour();
    if let Err(error) = &case {
        eprintln!("no comparison with nsenter: {error:#}");
    }
    case.ok()
}

/// Namespaces like a sandbox's, with nothing in them but a sleeper.
struct Neighbour(Child);

fn neighbour() -> Result<Case<'static>> {
    let unshare = host::require_program("unshare", "util-linux")?;
    let nsenter = host::require_program("nsenter", "util-linux")?;
    let mut start = Command::new(unshare);
    start.args(FLOOR).args(["--kill-child", "--", "sleep", "3600"]);
    let neighbour = Neighbour(command::spawn(start.stdin(Stdio::null()))?);
    let target = neighbour.sleeper()?.to_string();
    let kinds = ["--user", "--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup"];
    Ok(Case::command("nsenter into namespaces", move || {
        let _alive = &neighbour;
        let mut command = Command::new(&nsenter);
        command.args(["--target", &target]).args(kinds).args(["--", "/bin/true"]);
        command
    }))
}

impl Neighbour {
    fn sleeper(&self) -> Result<u32> {
        let deadline = Instant::now() + APPEAR_LIMIT;
        while Instant::now() < deadline {
            let family = processes::descendants(self.0.id())?;
            let is_sleeper = |pid: &u32| processes::name(*pid).as_deref() == Some("sleep");
            if let Some(pid) = family.into_iter().find(is_sleeper) {
                return Ok(pid);
            }
            sleep(Duration::from_millis(10));
        }
        bail!("no process appeared in the namespaces")
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        if let Err(error) = command::stop(&mut self.0) {
            eprintln!("warning: a neighbour stays: {error:#}");
        }
    }
}
