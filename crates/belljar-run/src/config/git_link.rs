//! Finds the repository of a workspace whose `.git` is a file: a linked worktree or a submodule.
//!
//! Git is not run. The `.git` file must be the operator's: a run that could write it could name any repository. And what
//! it names must name this workspace in turn, as git's own commands have it; so a file that came with an archive leads to
//! no repository but the archive's.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar_bind::resolve::{ResolveError, Resolved, resolve};
use belljar_record::home::Home;
use belljar_spec::autorun::GitMarks;
use belljar_spec::manifest::GitMode;
use belljar_spec::{
    BackendChoice, FoundGitDirectory, GitDirectory, LinkForm, OsText, Rootfs, RunSpec, Settings,
    WritableTree, paths,
};
use belljar_workspace::git_work_tree_in;

use super::files::{DecisionFile, DecisionReader, ReadError};
use super::trust::{Store, TrustError, TrustState, hash_of_file};

/// The file of a linked worktree or a submodule.
pub(super) const LINK: &str = ".git";
/// What stands before the path in it.
const PREFIX: &[u8] = b"gitdir:";
/// Where a repository keeps what it knows of its linked worktrees.
const WORKTREES: &str = "worktrees";
/// Other worktrees that are kept read-only. Git itself lists them all with each of many commands.
const MAX_OTHERS: usize = 10_000;

/// How to go on all the same.
const WITHOUT: &str = "to run without git's data: -c sandbox.git=off";

/// Why a run with such a workspace is refused.
#[derive(Debug, thiserror::Error)]
pub enum GitLinkError {
    #[error(
        "{} {}; check which repository it names, then: belljar trust {}; {WITHOUT}",
        .link.display(),
        match .standing {
            TrustState::Changed => format!("has changed since it was trusted, and a run can write to {}", .tree.display()),
            _ => format!("is inside {}, where a run could have changed it", .tree.display()),
        },
        .link.display()
    )]
    Untrusted { link: PathBuf, tree: PathBuf, standing: TrustState },
    #[error(
        "{} names {}, which belongs to the worktree at {}; if this worktree was moved, run: git -C {} worktree repair; \
         {WITHOUT}",
        .link.display(), .directory.display(), .owner.display(), .workspace.display()
    )]
    OtherWorktree { link: PathBuf, directory: PathBuf, owner: PathBuf, workspace: PathBuf },
    #[error(
        "{} names {}, which does not name {} as its work tree; if it is the repository of this directory, run: \
         git --git-dir={} config core.worktree {}; {WITHOUT}",
        .link.display(), .directory.display(), .workspace.display(), .directory.display(), .workspace.display()
    )]
    NoWayBack { link: PathBuf, directory: PathBuf, workspace: PathBuf },
    #[error(
        "{} names {}, and the file commondir there names another directory than the repository it is in; {WITHOUT}",
        .link.display(), .directory.display()
    )]
    OtherRepository { link: PathBuf, directory: PathBuf },
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// What became of the `.git` of a workspace.
#[derive(Debug)]
pub(super) enum GitLink {
    /// There is none, or what it names is in the workspace itself.
    None,
    Found(Box<FoundGitDirectory>),
    /// Git does not work inside, for this reason.
    NotMounted(String),
}

/// Finds it where the settings want it, and where the sandbox has a place for it.
pub(super) fn find(
    settings: &Settings,
    spec: &RunSpec,
    reader: &DecisionReader,
    home: &Home,
) -> Result<GitLink, GitLinkError> {
    let is_off = settings.values.sandbox.git == Some(GitMode::Off);
    if is_off || spec.backend == BackendChoice::Host {
        return Ok(GitLink::None); // the host has everything at its place
    }
    let found = of_workspace(spec, reader, home)?;
    let is_mounted = |found: &FoundGitDirectory| {
        spec.mounts.iter().any(|mount| mount.target == found.target) // by the operator
    };
    match (&found, &spec.rootfs) {
        (GitLink::Found(found), _) if is_mounted(found) => Ok(GitLink::None),
        (GitLink::Found(found), Rootfs::Directory { path }) => {
            let why = format!("{path} has no place for {}", found.directory.path);
            Ok(GitLink::NotMounted(why)) // nothing is created in it
        }
        _ => Ok(found),
    }
}

/// Says that git does not work inside.
pub(super) fn warning(why: &str) -> String {
    format!("git does not work in this run: {why}; to run without this message: -c sandbox.git=off")
}

/// A workspace with a plain `.git` costs one look at that name.
fn of_workspace(
    spec: &RunSpec,
    reader: &DecisionReader,
    home: &Home,
) -> Result<GitLink, GitLinkError> {
    let Some(workspace) = &spec.workspace else { return Ok(GitLink::None) };
    let path = workspace.source.as_path();
    let is_file = std::fs::symlink_metadata(path.join(LINK)).is_ok_and(|meta| meta.is_file());
    let is_hidden = |hidden: &OsText| path.join(hidden.as_path()) == path.join(LINK);
    if !is_file || spec.hide.iter().any(is_hidden) {
        return Ok(GitLink::None);
    }
    let distrusted = spec.untrusted_tree.as_ref().map(OsText::as_path);
    let trees = reader.trees_and(distrusted);
    let workspace = match resolve(path, &trees) {
        Err(ResolveError::Missing { .. }) => return Ok(GitLink::None),
        workspace => workspace?,
    };
    let search = Search { reader, distrusted, trees: &trees, workspace: &workspace };
    let Some(link) = search.read(&workspace.path.join(LINK))? else { return Ok(GitLink::None) };
    let hash = hash_of_file(&link.content);
    if let Some(tree) = &link.written_in {
        let standing = Store::open(home)?.standing(&link.path.as_path().into(), &hash);
        if standing != TrustState::Trusted {
            let (link, tree) = (link.path, tree.clone());
            return Err(GitLinkError::Untrusted { link, tree, standing });
        }
    }
    search.follow(&link, hash)
}

/// A path in a file of git's, up to the end of its line.
fn path_in(content: &[u8]) -> Option<PathBuf> {
    let end = content.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'))?;
    let path = &content[..=end];
    (!path.contains(&0)).then(|| PathBuf::from(OsStr::from_bytes(path)))
}

/// Device and inode.
fn identity(found: &Resolved) -> (u64, u64) {
    (found.stat.st_dev, found.stat.st_ino)
}

struct Search<'a> {
    reader: &'a DecisionReader,
    distrusted: Option<&'a Path>,
    /// In which no link is followed.
    trees: &'a [WritableTree],
    workspace: &'a Resolved,
}

impl Search<'_> {
    fn read(&self, path: &Path) -> Result<Option<DecisionFile>, ReadError> {
        self.reader.read(path, self.distrusted)
    }

    fn resolve_if_there(&self, path: &Path) -> Result<Option<Resolved>, ResolveError> {
        match resolve(path, self.trees) {
            Ok(found) => Ok(Some(found)),
            Err(ResolveError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn follow(&self, link: &DecisionFile, link_hash: String) -> Result<GitLink, GitLinkError> {
        let not_mounted = |why: String| Ok(GitLink::NotMounted(why));
        let shown = link.path.display();
        let path = link.content.strip_prefix(PREFIX).map(<[u8]>::trim_ascii_start);
        let Some(path) = path.and_then(path_in) else {
            return not_mounted(format!("{shown} is a file that does not name a git directory"));
        };
        let form = if path.is_absolute() { LinkForm::Absolute } else { LinkForm::Relative };
        let named = paths::clean(&self.workspace.path.join(path));
        let directory = match self.resolve_if_there(&named)? {
            Some(directory) if directory.is_directory() => directory,
            _ => {
                return not_mounted(format!(
                    "{shown} names {}, which is not a directory",
                    named.display()
                ));
            }
        };
        if directory.path.starts_with(&self.workspace.path) {
            return Ok(GitLink::None);
        }
        let place = match self.read(&directory.path.join("commondir"))? {
            Some(common) => self.of_worktree(link, &directory, &named, &common)?,
            None => self.of_submodule(link, directory, named)?,
        };
        let Place { common, target, workspace_target, own } = place;
        if !is_repository(&common.path) {
            let common = common.path.display();
            return not_mounted(format!("{shown} names {common}, which is not a repository"));
        }
        if self.workspace.path.starts_with(&common.path) {
            let common = common.path.display();
            return not_mounted(format!("the workspace is inside its repository {common}"));
        }
        let directory = GitDirectory {
            link: link.path.as_path().into(),
            link_hash,
            others: others(&common.path, own.as_deref()),
            path: common.path.into(),
        };
        let (target, workspace_target) = (target.into(), workspace_target.into());
        let found = FoundGitDirectory { directory, target, workspace_target, link: form };
        Ok(GitLink::Found(Box::new(found)))
    }

    /// `directory` is one below `worktrees` of the repository.
    fn of_worktree(
        &self,
        link: &DecisionFile,
        directory: &Resolved,
        named: &Path,
        common: &DecisionFile,
    ) -> Result<Place, GitLinkError> {
        let elsewhere = || GitLinkError::OtherRepository {
            link: link.path.clone(),
            directory: directory.path.clone(),
        };
        let two_up = |path: &Path| -> Option<PathBuf> {
            let parent =
                path.parent().filter(|parent| parent.file_name() == Some(WORKTREES.as_ref()));
            parent.and_then(Path::parent).map(Path::to_owned)
        };
        let common = path_in(&common.content).ok_or_else(elsewhere)?;
        let common = self.resolve_if_there(&directory.path.join(common))?;
        let common =
            common.filter(|common| two_up(&directory.path).as_deref() == Some(&common.path));
        let (Some(common), Some(target)) = (common, two_up(named)) else { return Err(elsewhere()) };
        // Git tells a worktree by the path of its `.git` file.
        let back = self.read(&directory.path.join("gitdir"))?;
        let back = back.and_then(|back| path_in(&back.content)).ok_or_else(elsewhere)?;
        let is_absolute = back.is_absolute();
        let back = paths::clean(&directory.path.join(back));
        let same_file = |there: Resolved| -> Result<bool, ResolveError> {
            Ok(identity(&there) == identity(&resolve(&link.path, self.trees)?))
        };
        let is_this = self.resolve_if_there(&back)?.map(same_file).transpose()?;
        let owner = back.parent().unwrap_or(&back).to_owned();
        if is_this != Some(true) {
            return Err(GitLinkError::OtherWorktree {
                link: link.path.clone(),
                directory: directory.path.clone(),
                owner,
                workspace: self.workspace.path.clone(),
            });
        }
        let workspace_target = if is_absolute { owner } else { self.workspace.path.clone() };
        let own = directory.path.file_name().map(OsStr::to_owned);
        Ok(Place { common, target, workspace_target, own })
    }

    /// `directory` is a whole repository, and its configuration has the work tree.
    fn of_submodule(
        &self,
        link: &DecisionFile,
        directory: Resolved,
        named: PathBuf,
    ) -> Result<Place, GitLinkError> {
        let mut is_back = false;
        for name in ["config", "config.worktree"] {
            let Some(config) = self.read(&directory.path.join(name))? else { continue };
            let Some(work_tree) = git_work_tree_in(&config.content) else { continue };
            let there = self.resolve_if_there(&directory.path.join(work_tree))?;
            is_back = there.is_some_and(|there| identity(&there) == identity(self.workspace));
        }
        if !is_back {
            return Err(GitLinkError::NoWayBack {
                link: link.path.clone(),
                directory: directory.path,
                workspace: self.workspace.path.clone(),
            });
        }
        let workspace_target = self.workspace.path.clone();
        Ok(Place { common: directory, target: named, workspace_target, own: None })
    }
}

/// Where everything is.
struct Place {
    common: Resolved,
    target: PathBuf,
    workspace_target: PathBuf,
    /// The name of this worktree below `worktrees`.
    own: Option<OsString>,
}

fn is_repository(path: &Path) -> bool {
    let is_there = |name: &&&str| path.join(name).symlink_metadata().is_ok();
    let marks = GitMarks::of(GitMarks::NAMES.iter().filter(is_there).map(|name| OsStr::new(*name)));
    marks.head && marks.objects && marks.refs
}

/// What the repository keeps for its other worktrees. Without it, what they alone refer to would look unused to `git gc`
/// in the run; so it is there, and read-only.
fn others(common: &Path, own: Option<&OsStr>) -> Vec<OsText> {
    let entries = std::fs::read_dir(common.join(WORKTREES)).into_iter().flatten().flatten();
    let directories = entries.take(MAX_OTHERS).filter(|entry| {
        entry.file_type().is_ok_and(|kind| kind.is_dir()) && Some(&*entry.file_name()) != own
    });
    let mut others: Vec<PathBuf> = directories.map(|entry| entry.path()).collect();
    others.sort();
    others.into_iter().map(OsText::from).collect()
}
