//! Podman as a service: root's, and one that belongs to an ordinary user.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use belljar::spec::env;

use super::daemon::Daemon;
use super::image::Images;
use super::{Variables, api, endpoint, subids};
use crate::test::TestUser;
use belljar_testkit::private_docker::BUSYBOX_IMAGE;

/// Podman would look for a name without a registry's everywhere else too.
const REGISTRY: &str = "localhost/";

const CONTAINERS_CONF: &str = "containers.conf";
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Limits that may be set without CAP_SYS_RESOURCE; a runtime that takes every mixture of control groups;
/// locks in files, since the usual ones are one piece of memory for all Podmans of a user.
const SETTINGS: &str = r#"[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
"#;

/// Whose service it is.
pub(super) enum Owner {
    Root,
    User(TestUser),
}

impl Owner {
    /// An ordinary user, made where it is missing. Needs root.
    pub(super) fn ordinary() -> Result<Self> {
        let user = TestUser::ensure_for_podman()?;
        subids::ensure(&user.name)?;
        Ok(Self::User(user))
    }

    fn give(&self, path: &Path) -> Result<()> {
        match self {
            Self::Root => Ok(()),
            Self::User(user) => chown(path, Some(user.uid), Some(user.gid))
                .with_context(|| format!("cannot give {} to {}", path.display(), user.name)),
        }
    }
}

pub(super) struct Podman {
    pub(super) socket: PathBuf,
    owner: Owner,
}

impl Podman {
    /// Its process goes into `daemons`, also where it fails.
    pub(super) fn start(
        directory: &Path,
        owner: Owner,
        images: &Images,
        daemons: &mut Vec<Daemon>,
    ) -> Result<Self> {
        make(directory, 0o755)?;
        for name in ["home", "net", "root", "tmp"] {
            make(&directory.join(name), 0o755)?;
            owner.give(&directory.join(name))?;
        }
        let run = directory.join("run");
        make(&run, 0o700)?; // as XDG_RUNTIME_DIR has to be
        owner.give(&run)?;
        let settings = directory.join(CONTAINERS_CONF);
        fs::write(&settings, SETTINGS)
            .with_context(|| format!("cannot write {}", settings.display()))?;
        let socket = run.join("podman.sock");
        let mut service = service(directory, &owner, &socket);
        let mut daemon = Daemon::start(&mut service, directory.join("podman.log"))?;
        let answers = daemon.wait_until_it_answers(&socket);
        daemons.push(daemon);
        answers.context("podman system service")?;
        images.import(&socket, REGISTRY)?;
        Ok(Self { socket, owner })
    }

    pub(super) fn variables(&self, images: &Images) -> Result<Variables> {
        let image = format!("{REGISTRY}{BUSYBOX_IMAGE}");
        api::try_out(&self.socket, &image, None)?;
        let endpoint = endpoint(&self.socket);
        let mut variables = vec![
            (env::TEST_IMAGE_PODMAN.to_owned(), image),
            (env::TEST_IMAGE_ARCHIVE.to_owned(), images.busybox.display().to_string()),
        ];
        match &self.owner {
            Owner::Root => variables.push((env::TEST_PODMAN.to_owned(), endpoint)),
            Owner::User(user) => variables.extend([
                (env::TEST_PODMAN_ROOTLESS.to_owned(), endpoint),
                (env::TEST_PODMAN_ROOTLESS_USER.to_owned(), user.name.clone()),
            ]),
        }
        Ok(variables)
    }
}

fn make(directory: &Path, mode: u32) -> Result<()> {
    fs::create_dir(directory)
        .and_then(|()| fs::set_permissions(directory, Permissions::from_mode(mode)))
        .with_context(|| format!("cannot make {}", directory.display()))
}

/// The service is used through its socket, and its own command for comparison: both have the same files.
fn options(directory: &Path) -> Vec<String> {
    let mut options = vec!["--storage-driver".to_owned(), "overlay".to_owned()];
    for (option, place) in [
        ("--root", "root"),
        ("--runroot", "run/storage"),
        ("--tmpdir", "run/libpod"),
        ("--network-config-dir", "net"),
    ] {
        options.extend([option.to_owned(), directory.join(place).display().to_string()]);
    }
    options
}

fn surroundings(directory: &Path) -> Vec<(&'static str, PathBuf)> {
    vec![
        ("CONTAINERS_CONF", directory.join(CONTAINERS_CONF)),
        ("HOME", directory.join("home")),
        ("TMPDIR", directory.join("tmp")), // an import leaves its archive there
        ("XDG_RUNTIME_DIR", directory.join("run")),
    ]
}

fn service(directory: &Path, owner: &Owner, socket: &Path) -> Command {
    let mut podman = Command::new("setpriv");
    // Ends with its parent, whatever ended that.
    podman.args(["--pdeathsig", "TERM", "podman"]).args(options(directory));
    podman.args(["system", "service", "--time=0"]).arg(endpoint(socket));
    podman.current_dir(directory).env_clear().env("PATH", PATH).envs(surroundings(directory));
    if let Owner::User(user) = owner {
        podman.uid(user.uid).gid(user.gid); // std drops the groups with it
    }
    podman
}

/// Podman's own command on the same engine, as `env` takes it.
pub(crate) fn client(endpoint: &str) -> Result<Vec<String>> {
    let socket = endpoint.strip_prefix("unix://").map(Path::new);
    let directory = socket.and_then(|socket| socket.parent()?.parent());
    let directory = directory.context("that is no Podman of ours")?;
    let assign = |(name, value): (&str, PathBuf)| format!("{name}={}", value.display());
    let mut words: Vec<String> = surroundings(directory).into_iter().map(assign).collect();
    words.push("podman".to_owned());
    words.extend(options(directory));
    Ok(words)
}
