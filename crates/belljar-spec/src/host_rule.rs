//! Parses and matches network rules: `[METHOD[,METHOD] ]host[:port][/prefix]`, where the host is a name, an address,
//! `*.suffix` or `*`. The matcher is here, so that the layers, the ceiling and the proxy cannot differ about what a
//! rule means.

mod plain_path;

use std::fmt;

pub use self::plain_path::is_plain_path;
use crate::host::{Host, parse_port};
use crate::text::escape;

/// Ports of a rule that names none.
pub const USUAL_PORTS: [u16; 2] = [80, 443];

/// Which hosts a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// Any name; never an address.
    Any,
    /// Names below this one.
    Below(String),
    Host(Host),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRule {
    pub hosts: HostPattern,
    pub port: Option<u16>,
    /// Empty: all.
    pub methods: Vec<String>,
    pub path: Option<String>,
}

/// What the proxy can see of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen<'a> {
    /// Only where it goes.
    Nothing,
    Request {
        method: &'a str,
        /// Without the query.
        path: &'a str,
    },
}

impl HostRule {
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong =
            |why: &str| format!("\"{}\" is not a host rule: {why}", escape(text.as_bytes()));
        let (methods, rest) = match text.split_once(' ') {
            None => (Vec::new(), text),
            Some((methods, rest)) => {
                let methods: Vec<String> = methods.split(',').map(str::to_owned).collect();
                let known = |method: &String| {
                    !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase())
                };
                if !methods.iter().all(known) {
                    return Err(wrong(
                        "expected METHODS before the space, such as \"GET,HEAD host\"",
                    ));
                }
                (methods, rest.trim_start_matches(' '))
            }
        };
        let (authority, path) = match rest.find('/') {
            None => (rest, None),
            Some(at) => (&rest[..at], Some(&rest[at..])),
        };
        if let Some(path) = path
            && (!is_plain_path(path) || path.contains(['?', '#', ' ']))
        {
            return Err(wrong(
                "the path must be a plain prefix, such as /v1/, without dots, escapes or a query; \
                 leave the scheme out",
            ));
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => {
                let port = parse_port(port.as_bytes());
                (host, Some(port.ok_or_else(|| wrong("expected a port after the colon"))?))
            }
            _ => (authority, None),
        };
        let hosts = Self::pattern(host).ok_or_else(|| {
            wrong("write a name, *.suffix or *, with :port if it is not 80 or 443")
        })?;
        Ok(Self { hosts, port, methods, path: path.map(str::to_owned) })
    }

    fn pattern(text: &str) -> Option<HostPattern> {
        if text == "*" {
            return Some(HostPattern::Any);
        }
        match text.strip_prefix("*.") {
            Some(suffix) => match Host::parse(suffix.as_bytes()).ok()? {
                Host::Name(name) => Some(HostPattern::Below(name)),
                Host::Address(_) => None,
            },
            None => Host::parse(text.as_bytes()).ok().map(HostPattern::Host),
        }
    }

    /// Whether everything that `other` allows is allowed by this rule too.
    pub fn covers(&self, other: &Self) -> bool {
        let hosts = match (&self.hosts, &other.hosts) {
            (HostPattern::Any, HostPattern::Host(Host::Address(_))) => false,
            (HostPattern::Any, _) => true,
            (mine, theirs) if mine == theirs => true,
            (HostPattern::Below(mine), HostPattern::Host(host)) => host.is_below(mine),
            (HostPattern::Below(mine), HostPattern::Below(theirs)) => {
                Host::Name(theirs.clone()).is_below(mine)
            }
            _ => false,
        };
        let port = match (self.port, other.port) {
            (None, None) => true,
            (None, Some(port)) => USUAL_PORTS.contains(&port),
            (Some(mine), theirs) => theirs == Some(mine),
        };
        let methods = self.methods.is_empty()
            || (!other.methods.is_empty()
                && other.methods.iter().all(|one| self.methods.contains(one)));
        let path = match (&self.path, &other.path) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(mine), Some(theirs)) => is_path_below(theirs, mine),
        };
        hosts && port && methods && path
    }

    pub fn is_about(&self, host: &Host) -> bool {
        match &self.hosts {
            HostPattern::Any => host.name().is_some(),
            HostPattern::Below(suffix) => host.is_below(suffix),
            HostPattern::Host(rule) => rule == host,
        }
    }

    /// Why the rule opens nothing, if it is about the name by which every machine calls itself: inside, that is the
    /// sandbox, and outside no name server knows it.
    pub fn localhost_reason(&self) -> Option<String> {
        const LOCALHOST: &str = "localhost";
        let is_localhost = match &self.hosts {
            HostPattern::Any => false,
            HostPattern::Below(suffix) => suffix == LOCALHOST,
            HostPattern::Host(host) => host.name() == Some(LOCALHOST) || host.is_below(LOCALHOST),
        };
        let port = self.port.unwrap_or(USUAL_PORTS[0]);
        is_localhost.then(|| {
            format!(
                "\"{}\" is the sandbox's own loopback; to reach port {port} of the host, put a route into the \
                 manifest: [[route]] with listen = {port} and to = \"tcp://127.0.0.1:{port}\"",
                escape(self.to_string().as_bytes())
            )
        })
    }

    pub fn has_port(&self, port: u16) -> bool {
        self.port.map_or(USUAL_PORTS.contains(&port), |rule| rule == port)
    }

    /// It applies to requests, so it does not match a connection that the proxy cannot look into.
    pub fn looks_inside(&self) -> bool {
        !self.methods.is_empty() || self.path.is_some()
    }

    pub fn allows(&self, host: &Host, port: u16, seen: Seen<'_>) -> bool {
        self.is_about(host) && self.has_port(port) && self.fits(seen)
    }

    /// Method and path.
    pub fn fits(&self, seen: Seen<'_>) -> bool {
        match seen {
            Seen::Nothing => !self.looks_inside(),
            Seen::Request { method, path } => {
                let prefix = |prefix: &String| is_plain_path(path) && is_path_below(path, prefix);
                (self.methods.is_empty() || self.methods.iter().any(|known| known == method))
                    && self.path.as_ref().is_none_or(prefix)
            }
        }
    }
}

/// `/v1` leads `/v1` and `/v1/x`, never `/v10`.
fn is_path_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| prefix.ends_with('/') || rest.is_empty() || rest.starts_with('/'))
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.methods.is_empty() {
            write!(f, "{} ", self.methods.join(","))?;
        }
        match &self.hosts {
            HostPattern::Any => f.write_str("*")?,
            HostPattern::Below(suffix) => write!(f, "*.{suffix}")?,
            HostPattern::Host(host) => write!(f, "{host}")?,
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        f.write_str(self.path.as_deref().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> HostRule {
        HostRule::parse(text).unwrap()
    }

    fn allows(text: &str, host: &str, port: u16, seen: Seen<'_>) -> bool {
        rule(text).allows(&Host::parse(host.as_bytes()).unwrap(), port, seen)
    }

    #[test]
    fn a_pattern_covers_what_is_within_it() {
        for (ceiling, narrower) in [
            ("*", "a.example"),
            ("*", "*"),
            ("a.example", "A.example."),
            ("a.example", "a.example:443"),
            ("*.example", "a.example"),
            ("*.example", "*.b.example"),
            ("*.example", "*.example"),
            ("a.example:8443", "a.example:8443"),
            ("a.example", "GET a.example/v1"),
            ("GET,HEAD a.example/v1", "GET a.example/v1/x"),
        ] {
            assert!(rule(ceiling).covers(&rule(narrower)), "{ceiling} {narrower}");
        }
        for (ceiling, beyond) in [
            ("a.example", "b.example"),
            ("a.example", "*"),
            ("a.example", "a.example:22"),
            ("a.example:443", "a.example"),
            ("*.example", "example"),
            ("*.example", "badexample"),
            ("*.b.example", "*.example"),
            ("*", "10.0.0.1"),
            ("GET a.example", "a.example"),
            ("a.example/v1", "a.example/v10"),
            ("a.example/v1", "a.example"),
        ] {
            assert!(!rule(ceiling).covers(&rule(beyond)), "{ceiling} {beyond}");
        }
    }

    #[test]
    fn a_rule_allows_its_host_its_port_and_what_it_names() {
        let get = |path| Seen::Request { method: "GET", path };
        assert!(allows("a.example", "A.Example.", 443, Seen::Nothing));
        assert!(allows("a.example", "a.example", 80, get("/")));
        assert!(!allows("a.example", "a.example", 22, Seen::Nothing));
        assert!(allows("*.example:22", "a.example", 22, Seen::Nothing));
        assert!(!allows("*", "10.0.0.1", 443, Seen::Nothing));
        assert!(allows("10.0.0.1", "10.0.0.1", 443, Seen::Nothing));
        assert!(allows("GET a.example/v1", "a.example", 443, get("/v1/x")));
        assert!(!allows("GET a.example/v1", "a.example", 443, Seen::Nothing));
        assert!(!allows("POST a.example/v1", "a.example", 443, get("/v1/x")));
        for path in [
            "/v10",
            "/v1/../x",
            "/v1/%2e%2e/x",
            "/v1/..%2fx",
            "/v1/..;/x",
            "/v1/.;a=b/x",
            "/v1//x",
            "/v1/..%3b/x",
            "/v1/%c0%ae%c0%ae/x",
            "/v1/..%09/x",
            "/v1/%u002e/x",
            "/v1/%",
            "/v1/%252e%252e/x",
            "v1",
            "/v1\\x",
        ] {
            assert!(!allows("GET a.example/v1", "a.example", 443, get(path)), "{path}");
        }
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for good in [
            "a",
            "a.b:1",
            "[::1]:80",
            "10.0.0.1",
            "*.a_b.c",
            "GET a",
            "GET,PUT a:1/b/",
            "bücher.example",
        ] {
            let parsed = rule(good);
            assert_eq!(rule(&parsed.to_string()), parsed, "{good}");
        }
        for bad in [
            "",
            ":1",
            "a:",
            "a:0",
            "a:99999",
            "a:+1",
            "http://a",
            "a b",
            "a..b",
            "a.*",
            "**",
            "[x]",
            "127.1",
            "get a",
            "*.10.0.0.1",
            "a/../b",
            "a/%2e",
            "a/b?c",
            "a@b",
            "/x",
            "GET ",
        ] {
            assert!(HostRule::parse(bad).is_err(), "{bad}");
        }
    }
}
