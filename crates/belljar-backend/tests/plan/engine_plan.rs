//! The plans of engines are pure data too. A changed snapshot is a changed boundary: look at it as such.

use crate::support::spec;
use belljar_backend::engine::{Endpoint, Engine};
use belljar_backend::{Backend, Capabilities, EngineFacts, ImageFacts, PlanError};
use belljar_spec::{
    BackendName, CgroupUse, Clause, HostUid, MountKind, MountMode, Plan, PlannedMount, RunSpec,
};

fn facts() -> EngineFacts {
    EngineFacts {
        api: (1, 41),
        is_local: true,
        is_rootless: false,
        is_podman: false,
        runtimes: vec!["runc".to_owned(), "runsc".to_owned()],
        without_groups: Vec::new(),
        host_sockets: Vec::new(),
        architecture: "x86_64".to_owned(),
        selinux: false,
        most_processes: Some(32768),
        groups_readable: true,
    }
}

fn image() -> ImageFacts {
    let variable = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let env =
        [("PATH", "/opt/bin:/usr/bin"), ("LD_PRELOAD", "/evil.so"), ("JAVA_HOME", "/opt/java")];
    ImageFacts {
        name: "debian:stable-slim".to_owned(),
        id: "sha256:0123".to_owned(),
        digest: Some("debian@sha256:4567".to_owned()),
        architecture: "amd64".to_owned(),
        env: env.map(variable).to_vec(),
        volumes: vec!["/data".to_owned(), "/var/lib/things".to_owned()],
        ..ImageFacts::default()
    }
}

fn root() -> Capabilities {
    let held = |clause| (clause, Ok("the engine's control group, read back".to_owned()));
    Capabilities {
        version: "docker 20.10".to_owned(),
        limits: [Clause::LimitMemory, Clause::LimitCpu, Clause::LimitPids].map(held).to_vec(),
        cgroup: CgroupUse::V2,
        may_choose_uids: true,
        landlock: 6,
        max_files: 1 << 20,
        engine: Some(facts()),
        image: Some(image()),
    }
}

fn ordinary_user() -> Capabilities {
    Capabilities { may_choose_uids: false, ..root() }
}

fn with_engine(change: impl FnOnce(&mut EngineFacts)) -> Capabilities {
    let mut engine = facts();
    change(&mut engine);
    Capabilities { may_choose_uids: false, engine: Some(engine), ..root() }
}

fn docker() -> Engine {
    Engine::at(BackendName::Docker, "unix:///nowhere".parse::<Endpoint>().unwrap())
}

fn plan(spec: &RunSpec, capabilities: &Capabilities) -> Plan {
    docker().plan(spec, capabilities).unwrap()
}

#[test]
fn docker_as_root() {
    insta::assert_json_snapshot!(plan(&spec(), &root()));
}

#[test]
fn the_variables_of_the_image_are_filtered() {
    let env = plan(&spec(), &root()).command.env;
    assert_eq!(env["JAVA_HOME"].to_string(), "/opt/java");
    assert_eq!(env["PATH"].to_string(), "/usr/bin:/bin:/opt/bin");
    assert!(!env.contains_key("LD_PRELOAD"));
}

/// A volume of the image would be a tree that nobody named; what the operator put there stays.
#[test]
fn volumes_of_the_image_are_memory_unless_something_is_there() {
    let plan = plan(&spec(), &root());
    let at = |target: &str| {
        let mut found = plan.mounts.iter().filter(|mount| mount.target.to_string() == target);
        let first = found.next().unwrap().what.clone();
        assert!(found.next().is_none(), "{target} twice");
        first
    };
    assert!(matches!(at("/var/lib/things"), MountKind::Tmpfs { .. }));
    assert!(matches!(at("/data"), MountKind::Bind { .. }));
}

#[test]
fn who_the_command_is_on_the_host() {
    assert_eq!(plan(&spec(), &root()).identity.host, HostUid::PerRun);
    assert_eq!(plan(&spec(), &ordinary_user()).identity.host, HostUid::Caller);
    let mut nothing_mounted = spec();
    nothing_mounted.workspace = None;
    nothing_mounted.mounts.clear();
    nothing_mounted.tools.clear();
    let far = with_engine(|engine| engine.is_local = false);
    assert_eq!(plan(&nothing_mounted, &far).identity.host, HostUid::AsInside);
}

#[test]
fn an_engine_elsewhere_is_given_nothing_of_this_machine() {
    let far = with_engine(|engine| engine.is_local = false);
    let refused = |spec: &RunSpec| {
        let error = docker().plan(spec, &far).unwrap_err();
        let PlanError::Unsupported { what, why, .. } = error else { panic!("{error}") };
        (what, why)
    };
    let (what, why) = refused(&spec());
    assert!(what.contains("/srv/data") && why.contains("another machine"), "{what}: {why}");
    // A workspace is sent, and its changes come back: for review, or to be applied at the end.
    let mut alone = spec();
    alone.mounts.clear();
    alone.tools.clear();
    for mode in [MountMode::Rw, MountMode::Overlay, MountMode::Ro] {
        alone.workspace.as_mut().unwrap().mode = mode;
        let plan = docker().plan(&alone, &far).unwrap();
        let is_sent = |mount: &PlannedMount| matches!(mount.what, MountKind::Sent { .. });
        assert_eq!(plan.mounts.iter().filter(|mount| is_sent(mount)).count(), 1);
    }
    alone.git_directory = Some(Box::new(crate::support::git_directory()));
    let (what, why) = refused(&alone);
    assert!(what.contains("/srv/repo/.git") && why.contains("sandbox.git=off"), "{what}: {why}");
}

#[test]
fn a_runtime_that_the_engine_does_not_have_is_refused_with_its_list() {
    let mut wanted = spec();
    wanted.oci_runtime = Some("runsc".to_owned());
    assert_eq!(plan(&wanted, &root()).oci_runtime.as_deref(), Some("runsc")); // the control
    wanted.oci_runtime = Some("kata".to_owned());
    let refused = docker().plan(&wanted, &root()).unwrap_err().to_string();
    assert!(refused.contains("kata") && refused.contains("runc, runsc"), "{refused}");
}

#[test]
fn the_posture_says_what_differs() {
    let enforced = |spec: &RunSpec, capabilities: &Capabilities, clause| {
        plan(spec, capabilities).posture.get(clause).is_enforced()
    };
    let mut read_only = spec();
    read_only.workspace.as_mut().unwrap().mode = MountMode::Ro;
    assert!(enforced(&read_only, &root(), Clause::FsSockets));
    assert!(!enforced(&read_only, &ordinary_user(), Clause::FsSockets));
    assert!(!enforced(&spec(), &root(), Clause::KernelSeparate));
    let mut gvisor = spec();
    gvisor.oci_runtime = Some("runsc".to_owned());
    assert!(enforced(&gvisor, &root(), Clause::KernelSeparate));
    assert!(enforced(&gvisor, &root(), Clause::FsMounts));
    assert!(!enforced(&gvisor, &ordinary_user(), Clause::FsMounts));
    let no_groups = with_engine(|engine| engine.without_groups = vec!["runsc".to_owned()]);
    assert!(enforced(&spec(), &no_groups, Clause::LimitMemory));
    assert!(!enforced(&gvisor, &no_groups, Clause::LimitMemory));
}

#[test]
fn what_an_engine_cannot_do_is_refused() {
    let refused = |change: fn(&mut RunSpec)| {
        let mut spec = spec();
        change(&mut spec);
        matches!(docker().plan(&spec, &root()), Err(PlanError::Unsupported { .. }))
    };
    assert!(!refused(|_| {}), "control: the unchanged spec is planned");
    assert!(refused(|spec| spec.user.uid = 2000));
    assert!(refused(|spec| {
        spec.rootfs = belljar_spec::Rootfs::Directory { path: "/srv/root".into() };
    }));
}

#[test]
fn an_overlay_is_planned_and_a_copy_is_told() {
    let mut overlay = spec();
    let trees = overlay.workspace.iter_mut().chain(&mut overlay.mounts);
    trees.for_each(|tree| tree.mode = MountMode::Overlay);
    overlay.tools.clear();
    let posture =
        |capabilities: &Capabilities| docker().plan(&overlay, capabilities).unwrap().posture;
    for (capabilities, copied) in [(root(), false), (ordinary_user(), true)] {
        let posture = posture(&capabilities);
        assert!(posture.get(Clause::FsSockets).is_enforced());
        assert_eq!(posture.get(Clause::FsMounts).reason().contains("copied"), copied);
    }
}

/// A group that the engine does not have, or that cannot be read from here, is not claimed; the memory of each
/// process is limited instead, which is read back. gVisor limits no mapping by it.
#[test]
fn memory_without_a_group_is_each_processes_own() {
    let mut without = root();
    let weakness = belljar_backend::Weakness { why: "no group".to_owned(), fix: "-".to_owned() };
    without.limits.iter_mut().for_each(|(_, held)| *held = Err(weakness.clone()));
    let has_data = |plan: &Plan| plan.rlimits.iter().any(|limit| limit.name == "data");
    let weaker = plan(&spec(), &without);
    assert!(has_data(&weaker));
    assert_eq!(weaker.posture.get(Clause::LimitMemory).status(), "weaker");
    assert_eq!(weaker.posture.get(Clause::LimitPids).status(), "absent");
    assert_eq!(weaker.limits_of_groups().memory, None);
    let held = plan(&spec(), &root());
    assert!(!has_data(&held) && held.posture.get(Clause::LimitMemory).is_enforced());
    assert_eq!(held.limits_of_groups().memory, spec().limits.memory);
    let mut gvisor = spec();
    gvisor.oci_runtime = Some("runsc".to_owned());
    let absent = plan(&gvisor, &without);
    assert!(!has_data(&absent));
    assert_eq!(absent.posture.get(Clause::LimitMemory).status(), "absent");
    // On another machine nobody can compare kernels, either.
    let elsewhere = with_engine(|engine| engine.is_local = false);
    gvisor.workspace = None;
    gvisor.mounts.clear();
    gvisor.tools.clear();
    assert_eq!(plan(&gvisor, &elsewhere).posture.get(Clause::KernelSeparate).status(), "absent");
}
