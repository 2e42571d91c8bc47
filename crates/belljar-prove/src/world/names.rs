//! The host names of the test network and their addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::forward;

/// Where allowed things are.
pub const OK: &str = "93.184.216.34";
/// Public as well, and never allowed.
pub const OTHER: &str = "93.184.216.35";
/// Of the host that has a secret.
pub const KEEPER: &str = "93.184.216.36";
/// Of names that are relayed to a test's own server.
pub const FORWARDED: &str = "93.184.216.37";
/// The operator's own network.
pub const PRIVATE: &str = "10.1.2.3";
pub const METADATA: &str = "169.254.169.254";

/// Names that the servers have good certificates for.
pub const CERTIFIED: &[&str] = &[
    "ok.example",
    "www.ok.example",
    "other.example",
    "keeper.example",
    "private.example",
    "rebind.example",
    "six.example",
    // The services of agents.
    "api.anthropic.com",
    "chatgpt.com",
    "cloudcode-pa.googleapis.com",
    "platform.claude.com",
];

/// Its certificate is signed by no authority.
pub const UNTRUSTED: &str = "untrusted.example";

/// How a name is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// All of these, in this order.
    Addresses(Vec<IpAddr>),
    /// First the one, then always the other, both with a TTL of 0.
    Changing(IpAddr, IpAddr),
    Alias(&'static str),
    /// Late.
    Slow(Duration, IpAddr),
    /// Never.
    Silent,
}

fn v4(text: &str) -> IpAddr {
    text.parse().unwrap_or(IpAddr::V4(Ipv4Addr::BROADCAST))
}

fn v6(text: &str) -> IpAddr {
    text.parse().unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED))
}

/// Names with forbidden addresses.
pub(crate) const FORBIDDEN: &[(&str, &str)] = &[
    ("localhost", "127.0.0.1"),
    ("loopback.example", "127.0.0.1"),
    ("loopback-other.example", "127.9.9.9"),
    ("loopback6.example", "::1"),
    ("zero.example", "127.0.0.1"),
    ("private.example", PRIVATE),
    ("private-172.example", "172.16.0.1"),
    ("private-192.example", "192.168.1.1"),
    ("shared.example", "100.64.0.1"),
    ("metadata.example", METADATA),
    ("metadata6.example", "fd00:ec2::254"),
    ("unique-local.example", "fc00::1"),
    ("reserved.example", "240.0.0.1"),
    ("benchmark.example", "198.18.0.1"),
    ("mapped.example", PRIVATE),
    ("nat64.example", "64:ff9b::a01:203"),
    ("nat64-local.example", "64:ff9b:1::a01:203"),
    ("sixtofour.example", "2002:a01:203::1"),
    ("teredo.example", "2001:0:a01:203::1"),
    ("alias.example", PRIVATE),
    ("mixed.example", PRIVATE),
];

pub(super) fn find(name: &str) -> Option<Record> {
    use Record::{Addresses, Alias, Changing, Silent, Slow};
    let only = |address: IpAddr| Some(Addresses(vec![address]));
    match name {
        _ if forward::socket_of(name).is_some() => only(v4(FORWARDED)),
        "ok.example" | "www.ok.example" | UNTRUSTED => only(v4(OK)),
        "other.example" => only(v4(OTHER)),
        "keeper.example" => only(v4(KEEPER)),
        "api.anthropic.com" | "chatgpt.com" | "cloudcode-pa.googleapis.com" => only(v4(KEEPER)),
        "platform.claude.com" => only(v4(OTHER)),
        "six.example" => only(v6("2606:2800:220:1::1")),
        "rebind.example" => Some(Changing(v4(OK), v4("127.0.0.1"))),
        "slow.example" => Some(Slow(Duration::from_millis(1500), v4(OK))),
        "silent.example" => Some(Silent),
        "zero.example" => only(v4("0.0.0.0")),
        "mapped.example" => only(v6("::ffff:10.1.2.3")),
        "alias.example" => Some(Alias("alias-of-it.example")),
        "alias-of-it.example" => Some(Alias("private.example")),
        "ok-alias.example" => Some(Alias("ok.example")),
        "mixed.example" => Some(Addresses(vec![v4(PRIVATE), v4(OK)])),
        _ => {
            let (_, address) = FORBIDDEN.iter().find(|(known, _)| *known == name)?;
            only(address.parse().ok()?)
        }
    }
}
