//! Files that are setuid, setgid or have capabilities already, in a tree that the run may write.
//!
//! The kernel takes those marks away when such a file is written to, but not when it is changed through
//! a shared mapping, and no filter can see that. So they are covered read-only.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Looking at more would make every start in a large tree slow. The threat model states what that means.
const MOST_ENTRIES: usize = 4000;

/// Relative paths, nearest to the root first.
pub(super) fn files_below(tree: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = std::collections::VecDeque::from([tree.to_owned()]);
    let mut seen = 0;
    while let Some(directory) = todo.pop_front() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            seen += 1;
            if seen > MOST_ENTRIES {
                return found;
            }
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_dir() {
                todo.push_back(entry.path());
            } else if meta.is_file() && is_privileged(&entry.path(), meta.mode()) {
                found.extend(entry.path().strip_prefix(tree).map(Path::to_owned));
            }
        }
    }
    found
}

fn is_privileged(path: &Path, mode: u32) -> bool {
    const SETUID_OR_SETGID: u32 = 0o6000;
    const EXECUTABLE: u32 = 0o111;
    let has_capability = || {
        let mut nothing: [u8; 0] = [];
        // With no room for the value, the answer is its length.
        rustix::fs::lgetxattr(path, "security.capability", &mut nothing)
            .is_ok_and(|length| length > 0)
    };
    mode & SETUID_OR_SETGID != 0 || (mode & EXECUTABLE != 0 && has_capability())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn finds_marked_files_and_leaves_others_and_links_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("below")).unwrap();
        for (name, mode) in [("plain", 0o755), ("below/setuid", 0o4755), ("setgid", 0o2755)] {
            fs::write(dir.path().join(name), "x").unwrap();
            fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        std::os::unix::fs::symlink("below/setuid", dir.path().join("link")).unwrap();
        fs::set_permissions(dir.path().join("below"), fs::Permissions::from_mode(0o2755)).unwrap();
        let found = files_below(dir.path());
        assert_eq!(found, [PathBuf::from("setgid"), PathBuf::from("below/setuid")]);
    }
}
