//! Attacks that open network connections without the proxy.
//!
//! A control that uses a foreign address runs in a network namespace in which that address is on loopback.

use belljar_spec::Clause;

use super::judge::{
    ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, EPERM, broken, judge, refusals, summary, usual,
};
use crate::case::{Case, Severity, Verdict};
use crate::probe_report::AttemptResult;
use crate::testbed::{Listener, Run, TestBed, TestBedError, Unprotected};

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

fn host_loopback(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let (listener, address) = Listener::on_loopback("127.0.0.1:0")?;
    let mut listeners = vec![listener];
    let mut addresses = vec![format!("tcp:{address}")];
    // A host without IPv6 has no such listener to reach.
    if let Ok((listener, address)) = Listener::on_loopback("[::1]:0") {
        listeners.push(listener);
        addresses.push(format!("tcp:{address}"));
    }
    let inside =
        testbed.inside(&Run::of(&workspace, "connect").arg("given").args(&addresses))?.report()?;
    let came: u32 = listeners.iter().map(Listener::accepted).sum();
    if came != 0 {
        return Ok(Verdict::broke(format!("the listeners accepted {came} times")));
    }
    let argv = ["connect", "given"].into_iter().chain(addresses.iter().map(String::as_str));
    let control = testbed.outside(Unprotected::Directly, argv)?.report()?;
    let came: u32 = listeners.iter().map(Listener::accepted).sum();
    if came as usize != addresses.len() {
        return Ok(Verdict::no_control("outside, the listeners did not answer either"));
    }
    Ok(judge(&inside, &control, &[ECONNREFUSED], usual))
}

fn unreachable(testbed: &TestBed, addresses: &[&str]) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside =
        testbed.inside(&Run::of(&workspace, "connect").arg("given").args(addresses))?.report()?;
    // A slow result may come from a real host.
    if let Some(slow) =
        addresses.iter().find(|address| inside.number(&format!("ms {address}")) > 100)
    {
        return Ok(Verdict::broke(format!("{slow} took more than 100 ms to be refused")));
    }
    let argv = ["connect", "own"].iter().chain(addresses);
    let control = testbed.outside(Unprotected::Scratch, argv)?.report()?;
    Ok(judge(&inside, &control, &refusals(testbed, &[ENETUNREACH], &[EHOSTUNREACH]), usual))
}

fn metadata(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    unreachable(testbed, &["tcp:169.254.169.254:80", "tcp:[fd00:ec2::254]:80"])
}

fn other_addresses(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    unreachable(
        testbed,
        &[
            "tcp:192.0.2.1:443",
            "tcp:[2001:db8::1]:443",
            "udp:192.0.2.2:443",
            "udp:[2001:db8::2]:443",
            "udp:192.0.2.3:53",
        ],
    )
}

fn sockets(testbed: &TestBed, wanted: &[&str]) -> Result<Verdict, TestBedError> {
    sockets_refused(testbed, wanted, EPERM)
}

fn sockets_refused(
    testbed: &TestBed,
    wanted: &[&str],
    answer: AttemptResult,
) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let inside = testbed.inside(&Run::of(&workspace, "sockets").args(wanted))?.report()?;
    let argv = ["sockets"].iter().chain(wanted);
    let control = testbed.outside(Unprotected::Scratch, argv)?.report()?;
    Ok(judge(&inside, &control, &[answer], usual))
}

fn raw_sockets(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    // Packet sockets, raw ones with and without flags, over IPv6.
    sockets(testbed, &["17,3,768", "17,2,768", "2,3,1", "2,526339,1", "2,3,255", "10,3,58"])
}

fn vsock(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    // Only created, never connected: there may be a real peer.
    sockets(testbed, &["40,1,0", "40,2,0"])
}

fn netlink(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    let route = testbed.inside(&Run::of(&workspace, "sockets").arg("16,3,0"))?.report()?;
    if route.successes() != 1 {
        return Err(TestBedError::Unexpected(
            "the netlink socket for routes is refused too".to_owned(),
        ));
    }
    let others = ["16,3,4", "16,3,6", "16,3,9", "16,3,12", "16,3,15", "16,3,16"];
    sockets_refused(testbed, &others, AttemptResult::Errno(libc::EPROTONOSUPPORT))
}

fn sibling(testbed: &TestBed) -> Result<Verdict, TestBedError> {
    let workspace = testbed.workspace()?;
    // A port that is free on the host, so that the control can have it.
    let port = {
        let (listener, address) = Listener::on_loopback("127.0.0.1:0")?;
        drop(listener);
        address.port().to_string()
    };
    let address = format!("tcp:127.0.0.1:{port}");
    let mut server = testbed.start_inside(&Run::of(&workspace, "listen").args([&port, "20000"]))?;
    server.wait_for_line("listening")?;
    let inside =
        testbed.inside(&Run::of(&workspace, "connect").args(["given", &address]))?.report()?;
    let from_host =
        testbed.outside(Unprotected::Directly, ["connect", "given", &address])?.report()?;
    let (was_there, was_reached) = (server.is_alive(), server.has_printed("accepted"));
    server.stop()?;
    if let Some(verdict) =
        broken(&inside, &[ECONNREFUSED]).or_else(|| broken(&from_host, &[ECONNREFUSED]))
    {
        return Ok(verdict);
    }
    if was_reached {
        return Ok(Verdict::broke("the other run's server was reached"));
    }
    let mut command = testbed.control(Unprotected::Directly, ["listen", &port, "20000"]);
    let mut server = crate::testbed::Running::start(&mut command, "the control's server")?;
    server.wait_for_line("listening")?;
    let control =
        testbed.outside(Unprotected::Directly, ["connect", "given", &address])?.report()?;
    if !was_there || control.answer(&address) != Some(AttemptResult::Succeeded) {
        return Ok(Verdict::no_control("outside, the server was not reached either"));
    }
    server.wait_for_line("accepted")?;
    Ok(Verdict::held(summary(&inside)))
}
