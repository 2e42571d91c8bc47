//! Finds the repository of a workspace whose `.git` is a file: a linked worktree or a submodule.
//!
//! Git is not run. The `.git` file must be the operator's: a run that could write it could name any repository. And what
//! it names must name this workspace in turn, as git's own commands have it; so a file that came with an archive leads to
//! no repository but the archive's.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar_bind::resolve::{ResolveError, Resolved, resolve};
use belljar_record::home::Home;
use belljar_spec::git_worktrees::WORKTREES;
use belljar_spec::manifest::GitMode;
use belljar_spec::text::{escape, quote_command};
use belljar_spec::{
    BackendChoice, FoundGitDirectory, GitDirectory, GitPart, LinkForm, OsText, Rootfs, RunSpec,
    Settings, WritableTree, paths,
};
use belljar_workspace::{git_has_worktree_config, git_work_tree_in};

use super::files::{DecisionFile, DecisionReader, ReadError};
use super::trust::{Store, TrustError, TrustState, hash_of_file};

/// The file of a linked worktree or a submodule.
pub(super) const LINK: &str = ".git";
/// What stands before the path in it.
const PREFIX: &[u8] = b"gitdir:";

/// How to go on all the same.
const WITHOUT: &str = "to run without git's data: -c sandbox.git=off";

/// Why a run with such a workspace is refused.
#[derive(Debug, thiserror::Error)]
pub enum GitLinkError {
    #[error(
        "{link} {}{}; check which repository it names, then: {}; {WITHOUT}",
        match .standing {
            TrustState::Changed => format!(
                "has changed since it was trusted, or leads elsewhere, and a run can write to {tree}"
            ),
            _ => format!("is inside {tree}, where a run could have changed it"),
        },
        match .repository {
            Some(repository) => format!("; it leads to {repository}"),
            None => String::new(),
        },
        quote_command(&["belljar".into(), "trust".into(), .link.clone()])
    )]
    Untrusted { link: OsText, tree: OsText, standing: TrustState, repository: Option<OsText> },
    #[error(
        "{link} names {directory}, which belongs to the worktree at {owner}{}; {WITHOUT}",
        match .workspace {
            Some(workspace) => format!(
                ", where nothing is; if you moved that worktree here, run: {}",
                quote_command(&["git".into(), "-C".into(), workspace.clone(), "worktree".into(), "repair".into()])
            ),
            None => String::new(),
        }
    )]
    OtherWorktree {
        link: OsText,
        directory: OsText,
        owner: OsText,
        /// Where the worktree may have been moved to: its old place is empty.
        workspace: Option<OsText>,
    },
    // No command: run in a directory that came with an archive, it would hand over a repository that the archive chose.
    #[error(
        "{link} names {directory}, which does not name {workspace} as its work tree (core.worktree in its \
         configuration); {WITHOUT}"
    )]
    NoWayBack { link: OsText, directory: OsText, workspace: OsText },
    #[error(
        "{link} names {directory}, and the file commondir there names another directory than the repository it is in; \
         {WITHOUT}"
    )]
    OtherRepository { link: OsText, directory: OsText },
    #[error(
        "{link} names {directory}, which has a configuration of its own, as no worktree has: a run may have made it; \
         {WITHOUT}"
    )]
    OwnConfiguration { link: OsText, directory: OsText },
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// What the list of trusted files has of a link: its content, and the repository that it leads to.
pub(super) fn hash_of_link(content: &[u8], repository: Option<&Path>) -> String {
    let repository = repository.map(|path| hash_of_file(path.as_os_str().as_bytes()));
    format!("{}+{}", hash_of_file(content), repository.unwrap_or_default())
}

/// A link that is shown for `belljar trust`.
pub(super) struct ExaminedLink {
    pub(super) hash: String,
    /// One line, for a person.
    pub(super) what: String,
}

/// Follows the link without asking whether it is trusted.
pub(super) fn examine(
    link: &DecisionFile,
    reader: &DecisionReader,
) -> Result<ExaminedLink, GitLinkError> {
    let trees = reader.trees_and(None);
    let workspace = resolve(link.path.parent().unwrap_or(&link.path), &trees)?;
    let search = Search { reader, distrusted: None, trees: &trees, workspace: &workspace };
    let without = || hash_of_link(&link.content, None);
    Ok(match search.follow(link)? {
        GitLink::Found(found) => {
            let GitDirectory { path, link_hash, .. } = found.directory;
            let what = format!("the repository {path} is mounted with its directory");
            ExaminedLink { hash: link_hash, what }
        }
        GitLink::None => {
            let what = "it names a directory in its own directory, and nothing else is mounted";
            ExaminedLink { hash: without(), what: what.to_owned() }
        }
        GitLink::NotMounted(why) => {
            ExaminedLink { hash: without(), what: format!("no repository is mounted: {why}") }
        }
    })
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
    let found = match of_workspace(spec, reader, home)? {
        GitLink::Found(found) => found,
        other => return Ok(other),
    };
    if let Some(instead) = by_operator(spec, &found) {
        return Ok(instead);
    }
    match &spec.rootfs {
        Rootfs::Directory { path } => {
            let why = format!("{path} has no place for {}", found.directory.path);
            Ok(GitLink::NotMounted(why)) // nothing is created in it
        }
        Rootfs::Host | Rootfs::Image => Ok(GitLink::Found(found)),
    }
}

/// A mount of the operator's decides how the repository is seen, and what is at its place: nothing goes over it.
fn by_operator(spec: &RunSpec, found: &FoundGitDirectory) -> Option<GitLink> {
    let (path, target) = (&found.directory.path, &found.target);
    spec.mounts.iter().find_map(|mount| {
        let source = mount.source.as_path();
        let source = std::fs::canonicalize(source).unwrap_or_else(|_| source.to_owned());
        let place = target.as_path().strip_prefix(mount.target.as_path());
        let part = path.as_path().strip_prefix(&source);
        match (place, part) {
            (Err(_), Err(_)) => None,
            (Ok(place), Ok(part)) if place == part => Some(GitLink::None), // it is there already
            _ => Some(GitLink::NotMounted(format!(
                "{path} is not mounted at {target}, because of your own mount of {} at {}",
                mount.source, mount.target
            ))),
        }
    })
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
    let followed = search.follow(&link);
    if let Some(tree) = &link.written_in {
        refuse_untrusted(&link, tree, &followed, &Store::open(home)?)?;
    }
    followed
}

/// The content has to be what the operator trusted, and what it leads to as well: a run may have changed files on the
/// way. Where it leads to nothing, the reason of that is the answer.
fn refuse_untrusted(
    link: &DecisionFile,
    tree: &Path,
    followed: &Result<GitLink, GitLinkError>,
    store: &Store,
) -> Result<(), GitLinkError> {
    let path = OsText::from(link.path.as_path());
    let trusted = store.hash_of(&path);
    let same_content = || {
        let content = trusted.and_then(|hash| hash.split_once('+')).map(|(content, _)| content);
        content == Some(&*hash_of_file(&link.content))
    };
    let (is_trusted, repository) = match followed {
        Ok(GitLink::None) => (true, None), // nothing is mounted
        Ok(GitLink::Found(found)) => {
            let GitDirectory { path, link_hash, .. } = &found.directory;
            (trusted == Some(&**link_hash), Some(path.clone()))
        }
        Ok(GitLink::NotMounted(_)) | Err(_) => (same_content(), None),
    };
    if is_trusted {
        return Ok(());
    }
    let standing = if trusted.is_some() { TrustState::Changed } else { TrustState::Unknown };
    Err(GitLinkError::Untrusted { link: path, tree: tree.into(), standing, repository })
}

/// A path in a file of git's, up to the end of its line.
fn path_in(content: &[u8]) -> Option<PathBuf> {
    let end = content.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'))?;
    let path = &content[..=end];
    // Nothing that drives a terminal or reorders what a person reads: no repository is called that.
    let is_plain = |part: &str| escape(part.as_bytes()) == part;
    let is_plain = path.utf8_chunks().all(|chunk| is_plain(chunk.valid()));
    is_plain.then(|| PathBuf::from(OsStr::from_bytes(path)))
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

    fn follow(&self, link: &DecisionFile) -> Result<GitLink, GitLinkError> {
        let not_mounted = |why: String| Ok(GitLink::NotMounted(why));
        let shown = OsText::from(link.path.as_path());
        let path = link.content.strip_prefix(PREFIX).map(<[u8]>::trim_ascii_start);
        let Some(path) = path.and_then(path_in) else {
            return not_mounted(format!("{shown} is a file that does not name a git directory"));
        };
        let form = if path.is_absolute() { LinkForm::Absolute } else { LinkForm::Relative };
        let named = paths::clean(&self.workspace.path.join(path));
        let directory = match self.resolve_if_there(&named)? {
            Some(directory) if directory.is_directory() => directory,
            _ => {
                let named = OsText::from(named);
                return not_mounted(format!("{shown} names {named}, which is not a directory"));
            }
        };
        if directory.path.starts_with(&self.workspace.path) {
            return Ok(GitLink::None);
        }
        let place = match self.read(&directory.path.join("commondir"))? {
            Some(common) => self.of_worktree(link, &directory, &named, &common)?,
            None => self.of_submodule(link, directory, named)?,
        };
        let Place { common, target, workspace_target, part } = place;
        let path = OsText::from(common.path.as_path());
        if !is_repository(&common.path) {
            return not_mounted(format!("{shown} names {path}, which is not a repository"));
        }
        if self.workspace.path.starts_with(&common.path) {
            return not_mounted(format!("the workspace is inside its repository {path}"));
        }
        if part != GitPart::Main && common.path.join("reftable").symlink_metadata().is_ok() {
            return not_mounted(format!(
                "{path} has its references in the reftable format, in which those of another worktree cannot be kept \
                 from being written"
            ));
        }
        let link_hash = hash_of_link(&link.content, Some(&common.path));
        let directory = GitDirectory { link: shown, link_hash, path, part };
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
        let (shown, admin) =
            (OsText::from(link.path.as_path()), OsText::from(directory.path.as_path()));
        let elsewhere =
            || GitLinkError::OtherRepository { link: shown.clone(), directory: admin.clone() };
        if directory.path.join("config").symlink_metadata().is_ok() {
            return Err(GitLinkError::OwnConfiguration { link: shown, directory: admin });
        }
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
            // Where another one is, this one was not moved; to repair it would take that one's place.
            let is_moved = is_this.is_none();
            let workspace = is_moved.then(|| OsText::from(self.workspace.path.as_path()));
            let (link, directory, owner) = (shown, admin, owner.into());
            return Err(GitLinkError::OtherWorktree { link, directory, owner, workspace });
        }
        let workspace_target = if is_absolute { owner } else { self.workspace.path.clone() };
        let name = directory.path.file_name().unwrap_or_default().into();
        Ok(Place { common, target, workspace_target, part: GitPart::Linked { name } })
    }

    /// `directory` is a whole repository, and its configuration has the work tree.
    fn of_submodule(
        &self,
        link: &DecisionFile,
        directory: Resolved,
        named: PathBuf,
    ) -> Result<Place, GitLinkError> {
        let mut is_back = false;
        let mut has_second = false;
        for name in ["config", "config.worktree"] {
            if name != "config" && !has_second {
                continue; // git does not read it either
            }
            let Some(config) = self.read(&directory.path.join(name))? else { continue };
            has_second |= git_has_worktree_config(&config.content);
            let Some(work_tree) = git_work_tree_in(&config.content) else { continue };
            let there = self.resolve_if_there(&directory.path.join(work_tree))?;
            is_back = there.is_some_and(|there| identity(&there) == identity(self.workspace));
        }
        if !is_back {
            return Err(GitLinkError::NoWayBack {
                link: link.path.as_path().into(),
                directory: directory.path.into(),
                workspace: self.workspace.path.as_path().into(),
            });
        }
        let workspace_target = self.workspace.path.clone();
        Ok(Place { common: directory, target: named, workspace_target, part: GitPart::Main })
    }
}

/// Where everything is.
struct Place {
    common: Resolved,
    target: PathBuf,
    workspace_target: PathBuf,
    part: GitPart,
}

/// As git itself has it: a repository is known by what these three are, not by their names alone.
fn is_repository(path: &Path) -> bool {
    let kind = |name: &str| path.join(name).symlink_metadata().map(|meta| meta.file_type());
    let is_head = kind("HEAD").is_ok_and(|kind| kind.is_file() || kind.is_symlink());
    is_head && ["objects", "refs"].iter().all(|name| kind(name).is_ok_and(|kind| kind.is_dir()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::trust::trust_git_link;
    use super::*;

    #[test]
    fn a_repository_is_known_by_what_its_parts_are() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        fs::write(path.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::create_dir(path.join("objects")).unwrap();
        fs::create_dir(path.join("refs")).unwrap();
        assert!(is_repository(path), "the control");
        fs::remove_dir(path.join("refs")).unwrap();
        std::os::unix::fs::symlink("objects", path.join("refs")).unwrap();
        assert!(!is_repository(path), "a link");
        fs::remove_file(path.join("refs")).unwrap();
        fs::write(path.join("refs"), "").unwrap();
        assert!(!is_repository(path), "a file");
    }

    #[test]
    fn a_path_with_signs_that_drive_a_terminal_is_none() {
        assert_eq!(
            path_in(b"/a b/\xc3\xa9\xff\n"),
            Some(OsStr::from_bytes(b"/a b/\xc3\xa9\xff").into())
        );
        for hostile in ["/a\u{1b}[2J", "/a\nb", "/a\u{202e}b", "/a\0", "\n"] {
            assert_eq!(path_in(hostile.as_bytes()), None, "{hostile:?}");
        }
    }

    /// A run that is started again from its record does not bring back what the operator took back.
    #[test]
    fn only_an_operators_link_that_is_as_it_was_is_kept_in_mind() {
        let directory = tempfile::tempdir().unwrap();
        let top = fs::canonicalize(directory.path()).unwrap();
        let home = Home::open_at(top.join("home")).unwrap();
        let tree = top.join("work");
        fs::create_dir(&tree).unwrap();
        let link = tree.join(LINK);
        let content = b"gitdir: /srv/repository/.git/worktrees/work\n";
        fs::write(&link, content).unwrap();
        let repository = Path::new("/srv/repository/.git");
        let git = GitDirectory {
            link: link.as_path().into(),
            link_hash: hash_of_link(content, Some(repository)),
            path: repository.into(),
            part: GitPart::Linked { name: "work".into() },
        };
        let is_trusted = || Store::open(&home).unwrap().hash_of(&git.link).is_some();
        let writable = [WritableTree::by_path(tree.clone())];
        trust_git_link(&git, &writable, &home).unwrap();
        assert!(!is_trusted(), "in a tree that a run could write");
        fs::write(&link, "gitdir: /elsewhere\n").unwrap();
        trust_git_link(&git, &[], &home).unwrap();
        assert!(!is_trusted(), "another one by now");
        fs::write(&link, content).unwrap();
        trust_git_link(&git, &[], &home).unwrap();
        assert!(is_trusted(), "the control");
    }
}
