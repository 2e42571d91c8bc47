//! Proxies that do a part of what belljar's does, where they are installed: squid, which tunnels, and mitmproxy,
//! which opens TLS.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::EgressBench;
use crate::test::packages::{Need, ensure, need};
use crate::{command, host};

const READY_LIMIT: Duration = Duration::from_secs(30);

const NEEDS: [Need; 2] = [
    need("squid", "squid", "a proxy beside which ours is measured"),
    need("mitmdump", "mitmproxy", "a proxy that opens TLS, beside which ours is measured"),
];

pub(super) fn install() -> Result<()> {
    ensure(&NEEDS.iter().collect::<Vec<_>>())
}

/// A process in the world that listens on a port of its loopback. Ended when dropped.
pub(super) struct Server {
    child: Child,
    pub(super) port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = command::stop(&mut self.child); // it may have ended by itself
    }
}

impl Server {
    /// The process itself.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn start(bench: &EgressBench, port: u16, program: Command) -> Result<Self> {
        let mut inside = bench.in_world(program.get_program());
        inside.args(program.get_args());
        inside.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Self { child: command::spawn(&mut inside)?, port };
        let until = Instant::now() + READY_LIMIT;
        while Instant::now() < until {
            let mut probe = bench.in_world(&bench.belljar);
            probe.args(["__probe", "connect", "given", &format!("tcp:127.0.0.1:{port}")]);
            let output = command::read(&mut probe)?;
            if output.contains("succeeded") {
                return Ok(server);
            }
            if let Some(status) = server.child.try_wait().context("cannot wait for a server")? {
                bail!("`{}` ended with {status}", command::line(&program));
            }
            sleep(Duration::from_millis(100));
        }
        bail!("`{}` did not answer in {} s", command::line(&program), READY_LIMIT.as_secs())
    }
}

pub(super) fn squid(bench: &EgressBench, port: u16) -> Result<Option<Server>> {
    let Some(squid) = host::find_program("squid") else { return Ok(None) };
    let settings = bench.scratch.path().join("squid.conf");
    let text = format!(
        "http_port 127.0.0.1:{port}\nhttp_access allow all\ncache deny all\naccess_log none\n\
         cache_log /dev/null\npid_filename none\ncoredump_dir none\nshutdown_lifetime 1 seconds\n\
         max_filedescriptors 4096\npinger_enable off\nvisible_hostname bench\n"
    );
    fs::write(&settings, text).context("cannot write squid's settings")?;
    let mut program = Command::new(squid);
    program.arg("-N").arg("-f").arg(settings);
    Server::start(bench, port, program).map(Some)
}

/// What it does with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mitm {
    Tunnels,
    Opens,
}

pub(super) fn mitmproxy(bench: &EgressBench, port: u16, how: Mitm) -> Result<Option<Server>> {
    let Some(mitmdump) = host::find_program("mitmdump") else { return Ok(None) };
    let place: PathBuf = bench.scratch.path().join(format!("mitmproxy-{port}"));
    fs::create_dir(&place).context("cannot make a place for mitmproxy")?;
    let mut program = Command::new(mitmdump);
    program.args(["-q", "--listen-host", "127.0.0.1", "--listen-port", &port.to_string()]);
    program.arg("--set").arg(format!("confdir={}", place.display())).arg("--ssl-insecure");
    program.args(["--set", "stream_large_bodies=1m"]); // or it holds a whole download in memory
    if how == Mitm::Tunnels {
        program.args(["--ignore-hosts", ".*"]);
    }
    Server::start(bench, port, program).map(Some)
}
