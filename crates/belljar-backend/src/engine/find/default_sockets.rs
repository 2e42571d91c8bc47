//! The places where engines listen by default.

use std::io;
use std::path::{Path, PathBuf};

use belljar_spec::BackendName;

use super::{Caller, host_variable};
use crate::engine::dial;
use crate::engine::endpoint::Endpoint;
use crate::error::Unavailable;

/// In the order in which they are tried: an engine of the whole machine's for root, of their own for
/// Podman's other users.
pub(super) fn sockets(backend: BackendName, caller: &Caller<'_>) -> Vec<PathBuf> {
    let runtime = caller
        .directory("XDG_RUNTIME_DIR")
        .unwrap_or_else(|| PathBuf::from(format!("/run/user/{}", caller.uid)));
    let home = caller.directory("HOME");
    let in_home = |path: &str| home.iter().map(|home| home.join(path)).collect::<Vec<_>>();
    match backend {
        BackendName::Podman => {
            let own = runtime.join("podman/podman.sock");
            let machine = PathBuf::from("/run/podman/podman.sock");
            if caller.uid == 0 { vec![machine, own] } else { vec![own, machine] }
        }
        _ => [PathBuf::from("/var/run/docker.sock"), runtime.join("docker.sock")]
            .into_iter()
            .chain(in_home(".docker/run/docker.sock"))
            .chain(in_home(".docker/desktop/docker.sock"))
            .collect(),
    }
}

/// A socket on which no process listens, or that this user may not use, is skipped and listed. One that
/// accepts connections is used, whatever it answers then.
pub(super) fn first_that_answers(
    backend: BackendName,
    sockets: &[PathBuf],
) -> Result<Endpoint, Unavailable> {
    let mut looked = Vec::new();
    for path in sockets {
        match dial::look(path) {
            Ok(()) => return Ok(Endpoint::Unix(path.clone())),
            Err(error) => looked.push((path, error.kind())),
        }
    }
    let all: Vec<String> = looked.iter().map(|(path, kind)| describe(path, *kind)).collect();
    let forbidden = looked.iter().find(|(_, kind)| *kind == io::ErrorKind::PermissionDenied);
    let fix = match forbidden {
        Some(_) => may_not(backend),
        None => start_it(backend),
    };
    let variable = host_variable(backend);
    let why = format!(
        "no {backend} engine was found: {variable} is not set; looked at {}",
        all.join(", ")
    );
    Err(Unavailable::new(why, fix))
}

fn describe(path: &Path, kind: io::ErrorKind) -> String {
    let what = match kind {
        io::ErrorKind::NotFound => "not there".to_owned(),
        io::ErrorKind::ConnectionRefused => "no process listens".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        other => other.to_string(),
    };
    format!("{} ({what})", path.display())
}

pub(crate) fn may_not(backend: BackendName) -> String {
    match backend {
        BackendName::Podman => "use an engine of your own (systemctl --user start podman.socket)",
        _ => "join the group docker (which is as good as being root), or use sudo",
    }
    .to_owned()
}

pub(crate) fn start_it(backend: BackendName) -> String {
    match backend {
        BackendName::Podman => {
            "start it: systemctl --user start podman.socket (as root: systemctl start podman.socket)"
        }
        _ => "start it: sudo systemctl start docker",
    }
    .to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn of(backend: BackendName, uid: u32, set: &[(&str, &str)]) -> Vec<String> {
        let variable = |name: &str| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        let found = sockets(backend, &Caller { variable: &variable, uid });
        found.iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn rootless_ones_are_among_them() {
        let set = [("XDG_RUNTIME_DIR", "/r"), ("HOME", "/h")];
        assert_eq!(
            of(BackendName::Docker, 1000, &set),
            [
                "/var/run/docker.sock",
                "/r/docker.sock",
                "/h/.docker/run/docker.sock",
                "/h/.docker/desktop/docker.sock"
            ]
        );
        let podman = ["/r/podman/podman.sock", "/run/podman/podman.sock"];
        assert_eq!(of(BackendName::Podman, 1000, &set), podman);
        assert_eq!(of(BackendName::Podman, 0, &set), [podman[1], podman[0]]);
        assert_eq!(
            of(BackendName::Docker, 7, &[]),
            ["/var/run/docker.sock", "/run/user/7/docker.sock"]
        );
    }

    #[test]
    fn a_dead_socket_is_passed_over_and_told() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        drop(UnixListener::bind(at("dead")).unwrap());
        let first = first_that_answers(BackendName::Docker, &[at("none"), at("dead")]);
        let refused = first.unwrap_err();
        for part in ["none (not there)", "dead (no process listens)", "DOCKER_HOST is not set"] {
            assert!(refused.why.contains(part), "{refused}");
        }
        assert!(refused.fix.contains("systemctl start docker"), "{}", refused.fix);
        let _alive = UnixListener::bind(at("alive")).unwrap();
        let found = first_that_answers(BackendName::Docker, &[at("dead"), at("alive")]);
        assert_eq!(found, Ok(Endpoint::Unix(at("alive"))));
    }
}
