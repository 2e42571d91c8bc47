//! The proxies that are compared: what is between the client and the server.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::client_report::{self, ClientReport};
use super::peers::{self, Mitm, Server};
use super::{EgressBench, containers, engines};

/// Where the world's servers are, and their name.
pub(super) const SERVER: &str = "93.184.216.34";
pub(super) const HOST: &str = "ok.example";
const OWN_PROXY: &str = "127.0.0.1:61080";
const RELAY_PLAIN: u16 = 7080;
const RELAY_TLS: u16 = 7443;
const SQUID: u16 = 3128;
const MITM_TUNNELS: u16 = 3129;
const MITM_OPENS: u16 = 3130;

/// Where the client runs, and whom it asks.
pub(super) enum ArmKind {
    Direct,
    Relay {
        plain: Server,
        tls: Server,
    },
    /// Belljar's proxy, from the jail.
    Jail,
    /// The same, from a container.
    Container(containers::EngineArm),
    Peer {
        server: Server,
        opens: bool,
    },
}

pub(super) struct ProxyArm {
    pub(super) name: String,
    pub(super) kind: ArmKind,
}

/// What the connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carried {
    /// Bytes that nothing in between reads.
    Bytes,
    /// Plain HTTP, whose requests a proxy sees.
    Http,
    /// The same as bytes, in TLS.
    Tls,
    /// TLS that the proxy opens.
    Opened,
}

impl Carried {
    /// In belljar's proxy a tunnel to port 80 is plain HTTP, and one to another port is not looked into.
    fn port(self) -> u16 {
        match self {
            Self::Bytes => 8080,
            Self::Http => 80,
            Self::Tls | Self::Opened => 443,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Bytes | Self::Http => "plain",
            Self::Tls | Self::Opened => HOST,
        }
    }
}

pub(super) fn all(bench: &EgressBench) -> Result<Vec<ProxyArm>> {
    let mut arms = Vec::new();
    let mut add = |name: &str, kind| arms.push(ProxyArm { name: name.to_owned(), kind });
    add("direct", ArmKind::Direct);
    let (plain, tls) = (relay(bench, RELAY_PLAIN, 80)?, relay(bench, RELAY_TLS, 443)?);
    add("one plain relay", ArmKind::Relay { plain, tls });
    add("belljar, jail", ArmKind::Jail);
    for engine in engines()? {
        add(&format!("belljar, {}", engine.name), ArmKind::Container(engine));
    }
    let peers = [
        ("squid", false, peers::squid(bench, SQUID)),
        ("mitmproxy, tunnels", false, peers::mitmproxy(bench, MITM_TUNNELS, Mitm::Tunnels)),
        ("mitmproxy", true, peers::mitmproxy(bench, MITM_OPENS, Mitm::Opens)),
    ];
    for (name, opens, found) in peers {
        match found {
            Ok(Some(server)) => add(name, ArmKind::Peer { server, opens }),
            Ok(None) => {
                eprintln!("no comparison with {name}: it is not installed (--install-peers)")
            }
            Err(error) => eprintln!("no comparison with {name}: {error:#}"),
        }
    }
    Ok(arms)
}

fn relay(bench: &EgressBench, port: u16, to: u16) -> Result<Server> {
    let mut program = Command::new(std::env::current_exe()?);
    program.args(["bench", "egress", super::relay::RELAY]);
    program.args([format!("127.0.0.1:{port}"), format!("{SERVER}:{to}")]);
    Server::start(bench, port, program)
}

impl EgressBench {
    /// A command that lives in the world.
    pub(super) fn in_world(&self, program: impl AsRef<OsStr>) -> Command {
        let words = self.world.wrapper();
        let mut command = self.identity.command(Path::new(&words[0]));
        command.args(&words[1..]).arg(program);
        command
    }
}

impl ProxyArm {
    /// Whether this can carry it. Only a proxy opens TLS.
    pub(super) fn carries(&self, carried: Carried) -> bool {
        match &self.kind {
            ArmKind::Direct => carried != Carried::Opened,
            ArmKind::Relay { .. } => matches!(carried, Carried::Bytes | Carried::Tls),
            ArmKind::Jail | ArmKind::Container(_) => true,
            ArmKind::Peer { opens, .. } => match carried {
                Carried::Bytes | Carried::Tls => !*opens,
                Carried::Http => false,
                Carried::Opened => *opens,
            },
        }
    }

    /// One that cannot be measured is named, and no failure.
    pub(super) fn is_peer(&self) -> bool {
        matches!(self.kind, ArmKind::Peer { .. })
    }

    pub(super) fn is_ours(&self) -> bool {
        matches!(self.kind, ArmKind::Jail | ArmKind::Container(_))
    }

    /// The client, with what it is to measure.
    pub(super) fn command(&self, bench: &EgressBench, carried: Carried, what: &[&str]) -> Command {
        let (port, name) = (carried.port(), carried.name());
        let authority = format!("{HOST}:{port}");
        let (at, by) = match &self.kind {
            ArmKind::Direct => (format!("{SERVER}:{port}"), "straight"),
            ArmKind::Relay { plain, tls } => {
                let server = if name == "plain" { plain } else { tls };
                (format!("127.0.0.1:{}", server.port), "straight")
            }
            ArmKind::Jail | ArmKind::Container(_) => (OWN_PROXY.to_owned(), authority.as_str()),
            ArmKind::Peer { server, .. } => {
                (format!("127.0.0.1:{}", server.port), authority.as_str())
            }
        };
        let mut command = match &self.kind {
            ArmKind::Jail => {
                let mut command = bench.in_world(&bench.belljar);
                command.args(["run", "--no-config", "-q"]);
                sandboxed(&mut command, bench, carried);
                command
            }
            ArmKind::Container(engine) => {
                let mut command = bench.in_world("env");
                command.args(engine.belljar(&bench.belljar));
                sandboxed(&mut command, bench, carried);
                command
            }
            _ => bench.in_world(&bench.belljar),
        };
        command.args(["__probe", "measure", &at, by, name]).args(what);
        command
    }

    pub(super) fn measure(
        &self,
        bench: &EgressBench,
        carried: Carried,
        what: &[&str],
    ) -> Result<ClientReport> {
        client_report::run(&mut self.command(bench, carried, what))
    }
}

/// The flags of the run, and the client's program in it.
fn sandboxed(command: &mut Command, bench: &EgressBench, carried: Carried) {
    let mount = format!("{}:/kit", bench.kit.display());
    let host = format!("{HOST}:{}", carried.port());
    command.args(["--workspace", "none", "-v", &mount, "--allow-host", &host]);
    if carried == Carried::Opened {
        command.args(["-c", &format!("network.intercept=[\"{HOST}\"]")]);
    }
    command.args(["--", "/kit/belljar"]).env("SSL_CERT_FILE", bench.world.authority());
}
