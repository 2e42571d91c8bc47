//! Sources that hold more than an operator usually means to give away, and those that are never
//! given. The list is data, in this one place.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, openat, stat};

use super::resolve::{Resolved, file_type};

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

/// Files left out of an install prefix.
pub(crate) const TOOL_CREDENTIALS: &[&str] =
    &["credentials", "credentials.toml", ".npmrc", ".netrc", ".pypirc", ".git-credentials", ".env"];

/// Why a source needs the operator's explicit word, or will not be given at all.
#[derive(Debug, thiserror::Error)]
pub enum SourceRefused {
    #[error("{} is the root of the whole system", .0.display())]
    Root(PathBuf),
    #[error("{} is, or holds, the home directory {}", .path.display(), .home.display())]
    HomeDirectory { path: PathBuf, home: PathBuf },
    #[error("{} is a place of credentials ({name})", .path.display())]
    Credentials { path: PathBuf, name: &'static str },
    #[error("{} is a socket: whoever listens on it would answer the run", .0.display())]
    Socket(PathBuf),
    #[error("{} is neither a file nor a directory", .0.display())]
    SpecialFile(PathBuf),
    #[error("{} has {links} names: changing it here would change it in places that are not shown", .path.display())]
    HardLinked { path: PathBuf, links: u64 },
    #[error("{} is, holds or lies in a directory of belljar itself ({})", .path.display(), .own.display())]
    Own { path: PathBuf, own: PathBuf },
}

impl SourceRefused {
    /// Whether `--allow-source` can overrule it.
    pub fn can_be_allowed(&self) -> bool {
        !matches!(self, Self::Own { .. } | Self::SpecialFile(_) | Self::Root(_))
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

/// Belljar's own directories, known by device and inode and not by name.
#[derive(Debug)]
pub(crate) struct OwnPlaces(Vec<(PathBuf, u64, u64)>);

impl OwnPlaces {
    pub(crate) fn of(paths: &[PathBuf]) -> Self {
        let known = paths.iter().filter_map(|path| {
            let stat = stat(path).ok()?;
            Some((path.clone(), stat.st_dev, stat.st_ino))
        });
        Self(known.collect())
    }

    /// Refuses a source that is, holds or lies in one of them, looking up the tree from both sides.
    pub(crate) fn check(&self, source: &Resolved) -> Result<(), SourceRefused> {
        let refused =
            |own: &Path| SourceRefused::Own { path: source.path.clone(), own: own.to_owned() };
        for (own, device, inode) in &self.0 {
            if above(source).any(|at| at == (*device, *inode)) {
                return Err(refused(own));
            }
            let Ok(fd) = rustix::fs::open(own, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            else {
                continue;
            };
            let Ok(own_stat) = fstat(&fd) else { continue };
            let here = (source.stat.st_dev, source.stat.st_ino);
            if ancestors(&fd, &own_stat).any(|at| at == here) {
                return Err(refused(own));
            }
        }
        Ok(())
    }
}

/// A file has no `..` of its own: its directory is looked at instead.
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
}
