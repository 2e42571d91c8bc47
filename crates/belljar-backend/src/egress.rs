//! What the plans of all backends have in common about the network: ports, variables, the run's own
//! authority, and how `net.sealed` holds.

use std::collections::BTreeMap;

use belljar_spec::egress::{PROXY_PORT, Reach, TRUST_DIRECTORY};
use belljar_spec::egress_env::{proxy_variables, trust_variables};
use belljar_spec::host_rule::{HostPattern, HostRule};
use belljar_spec::{
    Access, BackendName, Enforcement, MountKind, OsText, PlannedMount, Presence, RunSpec, Source,
    Tree,
};

use crate::error::PlanError;

/// More than a run needs; each is a socket.
const MAX_ROUTES: usize = 64;

/// The ports inside on which the proxy takes connections.
pub(crate) fn listen(spec: &RunSpec, backend: BackendName) -> Result<Vec<u16>, PlanError> {
    if !spec.has_network_access() {
        return Ok(Vec::new());
    }
    let routes = spec.egress.routes.iter().map(|route| route.listen);
    let ports: Vec<u16> = std::iter::once(PROXY_PORT).chain(routes).collect();
    let refused = |what: String, why: &str| {
        let why = why.to_owned();
        Err(PlanError::Unsupported { backend, what, why })
    };
    let twice = |(at, port): (usize, &u16)| ports[..at].contains(port).then_some(*port);
    if let Some(port) = ports.iter().enumerate().find_map(twice) {
        let why = "another route, or the proxy itself, listens there";
        return refused(format!("a route on port {port}"), why);
    }
    if spec.egress.routes.len() > MAX_ROUTES {
        let what = format!("{} routes", spec.egress.routes.len());
        return refused(what, &format!("a run has at most {MAX_ROUTES}"));
    }
    Ok(ports)
}

/// The run's own variables, with those that lead programs to the proxy. Whoever names one means it.
pub(crate) fn environment(spec: &RunSpec) -> BTreeMap<String, OsText> {
    let mut env = spec.env.clone();
    let mut add = |variables: Vec<(&'static str, String)>| {
        for (name, value) in variables {
            env.entry(name.to_owned()).or_insert_with(|| OsText::from(value.as_str()));
        }
    };
    // First: where both have a variable, this one does for both.
    if spec.intercepts() {
        add(trust_variables(PROXY_PORT));
    }
    if spec.has_network_access() {
        add(proxy_variables(PROXY_PORT));
    }
    env
}

/// The authority that the proxy makes for this run, where programs find it by a variable.
pub(crate) fn trust_directory(spec: &RunSpec) -> Option<PlannedMount> {
    spec.intercepts().then(|| own(TRUST_DIRECTORY, Source::RunTrust, Presence::Required))
}

/// A file or directory of this run, read-only.
pub(crate) fn own(target: &str, source: Source, presence: Presence) -> PlannedMount {
    let (access, tree) = (Access::ReadOnly, Tree::Own);
    let what = MountKind::Bind { source, access, presence, tree };
    PlannedMount { target: OsText::from(target), what }
}

/// `how` the sandbox has no network but its own.
pub(crate) fn sealed(spec: &RunSpec, how: &str) -> Enforcement {
    if !spec.has_network_access() {
        return Enforcement::enforced(how);
    }
    if spec.egress.reach == Reach::Learn {
        return Enforcement::weaker("learn: every public name");
    }
    let is_any =
        |rule: &String| HostRule::parse(rule).is_ok_and(|rule| rule.hosts == HostPattern::Any);
    let any_of_setup = spec.setup_network().iter().find(|rule| is_any(rule));
    if let Some(rule) = any_of_setup {
        return Enforcement::weaker(format!(
            "the set-up's network = [\"{rule}\"]: any public name"
        ))
        .with_fix("name the hosts that the set-up needs");
    }
    if let Some(rule) = spec.network_allow.iter().find(|rule| is_any(rule)) {
        return Enforcement::weaker(format!("allow = [\"{rule}\"]: any public name"))
            .with_fix("name the hosts; belljar run --learn finds them");
    }
    let rules =
        spec.network_allow.len() + spec.egress.allow_private.len() + spec.egress.routes.len();
    let counted = |rules: usize| match rules {
        1 => "1 rule".to_owned(),
        _ => format!("{rules} rules"),
    };
    let setup = match spec.setup_network().len() {
        0 => String::new(),
        of_setup => format!("; {} until the set-up has ended", counted(of_setup)),
    };
    match rules {
        0 => Enforcement::enforced(format!("{how}{setup}, none after it")),
        _ => Enforcement::enforced(format!("{how}; {} on the proxy{setup}", counted(rules))),
    }
}
