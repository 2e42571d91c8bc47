//! Attacks on Unix sockets of the host.

use belljar_spec::Clause;

use super::judge::{ECONNREFUSED, ENOENT, EPERM, broken, judge, refusals, summary, usual};
use crate::case::{Case, Severity, Verdict};
use crate::testbed::{Listener, Run, TestBed, TestBedError, Unprotected};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "fs.host-sockets",
        attack: "connect to an engine, the session bus, an ssh agent, belljar itself",
        clause: Clause::FsSockets,
        severity: Severity::Critical,
        run: host_sockets,
    },
    Case {
        name: "fs.socket-in-readonly-mount",
        attack: "connect to a socket of the host that lies in a read-only mount",
        clause: Clause::FsSockets,
        severity: Severity::High,
        run: in_readonly_mount,
    },
    Case {
        name: "fs.socket-in-workspace",
        attack: "connect to a socket that lay in the writable workspace at the start",
        clause: Clause::FsSockets,
        severity: Severity::High,
        run: in_workspace,
    },
    Case {
        name: "net.abstract-socket",
        attack: "connect to an abstract socket of the host",
        clause: Clause::NetSealed,
        severity: Severity::High,
        run: abstract_socket,
    },
];

fn host_sockets(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let path = testbed.place()?.join("agent.sock");
    let listener = Listener::on_path(&path)?;
    let path = path.to_string_lossy().into_owned();
    let run = Run::of(&workspace, "connect-unix").launcher_env("SSH_AUTH_SOCK", &path).args([
        &path,
        "/var/run/docker.sock",
        "/run/docker.sock",
        "/run/containerd/containerd.sock",
        "/run/podman/podman.sock",
        "/run/dbus/system_bus_socket",
        "/run/user/0/bus",
        "/run/user/1000/bus",
        "/run/systemd/private",
        "/run/belljar/control.sock",
    ]);
    let inside = testbed.inside(&run)?.report()?;
    // A socket file of an image has no listener.
    if let Some(verdict) = broken(&inside, &[ENOENT, ECONNREFUSED]) {
        return Ok(verdict);
    }
    // The control reaches only the listener of this test.
    counted(testbed, &listener, &path, &summary(&inside))
}

/// Nobody came from inside; one comes from outside.
fn counted(
    testbed: &TestBed,
    listener: &Listener,
    address: &str,
    how: &str,
) -> Result<Verdict, TestBedError> {
    let from_inside = listener.accepted();
    if from_inside != 0 {
        return Ok(Verdict::broke(format!("the listener accepted {from_inside} times")));
    }
    let control = testbed.outside(Unprotected::Directly, ["connect-unix", address])?.report()?;
    if control.successes() != 1 || listener.accepted() != 1 {
        return Ok(Verdict::no_control("outside, the listener did not answer either"));
    }
    Ok(Verdict::held(format!("{how}; accepts: 0")))
}

fn in_readonly_mount(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let (workspace, given) = (testbed.workspace()?, testbed.place()?);
    testbed.directory(&given.join("deep"), 0o755)?;
    let path = given.join("deep/host.sock");
    let listener = Listener::on_path(&path)?;
    let run =
        Run::of(&workspace, "connect-unix").mount(&given, "/given").arg("/given/deep/host.sock");
    let inside = testbed.inside(&run)?.report()?;
    if let (Err(why), true) = (testbed.promised(Clause::FsSockets), listener.accepted() > 0) {
        return Ok(Verdict::NotPromised { why });
    }
    match broken(&inside, &refusals(testbed, &[ECONNREFUSED], &[EPERM])) {
        Some(verdict) => Ok(verdict),
        None => counted(testbed, &listener, &path.to_string_lossy(), &summary(&inside)),
    }
}

fn in_workspace(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let path = workspace.join("host.sock");
    let listener = Listener::on_path(&path)?;
    let inside = testbed
        .inside(&Run::of(&workspace, "connect-unix").arg("/workspace/host.sock"))?
        .report()?;
    match broken(&inside, &[ECONNREFUSED, ENOENT]) {
        Some(verdict) => Ok(verdict),
        None => counted(testbed, &listener, &path.to_string_lossy(), &summary(&inside)),
    }
}

fn abstract_socket(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let name = testbed.unique_name()?;
    let listener = Listener::on_abstract_name(&name)?;
    let address = format!("@{name}");
    let inside = testbed.inside(&Run::of(&workspace, "connect-unix").arg(&address))?.report()?;
    let from_inside = listener.accepted();
    let control = testbed.outside(Unprotected::Directly, ["connect-unix", &address])?.report()?;
    if from_inside != 0 {
        return Ok(Verdict::broke(format!("the listener accepted {from_inside} times")));
    }
    Ok(judge(&inside, &control, &[ECONNREFUSED], usual))
}
