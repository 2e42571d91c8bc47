//! A benchmark client: one long download, many small requests, many connections at once.
//!
//! It is the same on every arm, so that only the path to the server differs.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::dialogues::{Line, secured};
use super::{Arguments, ProbeError, Probed};
use crate::probe_report::ProbeReport;

const PATIENCE: Duration = Duration::from_secs(60);
const MAX_HEAD: usize = 16 * 1024;

/// How the server is reached.
struct MeasureTarget {
    /// The server, or what stands before it.
    at: SocketAddr,
    /// Asked for by CONNECT, if it is a proxy.
    tunnel: Option<String>,
    /// In TLS, with this name.
    name: Option<String>,
}

/// `ADDRESS straight|HOST:PORT plain|NAME WHAT…`, where WHAT is `download BYTES`, `requests COUNT`, `connections
/// COUNT` or `hold COUNT MILLISECONDS`.
pub(super) fn measure(args: &Arguments<'_>) -> Probed {
    let at = args.text(0, "an address")?.parse();
    let optional = |at: usize, none: &str, what: &'static str| {
        args.text(at, what).map(|text| (text != none).then(|| text.to_owned()))
    };
    let target = MeasureTarget {
        at: at.map_err(|_| ProbeError::Argument("an address"))?,
        tunnel: optional(1, "straight", "straight or an authority")?,
        name: optional(2, "plain", "plain or a name")?,
    };
    let count = args.number(4, "a count")?;
    let mut report = ProbeReport::default();
    let step = |error: io::Error| ProbeError::Step(format!("talk to {}", target.at), error);
    match args.text(3, "what to measure")? {
        "download" => download(&target, count, &mut report).map_err(step)?,
        "requests" => requests(&target, count, &mut report).map_err(step)?,
        "connections" => connections(&target, count, &mut report).map_err(step)?,
        _ => {
            super::raise_descriptors();
            let held = hold(&target, count).map_err(step)?;
            report.fact("held", held.len());
            super::say_and_stay(&report, args.number(5, "milliseconds")?);
        }
    }
    Ok(report)
}

impl MeasureTarget {
    fn open(&self) -> io::Result<Line> {
        let mut socket = TcpStream::connect_timeout(&self.at, PATIENCE)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        if let Some(authority) = &self.tunnel {
            let ask = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
            socket.write_all(ask.as_bytes())?;
            let head = head(&mut socket)?;
            if head.split(' ').nth(1) != Some("200") {
                return Err(io::Error::other(format!("the proxy answered {head:?}")));
            }
        }
        match &self.name {
            None => Ok(Line::Plain(socket)),
            Some(name) => secured(Line::Plain(socket), Some(name)),
        }
    }

    fn ask(&self, path: &str) -> String {
        let host = self.name.as_deref().unwrap_or("ok.example");
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")
    }
}

/// Byte by byte, so that nothing beyond the line is consumed.
fn head(from: &mut impl Read) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if from.read(&mut byte)? == 0 || head.len() > MAX_HEAD {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn download(target: &MeasureTarget, wanted: u64, report: &mut ProbeReport) -> io::Result<()> {
    let mut line = target.open()?;
    let began = Instant::now();
    line.write_all(target.ask(&format!("/zeros/{wanted}")).as_bytes())?;
    head(&mut line)?;
    let mut buffer = vec![0; 256 * 1024];
    let mut bytes = 0;
    while bytes < wanted {
        match line.read(&mut buffer)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            length => bytes += length as u64,
        }
    }
    report.fact("bytes", bytes);
    report.fact("ns", began.elapsed().as_nanos());
    Ok(())
}

/// One small request, with its answer.
fn small(line: &mut Line, ask: &str) -> io::Result<()> {
    line.write_all(ask.as_bytes())?;
    line.flush()?;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    // The page's whole text behind the head; or in a chunk of its own, with the last one behind it.
    while !(answer.ends_with(b"\r\n\r\nok\n") || answer.ends_with(b"ok\n\r\n0\r\n\r\n")) {
        match line.read(&mut buffer)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            length => answer.extend(&buffer[..length]),
        }
    }
    Ok(())
}

fn requests(target: &MeasureTarget, count: u64, report: &mut ProbeReport) -> io::Result<()> {
    let mut line = target.open()?;
    let ask = target.ask("/small");
    small(&mut line, &ask)?;
    let mut times = Vec::new();
    for _ in 0..count {
        let began = Instant::now();
        small(&mut line, &ask)?;
        times.push(began.elapsed());
    }
    percentiles(times, report);
    Ok(())
}

fn connections(target: &MeasureTarget, count: u64, report: &mut ProbeReport) -> io::Result<()> {
    let ask = target.ask("/small");
    small(&mut target.open()?, &ask)?;
    let mut times = Vec::new();
    for _ in 0..count {
        let began = Instant::now();
        small(&mut target.open()?, &ask)?;
        times.push(began.elapsed());
    }
    percentiles(times, report);
    Ok(())
}

fn percentiles(mut times: Vec<Duration>, report: &mut ProbeReport) {
    times.sort();
    for (name, percent) in [("p10", 10), ("p50", 50), ("p99", 99)] {
        let at = (times.len() * percent / 100).min(times.len().saturating_sub(1));
        report.fact(&format!("{name} ns"), times.get(at).map_or(0, Duration::as_nanos));
    }
}

/// All of them, each used once.
fn hold(target: &MeasureTarget, count: u64) -> io::Result<Vec<Line>> {
    let ask = target.ask("/small");
    let mut held = Vec::new();
    for _ in 0..count {
        held.push(target.open()?);
    }
    for line in &mut held {
        small(line, &ask)?;
    }
    Ok(held)
}
