//! The ceiling on which hosts a run may reach, and which ports may be published.

use super::wanted::Wanted;
use super::{BeyondCeiling, CeilingFile};
use crate::egress::{PublishSpec, Reach};
use crate::host_rule::HostRule;
use crate::layers::Settings;
use crate::manifest::table::section;
use crate::network_list::Additions;

section! {
    /// Host rules that cover every rule that may be used.
    pub struct CeilingNetwork {
        /// Rules that cover every rule, of the set-up too, and every route's target.
        allow: Option<Vec<String>>,
        /// Hosts of the local network, as `host:port`.
        allow_private: Option<Vec<String>>,
        /// Ports that may be published: `[[ADDRESS:]HOST_PORT:]PORT`; without a host port, any.
        publish: Option<Vec<String>>,
    }
}

impl CeilingFile {
    pub(super) fn check_network(&self, wanted: &Wanted<'_>) -> Result<(), BeyondCeiling> {
        let most = &self.ceiling.network;
        let allow = most.allow.as_deref();
        self.check_hosts(wanted, "network.allow", allow, &wanted.allow)?;
        self.check_hosts(wanted, "setup.network", allow, &wanted.setup)?;
        self.check_hosts(wanted, "route", allow, &wanted.targets)?;
        // A private host may have public addresses too, so the private list must not bypass the public one.
        let ceiling_private = most.allow_private.as_deref().or(allow);
        self.check_hosts(wanted, "network.allow_private", ceiling_private, &wanted.private)?;
        self.check_ports(wanted)?;
        self.check_reach_of(wanted)
    }

    /// What is added to the list of a live run.
    pub fn check_additions(&self, additions: &Additions) -> Result<(), BeyondCeiling> {
        self.check_network(&Wanted::of_additions(additions))
    }

    fn check_hosts(
        &self,
        wanted: &Wanted<'_>,
        key: &str,
        allowed: Option<&[String]>,
        hosts: &[String],
    ) -> Result<(), BeyondCeiling> {
        let Some(allowed) = allowed else { return Ok(()) };
        let most: Vec<HostRule> = allowed.iter().flat_map(|text| HostRule::parse(text)).collect();
        for text in hosts {
            let is_allowed = |rule: HostRule| most.iter().any(|bound| bound.covers(&rule));
            if !HostRule::parse(text).is_ok_and(is_allowed) {
                let list = format!("[{}]", allowed.join(", "));
                return Err(self.beyond(wanted, key, format!("\"{text}\""), list));
            }
        }
        Ok(())
    }

    fn check_ports(&self, wanted: &Wanted<'_>) -> Result<(), BeyondCeiling> {
        let Some(allowed) = &self.ceiling.network.publish else { return Ok(()) };
        let most: Vec<PublishSpec> =
            allowed.iter().flat_map(|text| PublishSpec::parse(text)).collect();
        for publish in &wanted.publish {
            let is_allowed = |bound: &PublishSpec| {
                let PublishSpec { address, host_port, port } = publish.spec;
                bound.address == address
                    && bound.port == port
                    && (bound.host_port == 0 || bound.host_port == host_port)
            };
            if !most.iter().any(is_allowed) {
                let list = format!("[{}]", allowed.join(", "));
                return Err(self.beyond(wanted, "network.publish", format!("\"{publish}\""), list));
            }
        }
        Ok(())
    }

    /// What comes from the request and not from a layer.
    pub(crate) fn check_reach(
        &self,
        settings: &Settings,
        reach: Reach,
    ) -> Result<(), BeyondCeiling> {
        self.check_reach_of(&Wanted { reach, ..Wanted::of_settings(settings) })
    }

    /// To learn is to reach everything, at every port.
    fn check_reach_of(&self, wanted: &Wanted<'_>) -> Result<(), BeyondCeiling> {
        let Some(allowed) = &self.ceiling.network.allow else { return Ok(()) };
        if wanted.reach == Reach::Learn {
            let list = format!("[{}]", allowed.join(", "));
            return Err(self.beyond(wanted, "--learn", "every public name".to_owned(), list));
        }
        Ok(())
    }
}

/// As a rule. A separate check refuses what cannot be parsed.
pub(super) fn target(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let authority = rest.split('/').next().unwrap_or_default();
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    match (has_port, scheme) {
        (true, _) => authority.to_owned(),
        (false, "http") => format!("{authority}:80"),
        (false, _) => format!("{authority}:443"),
    }
}
