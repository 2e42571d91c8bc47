//! Finds out why the jail does not start in a container, and which flags of the container's engine change that.
//!
//! The causes are found by trying ([`Refusals`]); the rest is read from the kernel's files about this process.

use std::path::{Path, PathBuf};

use belljar_sys::mountinfo::MountTable;

/// The file with the list of system calls, as the flags name it.
const PROFILE_FILE: &str = "belljar-seccomp.json";
const OVERLAY_MAGIC: i64 = 0x794c_7630;
const CAP_SYS_ADMIN: u32 = 21;
/// Paths that are named; the others are counted.
const MAX_NAMED: usize = 3;

/// Why the jail does not start here, and what does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerProblem {
    pub(crate) why: String,
    /// For `docker run`, or `podman run`.
    pub(crate) flags: Vec<String>,
    engine: ContainerEngine,
    /// An ordinary user of the container needs fewer of them.
    root_only: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContainerEngine {
    Docker,
    Podman,
}

/// Which of the first steps of a jail are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Refusals {
    /// User namespaces, mounts or a session keyring: by a filter of system calls, or by AppArmor.
    calls: Option<&'static str>,
    /// A host name, which filters allow together with CAP_SYS_ADMIN.
    host_name: bool,
    /// A new `/proc`.
    proc: bool,
}

/// What this process and its surroundings are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Surroundings {
    /// `/.dockerenv` and `/run/.containerenv`, which the engines leave.
    marks: (bool, bool),
    refused: Refusals,
    /// A filter of system calls was in force before belljar started.
    filtered: bool,
    /// Its AppArmor profile.
    confined_by: Option<String>,
    /// What is mounted over parts of `/proc`.
    covered: Vec<PathBuf>,
    root: Option<RootHere>,
}

/// What root needs besides.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RootHere {
    may_mount: bool,
    home: PathBuf,
    /// The home lies in the container's own tree.
    home_on_overlay: bool,
}

/// Whether an engine has left its mark here.
pub(crate) fn is_marked() -> bool {
    let (docker, podman) = marks();
    docker || podman
}

fn marks() -> (bool, bool) {
    (Path::new("/.dockerenv").exists(), Path::new("/run/.containerenv").exists())
}

/// `None` outside of containers, and where no cause is found. `home`: belljar's.
pub(crate) fn problem(home: &Path) -> Option<ContainerProblem> {
    explain(&Surroundings::here(home))
}

impl ContainerProblem {
    /// What to do, for a terminal: commands to paste.
    pub(crate) fn fix(&self) -> String {
        let command = match self.engine {
            ContainerEngine::Docker => "docker",
            ContainerEngine::Podman => "podman",
        };
        let mut text = "add these flags to the container:\n".to_owned();
        if self.flags.iter().any(|flag| flag.contains(PROFILE_FILE)) {
            text.push_str(&format!("  belljar setup --print seccomp-profile > {PROFILE_FILE}\n"));
        }
        text.push_str(&format!("  {command} run {} …", self.flags.join(" ")));
        if !self.root_only.is_empty() {
            text.push_str(&format!(
                "\n  An ordinary user of the container (--user 1000:1000) does without {}",
                self.root_only.join(" and ")
            ));
        }
        text
    }
}

fn explain(around: &Surroundings) -> Option<ContainerProblem> {
    let is_container = around.marks.0 || around.marks.1 || !around.covered.is_empty();
    if !is_container {
        return None;
    }
    let engine = match around.marks.1 {
        true => ContainerEngine::Podman,
        false => ContainerEngine::Docker,
    };
    let mut causes: Vec<String> = Vec::new();
    let mut flags: Vec<String> = Vec::new();
    let gets_capability = around.root.as_ref().is_some_and(|root| !root.may_mount);
    let host_name = (around.refused.host_name && !gets_capability).then_some("host names");
    if let (Some(call), true) = (around.refused.calls.or(host_name), around.filtered) {
        causes.push(format!("the engine's system call filter refuses {call}"));
        flags.push(format!("--security-opt seccomp={PROFILE_FILE}"));
    }
    if let Some(profile) = &around.confined_by {
        causes.push(format!("the AppArmor profile {profile} forbids mounts"));
        flags.push("--security-opt apparmor=unconfined".to_owned());
    }
    if around.refused.proc || !around.covered.is_empty() {
        let covered = named(&around.covered);
        causes.push(format!(
            "the engine covers parts of /proc{covered}, so the kernel allows no new one"
        ));
        flags.push(match engine {
            ContainerEngine::Docker => "--security-opt systempaths=unconfined".to_owned(),
            ContainerEngine::Podman => "--security-opt unmask=ALL".to_owned(),
        });
    }
    let common = flags.len();
    if let Some(root) = &around.root {
        if !root.may_mount {
            causes.push(
                "root has no CAP_SYS_ADMIN here, and so cannot mount trees for a run".to_owned(),
            );
            flags.push("--cap-add SYS_ADMIN".to_owned());
        }
        if root.home_on_overlay {
            let home = root.home.display();
            causes.push(format!(
                "belljar's home {home} lies in the container's own tree, which cannot show files under another owner"
            ));
            flags.push(format!("-v belljar-home:{home}"));
        }
    }
    let root_only = flags[common..].to_vec();
    (!causes.is_empty()).then(|| ContainerProblem {
        why: format!("inside a container: {}", causes.join("; ")),
        flags,
        engine,
        root_only,
    })
}

fn named(paths: &[PathBuf]) -> String {
    let shown: Vec<String> =
        paths.iter().take(MAX_NAMED).map(|path| path.display().to_string()).collect();
    match (shown.as_slice(), paths.len().saturating_sub(MAX_NAMED)) {
        ([], _) => String::new(),
        (shown, 0) => format!(" ({})", shown.join(", ")),
        (shown, more) => format!(" ({} and {more} more)", shown.join(", ")),
    }
}

impl Surroundings {
    fn here(home: &Path) -> Self {
        let table = MountTable::read().unwrap_or_default();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let label = ["/proc/self/attr/apparmor/current", "/proc/self/attr/current"]
            .iter()
            .find_map(|path| std::fs::read_to_string(path).ok());
        Self {
            marks: marks(),
            refused: refused(),
            filtered: status_field(&status, "Seccomp") == Some("2"),
            confined_by: label.and_then(|label| confined(&label)),
            covered: covered_in(&table),
            root: rustix::process::geteuid().is_root().then(|| RootHere::of(&status, home)),
        }
    }
}

impl RootHere {
    fn of(status: &str, home: &Path) -> Self {
        let effective = status_field(status, "CapEff");
        let effective = effective.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
        let file_system = home.ancestors().find_map(|place| rustix::fs::statfs(place).ok());
        Self {
            may_mount: effective & (1 << CAP_SYS_ADMIN) != 0,
            home: home.to_owned(),
            home_on_overlay: file_system.is_some_and(|found| found.f_type == OVERLAY_MAGIC),
        }
    }
}

#[cfg(feature = "jail")]
fn refused() -> Refusals {
    use belljar_backend::jail::{Obstacle, obstacles};
    let found = obstacles();
    let call = found.iter().find_map(|obstacle| match obstacle {
        Obstacle::UserNamespace => Some("user namespaces"),
        Obstacle::Mount => Some("mounts"),
        Obstacle::Keyring => Some("session keyrings"),
        Obstacle::Proc | Obstacle::HostName => None,
    });
    let host_name = found.contains(&Obstacle::HostName);
    Refusals { calls: call, host_name, proc: found.contains(&Obstacle::Proc) }
}

#[cfg(not(feature = "jail"))]
fn refused() -> Refusals {
    Refusals::default()
}

/// Everything in `/proc` but what the system itself mounts there.
fn covered_in(table: &MountTable) -> Vec<PathBuf> {
    let own = Path::new("/proc/sys/fs/binfmt_misc");
    table.below(Path::new("/proc")).into_iter().filter(|point| point != own).collect()
}

/// `docker-default (enforce)`: the name; `None` where nothing is enforced.
fn confined(label: &str) -> Option<String> {
    let label = label.trim_matches(['\0', '\n', ' ']);
    let name = label.strip_suffix(" (enforce)")?;
    Some(belljar_spec::text::escape(name.as_bytes()).to_string())
}

fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn docker() -> Surroundings {
        Surroundings {
            marks: (true, false),
            refused: Refusals { calls: Some("user namespaces"), ..Refusals::default() },
            filtered: true,
            covered: ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"].map(PathBuf::from).into(),
            ..Surroundings::default()
        }
    }

    #[test]
    fn a_plain_docker_container_needs_a_filter_and_a_whole_proc() {
        let problem = explain(&docker()).unwrap();
        assert_eq!(
            problem.flags,
            [
                "--security-opt seccomp=belljar-seccomp.json",
                "--security-opt systempaths=unconfined"
            ]
        );
        assert!(problem.why.contains("refuses user namespaces"), "{problem:?}");
        assert!(problem.why.contains("/proc/bus, /proc/fs, /proc/irq and 1 more"), "{problem:?}");
        assert!(!problem.fix().contains("ordinary user"), "{}", problem.fix());
    }

    #[test]
    fn root_needs_a_capability_and_a_home_outside_of_the_containers_tree() {
        let home = PathBuf::from("/root/.local/state/belljar");
        let root = RootHere { may_mount: false, home, home_on_overlay: true };
        let problem = explain(&Surroundings { root: Some(root), ..docker() }).unwrap();
        assert_eq!(
            problem.flags[2..],
            ["--cap-add SYS_ADMIN", "-v belljar-home:/root/.local/state/belljar"]
        );
        assert!(
            problem.fix().contains("does without --cap-add SYS_ADMIN and -v"),
            "{}",
            problem.fix()
        );
    }

    #[test]
    fn apparmor_is_named_where_a_profile_is_enforced() {
        let confined_by = confined("docker-default (enforce)\n");
        let problem = explain(&Surroundings { confined_by, ..docker() }).unwrap();
        assert!(problem.flags.contains(&"--security-opt apparmor=unconfined".to_owned()));
        assert!(problem.why.contains("the AppArmor profile docker-default"), "{problem:?}");
        assert_eq!(confined("unconfined\n"), None);
        assert_eq!(confined("docker-default (complain)"), None);
        assert_eq!(confined(""), None);
    }

    #[test]
    fn podman_has_another_flag_for_proc() {
        let around = Surroundings {
            marks: (false, true),
            refused: Refusals { host_name: true, proc: true, ..Refusals::default() },
            filtered: true,
            covered: vec!["/proc/acpi".into()],
            ..Surroundings::default()
        };
        let flags = explain(&around).unwrap().flags;
        let filter = "--security-opt seccomp=belljar-seccomp.json";
        assert_eq!(flags, [filter, "--security-opt unmask=ALL"]);
        // With the capability that root needs, its filter lets host names through.
        let root = RootHere { may_mount: false, home: "/h".into(), home_on_overlay: false };
        let problem = explain(&Surroundings { root: Some(root), ..around }).unwrap();
        assert_eq!(problem.flags, ["--security-opt unmask=ALL", "--cap-add SYS_ADMIN"]);
        assert!(problem.fix().contains("podman run --security-opt unmask=ALL"));
    }

    #[test]
    fn outside_of_a_container_it_says_nothing() {
        let refused = Refusals { calls: Some("user namespaces"), ..Refusals::default() };
        assert_eq!(explain(&Surroundings { refused, ..Surroundings::default() }), None);
        let whole = MountTable::parse(
            b"20 1 0:5 / /proc rw - proc proc rw\n21 20 0:6 / /proc/sys/fs/binfmt_misc rw - autofs x rw\n",
        );
        assert_eq!(covered_in(&whole), Vec::<PathBuf>::new());
        // A container in which everything is allowed has no problem.
        let marks = (true, false);
        assert_eq!(explain(&Surroundings { marks, ..Surroundings::default() }), None);
    }
}
