//! Parses host names into one canonical form, once, where they come in. From then on a name is compared, resolved,
//! dialled and recorded in this form.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::text::escape;

const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// A plain name, or an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Host {
    /// Lower case, ASCII (`xn--` where it was not), without a dot at the end.
    Name(String),
    /// An IPv4 address in IPv6 clothes is the IPv4 address.
    Address(IpAddr),
}

/// Why a text names no host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAHost {
    #[error("the name is empty")]
    Empty,
    #[error("the name is too long")]
    TooLong,
    #[error("\"{0}\" is not allowed in a name")]
    Character(String),
    #[error("the name is not UTF-8")]
    NotUtf8,
    #[error("this is not a valid internet name")]
    NotAName,
    #[error("this is an address in an unusual notation")]
    OddAddress,
    #[error("an address with a zone is not an internet address")]
    Zone,
}

impl Host {
    /// Every byte is hostile. What is not clearly a name or an address is refused, so that no component further on
    /// can read it differently.
    pub fn parse(text: &[u8]) -> Result<Self, NotAHost> {
        let text = std::str::from_utf8(text).map_err(|_| NotAHost::NotUtf8)?;
        if text.is_empty() {
            return Err(NotAHost::Empty);
        }
        if text.len() > 4 * MAX_NAME {
            return Err(NotAHost::TooLong); // before anything is done with it
        }
        if let Some(rest) = text.strip_prefix('[') {
            return bracketed(rest);
        }
        if let Some(wrong) = text.chars().find(|c| is_out_of_place(*c)) {
            return Err(NotAHost::Character(escape(wrong.to_string().as_bytes())));
        }
        let name = to_ascii(text)?;
        let name = name.strip_suffix('.').unwrap_or(&name);
        if ends_in_number(name) {
            let address = name.parse::<Ipv4Addr>().map_err(|_| NotAHost::OddAddress)?;
            return Ok(Self::Address(address.into()));
        }
        check_labels(name)?;
        Ok(Self::Name(name.to_owned()))
    }

    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            Self::Address(_) => None,
        }
    }

    /// Whether this is a name below `suffix`, which has no dot in front. Never the suffix itself.
    pub fn is_below(&self, suffix: &str) -> bool {
        let below = |name: &str| name.strip_suffix(suffix).is_some_and(|rest| rest.ends_with('.'));
        self.name().is_some_and(below)
    }
}

/// `[…]`, without the first bracket.
fn bracketed(rest: &str) -> Result<Host, NotAHost> {
    let inside = rest.strip_suffix(']').ok_or(NotAHost::OddAddress)?;
    if inside.contains('%') {
        return Err(NotAHost::Zone);
    }
    let address = inside.parse::<Ipv6Addr>().map_err(|_| NotAHost::OddAddress)?;
    Ok(Host::Address(IpAddr::V6(address).to_canonical()))
}

/// Every character that has a meaning somewhere: userinfo, escapes, ports, paths, blanks, line ends.
fn is_out_of_place(c: char) -> bool {
    c.is_control() || c.is_whitespace() || "\"#$%&'()*+,/:;<=>?@[\\]^`{|}~!".contains(c)
}

fn to_ascii(text: &str) -> Result<String, NotAHost> {
    let lower = text.to_ascii_lowercase();
    if lower.is_ascii() && !lower.split('.').any(|label| label.starts_with("xn--")) {
        return Ok(lower);
    }
    idna::domain_to_ascii_cow(lower.as_bytes(), idna::AsciiDenyList::URL)
        .map(|name| name.into_owned())
        .map_err(|_| NotAHost::NotAName)
}

/// What some resolvers and clients take for an address: `127.1`, `0x7f.1`, `2130706433`, `0177.0.0.1`.
fn ends_in_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    let hexadecimal = last
        .strip_prefix("0x")
        .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let decimal = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
    hexadecimal || decimal
}

fn check_labels(name: &str) -> Result<(), NotAHost> {
    if name.len() > MAX_NAME {
        return Err(NotAHost::TooLong);
    }
    let good = |label: &str| {
        !label.is_empty()
            && label.len() <= MAX_LABEL
            && label
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
    };
    if name.split('.').all(good) { Ok(()) } else { Err(NotAHost::NotAName) }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.pad(name),
            Self::Address(IpAddr::V4(address)) => f.pad(&address.to_string()),
            Self::Address(IpAddr::V6(address)) => f.pad(&format!("[{address}]")),
        }
    }
}

impl FromStr for Host {
    type Err = NotAHost;

    fn from_str(text: &str) -> Result<Self, NotAHost> {
        Self::parse(text.as_bytes())
    }
}

impl TryFrom<String> for Host {
    type Error = NotAHost;

    fn try_from(text: String) -> Result<Self, NotAHost> {
        Self::parse(text.as_bytes())
    }
}

impl From<Host> for String {
    fn from(host: Host) -> Self {
        host.to_string()
    }
}

/// `host:port`, with the port that it must have.
pub fn parse_authority(text: &[u8]) -> Result<(Host, Option<u16>), NotAHost> {
    let colon = text.iter().rposition(|byte| *byte == b':');
    let bracket = text.iter().rposition(|byte| *byte == b']');
    let (host, port) = match colon {
        // Colons inside brackets belong to an address.
        Some(at) if bracket.is_none_or(|bracket| bracket < at) => {
            (&text[..at], Some(&text[at + 1..]))
        }
        _ => (text, None),
    };
    let port = match port {
        None => None,
        Some(digits) => {
            Some(parse_port(digits).ok_or_else(|| NotAHost::Character(":".to_owned()))?)
        }
    };
    Ok((Host::parse(host)?, port))
}

/// Digits and nothing else; 0 is not a port.
pub fn parse_port(digits: &[u8]) -> Option<u16> {
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(digits).ok().filter(|_| plain)?;
    text.parse().ok().filter(|port| *port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> String {
        match Host::parse(text.as_bytes()) {
            Ok(Host::Name(name)) => name,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_name_has_one_form() {
        assert_eq!(name("API.Example.COM."), "api.example.com");
        assert_eq!(name("bücher.example"), "xn--bcher-kva.example");
        assert_eq!(name("BÜCHER.example"), "xn--bcher-kva.example");
        assert_eq!(name("ｅｘａｍｐｌｅ.com"), "example.com");
        assert_eq!(name("a。b"), "a.b");
        assert_eq!(name("_srv.a-b.example"), "_srv.a-b.example");
    }

    #[test]
    fn an_address_is_one_whatever_it_wears() {
        let address = |text: &str| match Host::parse(text.as_bytes()) {
            Ok(Host::Address(address)) => address.to_string(),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(address("127.0.0.1"), "127.0.0.1");
        assert_eq!(address("127.0.0.1."), "127.0.0.1");
        assert_eq!(address("[::1]"), "::1");
        assert_eq!(address("[::ffff:10.0.0.1]"), "10.0.0.1");
        assert_eq!(address("１２７.0.0.1"), "127.0.0.1");
    }

    #[test]
    fn what_is_not_plain_is_refused() {
        let long = format!("{}.example", "a".repeat(64));
        for bad in [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "127.1",
            "0x7f000001",
            "2130706433",
            "0177.0.0.1",
            "1.2.3.4.5",
            "0x7f.1",
            "a.0x",
            "[::1",
            "[fe80::1%lo]",
            "fe80::1%lo",
            "::1",
            "[127.0.0.1]",
            "a@b",
            "a%2eb",
            "a%00b",
            "a b",
            "a\0b",
            "a\r\nb",
            "a/b",
            "a\\b",
            "a#b",
            "a?b",
            "a:1",
            "*.a",
            "xn--a",
            "a\u{202e}b",
            &long,
        ] {
            assert!(Host::parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert!(Host::parse(b"a\xff").is_err());
    }

    #[test]
    fn a_suffix_covers_what_is_below_it_and_not_itself() {
        let host = |text: &str| Host::parse(text.as_bytes()).unwrap();
        assert!(host("a.example.com").is_below("example.com"));
        assert!(!host("example.com").is_below("example.com"));
        assert!(!host("badexample.com").is_below("example.com"));
        assert!(!host("10.0.0.1").is_below("0.1"));
    }

    #[test]
    fn an_authority_has_its_port_behind_the_last_colon() {
        let split = |text: &str| {
            parse_authority(text.as_bytes()).map(|(host, port)| (host.to_string(), port))
        };
        assert_eq!(split("a.b:443"), Ok(("a.b".to_owned(), Some(443))));
        assert_eq!(split("[::1]:80"), Ok(("[::1]".to_owned(), Some(80))));
        assert_eq!(split("[::1]"), Ok(("[::1]".to_owned(), None)));
        for bad in ["a:", "a:0", "a:65536", "a:+1", "a: 1", "a:1:2", "a:٣"] {
            assert!(split(bad).is_err(), "{bad}");
        }
    }
}
