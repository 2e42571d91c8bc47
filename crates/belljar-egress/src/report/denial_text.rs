//! Writes the texts of denials and failures for the client: what was refused, why, and how the operator can allow it.
//!
//! The sandbox reads these texts, so they contain only what the client already knows: no resolved address, nothing
//! about the host's name servers and network, and no target of a route. The record has the full reason.

use belljar_spec::Host;
use belljar_spec::egress::{DenyReason, Via};
use belljar_spec::host_rule::{Seen, USUAL_PORTS};

use crate::policy::{Denial, PolicyPhase};
use crate::proxy::AccessRequest;

/// For every name without a usable address: it does not exist, its name servers fail, or it resolves to an address
/// that the run may not reach. A difference would disclose names of the host's network.
pub(crate) const NO_REACHABLE_ADDRESS: &str = "the name leads to no address that this run may reach. The operator sees why \
     with belljar why, and can allow a host of the private network with network.allow_private";

/// The destination as the client knows it.
fn destination(host: &Host, port: u16, via: Via) -> String {
    match via {
        Via::Route => "the target of this route".to_owned(),
        Via::Connect | Via::Socks | Via::Http | Via::Intercepted => format!("{host}:{port}"),
    }
}

/// The access was allowed and failed. The message is fixed: what a resolver or a socket returned is for the record.
pub(crate) fn failed(host: &Host, port: u16, via: Via, message: &'static str) -> String {
    format!("belljar: {}: {message}.", destination(host, port, via))
}

pub(crate) fn denied(phase: PolicyPhase, access: &AccessRequest<'_>, denial: &Denial) -> String {
    let AccessRequest { host, port, via, seen } = access;
    let (port, destination) = (*port, destination(host, *port, *via));
    let rule =
        if USUAL_PORTS.contains(&port) { host.to_string() } else { format!("{host}:{port}") };
    let (list, allow) = match phase {
        PolicyPhase::Run => (
            "this run's allow-list",
            format!(
                "The operator can allow it with --allow-host {rule} or network.allow = [\"{rule}\"]."
            ),
        ),
        PolicyPhase::Setup => (
            "the set-up's allow-list",
            format!("The operator can allow it with setup.network = [\"{rule}\"]."),
        ),
    };
    let detail = denial.detail.as_deref().unwrap_or_default();
    let what = match denial.reason {
        DenyReason::NotListed if *via == Via::Route => {
            "this route is closed: the operator took its target off this run's allow-list."
                .to_owned()
        }
        DenyReason::NotListed => {
            format!("{host}:{port} is not on {list}. {allow}")
        }
        DenyReason::PortNotListed => {
            format!("port {port} of {host} is not on {list}, though others are. {allow}")
        }
        DenyReason::RequestNotListed if *via == Via::Route => {
            "the path of this request may lead out of the route.".to_owned()
        }
        DenyReason::RequestNotListed => {
            let request = match seen {
                Seen::Nothing => "this request".to_owned(),
                Seen::Request { method, path } => format!("{method} {path}"),
            };
            format!("{request} to {host}:{port} is not on {list}, though others are. {allow}")
        }
        DenyReason::CannotLookInside => format!(
            "the rules about {host}:{port} name methods or paths, and the proxy does not read a tunnel. \
             The operator can have it read with network.intercept = [\"{host}\"]. {allow}"
        ),
        DenyReason::NotAName => unreadable(&host.to_string(), detail),
        DenyReason::AddressNotListed => format!(
            "{host}:{port} is an address, and no rule of this run names it. Ask for the host by its \
             name, and let the proxy resolve it (socks5h instead of socks5). {allow}"
        ),
        DenyReason::PrivateAddress => return failed(host, port, *via, NO_REACHABLE_ADDRESS),
        DenyReason::BlindToSecret => format!(
            "{host}:{port} gets a secret from the proxy, which cannot put it into this connection. \
             Speak HTTP over TLS, or use the run's route to it."
        ),
        DenyReason::NamesDiffer => {
            format!("the connection is to {destination}, and what is sent names another: {detail}.")
        }
        DenyReason::NotTls => {
            format!("what is sent to {destination} is not TLS, which is due there: {detail}.")
        }
        DenyReason::BadRequest => format!("the request to {destination} is refused: {detail}."),
        DenyReason::Budget if *via == Via::Route => {
            format!("{destination} is refused: a budget of the run is spent.")
        }
        DenyReason::Budget => format!("{host}:{port} is refused: {detail}."),
    };
    format!("belljar: {what}")
}

/// For text that is not a host.
pub(crate) fn unreadable(shown: &str, why: &str) -> String {
    format!(
        "\"{shown}\" is no plain host name: {why}. Only names and plain addresses are understood."
    )
}

/// As spelled in the header and in the record.
pub(crate) fn reason_name(reason: DenyReason) -> &'static str {
    match reason {
        DenyReason::NotListed => "not_listed",
        DenyReason::PortNotListed => "port_not_listed",
        DenyReason::RequestNotListed => "request_not_listed",
        DenyReason::CannotLookInside => "cannot_look_inside",
        DenyReason::NotAName => "not_a_name",
        DenyReason::AddressNotListed => "address_not_listed",
        DenyReason::PrivateAddress => "private_address",
        DenyReason::BlindToSecret => "blind_to_secret",
        DenyReason::NamesDiffer => "names_differ",
        DenyReason::NotTls => "not_tls",
        DenyReason::BadRequest => "bad_request",
        DenyReason::Budget => "budget",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REASONS: [DenyReason; 12] = [
        DenyReason::NotListed,
        DenyReason::PortNotListed,
        DenyReason::RequestNotListed,
        DenyReason::CannotLookInside,
        DenyReason::NotAName,
        DenyReason::AddressNotListed,
        DenyReason::PrivateAddress,
        DenyReason::BlindToSecret,
        DenyReason::NamesDiffer,
        DenyReason::NotTls,
        DenyReason::BadRequest,
        DenyReason::Budget,
    ];

    #[test]
    fn a_denial_text_shows_how_to_allow_it() {
        let host = Host::parse(b"pypi.org").unwrap();
        let text = |port| {
            let access =
                AccessRequest { host: host.clone(), port, via: Via::Connect, seen: Seen::Nothing };
            denied(PolicyPhase::Run, &access, &DenyReason::NotListed.into())
        };
        assert_eq!(
            text(443),
            "belljar: pypi.org:443 is not on this run's allow-list. The operator can allow it with \
             --allow-host pypi.org or network.allow = [\"pypi.org\"]."
        );
        assert!(text(22).contains("--allow-host pypi.org:22"));
    }

    /// What a resolver returns and what the operator configured are not disclosed, whatever the reason.
    #[test]
    fn no_denial_text_discloses_the_hosts_network() {
        let accesses = [("db.corp.example", Via::Connect), ("db.corp.example", Via::Http)];
        for (reason, (host, via)) in
            REASONS.into_iter().flat_map(|one| accesses.map(|access| (one, access)))
        {
            // The detail of these is what the client sent, or a number of the budget.
            let is_of_the_request = matches!(
                reason,
                DenyReason::NotAName
                    | DenyReason::NamesDiffer
                    | DenyReason::NotTls
                    | DenyReason::BadRequest
                    | DenyReason::Budget
            );
            let host = Host::parse(host.as_bytes()).unwrap();
            let denial = Denial { reason, detail: Some("10.77.0.9".to_owned()) };
            let text = denied(
                PolicyPhase::Run,
                &AccessRequest { host, port: 443, via, seen: Seen::Nothing },
                &denial,
            );
            assert_eq!(text.contains("10.77.0.9"), is_of_the_request, "{reason:?}: {text}");
        }
        let host = Host::parse(b"10.77.0.9").unwrap();
        for reason in [
            DenyReason::BadRequest,
            DenyReason::NamesDiffer,
            DenyReason::RequestNotListed,
            DenyReason::Budget,
            DenyReason::PrivateAddress,
        ] {
            let (port, via) = (7654, Via::Route);
            let access = |via| AccessRequest { host: host.clone(), port, via, seen: Seen::Nothing };
            let denial = Denial::from(reason);
            let text = denied(PolicyPhase::Run, &access(via), &denial);
            assert!(!text.contains("10.77.0.9") && !text.contains("7654"), "{reason:?}: {text}");
            // The control: a client that named the host itself sees it.
            let text = denied(PolicyPhase::Run, &access(Via::Connect), &denial);
            assert!(text.contains("10.77.0.9:7654"), "{reason:?}: {text}");
        }
    }

    #[test]
    fn names_are_those_of_the_record() {
        for reason in REASONS {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason_name(reason));
        }
    }
}
