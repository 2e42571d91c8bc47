//! Dialogues as data: a case writes them, and the probe sends them byte for byte and reports the responses.
//!
//! So the probe knows nothing about proxies, and a case can send whatever an attacker could.

use serde::{Deserialize, Serialize};

use belljar_spec::egress::PROXY_PORT;

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dialogue {
    /// Its name in the probe's report.
    pub(crate) what: String,
    /// The port on loopback that it is with.
    pub(crate) port: u16,
    pub(crate) steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    /// Each character is one byte; `${NAME}` is the value of a variable inside, `${#NAME}` its length.
    Send(String),
    /// An answer's head; anything but 200 ends the dialogue.
    Granted,
    /// A SOCKS answer; anything but success ends the dialogue.
    SocksGranted,
    Bytes(usize),
    /// An answer of HTTP, with its body.
    AttemptResult,
    /// Whatever still comes.
    Rest,
    /// From here on in TLS, asking for this name; `None` asks for none. Any certificate will do.
    Tls(Option<String>),
}

pub(crate) fn send(text: impl Into<String>) -> Step {
    Step::Send(text.into())
}

pub(crate) fn tls(name: &str) -> Step {
    Step::Tls(Some(name.to_owned()))
}

/// To a server, once there is a connection to it.
pub(crate) fn get(host: &str, path: &str) -> Step {
    send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"))
}

impl Dialogue {
    /// With the proxy.
    pub(crate) fn new(what: impl Into<String>, steps: impl Into<Vec<Step>>) -> Self {
        Self { what: what.into(), port: PROXY_PORT, steps: steps.into() }
    }

    /// Words that are sent as they are.
    pub(crate) fn raw(what: &str, text: impl Into<String>) -> Self {
        Self::new(what, [send(text), Step::AttemptResult, Step::Rest])
    }

    /// `GET http://…`.
    pub(crate) fn plain(authority: &str) -> Self {
        let url = format!("http://{authority}/");
        let text = format!("GET {url} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
        Self::new(format!("GET {url}"), [send(text), Step::AttemptResult])
    }

    /// A tunnel, and the bytes sent through it.
    pub(crate) fn tunnel(authority: &str, inside: impl IntoIterator<Item = Step>) -> Self {
        let text = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
        let steps: Vec<Step> = [send(text), Step::Granted].into_iter().chain(inside).collect();
        Self::new(format!("CONNECT {authority}"), steps)
    }

    /// A SOCKS tunnel to a host name, and the bytes sent through it.
    pub(crate) fn socks(host: &str, port: u16, inside: impl IntoIterator<Item = Step>) -> Self {
        let kind = format!("\u{3}{}{host}", latin(host.len() as u8));
        Self::by_socks(format!("SOCKS {host}:{port}"), &kind, port, inside)
    }

    /// The same, with the host as an address.
    pub(crate) fn socks_address(
        address: std::net::IpAddr,
        port: u16,
        inside: impl IntoIterator<Item = Step>,
    ) -> Self {
        let (kind, bytes) = match address {
            std::net::IpAddr::V4(address) => (1, address.octets().to_vec()),
            std::net::IpAddr::V6(address) => (4, address.octets().to_vec()),
        };
        let kind: String = [kind].into_iter().chain(bytes).map(latin).collect();
        Self::by_socks(format!("SOCKS address {address} {port}"), &kind, port, inside)
    }

    fn by_socks(
        what: String,
        host: &str,
        port: u16,
        inside: impl IntoIterator<Item = Step>,
    ) -> Self {
        let [high, low] = port.to_be_bytes();
        let ask = format!("\u{5}\u{1}\0{host}{}{}", latin(high), latin(low));
        let head = [send("\u{5}\u{1}\0"), Step::Bytes(2), send(ask), Step::SocksGranted];
        let steps: Vec<Step> = head.into_iter().chain(inside).collect();
        Self::new(what, steps)
    }

    pub(crate) fn called(mut self, what: impl Into<String>) -> Self {
        self.what = what.into();
        self
    }

    pub(crate) fn at_port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }
}

fn latin(byte: u8) -> char {
    char::from(byte)
}
