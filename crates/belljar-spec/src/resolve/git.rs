//! Places the repository of a workspace that is a linked worktree or a submodule.

use super::{Request, ResolveError};
use crate::layers::Settings;
use crate::runspec::{GitDirectory, Mount};
use crate::text::OsText;

const KEY: &str = "sandbox.git";

/// A repository that was found and checked on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundGitDirectory {
    pub directory: GitDirectory,
    /// Where the `.git` file says that it is.
    pub target: OsText,
    /// Where the repository says that the workspace is: git tells a worktree by its path.
    pub workspace_target: OsText,
    pub link: LinkForm,
}

/// How the `.git` file names the repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkForm {
    Absolute,
    /// From the workspace, so that it leads to the repository only if both keep their paths.
    Relative,
}

pub(super) fn directory(request: &Request) -> Option<Box<GitDirectory>> {
    request.git_directory.as_ref().map(|found| Box::new(found.directory.clone()))
}

pub(super) fn workspace_target(request: &Request) -> Option<OsText> {
    request.git_directory.as_ref().map(|found| found.workspace_target.clone())
}

/// In the workspace's own mode.
pub(super) fn mount(
    settings: &Settings,
    request: &Request,
    workspace: Option<&Mount>,
) -> Result<Option<Mount>, ResolveError> {
    let (Some(found), Some(workspace)) = (&request.git_directory, workspace) else {
        return Ok(None);
    };
    let FoundGitDirectory { directory, target, workspace_target, link } = found;
    if *link == LinkForm::Relative && workspace.target != *workspace_target {
        let why = format!(
            "is not where the .git file leads from there, because it names the repository by a relative path; remove \
             sandbox.workspace.target, or set it to \"same\" ({workspace_target})"
        );
        let (key, target) = ("sandbox.workspace.target".to_owned(), workspace.target.clone());
        return Err(ResolveError::Target { key, target, why });
    }
    if let Some(ceiling) = &settings.ceiling {
        ceiling.check_source(settings, KEY, directory.path.as_path())?;
    }
    let (source, target) = (directory.path.clone(), target.clone());
    Ok(Some(Mount { source, target, mode: workspace.mode }))
}
