//! A run that is kept, for commands to be run in it through the library and through `belljar exec`.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use belljar::spec::MountMode;
use belljar::{Sandbox, SandboxBuilder};
use tokio::runtime::Runtime;

use super::identity::Identity;

pub(crate) struct KeptRun<'a> {
    runtime: &'a Runtime,
    sandbox: Arc<Sandbox>,
}

impl<'a> KeptRun<'a> {
    pub(crate) fn builder(identity: &Identity, belljar: &Path) -> SandboxBuilder {
        Sandbox::builder()
            .no_config()
            .home(&identity.home)
            .belljar(belljar)
            .workspace(&identity.workspace, MountMode::Rw)
    }

    /// It has run a command.
    pub(crate) fn start(runtime: &'a Runtime, builder: SandboxBuilder) -> Result<Self> {
        let sandbox = Arc::new(runtime.block_on(builder.start())?);
        let kept = Self { runtime, sandbox };
        let output = runtime.block_on(kept.sandbox.exec(["echo", "sealed"]).output())?;
        ensure!(output.stdout == b"sealed\n", "the command in the sandbox did not run");
        Ok(kept)
    }

    pub(crate) fn id(&self) -> String {
        self.sandbox.id().to_string()
    }

    /// `/bin/true`, through the library.
    pub(crate) fn exec_true(&self) -> Result<Duration> {
        self.runtime.block_on(exec_true(&self.sandbox))
    }

    /// `belljar exec RUN -- /bin/true`.
    pub(crate) fn exec_command(&self, identity: &Identity, belljar: &Path) -> Command {
        let mut exec = identity.command(belljar);
        exec.args(["exec", &self.id(), "--", "/bin/true"]);
        exec
    }

    /// How many of `count` are done in a second, with so many of them at once.
    pub(crate) fn execs_a_second(&self, count: usize, at_once: usize) -> Result<f64> {
        let each = count.div_ceil(at_once);
        self.runtime.block_on(async {
            let mut workers = tokio::task::JoinSet::new();
            let started = Instant::now();
            for _ in 0..at_once {
                let sandbox = Arc::clone(&self.sandbox);
                workers.spawn(async move {
                    for _ in 0..each {
                        exec_true(&sandbox).await?;
                    }
                    anyhow::Ok(())
                });
            }
            while let Some(done) = workers.join_next().await {
                done.context("a worker failed")??;
            }
            Ok((each * at_once) as f64 / started.elapsed().as_secs_f64())
        })
    }

    pub(crate) fn stop(self) -> Result<()> {
        self.runtime.block_on(self.sandbox.stop())?;
        Ok(())
    }
}

async fn exec_true(sandbox: &Sandbox) -> Result<Duration> {
    let started = Instant::now();
    let output = sandbox.exec(["/bin/true"]).output().await?;
    let time = started.elapsed();
    ensure!(output.success(), "/bin/true in the sandbox ended with {:?}", output.exit);
    Ok(time)
}
