//! What the rules say about one thing that somebody inside asks for. No I/O.

use belljar_spec::Host;
use belljar_spec::egress::{DenyReason, EgressPolicy, EgressSpec, Reach, RouteSpec, SecretSpec};
use belljar_spec::host::parse_authority;
use belljar_spec::host_rule::{HostPattern, HostRule, Seen};

/// The rules, ready to be asked.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) phase: PolicyPhase,
    rules: Vec<HostRule>,
    private: Vec<(Host, u16)>,
    intercept: Vec<HostRule>,
    pub(crate) spec: EgressSpec,
}

/// Whom it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyPhase {
    /// The set-up, before the agent.
    Setup,
    /// Everything else.
    Run,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct PolicyError(String);

/// By what it is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// As the record names it.
    pub(crate) rule: String,
    pub(crate) addresses: AddressScope,
}

/// What rules say about requests to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleScope {
    Paths,
    MethodsAndPaths,
}

/// Which addresses a name may lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressScope {
    Public,
    /// The operator's own network too, and names from the host's own file.
    Private,
    /// This very address was written in a rule.
    Literal,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    pub(crate) reason: DenyReason,
    pub(crate) detail: Option<String>,
}

impl From<DenyReason> for Denial {
    fn from(reason: DenyReason) -> Self {
        Self { reason, detail: None }
    }
}

impl Policy {
    pub(crate) fn new(policy: EgressPolicy) -> Result<Self, PolicyError> {
        let rules = |texts: &[String]| {
            texts
                .iter()
                .map(|text| HostRule::parse(text))
                .collect::<Result<Vec<_>, _>>()
                .map_err(PolicyError)
        };
        let private = |text: &String| match parse_authority(text.as_bytes()) {
            Ok((host, Some(port))) => Ok((host, port)),
            _ => Err(PolicyError(format!("\"{text}\" is no host:port"))),
        };
        Ok(Self {
            phase: PolicyPhase::Run,
            rules: rules(&policy.allow)?,
            private: policy.spec.allow_private.iter().map(private).collect::<Result<_, _>>()?,
            intercept: rules(&policy.spec.intercept)?,
            spec: policy.spec,
        })
    }

    /// What holds while the set-up lasts: its own rules and nothing else. It executes code of packages that nobody has
    /// looked at, so it gets no secret, no route, no TLS that the proxy opens, and nothing to learn from. `None` where
    /// there is no set-up.
    pub(crate) fn for_setup(policy: &EgressPolicy) -> Result<Option<Self>, PolicyError> {
        let Some(allow) = &policy.setup else { return Ok(None) };
        let EgressSpec { allow_private, budget, per_host, .. } = &policy.spec;
        let (allow_private, budget, per_host) = (allow_private.clone(), *budget, *per_host);
        let spec = EgressSpec { allow_private, budget, per_host, ..EgressSpec::default() };
        let (run, allow) = (policy.run.clone(), allow.clone());
        let mut own = Self::new(EgressPolicy { run, allow, setup: None, spec })?;
        own.phase = PolicyPhase::Setup;
        // Where a rule of the set-up's own names the host, it may lie in the own network as it may for the run.
        let rule_name = |rule: &HostRule, host: &Host| matches!(&rule.hosts, HostPattern::Host(own) if own == host);
        let rules = &own.rules;
        own.private.retain(|(host, port)| {
            rules.iter().any(|rule| rule_name(rule, host) && rule.has_port(*port))
        });
        Ok(Some(own))
    }

    pub(crate) fn decide(
        &self,
        host: &Host,
        port: u16,
        seen: Seen<'_>,
    ) -> Result<Allowance, Denial> {
        let is_private = self.private.iter().any(|(own, at)| own == host && *at == port);
        if let Some(rule) = self.rules.iter().find(|rule| rule.allows(host, port, seen)) {
            let written = matches!(&rule.hosts, HostPattern::Host(Host::Address(_)));
            let addresses = match (written, is_private) {
                (true, _) => AddressScope::Literal,
                (false, true) => AddressScope::Private,
                (false, false) => AddressScope::Public,
            };
            return Ok(Allowance { rule: self.rule_name(rule), addresses });
        }
        let is_ruled = self.rules.iter().any(|rule| rule.is_about(host) && rule.has_port(port));
        // Where rules say what may be asked of it, it only says where it may lie.
        if is_private && !is_ruled {
            let rule = format!("allow_private {host}:{port}");
            let addresses =
                if host.name().is_some() { AddressScope::Private } else { AddressScope::Literal };
            return Ok(Allowance { rule, addresses });
        }
        if self.spec.reach == Reach::Learn && host.name().is_some() {
            return Ok(Allowance { rule: "learn".to_owned(), addresses: AddressScope::Public });
        }
        let about: Vec<&HostRule> = self.rules.iter().filter(|rule| rule.is_about(host)).collect();
        Err(Denial::from(match (about.is_empty(), host) {
            (true, Host::Address(_)) => DenyReason::AddressNotListed,
            (true, Host::Name(_)) => DenyReason::NotListed,
            (false, _) if !about.iter().any(|rule| rule.has_port(port)) => {
                DenyReason::PortNotListed
            }
            (false, _) if seen == Seen::Nothing => DenyReason::CannotLookInside,
            (false, _) => DenyReason::RequestNotListed,
        }))
    }

    /// Whether some request to it may be allowed, once it is seen; and by which rule, as the record names it.
    pub(crate) fn may_allow(&self, host: &Host, port: u16) -> Result<String, Denial> {
        let listed = |rule: &&HostRule| rule.is_about(host) && rule.has_port(port);
        match self.rules.iter().find(listed) {
            Some(rule) => Ok(self.rule_name(rule)),
            None => self.decide(host, port, Seen::Nothing).map(|allowance| allowance.rule),
        }
    }

    fn rule_name(&self, rule: &HostRule) -> String {
        match self.phase {
            PolicyPhase::Setup => format!("setup {rule}"),
            PolicyPhase::Run => rule.to_string(),
        }
    }

    /// Whether rules judge what is asked of it. `None` where a rule allows everything, or nothing does.
    pub(crate) fn rule_scope(&self, host: &Host, port: u16) -> Option<RuleScope> {
        let reason = self.decide(host, port, Seen::Nothing).err()?.reason;
        let rules = || {
            let about = |rule: &&HostRule| rule.is_about(host) && rule.has_port(port);
            self.rules.iter().filter(about)
        };
        (reason == DenyReason::CannotLookInside).then(|| {
            let methods = rules().any(|rule| !rule.methods.is_empty());
            if methods { RuleScope::MethodsAndPaths } else { RuleScope::Paths }
        })
    }

    /// Whether the proxy opens the TLS of this host: asked for, or needed for a secret that no route carries.
    pub(crate) fn intercepts(&self, host: &Host, port: u16) -> bool {
        self.intercept.iter().any(|rule| rule.is_about(host) && rule.port.unwrap_or(443) == port)
            || self.secrets(host, port).any(|secret| !self.is_routed(secret))
    }

    /// Secrets that requests to it get.
    pub(crate) fn secrets(&self, host: &Host, port: u16) -> impl Iterator<Item = &SecretSpec> {
        self.spec.secrets.iter().filter(move |secret| secret.host == *host && secret.port == port)
    }

    fn is_routed(&self, secret: &SecretSpec) -> bool {
        self.spec.routes.iter().any(|route| route.secret.as_deref() == Some(secret.env.as_str()))
    }

    pub(crate) fn route(&self, port: u16) -> Option<&RouteSpec> {
        self.spec.routes.iter().find(|route| route.listen == port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(allow: &[&str]) -> Policy {
        let allow = allow.iter().map(|rule| (*rule).to_owned()).collect();
        Policy::new(EgressPolicy {
            run: "r".into(),
            allow,
            setup: None,
            spec: EgressSpec::default(),
        })
        .unwrap()
    }

    fn reason(policy: &Policy, host: &str, port: u16) -> Option<DenyReason> {
        let host = Host::parse(host.as_bytes()).unwrap();
        policy.decide(&host, port, Seen::Nothing).err().map(|denial| denial.reason)
    }

    #[test]
    fn an_empty_list_allows_nothing() {
        assert_eq!(reason(&policy(&[]), "a.example", 443), Some(DenyReason::NotListed));
        assert_eq!(reason(&policy(&[]), "10.0.0.1", 443), Some(DenyReason::AddressNotListed));
    }

    #[test]
    fn a_denial_says_what_is_missing() {
        let listed = policy(&["a.example", "GET b.example/v1", "*.c.example"]);
        assert_eq!(reason(&listed, "a.example", 443), None);
        assert_eq!(reason(&listed, "a.example", 22), Some(DenyReason::PortNotListed));
        assert_eq!(reason(&listed, "b.example", 443), Some(DenyReason::CannotLookInside));
        assert_eq!(reason(&listed, "c.example", 443), Some(DenyReason::NotListed));
        assert_eq!(reason(&policy(&["*"]), "10.0.0.1", 443), Some(DenyReason::AddressNotListed));
    }

    #[test]
    fn rules_judge_requests_where_none_allows_all_of_them() {
        let rule_scope =
            |allow: &[&str]| policy(allow).rule_scope(&Host::parse(b"a.example").unwrap(), 443);
        assert_eq!(rule_scope(&["GET a.example"]), Some(RuleScope::MethodsAndPaths));
        assert_eq!(rule_scope(&["a.example/docs"]), Some(RuleScope::Paths));
        assert_eq!(rule_scope(&["*.example/docs", "GET *"]), Some(RuleScope::MethodsAndPaths));
        assert_eq!(rule_scope(&["a.example/docs", "a.example"]), None);
        assert_eq!(rule_scope(&["GET a.example:8443"]), None);
        assert_eq!(rule_scope(&[]), None);
    }

    #[test]
    fn what_lies_in_the_own_network_is_still_held_to_its_rules() {
        let allow = vec!["GET db.internal:8080/docs".to_owned()];
        let allow_private = vec!["db.internal:8080".to_owned(), "other.internal:1".to_owned()];
        let spec = EgressSpec { allow_private, ..EgressSpec::default() };
        let policy =
            Policy::new(EgressPolicy { run: "r".into(), allow, setup: None, spec }).unwrap();
        let ask = |host: &str, port, method, path| {
            let host = Host::parse(host.as_bytes()).unwrap();
            let decided = policy.decide(&host, port, Seen::Request { method, path });
            decided.map(|allowance| allowance.addresses).map_err(|denial| denial.reason)
        };
        assert_eq!(ask("db.internal", 8080, "GET", "/docs/x"), Ok(AddressScope::Private));
        let refused = Err(DenyReason::RequestNotListed);
        assert_eq!(ask("db.internal", 8080, "DELETE", "/docs/x"), refused);
        assert_eq!(ask("db.internal", 8080, "GET", "/admin"), refused);
        assert_eq!(ask("other.internal", 1, "PUT", "/"), Ok(AddressScope::Private));
    }
}
