//! Warns about `.env` files in the workspace that the run could read.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use belljar_spec::{BackendChoice, OsText, RunSpec};

/// Entries of the directory that are examined.
const MAX_ENTRIES: usize = 5000;
/// Files that the warning names.
const MAX_NAMED: usize = 4;
/// Suffixes of template files, which contain no values.
const EXAMPLES: &[&str] = &[".example", ".sample", ".template", ".dist", ".defaults"];

/// The warning, if the top directory of the workspace has such files and they are not hidden.
pub(super) fn warning(spec: &RunSpec) -> Option<String> {
    let workspace = spec.workspace.as_ref().filter(|_| spec.backend != BackendChoice::Host)?;
    let names = visible(workspace.source.as_path(), &spec.hide);
    let shown: Vec<String> = names.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    let more = match names.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let hide: Vec<String> = shown.iter().map(|name| format!("--hide {name}")).collect();
    (!names.is_empty()).then(|| {
        format!(
            "the run can read {}{more} in the workspace; to hide them: {}",
            shown.join(", "),
            hide.join(" ")
        )
    })
}

fn visible(workspace: &Path, hidden: &[OsText]) -> Vec<OsText> {
    const USUAL: &str = ".env"; // found even in a directory with too many entries
    let entries = std::fs::read_dir(workspace).into_iter().flatten().flatten().take(MAX_ENTRIES);
    let usual = std::fs::symlink_metadata(workspace.join(USUAL)).map(|meta| meta.file_type());
    let is_hidden = |name: &OsStr| {
        hidden.iter().any(|hidden| {
            let hidden = hidden.as_path();
            hidden == Path::new(name) || hidden == workspace.join(name)
        })
    };
    let listed = entries.filter_map(|entry| Some((entry.file_name(), entry.file_type().ok()?)));
    let mut names: Vec<OsText> = listed
        .chain(usual.map(|kind| (USUAL.into(), kind)))
        .filter(|(_, kind)| kind.is_file() || kind.is_symlink())
        .map(|(name, _)| name)
        .filter(|name| holds_values(name.as_bytes()) && !is_hidden(name))
        .map(OsText::from)
        .collect();
    names.sort_by(|a, b| a.as_path().cmp(b.as_path()));
    names.dedup();
    names
}

fn holds_values(name: &[u8]) -> bool {
    (name == b".env" || name.starts_with(b".env."))
        && !EXAMPLES.iter().any(|end| name.ends_with(end.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_is_not_hidden_and_no_examples() {
        let dir = tempfile::tempdir().unwrap();
        for name in [".env", ".env.local", ".env.example", ".envrc", "env", ".env.production"] {
            std::fs::write(dir.path().join(name), "A=1").unwrap();
        }
        std::fs::create_dir(dir.path().join(".env.d")).unwrap();
        let hidden = [OsText::from(".env"), OsText::from(dir.path().join(".env.local"))];
        let names = |hidden: &[OsText]| -> Vec<String> {
            visible(dir.path(), hidden).iter().map(ToString::to_string).collect()
        };
        assert_eq!(names(&[]), [".env", ".env.local", ".env.production"]);
        assert_eq!(names(&hidden), [".env.production"]);
    }
}
