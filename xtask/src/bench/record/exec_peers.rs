//! What `exec` is compared with.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::Bench;
use crate::bench::engines::Engines;
use crate::bench::peer;
use crate::bench::repeated::Peer;
use crate::{command, host, processes};

const APPEAR_LIMIT: Duration = Duration::from_secs(5);

/// What this machine has of: nothing at all, a neighbour's namespaces, bubblewrap, an engine's exec.
pub(crate) fn peers(bench: &Bench, engines: &Engines) -> Vec<Peer> {
    let identity = bench.identity.clone();
    let mut peers =
        vec![Peer::new("/bin/true, no sandbox", move || identity.command(Path::new("/bin/true")))];
    match neighbour() {
        Ok(found) => peers.push(found),
        Err(error) => eprintln!("no comparison with nsenter: {error:#}"),
    }
    match host::find_program("bwrap") {
        Some(bwrap) => {
            let (identity, words) =
                (bench.identity.clone(), peer::bwrap_words(&bench.identity.workspace));
            peers.push(Peer::new("bwrap, a new sandbox", move || {
                let mut command = identity.command(&bwrap);
                command.args(&words).arg("/bin/true");
                command
            }));
        }
        None => eprintln!("no comparison with bubblewrap: `bwrap` is not there"),
    }
    for container in engines.containers() {
        let name = format!("{} exec", container.engine);
        peers.push(Peer::new(name, move || container.exec(&["/bin/true"])));
    }
    peers
}

/// Namespaces like a sandbox's, with nothing in them but a sleeper.
struct Neighbour(Child);

fn neighbour() -> Result<Peer> {
    let unshare = host::require_program("unshare", "util-linux")?;
    let nsenter = host::require_program("nsenter", "util-linux")?;
    let mut start = Command::new(unshare);
    start.args(peer::FLOOR).args(["--kill-child", "--", "sleep", "3600"]);
    let neighbour = Neighbour(command::spawn(start.stdin(Stdio::null()))?);
    let target = neighbour.sleeper()?.to_string();
    let kinds = ["--user", "--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup"];
    Ok(Peer::new("nsenter into namespaces", move || {
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
