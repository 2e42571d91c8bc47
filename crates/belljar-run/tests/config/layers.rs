//! Layers from real files, variables and flags.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use crate::support::{Flags, World};
use belljar_run::config::{self, ConfigError, ConfigFiles, ManifestSource, ReadError};
use belljar_spec::{Clause, MountMode, Origin, OsText, Terminal};

#[test]
fn without_any_file_the_current_directory_is_the_workspace() {
    let world = World::new();
    let loaded = world.load(Flags::default()).unwrap();
    let workspace = loaded.spec.workspace.unwrap();
    assert_eq!(workspace.source, world.project().into());
    assert_eq!((workspace.target, workspace.mode), ("/workspace".into(), MountMode::Rw));
    assert_eq!(loaded.manifest, None);
    assert!(loaded.spec.limits.memory.is_some_and(|bytes| bytes > 1 << 20));
    assert_eq!(loaded.warnings, Vec::<String>::new());
}

#[test]
fn the_nearest_manifest_counts_and_its_directory_is_the_workspace() {
    let world = World::new();
    world.write("user/belljar.toml", "[sandbox]\nname = 'far'\n");
    let sub = world.project().join("sub");
    let load = || {
        let invocation = world.invocation_in(&sub, Flags::default());
        config::load(&invocation, &world.home).unwrap()
    };
    assert_eq!(load().spec.name.as_deref(), Some("far"), "the home directory is the last");
    let near = world.manifest("[sandbox]\nname = 'near'\n");
    world.trust(&near); // it is used instead of another one
    let loaded = load();
    assert_eq!(loaded.spec.name.as_deref(), Some("near"));
    assert_eq!(loaded.manifest.as_deref(), Some(near.as_path()));
    assert_eq!(loaded.spec.workspace.unwrap().source, world.project().into());
    assert_eq!(loaded.spec.manifest, Some(near.into()));
}

#[test]
fn nothing_above_the_home_directory_counts() {
    let world = World::new();
    world.write("belljar.toml", "[sandbox]\nname = 'above'\n");
    assert_eq!(world.load(Flags::default()).unwrap().spec.name, None);
    let outside = world.root().join("other");
    fs::create_dir(&outside).unwrap();
    let invocation = world.invocation_in(&outside, Flags::default());
    let loaded = config::load(&invocation, &world.home).unwrap();
    assert_eq!(loaded.spec.name.as_deref(), Some("above"), "elsewhere the search goes on");
}

#[test]
fn every_layer_has_its_origin() {
    let mut world = World::new();
    let origin = |world: &World, flags: Flags| {
        let loaded = world.load(flags).unwrap();
        let origin = loaded.settings.origin("limits.pids").unwrap().clone();
        (loaded.spec.limits.pids.unwrap(), origin)
    };
    assert_eq!(origin(&world, Flags::default()), (2048, Origin::BuiltIn));
    let system = world.write("etc/config.toml", "[limits]\npids = 11\n");
    assert_eq!(origin(&world, Flags::default()), (11, Origin::System(system.into())));
    let user = world.write("user/.config/belljar/config.toml", "[limits]\npids = 12\n");
    assert_eq!(origin(&world, Flags::default()), (12, Origin::User(user.into())));
    let manifest = world.manifest("[limits]\npids = 3\n");
    assert_eq!(origin(&world, Flags::default()), (3, Origin::Manifest(manifest.into())));
    world.env.insert("BELLJAR_LIMITS_PIDS".into(), "4".into());
    let variable = Origin::Variable("BELLJAR_LIMITS_PIDS".into());
    assert_eq!(origin(&world, Flags::default()), (4, variable));
    let assigned = Flags::default().with("-c", "limits.pids=5");
    assert_eq!(origin(&world, assigned.clone()), (5, Origin::Flag("-c".into())));
    let flag = assigned.with("--pids-limit", "6");
    assert_eq!(origin(&world, flag), (6, Origin::Flag("--pids-limit".into())));
}

#[test]
fn config_files_can_be_left_out_and_the_ceiling_cannot() {
    let world = World::new();
    world.write("etc/config.toml", "[limits]\npids = 4\n");
    world.write("user/.config/belljar/config.toml", "[limits]\npids = 5\n");
    world.manifest("[limits]\npids = 3\n");
    world.write("etc/policy.toml", "[limits]\npids = 100\n");
    let mut invocation = world.invocation(Flags::default());
    invocation.source = ManifestSource::None;
    invocation.config_files = ConfigFiles::Ignore;
    let pids = config::load(&invocation, &world.home).unwrap().spec.limits.pids;
    assert_eq!(pids, Some(100), "the built-in value, lowered to the ceiling");
    let beyond = Flags::default().with("--pids-limit", "101");
    let refused = world.refused(beyond);
    assert!(refused.contains("limits.pids = 101 (set by --pids-limit)"), "{refused}");
    assert!(refused.contains("policy.toml") && refused.contains("at most 100"), "{refused}");
    let allowed = Flags::default().with("--pids-limit", "100");
    assert!(world.load(allowed).is_ok());
}

#[test]
fn a_broken_ceiling_stops_every_run() {
    let world = World::new();
    world.write("etc/policy.toml", "backend = ['jail']\n");
    assert!(world.refused(Flags::default()).contains("did you mean \"backends\"?"));
}

#[test]
fn a_wrong_key_is_reported_with_file_line_and_nearest() {
    let world = World::new();
    let manifest = world.manifest("# mine\n[limits]\nmemroy = '1g'\n");
    let refused = world.refused(Flags::default());
    let want = format!(
        "{}:3:1: limits.memroy: unknown key \"memroy\"; did you mean \"memory\"?",
        manifest.display()
    );
    assert_eq!(refused, want);
}

#[test]
fn only_a_plain_small_file_is_a_manifest() {
    let world = World::new();
    let real = world.write("user/real.toml", "[sandbox]\nname = 'real'\n");
    let path = world.project().join("belljar.toml");
    symlink(&real, &path).unwrap();
    let linked = world.load(Flags::default());
    assert!(matches!(linked, Err(ConfigError::Read(ReadError::Link(_)))));
    let mut named = world.invocation(Flags::default());
    named.source = ManifestSource::File("belljar.toml".into());
    let loaded = config::load(&named, &world.home).unwrap();
    assert_eq!(loaded.spec.name.as_deref(), Some("real"), "the user may name a link");

    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let directory = world.load(Flags::default());
    assert!(matches!(directory, Err(ConfigError::Read(ReadError::NotRegular(_)))));
    fs::remove_dir(&path).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    let fifo = world.load(Flags::default());
    assert!(matches!(fifo, Err(ConfigError::Read(ReadError::NotRegular(_)))));
    fs::remove_file(&path).unwrap();

    world.manifest(&"#".repeat(1 << 20));
    assert!(world.load(Flags::default()).is_ok());
    world.manifest(&"#".repeat((1 << 20) + 1));
    let large = world.load(Flags::default());
    assert!(matches!(large, Err(ConfigError::Read(ReadError::TooLarge(_)))));
}

#[test]
fn a_named_manifest_must_be_there() {
    let world = World::new();
    let mut invocation = world.invocation(Flags::default());
    invocation.source = ManifestSource::File("other.toml".into());
    let missing = config::load(&invocation, &world.home);
    assert!(matches!(missing, Err(ConfigError::NoManifest(_))));
    world.write("user/project/other.toml", "");
    assert!(config::load(&invocation, &world.home).is_ok());
}

#[test]
fn flags_become_the_run() {
    let world = World::new();
    world.write("user/project/vars", "FROM_FILE=f\nHOME\n");
    let flags = Flags::default()
        .with("--backend", "docker")
        .with("--volume", "data:/data")
        .with("--volume", "/srv/x:/x:rw")
        .with("--mount", "type=tmpfs,dst=/t,tmpfs-size=1m")
        .with("--tmpfs", "/u:size=2m")
        .with("--tool", "~/.cargo")
        .with("--workspace", "sub:overlay")
        .with("--workdir", "deep")
        .with("--hide", ".env")
        .with("--allow-source", "~/.ssh")
        .with("--user", "1234:5678")
        .with("--allow-host", "a.example")
        .with("--memory", "2g")
        .with("--cpus", "1.5")
        .with("--disk", "none")
        .with("--timeout", "90")
        .with("--stop-timeout", "0")
        .with("--env", "A=b=c")
        .with("--env", "BELLJAR_NOT_HERE")
        .with("--env-file", "vars")
        .with("--name", "job")
        .with("--label", "team=a")
        .with("--label", "bare")
        .with("--require", "id.unique")
        .with("--waive", "limit.memory=a test")
        .terminal(Terminal::Pty);
    let loaded = world.load(flags).unwrap();
    let spec = &loaded.spec;
    assert_eq!(spec.backend.name(), "docker");
    let mounts: Vec<_> = spec.mounts.iter().map(|m| (m.source.clone(), m.mode)).collect();
    let data = OsText::from(world.project().join("data"));
    assert_eq!(mounts, [(data, MountMode::Ro), ("/srv/x".into(), MountMode::Rw)]);
    assert_eq!(spec.tmpfs.iter().map(|t| t.size).collect::<Vec<_>>(), [1 << 20, 2 << 20]);
    assert_eq!(spec.tools, [world.user().join(".cargo").into()]);
    assert_eq!(spec.workspace.as_ref().unwrap().mode, MountMode::Overlay);
    assert_eq!(spec.workdir, "/workspace/deep".into());
    assert_eq!(spec.hide, [".env".into()]);
    assert_eq!(spec.allow_source, [world.user().join(".ssh").into()]);
    assert_eq!((spec.user.uid, spec.user.gid), (1234, 5678));
    assert_eq!(spec.network_allow, ["a.example"]);
    assert_eq!(spec.limits.memory, Some(2 << 30));
    assert_eq!(spec.limits.millicpus, Some(1500));
    assert_eq!(spec.limits.disk, None);
    assert_eq!(spec.limits.time.unwrap().as_secs(), 90);
    assert!(spec.limits.stop_timeout.is_zero());
    assert_eq!(spec.env["A"].to_str(), Some("b=c"));
    assert_eq!(spec.env["FROM_FILE"].to_str(), Some("f"));
    assert_eq!(spec.env["HOME"], world.user().into(), "the file passes the host's on");
    assert_eq!(spec.labels["team"], "a");
    assert_eq!(spec.labels["bare"], "");
    assert!(spec.required.contains(&Clause::IdUnique));
    assert!(spec.required.contains(&Clause::LimitMemory), "a waiver does not unset it");
    assert_eq!(spec.waivers.len(), 1);
    assert_eq!(loaded.warnings.len(), 1, "{:?}", loaded.warnings);
    assert!(loaded.warnings[0].contains("BELLJAR_NOT_HERE"));
}

#[test]
fn wrong_flags_are_named() {
    let world = World::new();
    let cases: Vec<(Flags, &str)> = vec![
        (
            Flags::default().with("--memory", "lots"),
            "--memory lots: limits.memory: \"lots\" is not a size",
        ),
        (Flags::default().with("--pids-limit", "x"), "--pids-limit x: limits.pids: "),
        (Flags::default().with("--user", "0"), "is root"),
        (
            Flags::default().with("--backend", "x"),
            "--backend x: sandbox.backend: there is no backend",
        ),
        (Flags::default().with("--volume", "x"), "--volume: \"x\" has no target"),
        (Flags::default().with("--volume", "x:/etc"), "sandbox.mounts[0]: the target \"/etc\""),
        (Flags::default().with("--mount", "x"), "--mount: "),
        (Flags::default().with("--tmpfs", "/t:x"), "--tmpfs: "),
        (Flags::default().with("--env", "=x"), "--env: a variable's name is empty"),
        (Flags::default().with("--pass-env", "A=b"), "--pass-env: "),
        (
            Flags::default().with("--waive", "fs.quota"),
            "--waive: the waiver of fs.quota has no reason",
        ),
        (Flags::default().with("--waive", "fs.quotas=x"), "did you mean \"fs.quota\"?"),
        (Flags::default().with("--waive", "all=x"), "host backend alone"),
        (Flags::default().with("--require", "nothing"), "--require: there is no clause"),
        (
            Flags::default().with("--network", "host"),
            "--network: takes only \"none\", not \"host\"",
        ),
        (Flags::default().with("--network", "none").with("--allow-host", "a"), "contradict"),
        (Flags::default().with("--label", "=x"), "--label: "),
        (Flags::default().with("--env-file", "none-here"), "does not exist"),
        (Flags::default().with("-c", "limits.x=1"), "-c limits.x=1: "),
        (Flags::default().with("--hide", "../x"), "--hide: "),
        (Flags::default().with("--workdir", ""), "--workdir: the path is empty"),
    ];
    for (flags, want) in cases {
        let refused = world.refused(flags);
        assert!(refused.contains(want), "{refused}\nwanted {want}");
    }
    assert!(world.load(Flags::default()).is_ok());
}

#[test]
fn paths_that_are_not_utf8_work_from_the_flag_to_the_run() {
    let world = World::new();
    let odd = world.project().join(OsStr::from_bytes(b"w\xff"));
    fs::create_dir(&odd).unwrap();
    let mut volume = OsString::from("d");
    volume.push(OsStr::from_bytes(b"\xfe:/x\xfd:rw"));
    let flags = Flags::default().with("--volume", volume);
    let loaded = config::load(&world.invocation_in(&odd, flags), &world.home).unwrap();
    assert_eq!(loaded.spec.workspace.unwrap().source, odd.as_path().into());
    assert_eq!(
        loaded.spec.mounts[0].source.as_bytes(),
        odd.join(OsStr::from_bytes(b"d\xfe")).as_os_str().as_bytes()
    );
    assert_eq!(loaded.spec.mounts[0].target.as_bytes(), b"/x\xfd");
}

#[test]
fn a_flag_takes_the_network_away_again() {
    let world = World::new();
    world.write("user/.config/belljar/config.toml", "[network]\nallow = ['a.example']\n");
    assert_eq!(world.load(Flags::default()).unwrap().spec.network_allow, ["a.example"]);
    let none = Flags::default().with("--network", "none");
    assert!(world.load(none).unwrap().spec.network_allow.is_empty());
}

#[test]
fn a_variable_that_is_wrong_stops_the_run() {
    let mut world = World::new();
    world.env.insert("BELLJAR_LIMIT_PIDS".into(), "4".into());
    assert!(world.refused(Flags::default()).contains("did you mean BELLJAR_LIMITS_PIDS?"));
    world.env.remove(OsStr::new("BELLJAR_LIMIT_PIDS"));
    world.env.insert("BELLJAR_SANDBOX_NAME".into(), OsStr::from_bytes(b"\xff").to_owned());
    assert!(world.refused(Flags::default()).contains("BELLJAR_SANDBOX_NAME is not valid UTF-8"));
    world.env.remove(OsStr::new("BELLJAR_SANDBOX_NAME"));
    world.env.insert("BELLJAR_EXE".into(), OsStr::from_bytes(b"\xff").to_owned());
    assert!(world.load(Flags::default()).is_ok());
}
