//! The jail's plan is pure data: the same input gives the same plan, whoever asks and on whatever host.
//! A changed snapshot is a changed boundary: look at it as such.

use crate::support::spec;
use belljar_backend::jail::Jail;
use belljar_backend::{Backend, Capabilities, ImageFacts, Weakness};
use belljar_spec::{
    Access, CgroupUse, Clause, DecidedBy, Enforcement, HostUid, MountKind, MountMode, Plan,
    PlannedMount, Rootfs, RunSpec, User,
};

fn root_with_cgroups() -> Capabilities {
    let held = |clause| (clause, Ok("cgroup v2, read back".to_owned()));
    Capabilities {
        version: "6.18".to_owned(),
        limits: [Clause::LimitMemory, Clause::LimitCpu, Clause::LimitPids].map(held).to_vec(),
        cgroup: CgroupUse::V2,
        may_choose_uids: true,
        landlock: 6,
        max_files: 1 << 20,
        engine: None,
        image: None,
    }
}

fn ordinary_user_without() -> Capabilities {
    let weakness =
        Weakness { why: "nothing is delegated".to_owned(), fix: "delegate it".to_owned() };
    let missing = |clause| (clause, Err(weakness.clone()));
    Capabilities {
        limits: [Clause::LimitMemory, Clause::LimitCpu, Clause::LimitPids].map(missing).to_vec(),
        cgroup: CgroupUse::None,
        may_choose_uids: false,
        ..root_with_cgroups()
    }
}

fn plan(spec: &RunSpec, capabilities: &Capabilities) -> Plan {
    Jail.plan(spec, capabilities).unwrap()
}

#[test]
fn as_root() {
    insta::assert_json_snapshot!(plan(&spec(), &root_with_cgroups()));
}

#[test]
fn as_an_ordinary_user() {
    insta::assert_json_snapshot!(plan(&spec(), &ordinary_user_without()));
}

#[test]
fn from_a_directory_and_without_a_workspace() {
    let mut spec = spec();
    spec.rootfs = Rootfs::Directory { path: "/srv/root".into() };
    spec.workspace = None;
    insta::assert_json_snapshot!(plan(&spec, &root_with_cgroups()));
}

fn image() -> ImageFacts {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    ImageFacts {
        name: "tools:1".into(),
        id: format!("sha256:{}", "1".repeat(64)),
        digest: Some(format!("tools@sha256:{}", "1".repeat(64))),
        architecture: "amd64".into(),
        env: vec![("SEEN".into(), "yes".into()), ("LD_PRELOAD".into(), "/evil.so".into())],
        volumes: words(&["/data", "/data/"]),
        layers: vec![format!("sha256:{}", "2".repeat(64)), format!("sha256:{}", "3".repeat(64))],
        working_dir: "/srv".into(),
        entrypoint: words(&["/enter"]),
        cmd: words(&["by", "default"]),
        user: Some(User { uid: 33, gid: 34 }),
        shells: Some(words(&["/usr/bin/bash"])),
    }
}

fn from_image() -> (RunSpec, Capabilities) {
    let capabilities = Capabilities { image: Some(image()), ..root_with_cgroups() };
    (RunSpec { rootfs: Rootfs::Image, workspace: None, ..spec() }, capabilities)
}

#[test]
fn from_an_image() {
    let (spec, capabilities) = from_image();
    let plan = plan(&spec, &capabilities);
    insta::assert_json_snapshot!(plan);
    assert_eq!(plan.shell.as_deref(), Some("/usr/bin/bash"));
}

#[test]
fn an_ordinary_users_image_has_one_id_and_the_posture_says_so() {
    let (spec, capabilities) = from_image();
    assert_eq!(plan(&spec, &capabilities).identity.host, HostUid::BlockPerRun);
    let user = Capabilities { image: Some(image()), ..ordinary_user_without() };
    let plan = plan(&spec, &user);
    assert_eq!(plan.identity.host, HostUid::Caller);
    let why = plan.posture.get(Clause::IdUnique).reason().to_owned();
    assert!(why.contains("owns every file of the image"), "{why}");
}

#[test]
fn an_image_decides_what_is_left_to_it() {
    let (mut spec, capabilities) = from_image();
    let command = |spec: &RunSpec| {
        let command = plan(spec, &capabilities).command;
        let argv: Vec<String> = command.argv.iter().map(ToString::to_string).collect();
        (argv.join(" "), command.workdir.to_string())
    };
    spec.command = vec!["make".into(), "test".into()];
    spec.workdir = "/home/agent".into();
    assert_eq!(command(&spec), ("/enter make test".into(), "/home/agent".into()));
    spec.image_defaults.workdir = DecidedBy::Image;
    assert_eq!(command(&spec), ("/enter make test".into(), "/srv".into()));
    spec.image_defaults.entrypoint = Some(vec!["sh".into(), "-c".into()]);
    assert_eq!(command(&spec).0, "sh -c make test");
    spec.image_defaults.entrypoint = Some(Vec::new());
    assert_eq!(command(&spec).0, "make test");
    spec.command.clear();
    assert_eq!(command(&spec).0, "", "kept for exec");
    spec.image_defaults.command = DecidedBy::Image;
    assert_eq!(command(&spec).0, "", "another entrypoint, even none, drops the image's command");
    spec.image_defaults.entrypoint = None;
    assert_eq!(command(&spec).0, "/enter by default");
}

#[test]
fn an_image_that_asks_for_too_much_is_refused() {
    let (spec, capabilities) = from_image();
    let refused = |image: ImageFacts| {
        let capabilities = Capabilities { image: Some(image), ..capabilities.clone() };
        Jail.plan(&spec, &capabilities).unwrap_err().to_string()
    };
    let volumes = (0..65).map(|number| format!("/v{number}")).collect();
    let why = refused(ImageFacts { volumes, ..image() });
    assert!(why.contains("65 volumes"), "{why}");
    let why = refused(ImageFacts { volumes: vec!["/home/agent/x".into()], ..image() });
    assert!(why.contains("/home/agent/x"), "{why}");
    let without = Capabilities { image: None, ..capabilities.clone() };
    Jail.plan(&spec, &without).unwrap_err();
    plan(&spec, &capabilities);
}

#[test]
fn the_same_input_gives_the_same_hash_and_another_input_another() {
    let first = plan(&spec(), &root_with_cgroups());
    assert_eq!(first.hash(), plan(&spec(), &root_with_cgroups()).hash());
    let mut other = spec();
    other.mounts[0].mode = MountMode::Rw;
    assert_ne!(first.hash(), plan(&other, &root_with_cgroups()).hash());
    assert_eq!(spec().hash(), spec().hash());
    assert_ne!(spec().hash(), other.hash());
}

#[test]
fn an_overlay_is_planned_and_its_sockets_and_renames_are_told() {
    let mut overlay = spec();
    overlay.workspace.iter_mut().for_each(|tree| tree.mode = MountMode::Overlay);
    overlay.hide = vec![".env".into()];
    let planned = plan(&overlay, &ordinary_user_without());
    let is_layered = |mount: &&PlannedMount| {
        matches!(mount.what, MountKind::Bind { access: Access::Layered, .. })
    };
    assert_eq!(planned.mounts.iter().filter(is_layered).count(), 1);
    assert!(planned.hidden.iter().all(|path| path.as_path().is_absolute()));
    assert_eq!(planned.hidden.len(), 1);
    assert!(planned.posture.get(Clause::FsSockets).is_enforced());
    assert!(planned.posture.get(Clause::FsMounts).reason().contains("EXDEV"));
    // The controls.
    assert!(!plan(&spec(), &ordinary_user_without()).posture.get(Clause::FsSockets).is_enforced());
    let as_root = plan(&overlay, &root_with_cgroups()).posture;
    assert!(!as_root.get(Clause::FsMounts).reason().contains("EXDEV"));
}

#[test]
fn limits_that_the_host_cannot_hold_are_weaker_and_say_what_would_help() {
    let posture = plan(&spec(), &ordinary_user_without()).posture;
    assert!(matches!(posture.get(Clause::LimitMemory), Enforcement::Weaker { fix: Some(_), .. }));
    // Counted in the run's own user namespace, so it needs no group.
    assert!(posture.get(Clause::LimitPids).is_enforced());
    assert!(plan(&spec(), &root_with_cgroups()).posture.get(Clause::LimitMemory).is_enforced());
}

/// An ordinary user on a host whose control groups are mounted, and none of them its own.
fn ordinary_user_on_v1() -> Capabilities {
    Capabilities { cgroup: CgroupUse::V1, ..ordinary_user_without() }
}

/// Which mechanism holds a limit is told by one list, the same that the attestation reads back: a text that
/// names an rlimit has it there, and one that names a control group has none.
#[test]
fn a_posture_names_the_rlimits_that_are_set_and_no_others() {
    let value = |plan: &Plan, name: &str| {
        plan.rlimits.iter().find(|limit| limit.name == name).map(|limit| limit.value)
    };
    let limits = spec().limits;
    for without in [ordinary_user_without(), ordinary_user_on_v1()] {
        let plan = plan(&spec(), &without);
        assert_eq!(value(&plan, "data"), limits.memory, "{:?}", without.cgroup);
        assert_eq!(value(&plan, "nproc"), limits.pids.map(u64::from));
        assert!(plan.posture.get(Clause::LimitMemory).reason().contains("RLIMIT_DATA"));
        assert!(plan.posture.get(Clause::LimitPids).reason().contains("RLIMIT_NPROC"));
        let of_groups = plan.limits_of_groups();
        assert_eq!((of_groups.memory, of_groups.pids), (None, None));
    }
    let held = plan(&spec(), &root_with_cgroups());
    assert_eq!((value(&held, "data"), value(&held, "nproc")), (None, None));
    let of_groups = held.limits_of_groups();
    assert_eq!((of_groups.memory, of_groups.pids), (limits.memory, limits.pids));
    // One of them: what the group has is the group's, and the rest is each process's.
    let mut only_pids = ordinary_user_on_v1();
    only_pids.limits[2].1 = Ok("cgroup v1 pids controller, read back".to_owned());
    let plan = plan(&spec(), &only_pids);
    assert_eq!((value(&plan, "data"), value(&plan, "nproc")), (limits.memory, None));
    let of_groups = plan.limits_of_groups();
    assert_eq!((of_groups.memory, of_groups.pids), (None, limits.pids));
}

#[test]
fn a_limit_that_nobody_set_is_absent() {
    let mut spec = spec();
    (spec.limits.memory, spec.limits.pids) = (None, None);
    for capabilities in [root_with_cgroups(), ordinary_user_on_v1()] {
        let plan = plan(&spec, &capabilities);
        for clause in [Clause::LimitMemory, Clause::LimitPids, Clause::LimitCpu] {
            assert_eq!(plan.posture.get(clause).status(), "absent", "{clause}");
        }
        assert!(plan.rlimits.iter().all(|limit| limit.name != "data" && limit.name != "nproc"));
    }
}

#[test]
fn what_names_a_worktrees_repository_is_shielded_and_its_control_files_can_be_allowed() {
    let mut wanted = spec();
    wanted.manifest = None;
    wanted.allow_control = vec![".git/config".into(), ".git".into(), ".envrc".into()];
    let before = plan(&wanted, &root_with_cgroups());
    wanted.git_directory = Some(Box::new(crate::support::git_directory()));
    let with_git = plan(&wanted, &root_with_cgroups());
    assert_eq!(before.shielded, []);
    for name in ["worktrees/own/commondir", "worktrees/own/gitdir", "logs/HEAD", "refs/bisect"] {
        let path = std::path::Path::new("/srv/repo/.git").join(name);
        assert!(with_git.shielded.contains(&path.as_path().into()), "{name}");
    }
    let added = &with_git.allow_control[before.allow_control.len()..];
    assert_eq!(added, ["/srv/repo/.git/config".into()], ".git is the file in the workspace");
}
