//! The memory of a kept run in which nothing runs, without a proxy and with one.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use belljar::SandboxBuilder;
use tokio::runtime::Runtime;

use super::DensityBench;
use super::left_behind::our_processes;
use crate::bench::kept_run::KeptRun;
use crate::bench::memory::Memory;
use crate::bench::outcome::{Part, Target, at_most};

/// After this a supervisor has all that it will have.
const COME_TO_REST: Duration = Duration::from_secs(3);
const IDLE: Target = at_most(0.84, "MiB").aim(0.5);
const WITH_PROXY: Target = at_most(4.0, "MiB");
const HOST: &str = "example.com";

pub(super) fn measure(bench: &DensityBench) -> Result<Part> {
    let mut part = Part::new("memory", "kept runs in which nothing runs");
    let runtime = Runtime::new().context("cannot start the runtime")?;
    let builder = || KeptRun::builder(&bench.identity, &bench.belljar);
    type Build<'a> = &'a dyn Fn() -> SandboxBuilder;
    let kinds: [(&str, usize, Target, Build<'_>); 2] = [
        ("a kept run", bench.sizes.idle, IDLE, &builder),
        ("a kept run with its proxy", bench.sizes.with_proxy, WITH_PROXY, &|| {
            builder().allow_host(HOST)
        }),
    ];
    for (what, count, target, build) in kinds {
        let kept: Result<Vec<_>> = (0..count).map(|_| KeptRun::start(&runtime, build())).collect();
        let kept = kept?;
        sleep(COME_TO_REST);
        let memory = Memory::of(&our_processes()?)?;
        part.row(format!("{what}, one of {count}"), memory.each(count));
        let each = memory.proportional as f64 / 1024.0 / count as f64;
        part.compare(format!("{what}, PSS of all its processes"), each, target);
        kept.into_iter().try_for_each(KeptRun::stop)?;
    }
    part.note("PSS counts a page that N processes share as a page in N parts: with fewer runs each has more");
    Ok(part)
}
