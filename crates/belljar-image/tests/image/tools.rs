//! What the tests share: unpacking one layer, and stores in temporary directories.

use std::path::Path;

use belljar_image::{
    Digest, ExpectedLayer, OverlayForm, Ownership, PrivilegedBits, Store, UnpackError,
    UnpackLimits, UnpackOptions, UnpackReport, unpack_layer,
};
use belljar_tree::{Dir, FinalLink};
use tempfile::TempDir;

pub(crate) fn options() -> UnpackOptions {
    let is_root = rustix::process::geteuid().is_root();
    UnpackOptions {
        form: OverlayForm::of_this_process(),
        ownership: if is_root { Ownership::Archive } else { Ownership::Single },
        privileged_bits: PrivilegedBits::Keep,
        limits: UnpackLimits::default(),
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A directory with a canary beside the target, which no archive may change.
pub(crate) struct Place {
    pub(crate) dir: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("outside")).unwrap();
        std::fs::write(dir.path().join("outside/canary"), "untouched").unwrap();
        Self { dir }
    }

    pub(crate) fn target(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// Unpacks into a new directory of this name.
    pub(crate) fn unpack(
        &self,
        name: &str,
        archive: &[u8],
        lower: &[&str],
        options: &UnpackOptions,
    ) -> Result<UnpackReport, UnpackError> {
        std::fs::create_dir(self.target(name)).unwrap();
        let lower: Vec<Dir> = lower.iter().map(|name| open(&self.target(name))).collect();
        let expected = ExpectedLayer { diff_id: Digest::of(archive) };
        unpack_layer(archive, &open(&self.target(name)), &lower, expected, options)
    }

    pub(crate) fn check_canary(&self) {
        let outside = self.dir.path().join("outside");
        assert_eq!(std::fs::read_to_string(outside.join("canary")).unwrap(), "untouched");
        assert_eq!(std::fs::read_dir(outside).unwrap().count(), 1);
    }
}

pub(crate) fn open(path: &Path) -> Dir {
    Dir::open(path, FinalLink::Refuse).unwrap()
}

pub(crate) fn store(place: &TempDir) -> Store {
    Store::open(place.path().join("images")).unwrap()
}

/// What is in `tmp/` of a store.
pub(crate) fn left_over(store: &Store) -> usize {
    let entries = std::fs::read_dir(store.path().join("tmp")).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().file_type().unwrap().is_dir()).count()
}
