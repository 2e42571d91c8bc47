//! Functions that the plans of all backends share.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use belljar_spec::{
    Access, BackendName, Clause, CommandPlan, DecidedBy, DeniedCalls, Enforcement, MountKind,
    MountMode, OsText, PLAIN_SHELL, PlannedMount, Presence, Rlimit, RunSpec, SHELL_VARIABLE,
    Source, Tmpfs, Tree,
};

use crate::backend::{Capabilities, ImageFacts, Weakness};
use crate::error::PlanError;
use crate::image_environment::merge;

pub(crate) const HOSTNAME: &str = "belljar";
/// Where `$HOME` is inside.
pub(crate) const HOME: &str = "/home/agent";
pub(crate) const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];
pub(crate) const TMP_SIZE: u64 = 1 << 30;
pub(crate) const SHM_SIZE: u64 = 256 << 20;
/// Sockets and pid files.
pub(crate) const RUN: &str = "/run";
pub(crate) const RUN_SIZE: u64 = 64 << 20;
/// What a volume of an image becomes: gone with the sandbox.
const VOLUME_SIZE: u64 = 1 << 30;
/// Of all volumes of an image together.
const ALL_VOLUMES_SIZE: u64 = 4 << 30;

/// Knobs and facts of the host's kernel in `/proc`: readable where programs need them.
pub(crate) const PROC_READ_ONLY: &[&str] =
    &["/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/sysrq-trigger"];
/// What describes the host and could be read without being root. Files that only root can open need no
/// cover: no process inside is root, here or outside.
pub(crate) const PROC_MASKED: &[&str] = &[
    "/proc/cmdline",
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/kallsyms",
    "/proc/modules",
    "/proc/sched_debug",
    "/proc/latency_stats",
    "/proc/acpi",
    "/proc/asound",
    "/proc/scsi",
];

/// The flag and the key for one thing.
pub(crate) const TRACING: &str = "--trace-denied (sandbox.trace_denied)";

/// What the manifest can say and this version does not do is an error, never silently less.
pub fn refuse_what_is_not_there(spec: &RunSpec, backend: BackendName) -> Result<(), PlanError> {
    let unsupported = |what: &str, why: &str| {
        let (what, why) = (what.to_owned(), why.to_owned());
        Err(PlanError::Unsupported { backend, what, why })
    };
    if backend == BackendName::Host && has_overlay(spec) {
        return unsupported("the mount mode \"overlay\"", "there is no boundary");
    }
    if backend == BackendName::Host && spec.denied_calls == DeniedCalls::Recorded {
        return unsupported(TRACING, "there is no filter that refuses calls");
    }
    if backend == BackendName::Host && !spec.hide.is_empty() {
        return unsupported("sandbox.hide", "there is no boundary");
    }
    Ok(())
}

pub(crate) fn has_overlay(spec: &RunSpec) -> bool {
    let mut mounts = spec.workspace.iter().chain(&spec.mounts);
    mounts.any(|mount| mount.mode == MountMode::Overlay)
}

/// Whether the operator set the limit that one of the `limit.*` clauses on resources is about.
pub(crate) fn is_set(clause: Clause, spec: &RunSpec) -> bool {
    match clause {
        Clause::LimitMemory => spec.limits.memory.is_some(),
        Clause::LimitCpu => spec.limits.millicpus.is_some(),
        _ => spec.limits.pids.is_some(),
    }
}

/// Where no control group holds the memory: what RLIMIT_DATA is worth, which the attestation reads back.
pub(crate) fn memory_of_each_process(weakness: &Weakness) -> Enforcement {
    Enforcement::weaker(format!(
        "RLIMIT_DATA limits each process's private memory; shared memory and the whole run are not limited: {}",
        weakness.why
    ))
    .with_fix(weakness.fix.clone())
}

/// A limit that is asked for has to hold, unless it is waived; this one is checked every few seconds on most backends.
pub(crate) const SET_DISK: &str = "set one: --disk SIZE --waive fs.quota=REASON";

pub(crate) fn no_limit(clause: Clause) -> Enforcement {
    Enforcement::absent("no limit is set").with_fix(match clause {
        Clause::LimitMemory => "set one: --memory",
        Clause::LimitCpu => "set one: --cpus",
        _ => "set one: --pids-limit",
    })
}

/// Of a backend that starts no containers: a runtime that was asked for is never left out in silence.
pub(crate) fn refuse_runtime(spec: &RunSpec, backend: BackendName) -> Result<(), PlanError> {
    match &spec.oci_runtime {
        None => Ok(()),
        Some(runtime) => Err(PlanError::Unsupported {
            backend,
            what: format!("the runtime \"{}\"", belljar_spec::text::escape(runtime.as_bytes())),
            why: "a runtime is a container engine's".to_owned(),
        }),
    }
}

/// The trees and file systems that the operator named: parents before children, whatever the order they
/// were given in.
pub(crate) fn given(spec: &RunSpec) -> Vec<PlannedMount> {
    let mut given: Vec<PlannedMount> = spec
        .workspace
        .iter()
        .chain(&spec.mounts)
        .map(|mount| bind(&mount.source, &mount.target, access(mount.mode), Tree::User))
        .chain(spec.tmpfs.iter().map(tmpfs))
        .collect();
    given.sort_by_key(|mount| mount.target.as_path().components().count());
    given
}

/// Where on the host the names lie that the run is not to see.
pub(crate) fn hidden(spec: &RunSpec) -> Vec<OsText> {
    in_workspace(spec, &spec.hide)
}

/// Also in the repository elsewhere that the workspace's `.git` stands for.
pub(crate) fn allow_control(spec: &RunSpec) -> Vec<OsText> {
    let mut allowed = in_workspace(spec, &spec.allow_control);
    if let Some(git) = &spec.git_directory {
        let inside =
            spec.allow_control.iter().filter_map(|name| name.as_path().strip_prefix(".git").ok());
        // `.git` alone is the file that names the repository, and not all of that.
        let inside = inside.filter(|inside| !inside.as_os_str().is_empty());
        allowed.extend(inside.map(|inside| OsText::from(git.path.as_path().join(inside))));
    }
    allowed
}

/// Where on the host the files and directories lie that the run may read and not write. What other worktrees a
/// repository has is looked up when the run is bound.
pub(crate) fn shielded(spec: &RunSpec) -> Vec<OsText> {
    let in_git = spec.git_directory.iter().flat_map(|git| {
        let named = git.part.named_below().into_iter();
        named.map(|name| OsText::from(git.path.as_path().join(name)))
    });
    spec.manifest.iter().cloned().chain(in_git).collect()
}

fn in_workspace(spec: &RunSpec, names: &[OsText]) -> Vec<OsText> {
    let Some(workspace) = &spec.workspace else { return Vec::new() };
    let root = workspace.source.as_path();
    names.iter().map(|name| OsText::from(root.join(name.as_path()))).collect()
}

pub(crate) fn run_home() -> PlannedMount {
    PlannedMount {
        target: OsText::from(HOME),
        what: MountKind::Bind {
            source: Source::RunHome,
            access: Access::Writable,
            presence: Presence::Required,
            tree: Tree::Own,
        },
    }
}

pub(crate) fn tools(spec: &RunSpec) -> impl Iterator<Item = PlannedMount> {
    spec.tools.iter().map(|tool| bind(tool, tool, Access::ReadOnly, Tree::Tool))
}

pub(crate) fn bind(source: &OsText, target: &OsText, access: Access, tree: Tree) -> PlannedMount {
    let source = Source::Path { path: source.clone() };
    let presence = Presence::Required;
    PlannedMount {
        target: target.clone(),
        what: MountKind::Bind { source, access, presence, tree },
    }
}

pub(crate) fn tmpfs(tmpfs: &Tmpfs) -> PlannedMount {
    let what = MountKind::Tmpfs { size: tmpfs.size, mode: 0o1777 };
    PlannedMount { target: tmpfs.target.clone(), what }
}

fn access(mode: MountMode) -> Access {
    match mode {
        MountMode::Ro => Access::ReadOnly,
        MountMode::Rw => Access::Writable,
        MountMode::Overlay => Access::Layered,
    }
}

/// The run's own variables, and those that every run has.
pub(crate) fn environment(spec: &RunSpec) -> BTreeMap<String, OsText> {
    let mut env = crate::egress::environment(spec);
    let shell = spec.shell.as_deref().unwrap_or(PLAIN_SHELL); // until it is known which one there is
    env.entry(SHELL_VARIABLE.to_owned()).or_insert_with(|| shell.into());
    env
}

/// The command, with what is left to the image: entrypoint and default command, working directory, and those of its
/// variables that change nothing about what programs load.
pub(crate) fn command(spec: &RunSpec, image: Option<&ImageFacts>) -> CommandPlan {
    let env = environment(spec);
    CommandPlan {
        argv: argv(spec, image),
        env: match image {
            Some(image) => merge(&env, &image.env),
            None => env,
        },
        workdir: workdir(spec, image),
        stdin: spec.stdin,
        terminal: spec.terminal,
    }
}

/// As docker has it: the entrypoint, then the command or else the image's. Another entrypoint drops the image's command.
fn argv(spec: &RunSpec, image: Option<&ImageFacts>) -> Vec<OsText> {
    let defaults = &spec.image_defaults;
    let has_command = !spec.command.is_empty() || defaults.command == DecidedBy::Image;
    // A sandbox that waits for commands has none, and an agent's terminal is the agent's.
    if !has_command || spec.terminal_agent.is_some() {
        return spec.command.clone();
    }
    let of_image = |words: fn(&ImageFacts) -> &[String]| -> Vec<OsText> {
        let words = image.map_or(&[][..], words);
        words.iter().map(|word| OsText::from(word.as_str())).collect()
    };
    // In place of an image's: where there is none, the command is what the operator wrote.
    let given = image.and(defaults.entrypoint.as_ref());
    let mut argv = match given {
        Some(entrypoint) => entrypoint.clone(),
        None => of_image(|image| &image.entrypoint),
    };
    match (spec.command.is_empty(), given) {
        (false, _) => argv.extend_from_slice(&spec.command),
        (true, None) => argv.extend(of_image(|image| &image.cmd)),
        (true, Some(_)) => {}
    }
    argv
}

fn workdir(spec: &RunSpec, image: Option<&ImageFacts>) -> OsText {
    let left = image.filter(|_| spec.image_defaults.workdir == DecidedBy::Image);
    let wanted = left.and_then(|image| plain_path(&image.working_dir));
    wanted.map_or_else(|| spec.workdir.clone(), |wanted| OsText::from(wanted.as_str()))
}

/// An absolute path of an image, without dots and doubled slashes. Nothing if it is none.
fn plain_path(text: &str) -> Option<String> {
    let path = Path::new(text);
    let is_plain = path.is_absolute()
        && !text.contains('\0')
        && !path.components().any(|part| part == Component::ParentDir);
    let plain: PathBuf = path.components().collect();
    plain.to_str().filter(|_| is_plain).map(str::to_owned)
}

/// The image's volumes, each once and as a plain path.
pub(crate) fn volumes(image: &ImageFacts) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for volume in &image.volumes {
        // An engine would take nothing else for one either.
        all.extend(plain_path(volume).filter(|plain| plain != "/"));
    }
    all.sort();
    all.dedup();
    all
}

pub(crate) fn volume_in_a_tree(spec: &RunSpec, image: &ImageFacts) -> Option<(String, OsText)> {
    let given = spec.workspace.iter().chain(&spec.mounts).map(|mount| &mount.target);
    let home = OsText::from(HOME);
    let trees: Vec<&OsText> = given.chain(&spec.tools).chain([&home]).collect();
    image.volumes.iter().find_map(|volume| {
        let path = Path::new(volume);
        let tree =
            trees.iter().find(|tree| path.starts_with(tree.as_path()) && path != tree.as_path());
        tree.map(|tree| (volume.clone(), (*tree).clone()))
    })
}

/// An image's volume would be a tree that the plan does not name: it is memory instead. It is mounted before what the
/// plan has below it, or it would cover that.
pub(crate) fn add_volumes(mounts: &mut Vec<PlannedMount>, image: &ImageFacts) {
    let count = image.volumes.len().max(1) as u64;
    let size = VOLUME_SIZE.min(ALL_VOLUMES_SIZE / count);
    for volume in &image.volumes {
        let target = OsText::from(volume.as_str());
        if mounts.iter().all(|mount| mount.target != target) {
            let is_below = |mount: &PlannedMount| mount.target.as_path().starts_with(volume);
            let at = mounts.iter().position(is_below).unwrap_or(mounts.len());
            mounts.insert(at, tmpfs(&Tmpfs { target, size }));
        }
    }
}

/// What every process gets, whatever holds the limits on the whole tree.
pub(crate) fn rlimits_of_all(capabilities: &Capabilities) -> Vec<Rlimit> {
    vec![
        // 1 and not 0: with 0 the kernel would still start a core handler on the host.
        rlimit("core", 1),
        rlimit("nofile", capabilities.max_files),
    ]
}

pub(crate) fn rlimit(name: &str, value: u64) -> Rlimit {
    Rlimit { name: name.to_owned(), value }
}

pub(crate) fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
