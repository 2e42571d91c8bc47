//! Explains a denial, and suggests the manifest line that would allow it.

use std::net::IpAddr;

use belljar_spec::egress::{DenyReason, PROXY_PORT};
use belljar_spec::host_rule::USUAL_PORTS;
use belljar_spec::{Host, HostRule};

use super::{DeniedHost, PolicyPhase};

impl DeniedHost {
    /// The request: `GET a.example:80/path`.
    pub fn what(&self) -> String {
        let method = self.method.as_ref().map_or(String::new(), |method| format!("{method} "));
        let port = self.port.map_or(String::new(), |port| format!(":{port}"));
        format!("{method}{}{port}{}", self.host, self.path.as_deref().unwrap_or_default())
    }

    pub fn why(&self) -> String {
        let host = &self.host;
        let detail = self.detail.as_deref().unwrap_or("unknown");
        match self.reason {
            DenyReason::AddressNotListed | DenyReason::NotListed if self.is_loopback() => {
                match self.stage {
                    PolicyPhase::Run => format!(
                        "{host} is the host's loopback; a route leads an HTTP service of the host to the sandbox"
                    ),
                    PolicyPhase::Setup => {
                        format!("{host} is the host's loopback, which no set-up can reach")
                    }
                }
            }
            DenyReason::NotListed => format!("no rule allows {host}"),
            DenyReason::PortNotListed => format!("a rule allows {host}, but not this port"),
            DenyReason::RequestNotListed => {
                format!("rules allow {host}, but not this method or path")
            }
            DenyReason::CannotLookInside => format!(
                "the rules for {host} are about methods or paths, which are not visible without TLS interception"
            ),
            DenyReason::NotAName => format!("not a plain host name: {detail}"),
            DenyReason::AddressNotListed => {
                "this is an IP address, and no rule allows it".to_owned()
            }
            DenyReason::PrivateAddress => {
                format!("the name resolves to {detail}, which is not a public address")
            }
            DenyReason::BlindToSecret => {
                format!("{host} has a secret, which cannot be added without TLS interception")
            }
            DenyReason::NamesDiffer => format!("the host names in the request differ: {detail}"),
            DenyReason::NotTls => "the data was not TLS, and port 443 accepts only TLS".to_owned(),
            DenyReason::BadRequest => {
                format!("the request is malformed or ambiguous: {detail}")
            }
            DenyReason::Budget => format!("a network budget was used up: {detail}"),
        }
    }

    /// The manifest section of the line.
    pub fn section(&self) -> &'static str {
        match (self.stage, self.reason) {
            (PolicyPhase::Run, DenyReason::AddressNotListed | DenyReason::NotListed)
                if self.is_loopback() =>
            {
                "[[route]]"
            }
            (PolicyPhase::Run, _)
            | (PolicyPhase::Setup, DenyReason::PrivateAddress | DenyReason::Budget) => "[network]",
            (PolicyPhase::Setup, _) => "[setup]",
        }
    }

    /// The line that would allow it, if there is one. The user may paste it, but the run chose the text: so it must
    /// be a valid rule in plain characters.
    pub fn line(&self) -> Option<String> {
        let (host, port) = (&self.host, self.port?);
        Host::parse(host.as_bytes()).ok()?;
        if matches!(self.reason, DenyReason::AddressNotListed | DenyReason::NotListed)
            && self.is_loopback()
        {
            return self.route(port);
        }
        let usual = USUAL_PORTS.contains(&port);
        let named = if usual { host.clone() } else { format!("{host}:{port}") };
        match self.reason {
            DenyReason::NotListed
            | DenyReason::PortNotListed
            | DenyReason::RequestNotListed
            | DenyReason::CannotLookInside
                if self.stage == PolicyPhase::Setup =>
            {
                Some(format!("network = [\"{named}\"]"))
            }
            DenyReason::AddressNotListed if self.stage == PolicyPhase::Setup => {
                Some(format!("network = [\"{host}:{port}\"]"))
            }
            DenyReason::NotListed | DenyReason::PortNotListed => {
                Some(format!("allow = [\"{named}\"]"))
            }
            DenyReason::RequestNotListed => {
                let method =
                    self.method.as_ref().map_or(String::new(), |method| format!("{method} "));
                let path =
                    self.path.as_deref().filter(|path| is_pasteable(path)).unwrap_or_default();
                let rule = format!("{method}{named}{path}");
                HostRule::parse(&rule).ok().map(|_| format!("allow = [\"{rule}\"]"))
            }
            DenyReason::CannotLookInside | DenyReason::BlindToSecret => {
                let named = if port == 443 { host.clone() } else { format!("{host}:{port}") };
                Some(format!("intercept = [\"{named}\"]"))
            }
            DenyReason::AddressNotListed => Some(format!("allow = [\"{host}:{port}\"]")),
            DenyReason::PrivateAddress if self.resolves_to_local_network() => {
                Some(format!("allow_private = [\"{host}:{port}\"]"))
            }
            DenyReason::PrivateAddress => None,
            DenyReason::Budget => {
                Some("budget = { … }  # or budget_per_host, with a higher value".to_owned())
            }
            DenyReason::NotAName
            | DenyReason::NamesDiffer
            | DenyReason::NotTls
            | DenyReason::BadRequest => None,
        }
    }
}

impl DeniedHost {
    /// Clients inside take such a name for the sandbox's own loopback, so a rule would not help them.
    fn is_loopback(&self) -> bool {
        match Host::parse(self.host.as_bytes()) {
            Ok(Host::Address(address)) => address.is_loopback(),
            Ok(Host::Name(_)) => self.host == "localhost" || self.host.ends_with(".localhost"),
            Err(_) => false,
        }
    }

    /// The keys of a route to the same port of the host's loopback.
    fn route(&self, port: u16) -> Option<String> {
        let is_v6 = matches!(Host::parse(self.host.as_bytes()), Ok(Host::Address(IpAddr::V6(_))));
        let address = if is_v6 { "[::1]" } else { "127.0.0.1" };
        let is_free = port != 0 && port != PROXY_PORT;
        (self.stage == PolicyPhase::Run && is_free)
            .then(|| format!("listen = {port}\nto = \"http://{address}:{port}\""))
    }

    /// `allow_private` does not cover link-local and reserved addresses.
    fn resolves_to_local_network(&self) -> bool {
        let address = self.detail.as_deref().and_then(|detail| detail.parse::<IpAddr>().ok());
        match address {
            Some(IpAddr::V4(address)) => {
                let [first, second, ..] = address.octets();
                let shared = first == 100 && (64..128).contains(&second);
                address.is_private() || address.is_loopback() || shared
            }
            Some(IpAddr::V6(address)) => address.is_loopback() || address.is_unique_local(),
            None => false,
        }
    }
}

fn is_pasteable(path: &str) -> bool {
    path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/_.~-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use belljar_spec::egress::Via;

    use super::*;

    fn denied(reason: DenyReason, port: u16) -> DeniedHost {
        DeniedHost {
            host: "a.example".into(),
            port: Some(port),
            via: Via::Connect,
            reason,
            detail: Some("10.0.0.1".into()),
            method: None,
            path: None,
            count: 1,
            stage: PolicyPhase::Run,
        }
    }

    #[test]
    fn a_denial_names_the_line_that_would_allow_it() {
        let line = |reason, port| denied(reason, port).line().unwrap();
        assert_eq!(line(DenyReason::NotListed, 443), "allow = [\"a.example\"]");
        assert_eq!(line(DenyReason::PortNotListed, 22), "allow = [\"a.example:22\"]");
        assert_eq!(line(DenyReason::PrivateAddress, 443), "allow_private = [\"a.example:443\"]");
        assert_eq!(denied(DenyReason::NotTls, 443).line(), None);
        let metadata = DeniedHost {
            detail: Some("169.254.169.254".into()),
            ..denied(DenyReason::PrivateAddress, 80)
        };
        assert_eq!(metadata.line(), None);
        assert!(denied(DenyReason::PrivateAddress, 443).why().contains("10.0.0.1"));
        let requested = |path: &str| DeniedHost {
            method: Some("GET".into()),
            path: Some(path.into()),
            ..denied(DenyReason::RequestNotListed, 80)
        };
        let local = |host: &str, stage| DeniedHost {
            host: host.into(),
            stage,
            ..denied(DenyReason::AddressNotListed, 8080)
        };
        let route = local("127.0.0.1", PolicyPhase::Run);
        assert_eq!(route.section(), "[[route]]");
        assert_eq!(route.line().unwrap(), "listen = 8080\nto = \"http://127.0.0.1:8080\"");
        assert!(local("localhost", PolicyPhase::Run).line().unwrap().contains("127.0.0.1:8080"));
        assert_eq!(local("127.0.0.1", PolicyPhase::Setup).line(), None);
        let other = local("10.0.0.1", PolicyPhase::Run);
        assert_eq!(other.line().unwrap(), "allow = [\"10.0.0.1:8080\"]", "the control");
        assert_eq!(requested("/v1/x").line().unwrap(), "allow = [\"GET a.example/v1/x\"]");
        assert_eq!(requested("/x\",\"*\",\"y").line().unwrap(), "allow = [\"GET a.example\"]");
    }
}
