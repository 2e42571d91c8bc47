//! Decides by the rules whether one access is allowed. No I/O.

use belljar_spec::Host;
use belljar_spec::egress::{
    DenyReason, EgressPolicy, EgressSpec, Reach, RouteSpec, SecretSource, SecretSpec,
};
use belljar_spec::host::parse_authority;
use belljar_spec::host_rule::{HostPattern, HostRule, Seen};
use belljar_spec::network_list::NetworkList;

use crate::login_rules;

/// The parsed rules of one phase.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) phase: PolicyPhase,
    rules: Vec<HostRule>,
    private: Vec<(Host, u16)>,
    intercept: Vec<HostRule>,
    /// Requests that get the parts of the agent's login.
    login: Vec<HostRule>,
    /// Routes that are open, by their ports.
    open_routes: Vec<u16>,
    pub(crate) spec: EgressSpec,
}

/// The phase that a policy applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyPhase {
    /// The set-up, before the agent.
    Setup,
    /// Everything after the set-up.
    Run,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct PolicyError(String);

/// Why an access is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// As named in the record.
    pub(crate) rule: String,
    pub(crate) addresses: AddressScope,
}

/// Which parts of a request the rules of a host judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleScope {
    Paths,
    MethodsAndPaths,
}

/// Which addresses a name may resolve to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressScope {
    Public,
    /// The operator's private network too, and names in the host's /etc/hosts.
    Private,
    /// A rule names this very address.
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
        let agents = policy.spec.secrets.iter().filter_map(|secret| match &secret.source {
            SecretSource::Login(login) => Some(login.agent),
            _ => None,
        });
        let login = agents.flat_map(login_rules).map(|rule| (*rule).to_owned());
        let login: Vec<String> = login.collect();
        Ok(Self {
            phase: PolicyPhase::Run,
            login: rules(&login)?,
            rules: rules(&policy.allow)?,
            private: policy.spec.allow_private.iter().map(private).collect::<Result<_, _>>()?,
            intercept: rules(&policy.spec.intercept)?,
            open_routes: policy.spec.routes.iter().map(|route| route.listen).collect(),
            spec: policy.spec,
        })
    }

    /// The policy of the set-up phase: its own rules and nothing else. It runs package code that is not reviewed,
    /// so it gets no secrets, routes or interception, and does not learn. `None` where there is no set-up.
    pub(crate) fn for_setup(policy: &EgressPolicy) -> Result<Option<Self>, PolicyError> {
        policy.setup.as_ref().map(|allow| Self::setup(allow, &policy.spec)).transpose()
    }

    fn setup(allow: &[String], of_run: &EgressSpec) -> Result<Self, PolicyError> {
        let EgressSpec { allow_private, budget, per_host, .. } = of_run;
        let (allow_private, budget, per_host) = (allow_private.clone(), *budget, *per_host);
        let spec = EgressSpec { allow_private, budget, per_host, ..EgressSpec::default() };
        let (run, allow) = (String::new(), allow.to_vec());
        let mut setup = Self::new(EgressPolicy { run, allow, setup: None, spec })?;
        setup.phase = PolicyPhase::Setup;
        // A private host is allowed where a set-up rule names it exactly.
        let names_host = |rule: &HostRule, host: &Host| matches!(&rule.hosts, HostPattern::Host(named) if named == host);
        let rules = &setup.rules;
        setup.private.retain(|(host, port)| {
            rules.iter().any(|rule| names_host(rule, host) && rule.has_port(*port))
        });
        Ok(setup)
    }

    /// The policy of the same phase with another list. Secrets, routes, interception and budgets stay.
    pub(crate) fn with_list(&self, list: &NetworkList) -> Result<Self, PolicyError> {
        let (reach, allow_private) = (list.reach, list.allow_private.clone());
        let spec = EgressSpec { reach, allow_private, ..self.spec.clone() };
        if self.phase == PolicyPhase::Setup {
            return Self::setup(list.setup.as_deref().unwrap_or_default(), &spec);
        }
        let (run, allow) = (String::new(), list.allow.clone());
        let policy = Self::new(EgressPolicy { run, allow, setup: None, spec })?;
        Ok(Self { open_routes: list.routes.clone(), ..policy })
    }

    pub(crate) fn decide(
        &self,
        host: &Host,
        port: u16,
        seen: Seen<'_>,
    ) -> Result<Allowance, Denial> {
        let is_private = self.is_private(host, port);
        if let Some(rule) = self.rules.iter().find(|rule| rule.allows(host, port, seen)) {
            let is_literal = matches!(&rule.hosts, HostPattern::Host(Host::Address(_)));
            let addresses = match (is_literal, is_private) {
                (true, _) => AddressScope::Literal,
                (false, true) => AddressScope::Private,
                (false, false) => AddressScope::Public,
            };
            return Ok(Allowance { rule: self.rule_name(rule), addresses });
        }
        let is_ruled = self.rules.iter().any(|rule| rule.is_about(host) && rule.has_port(port));
        // Where rules judge its requests, `allow_private` only permits its address.
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

    /// For the target of a route: which addresses it may have. A name of the private network must be allowed as such.
    pub(crate) fn decide_route(
        &self,
        host: &Host,
        port: u16,
        listen: u16,
    ) -> Result<AddressScope, Denial> {
        if !self.open_routes.contains(&listen) {
            return Err(DenyReason::NotListed.into());
        }
        Ok(match self.decide(host, port, Seen::Nothing) {
            Ok(allowance) => allowance.addresses,
            Err(_) if host.name().is_none() => AddressScope::Literal,
            Err(_) => AddressScope::Public,
        })
    }

    /// Whether some request to it may be allowed once it is read; and by which rule, as named in the record.
    pub(crate) fn may_allow(&self, host: &Host, port: u16) -> Result<String, Denial> {
        let listed = |rule: &&HostRule| rule.is_about(host) && rule.has_port(port);
        match self.rules.iter().find(listed) {
            Some(rule) => Ok(self.rule_name(rule)),
            None => self.decide(host, port, Seen::Nothing).map(|allowance| allowance.rule),
        }
    }

    /// Which addresses a host with an open connection may have, whatever the requests are.
    pub(super) fn address_scope(&self, host: &Host, port: u16) -> AddressScope {
        match host {
            Host::Address(_) => AddressScope::Literal,
            Host::Name(_) if self.is_private(host, port) => AddressScope::Private,
            Host::Name(_) => AddressScope::Public,
        }
    }

    fn is_private(&self, host: &Host, port: u16) -> bool {
        self.private.iter().any(|(name, at)| name == host && *at == port)
    }

    fn rule_name(&self, rule: &HostRule) -> String {
        match self.phase {
            PolicyPhase::Setup => format!("setup {rule}"),
            PolicyPhase::Run => rule.to_string(),
        }
    }

    /// Which parts of a request rules judge. `None` where a rule allows everything, or none applies.
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

    /// Whether the proxy terminates TLS for this host: configured, or needed for a secret that no route carries.
    pub(crate) fn intercepts(&self, host: &Host, port: u16) -> bool {
        self.intercept.iter().any(|rule| rule.is_about(host) && rule.port.unwrap_or(443) == port)
            || self.secrets(host, port).any(|secret| !self.is_routed(secret))
    }

    /// The secrets for requests to this host and port.
    pub(crate) fn secrets(&self, host: &Host, port: u16) -> impl Iterator<Item = &SecretSpec> {
        self.spec.secrets.iter().filter(move |secret| secret.host == *host && secret.port == port)
    }

    /// Those of them that this request gets: a login is for the requests of its agent only.
    pub(crate) fn request_secrets<'p>(
        &'p self,
        host: &Host,
        port: u16,
        seen: Seen<'_>,
    ) -> impl Iterator<Item = &'p SecretSpec> {
        let is_of_agent = self.login.iter().any(|rule| rule.allows(host, port, seen));
        let host = host.clone();
        self.spec.secrets.iter().filter(move |secret| {
            secret.host == host && secret.port == port && (is_of_agent || !is_login(secret))
        })
    }

    fn is_routed(&self, secret: &SecretSpec) -> bool {
        self.spec.routes.iter().any(|route| route.secret.as_deref() == Some(secret.env.as_str()))
    }

    pub(crate) fn route(&self, port: u16) -> Option<&RouteSpec> {
        self.spec.routes.iter().find(|route| route.listen == port)
    }
}

pub(crate) fn is_login(secret: &SecretSpec) -> bool {
    matches!(secret.source, SecretSource::Login(_))
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
    fn a_denial_names_the_missing_part() {
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
    fn a_login_is_for_the_requests_of_its_agent_whatever_is_allowed() {
        use belljar_spec::egress::{LoginPart, LoginSource, SecretPlace};
        use belljar_spec::manifest::AgentKind;
        let host = Host::parse(b"api.anthropic.com").unwrap();
        let login = LoginSource {
            agent: AgentKind::Claude,
            part: LoginPart::AccessToken,
            file: "/f".into(),
            lock: "/l".into(),
            token_url: String::new(),
        };
        let secret = |env: &str, source| SecretSpec {
            env: env.to_owned(),
            host: host.clone(),
            port: 443,
            place: SecretPlace::Bearer,
            source,
        };
        let secrets = vec![
            secret("TOKEN", SecretSource::Login(login)),
            secret("KEY", SecretSource::Env { name: "KEY".into() }),
        ];
        let spec = EgressSpec { secrets, ..EgressSpec::default() };
        let allow = vec!["api.anthropic.com".to_owned()];
        let policy =
            Policy::new(EgressPolicy { run: "r".into(), allow, setup: None, spec }).unwrap();
        let given = |method, path| {
            let seen = Seen::Request { method, path };
            assert!(policy.decide(&host, 443, seen).is_ok());
            let secrets = policy.request_secrets(&host, 443, seen);
            secrets.map(|secret| secret.env.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(given("POST", "/v1/messages"), ["TOKEN", "KEY"]);
        assert_eq!(given("GET", "/v1/models/x"), ["TOKEN", "KEY"]);
        for (method, path) in [
            ("POST", "/api/oauth/claude_cli/create_api_key"),
            ("POST", "/v1/models"),
            ("POST", "/v1/messages/../organizations"),
            ("POST", "/v1/messages%2f..%2forganizations"),
            ("GET", "/v1/messagesx"),
            ("GET", "/"),
        ] {
            assert_eq!(given(method, path), ["KEY"], "{method} {path}");
        }
        assert_eq!(policy.request_secrets(&host, 443, Seen::Nothing).count(), 1);
    }

    #[test]
    fn a_private_host_is_still_judged_by_its_rules() {
        let allow = vec!["GET db.internal:8080/docs".to_owned()];
        let allow_private = vec!["db.internal:8080".to_owned(), "other.internal:1".to_owned()];
        let spec = EgressSpec { allow_private, ..EgressSpec::default() };
        let policy =
            Policy::new(EgressPolicy { run: "r".into(), allow, setup: None, spec }).unwrap();
        let decide_request = |host: &str, port, method, path| {
            let host = Host::parse(host.as_bytes()).unwrap();
            let decided = policy.decide(&host, port, Seen::Request { method, path });
            decided.map(|allowance| allowance.addresses).map_err(|denial| denial.reason)
        };
        assert_eq!(
            decide_request("db.internal", 8080, "GET", "/docs/x"),
            Ok(AddressScope::Private)
        );
        let refused = Err(DenyReason::RequestNotListed);
        assert_eq!(decide_request("db.internal", 8080, "DELETE", "/docs/x"), refused);
        assert_eq!(decide_request("db.internal", 8080, "GET", "/admin"), refused);
        assert_eq!(decide_request("other.internal", 1, "PUT", "/"), Ok(AddressScope::Private));
    }
}
