//! `[network]`, `[[secret]]`, `[[route]]`: the network access, and the credentials for it.

use std::fmt;

use serde_json::Value as Json;

use super::node::{Data, Node, Problem};
use super::scalars::Limit;
use super::table::{section, table};
use super::value::{HostPath, Value};
use crate::egress::PublishSpec;
use crate::host::Host;
use crate::size::Size;

section! {
    /// What the run can reach. Absent or empty: nothing.
    pub struct Network {
        /// `host`, `host:port`, `*.suffix` or `*`; where the proxy sees requests also `GET host/prefix`. A higher
        /// layer replaces this list.
        allow: Option<Vec<String>>,
        /// `host:port` of your local network, which may have private addresses. A higher layer replaces this list.
        allow_private: Option<Vec<String>>,
        /// Hosts (`name` or `*.suffix`, port 443 by default) where the proxy opens TLS, so that rules on methods and paths hold. Hosts of
        /// secrets need not be listed here. A higher layer replaces this list.
        intercept: Option<Vec<String>>,
        /// Ports inside that the host can reach: `[[ADDRESS:]HOST_PORT:]PORT`. A higher layer replaces this list.
        publish: Option<Vec<PublishSetting>>,
        /// What the whole run may use of the network.
        budget: NetworkBudget,
        /// What it may use of any one host.
        budget_per_host: NetworkBudget,
    }
}

section! {
    /// How much of the network may be used. `none` means no limit.
    pub struct NetworkBudget {
        /// Bytes sent.
        bytes_out: Option<Limit<Size>>,
        /// Bytes received.
        bytes_in: Option<Limit<Size>>,
        /// Connections at once.
        connections: Option<Limit<u32>>,
        /// Requests and tunnels in all.
        requests: Option<Limit<u32>>,
    }
}

/// A published port, and how it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishSetting {
    pub spec: PublishSpec,
    written: String,
}

impl PublishSetting {
    /// `[[ADDRESS:][HOST_PORT]:]PORT`.
    pub fn parse(text: &str) -> Result<Self, String> {
        PublishSpec::parse(text).map(|spec| Self { spec, written: text.to_owned() })
    }
}

impl From<PublishSpec> for PublishSetting {
    fn from(spec: PublishSpec) -> Self {
        let address = Host::Address(spec.address);
        Self { spec, written: format!("{address}:{}:{}", spec.host_port, spec.port) }
    }
}

/// As it was written.
impl fmt::Display for PublishSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.written)
    }
}

impl Value for PublishSetting {
    fn read(node: &Node) -> Result<Self, Problem> {
        Self::parse(&String::read(node)?).map_err(|why| Problem::at(node, why))
    }

    fn write(&self) -> Data {
        Data::Text(self.written.clone())
    }

    fn schema() -> Json {
        String::schema()
    }
}

table! {
    /// A credential that never enters the sandbox: the proxy adds it to requests to that host.
    pub struct Secret {
        /// The variable inside, which holds a placeholder, and outside, unless a source is named.
        env: String,
        /// The one host that gets the value.
        host: String,
        /// The port, if it is not 443.
        port: Option<u16>,
        /// Added as this header.
        header: Option<String>,
        /// Added as this query parameter.
        query: Option<String>,
        /// Added as the password of basic authentication for this user.
        basic: Option<String>,
        /// Added as a bearer token.
        bearer: Option<bool>,
        /// Taken from this variable of the host.
        from_env: Option<String>,
        /// Taken from this file, which must be readable by its owner alone.
        file: Option<HostPath>,
        /// Taken from what this command prints, on the host.
        command: Option<Vec<String>>,
        /// Taken from this entry of the host's keyring.
        keyring: Option<String>,
    }
    check check_secret;
}

/// One place, and at most one source.
pub fn check_secret(secret: &Secret) -> Result<(), String> {
    let places = [
        secret.header.is_some(),
        secret.query.is_some(),
        secret.basic.is_some(),
        secret.bearer.is_some(),
    ];
    match places.iter().filter(|set| **set).count() {
        0 => {
            return Err(
                "a secret needs its place in a request: header = \"NAME\", query = \"NAME\", \
                        basic = \"USER\" or bearer = true"
                    .into(),
            );
        }
        1 => {}
        _ => return Err("a secret goes to one place: header, query, basic or bearer".into()),
    }
    if secret.bearer == Some(false) {
        return Err(
            "bearer = false has no effect; leave it out, and set header, query or basic".into()
        );
    }
    let sources = [
        secret.from_env.is_some(),
        secret.file.is_some(),
        secret.command.is_some(),
        secret.keyring.is_some(),
    ];
    if sources.iter().filter(|set| **set).count() > 1 {
        return Err("a secret has exactly one source: from_env, file, command or keyring".into());
    }
    if secret.command.as_ref().is_some_and(Vec::is_empty) {
        return Err("a secret's command is empty; write the program and its arguments".into());
    }
    Ok(())
}

table! {
    /// A port inside that leads to one place outside: plain HTTP that becomes an authenticated connection, or bytes
    /// as they are.
    pub struct Route {
        /// The port on the sandbox's loopback.
        listen: u16,
        /// Its destination: `https://api.example.com`, `http://…`, or `tcp://db.example.com:5432` for any protocol.
        to: String,
        /// The secret to add, by its variable; not with `tcp://`.
        secret: Option<String>,
    }
}
