//! Host rules as text: `host`, `host:port`, `*.suffix`, `*`. Only what comparing them needs; deciding
//! on a connection is the proxy's work.

use crate::text::escape;

/// Ports of a rule that names none.
const USUAL_PORTS: [u16; 2] = [80, 443];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRule {
    host: String,
    port: Option<u16>,
}

impl HostRule {
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("\"{}\" is no host rule: {why}", escape(text.as_bytes()));
        let (host, port) = match text.rsplit_once(':') {
            // Colons inside brackets belong to an address.
            Some((host, port)) if !port.contains(']') => {
                let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
                let port = if digits { port.parse::<u16>().ok() } else { None };
                let port = port.filter(|port| *port != 0);
                (host, Some(port.ok_or_else(|| wrong("after the colon stands no port"))?))
            }
            _ => (text, None),
        };
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let name = match host.strip_prefix("*.") {
            Some(suffix) => suffix,
            None if host == "*" => "any",
            None => &host,
        };
        if !plain_name(name) {
            return Err(wrong("write a name, *.suffix or *, with :port if it is not 80 or 443"));
        }
        Ok(Self { host, port })
    }

    /// Whether everything that `other` allows is allowed by this rule too.
    pub fn covers(&self, other: &Self) -> bool {
        let host = self.host == "*"
            || self.host == other.host
            || self.host.strip_prefix('*').is_some_and(|suffix| {
                // `*.a.b` covers `x.a.b` and `*.x.a.b`, never `a.b`.
                other.host.ends_with(suffix) && other.host.len() > suffix.len()
            });
        let port = match (self.port, other.port) {
            (None, None) => true,
            (None, Some(port)) => USUAL_PORTS.contains(&port),
            (Some(mine), theirs) => theirs == Some(mine),
        };
        host && port
    }
}

/// A DNS name or an address, as far as its characters go.
fn plain_name(name: &str) -> bool {
    let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Some(address) = address {
        return address.parse::<std::net::Ipv6Addr>().is_ok();
    }
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    name.len() <= 253 && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(ceiling: &str, rule: &str) -> bool {
        HostRule::parse(ceiling).unwrap().covers(&HostRule::parse(rule).unwrap())
    }

    #[test]
    fn a_pattern_covers_what_is_within_it() {
        for (ceiling, rule) in [
            ("*", "a.example"),
            ("*", "*"),
            ("a.example", "A.example."),
            ("a.example", "a.example:443"),
            ("*.example", "a.example"),
            ("*.example", "*.b.example"),
            ("*.example", "*.example"),
            ("a.example:8443", "a.example:8443"),
        ] {
            assert!(covers(ceiling, rule), "{ceiling} {rule}");
        }
        for (ceiling, rule) in [
            ("a.example", "b.example"),
            ("a.example", "*"),
            ("a.example", "a.example:22"),
            ("a.example:443", "a.example"),
            ("*.example", "example"),
            ("*.example", "badexample"),
            ("*.b.example", "*.example"),
        ] {
            assert!(!covers(ceiling, rule), "{ceiling} {rule}");
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for good in ["a", "a.b:1", "[::1]:80", "10.0.0.1", "*.a_b.c"] {
            assert!(HostRule::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "", ":1", "a:", "a:0", "a:99999", "a:+1", "http://a", "a b", "a..b", "a.*", "**", "[x]",
        ] {
            assert!(HostRule::parse(bad).is_err(), "{bad}");
        }
    }
}
