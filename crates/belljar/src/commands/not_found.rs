//! Explains why a program was not found inside (exit code 127), and what helps.

use std::path::{Component, Path, PathBuf};

use belljar::spec::text::quote_command;
use belljar::spec::{BackendName, ExecFailure, Hint, NotFoundCause, OsText, Rootfs, RunSpec};

use crate::report;

/// Whether the mounts of the run can still change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mounts {
    /// The next `belljar run` can have others.
    OfNextRun,
    /// The run is alive.
    OfLiveRun,
}

/// Where the programs inside come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Programs {
    OfHost,
    /// Of an image, or of another root.
    OfImage,
}

impl Programs {
    pub(super) fn of(backend: Option<BackendName>, spec: &RunSpec) -> Self {
        let is_engine = BackendName::engines().any(|engine| Some(engine) == backend);
        if is_engine || spec.rootfs != Rootfs::Host { Self::OfImage } else { Self::OfHost }
    }
}

/// Images that people start by their name alone.
const KNOWN_IMAGES: &[&str] = &[
    "alpine",
    "amazonlinux",
    "archlinux",
    "busybox",
    "centos",
    "debian",
    "fedora",
    "gcc",
    "golang",
    "hello-world",
    "nginx",
    "nixos",
    "node",
    "php",
    "postgres",
    "python",
    "redis",
    "ruby",
    "rust",
    "ubuntu",
];

/// Prints why the command was not executed, and a hint.
pub(super) fn explain(
    failure: &ExecFailure,
    programs: Programs,
    command: &[OsText],
    mounts: Mounts,
) {
    let name = command.first().cloned().unwrap_or_default();
    report::not_executed(&name.to_string(), &reason(failure, &name, programs));
    let ExecFailure::NotFound { cause } = failure else { return };
    if let Some(hint) = hint(cause.as_ref(), programs, command, mounts) {
        report::hint(&hint);
    }
}

/// The failure, with what the launcher knows about the host.
fn reason(failure: &ExecFailure, name: &OsText, programs: Programs) -> String {
    let is_plain = matches!(failure, ExecFailure::NotFound { cause: None });
    let path = name.as_path();
    if is_plain && programs == Programs::OfHost && path.is_absolute() && path.exists() {
        return format!("{failure}: it is a path of the host, and not mounted");
    }
    if is_plain && !name.as_bytes().contains(&b'/') {
        return format!("{failure}: no directory of PATH has it");
    }
    failure.to_string()
}

fn hint(
    cause: Option<&NotFoundCause>,
    programs: Programs,
    command: &[OsText],
    mounts: Mounts,
) -> Option<Hint> {
    let name = command.first()?;
    // A path that a file inside names: whoever wrote that file would learn whether the host has it, and a look can
    // make the host mount something. So it is not looked at, and only the form of an install prefix is offered.
    let named_inside = match cause {
        Some(NotFoundCause::Link { to, .. }) => Some(to.as_path()),
        Some(NotFoundCause::Interpreter { interpreter, .. }) => Some(interpreter.as_path()),
        None => None,
    };
    if let Some(program) = named_inside {
        let prefix = prefix_of(program).filter(|_| programs == Programs::OfHost)?;
        return Some(bring_in_prefix(program, &prefix, mounts));
    }
    let wanted = match name.as_path().is_absolute() {
        true => Some(name.as_path().to_owned()),
        false => on_host_path(name.as_path()),
    };
    if programs == Programs::OfHost
        && let Some(program) = wanted.filter(|path| path.is_file())
    {
        return Some(bring_in(&program, mounts));
    }
    let text = name.to_string();
    if mounts == Mounts::OfNextRun && looks_like_image(&text) && programs == Programs::OfHost {
        let rest: Vec<OsText> = command.iter().skip(1).cloned().collect();
        let command = if rest.is_empty() { "sh".to_owned() } else { quote_command(&rest) };
        return Some(Hint::UseImage { image: text, command });
    }
    if text.contains('/') {
        return None;
    }
    Some(match programs {
        Programs::OfHost => Hint::Install { program: text },
        Programs::OfImage => Hint::InstallInImage { program: text },
    })
}

/// The mount that brings a program of the host in.
fn bring_in(program: &Path, mounts: Mounts) -> Hint {
    if let Some(prefix) = prefix_of(program) {
        return bring_in_prefix(program, &prefix, mounts);
    }
    let program = quote_command(&[OsText::from(program)]);
    match mounts {
        Mounts::OfNextRun => Hint::UseVolume { program },
        Mounts::OfLiveRun => Hint::RestartWithVolume { program },
    }
}

fn bring_in_prefix(program: &Path, prefix: &Path, mounts: Mounts) -> Hint {
    let program = quote_command(&[OsText::from(program)]);
    let prefix = quote_command(&[OsText::from(prefix)]);
    match mounts {
        Mounts::OfNextRun => Hint::UseTool { program, prefix },
        Mounts::OfLiveRun => Hint::RestartWithTool { program, prefix },
    }
}

/// The install prefix of a program, if it can be mounted: never a home directory, nor what contains one.
fn prefix_of(program: &Path) -> Option<PathBuf> {
    let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if !program.is_absolute() || !program.components().all(is_plain) {
        return None;
    }
    let bin = program.parent().filter(|bin| bin.ends_with("bin"))?;
    let prefix = bin.parent().filter(|prefix| prefix.parent().is_some())?;
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let contains_home = home.is_some_and(|home| home.starts_with(prefix));
    (!contains_home && prefix != Path::new("/root")).then(|| prefix.to_owned())
}

fn looks_like_image(name: &str) -> bool {
    let is_known = |name: &str| KNOWN_IMAGES.contains(&name);
    let (repository, tag) = match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => (repository, Some(tag)),
        _ => (name, None),
    };
    let is_relative = !name.starts_with('/') && !name.starts_with('.');
    let has_registry = repository.split_once('/').is_some_and(|(host, _)| host.contains('.'));
    is_relative && (tag.is_some() || has_registry || is_known(repository))
}

fn on_host_path(name: &Path) -> Option<PathBuf> {
    if name.components().count() != 1 {
        return None;
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_recognised_by_their_form() {
        for image in ["ubuntu", "ubuntu:24.04", "ghcr.io/a/b", "python:3.12-slim", "me/tool:1"] {
            assert!(looks_like_image(image), "{image}");
        }
        for other in ["make", "./ubuntu", "/bin/ubuntu:1", "src/tool", "cargo"] {
            assert!(!looks_like_image(other), "{other}");
        }
    }

    #[test]
    fn a_home_directory_is_no_install_prefix() {
        assert_eq!(prefix_of(Path::new("/opt/x/bin/y")), Some("/opt/x".into()));
        assert_eq!(prefix_of(Path::new("/bin/y")), None);
        assert_eq!(prefix_of(Path::new("/opt/x/y")), None);
        assert_eq!(prefix_of(Path::new("/root/bin/y")), None);
        assert_eq!(prefix_of(Path::new("/opt/x/../../home/bin/y")), None);
    }
}
