//! `/bin/true` in a container that stands: through belljar's channel, and through the engine.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use belljar::Sandbox;
use belljar::spec::MountMode;
use tokio::runtime::Runtime;

use super::Bench;
use super::arm::Arm;
use crate::bench::outcome::{Part, figure, latency};
use crate::bench::record::exec::in_turn;
use crate::bench::repeated::Peer;
use crate::command;

const LEAST: f64 = 10.0;
const REMOVE_LIMIT: Duration = Duration::from_secs(60);

pub(super) fn measure(bench: &Bench, arm: &Arm) -> Result<Part> {
    let runtime = Runtime::new().context("cannot start the runtime")?;
    let count = bench.sizes.execs;
    let mut part = Part::new(
        "exec",
        format!("/bin/true in a container of {} that stands, {count} of each in turn", arm.name),
    );
    let sandbox = runtime.block_on(start(bench, arm))?;
    let standing = Standing::start(bench, arm)?;
    let [ours, theirs] = arm.names("exec");
    let mut peers = vec![command_of(bench, &ours, &sandbox), standing.exec(&theirs)];
    let library = in_turn(&runtime, &sandbox, &mut peers, count)?;
    runtime.block_on(sandbox.stop())?;
    drop(standing);
    let mut found = vec![(format!("belljar's library, {}", arm.name), library)];
    for peer in peers {
        match peer.times() {
            Ok(peer) => found.push((peer.name, peer.times)),
            Err((name, why)) => anyhow::bail!("{name}: {why}"),
        }
    }
    let their_time = found.last().map_or(f64::NAN, |(_, times)| times.percentile(50));
    for (name, times) in found {
        let faster = their_time / times.percentile(50);
        let mut figures = latency(&times);
        if name != theirs {
            figures.push(figure("at p50", faster, "x as fast"));
            part.at_least(&format!("{name}, against {theirs}, p50"), faster, LEAST, "x as fast");
        }
        part.row(name, figures);
    }
    Ok(part)
}

async fn start(bench: &Bench, arm: &Arm) -> Result<Sandbox> {
    let sandbox = Sandbox::builder()
        .no_config()
        .backend(arm.backend)
        .image(&arm.image)
        .home(&bench.identity.home)
        .belljar(&bench.belljar)
        .workspace(&bench.identity.workspace, MountMode::Rw)
        .start()
        .await?;
    Ok(sandbox)
}

fn command_of(bench: &Bench, name: &str, sandbox: &Sandbox) -> Peer {
    let (identity, belljar) = (bench.identity.clone(), bench.belljar.clone());
    let run = sandbox.id().to_string();
    Peer::new(name, move || {
        let mut exec = identity.command(&belljar);
        exec.args(["exec", &run, "--", "/bin/true"]);
        exec
    })
}

/// The engine's own container, with a sleeper in it. Removed when dropped.
struct Standing<'a> {
    bench: &'a Bench,
    arm: &'a Arm,
    id: String,
}

impl<'a> Standing<'a> {
    fn start(bench: &'a Bench, arm: &'a Arm) -> Result<Self> {
        let mut run = bench.identity.command(Path::new("env"));
        run.args(arm.client_run(&["--detach"])).args(["sleep", "3600"]);
        let standing = Self { bench, arm, id: command::read(&mut run)?.trim().to_owned() };
        let output =
            command::read(&mut arm.client(bench, &["exec", &standing.id, "echo", "sealed"]))?;
        ensure!(output == "sealed\n", "the command in {}'s container did not run", arm.name);
        Ok(standing)
    }

    fn exec(&self, name: &str) -> Peer {
        let words = ["exec", &self.id, "/bin/true"];
        let arguments: Vec<_> =
            self.arm.client(self.bench, &words).get_args().map(ToOwned::to_owned).collect();
        let identity = self.bench.identity.clone();
        Peer::new(name, move || {
            let mut exec = identity.command(Path::new("env"));
            exec.args(&arguments);
            exec
        })
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        let mut remove = self.arm.client(self.bench, &["rm", "--force", &self.id]);
        if !command::succeeds(&mut remove, REMOVE_LIMIT) {
            eprintln!("warning: {} keeps the container {}", self.arm.name, self.id);
        }
    }
}
