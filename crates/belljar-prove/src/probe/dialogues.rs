//! Runs the dialogues of a case, and reports the responses.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};

use super::{Arguments, ProbeError, Probed};
use crate::dialogue::{Dialogue, Step};
use crate::probe_report::{AttemptResult, ProbeReport};

/// The machine may be busy, and a name server slow.
const PATIENCE: Duration = Duration::from_secs(12);
/// Of what comes after all that was due.
const LULL: Duration = Duration::from_millis(400);
const MAX_KEPT: usize = 16 * 1024;
const AT_ONCE: usize = 12;

/// `DIALOGUES`, as JSON. For each: whether it came to its end, and as a fact of its name all that was received.
pub(super) fn dialogues(args: &Arguments<'_>) -> Probed {
    let mut report = ProbeReport::default();
    hold_all(args.text(0, "dialogues")?, &mut report)?;
    Ok(report)
}

/// The same, and then it is there for some time. `DIALOGUES MILLISECONDS`
pub(super) fn and_stay(args: &Arguments<'_>) -> Probed {
    let report = dialogues(args)?;
    super::say_and_stay(&report, args.number(1, "milliseconds")?);
    Ok(report)
}

pub(super) fn hold_all(text: &str, report: &mut ProbeReport) -> Result<(), ProbeError> {
    let all: Vec<Dialogue> =
        serde_json::from_str(text).map_err(|_| ProbeError::Argument("dialogues"))?;
    for some in all.chunks(AT_ONCE) {
        let held = std::thread::scope(|scope| {
            let threads: Vec<_> = some.iter().map(|one| scope.spawn(|| hold(one))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect::<Vec<_>>()
        });
        for (dialogue, (probe_report, answer)) in some.iter().zip(held) {
            let probe_report: String =
                probe_report.iter().take(MAX_KEPT).map(|byte| char::from(*byte)).collect();
            report.answered(&dialogue.what, answer.unwrap_or(AttemptResult::Errno(libc::EIO)));
            report.fact(&dialogue.what, probe_report);
        }
    }
    Ok(())
}

/// Everything received, and how it ended.
fn hold(dialogue: &Dialogue) -> (Vec<u8>, Option<AttemptResult>) {
    let mut probe_report = Vec::new();
    let ended = converse(dialogue, &mut probe_report);
    let answer = AttemptResult::of(ended.map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => Errno::CONNRESET,
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Errno::TIMEDOUT,
        ErrorKind::PermissionDenied => Errno::ACCESS,
        _ => Errno::from_io_error(&error).unwrap_or(Errno::IO),
    }));
    (probe_report, Some(answer))
}

pub(super) enum Line {
    Plain(TcpStream),
    Secure(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Line {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Secure(stream) => &stream.sock,
        }
    }
}

impl Read for Line {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Secure(stream) => stream.read(buffer),
        }
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Secure(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Secure(stream) => stream.flush(),
        }
    }
}

fn converse(dialogue: &Dialogue, probe_report: &mut Vec<u8>) -> io::Result<()> {
    let socket =
        TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, dialogue.port).into(), PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut line = Line::Plain(socket);
    for step in &dialogue.steps {
        match step {
            Step::Send(text) => {
                let bytes: Vec<u8> = filled(text).chars().map(|c| c as u8).collect();
                line.write_all(&bytes)?;
                line.flush()?;
            }
            Step::Bytes(count) => drop(exactly(&mut line, *count, probe_report)?),
            Step::Granted => {
                let head = head(&mut line, probe_report)?;
                if head.split(' ').nth(1) != Some("200") {
                    return rest(&mut line, probe_report)
                        .and(Err(ErrorKind::PermissionDenied.into()));
                }
            }
            Step::SocksGranted => {
                // All answers are as long as one with an IPv4 address.
                if exactly(&mut line, 10, probe_report)?.get(1) != Some(&0) {
                    return Err(ErrorKind::PermissionDenied.into());
                }
            }
            Step::AttemptResult => answer(&mut line, probe_report)?,
            Step::Rest => rest(&mut line, probe_report)?,
            Step::Tls(name) => line = secured(line, name.as_deref())?,
        }
    }
    Ok(())
}

fn filled(text: &str) -> String {
    let Some((before, rest)) = text.split_once("${") else { return text.to_owned() };
    let Some((name, after)) = rest.split_once('}') else { return text.to_owned() };
    let value = match name.strip_prefix('#') {
        Some(name) => std::env::var(name).unwrap_or_default().len().to_string(),
        None => std::env::var(name).unwrap_or_default(),
    };
    format!("{before}{value}{}", filled(after))
}

fn exactly(line: &mut Line, count: usize, probe_report: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    let mut all = vec![0; count];
    let mut length = 0;
    while length < count {
        match line.read(&mut all[length..])? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            more => {
                probe_report.extend(&all[length..length + more]);
                length += more;
            }
        }
    }
    Ok(all)
}

/// Byte by byte, so that nothing beyond the line is consumed.
fn head(line: &mut Line, probe_report: &mut Vec<u8>) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < MAX_KEPT {
        head.extend(exactly(line, 1, probe_report)?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn answer(line: &mut Line, probe_report: &mut Vec<u8>) -> io::Result<()> {
    let head = head(line, probe_report)?.to_lowercase();
    let value = |name: &str| {
        let found = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        found.map(str::trim)
    };
    if let Some(length) = value("content-length").and_then(|value| value.parse().ok()) {
        return exactly(line, length, probe_report).map(drop);
    }
    if value("transfer-encoding").is_some() {
        let from = probe_report.len();
        while !probe_report[from..].ends_with(b"0\r\n\r\n") {
            exactly(line, 1, probe_report)?;
        }
        return Ok(());
    }
    if head.split(' ').nth(1).is_some_and(|status| status.starts_with('1') || status == "204") {
        return Ok(());
    }
    rest(line, probe_report)
}

/// Reads until the peer closes, or sends nothing for a while.
fn rest(line: &mut Line, probe_report: &mut Vec<u8>) -> io::Result<()> {
    line.socket().set_read_timeout(Some(LULL))?;
    let until = Instant::now() + PATIENCE;
    let mut buffer = [0; 4096];
    while Instant::now() < until {
        match line.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(length) => probe_report.extend(&buffer[..length]),
        }
    }
    line.socket().set_read_timeout(Some(PATIENCE))
}

pub(super) fn secured(line: Line, name: Option<&str>) -> io::Result<Line> {
    let Line::Plain(socket) = line else { return Err(ErrorKind::Unsupported.into()) };
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    let name = match name {
        Some(name) => ServerName::try_from(name.to_owned()).map_err(io::Error::other)?,
        // For an address no name is sent.
        None => ServerName::IpAddress(Ipv4Addr::LOCALHOST.into()),
    };
    let session = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(session, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(Line::Secure(Box::new(stream)))
}

/// An attacker trusts everybody.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
