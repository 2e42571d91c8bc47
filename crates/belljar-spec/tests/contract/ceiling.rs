//! The ceiling: no layer goes beyond it, and each refusal states what is allowed.

use crate::common::Given;
use belljar_spec::manifest::Limit;
use belljar_spec::{BackendChoice, BackendName, CeilingFile, Clause, ResolveError, Size};

/// The run under this ceiling: accepted, or refused with the message.
fn under(ceiling: &str, manifest: &str) -> Result<(), String> {
    let given = Given { manifest, ceiling: Some(ceiling), ..Given::default() };
    given.resolve().map(|_| ()).map_err(|error| match error {
        ResolveError::BeyondCeiling(beyond) => beyond.to_string(),
        other => panic!("another error: {other}"),
    })
}

#[test]
fn limits_are_held_and_named() {
    for (ceiling, within, beyond) in [
        ("memory = '4g'", "memory = '4g'", "memory = '5g'"),
        ("cpus = 2", "cpus = 1.5", "cpus = 2.5"),
        ("pids = 100", "pids = 100", "pids = 'none'"),
        ("time = '1h'", "time = '30m'", "time = '2h'"),
        ("idle = '1h'", "idle = '30m'", "idle = 'none'"),
        ("output = '1m'", "output = 0", "output = '2m'"),
        ("disk = '1g'", "disk = '1g'", "disk = '1025m'"),
        ("stop_timeout = '5s'", "stop_timeout = '5s'", "stop_timeout = '6s'"),
    ] {
        let ceiling = format!("[limits]\n{ceiling}\n");
        assert_eq!(under(&ceiling, &format!("[limits]\n{within}\n")), Ok(()), "{within}");
        assert!(under(&ceiling, &format!("[limits]\n{beyond}\n")).is_err(), "{beyond}");
    }
    assert_eq!(
        under("[limits]\nmemory = '4g'\n", "[limits]\nmemory = '5g'\n").unwrap_err(),
        "limits.memory = 5g (set by /proj/p/belljar.toml) exceeds the ceiling of \
         /etc/belljar/policy.toml, which allows at most 4g; lower it, or ask the administrator \
         of this machine"
    );
}

#[test]
fn a_built_in_value_above_the_ceiling_is_lowered_to_it_and_required() {
    let ceiling = "[limits]\nmemory = '1g'\ntime = '1h'\n";
    let given = Given { ceiling: Some(ceiling), ..Given::default() };
    let settings = given.settings();
    assert_eq!(settings.values.limits.memory, Some(Limit::At(Size(1 << 30))));
    let origin = settings.origin("limits.memory").unwrap().to_string();
    assert_eq!(origin, "the ceiling /etc/belljar/policy.toml");
    let spec = given.resolve().unwrap();
    assert_eq!(spec.limits.time.unwrap().as_secs(), 3600);
    assert!(spec.required.contains(&Clause::LimitMemory));
    assert!(!spec.required.contains(&Clause::LimitPids));
}

#[test]
fn backends_are_held() {
    let ceiling = "backends = ['docker', 'podman']\n";
    assert_eq!(under(ceiling, "[sandbox]\nbackend = 'podman'\n"), Ok(()));
    let refused = under(ceiling, "[sandbox]\nbackend = 'host'\n").unwrap_err();
    assert!(refused.contains("sandbox.backend = host") && refused.contains("[docker, podman]"));
    assert!(under(ceiling, "[sandbox]\nbackend = 'docker'\nfallback = ['jail']\n").is_err());
    assert_eq!(under(ceiling, "[sandbox]\nbackend = 'docker'\nfallback = ['podman']\n"), Ok(()));
    let auto = Given { ceiling: Some(ceiling), ..Given::default() }.resolve().unwrap();
    assert_eq!(auto.backend, BackendChoice::Docker, "auto takes the first that is allowed");
    assert_eq!(auto.fallback, [BackendName::Podman], "and then the others that are");
    assert!(under("backends = ['host']\n", "").is_err(), "auto never means the host");
}

#[test]
fn hosts_are_held() {
    let ceiling = "[network]\nallow = ['*.example', 'a.test:8443']\n";
    assert_eq!(under(ceiling, "[network]\nallow = ['x.example', 'a.test:8443']\n"), Ok(()));
    for beyond in ["['x.test']", "['a.test']", "['*']", "['example']"] {
        assert!(under(ceiling, &format!("[network]\nallow = {beyond}\n")).is_err(), "{beyond}");
    }
    let setup = |hosts: &str| format!("[setup]\ncommand = ['true']\nnetwork = {hosts}\n");
    assert_eq!(under(ceiling, &setup("['x.example']")), Ok(()));
    for beyond in ["['x.test']", "['*']"] {
        let refused = under(ceiling, &setup(beyond)).unwrap_err();
        assert!(refused.contains("setup.network"), "{refused}");
    }
    let none = "[network]\nallow = []\n";
    assert!(under(none, &setup("['x.example']")).is_err());
    assert!(under(none, "[network]\nallow = ['x.example']\n").is_err());
    assert_eq!(under(none, ""), Ok(()));
}

#[test]
fn sources_are_held() {
    let ceiling = "mounts = ['/proj', '/opt']\n";
    let mount =
        |source: &str| format!("[sandbox]\nmounts = [{{ source = '{source}', target = '/d' }}]\n");
    assert_eq!(under(ceiling, &mount("data")), Ok(()));
    assert_eq!(under(ceiling, &mount("/opt/x")), Ok(()));
    let refused = under(ceiling, &mount("/srv/x")).unwrap_err();
    assert!(refused.contains("sandbox.mounts[0] = /srv/x"), "{refused}");
    assert!(under(ceiling, &mount("/opt2")).is_err(), "a prefix is a whole directory name");
    assert!(under(ceiling, &mount("/opt/../srv")).is_err());
    assert!(under(ceiling, "[sandbox]\ntools = ['~/.cargo']\n").is_err());
    assert!(under(ceiling, "[sandbox]\nrootfs = '/srv/root'\n").is_err());
    assert!(under(ceiling, "[sandbox]\nworkspace = { path = '/srv' }\n").is_err());
    assert!(under("mounts = ['/opt']\n", "").is_err(), "the default workspace is a source too");
    assert_eq!(under("mounts = ['/opt']\n", "[sandbox]\nworkspace = { mode = 'none' }\n"), Ok(()));
}

#[test]
fn waivers_are_held_and_requirements_added() {
    let ceiling = "waive = ['fs.quota']\nrequire = ['id.unique']\n";
    let waive = |clause: &str| format!("[policy]\nwaive = {{ '{clause}' = 'why' }}\n");
    assert_eq!(under(ceiling, &waive("fs.quota")), Ok(()));
    assert!(under(ceiling, &waive("net.sealed")).unwrap_err().contains("waivers of [fs.quota]"));
    let all = format!("[sandbox]\nbackend = 'host'\n{}", waive("all"));
    assert!(under(ceiling, &all).is_err());
    assert_eq!(under("", &all), Ok(()));
    let spec = Given { ceiling: Some(ceiling), ..Given::default() }.resolve().unwrap();
    assert!(spec.required.contains(&Clause::IdUnique));
}

#[test]
fn the_file_is_read_as_strictly_as_a_manifest() {
    let parse =
        |text: &str| CeilingFile::parse(text.as_bytes(), &"/etc/belljar/policy.toml".into());
    assert!(parse("backends = ['jail']\n").is_ok());
    let wrong = parse("backend = ['jail']\n").unwrap_err().to_string();
    assert!(wrong.starts_with("/etc/belljar/policy.toml:1:1: backend: unknown key"), "{wrong}");
    assert!(parse("waive = ['nothing']\n").is_err());
}
