//! Lists the directories that are searched for a manifest.

use std::path::{Path, PathBuf};

/// The directory and its parents, up to the home directory if that is one of them, else up to the root.
pub(super) fn upwards(from: &Path, home: Option<&Path>) -> Vec<PathBuf> {
    let last = home.filter(|home| from.starts_with(home));
    let mut directories = Vec::new();
    for directory in from.ancestors() {
        directories.push(directory.to_owned());
        if Some(directory) == last {
            break;
        }
    }
    directories
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_ends_at_home_or_at_the_root() {
        let home = Path::new("/h/u");
        let at = |from: &str| upwards(Path::new(from), Some(home));
        assert_eq!(at("/h/u/a"), [Path::new("/h/u/a"), Path::new("/h/u")]);
        assert_eq!(at("/srv/a"), [Path::new("/srv/a"), Path::new("/srv"), Path::new("/")]);
        assert_eq!(upwards(Path::new("/a"), None), [Path::new("/a"), Path::new("/")]);
    }
}
