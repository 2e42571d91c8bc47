//! Reaching anybody. Controls that name an address of somebody else run in a network of their own, in
//! which that address is loopback's.

use belljar_spec::Clause;

use super::judge::{
    ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, EPERM, broken, judge, refusals, summary, usual,
};
use crate::answer::Answer;
use crate::case::{Case, Severity, Verdict};
use crate::stage::{Listener, Run, Stage, StageError, Unprotected};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "net.host-loopback",
        attack: "connect to a listener on the host's loopback",
        clause: Clause::NetSealed,
        severity: Severity::Critical,
        run: host_loopback,
    },
    Case {
        name: "net.metadata",
        attack: "ask the cloud's metadata service",
        clause: Clause::NetSealed,
        severity: Severity::Critical,
        run: metadata,
    },
    Case {
        name: "net.other-addresses",
        attack: "connect and send over IPv4, IPv6 and UDP",
        clause: Clause::NetSealed,
        severity: Severity::High,
        run: other_addresses,
    },
    Case {
        name: "net.raw-sockets",
        attack: "open raw and packet sockets",
        clause: Clause::NetSealed,
        severity: Severity::High,
        run: raw_sockets,
    },
    Case {
        name: "net.vsock",
        attack: "open a socket to the hypervisor",
        clause: Clause::NetSealed,
        severity: Severity::Critical,
        run: vsock,
    },
    Case {
        name: "net.netlink",
        attack: "open netlink sockets other than the one for routes",
        clause: Clause::NetSealed,
        severity: Severity::Medium,
        run: netlink,
    },
    Case {
        name: "net.sibling",
        attack: "connect to a server that another run started",
        clause: Clause::NetSealed,
        severity: Severity::Critical,
        run: sibling,
    },
];

fn host_loopback(stage: &Stage) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let (listener, address) = Listener::on_loopback("127.0.0.1:0")?;
    let mut listeners = vec![listener];
    let mut addresses = vec![format!("tcp:{address}")];
    // A host without IPv6 has no such listener to reach.
    if let Ok((listener, address)) = Listener::on_loopback("[::1]:0") {
        listeners.push(listener);
        addresses.push(format!("tcp:{address}"));
    }
    let inside =
        stage.inside(&Run::of(&workspace, "connect").arg("given").args(&addresses))?.told()?;
    let came: u32 = listeners.iter().map(Listener::accepted).sum();
    if came != 0 {
        return Ok(Verdict::broke(format!("the listeners accepted {came} times")));
    }
    let words = ["connect", "given"].into_iter().chain(addresses.iter().map(String::as_str));
    let control = stage.outside(Unprotected::Directly, words)?.told()?;
    let came: u32 = listeners.iter().map(Listener::accepted).sum();
    if came as usize != addresses.len() {
        return Ok(Verdict::no_control("outside, the listeners did not answer either"));
    }
    Ok(judge(&inside, &control, &[ECONNREFUSED], usual))
}

fn unreachable(stage: &Stage, addresses: &[&str]) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let inside =
        stage.inside(&Run::of(&workspace, "connect").arg("given").args(addresses))?.told()?;
    // An answer that takes long may have come from somebody.
    if let Some(slow) =
        addresses.iter().find(|address| inside.number(&format!("ms {address}")) > 100)
    {
        return Ok(Verdict::broke(format!("{slow} took more than 100 ms to be refused")));
    }
    let words = ["connect", "own"].iter().chain(addresses);
    let control = stage.outside(Unprotected::Scratch, words)?.told()?;
    Ok(judge(&inside, &control, &refusals(stage, &[ENETUNREACH], &[EHOSTUNREACH]), usual))
}

fn metadata(stage: &Stage) -> Result<Verdict, StageError> {
    unreachable(stage, &["tcp:169.254.169.254:80", "tcp:[fd00:ec2::254]:80"])
}

fn other_addresses(stage: &Stage) -> Result<Verdict, StageError> {
    unreachable(
        stage,
        &[
            "tcp:192.0.2.1:443",
            "tcp:[2001:db8::1]:443",
            "udp:192.0.2.2:443",
            "udp:[2001:db8::2]:443",
            "udp:192.0.2.3:53",
        ],
    )
}

fn sockets(stage: &Stage, wanted: &[&str]) -> Result<Verdict, StageError> {
    sockets_refused(stage, wanted, EPERM)
}

fn sockets_refused(stage: &Stage, wanted: &[&str], answer: Answer) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let inside = stage.inside(&Run::of(&workspace, "sockets").args(wanted))?.told()?;
    let words = ["sockets"].iter().chain(wanted);
    let control = stage.outside(Unprotected::Scratch, words)?.told()?;
    Ok(judge(&inside, &control, &[answer], usual))
}

fn raw_sockets(stage: &Stage) -> Result<Verdict, StageError> {
    // Packet sockets, raw ones with and without flags, over IPv6.
    sockets(stage, &["17,3,768", "17,2,768", "2,3,1", "2,526339,1", "2,3,255", "10,3,58"])
}

fn vsock(stage: &Stage) -> Result<Verdict, StageError> {
    // Only made, never connected: there may be somebody on the other side.
    sockets(stage, &["40,1,0", "40,2,0"])
}

fn netlink(stage: &Stage) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    let route = stage.inside(&Run::of(&workspace, "sockets").arg("16,3,0"))?.told()?;
    if route.successes() != 1 {
        return Err(StageError::Unexpected(
            "the netlink socket for routes is refused too".to_owned(),
        ));
    }
    let others = ["16,3,4", "16,3,6", "16,3,9", "16,3,12", "16,3,15", "16,3,16"];
    sockets_refused(stage, &others, Answer::Errno(libc::EPROTONOSUPPORT))
}

fn sibling(stage: &Stage) -> Result<Verdict, StageError> {
    let workspace = stage.workspace()?;
    // A port that is free on the host, so that the control can have it.
    let port = {
        let (listener, address) = Listener::on_loopback("127.0.0.1:0")?;
        drop(listener);
        address.port().to_string()
    };
    let address = format!("tcp:127.0.0.1:{port}");
    let mut server = stage.start_inside(&Run::of(&workspace, "listen").args([&port, "20000"]))?;
    server.hear("listening")?;
    let inside = stage.inside(&Run::of(&workspace, "connect").args(["given", &address]))?.told()?;
    let from_host = stage.outside(Unprotected::Directly, ["connect", "given", &address])?.told()?;
    let (was_there, was_reached) = (server.is_alive(), server.has_said("accepted"));
    server.stop()?;
    if let Some(verdict) =
        broken(&inside, &[ECONNREFUSED]).or_else(|| broken(&from_host, &[ECONNREFUSED]))
    {
        return Ok(verdict);
    }
    if was_reached {
        return Ok(Verdict::broke("the other run's server was reached"));
    }
    let mut command = stage.control(Unprotected::Directly, ["listen", &port, "20000"]);
    let mut server = crate::stage::Running::start(&mut command, "the control's server")?;
    server.hear("listening")?;
    let control = stage.outside(Unprotected::Directly, ["connect", "given", &address])?.told()?;
    if !was_there || control.answer(&address) != Some(Answer::Succeeded) {
        return Ok(Verdict::no_control("outside, the server was not reached either"));
    }
    server.hear("accepted")?;
    Ok(Verdict::held(summary(&inside)))
}
