//! What plans are made from.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use belljar_spec::{
    BackendChoice, GitDirectory, GitPart, Limits, Mount, MountMode, OsText, RUN_SPEC_VERSION,
    Rootfs, RunSpec, Stdin, Terminal, Tmpfs, User,
};

pub(crate) fn spec() -> RunSpec {
    RunSpec {
        v: RUN_SPEC_VERSION,
        backend: BackendChoice::Auto,
        command: vec!["make".into(), "test".into()],
        name: None,
        labels: BTreeMap::new(),
        workspace: Some(Mount {
            source: "/home/ann/project".into(),
            target: "/workspace".into(),
            mode: MountMode::Rw,
        }),
        workdir: "/workspace".into(),
        rootfs: Rootfs::Host,
        image_defaults: Default::default(),
        image: "debian:stable-slim".to_owned(),
        tools: vec!["/home/ann/.cargo".into()],
        mounts: vec![Mount {
            source: "/srv/data".into(),
            target: "/data".into(),
            mode: MountMode::Ro,
        }],
        tmpfs: vec![Tmpfs { target: "/scratch".into(), size: 64 << 20 }],
        hide: Vec::new(),
        allow_control: Vec::new(),
        allow_source: Vec::new(),
        manifest: Some("/home/ann/project/belljar.toml".into()),
        env: BTreeMap::from([("PATH".to_owned(), OsText::from("/usr/bin:/bin"))]),
        user: User::default(),
        network_allow: Vec::new(),
        limits: Limits {
            memory: Some(2 << 30),
            millicpus: None,
            pids: Some(512),
            time: Some(Duration::from_secs(90)),
            idle: None,
            output: 256 << 20,
            disk: Some(10 << 30),
            stop_timeout: Duration::from_secs(10),
        },
        stdin: Stdin::Passed,
        terminal: Terminal::None,
        required: BTreeSet::new(),
        waivers: Vec::new(),
        retention: Default::default(),
        fallback: Vec::new(),
        pull: Default::default(),
        oci_runtime: None,
        egress: belljar_spec::egress::EgressSpec::default(),
        agent: None,
        terminal_agent: None,
        shell: None,
        git_identity: None,
        git_directory: None,
        commands: Default::default(),
        untrusted_tree: None,
        denied_calls: Default::default(),
    }
}

/// The repository of a workspace that is a linked worktree.
pub(crate) fn git_directory() -> GitDirectory {
    GitDirectory {
        link: "/srv/worktree/.git".into(),
        link_hash: String::new(),
        path: "/srv/repo/.git".into(),
        part: GitPart::Linked { name: "own".into() },
    }
}
