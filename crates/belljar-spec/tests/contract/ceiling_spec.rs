//! Checks a run that was resolved earlier against the current ceiling.

use crate::common::Given;
use belljar_spec::egress::Reach;
use belljar_spec::{BackendChoice, CeilingFile, Clause, RunSpec, resolve};

/// Decided when there was no ceiling.
fn decided(manifest: &str) -> RunSpec {
    Given { manifest, ..Given::default() }.resolve().unwrap()
}

fn agent(manifest: &str) -> RunSpec {
    let manifest = format!("[agent]\nkind = 'command'\ncommand = ['x']\n{manifest}");
    let settings = Given { manifest: &manifest, ..Given::default() }.settings();
    let request = belljar_spec::Request {
        command: belljar_spec::MainCommand::Agent,
        ..crate::common::request()
    };
    resolve(&settings, &request, &crate::common::host()).unwrap()
}

fn check(ceiling: &str, spec: &RunSpec) -> Result<(), String> {
    let path = "/etc/belljar/policy.toml".into();
    let file = CeilingFile::parse(ceiling.as_bytes(), &path).unwrap();
    file.check_spec(spec).map_err(|beyond| beyond.to_string())
}

/// Refused with this key, and not where there is no ceiling.
fn is_beyond(ceiling: &str, spec: &RunSpec, key: &str) {
    let refused = check(ceiling, spec).expect_err(key);
    assert!(refused.starts_with(&format!("{key} = ")), "{refused}");
    assert!(refused.contains("set by the run that it continues"), "{refused}");
    assert_eq!(check("", spec), Ok(()));
}

#[test]
fn limits_are_held() {
    for (key, ceiling, within, beyond) in [
        ("memory", "'4g'", "'4g'", "'5g'"),
        ("memory", "'4g'", "'1g'", "'none'"),
        ("cpus", "2", "1.5", "2.5"),
        ("cpus", "2", "2", "'none'"),
        ("pids", "100", "100", "101"),
        ("pids", "100", "1", "'none'"),
        ("time", "'1h'", "'30m'", "'2h'"),
        ("time", "'1h'", "'1h'", "'none'"),
        ("idle", "'1h'", "'30m'", "'2h'"),
        ("idle", "'1h'", "'1h'", "'none'"),
        ("output", "'1m'", "0", "'2m'"),
        ("disk", "'1g'", "'1g'", "'1025m'"),
        ("disk", "'1g'", "'1m'", "'none'"),
        ("stop_timeout", "'5s'", "'5s'", "'6s'"),
    ] {
        let limit = |value: &str| format!("[limits]\n{key} = {value}\n");
        assert_eq!(check(&limit(ceiling), &decided(&limit(within))), Ok(()), "{key} {within}");
        is_beyond(&limit(ceiling), &decided(&limit(beyond)), &format!("limits.{key}"));
    }
    // What a new run would be lowered to, an old one has not.
    is_beyond("[limits]\nmemory = '1g'\n", &decided(""), "limits.memory");
}

#[test]
fn backends_are_held() {
    let of = |backend: &str, fallback: &str| {
        decided(&format!("[sandbox]\nbackend = '{backend}'\nfallback = {fallback}\n"))
    };
    let ceiling = "backends = ['docker', 'podman']\n";
    assert_eq!(check(ceiling, &of("docker", "['podman']")), Ok(()));
    is_beyond(ceiling, &of("jail", "[]"), "sandbox.backend");
    is_beyond(ceiling, &of("docker", "['jail']"), "sandbox.fallback");
    let auto = decided("");
    assert_eq!(auto.backend, BackendChoice::Auto);
    is_beyond(ceiling, &auto, "sandbox.backend");
    assert_eq!(check("backends = ['jail', 'docker', 'podman']\n", &auto), Ok(()));
}

#[test]
fn the_network_is_held() {
    let ceiling = "[network]\nallow = ['*.example', 'a.test:8443']\n";
    let allow = |rule: &str| decided(&format!("[network]\nallow = ['{rule}']\n"));
    for within in ["x.example", "*.x.example:443", "a.test:8443"] {
        assert_eq!(check(ceiling, &allow(within)), Ok(()), "{within}");
    }
    for beyond in ["x.test", "a.test", "*"] {
        is_beyond(ceiling, &allow(beyond), "network.allow");
    }
    let setup = |rule: &str| agent(&format!("[setup]\ncommand = ['true']\nnetwork = ['{rule}']\n"));
    assert_eq!(check(ceiling, &setup("x.example")), Ok(()));
    is_beyond(ceiling, &setup("x.test"), "setup.network");
    let route = |to: &str| decided(&format!("[[route]]\nlisten = 8080\nto = '{to}'\n"));
    for within in
        ["https://x.example/v1", "http://x.example", "https://a.test:8443", "tcp://x.example:443"]
    {
        assert_eq!(check(ceiling, &route(within)), Ok(()), "{within}");
    }
    for beyond in
        ["https://x.test", "https://a.test", "https://x.example:8443", "tcp://x.example:22"]
    {
        is_beyond(ceiling, &route(beyond), "route");
    }
    let private = |host: &str| decided(&format!("[network]\nallow_private = ['{host}']\n"));
    is_beyond(ceiling, &private("db.test:5432"), "network.allow_private");
    let ceiling_private = "[network]\nallow_private = ['db.test:5432']\n";
    assert_eq!(check(ceiling_private, &private("db.test:5432")), Ok(()));
    is_beyond(ceiling_private, &private("db.test:5433"), "network.allow_private");
    let mut learns = decided("");
    assert_eq!(check(ceiling, &learns), Ok(()));
    learns.egress.reach = Reach::Learn;
    is_beyond(ceiling, &learns, "--learn");
}

#[test]
fn ports_are_held() {
    let publish = |port: &str| decided(&format!("[network]\npublish = ['{port}']\n"));
    let ceiling = "[network]\npublish = ['3000', '[::1]:8080:80']\n";
    for within in ["3000", "127.0.0.1:9000:3000", "[::1]:8080:80"] {
        assert_eq!(check(ceiling, &publish(within)), Ok(()), "{within}");
    }
    for beyond in ["3001", "0.0.0.0:9000:3000", "[::1]:8081:80", "[::1]::80"] {
        is_beyond(ceiling, &publish(beyond), "network.publish");
    }
}

#[test]
fn sources_are_held() {
    let ceiling = "mounts = ['/proj', '/opt']\n";
    let sandbox = |text: &str| decided(&format!("[sandbox]\n{text}\n"));
    for within in [
        "mounts = [{ source = '/opt/x', target = '/d' }]",
        "tools = ['/opt/tool']",
        "rootfs = '/opt/root'",
        "workspace = { path = '/proj/q' }",
    ] {
        assert_eq!(check(ceiling, &sandbox(within)), Ok(()), "{within}");
    }
    for (beyond, key) in [
        ("mounts = [{ source = '/opt2', target = '/d' }]", "sandbox.mounts[0]"),
        ("tools = ['/srv/tool']", "sandbox.tools[0]"),
        ("rootfs = '/srv/root'", "sandbox.rootfs"),
        ("workspace = { path = '/srv' }", "sandbox.workspace.path"),
    ] {
        is_beyond(ceiling, &sandbox(beyond), key);
    }
    is_beyond("mounts = ['/opt']\n", &decided(""), "sandbox.workspace.path");
    assert_eq!(check("mounts = []\n", &sandbox("workspace = { mode = 'none' }")), Ok(()));
}

#[test]
fn waivers_and_requirements_are_held() {
    let waive = |clause: &str| decided(&format!("[policy]\nwaive = {{ '{clause}' = 'why' }}\n"));
    let ceiling = "waive = ['fs.quota']\n";
    assert_eq!(check(ceiling, &waive("fs.quota")), Ok(()));
    is_beyond(ceiling, &waive("net.sealed"), "policy.waive.\"net.sealed\"");
    let all = decided("[sandbox]\nbackend = 'host'\n[policy]\nwaive = { all = 'why' }\n");
    assert!(check(ceiling, &all).is_err());
    let requires = "require = ['id.unique']\n";
    assert_eq!(check(requires, &decided("[policy]\nrequire = ['id.unique']\n")), Ok(()));
    assert!(!decided("").required.contains(&Clause::IdUnique));
    is_beyond(requires, &decided(""), "policy.require");
}
