//! The programs that each engine is made of.

use super::Engine;
use crate::test::packages::{self, Need, need};

const CONTAINERD: Need = need("containerd", "containerd", "runs Docker's containers");
const DOCKERD: Need = need("dockerd", "docker.io", "the Docker engine");
const RUNC: Need = need("runc", "runc", "starts containers");
const SETPRIV: Need = need("setpriv", "util-linux", "engines that end with their parent");

const DEBOOTSTRAP: Need = need("debootstrap", "debootstrap", "makes an image of Debian");

const DOCKER: &[Need] = &[DOCKERD, CONTAINERD, RUNC, SETPRIV, DEBOOTSTRAP];
const PODMAN: &[Need] = &[
    need("podman", "podman", "the Podman engine"),
    need("conmon", "conmon", "its watchers"),
    RUNC,
    SETPRIV,
];
const ROOTLESS: &[Need] = &[
    need("newuidmap", "uidmap", "user ids for rootless containers"),
    need("newgidmap", "uidmap", "group ids for rootless containers"),
    need("slirp4netns", "slirp4netns", "rootless Podman looks for it"),
    need("fuse-overlayfs", "fuse-overlayfs", "rootless layers where the kernel has none"),
    need("useradd", "passwd", "the owner of the rootless engine"),
];
const RUNSC: &[Need] = &[need("runsc", "runsc", "gVisor")];

/// Installs what is missing, where that can be done.
pub(super) fn ensure(engine: Engine) -> Result<(), String> {
    packages::ensure(&of(engine)).map_err(|error| format!("{error:#}"))
}

/// Whether all of it is there.
pub(super) fn look(engine: Engine) -> Result<(), String> {
    packages::look(&of(engine)).map_err(|error| format!("{error:#}"))
}

fn of(engine: Engine) -> Vec<&'static Need> {
    match engine {
        Engine::Docker => DOCKER.iter().collect(),
        Engine::Podman => PODMAN.iter().collect(),
        Engine::PodmanRootless => PODMAN.iter().chain(ROOTLESS).collect(),
        Engine::Runsc => DOCKER.iter().chain(RUNSC).collect(),
    }
}
