//! Resolves host names with the system's `getent`: the static executable has no name service.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use belljar_bind::host_program;

const RESOLVE_TIMEOUT: Duration = Duration::from_millis(1500);

pub(super) fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let mut found: Vec<SocketAddr> = Vec::new();
    for line in asked(host)?.lines() {
        let address = line.split_whitespace().next().and_then(|word| word.parse().ok());
        if let Some(address) = address.map(|address: IpAddr| SocketAddr::new(address, port))
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    if found.is_empty() {
        let unknown = format!("no address of \"{host}\" is known");
        return Err(io::Error::new(io::ErrorKind::HostUnreachable, unknown));
    }
    Ok(found)
}

fn asked(host: &str) -> io::Result<String> {
    let failed = |error: io::Error| {
        let why = format!("cannot look up \"{host}\": getent: {error}; write its address");
        io::Error::new(io::ErrorKind::HostUnreachable, why)
    };
    let getent = host_program::find("getent").map_err(failed)?;
    let mut child = Command::new(getent)
        .args(["ahosts", host])
        .current_dir("/")
        .env("PATH", host_program::clean_path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let until = Instant::now() + RESOLVE_TIMEOUT;
    while child.try_wait()?.is_none() {
        if Instant::now() >= until {
            let _ = child.kill(); // it may have ended by now
            child.wait()?;
            let slow = format!("looking up \"{host}\" took too long");
            return Err(io::Error::new(io::ErrorKind::TimedOut, slow));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut text = String::new();
    if let Some(output) = child.stdout.take() {
        output.take(64 * 1024).read_to_string(&mut text)?;
    }
    Ok(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_taken_as_they_are_and_names_are_asked_for() {
        assert_eq!(addresses("127.0.0.1", 1).unwrap(), ["127.0.0.1:1".parse().unwrap()]);
        assert_eq!(addresses("::1", 1).unwrap(), ["[::1]:1".parse().unwrap()]);
        let local = addresses("localhost", 2).unwrap();
        assert!(local.iter().all(|address| address.ip().is_loopback()), "{local:?}");
        let unknown = addresses("no-such-name.invalid", 3).unwrap_err();
        assert!(unknown.to_string().contains("no-such-name.invalid"), "{unknown}");
    }
}
