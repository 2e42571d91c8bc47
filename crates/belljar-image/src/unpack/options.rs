//! What the caller decides about unpacking, and what it is told afterwards.

use serde::{Deserialize, Serialize};

/// How whiteouts and opaque directories are stored: what the overlay that is mounted later understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OverlayForm {
    /// For an overlay mounted with real privileges: character devices 0:0 and `trusted.overlay.opaque`.
    Trusted,
    /// For an overlay mounted in a user namespace with `userxattr`: character devices 0:0, which anybody may
    /// make since Linux 5.8, and `user.overlay.opaque`.
    User,
    /// The same, with empty files that have `user.overlay.whiteout`, for where a device 0:0 cannot be made.
    /// The kernel reads this form since 6.7.
    UserXattrWhiteouts,
}

impl OverlayForm {
    /// What the calling process can mount: [`OverlayForm::Trusted`] for root, else [`OverlayForm::User`].
    pub fn of_this_process() -> Self {
        match rustix::process::geteuid().is_root() {
            true => Self::Trusted,
            false => Self::User,
        }
    }

    pub(crate) fn opaque_name(self) -> &'static str {
        match self {
            Self::Trusted => "trusted.overlay.opaque",
            Self::User | Self::UserXattrWhiteouts => "user.overlay.opaque",
        }
    }
}

/// Who owns what is unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ownership {
    /// The ids of the archive, as root or within a user namespace that maps them.
    Archive,
    /// Everything belongs to the calling user.
    Single,
}

/// What becomes of setuid and setgid bits and of file capabilities. The setgid bit of a directory gives no
/// right to a program, and is always kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PrivilegedBits {
    Keep,
    Strip,
}

/// How one layer is unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnpackOptions {
    pub form: OverlayForm,
    pub ownership: Ownership,
    pub privileged_bits: PrivilegedBits,
    pub limits: UnpackLimits,
}

impl UnpackOptions {
    /// For a sandbox that this process starts. Root's layers have the owners of the archive, which are shifted for
    /// each run; an ordinary user's belong to that user. Both are marked as an overlay in a user namespace reads them.
    /// Nobody in a sandbox gets rights by executing a file, so no file says so.
    pub fn for_sandbox() -> Self {
        let is_root = rustix::process::geteuid().is_root();
        Self {
            form: OverlayForm::User,
            ownership: if is_root { Ownership::Archive } else { Ownership::Single },
            privileged_bits: PrivilegedBits::Strip,
            limits: UnpackLimits::default(),
        }
    }

    /// Names trees that cannot stand for each other.
    pub(crate) fn variant(&self) -> String {
        let form = match self.form {
            OverlayForm::Trusted => "trusted",
            OverlayForm::User => "user",
            OverlayForm::UserXattrWhiteouts => "userxattr",
        };
        let owner = match self.ownership {
            Ownership::Archive => "archive",
            Ownership::Single => "single",
        };
        let bits = match self.privileged_bits {
            PrivilegedBits::Keep => "keep",
            PrivilegedBits::Strip => "strip",
        };
        format!("{form}-{owner}-{bits}")
    }
}

/// How much one layer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnpackLimits {
    /// Entries of the archive.
    pub entries: u64,
    /// Of the uncompressed archive, padding included, and of all files together, holes included.
    pub layer_bytes: u64,
    /// Of one file, holes included.
    pub file_bytes: u64,
    /// Directories between the root and an entry.
    pub depth: usize,
    /// Of one path or link target.
    pub path_bytes: u64,
    /// Of one entry's extended attributes.
    pub xattr_bytes: u64,
    /// Of all extended attributes.
    pub layer_xattr_bytes: u64,
    /// Pieces of data of one sparse file.
    pub sparse_segments: usize,
    /// Of the paths of all whiteouts, and of all directories that no entry names: they are held in memory.
    pub deferred_bytes: u64,
}

impl Default for UnpackLimits {
    /// Wide enough for every image that was looked at; a layer of a million entries is refused.
    fn default() -> Self {
        Self {
            entries: 1_000_000,
            layer_bytes: 64 << 30,
            file_bytes: 32 << 30,
            depth: 200,
            path_bytes: 4096,
            xattr_bytes: 64 << 10,
            layer_xattr_bytes: 16 << 20,
            sparse_segments: 1 << 16,
            deferred_bytes: 64 << 20,
        }
    }
}

/// What was unpacked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnpackReport {
    pub files: u64,
    /// Directories that entries named.
    pub directories: u64,
    /// Directories that no entry named.
    pub implicit_directories: u64,
    pub symlinks: u64,
    pub hard_links: u64,
    /// Of all files, holes included.
    pub bytes: u64,
    pub whiteouts: u64,
    pub opaque_directories: u64,
    /// The layer hides all layers below it: they must be left out of the overlay, since the kernel does not
    /// look for this mark at a layer's root.
    pub hides_all_below: bool,
    /// Whiteouts with nothing to hide.
    pub dropped_whiteouts: u64,
    pub skipped_devices: u64,
    pub skipped_fifos: u64,
    /// Entries that aufs keeps for itself.
    pub skipped_metadata: u64,
    pub dropped_xattrs: u64,
    /// The largest owner or group, which must be mapped where the layer is used.
    pub highest_id: u32,
}
