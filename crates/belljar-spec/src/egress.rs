//! The network policy of a run: the proxy's configuration, and the events that it reports.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::host::Host;
use crate::manifest::AgentKind;
use crate::text::OsText;

/// Where the proxy listens on the sandbox's loopback, for HTTP and SOCKS5 alike. Above the ports that the
/// kernel gives to outgoing connections.
pub const PROXY_PORT: u16 = 61080;
/// Where the run's certificate authority is found inside.
pub const TRUST_DIRECTORY: &str = "/run/belljar/trust";
/// The host's authorities and the run's, as PEM.
pub const TRUST_BUNDLE: &str = "bundle.pem";
/// The run's authority alone, as PEM.
pub const TRUST_CA: &str = "ca.pem";
/// The bundle for Java.
pub const TRUST_JAVA: &str = "bundle.jks";

/// How far the run may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// What the rules name.
    #[default]
    Listed,
    /// Every public name, to find out which rules would do.
    Learn,
}

/// Everything about the network but the list of rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct EgressSpec {
    pub reach: Reach,
    /// `host:port`, which may have private addresses.
    pub allow_private: Vec<String>,
    /// Hosts (`name` or `*.suffix`) where the proxy opens TLS although no secret needs it.
    pub intercept: Vec<String>,
    pub secrets: Vec<SecretSpec>,
    pub routes: Vec<RouteSpec>,
    pub budget: Budget,
    /// Of each host alone.
    pub per_host: Budget,
    pub publish: Vec<PublishSpec>,
}

/// A credential: its destination and its source, never its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretSpec {
    /// The variable that holds a placeholder inside.
    pub env: String,
    pub host: Host,
    pub port: u16,
    pub place: SecretPlace,
    pub source: SecretSource,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SecretPlace {
    Header {
        name: String,
    },
    Query {
        name: String,
    },
    /// Basic authentication with this user.
    Basic {
        user: String,
    },
    Bearer,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum SecretSource {
    Env {
        name: String,
    },
    File {
        path: OsText,
    },
    Command {
        argv: Vec<String>,
    },
    Keyring {
        entry: String,
    },
    /// The agent's own login on the host, which the supervisor keeps fresh. No manifest can name this source.
    Login(LoginSource),
}

/// A part of an agent's login: where it is stored, and where it is refreshed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoginSource {
    pub agent: AgentKind,
    pub part: LoginPart,
    /// The agent's own file on the host.
    pub file: OsText,
    /// Held while the login is refreshed, by every run of this user.
    pub lock: OsText,
    pub token_url: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoginPart {
    AccessToken,
    /// The account that requests are made for.
    Account,
}

/// A port inside that forwards to one destination: plain HTTP, or bytes as they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteSpec {
    pub listen: u16,
    pub to: RouteTarget,
    /// The variable of the secret to put in.
    pub secret: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteTarget {
    pub scheme: RouteScheme,
    pub host: Host,
    pub port: u16,
    /// In front of every request's path; without a slash at the end, so empty for the root.
    pub path: String,
}

impl fmt::Display for RouteTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheme, host, port, path } = self;
        write!(f, "{}://{host}", scheme.name())?;
        if scheme.http().map(Scheme::usual_port) != Some(*port) {
            write!(f, ":{port}")?;
        }
        f.write_str(path)
    }
}

/// What a route carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteScheme {
    Http,
    Https,
    /// Bytes, which the proxy does not read.
    Tcp,
}

impl RouteScheme {
    pub fn name(self) -> &'static str {
        self.http().map_or("tcp", Scheme::name)
    }

    /// `None` where it does not carry requests.
    pub fn http(self) -> Option<Scheme> {
        match self {
            Self::Http => Some(Scheme::Http),
            Self::Https => Some(Scheme::Https),
            Self::Tcp => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    pub fn usual_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// `None` means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Budget {
    pub bytes_out: Option<u64>,
    pub bytes_in: Option<u64>,
    /// At once.
    pub connections: Option<u32>,
    pub requests: Option<u64>,
}

/// A port inside that the host can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishSpec {
    pub address: IpAddr,
    /// 0 takes a free one.
    pub host_port: u16,
    pub port: u16,
}

impl PublishSpec {
    /// This port of the run, on a free port of the host's loopback.
    pub fn new(port: u16) -> Self {
        Self { address: IpAddr::V4(Ipv4Addr::LOCALHOST), host_port: 0, port }
    }

    /// On this port of the host, at the same address.
    #[must_use]
    pub fn on_port(self, host_port: u16) -> Self {
        Self { host_port, ..self }
    }

    /// At this address of the host.
    #[must_use]
    pub fn at(self, address: IpAddr) -> Self {
        Self { address, ..self }
    }

    /// `[[ADDRESS:][HOST_PORT]:]PORT`, as docker writes it; without an address, the host's loopback.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            let shown = crate::text::escape(text.as_bytes());
            format!(
                "\"{shown}\" names no port; write [[ADDRESS:]HOST_PORT:]PORT, such as 127.0.0.1:8080:3000"
            )
        };
        let text = text.strip_suffix("/tcp").unwrap_or(text);
        let (rest, port) = match text.rsplit_once(':') {
            Some((rest, port)) => (Some(rest), port),
            None => (None, text),
        };
        let number = |digits: &str| crate::host::parse_port(digits.as_bytes());
        let port = number(port).ok_or_else(wrong)?;
        let (address, host_port) = match rest {
            None => (None, ""),
            Some(rest) => match rest.rsplit_once(':') {
                Some((address, host_port)) if !host_port.contains(']') => {
                    (Some(address), host_port)
                }
                _ => (None, rest),
            },
        };
        let host_port = match host_port {
            "" | "0" => 0,
            digits => number(digits).ok_or_else(wrong)?,
        };
        let address = match address {
            None => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Some(address) => match Host::parse(address.as_bytes()) {
                Ok(Host::Address(address)) => address,
                _ => return Err(wrong()),
            },
        };
        Ok(Self { address, host_port, port })
    }
}

/// A port of the host, and the port inside that it forwards to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    pub address: IpAddr,
    pub host_port: u16,
    pub port: u16,
}

/// The proxy's whole configuration, except the values of secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressPolicy {
    pub run: String,
    pub allow: Vec<String>,
    /// The only rules that hold until the set-up has ended; all other fields hold from then on. `None` where there
    /// is no set-up, and an empty list where it reaches nothing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub setup: Option<Vec<String>>,
    pub spec: EgressSpec,
}

/// The value of a secret: never in a spec, a record, an argument or a variable.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub struct SecretValue {
    #[zeroize(skip)]
    pub env: String,
    pub value: String,
    /// The value of the variable inside.
    #[zeroize(skip)]
    #[serde(default)]
    pub placeholder: String,
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretValue({}, …)", self.env)
    }
}

/// Which listener of the proxy a connection came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// A tunnel that the proxy cannot look into.
    Connect,
    Socks,
    /// A plain request.
    Http,
    /// A request in TLS that the proxy opened.
    Intercepted,
    Route,
}

/// Why something did not get out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DenyReason {
    /// No rule names the host.
    NotListed,
    /// A rule names the host, and not this port.
    PortNotListed,
    /// Rules name the host, and not this method or path.
    RequestNotListed,
    /// There are rules on methods or paths, and the proxy cannot look into the connection.
    CannotLookInside,
    /// It is not a plain name.
    NotAName,
    /// An address that no rule names.
    AddressNotListed,
    /// The name resolves to an address that is not public.
    PrivateAddress,
    /// The host has a secret, and the proxy cannot insert it.
    BlindToSecret,
    /// Host, SNI and target do not agree.
    NamesDiffer,
    /// Not TLS, where TLS is due.
    NotTls,
    /// A request that is ambiguous or cannot be read.
    BadRequest,
    Budget,
}

/// What the proxy reports; each becomes an event of the record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EgressEvent {
    /// Decided, and about to be dialled.
    Opened(EgressOpened),
    /// Over.
    Allowed(EgressAllowed),
    Denied(EgressDenied),
    BudgetHit(EgressBudgetHit),
    /// A secret's value came back in a response and was covered.
    SecretMasked {
        env: String,
        count: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EgressOpened {
    /// 0 where several are counted together.
    pub id: u64,
    pub host: String,
    pub port: u16,
    pub via: Via,
    pub rule: String,
    #[serde(default = "one")]
    pub count: u64,
}

fn one() -> u64 {
    1
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EgressAllowed {
    /// As in [`EgressOpened`]; 0 where several are counted together.
    pub id: u64,
    pub host: String,
    pub port: u16,
    pub via: Via,
    pub rule: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub address: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub method: Option<String>,
    /// Without the query.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub status: Option<u16>,
    pub bytes_out: u64,
    pub bytes_in: u64,
    pub duration_ms: u64,
    /// It was allowed, and did not work.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
    pub count: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EgressDenied {
    /// As it was asked for, escaped and cut.
    pub host: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub port: Option<u16>,
    pub via: Via,
    pub reason: DenyReason,
    /// The address, the other name, what was wrong.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub detail: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub method: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path: Option<String>,
    pub count: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EgressBudgetHit {
    /// `bytes_out`, `bytes_in`, `connections`, `requests`.
    pub what: String,
    pub limit: u64,
    /// `None`: the whole run's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub host: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_port_is_written_as_docker_writes_it() {
        let parse = |text: &str| {
            let PublishSpec { address, host_port, port } = PublishSpec::parse(text).unwrap();
            format!("{address} {host_port} {port}")
        };
        assert_eq!(parse("3000"), "127.0.0.1 0 3000");
        assert_eq!(parse("8080:3000/tcp"), "127.0.0.1 8080 3000");
        assert_eq!(parse(":3000"), "127.0.0.1 0 3000");
        assert_eq!(parse("127.0.0.1::3000"), "127.0.0.1 0 3000");
        assert_eq!(parse("0.0.0.0:8080:3000"), "0.0.0.0 8080 3000");
        assert_eq!(parse("[::1]:8080:3000"), "::1 8080 3000");
        for bad in ["", "x", "1:2:3", "localhost:1:2", "1:0", "70000", "1:2/udp", "::1:1:2"] {
            assert!(PublishSpec::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_secret_is_never_shown() {
        let value =
            SecretValue { env: "KEY".into(), value: "canary".into(), placeholder: String::new() };
        assert!(!format!("{value:?}").contains("canary"));
    }
}
