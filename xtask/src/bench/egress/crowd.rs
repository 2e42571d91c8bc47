//! Many connections at once, and how large the proxy is with them.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::EgressBench;
use super::arm::{ArmKind, Carried, ProxyArm};
use super::client_report;
use crate::bench::memory::kib;
use crate::bench::outcome::{Figure, Part, Target, at_most, figure};
use crate::command;
use crate::processes::descendants;

const RESIDENT: Target = at_most(16.0, "MiB");
/// How long they are held; belljar is looked at meanwhile.
const HELD: &str = "4000";
const LIMIT: Duration = Duration::from_secs(90);

pub(super) fn measure(bench: &EgressBench, arms: &[ProxyArm]) -> Result<Part> {
    let count = bench.sizes.at_once;
    let mut part = Part::new("at once", format!("{count} connections, each used, then all held"));
    for carried in [Carried::Bytes, Carried::Opened] {
        for arm in arms.iter().filter(|arm| arm.carries(carried)) {
            if matches!(arm.kind, ArmKind::Direct | ArmKind::Relay { .. }) {
                continue;
            }
            let name = if carried == Carried::Bytes { "tunnels" } else { "opened" };
            let name = format!("{name}: {}", arm.name);
            match one(bench, arm, carried) {
                Ok(found) => {
                    if arm.is_ours() && carried == Carried::Bytes {
                        let what = format!("{name}: the proxy's memory");
                        part.compare(what, found.resident, RESIDENT);
                    }
                    part.row(name, found.figures());
                }
                Err(error) if arm.is_ours() => return Err(error.context(name)),
                Err(error) => part.missing(name, format!("{error:#}")),
            }
        }
    }
    part.note("memory: what is resident while all are held, and the most there was");
    Ok(part)
}

struct CrowdResult {
    took: f64,
    resident: f64,
    peak: f64,
}

impl CrowdResult {
    fn figures(&self) -> Vec<Figure> {
        vec![
            figure("opened and used in", self.took, "ms"),
            figure("resident", self.resident, "MiB"),
            figure("peak", self.peak, "MiB"),
        ]
    }
}

fn one(bench: &EgressBench, arm: &ProxyArm, carried: Carried) -> Result<CrowdResult> {
    let count = bench.sizes.at_once.to_string();
    let mut client: Command = arm.command(bench, carried, &["hold", &count, HELD]);
    let began = Instant::now();
    client.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command::spawn(&mut client)?;
    let mut stdout = child.stdout.take().context("the client has no output")?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut all = String::new();
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = stdout.read(&mut buffer) {
            all.push_str(&String::from_utf8_lossy(&buffer[..length]));
            if let Some(report) = client_report::parse(&all) {
                let _ = sender.send(report);
                break;
            }
        }
        let _ = std::io::copy(&mut stdout, &mut std::io::sink());
    });
    let received = receiver.recv_timeout(LIMIT);
    let took = began.elapsed().as_secs_f64() * 1000.0;
    let looked = received.context("the client reported nothing").and_then(|report| {
        let held = report.number("held")?;
        anyhow::ensure!(held == bench.sizes.at_once as f64, "{held} were held");
        sleep(Duration::from_millis(300)); // let it come to rest
        proxy_of(arm, child.id()).and_then(memory)
    });
    let mut errors = String::new();
    command::wait(&mut child, LIMIT)?;
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut errors);
    }
    let (resident, peak) = looked.with_context(|| errors.trim().to_owned())?;
    Ok(CrowdResult { took, resident, peak })
}

/// The process that carries them.
fn proxy_of(arm: &ProxyArm, launcher: u32) -> Result<u32> {
    if let ArmKind::Peer { server, .. } = &arm.kind {
        return Ok(server.pid());
    }
    let is_proxy = |pid: &u32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.split(|byte| *byte == 0).any(|word| word == b"__egress")
    };
    match descendants(launcher)?.into_iter().find(is_proxy) {
        Some(pid) => Ok(pid),
        None => bail!("no `belljar __egress` below the launcher"),
    }
}

/// Now and at most, in MiB.
fn memory(pid: u32) -> Result<(f64, f64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .context("cannot read the status of the proxy")?;
    let mib = |key: &str| {
        let found = kib(&status, key).with_context(|| format!("the proxy's status has no {key}"));
        found.map(|kib| kib as f64 / 1024.0)
    };
    Ok((mib("VmRSS:")?, mib("VmHWM:")?))
}
