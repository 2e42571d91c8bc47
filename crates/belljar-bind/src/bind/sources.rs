//! Opens and checks the sources of a plan's mounts.

use std::path::Path;

use belljar_spec::egress::TRUST_BUNDLE;
use belljar_spec::resolve::WORKSPACE_INSIDE;
use belljar_spec::{
    Access, HostPaths, MountKind, Plan, PlannedMount, Presence, Source, Tree, WritableTree,
};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use super::BindError;
use crate::identity::Pair;
use crate::resolve::{ResolveError, Resolved, resolve};
use crate::sensitive::{BelljarDirectories, check as check_source};

/// Every source of the plan, opened; `None` where nothing of the host is needed or it may be missing.
pub(super) fn open_sources(
    plan: &Plan,
    place: &HostPaths,
) -> Result<Vec<Option<Resolved>>, BindError> {
    let belljar = BelljarDirectories::of(&place.belljar_directories);
    let open = |mount: &PlannedMount| {
        open_source(mount, plan, place, &belljar).map_err(|error| match flag_of(mount) {
            Some(flag) if std::error::Error::source(&error).is_none() => {
                BindError::Source { flag, error: Box::new(error) }
            }
            _ => error,
        })
    };
    plan.mounts.iter().map(open).collect()
}

/// The flag that names a mount's source, as errors show it.
fn flag_of(mount: &PlannedMount) -> Option<&'static str> {
    let tree = match &mount.what {
        MountKind::Bind { source: Source::Path { .. }, tree, .. } => *tree,
        MountKind::Sent { .. } => Tree::User,
        _ => return None,
    };
    match tree {
        Tree::Tool => Some("--tool"),
        Tree::User if mount.target.as_path() == Path::new(WORKSPACE_INSIDE) => Some("--workspace"),
        Tree::User => Some("--volume"),
        _ => None,
    }
}

fn open_source(
    mount: &PlannedMount,
    plan: &Plan,
    place: &HostPaths,
    belljar: &BelljarDirectories,
) -> Result<Option<Resolved>, BindError> {
    let (source, access, presence, tree) = match &mount.what {
        MountKind::Bind { source, access, presence, tree } => (source, access, presence, tree),
        MountKind::Sent { source, access, .. } => {
            let source = Source::Path { path: source.clone() };
            let (presence, tree) = (Presence::Required, Tree::User);
            let what = MountKind::Bind { source, access: *access, presence, tree };
            let bound = PlannedMount { target: mount.target.clone(), what };
            return open_source(&bound, plan, place, belljar);
        }
        _ => return Ok(None),
    };
    let path = match source {
        Source::Path { path } => path.as_path(),
        Source::RunHome => return Ok(Some(resolve(&place.home, &[])?)),
        Source::RunTrust => return Ok(Some(resolve(&place.directory.join("trust"), &[])?)),
        Source::RunTrustBundle => {
            let bundle = place.directory.join("trust").join(TRUST_BUNDLE);
            return Ok(Some(resolve(&bundle, &[])?));
        }
    };
    // A system directory may be a link, and no run can have planted it.
    let wary_of: &[WritableTree] = if *tree == Tree::System { &[] } else { &place.run_writable };
    let opened = match resolve(path, wary_of) {
        Err(ResolveError::Missing { .. }) if *presence == Presence::IfPresent => return Ok(None),
        Err(ResolveError::Missing { path }) if *tree != Tree::System => {
            return Err(BindError::MissingSource { path });
        }
        opened => opened?,
    };
    if *tree == Tree::System {
        return Ok(Some(opened));
    }
    belljar.check(&opened).map_err(BindError::Never)?;
    if let Err(reason) = check_source(&opened, &place.homes, *access == Access::Writable) {
        let allowed = plan
            .allow_source
            .iter()
            .any(|allowed| allowed.as_path() == path || allowed.as_path() == opened.path);
        if !reason.can_be_allowed() {
            return Err(BindError::Never(reason));
        }
        if !allowed {
            return Err(BindError::Sensitive { path: path.to_owned(), reason });
        }
    }
    Ok(Some(opened))
}

pub(super) fn owner_of(opened: &[Option<Resolved>], path: &Path) -> Option<Pair> {
    let source = opened.iter().flatten().find(|source| source.path == path)?;
    Some(Pair { uid: source.stat.st_uid, gid: source.stat.st_gid })
}

/// Files of `/etc` are small; a large one is not what it should be.
pub(super) fn read_small(path: &Path) -> Result<Option<Vec<u8>>, BindError> {
    const MAX_COUNT: u64 = 256 * 1024;
    const USUAL_SIZE: usize = 16 * 1024;
    let file = match rustix::fs::openat(
        CWD,
        path,
        OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK,
        Mode::empty(),
    ) {
        Ok(fd) => std::fs::File::from(fd),
        Err(Errno::NOENT | Errno::ACCESS | Errno::NOTDIR) => return Ok(None),
        Err(error) => return Err(BindError::Read { path: path.to_owned(), error: error.into() }),
    };
    let mut content = Vec::with_capacity(USUAL_SIZE); // one read, where `read_to_end` begins with 32 bytes
    let read = std::io::Read::read_to_end(&mut std::io::Read::take(file, MAX_COUNT), &mut content);
    match read {
        Ok(_) => {
            content.shrink_to_fit();
            Ok(Some(content))
        }
        Err(error) => Err(BindError::Read { path: path.to_owned(), error }),
    }
}
