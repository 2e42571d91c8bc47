//! Parses the address on which an engine listens.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use belljar_spec::BackendName;
use serde::{Deserialize, Serialize};

/// The port for plain HTTP if none is named.
const USUAL_PORT: u16 = 2375;

/// As `DOCKER_HOST` names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Endpoint {
    Unix(PathBuf),
    Tcp { host: String, port: u16 },
    Ssh(SshPlace),
}

/// An engine that `ssh` leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SshPlace {
    pub program: Program,
    pub user: Option<String>,
    pub host: String,
    pub port: Option<u16>,
    /// The engine's socket over there; what its program chooses, if none is named.
    pub socket: Option<String>,
    /// A key's file over here; what `ssh` chooses, if none is named.
    pub identity: Option<String>,
}

/// What joins a connection to the engine on its own machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    Docker,
    Podman,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEndpoint {
    #[error(
        "\"{0}\" is no engine's address; there are unix:///path, tcp://host:port, ssh://user@host"
    )]
    Unknown(String),
    #[error("\"{0}\" asks for TLS, which this version does not support")]
    Tls(String),
}

impl Endpoint {
    /// On this machine, as far as the address shows.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Unix(_))
    }

    /// An address of one kind of engine. Only over ssh it makes a difference: another program is started.
    pub fn of(backend: BackendName, text: &str) -> Result<Self, BadEndpoint> {
        let mut endpoint: Self = text.parse()?;
        if let (Self::Ssh(place), BackendName::Podman) = (&mut endpoint, backend) {
            place.program = Program::Podman;
        }
        Ok(endpoint)
    }

    pub(crate) fn with_identity(mut self, file: Option<String>) -> Result<Self, BadEndpoint> {
        if let (Self::Ssh(place), Some(file)) = (&mut self, file) {
            place.identity = Some(file);
            return self.to_string().parse(); // so that what is noted down can be read again
        }
        Ok(self)
    }
}

impl FromStr for Endpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let shown = || belljar_spec::text::escape(text.as_bytes());
        let bad = || BadEndpoint::Unknown(shown());
        let (scheme, rest) = text.split_once("://").ok_or_else(bad)?;
        match scheme {
            "unix" if rest.starts_with('/') => Ok(Self::Unix(PathBuf::from(rest))),
            "tcp" | "http" => tcp(rest).ok_or_else(bad),
            "https" => Err(BadEndpoint::Tls(shown())),
            "ssh" => ssh(Program::Docker, rest).ok_or_else(bad),
            "podman+ssh" => ssh(Program::Podman, rest).ok_or_else(bad),
            _ => Err(bad()),
        }
    }
}

fn tcp(rest: &str) -> Option<Endpoint> {
    let (host, port) = host_and_port(rest.trim_end_matches('/'))?;
    Some(Endpoint::Tcp { host: host.to_owned(), port: port.unwrap_or(USUAL_PORT) })
}

fn ssh(program: Program, rest: &str) -> Option<Endpoint> {
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, socket) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    let (host, port) = host_and_port(host)?;
    let user = match user {
        Some(user) if is_plain(user, "._-+") => Some(user.to_owned()),
        Some(_) => return None, // a password would be one of these
        None => None,
    };
    let socket = match socket {
        "" | "/" => None,
        // It becomes an argument in the remote shell.
        socket if is_plain(socket, "/._-+@") => Some(socket.to_owned()),
        _ => return None,
    };
    let identity = query.split('&').find_map(|pair| pair.strip_prefix("identity="));
    Some(Endpoint::Ssh(SshPlace {
        program,
        user,
        host: host.to_owned(),
        port,
        socket,
        identity: identity.filter(|file| !file.is_empty()).map(str::to_owned),
    }))
}

/// `host`, `host:port`, `[address]`, `[address]:port`.
fn host_and_port(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            (address, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = port.map(str::parse).transpose().ok()?;
    is_plain(host, "._-:%").then_some((host, port))
}

/// Letters, digits and these; and no dash at the beginning, which would be an option of some program.
fn is_plain(text: &str, others: &str) -> bool {
    let mut all = text.chars();
    !text.is_empty()
        && !text.starts_with('-')
        && all.all(|c| c.is_ascii_alphanumeric() || others.contains(c))
}

impl TryFrom<String> for Endpoint {
    type Error = BadEndpoint;

    fn try_from(text: String) -> Result<Self, BadEndpoint> {
        text.parse()
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.to_string()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp { host, port } => write!(f, "tcp://{}:{port}", Bracketed(host)),
            Self::Ssh(place) => place.fmt(f),
        }
    }
}

impl fmt::Display for SshPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.program {
            Program::Docker => "ssh://",
            Program::Podman => "podman+ssh://",
        })?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        write!(f, "{}", Bracketed(&self.host))?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        f.write_str(self.socket.as_deref().unwrap_or_default())?;
        match &self.identity {
            Some(file) => write!(f, "?identity={file}"),
            None => Ok(()),
        }
    }
}

struct Bracketed<'a>(&'a str);

impl fmt::Display for Bracketed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.contains(':') {
            true => write!(f, "[{}]", self.0),
            false => f.write_str(self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_they_are_written() {
        for text in [
            "unix:///run/docker.sock",
            "tcp://127.0.0.1:2375",
            "tcp://[::1]:2375",
            "ssh://host",
            "ssh://me@host",
            "ssh://me@host:2222",
            "ssh://me@[::1]:2222/run/user/1000/podman/podman.sock",
            "podman+ssh://me@host?identity=/home/me/.ssh/key",
        ] {
            let read: Result<Endpoint, _> = text.parse();
            assert_eq!(read.map(|endpoint| endpoint.to_string()), Ok(text.into()));
        }
        let usual: Result<Endpoint, _> = "tcp://host".parse();
        assert_eq!(usual.map(|endpoint| endpoint.to_string()), Ok("tcp://host:2375".to_owned()));
    }

    #[test]
    fn what_another_program_could_take_for_something_else_is_no_address() {
        for text in [
            "",
            "docker.sock",
            "unix://relative",
            "tcp://",
            "tcp://host:",
            "tcp://host:1/path",
            "tcp://a:b:c",
            "ssh://-oProxyCommand=x",
            "ssh://-l@host",
            "ssh://me:password@host",
            "ssh://me@ho st",
            "ssh://me@host/run/$(id).sock",
            "npipe:////./pipe/docker_engine",
        ] {
            assert!(matches!(text.parse::<Endpoint>(), Err(BadEndpoint::Unknown(_))), "{text}");
        }
        let encrypted: Result<Endpoint, _> = "https://host:2376".parse();
        assert!(matches!(encrypted, Err(BadEndpoint::Tls(_))));
    }

    #[test]
    fn the_backend_names_the_program_on_the_other_side() {
        let program = |backend| match Endpoint::of(backend, "ssh://host") {
            Ok(Endpoint::Ssh(place)) => Some(place.program),
            _ => None,
        };
        assert_eq!(program(BackendName::Docker), Some(Program::Docker));
        assert_eq!(program(BackendName::Podman), Some(Program::Podman));
    }
}
