//! What a way out of the sandbox changes in a plan: ports, variables, the run's own authority, the posture.

use crate::support::spec;
use belljar_backend::host::Host as HostBackend;
use belljar_backend::jail::Jail;
use belljar_backend::{Backend, Capabilities, PlanError};
use belljar_spec::Host;
use belljar_spec::egress::{
    PROXY_PORT, PublishSpec, Reach, RouteScheme, RouteSpec, RouteTarget, SecretPlace, SecretSource,
    SecretSpec, TRUST_DIRECTORY,
};
use belljar_spec::{
    Access, CgroupUse, Clause, Enforcement, MountKind, Plan, Rootfs, RunSpec, Source, Tmpfs,
};

fn capabilities() -> Capabilities {
    Capabilities {
        version: "6.18".to_owned(),
        limits: Vec::new(),
        cgroup: CgroupUse::V2,
        may_choose_uids: true,
        landlock: 6,
        max_files: 1 << 20,
        engine: None,
        image: None,
    }
}

fn plan(change: impl Fn(&mut RunSpec)) -> Plan {
    let mut spec = spec();
    change(&mut spec);
    Jail.plan(&spec, &capabilities()).unwrap()
}

fn allow(spec: &mut RunSpec, rules: &[&str]) {
    spec.network_allow = rules.iter().map(|rule| (*rule).to_owned()).collect();
}

fn has(plan: &Plan, target: &str) -> bool {
    plan.mounts.iter().any(|mount| mount.target == target.into())
}

#[test]
fn without_a_way_out_nothing_is_there() {
    let plan = plan(|_| {});
    assert!(plan.listen.is_empty());
    assert!(!plan.command.env.keys().any(|name| name.to_lowercase().contains("proxy")));
    assert!(!has(&plan, TRUST_DIRECTORY));
    assert!(plan.posture.get(Clause::NetSealed).is_enforced());
}

#[test]
fn a_rule_gives_a_port_and_variables_that_lead_to_it() {
    let plan = plan(|spec| allow(spec, &["api.example"]));
    assert_eq!(plan.listen, [PROXY_PORT]);
    let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
    for name in ["HTTP_PROXY", "https_proxy"] {
        assert_eq!(plan.command.env[name], proxy.as_str().into(), "{name}");
    }
    assert!(!plan.command.env.contains_key("SSL_CERT_FILE"), "nothing is opened");
    assert!(!has(&plan, TRUST_DIRECTORY));
    let held = plan.posture.get(Clause::NetSealed);
    assert!(held.is_enforced() && held.reason().ends_with("1 rule on the proxy"), "{held:?}");
}

#[test]
fn a_variable_that_the_operator_named_stays() {
    let plan = plan(|spec| {
        allow(spec, &["api.example"]);
        spec.env.insert("HTTP_PROXY".to_owned(), "http://127.0.0.1:3128".into());
    });
    assert_eq!(plan.command.env["HTTP_PROXY"], "http://127.0.0.1:3128".into());
}

#[test]
fn each_route_has_its_port_and_no_port_is_taken_twice() {
    let routed = plan(|spec| spec.egress.routes = vec![route(80), route(8080)]);
    assert_eq!(routed.listen, [PROXY_PORT, 80, 8080]);
    for taken in [vec![route(80), route(80)], vec![route(PROXY_PORT)]] {
        let mut spec = spec();
        spec.egress.routes = taken;
        let refused = Jail.plan(&spec, &capabilities()).unwrap_err().to_string();
        assert!(refused.contains("listens there"), "{refused}");
    }
}

#[test]
fn what_opens_tls_brings_an_authority_that_is_only_read() {
    let with_secret = |spec: &mut RunSpec| {
        allow(spec, &["api.example"]);
        spec.egress.secrets = vec![secret()];
    };
    let whole = plan(with_secret);
    insta::assert_json_snapshot!((&whole.listen, &whole.command.env, own_mounts(&whole)));
    for mount in &whole.mounts {
        if let MountKind::Bind {
            source: Source::RunTrust | Source::RunTrustBundle, access, ..
        } = &mount.what
        {
            assert_eq!(*access, Access::ReadOnly);
        }
    }
    // In a root that is somebody's tree, the way to it is memory, and its own list is left alone.
    let from_tree = plan(|spec| {
        with_secret(spec);
        spec.rootfs = Rootfs::Directory { path: "/srv/root".into() };
    });
    assert!(has(&from_tree, "/run") && has(&from_tree, TRUST_DIRECTORY));
    assert!(!has(&from_tree, "/etc/ssl/cert.pem"));
    // Nothing that was given covers it.
    let given = plan(|spec| {
        with_secret(spec);
        spec.tmpfs = vec![Tmpfs { target: "/run".into(), size: 1 << 20 }];
    });
    let at = |target: &str| given.mounts.iter().position(|mount| mount.target == target.into());
    assert!(at("/run") < at(TRUST_DIRECTORY));
}

fn own_mounts(plan: &Plan) -> Vec<&belljar_spec::PlannedMount> {
    let is_trust = |what: &MountKind| {
        matches!(what, MountKind::Bind { source: Source::RunTrust | Source::RunTrustBundle, .. })
    };
    plan.mounts.iter().filter(|mount| is_trust(&mount.what)).collect()
}

#[test]
fn what_only_the_set_up_reaches_is_told() {
    use belljar_spec::manifest::{AgentKind, Auth, Permissions};
    use belljar_spec::{AgentSpec, AgentWork, LoopSpec, SETUP_TIMEOUT, SetupSpec};
    let with = |network: &[&str]| {
        let network = network.iter().map(|rule| (*rule).to_owned()).collect();
        let agent = AgentSpec {
            kind: AgentKind::Command,
            program: vec!["true".into()],
            format: None,
            prompt: String::new(),
            model: None,
            args: Vec::new(),
            permissions: Permissions::Bypass,
            auth: Auth::Secret,
            max_turns: None,
            max_cost: None,
            max_tokens: None,
        };
        let (command, timeout) = (vec!["true".into()], SETUP_TIMEOUT);
        let setup = Some(SetupSpec { command, network, timeout });
        Some(Box::new(AgentWork { agent, setup, repeat: LoopSpec::once() }))
    };
    let held = |change: &dyn Fn(&mut RunSpec)| plan(change).posture.get(Clause::NetSealed).clone();
    let alone = held(&|spec| spec.agent = with(&["a.example"]));
    let told = "1 rule until the set-up has ended, none after it";
    assert!(alone.is_enforced() && alone.reason().ends_with(told), "{alone:?}");
    let both = held(&|spec| {
        spec.agent = with(&["a.example", "b.example"]);
        allow(spec, &["c.example"]);
    });
    let told = "1 rule on the proxy; 2 rules until the set-up has ended";
    assert!(both.is_enforced() && both.reason().ends_with(told), "{both:?}");
    let any = held(&|spec| spec.agent = with(&["*"]));
    assert!(matches!(any, Enforcement::Weaker { .. }), "{any:?}");
    assert!(held(&|spec| spec.agent = with(&[])).is_enforced());
    assert_eq!(plan(|spec| spec.agent = with(&["a.example"])).listen, [PROXY_PORT]);
}

#[test]
fn what_lets_every_name_through_is_weaker() {
    let held = |change: &dyn Fn(&mut RunSpec)| plan(change).posture.get(Clause::NetSealed).clone();
    let learn = held(&|spec| spec.egress.reach = Reach::Learn);
    assert!(matches!(learn, Enforcement::Weaker { .. }), "{learn:?}");
    assert!(learn.reason().contains("learn"));
    for any in ["*", "*:443", "GET *"] {
        let any = held(&|spec| allow(spec, &["api.example", any]));
        assert!(matches!(any, Enforcement::Weaker { .. }), "{any:?}");
    }
    let suffix = held(&|spec| allow(spec, &["*.example", "api.example"]));
    assert!(suffix.is_enforced() && suffix.reason().ends_with("2 rules on the proxy"));
}

#[test]
fn the_host_backend_has_nothing_to_hold_a_secret_or_a_port_with() {
    let refused = |change: fn(&mut RunSpec)| {
        let mut spec = spec();
        change(&mut spec);
        matches!(HostBackend.plan(&spec, &capabilities()), Err(PlanError::Unsupported { .. }))
    };
    assert!(!refused(|spec| allow(spec, &["api.example"])), "control: it has the whole network");
    assert!(refused(|spec| spec.egress.secrets = vec![secret()]));
    assert!(refused(|spec| spec.egress.routes = vec![route(80)]));
    assert!(refused(|spec| {
        spec.egress.publish = vec![PublishSpec::parse("8080:80").unwrap()];
    }));
}

fn route(listen: u16) -> RouteSpec {
    let host = Host::parse(b"api.example").unwrap();
    let to = RouteTarget { scheme: RouteScheme::Https, host, port: 443, path: String::new() };
    RouteSpec { listen, to, secret: None }
}

/// Needs an authority of the run's own.
fn secret() -> SecretSpec {
    SecretSpec {
        env: "API_KEY".to_owned(),
        host: Host::parse(b"api.example").unwrap(),
        port: 443,
        place: SecretPlace::Bearer,
        source: SecretSource::Env { name: "API_KEY".to_owned() },
    }
}
