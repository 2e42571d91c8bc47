//! What a live run may reach, and how the operator's changes to it are applied.
//!
//! A run begins with the lists of its spec. A change replaces, adds or removes hosts; it never adds a secret, a route
//! or a host of the private network that the spec does not have.

use serde::{Deserialize, Serialize};

use crate::egress::{EgressSpec, Published, Reach, RouteSpec, RouteTarget};
use crate::host::{Host, parse_authority};
use crate::host_rule::{HostPattern, HostRule, Seen, USUAL_PORTS};
use crate::id::RunId;
use crate::runspec::RunSpec;
use crate::text::escape;

/// As for a manifest.
const MAX_RULES: usize = 1000;
/// Together they have to fit into one message to the proxy, beside everything else.
const MAX_BYTES: usize = 64 * 1024;

/// What a run may reach now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct NetworkList {
    pub reach: Reach,
    pub allow: Vec<String>,
    /// `host:port` with private addresses.
    pub allow_private: Vec<String>,
    /// Routes that are open, by their ports inside.
    pub routes: Vec<u16>,
    /// What the set-up may reach. Until it has ended, nothing else holds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub setup: Option<Vec<String>>,
}

/// What a run began with, which bounds what a change can bring: its routes, secrets and private hosts.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct StartingNetwork {
    pub allow: Vec<String>,
    pub egress: EgressSpec,
}

impl StartingNetwork {
    pub fn of(spec: &RunSpec) -> Self {
        Self { allow: spec.network_allow.clone(), egress: spec.egress.clone() }
    }
}

/// What the operator wants changed: first `deny`, then `allow`; or all is replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct NetworkChange {
    /// Instead of everything that is allowed now; empty closes all.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub set: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub allow: Vec<String>,
    /// `host[:port]`; without a port, every port of it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub deny: Vec<String>,
}

/// The network access of a live run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkState {
    pub run: RunId,
    pub access: NetworkAccess,
    pub list: NetworkList,
    /// All routes of the run, open or not.
    pub routes: Vec<RouteSpec>,
    pub ports: Vec<Published>,
    /// Connections that the change closed.
    #[serde(default)]
    pub closed: u64,
}

/// Whether the run has a proxy, without which nothing gets out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkAccess {
    Proxy,
    /// It was started without network access, or only its set-up had any.
    None,
    /// The proxy died, and with it all network access.
    Lost,
}

/// What a list has that another one does not.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Additions {
    pub allow: Vec<String>,
    pub allow_private: Vec<String>,
    /// Targets of routes, as rules.
    pub targets: Vec<String>,
}

impl Additions {
    pub fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.allow_private.is_empty() && self.targets.is_empty()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ChangeError {
    #[error("{why}")]
    BadRule { why: String },
    #[error("--deny takes HOST or HOST:PORT, without a method or a path: \"{rule}\"")]
    NotAHost { rule: String },
    #[error(
        "\"{host}\" cannot be removed alone, because \"{rule}\" allows it; remove that with --deny \"{rule}\", or \
         write the whole list with --set"
    )]
    StillAllowed { host: String, rule: String },
    #[error(
        "this run was started with --learn, which allows every public name; write the list with --set"
    )]
    Learning,
    #[error(
        "\"*\" would weaken net.sealed, which holds for this run since its start; name the hosts, or start a new run"
    )]
    Everything,
    #[error("a run has at most {MAX_RULES} rules, of {MAX_BYTES} bytes in total; use *.suffix")]
    TooMany,
}

impl NetworkList {
    /// What a run begins with.
    pub fn of(spec: &RunSpec) -> Self {
        Self {
            reach: spec.egress.reach,
            allow: spec.network_allow.clone(),
            allow_private: spec.egress.allow_private.clone(),
            routes: spec.egress.routes.iter().map(|route| route.listen).collect(),
            setup: spec.setup().map(|setup| setup.network.clone()),
        }
    }

    /// Nothing can be reached after the set-up.
    pub fn is_empty(&self) -> bool {
        self.reach == Reach::Listed
            && self.allow.is_empty()
            && self.allow_private.is_empty()
            && self.routes.is_empty()
    }

    /// The list after the change.
    pub fn changed(
        &self,
        change: &NetworkChange,
        start: &StartingNetwork,
    ) -> Result<Self, ChangeError> {
        let mut list = self.clone();
        if let Some(set) = &change.set {
            let rules = parsed(set)?;
            let covered = |text: &String| {
                HostRule::parse(text).is_ok_and(|rule| rules.iter().any(|new| new.covers(&rule)))
            };
            if let Some(setup) = &mut list.setup {
                setup.retain(covered);
            }
            let setup = list.setup.take();
            list = Self { setup, ..Self::default() };
            list.add(&rules, start)?;
        }
        for text in &change.deny {
            list.remove(text, start)?;
        }
        list.add(&parsed(&change.allow)?, start)?;
        let bytes: usize = list.allow.iter().map(String::len).sum();
        match list.allow.len() > MAX_RULES || bytes > MAX_BYTES {
            true => Err(ChangeError::TooMany),
            false => Ok(list),
        }
    }

    fn add(&mut self, rules: &[HostRule], start: &StartingNetwork) -> Result<(), ChangeError> {
        let began_with_all = start.egress.reach == Reach::Learn
            || start.allow.iter().any(|text| is_rule(text, |rule| rule.hosts == HostPattern::Any));
        for rule in rules {
            if rule.hosts == HostPattern::Any && !began_with_all {
                return Err(ChangeError::Everything);
            }
            let text = rule.to_string();
            let names = |host: &Host, port: u16| {
                matches!(&rule.hosts, HostPattern::Host(named) if named == host)
                    && rule.has_port(port)
            };
            let private = start.egress.allow_private.iter().filter(|entry| {
                parse_authority(entry.as_bytes())
                    .is_ok_and(|(host, port)| port.is_some_and(|port| names(&host, port)))
            });
            let mut is_known = false;
            for entry in private {
                push(&mut self.allow_private, entry.clone());
                is_known = true;
            }
            for RouteSpec { listen, to, .. } in &start.egress.routes {
                if rule.allows(&to.host, to.port, Seen::Nothing) {
                    push(&mut self.routes, *listen);
                    is_known = true;
                }
            }
            if let (Some(why), false) = (rule.localhost_reason(), is_known) {
                return Err(ChangeError::BadRule { why });
            }
            // As a private host it is allowed already.
            if !self.allow_private.contains(&text) {
                push(&mut self.allow, text);
            }
        }
        Ok(())
    }

    fn remove(&mut self, text: &str, start: &StartingNetwork) -> Result<(), ChangeError> {
        let denied = HostRule::parse(text).map_err(|why| ChangeError::BadRule { why })?;
        let host = escape(text.as_bytes());
        if denied.looks_inside() {
            return Err(ChangeError::NotAHost { rule: host });
        }
        if self.reach == Reach::Learn {
            return Err(ChangeError::Learning);
        }
        let keeps = |text: &String| !is_rule(text, |rule| is_within(rule, &denied));
        self.allow.retain(keeps);
        self.allow_private.retain(keeps);
        if let Some(setup) = &mut self.setup {
            setup.retain(keeps);
        }
        self.routes.retain(|listen| match target_of(*listen, start) {
            Some(to) => {
                !denied.is_about(&to.host) || denied.port.is_some_and(|port| port != to.port)
            }
            None => false,
        });
        let rest = self.allow.iter().chain(self.setup.iter().flatten());
        match rest.into_iter().find(|text| is_rule(text, |rule| overlaps(rule, &denied))) {
            Some(rule) => Err(ChangeError::StillAllowed { host, rule: rule.clone() }),
            None => Ok(()),
        }
    }

    /// What is allowed here and not by `before`.
    pub fn additions_to(&self, before: &Self, start: &StartingNetwork) -> Additions {
        let covering: Vec<HostRule> =
            before.allow.iter().flat_map(|text| HostRule::parse(text)).collect();
        let learned = before.reach == Reach::Learn;
        let is_new = |text: &&String| {
            !is_rule(text, |rule| {
                let is_name = !matches!(rule.hosts, HostPattern::Host(Host::Address(_)));
                (learned && is_name) || covering.iter().any(|old| old.covers(rule))
            })
        };
        let targets = self.routes.iter().filter(|listen| !before.routes.contains(listen));
        let targets = targets.filter_map(|listen| target_of(*listen, start));
        Additions {
            allow: self.allow.iter().filter(is_new).cloned().collect(),
            allow_private: self
                .allow_private
                .iter()
                .filter(|entry| !before.allow_private.contains(entry))
                .cloned()
                .collect(),
            targets: targets.map(|to| format!("{}:{}", to.host, to.port)).collect(),
        }
    }
}

fn parsed(texts: &[String]) -> Result<Vec<HostRule>, ChangeError> {
    let rule = |text: &String| HostRule::parse(text).map_err(|why| ChangeError::BadRule { why });
    texts.iter().map(rule).collect()
}

fn push<T: PartialEq>(list: &mut Vec<T>, entry: T) {
    if !list.contains(&entry) {
        list.push(entry);
    }
}

fn is_rule(text: &str, is: impl Fn(&HostRule) -> bool) -> bool {
    HostRule::parse(text).is_ok_and(|rule| is(&rule))
}

fn target_of(listen: u16, start: &StartingNetwork) -> Option<&RouteTarget> {
    start.egress.routes.iter().find(|route| route.listen == listen).map(|route| &route.to)
}

/// Everything that the rule allows is denied. A denial without a port is of every port.
fn is_within(rule: &HostRule, denied: &HostRule) -> bool {
    let hosts = HostRule { port: None, methods: Vec::new(), path: None, ..denied.clone() };
    let any_port = HostRule { port: None, ..rule.clone() };
    hosts.covers(&any_port) && denied.port.is_none_or(|port| rule.port == Some(port))
}

/// Something that the rule allows is denied.
fn overlaps(rule: &HostRule, denied: &HostRule) -> bool {
    let is_below = |name: &str, suffix: &str| Host::Name(name.to_owned()).is_below(suffix);
    let hosts = match (&rule.hosts, &denied.hosts) {
        (HostPattern::Host(host), pattern) | (pattern, HostPattern::Host(host)) => {
            let pattern = HostRule { hosts: pattern.clone(), ..denied.clone() };
            pattern.is_about(host)
        }
        (HostPattern::Below(one), HostPattern::Below(other)) => {
            one == other || is_below(one, other) || is_below(other, one)
        }
        (HostPattern::Any, _) | (_, HostPattern::Any) => true,
    };
    let port = match (rule.port, denied.port) {
        (_, None) => true,
        (None, Some(port)) => USUAL_PORTS.contains(&port),
        (Some(one), Some(other)) => one == other,
    };
    hosts && port
}

#[cfg(test)]
mod tests;
