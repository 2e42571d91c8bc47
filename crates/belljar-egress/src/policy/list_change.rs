//! Decides whether an access that an earlier list allowed is allowed by a new one.

use belljar_spec::Host;
use belljar_spec::host_rule::Seen;

use super::{AddressScope, Policy};
use crate::upstream::permit::Holder;

/// What was allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) host: Host,
    pub(crate) port: u16,
    /// Those that it may be connected to.
    pub(crate) addresses: AddressScope,
    pub(crate) kind: GrantKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GrantKind {
    /// A tunnel, or a request with its method and path.
    Rules {
        method: Option<String>,
        path: Option<String>,
    },
    Route {
        listen: u16,
    },
}

impl Policy {
    /// A connection without a request stays open while any request to its host may be allowed.
    pub(crate) fn still_allows(&self, grant: &Grant, holder: Holder) -> bool {
        let Grant { host, port, addresses, kind } = grant;
        let scope = match (kind, holder) {
            (GrantKind::Route { listen }, _) => self.decide_route(host, *port, *listen),
            (GrantKind::Rules { method: Some(method), path: Some(path) }, Holder::Access) => {
                let seen = Seen::Request { method, path };
                self.decide(host, *port, seen).map(|allowance| allowance.addresses)
            }
            (GrantKind::Rules { method: Some(_), .. }, Holder::Pool) => {
                self.may_allow(host, *port).map(|_| self.address_scope(host, *port))
            }
            (GrantKind::Rules { .. }, _) => {
                self.decide(host, *port, Seen::Nothing).map(|allowance| allowance.addresses)
            }
        };
        // It may be connected to a private address, and the host may be allowed at public ones only.
        scope.is_ok_and(|scope| *addresses == AddressScope::Public || scope == *addresses)
    }
}

#[cfg(test)]
mod tests {
    use belljar_spec::egress::{EgressPolicy, EgressSpec};

    use super::*;

    fn policy(allow: &[&str], private: &[&str]) -> Policy {
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect();
        let spec = EgressSpec { allow_private: texts(private), ..EgressSpec::default() };
        Policy::new(EgressPolicy { run: "r".into(), allow: texts(allow), setup: None, spec })
            .unwrap()
    }

    fn grant(addresses: AddressScope, request: Option<(&str, &str)>) -> Grant {
        let (method, path) = request.map(|(method, path)| (method.into(), path.into())).unzip();
        let (host, kind) = (Host::parse(b"a.example").unwrap(), GrantKind::Rules { method, path });
        Grant { host, port: 443, addresses, kind }
    }

    #[test]
    fn a_tunnel_stays_while_a_rule_allows_all_of_it() {
        let tunnel = grant(AddressScope::Public, None);
        let stays = |allow: &[&str]| policy(allow, &[]).still_allows(&tunnel, Holder::Access);
        assert!(stays(&["a.example"]) && stays(&["*.example"]) && stays(&["a.example:443"]));
        assert!(!stays(&[]) && !stays(&["b.example"]) && !stays(&["a.example:80"]));
        assert!(!stays(&["GET a.example"]));
    }

    #[test]
    fn a_request_stays_with_its_rule_and_its_connection_with_any_of_the_host() {
        let request = grant(AddressScope::Public, Some(("GET", "/docs/x")));
        let stays = |allow: &[&str], holder| policy(allow, &[]).still_allows(&request, holder);
        assert!(stays(&["GET a.example/docs"], Holder::Access));
        assert!(!stays(&["POST a.example"], Holder::Access));
        assert!(stays(&["POST a.example"], Holder::Pool));
        assert!(!stays(&["b.example"], Holder::Pool));
    }

    #[test]
    fn a_connection_to_a_private_address_ends_when_only_public_ones_are_allowed() {
        let tunnel = grant(AddressScope::Private, None);
        let stays = |private: &[&str]| {
            policy(&["a.example"], private).still_allows(&tunnel, Holder::Access)
        };
        assert!(stays(&["a.example:443"]));
        assert!(!stays(&[]));
        // One to a public address may stay in either case.
        let tunnel = grant(AddressScope::Public, None);
        assert!(policy(&["a.example"], &["a.example:443"]).still_allows(&tunnel, Holder::Access));
    }
}
