//! Lists sources that hold more than an operator usually means to share, and those that are never mounted. The list
//! is data, in this one place.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, openat, stat};

use crate::resolve::{Resolved, file_type};

/// Names that hold credentials, wherever they are.
const CREDENTIAL_NAMES: &[&str] = &[
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    ".password-store",
    ".vault-token",
    ".mozilla",
    ".env",
    ".terraform.d",
    ".oci",
];

/// Places that hold credentials, below `.config`, `.local/share` and the like.
const CREDENTIAL_PLACES: &[&str] = &[
    ".config/gh",
    ".config/gcloud",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/op",
    ".config/doctl",
    ".config/hub",
    ".local/share/keyrings",
    ".cargo/credentials.toml",
];

/// Files of the system that hold credentials: passwords, with the copies that tools keep of them.
const SYSTEM_SECRETS: &[&str] = &["/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-"];

/// Where the host's keys are, and how their names begin and end.
const HOST_KEYS: (&str, &str, &str) = ("/etc/ssh", "ssh_host_", "_key");

/// Files left out of an install prefix.
pub(crate) const TOOL_CREDENTIALS: &[&str] = &[
    "credentials",
    "credentials.toml",
    "credentials.json",
    ".credentials.json",
    "auth.json",
    ".npmrc",
    ".netrc",
    ".pypirc",
    ".git-credentials",
    ".env",
];

/// Why a source needs the operator's explicit permission, or is never mounted.
#[derive(Debug, thiserror::Error)]
pub enum SourceRefused {
    #[error("{} is the root of the whole file system", .0.display())]
    Root(PathBuf),
    #[error("{} is or contains the home directory {}", .path.display(), .home.display())]
    HomeDirectory { path: PathBuf, home: PathBuf },
    #[error("{} holds credentials ({name})", .path.display())]
    Credentials { path: PathBuf, name: &'static str },
    #[error("{} is or contains {}, a secret of the system", .path.display(), .secret.display())]
    SystemSecret { path: PathBuf, secret: PathBuf },
    #[error("{} is a socket: the run could talk to the process that listens on it", .0.display())]
    Socket(PathBuf),
    #[error("{} is neither a file nor a directory", .0.display())]
    SpecialFile(PathBuf),
    #[error("{} has {links} hard links: a change here would also change the file outside the run's mounts", .path.display())]
    HardLinked { path: PathBuf, links: u64 },
    #[error(
        "{} is, contains or is in Belljar's own directory {}, which is never mounted; \
         use a project directory, or --workspace none",
        .path.display(), .directory.display()
    )]
    Belljar { path: PathBuf, directory: PathBuf },
}

impl SourceRefused {
    /// Whether `--allow-source` can overrule it.
    pub fn can_be_allowed(&self) -> bool {
        !matches!(self, Self::Belljar { .. } | Self::SpecialFile(_) | Self::Root(_))
    }
}

/// Checks an opened source. `homes`: the directories that people live in.
pub(crate) fn check(
    source: &Resolved,
    homes: &[PathBuf],
    writable: bool,
) -> Result<(), SourceRefused> {
    let path = || source.path.clone();
    if source.path == Path::new("/") {
        return Err(SourceRefused::Root(path()));
    }
    match file_type(&source.stat) {
        FileType::Directory | FileType::RegularFile => {}
        FileType::Socket => return Err(SourceRefused::Socket(path())),
        _ => return Err(SourceRefused::SpecialFile(path())),
    }
    if let Some(home) = homes.iter().find(|home| home.starts_with(&source.path)) {
        return Err(SourceRefused::HomeDirectory { path: path(), home: home.clone() });
    }
    if let Some(name) = credential_name(&source.path) {
        return Err(SourceRefused::Credentials { path: path(), name });
    }
    if let Some(secret) = system_secret(source) {
        return Err(SourceRefused::SystemSecret { path: path(), secret });
    }
    #[allow(clippy::useless_conversion, reason = "narrower on other processors")]
    let links = u64::from(source.stat.st_nlink);
    if writable && !source.is_directory() && links > 1 {
        return Err(SourceRefused::HardLinked { path: path(), links });
    }
    Ok(())
}

fn credential_name(path: &Path) -> Option<&'static str> {
    let by_name = CREDENTIAL_NAMES
        .iter()
        .find(|name| path.components().any(|component| component.as_os_str() == **name));
    let by_place = || {
        let parts: Vec<_> = path.components().map(|component| component.as_os_str()).collect();
        CREDENTIAL_PLACES.iter().find(|place| {
            let place: Vec<_> =
                Path::new(place).components().map(|part| part.as_os_str()).collect();
            parts.windows(place.len()).any(|window| window == place)
        })
    };
    by_name.or_else(by_place).copied()
}

/// A secret of the system that a source is, by whatever name, or that is in it. A user who cannot read a secret cannot
/// leak it with a directory, either.
fn system_secret(source: &Resolved) -> Option<PathBuf> {
    let (keys, head, tail) = HOST_KEYS;
    let names = std::fs::read_dir(keys).into_iter().flatten().flatten();
    let keys = names.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().map(|name| name.as_encoded_bytes()).unwrap_or_default();
        name.starts_with(head.as_bytes()) && name.ends_with(tail.as_bytes())
    });
    let mut secrets = SYSTEM_SECRETS.iter().map(PathBuf::from).chain(keys);
    if source.is_directory() {
        let is_readable = |secret: &PathBuf| std::fs::File::open(secret).is_ok();
        return secrets.find(|secret| secret.starts_with(&source.path) && is_readable(secret));
    }
    secrets.find(|secret| {
        let same =
            |found: Stat| (found.st_dev, found.st_ino) == (source.stat.st_dev, source.stat.st_ino);
        source.path == **secret || stat(secret).is_ok_and(same)
    })
}

/// The home directories of the system's people: root's, and those of ordinary users.
pub fn home_directories(callers: Option<&Path>) -> Vec<PathBuf> {
    let passwd = std::fs::read("/etc/passwd").unwrap_or_default();
    let mut homes: Vec<PathBuf> = String::from_utf8_lossy(&passwd)
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let uid: u32 = fields.get(2)?.parse().ok()?;
            let is_person = uid == 0 || (1000..65534).contains(&uid);
            let home = fields.get(5).filter(|home| is_person && home.len() > 1)?;
            Some(PathBuf::from(home))
        })
        .chain(callers.filter(|home| home.parent().is_some()).map(Path::to_owned))
        .collect();
    homes.sort();
    homes.dedup();
    homes
}

/// Belljar's directories, recognised by device and inode and not by name.
#[derive(Debug)]
pub(crate) struct BelljarDirectories(Vec<(PathBuf, u64, u64)>);

impl BelljarDirectories {
    pub(crate) fn of(paths: &[PathBuf]) -> Self {
        let known = paths.iter().filter_map(|path| {
            let stat = stat(path).ok()?;
            Some((path.clone(), stat.st_dev, stat.st_ino))
        });
        Self(known.collect())
    }

    /// Refuses a source that is, contains or is in one of them, by walking up the tree from both sides.
    pub(crate) fn check(&self, source: &Resolved) -> Result<(), SourceRefused> {
        let refused = |directory: &Path| SourceRefused::Belljar {
            path: source.path.clone(),
            directory: directory.to_owned(),
        };
        for (directory, device, inode) in &self.0 {
            if above(source).any(|at| at == (*device, *inode)) {
                return Err(refused(directory));
            }
            let Ok(fd) = rustix::fs::open(directory, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            else {
                continue;
            };
            let Ok(directory_stat) = fstat(&fd) else { continue };
            let here = (source.stat.st_dev, source.stat.st_ino);
            if ancestors(&fd, &directory_stat).any(|at| at == here) {
                return Err(refused(directory));
            }
        }
        Ok(())
    }
}

/// A file has no `..`: its directory is used instead.
fn above(source: &Resolved) -> Box<dyn Iterator<Item = (u64, u64)>> {
    if source.is_directory() {
        return Box::new(ancestors(&source.fd, &source.stat));
    }
    let parent = source.path.parent().unwrap_or(Path::new("/"));
    let opened = rustix::fs::open(parent, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    match opened.and_then(|fd| fstat(&fd).map(|stat| (fd, stat))) {
        Ok((fd, stat)) => Box::new(ancestors(&fd, &stat)),
        Err(_) => Box::new(std::iter::empty()),
    }
}

/// Device and inode of a directory and of every directory above it.
fn ancestors(fd: &OwnedFd, stat: &Stat) -> impl Iterator<Item = (u64, u64)> + use<> {
    let mut next = Some((fd.try_clone().ok(), (stat.st_dev, stat.st_ino), file_type(stat)));
    std::iter::from_fn(move || {
        let (fd, here, kind) = next.take()?;
        if let (Some(fd), FileType::Directory) = (fd, kind) {
            let up = openat(&fd, "..", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
            if let Some((up, stat)) = up.and_then(|up| fstat(&up).ok().map(|stat| (up, stat))) {
                let there = (stat.st_dev, stat.st_ino);
                if there != here {
                    next = Some((Some(up), there, FileType::Directory));
                }
            }
        }
        Some(here)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_known_by_name_anywhere() {
        assert_eq!(credential_name(Path::new("/home/a/.ssh")), Some(".ssh"));
        assert_eq!(credential_name(Path::new("/home/a/.ssh/id_rsa")), Some(".ssh"));
        assert_eq!(credential_name(Path::new("/home/a/.config/gh/hosts.yml")), Some(".config/gh"));
        assert_eq!(credential_name(Path::new("/home/a/project/.env")), Some(".env"));
        assert_eq!(credential_name(Path::new("/home/a/project/ssh")), None);
    }

    #[test]
    fn secrets_of_the_system_are_known_by_place_and_by_what_they_are() {
        use crate::resolve::resolve;
        let checked = |path: &Path| check(&resolve(path, &[]).unwrap(), &[], false);
        let is_secret =
            |path: &Path| matches!(checked(path), Err(SourceRefused::SystemSecret { .. }));
        assert!(is_secret(Path::new("/etc/shadow")));
        assert!(checked(Path::new("/etc/passwd")).is_ok() && checked(Path::new("/usr")).is_ok());
        if rustix::process::geteuid().is_root() {
            assert!(is_secret(Path::new("/etc")), "it holds them, and root can read them");
            // Another name of the same file.
            let place = tempfile::tempdir_in("/etc").unwrap();
            let other = place.path().join("harmless");
            std::fs::hard_link("/etc/shadow", &other).unwrap();
            assert!(is_secret(&other));
        }
    }
}
