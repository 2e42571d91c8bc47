//! Refusals in words, for people and for programs that read what they are told: what is not to be had, why,
//! and what the operator would have to write.

use belljar_spec::Host;
use belljar_spec::egress::DenyReason;
use belljar_spec::host_rule::{Seen, USUAL_PORTS};

use crate::policy::{Denial, Whose};

pub(crate) fn refusal(
    whose: Whose,
    host: &Host,
    port: u16,
    seen: Seen<'_>,
    denial: &Denial,
) -> String {
    let rule =
        if USUAL_PORTS.contains(&port) { host.to_string() } else { format!("{host}:{port}") };
    let (list, allow) = match whose {
        Whose::Run => (
            "this run's allow-list",
            format!(
                "The operator can allow it with --allow-host {rule} or network.allow = [\"{rule}\"]."
            ),
        ),
        Whose::Setup => (
            "the set-up's allow-list",
            format!("The operator can allow it with setup.network = [\"{rule}\"]."),
        ),
    };
    let detail = denial.detail.as_deref().unwrap_or_default();
    let what = match denial.reason {
        DenyReason::NotListed => {
            format!("{host}:{port} is not on {list}. {allow}")
        }
        DenyReason::PortNotListed => {
            format!("port {port} of {host} is not on {list}, though others are. {allow}")
        }
        DenyReason::RequestNotListed => {
            let request = match seen {
                Seen::Nothing => "this request".to_owned(),
                Seen::Request { method, path } => format!("{method} {path}"),
            };
            format!("{request} to {host}:{port} is not on {list}, though others are. {allow}")
        }
        DenyReason::CannotLookInside => format!(
            "the rules about {host}:{port} name methods or paths, and nobody can look into a tunnel. \
             The operator can have it opened with network.intercept = [\"{host}\"]. {allow}"
        ),
        DenyReason::NotAName => unreadable(&host.to_string(), detail),
        DenyReason::AddressNotListed => format!(
            "{host}:{port} is an address, and no rule of this run names it. Ask for the host by its \
             name, and let the proxy resolve it (socks5h instead of socks5). {allow}"
        ),
        DenyReason::PrivateAddress => format!(
            "{host} leads to {detail}, which is no public address. The operator can allow it with \
             network.allow_private = [\"{host}:{port}\"]."
        ),
        DenyReason::BlindToSecret => format!(
            "{host}:{port} gets a secret from the proxy, which cannot put it into this connection. \
             Speak HTTP over TLS, or use the run's route to it."
        ),
        DenyReason::NamesDiffer => {
            format!("the connection is to {host}:{port}, and what is sent names another: {detail}.")
        }
        DenyReason::NotTls => {
            format!("what is sent to {host}:{port} is not TLS, which is due there: {detail}.")
        }
        DenyReason::BadRequest => format!("the request to {host}:{port} is refused: {detail}."),
        DenyReason::Budget => format!("{host}:{port} is refused: {detail}."),
    };
    format!("belljar: {what}")
}

/// For what is no host at all.
pub(crate) fn unreadable(shown: &str, why: &str) -> String {
    format!(
        "\"{shown}\" is no plain host name: {why}. Only names and plain addresses are understood."
    )
}

/// As a header and a record spell it.
pub(crate) fn name(reason: DenyReason) -> &'static str {
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
    fn a_refusal_says_what_would_allow_it() {
        let host = Host::parse(b"pypi.org").unwrap();
        let words =
            |port| refusal(Whose::Run, &host, port, Seen::Nothing, &DenyReason::NotListed.into());
        assert_eq!(
            words(443),
            "belljar: pypi.org:443 is not on this run's allow-list. The operator can allow it with \
             --allow-host pypi.org or network.allow = [\"pypi.org\"]."
        );
        assert!(words(22).contains("--allow-host pypi.org:22"));
    }

    #[test]
    fn names_are_those_of_the_record() {
        for reason in REASONS {
            assert_eq!(serde_json::to_value(reason).unwrap(), name(reason));
        }
    }
}
