//! Connects through `ssh`, which starts on the engine's machine the relay that the engine's own command uses:
//! from its standard streams to the engine's socket.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use belljar_bind::host_program;

use super::endpoint::{Program, SshPlace};

/// For its error output, after which it ends.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);
const MAX_STDERR: u64 = 4096;

/// The process behind one connection. It ends with this.
#[derive(Debug)]
pub(super) struct Ssh(Mutex<Child>);

impl Ssh {
    pub(super) fn start(place: &SshPlace) -> io::Result<(UnixStream, Self)> {
        let (ours, theirs) = UnixStream::pair()?;
        let output: OwnedFd = theirs.try_clone()?.into();
        let failed =
            |error: io::Error| io::Error::new(error.kind(), format!("cannot start ssh: {error}"));
        let child = Command::new(host_program::find("ssh").map_err(failed)?)
            .args(arguments(place))
            .current_dir("/")
            .env("PATH", host_program::clean_path())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(output))
            .stderr(Stdio::piped())
            .process_group(0) // the terminal's ^C is the command's, not this one's
            .spawn()
            .map_err(failed)?;
        Ok((ours, Self(Mutex::new(child))))
    }

    /// Why a connection ended that should not have.
    pub(super) fn explain(&self, error: io::Error) -> io::Error {
        match self.stderr_text() {
            Some(text) => io::Error::new(error.kind(), format!("ssh: {text}")),
            None => error,
        }
    }

    fn stderr_text(&self) -> Option<String> {
        let mut child = self.0.lock().ok()?;
        let status = ended(&mut child)?;
        let mut text = Vec::new();
        // It has ended, so reading does not wait, unless something else holds the other end.
        let stderr = child.stderr.take()?;
        rustix::io::ioctl_fionbio(&stderr, true).ok()?;
        let _ = stderr.take(MAX_STDERR).read_to_end(&mut text); // what came is shown
        let text = one_line(&text);
        Some(if text.is_empty() { format!("it ended with {status}") } else { text })
    }
}

fn one_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<String> =
        lines.map(|line| belljar_spec::text::escape(line.as_bytes())).collect();
    lines.join("; ")
}

fn ended(child: &mut Child) -> Option<ExitStatus> {
    let until = Instant::now() + EXIT_TIMEOUT;
    loop {
        if let Some(status) = child.try_wait().ok()? {
            return Some(status);
        }
        if Instant::now() >= until {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        if let Ok(child) = self.0.get_mut() {
            let _ = child.kill(); // it has ended already, or does now
            let _ = child.wait();
        }
    }
}

fn arguments(place: &SshPlace) -> Vec<String> {
    // No questions, nothing forwarded, and nothing else started than what is asked for here.
    let mut text: Vec<String> = [
        "-T",
        "-a",
        "-x",
        "-oBatchMode=yes",
        "-oConnectTimeout=4",
        "-oServerAliveInterval=15",
        "-oServerAliveCountMax=4",
        "-oClearAllForwardings=yes",
        "-oPermitLocalCommand=no",
        "-oRemoteCommand=none",
    ]
    .map(str::to_owned)
    .to_vec();
    let mut option = |name: &str, value: &str| text.extend([name.to_owned(), value.to_owned()]);
    if let Some(file) = &place.identity {
        option("-i", file);
    }
    if let Some(user) = &place.user {
        option("-l", user);
    }
    if let Some(port) = place.port {
        option("-p", &port.to_string());
    }
    text.extend(["--".to_owned(), place.host.clone()]);
    let (program, at) = match place.program {
        Program::Docker => ("docker", "--host"),
        Program::Podman => ("podman", "--url"),
    };
    text.push(program.to_owned());
    if let Some(socket) = &place.socket {
        text.extend([at.to_owned(), format!("unix://{socket}")]);
    }
    text.extend(["system", "dial-stdio"].map(str::to_owned));
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::engine::endpoint::Endpoint;

    fn command(address: &str) -> String {
        let Endpoint::Ssh(place) = address.parse().unwrap() else { panic!("{address}") };
        let all = arguments(&place).join(" ");
        all.split_once("RemoteCommand=none ").unwrap().1.to_owned()
    }

    #[test]
    fn what_is_started_over_there() {
        assert_eq!(command("ssh://far"), "-- far docker system dial-stdio");
        assert_eq!(
            command("ssh://me@[::1]:2222/run/d.sock"),
            "-l me -p 2222 -- ::1 docker --host unix:///run/d.sock system dial-stdio"
        );
        assert_eq!(
            command("podman+ssh://far/run/p.sock?identity=/k"),
            "-i /k -- far podman --url unix:///run/p.sock system dial-stdio"
        );
    }
}
